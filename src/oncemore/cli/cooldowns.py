"""`oncemore cooldowns`: what is left alone, for how long and why; and letting it go."""

from __future__ import annotations

import click

from oncemore.cli.commands import Branch, json_option, leaf, store_option
from oncemore.cli.output import Paper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oncemore.limits.cooldown_rules import Resource
    from oncemore.limits.cooldowns import Told

EXAMPLES = """
oncemore cooldowns
oncemore cooldowns list --provider eso --json
oncemore cooldowns show 7f0c1a52-5b0e-4a4e-9d3c-0d6a0c7e4a11
oncemore cooldowns release 7f0c1a52-5b0e-4a4e-9d3c-0d6a0c7e4a11 --reason "the archive is back"
"""
HOMES = {"list": "cooldowns:list_", "show": "cooldowns:show", "release": "cooldowns:release"}
HEADS = ("resource", "provider", "state", "asked", "eligible in", "last error")


@click.group("cooldowns", cls=Branch, homes=HOMES, examples=EXAMPLES, usual="list")
def cooldowns() -> None:
    """Look at what is left alone, and let it go.

    Without a command it is `list`, with all of its options.

    What a step with a cooldown asks for is left alone for a while after a failure, by every process on the
    store; what is in quarantine or failed for good waits until a person releases it.
    """


_resource = click.argument("resource", metavar="RESOURCE", help="What is asked for, such as a data product.")


@leaf("list", "oncemore cooldowns list\noncemore cooldowns list --state all --json")
@click.option("--state", metavar="WORD", type=click.Choice(("READY", "COOLING", "HELD", "DONE", "all")),
              help="READY, COOLING, HELD, DONE or all; else what is left alone now.")  # fmt: skip
@click.option("--provider", metavar="NAME", help="Only of this provider.")
@click.option("--step", metavar="NAME", help="Only what this step asks for.")
@store_option
@json_option
def list_(
    state: str | None, provider: str | None, step: str | None, store: str | None, in_json: bool
) -> None:
    """List what is left alone: what may be asked for soonest first, what waits for a person last."""
    from oncemore.queries import open_engine

    with open_engine.there(store) as engine:
        now = engine.now()
        found = engine.cooldowns.list(state=state, provider=provider, step=step)
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json([_plain(one, now) for one in found])
    else:
        _print(paper, found, now)


@leaf("show", "oncemore cooldowns show 7f0c1a52-5b0e-4a4e-9d3c-0d6a0c7e4a11")
@_resource
@store_option
@json_option
def show(resource: str, store: str | None, in_json: bool) -> None:
    """Show one with its whole record, its last error, and who let it go before."""
    from oncemore.queries import open_engine as stores

    with stores.there(store) as engine:
        now, told = engine.now(), engine.cooldowns.show(resource)
    paper = Paper(in_json=in_json)
    if in_json:
        entries = [{"at": at, **one._asdict()} for at, one in told.entries]
        paper.json({**told._asdict(), "resource": _plain(told.resource, now), "entries": entries})
    else:
        _print_one(paper, told)


@leaf("release", 'oncemore cooldowns release 7f0c1a52-5b0e-4a4e-9d3c-0d6a0c7e4a11 --reason "it is back"')
@_resource
@click.option("--reason", metavar="TEXT", required=True, help="Why; it is recorded.")
@click.option("--by", metavar="NAME", help="Who decides; it is recorded. Else who runs this.")
@store_option
@json_option
def release(resource: str, reason: str, by: str | None, store: str | None, in_json: bool) -> None:
    """Let it go: the next execution asks for it, whatever its cooldown or quarantine said.

    What waits for a person in quarantine because of it is over with that. What was counted stays counted.
    """
    from oncemore.queries import open_engine as stores

    with stores.there(store) as engine:
        made, now = engine.cooldowns.release(resource, reason=reason, by=by), engine.now()
        told = engine.cooldowns.show(resource).decisions[-1]
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json({"released": _plain(made, now), "by": told["actor"], "reason": told["reason"]})
    else:
        paper.line(f"released: {made.resource}, by {told['actor']}", "green")
        paper.say("The next execution asks for it.")


# Printing -------------------------------------------------------------------------------------------


def _plain(resource: Resource, now: float) -> dict[str, Any]:
    from oncemore.limits.cooldown_rules import skip

    why = skip(resource, now)
    left = max(0.0, resource.next_eligible_attempt_at - now) if why == "SKIPPED_BACKOFF" else 0.0
    return {**resource._asdict(), "skip": why, "left_s": round(left, 3)}


def _print(paper: Paper, found: Sequence[Resource], now: float) -> None:
    if not found:
        paper.line("Nothing is left alone.", "green")
        return
    rows = [
        (one.resource, one.provider or "-", one.state, str(one.attempt_count_total), _in(one, now),
         one.last_error_class or "-")
        for one in found
    ]  # fmt: skip
    paper.table([HEADS, *rows], right=(3,))
    paper.line()
    paper.say(f"`oncemore cooldowns show {found[0].resource}` tells more of the first.", "dim")


def _in(one: Resource, now: float) -> str:
    """Return when a resource may be asked for, as a countdown."""
    from oncemore.limits.cooldown_rules import skip

    why = skip(one, now)
    if why == "SKIPPED_BACKOFF":
        return countdown(one.next_eligible_attempt_at - now)
    return {"": "now", "SKIPPED_DUPLICATE": "never: valid"}.get(why, "release it")


def countdown(seconds: float) -> str:
    """Return how long is left in two units, rounded up: 4 min 10 s, 23 h 5 min."""
    from math import ceil

    left = ceil(seconds)
    for size, unit, inner, name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= size:
            whole, rest = divmod(left, size)
            return f"{whole} {unit}" + (f" {rest // inner} {name}" if rest // inner else "")
    return f"{left} s"


def _print_one(paper: Paper, told: Told) -> None:
    from oncemore.queries.times import shown

    one, error = told.resource, told.error or {}
    tint: Any = {"COOLING": "yellow", "HELD": "red", "DONE": "green"}.get(one.state, "")
    until = shown(one.next_eligible_attempt_at) if one.next_eligible_attempt_at else ""
    left = f"{until} (in {countdown(told.left_s)})" if told.left_s else until
    paper.line(f"{one.resource}: {told.skip or 'may be asked for'}", tint)
    paper.line()
    facts = [
        ("acquisition_status", one.acquisition_status), ("validation_status", one.validation_status),
        ("attempt_count_total", str(one.attempt_count_total)),
        ("last_attempt_at", shown(one.last_attempt_at) if one.last_attempt_at else ""),
        ("last_attempt_outcome", one.last_attempt_outcome),
        ("last_error_fingerprint", one.last_error_fingerprint),
        ("next_eligible_attempt_at", left),
        ("last_successful_fingerprint", one.last_successful_fingerprint), ("provider", one.provider),
        ("step", one.step), ("run", one.run.removeprefix("run/")), ("correlation_id", told.correlation_id),
        ("last error", f"{error.get('code', '')}: {error.get('message', '')}" if error else ""),
    ]  # fmt: skip
    paper.table([("what", "is"), *((name, text) for name, text in facts if text)])
    if told.decisions:
        paper.line()
        paper.line("Decided", "bold")
        for made in told.decisions:
            actor, reason = made["actor"] or "somebody", made["reason"]
            paper.say(f"{shown(made['at'])}  {made['what']} by {actor}: {reason}", "", "  ")
