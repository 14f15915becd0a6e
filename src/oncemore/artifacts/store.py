"""The artifacts of durable steps: bytes stored by digest, references stored in the log.

The bytes are objects in an `ArtifactBackend`, named by their digest, written once before COMMIT. The
references are entities of the log, `artifact/…`, one for each name; they are part of the COMMIT. A crash
before COMMIT leaves at most an object without a reference, removed later as garbage. A reader finds a
reference only if its step is complete, and bytes only if they are complete.

A reference belongs to step, key, configuration and name. The configuration is included so that a new version
of a `pure` step may produce other bytes; within one version an artifact is immutable. Large results are
stored in the same way, under a name that no step can use.
"""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore import clock as clocks
from oncemore.artifacts import gc
from oncemore.artifacts.artifact import CURRENT_READER, ArtifactLabel, format_date, reference_to_artifact
from oncemore.artifacts.backends import CHUNK_BYTES, altered_object_error, compute_digest
from oncemore.errors import PolicyViolation, StoreError, UsageError, log_warning
from oncemore.log.encryption import decrypt_bytes
from oncemore.log.entry_codec import decode_head
from oncemore.log.record import ArtifactRecord, RecordChange
from oncemore.log.store import Batch, HeadQuery, Stored
from oncemore.policy.canonical_json import artifact_entity
from oncemore.steps.ops import ArtifactCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from oncemore.artifacts.artifact import Artifact
    from oncemore.artifacts.backends import ArtifactBackend, StoredObject
    from oncemore.log.record import RunRecord
    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine

    Content = bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO

#: Name of a large result; no step can use it, because names must not begin with $.
RESULT_NAME = "$result"
#: Entity name for the encryption of a large result; the body with its digest is bound to the entry itself.
SPILLED = "spilled"
MAX_LISTED = 2**31 - 1
STORED, QUARANTINED = "STORED", "QUARANTINED"
# Made once: `bytes | bytearray | memoryview` would be made anew by every call.
_BYTES_TYPES = (bytes, bytearray, memoryview)


class ArtifactStore:
    """Reads and writes objects in a backend, which is opened at first use; every read is verified."""

    def __init__(self, opens: Callable[[], ArtifactBackend] | None) -> None:
        self._open_backend = opens
        self._backend: tuple[int, ArtifactBackend] | None = None
        self.registration: tuple[int, str] | None = None

    @property
    def is_configured(self) -> bool:
        """Whether there is a backend."""
        return self._open_backend is not None

    @property
    def backend(self) -> ArtifactBackend:
        """The backend; a forked child opens its own."""
        if self._open_backend is None:
            raise UsageError(
                "this store has no folder for artifacts; configure one with oncemore.open(url, artifacts=…) "
                "or ONCEMORE_ARTIFACTS"
            )
        # A client with connections must not be shared with the parent of a fork.
        if self._backend is None or self._backend[0] != os.getpid():
            self._backend = os.getpid(), self._open_backend()
        return self._backend[1]

    def write_content(self, content: Content, allowed: Callable[[], object]) -> tuple[str, int]:
        """Store content under its digest, in bounded memory; return digest and size.

        allowed  called when all bytes are written, and raises if they must not become an object any more
        """
        backend, hasher, size = self.backend, sha256(), 0
        with convert_os_errors(backend, "be written to"):
            upload = backend.start_upload()
        try:
            for data in read_chunks(content):
                hasher.update(data)
                size += len(data)
                # Not around the loop: an OSError of the content is the caller's, not the backend's.
                with convert_os_errors(backend, "be written to"):
                    upload.write(data)
            # The worker may have lost its lease during a long upload.
            allowed()
            with convert_os_errors(backend, "be written to"):
                upload.publish_object(hasher.hexdigest(), size)
        finally:
            upload.close()
        return hasher.hexdigest(), size

    def open(self, digest: str, size: int) -> BinaryIO:
        """Return a verified, seekable file for reading."""
        backend = self.backend
        with convert_os_errors(backend, "be read"):
            try:
                file = backend.open_object(digest)
            except FileNotFoundError:
                raise ArtifactMissing(
                    f"the object {digest} is not in {backend.url}; was it removed?"
                ) from None
            try:
                return _verify_file(file, digest, size)
            except BaseException:
                file.close()
                raise

    def verify_object(self, digest: str, size: int) -> PolicyViolation | str:
        """Return "valid", "missing", or the error of an object that was altered."""
        try:
            self.open(digest, size).close()
        except ArtifactMissing:
            return "missing"
        except PolicyViolation as error:
            return error
        return "valid"

    def path(self, digest: str, size: int) -> Path:
        """Return the path of an object after verifying it."""
        path = self.backend.object_path(digest)
        if path is None:
            raise UsageError(f"{self.backend.url} has no paths; use open() or read()")
        self.open(digest, size).close()
        return path

    @contextmanager
    def use_store(self) -> Iterator[None]:
        """Make artifacts created in the block read from this store."""
        token = CURRENT_READER.set(self)
        try:
            yield
        finally:
            CURRENT_READER.reset(token)


class ArtifactMissing(StoreError):
    """The bytes of an artifact are not in the backend."""


@contextmanager
def convert_os_errors(backend: ArtifactBackend, action: str) -> Iterator[None]:
    """Convert an `OSError` of a backend to `StoreError`: the storage has failed, not the step."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error).partition("\n")[0]
        raise StoreError(f"artifacts in {backend.url} cannot {action}: {reason}") from error


def _verify_file(file: BinaryIO, digest: str, size: int) -> BinaryIO:
    """Return a file with the verified bytes, at its beginning."""
    if file.seekable():
        actual = compute_digest(file)
    else:
        # Imported here: rarely needed, and slow to import.
        import tempfile

        # A network stream cannot be read twice: its bytes are copied while they are hashed.
        with file, tempfile.TemporaryFile() as copy:
            actual = compute_digest(file, copy)
            copy.flush()
            file = io.open(os.dup(copy.fileno()), "rb")  # noqa: SIM115, UP020 - the caller closes it
    file.seek(0)
    if actual != (digest, size):
        file.close()
        raise altered_object_error(digest, *actual)
    return file


def read_chunks(content: Content) -> Iterator[bytes]:
    """Return content in chunks: bytes, the file at a path, or the rest of a binary file."""
    if isinstance(content, _BYTES_TYPES):
        view = memoryview(content).cast("B")
        yield from (bytes(view[start : start + CHUNK_BYTES]) for start in range(0, len(view), CHUNK_BYTES))
    elif isinstance(content, str | os.PathLike):
        with Path(content).open("rb") as file:
            yield from iter(lambda: file.read(CHUNK_BYTES), b"")
    elif callable(getattr(content, "read", None)):
        while data := content.read(CHUNK_BYTES):
            if not isinstance(data, bytes):
                raise UsageError("put takes a file that was opened in binary mode")
            yield data
    else:
        raise UsageError(f"put takes bytes, a path or a binary file, not {type(content).__name__}")


class ChildArtifactWriter:
    """Writes artifacts in the child process of an isolated attempt: to the same backend, without the log.

    The parent process checks them against the log when it records the end of the attempt.
    """

    def __init__(self, backend: ArtifactBackend | None, artifact_name: str) -> None:
        self._backend, self.artifact_name = backend, artifact_name

    @property
    def artifact_store(self) -> ArtifactStore:
        """The artifact store of this process."""
        return ArtifactStore(None if self._backend is None else lambda: self._backend)  # type: ignore[arg-type,return-value]

    def put_artifact(self, attempt: RunningAttempt, content: Content, label: ArtifactLabel) -> Artifact:
        """Store content; the parent process checks it against the log."""
        written, head = self.artifact_store.write_content(content, lambda: None), attempt.head
        return attempt.attach_artifact(
            make_reference(head.entity, head.record, label, *written, clocks.current.wall())
        )

    def leave_evidence(self, attempt: RunningAttempt, content: Content, label: ArtifactLabel) -> Artifact:
        """Refuse: a failed child process reports its error to the parent, but no artifacts."""
        raise UsageError(f"{attempt.step}: current().leave() does not go with isolate='process'")

    def find_recorded_artifact(self, record: ArtifactRecord) -> None:
        """Return None: the child process has no log."""


def make_child_writer(call: PreparedCall) -> ChildArtifactWriter:
    """Return the artifact writer for the child process of an attempt."""
    artifact_store = call.engine.artifact_store
    # The child process cannot reach a backend in the memory of this one.
    is_usable = artifact_store.is_configured and artifact_store.backend.is_shared
    return ChildArtifactWriter(artifact_store.backend if is_usable else None, call.plan.artifact)


# References -----------------------------------------------------------------------------------------


def make_reference(
    entity: str, run: RunRecord, label: ArtifactLabel, digest: str, size: int, now: float
) -> ArtifactRecord:
    """Return the reference to an artifact of a run."""
    return ArtifactRecord(
        state=STORED,
        step=run.step,
        run_entity=entity,
        digest=digest,
        size=size,
        created_at=now,
        tenant=run.tenant,
        cfg_hash=run.cfg_hash,
        **label._asdict(),
    )


def reference_entity(record: ArtifactRecord) -> str:
    """Return the entity of a reference in the log."""
    return artifact_entity(record.run_entity, record.cfg_hash, record.name)


class Artifacts:
    """The artifacts of an engine: `engine.artifacts`."""

    def __init__(self, engine: Engine, artifact_store: ArtifactStore) -> None:
        self._engine, self.artifact_store = engine, artifact_store

    def list(
        self,
        *,
        date: Any = None,
        site: str | None = None,
        h3: str | None = None,
        step: str | None = None,
        name: str | None = None,
    ) -> list[Artifact]:
        """Return the artifacts of finished steps, oldest first; a month or a year includes its days."""
        query = HeadQuery("artifact", STORED, float("inf"), step, limit=MAX_LISTED)
        records = (decode_head(head.head, ArtifactRecord) for head in self._engine.store.list_heads(query))
        day = None if date is None else format_date(date)
        with self.artifact_store.use_store():
            return [
                reference_to_artifact(record)
                for record in records
                if record.name != RESULT_NAME
                and (day is None or record.date == day or record.date.startswith(f"{day}-"))
                and (site is None or record.site == site)
                and (h3 is None or record.h3 == h3.lower())
                and (name is None or record.name == name)
            ]

    def load_reference(self, ref: str) -> ArtifactRecord | None:
        """Return a reference, or None."""
        head = self._engine.store.load_head(ref)
        return None if head is None else decode_head(head.head, ArtifactRecord)

    def write_content(
        self, content: Content, allowed: Callable[[], object] = lambda: None
    ) -> tuple[str, int]:
        """Store content under its digest and return digest and size."""
        # First: a garbage collection for another log must know of this one before the object exists.
        self.register_log()
        return self.artifact_store.write_content(content, allowed)

    def register_log(self) -> None:
        """Register this log with the backend, once in each process."""
        backend = self.artifact_store.backend
        if self.artifact_store.registration != (os.getpid(), self._engine.url):
            with convert_os_errors(backend, "be written to"):
                backend.register_log(self._engine.url)
            self.artifact_store.registration = os.getpid(), self._engine.url

    def check_artifact(self, entity: str, cfg_hash: str, name: str) -> ArtifactCheck:
        """Verify the artifact of a step; quarantine it if its bytes were altered."""
        ref = artifact_entity(entity, cfg_hash, name)
        record = self.load_reference(ref)
        if record is None:
            return ArtifactCheck("missing")
        result = self.artifact_store.verify_object(record.digest, record.size)
        if isinstance(result, PolicyViolation):
            self.quarantine_artifact(ref, result)
            return ArtifactCheck("altered", ref, error=result)
        with self.artifact_store.use_store():
            return ArtifactCheck(result, ref, reference_to_artifact(record))

    def spill_result(self, entity: str, run: RunRecord, encoded: Any) -> tuple[str, ArtifactRecord] | None:
        """Store a large result as an artifact; return None if that fails, and it stays in the log."""
        if not self.artifact_store.is_configured:
            return None
        try:
            cipher, data = self._engine.cipher, bytes(encoded)
            stored = data if cipher is None else cipher.encrypt_body(data, SPILLED, 0)
            digest, size = self.write_content(stored)
        except Exception as error:  # noqa: BLE001 - the step is done, and its COMMIT must not fail
            log_warning(f"a large result of {run.step} stays in the log: {error}")
            return None
        label = ArtifactLabel(RESULT_NAME, "application/json")
        record = make_reference(entity, run, label, digest, size, self._engine.now())
        # By the run, not the configuration: a rerun may return another result, which is not immutable.
        record = record._replace(cfg_hash=run.run_id)
        return reference_entity(record), record

    def fetch_result(self, spilled: dict[str, Any]) -> Any:
        """Return a large result, verified and still encoded; or the error of reading it."""
        try:
            with self.artifact_store.open(spilled["digest"], spilled["size"]) as file:
                return msgspec.Raw(decrypt_bytes(file.read(), self._engine.cipher, SPILLED, 0))
        except PolicyViolation as error:
            self.quarantine_artifact(spilled["ref"], error)
            return error
        except (StoreError, UsageError) as error:
            return error

    def quarantine_artifact(self, ref: str, error: PolicyViolation) -> None:
        """Record that the bytes of an artifact were altered; the first record counts.

        An artifact that an operator has rejected stays rejected.
        """
        from oncemore.log import entry_codec

        engine, notifier, evidence = self._engine, self._engine.notifier, vars(error).get("evidence", {})
        body = {"quarantine": {"reason": "checksum_mismatch", "message": str(error), **evidence}}
        while True:
            head = engine.store.load_head(ref)
            before = None if head is None else decode_head(head.head, ArtifactRecord)
            if head is None or before is None or before.state != STORED:
                return
            change = RecordChange(("ESCALATION",), before, before._replace(state=QUARANTINED), body)
            now = engine.now()
            notifications: tuple[Any, ...] = ()
            if notifier is not None:
                change, notifications = notifier.add_notifications(engine, ref, head.version, change, now)
            write = entry_codec.build_write(ref, head.version, head.hash, change, now, engine.cipher)
            # In the same batch, so that a crash cannot lose the notifications.
            events = (entry_codec.build_event_write(event, now, engine.cipher) for event in notifications)
            reply = engine.store.append(Batch((write, *events))).wait()
            if notifier is not None and notifications and isinstance(reply, Stored):
                notifier.wake_thread(engine)
            # A conflict on the reference itself means that another process has recorded it.
            if isinstance(reply, Stored) or reply.entity == ref:
                return

    def find_garbage(
        self, *, older_than: float = gc.DAY_S, also: tuple[Engine, ...] = ()
    ) -> tuple[StoredObject, ...]:
        """Return the objects that `collect_garbage` would remove."""
        return tuple(gc.find_garbage((self._engine, *also), self.artifact_store.backend, older_than)[0])

    def collect_garbage(
        self, *, older_than: float = gc.DAY_S, also: tuple[Engine, ...] = ()
    ) -> gc.GarbageReport:
        """Remove objects without a reference and the leftovers of dead writers; return a report.

        older_than  seconds since an object was last written, at least 60
        also        engines on the other logs with artifacts in the same backend
        """
        return gc.collect_garbage((self._engine, *also), self.artifact_store.backend, older_than)
