"""One test, every colour: run a scripted piece of work through plain, asyncio and trio retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable  # noqa: TC003
from typing import Any

import trio

import oncemore

COLOURS = ("plain", "asyncio", "trio")
RUNNERS: dict[str, Callable[..., Any]] = {
    "asyncio": lambda work: asyncio.run(work()),
    "trio": lambda work: trio.run(work),
}


class Script:
    """Work that does what it is told, call by call: raises exceptions, returns everything else."""

    def __init__(self, *turns: object) -> None:
        self.turns = list(turns)
        self.calls = 0

    def turn(self) -> object:
        what = self.turns[min(self.calls, len(self.turns) - 1)]
        self.calls += 1
        if isinstance(what, BaseException):
            raise what
        return what


def run(colour: str, script: Script, **options: Any) -> Any:
    """Run a script under `oncemore.retry(**options)` in one colour and return or raise what comes out."""
    if colour == "plain":

        @oncemore.retry(**options)
        def plain() -> object:
            return script.turn()

        return plain()

    @oncemore.retry(**options)
    async def coroutine() -> object:
        return script.turn()

    return RUNNERS[colour](coroutine)
