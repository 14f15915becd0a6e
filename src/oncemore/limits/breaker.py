"""Circuit breakers at run time: the storage of a breaker's state and the calls that pass it.

The state is in memory, or in a store shared by several processes (`limits.shared_breaker`). A call asks for
admission before each attempt and reports the result. Both are generators that yield an `AppendRecord` for
each write; the driver blocks or awaits until the write is stored. In memory they yield nothing.

A closed breaker without recorded failures is `clean`: `retry` then calls the function directly.
"""

from __future__ import annotations

from _thread import allocate_lock

from oncemore import _listeners
from oncemore import clock as clocks
from oncemore._driver import OperationTable, run_script, run_script_async
from oncemore.errors import CircuitOpen, UsageError
from oncemore.limits import breaker_rules as core
from oncemore.limits.breaker_rules import PROBE, BreakerRefusal, BreakerRules, ProbeHolder, check_rules
from oncemore.log.record import BreakerRecord
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.decide import decide_retry
from oncemore.retries.loop import AppendRecord
from oncemore.retries.report import format_utc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, Protocol, TypeVar

    from oncemore.events import BreakerChanged
    from oncemore.policy.decide import Decision
    from oncemore.policy.model import Action, Failure, Verdict

    R = TypeVar("R")
    Script = Generator[Any, Any, R]
    #: Maps the state, the time and whether the probe is still held to the next state and a result.
    Turn = Callable[[BreakerRecord, float, bool], tuple[BreakerRecord, R]]

    class BreakerStorage(Protocol):
        """Storage of the state of one breaker."""

        clean: bool

        def update_state(self, turn: Turn[R]) -> Script[R]:
            """Apply `turn` to the state, store the new state and return the result of `turn`."""

        def load_state(self) -> BreakerRecord:
            """Return the current state."""

        def probe_holder(self, lease_s: float) -> ProbeHolder:
            """Return the holder to record for a probe of this process."""

        def release_probe(self, turn: int) -> None:
            """Stop counting a probe as running in this process."""


#: Minimum lease of a probe, in seconds, if the attempt has no time limit.
PROBE_S = 60.0
LONGEST_NAME = 200


class LocalBreakerState:
    """State of a breaker in the memory of this process."""

    __slots__ = ("_lock", "circuit", "clean")

    def __init__(self, name: str) -> None:
        self.circuit = BreakerRecord(name=name)
        self.clean = True
        self._lock = allocate_lock()

    def load_state(self) -> BreakerRecord:
        """Return the current state."""
        return self.circuit

    def probe_holder(self, lease_s: float) -> ProbeHolder:
        """Return an anonymous holder: only this process can take the probe."""
        return ProbeHolder(lease_s=lease_s)

    def release_probe(self, turn: int) -> None:
        """Do nothing: a probe in memory ends with the process."""

    def update_state(self, turn: Turn[R]) -> Script[R]:
        """Apply `turn` under the lock and return its result."""
        with self._lock:
            before = self.circuit
            # The holder of a probe in memory dies with this process, so the probe is always held.
            self.circuit, result = turn(before, clocks.current.wall(), True)
            self.clean = core.is_clean(self.circuit)
            after = self.circuit
        # Logging handlers may call back into the breaker, and the lock is not reentrant.
        log_state_change(before, after)
        if _listeners.listeners and before.state != after.state:
            _listeners.publish_event(build_breaker_event(before, after))
        # The driver expects a generator, as for a state in a store.
        yield from ()
        return result


class BreakerCore:
    """A breaker: its rules and the storage of its state.

    name   the provider that the calls go to
    light  whether a successful call writes nothing while the state is clean
    """

    __slots__ = ("light", "name", "rules", "storage")

    def __init__(self, name: str, rules: BreakerRules, storage: BreakerStorage | None = None) -> None:
        self.name = check_name(name)
        self.rules = check_rules(rules)
        self.storage: BreakerStorage = LocalBreakerState(self.name) if storage is None else storage
        # A failure rate needs the number of successful calls as well, so each of them is recorded.
        self.light = type(self.storage) is LocalBreakerState and rules.rate is None

    def start_call(self, limit_s: float | None = None) -> BreakerCall:
        """Return the `BreakerCall` of one operation; `limit_s` is the time limit of an attempt."""
        return BreakerCall(self, limit_s)


def check_name(name: object) -> str:
    """Return the normalised name of a provider; raise `UsageError` if it is not a valid name."""
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
        raise UsageError(
            f"the name of a breaker is {name!r}; it takes a text of 1 to {LONGEST_NAME} characters"
        )
    return normalize_name(name)


class BreakerCall:
    """One operation at a breaker: it asks before each attempt and reports the result.

    turn     the number of its probe; 0 if the attempt is not a probe
    counted  whether a failure of this operation has been counted
    """

    __slots__ = ("_lease_s", "book", "counted", "gate", "turn")

    def __init__(self, breaker: BreakerCore, limit_s: float | None = None) -> None:
        self.gate, self.book = breaker, breaker.storage
        self.turn, self.counted = 0, False
        # The lease outlasts the time limit, so a probe that ends on time is not taken over.
        self._lease_s = max(breaker.rules.cooldown_s, PROBE_S) if limit_s is None else limit_s + PROBE_S / 10

    def ask_admission(self) -> Script[CircuitOpen | None]:
        """Return None if the breaker admits an attempt, else the `CircuitOpen` error to raise."""
        rules = self.gate.rules

        def turn(
            circuit: BreakerRecord, now: float, held: bool
        ) -> tuple[BreakerRecord, int | BreakerRefusal]:
            admission = core.decide_admission(circuit, now, held=held)
            if admission is PROBE:
                circuit = core.take_probe(rules, circuit, now, self.book.probe_holder(self._lease_s))
                return circuit, circuit.probe_number
            return circuit, admission if type(admission) is BreakerRefusal else 0

        result: int | BreakerRefusal = yield from self.book.update_state(turn)
        if isinstance(result, BreakerRefusal):
            return circuit_open_error(self.gate.name, result)
        self.turn = result
        return None

    def record_success(self) -> Script[None]:
        """Record a successful attempt; write nothing if the state would not change."""
        rules, probe = self.gate.rules, self._take_probe_number()
        if probe or not self.book.clean or (rules.rate is not None and not self.counted):
            yield from self.book.update_state(
                lambda circuit, now, held: (core.after_success(rules, circuit, now, probe), None)
            )

    def record_failure(self, failure: Failure, verdict: Verdict, action: Action) -> Script[float | None]:
        """Record a failed attempt and the action that follows it.

        Return the seconds until the breaker may admit a call; None if it admits one now.
        """
        rules, probe = self.gate.rules, self._take_probe_number()
        counts = core.counts_as_failure(rules, failure, verdict, action, self.counted, probe > 0)
        self.counted = self.counted or counts
        code = failure.code or failure.kind.upper()

        def turn(circuit: BreakerRecord, now: float, held: bool) -> tuple[BreakerRecord, float | None]:
            if counts:
                circuit = core.after_failure(rules, circuit, now, probe, code)
            elif probe:
                # The failure is not evidence about the provider, so the next caller may probe at once.
                circuit = core.after_probe_release(rules, circuit, now, probe)
            until = open_until(circuit, now, held)
            return circuit, None if until is None else until - now

        return (yield from self.book.update_state(turn))

    def adjust_decision(self, decision: Decision) -> Script[Decision]:
        """Record the failure behind a decision; decide again if the breaker is open now."""
        situation = decision.situation
        left = yield from self.record_failure(situation.failure, situation.verdict, decision.action)
        if left is None or decision.action != "retry":
            return decision
        # The retry must not start before the cooldown ends, so the policy decides with that hold.
        held = situation._replace(hold_until=situation.now + left, hold_reason=CIRCUIT_OPEN)
        return decide_retry(decision.policy, held)

    def finish_call(self) -> None:
        """Give back a probe that was interrupted before it had a result."""
        if self.turn:
            rules, probe = self.gate.rules, self._take_probe_number()
            run_limit_script(
                self.book.update_state(
                    lambda circuit, now, held: (core.after_probe_release(rules, circuit, now, probe), None)
                )
            )

    def _take_probe_number(self) -> int:
        """Stop holding the probe and return its number; 0 if this call has none."""
        probe, self.turn = self.turn, 0
        if probe:
            self.book.release_probe(probe)
        return probe


#: Reason code of a run that waits because the breaker of its provider is open.
CIRCUIT_OPEN = "circuit_open"


def open_until(circuit: BreakerRecord, now: float, held: bool = True) -> float | None:
    """Return the time until which the breaker admits no call; None if it admits one now."""
    admission = core.decide_admission(circuit, now, held=held)
    return admission.until if type(admission) is BreakerRefusal else None


def circuit_open_error(name: str, refusal: BreakerRefusal) -> CircuitOpen:
    """Return the error of a call that the breaker refused."""
    reason = "a probe is in progress" if refusal.probing else "its breaker is open"
    return CircuitOpen(
        f"{name} is not called before {format_utc(refusal.until)}: {reason}; nothing was sent",
        name,
        refusal.until,
    )


def run_limit_script(script: Script[R]) -> R:
    """Run a script to its end, blocking on each write; return its result."""
    return run_script(script, LIMIT_OPERATIONS)


async def run_limit_script_async(script: Script[R]) -> R:
    """Run a script to its end, awaiting each write; return its result."""
    return await run_script_async(script, LIMIT_OPERATIONS)


#: The scripts of limits only write; without the store they go on in memory.
LIMIT_OPERATIONS = OperationTable(
    {AppendRecord: lambda _, op: op.send().wait()}, {AppendRecord: lambda _, op: op.send()}
)


def build_breaker_event(before: BreakerRecord, after: BreakerRecord) -> BreakerChanged:
    """Return the event of a breaker that has another state."""
    # Imported here to keep `import oncemore` light.
    from oncemore.events import BreakerChanged

    change = CHANGES[before.state, after.state]
    # A released probe leads from HALF_OPEN to OPEN too; only a failed one starts a new cooldown.
    if change == PROBE_FAILED and after.opened_at != after.changed_at:
        change = PROBE_RELEASED
    until = after.open_until if after.state != "CLOSED" else 0.0
    counts = (after.failures, after.open_count, after.last_error_code)
    return BreakerChanged(after.name, change, before.state, after.state, *counts, until)


PROBE_FAILED, PROBE_RELEASED = "circuit_probe_failed", "circuit_probe_released"
#: The name of a change, by the state before and after.
CHANGES = {
    ("CLOSED", "OPEN"): "circuit_opened",
    ("OPEN", "HALF_OPEN"): "circuit_half_open",
    ("HALF_OPEN", "HALF_OPEN"): "circuit_half_open",
    ("HALF_OPEN", "CLOSED"): "circuit_closed",
    ("HALF_OPEN", "OPEN"): PROBE_FAILED,
    ("OPEN", "CLOSED"): "circuit_closed",
}


def log_state_change(before: BreakerRecord, after: BreakerRecord) -> None:
    """Log a warning when a breaker opens or closes, to explain slow or refused calls."""
    if after.state == "OPEN" and after.open_count > before.open_count:
        text = f"open for {after.cooldown_s:g} s: {after.last_error_code}"
    elif after.state == "CLOSED" and before.state != "CLOSED":
        text = "closed again"
    else:
        return
    # Imported here to keep `import oncemore` light.
    import logging

    logging.getLogger("oncemore.breaker").warning("oncemore: breaker %s is %s", after.name, text)


# In memory, by name --------------------------------------------------------------------------------

_named: dict[str, LocalBreakerState] = {}
MOST_NAMED = 10_000


def local_breaker_state(name: str) -> LocalBreakerState:
    """Return the state of a provider in this process: one object per name."""
    name = check_name(name)
    state = _named.get(name)
    if state is None:
        # States are never removed, so a name made from call arguments would exhaust the memory.
        if len(_named) >= MOST_NAMED:
            raise UsageError(
                f"there are {MOST_NAMED:,} breakers in this process; is a breaker named by call?"
            )
        # Two threads may get here together: setdefault lets one object win.
        state = _named.setdefault(name, LocalBreakerState(name))
    return state
