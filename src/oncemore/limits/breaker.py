"""GATES: breakers at work. Where a circuit is kept, and how an operation passes it.

A *book* is where a circuit is kept: in memory, or in a store for all who share that
(`limits.shared_breaker`). An
operation has a *passage*: it asks before each attempt and tells what came of it. Both are scripts, like all
that waits: they yield a `Put` where something has to be stored, and whoever drives them waits for that,
blocking or awaiting; in memory nothing is yielded at all.

A breaker that is closed and in which nothing has failed is `clean`: `retry` then calls the work directly.
"""

from __future__ import annotations

from _thread import allocate_lock

from oncemore import clock as clocks
from oncemore.errors import CircuitOpen, UsageError
from oncemore.limits import breaker_rules as core
from oncemore.limits.breaker_rules import PROBE, Holder, Refusal, Rules, check_rules
from oncemore.log.record import Circuit
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.decide import decide
from oncemore.retries.loop import utc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, Protocol, TypeVar

    from oncemore.policy.decide import Decision
    from oncemore.policy.model import Action, Failure, Verdict

    R = TypeVar("R")
    Script = Generator[Any, Any, R]
    #: What is to become of a circuit at a time, given whether its probe is still held; and the answer.
    Turn = Callable[[Circuit, float, bool], tuple[Circuit, R]]

    class Book(Protocol):
        """Where a circuit is kept."""

        clean: bool

        def change(self, turn: Turn[R]) -> Script[R]:
            """Write down what becomes of the circuit, and return what the turn answers."""

        def look(self) -> Circuit:
            """Return the circuit as it is now."""

        def holder(self, lease_s: float) -> Holder:
            """Return who takes a probe here."""

        def let_go(self, turn: int) -> None:
            """Have a probe under way no longer."""


#: The shortest time that a probe has before it counts as lost, where nothing limits the attempt.
PROBE_S = 60.0
LONGEST_NAME = 200


class Memory:
    """A circuit that this process alone knows."""

    __slots__ = ("_lock", "circuit", "clean")

    def __init__(self, name: str) -> None:
        self.circuit = Circuit(name=name)
        self.clean = True
        self._lock = allocate_lock()

    def look(self) -> Circuit:
        """Return the circuit."""
        return self.circuit

    def holder(self, lease_s: float) -> Holder:
        """Return who takes a probe: it does not matter, nobody else knows of it."""
        return Holder(lease_s=lease_s)

    def let_go(self, turn: int) -> None:
        """Have nothing under way: what is in memory ends with the process."""

    def change(self, turn: Turn[R]) -> Script[R]:
        """Do what a turn says; nobody waits for anything."""
        with self._lock:
            before = self.circuit
            self.circuit, answer = turn(before, clocks.current.wall(), True)
            self.clean = core.clean(self.circuit)
            after = self.circuit
        announce(before, after)
        yield from ()  # a script, like that of a store
        return answer


class Gate:
    """A breaker: its rules, and where its circuit is kept.

    name   the provider whose calls pass it
    light  whether a call that comes good has nothing to tell while the book is clean
    """

    __slots__ = ("book", "light", "name", "rules")

    def __init__(self, name: str, rules: Rules, book: Book | None = None) -> None:
        self.name = check_name(name)
        self.rules = check_rules(rules)
        self.book: Book = Memory(self.name) if book is None else book
        self.light = type(self.book) is Memory and rules.rate is None

    def passage(self, limit_s: float | None = None) -> Passage:
        """Return the way of one operation; `limit_s` is how long one attempt of it may take."""
        return Passage(self, limit_s)


def check_name(name: object) -> str:
    """Return the name of a provider, or say what it may be."""
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
        raise UsageError(
            f"the name of a breaker is {name!r}; it takes a text of 1 to {LONGEST_NAME} characters"
        )
    return normalize_name(name)


class Passage:
    """How one operation passes a gate: it asks before each attempt, and tells what came of it.

    turn     the number of its probe, while it has one; 0 where calls go through as usual
    counted  whether its failure has counted
    """

    __slots__ = ("_lease_s", "book", "counted", "gate", "turn")

    def __init__(self, gate: Gate, limit_s: float | None = None) -> None:
        self.gate, self.book = gate, gate.book
        self.turn, self.counted = 0, False
        self._lease_s = max(gate.rules.cooldown_s, PROBE_S) if limit_s is None else limit_s + PROBE_S / 10

    def admit(self) -> Script[CircuitOpen | None]:
        """Ask whether an attempt may be made; return None if so, else what says why not."""
        rules = self.gate.rules

        def turn(circuit: Circuit, now: float, held: bool) -> tuple[Circuit, int | Refusal]:
            answer = core.ask(circuit, now, held=held)
            if answer is PROBE:
                circuit = core.asked(rules, circuit, now, self.book.holder(self._lease_s))
                return circuit, circuit.turn
            return circuit, answer if type(answer) is Refusal else 0

        answer: int | Refusal = yield from self.book.change(turn)
        if isinstance(answer, Refusal):
            return refused(self.gate.name, answer)
        self.turn = answer
        return None

    def passed(self) -> Script[None]:
        """Tell that an attempt came good."""
        rules, probe = self.gate.rules, self._turned()
        if probe or not self.book.clean or (rules.rate is not None and not self.counted):
            yield from self.book.change(lambda at, now, held: (core.passed(rules, at, now, probe), None))

    def failed(self, failure: Failure, verdict: Verdict, action: Action) -> Script[float | None]:
        """Tell that an attempt failed, and what is to follow; return for how long no call goes through."""
        rules, probe = self.gate.rules, self._turned()
        counts = core.counted(rules, failure, verdict, action, self.counted, probe > 0)
        self.counted = self.counted or counts
        code = failure.code or failure.kind.upper()

        def turn(circuit: Circuit, now: float, held: bool) -> tuple[Circuit, float | None]:
            if counts:
                circuit = core.failed(rules, circuit, now, probe, code)
            elif probe:
                circuit = core.released(rules, circuit, now, probe)
            until = shut_until(circuit, now, held)
            return circuit, None if until is None else until - now

        return (yield from self.book.change(turn))

    def decided(self, decision: Decision) -> Script[Decision]:
        """Tell of a decision about a failed attempt; return it, or another one if the gate is shut now."""
        at = decision.situation
        left = yield from self.failed(at.failure, at.verdict, decision.action)
        if left is None or decision.action != "retry":
            return decision
        return decide(decision.policy, at._replace(hold_until=at.now + left, held_for=CIRCUIT_OPEN))

    def leave(self) -> None:
        """Be done: a probe that has told nothing, because it was cut off, is given back."""
        if self.turn:
            rules, probe = self.gate.rules, self._turned()
            waited_for(self.book.change(lambda at, now, held: (core.released(rules, at, now, probe), None)))

    def _turned(self) -> int:
        """Have the probe no longer, and return its number; 0 where there was none."""
        probe, self.turn = self.turn, 0
        if probe:
            self.book.let_go(probe)
        return probe


#: Why a run waits whose provider is left alone.
CIRCUIT_OPEN = "circuit_open"


def shut_until(circuit: Circuit, now: float, held: bool = True) -> float | None:
    """Return until when no call goes through; None if one could."""
    answer = core.ask(circuit, now, held=held)
    return answer.until if type(answer) is Refusal else None


def refused(name: str, refusal: Refusal) -> CircuitOpen:
    """Return the error of a call that did not go through."""
    why = "one call is trying it again" if refusal.probing else "its breaker is open"
    return CircuitOpen(
        f"{name} is left alone until {utc(refusal.until)}: {why}; nothing was sent", name, refusal.until
    )


def waited_for(script: Script[R]) -> R:
    """Run a script to its end, blocking; return what it returns."""
    try:
        put = next(script)
        while True:
            try:
                answer = put.send().wait()
            except Exception as error:  # noqa: BLE001 - the script knows what to do without the store
                put = script.throw(error)
            else:
                put = script.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def awaited(script: Script[R]) -> R:
    """Run a script to its end, awaiting; return what it returns."""
    try:
        put = next(script)
        while True:
            try:
                answer = await put.send()
            except Exception as error:  # noqa: BLE001
                put = script.throw(error)
            else:
                put = script.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def announce(before: Circuit, after: Circuit) -> None:
    """Say in the log that a breaker has opened or closed: whoever looks for slow calls finds out why."""
    if after.state == "OPEN" and after.opens > before.opens:
        text = f"open for {after.cooldown_s:g} s: {after.code}"
    elif after.state == "CLOSED" and before.state != "CLOSED":
        text = "closed again"
    else:
        return
    import logging

    logging.getLogger("oncemore.breaker").warning("oncemore: breaker %s is %s", after.name, text)


# In memory, by name --------------------------------------------------------------------------------

_named: dict[str, Memory] = {}
MOST_NAMED = 10_000


def named(name: str) -> Memory:
    """Return the circuit of a provider in this process: the same for all who name it."""
    name = check_name(name)
    book = _named.get(name)
    if book is None:
        if len(_named) >= MOST_NAMED:
            raise UsageError(
                f"there are {MOST_NAMED:,} breakers in this process; is a breaker named by call?"
            )
        book = _named.setdefault(name, Memory(name))
    return book
