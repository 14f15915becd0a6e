"""How many calls may be under way toward a provider, and which item of a job comes next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.limits.concurrency_rules import Pace
from oncemore.workers.map_items import AHEAD, FOREVER, QUIET_S, Board, Item


@pytest.mark.req("CONC-5")
def test_it_is_halved_by_throttling_and_comes_back_one_by_one() -> None:
    pace, seen = Pace(5, 5), [5]
    for at in (10.0, 20.0, 30.0):
        pace = pace.throttled(at - 1, at)
        seen.append(pace.now)
    for at in range(30, 60):
        before, pace = pace, pace.quiet(float(at), 5.0)
        seen += [pace.now] if pace is not before else []
    assert seen == [5, 2, 1, 1, 2, 3, 4, 5]
    assert pace.quiet(1000.0, 5.0) == pace


def test_those_that_were_under_way_when_it_was_lowered_tell_nothing_new() -> None:
    pace = Pace(5, 5).throttled(9.0, 10.0)
    assert pace.throttled(9.5, 10.1) == pace
    assert pace.throttled(10.0, 10.1).now == 1


@pytest.mark.unmeasured
@given(st.lists(st.tuples(st.booleans(), st.floats(0, 20)), max_size=60), st.integers(1, 9))
def test_it_stays_between_one_and_what_was_allowed(steps: list[tuple[bool, float]], most: int) -> None:
    pace, at = Pace(most, most), 0.0
    for throttled, passed in steps:
        at += passed
        before = pace.now
        pace = pace.throttled(at, at) if throttled else pace.quiet(at, 5.0)
        assert 1 <= pace.now <= most
        assert pace.now <= before or (not throttled and pace.now == before + 1)


def items(*providers: str) -> list[Item]:
    return [Item(n, provider, n) for n, provider in enumerate(providers)]


def taken(board: Board, now: float = 0.0) -> list[int]:
    """Take all that may be taken now."""
    found = []
    while isinstance(item := board.take(now), Item):
        found.append(item.number)
    return found


def test_no_more_are_under_way_than_may_be() -> None:
    given_ = items(*"aaaaaaa")
    board = Board(iter(given_), 3)
    assert taken(board) == [0, 1, 2]
    assert board.take(0.0) == FOREVER
    board.back(given_[1], None)
    assert taken(board) == [3]
    for n in (0, 2, 3):
        board.back(given_[n], None)
    assert taken(board) == [4, 5, 6]
    for n in (4, 5):
        board.back(given_[n], None)
    assert board.take(0.0) == FOREVER
    board.back(given_[6], None)
    assert board.take(0.0) is None


def test_what_is_tried_again_waits_for_its_time_without_a_place() -> None:
    given_ = items(*"aaa")
    board = Board(iter(given_), 1)
    assert taken(board) == [0]
    board.back(given_[0], 10.0)
    assert taken(board) == [1]
    board.back(given_[1], 5.0)
    assert taken(board) == [2]
    assert board.take(1.0) == 4.0
    board.back(given_[2], None)
    assert board.take(1.0) == 4.0
    assert taken(board, 6.0) == [1]
    board.back(given_[1], None)
    assert taken(board, 11.0) == [0]
    board.back(given_[0], None)
    assert board.take(12.0) is None


def test_a_provider_that_throttles_is_asked_less_and_others_are_not() -> None:
    given_ = items(*"aaaabbbbaaaaaaaa")
    board = Board(iter(given_), 4)
    assert taken(board) == [0, 1, 2, 3]
    board.throttled(given_[0], 0.0, 1.0)
    for n in (0, 1, 2, 3):
        board.back(given_[n], None)
    assert taken(board, 1.0) == [4, 5, 6, 7]
    for n in (4, 5, 6, 7):
        board.back(given_[n], None)
    assert taken(board, 1.0) == [8, 9]
    assert board.paces["a"].now == 2
    assert board.take(2.0) == QUIET_S - 1.0
    assert taken(board, 1.0 + QUIET_S) == [10]
    assert taken(board, 1.0 + 2 * QUIET_S) == [11]
    assert board.paces["a"].now == 4


def test_few_are_drawn_ahead_of_their_turn() -> None:
    drawn: list[int] = []

    def many() -> object:
        for item in items(*"a" * 1000):
            drawn.append(item.number)
            yield item

    board = Board(many(), 5)  # type: ignore[arg-type]
    first = board.take(0.0)
    assert isinstance(first, Item)
    for _ in range(3):
        board.throttled(first, 5.0, 5.0)
    board.take(6.0)
    assert len(drawn) <= AHEAD + 6


def test_nothing_is_left_after_it_was_closed() -> None:
    given_ = items(*"aaaa")
    board = Board(iter(given_), 2)
    assert taken(board) == [0, 1]
    board.back(given_[0], 5.0)
    board.close()
    assert board.take(10.0) == FOREVER
    board.back(given_[1], None)
    assert board.take(10.0) is None


@pytest.mark.unmeasured
@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(1, 5), st.randoms(use_true_random=False))
def test_every_item_comes_to_its_end_and_the_limit_is_kept(
    providers: list[str], most: int, chance: object
) -> None:
    given_ = items(*providers)
    board, now, under_way, over = Board(iter(given_), most), 0.0, [], []
    tries = dict.fromkeys(range(len(given_)), 0)
    for _ in range(1000):
        item = board.take(now)
        if item is None:
            break
        if isinstance(item, Item):
            under_way.append(item)
            tries[item.number] += 1
            assert len(under_way) <= most
            continue
        if under_way:
            back = under_way.pop(chance.randrange(len(under_way)))  # type: ignore[attr-defined]
            if chance.random() < 0.3:  # type: ignore[attr-defined]
                board.throttled(back, now, now)
            again = tries[back.number] < 3 and chance.random() < 0.5  # type: ignore[attr-defined]
            board.back(back, now + 2.0 if again else None)
            over += [] if again else [back.number]
        else:
            now += item
    assert sorted(over) == list(range(len(given_)))
