"""CALL, durable: `step`, and what it makes of a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from oncemore.control.moved_log import refuse_if_moved
from oncemore.control.switches import grant_approval
from oncemore.errors import (
    UsageError,
    warn_policy,
)
from oncemore.maintenance.import_keys import mark_keys_done
from oncemore.open_engine import default_policy
from oncemore.retries.options import as_seconds
from oncemore.steps import operator_flow, transitions
from oncemore.steps.context import CONTEXT, parse_moment
from oncemore.steps.ops import CallIdentity, ReconcileAnswer, StepPlan
from oncemore.steps.options import NO_EFFECT, StepOptions
from oncemore.steps.prepare import compute_deadlines, has_ended
from oncemore.steps.recorded_policies import plan_of_run
from oncemore.steps.step_map import MapCaller
from oncemore.workers.worker import KnownStep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from oncemore.control.switches import ApprovalState
    from oncemore.limits.breaker import BreakerCore
    from oncemore.limits.budget import TokenBucket
    from oncemore.limits.cooldown_rules import Cooldown
    from oncemore.limits.shared_rate import RateLimiter
    from oncemore.policy.model import Effect
    from oncemore.policy.policy import Policy
    from oncemore.retries.options import Seconds
    from oncemore.steps.context import When
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script
    from oncemore.steps.run import Run

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


def applied(value: Any = None) -> ReconcileAnswer:
    """Say that a lost attempt did take effect, and what it returned."""
    return ReconcileAnswer("applied", value)


def not_applied() -> ReconcileAnswer:
    """Say that a lost attempt did not take effect: it may be tried again."""
    return ReconcileAnswer("not_applied")


def unknown() -> ReconcileAnswer:
    """Say that nobody can tell: the work stays held."""
    return ReconcileAnswer("unknown")


class Step(MapCaller[P, R]):
    """A function made durable: called like the function itself, run once per key."""

    __wrapped__: Callable[P, R]

    def __repr__(self) -> str:
        return f"<oncemore.Step {self.name} ({self._options.effect})>"

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
        """The names that it had before, the oldest first."""
        return self._options.aliases

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the value: computed now, or stored from before; raise when it failed."""
        if self._is_async:
            return self._call_async(args, kwargs)  # type: ignore[return-value]
        return self._call_sync(args, kwargs)  # type: ignore[no-any-return]

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Like a call, but return the `Run` instead of raising for an outcome; to be awaited if async."""
        return self._run_async(args, kwargs) if self._is_async else self._run_sync(args, kwargs)

    def rerun(self, *args: Any, reason: str, **kwargs: Any) -> Any:
        """Run work that failed for good once more, with a new budget; the reason is recorded."""
        _check_reason(reason)
        before = _make_reopen_script(reason)
        return (
            self._call_async(args, kwargs, before)
            if self._is_async
            else self._call_sync(args, kwargs, before)
        )

    def settle(self, answer: ReconcileAnswer, /, *args: Any, reason: str, **kwargs: Any) -> Run:
        """Decide what became of an attempt whose outcome is unknown; the reason is recorded.

        `answer` is `oncemore.applied(value)` or `oncemore.not_applied()`.
        """
        _check_reason(reason)
        if type(answer) is not ReconcileAnswer or answer.found == "unknown":
            raise UsageError("settle takes oncemore.applied(value) or oncemore.not_applied()")
        told = answer._replace(decided=_decision_body("settle", reason))
        prepared = self._prepare_call(args, kwargs)
        return self._run_script_sync(
            prepared, refuse_if_moved(self.name, operator_flow.settle_run(prepared.plan, prepared.call, told))
        )

    def approve(
        self, *args: Any, reason: str, by: str | None = None, expires: Seconds | None = None, **kwargs: Any
    ) -> ApprovalState:
        """Approve a call, before it is made or while it waits for that: these arguments, this version, this
        policy, and nothing else. Who and why are recorded.

        expires  for how long it holds (a day)
        """
        prepared = self._prepare_call(args, kwargs)
        seen, now = prepared.seen, prepared.engine.now()
        over = seen.record is None or has_ended(seen)
        terms = self._make_terms(prepared, "", now)
        run = (
            transitions.new_run(prepared.plan, prepared.call, terms, seen.record, now)
            if over
            else seen.record
        )
        wanted = transitions.build_approval_request(
            plan_of_run(prepared.engine, prepared.plan, run), prepared.call, run
        )
        holds = None if expires is None else as_seconds("expires", expires)
        return grant_approval(
            prepared.engine, wanted, seen, run.max_attempts - run.attempt_count, reason, by, holds
        )

    def submit(self, *args: Any, at: When | None = None, **kwargs: Any) -> Any:
        """Hand the work in for some worker to do, and return its `Run`; to be awaited if async.

        It is handed in once: where the key has a run, that one is returned, whatever its state. All arguments
        must be such that the log can keep them.

        at  the earliest time of its first attempt: an aware datetime, POSIX seconds, or a timedelta from now
        """
        prepared = self._prepare_call(args, kwargs)
        if prepared.withheld:
            raise UsageError(
                f"{self.name} cannot be submitted to a worker with {', '.join(prepared.withheld)}: the log "
                "does not store a Secret or an argument of ignore=; let the step read it itself, or give the "
                "parameter a default"
            )
        due, now = 0.0, prepared.engine.now()
        if at is not None:
            due = parse_moment("at", at, now)
            ends = compute_deadlines(
                self._options.policy.total_timeout_s, CONTEXT.get().deadline, max(due, now)
            )
            prepared = prepared._replace(call=prepared.call._replace(deadline=ends[0]))
            if ends[0] and due >= ends[0]:
                raise UsageError(f"at is {at!r}, which is not before the deadline of {self.name}")
        return self._run_script(prepared, operator_flow.submit_run(prepared.plan, prepared.call, due))

    def cancel(self, *args: Any, reason: str, **kwargs: Any) -> Any:
        """Let no further attempt begin, and return the `Run`; to be awaited if async. The reason is recorded.

        What waits ends as HARD_FAIL, `cancelled`. What runs is not cut off: if it commits, that stands; if it
        fails, it is not tried again, and its next checkpoint raises `Cancelled`.
        """
        _check_reason(reason)
        prepared = self._prepare_call(args, kwargs)
        script = operator_flow.cancel_run(prepared.plan, prepared.call, reason, CONTEXT.get().actor)
        return self._run_script(prepared, refuse_if_moved(self.name, self._with_cooldown(prepared, script)))

    @property
    def as_known_step(self) -> KnownStep:
        """What a worker does this step by."""
        return KnownStep((self.name, *self.aliases), self._is_async, self._resume_run, self._options.pipeline)

    def mark_done(self, *args: Any, value: Any = None, reason: str, **kwargs: Any) -> Run:
        """Mark work as done that was done elsewhere, with the value that it gave; nothing is run.

        Work that is known here stays as it is: done, it is left alone; anything else is refused.
        """
        _check_reason(reason)
        prepared = self._prepare_call(args, kwargs)
        (came_to,) = mark_keys_done(
            prepared.engine, [self._build_import(prepared, value, reason, CONTEXT.get().actor)]
        )
        if came_to not in ("marked", "present"):
            key = prepared.call.entity.removeprefix("run/")[:12]
            raise UsageError(f"{self.name}: key {key} cannot be marked as done: {came_to}")
        return self._load_run(prepared.engine, prepared.call.entity)

    def bind(self, engine: Engine) -> Step[P, R]:
        """Return the same step on another engine."""
        return Step(self._options, engine, self._bound)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key that a call would have; nothing is run or written."""
        return self._prepare_call(args, kwargs).call.entity.removeprefix("run/")

    def last_run(self, *args: P.args, **kwargs: P.kwargs) -> Run | None:
        """Return the key's last run without running anything, or None if there is none."""
        prepared = self._prepare_call(args, kwargs)
        run = self._load_run(prepared.engine, prepared.call.entity)
        return run if run.version else None


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError("reason is missing; say why, it is recorded")


def _decision_body(what: str, reason: str) -> dict[str, Any]:
    return {"decision": {"action": what, "reason": reason, "actor": CONTEXT.get().actor}}


def _make_reopen_script(reason: str) -> Callable[[StepPlan, CallIdentity], Script]:
    actor = CONTEXT.get().actor
    return lambda plan, call: operator_flow.reopen_run(plan, call, reason, actor)


#: The defaults of the options of `step`.
_OPTION_DEFAULTS: dict[str, Any] = {
    "name": None, "aliases": (), "key": None, "ignore": (), "partition": None, "bucket": None, "tenant": None,
    "config": None, "version": "1", "on_version_change": None, "timeout": None, "isolate": None,
    "total_timeout": None, "if_running": "wait", "not_applied": (), "reconcile": None, "provider": None,
    "breaker": None, "rate": None, "budget": None, "dataset": None, "priority": None, "retain_for": None,
    "artifact": None, "cooldown": None, "requires_approval": False, "pipeline": None,
}  # fmt: skip


def complete_options(**told: Any) -> dict[str, Any]:
    """Return all options of a step: those given, and the defaults."""
    return {**_OPTION_DEFAULTS, **told}


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
    on_version_change: str | None = None,
    policy: Policy | str | PathLike[str] | None = None,
    timeout: Seconds | None = None,
    isolate: str | None = None,
    total_timeout: Seconds | None = None,
    if_running: str = "wait",
    not_applied: Any = (),
    reconcile: Callable[..., Any] | None = None,
    provider: str | Callable[..., str] | None = None,
    breaker: BreakerCore | str | None = None,
    rate: RateLimiter | str | None = None,
    budget: TokenBucket | None = None,
    dataset: str | Callable[..., str] | None = None,
    priority: str | None = None,
    retain_for: Seconds | None = None,
    artifact: str | None = None,
    cooldown: Cooldown | None = None,
    requires_approval: bool = False,
    pipeline: str | None = None,
) -> Callable[[Callable[P, R]], Step[P, R]]:
    """Make a function durable: every attempt is on record, its effect is applied once per key.

    effect             what running it does to the world; has no default:
                         pure           nothing: running it again gives the same
                         idempotent     something that the other side applies once per `current().key`
                         transactional  rows in a database: one transaction with the record of the step
                                        (`current().transaction(connection)`, `current().on_commit(write)`)
                         outbox         only events, given away with `current().emit()`
                         once           something that must not happen twice, and cannot be repeated blindly
    name               what it is known by, together with the key; its module and name unless given
    aliases            names that it had before, the oldest first: keys are made with that one, so that what
                       was done under it is not done again, also while an older version still runs
    key                which arguments (names, or a function of all) make two calls the same work; else all
    ignore             arguments that take no part in key and record
    partition          a part of the key that is no argument: a value, or a function of the arguments
    bucket             a stretch of time in the key ("hour", "day", seconds): one run in unpack
    tenant             whose work it is; part of the key
    config, version    what a result depends on besides arguments; when they change, `pure` work runs anew,
                       any other returns the stored value, unless `on_version_change="new"|"reuse"|"fail"`
                       or the policy's `on_config_change` says otherwise
    policy             a `Policy`, its name or the path of a policy file
    timeout            limit of one attempt
    isolate            "process": plain work runs in a process of its own, which is killed at its limit
    total_timeout      limit of the whole run with its waits, and of waiting for somebody else's
    if_running         "wait" for an attempt that is under way elsewhere, or "raise" `InProgress`
    not_applied        for `once`: errors (types, a predicate, or "not-sent") after which nothing has happened
    reconcile          for `once`: called with the step's arguments when an attempt was lost; answers
                       `oncemore.applied(value)`, `oncemore.not_applied()` or `oncemore.unknown()`
    provider           whom it asks something of: a name, or a function of the arguments; `map` slows down
                       for one that throttles, and a name chooses the policy's values for it; where the
                       policy has a `circuit_breaker`, every call passes that of its provider
    breaker            a `Breaker`, or the name of one, that has to let unpack attempt through; it is kept in
                       the store, and while it is open runs wait for the end of its cooldown (`Deferred`)
    rate               how many attempts in a time, of all who share the store: "10/s", "100/min", a `Rate`;
                       for unpack provider, or for the step where it names none
    budget             a `Budget` that retries take tokens from and successes earn for, in this process, or,
                       where it is shared, in the store; else that of the policy's `retry_budget`
    priority           "P0", "P1" or "P2": what workers do first; the policy's, or P1, unless given
    dataset, retain_for   recorded with the run
    artifact           the name of the one artifact that the step returns (`current().put`): where it is there
                       and valid nothing is run, and where it was altered the run is quarantined
    cooldown           a `Cooldown`: what it asks for is left alone for a while after a failure, by everybody;
                       a call that comes too early raises `CoolingDown` and asks nobody
    approval           "required": no attempt begins before somebody has approved it (`oncemore approve`)
    pipeline           the pipeline that the step belongs to; the function's module unless given. A policy
                       with `halt_scope: pipeline` halts it after an error that is not retryable
    """
    if effect is None:
        raise UsageError(NO_EFFECT)
    if _bare is not None:
        raise UsageError(f"step() takes keywords only, and got {_bare!r}; write @oncemore.step(effect=…)")
    given = complete_options(
        effect=effect, name=name, aliases=aliases, key=key, ignore=ignore, partition=partition,
        bucket=bucket, tenant=tenant, config=config, version=version,
        on_version_change=on_version_change, policy=default_policy() if policy is None else policy,
        timeout=timeout, isolate=isolate, total_timeout=total_timeout, if_running=if_running,
        not_applied=not_applied, reconcile=reconcile, provider=provider, breaker=breaker, rate=rate,
        budget=budget, dataset=dataset, priority=priority, retain_for=retain_for, artifact=artifact,
        cooldown=cooldown, requires_approval=requires_approval, pipeline=pipeline,
    )  # fmt: skip

    def decorate(work: Callable[P, R]) -> Step[P, R]:
        options = StepOptions(work, given)
        warn_policy(*options.policy.warnings())
        return Step(options)

    return decorate
