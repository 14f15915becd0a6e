"""Import the steps of a user's modules, and submit, cancel or rerun their work from the command line."""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.governance.identity import authorize_run_decider
from oncemore.maintenance.tasks import resolve_actor
from oncemore.queries.import_keys import convert_argument
from oncemore.queries.runs import find_run
from oncemore.steps.context import context
from oncemore.steps.run import Run
from oncemore.steps.signature import hints_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.log.record import RunRecord
    from oncemore.steps.decorator import Step
    from oncemore.steps.engine import Engine


def import_steps(names: Iterable[str]) -> dict[str, Step[..., object]]:
    """Import modules and return their steps by name; raise `UsageError` if an import fails."""
    from oncemore.workers.find_steps import find_steps

    names = list(names)
    try:
        return {step.name: step for step in find_steps(names)}
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{', '.join(names)} cannot be imported: {type(error).__name__}: {error}; try it with python -c"
        ) from error


def import_step(address: str) -> Step[..., object]:
    """Return the step at package.module:name."""
    module, colon, name = address.partition(":")
    if not module or not colon or not name:
        raise UsageError(f"{address!r} is not the address of a step; write package.module:step")
    # The address names one step, so there is exactly one value.
    (step,) = import_steps([address]).values()
    return step


def parse_arguments(
    step: Step[Any, Any], pairs: Iterable[tuple[str, str]], json_text: str | None
) -> dict[str, Any]:
    """Return the arguments in NAME=VALUE pairs and in a JSON object, converted by their annotations."""
    hints, known = hints_of(step.__wrapped__), inspect.signature(step.__wrapped__).parameters
    arguments: dict[str, Any] = {}
    if json_text is not None:
        try:
            arguments = json.loads(json_text)
        except ValueError as error:
            raise UsageError(f"--args is not JSON: {error}") from None
        if not isinstance(arguments, dict):
            raise UsageError(f"--args takes an object with the step's parameters, not {json_text!r:.60}")
        arguments = {
            name: convert_argument("--args", name, value, hints.get(name), exact=True)
            for name, value in arguments.items()
        }
    for name, text in pairs:
        if name in arguments:
            raise UsageError(f"{name} is given twice")
        # A word on the command line has no type; "1" becomes 1 if the annotation says int.
        arguments[name] = convert_argument(step.name, name, text, hints.get(name), exact=False)
    wrong = sorted(set(arguments) - set(known))
    if wrong:
        raise UsageError(f"{step.name} has no parameter {', '.join(wrong)}; it has {', '.join(known)}")
    return arguments


def parse_json_value(text: str) -> Any:
    """Return the value of a JSON text from the command line."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"the value is not JSON: {error}; a text needs quotes of its own: '\"done\"'"
        ) from None


class SentSignal(Value):
    """A signal that was sent: the record of its run, and whether it was recorded now."""

    state: RunRecord
    is_new: bool


def signal_run(
    engine: Engine, name: str, signal: str, json_text: str | None, *, signal_id: str | None, by: str | None
) -> SentSignal:
    """Send a signal to the run with an id or a key, given in full or as a unique prefix."""
    value = None if json_text is None else parse_json_value(json_text)
    found = find_run(engine.store, name)
    run: Run[Any] = Run(engine, found.entity)
    if run.run_id != found.run_id:
        raise UsageError(f"run {found.run_id} has ended; the last run of its key is {run.run_id}")
    # A workflow may wait for a person's word, so that a signal from the command line is a decision.
    decider = authorize_run_decider(engine, by, found.entity).refuse_signature("a signal")
    with context(actor=decider.actor):
        return SentSignal(run.state, run.signal(signal, value, signal_id=signal_id))


def order_by_arguments(
    engine: Engine,
    verb: str,
    address: str,
    pairs: Iterable[tuple[str, str]],
    json_text: str | None,
    **options: Any,
) -> Run[Any]:
    """Call a method of a step with arguments from the command line; return the run afterwards.

    verb     the method: submit, cancel or rerun
    options  its keywords, and `by`, the actor to record
    """
    step = import_step(address)
    arguments = parse_arguments(step, pairs, json_text)
    with context(actor=resolve_actor(options.pop("by"))):
        return _call_step_method(step.bind(engine), verb, arguments, options)


def order_by_run(engine: Engine, verb: str, address: str, run: str, **options: Any) -> Run[Any]:
    """Call a method of a step for a recorded run, with its arguments, tenant and correlation id."""
    from oncemore.queries.run_timeline import load_timeline
    from oncemore.queries.runs import find_run
    from oncemore.steps.decorator import decode_arguments

    timeline = load_timeline(engine.store, find_run(engine.store, run))
    row, steps = timeline.row, import_steps([address])
    if row.step not in steps:
        raise UsageError(f"{row.run_id} is a run of {row.step}; {address} has {', '.join(sorted(steps))}")
    if not isinstance(timeline.arguments, dict):
        raise UsageError(f"{row.run_id}: its arguments are not recorded; give the step and its arguments")
    step = steps[row.step].bind(engine)
    arguments = decode_arguments(step, timeline.arguments)
    actor, correlation_id = resolve_actor(options.pop("by")), row.correlation_id or None
    with context(actor=actor, tenant=row.tenant or None, correlation_id=correlation_id):
        # The code may have changed since. Another key would be other work than the operator has named.
        if step.key(**arguments) != row.key:
            raise UsageError(
                f"{row.run_id}: {row.step} now computes another key from its arguments; give the arguments"
            )
        return _call_step_method(step, verb, arguments, options)


def _call_step_method(step: Any, verb: str, arguments: dict[str, Any], options: dict[str, Any]) -> Run[Any]:
    result = getattr(step, verb)(**arguments, **options)
    if hasattr(type(result), "__await__") and inspect.iscoroutine(result):
        result = asyncio.run(_await_result(result))
    # rerun() returns the step's value; the command shows the run.
    return result if verb != "rerun" else step.last_run(**arguments)  # type: ignore[no-any-return]


async def _await_result(result: Any) -> Any:
    return await result
