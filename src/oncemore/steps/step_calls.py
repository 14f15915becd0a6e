"""Run the calls of a step: directly, from a worker, or as a script of an operator."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from oncemore.control.moved_log import refuse_if_moved
from oncemore.errors import (
    CallRefused,
    Deferred,
    Error,
    InProgress,
    NotPermitted,
    OutcomeUncertain,
    Quarantined,
    StepFailed,
    StoreError,
    UsageError,
)
from oncemore.limits.cooldown_step import with_cooldown, with_cooldown_release
from oncemore.log.head_access import load_head
from oncemore.steps import existing_run, flow
from oncemore.steps.driver import run_call, run_call_async
from oncemore.steps.ops import CallIdentity, EndCall, LoadedHead
from oncemore.steps.prepare import CallPreparer, PreparedCall, describe_and_throttle
from oncemore.steps.run import Run, find_opening
from oncemore.workers.worker import ResumedCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.steps.call_in_progress import CallInProgress
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class CallRunner(CallPreparer[P, R]):
    """Runs prepared calls with the blocking or the async driver, and finds the run of an error."""

    def _call_sync(
        self,
        args: Any,
        kwargs: Any,
        before: Callable[..., Script] | None = None,
        prepared: PreparedCall | None = None,
    ) -> Any:
        prepared = prepared or self._prepare_call(args, kwargs, guess=True)
        end = existing_run.end_if_complete(prepared.plan, prepared.call, prepared.seen)
        if end is not None and before is None:
            return end.value
        job = self._start_call(prepared)
        try:
            if before is not None:
                run_call(job, self._prepare_rerun(prepared, before))
            script = flow.run_step(prepared.plan, prepared.call, None if before else prepared.seen)
            return run_call(job, self._with_cooldown(prepared, script))
        except Error as error:
            end = _stored_end_after_store_error(job, prepared, error)
            if end is not None:
                return end.value
            self._attach_run(error, prepared)
            raise
        finally:
            self._count_new_work(job)

    async def _call_async(
        self,
        args: Any,
        kwargs: Any,
        before: Callable[..., Script] | None = None,
        prepared: PreparedCall | None = None,
    ) -> Any:
        prepared = prepared or self._prepare_call(args, kwargs, guess=True)
        end = existing_run.end_if_complete(prepared.plan, prepared.call, prepared.seen)
        if end is not None and before is None:
            return end.value
        job = self._start_call(prepared)
        try:
            if before is not None:
                await run_call_async(job, self._prepare_rerun(prepared, before))
            script = flow.run_step(prepared.plan, prepared.call, None if before else prepared.seen)
            return await run_call_async(job, self._with_cooldown(prepared, script))
        except Error as error:
            end = _stored_end_after_store_error(job, prepared, error)
            if end is not None:
                return end.value
            self._attach_run(error, prepared)
            raise
        finally:
            self._count_new_work(job)

    def _with_cooldown(
        self, prepared: PreparedCall, script: Script, around: Callable[..., Script] = with_cooldown
    ) -> Script:
        """Return the script with the checks of the resource's cooldown, if the step has one."""
        if self._options.cooldown is None:
            return script
        cooling = self._options.cooldown_of(prepared.args, prepared.kwargs)
        return script if cooling is None else around(cooling, prepared.call, script)

    def _prepare_rerun(self, prepared: PreparedCall, before: Callable[..., Script]) -> Script:
        """Return the script that records an operator's request to run the work again."""
        return refuse_if_moved(
            self.name,
            self._with_cooldown(prepared, before(prepared.plan, prepared.call), with_cooldown_release),
        )

    def _count_new_work(self, job: CallInProgress) -> None:
        """Count calls of new work: one that had to be read again was none, or failed."""
        self._new_in_a_row = 0 if job.was_reread else self._new_in_a_row + 1

    def _run_script(self, prepared: PreparedCall, script: Script) -> Any:
        return (
            self._run_script_async(prepared, script)
            if self._is_async
            else self._run_script_sync(prepared, script)
        )

    def _run_script_sync(self, prepared: PreparedCall, script: Script) -> Run:
        try:
            run_call(self._start_call(prepared), script)
        except Error as error:
            self._attach_run(error, prepared)
            raise
        return self._load_run(prepared.engine, prepared.call.entity)

    async def _run_script_async(self, prepared: PreparedCall, script: Script) -> Run:
        try:
            await run_call_async(self._start_call(prepared), script)
        except Error as error:
            self._attach_run(error, prepared)
            raise
        return self._load_run(prepared.engine, prepared.call.entity)

    def _resume_run(self, engine: Engine, seen: LoadedHead) -> ResumedCall:
        """Return the call that continues a run of another process, from its recorded arguments.

        It does not wait: a run that is not due or not free is left to the worker's next poll.
        """
        run, opening = seen.record, seen.body or {}
        if "arguments" not in opening:
            opening = find_opening(engine.store.read_entries(seen.entity), engine.cipher)
        if "arguments" not in opening or opening.get("withheld"):
            missing = ", ".join(opening.get("withheld", ())) or "its arguments"
            raise UsageError(
                f"{self.name}: key {seen.entity[4:16]} cannot go on here, the log does not have {missing}"
            )
        with engine.artifact_store.use_store():
            args, kwargs = self._options.decode_arguments(opening["arguments"])
        plan = self._plan_for_provider(
            self._plan_for_engine(engine), self._options.provider_of(args, kwargs)
        ).copy_with(if_running="raise", inline_wait_s=0.0, after_failure="raise", on_version_change="reuse")
        if run.provider:
            plan = plan.copy_with(describe=describe_and_throttle(engine, run.provider, plan.describe))
        call = CallIdentity(
            seen.entity, "", run.cfg_hash, run.deadline, 0.0, run.tenant, self._options.config_hash()
        )
        prepared = PreparedCall(engine, plan, call, seen, args, kwargs, {}, b"", run.tenant)
        script = self._with_cooldown(prepared, flow.run_step(plan, call, seen))
        job = self._start_call(prepared)
        job.recorded = run.run_id, opening["arguments"]
        return ResumedCall(job, script, opening.get("actor", ""))

    def _attach_run(self, error: Error, prepared: PreparedCall) -> None:
        """Let an error carry its run, if there is one and the store can still be read."""
        if error.run is None and not isinstance(error, StoreError):
            with suppress(StoreError):
                run = self._load_run(prepared.engine, prepared.call.entity)
                error.run = run if run.version else None

    def _run_sync(self, args: Any, kwargs: Any) -> Run:
        prepared = self._prepare_call(
            args, kwargs
        )  # once: the work may change its arguments, and time goes by
        try:
            self._call_sync(args, kwargs, None, prepared)
        except _OUTCOME_ERRORS as error:
            return _run_of_error(error)
        return self._load_run(prepared.engine, prepared.call.entity)

    async def _run_async(self, args: Any, kwargs: Any) -> Run:
        prepared = self._prepare_call(args, kwargs)
        try:
            await self._call_async(args, kwargs, None, prepared)
        except _OUTCOME_ERRORS as error:
            return _run_of_error(error)
        return self._load_run(prepared.engine, prepared.call.entity)

    def _load_run(self, engine: Engine, entity: str) -> Run:
        return Run(engine, entity, self._plan_for_engine(engine).decode)


def _stored_end_after_store_error(
    job: CallInProgress, prepared: PreparedCall, error: Error
) -> EndCall | None:
    """Return the end of work that was taken for new and could not be claimed: a full disk can be read."""
    if job.was_reread or not isinstance(error, StoreError):
        return None
    job.was_reread = True
    with suppress(Error):
        seen = load_head(prepared.engine.store, prepared.call.entity, prepared.engine.cipher)
        return existing_run.end_if_complete(prepared.plan, prepared.call, seen)
    return None


_OUTCOME_ERRORS = (StepFailed, CallRefused, OutcomeUncertain)
_RUN_ERRORS = (StepFailed, OutcomeUncertain, Deferred, InProgress, Quarantined, NotPermitted)


def _run_of_error(error: Error) -> Run:
    """Return the run that an error is about; one that is about no run at all is raised."""
    run = error.run
    if not isinstance(run, Run) or not isinstance(error, _RUN_ERRORS):
        raise error
    return run
