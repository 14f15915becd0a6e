"""Runs a function before and after the migration, on the same failing sequence, and returns what each did."""

from __future__ import annotations

import asyncio
import random
import time
import warnings
from typing import Any, NamedTuple
from unittest.mock import patch

from oncemore.migrate.module import MigratedModule, migrate_module
from oncemore.policy.canonical_json import draw_uniform
from oncemore.testing import instant_waits

SEED = "migration"


class Behaviour(NamedTuple):
    """The calls, the waits and the end of one run."""

    calls: int
    delays: list[float]
    end: object


class Clock:
    """The time of the other libraries: it moves by their waits, and each wait takes the next draw."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.draws = 0

    def sleep(self, seconds: float) -> None:
        self.delays.append(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.delays.append(seconds)

    def monotonic(self) -> float:
        return sum(self.delays)

    def random(self) -> float:
        # The libraries draw once per failed attempt, as oncemore does: equal draws give equal waits.
        self.draws += 1
        return draw_uniform(SEED, self.draws)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()


def migrate(source: str, library: str, *, exact: bool = False) -> MigratedModule:
    return migrate_module(source.encode(), library, exact=exact)


def run_before(work: Any, script: list[object]) -> Behaviour:
    clock = Clock()
    with (
        patch.object(time, "sleep", clock.sleep),
        patch.object(asyncio, "sleep", clock.sleep_async),
        patch.object(time, "monotonic", clock.monotonic),
        patch.object(random, "random", clock.random),
        patch.object(random, "uniform", clock.uniform),
    ):
        calls, end = run_work(work, script)
    return Behaviour(calls, clock.delays, end)


def run_after(work: Any, script: list[object]) -> Behaviour:
    if hasattr(work, "with_options"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # The draws of the other side are made from the same seed.
            work = work.with_options(seed=SEED)
    with instant_waits() as clock:
        calls, end = run_work(work, script)
    return Behaviour(calls, clock.delays, end)


def load_names(source: str) -> dict[str, Any]:
    """Execute a module and return its names."""
    names: dict[str, Any] = {"__name__": "migrated"}
    with warnings.catch_warnings():
        # Constant waits give a PolicyWarning, which the report of the migration announces.
        warnings.simplefilter("ignore")
        exec(compile(source, "migrated.py", "exec"), names)  # noqa: S102 - sources of these tests
    return names


def run_work(work: Any, script: list[object]) -> tuple[int, object]:
    calls = 0

    def act() -> object:
        nonlocal calls
        step = script[min(calls, len(script) - 1)]
        calls += 1
        if isinstance(step, BaseException):
            raise step
        return step

    try:
        end = work(act)
        if asyncio.iscoroutine(end):
            end = asyncio.run(end)
    except Exception as error:
        return calls, describe_error(error)
    return calls, end


def describe_error(error: BaseException) -> tuple[str, str]:
    """Return type and text; a RetryError of tenacity stands for the error or the value inside it."""
    attempt = getattr(error, "last_attempt", None)
    if attempt is not None:
        inner = attempt.exception()
        return ("no value accepted", "") if inner is None else (type(inner).__name__, str(inner))
    if type(error).__name__ == "RetriesExhausted":
        return "no value accepted", ""
    return type(error).__name__, str(error)
