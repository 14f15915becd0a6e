"""The encoding of the log: changes of records become entries, heads and index columns, and back.

Entries and heads are msgspec JSON with fixed field order, the format's version first. Every append passes
`build_write`, every read of a head passes `load_head`. Results are in `log.result_codec`, except for the two
questions that every attempt asks.
"""

from __future__ import annotations

import os
from collections import deque
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from oncemore._platform import run_after_fork
from oncemore._values import make
from oncemore.control.model import Approval, SwitchBoard
from oncemore.errors import StoreError
from oncemore.governance.checkpoint_record import CheckpointRecord
from oncemore.governance.dataset_model import DatasetRecord, EscalationRecord
from oncemore.governance.role_model import RoleRecord
from oncemore.limits.cooldown_rules import ResourceRecord
from oncemore.limits.queue_rules import QueueSlot
from oncemore.log.encryption import EMPTY, decrypt_bytes
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import (
    FORMAT,
    NEW,
    NOWHERE,
    AcceptedPolicy,
    ArtifactRecord,
    BreakerRecord,
    EventRecord,
    JobRecord,
    LoadedHead,
    MaintenanceRecord,
    QuotaRecord,
    RecordChange,
    RecordedPolicy,
    RunRecord,
    StoreSecret,
)
from oncemore.log.store import Conflict, EntryWrite, HeadIndex
from oncemore.policy.canonical_json import LARGEST_INTEGER
from oncemore.schedules.record import ScheduleRecord
from oncemore.telemetry.autonomy_rules import AutonomyRecord

if TYPE_CHECKING:
    from oncemore.log.encryption import BodyCipher
    from oncemore.log.record import Entity, State_, WorkerRecord
    from oncemore.log.store import Batch, Store, Stored
    from oncemore.steps.ops import AppendChange

#: Marks of entries that have a single one.
CHECKPOINT: tuple[Any, ...] = ("CHECKPOINT",)
JOURNAL: tuple[Any, ...] = ("JOURNAL",)
SIGNAL: tuple[Any, ...] = ("SIGNAL",)
EVENT: tuple[Any, ...] = ("EVENT",)
ARTIFACT: tuple[Any, ...] = ("ARTIFACT",)
#: Index state of a run that waits for an operator, in any state of the run: held runs are few among many
#: waiting ones, and a query for them must not read all.
HELD = "HELD"
#: A larger result is stored as an artifact, outside of the log.
LARGE_BYTES = 256 * 1024
#: Limit of characters of a string that needs no encoding of its own.
PLAIN_TEXT_LENGTH = 1024
#: Types of results that are their own stored form.
PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))


# Without tracking by the garbage collector: a header is decoded for every entry of a scan, and has no cycles.
class EntryHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The part of an entry that is never erased.

    nonce  random number that makes two entries with the same content differ: a writer recognises its own
           entry by the hash
    """

    format: int
    entity: str
    version: int
    at: float
    fence: int
    nonce: int
    marks: tuple[str, ...]
    sets: dict[str, Any]


class EncodedEntry(NamedTuple):
    """The bytes of an entry, its hash, and the bytes of the new head."""

    header: bytes
    body: bytes
    hash: bytes
    head: bytes


_headers = msgspec.json.Decoder(EntryHeader)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_head = msgspec.json.Decoder(tuple[Any, ...]).decode
#: First byte of a body that is not encrypted: every body is a JSON object.
_BRACE = 0x7B
_DIGEST_OF_EMPTY = sha256(EMPTY).digest()


def build_write(
    entity: str, version: int, prev: bytes, change: RecordChange, now: float, cipher: BodyCipher | None = None
) -> EntryWrite:
    """Return the write of an entity's next entry, encoded and indexed."""
    encoded = encode_entry(change, entity, version + 1, prev, at=now, nonce=_draw_bits() >> 16, cipher=cipher)
    # `make` costs a third of the constructor, and every append passes here.
    return make(EntryWrite, (entity, version, *encoded, build_index(change.after)))


def build_event_write(emitted: Any, now: float, cipher: BodyCipher | None = None) -> EntryWrite:
    """Return the write of an event's first entry, from the pair of its record and its payload."""
    event, payload = emitted
    change = RecordChange(EVENT, None, event, {"payload": payload})
    return build_write(f"event/{event.event_id}", 0, NOWHERE, change, now, cipher)


#: The fields of a run before this position change with almost every entry, the ones after it seldom.
_SELDOM_CHANGED_FROM = RunRecord._fields.index("commit_version") + 1


def changed_fields(change: RecordChange) -> dict[str, Any]:
    """Return the fields that differ from the record before, or from a new record for the first entry."""
    _, before, after, _ = change
    if before is None:
        before = NEW[type(after)]
    # One comparison of the tail saves a loop over it; `is not` saves most calls of `!=`.
    tail_differs = after[_SELDOM_CHANGED_FROM:] != before[_SELDOM_CHANGED_FROM:]
    values = after if tail_differs else after[:_SELDOM_CHANGED_FROM]
    fields = zip(after._fields, values, before)  # noqa: B905 - a keyword would cost a sixth of this function
    return {name: new for name, new, old in fields if new is not old and new != old}


def encode_entry(
    change: RecordChange,
    entity: str,
    version: int,
    prev: bytes,
    at: float,
    nonce: int,
    cipher: BodyCipher | None = None,
) -> EncodedEntry:
    """Return the bytes of the next entry of an entity, linked to the hash of the previous one."""
    marks, _, after, content = change
    fence = after.fence if type(after) is RunRecord else 0
    header = EntryHeader(
        format=FORMAT,
        entity=entity,
        version=version,
        at=at,
        fence=fence,
        nonce=nonce,
        marks=marks,
        sets=changed_fields(change),
    )
    body, digest = EMPTY, _DIGEST_OF_EMPTY
    if content:
        body = _encode(content) if cipher is None else cipher.encrypt_body(_encode(content), entity, version)
        # Over the stored bytes, so that the chain verifies without the key.
        digest = sha256(body).digest()
    header_bytes = _encode(header)
    own_hash = sha256(prev + header_bytes + digest).digest()
    return make(EncodedEntry, (header_bytes, body, own_hash, _encode((FORMAT, *after))))


def hash_entry(prev: bytes, header: bytes, body_digest: bytes) -> bytes:
    """Return the hash of an entry, linked to the hash of the previous one."""
    return sha256(prev + header + body_digest).digest()


def encode_head(state: RunRecord | WorkerRecord | EventRecord | ArtifactRecord | MaintenanceRecord) -> bytes:
    """Return the bytes of a head: the format and the fields in order."""
    return _encode((FORMAT, *state))


def decode_head(data: bytes, kind: type[State_] = RunRecord) -> State_:  # type: ignore[assignment]
    """Return the record in the bytes of a head; fields that an older head lacks get their defaults."""
    whole = _decode_head(data)
    head_format, fields = whole[0], whole[1:]
    # The common case first, without the checks of the constructor.
    if head_format == FORMAT and len(fields) == len(kind._fields):
        return make(kind, fields)
    if head_format != FORMAT:
        raise unreadable_format("a head", head_format)
    # Fields are only ever added at the end, so an older head is a prefix of the current fields.
    try:
        return kind(*fields)
    except TypeError:
        raise StoreError(
            f"a head has {len(fields)} fields, and this oncemore knows {len(kind._fields)}: a newer oncemore "
            "wrote it; nothing was changed, use that version here too"
        ) from None


def unreadable_format(subject: str, stored_format: int) -> StoreError:
    """Return the error for data of another format; it names the version that can read the data."""
    if stored_format > FORMAT:
        return StoreError(
            f"{subject} has format {stored_format}, which a newer oncemore wrote; this one reads format "
            f"{FORMAT}: install the newer one"
        )
    return StoreError(
        f"{subject} has format {stored_format}, which oncemore wrote before its first release; this one "
        f"reads format {FORMAT}: finish the work with the version that wrote the store, then begin with a "
        "new store"
    )


def decode_header(data: bytes) -> EntryHeader:
    """Decode the header of an entry; raise `StoreError` for bytes that are not a header."""
    try:
        header = _headers.decode(data)
    except msgspec.DecodeError as error:
        raise StoreError(f"an entry's header cannot be read: {error}") from None
    if header.format != FORMAT:
        raise unreadable_format("an entry", header.format)
    return header


def decode_body(
    data: bytes, cipher: BodyCipher | None = None, entity: str = "", version: int = 0
) -> dict[str, Any]:
    """Decode the body of an entry; an encrypted one needs its cipher."""
    # With a cipher even a plain body is checked: it must be allowed by `EarlierBodies`.
    if cipher is not None or data[0] != _BRACE:
        data = decrypt_bytes(data, cipher, entity, version)
    body: dict[str, Any] = _decode(data)
    return body


def read_body(stored: Any, cipher: BodyCipher | None = None) -> dict[str, Any]:
    """Return the body of an `Entry` or a `Head`; empty if it was pruned."""
    return {} if stored.body is None else decode_body(stored.body, cipher, stored.entity, stored.version)


_WAITING_STATES = ("PENDING", "SOFT_FAIL")


def run_due_at(run: RunRecord) -> float | None:
    """Return the earliest time of the next attempt; None for a run that has ended, is held, or is running.

    A running run has no due time: if it is lost, it is found through its worker, whose lease ends.
    """
    return run.not_before if run.state in _WAITING_STATES and not run.held_for else None


def event_due_at(event: EventRecord) -> float | None:
    """Return the time at which an event may be sent, or None for one that needs no delivery.

    An event in SENDING has a due time too: the relay that sends it may have died.
    """
    if event.state in ("PENDING", "SENDING"):
        # Without a retry time the creation time, so that the oldest events come first.
        return event.not_before or event.created_at
    return None


def build_index(state: Entity) -> HeadIndex:
    """Return the index columns of a record; those of a worker are built in `steps.lease`."""
    if type(state) is RunRecord:
        # `make` and the exact type: every append passes here, most of them with a run.
        status = HELD if state.held_for else state.state
        due_at = run_due_at(state) if status in _WAITING_STATES else None
        return make(HeadIndex, ("run", status, due_at, state.step, state.worker, state.dataset))
    if type(state) is EventRecord:
        return HeadIndex("event", state.state, event_due_at(state), state.topic, state.worker)
    if type(state) is MaintenanceRecord:
        return HeadIndex("maintenance", state.state, None, state.task, state.worker)
    if type(state) is JobRecord:
        due_at = state.created_at if state.state == "RUNNING" else None
        return HeadIndex("job", state.state, due_at, state.step, state.worker)
    if type(state) is ResourceRecord:
        due_at = state.next_eligible_attempt_at if state.state == "COOLING" else None
        return HeadIndex("resource", state.state, due_at, state.step)
    if type(state) is BreakerRecord:
        return HeadIndex("breaker", state.state, None, state.name, state.probe_worker)
    if type(state) is QuotaRecord:
        return HeadIndex("quota", state.state, None, state.name)
    if type(state) is SwitchBoard:
        return HeadIndex("control", state.state)
    if type(state) is Approval:
        return HeadIndex("approval", state.state, None, state.step)
    if type(state) is StoreSecret:
        return HeadIndex("secret", state.state)
    if type(state) is RecordedPolicy:
        return HeadIndex("policy", state.state, None, state.name)
    if type(state) is DatasetRecord:
        return HeadIndex("dataset", state.state, dataset=state.dataset_id)
    if type(state) is RoleRecord:
        return HeadIndex("roles", state.state)
    if type(state) is EscalationRecord:
        return HeadIndex("escalation", state.state, state.opened_at, state.step, dataset=state.dataset)
    if type(state) is AcceptedPolicy:
        return HeadIndex("accepted", state.state, None, state.name)
    if type(state) is ScheduleRecord:
        return HeadIndex("schedule", state.state, state.next_tick, state.step)
    if type(state) is QueueSlot:
        # The due column holds the number, so that the slots of one queue are found by an index.
        return HeadIndex("queue", state.state, float(state.number), state.queue)
    if type(state) is CheckpointRecord:
        return HeadIndex("ledger", state.state)
    if type(state) is AutonomyRecord:
        return HeadIndex("autonomy", state.state, None, state.name)
    assert type(state) is ArtifactRecord
    # The due column holds the creation time, so that listing artifacts by time reads no bodies.
    return HeadIndex("artifact", state.state, state.created_at, state.step)


def load_head(
    store: Store, entity: str, cipher: BodyCipher | None = None, kind: type[Any] = RunRecord
) -> LoadedHead:
    """Return the decoded head of an entity, with the body of its last entry."""
    # An interrupted read must not leave a lock of the store locked; some stores shield it themselves.
    if getattr(store, "shields_reads", False):
        head = store.load_head(entity)
    else:
        with InterruptShield():
            head = store.load_head(entity)
    if head is None:
        return LoadedHead(entity, 0, NOWHERE, None)
    _, version, own_hash, state, _, _, data = head
    body = None if data is None else decode_body(data, cipher, entity, version)
    return make(LoadedHead, (entity, version, own_hash, decode_head(state, kind), body))


def is_plain_result(value: Any) -> bool:
    """Whether a result needs no encoding: a small value that JSON represents exactly."""
    kind = type(value)
    if kind is int:
        return bool(-LARGEST_INTEGER <= value <= LARGEST_INTEGER)
    if kind is str:
        return len(value) <= PLAIN_TEXT_LENGTH and value.isascii()
    return value is None or kind is bool


def is_large(encoded: Any) -> bool:
    """Whether an encoded result should be stored as an artifact."""
    return type(encoded) is msgspec.Raw and memoryview(encoded).nbytes > LARGE_BYTES


def was_notified_already(op: AppendChange, batch: Batch, answer: Stored | Conflict) -> bool:
    """Whether a batch was refused because another worker has just written a notification in it.

    The caller tries again without that notification, at most twice for each sink: a notification that exists
    is not written again.
    """
    if type(answer) is not Conflict or len(batch.writes) == 1 + len(op.events) + len(op.also):
        return False
    # The writes of a batch are the change itself, then `op.also`, then events and notifications.
    return answer.entity in {write.entity for write in batch.writes[1 + len(op.also) :]}


# Identifiers ----------------------------------------------------------------------------------------


# Random bits are read from the system in batches: the system call costs more than everything else here.
_BATCH = Struct("<256Q")
# A deque, because `pop` and `extend` are atomic: threads share it without a lock.
_drawn: deque[int] = deque()
_VARIANT = 1 << 63  # the two variant bits of RFC 9562 before the random ones


def _draw_bits() -> int:
    """Return 64 random bits."""
    try:
        return _drawn.pop()
    except IndexError:
        _drawn.extend(_BATCH.unpack(os.urandom(_BATCH.size)))
        return int.from_bytes(os.urandom(8), "little")


def new_nonce() -> int:
    """Return 48 random bits."""
    return _draw_bits() >> 16


def new_uuid7(now: float) -> str:
    """Return a new UUIDv7 (RFC 9562) whose time is `now`, in POSIX seconds.

    The twelve bits after the milliseconds are fractions of one (RFC 9562, section 6.2, method 3), so that ids
    sort by time even within one millisecond.
    """
    ticks = int(now * 4_096_000)
    number = ticks >> 12 << 80 | 0x7 << 76 | (ticks & 0xFFF) << 64 | _VARIANT | _draw_bits() >> 2
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


# A forked child would otherwise draw the same bits as its parent.
run_after_fork(_drawn.clear)
