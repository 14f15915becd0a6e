"""List the breakers, rate limits and budgets of a store, and reset a breaker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.governance.identity import authorize_decider
from oncemore.limits import breaker_rules, shared_breaker
from oncemore.log.entry_codec import decode_head, decode_header, read_body
from oncemore.log.record import BreakerRecord, QuotaRecord, apply_header
from oncemore.log.store import HeadQuery
from oncemore.policy.canonical_json import normalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.steps.engine import Engine

#: The number of a breaker's last entries that are shown, and of limits that are listed.
MAX_EVENTS, MAX_LISTED = 20, 10_000


class BreakerView(Value):
    """The present state of a breaker.

    open_for_s  seconds until a call may pass; 0 while calls pass
    limit       the condition that opens it: a number of failures, or a share of the calls
    """

    name: str
    state: str
    open_for_s: float
    open_until: float | None
    failures: int
    limit: str
    cooldown_s: float
    open_count: int
    opened_at: float | None
    error: str
    failed_at: float | None
    probe_worker: str


class BreakerEvent(Value):
    """One entry of a breaker: its time, the state after it, and the error or the operator that caused it."""

    at: float
    state: str
    failures: int
    error: str = ""
    message: str = ""
    run: str = ""
    by: str = ""
    reason: str = ""


def list_breakers(engine: Engine, state: str | None = None) -> list[BreakerView]:
    """Return the breakers of a store: those that are not closed first, then by name."""
    now = engine.now()
    views = [make_breaker_view(breaker, now) for breaker in shared_breaker.list_breakers(engine)]
    return sorted(
        (view for view in views if state is None or view.state == state),
        key=lambda view: (view.state == "CLOSED", view.name),
    )


def make_breaker_view(breaker: BreakerRecord, now: float) -> BreakerView:
    """Return the state of a breaker at a time."""
    admission = breaker_rules.decide_admission(breaker, now)
    # An open breaker whose time is over admits a probe, although its record still says OPEN.
    open_for_s = breaker.open_until - now if type(admission) is breaker_rules.BreakerRefusal else 0.0
    limit = (
        f"{breaker.failure_rate:.0%} of calls"
        if breaker.failure_rate
        else f"{breaker.failure_limit} {breaker.counted_unit}"
    )
    return BreakerView(
        name=breaker.name,
        state=breaker.state,
        open_for_s=max(0.0, open_for_s),
        open_until=breaker.open_until or None,
        failures=breaker.failures,
        limit=limit,
        cooldown_s=breaker.cooldown_s,
        open_count=breaker.open_count,
        opened_at=breaker.opened_at or None,
        error=breaker.last_error_code,
        failed_at=breaker.last_failure_at or None,
        probe_worker=breaker.probe_worker,
    )


def load_breaker(engine: Engine, name: str) -> tuple[BreakerView, list[BreakerEvent]]:
    """Return one breaker and its last events, newest first."""
    head = engine.store.load_head(shared_breaker.breaker_entity(name))
    if head is None:
        known = ", ".join(breaker.name for breaker in shared_breaker.list_breakers(engine)[:10])
        raise UsageError(
            f"there is no breaker {name!r} in this store; it has {known or 'none: nothing has failed yet'}"
        )
    view = make_breaker_view(decode_head(head.head, BreakerRecord), engine.now())
    # The log is read forwards, because each entry holds only the changed fields.
    return view, list(_read_breaker_events(engine, name))[::-1][:MAX_EVENTS]


def _read_breaker_events(engine: Engine, name: str) -> Iterator[BreakerEvent]:
    state: BreakerRecord | None = None
    for entry in engine.store.read_entries(shared_breaker.breaker_entity(name)):
        header = decode_header(entry.header)
        before, state = state, apply_header(state, header.sets, BreakerRecord)
        body: dict[str, Any] = read_body(entry, engine.cipher)
        error, decision = body.get("error") or {}, body.get("decision") or {}
        # The record keeps its last error; only an entry with a new failure time is about that error.
        has_failed = before is None or state.last_failure_at != before.last_failure_at
        yield BreakerEvent(
            at=header.at,
            state=state.state,
            failures=state.failures,
            error=state.last_error_code if has_failed else "",
            message=error.get("message", ""),
            run=body.get("run", "").removeprefix("run/"),
            by=decision.get("actor", ""),
            reason=decision.get("reason", ""),
        )


def reset_breaker(engine: Engine, name: str, reason: str, by: str | None) -> BreakerView:
    """Close a breaker by an operator's decision; record the actor and the reason."""
    decider = authorize_decider(engine, by)
    return make_breaker_view(shared_breaker.reset_breaker(engine, name, reason, decider), engine.now())


def list_quotas(engine: Engine) -> list[QuotaRecord]:
    """Return the rate limits, concurrency limits and budgets of a store, by name."""
    heads = engine.store.list_heads(HeadQuery("quota", limit=MAX_LISTED))
    return sorted((decode_head(head.head, QuotaRecord) for head in heads), key=lambda quota: quota.name)


def load_quota(engine: Engine, name: str) -> QuotaRecord:
    """Return one limit by its name."""
    quotas = list_quotas(engine)
    for quota in quotas:
        if quota.name == normalize_name(name):
            return quota
    known = ", ".join(quota.name for quota in quotas[:10])
    raise UsageError(f"there is no resource {name!r} in this store; it has {known or 'none'}")
