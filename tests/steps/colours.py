"""One test, every colour: scripted work as a durable step, called in a thread, on asyncio and on trio."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

COLOURS = ("plain", "asyncio", "trio")
each_colour = pytest.mark.parametrize("colour", COLOURS)
on_sqlite = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
in_memory = pytest.mark.parametrize("engine", ["memory"], indirect=True)
#: Three attempts, after 5 and 7 seconds.
#: The same as POLICY, but a call of failed work raises the stored failure.
RAISES = Path(__file__).with_name("raises.yaml")
POLICY = Policy("test", max_attempts=3, schedule=Schedule("fixed", delays=(5.0, 7.0)), jitter=Jitter("none"))
SOON = oncemore.TransientError("not yet")


class Turns:
    """Work that does what it is told, call by call: raises exceptions, calls functions, returns the rest."""

    def __init__(self, *turns: Any) -> None:
        self.turns = turns
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        what = self.turns[min(self.calls, len(self.turns) - 1)]
        self.calls += 1
        if isinstance(what, BaseException):
            raise what
        return what(*args) if callable(what) else what


def made(colour: str, work: Callable[..., Any], **options: Any) -> Any:
    """Return a step in one colour around work that takes one argument."""
    options = {"effect": "idempotent", "name": "work", "policy": POLICY, **options}
    if colour == "plain":

        @oncemore.step(**options)
        def plain(x: Any = 0) -> Any:
            return work(x)

        return plain

    @oncemore.step(**options)
    async def coroutine(x: Any = 0) -> Any:
        return work(x)

    return coroutine


def do(colour: str, call: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a call and bring it to its end in one colour."""
    if colour == "plain":
        return call(*args, **kwargs)

    async def main() -> Any:
        return await call(*args, **kwargs)

    return asyncio.run(main()) if colour == "asyncio" else trio.run(main)


class Busy:
    """A call in a thread of its own, stopped inside the work until it is let go."""

    def __init__(self) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def start(self, call: Callable[..., Any], *args: Any) -> None:
        """Make the call, and come back when its work has called `hold`."""
        self._thread = threading.Thread(target=self._run, args=(call, args), daemon=True)
        self._thread.start()
        assert self.inside.wait(10)

    def _run(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            self.value = call(*args)
        except BaseException as error:
            self.error = error

    def hold(self, *args: Any) -> str:
        """Be the work: wait until it is let go."""
        self.inside.set()
        assert self.go_on.wait(10)
        return "held"

    def end(self) -> None:
        """Let it go, and wait for its end."""
        self.go_on.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


def abandoned(path: Any, **options: Any) -> oncemore.Run:
    """Leave a run of `work(0)` in RUNNING whose worker is gone: its engine was closed inside the work."""
    with FakeClock():  # a closed store is asked again a few times, with waits
        engine, busy = oncemore.open(path), Busy()
        step = made("plain", busy.hold, **options).bind(engine)
        busy.start(step)
        run = step.last_run()
        engine.close()
        busy.end()
    assert isinstance(busy.error, oncemore.StoreError)
    assert run is not None
    assert run.status == "RUNNING"
    return run
