"""Limits that are broken on purpose: the simulation must find each of the bugs, and nothing else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.limits import breaker_rules, breaker_step, budget_step
from oncemore.limits.breaker import run_limit_script
from oncemore.limits.concurrency import update_quota
from oncemore.log.entry_codec import load_head
from oncemore.log.record import QuotaRecord, RecordChange
from oncemore.steps import existing_run
from tests.limits.simulation import BUDGET, LimitSimulation, Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.steps.ops import AppendChange, BudgetDraw

    Bug = Callable[[pytest.MonkeyPatch], None]

MOST_SEEDS, SEEDS_WITHOUT_BUG = 500, 5_000 if os.environ.get("ONCEMORE_TORTURE") else 80
BUGS: dict[str, Bug] = {}


def bug(function: Bug) -> Bug:
    BUGS[function.__name__.replace("_", " ")] = function
    return function


@bug
def a_claim_has_no_guard(patch: pytest.MonkeyPatch) -> None:
    claim = breaker_step.BreakerPass.build_claim

    def unguarded(
        self: Any, seen: Any, change: RecordChange, now: float, guards: Any, *, late: bool
    ) -> AppendChange:
        return claim(self, seen, change, now, guards, late=late)._replace(guards=guards)

    patch.setattr(breaker_step.BreakerPass, "build_claim", unguarded)


@bug
def a_probe_has_no_holder(patch: pytest.MonkeyPatch) -> None:
    ask = breaker_rules.decide_admission
    patch.setattr(
        breaker_step.core, "decide_admission", lambda circuit, now, held=True: ask(circuit, now, held=False)
    )


@bug
def a_probe_is_not_written_with_the_claim(patch: pytest.MonkeyPatch) -> None:
    claim = breaker_step.BreakerPass.build_claim

    def bare(
        self: Any, seen: Any, change: RecordChange, now: float, guards: Any, *, late: bool
    ) -> AppendChange:
        return claim(self, seen, change, now, guards, late=late)._replace(also=())

    patch.setattr(breaker_step.BreakerPass, "build_claim", bare)


@bug
def a_late_success_closes_an_open_breaker(patch: pytest.MonkeyPatch) -> None:
    def closes(rules: Any, circuit: Any, now: float, turn: int = 0, calls: int = 1) -> Any:
        return (
            breaker_rules.after_reset(rules, circuit, now)
            if circuit.state != "CLOSED" or circuit.failures
            else circuit
        )

    patch.setattr(breaker_step.core, "after_success", closes)


@bug
def a_token_is_taken_twice_after_a_conflict(patch: pytest.MonkeyPatch) -> None:
    def keeps(paid: Any) -> Any:
        yield from ()

    patch.setattr(budget_step, "refund_payment", keeps)


@bug
def a_token_is_taken_before_the_decision_is_written(patch: pytest.MonkeyPatch) -> None:
    drawn = budget_step.draw_budget

    def early(engine: Any, op: Any) -> BudgetDraw:
        found = drawn(engine, op)
        if found.head is not None and found.tokens >= op.cost:
            left = found.tokens - op.cost
            script = update_quota(
                engine,
                "p",
                lambda at, now: (at._replace(capacity=op.budget.budget.capacity, tokens=left), None),
            )
            run_limit_script(script)
            found = found._replace(head=load_head(engine.store, BUDGET, None, QuotaRecord))
        return found

    patch.setattr(budget_step, "draw_budget", early)


@bug
def two_take_the_same_token(patch: pytest.MonkeyPatch) -> None:
    """The budget overwrites what other workers have written since it was read."""
    save = LimitSimulation._append_change

    def over(self: Any, op: AppendChange) -> Any:
        also = tuple(
            (load_head(self.store, seen.entity, None, type(change.after)), change)
            if seen.entity == BUDGET else (seen, change)
            for seen, change in op.also
        )  # fmt: skip
        return save(self, op._replace(also=also))

    patch.setattr(LimitSimulation, "_append_change", over)


@bug
def a_retry_is_not_paid_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(budget_step, "PAYS", ())


@bug
def a_debt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def forgets(plan: Any, seen: Any, now: float) -> Any:
        yield from ()
        return seen

    patch.setattr(existing_run, "_pay_for_retry", forgets)


def run_until_violation(seeds: int) -> tuple[int, str]:
    """Return the number of schedules up to the first violation, and its message."""
    for seed in range(seeds):
        try:
            LimitSimulation(seed).run()
        except Violation as found:
            return seed + 1, str(found)
    return 0, ""


@pytest.mark.parametrize("name", BUGS)
def test_each_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    seeds, found = run_until_violation(MOST_SEEDS)
    print(f"{seeds} seeds: {found}")
    assert seeds, f"no schedule noticed that {name}"


@pytest.mark.torture
def test_no_violation_without_a_bug() -> None:
    assert run_until_violation(SEEDS_WITHOUT_BUG) == (0, "")
