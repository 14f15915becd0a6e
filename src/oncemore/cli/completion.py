"""Shell completion of run ids, quarantined runs, step names, policies and demo scenarios.

An error gives no completions: its message would be printed into the command line being typed.
"""

from __future__ import annotations

from oncemore.errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import click
    from click.shell_completion import CompletionItem

    from oncemore.log.store import Store


def _complete_from_store(ctx: click.Context, list_names: Callable[[Store], list[str]]) -> list[str]:
    from oncemore.queries.stores import open_read_only

    try:
        # Read-only, so that pressing Tab never creates a store or waits for a writer.
        with open_read_only(ctx.params.get("store")) as store:
            return list_names(store)
    except Error:
        return []


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a run."""
    from oncemore.queries.runs import complete_run_ids

    return _complete_from_store(ctx, lambda store: complete_run_ids(store, incomplete))


def complete_held_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the id of a run that is held for a person."""
    from oncemore.queries.runs import HELD, complete_run_ids

    return _complete_from_store(ctx, lambda store: complete_run_ids(store, incomplete, state=HELD))


def complete_steps(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a step that has runs in the store."""
    from oncemore.queries.runs import complete_step_names

    return _complete_from_store(ctx, lambda store: complete_step_names(store, incomplete))


def complete_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a profile; if none matches, the shell completes a file path."""
    from click.shell_completion import CompletionItem

    from oncemore.queries.policy_catalogue import list_profiles

    try:
        names: Iterable[str] = [row.name for row in list_profiles() if row.name.startswith(incomplete)]
    except Error:
        return []
    return [*map(CompletionItem, names)] or [CompletionItem(incomplete, type="file")]


def complete_scenarios(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a scenario of `oncemore demo kfm-loop`."""
    from oncemore.demo.kfm_loop_demo import list_scenarios

    # Several scenarios share a name; a dictionary removes the duplicates and keeps the order.
    names = (scenario.name for scenario in list_scenarios())
    return list(dict.fromkeys(name for name in names if name.startswith(incomplete)))
