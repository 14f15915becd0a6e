"""`oncemore exec`: run any program once per key, with durable retries."""

from __future__ import annotations

import math
import os
import sys

import click

from oncemore.cli import params
from oncemore.cli.commands import (
    WholeNumber,
    choice_option,
    documented_command,
    flag_option,
    store_option,
    value_option,
)
from oncemore.cli.decisions import decision_options
from oncemore.cli.output import OutputWriter
from oncemore.cli.params import DURATION, PAIR, SIZE, format_span, parse_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.programs.command import ExecOptions
    from oncemore.programs.exit_rules import ExitRules
    from oncemore.programs.outcome import ExecDecision, ExecOutcome
    from oncemore.steps.engine import Engine

#: An error of `exec` itself; `timeout` and `env` use the same code to stay apart from the program's codes.
EXIT_FAULT = 125

EXAMPLES = """
oncemore exec --key report-11 --effect idempotent --policy kfm-loop -- ./report.sh
oncemore exec --key backup --bucket day --effect idempotent -- rsync -a data/ backup/
oncemore exec --key mail-42 --retry-on-exit 75 --stdin mail.txt -- sendmail -t
oncemore exec --key order-7 --settle applied --reason 'the bank shows it' -- ./charge.sh
"""
OPTION_GROUPS = {
    "Identity": "key key_from_args bucket name inputs tenant correlation_id effect",
    "Governance": "dataset operation masking",
    "Retries": "policy attempts wait retry_on_exit retry_on_output fail_on_exit ok_exit "
    "timeout total_timeout max_wait",
    "Execution": "env secret_env cwd stdin grace leave_running",
    "Output": "keep_output max_output quiet in_json report store",
    "Existing runs": "if_running rerun settle reason by sign_with prepare signed token_file",
}


@documented_command("exec", EXAMPLES, OPTION_GROUPS)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND [ARG]...")
@value_option("--key", "TEXT", "Identity of the work: the same key runs once.")
@flag_option("--key-from-args", "Derive the key from the command, --env, --cwd, --input and --stdin.")
@value_option("--bucket", "TIME", "One run per minute, hour, day, week (UTC) or duration.")
@value_option("--name", "NAME", "Namespace of the key; the step is called exec:NAME.")
@value_option("--input inputs", "FILE", "File that counts by name and content.", multiple=True)
@value_option("--tenant", "ID", "Tenant; a part of the key.")
@value_option("--dataset", "ID", "Dataset that the program works on; see `oncemore control dataset`.")
@value_option("--operation", "NAME", "Operation that it does to the dataset; default: the step's name.")
@value_option("--masking", "N", "Level at which it masks the data, 0 to 100.", type=WholeNumber(0, 100))
@value_option("--correlation-id", "ID", "Correlation id of all records.")
@choice_option(
    "--effect",
    ("once", "idempotent", "pure"),
    "once (default), idempotent or pure: may it run twice?",
    default="once",
)
@value_option(
    "--policy", "ADDRESS", "Retry policy; default: standard.", shell_complete=params.complete_policies
)
@value_option("--attempts", "N", "Maximum number of attempts.", type=WholeNumber(1, 1000))
@value_option("--wait", "TIME,...", "Delays between attempts: 10s,1m,5m.")
@value_option("--retry-on-exit", "CODES", "Exit codes to retry: 1,75,100-110; or any.")
@value_option("--retry-on-output", "REGEX", "Retry a failure if a line of the output matches.", multiple=True)
@value_option("--fail-on-exit", "CODES", "Exit codes never to retry.")
@value_option("--ok-exit", "CODES", "Exit codes that mean success, besides 0.")
@value_option("--timeout", "TIME", "Time limit of one attempt.", type=DURATION)
@value_option("--total-timeout", "TIME", "Time limit of all attempts and delays.", type=DURATION)
@value_option(
    "--max-wait", "TIME", "Exit with 120 before a longer delay; a later call continues.", type=DURATION
)
@value_option(
    "--env", "NAME=VALUE", "Set a variable; part of the key, never stored.", type=PAIR, multiple=True
)
@value_option(
    "--secret-env", "NAME", "A variable to mask in all output; its value is not in the key.", multiple=True
)
@value_option("--cwd", "FOLDER", "Working folder; part of the key as typed.")
@value_option("--stdin", "FILE", "Standard input of each attempt; default: empty.")
@value_option("--grace", "TIME", "Time between SIGTERM and SIGKILL.", type=DURATION, default=10.0)
@flag_option("--leave-running", "Do not end background processes of the program.")
@choice_option(
    "--keep-output",
    ("always", "failed", "never"),
    "Store the output always, of failed attempts, or never.",
    default="always",
)
@value_option("--max-output", "SIZE", "Stored bytes per stream at most.", type=SIZE, default="10M")
@flag_option("--quiet", "Print neither output nor remarks, only errors.")
@flag_option("--json in_json", "Print one line of JSON on standard error at the end.")
@value_option("--report", "FILE", "Write that JSON to a file.")
@store_option
@choice_option("--if-running", ("wait", "fail"), "If another process runs it: wait, or fail.", default="wait")
@flag_option("--rerun", "Run permanently failed work again; needs --reason.")
@choice_option(
    "--settle", ("applied", "not-applied"), "Outcome of a lost attempt: applied, not-applied; needs --reason."
)
@value_option("--reason", "TEXT", "The reason; it is recorded.")
@decision_options
def exec_(command: tuple[str, ...], **options: Any) -> int:
    """Run a program once per key, with durable retries.

    The output of the program is printed and stored; its exit code is passed on. A repeated call prints the
    stored output and ends with the same exit code, without running the program.
    """
    from oncemore._platform import require_posix
    from oncemore.errors import Error

    require_posix("oncemore exec", "In Python, oncemore.step runs work once per key")
    from oncemore.programs.signals import SignalListener, SignalReceived
    from oncemore.steps.step_log import keep_off_stderr

    keep_off_stderr()
    out = OutputWriter(sys.stderr, in_json=options["in_json"])
    try:
        with SignalListener() as signals:
            return _run_program(out, signals, command, options)
    except SignalReceived as received:
        # The shell's convention for a program that a signal has ended.
        return 128 + received.number
    except Error as error:
        out.write_error(f"{error}")
        return EXIT_FAULT
    except OSError as error:
        out.write_error(f"{error.filename or 'oncemore'}: {error.strerror or error}.")
        return EXIT_FAULT


# An option after the command belongs to the program: `exec --key a ls --all`.
exec_.context_settings = {"allow_interspersed_args": False}
exec_.usage_exit_code = EXIT_FAULT


def _run_program(out: OutputWriter, signals: Any, command: tuple[str, ...], options: dict[str, Any]) -> int:
    from oncemore.maintenance.tasks import resolve_actor
    from oncemore.programs.outcome import ExecOutcome, run_program_step
    from oncemore.programs.signals import SignalReceived
    from oncemore.queries.stores import open_or_create
    from oncemore.steps.context import context

    # Both are checked before the store is opened, so that a wrong command line creates no store.
    exec_options, decision = _make_options(command, options), _make_decision(options)
    engine = open_or_create(options["store"])
    remarks = Remarks(out, is_silent=options["quiet"] or options["in_json"])
    values = {"tenant": options["tenant"], "actor": resolve_actor(options["by"])}
    # An `exec` inside the program of another `exec` inherits its correlation id.
    values["correlation_id"] = options["correlation_id"] or os.environ.get("ONCEMORE_CORRELATION_ID") or None
    try:
        with engine, context(**values):
            outcome = run_program_step(exec_options, engine, signals, remarks, decision)
            _print_outcome(out, outcome, engine, options)
    except SignalReceived as received:
        outcome = ExecOutcome(128 + received.number, "oncemore", f"{received}.")
        _print_outcome(out, outcome, None, options)
    return int(outcome.exit_code)


class Remarks:
    """Remarks of `exec` on standard error: lines, and on a terminal a countdown of every delay."""

    def __init__(self, out: OutputWriter, *, is_silent: bool) -> None:
        self._out, self._is_silent, self._is_waiting = out, is_silent, False

    def say(self, text: str) -> None:
        """Write a remark, unless remarks are turned off."""
        if not self._is_silent:
            self._out.write_paragraph(text, "dim", "oncemore: ")

    def show_wait(self, left_s: float) -> None:
        """Show a delay: on a terminal as one line that is overwritten, elsewhere as one remark."""
        text = f"next attempt in {format_span(left_s)}"
        # A log file gets one line per delay, not one per second.
        if self._is_silent or not self._out.is_terminal:
            if not self._is_waiting:
                self.say(text)
        else:
            self._out.status(f"oncemore: {text}")
        self._is_waiting = True

    def end_wait(self) -> None:
        """Remove the countdown from the terminal."""
        if self._is_waiting and not self._is_silent and self._out.is_terminal:
            self._out.status("")
        self._is_waiting = False


def _make_options(command: tuple[str, ...], options: dict[str, Any]) -> ExecOptions:
    from oncemore.config import POLICY_REQUIRED
    from oncemore.errors import UsageError
    from oncemore.open_engine import default_policy
    from oncemore.programs.command import ExecOptions
    from oncemore.retries.options import resolve_policy

    if (options["key"] is None) is not options["key_from_args"]:
        raise UsageError("give either --key TEXT or --key-from-args; the key identifies the work")
    if options["key"] is not None and not 1 <= len(options["key"]) <= 500:
        raise UsageError("--key takes a text of 1 to 500 characters")
    for option in ("key", "name", "tenant"):
        # Python reads bytes of the command line that are not UTF-8 as surrogates, which no store accepts.
        if any("\ud800" <= letter <= "\udfff" for letter in options[option] or ""):
            raise UsageError(f"--{option} is {options[option]!a}, which is not valid UTF-8")
    if options["name"] is not None and not 1 <= len(options["name"]) <= 190:
        raise UsageError("--name takes a text of 1 to 190 characters")
    rules, env = _make_exit_rules(options), dict(options["env"])
    chosen = options["policy"] or default_policy()
    if chosen == POLICY_REQUIRED:
        raise UsageError("the settings require a policy for every program; give --policy NAME")
    policy_options = {
        "policy": chosen,
        "attempts": options["attempts"],
        "timeout": options["timeout"],
        "total_timeout": options["total_timeout"],
        "wait": _parse_waits(options["wait"]),
    }
    # Descriptors instead of Python's streams, because the output of a program need not be text.
    through = (None, None) if options["quiet"] else (sys.stdout.fileno(), sys.stderr.fileno())
    return ExecOptions(
        command,
        options["key"],
        rules,
        resolve_policy(policy_options),  # type: ignore[arg-type]
        name="exec" if options["name"] is None else f"exec:{options['name']}",
        bucket=_parse_bucket(options["bucket"]),
        inputs=options["inputs"],
        stdin=options["stdin"],
        cwd=options["cwd"],
        env=env,
        secret_names=options["secret_env"],
        secrets=_secret_values(options["secret_env"], env),
        if_running=options["if_running"],
        grace_s=options["grace"],
        leave_running=options["leave_running"],
        keep_output=options["keep_output"],
        max_output=options["max_output"],
        max_wait_s=math.inf if options["max_wait"] is None else options["max_wait"],
        wants_retries=any(options[option] is not None for option in ("policy", "attempts", "wait")),
        after_failure=_after_failure(chosen),
        output_fds=through,
        dataset=options["dataset"],
        operation=options["operation"],
        masking=options["masking"],
    )


def _after_failure(policy: str) -> str:
    """Return the policy's rule for a new call of failed work: `raise` or `new_run`."""
    from oncemore.policy.policy import STANDARD, StepSettings

    # The standard policy needs no file, and without one the YAML reader is not imported.
    if policy == STANDARD.name:
        return StepSettings().after_failure
    from oncemore.policy.files.loader import step_settings

    return step_settings(policy).after_failure


def _make_exit_rules(options: dict[str, Any]) -> ExitRules:
    import re

    from oncemore.errors import UsageError
    from oncemore.programs.exit_rules import ExitRules, check_disjoint, parse_exit_codes

    for pattern in options["retry_on_output"]:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(
                f"--retry-on-output is {pattern!r}, which is not a regular expression: {error}"
            ) from None
    named = {
        f"--{option.replace('_', '-')}": parse_exit_codes(f"--{option.replace('_', '-')}", options[option])
        for option in ("ok_exit", "fail_on_exit", "retry_on_exit")
        if options[option] is not None
    }
    check_disjoint(named)
    ok, fail, retry = (
        named.get(option, frozenset()) for option in ("--ok-exit", "--fail-on-exit", "--retry-on-exit")
    )
    return ExitRules(options["effect"], ok, fail, retry, options["retry_on_output"])


def _parse_waits(text: str | None) -> list[float] | None:
    from oncemore.errors import UsageError

    if text is None:
        return None
    waits = [parse_duration(part) for part in text.split(",")]
    if None in waits:
        raise UsageError(f"--wait is {text!r}; write durations, such as 10s,1m,5m")
    return waits  # type: ignore[return-value]


def _parse_bucket(text: str | None) -> str | float | None:
    if text is None:
        return None
    # A text that is not a duration, such as day, is a calendar unit; the step refuses an unknown one.
    seconds = parse_duration(text)
    return text if seconds is None else seconds


def _secret_values(names: tuple[str, ...], env: dict[str, str]) -> tuple[str, ...]:
    from oncemore.errors import UsageError

    variables = {**os.environ, **env}
    for name in names:
        # A misspelt name would leave the real value unmasked.
        if name not in variables:
            raise UsageError(f"--secret-env is {name!r}, but that variable is not set")
    return tuple(variables[name] for name in names)


def _make_decision(options: dict[str, Any]) -> ExecDecision | None:
    from oncemore.errors import UsageError
    from oncemore.programs.outcome import ExecDecision

    action = options["settle"] or ("rerun" if options["rerun"] else None)
    if options["settle"] and options["rerun"]:
        raise UsageError("give either --settle or --rerun")
    if action is None:
        if options["reason"] is not None:
            raise UsageError("--reason needs --rerun or --settle")
        return None
    if not (options["reason"] or "").strip():
        raise UsageError("--reason is missing; the log records why the decision was made")
    return ExecDecision(action, options["reason"])


def _print_outcome(
    out: OutputWriter, outcome: ExecOutcome, engine: Engine | None, options: dict[str, Any]
) -> None:
    """Print the stored output if it was not printed live, then remarks, the error and the report."""
    from oncemore.programs.outcome import replay_output
    from oncemore.queries.times import format_time

    program = outcome.program or {}
    notes = [*program.get("notes", ())]
    if outcome.done_at is not None and not outcome.has_run:
        text = f"not run: this work was completed at {format_time(outcome.done_at)[:19]}"
        Remarks(out, is_silent=options["quiet"] or options["in_json"]).say(text)
    if engine is not None and not outcome.is_output_shown and not options["quiet"]:
        notes += replay_output(outcome, engine, _write_stream)
    if program.get("passed") and program.get("left_running"):
        action = "were left running" if options["leave_running"] else "were ended"
        notes.append(f"{program['left_running']} background process(es) of the program {action}")
    for name in ("stdout", "stderr"):
        stream = program.get(name) or {}
        if program.get("passed") and "note" in stream:
            notes.append(f"its {name} was not stored: {stream['note']}")
    if not options["quiet"] and not options["in_json"]:
        for note in notes:
            out.write_line(f"oncemore: {note}", "dim")
    # With --quiet, the program's own failure shows in the exit code; an error of `exec` is still printed.
    if (
        outcome.message
        and not options["in_json"]
        and not (options["quiet"] and outcome.decided_by == "program")
    ):
        out.write_error(outcome.message, outcome.hint)
    _write_report(out, outcome, notes, options)


def _write_stream(number: int, data: bytes) -> None:
    OutputWriter(sys.stdout if number == 1 else sys.stderr).write_bytes(data)


def _write_report(out: OutputWriter, outcome: ExecOutcome, notes: list[str], options: dict[str, Any]) -> None:
    if options["in_json"]:
        out.write_json_line(_outcome_to_dict(outcome, notes))
    if options["report"] is not None:
        import json

        with open(options["report"], "w", encoding="utf-8") as file:  # noqa: PTH123 - as it was given
            file.write(json.dumps(_outcome_to_dict(outcome, notes)) + "\n")


def _outcome_to_dict(outcome: ExecOutcome, notes: list[str]) -> dict[str, Any]:
    fields = outcome.to_dict()
    # The notes of the program are part of the list at the top level.
    fields["program"] = {
        name: part for name, part in (outcome.program or {}).items() if name != "notes"
    } or None
    return {**fields, "notes": notes}
