"""The attempt that user code runs in, as context variables: entered, and looked at by inner calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore._values import make
from oncemore.artifacts.artifact import CURRENT_READER
from oncemore.errors import UsageError
from oncemore.retries.loop import ENDS
from oncemore.steps.attempt import CURRENT
from oncemore.steps.context import CONTEXT, CallContext, earlier_deadline

if TYPE_CHECKING:
    from oncemore.artifacts.store import ArtifactStore
    from oncemore.steps.attempt import RunningAttempt


def current_key() -> str:
    """Return the key of the run whose function makes this call; empty if there is none."""
    attempt = CURRENT.get()
    return "" if attempt is None else attempt.key


def find_outer_start(name: str, entity: str) -> float:
    """Return when the oldest run around a call was created; 0 if the call is not made inside a run.

    Refuses a step that calls itself with the same key: it would wait for itself.
    """
    attempt, start = CURRENT.get(), 0.0
    while attempt is not None:
        run = attempt.head.record
        if attempt.head.entity == entity:
            raise UsageError(f"{name} calls itself with the same key; it would wait for itself for ever")
        # A task may outlive the attempt that started it; then it is a caller of its own.
        if not attempt.over:
            start = min(start, run.created_at) if start else run.created_at
        attempt = attempt.parent
    return start


class AttemptContext:
    """Sets the context variables of user code: attempt, call context, time limit, artifact store."""

    __slots__ = ("_artifact_store", "_attempt", "_ends", "_tokens")

    def __init__(self, attempt: RunningAttempt, artifact_store: ArtifactStore, ends: float | None) -> None:
        self._attempt, self._ends, self._artifact_store = attempt, ends, artifact_store

    def __enter__(self) -> None:
        run, context = self._attempt.head.record, CONTEXT.get()
        deadline = earlier_deadline(run.deadline, context.deadline) if run.deadline else context.deadline
        fields = (run.tenant, run.correlation_id, deadline, context.actor, context.trace_id)
        self._tokens = (
            CURRENT.set(self._attempt),
            CONTEXT.set(make(CallContext, fields)),
            # Most attempts have no limit, and are not made inside one that has.
            None if self._ends is None and ENDS.get() is None else ENDS.set(self._ends),
            CURRENT_READER.set(self._artifact_store),
        )

    def __exit__(self, *error: object) -> None:
        current, context, ends, reader = self._tokens
        CURRENT_READER.reset(reader)
        if ends is not None:
            ENDS.reset(ends)
        CONTEXT.reset(context)
        CURRENT.reset(current)
