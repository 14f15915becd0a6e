"""Crash harness: perform a script operation by operation, crash it anywhere, recover, and check.

A flow is a generator that yields operations and receives their results. `ScriptRun` performs one script and
raises `ProcessCrash` before or after a chosen operation. `crash_everywhere` runs a process once for each of
its crash points, then each process that recovers from it, and yields what every crash leaves. A scenario is a
function that builds the state, a function that runs one process on it, and this loop:

    for state in crash_everywhere(start, run_process):
        run_process(state, None)        # the process that recovers
        check_end(state)

`tests/crash/simulation.py` has the usual state: a store, a virtual clock, workers that die, counted effects.
Processes that are real engines, with the real driver, are run by `start_engine_call` and `run_with_driver`.
Only these two modules know how flows are started and which operations they yield.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from oncemore.log.memory import MemoryStore
from oncemore.messaging import driver as delivery_driver
from oncemore.steps import call_operations, flow
from oncemore.steps.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from oncemore.artifacts.backends import MemoryBackend
    from oncemore.log.memory import CompletedTicket
    from oncemore.log.record import LoadedHead
    from oncemore.log.store import Batch
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.plan import StepPlan

    Script = Generator[Any, Any, Any]

When = Literal["before", "after"]
State = TypeVar("State")
MAX_OPERATIONS = 2_000


class ProcessCrash(BaseException):
    """The simulated process crashes here."""


class CrashPoint(NamedTuple):
    """Before or after the operation of this number, counted from 1."""

    number: int
    when: When


class CrashLevel(NamedTuple):
    """Where one process of a sequence of processes crashes; no numbers: at every operation it has.

    The state before operation N+1 is the state after operation N, so that one of the two is enough for every
    process but the first.
    """

    when: tuple[When, ...] = ("before", "after")
    numbers: Iterable[int] | None = None


EVERYWHERE = CrashLevel()
BEFORE_EACH, AFTER_EACH = CrashLevel(("before",)), CrashLevel(("after",))


def crash_everywhere(
    start: Callable[[], State],
    run: Callable[[State, CrashPoint | None], object],
    levels: Sequence[CrashLevel] = (EVERYWHERE,),
    *,
    after_crash: Callable[[State], object] = lambda state: None,
    earlier: tuple[CrashPoint, ...] = (),
) -> Iterator[State]:
    """Yield the state that is left by every crash, and by every sequence of crashes over the levels.

    `run` runs one process and raises `ProcessCrash` at its crash point; a process that does not come that far
    ends the enumeration of its level. Each state is built from the start, so that the test may change it.
    """
    level, *deeper = levels
    for number in itertools.count(1) if level.numbers is None else level.numbers:
        was_reached = False
        for when in level.when:
            crashes = (*earlier, CrashPoint(number, when))
            state = start()
            if all(_crash_process(state, run, crash, after_crash) for crash in crashes):
                was_reached = True
                yield state
                if deeper:
                    yield from crash_everywhere(start, run, deeper, after_crash=after_crash, earlier=crashes)
        if not was_reached:
            return


def _crash_process(state: Any, run: Any, crash: CrashPoint, after_crash: Any) -> bool:
    try:
        run(state, crash)
    except ProcessCrash:
        after_crash(state)
        return True
    return False


class ScriptRun:
    """One script of one process, performed operation by operation.

    `op` is the next operation, None after the last one; `result` is then the `EndCall` of a flow or the
    return value of any other script.
    """

    def __init__(
        self, script: Script, perform: Callable[[Any], Any], end_process: Callable[[], object]
    ) -> None:
        self.script, self._perform, self.end_process = script, perform, end_process
        self.count = 0
        self.op: Any = None
        self.result: Any = None
        self.resume(None)

    def resume(self, answer: Any) -> None:
        """Give the script the result of its operation without performing it."""
        try:
            self.op = self.script.send(answer)
        except StopIteration as end:
            self.op, self.result = None, end.value

    def step(self, crash: When | None = None) -> None:
        """Perform the next operation, or crash before or after it."""
        self.count += 1
        assert self.count < MAX_OPERATIONS, "the script does not end"
        if crash == "before":
            self._crash()
        answer = self._perform(self.op)
        if crash == "after":
            self._crash()
        self.resume(answer)

    def run(self, crash: CrashPoint | None = None, max_steps: int = MAX_OPERATIONS) -> Any:
        """Perform the script to its end, to the crash, or so many operations; return the result."""
        last = self.count + max_steps
        while self.op is not None and self.count < last:
            is_here = crash is not None and crash.number == self.count + 1
            self.step(crash.when if crash is not None and is_here else None)
        return self.result

    def run_until(self, *kinds: type) -> Any:
        """Perform the script up to an operation of these kinds, and return that operation unperformed."""
        while type(self.op) not in kinds:
            assert self.op is not None, f"the script ended without {kinds}"
            self.step()
        return self.op

    def _crash(self) -> None:
        self.end_process()
        raise ProcessCrash


# Processes that are real engines ----------------------------------------------------------------------


def start_call(plan: StepPlan, call: PreparedCall, head: LoadedHead | None = None) -> Script:
    """Return the script of a call of a step, with the head of its run if that is already loaded."""
    return flow.run_step(plan, call, head)


def start_engine_call(engine: Engine, step: Any, *args: Any) -> ScriptRun:
    """Return a call of a step on an engine, performed by the real driver."""
    bound = step.bind(engine)
    call = bound._prepare_call(args, {})
    return run_with_driver(engine, call, start_call(call.plan, call))


def run_with_driver(engine: Engine, call: PreparedCall, script: Script) -> ScriptRun:
    """Return the run of any step script on an engine, performed by the real driver."""
    table = call_operations.CALL_OPERATIONS.blocking
    return ScriptRun(script, lambda op: table[type(op)](call, op), lambda: kill_process(engine))


def run_with_delivery_driver(engine: Engine, courier: Any, script: Script) -> ScriptRun:
    """Return the run of a script of the outbox or the inbox, performed by the real driver."""
    return ScriptRun(script, lambda op: perform_delivery(courier, op), lambda: kill_process(engine))


def perform_delivery(courier: Any, op: Any) -> Any:
    """Perform one operation of the outbox or the inbox."""
    return delivery_driver.DELIVERY_OPERATIONS.blocking[type(op)](courier, op)


def kill_process(engine: Engine) -> None:
    """Make the process of an engine detectably dead, with its work in progress."""
    for identity in engine.leases.workers.values():
        identity._presence.close()
    if engine.leases.heartbeat is not None:
        engine.leases.heartbeat.stop_heartbeat()


# Stores that outlive their processes ------------------------------------------------------------------


class SharedStore(MemoryStore):
    """A store that stays open when one of its engines is closed."""

    def close(self) -> None:
        """Do nothing: the store outlives the process."""


class CrashingStore(SharedStore):
    """A store that crashes its process before or after one of its writes, and every later write of it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.crash: CrashPoint | None = None
        self._is_crashed = False

    def run(self, process: Callable[[Any], object], crash: CrashPoint | None) -> None:
        """Run a process that may crash at one of its writes."""
        self.writes, self.crash = 0, crash
        try:
            process(self)
        finally:
            self.crash, self._is_crashed = None, False
            if crash is not None:
                self._live_workers.clear()  # every worker of the process is detectably gone

    def _write(self, write: Callable[..., Any], *args: Any) -> Any:
        self.writes += 1
        if self._is_crashed or self.crash == (self.writes, "before"):
            self._is_crashed = True
            raise ProcessCrash
        answer = write(*args)
        if self.crash == (self.writes, "after"):
            self._is_crashed = True
            raise ProcessCrash
        return answer

    def append(self, batch: Batch) -> CompletedTicket:
        return self._write(super().append, batch)  # type: ignore[no-any-return]

    def prune_bodies(self, before: Mapping[str, int]) -> None:
        self._write(super().prune_bodies, before)

    def drop_entities(self, at: Mapping[str, int]) -> int:
        return self._write(super().drop_entities, at)  # type: ignore[no-any-return]


def crash_at_every_write(
    start: Callable[[], CrashingStore], process: Callable[[CrashingStore], object]
) -> Iterator[CrashingStore]:
    """Yield the store that is left when a process crashes before or after each of its writes."""
    return crash_everywhere(start, lambda store, crash: store.run(process, crash))


def open_engine_on(store: MemoryStore, artifacts: MemoryBackend | None = None) -> Engine:
    """Return an engine on a store, as a new process would open it."""
    return Engine(lambda: store, "memory:", place=None if artifacts is None else lambda: artifacts)
