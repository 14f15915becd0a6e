"""A store whose process crashes before or after any call that writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.log.memory import CompletedTicket, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oncemore.artifacts.backends import MemoryBackend
    from oncemore.log.store import Batch
    from oncemore.steps.engine import Engine


class ProcessCrashed(BaseException):
    """The process has crashed."""


class CrashingStore(MemoryStore):
    """Counts the calls that write, and crashes before or after one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.at: tuple[int, str] | None = None

    def _mortal(self, do: Callable[..., Any], *told: Any) -> Any:
        self.calls += 1
        if self.at == (self.calls, "before"):
            raise ProcessCrashed
        answer = do(*told)
        if self.at == (self.calls, "after"):
            raise ProcessCrashed
        return answer

    def append(self, batch: Batch) -> CompletedTicket:
        return self._mortal(super().append, batch)  # type: ignore[no-any-return]

    def prune_bodies(self, before: Mapping[str, int]) -> None:
        self._mortal(super().prune_bodies, before)

    def drop_entities(self, at: Mapping[str, int]) -> int:
        return self._mortal(super().drop_entities, at)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Do nothing: the store outlives the process."""


def engine_on(store: MemoryStore, place: MemoryBackend | None = None) -> Engine:
    """Return an engine on the store, as a new process would open it."""
    return oncemore.Engine(lambda: store, "memory:", place=None if place is None else lambda: place)


def crash_everywhere(
    make: Callable[[], CrashingStore], act: Callable[[CrashingStore], object]
) -> Iterator[CrashingStore]:
    """Crash a process before and after each of its writes; yield the store after each crash."""
    whole = make()
    begun = whole.calls
    act(whole)
    for call in range(begun + 1, whole.calls + 1):
        for when in ("before", "after"):
            store = make()
            store.at = (call, when)
            try:
                act(store)
            except ProcessCrashed:
                store.at = None
                store._live_workers.clear()  # who was there is provably gone
                yield store
            else:
                raise AssertionError(f"it did not come to call {call}")
