"""The attempt that user code runs in: `oncemore.current()`."""

from __future__ import annotations

import random
from contextvars import ContextVar
from os import register_at_fork
from typing import TYPE_CHECKING, Any

from msgspec.json import encode

from oncemore.artifacts.artifact import make_label, reference_to_artifact, tag_artifact
from oncemore.errors import LeaseLost, PolicyViolation, UsageError
from oncemore.log.record import ArtifactRecord, EventRecord
from oncemore.policy.canonical_json import make_event_id, run_seed
from oncemore.retries.deadlines import time_remaining

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.artifacts.artifact import Artifact
    from oncemore.log.store import StoreTransaction
    from oncemore.steps.ops import Given, LoadedHead
    from oncemore.steps.transactions import AppliedMark

MOST_EVENTS = 1000
MOST_ARTIFACTS = 1000
#: How topics begin that are ours, and no step's.
OURS = "oncemore."


class Attempt:
    """One attempt of a durable step, as the work inside sees it."""

    # What most attempts never touch is the class's until they do: one is made for every call.
    over = False
    begun = True  # until something that is done before the work itself says otherwise
    evidence: tuple[ArtifactRecord, ...] = ()
    events: tuple[tuple[EventRecord, Any], ...] = ()
    mark: AppliedMark | None = None
    also: Callable[[StoreTransaction], object] | None = None
    _rng: random.Random | None = None
    _seeded: random.Random | None = None

    def __init__(
        self,
        seen: LoadedHead,
        now: Callable[[], float],
        tagged: Callable[[Any], Any],
        keep: Callable[[Attempt, Any], Any] | None = None,
        kept: Callable[[LoadedHead], Any] | None = None,
        parent: Attempt | None = None,
        files: Any = None,
    ) -> None:
        self.seen, self.parent, self.life = seen, parent, _lives[0]
        self.kept: dict[str, tuple[ArtifactRecord, bool]] = {}
        self._now, self._tagged, self._keep, self._kept, self._files = now, tagged, keep, kept, files

    @property
    def number(self) -> int:
        """The number of the attempt, counted over all runs of its key, never reused."""
        return self.seen.record.attempt  # type: ignore[no-any-return]

    @property
    def key(self) -> str:
        """The idempotency key: pass it to services that deduplicate by key."""
        return self.seen.entity.removeprefix("run/")

    @property
    def fence(self) -> int:
        """The fence: it rises with every attempt of the key; pass it to services that refuse older ones."""
        return self.seen.record.fence  # type: ignore[no-any-return]

    @property
    def step(self) -> str:
        """The name of the step."""
        return self.seen.record.step  # type: ignore[no-any-return]

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.seen.record.run_id  # type: ignore[no-any-return]

    @property
    def correlation_id(self) -> str:
        """The correlation id of all records of this work."""
        return self.seen.record.correlation_id  # type: ignore[no-any-return]

    @property
    def tenant(self) -> str:
        """The tenant."""
        return self.seen.record.tenant  # type: ignore[no-any-return]

    @property
    def seeded(self) -> random.Random:
        """Chance that may reach the output: the same in every attempt and every run of this work (X-74)."""
        if self._seeded is None:
            self._seeded = random.Random(f"{self.seen.record.seed}:{self.key}")  # noqa: S311
        return self._seeded

    @property
    def rng(self) -> random.Random:
        """Chance that differs from attempt to attempt, and can be repeated: seeded by run and number.

        What is drawn here must not reach the output; `seeded` is for that.
        """
        if self._rng is None:
            run = self.seen.record
            self._rng = random.Random(f"{run.seed or run_seed(run.run_id)}:{self.number}")  # noqa: S311
        return self._rng

    def remaining(self) -> float | None:
        """Return the seconds left to this attempt, or None when nothing limits it."""
        return time_remaining()

    def emit(self, topic: str, payload: Any = None) -> str:
        """Emit an event and return its id; it is published if and only if this attempt commits.

        The id is the same in every attempt, so that a consumer can drop a duplicate.
        """
        self._check_active("emit")
        if self._keep is None:
            raise UsageError(f"{self.step}: a reconcile function looks, it gives no events away")
        if not isinstance(topic, str) or not 1 <= len(topic) <= 200:
            raise UsageError(f"topic is {topic!r}; it takes a text of 1 to 200 characters")
        if topic.startswith(OURS):
            raise UsageError(f"topic is {topic!r}; topics that begin with {OURS} are not for steps")
        if len(self.events) >= MOST_EVENTS:
            raise UsageError(
                f"{self.step} emits more than {MOST_EVENTS} events; publish one that sums them up"
            )
        run, ordinal, plain = self.seen.record, len(self.events), self._tagged(payload)
        self._check_no_outer_key(topic, plain)
        event_id = make_event_id(self.seen.entity, run.run_number, ordinal)
        letter = EventRecord(
            "PENDING",
            topic,
            event_id,
            self.seen.entity,
            ordinal,
            self._now(),
            0.0,
            run.tenant,
            run.correlation_id,
        )
        self.events = (*self.events, (letter, plain))
        return event_id

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

        content    bytes, the path of a file, or a binary file, which is read to its end in bounded memory
        name       what it is called among the artifacts of this work; the step's `artifact=` unless given
        date, site, h3   what it is about: a day (or month, or year), a place, an H3 cell

        Return the `Artifact`; in an async step the answer has to be awaited. Other content under a name that
        this work has used before is a `PolicyViolation` (ARTIFACT_IMMUTABLE), which no policy retries.
        """
        self._check_active("put anything away")
        if self._files is None:
            raise UsageError(f"{self.step}: a reconcile function looks, it puts nothing away")
        told = make_label(
            self._files.artifact_name or "artifact" if name is None else name, media_type, date, site, h3
        )
        if len(self.kept) >= MOST_ARTIFACTS:
            raise UsageError(f"{self.step} puts away more than {MOST_ARTIFACTS} artifacts; pack them up")
        return self._files.put_artifact(self, content, told)

    def leave(self, content: Any, *, name: str, media_type: str | None = None) -> Any:
        """Leave content for people to look at: it is kept if and only if this attempt fails.

        What comes into quarantine has its evidence with it then, among the artifacts of this work, under
        `attempt-N-` and its name. In an async step the answer has to be awaited.
        """
        self._check_active("leave anything")
        if self._files is None:
            raise UsageError(f"{self.step}: a reconcile function looks, it leaves nothing")
        told = make_label(f"attempt-{self.number}-{name}", media_type, None, None, None)
        if any(left.name.casefold() == told.name.casefold() for left in self.evidence):
            raise UsageError(f"{self.step}: attempt {self.number} has left {name!r} already")
        return self._files.leave_evidence(self, content, told)

    def attach_artifact(self, kept: ArtifactRecord) -> Artifact:
        """Add a stored artifact to the attempt; refuse a name that has other content already."""
        held, new = self.kept.get(kept.name.casefold(), (None, True))
        if held is None:
            held = self._files.find_recorded_artifact(kept)
            new = held is None
        if held is not None and held.name != kept.name:
            raise UsageError(f"{self.step}: artifacts {held.name!r} and {kept.name!r} differ in case only")
        if held is not None and held.digest != kept.digest:
            raise PolicyViolation(
                "ARTIFACT_IMMUTABLE",
                f"{self.step}: {kept.name!r} is {held.digest[:12]}… already, {kept.digest[:12]}… is other "
                "content; what is there stays; give it another name, or the step another version",
            )
        kept = held or kept
        self.kept[kept.name.casefold()] = kept, new
        return reference_to_artifact(kept)

    def adopt_outputs(self, given: tuple[Given, ...]) -> None:
        """Add the events and artifacts that the attempt produced in its child process."""
        for each, payload in given:
            if type(each) is ArtifactRecord:
                self.attach_artifact(each)
            else:
                assert type(each) is EventRecord
                self.events = (*self.events, (each, payload))

    def collect_outputs(self) -> tuple[Given, ...]:
        """Return the events and the new artifact references that are stored with the result."""
        return (*self.events, *((kept, None) for kept, new in self.kept.values() if new))

    def list_artifacts(self) -> tuple[Any, ...]:
        """Return everything that was put away, in its tagged form."""
        return tuple(tag_artifact(reference_to_artifact(kept)) for kept, _ in self.kept.values())

    def transaction(self, connection: Any) -> Any:
        """Write in one's own database, in one transaction with the mark that it was done.

        connection  one of sqlite3, apsw, psycopg, SQLAlchemy (a session too) or Django, outside of any
                    transaction. The step begins one, and commits it when the function has returned.

        Return the connection. If an earlier attempt's transaction was committed, the function ends here: its
        result is the result. In an async step the answer has to be awaited.
        """
        self._check_transactional("transaction", "on_commit", self.also)
        if self.mark is not None and self.mark.connection is not connection:
            raise UsageError(f"{self.step}: one attempt, one database; two cannot be committed as one")
        if self.mark is not None:
            raise UsageError(f"{self.step}: current().transaction() was called before in this attempt")
        return self._files.begin_transaction(self, connection)

    def on_commit(self, write: Callable[[StoreTransaction], object]) -> None:
        """Write to your own tables in the store's database, in the transaction that stores COMMIT.

        write  called with the transaction after the function has returned: `tx.execute(sql, values)`; it may
               take a second, which all others wait for who write. On SQLite and PostgreSQL.
        """
        self._check_transactional("on_commit", "transaction", self.mark)
        if not callable(write):
            raise UsageError(f"{self.step}: on_commit() takes a function, not {write!r}")
        if self.also is not None:
            raise UsageError(f"{self.step}: current().on_commit() was called before in this attempt")
        self._files.check_supports_on_commit(self.step)
        self.also = write

    def _check_transactional(self, what: str, other: str, used: object) -> None:
        self._check_active("write")
        if self.seen.record.effect != "transactional":
            raise UsageError(
                f"{self.step} is declared {self.seen.record.effect}; current().{what}() is for "
                "effect='transactional'"
            )
        if used is not None:
            raise UsageError(
                f"{self.step}: one attempt, one database; it has used current().{other}() already"
            )

    def checkpoint(self, value: Any) -> Any:
        """Write down how far the work is; a later attempt gets it back from `resume()`.

        In an async step the answer has to be awaited.
        """
        return self.save_checkpoint(self._tagged(value))

    def save_checkpoint(self, plain: Any) -> Any:
        """Write down a checkpoint that is in its tagged form already."""
        self._check_active("checkpoint")
        if self._keep is None:
            raise UsageError(f"{self.step}: a reconcile function looks, it does not make checkpoints")
        return self._keep(self, plain)

    def resume(self, default: Any = None) -> Any:
        """Return the last checkpoint of this run, of any attempt; the default if there is none."""
        if self._kept is None or not self.seen.record.checkpoint_version:
            return default
        return self._kept(self.seen)

    def _check_no_outer_key(self, topic: str, plain: Any) -> None:
        """Refuse an event that holds the key of a step around it: keys stay inside (IDEM-15)."""
        written = encode([topic, plain])
        around: Attempt | None = self
        while around is not None:
            if around.key.encode() in written:
                raise UsageError(
                    f"{self.step}: event {topic!r} holds the idempotency key of {around.step}, which is "
                    "internal; whoever gets the event tells it by the event's own id"
                )
            around = around.parent

    def _check_active(self, what: str) -> None:
        if self.over:
            raise LeaseLost(f"{self.step}: attempt {self.number} is over, it cannot {what} any more")
        if self.is_forked:
            raise LeaseLost(
                f"{self.step}: attempt {self.number} is the parent's, a forked child cannot {what}"
            )

    @property
    def is_forked(self) -> bool:
        """Whether this is a child that was forked inside the work: the attempt is its parent's."""
        return self.life != _lives[0]


def _reset_after_fork() -> None:
    _lives[0] += 1


#: How many forks this process has come from: what was begun before the last of them is the parent's.
_lives = [0]
register_at_fork(after_in_child=_reset_after_fork)


CURRENT: ContextVar[Attempt | None] = ContextVar("oncemore.current", default=None)


def current() -> Attempt:
    """Return the attempt around this line; outside of a durable step there is none."""
    attempt = CURRENT.get()
    if attempt is None:
        raise UsageError("oncemore.current() is for the inside of a function with @oncemore.step")
    return attempt
