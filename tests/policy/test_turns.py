"""The order in which waiting runs are taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oncemore.workers.turns import RunTurn, order_turns


def waiting(**lanes: str) -> dict[str, list[RunTurn]]:
    """Make runs: `a="0011"` are four of step a, by the digit of their priority."""
    return {
        step: [RunTurn(f"P{digit}", float(n), step, f"{step}{n}") for n, digit in enumerate(digits)]
        for step, digits in lanes.items()
    }


def test_steps_take_turns_within_a_priority() -> None:
    order = [turn.entity for turn in order_turns(waiting(a="111", b="1", c="011"))]
    assert order == ["c0", "a0", "b0", "c1", "a1", "c2", "a2"]


def test_the_step_served_last_comes_last() -> None:
    assert [turn.entity for turn in order_turns(waiting(a="11", b="11"), "a")] == ["b0", "a0", "b1", "a1"]
    assert [turn.entity for turn in order_turns(waiting(a="1", b="1", c="1"), "b")] == ["c0", "a0", "b0"]


def test_no_waiting_runs_give_an_empty_order() -> None:
    assert order_turns({}) == []
    assert order_turns({"a": []}) == []


@given(st.dictionaries(st.sampled_from("abcd"), st.text("012", max_size=12)), st.sampled_from("abcd"))
def test_every_run_is_taken_once_by_priority_and_steps_alternate(lanes: dict[str, str], last: str) -> None:
    given_ = waiting(**lanes)
    order = order_turns(given_, last)
    assert sorted(order) == sorted(turn for turns in given_.values() for turn in turns)
    assert [turn.priority for turn in order] == sorted(turn.priority for turn in order)
    for priority in "012":
        left = {step: digits.count(priority) for step, digits in lanes.items() if priority in digits}
        served: dict[str, int] = dict.fromkeys(left, 0)
        for turn in order:
            if turn.priority == f"P{priority}":
                served[turn.step] += 1
                waits = [served[step] for step in left if served[step] < left[step]]
                assert not waits or served[turn.step] - min(waits) <= 1
