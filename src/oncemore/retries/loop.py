"""The attempt loop without a store, as a script that any driver can run.

The script is a generator. It yields operations and receives their results:

    CallFunction(number, limit_s, …)  call the function      ← (value, error), one of them None
    WaitSeconds(seconds)              wait                   ← None
    CallHook(hear, what)              call a user's hook     ← the result of the hook
    AppendRecord(send)                store a record         ← the reply of the store (`limits.breaker`)
    CallOutcome(value, error)         the end: return the value or raise the error

The script decides, the drivers (`retries.driver`) wait: one blocks, one awaits, and one runs
`for attempt in oncemore.attempts()`. A call that succeeds at once does not use the script, unless it has an
observer (`CallObserver`) for every failure and every end.
"""

from __future__ import annotations

from contextvars import ContextVar
from os import urandom

from oncemore import _listeners
from oncemore import clock as clocks
from oncemore._values import Value, make
from oncemore.errors import DeadlineExceeded, RetriesExhausted
from oncemore.policy.decide import Decision, Situation, decide_retry
from oncemore.policy.explain import decision_sentence
from oncemore.policy.model import Failure
from oncemore.retries.plan import NO_FALLBACK
from oncemore.retries.report import (
    RetryReport,
    add_error_note,
    attach_decision,
    is_logged,
    log_report,
    publish_report,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from oncemore.clock import Clock
    from oncemore.errors import CircuitOpen
    from oncemore.limits.breaker import BreakerCall, BreakerCore
    from oncemore.limits.budget import TokenBucket
    from oncemore.policy.policy import Policy
    from oncemore.retries.plan import CallObserver, RetryPlan

NOT_MET = Failure("transient", "maybe", None, "UNTIL_NOT_MET", "until:false")

#: Deadline of the current attempt, on the monotonic clock; inner calls inherit it.
ENDS: ContextVar[float | None] = ContextVar("oncemore.ends", default=None)


class CallOutcome(Value):
    """The end of a call: its value or its error."""

    value: Any
    error: Exception | None


class CallFunction(Value):
    """Call the function; interrupt it after `limit_s` seconds, if that is set.

    whole  whether the limit is the rest of the time of the whole call
    ends   deadline of inner calls, on the monotonic clock
    """

    number: int
    limit_s: float | None = None
    whole: bool = False
    ends: float | None = None


class WaitSeconds(Value):
    """Wait."""

    seconds: float


class CallHook(Value):
    """Call a user's hook, and await its result in an async driver."""

    hear: Callable[[Any], Any]
    what: object


class AppendRecord(Value):
    """Store a record: `send()` returns a ticket that the driver waits for; its result is the reply."""

    send: Callable[[], Any]


#: The usual operations, built once: attempts without a time limit.
FREE = tuple(CallFunction(number) for number in range(16))

if TYPE_CHECKING:
    #: The value or the error of an attempt; one of them is None.
    AttemptResult = tuple[Any, Exception | None]
    Op = CallFunction | WaitSeconds | CallHook | AppendRecord | CallOutcome
    Flow = Generator[Op, Any, None]


def make_script(plan: RetryPlan) -> Flow:
    """Return the script of a new call."""
    return _with_breaker(plan) if plan.witness is None else run_with_observer(plan, plan.witness)


def _with_breaker(plan: RetryPlan) -> Flow:
    return run_attempts(plan) if plan.breaker is None else run_with_breaker(plan, plan.breaker)


def run_with_breaker(plan: RetryPlan, breaker: BreakerCore, outcome: AttemptResult | None = None) -> Flow:
    """Run the script behind a breaker."""
    breaker_call = breaker.start_call(plan.policy.timeout_s)
    try:
        yield from run_attempts(plan, outcome, breaker_call)
    finally:
        # A cancelled call must give its probe back, or the breaker waits for the end of the lease.
        breaker_call.finish_call()


def run_with_observer(plan: RetryPlan, observer: CallObserver) -> Flow:
    """Run the script, and report an end from outside to the observer.

    That is an error that the driver throws into the script (a cancellation, an interrupt, an error in a
    hook), or a script that is closed before its end.
    """
    flow, number = _with_breaker(plan), 1
    try:
        op = next(flow)
        while type(op) is not CallOutcome:
            if type(op) is CallFunction:
                number = op.number
            op = flow.send((yield op))
    except BaseException as error:
        observer.record_end(number, clocks.current.wall(), error)
        raise
    yield op


def run_attempts(
    plan: RetryPlan, outcome: AttemptResult | None = None, breaker_call: BreakerCall | None = None
) -> Flow:
    """Run attempts until one succeeds or the policy decides to stop.

    outcome       the outcome of the first attempt, if the caller has made it already
    breaker_call  the call at a breaker, which is asked before each attempt
    """
    clock = clocks.current
    policy = plan.policy if clock.max_attempts is None else _limit_attempts(plan.policy, clock.max_attempts)
    # Later times are the wall clock of the start plus monotonic time, so that they cannot jump.
    start, wall = clock.monotonic(), clock.wall()
    ends = _call_deadline(plan, start, wall)
    deadline = None if ends is None else wall + (ends - start)
    free = ends is None and policy.timeout_s is None
    budget, seed, number, waited = plan.budget, plan.seed, 1, 0.0
    if outcome is None:
        late = ends is not None and ends <= start
        if not late and (breaker_call is not None or plan.rate is not None):
            refusal = yield from _wait_for_limits(plan, breaker_call, ends)
            if refusal is not None:
                yield from _end_circuit_open(plan, refusal, 0, wall)
                return
        outcome = (
            _deadline_error(plan) if late else (yield _build_call(plan, policy, 1, ends, clock.monotonic()))
        )
    while True:
        value, error = outcome
        if breaker_call is not None and error is None:
            yield from breaker_call.record_success()
        if error is None and (plan.until is None or plan.until(value)):
            if budget is not None:
                yield from budget._earn_script()  # noqa: SLF001 - for this loop, not for users
            if plan.witness is not None:
                plan.witness.record_end(number, wall + (clock.monotonic() - start), None)
            yield make(CallOutcome, outcome)
            return
        now = wall + (clock.monotonic() - start)
        # A value that `until` refuses is a failure without an exception.
        failure = NOT_MET if error is None else plan.classify(error, now)
        covered = error is None or plan.covers(error, failure) or _is_call_timeout(error, ends, clock)
        if seed is None:
            # Drawn once per call: the decisions of one call can be recomputed from it.
            seed = urandom(16).hex() if policy.jitter.spread != "none" else ""
        tokens = None if budget is None or budget.at_empty != "fail" else budget.tokens
        verdict = "RETRYABLE" if covered else "TERMINAL"
        # Positional, in the order of Situation's fields: `make` skips its constructor in this hot path.
        known = (number, failure, verdict, now, seed, wall, deadline, None, tokens)
        situation = (*known, None, "", None, None, None)
        decision = decide_retry(policy, make(Situation, situation))
        if breaker_call is not None and error is not None:
            decision = yield from breaker_call.adjust_decision(decision)
        if budget is not None and decision.action == "retry":
            decision = yield from _pay_budget(budget, decision, ends)
        if decision.action != "retry":
            yield from _give_up(plan, _build_report(plan, error, value, decision, waited), covered)
            return
        if plan.heard or _listeners.listeners or is_logged():
            yield from _announce_retry(plan, _build_report(plan, error, value, decision, waited))
        delay = decision.delay_s
        # Dropped before the wait: a traceback keeps every frame of the failed attempt alive.
        del outcome, value, error, failure, situation, decision
        if delay > 0.0:
            waited += delay
            yield WaitSeconds(delay)
        number += 1
        if breaker_call is not None or plan.rate is not None:
            refusal = yield from _wait_for_limits(plan, breaker_call, ends)
            if refusal is not None:
                yield from _end_circuit_open(plan, refusal, number - 1, wall + (clock.monotonic() - start))
                return
        if free:
            outcome = yield FREE[number] if number < len(FREE) else CallFunction(number)
        else:
            outcome = yield _build_call(plan, policy, number, ends, clock.monotonic())


def _limit_attempts(policy: Policy, max_attempts: int) -> Policy:
    return policy if max_attempts >= policy.max_attempts else policy.replace(max_attempts=max_attempts)


def _call_deadline(plan: RetryPlan, start: float, wall: float) -> float | None:
    """Return the earliest deadline of the whole call, on the monotonic clock; None if it has none."""
    # An outer attempt with a deadline limits the calls inside it.
    ends = ENDS.get()
    if plan.policy.total_timeout_s is not None:
        ends = _earlier_time(ends, start + plan.policy.total_timeout_s)
    if plan.deadline is not None:
        ends = _earlier_time(ends, start + (plan.deadline - wall))
    return ends


def _earlier_time(first: float | None, second: float) -> float:
    return second if first is None else min(first, second)


def _is_call_timeout(error: Exception, ends: float | None, clock: Clock) -> bool:
    """Whether the call's own deadline has passed.

    That ends the call like any other failure, with a note and the fallback.
    """
    return ends is not None and type(error) is DeadlineExceeded and clock.monotonic() >= ends


def _deadline_error(plan: RetryPlan) -> tuple[None, Exception]:
    return None, DeadlineExceeded(f"{plan.name}: the time for the whole call was up before it began")


def _build_call(plan: RetryPlan, policy: Policy, number: int, ends: float | None, now: float) -> CallFunction:
    """Return the operation of an attempt, with the smaller of its own limit and the rest of the call's."""
    limit, whole = policy.timeout_s, False
    if ends is not None and plan.cuts and (limit is None or ends - now < limit):
        limit, whole = ends - now, True
    if limit is not None:
        ends = _earlier_time(ends, now + limit)
    return CallFunction(number, limit, whole, ends)


def _build_report(
    plan: RetryPlan, error: Exception | None, value: object, decision: Decision, waited: float
) -> RetryReport:
    return RetryReport(
        name=plan.name,
        number=decision.situation.attempt,
        attempts=decision.policy.max_attempts,
        error=error,
        value=value,
        decision=decision,
        waited_s=waited,
    )


def _announce_retry(plan: RetryPlan, report: RetryReport) -> Generator[Op, object, None]:
    """Report a failure with a retry to the log, the listeners, the observer and the user's hook."""
    log_report(report)
    publish_report(report)
    if plan.witness is not None:
        plan.witness.record_failure(report)
    if plan.on_retry is not None:
        yield CallHook(plan.on_retry, report)


#: Largest number of waits for a token, and the reason code of such a wait.
MOST_WAITS = 100
EMPTY = "retry_budget_empty"


def _pay_budget(budget: TokenBucket, decision: Decision, ends: float | None) -> Generator[Op, Any, Decision]:
    """Take the tokens of a retry; if there are too few, decide again as `at_empty` says."""
    policy, situation = decision.policy, decision.situation
    pause = policy.max_delay_s or 1.0
    for _ in range(MOST_WAITS):
        tokens = yield from budget._pay_script(policy.retry_cost)  # noqa: SLF001 - as above
        if tokens is None:
            return decision
        # A wait that ends after the deadline would be in vain.
        is_late = ends is not None and clocks.current.monotonic() + pause >= ends
        if budget.at_empty != "wait" or is_late:
            break
        yield WaitSeconds(pause)
    if budget.at_empty == "park":
        return decide_retry(policy, situation._replace(hold_until=situation.now + pause, hold_reason=EMPTY))
    return decide_retry(policy, situation._replace(budget_tokens=tokens))


def _give_up(plan: RetryPlan, report: RetryReport, covered: bool) -> Flow:
    """End the call with its error, reported and with a note; or with the fallback."""
    # An error that `on` does not cover, in the first attempt, is not the concern of `retry`.
    if covered or report.number > 1:
        log_report(report)
        publish_report(report)
    if plan.witness is not None:
        plan.witness.record_failure(report)
    if plan.on_give_up is not None:
        yield CallHook(plan.on_give_up, report)
    error = report.error or RetriesExhausted(
        f"{plan.name}: {decision_sentence(report.decision)}", report.value
    )
    if covered and plan.fallback is not NO_FALLBACK:
        value = plan.fallback
        if callable(value):
            value = yield CallHook(value, error)
        yield CallOutcome(value, None)
        return
    if covered or report.number > 1:
        add_error_note(error, report)
    attach_decision(error, report.decision)
    yield CallOutcome(None, error)


def _wait_for_limits(
    plan: RetryPlan, breaker_call: BreakerCall | None, ends: float | None
) -> Generator[Op, Any, CircuitOpen | DeadlineExceeded | None]:
    """Ask the breaker and wait for a slot of the rate; return None, or the error that ends the call."""
    # The breaker first: a refused call need not wait for a slot.
    if breaker_call is not None and (refusal := (yield from breaker_call.ask_admission())) is not None:
        return refusal
    wait = 0.0 if plan.rate is None else (yield from plan.rate.take_slot())
    if wait <= 0.0:
        return None
    if ends is not None and clocks.current.monotonic() + wait >= ends:
        return DeadlineExceeded(
            f"{plan.name}: the rate limit has no free slot before the deadline of the whole call"
        )
    yield WaitSeconds(wait)
    # The breaker may have opened during the wait; a probe was admitted already.
    return None if breaker_call is None or breaker_call.turn else (yield from breaker_call.ask_admission())


def _end_circuit_open(
    plan: RetryPlan, error: CircuitOpen | DeadlineExceeded, attempts: int, now: float
) -> Flow:
    """End a call that was refused after that many attempts, with its error or the fallback."""
    if plan.witness is not None:
        plan.witness.record_end(attempts, now, error)
    if plan.fallback is NO_FALLBACK:
        yield CallOutcome(None, error)
        return
    value = plan.fallback
    if callable(value):
        value = yield CallHook(value, error)
    yield CallOutcome(value, None)
