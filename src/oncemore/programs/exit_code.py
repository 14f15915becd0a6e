"""What came of an order: one exit code, whose it is, and what a person or a program should know.

The program's own exit code is passed on wherever there is one. All others are ours; they lie where programs
seldom have theirs, and those that other tools have given a meaning have it here too (124 to 127 as of
`timeout` and `env`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oncemore._values import Value
from oncemore.audit.events import rfc3339
from oncemore.errors import (
    Error,
    Failed,
    InProgress,
    KeyConflict,
    OutcomeUnknown,
    Parked,
    Quarantined,
    Refused,
    ResultUnavailable,
    StoreError,
    Uncertain,
    UsageError,
    Violation,
)
from oncemore.log.entry_codec import header_of
from oncemore.programs.exit_rules import CANNOT_RUN, NOT_FOUND, said
from oncemore.programs.find_command import CannotRun
from oncemore.programs.signals import Interrupted
from oncemore.programs.step import STREAMS, Program
from oncemore.steps import flow
from oncemore.steps.context import CONTEXT
from oncemore.steps.ops import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.programs.command import Order
    from oncemore.programs.signals import Cuts
    from oncemore.programs.step import Remarks
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Call, Plan, Script
    from oncemore.steps.run import Run

RUNNING, PARKED, HELD, REFUSED, LOST, TOO_LATE, FAULT = 119, 120, 121, 122, 123, 124, 125

#: Our own exit codes, and what they say.
CODES: Final = {
    RUNNING: "another process is at it, and --if-running is fail",
    PARKED: "it is due later than the call waits (--max-wait, or a budget that parks); a later call goes on",
    HELD: "attempts were lost: a person has to look, and to decide",
    REFUSED: "the key belongs to another command line, or its record is no longer kept, or the log is a copy",
    LOST: "it failed for good without an exit code: it was interrupted to the last attempt, or cancelled",
    TOO_LATE: "its time was up",
    FAULT: "our own part failed: a wrong option, a store that cannot be used",
    CANNOT_RUN: "the command cannot be run",
    NOT_FOUND: "the command does not exist",
}


class Outcome(Value):
    """What came of an order.

    exit_code  what the process ends with
    by         whose code it is: "program" or "oncemore"
    ran        whether an attempt was made by this call
    status     the run's state; empty if there is no run
    program    what is known of the last attempt, the places of its output among it
    until      when a parked run is due, in POSIX seconds
    done_at    since when the work is done, in POSIX seconds
    """

    exit_code: int
    by: str
    message: str = ""
    hint: str = ""
    status: str = ""
    reason: str = ""
    ran: bool = False
    key: str = ""
    step: str = ""
    run_id: str = ""
    attempts: int = 0
    until: float | None = None
    done_at: float | None = None
    program: dict[str, Any] | None = None

    @property
    def shown(self) -> bool:
        """Whether the output of the last attempt has passed through this call."""
        return self.program is None or (self.ran and self.program.get("passed", False))


class Decided(Value):
    """What a person has decided: "rerun", "applied" or "not-applied"; and why."""

    what: str
    reason: str


def carry_out(
    order: Order, engine: Engine, cuts: Cuts, remarks: Remarks, decided: Decided | None = None
) -> Outcome:
    """Bring an order to its end, whatever that is."""
    step = Program(order, engine, cuts, remarks)
    try:
        value = step.go(None if decided is None else _decision(decided))
    except CannotRun as error:
        return Outcome(error.code, "oncemore", f"{error}.")
    except Interrupted as cut:
        return _with(step, None, Outcome(128 + cut.number, "oncemore", f"{cut}; a later call goes on."))
    except Error as error:
        return _ended(step, error)
    run = step.last_run()
    made = Outcome(value["exit"], "program", program=_passed(step, value))
    return _with(step, run, made._replace(done_at=_done_at(run, engine)))


def _done_at(run: Run | None, engine: Engine) -> float | None:
    """Return since when a run is COMPLETE."""
    if run is None or not run.state.committed:
        return None
    entry = next(iter(engine.store.entries(f"run/{run.key}", run.state.committed - 1)), None)
    return None if entry is None else header_of(entry.header).at


def _decision(decided: Decided) -> Callable[[Plan, Call], Script]:
    """Return what is written before anything else: what a person has decided."""
    actor = CONTEXT.get().actor
    if decided.what == "rerun":
        return lambda plan, call: flow.reopen(plan, call, decided.reason, actor)
    told = {"decision": {"what": "settle", "reason": decided.reason, "actor": actor}}
    found = "applied" if decided.what == "applied" else "not_applied"
    answer = Answer(found, {"exit": 0, "attempt": 0, "settled": True}, told)
    return lambda plan, call: flow.settle(plan, call, answer)


def _ended(step: Program, error: Error) -> Outcome:
    """Return the outcome that an error is."""
    run: Any = error.run
    known = _known(run)
    program = None if known is None else _passed(step, known)
    if isinstance(error, Failed | OutcomeUnknown | Quarantined) and program is not None:
        late = program["ended_by"] == "limit"
        made = Outcome(TOO_LATE if late else program["exit"], "oncemore" if late else "program")
        made = made._replace(program=program)
    else:
        made = Outcome(_code(error, run), "oncemore", until=getattr(error, "until", None))
    return _with(step, run, made._replace(message=_message(error, step, program), hint=_hint(error, program)))


def _message(error: Error, step: Program, program: dict[str, Any] | None) -> str:
    """Return what happened, in the words of a command line; the library's are about functions."""
    which = f"{step.name}: key {step.known[:12]}"
    if isinstance(error, OutcomeUnknown):
        what = "was lost" if program is None else "ran out of its time" if program["ended_by"] else ""
        what = what or f"ended with {said((program or {})['exit'])}"
        number = getattr(getattr(error.run, "state", None), "attempt", 0)
        return f"{which} is held: attempt {number} {what}, and whether it took effect is not known."
    if isinstance(error, KeyConflict):
        return (
            f"{which} belongs to another command, other inputs, --env or --cwd; give this work another --key."
        )
    if isinstance(error, Parked):
        return f"{which} is parked until {rfc3339(error.until)}; a call from then on goes on."
    return f"{error}."


def _code(error: Error, run: Any) -> int:
    for kind, code in _KINDS:
        if isinstance(error, kind):
            if code == LOST:
                return _without_exit(error, run)
            return code
    return FAULT


_KINDS: tuple[tuple[type[Error], int], ...] = (
    (InProgress, RUNNING), (Parked, PARKED), (Quarantined, HELD), (Refused, REFUSED), (OutcomeUnknown, HELD),
    (ResultUnavailable, REFUSED), (Uncertain, HELD), (UsageError, FAULT), (StoreError, FAULT), (Failed, LOST),
)  # fmt: skip


def _without_exit(error: Error, run: Any) -> int:
    """Return the code of a failure that has none of the program's: it came too late, or was not started."""
    if isinstance(error, TimeoutError):
        return TOO_LATE
    last = _last_error(run) or {}
    if last.get("type") == "NotStarted":
        return NOT_FOUND if last.get("code") == "ERRNO_ENOENT" else CANNOT_RUN
    return LOST


def _hint(error: Error, program: dict[str, Any] | None) -> str:
    if isinstance(error, OutcomeUnknown):
        unlisted = program is not None and not program["ended_by"]
        what = (
            "Work that may run twice has --effect idempotent; exit codes that say that nothing was done "
            "stand in --retry-on-exit or --fail-on-exit. "
            if unlisted
            else ""
        )
        return (
            f"{what}Look whether it did what it should, then say so: --settle applied, or --settle "
            "not-applied to try it again, each with --reason."
        )
    if isinstance(error, Failed) and error.run is not None:
        return "It is not run again by itself; --rerun --reason TEXT begins anew."
    return ""


def _known(run: Run | None) -> dict[str, Any] | None:
    """Return what is known of the last attempt's program."""
    return (_last_error(run) or {}).get("program")


def _last_error(run: Run | None) -> dict[str, Any] | None:
    attempts = () if run is None else run.attempts
    return attempts[-1].error if attempts else None


def _passed(step: Program, program: dict[str, Any]) -> dict[str, Any]:
    return {**program, "passed": step.ran != 0 and step.ran == program.get("attempt")}


def _with(step: Program, run: Run | None, outcome: Outcome) -> Outcome:
    """Add what is known of the run."""
    if run is None:
        try:
            run = step.last_run()
        except Error:
            run = None
    outcome = outcome._replace(ran=step.ran != 0, step=step.name, key=step.known)
    if run is None or not run.version:
        return outcome
    state = run.state
    return outcome._replace(
        status=run.status, reason=run.reason, run_id=run.run_id, attempts=state.tried, key=run.key
    )


def replay(outcome: Outcome, engine: Engine, write: Callable[[int, bytes], object]) -> list[str]:
    """Write the stored output of a program, stream by stream; return what cannot be shown, and why."""
    notes = []
    for number, name in enumerate(STREAMS, 1):
        kept = (outcome.program or {}).get(name) or {}
        if "digest" in kept:
            try:
                with engine.shelf.open(kept["digest"], kept["size"]) as file:
                    while data := file.read(64 * 1024):
                        write(number, data)
            except (Error, Violation) as fault:
                notes.append(f"its {name} cannot be shown: {fault}")
        elif kept.get("bytes"):
            why = f": {kept['note']}" if kept.get("note") else ""
            notes.append(f"its {name} was not kept{why}")
    return notes
