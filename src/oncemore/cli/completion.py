"""What a shell can complete: runs, what waits for a person, steps, policies, scenarios.

Whatever goes wrong is no completion: nobody wants to read an error in the middle of a command.
"""

from __future__ import annotations

from oncemore.errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import click
    from click.shell_completion import CompletionItem

    from oncemore.log.store import Store


def _in_store(ctx: click.Context, names: Callable[[Store], list[str]]) -> list[str]:
    from oncemore.queries.open_engine import looked_at

    try:
        with looked_at(ctx.params.get("store")) as store:
            return names(store)
    except Error:
        return []


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a run."""
    from oncemore.queries.runs import names

    return _in_store(ctx, lambda store: names(store, incomplete))


def held(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a run that waits for a person."""
    from oncemore.queries.runs import HELD, names

    return _in_store(ctx, lambda store: names(store, incomplete, state=HELD))


def steps(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a step of which the store has runs."""
    from oncemore.queries.runs import step_names

    return _in_store(ctx, lambda store: step_names(store, incomplete))


def policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a profile, or a path."""
    from click.shell_completion import CompletionItem

    from oncemore.queries.policy_catalogue import rows

    try:
        names: Iterable[str] = [row.name for row in rows() if row.name.startswith(incomplete)]
    except Error:
        return []
    return [*map(CompletionItem, names)] or [CompletionItem(incomplete, type="file")]


def scenarios(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a scenario."""
    from oncemore.demo.kfm_loop import scenarios

    return list(dict.fromkeys(one.name for one in scenarios() if one.name.startswith(incomplete)))
