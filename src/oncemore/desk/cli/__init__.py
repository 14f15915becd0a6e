"""The program `oncemore`: what people and shells type.

Commands only read arguments, ask the service (`oncemore.desk.service`) and print. What a command
needs beyond click is imported when it runs, so that the program starts about as fast as click does.

How it ends is an interface (docs/reference/cli.md):

    0     done
    1     the answer is no: a policy is invalid, two policies differ and --exit-code was given
    2     the question was wrong: an unknown name, option, file or value
    130   interrupted

Whatever goes wrong is one sentence on stderr with the next step in it; with --json it is one JSON
document there. When the reader of a pipe has seen enough, nothing is said.
"""

from __future__ import annotations

import sys

import click

from oncemore.desk.cli.group import root
from oncemore.desk.cli.paper import Paper, hush
from oncemore.errors import PolicyError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

NO = 1
WRONG = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and end the process with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    code = run(given)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        hush(sys.stdout)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every foreseen error is told on stderr."""
    paper = Paper(sys.stderr, in_json="--json" in arguments)
    try:
        answer = root.main(list(arguments), prog_name="oncemore", standalone_mode=False)
    except click.Abort:
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return WRONG
    except click.ClickException as error:
        paper.error(_sentence(error), _help_of(error))
        return WRONG
    except PolicyError as error:
        paper.error(str(error), "`oncemore policy check FILE` lists every fault of a file.")
        return NO
    except UsageError as error:
        paper.error(str(error))
        return WRONG
    except BrokenPipeError:
        hush(sys.stdout)
        return 0
    except OSError as error:
        text = f"{error.filename}: {error.strerror}." if error.filename else f"{error}."
        paper.error(text, "Look at the path, and at who may read and write there.")
        return WRONG
    return answer if isinstance(answer, int) else 0


def _sentence(error: click.ClickException) -> str:
    text = error.format_message().strip()
    return text if text.endswith((".", "?", ")")) else f"{text}."


def _help_of(error: click.ClickException) -> str:
    where = getattr(error, "ctx", None)
    return f"`{where.command_path} --help` shows how it is used." if where else ""
