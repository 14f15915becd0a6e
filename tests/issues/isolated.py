"""Steps of which one runs in a process of its own, and calls the other."""

from __future__ import annotations

import oncemore


@oncemore.step(effect="pure", name="issues.inner")
def inner(number: int) -> int:
    return number + 1


@oncemore.step(effect="idempotent", isolate="process", name="issues.outer")
def outer(number: int) -> int:
    return inner(number)
