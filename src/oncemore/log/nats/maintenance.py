"""Maintenance of a log in NATS: pruning bodies, dropping entities, replacing heads, importing entries.

A server removes messages by subject up to a sequence, and changes none. So each operation stores first what
must remain, and purges afterwards. A process that dies in between leaves work that the next call of the same
operation, or `purge_leftovers`, completes.

    prune    what remains of the entries is stored on another subject. If the entity would have no message
             left, a message with its head is stored before, in the same atomic batch
    drop     a tombstone is stored, which expects the last message that was read
    replace  a message with the new head is stored
    purge    old tombstones, what they left behind, and the messages of guards are removed
    import   the entries of another log are stored as one atomic batch in their order: the first entry of each
             entity expects the position that the entity has, the ones after it follow in the same batch. An
             entry whose body was pruned is stored without one
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from oncemore.errors import StoreError, UsageError
from oncemore.log.nats import messages
from oncemore.log.nats.append import RETRYABLE, clear_entity, publish_batch, purge_subject
from oncemore.log.nats.messages import ENTRY, HEAD_ONLY, TOMBSTONE, EntryToPublish
from oncemore.log.nats.replies import NoServerReply
from oncemore.log.nats.server_check import publish_refused
from oncemore.log.store import EntitySizes, FilelessMaintenance, StorageSpace, check_next

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from oncemore.log.nats.messages import OutgoingMessage
    from oncemore.log.nats.queries import HeadProjection
    from oncemore.log.nats.reader import EntityPosition, NatsLog
    from oncemore.log.nats.replies import StreamMessage
    from oncemore.log.nats.store import NatsStore
    from oncemore.log.store import CopyCheck, Entry, Head, StoreFacts

MAX_GROUP = 300  # entities that are pruned or replaced together
GIVE_UP_S = 30.0  # how long other writers may keep winning the race
MAX_TOMBSTONE_APPENDS = 1000  # after so many newer appends no writer waits for an acknowledgement any more
TOMBSTONE_S = 3600.0  # how long a tombstone stays: longer than the age at which a projection is refilled


class NatsMaintenance(FilelessMaintenance):
    """The maintenance of a store in NATS; much of it is up to the server."""

    def __init__(self, store: NatsStore) -> None:
        self._store = store
        self._pruner = NatsPruner(store.log, store.projection)

    def describe_store(self) -> StoreFacts:
        """Return the server's version and the durability that it gives."""
        return self._store.server.describe_server(self._store.display_name)

    def measure_space(self, in_detail: bool = False) -> StorageSpace:
        """Return the size of the stream; the server does not report the free space of its disk."""
        space = StorageSpace(int(self._store.ask_in_loop(self._store.log.stream_info)["bytes"]))
        if not in_detail:
            return space
        kinds: dict[str, EntitySizes] = {}
        entities: set[str] = set()
        for entry in self._store.read_entries():
            kind = entry.entity.partition("/")[0]
            size = kinds.get(kind, EntitySizes())
            is_new = entry.entity not in entities
            entities.add(entry.entity)
            entry_bytes = len(entry.header) + len(entry.body or b"")
            kinds[kind] = EntitySizes(size.entities + is_new, size.entries + 1, size.bytes + entry_bytes)
        return space._replace(kinds=kinds)

    def prune_bodies(self, before: Mapping[str, int]) -> None:
        """Remove bodies and keep their digests; in groups of 300 entities, each all or none."""
        names = list(before)
        for start in range(0, len(names), MAX_GROUP):
            group = {name: before[name] for name in names[start : start + MAX_GROUP]}
            self._store.ask_in_loop(partial(self._pruner.prune_bodies, group))

    def drop_entities(self, at: Mapping[str, int]) -> int:
        """Remove entities that have the given versions, one after the other; return how many."""
        dropped = 0
        for entity, version in at.items():
            # One id for all repetitions of the request, so that a repeated one recognises its tombstone.
            append_id = secrets.token_hex(16)
            dropped += self._store.ask_in_loop(partial(self._pruner.drop_entity, entity, version, append_id))
        return dropped

    def replace_heads(self, heads: Sequence[Head], upto: int) -> int:
        """Replace heads; in groups of 300, each all or none; return how many."""
        ask, replace = self._store.ask_in_loop, self._pruner.replace_heads
        groups = [heads[start : start + MAX_GROUP] for start in range(0, len(heads), MAX_GROUP)]
        return sum(ask(partial(replace, group, upto)) for group in groups)

    def import_entries(self, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Import entries of another log, as one atomic batch of at most 1,000 messages."""
        # `_import_entries` repeats its requests itself, and raises no `NoServerReply`.
        self._store.ask_in_loop(partial(_import_entries, self._store.log, entries, heads))

    def checkpoint_wal(self) -> str:
        """Purge leftovers; there is no write-ahead file."""
        self._store.ask_in_loop(partial(self._pruner.purge_leftovers, self._store.now()))
        return ""

    def write_backup(self, to: Path, check: CopyCheck, progress: Callable[[int, int], object]) -> None:
        """Raise `UsageError` with the commands that back up a stream."""
        raise UsageError(
            "a store in NATS is backed up by the server's own tools: nats stream backup; or copied into "
            "another store: oncemore store move"
        )


class NatsPruner:
    """Prunes, drops and replaces; for use in the connection's loop only."""

    def __init__(self, log: NatsLog, projection: HeadProjection) -> None:
        self._log, self._projection = log, projection

    async def prune_bodies(self, before: Mapping[str, int]) -> None:
        """Remove the bodies below a version; a repeated call completes an interrupted one."""
        log, deadline = self._log, time.monotonic() + GIVE_UP_S
        while True:
            outgoing: list[OutgoingMessage] = []
            purges: list[tuple[str, int]] = []
            for entity, version in before.items():
                await self._plan_prune(entity, version, outgoing, purges)
            if not outgoing or await self._write_messages(outgoing, deadline):
                break
        # Only now: a purge before the rest is stored would lose entries if this process died.
        for subject, seq in purges:
            await log.ask_with_retries(partial(purge_subject, log, subject, seq))
        if outgoing:
            log.clear_cache()

    async def _write_messages(self, outgoing: list[OutgoingMessage], deadline: float) -> bool:
        """Store messages as one batch; return False if another writer was faster."""
        reply = await publish_batch(self._log, outgoing)
        if reply.seq:
            return True
        if reply.error not in RETRYABLE or time.monotonic() > deadline:
            raise publish_refused(self._log.connection.address, reply)
        await asyncio.sleep(0.01)
        return False

    async def _plan_prune(
        self, entity: str, version: int, outgoing: list[OutgoingMessage], purges: list[tuple[str, int]]
    ) -> None:
        """Add the messages to store and the subjects to purge for the bodies of one entity."""
        log, subjects = self._log, self._log.subjects
        chain = await log.load_chain(entity)
        if chain is None:
            return
        append_id, token = secrets.token_hex(16), messages.entity_token(entity)
        to_prune = [
            messages.prune_entry(message.entry, message.append_id)
            for number, message in sorted(chain.entries.items())
            if message.entry is not None and number < version and number not in chain.pruned
        ]
        for number, payload in enumerate(messages.encode_pruned_entries(entity, to_prune)):
            headers = {messages.APPEND: append_id}
            # Two processes that prune the same entity must not store its entries twice.
            if number == 0:
                headers[messages.EXPECT] = str(chain.pruned_seq)
            outgoing.append((subjects.pruned + token, payload, headers))
        pruned = chain.pruned.keys() | {entry.version for entry in to_prune}
        if not pruned:
            return
        remaining = [message for number, message in chain.entries.items() if number not in pruned]
        purge_before = min([*(message.seq for message in remaining), chain.last_seq])
        # The chain took several requests; its end must still be the last message.
        last = await log.load_last_message(entity)
        if last is None or last.seq != chain.last_seq:
            raise NoServerReply("the entity has changed")  # ask_with_retries starts again
        kind, head, _ = messages.parse_headers(last)
        subject = subjects.entity_subject(entity)
        # A server has no head for an entity without messages, so one with the head must remain.
        if not remaining and kind == ENTRY:
            headers = messages.build_headers(head, HEAD_ONLY, append_id)
            outgoing.append((subject, b"", {**headers, messages.EXPECT: str(last.seq)}))
            purge_before = last.seq + 1
        purges.append((subject, purge_before))
        first_parts = [message.first_part or message.seq for message in remaining]
        purges.append((subjects.parts + token, min([*first_parts, purge_before])))

    async def drop_entity(self, entity: str, version: int, append_id: str) -> int:
        """Remove an entity that has a version; return 1 if this call did it, else 0.

        `append_id` marks the tombstone, so that a repeated call recognises its own.
        """
        log, deadline = self._log, time.monotonic() + GIVE_UP_S
        while True:
            last = await log.load_last_message(entity)
            position = log.remember_message(entity, last)
            if last is None or (position.version != version and position.version):
                return 0
            kind, _, last_append = messages.parse_headers(last)
            if kind == TOMBSTONE:
                # Either our own, whose acknowledgement was lost, or one of a process that may have died
                # before it purged the entries.
                await clear_entity(log, entity, last.seq)
                return int(last_append == append_id)
            tombstone = await self._build_tombstone(entity, last, append_id)
            if tombstone is not None:
                with suppress(NoServerReply):
                    await self._write_messages([tombstone], deadline)
            elif time.monotonic() > deadline:
                return 0  # other writers use it all the time

    async def _build_tombstone(
        self, entity: str, last: StreamMessage, append_id: str
    ) -> OutgoingMessage | None:
        """Return the tombstone of an entity; None if the entity has changed since `last`."""
        chain = await self._log.load_chain(entity)
        if chain is None or chain.last_seq != last.seq:
            return None
        dropped = [(message.seq, message.append_id) for message in chain.entries.values()]
        dropped += [(entry.seq, entry.append_id) for entry in chain.pruned.values()]
        payload, headers = messages.build_tombstone(
            entity,
            messages.parse_headers(last)[1].by.kind,
            sorted(dropped)[-MAX_TOMBSTONE_APPENDS:],
            append_id,
        )
        return last.subject, payload, {**headers, messages.EXPECT: str(last.seq)}

    async def replace_heads(self, heads: Sequence[Head], upto: int) -> int:
        """Replace heads, all or none; skip entities with entries after the sequence `upto`."""
        log, deadline = self._log, time.monotonic() + GIVE_UP_S
        while True:
            append_id = secrets.token_hex(16)
            outgoing: list[OutgoingMessage] = []
            for head in heads:
                last = await log.load_last_message(head.entity)
                if last is not None and messages.parse_headers(last)[1].seq > upto:
                    continue
                headers = messages.build_headers(head, HEAD_ONLY, append_id)
                headers[messages.EXPECT] = str(0 if last is None else last.seq)
                outgoing.append((log.subjects.entity_subject(head.entity), b"", headers))
            if not outgoing or await self._write_messages(outgoing, deadline):
                log.clear_cache()
                return len(outgoing)

    async def purge_leftovers(self, now: float) -> None:
        """Purge the messages of guards, the leftovers of dropped entities, and old tombstones."""
        log, subjects = self._log, self._log.subjects
        info = await log.stream_info()
        await self._projection.catch_up(info["last_seq"])
        await purge_subject(log, subjects.guard, info["last_seq"] + 1)
        for subject, (seq, stored) in self._projection.list_tombstones().items():
            token = subject.rpartition(".")[2]
            for prefix in (subjects.parts, subjects.pruned):
                await purge_subject(log, prefix + token, seq)
            await purge_subject(log, subject, seq + 1 if now - stored > TOMBSTONE_S else seq)


async def _import_entries(log: NatsLog, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
    """Import entries, all or none; a lost acknowledgement is resolved by the id of the append."""
    append_id, deadline = secrets.token_hex(16), time.monotonic() + GIVE_UP_S
    while True:
        with suppress(NoServerReply):
            positions = await _load_import_positions(log, entries, append_id)
            if positions is None or not entries:
                break
            check_next(entries, heads, {name: (at.version, at.hash) for name, at in positions.items()})
            reply = await publish_batch(
                log, _build_import_messages(log, entries, heads, positions, append_id)
            )
            if reply.seq:
                break
            if reply.error not in RETRYABLE:
                raise publish_refused(log.connection.address, reply)
        if time.monotonic() > deadline:
            raise StoreError(
                f"{log.connection.address.shown}: no answer within {GIVE_UP_S:g} s; whether the entries were "
                "imported is not known: read the log again"
            )
        await asyncio.sleep(0.05)
    log.clear_cache()


async def _load_import_positions(
    log: NatsLog, entries: Sequence[Entry], append_id: str
) -> dict[str, EntityPosition] | None:
    """Return the positions of the entities; None if this import is stored already."""
    positions: dict[str, EntityPosition] = {}
    for entity in dict.fromkeys(entry.entity for entry in entries):
        last = await log.load_last_message(entity)
        # The batch is atomic: if the id is on one entity, all entries are stored.
        if last is not None and messages.parse_headers(last)[2] == append_id:
            return None
        position = positions[entity] = log.remember_message(entity, last)
        # A new entity under a dropped name: leftovers of the old one must not reappear with it.
        if position.version == 0 and position.seq:
            await clear_entity(log, entity, position.seq)
    return positions


def _build_import_messages(
    log: NatsLog,
    entries: Sequence[Entry],
    heads: Sequence[Head],
    positions: dict[str, EntityPosition],
    append_id: str,
) -> list[OutgoingMessage]:
    """Return the messages of the import.

    No reader sees the head between two entries of an entity, so all of them carry the last state.
    """
    last_heads = {head.entity: head for head in heads}
    expected: dict[str, int | None] = {name: position.seq for name, position in positions.items()}
    outgoing: list[EntryToPublish] = []
    for entry in entries:
        head = last_heads[entry.entity]._replace(version=entry.version, hash=entry.hash)
        # The server checks the first entry of each entity; later ones follow it in the same batch.
        expected_seq, expected[entry.entity] = expected[entry.entity], None
        outgoing.append(
            EntryToPublish(head, entry.header, entry.prev, entry.body, expected_seq, entry.body_digest)
        )
    return messages.add_entry_messages(outgoing, append_id, log.subjects, log.connection.max_payload, [])
