"""Reads and writes the records of idempotency keys in the log.

`record_script` records a result that the caller has already, `clear_script` marks a result as cleared. A
cleared run stays COMPLETE; only its `cfg_hash` fits no call any more, so the next call begins a new run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncemore.errors import InProgress, UsageError
from oncemore.log.entry_codec import new_uuid7
from oncemore.log.record import RecordChange, RunRecord
from oncemore.policy.canonical_json import canonical_digest
from oncemore.profiles.exoarmur.record import NO_OWNER, decode_record, encode_record, make_record
from oncemore.steps.call import PreparedCall
from oncemore.steps.call_operations import CALL_OPERATIONS
from oncemore.steps.context import CONTEXT
from oncemore.steps.keys import cfg_hash
from oncemore.steps.ops import AppendChange, EndCall, LoadHead, ReadBody, ReadClock, ReadLease
from oncemore.steps.perform import run_call_async

if TYPE_CHECKING:
    from oncemore.log.record import LoadedHead
    from oncemore.profiles.exoarmur.record import IdempotencyRecord
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script

EFFECT: Final = "idempotent"
CONFIG_HASH = cfg_hash("1", None)
CLEARED_HASH = "cleared"


def key_entity(key: str) -> str:
    """Return the entity of a key in the log; refuse a key that not every store can keep."""
    try:
        key.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "an idempotency key holds half a surrogate pair, which no store can keep; use valid Unicode"
        ) from None
    if "\0" in key:
        raise UsageError("an idempotency key holds a zero byte, which not every store can keep; remove it")
    return f"run/{key}"


async def find_record(engine: Engine, key: str) -> IdempotencyRecord | None:
    """Return the record of a key, or None."""
    entity = key_entity(key)
    return await _run_script(engine, _find_script(key, entity))  # type: ignore[no-any-return]


async def append_record(engine: Engine, record: IdempotencyRecord) -> None:
    """Record a result that the caller has already; refuse one that differs from the recorded result."""
    await _run_script(engine, record_script(record, key_entity(record.key)))


async def clear_record(engine: Engine, key: str) -> IdempotencyRecord | None:
    """Mark a recorded result as cleared; return it, or None if there was none."""
    return await _run_script(engine, clear_script(key, key_entity(key)))  # type: ignore[no-any-return]


async def _run_script(engine: Engine, script: Script) -> Any:
    return await run_call_async(PreparedCall.for_decision(engine), script, CALL_OPERATIONS)


def read_record(key: str, head: LoadedHead) -> Script:
    """Return the record of a key, or None; refuse a key of other work."""
    run = head.record
    if run is None or run.state != "COMPLETE" or run.cfg_hash == CLEARED_HASH:
        return None
    # The work was done, so it must not be repeated, although its result is gone.
    if run.pruned_at:
        return make_record(key, None, "it was pruned", None, NO_OWNER)
    # An entry after the COMMIT replaces its body in the head.
    body = head.body if head.version == run.commit_version else None
    record = decode_record(key, body or (yield ReadBody(head.entity, run.commit_version)))
    if record is None:
        raise UsageError(f"key {key} belongs to other work, such as a step; give this operation another key")
    return record


def _find_script(key: str, entity: str) -> Script:
    head = yield LoadHead(entity)
    return EndCall((yield from read_record(key, head)), None)


def record_script(record: IdempotencyRecord, entity: str) -> Script:
    """Write a result for a key: as a new run, or as the COMMIT of the open run.

    The loop repeats after a conflict, when another process has changed the run in between.
    """
    while True:
        head = yield LoadHead(entity)
        now = yield ReadClock()
        recorded = yield from read_record(record.key, head)
        if recorded is not None:
            return EndCall(None, None if recorded.text == record.text else result_differs(record.key))
        run: RunRecord | None = head.record
        marks: tuple[Any, ...] = ("COMMIT", "COMPLETE")
        if run is None or run.state in ("COMPLETE", "HARD_FAIL"):
            # A finished run cannot be changed: the result begins and ends a run of its own.
            run, marks = _make_run(record, run, now), ("PENDING", *marks)
        after = run._replace(
            state="COMPLETE", reason="recorded", worker="", held_for="", commit_version=head.version + 1
        )
        if (
            yield AppendChange(head, RecordChange(marks, head.record, after, encode_record(record)))
        ) is not None:
            return EndCall(None, None)


def result_differs(key: str) -> UsageError:
    """Return the error for a result that differs from the recorded one."""
    return UsageError(f"key {key} has another result already; clear the key first if that result is wrong")


def _make_run(record: IdempotencyRecord, last: RunRecord | None, now: float) -> RunRecord:
    run_id = new_uuid7(now)
    last = last or RunRecord()
    return RunRecord()._replace(
        step=record.owner.operation or "idempotency record",
        effect=EFFECT,
        run_id=run_id,
        run_number=last.run_number + 1,
        # Fence and attempt go on from the last run: both numbers are never reused for a key.
        fence=last.fence,
        attempt=last.attempt,
        created_at=now,
        input_hash=hash_inputs(record.key),
        cfg_hash=CONFIG_HASH,
        correlation_id=run_id,
    )


def hash_inputs(key: str) -> str:
    """Return the hash of an operation's inputs: the key stands for all of them."""
    return canonical_digest({"idempotency_key": key})


def clear_script(key: str, entity: str) -> Script:
    """Mark a result as cleared; the entry names the actor. Refuse while the work is running."""
    while True:
        head = yield LoadHead(entity)
        now = yield ReadClock()
        run = head.record
        # A RUNNING run whose lease has passed is not running: its worker is gone.
        if (
            run is not None
            and run.state == "RUNNING"
            and (yield ReadLease(run.worker, entity, run.fence)) > now
        ):
            return EndCall(None, clear_refused(key))
        recorded = yield from read_record(key, head)
        if recorded is None:
            return EndCall(None, None)
        fields = {"action": "clear", "reason": "clear_idempotency", "actor": CONTEXT.get().actor}
        # COMPLETE stays, because the work was done; the hash alone makes the next call a new run.
        after = run._replace(reason=CLEARED_HASH, cfg_hash=CLEARED_HASH)
        if (
            yield AppendChange(head, RecordChange(("DECISION",), run, after, {"decision": fields}))
        ) is not None:
            return EndCall(recorded, None)


def clear_refused(key: str) -> InProgress:
    """Return the error for clearing a key whose work is running."""
    return InProgress(f"the work of key {key} is running, so it has no record to clear yet; call again later")


def tenant_differs(key: str) -> UsageError:
    """Return the error for a key that another tenant has used."""
    return UsageError(f"key {key} belongs to another tenant; put the tenant into the key")
