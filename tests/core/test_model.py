"""Runs move by a table; values are frozen."""

import pickle

import pytest

from oncemore._values import Record, Value
from oncemore.classifiers.verdict import verdict
from oncemore.errors import IllegalMove
from oncemore.policy.model import EFFECTS, KINDS, MOVES, STATES, Failure, move
from oncemore.policy.policy import Policy

LEGAL = {
    ("PENDING", "RUNNING"), ("RUNNING", "SOFT_FAIL"), ("RUNNING", "HARD_FAIL"), ("RUNNING", "COMPLETE"),
    ("SOFT_FAIL", "RUNNING"), ("SOFT_FAIL", "HARD_FAIL"), ("PENDING", "COMPLETE"), ("SOFT_FAIL", "COMPLETE"),
    ("PENDING", "HARD_FAIL"),
}  # fmt: skip


@pytest.mark.req("STATE-2")
@pytest.mark.parametrize("to", STATES)
@pytest.mark.parametrize("state", STATES)
def test_only_the_legal_moves_succeed(state: str, to: str) -> None:
    if (state, to) in LEGAL:
        assert move(state, to) == to  # type: ignore[arg-type]
    else:
        with pytest.raises(IllegalMove, match=f"from {state} to {to}"):
            move(state, to)  # type: ignore[arg-type]


def test_every_state_has_its_row() -> None:
    assert set(MOVES) == set(STATES)
    assert {to for row in MOVES.values() for to in row} <= set(STATES)


@pytest.mark.parametrize("kind", KINDS)
def test_only_transient_and_throttled_failures_pass(kind: str) -> None:
    assert Failure(kind).passing is (kind in ("transient", "throttled"))  # type: ignore[arg-type]


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_may_have_happened_is_never_repeated_for_an_effect_that_must_not(kind: str, effect: str) -> None:
    standard = Policy()
    unsent = verdict(Failure(kind, "no"), standard, effect)  # type: ignore[arg-type]
    maybe = verdict(Failure(kind, "maybe"), standard, effect)  # type: ignore[arg-type]
    passing = kind in ("transient", "throttled")
    assert unsent == ("RETRYABLE" if passing else "TERMINAL")
    assert maybe == ("UNKNOWN" if effect == "once" else unsent)


def test_a_policy_says_what_to_do_with_the_unknown() -> None:
    unknown = Failure("permanent", "maybe", None, "EXC_Odd", "default:unmatched")
    assert verdict(unknown, Policy(), "idempotent") == "TERMINAL"
    assert verdict(unknown, Policy(unmatched="retry"), "idempotent") == "RETRYABLE"


def test_values_are_frozen_comparable_and_picklable() -> None:
    failure = Failure("transient", code="HTTP_503")
    assert failure == Failure("transient", "maybe", None, "HTTP_503", "")
    assert pickle.loads(pickle.dumps(failure)) == failure  # noqa: S301 - our own bytes
    with pytest.raises(AttributeError):
        failure.code = "x"  # type: ignore[misc]
    assert isinstance(failure, tuple)
    assert Value is not None


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        (("transient",) * 6, {}, "each once"),
        (("transient",), {"kind": "conflict"}, "each once"),
        ((), {"colour": "red"}, "each once"),
        ((), {"sent": "no"}, "Failure needs kind"),
    ],
)
def test_a_value_takes_its_fields_once_by_place_or_name(
    values: tuple[str, ...], named: dict[str, str], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        Failure(*values, **named)  # type: ignore[arg-type]
    match Failure("conflict", code="X"):
        case Failure(kind, _, None, code):
            assert (kind, code) == ("conflict", "X")
    assert repr(Failure("conflict")) == (
        "Failure(kind='conflict', sent='maybe', retry_after=None, code='', rule='')"
    )


def test_records_are_frozen_comparable_and_picklable() -> None:
    policy = Policy("p", max_attempts=4)
    assert policy == Policy("p", max_attempts=4)
    assert policy != Policy("p", max_attempts=5)
    assert policy != "p"
    assert hash(policy) == hash(Policy("p", max_attempts=4))
    assert pickle.loads(pickle.dumps(policy)) == policy  # noqa: S301 - our own bytes
    assert "max_attempts=4" in repr(policy)
    with pytest.raises(AttributeError, match="frozen"):
        policy.max_attempts = 5
    assert policy.replaced(max_attempts=9).max_attempts == 9
    assert isinstance(policy, Record)
