"""Appending to a log in NATS: one message or one atomic batch, and resolving lost acknowledgements.

Without an acknowledgement, the first message after the expected one decides. If it carries the append's own
id, the batch is stored. If another writer's entry is there, the batch can never be stored. If there is none,
the outcome is unknown: the batch may be in transit for as long as the servers have no quorum. Then the same
batch is sent again with the same expectation, which cannot store it twice. An append that gives up raises a
`StoreError` that says that the outcome is unknown.

The own entry may have been pruned or dropped in the meantime; append ids survive both (`messages`).
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError
from oncemore.log.nats import messages
from oncemore.log.nats.guards import BatchQueue, GuardReader, is_unchanged
from oncemore.log.nats.messages import HEAD_ONLY, TOMBSTONE
from oncemore.log.nats.reader import EntityPosition
from oncemore.log.nats.replies import NoServerReply, PublishReply, parse_publish_reply
from oncemore.log.nats.server_check import publish_refused
from oncemore.log.store import Conflict, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.log.nats.messages import OutgoingMessage
    from oncemore.log.nats.reader import NatsLog
    from oncemore.log.store import Batch, EntryWrite

GIVE_UP_S = 30.0
EMPTY_SUBJECT_S = 5.0  # a subject must stay empty this long to prove that its entity was dropped
MAX_PAUSE_S = 0.25
MAX_GROUPED_BODY = 20_000  # bytes; batches with a larger body are sent alone

WRONG_SEQUENCE, IN_FLIGHT, ABANDONED, TOO_MANY, NO_REPLY = 10071, 10164, 10176, 10210, 0
#: Error codes after which the same batch may be sent again, once its outcome has been looked up.
RETRYABLE = frozenset({WRONG_SEQUENCE, IN_FLIGHT, ABANDONED, TOO_MANY, NO_REPLY})


class SubjectEmptied(NoServerReply):
    """The subject of an entity that had entries is empty now."""


class AppendAttempt:
    """A batch that is being appended: its id, the expected positions of its entities, and its deadline.

    append_id    marks the messages of this append in the stream
    late_guards  guards that were taken out of the batch, to be compared after it is stored (`guards`)
    empty_since  when the subject of an entity was first found empty; 0: it is not empty
    """

    def __init__(self, batch: Batch) -> None:
        self.batch, self.append_id = batch, secrets.token_hex(16)
        self.late_guards: Mapping[str, EntityPosition] = {}
        self.positions: dict[str, EntityPosition] = {}
        self.deadline = time.monotonic() + GIVE_UP_S
        self.empty_since = 0.0


class NatsAppender:
    """Appends batches; for use in the connection's loop only."""

    def __init__(self, log: NatsLog) -> None:
        self._log = log
        self._batch_queue = BatchQueue(log)
        self._guard_reader = GuardReader(log)

    def append_now(
        self, batch: Batch, on_reply: Callable[[AppendAttempt, PublishReply], object]
    ) -> AppendAttempt | None:
        """Send a batch without a task if all positions are known; else return None, for `append_batch`.

        `on_reply` is called once with the answer, which may be missing; `resolve_append` then finds the
        outcome.
        """
        log, attempt = self._log, AppendAttempt(batch)
        for write in batch.writes:
            position = log.known_position(write.entity, write.expect)
            # Below a tombstone, leftovers of the dropped entity must be purged first: that takes a task.
            if position is None or (position.seq and not write.expect):
                return None
            attempt.positions[write.entity] = position
        for entity, version in batch.guards.items():
            position = log.known_position(entity, version)
            if position is None:
                return None
            attempt.positions[entity] = position
        # Only small bodies are grouped: a group shares one atomic batch and one timeout.
        if batch.guards and batch.writes and all(len(w.body) < MAX_GROUPED_BODY for w in batch.writes):
            if not log.connection.is_connected:
                return None
            self._batch_queue.add_attempt(attempt, partial(on_reply, attempt))
            return attempt
        outgoing = log.build_messages(batch, attempt.positions, attempt.append_id)
        outgoing = messages.mark_as_batch(outgoing, log.subjects.stream, attempt.append_id)

        def on_message(message: Any, reason: str) -> None:
            on_reply(attempt, parse_publish_reply(message, reason))

        return attempt if log.connection.publish_now(outgoing, on_message) else None

    def check_guards(
        self, attempt: AppendAttempt, seq: int, on_result: Callable[[bool | None], object]
    ) -> None:
        """Compare the late guards of a stored attempt; `on_result` is called with None if that is unknown."""
        self._guard_reader.add_check(attempt, seq, on_result)

    async def resolve_append(self, attempt: AppendAttempt, reply: PublishReply) -> Stored | Conflict:
        """Find the outcome of an attempt whose first answer did not settle it."""
        outcome = await self._resend_until_known(attempt, reply)
        if attempt.late_guards and isinstance(outcome, Stored):
            return await self._check_late_guards(attempt, outcome)
        return outcome

    async def _check_late_guards(self, attempt: AppendAttempt, stored: Stored) -> Stored | Conflict:
        """Compare the late guards of a stored attempt; the entries stand either way."""
        pause = 0.001
        while True:
            result: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
            self.check_guards(attempt, stored.seqs[-1], result.set_result)
            if await result:
                return stored
            # The leader tells which guard moved, and settles the case that no replica answered.
            with suppress(NoServerReply):
                for entity, expected in attempt.late_guards.items():
                    if not is_unchanged(await self._log.load_position(entity), expected):
                        return (await self._build_conflict(entity))._replace(stored_seqs=stored.seqs)
            if time.monotonic() > attempt.deadline:
                raise StoreError(
                    f"{self._log.connection.address.shown}: the batch is stored, but for {GIVE_UP_S:g} s no "
                    "server could tell whether its guards had changed before; it must be taken back"
                )
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - spreads the retries
            pause = min(2 * pause, MAX_PAUSE_S)

    async def append_batch(self, batch: Batch) -> Stored | Conflict:
        """Store a batch or return the conflict; a `StoreError` says that the outcome is unknown."""
        log, attempt = self._log, AppendAttempt(batch)
        expected = {**batch.guards, **{write.entity: write.expect for write in batch.writes}}
        for entity, version in expected.items():
            position = await log.ask_with_retries(partial(log.find_position, entity, version))
            if position.version != version:
                return await self._build_conflict(entity)
            attempt.positions[entity] = position
        return await self._resend_until_known(attempt)

    async def _resend_until_known(
        self, attempt: AppendAttempt, first_reply: PublishReply | None = None
    ) -> Stored | Conflict:
        pause, last_error = 0.001, ""
        while True:
            reply, first_reply = first_reply or PublishReply(), None
            if reply == PublishReply():
                with suppress(NoServerReply):
                    reply = await self._send_attempt(attempt)
            if reply.seq:
                return self.remember_stored(attempt.batch, reply.seq)
            if reply.error:
                last_error = f" ({reply.error}: {reply.text})"
            with suppress(NoServerReply):
                outcome = await self._find_outcome(attempt)
                if outcome is not None:
                    return outcome
                # Only now: the server may refuse the repetition of a batch that it had stored.
                if reply.error not in RETRYABLE:
                    raise publish_refused(self._log.connection.address, reply)
            if time.monotonic() > attempt.deadline:
                raise StoreError(
                    f"{self._log.connection.address.shown}: no answer within {GIVE_UP_S:g} s{last_error}; "
                    "whether it is stored is not known: it may still be, and must be read again"
                )
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - spreads the retries
            pause = min(2 * pause, MAX_PAUSE_S)

    async def _send_attempt(self, attempt: AppendAttempt) -> PublishReply:
        log = self._log
        for write in attempt.batch.writes:
            position = attempt.positions[write.entity]
            # A new entity under a dropped name: leftovers of the old one must not reappear with it.
            if position.version == 0 and position.seq:
                await clear_entity(log, write.entity, position.seq)
        return await publish_batch(
            log, log.build_messages(attempt.batch, attempt.positions, attempt.append_id)
        )

    def remember_stored(self, batch: Batch, last_seq: int) -> Stored:
        """Remember the new positions; the entries of a batch are its last messages, without gaps."""
        log = self._log
        seqs = tuple(range(last_seq - len(batch.writes) + 1, last_seq + 1))
        for write, seq in zip(batch.writes, seqs, strict=True):
            log.remember_position(write.entity, EntityPosition(write.expect + 1, seq, write.hash))
        return Stored(seqs)

    async def _build_conflict(self, entity: str) -> Conflict:
        return Conflict(entity, await self._log.ask_with_retries(partial(self._log.load_head, entity)))

    async def _find_outcome(self, attempt: AppendAttempt) -> Stored | Conflict | None:
        """Look up the outcome of an attempt; None: it is unknown, and the batch may be sent again."""
        outcome = await self._find_writes(attempt)
        if outcome is not None:
            return outcome
        log = self._log
        for entity, version in attempt.batch.guards.items():
            position = await log.load_position(entity)
            if position.version == version:
                attempt.positions[entity] = position
                continue
            # The guard moved after the writes were looked for: they may have been stored in between.
            outcome = await self._find_writes(attempt)
            if outcome is None and (await log.load_position(entity)).seq >= position.seq:
                outcome = await self._build_conflict(entity)
            return outcome
        return None

    async def _find_writes(self, attempt: AppendAttempt) -> Stored | Conflict | None:
        """Look for the writes of an attempt; if one is stored, all are, without gaps."""
        writes = attempt.batch.writes
        for number, write in enumerate(writes):
            seq, position = await self._find_own_write(attempt, write)
            if seq:
                return self.remember_stored(attempt.batch, seq - number + len(writes) - 1)
            if position is None:
                return await self._build_conflict(write.entity)
            attempt.positions[write.entity] = position
        return None

    async def _find_own_write(
        self, attempt: AppendAttempt, write: EntryWrite
    ) -> tuple[int, EntityPosition | None]:
        """Return the sequence of the own entry, or 0 and the entity's position, or 0 and None: it moved."""
        log, position = self._log, attempt.positions[write.entity]
        stream, subject, seq = log.subjects.stream, log.subjects.entity_subject(write.entity), position.seq
        while message := await log.connection.next_message(stream, subject, seq + 1):
            kind, head, append_id = messages.parse_headers(message)
            seq = message.seq
            if append_id == attempt.append_id:
                return seq, None
            if kind == TOMBSTONE:
                # The own entry may have been stored and dropped since: the tombstone lists it.
                own_seq = messages.tombstone_appends(message).get(attempt.append_id, 0)
                if own_seq:
                    return own_seq, None
                position = EntityPosition(0, seq)
            elif kind == HEAD_ONLY and (head.version, head.hash) == (position.version, position.hash):
                # A prune or a replaced head moves the sequence but not the version: it is no conflict.
                position = EntityPosition(position.version, seq, position.hash)
            else:
                # Another entry follows the expected one, unless the own entry was pruned in between.
                pruned = (await log.load_pruned_entries(write.entity))[1]
                return next((old.seq for old in pruned if old.append_id == attempt.append_id), 0), None
        if position.version != write.expect:
            return 0, None
        if seq and not await log.connection.next_message(stream, subject, seq):
            return 0, self._position_of_empty_subject(attempt, write)
        attempt.empty_since = 0.0
        return 0, position

    def _position_of_empty_subject(self, attempt: AppendAttempt, write: EntryWrite) -> EntityPosition | None:
        """Return the position of an entity whose subject is empty; raise `SubjectEmptied` while in doubt.

        The entity was dropped long ago, or the leader is new, lags behind, and may still store the own
        entry. So a drop is believed only after a while, unless the write expects no entity anyway.
        """
        if write.expect == 0:
            return EntityPosition()
        now = time.monotonic()
        attempt.empty_since = attempt.empty_since or now
        if now - attempt.empty_since < EMPTY_SUBJECT_S:
            raise SubjectEmptied
        return None


async def publish_batch(log: NatsLog, outgoing: list[OutgoingMessage]) -> PublishReply:
    """Publish messages as one atomic batch."""
    return await log.connection.publish_messages(
        messages.mark_as_batch(outgoing, log.subjects.stream, secrets.token_hex(16))
    )


async def purge_subject(log: NatsLog, subject: str, before_seq: int) -> None:
    """Remove the messages of a subject before a sequence; repeating it changes nothing."""
    reply = await log.connection.call_api(
        f"STREAM.PURGE.{log.subjects.stream}", filter=subject, seq=before_seq
    )
    if "error" not in reply:
        return
    error = reply["error"]
    if error.get("code") == 503:
        raise NoServerReply(str(error.get("description")))
    raise StoreError(
        f"{log.connection.address.shown}: subject {subject} cannot be purged: {error.get('description')}"
    )


async def clear_entity(log: NatsLog, entity: str, tombstone_seq: int) -> None:
    """Remove all messages of an entity that come before its tombstone."""
    token = messages.entity_token(entity)
    for prefix in (log.subjects.entities, log.subjects.parts, log.subjects.pruned):
        await purge_subject(log, prefix + token, tombstone_seq)
