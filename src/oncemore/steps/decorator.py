"""CALL, durable: `step`, and what it makes of a function."""

from __future__ import annotations

import sys
from collections.abc import Sized
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, overload

from oncemore import clock as clocks
from oncemore._ids import uuid7
from oncemore._values import make
from oncemore.artifacts.artifact import SHELF, Artifact
from oncemore.audit.neutral import neutral
from oncemore.classifiers.classify import classify, ready
from oncemore.config import SQLITE
from oncemore.control.moved_log import only_here
from oncemore.control.switches import grant
from oncemore.errors import (
    Blocked,
    CircuitOpen,
    CoolingDown,
    Error,
    Failed,
    InProgress,
    Parked,
    Quarantined,
    Refused,
    StoreError,
    Uncertain,
    UsageError,
    warn_policy,
)
from oncemore.limits.cooldown_step import cooled, reopened
from oncemore.log import result_codec
from oncemore.log.head_access import seen_in
from oncemore.log.record import NOWHERE
from oncemore.log.tagged_json import NoForm, Tagger, untag
from oncemore.maintenance.import_keys import Moved, mark, result_of
from oncemore.open_engine import chosen, default_policy
from oncemore.policy.canonical_json import seed_of
from oncemore.policy.model import Failure
from oncemore.policy.policy import PER_KEY, PER_RUN
from oncemore.retries.loop import ENDS
from oncemore.retries.options import as_seconds
from oncemore.steps import flow
from oncemore.steps.attempt import CURRENT
from oncemore.steps.call_in_progress import Job, Kit
from oncemore.steps.context import CONTEXT, moment
from oncemore.steps.db_adapters import line_of
from oncemore.steps.driver import awaiting, blocking
from oncemore.steps.keys import input_hash
from oncemore.steps.ops import Answer, Call, End, Plan, Seen, Terms
from oncemore.steps.options import NO_EFFECT, Recipe, annotations_of, stretch
from oncemore.steps.recorded_policies import plan_of_run
from oncemore.steps.run import Run, opening_of
from oncemore.workers.worker import Hand, Resumed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from os import PathLike

    from oncemore.artifacts.store import Shelf
    from oncemore.control.switches import Given
    from oncemore.limits.breaker import Gate
    from oncemore.limits.budget import Budget
    from oncemore.limits.cooldown_rules import Cooldown
    from oncemore.limits.shared_rate import Meter
    from oncemore.policy.model import Effect
    from oncemore.policy.policy import Policy
    from oncemore.retries.options import Seconds
    from oncemore.steps.context import When
    from oncemore.steps.engine import Engine
    from oncemore.steps.lease import Identity
    from oncemore.steps.ops import Script
    from oncemore.workers.item_result import Notes
    from oncemore.workers.map import Carrier
    from oncemore.workers.map_items import Item

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")

_PLAIN = Tagger()


def applied(value: Any = None) -> Answer:
    """Say that a lost attempt did take effect, and what it returned."""
    return Answer("applied", value)


def not_applied() -> Answer:
    """Say that a lost attempt did not take effect: it may be tried again."""
    return Answer("not_applied")


def unknown() -> Answer:
    """Say that nobody can tell: the work stays held."""
    return Answer("unknown")


#: After so many calls of new work in a row, the next is taken for new without being looked for.
IN_A_ROW = 16


class Look(NamedTuple):
    """A call before anything is done: what it is, on which engine, and what its key's last run is.

    Whether there is one may be guessed: a claim of work that is not new finds that out itself.
    """

    engine: Engine
    plan: Plan
    call: Call
    seen: Seen
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    counted: dict[str, Any]
    inputs: bytes
    tenant: str
    withheld: tuple[str, ...] = ()


class Step(Generic[P, R]):
    """A function made durable: called like the function itself, run once per key."""

    __wrapped__: Callable[P, R]

    def __init__(self, recipe: Recipe, engine: Engine | None = None, bound: tuple[Any, ...] = ()) -> None:
        self._recipe, self._engine, self._bound = recipe, engine, bound
        self._plan: Plan | None = None
        self._plans: dict[str, Plan] = {}
        self._shelf: Shelf | None = None
        self._wait_s = 0.0
        self._new_in_a_row = 0
        self._awaits = recipe.colour == "coroutine"
        self._kit = Kit(
            recipe.name, recipe.work, _tagged, untag, line_of, recipe.reconcile, self._awaits,
            recipe.isolate, recipe.artifact, recipe.recall_arguments, recipe.lease,
        )  # fmt: skip
        for worn in ("__module__", "__name__", "__qualname__", "__doc__"):
            if hasattr(recipe.work, worn):
                setattr(self, worn, getattr(recipe.work, worn))
        self.__annotations__ = annotations_of(recipe.work)
        self.__wrapped__ = recipe.work
        if self._awaits:
            _mark_coroutine(self)

    def __repr__(self) -> str:
        return f"<oncemore.Step {self.name} ({self._recipe.effect})>"

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Step[P, R]: ...
    @overload
    def __get__(self: Step[Concatenate[S, Q], R], instance: S, owner: type | None = None) -> Step[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Step[Any, R]:
        """Bind a method to its object, as functions do."""
        if instance is None:
            return self
        return Step(self._recipe, self._engine, (instance,))

    @property
    def name(self) -> str:
        """What the step is known by, together with its key."""
        return self._recipe.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names that it had before, the oldest first."""
        return self._recipe.aliases

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the value: computed now, or stored from before; raise when it failed."""
        if self._awaits:
            return self._awaited(args, kwargs)  # type: ignore[return-value]
        return self._blocking(args, kwargs)  # type: ignore[no-any-return]

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Like a call, but return the `Run` instead of raising for an outcome; to be awaited if async."""
        return self._run_awaited(args, kwargs) if self._awaits else self._run(args, kwargs)

    def rerun(self, *args: Any, reason: str, **kwargs: Any) -> Any:
        """Run work that failed for good once more, with a new budget; the reason is recorded."""
        _check_reason(reason)
        before = _reopening(reason)
        return self._awaited(args, kwargs, before) if self._awaits else self._blocking(args, kwargs, before)

    def settle(self, answer: Answer, /, *args: Any, reason: str, **kwargs: Any) -> Run:
        """Decide what became of an attempt whose outcome is unknown; the reason is recorded.

        `answer` is `oncemore.applied(value)` or `oncemore.not_applied()`.
        """
        _check_reason(reason)
        if type(answer) is not Answer or answer.found == "unknown":
            raise UsageError("settle takes oncemore.applied(value) or oncemore.not_applied()")
        told = answer._replace(decided=_decision("settle", reason))
        look = self._look(args, kwargs)
        return self._ordered_now(look, only_here(self.name, flow.settle(look.plan, look.call, told)))

    def approve(
        self, *args: Any, reason: str, by: str | None = None, expires: Seconds | None = None, **kwargs: Any
    ) -> Given:
        """Approve a call, before it is made or while it waits for that: these arguments, this version, this
        policy, and nothing else. Who and why are recorded.

        expires  for how long it holds (a day)
        """
        look = self._look(args, kwargs)
        seen, now = look.seen, look.engine.now()
        over = seen.run is None or _is_over(seen)
        terms = self._terms(look, "", now)
        run = flow.new_run(look.plan, look.call, terms, seen.run, now) if over else seen.run
        wanted = flow.wanted(plan_of_run(look.engine, look.plan, run), look.call, run)
        holds = None if expires is None else as_seconds("expires", expires)
        return grant(look.engine, wanted, seen, run.allowed - run.tried, reason, by, holds)

    def submit(self, *args: Any, at: When | None = None, **kwargs: Any) -> Any:
        """Hand the work in for some worker to do, and return its `Run`; to be awaited if async.

        It is handed in once: where the key has a run, that one is returned, whatever its state. All arguments
        must be such that the log can keep them.

        at  the earliest time of its first attempt: an aware datetime, POSIX seconds, or a timedelta from now
        """
        look = self._look(args, kwargs)
        if look.withheld:
            raise UsageError(
                f"{self.name} cannot be handed to a worker with {', '.join(look.withheld)}: the log keeps no "
                "Secret and nothing that ignore= leaves out; let the step itself get it, or give it a default"
            )
        due, now = 0.0, look.engine.now()
        if at is not None:
            due = moment("at", at, now)
            ends = _ends(self._recipe.policy.within_s, CONTEXT.get().deadline, max(due, now))
            look = look._replace(call=look.call._replace(deadline=ends[0]))
            if ends[0] and due >= ends[0]:
                raise UsageError(f"at is {at!r}, which is not before the deadline of {self.name}")
        return self._ordered(look, flow.submit(look.plan, look.call, due))

    def cancel(self, *args: Any, reason: str, **kwargs: Any) -> Any:
        """Let no further attempt begin, and return the `Run`; to be awaited if async. The reason is recorded.

        What waits ends as HARD_FAIL, `cancelled`. What runs is not cut off: if it commits, that stands; if it
        fails, it is not tried again, and its next checkpoint raises `Cancelled`.
        """
        _check_reason(reason)
        look = self._look(args, kwargs)
        script = flow.cancel(look.plan, look.call, reason, CONTEXT.get().actor)
        return self._ordered(look, only_here(self.name, self._minded(look, script)))

    def map(
        self,
        items: Iterable[Any],
        *,
        max_concurrency: int = 5,
        each: str = "argument",
        progress: str = "auto",
        patience: Seconds | None = None,
        on: Any = None,
    ) -> Any:
        """Call the step for each item, some at a time, and return the `JobRun`; to be awaited if async.

        What an item comes to is never raised, but told by the `JobRun`. A provider that throttles is asked
        for half as much at once, and for one more after each quiet stretch.

        max_concurrency  how many calls may be under way at once
        each             what an item is: the step's only "argument", its "args" or its "kwargs"
        progress         "auto": a line on standard error, if that is a terminal; or "off"
        patience         how long the job waits for an item that is due again later; as long as a call does
                         (`inline_wait_s` of the engine), unless given
        on               where attempts are made: an executor of `concurrent.futures`, a Dask `Client`, or the
                         module `ray`; in threads of this process, or in the event loop, unless given. Other
                         processes import the step and open the store by its address
        """
        from oncemore.workers.map import Course
        from oncemore.workers.map_items import Item
        from oncemore.workers.progress import Bar

        number = isinstance(max_concurrency, int) and not isinstance(max_concurrency, bool)
        if not number or not 1 <= max_concurrency <= MOST_AT_ONCE:
            raise UsageError(f"max_concurrency is {max_concurrency!r}; it takes 1 to {MOST_AT_ONCE}")
        if each not in _EACH:
            raise UsageError(f"each is {each!r}; the choices are {', '.join(_EACH)}")
        if progress not in ("auto", "off"):
            raise UsageError(f"progress is {progress!r}; the choices are auto, off")
        engine, total = chosen(self._engine), len(items) if isinstance(items, Sized) else None
        drawn = (Item(at, self._asks(_EACH[each], item), item) for at, item in enumerate(items))
        bar = Bar(self.name, total, sys.stderr if progress == "auto" else None)
        carrier, most = self._carrier(engine, each, on, max_concurrency)
        waits = None if patience is None else stretch("patience", patience)
        fleet = self._recipe.asks_somebody
        course = Course(engine, self.name, drawn, carrier, most, bar, fleet, waits)
        return course.run_awaited() if self._awaits else course.run()

    def _carrier(self, engine: Engine, each: str, on: Any, most: int) -> tuple[Carrier, int]:
        """Return how items are called, and how many at once: a place with fewer hands takes no more."""
        from oncemore.workers.map import Carrier

        here, decode = partial(self._mapped, _EACH[each]), self._plan_on(engine).decode
        if on is None:
            return Carrier(here, self._awaits, decode), most
        from oncemore.workers.executor_adapters import place_of
        from oncemore.workers.executors import Elsewhere
        from oncemore.workers.remote import Lent, Posted

        place = place_of(on)
        if not place.locks and engine.url.startswith(SQLITE):
            raise UsageError(
                f"{place.name} cannot work on {engine.url}: interpreters of one process share file locks, by "
                "which SQLite tells workers apart; take processes, threads, or PostgreSQL"
            )
        trip: Lent | Posted
        if place.here:
            trip = Lent(here, self._awaits)
        else:
            trip = Posted(self, engine, each, self._bound)
        away = Elsewhere(place, trip, self._recipe.policy.max_attempts + LOST_BEFORE, engine.lease_s)
        once = away.once_awaited if self._awaits else away.once
        return Carrier(once, self._awaits, decode, away), min(most, place.most or most)

    def errand(self, engine: Engine, bound: tuple[Any, ...], each: str, item: Item, met: Notes) -> Any:
        """Make one attempt of an item of a job that is in another process; to be awaited if async."""
        there: Step[..., Any] = Step(self._recipe, engine, bound)
        return there._mapped(_EACH[each], item, met)

    def _asks(self, unpack: Callable[[Any], Any], item: Any) -> str:
        """Return the provider of an item; one that is no call is refused when its turn comes."""
        try:
            args, kwargs = unpack(item)
            return self._recipe.provider((*self._bound, *args), kwargs) or self.name
        except Exception:  # noqa: BLE001
            return self.name

    def _mapped(self, unpack: Callable[[Any], Any], item: Item, met: Notes) -> Any:
        """Make one attempt of an item; what is due again later is not waited for."""
        args, kwargs = unpack(item.given)
        if item.key:
            args, kwargs = self._recall(item.key, args, kwargs)
        look = self._look(args, kwargs)
        met.key = look.call.entity.removeprefix("run/")
        if self._recipe.cooldown is not None:
            met.asks(self._recipe.cooling(look.args, look.kwargs), look.seen)
        describe = look.plan.describe

        def tell(error: BaseException, failure: Failure | None) -> dict[str, Any]:
            told = describe(error, failure)
            if failure is not None:
                met.told(told, failure)
            return told

        look = look._replace(plan=look.plan.replaced(inline_wait_s=0.0, describe=tell))
        return (self._awaited if self._awaits else self._blocking)(args, kwargs, None, look)

    def _recall(self, key: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments of an item as its run recorded them: an attempt may have changed the item."""
        engine = chosen(self._engine)
        opening = opening_of(engine.store.entries(f"run/{key}"), engine.seal)
        stored = opening.get("arguments", {})
        with engine.shelf.around():
            args, kwargs = self._recipe.recall_arguments(stored, (*self._bound, *args), kwargs)
        return args[len(self._bound) :], kwargs

    @property
    def hand(self) -> Hand:
        """What a worker does this step by."""
        return Hand((self.name, *self.aliases), self._awaits, self._resumed, self._recipe.pipeline)

    def mark_done(self, *args: Any, value: Any = None, reason: str, **kwargs: Any) -> Run:
        """Mark work as done that was done elsewhere, with the value that it gave; nothing is run.

        Work that is known here stays as it is: done, it is left alone; anything else is refused.
        """
        _check_reason(reason)
        look = self._look(args, kwargs)
        (came_to,) = mark(look.engine, [self._moved(look, value, reason, CONTEXT.get().actor)])
        if came_to not in ("marked", "present"):
            key = look.call.entity.removeprefix("run/")[:12]
            raise UsageError(f"{self.name}: key {key} cannot be marked as done: {came_to}")
        return self._run_of(look.engine, look.call.entity)

    def on(self, engine: Engine) -> Step[P, R]:
        """Return the same step on another engine."""
        return Step(self._recipe, engine, self._bound)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key that a call would have; nothing is run or written."""
        return self._look(args, kwargs).call.entity.removeprefix("run/")

    def last(self, *args: P.args, **kwargs: P.kwargs) -> Run | None:
        """Return the key's last run without running anything, or None if there is none."""
        look = self._look(args, kwargs)
        run = self._run_of(look.engine, look.call.entity)
        return run if run.version else None

    # ------------------------------------------------------------------------------------------------

    def _blocking(
        self, args: Any, kwargs: Any, before: Callable[..., Script] | None = None, look: Look | None = None
    ) -> Any:
        look = look or self._look(args, kwargs, guess=True)
        end = flow.finished(look.plan, look.call, look.seen)
        if end is not None and before is None:
            return end.value
        job = self._job(look)
        try:
            if before is not None:
                blocking(job, self._again(look, before))
            script = flow.run_step(look.plan, look.call, None if before else look.seen)
            return blocking(job, self._minded(look, script))
        except Error as error:
            end = _done_long_ago(job, look, error)
            if end is not None:
                return end.value
            self._attach(error, look)
            raise
        finally:
            self._count(job)

    async def _awaited(
        self, args: Any, kwargs: Any, before: Callable[..., Script] | None = None, look: Look | None = None
    ) -> Any:
        look = look or self._look(args, kwargs, guess=True)
        end = flow.finished(look.plan, look.call, look.seen)
        if end is not None and before is None:
            return end.value
        job = self._job(look)
        try:
            if before is not None:
                await awaiting(job, self._again(look, before))
            script = flow.run_step(look.plan, look.call, None if before else look.seen)
            return await awaiting(job, self._minded(look, script))
        except Error as error:
            end = _done_long_ago(job, look, error)
            if end is not None:
                return end.value
            self._attach(error, look)
            raise
        finally:
            self._count(job)

    def _minded(self, look: Look, script: Script, around: Callable[..., Script] = cooled) -> Script:
        """Return a script that minds what the call asks for, if the step has a cooldown."""
        if self._recipe.cooldown is None:
            return script
        cooling = self._recipe.cooling(look.args, look.kwargs)
        return script if cooling is None else around(cooling, look.call, script)

    def _again(self, look: Look, before: Callable[..., Script]) -> Script:
        """Return the script of somebody who has work run again, before it is."""
        return only_here(self.name, self._minded(look, before(look.plan, look.call), reopened))

    def _count(self, job: Job) -> None:
        """Count calls of new work: one that had to be read again was none, or failed."""
        self._new_in_a_row = 0 if job.read_again else self._new_in_a_row + 1

    def _ordered(self, look: Look, script: Script) -> Any:
        return self._ordered_awaited(look, script) if self._awaits else self._ordered_now(look, script)

    def _ordered_now(self, look: Look, script: Script) -> Run:
        try:
            blocking(self._job(look), script)
        except Error as error:
            self._attach(error, look)
            raise
        return self._run_of(look.engine, look.call.entity)

    async def _ordered_awaited(self, look: Look, script: Script) -> Run:
        try:
            await awaiting(self._job(look), script)
        except Error as error:
            self._attach(error, look)
            raise
        return self._run_of(look.engine, look.call.entity)

    def _resumed(self, engine: Engine, seen: Seen) -> Resumed:
        """Return what goes on with a run that somebody else began, from what the log has of its call.

        It waits for nothing and nobody: what is not due or not free is left to the next look.
        """
        run, opening = seen.run, seen.body or {}
        if "arguments" not in opening:
            opening = opening_of(engine.store.entries(seen.entity), engine.seal)
        if "arguments" not in opening or opening.get("withheld"):
            missing = ", ".join(opening.get("withheld", ())) or "its arguments"
            raise UsageError(
                f"{self.name}: key {seen.entity[4:16]} cannot go on here, the log does not have {missing}"
            )
        with engine.shelf.around():
            args, kwargs = self._recipe.rebuilt(opening["arguments"])
        plan = self._plan_for(self._plan_on(engine), self._recipe.provider(args, kwargs)).replaced(
            if_running="raise", inline_wait_s=0.0, after_failure="raise", on_version_change="reuse"
        )
        if run.provider:
            plan = plan.replaced(describe=_slowing(engine, run.provider, plan.describe))
        call = Call(seen.entity, "", run.cfg_hash, run.deadline, 0.0, run.tenant, self._recipe.cfg())
        look = Look(engine, plan, call, seen, args, kwargs, {}, b"", run.tenant)
        script = self._minded(look, flow.run_step(plan, call, seen))
        job = self._job(look)
        job.recorded = run.run_id, opening["arguments"]
        return Resumed(job, script, opening.get("actor", ""))

    def _attach(self, error: Error, look: Look) -> None:
        """Let an error carry its run, if there is one and the store can still be read."""
        if error.run is None and not isinstance(error, StoreError):
            with suppress(StoreError):
                run = self._run_of(look.engine, look.call.entity)
                error.run = run if run.version else None

    def _run(self, args: Any, kwargs: Any) -> Run:
        look = self._look(args, kwargs)  # once: the work may change its arguments, and time goes by
        try:
            self._blocking(args, kwargs, None, look)
        except _OUTCOMES as error:
            return _outcome(error)
        return self._run_of(look.engine, look.call.entity)

    async def _run_awaited(self, args: Any, kwargs: Any) -> Run:
        look = self._look(args, kwargs)
        try:
            await self._awaited(args, kwargs, None, look)
        except _OUTCOMES as error:
            return _outcome(error)
        return self._run_of(look.engine, look.call.entity)

    def _run_of(self, engine: Engine, entity: str) -> Run:
        return Run(engine, entity, self._plan_on(engine).decode)

    def _look(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, guess: bool = False) -> Look:
        """Return what a call is and what its key's last run is; most calls need no more.

        guess  whether new work may be taken for granted where the last calls were all of new work
        """
        recipe, engine, around = self._recipe, self._engine or chosen(), CONTEXT.get()
        if self._bound:
            args = (*self._bound, *args)
        bound = recipe.arguments(args, kwargs)
        counted = recipe.counted(bound)
        tenant = recipe.tenant(around.tenant, args, kwargs)
        now = engine.now() if recipe.timed or around.deadline or ENDS.get() is not None else 0.0
        key, inputs = recipe.key(counted, args, kwargs, tenant, now)
        entity = "run/" + key
        if CURRENT.get() is not None:
            _check_not_inside(recipe.name, entity)
        ends = _ends(recipe.policy.within_s, around.deadline, now) if now else _NO_END
        own = "" if recipe.covers_all else input_hash(inputs)
        call = make(Call, (entity, own, recipe.cfg(), *ends, tenant, ""))
        plan, withheld = self._plan, _NONE
        if plan is None or self._shelf is not engine.shelf or self._wait_s != engine.inline_wait_s:
            plan = self._plan_on(engine)
        if recipe.guards_each:
            plan = self._plan_for(plan, recipe.provider(args, kwargs))
        if counted is not bound:
            secrets, withheld = recipe.secrets(bound), recipe.withheld(bound)
            plan = plan.replaced(describe=lambda error, failure: neutral(error, failure, secrets))
        if (
            guess
            and self._new_in_a_row >= IN_A_ROW
            and not (now or recipe.artifact or recipe.others or engine.held)
        ):
            seen = make(Seen, (entity, 0, NOWHERE, None, None))
        else:
            seen = seen_in(engine.store, entity, engine.seal)
            if recipe.others and seen.run is None:
                found = _elsewhere(engine, recipe.other_keys(counted, args, kwargs, tenant, now))
                if found is not None:
                    seen, call = found, call._replace(entity=found.entity)
            if seen.version:
                self._new_in_a_row = 0
        return make(Look, (engine, plan, call, seen, args, kwargs, counted, inputs, tenant, withheld))

    def _job(self, look: Look) -> Job:
        """Return what runs a call that is not over yet."""
        engine = look.engine
        if engine.held and self._recipe.effect != "pure" and not _is_over(look.seen):
            engine.check_original()

        def terms(me: Identity | None, now: float) -> Terms:
            if engine.held and self._recipe.effect != "pure":
                engine.check_original()
            return self._terms(look, "" if me is None else me.name, now)

        return Job(engine, terms, self._kit, look.args, look.kwargs)

    def _terms(self, look: Look, worker: str, now: float) -> Terms:
        """Return what a run that begins now keeps of its call."""
        recipe, run_id, around = self._recipe, uuid7(now), CONTEXT.get()
        _, _, call, _, args, kwargs, counted, inputs, tenant, withheld = look
        return make(Terms, (
            worker, run_id, recipe.stored(counted), call.input_hash or input_hash(inputs),
            _seed(recipe.policy, call.entity), tenant, around.correlation_id or run_id,
            recipe.dataset(args, kwargs), recipe.priority, recipe.retain_s, recipe.provider(args, kwargs),
            "" if worker else around.actor, withheld,
        ))  # fmt: skip

    def moved(self, named: dict[str, Any], value: Any, reason: str, by: str) -> Moved:
        """Return what `mark_done` and `oncemore import` write for a key, ready to be written.

        named  the arguments by name; where `key=` names some of them, those are enough
        """
        filled = self._recipe.filled(named, len(self._bound))
        return self._moved(self._look((), filled), value, reason, by, named if filled != named else None)

    def _moved(
        self, look: Look, value: Any, reason: str, by: str, named: dict[str, Any] | None = None
    ) -> Moved:
        terms, call = self._terms(look, "", look.engine.now()), look.call
        if named is not None and not self._recipe.covers_all:  # then nobody can tell what the others were
            kept = {name: plain for name, plain in terms.arguments.items() if name in named}
            terms, call = terms._replace(input_hash="", arguments=kept), call._replace(input_hash="")
        told = {"what": "import", "reason": reason, "actor": by}
        body = {"arguments": terms.arguments, "result": result_of(look.plan, value), "decision": told}
        return Moved(look.plan, call, terms, look.seen, body)

    def _plan_on(self, engine: Engine) -> Plan:
        """Return the plan, made at the first call: annotations may name what is defined later."""
        plan = self._plan
        if plan is None or self._shelf is not engine.shelf or self._wait_s != engine.inline_wait_s:
            recipe, shelf = self._recipe, engine.shelf
            if recipe.isolate:
                from oncemore.steps.isolation import check_importable

                check_importable(recipe.name, recipe.work)
            encode, decode = _codec(recipe, shelf)
            ready()
            plan = Plan(
                recipe.name,
                recipe.effect,
                recipe.policy,
                _classified,
                encode=encode,
                decode=decode,
                describe=neutral,
                not_applied=recipe.not_applied,
                asks=recipe.reconcile is not None,
                if_running=recipe.if_running,
                inline_wait_s=engine.inline_wait_s,
                after_failure=recipe.after_failure,
                on_version_change=recipe.on_version_change,
                artifact=recipe.artifact,
                large=result_codec.large,
                quarantines=recipe.quarantines,
                approval=recipe.approval,
                barrier=recipe.barrier,
                purse=recipe.purse,
                pipeline=recipe.pipeline,
                halts=recipe.halts,
                policy_source=recipe.policy_source,
                repeats_once=recipe.repeats_once,
                escalation=recipe.escalation,
            )
            plan = self._plan = self._own(plan)
            self._shelf, self._wait_s, self._plans = shelf, engine.inline_wait_s, {}
        return plan

    def _own(self, plan: Plan) -> Plan:
        """Return the plan as this kind of step has it."""
        return plan

    def _plan_for(self, plan: Plan, provider: str) -> Plan:
        """Return the plan of calls to a provider, whose breaker is its own."""
        if not self._recipe.guards_each:
            return plan
        known = self._plans.get(provider)
        if known is None:
            if len(self._plans) >= MOST_PROVIDERS:
                self._plans = {}
            recipe = self._recipe
            barrier = recipe.barrier_of(provider) if recipe.barrier is None else recipe.barrier
            known = plan.replaced(barrier=barrier, beat=recipe.beat_of(provider))
            self._plans[provider] = known
        return known


def _codec(recipe: Recipe, shelf: Shelf) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return what writes a step's results, and what reads them: artifacts in them know where they are."""
    returns, name = recipe.returns(), recipe.artifact

    def encode(value: Any) -> Any:
        if name and (type(value) is not Artifact or value.name != name):
            raise NoForm(f"the step is declared to return the artifact {name!r}; it returned {value!r:.80}")
        return value if result_codec.is_itself(value) else result_codec.encode(value, returns)

    def decode(plain: Any) -> Any:
        if type(plain) in _THEMSELVES:
            return plain
        before = SHELF.set(shelf)
        try:
            return result_codec.value_of(plain, returns)
        finally:
            SHELF.reset(before)

    return encode, decode


def _done_long_ago(job: Job, look: Look, error: Error) -> End | None:
    """Return the end of work that was taken for new and could not be claimed: a full disk can be read."""
    if job.read_again or not isinstance(error, StoreError):
        return None
    job.read_again = True
    with suppress(Error):
        seen = seen_in(look.engine.store, look.call.entity, look.engine.seal)
        return flow.finished(look.plan, look.call, seen)
    return None


def _elsewhere(engine: Engine, keys: Iterator[str]) -> Seen | None:
    """Return the run of a key that was begun under another of the step's names, if there is one."""
    for key in keys:
        seen = seen_in(engine.store, "run/" + key, engine.seal)
        if seen.run is not None:
            return seen
    return None


def _is_over(seen: Seen) -> bool:
    """Whether a key's last run has ended: what it left can be read, whatever the store is."""
    return seen.run is not None and seen.run.state in ("COMPLETE", "HARD_FAIL")


_OUTCOMES = (Failed, Refused, Uncertain)
_ABOUT_A_RUN = (Failed, Uncertain, Parked, InProgress, Quarantined, Blocked)


def _outcome(error: Error) -> Run:
    """Return the run that an error is about; one that is about no run at all is raised."""
    run = error.run
    if not isinstance(run, Run) or not isinstance(error, _ABOUT_A_RUN):
        raise error
    return run


def _tagged(value: Any) -> Any:
    return _PLAIN.tag(value, "the value")


def _classified(error: BaseException, now: float) -> Failure:
    """Return what an error means; that of an inner step is over, or says itself when it goes on."""
    if isinstance(error, Parked | CoolingDown) and error.until:
        return Failure(
            "transient", "maybe", max(0.0, error.until - now), "STEP_PARKED", "oncemore:inner step"
        )
    if isinstance(error, CircuitOpen):
        return Failure("transient", "no", max(0.0, error.until - now), "CIRCUIT_OPEN", "oncemore:breaker")
    if isinstance(error, InProgress | StoreError):
        return Failure("transient", "maybe", None, "STEP_IN_PROGRESS", "oncemore:inner step")
    if isinstance(error, Error) and error.run is not None:
        return Failure("permanent", "maybe", None, "STEP_FAILED", "oncemore:inner step")
    return classify(error, now)


def _seed(policy: Policy, entity: str) -> str:
    """Return the seed of a run's draws; empty for the usual one, which follows from the run's id."""
    if policy.jitter_seed == PER_RUN:
        return ""
    return seed_of(entity.removeprefix("run/")) if policy.jitter_seed == PER_KEY else policy.jitter_seed


def _slowing(engine: Engine, provider: str, describe: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Return what describes errors, and asks a provider less that throttles."""
    began = engine.now()

    def tell(error: BaseException, failure: Failure | None) -> dict[str, Any]:
        if failure is not None and failure.kind == "throttled":
            engine.paces.throttled(provider, began)
        return describe(error, failure)

    return tell


#: What an item of a job is, by the word for it: positional arguments and named ones.
_EACH: dict[str, Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "argument": lambda item: ((item,), {}),
    "args": lambda item: (tuple(item), {}),
    "kwargs": lambda item: ((), dict(item)),
}
MOST_AT_ONCE = 1000
#: How often an item of a job may be lost beside its attempts: its process died before one was on record.
LOST_BEFORE = 3
#: For how many providers a step keeps a plan.
MOST_PROVIDERS = 1000

_NO_END = (0.0, 0.0)
#: What a stored result may be without standing for anything else.
_THEMSELVES = frozenset((str, int, float, bool, type(None)))
_NONE: tuple[str, ...] = ()


def _ends(within_s: float | None, around: float, now: float) -> tuple[float, float]:
    """Return when a new run must be over, and how long this caller waits; 0 for ever."""
    own = now + within_s if within_s is not None else 0.0
    deadline = min(own, around) if own and around else own or around
    outer = ENDS.get()
    if outer is None:
        return deadline, deadline
    left = now + max(0.0, outer - clocks.current.monotonic())
    return deadline, min(deadline, left) if deadline else left


def _check_not_inside(name: str, entity: str) -> None:
    """Refuse a step that calls itself with the same key: it would wait for itself."""
    attempt = CURRENT.get()
    while attempt is not None:
        if attempt.seen.entity == entity:
            raise UsageError(f"{name} calls itself with the same key; it would wait for itself for ever")
        attempt = attempt.parent


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError("reason is missing; say why, it is recorded")


def _decision(what: str, reason: str) -> dict[str, Any]:
    return {"decision": {"what": what, "reason": reason, "actor": CONTEXT.get().actor}}


def _reopening(reason: str) -> Callable[[Plan, Call], Script]:
    actor = CONTEXT.get().actor
    return lambda plan, call: flow.reopen(plan, call, reason, actor)


def _mark_coroutine(made: Any) -> None:
    """Let `inspect.iscoroutinefunction` know that a call gives a coroutine."""
    import asyncio
    import inspect

    mark: Any = vars(inspect).get("markcoroutinefunction")  # from Python 3.12 on
    mark(made) if mark else setattr(made, "_is_coroutine", vars(asyncio.coroutines)["_is_coroutine"])


#: What a recipe is told where nobody says otherwise.
_USUAL: dict[str, Any] = {
    "name": None, "aliases": (), "key": None, "ignore": (), "partition": None, "bucket": None, "tenant": None,
    "config": None, "version": "1", "on_version_change": None, "timeout": None, "isolate": None,
    "within": None, "if_running": "wait", "not_applied": (), "reconcile": None, "provider": None,
    "breaker": None, "rate": None, "budget": None, "dataset": None, "priority": None, "retain_for": None,
    "artifact": None, "cooldown": None, "approval": None, "pipeline": None,
}  # fmt: skip


def told_of(**told: Any) -> dict[str, Any]:
    """Return all options of a recipe: those given, and the usual ones."""
    return {**_USUAL, **told}


def step(
    _bare: Any = None,
    /,
    *,
    effect: Effect | None = None,
    name: str | None = None,
    aliases: str | Sequence[str] = (),
    key: str | Sequence[str] | Callable[..., Any] | None = None,
    ignore: str | Sequence[str] = (),
    partition: Any = None,
    bucket: str | Seconds | Callable[..., Any] | None = None,
    tenant: str | Callable[..., str] | None = None,
    config: Any = None,
    version: str = "1",
    on_version_change: str | None = None,
    policy: Policy | str | PathLike[str] | None = None,
    timeout: Seconds | None = None,
    isolate: str | None = None,
    within: Seconds | None = None,
    if_running: str = "wait",
    not_applied: Any = (),
    reconcile: Callable[..., Any] | None = None,
    provider: str | Callable[..., str] | None = None,
    breaker: Gate | str | None = None,
    rate: Meter | str | None = None,
    budget: Budget | None = None,
    dataset: str | Callable[..., str] | None = None,
    priority: str | None = None,
    retain_for: Seconds | None = None,
    artifact: str | None = None,
    cooldown: Cooldown | None = None,
    approval: str | None = None,
    pipeline: str | None = None,
) -> Callable[[Callable[P, R]], Step[P, R]]:
    """Make a function durable: every attempt is on record, its effect is applied once per key.

    effect             what running it does to the world; has no default:
                         pure           nothing: running it again gives the same
                         idempotent     something that the other side applies once per `current().key`
                         transactional  rows in a database: one transaction with the record of the step
                                        (`current().transaction(connection)`, `current().on_commit(write)`)
                         outbox         only events, given away with `current().emit()`
                         once           something that must not happen twice, and cannot be repeated blindly
    name               what it is known by, together with the key; its module and name unless given
    aliases            names that it had before, the oldest first: keys are made with that one, so that what
                       was done under it is not done again, also while an older version still runs
    key                which arguments (names, or a function of all) make two calls the same work; else all
    ignore             arguments that take no part in key and record
    partition          a part of the key that is no argument: a value, or a function of the arguments
    bucket             a stretch of time in the key ("hour", "day", seconds): one run in each
    tenant             whose work it is; part of the key
    config, version    what a result depends on besides arguments; when they change, `pure` work runs anew,
                       any other returns the stored value, unless `on_version_change="new"|"reuse"|"fail"`
                       or the policy's `on_config_change` says otherwise
    policy             a `Policy`, its name or the path of a policy file
    timeout            limit of one attempt
    isolate            "process": plain work runs in a process of its own, which is killed at its limit
    within             limit of the whole run with its waits, and of waiting for somebody else's
    if_running         "wait" for an attempt that is under way elsewhere, or "raise" `InProgress`
    not_applied        for `once`: errors (types, a predicate, or "not-sent") after which nothing has happened
    reconcile          for `once`: called with the step's arguments when an attempt was lost; answers
                       `oncemore.applied(value)`, `oncemore.not_applied()` or `oncemore.unknown()`
    provider           whom it asks something of: a name, or a function of the arguments; `map` slows down
                       for one that throttles, and a name chooses the policy's values for it; where the
                       policy has a `circuit_breaker`, every call passes that of its provider
    breaker            a `Breaker`, or the name of one, that has to let each attempt through; it is kept in
                       the store, and while it is open runs wait for the end of its cooldown (`Parked`)
    rate               how many attempts in a time, of all who share the store: "10/s", "100/min", a `Rate`;
                       for each provider, or for the step where it names none
    budget             a `Budget` that retries take tokens from and successes earn for, in this process, or,
                       where it is shared, in the store; else that of the policy's `retry_budget`
    priority           "P0", "P1" or "P2": what workers do first; the policy's, or P1, unless given
    dataset, retain_for   recorded with the run
    artifact           the name of the one artifact that the step returns (`current().put`): where it is there
                       and valid nothing is run, and where it was altered the run is quarantined
    cooldown           a `Cooldown`: what it asks for is left alone for a while after a failure, by everybody;
                       a call that comes too early raises `CoolingDown` and asks nobody
    approval           "required": no attempt begins before somebody has approved it (`oncemore approve`)
    pipeline           the pipeline that the step belongs to; the function's module unless given. A policy
                       with `halt_scope: pipeline` halts it after an error that is not retryable
    """
    if effect is None:
        raise UsageError(NO_EFFECT)
    if _bare is not None:
        raise UsageError(f"step() takes keywords only, and got {_bare!r}; write @oncemore.step(effect=…)")
    told = told_of(
        effect=effect, name=name, aliases=aliases, key=key, ignore=ignore, partition=partition, bucket=bucket,
        tenant=tenant, config=config, version=version, on_version_change=on_version_change,
        policy=default_policy() if policy is None else policy, timeout=timeout, isolate=isolate,
        within=within, if_running=if_running, not_applied=not_applied, reconcile=reconcile, provider=provider,
        breaker=breaker, rate=rate, budget=budget, dataset=dataset, priority=priority, retain_for=retain_for,
        artifact=artifact, cooldown=cooldown, approval=approval, pipeline=pipeline,
    )  # fmt: skip

    def decorate(work: Callable[P, R]) -> Step[P, R]:
        recipe = Recipe(work, told)
        warn_policy(*recipe.policy.warnings())
        return Step(recipe)

    return decorate
