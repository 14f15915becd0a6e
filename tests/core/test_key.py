"""Canonical JSON is RFC 8785, byte for byte."""

import math

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from oncemore.core.key import DEEPEST, Fragment, canonical, digest, fragment, number
from oncemore.errors import UsageError

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(plain)
def test_it_writes_what_the_reference_package_writes(value: object) -> None:
    assert canonical(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(1e-9, 1e-3) | st.floats(1e14, 1e24))
def test_numbers_are_printed_as_ecmascript_prints_them(value: float) -> None:
    assert number(value).encode() == rfc8785.dumps(value)
    assert float(number(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"), (-0.0, "0"), (1e21, "1e+21"), (1e-7, "1e-7"), (1e-6, "0.000001"), (1.5e-6, "0.0000015"),
        (1e20, "100000000000000000000"), (2.0**60, "1152921504606847000"), (-1e-5, "-0.00001"),
        (-1.25e17, "-125000000000000000"), (5e-324, "5e-324"),
    ],
)  # fmt: skip
def test_the_edges_of_number_printing(value: float, text: str) -> None:
    assert number(value) == text


def test_keys_are_ordered_by_their_utf16_units() -> None:
    assert canonical({"\ufb33": 1, "\U0001f600": 2}) == '{"\U0001f600":2,"\ufb33":1}'.encode()


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {"b": math.nan}]}, "$.a[1].b: nan"),
        ({"a": 2**53}, "$.a: integers beyond"),
        ([{1}], "$[0]: set has no JSON form"),
        ({1: 2}, "$: the key 1 is not a string"),
        (-math.inf, "$: -inf"),
        ("\ud800", "half a surrogate"),
    ],
)
def test_what_has_no_form_is_refused_with_its_place(value: object, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        canonical(value)  # type: ignore[arg-type]
    assert where in str(caught.value)


def test_nesting_has_a_limit() -> None:
    for make in (lambda inner: [inner], lambda inner: {"a": inner}):
        value: object = 1
        for _ in range(DEEPEST):
            value = make(value)
        canonical(value)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="deep"):
            canonical(make(value))  # type: ignore[arg-type]


def test_a_fragment_stands_in_a_text_as_it_was_written() -> None:
    part = {"b": 1.0, "a": "é"}
    assert type(fragment(part)) is Fragment
    assert canonical({"x": fragment(part), "w": 1}) == canonical({"x": part, "w": 1})


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest({"a": 1, "b": [True, None]}) == digest({"b": [True, None], "a": 1})
    assert len(digest({})) == 64
