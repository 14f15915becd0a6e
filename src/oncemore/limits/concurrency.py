"""The concurrency limit of a provider, shared by all workers of a store.

While the provider does not throttle, each job and worker keeps its own limit and writes nothing. Once it
throttles, the record of the provider holds one limit for all workers (`limits.concurrency_rules`): half of
the former limit, plus one after every quiet period. A call then needs a permit; the record counts the
permits of each worker, and those of dead workers are free again. Permits end when the limit has recovered.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError, log_warning
from oncemore.limits.breaker import run_limit_script
from oncemore.limits.concurrency_rules import ConcurrencyState
from oncemore.log.entry_codec import build_write, decode_head, load_head
from oncemore.log.record import QuotaRecord, RecordChange, WorkerRecord
from oncemore.log.store import Batch, Stored
from oncemore.retries.loop import AppendRecord
from oncemore.workers.map_items import QUIET_PERIOD_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oncemore.steps.engine import Engine

PREFIX = "quota/"
MOST_TRIES = 1000


def update_quota(
    engine: Engine,
    name: str,
    turn: Callable[[QuotaRecord, float], tuple[QuotaRecord, Any]],
    body: dict[str, Any] | None = None,
) -> Generator[Any, Any, Any]:
    """Apply `turn` to the record of a resource by compare-and-set; return the result of `turn`.

    Raise `StoreError` if other writers are faster `MOST_TRIES` times in a row.
    """
    entity = PREFIX + name
    for _ in range(MOST_TRIES):
        head = load_head(engine.store, entity, engine.cipher, QuotaRecord)
        before, now = head.record or QuotaRecord(name=name), engine.now()
        after, result = turn(before, now)
        # An unchanged record needs no write, and then no other writer can be faster.
        if after == before:
            return result
        change = RecordChange(("QUOTA",), head.record, after, body or {})
        write = build_write(entity, head.version, head.hash, change, now, engine.cipher)
        # Not synced to disk: after a power failure a limit may be a few writes old, and no run is lost.
        batch = Batch((write,), {}, sync=False)
        if isinstance((yield AppendRecord(lambda: engine.store.append(batch))), Stored):  # noqa: B023
            return result
    raise StoreError(f"resource {name}: other writers changed it {MOST_TRIES} times in a row")


def load_quota(engine: Engine, name: str) -> QuotaRecord:
    """Return the current record of a resource."""
    head = engine.store.load_head(PREFIX + name)
    return QuotaRecord(name=name) if head is None else decode_head(head.head, QuotaRecord)


def is_limited(quota: QuotaRecord | None) -> bool:
    """Whether the limit of a provider is below its maximum, so that calls need permits."""
    return quota is not None and 0 < quota.concurrency < quota.max_concurrency


class ConcurrencyLimits:
    """The shared concurrency limits, as used by one process.

    most  the largest number of concurrent calls of the workers of this process
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._under_way: dict[str, int] = {}
        self.most = 1

    def begin_call(self, provider: str) -> bool:
        """Whether a call to a provider may begin; the caller reports its end with `end_call`."""
        if not provider:
            return True
        # Locked over the write, so that two threads do not both count the same number of calls.
        with self._lock:
            head = self._engine.store.load_head(PREFIX + provider)
            is_admitted = (
                head is None
                or not is_limited(decode_head(head.head, QuotaRecord))
                or self._take_permit(provider)
            )
            if is_admitted:
                self._under_way[provider] = self._under_way.get(provider, 0) + 1
            return is_admitted

    def _take_permit(self, provider: str) -> bool:
        """Take a permit, if one is free; a quiet period raises the limit by one first."""
        engine = self._engine
        worker, own_calls = engine.leases.current_identity().name, self._under_way.get(provider, 0)

        def turn(quota: QuotaRecord, now: float) -> tuple[QuotaRecord, bool]:
            state = ConcurrencyState(
                quota.max_concurrency, quota.concurrency, quota.changed_at
            ).after_quiet_period(now, QUIET_PERIOD_S)
            quota = quota._replace(concurrency=state.now, changed_at=state.since)
            if not is_limited(quota):
                return quota._replace(active_calls={}), True
            # A worker that died never returns its permits, so they are dropped here.
            permits = {
                name: count
                for name, count in quota.active_calls.items()
                if name != worker and self._is_worker_alive(name)
            }
            is_free = sum(permits.values()) + own_calls < quota.concurrency
            permits[worker] = own_calls + 1 if is_free else own_calls
            active = {name: count for name, count in permits.items() if count}
            return quota._replace(active_calls=active), is_free

        return bool(run_limit_script(update_quota(engine, provider, turn)))

    def _is_worker_alive(self, worker: str) -> bool:
        engine = self._engine
        head = engine.store.load_head(f"worker/{worker}")
        return head is not None and engine.leases.is_worker_alive(
            worker, decode_head(head.head, WorkerRecord)
        )

    def end_call(self, provider: str) -> None:
        """Record the end of a call and return its permit, if it has one."""
        if not provider:
            return
        engine = self._engine
        with self._lock:
            own_calls = self._under_way[provider] = max(0, self._under_way.get(provider, 0) - 1)
            try:
                if not load_quota(engine, provider).active_calls:
                    return
                worker = engine.leases.current_identity().name
            except StoreError:
                # The permit ends with this process at the latest.
                return

            def turn(quota: QuotaRecord, now: float) -> tuple[QuotaRecord, None]:
                # Calls that began before the provider throttled have no permit to return.
                permits = {**quota.active_calls, worker: min(own_calls, quota.active_calls.get(worker, 0))}
                active = {name: count for name, count in permits.items() if count}
                return quota._replace(active_calls=active), None

            self._update_quota(provider, turn)

    def _update_quota(
        self, provider: str, turn: Callable[[QuotaRecord, float], tuple[QuotaRecord, Any]]
    ) -> None:
        """Apply `turn`; log a store error and continue, because permits end with their worker."""
        try:
            run_limit_script(update_quota(self._engine, provider, turn))
        except StoreError as error:
            log_warning(f"the concurrency limit of {provider} could not be written to the store: {error}")

    def record_throttling(self, provider: str, began: float, most: int = 0) -> None:
        """Halve the limit of a provider that has throttled an attempt, for all workers.

        began  the time at which that attempt began
        most   the initial limit of concurrent calls of a job; 0 for that of this process's workers
        """
        if not provider:
            return
        initial = most or self.most

        def turn(quota: QuotaRecord, now: float) -> tuple[QuotaRecord, None]:
            limit = max(initial, quota.max_concurrency)
            state = ConcurrencyState(limit, quota.concurrency or limit, quota.changed_at)
            state = state.after_throttling(began, now)
            after = quota._replace(
                max_concurrency=limit,
                concurrency=state.now,
                changed_at=state.since,
                throttled=quota.throttled + 1,
            )
            return after, None

        self._update_quota(provider, turn)
