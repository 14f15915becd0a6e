"""Why a run did what it did, in sentences that are made from its log alone.

Every wait is explained where it was decided: after the attempt that failed before it. `--attempt 3` so tells
why there was a third one and what it waited for, what became of it, and what was decided then.
"""

from __future__ import annotations

from oncemore._time_spans import seconds
from oncemore._values import Value
from oncemore.control.model import NEEDED
from oncemore.errors import UsageError
from oncemore.policy.closing import is_closing
from oncemore.policy.proof import explain
from oncemore.queries.times import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.queries.run_timeline import Span, Step, Story

#: What a call of the same key does, by what its last run is (the second call).
NEXT_CALL = {
    "COMPLETE": "returns the stored value and runs nothing; such calls leave no entry here",
    "HARD_FAIL": "raises the same failure again, unless the policy lets a new call begin a new run; "
    "`rerun(reason=…)` begins one",
    "RUNNING": "waits for the attempt that is under way, and closes it if its worker is gone",
    "PENDING": "goes on with it once it is due",
    "SOFT_FAIL": "goes on with it once it is due",
}
#: What an end without a decision of the policy means, by its reason.
LOST = {
    "lease_expired": "Nobody brought it to an end: its worker was gone, and whoever came next closed it",
    "interrupted": "It was cut off from outside: by Ctrl-C, a cancellation or the end of the program",
    "released": "It was cut off before the function's first line, so that it does not count",
    "deadline_passed": "The time for the whole run was up",
    "result_unavailable": "Its result cannot be stored, and pure work that gives none has failed",
    "checksum_mismatch": "The artifact that it would return was altered; it is not computed anew over it",
    "max_attempts_exceeded": "No attempt was left",
    "cancelled": "Somebody asked that no further attempt begin",
    "redelivered": "It was handed in anew",
    "rejected": "A person rejected it",
    "imported": "It was done elsewhere, and brought in as done",
    "erased": "What it held was erased",
}


class Told(Value):
    """One attempt explained: its number (0: the whole run), sentences, and the proof they come from."""

    attempt: int
    sentences: tuple[str, ...]
    proof: dict[str, Any] | None = None


class Explained(Value):
    """A run explained."""

    run_id: str
    key: str
    step: str
    state: str
    told: tuple[Told, ...]
    standing: tuple[str, ...]


def explained(story: Story, attempt: int | None = None) -> Explained:
    """Explain a run, or one of its attempts."""
    row = story.row
    told = list(_told(story))
    if attempt is not None:
        numbers = [one.attempt for one in told if one.attempt]
        if attempt not in numbers:
            known = f"it has {_span(numbers)}" if numbers else "it has none yet"
            raise UsageError(f"run {row.run_id} has no attempt {attempt}; {known}.")
        at = next(n for n, one in enumerate(told) if one.attempt == attempt)
        told = told[max(0, at - 1) : at + 1]
    return Explained(row.run_id, row.key, row.step, row.state, tuple(told), tuple(_standing(story)))


def _span(numbers: list[int]) -> str:
    return f"attempt {numbers[0]}" if len(numbers) == 1 else f"attempts {numbers[0]} to {numbers[-1]}"


def _told(story: Story) -> Iterator[Told]:
    attempts = {span.number: span for span in story.spans if span.what == "attempt"}
    before: list[str] = []
    for step in story.steps:
        if "decision" in step.body:
            before.append(_decided(step))
        if "INTENT" not in step.marks:
            continue
        span = attempts[step.state.attempt]
        end = next((one for one in story.steps if one.at == span.ends and one.version > step.version), None)
        sentences = (*before, *_began(story, span, step), *_ended(story, span, end))
        proof = end.body.get("proof") if end is not None else None
        yield Told(span.number, sentences, proof)
        before = []
    if before or not attempts:
        yield Told(0, (*before, *_without_attempt(story)))


def _decided(step: Step) -> str:
    made = step.body["decision"]
    return (
        f"{made.get('actor') or 'Somebody'} decided at {shown(step.at)}: {made['what']}, "
        f"because {made['reason']}."
    )


def _began(story: Story, span: Span, step: Step) -> Iterator[str]:
    """Say when an attempt began, what it had waited for, and under whose lease."""
    waits = [one for one in story.spans if one.number == span.number and one.what in ("wait", "idle")]
    waited = sum(one.ends - one.begins for one in waits if one.what == "wait" and one.ends is not None)
    idle = sum(one.ends - one.begins for one in waits if one.what == "idle" and one.ends is not None)
    text = f"Attempt {span.number} began at {shown(span.begins)}"
    if waited:
        text += f" after a wait of {seconds(waited)}"
    if idle > max(0.1, 0.1 * waited):
        text += f"{', and' if waited else ' after'} {seconds(idle)} in which nobody came for it"
    run = step.state
    yield f"{text}; it is number {run.tried} of {run.allowed} in this run, with fence {span.fence}."
    if "policy" in step.body:
        used, current = step.body["policy"]["used"], step.body["policy"]["current"]
        yield f"The run keeps the policy it began with, {used}; the step has {current} now."


def _ended(story: Story, span: Span, end: Step | None) -> Iterator[str]:
    if span.ends is None or end is None:
        lease = next((one for one in story.spans if one.what == "lease" and one.worker == span.worker), None)
        alive = lease is not None and lease.outcome == "ALIVE"
        who = f"worker {span.worker[:13]}" + (f" ({lease.message})" if lease is not None else "")
        yield f"It has been under way for {seconds(max(0.0, story.now - span.begins))}, with {who}" + (
            "." if alive else ", which is gone: the next call closes it."
        )
        return
    kept = f", with {span.checkpoints} checkpoint{'s' * (span.checkpoints > 1)}" if span.checkpoints else ""
    text = f"It ended as {end.state.state} after {seconds(span.ends - span.begins)}{kept}"
    yield f"{text}: {span.error}: {span.message}." if span.error else f"{text}."
    if "proof" in end.body and not is_closing(end.body["proof"]):
        counted = "" if end.state.tried == span.number else "Counted within this run: "
        yield counted + _of_proof(end.body["proof"])
    elif end.state.held_for:
        yield (
            "Nobody knows whether it took effect, and it must not happen twice: it is held for a person "
            f"({end.state.held_for})."
        )
    elif end.state.reason in LOST:
        yield f"{LOST[end.state.reason]} ({end.state.reason}){_holder(story, span, end)}."
    elif end.state.state == "COMPLETE" and end.state.reason:
        yield f"It counts as done because of {end.state.reason.replace('_', ' ')}."


def _holder(story: Story, span: Span, end: Step) -> str:
    """Say who had a lost attempt, and until when."""
    lease = next((one for one in story.spans if one.what == "lease" and one.worker == span.worker), None)
    if end.state.reason != "lease_expired" or lease is None:
        return ""
    until = f", whose lease lasted until {shown(lease.ends)}" if lease.ends is not None else ""
    return f"; it was worker {span.worker[:13]} ({lease.message}){until}"


def _of_proof(proof: dict[str, Any]) -> str:
    """Return the paragraph of a decision, made from its proof."""
    from oncemore.maintenance.replay import recomputed

    try:
        return explain(recomputed(proof), str(proof["policy"]["digest"]))
    except Exception:  # noqa: BLE001 - a proof of another age still has its sentence
        return str(proof.get("sentence", proof.get("reason", "")))


def _without_attempt(story: Story) -> Iterator[str]:
    last = story.steps[-1].state
    if last.reason == "artifact_exists":
        yield "No attempt was needed: the artifact that it would make was there already, and valid."
    elif last.reason in LOST:
        yield f"No attempt was made. {LOST[last.reason]} ({last.reason})."
    elif not any(span.what == "attempt" for span in story.spans):
        yield f"No attempt has begun yet; it was recorded at {shown(last.created)}."


def _standing(story: Story) -> Iterator[str]:
    """Say how it stands now, and what a call of the same key would do."""
    row = story.row
    if len(story.lives) > 1 and story.lives[-1] != row.run_id:
        yield f"This is an earlier run of its key; the last one is {story.lives[-1]}."
        return
    if row.held_for == NEEDED:
        yield (
            f"It waits for an approval: {row.message}. Until somebody approves it (oncemore approve "
            f"{row.run_id} --reason …), a call raises Blocked."
        )
        return
    if row.held_for:
        yield (
            "It is held: look whether the effect took place, then settle it with step.settle(…), or give the "
            "step a reconcile= function. Until then a call raises OutcomeUnknown."
        )
        return
    if row.stopped:
        yield (
            f"It is stopped by a switch ({row.stopped}): no attempt begins while that is on, none is lost; "
            "`oncemore switch status` says who threw it and why. A call raises Blocked."
        )
        return
    left = row.not_before - story.now
    if row.state in ("PENDING", "SOFT_FAIL") and left > 0:
        why = row.reason or "due later"
        yield f"It is parked until {shown(row.not_before)}, for another {seconds(left)} ({why})."
    yield f"A call of the same key now {NEXT_CALL[row.state]}."
