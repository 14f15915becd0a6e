"""The functions that are called with the events of this process (`oncemore.events`).

    durable write ──► event (a frozen value) ──► the functions given to `on_event`, among them the metrics

The events are values of another module, which `oncemore.retry` imports only where there is a listener.
"""

from __future__ import annotations

from _thread import allocate_lock
from contextvars import ContextVar

from oncemore.errors import UsageError, log_warning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, Self

    from oncemore.events import ProcessEvent


class EventSubscription:
    """A function that is called with every event of this process, until `unsubscribe()`.

    Also a context manager that unsubscribes at the end of its block. Calling it calls the function.
    """

    __slots__ = ("_has_failed", "_kinds", "callback", "hears_runs")

    def __init__(
        self,
        callback: Callable[[ProcessEvent], object],
        kinds: Collection[type] | None = None,
        *,
        hears_runs: bool = True,
    ) -> None:
        self.callback, self.hears_runs = callback, hears_runs
        self._kinds = kinds
        self._has_failed = False

    def __call__(self, event: ProcessEvent) -> object:
        """Call the function with an event."""
        return self.callback(event)

    def unsubscribe(self) -> None:
        """Stop calling the function; a second call does nothing."""
        with _lock:
            _set_listeners(tuple(other for other in listeners if other is not self))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.unsubscribe()

    def deliver_event(self, event: ProcessEvent) -> None:
        """Call the function; its errors never reach the work, and only the first one is logged."""
        if self._kinds is not None and type(event) not in self._kinds:
            return
        active = _active.get()
        # The function may call steps itself: their events must not call it again, without end.
        if self in active:
            return
        token = _active.set((*active, self))
        try:
            result: Any = self.callback(event)
            if result is not None and hasattr(type(result), "__await__"):
                # Closing a coroutine avoids the warning that it was never awaited.
                result.close() if hasattr(result, "close") else None
                raise UsageError("it returned an awaitable, and events are not awaited")
        except Exception as error:  # noqa: BLE001 - an error of a listener must not end the work
            if not self._has_failed:
                self._has_failed = True
                self._log_failure(error)
        finally:
            _active.reset(token)

    def _log_failure(self, error: Exception) -> None:
        from oncemore._redact import masked_message

        log_warning(
            f"on_event: {_name_of(self.callback)} failed with {type(error).__name__}: "
            f"{masked_message(error, 200)}; the work goes on, and further errors of it are not logged"
        )


#: The functions that are called with events. Replaced and never changed, so that reading it needs no lock.
listeners: tuple[EventSubscription, ...] = ()
#: Those of them that are called with the events of runs.
run_listeners: tuple[EventSubscription, ...] = ()
_lock = allocate_lock()
_active: ContextVar[tuple[EventSubscription, ...]] = ContextVar("oncemore.events", default=())


def on_event(callback: Callable[[ProcessEvent], object]) -> EventSubscription:
    """Call a function with every event of this process (`oncemore.events`); also as a decorator.

    The function is called in the thread or task of the work, after the durable write that the event
    describes: it must be quick and not async. Its errors are logged once and never reach the work. Return
    the subscription: `unsubscribe()` ends it, and so does the end of a `with` block.
    """
    if not callable(callback):
        raise UsageError(f"on_event takes a function with one parameter, the event; got {callback!r}")
    if _is_async(callback):
        raise UsageError(
            f"{_name_of(callback)} is an async function, and events are not awaited; pass a plain function, "
            "for example one that puts the event into a queue"
        )
    return add_listener(callback)


def add_listener(
    callback: Callable[[ProcessEvent], object],
    kinds: Collection[type] | None = None,
    *,
    hears_runs: bool = True,
) -> EventSubscription:
    """Call a function with the events of these types, or with all of them.

    hears_runs  whether the events of runs are among them; else a step need not build them
    """
    subscription = EventSubscription(callback, kinds, hears_runs=hears_runs)
    with _lock:
        _set_listeners((*listeners, subscription))
    return subscription


def _set_listeners(subscriptions: tuple[EventSubscription, ...]) -> None:
    global listeners, run_listeners
    listeners = subscriptions
    run_listeners = tuple(listener for listener in listeners if listener.hears_runs)


def publish_event(event: ProcessEvent) -> None:
    """Call all listeners of this process with an event."""
    for listener in listeners:
        listener.deliver_event(event)


def publish_run_event(event: ProcessEvent) -> None:
    """Call the listeners of runs with an event."""
    for listener in run_listeners:
        listener.deliver_event(event)


def _is_async(callback: Any) -> bool:
    code = getattr(callback, "__code__", None)
    # The flags of coroutine and async generator functions; `inspect` would make the import slow.
    return code is not None and bool(code.co_flags & (0x80 | 0x200))


def _name_of(callback: Any) -> str:
    return getattr(callback, "__qualname__", None) or type(callback).__qualname__
