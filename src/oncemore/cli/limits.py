"""`oncemore breakers` and `oncemore resources`: who is left alone, who is asked less, and for how long."""

from __future__ import annotations

import click

from oncemore.cli.commands import Branch, json_option, leaf, store_option
from oncemore.cli.maintenance import by_option, reason_option
from oncemore.cli.output import Paper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BREAKERS = """
oncemore breakers --json
oncemore breakers list --state OPEN --json
oncemore breakers show stac.example
oncemore breakers reset stac.example --by operator --reason 'it was our own network'
"""
RESOURCES = """
oncemore resources
oncemore resources show stac.example --json
"""
STATES = ("CLOSED", "OPEN", "HALF_OPEN")
_name = click.argument("name", metavar="NAME", help="The provider, as the list has it.")


@click.group(
    "breakers",
    cls=Branch,
    homes={"list": "limits:list_", "show": "limits:show", "reset": "limits:reset"},
    examples=BREAKERS,
    usual="list",
)
def breakers() -> None:
    """See which providers are left alone, and until when.

    Without a command it is `list`, with all of its options.
    """


@leaf("list", "oncemore breakers list\noncemore breakers list --state OPEN --json")
@click.option("--state", metavar="WORD", type=click.Choice(STATES), help=f"Only {', '.join(STATES)}.")
@store_option
@json_option
def list_(state: str | None, store: str | None, in_json: bool) -> None:
    """List the breakers of a store, those that are open first."""
    from oncemore.cli.limit_tables import print_breakers
    from oncemore.queries import limits
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        found, now = limits.breakers(engine, state), engine.now()
    paper = Paper(in_json=in_json)
    paper.json([one._asdict() for one in found]) if in_json else print_breakers(paper, found, now)


@leaf("show", "oncemore breakers show stac.example\noncemore breakers show stac.example --json")
@_name
@store_option
@json_option
def show(name: str, store: str | None, in_json: bool) -> None:
    """Show one breaker, and what last happened to it."""
    from oncemore.cli.limit_tables import print_breaker
    from oncemore.queries import limits as gates
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        (found, moves), now = gates.breaker(engine, name), engine.now()
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json({**found._asdict(), "moves": [move._asdict() for move in moves]})
    else:
        print_breaker(paper, found, moves, now)


@leaf("reset", "oncemore breakers reset stac.example --by operator --reason 'it was our own network'")
@_name
@reason_option
@by_option
@store_option
@json_option
def reset(name: str, reason: str, by: str | None, store: str | None, in_json: bool) -> None:
    """Close a breaker before its time: somebody knows that its provider is well.

    Runs that wait for the end of its cooldown keep their time; a call of them goes on at once.
    """
    from oncemore.queries import limits as gates
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        found = gates.reset(engine, name, reason, by)
    paper = Paper(in_json=in_json)
    paper.json(found._asdict()) if in_json else paper.line(f"{found.name}: {found.state}", "green")


@click.group(
    "resources",
    cls=Branch,
    homes={"list": "limits:list_resources", "show": "limits:show_resource"},
    examples=RESOURCES,
    usual="list",
)
def resources() -> None:
    """See what those who share a provider may do.

    How many calls at once, how many in a time, what their retries have left. Without a command it is `list`,
    with all of its options.
    """


@leaf("list", "oncemore resources list\noncemore resources list --json")
@store_option
@json_option
def list_resources(store: str | None, in_json: bool) -> None:
    """List paces, rates and retry budgets, by provider."""
    _resources(None, store, in_json=in_json)


@leaf("show", "oncemore resources show stac.example\noncemore resources show stac.example --json")
@_name
@store_option
@json_option
def show_resource(name: str, store: str | None, in_json: bool) -> None:
    """Show the pace, the rate and the retry budget of one provider."""
    _resources(name, store, in_json=in_json)


def _resources(name: str | None, store: str | None, *, in_json: bool) -> None:
    from oncemore.cli.limit_tables import print_resources
    from oncemore.queries import limits as gates
    from oncemore.queries.open_engine import there

    with there(store) as engine:
        found: Any = gates.resources(engine) if name is None else [gates.resource(engine, name)]
        now = engine.now()
    paper = Paper(in_json=in_json)
    if in_json:
        plain = [one._asdict() for one in found]
        paper.json(plain if name is None else plain[0])
    else:
        print_resources(paper, found, now)
