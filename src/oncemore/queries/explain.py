"""Explain in sentences why a run did what it did, from its log alone.

A wait is explained by the decision after the failed attempt before it. `--attempt 3` therefore shows the
second attempt with its decision, then the third one with its outcome.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.control.model import APPROVAL_NEEDED
from oncemore.errors import UsageError
from oncemore.policy.closing import (
    CRASHES_EXCEEDED,
    LEASE_EXPIRED,
    POISON,
    describe_spent_budget,
    is_closing,
)
from oncemore.policy.explain import explain_decision, format_seconds
from oncemore.queries.times import format_time
from oncemore.workflows.journal import NEVER, describe_records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.queries.run_timeline import RunTimeline, TimelineEntry, TimeSpan

#: What a call of the same key does, by the state of the last run.
NEXT_CALL_BY_STATE = {
    "COMPLETE": "returns the stored value and runs nothing; such calls are not recorded here",
    "HARD_FAIL": "raises the stored failure again, unless the policy permits a new run for a new call; "
    "`rerun(reason=…)` starts one",
    "RUNNING": "waits for the running attempt, and closes it if its worker is gone",
    "PENDING": "continues the run once it is due",
    "SOFT_FAIL": "continues the run once it is due",
}
#: The meaning of an end that no policy has decided, by its reason.
END_REASONS = {
    "lease_expired": "Its worker was lost before it ended, and the next worker closed it",
    "interrupted": "It was interrupted from outside: by Ctrl-C, a cancellation or the end of the program",
    "released": "It was interrupted before the function's first line, so that it does not count",
    "deadline_passed": "The time limit of the whole run had passed",
    "result_unavailable": "Its result cannot be stored, and a pure step without a stored result has failed",
    "checksum_mismatch": "The artifact that it would return was altered; it is not computed again over it",
    "max_attempts_exceeded": "No attempt was left",
    "cancelled": "It was cancelled, so that no further attempt starts",
    "redelivered": "It was submitted again",
    "rejected": "A person rejected it",
    "imported": "It was done elsewhere and imported as done",
    "erased": "Its data was erased",
}


class AttemptExplanation(Value):
    """One attempt (0: the whole run) in sentences, and the proof that they are made from."""

    attempt: int
    sentences: tuple[str, ...]
    proof: dict[str, Any] | None = None


class RunExplanation(Value):
    """A run in sentences: its attempts, and its present state."""

    run_id: str
    key: str
    step: str
    state: str
    told: tuple[AttemptExplanation, ...]
    standing: tuple[str, ...]


def explain_run(timeline: RunTimeline, attempt: int | None = None) -> RunExplanation:
    """Explain a run, or one of its attempts and the one before it."""
    row = timeline.row
    explanations = list(_explain_attempts(timeline))
    if attempt is not None:
        numbers = [explanation.attempt for explanation in explanations if explanation.attempt]
        if attempt not in numbers:
            known = f"it has {_format_attempt_range(numbers)}" if numbers else "it has none yet"
            raise UsageError(f"run {row.run_id} has no attempt {attempt}; {known}.")
        position = next(n for n, explanation in enumerate(explanations) if explanation.attempt == attempt)
        # The wait before an attempt is explained at the end of the attempt before it.
        explanations = explanations[max(0, position - 1) : position + 1]
    return RunExplanation(
        run_id=row.run_id,
        key=row.key,
        step=row.step,
        state=row.state,
        told=tuple(explanations),
        standing=tuple(_describe_state(timeline)),
    )


def _format_attempt_range(numbers: list[int]) -> str:
    return f"attempt {numbers[0]}" if len(numbers) == 1 else f"attempts {numbers[0]} to {numbers[-1]}"


def _explain_attempts(timeline: RunTimeline) -> Iterator[AttemptExplanation]:
    attempts = {span.number: span for span in timeline.spans if span.what == "attempt"}
    decisions: list[str] = []  # of operators, since the last attempt
    for entry in timeline.steps:
        if "decision" in entry.body:
            decisions.append(_describe_decision(entry))
        if "SIGNAL" in entry.marks:
            lines = describe_records(entry.body.get("journal", ()))
            decisions += [f"It {line} at {format_time(entry.at)}." for line in lines]
        if "INTENT" not in entry.marks:
            continue
        span = attempts[entry.state.attempt]
        # Two entries may have the same time, so the end must also come after the claim.
        end = next(
            (later for later in timeline.steps if later.at == span.ends and later.version > entry.version),
            None,
        )
        sentences = (
            *decisions,
            *_describe_start(timeline, span, entry),
            *_describe_end(timeline, span, end),
        )
        proof = end.body.get("proof") if end is not None else None
        yield AttemptExplanation(span.number, sentences, proof)
        decisions = []
    # Decisions after the last attempt belong to no attempt.
    if decisions or not attempts:
        yield AttemptExplanation(0, (*decisions, *_describe_no_attempt(timeline)))


def _describe_decision(entry: TimelineEntry) -> str:
    decision = entry.body["decision"]
    return (
        f"{decision.get('actor') or 'An operator'} decided at {format_time(entry.at)}: {decision['action']}, "
        f"because {decision['reason']}."
    )


def _describe_start(timeline: RunTimeline, span: TimeSpan, entry: TimelineEntry) -> Iterator[str]:
    """Yield the start of an attempt, the wait before it, and its number and fence."""
    waits = [wait for wait in timeline.spans if wait.number == span.number and wait.what in ("wait", "idle")]
    waited = sum(wait.ends - wait.begins for wait in waits if wait.what == "wait" and wait.ends is not None)
    idle = sum(wait.ends - wait.begins for wait in waits if wait.what == "idle" and wait.ends is not None)
    text = f"Attempt {span.number} began at {format_time(span.begins)}"
    if waited:
        text += f" after a wait of {format_seconds(waited)}"
    # A short delay behind a long wait is not worth a sentence.
    if idle > max(0.1, 0.1 * waited):
        text += f"{', and' if waited else ' after'} {format_seconds(idle)} in which no worker started it"
    run = entry.state
    crashes = f" after {run.crash_count} of {run.max_crashes} crashes" if run.crash_count else ""
    yield (
        f"{text}; it is number {run.attempt_count} of {run.max_attempts} in this run{crashes}, with fence "
        f"{span.fence}."
    )
    # A run is recorded with the policy of its first attempt, and the step may have changed since.
    if "policy" in entry.body:
        used, current = entry.body["policy"]["used"], entry.body["policy"]["current"]
        yield f"The run keeps the policy it began with, {used}; the step has {current} now."


def _describe_end(timeline: RunTimeline, span: TimeSpan, end: TimelineEntry | None) -> Iterator[str]:
    """Yield the outcome of an attempt, and the decision or reason behind it."""
    if span.ends is None or end is None:
        lease = _find_lease(timeline, span)
        is_alive = lease is not None and lease.outcome == "ALIVE"
        worker = f"worker {span.worker[:13]}" + (f" ({lease.message})" if lease is not None else "")
        duration = format_seconds(max(0.0, timeline.now - span.begins))
        yield f"It has been running for {duration}, with {worker}" + (
            "." if is_alive else ", which is gone: the next call closes it."
        )
        return
    count = span.checkpoints
    checkpoints = f", with {count} checkpoint{'s' * (count > 1)}" if count else ""
    text = f"It ended as {end.state.state} after {format_seconds(span.ends - span.begins)}{checkpoints}"
    yield f"{text}: {span.error}: {span.message}." if span.error else f"{text}."
    if "proof" in end.body and not is_closing(end.body["proof"]):
        # Attempts are numbered per key, and policies count them per run.
        prefix = "" if end.state.attempt_count == span.number else "Counted within this run: "
        yield prefix + _explain_proof(end.body["proof"])
    elif end.state.held_for == POISON:
        lost = _describe_lost_worker(timeline, span, end)
        yield (
            f"Its worker was lost{lost}, and {describe_spent_budget(end.state)}: the work may be what ends "
            "its workers, so it is held for a person (poison)."
        )
    elif end.state.held_for:
        yield (
            "It is unknown whether it took effect, and it must not happen twice: it is held for a person "
            f"({end.state.held_for})."
        )
    elif "JOURNAL" in end.marks:
        # The attempt of a workflow that waits: nothing failed.
        yield from (_to_sentence(text) for text in describe_records(end.body.get("journal", ())))
    elif end.state.reason in END_REASONS:
        lost = _describe_lost_worker(timeline, span, end)
        yield f"{END_REASONS[end.state.reason]} ({end.state.reason}){lost}."
    elif end.state.state == "COMPLETE" and end.state.reason:
        yield f"It counts as done because of {end.state.reason.replace('_', ' ')}."


def _to_sentence(text: str) -> str:
    return f"It {text}."


def _find_lease(timeline: RunTimeline, span: TimeSpan) -> TimeSpan | None:
    leases = (lease for lease in timeline.spans if lease.what == "lease" and lease.worker == span.worker)
    return next(leases, None)


def _describe_lost_worker(timeline: RunTimeline, span: TimeSpan, end: TimelineEntry) -> str:
    """Return the worker of a lost attempt and the end of its lease; an empty text for other ends."""
    lease = _find_lease(timeline, span)
    if end.state.reason not in (LEASE_EXPIRED, CRASHES_EXCEEDED) or lease is None:
        return ""
    until = f", whose lease lasted until {format_time(lease.ends)}" if lease.ends is not None else ""
    return f"; it was worker {span.worker[:13]} ({lease.message}){until}"


def _explain_proof(proof: dict[str, Any]) -> str:
    """Return the explanation of a decision, computed from its proof."""
    from oncemore.maintenance.replay import recompute_decision

    try:
        return explain_decision(recompute_decision(proof), str(proof["policy"]["digest"]))
    except Exception:  # noqa: BLE001 - the proof of another version still has its stored sentence
        return str(proof.get("sentence", proof.get("reason", "")))


def _describe_no_attempt(timeline: RunTimeline) -> Iterator[str]:
    last = timeline.steps[-1].state
    if last.reason == "artifact_exists":
        yield "No attempt was needed: the artifact that it would make existed already, and was valid."
    elif last.reason in END_REASONS:
        yield f"No attempt was made. {END_REASONS[last.reason]} ({last.reason})."
    elif not any(span.what == "attempt" for span in timeline.spans):
        yield f"No attempt has begun yet; it was recorded at {format_time(last.created_at)}."


def _describe_state(timeline: RunTimeline) -> Iterator[str]:
    """Yield the present state of a run, and the effect of a call of the same key."""
    row = timeline.row
    # A call continues or answers from the last run of a key, never from an earlier one.
    if len(timeline.lives) > 1 and timeline.lives[-1] != row.run_id:
        yield f"This is an earlier run of its key; the last one is {timeline.lives[-1]}."
        return
    if row.held_for == APPROVAL_NEEDED:
        yield (
            f"It waits for an approval: {row.message}. Until an operator approves it "
            f"(oncemore control approve {row.run_id} --reason …), a call raises NotPermitted."
        )
        return
    if row.held_for:
        yield (
            "It is held: check whether the effect took place, then settle it with step.settle(…), or give "
            "the step a reconcile= function. Until then a call raises OutcomeUnknown."
        )
        return
    if row.stopped_by:
        yield (
            f"It is stopped by a switch ({row.stopped_by}): no attempt begins while the switch is on, and "
            "none is lost; `oncemore control switch status` shows who turned it on and why. A call raises "
            "NotPermitted."
        )
        return
    remaining = row.not_before - timeline.now
    if row.state == "PENDING" and row.not_before >= NEVER:
        yield f"It is {row.reason}: oncemore workflow signal {row.run_id} NAME [VALUE]."
    elif row.state in ("PENDING", "SOFT_FAIL") and remaining > 0:
        reason = row.reason or "due later"
        until = format_time(row.not_before)
        yield f"It is deferred until {until}, for another {format_seconds(remaining)} ({reason})."
    yield f"A call of the same key now {NEXT_CALL_BY_STATE[row.state]}."
