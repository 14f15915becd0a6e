"""The types that `oncemore.step` returns, for type checkers: async functions make an `AsyncStep`.

At run time every step is a `Step`. The methods of an async step return awaitables of a `Run` or `JobRun`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# ruff: noqa: D102 - the methods of `Step` have the docstrings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping
    from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

    from oncemore.retries.options import Seconds
    from oncemore.steps.context import When
    from oncemore.steps.decorator import Step
    from oncemore.steps.engine import Engine
    from oncemore.steps.run import Run
    from oncemore.workers.job_run import JobRun
    from oncemore.workflows.workflow import Workflow

    P = ParamSpec("P")
    Q = ParamSpec("Q")
    R = TypeVar("R")
    S = TypeVar("S")

    class MapOptions(TypedDict, total=False):
        """The options of `Step.map` besides `unpack`."""

        max_concurrency: int
        progress: Literal["auto", "off"]
        max_wait: Seconds | None
        executor: Any

    class AsyncStep(Step[P, Coroutine[Any, Any, R]]):
        """The type of a step that is an async function."""

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> AsyncStep[P, R]: ...
        @overload
        def __get__(
            self: AsyncStep[Concatenate[S, Q], R], instance: S, owner: type | None = None
        ) -> AsyncStep[Q, R]: ...
        def __get__(self, instance: Any, owner: type | None = None) -> Any: ...
        def bind(self, engine: Engine) -> AsyncStep[P, R]: ...
        def last_run(self, *args: P.args, **kwargs: P.kwargs) -> Run[R] | None: ...  # type: ignore[override]
        def run(  # type: ignore[override]
            self, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, Run[R]]: ...
        @overload  # type: ignore[override]
        def submit(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Run[R]]: ...
        @overload
        def submit(self, *args: Any, at: When | None, **kwargs: Any) -> Coroutine[Any, Any, Run[R]]: ...
        def submit(self, *args: Any, **kwargs: Any) -> Any: ...
        def cancel(  # type: ignore[override]
            self, *args: Any, reason: str, **kwargs: Any
        ) -> Coroutine[Any, Any, Run[R]]: ...
        def settle(  # type: ignore[override]
            self, answer: Any, /, *args: Any, reason: str, **kwargs: Any
        ) -> Run[R]: ...
        def mark_done(  # type: ignore[override]
            self, *args: Any, value: Any = None, reason: str, **kwargs: Any
        ) -> Run[R]: ...
        @overload  # type: ignore[override]
        def map(
            self: Callable[[S], Coroutine[Any, Any, R]],
            items: Iterable[S],
            *,
            unpack: Literal["argument"] = "argument",
            **options: Unpack[MapOptions],
        ) -> Coroutine[Any, Any, JobRun[R]]: ...
        @overload
        def map(
            self,
            items: Iterable[Iterable[Any]],
            *,
            unpack: Literal["args"],
            **options: Unpack[MapOptions],
        ) -> Coroutine[Any, Any, JobRun[R]]: ...
        @overload
        def map(
            self,
            items: Iterable[Mapping[str, Any]],
            *,
            unpack: Literal["kwargs"],
            **options: Unpack[MapOptions],
        ) -> Coroutine[Any, Any, JobRun[R]]: ...
        def map(self, items: Iterable[Any], **options: Any) -> Any: ...

    class StepDecorator(Protocol):
        """The decorator that `oncemore.step` returns."""

        @overload
        def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...
        @overload
        def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...

    class AsyncWorkflow(AsyncStep[P, R], Workflow[P, Coroutine[Any, Any, R]]):
        """The type of a workflow that is an async function."""

        def bind(self, engine: Engine) -> AsyncWorkflow[P, R]: ...
        def __get__(self, instance: Any, owner: type | None = None) -> Any: ...

    class WorkflowDecorator(Protocol):
        """The decorator that `oncemore.workflow(…)` returns."""

        @overload
        def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncWorkflow[P, R]: ...
        @overload
        def __call__(self, function: Callable[P, R], /) -> Workflow[P, R]: ...
