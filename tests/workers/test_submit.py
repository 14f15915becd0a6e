"""Work that is handed in: once per key, at its time, with all that goes along with it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.entry_codec import decode_body
from oncemore.steps.history import verify_chain

if TYPE_CHECKING:
    from oncemore.testing import FakeClock

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    calls.clear()


@oncemore.step(effect="idempotent", name="double")
def double(x: Any, *more: Any, by: int = 2, **rest: Any) -> Any:
    calls.append((x, more, by, rest))
    return x * by


@oncemore.step(effect="idempotent", name="who")
def who(x: int) -> list[Any]:
    around = oncemore.current()
    from oncemore.steps.context import CONTEXT

    return [around.tenant, around.correlation_id, CONTEXT.get().actor, around.remaining() is not None]


@oncemore.step(effect="idempotent", name="adouble")
async def adouble(x: int) -> int:
    calls.append(x)
    return x * 2


def test_what_is_handed_in_waits_until_a_worker_does_it(engine: oncemore.Engine) -> None:
    run = double.submit(3)
    assert (run.status, run.step, calls) == ("PENDING", "double", [])
    assert oncemore.Worker(engine, [double]).run_until_idle().done == 1
    assert run.wait(5).value == 6
    assert double(3) == 6
    assert len(calls) == 1
    verify_chain(engine.store.read_entries())


@pytest.mark.req("MSG-4")
def test_the_same_work_is_handed_in_once_whatever_its_state(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    first = double.submit(3)
    assert double.submit(3).run_id == first.run_id
    oncemore.Worker(engine, [double]).run_until_idle()
    clock.advance(3600.0)  # a queue has long forgotten that it delivered this message
    again = double.submit(3)
    assert (again.run_id, again.status) == (first.run_id, "COMPLETE")
    assert oncemore.Worker(engine, [double]).run_until_idle().done == 0
    assert len(calls) == 1


def test_what_failed_is_not_begun_anew_by_handing_it_in(engine: oncemore.Engine) -> None:
    failed = double.run(None)
    assert failed.status == "HARD_FAIL"
    assert double.submit(None).run_id == failed.run_id
    assert double.submit(None).status == "HARD_FAIL"


def test_a_call_of_what_was_handed_in_does_it_at_once(engine: oncemore.Engine) -> None:
    run = double.submit(4)
    assert double(4) == 8
    assert double.last_run(4).run_id == run.run_id  # type: ignore[union-attr]
    assert oncemore.Worker(engine, [double]).run_until_idle().done == 0


@pytest.mark.parametrize(
    "at",
    [
        lambda now: now + 100.0,
        lambda now: timedelta(seconds=100),
        lambda now: datetime.fromtimestamp(now + 100, UTC),
    ],
    ids=["seconds", "timedelta", "datetime"],
)
def test_what_is_handed_in_for_later_is_done_then_and_not_before(
    engine: oncemore.Engine, clock: FakeClock, at: Any
) -> None:
    run = double.submit(5, at=at(engine.now()))
    assert run.not_before == pytest.approx(engine.now() + 100.0, abs=5.0)
    worker = oncemore.Worker(engine, [double])
    clock.advance(94.0)
    assert worker.run_until_idle().done == 0
    clock.advance(12.0)
    assert worker.run_until_idle().done == 1
    assert run.wait(5).value == 10


def test_a_call_of_what_is_due_much_later_is_parked(engine: oncemore.Engine) -> None:
    double.submit(6, at=timedelta(hours=1))
    with pytest.raises(oncemore.Deferred, match="not yet due"):
        double(6)


@pytest.mark.parametrize(
    "at",
    [
        datetime(2030, 1, 1),
        "tomorrow",
        True,
        0,
        -5.0,
        float("nan"),
        float("inf"),
        1e15,
        timedelta(days=9_000_000),
    ],
    ids=repr,
)
def test_a_time_that_is_none_is_refused(engine: oncemore.Engine, at: Any) -> None:
    with pytest.raises(oncemore.UsageError, match=r"^at is .*; it takes an aware datetime, POSIX seconds"):
        double.submit(7, at=at)
    assert double.last_run(7) is None


def test_a_time_after_the_deadline_is_refused(engine: oncemore.Engine) -> None:
    with oncemore.context(deadline=engine.now() + 50), pytest.raises(oncemore.UsageError, match="deadline"):
        double.submit(7, at=timedelta(seconds=60))


def test_time_is_counted_from_when_it_was_to_begin(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="bounded", total_timeout=30)
    def bounded(x: int) -> int:
        if oncemore.current().number < 3:
            raise ConnectionError("not yet")
        return x

    run = bounded.submit(1, at=timedelta(hours=1))
    assert run.state.deadline == pytest.approx(engine.now() + 3630, abs=5.0)
    clock.advance(3601.0)
    worker = oncemore.Worker(engine, [bounded])
    for _ in range(3):
        worker.run_until_idle()
        clock.advance(3.0)
    assert run.wait(5).value == 1


def test_work_whose_deadline_has_passed_is_not_handed_in(engine: oncemore.Engine, clock: FakeClock) -> None:
    with oncemore.context(deadline=engine.now() + 5):
        clock.advance(60.0)
        with pytest.raises(oncemore.DeadlineExceeded):
            double.submit(8)
    assert double.last_run(8) is None


@pytest.mark.req("CORR-1")
def test_tenant_correlation_actor_and_deadline_go_along(engine: oncemore.Engine) -> None:
    with oncemore.context(tenant="acme", correlation_id="c-1", actor="a clerk", deadline=engine.now() + 500):
        run = who.submit(1)
    assert oncemore.Worker(engine, [who]).run_until_idle().done == 1
    assert run.wait(5).value == ["acme", "c-1", "a clerk", True]
    assert {record["correlation_id"] for record in run.records()} == {"c-1"}


@pytest.mark.req("CORR-2")
def test_without_a_correlation_id_all_records_of_a_run_share_a_new_one(engine: oncemore.Engine) -> None:
    run = who.submit(2)
    oncemore.Worker(engine, [who]).run_until_idle()
    ids = {record["correlation_id"] for record in run.wait(5).records()}
    assert ids == {run.correlation_id}
    assert {attempt.correlation_id for attempt in run.wait(5).attempts} == ids
    assert run.wait(5).value[1] in ids
    assert len(run.correlation_id) == 36


@pytest.mark.req("CORR-5")
def test_two_requests_without_a_correlation_id_have_one_key(engine: oncemore.Engine) -> None:
    assert who.submit(3).key == who.submit(3).key
    with oncemore.context(correlation_id="c-9"):
        assert who.submit(3).key == who.key(3)


def test_arguments_of_every_kind_come_to_the_worker_as_they_were(engine: oncemore.Engine) -> None:
    day = datetime(2026, 11, 1, tzinfo=UTC)
    double.submit("é", 2, (3, day), by=1, extra={"a": {1, 2}, "b": b"x"})
    assert oncemore.Worker(engine, [double]).run_until_idle().done == 1
    assert calls == [("é", (2, (3, day)), 1, {"extra": {"a": {1, 2}, "b": b"x"}})]


def test_arguments_that_the_log_does_not_keep_cannot_be_handed_in(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent", name="login", ignore="log")
    def login(user: str, password: oncemore.Secret | None = None, log: Any = None) -> str:
        return user

    with pytest.raises(oncemore.UsageError, match="password: the log does not store a Secret"):
        login.submit("me", oncemore.Secret("x"))
    with pytest.raises(oncemore.UsageError, match="with log"):
        login.submit("me", log=print)
    with pytest.raises(oncemore.UsageError, match="has no form"):
        login.submit(object())  # type: ignore[arg-type]
    assert login.submit("me").status == "PENDING"
    assert oncemore.Worker(engine, [login]).run_until_idle().done == 1


def test_the_key_of_other_arguments_is_refused(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent", name="keyed", key="order")
    def keyed(order: str, cents: int) -> int:
        return cents

    keyed.submit("o", 1)
    with pytest.raises(oncemore.KeyConflict):
        keyed.submit("o", 2)
    oncemore.Worker(engine, [keyed]).run_until_idle()
    assert keyed("o", 1) == 1


def test_what_a_newer_version_would_compute_anew_is_handed_in_anew(engine: oncemore.Engine) -> None:
    def made(version: str) -> Any:
        @oncemore.step(effect="pure", name="versioned", version=version)
        def versioned(x: int) -> str:
            return version

        return versioned

    old, new = made("1"), made("2")
    old.submit(1)
    assert new.submit(1).state.run_number == 1, "an open run stays"
    oncemore.Worker(engine, [old]).run_until_idle()
    again = new.submit(1)
    assert (again.status, again.state.run_number) == ("PENDING", 2)
    oncemore.Worker(engine, [new]).run_until_idle()
    assert new(1) == "2"
    old.submit(2)
    old.cancel(2, reason="not wanted")
    assert new.submit(2).status == "HARD_FAIL", "what somebody cancelled is not begun by a new version"


def test_async_steps_are_handed_in_and_done_too(engine: oncemore.Engine) -> None:
    async def main() -> None:
        run = await adouble.submit(4)
        assert run.status == "PENDING"
        with oncemore.Worker(engine, [adouble]):
            async with asyncio.timeout(10):
                done = await run
        assert (done.status, done.value) == ("COMPLETE", 8)
        with pytest.raises(oncemore.UsageError):
            await adouble.cancel(4, reason="too late")

    asyncio.run(main())


def test_waiting_for_a_run_ends_with_its_time(engine: oncemore.Engine) -> None:
    run = double.submit(9)
    assert run.wait(0.0).status == "PENDING"
    assert run.wait(0.05).status == "PENDING"

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await run

    asyncio.run(main())


def test_the_record_of_what_was_handed_in_says_who_asked(engine: oncemore.Engine) -> None:
    with oncemore.context(actor="a clerk"):
        run = double.submit(10)
    (entry,) = engine.store.read_entries(f"run/{run.key}")
    assert entry.body is not None
    assert decode_body(entry.body)["actor"] == "a clerk"
