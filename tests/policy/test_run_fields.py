"""The fields that each attempt changes in a run: the fast functions agree with the general ones."""

import random

import pytest

from oncemore.log.entry_codec import changed_fields
from oncemore.log.record import KINDS, NEW, RecordChange, RunRecord, apply_header
from oncemore.steps.transitions import begin_attempt, end_attempt

TEXTS, NUMBERS = ("", "a", "b"), (0, 1, 2)


def some(chance: random.Random) -> RunRecord:
    """A run with random values in every field."""
    kinds = {str: TEXTS, int: NUMBERS, float: (0.0, 1.5, 2.5), bool: (False, True)}
    return RunRecord(*(chance.choice(kinds[type(usual)]) for usual in NEW[RunRecord]))


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


def test_a_started_attempt_sets_exactly_these_fields(chance: random.Random) -> None:
    for _ in range(200):
        run = some(chance)
        assert begin_attempt(run, "pure", "w", 7.0) == run._replace(
            state="RUNNING",
            effect="pure",
            fence=run.fence + 1,
            attempt=run.attempt + 1,
            attempt_count=run.attempt_count + 1,
            worker="w",
            started_at=7.0,
            reason="",
            held_for="",
            budget_debt=0.0,
        )


def test_a_finished_attempt_sets_these_fields_and_the_given_ones(chance: random.Random) -> None:
    for _ in range(200):
        run = some(chance)
        gone = {"state": "COMPLETE", "reason": "why", "worker": "", "held_for": ""}
        assert end_attempt(run, "COMPLETE", "why") == run._replace(**gone)
        assert end_attempt(run, "COMPLETE", "why", commit_version=9, budget_debt=1.5) == run._replace(
            **gone, commit_version=9, budget_debt=1.5
        )


def test_a_header_sets_what_differs_in_the_order_of_the_fields_and_folds_to_the_state(
    chance: random.Random,
) -> None:
    for _ in range(500):
        before, after = some(chance), some(chance)
        if chance.random() < 0.5:  # most changes are to the first fields alone
            upto = chance.randrange(len(after))
            after = RunRecord(*after[:upto], *before[upto:])
        for was in (before, None):
            sets = changed_fields(RecordChange((), was, after))
            old = NEW[RunRecord] if was is None else was
            assert list(sets.items()) == [
                (name, new)
                for name, new, last in zip(RunRecord._fields, after, old, strict=True)
                if new != last
            ]
        assert apply_header(None, changed_fields(RecordChange((), None, after))) == after


def test_a_field_that_an_entity_does_not_have_is_refused_by_its_name() -> None:
    for kind in KINDS:
        with pytest.raises(TypeError, match=f"{kind.__name__} has no field nothing"):
            apply_header(None, {"nothing": 1}, kind)


def test_a_value_is_not_changed_in_a_field_that_it_does_not_have() -> None:
    with pytest.raises(TypeError, match="RunRecord has no field nothing"):
        RunRecord()._replace(nothing=1)
