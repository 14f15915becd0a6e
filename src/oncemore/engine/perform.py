"""The drivers of the durable way: they do what a flow asks for, on a store, blocking or awaiting.

Both run the same script and share everything but the ways of waiting: for the disk, for the work, for
time, for somebody else. Two rules keep a cut from outside (Ctrl-C, cancellation) from losing anything:

* A write that was begun is brought to its end. If its answer was lost, by a cut or by the store's failure,
  the *same* compare-and-set is sent again, and whose entry stands there is the answer; nothing is guessed.
* What cut us off waits until the run is in order: it is raised where the script would wait or end, and
  between claim and work it makes an attempt that never began.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from oncemore.codec.artifact import SHELF
from oncemore.codec.wire import body_of, head_of, written
from oncemore.core.record import NOWHERE, Change, Chore, Kept, Mapped, Outgoing, Run, Worker, due, unsent
from oncemore.core.value import make
from oncemore.engine import artifacts
from oncemore.engine import clock as clocks
from oncemore.engine.attempt import CURRENT, Attempt
from oncemore.engine.context import CONTEXT, Context, earlier
from oncemore.engine.ids import nonce
from oncemore.engine.lease import RESERVED, Shield
from oncemore.engine.limits import awaited
from oncemore.engine.marks import Mark, asked, asked_awaited, kept_as
from oncemore.engine.notices import entered
from oncemore.engine.ops import (
    Answer,
    Ask,
    Begin,
    Check,
    Done,
    End,
    Fetch,
    Finish,
    Finished,
    Found,
    Holder,
    Load,
    Now,
    Offer,
    Read,
    Save,
    Seen,
    Sleep,
    Spill,
    Tell,
    Watch,
    Work,
)
from oncemore.engine.retry import ENDS, Invoke
from oncemore.errors import Cancelled, LeaseLost, StoreError, UsageError
from oncemore.store.base import AlsoFailed, Batch, Conflict, Index, Stored, Write

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from oncemore.codec.artifact import Artifact, Label
    from oncemore.codec.seal import Seal
    from oncemore.engine.lease import Identity
    from oncemore.engine.marks import Asking, Line
    from oncemore.engine.ops import Script, Terms
    from oncemore.engine.runtime import Engine
    from oncemore.store.base import Store

    Answered = Stored | Conflict

CHECKPOINT: tuple[Any, ...] = ("CHECKPOINT",)
EVENT: tuple[Any, ...] = ("EVENT",)
ARTIFACT: tuple[Any, ...] = ("ARTIFACT",)
#: How a run that waits for a person is listed, whatever its state: they are few among many that wait.
HELD = "HELD"
#: Waits before a write whose answer was lost is sent again.
AGAIN_S = (0.0, 0.05, 0.25, 1.0)
#: How long a caller looks away while somebody else has the run: at first, at most, and in all.
LOOK_S, LOOK_MOST_S, LOOK_ANEW_S = 0.002, 0.05, 0.5


_NO_GUARDS: dict[str, int] = {}


def index_of(state: Run | Worker | Outgoing | Kept | Chore | Mapped) -> Index:
    """Return what a head is looked up by; a worker's is its own business (`engine.lease`)."""
    if type(state) is Run:
        listed = HELD if state.held_for else state.state
        return make(Index, ("run", listed, due(state), state.step, state.worker, state.dataset))
    if type(state) is Outgoing:
        return Index("event", state.state, unsent(state), state.topic, state.worker)
    if type(state) is Chore:
        return Index("chore", state.state, None, state.what, state.worker)
    if type(state) is Mapped:
        due_at = state.created if state.state == "RUNNING" else None
        return Index("job", state.state, due_at, state.step, state.worker)
    assert type(state) is Kept
    return artifacts.index_of(state)


def write_of(
    entity: str, version: int, prev: bytes, change: Change, now: float, seal: Seal | None = None
) -> Write:
    """Return the bytes of an entity's next entry, ready to be appended."""
    made = written(change, entity, version + 1, prev, now, nonce(), seal)
    return make(Write, (entity, version, *made, index_of(change.after)))


def notice_write(given: Any, now: float, seal: Seal | None = None) -> Write:
    """Return the bytes of an event's first entry."""
    event, payload = given
    change = Change(EVENT, None, event, {"payload": payload})
    return write_of(f"event/{event.event_id}", 0, NOWHERE, change, now, seal)


def told_already(op: Save, batch: Batch, answer: Answered) -> bool:
    """Whether a batch was refused for a notice in it that somebody else has just written: try without it.

    At most twice for each sink: a notice that is there is not written again.
    """
    if type(answer) is not Conflict or len(batch.writes) == 1 + len(op.events) + len(op.also):
        return False
    return answer.entity in {write.entity for write in batch.writes[1:]}


def seen_in(store: Store, entity: str, seal: Seal | None = None, kind: type[Any] = Run) -> Seen:
    """Return an entity as it is in a store, with the body of its last entry."""
    with Shield():
        head = store.head(entity)
    if head is None:
        return Seen(entity, 0, NOWHERE, None)
    body = None if head.body is None else body_of(head.body, seal)
    return Seen(entity, head.version, head.hash, head_of(head.head, kind), body)


class Job:
    """One call on its way: the engine it runs on, the work, and what has cut it off, if anything has."""

    __slots__ = (
        "_line_of", "_reconcile", "_tagged", "_terms", "_untagged", "args", "artifact", "awaits", "cut",
        "engine", "held", "isolate", "kwargs", "last", "me", "name", "read_again", "reserved", "store",
        "work",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        terms: Callable[[Any], Terms],
        name: str,
        work: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        tagged: Callable[[Any], Any],
        untagged: Callable[[Any], Any],
        line_of: Callable[[Any], Line] | None = None,
        reconcile: Callable[..., Any] | None = None,
        awaits: bool = False,
        isolate: bool | Callable[[Job, Attempt, Invoke], Any] = False,
        artifact: str = "",
    ) -> None:
        self.engine, self.store, self._terms = engine, engine.store, terms
        self.me: Identity | None = None
        self.cut: BaseException | None = None
        self.held: tuple[str, int] | None = None
        self.reserved = self.read_again = False
        self.last: Any = None  # what an awaited operation answered that was closed: nobody else hears it
        self.awaits, self.isolate, self.artifact = awaits, isolate, artifact
        self.name, self.work, self.args, self.kwargs = name, work, args, kwargs
        self._tagged, self._untagged, self._reconcile = tagged, untagged, reconcile
        self._line_of = line_of

    # What needs no waiting --------------------------------------------------------------------------

    def load(self, op: Load) -> Seen:
        """Read the head of an entity."""
        self.read_again = True
        return seen_in(self.store, op.entity, self.engine.seal, op.kind)

    def begin(self, op: Begin) -> Terms:
        """Return who begins an attempt: this process, with a lease that is good for it."""
        self.release()
        while not (me := self.engine.identity()).reserve():
            continue  # it was retired in this very moment: the next one is another
        self.me, self.reserved = me, True
        return self._terms(me)

    def offer(self, op: Offer) -> Terms:
        """Return what a run begins with that somebody else is to do."""
        return self._terms(None)

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
            return body_of(entry.body, self.engine.seal)
        raise StoreError(f"entry {op.version} of {op.entity} has no body; was it pruned?")

    def tell(self, op: Tell) -> None:
        """Let those who listen know."""
        self.engine.tell(op.what, op.seen)

    # Writing ----------------------------------------------------------------------------------------

    def begin_save(self, op: Save) -> tuple[Batch, Seen]:
        """Return the bytes of a change, and the entity as it will be once they are stored."""
        seen, change, now = op.seen, op.change, self.engine.now()
        events = op.events
        if self.engine.notices is not None:
            change, notices = self.engine.notices.of(self.engine, seen.entity, seen.version, change, now)
            events = (*events, *notices)
        seal = self.engine.seal
        writes = [write_of(seen.entity, seen.version, seen.hash, change, now, seal)]
        if op.also:
            also = op.also
            writes += [write_of(each.entity, each.version, each.hash, to, now, seal) for each, to in also]
        for given, payload in events:
            if type(given) is Kept:
                entity, sent = artifacts.ref_of(given), Change(ARTIFACT, None, given)
            else:
                assert type(given) is Outgoing
                entity, sent = f"event/{given.event_id}", Change(EVENT, None, given, {"payload": payload})
            writes.append(write_of(entity, 0, NOWHERE, sent, now, seal))
        run = change.after
        if "INTENT" in change.marks:
            # Before it is written: nobody in this process may take it for lost.
            assert self.me is not None
            assert type(run) is Run
            held = (seen.entity, run.fence)
            self.me.take(held)
            self.held = held  # after it: what was not taken must not be left, it may be somebody else's
            self.release()
        after = Seen(seen.entity, seen.version + 1, writes[0].hash, run, change.body)
        return make(Batch, (tuple(writes), _NO_GUARDS, op.sync, op.beside)), after

    def end_save(self, op: Save, after: Seen, answer: Answered) -> Seen | None:
        """Return the entity as it is now, or None if it was not as it had been seen.

        A checkpoint changes nothing about whose attempt it is, even if it is refused: it may be that of an
        attempt which was given up, while this job has the next one.
        """
        stored = isinstance(answer, Stored)
        if op.change.marks != CHECKPOINT and not self._goes_on(after.run, answer):
            self.let_go()
        if stored and self.engine.notices is not None and entered(op.change):
            self.engine.notices.wake(self.engine)
        return after if stored else None

    def _goes_on(self, after: Run, answer: Answered) -> bool:
        """Whether the attempt is still under way: it has begun, or its run was only asked to be cancelled."""
        if isinstance(answer, Stored):
            return after.state == "RUNNING"
        if self.held is None or answer.head is None or answer.entity != self.held[0]:
            return False
        now: Run = head_of(answer.head.head)
        return now.state == "RUNNING" and now.fence == self.held[1]

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

    def send_again(self, batch: Batch, error: BaseException) -> Generator[float, None, Answered]:
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
            return answer if isinstance(answer, Stored) or not self._stands(batch) else Stored(())
        if self.cut is not None and last is not self.cut:
            raise self.cut from last
        raise last

    def _stands(self, batch: Batch) -> bool:
        """Whether the entry that stands where ours should is ours."""
        first = batch.writes[0]
        for entry in self.store.entries(first.entity, first.expect):
            return entry.hash == first.hash
        return False

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
        saved: Any = _save(self, self._checkpoint(attempt, plain))
        if self.cut is not None:
            raise self.cut  # here, where the work is: it may have hours to go
        self._moved(attempt, saved)

    async def _keep_awaited(self, attempt: Attempt, plain: Any) -> None:
        try:
            saved: Any = await _save_awaited(self, self._checkpoint(attempt, plain))
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
        return self._untagged(self.read(Read(seen.entity, seen.run.checkpoint))["checkpoint"])

    # Transactions -----------------------------------------------------------------------------------

    def enlist(self, attempt: Attempt, connection: Any) -> Any:
        """Begin an attempt's transaction in the user's own database; in async work it is to be awaited."""
        assert self._line_of is not None
        ours = str(getattr(self.store, "path", ""))
        mark = Mark(self._line_of(connection), connection, attempt, ours)
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

    def leave(self, attempt: Attempt, content: Any, label: Label) -> Kept:
        """Put content away that is listed if the attempt fails: what it leaves for people to look at."""
        kept = self._put(attempt, content, label)
        attempt.evidence.append(kept)
        return kept

    def _put(self, attempt: Attempt, content: Any, label: Label) -> Kept:
        seen = attempt.seen
        written = self.engine.artifacts.write(content, lambda: self._still(attempt))
        return artifacts.kept_as(seen.entity, seen.run, label, *written, self.engine.now())

    async def _put_awaited(self, attempt: Attempt, content: Any, label: Label) -> Artifact:
        return attempt.hold(await _in_thread(self._put, attempt, content, label))

    def _still(self, attempt: Attempt) -> None:
        """Refuse an attempt that is over, or was taken over: nothing of it comes to light any more."""
        run = seen_in(self.store, attempt.seen.entity, self.engine.seal).run
        if attempt.over or run.state != "RUNNING" or run.fence != attempt.fence:
            _moved(attempt, None)

    def known(self, kept: Kept) -> Kept | None:
        """Return what the log has under an artifact's name already."""
        self.engine.artifacts.sign()  # for one that was put away in a process of its own
        return self.engine.artifacts.known(artifacts.ref_of(kept))

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
        assert self._reconcile is not None
        return self._reconcile(*self.args, **self.kwargs)

    def invoke(self, op: Work) -> Invoke:
        """Return the limits of an attempt; an outer attempt's end is an end for the inner one too."""
        outer = ENDS.get()
        limit, whole = op.limit_s, op.whole
        if outer is None and limit is None:
            return make(Invoke, (op.number, None, whole, None))
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
            return Done(attempt.seen, value, None, True, tuple(attempt.events))
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


class _Inside:
    """The surroundings of user code: which attempt it is, what it carries, when it must be over."""

    __slots__ = ("_attempt", "_ends", "_shelf", "_tokens")

    def __init__(self, job: Job, attempt: Attempt, ends: float | None) -> None:
        self._attempt, self._ends, self._shelf = attempt, ends, job.engine.shelf

    def __enter__(self) -> None:
        run, around = self._attempt.seen.run, CONTEXT.get()
        ends = earlier(run.deadline, around.deadline)
        carried = make(Context, (run.tenant, run.correlation_id, ends, around.actor))
        shelf = SHELF.set(self._shelf)
        self._tokens = CURRENT.set(self._attempt), CONTEXT.set(carried), ENDS.set(self._ends), shelf

    def __exit__(self, *error: object) -> None:
        current, carried, ends, shelf = self._tokens
        SHELF.reset(shelf)
        ENDS.reset(ends)
        CONTEXT.reset(carried)
        CURRENT.reset(current)


def _answer(job: Job, found: Any) -> Answer:
    if type(found) is Answer:
        return found
    job.engine.grumble(
        f"a reconcile function answered {found!r}; it takes applied(), not_applied() or unknown()"
    )
    return Answer("unknown")


def _no_answer(job: Job, error: BaseException) -> Answer:
    """A reconcile function that fails knows nothing; what cut it off is raised once that is written."""
    if isinstance(error, Exception):
        job.engine.grumble(f"a reconcile function failed: {type(error).__name__}")
    else:
        job.cut = error
    return Answer("unknown")


# Blocking -------------------------------------------------------------------------------------------


def blocking(job: Job, script: Script, told: Any = None) -> Any:
    """Run a script to its end in this thread; return the value or raise the error.

    told  the answer to what the script asked for last, if it has begun
    """
    try:
        op = script.send(told)
        while type(op) is not End:
            quick = _QUICK.get(type(op))
            op = script.send(quick(job, op) if quick is not None else _BLOCKING[type(op)](job, op))
    except BaseException as error:
        job.abandon(error)
        if job.cut is not None and error is not job.cut:
            raise job.cut from error  # what cut it off comes before all that it met afterwards
        raise
    return _end(job, op)


def _end(job: Job, op: End) -> Any:
    job.release()
    error = job.cut or op.error
    if error is None:
        return op.value
    try:
        raise error
    finally:
        del error, op, job  # the traceback holds this frame, which must not hold it


def _save(job: Job, op: Save) -> Seen | AlsoFailed | None:
    batch, after = job.begin_save(op)
    answer: Answered | None = None
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
            answer = _drained(job.send_again(batch, error))
        else:
            job.cut = error  # kept, and raised when the run is in order
    return _save(job, op) if told_already(op, batch, answer) else job.end_save(op, after, answer)


def _drained(sending: Generator[float, None, Answered]) -> Answered:
    try:
        while True:
            clocks.current.sleep(wait) if (wait := next(sending)) else None
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _work(job: Job, op: Work) -> Done:
    if job.cut is not None:
        return Done(op.seen, None, job.cut, begun=False)
    attempt, invoke = job.attempt(op.seen), job.invoke(op)
    try:
        with _Inside(job, attempt, invoke.ends):
            value = job.engine.call(job, attempt, invoke)
    except BaseException as error:  # noqa: BLE001 - it travels as a value, and is raised at the end
        if attempt.mark is not None:
            asked(attempt.mark.undo())
        return job.done(attempt, None, error)
    return job.done(attempt, value, None)


def _finish(job: Job, op: Finish) -> Finished:
    shield = Shield(job.cut is not None)
    try:
        with shield:
            asked(job.finish(op))
    except BaseException as error:
        if shield.twice:
            raise  # it is as good as a kill
        return _finished(job, op.mark, error)
    return Finished(None)


def _finished(job: Job, mark: Mark, error: BaseException) -> Finished:
    """Return what became of a transaction that an error met; what cuts off a finished one is kept."""
    if not mark.finished:
        return Finished(error)
    job.cut = error  # and raised when the run is in order
    return Finished(None)


def _ask(job: Job, op: Ask) -> Answer:
    if job.cut is not None:
        return Answer("unknown")
    try:
        with _Inside(job, job.attempt(op.seen, asks=True), ENDS.get()):
            return _answer(job, job.call_reconcile())
    except BaseException as error:  # noqa: BLE001 - it knows nothing
        return _no_answer(job, error)


def _spill(job: Job, op: Spill) -> tuple[str, Kept] | None:
    try:
        return job.spill(op)
    except BaseException as error:  # noqa: BLE001 - kept, and raised when the result is in the log
        job.cut = error
        return None


def _sleep(job: Job, op: Sleep) -> None:
    if job.cut is not None:
        raise job.cut
    clocks.current.sleep(op.seconds)


def _watch(job: Job, op: Watch) -> None:
    if job.cut is not None:
        raise job.cut
    for pause in _looks(job, op):
        time.sleep(pause)


def _looks(job: Job, op: Watch) -> Generator[float, None, None]:
    """Tell how long to look away, until the entity has changed or it is time to ask who has it.

    In real time, also in tests: somebody else works meanwhile.
    """
    ends, pause = time.monotonic() + min(op.seconds, LOOK_ANEW_S), LOOK_S
    while (left := ends - time.monotonic()) > 0:
        yield min(pause, left)
        with Shield():
            head = job.store.head(op.entity)
        if head is None or head.version != op.version:
            return
        pause = min(pause * 1.5, LOOK_MOST_S)


# Awaiting -------------------------------------------------------------------------------------------


async def awaiting(job: Job, script: Script) -> Any:
    """Run a script to its end in this task, on asyncio or trio; return the value or raise the error."""
    try:
        op = next(script)
        while type(op) is not End:
            quick = _QUICK.get(type(op))
            if quick is not None:
                op = script.send(quick(job, op))
            else:
                job.last = None
                op = script.send(await _AWAITING[type(op)](job, op))
    except GeneratorExit as closed:
        # The coroutine is closed, which ends what it awaits first: the answer is in `job.last`. What is left
        # to do is done without awaiting, and raises this again.
        if job.last is None:
            job.abandon(closed)
            raise
        job.cut = closed
        return blocking(job, script, job.last)
    except BaseException as error:
        job.abandon(error)
        if job.cut is not None and error is not job.cut:
            raise job.cut from error  # what cut it off comes before all that it met afterwards
        raise
    return _end(job, op)


async def _save_awaited(job: Job, op: Save) -> Seen | AlsoFailed | None:
    if job.cut is not None:
        return _save(job, op)  # a task that was cancelled must not await; the disk is worth the moment
    batch, after = job.begin_save(op)
    try:
        answer: Answered = await job.store.append(batch)
    except AlsoFailed as failed:
        return failed
    except BaseException as error:  # noqa: BLE001 - a cut is kept and raised when the run is in order
        sending = job.send_again(batch, error)
        answer = await _drained_awaited(sending) if isinstance(error, Exception) else _drained(sending)
    if told_already(op, batch, answer):
        return await _save_awaited(job, op)
    job.last = job.end_save(op, after, answer)
    return job.last  # type: ignore[no-any-return]


async def _drained_awaited(sending: Generator[float, None, Answered]) -> Answered:
    try:
        while True:
            if wait := next(sending):
                await clocks.current.pause(wait)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def _work_awaited(job: Job, op: Work) -> Done:
    if job.cut is not None:
        return Done(op.seen, None, job.cut, begun=False)
    attempt, invoke = job.attempt(op.seen), job.invoke(op)
    try:
        with _Inside(job, attempt, invoke.ends):
            made = job.call_work()
            value = await (made if invoke.limit_s is None else awaited(attempt.step, invoke, made))
    except BaseException as error:  # noqa: BLE001 - it travels as a value, and is raised at the end
        if attempt.mark is not None:
            await _undone_awaited(attempt.mark, error)
        job.last = job.done(attempt, None, error)
        return job.last  # type: ignore[no-any-return]
    return job.done(attempt, value, None)


async def _finish_awaited(job: Job, op: Finish) -> Finished:
    if not op.mark.awaits:
        return _finish(job, op)
    try:
        await asked_awaited(job.finish(op))
    except BaseException as error:  # noqa: BLE001 - as for the work itself
        job.last = _finished(job, op.mark, error)
        return job.last  # type: ignore[no-any-return]
    return Finished(None)


async def _undone_awaited(mark: Mark, error: BaseException) -> None:
    """Roll back what a task has left, also one that was cancelled; a coroutine that is closed cannot."""
    if not mark.awaits:
        asked(mark.undo())
    elif not isinstance(error, GeneratorExit):
        trio = clocks.in_trio()
        if trio is None:
            await asked_awaited(mark.undo())
        else:
            with trio.CancelScope(shield=True):
                await asked_awaited(mark.undo())


async def _ask_awaited(job: Job, op: Ask) -> Answer:
    if job.cut is not None:
        return Answer("unknown")
    try:
        with _Inside(job, job.attempt(op.seen, asks=True), ENDS.get()):
            found = job.call_reconcile()
            return _answer(job, await found if hasattr(type(found), "__await__") else found)
    except BaseException as error:  # noqa: BLE001 - it knows nothing
        job.last = _no_answer(job, error)
        return job.last  # type: ignore[no-any-return]


async def _sleep_awaited(job: Job, op: Sleep) -> None:
    if job.cut is not None:
        raise job.cut
    await clocks.current.pause(op.seconds)


async def _watch_awaited(job: Job, op: Watch) -> None:
    if job.cut is not None:
        raise job.cut
    for pause in _looks(job, op):
        await _REAL.pause(pause)


async def _in_thread(work: Callable[..., Any], *told: Any) -> Any:
    """Let a thread wait for the disk or the network, on asyncio or trio."""
    trio = clocks.in_trio()
    if trio is not None:
        return await trio.to_thread.run_sync(work, *told)
    return await sys.modules["asyncio"].to_thread(work, *told)


async def _check_awaited(job: Job, op: Check) -> Found:
    return job.check(op) if job.cut is not None else await _in_thread(job.check, op)


async def _spill_awaited(job: Job, op: Spill) -> tuple[str, Kept] | None:
    try:
        return await _in_thread(job.spill, op)  # type: ignore[no-any-return]
    except BaseException as error:  # noqa: BLE001 - as in `_spill`
        job.cut = error
        return None


async def _fetch_awaited(job: Job, op: Fetch) -> Any:
    return job.fetch(op) if job.cut is not None else await _in_thread(job.fetch, op)


_REAL = clocks.Clock()

_QUICK: dict[type, Callable[[Job, Any], Any]] = {
    Load: Job.load,
    Begin: Job.begin, Offer: Job.offer, Now: Job.now, Holder: Job.holder, Read: Job.read, Tell: Job.tell,
}  # fmt: skip
_BLOCKING: dict[type, Callable[[Job, Any], Any]] = {
    Save: _save, Work: _work, Ask: _ask, Sleep: _sleep, Watch: _watch, Finish: _finish,
    Check: Job.check, Spill: _spill, Fetch: Job.fetch,
}  # fmt: skip
_AWAITING: dict[type, Callable[[Job, Any], Coroutine[Any, Any, Any]]] = {
    Save: _save_awaited, Work: _work_awaited, Ask: _ask_awaited, Sleep: _sleep_awaited, Watch: _watch_awaited,
    Check: _check_awaited, Spill: _spill_awaited, Fetch: _fetch_awaited, Finish: _finish_awaited,
}  # fmt: skip
