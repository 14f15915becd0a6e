"""Work that somebody cancels: what waits is over, what runs is not tried again, what is done stays done."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextvars import copy_context
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.history import verify_chain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oncemore.testing import FakeClock

inside, go_on = threading.Event(), threading.Event()
turns: list[Callable[[], Any]] = []


@pytest.fixture(autouse=True)
def _anew() -> None:
    inside.clear()
    go_on.clear()
    turns.clear()


def _work(x: int) -> Any:
    if turns:
        return turns.pop(0)()
    return x


#: Waits that are never short by chance.
CALM = Policy("calm", max_attempts=3, schedule=Schedule("fixed", delays=(2.0, 3.0)), jitter=Jitter("none"))
work = oncemore.step(effect="idempotent", name="work", policy=CALM)(_work)
fragile = oncemore.step(effect="once", name="fragile", not_applied=ConnectionError, policy=CALM)(_work)


def _paused(then: Callable[[], Any]) -> Callable[[], Any]:
    """Be at work until the test has done its part."""

    def turn() -> Any:
        inside.set()
        assert go_on.wait(10)
        return then()

    return turn


def _fail(error: Exception) -> Callable[[], Any]:
    def turn() -> Any:
        raise error

    return turn


def _under_way(step: Any, then: Callable[[], Any]) -> threading.Thread:
    """Have an attempt under way in another thread."""
    turns.append(_paused(then))
    thread = threading.Thread(target=copy_context().run, args=(step.run, 1))
    thread.start()
    assert inside.wait(10)
    return thread


def _over(thread: threading.Thread) -> None:
    go_on.set()
    thread.join(10)
    assert not thread.is_alive()


def test_what_waits_is_over_at_once_and_says_who_and_why(engine: oncemore.Engine) -> None:
    work.submit(1, at=timedelta(hours=1))
    with oncemore.context(actor="a clerk"):
        run = work.cancel(1, reason="the order was withdrawn")
    assert (run.status, run.reason, run.error["type"]) == ("HARD_FAIL", "cancelled", "Cancelled")
    assert "decided by a clerk: cancel, because the order was withdrawn" in run.explain()
    with pytest.raises(
        oncemore.Cancelled, match=r"was cancelled after 0 attempts: the order was withdrawn; "
    ):
        work(1)
    assert work.submit(1).status == "HARD_FAIL"
    assert oncemore.Worker(engine, [work]).run_until_idle().done == 0
    verify_chain(engine.store.read_entries())


def test_what_is_to_be_tried_again_is_not(engine: oncemore.Engine, clock: FakeClock) -> None:
    work.submit(1)
    turns.append(_fail(ConnectionError("down")))
    assert oncemore.Worker(engine, [work]).run_until_idle().deferred == 1
    assert work.cancel(1, reason="enough").state.attempt_count == 1
    clock.advance(100.0)
    assert oncemore.Worker(engine, [work]).run_until_idle() == oncemore.Worker(engine, [work]).stats
    with pytest.raises(oncemore.Cancelled, match="after 1 attempt: enough"):
        work(1)


def test_to_cancel_twice_is_to_cancel_once(engine: oncemore.Engine) -> None:
    work.submit(1)
    first = work.cancel(1, reason="one")
    assert work.cancel(1, reason="two").version == first.version


def test_a_new_run_needs_somebody_who_says_so(engine: oncemore.Engine) -> None:
    work.submit(1)
    work.cancel(1, reason="no")
    assert work.rerun(1, reason="yes after all") == 1
    assert work.last_run(1).state.cancelled_at == 0  # type: ignore[union-attr]


def test_a_policy_by_which_calls_begin_anew_does_not_undo_it(engine: oncemore.Engine) -> None:
    again = oncemore.step(effect="idempotent", name="again", policy="lit")(_work)
    assert again._options.after_failure == "new_run"
    again.submit(1)
    again.cancel(1, reason="no")
    with pytest.raises(oncemore.Cancelled):
        again(1)


@pytest.mark.parametrize("step", [work, fragile], ids=["idempotent", "once"])
def test_what_has_committed_stays_done(engine: oncemore.Engine, step: Any) -> None:
    thread = _under_way(step, lambda: "done")
    run = step.cancel(1, reason="too late")
    assert (run.status, run.state.cancelled_at > 0) == ("RUNNING", True)
    assert step.cancel(1, reason="again").version == run.version
    _over(thread)
    assert step(1) == "done"
    assert [attempt.outcome for attempt in step.last_run(1).attempts] == ["COMPLETE"]
    assert "decided by an unnamed actor: cancel, because too late" in step.last_run(1).explain()
    verify_chain(engine.store.read_entries())


def test_others_in_this_process_do_not_take_a_cancelled_attempt_for_lost(engine: oncemore.Engine) -> None:
    thread = _under_way(work, lambda: "done")
    work.cancel(1, reason="too late")
    found: list[Any] = []
    caller = threading.Thread(target=lambda: found.append(work.bind(engine).run(1)))
    caller.start()
    _over(thread)
    caller.join(10)
    assert [run.value for run in found] == ["done"]
    assert len(found[0].attempts) == 1


def test_an_attempt_that_fails_after_it_was_cancelled_is_the_last(engine: oncemore.Engine) -> None:
    thread = _under_way(work, _fail(ConnectionError("down")))
    work.cancel(1, reason="enough")
    _over(thread)
    run = work.last_run(1)
    assert run is not None
    assert (run.status, run.reason, len(run.attempts)) == ("HARD_FAIL", "cancelled", 1)
    with pytest.raises(oncemore.Cancelled, match="no further attempt"):
        work(1)


def test_an_effect_that_may_have_happened_is_held_and_not_declared_cancelled(engine: oncemore.Engine) -> None:
    thread = _under_way(fragile, _fail(TimeoutError("who knows")))
    fragile.cancel(1, reason="enough")
    _over(thread)
    assert fragile.last_run(1).held_for == "outcome_unknown"  # type: ignore[union-attr]
    with pytest.raises(oncemore.OutcomeUnknown):
        fragile.cancel(1, reason="enough")
    fragile.settle(oncemore.not_applied(), 1, reason="looked")
    with pytest.raises(oncemore.Cancelled):
        fragile(1)
    assert len(fragile.last_run(1).attempts) == 1  # type: ignore[union-attr]


def test_the_next_checkpoint_tells_the_work(engine: oncemore.Engine) -> None:
    seen: list[BaseException] = []

    def checks() -> Any:
        try:
            oncemore.current().checkpoint("half")
        except oncemore.Cancelled as error:
            seen.append(error)
            raise
        return "not reached"

    thread = _under_way(work, checks)
    work.cancel(1, reason="enough")
    _over(thread)
    assert "attempt 1 is to be cancelled" in str(seen[0])
    assert work.last_run(1).status == "HARD_FAIL"  # type: ignore[union-attr]


def test_work_may_finish_what_it_has_begun_all_the_same(engine: oncemore.Engine) -> None:
    def checks() -> Any:
        with pytest.raises(oncemore.Cancelled):
            oncemore.current().checkpoint("half")
        oncemore.current().checkpoint("whole")
        return "done"

    thread = _under_way(work, checks)
    work.cancel(1, reason="enough")
    _over(thread)
    assert work(1) == "done"


def test_the_next_checkpoint_tells_async_work(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent", name="awork")
    async def awork(x: int) -> str:
        cancel()
        with pytest.raises(oncemore.Cancelled):
            await oncemore.current().checkpoint("half")
        return "done"

    def cancel() -> None:
        thread = threading.Thread(target=lambda: asyncio.run(awork.bind(engine).cancel(1, reason="enough")))
        thread.start()
        thread.join(10)

    async def main() -> None:
        assert await awork(1) == "done"
        assert (await awork.submit(2)).status == "PENDING"
        assert (await awork.cancel(2, reason="no")).reason == "cancelled"

    asyncio.run(main())


def test_what_is_over_or_was_never_there_cannot_be_cancelled(engine: oncemore.Engine) -> None:
    with pytest.raises(oncemore.UsageError, match="never called or submitted"):
        work.cancel(1, reason="no")
    work(1)
    with pytest.raises(oncemore.UsageError, match="is done; finished work cannot be cancelled"):
        work.cancel(1, reason="no")
    turns.append(_fail(ValueError("bad")))
    work.run(2)
    with pytest.raises(oncemore.UsageError, match=r"failed already \(not_retryable\)"):
        work.cancel(2, reason="no")
    with pytest.raises(oncemore.UsageError, match="reason is missing"):
        work.cancel(1, reason=" ")


def test_a_cut_attempt_of_cancelled_work_is_not_followed_by_another(engine: oncemore.Engine) -> None:
    def cut() -> Any:
        raise SystemExit(3)

    turns.append(_paused(cut))

    def ends() -> None:
        with pytest.raises(SystemExit):
            work.bind(engine)(1)

    thread = threading.Thread(target=ends)
    thread.start()
    assert inside.wait(10)
    work.cancel(1, reason="enough")
    _over(thread)
    assert oncemore.Worker(engine, [work]).run_until_idle().failed == 1
    with pytest.raises(oncemore.Cancelled):
        work(1)


# Rows of the user's own -------------------------------------------------------------------------------


def _cancelled_before_its_commit(
    engine: oncemore.Engine, step: Any, monkeypatch: pytest.MonkeyPatch
) -> list[bool]:
    """Have somebody cancel the run in the very moment before its COMMIT is written.

    Return, for each time that COMMIT is written, whether others would have seen that it is under way.
    """
    real, told = engine.store.append, []

    def append(batch: Any) -> Any:
        if b'"COMMIT"' in batch.writes[0].header:
            run = step.bind(engine).last_run(1).state
            held = engine.leases.lease_until(run.worker, batch.writes[0].entity, run.fence)
            told.append(held > engine.now())
        if told == [True] and b'"COMMIT"' in batch.writes[0].header:
            other = threading.Thread(target=lambda: step.bind(engine).cancel(1, reason="too late"))
            other.start()
            other.join(10)
        return real(batch)

    monkeypatch.setattr(engine.store, "append", append)
    return told


def test_an_attempt_is_not_taken_for_lost_because_somebody_cancels_it(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = _cancelled_before_its_commit(engine, work, monkeypatch)
    assert work(1) == 1
    assert told == [True, True], "also between its two tries to commit nobody may take it over"


def test_rows_that_are_committed_before_somebody_cancels_stay_committed_and_so_does_the_run(
    engine: oncemore.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = sqlite3.connect(tmp_path / "own.db", isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE orders(n)")

    @oncemore.step(effect="transactional", name="ordered")
    def ordered(n: int) -> int:
        oncemore.current().transaction(connection).execute("INSERT INTO orders VALUES (?)", (n,))
        return n * 2

    _cancelled_before_its_commit(engine, ordered, monkeypatch)
    assert ordered(1) == 2
    assert ordered(1) == 2
    assert connection.execute("SELECT n FROM orders").fetchall() == [(1,)]
    run = ordered.last_run(1)
    assert run is not None
    assert (run.status, run.state.cancelled_at > 0, len(run.attempts)) == ("COMPLETE", True, 1)
    connection.close()
