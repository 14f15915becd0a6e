"""Notifies operators of quarantined items and of failed runs.

A notification is an event (`messaging.delivery`), one per sink, in the batch that holds or ends the run: it
exists if and only if that change does, and is delivered at least once under one id. Within a window
(`every_s`, 300 s) a sink gets at most two notifications per step and reason: the first item at once, and one
for all further items at the end of the window. The ids of both follow from sink, step, reason and window, so
that no counter is needed: of two concurrent writers one has a conflict, and then writes without it.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.config import NOTIFY_EVERY_S, NOTIFY_OF
from oncemore.errors import StoreError, UsageError, log_warning
from oncemore.log.entry_codec import build_event_write, decode_head
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import ArtifactRecord, EventRecord, RunRecord
from oncemore.log.store import Batch, Conflict
from oncemore.policy.canonical_json import canonical_digest, make_event_id
from oncemore.steps.attempt import OURS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.log.record import RecordChange
    from oncemore.messaging.message import EventMessage
    from oncemore.messaging.relay import RelayCore
    from oncemore.policy.model import Failure
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Output

#: The prefix of the topics of notifications; the name of the sink follows.
TOPIC_PREFIX = f"{OURS}quarantine."
MAX_NAME_LENGTH = 100
#: How long the close of an engine waits for the delivery of notifications.
CLOSE_TIMEOUT_S = 5.0
DEAD_LETTER, QUARANTINED = "dead_letter", "QUARANTINED"
#: The kinds of events, as in the setting `notify_of`.
HOLD, FAILURE = "holds", "failures"
#: The texts of the first and the second notification of a window, by kind of event.
_WORDS = {HOLD: ("quarantine", "more in quarantine"), FAILURE: ("failure", "more failures")}


class NotificationStatus(Value):
    """The current state of one notification about an item.

    sink   the name of the sink
    state  PENDING, SENDING, DELIVERED, or DEAD: it could not be delivered
    due    when it will be sent, if it is pending
    """

    sink: str
    state: str
    event_id: str
    due: float


class NotificationSubject(Value):
    """The subject of a notification: an item in quarantine or a failed run."""

    event: str
    kind: str
    item: str
    step: str
    reason: str
    tenant: str
    correlation_id: str
    attempts: int
    error: dict[str, Any]
    escalation: dict[str, Any] = {}  # noqa: RUF012 - never changed in place


def find_event(change: RecordChange) -> str:
    """Return HOLD if a change puts an item into quarantine, FAILURE if a run fails, else ""."""
    before, after = change.before, change.after
    if type(after) is RunRecord:
        is_same_run = type(before) is RunRecord and before.run_id == after.run_id
        if after.held_for:
            return "" if is_same_run and before.held_for else HOLD  # type: ignore[union-attr]
        failed_before = is_same_run and before.state == "HARD_FAIL"  # type: ignore[union-attr]
        return FAILURE if after.state == "HARD_FAIL" and not failed_before else ""
    if type(after) is EventRecord:
        # No notification about an undeliverable notification: its sink cannot be reached.
        return HOLD if after.state == "DEAD" and not after.topic.startswith(TOPIC_PREFIX) else ""
    return HOLD if type(after) is ArtifactRecord and after.state == QUARANTINED else ""


class Notifier:
    """Writes and delivers the notifications of an engine.

    sinks    by name; a sink is a function of one `EventMessage`
    every_s  the window with at most two notifications per sink, step and reason; 0: no limit
    about    the events to notify of: all, holds or failures
    """

    def __init__(
        self,
        sinks: Mapping[str, Callable[[EventMessage], Any]],
        *,
        classify: Callable[[BaseException, float], Failure],
        describe: Callable[[BaseException, Failure | None], dict[str, Any]],
        every_s: float = NOTIFY_EVERY_S,
        about: str = "all",
    ) -> None:
        if about not in NOTIFY_OF:
            raise UsageError(f"notify_of is {about!r}; the choices are {', '.join(NOTIFY_OF)}")
        for name in sinks:
            if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_LENGTH:
                raise UsageError(f"notify has the name {name!r}; it takes 1 to {MAX_NAME_LENGTH} characters")
        from oncemore.messaging.driver import SinkTable

        if SinkTable(sinks).is_async:
            raise UsageError("notify takes plain functions; they are called in a thread of their own")
        self.sinks, self.every_s, self.about = dict(sinks), every_s, about
        self._classify, self._describe = classify, describe
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget the thread; a forked child does not inherit it."""
        self._thread: _NotifierThread | None = None
        self._lock = threading.Lock()

    # Writing ----------------------------------------------------------------------------------------

    def concerns(self, change: RecordChange) -> bool:
        """Return whether the sinks are notified of a change."""
        event = find_event(change)
        return bool(event) and self.about in ("all", event)

    def add_notifications(
        self, engine: Engine, entity: str, version: int, change: RecordChange, now: float
    ) -> tuple[RecordChange, tuple[Output, ...]]:
        """Return the change with the ids of its notifications, and the notifications to write with it."""
        if not self.concerns(change):
            return change, ()
        subject = _describe_subject(engine, entity, change)
        ids, notifications = [], []
        for sink in self.sinks:
            # The first notification of the window exists already: this change is covered by the second one,
            # due at the end of the window, and by none if that exists too.
            lane = self._lane_name(sink, subject, now, f"{entity}#{version + 1}")
            ordinal = 1 if _event_exists(engine, make_event_id(lane, 0, 0)) else 0
            event_id = make_event_id(lane, 0, ordinal)
            if not ordinal or not _event_exists(engine, event_id):
                due = self._window_end(now) if ordinal else 0.0
                notifications.append(self._build_notification(sink, lane, ordinal, due, subject, now))
            ids.append(event_id)
        return change._replace(body={**change.body, "notifications": ids}), tuple(notifications)

    def _lane_name(self, sink: str, subject: NotificationSubject, now: float, unique: str) -> str:
        window = str(int(now // self.every_s)) if self.every_s else unique
        group = {"sink": sink, "step": subject.step, "reason": subject.reason, "window": window}
        # A failure and a hold may have the same reason; they must not share one window.
        if subject.event == FAILURE:
            group["event"] = FAILURE
        return f"notice/{canonical_digest(group)[:32]}"

    def _window_end(self, now: float) -> float:
        return (now // self.every_s + 1) * self.every_s if self.every_s else 0.0

    def _build_notification(
        self, sink: str, lane: str, ordinal: int, due: float, subject: NotificationSubject, now: float
    ) -> Output:
        event = EventRecord(
            state="PENDING",
            topic=TOPIC_PREFIX + sink,
            event_id=make_event_id(lane, 0, ordinal),
            run_entity=lane,
            ordinal=ordinal,
            created_at=now,
            not_before=due,
            tenant=subject.tenant,
            correlation_id=subject.correlation_id,
        )
        # No idempotency key and no error text: an operator finds both in the log, by the item's id.
        payload = {
            "what": _WORDS[subject.event][ordinal],
            "kind": subject.kind,
            "item": subject.item,
            "step": subject.step,
            "reason": subject.reason,
            "attempts": subject.attempts,
            "error": {name: subject.error.get(name, "") for name in ("type", "code")},
            "since": now,
            "notify_again_after": self._window_end(now) or None,
            "next": _next_command(subject, ordinal),
        }
        return event, {**payload, "escalation": subject.escalation} if subject.escalation else payload

    def write_alert(self, engine: Engine, kind: str, payload: dict[str, Any]) -> int:
        """Write a notification of an alert for every sink; return how many sinks get one.

        A sink gets at most one per kind of alert and window, also from several processes: the id follows from
        both, and the store accepts an event once.
        """
        now, written = engine.now(), 0
        for sink in self.sinks:
            window = str(int(now // self.every_s)) if self.every_s else repr(now)
            lane = f"notice/{canonical_digest({'sink': sink, 'alert': kind, 'window': window})[:32]}"
            event = EventRecord(
                state="PENDING",
                topic=TOPIC_PREFIX + sink,
                event_id=make_event_id(lane, 0, 0),
                run_entity=lane,
                created_at=now,
            )
            body = {"what": "alert", **payload, "notify_again_after": self._window_end(now) or None}
            write = build_event_write((event, body), now, engine.cipher)
            with InterruptShield():
                written += not isinstance(engine.store.append(Batch((write,), {}, True)).wait(), Conflict)
        if written:
            self.wake_thread(engine)
        return written

    # Delivering -------------------------------------------------------------------------------------

    def make_relay(self, engine: Engine) -> RelayCore:
        """Return a relay that delivers only the notifications of these sinks."""
        from oncemore.messaging.relay import RelayCore

        routes = {TOPIC_PREFIX + name: sink for name, sink in self.sinks.items()}
        return RelayCore(engine, routes, classify=self._classify, describe=self._describe)

    def wake_thread(self, engine: Engine) -> None:
        """Let the thread deliver all due notifications, also those of other processes."""
        with self._lock:
            if self._thread is None:
                self._thread = _NotifierThread(self.make_relay(engine), engine)
        self._thread.wake_up()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Deliver due notifications for up to `timeout_s`; another process delivers the rest."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close(timeout_s)


class _NotifierThread:
    """A thread that delivers due notifications when it is woken."""

    def __init__(self, relay: RelayCore, engine: Engine) -> None:
        self._relay, self._log_warning = relay, log_warning
        self._wake_event, self._closing, self._stop = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run_relay, name="oncemore-notifications", daemon=True)
        # A thread cannot start while the interpreter shuts down; the next process delivers then.
        with suppress(RuntimeError), InterruptShield():
            self._thread.start()

    def wake_up(self) -> None:
        self._wake_event.set()

    def _run_relay(self) -> None:
        while not self._closing.is_set():
            self._wake_event.wait()
            self._wake_event.clear()
            try:
                self._relay.run_once(self._stop)
            except Exception as error:  # noqa: BLE001 - the next round delivers it
                self._log_warning(f"a notification was not delivered: {type(error).__name__}")

    def close(self, timeout_s: float) -> None:
        self._closing.set()
        self._wake_event.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._stop.set()


def _event_exists(engine: Engine, event_id: str) -> bool:
    return engine.store.load_head(f"event/{event_id}") is not None


def _next_command(subject: NotificationSubject, ordinal: int) -> str:
    """Return the command that shows an operator the subject of a notification."""
    if subject.event == FAILURE:
        list_command = f"oncemore runs --step {subject.step} --state HARD_FAIL"
        return list_command if ordinal else f"oncemore show {subject.item}"
    list_command = f"oncemore quarantine list --step {subject.step} --reason {subject.reason}"
    return list_command if ordinal else f"oncemore quarantine show {subject.item}"


def _describe_subject(engine: Engine, entity: str, change: RecordChange) -> NotificationSubject:
    """Return the subject of a notification for a held item or a failed run."""
    after: Any = change.after
    kind, _, name = entity.partition("/")
    subject = NotificationSubject(
        event=find_event(change),
        kind=kind,
        item=name,
        step="",
        reason="checksum_mismatch",
        tenant=after.tenant,
        correlation_id="",
        attempts=0,
        error=change.body.get("error") or {},
    )
    if type(after) is RunRecord:
        escalation = change.body.get("escalation", {})
        return subject._replace(
            # Only one that is a work item has an id; the others are records of the entry alone.
            escalation=escalation if "id" in escalation else {},
            item=after.run_id,
            step=after.step,
            reason=after.held_for or after.reason,
            correlation_id=after.correlation_id,
            attempts=after.attempt_count,
        )
    if type(after) is EventRecord:
        return subject._replace(
            item=after.event_id,
            step=after.topic,
            reason=DEAD_LETTER,
            correlation_id=after.correlation_id,
            attempts=after.attempt,
        )
    head = engine.store.load_head(after.run_entity)
    return subject._replace(
        step=after.step,
        correlation_id="" if head is None else decode_head(head.head).correlation_id,
        error={"type": "PolicyViolation", "code": "CHECKSUM_MISMATCH"},
    )


def load_notification_status(engine: Engine, ids: list[str]) -> tuple[NotificationStatus, ...]:
    """Return the current state of the notifications about an item."""
    statuses = []
    for event_id in ids:
        # The item is shown even if the state of its notifications cannot be read.
        with suppress(StoreError):
            head = engine.store.load_head(f"event/{event_id}")
            if head is not None:
                event = decode_head(head.head, EventRecord)
                statuses.append(
                    NotificationStatus(
                        event.topic.removeprefix(TOPIC_PREFIX), event.state, event_id, event.not_before
                    )
                )
    return tuple(statuses)
