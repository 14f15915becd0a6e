"""Operations of a call that most calls do not need: policies, waits, limits, artifacts, time limits.

The functions get the call and the operation (`steps.ops`) and return the result that the script is sent.
`steps.perform` has the operations of every call, and `steps.call_operations` the table of all.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore.errors import log_warning
from oncemore.limits import budget_step
from oncemore.limits.breaker import run_limit_script, run_limit_script_async
from oncemore.limits.shared_rate import RateLimiter
from oncemore.log import entry_codec
from oncemore.log.group_commit import InterruptShield
from oncemore.retries import deadlines
from oncemore.steps import observers
from oncemore.telemetry.meter import measure_call

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oncemore._driver import Script
    from oncemore.log.record import LoadedHead
    from oncemore.policy.policy import Policy
    from oncemore.retries.loop import CallFunction
    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import (
        AttemptTerms,
        CheckArtifact,
        EarnBudget,
        FetchResult,
        LoadHead,
        LoadPolicy,
        PrepareSubmission,
        SleepSeconds,
        SpillResult,
        TakeRateSlot,
        WatchEntity,
        WatchLog,
    )

#: Poll interval of a caller that waits for another worker: at first, at most, and the total.
POLL_FIRST_S, POLL_MAX_S, POLL_TOTAL_S = 0.002, 0.05, 0.5
_REAL_CLOCK = clocks.Clock()


def load_head(call: PreparedCall, op: LoadHead) -> LoadedHead:
    """Read the head of an entity."""
    call.was_reread = True
    return entry_codec.load_head(call.store, op.entity, call.engine.cipher, op.kind)


def load_policy(call: PreparedCall, op: LoadPolicy) -> Policy | None:
    """Return the policy that a run began with, if the log has it."""
    policy = call.engine.policies.find_policy(call.engine, op.name)
    if policy is None:
        log_warning(
            f"{call.plan.name}: the log does not have policy {op.name}, with which the run began; it goes on "
            "with its attempts and the step's present policy"
        )
    return policy


def sleep_seconds(call: PreparedCall, op: SleepSeconds) -> None:
    """Wait for a time."""
    if call.interrupt is not None:
        raise call.interrupt
    clocks.current.sleep(op.seconds)


async def sleep_seconds_async(call: PreparedCall, op: SleepSeconds) -> None:
    """Wait without blocking the event loop."""
    if call.interrupt is not None:
        raise call.interrupt
    await clocks.current.pause(op.seconds)


def watch_entity(call: PreparedCall, op: WatchEntity) -> None:
    """Wait until an entity changes."""
    for pause in _poll_intervals(call, op):
        time.sleep(pause)


async def watch_entity_async(call: PreparedCall, op: WatchEntity) -> None:
    """Wait until an entity changes, without blocking the event loop."""
    for pause in _poll_intervals(call, op):
        await _REAL_CLOCK.pause(pause)


def _poll_intervals(call: PreparedCall, op: WatchEntity) -> Generator[float, None, None]:
    """Yield poll intervals until the entity has changed or the lease must be read again.

    In real time even under a test clock: another process works meanwhile.
    """
    if call.interrupt is not None:
        raise call.interrupt
    ends, pause = time.monotonic() + min(op.seconds, POLL_TOTAL_S), POLL_FIRST_S
    while (left := ends - time.monotonic()) > 0:
        yield min(pause, left)
        with InterruptShield():
            head = call.store.load_head(op.entity)
        if head is None or head.version != op.version:
            return
        pause = min(pause * 1.5, POLL_MAX_S)


def watch_log(call: PreparedCall, op: WatchLog) -> None:
    """Wait until the log grows."""
    if call.interrupt is not None:
        raise call.interrupt
    with InterruptShield():
        length = call.store.wait_for_change(0, 0.0)
    call.store.wait_for_change(length, op.seconds)


async def watch_log_async(call: PreparedCall, op: WatchLog) -> None:
    """Wait until the log grows, without blocking the event loop."""
    if call.interrupt is not None:
        raise call.interrupt
    length, ends, pause = call.store.wait_for_change(0, 0.0), time.monotonic() + op.seconds, POLL_FIRST_S
    while (left := ends - time.monotonic()) > 0 and call.store.wait_for_change(0, 0.0) <= length:
        await _REAL_CLOCK.pause(min(pause, left))
        pause = min(pause * 1.5, POLL_MAX_S)


def prepare_submission(call: PreparedCall, op: PrepareSubmission) -> AttemptTerms:
    """Return the terms of a run that a worker will make, and record its policy."""
    terms = call.make_terms(call, "", call.engine.now())
    if call.plan.governed_profile is not None:
        call.engine.policies.accept_profile(call.engine, call.plan.governed_profile)
    if observers.start_trace is not None:
        terms = observers.begin_trace(call, terms, None, submits=True)
    # Before the run: the worker that makes it may not have the file of the policy.
    call.engine.policies.record_policy(call.engine, *op)
    return terms


def take_rate_slot(call: PreparedCall, op: TakeRateSlot) -> float:
    """Take a slot of a rate limit; return the seconds until the slot."""
    return run_limit_script(_rate_script(call, op))


async def take_rate_slot_async(call: PreparedCall, op: TakeRateSlot) -> float:
    """Take a slot of a rate limit, awaiting the store."""
    return await run_limit_script_async(_rate_script(call, op))


def _rate_script(call: PreparedCall, op: TakeRateSlot) -> Script[float]:
    """Return the script that takes a slot; all steps on the engine share one limiter per rate."""
    engine = call.engine
    limiter = engine.rate_limiters.get(op.rate)
    if limiter is None:
        # Another thread may have made one meanwhile: `setdefault` gives all of them the same.
        own = RateLimiter(op.rate.limit, op.rate.name, lambda: engine)
        limiter = engine.rate_limiters.setdefault(op.rate, own)
    return limiter.take_slot(has_slot=op.has_slot)


def earn_budget(call: PreparedCall, op: EarnBudget) -> None:
    """Add the tokens of a success to a retry budget."""
    run_limit_script(budget_step.earn_budget(call.engine, op.budget))


async def earn_budget_async(call: PreparedCall, op: EarnBudget) -> None:
    """Add the tokens of a success to a retry budget, awaiting the store."""
    # A cancelled task must not await.
    if call.interrupt is not None:
        return earn_budget(call, op)
    return await run_limit_script_async(budget_step.earn_budget(call.engine, op.budget))


def check_artifact(call: PreparedCall, op: CheckArtifact) -> Any:
    """Return whether the artifact of a step exists unaltered."""
    return call.engine.artifacts.check_artifact(op.entity, op.cfg_hash, op.name)


async def check_artifact_async(call: PreparedCall, op: CheckArtifact) -> Any:
    """Check an artifact in a thread."""
    # A cancelled task must not await: this read blocks the event loop instead.
    if call.interrupt is not None:
        return check_artifact(call, op)
    return await run_in_thread(check_artifact, call, op)


def spill_result(call: PreparedCall, op: SpillResult) -> Any:
    """Store a large result as an artifact; return None if that fails."""
    try:
        return _write_result(call, op)
    except BaseException as error:  # noqa: BLE001 - raised after the result is stored in the log
        call.interrupt = error
        return None


async def spill_result_async(call: PreparedCall, op: SpillResult) -> Any:
    """Store a large result in a thread."""
    try:
        return await run_in_thread(_write_result, call, op)
    except BaseException as error:  # noqa: BLE001 - as in `spill_result`
        call.interrupt = error
        return None


def _write_result(call: PreparedCall, op: SpillResult) -> Any:
    return call.engine.artifacts.spill_result(op.head.entity, op.head.record, op.encoded)


def fetch_result(call: PreparedCall, op: FetchResult) -> Any:
    """Return a large result, verified, or the error."""
    return call.engine.artifacts.fetch_result(op.spilled)


async def fetch_result_async(call: PreparedCall, op: FetchResult) -> Any:
    """Read a large result in a thread."""
    if call.interrupt is not None:
        return fetch_result(call, op)
    return await run_in_thread(fetch_result, call, op)


def call_limited(call: PreparedCall, attempt: RunningAttempt, invoke: CallFunction) -> Any:
    """Call a plain function under its time limit, in a process of its own if the step asks for that."""
    isolate = call.plan.isolate
    # A kind of step with its own isolation, such as a program, brings the function that runs the attempt.
    if callable(isolate):
        return isolate(call, attempt, invoke)
    if isolate:
        from oncemore.steps import isolation

        return isolation.run_in_process(call, attempt, invoke)

    work = measure_call(attempt, partial(call.plan.function, *call.args, **call.kwargs))
    # An abandoned thread must not use the transaction while it is rolled back: wait for it.
    if attempt.head.record.effect == "transactional":
        return deadlines.run_to_end(attempt.step, invoke, work)
    from oncemore.retries import timeouts

    return timeouts.run_in_helper(attempt.step, invoke, work)


async def run_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a blocking function in a thread and await its result, on asyncio or trio."""
    trio = clocks.find_trio()
    if trio is not None:
        return await trio.to_thread.run_sync(function, *args)
    return await sys.modules["asyncio"].to_thread(function, *args)
