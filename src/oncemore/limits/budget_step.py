"""The retry budget of durable steps, in this process or in a shared store.

A decision to retry takes a token. For a budget in the store, the token and the decision are one write, so a
crash leaves both or neither. Without a token the run fails, or waits with a debt that it pays before its
next attempt, again in one write.

A success earns a fraction of a token. The process collects these fractions in memory and stores them when
they are worth a write; nothing is written to a full budget. A process that dies loses its unsaved earnings:
there may be fewer retries than the budget allows, never more.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.errors import StoreError, log_warning
from oncemore.limits.concurrency import PREFIX, update_quota
from oncemore.log.entry_codec import load_head
from oncemore.log.record import QuotaRecord, RecordChange
from oncemore.policy.decide import decide_retry
from oncemore.retries.loop import EMPTY, MOST_WAITS
from oncemore.steps.ops import BudgetDraw, DrawBudget, RefundBudget

if TYPE_CHECKING:
    from collections.abc import Generator

    from oncemore.log.record import LoadedHead
    from oncemore.policy.decide import Decision
    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script
    from oncemore.steps.plan import StepBudget, StepPlan

#: Reasons of decisions that lead to a retry, and therefore cost tokens.
PAYS = ("retry", "retry_after_beyond_cap")
#: Decimal places of a token count: ten times 0.1 must be one whole token.
DIGITS = 9


class BudgetPayment(NamedTuple):
    """The effect of the cost of a retry on the run.

    decision     the decision, with the number of tokens among its inputs
    also         the change of the budget, to be written with the run
    budget_debt  tokens to pay before the next attempt; 0 if it is paid for
    taken        the withdrawal, to be refunded if nothing is written
    until        the time to ask again
    over         whether the run has waited long enough and fails
    """

    # A Decision; None for a debt, whose decision was made with an earlier attempt.
    decision: Any
    also: tuple[tuple[LoadedHead, RecordChange], ...] = ()
    budget_debt: float = 0.0
    taken: RefundBudget | None = None
    until: float = 0.0
    over: bool = False


def pay_for_retry(plan: StepPlan, entity: str, decision: Decision) -> Script:
    """Take the tokens of a retry from the budget; return the payment with the decision."""
    policy, situation = decision.policy, decision.situation
    budget, cost = plan.budget, policy.retry_cost
    assert budget is not None
    if decision.reason not in PAYS:
        return BudgetPayment(decision)
    draw = yield DrawBudget(budget, cost)
    # The number of tokens is an input of the decision, so that a replay of the log decides the same.
    situation = situation._replace(budget_tokens=draw.tokens)
    if draw.tokens >= cost:
        return BudgetPayment(
            decide_retry(policy, situation), *_build_budget_write(budget, entity, draw, cost)
        )
    if budget.budget.at_empty == "fail":
        return BudgetPayment(decide_retry(policy, situation))
    until = _wait_until(policy, situation.now, situation.deadline)
    return BudgetPayment(
        decide_retry(policy, situation._replace(hold_until=until, hold_reason=EMPTY)), budget_debt=cost
    )


def pay_debt(plan: StepPlan, head: LoadedHead, now: float) -> Script:
    """Take the debt of a run from the budget before its next attempt, or return when to ask again."""
    run, policy, budget = head.record, plan.policy, plan.budget
    assert budget is not None
    draw = yield DrawBudget(budget, run.budget_debt)
    if draw.tokens >= run.budget_debt:
        return BudgetPayment(
            None, *_build_budget_write(budget, head.entity, draw, run.budget_debt), until=run.not_before
        )
    has_waited_long = now - run.started_at >= MOST_WAITS * token_delay(policy)
    # The option may have changed to "fail" since the run began to wait.
    over = has_waited_long or budget.budget.at_empty == "fail"
    return BudgetPayment(
        None, budget_debt=run.budget_debt, until=_wait_until(policy, now, run.deadline), over=over
    )


def budget_body(plan: StepPlan, last: dict[str, Any]) -> dict[str, Any]:
    """Return the entry body of a run that pays or waits for a token, with its last error."""
    assert plan.budget is not None
    name = plan.budget.entity.removeprefix(PREFIX) or plan.name
    return {"budget": name, "last_error": last.get("error") or last.get("last_error") or {}}


def refund_payment(payment: BudgetPayment | None) -> Script:
    """Refund tokens that were taken for a change that was not written."""
    if payment is not None and payment.taken is not None:
        yield payment.taken


def token_delay(policy: Policy) -> float:
    """Return the seconds after which to ask for a token again, the same as in `retry`."""
    return policy.max_delay_s or 1.0


def _wait_until(policy: Policy, now: float, deadline: float | None) -> float:
    return min(now + token_delay(policy), deadline) if deadline else now + token_delay(policy)


def _build_budget_write(
    budget: StepBudget, entity: str, draw: BudgetDraw, cost: float
) -> tuple[Any, float, RefundBudget]:
    """Return the change of the budget, a debt of 0, and the refund that undoes the withdrawal."""
    refund = RefundBudget(budget, draw, cost)
    if draw.head is None:
        # A budget in memory has given the tokens away already: nothing to write.
        return (), 0.0, refund
    quota: QuotaRecord = draw.head.record or QuotaRecord(name=budget.entity.removeprefix(PREFIX))
    left = round(draw.tokens - cost, DIGITS)
    after = quota._replace(capacity=budget.budget.capacity, tokens=left)
    body = {"run": entity, "had": draw.tokens, "cost": cost}
    return ((draw.head, RecordChange(("QUOTA",), draw.head.record, after, body)),), 0.0, refund


# For the drivers ------------------------------------------------------------------------------------


class UnsavedEarnings:
    """Tokens that this process has earned and not yet stored, by budget entity."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._earned: dict[str, float] = {}

    def add_earnings(self, entity: str, amount: float) -> float:
        """Add tokens to the earnings for a budget; return the sum."""
        with self._lock:
            total = self._earned[entity] = round(self._earned.get(entity, 0.0) + amount, DIGITS)
            return total

    def take_earnings(self, entity: str, least: float = 0.0) -> float:
        """Remove and return all earnings for a budget; 0 if they are less than `least`."""
        with self._lock:
            earned = self._earned.get(entity, 0.0)
            return self._earned.pop(entity, 0.0) if earned >= least else 0.0


def draw_budget(engine: Engine, op: DrawBudget) -> BudgetDraw:
    """Return the tokens of a budget.

    A budget in memory gives the tokens away at once, if it has enough. A budget in the store is only read;
    the unsaved earnings of this process are added and used up.
    """
    entity, budget = op.budget.entity, op.budget.budget
    if not entity:
        return BudgetDraw(budget.draw_tokens(op.cost))
    head = load_head(engine.store, entity, engine.cipher, QuotaRecord)
    quota = head.record
    # A record without a capacity belongs to a rate or concurrency limit of that name: no token is taken yet.
    tokens = budget.capacity if quota is None or not quota.capacity else min(quota.tokens, budget.capacity)
    # Earnings that would not make the withdrawal possible stay unsaved: they are not worth a write.
    earned = engine.unsaved_earnings.take_earnings(entity, max(0.0, round(op.cost - tokens, DIGITS)))
    return BudgetDraw(min(budget.capacity, round(tokens + earned, DIGITS)), head, earned)


def refund_budget(engine: Engine, op: RefundBudget) -> None:
    """Refund tokens whose withdrawal was not written."""
    if not op.budget.entity:
        op.budget.budget.return_tokens(op.cost)
    elif op.drawn.earned:
        engine.unsaved_earnings.add_earnings(op.budget.entity, op.drawn.earned)


def earn_budget(engine: Engine, step_budget: StepBudget) -> Generator[Any, Any, None]:
    """Add the tokens of one success; write them to the store in batches, up to the capacity."""
    budget, entity = step_budget.budget, step_budget.entity
    if not entity:
        return budget.earn_tokens()
    # One write per success would make each successful call slower.
    batch = min(budget.capacity, max(1.0, budget.capacity / 10))
    if engine.unsaved_earnings.add_earnings(entity, budget.per_success) < batch:
        return None
    amount = engine.unsaved_earnings.take_earnings(entity)

    def turn(quota: QuotaRecord, now: float) -> tuple[QuotaRecord, None]:
        # Without a capacity no token was ever taken: the budget is full.
        if not quota.capacity:
            return quota, None
        tokens = min(budget.capacity, round(quota.tokens + amount, DIGITS))
        return (quota if tokens <= quota.tokens else quota._replace(tokens=tokens)), None

    try:
        yield from update_quota(engine, entity.removeprefix(PREFIX), turn)
    except StoreError as error:
        # Only earnings are lost: later there are fewer retries, not more.
        log_warning(
            f"budget {entity.removeprefix(PREFIX)}: earned tokens were not written to the store: {error}"
        )
    return None
