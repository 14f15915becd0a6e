"""The program `oncemore`: what people and shells type.

Commands only read arguments, ask the service (`oncemore.queries`) and print. What a command
needs beyond click is imported when it runs, so that the program starts about as fast as click does.

How it ends is an interface (docs/reference/cli.md):

    0     done
    1     the answer is no: a policy is invalid, two policies differ and --exit-code was given, a decision
          came too late, a log is not whole, a copy is held, keys to be imported are something else, a
          store cannot be used or is not healthy, a replay does not agree, a policy cannot be exported
    2     the question was wrong: an unknown name, option, file or value
    130   interrupted

Whatever goes wrong is one sentence on stderr with the next step in it; with --json it is one JSON
document there. When the reader of a pipe has seen enough, nothing is said.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading

import click

from oncemore._startup import restore_signals
from oncemore.cli.commands import root
from oncemore.cli.output import Paper, hush
from oncemore.errors import Error, PolicyError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

NO = 1
WRONG = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and end the process with its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False))
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] != ["exec"]:  # which ends quietly on a signal until it handles signals itself
        restore_signals()
    _leave(run(words))


def _leave(code: int) -> NoReturn:
    """End the process, and do not take the interpreter apart first: that is a sixth of a short command.

    What wants to be done at the end is done; with other threads at work it ends as any program does.
    """
    if threading.active_count() == 1:
        atexit._run_exitfuncs()  # noqa: SLF001 - as `multiprocessing` and `concurrent.futures` have it run
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # told already, if there was something to tell
            hush(stream)
    if threading.active_count() == 1:
        os._exit(code)
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every foreseen error is told on stderr."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments  # the rest is a program's
    paper = Paper(sys.stderr, in_json="--json" in own)
    try:
        answer = root.main(list(arguments), prog_name="oncemore", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return WRONG
    except click.ClickException as error:
        paper.error(_sentence(error), _help_of(error))
        return _wrong(error)
    except UsageError as error:
        paper.error(str(error))
        # A file with faults is an answer; everything else that is refused was a wrong question.
        return NO if isinstance(error, PolicyError) and hasattr(error, "faults") else WRONG
    except Error as error:  # it was asked rightly, and the log or the store says no
        paper.error(str(error))
        return NO
    except BrokenPipeError:
        hush(sys.stdout)
        return 0
    except OSError as error:
        _tell(paper, error)
        return WRONG
    return answer if isinstance(answer, int) else 0


def kfm_replay() -> NoReturn:
    """Be the program `kfm-replay`: `kfm-replay --run ID` is `oncemore replay --run ID` (REPLAY-1)."""
    main(["replay", *sys.argv[1:]])


def _tell(paper: Paper, error: OSError) -> None:
    if error.filename:
        paper.error(
            f"{error.filename}: {error.strerror}.", "Look at the path, and at who may read and write there."
        )
    else:
        paper.error(f"cannot write: {error.strerror or error}.", "Give the output another place.")


def _sentence(error: click.ClickException) -> str:
    text = error.format_message().strip()
    return text if text.endswith((".", "?", ")")) else f"{text}."


def _wrong(error: click.ClickException) -> int:
    """Return the code of a wrong question: that of the command, which may have to keep apart from others."""
    where = getattr(error, "ctx", None)
    return int(getattr(where.command, "wrong", WRONG)) if where else WRONG


def _help_of(error: click.ClickException) -> str:
    where = getattr(error, "ctx", None)
    return f"`{where.command_path} --help` shows how it is used." if where else ""
