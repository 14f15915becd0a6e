"""A run that pays for its retries, killed before and after every operation, and again in what comes after.

Whatever dies where: each decision to try again has taken its token, and no token was taken for anything else.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

import oncemore
from oncemore.errors import Deferred, StepFailed
from oncemore.limits import budget_step
from oncemore.limits.breaker import run_limit_script
from oncemore.limits.concurrency import update_quota
from oncemore.log.entry_codec import decode_body, decode_head, decode_header
from oncemore.log.head_access import build_write
from oncemore.log.record import QuotaRecord, RunRecord, apply_header
from oncemore.log.store import Batch, Stored
from oncemore.retries.loop import EMPTY
from oncemore.steps import flow, ops
from tests.crash.world import ENTITY, POLICY, Crash, World
from tests.limits.test_crashes import AT_LENGTH, seen_of

BUDGET = "quota/p"


class Paying(World):
    """A world whose one step pays for its retries; somebody else earns a token now and then."""

    def __init__(self, turns: list[str], capacity: float, at_empty: str) -> None:
        super().__init__("idempotent", turns)
        self.budget = oncemore.Budget(capacity, 0, at_empty=at_empty, name="p", shared=True)
        self.given = self.waits = 0
        self.pockets = budget_step.UnsavedEarnings()

    @property
    def engine(self) -> Any:
        return SimpleNamespace(
            store=self.store, cipher=None, unsaved_earnings=self.pockets, now=lambda: self.now
        )

    def plan(self) -> ops.StepPlan:
        return super().plan().copy_with(purse=ops.StepBudget(BUDGET, self.budget))

    def _load_head(self, op: ops.LoadHead) -> ops.LoadedHead:
        return seen_of(self, op.entity, RunRecord)

    def _draw_budget(self, op: ops.DrawBudget) -> ops.BudgetDraw:
        return budget_step.draw_budget(self.engine, op)

    def _refund_budget(self, op: ops.RefundBudget) -> None:
        budget_step.refund_budget(self.engine, op)

    def _earn_budget(self, op: ops.EarnBudget) -> None:
        run_limit_script(budget_step.earn_budget(self.engine, op.purse))

    def _append_change(self, op: ops.AppendChange) -> ops.LoadedHead | None:
        pairs = [(op.seen, op.change), *op.also]
        writes = [
            build_write(seen.entity, seen.version, seen.hash, change, self.now) for seen, change in pairs
        ]
        answer = self.store.append(Batch(tuple(writes), op.guards)).wait()
        return self.seen() if isinstance(answer, Stored) else None

    def _sleep_seconds(self, op: ops.SleepSeconds) -> None:
        super()._sleep_seconds(op)
        self.somebody_earns()

    def somebody_earns(self) -> None:
        """Let every third wait bring a token."""
        self.waits += 1
        if self.waits % 3 == 0:

            def turn(found: QuotaRecord, now: float) -> tuple[QuotaRecord, float]:
                had = found.tokens if found.capacity else self.budget.capacity
                tokens = min(self.budget.capacity, had + 1)
                return found._replace(capacity=self.budget.capacity, tokens=tokens), tokens - had

            self.given += run_limit_script(update_quota(self.engine, "p", turn))

    def check(self) -> RunRecord | None:
        """Hold the budget to what the run says: a token for each decision to try again, none for else."""
        run = super().check()
        paid, last = 0, None
        for entry in self.store.read_entries(ENTITY):
            header, before = decode_header(entry.header), last
            last = apply_header(last, header.sets)
            decided = "DECISION" in header.marks and last.reason == "retry"
            settled = (
                header.marks == ("QUOTA",)
                and before is not None
                and before.budget_debt
                and not last.budget_debt
            )
            paid += decided or bool(settled)
            if "INTENT" in header.marks:
                assert not last.budget_debt
                assert before is None or not before.budget_debt, "an attempt began that was not paid for"
            if "DECISION" in header.marks and entry.body is not None:
                tokens = decode_body(entry.body)["proof"]["inputs"]["tokens"]
                assert tokens is None or decided == (tokens >= 1)
        head = self.store.load_head(BUDGET)
        taken = (
            0.0
            if head is None
            else self.budget.capacity + self.given - decode_head(head.head, QuotaRecord).tokens
        )
        assert taken == paid
        return run

    def to_the_end(self) -> ops.EndCall:
        for _ in range(30):
            end, _ = self.drive()
            self.check()
            if not isinstance(end.error, Deferred):
                return end
            self.now = end.error.until
            self.somebody_earns()
        raise AssertionError("it does not end")


SCENARIOS = {
    "well": (["ok"], 2, "fail", "COMPLETE", ""),
    "one retry": (["transient", "ok"], 2, "fail", "COMPLETE", ""),
    "fails to the end": (["transient"], 2, "fail", "HARD_FAIL", "max_attempts_exceeded"),
    "runs out": (["transient"], 1, "fail", "HARD_FAIL", EMPTY),
    "is parked": (["transient", "transient", "ok"], 1, "park", "COMPLETE", ""),
    "waits": (["transient", "transient", "ok"], 1, "wait", "COMPLETE", ""),
}


@pytest.mark.torture
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_token_is_taken_once_and_for_something_wherever_it_dies(name: str) -> None:
    turns, capacity, at_empty, _, _ = SCENARIOS[name]
    worlds = 0
    for first, when in itertools.product(range(1, 60), ("before", "after")):
        reached = False
        for second in range(25) if AT_LENGTH else (0, 1, 2, 3, 5, 8, 13):
            world = Paying(list(turns), capacity, at_empty)
            reached = _dies(world, (first, when))
            again = second == 0 or not reached or _dies(world, (second, "after"))
            worlds += 1
            world.check()
            end = world.to_the_end()
            run = world.check()
            assert run is not None
            assert run.state in ("COMPLETE", "HARD_FAIL") or run.held_for
            assert end.value == "value" or isinstance(end.error, StepFailed) or run.held_for
            if not reached or not again:
                break
        if not reached:
            break
    assert worlds > 10


def _dies(world: Paying, at: tuple[int, str]) -> bool:
    """Let calls be made, at the times that they are told, until one dies; say whether one did."""
    left, when = at
    for _ in range(10):
        try:
            end, count = world.drive((left, when))
        except Crash:
            return True
        left -= count
        if left <= 0 or not isinstance(end.error, Deferred):
            return False
        world.now = end.error.until
        world.somebody_earns()
    return False


@pytest.mark.parametrize("name", SCENARIOS)
def test_without_a_crash_it_ends_as_it_should(name: str) -> None:
    turns, capacity, at_empty, state, reason = SCENARIOS[name]
    world = Paying(list(turns), capacity, at_empty)
    world.to_the_end()
    run = world.check()
    assert run is not None
    assert (run.state, run.reason) == (state, reason)
    assert run.attempt_count <= POLICY.max_attempts


def test_who_is_second_at_the_budget_reads_again_and_takes_its_own_token() -> None:
    world = Paying(["transient"], 2, "fail")
    script = flow.run_step(world.plan(), world.call())
    op = world.advance(script, next(script), ops.AppendChange)  # the claim
    op = script.send(world.do(op))
    op = world.advance(script, op, ops.AppendChange)  # the failure, with its token
    assert op.also
    others = lambda found, now: (found._replace(capacity=2, tokens=1), 1)  # noqa: E731
    assert run_limit_script(update_quota(world.engine, "p", others)) == 1
    assert world.do(op) is None  # nothing of it is written
    op = world.advance(script, script.send(None), ops.AppendChange)
    assert op.also[0][1].after.tokens == 0
    assert world.do(op) is not None
