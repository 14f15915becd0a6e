"""A step that changes its argument, for a worker and for a replay to import."""

from __future__ import annotations

import oncemore
from tests.steps.colours import POLICY

#: How many of the next attempts fail.
failures = [0]


@oncemore.step(effect="pure", policy=POLICY, name="issues.append_nine")
def append_nine(numbers: list[int]) -> list[int]:
    """Append a nine to the caller's list, and fail as often as the test says."""
    numbers.append(9)
    if failures[0]:
        failures[0] -= 1
        raise oncemore.TransientError("not yet")
    return numbers
