"""A step that letters call: under the key of the letter, without waiting, and with an end for everything.

The run is one of the step itself, with its arguments in the log, so that workers can go on with it and people
find it under the step's name; only its key comes from the letter.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from oncemore.audit.neutral import neutral
from oncemore.errors import (
    CoolingDown,
    Error,
    Failed,
    InProgress,
    KeyConflict,
    KeyExpired,
    LeaseLost,
    Quarantined,
    Refused,
    ResultUnavailable,
    StoreError,
    Uncertain,
    UsageError,
)
from oncemore.log.head_access import seen_in
from oncemore.messaging.inbox_flow import CameTo
from oncemore.messaging.inbox_message import Called, Reader
from oncemore.open_engine import chosen
from oncemore.steps import flow
from oncemore.steps.context import CONTEXT, context
from oncemore.steps.decorator import Look, Step
from oncemore.steps.driver import blocking
from oncemore.steps.entered_engine import inside
from oncemore.steps.keys import input_hash, step_key
from oncemore.steps.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from oncemore.messaging.inbox_flow import Letter
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Call, Plan, Script

#: What an error of a call means for its letter; the first that fits.
_CAME_TO: tuple[tuple[type[Error], str], ...] = (
    (ResultUnavailable, "done"),
    (LeaseLost, "busy"),
    (InProgress, "busy"),
    (Quarantined, "held"),
    (KeyConflict, "conflict"),
    (KeyExpired, "expired"),
    (Uncertain, "held"),
    (Failed, "failed"),
    (StoreError, "trouble"),
    (Refused, "later"),
)


class Taker(Step[Any, Any]):
    """A step as letters call it.

    Its calls never wait: a letter whose run is due later, or under way elsewhere, goes back to its queue.
    """

    @classmethod
    def of(
        cls,
        step: Any,
        engine: Engine | None,
        same: Callable[[Any], Any] | str | None,
        arguments: Callable[[Any], Mapping[str, Any]] | None,
    ) -> Taker:
        """Return what takes letters for a step."""
        if not isinstance(step, Step):
            raise UsageError(f"{step!r} is no step; an inbox takes a function under @oncemore.step")
        if same is not None and same != "arguments" and not callable(same):
            raise UsageError(f'key is {same!r}; it takes a function of the content, or "arguments"')
        if arguments is not None and not callable(arguments):
            raise UsageError(f"arguments is {arguments!r}; it takes a function of the content")
        made = cls(step._recipe, engine or step._engine, step._bound)  # noqa: SLF001 - it is the same step
        made._reader = Reader(step._recipe.work, len(step._bound), same, arguments)  # noqa: SLF001
        return made

    _reader: Reader

    @property
    def awaits(self) -> bool:
        """Whether its work is an async function."""
        return self._awaits

    @property
    def engine(self) -> Engine:
        """Where its runs are."""
        return chosen(self._engine)

    def read(self, letter: Letter) -> Called | CameTo:
        """Return the call that a letter is, or that it cannot be read.

        Whatever the content makes the classes and functions of the user raise, it is the end of this letter
        only, and not of the inbox: `SystemExit` as well.
        """
        try:
            return self._reader.call_of(letter)
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # noqa: BLE001
            return _refuse_content(fault)

    def call(self, called: Called, again: str = "") -> CameTo:
        """Call the step now, in this thread.

        again  why work that failed for good is run once more; empty: it is not
        """
        with inside(self.engine), _around(called):
            look = self._looked(called)
            if isinstance(look, CameTo):
                return look
            try:
                value = self._blocking((), dict(called.arguments), _before(look, again), look)
            except Error as error:
                return _ended(error)
            return _done(look, value)

    async def call_awaited(self, called: Called, again: str = "") -> CameTo:
        """Call the step in this task."""
        with inside(self.engine), _around(called):
            look = self._looked(called)
            if isinstance(look, CameTo):
                return look
            try:
                value = await self._awaited((), dict(called.arguments), _before(look, again), look)
            except Error as error:
                return _ended(error)
            return _done(look, value)

    def hand_in(self, called: Called) -> CameTo:
        """Hand the work in for some worker; what it came to is told if it is over."""
        with inside(self.engine), _around(called):
            look = self._looked(called)
            if isinstance(look, CameTo):
                return look
            if look.withheld:
                raise UsageError(
                    f"{self.name} cannot be handed in: the log does not keep {', '.join(look.withheld)}"
                )
            try:
                job = self._job(look)
                blocking(job, flow.submit(look.plan, look.call, 0.0))
                run = self._run_of(look.engine, look.call.entity)
            except Error as error:
                self._attach(error, look)
                return _ended(error)
            return _handed_in(run)

    def _looked(self, called: Called) -> Look | CameTo:
        """Return the call before anything is done, or that nothing can be."""
        try:
            look = self._look((), dict(called.arguments))
            # A redelivery is no new wish: what failed for good stays so until a person says otherwise.
            plan = look.plan.replaced(inline_wait_s=0.0, if_running="raise", after_failure="raise")
            look = look._replace(plan=plan)
            return look if called.same is None else self._keyed(look, called.same)
        except StoreError as error:
            return _ended(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the step's own functions of its arguments fail on these
            return _refuse_content(error)

    def _keyed(self, look: Look, same: Any) -> Look:
        """Return a call under the key of its letter, also where the step had another name then."""
        names = (self._recipe._keyed_as, *self._recipe.others)  # noqa: SLF001
        keys = [step_key(name, {"letter": same}, tenant=look.tenant) for name in names]
        seens = [seen_in(look.engine.store, f"run/{key}", look.engine.seal) for key in keys]
        seen = next((each for each in seens if each.run is not None), seens[0])
        call = look.call._replace(entity=seen.entity, input_hash=input_hash(look.inputs))
        return look._replace(call=call, seen=seen)


def _around(called: Called) -> AbstractContextManager[object]:
    told = called.correlation_id
    return context(correlation_id=told) if told else nullcontext()


def _before(look: Look, again: str) -> Callable[[Plan, Call], Script] | None:
    """Return what reopens a run that failed for good, where somebody wants that."""
    if not again or look.seen.run is None or look.seen.run.state != "HARD_FAIL":
        return None
    actor = CONTEXT.get().actor
    return lambda plan, call: flow.reopen(plan, call, again, actor)


def _done(look: Look, value: Any) -> CameTo:
    run = look.seen.run
    before = run is not None and run.state == "COMPLETE"
    return CameTo("seen" if before else "done", run=run.run_id if before and run else "", value=value)


def _handed_in(run: Run) -> CameTo:
    """Return what work came to that is handed in: it is there, or was there before."""
    if run.status == "COMPLETE":
        return CameTo("seen", run=run.run_id, value=run.value)
    if run.status == "HARD_FAIL":
        return CameTo("failed", error=run.error or {}, run=run.run_id)
    what = "held" if run.held_for else "busy" if run.status == "RUNNING" else "later"
    return CameTo(what, run.not_before, run=run.run_id)


def _ended(error: Error) -> CameTo:
    """Return what a call came to that gave no value; what is no end of a letter's is raised."""
    what = next((word for kind, word in _CAME_TO if isinstance(error, kind)), None)
    if isinstance(error, CoolingDown):
        what = _COOLING.get(error.outcome, "failed")
    if what is None:
        raise error
    run = error.run if isinstance(error.run, Run) else None
    if what == "later" and run is not None and run.held_for:
        what = "held"  # for an approval, say: it goes on from quarantine
    until = float(getattr(error, "until", 0.0)) if what == "later" else 0.0
    if run is None:
        return CameTo(what, until, _told(error))
    told = (run.error if what == "failed" else None) or _told(error)
    return CameTo(what, until, told, run.run_id, None, run.correlation_id, run.state.tenant)


def _told(error: Exception) -> dict[str, Any]:
    return {"code": "", **neutral(error)}


def _refuse_content(error: BaseException) -> CameTo:
    """Return that no call can be made from the content of a letter, and why."""
    return CameTo("unreadable", error={"code": "UNREADABLE", **neutral(error)})


#: What is left alone comes to, by the outcome that a cooldown gives it; anything else waits for a person.
_COOLING = {"SKIPPED_BACKOFF": "later", "SKIPPED_DUPLICATE": "seen"}
