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

from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from oncemore._redact import describe_value, hide_credentials
from oncemore.errors import Cancelled
from oncemore.steps import refusals
from oncemore.steps.signature import module_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.log.record import LoadedHead, RunRecord
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.plan import StepPlan

#: The longest text of one argument in the call that an error shows.
MAX_ARGUMENT_LENGTH = 60
#: Stands for a value that the log does not store.
_OPEN = object()


def begins_new_run(plan: StepPlan, call: PreparedCall, run: RunRecord, failed_at: float) -> bool:
    """Return whether a call of failed work begins a new run; False: it raises the stored failure."""
    if "once" in (run.effect, plan.effect) or call.took_part:
        return False
    # A person has decided; only a person begins it again, by a rerun or by the release of its resource.
    was_rejected = run.reason == "rejected" and plan.cooldown is None and not plan.repeats_rejected
    if run.cancelled_at or was_rejected:
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
    # Its message says already that a person ended the run, and how to begin a new one.
    if isinstance(failure, Cancelled):
        return failure
    since = f"This failure is stored since {refusals.format_utc(failed_at)}, and nothing was run now"
    ways = ", or ".join(_list_ways(plan, call, head.record.run_id))
    text = f"{failure.args[0]}. {since}{f'; to run it again: {ways}' if ways else ''}"
    failure.args = (text, *failure.args[1:])
    return failure


def _list_ways(plan: StepPlan, call: PreparedCall, run_id: str) -> Iterator[str]:
    """Yield the call and the command that run the work again, as far as there are such."""
    # A function of this package (a program, an endpoint) is called by its command or its client.
    if module_of(plan.function).partition(".")[0] != "oncemore":
        yield _format_call(plan, call)
        # A local function cannot be imported, and a withheld argument is not in the log.
        is_local = "<" in getattr(plan.function, "__qualname__", "<")
        if not (call.withheld or is_local or call.engine.url == "memory:"):
            store = hide_credentials(call.engine.url)
            module = module_of(plan.function)
            yield f"oncemore runs rerun {module} --run {run_id} --store {store} --reason '…'"


def _format_call(plan: StepPlan, call: PreparedCall) -> str:
    """Return the call that runs the work again; values that the log does not store are left open."""
    parameters = [each for each in signature(plan.function).parameters.values() if each.name != "self"]
    # Values in front of *args have no names in a call.
    takes_more = any(each.kind is each.VAR_POSITIONAL and call.counted.get(each.name) for each in parameters)
    arguments = [text for each in parameters for text in _format_argument(each, call, takes_more)]
    function = getattr(plan.function, "__name__", plan.name)
    return f"{function}.rerun({', '.join([*arguments, 'reason=…'])})"


def _format_argument(parameter: Parameter, call: PreparedCall, takes_more: bool) -> Iterator[str]:
    """Yield a parameter of the call with its value; *args and **kwargs are several or none."""
    name, kind = parameter.name, parameter.kind
    if kind is Parameter.VAR_POSITIONAL:
        yield from map(_format_value, call.counted.get(name, ()))
    elif kind is Parameter.VAR_KEYWORD:
        yield from (f"{key}={_format_value(value)}" for key, value in call.counted.get(name, {}).items())
    elif name in call.counted or name in call.withheld:
        text = _format_value(call.counted.get(name, _OPEN))
        is_positional = kind is Parameter.POSITIONAL_ONLY or (
            takes_more and kind is Parameter.POSITIONAL_OR_KEYWORD
        )
        yield text if is_positional else f"{name}={text}"


def _format_value(value: Any) -> str:
    return "…" if value is _OPEN else describe_value(value, MAX_ARGUMENT_LENGTH)
