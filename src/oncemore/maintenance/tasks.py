"""CHORES: housekeeping on record. Who had what done, when and why; and what was left by one that was killed.

A chore is an entity of the log like all others: OPEN when it begins, DONE when all of it is done. One that
stays OPEN though its worker is gone was killed in the middle: whatever it did is safe to do again, and the
next of its kind does it and closes it.
"""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

from oncemore._ids import uuid7
from oncemore.errors import StoreError, UsageError
from oncemore.log.entry_codec import head_of
from oncemore.log.head_access import write_of
from oncemore.log.record import NOWHERE, Change, Chore
from oncemore.log.store import Batch, Query, Stored
from oncemore.policy.canonical_json import normalize_name
from oncemore.steps.context import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from oncemore.steps.engine import Engine

CHORE: tuple[Any, ...] = ("CHORE",)
PAGE = 200
LONGEST = 1000


def told(field: str, text: Any, instead: str = "") -> str:
    """Return who or why, which is recorded for good; empty is refused."""
    if text is None or text == "":
        text = instead
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        raise UsageError(
            f"{field} is {text!r:.80}; it takes a text of 1 to {LONGEST} characters: it is recorded"
        )
    return text


def somebody(by: str | None) -> str:
    """Return who does it: as told, that of the context, or who this process runs as."""
    return normalize_name(told("by", by or CONTEXT.get().actor, _user()))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return "somebody"


class Doing:
    """A chore that is under way; `with` it, and say what came of it: `done`."""

    def __init__(self, engine: Engine, what: str, reason: str, by: str) -> None:
        self._engine, self._version, self._hash = engine, 0, NOWHERE
        self._me = engine.identity()
        now = engine.now()
        self.entity = f"chore/{uuid7(now)}"
        self._state = Chore("OPEN", what, by, reason, now, 0.0, 0, self._me.name)
        self._me.take((self.entity, 0))

    @property
    def began(self) -> float:
        """When it began."""
        return self._state.began

    @property
    def record(self) -> dict[str, str]:
        """What the entries that it makes say of it."""
        return {"actor": self._state.actor, "reason": self._state.reason, "chore": self.entity}

    def __enter__(self) -> Self:
        self._write(None, self._state, {})
        return self

    def __exit__(self, *error: object) -> None:
        self._me.leave((self.entity, 0))
        if self._me.retired:
            self._engine.bury(self._me)

    def note(self, body: dict[str, Any]) -> None:
        """Write down a part of it before that is done."""
        self._write(self._state, self._state, body)

    def done(self, runs: int, body: dict[str, Any]) -> None:
        """Write down that all of it is done."""
        after = self._state._replace(state="DONE", ended=self._engine.now(), runs=runs)
        self._write(self._state, after, body)
        self._state = after

    def _write(self, before: Chore | None, after: Chore, body: dict[str, Any]) -> None:
        engine = self._engine
        change = Change(CHORE, before, after, body)
        write = write_of(self.entity, self._version, self._hash, change, engine.now(), engine.seal)
        answer = engine.store.append(Batch((write,))).wait()
        if not isinstance(answer, Stored):
            raise StoreError(f"{self.entity} was written by somebody else; begin anew")
        self._version, self._hash = self._version + 1, write.hash


def chores(engine: Engine, what: str | None = None, state: str | None = None) -> Iterator[tuple[str, Chore]]:
    """Return the chores of a store, oldest first."""
    after = ""
    while page := list(engine.store.heads(Query("chore", state, None, what, limit=PAGE, after=after))):
        yield from ((head.entity, head_of(head.head, Chore)) for head in page)
        after = page[-1].entity


def left_open(engine: Engine, what: str) -> list[tuple[str, Chore]]:
    """Return the chores of a kind that were killed: they are OPEN, and nobody is at them."""
    now = engine.now()
    found = chores(engine, what, "OPEN")
    return [(name, chore) for name, chore in found if engine.held_until(chore.worker, name, 0) <= now]


def close(engine: Engine, left: list[tuple[str, Chore]]) -> None:
    """Write down that what killed chores left is done by now; whoever is first is right."""
    for entity, chore in left:
        head = engine.store.head(entity)
        if head is not None and head_of(head.head, Chore) == chore:
            change = Change(CHORE, chore, chore._replace(state="DONE", ended=engine.now()))
            write = write_of(entity, head.version, head.hash, change, engine.now(), engine.seal)
            engine.store.append(Batch((write,))).wait()
