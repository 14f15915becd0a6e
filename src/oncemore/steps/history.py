"""The history of entities, read from the log: folding entries, verifying the hash chain, exporting records.

`export_records` returns one record per mark with the ten fields of a transition (WAL-3); the log itself
stores fields that are constant over a run once.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore._values import Value, make
from oncemore.control.model import Approval, SwitchBoard
from oncemore.errors import IllegalTransition, StoreError
from oncemore.governance.checkpoint_record import CheckpointRecord
from oncemore.governance.dataset_model import DatasetRecord, EscalationRecord
from oncemore.governance.role_model import RoleRecord
from oncemore.limits.cooldown_rules import ResourceRecord
from oncemore.limits.queue_rules import QueueSlot
from oncemore.log.entry_codec import EntryHeader, decode_header, read_body, unreadable_format
from oncemore.log.record import (
    FORMAT,
    NEW,
    NOWHERE,
    AcceptedPolicy,
    ArtifactRecord,
    BreakerRecord,
    EventRecord,
    JobRecord,
    MaintenanceRecord,
    QuotaRecord,
    RecordedPolicy,
    RunRecord,
    StoreSecret,
    WorkerRecord,
    apply_header,
)
from oncemore.policy.canonical_json import run_seed
from oncemore.schedules.record import ScheduleRecord
from oncemore.telemetry.autonomy_rules import AutonomyRecord
from oncemore.telemetry.energy import build_snapshot
from oncemore.workflows.journal import describe_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oncemore.log.encryption import BodyCipher
    from oncemore.log.store import Entry
    from oncemore.steps.run import Run

    #: Version, hash and state of an entity after its last entry, and the seq of that entry.
    FoldedHead = tuple[int, bytes, Any, int]
    FoldedHeads = dict[str, FoldedHead]

#: The record type of an entity, by the prefix of its name.
KINDS: dict[str, Any] = {
    "run": RunRecord,
    "worker": WorkerRecord,
    "event": EventRecord,
    "artifact": ArtifactRecord,
    "maintenance": MaintenanceRecord,
    "job": JobRecord,
    "control": SwitchBoard,
    "approval": Approval,
    "breaker": BreakerRecord,
    "quota": QuotaRecord,
    "resource": ResourceRecord,
    "secret": StoreSecret,
    "policy": RecordedPolicy,
    "accepted": AcceptedPolicy,
    "schedule": ScheduleRecord,
    "queue": QueueSlot,
    "ledger": CheckpointRecord,
    "dataset": DatasetRecord,
    "escalation": EscalationRecord,
    "roles": RoleRecord,
    "autonomy": AutonomyRecord,
}
#: The marks of entries that record a removal of bodies.
REMOVAL_MARKS = frozenset(("PRUNE", "ERASE"))
#: The name of a mark in an export (WAL-4).
RECORDS = {
    "INTENT": "INTENT",
    "COMMIT": "COMMIT",
    "DECISION": "DECISION",
    "LEASE": "LEASE",
    "CHECKPOINT": "CHECKPOINT",
    "ESCALATION": "ESCALATION",
    "PRUNE": "PRUNE",
    "ERASE": "ERASE",
    "EVENT": "EVENT",
    "BREAKER": "DECISION",
    "QUOTA": "DECISION",
    "AUTONOMY": "DECISION",
    "JOURNAL": "JOURNAL",
    "SIGNAL": "SIGNAL",
}


class AttemptView(Value):
    """One attempt of a run.

    outcome         "RUNNING", "COMPLETE", "SOFT_FAIL" or "HARD_FAIL"; "PENDING" for an attempt of a workflow
                    that ended because the workflow waits
    error           the neutral record of its error, if there was one
    entry           the entry of its outcome: entity and version
    correlation_id  the correlation id of all records of this work
    """

    number: int
    began: float
    ended: float | None
    outcome: str
    reason: str
    error: dict[str, Any] | None
    worker: str
    entry: str
    correlation_id: str = ""


def fold_entries(
    entries: Iterable[Entry], cipher: BodyCipher | None = None
) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield header, record and body of entries; the record of an entity is folded from its first entry on."""
    states: dict[str, Any] = {}
    for entry in entries:
        header = decode_header(entry.header)
        kind: Any = KINDS[header.entity.partition("/")[0]]
        state = states[header.entity] = apply_header(states.get(header.entity), header.sets, kind)
        yield header, state, read_body(entry, cipher)


def collect_attempts(entries: list[tuple[Any, RunRecord, dict[str, Any]]]) -> Iterator[AttemptView]:
    """Yield the attempts of a run, from the header, record and body of its entries."""
    active: AttemptView | None = None
    for header, state, body in entries:
        if "INTENT" in header.marks:
            begun = (state.attempt, state.started_at, None, "RUNNING", "", None, state.worker, "")
            active = AttemptView(*begun, state.correlation_id)
        elif active is not None and state.state != "RUNNING":
            yield active._replace(
                ended=header.at,
                outcome=state.state,
                reason=state.reason,
                error=body.get("error"),
                entry=f"{header.entity}#{header.version}",
            )
            active = None
    # The last attempt still runs, or its worker died and no other has closed it yet.
    if active is not None:
        yield active


def explain_entries(run: Run[Any], entries: list[tuple[Any, RunRecord, dict[str, Any]]]) -> Iterator[str]:
    """Yield the history of a run as lines of text."""
    state = run.state
    yield f"{run.step}, key {run.key[:12]}, run {state.run_number} ({run.run_id}): {describe_state(run)}"
    for header, after, body in entries:
        if "INTENT" in header.marks:
            crashes = (
                f", after {after.crash_count} of {after.max_crashes} crashes" if after.crash_count else ""
            )
            yield (
                f"  attempt {after.attempt} began, {after.attempt_count} of {after.max_attempts}{crashes} "
                f"(fence {after.fence})"
            )
        elif "CHECKPOINT" in header.marks:
            yield "  … kept a checkpoint"
        elif "JOURNAL" in header.marks or "SIGNAL" in header.marks:
            yield from (f"  {line}" for line in describe_records(body.get("journal", ())))
        elif "PRUNE" in header.marks or "ERASE" in header.marks:
            action = "erased" if "ERASE" in header.marks else "pruned"
            yield f"  its arguments, results and errors were {action}"
        elif "BREAKER" in header.marks:
            yield f"  not tried: the breaker of {body.get('breaker', 'its provider')} is open"
        elif "QUOTA" in header.marks and "budget" in body:
            payment = "waits for a token of" if after.budget_debt else "the next attempt is paid for by"
            yield f"  {payment} the retry budget of {body['budget']}"
        elif "QUOTA" in header.marks:
            yield f"  not tried yet: {body.get('of', 'its provider')} takes {body.get('rate', 'no more now')}"
        elif "AUTONOMY" in header.marks:
            yield f"  not tried: paused by the autonomy matrix, {body.get('autonomy', {}).get('reason', '')}"
        elif after.reason == "imported":
            yield "  was done elsewhere, and marked as done here"
        # A change that leaves a run PENDING or RUNNING is explained by its decision below.
        elif after.state not in ("PENDING", "RUNNING"):
            error = body.get("error") or {}
            details = f": {error.get('type')}: {error.get('message')}" if error else ""
            reason = f" ({after.reason})" if after.reason else ""
            yield f"  attempt {after.attempt} → {after.state}{reason}{details}"
            if "proof" in body:
                yield f"    {body['proof'].get('sentence', body['proof'].get('reason', ''))}"
        if "decision" in body:
            decision = body["decision"]
            actor = decision["actor"] or "an unnamed actor"
            yield f"  decided by {actor}: {decision['action']}, because {decision['reason']}"


def describe_state(run: Run[Any]) -> str:
    """Return the state of a run in a few words."""
    if run.held_for:
        return f"held, {run.held_for.replace('_', ' ')}"
    return f"{run.status}{f', {run.reason}' if run.reason else ''}"


def export_records(entries: Iterable[Entry], cipher: BodyCipher | None = None) -> Iterator[dict[str, Any]]:
    """Yield one record for each mark of runs' entries, each with all ten fields of a transition."""
    # Read twice below: the sequence number is of the entry, and not of its header.
    entries = list(entries)
    folded = zip(entries, fold_entries(entries, cipher), strict=True)
    yield from export_folded((entry, header, state, body) for entry, (header, state, body) in folded)


def export_folded(rows: Iterable[tuple[Entry, Any, Any, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield the same records from entries that are folded already: entry, header, record and body."""
    running: set[str] = set()
    for entry, header, state, body in rows:
        if type(state) is not RunRecord:
            continue
        ends_attempt = state.state != "RUNNING" and header.entity in running
        (running.add if state.state == "RUNNING" else running.discard)(header.entity)
        for record in build_records(header.entity, header.marks, state, body, ends_attempt=ends_attempt):
            yield {"seq": entry.seq, "at": header.at, **record}


def build_records(
    entity: str, marks: Iterable[str], state: RunRecord, body: dict[str, Any], *, ends_attempt: bool
) -> Iterator[dict[str, Any]]:
    """Yield the records of one entry of a run, one for each mark, without its number and its time.

    state         the run after the entry
    ends_attempt  whether the run was RUNNING before it, and is not any more
    """
    snapshot = build_snapshot(body, ends_attempt=ends_attempt)
    for mark in marks:
        # Every other mark is the name of the state that the run changed to.
        transition = mark not in RECORDS
        yield {
            "kind": "TRANSITION" if transition else RECORDS[mark],
            "state": mark if transition else state.state,
            "run_id": state.run_id,
            "node_id": state.step,
            "attempt": state.attempt,
            "input_hash": state.input_hash,
            "seed": state.seed or run_seed(state.run_id),
            "cfg_hash": state.cfg_hash,
            "idempotency_key": entity.removeprefix("run/"),
            "checkpoint_ref": f"{entity}#{state.checkpoint_version}" if state.checkpoint_version else None,
            "telemetry_snapshot": snapshot,
            "decision_proof": body.get("proof"),
            "correlation_id": state.correlation_id,
            "reason": state.reason,
            "error": _exported_error(mark, state, body),
            **({"intent": "compute"} if mark == "INTENT" else {}),
            **_artifact_digests(mark, body),
            **({"escalation": body["escalation"]} if mark == "ESCALATION" and "escalation" in body else {}),
        }


def _artifact_digests(mark: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the artifact digests of an entry (WAL-4)."""
    if mark not in ("COMMIT", "COMPLETE") or "artifacts" not in body:
        return {}
    return {"artifacts": [plain["$artifact"]["digest"] for plain in body["artifacts"]]}


def _exported_error(mark: str, state: RunRecord, body: dict[str, Any]) -> Any:
    """Return the exported error: exhaustion under its own name, with the last error of an attempt."""
    if mark not in ("SOFT_FAIL", "HARD_FAIL"):
        return None
    error = body.get("error")
    if mark == "HARD_FAIL" and state.reason == "max_attempts_exceeded":
        return {"error": "max_attempts_exceeded", "last": error}
    return error


def verify_chain(
    entries: Iterable[Entry], heads: FoldedHeads | None = None, removals: list[Entry] | None = None
) -> FoldedHeads:
    """Check every link of a log and fold it; return version, hash, state and last seq of each entity.

    heads     the result for earlier entries, to continue from
    removals  gets the entries that record a removal of bodies, and those without a body

    Raises `StoreError` with the number of the first entry that does not fit.
    """
    heads = {} if heads is None else heads
    get_known = heads.get
    for entry in entries:
        seq, entity, number, before, own, header, body, digest = entry
        version, prev, state, _ = get_known(entity, _NOTHING)
        if number != version + 1:
            raise StoreError(f"entry {seq} ({entity}) is out of order: a part of the log is missing")
        try:
            # Pruning deletes the body and keeps its digest, so that the chain can still be verified. The hash
            # is that of `hash_entry`, without the call.
            if body is not None:
                digest = sha256(body).digest()
            fits = before == prev and own == sha256(prev + header + digest).digest()  # type: ignore[operator]
        except TypeError:  # a column holds text instead of bytes, or nothing
            fits = False
        if not fits:
            raise StoreError(f"entry {seq} ({entity}) was altered: its hash does not fit")
        try:
            if state is None:
                decoded, state = _read_first_header(header, entity)
            else:
                decoded = decode_header(header)
                state = apply_header(state, decoded.sets, type(state))
            if decoded.entity != entity or decoded.version != number:
                raise StoreError(f"it is about version {decoded.version} of {decoded.entity}")
        except (StoreError, IllegalTransition, TypeError) as fault:
            raise StoreError(f"entry {seq} ({entity}) makes no sense: {fault}") from None
        heads[entity] = number, own, state, seq
        if removals is not None and (body is None or not REMOVAL_MARKS.isdisjoint(decoded.marks)):
            removals.append(entry)
    return heads


def _read_first_header(data: bytes, entity: str) -> tuple[EntryHeader, Any]:
    """Return the header of an entity's first entry, and the record after it."""
    kind = KINDS.get(entity.partition("/")[0])
    if kind is None:
        raise StoreError(f"it is about {entity}, of a kind that is not known here")
    try:
        header = _first_decoder(kind)(data)
    except msgspec.DecodeError:
        # The general way, at twice the cost, has an error that names the field of the record.
        header = decode_header(data)
        return header, apply_header(None, header.sets, kind)
    if header.format != FORMAT:
        raise unreadable_format("an entry", header.format)
    return header, make(kind, msgspec.structs.astuple(header.sets))


@cache
def _first_decoder(kind: type[Any]) -> Callable[[bytes], Any]:
    """Return the decoder for the headers of first entries: it decodes `sets` as a whole record of this kind.

    msgspec fills in the fields of a new record, at half of the cost of a dict that is merged afterwards.
    """
    fields = [(name, Any, default) for name, default in NEW[kind]._asdict().items()]
    record = msgspec.defstruct(f"First{kind.__name__}", fields, forbid_unknown_fields=True, gc=False)
    options: Any = {"frozen": True, "forbid_unknown_fields": True, "gc": False}
    header = msgspec.defstruct("FirstHeader", [("sets", record)], bases=(EntryHeader,), **options)
    return msgspec.json.Decoder(header).decode


_NOTHING = (0, NOWHERE, None, 0)


def find_opening(entries: Iterable[Entry], cipher: BodyCipher | None = None) -> dict[str, Any]:
    """Return the body of the entry that opened the last run, with its arguments; empty if pruned."""
    opening: dict[str, Any] = {}
    for entry in entries:
        header = decode_header(entry.header)
        # A run that was held and released is PENDING again, with the same run id.
        if "PENDING" in header.marks and "run_id" in header.sets:
            opening = read_body(entry, cipher)
    return opening
