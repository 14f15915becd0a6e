"""REVIEW: what a person can decide about something in quarantine, and what becomes of it then.

    what is held                       release           reject       rerun           settle
    ─────────────────────────────────  ────────────────  ───────────  ──────────────  ──────────────────────
    a run, outcome unknown             no: settle it     HARD_FAIL    no: settle it   COMPLETE, or goes on
    a run, for any other reason        goes on, if an    HARD_FAIL    goes on, with   no
                                       attempt is left                more attempts
    an artifact that was altered       KEPT, if its      REJECTED     no              no
                                       bytes are right
    a dead letter                      sent again        REJECTED     no              no

Everything here is pure but for the script `ruled`, which reads, writes once by compare-and-set, and ends: of
two who decide at the same time one is told that the other was first. A decision is an entry like all others:
who, why and what stand in it for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.control.model import NEEDED
from oncemore.errors import StaleDecision, UsageError
from oncemore.log.record import Change, Kept, Outgoing, Run, over
from oncemore.messaging.delivery import moved
from oncemore.policy.closing import DOUBTFUL, close_run, closing_proof
from oncemore.steps.flow import escalated
from oncemore.steps.ops import End, Load, Now, Save

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.steps.ops import Script, Seen

    Verdict = Change | Exception

LONGEST_BY, LONGEST_REASON = 200, 2000
MOST_EXTRA = 1000
RELEASED = "KEPT"


class Ruling(NamedTuple):
    """A person's decision.

    what     release, reject or rerun
    version  that of the item when they looked; 0: whatever it is now
    extra    attempts that the run may have beyond its budget
    """

    what: str
    by: str
    reason: str
    version: int = 0
    extra: int = 0

    @property
    def record(self) -> dict[str, Any]:
        """What the log keeps of it."""
        told: dict[str, Any] = {"what": self.what, "reason": self.reason, "actor": self.by}
        return {"decision": {**told, "extra_attempts": self.extra} if self.extra else told}


def ruled(entity: str, kind: type, ruling: Ruling, also: tuple[Any, ...] = ()) -> Script:
    """Write a decision down, if what it is about is still as it was seen; `also` is decided with it."""
    seen = yield Load(entity, kind)
    now = yield Now()
    change = _stale(seen, ruling) or _RULES[kind, ruling.what](seen, ruling, now)
    if isinstance(change, Exception):
        yield End(None, change)
    else:
        saved = yield Save(seen, change, also=also)
        yield End(saved, changed(entity, "it was changed in this very moment") if saved is None else None)


def held(state: Any) -> bool:
    """Whether something waits for a person."""
    if type(state) is Run:
        return bool(state.held_for) and not state.pruned
    if type(state) is Outgoing:
        return state.state == "DEAD"
    return type(state) is Kept and state.state == "QUARANTINED"


def choices(state: Any) -> tuple[str, ...]:
    """Return what can be decided about something that is held."""
    if type(state) is not Run:
        return ("release", "reject")
    if state.held_for == DOUBTFUL:
        return ("settle", "reject")
    if state.held_for == NEEDED:
        return ("approve", "reject")
    return ("release", "reject", "rerun") if state.tried < state.allowed else ("rerun", "reject")


def changed(entity: str, why: str) -> StaleDecision:
    """Return the error of a decision that came too late."""
    what = entity.partition("/")[0]
    return StaleDecision(
        f"nothing was decided about this {what}: {why}; look again (oncemore quarantine list)"
    )


def _stale(seen: Seen, ruling: Ruling) -> Exception | None:
    if seen.run is None:
        return UsageError(f"there is no {seen.entity} in this store")
    if not held(seen.run):
        return changed(seen.entity, f"it is not in quarantine any more{_who(seen)}")
    if ruling.version and ruling.version != seen.version:
        return changed(
            seen.entity, f"it has version {seen.version} now, and was looked at in version {ruling.version}"
        )
    return None


def _who(seen: Seen) -> str:
    """Return who was first, where the last entry says so."""
    made = (seen.body or {}).get("decision")
    return f" ({made['what']} by {made['actor']}: {made['reason']})" if made else ""


# Runs -----------------------------------------------------------------------------------------------


def _release_run(seen: Seen, ruling: Ruling, now: float) -> Verdict:
    run = seen.run
    if run.held_for in _ELSEWHERE:
        return _ELSEWHERE[run.held_for](run)
    if run.tried >= run.allowed:
        return UsageError(
            f"{run.step} has used all of its {run.allowed} attempts; give it more: rerun with extra_attempts"
        )
    return _goes_on(seen, ruling, now, run.allowed)


def _rerun_run(seen: Seen, ruling: Ruling, now: float) -> Verdict:
    run = seen.run
    if run.held_for in _ELSEWHERE:
        return _ELSEWHERE[run.held_for](run)
    # What is granted comes on top of what was used: a budget that had some left is not made smaller.
    return _goes_on(seen, ruling, now, max(run.allowed, run.tried) + ruling.extra)


def _goes_on(seen: Seen, ruling: Ruling, now: float, allowed: int) -> Change:
    """Let a run go on where it was: as soon as somebody calls it, or a worker takes it."""
    run = seen.run
    after = over(run, run.state, "decided", not_before=now, deadline=_deadline(run, now), allowed=allowed)
    body = {**ruling.record, "proof": closing_proof(close_run(run, "decided", now))}
    return Change((run.state, "DECISION"), run, after, body)


def _deadline(run: Run, now: float) -> float:
    """Return a run's deadline; one that has passed while it waited for a person holds no more."""
    return 0.0 if run.deadline and run.deadline <= now else run.deadline


def _reject_run(seen: Seen, ruling: Ruling, now: float) -> Verdict:
    run, told = seen.run, (seen.body or {}).get("error", {})
    after = over(run, "HARD_FAIL", "rejected", failed=seen.version + 1)
    proof = closing_proof(close_run(run, "rejected", now))
    body = escalated({**ruling.record, "error": told, "proof": proof}, run, now)
    return Change(("HARD_FAIL", "DECISION", "ESCALATION"), run, after, body)


def _settle_first(run: Run) -> UsageError:
    return UsageError(
        f"attempt {run.attempt} of {run.step} may have taken effect, and is not repeated blindly; look "
        "whether it did and settle it (applied or not_applied), or reject it"
    )


def _approve_it(run: Run) -> UsageError:
    return UsageError(
        f"{run.step} waits for an approval; give it one (oncemore approve {run.run_id}), or reject it"
    )


#: What does not go on by being released: what is to be decided first.
_ELSEWHERE = {DOUBTFUL: _settle_first, NEEDED: _approve_it}
goes_on = _goes_on  # for `engine.switches`: what is approved goes on in the same words


# Artifacts and dead letters -------------------------------------------------------------------------


def _release_artifact(seen: Seen, ruling: Ruling, now: float) -> Change:
    return Change(("DECISION",), seen.run, seen.run._replace(state=RELEASED), ruling.record)


def _reject_artifact(seen: Seen, ruling: Ruling, now: float) -> Change:
    return Change(("DECISION",), seen.run, seen.run._replace(state="REJECTED"), ruling.record)


def _release_event(seen: Seen, ruling: Ruling, now: float) -> Change:
    after = moved(seen.run, "PENDING", reason="redelivered", tried=0, not_before=0.0)
    return Change(("PENDING", "DECISION"), seen.run, after, ruling.record)


def _reject_event(seen: Seen, ruling: Ruling, now: float) -> Change:
    after = moved(seen.run, "REJECTED", reason="rejected")
    return Change(("DECISION",), seen.run, after, ruling.record)


def _no_rerun(seen: Seen, ruling: Ruling, now: float) -> UsageError:
    what = "a dead letter" if type(seen.run) is Outgoing else "an artifact"
    return UsageError(f"{what} is not run again; release it, or reject it")


_RULES: dict[tuple[type, str], Callable[[Seen, Ruling, float], Verdict]] = {
    (Run, "release"): _release_run,
    (Run, "reject"): _reject_run,
    (Run, "rerun"): _rerun_run,
    (Kept, "release"): _release_artifact,
    (Kept, "reject"): _reject_artifact,
    (Kept, "rerun"): _no_rerun,
    (Outgoing, "release"): _release_event,
    (Outgoing, "reject"): _reject_event,
    (Outgoing, "rerun"): _no_rerun,
}


# What people say ------------------------------------------------------------------------------------


def ruling(what: str, by: object, reason: object, version: int = 0, extra: object = 0) -> Ruling:
    """Return a decision; refuse one without a name, without a reason, or with an odd number of attempts."""
    number = isinstance(extra, int) and not isinstance(extra, bool)
    if what == "rerun" and not (number and 1 <= extra <= MOST_EXTRA):  # type: ignore[operator]
        raise UsageError(f"extra_attempts is {extra!r}; it takes 1 to {MOST_EXTRA}")
    who = spoken("by", by, LONGEST_BY, "say who decides")
    why = spoken("reason", reason, LONGEST_REASON, "say why")
    return Ruling(what, who, why, version, extra)  # type: ignore[arg-type]


def spoken(name: str, text: object, longest: int, ask: str) -> str:
    """Return what somebody said, without space around it; refuse what says nothing."""
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{name} is missing; {ask}, it is recorded")
    if len(text) > longest:
        raise UsageError(f"{name} has {len(text)} characters; it takes up to {longest}")
    return text.strip()
