"""RESOURCES: what all who share a provider may do together, in the log of the store that they share.

*Pace.* As long as nobody is told to slow down, each job and worker goes by its own limit, and nothing is
read or written. Once a provider throttles, it has a pace for the whole fleet (`limits.concurrency_rules`):
half of what was
allowed, at once, and one more after every quiet stretch. From then on a call needs a *permit*: the resource
says who has how many, and those of dead workers are free again. When the pace is what it was at first,
permits end.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError
from oncemore.limits.breaker import waited_for
from oncemore.limits.concurrency_rules import Pace
from oncemore.log.entry_codec import head_of
from oncemore.log.head_access import seen_in, write_of
from oncemore.log.record import Change, Quota, Worker
from oncemore.log.store import Batch, Stored
from oncemore.retries.loop import Put
from oncemore.workers.map_items import QUIET_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oncemore.steps.engine import Engine

PREFIX = "quota/"
MOST_TRIES = 1000


def changed(
    engine: Engine,
    name: str,
    turn: Callable[[Quota, float], tuple[Quota, Any]],
    body: dict[str, Any] | None = None,
) -> Generator[Any, Any, Any]:
    """Read a resource, do what a turn says, write it if it is still as it was; else again."""
    entity = PREFIX + name
    for _ in range(MOST_TRIES):
        seen = seen_in(engine.store, entity, engine.seal, Quota)
        before, now = seen.run or Quota(name=name), engine.now()
        after, answer = turn(before, now)
        if after == before:
            return answer
        change = Change(("QUOTA",), seen.run, after, body or {})
        write = write_of(entity, seen.version, seen.hash, change, now, engine.seal)
        batch = Batch((write,), {}, sync=False)
        if isinstance((yield Put(lambda: engine.store.append(batch))), Stored):  # noqa: B023
            return answer
    raise StoreError(f"resource {name}: others wrote to it {MOST_TRIES} times in a row")


def known(engine: Engine, name: str) -> Quota:
    """Return a resource as it is now."""
    head = engine.store.head(PREFIX + name)
    return Quota(name=name) if head is None else head_of(head.head, Quota)


def limited(found: Quota | None) -> bool:
    """Whether a provider is asked less than at first: calls need permits."""
    return found is not None and 0 < found.now < found.most


class Paces:
    """The paces of providers over a whole fleet, as one process takes part in them.

    most  how many calls the workers of this process may have under way
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._under_way: dict[str, int] = {}
        self.most = 1

    def begin(self, provider: str) -> bool:
        """Whether a call may begin toward a provider; one that does is told `end` afterwards."""
        if not provider:
            return True
        with self._lock:
            head = self._engine.store.head(PREFIX + provider)
            free = head is None or not limited(head_of(head.head, Quota)) or self._permitted(provider)
            if free:
                self._under_way[provider] = self._under_way.get(provider, 0) + 1
            return free

    def _permitted(self, provider: str) -> bool:
        """Take a permit, if there is one; a quiet stretch makes one more."""
        engine = self._engine
        me, mine = engine.identity().name, self._under_way.get(provider, 0)

        def turn(found: Quota, now: float) -> tuple[Quota, bool]:
            pace = Pace(found.most, found.now, found.since).quiet(now, QUIET_S)
            found = found._replace(now=pace.now, since=pace.since)
            if not limited(found):
                return found._replace(held={}), True
            held = {name: count for name, count in found.held.items() if name != me and self._lives(name)}
            free = sum(held.values()) + mine < found.now
            held[me] = mine + 1 if free else mine
            return found._replace(held={name: count for name, count in held.items() if count}), free

        return bool(waited_for(changed(engine, provider, turn)))

    def _lives(self, worker: str) -> bool:
        engine = self._engine
        head = engine.store.head(f"worker/{worker}")
        return head is not None and engine.lives(worker, head_of(head.head, Worker))

    def end(self, provider: str) -> None:
        """Be done with a call; where permits are needed, its own is free again."""
        if not provider:
            return
        engine = self._engine
        with self._lock:
            mine = self._under_way[provider] = max(0, self._under_way.get(provider, 0) - 1)
            try:
                if not known(engine, provider).held:
                    return
                me = engine.identity().name
            except StoreError:
                return  # it ends with this process at the latest

            def turn(found: Quota, now: float) -> tuple[Quota, None]:
                held = {**found.held, me: min(mine, found.held.get(me, 0))}
                return found._replace(held={name: count for name, count in held.items() if count}), None

            self._write(provider, turn)

    def _write(self, provider: str, turn: Callable[[Quota, float], tuple[Quota, Any]]) -> None:
        """Write what a turn says; where that fails, the work goes on: permits end with their worker."""
        try:
            waited_for(changed(self._engine, provider, turn))
        except StoreError as error:
            self._engine.grumble(f"the pace of {provider} could not be written: {error}")

    def throttled(self, provider: str, began: float, most: int = 0) -> None:
        """Ask less of a provider that told an attempt to slow down, everywhere.

        began  when that attempt began
        most   how many calls one job may have under way at first; else that of this process's workers
        """
        if not provider:
            return
        most = most or self.most

        def turn(found: Quota, now: float) -> tuple[Quota, None]:
            top = max(most, found.most)
            pace = Pace(top, found.now or top, found.since).throttled(began, now)
            count = found.throttled + 1
            return found._replace(most=top, now=pace.now, since=pace.since, throttled=count), None

        self._write(provider, turn)
