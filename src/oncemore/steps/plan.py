"""The plan of a step: its options, checked and ready for the script of a call.

`Step` makes a plan from `StepOptions` for an engine and a provider. The other kinds of steps (programs,
endpoints, messages, nodes, the facade of exoarmur) make or adjust their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, structs

from oncemore.artifacts.artifact import CURRENT_READER, Artifact
from oncemore.audit.error_record import error_to_record
from oncemore.classifiers.classify import classify, ensure_plugins_loaded
from oncemore.errors import CircuitOpen, CoolingDown, Deferred, Error, InProgress, SignalTimeout, StoreError
from oncemore.log import entry_codec
from oncemore.log.tagged_json import NotEncodable
from oncemore.policy.model import Failure
from oncemore.policy.policy import ESCALATION, policy_name
from oncemore.retries.loop import NOT_MET

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.artifacts.store import ArtifactStore
    from oncemore.limits.breaker_rules import BreakerRules
    from oncemore.limits.budget import TokenBucket
    from oncemore.limits.cooldown_step import CooldownCall
    from oncemore.limits.queue_rules import StepQueue
    from oncemore.limits.rate_rules import RateLimit
    from oncemore.policy.files.loaded import Profile
    from oncemore.policy.model import Effect
    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine
    from oncemore.steps.options import StepOptions
    from oncemore.telemetry.autonomy_rules import StepAutonomy

    Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class StepBreaker(NamedTuple):
    """The breaker of a step's provider: its entity in the log, and the rules that open it."""

    entity: str
    rules: BreakerRules


class StepRate(NamedTuple):
    """The rate limit of a step's provider: its name and its numbers."""

    name: str
    limit: RateLimit


class StepBudget(NamedTuple):
    """The retry budget of a step.

    entity  its entity in the log; empty for a budget of this process alone, with the tokens in `budget`
    """

    entity: str
    budget: TokenBucket


class UntilNotMet(Exception):
    """A step returned a value that its `until=` does not accept; `value` is that value."""

    def __init__(self, step: str, value: object) -> None:
        super().__init__(f"{step} returned a value that until= does not accept")
        self.value = value


def _is_never(subject: object) -> bool:
    return False


def refuse_call(*args: Any, **kwargs: Any) -> Any:  # pragma: no cover - reached only by a bug
    """Raise: the plan is for a decision of an operator, and no decision calls the function of a step."""
    raise AssertionError("a decision of an operator calls no function of a step")


class StepPlan(Struct, frozen=True, kw_only=True):
    """The options of a step, checked and ready for the script of a call.

    The function:

    function           the function of the step
    is_async           whether it is an async function
    isolate            whether it runs in a process of its own, or the function that calls it
    recall_arguments   recorded arguments, and those of the call → the arguments as they were recorded
    reconcile          the function that is asked about a lost attempt, if there is one
    encode, decode     value → its stored form, or raise; and back
    stores_plain       whether plain values (text, numbers, None) are their own stored form
    is_large           whether an encoded result is too large for the log
    artifact           the name of the artifact that is the step's result; empty if there is none

    Failures:

    classify           error and time → its failure
    describe           error and failure → the stored error record, redacted
    not_applied        whether an error shows that a `once` effect did not happen
    covers             whether an error may be retried (`on=`), where the policy's classes do not decide
    until              whether a value is the result, if the step has such a function; else the attempt failed
    repeats_rejected   whether a new call begins work that an operator has rejected
    repeats_once       whether a `once` step is retried after an error that shows that nothing happened
    after_failure      "raise", or "new_run": a new call of failed work begins a new run
    quarantines        whether a failure that is not retried waits for an operator (CLASS-3)
    halts              whether such a failure halts the pipeline (CLASS-3)
    escalation         the policies that escalation records name: after a permanent error, and after attempts
                       or time run out

    Everything else:

    has_reconcile      whether there is a `reconcile` function
    is_workflow        whether the function is a workflow: it may wait without holding a thread
    if_running         "wait" for an attempt of another worker, or "raise"
    inline_wait_s      the longest wait that a call sits out
    on_version_change  "new", "reuse", "fail", or None: by the effect
    requires_approval  whether every attempt needs an approval
    obeys_switches     whether switches stop the step; False for the steps that turn switches
    pipeline           the pipeline of the step; empty if there is none
    operation          the operation that the step does to its dataset
    breaker, rate, budget   the limits of its provider and of its retries, if there are any
    queue              the queue of the step, if there is one
    autonomy           the autonomy matrix of its policy, if there is one
    cooldown           the resource of this call and its cooldown, if there is one
    lease              length and heartbeat interval of its runs' lease, where a policy sets them
    policy_source      the address of the policy's file; empty for a policy made in code
    governed_profile   the profile of a governed file, whose version the store remembers; else None
    """

    name: str
    effect: Effect
    policy: Policy
    classify: Callable[[BaseException, float], Failure]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    describe: Callable[[BaseException, Failure | None], dict[str, Any]]
    after_failure: str = "raise"
    artifact: str = ""
    autonomy: StepAutonomy | None = None
    breaker: StepBreaker | None = None
    budget: StepBudget | None = None
    cooldown: CooldownCall | None = None
    covers: Callable[[Exception, Failure], bool] | None = None
    escalation: tuple[str, str] = ESCALATION
    function: Callable[..., Any] = refuse_call
    governed_profile: Profile | None = None
    halts: bool = False
    has_reconcile: bool = False
    if_running: str = "wait"
    inline_wait_s: float = 60.0
    is_async: bool = False
    is_workflow: bool = False
    is_large: Callable[[Any], bool] = _is_never
    isolate: bool | Callable[..., Any] = False
    lease: tuple[float, float] | None = None
    not_applied: Callable[[Exception], bool] = _is_never
    obeys_switches: bool = True
    on_version_change: str | None = None
    operation: str = ""
    pipeline: str = ""
    policy_name: str = ""
    policy_source: str = ""
    quarantines: bool = False
    queue: StepQueue | None = None
    rate: StepRate | None = None
    recall_arguments: Callable[[dict[str, Any], tuple[Any, ...], dict[str, Any]], Arguments] | None = None
    reconcile: Callable[..., Any] | None = None
    repeats_once: bool = True
    repeats_rejected: bool = False
    requires_approval: bool = False
    stores_plain: bool = False
    until: Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        if not self.policy_name:
            structs.force_setattr(self, "policy_name", policy_name(self.policy))

    def copy_with(self, **changes: Any) -> StepPlan:
        """Return a copy with some fields changed."""
        return structs.replace(self, **changes)


def build_plan(options: StepOptions, engine: Engine) -> StepPlan:
    """Return the plan of a step on an engine.

    It is built at the first call: annotations may name types that are defined after the step.
    """
    if options.isolate:
        from oncemore.steps.isolation import check_importable

        check_importable(options.name, options.function)
    encode, decode = _make_result_codec(options, engine.artifact_store)
    # Before the first error, which one of them may have to classify.
    ensure_plugins_loaded()
    return StepPlan(
        name=options.name,
        effect=options.effect,
        policy=options.policy,
        policy_source=options.policy_source,
        governed_profile=options.governed_profile,
        classify=classify_step_error,
        encode=encode,
        decode=decode,
        describe=error_to_record,
        function=options.function,
        is_async=options.colour == "coroutine",
        isolate=options.isolate,
        recall_arguments=options.arguments.recall,
        reconcile=options.reconcile,
        has_reconcile=options.reconcile is not None,
        is_large=entry_codec.is_large,
        stores_plain=not options.artifact,
        artifact=options.artifact,
        not_applied=options.not_applied,
        covers=options.covers,
        until=options.until,
        repeats_once=options.repeats_once,
        after_failure=options.after_failure,
        quarantines=options.quarantines,
        halts=options.halts,
        escalation=options.escalation,
        if_running=options.if_running,
        inline_wait_s=engine.inline_wait_s,
        on_version_change=options.on_version_change,
        requires_approval=options.requires_approval,
        pipeline=options.pipeline,
        operation=options.operation,
        breaker=options.fixed_breaker,
        budget=options.retry_budget,
        queue=options.queue,
        autonomy=options.autonomy,
        lease=options.lease,
    )


def _make_result_codec(
    options: StepOptions, artifact_store: ArtifactStore
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the encoder and the decoder of a step's results; decoded artifacts know their store."""
    codec, artifact = options.make_result_codec(), options.artifact

    def encode(value: Any) -> Any:
        if artifact and (type(value) is not Artifact or value.name != artifact):
            raise NotEncodable(
                f"the step is declared to return the artifact {artifact!r}; it returned {value!r:.80}"
            )
        if entry_codec.is_plain_result(value):
            return value
        return codec.encode(value)

    def decode(plain: Any) -> Any:
        if type(plain) in entry_codec.PLAIN_TYPES:
            return plain
        # Artifacts in the value read their content from this store.
        token = CURRENT_READER.set(artifact_store)
        try:
            return codec.decode(plain)
        finally:
            CURRENT_READER.reset(token)

    return encode, decode


def classify_step_error(error: BaseException, now: float) -> Failure:
    """Return the failure of an error; the error of an inner step is permanent or has its own due time."""
    if type(error) is UntilNotMet:
        return NOT_MET
    # A recorded time-out comes again in every attempt.
    if isinstance(error, SignalTimeout):
        return Failure("permanent", "maybe", None, "SIGNAL_TIMEOUT", "oncemore:signal")
    if isinstance(error, Deferred | CoolingDown) and error.until:
        wait = max(0.0, error.until - now)
        return Failure("transient", "maybe", wait, "STEP_PARKED", "oncemore:inner step")
    if isinstance(error, CircuitOpen):
        wait = max(0.0, error.until - now)
        return Failure("transient", "no", wait, "CIRCUIT_OPEN", "oncemore:breaker")
    # The inner step may have begun: for a `once` outer step that is "maybe".
    if isinstance(error, InProgress | StoreError):
        return Failure("transient", "maybe", None, "STEP_IN_PROGRESS", "oncemore:inner step")
    # The inner step has its own retries and has used them: repeating the outer one would multiply them.
    if isinstance(error, Error) and error.run is not None:
        return Failure("permanent", "maybe", None, "STEP_FAILED", "oncemore:inner step")
    return classify(error, now)


def describe_and_throttle(
    engine: Engine, provider: str, describe: Callable[..., dict[str, Any]]
) -> Callable[..., Any]:
    """Return the error recorder; it also lowers the concurrency limit of a throttling provider."""
    began = engine.now()

    def describe_error(error: BaseException, failure: Failure | None) -> dict[str, Any]:
        if failure is not None and failure.kind == "throttled":
            engine.concurrency_limits.record_throttling(provider, began)
        return describe(error, failure)

    return describe_error
