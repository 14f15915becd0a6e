"""What a lane does about a place that loses things, on a place that is told what to do."""

from __future__ import annotations

import asyncio
from concurrent.futures import BrokenExecutor, Future
from typing import Any

import pytest

import oncemore
from oncemore.workers import executors
from oncemore.workers.executors import RemoteExecutor, RemoteReply, encode_reply
from oncemore.workers.item_result import ItemResult
from oncemore.workers.map_items import MapItem

LOST = BrokenExecutor("a process died\nwith more to say")


class Place:
    """Answers as it is told: an error is a loss, a "hang" is a future that nobody ends."""

    name, max_calls = "a place", None

    def __init__(self, *answers: Any) -> None:
        self.answers, self.sent, self.losses, self.turns = list(answers), [], 0, [True] * 99
        self.left: list[Future[Any]] = []
        self.busy = self.closed = False

    def try_take_turn(self) -> bool:
        self.busy = self.turns.pop(0)
        return self.busy

    def release_turn(self) -> None:
        assert self.busy
        self.busy = False

    def submit_call(self, work: Any, arguments: Any, *, is_retry: bool) -> Future[Any]:
        self.sent.append((work, is_retry))
        answer, future = self.answers.pop(0), Future[Any]()
        if answer == "hang":
            self.left.append(future)
        elif isinstance(answer, BaseException):
            if answer.args == ("not sent",):
                raise answer
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def handle_lost_call(self, future: Any, error: BaseException) -> None:
        self.losses += 1

    def close(self) -> None:
        self.closed = True


class Trip:
    def prepare_call(self, item: Any, met: Any) -> Any:
        return "run", ()

    def prepare_check(self, job_id: str) -> Any:
        return "hello", ()


class Met:
    """What a course tells a lane, and is told by it."""

    def __init__(self) -> None:
        self.key, self.job_id, self.item_result, self.is_stopped = "", "j", None, False
        self.failures: list[Any] = []
        self.ended: list[BaseException] = []

    def record_failure(self, *told: Any) -> None:
        self.failures.append(told)

    def stop_job(self, error: BaseException) -> None:
        self.ended.append(error)
        self.is_stopped = True


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "TURN_POLL_S", 0.0)
    monkeypatch.setattr(executors, "HELD_POLL_S", 0.0)


def once(place: Place, *, lease_s: float = 60.0, met: Met | None = None, tries: int = 4) -> Any:
    met = met or Met()
    RemoteExecutor(place, Trip(), tries, lease_s).run_attempt(MapItem(0, "p", 5), met)  # type: ignore[arg-type]
    return met


DONE = encode_reply(RemoteReply(ItemResult("k", "done")))


def test_a_lost_item_is_sent_again_when_the_place_has_said_that_it_works() -> None:
    place = Place(LOST, "", LOST, "", DONE)
    met = once(place)
    assert (met.item_result, met.key) == (ItemResult("k", "done"), "k")
    assert [work for work, _ in place.sent] == ["run", "hello", "run", "hello", "run"]
    assert [again for _, again in place.sent] == [False, True, True, True, True]
    assert place.losses == 2
    assert not place.busy, "and whoever is next has its turn"


def test_a_lost_item_waits_for_its_turn() -> None:
    place = Place(LOST, "", DONE)
    place.turns = [False, False, True, True]
    assert once(place).item_result == ItemResult("k", "done")
    assert place.turns == []


def test_a_task_does_the_same() -> None:
    met, place = Met(), Place(LOST, "", DONE)
    place.turns = [False, True, True]
    away = RemoteExecutor(place, Trip(), 4, 60.0)  # type: ignore[arg-type]
    asyncio.run(away.run_attempt_async(MapItem(0, "p", 5), met))  # type: ignore[arg-type]
    assert met.item_result == ItemResult("k", "done")


def test_an_item_that_is_lost_again_and_again_is_left_for_later() -> None:
    met = once(Place(LOST, "", LOST, "", LOST), tries=3)
    assert met.item_result == ItemResult(
        "", "deferred", "its process died 3 times: BrokenExecutor: a process died"
    )
    assert met.ended == []


def test_a_place_that_does_not_answer_at_all_ends_the_job_with_its_own_error() -> None:
    last = RuntimeError("the scheduler is gone")
    place = Place(LOST, LOST, BrokenExecutor("not sent"), last)
    met = once(place)
    assert met.ended == [last]
    assert last.__notes__[0].startswith("oncemore: a place did not answer, 3 times in a row")
    assert met.item_result == ItemResult("", "deferred", "its process died: BrokenExecutor: a process died")


def test_a_place_that_answers_others_meanwhile_is_asked_on() -> None:
    place = Place(LOST, LOST, LOST, LOST, "", DONE)
    met, away = Met(), RemoteExecutor(place, Trip(), 4, 60.0)  # type: ignore[arg-type]
    script = away._attempt_script(MapItem(0, "p", 5), met)  # type: ignore[arg-type]
    for _ in range(3):
        next(script)
    another = Place(DONE)
    away._pool = another  # type: ignore[assignment]
    away.run_attempt(MapItem(1, "p", 6), Met())  # type: ignore[arg-type]
    away._pool = place  # type: ignore[assignment]
    assert list(script)
    assert met.item_result == ItemResult("k", "done")


def test_a_place_that_answers_again_in_time_is_given_another_item() -> None:
    assert once(Place(LOST, LOST, LOST, "", DONE)).item_result == ItemResult("k", "done")


def test_a_place_whose_step_went_away_meanwhile_ends_the_job() -> None:
    met = once(Place(LOST, "there is no such module"))
    assert isinstance(met.ended[0], oncemore.UsageError)


def test_what_is_lost_when_the_job_has_been_stopped_is_left() -> None:
    met = Met()
    met.is_stopped = True
    assert once(Place(LOST), met=met).item_result == ItemResult(
        "", "deferred", "the job was stopped before it was done"
    )


def test_what_has_not_begun_when_the_job_is_stopped_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "POLL_S", 0.01)
    met, place = Met(), Place("hang")
    met.is_stopped = True
    assert once(place, met=met).item_result.outcome == "deferred"
    assert place.left[0].cancelled()


def test_a_lost_run_whose_holder_is_not_quite_dead_is_asked_for_until_its_lease_is_over() -> None:
    held = encode_reply(RemoteReply(ItemResult("k", "deferred", "somebody has it"), held_until=99.0))
    place = Place(LOST, "", held, held, DONE)
    assert once(place).item_result == ItemResult("k", "done")
    assert once(Place(held)).item_result == ItemResult("k", "deferred", "somebody has it"), (
        "what was not lost is theirs"
    )
    over = once(Place(LOST, "", held, held), lease_s=-3.0)
    assert over.item_result == ItemResult("k", "deferred", "somebody has it")


def test_whoever_waits_for_the_first_answer_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*told: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(executors, "wait", interrupted)
    place = Place("hang")
    with pytest.raises(KeyboardInterrupt):
        RemoteExecutor(place, Trip(), 3, 60.0).check_ready("j")  # type: ignore[arg-type]
    assert place.left[0].cancelled()
    assert place.losses == 0


def test_an_interrupt_in_the_moment_of_sending_is_no_loss() -> None:
    place = Place(KeyboardInterrupt("not sent"))
    with pytest.raises(KeyboardInterrupt):
        RemoteExecutor(place, Trip(), 3, 60.0).check_ready("j")  # type: ignore[arg-type]
    assert place.losses == 0
