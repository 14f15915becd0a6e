"""One operation: what was asked, what happened to it, and its record.

An `Operation` is the witness of its own attempts: it turns them into events with the ids it was given,
keeps those events with its context, and knows at the end whether the attempts were used up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore import clock as clocks
from oncemore._redact import clean, masked_context
from oncemore._values import Value
from oncemore.audit.events import Idempotency, RetryExhausted
from oncemore.audit.recorder import Ids, Recorder
from oncemore.errors import Failed, UsageError
from oncemore.policy.policy import policy_name
from oncemore.retries.driver import awaiting
from oncemore.retries.loop import again
from oncemore.steps.context import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal

    from oncemore.audit.events import Event
    from oncemore.policy.policy import Policy
    from oncemore.profiles.exoarmur.policy import Category
    from oncemore.retries.loop import Plan, Report


def inherit_ids(ids: Ids) -> Ids:
    """Return the ids of an operation: those given, else those of the `oncemore.context` around it."""
    around = CONTEXT.get()
    return ids._replace(
        correlation_id=ids.correlation_id or around.correlation_id or None,
        trace_id=ids.trace_id or around.trace_id or None,
    )


class RetryError(Failed):
    """All attempts of an operation failed; the last failure is the cause.

    Carries `category` (a `RetryCategory`, or the code of a category of your own), `attempts`, `operation`.
    """

    def __init__(self, category: str, attempts: int, operation: str) -> None:
        super().__init__(
            f"{operation} ({category}): all {attempts} attempts failed; the last one is the cause"
        )
        self.category = category
        self.attempts = attempts
        self.operation = operation

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.category, self.attempts, self.operation)


class OperationRecord(Value):
    """What is known of an operation: whose it was, under which policy, with what context, what happened.

    `context` is the masked `additional_context`, which the frozen events have no field for.
    """

    run_id: str
    category: str
    operation: str
    ids: Ids
    idempotency_key: str | None
    policy: str
    policy_version: str
    context: object
    started: float
    events: tuple[Event, ...]


class Operation:
    """An operation under way."""

    def __init__(
        self,
        tell: Callable[[Event], object],
        category: Category,
        name: str,
        policy: Policy,
        run_id: str,
        ids: Ids,
        key: str | None,
        context: Mapping[str, Any] | None,
    ) -> None:
        self._tell = tell
        self._category = category
        self._policy = policy
        self._context = masked_context(dict(_checked(name, context)))
        self.policy = policy_name(policy)
        self._recorder = Recorder(self._heard, category.code, name, ids, self.policy)
        self._started = clocks.current.wall()
        self.events: list[Event] = []
        self.name = name
        self.category = category.code
        self.run_id = run_id
        self.ids = ids
        self.key = key

    def _heard(self, event: Event) -> None:
        self.events.append(event)
        self._tell(event)

    def use_policy(self, name: str) -> None:
        """Name the policy of the events that follow: a run goes on with the one that it began with."""
        self._recorder.policy = name

    def failed(self, report: Report) -> None:
        """Write down a failed attempt and what was decided."""
        self._recorder.failed(report)

    def ended(self, number: int, now: float, error: BaseException | None) -> None:
        """Write down that it came good, or was ended from outside."""
        self._recorder.ended(number, now, error)

    def refused(self, reason: str, error: Exception) -> None:
        """Write down that not even a first attempt was made, and why."""
        self._recorder.refused(0, clocks.current.wall(), reason, error)

    def recorded(self, action: Literal["hit", "record"], key: str) -> None:
        """Write down that a recorded result was used, or that one was recorded."""
        self._recorder.tell(Idempotency, clocks.current.wall(), clean(key), action)

    def exhausted(self) -> RetryError | None:
        """Return the error for attempts that are used up, or None when it ended otherwise."""
        last = self.events[-1]
        if not isinstance(last, RetryExhausted):
            return None
        return RetryError(self._category.code, last.total_attempts, self.name)

    def error_of(self, last: Exception) -> Exception:
        """Return what its caller gets for its last failure: the error for used up attempts, or itself."""
        exhausted = self.exhausted()
        if exhausted is None:
            return last
        exhausted.__cause__ = last
        return exhausted

    def record(self) -> OperationRecord:
        """Return what is known of it by now."""
        return OperationRecord(
            self.run_id, self._category.code, self.name, self.ids, self.key, self._policy.name,
            self._policy.version, self._context, self._started, tuple(self.events),
        )  # fmt: skip


class Doing(Value):
    """An operation that is to be done: its record, its rules, and what makes each attempt.

    run_id    what its run is called in a log; empty where it gets one there
    approval  whether somebody has to approve it first
    """

    operation: Operation
    plan: Plan
    make: Callable[[], Any]
    run_id: str = ""
    approval: bool = False

    async def alone(self) -> Any:
        """Make the attempts, in the memory of this process; when they are used up, say so."""
        try:
            return await awaiting(self.plan, again(self.plan), self.make, (), {})
        except Exception as error:
            exhausted = self.operation.exhausted()
            if exhausted is None:
                raise
            raise exhausted from error

    async def attempt(self) -> Any:
        """Make one attempt; what is not awaitable is its own value."""
        made = self.make()
        return await made if hasattr(type(made), "__await__") else made


def _checked(name: object, context: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not isinstance(name, str) or not name:
        raise UsageError(f"operation is {name!r:.80}; it takes a text that says what is done")
    if context is not None and not hasattr(context, "keys"):
        raise UsageError(f"additional_context is {context!r:.80}; it takes a mapping")
    return context or {}


def factory(work: Any, coro: Any) -> Callable[[], Any]:
    """Return the function that makes each attempt, or refuse what can be awaited only once."""
    given = coro if work is None else work
    if given is None or (work is not None and coro is not None):
        raise UsageError("give work=, a function that makes a new awaitable for each attempt, once")
    if hasattr(type(given), "__await__"):
        if hasattr(given, "close"):
            given.close()  # or Python would warn that it was never awaited
        name = getattr(given, "__name__", "work")
        raise UsageError(
            f"work is a coroutine or task, which can be awaited only once; give what makes it: "
            f"execute_with_retry(category, operation, lambda: {name}(...)), or {name} if it takes nothing"
        )
    if not callable(given):
        raise UsageError(f"work is {given!r:.80}; it takes a function that makes an awaitable")
    made: list[Any] = [None]

    def fresh() -> Any:
        before, made[0] = made[0], given()
        if made[0] is before and hasattr(type(before), "__await__"):
            raise UsageError(
                "work returned the same awaitable twice; it must make a new one for each attempt"
            )
        return made[0]

    return fresh
