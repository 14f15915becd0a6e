"""Values with classes: every kind of annotation, what changed since, and types that a program registers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, make_dataclass
from enum import Enum, Flag, FlagBoundary
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from typing_extensions import TypeAliasType

import oncemore
from oncemore.log.annotations import describe_annotation, expand_annotation, field_annotations
from oncemore.log.plain_conversion import convert_plain
from oncemore.log.tagged_json import NotEncodable, TaggedEncoder, untag_value
from oncemore.log.type_registry import RegisteredType, find_registered
from oncemore.log.typed_values import TypedEncoder, ValueCodec

T = TypeVar("T")


def codec_of(annotation: Any, **options: Any) -> ValueCodec:
    return ValueCodec("it", annotation, place="its parameter", advice="", **options)


def again(value: Any, annotation: Any) -> Any:
    """Return a value after a way through JSON."""
    codec = codec_of(annotation)
    return codec.decode(msgspec.json.decode(msgspec.json.encode(codec.encode(value))))


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


S = TypeVar("S", bound=Point)


class Colour(Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796 - another name of it
    BLUE = 2


class Access(Flag):
    READ = 1
    WRITE = 4


class Options(TypedDict, total=False):
    point: Point
    name: str


PointId = NewType("PointId", Point)


@dataclass
class Box(Generic[T]):
    content: T
    more: list[T] = field(default_factory=list)


@dataclass
class PointBox(Box[Point]):
    label: str = ""


@dataclass
class Outer(Box[list[T]], Generic[T]):
    inner: T | None = None


class Bounded(NamedTuple):
    point: Optional[Point] = None  # noqa: UP045 - the older spelling


P, Q = Point(1), Point(2, 3)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (P, Point | None),
        (P, Union[int, Point]),  # noqa: UP007 - the older spelling
        (P, Annotated[Point, "unit"]),
        (P, Final[Point]),
        (P, PointId),
        (P, S),
        (P, TypeVar("Either", int, Point)),
        ([P, 1], list[Point | int]),
        ([P], Sequence[Point]),
        ((P, Q), tuple[Point, ...]),
        ((1, P), tuple[int, Point]),
        ((P,), Iterable[Point]),
        ({P}, set[Point]),
        (frozenset({P}), frozenset[Point] | None),
        ({"a": P}, Mapping[str, Point]),
        ({P: [Q]}, dict[Point, list[Point]]),
        ({"$a": P}, dict[str, Point]),
        ({"point": P, "name": "x"}, Options),
        (Box(P, [Q]), Box[Point]),
        (PointBox(P, [Q], "x"), PointBox),
        (Outer([P], [[Q]], P), Outer[Point]),
        (Bounded(P), Bounded),
        (Colour.CRIMSON, Literal[Colour.RED, "x"]),
        (Access.READ | Access.WRITE, Access),
        (Access(0), Access),
        ([P, Colour.BLUE, {"deep": (P,)}], list[Point | Colour | dict[str, tuple[Point]]]),
    ],
    ids=str,
)
def test_every_kind_of_annotation_reads_the_same_value(value: Any, annotation: Any) -> None:
    read = again(value, annotation)
    assert type(read) is type(value)
    assert read == value
    assert repr(read) == repr(value)


def test_type_aliases_are_followed() -> None:
    many = TypeAliasType("many", list[T], type_params=(T,))
    points = TypeAliasType("points", many[Point])  # type: ignore[valid-type]
    assert again([P], points) == [P]
    assert again([P], many[Point]) == [P]


def test_annotations_that_say_nothing_have_no_alternatives() -> None:
    assert [expand_annotation(each) for each in (None, Any, object, T, Literal["x"])] == [[], [], [], [], []]
    assert describe_annotation(list[int]) == "the annotation list[int]"
    assert "at run time" in describe_annotation(expand_annotation(list["Missing"])[0].__args__[0])  # type: ignore[name-defined] # noqa: F821


def test_a_class_whose_module_is_gone_still_has_its_fields() -> None:
    gone = make_dataclass("Gone", [("a", int)], namespace={"__module__": "gone.away"})
    assert again(gone(1), gone) == gone(1)
    assert field_annotations(int, {}) == {}


@attrs.define
class Sealed:
    a: int
    state: int = attrs.field(init=False, default=0)
    cache: Any = attrs.field(init=False, eq=False, default=None)
    typed: Any = attrs.field(default=None, type=None)


@dataclass
class Job:
    name: str
    tries: int = field(default=0, init=False)
    unset: int = field(init=False)


@pydantic.dataclasses.dataclass
class Checked:
    a: int
    b: int = pydantic.Field(default=5)


def test_what_a_constructor_does_not_take_is_set_afterwards() -> None:
    sealed, job = Sealed(1), Job("x")
    sealed.state, sealed.cache, job.tries = 3, object(), 2
    assert again(sealed, Sealed).state == 3
    assert again(job, Job).tries == 2
    assert not hasattr(again(job, Job), "unset")
    assert again(Checked(1), Checked) == Checked(1)
    keyed = TypedEncoder(keyed=True)
    assert keyed.tag_value(Checked(1), "it") == {"$object": ["Checked", {"a": 1}]}
    assert keyed.tag_value(Job("x"), "it") == {"$object": ["Job", {"name": "x"}]}


@dataclass
class Seeded:
    a: int
    seed: InitVar[int]


class Custom(list[int]):
    pass


@dataclass
class Content(Custom):
    a: int = 0


class Plain(tuple[int]):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "annotation", "says"),
    [
        (Seeded(1, 2), Seeded, "cannot be built again as a Seeded from its fields: TypeError"),
        (Content(1), Content, "it is a Content, which has no form"),
        (Plain((1,)), Plain, "it is a Plain, which has no form"),
        (Point, type, "it is a type, which has no form"),
    ],
    ids=str,
)
def test_what_cannot_be_built_again_is_refused(value: Any, annotation: Any, says: str) -> None:
    with pytest.raises(NotEncodable, match=says):
        codec_of(annotation).encode(value)


class Flags(Flag, boundary=FlagBoundary.KEEP):
    ONE = 1


def test_a_flag_with_bits_that_have_no_name_is_refused() -> None:
    with pytest.raises(NotEncodable, match="has bits without a name in Flags"):
        codec_of(Flags).encode(Flags(6))


def test_a_deep_value_is_refused_and_not_a_fault_of_recursion() -> None:
    value = Box(1)
    for _ in range(40):
        value = Box(value)  # type: ignore[arg-type]
    with pytest.raises(NotEncodable, match="nested more than 100 deep"):
        codec_of(Box).encode(value)


def test_what_the_code_does_not_have_any_more_is_named() -> None:
    plain = codec_of(Colour).encode(Colour.BLUE)
    with pytest.raises(NotEncodable, match=r"it is Colour\.BLUE, which Less does not have"):
        codec_of(Enum("Less", ["RED"])).decode(plain)
    plain = codec_of(Point).encode(Q)
    with pytest.raises(NotEncodable, match="it was stored with y, which Line does not have here"):
        codec_of(make_dataclass("Line", ["x"])).decode(plain)
    line = make_dataclass("Line", ["x"])
    assert codec_of(line, is_lenient=True).decode(plain) == line(2)
    with pytest.raises(NotEncodable, match="it is a Point, and its parameter has the annotation int"):
        codec_of(int).decode(plain)


@dataclass
class Switch:
    is_on: Any
    mark: Any = object

    def __post_init__(self) -> None:
        self.is_on, self.mark = bool(self.is_on), ""


@dataclass
class Trimmed:
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        self.words = tuple(word.strip() for word in self.words)


@dataclass
class Doubling:
    rows: list[int | Rounded]

    def __post_init__(self) -> None:
        self.rows = [*self.rows, *self.rows[2:]]


@dataclass
class Rounded:
    values: list[float]
    names: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = [round(value, 1) for value in self.values]
        self.names = {name: round(value, 1) for name, value in self.names.items()}


def test_the_place_of_a_change_is_named() -> None:
    rounded, named, nested, switched = Rounded([]), Rounded([]), Doubling([Rounded([])]), Switch(True)
    rounded.values, named.names, nested.rows[0].values, switched.is_on = [0.5, 1.25], {"a": 1.25}, [1.25], 1
    trimmed = Trimmed(("a",))
    trimmed.words = ("a", " b")
    for value, place in (
        (trimmed, r"it\.words\[1\]"),
        (rounded, r"it\.values\[1\]"),
        (named, r"it\.names\.a"),
        (Doubling([1, 2, 3]), r"it\.rows"),
        (nested, r"it\.rows\[0\]\.values\[0\]"),
        (switched, r"it\.is_on"),
    ):
        with pytest.raises(NotEncodable, match=f"changes when it is stored and read, at {place}: its class"):
            codec_of(type(value)).encode(value)
    assert "mark" in TypedEncoder(keyed=True).tag_value(Switch(True), "it")["$object"][1]  # type: ignore[index,call-overload]


class Url(pydantic.BaseModel):
    url: pydantic.HttpUrl
    any: Any = None


class Loose(pydantic.BaseModel, extra="allow"):
    a: int = 1
    _used: int = pydantic.PrivateAttr(default=0)


def test_models_write_what_only_they_can_read() -> None:
    value = Url(url=pydantic.HttpUrl("https://example.org/"))
    assert again(value, Url) == value
    assert TypedEncoder(keyed=True).tag_value(value, "it") == {
        "$object": ["Url", {"url": {"$dumped": "https://example.org/"}}]
    }
    with pytest.raises(NotEncodable, match=r"it\.any is an object"):
        codec_of(Url).encode(Url(url=value.url, any=object()))
    loose = Loose(a=2, other=[1])  # type: ignore[call-arg]
    assert again(loose, Loose) == loose
    with pytest.raises(NotEncodable, match="no annotation says which class"):
        codec_of(Loose).encode(Loose(other=P))  # type: ignore[call-arg]


# Registered types ---------------------------------------------------------------------------------------


class Money:
    def __init__(self, cents: Any) -> None:
        self.cents = cents


class Euro(Money):
    pass


class Odd:
    pass


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncemore.log import type_registry

    monkeypatch.setattr(type_registry, "_BY_CLASS", {})
    monkeypatch.setattr(type_registry, "_BY_NAME", {})


def write(money: Money) -> Any:
    return money.cents


def test_a_registered_type_is_read_by_its_name() -> None:
    oncemore.register_type(Money, write, Money, name="money")
    plain = TaggedEncoder().tag_value({"price": Money(5)}, "it")
    assert plain == {"price": {"$registered": ["money", 5]}}
    assert untag_value(plain)["price"].cents == 5
    with pytest.raises(NotEncodable, match="it is an Euro, which has no form"):
        TaggedEncoder().tag_value(Euro(5), "it")
    with pytest.raises(NotEncodable, match=r"'coin', which is not registered.*oncemore\.register_type"):
        untag_value({"$registered": ["coin", 5]})
    assert convert_plain({"a": 5}, dict[str, Money])["a"].cents == 5
    assert convert_plain("5", Money, exact=False).cents == 5
    assert convert_plain("five", Money, exact=False).cents == "five"
    with pytest.raises(msgspec.ValidationError):
        convert_plain(5, Odd)


def test_a_codec_that_changes_a_value_or_raises_is_refused_by_name() -> None:
    oncemore.register_type(Money, write, Money)
    oncemore.register_type(Euro, write, lambda cents: Euro(cents + 1))
    oncemore.register_type(Odd, lambda odd: 0, lambda plain: 0)
    for value, says in (
        (Money(object()), "it is a Money, and its registered codec raised NotEncodable"),
        (Euro(1), "it is an Euro, and its registered codec changes it"),
        (Odd(), "it is an Odd, and its registered codec changes it"),
    ):
        for keyed in (True, False):
            with pytest.raises(NotEncodable, match=says):
                TaggedEncoder(keyed=keyed).tag_value(value, "it")


def test_a_type_is_registered_once_under_a_name_of_its_own() -> None:
    oncemore.register_type(Money, write, Money)
    oncemore.register_type(Money, write, Money)
    for codec in (lambda money: money.cents, lambda money: (money.cents,)):
        with pytest.raises(oncemore.UsageError, match="is registered as 'Money' with another codec"):
            oncemore.register_type(Money, codec, Money)
    with pytest.raises(oncemore.UsageError, match="with another codec"):
        oncemore.register_type(Money, write, Money, name="other")
    with pytest.raises(oncemore.UsageError, match="under a name of its own"):
        oncemore.register_type(Euro, write, Euro, name="Money")
    oncemore.register_type(Euro, write, Euro)
    assert find_registered(Euro) == RegisteredType(Euro, "Euro", write, Euro)


def test_a_reloaded_module_registers_its_types_again() -> None:
    def load() -> Any:
        names: dict[str, Any] = {"__name__": "shop", "oncemore": oncemore}
        exec(  # noqa: S102 - as a reload does
            "class Coin:\n    def __init__(self, cents): self.cents = cents\n"
            "oncemore.register_type(Coin, lambda coin: coin.cents, Coin)",
            names,
        )
        return names["Coin"]

    load()
    coin = load()
    assert type(untag_value({"$registered": ["Coin", 1]})) is coin
    rate = 2
    with pytest.raises(oncemore.UsageError, match="with another codec"):
        oncemore.register_type(coin, lambda value: value.cents * rate, coin)


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        ((1, write, Money), {}, "takes a class, not 1"),
        ((Money, 1, Money), {}, r"encode of register_type\(Money\) is 1"),
        ((Money, write, None), {}, r"decode of register_type\(Money\) is None"),
        ((Money, write, Money), {"name": ""}, "takes a text of 1 to 200"),
        ((Money, write, Money), {"name": 1}, "takes a text of 1 to 200"),
        ((int, write, Money), {}, "int has a form in the log already"),
        ((dict, write, Money), {}, "dict has a form in the log already"),
    ],
)
def test_a_registration_is_checked(arguments: Any, options: Any, says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        oncemore.register_type(*arguments, **options)


def test_a_registered_dataclass_uses_its_codec() -> None:
    oncemore.register_type(Point, lambda point: [point.x, point.y], lambda plain: Point(*plain))
    assert TypedEncoder(keyed=True).tag_value(P, "it") == {"$registered": ["Point", [1, 0]]}
    assert again([P], list) == [P]
    assert again(Box(P), Box) == Box(P)
    default = make_dataclass("Holder", [("point", Point, field(default_factory=Point))])
    assert TypedEncoder(keyed=True).tag_value(default(P), "it")["$object"][1] != {}  # type: ignore[index,call-overload]
