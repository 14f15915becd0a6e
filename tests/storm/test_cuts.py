"""Ctrl-C, cancellation and the end of the program, at every moment: they get through, nothing is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest
import trio

import oncemore
from oncemore.log.entry_codec import decode_header
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from tests.storm import storm
from tests.storm.crew import ROOT
from tests.storm.points import Point
from tests.storm.work import STEPS
from tests.timing import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from tests.storm.crew import Crew

EFFECTS = ("pure", "idempotent", "outbox", "once")
QUICK = Policy("quick", max_attempts=4, schedule=Schedule("exponential", base=0.001), jitter=Jitter("full"))
CTRL_C = 130


# Ctrl-C in a process of its own -------------------------------------------------------------------------

MOMENTS = {
    "before the lease": (Point("LEASE", "before"), 0),
    "after the lease": (Point("LEASE", "after"), 0),
    "before INTENT": (Point("INTENT", "before"), 0),
    "after INTENT": (Point("INTENT", "after"), 0),
    "in the work": (Point("work:begin"), 0),
    "before the effect": (Point("effect:before"), 0),
    "after the effect": (Point("effect:after"), 0),
    "before COMMIT": (Point("COMMIT", "before"), 0),
    "after COMMIT": (Point("COMMIT", "after"), 0),
    "before SOFT_FAIL": (Point("SOFT_FAIL", "before"), 1),
    "after SOFT_FAIL": (Point("SOFT_FAIL", "after"), 1),
    "before the second INTENT": (Point("INTENT", "before", 2), 1),
    "after the second INTENT": (Point("INTENT", "after", 2), 1),
}
#: What an interrupted call may leave: RUNNING is not among them, nobody would know what to do about it.
IN_ORDER = {"COMPLETE", "SOFT_FAIL interrupted", "SOFT_FAIL released", "SOFT_FAIL retry", "none"}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("step", STEPS)
def test_ctrl_c_at_any_moment_leaves_a_run_in_order_that_the_next_call_finishes(
    crew: Crew, step: str
) -> None:
    moments = dict(MOMENTS)
    if step == "batch":
        moments |= {f"{when} the checkpoint": (Point("CHECKPOINT", when), 0) for when in ("before", "after")}
    for name, (point, fails) in moments.items():
        cut = point._replace(signal=signal.SIGINT)
        assert crew.call(step, name, point=cut, fails=fails).wait(20) == CTRL_C, (
            f"{name}\n{crew.complaints()}"
        )
    left = _standing(crew, step, {name: fails for name, (_, fails) in moments.items()})
    print(step, left)
    assert set(left.values()) <= IN_ORDER
    for name in (
        "in the work",
        "before the effect",
        "after the effect",
        "before the checkpoint",
        "after the checkpoint",
    ):
        assert left.get(name, "SOFT_FAIL interrupted") == "SOFT_FAIL interrupted"
    for name in ("before INTENT", "after INTENT"):
        assert left[name] == "SOFT_FAIL released"
    for name in ("before COMMIT", "after COMMIT"):
        assert left[name] == "COMPLETE"
    orders: list[list[Any]] = [[step, name, fails] for name, (_, fails) in moments.items()]
    storm.finish(crew, orders)
    assert storm.settle(crew, orders) == (3 if step == "pay" else 0)
    storm.finish(crew, orders)
    report = storm.report(crew)
    print(report)
    assert not report.violations
    assert report.complete == len(moments)
    assert not crew.complaints()


def _standing(crew: Crew, step: str, orders: dict[str, int]) -> dict[str, str]:
    with oncemore.open(crew.place["store"]):
        runs = {order: STEPS[step].last_run(order, fails) for order, fails in orders.items()}
    return {order: _said(run) for order, run in runs.items()}


def _said(run: Any) -> str:
    if run is None or run.status == "COMPLETE":
        return "none" if run is None else "COMPLETE"
    return f"{run.status} {run.reason}"


@pytest.mark.timeout(240)
def test_ctrl_c_at_random_moments_always_gets_through(crew: Crew) -> None:
    seed = f"{random.SystemRandom().getrandbits(32):08x}"
    print(f"seed {seed}")
    chance = random.Random(seed)
    orders: list[list[Any]] = []
    for _ in range(25):
        orders += [[step, f"{len(orders)}", chance.choice((0, 0, 1))] for step in STEPS]
        workers = [
            crew.start("hammer", orders=orders[-12:], seed=f"{seed}/{len(orders)}/{n}") for n in range(3)
        ]
        for worker in workers:
            wait_until(lambda pid=worker.pid: _is_up(crew, pid), "the worker comes up")
        time.sleep(chance.uniform(0.0, 0.02))
        for worker in workers:
            worker.send(signal.SIGINT)
            time.sleep(chance.uniform(0.0, 0.005))
        for worker in workers:
            assert worker.wait(total_timeout=20) == CTRL_C, crew.complaints()
    storm.finish(crew, orders)
    settled = storm.settle(crew, orders)
    storm.finish(crew, orders)
    report = storm.report(crew)
    print(f"75 interrupted at random, {settled} settled by hand; {report}")
    assert not report.violations
    assert not crew.complaints()


def _is_up(crew: Crew, pid: int) -> bool:
    return (crew.folder / f"acks-{pid}").exists()


@pytest.mark.parametrize("where", ["work", "helper", "retry", "async work", "async retry"])
def test_ctrl_c_ends_every_wait_at_once(crew: Crew, where: str) -> None:
    worker = crew.start("waits", where=where)
    wait_until(lambda: crew.effects(), "the work begins")
    time.sleep(0.2)
    began = time.monotonic()
    worker.send(signal.SIGINT)
    assert worker.wait(total_timeout=10) == CTRL_C, crew.complaints()
    assert time.monotonic() - began < 5
    with oncemore.open(crew.place["store"]) as engine:
        (run,) = engine.store.list_heads(_runs())
        assert run.by.state == "SOFT_FAIL"
    assert len(crew.effects()) == 1
    assert not crew.complaints()


def _runs() -> Any:
    from oncemore.log.store import HeadQuery

    return HeadQuery("run")


def test_ctrl_c_ends_waiting_for_somebody_else(crew: Crew) -> None:
    holder = crew.call("charge", "o", point=Point("effect:after", signal=signal.SIGSTOP))
    holder.stopped()
    waiting = crew.call("charge", "o")
    time.sleep(0.3)
    waiting.send(signal.SIGINT)
    assert waiting.wait(total_timeout=10) == CTRL_C, crew.complaints()
    holder.send(signal.SIGCONT)
    assert holder.wait() == 0
    assert [effect["attempt"] for effect in crew.effects()] == [1]
    assert not storm.report(crew).violations


@pytest.mark.parametrize("wait_s", [0.2, 0.6])
def test_a_second_ctrl_c_exits_at_once_even_if_the_store_does_not_answer(crew: Crew, wait_s: float) -> None:
    """The first one wants to bring the run in order; the second is as good as a kill."""
    worker = crew.call("charge", "o", point=Point("effect:after", signal=signal.SIGSTOP), lease_s=1.0)
    worker.stopped()
    hung = crew.call("charge", "hung", point=Point("COMMIT", "commit", signal=signal.SIGSTOP))
    hung.stopped()
    worker.send(signal.SIGCONT)  # now it wants to write its COMMIT, and cannot; nor can its heartbeat
    time.sleep(wait_s)
    worker.send(signal.SIGINT)
    time.sleep(0.3)
    assert worker.state() != "Z", "it went before the run was in order"
    worker.send(signal.SIGINT)
    assert worker.wait(total_timeout=5) == CTRL_C, crew.complaints()
    hung.send(signal.SIGCONT)
    assert hung.wait() == 0
    assert crew.call("charge", "o").wait() == 0
    assert not storm.report(crew).violations


# Cancellation at every await ----------------------------------------------------------------------------


class Cut:
    """Awaits a coroutine, and does something at the k-th time that it suspends itself."""

    def __init__(self, made: Any, k: int, act: Callable[[], object]) -> None:
        self._made, self._k, self._act = made, k, act
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        inner, sent = self._made.__await__(), None
        error: BaseException | None = None
        count = 0
        while True:
            try:
                asked = inner.send(sent) if error is None else inner.throw(error)
            except StopIteration as end:
                return end.value
            count += 1
            if count == self._k:
                self.reached = True
                if self._act() == "closed":
                    return None
            try:
                sent, error = (yield asked), None
            except BaseException as thrown:
                sent, error = None, thrown


class World:
    """An async step with several awaits, whose executions and effects are counted."""

    def __init__(self, effect: Any, sleep: Callable[[float], Any]) -> None:
        self.effects: dict[str, int] = {}
        world = self

        refused: Any = ConnectionRefusedError if effect == "once" else ()

        @oncemore.step(effect=effect, policy=QUICK, name="work", not_applied=refused)
        async def work(order: str) -> dict[str, str]:
            await sleep(0)
            if oncemore.current().number == 1:
                raise ConnectionRefusedError("not now")
            await oncemore.current().checkpoint("half")
            world.effects[order] = world.effects.get(order, 0) + 1
            await sleep(0)
            if effect == "outbox":
                oncemore.current().emit("topic")
            return {"order": order}

        self.work = work
        self.effect = effect

    def check_after(self, order: str) -> None:
        """The run is in order, whatever cut it off; RUNNING would be somebody's."""
        run = self.work.last_run(order)
        assert run is None or run.status in ("SOFT_FAIL", "COMPLETE"), (order, run)
        assert run is None or not run.held_for or (self.effect == "once" and run.reason == "interrupted")

    def check_end(self, order: str, told: Any) -> None:
        """The next call finished it, unless nobody can know."""
        if told == "OutcomeUnknown":
            assert self.effect == "once"
        else:
            assert told == {"order": order}
        if self.effect == "once":
            assert self.effects.get(order, 0) <= 1


async def _next(world: World, order: str) -> Any:
    try:
        return await world.work(order)
    except oncemore.OutcomeUnknown:
        return "OutcomeUnknown"


@pytest.mark.parametrize("effect", EFFECTS)
def test_cancelling_an_asyncio_task_at_any_await_gets_through_and_loses_nothing(
    tmp_path: Path, effect: Any
) -> None:
    world = World(effect, asyncio.sleep)

    async def at(k: int) -> bool:
        order = f"{k}"

        async def one() -> Any:
            task = asyncio.current_task()
            assert task is not None
            cut = Cut(world.work(order), k, task.cancel)
            try:
                return await cut
            finally:
                reached.append(cut.reached)

        reached: list[bool] = []
        task = asyncio.create_task(one())
        (told,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(told, asyncio.CancelledError) is reached[0], told
        assert task.cancelled() is reached[0]
        world.check_after(order)
        world.check_end(order, await asyncio.wait_for(_next(world, order), 30))
        return reached[0]

    async def main() -> int:
        k = 1
        while await at(k):
            k += 1
        return k - 1

    with oncemore.open(tmp_path / "log.db"):
        awaits = asyncio.run(main())
    print(f"{effect}: cancelled at each of {awaits} awaits")
    assert awaits >= 8


@pytest.mark.parametrize("effect", EFFECTS)
def test_cancelling_a_trio_scope_at_any_await_gets_through_and_loses_nothing(
    tmp_path: Path, effect: Any
) -> None:
    world = World(effect, trio.sleep)

    async def at(k: int) -> bool:
        order, told = f"{k}", None
        with trio.CancelScope() as scope:
            cut = Cut(world.work(order), k, scope.cancel)
            told = await cut
        assert scope.cancelled_caught is (told is None)
        assert told is None or told == {"order": order}
        assert scope.cancelled_caught is cut.reached or told is not None
        world.check_after(order)
        with trio.fail_after(30):
            world.check_end(order, await _next(world, order))
        return cut.reached

    async def main() -> int:
        k = 1
        while await at(k):
            k += 1
        return k - 1

    with oncemore.open(tmp_path / "log.db"):
        awaits = trio.run(main)
    print(f"{effect}: cancelled at each of {awaits} awaits")
    assert awaits >= 8


@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_an_attempt_whose_time_is_up_in_a_checkpoint_was_too_slow_and_not_cancelled(
    tmp_path: Path, effect: Any
) -> None:
    @oncemore.step(effect=effect, policy=QUICK, timeout=0.1)
    async def work() -> int:
        number = oncemore.current().number
        if number == 1:
            await oncemore.current().checkpoint("half")
        return number

    class Slow:
        def __init__(self, ticket: Any) -> None:
            self._ticket = ticket

        def wait(self) -> Any:
            return self._ticket.wait()

        def __await__(self) -> Any:
            yield from asyncio.sleep(0.5).__await__()
            return (yield from self._ticket.__await__())

    with oncemore.open(tmp_path / "log.db") as engine:
        append: Any = engine.store.append

        def slow(batch: Any) -> Any:
            ticket = append(batch)
            return Slow(ticket) if "CHECKPOINT" in decode_header(batch.writes[0].header).marks else ticket

        engine.store.append = slow  # type: ignore[method-assign]
        if effect == "once":
            with pytest.raises(oncemore.OutcomeUnknown):
                asyncio.run(work())
        else:
            assert asyncio.run(work()) == 2


@pytest.mark.parametrize("effect", EFFECTS)
def test_closing_a_coroutine_at_any_await_loses_nothing(tmp_path: Path, effect: Any) -> None:
    world = World(effect, asyncio.sleep)

    async def at(k: int) -> bool:
        order, made = f"{k}", world.work(f"{k}")

        def close() -> str:
            made.close()  # type: ignore[attr-defined]
            return "closed"

        cut = Cut(made, k, close)
        await cut
        world.check_after(order)
        world.check_end(order, await asyncio.wait_for(_next(world, order), 30))
        return cut.reached

    async def main() -> int:
        k = 1
        while await at(k):
            k += 1
        return k - 1

    with oncemore.open(tmp_path / "log.db"):
        awaits = asyncio.run(main())
    print(f"{effect}: closed at each of {awaits} awaits")
    assert awaits >= 8


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_program_that_ends_inside_a_step_leaves_it_in_order(tmp_path: Path, effect: Any) -> None:
    @oncemore.step(effect=effect, policy=QUICK)
    def work(order: str) -> str:
        if oncemore.current().number == 1:
            sys.exit(3)
        return order

    with oncemore.open(tmp_path / "log.db"):
        with pytest.raises(SystemExit) as end:
            work("o")
        assert end.value.code == 3
        run = work.last_run("o")
        assert run is not None
        assert (run.status, run.reason) == ("SOFT_FAIL", "interrupted")
        if effect == "once":
            with pytest.raises(oncemore.OutcomeUnknown):
                work("o")
        else:
            assert work("o") == "o"


# The end of a process -----------------------------------------------------------------------------------

ENDS = """
    import sys, threading, time
    import oncemore

    begun = threading.Event()

    @oncemore.step(effect="idempotent", name="work")
    def work(order: str) -> str:
        begun.set()
        time.sleep(60 if order == "long" else 0)
        return order

    {open}
    assert work("short") == "short"
    threading.Thread(target=long, daemon=True).start()
    assert begun.wait(10)
    begun.clear()
    time.sleep(0.2)
"""


@pytest.mark.parametrize(
    "opened",
    [
        "long = lambda: work('long')",
        "engine = oncemore.open(sys.argv[1]); work = work.bind(engine); long = lambda: work('long')",
    ],
    ids=["settings", "open"],
)
def test_a_process_that_ends_gives_its_leases_back_at_once(tmp_path: Path, opened: str) -> None:
    path = tmp_path / "log.db"
    script = textwrap.dedent(ENDS).replace("{open}", opened)
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        check=False, capture_output=True, text=True, timeout=60, cwd=ROOT,
        env={**_environment(), "ONCEMORE_STORE": str(path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with oncemore.open(path) as engine:
        workers = [head.by.state for head in engine.store.list_heads(_workers())]
        assert workers == ["ENDED"], done.stderr


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)


def _workers() -> Any:
    from oncemore.log.store import HeadQuery

    return HeadQuery("worker")
