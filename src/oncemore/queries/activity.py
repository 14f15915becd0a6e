"""Follow a log and count what happens in it: attempts, retries and ends per minute, and the running attempts.

A counter reads every entry once, however often it is asked, so that a page of live numbers costs only the
entries that came since. At its start it reads back as far as its window, at most `MAX_ENTRIES` entries; the
field `counted_from` says how far that was.
"""

from __future__ import annotations

import threading
from collections import Counter, deque

from oncemore._values import Value
from oncemore.queries.alerts import EXHAUSTED
from oncemore.queries.entries import find_seq, read_body
from oncemore.queries.runs import error_class
from oncemore.telemetry.alerts import RetryMoment, find_current_alerts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.log.record import RunRecord
    from oncemore.log.store import Entry, Store
    from oncemore.steps.engine import Engine
    from oncemore.telemetry.alerts import AlertRules, RetryAlert

WINDOW_MINUTES = 60
MAX_ENTRIES = 50_000
#: The number of retries and ends that are kept with their time; older ones only count in their minute.
MAX_MOMENTS = 100_000
MAX_RUNNING = 100_000


class MinuteCount(Value):
    """The counts of one minute; `at` is its beginning in POSIX seconds."""

    at: float
    attempts: int = 0
    retries: int = 0
    completed: int = 0
    failed: int = 0
    held: int = 0


class OngoingAttempt(Value):
    """An attempt that has begun and not ended."""

    key: str
    step: str
    number: int
    worker: str
    began_at: float


class ActivityCounter:
    """The counts of the last hour of one log, and its running attempts."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock = engine, threading.Lock()
        self._position = -1
        self._minutes: dict[int, Counter[str]] = {}
        self._retries: deque[RetryMoment] = deque(maxlen=MAX_MOMENTS)
        self._ends: deque[RetryMoment] = deque(maxlen=MAX_MOMENTS)
        self._running: dict[str, OngoingAttempt] = {}
        self.counted_from = 0.0

    @property
    def _store(self) -> Store:
        # Asked for each time: an engine that was closed opens its store again.
        return self._engine.store

    def update(self) -> None:
        """Count the entries that came since the last call."""
        with self._lock:
            if self._position < 0:
                self._start()
            last = self._store.wait_for_change(0, 0.0)
            if last > self._position:
                for entry in self._store.read_entries(after=self._position):
                    self._add_entry(entry)
                    self._position = entry.seq
                    # Entries that are written meanwhile belong to the next call.
                    if entry.seq >= last:
                        break
            self._forget_old_minutes()

    def _start(self) -> None:
        """Find the first entry to read, and the attempts that run already."""
        now, last = self._store.now(), self._store.wait_for_change(0, 0.0)
        self._position = max(find_seq(self._store, now - 60.0 * WINDOW_MINUTES), last - MAX_ENTRIES, 0)
        self.counted_from = now - 60.0 * WINDOW_MINUTES
        first = next(iter(self._store.read_entries(after=self._position)), None)
        if self._position == last - MAX_ENTRIES and first is not None:
            from oncemore.log.entry_codec import decode_header

            self.counted_from = decode_header(first.header).at
        self._running = _load_running(self._store)

    def _add_entry(self, entry: Entry) -> None:
        from oncemore.log.entry_codec import decode_header

        if not entry.entity.startswith("run/"):
            return
        header = decode_header(entry.header)
        marks, sets = header.marks, header.sets
        state = sets.get("state", "")
        minute = self._minutes.setdefault(int(header.at // 60), Counter())
        known = self._running.get(entry.entity)
        step = "" if known is None else known.step
        if "INTENT" in marks:
            minute["attempts"] += 1
            minute["retries"] += sets.get("attempt_count", 1) > 1
            self._add_running(entry.entity, sets, header.at, header.fence)
        elif state and state != "RUNNING":
            self._running.pop(entry.entity, None)
        if "SOFT_FAIL" in marks and "DECISION" in marks:
            self._add_retry(entry, header.at, step)
        if state in ("COMPLETE", "HARD_FAIL") or sets.get("held_for"):
            outcome = "held" if sets.get("held_for") else "completed" if state == "COMPLETE" else "failed"
            minute[outcome] += 1
        if state in ("COMPLETE", "HARD_FAIL"):
            self._add_end(entry, header.at, step, sets.get("reason", "") == EXHAUSTED)

    def _add_retry(self, entry: Entry, at: float, step: str) -> None:
        proof = read_body(entry).get("proof") or {}
        # An operator's decision and a closed attempt have other actions.
        if proof.get("action") in ("retry", "defer"):
            code = str((proof.get("failure") or {}).get("code", ""))
            self._retries.append(RetryMoment(at, step, code, f"entry {entry.seq}"))

    def _add_end(self, entry: Entry, at: float, step: str, is_exhausted: bool) -> None:
        # Only the error of exhausted work is named in an alert, so that most bodies are not read.
        error = error_class(read_body(entry).get("error") or {}) if is_exhausted else ""
        self._ends.append(RetryMoment(at, step, error, f"entry {entry.seq}", is_exhausted))

    def _add_running(self, entity: str, sets: dict[str, Any], at: float, fence: int) -> None:
        known = self._running.get(entity)
        # Only the first entry of a run names its step; a later attempt takes it from the head.
        step = sets.get("step") or (known.step if known is not None else _load_step(self._store, entity))
        if len(self._running) < MAX_RUNNING:
            self._running[entity] = OngoingAttempt(
                key=entity.removeprefix("run/"),
                step=step,
                number=sets.get("attempt", fence),
                worker=sets.get("worker", known.worker if known is not None else ""),
                began_at=at,
            )

    def _forget_old_minutes(self) -> None:
        oldest = int(self._store.now() // 60) - WINDOW_MINUTES
        self._minutes = {minute: counts for minute, counts in self._minutes.items() if minute > oldest}

    def list_minutes(self) -> tuple[MinuteCount, ...]:
        """Return the counts of the last hour, one for each minute, oldest first."""
        last = int(self._store.now() // 60)
        with self._lock:
            return tuple(
                MinuteCount(at=60.0 * minute, **dict(self._minutes.get(minute, Counter())))
                for minute in range(last - WINDOW_MINUTES + 1, last + 1)
            )

    def find_alerts(self, rules: AlertRules) -> tuple[RetryAlert, ...]:
        """Return the alerts that the last minutes raise."""
        with self._lock:
            return find_current_alerts(self._retries, self._ends, self._store.now(), rules)

    def list_running(self) -> list[OngoingAttempt]:
        """Return the running attempts, longest running first."""
        with self._lock:
            return sorted(self._running.values(), key=lambda attempt: attempt.began_at)


def _load_running(store: Store) -> dict[str, OngoingAttempt]:
    """Return the attempts that run now, from the heads of the store."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.store import HeadQuery

    running = {}
    for head in store.list_heads(HeadQuery("run", state="RUNNING", limit=MAX_RUNNING)):
        run: RunRecord = decode_head(head.head)
        running[head.entity] = OngoingAttempt(
            key=head.entity.removeprefix("run/"),
            step=run.step,
            number=run.attempt,
            worker=run.worker,
            began_at=run.started_at,
        )
    return running


def _load_step(store: Store, entity: str) -> str:
    head = store.load_head(entity)
    return "" if head is None else head.by.step
