"""Several workers behind one breaker and one budget, one operation at a time in an order drawn from a seed.

The workers run the real script and crash now and then. Afterwards the log is read in its order: which
attempts began while the breaker was open, which worker had the probe, what closed the breaker, and what each
token was taken for.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import oncemore
from oncemore.errors import Deferred
from oncemore.limits.breaker_rules import BreakerRules
from oncemore.log.entry_codec import decode_head, decode_header
from oncemore.log.record import BreakerRecord, QuotaRecord, RunRecord, apply_header
from oncemore.steps import ops
from oncemore.steps.call import PreparedCall
from oncemore.steps.plan import StepBreaker, StepBudget
from tests.crash.harness import start_call
from tests.crash.simulation import StepSimulation, TransientProblem

if TYPE_CHECKING:
    from tests.crash.harness import ScriptRun

BREAKER, BUDGET = "breaker/p", "quota/p"
RULES = BreakerRules(failures=2, cooldown_s=20.0)
CAPACITY = 3.0
MOST_OPS = 4000


class Violation(AssertionError):
    """A promise was broken."""


class SimulatedCaller:
    """The calls of one key; each attempt has a worker of its own."""

    def __init__(self, simulation: LimitSimulation, number: int) -> None:
        self.simulation, self.entity = simulation, f"run/k{number}"
        self.start_call()

    def start_call(self) -> None:
        """Call again, as after a restart."""
        self.worker, self.wakes_at = "", 0.0
        plan = self.simulation.make_plan()
        call = PreparedCall(self.entity, plan, input_hash="input", cfg_hash="cfg")
        self.process: ScriptRun = self.simulation.start(start_call(plan, call))


class LimitSimulation(StepSimulation):
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        super().__init__("idempotent", [], inline_wait_s=0.0)
        self.crashed_at: dict[str, int] = {}  # worker → length of the log
        self.healthy_from = self.now + self.rng.choice((0.0, 30.0, 100.0))
        shared = self.rng.random() < 0.7
        at_empty = self.rng.choice(("fail", "park"))
        self.budget = oncemore.Budget(CAPACITY, 0, at_empty=at_empty, name="p", shared=shared)
        self.plan_changes |= {
            "breaker": StepBreaker(BREAKER, RULES) if self.rng.random() < 0.6 else None,
            "budget": StepBudget(self.budget.entity, self.budget),
        }
        callers = [SimulatedCaller(self, number) for number in range(self.rng.randint(2, 5))]
        self.caller = callers[0]  # whose operation is performed
        self.callers = callers

    def run(self) -> None:
        """Let all calls come to their end, and check it."""
        for _ in range(MOST_OPS):
            if not self.callers:
                return self.check_end()
            ready = [caller for caller in self.callers if caller.wakes_at <= self.now]
            if not ready:
                self.now = min(caller.wakes_at for caller in self.callers)
                continue
            self.step(self.rng.choice(ready))
            self.now += self.rng.choice((0.0, 0.0, 0.01, 0.2))
        raise Violation("it does not end")

    def step(self, caller: SimulatedCaller) -> None:
        """Perform one operation of a caller; now and then its process crashes before or after it."""
        # A budget that is not shared lives in the process, which holds all workers: no worker dies alone.
        chance = self.rng.random() if self.budget.entity else 1.0
        self.caller, process = caller, caller.process
        if chance < 0.01:
            return self.crash(caller)
        if process.op is None:
            if isinstance(process.result.error, Deferred):
                caller.start_call()
                caller.wakes_at = process.result.error.until
            else:
                self.callers.remove(caller)
            return None
        answer = self.perform(process.op)
        if chance < 0.02:
            return self.crash(caller)
        process.resume(answer)
        return None

    def crash(self, caller: SimulatedCaller) -> None:
        """Let the worker of a caller be detectably dead; the caller calls again."""
        self.live_workers.discard(caller.worker)
        self.crashed_at[caller.worker] = sum(1 for _ in self.store.read_entries())
        caller.start_call()

    def _reserve_worker(self, op: ops.ReserveWorker) -> ops.AttemptTerms:
        terms = super()._reserve_worker(op)
        self.caller.worker = terms.worker
        return terms

    def _run_attempt(self, op: ops.RunAttempt) -> ops.AttemptOutcome:
        self.caller.wakes_at = self.now + self.rng.choice((0.0, 0.1, 0.1, 30.0))
        if self.now >= self.healthy_from or self.rng.random() < 0.3:
            return ops.AttemptOutcome(op.head, "value")
        return ops.AttemptOutcome(op.head, None, TransientProblem("down"))

    def _sleep_seconds(self, op: ops.SleepSeconds) -> None:
        self.caller.wakes_at = self.now + op.seconds

    def _watch_entity(self, op: ops.WatchEntity) -> None:
        self.caller.wakes_at = self.now + min(op.seconds, 0.5)

    # The checks -------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Read the log in its order, and check every entry."""
        runs: dict[str, RunRecord] = {}
        breaker, held_by, paid = BreakerRecord(), "", 0
        entries = list(self.store.read_entries())
        for at, entry in enumerate(entries, 1):
            header = decode_header(entry.header)
            if entry.entity == BREAKER:
                before, breaker = breaker, apply_header(breaker, header.sets, BreakerRecord)
                moved = (before.state, breaker.state)
                if moved == ("OPEN", "CLOSED"):
                    raise Violation("an open breaker was closed without a probe")
                if moved == ("HALF_OPEN", "HALF_OPEN") and self.crashed_at.get(held_by, at) >= at:
                    raise Violation("a probe was taken from a worker that had it")
                held_by = breaker.probe_worker or held_by
            elif entry.entity.startswith("run/"):
                last = runs.get(entry.entity)
                run = runs[entry.entity] = apply_header(last, header.sets)
                if "INTENT" in header.marks:
                    after = entries[at] if at < len(entries) else None  # a probe is in the same write
                    probe = after is not None and after.entity == BREAKER and after.seq == entry.seq + 1
                    if breaker.state != "CLOSED" and not probe:
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
