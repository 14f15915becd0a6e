"""Steps that several processes of these tests import."""

from __future__ import annotations

import oncemore


@oncemore.step(effect="idempotent", name="house.finished")
def finished(name: str) -> str:
    return f"value of {name}"


@oncemore.step(effect="outbox", name="house.canary")
def person(name: str) -> str:
    oncemore.current().emit("registered", {"who": name})
    return name * 300


@oncemore.step(effect="once", name="house.imported")
def imported(order: int) -> str:
    raise AssertionError(f"{order} was run, and is done")
