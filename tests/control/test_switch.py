"""A switch: no attempt begins while it is on, on no path; what waits goes on when it is released."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.control.model import ALL_EXECUTION, SWITCHES_ENTITY, SwitchBoard
from oncemore.control.permits import load_switches
from oncemore.errors import Deferred, NotPermitted, StoreError, TransientError, UsageError
from oncemore.log.entry_codec import build_write
from oncemore.log.record import RecordChange
from oncemore.log.store import Batch
from oncemore.workers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    calls.clear()


@oncemore.step(effect="idempotent", name="ship")
def ship(order: str) -> str:
    calls.append(order)
    return f"shipped {order}"


@oncemore.step(effect="idempotent", name="bill", tenant=lambda order, whose="": whose)
def bill(order: str, whose: str = "") -> str:
    calls.append(order)
    return f"billed {order}"


@oncemore.step(effect="once", name="pay")
async def pay(order: str) -> str:
    calls.append(order)
    return f"paid {order}"


def intents(engine: Engine) -> int:
    from oncemore.log.entry_codec import decode_header

    return sum("INTENT" in decode_header(entry.header).marks for entry in engine.store.read_entries())


@pytest.mark.req("AUTO-7")
def test_a_switch_that_is_on_stops_every_step_and_one_that_is_released_none(engine: Engine) -> None:
    assert ship("a") == "shipped a"
    engine.switches.on(reason="the ledger is wrong", by="operator")
    with pytest.raises(
        NotPermitted, match="all_execution was thrown by operator: the ledger is wrong"
    ) as told:
        ship("b")
    assert told.value.reason == "switch"
    with pytest.raises(NotPermitted):
        bill("b")
    assert calls == ["a"]
    assert ship("a") == "shipped a", "what is done can be had"
    assert engine.switches.off(reason="it is right again", by="operator")
    assert ship("b") == "shipped b"
    assert calls == ["a", "b"]


@pytest.mark.anyio
async def test_async_steps_are_stopped_too(engine: Engine) -> None:
    engine.switches.on(reason="stop")
    with pytest.raises(NotPermitted):
        await pay("a")
    engine.switches.off(reason="go")
    assert await pay("a") == "paid a"


def test_a_switch_of_one_step_or_of_one_tenant_stops_no_other(engine: Engine) -> None:
    engine.switches.on(step="ship", reason="the carrier is out")
    engine.switches.on(tenant="shop-7", reason="they have not paid")
    with pytest.raises(NotPermitted, match=r"oncemore control switch off --step ship"):
        ship("a")
    with pytest.raises(NotPermitted, match=r"oncemore control switch off --tenant shop-7"):
        bill("a", "shop-7")
    assert bill("a", "shop-8") == "billed a"
    assert [one.name for one in engine.switches.status()] == ["step:ship", "tenant:shop-7"]
    engine.switches.off(step="ship", reason="they are back")
    assert ship("a")


def test_a_step_is_stopped_by_a_name_that_it_had_before(engine: Engine) -> None:
    ship.submit("a")
    renamed = oncemore.step(effect="idempotent", name="send", aliases=["ship"])(
        lambda order: calls.append(order)
    )
    engine.switches.on(step="ship", reason="by its old name")
    with pytest.raises(NotPermitted, match="step:ship"):
        renamed("a")
    engine.switches.off(step="ship", reason="x")
    engine.switches.on(step="send", reason="by its new one")
    with pytest.raises(NotPermitted, match="step:send"):
        renamed("a")


def test_a_run_that_was_stopped_is_not_failed_and_has_used_no_attempt(engine: Engine) -> None:
    ship.submit("a")
    engine.switches.on(reason="stop")
    run = ship.run("a")
    assert (run.status, run.state.attempt, run.state.attempt_count, run.held_for) == ("PENDING", 0, 0, "")
    version = run.version
    assert ship.run("a").version == version, "nothing is written about it"
    engine.switches.off(reason="go")
    assert ship("a") == "shipped a"
    last = ship.last_run("a")
    assert last is not None
    assert last.state.attempt == 1


def test_a_switch_thrown_while_a_run_waits_stops_its_retry(engine: Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="flaky")
    def flaky() -> str:
        calls.append(len(calls))
        if len(calls) == 1:
            engine.switches.on(reason="thrown in the middle of the first attempt")
            raise TransientError("not yet")
        return "done"

    with pytest.raises(NotPermitted) as told:
        flaky()
    assert calls == [0], "the attempt that was under way came to its end, the next did not begin"
    run: Any = told.value.run
    assert (run.status, run.state.attempt_count) == ("SOFT_FAIL", 1)
    engine.switches.off(reason="go")
    assert flaky() == "done"
    assert ship.bind(engine) is not None


def test_an_attempt_under_way_may_end(engine: Engine) -> None:
    @oncemore.step(effect="once", name="charge")
    def charge() -> str:
        engine.switches.on(reason="too late for this one")
        return "charged"

    assert charge() == "charged"
    run = charge.last_run()
    assert run is not None
    assert run.status == "COMPLETE"


class Between:
    """A store on which something happens between a look at the switches and what is appended next."""

    def __init__(self, store: Any, do: Callable[[], None]) -> None:
        self._store, self._do, self._looked = store, do, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def head(self, entity: str) -> Any:
        self._looked = self._looked or entity == SWITCHES_ENTITY
        return self._store.load_head(entity)

    def append(self, batch: Batch) -> Any:
        if SWITCHES_ENTITY in batch.guards and self._do is not None:
            do, self._do = self._do, None  # type: ignore[assignment]
            do()
        return self._store.append(batch)


@pytest.mark.req("AUTO-7")
@pytest.mark.parametrize("before", ["nothing", "a switch that was released"])
def test_a_switch_thrown_between_the_look_and_the_intent_refuses_the_intent(
    engine: Engine, before: str
) -> None:
    if before != "nothing":
        engine.switches.on(reason="on")
        engine.switches.off(reason="off")
    ship("warm")
    store = engine.store
    engine.opened_store = Between(store, lambda: _throw(engine, store))  # type: ignore[assignment]
    count = intents(engine)
    with pytest.raises(NotPermitted, match="in the very moment"):
        ship("a")
    assert calls == ["warm"]
    assert intents(engine) == count
    assert ship.last_run("a") is None


def test_a_switch_released_between_the_look_and_the_refusal_lets_it_begin(engine: Engine) -> None:
    engine.switches.on(reason="on")
    with pytest.raises(NotPermitted):
        ship("a")
    other = oncemore.steps.engine.Engine(lambda: engine.store, engine.url)
    other.switches.off(reason="by another process")
    assert ship("a") == "shipped a", "it is read anew before anybody is refused"


def _throw(engine: Engine, store: Any) -> None:
    """Throw the switch as another process would: past all that this engine knows."""
    from oncemore.control.model import ALL_EXECUTION, turn_switch_on

    version, control = load_switches(engine)
    head = store.load_head(SWITCHES_ENTITY)
    told = {"by": "another", "reason": "in the very moment", "at": 1.0}
    change = RecordChange(
        ("CONTROL",), None if head is None else control, turn_switch_on(control, ALL_EXECUTION, told)
    )
    prev = b"\x00" * 32 if head is None else head.hash
    store.append(Batch((build_write(SWITCHES_ENTITY, version, prev, change, engine.now()),))).wait()


@pytest.mark.req("AUTO-8")
@pytest.mark.parametrize("what", ["it cannot be read", "it makes no sense", "a newer version wrote it"])
def test_what_cannot_be_read_means_no(engine: Engine, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    engine.switches.on(reason="x")
    engine.switches.off(reason="y")
    store, head = engine.store, engine.store.load_head

    def unreadable(entity: str) -> Any:
        found = head(entity)
        if entity != SWITCHES_ENTITY or found is None:
            return found
        if what == "it cannot be read":
            raise StoreError("the disk failed")
        told = b"[1, 2" if what == "it makes no sense" else b'[99, "CLEAR"]'
        return found._replace(head=told)

    monkeypatch.setattr(store, "load_head", unreadable)
    with pytest.raises(NotPermitted, match="control_state_unknown") as refused:
        ship("a")
    assert refused.value.reason == "control_state_unknown"
    assert refused.value.__cause__ is not None
    assert calls == []
    monkeypatch.undo()
    assert ship("a") == "shipped a"


@pytest.mark.req("AUTO-7")
def test_a_worker_takes_nothing_while_a_switch_is_on_and_goes_on_afterwards(engine: Engine) -> None:
    for order in "abc":
        ship.submit(order)
        bill.submit(order, "shop-7")
    engine.switches.on(step="ship", reason="x")
    engine.switches.on(tenant="shop-7", reason="x")
    worker = Worker(engine, [ship, bill], poll_s=0.05)
    assert worker.run_until_idle().done == 0
    assert worker.run_until_idle().failed == 0
    assert calls == []
    assert intents(engine) == 0
    engine.switches.off(tenant="shop-7", reason="y")
    assert worker.run_until_idle().done == 3
    engine.switches.off(step="ship", reason="y")
    assert worker.run_until_idle().done == 6
    assert sorted(calls) == list("aabbcc")


def test_a_worker_that_waits_goes_on_at_once_when_the_switch_is_released(engine: Engine) -> None:
    engine.switches.on(reason="x")
    ship.submit("a")
    done = threading.Event()

    @oncemore.step(effect="idempotent", name="watched")
    def watched() -> None:
        done.set()

    watched.submit()
    with Worker(engine, [ship, watched], poll_s=30.0):
        assert not done.wait(0.3)
        engine.switches.off(reason="y")
        assert done.wait(10.0)


def test_a_run_whose_worker_died_is_closed_and_not_begun_again_while_stopped(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db", lease_s=60) as engine:
        import subprocess
        import sys

        code = (
            "import os, oncemore\n"
            "@oncemore.step(effect='idempotent', name='ship')\n"
            "def ship(order): os.kill(os.getpid(), 9)\n"
            f"with oncemore.open({str(tmp_path / 'log.db')!r}): ship('a')\n"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == -9
        engine.switches.on(reason="look first")
        Worker(engine, [ship], poll_s=0.05).run_until_idle()
        run = ship.last_run("a")
        assert run is not None
        assert (run.status, run.reason, run.state.crash_count) == ("SOFT_FAIL", "lease_expired", 1)
        assert calls == []
        engine.switches.off(reason="seen")
        assert ship("a") == "shipped a"


def test_map_holds_what_is_stopped(engine: Engine) -> None:
    engine.switches.on(step="ship", reason="x")
    job = ship.map(["a", "b"], progress="off")
    assert (job.counts["held"], job.counts["failed"], calls) == (2, 0, [])


def test_work_can_be_handed_in_while_stopped(engine: Engine) -> None:
    engine.switches.on(reason="x")
    assert ship.submit("a").status == "PENDING"


def test_who_threw_and_who_released_stays_in_the_log(engine: Engine) -> None:
    first = engine.switches.on(reason="one", by="operator")
    assert engine.switches.on(reason="two", by="somebody else") == first, "it is on already"
    with oncemore.context(actor="reviewer"):
        assert engine.switches.off(reason="three")
        assert not engine.switches.off(reason="it is off already")
    told = [(said.action, said.name, said.by, said.reason) for said in engine.switches.history()]
    assert told == [
        ("on", "all_execution", "operator", "one"),
        ("off", "all_execution", "reviewer", "three"),
    ]
    assert engine.switches.status() == ()
    assert "Switches of" in repr(engine.switches)
    assert engine.verify().entries


def test_the_status_includes_switches_of_a_control_of_ones_own() -> None:
    class Panel:
        url = "panel://7"
        on: bool | None = False

        def load_switches(self, steps: tuple[str, ...], tenant: str) -> SwitchBoard:
            if self.on is None:
                raise OSError("the panel does not answer")
            return SwitchBoard("STOPPED", {ALL_EXECUTION: {"by": "operator"}}) if self.on else SwitchBoard()

        def load_approval(self, key: str) -> None: ...
        def close(self) -> None: ...

    panel = Panel()
    with oncemore.open("memory:", control=panel) as engine:
        assert engine.switches.status() == ()
        panel.on = True
        (thrown,) = engine.switches.status()
        assert (thrown.name, thrown.by, thrown.kept_in) == (ALL_EXECUTION, "operator", "panel://7")
        with pytest.raises(
            NotPermitted, match="was thrown by operator; it goes on when that is released in panel"
        ):
            ship("a")
        panel.on = None
        with pytest.raises(
            NotPermitted, match=r"panel://7 cannot be read .*; nothing begins until they can"
        ) as no:
            engine.switches.status()
        assert no.value.reason == "control_state_unknown"


@pytest.mark.parametrize("reason", ["", "  ", None, "x" * 3000])
def test_a_switch_needs_a_reason(engine: Engine, reason: Any) -> None:
    with pytest.raises(UsageError, match="reason"):
        engine.switches.on(reason=reason)
    with pytest.raises(UsageError, match="reason"):
        engine.switches.off(reason=reason)


def test_a_switch_is_of_a_step_or_of_a_tenant(engine: Engine) -> None:
    with pytest.raises(UsageError, match="for a step, a tenant or a pipeline"):
        engine.switches.on(step="a", tenant="b", reason="x")


def test_switches_have_a_limit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemore.control.switches.MAX_SWITCHES", 2)
    engine.switches.on(step="a", reason="x")
    engine.switches.on(step="b", reason="x")
    engine.switches.on(step="b", reason="again")
    with pytest.raises(UsageError, match="2 switches are on"):
        engine.switches.on(step="c", reason="x")


def test_two_who_throw_at_once_both_have_their_switch(engine: Engine) -> None:
    threads = [
        threading.Thread(target=lambda name=name: engine.switches.on(step=name, reason="x"))
        for name in "abcdefgh"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {one.name for one in engine.switches.status()} == {f"step:{name}" for name in "abcdefgh"}


def test_a_switch_that_everybody_else_turns_is_given_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncemore.control import switches
    from oncemore.errors import StaleDecision

    monkeypatch.setattr(switches, "MAX_TRIES", 0)
    with pytest.raises(StaleDecision, match="switches changed 0 times"):
        engine.switches.on(reason="x")


@pytest.mark.parametrize("colour", ["sync"])
def test_a_first_call_reads_the_switches_once_and_further_ones_never(engine: Engine, colour: str) -> None:
    looked: list[str] = []
    store = engine.store
    head = store.load_head

    def counted(entity: str) -> Any:
        looked.append(entity)
        return head(entity)

    store.load_head = counted  # type: ignore[method-assign]
    for number in range(50):
        ship(f"{number}")
    assert looked.count(SWITCHES_ENTITY) == 1


def test_a_blocked_call_can_be_pickled_and_is_no_failure() -> None:
    import pickle

    made = pickle.loads(pickle.dumps(NotPermitted("no", "switch")))  # noqa: S301
    assert (str(made), made.reason) == ("no", "switch")
    assert isinstance(made, oncemore.errors.CallRefused)
    assert not isinstance(made, Deferred)
