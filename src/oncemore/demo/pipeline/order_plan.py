"""The orders of the pipeline demo, their faults and all numbers, drawn from one seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How the provider treats the requests of one order, in turn; later requests succeed. `drop` and `slow`
#: charge and then fail to reply; `reset` does nothing.
SCRIPTS = (
    ("503", "429", "drop"),
    ("429",),
    ("503", "503"),
    ("reset",),
    ("slow",),
    ("drop",),
    ("402",),
)
#: The script of the order at which the first kill happens.
HELD = ("503", "hold")
REFUSED = "402"
#: Orders that the program works on at the same time; the held one is among the first of them.
AT_A_TIME = 4

POLICY = """\
version: "1"
profile: demo
description: the waits of `oncemore demo`
after_failure: raise  # a refused charge stays refused when the program runs again
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
    """The input of the three processes.

    pace      factor of all waits: above 1 for people, far below for tests
    charges   the provider's script per order
    messages  the webhook receiver's script per order
    """

    seed: str
    pace: float
    careless: bool
    orders: tuple[tuple[str, int], ...]
    charges: dict[str, tuple[str, ...]]
    messages: dict[str, tuple[str, ...]]

    @property
    def refused_orders(self) -> tuple[str, ...]:
        """The orders that the provider refuses permanently; they should have no effects."""
        return tuple(order for order, script in self.charges.items() if REFUSED in script)

    @property
    def expected_orders(self) -> tuple[str, ...]:
        """The orders that should have every effect once."""
        return tuple(order for order, _ in self.orders if order not in self.refused_orders)

    @property
    def timeout_s(self) -> float:
        """The program's HTTP timeout; longer than the pause before a kill."""
        return 0.9 * self.pace + 1

    def services_input(self) -> dict[str, Any]:
        """Return the input of `shop_services.py`."""
        return {
            "faults": {"charges": self.charges, "messages": self.messages},
            "retry_after_s": 3 * self.pace,
            "takes_s": 0.4 * self.pace,
            "slow_s": self.timeout_s + 1,
        }

    def program_input(self, url: str) -> dict[str, Any]:
        """Return the input of `user_program.py`."""
        return {
            "url": url,
            "orders": self.orders,
            "seed": self.seed,
            "pace": self.pace,
            "timeout_s": self.timeout_s,
            "careless": self.careless,
        }

    def policy_yaml(self) -> str:
        """Return the policy file of the program."""
        return POLICY.format(base=round(0.8 * self.pace, 3))


def make_plan(seed: str, pace: float = 1.0, *, careless: bool = False) -> PipelinePlan:
    """Return the plan of a seed; the same seed gives the same plan."""
    chance = random.Random(f"oncemore demo {seed}")  # noqa: S311 - repeatable, not secret
    names = [f"order-{number}" for number in range(1, len(SCRIPTS) + 2)]
    # Among the first orders, so that the first kill comes early.
    held = names[chance.randrange(AT_A_TIME)]
    scripts = iter(chance.sample(SCRIPTS, len(SCRIPTS)))
    charges = {name: HELD if name == held else next(scripts) for name in names}
    orders = tuple((name, cents) for name, cents in zip(names, _draw_cents(chance), strict=False))
    accepted = [name for name in names if REFUSED not in charges[name]]
    return PipelinePlan(
        seed=seed, pace=pace, careless=careless, orders=orders, charges=charges,
        messages={chance.choice(accepted): ("503",)},
    )  # fmt: skip


def _draw_cents(chance: random.Random) -> Iterator[int]:
    while True:
        yield chance.randrange(500, 9900, 5)
