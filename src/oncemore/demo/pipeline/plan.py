"""What is going to happen: orders, the faults that meet them, and all numbers, drawn from one seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How the provider treats one order each, visit after visit; then all is well. `drop` and `slow` do the work
#: and then fail to say so; `reset` does nothing. The order that is held meets the first kill.
SCRIPTS = (
    ("503", "429", "drop"),
    ("429",),
    ("503", "503"),
    ("reset",),
    ("slow",),
    ("drop",),
    ("402",),
)
HELD = ("503", "hold")
REFUSED = "402"
#: How many orders are worked on at a time: the one that is held is among the first.
AT_A_TIME = 4

POLICY = """\
version: "1"
profile: demo
description: what `oncemore demo` waits by
retry_policy:
  max_attempts: 8
  schedule: exponential
  base_delay_s: {base}
  factor: 2
  exponent: attempt-1
  max_delay_s: 8
  jitter: equal
  jitter_seed: "<sha256(idempotency_key)>"
"""


class PipelinePlan(NamedTuple):
    """Everything that the three processes are told.

    pace  how slowly all of it goes: more for people, less for tests
    """

    seed: str
    pace: float
    careless: bool
    orders: tuple[tuple[str, int], ...]
    charges: dict[str, tuple[str, ...]]
    told: dict[str, tuple[str, ...]]

    @property
    def refused_orders(self) -> tuple[str, ...]:
        """The orders that the provider refuses for good: nothing of them is to be done."""
        return tuple(order for order, script in self.charges.items() if REFUSED in script)

    @property
    def expected_orders(self) -> tuple[str, ...]:
        """The orders of which every effect is to be there, once."""
        return tuple(order for order, _ in self.orders if order not in self.refused_orders)

    @property
    def limit_s(self) -> float:
        """How long an answer may take; longer than a moment is looked at before the kill."""
        return 0.9 * self.pace + 1

    def for_world(self) -> dict[str, Any]:
        """Return what the world is told."""
        return {
            "faults": {"charges": self.charges, "told": self.told},
            "rest_s": 3 * self.pace,
            "takes_s": 0.4 * self.pace,
            "slow_s": self.limit_s + 1,
        }

    def for_pipeline(self, url: str) -> dict[str, Any]:
        """Return what the user's program is told."""
        return {
            "url": url,
            "orders": self.orders,
            "seed": self.seed,
            "pace": self.pace,
            "limit_s": self.limit_s,
            "careless": self.careless,
        }

    def policy_yaml(self) -> str:
        """Return the policy file that the program waits by."""
        return POLICY.format(base=round(0.8 * self.pace, 3))


def make_plan(seed: str, pace: float = 1.0, *, careless: bool = False) -> PipelinePlan:
    """Return the plan of a seed: the same one every time."""
    chance = random.Random(f"oncemore demo {seed}")  # noqa: S311 - a story, and to be told again
    names = [f"order-{number}" for number in range(1, len(SCRIPTS) + 2)]
    held = names[chance.randrange(AT_A_TIME)]
    scripts = iter(chance.sample(SCRIPTS, len(SCRIPTS)))
    charges = {name: HELD if name == held else next(scripts) for name in names}
    orders = tuple((name, cents) for name, cents in zip(names, _draw_cents(chance), strict=False))
    glad = [name for name in names if REFUSED not in charges[name]]
    return PipelinePlan(seed, pace, careless, orders, charges, {chance.choice(glad): ("503",)})


def _draw_cents(chance: random.Random) -> Iterator[int]:
    while True:
        yield chance.randrange(500, 9900, 5)
