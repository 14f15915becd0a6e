"""Every path to an attempt, against every way in which the gate closes: no attempt begins (GUA-8)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import Error
from oncemore.testing import FakeClock
from tests.governance.gated_work import (
    APPROVAL_DENIALS,
    DATASET_DENIALS,
    PATHS,
    GatedWork,
    block,
    change_config,
    first_call,
    make_unreachable,
    retry,
    revoke_approval,
    worker,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oncemore.steps.engine import Engine


def count_attempts(engine: Engine, path: Any, deny: Callable[..., Any] | None, *, approval: bool) -> int:
    """Take a path, close the gate in its middle, and return the number of attempts after that."""
    with FakeClock() as clock:
        work = GatedWork(engine, needs_approval=approval)
        work.open_gate()
        steps = path(work)
        next(steps)
        before = work.calls
        if path is retry:
            # The first attempt is permitted, and closes the gate for the second one.
            work.during, before = (lambda: deny(work, clock) if deny else None), before + 1
        elif deny is not None:
            deny(work, clock)
        with suppress(Error, StopIteration):
            next(steps)
        return work.calls - before


#: A call has one configuration: a change during it, between two of its attempts, is for the next call.
APPROVAL_TABLE = [
    pytest.param(path, deny, id=f"{path.__name__}-{deny.__name__}")
    for path in PATHS
    for deny in APPROVAL_DENIALS
    if (path, deny) != (retry, change_config)
]


@pytest.mark.parametrize("deny", DATASET_DENIALS, ids=lambda deny: deny.__name__)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_no_path_leads_around_a_dataset_that_denies(path: Any, deny: Callable[..., Any]) -> None:
    with oncemore.open("memory:") as engine:
        assert count_attempts(engine, path, deny, approval=False) == 0


@pytest.mark.parametrize(("path", "deny"), APPROVAL_TABLE)
def test_no_path_leads_around_an_approval_that_does_not_hold(path: Any, deny: Callable[..., Any]) -> None:
    with oncemore.open("memory:") as engine:
        assert count_attempts(engine, path, deny, approval=True) == 0


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_no_path_leads_around_the_gate_in_sqlite(tmp_path: Path, path: Any) -> None:
    for number, deny in enumerate((block, make_unreachable, revoke_approval)):
        with oncemore.open(tmp_path / f"{number}.db") as engine:
            assert count_attempts(engine, path, deny, approval=deny is revoke_approval) == 0


@pytest.mark.parametrize("approval", [False, True], ids=["dataset", "approval"])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_every_path_makes_an_attempt_while_the_gate_is_open(
    engine: Engine, path: Any, approval: bool
) -> None:
    """Otherwise the tests above would show nothing."""
    assert count_attempts(engine, path, None, approval=approval) == 1


@pytest.mark.parametrize("path", [first_call, retry, worker], ids=lambda path: path.__name__)
@pytest.mark.parametrize("store_url", ["postgres", "nats"], indirect=True)
def test_the_gate_closes_on_other_stores(store_url: str, path: Any) -> None:
    with oncemore.open(store_url) as engine:
        assert count_attempts(engine, path, block, approval=False) == 0
