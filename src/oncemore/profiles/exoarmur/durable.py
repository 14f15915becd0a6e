"""Results by idempotency key in the log: they outlive the process, and all processes share them.

A key is an entity of the log like every step's, and an operation goes the way of a step (`steps.flow`):
claim and INTENT before each attempt, under a lease and a fence; COMMIT with the result after it. So two
operations with one key are done once, in whatever processes they are; an attempt whose process died is closed
and gone on from; and a delay binds whoever takes over.

What this adds to the way of a step, by listening to its operations as they pass (`Witnessed`):

    Load    a recorded result is a hit; a key of another tenant is refused
    Save    COMMIT: the record goes into its body, and the operation is told that it came good
            DECISION: the operation is told of the failed attempt, and of what was decided
    End     the errors of the exoarmur interface, instead of those of a step

Two more scripts write to a key: `recorded` a result that somebody has already, `cleared` that a result no
longer counts. A cleared run stays COMPLETE, as it was; only its `cfg_hash` says that no call fits it any
more, so that the next one begins a new run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncemore import clock as clocks
from oncemore._ids import uuid7
from oncemore.audit.neutral import neutral
from oncemore.errors import Failed, InProgress, RetriesExhausted, UsageError
from oncemore.log.record import Change, Run
from oncemore.log.tagged_json import Tagger, untag
from oncemore.policy.canonical_json import digest
from oncemore.profiles.exoarmur.operation import RetryError
from oncemore.profiles.exoarmur.record import (
    NOBODY,
    About,
    Settled,
    Shared,
    encoded,
    kept_of,
    read_record,
    record_of,
)
from oncemore.retries.loop import ENDS, Report, annotate, log, mark
from oncemore.steps import flow
from oncemore.steps.call_in_progress import Job, Kit
from oncemore.steps.context import CONTEXT
from oncemore.steps.driver import awaiting
from oncemore.steps.keys import cfg_hash
from oncemore.steps.ops import Begin, Call, End, Holder, Load, Now, Plan, Read, Save, Terms, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.policy.decide import Decision
    from oncemore.profiles.exoarmur.operation import Doing
    from oncemore.profiles.exoarmur.record import IdempotencyRecord
    from oncemore.steps.engine import Engine
    from oncemore.steps.lease import Identity
    from oncemore.steps.ops import Script, Seen

EFFECT: Final = "idempotent"
CFG = cfg_hash("1", None)
CLEARED = "cleared"
LONGEST_NAME = 200
_PLAIN = Tagger()


#: Categories that a switch does not stop: what switches and approvals are kept and read by.
CONTROL_PLANE = ("RETRY_NATS_", "RETRY_KV_", "RETRY_APPROVAL_")


def entity_of(key: str) -> str:
    """Return the entity that a key is in the log."""
    try:
        key.encode()
    except UnicodeEncodeError:
        raise UsageError("an idempotency key holds half a surrogate pair, which no store can keep") from None
    if "\0" in key:
        raise UsageError("an idempotency key holds a zero byte, which not every store can keep")
    return f"run/{key}"


async def find(engine: Engine, key: str) -> IdempotencyRecord | None:
    """Return the record of a key, or None."""
    entity = entity_of(key)
    return await _done(engine, _found(key, entity))  # type: ignore[no-any-return]


async def record(engine: Engine, made: IdempotencyRecord) -> None:
    """Record a result that somebody has; another one than is there already is refused."""
    await _done(engine, recorded(made, entity_of(made.key)))


async def clear(engine: Engine, key: str) -> IdempotencyRecord | None:
    """Let a recorded result no longer count; return it, or None if there was none."""
    return await _done(engine, cleared(key, entity_of(key)))  # type: ignore[no-any-return]


async def _done(engine: Engine, script: Script) -> Any:
    return await awaiting(_job(engine, "idempotency record", _nobody, _nobody), _whole(script))


def _whole(script: Script) -> Script:
    """Return a script that ends as a driver wants it from one that returns its end."""
    yield (yield from script)


def _job(engine: Engine, name: str, work: Callable[[], Any], terms: Callable[[Any, float], Terms]) -> Job:
    return Job(engine, terms, Kit(name, work, _tagged, untag, awaits=True))


def _tagged(value: Any) -> Any:
    return _PLAIN.tag(value, "the value")


def _nobody(*told: Any) -> Any:
    raise AssertionError("a script that only reads and writes begins no attempt")  # pragma: no cover


# Records in the log ---------------------------------------------------------------------------------


def _record_in(key: str, seen: Seen) -> Script:
    """Return the record that an entity holds, or None; one of other work is refused."""
    run = seen.run
    if run is None or run.state != "COMPLETE" or run.cfg_hash == CLEARED:
        return None
    if run.pruned:
        return record_of(key, None, "it was pruned", None, NOBODY)
    at_hand = seen.body if seen.version == run.committed else None
    found = read_record(key, at_hand or (yield Read(seen.entity, run.committed)))
    if found is None:
        raise UsageError(f"key {key} belongs to work of another kind; give this one a key of its own")
    return found


def _found(key: str, entity: str) -> Script:
    seen = yield Load(entity)
    return End((yield from _record_in(key, seen)), None)


def recorded(made: IdempotencyRecord, entity: str) -> Script:
    """Write a result down as the key's: for a new run, or for the one that is open."""
    while True:
        seen = yield Load(entity)
        now = yield Now()
        before = yield from _record_in(made.key, seen)
        if before is not None:
            return End(None, None if before.text == made.text else other_result(made.key))
        run: Run | None = seen.run
        marks: tuple[Any, ...] = ("COMMIT", "COMPLETE")
        if run is None or run.state in ("COMPLETE", "HARD_FAIL"):
            run, marks = _new_run(made, run, now), ("PENDING", *marks)
        after = run._replace(
            state="COMPLETE", reason="recorded", worker="", held_for="", committed=seen.version + 1
        )
        if (yield Save(seen, Change(marks, seen.run, after, kept_of(made)))) is not None:
            return End(None, None)


def other_result(key: str) -> UsageError:
    """Return the error for a result that differs from the recorded one."""
    return UsageError(f"key {key} has another result already; clear it first if that one is wrong")


def _new_run(made: IdempotencyRecord, last: Run | None, now: float) -> Run:
    run_id = uuid7(now)
    last = last or Run()
    return Run()._replace(
        step=made.about.operation or "idempotency record", effect=EFFECT, run_id=run_id, runs=last.runs + 1,
        fence=last.fence, attempt=last.attempt, created=now, input_hash=_inputs(made.key), cfg_hash=CFG,
        correlation_id=run_id,
    )  # fmt: skip


def _inputs(key: str) -> str:
    """Return the digest of what this interface knows of the inputs: the key stands for all of them."""
    return digest({"idempotency_key": key})


def cleared(key: str, entity: str) -> Script:
    """Write down that a result no longer counts; the entry says who said so."""
    while True:
        seen = yield Load(entity)
        now = yield Now()
        run = seen.run
        running = run is not None and run.state == "RUNNING"
        if running and (yield Holder(run.worker, entity, run.fence)) > now:
            return End(None, in_progress(key))
        before = yield from _record_in(key, seen)
        if before is None:
            return End(None, None)
        told = {"what": "clear", "reason": "clear_idempotency", "actor": CONTEXT.get().actor}
        after = run._replace(reason=CLEARED, cfg_hash=CLEARED)
        if (yield Save(seen, Change(("DECISION",), run, after, {"decision": told}))) is not None:
            return End(before, None)


def in_progress(key: str) -> InProgress:
    """Return the error for a record that is not there yet."""
    return InProgress(f"the work of key {key} is being done now; it has no record to clear yet")


# Operations -----------------------------------------------------------------------------------------


async def perform(engine: Engine, key: str, about: About, doing: Doing, if_running: str) -> Settled | Shared:
    """Return the record of a key, doing the work if there is none and nobody else does it."""
    entity, plan = entity_of(key), _plan(engine, doing, if_running)
    outer = ENDS.get()
    left = 0.0 if outer is None else engine.now() + max(0.0, outer - clocks.current.monotonic())
    call = Call(entity, _inputs(key), CFG, 0.0, left, about.ids.cleaned().tenant_id or "")
    way = Witnessed(plan, call, key, about, doing)
    job = _job(engine, plan.name, doing.attempt, lambda me, now: _terms(me, now, key, about, doing))
    try:
        return await awaiting(job, _whole(way.script()))  # type: ignore[no-any-return]
    except BaseException as error:
        if not isinstance(error, Exception) and way.number:
            doing.operation.ended(way.number, clocks.current.wall(), error)
        raise


def _plan(engine: Engine, doing: Doing, if_running: str) -> Plan:
    policy, most = doing.plan.policy, clocks.current.most_attempts
    if most is not None and most < policy.max_attempts:
        policy = policy.but(max_attempts=most)
    return Plan(
        doing.plan.name[:LONGEST_NAME],
        EFFECT,
        policy,
        doing.plan.classify,
        encode=encoded,
        decode=lambda plain: plain,
        describe=neutral,
        if_running=if_running,
        inline_wait_s=max(policy.max_delay_s, engine.inline_wait_s),
        after_failure="new_run",
        on_version_change="new",  # of a cleared run: no call fits it
        covers=doing.plan.covers,
        approval=doing.approval,
        gated=not doing.operation.category.startswith(CONTROL_PLANE),
    )


def _terms(me: Identity | None, now: float, key: str, about: About, doing: Doing) -> Terms:
    ids = about.ids.cleaned()
    run_id = doing.run_id or uuid7(now)
    told = {"category": about.category, "operation": about.operation, "ids": [*ids], "run_id": run_id}
    return Terms(
        "" if me is None else me.name, run_id, told, _inputs(key), doing.plan.seed or "", ids.tenant_id or "",
        ids.correlation_id or CONTEXT.get().correlation_id or run_id,
    )  # fmt: skip


class Witnessed:
    """The way of an operation through the log, and what its witness is told on it.

    number  the attempt of the run that this call made last; 0 before its first
    """

    def __init__(self, plan: Plan, call: Call, key: str, about: About, doing: Doing) -> None:
        self._plan, self._call, self._key, self._about = plan, call, key, about
        self._it = doing.operation
        self._now = self._waited = 0.0
        self.number = 0

    def script(self) -> Script:
        """Ask for what the way of a step asks for, and hear the answers."""
        way = flow.run_step(self._plan, self._call)
        op = next(way)
        while type(op) is not End:
            op = self._with_record(op) if type(op) is Save and "COMMIT" in op.change.marks else op
            answer = yield op
            end = (yield from self._looked(answer)) if type(op) is Load else self._heard(op, answer)
            if end is not None:
                return end
            op = way.send(answer)
        return self._ended(op)

    def _with_record(self, op: Save) -> Save:
        """Return a COMMIT that has the whole record in its body."""
        text, why = op.change.body["result"]
        self._made = record_of(self._key, text, why, None, self._about)
        body = {"duration_s": op.change.body["duration_s"], **kept_of(self._made)}
        return op._replace(change=op.change._replace(body=body))

    def _looked(self, seen: Seen) -> Script:
        """Return the end of a call whose key has a record, or is somebody else's."""
        self._seen, found = seen, (yield from _record_in(self._key, seen))
        owner = _owner(seen.run, found)
        if owner is not None and owner != (self._about.ids.cleaned().tenant_id or ""):
            return End(None, other_tenant(self._key))
        return None if found is None else End(Settled("hit", found), None)

    def _heard(self, op: Any, answer: Any) -> End | None:
        """Take in what happened; return the end of the call, if it was that."""
        if type(op) is Now:
            self._now = answer
        elif type(op) is Work:
            self._done, self.number = answer, op.seen.run.tried
        elif type(op) is Begin:
            self._plan = self._plan.replaced(policy=op.policy, policy_name=op.policy_name)
            self._about = self._about._replace(policy=op.policy_name)
            self._it.use_policy(op.policy_name)
        elif type(op) is Save and answer is not None:
            return self._saved(op.seen.run, op.change)
        return None

    def _saved(self, run: Run, change: Change) -> End | None:
        """Tell the witness what is now written down for good."""
        if "COMMIT" in change.marks:
            self._it.ended(self.number, clocks.current.wall(), None)
            return End(Settled("record", self._made, self._done.value), None)
        if "DECISION" in change.marks and isinstance(self._done.error, Exception):
            return self._failed(run, self._done.error)
        return None

    def _failed(self, run: Run, error: Exception) -> End | None:
        """Tell of a failed attempt as a call without a log does; return the end, if it was that."""
        decision = _by_wall(flow.decided(self._plan, run, error, self._now))
        most = decision.policy.max_attempts
        report = Report(self._plan.name, run.tried, most, error, None, decision, self._waited)
        self._waited += decision.delay_s
        loud = run.tried > 1 or decision.situation.verdict == "RETRYABLE"
        if loud:
            log(report)
        self._it.failed(report)
        if decision.action == "retry":
            return None
        if loud:
            annotate(error, report)
        mark(error, decision)
        return End(None, self._it.error_of(error))

    def _ended(self, op: End) -> End:
        """Return the end of a call that no attempt of its own has ended."""
        if not isinstance(op.error, Failed):
            return op
        if not isinstance(op.error, RetriesExhausted):
            return End(Shared(op.error), None)
        shared = RetryError(self._about.category, self._seen.run.tried, self._about.operation)
        shared.__cause__ = op.error
        return End(Shared(shared), None)


def _owner(run: Run | None, found: IdempotencyRecord | None) -> str | None:
    """Return whose a key is: what is recorded directly, or over and not recorded, is everybody's."""
    if found is not None:
        return None if found.about == NOBODY else found.about.ids.tenant_id or ""
    return None if run is None or run.state in ("COMPLETE", "HARD_FAIL") else run.tenant


def _by_wall(decision: Decision) -> Decision:
    """Return a decision in the time of this machine, which events are told in, not in the store's."""
    at, wall, then = decision.situation, clocks.current.wall(), decision.not_before
    ahead = wall - at.now
    return decision._replace(
        situation=at._replace(now=wall), not_before=None if then is None else then + ahead
    )


def other_tenant(key: str) -> UsageError:
    """Return the error for a key that is not this caller's to use."""
    return UsageError(f"key {key} belongs to another tenant; put the tenant into the key")
