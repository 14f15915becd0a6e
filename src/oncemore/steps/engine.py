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
from oncemore._ids import uuid7
from oncemore.artifacts.store import Artifacts, Shelf
from oncemore.control.notifications import CLOSE_S
from oncemore.control.permits import Controls
from oncemore.errors import RestoredCopy, StoreError, UsageError
from oncemore.limits.budget_step import Pockets
from oncemore.limits.concurrency import Paces
from oncemore.limits.shared_breaker import Circuits
from oncemore.log.encryption import Seal
from oncemore.log.entry_codec import head_of
from oncemore.log.interrupt_shield import Shield
from oncemore.log.record import Worker
from oncemore.maintenance.size_warning import LIMITS, Limits, Watch
from oncemore.policy.canonical_json import normalize_name
from oncemore.retries import deadlines
from oncemore.settings import BEATS, COPIES, INLINE_WAIT_S, LEASE_S, LONGEST_LEASE_S, SHORTEST_LEASE_S
from oncemore.steps.entered_engine import enter_engine, leave_engine
from oncemore.steps.lease import Heart, Identity
from oncemore.steps.recorded_policies import RecordedPolicies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from oncemore.artifacts.backends import Place
    from oncemore.control.notifications import Notices
    from oncemore.control.permits import Elsewhere
    from oncemore.control.quarantine import Quarantine
    from oncemore.control.switches import Approvals, Switches
    from oncemore.limits.cooldowns import Cooldowns
    from oncemore.limits.shared_rate import Meter
    from oncemore.log.encryption import Codec
    from oncemore.log.record import Chore
    from oncemore.log.store import Facts, Store
    from oncemore.maintenance.backup import Backup, Sizes, Verified
    from oncemore.maintenance.erase import Erased
    from oncemore.maintenance.prune import Pruned
    from oncemore.maintenance.size_warning import Passed
    from oncemore.retries.loop import Invoke
    from oncemore.steps.attempt import Attempt
    from oncemore.steps.call_in_progress import Job
    from oncemore.steps.ops import Beat, Seen
    from oncemore.steps.run import Run
    from oncemore.workers.job_run import JobRun

#: Why a store is held that nobody has opened yet.
UNSEEN = "it was not looked at yet"
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
    copies         "hold" a copied or restored store until somebody acknowledges it, or "trust" it
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
        on_event: Callable[[str, Seen | Passed], object] | None = None,
        place: Callable[[], Place] | None = None,
        notices: Notices | None = None,
        codec: Codec | Sequence[Codec] | None = None,
        copies: str = "hold",
        warn: Limits = LIMITS,
        control: Elsewhere | None = None,
    ) -> None:
        if not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
            raise UsageError(
                f"lease_s is {lease_s!r}; it takes {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:g} seconds"
            )
        if not 0 <= inline_wait_s <= LONGEST_LEASE_S:
            raise UsageError(f"inline_wait_s is {inline_wait_s!r}; it takes 0 to {LONGEST_LEASE_S:g} seconds")
        self.url = url
        #: What `oncemore.open` makes the same engine of in another process; None if only this one has it.
        self.opened: tuple[str, dict[str, Any]] | None = None
        self.reopen: Callable[[], Engine] | None = None
        self.lease_s = lease_s
        self.inline_wait_s = inline_wait_s
        self._opens = opens
        self._on_event = on_event
        self.shelf = Shelf(place)
        self.notices = notices
        self.seal = None if codec is None else Seal(codec)
        if copies not in COPIES:
            raise UsageError(f"copies is {copies!r}; the choices are {', '.join(COPIES)}")
        self._copies = copies
        self._watch = Watch(warn)
        self.controls = Controls(control)
        self.begin_anew()
        _engines.add(self)

    def begin_anew(self) -> None:
        """Have nothing yet: at first, and in a forked child."""
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._me: Identity | None = None
        self._mine: dict[str, Identity] = {}
        self._leased: dict[tuple[float, float], Identity] = {}
        self._heart: Heart | None = None
        self._inside = 0
        self._quiet = False
        self.controls.forget()
        if self.notices is not None:
            self.notices.begin_anew()
        self.held = UNSEEN
        self.circuits = Circuits()
        self.paces = Paces(self)
        self.meters: dict[Beat, Meter] = {}
        self.pockets = Pockets()
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
                    with Shield():
                        self._store = opened = self._opens()
                        self.held = opened.house().held() if self._copies == "hold" else ""
                store = self._store
        return store

    @property
    def artifacts(self) -> Artifacts:
        """What steps on this engine have put away."""
        return Artifacts(self, self.shelf)

    @property
    def quarantine(self) -> Quarantine:
        """What waits for a person, and the decisions about it."""
        from oncemore.control.quarantine import Quarantine

        return Quarantine(self)

    @property
    def switch(self) -> Switches:
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
        from oncemore.workers.job_run import jobs_of

        return jobs_of(self, limit)

    def facts(self) -> Facts:
        """Return what the store really gives: which engine, and what survives what."""
        return self.store.facts()

    def now(self) -> float:
        """Return the store's time, in POSIX seconds."""
        return (self._store or self.store).now() + clocks.current.ahead

    # Leases -----------------------------------------------------------------------------------------

    def identity(self, now: float = 0.0) -> Identity:
        """Return the worker that this process is, with a lease that an attempt may begin under.

        now  the store's time, for who has just asked
        """
        me = self._me
        if me is not None and me.fresh(now or self.now()):
            return me
        with self._lock:
            if self._me is None:
                me = Identity(self.store, uuid7(self.now()), self.lease_s, _time_of(self.store))
                with Shield():  # before it is ours: who is interrupted here must not go on without a heart
                    self._heart = self._heart or Heart(self.lease_s / BEATS, _beat_of(self))
                self._me = self._mine[me.name] = me
            elif not self._me.fresh(self.now()):
                self._me.renew()
            return self._me

    def identity_for(self, lease: tuple[float, float], now: float) -> Identity:
        """Return the worker for a policy's lease (length, interval); an engine's own, if set, goes first."""
        if self.lease_s != LEASE_S or lease == (LEASE_S, LEASE_S / BEATS):
            return self.identity(now)
        with self._lock:
            me = self._leased.get(lease)
            if me is None or me.retired:
                me = Identity(self.store, uuid7(now), lease[0], _time_of(self.store)).keep_alive(lease[1])
                self._leased[lease] = self._mine[me.name] = me
            elif not me.fresh(now):
                me.renew()
            return me

    @property
    def worker(self) -> str:
        """The name of the worker that this process is; empty before its first attempt."""
        me = self._me
        return "" if me is None else me.name

    def held_until(self, worker: str, entity: str, fence: int) -> float:
        """Return until when a worker holds an attempt; 0 when it is gone, or no longer at it."""
        mine = self._mine.get(worker)
        if mine is not None:
            return self.now() + self.lease_s if mine.at(entity, fence) else 0.0
        with Shield():
            head = None if self.store.gone(worker) else self.store.head(f"worker/{worker}")
        if head is None:
            return 0.0
        state = head_of(head.head, Worker)
        return state.until if state.state == "ALIVE" else 0.0

    def lives(self, worker: str, lease: Worker) -> bool:
        """Whether a worker may still have runs, as far as can be known."""
        if worker in self._mine:
            return True
        if lease.state != "ALIVE" or lease.until <= self.now():
            return False
        with Shield():
            return not self.store.gone(worker)

    def retire(self, me: Identity, *, quietly: bool = False) -> None:
        """Take no more runs under a worker that could not write down what became of one.

        quietly  without waiting for the store, neither now nor when the engine is closed
        """
        with self._lock:
            me.retired, self._quiet = True, self._quiet or quietly
            for one in self._mine.values():
                one.quiet = self._quiet
            if self._me is me:
                self._me = None

    def bury(self, me: Identity) -> None:
        """End a retired worker once it has nothing under way any more."""
        with self._lock:
            if me.name not in self._mine or not me.finish():
                return
            del self._mine[me.name]
        with suppress(StoreError):  # its lease runs out by itself
            me.end()

    def beat(self) -> None:
        """Renew the leases of this process."""
        for me in list(self._mine.values()):
            try:
                me.renew()
            except Exception as error:  # noqa: BLE001 - the next beat tries again; fences keep us safe
                log.warning("oncemore: the lease of worker %s was not renewed: %s", me.name, error)
        if self.notices is not None:
            self.notices.wake(self)  # what others left untold, or what has become due
        if self._store is not None:
            self._watch.look(self, self._store)

    # Using it ---------------------------------------------------------------------------------------

    def call(self, job: Job, attempt: Attempt, invoke: Invoke) -> Any:
        """Call plain work under its limits."""
        if job.isolate:
            if callable(job.isolate):
                return job.isolate(job, attempt, invoke)  # which keeps its limits itself
            from oncemore.steps import isolation

            return isolation.run(job, attempt, invoke)
        if invoke.limit_s is None:
            return job.work(*job.args, **job.kwargs)
        if attempt.seen.run.effect == "transactional":
            return deadlines.waited_for(attempt.step, invoke, job.call_work)
        from oncemore.retries import timeouts

        return timeouts.run(attempt.step, invoke, job.call_work)

    def tell(self, what: str, seen: Seen | Passed) -> None:
        """Let the listener know; what it raises stays with it."""
        if self._on_event is not None:
            try:
                self._on_event(what, seen)
            except Exception as error:  # noqa: BLE001 - a listener never changes what a call does
                self.grumble(f"on_event failed: {type(error).__name__}")

    # Keeping house ----------------------------------------------------------------------------------

    def check_original(self) -> None:
        """Refuse effects on a copied or restored store that nobody has acknowledged."""
        if self.held:  # or nobody has looked yet, or somebody else has acknowledged it
            self.held = self.store.house().held() if self._copies == "hold" else ""
        if self.held:
            raise RestoredCopy(
                f"{self.url} is a copy: {self.held}. What was done since it was made would be done twice; "
                "look what is in doubt (oncemore restore), then acknowledge it: oncemore restore "
                "--acknowledge, or engine.acknowledge(reason=…)"
            )

    def acknowledge(self, *, reason: str, by: str | None = None) -> None:
        """Let a copied or restored store go on: somebody has looked at what may be done twice."""
        from oncemore.maintenance import backup

        backup.acknowledge(self, reason, by)

    def prune(
        self,
        *,
        older_than: float | None = None,
        step: str | None = None,
        reason: str = "retention",
        by: str | None = None,
        dry_run: bool = False,
        forget_keys_after: float | None = None,
    ) -> Pruned:
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
            return prune.would_prune(self, older_than, step, forget_keys_after)
        return prune.prune(self, older_than, step, reason, by, forget_keys_after)

    def erase(self, run: Run | str, *, reason: str, by: str | None = None) -> Erased:
        """Erase everything that the runs of a key hold, in the files too; the key stays, and is not done
        again.

        run  a `Run`, its key, or the first digits of that
        """
        from oncemore.maintenance import erase

        return erase.erase(self, run, reason, by)

    def backup(
        self,
        path: str | os.PathLike[str],
        *,
        reason: str = "backup",
        by: str | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Backup:
        """Write a checked copy of the log to a new file while others go on; it is held when it is opened."""
        from oncemore.maintenance import backup as house

        return house.backup(self, path, reason, by, progress)

    def sizes(self) -> Sizes:
        """Count what the store holds, by kind, and the room that it takes."""
        from oncemore.maintenance import backup as house

        return house.sizes(self)

    def verify(self) -> Verified:
        """Check every link and head of the log, and say what was pruned and erased, by whom and why."""
        from oncemore.maintenance import backup as house

        return house.verified(self)

    def chores(self) -> tuple[Chore, ...]:
        """Return what housekeeping was done, oldest first: what, when, by whom and why."""
        from oncemore.maintenance import backup as house

        return house.chores_of(self)

    def grumble(self, text: str) -> None:
        """Say in the log what is wrong but must not stop a call; on one line, whatever is in the text."""
        from oncemore._redact import clean

        log.warning("oncemore: %s", clean(text, 2000))

    def __enter__(self) -> Self:
        with self._lock:
            self._inside += 1
            enter_engine(self)
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside = max(0, self._inside - 1)  # a forked child has entered nothing
            last = self._inside == 0
            leave_engine(self, last=last)
        if last:
            self.close()

    def close(self) -> None:
        """Give leases back and let go of the store; what was acknowledged stays."""
        if self.notices is not None:
            self.notices.close(0.0 if self._quiet else CLOSE_S)
        with self._lock:
            heart, self._heart = self._heart, None
            mine, self._mine, self._leased = self._mine, {}, {}
            store, self._store, self.held = self._store, None, UNSEEN
            quiet, self._quiet = self._quiet, False
            self._me = None
            self.circuits = Circuits()
        self.controls.close()
        if heart is not None:
            heart.stop()
        for me in mine.values():
            with suppress(StoreError):
                me.end()
        if store is not None and not quiet:
            with Shield():
                store.close()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _time_of(store: Store) -> Callable[[], float]:
    """Return the time of a store itself: to ask its engine, when that is being closed, would open another."""
    return lambda: store.now() + clocks.current.ahead


def _beat_of(engine: Engine) -> Callable[[], None]:
    """Return the heartbeat of an engine that it does not keep alive."""
    known = weakref.ref(engine)

    def beat() -> None:
        alive = known()
        if alive is not None:
            alive.beat()

    return beat


def _after_fork() -> None:
    for engine in list(_engines):
        engine.begin_anew()


def _at_exit() -> None:
    """A program that ends gives its leases back, whether it has closed its engines or not."""
    for engine in list(_engines):
        engine.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
