"""What is written as tagged JSON comes back equal, of the same type; keys do not depend on accidents."""

import math
import string
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.log.tagged_json import NotEncodable, TaggedEncoder, untag_value
from oncemore.policy.canonical_json import encode_canonical
from oncemore.steps.keys import argument_bytes, cfg_hash, input_hash, step_key

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text | st.binary(max_size=8)
    | st.decimals(allow_nan=False) | st.uuids() | st.dates() | st.datetimes() | st.times() | st.timedeltas()
    | st.datetimes(timezones=st.just(UTC))
    | st.datetimes(timezones=st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone))
)  # fmt: skip
hashable = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
values = st.recursive(
    scalars | st.sets(hashable, max_size=4) | st.frozensets(hashable, max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(text | st.sampled_from(["$int", "$map", "$x"]), inner, max_size=4)
    | st.dictionaries(hashable, inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


def same(one: object, other: object) -> bool:
    """Equal and of the same types all the way down (1 is not 1.0, True is not 1)."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))  # type: ignore[arg-type]
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))  # type: ignore[attr-defined]
    return one == other


@pytest.mark.unmeasured
@given(values)
def test_every_value_with_a_form_comes_back_the_same(value: object) -> None:
    plain = TaggedEncoder().tag_value(value, "it")
    assert same(untag_value(plain), value)


@pytest.mark.unmeasured
@given(values)
def test_the_keyed_form_is_canonical_json(value: object) -> None:
    try:
        plain = TaggedEncoder(keyed=True).tag_value(value, "it")
    except NotEncodable as fault:
        assert "inf" in str(fault) or "NFC" in str(fault)  # noqa: PT017 - the two reasons there are
        return
    encode_canonical(plain)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0], ids=repr)
def test_odd_floats_are_results_but_not_keys(value: float) -> None:
    assert repr(untag_value(TaggedEncoder().tag_value(value, "it"))) == repr(value)
    if value:
        with pytest.raises(NotEncodable, match="cannot be part of a key"):
            TaggedEncoder(keyed=True).tag_value(value, "it")


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


class Named(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, "it.a[1] is an object, which has no form in JSON"),
        (Point(1), "it is a Point"),
        (Colour.RED, "it is a Colour"),
        (Named("x"), "it is a Named"),
        (memoryview(b"x"), "it is a memoryview"),
        (lambda: 0, "it is a function"),
        ("\ud800", "it has half of a surrogate pair"),
        ({"\ud800": 1}, "a key of it has half"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith(("it", "a ")) else "",
)
def test_anything_else_is_refused_by_its_place(value: object, message: str) -> None:
    with pytest.raises(NotEncodable) as caught:
        TaggedEncoder().tag_value(value, "it")
    assert message in str(caught.value)


def test_nesting_is_bounded() -> None:
    value: object = 1
    for _ in range(150):
        value = [value]
    with pytest.raises(NotEncodable, match="nested more than 100 deep"):
        TaggedEncoder().tag_value(value, "it")


def test_a_tag_of_a_newer_version_is_not_guessed() -> None:
    with pytest.raises(NotEncodable, match=r"\$complex is not a tag of this version"):
        untag_value({"$complex": [1, 2]})


@pytest.mark.req("IDEM-1")
def test_equal_inputs_in_any_order_give_one_key_and_every_real_change_another() -> None:
    base = step_key("load", {"day": "2026-11-15", "sites": {"b": 2, "a": 1}}, partition="p1")
    assert base == step_key("load", {"sites": {"a": 1, "b": 2}, "day": "2026-11-15"}, partition="p1")
    others = [
        step_key("load", {"day": "2026-11-16", "sites": {"b": 2, "a": 1}}, partition="p1"),
        step_key("load", {"day": "2026-11-15", "sites": {"b": 2, "a": 1}}, partition="p2"),
        step_key("store", {"day": "2026-11-15", "sites": {"b": 2, "a": 1}}, partition="p1"),
        step_key("load", {"day": "2026-11-15", "sites": {"b": 2, "a": 1}}, partition="p1", tenant="t"),
        step_key("load", {"day": "2026-11-15", "sites": {"b": 2, "a": 1}}, partition="p1", bucket="h"),
    ]
    assert len({base, *others}) == 6
    assert len(base) == 64
    assert set(base) <= set(string.hexdigits.lower())


def test_values_that_only_look_alike_have_different_keys() -> None:
    alike = [
        1, 1.0, True, "1", b"1", Decimal(1), (1,), [1], {1}, frozenset({1}), {"1": 1}, {1: 1}, None,
        date(2026, 1, 1), datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01", time(1),
        timedelta(1), UUID(int=1), str(UUID(int=1)), 2**70, str(2**70), {"$int": str(2**70)},
    ]  # fmt: skip
    assert len({step_key("s", {"x": value}) for value in alike}) == len(alike)


def test_accidents_do_not_change_a_key() -> None:
    assert step_key("s", {"x": "e\u0301"}) == step_key("s", {"x": "\u00e9"})
    assert step_key("s", {"x": {3, 1, 2}}) == step_key("s", {"x": {2, 3, 1}})
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert step_key("s", {"x": noon}) == step_key("s", {"x": noon.astimezone(timezone(timedelta(hours=5)))})
    with pytest.raises(NotEncodable, match="two keys"):
        step_key("s", {"x": {"e\u0301": 1, "\u00e9": 2}})


def test_an_aware_time_keeps_its_offset_if_python_reads_it_back() -> None:
    for offset, text in (
        (timedelta(hours=1), "2026-01-01T12:00:00.000000+01:00"),
        (timedelta(0), "2026-01-01T12:00:00.000000Z"),
        (timedelta(seconds=30), "2026-01-01T12:00:00.000000+00:00:30"),
        (timedelta(microseconds=1), "2026-01-01T11:59:59.999999Z"),
    ):
        noon = datetime(2026, 1, 1, 12, tzinfo=timezone(offset))
        assert TaggedEncoder().tag_value(noon, "it") == {"$time": text}
        assert untag_value({"$time": text}) == noon


def test_a_refused_argument_is_named() -> None:
    with pytest.raises(NotEncodable, match="argument 'session' is an object"):
        step_key("s", {"session": object()})


def test_input_and_configuration_have_hashes_of_their_own() -> None:
    both, turned, one = (argument_bytes(each) for each in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}))
    assert input_hash(both) == input_hash(turned) != input_hash(one)
    assert cfg_hash("1", {"alpha": 0.1}) != cfg_hash("2", {"alpha": 0.1})
    assert cfg_hash("1", {"alpha": 0.1}) != cfg_hash("1", {"alpha": 0.2})
