"""What cuts a call off reaches the caller, whatever else the call meets on its way out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.core.record import Change
from oncemore.engine.perform import seen_in, write_of
from oncemore.engine.runtime import Engine
from oncemore.errors import StoreError
from oncemore.store.base import Batch
from oncemore.store.memory import MemoryStore, Settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.store.base import Head


class Cut(MemoryStore):
    """A store in whose next write of a run a Ctrl-C arrives, after somebody else was first."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[Batch], None] | None = None
        self.unreachable = False

    def append(self, batch: Batch) -> Settled:
        if self.before is not None and batch.writes[0].entity.startswith("run/"):
            first, self.before = self.before, None
            first(batch)
            raise KeyboardInterrupt
        return super().append(batch)

    def head(self, entity: str) -> Head | None:
        if self.unreachable and entity.startswith("run/"):
            raise StoreError("the store is away")
        return super().head(entity)


@pytest.mark.req("CLASS-18")
def test_a_store_that_fails_on_the_way_out_does_not_hide_an_interrupt() -> None:
    store = Cut()

    @oncemore.step(effect="idempotent", name="perform.claim")
    def work() -> int:
        return 1

    def stolen(batch: Batch) -> None:
        MemoryStore.append(store, Batch((batch.writes[0]._replace(hash=b"x" * 32),)))
        store.unreachable = True

    store.before = stolen
    with pytest.raises(KeyboardInterrupt) as cut:
        work.on(Engine(lambda: store, "memory:"))()
    assert isinstance(cut.value.__cause__, StoreError)


def test_a_lost_lease_does_not_hide_an_interrupt_in_a_checkpoint() -> None:
    store, runs = Cut(), []

    def taken_over(batch: Batch) -> None:
        seen = seen_in(store, batch.writes[0].entity)
        after = seen.run._replace(state="SOFT_FAIL", reason="lease_expired", worker="", not_before=0.0)
        change = Change(("SOFT_FAIL",), seen.run, after, {"error": {}})
        write = write_of(seen.entity, seen.version, seen.hash, change, store.now())
        MemoryStore.append(store, Batch((write,)))

    @oncemore.step(effect="idempotent", name="perform.checkpoint")
    def work() -> int:
        runs.append(1)
        if len(runs) == 1:
            store.before = taken_over
            oncemore.current().checkpoint(1)
        return 2

    step: Any = work.on(Engine(lambda: store, "memory:"))
    with pytest.raises(KeyboardInterrupt):
        step()
    assert step() == 2


def test_pure_work_that_failed_runs_anew_when_what_it_depends_on_has_changed() -> None:
    engine, calls = oncemore.open("memory:"), []

    def made(version: str, effect: Any) -> Any:
        @oncemore.step(effect=effect, name=f"perform.{effect}", version=version)
        def parse(text: str) -> int:
            calls.append(version)
            return int(text) if version == "2" else int("no number")

        return parse.on(engine)

    with pytest.raises(oncemore.Terminal):
        made("1", "pure")("7")
    assert made("2", "pure")("7") == 7
    with pytest.raises(oncemore.Terminal):
        made("1", "idempotent")("7")
    with pytest.raises(oncemore.Terminal):
        made("2", "idempotent")("7")
    assert calls == ["1", "2", "1"]
