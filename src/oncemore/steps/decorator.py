"""`oncemore.step`, and the durable function that it makes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from oncemore.control.approvals import grant_approval
from oncemore.errors import UsageError, warn_policy
from oncemore.governance.identity import authorize_call_decider, make_call_decision
from oncemore.maintenance.import_keys import build_import, mark_keys_done
from oncemore.open_engine import default_policy
from oncemore.retries.options import as_seconds
from oncemore.steps import admission, operator_flow, transitions
from oncemore.steps.context import CONTEXT
from oncemore.steps.ops import ReconcileAnswer
from oncemore.steps.options import NO_EFFECT, StepOptions
from oncemore.steps.recorded_policies import plan_of_run
from oncemore.steps.step import OUTCOME_ERRORS, get_run, has_ended
from oncemore.steps.submit import SubmittedCalls
from oncemore.workers.poll import KnownStep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from oncemore.control.approvals import ApprovalState
    from oncemore.limits.breaker import BreakerCore
    from oncemore.limits.budget import TokenBucket
    from oncemore.limits.cooldown_rules import Cooldown
    from oncemore.limits.shared_rate import RateLimiter
    from oncemore.policy.backoff import Schedule
    from oncemore.policy.model import Effect
    from oncemore.policy.policy import Policy
    from oncemore.retries.options import On, Seconds
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.run import Run
    from oncemore.steps.step import DecisionScript
    from oncemore.steps.step_types import StepDecorator

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class Step(SubmittedCalls[P, R]):
    """A durable function: it is called like the function itself, and runs once per key.

    The methods of an async step that return a `Run` or a `JobRun` return an awaitable of it.
    """

    __wrapped__: Callable[P, R]

    def __repr__(self) -> str:
        return f"<oncemore.Step {self.name} ({self._options.effect})>"

    def __set_name__(self, owner: type, name: str) -> None:
        # Recorded arguments of a method include the object it was called on.
        self._options.keys.codecs.owner = owner

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Step[P, R]: ...
    @overload
    def __get__(self: Step[Concatenate[S, Q], R], instance: S, owner: type | None = None) -> Step[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Step[Any, R]:
        """Bind a method to its object, as functions do."""
        if instance is None:
            return self
        return Step(self._options, self._engine, (instance,))

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names that the step had before, the oldest first."""
        return self._options.aliases

    def bind(self, engine: Engine) -> Step[P, R]:
        """Return the same step on another engine."""
        return Step(self._options, engine, self._bound)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key that a call would have; nothing is run or written."""
        return self._prepare_call(args, kwargs).key

    def last_run(self, *args: P.args, **kwargs: P.kwargs) -> Run[R] | None:
        """Return the last run of the key without running anything, or None if there is none."""
        run = self._load_run(self._prepare_call(args, kwargs))
        return run if run.version else None

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Call the step and return its `Run`, with the value or the error; await it if async."""
        # Prepared once: the function may change its arguments, and a time bucket may end meanwhile.
        call = self._prepare_call(args, kwargs)
        return self._run_async(call) if self._is_async else self._run_sync(call)  # type: ignore[return-value]

    def _run_sync(self, call: PreparedCall) -> Run[Any]:
        try:
            self._call_sync(call.args, call.kwargs, None, call)
        except OUTCOME_ERRORS as error:
            return get_run(error)
        return self._load_run(call)

    async def _run_async(self, call: PreparedCall) -> Run[Any]:
        try:
            await self._call_async(call.args, call.kwargs, None, call)
        except OUTCOME_ERRORS as error:
            return get_run(error)
        return self._load_run(call)

    # Decisions of operators -------------------------------------------------------------------------

    def rerun(self, *args: Any, reason: str, **kwargs: Any) -> R:
        """Run work again that failed permanently, with a new budget of attempts; the reason is recorded."""
        _check_reason(reason)
        decision = make_rerun(reason)
        call = self._call_async if self._is_async else self._call_sync
        return call(args, kwargs, decision)  # type: ignore[return-value]

    def cancel(self, *args: Any, reason: str, **kwargs: Any) -> Run[R]:
        """Let no further attempt begin, and return the `Run`; await it if async. The reason is recorded.

        A waiting run ends as HARD_FAIL, `cancelled`. A running attempt is not interrupted: if it commits, the
        result stands; if it fails, it is not tried again, and its next checkpoint raises `Cancelled`.
        """
        _check_reason(reason)
        call = self._prepare_call(args, kwargs)
        # The end of the run may also change the record of its resource, in the same write.
        self._use_cooldown(call)
        decide = make_call_decision(call, "cancel", reason, CONTEXT.get().actor)
        script = operator_flow.cancel_run(call.plan, call, reason, decide)
        return self._run_script(call, script)  # type: ignore[no-any-return]

    def settle(self, answer: ReconcileAnswer, /, *args: Any, reason: str, **kwargs: Any) -> Run[R]:
        """Record the real outcome of an attempt with an unknown outcome; the reason is recorded too.

        `answer` is `oncemore.applied(value)` or `oncemore.not_applied()`.
        """
        _check_reason(reason)
        if type(answer) is not ReconcileAnswer or answer.outcome == "unknown":
            raise UsageError("settle takes oncemore.applied(value) or oncemore.not_applied()")
        call = self._prepare_call(args, kwargs)
        details: dict[str, Any] = {"outcome": answer.outcome}
        # A value that cannot be stored is not a reason to lose the answer: the effect is applied.
        with suppress(Exception):
            details = operator_flow.describe_answer(answer, call.plan.encode)
        decide = make_call_decision(call, "settle", reason, CONTEXT.get().actor, details)
        body = {"decision": decide(call.head, call.engine.now())}
        settled = answer._replace(decision_body=body)
        return self._run_script_sync(call, operator_flow.settle_run(call.plan, call, settled, call.head))

    def approve(
        self, *args: Any, reason: str, by: str | None = None, expires: Seconds | None = None, **kwargs: Any
    ) -> ApprovalState:
        """Approve a call, before it is made or while it waits for approval. Actor and reason are recorded.

        The approval covers these arguments, this version and this policy, and nothing else.

        expires  how long it is valid (one day)
        """
        call = self._prepare_call(args, kwargs)
        head, now = call.head, call.engine.now()
        run = head.record
        # The approval may come before the call: it covers the run that the call would begin.
        if run is None or has_ended(head):
            run = transitions.new_run(call.plan, call, self._make_terms(call, "", now), run, now)
        request = admission.build_approval_request(plan_of_run(call.engine, call.plan, run), call, run)
        return grant_approval(
            call.engine,
            request,
            head,
            run.max_attempts - run.attempt_count,
            reason=reason,
            by=by,
            expires=None if expires is None else as_seconds("expires", expires),
        )

    def mark_done(self, *args: Any, value: Any = None, reason: str, **kwargs: Any) -> Run[R]:
        """Mark work as done that was done elsewhere, with its value; nothing is run.

        A key that the log knows stays unchanged: a finished one is left alone, any other is refused.
        """
        _check_reason(reason)
        call = self._prepare_call(args, kwargs)
        decider = authorize_call_decider(call, CONTEXT.get().actor).refuse_signature("marking a key as done")
        (result,) = mark_keys_done(call.engine, [build_import(self, call, value, reason, decider.actor)])
        if result not in ("marked", "present"):
            raise UsageError(f"{self.name}: key {call.key[:12]} cannot be marked as done: {result}")
        return self._load_run(call)


def known_step(step: Step[..., Any]) -> KnownStep:
    """Return the step as a worker knows it."""
    options = step._options  # noqa: SLF001 - a part of the same feature
    resume = step._resume_run  # noqa: SLF001
    return KnownStep(
        names=(step.name, *step.aliases),
        is_async=options.colour == "coroutine",
        resume_run=resume,
        pipeline=options.pipeline,
        queue=options.queue,
        schedules=options.schedules,
        prepare_call=lambda engine, args: step.bind(engine)._prepare_call(args, {}),  # noqa: SLF001
    )


def decode_arguments(step: Step[..., Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded arguments of a call of a step by their names."""
    return step._options.arguments.decode_values(stored)  # noqa: SLF001 - a part of the same feature


def make_rerun(reason: str) -> DecisionScript:
    """Return the maker of the script that reopens failed work for an operator."""
    actor = CONTEXT.get().actor
    return lambda plan, call: operator_flow.reopen_run(
        plan, call, make_call_decision(call, "rerun", reason, actor)
    )


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError("reason is missing; say why, it is recorded")


def step(
    _bare: Any = None,
    /,
    *,
    effect: Effect | None = None,
    name: str | None = None,
    aliases: str | Sequence[str] = (),
    key: str | Sequence[str] | Callable[..., Any] | None = None,
    ignore: str | Sequence[str] = (),
    partition: Any = None,
    bucket: str | Seconds | Callable[..., Any] | None = None,
    tenant: str | Callable[..., str] | None = None,
    config: Any = None,
    version: str = "1",
    on_version_change: Literal["new", "reuse", "fail"] | None = None,
    policy: Policy | str | PathLike[str] | None = None,
    on: On | None = None,
    until: Callable[[Any], object] | None = None,
    attempts: int | None = None,
    wait: Schedule | Seconds | Sequence[Seconds] | None = None,
    timeout: Seconds | None = None,
    isolate: Literal["process"] | None = None,
    total_timeout: Seconds | None = None,
    if_running: Literal["wait", "raise"] = "wait",
    not_applied: Any = (),
    reconcile: Callable[..., Any] | None = None,
    provider: str | Callable[..., str] | None = None,
    breaker: BreakerCore | str | None = None,
    rate: RateLimiter | str | None = None,
    budget: TokenBucket | None = None,
    dataset: str | Callable[..., str] | None = None,
    priority: Literal["P0", "P1", "P2"] | None = None,
    retain_for: Seconds | None = None,
    artifact: str | None = None,
    cooldown: Cooldown | None = None,
    requires_approval: bool = False,
    pipeline: str | None = None,
    queue: str | None = None,
    concurrency: int | None = None,
    operation: str | None = None,
    masking: int | Callable[..., int] | None = None,
) -> StepDecorator:
    """Make a function durable: every attempt is recorded, and its effect is applied once per key.

    effect             the effect of running it outside of this process; has no default:
                         pure           nothing: running it again gives the same result
                         idempotent     a request that the receiver applies once per `current().key`
                         transactional  rows in a database, in one transaction with the record of the step
                                        (`current().transaction(connection)`, `current().on_commit(write)`)
                         outbox         events only, published with `current().emit()`
                         once           something that must not happen twice, and cannot be repeated blindly
    name               the name of the step in the log; its module and qualified name unless given
    aliases            names that it had before, the oldest first: the oldest one makes the keys, so that work
                       done under it is not repeated, also while an older version still runs
    key                the arguments (names, or a function of all) that make two calls the same work; all
                       unless given
    ignore             arguments that keys and records leave out
    partition          a part of the key besides the arguments: a value, or a function of the arguments
    bucket             a time bucket in the key ("hour", "day", seconds): one run per bucket
    tenant             the tenant of the work; part of the key
    config, version    the result depends on them besides its arguments; when they change, `pure` work runs
                       again, any other returns the stored value, unless
                       `on_version_change="new"|"reuse"|"fail"` or the policy's `on_config_change` says
                       otherwise
    policy             a `Policy`, its name or the path of a policy file
    on                 the errors to retry, as in `retry`: exception types, a predicate, "transient" or
                       "not-sent"; those of the policy unless given
    until              retries until the result satisfies this function; not for `once`
    attempts, wait     number of attempts, and the waits between them, as in `retry`: seconds, a list of
                       seconds or a schedule of `oncemore.backoff`; those of the policy unless given
    timeout            limit of one attempt
    isolate            "process": the function runs in a process of its own, and is killed at its limit
    total_timeout      limit of the whole run with its waits, and of waiting for another worker
    if_running         "wait" for an attempt of another worker, or "raise" `InProgress`
    not_applied        for `once`: errors (types, a predicate, or "not-sent") that show that nothing happened
    reconcile          for `once`: called with the step's arguments after an attempt was lost; returns
                       `oncemore.applied(value)`, `oncemore.not_applied()` or `oncemore.unknown()`
    provider           the service that it calls: a name, or a function of the arguments; `map` slows down for
                       a throttling provider, a name selects the policy's values for it, and a
                       `circuit_breaker` of the policy is kept per provider
    breaker            a `Breaker`, or its name, that must admit each attempt; its state is in the store, and
                       while it is open runs wait for the end of its cooldown (`Deferred`)
    rate               the largest rate of attempts over all processes on the store: "10/s", "100/min", a
                       `Rate`; per provider, or for the step if it names none
    budget             a `Budget`: retries take tokens from it and successes add some, in this process or, if
                       it is shared, in the store; the policy's `retry_budget` unless given
    priority           "P0", "P1" or "P2": the order of work in workers; the policy's, or P1, unless given
    dataset            the dataset that it works on: an id, or a function of the arguments. The gate asks the
                       registry before every attempt (`engine.datasets`); a refused run is quarantined
    operation          the operation that it does to the dataset; the step's name unless given
    masking            the level at which it masks the data, 0 to 100, or a function of the arguments; it may
                       stay or rise between the attempts and runs of a key, and not fall
    retain_for         recorded with the run
    artifact           the name of the artifact that the step returns (`current().put`): if it exists and is
                       valid, nothing is run; if it was altered, the run is quarantined
    cooldown           a `Cooldown`: after a failure, no process requests the resource for a while; a call
                       that comes too early raises `CoolingDown`
    requires_approval  no attempt begins before an operator has approved it (`oncemore control approve`)
    pipeline           the pipeline of the step; the function's module unless given. A policy with
                       `halt_scope: pipeline` halts it after an error that is not retryable
    queue, concurrency the name of a queue, and how many attempts of its steps may run at once in all
                       processes on the store; further calls wait, submitted runs wait for a worker
    """
    if effect is None:
        raise UsageError(NO_EFFECT)
    # `@oncemore.step` without parentheses passes the function here.
    if _bare is not None:
        raise UsageError(f"step() takes keywords only, and got {_bare!r}; write @oncemore.step(effect=…)")
    options: dict[str, Any] = {
        "effect": effect, "name": name, "aliases": aliases, "key": key, "ignore": ignore,
        "partition": partition, "bucket": bucket, "tenant": tenant, "config": config, "version": version,
        "on_version_change": on_version_change, "policy": default_policy() if policy is None else policy,
        "on": on, "until": until, "attempts": attempts, "wait": wait,
        "timeout": timeout, "isolate": isolate, "total_timeout": total_timeout, "if_running": if_running,
        "not_applied": not_applied, "reconcile": reconcile, "provider": provider, "breaker": breaker,
        "rate": rate, "budget": budget, "dataset": dataset, "priority": priority, "retain_for": retain_for,
        "artifact": artifact, "cooldown": cooldown, "requires_approval": requires_approval,
        "pipeline": pipeline, "queue": queue, "concurrency": concurrency, "operation": operation,
        "masking": masking,
    }  # fmt: skip

    def decorate(function: Callable[P, R]) -> Step[P, R]:
        checked = StepOptions(function, **options)
        warn_policy(*checked.policy.warnings())
        return Step(checked)

    return decorate  # type: ignore[return-value]
