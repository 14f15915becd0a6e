"""Datasets in files and on the command line, replays and programs: the same gate everywhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import NotPermitted, PermanentError, Quarantined, StepFailed, TransientError
from oncemore.policy.files.faults import PolicyFileError
from oncemore.testing import FakeClock
from tests.governance.pure_steps import count_words
from tests.shell import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = """\
datasets:
  survey:
    care_label: "Public · Low-Risk"
    sensitivity: General
    indigenous_rights_flag: false
    operations: [count, publish]
    masking_level: 1
  burial-sites:
    care_label: "Sensitive · Council only"
    status: blocked
    rights: denied
"""


def run_command(*args: str) -> tuple[int, Any]:
    """Run a command in this process; return its exit code, and its JSON or its text."""
    from click.testing import CliRunner

    from oncemore.cli.commands import root

    result = CliRunner().invoke(root, [*args, "--json"], catch_exceptions=False, standalone_mode=False)
    code = result.return_value if isinstance(result.return_value, int) else result.exit_code
    try:
        return code, json.loads(result.stdout)
    except json.JSONDecodeError:
        return code, result.output


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "log.db"))
    with oncemore.open(tmp_path / "log.db") as engine:
        engine.store  # noqa: B018 - creates it
    return tmp_path / "log.db"


# Files ------------------------------------------------------------------------------------------------


def test_a_file_registers_datasets_and_changes_them(engine: oncemore.Engine) -> None:
    Path("datasets.yaml").write_text(FILE)
    loaded = engine.datasets.load("datasets.yaml", reason="delivery", by="steward")
    assert [record.dataset_id for record in loaded] == ["survey", "burial-sites"]
    survey = engine.datasets.get("survey")
    assert survey is not None
    assert (survey.operations, survey.masking_level, survey.by) == (["count", "publish"], 1, "steward")
    assert engine.datasets.list(status="blocked")[0].rights == "denied"
    assert engine.datasets.load("datasets.yaml", reason="again", by="steward") == (), "nothing has changed"
    assert len(engine.datasets.history("survey")) == 1
    Path("datasets.yaml").write_text(FILE.replace("masking_level: 1", "masking_level: 2"))
    (changed,) = engine.datasets.load("datasets.yaml", reason="villages", by="steward")
    assert changed.masking_level == 2
    last = engine.datasets.history("survey")[-1]
    assert (last.action, last.by, last.reason, last.changes) == (
        "load", "steward", "villages", {"masking_level": [1, 2]},
    )  # fmt: skip
    assert engine.verify().entries


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("status: blocked", "status: open"), 10, "burial-sites.status is blocked in the store"),
        (("rights: denied", "rights: granted"), 11, "burial-sites.rights are denied in the store"),
        (("masking_level: 1", "masking_level: 0"), 7, "survey.masking_level is 1 in the store"),
    ],
)
def test_a_file_cannot_permit_more_than_the_store(
    engine: oncemore.Engine, change: tuple[str, str], line: int, message: str
) -> None:
    Path("datasets.yaml").write_text(FILE)
    engine.datasets.load("datasets.yaml", reason="delivery", by="steward")
    before = engine.datasets.list()
    Path("datasets.yaml").write_text(FILE.replace(*change))
    with pytest.raises(PolicyFileError, match=f"datasets.yaml:{line}:5: {message}"):
        engine.datasets.load("datasets.yaml", reason="old file", by="steward")
    assert engine.datasets.list() == before


def test_all_faults_of_a_file_are_reported_and_nothing_is_changed(engine: oncemore.Engine) -> None:
    text = FILE.replace("sensitivity: General", "sensitvity: General").replace("false", "maybe")
    text = text.replace('    care_label: "Sensitive · Council only"\n', "") + "  '': {}\nmore: 1\n"
    Path("datasets.yaml").write_text(text.replace("masking_level: 1", "masking_level: {}"))
    with pytest.raises(PolicyFileError) as refused:
        engine.datasets.load("datasets.yaml", reason="delivery", by="steward")
    lines = str(refused.value).splitlines()
    assert "datasets.yaml:4:5: survey.sensitvity is unknown; did you mean sensitivity?" in lines
    assert "datasets.yaml:5:5: survey.indigenous_rights_flag is 'maybe'; it takes true or false" in lines
    assert "datasets.yaml:8:3: burial-sites.care_label is missing" in lines
    assert any("masking_level is null" in line for line in lines)
    assert any("the id of the dataset is ''" in line for line in lines)
    assert any("more is unknown; the file has one field: datasets" in line for line in lines)
    assert engine.datasets.list() == ()
    Path("datasets.yaml").write_text("datasets: 3\n")
    with pytest.raises(PolicyFileError, match="datasets has no datasets by id"):
        engine.datasets.load("datasets.yaml", reason="delivery", by="steward")


# Commands ---------------------------------------------------------------------------------------------


def test_every_decision_on_the_command_line_is_recorded_with_who_when_and_why(log: Path) -> None:
    Path("datasets.yaml").write_text(FILE)
    decision = ("--reason", "agreed", "--by", "steward")
    for command in (
        ("load", "datasets.yaml"),
        ("register", "maps", "--set", "care_label=Public", "--set", "redaction_required=true"),
        ("label", "maps", "--set", "masking_level=3", "--set", "operations=count, draw"),
        ("restrict", "maps", "--operation", "count"),
        ("block", "maps"),
        ("withdraw", "maps"),
        ("release", "maps"),
    ):
        assert run_command("control", "dataset", *command, *decision)[0] == 0
    code, shown = run_command("control", "dataset", "show", "maps")
    assert (code, shown["state"], shown["operations"], shown["redaction_required"]) == (
        0, "OPEN", ["count"], True,
    )  # fmt: skip
    actions = ["register", "label", "restrict", "block", "withdraw", "release"]
    assert [change["action"] for change in shown["history"]] == actions
    assert {(change["by"], change["reason"]) for change in shown["history"]} == {("steward", "agreed")}
    assert all(change["at"] > 0 for change in shown["history"])
    assert run_command("control", "dataset", "show", "nothing")[0] == 1
    assert len(run_command("control", "dataset", "list")[1]) == 3
    assert [
        each["dataset_id"] for each in run_command("control", "dataset", "list", "--status", "blocked")[1]
    ] == ["burial-sites"]


def fail_once(log: Path, error: Callable[[], Exception], **fields: Any) -> str:
    """Leave a failed run on a dataset; return its id."""

    @oncemore.step(effect="idempotent", name="publish", dataset="survey")
    def publish(item: int) -> str:
        raise error()

    with oncemore.open(log) as engine, FakeClock():
        if engine.datasets.get("survey") is None:
            engine.datasets.register("survey", reason="first", by="steward", care_label="Public", **fields)
        with pytest.raises(StepFailed):
            publish(1)
        return publish.last_run(1).run_id  # type: ignore[union-attr]


@pytest.mark.req("GOV-10")
def test_an_escalation_names_its_policy(log: Path) -> None:
    fail_once(log, lambda: PermanentError("broken"))
    with oncemore.open(log) as engine:
        assert [each.policy for each in engine.escalations.list()] == ["autonomy-matrix"]

    @oncemore.step(effect="idempotent", name="poll", dataset="survey")
    def poll(item: int) -> str:
        raise TransientError("again")

    with oncemore.open(log) as engine, FakeClock(), pytest.raises(StepFailed):
        poll(1)
    with oncemore.open(log) as engine:
        assert [each.policy for each in engine.escalations.list(step="poll")] == ["deadline-aware"]


@pytest.mark.req("GOV-9")
@pytest.mark.parametrize(
    ("fields", "kind"), [({}, "TICKET"), ({"sensitivity": "Sensitive"}, "CARE_ESCALATION")]
)
def test_a_permanent_failure_can_be_quarantined_by_its_id(
    log: Path, fields: dict[str, Any], kind: str
) -> None:
    run_id = fail_once(log, lambda: PermanentError("broken"), **fields)
    code, opened = run_command("quarantine", run_id, "--reason", "the item is broken", "--by", "operator")
    assert (code, opened["kind"], opened["run_id"]) == (0, kind, run_id)
    code, found = run_command("escalations", "list")
    assert [each["kind"] for each in found] == [kind, kind], "the one of the failure, and this one"
    code, case = run_command("escalations", "show", opened["id"])
    assert (case["run_state"], case["error"]["message"]) == ("HARD_FAIL", "broken")
    assert case["attempts"][0]["outcome"]
    code, done = run_command("escalations", "ack", opened["id"], "--reason", "seen", "--by", "reviewer")
    assert (code, done["state"], done["by"]) == (0, "ACKNOWLEDGED", "reviewer")
    with pytest.raises(oncemore.Error, match="acknowledged already by reviewer: seen"):
        run_command("escalations", "ack", opened["id"], "--reason", "again")
    with pytest.raises(oncemore.Error, match="no escalation begins with 'ffff'"):
        run_command("escalations", "show", "ffff")
    with oncemore.open(log) as engine:
        assert engine.verify().entries


def test_only_a_failed_or_held_run_is_escalated(log: Path) -> None:
    @oncemore.step(effect="idempotent", name="fine")
    def fine() -> int:
        return 1

    with oncemore.open(log) as engine:
        fine()
        run = fine.last_run()
        assert run is not None
        with pytest.raises(oncemore.UsageError, match="only a failed or quarantined run is escalated"):
            engine.escalations.open(run, reason="odd", by="operator")


def test_sinks_get_escalations(tmp_path: Path) -> None:
    received: list[Any] = []

    @oncemore.step(effect="idempotent", name="publish", dataset="survey")
    def publish(item: int) -> str:
        return "published"

    with oncemore.open(tmp_path / "log.db", notify={"desk": received.append}) as engine:
        engine.datasets.register(
            "survey", reason="first", by="steward", care_label="Public", status="blocked"
        )
        with pytest.raises(Quarantined):
            publish(1)
    (message,) = received
    escalation = message.payload["escalation"]
    assert (escalation["kind"], escalation["role"]) == ("CARE_ESCALATION", "FAIR+CARE Council")
    assert (escalation["dataset"], escalation["care_label"]) == ("survey", "Public")
    assert escalation["error_classes"] == ["GOVERNANCE_BLOCKED"]


# Replay and programs -----------------------------------------------------------------------------------


@pytest.mark.req("GOV-3")
def test_blocked_data_is_refused_to_retry_rerun_and_replay(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    calls: list[str] = []

    @oncemore.step(effect="idempotent", name="publish", dataset="survey", operation="count")
    def publish(item: str) -> str:
        calls.append(item)
        if item == "failed":
            raise PermanentError("broken")
        engine.datasets.block("survey", reason="objection", by="steward")
        raise TransientError("again")

    with oncemore.open(log) as engine, FakeClock():
        engine.datasets.register("survey", reason="first", by="steward", care_label="Public")
        assert count_words("two words") == 2
        key = count_words.key("two words")
        assert run_command("replay", key, "--verify", "--module", "tests.governance.pure_steps")[0] == 0
        with pytest.raises(StepFailed):
            publish("failed")
        with pytest.raises(Quarantined, match="governance_blocked"):
            publish("retried")
        with pytest.raises(NotPermitted, match="is blocked"):
            publish.rerun("failed", reason="repaired")
    assert calls == ["failed", "retried"]
    code, replayed = run_command("replay", key, "--verify", "--module", "tests.governance.pure_steps")
    (verified,) = replayed["verified"]
    assert (code, verified["verdict"]) == (1, "failed")
    assert "dataset survey is blocked" in verified["reason"]


def test_a_program_on_a_blocked_dataset_is_not_started(log: Path, tmp_path: Path) -> None:
    with oncemore.open(log) as engine:
        engine.datasets.register("survey", reason="first", by="steward", care_label="Public")
    made = tmp_path / "made"
    command = ("exec", "--key", "k", "--effect", "idempotent", "--dataset", "survey", "--operation", "copy")
    run_command("control", "dataset", "block", "survey", "--reason", "objection", "--by", "steward")
    import subprocess

    def start(key: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "oncemore", *command[:2], key, *command[3:], "--", "touch", str(made)]
        return subprocess.run(line, capture_output=True, text=True, check=False)

    refused = start("one")
    assert refused.returncode != 0
    assert "dataset survey is blocked" in refused.stderr
    assert not made.exists()
    run_command("control", "dataset", "release", "survey", "--reason", "agreed", "--by", "steward")
    assert start("two").returncode == 0
    assert made.exists()
