"""`oncemore runs submit`, `cancel` and `rerun`: commands for one call of a step, named by its arguments."""

from __future__ import annotations

from typing import Any

import click

from oncemore.cli import params
from oncemore.cli.commands import (
    CommandReport,
    by_option,
    combine_options,
    documented_command,
    json_option,
    reason_option,
    store_option,
    value_option,
    write_report,
)
from oncemore.cli.decisions import decision_options
from oncemore.cli.params import DURATION, PAIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    ArgumentPairs = tuple[tuple[str, str], ...]

SUBMIT_EXAMPLES = """
oncemore runs submit shop.orders:ship order=A-17
oncemore runs submit shop.orders:ship --args '{"order": "A-17", "lines": [1, 2]}' --in 1h
"""
CANCEL_EXAMPLES = """
oncemore runs cancel shop.orders:ship order=A-17 --reason 'the order was withdrawn'
oncemore runs cancel shop.orders --run 01a1e211 --reason 'the order was withdrawn'
"""
RERUN_EXAMPLES = """
oncemore runs rerun shop.orders:ship order=A-17 --reason 'the address is right now'
oncemore runs rerun shop.orders --run 01a1e211 --reason 'the carrier is back'
"""

step_argument = click.argument("address", metavar="MODULE[:STEP]")
run_option = value_option(
    "--run",
    "RUN",
    "Id or key of a run, instead of arguments; the recorded arguments are used.",
    shell_complete=params.complete_runs,
)
pairs_argument = click.argument("pairs", metavar="[NAME=VALUE]...", nargs=-1, type=PAIR)
args_option = value_option("--args args_json", "JSON", "Arguments as a JSON object.")


def step_command(name: str, examples: str, *more: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator for a command that names a step and its arguments.

    more  the options that only this command has
    """

    options = combine_options(step_argument, pairs_argument, args_option, *more, store_option, json_option)
    return lambda function: documented_command(name, examples)(options(function))


def _call_step(
    verb: str, address: str, pairs: ArgumentPairs, args_json: str | None, store: str | None, **options: Any
) -> Any:
    """Import the step, call one of its methods for a run, and return the run."""
    from oncemore.queries.step_commands import order_by_arguments, order_by_run
    from oncemore.queries.stores import open_or_create

    run = options.pop("run", None)
    if run is not None and (pairs or args_json is not None):
        raise click.UsageError("Give either --run or arguments.", click.get_current_context())
    # `submit` can be the first use of a store.
    with open_or_create(store) as engine:
        if run is not None:
            return order_by_run(engine, verb, address, run, **options)
        return order_by_arguments(engine, verb, address, pairs, args_json, **options)


def _print_run(run: Any, in_json: bool) -> int:
    record = run.state
    fields = {"run_id": record.run_id, "step": record.step, "key": run.key, "status": run.status}
    # A due time of 0 means at once, which has no time in JSON.
    value = {**fields, "reason": record.reason, "due": record.not_before or None}
    text = f"{record.step} {record.run_id}: {run.status}{f' ({record.reason})' if record.reason else ''}"
    return write_report(CommandReport(value, lambda out: out.write_line(text)), in_json)


@step_command(
    "submit",
    SUBMIT_EXAMPLES,
    value_option("--in delay_s", "TIME", "Start after a delay: 90s, 5m, 1h30m.", type=DURATION),
    by_option,
)
def submit(
    address: str,
    pairs: ArgumentPairs,
    args_json: str | None,
    delay_s: float | None,
    by: str | None,
    store: str | None,
    in_json: bool,
) -> int:
    """Submit work for a worker to run.

    A key is submitted once: if it has a run already, that run is printed with its state. Values are
    converted by the annotations of the step's parameters.
    """
    from datetime import timedelta

    # A relative time: the store adds its own clock, which may differ from that of this machine.
    at = None if delay_s is None else timedelta(seconds=delay_s)
    return _print_run(_call_step("submit", address, pairs, args_json, store, at=at, by=by), in_json)


@step_command("cancel", CANCEL_EXAMPLES, run_option, reason_option, decision_options)
def cancel(in_json: bool, **options: Any) -> int:
    """Cancel work: no further attempt starts.

    A waiting run ends as cancelled. A running attempt is not interrupted; if it commits, its result stays.
    """
    return _print_run(_call_step("cancel", **options), in_json)


@step_command("rerun", RERUN_EXAMPLES, run_option, reason_option, decision_options)
def rerun(in_json: bool, **options: Any) -> int:
    """Run permanently failed work again.

    The work runs in this process, with a new budget of attempts.
    """
    return _print_run(_call_step("rerun", **options), in_json)
