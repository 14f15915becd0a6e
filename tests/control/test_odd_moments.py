"""What switches, approvals and moves meet at odd moments."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.control.model import SWITCHES_ENTITY
from oncemore.errors import NotPermitted, UsageError
from oncemore.log.memory import CompletedTicket, MemoryStore
from oncemore.log.store import Conflict
from oncemore.maintenance import copy
from oncemore.steps.engine import Engine
from oncemore.workers import poll
from oncemore.workers.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path


class Lasting(MemoryStore):
    """Stays when its engine is closed."""

    def close(self) -> None:
        """Forget nothing."""


@oncemore.step(effect="idempotent", name="ship")
def ship(order: str) -> str:
    return f"shipped {order}"


@oncemore.step(effect="once", name="wipe", requires_approval=True)
def wipe(table: str) -> str:
    return f"wiped {table}"


def lasting(name: str) -> tuple[Lasting, Engine]:
    store = Lasting()
    return store, Engine(lambda: store, f"memory:{name}")


def test_what_moved_takes_no_orders_and_its_history_has_what_people_said() -> None:
    (_, old), (_, new) = lasting("old"), lasting("new")
    with old:
        ship.bind(old)("a")
        old.switches.on(reason="a test", by="operator")
        old.switches.off(reason="over", by="operator")
    with old, new:
        copy.move_log(old, new, reason="x")
        with pytest.raises(NotPermitted, match="has moved"):
            ship.bind(old).submit("b")
        assert [said.action for said in old.switches.history()] == ["on", "off", "moved"]
        old.store.open_maintenance().prune_bodies({SWITCHES_ENTITY: 2})
        assert [said.action for said in old.switches.history()] == ["off", "moved"]


def test_a_worker_that_died_does_not_keep_a_log_from_moving(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import os, oncemore
        @oncemore.step(effect="idempotent", name="die")
        def die(n: int) -> None:
            os.kill(os.getpid(), 9)
        with oncemore.open("log.db"):
            die(1)
    """)
    killed = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False, env={**os.environ})
    assert killed.returncode == -9
    _, new = lasting("new")
    with oncemore.open(tmp_path / "log.db") as old, new:
        assert copy.move_log(old, new, reason="x").entries > 0


def test_what_was_pruned_after_it_was_copied_is_pruned_when_the_copy_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Death(BaseException):
        pass

    (_, old), (target, new) = lasting("old"), lasting("new")

    def die(*told: Any) -> Any:
        raise Death

    with old:
        ship.bind(old)("a")
    with old, new:
        with monkeypatch.context() as patch:
            patch.setattr(copy, "_compare_stores", die)
            with pytest.raises(Death):
                copy.move_log(old, new, reason="x")
        entity = "run/" + ship.key("a")
        assert all(entry.body is not None for entry in target.read_entries(entity))
        old.store.open_maintenance().prune_bodies({entity: 2})
        copy.move_log(old, new, reason="x")
        assert next(entry.body is None for entry in target.read_entries(entity))


def test_only_runs_that_wait_for_an_approval_are_listed(engine: Engine) -> None:
    @oncemore.step(effect="once", name="print")
    def send(n: int) -> None:
        raise TimeoutError

    with pytest.raises(oncemore.OutcomeUnknown):
        send(1)
    with pytest.raises(NotPermitted):
        wipe("orders")
    assert [one.step for one in engine.approvals.list_waiting()] == ["wipe"]
    with pytest.raises(UsageError):
        engine.approvals.approve("01a1e2cc-30c0-79f5-900b-6edffe135fc5", reason="no such run", by="operator")


def test_an_approval_that_somebody_else_writes_beside_is_asked_for_anew(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, once = engine.store.append, iter([True])

    def meddling(batch: Any) -> Any:
        if any(write.entity.startswith("run/") for write in batch.writes) and next(once, False):
            engine.switches.on(step="other", reason="beside", by="operator")
        return append(batch)

    monkeypatch.setattr(engine.store, "append", meddling)
    with pytest.raises(NotPermitted, match="waits for an approval"):
        wipe("orders")
    assert next(once, None) is None


def test_a_worker_remembers_only_so_many_that_may_not_begin(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "MAX_REFUSED", 2)
    for n in range(5):
        wipe.submit(f"{n}")
    assert Worker(engine, [wipe], poll_s=0.05).run_until_idle().done == 0
    assert len(engine.approvals.list_waiting()) == 5


def test_a_run_that_moves_while_it_is_begun_anew_is_looked_at_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @oncemore.step(effect="idempotent", name="broken", policy=oncemore.Policy("short", max_attempts=1))
    def broken(n: int) -> None:
        raise ValueError(n)

    broken.run(1)
    append, once = engine.store.append, iter([True])

    def moved(batch: Any) -> Any:
        entity = batch.writes[0].entity if batch.writes else ""
        if entity.startswith("run/") and next(once, False):
            return CompletedTicket(Conflict(entity, engine.store.load_head(entity)))
        return append(batch)

    monkeypatch.setattr(engine.store, "append", moved)
    with pytest.raises(oncemore.Error, match="ValueError: 1"):
        broken.rerun(1, reason="again")
    assert next(once, None) is None
