"""A world in which a call asks for something: the flow of `tests.crash`, and the record written with it."""

from __future__ import annotations

from typing import Any

from oncemore.limits.cooldown_rules import CooldownSchedule, ResourceRecord
from oncemore.limits.cooldown_step import CooldownCall, with_cooldown
from oncemore.log.head_access import build_write, load_head
from oncemore.log.store import Batch, Stored
from oncemore.policy.model import Failure
from oncemore.steps import flow, ops
from tests.crash.world import ENTITY, KINDS, Crash, Permanent, Transient, World

COOLING = CooldownCall("p", "step", "A", CooldownSchedule(), lambda error: error.get("type", ""))
BOOK = COOLING.entity


class Review(Exception):
    """A person has to look."""


class Later(Exception):
    """Wants to be left alone for longer than the policy waits."""


KINDS[Review] = Failure("permanent", "maybe", None, "DOUBT", "oncemore:NeedsReview")
KINDS[Later] = Failure("throttled", "maybe", 5000.0, "HTTP_429", "test")
TURNS = {"review": Review, "deferred": Later, "transient": Transient, "permanent": Permanent}


class Room(World):
    """A store, a run and its resource; who dies, dies before or after an operation."""

    def __init__(self, turns: list[str], entity: str = ENTITY, beside: Room | None = None) -> None:
        super().__init__("idempotent", turns)
        self.entity = entity
        if beside is not None:
            self.store = beside.store

    def call(self) -> ops.CallIdentity:
        return super().call()._replace(entity=self.entity)

    def seen(self) -> ops.LoadedHead:
        return load_head(self.store, self.entity)

    def plan(self) -> ops.StepPlan:
        return super().plan().copy_with(after_failure="new_run", inline_wait_s=1000.0)

    def script(self) -> Any:
        return with_cooldown(COOLING, self.call(), flow.run_step(self.plan(), self.call()))

    def drive(self, crash_at: tuple[int, str] | None = None) -> tuple[ops.EndCall, int]:
        script = self.script()
        op, count = next(script), 0
        while type(op) is not ops.EndCall:
            count += 1
            if crash_at == (count, "before"):
                self._die()
            answer = self.do(op)
            self.atomic()
            if crash_at == (count, "after"):
                self._die()
            op = script.send(answer)
            assert count < 200
        self.alive.discard(self.me)
        assert next(script, None) is None
        return op, count

    def _load_head(self, op: ops.LoadHead) -> ops.LoadedHead:
        return self.book() if op.entity == BOOK else self.seen()

    def book(self) -> ops.LoadedHead:
        return load_head(self.store, BOOK, None, ResourceRecord)

    def _append_change(self, op: ops.AppendChange) -> ops.LoadedHead | None:
        rows = [(op.seen, op.change), *op.also]
        writes = [build_write(seen.entity, seen.version, seen.hash, to, self.now) for seen, to in rows]
        answer = self.store.append(Batch(tuple(writes), op.guards)).wait()
        return self.seen() if isinstance(answer, Stored) else None

    def _run_attempt(self, op: ops.RunAttempt) -> ops.AttemptOutcome:
        turn = self.turns[min(self.executions, len(self.turns) - 1)]
        self.executions += 1
        return (
            ops.AttemptOutcome(op.seen, "value")
            if turn == "ok"
            else ops.AttemptOutcome(op.seen, None, TURNS[turn](turn))
        )

    def atomic(self) -> None:
        """The record knows of an execution if and only if its run says that it is over."""
        run, book = self.seen().record, self.book().record
        over = run is not None and run.attempt_count and (
            run.state in ("COMPLETE", "HARD_FAIL") or run.held_for or run.reason == "retry_after_beyond_cap"
        )  # fmt: skip
        known = (
            book is not None
            and run is not None
            and (book.run_entity, book.attempt) == (self.entity, run.attempt)
        )
        assert bool(over) == known, (run, book)


__all__ = ["BOOK", "COOLING", "Crash", "Room"]
