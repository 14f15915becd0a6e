"""Steps of which each leaves something that a person can decide about."""

from __future__ import annotations

import oncemore
from oncemore.policy.policy import Policy

ONE = Policy("one", max_attempts=1)


@oncemore.step(effect="once", name="pay", policy=ONE)
def pay(order: str) -> str:
    raise ConnectionResetError(order)


@oncemore.step(effect="idempotent", name="ship", policy=ONE)
def ship(order: str) -> str:
    return f"shipped {order}"


@oncemore.step(effect="idempotent", name="fail", policy=ONE)
def fail(order: str) -> str:
    raise oncemore.PermanentError(order)


@oncemore.step(effect="idempotent", name="judge", policy=ONE)
def judge(order: str) -> str:
    raise oncemore.NeedsReview("AMBIGUOUS_NAME")


@oncemore.step(effect="once", name="sign", policy=ONE, requires_approval=True)
def sign(order: str) -> str:
    return f"signed {order}"


@oncemore.step(effect="outbox", name="tell", policy=ONE)
def tell(order: str) -> None:
    oncemore.current().emit("told", order)


@oncemore.step(
    effect="idempotent", name="fetch", policy=ONE, cooldown=oncemore.Cooldown(lambda order: f"file {order}")
)
def fetch(order: str) -> str:
    raise ConnectionRefusedError(order)


@oncemore.step(
    effect="idempotent", name="ask", policy=ONE, breaker=oncemore.Breaker("bank", failures=1, cooldown_s=600)
)
def ask(order: str) -> str:
    raise ConnectionRefusedError(order)
