"""FLOW: the way of a durable call, one line per station, as a script that any driver can run.

The script is a generator: it yields what it wants done (`steps.ops`) and is sent what happened. Nothing
is done in between, so that a crash can only fall on a `yield`, before or after what it asks for.

What a crash means, by the line of `run_step` it falls on:

    up to the `Save` of the claim   nothing has begun; if the claim stands, the attempt is counted
    from `Work` to the `Save` of    the effect may have happened: whoever comes next finds RUNNING and its
    its outcome                     worker gone, and closes the attempt by the effect's class (`_close`)
    after that `Save`               all has happened and is known

No write is made from anything but what was read (`Seen`), and every write is a compare-and-set on it: who
comes second writes nothing, reads again and decides again.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from oncemore._values import make
from oncemore.artifacts.artifact import plain_of
from oncemore.classifiers.verdict import MISMATCH, verdict
from oncemore.control import pipeline_halt
from oncemore.control.model import MOVED as ELSEWHERE
from oncemore.control.model import NEEDED, Wanted, objection
from oncemore.limits import breaker_step, budget_step
from oncemore.limits.breaker import CIRCUIT_OPEN
from oncemore.log.record import Change, Run, begun
from oncemore.log.record import over as _over
from oncemore.log.store import AlsoFailed
from oncemore.policy.canonical_json import seed_of
from oncemore.policy.closing import DOUBTFUL, POISON, close_run, closing_proof
from oncemore.policy.decide import Situation, decide
from oncemore.policy.policy import ESCALATION, policy_id
from oncemore.policy.proof import proof_under
from oncemore.retries.loop import EMPTY
from oncemore.steps import refusals
from oncemore.steps.ops import (
    Answer,
    Ask,
    Begin,
    Check,
    Done,
    Earn,
    End,
    Fetch,
    Finish,
    Holder,
    Load,
    LoadPolicy,
    Now,
    Offer,
    Permit,
    Read,
    Save,
    Sleep,
    Slot,
    Spill,
    Tell,
    Void,
    Watch,
    Work,
)
from oncemore.steps.recorded_policies import needs_own_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.errors import ResultUnavailable
    from oncemore.policy.closing import ClosingDecision
    from oncemore.policy.decide import Decision
    from oncemore.steps.ops import Call, Given, Permission, Plan, Script, Seen, Terms

UNKNOWN, NOW = Answer("unknown"), Now()
#: What a run is held for: an outcome that nobody knows, bytes that are not what they were, and work whose
#: workers died until no attempt was left. Any other word is the reason of a decision.
MISMATCHED = "checksum_mismatch"
NO_REMARKS: Mapping[str, Any] = MappingProxyType({})
#: Why a run is COMPLETE that computed nothing: what it computes is there already.
EXISTS = "artifact_exists"
#: Says that a call has waited for a run, its own or somebody else's, and looks again.
WAITED = object()
#: Says that the run was not as it had been seen: nothing was written.
MOVED = object()


def run_step(plan: Plan, call: Call, seen: Seen | None = None) -> Script:
    """Bring a call to its end: at most one COMMIT per key, bounded attempts, nothing silent."""
    guessed, current = seen is not None, plan
    while True:
        if seen is None:
            seen = yield Load(call.entity)
        plan = current
        if seen.run is not None and needs_own_policy(plan, seen.run):
            plan = yield from _pinned(plan, seen.run)
        now = yield NOW
        ready: Any = _anew(plan, call, seen, now) if seen.run is None else None
        if ready is None:
            ready = yield from _admit(plan, call, seen, now)  # the second call: End, look again, or go on
        seen = None
        if ready is WAITED:
            current = _joined(current)
        if ready is None or ready is WAITED:
            continue
        if type(ready) is End:
            yield ready
            return
        approved = _approves(plan, ready)
        permit = yield make(
            Permit, (_names(plan, ready.run), call.tenant, approved, plan.gated, plan.pipeline)
        )
        if permit.stop or approved:
            refused = yield from _refused(plan, call, ready, permit, now)
            if refused is MOVED or (refused is not None and guessed):
                guessed = False  # what was taken for new may be done: that can be had, whatever people say
                continue
            if refused is not None:
                yield refused
                return
        continued = None if ready.run is None else ready
        terms = yield make(Begin, (plan.policy_name, plan.policy, plan.policy_source, continued))
        if plan.artifact and (yield from _there_already(plan, call, terms, ready, now)):
            current = _joined(current)
            continue
        way = None
        if plan.barrier is not None and (way := (yield from _gate(plan, call, terms, ready, now))) is None:
            current = _joined(current)
            continue
        if plan.beat is not None and (now := (yield from _paced(plan, call, terms, ready, now))) is None:
            current = _joined(current)
            continue
        claim = _claim(plan, call, terms, ready.run, now, permit, current)
        claimed = yield (
            Save(ready, claim, plan.effect != "pure", guards=permit.guards, late=not approved)
            if way is None
            else way.claim(ready, claim, now, permit.guards, late=not approved)
        )
        if type(claimed) is Void:
            yield from _given_back(plan, claimed.seen, now)
            continue
        if claimed is None:
            continue
        done = yield make(Work, (claimed, *_limit(plan, claimed.run, now)))
        now = yield NOW
        ended = yield from _outcome(plan, done, now)
        if ended is not None:
            yield ended
            return
        current = _joined(current)


def _pinned(plan: Plan, run: Run) -> Script:
    """Return the plan by which a run goes on whose step has another policy now: with the run's own (POL-12).

    Only the policy is the run's: the switches, breakers, rates and budgets are those of now.
    """
    policy = yield LoadPolicy(run.policy)
    return plan if policy is None else plan.replaced(policy=policy, policy_name=run.policy)


def _joined(plan: Plan) -> Plan:
    """Return the plan of a call that has taken part in a run: if that run fails, so has the call.

    Or else all who wait for work that fails would begin a new run, one after the other.
    """
    return plan if plan.after_failure == "raise" else plan.replaced(after_failure="raise")


# The second call: what the key's last run is decides what a call does -------------------------------


def _admit(plan: Plan, call: Call, seen: Seen, now: float) -> Script:
    """Return an `End`, an entity that may be claimed, or that it must be looked at again: None, or WAITED."""
    run = seen.run
    refused = _others(plan, call, run)
    if refused is not None:
        return End(None, refused)
    if run.pruned and not _fails_anew(plan, run):
        return End(None, refusals.expired(plan, call, run))
    return (yield from _MEETS[run.state](plan, call, seen, now))


def _fails_anew(plan: Plan, run: Run) -> bool:
    """Whether a call of failed work begins a new run by its policy: it needs nothing of the last one."""
    return run.state == "HARD_FAIL" and plan.after_failure == "new_run" and plan.effect != "once"


def finished(plan: Plan, call: Call, seen: Seen) -> End | None:
    """Return the end of a call whose work is done, where all it needs was read with the head.

    Most calls of finished work end here, before a script has begun.
    """
    run = seen.run
    if (
        run is None
        or run.state != "COMPLETE"
        or run.committed != seen.version
        or run.cfg_hash != call.cfg_hash
        or plan.artifact  # it has to be verified first
    ):
        return None
    return None if call.input_hash and run.input_hash != call.input_hash else _at_hand(plan, seen)


def _others(plan: Plan, call: Call, run: Run | None) -> Exception | None:
    """Refuse a call whose key belongs to other arguments."""
    if run is None or not call.input_hash or run.input_hash in (call.input_hash, ""):
        return None  # an imported key may know nothing of its arguments
    return refusals.other_arguments(plan, call)


def _anew(plan: Plan, call: Call, seen: Seen, now: float) -> Seen | End:
    """Let a new run begin, if there is any time left for one."""
    late = call.deadline and now >= call.deadline
    return End(None, refusals.too_late(plan, call)) if late else seen


def _meets_complete(plan: Plan, call: Call, seen: Seen, now: float) -> Script:
    """It is done: its value, unless what it depends on has changed since."""
    run = seen.run
    if run.cfg_hash != call.cfg_hash:
        do = _on_change(plan)
        if do == "new":
            return _anew(plan, call, seen, now)
        if do == "fail":
            return End(None, refusals.config_changed(plan, call))
        yield Tell("config_drift", seen)
    if plan.artifact:
        found = yield Check(call.entity, run.cfg_hash, plan.artifact)
        if found.state != "valid" and plan.effect == "pure" and run.cfg_hash == call.cfg_hash:
            return _anew(plan, call, seen, now)  # a new run: to compute what is gone, or to be held
        if found.state == "altered":
            return End(None, refusals.altered(plan, seen, found.error))
    return (yield from _stored_value(plan, seen))


def _on_change(plan: Plan) -> str:
    """Return what a run of another version or config means."""
    return plan.on_version_change or ("new" if plan.effect == "pure" else "reuse")


def _meets_hard_fail(plan: Plan, call: Call, seen: Seen, now: float) -> Script:
    """It failed for good: the same failure again, unless a new call is a new run.

    By the policy, or because what it depends on has changed since, for work that then runs anew; but not
    where somebody said that it shall not run.
    """
    run = seen.run
    changed = run.cfg_hash != call.cfg_hash and _on_change(plan) == "new"
    if (changed or plan.after_failure == "new_run") and plan.effect != "once" and not run.cancelled:
        return _anew(plan, call, seen, now)
    body = yield from _body(seen, run.failed)
    return End(None, refusals.failed(plan, seen, None, body.get("error")))


def _meets_running(plan: Plan, call: Call, seen: Seen, now: float) -> Script:
    """Somebody has it: wait for them, or close the attempt of one who is gone."""
    until = yield Holder(seen.run.worker, seen.entity, seen.run.fence)
    if until <= now:
        yield from _close(plan, seen, "lease_expired", now)
        return None
    if plan.if_running == "raise" or (call.give_up and now >= call.give_up):
        return End(None, refusals.in_progress(plan, seen, until))
    yield Watch(seen.entity, seen.version, (min(until, call.give_up) if call.give_up else until) - now)
    return WAITED


def _meets_waiting(plan: Plan, call: Call, seen: Seen, now: float) -> Script:
    """It waits: for a person, for its time, or for nothing but somebody to go on."""
    run = seen.run
    if run.held_for and run.held_for != NEEDED:  # whether somebody has approved it is asked before the claim
        return (yield from _held(plan, seen, now))
    if run.cancelled:  # while an attempt was under way, which has not come good
        yield Save(seen, _closed(plan, seen, close_run(run, "cancelled", now), refusals.CANCELLED))
        return None
    if _is_too_late(run, now):
        error = refusals.out_of_time(run, now)
        yield Save(seen, _closed(plan, seen, close_run(run, "deadline_passed", now), error))
        return None
    wait, purse = run.not_before - now, plan.purse if run.owes else None
    if wait <= 0:
        return seen if purse is None else (yield from _pays(plan, seen, now))
    parks = purse is not None and purse.budget.at_empty == "park"
    if parks or wait > plan.inline_wait_s or (call.give_up and run.not_before > call.give_up):
        return End(None, refusals.parked(plan, call, run, wait))
    yield Sleep(wait)
    return WAITED


def _pays(plan: Plan, seen: Seen, now: float) -> Script:
    """Pay for the attempt that comes next; without a token the run waits on, but not for ever."""
    run = seen.run
    last = yield from _body(seen, seen.version)
    paid = yield from budget_step.owed(plan, seen, now)
    body = budget_step.told(plan, last)
    if paid.over:
        change = _closed(plan, seen, close_run(run, EMPTY, now), body["last_error"], owes=0.0)
    else:
        after = run._replace(owes=paid.owes, not_before=paid.until)
        change = Change(("QUOTA",), run, after, body)
    if (yield Save(seen, change, also=paid.also)) is None:
        yield from budget_step.back(paid)


_MEETS = {
    "COMPLETE": _meets_complete,
    "HARD_FAIL": _meets_hard_fail,
    "RUNNING": _meets_running,
    "PENDING": _meets_waiting,
    "SOFT_FAIL": _meets_waiting,
}


def _held(plan: Plan, seen: Seen, now: float) -> Script:
    """Ask again about an outcome that nobody knew; without an answer it stays held, as all else does."""
    answer = (yield Ask(seen)) if plan.asks and seen.run.held_for == DOUBTFUL else UNKNOWN
    if answer.found == "unknown":
        return End(None, refusals.held(plan, seen))
    yield Save(seen, _settled(plan, seen, answer, "reconciled", now))
    return None


# Before the claim: the artifact may be there already ------------------------------------------------


def _there_already(plan: Plan, call: Call, terms: Terms, seen: Seen, now: float) -> Script:
    """Whether the step's artifact has answered: valid, it completes the run; altered, it ends it.

    Altered bytes are never computed anew over: the run is held as it is, and a person looks (WAL-10).
    """
    found = yield Check(call.entity, call.cfg_hash, plan.artifact)
    if found.state == "missing":
        return False
    marks: tuple[Any, ...] = ()
    body: dict[str, Any] = {}
    at = seen.run
    if at is None or at.state in ("COMPLETE", "HARD_FAIL"):
        marks, body = ("PENDING",), _opening(terms)
        at = new_run(plan, call, terms, at, now)
    if found.state == "valid":
        after = _over(at, "COMPLETE", EXISTS, committed=seen.version + 1)
        body = {**body, "result": plan.encode(found.artifact), "artifacts": [plain_of(found.artifact)]}
        yield Save(seen, Change((*marks, "COMPLETE"), seen.run, after, body))
        return True
    after = _over(at, at.state, MISMATCHED)._replace(held_for=MISMATCHED)
    error = plan.describe(found.error, plan.classify(found.error, now))
    proof = closing_proof(close_run(at, MISMATCHED, now))
    said = {"reason": MISMATCHED, "artifact": found.ref}
    body = {**body, "error": error, "quarantine": said, "proof": proof}
    marks = (*(marks or (at.state,)), "ESCALATION")
    yield Save(seen, Change(marks, seen.run, after, _escalated(body, at, now, plan, permanent=True)))
    return True


# Before the claim: what people have said ------------------------------------------------------------


def _names(plan: Plan, run: Run | None) -> tuple[str, ...]:
    """Return the names that the step of a run is known by: its own, and the one that the run began under."""
    return (plan.name,) if run is None or run.step == plan.name else (plan.name, run.step)


def _approves(plan: Plan, seen: Seen) -> str:
    """Return whose approval an attempt needs; a run that was held for one needs it whatever the step says."""
    return seen.entity if plan.approval or (seen.run is not None and seen.run.held_for == NEEDED) else ""


def _refused(plan: Plan, call: Call, seen: Seen, permit: Permission, now: float) -> Script:
    """Return the end of a call whose attempt may not begin, None if it may, or MOVED: look again.

    A switch leaves the run as it is: it is due, and goes on when the switch is released. What nobody has
    approved is held for a person, where it can be found, and where whoever is to be told is told of it.
    """
    if permit.stop:
        return End(None, refusals.stopped(plan, call, permit))
    at = run = seen.run
    opening: dict[str, Any] = {}
    if run is None or run.state in ("COMPLETE", "HARD_FAIL"):
        terms = yield make(Offer, (plan.policy_name, plan.policy, plan.policy_source))
        at, opening = new_run(plan, call, terms, run, now), _opening(terms)
    asked = wanted(plan, call, at)
    why = objection(permit.approval, asked, now)
    if not why:
        return None
    if at.held_for != NEEDED or (seen.body or {}).get("wanted") != asked._asdict():
        told = {**refusals.UNAPPROVED, "message": why}
        proof = closing_proof(close_run(at, NEEDED, now))
        body: dict[str, Any] = {"error": told, "wanted": asked._asdict(), "proof": proof}
        after = _over(at, at.state, NEEDED)._replace(held_for=NEEDED)
        change = Change((at.state, "ESCALATION"), run, after, {**opening, **body})
        saved = yield Save(seen, change, guards=permit.guards)
        if saved is None:
            return MOVED
        at = after
    return End(None, refusals.unapproved(plan, call, at, why))


def wanted(plan: Plan, call: Call, run: Run) -> Wanted:
    """Return what an approval of a run's next attempt must have been given for.

    The version and config are those of the code that would run, which may not be the code that began the run.
    """
    code = call.code_hash or call.cfg_hash
    return Wanted(
        call.entity, run.step, plan.effect, run.input_hash, code, plan.policy.digest, run.attempt + 1
    )


# Before the claim: its provider may be left alone -------------------------------------------------------


def _gate(plan: Plan, call: Call, terms: Terms, seen: Seen, now: float) -> Script:
    """Return what lets the attempt through; None if nothing does, and the run waits until something may."""
    answer = yield from breaker_step.ask(plan, call, now)
    if type(answer) is breaker_step.Way:
        return answer
    told = breaker_step.told(plan, answer)
    yield _put_off(plan, call, terms, seen, now, "BREAKER", CIRCUIT_OPEN, answer.until, told)
    return None


def _put_off(
    plan: Plan, call: Call, terms: Terms, seen: Seen, now: float, mark: Any, reason: str, until: float,
    body: dict[str, Any],
) -> Save:  # fmt: skip
    """Have a run wait without an attempt, which is not counted then; begin it where there is none yet."""
    marks: tuple[Any, ...] = (mark,)
    at = seen.run
    if at is None or at.state in ("COMPLETE", "HARD_FAIL"):
        marks, body = ("PENDING", mark), {**_opening(terms), **body}
        at = new_run(plan, call, terms, seen.run, now)
    until = min(until, at.deadline) if at.deadline else until
    return Save(seen, Change(marks, seen.run, at._replace(not_before=until, reason=reason), body))


def _paced(plan: Plan, call: Call, terms: Terms, seen: Seen, now: float) -> Script:
    """Wait for the attempt's moment, and return the time then; None if the run waits for it instead.

    One that was put off until its moment has it, if it comes in time: it takes no other.
    """
    assert plan.beat is not None
    run = seen.run
    late_s = max(LATE_S, plan.beat.pulse.step_s)
    has_moment = run is not None and run.reason == RATE_LIMITED and now - run.not_before <= late_s
    while (wait := (yield Slot(plan.beat, has_moment))) <= max(plan.inline_wait_s, SHORT_S):
        if wait <= 0 and has_moment:
            return now
        if wait > 0:
            if call.give_up and now + wait > call.give_up:
                break
            yield Sleep(wait)
            now = yield NOW
        has_moment = True  # what is left is to go when the attempts before it are far enough away
    told = {"rate": f"{plan.beat.pulse.per} in {plan.beat.pulse.period_s:g} s", "of": plan.beat.name}
    yield _put_off(plan, call, terms, seen, now, "QUOTA", RATE_LIMITED, now + wait, told)
    return None


#: Why a run waits for its moment, and how long after that it still has it.
RATE_LIMITED, LATE_S = "rate_limited", 1.0
#: A wait that a worker sits out, too: to park the run would take about as long.
SHORT_S = 0.05


# The claim: counted before it runs, under a new fence -----------------------------------------------


def _claim(
    plan: Plan, call: Call, terms: Terms, run: Run | None, now: float, permit: Permission, current: Plan
) -> Change:
    """Return RUNNING and INTENT as one entry; with PENDING before them where a new run begins.

    current  the plan as the step has it now; another than `plan` where the run keeps an earlier policy
    """
    marks: tuple[Any, ...] = ("RUNNING", "INTENT")
    body: dict[str, Any] = {}
    before, at = run, run
    if at is None or at.state in ("COMPLETE", "HARD_FAIL"):
        marks, body = ("PENDING", "RUNNING", "INTENT"), _opening(terms)
        at = new_run(plan, call, terms, run, now)
    if plan is not current:
        body = {**body, "policy": {"used": plan.policy_name, "current": current.policy_name}}
    if permit.approval is not None:
        body = {**body, "approval": permit.approval._asdict()}
    return make(Change, (marks, before, begun(at, plan.effect, terms.worker, now), body))


def _opening(terms: Terms) -> dict[str, Any]:
    """Return what the first entry of a run keeps: all that somebody else needs to go on with it."""
    body: dict[str, Any] = {"arguments": terms.arguments}
    if terms.actor:
        body["actor"] = terms.actor
    if terms.withheld:
        body["withheld"] = terms.withheld
    return body


def new_run(plan: Plan, call: Call, terms: Terms, last: Run | None, now: float) -> Run:
    """Return a new run of a key in PENDING: fences and attempts go on counting from the last one.

    A key keeps the name that it was begun under, also where its step has got another one since: what is
    marked by that name elsewhere is found again.
    """
    last = last or _NONE
    return make(Run, (
        "PENDING", last.step or plan.name, plan.effect, terms.run_id, last.runs + 1, last.fence, last.attempt,
        0, plan.policy.max_attempts,  # tried, allowed
        "", now, 0.0, 0.0, call.deadline,  # worker, created, began, not_before, deadline
        "", "", 0, 0, 0,  # held_for, reason, committed, failed, checkpoint
        terms.input_hash, call.cfg_hash, terms.seed, terms.tenant, terms.correlation_id, plan.policy_name,
        terms.dataset, terms.priority, terms.retain_s, 0.0, terms.provider, *_NEITHER,
    ))  # fmt: skip


_NONE = Run()
#: What comes after a run's provider: nothing of that is said when it begins.
_NEITHER = _NONE[Run._fields.index("provider") + 1 :]


def _given_back(plan: Plan, seen: Seen, now: float) -> Script:
    """Give a claim back by which nothing may begin; its number is used up, and it does not count as a try.

    If somebody asked meanwhile that it be cancelled, it is given back with that.
    """
    fence = seen.run.fence
    while seen.run.state == "RUNNING" and seen.run.fence == fence:
        if (yield from _interrupted(plan, Done(seen, begun=False), now)) is not None:
            return
        seen = yield Load(seen.entity)


def _limit(plan: Plan, run: Run, now: float) -> tuple[float | None, bool]:
    """Return how long the attempt may take, and whether that is the rest of the whole run's time."""
    limit, left = plan.policy.timeout_s, run.deadline - now if run.deadline else None
    if left is None or (limit is not None and limit <= left):
        return limit, False
    return left, True


# The outcome: what is written after the work --------------------------------------------------------


def _outcome(plan: Plan, done: Done, now: float) -> Script:
    """Write down what came of an attempt; return the call's end, or None when it goes on.

    If the run is not as the attempt left it, somebody else took over; unless the attempt is still the one
    under way, and it was a checkpoint of its own whose answer was lost: then that is what is written on.
    """
    while True:
        ended = yield from (_commit if done.error is None else _unfinished)(plan, done, now)
        if ended is not MOVED:
            return ended
        seen = yield Load(done.seen.entity)
        if seen.run.state != "RUNNING" or seen.run.fence != done.seen.run.fence:
            break
        done = done._replace(seen=seen)
    if done.error is None and plan.effect == "once":
        return End(None, refusals.lease_lost(plan, done.seen))
    if done.error is None or isinstance(done.error, Exception):
        return None  # whoever is first is right, and it is read again
    return End(None, done.error)


def _unfinished(plan: Plan, done: Done, now: float) -> Script:
    """Write down what it failed with; return the end, None when it goes on, or MOVED: nothing was written."""
    if isinstance(done.error, Exception):
        return (yield from _fail(plan, done, done.error, now))
    saved = yield from _interrupted(plan, done, now)
    return MOVED if saved is None else End(None, done.error)  # Ctrl-C and cancellation go on their way


def _commit(plan: Plan, done: Done, now: float) -> Script:
    """Write the result down; a value that cannot be written is done all the same, unless it is pure."""
    if done.applied is not None:  # by an attempt whose record was lost: what it left is all there is to say
        return (yield from _committed(plan, done, *done.applied, now))
    seen, run = done.seen, done.seen.run
    lost: ResultUnavailable | None = None
    try:
        body = {"result": plan.encode(done.value)}
    except Exception as fault:  # noqa: BLE001 - whatever a value does when it is written, it is written down
        lost = refusals.unavailable(plan, seen, fault, done.value)
        if plan.effect == "pure":
            made = close_run(run, "result_unavailable", now)
            change = _closed(plan, seen, made, plan.describe(lost, None), permanent=True)
            told = yield from breaker_step.passed(plan, seen, now)
            saved = yield Save(seen, change, also=told)
            return MOVED if saved is None else End(None, refusals.failed(plan, saved, lost, None))
        body = {"result_unavailable": str(lost)}
    events = done.events
    if lost is None and plan.large(body["result"]):
        body, events = yield from _spilled(seen, body, events)
    if done.artifacts:
        body["artifacts"] = done.artifacts
    if done.mark is not None:
        finished = yield Finish(
            seen, done.mark, body, events
        )  # from here on it is applied, whatever becomes of us
        if finished.error is not None:
            return (yield from _unfinished(plan, done._replace(error=finished.error), now))
    return (yield from _committed(plan, done, body, events, now, lost))


def _committed(
    plan: Plan, done: Done, body: dict[str, Any], events: Any, now: float, lost: Exception | None = None
) -> Script:
    """Write COMMIT, and what goes with it."""
    seen, run = done.seen, done.seen.run
    body["duration_s"] = round(now - run.began, 6)
    after = _over(run, "COMPLETE", "", committed=seen.version + 1)
    told = () if plan.barrier is None else (yield from breaker_step.passed(plan, seen, now))
    change = make(Change, (_DONE, run, after, body))
    saved = yield Save(seen, change, True, events, done.also, told)
    if saved is None:
        return MOVED
    if type(saved) is AlsoFailed:
        return (yield from _unfinished(plan, done._replace(error=saved.__cause__), now))
    if plan.purse is not None:
        yield Earn(plan.purse)
    if lost is not None:
        return End(None, lost)
    return _at_hand(plan, saved) or (yield from _stored_value(plan, saved))


_DONE: tuple[Any, ...] = ("COMMIT", "COMPLETE")


def _spilled(seen: Seen, body: dict[str, Any], events: tuple[Any, ...]) -> Script:
    """Return body and events of a result that is kept as an artifact; where that fails, as they were."""
    answer = yield Spill(seen, body["result"])
    if answer is None:
        return body, events
    ref, kept = answer
    return {"spilled": {"ref": ref, "digest": kept.digest, "size": kept.size}}, (*events, (kept, None))


def _fail(plan: Plan, done: Done, error: Exception, now: float) -> Script:
    """Classify, decide, write down; then wait, park or end."""
    seen, run = done.seen, done.seen.run
    decision = decided(plan, run, error, now)
    failure = decision.situation.failure
    described = plan.describe(error, failure)
    also: tuple[Any, ...] = ()
    said: dict[str, Any] = {}
    if plan.barrier is not None:
        told = yield from breaker_step.failed(plan, seen, decision, described, now)
        seen, decision, also, said = told
    paid: budget_step.Paid | None = None
    if plan.purse is not None:
        paid = yield from budget_step.failed(plan, seen.entity, decision)
        decision, also = paid.decision, (*also, *paid.also)
        seen = seen._replace(run=seen.run._replace(owes=paid.owes)) if paid.owes else seen
    if plan.halts:
        also = (*also, *(yield from pipeline_halt.halt(plan, run, failure, now)))
    if decision.situation.verdict == "UNKNOWN":
        answer = (yield Ask(seen)) if plan.asks else UNKNOWN
        change = _settled(plan, seen, answer, DOUBTFUL, now, described)
    else:
        change = _decided(plan, seen, described, decision, now)
    if said or seen is not done.seen:
        change = change._replace(before=run, body={**change.body, **said})
    saved = yield Save(done.seen, change, True, done.evidence, also=also)
    if saved is None:
        yield from budget_step.back(paid)
        return MOVED
    if decision.action == "quarantine" and decision.situation.verdict != "UNKNOWN":
        return End(None, refusals.held(plan, saved, error))
    if saved.run.state in ("COMPLETE", "SOFT_FAIL"):
        return None  # read again: it waits, parks, is held or is done, as for any other caller
    return End(None, refusals.failed(plan, saved, error, None))


def decided(plan: Plan, run: Run, error: Exception, now: float) -> Decision:
    """Return what is to be done about a failed attempt; the same for whoever asks with the same values."""
    failure = plan.classify(error, now)
    if plan.effect == "once":
        failure = failure._replace(sent="no" if plan.not_applied(error) else "maybe")
    quarantines = plan.quarantines and plan.covers is None
    meant = verdict(failure, plan.policy, plan.effect, quarantines=quarantines)
    if plan.effect == "once" and not plan.repeats_once and meant == "RETRYABLE":
        # IDEM-3: only what is idempotent or guarded by an outbox is tried again.
        meant = "QUARANTINE" if quarantines else "TERMINAL"
    if plan.covers is not None and meant not in ("UNKNOWN", "QUARANTINE"):
        meant = "RETRYABLE" if plan.covers(error, failure) else "TERMINAL"
    policy = plan.policy
    if run.allowed != policy.max_attempts:  # a person has granted more
        policy = policy.replaced(max_attempts=run.allowed)
    deadline, began = run.deadline or None, run.created
    if deadline is not None and policy.within_s is not None:
        began = max(began, deadline - policy.within_s)  # one that was put off has its time from then on
    seed, expected = run.seed or seed_of(run.run_id), _expected_duration(run, now) or None
    return decide(policy, Situation(run.tried, failure, meant, now, seed, began, deadline, expected))


#: A shorter failure, such as a refused connection, says nothing about how long the work takes.
SHORTEST_MEASURED_S = 1.0


def _expected_duration(run: Run, now: float) -> float:
    """Return how long the next attempt is expected to take, after one that has just failed; 0: not known."""
    lasted = round(now - run.began, 6)
    return max(run.expected_s, lasted) if lasted >= SHORTEST_MEASURED_S else run.expected_s


def _is_too_late(run: Run, now: float) -> bool:
    """Whether an attempt that begins now cannot end before the run's deadline (TIME-5).

    A wait that was cut to the latest start ends a little after it: that much is allowed.
    """
    late = min(LATE_S, 0.1 * run.expected_s)
    return bool(run.deadline) and now >= run.deadline - run.expected_s + late


def _decided(plan: Plan, seen: Seen, error: dict[str, Any], decision: Decision, now: float) -> Change:
    """Return what a decision about a failed attempt makes of the run, with its proof."""
    run = seen.run
    proof = proof_under(decision, policy_id(plan.policy))
    body = {"error": error, "proof": proof, "duration_s": round(now - run.began, 6)}
    expected = decision.situation.expected_s or 0.0
    if decision.action in ("retry", "defer"):
        reason = decision.situation.held_for if decision.reason == "held" else decision.reason
        not_before = decision.not_before or 0.0
        after = _over(run, "SOFT_FAIL", reason, not_before=not_before, expected_s=expected)
        return Change(("SOFT_FAIL", "DECISION"), run, after, body)
    permanent = decision.situation.verdict != "RETRYABLE"
    if decision.action == "quarantine":
        why = MISMATCHED if decision.situation.failure.code == MISMATCH else decision.reason
        after = _over(run, "SOFT_FAIL", decision.reason, expected_s=expected)._replace(held_for=why)
        marks: tuple[Any, ...] = ("SOFT_FAIL", "DECISION", "ESCALATION")
    else:
        after = _over(run, "HARD_FAIL", decision.reason, failed=seen.version + 1, expected_s=expected)
        marks = ("HARD_FAIL", "DECISION", "ESCALATION")
    return Change(marks, run, after, _escalated(body, run, now, plan, permanent=permanent))


def _interrupted(plan: Plan, done: Done, now: float) -> Script:
    """Close one's own attempt that was cut off from outside; one that never began does not count."""
    run = done.seen.run
    told = yield from breaker_step.released(plan, done.seen, now)
    if done.begun:
        return (
            yield from _close(plan, done.seen, "interrupted", now, ask=False, left=done.evidence, told=told)
        )
    error, made = refusals.LOST["released"], close_run(run, "released", now)
    change = _closed(plan, done.seen, made, error, tried=run.tried - 1)
    return (yield Save(done.seen, change, also=told))


def _close(
    plan: Plan,
    seen: Seen,
    reason: str,
    now: float,
    *,
    ask: bool = True,
    left: tuple[Given, ...] = (),
    told: tuple[Any, ...] = (),
) -> Script:
    """Close an attempt that nobody brings to its end: what it did decides by the effect's class.

    An effect that cannot be repeated is asked about, or held; any other is tried again, within the
    budget that the lost attempt has already used. What is lost with its worker until nothing of that is
    left may be what kills workers: it is held, and no policy begins a new run of it.
    """
    run, error = seen.run, refusals.LOST[reason]
    if run.effect == "once":
        answer = (yield Ask(seen)) if plan.asks and ask else UNKNOWN
        return (yield Save(seen, _settled(plan, seen, answer, reason, now, error), True, left, also=told))
    change = _closed(plan, seen, close_run(run, reason, now), error)
    return (yield Save(seen, change, True, left, also=told))


def _closed(
    plan: Plan,
    seen: Seen,
    made: ClosingDecision,
    error: dict[str, Any],
    said: Mapping[str, Any] = NO_REMARKS,
    *,
    permanent: bool = False,
    **changes: Any,
) -> Change:
    """Return what a decision that no failed attempt asked for makes of the run, with its proof."""
    run, now = seen.run, made.closing.now
    body = {"error": error, **said, "proof": closing_proof(made)}
    if made.action == "stop":
        after = _over(run, "HARD_FAIL", made.reason, failed=seen.version + 1, **changes)
        return Change(_FAILED, run, after, _escalated(body, run, now, plan, permanent=permanent))
    if made.action == "retry":
        after = _over(run, "SOFT_FAIL", made.reason, not_before=now, **changes)
        return Change(("SOFT_FAIL",), run, after, body)
    after = _over(run, "SOFT_FAIL", made.reason)._replace(held_for=made.held_for)
    if made.held_for == POISON:
        return Change(("SOFT_FAIL", "ESCALATION"), run, after, _escalated(body, run, now, plan))
    return Change(("SOFT_FAIL",), run, after, body)


def _settled(
    plan: Plan, seen: Seen, answer: Answer, reason: str, now: float, error: dict[str, Any] | None = None
) -> Change:
    """Return what becomes of a `once` attempt whose outcome was asked about."""
    run, error = seen.run, error or refusals.LOST["lease_expired"]
    if answer.found == "applied":
        after = _over(run, "COMPLETE", "reconciled", committed=seen.version + 1)
        try:
            body = {"result": plan.encode(answer.value)}
        except Exception as fault:  # noqa: BLE001 - it is done, whatever its value does when it is written
            body = {"result_unavailable": str(refusals.unavailable(plan, seen, fault, None))}
        return Change(("COMMIT", "COMPLETE"), run, after, {**body, **answer.decided})
    said = answer.decided if answer.found == "not_applied" else NO_REMARKS
    return _closed(plan, seen, close_run(run, reason, now, answer.found), error, said)


_FAILED: tuple[Any, ...] = ("HARD_FAIL", "ESCALATION")


def _escalated(
    body: dict[str, Any], run: Run, now: float, plan: Plan | None = None, *, permanent: bool = False
) -> dict[str, Any]:
    """Return a body that also tells an operator what a final failure had left (TIME-6).

    The record names the policy that the plan's file has for a permanent error or for exhaustion (GOV-10).
    """
    named = ESCALATION if plan is None else plan.escalation
    left = round(run.deadline - now, 6) if run.deadline else None
    told = {
        "policy": named[0] if permanent else named[1],
        "deadline": run.deadline or None,
        "left_s": left,
        "attempts": run.tried,
    }
    return {**body, "escalation": told}


escalated = _escalated  # for `control.review`, whose decisions end attempts in the same words


def _at_hand(plan: Plan, seen: Seen) -> End | None:
    """Return the end with the value as it was stored, if the last entry is what has it, and was read."""
    body = seen.body
    if not body or "result" not in body:
        return None
    return make(End, (plan.decode(body["result"]), None))


def _stored_value(plan: Plan, seen: Seen) -> Script:
    """Return the end with the value as it was stored: the first caller gets what all others get."""
    body = yield from _body(seen, seen.run.committed)
    if "result_unavailable" in body:
        return End(None, refusals.kept_nothing(plan, seen, body["result_unavailable"]))
    if "spilled" in body:
        found = yield Fetch(body["spilled"])
        if isinstance(found, Exception):
            return End(None, refusals.altered(plan, seen, found))
        return End(plan.decode(found), None)
    return End(plan.decode(body["result"]), None)


def _body(seen: Seen, version: int) -> Script:
    """Return the body of an entry; that of the last one came with the head."""
    if version == seen.version and seen.body is not None:
        return seen.body
    return (yield Read(seen.entity, version))


# A person's decisions -------------------------------------------------------------------------------


def reopen(plan: Plan, call: Call, reason: str, actor: str) -> Script:
    """Begin a new run of work that failed for good, because somebody says so; then it is run as usual."""
    while True:
        seen = yield Load(call.entity)
        now = yield NOW
        run = seen.run
        refused = _others(plan, call, run) or refusals.cannot_reopen(plan, call, run)
        if refused is not None:
            yield End(None, refused)
            return
        terms = yield make(Begin, (plan.policy_name, plan.policy, plan.policy_source, None))
        told = {"what": "rerun", "reason": reason, "actor": actor}
        body = {**_opening(terms), "decision": told}
        after = new_run(plan, call, terms, run, now)._replace(not_before=now)
        if (yield Save(seen, Change(("PENDING",), run, after, body))) is not None:
            yield End(None, None)
            return


def settle(plan: Plan, call: Call, answer: Answer, seen: Seen | None = None) -> Script:
    """Settle an outcome that nobody knew, because somebody looked and says so.

    Whoever comes second settles nothing: what they looked at is no longer what is there.
    """
    seen = seen or (yield Load(call.entity))
    now = yield NOW
    refused = _others(plan, call, seen.run)
    if refused is None:
        held = seen.run is not None and seen.run.held_for == DOUBTFUL
        saved = (yield Save(seen, _settled(plan, seen, answer, "decided", now))) if held else None
        refused = refusals.not_held(plan, call) if saved is None else None
    yield End(None, refused)


# A message that was delivered again -------------------------------------------------------------------


def note_redelivery(call: Call) -> Script:
    """Write down that a call found its work done (LEASE-5): COMPLETE, with the reason `artifact_exists`.

    Once per run, so that a caller who asks for ever does not make the log grow for ever. The result stays
    that of the COMMIT. A run with another config is left to the call itself.
    """
    saved = None
    while saved is None:
        seen = yield Load(call.entity)
        run = seen.run
        done = run is not None and run.state == "COMPLETE" and not run.pruned
        if not done or run.cfg_hash != call.cfg_hash or run.reason == EXISTS:
            break
        saved = yield Save(seen, Change(("COMPLETE",), run, run._replace(reason=EXISTS)))
    yield End(None, None)


# For somebody else to do ----------------------------------------------------------------------------


def submit(plan: Plan, call: Call, at: float) -> Script:
    """Have a run of this key, in PENDING where there is none yet: some worker will do it.

    Any other stays as it is, whatever its state: the same work is handed in once. Only a result that a call
    would not take, because what it depends on has changed, makes room for a new run.

    at  the earliest time of its first attempt; 0 for now
    """
    while True:
        seen = yield Load(call.entity)
        now = yield NOW
        run = seen.run
        ready: Any = End(None, _others(plan, call, run))
        if run is None or (ready.error is None and _outdated(plan, call, run)):
            ready = _anew(plan, call, seen, now)
        if type(ready) is not End:
            permit = yield Permit(_names(plan, run), call.tenant, begins=False)
            if permit.stop == ELSEWHERE:
                ready = End(None, refusals.stopped(plan, call, permit))
        if type(ready) is End:
            yield ready
            return
        terms = yield make(Offer, (plan.policy_name, plan.policy, plan.policy_source))
        after = new_run(plan, call, terms, run, now)._replace(not_before=at or now)
        change = Change(("PENDING",), run, after, _opening(terms))
        if (yield Save(seen, change, guards=permit.guards)) is not None:
            yield End(None, None)
            return


def _outdated(plan: Plan, call: Call, run: Run) -> bool:
    """Whether a run is over, and a call would begin a new one because what it depends on has changed."""
    if run.state not in ("COMPLETE", "HARD_FAIL") or run.pruned or run.cancelled:
        return False
    return run.cfg_hash != call.cfg_hash and _on_change(plan) == "new"


def cancel(plan: Plan, call: Call, reason: str, actor: str) -> Script:
    """Let no further attempt begin, because somebody says so.

    What waits is over at once. What runs is not cut off: if it commits, that stands, for what has happened
    has happened; if it fails, it is not tried again.
    """
    told = {"decision": {"what": "cancel", "reason": reason, "actor": actor}}
    while True:
        seen = yield Load(call.entity)
        now = yield NOW
        run = seen.run
        refused = _others(plan, call, run) or refusals.cannot_cancel(plan, call, run)
        if refused is not None or run.cancelled:
            yield End(None, refused)
            return
        if run.state == "RUNNING":
            change = Change(("DECISION",), run, run._replace(cancelled=now), told)
        else:
            error = {**refusals.CANCELLED, "message": reason}
            change = _closed(plan, seen, close_run(run, "cancelled", now), error, told, cancelled=now)
            change = change._replace(marks=("HARD_FAIL", "DECISION", "ESCALATION"))
        if (yield Save(seen, change)) is not None:
            yield End(None, None)
            return
