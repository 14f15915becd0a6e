"""Send signals to runs of workflows, read their published values, and wake workflows that wait for a run."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore.control.moved_log import append_decision, refuse_if_moved
from oncemore.errors import Error, UsageError
from oncemore.log.entry_codec import JOURNAL, SIGNAL
from oncemore.log.record import RecordChange
from oncemore.log.tagged_json import untag_value
from oncemore.retries.options import as_seconds
from oncemore.steps.attempt import tag_value
from oncemore.steps.call_operations import run_decision
from oncemore.steps.context import CONTEXT
from oncemore.steps.ops import NOW, AppendChange, EndCall, LoadHead, LoadJournal
from oncemore.workflows.journal import MAX_RECORDS, inner_reason, load_journal, signal_reason

if TYPE_CHECKING:
    from oncemore.log.record import RunRecord
    from oncemore.retries.options import Seconds
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script
    from oncemore.workflows.journal import Journal

#: The longest wait before a run is read again.
RECHECK_S = 1.0


def check_name(option: str, name: Any) -> str:
    """Return a name of a signal or value; refuse anything but a text of 1 to 200 characters."""
    if not isinstance(name, str) or not 1 <= len(name) <= 200:
        raise UsageError(f"{option} is {name!r:.80}; it takes a text of 1 to 200 characters")
    return name


def send_signal(
    engine: Engine, entity: str, run_id: str, name: str, value: Any = None, signal_id: str | None = None
) -> bool:
    """Record a signal in a run; return False if a signal with the same `signal_id` was recorded before."""
    check_name("name", name)
    record = {"signal": name, "value": tag_value(value), "by": CONTEXT.get().actor}
    if signal_id is not None:
        record["id"] = check_name("signal_id", signal_id)
    return bool(run_decision(engine, _record_signal(entity, run_id, record)))


def _record_signal(entity: str, run_id: str, record: dict[str, Any]) -> Script:
    """Append a signal to an open run; a run that waits for it is due at once, in the same entry."""
    subject = f"key {entity.removeprefix('run/')[:12]}"
    refused = yield from refuse_if_moved(subject)
    while refused is None:
        head = yield LoadHead(entity)
        journal: Journal = yield LoadJournal(entity)
        now = yield NOW
        # First of all: a webhook that is delivered again may come after the end of the run.
        if record.get("id") in journal.signal_ids:
            return EndCall(False, None)
        error = _check_open(subject, head.record, run_id) or _check_waits(subject, journal)
        if error is not None:
            return EndCall(None, error)
        # Another entry came between the two reads.
        if journal.version != head.version:
            continue
        run = after = head.record
        # In the same entry: no worker can see the signal and still take the run for waiting.
        is_awaited = run.state == "PENDING" and run.reason == signal_reason(record["signal"])
        if is_awaited and not run.held_for and run.not_before > now:
            after = run._replace(not_before=now)
        change = RecordChange(SIGNAL, run, after, {"journal": (record,)})
        saved = yield from append_decision(subject, AppendChange(head, change))
        if saved is not None:
            refused = saved if type(saved) is EndCall else EndCall(True, None)
    return refused


def _check_open(subject: str, run: RunRecord | None, run_id: str) -> Exception | None:
    """Return the error for a run that can receive no signal because it has ended."""
    if run is None:
        return UsageError(f"{subject} has no run; submit the workflow before you send it a signal")
    if run.run_id != run_id:
        return UsageError(f"{subject}: this run has ended, and the key has a newer one; signal that one")
    if run.state in ("COMPLETE", "HARD_FAIL"):
        return UsageError(
            f"{run.step}: {subject} has ended as {run.state}; a signal reaches a run only before its end"
        )
    return None


def _check_waits(subject: str, journal: Journal) -> Exception | None:
    """Return the error for a run that does not wait for signals, or has too many of them."""
    if not journal.opening.get("workflow"):
        return UsageError(
            f"{subject} is not the run of a workflow; only a function with @oncemore.workflow waits for "
            "signals"
        )
    if journal.is_full:
        return UsageError(f"{subject} has {MAX_RECORDS} sleeps, waits, signals and values, the most of a run")
    return None


def read_value(engine: Engine, entity: str, name: str, default: Any, timeout: Seconds | None) -> Any:
    """Return a published value; wait for it until the timeout, or as long as the run is open.

    In real time even under a test clock: another process works meanwhile.
    """
    check_name("name", name)
    ends = None if timeout is None else time.monotonic() + as_seconds("timeout", timeout)
    journal: Journal | None = None
    while True:
        # The position first: a change between the two reads must end the wait at once.
        position = engine.store.wait_for_change(0, 0.0)
        journal = load_journal(engine.store, entity, engine.cipher, journal)
        if name in journal.values:
            with engine.artifact_store.use_store():
                return untag_value(journal.values[name])
        left = RECHECK_S if ends is None else min(RECHECK_S, ends - time.monotonic())
        if left <= 0 or _has_ended(engine, entity):
            return default
        engine.store.wait_for_change(position, left)


def _has_ended(engine: Engine, entity: str) -> bool:
    head = engine.store.load_head(entity)
    return head is None or head.by.state in ("COMPLETE", "HARD_FAIL")


def wake_parent(engine: Engine, parent: str, step: str, key: str) -> None:
    """Make the workflow due that waits for a run which has just ended.

    Only an improvement: the workflow also looks by itself, so that an error here is ignored.
    """
    with suppress(Error):
        run_decision(engine, _record_end(f"run/{parent}", step, key))


def _record_end(entity: str, step: str, key: str) -> Script:
    head = yield LoadHead(entity)
    now = yield NOW
    run = head.record
    is_waiting = run is not None and run.state == "PENDING" and run.reason == inner_reason(step, key)
    if is_waiting and not run.held_for and run.not_before > now:
        body = {"journal": ({"ended": key, "step": step},)}
        yield AppendChange(head, RecordChange(JOURNAL, run, run._replace(not_before=now), body))
    return EndCall(None, None)
