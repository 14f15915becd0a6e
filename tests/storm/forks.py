"""Workers that fork, each in another state; what they check they check themselves, in parent and child."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import oncemore
from tests.storm.work import RECORDER, STEPS, acknowledge, do, happen, ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.steps.engine import Engine

FINE, WRONG = 0, 7


def _forked(child: Callable[[], object]) -> None:
    """Do something in a forked child, and wait for its end; it must be fine."""
    pid = os.fork()
    if pid == 0:
        code = WRONG
        try:
            child()
            code = FINE
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == FINE


def _name(engine: Engine) -> str:
    return engine.leases.current_identity().name


def idle(place: dict[str, str]) -> None:
    """Fork while the engine is open and nobody uses it."""
    with ready(place) as engine:
        do(place, "charge", "parent")
        mine = _name(engine)

        def child() -> None:
            assert do(place, "charge", "parent") == "value"
            assert do(place, "charge", "child") == "value"
            assert _name(engine) != mine
            assert not engine.store.is_worker_gone(mine), "the parent's lock is gone"

        for _ in range(3):
            _forked(child)
            _forked(lambda: engine.close())
            assert _name(engine) == mine
            _forked(
                lambda: _expect(not engine.store.is_worker_gone(mine), "a child's end took the parent's lock")
            )
        assert do(place, "charge", "again") == "value"


def _expect(true: bool, what: str) -> None:
    assert true, what


def grandchildren(place: dict[str, str]) -> None:
    """Fork in a child that has used the store itself."""
    with ready(place) as engine:
        names = {_name(engine)}

        def grandchild() -> None:
            assert _name(engine) not in names
            assert do(place, "charge", "grandchild") == "value"

        def child() -> None:
            names.add(_name(engine))
            _forked(grandchild)
            assert do(place, "charge", "grandchild") == "value"

        _forked(child)
        assert do(place, "charge", "grandchild") == "value"


def working(place: dict[str, str], forks: int) -> None:
    """Fork while other threads are inside of their steps' functions."""
    begun, end = threading.Semaphore(0), threading.Event()

    @oncemore.step(effect="once", name="slow")
    def slow(number: int) -> int:
        begun.release()
        assert end.wait(60)
        happen("once")
        return number

    with ready(place) as engine:

        def one(number: int) -> None:
            value = slow.bind(engine)(number)
            acknowledge(place, step="slow", order=f"{number}", key=slow.bind(engine).key(number), value=value)

        team = [threading.Thread(target=one, args=(number,)) for number in range(3)]
        for thread in team:
            thread.start()
            assert begun.acquire(timeout=30)
        for number in range(forks):
            _forked(lambda number=number: _expect(do(place, "pay", f"fork-{number}") == "value", "refused"))
        end.set()
        for thread in team:
            thread.join()


def busy(place: dict[str, str], forks: int) -> None:
    """Fork again and again while other threads are in the middle of steps and writes."""
    over = threading.Event()

    with ready(place) as engine:

        def work(number: int) -> None:
            count = 0
            while not over.is_set():
                count += 1
                for step in ("charge", "announce"):
                    key = STEPS[step].key(f"{number}-{count}")
                    value = STEPS[step].bind(engine)(f"{number}-{count}")
                    acknowledge(place, step=step, order=f"{number}-{count}", key=key, value=value)

        with engine:
            team = [threading.Thread(target=_inside, args=(engine, work, n)) for n in range(3)]
        for thread in team:
            thread.start()
        try:
            for number in range(forks):
                _forked(
                    lambda number=number: _expect(do(place, "pay", f"fork-{number}") == "value", "refused")
                )
                time.sleep(0.003)
        finally:
            over.set()
            for thread in team:
                thread.join()


def _inside(engine: Engine, work: Callable[[int], None], number: int) -> None:
    with engine:
        work(number)


# Inside of a step's function ----------------------------------------------------------------------------


def _leaves() -> None:
    os._exit(FINE)


def _exits() -> None:
    sys.exit(FINE)


def _returns() -> None:
    """Go on as if it were the parent."""


def _checkpoints() -> None:
    for act in (oncemore.current().checkpoint, oncemore.current().emit):
        try:
            act("child")
        except oncemore.LeaseLost:
            continue
        os._exit(WRONG)
    os._exit(FINE)


def _raises() -> None:
    raise oncemore.TransientError("in the child")


CHILDREN = {
    "leaves": _leaves,
    "exits": _exits,
    "returns": _returns,
    "checkpoints": _checkpoints,
    "raises": _raises,
}


def inside(place: dict[str, str], effect: Any, what: str) -> None:
    """Fork inside of a step's function: the attempt is the parent's, whatever the child does."""
    with ready(place) as engine:
        parent = os.getpid()

        @oncemore.step(effect=effect, name=f"forks-{effect}-{what}")
        def work(order: str) -> int:
            if effect == "outbox":
                oncemore.current().emit("topic")
            pid = os.fork()
            if pid == 0:
                CHILDREN[what]()
                return -1
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert code == FINE, what
            time.sleep(0.05)
            happen(effect)
            return oncemore.current().number

        try:
            value = work("o")
        except BaseException:
            if os.getpid() != parent:
                os._exit(FINE)  # whatever it was, it came through and nothing was written: the parent looks
            raise
        if os.getpid() != parent:
            os._exit(WRONG)
        assert value == 1
        run = work.last_run("o")
        assert run is not None
        assert run.status == "COMPLETE"
        assert [attempt.outcome for attempt in run.attempts] == ["COMPLETE"], run.explain()
        assert _name(engine) == run.attempts[0].worker


# Pools --------------------------------------------------------------------------------------------------


def _pooled(told: tuple[dict[str, str], str, str]) -> str:
    place, step, order = told
    RECORDER["address"] = place["recorder"]
    with oncemore.open(place["store"]):
        return do(place, step, order)


def pool(place: dict[str, str], kind: str) -> None:
    """Call steps from the workers of a pool, several for each key; the parent uses the store too."""
    with ready(place):
        do(place, "charge", "0")
        with multiprocessing.get_context(kind).Pool(4) as workers:
            todo = [(place, step, f"{n % 5}") for n in range(40) for step in ("charge", "pay")]
            assert set(workers.map(_pooled, todo, chunksize=1)) == {"value"}
        do(place, "charge", "1")
