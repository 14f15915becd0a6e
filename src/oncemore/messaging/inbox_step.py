"""Calls a step for an incoming message: under the message's key, and without waiting.

The run is an ordinary run of the step, with its arguments in the log, so that workers can resume it and
operators find it under the step's name. Only its key comes from the message.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from oncemore.audit.error_record import error_to_record
from oncemore.errors import (
    CallRefused,
    CoolingDown,
    Error,
    InProgress,
    KeyConflict,
    KeyExpired,
    LeaseLost,
    OutcomeUncertain,
    Quarantined,
    ResultUnavailable,
    StepFailed,
    StoreError,
    UsageError,
)
from oncemore.log.entry_codec import load_head
from oncemore.messaging.inbox_flow import MessageOutcome
from oncemore.messaging.inbox_message import MessageReader, StepCall
from oncemore.open_engine import find_engine
from oncemore.steps import operator_flow
from oncemore.steps.context import context
from oncemore.steps.decorator import Step, make_rerun
from oncemore.steps.entered_engine import use_engine
from oncemore.steps.keys import input_hash, step_key
from oncemore.steps.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from oncemore.messaging.inbox_flow import InboxMessage
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.step import DecisionScript

#: The outcome of a message by the error of its call; the first matching class counts.
_ERROR_OUTCOMES: tuple[tuple[type[Error], str], ...] = (
    (ResultUnavailable, "done"),
    (LeaseLost, "busy"),
    (InProgress, "busy"),
    (Quarantined, "held"),
    (KeyConflict, "conflict"),
    (KeyExpired, "expired"),
    (OutcomeUncertain, "held"),
    (StepFailed, "failed"),
    (StoreError, "store_error"),
    (CallRefused, "deferred"),
)


class MessageStep(Step[Any, Any]):
    """A step whose calls come from messages.

    Its calls never wait: if the run is due later or running elsewhere, the message goes back to the queue.
    """

    @classmethod
    def create_from(
        cls,
        step: Any,
        engine: Engine | None,
        key: Callable[[Any], Any] | str | None,
        arguments: Callable[[Any], Mapping[str, Any]] | None,
    ) -> MessageStep:
        """Return a `MessageStep` with the options of a step."""
        if not isinstance(step, Step):
            raise UsageError(
                f"{step!r} is not a step; an inbox takes a function decorated with @oncemore.step"
            )
        if key is not None and key != "arguments" and not callable(key):
            raise UsageError(f'key is {key!r}; it takes a function of the content, or "arguments"')
        if arguments is not None and not callable(arguments):
            raise UsageError(f"arguments is {arguments!r}; it takes a function of the content")
        copy = cls(step._options, engine or step._engine, step._bound)  # noqa: SLF001 - a subclass of Step
        copy._reader = MessageReader(step._options.function, len(step._bound), key, arguments)  # noqa: SLF001
        return copy

    _reader: MessageReader

    @property
    def is_async(self) -> bool:
        """Whether the step is an async function."""
        return self._is_async

    @property
    def engine(self) -> Engine:
        """The engine of its runs."""
        return find_engine(self._engine)

    def read_message(self, message: InboxMessage) -> StepCall | MessageOutcome:
        """Return the call for a message, or an outcome if the message cannot be read."""
        try:
            return self._reader.make_call(message)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001
            # User code may raise anything for a bad content, also SystemExit; the inbox must not end for it.
            return _refuse_content(error)

    def call_step(self, message_call: StepCall, rerun_reason: str = "") -> MessageOutcome:
        """Call the step in this thread.

        rerun_reason  if not empty, a permanently failed run is run again, with this reason recorded
        """
        with use_engine(self.engine), _correlation_context(message_call):
            prepared = self._prepare_message_call(message_call)
            if isinstance(prepared, MessageOutcome):
                return prepared
            try:
                value = self._call_sync(
                    (), dict(message_call.arguments), _make_rerun(prepared, rerun_reason), prepared
                )
            except Error as error:
                return _make_error_outcome(error)
            return _make_value_outcome(prepared, value)

    async def call_step_async(self, message_call: StepCall, rerun_reason: str = "") -> MessageOutcome:
        """Call the step in this task; like `call_step`."""
        with use_engine(self.engine), _correlation_context(message_call):
            prepared = self._prepare_message_call(message_call)
            if isinstance(prepared, MessageOutcome):
                return prepared
            try:
                value = await self._call_async(
                    (), dict(message_call.arguments), _make_rerun(prepared, rerun_reason), prepared
                )
            except Error as error:
                return _make_error_outcome(error)
            return _make_value_outcome(prepared, value)

    def submit_call(self, message_call: StepCall) -> MessageOutcome:
        """Submit the work for a worker; return the outcome of its run, or that it is pending."""
        with use_engine(self.engine), _correlation_context(message_call):
            prepared = self._prepare_message_call(message_call)
            if isinstance(prepared, MessageOutcome):
                return prepared
            if prepared.withheld:
                raise UsageError(
                    f"{self.name} cannot be submitted: the log does not store the arguments "
                    f"{', '.join(prepared.withheld)}"
                )
            try:
                script = operator_flow.submit_run(prepared.plan, prepared, 0.0)
                return _make_submitted_outcome(self._run_script_sync(prepared, script))
            except Error as error:
                return _make_error_outcome(error)

    def _prepare_message_call(self, message_call: StepCall) -> PreparedCall | MessageOutcome:
        """Return the prepared call, or an outcome if the content is refused or the store fails."""
        try:
            prepared = self._prepare_call((), dict(message_call.arguments))
            # A redelivery is not a new request: a failed run stays failed until an operator reruns it.
            prepared.plan = prepared.plan.copy_with(
                inline_wait_s=0.0, if_running="raise", after_failure="raise"
            )
            if message_call.key_material is not None:
                self._set_message_key(prepared, message_call.key_material)
            return prepared
        except StoreError as error:
            return _make_error_outcome(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the step's own functions, such as key=, fail on these arguments
            return _refuse_content(error)

    def _set_message_key(self, prepared: PreparedCall, key_material: Any) -> None:
        """Give a call the message's key, also if its run began under an earlier name of the step."""
        names = (self._options.keys.keyed_as, *self._options.keys.other_names)
        # "letter" is part of stored keys and must not change.
        keys = [step_key(name, {"letter": key_material}, tenant=prepared.tenant) for name in names]
        engine = prepared.engine
        heads = [load_head(engine.store, f"run/{key}", engine.cipher) for key in keys]
        head = next((head for head in heads if head.record is not None), heads[0])
        prepared.entity, prepared.head = head.entity, head
        prepared.input_hash = input_hash(prepared.inputs)


def _correlation_context(message_call: StepCall) -> AbstractContextManager[object]:
    correlation_id = message_call.correlation_id
    return context(correlation_id=correlation_id) if correlation_id else nullcontext()


def _make_rerun(prepared: PreparedCall, rerun_reason: str) -> DecisionScript | None:
    """Return the maker of the script that reopens a permanently failed run, or None."""
    run = prepared.head.record
    return make_rerun(rerun_reason) if rerun_reason and run is not None and run.state == "HARD_FAIL" else None


def _make_value_outcome(prepared: PreparedCall, value: Any) -> MessageOutcome:
    # The head from before the call: was the run complete already?
    run = prepared.head.record
    if run is not None and run.state == "COMPLETE":
        return MessageOutcome("duplicate", run=run.run_id, value=value)
    return MessageOutcome("done", value=value)


def _make_submitted_outcome(run: Run[Any]) -> MessageOutcome:
    """Return the outcome of submitted work from the state of its run."""
    if run.status == "COMPLETE":
        return MessageOutcome("duplicate", run=run.run_id, value=run.value)
    if run.status == "HARD_FAIL":
        return MessageOutcome("failed", error=run.error or {}, run=run.run_id)
    outcome = "held" if run.held_for else "busy" if run.status == "RUNNING" else "deferred"
    return MessageOutcome(outcome, run.not_before, run=run.run_id)


def _make_error_outcome(error: Error) -> MessageOutcome:
    """Return the outcome of a call that raised; raise an error that is not one, such as `UsageError`."""
    outcome = next((name for error_class, name in _ERROR_OUTCOMES if isinstance(error, error_class)), None)
    if isinstance(error, CoolingDown):
        outcome = _COOLDOWN_OUTCOMES.get(error.outcome, "failed")
    if outcome is None:
        raise error
    run = error.run if isinstance(error.run, Run) else None
    if outcome == "deferred" and run is not None and run.held_for:
        # For example for an approval: the run continues from quarantine, not with a redelivery.
        outcome = "held"
    until = float(getattr(error, "until", 0.0)) if outcome == "deferred" else 0.0
    if run is None:
        return MessageOutcome(outcome, until, _make_error_record(error))
    return MessageOutcome(
        outcome,
        until,
        error=(run.error if outcome == "failed" else None) or _make_error_record(error),
        run=run.run_id,
        correlation_id=run.correlation_id,
        tenant=run.state.tenant,
    )


def _make_error_record(error: Exception) -> dict[str, Any]:
    return {"code": "", **error_to_record(error)}


def _refuse_content(error: BaseException) -> MessageOutcome:
    """Return the outcome of a message whose content cannot be used."""
    return MessageOutcome("unreadable", error={"code": "UNREADABLE", **error_to_record(error)})


#: The outcome of a call that a cooldown refused, by the cooldown's own outcome; any other one is "failed".
_COOLDOWN_OUTCOMES = {"SKIPPED_BACKOFF": "deferred", "SKIPPED_DUPLICATE": "duplicate"}
