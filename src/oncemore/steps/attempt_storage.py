"""Store the outputs of an attempt: checkpoints, artifacts, and the transaction in the user's own database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from oncemore._driver import run_script, run_script_async
from oncemore.artifacts.artifact import reference_to_artifact
from oncemore.artifacts.store import make_reference, reference_entity
from oncemore.errors import Cancelled, LeaseLost, StoreError, UsageError
from oncemore.log.entry_codec import CHECKPOINT, load_head, read_body
from oncemore.log.record import RecordChange
from oncemore.log.tagged_json import untag_value
from oncemore.steps.db_adapters import adapt_connection
from oncemore.steps.inputs import collect_recorded
from oncemore.steps.operations import run_in_thread
from oncemore.steps.ops import AppendChange
from oncemore.steps.transactions import DATABASE_OPERATIONS, AppliedMark

if TYPE_CHECKING:
    from oncemore.artifacts.artifact import Artifact, ArtifactLabel
    from oncemore.log.record import ArtifactRecord, LoadedHead
    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.inputs import RecordedDigests


class AttemptBackend(Protocol):
    """Stores the outputs of an attempt. In an async step the methods return awaitables."""

    @property
    def artifact_name(self) -> str:
        """The name of the artifact that is the step's result."""

    def now(self) -> float:
        """Return the time of an event."""

    def save_checkpoint(self, attempt: RunningAttempt, plain: Any) -> Any:
        """Store a checkpoint in its tagged form."""

    def load_checkpoint(self, head: LoadedHead) -> Any:
        """Return the last checkpoint of a run."""

    def put_artifact(self, attempt: RunningAttempt, content: Any, label: ArtifactLabel) -> Any:
        """Store an artifact and attach it to the attempt."""

    def leave_evidence(self, attempt: RunningAttempt, content: Any, label: ArtifactLabel) -> Any:
        """Store an artifact that is recorded if the attempt fails."""

    def find_recorded_artifact(self, record: ArtifactRecord) -> ArtifactRecord | None:
        """Return the recorded artifact of the same name, if there is one."""

    def load_recorded_inputs(self, head: LoadedHead) -> RecordedDigests:
        """Return the digests of the inputs that earlier attempts have recorded, by label."""

    def begin_transaction(self, attempt: RunningAttempt, connection: Any) -> Any:
        """Begin the transaction of the attempt in the user's database; return the connection."""

    def check_supports_on_commit(self, step: str) -> None:
        """Raise `UsageError` if the store has no transactions."""


class AttemptStorage:
    """Stores the outputs of a call's attempts, on the engine of the call."""

    __slots__ = ("call",)

    def __init__(self, call: PreparedCall) -> None:
        self.call = call

    @property
    def artifact_name(self) -> str:
        """The name of the artifact that is the step's result; empty if there is none."""
        return self.call.plan.artifact

    def now(self) -> float:
        """Return the store's time."""
        return self.call.engine.now()

    # Checkpoints ------------------------------------------------------------------------------------

    def save_checkpoint(self, attempt: RunningAttempt, plain: Any) -> Any:
        """Append a checkpoint to the run; in an async step, return an awaitable."""
        op = build_checkpoint(attempt, plain)
        if self.call.plan.is_async:
            return self._save_checkpoint_async(attempt, op)
        from oncemore.steps.perform import append_change

        return self.continue_attempt(attempt, append_change(self.call, op))

    async def _save_checkpoint_async(self, attempt: RunningAttempt, op: AppendChange) -> None:
        from oncemore.steps.perform import append_change_async

        try:
            saved = await append_change_async(self.call, op)
        except GeneratorExit:
            # The coroutine was closed after the write: the attempt goes on from the stored head.
            attempt.head = self.call.last_answer or attempt.head
            raise
        self.continue_attempt(attempt, saved)

    def continue_attempt(self, attempt: RunningAttempt, saved: Any) -> None:
        """Continue after a checkpoint; raise if the attempt was interrupted, taken over or cancelled."""
        call = self.call
        # Raised here, inside the function: the work may have hours to go.
        if call.interrupt is not None:
            raise call.interrupt
        if saved is not None:
            attempt.head = saved
            return
        head = load_head(call.store, attempt.head.entity, call.engine.cipher)
        run = head.record
        if run.state == "RUNNING" and run.fence == attempt.fence and run.cancelled_at:
            attempt.head = head
            raise Cancelled(f"{attempt.step}: attempt {attempt.number} is to be cancelled")
        _raise_lease_lost(attempt)

    def load_checkpoint(self, head: LoadedHead) -> Any:
        """Return the last checkpoint of a run."""
        body = read_entry(self.call, head.entity, head.record.checkpoint_version)
        return untag_value(body["checkpoint"])

    def load_recorded_inputs(self, head: LoadedHead) -> RecordedDigests:
        """Return the digests of the inputs that earlier attempts of the key have recorded, by label."""
        return collect_recorded(
            self.call.store.read_entries(head.entity), head.record, self.call.engine.cipher
        )

    # The user's own database ------------------------------------------------------------------------

    def begin_transaction(self, attempt: RunningAttempt, connection: Any) -> Any:
        """Begin the transaction of the attempt; return the connection, or an awaitable of it."""
        is_async = self.call.plan.is_async
        own_path = str(getattr(self.call.store, "path", ""))
        mark = AppliedMark(adapt_connection(connection), connection, attempt, own_path)
        if mark.is_async and not is_async:
            raise UsageError(f"{attempt.step}: an async connection needs an async step")
        # Set before it begins, so that a transaction that has begun is rolled back after every error.
        attempt.mark = mark
        if is_async:
            return self._begin_transaction_async(mark)
        run_script(mark.begin_attempt(), DATABASE_OPERATIONS)
        return connection

    async def _begin_transaction_async(self, mark: AppliedMark) -> Any:
        await run_script_async(mark.begin_attempt(), DATABASE_OPERATIONS)
        return mark.connection

    def check_supports_on_commit(self, step: str) -> None:
        """Refuse `on_commit` on a store without SQL transactions."""
        if not self.call.store.supports_joined_writes:
            raise UsageError(
                f"{step}: current().on_commit() needs a store in SQLite, PostgreSQL or MySQL; this one is "
                f"{self.call.engine.url}. current().transaction(connection) works with every store"
            )

    # Artifacts --------------------------------------------------------------------------------------

    def put_artifact(self, attempt: RunningAttempt, content: Any, label: ArtifactLabel) -> Any:
        """Store an artifact and attach it to the attempt; in an async step, return an awaitable."""
        if self.call.plan.is_async:
            return self._put_artifact_async(attempt, content, label)
        return attempt.attach_artifact(self._write_content(attempt, content, label))

    async def _put_artifact_async(
        self, attempt: RunningAttempt, content: Any, label: ArtifactLabel
    ) -> Artifact:
        return attempt.attach_artifact(await run_in_thread(self._write_content, attempt, content, label))

    def leave_evidence(self, attempt: RunningAttempt, content: Any, label: ArtifactLabel) -> Any:
        """Store evidence for operators; in an async step, return an awaitable."""
        if self.call.plan.is_async:
            return self._leave_evidence_async(attempt, content, label)
        return reference_to_artifact(self.store_evidence(attempt, content, label))

    async def _leave_evidence_async(
        self, attempt: RunningAttempt, content: Any, label: ArtifactLabel
    ) -> Artifact:
        return reference_to_artifact(await run_in_thread(self.store_evidence, attempt, content, label))

    def store_evidence(self, attempt: RunningAttempt, content: Any, label: ArtifactLabel) -> ArtifactRecord:
        """Store content as evidence: it is recorded if the attempt fails."""
        record = self._write_content(attempt, content, label)
        attempt.evidence = (*attempt.evidence, record)
        return record

    def find_recorded_artifact(self, record: ArtifactRecord) -> ArtifactRecord | None:
        """Return the recorded artifact of the same name, if there is one."""
        artifacts = self.call.engine.artifacts
        # The content may come from a child process, and a child cannot register the log itself.
        artifacts.register_log()
        return artifacts.load_reference(reference_entity(record))

    def _write_content(self, attempt: RunningAttempt, content: Any, label: ArtifactLabel) -> ArtifactRecord:
        engine, head = self.call.engine, attempt.head
        written = engine.artifacts.write_content(content, lambda: self._check_attempt_active(attempt))
        return make_reference(head.entity, head.record, label, *written, engine.now())

    def _check_attempt_active(self, attempt: RunningAttempt) -> None:
        """Refuse an attempt that is over or was taken over: none of its artifacts may become visible."""
        run = load_head(self.call.store, attempt.head.entity, self.call.engine.cipher).record
        if attempt.over or run.state != "RUNNING" or run.fence != attempt.fence:
            _raise_lease_lost(attempt)


def build_checkpoint(attempt: RunningAttempt, plain: Any) -> AppendChange:
    """Return the append of a checkpoint."""
    head = attempt.head
    after = head.record._replace(checkpoint_version=head.version + 1)
    return AppendChange(head, RecordChange(CHECKPOINT, head.record, after, {"checkpoint": plain}))


def read_entry(call: PreparedCall, entity: str, version: int) -> dict[str, Any]:
    """Return the body of an entry."""
    for entry in call.store.read_entries(entity, version - 1):
        if entry.body is None:
            break
        return read_body(entry, call.engine.cipher)
    raise StoreError(f"entry {version} of {entity} has no body; was it pruned?")


def _raise_lease_lost(attempt: RunningAttempt) -> None:
    attempt.over = True
    raise LeaseLost(f"{attempt.step}: attempt {attempt.number} was taken over by another worker")
