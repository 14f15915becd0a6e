"""What makes two calls the same work, and what is refused before anything is written."""

import datetime
import decimal
import enum
import functools
import math
import pathlib
import uuid
from collections import OrderedDict
from typing import Annotated, Any

import pytest

import oncemore
from oncemore import Secret
from oncemore.testing import FakeClock
from tests.steps import lazily_annotated
from tests.steps.colours import SOON, Turns, do, each_colour, in_memory, made

pytestmark = pytest.mark.usefixtures("engine")
only_memory = in_memory


def keyed(*args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> str:
    """Return the key of a call of a step with many kinds of parameters."""

    @oncemore.step(effect="pure", name="keyed", **(options or {}))
    def work(a: Any, b: Any = 2, *rest: Any, c: Any = 3, **more: Any) -> None:
        pass

    return work.key(*args, **kwargs)


def key_of(value: Any, **options: Any) -> str:
    return str(made("plain", Turns(0), **options).key(value))


@only_memory
@pytest.mark.req("IDEM-1")
def test_arguments_go_by_name_however_they_are_passed() -> None:
    same = {
        keyed(1),
        keyed(a=1),
        keyed(1, 2),
        keyed(1, b=2),
        keyed(b=2, a=1),
        keyed(1, c=3),
        keyed(a=1, c=3, b=2),
    }
    assert len(same) == 1
    others = [keyed(2), keyed(1, 3), keyed(1, c=4), keyed(1, 2, 3), keyed(1, d=4), keyed("1")]
    assert len({*same, *others}) == 7
    assert keyed({"x": 1, "y": [2]}) == keyed({"y": [2], "x": 1})
    assert keyed(1, d=4, e=5) == keyed(1, e=5, d=4)


@only_memory
@pytest.mark.req("IDEM-1")
def test_step_partition_and_tenant_are_part_of_the_key() -> None:
    keys = [
        key_of(1),
        key_of(1, name="other"),
        key_of(1, partition="2026-11"),
        key_of(1, partition=("2026", 11)),
        key_of(1, tenant="acme"),
        key_of(1, partition=lambda x: x + 1),
        key_of(1, tenant=lambda x: f"tenant {x}"),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(1, partition=lambda x: x + 1) == key_of(1, partition=2)


@only_memory
def test_a_call_that_does_not_fit_is_refused_as_python_does() -> None:
    step = made("plain", Turns(0))
    for call in (
        lambda: step(1, 2),
        lambda: step(y=1),
        lambda: step(1, x=1),
        lambda: keyed(),
        lambda: keyed(1, a=1),
    ):
        with pytest.raises(TypeError, match="argument"):
            call()


@only_memory
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("é", "e\u0301"),
        ({"é": 1}, {"e\u0301": 1}),
        ({1, 2, 3}, {3, 2, 1}),
        (
            datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC),
            datetime.datetime(2026, 1, 1, 13, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
        ),
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}),
    ],
    ids=str,
)
def test_what_is_equal_has_one_key(one: Any, other: Any) -> None:
    assert key_of(one) == key_of(other)


@only_memory
def test_what_differs_has_another_key() -> None:
    values: list[Any] = [
        None, 0, 1, True, False, 0.0, -0.0, 1.0, "1", "", [], (), {}, [1], (1,), {1}, frozenset({1}), b"1",
        "a", "A", 2**53, 2**53 + 1, -(2**70), 1.5, decimal.Decimal("1.5"), decimal.Decimal("1.50"), [None],
        [[]], {"a": None},
        datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1), datetime.time(1), datetime.timedelta(1),
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), uuid.UUID(int=1), str(uuid.UUID(int=1)),
        {"$int": "1"}, {"$tuple": [1]}, "\x00", "a\x00b", {"a": {"b": 1}}, {"a.b": 1},
    ]  # fmt: skip
    keys = [key_of(value) for value in values]
    assert len(set(keys)) == len(values)


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    __slots__ = ()


def endless() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "argument 'x' is an object"),
        ([1, {"a": object()}], r"argument 'x'\[1\]\.a is an object"),
        (Colour.RED, "argument 'x' is a Colour"),
        (Level.LOW, "argument 'x' is a Level"),
        (Name("a"), "argument 'x' is a Name"),
        (OrderedDict(a=1), "argument 'x' is an OrderedDict"),
        (pathlib.Path("\ud800"), "argument 'x' has half of a surrogate pair"),
        (memoryview(b"a"), "argument 'x' is a memoryview"),
        (len, "argument 'x' is a builtin_function_or_method"),
        (math.nan, "argument 'x' is nan"),
        (math.inf, "argument 'x' is inf"),
        ("\ud800", "argument 'x' has half of a surrogate pair"),
        ({"\udfff": 1}, "a key of argument 'x' has half of a surrogate pair"),
        (endless(), "nested more than 100 deep"),
        (deep(10_000), "nested more than 100 deep"),
        ({"é": 1, "e\u0301": 2}, "two keys that are 'é'"),
        ({"token": Secret("hunter2")}, r"argument 'x'\.token is a Secret"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else type(value).__name__,
)
@each_colour
def test_what_has_no_form_is_refused_by_its_name_before_anything_is_written(
    colour: str, value: Any, says: str, engine: oncemore.Engine
) -> None:
    turns = Turns("never")
    with pytest.raises(oncemore.UsageError, match=says) as caught:
        do(colour, made(colour, turns), value)
    assert "hunter2" not in str(caught.value)
    assert turns.calls == 0
    assert list(engine.store.read_entries()) == []


# Left out -------------------------------------------------------------------------------------------


def stored_arguments(step: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a step and return what the log keeps of its arguments."""
    run = step.run(*args, **kwargs)
    from oncemore.log.entry_codec import decode_body

    (first, *_) = run._engine.store.read_entries("run/" + run.key)
    return decode_body(first.body)["arguments"]


@only_memory
def test_ignored_arguments_take_no_part_in_key_and_record() -> None:
    @oncemore.step(effect="pure", ignore=("client", "log"))
    def work(x: int, client: object, log: object = None) -> int:
        return x

    assert work.key(1, object()) == work.key(1, client=5, log=6)
    assert stored_arguments(work, 1, object()) == {"x": 1}
    single = oncemore.step(effect="pure", ignore="client")(work.__wrapped__)
    assert single.key(1, object()) == single.key(1, 2)


def plain_secret(x: int, token: Secret) -> int:
    return x


def maybe_secret(x: int, token: Secret | None = None) -> int:
    return x


def annotated_secret(x: int, token: Annotated[str, Secret] = "") -> int:
    return x


def many_secrets(x: int, token: "list[Secret]") -> int:
    return x


class Callable_:
    def __call__(self, x: int, token: Secret) -> int:
        return x


SECRETIVE = {
    "annotation": plain_secret,
    "optional": maybe_secret,
    "annotated": annotated_secret,
    "list": many_secrets,
    "text": lazily_annotated.as_text,
    "text, optional": lazily_annotated.optional,
    "text, only for the checker": lazily_annotated.only_for_the_checker,
    "partial": functools.partial(plain_secret),
    "partial of a partial": functools.partial(functools.partial(maybe_secret)),
    "object": Callable_(),
    "bound method": Callable_().__call__,
}


@only_memory
@pytest.mark.parametrize("kind", SECRETIVE)
def test_an_argument_annotated_as_secret_is_left_out_wrapped_or_not(kind: str) -> None:
    work: Any = oncemore.step(effect="pure", name="secretive")(SECRETIVE[kind])  # type: ignore[arg-type]
    keys = {work.key(1, token) for token in ("hunter2", Secret("hunter2"), "other", ["hunter2"], object())}
    assert len(keys) == 1
    assert work.key(2, "hunter2") not in keys
    assert "token" not in stored_arguments(work, 1, "hunter2")


@only_memory
def test_an_argument_that_is_a_secret_is_left_out_whatever_its_annotation() -> None:
    @oncemore.step(effect="pure")
    def work(x: int, token: Any) -> str:
        return str(token.reveal())

    assert work.key(1, Secret("a")) == work.key(1, Secret("b"))
    assert work.key(1, "a") != work.key(1, "b")
    assert work(1, Secret("a")) == "a"
    assert stored_arguments(work, 2, Secret("b")) == {"x": 2}


# A part as the key ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["order", ("order",), ["order"], lambda order, amount=0: order],
    ids=["name", "tuple", "list", "function"],
)
@each_colour
def test_a_part_of_the_arguments_can_be_the_key_and_others_must_not_differ(
    colour: str, key: Any, engine: oncemore.Engine
) -> None:
    options: dict[str, Any] = {"effect": "once", "name": "pay", "key": key}
    if colour == "plain":

        @oncemore.step(**options)
        def pay(order: str, amount: int = 0) -> int:
            return amount

    else:

        @oncemore.step(**options)
        async def pay(order: str, amount: int = 0) -> int:
            return amount

    assert do(colour, pay, "o-1", 5) == 5
    assert do(colour, pay, "o-1", amount=5) == 5
    with pytest.raises(oncemore.KeyConflict, match="belongs to a call with other arguments") as caught:
        do(colour, pay, "o-1", 6)
    assert caught.value.run.value == 5  # type: ignore[attr-defined]
    assert do(colour, pay, "o-2", 6) == 6
    with pytest.raises(oncemore.KeyConflict):
        pay.settle(oncemore.applied(), "o-1", 7, reason="wrong one")
    with pytest.raises(oncemore.KeyConflict):
        do(colour, pay.rerun, "o-1", 7, reason="wrong one")


@only_memory
def test_what_may_differ_under_a_key_is_left_out_by_ignore() -> None:
    @oncemore.step(effect="once", key="order", ignore="trace")
    def pay(order: str, trace: str) -> str:
        return trace

    assert pay("o-1", "first") == pay("o-1", "second") == "first"


@only_memory
def test_a_secret_cannot_be_the_key() -> None:
    def work(x: int, token: Any, pin: Secret | None = None) -> int:
        return x

    for named in ("pin", ("x", "pin")):
        with pytest.raises(
            oncemore.UsageError, match=r"key of .* names pin, which ignore= or Secret leaves out"
        ):
            oncemore.step(effect="pure", key=named)(work)
    with pytest.raises(oncemore.UsageError, match="names x, which ignore="):
        oncemore.step(effect="pure", key="x", ignore="x")(work)
    by_value = oncemore.step(effect="pure", key="token")(work)
    with pytest.raises(oncemore.UsageError, match="a Secret takes no part in keys"):
        by_value(1, Secret("hunter2"))


# Time as a part of the key --------------------------------------------------------------------------


@pytest.mark.req("IDEM-13")
@pytest.mark.parametrize(
    ("bucket", "size"),
    [("hour", 3600.0), ("day", 86_400.0), (datetime.timedelta(0.5), 43_200.0), (90, 90.0)],
    ids=str,
)
@each_colour
@only_memory
def test_one_run_in_each_stretch_of_time(
    colour: str, bucket: Any, size: float, clock: FakeClock, engine: oncemore.Engine
) -> None:
    turns = Turns("first", "second")
    step = made(colour, turns, bucket=bucket)
    clock.advance(size - engine.now() % size)  # a stretch has just begun
    assert do(colour, step) == "first"
    clock.advance(size - 5)
    assert do(colour, step) == "first"
    clock.advance(6)
    assert do(colour, step) == "second"
    assert turns.calls == 2


@pytest.mark.req("IDEM-13")
@each_colour
def test_a_run_that_is_tried_again_across_the_edge_keeps_its_key(
    colour: str, clock: FakeClock, engine: oncemore.Engine
) -> None:
    keys: list[str] = []

    def work(x: int) -> str:
        keys.append(oncemore.current().key)
        if len(keys) == 1:
            raise SOON
        return "done"

    step = made(colour, work, bucket="day")
    clock.advance(86_400 - engine.now() % 86_400 - 1)  # 23:59:59
    before = step.key()
    run = do(colour, step.run)
    assert clock.delays == pytest.approx([5.0], abs=0.5)
    assert keys == [before, before]
    assert (run.key, run.status, run.value) == (before, "COMPLETE", "done")
    assert step.key() != before


@only_memory
def test_stretches_shorter_than_a_second_have_names_of_their_own(clock: FakeClock) -> None:
    step = made("plain", Turns(0), bucket=0.25)
    keys = set()
    for _ in range(8):
        keys.add(step.key())
        clock.advance(0.25)
    assert len(keys) == 8


@only_memory
def test_a_stretch_may_be_named_by_the_arguments(clock: FakeClock) -> None:
    step = made("plain", Turns(0), bucket=lambda x: x // 10)
    assert step.key(1) != step.key(11)
    before = step.key(1)
    clock.advance(1e6)
    assert step.key(1) == before


# Whose work it is -----------------------------------------------------------------------------------


@pytest.mark.req("SEC-8")
@each_colour
def test_equal_calls_of_two_tenants_are_two_runs(colour: str) -> None:
    turns = Turns("of acme", "of umbrella")
    step = made(colour, turns)
    for _ in range(2):
        for tenant in ("acme", "umbrella"):
            with oncemore.context(tenant=tenant):
                assert do(colour, step, 1) == f"of {tenant}"
    assert turns.calls == 2


@only_memory
def test_a_steps_own_tenant_comes_before_that_of_the_context() -> None:
    own = made("plain", Turns(0), tenant="acme")
    by_argument = made("plain", Turns(0), tenant=lambda x: x)
    around = made("plain", Turns(0))
    with oncemore.context(tenant="umbrella"):
        assert own.run("a").state.tenant == "acme"
        assert by_argument.run("acme").state.tenant == "acme"
        assert by_argument.run("").state.tenant == "umbrella"
        assert around.run("a").state.tenant == "umbrella"
    assert around.run("a").state.tenant == ""


# Kinds of functions ---------------------------------------------------------------------------------


class Shop:
    calls = 0

    @oncemore.step(effect="pure")
    def refused(self, x: int) -> int:
        return x

    @oncemore.step(effect="pure", ignore="self")
    def double(self, x: int) -> int:
        """Twice as much."""
        self.calls += 1
        return 2 * x

    @oncemore.step(effect="pure", ignore="self")
    async def deferred(self, x: int) -> int:
        return 2 * x

    @staticmethod
    @oncemore.step(effect="pure")
    def plainly(x: int) -> int:
        return x + 1

    @classmethod
    @oncemore.step(effect="pure", ignore="cls")
    def made(cls, x: int) -> str:
        return f"{cls.__name__} {x}"


@only_memory
def test_methods_work_when_self_is_left_out() -> None:
    shop = Shop()
    assert [shop.double(2), shop.double(2), Shop().double(2), Shop.double(shop, 2)] == [4] * 4
    assert shop.calls == 1
    assert shop.double.key(2) == Shop.double.key(shop, 2)
    assert shop.double.last_run(2).value == 4  # type: ignore[union-attr]
    assert (shop.plainly(1), Shop.plainly(1)) == (2, 2)
    assert (Shop.made(1), shop.made(1)) == ("Shop 1", "Shop 1")
    for colour in ("asyncio", "trio"):
        assert do(colour, shop.deferred, 3) == 6
    with pytest.raises(oncemore.UsageError, match="argument 'self' is a Shop"):
        shop.refused(1)


@only_memory
def test_a_bound_step_stays_bound_on_another_engine() -> None:
    with oncemore.open("memory:") as other:
        assert Shop().double.bind(other)(5) == 10
        assert Shop.double.bind(other).last_run(Shop(), 5).value == 10  # type: ignore[union-attr]
    assert Shop.double.last_run(Shop(), 5) is None


@only_memory
def test_a_step_looks_like_its_function() -> None:
    step = Shop.double
    assert (step.__name__, step.__doc__, step.__module__) == ("double", "Twice as much.", __name__)
    assert step.__qualname__ == "Shop.double"
    assert step.__annotations__["x"] is int
    assert step.name == f"{__name__}.Shop.double"
    assert repr(step) == f"<oncemore.Step {__name__}.Shop.double (pure)>"
    assert step.__wrapped__(Shop(), 4) == 8


@only_memory
def test_async_steps_are_known_as_such() -> None:
    import asyncio
    import inspect
    import sys

    known = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    assert known(Shop.deferred)
    assert not known(Shop.double)


def add(a: int, b: int) -> int:
    return a + b


@only_memory
def test_partials_and_objects_need_a_name_and_then_work() -> None:
    for work in (functools.partial(add, 1), Callable_()):
        with pytest.raises(oncemore.UsageError, match="has no name of its own; give name="):
            oncemore.step(effect="pure")(work)  # type: ignore[arg-type]
    partial: Any = oncemore.step(effect="pure", name="add one")(functools.partial(add, 1))
    assert (partial(2), partial(b=2), partial.last_run(2).value) == (3, 3, 3)
    assert partial.key(2) == partial.key(b=2)
    assert oncemore.step(effect="pure")("abc".upper)() == "ABC"
    assert oncemore.step(effect="pure")(len)([1, 2]) == 2
    assert oncemore.step(effect="pure", name="λ")(lambda x: x)(1) == 1


@only_memory
def test_a_generated_correlation_id_is_no_part_of_the_key() -> None:
    assert key_of(1) == key_of(1)
    with oncemore.context(correlation_id="given"):
        assert key_of(1) == made("plain", Turns(0)).key(1)
