"""Issue 15, 1.2: every attempt after the first starts from the recorded arguments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.policy.backoff import Schedule
from tests.issues import arguments
from tests.issues.arguments import append_nine
from tests.steps.colours import POLICY, SOON, do, each_colour, made

if TYPE_CHECKING:
    from oncemore.testing import FakeClock


class Appending:
    """Work that appends to its argument, and fails until its last attempt."""

    def __init__(self, fails: int, error: Exception = SOON) -> None:
        self.fails, self.error = fails, error
        self.saw: list[list[int]] = []

    def __call__(self, numbers: list[int]) -> list[int]:
        self.saw.append(list(numbers))
        numbers.append(9)
        if len(self.saw) <= self.fails:
            raise self.error
        return numbers


@each_colour
def test_each_attempt_of_a_call_starts_from_the_recorded_arguments(
    colour: str, engine: oncemore.Engine, clock: FakeClock
) -> None:
    work = Appending(2)
    assert do(colour, made(colour, work), [1]) == [1, 9]
    assert work.saw == [[1], [1], [1]]


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_the_first_attempt_gets_the_very_objects_of_the_caller(engine: oncemore.Engine) -> None:
    numbers = [1]
    assert made("plain", Appending(0))(numbers) == [1, 9]
    assert numbers == [1, 9]


def test_a_worker_that_tries_again_starts_from_the_recorded_arguments(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    run = append_nine.submit([1])
    arguments.failures[0] = 2
    worker = oncemore.Worker(engine, [append_nine], concurrency=1)
    for _ in range(3):
        worker.run_until_idle()
        clock.advance(10)
    assert run.wait(1).value == [1, 9]


def test_a_worker_that_need_not_wait_starts_from_the_recorded_arguments(engine: oncemore.Engine) -> None:
    at_once = POLICY.replace(schedule=Schedule("fixed", delays=(0.0, 0.0)))
    work = Appending(2)
    with pytest.warns(oncemore.PolicyWarning):
        step = made("plain", work, policy=at_once)
    run = step.submit([1])
    assert oncemore.Worker(engine, [step], concurrency=1).run_until_idle().done == 1
    assert run.wait(1).value == [1, 9]
    assert work.saw == [[1], [1], [1]]


def test_the_next_call_starts_from_the_recorded_form_of_equal_arguments(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    saw: list[str] = []

    def work(name: str) -> int:
        saw.append(name)
        if len(saw) == 1:
            raise KeyboardInterrupt
        return len(name)

    step = made("plain", work)
    with pytest.raises(KeyboardInterrupt):
        step("e\u0301")
    assert step("\u00e9") == 2, "the same key, and the same arguments as the first attempt"
    assert saw == ["e\u0301", "e\u0301"]


def test_a_time_keeps_its_offset_in_the_record(engine: oncemore.Engine, clock: FakeClock) -> None:
    saw: list[datetime] = []

    def work(when: datetime) -> None:
        saw.append(when)
        if len(saw) < 3:
            raise SOON

    near_midnight = datetime(2026, 11, 17, 0, 30, tzinfo=timezone(timedelta(hours=1)))
    step = made("plain", work)
    step(near_midnight)
    assert [when.isoformat() for when in saw] == [near_midnight.isoformat()] * 3
    assert step.key(near_midnight) == step.key(near_midnight.astimezone(UTC))


def test_arguments_that_are_not_recorded_come_from_the_caller(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    saw: list[Any] = []
    connection = object()

    class Client:
        @oncemore.step(effect="idempotent", policy=POLICY, ignore=("self", "connection"))
        def send(
            self,
            numbers: list[int],
            *more: list[int],
            connection: object,
            token: oncemore.Secret,
            **rest: Any,
        ) -> int:
            saw.append(
                (self, list(numbers), [list(each) for each in more], connection, token.reveal(), dict(rest))
            )
            for each in (numbers, *more, rest["last"]):
                each.append(9)
            if len(saw) == 1:
                raise SOON
            return 1

    client, token = Client(), oncemore.Secret("word")
    assert client.send([1], [2], connection=connection, token=token, last=[3]) == 1
    assert saw == [(client, [1], [[2]], connection, "word", {"last": saw[0][5]["last"]})] * 2


def test_reconcile_is_asked_with_the_recorded_arguments(engine: oncemore.Engine, clock: FakeClock) -> None:
    asked: list[Any] = []

    def answer(numbers: list[int]) -> Any:
        asked.append(list(numbers))
        return oncemore.applied("found")

    @oncemore.step(effect="once", policy=POLICY, reconcile=answer)
    def pay(numbers: list[int]) -> None:
        numbers.append(9)
        raise ConnectionError

    assert pay([1]) == "found"
    assert asked == [[1]]


def test_a_job_tries_its_items_again_from_their_recorded_arguments(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    work = Appending(1)
    job = made("plain", work).map([[1]], max_concurrency=1)
    assert job.values == [[1, 9]]
    assert work.saw == [[1], [1]]
