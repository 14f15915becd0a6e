"""Breakers and shared resources of a store, as people look at them, and a person's word about a breaker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.limits import breaker_rules, shared_breaker
from oncemore.log.entry_codec import head_of, header_of, read_body
from oncemore.log.record import Circuit, Quota, fold
from oncemore.log.store import Query
from oncemore.maintenance.tasks import somebody
from oncemore.policy.canonical_json import normalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.steps.engine import Engine

#: How many of its last entries a breaker is shown with, and how many resources are listed.
MOST_MOVES, MOST_LISTED = 20, 10_000


class Breaker(Value):
    """A breaker as it is now.

    left_s  seconds until a call may go through; 0 while calls do
    limit   what opens it: so many failures, or a part of the calls
    """

    name: str
    state: str
    left_s: float
    until: float | None
    failures: int
    limit: str
    cooldown_s: float
    opens: int
    opened: float | None
    error: str
    failed_at: float | None
    probe: str


class Move(Value):
    """Something that happened to a breaker: when, what it was then, for which error or at whose word."""

    at: float
    state: str
    failures: int
    error: str = ""
    message: str = ""
    run: str = ""
    by: str = ""
    reason: str = ""


def breakers(engine: Engine, state: str | None = None) -> list[Breaker]:
    """Return the breakers of a store: those that are open first, then by name."""
    now = engine.now()
    found = [shown(one, now) for one in shared_breaker.circuits_of(engine)]
    return sorted(
        (one for one in found if state is None or one.state == state),
        key=lambda one: (one.state == "CLOSED", one.name),
    )


def shown(circuit: Circuit, now: float) -> Breaker:
    """Return what there is to tell of a circuit."""
    answer = breaker_rules.ask(circuit, now)
    left = circuit.until - now if type(answer) is breaker_rules.Refusal else 0.0
    limit = f"{circuit.rate:.0%} of calls" if circuit.rate else f"{circuit.limit} {circuit.counts}"
    return Breaker(
        circuit.name, circuit.state, max(0.0, left), circuit.until or None, circuit.failures, limit,
        circuit.cooldown_s, circuit.opens, circuit.opened or None, circuit.code, circuit.failed_at or None,
        circuit.worker,
    )  # fmt: skip


def breaker(engine: Engine, name: str) -> tuple[Breaker, list[Move]]:
    """Return one breaker, and what last happened to it, the newest first."""
    head = engine.store.head(shared_breaker.entity_of(name))
    if head is None:
        known = ", ".join(one.name for one in shared_breaker.circuits_of(engine)[:10])
        raise UsageError(
            f"there is no breaker {name!r} in this store; it has {known or 'none: nothing has failed yet'}"
        )
    found = shown(head_of(head.head, Circuit), engine.now())
    return found, list(_moves(engine, name))[::-1][:MOST_MOVES]


def _moves(engine: Engine, name: str) -> Iterator[Move]:
    state: Circuit | None = None
    for entry in engine.store.entries(shared_breaker.entity_of(name)):
        header = header_of(entry.header)
        before, state = state, fold(state, header.sets, Circuit)
        body: dict[str, Any] = read_body(entry, engine.seal)
        error, decided = body.get("error") or {}, body.get("decision") or {}
        failed = before is None or state.failed_at != before.failed_at
        yield Move(
            header.at, state.state, state.failures, state.code if failed else "", error.get("message", ""),
            body.get("run", "").removeprefix("run/"), decided.get("actor", ""), decided.get("reason", ""),
        )  # fmt: skip


def reset(engine: Engine, name: str, reason: str, by: str | None) -> Breaker:
    """Close a breaker because somebody says so; who and why is recorded."""
    return shown(shared_breaker.reset(engine, name, reason, somebody(by)), engine.now())


# Resources -----------------------------------------------------------------------------------------


def resources(engine: Engine) -> list[Quota]:
    """Return what the store knows of paces, rates and budgets, by name."""
    heads = engine.store.heads(Query("quota", limit=MOST_LISTED))
    return sorted((head_of(head.head, Quota) for head in heads), key=lambda one: one.name)


def resource(engine: Engine, name: str) -> Quota:
    """Return one of them."""
    found = [one for one in resources(engine) if one.name == normalize_name(name)]
    if not found:
        known = ", ".join(one.name for one in resources(engine)[:10])
        raise UsageError(f"there is no resource {name!r} in this store; it has {known or 'none'}")
    return found[0]
