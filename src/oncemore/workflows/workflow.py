"""`oncemore.workflow`, and the functions that wait inside of one: `sleep`, `wait_for`, `set_value`.

A workflow is a step whose function calls steps. It is one run in the log, claimed and continued like that of
any step. The differences are here: the function runs in a `WorkflowScope`, and may end by waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from oncemore._driver import run_script, run_script_async
from oncemore.config import POLICY_REQUIRED
from oncemore.errors import UsageError, warn_policy
from oncemore.open_engine import default_policy
from oncemore.retries.options import as_seconds, resolve_policy
from oncemore.steps.attempt import CURRENT, tag_value
from oncemore.steps.call_operations import CALL_OPERATIONS
from oncemore.steps.decorator import Step
from oncemore.steps.entered_engine import use_engine
from oncemore.steps.options import StepOptions
from oncemore.workflows.parking import merge_parks
from oncemore.workflows.scope import (
    MISSING,
    RunJournal,
    SignalWait,
    WorkflowParked,
    WorkflowScope,
    wait_for_calls,
    wait_for_calls_async,
)
from oncemore.workflows.signals import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence
    from os import PathLike

    from oncemore.policy.policy import Policy
    from oncemore.retries.options import Seconds
    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script
    from oncemore.steps.plan import StepPlan
    from oncemore.steps.step_types import AsyncWorkflow, WorkflowDecorator

P = ParamSpec("P")
R = TypeVar("R")


class Workflow(Step[P, R]):
    """A function that calls steps, continues after a crash, and may wait for a time or a signal.

    It is called, submitted, cancelled and run again like a step.
    """

    def __repr__(self) -> str:
        return f"<oncemore.Workflow {self.name}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind a method to its object, as functions do."""
        return self if instance is None else Workflow(self._options, self._engine, (instance,))

    def bind(self, engine: Engine) -> Workflow[P, R]:
        """Return the same workflow on another engine."""
        return Workflow(self._options, engine, self._bound)

    def _adjust_plan(self, plan: StepPlan) -> StepPlan:
        function = _run_workflow_async if plan.is_async else _run_workflow
        return plan.copy_with(is_workflow=True, function=lambda *a, **kw: function(plan.function, a, kw))

    def _prepare_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, guess: bool = False
    ) -> PreparedCall:
        call = super()._prepare_call(args, kwargs, guess=guess)
        outer = CURRENT.get()
        if outer is not None and type(outer.journal) is WorkflowScope:
            # A workflow inside of a workflow waits inline only as long as the outer one would.
            call.plan = call.plan.copy_with(inline_wait_s=outer.journal.call.plan.inline_wait_s)
        return call


# One execution of the function ------------------------------------------------------------------------


def _run_workflow(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call the function of a workflow; return its value, or the request to wait.

    Its inner steps use the engine of the workflow.
    """
    scope = _open_scope()
    try:
        with use_engine(scope.call.engine):
            value = function(*args, **kwargs)
    except BaseException as error:
        if not _is_wait(scope, error):
            raise
        value = None
    if not scope.parks:
        return value
    # Inner calls in other threads end first: their runs are recorded, and may ask for an earlier time.
    wait_for_calls(scope)
    return merge_parks(scope.parks)


async def _run_workflow_async(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Await the function of a workflow; like `_run_workflow`."""
    scope = _open_scope()
    try:
        with use_engine(scope.call.engine):
            value = await function(*args, **kwargs)
    except BaseException as error:
        if not _is_wait(scope, error):
            raise
        value = None
    if not scope.parks:
        return value
    # `asyncio.gather` leaves its other tasks running when one of them raises.
    await wait_for_calls_async(scope)
    return merge_parks(scope.parks)


def _open_scope() -> WorkflowScope:
    attempt = _current_attempt("workflow")
    attempt.journal = scope = WorkflowScope(attempt, attempt.call)
    return scope


def _is_wait(scope: WorkflowScope, error: BaseException) -> bool:
    """Return whether an execution that has raised an error is to wait.

    An execution that had to wait waits, even if its function caught that and went on; only an interruption of
    the process is more important. An error of an inner call may also come from a thread without a context.
    """
    if isinstance(error, WorkflowParked | BaseExceptionGroup | Exception):
        wait = None if scope.parks else scope.find_wait(error, scope.attempt.step)
        if wait is not None:
            scope.parks.append(wait)
        return bool(scope.parks)
    return False


def _current_attempt(function: str) -> RunningAttempt:
    attempt = CURRENT.get()
    if attempt is None:
        raise UsageError(
            f"oncemore.{function}() is for the inside of a function with @oncemore.workflow, in the thread "
            "of the workflow"
        )
    return attempt


def _current_scope(function: str) -> WorkflowScope:
    """Return the scope of the workflow that this code is the body of; refuse every other place."""
    attempt = _current_attempt(function)
    scope = attempt.journal
    if type(scope) is not WorkflowScope:
        raise UsageError(
            f"oncemore.{function}() inside of the step {attempt.step}: a step cannot wait, only a workflow "
            "can; call it in the workflow, before or after the step"
        )
    attempt.check_active("wait")
    scope.check_place(function)
    return scope


# Functions for the body of a workflow -----------------------------------------------------------------


class _Ended:
    """An awaitable that has ended: `await oncemore.sleep(…)` and `oncemore.sleep(…)` do the same."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


_ENDED = _Ended()


def sleep(duration: Seconds, *, name: str | None = None) -> _Ended:
    """Let a workflow wait for a time, for seconds or months, without a thread; in an async one, await it.

    The time counts from the first execution that came here. While the workflow waits it is a row in the
    store: its function has left the process, and runs again from the top when the time is over.

    duration  seconds, or a timedelta
    name      the name of this sleep; sleeps of one name are numbered in their order
    """
    scope = _current_scope("sleep")
    seconds = as_seconds("duration", duration)
    if not seconds < float("inf"):
        raise UsageError(f"duration is {duration!r}; it takes seconds as a number, or a timedelta")
    scope.sleep_seconds(seconds, "sleep" if name is None else check_name("name", name))
    return _ENDED


def wait_for(
    signal: str, *, timeout: Seconds | None = None, default: Any = MISSING, name: str | None = None
) -> Any:
    """Let a workflow wait for a signal, and return its value; in an async workflow, await the result.

    Signals of a name are taken in the order of their arrival, each by one wait; a signal may come before its
    wait. The function has left the process while it waits, as in `sleep`.

    timeout  how long to wait; `SignalTimeout` is raised after it, or `default` returned if one is given
    name     the name of this wait, the signal's unless given; waits of one name are numbered in their order
    """
    scope = _current_scope("wait_for")
    scope.check_not_parked()
    check_name("signal", signal)
    timeout_s = None if timeout is None else as_seconds("timeout", timeout)
    # Counted at the call, and not when it is awaited: the order of calls is the same in every execution.
    wait_id = scope.next_id("wait", signal if name is None else check_name("name", name))
    return _run(scope, scope.take_signal(SignalWait(wait_id, signal, timeout_s, default)))


def set_value(name: str, value: Any) -> Any:
    """Publish a value of the running workflow or step, for `run.get_value(name)`; in an async one, await it.

    The last value of a name wins. A function that runs again publishes nothing a second time at the same
    place.
    """
    attempt = _current_attempt("set_value")
    check_name("name", name)
    plain = tag_value(value)
    attempt.check_active("publish a value")
    journal = attempt.journal
    # A step has a journal only if it publishes.
    if journal is None:
        journal = attempt.journal = RunJournal(attempt, attempt.call)
    if type(journal) is WorkflowScope:
        journal.check_place("set_value")
        journal.check_not_parked()
    return _run(journal, journal.publish_value(name, plain))


def _run(journal: RunJournal, script: Script) -> Any:
    """Run a script of the journal; in an async function, return the coroutine of it."""
    if journal.call.plan.is_async:
        return run_script_async(script, CALL_OPERATIONS, journal.call)
    return run_script(script, CALL_OPERATIONS, journal.call)


# The decorator ----------------------------------------------------------------------------------------


@overload
def workflow(function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncWorkflow[P, R]: ...
@overload
def workflow(function: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    aliases: str | Sequence[str] = (),
    key: str | Sequence[str] | Callable[..., Any] | None = None,
    ignore: str | Sequence[str] = (),
    partition: Any = None,
    bucket: str | Seconds | Callable[..., Any] | None = None,
    tenant: str | Callable[..., str] | None = None,
    version: str = "1",
    on_version_change: Literal["new", "reuse", "fail"] | None = None,
    policy: Policy | str | PathLike[str] | None = None,
    attempts: int | None = None,
    max_crashes: int | None = None,
    total_timeout: Seconds | None = None,
    if_running: Literal["wait", "raise"] = "wait",
    dataset: str | Callable[..., str] | None = None,
    priority: Literal["P0", "P1", "P2"] | None = None,
    retain_for: Seconds | None = None,
    pipeline: str | None = None,
) -> WorkflowDecorator: ...
def workflow(
    _function: Any = None,
    /,
    *,
    policy: Any = None,
    attempts: int | None = None,
    max_crashes: int | None = None,
    **options: Any,
) -> Any:
    """Make a function that calls steps into a workflow: a worker or the next call continues it after a crash.

    Its function runs again from the top after a crash, a sleep or a wait. Steps that have ended return their
    stored values, so that only the work that is missing is done. The one rule: what happens outside of steps
    may happen again, so that everything with an effect, and everything that may give another result the
    next time (the clock, random numbers, a request), belongs into a step. Inner steps are known by their own
    names and arguments, as everywhere: two workflows that call the same step with the same arguments share
    its result.

    name, aliases, key, ignore, partition, bucket, tenant, version, on_version_change, if_running, dataset,
    priority, retain_for, pipeline   as in `oncemore.step`
    policy         a `Policy`, its name or the path of a policy file
    attempts       how often the function may be run and fail by an error of its own: 1, because inner steps
                   have their retries; a policy without `max_crashes` counts crashes here, and its own number
                   is the default
    max_crashes    how often its process may be lost; the policy's unless given (20 in `standard`). A wait
                   costs neither
    total_timeout  limit of the whole run, with its sleeps and waits
    """
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise UsageError(
            f"workflow() has no option {', '.join(sorted(unknown))}; the options are "
            f"{', '.join((*_OPTIONS, 'policy', 'attempts', 'max_crashes'))}"
        )
    chosen = default_policy() if policy is None else policy

    def decorate(function: Callable[P, R]) -> Workflow[P, R]:
        # Where crashes count as attempts, a single attempt would hold the workflow after the first crash.
        counts_crashes = max_crashes is not None
        if not counts_crashes and chosen != POLICY_REQUIRED:
            counts_crashes = resolve_policy({"policy": chosen}).max_crashes is not None
        checked = StepOptions(
            function,
            effect="idempotent",
            policy=chosen,
            attempts=1 if attempts is None and counts_crashes else attempts,
            max_crashes=max_crashes,
            **options,
        )
        warn_policy(*checked.policy.warnings())
        return Workflow(checked)

    return decorate if _function is None else decorate(_function)


_OPTIONS = (
    "name", "aliases", "key", "ignore", "partition", "bucket", "tenant", "version", "on_version_change",
    "total_timeout", "if_running", "dataset", "priority", "retain_for", "pipeline",
)  # fmt: skip
