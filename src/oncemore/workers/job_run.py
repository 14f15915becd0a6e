"""The result of a job (`work.map`): its items, its providers, its record and its progress line."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.log.entry_codec import decode_head, read_body
from oncemore.log.record import JobRecord
from oncemore.log.result_codec import result_value
from oncemore.log.store import HeadQuery
from oncemore.steps.refusals import failure_of
from oncemore.steps.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TextIO

    from oncemore.steps.engine import Engine

R = TypeVar("R")

#: The error class of attempts that the provider throttled.
THROTTLED = "THROTTLED"
#: The possible outcomes of an item; each is a counter of `JobRecord` as well.
ITEM_OUTCOMES = ("done", "failed", "held", "deferred", "refused", "skipped")
#: The width of the progress bar, and the shortest time between two redraws.
BAR_WIDTH, REDRAW_S = 24, 0.1


class ProviderSummary(Value):
    """The counts of a job for one provider.

    errors       failed attempts by error class; throttled ones count as THROTTLED
    last_error   the neutral record of the last error
    concurrency  the concurrency limit of the provider at the end of the job
    cooldown     when the provider or its resource may be called again, in POSIX seconds, or None; set by a
                 Retry-After, an open breaker or the cooldown of the step
    """

    done: int = 0
    failed: int = 0
    held: int = 0
    deferred: int = 0
    refused: int = 0
    errors: Mapping[str, int] = {}
    last_error: dict[str, Any] | None = None
    concurrency: int = 0
    cooldown: float | None = None
    skipped: int = 0

    @property
    def throttled(self) -> int:
        """The number of throttled attempts, a sign of the provider's limits and not of a defect."""
        return self.errors.get(THROTTLED, 0)

    @property
    def failures(self) -> int:
        """The number of attempts that failed for any reason but throttling."""
        return sum(self.errors.values()) - self.throttled


class JobItem(Value):
    """One item of a job.

    key          the key of its run; empty if the call was refused, so that there is no run
    outcome      done, failed, held (waits for an operator), deferred (due after the end of the job),
                 refused (not attempted) or skipped (its resource is cooling down, not a failure)
    error        the reason, in a sentence
    result       SUCCESS, RETRYABLE_FAILURE, TERMINAL_FAILURE, QUARANTINE or SKIPPED_…; empty if none fits
    error_class  the class of the last failure, such as HTTP_429 or CHECKSUM_MISMATCH
    """

    number: int
    key: str
    outcome: str
    error: str = ""
    result: str = ""
    error_class: str = ""


class JobRun(Generic[R]):
    """The result of a job: its record in the log, the runs of its items, and a summary per provider.

    state      DONE, STOPPED (by an error or an interrupt), LOST (its process died) or RUNNING
    items      each with its key and outcome, in order; a job read from the log has the first 1,000
    providers  the summary of each provider; a step without providers has one under its own name
    """

    def __init__(
        self,
        engine: Engine,
        record: JobRecord,
        items: tuple[JobItem, ...],
        providers: Mapping[str, ProviderSummary],
        decode: Callable[[Any], Any] = result_value,
    ) -> None:
        self._engine, self._record, self._decode = engine, record, decode
        self.items, self.providers = items, dict(providers)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {word}" for word, count in self.counts.items() if count) or "nothing"
        return f"<oncemore.JobRun {self.step} {self.job_id} {self.state}: {counts}>"

    @property
    def job_id(self) -> str:
        """The id of the job in the log, a UUIDv7."""
        return self._record.job_id

    @property
    def step(self) -> str:
        """The step's name."""
        return self._record.step

    @property
    def state(self) -> str:
        """The state of the job."""
        return self._record.state

    @property
    def outcome(self) -> str:
        """COMPLETE if every item is done, else the worst outcome of an item, or the job's own state."""
        if self.state != "DONE":
            return self.state
        # A skipped item is not a failure, so that it does not appear here.
        words = ("refused", "failed", "held", "deferred")
        return next((word.upper() for word in words if self.counts[word]), "COMPLETE")

    @property
    def correlation_id(self) -> str:
        """The correlation id that the records of the job and of its items share."""
        return self._record.correlation_id

    @property
    def started(self) -> float:
        """The start of the job, in POSIX seconds."""
        return self._record.created_at

    @property
    def ended(self) -> float:
        """The end of the job, in POSIX seconds; 0 if it has not ended."""
        return self._record.ended_at

    @property
    def counts(self) -> dict[str, int]:
        """The number of items by outcome."""
        return {word: getattr(self._record, word) for word in ITEM_OUTCOMES}

    @property
    def runs(self) -> tuple[Run[R] | None, ...]:
        """The run of each item in its current state; None for an item without a run."""
        return tuple(
            Run(self._engine, f"run/{item.key}", self._decode) if item.key else None for item in self.items
        )

    @property
    def values(self) -> list[R]:
        """The results of all items; raises the failure of the first item that has none."""
        # A failed item raises before any stored result is decoded.
        for item, run in zip(self.items, self.runs, strict=True):
            if item.outcome != "done":
                raise self._missing(item, run)
        return [run.value for run in self.runs if run is not None]

    def _missing(self, item: JobItem, run: Run[Any] | None) -> Exception:
        """Return the error for an item without a value: the failure of its run, or a `UsageError`."""
        if run is None or run.status != "HARD_FAIL":
            return UsageError(f"item {item.number} of {self!r} has no value: {item.error or item.outcome}")
        # The same exception as a call of the step would raise, so that callers handle both alike.
        failure: Any = failure_of(f"{run.step}: key {item.key[:12]}", run.state, run.error or {})
        failure.run = run
        failure.add_note(f"oncemore: this is item {item.number} of {self!r}")
        return failure  # type: ignore[no-any-return]


def list_jobs(engine: Engine, limit: int = 100) -> tuple[JobRun[Any], ...]:
    """Return the jobs of a log, running ones first, then by id."""
    heads = list(engine.store.list_heads(HeadQuery("job", limit=limit)))
    return tuple(_load_job(engine, head.entity) for head in heads)


def _load_job(engine: Engine, entity: str) -> JobRun[Any]:
    head = engine.store.load_head(entity)
    assert head is not None
    body = read_body(head, engine.cipher)
    items = tuple(JobItem(*item) for item in body.get("items", ()))
    # A body stores items and providers as the positional fields of their classes.
    providers = {name: ProviderSummary(*fields) for name, fields in body.get("providers", {}).items()}
    return JobRun(engine, decode_head(head.head, JobRecord), items, providers)


class ProgressBar:
    """Draws the progress line, at most ten times a second.

    total   the number of items; None if it is unknown
    stream  the terminal; nothing is drawn on any other stream
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        stream: TextIO | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._total, self._clock = label, total, clock
        # A dumb terminal cannot erase the line, so each redraw would append to it.
        is_terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._stream = stream if is_terminal else None
        self._began, self._drawn = clock(), 0.0

    def draw_line(self, counts: Mapping[str, int], *, last: bool = False) -> None:
        """Draw the number of items by outcome."""
        now = self._clock()
        if self._stream is None or not (last or now - self._drawn >= REDRAW_S):
            return
        self._drawn = now
        finished = sum(counts.values())
        rest = "".join(f", {count} {word}" for word, count in counts.items() if count and word != "done")
        speed = finished / (now - self._began) if now > self._began else 0.0
        self._write_text(
            self._stream,
            f"\r\x1b[K{self._label} {self._format_share(finished)}{rest}, {speed:.1f}/s" + "\n" * last,
        )

    def _format_share(self, finished: int) -> str:
        if not self._total:
            return str(finished)
        full = min(BAR_WIDTH, BAR_WIDTH * finished // self._total)
        return f"[{'#' * full}{'.' * (BAR_WIDTH - full)}] {finished}/{self._total}"

    def _write_text(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            # The terminal is closed. The job continues without a progress line.
            self._stream = None
