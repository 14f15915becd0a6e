"""An attempt by itself: its limits, what it refuses, and that a forked child has none."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import oncemore
from oncemore.log.record import LoadedHead, RunRecord
from oncemore.steps import attempt as attempt_module
from oncemore.steps.attempt import MOST_EVENTS, RunningAttempt

KEY = "ab" * 32
STATE = RunRecord(
    state="RUNNING",
    step="work",
    run_id="r-1",
    run_number=1,
    fence=4,
    attempt=3,
    tenant="t",
    correlation_id="c",
)


def attempt(keep: bool = True, parent: RunningAttempt | None = None, key: str = KEY) -> RunningAttempt:
    seen = LoadedHead(f"run/{key}", 7, b"", STATE)
    backend: Any = SimpleNamespace(now=lambda: 5.0, save_checkpoint=lambda me, plain: plain, artifact_name="")
    return RunningAttempt(seen, backend, parent, read_only=not keep)


def test_it_tells_what_the_run_says() -> None:
    me = attempt()
    assert (me.number, me.fence, me.key, me.step, me.run_id) == (3, 4, KEY, "work", "r-1")
    assert (me.tenant, me.correlation_id, me.remaining()) == ("t", "c", None)


def test_the_seed_of_a_run_that_has_its_own_is_taken() -> None:
    seeded = attempt()
    seeded.head = seeded.head._replace(record=STATE._replace(seed="own"))
    assert seeded.rng.random() != attempt().rng.random()
    assert attempt().rng.random() == attempt().rng.random()


def test_without_a_checkpoint_there_is_nothing_to_resume() -> None:
    assert attempt().resume() is None
    assert attempt().resume("default") == "default"


def test_ids_of_events_depend_on_run_life_and_place_alone() -> None:
    first, again, other = attempt(), attempt(), attempt(key="cd" * 32)
    ids = [first.emit("a", 1), first.emit("b", 2)]
    assert ids == [again.emit("c", 3), again.emit("d")]
    assert other.emit("a", 1) not in ids
    later = attempt()
    later.head = later.head._replace(record=STATE._replace(run_number=2))
    assert later.emit("a", 1) not in ids


def test_an_event_that_holds_the_key_of_this_or_an_outer_step_is_refused() -> None:
    outer = attempt(key="cd" * 32)
    inner = attempt(parent=outer)
    for payload in (KEY, {"deep": [f"x{KEY}y"]}, "cd" * 32):
        with pytest.raises(oncemore.UsageError, match="holds the idempotency key of work"):
            inner.emit("topic", payload)
    with pytest.raises(oncemore.UsageError, match="holds the idempotency key"):
        inner.emit(KEY)
    assert not inner.events


def test_events_have_a_limit() -> None:
    me = attempt()
    for _ in range(MOST_EVENTS):
        me.emit("tick")
    with pytest.raises(oncemore.UsageError, match="emits more than 1000 events"):
        me.emit("tick")


def test_a_reconcile_function_can_neither_keep_nor_emit() -> None:
    me = attempt(keep=False)
    with pytest.raises(oncemore.UsageError, match="it emits no events"):
        me.emit("topic")
    with pytest.raises(oncemore.UsageError, match="it makes no checkpoints"):
        me.checkpoint(1)


def test_one_that_is_over_or_is_the_parents_can_do_nothing(tmp_path: Path) -> None:
    me = attempt()
    assert me.checkpoint(5) == 5
    pid = os.fork()
    if pid == 0:
        told = "nothing"
        try:
            me.emit("topic")
        except oncemore.LeaseLost as error:
            told = str(error)
        (tmp_path / "child").write_text(told)
        os._exit(0)
    os.waitpid(pid, 0)
    assert "is the parent's, a forked child cannot emit" in (tmp_path / "child").read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt_module, "_fork_count", [0])
        attempt_module._count_fork()  # the same without a fork
        with pytest.raises(oncemore.LeaseLost, match="is the parent's, a forked child cannot emit"):
            me.emit("topic")
    me.over = True
    for late in (lambda: me.emit("topic"), lambda: me.checkpoint(1)):
        with pytest.raises(oncemore.LeaseLost, match="attempt 3 is over"):
            late()
