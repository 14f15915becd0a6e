"""The whole durable engine in one thread, under a virtual clock, with everything that can go wrong.

    python -m tests.sim.simulator SEED          replay one schedule, and show every step
    python -m tests.sim.simulator FIRST COUNT   run many, and count

A schedule is made from one seed. What runs in it is the real thing: the flow, the functions of `steps.append`
and `steps.perform`, engines with their leases, the store in memory. What is simulated is the world around:
*processes*, each with an engine of its own and up to two calls at once (*lanes*), stepped operation by
operation in an order that the seed draws; the time; the outside that effects reach; and faults, before and
after any operation:

    crash      the process is gone; its lease stays until it passes, or it is seen to be gone
    pause      it stands still, without a heartbeat, and goes on later with what it had read
    lost       a write's answer is lost, before or after it was stored; or all of the answers to it
    cut        Ctrl-C or cancellation: in a write, the work, a wait, a reconcile function
    jump       the clock leaps forward
    skew       a process reads another time than the store's
    late       a heartbeat comes late; an effect lands after its attempt was given up

The same seed gives the same log, byte by byte. Once all is quiet, a fresh process must bring every key to
an end; whoever was paused then wakes up, and nothing it does may change that end.
"""

from __future__ import annotations

import copy
import hashlib
import sys
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from oncemore.errors import Deferred, InProgress, LeaseLost, OutcomeUnknown, StepFailed, StoreError
from oncemore.log import entry_codec
from oncemore.log.entry_codec import decode_head
from oncemore.log.memory import CompletedTicket, MemoryStore
from oncemore.log.record import RunRecord, WorkerRecord
from oncemore.log.store import Stored
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy
from oncemore.steps import append, call_operations, engine, lease, operator_flow, perform, transitions
from oncemore.steps.attempt import RunningAttempt
from oncemore.steps.attempt_storage import AttemptStorage, build_checkpoint
from oncemore.steps.call import PreparedCall
from oncemore.steps.engine import Engine
from oncemore.steps.ops import (
    AppendChange,
    AskPermission,
    AskReconcile,
    AttemptOutcome,
    AttemptTerms,
    LoadHead,
    NotifyListeners,
    ReadBody,
    ReadClock,
    ReadLease,
    ReconcileAnswer,
    ReserveWorker,
    RunAttempt,
    SleepSeconds,
    WatchEntity,
)
from oncemore.steps.plan import StepPlan
from tests.crash.harness import start_call
from tests.crash.simulation import decide_as_operator
from tests.sim.judge import FINAL, Book, Judge, Violation

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

START = 1_000_000.0
MOST_STEPS = 1500
LEASE_S = 60.0


class Cut(BaseException):
    """Ctrl-C, or a cancellation."""


class Fails(Exception):
    """Work that fails; which way is its first argument."""


#: What the outside does to an execution, and how likely it is in a fair and in a foul world.
TURNS = {
    "ok": (0.62, 0.36),
    "transient": (0.12, 0.14),
    "transient, done": (0.06, 0.10),
    "throttled": (0.03, 0.05),
    "permanent": (0.03, 0.05),
    "refused": (0.05, 0.09),
    "timed out, done later": (0.03, 0.06),
    "odd": (0.02, 0.03),
    "cut": (0.02, 0.05),
    "cut, done": (0.02, 0.07),
}
FAIR, FOUL = ([weights[which] for weights in TURNS.values()] for which in (0, 1))
NAMES = list(TURNS)
KINDS = {
    "transient": Failure("transient", "maybe", None, "TRANSIENT", "sim"),
    "transient, done": Failure("transient", "maybe", None, "TRANSIENT", "sim"),
    "throttled": Failure("throttled", "maybe", 300.0, "THROTTLED", "sim"),
    "permanent": Failure("permanent", "maybe", None, "PERMANENT", "sim"),
    "refused": Failure("transient", "no", None, "REFUSED", "sim"),
    "timed out, done later": Failure("transient", "maybe", None, "TIMEOUT", "sim"),
}
ELSE = Failure("transient", "maybe", None, "ELSE", "sim")

_SCHEDULES = (
    Schedule("fixed", delays=(0.0,)),
    Schedule("fixed", delays=(5.0, 7.0)),
    Schedule("exponential", 20.0, cap=100.0),
)
POLICIES = [
    Policy(
        "sim",
        max_attempts=most,
        max_crashes=crashes,
        schedule=schedule,
        jitter=Jitter(spread),  # type: ignore[arg-type]
        total_timeout_s=within,
    )
    for most in (1, 2, 3, 5)
    for crashes in (None, 1, 2, 20)
    for schedule in _SCHEDULES
    for spread in ("none", "full")
    for within in (None, 200.0)
]


def _encode(value: Any) -> Any:
    if value[0] == "odd":
        raise ValueError("it cannot be kept")
    return {"it": value[1]}


def _not_applied(error: Exception) -> bool:
    return bool(error.args) and error.args[0] == "refused"


def _never(error: Exception) -> bool:
    return False


def _describe(error: BaseException, failure: Failure | None) -> dict[str, Any]:
    return {"type": type(error).__name__, "message": str(error)}


def _classify(error: BaseException, now: float) -> Failure:
    return KINDS.get(error.args[0], ELSE) if type(error) is Fails else ELSE


# Chance that the product draws is drawn from the schedule's seed instead ------------------------------


class _Chance:
    """Where nonces and names come from."""

    count = 0

    @classmethod
    def bits(cls) -> int:
        cls.count += 1
        return cls.count << 16  # a nonce is the upper 48 of these 64 bits

    @classmethod
    def uuid7(cls, now: float) -> str:
        cls.count += 1
        return f"w{cls.count}"


_HOST = SimpleNamespace(nodename="sim")
_HERE = SimpleNamespace(uname=lambda: _HOST, getpid=lambda: 1)
_SEEDED = (
    (entry_codec, "_draw_bits", _Chance.bits),
    (lease, "os", _HERE),
    (lease, "new_uuid7", _Chance.uuid7),
    (engine.log, "disabled", True),  # a heartbeat that fails says so, a thousand times here
)


@contextmanager
def seeded() -> Iterator[None]:
    """Let nothing be drawn but from seeds while schedules run."""
    before = [getattr(where, name) for where, name, _ in _SEEDED]
    for where, name, put in _SEEDED:
        setattr(where, name, put)
    try:
        yield
    finally:
        for (where, name, _), was in zip(_SEEDED, before, strict=True):
            setattr(where, name, was)


# A process --------------------------------------------------------------------------------------------


class Link:
    """A process's way to the store: its own clock, and answers that get lost."""

    def __init__(self, sim: Sim, skew: float) -> None:
        self.sim, self.store, self.skew = sim, sim.store, skew
        self.lane: Lane | None = None  # whose write is under way
        self.op: AppendChange | None = None
        self.loses = ""  # "before" or "after" it was stored
        self.raises: BaseException | None = None
        self.whose: Lane | None = None
        self.times = 0
        store = sim.store
        self.load_head, self.read_entries, self.is_worker_gone, self.register_worker = (
            store.load_head,
            store.read_entries,
            store.is_worker_gone,
            store.register_worker,
        )
        self.open_maintenance, self.checks_guards_late = store.open_maintenance, store.checks_guards_late

    def now(self) -> float:
        return self.sim.now + self.skew

    def append(self, batch: Any) -> CompletedTicket:
        loses = self.loses
        if self.raises is not None and (self.op is None or self.lane is not self.whose):
            loses = ""  # somebody else is cut off
        if loses:
            self.times -= 1
            if self.times <= 0:
                self.loses = ""
            if loses == "before":
                raise self._error()
            if self.times > 0:
                self.loses = "before"  # the store is down from then on
        answer = self.store.append(batch).wait()
        if self.op is not None and type(answer) is Stored and batch.writes[0].entity == self.op.head.entity:
            self.sim.stored(self.lane, self.op, batch)
        if loses:
            raise self._error()
        return CompletedTicket(answer)

    def _error(self) -> BaseException:
        error, self.raises = self.raises, None
        lane = self.lane
        if lane is not None:
            lane.cut = lane.cut or error
            # What comes for a lease is not sent again; what comes too often, or with a cut, neither.
            lane.errors += 1
            lane.store_failed |= (
                self.op is None or lane.errors > len(append.RESEND_DELAYS_S) or lane.at == "Save again"
            )
        return error or StoreError("the answer is lost")

    def close(self) -> None: ...


class _NoHeart:
    """Beats are the simulation's."""

    def stop_heartbeat(self) -> None: ...


class Lane:
    """One call under way in a process, and what the judge needs to know of it."""

    def __init__(self, process: Process, call: PreparedCall, kind: str, life: int) -> None:
        self.process, self.call, self.kind, self.life = process, call, kind, life
        self.script: Generator[str, None, None] | None = None
        self.at = "begins"
        self.wake = 0.0
        self.fence = 0
        self.working = 0
        self.cut: BaseException | None = None
        self.cut_soon = False
        self.read_fails = False
        self.store_failed = False
        self.errors = 0
        self.committed = False
        self.other = False
        self.person: Person | None = None
        self.read = 0.0
        self.asked_about: tuple[str, int, float, float] = ("", 0, 0.0, 0.0)


class Person:
    """Somebody who settles an unknown outcome; what they say follows from what they find, at first sight."""

    outcome = "not_applied"
    value: Any = None
    decision_body: ClassVar = {"decision": {"action": "settle", "reason": "looked", "actor": "somebody"}}


class Process:
    """An engine on the shared store, with its lanes and its heart."""

    def __init__(self, sim: Sim, number: int, skew: float) -> None:
        self.number = number
        self.link = Link(sim, skew)
        self.engine = Engine(lambda: self.link, "memory:", lease_s=LEASE_S)  # type: ignore[arg-type, return-value]
        self.engine.leases.heartbeat = _NoHeart()  # type: ignore[assignment]
        self.lanes: list[Lane] = []
        self.beat_at = sim.now + LEASE_S / 3
        self.asleep_until = 0.0


# The simulation ---------------------------------------------------------------------------------------


class Sim:
    """One schedule."""

    store_kind: type[MemoryStore] = MemoryStore

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.chance = chance = rng.random
        _Chance.count = 0
        self.now = START
        self.store = self.store_kind(lambda: self.now)
        self.judge = Judge()
        self.trace: list[str] | None = [] if trace else None
        self.pairs: set[tuple[str, str, str]] = set()
        self.ids = 0
        self.late: list[tuple[float, Book, int, int]] = []
        self.calm = False
        self.reactions = 4
        self.effect = effect = rng.choice(("pure", "idempotent", "outbox", "once", "once"))
        foul = chance() < 0.5
        self.weights = FOUL if foul else FAIR
        policy = rng.choice(POLICIES)
        self.plan = StepPlan(
            name="sim", effect=effect, policy=policy, classify=_classify,  # type: ignore[arg-type]
            encode=_encode, decode=_decode, describe=_describe,
            not_applied=_not_applied if chance() < 0.7 else _never,
            has_reconcile=effect == "once" and chance() < 0.6,
            if_running="wait" if chance() < 0.8 else "raise",
            inline_wait_s=60.0 if chance() < 0.7 else 3.0,
            after_failure="new_run" if chance() < 0.25 else "raise",
        )  # fmt: skip
        self.lanes_each = 2 if chance() < 0.3 else 1
        self.spread_s = rng.choice((1.0, 30.0))
        self.configs = ("c1", "c2") if chance() < 0.25 else ("c1",)
        self.skewed = chance() < 0.2
        self.fault_rate = rng.choice((0.0, 0.02, 0.05, 0.1, 0.2))
        self.faults_left = rng.choice((1, 2, 4, 8))
        for n in range(1 if chance() < 0.7 else 2):
            entity = f"run/k{n}"
            self.judge.books[entity] = Book(entity, effect, fencing=chance() < 0.5)
        self.queue = [
            (rng.choice(("call", "call", "call", "call", "rerun", "settle")), entity)
            for entity in self.judge.books
            for _ in range(rng.randint(2, 6))
        ]
        self.processes: list[Process | None] = [None] * rng.randint(2, 4)
        self.born = [START + chance() * 5.0 for _ in self.processes]
        if trace:
            self.say(
                f"effect {effect}, asks {self.plan.has_reconcile}, {policy.max_attempts} attempts, "
                f"within {policy.total_timeout_s}, {self.plan.after_failure}, {len(self.processes)} "
                "processes, "
                f"{len(self.queue)} calls, faults {self.fault_rate}, at most {self.faults_left}"
            )

    def say(self, text: str) -> None:
        """Note a step, if anybody looks."""
        if self.trace is not None:
            self.trace.append(f"{self.now - START:9.2f}  {text}")

    # Time and order ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Let everything happen, then see that all comes to an end."""
        try:
            for _ in range(MOST_STEPS):
                if not self._step():
                    break
            self._finish()
            self.judge.closing(self.store)
        except Violation as broken:
            broken.args = (f"seed {self.seed}, at {self.now - START:.2f} s: {broken}",)
            raise

    def _step(self) -> bool:
        """Step one lane; return False when nobody has anything left to do."""
        now, chance = self.now, self.chance
        if self.late and chance() < 0.1:
            self._land_late()
        ready: list[tuple[Process, Lane]] = []
        soonest = now + 1e9
        for at, process in enumerate(self.processes):
            if process is None:
                if self.queue and self.born[at] <= now:
                    process = self.processes[at] = self._birth(at)
                else:
                    if self.queue:
                        soonest = min(soonest, self.born[at])
                    continue
            if process.asleep_until > now:
                soonest = min(soonest, process.asleep_until)
                continue
            if process.beat_at <= now:
                self._beat(process)
            while len(process.lanes) < self.lanes_each and self.queue:
                self._take(process)
            for lane in process.lanes:
                if lane.wake <= now:
                    ready.append((process, lane))
                elif lane.wake < soonest:
                    soonest = lane.wake
            if process.lanes and process.beat_at < soonest:
                soonest = process.beat_at
        if not ready:
            if soonest > now + 1e8:
                return False
            self.now = max(now, soonest)
            return True
        process, lane = ready[int(chance() * len(ready))]
        if self.faults_left and chance() < self.fault_rate:
            self.faults_left -= 1
            if self._fault(process, lane):
                return True
        self._advance(process, lane)
        if chance() < 0.2:
            self.now += chance() * 3.0
        return True

    def _birth(self, at: int) -> Process:
        skew = self.rng.choice((0.0, -30.0, 45.0, 3600.0, -3600.0)) if self.skewed else 0.0
        return Process(self, at, skew)

    def _beat(self, process: Process) -> None:
        late = self.chance() < 0.05
        if late and not self.calm:
            self._covered("run", "heartbeat", "late")
        process.link.lane, process.link.op = None, None
        process.engine.leases.renew_leases()
        process.beat_at = self.now + (LEASE_S / 3 if not late else LEASE_S * 2 * self.chance())

    def _advance(self, process: Process, lane: Lane) -> None:
        process.link.lane = lane
        script = lane.script
        assert script is not None
        try:
            lane.at = next(script)
            if self.trace is not None:
                self.say(f"P{process.number} {lane.call.entity} fence {lane.fence}: {lane.at}")
        except StopIteration:
            process.lanes.remove(lane)

    # What goes wrong --------------------------------------------------------------------------------

    def _covered(self, entity: str, at: str, fault: str) -> None:
        book = self.judge.books.get(entity)
        run = None if book is None else book.run
        state = "none" if run is None else "held" if run.held_for else run.state
        self.pairs.add((state, at, fault))
        self.say(f"    FAULT {fault} before {at} ({state})")

    def _fault(self, process: Process, lane: Lane) -> bool:
        """Let something go wrong before a lane's next operation; return True if that is all for now."""
        chance, at, link = self.chance, lane.at, process.link
        roll = chance()
        if roll < 0.30:
            self._covered(lane.call.entity, at, "crash")
            self.crash(process, seen=chance() < 0.4)
            return True
        if roll < 0.50:
            self._covered(lane.call.entity, at, "pause")
            process.asleep_until = self.now + self.rng.choice((2.0, 30.0, 70.0, 200.0, 2000.0))
            if at == "Save CHECKPOINT" and chance() < 0.5:
                self._cut_write(lane, "before" if chance() < 0.4 else "after")  # as it wakes up
            return True
        if roll < 0.54:
            self._covered(lane.call.entity, at, "jump")
            self.now += self.rng.choice((61.0, 3600.0))
            return False
        if at.startswith("Save"):
            when = "before" if chance() < 0.4 else "after"
            if roll < 0.85:
                often = 0.3 if at == "Save CHECKPOINT" else 0.7  # what only this one can leave in doubt
                link.times = 1 if chance() < often else self.rng.choice((3, 8))
                self._covered(lane.call.entity, at, f"answer lost {when}, {link.times} times")
            else:
                self._cut_write(lane, when)
                if chance() < 0.5:
                    lane.read_fails = lane.store_failed = True  # troubles come together
                return False
            link.loses, link.raises = when, None
        elif at in ("SleepSeconds", "WatchEntity", "AskReconcile"):
            self._covered(lane.call.entity, at, "cut")
            lane.cut_soon = True
        elif at in ("LoadHead", "ReadBody", "ReadLease"):
            self._covered(lane.call.entity, at, "unreachable")
            lane.read_fails = lane.store_failed = True
        return False

    def _cut_write(self, lane: Lane, when: str) -> None:
        """Cut a lane off in its next write, before or after that is stored."""
        self._covered(lane.call.entity, lane.at, f"cut {when}")
        link = lane.process.link
        cut = lane.cut or Cut(f"in {lane.at}")
        link.loses, link.times, link.raises, link.whose = when, 1, cut, lane

    def crash(self, process: Process, *, seen: bool) -> None:
        """End a process as kill -9 does; `seen`: the others can tell that it is gone."""
        at = self.processes.index(process)
        for lane in process.lanes:
            if self.chance() < 0.6:
                self.queue.append((lane.kind, lane.call.entity))  # its message comes again
        if seen:
            for me in process.engine.leases.workers.values():
                me._presence.close()
        process.lanes = []
        self.processes[at] = None
        self.born[at] = self.now + self.rng.choice((0.0, 5.0, 100.0))

    # Calls ------------------------------------------------------------------------------------------

    def _take(self, process: Process) -> None:
        kind, entity = self.queue.pop(int(self.chance() * len(self.queue)))
        self.call(process, kind, entity, self.now + self.chance() * self.spread_s)

    def call(self, process: Process, kind: str, entity: str, wake: float = 0.0) -> Lane:
        """Begin a call in a process."""
        chance = self.chance
        now = self.now + process.link.skew
        within = self.plan.policy.total_timeout_s
        deadline = now + within if within is not None else 0.0
        give_up = deadline if chance() < 0.8 else now + 20.0
        cfg = self.configs[0] if len(self.configs) == 1 else self.rng.choice(self.configs)
        other = not self.calm and chance() < 0.02
        book = self.judge.books[entity]
        inputs = "input"
        if other:
            inputs = "another"
        elif self.calm and book.run is not None:
            inputs = book.run.input_hash
        call = PreparedCall(
            entity, self.plan, input_hash=inputs, cfg_hash=cfg, deadline=deadline, give_up=give_up,
            make_terms=self._terms,
        )  # fmt: skip
        lane = Lane(process, call, kind, book.life)
        lane.other = other or (book.run is not None and book.run.input_hash != inputs)
        if not lane.other and book.run is None:
            lane.other = True  # another one may come first
        lane.wake = wake
        lane.script = self._drive(process, lane)
        process.lanes.append(lane)
        return lane

    def _terms(self, call: PreparedCall, worker: str, now: float) -> AttemptTerms:
        self.ids += 1
        return AttemptTerms(worker, f"r{self.ids}", {"x": 1}, call.input_hash)

    def _drive(self, process: Process, lane: Lane) -> Generator[str, None, None]:
        """Make a call as the blocking driver does, with a step before every operation."""
        yield "begins"
        plan, call = self.plan, lane.call
        job, call.engine, call.store = call, process.engine, process.engine.store
        scripts: list[Any]
        if lane.kind == "rerun":
            scripts = [
                operator_flow.reopen_run(plan, call, decide_as_operator("rerun")),
                start_call(plan, call),
            ]
        elif lane.kind == "settle":
            lane.person = Person()
            scripts = [operator_flow.settle_run(plan, call, lane.person)]  # type: ignore[arg-type]
        else:
            seen = PERFORM[LoadHead](job, LoadHead(call.entity))
            end = transitions.end_if_complete(plan, call, seen)
            if end is not None:
                self.judge.ended(lane, end.value, end.error)
                return
            scripts = [start_call(plan, call, seen)]
        value: Any = None
        error: BaseException | None = None
        for script in scripts:
            lane.kind = "call" if script is not scripts[0] else lane.kind
            try:
                op = next(script)
                while True:
                    kind = type(op)
                    if kind is AppendChange:
                        op = script.send((yield from self._save(lane, job, op)))
                    elif kind is RunAttempt:
                        op = script.send((yield from self._work(lane, job, op)))
                    else:
                        yield kind.__name__
                        op = script.send(_DO[kind](self, lane, job, op))
                        if lane.wake > self.now:
                            yield kind.__name__
                            if lane.cut_soon:
                                self._cut_here(lane, job)
            except StopIteration as end_of_script:
                value, error = end_of_script.value.value, job.interrupt or end_of_script.value.error
            except (Exception, Cut) as raised:
                if isinstance(raised, Violation):
                    raise
                process.link.op = None
                perform.abandon_call(job, raised)
                value, error = None, self.raised(job, raised)
            if error is not None:
                break
        if self.trace is not None:
            self.say(f"P{process.number} {call.entity} ends: {value!r} {type(error).__name__}: {error}")
        self.judge.ended(lane, value, error)
        self._react(call, error)
        lane.call = copy.copy(call)  # the next call of the lane is another one

    def _react(self, call: PreparedCall, error: BaseException | None) -> None:
        """People do something about it: some of them at once, and more than one of them."""
        if self.calm or not self.reactions:
            return
        if isinstance(error, OutcomeUnknown):
            self.reactions -= 1
            self.queue += [("settle", call.entity)] * self.rng.randint(0, 2)
            self.queue += [("call", call.entity)]
        elif isinstance(error, StepFailed) and self.chance() < 0.3:
            self.reactions -= 1
            self.queue += [("rerun", call.entity)]

    def raised(self, job: PreparedCall, error: BaseException) -> BaseException:
        """What a caller gets of a call that could not go on: what cut it off comes before all else."""
        return job.interrupt or error

    def _cut_here(self, lane: Lane, job: PreparedCall) -> None:
        lane.cut_soon = False
        lane.cut = lane.cut or Cut("in a wait")
        raise lane.cut

    def _look(self, lane: Lane, seen: Any) -> None:
        """A person looks, and tells the truth about the attempt that is held."""
        person, run = lane.person, seen.record
        lane.person = None
        if person is None or run is None or not run.held_for:
            return
        book = self.judge.books[lane.call.entity]
        if run.attempt in (*book.landed, *book.late):
            person.outcome, person.value = "applied", ("ok", _value(lane.call.entity, run.attempt))
        else:
            self.judge.clear(book, run)

    # Operations -------------------------------------------------------------------------------------

    def _load(self, lane: Lane, job: PreparedCall, op: LoadHead) -> Any:
        if lane.read_fails:
            lane.read_fails = False
            raise StoreError("unreachable")
        seen = PERFORM[LoadHead](job, op)
        if lane.person is not None:
            self._look(lane, seen)
        return seen

    def _read_now(self, lane: Lane, job: PreparedCall, op: ReadClock) -> float:
        lane.read = PERFORM[ReadClock](job, op)
        return lane.read

    def _holder(self, lane: Lane, job: PreparedCall, op: ReadLease) -> float:
        if lane.read_fails:
            lane.read_fails = False
            raise StoreError("unreachable")
        until = PERFORM[ReadLease](job, op)
        lane.asked_about = (op.worker, op.fence, until, lane.read)
        if until <= lane.read and self._is_at_it(op, lane.read):
            raise Violation(f"attempt with fence {op.fence} is taken for lost, and its worker is at it")
        return until

    def _is_at_it(self, op: ReadLease, now: float) -> bool:
        """Whether an attempt is under way in a living process whose lease has not passed."""
        head = self.store.load_head(f"worker/{op.worker}")
        if head is None or decode_head(head.head, WorkerRecord).lease_until <= now:
            return False
        return any(
            lane.working == op.fence and lane.call.entity == op.entity
            for process in self.processes
            if process is not None
            for lane in process.lanes
        )

    def _read(self, lane: Lane, job: PreparedCall, op: ReadBody) -> Any:
        if lane.read_fails:
            lane.read_fails = False
            raise StoreError("unreachable")
        return PERFORM[ReadBody](job, op)

    def _sleep(self, lane: Lane, job: PreparedCall, op: SleepSeconds) -> None:
        if job.interrupt is not None:
            raise job.interrupt
        lane.wake = self.now + op.seconds

    def _watch(self, lane: Lane, job: PreparedCall, op: WatchEntity) -> None:
        if job.interrupt is not None:
            raise job.interrupt
        if op.seconds <= 0:
            raise Violation(f"it watches for {op.seconds} s")
        self.judge.watching(lane, op)
        lane.wake = self.now + (op.seconds if self.calm else min(op.seconds, 40.0 * self.chance()))

    def _ask(self, lane: Lane, job: PreparedCall, op: AskReconcile) -> ReconcileAnswer:
        """A reconcile function looks outside, and tells the truth as far as it can see it."""
        if job.interrupt is not None:
            return ReconcileAnswer("unknown")
        if lane.cut_soon:
            lane.cut_soon = False
            job.interrupt = lane.cut = lane.cut or Cut("in reconcile")
            return ReconcileAnswer("unknown")
        book, run = self.judge.books[op.head.entity], op.head.record
        if self.chance() < 0.2:
            return ReconcileAnswer("unknown")
        if run.attempt in book.landed or run.attempt in book.late:
            return ReconcileAnswer("applied", ("ok", _value(book.entity, run.attempt)))
        self.judge.clear(book, run)
        return ReconcileAnswer("not_applied")

    def _save(self, lane: Lane, job: PreparedCall, op: AppendChange) -> Generator[str, None, Any]:
        """Write as the drivers do: an answer that was lost is found by sending the same again."""
        yield "Save " + op.change.marks[-1]
        link = lane.process.link
        batch, after = perform.encode_change(job, op)
        link.lane, link.op = lane, op
        try:
            answer = job.store.append(batch).wait()
        except (StoreError, Cut) as lost:
            sending = append.resend_batch(job, batch, lost)
            try:
                while True:
                    lane.wake = self.now + next(sending).seconds
                    link.op = None
                    yield "Save again"
                    link.lane, link.op = lane, op
            except StopIteration as end:
                answer = end.value
        link.op = None
        return perform.apply_result(job, op, after, answer)

    def stored(self, lane: Lane | None, op: AppendChange, batch: Any) -> None:
        """A write of a lane is in the store."""
        assert lane is not None
        self.judge.stored(lane, op, batch)
        lane.committed |= "COMMIT" in op.change.marks
        if self.trace is not None:
            run = op.change.after
            self.say(f"    {op.change.marks} {run.reason} attempt {run.attempt} by {run.worker}")  # type: ignore[union-attr]

    def _work(self, lane: Lane, job: PreparedCall, op: RunAttempt) -> Generator[str, None, AttemptOutcome]:
        """Be the work: take time, keep checkpoints, reach the outside, end in some way."""
        yield "Work"
        book, run = self.judge.books[op.head.entity], op.head.record
        if job.interrupt is not None:
            self.judge.clear(book, run)
            return AttemptOutcome(op.head, None, job.interrupt, begun=False)
        self.judge.executing(lane, op.head)
        lane.working = run.fence
        done = yield from self._working(lane, job, op, book, run)
        lane.working = 0
        return done

    def _working(
        self, lane: Lane, job: PreparedCall, op: RunAttempt, book: Book, run: RunRecord
    ) -> Generator[str, None, AttemptOutcome]:
        chance = self.chance
        turn = self.rng.choices(NAMES, self.weights)[0]
        if self.calm and turn.startswith("cut"):
            turn = "ok"
        attempt = RunningAttempt(op.head, AttemptStorage(job))
        if chance() < 0.6:
            lane.wake = self.now + chance() * self.rng.choice((2.0, 30.0, 150.0))
            yield "in the work"
        if turn == "cut":
            return self._cut_work(lane, job, attempt)
        try:
            if chance() < 0.35:
                yield from self._checkpoint(lane, job, attempt)
        except (LeaseLost, StoreError, Cut) as lost:
            if type(lost) is not StoreError or chance() < 0.7:
                return perform.build_outcome(job, attempt, None, lost)
        if book.effect == "outbox" or chance() < 0.1:
            for n in range(1 + (chance() < 0.3)):
                attempt.emit("topic", n)
                self.judge.event(book, attempt.events[-1][0], run.run_number)
        if turn in ("ok", "odd", "transient, done", "cut, done"):
            yield "effect"
            if book.effect == "once" and not self.judge.lands(book, run.attempt, run.fence):
                return perform.build_outcome(job, attempt, None, Fails("fenced off"))
            yield "return"
            if turn == "cut, done":
                return self._cut_work(lane, job, attempt)
            if turn != "transient, done":
                return perform.build_outcome(job, attempt, (turn, _value(book.entity, run.attempt)), None)
        elif turn == "timed out, done later":
            self.late.append((self.now + chance() * 100.0, book, run.attempt, run.fence))
        error = Fails(turn)
        if book.effect == "once" and self.plan.not_applied(error):
            self.judge.clear(book, run)
        return perform.build_outcome(job, attempt, None, error)

    def _cut_work(self, lane: Lane, job: PreparedCall, attempt: Any) -> AttemptOutcome:
        self._covered(attempt.head.entity, "Work", "cut")
        lane.cut = lane.cut or Cut("in the work")
        return perform.build_outcome(job, attempt, None, lane.cut)

    def _checkpoint(self, lane: Lane, job: PreparedCall, attempt: Any) -> Generator[str, None, None]:
        saved = yield from self._save(lane, job, self.checkpoint(attempt))
        self.kept(job, attempt, saved)

    def checkpoint(self, attempt: Any) -> AppendChange:
        """Return the append of a checkpoint."""
        return build_checkpoint(attempt, self.now)

    def kept(self, job: PreparedCall, attempt: Any, saved: Any) -> None:
        """What a checkpoint raises in the work: what cut it off comes before all else."""
        if job.interrupt is not None:
            attempt.head = saved or attempt.head
            raise job.interrupt
        AttemptStorage(job).continue_attempt(attempt, saved)

    def _land_late(self) -> None:
        at, book, attempt, fence = self.late.pop(0)
        if at > self.now:
            self.late.append((at, book, attempt, fence))
        elif book.effect == "once":
            self.say(f"    attempt {attempt} of {book.entity} takes effect after all")
            self.judge.lands(book, attempt, fence)

    # The end ----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Everybody goes or stands still; fresh processes must end all keys, and sleepers change nothing."""
        self.calm, self.faults_left, self.queue = True, 0, []
        sleepers: list[Process] = []
        for process in self.processes:
            if process is not None and process.lanes:
                if self.chance() < 0.5:
                    self.crash(process, seen=self.chance() < 0.5)
                else:
                    sleepers.append(process)
        self.queue, self.processes = [], []
        for book in self.judge.books.values():
            self._bring_to_an_end(book)
        for process in sleepers:
            process.asleep_until = 0.0
            for lane in process.lanes:
                lane.wake = 0.0
        self.processes = list(sleepers)
        for _ in range(MOST_STEPS):
            if not self._step():
                break
        else:
            raise Violation("those who woke up never come to an end")
        self.processes = []
        for book in self.judge.books.values():
            self._bring_to_an_end(book)
            self._stays(book)

    def _fresh(self, kind: str, entity: str) -> tuple[Any, Process]:
        """Make one call in a new process, alone in the world; return its error."""
        process = Process(self, 99, 0.0)
        lane = self.call(process, kind, entity)
        told: list[Any] = []
        judged = self.judge.ended
        self.judge.ended = lambda lane, value, error: (told.append(error), judged(lane, value, error))[1]  # type: ignore[method-assign, func-returns-value]
        try:
            for _ in range(MOST_STEPS):
                if lane not in process.lanes:
                    break
                self.now = max(self.now, lane.wake)
                self._advance(process, lane)
            else:
                raise Violation("a fresh call never comes to an end")
        finally:
            del self.judge.ended
        process.engine.close()
        return told[0], process

    def _bring_to_an_end(self, book: Book) -> None:
        for _ in range(40):
            error, _ = self._fresh("call", book.entity)
            if isinstance(error, Deferred):
                self.now = max(self.now, error.until)
            elif isinstance(error, InProgress):
                self.now = max(self.now + 30.0, error.until or 0.0)
            else:
                break
        else:
            raise Violation(f"{book.entity} never comes to an end")
        run = book.run
        if run is None:
            raise Violation(f"{book.entity} was never begun")
        if run.state not in FINAL and not run.held_for:
            raise Violation(f"{book.entity} is left in {run.state} by a fresh caller that got {error!r}")
        if isinstance(error, OutcomeUnknown) and not run.held_for:
            raise Violation(f"a caller is told that {run.state} is unknown")

    def _stays(self, book: Book) -> None:
        """What is over is over: another call finds the same, and runs nothing."""
        if len(self.configs) > 1 or self.plan.after_failure == "new_run" or book.run is None:
            return
        if book.run.state in FINAL:
            version, ran = book.version, len(book.executed)
            self._fresh("call", book.entity)
            if (book.version, len(book.executed)) != (version, ran):
                raise Violation("a call of work that is over changes it")

    def fingerprint(self) -> str:
        """Return a hash of the whole log, and of what happened outside."""
        made = hashlib.sha256()
        for each in self.store.read_entries():
            made.update(each.hash)
        for book in self.judge.books.values():
            made.update(repr((book.landed, book.late, sorted(book.executed))).encode())
        return made.hexdigest()


def _decode(kept: Any) -> Any:
    return kept["it"]


def _value(entity: str, attempt: int) -> str:
    return f"{entity}#{attempt}"


#: The real functions that perform operations of a call.
PERFORM: Any = call_operations.CALL_OPERATIONS.blocking

_DO: dict[type, Any] = {
    LoadHead: Sim._load,
    ReserveWorker: lambda sim, lane, job, op: PERFORM[ReserveWorker](job, op),
    AskPermission: lambda sim, lane, job, op: PERFORM[AskPermission](job, op),
    ReadClock: Sim._read_now,
    ReadLease: Sim._holder,
    ReadBody: Sim._read,
    NotifyListeners: lambda sim, lane, job, op: None,
    AskReconcile: Sim._ask,
    SleepSeconds: Sim._sleep,
    WatchEntity: Sim._watch,
}


class Report:
    """What a number of schedules came to."""

    def __init__(self) -> None:
        self.schedules = self.entries = self.executions = self.late = self.decisions = 0
        self.hours = 0.0
        self.pairs: set[tuple[str, str, str]] = set()

    def add(self, sim: Sim) -> None:
        self.schedules += 1
        self.hours += (sim.now - START) / 3600
        self.pairs |= sim.pairs
        self.entries += len(sim.store._log)
        self.decisions += sim.judge.decisions
        for book in sim.judge.books.values():
            self.executions += len(book.executed)
            self.late += len(book.late)

    def pairs_of_states(self) -> set[tuple[str, str]]:
        """The states of a run that a fault was met in."""
        return {(state, fault) for state, _, fault in self.pairs}

    def __str__(self) -> str:
        return (
            f"{self.schedules:,} schedules, {self.hours:,.0f} simulated hours, {self.entries:,} entries, "
            f"{self.executions:,} executions, {len(self.pairs_of_states())} (state, fault) pairs "
            f"({len(self.pairs)} with the operation), {self.late} late effects of zombies, violations 0"
        )


def run_many(seeds: Iterable[int], kind: type[Sim] = Sim, report: Report | None = None) -> Report:
    """Run schedules; the first violation is raised with its seed."""
    report = report or Report()
    with seeded():
        for seed in seeds:
            sim = kind(seed)
            try:
                sim.run()
            except Exception as error:
                error.add_note(f"replay: python -m tests.sim.simulator {seed}")
                raise
            report.add(sim)
    return report


def replay(seed: int, kind: type[Sim] = Sim) -> tuple[list[str], BaseException | None]:
    """Run one schedule again; return every step of it, and what it broke."""
    with seeded():
        sim = kind(seed, trace=True)
        try:
            sim.run()
        except Exception as error:
            return sim.trace or [], error
    return sim.trace or [], None


def main(words: list[str]) -> int:
    """Replay one seed, or run many."""
    if len(words) == 1:
        steps, error = replay(int(words[0]))
        print("\n".join(steps))
        print(repr(error) if error is not None else "no violation")
        return error is not None
    first, count = int(words[0]), int(words[1])
    print(run_many(range(first, first + count)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
