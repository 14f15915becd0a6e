"""What goes along with a call: nested values, what is left out, and what is refused."""

import datetime
from typing import Any

import pytest

import oncemore
from oncemore.steps.context import CONTEXT, CallContext

LATER = datetime.datetime(2027, 1, 15, 8, tzinfo=datetime.UTC)


def test_what_is_left_out_stays_as_it_is_around_it() -> None:
    assert CONTEXT.get() == CallContext()
    with oncemore.context(tenant="acme", actor="ada") as outer:
        with oncemore.context(correlation_id="c-1", deadline=LATER, trace_id="t-1") as inner:
            assert inner == CallContext("acme", "c-1", 1_800_000_000.0, "ada", "t-1") == CONTEXT.get()
            with oncemore.context(tenant="umbrella", actor="bob"):
                assert CONTEXT.get() == CallContext("umbrella", "c-1", 1_800_000_000.0, "bob", "t-1")
        assert CONTEXT.get() == outer == CallContext("acme", "", 0.0, "ada")
    assert CONTEXT.get() == CallContext()


def test_an_inner_deadline_can_only_be_earlier() -> None:
    with oncemore.context(deadline=2_000.0):
        with oncemore.context(deadline=3_000):
            assert CONTEXT.get().deadline == 2_000.0
        with oncemore.context(deadline=1_000):
            assert CONTEXT.get().deadline == 1_000.0
        with oncemore.context(tenant="acme"):
            assert CONTEXT.get().deadline == 2_000.0


def test_it_is_over_when_the_block_raises() -> None:
    with pytest.raises(ZeroDivisionError), oncemore.context(tenant="acme"):
        _ = 1 / 0
    assert CONTEXT.get() == CallContext()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"tenant": ""}, "tenant is ''; it takes a text of 1 to 200 characters"),
        ({"tenant": 5}, "tenant is 5"),
        ({"correlation_id": "x" * 201}, "correlation_id is 'xxx"),
        ({"actor": b"ada"}, "actor is b'ada'"),
        ({"deadline": True}, "deadline is True; it takes an aware datetime, or POSIX seconds"),
        ({"deadline": datetime.datetime(2027, 1, 1)}, "it takes an aware datetime"),
        ({"deadline": "tomorrow"}, "deadline is 'tomorrow'"),
        ({"deadline": 0}, "deadline is 0;"),
        ({"deadline": float("nan")}, "deadline is nan"),
        ({"deadline": float("inf")}, "deadline is inf"),
        ({"deadline": datetime.date(2027, 1, 1)}, "it takes an aware datetime"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_its_name(values: dict[str, Any], says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says), oncemore.context(**values):
        pytest.fail("it was taken")
