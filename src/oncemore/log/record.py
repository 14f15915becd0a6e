"""The records of the log, and how the state of an entity follows from its entries.

All durable state is a chain of entries per entity. An entry has a *header* and a *body*:

    header   the marks of the event, its time, and every field of the record that it sets
    body     data that may be large or personal: arguments, results, error texts, proofs, events

    hash  =  SHA-256(hash of the previous entry ‖ header ‖ SHA-256(body))

The hash covers the digest of the body, so a body can be pruned or erased and the chain still verifies. The
state of an entity (its head) is the fold of its headers: each header sets some fields and does nothing else.
So heads can be deleted and rebuilt from the log.

One transition writes one entry with several marks; `WAL` exports show each mark as an entry of its own.
"""

from __future__ import annotations

from oncemore._values import Value, make
from oncemore.control.model import Approval, SwitchBoard
from oncemore.governance.checkpoint_record import CheckpointRecord
from oncemore.governance.dataset_model import DatasetRecord, EscalationRecord
from oncemore.governance.role_model import RoleRecord
from oncemore.limits.cooldown_rules import ResourceRecord
from oncemore.limits.queue_rules import QueueSlot
from oncemore.policy.model import check_transition
from oncemore.schedules.record import ScheduleRecord
from oncemore.telemetry.autonomy_rules import AutonomyRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Literal, TypeVar

    from oncemore.policy.model import Effect, State

    StateMark = Literal["PENDING", "RUNNING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE", "INTENT", "COMMIT"]
    RunMark = Literal["CHECKPOINT", "DECISION", "ESCALATION", "PRUNE", "ERASE", "EVENT", "ARTIFACT"]
    EventMark = Literal["SENDING", "DELIVERED", "DEAD"]
    OtherMark = Literal["MAINTENANCE", "LEASE", "JOB", "RESOURCE", "BREAKER", "QUOTA", "SECRET", "POLICY"]
    EntityMark = Literal["CONTROL", "APPROVAL", "SCHEDULE", "QUEUE", "LEDGER", "JOURNAL", "SIGNAL", "DATASET"]
    Mark = StateMark | RunMark | EventMark | OtherMark | EntityMark | Literal["AUTONOMY"]
    State_ = TypeVar("State_", bound="Entity")

#: Number of the stored format; it is part of every header and head.
FORMAT = 2
#: The previous hash of the first entry of an entity.
NOWHERE = b"\x00" * 32


class RunRecord(Value):
    """The state of a key: its last run, and the counters that span all of its runs.

    fence                raised by every INTENT; the store rejects a write with an older fence
    attempt              number of the last attempt, counted over all runs of the key
    attempt_count        attempts of this run that count in max_attempts: it includes the running one, and
                         not one that was lost with its process, interrupted, or never begun
    max_attempts         limit of attempt_count
    not_before           earliest time of the next attempt
    deadline             time at which the run must have ended; 0: none
    held_for             the reason why the run waits for an operator; empty: it does not wait
    commit_version       version of the entry whose body holds the result
    failure_version      version of the entry whose body holds the failure that ended the run
    checkpoint_version   version of the entry whose body holds the last checkpoint of this run
    seed                 seed of the random numbers; empty: the SHA-256 of run_id
    retain_s             minimum time to keep the result after the end; 0: until it is pruned
    pruned_at            time at which the bodies were pruned or erased; 0: they are stored
    provider             name of the service that the run calls; empty: none
    cancelled_at         time at which a caller asked for no further attempt; 0: not cancelled
    failure_counted      whether the failure has counted against its provider (`limits.breaker_rules`)
    budget_debt          retry-budget tokens that the next attempt costs and that were missing; 0: none
    expected_duration_s  duration of its longest failed attempt, if that took a second or more; 0: not known
    crash_count          attempts of this run that were lost with their process
    max_crashes          limit of crash_count; 0: lost and interrupted attempts stay in attempt_count
    traceparent          W3C trace context of its opening; last_traceparent: of its last claim, if another
    masking              highest level at which an attempt of the key has masked its data
    """

    state: State = "PENDING"
    step: str = ""
    effect: Effect = "once"
    run_id: str = ""
    run_number: int = 0
    fence: int = 0
    attempt: int = 0
    attempt_count: int = 0
    max_attempts: int = 0
    worker: str = ""
    created_at: float = 0.0
    started_at: float = 0.0
    not_before: float = 0.0
    deadline: float = 0.0
    held_for: str = ""
    reason: str = ""
    commit_version: int = 0
    failure_version: int = 0
    checkpoint_version: int = 0
    input_hash: str = ""
    cfg_hash: str = ""
    seed: str = ""
    tenant: str = ""
    correlation_id: str = ""
    policy: str = ""
    dataset: str = ""
    priority: str = "P1"
    retain_s: float = 0.0
    pruned_at: float = 0.0
    provider: str = ""
    cancelled_at: float = 0.0
    failure_counted: bool = False
    budget_debt: float = 0.0
    expected_duration_s: float = 0.0
    crash_count: int = 0
    max_crashes: int = 0
    traceparent: str = ""
    last_traceparent: str = ""
    masking: int = 0


class WorkerRecord(Value):
    """A process that holds runs: its identity and the end of its lease.

    state  ALIVE; ENDED after it released its lease; GONE after another process found it dead
    """

    state: str = "ALIVE"
    lease_until: float = 0.0
    lease_s: float = 0.0
    host: str = ""
    pid: int = 0
    started_at: float = 0.0


class EventRecord(Value):
    """An event that a step emitted: it exists if and only if the step's COMMIT does.

    state          PENDING → SENDING → DELIVERED or DEAD, or back to PENDING; DEAD → REJECTED by an operator
    run_entity     entity of the run that emitted it: events of one entity keep their order
    ordinal        position among the events of one COMMIT, from 0
    attempt        number of the last delivery attempt; attempt_count: attempts since it was emitted
    dataset        the dataset of its run, which the gate is asked about, with the operation of the step
    """

    state: str = "PENDING"
    topic: str = ""
    event_id: str = ""
    run_entity: str = ""
    ordinal: int = 0
    created_at: float = 0.0
    not_before: float = 0.0
    tenant: str = ""
    correlation_id: str = ""
    attempt: int = 0
    attempt_count: int = 0
    worker: str = ""
    reason: str = ""
    dataset: str = ""
    operation: str = ""


class ArtifactRecord(Value):
    """A reference to an artifact of a step: it exists if and only if the step's COMMIT does.

    state       STORED; QUARANTINED after its bytes were found altered; REJECTED by an operator after that
    run_entity  entity of the run that produced it
    cfg_hash    configuration of the run: another one may produce other bytes under the same name
    """

    state: str = "STORED"
    step: str = ""
    run_entity: str = ""
    name: str = ""
    digest: str = ""
    size: int = 0
    media_type: str = ""
    date: str = ""
    site: str = ""
    h3: str = ""
    created_at: float = 0.0
    tenant: str = ""
    cfg_hash: str = ""


class MaintenanceRecord(Value):
    """A maintenance task, with the operator who started it and the reason.

    state      OPEN while it runs, then DONE; a task that stays OPEN was killed and is safe to repeat
    task       prune, erase, backup, import or restore
    run_count  number of runs that it changed, known at its end; `worker` runs it
    """

    state: str = "OPEN"
    task: str = ""
    actor: str = ""
    reason: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    run_count: int = 0
    worker: str = ""


class JobRecord(Value):
    """A job: one step called for many items (`work.map`).

    state   RUNNING; DONE; STOPPED if it was interrupted in order; LOST if its process died
    worker  name of the worker that runs it
    items   items that were started; done, failed, held, deferred, refused and skipped count their outcomes
    """

    state: str = "RUNNING"
    step: str = ""
    job_id: str = ""
    worker: str = ""
    created_at: float = 0.0
    ended_at: float = 0.0
    items: int = 0
    done: int = 0
    failed: int = 0
    held: int = 0
    deferred: int = 0
    refused: int = 0
    tenant: str = ""
    correlation_id: str = ""
    actor: str = ""
    skipped: int = 0


class BreakerRecord(Value):
    """The circuit breaker of one provider, shared by all workers (`limits.breaker_rules`).

    state            CLOSED, OPEN or HALF_OPEN
    failures         consecutive failures of operations (or attempts)
    opened_at        time at which it last opened; 0: never
    open_until       OPEN: the end of the cooldown; HALF_OPEN: the end of the probe's lease
    probe_number     number of the last probe: the outcome of an earlier probe is ignored
    probe_worker     worker that runs the probe; probe_entity and probe_fence name its attempt
    open_count       number of times that it has opened
    changed_at       time of the last change of its state
    last_error_code  code of the last failure that counted, at last_failure_at
    windows          calls and failures by the number of a time window, if a failure rate opens it
    failure_limit    the rules that it last used: failure_limit, failure_rate, cooldown_s, counted_unit
    """

    state: str = "CLOSED"
    name: str = ""
    failures: int = 0
    opened_at: float = 0.0
    open_until: float = 0.0
    probe_number: int = 0
    probe_worker: str = ""
    probe_entity: str = ""
    probe_fence: int = 0
    open_count: int = 0
    changed_at: float = 0.0
    last_error_code: str = ""
    last_failure_at: float = 0.0
    windows: dict[str, list[int]] = {}  # noqa: RUF012 - never changed in place
    failure_limit: int = 0
    failure_rate: float = 0.0
    cooldown_s: float = 0.0
    counted_unit: str = ""


class QuotaRecord(Value):
    """The limits of one provider, shared by all workers: concurrency, rate and retry budget.

    state             always OPEN: the numbers tell how much is left
    max_concurrency   limit of concurrent calls; 0: not set
    concurrency       present limit of concurrent calls (`limits.concurrency_rules`), since changed_at
    calls_per_period  calls in each `period_s`; 0: no rate limit
    next_at           time of the next free call of the rate limit (`limits.rate_rules`)
    capacity          maximum of tokens in the retry budget; 0: no budget
    tokens            tokens in the retry budget
    throttled         attempts that the provider throttled; they do not count as failures
    active_calls      concurrent calls by worker
    """

    state: str = "OPEN"
    name: str = ""
    max_concurrency: int = 0
    concurrency: int = 0
    changed_at: float = 0.0
    calls_per_period: int = 0
    period_s: float = 0.0
    burst: int = 0
    next_at: float = 0.0
    capacity: float = 0.0
    tokens: float = 0.0
    throttled: int = 0
    active_calls: dict[str, int] = {}  # noqa: RUF012 - never changed in place


class StoreSecret(Value):
    """The secret of a store, created once (`programs.store_secret`); the body has its bytes, for a codec."""

    state: str = "ACTIVE"
    created_at: float = 0.0


class RecordedPolicy(Value):
    """A policy that runs of this log started with: all of its fields, so that it outlives its file.

    state   always RECORDED: a policy is named by its digest and never changes
    fields  `Policy.to_dict()`; in the header, because runs may need it after bodies are pruned
    source  address by which the step named it, with the absolute path of a file; empty for a policy built
            in code. `replay --current` compares with it
    """

    state: str = "RECORDED"
    name: str = ""
    version: str = ""
    digest: str = ""
    created_at: float = 0.0
    fields: dict[str, Any] = {}  # noqa: RUF012 - never changed in place
    source: str = ""


class AcceptedPolicy(Value):
    """The highest version of a governed policy that a store has accepted (`governance.accepted_policies`).

    content  everything in the file that decides, by dotted field path
    """

    state: str = "ACCEPTED"
    name: str = ""
    version: str = ""
    digest: str = ""
    accepted_at: float = 0.0
    signature: str = ""
    content: dict[str, Any] = {}  # noqa: RUF012 - never changed in place
    source: str = ""


Entity = (
    RunRecord | WorkerRecord | EventRecord | ArtifactRecord | MaintenanceRecord | JobRecord
    | ResourceRecord | BreakerRecord | QuotaRecord | SwitchBoard | Approval | StoreSecret
    | RecordedPolicy | AcceptedPolicy | ScheduleRecord | QueueSlot | CheckpointRecord
    | DatasetRecord | EscalationRecord | RoleRecord | AutonomyRecord
)  # fmt: skip
KINDS: Final[tuple[type[Any], ...]] = Entity.__args__
#: Position of each field, by kind of record.
FIELD_POSITIONS: Final[dict[type, dict[str, int]]] = {
    kind: {name: position for position, name in enumerate(kind._fields)} for kind in KINDS
}
#: The record of an entity before its first entry, by kind.
NEW: Final[dict[type, Any]] = {kind: kind() for kind in KINDS}
#: The same as fields by name, in the order of the record.
_NEW_FIELDS: Final[dict[type, dict[str, Any]]] = {kind: new._asdict() for kind, new in NEW.items()}


class RecordChange(Value):
    """One entry before it is encoded: its marks, the record before and after, and the body."""

    marks: tuple[Mark, ...]
    before: Entity | None
    after: Entity
    body: dict[str, Any] = {}  # noqa: RUF012 - never changed in place


class LoadedHead(Value):
    """The head of an entity as it was loaded and decoded: the base of a compare-and-set.

    record  the record of the entity; None before its first entry. Its type is that of the entity's kind
    body    the decoded body of its last entry
    """

    entity: str
    version: int
    hash: bytes
    record: Any
    body: dict[str, Any] | None = None


def apply_header(before: State_ | None, sets: dict[str, Any], kind: type[State_] = RunRecord) -> State_:  # type: ignore[assignment]
    """Return the record after one header; raise for a transition that the table of states does not have."""
    if before is None:
        # A first entry sets many fields: one merge costs half of a loop over them.
        fields = {**_NEW_FIELDS[kind], **sets}
        if len(fields) != len(kind._fields):
            raise TypeError(f"{kind.__name__} has no field {next(iter(sets.keys() - {*kind._fields}))}")
        return make(kind, fields.values())
    earlier: Any = before
    values, positions = list(earlier), FIELD_POSITIONS[kind]
    try:
        for name, value in sets.items():
            values[positions[name]] = value
    except KeyError:
        raise TypeError(f"{kind.__name__} has no field {name}") from None
    after: Any = make(kind, values)
    # Only within one run: a new run of the key may follow any final state.
    if kind is RunRecord and earlier.state != after.state and earlier.run_id == after.run_id:
        check_transition(earlier.state, after.state)
    return after  # type: ignore[no-any-return]
