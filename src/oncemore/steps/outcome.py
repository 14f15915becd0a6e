"""The outcome of an attempt: its value or error, with everything that is stored with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.errors import LeaseLost, UsageError
from oncemore.steps.inputs import MIN_ARGUMENT_BYTES, list_inputs
from oncemore.steps.ops import AttemptOutcome
from oncemore.telemetry.meter import build_usage

if TYPE_CHECKING:
    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.call import PreparedCall


def build_outcome(
    call: PreparedCall, attempt: RunningAttempt, value: Any, error: BaseException | None
) -> AttemptOutcome:
    """Return the outcome of an attempt and end it.

    A child process that was forked inside the function and returns from it writes nothing.
    """
    attempt.over = True
    if attempt.is_forked:
        raise error or LeaseLost(f"{attempt.step}: attempt {attempt.number} is that of the parent process")
    usage = build_usage(call.engine, attempt)
    # An interruption of a checkpoint was raised inside the function: its own outcome counts.
    call.interrupt = None if error is None or isinstance(error, Exception) else error
    if attempt.mark is not None and attempt.mark.applied is not None:
        call.interrupt = None
        return AttemptOutcome(attempt.head, applied=attempt.mark.applied, usage=usage)
    if error is not None:
        evidence = tuple((record, None) for record in attempt.evidence)
        return AttemptOutcome(
            attempt.head, None, error, attempt.begun, evidence=evidence, usage=usage, used=attempt.used
        )
    has_write = attempt.mark is not None or attempt.joined_write is not None
    if attempt.head.record.effect == "transactional" and not has_write:
        refusal = UsageError(
            f"{attempt.step} is transactional and used neither current().transaction(connection) nor "
            "current().on_commit(write): rows that it wrote were not committed together with its record"
        )
        return AttemptOutcome(attempt.head, None, refusal, usage=usage)
    # Small arguments have no edges: the common call does not look for them.
    used = attempt.used
    if len(call.inputs) >= MIN_ARGUMENT_BYTES or not call.inputs:
        used = list_inputs(call, attempt)
    if attempt.artifacts or has_write or used:
        return AttemptOutcome(
            attempt.head,
            value,
            events=attempt.collect_outputs(call.plan.operation),
            artifacts=attempt.list_artifacts(),
            mark=attempt.mark,
            joined_write=attempt.joined_write,
            usage=usage,
            used=used,
        )
    # Almost no attempt emits events, and this line is on the path of every success.
    events = attempt.events and attempt.collect_outputs(call.plan.operation)
    # All fields in order: `make` is a third of the cost of the constructor.
    fields = (attempt.head, value, None, True, events, (), None, None, None, (), usage, ())
    return make(AttemptOutcome, fields)
