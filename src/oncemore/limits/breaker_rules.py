"""GATE: whether a call to a provider goes through now. The breaker, as a table.

    state       event      leads to    when
    CLOSED      passed     CLOSED      a call came good: what failed before it is forgotten
    CLOSED      failed     CLOSED      a failure counts, and more are allowed
    CLOSED      tripped    OPEN        … and that was the last one allowed: the cooldown begins
    OPEN        asked      HALF_OPEN   the cooldown is over: whoever asks first has the probe
    HALF_OPEN   asked      HALF_OPEN   the probe's lease is over, or its holder is dead: the next one has it
    HALF_OPEN   passed     CLOSED      the probe came good
    HALF_OPEN   failed     OPEN        it did not: another cooldown
    HALF_OPEN   released   OPEN        it told nothing about the provider: the next one asks at once
    any         reset      CLOSED      a person says so

What is not in the table changes nothing: calls that were let through before it opened come back while it is
open, and the holder of a probe that was taken over comes back late. Nobody waits here and nobody asks for the
time; a circuit (`log.record.Circuit`) is a value, and every function returns the next one, or the same if
there is nothing to write down.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Literal

    from oncemore.log.record import Circuit
    from oncemore.policy.model import Action, Failure, Verdict

    Event = Literal["passed", "failed", "tripped", "asked", "released", "reset"]

STATES: Final = ("CLOSED", "OPEN", "HALF_OPEN")
EVENTS: Final = ("passed", "failed", "tripped", "asked", "released", "reset")
MOVES: Final[dict[tuple[str, str], str]] = {
    ("CLOSED", "passed"): "CLOSED",
    ("CLOSED", "failed"): "CLOSED",
    ("CLOSED", "tripped"): "OPEN",
    ("OPEN", "asked"): "HALF_OPEN",
    ("HALF_OPEN", "asked"): "HALF_OPEN",
    ("HALF_OPEN", "passed"): "CLOSED",
    ("HALF_OPEN", "failed"): "OPEN",
    ("HALF_OPEN", "released"): "OPEN",
    ("CLOSED", "reset"): "CLOSED",
    ("OPEN", "reset"): "CLOSED",
    ("HALF_OPEN", "reset"): "CLOSED",
}
COUNTS: Final = ("operations", "attempts")
#: Into how many stretches the window of a rate is divided; the oldest is forgotten whole.
SLOTS: Final = 10
MOST_FAILURES, LONGEST_S = 1_000_000, 31_536_000.0
#: While a probe is under way others look again after a tenth of the cooldown, within these bounds.
LOOK_S, LOOK_MOST_S = 1.0, 30.0


class Rules(Value):
    """When a breaker opens, and for how long.

    failures    how many one after another open it, where no rate does
    cooldown_s  how long it stays open, and how long a probe may take at most
    counts      "operations": each counts once, at its first failed call; or all failed "attempts"
    rate        the part of calls whose failure opens it, over `window_s`, from `least` calls on
    """

    failures: int = 3
    cooldown_s: float = 300.0
    counts: str = "operations"
    rate: float | None = None
    window_s: float = 60.0
    least: int = 10


def check_rules(rules: Rules) -> Rules:
    """Return rules whose numbers make sense, or say which one does not."""
    _check_whole("failures", rules.failures, 1, MOST_FAILURES)
    _check_whole("least", rules.least, 1, MOST_FAILURES)
    for field, value in (("cooldown_s", rules.cooldown_s), ("window_s", rules.window_s)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LONGEST_S:
            raise PolicyError(f"{field} of a breaker is {value!r}; it takes seconds above 0, up to a year")
    if rules.counts not in COUNTS:
        raise PolicyError(f"count of a breaker is {rules.counts!r}; the choices are {', '.join(COUNTS)}")
    rate = rules.rate
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= 1
    ):
        raise PolicyError(f"rate of a breaker is {rate!r}; it takes a part of 1: 0.5 for every second call")
    return rules


def _check_whole(field: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise PolicyError(f"{field} of a breaker is {value!r}; it takes a whole number from {low} to {high}")


class Refusal(Value):
    """A call does not go through: until when at least, and whether only because a probe is under way."""

    until: float
    probing: bool = False


#: What the gate answers to a call: it goes through, or it goes through as the probe.
PASS, PROBE = "pass", "probe"


def ask(circuit: Circuit, now: float, *, held: bool = True) -> str | Refusal:
    """Return whether a call goes through: PASS, PROBE or a `Refusal`.

    held  whether the holder of the probe still has it, as far as anybody knows
    """
    if circuit.state == "CLOSED":
        return PASS
    left = _left(circuit, now)
    if left <= 0 or (circuit.state == "HALF_OPEN" and not held):
        return PROBE
    if circuit.state == "OPEN":
        return Refusal(now + left)
    look = min(max(LOOK_S, circuit.cooldown_s / 10), LOOK_MOST_S)
    return Refusal(now + min(left, look), probing=True)


def _left(circuit: Circuit, now: float) -> float:
    """Return how long a cooldown or a probe lasts; a clock that was set back makes neither longer."""
    return min(circuit.until - now, circuit.cooldown_s)


def is_open(circuit: Circuit | None) -> bool:
    """Whether records made now say `circuit_open` (BREAK-6): only a probe could go through."""
    return circuit is not None and circuit.state != "CLOSED"


def clean(circuit: Circuit | None) -> bool:
    """Whether a call that comes good has nothing to write down."""
    return circuit is None or (circuit.state == "CLOSED" and not circuit.failures and not circuit.rate)


def counted(
    rules: Rules, failure: Failure, verdict: Verdict, action: Action, already: bool, probe: bool
) -> bool:
    """Whether a failed call counts against its provider (BREAK-7).

    already  whether its operation has counted before
    probe    whether it was the probe, whose every failure to pass says that the provider is not well
    """
    if verdict not in ("RETRYABLE", "UNKNOWN") or failure.kind not in ("transient", "throttled"):
        return False  # the provider is well: it refused this request, or found its state changed
    if probe:
        return True
    if failure.kind == "throttled" and action == "retry":
        return False  # it is asked less instead, until that does not help either
    return rules.counts == "attempts" or not already


def move(rules: Rules, circuit: Circuit, event: Event, now: float, **changes: Any) -> Circuit:
    """Return the circuit after an event that its table has, with the rules that it goes by."""
    state = MOVES[circuit.state, event]
    since = now if state != circuit.state else circuit.since
    return circuit._replace(
        state=state, since=since, limit=rules.failures, rate=rules.rate or 0.0,
        cooldown_s=float(rules.cooldown_s), counts=rules.counts, **changes,
    )  # fmt: skip


class Holder(Value):
    """Who takes a probe: a worker, as what it has it under way, and for how long at most."""

    worker: str = ""
    entity: str = ""
    fence: int = 0
    lease_s: float = 60.0


def asked(rules: Rules, circuit: Circuit, now: float, by: Holder) -> Circuit:
    """Return the circuit whose probe somebody has taken."""
    return move(
        rules, circuit, "asked", now, until=now + by.lease_s, turn=circuit.turn + 1, worker=by.worker,
        holder=by.entity, fence=by.fence,
    )  # fmt: skip


def passed(rules: Rules, circuit: Circuit, now: float, turn: int = 0, calls: int = 1) -> Circuit:
    """Return the circuit after a call came good; `turn` is its number if it was the probe.

    calls  how many came good since that was last written down, where a rate counts them
    """
    if circuit.state == "HALF_OPEN" and turn == circuit.turn:
        return move(
            rules, circuit, "passed", now, failures=0, until=0.0, worker="", holder="", fence=0, slots={}
        )
    if circuit.state != "CLOSED":
        return circuit
    if rules.rate is not None:
        return move(
            rules, circuit, "passed", now, failures=0, slots=_slots(rules, circuit.slots, now, calls, 0)
        )
    return move(rules, circuit, "passed", now, failures=0) if circuit.failures else circuit


def failed(
    rules: Rules, circuit: Circuit, now: float, turn: int = 0, code: str = "", calls: int = 0
) -> Circuit:
    """Return the circuit after a failure that counts; `turn` is its number if it was the probe.

    calls  how many came good since that was last written down, where a rate counts them
    """
    if circuit.state == "HALF_OPEN" and turn == circuit.turn:
        return _opened(rules, circuit, "failed", now, code)
    if circuit.state != "CLOSED":
        return circuit
    if rules.rate is not None:
        slots = _slots(rules, circuit.slots, now, calls + 1, 1)
        all_calls, all_failed = (sum(slot[at] for slot in slots.values()) for at in (0, 1))
        told = circuit._replace(failures=circuit.failures + 1, slots=slots)
        tripped = all_calls >= rules.least and all_failed >= rules.rate * all_calls
    else:
        told = circuit._replace(failures=circuit.failures + 1)
        tripped = told.failures >= rules.failures
    if tripped:
        return _opened(rules, told, "tripped", now, code)
    return move(rules, told, "failed", now, code=code, failed_at=now)


def _opened(rules: Rules, circuit: Circuit, event: Event, now: float, code: str) -> Circuit:
    return move(
        rules, circuit, event, now, opened=now, until=now + rules.cooldown_s, opens=circuit.opens + 1,
        worker="", holder="", fence=0, slots={}, code=code, failed_at=now,
    )  # fmt: skip


def released(rules: Rules, circuit: Circuit, now: float, turn: int) -> Circuit:
    """Return the circuit whose probe told nothing: the next one who asks has it."""
    if circuit.state != "HALF_OPEN" or turn != circuit.turn:
        return circuit
    return move(rules, circuit, "released", now, until=now, worker="", holder="", fence=0)


def reset(rules: Rules, circuit: Circuit, now: float) -> Circuit:
    """Return the circuit that a person closed; a probe under way has nothing to say any more."""
    return move(
        rules,
        circuit,
        "reset",
        now,
        failures=0,
        until=0.0,
        worker="",
        holder="",
        fence=0,
        slots={},
        turn=circuit.turn + 1,
    )


def _slots(
    rules: Rules, slots: dict[str, list[int]], now: float, calls: int, failures: int
) -> dict[str, list[int]]:
    """Return the stretches of the window with what has just come in; what is older is forgotten."""
    number = int(now * SLOTS / rules.window_s)
    kept = {name: slot for name, slot in slots.items() if number - SLOTS < int(name) <= number}
    had = kept.get(str(number), [0, 0])
    return {**kept, str(number): [had[0] + calls, had[1] + failures]}
