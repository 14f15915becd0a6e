"""Leases: a process's time-bounded right to the runs it has begun.

A process is one *worker* per engine: an entity of its own, to which a heartbeat appends (every third of a
lease) and which no run is touched by. It is another one for runs under a policy with a `lease` of its own. A
run's INTENT names its worker; the run is free for others when that worker's lease has passed, or at once when
the worker is provably gone.

A worker that can no longer write down what became of one of its runs must not keep it for ever: it is
*retired*. New runs go to a new worker; the old one is kept alive until its other runs are over.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING

from oncemore._ids import new_nonce
from oncemore.errors import StoreError
from oncemore.log.entry_codec import decode_head, encode_entry
from oncemore.log.interrupt_shield import InterruptShield
from oncemore.log.record import NOWHERE, RecordChange, WorkerRecord
from oncemore.log.store import Batch, EntryWrite, HeadIndex, Stored
from oncemore.settings import BEATS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from oncemore.log.store import Store, WorkerLock

log = logging.getLogger("oncemore")
#: Stands for attempts that are about to begin.
RESERVED = ("", 0)


class WorkerIdentity:
    """A worker of this process: its lease, and which attempts it has under way."""

    def __init__(self, store: Store, name: str, lease_s: float, now: Callable[[], float]) -> None:
        self.name = name
        self.entity = f"worker/{name}"
        self.retired = False
        self.quiet = False  # it leaves without a word: the store may not answer
        self._ended = False
        self._heart: HeartbeatThread | None = None
        self._under_way: dict[tuple[str, int], int] = {}
        self._counting = threading.Lock()
        self._over = False
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
        """When the lease ends, by the store's time, unless it is renewed."""
        return self._state.lease_until if self._state else 0.0

    def is_fresh(self, now: float) -> bool:
        """Whether most of the lease is left: a new attempt may begin under it."""
        state = self._state
        return state is not None and state.lease_until - now > self._lease_s / BEATS

    def has_attempt(self, entity: str, fence: int) -> bool:
        """Whether an attempt is under way here."""
        return (entity, fence) in self._under_way

    def reserve_slot(self) -> bool:
        """Be kept for an attempt that is about to begin; False if this worker is over already."""
        with self._counting:
            if self._over or self.retired:
                return False
            self._under_way[RESERVED] = self._under_way.get(RESERVED, 0) + 1
            return True

    def finish_if_idle(self) -> bool:
        """Be over, unless something is under way or about to be."""
        with self._counting:
            self._over = self._over or not self._under_way
            return self._over

    def add_attempt(self, attempt: tuple[str, int], *, reserved: bool = False) -> None:
        """Have an attempt under way, or try to: several callers may try the same, and one will get it.

        reserved  whether this worker was kept for it (`reserve`), which it need not be any longer
        """
        with self._counting:
            self._under_way[attempt] = self._under_way.get(attempt, 0) + 1
            if reserved:
                self._remove_attempt(RESERVED)

    def remove_attempt(self, attempt: tuple[str, int]) -> None:
        """Be done with an attempt, or have failed to get it; whoever else has it still has it."""
        with self._counting:
            self._remove_attempt(attempt)

    def _remove_attempt(self, attempt: tuple[str, int]) -> None:
        left = self._under_way[attempt] - 1
        if left:
            self._under_way[attempt] = left  # never absent in between: others look without the lock
        else:
            del self._under_way[attempt]

    def renew_lease(self) -> None:
        """Write a new end of the lease; what it was before does not matter, runs have fences.

        One that was given back stays so: a heartbeat may come while its engine is being closed.
        """
        with self._lock:
            if self._ended:
                return
            now = self._now()
            began = self._state.started_at if self._state else now
            self._append_state(
                WorkerRecord(
                    "ALIVE", now + self._lease_s, self._lease_s, os.uname().nodename, os.getpid(), began
                )
            )

    def keep_alive(self, interval_s: float) -> Self:
        """Renew the lease at an interval of its own until it ends, besides what the engine does."""
        known = weakref.ref(self)

        def beat() -> None:
            if (me := known()) is not None:
                try:
                    me.renew_lease()
                except Exception as error:  # noqa: BLE001 - the next beat tries again; fences keep us safe
                    log.warning("oncemore: the lease of worker %s was not renewed: %s", me.name, error)

        self._heart = HeartbeatThread(interval_s, beat)
        return self

    def end_lease(self) -> None:
        """Give the lease back: whatever it still had is free at once."""
        if self._heart is not None:
            self._heart.stop_heartbeat()
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
        own = new_nonce()
        for _ in range(2):
            made = encode_entry(change, self.entity, self._version + 1, self._hash, self._now(), own)
            # One that ends with nothing left needs nobody to look for what it had.
            clean = state.state == "ENDED" and not self.retired and not self._under_way
            by = HeadIndex("worker", state.state, None if clean else state.lease_until, "", self.name)
            write = EntryWrite(self.entity, self._version, *made, by)
            with InterruptShield():
                answer = self._store.append(Batch((write,), {}, sync=False)).wait()
            if isinstance(answer, Stored) or (answer.head is not None and answer.head.hash == made.hash):
                self._version, self._hash, self._state = self._version + 1, made.hash, state
                return
            if answer.head is None:  # it was taken for long gone, and its record was removed
                self._version, self._hash, self._state = 0, NOWHERE, None
            else:  # an earlier renewal was stored though its answer was lost
                self._version, self._hash = answer.head.version, answer.head.hash
                self._state = decode_head(answer.head.head, WorkerRecord)
            change = RecordChange(("LEASE",), self._state, state)
        raise StoreError(f"the lease of worker {self.name} is written by somebody else")


class HeartbeatThread:
    """Renews leases from a thread of its own, which ends with the process."""

    def __init__(self, interval_s: float, beat: Callable[[], None]) -> None:
        self._stop = threading.Event()
        self._interval_s = interval_s
        self._beat = beat
        threading.Thread(target=self._run_heartbeat, name="oncemore-heartbeat", daemon=True).start()

    def _run_heartbeat(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._beat()

    def stop_heartbeat(self) -> None:
        """Beat no more."""
        self._stop.set()
