"""ARTIFACTS: outputs of durable steps, kept by digest, listed by partition, referred to by COMMIT.

Bytes and references live in two places. The bytes are objects in a `Place`, named by their digest: written
before COMMIT, once, never changed. The references are entities of the log, `artifact/…`, one for each name
that a step gave: they are written with COMMIT or not at all, as events are. So

    a crash before COMMIT    leaves at most an object that nothing refers to: garbage, collected later
    a crash after COMMIT     leaves everything
    a reader                 finds a reference only if its step is done, and bytes only if they are whole

A reference belongs to step, key, configuration and name (`reference`). Configuration is a part of it so that
a new version of a `pure` step may leave other bytes than the last one did; within one version what was
left once is immutable. Large results are kept the same way, under a name that no step can give.
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
from oncemore.artifacts.artifact import SHELF, Label, as_artifact, date_of
from oncemore.artifacts.backends import CHUNK, altered, digest_of
from oncemore.artifacts.gc import DAY_S, collect, garbage
from oncemore.errors import StoreError, UsageError, Violation
from oncemore.log.encryption import opened
from oncemore.log.entry_codec import head_of
from oncemore.log.record import Change, Kept
from oncemore.log.store import Batch, Query, Stored
from oncemore.policy.canonical_json import reference
from oncemore.steps.ops import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from oncemore.artifacts.artifact import Artifact
    from oncemore.artifacts.backends import Object, Place
    from oncemore.artifacts.gc import Collected
    from oncemore.log.record import Run
    from oncemore.steps.attempt import Attempt
    from oncemore.steps.call_in_progress import Job
    from oncemore.steps.engine import Engine

    Content = bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO

#: Under what name a large result is kept; no step can give it.
RESULT = "$result"
#: What a large result is sealed as: the body that refers to it has its digest, and is bound to its entry.
SPILLED = "spilled"
MOST_LISTED = 2**31 - 1
KEPT, QUARANTINED, REJECTED = "KEPT", "QUARANTINED", "REJECTED"


class Shelf:
    """A place as artifacts see it: opened at first use, and nothing leaves it unverified."""

    def __init__(self, opens: Callable[[], Place] | None) -> None:
        self._opens = opens
        self._place: tuple[int, Place] | None = None
        self.signed: tuple[int, str] | None = None

    @property
    def there(self) -> bool:
        """Whether there is a place at all."""
        return self._opens is not None

    @property
    def place(self) -> Place:
        """The place; a forked child opens its own."""
        if self._opens is None:
            raise UsageError(
                "this store has no folder for artifacts; say where they go: oncemore.open(url, artifacts=…), "
                "or ONCEMORE_ARTIFACTS"
            )
        if self._place is None or self._place[0] != os.getpid():
            self._place = os.getpid(), self._opens()
        return self._place[1]

    def write(self, content: Content, allowed: Callable[[], object]) -> tuple[str, int]:
        """Keep content under its digest, in bounded memory; return digest and size.

        `allowed` is asked when all bytes are staged, and raises if they may not become an object any more.
        """
        place, running, size = self.place, sha256(), 0
        with told(place, "be written to"):
            stage = place.stage()
        try:
            for data in _chunks(content):
                running.update(data)
                size += len(data)
                with told(place, "be written to"):
                    stage.write(data)
            allowed()
            with told(place, "be written to"):
                stage.publish(running.hexdigest(), size)
        finally:
            stage.close()
        return running.hexdigest(), size

    def open(self, digest: str, size: int) -> BinaryIO:
        """Return a verified, seekable file for reading; what comes over a network is held first."""
        place = self.place
        with told(place, "be read"):
            try:
                file = place.open(digest)
            except FileNotFoundError:
                raise Missing(f"the object {digest} is not in {place.url}; was it removed?") from None
            try:
                return _verified(file, digest, size)
            except BaseException:
                file.close()
                raise

    def verify(self, digest: str, size: int) -> Violation | str:
        """Return "valid", "missing", or the error of an object that was altered."""
        try:
            self.open(digest, size).close()
        except Missing:
            return "missing"
        except Violation as fault:
            return fault
        return "valid"

    def path(self, digest: str, size: int) -> Path:
        """Return the path of an object, verified just now."""
        path = self.place.path(digest)
        if path is None:
            raise UsageError(f"{self.place.url} has no paths; use open() or read()")
        self.open(digest, size).close()
        return path

    @contextmanager
    def around(self) -> Iterator[None]:
        """Let artifacts that are made inside know this shelf."""
        before = SHELF.set(self)
        try:
            yield
        finally:
            SHELF.reset(before)


class Missing(StoreError):
    """An object is not there."""


@contextmanager
def told(place: Place, what: str) -> Iterator[None]:
    """Tell of a place that fails as what it is: a fault of storage, not of the work."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error).partition("\n")[0]
        raise StoreError(f"artifacts in {place.url} cannot {what}: {reason}") from error


def _verified(file: BinaryIO, digest: str, size: int) -> BinaryIO:
    """Return a file of the same bytes at its beginning; one that cannot go back is copied meanwhile."""
    if file.seekable():
        found, count = digest_of(file)
        file.seek(0)
    else:
        file, found, count = _copied(file)
    if (found, count) != (digest, size):
        file.close()
        raise altered(digest, found, count)
    return file


def _copied(file: BinaryIO) -> tuple[BinaryIO, str, int]:
    import tempfile  # seldom needed, and dear

    running, size = sha256(), 0
    with file, tempfile.TemporaryFile() as copy:
        while data := file.read(CHUNK):
            running.update(data)
            size += len(data)
            copy.write(data)
        copy.flush()
        readable = io.open(os.dup(copy.fileno()), "rb")  # noqa: SIM115, UP020 - the caller closes it
    readable.seek(0)
    return readable, running.hexdigest(), size


def _chunks(content: Content) -> Iterator[bytes]:
    """Return content in pieces: bytes, the file at a path, or what a binary file has left."""
    if isinstance(content, bytes | bytearray | memoryview):
        whole = memoryview(content).cast("B")
        yield from (bytes(whole[at : at + CHUNK]) for at in range(0, len(whole), CHUNK))
    elif isinstance(content, str | os.PathLike):
        with Path(content).open("rb") as file:
            yield from iter(lambda: file.read(CHUNK), b"")
    elif callable(getattr(content, "read", None)):
        while data := content.read(CHUNK):
            if not isinstance(data, bytes):
                raise UsageError("put takes a file that was opened in binary mode")
            yield data
    else:
        raise UsageError(f"put takes bytes, a path or a binary file, not {type(content).__name__}")


class Apart:
    """What an attempt in a process of its own puts artifacts away with: into the same place, without the log.

    What the log has to say about it is said by the process that called, when it takes the attempt's end over.
    """

    def __init__(self, place: Place | None, artifact: str) -> None:
        self._place, self.artifact = place, artifact

    @property
    def shelf(self) -> Shelf:
        """The shelf of this process."""
        return Shelf(None if self._place is None else lambda: self._place)  # type: ignore[arg-type,return-value]

    def put(self, attempt: Attempt, content: Content, label: Label) -> Artifact:
        """Put content away; whoever called checks it against the log."""
        digest, size = self.shelf.write(content, lambda: None)
        seen = attempt.seen
        return attempt.hold(kept_as(seen.entity, seen.run, label, digest, size, clocks.current.wall()))

    def leave_behind(self, attempt: Attempt, content: Content, label: Label) -> Artifact:
        """Refuse: whoever called hears of what fails, and not of what it leaves."""
        raise UsageError(f"{attempt.step}: current().leave() does not go with isolate='process'")

    def known(self, kept: Kept) -> None:
        """Nothing is known here."""


def apart(job: Job) -> Apart:
    """Return what a job's attempt in a process of its own puts artifacts away with."""
    shelf = job.engine.shelf
    return Apart(shelf.place if shelf.there and shelf.place.shared else None, job.artifact)


# References -----------------------------------------------------------------------------------------


def kept_as(entity: str, run: Run, label: Label, digest: str, size: int, now: float) -> Kept:
    """Return the reference that a run's artifact will have."""
    return Kept(
        KEPT, run.step, entity, label.name, digest, size, label.media_type, label.date, label.site, label.h3,
        now, run.tenant, run.cfg_hash,
    )  # fmt: skip


def ref_of(kept: Kept) -> str:
    """Return the entity that a reference is."""
    return reference(kept.run, kept.cfg_hash, kept.name)


class Artifacts:
    """The artifacts of an engine: `engine.artifacts`."""

    def __init__(self, engine: Engine, shelf: Shelf) -> None:
        self._engine, self.shelf = engine, shelf

    def list(
        self,
        *,
        date: Any = None,
        site: str | None = None,
        h3: str | None = None,
        step: str | None = None,
        name: str | None = None,
    ) -> list[Artifact]:
        """Return the artifacts of finished steps, oldest first; a month or a year has its days' too."""
        found = self.references(step=step)
        day = None if date is None else date_of(date)
        with self.shelf.around():
            return [
                as_artifact(kept)
                for kept in found
                if kept.name != RESULT
                and (day is None or kept.date == day or kept.date.startswith(f"{day}-"))
                and (site is None or kept.site == site)
                and (h3 is None or kept.h3 == h3.lower())
                and (name is None or kept.name == name)
            ]

    def references(self, *, step: str | None = None, state: str | None = KEPT) -> Iterator[Kept]:
        """Return references as the log has them; `state="QUARANTINED"` for those whose bytes were altered."""
        query = Query("artifact", state, float("inf"), step, limit=MOST_LISTED)
        return (head_of(head.head, Kept) for head in self._engine.store.heads(query))

    # For the engine ---------------------------------------------------------------------------------

    def known(self, ref: str) -> Kept | None:
        """Return a reference, if there is one."""
        head = self._engine.store.head(ref)
        return None if head is None else head_of(head.head, Kept)

    def write(self, content: Content, allowed: Callable[[], object] = lambda: None) -> tuple[str, int]:
        """Keep content under its digest, in a place that knows of this log."""
        self.sign()
        return self.shelf.write(content, allowed)

    def sign(self) -> None:
        """Let the place know that this log keeps artifacts there, once in each process."""
        place = self.shelf.place
        if self.shelf.signed != (os.getpid(), self._engine.url):
            with told(place, "be written to"):
                place.sign(self._engine.url)
            self.shelf.signed = os.getpid(), self._engine.url

    def check(self, entity: str, cfg_hash: str, name: str) -> Found:
        """Say whether a step's artifact is there, and what was left; altered, it is quarantined."""
        ref = reference(entity, cfg_hash, name)
        kept = self.known(ref)
        if kept is None:
            return Found("missing")
        found = self.shelf.verify(kept.digest, kept.size)
        if isinstance(found, Violation):
            self.set_aside(ref, found)
            return Found("altered", ref, error=found)
        with self.shelf.around():
            return Found(found, ref, as_artifact(kept))

    def spill(self, entity: str, run: Run, encoded: Any) -> tuple[str, Kept] | None:
        """Keep a large result as an artifact; None where that cannot be: then it stays in the log."""
        if not self.shelf.there:
            return None
        try:
            seal = self._engine.seal
            data = bytes(encoded)
            digest, size = self.write(data if seal is None else seal.close(data, SPILLED, 0))
        except Exception as fault:  # noqa: BLE001 - the work is done, and must be said to be
            self._engine.grumble(f"a large result of {run.step} stays in the log: {fault}")
            return None
        # A life of its own: what a rerun returns may differ, and nobody asked for it to be immutable.
        now = self._engine.now()
        label = Label(RESULT, "application/json")
        kept = kept_as(entity, run, label, digest, size, now)._replace(cfg_hash=run.run_id)
        return ref_of(kept), kept

    def fetch(self, spilled: dict[str, Any]) -> Any:
        """Return a large result as it was encoded, verified; or the error that it cannot be had for."""
        try:
            with self.shelf.open(spilled["digest"], spilled["size"]) as file:
                return msgspec.Raw(opened(file.read(), self._engine.seal, SPILLED, 0))
        except Violation as fault:
            self.set_aside(spilled["ref"], fault)
            return fault
        except (StoreError, UsageError) as fault:
            return fault

    def set_aside(self, ref: str, fault: Violation) -> None:
        """Write down that an artifact was found to be altered; whoever is first is right.

        One that a person has rejected stays so: they have seen it.
        """
        from oncemore.log import head_access

        engine, body = self._engine, {"quarantine": _evidence(fault)}
        while True:
            head = engine.store.head(ref)
            before = None if head is None else head_of(head.head, Kept)
            if head is None or before is None or before.state != KEPT:
                return
            change = Change(("ESCALATION",), before, before._replace(state=QUARANTINED), body)
            now = engine.now()
            given: tuple[Any, ...] = ()
            if engine.notices is not None:
                change, given = engine.notices.of(engine, ref, head.version, change, now)
            write = head_access.write_of(ref, head.version, head.hash, change, now, engine.seal)
            notices = (head_access.notice_write(each, now, engine.seal) for each in given)
            answer = engine.store.append(Batch((write, *notices))).wait()
            if given and isinstance(answer, Stored):
                engine.notices.wake(engine)  # type: ignore[union-attr]
            if isinstance(answer, Stored) or answer.entity == ref:
                return

    def garbage(self, *, older_than: float = DAY_S, also: tuple[Engine, ...] = ()) -> tuple[Object, ...]:
        """Return what `collect` would remove: objects that nothing refers to, or can come to refer to."""
        return tuple(garbage((self._engine, *also), self.shelf.place, older_than)[0])

    def collect(self, *, older_than: float = DAY_S, also: tuple[Engine, ...] = ()) -> Collected:
        """Remove what `garbage` lists, and what dead writers left; say what was removed.

        older_than  seconds since it was last written, at least 60
        also        engines on the other logs that keep artifacts in the same place
        """
        return collect((self._engine, *also), self.shelf.place, older_than)


def _evidence(fault: Violation) -> dict[str, Any]:
    return {"reason": "checksum_mismatch", "message": str(fault), **vars(fault).get("evidence", {})}
