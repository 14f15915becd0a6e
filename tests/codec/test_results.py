"""A result is encodable if and only if reading gives an equal value of the same type."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given

from oncemore.log import result_codec
from oncemore.log.result_codec import SHORT, decode, encode, is_itself, large, value_of
from oncemore.log.tagged_json import NoForm
from tests.codec.test_tagged import same, values


@pytest.mark.unmeasured
@given(values)
def test_results_come_back_the_same(value: object) -> None:
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize("value", [None, 0, "", False, 0.0, [], {}, (), b""], ids=repr)
def test_nothing_and_falsy_results_are_results(value: object) -> None:
    assert same(decode(encode(value)), value)


@dataclass
class Report:
    title: str
    rows: list[int] = field(default_factory=list)


class Struct(msgspec.Struct):
    title: str
    score: float


class Pair(NamedTuple):
    a: int
    b: str


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Report("x", [1, 2]), Report),
        ([Report("x"), Report("y")], list[Report]),
        ({"a": Struct("x", 1.5)}, dict[str, Struct]),
        (Struct("x", 2.0), Struct),
        (Struct("x", 2.0), Struct | None),
        (Pair(1, "b"), Pair),
    ],
    ids=["dataclass", "list", "mapping", "struct", "optional", "named tuple"],
)
def test_typed_results_go_by_the_return_annotation(value: object, annotation: Any) -> None:
    again = decode(encode(value, annotation), annotation)
    assert type(again) is type(value)
    assert again == value


@dataclass
class Lossy:
    when: Any


def test_what_an_encoding_would_change_is_refused() -> None:
    with pytest.raises(NoForm, match="changes when it is stored as Lossy"):
        encode(Lossy((1, 2)), Lossy)
    with pytest.raises(NoForm, match="by its annotation Report neither"):
        encode(object(), Report)
    with pytest.raises(NoForm, match="the result is a Report"):
        encode(Report("x"))
    with pytest.raises(NoForm, match="the result is a function"):
        encode(lambda: 0, Any)


def test_typed_bytes_hold_fields_and_no_class_name_and_need_their_annotation() -> None:
    data = bytes(encode(Report("x"), Report))
    assert b"Report" not in data
    with pytest.raises(NoForm, match="no longer has"):
        decode(data)


def test_a_result_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_codec, "MOST_BYTES", 10)
    with pytest.raises(NoForm, match="takes 22 bytes; 10 is the most, write an artifact"):
        encode("x" * 20)


class Model(pydantic.BaseModel):
    title: str
    tags: list[str] = []


def test_pydantic_models_go_by_the_return_annotation() -> None:
    value = Model(title="x", tags=["a"])
    again = decode(encode(value, Model), Model)
    assert type(again) is Model
    assert again == value


def test_what_is_written_as_it_is_has_the_same_bytes_and_comes_back_as_it_was() -> None:
    for value in (None, True, False, 0, -7, 2**53 - 1, 1 - 2**53, "", "plain", "$int", "x" * SHORT):
        assert is_itself(value)
        body = msgspec.json.encode({"result": value})
        assert body == msgspec.json.encode({"result": encode(value)})
        again = value_of(msgspec.json.decode(body)["result"])
        assert (type(again), again) == (type(value), value)
        assert not large(value)


def test_all_that_stands_for_something_else_or_may_be_large_is_written_out() -> None:
    class Text(str):
        """A text of its own kind."""

    class Number(int):
        """A number of its own kind."""

    for value in (2**53, -(2**53), 1.0, float("nan"), "ä", "x" * (SHORT + 1), Text("a"), Number(1), [1], {}):
        assert not is_itself(value)
