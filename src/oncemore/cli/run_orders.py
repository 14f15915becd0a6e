"""`oncemore submit`, `cancel` and `rerun`: orders about a step's work, by its name and arguments."""

from __future__ import annotations

from typing import Any

import click

from oncemore.cli import completion
from oncemore.cli.commands import json_option, leaf, store_option
from oncemore.cli.maintenance import by_option, reason_option
from oncemore.cli.output import Paper
from oncemore.cli.params import DURATION, PAIR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Words = tuple[tuple[str, str], ...]

SUBMIT = """
oncemore submit shop.orders:ship order=A-17
oncemore submit shop.orders:ship --args '{"order": "A-17", "lines": [1, 2]}' --in 1h
"""
CANCEL = """
oncemore cancel shop.orders:ship order=A-17 --by operator --reason 'the order was withdrawn'
oncemore cancel shop.orders --run 01a1e211 --reason 'the order was withdrawn'
"""
RERUN = """
oncemore rerun shop.orders:ship order=A-17 --by operator --reason 'the address is right now'
oncemore rerun shop.orders --run 01a1e211 --reason 'the carrier is back'
"""

step_argument = click.argument("address", metavar="MODULE[:STEP]")
run_option = click.option(
    "--run",
    metavar="RUN",
    shell_complete=completion.runs,
    help="A run's id or key instead of its arguments, which are then those on record.",
)
words_argument = click.argument("words", metavar="[NAME=VALUE]...", nargs=-1, type=PAIR)
args_option = click.option("--args", "whole", metavar="JSON", help="Arguments as a JSON object.")


def ordering(name: str, examples: str, *more: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a command of an order: all of them name a step and its arguments."""

    def decorate(function: Any) -> Any:
        for option in (json_option, store_option, by_option, *reversed(more), args_option, words_argument):
            function = option(function)
        return leaf(name, examples)(step_argument(function))

    return decorate


def _give(what: str, address: str, words: Words, whole: str | None, store: str | None, **told: Any) -> Any:
    from oncemore.queries.open_engine import made
    from oncemore.queries.orders import order, order_about

    run = told.pop("run", None)
    if run is not None and (words or whole is not None):
        raise click.UsageError("Give either --run or arguments.", click.get_current_context())
    with made(store) as engine:
        if run is not None:
            return order_about(engine, what, address, run, **told)
        return order(engine, what, address, words, whole, **told)


def _tell(run: Any, in_json: bool) -> int:
    state, paper = run.state, Paper(in_json=in_json)
    if in_json:
        told = {"run_id": state.run_id, "step": state.step, "key": run.key, "status": run.status}
        paper.json({**told, "reason": state.reason, "due": state.not_before or None})
    else:
        paper.line(f"{state.step} {state.run_id}: {run.status}{f' ({state.reason})' if state.reason else ''}")
    return 0


@ordering(
    "submit",
    SUBMIT,
    click.option("--in", "later", metavar="TIME", type=DURATION, help="Not before so long: 90s, 5m, 1h30m."),
)
def submit(
    address: str,
    words: Words,
    whole: str | None,
    later: float | None,
    by: str | None,
    store: str | None,
    in_json: bool,
) -> int:
    """Hand work in for some worker to do.

    It is handed in once: where the key has a run, that one is told, whatever its state. Values
    are read as the annotations of the step's parameters say.
    """
    from datetime import timedelta

    at = None if later is None else timedelta(seconds=later)
    return _tell(_give("submit", address, words, whole, store, at=at, by=by), in_json)


@ordering("cancel", CANCEL, run_option, reason_option)
def cancel(in_json: bool, **told: Any) -> int:
    """Let no further attempt of some work begin.

    What waits ends as cancelled. What runs is not cut off: if it commits, that stands.
    """
    return _tell(_give("cancel", **told), in_json)


@ordering("rerun", RERUN, run_option, reason_option)
def rerun(in_json: bool, **told: Any) -> int:
    """Run work that failed for good once more.

    Here and now, with a new budget of attempts.
    """
    return _tell(_give("rerun", **told), in_json)
