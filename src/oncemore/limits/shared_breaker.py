"""CIRCUITS: breakers that all who share a store share, each an entity of its log.

A claim carries the version of the circuit that it was let through by, as a guard: whoever opens it has moved
it, and the claim is refused. So what is known of a closed circuit may be old, and yet no attempt begins after
it has opened; nothing is read or written for a call that comes good while nothing fails.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError, UsageError
from oncemore.limits import breaker_rules as core
from oncemore.limits.breaker import Memory, announce
from oncemore.limits.breaker_rules import Holder, Rules
from oncemore.log.entry_codec import head_of
from oncemore.log.head_access import seen_in, write_of
from oncemore.log.record import Change, Circuit
from oncemore.log.store import Batch, Query, Stored
from oncemore.policy.canonical_json import normalize_name
from oncemore.retries.loop import Put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oncemore.limits.breaker import Script, Turn
    from oncemore.steps.engine import Engine
    from oncemore.steps.lease import Identity
    from oncemore.steps.ops import Seen

PREFIX = "breaker/"
#: How often a turn is tried while others are faster; after that the store is not to be waited for.
MOST_TRIES = 1000
MOST_LISTED = 10_000


def entity_of(name: str) -> str:
    """Return what a provider's circuit is called in the log."""
    return PREFIX + normalize_name(name)


@lru_cache(maxsize=10_000)
def fresh(entity: str) -> Circuit:
    """Return the circuit of a provider that nothing is known of."""
    return Circuit(name=entity.removeprefix(PREFIX))


def change_of(before: Circuit | None, after: Circuit, body: dict[str, Any] | None = None) -> Change:
    """Return the entry of a circuit; that of a probe that failed is also one for people (BREAK-5)."""
    marks: tuple[Any, ...] = ("BREAKER",)
    told = dict(body or {})
    if (
        before is not None
        and before.state == "HALF_OPEN"
        and after.state == "OPEN"
        and after.opened == after.since
    ):
        marks = ("BREAKER", "ESCALATION")
        told["escalation"] = {
            "policy": "circuit_breaker", "provider": after.name, "code": after.code, "until": after.until,
            "opens": after.opens,
        }  # fmt: skip
    return Change(marks, before, after, told)


class Circuits:
    """What an engine knows of its store's circuits."""

    def __init__(self) -> None:
        self._known: dict[str, Seen] = {}

    def consult(self, engine: Engine, entity: str) -> Seen:
        """Return a circuit: as it is, or, while it is closed, as it was; a guard finds out the difference."""
        seen = self._known.get(entity)
        if seen is None:
            seen = seen_in(engine.store, entity, engine.seal, Circuit)
            if not core.is_open(seen.run):
                self._known[entity] = seen
        return seen

    def forget(self, entity: str) -> None:
        """Read a circuit anew when it is next asked for."""
        self._known.pop(entity, None)

    def wrote(self, engine: Engine, also: Iterable[tuple[Seen, Change]]) -> None:
        """Hear what was written; those who listen are told of what has opened, closed or failed to."""
        for seen, change in also:
            if type(change.after) is Circuit:
                self.forget(seen.entity)
                tell(engine, seen, change)


def tell(engine: Engine, seen: Seen, change: Change) -> None:
    """Let those who listen know what has become of a circuit."""
    before, after = seen.run or fresh(seen.entity), change.after
    assert type(after) is Circuit
    announce(before, after)
    what = EVENTS.get((before.state, after.state))
    if what is not None and not (what == "circuit_probe_failed" and "ESCALATION" not in change.marks):
        engine.tell(what, seen._replace(run=after, body=change.body))


#: What a listener hears, by the state before and after.
EVENTS = {
    ("CLOSED", "OPEN"): "circuit_opened",
    ("OPEN", "HALF_OPEN"): "circuit_half_open",
    ("HALF_OPEN", "HALF_OPEN"): "circuit_half_open",
    ("HALF_OPEN", "CLOSED"): "circuit_closed",
    ("HALF_OPEN", "OPEN"): "circuit_probe_failed",
    ("OPEN", "CLOSED"): "circuit_closed",
}


class Shared:
    """The circuit of a provider, kept in the store of an engine that is found when it is needed.

    A store that cannot be reached is no reason to stop, nor to ask a provider that is down: as long as that
    lasts, what this process sees counts for it alone, and it says so.
    """

    def __init__(self, name: str, find: Callable[[], Engine]) -> None:
        self._name, self._entity, self._find = name, entity_of(name), find
        self._alone = Memory(name)
        self._cut_off = False
        self._mine: dict[int, Identity] = {}
        self.clean = False

    def holder(self, lease_s: float) -> Holder:
        """Return who takes a probe: this process, for as long as its worker lives."""
        if self._cut_off:
            return self._alone.holder(lease_s)
        return Holder(self._find().identity().name, self._entity, 0, lease_s)

    def let_go(self, turn: int) -> None:
        """Have a probe under way no longer."""
        me = self._mine.pop(turn, None)
        if me is not None:
            me.leave((self._entity, turn))

    def look(self) -> Circuit:
        """Return the circuit as it is now."""
        try:
            return seen_in(self._find().store, self._entity, None, Circuit).run or fresh(self._entity)
        except StoreError:
            return self._alone.look()

    def change(self, turn: Turn[Any], body: dict[str, Any] | None = None) -> Script[Any]:
        """Read the circuit, do what a turn says, write it if it is still as it was; else again."""
        try:
            answer = yield from self.changed(self._find(), turn, body)
        except StoreError as error:
            if not self._cut_off:
                self._cut_off = True
                self._find().grumble(
                    f"breaker {self._name}: the store cannot be reached ({error}); until it can, what fails "
                    "here counts in this process alone"
                )
            return (yield from self._alone.change(turn))
        self._cut_off = False
        return answer

    def changed(self, engine: Engine, turn: Turn[Any], body: dict[str, Any] | None) -> Script[Any]:
        """Do what a turn says on a store that can be reached."""
        for _ in range(MOST_TRIES):
            seen = seen_in(engine.store, self._entity, engine.seal, Circuit)
            circuit, now = seen.run or fresh(self._entity), engine.now()
            after, answer = turn(circuit, now, held(engine, circuit, now))
            self.clean = core.clean(after)
            if after == circuit:
                return answer
            change = change_of(seen.run, after, body)
            write = write_of(seen.entity, seen.version, seen.hash, change, now, engine.seal)
            taken = self._take(engine, circuit, after)
            stored = False
            try:
                stored = isinstance((yield Put(lambda: engine.store.append(Batch((write,))))), Stored)  # noqa: B023
            finally:
                if taken and not stored:
                    self.let_go(taken)
            if stored:
                engine.circuits.wrote(engine, ((seen, change),))
                return answer
        raise StoreError(f"breaker {self._name}: others wrote to it {MOST_TRIES} times in a row")

    def _take(self, engine: Engine, before: Circuit, after: Circuit) -> int:
        """Have a probe under way before that is written: nobody here may take it for lost."""
        if after.state != "HALF_OPEN" or after.turn == before.turn:
            return 0
        me = self._mine[after.turn] = engine.identity()
        me.take((self._entity, after.turn))
        return after.turn


def held(engine: Engine, circuit: Circuit, now: float) -> bool:
    """Whether the holder of a probe still has it."""
    if circuit.state != "HALF_OPEN":
        return True
    return engine.held_until(circuit.worker, circuit.holder, circuit.fence or circuit.turn) > now


# Looking, and a person's word ----------------------------------------------------------------------


def circuits_of(engine: Engine) -> tuple[Circuit, ...]:
    """Return the circuits that a log knows, by name."""
    heads = engine.store.heads(Query("breaker", limit=MOST_LISTED))
    return tuple(sorted((head_of(head.head, Circuit) for head in heads), key=lambda one: one.name))


def reset(engine: Engine, name: str, reason: str, by: str) -> Circuit:
    """Close a breaker because somebody says so; who and why is recorded."""
    from oncemore.control.moved_log import check_here
    from oncemore.limits.breaker import waited_for

    if not isinstance(reason, str) or not reason.strip():
        raise UsageError("a breaker is reset for a reason: reason='…', which is recorded")
    seen = seen_in(engine.store, entity_of(name), engine.seal, Circuit)
    if seen.run is None:
        raise UsageError(f"there is no breaker {name!r} in this store; oncemore breakers lists them")
    check_here(engine, f"breaker {name}")
    told = {"decision": {"what": "reset", "reason": reason, "actor": by}}

    def turn(circuit: Circuit, now: float, held: bool) -> tuple[Circuit, Circuit]:
        rules = Rules(circuit.limit, circuit.cooldown_s, circuit.counts, circuit.rate or None)
        after = core.reset(rules, circuit, now)
        return after, after

    return waited_for(Shared(name, lambda: engine).changed(engine, turn, told))  # type: ignore[no-any-return]
