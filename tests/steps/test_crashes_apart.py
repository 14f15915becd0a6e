"""Attempts that are lost with their process are counted apart from those that fail (`max_crashes`)."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.maintenance.replay import LogReplay
from oncemore.queries.runs import RunFilter, list_runs
from oncemore.steps import release
from oncemore.steps.release import release_attempts
from tests.steps.colours import POLICY, Busy, Turns, abandoned, do, each_colour, made

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.record import RunRecord


def state_of(step: Any) -> RunRecord:
    return step.last_run().state


def counts(run: RunRecord) -> tuple[int, int, int]:
    return run.attempt, run.attempt_count, run.crash_count


def check_replay(engine: oncemore.Engine) -> None:
    """Every recorded decision comes out the same today."""
    for entry in LogReplay().replay_entries(engine.store.read_entries()):
        assert entry.differences == ()


@pytest.mark.usefixtures("clock")
def test_a_crash_costs_no_attempt_and_a_failure_no_crash(tmp_path: Path) -> None:
    for _ in range(5):
        abandoned(tmp_path / "log.db")
    turns = Turns(TimeoutError("slow"), TimeoutError("slow"), "done")
    with oncemore.open(tmp_path / "log.db") as engine:
        step = made("plain", turns)
        assert step() == "done", "five crashes, two failures: three attempts may fail"
        assert counts(state_of(step)) == (8, 3, 5)
        (row,) = list_runs(engine.store, RunFilter())
        assert (row.attempts, row.max_attempts, row.crashes, row.max_crashes) == (3, 3, 5, 20)
        assert "1 of 3, after 5 of 20 crashes" in step.last_run().explain()
        check_replay(engine)


def test_crashes_are_bounded_and_the_error_says_that_they_ran_out(tmp_path: Path) -> None:
    policy = POLICY.replace(max_crashes=2)
    for _ in range(2):
        abandoned(tmp_path / "log.db", policy=policy)
    with oncemore.open(tmp_path / "log.db") as engine:
        step = made("plain", Turns("never"), policy=policy)
        with pytest.raises(oncemore.Quarantined, match=r"2 of 2 attempts were lost .*\(max_crashes\)"):
            step()
        run = state_of(step)
        assert (run.held_for, run.reason) == ("poison", "max_crashes_exceeded")
        (item,) = engine.quarantine
        with pytest.raises(oncemore.UsageError, match="all of its 2 crashes"):
            engine.quarantine.release(item, by="operator", reason="try")
        engine.quarantine.rerun(item, by="operator", reason="more memory", extra_attempts=1)
        assert state_of(step).max_crashes == 3
        assert step() == "never"
        check_replay(engine)


@pytest.mark.parametrize("policy", ["kfm-rules", "kfm-loop", "nova-cat", "lit", "exoarmur/KV_GET"])
def test_in_a_document_profile_a_crash_is_an_attempt(tmp_path: Path, policy: str) -> None:
    options = {"policy": policy, "timeout": None} if policy == "lit" else {"policy": policy}
    abandoned(tmp_path / "log.db", **options)
    with oncemore.open(tmp_path / "log.db") as engine:
        step = made("plain", Turns("done"), **options)
        assert step() == "done"
        assert counts(state_of(step)) == (2, 2, 0)
        check_replay(engine)


@each_colour
@pytest.mark.parametrize("effect", ["pure", "idempotent", "outbox"])
def test_ctrl_c_costs_nothing(engine: oncemore.Engine, colour: str, effect: str) -> None:
    turns = Turns(*[KeyboardInterrupt()] * 4, "done")
    step = made(colour, turns, effect=effect, policy=POLICY.replace(max_attempts=1, max_crashes=1))
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            do(colour, step)
        assert (state_of(step).state, state_of(step).reason) == ("SOFT_FAIL", "interrupted")
    assert do(colour, step) == "done"
    assert counts(state_of(step)) == (5, 1, 0)
    check_replay(engine)


def test_ctrl_c_in_a_once_step_leaves_its_outcome_unknown_at_no_cost(engine: oncemore.Engine) -> None:
    policy = POLICY.replace(max_attempts=1)
    step = made("plain", Turns(KeyboardInterrupt(), "paid"), effect="once", policy=policy)
    with pytest.raises(KeyboardInterrupt):
        step()
    run = state_of(step)
    assert (run.held_for, counts(run)) == ("outcome_unknown", (1, 0, 0))
    step.settle(oncemore.not_applied(), reason="the bank has no such payment")
    assert step() == "paid"
    check_replay(engine)


def test_a_once_step_whose_crashes_ran_out_is_held_even_if_nothing_happened(tmp_path: Path) -> None:
    policy = POLICY.replace(max_crashes=1)
    abandoned(tmp_path / "log.db", effect="once", policy=policy)
    with oncemore.open(tmp_path / "log.db") as engine:
        step = made("plain", Turns("paid"), effect="once", policy=policy)
        with pytest.raises(oncemore.OutcomeUnknown):
            step()
        step.settle(oncemore.not_applied(), reason="the bank has no such payment")
        with pytest.raises(oncemore.Quarantined, match="max_crashes"):
            step()
        check_replay(engine)


def test_a_run_of_an_older_log_goes_on_by_its_own_rule(tmp_path: Path) -> None:
    # Such a run has max_crashes 0, whatever the policy of the step says today.
    abandoned(tmp_path / "log.db", policy=POLICY.replace(max_crashes=None, max_attempts=2))
    with oncemore.open(tmp_path / "log.db"):
        step = made("plain", Turns("done"), policy=POLICY.replace(max_attempts=2))
        assert step() == "done"
        assert counts(state_of(step)) == (2, 2, 0)


# The end of a process -------------------------------------------------------------------------------


def test_what_a_process_leaves_at_its_end_is_released_under_its_fence(engine: oncemore.Engine) -> None:
    busy, last = Busy(), Turns("second")
    first = made("plain", busy.hold)
    busy.start(first)
    assert release_attempts(engine) == 1
    run = state_of(first)
    assert (run.state, run.reason, run.worker, counts(run)) == ("SOFT_FAIL", "interrupted", "", (1, 0, 0))
    assert made("plain", last)() == "second"
    busy.end()
    assert busy.value == "second", "the released attempt cannot commit: it returns what is stored"
    assert counts(state_of(first)) == (2, 1, 0)
    assert release_attempts(engine) == 0
    check_replay(engine)


@pytest.mark.parametrize(
    "options", [{"effect": "once"}, {"policy": POLICY.replace(max_crashes=None)}], ids=["once", "documents"]
)
def test_what_cannot_be_released_for_free_is_left_to_the_next_worker(
    engine: oncemore.Engine, options: dict[str, Any]
) -> None:
    busy = Busy()
    step = made("plain", busy.hold, **options)
    busy.start(step)
    assert release_attempts(engine) == 0
    assert state_of(step).state == "RUNNING"
    busy.end()


def test_an_attempt_that_has_just_ended_is_not_released(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = made("plain", Turns("done"))
    step()
    worker = engine.leases.current_identity()
    key = f"run/{step.key()}"
    monkeypatch.setattr(worker, "list_attempts", lambda: [(key, 1), (key, 9), ("run/unknown", 1)])
    assert release_attempts(engine) == 0
    assert state_of(step).state == "COMPLETE"


def test_a_release_that_comes_too_late_changes_nothing(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Busy()
    step = made("plain", busy.hold)
    busy.start(step)
    load = release.load_head

    def load_then_end(*args: Any) -> Any:
        head = load(*args)
        busy.end()
        return head

    monkeypatch.setattr(release, "load_head", load_then_end)
    assert release_attempts(engine) == 0
    assert (state_of(step).state, busy.value) == ("COMPLETE", "held")


def test_without_its_store_a_process_ends_all_the_same(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Busy()
    busy.start(made("plain", busy.hold))

    def gone(*args: object) -> None:
        raise oncemore.StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(engine.store, "append", gone)
        assert release_attempts(engine) == 0
    busy.end()


PROGRAM = """
import sys, threading, oncemore
begun = threading.Event()

@oncemore.step(effect="idempotent", name="left")
def left(x):
    begun.set()
    threading.Event().wait()

oncemore.open(sys.argv[1]).__enter__()
threading.Thread(target=left, args=(1,), daemon=True).start()
begun.wait()
"""


def test_a_program_that_ends_while_its_daemon_threads_work_releases_them(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    subprocess.run([sys.executable, "-c", PROGRAM, str(path)], check=True, timeout=60)
    with oncemore.open(path):
        step = oncemore.step(effect="idempotent", name="left")(lambda x: x)
        run = step.last_run(1)
        assert run is not None
        assert (run.status, run.reason, counts(run.state)) == ("SOFT_FAIL", "interrupted", (1, 0, 0))
