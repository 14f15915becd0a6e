"""RETRY: the attempt loop without a store, as a script that any driver can run.

The script is a generator. It yields what it wants done and is sent what happened:

    Invoke(number, limit_s, ...)   call the work          ← (value, error), one of them None
    Wait(seconds)                  let time pass          ← None
    Tell(hear, what)               call a user's hook     ← what the hook returned
    Put(send)                      store something        ← the store's answer (`limits.breaker`)
    Outcome(value, error)          the end: return the one or raise the other

Order lives here, waiting lives in the drivers (`retries.driver`): a blocking one, an awaiting one, and
the one behind `for attempt in oncemore.attempts()`. A call that succeeds at once never comes here,
unless it has a witness, who is told of every failure and of every end.
"""

from __future__ import annotations

import sys
import time
from contextvars import ContextVar
from os import urandom

from oncemore import clock as clocks
from oncemore._time_spans import seconds
from oncemore._values import Record, Value, make
from oncemore.errors import DeadlineExceeded, RetriesExhausted
from oncemore.policy.decide import Decision, Situation, decide
from oncemore.policy.model import Failure
from oncemore.policy.proof import sentence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, Protocol

    from oncemore.clock import Clock
    from oncemore.errors import CircuitOpen
    from oncemore.limits.breaker import Gate, Passage
    from oncemore.limits.budget import Budget
    from oncemore.limits.shared_rate import Meter
    from oncemore.policy.policy import Policy

    class Witness(Protocol):
        """Hears what happens in a call; must not raise, whatever it does with it."""

        def failed(self, report: Report) -> None:
            """Hear of a failed attempt and what was decided: an attempt follows, or none."""

        def ended(self, number: int, now: float, error: BaseException | None) -> None:
            """Hear that attempt `number` came good, or that an error from outside ended the call."""


NOT_MET = Failure("transient", "maybe", None, "UNTIL_NOT_MET", "until:false")
NO_FALLBACK: Any = object()
MOST_NOTES = 8
MOST_CAUSES = 32

#: When the attempt under way must be over, on the monotonic clock; inner calls inherit it.
ENDS: ContextVar[float | None] = ContextVar("oncemore.ends", default=None)


class Plan(Record):
    """What a decorated function was told, checked and made ready.

    covers    whether an error may be tried again
    deadline  POSIX seconds after which nothing is begun
    cuts      whether an attempt can be cut off at the deadline
    heard     whether anybody but the log wants to hear of a failure
    light     whether a success needs nothing but to be returned
    witness   who is told of every failure and every end, if anybody
    breaker   what has to let an attempt through, if anything
    rate      what gives each attempt its moment, if anything
    """

    __slots__ = (
        "breaker", "budget", "classify", "covers", "cuts", "deadline", "fallback", "heard", "light", "name",
        "on_give_up", "on_retry", "policy", "rate", "seed", "until", "witness",
    )  # fmt: skip
    breaker: Gate | None
    budget: Budget | None
    classify: Callable[[BaseException, float], Failure]
    covers: Callable[[Exception, Failure], bool]
    cuts: bool
    deadline: float | None
    fallback: Any
    heard: bool
    light: bool
    name: str
    on_give_up: Callable[[Report], object] | None
    on_retry: Callable[[Report], object] | None
    policy: Policy
    rate: Meter | None
    seed: str | None
    until: Callable[[Any], object] | None
    witness: Witness | None

    def __init__(
        self,
        name: str,
        policy: Policy,
        covers: Callable[[Exception, Failure], bool],
        classify: Callable[[BaseException, float], Failure],
        *,
        until: Callable[[Any], object] | None = None,
        deadline: float | None = None,
        budget: Budget | None = None,
        seed: str | None = None,
        fallback: Any = NO_FALLBACK,
        on_retry: Callable[[Report], object] | None = None,
        on_give_up: Callable[[Report], object] | None = None,
        cuts: bool = False,
        witness: Witness | None = None,
        breaker: Gate | None = None,
        rate: Meter | None = None,
    ) -> None:
        limits = (policy.timeout_s, policy.within_s, deadline, until, budget, witness, rate)
        light = all(limit is None for limit in limits)
        heard = on_retry is not None or witness is not None
        self.fill(
            breaker, budget, classify, covers, cuts, deadline, fallback, heard, light, name, on_give_up,
            on_retry, policy, rate, seed, until, witness,
        )  # fmt: skip


class Report(Value):
    """What a hook is told about one failed attempt, and what was decided."""

    name: str
    number: int
    attempts: int
    error: Exception | None
    value: object
    decision: Decision
    waited_s: float

    @property
    def delay_s(self) -> float:
        """Seconds until the next attempt."""
        return self.decision.delay_s

    def explain(self) -> str:
        """Return a paragraph that says what was decided, and why."""
        return self.decision.explain()


class Outcome(Value):
    """How an attempt ended: with a value, or with an error."""

    value: Any
    error: Exception | None


class Invoke(Value):
    """Call the work; cut it off after `limit_s`, where there is one.

    `whole` says that the limit is the rest of the whole call's time, `ends` when inner calls must be over.
    """

    number: int
    limit_s: float | None = None
    whole: bool = False
    ends: float | None = None


class Wait(Value):
    """Let time pass."""

    seconds: float


class Tell(Value):
    """Call a user's hook, and await it where that is possible."""

    hear: Callable[[Any], Any]
    what: object


class Put(Value):
    """Store something: `send()` returns a ticket to wait for; the answer is what that says."""

    send: Callable[[], Any]


#: The usual operation, made once: call the work, nothing limits it.
FREE = tuple(Invoke(number) for number in range(16))

if TYPE_CHECKING:
    Op = Invoke | Wait | Tell | Put | Outcome
    Flow = Generator[Op, Any, None]


def again(plan: Plan) -> Flow:
    """Return the script of a call that is to begin."""
    return _started(plan) if plan.witness is None else watched(plan, plan.witness)


def _started(plan: Plan) -> Flow:
    return loop(plan) if plan.breaker is None else gated(plan, plan.breaker)


def gated(plan: Plan, gate: Gate, outcome: tuple[Any, Exception | None] | None = None) -> Flow:
    """Run the script behind a breaker; whatever ends it, a probe that it has is not left behind."""
    passage = gate.passage(plan.policy.timeout_s)
    try:
        yield from loop(plan, outcome, passage)
    finally:
        passage.leave()


def watched(plan: Plan, witness: Witness) -> Flow:
    """Run the script, and tell the witness of an end that came from outside.

    That is what a driver throws in (a cancellation, an interrupt, an error in a hook), or a script that
    is left before its last word.
    """
    flow, number = _started(plan), 1
    try:
        op = next(flow)
        while type(op) is not Outcome:
            if type(op) is Invoke:
                number = op.number
            op = flow.send((yield op))
    except BaseException as error:
        witness.ended(number, clocks.current.wall(), error)
        raise
    yield op


def loop(
    plan: Plan, outcome: tuple[Any, Exception | None] | None = None, passage: Passage | None = None
) -> Flow:
    """Run attempts until one is good or the decision says stop.

    `passage` is the call's way through a breaker, which is asked before each attempt. `outcome` is that of
    the first attempt when the caller has made it already. `now` is the wall clock as it stood at the
    beginning, moved on by the monotonic one, so that it cannot jump in between.
    """
    clock = clocks.current
    policy = plan.policy if clock.most_attempts is None else _fewer(plan.policy, clock.most_attempts)
    start, wall = clock.monotonic(), clock.wall()
    ends = _ends(plan, start, wall)
    deadline = None if ends is None else wall + (ends - start)
    free = ends is None and policy.timeout_s is None
    budget, seed, number, waited = plan.budget, plan.seed, 1, 0.0
    if outcome is None:
        late = ends is not None and ends <= start
        if not late and (passage is not None or plan.rate is not None):
            shut = yield from _ready(plan, passage, ends)
            if shut is not None:
                yield from _shut(plan, shut, 0, wall)
                return
        outcome = _late(plan) if late else (yield _invoke(plan, policy, 1, ends, clock.monotonic()))
    while True:
        value, error = outcome
        if passage is not None and error is None:
            yield from passage.passed()
        if error is None and (plan.until is None or plan.until(value)):
            if budget is not None:
                yield from budget.earning()
            if plan.witness is not None:
                plan.witness.ended(number, wall + (clock.monotonic() - start), None)
            yield make(Outcome, outcome)
            return
        now = wall + (clock.monotonic() - start)
        failure = NOT_MET if error is None else plan.classify(error, now)
        covered = error is None or plan.covers(error, failure) or _own_end(error, ends, clock)
        if seed is None:
            seed = urandom(16).hex() if policy.jitter.spread != "none" else ""
        tokens = None if budget is None or budget.at_empty != "fail" else budget.tokens
        verdict = "RETRYABLE" if covered else "TERMINAL"
        known = (number, failure, verdict, now, seed, wall, deadline, None, tokens, None, "", None)
        decision = decide(policy, make(Situation, known))
        if passage is not None and error is not None:
            decision = yield from passage.decided(decision)
        if budget is not None and decision.action == "retry":
            decision = yield from _paid(budget, decision, ends)
        if decision.action != "retry":
            yield from _give_up(plan, _report(plan, error, value, decision, waited), covered)
            return
        if plan.heard or logged():
            yield from _announce(plan, _report(plan, error, value, decision, waited))
        delay = decision.delay_s
        # What is done with is let go of: a traceback holds every frame of the failed attempt alive.
        del outcome, value, error, failure, known, decision
        if delay > 0.0:
            waited += delay
            yield Wait(delay)
        number += 1
        if passage is not None or plan.rate is not None:
            shut = yield from _ready(plan, passage, ends)
            if shut is not None:
                yield from _shut(plan, shut, number - 1, wall + (clock.monotonic() - start))
                return
        if free:
            outcome = yield FREE[number] if number < len(FREE) else Invoke(number)
        else:
            outcome = yield _invoke(plan, policy, number, ends, clock.monotonic())


def _fewer(policy: Policy, most: int) -> Policy:
    return policy if most >= policy.max_attempts else policy.but(max_attempts=most)


def _ends(plan: Plan, start: float, wall: float) -> float | None:
    """Return the earliest of all limits of the whole call, on the monotonic clock."""
    ends = ENDS.get()
    if plan.policy.within_s is not None:
        ends = _earlier(ends, start + plan.policy.within_s)
    if plan.deadline is not None:
        ends = _earlier(ends, start + (plan.deadline - wall))
    return ends


def _earlier(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)


def _own_end(error: Exception, ends: float | None, clock: Clock) -> bool:
    """Whether the call's own time is up: that ends it like any other failure, with note and fallback."""
    return ends is not None and type(error) is DeadlineExceeded and clock.monotonic() >= ends


def _late(plan: Plan) -> tuple[None, Exception]:
    return None, DeadlineExceeded(f"{plan.name}: the time for the whole call was up before it began")


def _invoke(plan: Plan, policy: Policy, number: int, ends: float | None, now: float) -> Invoke:
    """Ask for an attempt, with the smaller of its own limit and what is left of the whole."""
    limit, whole = policy.timeout_s, False
    if ends is not None and plan.cuts and (limit is None or ends - now < limit):
        limit, whole = ends - now, True
    if limit is not None:
        ends = _earlier(ends, now + limit)
    return Invoke(number, limit, whole, ends)


def _report(plan: Plan, error: Exception | None, value: object, decision: Decision, waited: float) -> Report:
    most, number = decision.policy.max_attempts, decision.situation.attempt
    return Report(plan.name, number, most, error, value, decision, waited)


def _announce(plan: Plan, report: Report) -> Generator[Op, object, None]:
    """Say that an attempt follows: in the log, to the witness, and to the user's hook."""
    log(report)
    if plan.witness is not None:
        plan.witness.failed(report)
    if plan.on_retry is not None:
        yield Tell(plan.on_retry, report)


#: How often a call waits for a token at most, and what it waits for then.
MOST_WAITS = 100
EMPTY = "retry_budget_empty"


def _paid(budget: Budget, decision: Decision, ends: float | None) -> Generator[Op, Any, Decision]:
    """Take the tokens that a retry costs; if there are too few, decide again by what the budget says then."""
    policy, at = decision.policy, decision.situation
    pause = policy.max_delay_s or 1.0
    for _ in range(MOST_WAITS):
        short = yield from budget.paying(policy.retry_cost)
        if short is None:
            return decision
        late = ends is not None and clocks.current.monotonic() + pause >= ends
        if budget.at_empty != "wait" or late:
            break
        yield Wait(pause)
    if budget.at_empty == "park":
        hold = at._replace(hold_until=at.now + pause, held_for=EMPTY)
        return decide(policy, hold)
    return decide(policy, at._replace(tokens=short))


def _give_up(plan: Plan, report: Report, covered: bool) -> Flow:
    """End the call with its failure: told, logged, noted on the error; or with the fallback."""
    if covered or report.number > 1:
        log(report)
    if plan.witness is not None:
        plan.witness.failed(report)
    if plan.on_give_up is not None:
        yield Tell(plan.on_give_up, report)
    error = report.error or RetriesExhausted(f"{plan.name}: {sentence(report.decision)}", report.value)
    if covered and plan.fallback is not NO_FALLBACK:
        value = plan.fallback
        if callable(value):
            value = yield Tell(value, error)
        yield Outcome(value, None)
        return
    if covered or report.number > 1:
        annotate(error, report)
    mark(error, report.decision)
    yield Outcome(None, error)


def _ready(
    plan: Plan, passage: Passage | None, ends: float | None
) -> Generator[Op, Any, CircuitOpen | DeadlineExceeded | None]:
    """Wait for an attempt's moment, and ask its breaker; return None, or why there is none.

    The breaker is asked first: who is not let through waits for nothing. And again after a wait.
    """
    if passage is not None and (shut := (yield from passage.admit())) is not None:
        return shut
    wait = 0.0 if plan.rate is None else (yield from plan.rate.wait())
    if wait <= 0.0:
        return None
    if ends is not None and clocks.current.monotonic() + wait >= ends:
        return DeadlineExceeded(f"{plan.name}: its rate has no room before the whole call's time is up")
    yield Wait(wait)
    return None if passage is None or passage.turn else (yield from passage.admit())


def _shut(plan: Plan, error: CircuitOpen | DeadlineExceeded, made: int, now: float) -> Flow:
    """End a call that is not let through, after as many attempts as were made."""
    if plan.witness is not None:
        plan.witness.ended(made, now, error)
    if plan.fallback is NO_FALLBACK:
        yield Outcome(None, error)
        return
    value = plan.fallback
    if callable(value):
        value = yield Tell(value, error)
    yield Outcome(value, None)


def mark(error: BaseException, decision: Decision) -> None:
    """Leave the decision on the error; past `__setattr__`, which a frozen exception refuses."""
    error.__dict__["__oncemore__"] = decision


def decision(error: BaseException) -> Decision | None:
    """Return the last decision about an error that `retry` let through, or None.

    Looks through the errors it was raised from, so that a wrapped one is found too.
    """
    seen: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if seen is None:
            break
        found = seen.__dict__.get("__oncemore__")
        if found is not None:
            return found  # type: ignore[no-any-return]
        seen = seen.__cause__ or seen.__context__
    return None


def annotate(error: BaseException, report: Report) -> None:
    """Add a note that a traceback shows: what was tried, why it ended, when to come back."""
    text = f"oncemore: {report.name}: {sentence(report.decision)}"
    if report.waited_s:
        text += f" Waited {seconds(report.waited_s)} in all."
    if report.decision.not_before is not None and report.decision.reason != "wait_beyond_deadline":
        text += f" Worth trying again from {utc(report.decision.not_before)}."
    notes = error.__dict__.setdefault("__notes__", [])
    if len(notes) < MOST_NOTES:
        notes.append(text)


def utc(posix: float) -> str:
    """Return a time as people write it, in UTC; one that no calendar holds is left a number."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(posix))
    except (OverflowError, ValueError, OSError):
        return f"{posix:g}"


_logger: Any = None


def logged() -> bool:
    """Whether the program would see a log line of ours.

    One that never imported `logging`, or gave it no handler, pays and sees nothing.
    """
    global _logger
    if _logger is None:
        logging = sys.modules.get("logging")
        if logging is None:
            return False
        _logger = logging.getLogger("oncemore.retry")
    if not (_logger.handlers or _logger.parent.handlers or _logger.root.handlers):
        return False  # the usual case, at half the cost of asking in full
    return _logger.hasHandlers() and _logger.isEnabledFor(_WARNING)  # type: ignore[no-any-return]


_WARNING = 30  # logging.WARNING, without importing it


def log(report: Report) -> None:
    """Write one line to the logger `oncemore.retry`.

    The text of an exception may hold secrets (a URL, a token), so the line has its class only.
    """
    if logged():
        _logger.warning("%s: %s", report.name, sentence(report.decision), extra=extras(report))


def extras(report: Report) -> dict[str, object]:
    """Return the fields of a log record, each with our prefix."""
    at = report.decision.situation
    return {
        "oncemore_name": report.name,
        "oncemore_attempt": report.number,
        "oncemore_max_attempts": report.attempts,
        "oncemore_action": report.decision.action,
        "oncemore_reason": report.decision.reason,
        "oncemore_delay_s": report.decision.delay_s,
        "oncemore_waited_s": report.waited_s,
        "oncemore_error_class": at.failure.code,
        "oncemore_kind": at.failure.kind,
        "oncemore_rule": at.failure.rule,
        "oncemore_exception": "" if report.error is None else type(report.error).__qualname__,
        "oncemore_policy": report.decision.policy.name,
        "oncemore_policy_version": report.decision.policy.version,
    }
