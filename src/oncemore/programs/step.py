"""A program as a durable step: the same keys, flow, log and leases as any function.

An attempt that ends well returns what is to be known of it: its exit code, and where its output is. One that
fails leaves the same with the record of its failure, so that whoever calls next sees what the first caller
saw, without anything being run.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore import clock
from oncemore.artifacts.artifact import label
from oncemore.audit.neutral import neutral
from oncemore.classifiers.classify import classify
from oncemore.control.moved_log import only_here
from oncemore.errors import AttemptTimeout, DeadlineExceeded, Error, LeaseLost, StoreError, Violation
from oncemore.policy.model import Failure
from oncemore.programs.exit_rules import Meaning, name_of, said
from oncemore.programs.find_command import find
from oncemore.programs.output_spool import Spool
from oncemore.programs.process import NotStarted, Start, StillThere, alone, run
from oncemore.programs.signals import Interrupted
from oncemore.programs.store_secret import load_store_secret
from oncemore.retries.deadlines import too_late
from oncemore.steps import flow
from oncemore.steps.decorator import Step, told_of
from oncemore.steps.driver import blocking
from oncemore.steps.ops import Save, Seen, Sleep, Watch, Work
from oncemore.steps.options import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from oncemore.programs.command import Order
    from oncemore.programs.process import Ended
    from oncemore.programs.signals import Cuts
    from oncemore.retries.loop import Invoke
    from oncemore.steps.attempt import Attempt
    from oncemore.steps.call_in_progress import Job
    from oncemore.steps.decorator import Look
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Call, Plan, Script, Terms
    from oncemore.steps.run import Run

    class Remarks(Protocol):
        """Where an order says what it does, beside the output of its program."""

        def say(self, text: str) -> None:
            """Say something, once."""

        def show_wait(self, left_s: float) -> None:
            """Show how long it is until the next attempt; called about once a second."""

        def end_wait(self) -> None:
            """Show no wait any more."""


STREAMS = ("stdout", "stderr")
#: How long a countdown stands still.
STRETCH_S = 1.0
SQLITE = "sqlite:///"


class ProgramFailed(Exception):
    """A program ended with an exit code that is no success."""

    def __init__(self, code: int, meaning: Meaning, program: dict[str, Any]) -> None:
        super().__init__(f"the program ended with {said(code)}")
        self.code, self.meaning, self.program = code, meaning, program


class Program(Step[Any, Any]):
    """An order as a step."""

    def __init__(self, order: Order, engine: Engine, cuts: Cuts, remarks: Remarks) -> None:
        keyed = {"key": "key"} if order.key is not None else {}
        told = told_of(
            effect=order.rules.effect, name=order.name, policy=order.policy, bucket=order.bucket,
            if_running="raise" if order.if_running == "fail" else "wait", **keyed,
        )  # fmt: skip
        super().__init__(Recipe(_program, told), engine)
        self._order, self._cuts, self._remarks = order, cuts, remarks
        self._path = ""
        self._shown: dict[str, Any] = {}
        #: The attempt whose output has passed through us, if any has.
        self.ran = 0
        self.known = self._entity = ""

    def last_run(self) -> Run | None:
        """Return the key's last run as it is now; None if the key is not known yet."""
        assert self._engine is not None
        return self._run_of(self._engine, self._entity) if self._entity else None

    def go(self, before: Callable[[Plan, Call], Script] | None = None) -> Any:
        """Bring it to its end; return what is to be known of it, or raise as steps do.

        before  what a person has decided, to be written first
        """
        look = self._look(self._arguments(), {})
        self.known, self._entity = look.call.entity.removeprefix("run/"), look.call.entity
        if before is None and (end := flow.finished(look.plan, look.call, look.seen)) is not None:
            return end.value
        if before is not None or _will_run(look):
            self._find()
            self._warn()
        job = self._job(look)
        try:
            with self._cuts.patient():
                if before is not None:
                    blocking(job, only_here(self.name, before(look.plan, look.call)))
                return blocking(job, self._told(job, flow.run_step(look.plan, look.call)))
        except Error as error:
            self._attach(error, look)
            raise
        finally:
            self._remarks.end_wait()

    def _warn(self) -> None:
        """Say before the program starts that retries which were asked for will not happen."""
        order, allowed = self._order, self._order.policy.max_attempts
        if order.wants_retries and allowed > 1 and not order.rules.allow_retries(order.policy.classes):
            self._remarks.say(
                f"--effect once, the default, never repeats a program that failed: of {allowed} attempts "
                "there will be one. --effect idempotent allows retries; --retry-on-exit allows them for the "
                "codes that it names"
            )

    def _arguments(self) -> tuple[str, str]:
        """Return what counts of the order: its key, and the HMAC of its command line."""
        assert self._engine is not None
        order, digests = self._order, self._order.read_inputs()
        with self._cuts.patient():
            secret = load_store_secret(self._engine)
        self._cuts.check()
        self._shown = order.shown(digests)
        return order.key or "", order.command_hmac(secret, digests)

    def _terms(self, look: Look, worker: str, now: float) -> Terms:
        """Return what a run keeps of its call, with the command as people may see it."""
        terms = super()._terms(look, worker, now)
        return terms._replace(arguments={**terms.arguments, **self._shown})

    def _told(self, job: Job, script: Script) -> Script:
        """Let a person know of waits, and let a signal end them; what is written is brought to its end."""
        answer: Any = None
        waited_for = 0
        while True:
            try:
                op = script.send(answer)
            except StopIteration:
                return
            if type(op) is Sleep:
                yield from self._wait(op.seconds)
                answer = None
                continue
            if type(op) is Watch:
                if waited_for != op.version:
                    waited_for = op.version
                    self._remarks.say("another process is at it; waiting for it")
                self._cuts.impatient()
            elif type(op) is Work and self._cuts.number:
                job.cut = Interrupted(self._cuts.number)  # between claim and start: nothing has begun
            answer = yield op
            if type(op) is Watch:
                self._cuts.patient_again()
            if type(op) is Save and type(answer) is Seen:
                self._tell(answer.run, answer.body or {})

    def _wait(self, seconds: float) -> Script:
        """Wait for the next attempt in short stretches, so that a countdown shows; a signal ends it."""
        ends = clock.current.monotonic() + seconds
        self._cuts.impatient()
        while (left := ends - clock.current.monotonic()) > 0:
            self._remarks.show_wait(left)
            yield Sleep(min(left, STRETCH_S))
        self._remarks.end_wait()
        self._cuts.patient_again()

    def _tell(self, state: Any, body: dict[str, Any]) -> None:
        """Say what became of an attempt that is not the last."""
        if state.state == "SOFT_FAIL" and not state.held_for:
            why = (body.get("error") or {}).get("message") or state.reason
            self._remarks.say(f"attempt {state.tried} of {state.allowed}: {why}")

    def _own(self, plan: Plan) -> Plan:
        return plan.replaced(
            classify=_classified, covers=_covers, not_applied=_not_applied,
            describe=partial(_described, self._order.secrets), after_failure=self._order.after,
            inline_wait_s=self._order.max_wait_s,
        )  # fmt: skip

    def _job(self, look: Look) -> Job:
        job = super()._job(look)
        job.isolate = self._attempt
        return job

    def _find(self) -> str:
        """Return where the command is."""
        order = self._order
        self._path = self._path or find(order.command[0], {**os.environ, **order.env}, order.cwd)
        return self._path

    # One attempt ------------------------------------------------------------------------------------

    def _attempt(self, job: Job, attempt: Attempt, invoke: Invoke) -> dict[str, Any]:
        """Run the program once; the limits are ours to keep."""
        order, began = self._order, time.monotonic()
        attempt.begun = False
        start = Start(
            self._find(), order.command, {**os.environ, **order.env, **_environment(attempt)}, order.cwd,
            order.stdin, order.grace_s, order.linger_s, order.leave, order.rules.outputs, order.through,
        )  # fmt: skip
        spools = Spool(order.most), Spool(order.most)

        def begins() -> None:
            attempt.begun, self.ran = True, attempt.number

        try:
            with alone(_folder(job.engine), attempt.key, self._cuts.check) as held:
                limit = None if invoke.ends is None else invoke.ends - clock.current.monotonic()
                ended = run(start, limit, held, self._cuts, spools, begins)
            return self._came_of(job, attempt, invoke, ended, spools, round(time.monotonic() - began, 3))
        finally:
            for spool in spools:
                spool.close()

    def _came_of(
        self, job: Job, attempt: Attempt, invoke: Invoke, ended: Ended, spools: Any, seconds: float
    ) -> dict[str, Any]:
        """Keep the output; return what is to be known of an attempt, or raise it."""
        meaning = self._order.rules.meaning(ended.code, ended.matched, self._order.policy.classes)
        good = meaning.what == "done" and not ended.why
        program: dict[str, Any] = {
            "exit": ended.code, "attempt": attempt.number, "seconds": seconds, "ended_by": ended.why,
            "left_running": ended.left, "notes": list(ended.notes),
        }  # fmt: skip
        for name, spool in zip(STREAMS, spools, strict=True):
            program[name] = self._kept(job, attempt, name, spool, good)
        if good:
            return program
        if ended.why == "signal":
            raise Interrupted(self._cuts.number)
        error = too_late(attempt.step, invoke) if ended.why == "limit" else None
        if error is None:
            raise ProgramFailed(ended.code, meaning, program)
        error.program = program  # type: ignore[attr-defined]
        raise error

    def _kept(self, job: Job, attempt: Attempt, name: str, spool: Spool, good: bool) -> dict[str, Any]:
        """Put a stream away; where that cannot be done, the work is done all the same."""
        made: dict[str, Any] = {"bytes": spool.bytes, "left_out": spool.left_out}
        keep = self._order.keep == "always" or (self._order.keep == "failed" and not good)
        if not spool.bytes or not keep:
            return made
        if spool.fault:
            return {**made, "note": spool.fault}
        told = label(f"attempt-{attempt.number}/{name}")
        try:
            kept = (job.put if good else job.leave)(attempt, spool, told)
        except LeaseLost:
            raise
        except (Error, OSError, Violation) as fault:
            return {**made, "note": str(fault)}
        return {**made, "digest": kept.digest, "size": kept.size}


def _program(key: str, command_hmac: str, command: Any = None, inputs: Any = None) -> dict[str, Any]:
    """Stand for the program: key and HMAC are what counts, the others are shown to people."""
    raise AssertionError(f"{command} {inputs} {key} {command_hmac}: its guard runs it")  # pragma: no cover


def _will_run(look: Look) -> bool:
    """Whether a call may come to start the program, by what the key's last run is."""
    state = look.seen.run
    return state is None or (state.state not in ("COMPLETE", "HARD_FAIL") and not state.held_for)


def _environment(attempt: Attempt) -> dict[str, str]:
    """Return what a program is told about its attempt."""
    return {
        "ONCEMORE_KEY": attempt.key,
        "ONCEMORE_ATTEMPT": str(attempt.number),
        "ONCEMORE_RUN_ID": attempt.run_id,
        "ONCEMORE_FENCE": str(attempt.fence),
        "ONCEMORE_CORRELATION_ID": attempt.correlation_id,
    }


def _folder(engine: Engine) -> Path:
    """Return where the locks of programs are: beside the log's file, else where this user's files go."""
    if engine.url.startswith(SQLITE):
        return Path(engine.url.removeprefix(SQLITE) + "-programs")
    return Path(tempfile.gettempdir()) / f"oncemore-programs-{os.getuid()}"


def _classified(error: BaseException, now: float) -> Failure:
    """Return what an error of an attempt means."""
    if isinstance(error, ProgramFailed):
        kind: Any = "transient" if error.meaning.what == "again" else "permanent"
        return Failure(kind, "maybe", None, name_of(error.code), error.meaning.rule)
    return classify(error, now)


def _covers(error: Exception, failure: Failure) -> bool:
    """Whether an attempt is worth another: by the rules of the order, not by those for functions."""
    if isinstance(error, ProgramFailed):
        return error.meaning.what == "again"
    if isinstance(error, AttemptTimeout):
        return not isinstance(error, DeadlineExceeded)
    return failure.passing or isinstance(error, StoreError)


def _not_applied(error: Exception) -> bool:
    """Whether an attempt of work that may happen only once has done nothing."""
    if isinstance(error, ProgramFailed):
        return error.meaning.declared
    return isinstance(error, NotStarted | StillThere)


def _described(secrets: tuple[str, ...], error: BaseException, failure: Failure | None) -> dict[str, Any]:
    """Return what the log keeps of an error: with what is to be known of the program."""
    kept = neutral(error, failure, secrets)
    program = getattr(error, "program", None)
    return kept if program is None else {**kept, "program": program}
