"""A world for every flow: what people and callers do, killed anywhere, judged as the simulation is judged.

An *act* is what one process does: a call, a decision about a run, or several of them. Work is taken apart
here, so that a process can also die between a checkpoint, an event and the effect inside of it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from oncemore.errors import LeaseLost
from oncemore.log.entry_codec import written
from oncemore.log.record import NOWHERE, Change, Outgoing, due
from oncemore.log.store import Batch, Conflict, Index, Stored, Write
from oncemore.steps import flow, ops
from tests.crash.world import ENTITY, Crash, Permanent, Refused, Transient, World
from tests.sim.judge import Book, Judge

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oncemore.log.record import Run

    Script = Generator[Any, Any, Any]

ERRORS = {"transient": Transient, "permanent": Permanent, "refused": Refused}


class Cut(BaseException):
    """Ctrl-C, or a cancellation."""


class Stage(World):
    """A world in which acts are played.

    A turn of the work is a line of what happens in it, in order: `checkpoint`, `event`, `effect`, and last
    how it ends: `ok`, the name of an error, or `cut`; `cut off` is a cut before its first line.
    `begin` begins a transaction in the user's own database, `beside` writes in the store's.
    """

    def __init__(
        self, effect: str, turns: list[str], *, asks: bool = False, looks_late: bool = False, **plan: Any
    ) -> None:
        super().__init__(effect, turns, asks=asks, looks_late=looks_late)
        self.voided = 0  # claims that stood in the log while nothing might begin by them
        self.judge = Judge()
        self.book = self.judge.books[ENTITY] = Book(ENTITY, effect, fencing=False)
        self.changes = plan
        self.lane: Any = None
        self.patience = 0  # how often a reconcile function does not know
        self.kept: list[Any] = []  # what attempts found of earlier ones
        self.given: dict[str, Any] = {}
        self.fence = 0  # what the user's own database says: who may write,
        self.applied_by: Any = None  # and what was left by whoever has written

    def plan(self) -> ops.Plan:
        return (
            super()
            .plan()
            .replaced(
                **{"encode": lambda value: {"it": value}, "decode": lambda kept: kept["it"], **self.changes}
            )
        )

    # Acts -------------------------------------------------------------------------------------------

    def calling(self, **call: Any) -> Script:
        return self.played("call", lambda plan, made: flow.run_step(plan, made), **call)

    def reopening(self) -> Script:
        return self.played("rerun", lambda plan, made: flow.reopen(plan, made, "because", "somebody"))

    def submitting(self, at: float = 0.0, **call: Any) -> Script:
        return self.played("submit", lambda plan, made: flow.submit(plan, made, at), **call)

    def cancelling(self) -> Script:
        return self.played("cancel", lambda plan, made: flow.cancel(plan, made, "because", "somebody"))

    def settling(self) -> Script:
        """Somebody looks at the attempt that is held, and says what they found."""
        run = self.seen().run
        found = ops.Answer("not_applied")
        if run is not None and run.held_for and run.attempt in self.book.landed:
            found = ops.Answer("applied", f"value {run.attempt}")
        elif run is not None and run.held_for:
            self.judge.clear(self.book, run)
        return self.played("settle", lambda plan, made: flow.settle(plan, made, found))

    def played(self, kind: str, scripted: Callable[..., Script], **call: Any) -> Script:
        """Run one script; yield before every operation, so that the process can die there."""
        made = self.call()._replace(**call)
        lane = self.lane = SimpleNamespace(
            call=made, kind=kind, life=self.book.life, cut=None, store_failed=False, other=False, fence=0,
            committed=False, asked_about=("", 0, 0.0, 0.0),
        )  # fmt: skip
        script = scripted(self.plan(), made)
        op = next(script)
        while type(op) is not ops.End:
            yield op
            self.lane = lane
            answer = (yield from self.working(op)) if type(op) is ops.Work else self.do(op)
            op = script.send(answer)
        assert next(script, None) is None
        self.judge.ended(lane, op.value, op.error)
        return op.error if op.error is not None else op.value

    def play(self, *acts: Callable[[], Script], dies_at: int = 0) -> Any:
        """Play acts in one process up to the operation at which it dies; return the end of the last one."""
        count = 0
        for act in acts:
            script = act()
            try:
                while True:
                    next(script)
                    count += 1
                    if count == dies_at:
                        self._die()
            except StopIteration as end:
                ended = end.value
        self.alive.discard(self.me)
        self.length = count
        return ended

    def _die(self) -> None:
        self.alive.clear()
        raise Crash

    # Operations -------------------------------------------------------------------------------------

    def _holder(self, op: ops.Holder) -> float:
        until = super()._holder(op)
        self.lane.asked_about = (op.worker, op.fence, until, self.now)
        return until

    def _watch(self, op: ops.Watch) -> None:
        self.judge.watching(self.lane, op)
        super()._watch(op)

    def _tell(self, op: ops.Tell) -> None:
        self.given[op.what] = op.seen.version

    def _save(self, op: ops.Save) -> Any:
        writes = [self._write(op.seen.entity, op.seen.version, op.seen.hash, op.change)]
        for event, payload in op.events:
            sent = Change(("EVENT",), None, event, {"payload": payload})
            writes.append(self._write(f"event/{event.event_id}", 0, NOWHERE, sent))
        batch = Batch(tuple(writes), op.guards, late=op.late and self.store.looks_late)
        self.controls.forget()
        answer = self.store.append(batch).wait()
        if isinstance(answer, Conflict) and answer.stands:
            self.judge.stored(self.lane, op, batch)
            self.judge.clear(self.book, op.change.after)
            self.voided += 1
            return ops.Void(self.seen())
        if not isinstance(answer, Stored):
            return None
        if op.beside is not None:
            op.beside(None)  # type: ignore[arg-type] # in one transaction with the rest
        self.judge.stored(self.lane, op, batch)
        self.lane.committed |= "COMMIT" in op.change.marks
        return self.seen()

    def _beside(self, attempt: int) -> Callable[[Any], None]:
        return lambda tx: self.happened.append(attempt)

    def _finish(self, op: ops.Finish) -> ops.Finished:
        """Commit the user's transaction, if its fence is still the last one."""
        if op.mark != self.fence or self.applied_by is not None:
            return ops.Finished(LeaseLost("another attempt took over"))
        self.happened.append(op.seen.run.attempt)
        self.applied_by = dict(op.body), op.events
        return ops.Finished(None)

    def _write(self, entity: str, version: int, prev: bytes, change: Change) -> Write:
        self.nonce += 1
        made = written(change, entity, version + 1, prev, self.now, self.nonce)
        run: Any = change.after
        by = Index("event") if type(run) is Outgoing else Index("run", run.state, due(run))
        return Write(entity, version, made.header, made.body, made.hash, made.head, by)

    def _ask(self, op: ops.Ask) -> ops.Answer:
        run: Run = op.seen.run
        if self.patience:
            self.patience -= 1
            return ops.Answer("unknown")
        if run.attempt in self.book.landed:
            return ops.Answer("applied", f"value {run.attempt}")
        self.judge.clear(self.book, run)
        return ops.Answer("not_applied")

    def working(self, op: ops.Work) -> Generator[Any, Any, ops.Done]:
        """Be the work, line by line."""
        seen, run = op.seen, op.seen.run
        turn = self.turns[min(self.executions, len(self.turns) - 1)]
        if turn == "cut off":
            self.turns = self.turns[1:] or ["effect ok"]
            self.judge.clear(self.book, run)
            self.lane.cut = Cut()
            return ops.Done(seen, None, self.lane.cut, begun=False)
        self.judge.executing(self.lane, seen)
        self.executions += 1
        events: list[tuple[Outgoing, Any]] = []
        mark: Any = 0  # the fence stands for the mark of a transaction
        beside: Any = None
        for line in turn.split():
            if line == "checkpoint":
                if seen.run.checkpoint:
                    self.kept.append(self._read(ops.Read(ENTITY, seen.run.checkpoint))["checkpoint"])
                yield line
                after = seen.run._replace(checkpoint=seen.version + 1)
                told = {"checkpoint": run.attempt}
                saved = self._save(ops.Save(seen, Change(("CHECKPOINT",), seen.run, after, told)))
                if saved is None:  # as the driver does it: the work is told, and goes on all the same
                    saved = self.seen()
                    assert (saved.run.state, saved.run.fence) == ("RUNNING", run.fence)
                    assert saved.run.cancelled
                seen = saved
            elif line == "event":
                letter = Outgoing("PENDING", "topic", f"{run.runs}-{len(events)}", ENTITY, len(events))
                self.judge.event(self.book, letter, run.runs)
                events.append((letter, len(events)))
            elif line == "begin":
                yield line
                if self.applied_by is not None:
                    return ops.Done(seen, applied=self.applied_by)
                self.fence = mark = run.fence
            elif line == "beside":
                beside = self._beside(run.attempt)
            elif line == "effect":
                yield line
                if mark:
                    continue  # it happens when its transaction is committed
                self.happened.append(run.attempt)
                if self.effect == "once":
                    assert self.judge.lands(self.book, run.attempt, run.fence)
            elif line == "ok":
                value = f"value {run.attempt}"
                return ops.Done(seen, value, None, True, tuple(events), (), mark or None, beside)
            elif line == "cut":
                self.lane.cut = Cut()
                return ops.Done(seen, None, self.lane.cut)
            else:
                error = ERRORS[line](line)
                if line == "refused":
                    self.judge.clear(self.book, run)
                return ops.Done(seen, None, error)
        raise AssertionError(f"the turn {turn!r} has no end")
