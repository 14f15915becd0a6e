"""One call on its way: the engine it runs on, the work, what it has under way, and what has cut it off.

A write that was begun is brought to its end. If its answer was lost, by a cut or by the store's failure, the
*same* compare-and-set is sent again, and whose entry stands there is the answer; nothing is guessed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore import clock as clocks
from oncemore._values import make
from oncemore.artifacts import store
from oncemore.artifacts.artifact import as_artifact
from oncemore.control.model import CONTROL
from oncemore.errors import Cancelled, LeaseLost, StoreError, UsageError
from oncemore.limits import budget_step
from oncemore.limits.shared_rate import Meter
from oncemore.log.entry_codec import head_of, read_body
from oncemore.log.head_access import (
    ARTIFACT,
    CHECKPOINT,
    notice_write,
    seen_in,
    told_already,
    write_of,
)
from oncemore.log.interrupt_shield import Shield
from oncemore.log.record import NOWHERE, Change, Kept, Outgoing, Run
from oncemore.log.store import AlsoFailed, Batch, Conflict, Stored
from oncemore.retries.loop import ENDS, Invoke
from oncemore.steps.attempt import CURRENT, Attempt
from oncemore.steps.lease import RESERVED
from oncemore.steps.ops import (
    Begin,
    Check,
    Consult,
    Done,
    Draw,
    Drawn,
    Earn,
    Fetch,
    Finish,
    Found,
    Holder,
    Load,
    LoadPolicy,
    Now,
    Offer,
    Permission,
    Permit,
    Read,
    Refund,
    Save,
    Seen,
    Slot,
    Spill,
    Tell,
    Void,
    Work,
)
from oncemore.steps.run import opening_of
from oncemore.steps.transactions import Mark, asked, asked_awaited, kept_as

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from oncemore.artifacts.artifact import Artifact, Label
    from oncemore.log.encryption import Seal
    from oncemore.log.store import Write
    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine
    from oncemore.steps.lease import Identity
    from oncemore.steps.ops import Given, Terms
    from oncemore.steps.transactions import Asking, Line

    Answered = Stored | Conflict
    Arguments = tuple[tuple[Any, ...], dict[str, Any]]

#: Waits before a write whose answer was lost is sent again.
AGAIN_S = (0.0, 0.05, 0.25, 1.0)


class Kit(NamedTuple):
    """What all calls of a step have in common.

    tagged, untagged  value → what a body keeps of it, and back
    line_of           a connection to the user's own database → what speaks its dialect
    isolate           whether the work runs in a process of its own, or what else calls it
    artifact          the name of the one artifact that its result is; empty if it is not
    recall            recorded arguments, and those of the call → the call's arguments as they were recorded
    lease             how long its runs stay with this process and how often it gives a sign of life, where a
                      policy says so
    """

    name: str
    work: Callable[..., Any]
    tagged: Callable[[Any], Any]
    untagged: Callable[[Any], Any]
    line_of: Callable[[Any], Line] | None = None
    reconcile: Callable[..., Any] | None = None
    awaits: bool = False
    isolate: bool | Callable[[Job, Attempt, Invoke], Any] = False
    artifact: str = ""
    recall: Callable[[dict[str, Any], tuple[Any, ...], dict[str, Any]], Arguments] | None = None
    lease: tuple[float, float] | None = None


class Job:
    """One call on its way: the engine it runs on, the work, and what has cut it off, if anything has.

    last      what an awaited operation answered that was closed: nobody else hears it
    recorded  the run whose recorded arguments were read last, and these; None before that
    given     the caller's own arguments, while `args` and `kwargs` are those of a recorded run
    """

    __slots__ = (
        "_tagged", "_terms", "args", "awaits", "cut", "engine", "given", "held", "isolate", "kit", "kwargs",
        "last", "lease", "me", "read_again", "recorded", "reserved", "store", "work",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        terms: Callable[[Any, float], Terms],
        kit: Kit,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] = {},  # noqa: B006 - nobody changes it
    ) -> None:
        self.engine, self.store, self._terms, self.kit = engine, engine.store, terms, kit
        self.me: Identity | None = None
        self.cut: BaseException | None = None
        self.held: tuple[str, int] | None = None
        self.reserved = self.read_again = False
        self.last: Any = None
        self.recorded: tuple[str, dict[str, Any]] | None = None
        self.given: Arguments | None = None
        _, self.work, self._tagged, _, _, _, self.awaits, self.isolate, _, _, self.lease = kit
        self.args, self.kwargs = args, kwargs

    @property
    def name(self) -> str:
        """What the step is known by."""
        return self.kit.name

    @property
    def artifact(self) -> str:
        """The name of the one artifact that the step's result is."""
        return self.kit.artifact

    # What needs no waiting --------------------------------------------------------------------------

    def load(self, op: Load) -> Seen:
        """Read the head of an entity."""
        self.read_again = True
        return seen_in(self.store, op.entity, self.engine.seal, op.kind)

    def consult(self, op: Consult) -> Seen:
        """Return the circuit of a breaker."""
        return self.engine.circuits.consult(self.engine, op.entity)

    def slot(self, op: Slot) -> Generator[Any, Any, float]:
        """Return the script that takes a moment for an attempt; all steps here take from one meter."""
        engine = self.engine
        meter = engine.meters.get(op.beat)
        if meter is None:
            made = Meter(op.beat.pulse, op.beat.name, lambda: engine)
            meter = engine.meters.setdefault(op.beat, made)
        return meter.wait(has_moment=op.has_moment)

    def draw(self, op: Draw) -> Drawn:
        """Return what a retry budget holds."""
        return budget_step.drawn(self.engine, op)

    def refund(self, op: Refund) -> None:
        """Give back what was taken from a retry budget."""
        budget_step.refund(self.engine, op)

    def earn(self, op: Earn) -> Generator[Any, Any, None]:
        """Return the script that earns what a success earns."""
        return budget_step.earned(self.engine, op.purse)

    def begin(self, op: Begin) -> Terms:
        """Return who begins an attempt: this process, with a lease that is good for it."""
        if self.reserved:
            self.release()
        if op.seen is not None:
            self.recall(op.seen)
        engine, lease = self.engine, self.lease
        now = engine.now()
        while not (
            me := engine.identity(now) if lease is None else engine.identity_for(lease, now)
        ).reserve():
            continue  # it was retired in this very moment: the next one is another
        self.me, self.reserved = me, True
        terms = self._terms(me, now)
        engine.policies.record_policy(engine, op.policy_name, op.policy, op.source)
        return terms

    def recall(self, seen: Seen) -> None:
        """Take the arguments that a run was opened with, which an earlier attempt may have changed here.

        A run that is over is followed by a new one, which this call opens with its own arguments.
        """
        run, recall = seen.run, self.kit.recall
        if recall is None:
            return
        if run.state in ("COMPLETE", "HARD_FAIL"):
            self.args, self.kwargs = self.given or (self.args, self.kwargs)
            return
        if self.recorded is None or self.recorded[0] != run.run_id:
            opening = seen.body or {}
            if "arguments" not in opening:
                opening = opening_of(self.store.entries(seen.entity), self.engine.seal)
            self.recorded = run.run_id, opening.get("arguments", {})
        elif self.given is None:  # a worker has read them, and no attempt has had them yet
            self.given = self.args, self.kwargs
            return
        self.given = self.given or (self.args, self.kwargs)
        with self.engine.shelf.around():
            self.args, self.kwargs = recall(self.recorded[1], *self.given)

    def offer(self, op: Offer) -> Terms:
        """Return what a run begins with that somebody else is to do."""
        terms = self._terms(None, self.engine.now())
        self.engine.policies.record_policy(self.engine, *op)
        return terms

    def load_policy(self, op: LoadPolicy) -> Policy | None:
        """Return a policy that the log has."""
        policy = self.engine.policies.find_policy(self.engine, op.name)
        if policy is None:
            self.engine.grumble(
                f"{self.name}: the log does not have policy {op.name}, with which the run began; it goes on "
                "with its attempts and the step's present policy"
            )
        return policy

    def permit(self, op: Permit) -> Permission:
        """Say whether an attempt may begin, as far as people have to say so."""
        return self.engine.controls.permit(self.engine, op)

    def release(self) -> None:
        """Keep this process's worker no longer than anything needs it."""
        if self.reserved and self.me is not None:
            self.reserved = False
            self.me.leave(RESERVED)
            if self.me.retired:
                self.engine.bury(self.me)

    def now(self, op: Now) -> float:
        """Return the store's time."""
        return self.engine.now()

    def holder(self, op: Holder) -> float:
        """Return until when an attempt is held."""
        return self.engine.held_until(op.worker, op.entity, op.fence)

    def read(self, op: Read) -> dict[str, Any]:
        """Return the body of an entry."""
        for entry in self.store.entries(op.entity, op.version - 1):
            if entry.body is None:
                break
            return read_body(entry, self.engine.seal)
        raise StoreError(f"entry {op.version} of {op.entity} has no body; was it pruned?")

    def tell(self, op: Tell) -> None:
        """Let those who listen know."""
        self.engine.tell(op.what, op.seen)

    # Writing ----------------------------------------------------------------------------------------

    def begin_save(self, op: Save) -> tuple[Batch, Seen]:
        """Return the bytes of a change, and the entity as it will be once they are stored."""
        seen, change, sync, events, beside, also, guards, late = op
        entity, version, prev, _, _ = seen
        engine = self.engine
        now, seal = engine.now(), engine.seal
        if engine.notices is not None:
            change, notices = engine.notices.of(engine, entity, version, change, now)
            events = (*events, *notices)
        write = write_of(entity, version, prev, change, now, seal)
        marks, _, run, body = change
        if "INTENT" in marks:
            # Before it is written: nobody in this process may take it for lost.
            assert self.me is not None
            assert type(run) is Run
            assert CONTROL in guards, "an attempt was to begin that nobody has let begin"
            held = (entity, run.fence)
            reserved, self.reserved = self.reserved, False
            self.me.take(held, reserved=reserved)
            self.held = held  # after it: what was not taken must not be left, it may be somebody else's
        writes = (write,) if not (also or events) else (write, *_with_it(also, events, now, seal))
        after = make(Seen, (entity, version + 1, write.hash, run, body))
        late = late and self.store.looks_late
        return make(Batch, (writes, guards, sync, beside, late)), after

    def end_save(self, op: Save, after: Seen, answer: Answered) -> Seen | Void | None:
        """Return the entity as it is now, or None if it was not as it had been seen.

        A checkpoint changes nothing about whose attempt it is, even if it is refused: it may be that of an
        attempt which was given up, while this job has the next one.
        """
        engine = self.engine
        if isinstance(answer, Conflict):
            if op.change.marks != CHECKPOINT and not self._goes_on(answer):
                self.let_go()
            if answer.entity in op.guards:
                engine.controls.forget()  # what people have said has changed: it is read anew
            if op.also or op.guards:
                engine.circuits.forget(answer.entity)  # if it is what has changed, it is read anew
            return Void(after) if answer.stands else None
        if after.run.state != "RUNNING":  # or it was only asked to be cancelled
            self.let_go()
        if op.also:
            engine.circuits.wrote(engine, op.also)
            if any(seen.entity == CONTROL for seen, _ in op.also):
                engine.controls.forget()  # a pipeline was halted
        if engine.notices is not None and engine.notices.concerns(op.change):
            engine.notices.wake(engine)
        return after

    def _goes_on(self, answer: Conflict) -> bool:
        """Whether the attempt is still under way though a write of it was refused."""
        if self.held is None:
            return False
        # What was to be changed with it may have moved alone: then the attempt is what it was.
        head = answer.head if answer.entity == self.held[0] else self.store.head(self.held[0])
        now: Run | None = None if head is None else head_of(head.head)
        return now is not None and now.state == "RUNNING" and now.fence == self.held[1]

    def let_go(self) -> None:
        """Have no attempt under way any more."""
        if self.held is not None and self.me is not None:
            held, self.held = self.held, None  # before it: nobody leaves twice, whatever comes in between
            self.me.leave(held)
            if self.me.retired:
                self.engine.bury(self.me)

    def abandon(self, error: BaseException) -> None:
        """Leave: an attempt whose outcome could not be written is nobody's, and others may see that.

        Who leaves because of a second Ctrl-C, or of a first one at an odd moment, does not write any more:
        the store may be what they wait for.
        """
        if self.held is not None and self.me is not None:
            self.engine.retire(self.me, quietly=not isinstance(error, Exception))
            self.let_go()
        self.release()

    def send_again(self, batch: Batch, error: BaseException) -> Generator[float, None, Answered | AlsoFailed]:
        """Find out whether a write whose answer was lost is stored, by sending the same one again."""
        if not isinstance(error, StoreError):
            if isinstance(error, Exception):
                raise error
            self.cut = error
        last = error
        for wait in AGAIN_S:
            yield wait
            try:
                answer = self.store.append(batch).wait()
            except StoreError as again:
                last = again
                continue
            except AlsoFailed as failed:
                return failed  # the versions fitted, so that nothing was stored before
            if isinstance(answer, Stored) or answer.stands or not (at := self._stands(batch)):
                return answer
            # Whether its guards had moved, a store that looks late did not say: what is not known means no.
            return Conflict(next(iter(batch.guards)), None, (at,)) if batch.late else Stored((at,))
        if self.cut is not None and last is not self.cut:
            raise self.cut from last
        raise last

    def _stands(self, batch: Batch) -> int:
        """Return the number of our entry where it stands; 0: it is not ours that does."""
        first = batch.writes[0]
        for entry in self.store.entries(first.entity, first.expect):
            return entry.seq if entry.hash == first.hash else 0
        return 0

    # The work ---------------------------------------------------------------------------------------

    def attempt(self, seen: Seen, *, asks: bool = False) -> Attempt:
        """Return what the work can know of its attempt."""
        keep = None if asks else (self._keep_awaited if self.awaits else self._keep)
        files = None if asks else self
        return Attempt(seen, self.engine.now, self._tagged, keep, self._kept, CURRENT.get(), files)

    def _checkpoint(self, attempt: Attempt, plain: Any) -> Save:
        seen = attempt.seen
        after = seen.run._replace(checkpoint=seen.version + 1)
        return Save(seen, Change(CHECKPOINT, seen.run, after, {"checkpoint": plain}))

    def _keep(self, attempt: Attempt, plain: Any) -> None:
        saved: Any = save(self, self._checkpoint(attempt, plain))
        if self.cut is not None:
            raise self.cut  # here, where the work is: it may have hours to go
        self._moved(attempt, saved)

    async def _keep_awaited(self, attempt: Attempt, plain: Any) -> None:
        try:
            saved: Any = await save_awaited(self, self._checkpoint(attempt, plain))
        except GeneratorExit:
            attempt.seen = self.last or attempt.seen
            raise
        if self.cut is not None:
            raise self.cut
        self._moved(attempt, saved)

    def _moved(self, attempt: Attempt, saved: Seen | None) -> None:
        """Go on from what was kept; where it was not, the run was taken over, or is to be cancelled."""
        if saved is None:
            seen = seen_in(self.store, attempt.seen.entity, self.engine.seal)
            if seen.run.state == "RUNNING" and seen.run.fence == attempt.fence and seen.run.cancelled:
                attempt.seen = seen
                raise Cancelled(f"{attempt.step}: attempt {attempt.number} is to be cancelled")
        _moved(attempt, saved)

    def _kept(self, seen: Seen) -> Any:
        return self.kit.untagged(self.read(Read(seen.entity, seen.run.checkpoint))["checkpoint"])

    # Transactions -----------------------------------------------------------------------------------

    def enlist(self, attempt: Attempt, connection: Any) -> Any:
        """Begin an attempt's transaction in the user's own database; in async work it is to be awaited."""
        assert self.kit.line_of is not None
        ours = str(getattr(self.store, "path", ""))
        mark = Mark(self.kit.line_of(connection), connection, attempt, ours)
        if self.awaits:
            return self._enlist_awaited(attempt, mark)
        if mark.awaits:
            raise UsageError(f"{attempt.step}: an async connection needs an async step")
        attempt.mark = mark  # before it has begun: whatever has begun is undone
        asked(mark.begin())
        return connection

    def check_joins(self, step: str) -> None:
        """Refuse a store whose transactions nobody else can write in."""
        if not self.store.joins:
            raise UsageError(
                f"{step}: current().on_commit() needs a store in SQLite or PostgreSQL; this one is "
                f"{self.engine.url}. current().transaction(connection) works with every store"
            )

    def finish(self, op: Finish) -> Asking:
        """Commit an attempt's transaction, unless the attempt was taken over.

        The mark alone would not let a former attempt commit after a later one has begun; but in a database
        with one writer no later one can begin while this one holds it, and all would fail for that.
        """
        held = seen_in(self.store, op.seen.entity, self.engine.seal).run
        if held.state != "RUNNING" or held.fence != op.seen.run.fence:
            yield from op.mark.undo()
            raise LeaseLost(
                f"{held.step}: attempt {op.seen.run.attempt} was taken over; nothing is committed"
            )
        yield from op.mark.finish(kept_as(op.body, op.events))

    async def _enlist_awaited(self, attempt: Attempt, mark: Mark) -> Any:
        attempt.mark = mark
        await asked_awaited(mark.begin())
        return mark.connection

    # Artifacts --------------------------------------------------------------------------------------

    def put(self, attempt: Attempt, content: Any, label: Label) -> Any:
        """Put content away for an attempt; in async work the answer is to be awaited."""
        if self.awaits:
            return self._put_awaited(attempt, content, label)
        return attempt.hold(self._put(attempt, content, label))

    def leave_behind(self, attempt: Attempt, content: Any, label: Label) -> Any:
        """Leave content for people; in async work the answer is to be awaited."""
        if self.awaits:
            return self._left_awaited(attempt, content, label)
        return as_artifact(self.leave(attempt, content, label))

    async def _left_awaited(self, attempt: Attempt, content: Any, label: Label) -> Artifact:
        return as_artifact(await in_thread(self.leave, attempt, content, label))

    def leave(self, attempt: Attempt, content: Any, label: Label) -> Kept:
        """Put content away that is listed if the attempt fails: what it leaves for people to look at."""
        kept = self._put(attempt, content, label)
        attempt.evidence = (*attempt.evidence, kept)
        return kept

    def _put(self, attempt: Attempt, content: Any, label: Label) -> Kept:
        seen = attempt.seen
        written = self.engine.artifacts.write(content, lambda: self._still(attempt))
        return store.kept_as(seen.entity, seen.run, label, *written, self.engine.now())

    async def _put_awaited(self, attempt: Attempt, content: Any, label: Label) -> Artifact:
        return attempt.hold(await in_thread(self._put, attempt, content, label))

    def _still(self, attempt: Attempt) -> None:
        """Refuse an attempt that is over, or was taken over: nothing of it comes to light any more."""
        run = seen_in(self.store, attempt.seen.entity, self.engine.seal).run
        if attempt.over or run.state != "RUNNING" or run.fence != attempt.fence:
            _moved(attempt, None)

    def known(self, kept: Kept) -> Kept | None:
        """Return what the log has under an artifact's name already."""
        self.engine.artifacts.sign()  # for one that was put away in a process of its own
        return self.engine.artifacts.known(store.ref_of(kept))

    def check(self, op: Check) -> Found:
        """Say whether the step's artifact is there, and valid."""
        return self.engine.artifacts.check(op.entity, op.cfg_hash, op.name)

    def spill(self, op: Spill) -> tuple[str, Kept] | None:
        """Keep a large result beside the log."""
        return self.engine.artifacts.spill(op.seen.entity, op.seen.run, op.encoded)

    def fetch(self, op: Fetch) -> Any:
        """Return a large result."""
        return self.engine.artifacts.fetch(op.spilled)

    # ------------------------------------------------------------------------------------------------

    def call_work(self) -> Any:
        """Call the step's function."""
        return self.work(*self.args, **self.kwargs)

    def call_reconcile(self) -> Any:
        """Call the step's reconcile function, with the step's own arguments."""
        assert self.kit.reconcile is not None
        return self.kit.reconcile(*self.args, **self.kwargs)

    def invoke(self, op: Work) -> Invoke:
        """Return the limits of an attempt; an outer attempt's end is an end for the inner one too."""
        outer = ENDS.get()
        limit, whole = op.limit_s, op.whole
        if outer is None and limit is None:
            return make(Invoke, (op.seen.run.attempt, None, whole, None))
        if outer is not None:
            left = max(0.0, outer - clocks.current.monotonic())
            if limit is None or left < limit:
                limit, whole = left, True
        ends = None if limit is None else clocks.current.monotonic() + limit
        return Invoke(op.number, limit, whole, ends)

    def done(self, attempt: Attempt, value: Any, error: BaseException | None) -> Done:
        """Return what came of an attempt; it can do nothing any more.

        A child that was forked inside the work and comes out of it, most often by `sys.exit`, writes nothing.
        """
        attempt.over = True
        if attempt.forked:
            raise error or LeaseLost(
                f"{attempt.step}: attempt {attempt.number} is that of the parent process"
            )
        # What cut a checkpoint off was raised in the work: what the work made of it counts, its own
        # timeout among other things.
        self.cut = None if error is None or isinstance(error, Exception) else error
        if attempt.mark is not None and attempt.mark.applied is not None:
            self.cut = None
            return Done(attempt.seen, applied=attempt.mark.applied)
        if error is not None:
            left = tuple((kept, None) for kept in attempt.evidence)
            return Done(attempt.seen, None, error, attempt.begun, evidence=left)
        if attempt.seen.run.effect == "transactional":
            return self._transacted(attempt, value)
        if not attempt.kept:
            return make(Done, (attempt.seen, value, None, True, attempt.events, (), None, None, None, ()))
        return Done(attempt.seen, value, None, True, attempt.given(), attempt.put_away())

    def _transacted(self, attempt: Attempt, value: Any) -> Done:
        """Return what came of transactional work, which must have said where its transaction is."""
        mark, also = attempt.mark, attempt.also
        if mark is None and also is None:
            error = UsageError(
                f"{attempt.step} is transactional and used neither current().transaction(connection) nor "
                "current().on_commit(write): what it wrote, if it did, was not one with its record"
            )
            return Done(attempt.seen, None, error)
        away = attempt.given(), attempt.put_away()
        return Done(attempt.seen, value, None, True, *away, mark, also)


def _moved(attempt: Attempt, saved: Seen | None) -> None:
    if saved is None:
        attempt.over = True
        raise LeaseLost(f"{attempt.step}: attempt {attempt.number} was taken over by another worker")
    attempt.seen = saved


def _with_it(
    also: tuple[tuple[Seen, Change], ...], events: tuple[Given, ...], now: float, seal: Seal | None
) -> Iterator[Write]:
    """Tell what else is written with a change: other entities, and each thing that is given away."""
    for seen, change in also:
        yield write_of(seen.entity, seen.version, seen.hash, change, now, seal)
    for given, payload in events:
        if type(given) is Kept:
            yield write_of(store.ref_of(given), 0, NOWHERE, Change(ARTIFACT, None, given), now, seal)
        else:
            assert type(given) is Outgoing
            yield notice_write((given, payload), now, seal)


# Writing, blocking and awaiting -------------------------------------------------------------------


def save(job: Job, op: Save) -> Seen | Void | AlsoFailed | None:
    """Store a change, waiting for the disk; return the entity as it is then, or None if it had moved."""
    batch, after = job.begin_save(op)
    answer: Answered | AlsoFailed | None = None
    shield = Shield(job.cut is not None)
    try:
        with shield:
            answer = job.store.append(batch).wait()
    except AlsoFailed as failed:
        return failed
    except BaseException as error:
        if shield.twice:
            raise  # it is as good as a kill: nothing more is written
        if answer is None:
            answer = drained(job.send_again(batch, error))
        else:
            job.cut = error  # kept, and raised when the run is in order
    if type(answer) is Stored:
        return job.end_save(op, after, answer)
    if isinstance(answer, AlsoFailed):
        return answer
    return save(job, op) if told_already(op, batch, answer) else job.end_save(op, after, answer)


def drained(sending: Generator[float, None, Answered | AlsoFailed]) -> Answered | AlsoFailed:
    """Wait as long as sending again asks for, and return the answer."""
    try:
        while True:
            clocks.current.sleep(wait) if (wait := next(sending)) else None
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def save_awaited(job: Job, op: Save) -> Seen | Void | AlsoFailed | None:
    """Store a change while others of this loop go on."""
    if job.cut is not None:
        return save(job, op)  # a task that was cancelled must not await; the disk is worth the moment
    batch, after = job.begin_save(op)
    try:
        answer: Answered | AlsoFailed = await job.store.append(batch)
    except AlsoFailed as failed:
        return failed
    except BaseException as error:  # noqa: BLE001 - a cut is kept and raised when the run is in order
        sending = job.send_again(batch, error)
        answer = await drained_awaited(sending) if isinstance(error, Exception) else drained(sending)
    if type(answer) is not Stored:
        if isinstance(answer, AlsoFailed):
            return answer
        if told_already(op, batch, answer):
            return await save_awaited(job, op)
    job.last = job.end_save(op, after, answer)
    return job.last  # type: ignore[no-any-return]


async def drained_awaited(sending: Generator[float, None, Answered | AlsoFailed]) -> Answered | AlsoFailed:
    """Wait as long as sending again asks for, while others go on."""
    try:
        while True:
            if wait := next(sending):
                await clocks.current.pause(wait)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def in_thread(work: Callable[..., Any], *told: Any) -> Any:
    """Let a thread wait for the disk or the network, on asyncio or trio."""
    trio = clocks.in_trio()
    if trio is not None:
        return await trio.to_thread.run_sync(work, *told)
    return await sys.modules["asyncio"].to_thread(work, *told)
