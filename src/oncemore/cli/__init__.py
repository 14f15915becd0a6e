"""The `oncemore` program: commands that parse arguments, call `oncemore.queries` and print the result.

It may import every other folder except `dashboard`. A command imports everything beyond click when it runs,
so that the program starts about as fast as click does.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading

import click

from oncemore._startup import restore_signals
from oncemore.cli.commands import root
from oncemore.cli.output import OutputWriter, discard_output
from oncemore.errors import Error, PolicyError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

# The exit codes are an interface for scripts: docs/reference/cli.md lists what leads to each.
#: The command ran and its answer is negative: an invalid policy, a damaged log, an unhealthy store.
EXIT_NO = 1
#: The command line is wrong: an unknown name, option, file or value.
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and end the process with its exit code."""
    for name in ("stdout", "stderr"):
        # Python sets a stream to None if the parent process closed its descriptor.
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False))
    words = sys.argv[1:] if arguments is None else arguments
    # `exec` keeps the quiet signal handlers of the start until it has installed its own.
    if words[:1] != ["exec"]:
        restore_signals()
    _exit_process(run_command(words))


def _exit_process(code: int) -> NoReturn:
    """End the process without finalizing the interpreter, which takes a sixth of a short command's time.

    Exit handlers run first. If other threads are still running, the process exits in the usual way.
    """
    if threading.active_count() == 1:
        atexit._run_exitfuncs()  # noqa: SLF001 - no public function runs them before `os._exit`
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # The command has reported the broken stream already; the interpreter must not report it again.
            discard_output(stream)
    if threading.active_count() == 1:
        os._exit(code)
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    An expected error is printed on stderr as one sentence with the next step, or with --json as one JSON
    document. A reader that closes the pipe early is not an error.
    """
    # The arguments after `--` belong to the program that `exec` runs.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    out = OutputWriter(sys.stderr, in_json="--json" in own)
    try:
        result = root.main(list(arguments), prog_name="oncemore", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        out.write_error(_format_error(error), _usage_hint(error))
        return _usage_exit_code(error)
    except UsageError as error:
        out.write_error(str(error))
        # A policy file with faults is a negative answer; every other usage error is a wrong command line.
        return EXIT_NO if isinstance(error, PolicyError) and hasattr(error, "faults") else EXIT_USAGE
    except Error as error:
        # The command line was right; the log or the store refused.
        out.write_error(str(error))
        return EXIT_NO
    except BrokenPipeError:
        discard_output(sys.stdout)
        return 0
    except OSError as error:
        _print_os_error(out, error)
        return EXIT_USAGE
    return result if isinstance(result, int) else 0


def kfm_replay() -> NoReturn:
    """Run the program `kfm-replay`: `kfm-replay --run ID` is `oncemore replay --run ID` (REPLAY-1)."""
    main(["replay", *sys.argv[1:]])


def _print_os_error(out: OutputWriter, error: OSError) -> None:
    if error.filename:
        out.write_error(
            f"{error.filename}: {error.strerror}.", "Check the path and its read and write permissions."
        )
    else:
        out.write_error(
            f"cannot write the output: {error.strerror or error}.", "Write it to another file or device."
        )


def _format_error(error: click.ClickException) -> str:
    text = error.format_message().strip()
    return text if text.endswith((".", "?", ")")) else f"{text}."


def _usage_exit_code(error: click.ClickException) -> int:
    """Return the exit code for a usage error; `exec` has its own, apart from those of its program."""
    context = getattr(error, "ctx", None)
    return int(getattr(context.command, "usage_exit_code", EXIT_USAGE)) if context else EXIT_USAGE


def _usage_hint(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"See `{context.command_path} --help`." if context else ""
