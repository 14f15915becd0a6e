"""Guards that are looked at when what they guard is stored, for batches that allow it.

A guard that is compared in the same move makes a batch an atomic one, which costs a server with one replica
several publishes, and is a lock for servers with three. The claim of an attempt allows its guards to be
compared afterwards (`Batch.late`): it is a plain publish with the sequence that its own subject must have,
and before anybody is told that it is stored, the last messages of its guards are read.

**What that proves.** The stream has one order. A switch that was thrown before the claim has a lower
sequence, so whoever has the claim has the switch. A reply shows the last messages of several subjects as they
were at one moment in one server; the claim's own subject is among them, and only a reply that has the claim
counts, from whichever replica it comes. If the guards in it stand where they were relied on, they did so at
the claim, because nothing goes back. If one does not, it may have moved before the claim or after it: nothing
begins in either case. What cannot be read is asked again; nobody is told "stored" meanwhile.

One reply serves all claims that wait for one: that of the last one proves it for those before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError
from oncemore.log.nats.connection import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.nats.append import Try
    from oncemore.log.nats.reader import At, Log

    Waiting = tuple[Try, int, Callable[[bool | None], object]]

MOST = 100  # claims that one look serves: each may bring a guard or two of its own


class Looks:
    """Those who wait for a look, and whether one is under way; used in the line's loop only."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._waiting: list[Waiting] = []
        self._under_way = False

    def add(self, one: Try, seq: int, hear: Callable[[bool | None], object]) -> None:
        """Look at the guards of a try that was stored with that sequence; `hear` is told once.

        True: they are as they were relied on. False: one is not. None: nobody knows.
        """
        self._waiting.append((one, seq, hear))
        if not self._under_way:
            self._look()

    def _look(self) -> None:
        group, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        where, line = self._log.where, self._log.line
        last, upto, _ = max(group, key=lambda waiting: waiting[1])
        proof = where.entity(last.batch.writes[-1].entity)
        guards = {entity: where.entity(entity) for one, _, _ in group for entity in one.late}

        def heard(parts: list[Any] | None, why: str) -> None:
            found = None if parts is None else {part.headers["Nats-Subject"]: part for part in parts}
            if found is not None and _seq(found.get(proof)) < upto:
                found = None  # a replica that has not come so far
            self._heard(group, guards, found)

        self._under_way = True
        if not line.last_now(where.stream, [proof, *guards.values()], heard):
            self._heard(group, guards, None)

    def _heard(self, group: list[Waiting], guards: dict[str, str], found: dict[str, Any] | None) -> None:
        """Let the next look go, and tell these."""
        self._under_way = False
        if self._waiting:
            self._look()
        stand = None if found is None else self._stand(guards, found)
        for one, _, hear in group:
            hear(None if stand is None else all(same(stand[name], at) for name, at in one.late.items()))

    def _stand(self, guards: dict[str, str], found: dict[str, Any]) -> dict[str, At] | None:
        """Return where entities stand by their last messages; None if one of them makes no sense."""
        try:
            return {
                entity: self._log.note(entity, _message(found.get(subject)))
                for entity, subject in guards.items()
            }
        except StoreError:
            return None  # who asks the leader next is told why


def same(at: At, relied: At) -> bool:
    """Whether an entity is as it was relied on; what is left when bodies are forgotten is the same entry."""
    return (at.version, at.hash) == (relied.version, relied.hash)


def _seq(part: Any) -> int:
    return 0 if part is None else int(part.headers["Nats-Sequence"])


def _message(part: Any) -> Message | None:
    if part is None:
        return None
    return Message(part.headers["Nats-Subject"], _seq(part), part.headers, part.data)
