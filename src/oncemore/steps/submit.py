"""Submit the calls of a step to workers, and call it for many items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from oncemore.errors import UsageError
from oncemore.steps import operator_flow, step_map
from oncemore.steps.attempt import CURRENT
from oncemore.steps.context import CONTEXT, compute_deadlines, parse_moment
from oncemore.steps.step import StepCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Unpack

    from oncemore.retries.options import Seconds
    from oncemore.steps.context import When
    from oncemore.steps.run import Run
    from oncemore.steps.step_types import MapOptions
    from oncemore.workers.job_run import JobRun

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class SubmittedCalls(StepCalls[P, R]):
    """Submits the calls of a step, one at a time or many; the base of `oncemore.Step`."""

    # Type checkers check the arguments of a call without `at=`. They cannot if a keyword of ours stands next
    # to them, here and with the `reason=` of `Step`: a ParamSpec takes no further keywords.
    @overload
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    @overload
    def submit(self, *args: Any, at: When | None, **kwargs: Any) -> Run[R]: ...
    def submit(self, *args: Any, at: When | None = None, **kwargs: Any) -> Run[R]:  # type: ignore[misc]
        """Submit the work for a worker and return its `Run`; await it if async.

        Work is submitted once: if the key has a run, in any state, that one is returned. The log must be able
        to store all arguments.

        at  the earliest time of the first attempt: an aware datetime, POSIX seconds, or a timedelta from now
        """
        call = self._prepare_call(args, kwargs)
        # Refused now: a worker has only the arguments in the log, and the caller would not see it fail.
        if call.withheld:
            raise UsageError(
                f"{self.name} cannot be submitted to a worker with {', '.join(call.withheld)}: the log "
                "does not store a Secret or an argument of ignore=; let the step read it itself, or give the "
                "parameter a default"
            )
        due, now = 0.0, call.engine.now()
        if at is not None:
            due = parse_moment("at", at, now)
            # The total timeout begins when the work is due.
            total_timeout_s = self._options.policy.total_timeout_s
            call.deadline, _ = compute_deadlines(total_timeout_s, CONTEXT.get().deadline, max(due, now))
            if call.deadline and due >= call.deadline:
                raise UsageError(f"at is {at!r}, which is not before the deadline of {self.name}")
        return self._run_script(call, operator_flow.submit_run(call.plan, call, due))  # type: ignore[no-any-return]

    @overload
    def map(
        self: Callable[[S], R],
        items: Iterable[S],
        *,
        unpack: Literal["argument"] = "argument",
        **options: Unpack[MapOptions],
    ) -> JobRun[R]: ...
    @overload
    def map(
        self,
        items: Iterable[Iterable[Any]],
        *,
        unpack: Literal["args"],
        **options: Unpack[MapOptions],
    ) -> JobRun[R]: ...
    @overload
    def map(
        self,
        items: Iterable[Mapping[str, Any]],
        *,
        unpack: Literal["kwargs"],
        **options: Unpack[MapOptions],
    ) -> JobRun[R]: ...
    def map(
        self,
        items: Iterable[Any],
        *,
        max_concurrency: int = 5,
        unpack: Literal["argument", "args", "kwargs"] = "argument",
        progress: Literal["auto", "off"] = "auto",
        max_wait: Seconds | None = None,
        executor: Any = None,
    ) -> JobRun[R]:
        """Call the step for each item, several at a time, and return the `JobRun`; await it if async.

        The failure of an item is not raised; the `JobRun` has it. The concurrency limit of a throttling
        provider is halved, and raised by one after each quiet period.

        max_concurrency  the largest number of concurrent calls
        unpack           how an item is passed: the step's only "argument", its "args" or its "kwargs"
        progress         "auto": a line on standard error, if that is a terminal; or "off"
        max_wait         how long the job waits for an item that is due again later; as long as a call does
                         (`max_inline_wait_s` of the engine), unless given
        executor         where attempts are made: an executor of `concurrent.futures`, a Dask `Client`, or the
                         module `ray`; in threads of this process, or in the event loop, unless given. Other
                         processes import the step and open the store by its address
        """
        limits = step_map.MapLimits(max_concurrency, unpack, progress, max_wait)
        job = step_map.map_items(self, items, limits, executor)
        outer = CURRENT.get()
        if outer is not None and outer.journal is not None and outer.journal.is_workflow:
            # A workflow waits for the items that are not done yet.
            return outer.journal.finish_map(job, is_async=self._is_async)  # type: ignore[no-any-return, attr-defined]
        return job  # type: ignore[no-any-return]
