"""Forks, in each state: a child is a worker of its own, and the parent's leases and locks survive it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.storm import storm
from tests.storm.forks import CHILDREN

if TYPE_CHECKING:
    from tests.storm.crew import Crew


def done(crew: Crew, state: str, **told: Any) -> None:
    child = crew.start(f"tests.storm.forks:{state}", **told)
    assert child.wait(total_timeout=60) == 0, crew.complaints()
    report = storm.report(crew)
    print(report)
    assert not report.violations
    assert not crew.complaints()


def test_a_child_of_an_idle_parent_is_a_worker_of_its_own(crew: Crew) -> None:
    done(crew, "idle")
    assert sorted(ack["order"] for ack in crew.acks()) == ["again", *["child"] * 3, *["parent"] * 4]
    assert len(crew.effects()) == 3


def test_a_grandchild_is_a_worker_of_its_own(crew: Crew) -> None:
    done(crew, "grandchildren")
    assert len(crew.effects()) == 1


def test_children_that_are_forked_while_other_threads_are_in_steps_can_work(crew: Crew) -> None:
    done(crew, "working", forks=10)
    assert sum(ack["step"] == "pay" for ack in crew.acks()) == 10
    assert sum(ack["step"] == "slow" for ack in crew.acks()) == 3


@pytest.mark.xfail(
    reason="SQLite remembers in the child that another thread was writing, or its mutex", run=False
)
def test_children_that_are_forked_while_other_threads_write_do_not_hang(crew: Crew) -> None:
    done(crew, "busy", forks=25)
    assert sum(ack["step"] == "pay" for ack in crew.acks()) == 25


@pytest.mark.parametrize("effect", ["pure", "idempotent", "outbox", "once"])
@pytest.mark.parametrize("what", CHILDREN)
def test_an_attempt_is_its_process_s_whatever_a_child_forked_in_it_does(
    crew: Crew, effect: str, what: str
) -> None:
    done(crew, "inside", effect=effect, what=what)
    assert [effect["attempt"] for effect in crew.effects()] == [1]


@pytest.mark.parametrize("kind", ["fork", "spawn", "forkserver"])
def test_a_pool_of_processes_makes_one_execution_for_each_key(crew: Crew, kind: str) -> None:
    done(crew, "pool", kind=kind)
    assert len(crew.effects()) == 10
    assert len(crew.acks()) == 82
