"""Parameters of commands: types for durations, sizes and pairs, shell completion, and --version.

Run ids, step names, policies and demo scenarios are completed. An error gives no completions: its message
would be printed into the command line being typed.
"""

from __future__ import annotations

import math
import re

import click

from oncemore._version import __version__
from oncemore.errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from click.shell_completion import CompletionItem

    from oncemore.log.store import Store

_UNIT_SECONDS = {
    "": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0,
    "y": 31_557_600.0,
}  # fmt: skip
_UNIT_BYTES = {"": 1, "B": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


class DurationParam(click.ParamType[float]):
    """A duration in seconds, or with units: 90, 1.5h, 2m30s."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a duration; refuse a text that is only partly one."""
        # click also converts the default value, which is a number already.
        if isinstance(value, float):
            return value
        seconds = parse_duration(str(value))
        if seconds is None:
            self.fail(
                f"{value!r} is not a duration; write seconds, or 500ms, 90s, 5m, 1h30m, 90d.", param, ctx
            )
        return seconds


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration, or None if the text is not a duration."""
    text = text.strip()
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdwy]?)", text)
    # `findall` skips characters between two matches; joined again, the parts must give the whole text.
    if not parts or "".join(number + unit for number, unit in parts) != text.replace(" ", ""):
        return None
    # "1 30" and "5m30" are ambiguous: only a single number may stand without a unit.
    if len(parts) > 1 and any(not unit for _, unit in parts):
        return None
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    return seconds if math.isfinite(seconds) else None


def format_span(seconds: float) -> str:
    """Format a duration for reading: 0.1 s, 45 s, 12 min 05 s, 1 h 02 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


class SizeParam(click.ParamType[int]):
    """A size in bytes, or with the unit K, M or G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a size; the units are powers of 1024."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})([BKMG]?)i?B?", str(value).strip(), re.IGNORECASE)
        if match is None:
            self.fail(f"{value!r} is not a size; write bytes, or 500K, 10M, 2G.", param, ctx)
        return int(match[1]) * _UNIT_BYTES[match[2].upper()]


class PairParam(click.ParamType[tuple[str, str]]):
    """A name and its value."""

    name = "pair"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Parse NAME=VALUE; only the first equals sign separates."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        # A NUL byte cannot be passed in the environment of a process.
        if not name or not equals or "\0" in text:
            self.fail(f"{value!r} is not of the form NAME=VALUE.", param, ctx)
        return name, text


DURATION, SIZE, PAIR = DurationParam(), SizeParam(), PairParam()


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
    from oncemore.demo.kfm_loop_demo import list_names

    return [name for name in list_names() if name.startswith(incomplete)]


def _print_version(context: click.Context, _: click.Parameter, is_given: bool) -> None:
    """Print the version, then the optional parts; scripts read the first line."""
    if not is_given or context.resilient_parsing:
        return
    # Only this option needs the metadata of installed packages, which takes time to import.
    from oncemore.queries.extras import describe_parts

    click.echo("\n".join([f"oncemore {__version__}", "", "Optional parts:", *describe_parts()]))
    context.exit()


version_option = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the optional parts that are installed.",
)
