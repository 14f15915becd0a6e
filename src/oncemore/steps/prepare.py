"""Prepare a call of a step: bind the arguments, compute the key, choose the plan, read the head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

from oncemore import clock as clocks
from oncemore._ids import new_uuid7
from oncemore._values import make
from oncemore.artifacts.artifact import CURRENT_READER, Artifact
from oncemore.audit.error_record import error_to_record
from oncemore.classifiers.classify import classify, ensure_plugins_loaded
from oncemore.errors import (
    CircuitOpen,
    CoolingDown,
    Deferred,
    Error,
    InProgress,
    StoreError,
    UsageError,
)
from oncemore.log import result_codec
from oncemore.log.head_access import load_head
from oncemore.log.record import NOWHERE
from oncemore.log.tagged_json import NotEncodable, TaggedEncoder, untag_value
from oncemore.maintenance.import_keys import ImportedKey, encode_value
from oncemore.open_engine import find_engine
from oncemore.policy.canonical_json import run_seed
from oncemore.policy.model import Failure
from oncemore.policy.policy import PER_KEY, PER_RUN
from oncemore.retries.loop import ENDS
from oncemore.steps.attempt import CURRENT
from oncemore.steps.call_in_progress import CallInProgress, StepFunctions
from oncemore.steps.context import CONTEXT
from oncemore.steps.db_adapters import adapt_connection
from oncemore.steps.keys import input_hash
from oncemore.steps.ops import AttemptTerms, CallIdentity, LoadedHead, StepPlan
from oncemore.steps.options import StepOptions, annotations_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.artifacts.store import ArtifactStore
    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine
    from oncemore.steps.lease import WorkerIdentity

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


#: After so many calls of new work in a row, the next is taken for new without being looked for.
NEW_WORK_STREAK = 16


class PreparedCall(NamedTuple):
    """A call before anything is written: its identity, its plan, and the head of its key.

    The head may be a guess that the key is new; the claim of a known key then fails and reads it.
    """

    engine: Engine
    plan: StepPlan
    call: CallIdentity
    seen: LoadedHead
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    counted: dict[str, Any]
    inputs: bytes
    tenant: str
    withheld: tuple[str, ...] = ()


class CallPreparer(Generic[P, R]):
    """Prepares the calls of a step: key, plan, head, and the terms of an attempt.

    Steps with another kind of work (`oncemore exec`, endpoints, nodes) override single methods.
    """

    def __init__(
        self, options: StepOptions, engine: Engine | None = None, bound: tuple[Any, ...] = ()
    ) -> None:
        self._options, self._engine, self._bound = options, engine, bound
        self._plan: StepPlan | None = None
        self._plans: dict[str, StepPlan] = {}
        self._artifact_store: ArtifactStore | None = None
        self._wait_s = 0.0
        self._new_in_a_row = 0
        self._is_async = options.colour == "coroutine"
        self._functions = StepFunctions(
            options.name,
            options.function,
            _tag_value,
            untag_value,
            adapt_connection,
            options.reconcile,
            self._is_async,
            options.isolate,
            options.artifact,
            options.recall_arguments,
            options.lease,
        )
        for worn in ("__module__", "__name__", "__qualname__", "__doc__"):
            if hasattr(options.function, worn):
                setattr(self, worn, getattr(options.function, worn))
        self.__annotations__ = annotations_of(options.function)
        self.__wrapped__ = options.function
        if self._is_async:
            mark_coroutine(self)

    @property
    def name(self) -> str:
        """The name that the step has in the log."""
        return self._options.name

    def _prepare_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, guess: bool = False
    ) -> PreparedCall:
        """Return the identity of a call and the head of its key.

        guess  whether the key may be assumed new, without a read, after a streak of calls with new keys
        """
        options, engine, context = self._options, self._engine or find_engine(), CONTEXT.get()
        if self._bound:
            args = (*self._bound, *args)
        bound = options.bind_arguments(args, kwargs)
        counted = options.select_key_arguments(bound)
        tenant = options.tenant_of(context.tenant, args, kwargs)
        now = engine.now() if options.needs_clock or context.deadline or ENDS.get() is not None else 0.0
        key, inputs = options.compute_key(counted, args, kwargs, tenant, now)
        entity = "run/" + key
        if CURRENT.get() is not None:
            _check_not_recursive(options.name, entity)
        ends = compute_deadlines(options.policy.total_timeout_s, context.deadline, now) if now else _NO_END
        own = "" if options.keys_all_arguments else input_hash(inputs)
        call = make(CallIdentity, (entity, own, options.config_hash(), *ends, tenant, ""))
        plan, withheld = self._plan, _NONE
        if (
            plan is None
            or self._artifact_store is not engine.artifact_store
            or self._wait_s != engine.inline_wait_s
        ):
            plan = self._plan_for_engine(engine)
        if options.limits_each_provider:
            plan = self._plan_for_provider(plan, options.provider_of(args, kwargs))
        if counted is not bound:
            secrets, withheld = options.secret_texts(bound), options.list_withheld(bound)
            plan = plan.copy_with(describe=lambda error, failure: error_to_record(error, failure, secrets))
        if (
            guess
            and self._new_in_a_row >= NEW_WORK_STREAK
            and not (now or options.artifact or options.other_names or engine.copy_notice)
        ):
            seen = make(LoadedHead, (entity, 0, NOWHERE, None, None))
        else:
            seen = load_head(engine.store, entity, engine.cipher)
            if options.other_names and seen.record is None:
                found = _find_run_under_alias(
                    engine, options.compute_alias_keys(counted, args, kwargs, tenant, now)
                )
                if found is not None:
                    seen, call = found, call._replace(entity=found.entity)
            if seen.version:
                self._new_in_a_row = 0
        return make(PreparedCall, (engine, plan, call, seen, args, kwargs, counted, inputs, tenant, withheld))

    def _start_call(self, prepared: PreparedCall) -> CallInProgress:
        """Return the `CallInProgress` that performs the operations of a script."""
        engine = prepared.engine
        if engine.copy_notice and self._options.effect != "pure" and not has_ended(prepared.seen):
            engine.check_original()

        def terms(me: WorkerIdentity | None, now: float) -> AttemptTerms:
            if engine.copy_notice and self._options.effect != "pure":
                engine.check_original()
            return self._make_terms(prepared, "" if me is None else me.name, now)

        return CallInProgress(engine, terms, self._functions, prepared.args, prepared.kwargs)

    def _make_terms(self, prepared: PreparedCall, worker: str, now: float) -> AttemptTerms:
        """Return the terms of an attempt that begins now."""
        options, run_id, context = self._options, new_uuid7(now), CONTEXT.get()
        _, _, call, _, args, kwargs, counted, inputs, tenant, withheld = prepared
        return make(
            AttemptTerms,
            (
                worker,
                run_id,
                options.encode_arguments(counted),
                call.input_hash or input_hash(inputs),
                _choose_seed(options.policy, call.entity),
                tenant,
                context.correlation_id or run_id,
                options.dataset_of(args, kwargs),
                options.priority,
                options.retain_s,
                options.provider_of(args, kwargs),
                "" if worker else context.actor,
                withheld,
            ),
        )

    def build_import(self, named: dict[str, Any], value: Any, reason: str, by: str) -> ImportedKey:
        """Return the write of `mark_done` and `oncemore import` for a key.

        named  the arguments by name; where `key=` names some of them, those are enough
        """
        filled = self._options.fill_missing_arguments(named, len(self._bound))
        return self._build_import(
            self._prepare_call((), filled), value, reason, by, named if filled != named else None
        )

    def _build_import(
        self, prepared: PreparedCall, value: Any, reason: str, by: str, named: dict[str, Any] | None = None
    ) -> ImportedKey:
        terms, call = self._make_terms(prepared, "", prepared.engine.now()), prepared.call
        if (
            named is not None and not self._options.keys_all_arguments
        ):  # then nobody can tell what the others were
            kept = {name: plain for name, plain in terms.arguments.items() if name in named}
            terms, call = terms._replace(input_hash="", arguments=kept), call._replace(input_hash="")
        told = {"action": "import", "reason": reason, "actor": by}
        body = {"arguments": terms.arguments, "result": encode_value(prepared.plan, value), "decision": told}
        return ImportedKey(prepared.plan, call, terms, prepared.seen, body)

    def _plan_for_engine(self, engine: Engine) -> StepPlan:
        """Return the plan, made at the first call: annotations may name types that are defined later."""
        plan = self._plan
        if (
            plan is None
            or self._artifact_store is not engine.artifact_store
            or self._wait_s != engine.inline_wait_s
        ):
            options, artifact_store = self._options, engine.artifact_store
            if options.isolate:
                from oncemore.steps.isolation import check_importable

                check_importable(options.name, options.function)
            encode, decode = _make_result_codec(options, artifact_store)
            ensure_plugins_loaded()
            plan = StepPlan(
                options.name,
                options.effect,
                options.policy,
                _classify_error,
                encode=encode,
                decode=decode,
                describe=error_to_record,
                not_applied=options.not_applied,
                asks=options.reconcile is not None,
                if_running=options.if_running,
                inline_wait_s=engine.inline_wait_s,
                after_failure=options.after_failure,
                on_version_change=options.on_version_change,
                artifact=options.artifact,
                large=result_codec.is_large,
                quarantines=options.quarantines,
                approval=options.requires_approval,
                barrier=options.fixed_breaker,
                purse=options.retry_budget,
                pipeline=options.pipeline,
                halts=options.halts,
                policy_source=options.policy_source,
                repeats_once=options.repeats_once,
                escalation=options.escalation,
            )
            plan = self._plan = self._adjust_plan(plan)
            self._artifact_store, self._wait_s, self._plans = artifact_store, engine.inline_wait_s, {}
        return plan

    def _adjust_plan(self, plan: StepPlan) -> StepPlan:
        """Return the plan as this kind of step has it."""
        return plan

    def _plan_for_provider(self, plan: StepPlan, provider: str) -> StepPlan:
        """Return the plan of calls to a provider, with that provider's own breaker and rate limit."""
        if not self._options.limits_each_provider:
            return plan
        known = self._plans.get(provider)
        if known is None:
            if len(self._plans) >= MAX_PROVIDER_PLANS:
                self._plans = {}
            options = self._options
            barrier = options.breaker_of(provider) if options.fixed_breaker is None else options.fixed_breaker
            known = plan.copy_with(barrier=barrier, beat=options.rate_of(provider))
            self._plans[provider] = known
        return known


def _make_result_codec(
    options: StepOptions, artifact_store: ArtifactStore
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the encoder and the decoder of a step's results; decoded artifacts know their store."""
    returns, name = options.return_annotation(), options.artifact

    def encode(value: Any) -> Any:
        if name and (type(value) is not Artifact or value.name != name):
            raise NotEncodable(
                f"the step is declared to return the artifact {name!r}; it returned {value!r:.80}"
            )
        return value if result_codec.is_plain_result(value) else result_codec.encode_result(value, returns)

    def decode(plain: Any) -> Any:
        if type(plain) in _PLAIN_TYPES:
            return plain
        before = CURRENT_READER.set(artifact_store)
        try:
            return result_codec.result_value(plain, returns)
        finally:
            CURRENT_READER.reset(before)

    return encode, decode


def _find_run_under_alias(engine: Engine, keys: Iterator[str]) -> LoadedHead | None:
    """Return the run of a key that was begun under another of the step's names, if there is one."""
    for key in keys:
        seen = load_head(engine.store, "run/" + key, engine.cipher)
        if seen.record is not None:
            return seen
    return None


def has_ended(seen: LoadedHead) -> bool:
    """Return whether the key's last run has ended; its outcome can be read even from a copied store."""
    return seen.record is not None and seen.record.state in ("COMPLETE", "HARD_FAIL")


def _tag_value(value: Any) -> Any:
    return _ENCODER.tag_value(value, "the value")


def _classify_error(error: BaseException, now: float) -> Failure:
    """Return the failure of an error; an inner step's error is permanent or carries its own due time."""
    if isinstance(error, Deferred | CoolingDown) and error.until:
        return Failure(
            "transient", "maybe", max(0.0, error.until - now), "STEP_PARKED", "oncemore:inner step"
        )
    if isinstance(error, CircuitOpen):
        return Failure("transient", "no", max(0.0, error.until - now), "CIRCUIT_OPEN", "oncemore:breaker")
    if isinstance(error, InProgress | StoreError):
        return Failure("transient", "maybe", None, "STEP_IN_PROGRESS", "oncemore:inner step")
    if isinstance(error, Error) and error.run is not None:
        return Failure("permanent", "maybe", None, "STEP_FAILED", "oncemore:inner step")
    return classify(error, now)


def _choose_seed(policy: Policy, entity: str) -> str:
    """Return the seed of a run's draws; empty for the default, which is derived from the run's id."""
    if policy.jitter_seed == PER_RUN:
        return ""
    return run_seed(entity.removeprefix("run/")) if policy.jitter_seed == PER_KEY else policy.jitter_seed


def describe_and_throttle(
    engine: Engine, provider: str, describe: Callable[..., dict[str, Any]]
) -> Callable[..., Any]:
    """Return the error recorder; it also lowers the concurrency limit of a throttling provider."""
    began = engine.now()

    def tell(error: BaseException, failure: Failure | None) -> dict[str, Any]:
        if failure is not None and failure.kind == "throttled":
            engine.concurrency_limits.record_throttling(provider, began)
        return describe(error, failure)

    return tell


#: For how many providers a step keeps a plan.
MAX_PROVIDER_PLANS = 1000

_ENCODER = TaggedEncoder()
_NO_END = (0.0, 0.0)
#: What a stored result may be without standing for anything else.
_PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))
_NONE: tuple[str, ...] = ()


def compute_deadlines(
    total_timeout_s: float | None, outer_deadline: float, now: float
) -> tuple[float, float]:
    """Return when a new run must be over, and how long this caller waits; 0 for ever."""
    own = now + total_timeout_s if total_timeout_s is not None else 0.0
    deadline = min(own, outer_deadline) if own and outer_deadline else own or outer_deadline
    outer = ENDS.get()
    if outer is None:
        return deadline, deadline
    left = now + max(0.0, outer - clocks.current.monotonic())
    return deadline, min(deadline, left) if deadline else left


def _check_not_recursive(name: str, entity: str) -> None:
    """Refuse a step that calls itself with the same key: it would wait for itself."""
    attempt = CURRENT.get()
    while attempt is not None:
        if attempt.seen.entity == entity:
            raise UsageError(f"{name} calls itself with the same key; it would wait for itself for ever")
        attempt = attempt.parent


def mark_coroutine(made: Any) -> None:
    """Let `inspect.iscoroutinefunction` know that a call gives a coroutine."""
    import asyncio
    import inspect

    mark: Any = vars(inspect).get("markcoroutinefunction")  # from Python 3.12 on
    mark(made) if mark else setattr(made, "_is_coroutine", vars(asyncio.coroutines)["_is_coroutine"])
