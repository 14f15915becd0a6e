"""The operations that a flow yields, and the results that it is sent.

LoadHead(entity, kind)      read the head of an entity                     → LoadedHead
ReserveWorker(policy…)      reserve this process's worker for an attempt   → AttemptTerms
AskPermission(steps, …)     read switches and approvals                    → Permission
PrepareSubmission(policy…)  terms of a run that a worker will make         → AttemptTerms without a worker
LoadPolicy(name)            the policy that a run began with               → Policy, or None: not in the log
LoadBreaker(entity)         the breaker's head; it may be cached           → LoadedHead
TakeRateSlot(rate)          a slot in the provider's rate limit            → seconds until the slot
DrawBudget(budget, cost)    tokens of a retry budget                       → BudgetDraw
RefundBudget(budget, …)     return tokens that were not used               → None
EarnBudget(budget)          add what a success earns                       → None
ReadClock()                 the store's time                               → POSIX seconds
ReadLease(worker, …)        end of the lease on an attempt                 → POSIX seconds; 0: worker gone
AppendChange(head, …)       compare-and-set on the head                    → new LoadedHead; None: conflict
ReadBody(entity, version)   the body of an entry                           → dict
CheckArtifact(entity, …)    does the step's artifact exist unaltered?      → ArtifactCheck
RunAttempt(head, limit, …)  call the step's function                       → AttemptOutcome
CommitTransaction(head, …)  commit the user's own transaction              → TransactionOutcome
SpillResult(head, encoded)  store a large result as an artifact            → reference, or None
FetchResult(spilled)        read such a result, verified                   → Raw, or the error
AskReconcile(head)          call the step's `reconcile` function           → ReconcileAnswer
SleepSeconds(seconds)       wait                                           → None
WatchEntity(entity, …)      wait until the entity changes                  → None
NotifyListeners(what, head) call the listeners of the engine               → None
EndCall(value, error)       end of the script: return or raise
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore._values import FrozenRecord
from oncemore.log.record import RunRecord
from oncemore.policy.policy import ESCALATION, policy_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from oncemore.artifacts.artifact import Artifact
    from oncemore.control.model import Approval
    from oncemore.limits.breaker_rules import BreakerRules
    from oncemore.limits.budget import TokenBucket
    from oncemore.limits.rate_rules import RateLimit
    from oncemore.log.record import ArtifactRecord, EventRecord, RecordChange
    from oncemore.log.store import StoreTransaction
    from oncemore.policy.model import Effect, Failure
    from oncemore.policy.policy import Policy
    from oncemore.steps.transactions import AppliedMark

    Script = Generator[Any, Any, Any]
    Given = tuple[EventRecord | ArtifactRecord, Any]


class StepBreaker(NamedTuple):
    """The breaker of a step's provider: its entity in the log, and the rules that open it."""

    entity: str
    rules: BreakerRules


class StepRate(NamedTuple):
    """The rate limit of a step's provider: its name and its numbers."""

    name: str
    pulse: RateLimit


class StepBudget(NamedTuple):
    """The retry budget of a step.

    entity  its place in the log; empty for a budget of this process alone, which holds the tokens itself
    """

    entity: str
    budget: TokenBucket


class StepPlan(FrozenRecord):
    """The options of a step, checked and ready for the flow.

    encode             value → its stored form, or raises
    decode             the stored form → value
    describe           error and its failure → the stored error record, redacted
    not_applied        whether an error shows that a `once` effect did not happen
    asks               whether the step has a `reconcile` function
    after_failure      "raise", or "new_run": a new call of failed work begins a new run
    on_version_change  "new", "reuse", "fail", or None: by the effect
    covers             whether an error may be retried, where the policy's classes do not decide
    artifact           the name of the artifact that is the step's result; empty if there is none
    large              whether an encoded result is too large for the log
    quarantines        whether a failure that is not retried waits for an operator (CLASS-3)
    escalation         the policies that escalation records name: after a permanent error, and after
                       attempts or time run out
    repeats_once       whether a `once` step is retried after an error that shows that nothing happened
    pipeline           the pipeline of the step; empty if there is none
    halts              whether a failure that is not retried halts that pipeline (CLASS-3)
    approval           whether every attempt needs an approval
    gated              whether switches stop the step; False for the steps that turn switches
    barrier            the breaker of its provider, if there is one
    beat               the rate limit of its provider, if there is one
    purse              its retry budget, if there is one
    policy_source      the address of the policy's file; empty for a policy made in code
    """

    __slots__ = (
        "after_failure", "approval", "artifact", "asks", "barrier", "beat", "classify", "covers", "decode",
        "describe", "effect", "encode", "escalation", "gated", "halts", "if_running", "inline_wait_s",
        "large", "name", "not_applied", "on_version_change", "pipeline", "policy", "policy_name",
        "policy_source", "purse", "quarantines", "repeats_once",
    )  # fmt: skip
    after_failure: str
    approval: bool
    artifact: str
    asks: bool
    barrier: StepBreaker | None
    beat: StepRate | None
    classify: Callable[[BaseException, float], Failure]
    covers: Callable[[Exception, Failure], bool] | None
    decode: Callable[[Any], Any]
    describe: Callable[[BaseException, Failure | None], dict[str, Any]]
    effect: Effect
    encode: Callable[[Any], Any]
    escalation: tuple[str, str]
    gated: bool
    halts: bool
    if_running: str
    inline_wait_s: float
    large: Callable[[Any], bool]
    name: str
    not_applied: Callable[[Exception], bool]
    on_version_change: str | None
    pipeline: str
    policy: Policy
    policy_name: str
    policy_source: str
    purse: StepBudget | None
    quarantines: bool
    repeats_once: bool

    def __init__(
        self,
        name: str,
        effect: Effect,
        policy: Policy,
        classify: Callable[[BaseException, float], Failure],
        *,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        describe: Callable[[BaseException, Failure | None], dict[str, Any]],
        not_applied: Callable[[Exception], bool] = lambda error: False,
        asks: bool = False,
        if_running: str = "wait",
        inline_wait_s: float = 60.0,
        after_failure: str = "raise",
        on_version_change: str | None = None,
        covers: Callable[[Exception, Failure], bool] | None = None,
        artifact: str = "",
        large: Callable[[Any], bool] = lambda encoded: False,
        quarantines: bool = False,
        approval: bool = False,
        gated: bool = True,
        barrier: StepBreaker | None = None,
        beat: StepRate | None = None,
        purse: StepBudget | None = None,
        pipeline: str = "",
        halts: bool = False,
        policy_source: str = "",
        repeats_once: bool = True,
        escalation: tuple[str, str] = ESCALATION,
    ) -> None:
        self.set_fields(
            after_failure=after_failure,
            approval=approval,
            artifact=artifact,
            asks=asks,
            barrier=barrier,
            beat=beat,
            classify=classify,
            covers=covers,
            decode=decode,
            describe=describe,
            effect=effect,
            encode=encode,
            escalation=escalation,
            gated=gated,
            halts=halts,
            if_running=if_running,
            inline_wait_s=inline_wait_s,
            large=large,
            name=name,
            not_applied=not_applied,
            on_version_change=on_version_change,
            pipeline=pipeline,
            policy=policy,
            policy_name=policy_name(policy),
            policy_source=policy_source,
            purse=purse,
            quarantines=quarantines,
            repeats_once=repeats_once,
        )


class CallIdentity(NamedTuple):
    """One call of a step: the key, and how long it may take.

    input_hash  digest of the arguments; empty if the key covers all of them
    deadline    when a run that this call begins must have ended; 0 for no deadline
    give_up     until when this caller waits for another attempt or for a time; 0 for no limit
    tenant      the tenant whose work it is
    code_hash   version and config of the code that would make the attempt, where that differs from
                `cfg_hash`: a worker continues a run with the run's own `cfg_hash`
    """

    entity: str
    input_hash: str
    cfg_hash: str
    deadline: float = 0.0
    give_up: float = 0.0
    tenant: str = ""
    code_hash: str = ""


class AttemptTerms(NamedTuple):
    """What an attempt begins with: its worker, and what a new run stores of the call.

    It is built when an attempt begins, and not before: most calls find their work done.

    actor     who asked for the run, where a worker will make it
    withheld  arguments that the log does not store: only a caller that has them can make another attempt
    """

    worker: str
    run_id: str
    arguments: Any
    input_hash: str = ""
    seed: str = ""
    tenant: str = ""
    correlation_id: str = ""
    dataset: str = ""
    priority: str = "P1"
    retain_s: float = 0.0
    provider: str = ""
    actor: str = ""
    withheld: tuple[str, ...] = ()


class LoadedHead(NamedTuple):
    """An entity as it was read: the base of a compare-and-set."""

    entity: str
    version: int
    hash: bytes
    record: Any  # a Run, or None before the first entry; typed loosely because most stations know which
    body: dict[str, Any] | None = None


class LoadHead(NamedTuple):
    """Read the head of an entity of the given kind."""

    entity: str
    kind: type = RunRecord


class ReserveWorker(NamedTuple):
    """Reserve the worker of this process for an attempt, and record the policy of the run.

    seen  the run that the attempt continues, with its recorded arguments; None where the attempt opens a run
    """

    policy_name: str
    policy: Policy
    source: str = ""
    seen: LoadedHead | None = None


class PrepareSubmission(NamedTuple):
    """Build the terms of a run that a worker will make, and record its policy."""

    policy_name: str
    policy: Policy
    source: str = ""


class LoadPolicy(NamedTuple):
    """Read a recorded policy by the name that runs have for it."""

    name: str


class AskPermission(NamedTuple):
    """Read the switches and approvals that may keep an attempt from beginning.

    steps   the names of its step
    entity  the entity whose approval it needs; empty if it needs none
    begins  False for a submission: a switch does not stop it, a log that has moved does
    """

    steps: tuple[str, ...]
    tenant: str
    entity: str = ""
    begins: bool = True
    pipeline: str = ""


class Permission(NamedTuple):
    """What operators have decided, and what must still hold when the attempt begins.

    guards    versions of the entities that were read
    stop      why the attempt may not begin: `switch`, `control_state_unknown` or `moved`; empty if it may
    name      the switch that is on, or the address that the log has moved to
    told      who turned the switch on, why and when
    approval  the approval of its key, if there is one
    error     why switches and approvals cannot be read
    """

    guards: Mapping[str, int]
    stop: str = ""
    name: str = ""
    told: Mapping[str, Any] = {}
    approval: Approval | None = None
    error: Exception | None = None


class LoadBreaker(NamedTuple):
    """Read the record of a breaker; a closed breaker may come from a cache."""

    entity: str


class TakeRateSlot(NamedTuple):
    """Take a slot in a rate limit; a call that has its slot only keeps its distance to earlier ones."""

    beat: StepRate
    has_moment: bool = False


class DrawBudget(NamedTuple):
    """Read a retry budget, and take the cost if the budget belongs to this process."""

    purse: StepBudget
    cost: float


class BudgetDraw(NamedTuple):
    """The tokens of a retry budget, with the earnings of this process.

    seen  the head of a shared budget: the withdrawal is a compare-and-set on it
    """

    tokens: float
    seen: LoadedHead | None = None
    earned: float = 0.0


class RefundBudget(NamedTuple):
    """Return tokens whose withdrawal was not stored."""

    purse: StepBudget
    drawn: BudgetDraw
    cost: float


class EarnBudget(NamedTuple):
    """Add to a retry budget what a success earns."""

    purse: StepBudget


class ReadClock(NamedTuple):
    """Read the store's time."""


class ReadLease(NamedTuple):
    """Read until when a worker holds an attempt."""

    worker: str
    entity: str
    fence: int


class AppendChange(NamedTuple):
    """Append a change to an entity if its head is still the one that was read.

    events  events and artifact references that are stored with it, each an entity of its own
    beside  a write of the user in the same transaction; if it fails, the result is `JoinedWriteFailed`
    also    changes of other entities, stored together with this one or not at all
    guards  versions of entities that were only read and must not have changed
    late    whether a guard may be checked right after the entry is stored, where the store checks late; the
            result may then be `VoidClaim`
    """

    seen: LoadedHead
    change: RecordChange
    sync: bool = True
    events: tuple[Given, ...] = ()
    beside: Callable[[StoreTransaction], object] | None = None
    also: tuple[tuple[LoadedHead, RecordChange], ...] = ()
    guards: Mapping[str, int] = {}
    late: bool = False


class VoidClaim(NamedTuple):
    """A stored claim whose guard had changed: no attempt may begin by it, and it must be released."""

    seen: LoadedHead


class ReadBody(NamedTuple):
    """Read the body of an entry."""

    entity: str
    version: int


class CheckArtifact(NamedTuple):
    """Check whether the artifact of a step exists and has its recorded bytes."""

    entity: str
    cfg_hash: str
    name: str


class ArtifactCheck(NamedTuple):
    """The state of an artifact: valid, missing, or altered with the error that describes it."""

    state: str
    ref: str = ""
    artifact: Artifact | None = None
    error: Exception | None = None


class SpillResult(NamedTuple):
    """Store a large result as an artifact."""

    seen: LoadedHead
    encoded: Any


class FetchResult(NamedTuple):
    """Read a large result that was stored as an artifact."""

    spilled: dict[str, Any]


class RunAttempt(NamedTuple):
    """Call the step's function; `whole` says that its limit is the rest of the run's total time."""

    seen: LoadedHead
    limit_s: float | None = None
    whole: bool = False

    @property
    def number(self) -> int:
        """The attempt's number."""
        return int(self.seen.record.attempt)


class AttemptOutcome(NamedTuple):
    """The value or the error of an attempt, and what is stored with it.

    seen       the run as the attempt left it: its checkpoints are entries of their own
    begun      False if the attempt was interrupted before the function was called
    events     events to publish, and references to new artifacts
    artifacts  all artifacts of the attempt, in their tagged form
    mark       its transaction in the user's own database, not committed yet
    also       the user's write in the store's own transaction (`on_commit`)
    applied    the body that an earlier attempt left in the user's database, where it was committed
    evidence   references to artifacts that a failed attempt leaves for operators
    """

    seen: LoadedHead
    value: Any = None
    error: BaseException | None = None
    begun: bool = True
    events: tuple[Given, ...] = ()
    artifacts: tuple[Any, ...] = ()
    mark: AppliedMark | None = None
    also: Callable[[StoreTransaction], object] | None = None
    applied: tuple[dict[str, Any], tuple[Given, ...]] | None = None
    evidence: tuple[Given, ...] = ()


class CommitTransaction(NamedTuple):
    """Commit the user's own transaction together with our marker, if the attempt still owns it."""

    seen: LoadedHead
    mark: AppliedMark
    body: dict[str, Any]
    events: tuple[Given, ...]


class TransactionOutcome(NamedTuple):
    """The error of a transaction; None if it is committed."""

    error: BaseException | None


class AskReconcile(NamedTuple):
    """Call the step's `reconcile` function: did the lost attempt take effect?"""

    seen: LoadedHead


class ReconcileAnswer(NamedTuple):
    """The answer of `reconcile` or of an operator: applied (with its value), not_applied or unknown."""

    found: str
    value: Any = None
    decided: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it


class SleepSeconds(NamedTuple):
    """Wait."""

    seconds: float


class WatchEntity(NamedTuple):
    """Wait until an entity has another version."""

    entity: str
    version: int
    seconds: float


class NotifyListeners(NamedTuple):
    """Call the listeners of the engine."""

    what: str
    seen: LoadedHead


class EndCall(NamedTuple):
    """End the script: return the value or raise the error."""

    value: Any
    error: BaseException | None
