"""A program as a durable step: the same keys, flow, log and leases as a function.

A successful attempt returns a description of the program: its exit code and the artifacts of its output. A
failed attempt stores the same description with its error, so that a later call can show the output and the
exit code without running anything.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore import clock
from oncemore.artifacts.artifact import make_label
from oncemore.errors import Error, LeaseLost, PolicyViolation
from oncemore.log.record import LoadedHead
from oncemore.policy.closing import LEASE_EXPIRED
from oncemore.programs.exit_rules import (
    ProgramFailed,
    classify_program_error,
    describe_error,
    is_not_applied,
    is_worth_retry,
)
from oncemore.programs.find_command import find_executable
from oncemore.programs.output import OutputSpool
from oncemore.programs.process import ProgramStart, lock_program, run_program
from oncemore.programs.signals import SignalReceived
from oncemore.programs.store_secret import load_store_secret
from oncemore.retries.deadlines import timeout_error
from oncemore.steps import flow, transitions
from oncemore.steps.attempt_storage import AttemptStorage
from oncemore.steps.call_operations import CALL_OPERATIONS
from oncemore.steps.decorator import Step
from oncemore.steps.ops import AppendChange, RunAttempt, SleepSeconds, WatchEntity
from oncemore.steps.options import StepOptions
from oncemore.steps.perform import run_call
from oncemore.steps.stored_failure import begins_new_run
from oncemore.telemetry.meter import extend_usage

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from oncemore.programs.command import ExecOptions
    from oncemore.programs.process import ProgramExit
    from oncemore.programs.signals import SignalListener
    from oncemore.retries.loop import CallFunction
    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import AttemptTerms, Script
    from oncemore.steps.plan import StepPlan
    from oncemore.steps.run import Run

    class Remarks(Protocol):
        """Receives the remarks of a call, apart from the output of its program."""

        def say(self, text: str) -> None:
            """Show a remark."""

        def show_wait(self, left_s: float) -> None:
            """Show the seconds until the next attempt; called about once a second."""

        def end_wait(self) -> None:
            """Remove the display of a wait."""


STREAM_NAMES = ("stdout", "stderr")
#: How often the countdown of a wait is updated.
COUNTDOWN_S = 1.0
SQLITE_PREFIX = "sqlite:///"


class ProgramStep(Step[Any, Any]):
    """The step of one `oncemore exec` call."""

    def __init__(
        self, options: ExecOptions, engine: Engine, signals: SignalListener, remarks: Remarks
    ) -> None:
        # Without --key, the HMAC of the command line is a part of the key.
        keyed = {"key": "key"} if options.key is not None else {}
        step_options: dict[str, Any] = {
            "effect": options.rules.effect, "name": options.name, "policy": options.policy,
            "bucket": options.bucket, "dataset": options.dataset, "operation": options.operation,
            "masking": options.masking,
            "if_running": "raise" if options.if_running == "fail" else "wait", **keyed,
        }  # fmt: skip
        super().__init__(StepOptions(_program_signature, **step_options), engine)
        self._exec_options, self._signals, self._remarks = options, signals, remarks
        self._path = ""
        self._shown: dict[str, Any] = {}
        #: The attempt whose output this call has passed on; 0 if it has made none.
        self.shown_attempt = 0
        self.run_key = ""
        self._call: PreparedCall | None = None
        self._watched_version = 0
        self._operations = CALL_OPERATIONS.replace_operations(
            {
                SleepSeconds: self._wait_for_attempt,
                WatchEntity: self._wait_for_other_process,
                RunAttempt: self._run_attempt,
                AppendChange: self._append_and_announce,
            }
        )

    @property
    def begins_again(self) -> bool:
        """Whether the next call of a failed program starts a new run; the error of a call says so."""
        run = None if self._call is None else self._load_run(self._call).state
        if run is None or run.cancelled_at or run.reason == "rejected" or run.effect == "once":
            return False
        return self._exec_options.after_failure == "new_run"

    def last_run(self) -> Run[Any] | None:
        """Return the key's last run as it is now; None if the key is not known yet."""
        return None if self._call is None else self._load_run(self._call)

    def run_to_end(self, decision: Callable[[StepPlan, PreparedCall], Script] | None = None) -> Any:
        """Run the program until it is done or has failed; return its description, or raise as steps do.

        decision  the script of an operator's decision, which is written first
        """
        call = self._prepare_call(self._key_arguments(), {})
        self.run_key, self._call = call.key, call
        # A finished program needs no command on the PATH any more: its stored result is returned as it is.
        if decision is None and (end := transitions.end_if_complete(call.plan, call, call.head)) is not None:
            return end.value
        if decision is not None or _may_start(call):
            self._find_command()
            self._warn_of_effect()
        try:
            with self._signals.defer_signals():
                if decision is not None:
                    run_call(call, decision(call.plan, call), CALL_OPERATIONS)
                return run_call(call, flow.run_step(call.plan, call), self._operations)
        except Error as error:
            self._attach_run(error, call)
            raise
        finally:
            self._remarks.end_wait()

    def _warn_of_effect(self) -> None:
        """Warn before the program starts that the effect forbids the retries that the user asked for."""
        options, allowed = self._exec_options, self._exec_options.policy.max_attempts
        if options.wants_retries and allowed > 1 and not options.rules.allow_retries(options.policy.classes):
            self._remarks.say(
                f"--effect once, the default, never repeats a program that failed: of {allowed} attempts "
                "there will be one. Give --effect idempotent to allow retries, or --retry-on-exit to allow "
                "them for some exit codes"
            )

    def _key_arguments(self) -> tuple[str, str]:
        """Return the arguments that identify the call: its key, and the HMAC of its command line."""
        assert self._engine is not None
        options, digests = self._exec_options, self._exec_options.read_inputs()
        # The first write of the call: from here on a signal waits until a write is complete.
        with self._signals.defer_signals():
            secret = load_store_secret(self._engine)
        self._signals.raise_pending()
        self._shown = options.describe_command(digests)
        return options.key or "", options.compute_hmac(secret, digests)

    def _make_terms(self, call: PreparedCall, worker: str, now: float) -> AttemptTerms:
        """Return the terms of the run, with the command line as the log may show it."""
        terms = super()._make_terms(call, worker, now)
        return terms._replace(arguments={**terms.arguments, **self._shown})

    def _wait_for_attempt(self, call: PreparedCall, op: SleepSeconds) -> None:
        """Wait for the next attempt in short pieces, so that a countdown shows; a signal ends the wait."""
        sleep = CALL_OPERATIONS.blocking[SleepSeconds]
        ends = clock.current.monotonic() + op.seconds
        self._signals.stop_deferring()
        while (remaining_s := ends - clock.current.monotonic()) > 0:
            self._remarks.show_wait(remaining_s)
            sleep(call, SleepSeconds(min(remaining_s, COUNTDOWN_S)))
        self._remarks.end_wait()
        self._signals.resume_deferring()

    def _wait_for_other_process(self, call: PreparedCall, op: WatchEntity) -> None:
        """Wait for the process that runs the key; a signal ends the wait, but never a write."""
        # The script watches again after every wake-up: the remark is made once per version.
        if self._watched_version != op.version:
            self._watched_version = op.version
            self._remarks.say("another process runs this key; waiting for it")
        self._signals.stop_deferring()
        CALL_OPERATIONS.blocking[WatchEntity](call, op)
        self._signals.resume_deferring()

    def _run_attempt(self, call: PreparedCall, op: RunAttempt) -> Any:
        """Run an attempt, unless a signal came between the claim and the start: then it does not begin."""
        if self._signals.number:
            call.interrupt = SignalReceived(self._signals.number)
        return CALL_OPERATIONS.blocking[RunAttempt](call, op)

    def _append_and_announce(self, call: PreparedCall, op: AppendChange) -> Any:
        """Append a change, and announce a failed attempt."""
        answer = CALL_OPERATIONS.blocking[AppendChange](call, op)
        # Only an append that succeeded returns a head: a conflict has not changed the run.
        if type(answer) is LoadedHead:
            self._announce_failure(answer.record, answer.body or {})
        return answer

    def _announce_failure(self, state: Any, body: dict[str, Any]) -> None:
        """Announce a failed attempt that will be followed by another."""
        if state.state == "SOFT_FAIL" and not state.held_for:
            reason = (body.get("error") or {}).get("message") or state.reason
            count = f"attempt {state.attempt_count} of {state.max_attempts}"
            if state.max_crashes and state.reason == LEASE_EXPIRED:
                count = f"crash {state.crash_count} of {state.max_crashes}"
            self._remarks.say(f"{count}: {reason}")

    def _adjust_plan(self, plan: StepPlan) -> StepPlan:
        return plan.copy_with(
            classify=classify_program_error,
            covers=is_worth_retry,
            not_applied=is_not_applied,
            describe=partial(describe_error, self._exec_options.secrets),
            after_failure=self._exec_options.after_failure,
            inline_wait_s=self._exec_options.max_wait_s,
            # Called in place of the step's function.
            isolate=self._run_program,
        )

    def _find_command(self) -> str:
        """Return the path of the command; search for it once."""
        options = self._exec_options
        self._path = self._path or find_executable(
            options.command[0], {**os.environ, **options.env}, options.cwd
        )
        return self._path

    def _run_program(
        self, call: PreparedCall, attempt: RunningAttempt, invoke: CallFunction
    ) -> dict[str, Any]:
        """Run the program once; the guardian enforces the limits, in place of the engine's timeout."""
        options, started_at = self._exec_options, time.monotonic()
        # An attempt that ends before the program starts has had no effect.
        attempt.begun = False
        start = ProgramStart(
            path=self._find_command(),
            argv=options.command,
            env={**os.environ, **options.env, **_attempt_environment(attempt)},
            cwd=options.cwd,
            stdin=options.stdin,
            grace_s=options.grace_s,
            linger_s=options.linger_s,
            leave_running=options.leave_running,
            outputs=options.rules.outputs,
            output_fds=options.output_fds,
        )
        spools = OutputSpool(options.max_output), OutputSpool(options.max_output)

        def mark_begun() -> None:
            attempt.begun, self.shown_attempt = True, attempt.number

        try:
            with lock_program(_lock_folder(call.engine), attempt.key, self._signals.raise_pending) as lock_fd:
                limit_s = None if invoke.ends is None else invoke.ends - clock.current.monotonic()
                program_exit = run_program(start, limit_s, lock_fd, self._signals, spools, mark_begun)
            attempt.cpu_s += program_exit.cpu_s
            extend_usage(attempt).memory_gb = program_exit.memory_gb
            return self._finish_program(
                call,
                attempt,
                invoke,
                program_exit,
                spools,
                round(time.monotonic() - started_at, 3),
            )
        finally:
            for spool in spools:
                spool.close()

    def _finish_program(
        self,
        call: PreparedCall,
        attempt: RunningAttempt,
        invoke: CallFunction,
        program_exit: ProgramExit,
        spools: Any,
        seconds: float,
    ) -> dict[str, Any]:
        """Store the output; return the description of a successful attempt, or raise the failure."""
        meaning = self._exec_options.rules.judge_exit(
            program_exit.code, program_exit.matched, self._exec_options.policy.classes
        )
        succeeded = meaning.verdict == "done" and not program_exit.ended_by
        program: dict[str, Any] = {
            "exit": program_exit.code, "attempt": attempt.number, "seconds": seconds,
            "ended_by": program_exit.ended_by, "left_running": program_exit.left_running,
            "notes": list(program_exit.notes),
        }  # fmt: skip
        for name, spool in zip(STREAM_NAMES, spools, strict=True):
            program[name] = self._store_output(call, attempt, name, spool, succeeded)
        if succeeded:
            return program
        if program_exit.ended_by == "signal":
            raise SignalReceived(self._signals.number)
        error = timeout_error(attempt.step, invoke) if program_exit.ended_by == "limit" else None
        if error is None:
            raise ProgramFailed(program_exit.code, meaning, program)
        error.program = program  # type: ignore[attr-defined]
        raise error

    def _store_output(
        self,
        call: PreparedCall,
        attempt: RunningAttempt,
        name: str,
        spool: OutputSpool,
        succeeded: bool,
    ) -> dict[str, Any]:
        """Store a stream as an artifact; return its size and digest, or a note if it cannot be stored.

        An error of the artifact store does not fail the attempt: the program has done its work.
        """
        description: dict[str, Any] = {"bytes": spool.total_bytes, "left_out": spool.omitted_bytes}
        is_kept = self._exec_options.keep_output == "always" or (
            self._exec_options.keep_output == "failed" and not succeeded
        )
        if not spool.total_bytes or not is_kept:
            return description
        if spool.error_text:
            return {**description, "note": spool.error_text}
        label = make_label(f"attempt-{attempt.number}/{name}")
        try:
            # Artifacts belong to a COMMIT; the output of a failed attempt is stored as its evidence.
            storage = AttemptStorage(call)
            store = storage.put_artifact if succeeded else storage.store_evidence
            artifact = store(attempt, spool, label)
        except LeaseLost:
            raise
        except (Error, OSError, PolicyViolation) as error:
            return {**description, "note": str(error)}
        return {**description, "digest": artifact.digest, "size": artifact.size}


# The names of the parameters are a part of the key: never rename them.
def _program_signature(
    key: str, command_hmac: str, command: Any = None, inputs: Any = None
) -> dict[str, Any]:
    """Provide the signature from which the step computes key and input hash; never called."""
    raise AssertionError(f"{command} {inputs} {key} {command_hmac}: the guardian runs it")  # pragma: no cover


def _may_start(call: PreparedCall) -> bool:
    """Return whether this call may start the program, by the state of the key's last run."""
    state = call.head.record
    if state is not None and state.state == "HARD_FAIL":
        return begins_new_run(call.plan, call, state, 0.0)
    return state is None or (state.state != "COMPLETE" and not state.held_for)


def _attempt_environment(attempt: RunningAttempt) -> dict[str, str]:
    """Return the variables that identify the attempt to the program."""
    return {
        "ONCEMORE_KEY": attempt.key,
        "ONCEMORE_ATTEMPT": str(attempt.number),
        "ONCEMORE_RUN_ID": attempt.run_id,
        "ONCEMORE_FENCE": str(attempt.fence),
        "ONCEMORE_CORRELATION_ID": attempt.correlation_id,
    }


def _lock_folder(engine: Engine) -> Path:
    """Return the folder of the program locks: beside a SQLite log, else in the temporary folder."""
    if engine.url.startswith(SQLITE_PREFIX):
        return Path(engine.url.removeprefix(SQLITE_PREFIX) + "-programs")
    # The user id keeps the folders of two users apart: each is private to its owner.
    return Path(tempfile.gettempdir()) / f"oncemore-programs-{os.getuid()}"
