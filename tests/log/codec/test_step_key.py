"""The short way of making a key's bytes gives the same bytes as the long one."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.policy.canonical_json import LARGEST_INTEGER, canonical_digest, encode_canonical
from oncemore.steps.keys import are_plain_json, argument_bytes, input_hash, step_key, tagged_arguments

VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.text(alphabet=string.printable + "\x00\x1f\x7f")
)
NAMES = st.text(alphabet=string.ascii_letters + "_é", min_size=1, max_size=8)


@pytest.mark.unmeasured
@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_both_ways_give_the_same_bytes(arguments: dict[str, object]) -> None:
    assert argument_bytes(arguments) == encode_canonical(tagged_arguments(arguments)[0])
    assert input_hash(argument_bytes(arguments)) == canonical_digest(tagged_arguments(arguments)[0])


def test_the_short_way_is_taken_for_what_is_its_own_form_only() -> None:
    assert are_plain_json({"a": "x", "b": 1, "c": True, "d": None, "e": -LARGEST_INTEGER})
    for value in (1.5, 1.0, LARGEST_INTEGER + 1, "é", [1], {"x": 1}, (1,), b"x"):
        assert not are_plain_json({"a": value})
    assert not are_plain_json({"é": 1})


def test_a_key_is_the_digest_of_all_its_parts() -> None:
    whole = {"step": "s", "args": {"a": 1}, "partition": "p", "tenant": "t", "bucket": "b"}
    assert step_key("s", {"a": 1}, partition="p", tenant="t", bucket="b") == canonical_digest(whole)
