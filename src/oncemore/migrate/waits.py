"""Planned delays of other libraries, written as `wait=` and `jitter=` of `oncemore`.

A `KnownWait` has numbers only: its delays can be computed, and a list of them is exact for any shape. A
`WrittenWait` has expressions that only the running program knows, so it needs a shape that both sides share.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.migrate.options import CannotMigrate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

    Spread = Literal["none", "full", "additive"]

#: Longest list of delays that is written into a program.
LONGEST_LIST = 12
#: The cap of a schedule that has none of its own.
DEFAULT_CAP_S = 30.0
#: Delays are compared up to this attempt if the number of attempts is not known.
PROBED_ATTEMPTS = 40


class Exponential(Value):
    """A planned delay of base * factor ** (n - 1), at most `top`."""

    base: float
    factor: float
    top: float | None


class KnownWait(Value):
    """A wait whose numbers are all known.

    planned      the delay after attempt n, before the jitter
    exponential  the numbers of the delays, if they grow by a factor
    amount       seconds of additive jitter
    limit        the longest delay with its jitter, if the library limits the sum
    """

    planned: Callable[[int], float]
    exponential: Exponential | None = None
    spread: Spread = "none"
    amount: float = 0.0
    limit: float | None = None


class WrittenWait(Value):
    """A wait as source text: the value of `wait=` and that of `jitter=`, empty for its default."""

    wait: str
    jitter: str = ""


WaitPlan = KnownWait | WrittenWait


def constant_wait(seconds: float) -> KnownWait:
    """Return a wait of always the same seconds."""
    return KnownWait(lambda n: seconds)


def random_wait(low: float, high: float) -> KnownWait:
    """Return a wait of `low` to `high` seconds."""
    if high < low:
        raise CannotMigrate(f"the shortest random wait, {low:g} s, is above the longest, {high:g} s")
    return KnownWait(lambda n: low, spread="additive", amount=high - low)


def exponential_wait(
    base: float, factor: float, top: float | None, *, least: float = 0.0, spread: Spread = "none"
) -> KnownWait:
    """Return a wait of base * factor ** (n - 1), between `least` and `top`."""
    if base < 0.0:
        raise CannotMigrate("a planned delay is negative")
    if spread == "full" and least > 0.0:
        raise CannotMigrate("a random wait with a minimum (min=) has no counterpart")

    def plan_delay(n: int) -> float:
        try:
            delay = base * factor ** (n - 1)
        except OverflowError:
            delay = 1e300
        return max(least, delay if top is None else min(delay, top))

    return KnownWait(plan_delay, None if least > 0.0 else Exponential(base, factor, top), spread)


def chained_wait(waits: Sequence[WaitPlan]) -> WaitPlan:
    """Return a wait that uses one of `waits` after each attempt, and the last one from then on."""
    known = [wait for wait in waits if isinstance(wait, KnownWait)]
    if len(known) < len(waits):
        written = [wait for wait in waits if isinstance(wait, WrittenWait)]
        # A list may mix numbers and names, as long as each is plain seconds.
        if all(not wait.jitter and not wait.wait.startswith("oncemore.") for wait in written):
            return WrittenWait(f"[{', '.join(_write_member(wait) for wait in waits)}]")
        raise CannotMigrate("the members of the chain are not all plain seconds")
    if any(wait.spread != "none" for wait in known):
        raise CannotMigrate("a chain with random waits has no counterpart")
    return KnownWait(lambda n: known[min(n, len(known)) - 1].planned(n))


def _write_member(wait: WaitPlan) -> str:
    if isinstance(wait, WrittenWait):
        return wait.wait
    if wait.spread != "none" or wait.planned(1) != wait.planned(2):
        raise CannotMigrate("the members of the chain are not all plain seconds")
    return write_number(wait.planned(1))


def combined_wait(waits: Sequence[WaitPlan]) -> KnownWait:
    """Return the sum of waits; one of them may be random."""
    if any(isinstance(wait, WrittenWait) for wait in waits):
        raise CannotMigrate("the sum of waits has parts that are not plain numbers")
    known = [wait for wait in waits if isinstance(wait, KnownWait)]
    spread = [wait for wait in known if wait.spread != "none"]
    # The sum of two random numbers is not evenly spread, and full jitter is not an addition.
    if len(spread) > 1 or any(wait.spread == "full" or wait.limit is not None for wait in spread):
        raise CannotMigrate("the sum of these random waits has no counterpart")
    amount = spread[0].amount if spread else 0.0
    return KnownWait(
        lambda n: sum(wait.planned(n) for wait in known),
        spread="additive" if amount else "none",
        amount=amount,
    )


def write_wait(plan: WaitPlan, attempts: int | None) -> WrittenWait:
    """Return the texts of `wait=` and `jitter=` for a plan; raise `CannotMigrate` if there are none.

    attempts  the number of calls in total, None if only the running program knows it
    """
    if isinstance(plan, WrittenWait):
        return plan
    jitter = f"oncemore.jitter.additive({write_number(plan.amount)})" if plan.spread == "additive" else ""
    last = PROBED_ATTEMPTS if attempts is None else max(1, attempts - 1)
    delays = [plan.planned(n) for n in range(1, last + 1)]
    if min(delays) < 0.0:
        raise CannotMigrate("a planned delay is negative")
    if len(set(delays)) == 1 and (attempts is not None or plan.exponential is None):
        # Additive jitter over plain seconds is never cut, so a limit on the sum must not matter.
        _check_limit(plan, delays[0])
        return WrittenWait(write_number(delays[0]), jitter or ('"full"' if plan.spread == "full" else ""))
    schedule = _write_schedule(plan, attempts, max(delays))
    if schedule:
        return WrittenWait(schedule, jitter or ("" if plan.spread == "full" else '"none"'))
    return WrittenWait(
        _write_list(plan, attempts, delays), jitter or ('"full"' if plan.spread == "full" else "")
    )


def _write_schedule(plan: KnownWait, attempts: int | None, longest: float) -> str:
    """Return `oncemore.backoff.exponential(...)`, or "" if the delays are not of that shape."""
    shape = plan.exponential
    if shape is None or shape.factor < 1.0 or (shape.top is not None and shape.base > shape.top):
        return ""
    top = shape.top if plan.limit is None else plan.limit
    if plan.spread == "additive" and plan.limit is None and shape.top is not None:
        # The other library limits the delay before the jitter is added; a cap would limit the sum.
        if attempts is None or longest >= shape.top:
            return ""
        top = None
    if top is None:
        if attempts is None:
            raise CannotMigrate(
                "the wait has no maximum and the attempts are not a plain number: add a maximum"
            )
        top = longest + plan.amount if longest + plan.amount > DEFAULT_CAP_S else None
    factor = "" if shape.factor == 2.0 else f", factor={write_number(shape.factor)}"
    cap = "" if top is None else f", cap={write_number(top)}"
    return f"oncemore.backoff.exponential({write_number(shape.base)}{factor}{cap})"


def _write_list(plan: KnownWait, attempts: int | None, delays: list[float]) -> str:
    # The last delay of a list repeats, so that equal ones at the end are written once.
    while len(delays) > 1 and delays[-1] == delays[-2]:
        delays = delays[:-1]
    if attempts is None and len(delays) > LONGEST_LIST:
        raise CannotMigrate("the attempts are not a plain number, so the delays cannot be written as a list")
    if len(delays) > LONGEST_LIST:
        raise CannotMigrate(f"the wait would be a list of {len(delays)} different delays")
    _check_limit(plan, max(delays))
    return f"[{', '.join(write_number(delay) for delay in delays)}]"


def _check_limit(plan: KnownWait, longest: float) -> None:
    if plan.limit is not None and longest + plan.amount > plan.limit:
        raise CannotMigrate("the maximum of the wait is below its first delay with jitter")


def write_number(number: float) -> str:
    """Return a number as it is written in a program: 2 and not 2.0."""
    return repr(int(number)) if float(number).is_integer() and abs(number) < 1e15 else repr(float(number))
