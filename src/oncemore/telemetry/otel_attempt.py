"""The span of an attempt, which becomes a span of the SDK when that is needed, and at the latest afterwards.

While the function of a step runs, the span of its attempt has to be the current one. Most functions never
look at it. So the current span is an `AttemptSpan`: it remembers when it began, and starts a span of the SDK
when the function asks for its context (for a span of its own, for a request that carries the trace) or writes
to it. Otherwise the queue of reports starts it later, with the time at which the attempt began.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry import trace

from oncemore._platform import run_after_fork

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext

    StartSpan = Callable[[Context, int], Span]

#: Held while a span is started: two threads of a function may ask for it at the same time.
_starting = threading.RLock()


class AttemptSpan(trace.Span):
    """A span that is started when it is first used.

    start       starts the span of the SDK, from the context of the caller and the time of the attempt
    start_time  when the attempt began, in nanoseconds since 1970
    """

    def __init__(self, start: StartSpan, start_time: int) -> None:
        self._start, self._start_time = start, start_time
        # Taken now: it has the baggage of the caller, and the queue's thread has another one.
        self.caller_context = otel_context.get_current()
        self._span: Span | None = None
        self._has_ended = False

    def load_span(self) -> Span:
        """Return the span of the SDK; start it if it is not started."""
        with _starting:
            if self._span is None:
                self._span = self._start(self.caller_context, self._start_time)
            return self._span

    def mark_ended(self) -> None:
        """Note that the attempt has ended: the queue will end the span, and nothing may be added to it."""
        self._has_ended = True

    def get_span_context(self) -> SpanContext:
        """Return the context of the span, which starts it."""
        return self.load_span().get_span_context()

    def is_recording(self) -> bool:
        """Return whether the attempt is in progress."""
        return not self._has_ended and (self._span is None or self._span.is_recording())

    def end(self, end_time: int | None = None) -> None:
        """End the span."""
        self.load_span().end(end_time)

    def set_attribute(self, key: str, value: Any) -> None:
        """Set an attribute."""
        if self.is_recording():
            self.load_span().set_attribute(key, value)

    def set_attributes(self, attributes: Any) -> None:
        """Set attributes."""
        if self.is_recording():
            self.load_span().set_attributes(attributes)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        """Add an event."""
        if self.is_recording():
            self.load_span().add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        """Add a link to another span."""
        if self.is_recording():
            self.load_span().add_link(context, attributes)

    def update_name(self, name: str) -> None:
        """Change the name."""
        if self.is_recording():
            self.load_span().update_name(name)

    def set_status(self, status: Any, description: str | None = None) -> None:
        """Set the status."""
        if self.is_recording():
            self.load_span().set_status(status, description)

    def record_exception(self, exception: BaseException, *values: Any, **named: Any) -> None:
        """Record an exception as an event."""
        if self.is_recording():
            self.load_span().record_exception(exception, *values, **named)


class AttemptSpanContext:
    """The context of an attempt with its span as the current one, for spans that the function starts."""

    __slots__ = ("_context", "_span", "_token")

    def __init__(self, span: Span, context: AbstractContextManager[None]) -> None:
        self._span, self._context = span, context

    def __enter__(self) -> None:
        caller = self._span.caller_context if type(self._span) is AttemptSpan else None
        self._token = otel_context.attach(trace.set_span_in_context(self._span, caller))
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)
        otel_context.detach(self._token)


def _start_before_fork() -> None:
    """Start the span of the forking attempt: parent and child would otherwise start one each."""
    span = trace.get_current_span()
    if type(span) is AttemptSpan:
        span.load_span()


def _reset_after_fork() -> None:
    global _starting
    _starting = threading.RLock()


run_after_fork(_reset_after_fork, before=_start_before_fork)
