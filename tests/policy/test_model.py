"""The state transitions of runs, and frozen values."""

import pickle

import pytest

from oncemore._values import FrozenRecord, Value
from oncemore.errors import IllegalTransition
from oncemore.policy.model import EFFECTS, KINDS, STATES, TRANSITIONS, Failure, check_transition
from oncemore.policy.policy import Policy
from oncemore.policy.verdict import decide_verdict

LEGAL = {
    ("PENDING", "RUNNING"), ("RUNNING", "SOFT_FAIL"), ("RUNNING", "HARD_FAIL"), ("RUNNING", "COMPLETE"),
    ("SOFT_FAIL", "RUNNING"), ("SOFT_FAIL", "HARD_FAIL"), ("PENDING", "COMPLETE"), ("SOFT_FAIL", "COMPLETE"),
    ("PENDING", "HARD_FAIL"), ("RUNNING", "PENDING"),
}  # fmt: skip


@pytest.mark.req("STATE-2")
@pytest.mark.parametrize("to", STATES)
@pytest.mark.parametrize("state", STATES)
def test_only_allowed_transitions_succeed(state: str, to: str) -> None:
    if (state, to) in LEGAL:
        assert check_transition(state, to) == to  # type: ignore[arg-type]
    else:
        with pytest.raises(IllegalTransition, match=f"from {state} to {to}"):
            check_transition(state, to)  # type: ignore[arg-type]


def test_every_state_has_its_row() -> None:
    assert set(TRANSITIONS) == set(STATES)
    assert {to for row in TRANSITIONS.values() for to in row} <= set(STATES)


@pytest.mark.parametrize("kind", KINDS)
def test_only_transient_and_throttled_failures_may_pass(kind: str) -> None:
    assert Failure(kind).may_pass is (kind in ("transient", "throttled"))  # type: ignore[arg-type]


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_once_step_that_may_have_taken_effect_is_unknown(kind: str, effect: str) -> None:
    standard = Policy()
    unsent = decide_verdict(Failure(kind, "no"), standard, effect)  # type: ignore[arg-type]
    maybe = decide_verdict(Failure(kind, "maybe"), standard, effect)  # type: ignore[arg-type]
    passing = kind in ("transient", "throttled")
    assert unsent == ("RETRYABLE" if passing else "TERMINAL")
    assert maybe == ("UNKNOWN" if effect == "once" else unsent)


def test_unmatched_decides_about_unknown_failures() -> None:
    unknown = Failure("permanent", "maybe", None, "EXC_Odd", "default:unmatched")
    assert decide_verdict(unknown, Policy(), "idempotent") == "TERMINAL"
    assert decide_verdict(unknown, Policy(unmatched="retry"), "idempotent") == "RETRYABLE"


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
def test_a_value_takes_its_fields_once_by_position_or_name(
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
    assert policy.copy_with(max_attempts=9).max_attempts == 9
    assert isinstance(policy, FrozenRecord)


def test_a_frozen_record_refuses_a_field_that_it_does_not_have() -> None:
    class Point(FrozenRecord):
        __slots__ = ("x", "y")

        def __init__(self, **values: int) -> None:
            self.set_fields(**values)

    assert repr(Point(x=1, y=2)).endswith("Point(x=1, y=2)")
    with pytest.raises(TypeError, match="Point has no field z, t"):
        Point(x=1, y=2, z=3, t=4)
    with pytest.raises(KeyError, match="y"):
        Point(x=1)
