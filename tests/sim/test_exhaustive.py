"""All interleavings of two workers at one key, with every fault anywhere: complete, not sampled.

`make test` explores what differs: with one fault all five turns of the effects that must not be repeated and
three of those that may be; with two faults the turns of `TWO_FAULTS`. `make torture` explores all five turns
of every effect here, and again with two faults in `tests/torture/test_sim_long.py`.
"""

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
MAY_REPEAT = ("pure", "idempotent", "outbox")
#: A success with two faults is a part of each of these. The turn that is left out of the third effect differs
#: from the one of `once` only in what reconcile says, which the others show.
TWO_FAULTS = {
    "idempotent": ["fails, then succeeds", "fails for good"],
    "once": list(TURNS),
    "once, with a reconcile function": [
        "succeeds", "fails, then succeeds", "fails after its effect, then succeeds",
    ],
}  # fmt: skip
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
    alike = () if TORTURE or effect not in MAY_REPEAT else ALIKE
    ways = [turns for turns in TURNS if turns not in alike]
    report = told([explored(effect, turns, faults=1) for turns in ways], f"{effect}, 1 fault")
    print(f"\n{report}")
    record_property("exhaustive", report)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("effect", TWO_FAULTS)
def test_two_workers_and_two_faults(effect: str, record_property: Callable[[str, object], None]) -> None:
    ways = TURNS if TORTURE else TWO_FAULTS[effect]
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
        for effect in reversed(EFFECTS):  # most of them break what must not be repeated, which stands last
            for turns in TURNS:
                explored(effect, turns, faults=1)
