"""What a call does with a failure that is already in the log, and how it says so.

A call of failed work either begins a new run or raises the stored failure again:

    `once`; a run that was cancelled or rejected   raise
    the call met this run while it was open        raise: all that wait for failing work would begin a run of
                                                   it, one after the other
    the version or the config has changed          new run
    `after_failure: raise`                         raise
    `after_failure: new_run`, top-level call       new run
    `after_failure: new_run`, in an outer run      raise if it failed since the outer run began, so that the
                                                   attempts of inner and outer run do not multiply

The error of a stored failure says since when it is stored, that nothing was run, and how to run it again.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from oncemore._redact import describe_value, hide_credentials
from oncemore.steps import refusals
from oncemore.steps.signature import module_of

if TYPE_CHECKING:
    from oncemore.log.record import LoadedHead, RunRecord
    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.plan import StepPlan

#: The longest text of one argument in the call that an error shows.
MAX_ARGUMENT_LENGTH = 60
#: Stands for a value that the log does not store.
_OPEN = object()


def find_outer_start(attempt: RunningAttempt | None) -> float:
    """Return when the oldest run around a call was created; 0 if the call is not made inside a run."""
    starts = []
    while attempt is not None:
        # A task may outlive the attempt that started it; then it is a caller of its own.
        if not attempt.over:
            starts.append(attempt.head.record.created_at)
        attempt = attempt.parent
    return min(starts, default=0.0)


def begins_new_run(plan: StepPlan, call: PreparedCall, run: RunRecord, failed_at: float) -> bool:
    """Return whether a call of failed work begins a new run; False: it raises the stored failure."""
    if "once" in (run.effect, plan.effect) or call.took_part:
        return False
    # A person has decided; only a person begins it again.
    if run.cancelled_at or run.reason == "rejected":
        return False
    if run.cfg_hash != call.cfg_hash:
        return True
    return plan.after_failure == "new_run" and not (call.outer_start and failed_at >= call.outer_start)


def find_failure_time(run: RunRecord, body: dict[str, Any]) -> float:
    """Return when the failure of a run was recorded, from the proof in its entry."""
    # A pruned or erased entry has no proof; the last attempt began before the failure.
    recorded = body.get("proof", {}).get("inputs", {}).get("now")
    return float(recorded) if recorded else run.started_at or run.created_at


def build_stored_failure(
    plan: StepPlan, call: PreparedCall, head: LoadedHead, record: dict[str, Any] | None, failed_at: float
) -> Exception:
    """Return the error of a failure that was recorded before this call."""
    failure = refusals.run_failed(plan, head, None, record)
    text = (
        f"{failure.args[0]}. This failure is stored since {refusals.format_utc(failed_at)}, and nothing was "
        f"run now; to run it again: {_format_call(plan, call)}"
    )
    command = _format_command(plan, call, head.record.run_id)
    failure.args = (f"{text}, or {command}" if command else text, *failure.args[1:])
    return failure


def _format_call(plan: StepPlan, call: PreparedCall) -> str:
    """Return the call that runs the work again; values that the log does not store are left open."""
    parameters = [each for each in signature(plan.function).parameters.values() if each.name != "self"]
    # Values before *args have no names in a call.
    is_positional = any(each.kind is each.VAR_POSITIONAL and call.counted.get(each.name) for each in parameters)
    arguments: list[str] = []
    for each in parameters:
        value = call.counted.get(each.name, _OPEN)
        if each.kind is each.VAR_POSITIONAL:
            arguments += map(_format_value, () if value is _OPEN else value)
        elif each.kind is each.VAR_KEYWORD:
            arguments += [f"{name}={_format_value(one)}" for name, one in ({} if value is _OPEN else value).items()]
        elif value is not _OPEN or each.name in call.withheld or each.default is each.empty:
            has_name = not (each.kind is each.POSITIONAL_ONLY or (is_positional and each.kind is not each.KEYWORD_ONLY))
            arguments.append(f"{each.name}={_format_value(value)}" if has_name else _format_value(value))
    function = getattr(plan.function, "__name__", plan.name)
    return f"{function}.rerun({', '.join([*arguments, 'reason=…'])})"


def _format_value(value: Any) -> str:
    return "…" if value is _OPEN else describe_value(value, MAX_ARGUMENT_LENGTH)


def _format_command(plan: StepPlan, call: PreparedCall, run_id: str) -> str:
    """Return the command that runs the work again; empty if no other process can."""
    is_local = "<" in getattr(plan.function, "__qualname__", "<")
    if call.withheld or is_local or call.engine is None or call.engine.url == "memory:":
        return ""
    store = hide_credentials(call.engine.url)
    return f"oncemore rerun {module_of(plan.function)} --run {run_id} --store {store} --reason '…'"
