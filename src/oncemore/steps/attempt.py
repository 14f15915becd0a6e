"""The attempt that user code runs in: `oncemore.current()`.

`Attempt` is the interface for user code. `RunningAttempt` adds the state and the outputs of the
attempt, for the engine. `steps.attempt_storage` stores its checkpoints and artifacts.
"""

from __future__ import annotations

import random
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from msgspec.json import encode

from oncemore._platform import run_after_fork
from oncemore.artifacts.artifact import make_label
from oncemore.errors import LeaseLost, UsageError
from oncemore.log.record import ArtifactRecord, EventRecord
from oncemore.log.tagged_json import EVENT_ENCODER, TaggedEncoder
from oncemore.policy.canonical_json import make_event_id, run_seed
from oncemore.retries.deadlines import time_remaining
from oncemore.steps.attempt_outputs import AttemptOutputs
from oncemore.steps.call import PreparedCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.record import LoadedHead
    from oncemore.log.store import StoreTransaction
    from oncemore.steps.attempt_storage import AttemptBackend
    from oncemore.steps.transactions import AppliedMark
    from oncemore.telemetry.meter import ReportedUsage
    from oncemore.workflows.scope import RunJournal

MOST_EVENTS = MOST_ARTIFACTS = 1000
#: Prefix of the topics of this package; no step may use it.
OURS = "oncemore."
_ENCODER = TaggedEncoder()


def tag_value(value: Any) -> Any:
    """Return a value in its tagged form, as the log stores it; raise if it cannot be stored."""
    return _ENCODER.tag_value(value, "the value")


class Attempt:
    """One attempt of a durable step, for the code inside the step."""

    head: LoadedHead
    parent: RunningAttempt | None
    artifacts: dict[str, tuple[ArtifactRecord, bool]]
    fork_count: int
    _storage: PreparedCall | AttemptBackend
    _read_only: bool
    # Defaults of the class: one object is made per attempt, and most attempts leave these as they are.
    over = False
    events: tuple[tuple[EventRecord, Any], ...] = ()
    evidence: tuple[ArtifactRecord, ...] = ()
    used: tuple[dict[str, Any], ...] = ()
    mark: AppliedMark | None = None
    joined_write: Callable[[StoreTransaction], object] | None = None
    _rng: random.Random | None = None
    _seeded: random.Random | None = None

    @property
    def number(self) -> int:
        """The number of the attempt, counted over all runs of its key, never reused."""
        return self.head.record.attempt  # type: ignore[no-any-return]

    @property
    def key(self) -> str:
        """The idempotency key: pass it to services that deduplicate by key."""
        return self.head.entity.removeprefix("run/")

    @property
    def fence(self) -> int:
        """The fence: it rises with every attempt of the key; pass it to services that refuse older ones."""
        return self.head.record.fence  # type: ignore[no-any-return]

    @property
    def step(self) -> str:
        """The name of the step."""
        return self.head.record.step  # type: ignore[no-any-return]

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.head.record.run_id  # type: ignore[no-any-return]

    @property
    def correlation_id(self) -> str:
        """The correlation id of all records of this work."""
        return self.head.record.correlation_id  # type: ignore[no-any-return]

    @property
    def tenant(self) -> str:
        """The tenant."""
        return self.head.record.tenant  # type: ignore[no-any-return]

    @property
    def seeded(self) -> random.Random:
        """Random numbers that may affect the result: equal in every attempt of the key (X-74)."""
        if self._seeded is None:
            self._seeded = random.Random(f"{self.head.record.seed}:{self.key}")  # noqa: S311
        return self._seeded

    @property
    def rng(self) -> random.Random:
        """Random numbers that differ by attempt and can be repeated: seeded by run and attempt number.

        They must not affect the result; use `seeded` for that.
        """
        if self._rng is None:
            run = self.head.record
            self._rng = random.Random(f"{run.seed or run_seed(run.run_id)}:{self.number}")  # noqa: S311
        return self._rng

    def remaining(self) -> float | None:
        """Return the seconds left for this attempt, or None if it has no limit."""
        return time_remaining()

    def emit(self, topic: str, payload: Any = None) -> str:
        """Emit an event and return its id; it is published if and only if this attempt commits.

        The id is the same in every attempt, so that a consumer can drop a duplicate.
        """
        self._check_writable("emit", "emits no events")
        if not isinstance(topic, str) or not 1 <= len(topic) <= 200:
            raise UsageError(f"topic is {topic!r}; it takes a text of 1 to 200 characters")
        if topic.startswith(OURS):
            raise UsageError(f"topic is {topic!r}; topics that begin with {OURS} are not for steps")
        if len(self.events) >= MOST_EVENTS:
            raise UsageError(
                f"{self.step} emits more than {MOST_EVENTS} events; publish one that sums them up"
            )
        run, ordinal = self.head.record, len(self.events)
        plain = EVENT_ENCODER.tag_value(payload, "the value")
        self._check_no_outer_key(topic, plain)
        event = EventRecord(
            state="PENDING",
            topic=topic,
            event_id=make_event_id(self.head.entity, run.run_number, ordinal),
            run_entity=self.head.entity,
            ordinal=ordinal,
            created_at=self._backend.now(),
            tenant=run.tenant,
            correlation_id=run.correlation_id,
            dataset=run.dataset,
        )
        self.events = (*self.events, (event, plain))
        return event.event_id

    def put(
        self,
        content: Any,
        *,
        name: str | None = None,
        date: Any = None,
        site: str | None = None,
        h3: str | None = None,
        media_type: str | None = None,
    ) -> Any:
        """Store content as an artifact; it is listed if and only if this attempt commits.

        content        bytes, the path of a file, or a binary file; files are read in bounded memory
        name           its name among the artifacts of this key; the step's `artifact=` unless given
        date, site, h3   its labels: a day (or month, or year), a place, an H3 cell

        Return the `Artifact`; in an async step, await the result. Other content under a name that this key
        has used before is a `PolicyViolation` (ARTIFACT_IMMUTABLE); no policy retries it.
        """
        self._check_writable("store artifacts", "stores no artifacts")
        default = self._backend.artifact_name or "artifact"
        label = make_label(default if name is None else name, media_type, date, site, h3)
        if len(self.artifacts) >= MOST_ARTIFACTS:
            raise UsageError(f"{self.step} stores more than {MOST_ARTIFACTS} artifacts; pack them up")
        return self._backend.put_artifact(self._as_running(), content, label)

    def leave(self, content: Any, *, name: str, media_type: str | None = None) -> Any:
        """Store content as evidence for operators; it is listed if and only if this attempt fails.

        Quarantine shows it among the artifacts of the key, under `attempt-N-` and its name. In an async step,
        await the result.
        """
        self._check_writable("leave evidence", "leaves no evidence")
        label = make_label(f"attempt-{self.number}-{name}", media_type, None, None, None)
        if any(left.name.casefold() == label.name.casefold() for left in self.evidence):
            raise UsageError(f"{self.step}: attempt {self.number} has left {name!r} already")
        return self._backend.leave_evidence(self._as_running(), content, label)

    def use(self, content: Any, *, name: str, media_type: str | None = None) -> str:
        """Declare content that is not an artifact as an input of this work; return its SHA-256.

        content  bytes, the path of a file, or a binary file; files are read in bounded memory
        name     its name among the inputs of this key

        The input is part of the lineage that COMMIT stores. Other content under a name that an earlier
        attempt of this key has used is a `PolicyViolation` (LINEAGE_MISMATCH); no policy retries it.
        Artifacts that the step reads are inputs without being declared.
        """
        from oncemore.steps.inputs import add_input, digest_content, make_content_edge

        self._check_writable("use inputs", "uses no inputs")
        label = make_label(name, media_type)  # first: a wrong name is refused before the content is read
        digest, size = digest_content(content)
        add_input(self._as_running(), make_content_edge(label, digest, size))
        return digest

    def transaction(self, connection: Any) -> Any:
        """Write to your own database, in one transaction with the marker that the work is done.

        connection  of sqlite3, apsw, psycopg, SQLAlchemy (also a session) or Django, outside of a
                    transaction. The step begins the transaction, and commits it after the function has
                    returned.

        Return the connection; in an async step, await it. If the transaction of an earlier attempt was
        committed, the function ends here, and the stored result is the result.
        """
        self._check_transactional("transaction", "on_commit", self.joined_write)
        if self.mark is not None:
            if self.mark.connection is not connection:
                raise UsageError(f"{self.step}: one attempt, one database; two cannot be committed as one")
            raise UsageError(f"{self.step}: current().transaction() was called before in this attempt")
        return self._backend.begin_transaction(self._as_running(), connection)

    def on_commit(self, write: Callable[[StoreTransaction], object]) -> None:
        """Write to your own tables in the store's database, in the transaction that stores COMMIT.

        write  called with the transaction after the function has returned: `tx.execute(sql, values)`. It may
               take one second, because all other writers wait for it. Not on NATS.
        """
        self._check_transactional("on_commit", "transaction", self.mark)
        if not callable(write):
            raise UsageError(f"{self.step}: on_commit() takes a function, not {write!r}")
        if self.joined_write is not None:
            raise UsageError(f"{self.step}: current().on_commit() was called before in this attempt")
        self._backend.check_supports_on_commit(self.step)
        self.joined_write = write

    def checkpoint(self, value: Any) -> Any:
        """Store the progress of the work, for `resume()` of a later attempt. In an async step, await it."""
        return self._save_checkpoint(tag_value(value))

    def resume(self, default: Any = None) -> Any:
        """Return the last checkpoint of this run, from any attempt; the default if there is none."""
        return self._backend.load_checkpoint(self.head) if self.head.record.checkpoint_version else default

    def add_usage(self, *, energy_kwh: float = 0.0, network_bytes: float = 0.0, cpu_s: float = 0.0) -> None:
        """Add usage that the engine cannot measure: of a remote service, a GPU, a transfer, another process.

        The settings `network_kwh_per_gb` and `core_watts` turn bytes and CPU seconds into energy.
        """
        self._check_writable("add usage", "adds no usage")
        from oncemore.telemetry.meter import add_reported

        add_reported(self._as_running(), kwh=energy_kwh, network_bytes=network_bytes, cpu_s=cpu_s)

    def _save_checkpoint(self, plain: Any) -> Any:
        self._check_writable("checkpoint", "makes no checkpoints")
        return self._backend.save_checkpoint(self._as_running(), plain)

    def _check_transactional(self, method: str, other: str, used: object) -> None:
        self._check_active("write")
        if self.head.record.effect != "transactional":
            raise UsageError(
                f"{self.step} is declared {self.head.record.effect}; current().{method}() is for "
                "effect='transactional'"
            )
        if used is not None:
            raise UsageError(
                f"{self.step}: one attempt, one database; it has used current().{other}() already"
            )

    def _check_no_outer_key(self, topic: str, plain: Any) -> None:
        """Refuse an event that holds the key of this step or an outer one: keys are internal (IDEM-15)."""
        encoded = encode([topic, plain])
        attempt: Attempt | None = self
        while attempt is not None:
            if attempt.key.encode() in encoded:
                raise UsageError(
                    f"{self.step}: event {topic!r} holds the idempotency key of {attempt.step}, which is "
                    "internal; consumers identify an event by its own id"
                )
            attempt = attempt.parent

    def _check_writable(self, action: str, refusal: str) -> None:
        self._check_active(action)
        if self._read_only:
            raise UsageError(f"{self.step}: a reconcile function only looks, it {refusal}")

    def _check_active(self, action: str) -> None:
        if self.over:
            raise LeaseLost(f"{self.step}: attempt {self.number} is over, it cannot {action} any more")
        if self.fork_count != _fork_count[0]:
            raise LeaseLost(
                f"{self.step}: attempt {self.number} is the parent's, a forked child cannot {action}"
            )

    @property
    def _backend(self) -> AttemptBackend:
        """The storage of checkpoints and artifacts; made at first use, because most attempts need none."""
        if isinstance(self._storage, PreparedCall):
            from oncemore.steps.attempt_storage import AttemptStorage

            self._storage = AttemptStorage(self._storage)
        return self._storage

    def _as_running(self) -> RunningAttempt:
        assert isinstance(self, RunningAttempt)
        return self


class RunningAttempt(AttemptOutputs, Attempt):
    """An attempt with its outputs, for the engine.

    over       whether the attempt has ended or lost its lease
    begun      False if it ended before the function was called
    events     emitted events with their payloads
    artifacts  stored artifacts by folded name, and whether each is new in this attempt
    evidence   artifacts that are recorded if the attempt fails
    used       the inputs that it has read or declared (`steps.inputs`)
    mark       its transaction in the user's own database
    joined_write  the user's write in the store's own transaction (`on_commit`)
    journal    its sleeps, waits and published values, if there are any
    cpu_s      CPU time of its ended turns; active_thread, cpu_start and cpu_clock are of the present turn
    reported   usage beyond CPU time, if there is any (`telemetry.meter`)
    """

    begun = True
    journal: RunJournal | None = None
    _recorded_inputs: dict[tuple[str, ...], set[str]] | None = None
    cpu_s = cpu_start = 0.0
    active_thread = cpu_clock = 0
    reported: ReportedUsage | None = None

    def __init__(
        self,
        head: LoadedHead,
        storage: PreparedCall | AttemptBackend,
        parent: RunningAttempt | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self.head, self.parent, self.fork_count = head, parent, _fork_count[0]
        self.artifacts = {}
        self._storage, self._read_only = storage, read_only

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked inside the function: the attempt is that of the parent process."""
        return self.fork_count != _fork_count[0]

    @property
    def call(self) -> PreparedCall:
        """The call that makes the attempt; an attempt in a process of its own has none."""
        if not isinstance(self._storage, PreparedCall):
            raise UsageError(f"{self.step} runs in a process of its own, and publishes no values")
        return self._storage

    def check_active(self, action: str) -> None:
        """Raise `LeaseLost` if the attempt has ended, or is that of the parent process."""
        self._check_active(action)

    def save_checkpoint(self, plain: Any) -> Any:
        """Store a checkpoint that is in its tagged form already."""
        return self._save_checkpoint(plain)

    def load_recorded_inputs(self) -> dict[tuple[str, ...], set[str]]:
        """Return the digests of the inputs of earlier attempts, by label; they are read once."""
        if self._recorded_inputs is None:
            # The first attempt of a key has no predecessors: nothing is read.
            is_first = self.number <= 1
            self._recorded_inputs = {} if is_first else self._backend.load_recorded_inputs(self.head)
        return self._recorded_inputs


#: The number of forks that led to this process.
_fork_count = [0]


def _count_fork() -> None:
    _fork_count[0] += 1


run_after_fork(_count_fork)
CURRENT: ContextVar[RunningAttempt | None] = ContextVar("oncemore.current", default=None)


def current() -> Attempt:
    """Return the attempt that this code runs in; raise `UsageError` outside of a durable step."""
    attempt = CURRENT.get()
    if attempt is None:
        raise UsageError("oncemore.current() is for the inside of a function with @oncemore.step")
    return attempt
