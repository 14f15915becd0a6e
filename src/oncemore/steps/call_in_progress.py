"""A call in progress: it performs the operations of a script on one engine.

A write that was begun is completed. If its acknowledgement was lost, by an interruption or a failing store,
the *same* compare-and-set is sent again, and the entry that stands in the log is the answer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore import clock as clocks
from oncemore._values import make
from oncemore.artifacts import store
from oncemore.artifacts.artifact import reference_to_artifact
from oncemore.control.model import SWITCHES_ENTITY
from oncemore.errors import Cancelled, LeaseLost, StoreError, UsageError
from oncemore.limits import budget_step
from oncemore.limits.shared_rate import RateLimiter
from oncemore.log.entry_codec import decode_head, read_body
from oncemore.log.head_access import (
    ARTIFACT,
    CHECKPOINT,
    build_event_write,
    build_write,
    load_head,
    was_notified_already,
)
from oncemore.log.interrupt_shield import InterruptShield
from oncemore.log.record import NOWHERE, ArtifactRecord, EventRecord, RecordChange, RunRecord
from oncemore.log.store import Batch, Conflict, JoinedWriteFailed, Stored
from oncemore.retries.loop import ENDS, CallFunction
from oncemore.steps.attempt import CURRENT, Attempt
from oncemore.steps.lease import RESERVED
from oncemore.steps.ops import (
    AppendChange,
    ArtifactCheck,
    AskPermission,
    AttemptOutcome,
    BudgetDraw,
    CheckArtifact,
    CommitTransaction,
    DrawBudget,
    EarnBudget,
    FetchResult,
    LoadBreaker,
    LoadedHead,
    LoadHead,
    LoadPolicy,
    NotifyListeners,
    Permission,
    PrepareSubmission,
    ReadBody,
    ReadClock,
    ReadLease,
    RefundBudget,
    ReserveWorker,
    RunAttempt,
    SpillResult,
    TakeRateSlot,
    VoidClaim,
)
from oncemore.steps.run import find_opening
from oncemore.steps.transactions import (
    AppliedMark,
    encode_commit_record,
    run_mark_script,
    run_mark_script_async,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from oncemore.artifacts.artifact import Artifact, ArtifactLabel
    from oncemore.log.encryption import BodyCipher
    from oncemore.log.store import EntryWrite
    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine
    from oncemore.steps.lease import WorkerIdentity
    from oncemore.steps.ops import AttemptTerms, Given
    from oncemore.steps.transactions import Asking, DatabaseAdapter

    Answered = Stored | Conflict
    Arguments = tuple[tuple[Any, ...], dict[str, Any]]

#: Waits before a write whose answer was lost is sent again.
RESEND_DELAYS_S = (0.0, 0.05, 0.25, 1.0)


class StepFunctions(NamedTuple):
    """What all calls of a step have in common.

    tagged, untagged  value → what a body keeps of it, and back
    line_of           a connection to the user's own database → what speaks its dialect
    isolate           whether the work runs in a process of its own, or what else calls it
    artifact          the name of the one artifact that its result is; empty if it is not
    recall            recorded arguments, and those of the call → the call's arguments as they were recorded
    lease             how long its runs stay with this process and how often it gives a sign of life, where a
                      policy says so
    """

    name: str
    work: Callable[..., Any]
    tagged: Callable[[Any], Any]
    untagged: Callable[[Any], Any]
    line_of: Callable[[Any], DatabaseAdapter] | None = None
    reconcile: Callable[..., Any] | None = None
    awaits: bool = False
    isolate: bool | Callable[[CallInProgress, Attempt, CallFunction], Any] = False
    artifact: str = ""
    recall: Callable[[dict[str, Any], tuple[Any, ...], dict[str, Any]], Arguments] | None = None
    lease: tuple[float, float] | None = None


class CallInProgress:
    """A call in progress: engine, function, current attempt, and a pending interruption.

    last_answer  the result of an awaited operation whose coroutine was closed
    recorded  the run whose recorded arguments were read last, and these; None before that
    given     the caller's own arguments, while `args` and `kwargs` are those of a recorded run
    """

    __slots__ = (
        "_tagged",
        "_terms",
        "args",
        "current_attempt",
        "engine",
        "function",
        "functions",
        "given",
        "has_reservation",
        "identity",
        "interrupt",
        "is_async",
        "isolate",
        "kwargs",
        "last_answer",
        "lease",
        "recorded",
        "store",
        "was_reread",
    )

    def __init__(
        self,
        engine: Engine,
        terms: Callable[[Any, float], AttemptTerms],
        kit: StepFunctions,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] = {},  # noqa: B006 - nobody changes it
    ) -> None:
        self.engine, self.store, self._terms, self.functions = engine, engine.store, terms, kit
        self.identity: WorkerIdentity | None = None
        self.interrupt: BaseException | None = None
        self.current_attempt: tuple[str, int] | None = None
        self.has_reservation = self.was_reread = False
        self.last_answer: Any = None
        self.recorded: tuple[str, dict[str, Any]] | None = None
        self.given: Arguments | None = None
        _, self.function, self._tagged, _, _, _, self.is_async, self.isolate, _, _, self.lease = kit
        self.args, self.kwargs = args, kwargs

    @property
    def step_name(self) -> str:
        """The name of the step."""
        return self.functions.name

    @property
    def artifact_name(self) -> str:
        """The name of the one artifact that the step's result is."""
        return self.functions.artifact

    # What needs no waiting --------------------------------------------------------------------------

    def load_head(self, op: LoadHead) -> LoadedHead:
        """Read the head of an entity."""
        self.was_reread = True
        return load_head(self.store, op.entity, self.engine.cipher, op.kind)

    def load_breaker(self, op: LoadBreaker) -> LoadedHead:
        """Return the circuit of a breaker."""
        return self.engine.breakers.load_breaker(self.engine, op.entity)

    def take_rate_slot(self, op: TakeRateSlot) -> Generator[Any, Any, float]:
        """Return the script that takes a moment for an attempt; all steps here take from one meter."""
        engine = self.engine
        meter = engine.rate_limiters.get(op.beat)
        if meter is None:
            made = RateLimiter(op.beat.pulse, op.beat.name, lambda: engine)
            meter = engine.rate_limiters.setdefault(op.beat, made)
        return meter.take_slot(has_moment=op.has_moment)

    def draw_budget(self, op: DrawBudget) -> BudgetDraw:
        """Return the tokens of a retry budget."""
        return budget_step.draw_budget(self.engine, op)

    def refund_budget(self, op: RefundBudget) -> None:
        """Return tokens to a retry budget."""
        budget_step.refund_budget(self.engine, op)

    def earn_budget(self, op: EarnBudget) -> Generator[Any, Any, None]:
        """Return the script that adds the earnings of a success to a retry budget."""
        return budget_step.earn_budget(self.engine, op.purse)

    def reserve_worker(self, op: ReserveWorker) -> AttemptTerms:
        """Reserve this process's worker, whose lease covers the attempt, and return the terms."""
        if self.has_reservation:
            self.release_worker()
        if op.seen is not None:
            self.recall(op.seen)
        engine, lease = self.engine, self.lease
        now = engine.now()
        while not (
            me := engine.current_identity(now) if lease is None else engine.identity_for(lease, now)
        ).reserve_slot():
            continue  # it was retired in this very moment: the next one is another
        self.identity, self.has_reservation = me, True
        terms = self._terms(me, now)
        engine.policies.record_policy(engine, op.policy_name, op.policy, op.source)
        return terms

    def recall(self, seen: LoadedHead) -> None:
        """Use the arguments that the run was opened with: an earlier attempt may have changed them here.

        After a finished run this call opens a new one with its own arguments.
        """
        run, recall = seen.record, self.functions.recall
        if recall is None:
            return
        if run.state in ("COMPLETE", "HARD_FAIL"):
            self.args, self.kwargs = self.given or (self.args, self.kwargs)
            return
        if self.recorded is None or self.recorded[0] != run.run_id:
            opening = seen.body or {}
            if "arguments" not in opening:
                opening = find_opening(self.store.read_entries(seen.entity), self.engine.cipher)
            self.recorded = run.run_id, opening.get("arguments", {})
        elif self.given is None:  # a worker has read them, and no attempt has had them yet
            self.given = self.args, self.kwargs
            return
        self.given = self.given or (self.args, self.kwargs)
        with self.engine.artifact_store.use_store():
            self.args, self.kwargs = recall(self.recorded[1], *self.given)

    def prepare_submission(self, op: PrepareSubmission) -> AttemptTerms:
        """Return the terms of a run that a worker will make."""
        terms = self._terms(None, self.engine.now())
        self.engine.policies.record_policy(self.engine, *op)
        return terms

    def load_policy(self, op: LoadPolicy) -> Policy | None:
        """Return a policy that the log has."""
        policy = self.engine.policies.find_policy(self.engine, op.name)
        if policy is None:
            self.engine.log_warning(
                f"{self.step_name}: the log does not have policy {op.name}, with which the run began; it "
                "goes on "
                "with its attempts and the step's present policy"
            )
        return policy

    def ask_permission(self, op: AskPermission) -> Permission:
        """Say whether an attempt may begin, as far as people have to say so."""
        return self.engine.permissions.ask_permission(self.engine, op)

    def release_worker(self) -> None:
        """Keep this process's worker no longer than anything needs it."""
        if self.has_reservation and self.identity is not None:
            self.has_reservation = False
            self.identity.remove_attempt(RESERVED)
            if self.identity.retired:
                self.engine.close_retired_worker(self.identity)

    def read_clock(self, op: ReadClock) -> float:
        """Return the store's time."""
        return self.engine.now()

    def read_lease(self, op: ReadLease) -> float:
        """Return until when an attempt is held."""
        return self.engine.lease_until(op.worker, op.entity, op.fence)

    def read_body(self, op: ReadBody) -> dict[str, Any]:
        """Return the body of an entry."""
        for entry in self.store.read_entries(op.entity, op.version - 1):
            if entry.body is None:
                break
            return read_body(entry, self.engine.cipher)
        raise StoreError(f"entry {op.version} of {op.entity} has no body; was it pruned?")

    def notify_listeners(self, op: NotifyListeners) -> None:
        """Call the listeners of the engine."""
        self.engine.notify_listener(op.what, op.seen)

    # Writing ----------------------------------------------------------------------------------------

    def encode_change(self, op: AppendChange) -> tuple[Batch, LoadedHead]:
        """Return the bytes of a change, and the entity as it will be once they are stored."""
        seen, change, sync, events, beside, also, guards, late = op
        entity, version, prev, _, _ = seen
        engine = self.engine
        now, seal = engine.now(), engine.cipher
        if engine.notifier is not None:
            change, notices = engine.notifier.add_notifications(engine, entity, version, change, now)
            events = (*events, *notices)
        write = build_write(entity, version, prev, change, now, seal)
        marks, _, run, body = change
        if "INTENT" in marks:
            # Before it is written: nobody in this process may take it for lost.
            assert self.identity is not None
            assert type(run) is RunRecord
            assert SWITCHES_ENTITY in guards, "an attempt was to begin that nobody has let begin"
            held = (entity, run.fence)
            reserved, self.has_reservation = self.has_reservation, False
            self.identity.add_attempt(held, reserved=reserved)
            self.current_attempt = (
                held  # after it: what was not taken must not be left, it may be somebody else's
            )
        writes = (write,) if not (also or events) else (write, *_build_joined_writes(also, events, now, seal))
        after = make(LoadedHead, (entity, version + 1, write.hash, run, body))
        late = late and self.store.checks_guards_late
        return make(Batch, (writes, guards, sync, beside, late)), after

    def apply_append_result(
        self, op: AppendChange, after: LoadedHead, answer: Answered
    ) -> LoadedHead | VoidClaim | None:
        """Return the new head, or None on a conflict.

        A refused checkpoint does not end the attempt: it may belong to an abandoned attempt of this call,
        while the next one runs.
        """
        engine = self.engine
        if isinstance(answer, Conflict):
            if op.change.marks != CHECKPOINT and not self._is_attempt_still_running(answer):
                self.leave_attempt()
            if answer.entity in op.guards:
                engine.permissions.drop_cached()  # what people have said has changed: it is read anew
            if op.also or op.guards:
                engine.breakers.drop_cached(answer.entity)  # if it is what has changed, it is read anew
            return VoidClaim(after) if answer.stored_seqs else None
        if after.record.state != "RUNNING":  # or it was only asked to be cancelled
            self.leave_attempt()
        if op.also:
            engine.breakers.apply_written(engine, op.also)
            if any(seen.entity == SWITCHES_ENTITY for seen, _ in op.also):
                engine.permissions.drop_cached()  # a pipeline was halted
        if engine.notifier is not None and engine.notifier.concerns(op.change):
            engine.notifier.wake_thread(engine)
        return after

    def _is_attempt_still_running(self, answer: Conflict) -> bool:
        """Whether the attempt is still under way though a write of it was refused."""
        if self.current_attempt is None:
            return False
        # What was to be changed with it may have moved alone: then the attempt is what it was.
        head = (
            answer.head
            if answer.entity == self.current_attempt[0]
            else self.store.load_head(self.current_attempt[0])
        )
        now: RunRecord | None = None if head is None else decode_head(head.head)
        return now is not None and now.state == "RUNNING" and now.fence == self.current_attempt[1]

    def leave_attempt(self) -> None:
        """Have no attempt under way any more."""
        if self.current_attempt is not None and self.identity is not None:
            held, self.current_attempt = (
                self.current_attempt,
                None,
            )  # before it: nobody leaves twice, whatever comes in between
            self.identity.remove_attempt(held)
            if self.identity.retired:
                self.engine.close_retired_worker(self.identity)

    def abandon_call(self, error: BaseException) -> None:
        """Give the attempt up after its outcome could not be stored, so that other workers can take it over.

        After a second Ctrl-C nothing is written any more: the store may be the reason for the wait.
        """
        if self.current_attempt is not None and self.identity is not None:
            self.engine.retire_worker(self.identity, quietly=not isinstance(error, Exception))
            self.leave_attempt()
        self.release_worker()

    def resend_batch(
        self, batch: Batch, error: BaseException
    ) -> Generator[float, None, Answered | JoinedWriteFailed]:
        """Send a batch whose acknowledgement was lost again, to find out whether it is stored."""
        if not isinstance(error, StoreError):
            if isinstance(error, Exception):
                raise error
            self.interrupt = error
        last = error
        for wait in RESEND_DELAYS_S:
            yield wait
            try:
                answer = self.store.append(batch).wait()
            except StoreError as again:
                last = again
                continue
            except JoinedWriteFailed as failed:
                return failed  # the versions fitted, so that nothing was stored before
            if isinstance(answer, Stored) or answer.stored_seqs or not (at := self._find_own_entry(batch)):
                return answer
            # Whether its guards had moved, a store that looks late did not say: what is not known means no.
            return Conflict(next(iter(batch.guards)), None, (at,)) if batch.late else Stored((at,))
        if self.interrupt is not None and last is not self.interrupt:
            raise self.interrupt from last
        raise last

    def _find_own_entry(self, batch: Batch) -> int:
        """Return the number of our entry where it stands; 0: it is not ours that does."""
        first = batch.writes[0]
        for entry in self.store.read_entries(first.entity, first.expect):
            return entry.seq if entry.hash == first.hash else 0
        return 0

    # The work ---------------------------------------------------------------------------------------

    def make_attempt(self, seen: LoadedHead, *, asks: bool = False) -> Attempt:
        """Return the `Attempt` that user code sees."""
        keep = None if asks else (self._save_checkpoint_async if self.is_async else self._save_checkpoint)
        files = None if asks else self
        return Attempt(seen, self.engine.now, self._tagged, keep, self._load_checkpoint, CURRENT.get(), files)

    def _build_checkpoint(self, attempt: Attempt, plain: Any) -> AppendChange:
        seen = attempt.seen
        after = seen.record._replace(checkpoint_version=seen.version + 1)
        return AppendChange(seen, RecordChange(CHECKPOINT, seen.record, after, {"checkpoint": plain}))

    def _save_checkpoint(self, attempt: Attempt, plain: Any) -> None:
        saved: Any = append_change(self, self._build_checkpoint(attempt, plain))
        if self.interrupt is not None:
            raise self.interrupt  # here, where the work is: it may have hours to go
        self._continue_after_checkpoint(attempt, saved)

    async def _save_checkpoint_async(self, attempt: Attempt, plain: Any) -> None:
        try:
            saved: Any = await append_change_async(self, self._build_checkpoint(attempt, plain))
        except GeneratorExit:
            attempt.seen = self.last_answer or attempt.seen
            raise
        if self.interrupt is not None:
            raise self.interrupt
        self._continue_after_checkpoint(attempt, saved)

    def _continue_after_checkpoint(self, attempt: Attempt, saved: LoadedHead | None) -> None:
        """Continue after a stored checkpoint; raise if the run was taken over or cancelled."""
        if saved is None:
            seen = load_head(self.store, attempt.seen.entity, self.engine.cipher)
            if (
                seen.record.state == "RUNNING"
                and seen.record.fence == attempt.fence
                and seen.record.cancelled_at
            ):
                attempt.seen = seen
                raise Cancelled(f"{attempt.step}: attempt {attempt.number} is to be cancelled")
        _moved(attempt, saved)

    def _load_checkpoint(self, seen: LoadedHead) -> Any:
        return self.functions.untagged(
            self.read_body(ReadBody(seen.entity, seen.record.checkpoint_version))["checkpoint"]
        )

    # Transactions -----------------------------------------------------------------------------------

    def begin_transaction(self, attempt: Attempt, connection: Any) -> Any:
        """Begin an attempt's transaction in the user's own database; in async work it is to be awaited."""
        assert self.functions.line_of is not None
        ours = str(getattr(self.store, "path", ""))
        mark = AppliedMark(self.functions.line_of(connection), connection, attempt, ours)
        if self.is_async:
            return self._begin_transaction_async(attempt, mark)
        if mark.is_async:
            raise UsageError(f"{attempt.step}: an async connection needs an async step")
        attempt.mark = mark  # before it has begun: whatever has begun is undone
        run_mark_script(mark.begin_attempt())
        return connection

    def check_supports_on_commit(self, step: str) -> None:
        """Refuse `on_commit` on a store without SQL transactions."""
        if not self.store.supports_joined_writes:
            raise UsageError(
                f"{step}: current().on_commit() needs a store in SQLite or PostgreSQL; this one is "
                f"{self.engine.url}. current().transaction(connection) works with every store"
            )

    def commit_transaction(self, op: CommitTransaction) -> Asking:
        """Commit an attempt's transaction, unless the attempt was taken over.

        The mark alone would not let a former attempt commit after a later one has begun; but in a database
        with one writer no later one can begin while this one holds it, and all would fail for that.
        """
        held = load_head(self.store, op.seen.entity, self.engine.cipher).record
        if held.state != "RUNNING" or held.fence != op.seen.record.fence:
            yield from op.mark.roll_back()
            raise LeaseLost(
                f"{held.step}: attempt {op.seen.record.attempt} was taken over; nothing is committed"
            )
        yield from op.mark.commit_applied(encode_commit_record(op.body, op.events))

    async def _begin_transaction_async(self, attempt: Attempt, mark: AppliedMark) -> Any:
        attempt.mark = mark
        await run_mark_script_async(mark.begin_attempt())
        return mark.connection

    # Artifacts --------------------------------------------------------------------------------------

    def put_artifact(self, attempt: Attempt, content: Any, label: ArtifactLabel) -> Any:
        """Put content away for an attempt; in async work the answer is to be awaited."""
        if self.is_async:
            return self._put_artifact_async(attempt, content, label)
        return attempt.attach_artifact(self._put_artifact(attempt, content, label))

    def leave_evidence(self, attempt: Attempt, content: Any, label: ArtifactLabel) -> Any:
        """Leave content for people; in async work the answer is to be awaited."""
        if self.is_async:
            return self._leave_evidence_async(attempt, content, label)
        return reference_to_artifact(self.store_evidence(attempt, content, label))

    async def _leave_evidence_async(self, attempt: Attempt, content: Any, label: ArtifactLabel) -> Artifact:
        return reference_to_artifact(await run_in_thread(self.store_evidence, attempt, content, label))

    def store_evidence(self, attempt: Attempt, content: Any, label: ArtifactLabel) -> ArtifactRecord:
        """Store content as evidence: it is listed if the attempt fails."""
        kept = self._put_artifact(attempt, content, label)
        attempt.evidence = (*attempt.evidence, kept)
        return kept

    def _put_artifact(self, attempt: Attempt, content: Any, label: ArtifactLabel) -> ArtifactRecord:
        seen = attempt.seen
        written = self.engine.artifacts.write_content(content, lambda: self._check_attempt_active(attempt))
        return store.make_reference(seen.entity, seen.record, label, *written, self.engine.now())

    async def _put_artifact_async(self, attempt: Attempt, content: Any, label: ArtifactLabel) -> Artifact:
        return attempt.attach_artifact(await run_in_thread(self._put_artifact, attempt, content, label))

    def _check_attempt_active(self, attempt: Attempt) -> None:
        """Refuse an attempt that is over, or was taken over: nothing of it comes to light any more."""
        run = load_head(self.store, attempt.seen.entity, self.engine.cipher).record
        if attempt.over or run.state != "RUNNING" or run.fence != attempt.fence:
            _moved(attempt, None)

    def find_recorded_artifact(self, kept: ArtifactRecord) -> ArtifactRecord | None:
        """Return the recorded artifact of that name, if there is one."""
        self.engine.artifacts.register_log()  # for one that was put away in a process of its own
        return self.engine.artifacts.load_reference(store.reference_entity(kept))

    def check_artifact(self, op: CheckArtifact) -> ArtifactCheck:
        """Say whether the step's artifact is there, and valid."""
        return self.engine.artifacts.check_artifact(op.entity, op.cfg_hash, op.name)

    def spill_result(self, op: SpillResult) -> tuple[str, ArtifactRecord] | None:
        """Keep a large result beside the log."""
        return self.engine.artifacts.spill_result(op.seen.entity, op.seen.record, op.encoded)

    def fetch_result(self, op: FetchResult) -> Any:
        """Return a large result."""
        return self.engine.artifacts.fetch_result(op.spilled)

    # ------------------------------------------------------------------------------------------------

    def call_function(self) -> Any:
        """Call the step's function."""
        return self.function(*self.args, **self.kwargs)

    def call_reconcile(self) -> Any:
        """Call the step's reconcile function, with the step's own arguments."""
        assert self.functions.reconcile is not None
        return self.functions.reconcile(*self.args, **self.kwargs)

    def compute_limits(self, op: RunAttempt) -> CallFunction:
        """Return the limits of an attempt; an outer attempt's end is an end for the inner one too."""
        outer = ENDS.get()
        limit, whole = op.limit_s, op.whole
        if outer is None and limit is None:
            return make(CallFunction, (op.seen.record.attempt, None, whole, None))
        if outer is not None:
            left = max(0.0, outer - clocks.current.monotonic())
            if limit is None or left < limit:
                limit, whole = left, True
        ends = None if limit is None else clocks.current.monotonic() + limit
        return CallFunction(op.number, limit, whole, ends)

    def build_outcome(self, attempt: Attempt, value: Any, error: BaseException | None) -> AttemptOutcome:
        """Return the outcome of an attempt and end it.

        A child process that was forked inside the function and returns from it writes nothing.
        """
        attempt.over = True
        if attempt.is_forked:
            raise error or LeaseLost(
                f"{attempt.step}: attempt {attempt.number} is that of the parent process"
            )
        # What cut a checkpoint off was raised in the work: what the work made of it counts, its own
        # timeout among other things.
        self.interrupt = None if error is None or isinstance(error, Exception) else error
        if attempt.mark is not None and attempt.mark.applied is not None:
            self.interrupt = None
            return AttemptOutcome(attempt.seen, applied=attempt.mark.applied)
        if error is not None:
            left = tuple((kept, None) for kept in attempt.evidence)
            return AttemptOutcome(attempt.seen, None, error, attempt.begun, evidence=left)
        if attempt.seen.record.effect == "transactional":
            return self._build_transactional_outcome(attempt, value)
        if not attempt.kept:
            return make(
                AttemptOutcome, (attempt.seen, value, None, True, attempt.events, (), None, None, None, ())
            )
        return AttemptOutcome(
            attempt.seen, value, None, True, attempt.collect_outputs(), attempt.list_artifacts()
        )

    def _build_transactional_outcome(self, attempt: Attempt, value: Any) -> AttemptOutcome:
        """Return the outcome of a transactional attempt, which must have named its connection."""
        mark, also = attempt.mark, attempt.also
        if mark is None and also is None:
            error = UsageError(
                f"{attempt.step} is transactional and used neither current().transaction(connection) nor "
                "current().on_commit(write): what it wrote, if it did, was not one with its record"
            )
            return AttemptOutcome(attempt.seen, None, error)
        away = attempt.collect_outputs(), attempt.list_artifacts()
        return AttemptOutcome(attempt.seen, value, None, True, *away, mark, also)


def _moved(attempt: Attempt, saved: LoadedHead | None) -> None:
    if saved is None:
        attempt.over = True
        raise LeaseLost(f"{attempt.step}: attempt {attempt.number} was taken over by another worker")
    attempt.seen = saved


def _build_joined_writes(
    also: tuple[tuple[LoadedHead, RecordChange], ...],
    events: tuple[Given, ...],
    now: float,
    seal: BodyCipher | None,
) -> Iterator[EntryWrite]:
    """Yield the further writes of a batch: other entities, events and artifact references."""
    for seen, change in also:
        yield build_write(seen.entity, seen.version, seen.hash, change, now, seal)
    for given, payload in events:
        if type(given) is ArtifactRecord:
            yield build_write(
                store.reference_entity(given), 0, NOWHERE, RecordChange(ARTIFACT, None, given), now, seal
            )
        else:
            assert type(given) is EventRecord
            yield build_event_write((given, payload), now, seal)


# Writing, blocking and awaiting -------------------------------------------------------------------


def append_change(job: CallInProgress, op: AppendChange) -> LoadedHead | VoidClaim | JoinedWriteFailed | None:
    """Store a change, waiting for the disk; return the entity as it is then, or None if it had moved."""
    batch, after = job.encode_change(op)
    answer: Answered | JoinedWriteFailed | None = None
    shield = InterruptShield(job.interrupt is not None)
    try:
        with shield:
            answer = job.store.append(batch).wait()
    except JoinedWriteFailed as failed:
        return failed
    except BaseException as error:
        if shield.twice:
            raise  # it is as good as a kill: nothing more is written
        if answer is None:
            answer = wait_for_resend(job.resend_batch(batch, error))
        else:
            job.interrupt = error  # kept, and raised when the run is in order
    if type(answer) is Stored:
        return job.apply_append_result(op, after, answer)
    if isinstance(answer, JoinedWriteFailed):
        return answer
    return (
        append_change(job, op)
        if was_notified_already(op, batch, answer)
        else job.apply_append_result(op, after, answer)
    )


def wait_for_resend(
    sending: Generator[float, None, Answered | JoinedWriteFailed],
) -> Answered | JoinedWriteFailed:
    """Wait as long as sending again asks for, and return the answer."""
    try:
        while True:
            clocks.current.sleep(wait) if (wait := next(sending)) else None
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def append_change_async(
    job: CallInProgress, op: AppendChange
) -> LoadedHead | VoidClaim | JoinedWriteFailed | None:
    """Append a change without blocking the event loop."""
    if job.interrupt is not None:
        return append_change(
            job, op
        )  # a task that was cancelled must not await; the disk is worth the moment
    batch, after = job.encode_change(op)
    try:
        answer: Answered | JoinedWriteFailed = await job.store.append(batch)
    except JoinedWriteFailed as failed:
        return failed
    except BaseException as error:  # noqa: BLE001 - a cut is kept and raised when the run is in order
        sending = job.resend_batch(batch, error)
        answer = (
            await wait_for_resend_async(sending) if isinstance(error, Exception) else wait_for_resend(sending)
        )
    if type(answer) is not Stored:
        if isinstance(answer, JoinedWriteFailed):
            return answer
        if was_notified_already(op, batch, answer):
            return await append_change_async(job, op)
    job.last_answer = job.apply_append_result(op, after, answer)
    return job.last_answer  # type: ignore[no-any-return]


async def wait_for_resend_async(
    sending: Generator[float, None, Answered | JoinedWriteFailed],
) -> Answered | JoinedWriteFailed:
    """Wait between resends without blocking the event loop."""
    try:
        while True:
            if wait := next(sending):
                await clocks.current.pause(wait)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def run_in_thread(work: Callable[..., Any], *told: Any) -> Any:
    """Let a thread wait for the disk or the network, on asyncio or trio."""
    trio = clocks.find_trio()
    if trio is not None:
        return await trio.to_thread.run_sync(work, *told)
    return await sys.modules["asyncio"].to_thread(work, *told)
