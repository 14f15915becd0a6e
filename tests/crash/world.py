"""A small world for the flow: a store, virtual time, workers that die, and effects that are counted.

`World.drive` runs a script operation by operation and can crash it before or after any of them: what a
crash leaves is what the store and the outside world hold at that moment.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from oncemore.control.permits import PermissionCheck
from oncemore.log.entry_codec import decode_body, decode_head, decode_header, encode_entry
from oncemore.log.head_index import run_due_at
from oncemore.log.memory import MemoryStore
from oncemore.log.record import NOWHERE, RunRecord, apply_header, hash_entry
from oncemore.log.store import Batch, EntryWrite, Head, HeadIndex, Stored
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.canonical_json import hash_bytes
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy
from oncemore.steps import flow, ops

ENTITY = "run/k"
POLICY = Policy("crash", max_attempts=3, schedule=Schedule("fixed", delays=(5.0, 7.0)), jitter=Jitter("none"))


class Crash(BaseException):
    """The process dies here."""


class Transient(Exception):
    """Fails in a way that may pass."""


class Permanent(Exception):
    """Fails for good."""


class Refused(Exception):
    """Declared not_applied: it certainly had no effect."""


KINDS = {
    Transient: Failure("transient", "maybe", None, "TRANSIENT", "test"),
    Permanent: Failure("permanent", "maybe", None, "PERMANENT", "test"),
    Refused: Failure("transient", "maybe", None, "REFUSED", "test"),
}


class World:
    """What outlives a crash: the store, the time, and what has happened outside."""

    def __init__(
        self, effect: str, turns: list[str], *, asks: bool = False, checks_guards_late: bool = False
    ) -> None:
        self.store = MemoryStore(lambda: self.now, checks_guards_late=checks_guards_late)
        self.now = 1000.0
        self.alive: set[str] = set()
        self.effect = effect
        self.turns = turns
        self.asks = asks
        self.executions = 0
        self.happened: list[int] = []  # the attempts whose effect reached the outside
        self.workers = 0
        self.nonce = 0
        self.me = ""
        self.controls = PermissionCheck()

    def plan(self) -> ops.StepPlan:
        return ops.StepPlan(
            "step",
            self.effect,  # type: ignore[arg-type]
            POLICY,
            lambda error, now: KINDS[type(error)],  # type: ignore[index]
            encode=lambda value: value,
            decode=lambda value: value,
            describe=lambda error, failure: {"type": type(error).__name__, "message": str(error)},
            not_applied=lambda error: isinstance(error, Refused),
            asks=self.asks,
        )

    def call(self) -> ops.CallIdentity:
        """Return a call of the same work, as any process would make it."""
        return ops.CallIdentity(ENTITY, "input", "cfg")

    def _reserve_worker(self, op: ops.ReserveWorker) -> ops.AttemptTerms:
        """Begin an attempt as a worker of its own, with a lease."""
        self.workers += 1
        self.me = f"worker-{self.workers}"
        self.alive.add(self.me)
        return ops.AttemptTerms(self.me, f"run-{self.workers}", {"x": 1}, "input")

    def _prepare_submission(self, op: ops.PrepareSubmission) -> ops.AttemptTerms:
        """Begin nothing, for somebody else to go on with."""
        self.workers += 1
        return ops.AttemptTerms("", f"run-{self.workers}", {"x": 1}, "input")

    def _ask_permission(self, op: ops.AskPermission) -> ops.Permission:
        """Say what people have said, as an engine on this store would."""
        return self.controls.ask_permission(self, op)  # type: ignore[arg-type]

    def drive(self, crash_at: tuple[int, str] | None = None) -> tuple[ops.EndCall, int]:
        """Run one process's call to its end, or to its crash; return the end and how many ops it took."""
        plan, call = self.plan(), self.call()
        script = flow.run_step(plan, call)
        op, count = next(script), 0
        while type(op) is not ops.EndCall:
            count += 1
            if crash_at == (count, "before"):
                self._die()
            answer = self.do(op)
            if crash_at == (count, "after"):
                self._die()
            op = script.send(answer)
            assert count < 200, "the flow does not end"
        self.alive.discard(self.me)
        assert next(script, None) is None, "a script goes on after its end"
        return op, count

    def _die(self) -> None:
        self.alive.discard(self.me)
        raise Crash

    def advance(self, script: Any, op: Any, to: type) -> Any:
        """Run a script up to the operation of a kind, and return that one undone."""
        while type(op) is not to:
            op = script.send(self.do(op))
        return op

    def do(self, op: Any) -> Any:
        """Do what an operation asks for."""
        return getattr(self, "_" + re.sub(r"(?<!^)(?=[A-Z])", "_", type(op).__name__).lower())(op)

    def _load_head(self, op: ops.LoadHead) -> ops.LoadedHead:
        return self.seen()

    def seen(self) -> ops.LoadedHead:
        head = self.store.load_head(ENTITY)
        if head is None:
            return ops.LoadedHead(ENTITY, 0, NOWHERE, None)
        assert head.body is not None
        return ops.LoadedHead(ENTITY, head.version, head.hash, decode_head(head.head), decode_body(head.body))

    def _read_clock(self, op: ops.ReadClock) -> float:
        return self.now

    def _read_lease(self, op: ops.ReadLease) -> float:
        return self.now + 60 if op.worker in self.alive else 0.0

    def _append_change(self, op: ops.AppendChange) -> ops.LoadedHead | ops.VoidClaim | None:
        seen, run = op.seen, op.change.after
        self.nonce += 1
        data = encode_entry(op.change, ENTITY, seen.version + 1, seen.hash, self.now, self.nonce)
        by = HeadIndex("run", run.state, run_due_at(run), run.step, run.worker, run.dataset)
        write = EntryWrite(ENTITY, seen.version, data.header, data.body, data.hash, data.head, by)
        answer = self.store.append(Batch((write,), op.guards)).wait()
        self.controls.drop_cached()
        return self.seen() if isinstance(answer, Stored) else None

    def _read_body(self, op: ops.ReadBody) -> dict[str, Any]:
        entry = next(self.store.read_entries(op.entity, op.version - 1))
        assert entry.body is not None
        return decode_body(entry.body)

    def _run_attempt(self, op: ops.RunAttempt) -> ops.AttemptOutcome:
        """Do what this turn says: `ok`, or an error before or after the effect reached the outside."""
        turn = self.turns[min(self.executions, len(self.turns) - 1)]
        self.executions += 1
        if turn in ("ok", "transient after"):
            self.happened.append(op.number)
        if turn == "ok":
            return ops.AttemptOutcome(op.seen, "value")
        error = {
            "transient": Transient,
            "transient after": Transient,
            "permanent": Permanent,
            "refused": Refused,
        }
        return ops.AttemptOutcome(op.seen, None, error[turn](turn))

    def _ask_reconcile(self, op: ops.AskReconcile) -> ops.ReconcileAnswer:
        if op.seen.record.attempt in self.happened:
            return ops.ReconcileAnswer("applied", "value")
        return ops.ReconcileAnswer("not_applied")

    def _sleep_seconds(self, op: ops.SleepSeconds) -> None:
        self.now += op.seconds

    def _watch_entity(self, op: ops.WatchEntity) -> None:
        self.now += op.seconds
        self.alive.clear()  # whoever had it did not come back in time

    def check(self) -> RunRecord | None:
        """Hold the log to its rules: links, versions, states rebuilt from headers, bounded attempts."""
        run: RunRecord | None = None
        prev, numbers, commits = NOWHERE, [], 0
        for version, entry in enumerate(self.store.read_entries(ENTITY), 1):
            header = decode_header(entry.header)
            assert entry.body is not None
            assert entry.hash == hash_entry(prev, entry.header, hash_bytes(entry.body))
            assert (entry.version, header.version, header.entity) == (version, version, ENTITY)
            run, prev = apply_header(run, header.sets), entry.hash
            numbers += [run.attempt] if "INTENT" in header.marks else []
            commits += header.marks.count("COMMIT")
        head: Head | None = self.store.load_head(ENTITY)
        assert run == (None if head is None else decode_head(head.head))
        assert numbers == sorted(set(numbers))
        assert len(numbers) <= POLICY.max_attempts
        assert self.executions <= POLICY.max_attempts
        assert commits <= 1
        return run

    @property
    def applied(self) -> Counter[str]:
        """How often the outside applied it: one that deduplicates by key counts one, others count each."""
        if self.effect in ("pure", "idempotent"):
            return Counter({"k": min(1, len(self.happened))})
        return Counter({"k": len(self.happened)})
