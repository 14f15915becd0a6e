"""The pages for changing over name all of the other library, and their waits are the same numbers.

What the pairs on these pages do is run by tests/test_docs.py.
"""

from __future__ import annotations

import random
import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import backoff
import dbos
import pytest
import stamina
import tenacity

import oncemore
from oncemore import Jitter, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOW_TO = Path(__file__).resolve().parents[2] / "docs/how-to"

#: What users of tenacity do not write in a decorator: base classes, its own actions, the no-ops.
INSIDE = {
    "AttemptManager", "BaseAction", "BaseRetrying", "DoAttempt", "DoSleep", "Future", "NO_RESULT",
    "RetryAction", "WrappedFn", "after_nothing", "before_nothing", "before_sleep_nothing", "retry_base",
}  # fmt: skip
#: Names of DBOS that are not written in a program, or have an awaited twin.
DBOS_INSIDE = {"DBOS", "mro"}
DBOS_NAMES = {
    name
    for name in {*dbos.__all__, *vars(dbos.DBOS)} - DBOS_INSIDE
    if not name.startswith("_") and not name.endswith("_async")
}
NAMES = {
    "dbos": DBOS_NAMES,
    "tenacity": set(tenacity.__all__) - INSIDE,
    "backoff": set(backoff.__all__),
    "stamina": {*stamina.__all__, *stamina.instrumentation.__all__},
}


@pytest.mark.parametrize("library", NAMES)
def test_every_name_of_the_other_library_is_on_its_page(library: str) -> None:
    page = HOW_TO.joinpath(f"from-{library}.md").read_text(encoding="utf-8")
    assert len(NAMES[library]) > 7
    assert sorted(name for name in NAMES[library] if name not in page) == []


def their_blocks() -> list[tuple[str, str, str]]:
    """Return the page, the program and the text of each block that is a part of a program in examples/."""
    pattern = re.compile(r"(?ms)^<!-- not run: a part of (\S+) -->\n```python\n(.*?)^```$")
    return [
        (page.name, program, code)
        for page in sorted(HOW_TO.glob("from-*.md"))
        for program, code in pattern.findall(page.read_text(encoding="utf-8"))
    ]


def test_code_of_another_library_is_a_part_of_a_program_that_runs() -> None:
    blocks = their_blocks()
    assert len(blocks) >= 12
    for page, program, code in blocks:
        assert code in HOW_TO.parents[1].joinpath(program).read_text(encoding="utf-8"), f"{page}: {program}"


def tenacity_waits(wait: tenacity.wait.wait_base) -> list[float]:
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    waits = []
    for state.attempt_number in range(1, 7):
        waits.append(wait(state))
    return waits


def backoff_waits(waits: Iterator[float], jitter: Callable[[float], float]) -> list[float]:
    next(waits)
    return [jitter(wait) for wait in islice(waits, 6)]


def ours(schedule: Schedule, jitter: str | Jitter = "full") -> list[float]:
    spread = Jitter(jitter) if isinstance(jitter, str) else jitter  # type: ignore[arg-type]
    cap = max(30.0, *schedule.delays) if schedule.cap is None and schedule.delays else schedule.cap or 30.0
    policy = oncemore.Policy("x", "1", max_attempts=7, schedule=schedule, jitter=spread, max_delay_s=cap)
    return policy.max_delays()


@pytest.mark.filterwarnings("ignore::oncemore.PolicyWarning")
def test_the_longest_waits_of_both_libraries_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 1.0)
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    t, o = tenacity, oncemore
    pairs = {
        "fixed": (tenacity_waits(t.wait_fixed(5)), ours(o.backoff.fixed(5), "none")),
        "random": (tenacity_waits(t.wait_random(2, 5)), ours(o.backoff.fixed(2), o.jitter.additive(3))),
        "exponential": (
            tenacity_waits(t.wait_exponential(multiplier=0.5, max=20, exp_base=3)),
            ours(o.backoff.exponential(0.5, factor=3, cap=20), "none"),
        ),
        "random exponential": (
            tenacity_waits(t.wait_random_exponential(multiplier=2, max=20)),
            ours(o.backoff.exponential(2, cap=20)),
        ),
        "exponential jitter": (
            tenacity_waits(t.wait_exponential_jitter(multiplier=2, max=20, jitter=3)),
            ours(o.backoff.exponential(2, cap=20), o.jitter.additive(3)),
        ),
        "incrementing": (tenacity_waits(t.wait_incrementing(2, 2)), ours(o.backoff.linear(2), "none")),
        "chain": (
            tenacity_waits(t.wait_chain(t.wait_fixed(1), t.wait_fixed(60))),
            ours(o.backoff.fixed(1, 60), "none"),
        ),
        "sum": (
            tenacity_waits(t.wait_fixed(3) + t.wait_random(0, 2)),
            ours(o.backoff.fixed(3), o.jitter.additive(2)),
        ),
        "expo": (
            backoff_waits(backoff.expo(base=3, factor=0.5, max_value=20), backoff.full_jitter),
            ours(o.backoff.exponential(0.5, factor=3, cap=20)),
        ),
        "expo, random": (
            backoff_waits(backoff.expo(max_value=100), backoff.random_jitter),
            ours(o.backoff.exponential(1, cap=100), o.jitter.additive(1)),
        ),
        "fibo": (backoff_waits(backoff.fibo(), backoff.full_jitter), ours(o.backoff.fixed(1, 1, 2, 3, 5, 8))),
        "constant": (backoff_waits(backoff.constant(4), backoff.full_jitter), ours(o.backoff.fixed(4))),
    }
    assert {name: pair for name, pair in pairs.items() if pair[0] != pytest.approx(pair[1])} == {}
