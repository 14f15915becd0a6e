"""DELIVER: the way of an event out of the building, as a script that any driver can run.

    PENDING ──claimed──► SENDING ──accepted──► DELIVERED
       ▲                  │  │  └─refused, or out of attempts──► DEAD
       ├──failed, later───┘  └─its relay is gone: claimed anew
       └──a person's decision, from DELIVERED or DEAD; another makes of DEAD a REJECTED

A crash can only fall on a `yield`, and means, by the line of `_deliver` it falls on:

    up to the claim              nothing was sent
    from the claim to its        it may have been sent: whoever comes next finds SENDING and its relay gone,
    outcome                      and sends it again, under the same id
    after the outcome            all has happened and is known

The claim counts the attempt before it is sent, so that a message that kills its relay ends as DEAD too.

**Switches.** A delivery is an effect. While a switch is on that stops everything, the event's tenant or the
step that gave it away, none is claimed: the event waits as it is, has lost no attempt, and is due again when
that is released. The claim has what was read of the switches as its guard, like an INTENT. What we ourselves
tell people of the quarantine goes out all the same, but not from a log that has moved.

**Order.** All events of one run's entity are a *lane*. An event is sent when its elder, the one before it in
its lane, is over: DELIVERED or DEAD. So no event is ever sent before an elder that may still come, whatever
their topics; one that is DEAD holds up nobody. The elder is found by its id, which follows from the entity,
the number of the run and the place in it: never by time, and never by comparing sequence numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore._values import Value
from oncemore.classifiers.verdict import verdict
from oncemore.control.model import SWITCHED
from oncemore.control.notifications import TOPIC as NOTICES
from oncemore.errors import IllegalMove, UsageError
from oncemore.log.record import Change, Outgoing
from oncemore.policy.canonical_json import event_id_of, seed_of
from oncemore.policy.decide import Situation, decide
from oncemore.policy.policy import policy_name
from oncemore.steps.ops import Begin, Holder, Load, Now, Permit, Save, Seen, Tell
from oncemore.steps.refusals import LOST, not_begun

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.policy.model import Failure
    from oncemore.policy.policy import Policy
    from oncemore.steps.ops import Permission, Script

#: The most events that one look lists, and the most looks of one pass: a pass ends, whatever comes in.
MOST_LISTED, MOST_LOOKS = 20_000, 1_000
#: How often an event is reached for in one pass, where people turn switches meanwhile.
TRIES = 3

#: The legal moves of an event. A pair that is not here is refused.
MOVES: dict[str, frozenset[str]] = {
    "PENDING": frozenset({"SENDING", "DEAD"}),
    "SENDING": frozenset({"SENDING", "PENDING", "DELIVERED", "DEAD"}),
    "DELIVERED": frozenset({"PENDING"}),
    "DEAD": frozenset({"PENDING", "REJECTED"}),
    "REJECTED": frozenset({"PENDING"}),
}
OVER = frozenset({"DELIVERED", "DEAD", "REJECTED"})


class Rules(NamedTuple):
    """What a relay was told.

    takes    whether an event of that topic is this relay's to send
    batch    how many events one look lists
    notices  whether what we ourselves tell may be among them
    """

    policy: Policy
    classify: Callable[[BaseException, float], Failure]
    describe: Callable[[BaseException, Failure | None], dict[str, Any]]
    takes: Callable[[str], bool]
    batch: int
    notices: bool = False


class Tally(Value):
    """What one pass came to.

    delivered  accepted by their sinks
    failed     not accepted, to be tried again
    dead       given up in this pass: refused for good, or out of attempts
    waiting    seen and left: not due, behind an elder, with another relay, or stopped by a switch
    unrouted   of topics that this relay has no sink for
    """

    delivered: int = 0
    failed: int = 0
    dead: int = 0
    waiting: int = 0
    unrouted: int = 0


class Listed(NamedTuple):
    """Ask for the events that are not over, the oldest first. ← a tuple of `Seen`, without bodies"""

    limit: int


class Lives(NamedTuple):
    """Ask how many runs an entity has had, and of which step. ← a number and a name, empty if it is none"""

    entity: str


class Stopping(NamedTuple):
    """Ask whether the relay is to stop. ← True or False"""


class Given(NamedTuple):
    """Ask for what a step gave away. ← the bytes of the event's first body, or None if it was pruned"""

    entity: str


class Send(NamedTuple):
    """Give an event to its sink. ← None, or the error that came of it"""

    seen: Seen
    life: int
    given: bytes | None


# A pass ---------------------------------------------------------------------------------------------


def deliver_due(rules: Rules) -> Script:
    """Send everything that is due, each lane in its order; return the tally.

    Events that wait stay at the head of the list: a look that finds nothing but them looks further.
    """
    told, limit = Tally(), rules.batch
    for _ in range(MOST_LOOKS):
        listed: tuple[Seen, ...] = yield Listed(limit)
        mine = [seen for seen in listed if rules.takes(seen.run.topic)]
        free = yield from _free(mine)
        told = told._replace(waiting=len(mine) - len(free), unrouted=len(listed) - len(mine))
        before = told
        for lane in _lanes(free):
            told = yield from _lane(rules, lane, told)
        if (yield Stopping()) or (len(free) < len(mine) and not rules.notices):
            break
        if told[:3] == before[:3]:
            if len(listed) < limit or limit >= MOST_LISTED:
                break
            limit = min(4 * limit, MOST_LISTED)
    return told


def _free(mine: list[Seen]) -> Script:
    """Return the events that nothing holds which holds everything; refuse if nobody can tell."""
    permit = (yield Permit((), "")) if mine else None
    if permit is None or not permit.stop:
        return mine
    free = [seen for seen in mine if _is_notice(seen.run)]
    if permit.stop != SWITCHED and len(free) < len(mine):
        raise not_begun("the delivery of events", permit)
    return free


def _is_notice(event: Outgoing) -> bool:
    """Whether an event is what we ourselves tell people, which they need the more while all is stopped."""
    return event.topic.startswith(NOTICES)


def _lanes(listed: list[Seen]) -> list[list[Seen]]:
    """Return events by the entity whose they are, in the order in which entities were listed."""
    lanes: dict[str, list[Seen]] = {}
    for seen in listed:
        lanes.setdefault(seen.run.run, []).append(seen)
    return list(lanes.values())


def _lane(rules: Rules, lane: list[Seen], told: Tally) -> Script:
    """Send the events of one lane in their order, as far as it goes; return the tally."""
    lives, step = yield Lives(lane[0].run.run)
    places = sorted((_life(seen.run, lives), seen.run.ordinal, seen.entity) for seen in lane)
    for at, (life, _, entity) in enumerate(places):
        if (yield Stopping()):
            break
        came_to = yield from _deliver(rules, entity, life, step)
        if came_to != "over":
            told = told._replace(**{came_to: getattr(told, came_to) + 1})
        if came_to in ("failed", "waiting"):  # its younger siblings wait with it
            return told._replace(waiting=told.waiting + len(places) - at - 1)
    return told


def _life(event: Outgoing, lives: int) -> int:
    """Return which run of its entity gave an event away: the one whose number is in its id."""
    numbers = range(lives, 0, -1)
    return next((n for n in numbers if event_id_of(event.run, n, event.ordinal) == event.event_id), 0)


# One event ------------------------------------------------------------------------------------------


def _deliver(rules: Rules, entity: str, life: int, step: str) -> Script:
    """Send one event, if it is free; return what that came to: a field of the tally, or "over"."""
    for _ in range(TRIES):
        seen = yield Load(entity)
        now = yield Now()
        stays = yield from _stays(seen, life, now)
        if stays:
            return stays
        if seen.run.tried >= rules.policy.max_attempts:
            return (yield from _outlived(seen))
        permit = yield from _permitted(seen.run, step)
        if permit.stop:
            return "waiting"
        given = yield Given(entity)
        worker = yield Begin(policy_name(rules.policy), rules.policy)
        claimed = yield Save(seen, _claim(seen.run, worker), False, guards=permit.guards)
        if claimed is not None:
            return (yield from _sent(rules, claimed, life, given))
    return "waiting"  # another relay was first, or people turn switches all the time


def _permitted(event: Outgoing, step: str) -> Script:
    """Return whether an event may be sent now; refuse if nobody can tell, or from a log that has moved."""
    steps = (step,) if step else ()
    permit: Permission = yield Permit(steps, event.tenant, begins=not _is_notice(event))
    if permit.stop and permit.stop != SWITCHED:
        raise not_begun(f"the delivery of event {event.event_id}", permit)
    return permit


def _sent(rules: Rules, claimed: Seen, life: int, given: bytes | None) -> Script:
    """Give an event to its sink; return what that came to."""
    error = yield Send(claimed, life, given)
    now = yield Now()
    came_to, change = _outcome(rules, claimed.run, error, now)
    saved = yield Save(claimed, change)
    if saved is None:
        return "waiting"  # it was taken for lost; what the other relay writes stands
    if came_to == "dead":
        yield Tell("dead", saved)
    return came_to


def _stays(seen: Seen, life: int, now: float) -> Script:
    """Return why an event is not to be sent now, or None."""
    event = seen.run
    if event.state in OVER:
        return "over"
    if event.state == "SENDING":
        until = yield Holder(event.worker, seen.entity, event.attempt)
        if until > now:
            return "waiting"
    elif event.not_before > now:
        return "waiting"
    elder = yield from _elder(event, life)
    return None if elder is None or elder.run.state in OVER else "waiting"


def _elder(event: Outgoing, life: int) -> Script:
    """Return the event before this one in its lane, or None if it is the first."""
    if event.ordinal:
        found = yield from _found(event.run, life, event.ordinal - 1)
        return found
    last = None
    while last is None and life > 1:
        life, ordinal = life - 1, 0
        while (found := (yield from _found(event.run, life, ordinal))) is not None:
            last, ordinal = found, ordinal + 1
    return last


def _found(entity: str, life: int, ordinal: int) -> Script:
    seen = yield Load(f"event/{event_id_of(entity, life, ordinal)}")
    return None if seen.run is None else seen


def _outlived(seen: Seen) -> Script:
    """Give up an event whose last attempt was lost with its relay: it may or may not have arrived."""
    after = moved(seen.run, "DEAD", reason="max_attempts_exceeded")
    change = Change(("DEAD", "ESCALATION"), seen.run, after, {"error": LOST["lease_expired"]})
    saved = yield Save(seen, change)
    if saved is None:
        return "waiting"
    yield Tell("dead", saved)
    return "dead"


def _claim(event: Outgoing, worker: str) -> Change:
    """Return the change that makes an event this relay's, and counts the attempt before it is sent."""
    after = moved(event, "SENDING", attempt=event.attempt + 1, tried=event.tried + 1)
    return Change(("SENDING",), event, after._replace(worker=worker))


def _outcome(rules: Rules, event: Outgoing, error: BaseException | None, now: float) -> tuple[str, Change]:
    """Return what became of an attempt, as a field of the tally and as a change."""
    if error is None:
        return "delivered", Change(("DELIVERED",), event, moved(event, "DELIVERED"))
    if not isinstance(error, Exception):  # Ctrl-C, cancellation: it may have arrived
        after = moved(event, "PENDING", reason="interrupted", not_before=now)
        return "failed", Change(("PENDING",), event, after, {"error": LOST["interrupted"]})
    failure = rules.classify(error, now)
    meant = verdict(failure, rules.policy, "idempotent")
    decision = decide(rules.policy, Situation(event.tried, failure, meant, now, seed_of(event.event_id)))
    body = {"error": rules.describe(error, failure), "proof": decision.proof()}
    if decision.action in ("retry", "defer"):
        after = moved(event, "PENDING", reason=decision.reason, not_before=decision.not_before)
        return "failed", Change(("PENDING", "DECISION"), event, after, body)
    after = moved(event, "DEAD", reason=decision.reason)
    return "dead", Change(("DEAD", "DECISION", "ESCALATION"), event, after, body)


def moved(event: Outgoing, to: str, **changes: Any) -> Outgoing:
    """Return an event in another state, nobody's and without a reason unless told; refuse an illegal move."""
    if to not in MOVES[event.state]:
        raise IllegalMove(f"an event cannot go from {event.state} to {to}")
    return event._replace(**{"state": to, "worker": "", "reason": "", **changes})


# A person's decision --------------------------------------------------------------------------------


def redeliver(event_id: str, reason: str, actor: str) -> Script:
    """Have an event that is over sent again, with a new budget, because somebody says so."""
    seen = yield Load(f"event/{event_id}")
    if seen.run is None:
        raise UsageError(f"there is no event {event_id!r} in this store")
    if seen.run.state not in OVER:
        raise UsageError(
            f"event {event_id} is {seen.run.state}; only what is DEAD, REJECTED or DELIVERED is sent again"
        )
    permit: Permission = yield Permit((), "", begins=False)
    if permit.stop:  # nobody would hear of it in a log that has moved
        raise not_begun(f"the delivery of event {event_id}", permit)
    after = moved(seen.run, "PENDING", reason="redelivered", tried=0, not_before=0.0)
    told = {"decision": {"what": "redeliver", "reason": reason, "actor": actor}}
    change = Change(("PENDING", "DECISION"), seen.run, after, told)
    if (yield Save(seen, change, guards=permit.guards)) is None:
        raise UsageError(f"event {event_id} was changed by somebody else just now; look again")
    return None
