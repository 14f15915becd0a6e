"""Classes of every kind, and steps that take them; their annotations are texts."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, auto
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Generic, NamedTuple, TypeVar

import attrs
import msgspec
import pydantic

import oncemore

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Access(Flag):
    READ = auto()
    WRITE = auto()


class Place(NamedTuple):
    lat: float
    lon: float = 0.0


Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Line:
    sku: str
    count: int = 1
    colour: Colour | None = None


@dataclass
class Order:
    number: int
    lines: list[Line] = field(default_factory=list)
    place: Place | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    total: int = field(init=False)
    cache: Any = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        self.total = sum(line.count for line in self.lines)


class Box(msgspec.Struct, rename="camel"):
    box_size: int
    lines: list[Line] = []


@attrs.frozen
class Parcel:
    _weight: float
    box: Box | None = None
    tags: tuple[str, ...] = ()


class Customer(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    site: pydantic.HttpUrl | None = None
    level: Level = Level.LOW
    lines: list[Line] = []


@dataclass
class Page(Generic[T]):
    items: list[T]
    cursor: str = ""


class Money:
    """A type that only a registered codec can store."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self) -> int:
        return hash(self.cents)


oncemore.register_type(Money, lambda money: money.cents, Money)

seen: list[Any] = []


@oncemore.step(effect="idempotent", name="typed.order")
def take_order(order: Order) -> Order:
    seen.append(order)
    return order


@oncemore.step(effect="pure", name="typed.page")
def turn_page(page: Page[Order], previous: Page[Order] | None = None) -> Page[Order]:
    return page


@oncemore.step(effect="idempotent", name="typed.any_of")
def take_any_of(
    value: Order
    | Box
    | Parcel
    | Customer
    | Place
    | Pair
    | Colour
    | Level
    | Access
    | Path
    | PurePosixPath
    | PureWindowsPath
    | Money
    | list[Line]
    | dict[Colour, Line]
    | tuple[Colour, Line]
    | frozenset[Line],
) -> Any:
    seen.append(value)
    return len(seen)


@oncemore.step(effect="idempotent", name="typed.flaky", policy="standard")
def fail_first(order: Order, *lines: Line, **places: Place) -> int:
    seen.append((order, lines, places))
    if oncemore.current().number == 1:
        order.lines.clear()
        raise oncemore.TransientError("once more")
    return len(order.lines) + len(lines) + len(places)


@oncemore.step(effect="idempotent", name="typed.move")
def move_file(source: Path, customer: Customer, price: Money, colour: Colour = Colour.RED) -> str:
    if not Path("repaired").exists():
        raise ValueError("a bug")
    return f"{source.name} {customer.name} {price.cents}"


def ask_provider(order: Order) -> Any:
    seen.append(order)
    return oncemore.applied(order)


@oncemore.step(effect="once", name="typed.once", reconcile=ask_provider)
def pay_once(order: Order) -> Order:
    raise ConnectionResetError("the answer is lost")


LINE = Line("a", 2, Colour.RED)
VALUES: dict[str, Any] = {
    "dataclass": Order(7, [LINE, Line("b")], Place(1.5), {"at": (1, 2)}),
    "struct": Box(3, [LINE]),
    "attrs": Parcel(1.0, Box(1), ("x",)),
    "pydantic": Customer(fullName="A", site=pydantic.HttpUrl("https://example.org/"), lines=[LINE]),
    "named tuple": Place(1.0, 2.0),
    "untyped named tuple": Pair(1, "x"),
    "enum": Colour.BLUE,
    "int enum": Level.LOW,
    "flag": Access.READ | Access.WRITE,
    "path": Path("/srv/data"),
    "pure path": PurePosixPath("a/b"),
    "windows path": PureWindowsPath("C:/a/b"),
    "registered": Money(1250),
    "list": [LINE, Line("b")],
    "mapping": {Colour.RED: LINE},
    "tuple": (Colour.RED, LINE),
    "frozenset": frozenset({LINE, Line("b")}),
}
