"""Several workers at one provider, one operation at a time in an order that a seed says; and who judges it.

The workers run the real script, die now and then, and share one breaker and one budget. Afterwards the log is
read in its order and held to what was promised: who began while the breaker was open, who had the probe, what
closed it, and what each token was taken for.
"""

from __future__ import annotations

import re
from random import Random
from types import SimpleNamespace
from typing import Any

import oncemore
from oncemore.control.permits import PermissionCheck
from oncemore.errors import Deferred
from oncemore.limits import budget_step
from oncemore.limits.breaker import run_limit_script
from oncemore.limits.breaker_rules import BreakerRules
from oncemore.log.entry_codec import decode_head, decode_header
from oncemore.log.head_access import build_write, load_head
from oncemore.log.memory import MemoryStore
from oncemore.log.record import BreakerRecord, QuotaRecord, RunRecord, apply_header
from oncemore.log.store import Batch, Stored
from oncemore.steps import flow, ops
from tests.crash.world import Transient, World

BREAKER, BUDGET = "breaker/p", "quota/p"
RULES = BreakerRules(failures=2, cooldown_s=20.0)
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
        self.script: Any = flow.run_step(self.crowd.plan, ops.CallIdentity(self.entity, "input", "cfg"))
        self.op: Any = next(self.script)


class Crowd:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 1000.0
        self.store = MemoryStore(lambda: self.now)
        self.pockets = budget_step.UnsavedEarnings()
        self.controls = PermissionCheck()
        self.alive: set[str] = set()
        self.died: dict[str, int] = {}
        self.workers = 0
        self.well_from = self.now + self.rng.choice((0.0, 30.0, 100.0))
        shared = self.rng.random() < 0.7
        at_empty = self.rng.choice(("fail", "park"))
        self.budget = oncemore.Budget(CAPACITY, 0, at_empty=at_empty, name="p", shared=shared)
        world = SimpleNamespace(effect="idempotent", asks=False)
        self.plan = World.plan(world).copy_with(  # type: ignore[arg-type]
            barrier=ops.StepBreaker(BREAKER, RULES) if self.rng.random() < 0.6 else None,
            purse=ops.StepBudget(self.budget.entity, self.budget),
            inline_wait_s=0.0,
        )
        self.lanes = [Lane(self, n) for n in range(self.rng.randint(2, 5))]
        self.over: set[str] = set()

    # The engine, as far as spending asks for it.
    @property
    def engine(self) -> Any:
        return SimpleNamespace(
            store=self.store, cipher=None, unsaved_earnings=self.pockets, now=lambda: self.now
        )

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
        if type(op) is ops.EndCall:
            if isinstance(op.error, Deferred):
                lane.begin()
                lane.wakes = op.error.until
            else:
                self.over.add(lane.entity)
            return None
        answer = getattr(self, "_" + re.sub(r"(?<!^)(?=[A-Z])", "_", type(op).__name__).lower())(lane, op)
        if dies < 0.02:
            return self.die(lane)
        lane.op = lane.script.send(answer)
        return None

    def die(self, lane: Lane) -> None:
        self.alive.discard(lane.worker)
        self.died[lane.worker] = sum(1 for _ in self.store.read_entries())
        lane.begin()

    def _load_head(self, lane: Lane, op: ops.LoadHead) -> ops.LoadedHead:
        return load_head(self.store, op.entity, None, RunRecord)

    def _load_breaker(self, lane: Lane, op: ops.LoadBreaker) -> ops.LoadedHead:
        return load_head(self.store, op.entity, None, BreakerRecord)

    def _ask_permission(self, lane: Lane, op: ops.AskPermission) -> ops.Permission:
        return ops.Permission({})  # nobody stops anything here

    def _draw_budget(self, lane: Lane, op: ops.DrawBudget) -> ops.BudgetDraw:
        return budget_step.draw_budget(self.engine, op)

    def _refund_budget(self, lane: Lane, op: ops.RefundBudget) -> None:
        budget_step.refund_budget(self.engine, op)

    def _earn_budget(self, lane: Lane, op: ops.EarnBudget) -> None:
        run_limit_script(budget_step.earn_budget(self.engine, op.purse))

    def _read_clock(self, lane: Lane, op: ops.ReadClock) -> float:
        return self.now

    def _reserve_worker(self, lane: Lane, op: ops.ReserveWorker) -> ops.AttemptTerms:
        self.workers += 1
        lane.worker = f"worker-{self.workers}"
        self.alive.add(lane.worker)
        return ops.AttemptTerms(lane.worker, f"run-{self.workers}", {"x": 1}, "input")

    def _ask_permission(self, lane: Lane, op: ops.AskPermission) -> ops.Permission:
        return self.controls.ask_permission(self.engine, op)

    def _read_lease(self, lane: Lane, op: ops.ReadLease) -> float:
        return self.now + 60 if op.worker in self.alive else 0.0

    def _append_change(self, lane: Lane, op: ops.AppendChange) -> ops.LoadedHead | None:
        pairs = [(op.seen, op.change), *op.also]
        writes = [
            build_write(seen.entity, seen.version, seen.hash, change, self.now) for seen, change in pairs
        ]
        stored = isinstance(self.store.append(Batch(tuple(writes), op.guards)).wait(), Stored)
        return load_head(self.store, op.seen.entity, None, RunRecord) if stored else None

    def _read_body(self, lane: Lane, op: ops.ReadBody) -> Any:
        return World._read(self, op)  # type: ignore[arg-type]

    def _run_attempt(self, lane: Lane, op: ops.RunAttempt) -> ops.AttemptOutcome:
        lane.wakes = self.now + self.rng.choice((0.0, 0.1, 0.1, 30.0))
        well = self.now >= self.well_from or self.rng.random() < 0.3
        return (
            ops.AttemptOutcome(op.seen, "value")
            if well
            else ops.AttemptOutcome(op.seen, None, Transient("down"))
        )

    def _sleep_seconds(self, lane: Lane, op: ops.SleepSeconds) -> None:
        lane.wakes = self.now + op.seconds

    def _watch_entity(self, lane: Lane, op: ops.WatchEntity) -> None:
        lane.wakes = self.now + min(op.seconds, 0.5)

    # Who judges -------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Read the log in its order."""
        runs: dict[str, RunRecord] = {}
        circuit, held_by, paid = BreakerRecord(), "", 0
        entries = list(self.store.read_entries())
        for at, entry in enumerate(entries, 1):
            header = decode_header(entry.header)
            if entry.entity == BREAKER:
                before, circuit = circuit, apply_header(circuit, header.sets, BreakerRecord)
                moved = (before.state, circuit.state)
                if moved == ("OPEN", "CLOSED"):
                    raise Violation("an open breaker was closed by nobody who tried")
                if moved == ("HALF_OPEN", "HALF_OPEN") and self.died.get(held_by, at) >= at:
                    raise Violation("a probe was taken from one who had it")
                held_by = circuit.probe_worker or held_by
            elif entry.entity.startswith("run/"):
                last = runs.get(entry.entity)
                run = runs[entry.entity] = apply_header(last, header.sets)
                if "INTENT" in header.marks:
                    after = entries[at] if at < len(entries) else None  # a probe is in the same write
                    probe = after is not None and after.entity == BREAKER and after.seq == entry.seq + 1
                    if circuit.state != "CLOSED" and not probe:
                        raise Violation("an attempt began though its breaker was not closed")
                    if last is not None and last.budget_debt:
                        raise Violation("an attempt began that was not paid for")
                paid += "DECISION" in header.marks and run.reason == "retry"
                paid += header.marks == ("QUOTA",) and last is not None and last.budget_debt > run.budget_debt
        head = self.store.load_head(BUDGET)
        tokens = self.budget.tokens if not self.budget.entity else CAPACITY
        tokens = tokens if head is None else decode_head(head.head, QuotaRecord).tokens
        if CAPACITY - tokens != paid:
            raise Violation(f"{CAPACITY - tokens:g} tokens were taken for {paid} retries")
