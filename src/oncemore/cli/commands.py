"""The tree of commands: names first, their modules when they are called.

`Branch` is a click group whose commands live in modules of their own, named in a table; `Leaf` is a
click command whose help ends with examples, as typed. A new command is one line in a table.
"""

from __future__ import annotations

import math

import click

from oncemore._version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


class Finite(click.ParamType[float]):
    """A finite number, not below a bound."""

    name = "number"

    def __init__(self, low: float = -math.inf) -> None:
        self.low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number; infinity and "not a number" are none that a proof could hold."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not self.low <= number < math.inf or number == -math.inf:
            bound = "" if self.low == -math.inf else f" from {self.low:g} on"
            self.fail(f"{value!r} is not a number{bound}.", param, ctx)
        return number


class Whole(click.IntRange):
    """A whole number within bounds; what is none is told in words of people."""

    name = "whole number"


class OneOf(click.Choice[str]):
    """One of some words, in capitals or not; they are told as they are written."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words, case_sensitive=False)

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """Take a word in capitals."""
        return str(choice).upper()


class Leaf(click.Command):
    """A command whose help shows its options in named groups, and ends with examples.

    wrong  the exit code of a wrong question
    """

    wrong = 2

    def __init__(self, *args: Any, examples: str = "", groups: dict[str, str] | None = None, **kw: Any):
        super().__init__(*args, **kw)
        self.examples = examples
        self.groups = groups or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group: a title for some names, and "Options" for all others."""
        titled = {name: title for title, names in self.groups.items() for name in names.split()}
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *self.groups)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                sections[titled.get(parameter.name or "", "Options")].append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, one line each."""
        write_examples(self.examples, formatter)


class Branch(click.Group):
    """A group whose commands are imported when they are asked for.

    usual        the command that the group stands for without one; `--json` and `--store` may then stand
                 before any
    takes_words  whether a word that names no command is an argument of the usual one
    """

    def __init__(
        self, *args: Any, homes: dict[str, str], examples: str = "", usual: str = "",
        takes_words: bool = False, **kw: Any,
    ):  # fmt: skip
        super().__init__(*args, **kw)
        self.takes_words = takes_words
        self.homes = homes
        self.examples = examples
        self.usual = usual

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the command first: the one that is given, or the usual one."""
        return super().parse_args(ctx, self._with_command(args) if self.usual else args)

    def _with_command(self, args: list[str]) -> list[str]:
        at = 0
        while at < len(args) and args[at].partition("=")[0] in ("--json", "--store"):
            at += 2 if args[at] == "--store" else 1
        if at < len(args) and args[at] in self.homes:
            return [args[at], *args[:at], *args[at + 1 :]]
        is_word = bool(args) and not args[0].startswith("-") and not self.takes_words
        return args if is_word or args[:1] in (["-h"], ["--help"]) else [self.usual, *args]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.homes:
            return None
        from importlib import import_module

        module, _, name = self.homes[cmd_name].partition(":")
        found = getattr(import_module(f"oncemore.cli.{module}"), name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or name the ones that it may have meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=self.homes, ctx=ctx
            ) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, one line each."""
        write_examples(self.examples, formatter)


def write_examples(examples: str, formatter: click.HelpFormatter) -> None:
    """Write examples as they are typed; a line is never broken."""
    if examples:
        with formatter.section("Examples"):
            for line in examples.strip().splitlines():
                formatter.write(f"  {line.strip()}\n")


def leaf(name: str, examples: str, groups: dict[str, str] | None = None) -> Callable[..., Leaf]:
    """Make a command of a function; its docstring is the help."""
    return click.command(name, cls=Leaf, examples=examples, groups=groups)


json_option = click.option(
    "--json", "in_json", is_flag=True, help="Print one JSON document, and nothing else."
)
ids_option = click.option(
    "--ids", "only_ids", is_flag=True, help="Print ids alone, one on each line, for another command."
)
store_option = click.option(
    "--store",
    metavar="URL",
    help="The store: sqlite:///path, a path, postgresql://… or nats://…; else as steps find it.",
)

ROOT = """
oncemore demo
oncemore exec --key report-2026-11 --effect idempotent -- ./monthly-report.sh
oncemore runs --state HARD_FAIL --since 1d
oncemore explain 0193a000 --attempt 3
oncemore doctor
oncemore policy list
oncemore policy show kfm-loop
oncemore key --operation kill_switch_update --tenant tenant-123
oncemore export asl nova-cat --out nova-cat.asl.json
oncemore quarantine list
oncemore breakers
oncemore cooldowns list
oncemore worker shop.orders
oncemore inbox shop.orders:book --from nats://localhost:4222/ORDERS/shop
"""


@click.group(
    cls=Branch,
    homes={
        "exec": "exec:exec_",
        "runs": "runs:runs",
        "show": "runs:show",
        "explain": "runs:explain",
        "replay": "replay:replay",
        "tail": "tail:tail",
        "audit": "audit:audit",
        "doctor": "doctor:doctor",
        "health": "doctor:health",
        "policy": "policy:policy",
        "key": "key:key",
        "export": "export:export",
        "asl": "export:asl_branch",
        "worker": "worker:worker",
        "inbox": "inbox:inbox",
        "submit": "run_orders:submit",
        "cancel": "run_orders:cancel",
        "rerun": "run_orders:rerun",
        "quarantine": "quarantine:quarantine",
        "switch": "control:switch",
        "approve": "control:approve",
        "breakers": "limits:breakers",
        "resources": "limits:resources",
        "cooldowns": "cooldowns:cooldowns",
        "import": "import_keys:bring_in",
        "import-runs": "run_documents:import_runs",
        "prune": "maintenance:prune",
        "erase": "maintenance:erase",
        "backup": "maintenance:backup",
        "restore": "maintenance:restore",
        "copy": "copy:copy",
        "sizes": "maintenance:sizes",
        "verify": "maintenance:verify",
        "demo": "demo:demo",
    },
    examples=ROOT,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="oncemore", message="%(prog)s %(version)s")
def root() -> None:
    """Try it once more. Apply it once.

    Run programs once per key; look at what ran and why, replay it, check its store; look at policies
    before they run, write them for Step Functions, compute keys, do work that was handed in, decide about
    what waits for a person, keep house, and see it work.
    """
