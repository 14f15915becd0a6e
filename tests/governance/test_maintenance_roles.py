"""Maintenance in a store with roles: who may prune, erase, back up, restore, move and import, and by what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import NotPermitted, StaleDecision, UsageError
from oncemore.governance.identity import decide_as
from oncemore.governance.signed_decisions import (
    NAMESPACE,
    PresentedSignature,
    StatementPrepared,
    StatementWriter,
    find_decision_faults,
)
from oncemore.governance.ssh_signatures import sign_file_bytes
from oncemore.maintenance.copy import abandon_move, move_log
from oncemore.queries.import_keys import KeyFile, import_key_file
from oncemore.queries.run_documents import export_runs, import_runs
from oncemore.testing import FakeClock
from tests.governance.test_identity import Staff, list_decisions, make_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncemore.steps.engine import Engine

DAY_S = 86_400.0


@pytest.fixture
def file_engine(tmp_path: Path) -> Iterator[Engine]:
    """An engine on a file: memory has no backup."""
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


@pytest.fixture
def staff(file_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staff:
    """A store with roles."""
    return Staff(file_engine, tmp_path, monkeypatch)


def refuse(staff: Staff, name: str, decide: Callable[[], object], needed: str) -> None:
    """Check that a person's decision is refused, and that nothing was written."""
    before = sum(1 for _ in staff.engine.store.read_entries())
    with pytest.raises(NotPermitted, match=f"needs the role {needed}"):
        staff.decide(name, "token", decide)
    assert sum(1 for _ in staff.engine.store.read_entries()) == before


def test_an_operator_prunes_and_keeps_sensitive_runs_for_a_reviewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeClock() as clock, oncemore.open("memory:") as engine:
        staff = Staff(engine, tmp_path, monkeypatch)
        public, burials = make_step("public", None, name="a"), make_step("burials", None, name="b")
        public(1), burials(1), burials(2)
        clock.advance(10 * DAY_S)

        def prune(**options: Any) -> Any:
            return engine.prune(older_than=DAY_S, **options)

        # Tokens of the staff have ended by now; the users and the keys have not.
        planned: Any = staff.decide("duty", "key", lambda: prune(dry_run=True))
        assert staff.decide("auditor", "key", lambda: prune(dry_run=True)) == planned
        report: Any = staff.decide("duty", "key", prune)
        assert report._replace(workers=0) == planned
        assert (report.runs, report.kept_runs) == (1, {"sensitive": 2})
        assert burials(1) == 1
        with pytest.raises(NotPermitted, match="needs the role reviewer"):
            staff.decide("duty", "key", lambda: prune(forget_keys_after=DAY_S))
        report = staff.decide("lead", "key", prune)
        assert (report.runs, report.kept_runs) == (2, {})
        assert [task.actor.partition(" (")[0] for task in engine.maintenance_tasks()] == ["duty", "lead"]
        assert find_decision_faults(engine.store) == []


def test_backup_move_and_the_release_of_a_copy(staff: Staff, tmp_path: Path) -> None:
    engine, copy = staff.engine, tmp_path / "copy.db"
    refuse(staff, "auditor", lambda: engine.backup(copy), "operator")
    staff.decide("duty", "key", lambda: engine.backup(copy))
    assert list_decisions(engine)[-1]["path"] == str(copy)
    with oncemore.open(copy) as restored:
        staff.engine = restored
        refuse(staff, "duty", lambda: restored.acknowledge(reason="the original is lost"), "reviewer")
        staff.decide("lead", "key", lambda: restored.acknowledge(reason="the original is lost"))
        assert make_step("public", None, name="a").bind(restored)(1) == 1
        assert find_decision_faults(restored.store) == []
    staff.engine = engine
    with oncemore.open(tmp_path / "new.db") as target:
        for move in (move_log, abandon_move):
            refuse(staff, "duty", lambda move=move: move(engine, target, reason="second machine"), "reviewer")
            with pytest.raises(UsageError, match="a move cannot be signed"):
                staff.decide("lead", "key", lambda move=move: move(engine, target, reason="x"))
    assert find_decision_faults(engine.store) == []


def test_keys_and_runs_are_imported_by_the_role_for_their_data(staff: Staff, tmp_path: Path) -> None:
    engine, sheet = staff.engine, tmp_path / "done.csv"
    sheet.write_text("item\n7\n8\n", "utf-8")
    steps = {name: make_step(name, None, name=name) for name in ("public", "burials")}

    def import_keys(dataset: str) -> Any:
        return import_key_file(engine, steps[dataset], KeyFile(sheet, {}), reason="paid before")

    refuse(staff, "auditor", lambda: import_keys("public"), "operator")
    with pytest.raises(NotPermitted, match=r"done.csv:2: this decision needs the role reviewer"):
        staff.decide("duty", "token", lambda: import_keys("burials"))
    assert steps["burials"].last_run(7) is None
    with pytest.raises(UsageError, match="an import cannot be signed"):
        staff.decide("duty", "key", lambda: import_keys("public"))
    report: Any = staff.decide("duty", "token", lambda: import_keys("public"))
    assert report.imported == 2
    assert staff.decide("lead", "token", lambda: import_keys("burials"))
    entities = [f"run/{step.key(7)}" for step in steps.values()]
    documents = {name: list(export_runs(engine.store, [name], {})) for name in entities}
    with oncemore.open(tmp_path / "other.db") as other:
        (tmp_path / "there").mkdir()
        there = Staff(other, tmp_path / "there", staff._patch)
        public, burials = (documents[name] for name in entities)
        refuse(there, "auditor", lambda: import_runs(other, public, {}), "operator")
        # The public run is in the same file: none of it is stored.
        refuse(there, "duty", lambda: import_runs(other, [*public, *burials], {}), "reviewer")
        done: Any = there.decide("duty", "token", lambda: import_runs(other, public, {}))
        assert (done.runs, done.present) == (1, 0)
        done = there.decide("lead", "token", lambda: import_runs(other, [*public, *burials], {}))
        assert (done.runs, done.present) == (1, 1)
        assert [task.task for task in other.maintenance_tasks()] == ["import-runs", "import-runs"]


def test_an_erasure_is_prepared_signed_elsewhere_and_made_once(staff: Staff) -> None:
    engine, step = staff.engine, make_step("burials", None, name="a")
    step(1), step(2)
    key = staff.keys["lead"]

    def erase(item: int = 1) -> Any:
        return engine.erase(step.key(item), reason="letter 17")

    before = sum(1 for _ in engine.store.read_entries())
    with decide_as(StatementWriter(key.public)), pytest.raises(StatementPrepared) as prepared:
        erase()
    assert sum(1 for _ in engine.store.read_entries()) == before
    statement = prepared.value.statement
    presented = PresentedSignature(statement, sign_file_bytes(statement, NAMESPACE, key).encode())
    with decide_as(presented):
        with pytest.raises(NotPermitted, match="is over another decision"):
            erase(2)
        with pytest.raises(StaleDecision):
            engine.switches.on(reason="letter 17")
        assert erase().key == step.key(1)
        # The task of the signature exists now, so that the signature is not used again.
        with pytest.raises(StaleDecision, match="the signature was used before"):
            erase()
    assert step(2) == 2
    assert find_decision_faults(engine.store) == []
    assert [task.task for task in engine.maintenance_tasks()] == ["erase"]
