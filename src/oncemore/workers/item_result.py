"""One attempt of a job's item, in this process or another, and its result.

An attempt writes its key, resource and failures into `ItemNotes`. `build_error_result` derives the item's
result from these notes and the exception. In another process (`workers.remote`) the notes are sent back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.errors import (
    AttemptTimeout,
    CoolingDown,
    Deferred,
    InProgress,
    NotPermitted,
    OutcomeUncertain,
    Quarantined,
    ResultUnavailable,
    RetriesExhausted,
    StepFailed,
    StoreError,
)
from oncemore.steps.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.limits.cooldown_step import CooldownCall
    from oncemore.log.record import LoadedHead
    from oncemore.policy.model import Failure
    from oncemore.workers.executors import RemoteExecutor
    from oncemore.workers.map import MapJob
    from oncemore.workers.map_items import MapItem


class ItemResult(NamedTuple):
    """The result of an item.

    key           the key of its run; empty if there is none
    outcome       one of `workers.job_run.ITEM_OUTCOMES`
    until         when the item is due again; None if it is finished or the time is unknown
    result        SUCCESS, RETRYABLE_FAILURE, TERMINAL_FAILURE, QUARANTINE or SKIPPED_…; may be empty
    stored_error  the error record of a failure that was stored before this attempt
    """

    key: str
    outcome: str
    error: str = ""
    until: float | None = None
    result: str = ""
    error_class: str = ""
    stored_error: dict[str, Any] | None = None


class ItemNotes:
    """Collects the key, the resource and the failures of one attempt."""

    def __init__(self) -> None:
        self.key, self.has_failed, self.code = "", False, ""
        self.resource, self.result_word = "", "SUCCESS"

    def record_resource(self, cooling: CooldownCall | None, head: LoadedHead) -> None:
        """Note the item's resource, and whether the run is complete already."""
        if cooling is not None:
            self.resource = cooling.entity
            # A complete run returns its stored value, so the resource is not called at all.
            is_complete = head.record is not None and head.record.state == "COMPLETE"
            self.result_word = "SKIPPED_DUPLICATE" if is_complete else "SUCCESS"

    def record_failure(self, error: dict[str, Any], failure: Failure) -> None:
        """Note a failed attempt."""
        self.has_failed, self.code = True, str(error.get("code", ""))

    def build_result(self) -> ItemResult:
        """Return the result of an item whose attempt succeeded."""
        return ItemResult(self.key, "done", result=self.result_word)


class LiveItemNotes(ItemNotes):
    """Notes of an attempt that report each failure to the job at once.

    item_result  the result of the item, if an executor reported it
    """

    def __init__(self, job: MapJob, item: MapItem) -> None:
        super().__init__()
        self.item_result: ItemResult | None = None
        self._job, self._item, self._began = job, item, job.engine.now()

    @property
    def job_id(self) -> str:
        """The id of the item's job."""
        return self._job.job_id

    @property
    def is_stopped(self) -> bool:
        """Whether the job was stopped."""
        return self._job.is_stopped

    def record_failure(self, error: dict[str, Any], failure: Failure) -> None:
        """Count a failed attempt; throttling lowers the concurrency limit of the provider."""
        super().record_failure(error, failure)
        self._job.record_failure(self._item, self._began, error, failure)

    def stop_job(self, error: BaseException) -> None:
        """Stop the job because of an error that every other item would have as well."""
        self._job.stop_job(error)


#: The outcome and the result of an item by the class of its error; the first matching row applies.
_ERROR_OUTCOMES: tuple[tuple[Any, str, str], ...] = (
    (ResultUnavailable, "done", "SUCCESS"),
    ((RetriesExhausted, AttemptTimeout), "failed", "RETRYABLE_FAILURE"),
    (StepFailed, "failed", "TERMINAL_FAILURE"),
    (Deferred, "deferred", "RETRYABLE_FAILURE"),
    ((InProgress, StoreError), "deferred", ""),
    (Quarantined, "held", "QUARANTINE"),
    (OutcomeUncertain, "held", ""),
    (NotPermitted, "held", ""),
    (Exception, "refused", ""),
    (BaseException, "deferred", ""),
)


def build_error_result(error: BaseException, notes: ItemNotes) -> ItemResult:
    """Return the result of an item whose attempt raised an error."""
    if isinstance(error, CoolingDown):
        return ItemResult(notes.key, "skipped", str(error), None, error.outcome)
    outcome, result = next(row[1:] for row in _ERROR_OUTCOMES if isinstance(error, row[0]))
    if isinstance(error, Deferred):
        # A deferral without a failed attempt (by a limit or an open breaker) does not count as a failure.
        return ItemResult(
            notes.key, outcome, str(error), error.until, result if notes.has_failed else "", notes.code
        )
    run = getattr(error, "run", None)
    stored = (run.error or {}) if isinstance(run, Run) else {}
    # A failure without a failed attempt is an older one, stored in the log; the job counts it separately.
    is_stored = isinstance(error, StepFailed) and not notes.has_failed and isinstance(run, Run)
    error_class = notes.code or str(stored.get("code", ""))
    return ItemResult(
        notes.key,
        outcome,
        str(error),
        result=result,
        error_class=error_class,
        stored_error=stored if is_stored else None,
    )


class ItemCaller(NamedTuple):
    """How a job calls its step.

    run_attempt  runs one attempt of an item and fills its notes; returns an awaitable if `is_async`
    decode       decodes a stored result
    place        the executor that runs the attempts; None if the lanes run them
    """

    run_attempt: Callable[[MapItem, LiveItemNotes], Any]
    is_async: bool
    decode: Callable[[Any], Any]
    place: RemoteExecutor | None = None
