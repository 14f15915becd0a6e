"""Arguments with classes: keys that stay, the same values in another process, and what is refused by name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field, make_dataclass
from datetime import date
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oncemore
from oncemore.outbox import OutboxRelay
from oncemore.steps.keys import step_key
from oncemore.testing import FakeClock, instant_waits
from tests.steps import typed_models
from tests.steps.colours import on_sqlite
from tests.steps.typed_models import (
    LINE,
    VALUES,
    Box,
    Colour,
    Customer,
    Line,
    Money,
    Order,
    Page,
    Place,
    fail_first,
    move_file,
    pay_once,
    seen,
    take_any_of,
    take_order,
    turn_page,
)

MODULE = "tests.steps.typed_models"
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def run_oncemore(*words: str) -> Any:
    """Run a command in another process, and return the JSON that it prints."""
    command = (sys.executable, "-m", "oncemore", *words, "--store", "log.db", "--json")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


# The same values everywhere -----------------------------------------------------------------------------


def test_a_step_takes_what_another_step_returns(engine: oncemore.Engine) -> None:
    order = VALUES["dataclass"]
    first = take_order(order)
    second = take_order(first)
    assert second == order
    assert type(second.lines[0]) is Line
    assert turn_page(Page([second], "next")) == turn_page(turn_page(Page([order], "next")))
    assert len(seen) == 1


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_worker_gets_an_equal_value_of_the_same_class(value: Any, engine: oncemore.Engine) -> None:
    run = take_any_of.submit(value)
    oncemore.Worker(engine, [take_any_of]).run_until_idle()
    (given_value,) = seen
    assert type(given_value) is type(value)
    assert given_value == value
    assert take_any_of.key(given_value) == take_any_of.key(value) == run.key
    assert take_any_of(value) == 1


def test_a_later_attempt_starts_from_the_recorded_value(engine: oncemore.Engine) -> None:
    with instant_waits():
        assert fail_first(Order(1, [LINE]), Line("x"), here=Place(1.0)) == 3
    # The first attempt has changed its argument.
    assert seen[1] == (Order(1, [LINE]), (Line("x"),), {"here": Place(1.0)})


def test_reconcile_and_map_get_the_value(engine: oncemore.Engine) -> None:
    order = Order(5, [LINE])
    with instant_waits():
        assert pay_once(order) == order
        assert seen == [order]
        assert take_order.map([order, Order(6)]).values == [order, Order(6)]


@on_sqlite
def test_another_process_runs_shows_and_replays_what_this_one_submitted(engine: oncemore.Engine) -> None:
    order = Order(7, [LINE], Place(1.5))
    run = take_order.submit(order)
    page = turn_page.run(Page([order]))
    run_oncemore("worker", MODULE, "--drain")
    assert take_order(order) == order
    assert seen == []
    name, fields = run_oncemore("show", run.run_id)["arguments"]["order"]["$object"]
    assert (name, fields["number"]) == ("Order", 7)
    (replayed,) = run_oncemore("replay", page.run_id, "--verify", "--module", MODULE)["verified"]
    assert replayed["verdict"] == "equal"


@on_sqlite
def test_the_command_line_submits_and_reruns_typed_work(engine: oncemore.Engine) -> None:
    work = f"{MODULE}:move_file"
    words = ("source=/srv/a.txt", 'customer={"fullName": "A", "level": 1}', "price=1250", "colour=red")
    run = run_oncemore("runs", "submit", work, *words)
    customer = Customer(fullName="A")
    assert run["key"] == move_file.key(Path("/srv/a.txt"), customer, Money(1250))
    run_oncemore("worker", MODULE, "--drain")
    assert move_file.last_run(Path("/srv/a.txt"), customer, Money(1250)).status == "HARD_FAIL"
    Path("repaired").touch()
    run_oncemore("runs", "rerun", MODULE, "--run", run["run_id"], "--reason", "repaired")
    assert move_file(Path("/srv/a.txt"), customer, Money(1250)) == "a.txt A 1250"


def test_the_first_parameter_of_a_method_is_of_its_class(engine: oncemore.Engine) -> None:
    @dataclass
    class Shop:
        town: str

        @oncemore.step(effect="idempotent", name="typed.sell")
        def sell(self, order: Order) -> str:
            return f"{self.town} {order.number}"

    Shop("here").sell.submit(Order(1))
    oncemore.Worker(engine, [Shop.sell]).run_until_idle()
    assert Shop.sell.last_run(Shop("here"), Order(1)).value == "here 1"


def test_classes_of_functions_are_found_though_their_annotations_are_texts(engine: oncemore.Engine) -> None:
    @dataclass
    class Leaf:
        name: str

    @dataclass
    class Tree:
        leaves: list[Leaf]
        parent: Tree | None = None

    @oncemore.step(effect="idempotent")
    def plant(tree: Tree) -> Tree:
        return tree

    tree = Tree([Leaf("a")], Tree([]))
    plant.submit(tree)
    oncemore.Worker(engine, [plant]).run_until_idle()
    assert plant(tree) == tree


# Keys ---------------------------------------------------------------------------------------------------


def key_of(value: object) -> str:
    return step_key("s", {"x": value})


def test_keys_of_values_that_were_always_accepted_stay() -> None:
    """The two keys were computed before arguments could have classes."""
    assert key_of(1) == "f787eac77078a7fcf3487f25adb8b2645658073e7767e94521a49f69c1fb2c1b"
    nested = [1, 2.0, (True, b"x"), {"b": {1: "ä"}}]
    assert key_of(nested) == "5cdf49b1fb6f3cd977ca9c1685be76d2adb34410421b091ae903e4b9148b217e"


def test_keys_do_not_depend_on_field_order_module_or_kind() -> None:
    one = make_dataclass("Item", [("a", int), ("b", str)], namespace={"__module__": "shop"})
    turned = make_dataclass("Item", [("b", str), ("a", int)], namespace={"__module__": "shop.items"})
    struct = msgspec.defstruct("Item", [("a", int), ("b", str)])
    keys = {key_of(kind(a=1, b="x")) for kind in (one, turned, struct)}
    assert len(keys) == 1


def test_two_types_with_equal_fields_are_different_arguments() -> None:
    one, other = make_dataclass("One", ["a"]), make_dataclass("Other", ["a"])
    keys = {key_of(value) for value in (one(1), other(1), {"a": 1}, [1], one(1.0), one(True))}
    assert len(keys) == 6
    assert len({key_of(value) for value in (Colour.RED, "red", "RED", Path("RED"))}) == 4


@attrs.define
class AttrsItem:
    a: int
    b: int = 5
    c: list[int] = attrs.field(factory=list)
    d: Any = attrs.Factory(lambda self: self.a, takes_self=True)


class StructItem(msgspec.Struct):
    a: int
    b: int = 5
    c: list[int] = []
    d: Line = msgspec.field(default_factory=lambda: Line("x"))


class ModelItem(pydantic.BaseModel):
    a: int
    b: int = 5
    c: list[int] = pydantic.Field(default_factory=list)
    d: list[str] = ["x"]


@pytest.mark.parametrize("kind", [AttrsItem, StructItem, ModelItem])
def test_fields_with_their_declared_defaults_are_left_out_of_the_key(kind: Any) -> None:
    renamed = make_dataclass(kind.__name__, ["a"])
    rest = {} if kind is ModelItem else {"d": kind(a=1).d}
    if rest:
        renamed = make_dataclass(kind.__name__, ["a", "d"])
    assert key_of(kind(a=1)) == key_of(renamed(a=1, **rest))
    assert key_of(kind(a=1)) == key_of(kind(a=1, b=5, c=[]))
    assert key_of(kind(a=1)) != key_of(kind(a=1, b=6))
    assert key_of(kind(a=1)) != key_of(kind(a=1, c=[0]))


def test_a_class_that_gained_fields_with_defaults_keeps_its_keys() -> None:
    sub = make_dataclass("Sub", [("x", int, field(default=1))])
    old = make_dataclass("Item", ["a"])
    new = make_dataclass(
        "Item",
        [
            "a",
            ("flag", bool, field(default=True)),
            ("rows", list, field(default_factory=list)),
            ("sub", sub, field(default_factory=sub)),
            ("marker", object, field(default=make_dataclass)),
        ],
    )
    assert key_of(old(1)) == key_of(new(1))
    assert key_of(old(1)) != key_of(new(1, flag=1))  # 1 is not True
    assert key_of(old(1)) != key_of(new(1, sub=sub(2)))


def test_a_default_that_a_function_makes_is_always_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    today = [date(2026, 11, 15)]
    kind = make_dataclass("Report", [("day", date, field(default_factory=lambda: today[0]))])
    yesterday = key_of(kind())
    today[0] = date(2026, 11, 16)
    assert key_of(kind()) != yesterday


def test_a_field_that_pydantic_was_given_its_default_for_is_the_same_argument(
    engine: oncemore.Engine,
) -> None:
    given_value, left = ModelItem(a=1, b=5), ModelItem(a=1)
    assert key_of(given_value) == key_of(left)

    @oncemore.step(effect="idempotent")
    def work(item: ModelItem) -> ModelItem:
        return item

    assert work(left).model_fields_set == {"a"}


def test_config_and_partition_may_have_classes(engine: oncemore.Engine) -> None:
    def made(config: Any) -> Any:
        return oncemore.step(effect="pure", name="typed.config", config=config, partition=Colour.RED)(
            lambda x: config.count
        )

    assert made(Line("a", 1))(0) == 1
    assert made(Line("a", 1))(0) == 1
    assert made(Line("a", 2))(0) == 2


# Refused ------------------------------------------------------------------------------------------------


def refusal(value: object, annotation: Any = Any, **options: Any) -> str:
    def work(x: Any) -> None:
        raise AssertionError("it must not run")

    work.__annotations__ = {} if annotation is None else {"x": annotation}
    with oncemore.open("memory:") as engine:
        with pytest.raises(oncemore.UsageError) as caught:
            oncemore.step(effect="idempotent", name="typed.refused", **options)(work)(value)
        assert list(engine.store.read_entries()) == []
    return str(caught.value)


class Shape:
    pass


@dataclass
class Circle(Shape):
    radius: int


@dataclass
class Ring(Circle):
    width: int = 1


@dataclass
class Trimmed:
    text: str

    def __post_init__(self) -> None:
        self.text = self.text.strip()


@dataclass
class Needs:
    a: int
    extra: Any = None

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("a is negative")


def changed(value: Any, **fields: Any) -> Any:
    for name, content in fields.items():
        setattr(value, name, content)
    return value


class WithSecret(pydantic.BaseModel):
    token: pydantic.SecretStr


class WithPrivate(pydantic.BaseModel):
    a: int
    _used: int = pydantic.PrivateAttr(default=0)


@pytest.mark.parametrize(
    ("value", "annotation", "says"),
    [
        (
            threading.Lock(),
            threading.Lock,
            "argument 'x' is a lock, which has no form.*annotate its parameter with",
        ),
        (threading.Lock(), None, r"register_type\); or leave it out of the key and the record \(ignore=…\)"),
        (Circle(1), None, "argument 'x' is a Circle, and its parameter has no annotation for it"),
        (Circle(1), Any, "has the annotation Any for it.*annotate it with Circle, or register the type"),
        (Circle(1), object, "has the annotation object"),
        (Circle(1), "Circel", "the annotation 'Circel', a name that does not exist at run time"),
        (Circle(1), Shape, "argument 'x' is a Circle, and its parameter has the annotation Shape"),
        (Ring(1, 2), Circle, "argument 'x' is a Ring, .* the annotation Circle.* with Ring"),
        ([Circle(1)], list, r"argument 'x'\[0\] is a Circle"),
        ({"a": Colour.RED}, dict[str, int], r"argument 'x'\.a is a Colour.*the annotation int"),
        (Needs(1, Circle(2)), Needs, r"argument 'x'\.extra is a Circle"),
        (Needs(1, {"a": [object()]}), Needs, r"argument 'x'\.extra\.a\[0\] is an object"),
        (
            changed(Trimmed("x"), text=" x"),
            Trimmed,
            r"changes when it is stored and read, at argument 'x'\.text",
        ),
        (
            changed(Needs(1), a=-1),
            Needs,
            "cannot be built again as a Needs from its fields: ValueError: a is negat",
        ),
        (WithSecret(token=pydantic.SecretStr("hunter2")), WithSecret, r"argument 'x'\.token is a SecretStr"),
        (
            changed(WithPrivate(a=1), _used=2),
            WithPrivate,
            "private attributes are not as the class sets them",
        ),
        (Circle(1), Circle | make_dataclass("Circle", ["radius"]), "allows several classes of that name"),
        (Line("a", oncemore.Secret("hunter2")), Line, r"argument 'x'\.count is a Secret"),  # type: ignore[arg-type]
        (oncemore, None, "argument 'x' is a module"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_read_again_is_refused_by_name(value: object, annotation: Any, says: str) -> None:
    text = refusal(value, annotation)
    assert re.search(says, text), text
    assert "hunter2" not in text


def test_a_subclass_of_a_registered_type_is_refused_unless_it_is_registered() -> None:
    class Coins(Money):
        pass

    assert "argument 'x' is a Coins" in refusal(Coins(1), Money)


def test_a_class_that_lost_a_field_does_not_guess(engine: oncemore.Engine) -> None:
    def made(kind: Any) -> Any:
        def work(item: Any) -> int:
            return 1

        work.__annotations__["item"] = kind
        return oncemore.step(effect="idempotent", name="typed.changed")(work)

    old, new = make_dataclass("Item", ["a", "b"]), make_dataclass("Item", ["a"])
    run = made(old).submit(old(1, 2))
    worker = oncemore.Worker(engine, [made(new)])
    worker.run_until_idle()
    assert made(old).last_run(old(1, 2)).status == "PENDING"
    grown = make_dataclass("Item", ["a", "b", ("c", int, field(default=3))])
    oncemore.Worker(engine, [made(grown)]).run_until_idle()
    assert made(old).last_run(old(1, 2)).status == "COMPLETE"
    assert made(grown).key(grown(1, 2)) == run.key


# Any dataclass ------------------------------------------------------------------------------------------

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.binary(max_size=5) | st.dates()
    | st.decimals(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
lines = st.builds(Line, st.text("ab$", max_size=3), st.integers(), st.sampled_from([None, *Colour]))
degrees = st.floats(allow_nan=False, allow_infinity=False)
places = st.builds(Place, degrees, degrees)
orders = st.builds(
    Order, st.integers(), st.lists(lines, max_size=3), st.none() | places,
    st.dictionaries(st.sampled_from(["a", "$object", "$enum"]), plain_values, max_size=2),
)  # fmt: skip


@pytest.mark.unmeasured
@given(orders, st.lists(st.builds(Box, st.integers(), st.lists(lines, max_size=2)), max_size=2))
def test_generated_values_come_back_equal_and_keep_their_keys(order: Order, boxes: list[Box]) -> None:
    from oncemore.log.typed_values import ValueCodec

    value = (order, {"boxes": boxes})
    annotation = tuple[Order, dict[str, list[Box]]]
    codec = ValueCodec("it", annotation, place="its parameter", advice="")
    plain = msgspec.json.decode(msgspec.json.encode(codec.encode(value)))
    again = codec.decode(plain)
    assert again == value
    assert repr(again) == repr(value)
    try:
        key = key_of(value)
    except oncemore.UsageError as refused:  # two keys that are one in NFC
        assert "NFC" in str(refused)  # noqa: PT017
    else:
        assert key == key_of(again)


# Registered types ---------------------------------------------------------------------------------------


def test_registered_types_are_arguments_results_and_parts_of_both(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent")
    def double(money: Money, by_name: dict[str, Any]) -> dict[str, Any]:
        return {"money": Money(money.cents * 2), **by_name}

    double.submit(Money(2), {"tip": Money(1)})
    oncemore.Worker(engine, [double]).run_until_idle()
    assert double(Money(2), {"tip": Money(1)}) == {"money": Money(4), "tip": Money(1)}


def test_checkpoints_hold_registered_values_and_events_what_their_encoder_writes(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="idempotent")
    def work() -> int:
        paid = oncemore.current().resume(Money(0))
        oncemore.current().checkpoint(Money(5))
        if not paid.cents:
            raise oncemore.TransientError("once more")
        oncemore.current().emit("paid", {"price": paid, "at": Path("a/b")})
        return paid.cents

    assert work() == 5
    delivered: list[Any] = []
    OutboxRelay(engine, {"*": delivered.append}).run_once()
    assert [message.payload for message in delivered] == [{"price": 5, "at": Path("a/b")}]


def test_a_customer_with_extra_fields_and_a_root_model_come_back(engine: oncemore.Engine) -> None:
    class Open(pydantic.BaseModel, extra="allow"):
        a: int = 1

    class Names(pydantic.RootModel[list[str]]):
        pass

    @oncemore.step(effect="idempotent")
    def work(item: Open | Names | Customer) -> Any:
        return repr(item)

    for value in (Open(b=(1, 2), a=2), Names(["x"])):  # type: ignore[call-arg]
        run = work.submit(value)
        oncemore.Worker(engine, [work]).run_until_idle()
        assert work(value) == repr(value)
        assert run.key == work.key(value)


def test_the_module_of_models_is_the_one_that_other_processes_import() -> None:
    assert typed_models.__name__ == MODULE
