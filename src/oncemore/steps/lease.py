"""Leases: the time-bounded right of a process to the runs that it has begun.

A process is one *worker* per engine. The worker is an entity of the log, and a heartbeat appends to it every
third of a lease; no run is written for that. Runs under a policy with its own `lease` have another worker.
The INTENT of a run names its worker; other workers may take the run over when that lease has ended, or at
once when the worker is provably dead.

A worker that could not store the outcome of one of its runs is *retired*, so that its lease ends some time:
new runs go to a new worker, and the retired one is kept alive until its other runs have ended.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from oncemore import clock as clocks
from oncemore._platform import get_host_name
from oncemore.config import HEARTBEATS_PER_LEASE, LEASE_S
from oncemore.errors import StoreError
from oncemore.log.entry_codec import decode_head, encode_entry, new_nonce, new_uuid7
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import NOWHERE, RecordChange, WorkerRecord
from oncemore.log.store import Batch, EntryWrite, HeadIndex, Stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import Self

    from oncemore.log.store import Store, WorkerLock
    from oncemore.steps.engine import Engine

log = logging.getLogger("oncemore")


class WorkerIdentity:
    """A worker of this process: its lease, and the attempts that it is making."""

    def __init__(self, store: Store, name: str, lease_s: float, now: Callable[[], float]) -> None:
        self.name = name
        self.entity = f"worker/{name}"
        self.retired = False
        # Whether the lease ends without a write, because the store may not answer.
        self.quiet = False
        self._ended = False
        self._own_heartbeat: HeartbeatThread | None = None
        self._under_way: dict[tuple[str, int], int] = {}
        self._reserved = 0  # attempts that are about to begin
        self._count_lock = threading.Lock()
        self._is_closed = False
        self._store = store
        self._now = now
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._version, self._hash = 0, NOWHERE
        self._state: WorkerRecord | None = None
        with InterruptShield():
            self._presence: WorkerLock = store.register_worker(name)
        self.renew_lease()

    @property
    def lease_until(self) -> float:
        """The end of the lease by the store's clock, unless it is renewed."""
        return self._state.lease_until if self._state else 0.0

    def is_fresh(self, now: float) -> bool:
        """Return whether enough of the lease is left for a new attempt."""
        state = self._state
        return state is not None and state.lease_until - now > self._lease_s / HEARTBEATS_PER_LEASE

    def has_attempt(self, entity: str, fence: int) -> bool:
        """Return whether this worker is making an attempt."""
        return (entity, fence) in self._under_way

    def list_attempts(self) -> list[tuple[str, int]]:
        """Return entity and fence of the attempts that this worker is making."""
        with self._count_lock:
            return list(self._under_way)

    def reserve_slot(self) -> bool:
        """Reserve this worker for an attempt that is about to begin; return False if it has ended."""
        with self._count_lock:
            if self._is_closed or self.retired:
                return False
            self._reserved += 1
            return True

    def release_slot(self) -> None:
        """End a reservation whose attempt did not begin."""
        with self._count_lock:
            self._reserved -= 1

    def finish_if_idle(self) -> bool:
        """Accept no more attempts, unless one is running or reserved; return whether the worker has ended."""
        with self._count_lock:
            # Under the lock of the reservations: no attempt can begin between this check and the last write.
            self._is_closed = self._is_closed or not (self._under_way or self._reserved)
            return self._is_closed

    def add_attempt(self, attempt: tuple[str, int], *, reserved: bool = False) -> None:
        """Register an attempt before its claim; several callers may claim the same one, and one will succeed.

        reserved  whether a reservation (`reserve_slot`) becomes this attempt
        """
        with self._count_lock:
            self._under_way[attempt] = self._under_way.get(attempt, 0) + 1
            if reserved:
                self._reserved -= 1

    def remove_attempt(self, attempt: tuple[str, int]) -> None:
        """Remove an attempt that has ended or was not claimed; other callers keep their registration."""
        with self._count_lock:
            left = self._under_way[attempt] - 1
            if left:
                # Replaced and never absent in between: readers do not take the lock.
                self._under_way[attempt] = left
            else:
                del self._under_way[attempt]

    def renew_lease(self) -> None:
        """Write a new end of the lease; a lease that was given back stays ended.

        The heartbeat may come while the engine is being closed. Whether the lease had expired does not
        matter: fences protect the runs.
        """
        with self._lock:
            if self._ended:
                return
            now = self._now()
            began = self._state.started_at if self._state else now
            self._append_state(
                WorkerRecord("ALIVE", now + self._lease_s, self._lease_s, get_host_name(), os.getpid(), began)
            )

    def keep_alive(self, interval_s: float) -> Self:
        """Renew the lease at its own interval until it ends, besides the heartbeat of the engine."""
        # Weak, so that the thread does not keep a worker alive that its engine has dropped.
        reference = weakref.ref(self)

        def beat() -> None:
            worker = reference()
            if worker is not None:
                _renew_or_warn(worker)

        self._own_heartbeat = HeartbeatThread(interval_s, beat)
        return self

    def end_lease(self) -> None:
        """Give the lease back: other workers may take over its runs at once."""
        if self._own_heartbeat is not None:
            self._own_heartbeat.stop_heartbeat()
        if self.quiet:
            self._presence.close()
            return
        with self._lock:
            self._ended = True
            try:
                if self._state is not None:
                    self._append_state(self._state._replace(state="ENDED", lease_until=self._now()))
            finally:
                self._presence.close()

    def _append_state(self, state: WorkerRecord) -> None:
        change = RecordChange(("LEASE",), self._state, state)
        nonce = new_nonce()
        # Twice: after a lost acknowledgement the first append conflicts and shows the stored head.
        for _ in range(2):
            encoded = encode_entry(change, self.entity, self._version + 1, self._hash, self._now(), nonce)
            # A worker that ends with no attempt left needs no takeover: it is not listed as due.
            is_idle = state.state == "ENDED" and not (self.retired or self._under_way or self._reserved)
            index = HeadIndex("worker", state.state, None if is_idle else state.lease_until, "", self.name)
            write = EntryWrite(self.entity, self._version, *encoded, index)
            with InterruptShield():
                answer = self._store.append(Batch((write,), {}, sync=False)).wait()
            if isinstance(answer, Stored) or (answer.head is not None and answer.head.hash == encoded.hash):
                self._version, self._hash, self._state = self._version + 1, encoded.hash, state
                return
            if answer.head is None:
                # The worker was taken for dead, and its record was pruned.
                self._version, self._hash, self._state = 0, NOWHERE, None
            else:
                # An earlier renewal was stored, but its acknowledgement was lost.
                self._version, self._hash = answer.head.version, answer.head.hash
                self._state = decode_head(answer.head.head, WorkerRecord)
            change = RecordChange(("LEASE",), self._state, state)
        raise StoreError(f"the lease of worker {self.name} is written by another process")


def _renew_or_warn(worker: WorkerIdentity) -> None:
    """Renew a lease; a failure is logged, the next heartbeat tries again, and fences protect the runs."""
    try:
        worker.renew_lease()
    except Exception as error:  # noqa: BLE001
        log.warning("oncemore: the lease of worker %s was not renewed: %s", worker.name, error)


class HeartbeatThread:
    """Renews leases from a daemon thread."""

    def __init__(self, interval_s: float, beat: Callable[[], None]) -> None:
        self._stop = threading.Event()
        self._interval_s = interval_s
        self._beat = beat
        threading.Thread(target=self._run_heartbeat, name="oncemore-heartbeat", daemon=True).start()

    def _run_heartbeat(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._beat()

    def stop_heartbeat(self) -> None:
        """End the thread at its next wake-up."""
        self._stop.set()


class WorkerLeases:
    """The workers of an engine in this process: usually one, and one for each lease of a policy.

    after_renewal  called with the engine after each heartbeat
    heartbeat      the thread that renews their leases; None before the first attempt
    workers        the workers of this process by name
    """

    def __init__(self, engine: Engine, lease_s: float, after_renewal: Callable[[Engine], None]) -> None:
        # Weak, because the heartbeat thread must not keep an engine alive that the user has dropped.
        self._engine = weakref.proxy(engine)
        self._weak_engine = weakref.ref(engine)
        self._after_renewal = after_renewal
        self.lease_s = lease_s

    def reset(self, lock: AbstractContextManager[object]) -> None:
        """Start without workers: at first, and in a forked child, where they are the parent's.

        lock  the lock of the engine: opening the store, closing it and choosing a worker exclude each other
        """
        self._lock = lock
        self.current: WorkerIdentity | None = None
        self.workers: dict[str, WorkerIdentity] = {}
        self._by_lease: dict[tuple[float, float], WorkerIdentity] = {}
        self.heartbeat: HeartbeatThread | None = None
        #: Whether the engine closes without waiting for its store.
        self.closes_quietly = False

    def current_identity(self, now: float = 0.0) -> WorkerIdentity:
        """Return the worker of this process, with enough of its lease left for a new attempt.

        now  the store's time, if the caller has just read it
        """
        worker = self.current
        if worker is not None and worker.is_fresh(now or self._engine.now()):
            return worker
        with self._lock:
            if self.current is None:
                worker = self._start_worker(self.lease_s)
                # Before the worker is in use: an interrupted caller must not go on without a heartbeat.
                with InterruptShield():
                    self.heartbeat = self.heartbeat or HeartbeatThread(
                        self.lease_s / HEARTBEATS_PER_LEASE, _heartbeat_of(self._weak_engine)
                    )
                self.current = self.workers[worker.name] = worker
            elif not self.current.is_fresh(self._engine.now()):
                self.current.renew_lease()
            return self.current

    def identity_for(self, lease: tuple[float, float], now: float) -> WorkerIdentity:
        """Return the worker for a policy's lease (length, interval); the engine's own takes precedence."""
        if self.lease_s != LEASE_S or lease == (LEASE_S, LEASE_S / HEARTBEATS_PER_LEASE):
            return self.current_identity(now)
        with self._lock:
            worker = self._by_lease.get(lease)
            if worker is None or worker.retired:
                worker = self._start_worker(lease[0]).keep_alive(lease[1])
                self._by_lease[lease] = self.workers[worker.name] = worker
            elif not worker.is_fresh(now):
                worker.renew_lease()
            return worker

    def _start_worker(self, lease_s: float) -> WorkerIdentity:
        store = self._engine.store
        # The clock of the store itself: an engine that is being closed would open another store for it.
        return WorkerIdentity(
            store, new_uuid7(self._engine.now()), lease_s, lambda: store.now() + clocks.current.offset
        )

    def lease_until(self, worker: str, entity: str, fence: int) -> float:
        """Return until when a worker holds an attempt; 0 if it is gone, or has left the attempt."""
        # A worker of this process knows its attempts before the log does, and after their end.
        own = self.workers.get(worker)
        if own is not None:
            return self._engine.now() + self.lease_s if own.has_attempt(entity, fence) else 0.0
        store = self._engine.store
        with InterruptShield():
            head = None if store.is_worker_gone(worker) else store.load_head(f"worker/{worker}")
        if head is None:
            return 0.0
        state = decode_head(head.head, WorkerRecord)
        return state.lease_until if state.state == "ALIVE" else 0.0

    def is_worker_alive(self, worker: str, lease: WorkerRecord) -> bool:
        """Return whether a worker may still hold runs."""
        if worker in self.workers:
            return True
        if lease.state != "ALIVE" or lease.lease_until <= self._engine.now():
            return False
        with InterruptShield():
            return not self._engine.store.is_worker_gone(worker)

    def retire_worker(self, worker: WorkerIdentity, *, quietly: bool = False) -> None:
        """Begin no more attempts under a worker that could not store the outcome of one.

        quietly  do not wait for the store, neither now nor when the engine is closed
        """
        with self._lock:
            worker.retired, self.closes_quietly = True, self.closes_quietly or quietly
            for member in self.workers.values():
                member.quiet = self.closes_quietly
            if self.current is worker:
                self.current = None

    def close_retired_worker(self, worker: WorkerIdentity) -> None:
        """End the lease of a retired worker that makes no attempt any more."""
        with self._lock:
            if worker.name not in self.workers or not worker.finish_if_idle():
                return
            del self.workers[worker.name]
        # If this write fails, the lease expires by itself.
        with suppress(StoreError):
            worker.end_lease()

    def renew_leases(self) -> None:
        """Renew the leases of all workers of this process."""
        for worker in list(self.workers.values()):
            _renew_or_warn(worker)
        engine = self._weak_engine()
        if engine is not None:
            self._after_renewal(engine)

    def detach_workers(self) -> Callable[[], None]:
        """Forget all workers; return the function that stops their heartbeat and gives their leases back."""
        heartbeat, self.heartbeat = self.heartbeat, None
        workers, self.workers, self._by_lease = self.workers, {}, {}
        self.current, self.closes_quietly = None, False

        def end_leases() -> None:
            if heartbeat is not None:
                heartbeat.stop_heartbeat()
            for worker in workers.values():
                with suppress(StoreError):
                    worker.end_lease()

        return end_leases


def _heartbeat_of(engine: weakref.ref[Engine]) -> Callable[[], None]:
    """Return the function that the heartbeat thread of an engine calls; it does not keep the engine alive."""

    def beat() -> None:
        live_engine = engine()
        if live_engine is not None:
            live_engine.leases.renew_leases()

    return beat
