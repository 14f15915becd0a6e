"""Pure runs are computed again in a sandbox, and their results are compared."""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StoreError, UsageError
from oncemore.log.sqlite.store import ReadOnlySqliteStore
from oncemore.queries import replay
from oncemore.queries.recompute import RecomputedRun, RecomputeProcess
from oncemore.queries.run_timeline import load_timeline
from oncemore.queries.runs import RunFilter, find_run, list_runs
from oncemore.queries.stores import open_read_only
from oncemore.testing import FakeClock
from tests.queries import pure
from tests.shell import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.log.store import Entry

MODULE = "tests.queries.pure"


@pytest.fixture(autouse=True)
def _findable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "input.txt"
    path.write_text("twelve bytes")
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def verify_step(log: Path, step: str, *, limit_s: float = 60.0) -> RecomputedRun:
    with open_read_only(str(log)) as store, RecomputeProcess([MODULE], limit_s) as scratch:
        return scratch.verify_run(
            load_timeline(store, find_run(store, list_runs(store, RunFilter(step=step))[0].run_id))
        )


def ran(log: Path, step: Any, *args: Any) -> None:
    with oncemore.open(log):
        made = step(*args)
        if asyncio.iscoroutine(made):
            asyncio.run(made)


@pytest.mark.req("REPLAY-2", "REPLAY-4")
@pytest.mark.parametrize("step", ["counts", "samples", "awaits", "charts", "large"])
def test_recomputing_gives_the_recorded_digests(log: Path, given: Path, step: str) -> None:
    arguments = {"counts": str(given), "large": 2_000_000}.get(step, 5)
    ran(log, getattr(pure, step), arguments)
    before = given.read_bytes(), given.stat().st_mtime_ns
    assert verify_step(log, step).verdict == "equal"
    assert (given.read_bytes(), given.stat().st_mtime_ns) == before


def test_a_different_result_is_reported_with_both_digests(
    log: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(log, pure.salted, 3)
    ran(log, pure.charts, 3)
    ran(log, pure.counts, str(given))
    given.write_text("these are thirteen")
    found = verify_step(log, "counts")
    assert (found.verdict, found.part) == ("differs", "result")
    assert found.recorded != found.computed
    monkeypatch.setenv("ONCEMORE_TEST_SALT", "salt")
    assert verify_step(log, "salted").verdict == "differs"
    found = verify_step(log, "charts")
    assert found.verdict == "differs"
    assert len({found.recorded, found.computed}) == 2


@pytest.mark.req("REPLAY-2", "REPLAY-5")
@pytest.mark.parametrize("how", ["write", "append", "remove", "rename", "connect", "start"])
def test_an_action_outside_of_the_sandbox_is_refused_and_reported_even_if_hidden(
    log: Path, given: Path, how: str
) -> None:
    ran(log, pure.meddles, str(given), how)
    given.write_text("twelve bytes")
    given.with_name("input.txt.old").unlink(missing_ok=True)
    found = verify_step(log, "meddles")
    assert found.verdict == "failed"
    assert "it tried to act outside of the sandbox" in found.reason
    assert given.read_text() == "twelve bytes"


def test_the_kernel_refuses_writes_that_bypass_the_interpreter(log: Path, given: Path) -> None:
    ran(log, pure.meddles, str(given), "kernel")
    given.write_text("twelve bytes")
    with RecomputeProcess([MODULE]) as scratch:
        if not scratch.has_kernel_guard:
            pytest.skip("this kernel has no Landlock that lets files be moved")
    assert verify_step(log, "meddles").verdict == "equal"
    assert given.read_text() == "twelve bytes"


def test_steps_of_other_effects_are_never_run_not_even_from_inside(log: Path, given: Path) -> None:
    ran(log, pure.outer, str(given))
    ran(log, pure.inner, str(given.with_name("other.txt")))
    given.write_text("twelve bytes")
    found = verify_step(log, "inner")
    assert (found.verdict, found.reason) == ("skipped", "its effect is once: only pure steps are run again")
    found = verify_step(log, "outer")
    assert found.verdict == "failed"
    assert "inner is not pure" in found.reason
    assert given.read_text() == "twelve bytes"


def test_runs_that_cannot_be_recomputed_are_skipped_with_the_reason(
    log: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(log, pure.hides, 1, "token")
    assert "are not recorded" in verify_step(log, "hides").reason
    ran(log, pure.hourly, 1)
    assert "its key has changed" in verify_step(log, "hourly").reason
    ran(log, pure.counts, str(given))
    monkeypatch.setenv("ONCEMORE_TEST_VERSION", "2")
    found = verify_step(log, "counts")
    assert (found.verdict, found.reason) == ("skipped", "its version or config has changed")

    @oncemore.step(effect="pure", name="unknown")
    def unknown() -> None:
        raise ValueError("never")

    with pytest.raises(oncemore.PermanentFailure):
        ran(log, unknown)
    assert "it is HARD_FAIL" in verify_step(log, "unknown").reason

    @oncemore.step(effect="pure", name="nobody's")
    def nobodys() -> int:
        return 1

    ran(log, nobodys)
    assert "no named module defines the step nobody's" in verify_step(log, "nobody's").reason


def test_a_pruned_run_is_skipped(log: Path) -> None:
    ran(log, pure.salted, 3)
    with oncemore.open(log) as engine:
        entity = f"run/{pure.salted.key(3)}"
        engine.store.open_maintenance().prune_bodies({entity: 2})
        with open_read_only(str(log)) as store, RecomputeProcess([MODULE]) as scratch:
            told = load_timeline(store, find_run(store, entity))
            assert scratch.verify_run(told).reason == "its arguments are no longer stored"
            bare = told._replace(arguments={}, result=None)
            assert scratch.verify_run(bare).reason == "its result is no longer stored"


def test_a_hanging_or_dying_process_is_killed_and_replaced(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(log, pure.sleeps, 60)
    ran(log, pure.dies, 1)
    ran(log, pure.salted, 1)
    monkeypatch.setenv("ONCEMORE_TEST_SLEEP", "1")
    with open_read_only(str(log)) as store, RecomputeProcess([MODULE], 3.0) as scratch:

        def verdict(step: str) -> RecomputedRun:
            return scratch.verify_run(
                load_timeline(store, find_run(store, list_runs(store, RunFilter(step=step))[0].run_id))
            )

        assert verdict("sleeps").reason == "it took longer than 3 s"
        assert verdict("salted").verdict == "equal"
        assert "has ended" in verdict("dies").reason
        assert verdict("salted").verdict == "equal"


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with (
        pytest.raises(UsageError, match="there is no module"),
        RecomputeProcess(["nowhere.at.all"]),
    ):
        pass


@pytest.mark.req("REPLAY-7")
def test_a_lost_validation_is_tried_twice_and_an_answered_one_once(
    log: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(log, pure.counts, str(given))
    ran(log, pure.mortal, 5)
    monkeypatch.setenv("ONCEMORE_TEST_MORTAL", "1")
    with FakeClock() as clock, open_read_only(str(log)) as store, RecomputeProcess([MODULE]) as scratch:
        stories = {
            row.step: load_timeline(store, find_run(store, row.run_id))
            for row in list_runs(store, RunFilter())
        }
        first = scratch._process
        found = scratch.verify_run(stories["mortal"])
        assert scratch._process is None, "what did not answer is ended"
        assert first is not None
        assert (found.verdict, found.reason) == ("failed", "the process that computes it has ended")
        assert [(event["event_type"], event["retry_category"]) for event in found.events] == [
            ("retry_attempt", "REPLAY_REPLAY_VALIDATION"),
            ("retry_exhausted", "REPLAY_REPLAY_VALIDATION"),
        ]
        assert found.events[1]["total_attempts"] == 2
        assert len(clock.delays) == 1
        assert 0.9 <= clock.delays[0] <= 1.1
        given.write_text("other bytes")
        again = scratch.verify_run(stories["counts"])
        assert (again.verdict, [event["total_attempts"] for event in again.events]) == ("differs", [1])


@pytest.mark.req("REPLAY-7")
@pytest.mark.parametrize("how", ["whole", "window"])
def test_a_large_replay_that_fails_is_tried_once(log: Path, given: Path, how: str) -> None:
    ran(log, pure.counts, str(given))
    asked = 0

    class Unreadable(ReadOnlySqliteStore):
        def read_entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
            nonlocal asked
            asked += 1
            raise StoreError("the disk does not answer")

    with FakeClock() as clock, closing(Unreadable(log)) as store:
        if how == "whole":
            found = replay.replay_all(store)
            assert (found.totals.damaged, found.verdicts[0].fault) == (1, "the disk does not answer")
            (event,) = found.events
            expected = "retry_exhausted", "REPLAY_REPLAY_PROCESSING", 1
            assert (event["event_type"], event["retry_category"], event["total_attempts"]) == expected
        else:
            with pytest.raises(StoreError, match="the disk does not answer"):
                replay.replay_window(store, 0.0, store.now())
        assert (asked, clock.delays) == (1, [])
