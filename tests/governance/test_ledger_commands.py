"""`oncemore ledger`, the checkpoints of a worker, and the two governance files."""

from __future__ import annotations

import json
import logging
import pkgutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli
from oncemore.config import EngineSettings, load_settings
from oncemore.errors import UsageError
from oncemore.governance.checkpoint_copies import FolderPlace
from oncemore.governance.checkpoint_thread import make_checkpoints_regularly, make_due_checkpoint
from oncemore.governance.checkpoints import LedgerSigner, make_checkpoint, read_checkpoints
from oncemore.governance.keys import generate_key
from oncemore.queries.ledger_reports import build_reports, write_reports
from tests.governance.sample_log import Attacker, announce, book, fill_log, refuse, review

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "ledger-key"
    generate_key().save_files(path)
    return path


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert cli.run_command(["ledger", *words]) == code, capsys.readouterr()
    captured = capsys.readouterr()
    # One space between words: long lines are wrapped.
    return captured.out if code == 0 else " ".join(captured.err.split())


def test_the_commands_use_the_settings(
    tmp_path: Path, key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "oncemore.toml").write_text(
        'store = "log.db"\nledger_key = "ledger-key"\nledger_copy = "copies"\nledger_every_s = 60\n'
    )
    assert load_settings().ledger_copy == str(tmp_path / "copies")
    with oncemore.open(tmp_path / "log.db"):
        book("a")
    assert "no checkpoint: only the hash chains" in run(capsys, "verify")
    made = json.loads(run(capsys, "checkpoint", "--json", "--out", "now.checkpoint"))
    assert made["is_new"]
    assert Path("now.checkpoint").read_text() == made["note"]
    assert made["copied"] == str(tmp_path / "copies")
    assert "no new entries; the last checkpoint covers" in run(capsys, "checkpoint")
    text = run(capsys, "verify")
    assert "signatures: valid" in text
    assert "1 checkpoint matches from outside" in text
    run(capsys, "export", "all.jsonl", "--without-bodies")
    assert "are without their bodies" in run(capsys, "verify", "--export", "all.jsonl")
    run(capsys, "prove", book.key("a"), "--out", "a.tlog-proof")
    assert f"proven: run/{book.key('a')}" in run(capsys, "verify", "--proof", "a.tlog-proof")
    Path("copies", f"{made['size']:016d}.checkpoint").unlink()
    assert "no checkpoint from outside" not in run(capsys, "checkpoint")
    # Without the public file, signatures cannot be checked, and that is said.
    key_file.with_name("ledger-key.pub").rename("elsewhere.pub")
    (tmp_path / "oncemore.toml").write_text('store = "log.db"\nledger_key = "ledger-key"\n')
    text = run(capsys, "verify")
    assert "signatures: NOT checked" in text
    assert "a cut or replaced store would not be noticed" in text
    assert "give the public key" in run(capsys, "verify", "--proof", "a.tlog-proof", code=2)


def test_a_changed_log_ends_with_1_and_advice(
    tmp_path: Path, key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = f"--store={tmp_path / 'log.db'}"
    with oncemore.open(tmp_path / "log.db"):
        book("a")
        book("b")
    run(capsys, "checkpoint", "--key", str(key_file), "--copy", "copies", "--out", "kept", store)
    attacker = Attacker(tmp_path / "log.db")
    rows = attacker.read_rows()
    attacker.rewrite([row for row in rows if row["entity"] != f"run/{book.key('b')}"])
    public = f"--key={key_file}.pub"
    for more in ((), ("--against", "kept"), ("--copy", "copies")):
        text = run(capsys, "verify", public, store, *more, code=1)
        assert "entries were deleted" in text
        assert "keep this file as evidence" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("verify", "--export", "a", "--proof", "b"), "exclude each other"),
        (("prove", "--out", "x"), "give KEY or SEQ"),
        (("prove", "1", "--since", "x", "--out", "x"), "give KEY or SEQ"),
        (("checkpoint",), "no key signs the checkpoints"),
        (("verify", "--proof", "binary"), "it is not text"),
        (("verify", "--proof", "missing"), "No such file"),
    ],
)
def test_a_wrong_command_line_says_what_to_do(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with oncemore.open(tmp_path / "log.db"):
        book("a")
    Path("binary").write_bytes(b"\xff\xfe")
    Path("oncemore.toml").write_text('store = "log.db"\n')
    assert message in run(capsys, *words, code=2)


def test_the_report_lists_prunes_and_erasures(
    tmp_path: Path, key_file: Path, capsys: pytest.CaptureFixture[str], clock: FakeClock
) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        fill_log(engine, LedgerSigner(generate_key()))
        clock.advance(200_000.0)
        engine.prune(older_than=3600, reason="old", by="an operator")
        clock.advance(200_000.0)
        engine.prune(forget_keys_after=86_400, reason="forget", by="an operator")
    text = run(capsys, "verify", "--store", str(tmp_path / "log.db"))
    assert "entries deleted by a prune of an operator: forget" in text


# Workers ------------------------------------------------------------------------------------------------


def test_a_worker_makes_checkpoints(tmp_path: Path, key_file: Path) -> None:
    (tmp_path / "oncemore.toml").write_text(
        'store = "log.db"\nledger_key = "ledger-key"\nledger_copy = "copies"\n'
    )
    (tmp_path / "shop.py").write_text(
        "import oncemore\n\n@oncemore.step(effect='pure')\ndef sell(n: int) -> int:\n    return n\n\n"
        "if __name__ == '__main__':\n    import shop\n    shop.sell.submit(1)\n"
    )
    for words in (["shop.py"], ["-m", "oncemore", "worker", "shop", "--drain"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
    assert FolderPlace(tmp_path / "copies").list_sizes()
    with oncemore.open(tmp_path / "log.db") as engine:
        entries = [entry.entity for entry in engine.store.read_entries()]
        covered = list(read_checkpoints(engine))[-1].size
        # The last checkpoint is made when the work is done: it covers the run.
        assert any(name.startswith("run/") for name in entries[:covered])


def test_checkpoints_are_made_at_the_interval_and_at_the_end(
    engine: Engine, key_file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "oncemore")
    settings = EngineSettings(store="", ledger_key=str(key_file))
    waits: list[float] = []
    second_wait = threading.Event()
    wait = threading.Event.wait

    def wait_once(event: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread().name == "oncemore-checkpoints":
            waits.append(timeout or 0.0)
            if len(waits) > 1:
                second_wait.set()
                return wait(event)
            return False
        return wait(event, timeout)

    book("a")
    monkeypatch.setattr(threading.Event, "wait", wait_once)
    with make_checkpoints_regularly(engine, settings):
        assert wait(second_wait, 30)
        assert len(list(read_checkpoints(engine))) == 2
        book("b")
    assert len(list(read_checkpoints(engine))) == 3
    assert waits[0] == 3600.0
    assert 0.0 < waits[1] <= 3600.0  # another one is not due yet
    assert sum("signed" in record.message for record in caplog.records) == 2


def test_no_checkpoints_without_a_key_and_a_wrong_key_stops_the_start(engine: Engine, tmp_path: Path) -> None:
    book("a")
    with make_checkpoints_regularly(engine, EngineSettings(store="")):
        pass
    assert list(read_checkpoints(engine)) == []
    with (
        pytest.raises(UsageError, match="cannot be read"),
        make_checkpoints_regularly(engine, EngineSettings(store="", ledger_key=str(tmp_path / "none"))),
    ):
        pass


def test_a_mismatch_is_logged_as_an_error_and_a_lost_place_as_a_warning(
    engine: Engine, signer: LedgerSigner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    book("a")
    with oncemore.open(tmp_path / "other.db") as other:
        book.bind(other)("x")
        make_checkpoint(other, signer)
    assert make_due_checkpoint(engine, signer, 60.0) == 60.0
    assert [record.levelname for record in caplog.records if "LEDGER" in record.message] == ["ERROR"]
    plain = LedgerSigner(signer.key)
    for _ in range(2):  # the second one finds no new entries
        assert make_due_checkpoint(engine, plain, 0.0) == 0.0
    (tmp_path / "file").write_text("x")
    broken = LedgerSigner(signer.key, FolderPlace(tmp_path / "file" / "below"))
    assert make_due_checkpoint(engine, broken, 0.0) == 0.0
    assert any("no checkpoint could be made" in record.message for record in caplog.records)


# The governance files -----------------------------------------------------------------------------------


def fail_and_recover(engine: Engine) -> None:
    """Leave a run of each kind that the files know, and some that they do not report."""
    counts: dict[str, int] = {}

    @oncemore.step(effect="idempotent", name="poll", dataset="soils")
    def poll(item: str, failures: int) -> str:
        counts[item] = counts.get(item, 0) + 1
        if counts[item] <= failures:
            raise oncemore.TransientError("away")
        return item

    poll("at once", 0)
    poll("at attempt 3", 2)
    with pytest.raises(oncemore.RetriesExhausted):
        poll("never", 9)
    with pytest.raises(oncemore.PermanentFailure):
        refuse("bad")
    with pytest.raises(oncemore.Quarantined):
        review("unclear")
    book("a")
    announce("b")


@pytest.mark.req("GOV-19")
def test_the_retry_log_has_one_entry_per_operation_that_did_not_succeed_at_once(
    engine: Engine, clock: FakeClock
) -> None:
    fail_and_recover(engine)
    retries = build_reports(engine)["pipeline_retry_log"]
    found = {(entry["stage_name"], entry["outcome"], entry["attempts"]) for entry in retries}
    assert found == {
        ("poll", "success", 3),
        ("poll", "exhausted", 3),
        ("refuse", "failed", 1),
        ("review", "quarantined", 1),
    }
    assert len(retries) == len({entry["id"] for entry in retries}) == 4


@pytest.mark.req("GOV-6")
def test_every_entry_has_attempts_error_classes_datasets_and_labels_or_a_reason(
    engine: Engine, clock: FakeClock
) -> None:
    engine.datasets.register("soils", care_label="Public · Low-Risk", reason="first", by="steward")
    fail_and_recover(engine)
    engine.datasets.block("soils", reason="objection", by="council")
    with pytest.raises(oncemore.Quarantined):
        oncemore.step(effect="idempotent", name="poll", dataset="soils")(len)("held")
    items = engine.quarantine.list()
    assert {item.step for item in items} == {"review", "poll"}
    for item in items:
        for field in ("error_classes", "dataset", "care_label"):
            assert bool(getattr(item, field)) != bool(item.without.get(field)), (item, field)
        assert item.attempts == (1 if item.step == "review" else 0)
    (held,) = (item for item in items if item.step == "poll")
    assert (held.dataset, held.care_label) == ("soils", "Public · Low-Risk")
    assert held.error_classes == ("GOVERNANCE_BLOCKED",)
    engine.switches.on(reason="stop", by="an operator", step="pay")
    reports = build_reports(engine)
    kinds = {entry["kind"] for entry in reports["versioning_ledger"]}
    assert {"quarantine", "decision", "policy_version"} <= kinds
    for entry in (*reports["pipeline_retry_log"], *reports["versioning_ledger"]):
        for field in ("attempts", "error_classes", "dataset_ids", "care_labels"):
            assert bool(entry[field]) != bool(entry["without"].get(field)), (entry, field)
        if "poll" in (entry.get("stage_name"), entry.get("step")):
            assert (entry["dataset_ids"], entry["care_labels"]) == (["soils"], ["Public · Low-Risk"])


def test_the_label_is_the_one_at_the_time_of_the_failure(engine: Engine, clock: FakeClock) -> None:
    engine.datasets.register("soils", care_label="Public · Low-Risk", reason="first", by="steward")
    fail_and_recover(engine)
    before = build_reports(engine)
    engine.datasets.label("soils", care_label="Restricted · Council only", reason="letter 17", by="council")
    after = build_reports(engine)
    assert after["pipeline_retry_log"] == before["pipeline_retry_log"]
    size = len(before["versioning_ledger"])
    assert after["versioning_ledger"][:size] == before["versioning_ledger"]
    (relabelled,) = after["versioning_ledger"][size:]
    assert relabelled["care_labels"] == ["Restricted · Council only"]
    labels = {label for entry in after["pipeline_retry_log"] for label in entry["care_labels"]}
    assert labels == {"Public · Low-Risk"}


def test_the_versioning_ledger_has_policies_decisions_and_removals(engine: Engine, clock: FakeClock) -> None:
    fail_and_recover(engine)
    engine.switches.on(reason="stop", by="an operator", step="pay")
    (item,) = engine.quarantine
    engine.quarantine.reject(item, by="a reviewer", reason="not ours")
    engine.erase(book.key("a"), reason="asked to", by="an operator")
    entries = build_reports(engine)["versioning_ledger"]
    kinds = {entry["kind"] for entry in entries}
    assert kinds == {"policy_version", "quarantine", "decision", "erase"}
    decisions = {
        (entry["action"], entry["by"], entry["reason"]) for entry in entries if entry["kind"] == "decision"
    }
    assert decisions == {("on", "an operator", "stop"), ("reject", "a reviewer", "not ours")}
    assert all(entry["at"].endswith("Z") for entry in entries)
    assert len({entry["id"] for entry in entries}) == len(entries)


def test_a_new_version_of_a_policy_names_the_old_one(engine: Engine) -> None:
    for version in ("1", "2"):
        policy = oncemore.Policy("house", version, max_attempts=3)

        @oncemore.step(effect="pure", name=f"step-{version}", policy=policy)
        def work(number: int) -> int:
            return number

        work(1)
    first, second = (
        entry for entry in build_reports(engine)["versioning_ledger"] if entry.get("policy") == "house"
    )
    assert (first["old_version"], first["new_version"]) == (None, "1")
    assert (second["old_version"], second["new_version"]) == ("1", "2")
    assert second["old_digest"] == first["new_digest"] != second["new_digest"]


def test_breakers_and_refusals_are_reported(engine: Engine, clock: FakeClock) -> None:
    breaker = oncemore.Breaker("bank", failures=1, cooldown_s=300)

    @oncemore.step(effect="idempotent", name="transfer", breaker=breaker, provider="bank")
    def transfer(number: int) -> None:
        raise oncemore.TransientError("away")

    for number in range(2):
        with pytest.raises(oncemore.Error):
            transfer(number)
    reports = build_reports(engine)
    changes = [
        (entry["provider"], entry["state"])
        for entry in reports["versioning_ledger"]
        if entry["kind"] == "breaker"
    ]
    assert ("bank", "OPEN") in changes
    outcomes = {entry["outcome"] for entry in reports["pipeline_retry_log"]}
    assert "refused" in outcomes


class Killed(BaseException):
    """The process dies here."""


def die_at(nth: int, target: str) -> Callable[..., Any]:
    """Return a function that does what the target does, and dies at its nth call."""
    calls: list[int] = []
    original = pkgutil.resolve_name(target)

    def call(*values: Any) -> Any:
        calls.append(1)
        if len(calls) == nth:
            raise Killed
        return original(*values)

    return call


@pytest.mark.req("GOV-7")
def test_both_files_are_replaced_as_a_whole_and_hold_each_entry_once(
    engine: Engine, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill at any point: before or after each of the writes and renames."""
    fail_and_recover(engine)
    root = tmp_path / "project"
    written = write_reports(engine, root)
    assert [Path(path).relative_to(root).as_posix() for path in written] == [
        "docs/reports/audit/versioning_ledger.json",
        "docs/reports/audit/pipeline_retry_log.json",
    ]
    before = {path: Path(path).read_bytes() for path in written}
    assert write_reports(engine, root) == written
    assert {path: Path(path).read_bytes() for path in written} == before
    with pytest.raises(oncemore.PermanentFailure):
        refuse("another")

    # The function that replaces a file, and the calls inside of it; each for both files.
    for target in ("oncemore.queries.ledger_reports.replace_file", "os.fsync", "pathlib.Path.replace"):
        for nth in (1, 2):
            with monkeypatch.context() as patched:
                patched.setattr(target, die_at(nth, target))
                with pytest.raises(Killed):
                    write_reports(engine, root)
            for path in written:
                entries = json.loads(Path(path).read_bytes())["entries"]
                assert len({entry["id"] for entry in entries}) == len(entries)
    write_reports(engine, root)
    retries = json.loads((root / "docs/reports/audit/pipeline_retry_log.json").read_bytes())["entries"]
    assert sum(entry["stage_name"] == "refuse" for entry in retries) == 2


def test_the_command_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with oncemore.open(tmp_path / "log.db"):
        book("a")
    words = ("reports", "--root", str(tmp_path), "--store", str(tmp_path / "log.db"))
    text = run(capsys, *words)
    assert "versioning_ledger.json: 1 entries" in text
    assert "pipeline_retry_log.json: 0 entries" in text


def test_encrypted_bodies_leave_what_headers_say(tmp_path: Path, clock: FakeClock) -> None:
    class Reverse:
        id = "reverse"

        def encode(self, data: bytes) -> bytes:
            return b"\xff" + data[::-1]

        def decode(self, data: bytes) -> bytes:
            return data[1:][::-1]

    with oncemore.open(tmp_path / "log.db", codec=Reverse()) as engine:
        fail_and_recover(engine)
    with oncemore.open(tmp_path / "log.db") as engine:
        retries = build_reports(engine)["pipeline_retry_log"]
        assert len(retries) == 4
        assert any(entry["without"].get("error_classes") for entry in retries)
