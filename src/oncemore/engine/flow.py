"""FLOW: the way of a durable call, one line per station, as a script that any driver can run.

The script is a generator: it yields what it wants done and is sent what happened. Nothing is done in
between, so that a crash can only fall on a `yield`, before or after what it asks for:

    Load(entity)            read the head                           ← Seen(version, hash, run)
    Now()                   the store's time                        ← seconds
    Holder(worker)          until when is that worker's lease?      ← seconds; 0 when it is gone
    Save(seen, change)      append, if the entity is as it was seen ← Seen after it, or None: it is not
    Read(entity, version)   the body of an entry                    ← dict
    Work(run)               run the step's function                 ← (value, error)
    Ask(run)                run the step's reconcile function       ← Answer
    Sleep(seconds)          let time pass                           ← None
    Watch(entity, seconds)  let time pass until the entity changes  ← None
    End(value, error)       the end: return the one or raise the other

What a crash means, by the line of `run_step` it falls on: before `Save` of INTENT nothing has happened.
Between it and the `Save` of the outcome the effect may have happened: whoever comes next closes the
attempt by the effect's class (`_close`). After that `Save` all has happened and is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.core.classify import verdict
from oncemore.core.decide import Situation, decide
from oncemore.core.record import Change, Run
from oncemore.core.value import Record, Value
from oncemore.errors import (
    InProgress,
    KeyConflict,
    LeaseLost,
    OutcomeUnknown,
    Parked,
    ResultUnavailable,
    RetriesExhausted,
    Terminal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oncemore.core.decide import Decision
    from oncemore.core.model import Effect, Failure
    from oncemore.core.policy import Policy


class Plan(Record):
    """What a step was told, checked and made ready.

    encode       value → what the body keeps of it, or raises
    decode       the other way round
    describe     error → what the body keeps of it: neutral, redacted
    not_applied  whether an error says that a `once` effect did not happen
    asks         whether there is a reconcile function
    """

    __slots__ = (
        "asks", "classify", "decode", "describe", "effect", "encode", "if_running", "inline_wait_s", "name",
        "not_applied", "policy",
    )  # fmt: skip
    asks: bool
    classify: Callable[[BaseException, float], Failure]
    decode: Callable[[Any], Any]
    describe: Callable[[BaseException], dict[str, Any]]
    effect: Effect
    encode: Callable[[Any], Any]
    if_running: str
    inline_wait_s: float
    name: str
    not_applied: Callable[[Exception], bool]
    policy: Policy

    def __init__(
        self,
        name: str,
        effect: Effect,
        policy: Policy,
        classify: Callable[[BaseException, float], Failure],
        *,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        describe: Callable[[BaseException], dict[str, Any]],
        not_applied: Callable[[Exception], bool] = lambda error: False,
        asks: bool = False,
        if_running: str = "wait",
        inline_wait_s: float = 60.0,
    ) -> None:
        self.fill(
            asks, classify, decode, describe, effect, encode, if_running, inline_wait_s, name, not_applied,
            policy,
        )  # fmt: skip


class Call(Value):
    """One call of a step: what makes it the same work as another, and who makes it."""

    entity: str
    key: str
    arguments: Any
    input_hash: str
    cfg_hash: str
    run_id: str
    seed: str
    worker: str
    tenant: str = ""
    correlation_id: str = ""
    dataset: str = ""


class Seen(Value):
    """An entity as it was read: what a change to it is made from."""

    entity: str
    version: int
    hash: bytes
    run: Run | None


class Load(Value):
    """Read the head of an entity."""

    entity: str


class Now(Value):
    """Ask for the store's time."""


class Holder(Value):
    """Ask until when a worker's lease lasts."""

    worker: str


class Save(Value):
    """Append a change to an entity, if it is still as it was seen."""

    seen: Seen
    change: Change
    sync: bool = True


class Read(Value):
    """Read the body of an entry."""

    entity: str
    version: int


class Work(Value):
    """Run the step's function."""

    run: Run


class Ask(Value):
    """Run the step's reconcile function: did the lost attempt take effect?"""

    run: Run


class Sleep(Value):
    """Let time pass."""

    seconds: float


class Watch(Value):
    """Let time pass until an entity changes."""

    entity: str
    seconds: float


class End(Value):
    """The end: return the value or raise the error."""

    value: Any
    error: Exception | None


class Answer(Value):
    """What a reconcile function found: applied (with its value), not_applied or unknown."""

    found: str
    value: Any = None


if TYPE_CHECKING:
    Script = Generator[Any, Any, Any]


def run_step(plan: Plan, call: Call) -> Script:
    """Bring a call to its end: at most one COMMIT per key, bounded attempts, nothing silent."""
    while True:
        seen = yield Load(call.entity)
        now = yield Now()
        seen = yield from _admit(plan, call, seen, now)  # the second call: return, raise, wait or go on
        if type(seen) is End:
            yield seen
            return
        if seen is None:
            continue
        claimed = yield Save(seen, _claim(plan, call, seen.run, now), plan.effect != "pure")
        if claimed is None:
            continue
        value, error = yield Work(claimed.run)
        now = yield Now()
        if error is None:
            ended = yield from _commit(plan, claimed, value)
        else:
            ended = yield from _fail(plan, claimed, error, now)
        if ended is not None:
            yield ended
            return


def _admit(plan: Plan, call: Call, seen: Seen, now: float) -> Script:
    """Say what a call meets: an `End`, an entity that may be claimed, or None when time has passed."""
    run = seen.run
    if run is None:
        return seen
    if run.input_hash != call.input_hash:
        return End(
            None, KeyConflict(f"{plan.name}: key {run.key[:12]} belongs to a call with other arguments")
        )
    if run.state == "COMPLETE":
        return (yield from _stored_value(plan, seen))
    if run.state == "HARD_FAIL":
        return (yield from _stored_failure(plan, seen))
    if run.state == "RUNNING":
        return (yield from _running(plan, seen, now))
    if run.held_for:
        return End(None, OutcomeUnknown(_held(plan, run)))
    wait = run.not_before - now
    if wait <= 0:
        return seen
    if wait > plan.inline_wait_s:
        return End(
            None, Parked(f"{plan.name}: parked for {wait:.0f} s; a later call goes on", run.not_before)
        )
    yield Sleep(wait)
    return None


def _running(plan: Plan, seen: Seen, now: float) -> Script:
    """Somebody has it: wait for them, or close the attempt of one who is gone."""
    run = seen.run
    assert run is not None
    until = yield Holder(run.worker)
    if until > now:
        if plan.if_running == "raise":
            return End(
                None, InProgress(f"{plan.name}: key {run.key[:12]} is being worked on by {run.worker}")
            )
        yield Watch(seen.entity, until - now)
        return None
    yield from _close(plan, seen, now)
    return None


def _close(plan: Plan, seen: Seen, now: float) -> Script:
    """Close the attempt of a worker that is gone: what it did decides by the effect's class.

    An effect that cannot be repeated is asked about, or held; any other is tried again, within the
    budget that the lost attempt has already used.
    """
    run = seen.run
    assert run is not None
    if plan.effect == "once":
        answer = (yield Ask(run)) if plan.asks else Answer("unknown")
        yield Save(seen, _settled(plan, seen, answer, "lease_expired", now))
        return
    if run.tried >= run.allowed:
        after = run._replace(
            state="HARD_FAIL", reason="max_attempts_exceeded", worker="", failed=seen.version + 1
        )
        yield Save(seen, Change(("HARD_FAIL",), run, after, {"error": _LOST}))
        return
    after = run._replace(state="SOFT_FAIL", reason="lease_expired", worker="", not_before=now)
    yield Save(seen, Change(("SOFT_FAIL",), run, after, {"error": _LOST}))


_LOST = {"type": "LeaseExpired", "code": "LEASE_EXPIRED", "message": "the worker that had it is gone"}


def _settled(plan: Plan, seen: Seen, answer: Answer, reason: str, now: float) -> Change:
    """Return what becomes of a `once` attempt whose outcome was asked about."""
    run, next_version = seen.run, seen.version + 1
    assert run is not None
    if answer.found == "applied":
        after = run._replace(
            state="COMPLETE", reason="reconciled", worker="", held_for="", committed=next_version
        )
        return Change(("COMMIT", "COMPLETE"), run, after, _result(plan, answer.value))
    if answer.found == "not_applied" and run.tried < run.allowed:
        after = run._replace(state="SOFT_FAIL", reason=reason, worker="", held_for="", not_before=now)
        return Change(("SOFT_FAIL",), run, after, {"error": _LOST})
    if answer.found == "not_applied":
        after = run._replace(
            state="HARD_FAIL", reason="max_attempts_exceeded", worker="", held_for="", failed=next_version
        )
        return Change(("HARD_FAIL",), run, after, {"error": _LOST})
    after = run._replace(state="SOFT_FAIL", reason=reason, worker="", held_for="outcome_unknown")
    return Change(("SOFT_FAIL",), run, after, {"error": _LOST})


def _claim(plan: Plan, call: Call, run: Run | None, now: float) -> Change:
    """Count the attempt before it runs, under a new fence: RUNNING and INTENT in one entry."""
    marks: tuple[Any, ...] = ("RUNNING", "INTENT")
    body: dict[str, Any] = {}
    before = run
    if run is None:
        marks, body = ("PENDING", *marks), {"arguments": call.arguments}
        run = Run(
            key=call.key, step=plan.name, effect=plan.effect, run_id=call.run_id, runs=1,
            allowed=plan.policy.max_attempts, created=now, input_hash=call.input_hash, cfg_hash=call.cfg_hash,
            seed=call.seed, tenant=call.tenant, correlation_id=call.correlation_id,
            policy=plan.policy.digest, dataset=call.dataset,
        )  # fmt: skip
    after = run._replace(
        state="RUNNING", fence=run.fence + 1, attempt=run.attempt + 1, tried=run.tried + 1,
        worker=call.worker, began=now, reason="",
    )  # fmt: skip
    return Change(marks, before, after, body)


def _commit(plan: Plan, claimed: Seen, value: Any) -> Script:
    """Write the result down; a value that cannot be written is done all the same, unless it is pure."""
    run = claimed.run
    assert run is not None
    try:
        body = _result(plan, value)
    except ResultUnavailable as fault:
        if plan.effect == "pure":
            after = run._replace(
                state="HARD_FAIL", reason="result_unavailable", worker="", failed=claimed.version + 1
            )
            lost = yield Save(claimed, Change(("HARD_FAIL",), run, after, {"error": plan.describe(fault)}))
            return None if lost is None else End(None, fault)
        body = {"result_unavailable": str(fault)}
    after = run._replace(state="COMPLETE", reason="", worker="", committed=claimed.version + 1)
    saved = yield Save(claimed, Change(("COMMIT", "COMPLETE"), run, after, body))
    if saved is not None:
        return (yield from _stored_value(plan, saved))
    if plan.effect in ("pure", "idempotent", "outbox"):
        return None  # somebody else took over: whoever commits first is right, and it is read again
    return End(None, LeaseLost(f"{plan.name}: the lease was lost before the result could be written"))


def _result(plan: Plan, value: Any) -> dict[str, Any]:
    return {"result": plan.encode(value)}


def _fail(plan: Plan, claimed: Seen, error: Exception, now: float) -> Script:
    """Classify, decide, write down; then wait, park or end."""
    run = claimed.run
    assert run is not None
    failure = plan.classify(error, now)
    if plan.effect == "once" and plan.not_applied(error):
        failure = failure._replace(sent="no")
    meant = verdict(failure, plan.policy, plan.effect)
    policy = (
        plan.policy if run.allowed == plan.policy.max_attempts else plan.policy.but(max_attempts=run.allowed)
    )
    at = Situation(run.tried, failure, meant, now, run.seed, run.created)
    decision = decide(policy, at)
    if meant == "UNKNOWN":
        answer = (yield Ask(run)) if plan.asks else Answer("unknown")
        change = _settled(plan, claimed, answer, "outcome_unknown", now)
    else:
        change = _decided(plan, claimed, error, decision)
    saved = yield Save(claimed, change)
    if saved is None or saved.run.state in ("COMPLETE", "SOFT_FAIL"):
        return None  # read again: it waits, parks, is held or is done, as for any other caller
    return End(None, _failed(plan, saved.run, error))


def _decided(plan: Plan, claimed: Seen, error: Exception, decision: Decision) -> Change:
    """Return what a decision about a failed attempt makes of the run, with its proof."""
    run = claimed.run
    assert run is not None
    body = {"error": plan.describe(error), "proof": decision.proof()}
    if decision.action in ("retry", "defer"):
        not_before = decision.not_before or 0.0
        after = run._replace(state="SOFT_FAIL", reason=decision.reason, worker="", not_before=not_before)
        return Change(("SOFT_FAIL", "DECISION"), run, after, body)
    after = run._replace(state="HARD_FAIL", reason=decision.reason, worker="", failed=claimed.version + 1)
    return Change(("HARD_FAIL", "DECISION"), run, after, body)


def _stored_value(plan: Plan, seen: Seen) -> Script:
    run = seen.run
    assert run is not None
    body = yield Read(seen.entity, run.committed)
    if "result_unavailable" in body:
        return End(None, ResultUnavailable(f"{plan.name}: done, but {body['result_unavailable']}"))
    return End(plan.decode(body["result"]), None)


def _stored_failure(plan: Plan, seen: Seen) -> Script:
    run = seen.run
    assert run is not None
    body = yield Read(seen.entity, run.failed)
    told = body.get("error", {})
    return End(None, _failed(plan, run, None, told.get("message", "")))


def _failed(plan: Plan, run: Run, error: Exception | None, message: str = "") -> Exception:
    """Return the error that a failed run ends with; the work's own is its cause, where it is at hand."""
    kind = RetriesExhausted if run.reason == "max_attempts_exceeded" else Terminal
    text = f"{plan.name}: key {run.key[:12]} failed after {run.tried} attempts ({run.reason})"
    made = kind(f"{text}: {message}" if message else text)
    made.__cause__ = error
    return made


def _held(plan: Plan, run: Run) -> str:
    return (
        f"{plan.name}: attempt {run.attempt} of key {run.key[:12]} may have taken effect, and it must not "
        "happen twice; it waits for a decision"
    )
