"""Submits the runs of due ticks; a worker does so for the steps that it knows.

A schedule is an entity of the log: its declaration, its last tick and its next one. The run of a tick and the
step of its schedule to the next tick are one write, a compare-and-set on both. So a crash falls before that
write, and the next worker submits the tick; or after it, and the tick is done. Of two workers one is refused,
and reads the schedule again. The schedule itself remembers its last tick: pruning the runs does not bring
ticks back. Times are those of the store's clock.

A worker declares its schedules when it starts. If the code of two workers differs, the one that started last
decides, and the other leaves the schedule alone; unless a tick stays without a run for `TAKE_BACK_S`, because
the worker with the other code has gone. A changed expression begins with its next tick.

While a switch stops the step, its schedule waits; afterwards its ticks are missed ticks like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.errors import Error, StoreError, UsageError, log_warning
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.record import RecordChange
from oncemore.log.store import Batch
from oncemore.schedules.record import ScheduleRecord
from oncemore.schedules.ticks import CronTicks, choose_ticks, tick_name, to_datetime
from oncemore.steps.call_operations import CALL_OPERATIONS
from oncemore.steps.context import CONTEXT, CallContext
from oncemore.steps.keys import TICK
from oncemore.steps.operator_flow import build_submission
from oncemore.steps.ops import AppendChange, AskPermission, EndCall
from oncemore.steps.perform import run_call

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.log.record import LoadedHead
    from oncemore.schedules.decorator import StepSchedule
    from oncemore.schedules.ticks import ChosenTicks
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script
    from oncemore.workers.poll import KnownStep

PREFIX = "schedule/"
#: How many ticks of one schedule are submitted before the worker starts runs again.
MAX_TICKS_AT_ONCE = 50
#: How long a worker waits for the worker that declared a schedule differently before it takes it back.
TAKE_BACK_S = 30.0
#: How soon a schedule is looked at again that is stopped by a switch, or whose run could not be submitted.
RECHECK_S = 1.0
#: A time after every tick.
NEVER = float("inf")
#: Results of a write: stored, refused because a head has changed, or not permitted now.
STORED, CONFLICT, STOPPED = "stored", "conflict", "stopped"
MARK: tuple[Any, ...] = ("SCHEDULE",)
#: The fields of a declaration, and those of them that decide the ticks.
_DECLARED = ("step", "pipeline", "expression", "every_s", "start_at", "tz", "missed")
_TIMING = ("expression", "every_s", "start_at")


class DrivenSchedule:
    """A schedule in this worker.

    check_at     when to read its record next, by the store's clock
    is_declared  whether this worker has written or found its declaration
    """

    def __init__(self, step: KnownStep, declared: StepSchedule) -> None:
        self.step, self.declared = step, declared
        self.entity = PREFIX + declared.name
        self.check_at, self.is_declared = 0.0, False
        ticks: Any = declared.ticks
        is_cron = isinstance(ticks, CronTicks)
        #: The record of its declaration, without ticks.
        self.record = ScheduleRecord(
            name=declared.name,
            step=step.names[0],
            pipeline=step.pipeline,
            expression=ticks.expression if is_cron else "",
            every_s=0.0 if is_cron else ticks.every_us / 1e6,
            start_at=0.0 if is_cron else ticks.start_us / 1e6,
            tz=declared.tz,
            missed=declared.missed,
        )

    def prepare_call(self, engine: Engine, tick: float) -> PreparedCall:
        """Return the call that a tick makes."""
        args = (to_datetime(tick, self.declared.tz),) if self.declared.takes_tick else ()
        return self.step.prepare_call(engine, args)


class ScheduleDriver:
    """The schedules of one worker."""

    def __init__(self, engine: Engine, steps: Iterable[KnownStep]) -> None:
        self._engine = engine
        self._schedules = [DrivenSchedule(step, declared) for step in steps for declared in step.schedules]
        names = [driven.entity for driven in self._schedules]
        if repeated := next((name for name in names if names.count(name) > 1), ""):
            raise UsageError(
                f"two schedules are called {repeated.removeprefix(PREFIX)!r}; give one of them another name="
            )

    @property
    def next_due(self) -> float:
        """When the next schedule must be read; never if there is none."""
        return min((driven.check_at for driven in self._schedules), default=NEVER)

    def reset_declarations(self) -> None:
        """Declare all schedules again: a worker that starts is newer than the ones that run."""
        for driven in self._schedules:
            driven.check_at, driven.is_declared = 0.0, False

    def submit_due_ticks(self) -> None:
        """Submit the runs of all ticks that are due, as far as their missed policy wants them."""
        if not self._schedules:
            return
        now = self._engine.now()
        for driven in self._schedules:
            if driven.check_at > now:
                continue
            try:
                self._advance_schedule(driven)
            except StoreError:
                raise
            except Error as error:
                # One schedule that cannot be submitted must not keep the worker from all other work.
                log_warning(f"schedule {driven.declared.name}: a tick could not be submitted: {error}")
                driven.check_at = self._engine.now() + RECHECK_S

    def _advance_schedule(self, driven: DrivenSchedule) -> None:
        """Submit the due ticks of a schedule, and set the time of its next check."""
        engine, left = self._engine, MAX_TICKS_AT_ONCE
        while left > 0:
            head = load_head(engine.store, driven.entity, engine.cipher, ScheduleRecord)
            now = engine.now()
            if not self._use_declaration(driven, head, now):
                continue
            if driven.check_at > now:
                return
            chosen = choose_ticks(driven.declared.ticks, driven.declared.missed, head.record.next_tick, now)
            if self._submit_chosen(driven, head, chosen, left) == STOPPED:
                driven.check_at = now + RECHECK_S
                return
            left -= max(1, len(chosen.ticks))

    def _submit_chosen(
        self, driven: DrivenSchedule, head: LoadedHead, chosen: ChosenTicks, limit: int
    ) -> str:
        """Submit the chosen ticks up to a limit, one write each; return the result of the last write."""
        followers = (*chosen.ticks[1:], chosen.next_tick)
        # Without a chosen tick the schedule itself steps over the missed ones.
        for number, tick in enumerate(chosen.ticks[:limit] or (None,)):
            record: ScheduleRecord = head.record
            after = record._replace(
                last_tick=record.last_tick if tick is None else tick,
                next_tick=followers[number],
                tick_count=record.tick_count + (tick is not None),
                skipped_count=record.skipped_count + (0 if number else chosen.skipped),
            )
            result = self._submit_tick(driven, head, tick, after)
            if result != STORED:
                return result
            head = load_head(self._engine.store, driven.entity, self._engine.cipher, ScheduleRecord)
            if head.record != after:
                return CONFLICT
        return STORED

    def _submit_tick(
        self, driven: DrivenSchedule, head: LoadedHead, tick: float | None, after: ScheduleRecord
    ) -> str:
        """Write the run of a tick and the schedule after it; return the result of the write."""
        change = RecordChange(MARK, head.record, after)
        tokens = CONTEXT.set(CallContext(actor=f"schedule {after.name}")), TICK.set(tick_name(tick or 0.0))
        try:
            call = driven.prepare_call(self._engine, after.next_tick if tick is None else tick)
            script = submit_tick(call, driven, (head, change), tick)
            return str(run_call(call, script, CALL_OPERATIONS))
        finally:
            CONTEXT.reset(tokens[0])
            TICK.reset(tokens[1])

    def _use_declaration(self, driven: DrivenSchedule, head: LoadedHead, now: float) -> bool:
        """Set the time of the next check; return False after writing the declaration, to read it again."""
        record = head.record
        if record is not None and _same_fields(record, driven.record, _DECLARED):
            driven.is_declared, driven.check_at = True, record.next_tick
            return True
        if record is not None and driven.is_declared and now < record.next_tick + TAKE_BACK_S:
            # Another worker runs other code, and started later.
            driven.check_at = record.next_tick + TAKE_BACK_S
            return True
        self._write_declaration(driven, head, now)
        driven.is_declared = True
        return False

    def _write_declaration(self, driven: DrivenSchedule, head: LoadedHead, now: float) -> None:
        before: ScheduleRecord | None = head.record
        after = (before or ScheduleRecord())._replace(
            **{name: getattr(driven.record, name) for name in ("name", *_DECLARED)}, declared_at=now
        )
        # New times begin now: a first start and a changed expression do not look back.
        if before is None or not _same_fields(before, after, _timing_fields(after)):
            after = after._replace(next_tick=driven.declared.ticks.next_after(now))
        change = RecordChange(MARK, before, after)
        write = build_write(head.entity, head.version, head.hash, change, now, self._engine.cipher)
        # A conflict is ignored: the caller reads the record again.
        self._engine.store.append(Batch((write,))).wait()


def submit_tick(
    call: PreparedCall,
    driven: DrivenSchedule,
    step: tuple[LoadedHead, RecordChange],
    tick: float | None,
) -> Script:
    """Append the run of a tick together with the change of its schedule; end with the result of the write.

    step  the head of the schedule, and its change
    tick  the time of the run; None if the schedule only steps over missed ticks
    """
    plan = call.plan
    permission = yield AskPermission(driven.step.names, call.tenant, pipeline=driven.step.pipeline)
    if permission.stop:
        return EndCall(STOPPED, None)
    # A switch that is turned on meanwhile must hold the tick back.
    op: Any = AppendChange(*step, guards=permission.guards)
    if tick is not None:
        submission = yield from build_submission(plan, call, 0.0)
        if type(submission) is AppendChange:
            body = {**submission.change.body, "schedule": {"name": driven.declared.name, "tick": tick}}
            op = submission._replace(change=submission.change._replace(body=body), also=(step,))
        elif submission.error is not None:
            return submission
        # Otherwise the tick has a run already, by a caller or an operator: the schedule goes on.
    return EndCall(CONFLICT if (yield op) is None else STORED, None)


def _same_fields(one: ScheduleRecord, other: ScheduleRecord, names: tuple[str, ...]) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _timing_fields(record: ScheduleRecord) -> tuple[str, ...]:
    """Return the fields that decide the ticks: an interval has the same ones in every time zone."""
    return (*_TIMING, "tz") if record.expression else _TIMING
