"""Several workers at one provider, one operation at a time in an order that a seed says; and who judges it.

The workers run the real script, die now and then, and share one breaker and one budget. Afterwards the log is
read in its order and held to what was promised: who began while the breaker was open, who had the probe, what
closed it, and what each token was taken for.
"""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import oncemore
from oncemore.control.permits import Controls
from oncemore.errors import Parked
from oncemore.limits import budget_step
from oncemore.limits.breaker import waited_for
from oncemore.limits.breaker_rules import Rules
from oncemore.log.entry_codec import head_of, header_of
from oncemore.log.head_access import seen_in, write_of
from oncemore.log.memory import MemoryStore
from oncemore.log.record import Circuit, Quota, Run, fold
from oncemore.log.store import Batch, Stored
from oncemore.steps import flow, ops
from tests.crash.world import Transient, World

BREAKER, BUDGET = "breaker/p", "quota/p"
RULES = Rules(failures=2, cooldown_s=20.0)
CAPACITY = 3.0
MOST_OPS = 4000


class Violation(AssertionError):
    """A promise was seen broken."""


class Lane:
    """One call of one key, by a worker of its own while it has an attempt."""

    def __init__(self, crowd: Crowd, n: int) -> None:
        self.crowd, self.entity = crowd, f"run/k{n}"
        self.begin()

    def begin(self) -> None:
        """Call anew, as after a restart."""
        self.worker, self.wakes = "", 0.0
        self.script: Any = flow.run_step(self.crowd.plan, ops.Call(self.entity, "input", "cfg"))
        self.op: Any = next(self.script)


class Crowd:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 1000.0
        self.store = MemoryStore(lambda: self.now)
        self.pockets = budget_step.Pockets()
        self.controls = Controls()
        self.alive: set[str] = set()
        self.died: dict[str, int] = {}
        self.workers = 0
        self.well_from = self.now + self.rng.choice((0.0, 30.0, 100.0))
        shared = self.rng.random() < 0.7
        at_empty = self.rng.choice(("fail", "park"))
        self.budget = oncemore.Budget(CAPACITY, 0, at_empty=at_empty, name="p", shared=shared)
        world = SimpleNamespace(effect="idempotent", asks=False)
        self.plan = World.plan(world).replaced(  # type: ignore[arg-type]
            barrier=ops.Barrier(BREAKER, RULES) if self.rng.random() < 0.6 else None,
            purse=ops.Purse(self.budget.entity, self.budget),
            inline_wait_s=0.0,
        )
        self.lanes = [Lane(self, n) for n in range(self.rng.randint(2, 5))]
        self.over: set[str] = set()

    # The engine, as far as spending asks for it.
    @property
    def engine(self) -> Any:
        return SimpleNamespace(store=self.store, seal=None, pockets=self.pockets, now=lambda: self.now)

    def run(self) -> None:
        """Let all come to their end, and judge it."""
        for _ in range(MOST_OPS):
            lanes = [lane for lane in self.lanes if lane.entity not in self.over]
            if not lanes:
                return self.judge()
            ready = [lane for lane in lanes if lane.wakes <= self.now]
            if not ready:
                self.now = min(lane.wakes for lane in lanes)
                continue
            self.step(self.rng.choice(ready))
            self.now += self.rng.choice((0.0, 0.0, 0.01, 0.2))
        raise Violation("it does not end")

    def step(self, lane: Lane) -> None:
        """Do one operation of a lane; now and then it dies before or after it."""
        # One process has a budget of its own, and would take that with it: there nobody dies alone.
        dies = self.rng.random() if self.budget.entity else 1.0
        if dies < 0.01:
            return self.die(lane)
        op = lane.op
        if type(op) is ops.End:
            if isinstance(op.error, Parked):
                lane.begin()
                lane.wakes = op.error.until
            else:
                self.over.add(lane.entity)
            return None
        answer = getattr(self, f"_{type(op).__name__.lower()}")(lane, op)
        if dies < 0.02:
            return self.die(lane)
        lane.op = lane.script.send(answer)
        return None

    def die(self, lane: Lane) -> None:
        self.alive.discard(lane.worker)
        self.died[lane.worker] = sum(1 for _ in self.store.entries())
        lane.begin()

    def _load(self, lane: Lane, op: ops.Load) -> ops.Seen:
        return seen_in(self.store, op.entity, None, Run)

    def _consult(self, lane: Lane, op: ops.Consult) -> ops.Seen:
        return seen_in(self.store, op.entity, None, Circuit)

    def _permit(self, lane: Lane, op: ops.Permit) -> ops.Permission:
        return ops.Permission({})  # nobody stops anything here

    def _draw(self, lane: Lane, op: ops.Draw) -> ops.Drawn:
        return budget_step.drawn(self.engine, op)

    def _refund(self, lane: Lane, op: ops.Refund) -> None:
        budget_step.refund(self.engine, op)

    def _earn(self, lane: Lane, op: ops.Earn) -> None:
        waited_for(budget_step.earned(self.engine, op.purse))

    def _now(self, lane: Lane, op: ops.Now) -> float:
        return self.now

    def _begin(self, lane: Lane, op: ops.Begin) -> ops.Terms:
        self.workers += 1
        lane.worker = f"worker-{self.workers}"
        self.alive.add(lane.worker)
        return ops.Terms(lane.worker, f"run-{self.workers}", {"x": 1}, "input")

    def _permit(self, lane: Lane, op: ops.Permit) -> ops.Permission:
        return self.controls.permit(self.engine, op)

    def _holder(self, lane: Lane, op: ops.Holder) -> float:
        return self.now + 60 if op.worker in self.alive else 0.0

    def _save(self, lane: Lane, op: ops.Save) -> ops.Seen | None:
        pairs = [(op.seen, op.change), *op.also]
        writes = [write_of(seen.entity, seen.version, seen.hash, change, self.now) for seen, change in pairs]
        stored = isinstance(self.store.append(Batch(tuple(writes), op.guards)).wait(), Stored)
        return seen_in(self.store, op.seen.entity, None, Run) if stored else None

    def _read(self, lane: Lane, op: ops.Read) -> Any:
        return World._read(self, op)  # type: ignore[arg-type]

    def _work(self, lane: Lane, op: ops.Work) -> ops.Done:
        lane.wakes = self.now + self.rng.choice((0.0, 0.1, 0.1, 30.0))
        well = self.now >= self.well_from or self.rng.random() < 0.3
        return ops.Done(op.seen, "value") if well else ops.Done(op.seen, None, Transient("down"))

    def _sleep(self, lane: Lane, op: ops.Sleep) -> None:
        lane.wakes = self.now + op.seconds

    def _watch(self, lane: Lane, op: ops.Watch) -> None:
        lane.wakes = self.now + min(op.seconds, 0.5)

    # Who judges -------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Read the log in its order."""
        runs: dict[str, Run] = {}
        circuit, held_by, paid = Circuit(), "", 0
        entries = list(self.store.entries())
        for at, entry in enumerate(entries, 1):
            header = header_of(entry.header)
            if entry.entity == BREAKER:
                before, circuit = circuit, fold(circuit, header.sets, Circuit)
                moved = (before.state, circuit.state)
                if moved == ("OPEN", "CLOSED"):
                    raise Violation("an open breaker was closed by nobody who tried")
                if moved == ("HALF_OPEN", "HALF_OPEN") and self.died.get(held_by, at) >= at:
                    raise Violation("a probe was taken from one who had it")
                held_by = circuit.worker or held_by
            elif entry.entity.startswith("run/"):
                last = runs.get(entry.entity)
                run = runs[entry.entity] = fold(last, header.sets)
                if "INTENT" in header.marks:
                    after = entries[at] if at < len(entries) else None  # a probe is in the same write
                    probe = after is not None and after.entity == BREAKER and after.seq == entry.seq + 1
                    if circuit.state != "CLOSED" and not probe:
                        raise Violation("an attempt began though its breaker was not closed")
                    if last is not None and last.owes:
                        raise Violation("an attempt began that was not paid for")
                paid += "DECISION" in header.marks and run.reason == "retry"
                paid += header.marks == ("QUOTA",) and last is not None and last.owes > run.owes
        head = self.store.head(BUDGET)
        tokens = self.budget.tokens if not self.budget.entity else CAPACITY
        tokens = tokens if head is None else head_of(head.head, Quota).tokens
        if CAPACITY - tokens != paid:
            raise Violation(f"{CAPACITY - tokens:g} tokens were taken for {paid} retries")
