"""Guarded appends: grouping them into atomic batches, or comparing their guards after they are stored.

**Groups** (`BatchQueue`). A guard is a message of its own, so every guarded append is an atomic batch, which
is expensive: a server with one replica stages each one on disk, and a cluster refuses concurrent batches with
the same guard. Every attempt of a step is guarded by the switches of its log, so most appends are affected.

Appends that arrive together with the same guards are therefore sent as one batch: the guard once, and each
entity with its own expectation. If one of them cannot be stored, none is, and each is sent again alone.
Further appends wait until the batch is answered. A group that is too small to be worth a batch is sent as
single messages without guards, if all its appends allow late guards.

**Late guards** (`GuardReader`) are for batches that allow them (`Batch.late`), such as the claim of an
attempt: a single publish that expects the last sequence of its own subject. Before the caller learns that it
is stored, the last messages of its guards are read.

Why that is enough: the stream has one order. A switch that was changed before the claim has a lower sequence,
so every replica that has the claim has the change. One reply contains the last messages of several subjects
as they were at one moment in one server. The claim's own subject is among them, and a reply without the claim
is ignored, so any replica may answer. If the guards in the reply are as expected, they were so at the claim,
because positions only move forward. If one is not, it may have moved before or after the claim, and the
attempt does not start in either case. Without a reply the question is repeated, and the caller waits.

One reply serves all claims that wait: if it contains the last of them, it contains those before it.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError
from oncemore.log.nats import messages
from oncemore.log.nats.replies import PublishReply, StreamMessage, parse_publish_reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.nats.append import AppendAttempt
    from oncemore.log.nats.reader import EntityPosition, NatsLog
    from oncemore.log.store import Batch

    WaitingAppend = tuple[AppendAttempt, Callable[[PublishReply], object]]
    WaitingCheck = tuple[AppendAttempt, int, Callable[[bool | None], object]]

MAX_GROUP_ENTITIES = 300
MIN_GROUP_APPENDS = 16  # with one replica that syncs, a batch is cheaper from about this size on
MAX_CHECKS = 100  # claims that one read serves: each may add a guard or two of its own


class BatchQueue:
    """Appends that wait to be sent as one batch; for use in the connection's loop only."""

    def __init__(self, log: NatsLog) -> None:
        self._log = log
        self._waiting: list[WaitingAppend] = []
        self._is_in_flight = self._is_scheduled = False

    def add_attempt(self, attempt: AppendAttempt, on_reply: Callable[[PublishReply], object]) -> None:
        """Send an attempt together with those that arrive with it; `on_reply` is called once."""
        self._waiting.append((attempt, on_reply))
        # Sent after all calls of this wake-up, so that appends that arrive together form one group.
        if not self._is_scheduled:
            self._is_scheduled = True
            self._log.connection.run_after_scheduled(self._send_next_group)

    def _send_next_group(self) -> None:
        self._is_scheduled = False
        while self._waiting and not self._is_in_flight:
            group = self._take_group()
            if len(group) < MIN_GROUP_APPENDS and all(_allows_late_guards(item[0].batch) for item in group):
                for attempt, on_reply in group:
                    self._send_alone(attempt, on_reply)
            else:
                self._send_group(group)

    def _send_alone(self, attempt: AppendAttempt, on_reply: Callable[[PublishReply], object]) -> None:
        """Send an attempt without its guards; from now on they are not part of its batch."""
        log = self._log
        attempt.late_guards = {entity: attempt.positions[entity] for entity in attempt.batch.guards}
        attempt.batch = attempt.batch._replace(guards={})
        outgoing = log.build_messages(attempt.batch, attempt.positions, attempt.append_id)
        outgoing = messages.mark_as_batch(outgoing, log.subjects.stream, attempt.append_id)

        def on_message(message: Any, reason: str) -> None:
            on_reply(parse_publish_reply(message, reason))

        if not log.connection.publish_now(outgoing, on_message):
            on_reply(PublishReply(text="the connection is lost"))

    def _send_group(self, group: list[WaitingAppend]) -> None:
        log, (first, _) = self._log, group[0]
        outgoing = messages.build_guard_messages(first.batch, first.positions, first.append_id, log.subjects)
        for attempt, _ in group:
            unguarded = attempt.batch._replace(guards={})
            outgoing += log.build_messages(unguarded, attempt.positions, attempt.append_id)
        self._is_in_flight = True
        outgoing = messages.mark_as_batch(outgoing, log.subjects.stream, secrets.token_hex(16))

        def on_message(message: Any, reason: str) -> None:
            self._on_group_reply(group, message, reason)

        if not log.connection.publish_now(outgoing, on_message):
            self._on_group_reply(group, None, "the connection is lost")

    def _take_group(self) -> list[WaitingAppend]:
        """Take the first append and all with the same guards that write none of the same entities."""
        guards = self._waiting[0][0].batch.guards
        group: list[WaitingAppend] = []
        later: list[WaitingAppend] = []
        entities: set[str] = set(guards)
        for waiting in self._waiting:
            batch = waiting[0].batch
            written = {write.entity for write in batch.writes}
            has_room = len(entities) + len(written) <= MAX_GROUP_ENTITIES
            # The first one always goes, however large it is: nothing else would ever take it.
            if not group or (batch.guards == guards and not written & entities and has_room):
                group.append(waiting)
                entities |= written
            else:
                later.append(waiting)
        self._waiting = later
        return group

    def _on_group_reply(self, group: list[WaitingAppend], message: Any, reason: str) -> None:
        """Send the next group, and pass each append of this one its part of the answer."""
        self._is_in_flight = False
        self._send_next_group()
        reply = parse_publish_reply(message, reason)
        if not reply.seq:
            # The error of a group says nothing about its members: each must find its own outcome.
            result = reply if len(group) == 1 else PublishReply(text=f"refused as a group ({reply.error})")
            for _, on_reply in group:
                on_reply(result)
            return
        # The entries of each append follow one another, in the order of the group.
        last_seq = reply.seq
        for attempt, on_reply in reversed(group):
            on_reply(PublishReply(last_seq))
            last_seq -= len(attempt.batch.writes)


def _allows_late_guards(batch: Batch) -> bool:
    """Whether a batch can be sent without its guards: it is one entry, and its caller permits it."""
    return batch.late and len(batch.writes) == 1


class GuardReader:
    """Checks that wait for a read, and whether one is in progress; for use in the connection's loop only."""

    def __init__(self, log: NatsLog) -> None:
        self._log = log
        self._waiting: list[WaitingCheck] = []
        self._is_reading = False

    def add_check(self, attempt: AppendAttempt, seq: int, on_result: Callable[[bool | None], object]) -> None:
        """Compare the late guards of an attempt that is stored with a sequence.

        `on_result` is called once with True if they are as expected, False if one is not, None if that is
        unknown.
        """
        self._waiting.append((attempt, seq, on_result))
        if not self._is_reading:
            self._read_guards()

    def _read_guards(self) -> None:
        checks, self._waiting = self._waiting[:MAX_CHECKS], self._waiting[MAX_CHECKS:]
        subjects = self._log.subjects
        # A reply with the newest claim contains all changes that came before any of these claims.
        newest, newest_seq, _ = max(checks, key=lambda check: check[1])
        claim_subject = subjects.entity_subject(newest.batch.writes[-1].entity)
        guards = {
            entity: subjects.entity_subject(entity)
            for attempt, _, _ in checks
            for entity in attempt.late_guards
        }

        def on_replies(replies: list[Any] | None, _reason: str) -> None:
            by_subject = (
                None if replies is None else {reply.headers["Nats-Subject"]: reply for reply in replies}
            )
            # A replica that lags behind does not have the claim yet: its guards prove nothing.
            if by_subject is not None and _parse_seq(by_subject.get(claim_subject)) < newest_seq:
                by_subject = None
            self._on_guard_messages(checks, guards, by_subject)

        self._is_reading = True
        requested = [claim_subject, *guards.values()]
        if not self._log.connection.request_last_now(subjects.stream, requested, on_replies):
            self._on_guard_messages(checks, guards, None)

    def _on_guard_messages(
        self, checks: list[WaitingCheck], guards: dict[str, str], by_subject: dict[str, Any] | None
    ) -> None:
        """Start the next read, and pass each check its result."""
        self._is_reading = False
        # First, so that the next read is in transit while the callbacks run.
        if self._waiting:
            self._read_guards()
        positions = None if by_subject is None else self._guard_positions(guards, by_subject)
        for attempt, _, on_result in checks:
            if positions is None:
                on_result(None)
            else:
                expected = attempt.late_guards.items()
                on_result(all(is_unchanged(positions[name], position) for name, position in expected))

    def _guard_positions(
        self, guards: dict[str, str], by_subject: dict[str, Any]
    ) -> dict[str, EntityPosition] | None:
        """Return the positions of the guarded entities; None if a message cannot be decoded."""
        try:
            return {
                entity: self._log.remember_message(entity, _parse_message(by_subject.get(subject)))
                for entity, subject in guards.items()
            }
        except StoreError:
            return None  # the caller asks the leader next, which raises the same error


def is_unchanged(position: EntityPosition, expected: EntityPosition) -> bool:
    """Whether an entity has the expected last entry; pruning changes its sequence but not its entry."""
    return (position.version, position.hash) == (expected.version, expected.hash)


def _parse_seq(reply: Any) -> int:
    return 0 if reply is None else int(reply.headers["Nats-Sequence"])


def _parse_message(reply: Any) -> StreamMessage | None:
    if reply is None:
        return None
    return StreamMessage(reply.headers["Nats-Subject"], _parse_seq(reply), reply.headers, reply.data)
