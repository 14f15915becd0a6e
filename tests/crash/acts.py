"""A world for every flow: what people and callers do, killed anywhere, judged as the simulation is judged.

An *act* is what one process does: a call, a decision about a run, or several of them. Work is taken apart
here, so that a process can also die between a checkpoint, an event and the effect inside of it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from oncemore.errors import LeaseLost
from oncemore.log.entry_codec import encode_entry
from oncemore.log.head_index import run_due_at
from oncemore.log.record import NOWHERE, EventRecord, RecordChange
from oncemore.log.store import Batch, Conflict, EntryWrite, HeadIndex, Stored
from oncemore.steps import flow, operator_flow, ops
from tests.crash.world import ENTITY, Crash, Permanent, Refused, Transient, World
from tests.sim.judge import Book, Judge

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oncemore.log.record import RunRecord

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
        self,
        effect: str,
        turns: list[str],
        *,
        asks: bool = False,
        checks_guards_late: bool = False,
        **plan: Any,
    ) -> None:
        super().__init__(effect, turns, asks=asks, checks_guards_late=checks_guards_late)
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

    def plan(self) -> ops.StepPlan:
        return (
            super()
            .plan()
            .copy_with(
                **{"encode": lambda value: {"it": value}, "decode": lambda kept: kept["it"], **self.changes}
            )
        )

    # Acts -------------------------------------------------------------------------------------------

    def calling(self, **call: Any) -> Script:
        return self.played("call", lambda plan, made: flow.run_step(plan, made), **call)

    def reopening(self) -> Script:
        return self.played(
            "rerun", lambda plan, made: operator_flow.reopen_run(plan, made, "because", "somebody")
        )

    def submitting(self, at: float = 0.0, **call: Any) -> Script:
        return self.played("submit", lambda plan, made: operator_flow.submit_run(plan, made, at), **call)

    def cancelling(self) -> Script:
        return self.played(
            "cancel", lambda plan, made: operator_flow.cancel_run(plan, made, "because", "somebody")
        )

    def settling(self) -> Script:
        """Somebody looks at the attempt that is held, and says what they found."""
        run = self.seen().record
        found = ops.ReconcileAnswer("not_applied")
        if run is not None and run.held_for and run.attempt in self.book.landed:
            found = ops.ReconcileAnswer("applied", f"value {run.attempt}")
        elif run is not None and run.held_for:
            self.judge.clear(self.book, run)
        return self.played("settle", lambda plan, made: operator_flow.settle_run(plan, made, found))

    def played(self, kind: str, scripted: Callable[..., Script], **call: Any) -> Script:
        """Run one script; yield before every operation, so that the process can die there."""
        made = self.call()._replace(**call)
        lane = self.lane = SimpleNamespace(
            call=made, kind=kind, life=self.book.life, cut=None, store_failed=False, other=False, fence=0,
            commit_version=False, asked_about=("", 0, 0.0, 0.0),
        )  # fmt: skip
        script = scripted(self.plan(), made)
        op = next(script)
        while type(op) is not ops.EndCall:
            yield op
            self.lane = lane
            answer = (yield from self.working(op)) if type(op) is ops.RunAttempt else self.do(op)
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

    def _read_lease(self, op: ops.ReadLease) -> float:
        until = super()._read_lease(op)
        self.lane.asked_about = (op.worker, op.fence, until, self.now)
        return until

    def _watch_entity(self, op: ops.WatchEntity) -> None:
        self.judge.watching(self.lane, op)
        super()._watch_entity(op)

    def _notify_listeners(self, op: ops.NotifyListeners) -> None:
        self.given[op.what] = op.seen.version

    def _append_change(self, op: ops.AppendChange) -> Any:
        writes = [self._write(op.seen.entity, op.seen.version, op.seen.hash, op.change)]
        for event, payload in op.events:
            sent = RecordChange(("EVENT",), None, event, {"payload": payload})
            writes.append(self._write(f"event/{event.event_id}", 0, NOWHERE, sent))
        batch = Batch(tuple(writes), op.guards, late=op.late and self.store.checks_guards_late)
        self.controls.drop_cached()
        answer = self.store.append(batch).wait()
        if isinstance(answer, Conflict) and answer.stored_seqs:
            self.judge.stored(self.lane, op, batch)
            self.judge.clear(self.book, op.change.after)
            self.voided += 1
            return ops.VoidClaim(self.seen())
        if not isinstance(answer, Stored):
            return None
        if op.beside is not None:
            op.beside(None)  # type: ignore[arg-type] # in one transaction with the rest
        self.judge.stored(self.lane, op, batch)
        self.lane.commit_version |= "COMMIT" in op.change.marks
        return self.seen()

    def _beside(self, attempt: int) -> Callable[[Any], None]:
        return lambda tx: self.happened.append(attempt)

    def _commit_transaction(self, op: ops.CommitTransaction) -> ops.TransactionOutcome:
        """Commit the user's transaction, if its fence is still the last one."""
        if op.mark != self.fence or self.applied_by is not None:
            return ops.TransactionOutcome(LeaseLost("another attempt took over"))
        self.happened.append(op.seen.record.attempt)
        self.applied_by = dict(op.body), op.events
        return ops.TransactionOutcome(None)

    def _write(self, entity: str, version: int, prev: bytes, change: RecordChange) -> EntryWrite:
        self.nonce += 1
        made = encode_entry(change, entity, version + 1, prev, self.now, self.nonce)
        run: Any = change.after
        by = HeadIndex("event") if type(run) is EventRecord else HeadIndex("run", run.state, run_due_at(run))
        return EntryWrite(entity, version, made.header, made.body, made.hash, made.head, by)

    def _ask_reconcile(self, op: ops.AskReconcile) -> ops.ReconcileAnswer:
        run: RunRecord = op.seen.record
        if self.patience:
            self.patience -= 1
            return ops.ReconcileAnswer("unknown")
        if run.attempt in self.book.landed:
            return ops.ReconcileAnswer("applied", f"value {run.attempt}")
        self.judge.clear(self.book, run)
        return ops.ReconcileAnswer("not_applied")

    def working(self, op: ops.RunAttempt) -> Generator[Any, Any, ops.AttemptOutcome]:
        """Be the work, line by line."""
        seen, run = op.seen, op.seen.record
        turn = self.turns[min(self.executions, len(self.turns) - 1)]
        if turn == "cut off":
            self.turns = self.turns[1:] or ["effect ok"]
            self.judge.clear(self.book, run)
            self.lane.cut = Cut()
            return ops.AttemptOutcome(seen, None, self.lane.cut, begun=False)
        self.judge.executing(self.lane, seen)
        self.executions += 1
        events: list[tuple[EventRecord, Any]] = []
        mark: Any = 0  # the fence stands for the mark of a transaction
        beside: Any = None
        for line in turn.split():
            if line == "checkpoint":
                if seen.record.checkpoint_version:
                    self.kept.append(
                        self._read_body(ops.ReadBody(ENTITY, seen.record.checkpoint_version))["checkpoint"]
                    )
                yield line
                after = seen.record._replace(checkpoint_version=seen.version + 1)
                told = {"checkpoint": run.attempt}
                saved = self._append_change(
                    ops.AppendChange(seen, RecordChange(("CHECKPOINT",), seen.record, after, told))
                )
                if saved is None:  # as the driver does it: the work is told, and goes on all the same
                    saved = self.seen()
                    assert (saved.record.state, saved.record.fence) == ("RUNNING", run.fence)
                    assert saved.record.cancelled_at
                seen = saved
            elif line == "event":
                letter = EventRecord(
                    "PENDING", "topic", f"{run.run_number}-{len(events)}", ENTITY, len(events)
                )
                self.judge.event(self.book, letter, run.run_number)
                events.append((letter, len(events)))
            elif line == "begin":
                yield line
                if self.applied_by is not None:
                    return ops.AttemptOutcome(seen, applied=self.applied_by)
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
                return ops.AttemptOutcome(seen, value, None, True, tuple(events), (), mark or None, beside)
            elif line == "cut":
                self.lane.cut = Cut()
                return ops.AttemptOutcome(seen, None, self.lane.cut)
            else:
                error = ERRORS[line](line)
                if line == "refused":
                    self.judge.clear(self.book, run)
                return ops.AttemptOutcome(seen, None, error)
        raise AssertionError(f"the turn {turn!r} has no end")
