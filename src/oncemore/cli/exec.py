"""`oncemore exec`: durable retries for any program."""

from __future__ import annotations

import math
import os
import sys

import click

from oncemore.cli import completion
from oncemore.cli.commands import Whole, leaf, store_option
from oncemore.cli.output import Paper
from oncemore.cli.params import DURATION, PAIR, SIZE, duration, span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.programs.command import Order
    from oncemore.programs.exit_code import Decided, Outcome
    from oncemore.programs.exit_rules import Rules
    from oncemore.steps.engine import Engine

#: Ours, and not to be taken for a program's: what `timeout` and `env` end with when they fail themselves.
FAULT = 125

EXAMPLES = """
oncemore exec --key report-11 --effect idempotent --policy kfm-loop -- ./report.sh
oncemore exec --key backup --bucket day --effect idempotent -- rsync -a data/ backup/
oncemore exec --key mail-42 --retry-on-exit 75 --stdin mail.txt -- sendmail -t
oncemore exec --key order-7 --settle applied --reason 'the bank shows it' -- ./charge.sh
"""
GROUPS = {
    "What the work is": "key key_from_args bucket name inputs tenant correlation_id effect",
    "When it is tried again": "policy attempts wait retry_on_exit retry_on_output fail_on_exit ok_exit "
    "timeout within max_wait",
    "How it runs": "env secret_env cwd stdin grace leave_running",
    "What is kept and shown": "keep_output max_output quiet in_json report store",
    "When there is a run already": "if_running rerun settle reason by",
}


@leaf("exec", EXAMPLES, GROUPS)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND [ARG]...")
@click.option("--key", metavar="TEXT", help="What makes two calls the same work.")
@click.option(
    "--key-from-args",
    is_flag=True,
    help="The command line is the key: words, --env, --cwd, --input, --stdin.",
)
@click.option("--bucket", metavar="TIME", help="One run in each minute, hour, day, week (UTC) or duration.")
@click.option("--name", metavar="NAME", help="Keys are apart by it; the step is called exec:NAME.")
@click.option("--input", "inputs", metavar="FILE", multiple=True, help="A file whose content counts, too.")
@click.option("--tenant", metavar="ID", help="Whose work it is; a part of the key.")
@click.option("--correlation-id", metavar="ID", help="What ties records together.")
@click.option("--effect", type=click.Choice(["once", "idempotent", "pure"]), default="once", metavar="WORD",
              help="once (unless given), idempotent or pure: may it run twice?")  # fmt: skip
@click.option("--policy", metavar="ADDRESS", shell_complete=completion.policies,
              help="How often and when; standard unless given.")  # fmt: skip
@click.option("--attempts", metavar="N", type=Whole(1, 1000), help="Attempts in all.")
@click.option("--wait", metavar="TIME,...", help="Waits between attempts: 10s,1m,5m.")
@click.option("--retry-on-exit", metavar="CODES", help="Exit codes that are tried again: 1,75,100-110; any.")
@click.option("--retry-on-output", metavar="REGEX", multiple=True,
              help="After a failure: try again if a line of the output matches.")  # fmt: skip
@click.option("--fail-on-exit", metavar="CODES", help="Exit codes that are never tried again.")
@click.option("--ok-exit", metavar="CODES", help="Exit codes that are a success, beside 0.")
@click.option("--timeout", metavar="TIME", type=DURATION, help="The limit of one attempt.")
@click.option("--within", metavar="TIME", type=DURATION, help="The limit of everything, waits included.")
@click.option("--max-wait", metavar="TIME", type=DURATION,
              help="End with 120 before a wait that is longer; a later call goes on.")  # fmt: skip
@click.option(
    "--env",
    metavar="NAME=VALUE",
    type=PAIR,
    multiple=True,
    help="Set a variable; counts for the key, never stored.",
)
@click.option(
    "--secret-env",
    metavar="NAME",
    multiple=True,
    help="A variable whose value is masked, and not in the key.",
)
@click.option("--cwd", metavar="FOLDER", help="Where it runs; counts for the key as typed.")
@click.option("--stdin", metavar="FILE", help="What it reads, anew in each attempt; nothing unless given.")
@click.option(
    "--grace", metavar="TIME", type=DURATION, default=10.0, help="Time between SIGTERM and SIGKILL."
)
@click.option("--leave-running", is_flag=True, help="Let what the program left in the background go on.")
@click.option("--keep-output", type=click.Choice(["always", "failed", "never"]), default="always",
              metavar="WORD", help="Whose output is kept: always, failed, never.")  # fmt: skip
@click.option(
    "--max-output", metavar="SIZE", type=SIZE, default="10M", help="How much of each stream is kept."
)
@click.option("--quiet", is_flag=True, help="Print neither output nor remarks; errors are told.")
@click.option("--json", "in_json", is_flag=True, help="End with one line of JSON on standard error.")
@click.option("--report", metavar="FILE", help="Write that JSON into a file.")
@store_option
@click.option("--if-running", type=click.Choice(["wait", "fail"]), default="wait", metavar="WORD",
              help="While another process is at it: wait, or fail.")  # fmt: skip
@click.option("--rerun", is_flag=True, help="Begin anew what failed for good; needs --reason.")
@click.option("--settle", type=click.Choice(["applied", "not-applied"]), metavar="WORD",
              help="What a lost attempt did: applied, not-applied; needs --reason.")  # fmt: skip
@click.option("--reason", metavar="TEXT", help="Why; it is recorded.")
@click.option("--by", metavar="NAME", help="Who; else the user of this process. It is recorded.")
def exec_(command: tuple[str, ...], **told: Any) -> int:
    """Run a program once per key, with retries that survive.

    What it prints is passed on and kept; its exit code is passed on. The same call again prints the same and
    ends the same, and nothing is run.
    """
    from oncemore.errors import Error
    from oncemore.programs.signals import Cuts, Interrupted

    paper = Paper(sys.stderr, in_json=told["in_json"])
    try:
        with Cuts() as cuts:
            return _carried_out(paper, cuts, command, told)
    except Interrupted as cut:
        return 128 + cut.number
    except Error as error:
        paper.error(f"{error}")
        return FAULT
    except OSError as error:
        paper.error(f"{error.filename or 'oncemore'}: {error.strerror or error}.")
        return FAULT


exec_.context_settings = {"allow_interspersed_args": False}
exec_.wrong = FAULT


def _carried_out(paper: Paper, cuts: Any, command: tuple[str, ...], told: dict[str, Any]) -> int:
    from oncemore.maintenance.tasks import somebody
    from oncemore.programs.exit_code import Outcome, carry_out
    from oncemore.programs.signals import Interrupted
    from oncemore.queries.open_engine import made
    from oncemore.steps.context import context

    order, decided, engine = _order(command, told), _decided(told), made(told["store"])

    remarks = Remarks(paper, is_silent=told["quiet"] or told["in_json"])
    around = {"tenant": told["tenant"], "actor": somebody(told["by"])}
    around["correlation_id"] = told["correlation_id"] or os.environ.get("ONCEMORE_CORRELATION_ID") or None
    try:
        with engine, context(**around):
            outcome = carry_out(order, engine, cuts, remarks, decided)
            _tell(paper, outcome, engine, told)
    except Interrupted as cut:
        outcome = Outcome(128 + cut.number, "oncemore", f"{cut}.")
        _tell(paper, outcome, None, told)
    return int(outcome.exit_code)


class Remarks:
    """What `exec` says on standard error: lines, and on a terminal a countdown of every wait."""

    def __init__(self, paper: Paper, *, is_silent: bool) -> None:
        self._paper, self._is_silent, self._is_waiting = paper, is_silent, False

    def say(self, text: str) -> None:
        """Write a line."""
        if not self._is_silent:
            self._paper.say(text, "dim", "oncemore: ")

    def show_wait(self, left_s: float) -> None:
        """Show a wait: on a terminal in one line that is written again and again, elsewhere once."""
        text = f"the next attempt is in {span(left_s)}"
        if self._is_silent or not self._paper.is_terminal:
            if not self._is_waiting:
                self.say(text)
        else:
            self._paper.status(f"oncemore: {text}")
        self._is_waiting = True

    def end_wait(self) -> None:
        """Take the countdown away."""
        if self._is_waiting and not self._is_silent and self._paper.is_terminal:
            self._paper.status("")
        self._is_waiting = False


def _order(command: tuple[str, ...], told: dict[str, Any]) -> Order:
    from oncemore.errors import UsageError
    from oncemore.open_engine import default_policy
    from oncemore.programs.command import Order
    from oncemore.retries.options import policy_of
    from oncemore.settings import POLICY_REQUIRED

    if (told["key"] is None) is not told["key_from_args"]:
        raise UsageError("give --key TEXT or --key-from-args: what makes two calls the same work")
    if told["key"] is not None and not 1 <= len(told["key"]) <= 500:
        raise UsageError("--key takes a text of 1 to 500 characters")
    for option in ("key", "name", "tenant"):
        if any("\ud800" <= letter <= "\udfff" for letter in told[option] or ""):
            raise UsageError(f"--{option} is {told[option]!a}, which is not UTF-8; give it a text that is")
    if told["name"] is not None and not 1 <= len(told["name"]) <= 190:
        raise UsageError("--name takes a text of 1 to 190 characters")
    rules, env = _rules(told), dict(told["env"])
    chosen = told["policy"] or default_policy()
    if chosen == POLICY_REQUIRED:
        raise UsageError("the settings require that every program names a policy; give --policy NAME")
    given = {
        "policy": chosen, "attempts": told["attempts"], "timeout": told["timeout"], "within": told["within"],
        "wait": _waits(told["wait"]),
    }  # fmt: skip
    through = (None, None) if told["quiet"] else (sys.stdout.fileno(), sys.stderr.fileno())
    return Order(
        command, told["key"], rules, policy_of(given),  # type: ignore[arg-type]
        name="exec" if told["name"] is None else f"exec:{told['name']}", bucket=_bucket(told["bucket"]),
        inputs=told["inputs"], stdin=told["stdin"], cwd=told["cwd"], env=env, hidden=told["secret_env"],
        secrets=_secrets(told["secret_env"], env), if_running=told["if_running"], grace_s=told["grace"],
        leave=told["leave_running"], keep=told["keep_output"], most=told["max_output"],
        max_wait_s=math.inf if told["max_wait"] is None else told["max_wait"],
        wants_retries=any(told[option] is not None for option in ("policy", "attempts", "wait")),
        after=_after(chosen), through=through,
    )  # fmt: skip


def _after(policy: str) -> str:
    """Return what a new call makes of work that failed: a policy on disk may say."""
    from oncemore.policy.policy import STANDARD

    if policy == STANDARD.name:
        return "raise"
    from oncemore.policy.files.loader import step_settings

    return step_settings(policy).after_failure


def _rules(told: dict[str, Any]) -> Rules:
    import re

    from oncemore.errors import UsageError
    from oncemore.programs.exit_rules import Rules, check, exits

    for pattern in told["retry_on_output"]:
        try:
            re.compile(pattern)
        except re.error as fault:
            raise UsageError(f"--retry-on-output is {pattern!r}, which is no expression: {fault}") from None
    named = {
        f"--{option.replace('_', '-')}": exits(f"--{option.replace('_', '-')}", told[option])
        for option in ("ok_exit", "fail_on_exit", "retry_on_exit")
        if told[option] is not None
    }
    check(named)
    ok, fail, retry = (
        named.get(option, frozenset()) for option in ("--ok-exit", "--fail-on-exit", "--retry-on-exit")
    )
    return Rules(told["effect"], ok, fail, retry, told["retry_on_output"])


def _waits(text: str | None) -> list[float] | None:
    from oncemore.errors import UsageError

    if text is None:
        return None
    waits = [duration(part) for part in text.split(",")]
    if None in waits:
        raise UsageError(f"--wait is {text!r}; it takes durations, as in 10s,1m,5m")
    return waits  # type: ignore[return-value]


def _bucket(text: str | None) -> str | float | None:
    if text is None:
        return None
    seconds = duration(text)
    return text if seconds is None else seconds


def _secrets(names: tuple[str, ...], env: dict[str, str]) -> tuple[str, ...]:
    from oncemore.errors import UsageError

    around = {**os.environ, **env}
    for name in names:
        if name not in around:
            raise UsageError(f"--secret-env is {name!r}, and there is no such variable")
    return tuple(around[name] for name in names)


def _decided(told: dict[str, Any]) -> Decided | None:
    from oncemore.errors import UsageError
    from oncemore.programs.exit_code import Decided

    what = told["settle"] or ("rerun" if told["rerun"] else None)
    if told["settle"] and told["rerun"]:
        raise UsageError("--settle and --rerun are two decisions; take one at a time")
    if what is None:
        if told["reason"] is not None:
            raise UsageError("--reason goes with --rerun or --settle")
        return None
    if not (told["reason"] or "").strip():
        raise UsageError("--reason is missing; say why, it is recorded")
    return Decided(what, told["reason"])


def _tell(paper: Paper, outcome: Outcome, engine: Engine | None, told: dict[str, Any]) -> None:
    """Show what has not been seen yet: stored output, what went wrong, the report."""
    from oncemore.programs.exit_code import replay
    from oncemore.queries.times import shown

    program = outcome.program or {}
    notes = [*program.get("notes", ())]
    if outcome.done_at is not None and not outcome.ran:
        done = f"nothing was run: this work is done since {shown(outcome.done_at)[:19]}"
        Remarks(paper, is_silent=told["quiet"] or told["in_json"]).say(done)
    if engine is not None and not outcome.shown and not told["quiet"]:
        notes += replay(outcome, engine, _written)
    if program.get("passed") and program.get("left_running"):
        what = "were left running" if told["leave_running"] else "were ended"
        notes.append(f"{program['left_running']} process(es) that the program left behind {what}")
    for name in ("stdout", "stderr"):
        kept = program.get(name) or {}
        if program.get("passed") and "note" in kept:
            notes.append(f"its {name} was not kept: {kept['note']}")
    if not told["quiet"] and not told["in_json"]:
        for note in notes:
            paper.line(f"oncemore: {note}", "dim")
    if outcome.message and not told["in_json"] and not (told["quiet"] and outcome.by == "program"):
        paper.error(outcome.message, outcome.hint)
    _report(paper, outcome, notes, told)


def _written(number: int, data: bytes) -> None:
    Paper(sys.stdout if number == 1 else sys.stderr).raw(data)


def _report(paper: Paper, outcome: Outcome, notes: list[str], told: dict[str, Any]) -> None:
    if told["in_json"]:
        paper.record(_plain(outcome, notes))
    if told["report"] is not None:
        import json

        with open(told["report"], "w", encoding="utf-8") as file:  # noqa: PTH123 - as it was given
            file.write(json.dumps(_plain(outcome, notes)) + "\n")


def _plain(outcome: Outcome, notes: list[str]) -> dict[str, Any]:
    made = outcome._asdict()
    made["program"] = {
        name: part for name, part in (outcome.program or {}).items() if name != "notes"
    } or None
    return {**made, "notes": notes}
