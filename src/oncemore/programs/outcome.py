"""The outcome of one `oncemore exec` call: its exit code, the origin of that code, and a message.

The program's own exit code is passed on wherever there is one. All other codes are ours; they lie where
programs rarely have theirs, and 124 to 127 mean the same as for `timeout` and `env`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncemore._values import Value
from oncemore.audit.events import format_rfc3339
from oncemore.errors import (
    CallRefused,
    Deferred,
    Error,
    InProgress,
    KeyConflict,
    OutcomeUncertain,
    OutcomeUnknown,
    PolicyViolation,
    Quarantined,
    ResultUnavailable,
    StepFailed,
    StoreError,
    UsageError,
)
from oncemore.governance.identity import make_call_decision
from oncemore.log.entry_codec import decode_header
from oncemore.programs.exit_rules import EXIT_CANNOT_RUN, EXIT_NOT_FOUND, format_exit_code
from oncemore.programs.find_command import CommandNotRunnable
from oncemore.programs.signals import SignalReceived
from oncemore.programs.step import STREAM_NAMES, ProgramStep
from oncemore.steps import operator_flow
from oncemore.steps.context import CONTEXT
from oncemore.steps.ops import ReconcileAnswer

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.programs.command import ExecOptions
    from oncemore.programs.signals import SignalListener
    from oncemore.programs.step import Remarks
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script
    from oncemore.steps.plan import StepPlan
    from oncemore.steps.run import Run

EXIT_RUNNING, EXIT_DEFERRED, EXIT_HELD, EXIT_REFUSED, EXIT_LOST = 119, 120, 121, 122, 123
EXIT_TIMEOUT, EXIT_FAULT = 124, 125

#: Our own exit codes and their meanings, as docs/reference/cli.md lists them.
EXIT_CODE_TEXTS: Final = {
    EXIT_RUNNING: "another process runs this key, and --if-running is fail",
    EXIT_DEFERRED: "the next attempt is due later than the call waits (--max-wait, or a retry budget that "
    "defers); a later call continues",
    EXIT_HELD: "the outcome of an attempt is unknown, or attempts were lost: an operator has to decide",
    EXIT_REFUSED: "the key belongs to another command line, or its record was pruned, or the log is a copy",
    EXIT_LOST: "the work failed for good without an exit code: its attempts were interrupted, or it was "
    "cancelled",
    EXIT_TIMEOUT: "the time limit was reached",
    EXIT_FAULT: "oncemore itself failed: a wrong option, or a store that cannot be used",
    EXIT_CANNOT_RUN: "the command cannot be run",
    EXIT_NOT_FOUND: "the command does not exist",
}


class ExecOutcome(Value):
    """The outcome of one call.

    exit_code   the exit code of the call
    decided_by  the origin of that code: "program" or "oncemore"
    has_run     whether this call made an attempt
    status      the state of the run; empty if there is no run
    due_at      when a deferred run is due, in POSIX seconds
    done_at     when the work was completed, in POSIX seconds
    program     the description of the last attempt, with the digests of its output
    """

    exit_code: int
    decided_by: str
    message: str = ""
    hint: str = ""
    status: str = ""
    reason: str = ""
    has_run: bool = False
    key: str = ""
    step: str = ""
    run_id: str = ""
    attempts: int = 0
    due_at: float | None = None
    done_at: float | None = None
    program: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields under the names that `--json` and `--report` print."""
        # JSON keys are a public interface: they stay when a field is renamed.
        printed_names = {"decided_by": "by", "has_run": "ran", "due_at": "until"}
        return {printed_names.get(name, name): value for name, value in self._asdict().items()}

    @property
    def is_output_shown(self) -> bool:
        """Whether this call has passed on the output of the last attempt."""
        return self.program is None or (self.has_run and self.program.get("passed", False))


class ExecDecision(Value):
    """A decision of an operator: "rerun", "applied" or "not-applied", and the reason."""

    action: str
    reason: str


def run_program_step(
    options: ExecOptions,
    engine: Engine,
    signals: SignalListener,
    remarks: Remarks,
    decision: ExecDecision | None = None,
) -> ExecOutcome:
    """Run the program, or return the stored outcome; an error of the work is an outcome, not an exception."""
    step = ProgramStep(options, engine, signals, remarks)
    try:
        value = step.run_to_end(None if decision is None else _make_decision_script(decision))
    # Nothing was counted: a command that does not exist is a mistake of the caller, not a failed attempt.
    except CommandNotRunnable as error:
        return ExecOutcome(error.code, "oncemore", f"{error}.")
    except SignalReceived as error:
        return _add_run_facts(
            step, None, ExecOutcome(128 + error.number, "oncemore", f"{error}; a later call continues.")
        )
    except Error as error:
        return _make_error_outcome(step, error)
    run = step.last_run()
    outcome = ExecOutcome(value["exit"], "program", program=_mark_passed(step, value))
    return _add_run_facts(step, run, outcome._replace(done_at=_done_at(run, engine)))


def _done_at(run: Run[Any] | None, engine: Engine) -> float | None:
    """Return the time of a run's COMMIT; None if it has none."""
    if run is None or not run.state.commit_version:
        return None
    # The head has the number of the COMMIT; its time is in the header of that entry.
    entry = next(iter(engine.store.read_entries(f"run/{run.key}", run.state.commit_version - 1)), None)
    return None if entry is None else decode_header(entry.header).at


def _make_decision_script(decision: ExecDecision) -> Callable[[StepPlan, PreparedCall], Script]:
    """Return the script that writes an operator's decision before the step runs."""
    actor = CONTEXT.get().actor
    if decision.action == "rerun":
        return lambda plan, call: operator_flow.reopen_run(
            plan, call, make_call_decision(call, "rerun", decision.reason, actor)
        )

    def settle_program(plan: StepPlan, call: PreparedCall) -> Script:
        answer_name = "applied" if decision.action == "applied" else "not_applied"
        decide = make_call_decision(call, "settle", decision.reason, actor, {"outcome": answer_name})
        body = {"decision": decide(call.head, call.engine.now())}
        # A settled program has no real exit code: 0 is what an applied one is taken to have returned.
        answer = ReconcileAnswer(answer_name, {"exit": 0, "attempt": 0, "settled": True}, body)
        return operator_flow.settle_run(plan, call, answer, call.head)

    return settle_program


def _make_error_outcome(step: ProgramStep, error: Error) -> ExecOutcome:
    """Return the outcome of a call that raised an error."""
    run: Any = error.run
    description = _last_program(run)
    program = None if description is None else _mark_passed(step, description)
    if isinstance(error, StepFailed | OutcomeUnknown | Quarantined) and program is not None:
        # The exit code of a program that was ended at its limit says nothing about its work.
        is_late = program["ended_by"] == "limit"
        outcome = ExecOutcome(
            EXIT_TIMEOUT if is_late else program["exit"], "oncemore" if is_late else "program"
        )
        outcome = outcome._replace(program=program)
    else:
        outcome = ExecOutcome(
            _exit_code_of_error(error, run), "oncemore", due_at=getattr(error, "until", None)
        )
    message, hint = _format_message(error, step, program), _format_hint(error, step, program)
    return _add_run_facts(step, run, outcome._replace(message=message, hint=hint))


def _format_message(error: Error, step: ProgramStep, program: dict[str, Any] | None) -> str:
    """Return what happened in terms of the command line; the errors of the library speak of functions."""
    subject = f"{step.name}: key {step.run_key[:12]}"
    if isinstance(error, OutcomeUnknown):
        text = "was lost" if program is None else "reached its time limit" if program["ended_by"] else ""
        text = text or f"ended with {format_exit_code((program or {})['exit'])}"
        number = getattr(getattr(error.run, "state", None), "attempt", 0)
        return f"{subject} is held: attempt {number} {text}, and it is not known whether it took effect."
    if isinstance(error, KeyConflict):
        return (
            f"{subject} belongs to another command, or to other inputs, --env or --cwd; give this work "
            "another --key."
        )
    if isinstance(error, Deferred):
        return f"{subject} is deferred until {format_rfc3339(error.until)}; a call after that continues."
    return f"{error}."


def _exit_code_of_error(error: Error, run: Any) -> int:
    # The first class that fits decides: subclasses come before their base classes.
    for kind, code in _CODES_BY_ERROR:
        if isinstance(error, kind):
            if code == EXIT_LOST:
                return _exit_code_of_failure(error, run)
            return code
    return EXIT_FAULT


_CODES_BY_ERROR: tuple[tuple[type[Error], int], ...] = (
    (InProgress, EXIT_RUNNING),
    (Deferred, EXIT_DEFERRED),
    (Quarantined, EXIT_HELD),
    (CallRefused, EXIT_REFUSED),
    (OutcomeUnknown, EXIT_HELD),
    (ResultUnavailable, EXIT_REFUSED),
    (OutcomeUncertain, EXIT_HELD),
    (UsageError, EXIT_FAULT),
    (StoreError, EXIT_FAULT),
    (StepFailed, EXIT_LOST),
)


def _exit_code_of_failure(error: Error, run: Any) -> int:
    """Return the code of a failure without a program's exit code: a timeout, or a failed start."""
    if isinstance(error, TimeoutError):
        return EXIT_TIMEOUT
    last = _last_error(run) or {}
    # The command was found but its start failed, for example because it was removed in between.
    if last.get("type") == "ProgramNotStarted":
        return EXIT_NOT_FOUND if last.get("code") == "ERRNO_ENOENT" else EXIT_CANNOT_RUN
    return EXIT_LOST


def _format_hint(error: Error, step: ProgramStep, program: dict[str, Any] | None) -> str:
    if isinstance(error, OutcomeUnknown):
        unlisted = program is not None and not program["ended_by"]
        text = (
            "If the program may run twice, give --effect idempotent; if an exit code means that nothing was "
            "done, list it in --retry-on-exit or --fail-on-exit. "
            if unlisted
            else ""
        )
        return (
            f"{text}Check whether it did its work, then record that: --settle applied, or --settle "
            "not-applied to try again, each with --reason."
        )
    if isinstance(error, StepFailed) and error.run is not None:
        if step.begins_again:
            return "It does not run again by itself; the next call starts a new run."
        return "It does not run again by itself; --rerun --reason TEXT starts a new run."
    return ""


def _last_program(run: Run[Any] | None) -> dict[str, Any] | None:
    """Return the description of the last failed attempt's program."""
    return (_last_error(run) or {}).get("program")


def _last_error(run: Run[Any] | None) -> dict[str, Any] | None:
    attempts = () if run is None else run.attempts
    return attempts[-1].error if attempts else None


def _mark_passed(step: ProgramStep, program: dict[str, Any]) -> dict[str, Any]:
    return {**program, "passed": step.shown_attempt != 0 and step.shown_attempt == program.get("attempt")}


def _add_run_facts(step: ProgramStep, run: Run[Any] | None, outcome: ExecOutcome) -> ExecOutcome:
    """Add the key, state and attempts of the run to an outcome."""
    if run is None:
        try:
            run = step.last_run()
        # The store may be the very reason for the outcome: the message matters more than the facts.
        except Error:
            run = None
    outcome = outcome._replace(has_run=step.shown_attempt != 0, step=step.name, key=step.run_key)
    if run is None or not run.version:
        return outcome
    state = run.state
    return outcome._replace(
        status=run.status,
        reason=run.reason,
        run_id=run.run_id,
        attempts=state.attempt_count + state.crash_count,
        key=run.key,
    )


def replay_output(outcome: ExecOutcome, engine: Engine, write: Callable[[int, bytes], object]) -> list[str]:
    """Write the stored output of a program, stream by stream; return a note for each that is missing."""
    notes = []
    for number, name in enumerate(STREAM_NAMES, 1):
        stored = (outcome.program or {}).get(name) or {}
        if "digest" in stored:
            try:
                with engine.artifact_store.open(stored["digest"], stored["size"]) as file:
                    while data := file.read(64 * 1024):
                        write(number, data)
            except (Error, PolicyViolation) as error:
                notes.append(f"its {name} cannot be shown: {error}")
        elif stored.get("bytes"):
            reason = f": {stored['note']}" if stored.get("note") else ""
            notes.append(f"its {name} was not kept{reason}")
    return notes
