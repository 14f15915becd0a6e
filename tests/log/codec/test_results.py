"""A result is encodable if and only if reading gives an equal value of the same type."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given

from oncemore.log import result_codec
from oncemore.log.entry_codec import PLAIN_TEXT_LENGTH, is_large, is_plain_result
from oncemore.log.result_codec import ResultCodec, encode_result, result_value
from oncemore.log.tagged_json import NotEncodable, untag_value
from tests.log.codec.test_tagged import same, values


def decode_result(data: Any, annotation: Any = None) -> Any:
    return ResultCodec(annotation).decode(msgspec.json.decode(data))


@pytest.mark.unmeasured
@given(values)
def test_results_come_back_the_same(value: object) -> None:
    assert same(decode_result(encode_result(value)), value)


@pytest.mark.parametrize("value", [None, 0, "", False, 0.0, [], {}, (), b""], ids=repr)
def test_nothing_and_falsy_results_are_results(value: object) -> None:
    assert same(decode_result(encode_result(value)), value)


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
    again = decode_result(ResultCodec(annotation).encode(value), annotation)
    assert type(again) is type(value)
    assert again == value


@dataclass
class Lossy:
    when: Any

    def __post_init__(self) -> None:
        self.when = str(self.when)


def test_what_an_encoding_would_change_is_refused() -> None:
    value = Lossy("")
    value.when = (1, 2)
    with pytest.raises(
        NotEncodable, match=r"the result changes when it is stored and read, at the result\.when"
    ):
        ResultCodec(Lossy).encode(value)
    with pytest.raises(
        NotEncodable, match="the result is an object, which has no form in JSON; return plain"
    ):
        ResultCodec(Report).encode(object())
    with pytest.raises(NotEncodable, match="the result is a Report, and the step's return has no annotation"):
        ResultCodec().encode(Report("x"))
    with pytest.raises(NotEncodable, match="the result is a function"):
        ResultCodec(Any).encode(lambda: 0)


def test_a_class_may_be_renamed_and_lose_a_field_after_its_result_was_stored() -> None:
    @dataclass
    class Summary:
        title: str

    data = ResultCodec(Report).encode(Report("x", [1]))
    assert ResultCodec(Summary).decode(data) == Summary("x")
    with pytest.raises(NotEncodable, match="read it through its step"):
        untag_value(msgspec.json.decode(data))
    with pytest.raises(NotEncodable, match="the step's return has no annotation"):
        ResultCodec().decode(data)


@pytest.mark.parametrize(
    ("plain", "annotation", "value"),
    [
        ({"title": "x", "rows": [1]}, Report, Report("x", [1])),
        ({"a": {"title": "x", "score": 1}}, dict[str, Struct], {"a": Struct("x", 1.0)}),
        ([1, "b"], Pair, Pair(1, "b")),
    ],
    ids=["dataclass", "mapping", "named tuple"],
)
def test_results_of_earlier_versions_are_still_read(plain: Any, annotation: Any, value: object) -> None:
    assert ResultCodec(annotation).decode({"$typed": plain}) == value
    for missing in (None, "Report"):
        with pytest.raises(NotEncodable, match="the step has none now"):
            ResultCodec(missing).decode({"$typed": plain})


def test_a_result_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_codec, "MAX_BYTES", 10)
    with pytest.raises(NotEncodable, match="takes 22 bytes; the limit is 10, write an artifact"):
        encode_result("x" * 20)


class Model(pydantic.BaseModel):
    title: str
    tags: list[str] = []


def test_pydantic_models_go_by_the_return_annotation() -> None:
    value = Model(title="x", tags=["a"])
    again = decode_result(ResultCodec(Model).encode(value), Model)
    assert type(again) is Model
    assert again == value
    assert ResultCodec(Model).decode({"$typed": {"title": "x", "tags": ["a"]}}) == value


def test_what_is_written_as_it_is_has_the_same_bytes_and_comes_back_as_it_was() -> None:
    for value in (
        None,
        True,
        False,
        0,
        -7,
        2**53 - 1,
        1 - 2**53,
        "",
        "plain",
        "$int",
        "x" * PLAIN_TEXT_LENGTH,
    ):
        assert is_plain_result(value)
        body = msgspec.json.encode({"result": value})
        assert body == msgspec.json.encode({"result": encode_result(value)})
        again = result_value(msgspec.json.decode(body)["result"])
        assert (type(again), again) == (type(value), value)
        assert not is_large(value)


def test_all_that_stands_for_something_else_or_may_be_large_is_written_out() -> None:
    class Text(str):
        """A text of its own kind."""

    class Number(int):
        """A number of its own kind."""

    for value in (
        2**53,
        -(2**53),
        1.0,
        float("nan"),
        "ä",
        "x" * (PLAIN_TEXT_LENGTH + 1),
        Text("a"),
        Number(1),
        [1],
        {},
    ):
        assert not is_plain_result(value)
