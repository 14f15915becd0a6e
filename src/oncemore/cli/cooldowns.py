"""`oncemore limits cooldowns`: list the resources in cooldown, show one, and release it."""

from __future__ import annotations

import click

from oncemore.cli.commands import (
    CommandReport,
    LazyGroup,
    choice_option,
    reason_option,
    store_command,
    value_option,
)
from oncemore.cli.decisions import decision_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oncemore.cli.output import OutputWriter
    from oncemore.limits.cooldown_rules import ResourceRecord
    from oncemore.limits.cooldowns import ResourceHistory
    from oncemore.steps.engine import Engine

EXAMPLES = """
oncemore limits cooldowns
oncemore limits cooldowns list --provider eso --json
oncemore limits cooldowns show 7f0c1a52-5b0e-4a4e-9d3c-0d6a0c7e4a11
oncemore limits cooldowns release 7f0c1a52-5b0e-4a4e --reason "the archive is back"
"""
COMMANDS = {"list": "cooldowns:list_", "show": "cooldowns:show", "release": "cooldowns:release"}
COLUMN_HEADS = ("resource", "provider", "state", "attempts", "eligible in", "last error")


@click.group("cooldowns", cls=LazyGroup, modules=COMMANDS, examples=EXAMPLES, default_command="list")
def cooldowns() -> None:
    """List and release resources in cooldown.

    After a failure of a step with a cooldown, no process on the store requests the same resource for a
    while. A resource that is in quarantine or has failed permanently is not requested until an operator
    releases it. The default command is `list`.
    """


_resource_argument = click.argument(
    "resource", metavar="RESOURCE", help="Name of the resource, such as a data product."
)


@store_command("list", "oncemore limits cooldowns list\noncemore limits cooldowns list --state all --json")
@choice_option(
    "--state",
    ("READY", "COOLING", "HELD", "DONE", "all"),
    "READY, COOLING, HELD, DONE or all; default: COOLING and HELD.",
)
@value_option("--provider", "NAME", "Only resources of this provider.")
@value_option("--step", "NAME", "Only resources of this step.")
def list_(engine: Engine, **filters: str | None) -> CommandReport:
    """List resources in cooldown, the next eligible first.

    Resources that an operator must release come last.
    """
    now, resources = engine.now(), engine.cooldowns.list(**filters)
    return CommandReport(
        [_resource_to_dict(resource, now) for resource in resources],
        lambda out: _print_resources(out, resources, now),
    )


@store_command("show", "oncemore limits cooldowns show 7f0c1a52-5b0e-4a4e-9d3c-0d6a0c7e4a11")
@_resource_argument
def show(engine: Engine, resource: str) -> CommandReport:
    """Show the record of one resource, its last error and its releases."""
    now, history = engine.now(), engine.cooldowns.show(resource)
    value = {
        **history._asdict(),
        "resource": _resource_to_dict(history.resource, now),
        "entries": [{"at": at, **record._asdict()} for at, record in history.entries],
    }
    return CommandReport(value, lambda out: _print_resource(out, history))


@store_command("release", 'oncemore limits cooldowns release 7f0c1a52-5b0e-4a4e --reason "it is back"')
@_resource_argument
@reason_option
@decision_options
def release(engine: Engine, resource: str, reason: str, by: str | None) -> CommandReport:
    """Release a resource from its cooldown or quarantine.

    The next execution requests it. Its open quarantine item is closed. The attempt count stays.
    """
    released, now = engine.cooldowns.release(resource, reason=reason, by=by), engine.now()
    # The recorded decision has the actor that was found for a missing --by.
    decision = engine.cooldowns.show(resource).decisions[-1]

    def print_text(out: OutputWriter) -> None:
        out.write_line(f"released {released.resource}, by {decision['actor']}", "green")
        out.write_paragraph("The next execution requests it.")

    plain = _resource_to_dict(released, now)
    return CommandReport(
        {"released": plain, "by": decision["actor"], "reason": decision["reason"]}, print_text
    )


def _resource_to_dict(resource: ResourceRecord, now: float) -> dict[str, Any]:
    from oncemore.limits.cooldown_rules import skip_reason

    reason = skip_reason(resource, now)
    # Only a cooldown ends by itself; a hold has no remaining time.
    left = max(0.0, resource.next_eligible_attempt_at - now) if reason == "SKIPPED_BACKOFF" else 0.0
    return {**resource._asdict(), "skip": reason, "left_s": round(left, 3)}


def _print_resources(out: OutputWriter, resources: Sequence[ResourceRecord], now: float) -> None:
    if not resources:
        out.write_line("No resources match.", "green")
        return
    rows = [
        (
            resource.resource,
            resource.provider or "-",
            resource.state,
            str(resource.attempt_count_total),
            _format_eligible(resource, now),
            resource.last_error_class or "-",
        )
        for resource in resources
    ]
    out.write_table([COLUMN_HEADS, *rows], right=(3,))
    out.write_line()
    out.write_paragraph(f"Details: `oncemore limits cooldowns show {resources[0].resource}`", "dim")


def _format_eligible(resource: ResourceRecord, now: float) -> str:
    """Return the time until a resource may be requested, or why it is not requested."""
    from oncemore.limits.cooldown_rules import skip_reason

    reason = skip_reason(resource, now)
    if reason == "SKIPPED_BACKOFF":
        return format_countdown(resource.next_eligible_attempt_at - now)
    # A valid copy exists, so the resource is never requested again; all other reasons need an operator.
    return {"": "now", "SKIPPED_DUPLICATE": "never: valid"}.get(reason, "after release")


def format_countdown(seconds: float) -> str:
    """Return the remaining time in two units, rounded up: 4 min 10 s, 23 h 5 min."""
    from math import ceil

    # Rounded up, because a countdown of 0 s would promise a request that is still refused.
    left = ceil(seconds)
    for size, unit, inner, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= size:
            whole, rest = divmod(left, size)
            return f"{whole} {unit}" + (f" {rest // inner} {name}" if rest // inner else "")
    return f"{left} s"


def _print_resource(out: OutputWriter, history: ResourceHistory) -> None:
    from oncemore.queries.times import format_time

    record, error = history.resource, history.error or {}
    color: Any = {"COOLING": "yellow", "HELD": "red", "DONE": "green"}.get(record.state, "")
    # 0 means that no time is set.
    until = format_time(record.next_eligible_attempt_at) if record.next_eligible_attempt_at else ""
    left = f"{until} (in {format_countdown(history.left_s)})" if history.left_s else until
    out.write_line(f"{record.resource}: {history.skip or 'eligible'}", color)
    out.write_line()
    # The names are those of the record in the log and in JSON, so that one can be searched for the other.
    facts = [
        ("acquisition_status", record.acquisition_status),
        ("validation_status", record.validation_status),
        ("attempt_count_total", str(record.attempt_count_total)),
        ("last_attempt_at", format_time(record.last_attempt_at) if record.last_attempt_at else ""),
        ("last_attempt_outcome", record.last_attempt_outcome),
        ("last_error_fingerprint", record.last_error_fingerprint),
        ("next_eligible_attempt_at", left),
        ("last_successful_fingerprint", record.last_successful_fingerprint),
        ("provider", record.provider),
        ("step", record.step),
        ("run", record.run_entity.removeprefix("run/")),
        ("correlation_id", history.correlation_id),
        ("last error", f"{error.get('code', '')}: {error.get('message', '')}" if error else ""),
    ]
    # Empty fields are left out: most records have no error and no fingerprint.
    out.write_table([("field", "value"), *((name, text) for name, text in facts if text)])
    if history.decisions:
        out.write_line()
        out.write_line("Decisions", "bold")
        for decision in history.decisions:
            actor, reason = decision["actor"] or "unknown", decision["reason"]
            out.write_paragraph(
                f"{format_time(decision['at'])}  {decision['action']} by {actor}: {reason}", "", "  "
            )
