"""The state table of a circuit breaker: whether a call to a provider is admitted now.

    state       event      leads to    when
    CLOSED      passed     CLOSED      a call succeeds: the count of failures returns to 0
    CLOSED      failed     CLOSED      a failure counts, and more are allowed
    CLOSED      tripped    OPEN        a failure reaches the limit: the cooldown begins
    OPEN        asked      HALF_OPEN   the cooldown is over: the first caller takes the probe
    HALF_OPEN   asked      HALF_OPEN   the probe's lease is over or its holder is dead: the next caller has it
    HALF_OPEN   passed     CLOSED      the probe succeeds
    HALF_OPEN   failed     OPEN        the probe fails: another cooldown
    HALF_OPEN   released   OPEN        the probe ends without a result: the next caller may probe at once
    any         reset      CLOSED      an operator resets the breaker

An event outside the table changes nothing: a call admitted before the breaker opened may end while it is
open, and the former holder of a probe may report late. The functions are pure: each takes a
`log.record.BreakerRecord` and the time and returns the next record, or the same one if nothing changes.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Literal

    from oncemore.log.record import BreakerRecord
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
#: Number of slots in the window of a failure rate; the oldest slot expires as a whole.
SLOTS: Final = 10
MOST_FAILURES, LONGEST_S = 1_000_000, 31_536_000.0
#: While a probe runs, refused callers ask again after a tenth of the cooldown, within these bounds.
LOOK_S, LOOK_MOST_S = 1.0, 30.0


class BreakerRules(Value):
    """When a breaker opens, and for how long.

    failures    consecutive failures that open it, if `rate` is not set
    cooldown_s  seconds that it stays open, and the longest duration of a probe
    counts      "operations": each counts once, at its first failed call; or all failed "attempts"
    rate        fraction of failed calls that opens it, over `window_s`, from `minimum_calls` calls on
    """

    failures: int = 3
    cooldown_s: float = 300.0
    counts: str = "operations"
    rate: float | None = None
    window_s: float = 60.0
    minimum_calls: int = 10


def check_rules(rules: BreakerRules) -> BreakerRules:
    """Return the rules; raise `PolicyError` naming the first value out of range."""
    _check_whole("failures", rules.failures, 1, MOST_FAILURES)
    _check_whole("minimum_calls", rules.minimum_calls, 1, MOST_FAILURES)
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


class BreakerRefusal(Value):
    """A refused call: the earliest time to ask again, and whether a running probe is the reason."""

    until: float
    probing: bool = False


#: Admission of a call: as usual, or as the probe.
PASS, PROBE = "pass", "probe"


def decide_admission(circuit: BreakerRecord, now: float, *, held: bool = True) -> str | BreakerRefusal:
    """Return the admission of a call: PASS, PROBE or a `BreakerRefusal`.

    held  whether the holder of the probe is alive, as far as the store knows
    """
    if circuit.state == "CLOSED":
        return PASS
    left = _time_left(circuit, now)
    if left <= 0 or (circuit.state == "HALF_OPEN" and not held):
        return PROBE
    if circuit.state == "OPEN":
        return BreakerRefusal(now + left)
    # A probe usually ends long before its lease, so callers need not wait for all of that.
    recheck_s = min(max(LOOK_S, circuit.cooldown_s / 10), LOOK_MOST_S)
    return BreakerRefusal(now + min(left, recheck_s), probing=True)


def _time_left(circuit: BreakerRecord, now: float) -> float:
    """Return the seconds left of a cooldown or a probe."""
    # A clock that was set back must not prolong either.
    return min(circuit.open_until - now, circuit.cooldown_s)


def is_open(circuit: BreakerRecord | None) -> bool:
    """Whether records written now say `circuit_open` (BREAK-6): only a probe could be admitted."""
    return circuit is not None and circuit.state != "CLOSED"


def is_clean(circuit: BreakerRecord | None) -> bool:
    """Whether a successful call would leave the record unchanged."""
    return circuit is None or (
        circuit.state == "CLOSED" and not circuit.failures and not circuit.failure_rate
    )


def counts_as_failure(
    rules: BreakerRules, failure: Failure, verdict: Verdict, action: Action, already: bool, probe: bool
) -> bool:
    """Whether a failed call counts against its provider (BREAK-7).

    already  whether its operation has counted before
    probe    whether it was the probe: every transient failure of a probe counts
    """
    if verdict not in ("RETRYABLE", "UNKNOWN") or failure.kind not in ("transient", "throttled"):
        # The provider works: it refused this request, or its state had changed.
        return False
    if probe:
        return True
    if failure.kind == "throttled" and action == "retry":
        # The concurrency limit reacts to throttling; the breaker counts it once the retries are used up.
        return False
    return rules.counts == "attempts" or not already


def apply_event(
    rules: BreakerRules, circuit: BreakerRecord, event: Event, now: float, **changes: Any
) -> BreakerRecord:
    """Return the record after an event of the table, with the rules in force."""
    # The rules are stored with the state because `reset_breaker` has no other source for them.
    state = MOVES[circuit.state, event]
    since = now if state != circuit.state else circuit.changed_at
    return circuit._replace(
        state=state, changed_at=since, failure_limit=rules.failures, failure_rate=rules.rate or 0.0,
        cooldown_s=float(rules.cooldown_s), counted_unit=rules.counts, **changes,
    )  # fmt: skip


class ProbeHolder(Value):
    """The holder of a probe: the worker, its entity and fence, and the longest duration."""

    worker: str = ""
    entity: str = ""
    fence: int = 0
    lease_s: float = 60.0


def take_probe(rules: BreakerRules, circuit: BreakerRecord, now: float, by: ProbeHolder) -> BreakerRecord:
    """Return the record after a caller has taken the probe."""
    return apply_event(
        rules, circuit, "asked", now, open_until=now + by.lease_s, probe_number=circuit.probe_number + 1,
        probe_worker=by.worker, probe_entity=by.entity, probe_fence=by.fence,
    )  # fmt: skip


def after_success(
    rules: BreakerRules, circuit: BreakerRecord, now: float, turn: int = 0, calls: int = 1
) -> BreakerRecord:
    """Return the record after a successful call; `turn` is the number of its probe, if it has one.

    calls  successful calls since the last write, for a failure rate
    """
    if circuit.state == "HALF_OPEN" and turn == circuit.probe_number:
        return apply_event(
            rules,
            circuit,
            "passed",
            now,
            failures=0,
            open_until=0.0,
            probe_worker="",
            probe_entity="",
            probe_fence=0,
            windows={},
        )
    if circuit.state != "CLOSED":
        return circuit
    if rules.rate is not None:
        return apply_event(
            rules,
            circuit,
            "passed",
            now,
            failures=0,
            windows=_update_window(rules, circuit.windows, now, calls, 0),
        )
    return apply_event(rules, circuit, "passed", now, failures=0) if circuit.failures else circuit


def after_failure(
    rules: BreakerRules, circuit: BreakerRecord, now: float, turn: int = 0, code: str = "", calls: int = 0
) -> BreakerRecord:
    """Return the record after a failure that counts; `turn` is the number of its probe, if it has one.

    calls  successful calls since the last write, for a failure rate
    """
    if circuit.state == "HALF_OPEN" and turn == circuit.probe_number:
        return _open_breaker(rules, circuit, "failed", now, code)
    if circuit.state != "CLOSED":
        # Admitted before the breaker opened, or a probe taken over by another worker: too late to count.
        return circuit
    if rules.rate is not None:
        slots = _update_window(rules, circuit.windows, now, calls + 1, 1)
        # A slot is [calls, failures].
        all_calls, all_failed = (sum(slot[column] for slot in slots.values()) for column in (0, 1))
        counted = circuit._replace(failures=circuit.failures + 1, windows=slots)
        tripped = all_calls >= rules.minimum_calls and all_failed >= rules.rate * all_calls
    else:
        counted = circuit._replace(failures=circuit.failures + 1)
        tripped = counted.failures >= rules.failures
    if tripped:
        return _open_breaker(rules, counted, "tripped", now, code)
    return apply_event(rules, counted, "failed", now, last_error_code=code, last_failure_at=now)


def _open_breaker(
    rules: BreakerRules, circuit: BreakerRecord, event: Event, now: float, code: str
) -> BreakerRecord:
    return apply_event(
        rules, circuit, event, now, opened_at=now, open_until=now + rules.cooldown_s,
        open_count=circuit.open_count + 1, probe_worker="", probe_entity="", probe_fence=0, windows={},
        last_error_code=code, last_failure_at=now,
    )  # fmt: skip


def after_probe_release(rules: BreakerRules, circuit: BreakerRecord, now: float, turn: int) -> BreakerRecord:
    """Return the record after a probe without a result: the next caller may take it."""
    if circuit.state != "HALF_OPEN" or turn != circuit.probe_number:
        return circuit
    return apply_event(
        rules, circuit, "released", now, open_until=now, probe_worker="", probe_entity="", probe_fence=0
    )


def after_reset(rules: BreakerRules, circuit: BreakerRecord, now: float) -> BreakerRecord:
    """Return the record after an operator closed the breaker."""
    # The new probe number makes a running probe's report come too late.
    return apply_event(
        rules,
        circuit,
        "reset",
        now,
        failures=0,
        open_until=0.0,
        probe_worker="",
        probe_entity="",
        probe_fence=0,
        windows={},
        probe_number=circuit.probe_number + 1,
    )


def _update_window(
    rules: BreakerRules, slots: dict[str, list[int]], now: float, calls: int, failures: int
) -> dict[str, list[int]]:
    """Return the slots of the window with new calls and failures, without expired slots."""
    number = int(now * SLOTS / rules.window_s)
    # Slots after the current one exist only if the clock was set back: they are dropped as well.
    recent = {name: slot for name, slot in slots.items() if number - SLOTS < int(name) <= number}
    old_calls, old_failures = recent.get(str(number), [0, 0])
    return {**recent, str(number): [old_calls + calls, old_failures + failures]}
