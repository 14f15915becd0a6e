"""Prepare and run the calls of a step: bind the arguments, compute the key, choose the plan, read the head.

`StepCalls` is the base of `oncemore.Step`, with the methods for users and operators, and of the other kinds
of steps (programs, endpoints, messages, nodes); these override single methods.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from oncemore._values import make
from oncemore.audit.error_record import error_to_record
from oncemore.errors import (
    CallRefused,
    Deferred,
    Error,
    InProgress,
    NotPermitted,
    OutcomeUncertain,
    Quarantined,
    StepFailed,
    StoreError,
    UsageError,
)
from oncemore.log.annotations import annotations_of
from oncemore.log.entry_codec import load_head, new_uuid7
from oncemore.log.record import NOWHERE, LoadedHead
from oncemore.open_engine import find_engine
from oncemore.policy.canonical_json import run_seed
from oncemore.policy.policy import PER_KEY, PER_RUN
from oncemore.retries.loop import ENDS
from oncemore.steps import flow, transitions
from oncemore.steps.attempt import CURRENT
from oncemore.steps.call import PreparedCall
from oncemore.steps.call_operations import CALL_OPERATIONS
from oncemore.steps.context import CONTEXT, compute_deadlines
from oncemore.steps.current_attempt import current_key, find_outer_start
from oncemore.steps.entered_engine import ENTERED_ENGINES
from oncemore.steps.history import find_opening
from oncemore.steps.importing import IMPORTING, refuse_during_import
from oncemore.steps.keys import input_hash
from oncemore.steps.ops import AttemptTerms
from oncemore.steps.perform import run_call, run_call_async
from oncemore.steps.plan import StepPlan, build_plan, describe_and_throttle
from oncemore.steps.run import Run
from oncemore.steps.signature import mark_coroutine_function
from oncemore.workers.poll import ResumedCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import EndCall, Script
    from oncemore.steps.options import StepOptions

    #: Makes the script of a decision that comes before a call, such as a rerun.
    DecisionScript = Callable[[StepPlan, PreparedCall], Script]

P = ParamSpec("P")
R = TypeVar("R")

#: After so many calls of new keys in a row, the next key is assumed to be new too, without a read.
NEW_KEY_STREAK = 16
#: The largest number of providers with a cached plan, per step.
MAX_PROVIDER_PLANS = 1000
_NO_DEADLINE = (0.0, 0.0)
_COPIED_ATTRIBUTES = ("__module__", "__name__", "__qualname__", "__doc__")


class StepCalls(Generic[P, R]):
    """Prepares and runs the calls of a step."""

    #: The functions that perform the operations of its calls.
    _operations = CALL_OPERATIONS

    def __init__(
        self, options: StepOptions, engine: Engine | None = None, bound: tuple[Any, ...] = ()
    ) -> None:
        self._options, self._engine, self._bound = options, engine, bound
        # The plan of the engine that was used last, and the plans of its providers.
        self._plan: StepPlan | None = None
        self._provider_plans: dict[str, StepPlan] = {}
        self._planned_for: tuple[Any, float] = (None, 0.0)
        self._new_in_a_row = 0
        self._is_async = options.colour == "coroutine"
        for name in _COPIED_ATTRIBUTES:
            if hasattr(options.function, name):
                setattr(self, name, getattr(options.function, name))
        self.__annotations__ = annotations_of(options.function)
        self.__wrapped__ = options.function
        if self._is_async:
            mark_coroutine_function(self)

    @property
    def name(self) -> str:
        """The name that the step has in the log."""
        return self._options.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the value: computed now, or stored from before; raise if the work failed."""
        outer = CURRENT.get()
        if outer is not None and outer.journal is not None and outer.journal.is_workflow:
            return outer.journal.call_step(self, args, kwargs)  # type: ignore[no-any-return, attr-defined]
        if self._is_async:
            return self._call_async(args, kwargs)  # type: ignore[return-value]
        return self._call_sync(args, kwargs)  # type: ignore[no-any-return]

    # Preparing --------------------------------------------------------------------------------------

    def _prepare_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, guess: bool = False
    ) -> PreparedCall:
        """Return the call with its key, its plan and the head of its key.

        guess  whether the key may be assumed new, without a read, after a streak of calls with new keys
        """
        options, context, entered = self._options, CONTEXT.get(), ENTERED_ENGINES.get()
        engine = self._engine or (entered[-1] if entered else find_engine())
        keys, store = options.keys, engine.opened_store or engine.store
        if self._bound:
            args = (*self._bound, *args)
        bound = keys.bind_arguments(args, kwargs)
        counted = keys.select_arguments(bound)
        tenant = context.tenant if keys.tenant is None else keys.tenant_of(context.tenant, args, kwargs)
        # The clock is read only if the key, a deadline or an outer limit needs it; 0 stands for unread.
        needs_now = options.uses_clock or context.deadline or ENDS.get() is not None
        now = engine.now() if needs_now else 0.0
        key, inputs, is_plain = keys.compute_key(counted, args, kwargs, tenant, now)
        call = PreparedCall("run/" + key, self._plan_for(engine, args, kwargs))
        call.engine, call.store, call.make_terms = engine, store, self._make_terms
        call.args, call.kwargs, call.counted, call.inputs, call.tenant = args, kwargs, counted, inputs, tenant
        call.is_plain = is_plain
        call.cfg_hash = options.fixed_cfg_hash or options.config_hash()
        if options.is_gated:
            call.dataset, call.masking = options.gate_terms_of(args, kwargs)
        if CURRENT.get() is not None:
            call.outer_start = find_outer_start(options.name, call.entity)
        if now:
            call.deadline, call.give_up = compute_deadlines(
                options.policy.total_timeout_s, context.deadline, now
            )
        if not keys.keys_all_arguments:
            call.input_hash = input_hash(inputs)
        if counted is not bound:
            secrets, call.withheld = (
                options.arguments.secret_texts(bound),
                options.arguments.list_withheld(bound),
            )
            call.plan = call.plan.copy_with(
                describe=lambda error, failure: error_to_record(error, failure, secrets)
            )
        may_guess = guess and self._new_in_a_row >= NEW_KEY_STREAK
        if may_guess and not (now or options.artifact or keys.other_names or engine.copy_check.notice):
            call.head = make(LoadedHead, (call.entity, 0, NOWHERE, None, None))
            return call
        call.head = load_head(call.store, call.entity, engine.cipher)
        if keys.other_names and call.head.record is None:
            self._use_run_under_alias(call, now)
        if call.head.version:
            self._new_in_a_row = 0
        return call

    def _use_run_under_alias(self, call: PreparedCall, now: float) -> None:
        """Let the call continue a run that began under another name of the step, if there is one."""
        for key in self._options.keys.compute_alias_keys(
            call.counted, call.args, call.kwargs, call.tenant, now
        ):
            head = load_head(call.store, "run/" + key, call.engine.cipher)
            if head.record is not None:
                call.head, call.entity = head, head.entity
                return

    def _plan_for(self, engine: Engine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepPlan:
        """Return the plan of a call, for its engine and its provider."""
        plan, options = self._plan, self._options
        if plan is None or self._planned_for != (engine.artifact_store, engine.inline_wait_s):
            plan = self._plan_for_engine(engine)
        if options.limits_each_provider:
            plan = self._plan_for_provider(plan, options.provider_of(args, kwargs))
        return plan

    def _plan_for_engine(self, engine: Engine) -> StepPlan:
        if self._plan is None or self._planned_for != (engine.artifact_store, engine.inline_wait_s):
            self._plan = self._adjust_plan(build_plan(self._options, engine))
            self._planned_for, self._provider_plans = (engine.artifact_store, engine.inline_wait_s), {}
        return self._plan

    def _adjust_plan(self, plan: StepPlan) -> StepPlan:
        """Return the plan as this kind of step has it."""
        return plan

    def _plan_for_provider(self, plan: StepPlan, provider: str) -> StepPlan:
        """Return the plan of calls to a provider, with that provider's own breaker and rate limit."""
        provider_plan = self._provider_plans.get(provider)
        if provider_plan is None:
            if len(self._provider_plans) >= MAX_PROVIDER_PLANS:
                self._provider_plans = {}
            options = self._options
            breaker, rate = options.breaker_of(provider), options.rate_of(provider)
            provider_plan = self._provider_plans[provider] = plan.copy_with(breaker=breaker, rate=rate)
        return provider_plan

    def _make_terms(self, call: PreparedCall, worker: str, now: float) -> AttemptTerms:
        """Return the terms of an attempt that begins now; without a worker, of a submitted run."""
        options, run_id, context = self._options, new_uuid7(now), CONTEXT.get()
        if call.engine.copy_check.notice and options.effect != "pure":
            call.engine.copy_check.check_original()
        arguments, policy = call.counted, options.policy
        if not call.is_plain:
            arguments = options.keys.encode_arguments(arguments)
        seed = "" if policy.jitter_seed == PER_RUN else _choose_seed(policy, call.entity)
        digest, correlation_id = call.input_hash or input_hash(call.inputs), context.correlation_id or run_id
        provider = "" if options.provider is None else options.provider_of(call.args, call.kwargs)
        actor, is_workflow = "" if worker else context.actor, call.plan.is_workflow
        # fmt: off
        # All fields in their order: every attempt passes here, and names cost three times as much.
        terms = (
            worker, run_id, arguments, digest, seed, call.tenant, correlation_id, call.dataset,
            options.priority, options.retain_s, provider, actor, call.withheld, current_key(), is_workflow,
            "",  # the trace context, which `observers.begin_trace` adds
            options.pipeline,
        )
        # fmt: on
        return make(AttemptTerms, terms)

    # Running ----------------------------------------------------------------------------------------

    def _call_sync(
        self,
        args: Any,
        kwargs: Any,
        decision: DecisionScript | None = None,
        call: PreparedCall | None = None,
    ) -> Any:
        """Run a call in this thread; `decision` makes the script of an operator's decision before it."""
        if IMPORTING:
            refuse_during_import(self.name)
        call = call or self._prepare_call(args, kwargs, guess=True)
        is_new = call.head.record is None
        end = None if is_new else transitions.end_if_complete(call.plan, call, call.head)
        if end is not None and decision is None:
            return end.value
        if call.engine.copy_check.notice:
            _check_original(call)
        if self._options.cooldown is not None:
            self._use_cooldown(call)
        try:
            if decision is not None:
                run_call(call, decision(call.plan, call), self._operations)
            script = flow.run_step(call.plan, call, None if decision else call.head)
            return run_call(call, script, self._operations)
        except Error as error:
            return self._value_or_raise(call, error)
        finally:
            self._new_in_a_row = 0 if call.was_reread else self._new_in_a_row + 1

    async def _call_async(
        self,
        args: Any,
        kwargs: Any,
        decision: DecisionScript | None = None,
        call: PreparedCall | None = None,
    ) -> Any:
        """Run a call in this task; like `_call_sync`."""
        if IMPORTING:
            refuse_during_import(self.name)
        call = call or self._prepare_call(args, kwargs, guess=True)
        is_new = call.head.record is None
        end = None if is_new else transitions.end_if_complete(call.plan, call, call.head)
        if end is not None and decision is None:
            return end.value
        if call.engine.copy_check.notice:
            _check_original(call)
        if self._options.cooldown is not None:
            self._use_cooldown(call)
        try:
            if decision is not None:
                await run_call_async(call, decision(call.plan, call), self._operations)
            script = flow.run_step(call.plan, call, None if decision else call.head)
            return await run_call_async(call, script, self._operations)
        except Error as error:
            return self._value_or_raise(call, error)
        finally:
            self._new_in_a_row = 0 if call.was_reread else self._new_in_a_row + 1

    def _use_cooldown(self, call: PreparedCall) -> None:
        """Add the resource of a call and its cooldown to the plan, if the step has one."""
        if self._options.cooldown is not None and call.plan.cooldown is None:
            call.plan = call.plan.copy_with(cooldown=self._options.cooldown_of(call.args, call.kwargs))

    def _value_or_raise(self, call: PreparedCall, error: Error) -> Any:
        """Raise the error of a call with its run; return the value of a key that was assumed to be new."""
        # The claim of a new key fails on a full disk; a finished run can still be read.
        if not call.was_reread and isinstance(error, StoreError):
            call.was_reread = True
            end: EndCall | None = None
            with suppress(Error):
                head = load_head(call.store, call.entity, call.engine.cipher)
                end = transitions.end_if_complete(call.plan, call, head)
            if end is not None:
                return end.value
        self._attach_run(error, call)
        raise error

    def _run_script(self, call: PreparedCall, script: Script) -> Any:
        """Run the script of an operator and return the run; to be awaited if the step is async."""
        if IMPORTING:
            refuse_during_import(self.name)
        return self._run_script_async(call, script) if self._is_async else self._run_script_sync(call, script)

    def _run_script_sync(self, call: PreparedCall, script: Script) -> Run[Any]:
        _check_original(call)
        try:
            run_call(call, script, CALL_OPERATIONS)
        except Error as error:
            self._attach_run(error, call)
            raise
        return self._load_run(call)

    async def _run_script_async(self, call: PreparedCall, script: Script) -> Run[Any]:
        _check_original(call)
        try:
            await run_call_async(call, script, CALL_OPERATIONS)
        except Error as error:
            self._attach_run(error, call)
            raise
        return self._load_run(call)

    def _resume_run(self, engine: Engine, head: LoadedHead) -> ResumedCall:
        """Return the call that continues a run of another process, from its recorded arguments.

        It does not wait: a run that is not due or not free is left to the worker's next poll.
        """
        run, opening, options = head.record, head.body or {}, self._options
        if "arguments" not in opening:
            opening = find_opening(engine.store.read_entries(head.entity), engine.cipher)
        if "arguments" not in opening or opening.get("withheld"):
            missing = ", ".join(opening.get("withheld", ())) or "its arguments"
            raise UsageError(
                f"{self.name}: key {head.entity[4:16]} cannot go on here, the log does not have {missing}"
            )
        with engine.artifact_store.use_store():
            args, kwargs = options.arguments.decode(opening["arguments"])
        plan = self._plan_for(engine, args, kwargs).copy_with(
            if_running="raise", inline_wait_s=0.0, after_failure="raise", on_version_change="reuse"
        )
        if run.provider:
            plan = plan.copy_with(describe=describe_and_throttle(engine, run.provider, plan.describe))
        call = PreparedCall(
            head.entity, plan, engine=engine, store=engine.store, head=head, make_terms=self._make_terms,
            args=args, kwargs=kwargs, cfg_hash=run.cfg_hash, code_hash=options.config_hash(),
            deadline=run.deadline, tenant=run.tenant, recorded=(run.run_id, opening["arguments"]),
            parent=opening.get("parent", ""),
        )  # fmt: skip
        call.dataset, call.masking = options.gate_terms_of(args, kwargs)
        _check_original(call)
        self._use_cooldown(call)
        return ResumedCall(call, flow.run_step(call.plan, call, head), opening.get("actor", ""))

    def _attach_run(self, error: Error, call: PreparedCall) -> None:
        """Attach the run to an error, if there is one and the store can still be read."""
        if error.run is None and not isinstance(error, StoreError):
            with suppress(StoreError):
                run = self._load_run(call)
                error.run = run if run.version else None

    def _load_run(self, call: PreparedCall) -> Run[Any]:
        return Run(call.engine, call.entity, self._plan_for_engine(call.engine).decode)


#: Errors that `Step.run` returns as the state of a run instead of raising them.
OUTCOME_ERRORS = (StepFailed, CallRefused, OutcomeUncertain)
_RUN_ERRORS = (StepFailed, OutcomeUncertain, Deferred, InProgress, Quarantined, NotPermitted)


def get_run(error: Error) -> Run[Any]:
    """Return the run of an error that is an outcome of a call; raise any other error."""
    if not isinstance(error.run, Run) or not isinstance(error, _RUN_ERRORS):
        raise error
    return error.run


def _check_original(call: PreparedCall) -> None:
    """Refuse effects on a restored copy; a finished run can be read from a copy."""
    if call.engine.copy_check.notice and call.plan.effect != "pure" and not has_ended(call.head):
        call.engine.copy_check.check_original()


def has_ended(head: LoadedHead) -> bool:
    """Return whether the key's last run has ended; its outcome can be read even from a copied store."""
    return head.record is not None and head.record.state in transitions.FINAL_STATES


def _choose_seed(policy: Policy, entity: str) -> str:
    """Return the seed of a run's random draws, where its policy has one; else it follows from the run id."""
    return run_seed(entity.removeprefix("run/")) if policy.jitter_seed == PER_KEY else policy.jitter_seed
