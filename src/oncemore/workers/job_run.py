"""JOBS: what came of calling one step for many items (`work.map`), as its caller and the log know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.log.entry_codec import head_of, read_body
from oncemore.log.record import Mapped
from oncemore.log.result_codec import value_of
from oncemore.log.store import Query
from oncemore.steps.refusals import failure_of
from oncemore.steps.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.steps.engine import Engine

#: What attempts are counted as that were told to slow down.
THROTTLED = "THROTTLED"
#: What an item can come to.
WORDS = ("done", "failed", "held", "later", "refused", "skipped")


class ByProvider(Value):
    """What a job met at one provider.

    errors       how many attempts failed, by class of error; those that were told to slow down are THROTTLED
    last_error   the neutral record of the last one
    concurrency  how many calls it was asked for at once, at the end
    cooldown     until when it, or what was asked of it, is left alone, in POSIX seconds; None if it is not:
                 because it asked for that, because its breaker is open, or by the cooldown of the step
    """

    done: int = 0
    failed: int = 0
    held: int = 0
    later: int = 0
    refused: int = 0
    errors: Mapping[str, int] = {}
    last_error: dict[str, Any] | None = None
    concurrency: int = 0
    cooldown: float | None = None
    skipped: int = 0

    @property
    def throttled(self) -> int:
        """How many attempts were told to slow down: they tell of its limits, not of anything broken."""
        return self.errors.get(THROTTLED, 0)

    @property
    def failures(self) -> int:
        """How many attempts failed in any other way."""
        return sum(self.errors.values()) - self.throttled


class JobItem(Value):
    """One item of a job.

    key      of its run; empty if there is none, because the call was refused
    outcome  done, failed, held (nobody knows what became of it), later (it is due after the job's end),
             refused (it was not even tried) or skipped (what it asks for is left alone, which is no failure)
    error    why, in a sentence
    result   SUCCESS, RETRYABLE_FAILURE, TERMINAL_FAILURE, QUARANTINE, or the word of a skip, SKIPPED_…; empty
             where none of them fits
    error_class  what the last failure is counted as: HTTP_429, CHECKSUM_MISMATCH
    """

    number: int
    key: str
    outcome: str
    error: str = ""
    result: str = ""
    error_class: str = ""


class JobRun:
    """What a job came to: an entry in the log, the runs of its items, and what each provider did.

    state      DONE, STOPPED (cut off in order), LOST (its process died) or RUNNING
    items      each with its key and outcome, in order; of a job that is read from the log, the first 1,000
    providers  what was met at each provider; under the step's own name where it names none
    """

    def __init__(
        self,
        engine: Engine,
        record: Mapped,
        items: tuple[JobItem, ...],
        providers: Mapping[str, ByProvider],
        decode: Callable[[Any], Any] = value_of,
    ) -> None:
        self._engine, self._record, self._decode = engine, record, decode
        self.items, self.providers = items, dict(providers)

    def __repr__(self) -> str:
        told = ", ".join(f"{count} {word}" for word, count in self.counts.items() if count) or "nothing"
        return f"<oncemore.JobRun {self.step} {self.job_id} {self.state}: {told}>"

    @property
    def job_id(self) -> str:
        """What the job is known by in the log, a UUIDv7."""
        return self._record.job_id

    @property
    def step(self) -> str:
        """The step's name."""
        return self._record.step

    @property
    def state(self) -> str:
        """Where the job stands."""
        return self._record.state

    @property
    def outcome(self) -> str:
        """COMPLETE if every item is done; else what the worst of them came to, or the job's own state."""
        if self.state != "DONE":
            return self.state
        words = ("refused", "failed", "held", "later")
        return next((word.upper() for word in words if self.counts[word]), "COMPLETE")

    @property
    def correlation_id(self) -> str:
        """What ties the records of the job and of its items together."""
        return self._record.correlation_id

    @property
    def started(self) -> float:
        """When it began, in POSIX seconds."""
        return self._record.created

    @property
    def ended(self) -> float:
        """When it ended; 0 if it has not."""
        return self._record.ended

    @property
    def counts(self) -> dict[str, int]:
        """How many items came to what."""
        return {word: getattr(self._record, word) for word in WORDS}

    @property
    def runs(self) -> tuple[Run | None, ...]:
        """The run of each item, as it is now; None where there is none."""
        return tuple(
            Run(self._engine, f"run/{item.key}", self._decode) if item.key else None for item in self.items
        )

    @property
    def values(self) -> list[Any]:
        """The result of each item; where one has none, the failure of the first such item is raised."""
        for item, run in zip(self.items, self.runs, strict=True):
            if item.outcome != "done":
                raise self._missing(item, run)
        return [run.value for run in self.runs if run is not None]

    def _missing(self, item: JobItem, run: Run | None) -> Exception:
        """Return why an item has no value: the failure of its run, or that it has not come to its end."""
        if run is None or run.status != "HARD_FAIL":
            return UsageError(f"item {item.number} of {self!r} has no value: {item.error or item.outcome}")
        failure: Any = failure_of(f"{run.step}: key {item.key[:12]}", run.state, run.error or {})
        failure.run = run
        failure.add_note(f"oncemore: this is item {item.number} of {self!r}")
        return failure  # type: ignore[no-any-return]


def jobs_of(engine: Engine, limit: int = 100) -> tuple[JobRun, ...]:
    """Return the jobs that a log knows, those under way first, then by id."""
    heads = list(engine.store.heads(Query("job", limit=limit)))
    return tuple(_known(engine, head.entity) for head in heads)


def _known(engine: Engine, entity: str) -> JobRun:
    head = engine.store.head(entity)
    assert head is not None
    body = read_body(head, engine.seal)
    items = tuple(JobItem(*item) for item in body.get("items", ()))
    providers = {name: ByProvider(*told) for name, told in body.get("providers", {}).items()}
    return JobRun(engine, head_of(head.head, Mapped), items, providers)
