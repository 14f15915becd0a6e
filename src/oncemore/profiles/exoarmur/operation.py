"""One operation: its attempts, the events that they publish, and its record.

A `RunningOperation` observes its own attempts: it turns them into events with the ids of the caller, keeps
those events with its context, and knows at the end whether the attempts were used up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore import clock as clocks
from oncemore._redact import clean_text, mask_context
from oncemore._values import Value
from oncemore.audit.events import Idempotency, RetryExhausted
from oncemore.audit.recorder import AuditRecorder, OperationIds, current_trace_id
from oncemore.errors import StepFailed, UsageError
from oncemore.policy.policy import policy_name
from oncemore.retries.driver import run_async
from oncemore.retries.loop import make_script
from oncemore.steps.context import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal

    from oncemore.audit.events import AuditEvent
    from oncemore.policy.policy import Policy
    from oncemore.profiles.exoarmur.policy import CategoryPolicy
    from oncemore.retries.plan import RetryPlan
    from oncemore.retries.report import RetryReport


def inherit_ids(ids: OperationIds) -> OperationIds:
    """Return the ids of an operation: those given, else those of the `oncemore.context` around it.

    Without either, the trace is that of the span around the call, if OpenTelemetry is on.
    """
    context = CONTEXT.get()
    return ids._replace(
        # An inherited id is for events only; it is never a part of a key (CORR-5).
        correlation_id=ids.correlation_id or context.correlation_id or None,
        trace_id=ids.trace_id or context.trace_id or current_trace_id(),
    )


class RetryError(StepFailed):
    """All attempts of an operation failed; the last failure is the cause.

    Has `category` (a `RetryCategory`, or the code of a registered category), `attempts` and `operation`.
    """

    def __init__(self, category: str, attempts: int, operation: str) -> None:
        super().__init__(
            f"{operation} ({category}): all {attempts} attempts failed; the last one is the cause"
        )
        self.category = category
        self.attempts = attempts
        self.operation = operation

    # The default pickles the message as the only argument, which the constructor does not take.
    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.category, self.attempts, self.operation)


class OperationRecord(Value):
    """The record of one operation: its ids, key and policy, its context, and its events.

    `context` is the masked `additional_context`: audit events have a fixed set of fields without it.
    """

    run_id: str
    category: str
    operation: str
    ids: OperationIds
    idempotency_key: str | None
    policy: str
    policy_version: str
    context: object
    started: float
    events: tuple[AuditEvent, ...]


class RunningOperation:
    """An operation that is running or has ended; the observer of its own attempts."""

    def __init__(
        self,
        publish_event: Callable[[AuditEvent], object],
        category: CategoryPolicy,
        name: str,
        *,
        policy: Policy,
        run_id: str,
        ids: OperationIds,
        key: str | None,
        context: Mapping[str, Any] | None,
    ) -> None:
        self._publish_event = publish_event
        self._category = category
        self._policy = policy
        # The context may hold anything that the caller has at hand, secrets included.
        self._context = mask_context(dict(_check_operation(name, context)))
        self.policy = policy_name(policy)
        self._recorder = AuditRecorder(self._add_event, category.code, name, ids, self.policy)
        self._started_at = clocks.current.wall()
        self.events: list[AuditEvent] = []
        self.name = name
        self.category = category.code
        self.run_id = run_id
        self.ids = ids
        self.key = key

    def _add_event(self, event: AuditEvent) -> None:

        self.events.append(event)
        self._publish_event(event)

    def use_policy(self, name: str) -> None:
        """Set the policy name of later events: a resumed run keeps the policy that it started with."""
        self._recorder.policy = name

    def record_failure(self, report: RetryReport) -> None:
        """Publish the event of a failed attempt and the decision about it."""
        self._recorder.record_failure(report)

    def record_end(self, number: int, now: float, error: BaseException | None) -> None:
        """Publish the event of a success, or of an interruption from outside."""
        self._recorder.record_end(number, now, error)

    def record_refusal(self, reason: str, error: Exception) -> None:
        """Publish the event of an operation that was refused before its first attempt."""
        self._recorder.record_refusal(0, clocks.current.wall(), reason, error)

    def record_key_use(self, action: Literal["hit", "record"], key: str) -> None:
        """Publish the event of a recorded result: it was returned ("hit") or written ("record")."""
        self._recorder.emit_event(
            Idempotency, clocks.current.wall(), idempotency_key=clean_text(key), action=action
        )

    def make_exhausted_error(self) -> RetryError | None:
        """Return the error for attempts that are used up; None if the operation ended in another way."""
        # The last event tells the end apart: exhausted, refused, not retryable, or interrupted.
        last = self.events[-1]
        if not isinstance(last, RetryExhausted):
            return None
        return RetryError(self._category.code, last.total_attempts, self.name)

    def make_final_error(self, last: Exception) -> Exception:
        """Return the error that the caller gets for the last failure: a RetryError, or the failure itself."""
        exhausted = self.make_exhausted_error()
        if exhausted is None:
            return last
        exhausted.__cause__ = last
        return exhausted

    def to_record(self) -> OperationRecord:
        """Return the record of the operation as it is now."""
        return OperationRecord(
            run_id=self.run_id,
            category=self._category.code,
            operation=self.name,
            ids=self.ids,
            idempotency_key=self.key,
            policy=self._policy.name,
            policy_version=self._policy.version,
            context=self._context,
            started=self._started_at,
            events=tuple(self.events),
        )


class PreparedOperation(Value):
    """An operation that is ready to run: its events, its plan, and the function that makes each attempt.

    run_id          the id of its run in a log; empty if the log gives it one
    needs_approval  whether an operator has to approve it first
    """

    operation: RunningOperation
    plan: RetryPlan
    make_awaitable: Callable[[], Any]
    run_id: str = ""
    needs_approval: bool = False

    async def run_in_memory(self) -> Any:
        """Make the attempts without a log; raise RetryError when they are used up."""
        try:
            return await run_async(self.plan, make_script(self.plan), self.make_awaitable, (), {})
        except Exception as error:
            exhausted = self.operation.make_exhausted_error()
            if exhausted is None:
                raise
            raise exhausted from error

    async def run_attempt(self) -> Any:
        """Make one attempt; a value that is not awaitable is its own result."""
        awaitable = self.make_awaitable()
        # A plain function is accepted as work, too: its value needs no await.
        return await awaitable if hasattr(type(awaitable), "__await__") else awaitable


def _check_operation(name: object, context: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not isinstance(name, str) or not name:
        raise UsageError(f"operation is {name!r:.80}; it takes a text that describes the operation")
    if context is not None and not hasattr(context, "keys"):
        raise UsageError(f"additional_context is {context!r:.80}; it takes a mapping")
    return context or {}


def make_factory(work: Any, coro: Any) -> Callable[[], Any]:
    """Return the function that makes each attempt; refuse an object that can be awaited only once."""
    factory = coro if work is None else work
    if factory is None or (work is not None and coro is not None):
        raise UsageError("give either work= or coro=, a function that makes a new awaitable for each attempt")
    if hasattr(type(factory), "__await__"):
        # A task has no close(); a coroutine has one.
        if hasattr(factory, "close"):
            factory.close()  # otherwise Python warns that it was never awaited
        name = getattr(factory, "__name__", "work")
        raise UsageError(
            f"work is a coroutine or task, which can be awaited only once; give the function that makes it: "
            f"execute_with_retry(category, operation, lambda: {name}(...)), or {name} if it takes nothing"
        )
    if not callable(factory):
        raise UsageError(f"work is {factory!r:.80}; it takes a function that makes an awaitable")
    previous: Any = None

    def make_awaitable() -> Any:
        nonlocal previous
        awaitable = factory()
        # A second await of the same object would raise RuntimeError and hide the real failure.
        if awaitable is previous and hasattr(type(awaitable), "__await__"):
            raise UsageError(
                "work returned the same awaitable twice; it must make a new one for each attempt"
            )
        previous = awaitable
        return awaitable

    return make_awaitable
