"""Canonical JSON is RFC 8785, byte for byte."""

import enum
import math

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from oncemore.errors import UsageError
from oncemore.policy import canonical_json
from oncemore.policy.canonical_json import (
    MAX_DEPTH,
    CanonicalFragment,
    canonical_digest,
    encode_canonical,
    encode_fragment,
    exoarmur_key,
    format_number,
)

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


@pytest.mark.unmeasured
@given(plain)
def test_the_encoder_agrees_with_the_reference_package(value: object) -> None:
    assert encode_canonical(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(1e-9, 1e-3) | st.floats(1e14, 1e24))
def test_numbers_are_printed_as_ecmascript_prints_them(value: float) -> None:
    assert format_number(value).encode() == rfc8785.dumps(value)
    assert float(format_number(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"), (-0.0, "0"), (1e21, "1e+21"), (1e-7, "1e-7"), (1e-6, "0.000001"), (1.5e-6, "0.0000015"),
        (1e20, "100000000000000000000"), (2.0**60, "1152921504606847000"), (-1e-5, "-0.00001"),
        (-1.25e17, "-125000000000000000"), (5e-324, "5e-324"),
    ],
)  # fmt: skip
def test_the_edges_of_number_printing(value: float, text: str) -> None:
    assert format_number(value) == text


def test_keys_are_ordered_by_their_utf16_units() -> None:
    assert encode_canonical({"\ufb33": 1, "\U0001f600": 2}) == '{"\U0001f600":2,"\ufb33":1}'.encode()


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
def test_a_value_without_json_form_is_refused_with_its_path(value: object, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        encode_canonical(value)  # type: ignore[arg-type]
    assert where in str(caught.value)


def test_nesting_has_a_limit() -> None:
    for make in (lambda inner: [inner], lambda inner: {"a": inner}):
        value: object = 1
        for _ in range(MAX_DEPTH):
            value = make(value)
        encode_canonical(value)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="deep"):
            encode_canonical(make(value))  # type: ignore[arg-type]


def test_a_fragment_is_inserted_unchanged() -> None:
    part = {"b": 1.0, "a": "é"}
    assert type(encode_fragment(part)) is CanonicalFragment
    assert encode_canonical({"x": encode_fragment(part), "w": 1}) == encode_canonical({"x": part, "w": 1})


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_digest({"a": 1, "b": [True, None]}) == canonical_digest({"b": [True, None], "a": 1})
    assert len(canonical_digest({})) == 64


SAMPLE = ("kill_switch_update", "tenant-123", "corr-456", {"switch_name": "all_execution"})


@pytest.mark.req("IDEM-4")
def test_an_exoarmur_key_is_the_digest_of_sorted_json_or_of_the_printed_form() -> None:
    assert exoarmur_key(*SAMPLE) == "b4b6cd7399901d2f626be7417c244b3b5696478ff091bb108dbad2a55a2f0578"
    legacy = exoarmur_key(*SAMPLE, legacy=True)
    assert legacy == "d5923fa44a7b8d95a2a6ce83a85292c5e7a3243498ee9c86a0294ffcef01bb76"


def test_an_exoarmur_key_does_not_depend_on_order_at_any_depth() -> None:
    one, other = {"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 2, "c": 1}, "a": 1}
    assert exoarmur_key("op", additional_params=one) == exoarmur_key("op", additional_params=other)
    legacy = [exoarmur_key("op", additional_params=params, legacy=True) for params in (one, other)]
    assert legacy[0] != legacy[1], "the printed form sorts the outermost level only"


def test_missing_parts_of_an_exoarmur_key_count_as_empty() -> None:
    assert exoarmur_key("op") == exoarmur_key("op", "", "", {}) == exoarmur_key("op", None, None, None)
    parts = {
        exoarmur_key("op", "t"),
        exoarmur_key("op", None, "t"),
        exoarmur_key("op"),
        exoarmur_key("o", "p"),
    }
    assert len(parts) == 4


def test_a_member_of_a_string_enum_is_its_text() -> None:
    class Operation(enum.StrEnum):
        UPDATE = "kill_switch_update"

    assert exoarmur_key(Operation.UPDATE, *SAMPLE[1:], legacy=True) == exoarmur_key(*SAMPLE, legacy=True)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("params", "where"),
    [
        ({"a": [{"b": {1, 2}}]}, r"\$\.additional_params\.a\[0\]\.b: set has no JSON form"),
        ({"a": object()}, r"\$\.additional_params\.a: object has no JSON form"),
        ({"a": math.nan}, r"\$\.additional_params\.a: nan has no JSON form"),
        ({1: 2}, "the key 1 is not a string"),
        ([("a", 1)], "additional_params is .* it takes a mapping"),
    ],
)
def test_an_exoarmur_key_refuses_values_without_json_form(params: object, where: str, legacy: bool) -> None:
    with pytest.raises(UsageError, match=where):
        exoarmur_key("op", additional_params=params, legacy=legacy)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["operation", "tenant_id", "correlation_id"])
def test_an_exoarmur_key_refuses_ids_that_are_not_texts(field: str) -> None:
    with pytest.raises(UsageError, match=f"{field} is 0; it takes a string"):
        exoarmur_key(**{"operation": "op", field: 0})  # type: ignore[arg-type]


def test_the_cache_of_key_orders_is_bounded() -> None:
    for n in range(canonical_json._MAX_ORDERS + 10):
        encode_canonical({f"name-{n}": 1})
    assert len(canonical_json._order_cache) <= canonical_json._MAX_ORDERS
    wide = {f"{n:03}": n for n in range(canonical_json._MAX_ORDER_KEYS + 1)}
    assert encode_canonical(wide) == rfc8785.dumps(wide)  # type: ignore[arg-type]
    assert tuple(wide) not in canonical_json._order_cache
