"""The concurrency limit of a provider, and the order of a job's items."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.limits.concurrency_rules import ConcurrencyState
from oncemore.workers.map_items import IDLE_WAIT_S, MAX_READY_ITEMS, QUIET_PERIOD_S, ItemQueue, MapItem


@pytest.mark.req("CONC-5")
def test_the_limit_is_halved_by_throttling_and_grows_by_one() -> None:
    pace, seen = ConcurrencyState(5, 5), [5]
    for at in (10.0, 20.0, 30.0):
        pace = pace.after_throttling(at - 1, at)
        seen.append(pace.now)
    for at in range(30, 60):
        before, pace = pace, pace.after_quiet_period(float(at), 5.0)
        seen += [pace.now] if pace is not before else []
    assert seen == [5, 2, 1, 1, 2, 3, 4, 5]
    assert pace.after_quiet_period(1000.0, 5.0) == pace


def test_calls_started_before_the_limit_was_lowered_do_not_lower_it_again() -> None:
    pace = ConcurrencyState(5, 5).after_throttling(9.0, 10.0)
    assert pace.after_throttling(9.5, 10.1) == pace
    assert pace.after_throttling(10.0, 10.1).now == 1


@pytest.mark.unmeasured
@given(st.lists(st.tuples(st.booleans(), st.floats(0, 20)), max_size=60), st.integers(1, 9))
def test_the_limit_stays_between_one_and_its_maximum(steps: list[tuple[bool, float]], most: int) -> None:
    pace, at = ConcurrencyState(most, most), 0.0
    for throttled, passed in steps:
        at += passed
        before = pace.now
        pace = pace.after_throttling(at, at) if throttled else pace.after_quiet_period(at, 5.0)
        assert 1 <= pace.now <= most
        assert pace.now <= before or (not throttled and pace.now == before + 1)


def items(*providers: str) -> list[MapItem]:
    return [MapItem(n, provider, n) for n, provider in enumerate(providers)]


def taken(board: ItemQueue, now: float = 0.0) -> list[int]:
    """Take all that may be taken now."""
    found = []
    while isinstance(item := board.take_item(now), MapItem):
        found.append(item.number)
    return found


def test_no_more_calls_run_than_the_limit_allows() -> None:
    given_ = items(*"aaaaaaa")
    board = ItemQueue(iter(given_), 3)
    assert taken(board) == [0, 1, 2]
    assert board.take_item(0.0) == IDLE_WAIT_S
    board.return_item(given_[1], None)
    assert taken(board) == [3]
    for n in (0, 2, 3):
        board.return_item(given_[n], None)
    assert taken(board) == [4, 5, 6]
    for n in (4, 5):
        board.return_item(given_[n], None)
    assert board.take_item(0.0) == IDLE_WAIT_S
    board.return_item(given_[6], None)
    assert board.take_item(0.0) is None


def test_a_retried_item_waits_without_using_the_limit() -> None:
    given_ = items(*"aaa")
    board = ItemQueue(iter(given_), 1)
    assert taken(board) == [0]
    board.return_item(given_[0], 10.0)
    assert taken(board) == [1]
    board.return_item(given_[1], 5.0)
    assert taken(board) == [2]
    assert board.take_item(1.0) == 4.0
    board.return_item(given_[2], None)
    assert board.take_item(1.0) == 4.0
    assert taken(board, 6.0) == [1]
    board.return_item(given_[1], None)
    assert taken(board, 11.0) == [0]
    board.return_item(given_[0], None)
    assert board.take_item(12.0) is None


def test_throttling_lowers_the_limit_of_one_provider_only() -> None:
    given_ = items(*"aaaabbbbaaaaaaaa")
    board = ItemQueue(iter(given_), 4)
    assert taken(board) == [0, 1, 2, 3]
    board.record_throttling(given_[0], 0.0, 1.0)
    for n in (0, 1, 2, 3):
        board.return_item(given_[n], None)
    assert taken(board, 1.0) == [4, 5, 6, 7]
    for n in (4, 5, 6, 7):
        board.return_item(given_[n], None)
    assert taken(board, 1.0) == [8, 9]
    assert board.concurrency_states["a"].now == 2
    assert board.take_item(2.0) == QUIET_PERIOD_S - 1.0
    assert taken(board, 1.0 + QUIET_PERIOD_S) == [10]
    assert taken(board, 1.0 + 2 * QUIET_PERIOD_S) == [11]
    assert board.concurrency_states["a"].now == 4


def test_few_items_are_drawn_in_advance() -> None:
    drawn: list[int] = []

    def many() -> object:
        for item in items(*"a" * 1000):
            drawn.append(item.number)
            yield item

    board = ItemQueue(many(), 5)  # type: ignore[arg-type]
    first = board.take_item(0.0)
    assert isinstance(first, MapItem)
    for _ in range(3):
        board.record_throttling(first, 5.0, 5.0)
    board.take_item(6.0)
    assert len(drawn) <= MAX_READY_ITEMS + 6


def test_a_closed_job_has_no_items_left() -> None:
    given_ = items(*"aaaa")
    board = ItemQueue(iter(given_), 2)
    assert taken(board) == [0, 1]
    board.return_item(given_[0], 5.0)
    board.close()
    assert board.take_item(10.0) == IDLE_WAIT_S
    board.return_item(given_[1], None)
    assert board.take_item(10.0) is None


@pytest.mark.unmeasured
@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(1, 5), st.randoms(use_true_random=False))
def test_every_item_comes_to_its_end_and_the_limit_is_kept(
    providers: list[str], most: int, chance: object
) -> None:
    given_ = items(*providers)
    board, now, under_way, over = ItemQueue(iter(given_), most), 0.0, [], []
    tries = dict.fromkeys(range(len(given_)), 0)
    for _ in range(1000):
        item = board.take_item(now)
        if item is None:
            break
        if isinstance(item, MapItem):
            under_way.append(item)
            tries[item.number] += 1
            assert len(under_way) <= most
            continue
        if under_way:
            back = under_way.pop(chance.randrange(len(under_way)))  # type: ignore[attr-defined]
            if chance.random() < 0.3:  # type: ignore[attr-defined]
                board.record_throttling(back, now, now)
            again = tries[back.number] < 3 and chance.random() < 0.5  # type: ignore[attr-defined]
            board.return_item(back, now + 2.0 if again else None)
            over += [] if again else [back.number]
        else:
            now += item
    assert sorted(over) == list(range(len(given_)))
