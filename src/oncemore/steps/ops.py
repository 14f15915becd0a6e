"""The operations that the script of a call yields, and the results that it is sent.

LoadHead(entity, kind)      read the head of an entity                     → LoadedHead
ReserveWorker(policy…)      reserve this process's worker for an attempt   → AttemptTerms
AskPermission(steps, …)     read switches, approvals and datasets          → Permission
PrepareSubmission(policy…)  terms of a run that a worker will make         → AttemptTerms without a worker
LoadPolicy(name)            the policy that a run began with               → Policy, or None: not in the log
LoadBreaker(entity)         the breaker's head; it may be cached           → LoadedHead
TakeRateSlot(rate)          a slot in the provider's rate limit            → seconds until the slot
DrawBudget(budget, cost)    tokens of a retry budget                       → BudgetDraw
RefundBudget(budget, …)     return tokens that were not used               → None
EarnBudget(budget)          add the tokens of a success                    → None
ReadClock()                 the store's time                               → POSIX seconds
ReadLease(worker, …)        end of the lease on an attempt                 → POSIX seconds; 0: worker gone
AppendChange(head, …)       compare-and-set on the head                    → new LoadedHead; None: conflict
ReadBody(entity, version)   the body of an entry                           → dict
LoadJournal(entity)         sleeps, waits and signals of a workflow        → Journal
CheckArtifact(entity, …)    does the step's artifact exist unaltered?      → ArtifactCheck
RunAttempt(head, limit, …)  call the step's function                       → AttemptOutcome
CommitTransaction(head, …)  commit the user's own transaction              → TransactionOutcome
SpillResult(head, encoded)  store a large result as an artifact            → reference, or None
FetchResult(spilled)        read such a result, verified                   → Raw, or the error
AskReconcile(head)          call the step's `reconcile` function           → ReconcileAnswer
FindQueueSlot(queue)        a free slot of the step's queue                → FreeSlot, or None: all taken
SleepSeconds(seconds)       wait                                           → None
WatchEntity(entity, …)      wait until the entity changes                  → None
WatchLog(seconds)           wait until the log grows                       → None
NotifyListeners(event)      call the listeners of engine and process       → None

A script returns an `EndCall`: the value of the call, or its error. `steps.perform` performs the operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.log.record import LoadedHead, RunRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from oncemore.artifacts.artifact import Artifact
    from oncemore.control.model import Approval
    from oncemore.events import ProcessEvent
    from oncemore.governance.dataset_model import DatasetRecord
    from oncemore.log.record import ArtifactRecord, EventRecord, RecordChange
    from oncemore.log.store import StoreTransaction
    from oncemore.policy.policy import Policy
    from oncemore.steps.plan import StepBudget, StepRate
    from oncemore.steps.transactions import AppliedMark

    #: A part of a call's script; a whole script returns its `EndCall`.
    Script = Generator[Any, Any, Any]
    Output = tuple[EventRecord | ArtifactRecord, Any]


class AttemptTerms(NamedTuple):
    """The worker of an attempt, and the values of the call that a new run stores.

    It is built when an attempt begins, and not before: most calls find their work done.

    actor     the actor that submitted the run, if a worker will make it
    withheld  arguments that the log does not store: only a caller that has them can make another attempt
    parent    the key of the run whose function made the call, if any; is_workflow: whether it is a workflow
    traceparent  the trace context of this process, if it has tracing; pipeline: that of the step
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
    parent: str = ""
    is_workflow: bool = False
    traceparent: str = ""
    pipeline: str = ""


class LoadHead(NamedTuple):
    """Read the head of an entity of the given kind."""

    entity: str
    kind: type = RunRecord


class ReserveWorker(NamedTuple):
    """Reserve the worker of this process for an attempt, and record the policy of the run.

    head  the run that the attempt continues, with its recorded arguments; None where the attempt opens a run
    """

    policy_name: str
    policy: Policy
    source: str = ""
    head: LoadedHead | None = None


class PrepareSubmission(NamedTuple):
    """Build the terms of a run that a worker will make, and record its policy."""

    policy_name: str
    policy: Policy
    source: str = ""


class LoadPolicy(NamedTuple):
    """Read a recorded policy by the name that runs have for it."""

    name: str


class AskPermission(NamedTuple):
    """Read the switches and approvals that may stop an attempt of a step, by its names, before it begins.

    entity  the entity that must be approved; empty if the attempt needs no approval
    begins  False for a submission: a switch does not stop it, a log that has moved does; datasets: their ids
    reread  do not use cached datasets: for a refusal without a write, whose guard would notice a change
    """

    steps: tuple[str, ...]
    tenant: str
    entity: str = ""
    begins: bool = True
    pipeline: str = ""
    datasets: tuple[str, ...] = ()
    reread: bool = False


class Permission(NamedTuple):
    """The decisions of operators, and the versions that must be unchanged when the attempt begins.

    guards    versions of the entities that were read
    stop      the reason to refuse the attempt: `switch`, `control_state_unknown` or `moved`; empty if none
    name      the switch that is on, with actor, reason and time in `details`; or where the log has moved to
    approval  the approval of its key, if there is one
    error     the error of reading them; datasets: those of the attempt, None for one that is not registered
    """

    guards: Mapping[str, int]
    stop: str = ""
    name: str = ""
    details: Mapping[str, Any] = {}
    approval: Approval | None = None
    error: Exception | None = None
    datasets: tuple[DatasetRecord | None, ...] = ()


class LoadBreaker(NamedTuple):
    """Read the record of a breaker; a closed breaker may come from a cache."""

    entity: str


class TakeRateSlot(NamedTuple):
    """Take a slot in a rate limit; a call that has its slot only keeps its distance to earlier ones."""

    rate: StepRate
    has_slot: bool = False


class DrawBudget(NamedTuple):
    """Read a retry budget, and take the cost if the budget belongs to this process."""

    budget: StepBudget
    cost: float


class BudgetDraw(NamedTuple):
    """The tokens of a retry budget, with the earnings of this process.

    head  the head of a shared budget: the withdrawal is a compare-and-set on it
    """

    tokens: float
    head: LoadedHead | None = None
    earned: float = 0.0


class RefundBudget(NamedTuple):
    """Return tokens after their withdrawal was not stored."""

    budget: StepBudget
    drawn: BudgetDraw
    cost: float


class EarnBudget(NamedTuple):
    """Add the tokens of a success to a retry budget."""

    budget: StepBudget


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
    joined_write  a write of the user in the same transaction; if it fails, the result is `JoinedWriteFailed`
    also    changes of other entities, stored together with this one or not at all
    guards  versions of entities that were only read and must not have changed
    late    whether a guard may be checked right after the entry is stored, where the store checks late; the
            result may then be `VoidClaim`
    """

    head: LoadedHead
    change: RecordChange
    sync: bool = True
    events: tuple[Output, ...] = ()
    joined_write: Callable[[StoreTransaction], object] | None = None
    also: tuple[tuple[LoadedHead, RecordChange], ...] = ()
    guards: Mapping[str, int] = {}
    late: bool = False


class VoidClaim(NamedTuple):
    """A stored claim with a changed guard: no attempt may begin by it, and it must be released."""

    head: LoadedHead


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

    head: LoadedHead
    encoded: Any


class FetchResult(NamedTuple):
    """Read a large result that was stored as an artifact."""

    spilled: dict[str, Any]


class RunAttempt(NamedTuple):
    """Call the step's function; `whole` says that its limit is the rest of the run's total time."""

    head: LoadedHead
    limit_s: float | None = None
    whole: bool = False

    @property
    def number(self) -> int:
        """The attempt's number."""
        return int(self.head.record.attempt)


class AttemptOutcome(NamedTuple):
    """The value or the error of an attempt, and the outputs that are stored with it.

    head       the run as the attempt left it: its checkpoints are entries of their own
    begun      False if it was interrupted before the call; events: events to publish and new artifacts
    artifacts  all of its artifacts, tagged; evidence: artifacts that a failed attempt leaves for operators
    mark       its open transaction in the user's database; joined_write: a write in the store's (`on_commit`)
    applied    the body that an earlier attempt left in the user's database, where it was committed
    usage      its CPU time and energy as stored (`telemetry.meter`); used: its inputs (`steps.inputs`)
    """

    head: LoadedHead
    value: Any = None
    error: BaseException | None = None
    begun: bool = True
    events: tuple[Output, ...] = ()
    artifacts: tuple[Any, ...] = ()
    mark: AppliedMark | None = None
    joined_write: Callable[[StoreTransaction], object] | None = None
    applied: tuple[dict[str, Any], tuple[Output, ...]] | None = None
    evidence: tuple[Output, ...] = ()
    usage: dict[str, Any] | None = None
    used: tuple[dict[str, Any], ...] = ()


class ParkRequest(NamedTuple):
    """The value of a workflow's attempt that ended because the workflow waits.

    until    when to run the workflow again; `workflows.journal.NEVER` if only a signal can end the wait
    reason   what it waits for, as the run's reason
    records  the records of the journal that are stored with it
    version  the version of the run that the decision to wait was made from; 0 if any version will do
    """

    until: float
    reason: str
    records: tuple[dict[str, Any], ...] = ()
    version: int = 0


class LoadJournal(NamedTuple):
    """Read the journal of a run: its sleeps, waits, signals and values."""

    entity: str


class CommitTransaction(NamedTuple):
    """Commit the user's own transaction together with our marker, if the attempt still owns it."""

    head: LoadedHead
    mark: AppliedMark
    body: dict[str, Any]
    events: tuple[Output, ...]


class TransactionOutcome(NamedTuple):
    """The error of a transaction; None if it is committed."""

    error: BaseException | None


class AskReconcile(NamedTuple):
    """Call the step's `reconcile` function: did the lost attempt take effect?"""

    head: LoadedHead


class ReconcileAnswer(NamedTuple):
    """The answer of `reconcile` or of an operator: applied (with its value), not_applied or unknown."""

    outcome: str
    value: Any = None
    decision_body: dict[str, Any] = {}  # noqa: RUF012 - it is never changed


class SleepSeconds(NamedTuple):
    """Wait for a time."""

    seconds: float


class WatchEntity(NamedTuple):
    """Wait until an entity has another version."""

    entity: str
    version: int
    seconds: float


class WatchLog(NamedTuple):
    """Wait until any entity has another version."""

    seconds: float


class NotifyListeners(NamedTuple):
    """Call the listeners of the engine and of the process with an event (`oncemore.events`)."""

    event: ProcessEvent


class EndCall(NamedTuple):
    """The end of a script: the value to return or the error to raise."""

    value: Any
    error: BaseException | None


NOW = ReadClock()
#: A compare-and-set failed: the run changed after it was read, and nothing was written.
CONFLICT = object()
