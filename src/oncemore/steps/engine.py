"""An engine: a store, the leases of this process on it, and the settings that calls share.

An engine opens its store at first use and releases it in `close()`; a later use opens it again. `with
engine:` makes it the engine of all steps called inside; the last such block to end closes it. A forked child
starts without the leases of its parent.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._listeners import publish_event
from oncemore._platform import run_after_fork
from oncemore.artifacts.store import Artifacts, ArtifactStore
from oncemore.config import (
    INLINE_WAIT_S,
    LEASE_S,
    LONGEST_LEASE_S,
    SHORTEST_LEASE_S,
)
from oncemore.control.notifications import CLOSE_TIMEOUT_S
from oncemore.control.permits import PermissionCheck
from oncemore.errors import UsageError, log_warning
from oncemore.limits.budget_step import UnsavedEarnings
from oncemore.limits.concurrency import ConcurrencyLimits
from oncemore.limits.shared_breaker import BreakerCache
from oncemore.log.encryption import BodyCipher
from oncemore.log.group_commit import InterruptShield
from oncemore.maintenance.size_warning import DEFAULT_LIMITS, SizeLimits, SizeMonitor
from oncemore.policy.canonical_json import normalize_name
from oncemore.steps.entered_engine import enter_engine, leave_engine
from oncemore.steps.lease import WorkerLeases
from oncemore.steps.recorded_policies import RecordedPolicies
from oncemore.steps.restored_copy import NOT_CHECKED, RestoredCopyCheck
from oncemore.telemetry.meter import DEFAULT_SETTINGS, make_telemetry

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from typing import Self

    from oncemore.artifacts.backends import ArtifactBackend
    from oncemore.control.approvals import Approvals
    from oncemore.control.notifications import Notifier
    from oncemore.control.permits import ExternalSwitches
    from oncemore.control.quarantine import Quarantine
    from oncemore.control.switches import Switches
    from oncemore.events import ProcessEvent
    from oncemore.governance.datasets import Datasets
    from oncemore.governance.escalations import Escalations
    from oncemore.governance.roles import Roles
    from oncemore.limits.cooldowns import Cooldowns
    from oncemore.limits.shared_rate import RateLimiter
    from oncemore.log.encryption import Codec
    from oncemore.log.record import MaintenanceRecord
    from oncemore.log.store import Store, StoreFacts
    from oncemore.maintenance.backup import BackupReport, StoreSizes
    from oncemore.maintenance.erase import EraseReport
    from oncemore.maintenance.prune import PruneReport
    from oncemore.maintenance.verify import VerificationReport
    from oncemore.steps.plan import StepRate
    from oncemore.steps.run import Run
    from oncemore.telemetry.meter import TelemetrySettings
    from oncemore.workers.job_run import JobRun

    Listener = Callable[[ProcessEvent], object]

log = logging.getLogger("oncemore")


class EventListener:
    """Calls the engine's `on_event` function and the listeners of the process; their errors are logged."""

    def __init__(self, on_event: Listener | None) -> None:
        self._on_event = on_event

    def notify(self, event: ProcessEvent) -> None:
        """Call the functions with an event."""
        publish_event(event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception as error:  # noqa: BLE001
                log_warning(f"on_event failed: {type(error).__name__}")


class Engine:
    """The engine that durable steps run on. `oncemore.open()` creates one.

    url            the address of the store
    lease_s        how long this process holds its runs after its last heartbeat
    inline_wait_s  the longest wait that a call sits out; a call with a longer one is deferred
    on_event       called with each event of interest (`config_drift`, `store_size`)
    place          opens the backend of artifacts; None if there is none
    notices        sends notifications about runs that are held or have failed; None if there are none
    codec          encrypts the bodies of entries; of several, the first one encrypts and all decrypt
    restored_copy  "hold" a copied or restored store until an operator acknowledges it, or "trust" it
    warn           the sizes of the store that cause a warning; see `measure_sizes`
    control        a second source of switches and approvals; None if they are in the store only
    telemetry      how the energy of attempts is measured, and the sources of signals
    """

    def __init__(
        self,
        opens: Callable[[], Store],
        url: str,
        *,
        lease_s: float = LEASE_S,
        inline_wait_s: float = INLINE_WAIT_S,
        on_event: Listener | None = None,
        place: Callable[[], ArtifactBackend] | None = None,
        notices: Notifier | None = None,
        codec: Codec | Sequence[Codec] | None = None,
        restored_copy: str = "hold",
        warn: SizeLimits = DEFAULT_LIMITS,
        control: ExternalSwitches | None = None,
        telemetry: TelemetrySettings = DEFAULT_SETTINGS,
    ) -> None:
        if not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
            raise UsageError(
                f"lease_s is {lease_s!r}; it takes {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:g} seconds"
            )
        if not 0 <= inline_wait_s <= LONGEST_LEASE_S:
            raise UsageError(f"inline_wait_s is {inline_wait_s!r}; it takes 0 to {LONGEST_LEASE_S:g} seconds")
        self.url = url
        #: The arguments of `oncemore.open` that make the same engine in another process; None if that is
        #: not possible.
        self.open_arguments: tuple[str, dict[str, Any]] | None = None
        self.reopen: Callable[[], Engine] | None = None
        self.lease_s = lease_s
        self.inline_wait_s = inline_wait_s
        self._open_store = opens
        self.listener = EventListener(on_event)
        self.artifact_store = ArtifactStore(place)
        self.notifier = notices
        self.cipher = None if codec is None else BodyCipher(codec)
        self.copy_check = RestoredCopyCheck(self, restored_copy)
        self.size_monitor = SizeMonitor(warn)
        self.permissions = PermissionCheck(control)
        self.telemetry = telemetry
        self.signals, self.meter = make_telemetry(telemetry, self)
        self.leases = WorkerLeases(self, lease_s, _check_after_renewal)
        self._start_empty()
        _engines.add(self)

    def _start_empty(self) -> None:
        self._lock = threading.RLock()
        #: The store while it is open; `store` opens it.
        self.opened_store: Store | None = None
        self._entered = 0
        self.leases.reset(self._lock)
        self.permissions.drop_cached()
        if self.notifier is not None:
            self.notifier.reset_after_fork()
        if self.signals is not None:
            self.signals.reset_after_fork()
        self.copy_check.notice = NOT_CHECKED
        self.breakers = BreakerCache()
        self.concurrency_limits = ConcurrencyLimits(self)
        self.rate_limiters: dict[StepRate, RateLimiter] = {}
        self.unsaved_earnings = UnsavedEarnings()
        self.policies = RecordedPolicies()

    def __repr__(self) -> str:
        return f"<oncemore.Engine {self.url}>"

    @property
    def store(self) -> Store:
        """The store, opened at first use."""
        store = self.opened_store
        if store is None:
            with self._lock:
                if self.opened_store is None:
                    with InterruptShield():
                        self.opened_store = opened = self._open_store()
                        self.copy_check.read_notice(opened)
                store = self.opened_store
        return store

    @property
    def worker(self) -> str:
        """The name of the worker of this process; empty before its first attempt."""
        worker = self.leases.current
        return "" if worker is None else worker.name

    def now(self) -> float:
        """Return the store's time, in POSIX seconds."""
        return (self.opened_store or self.store).now() + clocks.current.offset

    # Operators --------------------------------------------------------------------------------------

    @property
    def artifacts(self) -> Artifacts:
        """The artifacts of the steps on this engine."""
        return Artifacts(self, self.artifact_store)

    @property
    def quarantine(self) -> Quarantine:
        """The runs that wait for an operator, and the decisions about them."""
        from oncemore.control.quarantine import Quarantine

        return Quarantine(self)

    @property
    def switches(self) -> Switches:
        """The switches that stop attempts before they begin."""
        from oncemore.control.switches import Switches

        return Switches(self)

    @property
    def approvals(self) -> Approvals:
        """The approvals that were given, and the runs that wait for one."""
        from oncemore.control.approvals import Approvals

        return Approvals(self)

    @property
    def datasets(self) -> Datasets:
        """The registered datasets, which the gate asks about before every attempt."""
        from oncemore.governance.datasets import Datasets

        return Datasets(self)

    @property
    def escalations(self) -> Escalations:
        """The tickets and escalations that wait for a person, and their acknowledgements."""
        from oncemore.governance.escalations import Escalations

        return Escalations(self)

    @property
    def roles(self) -> Roles:
        """The users that may make decisions about this store."""
        from oncemore.governance.roles import Roles

        return Roles(self)

    @property
    def cooldowns(self) -> Cooldowns:
        """The resources that are cooling down or held."""
        from oncemore.limits.cooldowns import Cooldowns

        return Cooldowns(self)

    def jobs(self, limit: int = 100) -> tuple[JobRun[Any], ...]:
        """Return the jobs (`step.map`) in the log, running ones first."""
        from oncemore.workers.job_run import list_jobs

        return list_jobs(self, limit)

    # Maintenance ------------------------------------------------------------------------------------

    def describe_store(self) -> StoreFacts:
        """Return the engine of the store, its address and its durability."""
        return self.store.open_maintenance().describe_store()

    def acknowledge(self, *, reason: str, by: str | None = None) -> None:
        """Accept a copied or restored store, after checking the work that may be done twice."""
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
        """Delete arguments, results and errors of finished runs after their retention; keep their keys.

        older_than         seconds since the end of a run; without it, only runs of steps with `retain_for=`
        step               only runs of this step
        dry_run            only return a report of the runs that would be deleted
        forget_keys_after  also delete the keys of runs that were pruned this many seconds ago. Such a key is
                           unknown again: **a call of it does the work again**
        """
        from oncemore.maintenance import prune

        step = None if step is None else normalize_name(step)
        if dry_run:
            return prune.preview_prune(self, older_than, step, forget_keys_after)
        return prune.prune_runs(self, older_than, step, reason, by, forget_keys_after)

    def erase(self, run: Run[Any] | str, *, reason: str, by: str | None = None) -> EraseReport:
        """Erase all data of a key's runs, also from the files; keep the key, so that the work is not
        repeated.

        run  a `Run`, its key, or the first digits of the key
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
        """Write a verified copy of the log to a new file while work continues; an opened copy is held."""
        from oncemore.maintenance.backup import write_backup

        return write_backup(self, path, reason, by, progress)

    def measure_sizes(self) -> StoreSizes:
        """Return the number of entities by kind, and the disk space of the store."""
        from oncemore.maintenance import backup

        return backup.measure_sizes(self)

    def verify(self) -> VerificationReport:
        """Check every hash link and head of the log; list pruned and erased runs with actor and reason."""
        from oncemore.maintenance import verify

        return verify.verify_log(self)

    def maintenance_tasks(self) -> tuple[MaintenanceRecord, ...]:
        """Return the maintenance tasks in the log, oldest first, with their actors and reasons."""
        from oncemore.maintenance import backup

        return backup.list_task_records(self)

    # Use --------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with self._lock:
            self._entered += 1
            enter_engine(self)
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            # A forked child leaves blocks that its parent has entered.
            self._entered = max(0, self._entered - 1)
            last = self._entered == 0
            leave_engine(self, last=last)
        if last:
            self.close()

    def close(self) -> None:
        """Give all leases back and release the store; acknowledged entries stay stored."""
        quietly = self.leases.closes_quietly
        if self.notifier is not None:
            self.notifier.close(0.0 if quietly else CLOSE_TIMEOUT_S)
        with self._lock:
            quietly = self.leases.closes_quietly
            store, self.opened_store, self.copy_check.notice = self.opened_store, None, NOT_CHECKED
            end_leases = self.leases.detach_workers()
            self.breakers = BreakerCache()
        # Outside of the lock: giving the leases back waits for the store.
        self.permissions.close()
        end_leases()
        if store is not None and not quietly:
            with InterruptShield():
                store.close()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _check_after_renewal(engine: Engine) -> None:
    """Send notifications that are due and check the size of the store, after each heartbeat."""
    if engine.notifier is not None:
        engine.notifier.wake_thread(engine)
    # Not `engine.store`: a heartbeat must not open a store that was closed.
    store = engine.opened_store
    if store is not None:
        engine.size_monitor.check_sizes(engine, store)


def _reset_engines_after_fork() -> None:
    for engine in list(_engines):
        engine._start_empty()  # noqa: SLF001


def _close_engines_at_exit() -> None:
    """Give leases back at the end of a program that has not closed its engines."""
    for engine in list(_engines):
        # Only daemon threads are left now. They end with the process, and their attempts with them.
        if engine.opened_store is not None and not engine.leases.closes_quietly:
            from oncemore.steps.release import release_attempts

            release_attempts(engine)
        engine.close()


run_after_fork(_reset_engines_after_fork)
atexit.register(_close_engines_at_exit)
