"""SPENDING: what retries of durable steps cost, from a budget of this process or of all who share a store.

A decision to try again takes a token, and is one with it: where the budget is in the store, the token is in
the same write as the decision, so that a crash leaves both or neither. Who finds none fails, or owes it: a
run that owes waits, and pays before its next attempt, again in one write with the note that it has paid.

A success earns a part of a token. That is kept in the pocket of the process, and looked after when it is
worth it: into a budget that is full nothing is written. What a process that dies had in its pocket is lost:
there are never more retries than the budget says, only fewer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.errors import StoreError
from oncemore.limits.concurrency import PREFIX, changed
from oncemore.log.head_access import seen_in
from oncemore.log.record import Change, Quota
from oncemore.policy.decide import decide
from oncemore.retries.loop import EMPTY, MOST_WAITS
from oncemore.steps.ops import Draw, Drawn, Refund

if TYPE_CHECKING:
    from collections.abc import Generator

    from oncemore.policy.decide import Decision
    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Plan, Purse, Script, Seen

#: Decisions that have come past the question whether a retry can be afforded, and lead to one.
PAYS = ("retry", "retry_after_beyond_cap")
#: How exactly tokens are counted: ten tenths are one.
DIGITS = 9


class Paid(NamedTuple):
    """What a retry's price means for the run.

    decision  what follows, with the tokens that there were among its inputs
    also      the budget as it is then, to be written with the run
    owes      tokens that the next attempt costs; 0 where it is paid for
    taken     what was taken, and is given back if nothing is written
    until     when to ask again
    over      whether it has waited long enough
    """

    decision: Any  # a Decision; None where it was made before
    also: tuple[tuple[Seen, Change], ...] = ()
    owes: float = 0.0
    taken: Refund | None = None
    until: float = 0.0
    over: bool = False


def failed(plan: Plan, entity: str, decision: Decision) -> Script:
    """Take what a retry costs; return what is decided then."""
    policy, at = decision.policy, decision.situation
    purse, cost = plan.purse, policy.retry_cost
    assert purse is not None
    if decision.reason not in PAYS:
        return Paid(decision)
    drawn = yield Draw(purse, cost)
    at = at._replace(tokens=drawn.tokens)
    if drawn.tokens >= cost:
        return Paid(decide(policy, at), *_spent(purse, entity, drawn, cost))
    if purse.budget.at_empty == "fail":
        return Paid(decide(policy, at))
    until = _until(policy, at.now, at.deadline)
    return Paid(decide(policy, at._replace(hold_until=until, held_for=EMPTY)), owes=cost)


def owed(plan: Plan, seen: Seen, now: float) -> Script:
    """Take what a run owes before its next attempt; if it is not there, say until when it waits."""
    run, policy, purse = seen.run, plan.policy, plan.purse
    assert purse is not None
    drawn = yield Draw(purse, run.owes)
    if drawn.tokens >= run.owes:
        return Paid(None, *_spent(purse, seen.entity, drawn, run.owes), until=run.not_before)
    long = now - run.began >= MOST_WAITS * pause_of(policy)
    over = long or purse.budget.at_empty == "fail"
    return Paid(None, owes=run.owes, until=_until(policy, now, run.deadline), over=over)


def told(plan: Plan, last: dict[str, Any]) -> dict[str, Any]:
    """Return what the log says of a run that pays, or waits for a token: of what it failed last, too."""
    assert plan.purse is not None
    name = plan.purse.entity.removeprefix(PREFIX) or plan.name
    return {"budget": name, "last_error": last.get("error") or last.get("last_error") or {}}


def back(paid: Paid | None) -> Script:
    """Give back what was taken for something that was not written."""
    if paid is not None and paid.taken is not None:
        yield paid.taken


def pause_of(policy: Policy) -> float:
    """Return after how long a token may be expected, as `retry` does."""
    return policy.max_delay_s or 1.0


def _until(policy: Policy, now: float, deadline: float | None) -> float:
    return min(now + pause_of(policy), deadline) if deadline else now + pause_of(policy)


def _spent(purse: Purse, entity: str, drawn: Drawn, cost: float) -> tuple[Any, float, Refund]:
    """Return the entry of a budget that tokens are taken from, that nothing is owed, and how to undo it."""
    taken = Refund(purse, drawn, cost)
    if drawn.seen is None:
        return (), 0.0, taken
    found: Quota = drawn.seen.run or Quota(name=purse.entity.removeprefix(PREFIX))
    left = round(drawn.tokens - cost, DIGITS)
    after = found._replace(capacity=purse.budget.capacity, tokens=left)
    told = {"run": entity, "had": drawn.tokens, "cost": cost}
    return ((drawn.seen, Change(("QUOTA",), drawn.seen.run, after, told)),), 0.0, taken


# For the drivers ------------------------------------------------------------------------------------


class Pockets:
    """What this process has earned and not yet put into the budgets of its store, by entity."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._earned: dict[str, float] = {}

    def put(self, entity: str, amount: float) -> float:
        """Add to a pocket; return what is in it then."""
        with self._lock:
            total = self._earned[entity] = round(self._earned.get(entity, 0.0) + amount, DIGITS)
            return total

    def take(self, entity: str, least: float = 0.0) -> float:
        """Empty a pocket that holds that much, and return what was in it."""
        with self._lock:
            found = self._earned.get(entity, 0.0)
            return self._earned.pop(entity, 0.0) if found >= least else 0.0


def drawn(engine: Engine, op: Draw) -> Drawn:
    """Return what a budget holds; that of this process has given the tokens away, if it had them.

    One in the store is only looked at. What this process has earned for it counts, and is used up.
    """
    purse, budget = op.purse, op.purse.budget
    if not purse.entity:
        return Drawn(budget.draw(op.cost))
    seen = seen_in(engine.store, purse.entity, engine.seal, Quota)
    found = seen.run
    had = budget.capacity if found is None or not found.capacity else min(found.tokens, budget.capacity)
    earned = engine.pockets.take(purse.entity, max(0.0, round(op.cost - had, DIGITS)))
    return Drawn(min(budget.capacity, round(had + earned, DIGITS)), seen, earned)


def refund(engine: Engine, op: Refund) -> None:
    """Give back what was taken for a write that did not come about."""
    if not op.purse.entity:
        op.purse.budget.give(op.cost)
    elif op.drawn.earned:
        engine.pockets.put(op.purse.entity, op.drawn.earned)


def earned(engine: Engine, purse: Purse) -> Generator[Any, Any, None]:
    """Earn what a success earns; into the store when it is worth it, and only what is missing there."""
    budget, entity = purse.budget, purse.entity
    if not entity:
        return budget.earn()
    worth = min(budget.capacity, max(1.0, budget.capacity / 10))
    if engine.pockets.put(entity, budget.per_success) < worth:
        return None
    amount = engine.pockets.take(entity)

    def turn(found: Quota, now: float) -> tuple[Quota, None]:
        if not found.capacity:
            return found, None  # nobody has taken any
        tokens = min(budget.capacity, round(found.tokens + amount, DIGITS))
        return (found if tokens <= found.tokens else found._replace(tokens=tokens)), None

    try:
        yield from changed(engine, entity.removeprefix(PREFIX), turn)
    except StoreError as error:
        engine.grumble(f"what retries may cost at {entity.removeprefix(PREFIX)} was not written: {error}")
    return None
