"""The command tree of `oncemore`, and the click classes that its commands are built from.

`LazyGroup` imports the module of a command when the command is called. A new command is one line in the
`modules` table of its group.
"""

from __future__ import annotations

import math
from functools import wraps
from typing import NamedTuple

import click

from oncemore.cli.params import version_option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, TypeVar

    from oncemore.cli.output import OutputWriter

    F = TypeVar("F", bound=Callable[..., Any])


class FiniteNumber(click.ParamType[float]):
    """A finite number, not below a bound."""

    name = "number"

    def __init__(self, low: float = -math.inf) -> None:
        self.low = low

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a number; refuse infinity and NaN, which the JSON of a proof cannot hold."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not self.low <= number < math.inf or number == -math.inf:
            bound = "" if self.low == -math.inf else f" >= {self.low:g}"
            self.fail(f"{value!r} is not a number{bound}.", param, ctx)
        return number


class WholeNumber(click.IntRange):
    """A whole number within bounds; its errors say "whole number" where click says "integer"."""

    name = "whole number"


class WordChoice(click.Choice[str]):
    """One of several words, case-insensitive; help and errors show them as they are defined."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(words, case_sensitive=False)

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """Return the word in capitals."""
        return str(choice).upper()


class DocumentedCommand(click.Command):
    """A command with grouped options and examples in its help.

    usage_exit_code  the exit code if the command line is wrong
    """

    usage_exit_code = 2

    def __init__(self, *args: Any, examples: str = "", groups: dict[str, str] | None = None, **kw: Any):
        super().__init__(*args, **kw)
        self.examples = examples
        self.groups = groups or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group; options without a group come first, under "Options"."""
        titled = {name: title for title, names in self.groups.items() for name in names.split()}
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *self.groups)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            # click's own section "Positional arguments" shows the arguments.
            if record is not None and not isinstance(parameter, click.Argument):
                sections[titled.get(parameter.name or "", "Options")].append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, one per line."""
        write_examples(self.examples, formatter)


class LazyGroup(click.Group):
    """A group that imports each command when it is called.

    modules          command name to "module:function" below `oncemore.cli`
    default_command  the command to run if none is given; `--json` and `--store` may then precede a command
    takes_words      whether a word that is not a command is an argument of the default command
    sections         titles with the commands below them in the help; without, all are below "Commands"
    """

    def __init__(
        self, *args: Any, modules: dict[str, str], examples: str = "", default_command: str = "",
        takes_words: bool = False, sections: dict[str, tuple[str, ...]] | None = None, **kw: Any,
    ):  # fmt: skip
        super().__init__(*args, **kw)
        self.sections = sections or {"Commands": tuple(modules)}
        self.takes_words = takes_words
        self.modules = modules
        self.examples = examples
        self.default_command = default_command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the command first: the given one, or the default command."""
        return super().parse_args(ctx, self._move_command_first(args) if self.default_command else args)

    def _move_command_first(self, args: list[str]) -> list[str]:
        index = 0
        # `--store` takes the next word as its value, unless it is written `--store=URL`.
        while index < len(args) and args[index].partition("=")[0] in ("--json", "--store"):
            index += 2 if args[index] == "--store" else 1
        if index < len(args) and args[index] in self.modules:
            return [args[index], *args[:index], *args[index + 1 :]]
        # A word that is not a command goes to click unchanged, which reports it as unknown.
        is_word = bool(args) and not args[0].startswith("-") and not self.takes_words
        return args if is_word or args[:1] in (["-h"], ["--help"]) else [self.default_command, *args]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of the table."""
        return list(self.modules)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of the default command too, and then the commands."""
        default = self.get_command(ctx, self.default_command) if self.default_command else None
        # A default group, such as `audit`, has no options of its own.
        if default is not None and not isinstance(default, click.Group):
            default.format_options(ctx, formatter)
            self.format_commands(ctx, formatter)
        else:
            super().format_options(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, with the first sentence of each."""
        widest = max(map(len, self.modules))
        for title, names in self.sections.items():
            with formatter.section(title):
                # One column for all sections; the width is what click leaves for the text.
                limit = formatter.width - 6 - widest
                rows = [(name, self._summary(ctx, name, limit)) for name in names]
                formatter.write_dl([(name.ljust(widest), text) for name, text in rows])

    def _summary(self, ctx: click.Context, name: str, limit: int) -> str:
        command = self.get_command(ctx, name)
        assert command is not None
        return command.get_short_help_str(limit)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command and return the command; None if the name is unknown."""
        if cmd_name not in self.modules:
            return None
        # `oncemore --version` and `--help` of one command need no other module.
        from importlib import import_module

        module, _, name = self.modules[cmd_name].partition(":")
        command = getattr(import_module(f"oncemore.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; the error for an unknown name suggests similar ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            # click would compare the name with the loaded commands, of which there are none yet.
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=self.modules, ctx=ctx
            ) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, one per line."""
        write_examples(self.examples, formatter)


def write_examples(examples: str, formatter: click.HelpFormatter) -> None:
    """Write the section of examples; a line is never wrapped, so that it can be copied."""
    if examples:
        with formatter.section("Examples"):
            for line in examples.strip().splitlines():
                formatter.write(f"  {line.strip()}\n")


def documented_command(
    name: str, examples: str, groups: dict[str, str] | None = None
) -> Callable[..., DocumentedCommand]:
    """Return a decorator that makes a command of a function, with the docstring as its help."""
    return click.command(name, cls=DocumentedCommand, examples=examples, groups=groups)


def value_option(names: str, metavar: str, meaning: str, **settings: Any) -> Callable[[F], F]:
    """Return an option with a value.

    names  its flags and, if it differs, the name of the parameter, separated by spaces
    """
    return click.option(*names.split(), metavar=metavar, help=meaning, **settings)


def choice_option(names: str, words: Sequence[str], meaning: str, **settings: Any) -> Callable[[F], F]:
    """Return an option that takes one of several words."""
    return value_option(names, "WORD", meaning, type=click.Choice(words), **settings)


def flag_option(names: str, meaning: str) -> Callable[[F], F]:
    """Return an option without a value."""
    return click.option(*names.split(), is_flag=True, help=meaning)


def combine_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds several options, in this order of the help."""

    def decorate(command: Any) -> Any:
        # Decorators apply from the inside out, so the last option is added first.
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


json_option = flag_option("--json in_json", "Print one JSON document and nothing else.")
ids_option = flag_option("--ids only_ids", "Print only ids, one per line, as input for another command.")
store_option = value_option(
    "--store",
    "URL",
    "Store: sqlite:///path, a path, postgresql://…, mysql://… or nats://…; default: from the settings.",
)


class CommandReport(NamedTuple):
    """The result of a command: its JSON value, how it is printed as text, and the exit code."""

    value: object
    print_text: Callable[[OutputWriter], object]
    exit_code: int = 0


def store_command(
    name: str, examples: str, groups: dict[str, str] | None = None, *, opener: str = "open_existing"
) -> Callable[..., DocumentedCommand]:
    """Return a decorator that makes a command on a store; its last options are --store and --json.

    The function gets the opened store as its first argument and returns a `CommandReport`. The report is
    written after the store was closed: a reader that pauses the pipe must not keep it open.

    opener  the function of `queries.stores` that opens the store
    """

    def decorate(work: Callable[..., CommandReport]) -> DocumentedCommand:
        @wraps(work)
        def run_command(store: str | None, in_json: bool, **parameters: Any) -> int:
            from oncemore.queries import stores

            # A command that only reads imports no engine.
            if opener != "open_read_only":
                from oncemore.steps.step_log import keep_off_stderr

                keep_off_stderr()
            with getattr(stores, opener)(store) as opened:
                report = work(opened, **parameters)
            return write_report(report, in_json)

        return json_option(store_option(documented_command(name, examples, groups)(run_command)))

    return decorate


def report_command(name: str, examples: str) -> Callable[..., DocumentedCommand]:
    """Return a decorator that makes a command without a store, whose function returns a `CommandReport`."""

    def decorate(work: Callable[..., CommandReport]) -> DocumentedCommand:
        @wraps(work)
        def run_command(in_json: bool, **parameters: Any) -> int:
            return write_report(work(**parameters), in_json)

        return json_option(documented_command(name, examples)(run_command))

    return decorate


def report_ids(ids: Iterable[str]) -> CommandReport:
    """Return the result of a command with --ids: one id per line, as input for another command."""
    listed = list(ids)

    def print_ids(out: OutputWriter) -> None:
        for one in listed:
            out.write_line(one)

    return CommandReport(listed, print_ids)


def write_report(report: CommandReport, in_json: bool) -> int:
    """Write the result of a command as JSON or as text, and return the exit code."""
    from oncemore.cli.output import OutputWriter

    out = OutputWriter(in_json=in_json)
    if in_json:
        out.write_json(report.value)
    else:
        report.print_text(out)
    return report.exit_code


reason_option = value_option("--reason", "TEXT", "The reason; it is recorded.", required=True)
by_option = value_option(
    "--by", "NAME", "Name of the operator, to be recorded; default: the user of this process."
)

ROOT_EXAMPLES = """
oncemore demo
oncemore exec --key report-2026-11 --effect idempotent -- ./monthly-report.sh
oncemore runs --state HARD_FAIL --since 1d
oncemore explain 0193a000 --attempt 3
oncemore worker shop.orders
oncemore quarantine list
oncemore policy show kfm-loop
oncemore store doctor
oncemore lint src
"""
#: The commands by section, in the order of the help: "module:function" below `oncemore.cli`.
ROOT_SECTIONS = {
    "Run work": {
        "exec": "exec:exec_",
        "worker": "worker:worker_group",
        "inbox": "worker:inbox",
        "relay": "relay:relay",
        "workflow": "groups:workflow",
    },
    "Look": {
        "runs": "groups:runs",
        "show": "runs:show",
        "explain": "runs:explain",
        "replay": "replay:replay",
        "watch": "watch:watch",
        "audit": "audit:audit",
        "dashboard": "dashboard:dashboard",
    },
    "Decide": {
        "quarantine": "quarantine:quarantine",
        "escalations": "escalations:escalations",
        "control": "groups:control",
        "limits": "groups:limits",
        "policy": "policy:policy",
    },
    "Prove and plan": {
        "check": "checks:check",
        "ledger": "ledger:ledger",
        "export": "export:export",
        "report": "reports:report",
        "simulate": "groups:simulate",
    },
    "Improve code": {
        "lint": "lint:lint",
        "migrate": "migrate:migrate",
        "init": "init:init",
    },
    "Maintain": {
        "store": "groups:store",
        "completion": "completion:completion",
        "demo": "demo:demo",
    },
}


@click.group(
    cls=LazyGroup,
    modules={name: place for section in ROOT_SECTIONS.values() for name, place in section.items()},
    sections={title: tuple(names) for title, names in ROOT_SECTIONS.items()},
    examples=ROOT_EXAMPLES,
    # click offers only --help by default.
    context_settings={"help_option_names": ["-h", "--help"]},
)
@version_option
def root() -> None:
    """Try it once more. Apply it once.

    Retries that are bounded, recorded and applied once. `oncemore COMMAND --help` has the options and
    examples of a command.
    """
