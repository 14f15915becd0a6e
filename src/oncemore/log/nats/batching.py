"""Grouping of guarded batches: several appends of one process become one atomic batch.

A guard is a message of its own, so every guarded append is an atomic batch, which is expensive: a server with
one replica stages each one on disk, and a cluster refuses concurrent batches with the same guard. Every
attempt of a step is guarded by the switches of its log, so most appends are affected.

Appends that arrive together with the same guards are therefore sent as one batch: the guard once, and each
entity with its own expectation. If one of them cannot be stored, none is, and each is sent again alone.
Further appends wait until the batch is answered. A group that is too small to be worth a batch is sent as
single messages without guards, if all its appends allow late guards (`guards`).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from oncemore.log.nats import messages
from oncemore.log.nats.replies import PublishReply, parse_publish_reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.nats.append import AppendAttempt
    from oncemore.log.nats.reader import NatsLog
    from oncemore.log.store import Batch

    WaitingAppend = tuple[AppendAttempt, Callable[[PublishReply], object]]

MAX_GROUP_ENTITIES = 300
MIN_GROUP_APPENDS = 16  # with one replica that syncs, a batch is cheaper from about this size on


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
