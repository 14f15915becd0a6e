"""Processes the dead letters of a step again after an operator has released them.

A dead letter of an inbox is an event of the step's own topic. Releasing it makes it PENDING, and the relay
built here sends it to the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.audit.error_record import error_to_record
from oncemore.classifiers.classify import classify
from oncemore.errors import PermanentError, TransientError
from oncemore.messaging.inbox_flow import OUTCOME_COUNTERS, MessageOutcome, dead_letter_topic, restore_message
from oncemore.messaging.relay import DEFAULT_MAX_BYTES, POLICY, RelayCore
from oncemore.policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.messaging.inbox_step import MessageStep
    from oncemore.messaging.message import EventMessage

#: The step's own policy decides on retries; this one only asks again until the step's run has ended.
REDELIVERY_POLICY = Policy(
    "inbox", max_attempts=1000, schedule=POLICY.schedule, max_delay_s=60.0, unmatched="retry"
)
_RERUN_REASON = "its dead letter was released"


def make_dead_letter_relay(step: MessageStep) -> RelayCore:
    """Return a relay that sends the released dead letters of a step to the step."""
    return RelayCore(
        step.engine,
        {dead_letter_topic(step.name): make_dead_letter_sink(step)},
        classify=classify,
        describe=error_to_record,
        policy=REDELIVERY_POLICY,
        # An incoming message may be larger than the default limit of an event.
        max_bytes=64 * DEFAULT_MAX_BYTES,
    )


def make_dead_letter_sink(step: MessageStep) -> Callable[[EventMessage], Any]:
    """Return a sink that calls the step with a released message, async if the step is."""

    def call_step(message: EventMessage) -> None:
        call = step.read_message(restore_message(message.payload))
        _check_finished(call if isinstance(call, MessageOutcome) else step.call_step(call, _RERUN_REASON))

    async def call_step_async(message: EventMessage) -> None:
        call = step.read_message(restore_message(message.payload))
        if isinstance(call, MessageOutcome):
            _check_finished(call)
        else:
            _check_finished(await step.call_step_async(call, _RERUN_REASON))

    return call_step_async if step.is_async else call_step


def _check_finished(result: MessageOutcome) -> None:
    """Raise an error that tells the relay to retry a released message, or to store it as dead again."""
    counter = OUTCOME_COUNTERS[result.outcome]
    if counter == "dead":
        raise PermanentError(str(result.error.get("message", result.outcome)))
    if counter in ("deferred", "store_error"):
        raise TransientError("the run of the message has not ended yet")
