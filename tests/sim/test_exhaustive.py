"""All interleavings of two workers at one key, with every fault anywhere: complete, not sampled."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.sim.explorer import Explorer
from tests.sim.judge import Violation
from tests.sim.test_bug_bank import BUGS

if TYPE_CHECKING:
    from collections.abc import Callable

TURNS = {
    "succeeds": ["ok"],
    "fails, then succeeds": ["transient", "ok"],
    "fails after its effect, then succeeds": ["transient, done", "ok"],
    "is refused, then succeeds": ["refused", "ok"],
    "fails for good": ["permanent"],
}
EFFECTS = {
    "pure": ("pure", False),
    "idempotent": ("idempotent", False),
    "outbox": ("outbox", False),
    "once": ("once", False),
    "once, with a reconcile function": ("once", True),
}
#: To an effect that may be repeated these are the same as another.
ALIKE = ("fails after its effect, then succeeds", "is refused, then succeeds")
TORTURE = bool(os.environ.get("ONCEMORE_TORTURE"))


def explored(effect: str, turns: str, *, faults: int, workers: int = 2) -> Explorer:
    name, asks = EFFECTS[effect]
    explorer = Explorer(name, TURNS[turns], asks=asks, faults=faults, workers=workers)
    explorer.explore()
    return explorer


def told(explorers: list[Explorer], what: str) -> str:
    states, steps, ends = (sum(getattr(e, name) for e in explorers) for name in ("states", "steps", "ends"))
    return f"{what}: {states:,} states, {steps:,} steps, {ends:,} ends, complete, violations 0"


@pytest.mark.parametrize("effect", EFFECTS)
def test_two_workers_and_one_fault(effect: str, record_property: Callable[[str, object], None]) -> None:
    report = told([explored(effect, turns, faults=1) for turns in TURNS], f"{effect}, 1 fault")
    print(f"\n{report}")
    record_property("exhaustive", report)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("effect", ["idempotent", "once", "once, with a reconcile function"])
def test_two_workers_and_two_faults(effect: str, record_property: Callable[[str, object], None]) -> None:
    ways = [turns for turns in TURNS if TORTURE or effect != "idempotent" or turns not in ALIKE]
    report = told([explored(effect, turns, faults=2) for turns in ways], f"{effect}, 2 faults")
    print(f"\n{report}")
    record_property("exhaustive", report)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_three_workers_and_one_fault(effect: str, record_property: Callable[[str, object], None]) -> None:
    report = told([explored(effect, "succeeds", faults=1, workers=3)], f"{effect}, 3 workers, 1 fault")
    print(f"\n{report}")
    record_property("exhaustive", report)


@pytest.mark.parametrize(
    "bug",
    [
        "once is tried again after a lost lease",
        "once is tried again after any error",
        "a held run is tried by the next caller",
        "an attempt that had begun is released",
        "a former holder commits",
        "a second commit replaces the first",
    ],
)
def test_a_broken_engine_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    with pytest.raises(Violation):
        for effect in EFFECTS:
            for turns in TURNS:
                explored(effect, turns, faults=1)
