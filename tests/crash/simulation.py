"""Simulated steps for the crash harness: a store, virtual time, workers that die, and counted effects.

`StepSimulation` performs the operations of a flow in memory; the script of each attempt is one word. In
`JudgedSimulation` an attempt is a line of several actions, a process can also crash between those, and the
judge of the simulation (`tests/sim/judge.py`) checks every write and every end of a call.
"""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from oncemore.control.permits import PermissionCheck
from oncemore.errors import Deferred, LeaseLost
from oncemore.limits import budget_step
from oncemore.limits.breaker import run_limit_script
from oncemore.log.entry_codec import (
    build_event_write,
    build_write,
    decode_body,
    decode_head,
    decode_header,
    load_head,
)
from oncemore.log.entry_codec import hash_entry as hash_log_entry
from oncemore.log.memory import MemoryStore
from oncemore.log.record import NOWHERE, BreakerRecord, EventRecord, RecordChange, RunRecord, apply_header
from oncemore.log.store import Batch, Conflict, Stored
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.canonical_json import hash_bytes
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy
from oncemore.steps import operator_flow, ops
from oncemore.steps.call import PreparedCall
from oncemore.steps.plan import StepPlan
from tests.crash.harness import ScriptRun, start_call
from tests.sim.judge import Book, Judge

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oncemore.log.record import LoadedHead
    from tests.crash.harness import CrashPoint, Script

ENTITY = "run/k"
POLICY = Policy(
    "crash",
    max_attempts=3,
    max_crashes=None,
    schedule=Schedule("fixed", delays=(5.0, 7.0)),
    jitter=Jitter("none"),
)


def decide_as_operator(action: str) -> Callable[[Any, float], dict[str, Any]]:
    """Return the function that makes the record of an operator's decision."""
    return lambda head, now: {"action": action, "reason": "because", "actor": "operator"}


class TransientProblem(Exception):
    """A failure that may pass."""


class PermanentProblem(Exception):
    """A failure that stays."""


class NotAppliedProblem(Exception):
    """A failure that is declared in `not_applied`: the effect certainly did not happen."""


class ReviewProblem(Exception):
    """A failure that an operator has to look at."""


class LongRetryAfter(Exception):
    """A failure that asks for a longer wait than the policy allows."""


class Interruption(BaseException):
    """Ctrl-C, or a cancellation."""


ERRORS: dict[str, type[Exception]] = {
    "transient": TransientProblem,
    "transient after": TransientProblem,
    "permanent": PermanentProblem,
    "refused": NotAppliedProblem,
    "review": ReviewProblem,
    "deferred": LongRetryAfter,
}
FAILURES: dict[type[BaseException], Failure] = {
    TransientProblem: Failure("transient", "maybe", None, "TRANSIENT", "test"),
    PermanentProblem: Failure("permanent", "maybe", None, "PERMANENT", "test"),
    NotAppliedProblem: Failure("transient", "maybe", None, "REFUSED", "test"),
    ReviewProblem: Failure("permanent", "maybe", None, "DOUBT", "oncemore:NeedsReview"),
    LongRetryAfter: Failure("throttled", "maybe", 5000.0, "HTTP_429", "test"),
}


class StepSimulation:
    """What outlives a crash: the store, the time, and the effects that have happened.

    `outcomes` are the outcomes of the attempts in order, the last one for all that follow: `ok`, or the word
    of an error in `ERRORS`; `transient after` fails after its effect has happened. `plan` has changes of the
    step's plan.
    """

    def __init__(
        self,
        effect: str,
        outcomes: list[str],
        *,
        asks: bool = False,
        checks_guards_late: bool = False,
        **plan: Any,
    ) -> None:
        self.now = 1000.0
        self.store = MemoryStore(lambda: self.now, checks_guards_late=checks_guards_late)
        self.entity = ENTITY
        self.effect, self.outcomes, self.asks, self.plan_changes = effect, outcomes, asks, plan
        self.live_workers: set[str] = set()
        self.worker = ""  # of the last attempt
        self.worker_count = 0
        self.executions = 0
        self.effects: list[int] = []  # the attempts whose effect has happened
        self.permissions = PermissionCheck()
        self.earnings = budget_step.UnsavedEarnings()

    @property
    def engine(self) -> Any:
        """As much of an engine as budgets need."""
        return SimpleNamespace(
            store=self.store, cipher=None, unsaved_earnings=self.earnings, now=lambda: self.now
        )

    def make_plan(self) -> StepPlan:
        """Return the plan of the step."""
        plan = StepPlan(
            name="step",
            effect=self.effect,  # type: ignore[arg-type]
            policy=POLICY,
            classify=lambda error, now: FAILURES[type(error)],
            encode=lambda value: value,
            decode=lambda value: value,
            describe=lambda error, failure: {"type": type(error).__name__, "message": str(error)},
            not_applied=lambda error: isinstance(error, NotAppliedProblem),
            has_reconcile=self.asks,
        )
        return plan.copy_with(**self.plan_changes)

    def make_call(self) -> PreparedCall:
        """Return the identity of a call; every process makes the same."""
        return PreparedCall(self.entity, self.make_plan(), input_hash="input", cfg_hash="cfg")

    # Processes --------------------------------------------------------------------------------------

    def start_script(self) -> Script:
        """Return the script of one call."""
        return start_call(self.make_plan(), self.make_call())

    def start(self, script: Script | None = None, **plan: Any) -> ScriptRun:
        """Return the run of a script, by default of a call with this plan, in a process of its own."""
        if script is None and plan:
            script = start_call(self.make_plan().copy_with(**plan), self.make_call())
        return ScriptRun(script or self.start_script(), self.perform, self.end_process)

    def run_call(self, crash: CrashPoint | None = None) -> tuple[ops.EndCall, int]:
        """Run one call to its end or its crash; return its end and the number of its operations."""
        run = self.start()
        end = run.run(crash)
        self.live_workers.discard(self.worker)
        return end, run.count

    def call(self) -> object:
        """Run one call; return its value or its error."""
        end, _ = self.run_call()
        return end.value if end.error is None else end.error

    def run_to_end(self, crash: CrashPoint | None = None) -> ops.EndCall:
        """Call again after every deferral, until the run ends; a crash point counts over all the calls."""
        for _ in range(30):
            end, count = self.run_call(crash)
            self.check_log()
            if not isinstance(end.error, Deferred):
                return end
            assert end.error.until > self.now
            self.pass_time(end.error.until - self.now)
            crash = crash and crash._replace(number=crash.number - count)
        raise AssertionError("the run does not end")

    def end_process(self) -> None:
        """Let the worker of the last attempt be detectably dead."""
        self.live_workers.discard(self.worker)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock by a wait."""
        self.now += seconds

    # Operations -------------------------------------------------------------------------------------

    def perform(self, op: Any) -> Any:
        """Perform an operation: `LoadHead` by `_load_head`, and so on."""
        return getattr(self, "_" + re.sub(r"(?<!^)(?=[A-Z])", "_", type(op).__name__).lower())(op)

    def load_run(self) -> LoadedHead:
        """Return the head of the run."""
        return load_head(self.store, self.entity)

    def _load_head(self, op: ops.LoadHead) -> LoadedHead:
        return load_head(self.store, op.entity, None, op.kind)

    def _load_breaker(self, op: ops.LoadBreaker) -> LoadedHead:
        return load_head(self.store, op.entity, None, BreakerRecord)

    def _draw_budget(self, op: ops.DrawBudget) -> ops.BudgetDraw:
        return budget_step.draw_budget(self.engine, op)

    def _refund_budget(self, op: ops.RefundBudget) -> None:
        budget_step.refund_budget(self.engine, op)

    def _earn_budget(self, op: ops.EarnBudget) -> None:
        run_limit_script(budget_step.earn_budget(self.engine, op.budget))

    def _read_clock(self, op: ops.ReadClock) -> float:
        return self.now

    def _reserve_worker(self, op: ops.ReserveWorker) -> ops.AttemptTerms:
        self.worker_count += 1
        self.worker = f"worker-{self.worker_count}"
        self.live_workers.add(self.worker)
        return ops.AttemptTerms(self.worker, f"run-{self.worker_count}", {"x": 1}, "input")

    def _prepare_submission(self, op: ops.PrepareSubmission) -> ops.AttemptTerms:
        self.worker_count += 1
        return ops.AttemptTerms("", f"run-{self.worker_count}", {"x": 1}, "input")

    def _ask_permission(self, op: ops.AskPermission) -> ops.Permission:
        return self.permissions.ask_permission(self, op)  # type: ignore[arg-type]

    def _read_lease(self, op: ops.ReadLease) -> float:
        return self.now + 60 if op.worker in self.live_workers else 0.0

    def _append_change(self, op: ops.AppendChange) -> LoadedHead | ops.VoidClaim | None:
        writes = [
            build_write(head.entity, head.version, head.hash, change, self.now)
            for head, change in ((op.head, op.change), *op.also)
        ]
        writes += [build_event_write(emitted, self.now) for emitted in op.events]
        batch = Batch(tuple(writes), op.guards, late=op.late and self.store.checks_guards_late)
        self.permissions.drop_cached()
        return self.finish_append(op, batch, self.store.append(batch).wait())

    def finish_append(self, op: ops.AppendChange, batch: Batch, answer: Any) -> Any:
        """Return the driver's answer to an append that the store has answered."""
        return load_head(self.store, op.head.entity) if isinstance(answer, Stored) else None

    def _read_body(self, op: ops.ReadBody) -> dict[str, Any]:
        entry = next(self.store.read_entries(op.entity, op.version - 1))
        assert entry.body is not None
        return decode_body(entry.body)

    def next_outcome(self) -> str:
        """Return the outcome of the attempt that is about to run."""
        return self.outcomes[min(self.executions, len(self.outcomes) - 1)]

    def _run_attempt(self, op: ops.RunAttempt) -> ops.AttemptOutcome:
        outcome = self.next_outcome()
        self.executions += 1
        if outcome in ("ok", "transient after"):
            self.effects.append(op.number)
        if outcome == "ok":
            return ops.AttemptOutcome(op.head, "value")
        return ops.AttemptOutcome(op.head, None, ERRORS[outcome](outcome))

    def _ask_reconcile(self, op: ops.AskReconcile) -> ops.ReconcileAnswer:
        if op.head.record.attempt in self.effects:
            return ops.ReconcileAnswer("applied", "value")
        return ops.ReconcileAnswer("not_applied")

    def _sleep_seconds(self, op: ops.SleepSeconds) -> None:
        self.pass_time(op.seconds)

    def _watch_entity(self, op: ops.WatchEntity) -> None:
        self.now += op.seconds
        self.live_workers.clear()  # the holder did not renew its lease in time

    # Checks -----------------------------------------------------------------------------------------

    def check_log(self) -> RunRecord | None:
        """Check hash links, versions, the state rebuilt from headers, and the number of attempts."""
        run: RunRecord | None = None
        prev, numbers, commits = NOWHERE, [], 0
        for version, entry in enumerate(self.store.read_entries(self.entity), 1):
            header = decode_header(entry.header)
            assert entry.body is not None
            assert entry.hash == hash_log_entry(prev, entry.header, hash_bytes(entry.body))
            assert (entry.version, header.version, header.entity) == (version, version, self.entity)
            run, prev = apply_header(run, header.sets), entry.hash
            numbers += [run.attempt] if "INTENT" in header.marks else []
            commits += header.marks.count("COMMIT")
        head = self.store.load_head(self.entity)
        assert run == (None if head is None else decode_head(head.head))
        assert numbers == sorted(set(numbers))
        assert len(numbers) <= POLICY.max_attempts
        assert self.executions <= POLICY.max_attempts
        assert commits <= 1
        return run

    @property
    def applied(self) -> Counter[str]:
        """How often the effect counts: an outside that deduplicates by key counts it once."""
        if self.effect in ("pure", "idempotent"):
            return Counter({"k": min(1, len(self.effects))})
        return Counter({"k": len(self.effects)})


class JudgedSimulation(StepSimulation):
    """A simulation whose attempts consist of several actions, and whose every write is judged.

    An outcome is a line of actions in order: `checkpoint`, `event`, `effect`; `begin` begins a transaction in
    the user's own database, `beside` writes in the store's. Its last word is how the attempt ends: `ok`, the
    word of an error, or `cut` for an interruption; `cut off` is an interruption before the first action.
    """

    def __init__(
        self,
        effect: str,
        outcomes: list[str],
        *,
        asks: bool = False,
        checks_guards_late: bool = False,
        **plan: Any,
    ) -> None:
        codec = {"encode": lambda value: {"it": value}, "decode": lambda stored: stored["it"]}
        super().__init__(
            effect, outcomes, asks=asks, checks_guards_late=checks_guards_late, **{**codec, **plan}
        )
        self.void_claims = 0  # claims that were stored although their guards no longer held
        self.judge = Judge()
        self.book = self.judge.books[ENTITY] = Book(ENTITY, effect, fencing=False)
        self.judged_call: Any = None
        self.unknown_answers = 0  # how often a reconcile function answers "unknown"
        self.found_checkpoints: list[Any] = []
        self.user_fence = 0  # in the user's own database: the attempt that may commit,
        self.user_commit: Any = None  # and what the attempt that committed has left
        self.length = 0  # operations of the last process

    # Calls ------------------------------------------------------------------------------------------

    def call_step(self, **call: Any) -> Script:
        return self.run_flow("call", start_call, **call)

    def rerun(self) -> Script:
        return self.run_flow(
            "rerun", lambda plan, call: operator_flow.reopen_run(plan, call, decide_as_operator("rerun"))
        )

    def submit(self, at: float = 0.0, **call: Any) -> Script:
        return self.run_flow("submit", lambda plan, call: operator_flow.submit_run(plan, call, at), **call)

    def cancel(self) -> Script:
        return self.run_flow(
            "cancel",
            lambda plan, call: operator_flow.cancel_run(plan, call, "because", decide_as_operator("cancel")),
        )

    def settle(self) -> Script:
        """Settle the attempt that is held by what an operator finds outside."""
        run = self.load_run().record
        answer = ops.ReconcileAnswer("not_applied")
        if run is not None and run.held_for and run.attempt in self.book.landed:
            answer = ops.ReconcileAnswer("applied", f"value {run.attempt}")
        elif run is not None and run.held_for:
            self.judge.clear(self.book, run)
        return self.run_flow("settle", lambda plan, call: operator_flow.settle_run(plan, call, answer))

    def run_flow(self, kind: str, start: Callable[..., Script], **call: Any) -> Script:
        """Run one flow; yield before every operation and every action, where the process may crash."""
        identity = self.make_call()
        for name, value in call.items():
            setattr(identity, name, value)
        judged_call = self.judged_call = SimpleNamespace(
            call=identity, kind=kind, life=self.book.life, cut=None, store_failed=False, other=False, fence=0,
            committed=False, asked_about=("", 0, 0.0, 0.0),
        )  # fmt: skip
        script = start(self.make_plan(), identity)
        answer: Any = None
        while True:
            try:
                op = script.send(answer)
            except StopIteration as stop:
                end = stop.value
                break
            yield op
            self.judged_call = judged_call
            is_attempt = type(op) is ops.RunAttempt
            answer = (yield from self.run_actions(op)) if is_attempt else self.perform(op)
        self.judge.ended(judged_call, end.value, end.error)
        return end.error if end.error is not None else end.value

    def run_process(self, *flows: Callable[[], Script], crash: CrashPoint | None = None) -> Any:
        """Run flows in one process up to its end or its crash; return the end of the last one."""

        def run_flows() -> Script:
            end = None
            for flow in flows:
                end = yield from flow()
            return end

        # A flow performs its own operations: between two of them there is nothing to perform.
        run = ScriptRun(run_flows(), lambda op: None, self.live_workers.clear)
        end = run.run(crash)
        self.live_workers.discard(self.worker)
        self.length = run.count
        return end

    # Operations -------------------------------------------------------------------------------------

    def _read_lease(self, op: ops.ReadLease) -> float:
        until = super()._read_lease(op)
        self.judged_call.asked_about = (op.worker, op.fence, until, self.now)
        return until

    def _watch_entity(self, op: ops.WatchEntity) -> None:
        self.judge.watching(self.judged_call, op)
        super()._watch_entity(op)

    def _notify_listeners(self, op: ops.NotifyListeners) -> None:
        """Notify no one: there are no listeners."""

    def finish_append(self, op: ops.AppendChange, batch: Batch, answer: Any) -> Any:
        if isinstance(answer, Conflict) and answer.stored_seqs:
            self.judge.stored(self.judged_call, op, batch)
            self.judge.clear(self.book, op.change.after)
            self.void_claims += 1
            return ops.VoidClaim(self.load_run())
        if not isinstance(answer, Stored):
            return None
        if op.joined_write is not None:
            op.joined_write(None)  # type: ignore[arg-type] # in one transaction with the rest
        self.judge.stored(self.judged_call, op, batch)
        self.judged_call.committed |= "COMMIT" in op.change.marks
        return self.load_run()

    def _commit_transaction(self, op: ops.CommitTransaction) -> ops.TransactionOutcome:
        """Commit the user's transaction, if its fence is still the last one."""
        if op.mark != self.user_fence or self.user_commit is not None:
            return ops.TransactionOutcome(LeaseLost("another attempt took over"))
        self.effects.append(op.head.record.attempt)
        self.user_commit = dict(op.body), op.events
        return ops.TransactionOutcome(None)

    def _ask_reconcile(self, op: ops.AskReconcile) -> ops.ReconcileAnswer:
        run: RunRecord = op.head.record
        if self.unknown_answers:
            self.unknown_answers -= 1
            return ops.ReconcileAnswer("unknown")
        if run.attempt in self.book.landed:
            return ops.ReconcileAnswer("applied", f"value {run.attempt}")
        self.judge.clear(self.book, run)
        return ops.ReconcileAnswer("not_applied")

    def run_actions(self, op: ops.RunAttempt) -> Generator[Any, Any, ops.AttemptOutcome]:
        """Run an attempt action by action."""
        head, run = op.head, op.head.record
        outcome = self.next_outcome()
        if outcome == "cut off":
            self.outcomes = self.outcomes[1:] or ["effect ok"]
            self.judge.clear(self.book, run)
            self.judged_call.cut = Interruption()
            return ops.AttemptOutcome(head, None, self.judged_call.cut, begun=False)
        self.judge.executing(self.judged_call, head)
        self.executions += 1
        events: list[tuple[EventRecord, Any]] = []
        mark: Any = 0  # the fence stands for the mark of a transaction
        beside: Any = None
        for action in outcome.split():
            if action == "checkpoint":
                head = yield from self._save_checkpoint(head, run)
            elif action == "event":
                event_id = f"{run.run_number}-{len(events)}"
                event = EventRecord("PENDING", "topic", event_id, ENTITY, len(events))
                self.judge.event(self.book, event, run.run_number)
                events.append((event, len(events)))
            elif action == "begin":
                yield action
                if self.user_commit is not None:
                    return ops.AttemptOutcome(head, applied=self.user_commit)
                self.user_fence = mark = run.fence
            elif action == "beside":
                beside = lambda tx: self.effects.append(run.attempt)  # noqa: E731
            elif action == "effect":
                yield action
                if mark:
                    continue  # the effect happens when its transaction is committed
                self.effects.append(run.attempt)
                if self.effect == "once":
                    assert self.judge.lands(self.book, run.attempt, run.fence)
            elif action == "ok":
                value = f"value {run.attempt}"
                return ops.AttemptOutcome(head, value, None, True, tuple(events), (), mark or None, beside)
            else:
                return ops.AttemptOutcome(head, None, self._fail_attempt(action, run))
        raise AssertionError(f"the attempt {outcome!r} has no end")

    def _fail_attempt(self, action: str, run: RunRecord) -> BaseException:
        if action == "cut":
            self.judged_call.cut = Interruption()
            return self.judged_call.cut  # type: ignore[no-any-return]
        if action == "refused":
            self.judge.clear(self.book, run)
        return ERRORS[action](action)

    def _save_checkpoint(self, head: LoadedHead, run: RunRecord) -> Generator[str, None, LoadedHead]:
        if head.record.checkpoint_version:
            body = self._read_body(ops.ReadBody(ENTITY, head.record.checkpoint_version))
            self.found_checkpoints.append(body["checkpoint"])
        yield "checkpoint"
        after = head.record._replace(checkpoint_version=head.version + 1)
        change = RecordChange(("CHECKPOINT",), head.record, after, {"checkpoint": run.attempt})
        saved = self._append_change(ops.AppendChange(head, change))
        if saved is None:  # as in the driver: the attempt is notified, and continues all the same
            saved = self.load_run()
            assert (saved.record.state, saved.record.fence) == ("RUNNING", run.fence)
            assert saved.record.cancelled_at
        return saved  # type: ignore[return-value]
