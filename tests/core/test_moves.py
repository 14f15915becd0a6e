"""What every attempt does to a run: the short ways give what the long ones say."""

import random

import pytest

from oncemore.log.record import KINDS, NEW, Change, Run, begun, fold, over

TEXTS, NUMBERS = ("", "a", "b"), (0, 1, 2)


def some(chance: random.Random) -> Run:
    """A run of which every field is anything."""
    kinds = {str: TEXTS, int: NUMBERS, float: (0.0, 1.5, 2.5), bool: (False, True)}
    return Run(*(chance.choice(kinds[type(usual)]) for usual in NEW[Run]))


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


def test_an_attempt_that_begins_sets_these_fields_and_no_others(chance: random.Random) -> None:
    for _ in range(200):
        run = some(chance)
        assert begun(run, "pure", "w", 7.0) == run._replace(
            state="RUNNING", effect="pure", fence=run.fence + 1, attempt=run.attempt + 1, tried=run.tried + 1,
            worker="w", began=7.0, reason="", held_for="", owes=0.0,
        )  # fmt: skip


def test_an_attempt_that_is_over_sets_these_fields_and_those_it_is_told(chance: random.Random) -> None:
    for _ in range(200):
        run = some(chance)
        gone = {"state": "COMPLETE", "reason": "why", "worker": "", "held_for": ""}
        assert over(run, "COMPLETE", "why") == run._replace(**gone)
        assert over(run, "COMPLETE", "why", committed=9, owes=1.5) == run._replace(
            **gone, committed=9, owes=1.5
        )


def test_a_header_sets_what_differs_in_the_order_of_the_fields_and_folds_to_the_state(
    chance: random.Random,
) -> None:
    for _ in range(500):
        before, after = some(chance), some(chance)
        if chance.random() < 0.5:  # most changes are to the first fields alone
            upto = chance.randrange(len(after))
            after = Run(*after[:upto], *before[upto:])
        for was in (before, None):
            sets = Change((), was, after).sets
            old = NEW[Run] if was is None else was
            assert list(sets.items()) == [
                (name, new) for name, new, last in zip(Run._fields, after, old, strict=True) if new != last
            ]
        assert fold(None, Change((), None, after).sets) == after


def test_a_field_that_an_entity_does_not_have_is_refused_by_its_name() -> None:
    for kind in KINDS:
        with pytest.raises(TypeError, match=f"{kind.__name__} has no field nothing"):
            fold(None, {"nothing": 1}, kind)


def test_a_value_is_not_changed_in_a_field_that_it_does_not_have() -> None:
    with pytest.raises(TypeError, match="Run has no field nothing"):
        Run()._replace(nothing=1)
