"""A renamed step with an alias does not repeat work done under its old name."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.memory import MemoryStore
from oncemore.policy import files

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock

ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def make_step(name: str, *aliases: str, fails: int = 0, **told: Any) -> Any:
    """Return a step with a name, as one version of a program defines it."""

    @oncemore.step(**{"effect": "once", "name": name, "aliases": aliases, **told})
    def pay(order: str, cents: int = 1) -> str:
        ran.append(name)
        if len(ran) <= fails:
            raise ConnectionError("not yet")
        return f"{name} {order}"

    return pay


def test_a_result_under_the_old_name_is_returned_under_the_new_one(engine: oncemore.Engine) -> None:
    old, new = make_step("shop.pay"), make_step("billing.charge", "shop.pay")
    assert old("a") == "shop.pay a"
    assert new("a") == "shop.pay a"
    assert new("b") == "billing.charge b"
    assert old("b") == "billing.charge b", "and the other way round: both make the same key"
    assert ran == ["shop.pay", "billing.charge"]
    assert new.aliases == ("shop.pay",)
    assert new.key("a") == old.key("a")
    run = new.last_run("b")
    assert run is not None
    assert run.step == "billing.charge"


def test_without_the_alias_it_would_be_done_again(engine: oncemore.Engine) -> None:
    make_step("shop.pay")("a")
    make_step("billing.charge")("a")
    assert ran == ["shop.pay", "billing.charge"]


def test_an_open_run_of_the_old_name_is_continued_under_the_new_one(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    told = {
        "effect": "idempotent",
        "policy": files.policy("standard").replace(jitter=oncemore.Jitter("none")),
    }
    old, new = (
        make_step("shop.pay", fails=1, **told),
        make_step("billing.charge", "shop.pay", fails=1, **told),
    )
    engine.inline_wait_s = 0.0
    with pytest.raises(oncemore.Deferred):
        old("a")
    clock.advance(100)
    assert new("a") == "billing.charge a"
    run = old.last_run("a")
    assert run is not None
    assert [attempt.number for attempt in run.attempts] == [1, 2]
    assert run.state.run_number == 1


def test_a_held_run_of_the_old_name_is_settled_under_the_new_one(engine: oncemore.Engine) -> None:
    old, new = make_step("shop.pay", fails=9), make_step("billing.charge", "shop.pay", fails=9)
    old.run("a")
    with pytest.raises(oncemore.OutcomeUnknown):
        new("a")
    new.settle(oncemore.applied("found"), "a", reason="it was there")
    assert old("a") == new("a") == "found"


def test_a_key_keeps_the_name_that_it_was_begun_under_in_all_its_runs(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    told = {"effect": "idempotent", "policy": oncemore.Policy("once", max_attempts=1)}
    old, new = (
        make_step("shop.pay", fails=1, **told),
        make_step("billing.charge", "shop.pay", fails=1, **told),
    )
    old.run("a")
    assert new.rerun("a", reason="again") == "billing.charge a"
    run = new.last_run("a")
    assert run is not None
    assert (run.step, run.state.run_number) == ("shop.pay", 2), (
        "a mark in another database is found by that name"
    )


def test_a_name_in_between_that_made_keys_of_its_own_is_looked_up_too(engine: oncemore.Engine) -> None:
    first, second = make_step("a.pay"), make_step("b.pay")
    first("1")
    second("2")
    third = make_step("c.pay", "a.pay", "b.pay")
    assert third("1") == "a.pay 1"
    assert third("2") == "b.pay 2"
    make_step("c.pay")("3")
    assert third("3") == "c.pay 3", "also its own name, used before it had an alias"
    assert third("4") == "c.pay 4"
    assert first("4") == "c.pay 4"
    assert ran == ["a.pay", "b.pay", "c.pay", "c.pay"]


def test_keys_with_a_part_a_partition_and_a_bucket_have_aliases_too(engine: oncemore.Engine) -> None:
    told = {"key": "order", "partition": "p", "bucket": "day", "tenant": "t"}
    old, other = make_step("a.pay", **told), make_step("b.pay", **told)
    new = make_step("c.pay", "a.pay", "b.pay", **told)
    old("1")
    other("2")
    assert (new("1"), new("2")) == ("a.pay 1", "b.pay 2")
    with pytest.raises(oncemore.KeyConflict):
        new("2", cents=5)


def test_two_versions_side_by_side_do_the_work_once(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        old, new = make_step("shop.pay").bind(engine), make_step("billing.charge", "shop.pay").bind(engine)
        gate, values = threading.Barrier(8), []

        def call(step: Any) -> None:
            gate.wait(30)
            for n in range(25):
                values.append((n, step(str(n))))

        threads = [threading.Thread(target=call, args=((old, new)[n % 2],)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(ran) == 25
        assert len(set(values)) == 25, "and all of them got the same value"
        assert len(values) == 200
        engine.verify()


def test_a_step_without_aliases_looks_up_nothing_more() -> None:
    class Counting(MemoryStore):
        reads = 0

        def load_head(self, entity: str) -> Any:
            self.reads += 1
            return super().load_head(entity)

    store = Counting()
    with oncemore.Engine(lambda: store, "memory:"):
        counts = []
        make_step("first.pay")("x")  # which also asks whether anybody has thrown a switch
        for step in (
            make_step("a.pay"),
            make_step("b.pay", "a2.pay"),
            make_step("c.pay", "a3.pay", "b3.pay"),
        ):
            before = store.reads
            step("x")
            counts.append(store.reads - before)
    assert counts[1] == counts[0] + 1
    assert counts[2] == counts[0] + 2


@pytest.mark.parametrize(
    ("aliases", "says"),
    [
        (7, "aliases of b.pay is 7; it takes the names that the step had before"),
        (("",), "an alias of b.pay is ''; it takes a text"),
        (("b.pay",), "names one of its names twice, or the one it has now"),
        (("a", "a"), "names one of its names twice"),
    ],
)
def test_invalid_aliases_are_refused(aliases: Any, says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        oncemore.step(effect="pure", name="b.pay", aliases=aliases)(lambda: None)


def test_one_alias_may_be_a_text(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure", name="b.one", aliases="a.one")
    def one() -> int:
        return 1

    assert one.aliases == ("a.one",)
    assert one() == 1
