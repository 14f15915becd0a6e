"""`oncemore limits breakers` and `oncemore limits rates`: circuit breakers, rate limits and retry budgets."""

from __future__ import annotations

import click

from oncemore.cli.commands import (
    CommandReport,
    LazyGroup,
    choice_option,
    reason_option,
    store_command,
)
from oncemore.cli.decisions import decision_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import OutputWriter
    from oncemore.log.record import QuotaRecord
    from oncemore.queries.limits import BreakerEvent, BreakerView
    from oncemore.steps.engine import Engine

BREAKER_EXAMPLES = """
oncemore limits breakers --json
oncemore limits breakers list --state OPEN --json
oncemore limits breakers show stac.example
oncemore limits breakers reset stac.example --reason 'it was our own network'
"""
RATE_EXAMPLES = """
oncemore limits rates
oncemore limits rates show stac.example --json
"""
BREAKER_HEADS = ("provider", "state", "next call in", "failures", "opened", "last error")
BREAKER_STATES = ("CLOSED", "OPEN", "HALF_OPEN")
_provider_argument = click.argument("name", metavar="NAME", help="Name of the provider, as listed.")


@click.group(
    "breakers",
    cls=LazyGroup,
    modules={"list": "limits:list_", "show": "limits:show", "reset": "limits:reset"},
    examples=BREAKER_EXAMPLES,
    default_command="list",
)
def breakers() -> None:
    """List, show and reset circuit breakers.

    While a breaker is open, no call goes to its provider. The default command is `list`.
    """


@store_command("list", "oncemore limits breakers list\noncemore limits breakers list --state OPEN --json")
@choice_option("--state", BREAKER_STATES, f"Only {', '.join(BREAKER_STATES)}.")
def list_(engine: Engine, state: str | None) -> CommandReport:
    """List the circuit breakers of a store, open ones first."""
    from oncemore.queries.limits import list_breakers

    views, now = list_breakers(engine, state), engine.now()
    return CommandReport([view._asdict() for view in views], lambda out: _print_breakers(out, views, now))


@store_command(
    "show", "oncemore limits breakers show stac.example\noncemore limits breakers show stac.example --json"
)
@_provider_argument
def show(engine: Engine, name: str) -> CommandReport:
    """Show one circuit breaker and its latest events."""
    from oncemore.queries.limits import load_breaker

    view, events = load_breaker(engine, name)
    value = {**view._asdict(), "events": [event._asdict() for event in events]}
    return CommandReport(value, lambda out: _print_breaker(out, view, events))


@store_command("reset", "oncemore limits breakers reset stac.example --reason 'it was our own network'")
@_provider_argument
@reason_option
@decision_options
def reset(engine: Engine, name: str, reason: str, by: str | None) -> CommandReport:
    """Close a circuit breaker before its cooldown ends.

    Runs that wait for the end of the cooldown keep their due time; a new call of such a step starts at once.
    """
    from oncemore.queries.limits import reset_breaker

    view = reset_breaker(engine, name, reason, by)
    return CommandReport(view._asdict(), lambda out: out.write_line(f"{view.name}: {view.state}", "green"))


@click.group(
    "rates",
    cls=LazyGroup,
    modules={"list": "limits:list_rates", "show": "limits:show_rate"},
    examples=RATE_EXAMPLES,
    default_command="list",
)
def rates() -> None:
    """Show the shared limits of providers.

    The concurrency limit, the rate limit and the retry budget that all processes on the store share. The
    default command is `list`.
    """


@store_command("list", "oncemore limits rates list\noncemore limits rates list --json")
def list_rates(engine: Engine) -> CommandReport:
    """List concurrency limits, rate limits and retry budgets by provider."""
    from oncemore.queries.limits import list_quotas

    quotas, now = list_quotas(engine), engine.now()
    return CommandReport([quota._asdict() for quota in quotas], lambda out: _print_quotas(out, quotas, now))


@store_command(
    "show", "oncemore limits rates show stac.example\noncemore limits rates show stac.example --json"
)
@_provider_argument
def show_rate(engine: Engine, name: str) -> CommandReport:
    """Show the limits and the retry budget of one provider."""
    from oncemore.queries.limits import load_quota

    quota, now = load_quota(engine, name), engine.now()
    return CommandReport(quota._asdict(), lambda out: _print_quotas(out, [quota], now))


@store_command("budgets", "oncemore limits budgets\noncemore limits budgets --json")
def list_budgets(engine: Engine) -> CommandReport:
    """List the retry budgets of providers.

    A retry costs a token; a success earns a part of one. Without tokens, failures are not retried.
    """
    from oncemore.queries.limits import list_quotas

    quotas = [quota for quota in list_quotas(engine) if quota.capacity]
    return CommandReport([quota._asdict() for quota in quotas], lambda out: _print_budgets(out, quotas))


# The formats are imported by the functions that print: `oncemore --help` imports this module for its help.


def _print_breakers(out: OutputWriter, views: Sequence[BreakerView], now: float) -> None:
    from oncemore.policy.explain import format_seconds
    from oncemore.queries.times import format_age

    # A breaker is recorded at its first failure, so an empty store has none.
    if not views:
        out.write_line("No breakers match.", "green")
        return
    rows = [
        (
            view.name, view.state, format_seconds(view.open_for_s) if view.open_for_s else "now",
            f"{view.failures} of {view.limit}", f"{view.open_count} times",
            f"{view.error}, {format_age(view.failed_at, now)} ago" if view.failed_at else "",
        )
        for view in views
    ]  # fmt: skip
    out.write_table([BREAKER_HEADS, *rows])


def _print_breaker(out: OutputWriter, view: BreakerView, events: Sequence[BreakerEvent]) -> None:
    from oncemore.policy.explain import format_seconds
    from oncemore.queries.times import format_time

    out.write_line(f"{view.name}: {view.state}", "green" if view.state == "CLOSED" else "yellow")
    if view.open_for_s:
        # For the type checker: a remaining time has an end.
        assert view.open_until is not None
        out.write_line(
            f"  next call allowed in {format_seconds(view.open_for_s)}, at {format_time(view.open_until)}"
        )
    # Half open: one call probes the provider, and other calls are refused until it has ended.
    if view.probe_worker:
        out.write_line(f"  a call of worker {view.probe_worker} is probing the provider")
    out.write_line(
        f"  opens after {view.limit}, for {format_seconds(view.cooldown_s)}; opened {view.open_count} times"
    )
    out.write_line()
    rows = [
        (format_time(event.at), event.state, str(event.failures), _describe_event(event)) for event in events
    ]
    out.write_table([("time", "state", "failures", "reason"), *rows], right=(2,))


def _describe_event(event: BreakerEvent) -> str:
    # Only a reset has an actor; every other event comes from a call and its error.
    if event.by:
        return f"{event.by}: {event.reason}"
    run = f" (run {event.run[:12]})" if event.run else ""
    return f"{event.error}{f': {event.message}' if event.message else ''}{run}" if event.error else ""


def _print_quotas(out: OutputWriter, quotas: Sequence[QuotaRecord], now: float) -> None:
    # Limits are recorded when they are first used, so an empty list does not mean that none is configured.
    if not quotas:
        out.write_line("No concurrency limit, rate limit or retry budget has been used yet.", "green")
        return
    rows = [
        (
            quota.name,
            _format_concurrency(quota),
            _format_rate(quota, now),
            _format_budget(quota),
            str(quota.throttled),
        )
        for quota in quotas
    ]
    out.write_table([("provider", "concurrency", "rate limit", "retry budget", "throttled"), *rows])


def _print_budgets(out: OutputWriter, quotas: Sequence[QuotaRecord]) -> None:
    if not quotas:
        out.write_line("No retry budget has been used yet.", "green")
        return
    rows = [(quota.name, _format_budget(quota), f"{quota.tokens / quota.capacity:.0%}") for quota in quotas]
    out.write_table([("provider", "tokens", "left"), *rows], right=(2,))


def _format_concurrency(quota: QuotaRecord) -> str:
    return f"{quota.concurrency} of {quota.max_concurrency}" if quota.max_concurrency else "-"


def _format_rate(quota: QuotaRecord, now: float) -> str:
    from oncemore.policy.explain import format_seconds

    if not quota.calls_per_period:
        return "-"
    # The time of the next call lies in the past after a pause.
    next_call = f", next in {format_seconds(quota.next_at - now)}" if quota.next_at > now else ", now"
    return f"{quota.calls_per_period} in {format_seconds(quota.period_s)}{next_call}"


def _format_budget(quota: QuotaRecord) -> str:
    return f"{quota.tokens:g} of {quota.capacity:g}" if quota.capacity else "-"
