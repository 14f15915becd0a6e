"""`oncemore check records`: honest logs have no findings, and each rule finds its violation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import NeedsReview, PermanentError, StepFailed, TransientError
from oncemore.governance import record_checks
from oncemore.governance.record_checks import check_records
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.record import RecordChange
from oncemore.log.store import Batch, Stored
from oncemore.steps.transitions import begin_attempt

if TYPE_CHECKING:
    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock

ERROR = {"type": "PolicyViolation", "code": "SCHEMA_INVALID", "message": "no"}


def make_log(engine: Engine) -> None:
    """Make runs of every kind: done, retried, failed, held, released, run again, refused."""
    errors: list[Any] = [
        TransientError("1"), None, PermanentError("2"), None, NeedsReview("ODD", "3"), None,
        *[TransientError("4")] * 3, TransientError("5"), None,
    ]  # fmt: skip

    @oncemore.step(effect="idempotent", name="work", dataset="survey")
    def work(item: int) -> int:
        error = errors.pop(0)
        if error is not None:
            raise error
        return item

    assert work(1) == 1
    for item in (2, 3):
        with pytest.raises(oncemore.Error):
            work(item)
        if item == 2:
            assert work.rerun(2, reason="repaired") == 2
    engine.quarantine.release(work.last_run(3).run_id, by="operator", reason="fine")  # type: ignore[union-attr]
    assert work(3) == 3
    with pytest.raises(StepFailed):
        work(4)
    engine.datasets.register("survey", reason="first", by="steward", care_label="Public", status="blocked")
    with pytest.raises(oncemore.Quarantined):
        work(5)


def append(engine: Engine, key: str, marks: tuple[Any, ...], body: dict[str, Any], **changes: Any) -> None:
    """Append an entry to a run as a foreign writer would."""
    head = load_head(engine.store, f"run/{key}")
    change = RecordChange(marks, head.record, head.record._replace(**changes), body)
    write = build_write(head.entity, head.version, head.hash, change, engine.now())
    assert isinstance(engine.store.append(Batch((write,))).wait(), Stored)


def claim(engine: Engine, key: str) -> None:
    head = load_head(engine.store, f"run/{key}")
    after = begin_attempt(head.record, "idempotent", "foreign", engine.now())
    append(engine, key, ("RUNNING", "INTENT"), {}, **after._asdict())


def submitted(engine: Engine) -> str:
    @oncemore.step(effect="idempotent", name="foreign")
    def foreign() -> None: ...

    return foreign.submit().key


def rules(engine: Engine) -> list[str]:
    assert engine.verify().entries, "the hashes are right: only the records are wrong"
    return [finding.rule for finding in check_records(engine.store).findings]


def test_an_honest_log_has_no_findings(engine: Engine, clock: FakeClock) -> None:
    make_log(engine)
    report = check_records(engine.store)
    assert report.findings == ()
    assert (report.runs, report.entries > 15) == (5, True)
    clock.advance(3600)
    assert engine.prune(older_than=60.0).runs
    assert check_records(engine.store).findings == (), "pruned entries are checked as far as they go"


def test_a_retried_violation_is_found(engine: Engine) -> None:
    key = submitted(engine)
    claim(engine, key)
    body = {"error": ERROR, "proof": {"action": "retry"}, "duration_s": 1.0}
    append(engine, key, ("SOFT_FAIL", "DECISION"), body, state="SOFT_FAIL", worker="")
    assert rules(engine) == []
    claim(engine, key)
    assert rules(engine) == ["forbidden_retry"]


def test_a_violation_that_a_person_has_released_is_not_a_finding(engine: Engine) -> None:
    key = submitted(engine)
    claim(engine, key)
    body = {"error": ERROR, "proof": {"action": "quarantine"}, "duration_s": 1.0}
    append(engine, key, ("SOFT_FAIL",), body, state="SOFT_FAIL", worker="", held_for="quarantined")
    decision = {"decision": {"action": "release", "actor": "operator", "reason": "fine"}, "proof": {"a": 1}}
    append(engine, key, ("SOFT_FAIL", "DECISION"), decision, held_for="", reason="decided")
    claim(engine, key)
    assert rules(engine) == []


def test_attempts_beyond_the_bound_are_found(engine: Engine) -> None:
    key = submitted(engine)
    append(engine, key, ("CHECKPOINT",), {}, attempt_count=3)
    claim(engine, key)
    assert rules(engine) == ["too_many_attempts"]


def test_a_bound_that_rises_without_a_decision_is_found(engine: Engine) -> None:
    key = submitted(engine)
    append(engine, key, ("DECISION",), {}, max_attempts=9)
    assert rules(engine) == ["bound_raised"]


def test_missing_telemetry_and_missing_proofs_are_found(engine: Engine) -> None:
    key = submitted(engine)
    claim(engine, key)
    append(engine, key, ("HARD_FAIL",), {"error": {"type": "X"}}, state="HARD_FAIL", worker="")
    findings = check_records(engine.store).findings
    assert [(finding.rule, finding.text) for finding in findings] == [
        ("telemetry_missing", "the entry of a failure has no error.code"),
        ("proof_missing", "HARD_FAIL has no proof"),
    ]


def test_a_hold_without_a_proof_and_a_result_without_its_duration_are_found(engine: Engine) -> None:
    key = submitted(engine)
    append(engine, key, ("PENDING",), {}, held_for="quarantined")
    append(engine, key, ("DECISION",), {"decision": {"actor": "x", "reason": "y"}}, held_for="")
    claim(engine, key)
    append(engine, key, ("COMMIT", "COMPLETE"), {"result": 1}, state="COMPLETE", worker="")
    assert rules(engine) == ["proof_missing", "telemetry_missing"]


def test_the_command_prints_one_line_for_each_finding(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from oncemore.cli.commands import root

    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "log.db"))

    def run() -> tuple[int, list[str]]:
        result = CliRunner().invoke(root, ["check", "records"], standalone_mode=False)
        assert isinstance(result.return_value, int), result.output
        return result.return_value, result.stdout.splitlines()

    with oncemore.open(tmp_path / "log.db") as engine:
        key = submitted(engine)
    assert run() == (0, ["1 runs, 1 entries: no findings"])
    with oncemore.open(tmp_path / "log.db") as engine:
        append(engine, key, ("DECISION",), {}, max_attempts=9)
        append(engine, key, ("DECISION",), {}, max_attempts=10)
    code, lines = run()
    assert (code, len(lines)) == (1, 3)
    assert lines[0].startswith("bound_raised: foreign ")
    assert lines[0].endswith("entry 2: the bound rose from 3 to 9 without a decision")
    monkeypatch.setattr(record_checks, "MAX_FINDINGS", 1)
    assert run()[1][1:] == ["and 1 more", "1 runs, 3 entries: 2 findings"]


def test_an_attempt_that_a_person_has_allowed_beyond_the_bound_is_not_a_finding(engine: Engine) -> None:
    key = submitted(engine)
    append(engine, key, ("CHECKPOINT",), {}, attempt_count=3, reason="decided")
    claim(engine, key)
    decision = {"decision": {"action": "rerun", "actor": "operator", "reason": "once more"}}
    append(engine, key, ("DECISION",), decision, max_attempts=9)
    assert rules(engine) == []


REMOVALS = {
    "the body of an attempt": "UPDATE log SET body = NULL WHERE entity LIKE 'run/%' AND version = 4",
    "the record of an attempt": "DELETE FROM log WHERE entity LIKE 'run/%' AND version = 2",
    "all records of the run": "DELETE FROM log WHERE entity LIKE 'run/%'",
    "its last records": "DELETE FROM log WHERE entity LIKE 'run/%' AND version > 4",
}


@pytest.mark.req("TELEM-10", "CI-3")
@pytest.mark.parametrize("removal", REMOVALS.values(), ids=list(REMOVALS))
def test_removed_records_of_a_retried_run_fail_the_check(tmp_path: Any, removal: str) -> None:
    import sqlite3

    from click.testing import CliRunner

    from oncemore.cli.commands import root
    from oncemore.testing import instant_waits

    path, errors = tmp_path / "log.db", [TransientError("1"), TransientError("2")]

    @oncemore.step(effect="idempotent", name="work")
    def work() -> None:
        if errors:
            raise errors.pop()

    with instant_waits(), oncemore.open(path):
        work()
    arguments = ["check", "records", "--store", str(path)]
    assert CliRunner().invoke(root, arguments, standalone_mode=False).return_value == 0
    with sqlite3.connect(path) as connection:
        assert connection.execute(removal).rowcount
    connection.close()
    result = CliRunner().invoke(root, arguments, standalone_mode=False)
    assert result.return_value == 1
    assert result.stdout.startswith("telemetry_missing: ")


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        (3, 3, "entry 3 of the run is not in the log"),
        (3, 5, "entries 3 to 5 of the run are not in the log"),
    ],
)
def test_the_text_about_missing_entries_counts_them(first: int, last: int, text: str) -> None:
    assert record_checks._describe_gap(first, last) == text
