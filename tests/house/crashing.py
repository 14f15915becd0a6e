"""A store whose process dies: before or after any of the calls that change something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.log.memory import MemoryStore, Settled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oncemore.artifacts.backends import Memory
    from oncemore.log.store import Batch
    from oncemore.steps.engine import Engine


class Died(BaseException):
    """The process is dead."""


class Mortal(MemoryStore):
    """Counts the calls that change something, and dies around one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.at: tuple[int, str] | None = None

    def _mortal(self, do: Callable[..., Any], *told: Any) -> Any:
        self.calls += 1
        if self.at == (self.calls, "before"):
            raise Died
        answer = do(*told)
        if self.at == (self.calls, "after"):
            raise Died
        return answer

    def append(self, batch: Batch) -> Settled:
        return self._mortal(super().append, batch)  # type: ignore[no-any-return]

    def prune(self, before: Mapping[str, int]) -> None:
        self._mortal(super().prune, before)

    def drop(self, at: Mapping[str, int]) -> int:
        return self._mortal(super().drop, at)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Outlive the process."""


def engine_on(store: MemoryStore, place: Memory | None = None) -> Engine:
    """Return an engine of a new process."""
    return oncemore.Engine(lambda: store, "memory:", place=None if place is None else lambda: place)


def deaths(make: Callable[[], Mortal], act: Callable[[Mortal], object]) -> Iterator[Mortal]:
    """Let a process die before and after each of the changes that it makes; give what each leaves."""
    whole = make()
    begun = whole.calls
    act(whole)
    for call in range(begun + 1, whole.calls + 1):
        for when in ("before", "after"):
            store = make()
            store.at = (call, when)
            try:
                act(store)
            except Died:
                store.at = None
                store._here.clear()  # who was there is provably gone
                yield store
            else:
                raise AssertionError(f"it did not come to call {call}")
