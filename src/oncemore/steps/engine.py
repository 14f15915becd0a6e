"""An engine: a store, this process's leases on it, and the settings that calls share.

An engine opens its store at first use and lets go of it in `close()`; used again, it opens again. `with
engine:` makes it the engine of all steps called inside, and the last such block to end closes it. A forked
child begins anew: nothing of the parent's leases is its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._ids import new_uuid7
from oncemore.artifacts.store import Artifacts, ArtifactStore
from oncemore.control.notifications import CLOSE_TIMEOUT_S
from oncemore.control.permits import PermissionCheck
from oncemore.errors import RestoredCopy, StoreError, UsageError
from oncemore.limits.budget_step import UnsavedEarnings
from oncemore.limits.concurrency import ConcurrencyLimits
from oncemore.limits.shared_breaker import BreakerCache
from oncemore.log.encryption import BodyCipher
from oncemore.log.entry_codec import decode_head
from oncemore.log.interrupt_shield import InterruptShield
from oncemore.log.record import WorkerRecord
from oncemore.maintenance.size_warning import DEFAULT_LIMITS, SizeLimits, SizeMonitor
from oncemore.policy.canonical_json import normalize_name
from oncemore.retries import deadlines
from oncemore.settings import (
    BEATS,
    INLINE_WAIT_S,
    LEASE_S,
    LONGEST_LEASE_S,
    RESTORED_COPY_CHOICES,
    SHORTEST_LEASE_S,
)
from oncemore.steps.entered_engine import enter_engine, leave_engine
from oncemore.steps.lease import HeartbeatThread, WorkerIdentity
from oncemore.steps.recorded_policies import RecordedPolicies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from oncemore.artifacts.backends import ArtifactBackend
    from oncemore.control.notifications import Notifier
    from oncemore.control.permits import ExternalSwitches
    from oncemore.control.quarantine import Quarantine
    from oncemore.control.switches import Approvals, Switches
    from oncemore.limits.cooldowns import Cooldowns
    from oncemore.limits.shared_rate import RateLimiter
    from oncemore.log.encryption import Codec
    from oncemore.log.record import MaintenanceRecord
    from oncemore.log.store import Store, StoreFacts
    from oncemore.maintenance.backup import BackupReport, StoreSizes
    from oncemore.maintenance.erase import EraseReport
    from oncemore.maintenance.prune import PruneReport
    from oncemore.maintenance.size_warning import SizeExceeded
    from oncemore.maintenance.verify import VerificationReport
    from oncemore.retries.loop import CallFunction
    from oncemore.steps.attempt import Attempt
    from oncemore.steps.call_in_progress import CallInProgress
    from oncemore.steps.ops import LoadedHead, StepRate
    from oncemore.steps.run import Run
    from oncemore.workers.job_run import JobRun

#: Why a store is held that nobody has opened yet.
NOT_CHECKED = "it was not looked at yet"
log = logging.getLogger("oncemore")


class Engine:
    """Where durable steps run.

    url            the store's address
    lease_s        how long this process keeps its runs after its last sign of life
    inline_wait_s  the longest wait that a call sits out; a longer one is parked
    on_event       called with each event that is worth knowing (`config_drift`, `store_size`)
    place          opens where the bytes of artifacts go; None if there is nowhere
    notices        who is told of what is held or has failed; None if nobody is
    codec          what seals the bodies of entries, or several of which the first one writes
    restored_copy         "hold" a copied or restored store until somebody acknowledges it, or "trust" it
    warn           at which sizes to say that the store grows large; see `engine.sizes`
    control        where else people throw switches and approve work; None if they do so in the store only
    """

    def __init__(
        self,
        opens: Callable[[], Store],
        url: str,
        *,
        lease_s: float = LEASE_S,
        inline_wait_s: float = INLINE_WAIT_S,
        on_event: Callable[[str, LoadedHead | SizeExceeded], object] | None = None,
        place: Callable[[], ArtifactBackend] | None = None,
        notices: Notifier | None = None,
        codec: Codec | Sequence[Codec] | None = None,
        restored_copy: str = "hold",
        warn: SizeLimits = DEFAULT_LIMITS,
        control: ExternalSwitches | None = None,
    ) -> None:
        if not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
            raise UsageError(
                f"lease_s is {lease_s!r}; it takes {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:g} seconds"
            )
        if not 0 <= inline_wait_s <= LONGEST_LEASE_S:
            raise UsageError(f"inline_wait_s is {inline_wait_s!r}; it takes 0 to {LONGEST_LEASE_S:g} seconds")
        self.url = url
        #: What `oncemore.open` makes the same engine of in another process; None if only this one has it.
        self.open_arguments: tuple[str, dict[str, Any]] | None = None
        self.reopen: Callable[[], Engine] | None = None
        self.lease_s = lease_s
        self.inline_wait_s = inline_wait_s
        self._open_store = opens
        self._on_event = on_event
        self.artifact_store = ArtifactStore(place)
        self.notifier = notices
        self.cipher = None if codec is None else BodyCipher(codec)
        if restored_copy not in RESTORED_COPY_CHOICES:
            raise UsageError(
                f"restored_copy is {restored_copy!r}; the choices are {', '.join(RESTORED_COPY_CHOICES)}"
            )
        self._restored_copy = restored_copy
        self._size_monitor = SizeMonitor(warn)
        self.permissions = PermissionCheck(control)
        self.reset_after_fork()
        _engines.add(self)

    def reset_after_fork(self) -> None:
        """Have nothing yet: at first, and in a forked child."""
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._identity: WorkerIdentity | None = None
        self._identities: dict[str, WorkerIdentity] = {}
        self._leased: dict[tuple[float, float], WorkerIdentity] = {}
        self._heartbeat: HeartbeatThread | None = None
        self._entered = 0
        self._skip_store_on_close = False
        self.permissions.drop_cached()
        if self.notifier is not None:
            self.notifier.reset_after_fork()
        self.copy_notice = NOT_CHECKED
        self.breakers = BreakerCache()
        self.concurrency_limits = ConcurrencyLimits(self)
        self.rate_limiters: dict[StepRate, RateLimiter] = {}
        self.unsaved_earnings = UnsavedEarnings()
        self.policies = RecordedPolicies()

    def __repr__(self) -> str:
        return f"<oncemore.Engine {self.url}>"

    @property
    def store(self) -> Store:
        """The store, opened when it is first needed."""
        store = self._store
        if store is None:
            with self._lock:
                if self._store is None:
                    with InterruptShield():
                        self._store = opened = self._open_store()
                        self.copy_notice = (
                            opened.open_maintenance().copy_notice() if self._restored_copy == "hold" else ""
                        )
                store = self._store
        return store

    @property
    def artifacts(self) -> Artifacts:
        """What steps on this engine have put away."""
        return Artifacts(self, self.artifact_store)

    @property
    def quarantine(self) -> Quarantine:
        """What waits for a person, and the decisions about it."""
        from oncemore.control.quarantine import Quarantine

        return Quarantine(self)

    @property
    def switches(self) -> Switches:
        """The switches that stop work before it begins."""
        from oncemore.control.switches import Switches

        return Switches(self)

    @property
    def approvals(self) -> Approvals:
        """What waits for somebody's approval, and what was approved."""
        from oncemore.control.switches import Approvals

        return Approvals(self)

    @property
    def cooldowns(self) -> Cooldowns:
        """What is left alone for a while, or until a person lets it go."""
        from oncemore.limits.cooldowns import Cooldowns

        return Cooldowns(self)

    def jobs(self, limit: int = 100) -> tuple[JobRun, ...]:
        """Return the jobs (`step.map`) that the log knows, those under way first."""
        from oncemore.workers.job_run import list_jobs

        return list_jobs(self, limit)

    def describe_store(self) -> StoreFacts:
        """Return what the store really gives: which engine, and what survives what."""
        return self.store.describe_store()

    def now(self) -> float:
        """Return the store's time, in POSIX seconds."""
        return (self._store or self.store).now() + clocks.current.offset

    # Leases -----------------------------------------------------------------------------------------

    def current_identity(self, now: float = 0.0) -> WorkerIdentity:
        """Return the worker that this process is, with a lease that an attempt may begin under.

        now  the store's time, for who has just asked
        """
        me = self._identity
        if me is not None and me.is_fresh(now or self.now()):
            return me
        with self._lock:
            if self._identity is None:
                me = WorkerIdentity(self.store, new_uuid7(self.now()), self.lease_s, _store_clock(self.store))
                with (
                    InterruptShield()
                ):  # before it is ours: who is interrupted here must not go on without a heart
                    self._heartbeat = self._heartbeat or HeartbeatThread(
                        self.lease_s / BEATS, _weak_heartbeat(self)
                    )
                self._identity = self._identities[me.name] = me
            elif not self._identity.is_fresh(self.now()):
                self._identity.renew_lease()
            return self._identity

    def identity_for(self, lease: tuple[float, float], now: float) -> WorkerIdentity:
        """Return the worker for a policy's lease (length, interval); an engine's own, if set, goes first."""
        if self.lease_s != LEASE_S or lease == (LEASE_S, LEASE_S / BEATS):
            return self.current_identity(now)
        with self._lock:
            me = self._leased.get(lease)
            if me is None or me.retired:
                me = WorkerIdentity(
                    self.store, new_uuid7(now), lease[0], _store_clock(self.store)
                ).keep_alive(lease[1])
                self._leased[lease] = self._identities[me.name] = me
            elif not me.is_fresh(now):
                me.renew_lease()
            return me

    @property
    def worker(self) -> str:
        """The name of the worker that this process is; empty before its first attempt."""
        me = self._identity
        return "" if me is None else me.name

    def lease_until(self, worker: str, entity: str, fence: int) -> float:
        """Return until when a worker holds an attempt; 0 when it is gone, or no longer at it."""
        mine = self._identities.get(worker)
        if mine is not None:
            return self.now() + self.lease_s if mine.has_attempt(entity, fence) else 0.0
        with InterruptShield():
            head = None if self.store.is_worker_gone(worker) else self.store.load_head(f"worker/{worker}")
        if head is None:
            return 0.0
        state = decode_head(head.head, WorkerRecord)
        return state.lease_until if state.state == "ALIVE" else 0.0

    def is_worker_alive(self, worker: str, lease: WorkerRecord) -> bool:
        """Whether a worker may still have runs, as far as can be known."""
        if worker in self._identities:
            return True
        if lease.state != "ALIVE" or lease.lease_until <= self.now():
            return False
        with InterruptShield():
            return not self.store.is_worker_gone(worker)

    def retire_worker(self, me: WorkerIdentity, *, quietly: bool = False) -> None:
        """Take no more runs under a worker that could not write down what became of one.

        quietly  without waiting for the store, neither now nor when the engine is closed
        """
        with self._lock:
            me.retired, self._skip_store_on_close = True, self._skip_store_on_close or quietly
            for one in self._identities.values():
                one.quiet = self._skip_store_on_close
            if self._identity is me:
                self._identity = None

    def close_retired_worker(self, me: WorkerIdentity) -> None:
        """End a retired worker once it has nothing under way any more."""
        with self._lock:
            if me.name not in self._identities or not me.finish_if_idle():
                return
            del self._identities[me.name]
        with suppress(StoreError):  # its lease runs out by itself
            me.end_lease()

    def renew_leases(self) -> None:
        """Renew the leases of this process."""
        for me in list(self._identities.values()):
            try:
                me.renew_lease()
            except Exception as error:  # noqa: BLE001 - the next beat tries again; fences keep us safe
                log.warning("oncemore: the lease of worker %s was not renewed: %s", me.name, error)
        if self.notifier is not None:
            self.notifier.wake_thread(self)  # what others left untold, or what has become due
        if self._store is not None:
            self._size_monitor.check_sizes(self, self._store)

    # Using it ---------------------------------------------------------------------------------------

    def call_function(self, job: CallInProgress, attempt: Attempt, invoke: CallFunction) -> Any:
        """Call plain work under its limits."""
        if job.isolate:
            if callable(job.isolate):
                return job.isolate(job, attempt, invoke)  # which keeps its limits itself
            from oncemore.steps import isolation

            return isolation.run_in_process(job, attempt, invoke)
        if invoke.limit_s is None:
            return job.function(*job.args, **job.kwargs)
        if attempt.seen.record.effect == "transactional":
            return deadlines.run_to_end(attempt.step, invoke, job.call_function)
        from oncemore.retries import timeouts

        return timeouts.run_in_helper(attempt.step, invoke, job.call_function)

    def notify_listener(self, what: str, seen: LoadedHead | SizeExceeded) -> None:
        """Let the listener know; what it raises stays with it."""
        if self._on_event is not None:
            try:
                self._on_event(what, seen)
            except Exception as error:  # noqa: BLE001 - a listener never changes what a call does
                self.log_warning(f"on_event failed: {type(error).__name__}")

    # Keeping house ----------------------------------------------------------------------------------

    def check_original(self) -> None:
        """Refuse effects on a copied or restored store that nobody has acknowledged."""
        if self.copy_notice:  # or nobody has looked yet, or somebody else has acknowledged it
            self.copy_notice = (
                self.store.open_maintenance().copy_notice() if self._restored_copy == "hold" else ""
            )
        if self.copy_notice:
            raise RestoredCopy(
                f"{self.url} is a copy: {self.copy_notice}. What was done since it was made would be done "
                "twice; "
                "look what is in doubt (oncemore restore), then acknowledge it: oncemore restore "
                "--acknowledge, or engine.acknowledge(reason=…)"
            )

    def acknowledge(self, *, reason: str, by: str | None = None) -> None:
        """Let a copied or restored store go on: somebody has looked at what may be done twice."""
        from oncemore.maintenance import backup

        backup.acknowledge_copy(self, reason, by)

    def prune(
        self,
        *,
        older_than: float | None = None,
        step: str | None = None,
        reason: str = "retention",
        by: str | None = None,
        dry_run: bool = False,
        forget_keys_after: float | None = None,
    ) -> PruneReport:
        """Forget arguments, results and errors of runs that are over, and whose time is up.

        older_than         seconds since a run ended; without it, only runs whose step says `retain_for=`
        step               only runs of this step
        dry_run            only say what would be done
        forget_keys_after  also remove what is left of runs that were pruned this many seconds ago. Such a key
                           is as if it had never been: **a call of it does the work again**
        """
        from oncemore.maintenance import prune

        step = None if step is None else normalize_name(step)
        if dry_run:
            return prune.preview_prune(self, older_than, step, forget_keys_after)
        return prune.prune_runs(self, older_than, step, reason, by, forget_keys_after)

    def erase(self, run: Run | str, *, reason: str, by: str | None = None) -> EraseReport:
        """Erase everything that the runs of a key hold, in the files too; the key stays, and is not done
        again.

        run  a `Run`, its key, or the first digits of that
        """
        from oncemore.maintenance import erase

        return erase.erase_run(self, run, reason, by)

    def backup(
        self,
        path: str | os.PathLike[str],
        *,
        reason: str = "backup",
        by: str | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> BackupReport:
        """Write a checked copy of the log to a new file while others go on; it is held when it is opened."""
        from oncemore.maintenance import backup as house

        return house.write_backup(self, path, reason, by, progress)

    def measure_sizes(self) -> StoreSizes:
        """Count what the store holds, by kind, and the room that it takes."""
        from oncemore.maintenance import backup as house

        return house.measure_sizes(self)

    def verify(self) -> VerificationReport:
        """Check every link and head of the log, and say what was pruned and erased, by whom and why."""
        from oncemore.maintenance import verify

        return verify.verify_log(self)

    def maintenance_tasks(self) -> tuple[MaintenanceRecord, ...]:
        """Return what housekeeping was done, oldest first: what, when, by whom and why."""
        from oncemore.maintenance import backup as house

        return house.list_task_records(self)

    def log_warning(self, text: str) -> None:
        """Say in the log what is wrong but must not stop a call; on one line, whatever is in the text."""
        from oncemore._redact import clean_text

        log.warning("oncemore: %s", clean_text(text, 2000))

    def __enter__(self) -> Self:
        with self._lock:
            self._entered += 1
            enter_engine(self)
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._entered = max(0, self._entered - 1)  # a forked child has entered nothing
            last = self._entered == 0
            leave_engine(self, last=last)
        if last:
            self.close()

    def close(self) -> None:
        """Give leases back and let go of the store; what was acknowledged stays."""
        if self.notifier is not None:
            self.notifier.close(0.0 if self._skip_store_on_close else CLOSE_TIMEOUT_S)
        with self._lock:
            heart, self._heartbeat = self._heartbeat, None
            mine, self._identities, self._leased = self._identities, {}, {}
            store, self._store, self.copy_notice = self._store, None, NOT_CHECKED
            quiet, self._skip_store_on_close = self._skip_store_on_close, False
            self._identity = None
            self.breakers = BreakerCache()
        self.permissions.close()
        if heart is not None:
            heart.stop_heartbeat()
        for me in mine.values():
            with suppress(StoreError):
                me.end_lease()
        if store is not None and not quiet:
            with InterruptShield():
                store.close()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _store_clock(store: Store) -> Callable[[], float]:
    """Return the time of a store itself: to ask its engine, when that is being closed, would open another."""
    return lambda: store.now() + clocks.current.offset


def _weak_heartbeat(engine: Engine) -> Callable[[], None]:
    """Return the heartbeat of an engine that it does not keep alive."""
    known = weakref.ref(engine)

    def beat() -> None:
        alive = known()
        if alive is not None:
            alive.renew_leases()

    return beat


def _reset_engines_after_fork() -> None:
    for engine in list(_engines):
        engine.reset_after_fork()


def _close_engines_at_exit() -> None:
    """A program that ends gives its leases back, whether it has closed its engines or not."""
    for engine in list(_engines):
        engine.close()


os.register_at_fork(after_in_child=_reset_engines_after_fork)
atexit.register(_close_engines_at_exit)
