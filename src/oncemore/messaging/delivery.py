"""The delivery of events, as a script that a blocking or an async driver runs.

    PENDING ──claimed──► SENDING ──accepted──► DELIVERED
       ▲                  │  │  └─refused, or out of attempts──► DEAD
       ├──failed, later───┘  └─its relay died: claimed again
       └──an operator's decision, from DELIVERED or DEAD; another one turns DEAD into REJECTED

A crash can only happen at a `yield`. Before the claim is stored, nothing was sent. Between the claim and the
outcome, the event may have been sent: the next relay finds it SENDING under a dead lease and sends it again,
under the same id.

The gate is asked before every attempt to send an event of a run with a dataset, and the version of the
dataset is a guard of the claim: an event that was committed before its dataset was blocked is not sent after
that. It stays PENDING with the objection as its reason, and is sent when the dataset permits it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore._values import Value
from oncemore.control.model import SWITCH_ON
from oncemore.errors import IllegalTransition, UsageError
from oncemore.events import DeliveryFailed
from oncemore.log.record import EventRecord, LoadedHead, RecordChange
from oncemore.messaging.delivery_gate import (
    find_delivery_objection,
    find_gated_dataset,
    hold_event,
    is_held_by_gate,
    is_notification,
)
from oncemore.policy.canonical_json import make_event_id, run_seed
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.policy import policy_name
from oncemore.policy.verdict import decide_verdict
from oncemore.steps.ops import (
    AppendChange,
    AskPermission,
    LoadHead,
    NotifyListeners,
    ReadClock,
    ReadLease,
    ReserveWorker,
)
from oncemore.steps.refusals import LOST, describe_block

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.policy.model import Failure
    from oncemore.policy.policy import Policy
    from oncemore.steps.ops import Permission, Script

#: The limits of one listing and of the listings of one pass: a pass ends even if new events keep arriving.
MAX_LISTED, MAX_PASSES = 20_000, 1_000
#: How often one pass tries to claim an event if switches change at the same time.
MAX_TRIES = 3

#: The legal state transitions of an event; any other pair is refused.
STATE_TRANSITIONS: dict[str, frozenset[str]] = {
    "PENDING": frozenset({"SENDING", "DEAD"}),
    "SENDING": frozenset({"SENDING", "PENDING", "DELIVERED", "DEAD"}),
    "DELIVERED": frozenset({"PENDING"}),
    "DEAD": frozenset({"PENDING", "REJECTED"}),
    "REJECTED": frozenset({"PENDING"}),
}
FINAL_STATES = frozenset({"DELIVERED", "DEAD", "REJECTED"})


class RelayOptions(NamedTuple):
    """The options of a relay.

    classify                error and time → failure
    describe                error and failure → the record for the log
    has_sink                whether this relay has a sink for a topic
    batch                   the size of the first listing
    includes_notifications  whether its topics may include the operators' notifications
    """

    policy: Policy
    classify: Callable[[BaseException, float], Failure]
    describe: Callable[[BaseException, Failure | None], dict[str, Any]]
    has_sink: Callable[[str], bool]
    batch: int
    includes_notifications: bool = False


class DeliveryStats(Value):
    """The number of events per result of one pass.

    delivered  accepted by their sinks
    failed     not accepted, to be tried again
    dead       permanently refused in this pass, or out of attempts
    waiting    not due, behind an earlier event, claimed by another relay, or stopped by a switch
    unrouted   of topics without a sink in this relay
    held       not permitted by the gate of their dataset
    """

    delivered: int = 0
    failed: int = 0
    dead: int = 0
    waiting: int = 0
    unrouted: int = 0
    held: int = 0


class ListPendingEvents(NamedTuple):
    """List the unfinished events, oldest first. Returns a tuple of `LoadedHead` without bodies."""

    limit: int


class CountRuns(NamedTuple):
    """Count the runs of an entity. Returns the number, the name of the step and the dataset; or 0, "", ""."""

    entity: str


class CheckStop(NamedTuple):
    """Ask whether the relay must stop. Returns a boolean."""


class ReadEventBody(NamedTuple):
    """Read the payload of an event. Returns the bytes of its first body, or None if it was pruned."""

    entity: str


class SendEvent(NamedTuple):
    """Send an event to its sink. Returns None, or the error of the sink."""

    head: LoadedHead
    run_number: int
    event_body: bytes | None


# One pass -------------------------------------------------------------------------------------------


def deliver_due_events(options: RelayOptions) -> Script:
    """Send every due event, each lane in order; return the `DeliveryStats`."""
    stats, limit = DeliveryStats(), options.batch
    for _ in range(MAX_PASSES):
        listed: tuple[LoadedHead, ...] = yield ListPendingEvents(limit)
        routed = [head for head in listed if options.has_sink(head.record.topic)]
        permitted = yield from _select_permitted(routed)
        stats = stats._replace(waiting=len(routed) - len(permitted), unrouted=len(listed) - len(routed))
        before = stats
        for lane in _group_lanes(permitted):
            stats = yield from _deliver_lane(options, lane, stats)
        if (yield CheckStop()) or (len(permitted) < len(routed) and not options.includes_notifications):
            break
        if stats[:3] == before[:3]:
            if len(listed) < limit or limit >= MAX_LISTED:
                break
            # Waiting events stay at the front of the list: only a longer listing reaches those behind them.
            limit = min(4 * limit, MAX_LISTED)
    return stats


def _select_permitted(heads: list[LoadedHead]) -> Script:
    """Return the events that no global switch stops; raise if the switches cannot be read."""
    permission = (yield AskPermission((), "")) if heads else None
    if permission is None or not permission.stop:
        return heads
    permitted = [head for head in heads if is_notification(head.record)]
    if permission.stop != SWITCH_ON and len(permitted) < len(heads):
        raise describe_block("the delivery of events", permission)
    return permitted


def _group_lanes(listed: list[LoadedHead]) -> list[list[LoadedHead]]:
    """Return the events by the entity of their run; such a group is a lane and is sent in order."""
    lanes: dict[str, list[LoadedHead]] = {}
    for head in listed:
        lanes.setdefault(head.record.run_entity, []).append(head)
    return list(lanes.values())


def _deliver_lane(options: RelayOptions, lane: list[LoadedHead], stats: DeliveryStats) -> Script:
    """Send the events of one lane in order until one must wait; return the updated stats."""
    run_count, step, dataset = yield CountRuns(lane[0].record.run_entity)
    # By run and ordinal, never by time: clocks of two workers may differ.
    ordered = sorted(
        (_find_run_number(head.record, run_count), head.record.ordinal, head.entity) for head in lane
    )
    for position, (run_number, _, entity) in enumerate(ordered):
        if (yield CheckStop()):
            break
        result = yield from _deliver_event(options, entity, run_number, (step, dataset))
        if result != "over":
            stats = stats._replace(**{result: getattr(stats, result) + 1})
        if result in ("failed", "waiting", "held"):
            # The later events of the lane wait with it.
            return stats._replace(waiting=stats.waiting + len(ordered) - position - 1)
    return stats


def _find_run_number(event: EventRecord, run_count: int) -> int:
    """Return the number of the run that emitted an event, or 0: the number is part of the hashed id."""
    # The newest first: most unsent events are from the last run.
    for number in range(run_count, 0, -1):
        if make_event_id(event.run_entity, number, event.ordinal) == event.event_id:
            return number
    return 0


# One event ------------------------------------------------------------------------------------------


def _deliver_event(options: RelayOptions, entity: str, run_number: int, source: tuple[str, str]) -> Script:
    """Claim and send one event; return the name of a field of the stats, or "over".

    source  the step and the dataset of the run that emitted it
    """
    for _ in range(MAX_TRIES):
        head = yield LoadHead(entity)
        now = yield ReadClock()
        wait_reason = yield from _find_wait_reason(head, run_number, now)
        if wait_reason:
            return wait_reason
        if head.record.attempt_count >= options.policy.max_attempts:
            return (yield from _give_up_event(head))
        dataset = find_gated_dataset(head.record, source[1])
        permission = yield from _ask_permission(head.record, source[0], dataset)
        if permission.stop:
            return "waiting"
        objection = find_delivery_objection(head.record, dataset, permission)
        if objection is not None:
            if (yield from hold_event(head, objection, permission)):
                return "held"
            continue
        # Read before the claim: an error here must not cost an attempt.
        event_body = yield ReadEventBody(entity)
        worker = yield ReserveWorker(policy_name(options.policy), options.policy)
        change = _build_claim(head.record, worker)
        # The guards make the claim fail if a switch changed since it was read, as with an INTENT.
        claimed = yield AppendChange(head, change, False, guards=permission.guards)
        if claimed is not None:
            return (yield from _send_event(options, claimed, run_number, event_body))
    return "waiting"  # another relay was first, or switches change all the time


def _ask_permission(event: EventRecord, step: str, dataset: str) -> Script:
    """Return the permission to send an event; raise if the switches cannot be read or the log has moved."""
    steps = (step,) if step else ()
    # `begins=False`: switches do not stop notifications, a log that has moved does.
    permission: Permission = yield AskPermission(
        steps,
        event.tenant,
        begins=not is_notification(event),
        datasets=(dataset,) if dataset else (),
        # A held event is refused again without a write: a cached block would hold it for ever.
        reread=is_held_by_gate(event),
    )
    if permission.stop and permission.stop != SWITCH_ON:
        raise describe_block(f"the delivery of event {event.event_id}", permission)
    return permission


def _send_event(
    options: RelayOptions, claimed: LoadedHead, run_number: int, event_body: bytes | None
) -> Script:
    """Send a claimed event and store the outcome; return the name of a field of the stats."""
    error = yield SendEvent(claimed, run_number, event_body)
    now = yield ReadClock()
    result, change = _build_outcome(options, claimed.record, error, now)
    saved = yield AppendChange(claimed, change)
    if saved is None:
        # The lease had expired and another relay claimed the event: its outcome counts.
        return "waiting"
    if result == "dead":
        yield NotifyListeners(_delivery_failed(saved))
    return result


def _delivery_failed(head: LoadedHead) -> DeliveryFailed:
    event = head.record
    return DeliveryFailed(event.topic, event.event_id, event.attempt_count, event.reason)


def _find_wait_reason(head: LoadedHead, run_number: int, now: float) -> Script:
    """Return "over" for a finished event, "waiting" for one that cannot be sent now, else None."""
    event = head.record
    if event.state in FINAL_STATES:
        return "over"
    if event.state == "SENDING":
        until = yield ReadLease(event.worker, head.entity, event.attempt)
        if until > now:
            return "waiting"
    elif event.not_before > now:
        return "waiting"
    # A DEAD predecessor does not block the lane; one that may still be sent does, even of another topic.
    predecessor = yield from _load_predecessor(event, run_number)
    return None if predecessor is None or predecessor.record.state in FINAL_STATES else "waiting"


def _load_predecessor(event: EventRecord, run_number: int) -> Script:
    """Return the event before this one in its lane, or None if it is the first."""
    # Ids follow from entity, run number and ordinal, so the predecessor is loaded by its id.
    if event.ordinal:
        return (yield from _load_event(event.run_entity, run_number, event.ordinal - 1))
    last = None
    while last is None and run_number > 1:
        run_number, ordinal = run_number - 1, 0
        while (head := (yield from _load_event(event.run_entity, run_number, ordinal))) is not None:
            last, ordinal = head, ordinal + 1
    return last


def _load_event(entity: str, run_number: int, ordinal: int) -> Script:
    head = yield LoadHead(f"event/{make_event_id(entity, run_number, ordinal)}")
    return None if head.record is None else head


def _give_up_event(head: LoadedHead) -> Script:
    """Store DEAD for an event whose last attempt was lost with its relay; it may have been received."""
    after = change_state(head.record, "DEAD", reason="max_attempts_exceeded")
    change = RecordChange(("DEAD", "ESCALATION"), head.record, after, {"error": LOST["lease_expired"]})
    saved = yield AppendChange(head, change)
    if saved is None:
        return "waiting"
    yield NotifyListeners(_delivery_failed(saved))
    return "dead"


def _build_claim(event: EventRecord, worker: str) -> RecordChange:
    """Return the change that claims an event for a worker and counts the attempt."""
    # Counted before it is sent: an event that kills its relay each time must end as DEAD, too.
    after = change_state(event, "SENDING", attempt=event.attempt + 1, attempt_count=event.attempt_count + 1)
    return RecordChange(("SENDING",), event, after._replace(worker=worker))


def _build_outcome(
    options: RelayOptions, event: EventRecord, error: BaseException | None, now: float
) -> tuple[str, RecordChange]:
    """Return the outcome of an attempt, as the name of a field of the stats and as a change."""
    if error is None:
        return "delivered", RecordChange(("DELIVERED",), event, change_state(event, "DELIVERED"))
    if not isinstance(error, Exception):  # Ctrl-C or cancellation: the sink may have accepted it
        after = change_state(event, "PENDING", reason="interrupted", not_before=now)
        return "failed", RecordChange(("PENDING",), event, after, {"error": LOST["interrupted"]})
    failure = options.classify(error, now)
    # Idempotent: every attempt has the same id, by which the receiver drops repeats.
    verdict = decide_verdict(failure, options.policy, "idempotent")
    situation = Situation(event.attempt_count, failure, verdict, now, run_seed(event.event_id))
    decision = decide_retry(options.policy, situation)
    body = {"error": options.describe(error, failure), "proof": decision.proof()}
    if decision.action in ("retry", "defer"):
        after = change_state(event, "PENDING", reason=decision.reason, not_before=decision.not_before)
        return "failed", RecordChange(("PENDING", "DECISION"), event, after, body)
    after = change_state(event, "DEAD", reason=decision.reason)
    return "dead", RecordChange(("DEAD", "DECISION", "ESCALATION"), event, after, body)


def change_state(event: EventRecord, state: str, **changes: Any) -> EventRecord:
    """Return an event in another state, without worker and reason unless given; raise if that is illegal."""
    if state not in STATE_TRANSITIONS[event.state]:
        raise IllegalTransition(f"an event cannot change from {event.state} to {state}")
    return event._replace(**{"state": state, "worker": "", "reason": "", **changes})


# Operators' decisions -------------------------------------------------------------------------------


def redeliver_event(event_id: str, decide: Callable[[LoadedHead], dict[str, Any]]) -> Script:
    """Have a finished event sent again, with all its attempts; record the operator's decision.

    decide  makes the record of the decision about the event as it was read
    """
    head = yield LoadHead(f"event/{event_id}")
    if head.record is None:
        raise UsageError(f"there is no event {event_id!r} in this store")
    if head.record.state not in FINAL_STATES:
        raise UsageError(
            f"event {event_id} is {head.record.state}; only a DEAD, REJECTED or DELIVERED event is sent again"
        )
    permission: Permission = yield AskPermission((), "", begins=False)
    # In a log that has moved to another store no relay would see the decision.
    if permission.stop:
        raise describe_block(f"the delivery of event {event_id}", permission)
    after = change_state(head.record, "PENDING", reason="redelivered", attempt_count=0, not_before=0.0)
    body = {"decision": decide(head)}
    change = RecordChange(("PENDING", "DECISION"), head.record, after, body)
    if (yield AppendChange(head, change, guards=permission.guards)) is None:
        raise UsageError(f"event {event_id} was changed at the same time; check its state and try again")
    return None
