"""What an operator needs first: what happens now, what is stuck, why, and which action helps.

All reads use an index or a limit, so that the answer takes the same time in a store of a million runs.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.control.model import APPROVAL_NEEDED
from oncemore.queries.doctor import OVERDUE_S
from oncemore.queries.limits import list_breakers
from oncemore.queries.runs import HELD, add_stopping_switch, load_switches, make_row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncemore.log.store import Head
    from oncemore.queries.activity import ActivityCounter, MinuteCount, OngoingAttempt
    from oncemore.queries.runs import RunRow
    from oncemore.steps.engine import Engine
    from oncemore.telemetry.alerts import AlertRules, RetryAlert

#: The number of heads that are counted; more are shown as "1,000+".
MAX_COUNTED = 1_000
#: The number of lost attempts that are shown one by one.
MAX_LOST = 2
#: The number of rows of one kind of trouble that are shown.
MAX_SHOWN = 8
FAR_FUTURE = float("inf")


class AttentionItem(Value):
    """Something that waits for an operator or for a worker.

    kind     held, escalation, lost, overdue, stopped, breaker, switch or dead_letter
    subject  the id by which its page finds it: a run id, an escalation id, a breaker, a switch, an event id;
             empty for several attempts
    title    what is stuck; `detail` says why
    advice   the action that helps
    """

    kind: str
    subject: str
    title: str
    detail: str
    since: float
    advice: str


class WorkerRow(Value):
    """A process that holds a lease; `is_gone` if it died or its lease has ended."""

    name: str
    host: str
    pid: int
    started_at: float
    lease_until: float
    is_gone: bool
    running: int


class StoreCounts(Value):
    """How many runs are in which condition; a count of `MAX_COUNTED` means that or more."""

    running: int
    due: int
    waiting: int
    held: int
    escalations: int
    dead_letters: int


class StoreOverview(Value):
    """The state of a store at one moment; `counted_from` is the beginning of the counts in `minutes`."""

    url: str
    now: float
    counts: StoreCounts
    alerts: tuple[RetryAlert, ...]
    attention: tuple[AttentionItem, ...]
    running: tuple[OngoingAttempt, ...]
    workers: tuple[WorkerRow, ...]
    minutes: tuple[MinuteCount, ...]
    counted_from: float


def load_overview(engine: Engine, activity: ActivityCounter, rules: AlertRules) -> StoreOverview:
    """Return the overview of a store; `activity` follows its log."""
    activity.update()
    store, now = engine.store, engine.now()
    running, workers = activity.list_running(), list_workers(engine, activity.list_running())
    held = _list_run_heads(engine, state=HELD)
    # Sorted by due time by the index: the runs that are due come first.
    waiting = _list_run_heads(engine, due_by=FAR_FUTURE)
    due = [head for head in waiting if (head.by.due or 0.0) <= now]
    escalations = engine.escalations.list()
    dead = _list_heads(engine, "event", state="DEAD")
    overdue = add_stopping_switch(
        store, [make_row(store, head) for head in due[:50] if (head.by.due or 0.0) < now - OVERDUE_S]
    )
    items = [
        *(_describe_held(make_row(store, head)) for head in held[:MAX_SHOWN]),
        *(_describe_escalation(each) for each in escalations[:MAX_SHOWN]),
        *_describe_lost(running, workers),
        *(_describe_overdue(row) for row in overdue[:MAX_SHOWN]),
        *_describe_breakers(engine),
        *_describe_switches(engine),
        *_describe_dead_letters(engine, dead),
    ]
    return StoreOverview(
        url=engine.url,
        now=now,
        counts=StoreCounts(
            running=len(running),
            due=len(due),
            waiting=len(waiting) - len(due),
            held=len(held),
            escalations=len(escalations),
            dead_letters=len(dead),
        ),
        alerts=activity.find_alerts(rules),
        attention=tuple(items),
        running=tuple(running[: 2 * MAX_SHOWN]),
        workers=tuple(workers),
        minutes=activity.list_minutes(),
        counted_from=activity.counted_from,
    )


def list_workers(engine: Engine, running: Sequence[OngoingAttempt]) -> list[WorkerRow]:
    """Return the workers that have not ended, oldest first, with the number of their running attempts."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import WorkerRecord

    now, store = engine.now(), engine.store
    rows = []
    for head in _list_heads(engine, "worker", state="ALIVE", due_by=FAR_FUTURE):
        worker = decode_head(head.head, WorkerRecord)
        name = head.by.worker
        rows.append(
            WorkerRow(
                name=name,
                host=worker.host,
                pid=worker.pid,
                started_at=worker.started_at,
                lease_until=worker.lease_until,
                # On one machine a dead process is noticed at once, before its lease ends.
                is_gone=worker.lease_until <= now or store.is_worker_gone(name),
                running=sum(attempt.worker == name for attempt in running),
            )
        )
    return sorted(rows, key=lambda row: row.started_at)


def _list_heads(
    engine: Engine, kind: str, *, state: str | None = None, due_by: float | None = None
) -> list[Head]:
    from oncemore.log.store import HeadQuery

    return list(engine.store.list_heads(HeadQuery(kind, state=state, due_by=due_by, limit=MAX_COUNTED)))


def _list_run_heads(engine: Engine, *, state: str | None = None, due_by: float | None = None) -> list[Head]:
    return _list_heads(engine, "run", state=state, due_by=due_by)


# Sentences about what is stuck ----------------------------------------------------------------------

#: Why a run is held, and the action that helps, by `held_for`.
HELD_TEXTS = {
    "outcome_unknown": (
        "It is unknown whether the attempt took effect.",
        "Look whether it did, then settle it.",
    ),
    APPROVAL_NEEDED: ("It waits for an approval.", "Approve or reject it."),
    "poison": ("Its workers died again and again.", "Find out why before you run it again."),
}


def _describe_held(row: RunRow) -> AttentionItem:
    why, advice = HELD_TEXTS.get(
        row.held_for,
        (f"It is held ({row.held_for.replace('_', ' ')}).", "Look at the evidence, then decide."),
    )
    # The message of an approval only repeats the reason.
    has_message = row.message and row.held_for != APPROVAL_NEEDED
    detail = f"{why.removesuffix('.')}: {row.message}" if has_message else why
    return AttentionItem("held", row.run_id, row.step, detail, row.changed, advice)


def _describe_escalation(escalation: object) -> AttentionItem:
    from oncemore.governance.escalations import Escalation

    assert isinstance(escalation, Escalation)
    kind, cause = (text.replace("_", " ") for text in (escalation.kind.lower(), escalation.cause))
    detail = f"{kind.capitalize()} for the {escalation.role}: {cause}."
    return AttentionItem(
        kind="escalation",
        subject=escalation.id,
        title=escalation.step,
        detail=detail,
        since=escalation.opened_at,
        advice="Read the evidence and acknowledge it.",
    )


def _describe_lost(
    running: Sequence[OngoingAttempt], workers: Sequence[WorkerRow]
) -> Iterator[AttentionItem]:
    """Yield the attempts whose worker is gone: the next worker takes them over, if there is one.

    Several of them are one item, because one action helps all of them.
    """
    alive = {worker.name for worker in workers if not worker.is_gone}
    # An attempt without a name was read from a log of an earlier version.
    lost = [attempt for attempt in running if attempt.worker and attempt.worker not in alive]
    advice = "A worker takes it over." if alive else "No worker runs: start one (oncemore worker MODULE)."
    if len(lost) > MAX_LOST:
        steps = ", ".join(sorted({attempt.step for attempt in lost})[:MAX_SHOWN])
        title, detail = f"{len(lost):,} attempts", f"They lost their workers: {steps}."
        yield AttentionItem(
            "lost", "", title, detail, lost[0].began_at, advice.replace("it over", "them over")
        )
        return
    for attempt in lost:
        detail = f"Attempt {attempt.number} lost its worker."
        yield AttentionItem("lost", attempt.key, attempt.step, detail, attempt.began_at, advice)


def _describe_overdue(row: RunRow) -> AttentionItem:
    if row.stopped_by:
        detail = f"The switch {row.stopped_by} stops it."
        return AttentionItem(
            "stopped", row.run_id, row.step, detail, row.not_before, "Turn the switch off when it is safe."
        )
    return AttentionItem(
        kind="overdue",
        subject=row.run_id,
        title=row.step,
        detail="It has been due for more than five minutes, and no worker takes it.",
        since=row.not_before,
        advice="Start a worker that knows this step.",
    )


def _describe_breakers(engine: Engine) -> Iterator[AttentionItem]:
    for breaker in list_breakers(engine):
        # A closed one needs no attention.
        if breaker.state != "CLOSED":
            detail = f"{breaker.state.replace('_', ' ').capitalize()} after {breaker.failures} failures"
            yield AttentionItem(
                kind="breaker",
                subject=breaker.name,
                title=f"Breaker {breaker.name}",
                detail=detail + (f", the last one {breaker.error}." if breaker.error else "."),
                since=breaker.opened_at or 0.0,
                advice="It lets a probe through by itself. Reset it if the provider is back.",
            )


def _describe_switches(engine: Engine) -> Iterator[AttentionItem]:
    from oncemore.control.switches import list_active_switches

    for switch in list_active_switches(load_switches(engine.store)):
        yield AttentionItem(
            kind="switch",
            subject=switch.name,
            title=f"Switch {switch.name}",
            detail=f"Turned on by {switch.by or 'an operator'}: {switch.reason}",
            since=switch.at,
            advice="No attempt begins while it is on.",
        )


def _describe_dead_letters(engine: Engine, dead: Sequence[Head]) -> Iterator[AttentionItem]:
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import EventRecord

    for head in dead[:MAX_SHOWN]:
        event = decode_head(head.head, EventRecord)
        yield AttentionItem(
            kind="dead_letter",
            subject=event.event_id,
            title=event.topic,
            detail=f"The event was not delivered after {event.attempt} attempts.",
            since=event.created_at,
            advice="Release it to send it again, or reject it.",
        )
