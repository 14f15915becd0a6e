"""The meaning of a program's end (done, worth another attempt, failed, or unknown), and its failures.

The first rule that applies decides:

    --ok-exit            done (0 is, unless another list has it)
    --fail-on-exit       failed for good
    --retry-on-exit      tried again
    --retry-on-output    tried again, if a line of the output matches
    the policy           if its classes name the code: EXIT_75, EXIT_*, SIGNAL_KILL
    the effect           once: the outcome is unknown, so the run is held
                         idempotent, pure: tried again, except for 126 and 127 (a shell could not run the
                         command); failed for good if --retry-on-… names the codes worth another attempt

For the effect `once` a list is a declaration by the user: a program that ends with this code has done
nothing. A program killed by a signal has the exit code that shells give it: 128 plus the signal's number.
"""

from __future__ import annotations

import signal
from itertools import combinations
from typing import Any, Final

from oncemore._values import Value
from oncemore.audit.error_record import error_to_record
from oncemore.classifiers.classify import classify
from oncemore.errors import AttemptTimeout, DeadlineExceeded, StoreError, TransientError, UsageError
from oncemore.policy.model import Failure
from oncemore.policy.verdict import ErrorClasses, matches_class

ANY_EXIT: Final = frozenset(range(256))
#: The exit codes of a shell that cannot run a command.
EXIT_CANNOT_RUN, EXIT_NOT_FOUND = 126, 127


class ExitMeaning(Value):
    """The meaning of an exit code ("done", "again", "failed" or "unknown") and the rule that gave it."""

    verdict: str
    rule: str

    @property
    def is_declared(self) -> bool:
        """Whether the user declared this code, and with it that the program has done nothing."""
        return self.rule.startswith("exec:--")


class ExitRules(Value):
    """The effect and the exit codes that the user listed."""

    effect: str
    ok: frozenset[int] = frozenset()
    fail: frozenset[int] = frozenset()
    retry: frozenset[int] = frozenset()
    outputs: tuple[str, ...] = ()

    def judge_exit(self, code: int, matched: bool, classes: ErrorClasses | None) -> ExitMeaning:
        """Return the meaning of an exit code; `matched` says whether a line of the output matched."""
        listed = self.fail | self.retry
        # "any" in --retry-on-exit stands for every failure: it leaves 0 a success.
        if code in self.ok or (code == 0 and (0 not in listed or self.retry == ANY_EXIT)):
            return ExitMeaning("done", "exec:--ok-exit")
        if code in self.fail:
            return ExitMeaning("failed", "exec:--fail-on-exit")
        if code in self.retry:
            return ExitMeaning("again", "exec:--retry-on-exit")
        if matched:
            return ExitMeaning("again", "exec:--retry-on-output")
        return _judge_by_policy(code, classes) or self._judge_by_effect(code)

    def allow_retries(self, classes: ErrorClasses | None) -> bool:
        """Return whether at least one exit code leads to another attempt."""
        listed = () if classes is None else classes.retryable
        by_policy = any(name.startswith(_PROGRAM_CODES) for name in listed)
        return self.effect != "once" or bool(self.retry or self.outputs) or by_policy

    def _judge_by_effect(self, code: int) -> ExitMeaning:
        if self.effect == "once":
            return ExitMeaning("unknown", "exec:once")
        if self.retry or self.outputs or code in (EXIT_CANNOT_RUN, EXIT_NOT_FOUND):
            return ExitMeaning("failed", "exec:not listed")
        return ExitMeaning("again", "exec:any exit")


#: The beginnings of the codes in a policy that are about programs.
_PROGRAM_CODES = ("EXIT_", "SIGNAL_")


def _judge_by_policy(code: int, classes: ErrorClasses | None) -> ExitMeaning | None:
    if classes is None:
        return None
    # Classes such as TRANSIENT are about functions: only the codes of programs may match an exit code.
    failure = Failure("permanent", "maybe", None, failure_code(code), "")
    lists = [("failed", classes.non_retryable), ("again", classes.retryable)]
    if classes.precedence == "retryable_first":
        lists.reverse()
    for verdict, names in lists:
        if matches_class(failure, [name for name in names if name.startswith(_PROGRAM_CODES)]):
            return ExitMeaning(verdict, "policy:classes")
    return None


def failure_code(code: int) -> str:
    """Return the code of a failure in the log and in policies: EXIT_75, or SIGNAL_KILL."""
    try:
        return f"SIGNAL_{signal.Signals(code - 128).name.removeprefix('SIG')}"
    except ValueError:
        return f"EXIT_{code}"


def format_exit_code(code: int) -> str:
    """Return an exit code for a message: "exit code 75", or the name of the signal."""
    name = failure_code(code)
    return f"exit code {code}" if name.startswith("EXIT_") else f"signal SIG{name[7:]} (exit code {code})"


def parse_exit_codes(option: str, text: str) -> frozenset[int]:
    """Return the exit codes in a list such as 1,75,100-110; "any" stands for all of them."""
    if text.strip() == "any":
        return ANY_EXIT
    codes: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        ends = [low, high] if dash else [low, low]
        if not all(end.isdigit() and int(end) <= 255 for end in ends) or int(ends[0]) > int(ends[1]):
            raise UsageError(f"{option} is {text!r}; it takes exit codes from 0 to 255, as in 1,75,100-110")
        codes.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(codes)


def check_disjoint(codes_by_option: dict[str, frozenset[int]]) -> None:
    """Refuse a code that is in two lists; "any" gives way to the other lists."""
    lists = [(option, codes) for option, codes in codes_by_option.items() if codes and codes != ANY_EXIT]
    for (option, codes), (other_option, other_codes) in combinations(lists, 2):
        if both := codes & other_codes:
            raise UsageError(
                f"exit code {min(both)} is in {option} and in {other_option}; leave it in one of them"
            )


# Failures -------------------------------------------------------------------------------------------


class ProgramNotStarted(OSError):
    """The kernel refused to start the program: it has done nothing."""


class ProgramLost(TransientError):
    """The guardian of a program died, so the outcome of the program is not known."""


class ProgramStillRunning(TransientError):
    """Processes of an earlier attempt are still running."""


class ProgramFailed(Exception):
    """A program ended with an exit code that is not a success."""

    def __init__(self, code: int, meaning: ExitMeaning, program: dict[str, Any]) -> None:
        super().__init__(f"the program ended with {format_exit_code(code)}")
        self.code, self.meaning, self.program = code, meaning, program


def classify_program_error(error: BaseException, now: float) -> Failure:
    """Classify the error of an attempt, a program's end by its exit rules."""
    if isinstance(error, ProgramFailed):
        kind: Any = "transient" if error.meaning.verdict == "again" else "permanent"
        # "maybe": an exit code never proves that the program had no effect.
        return Failure(kind, "maybe", None, failure_code(error.code), error.meaning.rule)
    return classify(error, now)


def is_worth_retry(error: Exception, failure: Failure) -> bool:
    """Return whether an error is worth another attempt, by the exit rules and not by those for functions."""
    if isinstance(error, ProgramFailed):
        return error.meaning.verdict == "again"
    if isinstance(error, AttemptTimeout):
        # A deadline is over for good; the limit of one attempt is not.
        return not isinstance(error, DeadlineExceeded)
    # The remaining errors are ours, such as a lost guardian; an error of the store passes too.
    return failure.may_pass or isinstance(error, StoreError)


def is_not_applied(error: Exception) -> bool:
    """Return whether an attempt with the effect `once` has certainly done nothing."""
    if isinstance(error, ProgramFailed):
        return error.meaning.is_declared
    # Both are raised before the program starts.
    return isinstance(error, ProgramNotStarted | ProgramStillRunning)


def describe_error(secrets: tuple[str, ...], error: BaseException, failure: Failure | None) -> dict[str, Any]:
    """Return the record of an error, with the description of the program if there is one."""
    record = error_to_record(error, failure, secrets)
    program = getattr(error, "program", None)
    return record if program is None else {**record, "program": program}
