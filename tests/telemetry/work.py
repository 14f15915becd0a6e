"""Steps that fail in known ways, and a policy without waits to speak of."""

from __future__ import annotations

from typing import Any

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy

QUICK = Policy("quick", max_attempts=3, schedule=Schedule("fixed", delays=(0.25, 0.5)), jitter=Jitter("none"))


def make_step(*results: Any, name: str = "shop.charge", **options: Any) -> Any:
    """Return a step whose calls return these values or raise these errors; the last one for ever."""
    left = list(results)

    def charge(order: int = 1) -> Any:
        result = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(result, BaseException):
            raise result
        return result

    options = {"effect": "idempotent", "policy": QUICK, **options}
    return oncemore.step(name=name, **options)(charge)
