"""RECORD: what is written down, and how the current state follows from it.

Everything durable is a chain of entries per entity. An entry has a *header* and a *body*:

    header   what happened (its marks), when, and every field of the entity's state that it sets
    body     what may be large or personal: arguments, results, error texts, proofs, events

    hash  =  SHA-256(hash of the entry before ‖ header ‖ SHA-256(body))

so that a body can be pruned or erased and the chain still verifies. The state of an entity (its head) is
the fold of its headers: each sets some fields, nothing else happens. So heads can be thrown away and
rebuilt, and a header tells by itself what changed.

One transition writes one entry with several marks; `WAL` exports show each mark as an entry of its own.
"""

from __future__ import annotations

from oncemore._values import Value, make
from oncemore.control.model import Approval, Control
from oncemore.limits.cooldown_rules import Resource
from oncemore.policy.canonical_json import fingerprint
from oncemore.policy.model import move

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final, Literal, TypeVar

    from oncemore.policy.model import Effect, State

    Mark = Literal[
        "PENDING",
        "RUNNING",
        "INTENT",
        "CHECKPOINT",
        "SOFT_FAIL",
        "HARD_FAIL",
        "COMMIT",
        "COMPLETE",
        "DECISION",
        "ESCALATION",
        "PRUNE",
        "ERASE",
        "CHORE",
        "LEASE",
        "EVENT",
        "ARTIFACT",
        "SENDING",
        "DELIVERED",
        "DEAD",
        "JOB",
        "RESOURCE",
        "BREAKER",
        "QUOTA",
        "CONTROL",
        "APPROVAL",
        "SECRET",
        "POLICY",
    ]
    State_ = TypeVar("State_", bound="Entity")

FORMAT = 1
NOWHERE = b"\x00" * 32  # what the first entry of an entity is linked to


class Run(Value):
    """The state of a key: its last run, and what counts over all of its runs.

    fence       raised by every INTENT; a write with an older one bounces
    attempt     the number of the last attempt, counted over all runs of the key
    tried       attempts of this run
    allowed     how many this run may have
    not_before  the earliest time of the next attempt
    deadline    when the whole run must be over; 0 for never
    held_for    why it waits for a person, if it does
    committed   the version of the entry whose body holds the result
    failed      the version of the entry whose body holds the failure that ended it
    checkpoint  the version of the entry whose body holds the last checkpoint of this run
    seed        what draws are seeded with; empty: the SHA-256 of run_id
    retain_s    how long the result is kept at least after the end; 0: until somebody prunes it
    pruned      when its bodies were forgotten, pruned or erased; 0: they are there
    provider    whom it asks something of; empty if nobody is named
    cancelled   when somebody asked that no further attempt begin; 0: nobody did
    counted     whether its failure has counted against its provider (`limits.breaker_rules`)
    owes        tokens of a retry budget that its next attempt costs, which were not there; 0: none
    expected_s  how long an attempt is expected to take: as long as the longest of this run that failed, from
                a second on; 0: not known
    """

    state: State = "PENDING"
    step: str = ""
    effect: Effect = "once"
    run_id: str = ""
    runs: int = 0
    fence: int = 0
    attempt: int = 0
    tried: int = 0
    allowed: int = 0
    worker: str = ""
    created: float = 0.0
    began: float = 0.0
    not_before: float = 0.0
    deadline: float = 0.0
    held_for: str = ""
    reason: str = ""
    committed: int = 0
    failed: int = 0
    checkpoint: int = 0
    input_hash: str = ""
    cfg_hash: str = ""
    seed: str = ""
    tenant: str = ""
    correlation_id: str = ""
    policy: str = ""
    dataset: str = ""
    priority: str = "P1"
    retain_s: float = 0.0
    pruned: float = 0.0
    provider: str = ""
    cancelled: float = 0.0
    counted: bool = False
    owes: float = 0.0
    expected_s: float = 0.0


class Worker(Value):
    """A process that has runs: until when its lease lasts, and who it is.

    state  ALIVE, ENDED once it gave its lease back, GONE once somebody saw that nothing of it is left
    """

    state: str = "ALIVE"
    until: float = 0.0
    lease_s: float = 0.0
    host: str = ""
    pid: int = 0
    began: float = 0.0


class Outgoing(Value):
    """An event that a step gave away: it exists if and only if the step's COMMIT does.

    state       PENDING → SENDING → DELIVERED or DEAD, or back to PENDING (`messaging.delivery`); a person who
                rejects what is DEAD makes it REJECTED
    run         the entity of the run that gave it away: events of one entity keep their order
    ordinal     its place among the events of one COMMIT, from 0
    not_before  the earliest time of the next attempt to send it
    attempt     the number of the last attempt to send it, counted before it is sent, never reused
    tried       attempts since it was given away, or since a person had it sent again
    worker      who is sending it
    reason      why it is where it is
    """

    state: str = "PENDING"
    topic: str = ""
    event_id: str = ""
    run: str = ""
    ordinal: int = 0
    created: float = 0.0
    not_before: float = 0.0
    tenant: str = ""
    correlation_id: str = ""
    attempt: int = 0
    tried: int = 0
    worker: str = ""
    reason: str = ""


class Kept(Value):
    """A reference to an artifact that a step left: it exists if and only if the step's COMMIT does.

    state     KEPT, or QUARANTINED once its bytes were found to be altered, or REJECTED by a person then
    run       the entity of the run that left it
    cfg_hash  under what configuration: another one may leave other bytes under the same name
    """

    state: str = "KEPT"
    step: str = ""
    run: str = ""
    name: str = ""
    digest: str = ""
    size: int = 0
    media_type: str = ""
    date: str = ""
    site: str = ""
    h3: str = ""
    created: float = 0.0
    tenant: str = ""
    cfg_hash: str = ""


class Chore(Value):
    """A piece of housekeeping, on record: who had what done, and why.

    state   OPEN while it is under way, then DONE; one that stays OPEN was killed, and is safe to repeat
    what    prune, erase, backup, import, restore
    runs    how many it was about, known at its end
    worker  who does it
    """

    state: str = "OPEN"
    what: str = ""
    actor: str = ""
    reason: str = ""
    began: float = 0.0
    ended: float = 0.0
    runs: int = 0
    worker: str = ""


class Mapped(Value):
    """A job: one step called for many items (`work.map`), as the log has it.

    state    RUNNING, DONE, STOPPED if it was cut off in order, LOST if its process died in the middle
    worker   the process that has it
    items    how many items were begun; done, failed, held, later, refused and skipped are what they came to
    """

    state: str = "RUNNING"
    step: str = ""
    job_id: str = ""
    worker: str = ""
    created: float = 0.0
    ended: float = 0.0
    items: int = 0
    done: int = 0
    failed: int = 0
    held: int = 0
    later: int = 0
    refused: int = 0
    tenant: str = ""
    correlation_id: str = ""
    actor: str = ""
    skipped: int = 0


class Circuit(Value):
    """The breaker of one provider: whether calls go through, as all who share it know it
    (`limits.breaker_rules`).

    state       CLOSED, OPEN or HALF_OPEN
    failures    operations (or attempts) that failed one after another, none of which came good in between
    opened      when it last opened; 0 if it never did
    until       OPEN: the end of the cooldown; HALF_OPEN: the end of the probe's lease
    turn        the number of the last probe: what a former one has to say does not count any more
    worker      who has the probe, as what it has under way there, and under which fence
    opens       how often it has opened
    since       when its state last changed
    code        the class of the last failure that counted, and when that was
    slots       calls and failures by the number of a stretch of time, where a rate opens it
    limit       what opens it, and how long it then stays open: the rules that it last went by
    """

    state: str = "CLOSED"
    name: str = ""
    failures: int = 0
    opened: float = 0.0
    until: float = 0.0
    turn: int = 0
    worker: str = ""
    holder: str = ""
    fence: int = 0
    opens: int = 0
    since: float = 0.0
    code: str = ""
    failed_at: float = 0.0
    slots: dict[str, list[int]] = {}  # noqa: RUF012 - nobody changes it
    limit: int = 0
    rate: float = 0.0
    cooldown_s: float = 0.0
    counts: str = ""


class Quota(Value):
    """What all who share a provider may do together: its pace, its rate, its retry budget.

    state      OPEN, always: what is left is in the numbers
    most       how many calls may be under way at once, at most; 0: nobody has set it
    now        how many may be at present (`limits.concurrency_rules`), and since when
    per        calls in each `period_s`; 0: no rate
    next_at    when the next call may go, as far as calls were handed out (`limits.rate_rules`)
    capacity   tokens that a retry budget holds at most; 0: no budget
    tokens     how many it has
    throttled  how many attempts were told to slow down; they are no failures
    """

    state: str = "OPEN"
    name: str = ""
    most: int = 0
    now: int = 0
    since: float = 0.0
    per: int = 0
    period_s: float = 0.0
    burst: int = 0
    next_at: float = 0.0
    capacity: float = 0.0
    tokens: float = 0.0
    throttled: int = 0
    held: dict[str, int] = {}  # noqa: RUF012 - nobody changes it


class StoreSecret(Value):
    """The secret of a store (`programs.store_secret`): its bytes are in the body, which a codec can seal.

    state  ACTIVE, always: it is created once and never replaced
    """

    state: str = "ACTIVE"
    created: float = 0.0


class RecordedPolicy(Value):
    """A policy that runs of this log began with: all of its fields, so that it outlives its file.

    state   RECORDED, always: a policy is named by its digest and never changes
    fields  `Policy.plain()`; here and not in the body, because runs may need it after bodies are pruned
    source  the address that the step named it by, with the whole path of a file; empty where it was made in
            code: what `replay --current` compares with
    """

    state: str = "RECORDED"
    name: str = ""
    version: str = ""
    digest: str = ""
    created: float = 0.0
    fields: dict[str, Any] = {}  # noqa: RUF012 - never changed in place
    source: str = ""


if TYPE_CHECKING:
    Entity = (
        Run
        | Worker
        | Outgoing
        | Kept
        | Chore
        | Mapped
        | Resource
        | Circuit
        | Quota
        | Control
        | Approval
        | StoreSecret
        | RecordedPolicy
    )
#: What an entity can be.
KINDS: Final = (
    Run, Worker, Outgoing, Kept, Chore, Mapped, Resource, Circuit, Quota, Control, Approval, StoreSecret,
    RecordedPolicy,
)  # fmt: skip
#: Where each field of an entity is, by kind.
_PLACES: Final[dict[type, dict[str, int]]] = {
    kind: {name: at for at, name in enumerate(kind._fields)} for kind in KINDS
}
#: What an entity is before its first entry, by kind.
NEW: Final[dict[type, Any]] = {kind: kind() for kind in KINDS}


_FIRST = Run._fields.index("committed") + 1


class Change(Value):
    """One entry before it has bytes: its marks, the state it leads to, and what goes into the body."""

    marks: tuple[Mark, ...]
    before: Entity | None
    after: Entity
    body: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it

    @property
    def sets(self) -> dict[str, Any]:
        """The fields that differ from the state before, or from a new one's, for the first entry."""
        after = self.after
        before = NEW[type(after)] if self.before is None else self.before
        # Most changes are to the first fields, and most of those are the very objects that they were.
        changed = after if after[_FIRST:] != before[_FIRST:] else after[:_FIRST]
        parts = zip(after._fields, changed, before, strict=False)
        return {name: new for name, new, old in parts if new is not old and new != old}


def fold(before: State_ | None, sets: dict[str, Any], kind: type[State_] = Run) -> State_:  # type: ignore[assignment]
    """Return the state after one header; a move that the table does not have is refused."""
    values, at = list(before or NEW[kind]), _PLACES[kind]
    try:
        for name in sets:
            values[at[name]] = sets[name]
    except KeyError:
        raise TypeError(f"{kind.__name__} has no field {name}") from None
    after: Any = make(kind, values)
    if type(before) is Run and before.state != after.state and before.run_id == after.run_id:
        move(before.state, after.state)
    return after  # type: ignore[no-any-return]


# The two moves that every attempt makes, without the names of `_replace`: they are half of what it costs.
_AT: Final = _PLACES[Run]
_STATE, _EFFECT, _FENCE, _ATTEMPT, _TRIED, _WORKER, _BEGAN, _HELD_FOR, _REASON, _OWES = map(
    Run._fields.index,
    ("state", "effect", "fence", "attempt", "tried", "worker", "began", "held_for", "reason", "owes"),
)


def begun(run: Run, effect: Effect, worker: str, now: float) -> Run:
    """Return a run whose next attempt is under way: counted, under a new fence, and held for nothing."""
    values: list[Any] = list(run)
    values[_STATE], values[_EFFECT], values[_WORKER], values[_BEGAN] = "RUNNING", effect, worker, now
    values[_FENCE] += 1
    values[_ATTEMPT] += 1
    values[_TRIED] += 1
    values[_HELD_FOR], values[_REASON], values[_OWES] = "", "", 0.0
    return make(Run, values)


def over(run: Run, state: State, reason: str, **changes: Any) -> Run:
    """Return a run whose attempt is over: nobody's any more, held by nobody."""
    values: list[Any] = list(run)
    values[_STATE], values[_REASON], values[_WORKER], values[_HELD_FOR] = state, reason, "", ""
    for name in changes:
        values[_AT[name]] = changes[name]
    return make(Run, values)


def rebuilt(headers: Iterable[dict[str, Any]]) -> Run | None:
    """Return the state that a chain of headers leads to."""
    run: Run | None = None
    for sets in headers:
        run = fold(run, sets)
    return run


def link(prev: bytes, header: bytes, body_digest: bytes) -> bytes:
    """Return the hash of an entry."""
    return fingerprint(prev + header + body_digest)


def due(run: Run) -> float | None:
    """Return when a run may go on; None if it is over, held, or runs.

    One that runs is not listed by time: what is lost is found by its worker, whose lease has an end.
    """
    if run.state in ("PENDING", "SOFT_FAIL") and not run.held_for:
        return run.not_before
    return None


def unsent(event: Outgoing) -> float | None:
    """Return when an event may be sent, the oldest first; None when nobody has to.

    One that is being sent is listed too: whoever is sending it may have died.
    """
    if event.state in ("PENDING", "SENDING"):
        return event.not_before or event.created
    return None
