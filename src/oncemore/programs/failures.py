"""The failures of a program: the exception of a failed attempt, its classification and its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.audit.error_record import error_to_record
from oncemore.classifiers.classify import classify
from oncemore.errors import AttemptTimeout, DeadlineExceeded, StoreError
from oncemore.policy.model import Failure
from oncemore.programs.exit_rules import failure_code, format_exit_code
from oncemore.programs.process import ProgramNotStarted, ProgramStillRunning

if TYPE_CHECKING:
    from oncemore.programs.exit_rules import ExitMeaning


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
