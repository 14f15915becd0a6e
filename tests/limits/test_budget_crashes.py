"""A run that pays for its retries, crashed before and after every operation, and again in the recovery.

After every crash: each decision to retry has taken its token, and no token was taken for anything else.
"""

from __future__ import annotations

import pytest

import oncemore
from oncemore.errors import StepFailed
from oncemore.limits.breaker import run_limit_script
from oncemore.limits.concurrency import update_quota
from oncemore.log.entry_codec import decode_body, decode_head, decode_header
from oncemore.log.record import QuotaRecord, RunRecord, apply_header
from oncemore.retries.loop import EMPTY
from oncemore.steps import ops
from oncemore.steps.plan import StepBudget
from tests.crash.harness import EVERYWHERE, crash_everywhere
from tests.crash.simulation import POLICY, StepSimulation
from tests.limits.test_breaker_crashes import RECOVERY, start_failure

BUDGET = "quota/p"


class BudgetSimulation(StepSimulation):
    """A step that pays for its retries; another caller earns a token at every third wait."""

    def __init__(self, outcomes: list[str], capacity: float, at_empty: str) -> None:
        self.budget = oncemore.Budget(capacity, 0, at_empty=at_empty, name="p", shared=True)
        super().__init__("idempotent", outcomes, budget=StepBudget(BUDGET, self.budget))
        self.earned_tokens = self.waits = 0

    def pass_time(self, seconds: float) -> None:
        super().pass_time(seconds)
        self.waits += 1
        if self.waits % 3 == 0:

            def earn_token(found: QuotaRecord, now: float) -> tuple[QuotaRecord, float]:
                had = found.tokens if found.capacity else self.budget.capacity
                tokens = min(self.budget.capacity, had + 1)
                return found._replace(capacity=self.budget.capacity, tokens=tokens), tokens - had

            self.earned_tokens += run_limit_script(update_quota(self.engine, "p", earn_token))

    def check_log(self) -> RunRecord | None:
        """Check that each decision to retry has taken one token, and nothing else has taken any."""
        run = super().check_log()
        paid, last = 0, None
        for entry in self.store.read_entries(self.entity):
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
            else self.budget.capacity + self.earned_tokens - decode_head(head.head, QuotaRecord).tokens
        )
        assert taken == paid
        return run


SCENARIOS = {
    "succeeds": (["ok"], 2, "fail", "COMPLETE", ""),
    "one retry": (["transient", "ok"], 2, "fail", "COMPLETE", ""),
    "always fails": (["transient"], 2, "fail", "HARD_FAIL", "max_attempts_exceeded"),
    "runs out": (["transient"], 1, "fail", "HARD_FAIL", EMPTY),
    "is deferred": (["transient", "transient", "ok"], 1, "park", "COMPLETE", ""),
    "waits": (["transient", "transient", "ok"], 1, "wait", "COMPLETE", ""),
}


@pytest.mark.torture
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_token_is_taken_once_and_for_a_retry_at_every_crash(name: str) -> None:
    outcomes, capacity, at_empty, _, _ = SCENARIOS[name]
    crashes = 0
    for simulation in crash_everywhere(
        lambda: BudgetSimulation(list(outcomes), capacity, at_empty),
        BudgetSimulation.run_to_end,
        (EVERYWHERE, RECOVERY),
        after_crash=BudgetSimulation.check_log,
    ):
        crashes += 1
        end = simulation.run_to_end()
        run = simulation.check_log()
        assert run is not None
        assert run.state in ("COMPLETE", "HARD_FAIL") or run.held_for
        assert end.value == "value" or isinstance(end.error, StepFailed) or run.held_for
    assert crashes > 10


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_without_crashes_ends_as_listed(name: str) -> None:
    outcomes, capacity, at_empty, state, reason = SCENARIOS[name]
    simulation = BudgetSimulation(list(outcomes), capacity, at_empty)
    simulation.run_to_end()
    run = simulation.check_log()
    assert run is not None
    assert (run.state, run.reason) == (state, reason)
    assert run.attempt_count <= POLICY.max_attempts


def test_a_retry_that_lost_the_race_for_the_budget_reads_again_and_takes_its_own_token() -> None:
    simulation = BudgetSimulation(["transient"], 2, "fail")
    process = start_failure(simulation)
    take_one = lambda found, now: (found._replace(capacity=2, tokens=1), 1)  # noqa: E731
    assert run_limit_script(update_quota(simulation.engine, "p", take_one)) == 1
    assert simulation.perform(process.op) is None  # nothing of it is written
    process.resume(None)
    retried = process.run_until(ops.AppendChange)
    assert retried.also[0][1].after.tokens == 0
    assert simulation.perform(retried) is not None
