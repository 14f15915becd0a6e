"""COOLING: a durable call of which the resource knows, as a script around the script of the call.

Two moments of a call matter to what it asks for, and both are writes of the run:

    before an execution begins   the claim of its first attempt: the resource's record is read, and if it says
                                 so nothing is asked for. Else the claim is only good if the record has not
                                 changed meanwhile (a guard).
    when an execution has ended  the entry that says so carries the new record with it: both are stored, or
                                 neither is. Who dies before has counted nothing, and whoever goes on with the
                                 run counts it; who dies after has counted it, and the number of the attempt
                                 in the record keeps others from counting it again.

What ends an execution: a result, a failure for good, a person who has to look, or a provider's wish to be
left alone for longer than the policy waits: then the run stays open, and the resource rests until that time.
A run that somebody submitted and that may not begin yet is put off; one that need not begin any more ends.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.json import encode

from oncemore.errors import CoolingDown, Parked, Quarantined
from oncemore.limits.cooldown_rules import Attempted, Resource, ended, held, released, skip
from oncemore.log.record import Change, Kept, Run, over
from oncemore.policy.closing import close_run, closing_proof
from oncemore.steps import refusals
from oncemore.steps.flow import NOW
from oncemore.steps.ops import End, Load, Save, Sleep, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.limits.cooldown_rules import Rest
    from oncemore.steps.ops import Call, Script, Seen

MARK: tuple[Any, ...] = ("RESOURCE",)
DECIDED: tuple[Any, ...] = ("RESOURCE", "DECISION")
#: Why a run waits for a time that its resource knows of.
BEYOND, COOLING = "retry_after_beyond_cap", "cooling_down"
#: Reasons of a failed run that will not pass; any other failure may.
FINAL = ("not_retryable", "result_unavailable")


class Cooling(NamedTuple):
    """What a call asks for, and how long that is left alone.

    fingerprint  of the neutral record of an error
    """

    resource: str
    step: str
    provider: str
    rest: Rest
    fingerprint: Callable[[dict[str, Any]], str]

    @property
    def entity(self) -> str:
        """Where its record stands in the log."""
        return entity_of(self.resource)


def entity_of(resource: str) -> str:
    """Return the entity that a resource is."""
    return f"resource/{resource}"


def cooled(cooling: Cooling, call: Call, script: Script) -> Script:
    """Run a call's script; ask its resource before an execution begins, and tell it what came of that."""
    worked = False
    op = next(script)
    while type(op) is not End:
        worked = worked or type(op) is Work
        if type(op) is Sleep and not worked:  # nobody waits here for what is left alone: it is skipped
            end = yield from _told(cooling, op)
            if end is not op:
                script.close()
                yield end
                return
        if type(op) is Save and op.seen.entity == call.entity:
            op = yield from _minded(cooling, op)
            if type(op) is End:
                script.close()
                yield op
                return
        answer = None if op is None else (yield op)
        if answer is not None and _rests(op):
            script.close()  # it is over for now: nobody waits here for what rests longer
            yield End(None, _later(cooling, op))
            return
        op = script.send(answer)
    yield op if worked else (yield from _told(cooling, op))


def _rests(op: Any) -> bool:
    """Whether a write says that an execution ended with a wish to be left alone."""
    return type(op) is Save and bool(op.also) and getattr(op.change.after, "reason", "") == BEYOND


def _minded(cooling: Cooling, op: Save) -> Script:
    """Return a write as the resource wants it: guarded, with its own record, not at all (None), or an End."""
    change = op.change
    if "INTENT" in change.marks:
        return (yield from _gate(cooling, op)) if _begins(change) else op
    if _ends(change):
        book = yield Load(cooling.entity, Resource)
        now = yield NOW
        if not _counted(book.run, op):
            after = ended(book.run, cooling.resource, _attempted(cooling, op, now), cooling.rest)
            body = {"error": change.body["error"]} if "error" in change.body else {}
            return op._replace(also=(*op.also, (book, Change(MARK, book.run, after, body))))
    return op


def _begins(change: Change) -> bool:
    """Whether a claim is that of an execution's first attempt."""
    before, after = change.before, change.after
    assert type(after) is Run
    return after.tried == 1 or (type(before) is Run and before.reason in (BEYOND, COOLING))


def _ends(change: Change) -> bool:
    """Whether an entry says that an execution is over, in which something was asked for."""
    after = change.after
    assert type(after) is Run
    if not after.tried:
        return False
    return after.state in ("COMPLETE", "HARD_FAIL") or bool(after.held_for) or after.reason == BEYOND


def _counted(book: Resource | None, op: Save) -> bool:
    run = op.change.after
    assert type(run) is Run
    return book is not None and (book.run, book.attempt) == (op.seen.entity, run.attempt)


# Before: may it begin? ------------------------------------------------------------------------------


def _gate(cooling: Cooling, op: Save) -> Script:
    """Return the claim with the resource as its guard; or the end of a call that may not ask for it now."""
    book = yield Load(cooling.entity, Resource)
    now = yield NOW
    why = skip(book.run, now)
    if not why:
        return op._replace(guards={**op.guards, cooling.entity: book.version})
    refused = _refusal(cooling, book.run, why)
    open_ = op.seen.run is not None and op.seen.run.state in ("PENDING", "SOFT_FAIL")
    if open_ and (yield Save(op.seen, _put_off(op.seen, refused, now))) is None:
        return None  # somebody else had it: the script is told so, and looks again
    return End(None, refused)


def _refusal(cooling: Cooling, book: Resource, why: str) -> CoolingDown:
    until = book.next_eligible_attempt_at if why == "SKIPPED_BACKOFF" else 0.0
    return refusals.cooling(cooling.step, cooling.resource, why, until)


def _later(cooling: Cooling, op: Save) -> Parked:
    """Return the end of a call whose execution ended with a wish to be left alone."""
    run, book = op.change.after, op.also[-1][1].after
    assert type(run) is Run
    assert type(book) is Resource
    until = max(run.not_before, book.next_eligible_attempt_at)
    return refusals.resting(cooling.step, cooling.resource, until)


def _put_off(seen: Seen, refused: CoolingDown, now: float) -> Change:
    """Return what becomes of a run that waits and may not begin: it waits on, or there is no need for it."""
    run = seen.run
    told = {"type": "CoolingDown", "code": refused.outcome, "message": str(refused)}
    if refused.until:
        after = run._replace(reason=COOLING, not_before=refused.until)
        return Change(("DECISION",), run, after, {"error": told})
    after = over(run, "HARD_FAIL", refused.outcome.lower(), failed=seen.version + 1)
    proof = closing_proof(close_run(run, after.reason, now))
    return Change(("HARD_FAIL",), run, after, {"error": told, "proof": proof})


def _told(cooling: Cooling, op: End | Sleep) -> Script:
    """Return the end of a call that did nothing, in its resource's words where that is the reason."""
    if type(op) is Sleep or isinstance(op.error, Parked | Quarantined):  # type: ignore[union-attr]
        book = yield Load(cooling.entity, Resource)
        now = yield NOW
        why = skip(book.run, now)
        if why:
            return End(None, _refusal(cooling, book.run, why))
    return op


# After: what came of it? ----------------------------------------------------------------------------


def _attempted(cooling: Cooling, op: Save, now: float) -> Attempted:
    """Return how an execution ended, from the entry that says so."""
    run, body = op.change.after, op.change.body
    assert type(run) is Run
    error = body.get("error") or {}
    asked = body.get("proof", {}).get("failure", {}).get("retry_after")
    return Attempted(
        _outcome(run), now, cooling.provider, cooling.step, op.seen.entity, run.attempt, asked or 0.0,
        error.get("code", ""), cooling.fingerprint(error) if error else "",
        _content(op) if run.state == "COMPLETE" else "", any(type(given) is Kept for given, _ in op.events),
    )  # fmt: skip


def _outcome(run: Run) -> str:
    if run.state == "COMPLETE":
        return "SUCCESS"
    if run.held_for:
        return "QUARANTINE"
    return "TERMINAL_FAILURE" if run.reason in FINAL else "RETRYABLE_FAILURE"


def _content(op: Save) -> str:
    """Return the fingerprint of what was fetched: of its first artifact, or of the result itself."""
    body = op.change.body
    if body.get("artifacts"):
        return f"sha256:{body['artifacts'][0]['$artifact']['digest']}"
    if "spilled" in body:
        return f"sha256:{body['spilled']['digest']}"
    return f"sha256:{sha256(encode(body.get('result'))).hexdigest()}"


# A person lets it go --------------------------------------------------------------------------------


def reopened(cooling: Cooling, call: Call, script: Script) -> Script:
    """Run the script of a person who has work run again: what it asks for is let go with it."""
    op = next(script)
    while type(op) is not End:
        if type(op) is Save and op.seen.entity == call.entity:
            book = yield Load(cooling.entity, Resource)
            now = yield NOW
            also = letting_go(book, now, op.change.body)
            op = op._replace(also=(*op.also, *also))
        op = script.send((yield op))
    yield op


def letting_go(book: Seen, now: float, decided: dict[str, Any]) -> tuple[tuple[Seen, Change], ...]:
    """Return the change by which a resource is released; none where nothing stands against it."""
    if book.run is None or not (held(book.run) or book.run.next_eligible_attempt_at):
        return ()
    body = {"decision": decided["decision"]}
    return ((book, Change(DECIDED, book.run, released(book.run, now), body)),)
