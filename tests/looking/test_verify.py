"""Pure work is computed again behind a guard: results are compared, inputs stay, nothing leaves."""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StoreError, UsageError
from oncemore.log.sqlite.read_only import LookedAt
from oncemore.queries import replay
from oncemore.queries.open_engine import looked_at
from oncemore.queries.recompute import Scratch, Verified
from oncemore.queries.run_timeline import story
from oncemore.queries.runs import Asked, find, runs
from oncemore.testing import FakeClock
from tests.looking import pure
from tests.shell import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.log.store import Entry

MODULE = "tests.looking.pure"


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


def verified(log: Path, step: str, *, limit_s: float = 60.0) -> Verified:
    with looked_at(str(log)) as store, Scratch([MODULE], limit_s) as scratch:
        return scratch.verify(story(store, find(store, runs(store, Asked(step=step))[0].run_id)))


def ran(log: Path, step: Any, *args: Any) -> None:
    with oncemore.open(log):
        made = step(*args)
        if asyncio.iscoroutine(made):
            asyncio.run(made)


@pytest.mark.req("REPLAY-2", "REPLAY-4")
@pytest.mark.parametrize("step", ["counts", "samples", "awaits", "charts", "large"])
def test_work_from_the_same_inputs_gives_the_recorded_digests(log: Path, given: Path, step: str) -> None:
    arguments = {"counts": str(given), "large": 2_000_000}.get(step, 5)
    ran(log, getattr(pure, step), arguments)
    before = given.read_bytes(), given.stat().st_mtime_ns
    assert verified(log, step).verdict == "equal"
    assert (given.read_bytes(), given.stat().st_mtime_ns) == before


def test_a_result_that_comes_out_otherwise_is_told_with_both_digests(
    log: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(log, pure.salted, 3)
    ran(log, pure.charts, 3)
    ran(log, pure.counts, str(given))
    given.write_text("these are thirteen")
    found = verified(log, "counts")
    assert (found.verdict, found.what) == ("differs", "result")
    assert found.recorded != found.computed
    monkeypatch.setenv("ONCEMORE_TEST_SALT", "salt")
    assert verified(log, "salted").verdict == "differs"
    found = verified(log, "charts")
    assert found.verdict == "differs"
    assert len({found.recorded, found.computed}) == 2


@pytest.mark.req("REPLAY-2", "REPLAY-5")
@pytest.mark.parametrize("how", ["write", "append", "remove", "rename", "connect", "start"])
def test_work_that_reaches_out_is_stopped_and_found_out_even_if_it_hides_it(
    log: Path, given: Path, how: str
) -> None:
    ran(log, pure.meddles, str(given), how)
    given.write_text("twelve bytes")
    given.with_name("input.txt.old").unlink(missing_ok=True)
    found = verified(log, "meddles")
    assert found.verdict == "failed"
    assert "it tried to change the world" in found.why
    assert given.read_text() == "twelve bytes"


def test_the_kernel_stops_what_the_interpreter_does_not_see(log: Path, given: Path) -> None:
    ran(log, pure.meddles, str(given), "kernel")
    given.write_text("twelve bytes")
    with Scratch([MODULE]) as scratch:
        if not scratch.kernel:
            pytest.skip("this kernel has no Landlock that lets files be moved")
    assert verified(log, "meddles").verdict == "equal"
    assert given.read_text() == "twelve bytes"


def test_steps_of_other_effects_are_never_run_not_even_from_inside(log: Path, given: Path) -> None:
    ran(log, pure.outer, str(given))
    ran(log, pure.inner, str(given.with_name("other.txt")))
    given.write_text("twelve bytes")
    found = verified(log, "inner")
    assert (found.verdict, found.why) == ("skipped", "its effect is once: only pure work is run again")
    found = verified(log, "outer")
    assert found.verdict == "failed"
    assert "inner is not pure" in found.why
    assert given.read_text() == "twelve bytes"


def test_what_cannot_be_computed_again_is_skipped_and_says_why(
    log: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(log, pure.hides, 1, "token")
    assert "not all on record" in verified(log, "hides").why
    ran(log, pure.hourly, 1)
    assert "its key is another one now" in verified(log, "hourly").why
    ran(log, pure.counts, str(given))
    monkeypatch.setenv("ONCEMORE_TEST_VERSION", "2")
    found = verified(log, "counts")
    assert (found.verdict, found.why) == ("skipped", "its version or config is another one now")

    @oncemore.step(effect="pure", name="unknown")
    def unknown() -> None:
        raise ValueError("never")

    with pytest.raises(oncemore.Terminal):
        ran(log, unknown)
    assert "it is HARD_FAIL" in verified(log, "unknown").why

    @oncemore.step(effect="pure", name="nobody's")
    def nobodys() -> int:
        return 1

    ran(log, nobodys)
    assert "no module that was named has the step nobody's" in verified(log, "nobody's").why


def test_work_that_was_pruned_is_skipped(log: Path) -> None:
    ran(log, pure.salted, 3)
    with oncemore.open(log) as engine:
        entity = f"run/{pure.salted.key(3)}"
        engine.store.prune({entity: 2})
        with looked_at(str(log)) as store, Scratch([MODULE]) as scratch:
            told = story(store, find(store, entity))
            assert scratch.verify(told).why == "its arguments are not on record any more"
            bare = told._replace(arguments={}, result=None)
            assert scratch.verify(bare).why == "its result is not on record any more"


def test_work_that_hangs_or_dies_is_ended_and_the_next_gets_a_new_process(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(log, pure.sleeps, 60)
    ran(log, pure.dies, 1)
    ran(log, pure.salted, 1)
    monkeypatch.setenv("ONCEMORE_TEST_SLEEP", "1")
    with looked_at(str(log)) as store, Scratch([MODULE], 3.0) as scratch:

        def verdict(step: str) -> Verified:
            return scratch.verify(story(store, find(store, runs(store, Asked(step=step))[0].run_id)))

        assert verdict("sleeps").why == "it took longer than 3 s"
        assert verdict("salted").verdict == "equal"
        assert "has ended" in verdict("dies").why
        assert verdict("salted").verdict == "equal"


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with (
        pytest.raises(UsageError, match="there is no module"),
        Scratch(["nowhere.at.all"]),
    ):
        pass


@pytest.mark.req("REPLAY-7")
def test_a_validation_that_nobody_answers_is_tried_twice_and_a_verdict_once(
    log: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(log, pure.counts, str(given))
    ran(log, pure.mortal, 5)
    monkeypatch.setenv("ONCEMORE_TEST_MORTAL", "1")
    with FakeClock() as clock, looked_at(str(log)) as store, Scratch([MODULE]) as scratch:
        stories = {row.step: story(store, find(store, row.run_id)) for row in runs(store, Asked())}
        first = scratch._process
        found = scratch.verify(stories["mortal"])
        assert scratch._process is None, "what did not answer is ended"
        assert first is not None
        assert (found.verdict, found.why) == ("failed", "the process that computes it has ended")
        assert [(event["event_type"], event["retry_category"]) for event in found.events] == [
            ("retry_attempt", "REPLAY_REPLAY_VALIDATION"),
            ("retry_exhausted", "REPLAY_REPLAY_VALIDATION"),
        ]
        assert found.events[1]["total_attempts"] == 2
        assert len(clock.delays) == 1
        assert 0.9 <= clock.delays[0] <= 1.1
        given.write_text("other bytes")
        again = scratch.verify(stories["counts"])
        assert (again.verdict, [event["total_attempts"] for event in again.events]) == ("differs", [1])


@pytest.mark.req("REPLAY-7")
@pytest.mark.parametrize("how", ["whole", "window"])
def test_a_large_replay_that_fails_is_tried_once(log: Path, given: Path, how: str) -> None:
    ran(log, pure.counts, str(given))
    asked = 0

    class Unreadable(LookedAt):
        def entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
            nonlocal asked
            asked += 1
            raise StoreError("the disk does not answer")

    with FakeClock() as clock, closing(Unreadable(log)) as store:
        if how == "whole":
            found = replay.whole(store)
            assert (found.totals.damaged, found.verdicts[0].fault) == (1, "the disk does not answer")
            (event,) = found.events
            expected = "retry_exhausted", "REPLAY_REPLAY_PROCESSING", 1
            assert (event["event_type"], event["retry_category"], event["total_attempts"]) == expected
        else:
            with pytest.raises(StoreError, match="the disk does not answer"):
                replay.window(store, 0.0, store.now())
        assert (asked, clock.delays) == (1, [])
