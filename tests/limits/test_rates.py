"""Rates: calls wait for their moment, alone and with all who share a store."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.limits import concurrency, shared_rate

if TYPE_CHECKING:
    from oncemore.testing import FakeClock


def one() -> int:
    return 1


async def aone() -> int:
    return 1


def test_calls_are_as_far_apart_as_their_rate_says(clock: FakeClock) -> None:
    call = oncemore.retrying(one, on="transient", rate="10/s")
    assert [call() for _ in range(4)] == [1] * 4
    assert clock.delays == pytest.approx([0.1, 0.1, 0.1])
    acall: Any = oncemore.retrying(aone, on="transient", rate="10/s")
    clock.delays.clear()
    assert [asyncio.run(acall()) for _ in range(3)] == [1] * 3
    assert clock.delays == pytest.approx([0.1, 0.1])


def test_attempts_wait_for_their_moment_too(clock: FakeClock) -> None:
    def down() -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        oncemore.retrying(down, on="transient", rate="1/10s", attempts=3, wait=[1, 2])()
    assert clock.delays == pytest.approx([1, 9, 2, 8])


def test_a_burst_goes_at_once_after_a_rest(clock: FakeClock) -> None:
    call = oncemore.retrying(one, on="transient", rate=oncemore.Rate("2/s", burst=2))
    for _ in range(3):
        call()
    assert clock.delays == pytest.approx([0.5])


def test_several_may_share_one(clock: FakeClock) -> None:
    rate = oncemore.Rate("1/s", name="api")
    first, second = (oncemore.retrying(one, on="transient", rate=rate) for _ in range(2))
    first(), second()
    assert clock.delays == pytest.approx([1.0])
    assert repr(rate) == "<oncemore.Rate of api: 1 in 1 s>"


def test_a_call_whose_time_is_up_before_its_moment_says_so(clock: FakeClock) -> None:
    call = oncemore.retrying(one, on="transient", rate="1/h", total_timeout=60)
    call()
    with pytest.raises(oncemore.DeadlineExceeded, match="the rate limit has no free slot"):
        call()
    assert oncemore.retrying(one, on="transient", rate="1/h", total_timeout=60, fallback=7)() == 1


def test_a_breaker_is_asked_before_a_moment_is_taken_and_after_it_was_waited_for(clock: FakeClock) -> None:
    breaker = oncemore.Breaker("x", failures=1)
    rate = oncemore.Rate("1/10s")
    call = oncemore.retrying(one, on="transient", rate=rate, breaker=breaker)
    call(), call()
    assert clock.delays == pytest.approx([10])
    with pytest.raises(ConnectionResetError), breaker:
        raise ConnectionResetError
    with pytest.raises(oncemore.CircuitOpen):
        call()
    assert clock.delays == pytest.approx([10])  # at once
    clock.advance(301)
    assert (call(), breaker.state) == (1, "CLOSED")


def test_all_who_share_a_store_have_one_rate_together(engine: oncemore.Engine, clock: FakeClock) -> None:
    calls = [
        oncemore.retrying(one, on="transient", rate=oncemore.Rate("10/s", name="api", shared=True))
        for _ in range(2)
    ]
    began = clock.monotonic()
    for _ in range(20):
        for call in calls:
            call()
    assert clock.monotonic() - began >= 3.8  # forty calls, ten a second
    found = concurrency.PREFIX + "api"
    head = engine.store.load_head(found)
    assert head is not None
    assert head.version <= 40


def test_a_shared_rate_costs_few_writes_when_one_is_busy(engine: oncemore.Engine, clock: FakeClock) -> None:
    call = oncemore.retrying(one, on="transient", rate=oncemore.Rate("1000/s", name="api", shared=True))
    for _ in range(1000):
        call()
    head = engine.store.load_head("quota/api")
    assert head is not None
    assert head.version < 60


def test_moments_that_were_not_used_are_lost_not_saved_up(engine: oncemore.Engine, clock: FakeClock) -> None:
    rate = oncemore.Rate("10/s", name="api", shared=True)
    call = oncemore.retrying(one, on="transient", rate=rate)
    for _ in range(10):
        call()
    clock.advance(60)
    clock.delays.clear()
    began = engine.now()
    for _ in range(5):
        call()
    assert engine.now() - began >= 0.39


def test_a_store_that_is_down_leaves_each_process_its_own(
    engine: oncemore.Engine,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    call = oncemore.retrying(one, on="transient", rate=oncemore.Rate("1/s", name="api", shared=True))

    def down(*told: object) -> Any:
        raise StoreError("gone")

    with monkeypatch.context() as broken:
        broken.setattr(engine.store, "load_head", down)
        call(), call()
    assert clock.delays == pytest.approx([1.0])
    assert "rate api: the store cannot be reached (gone)" in caplog.text


def test_what_is_no_rate_is_refused_where_it_is_given() -> None:
    with pytest.raises(oncemore.UsageError, match="rate is 5; it takes calls and a time"):
        oncemore.retry(on="transient", rate=5)  # type: ignore[arg-type]
    with pytest.raises(oncemore.UsageError, match="the name of a breaker is ''"):
        oncemore.Rate("1/s", shared=True)


def test_others_who_write_first_are_read_again_and_not_for_ever(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncemore.limits.breaker import run_limit_script
    from oncemore.log.store import Conflict

    class Always:
        def wait(self) -> Conflict:
            return Conflict("quota/api", None)

    monkeypatch.setattr(engine.store, "append", lambda batch: Always())
    monkeypatch.setattr(concurrency, "MOST_TRIES", 3)
    with pytest.raises(StoreError, match="other writers changed it 3 times in a row"):
        run_limit_script(
            concurrency.update_quota(
                engine, "api", lambda found, now: (found._replace(calls_per_period=9), None)
            )
        )
    assert shared_rate.MOST_TAKEN == 100


# Durable steps --------------------------------------------------------------------------------------


def test_attempts_of_a_step_wait_for_their_moment_inside_the_call(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="idempotent", name="rated", rate="1/10s", provider="api")
    def rated(n: int) -> int:
        return n

    began = engine.now()
    assert [rated(n) for n in range(3)] == [0, 1, 2]
    assert sum(clock.delays) == pytest.approx(20, abs=0.5)
    assert engine.now() - began >= 20

    @oncemore.step(effect="idempotent", name="arated", rate="1/10s", provider="api")
    async def arated(n: int) -> int:
        return n

    assert asyncio.run(arated(1)) == 1  # the same provider, the same rate
    assert sum(clock.delays) == pytest.approx(30, abs=0.8)
    before = len(clock.delays)
    assert rated(0) == 0  # done before: no attempt, no moment
    assert len(clock.delays) == before


def test_a_call_whose_time_ends_before_its_moment_does_not_wait_for_it(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="idempotent", name="limited", rate="1/10s", total_timeout=5)
    def limited(n: int) -> int:
        return n

    assert limited(0) == 0
    assert limited.run(1).reason == "deadline_passed"
    assert sum(clock.delays) <= 5.1


def test_what_has_to_wait_longer_is_parked_until_its_moment_and_takes_no_other(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    did: list[int] = []

    @oncemore.step(effect="idempotent", name="slow", rate="1/h")
    def slow(n: int) -> int:
        did.append(n)
        return n

    slow(0)
    runs = [slow.run(n) for n in (1, 2)]
    assert [run.reason for run in runs] == ["rate_limited"] * 2
    assert "not tried yet: slow takes 1 in 3600 s" in runs[0].explain()
    clock.advance(3600)
    worker = oncemore.Worker(engine, [slow])
    worker.run_until_idle()
    assert did == [0, 1]
    clock.advance(3600)
    worker.run_until_idle()
    assert did == [0, 1, 2]
    third = slow.run(3)
    assert third.reason == "rate_limited"
    clock.advance(30_000)  # long after its moment, which it has no longer
    slow.run(4)
    assert slow.run(3).reason == "rate_limited"
    assert did == [0, 1, 2, 4]


def test_a_worker_spreads_what_is_handed_in(engine: oncemore.Engine, clock: FakeClock) -> None:
    times: list[float] = []

    @oncemore.step(effect="idempotent", name="spread", rate=oncemore.Rate("1/s", name="api"))
    def spread(n: int) -> int:
        times.append(engine.now())
        return n

    for n in range(5):
        spread.submit(n)
    worker = oncemore.Worker(engine, [spread])
    worker.run_until_idle()
    for _ in range(30):  # more than enough, however much real time passes between two of them
        clock.advance(0.7)
        worker.run_until_idle()
    assert worker.stats.done == 5
    # A second but for the real time between the gate and the work, which a busy machine stretches.
    assert min(after - before for before, after in pairwise(sorted(times))) >= 0.5
    assert all(spread.last_run(n).state.attempt_count == 1 for n in range(5))  # type: ignore[union-attr]


@pytest.mark.parametrize(("rate", "period_s", "many"), [("50/s", 1.0, 100), ("1/h", 3600.0, 3)])
def test_a_worker_that_comes_late_does_not_catch_up_at_once(
    engine: oncemore.Engine, clock: FakeClock, rate: str, period_s: float, many: int
) -> None:
    """A worker that stood still for a second made 98 calls in the next one, at 50/s (issue 15, section 5)."""
    times: list[float] = []

    @oncemore.step(effect="idempotent", name="late", rate=rate)
    def late(n: int) -> int:
        times.append(engine.now())
        return n

    for n in range(many):
        late.submit(n)
    worker = oncemore.Worker(engine, [late])
    worker.run_until_idle()
    clock.advance(0.99 * period_s)
    for _ in range(300):
        worker.run_until_idle()
        clock.advance(period_s / 50)
    allowed = int(rate.partition("/")[0])
    most = max(sum(1 for at in times if first <= at < first + period_s) for first in times)
    # Up to five are between the gate and the work, for as long as a busy machine makes it.
    assert most <= allowed + (5 if allowed > 1 else 0)
    assert len(times) == many


def test_a_run_whose_deadline_is_before_its_moment_is_over_then(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="idempotent", name="late", rate="1/h", total_timeout=100)
    def late(n: int) -> int:
        return n

    late(0)
    assert late.run(1).not_before == pytest.approx(engine.now() + 100, abs=1)
    clock.advance(101)
    assert late.run(1).reason == "deadline_passed"
