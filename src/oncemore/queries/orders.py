"""Orders by name: hand a step's work in, cancel it, run it again; arguments are words."""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any

from oncemore.errors import UsageError
from oncemore.maintenance.tasks import somebody
from oncemore.queries.import_keys import argument_of
from oncemore.queries.modules import step_of
from oncemore.steps.context import context
from oncemore.steps.options import hints_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.steps.decorator import Step
    from oncemore.steps.engine import Engine
    from oncemore.steps.run import Run


def arguments(step: Step[Any, Any], words: Iterable[tuple[str, str]], whole: str | None) -> dict[str, Any]:
    """Return the arguments that NAME=VALUE words and a JSON object stand for, as their annotations say."""
    hints, known = hints_of(step.__wrapped__), inspect.signature(step.__wrapped__).parameters
    told: dict[str, Any] = {}
    if whole is not None:
        try:
            told = json.loads(whole)
        except ValueError as fault:
            raise UsageError(f"--args is no JSON: {fault}") from None
        if not isinstance(told, dict):
            raise UsageError(f"--args takes an object with the step's parameters, not {whole!r:.60}")
        told = {
            name: argument_of("--args", name, value, hints.get(name), exact=True)
            for name, value in told.items()
        }
    for name, text in words:
        if name in told:
            raise UsageError(f"{name} is given twice")
        told[name] = argument_of(step.name, name, text, hints.get(name), exact=False)
    wrong = sorted(set(told) - set(known))
    if wrong:
        raise UsageError(f"{', '.join(wrong)}: no parameter of {step.name}, which has {', '.join(known)}")
    return told


def value_of(text: str) -> Any:
    """Return the value that JSON on a command line stands for."""
    try:
        return json.loads(text)
    except ValueError as fault:
        raise UsageError(
            f"the value is no JSON: {fault}; a text needs quotes of its own: '\"done\"'"
        ) from None


def order(
    engine: Engine, what: str, address: str, words: Iterable[tuple[str, str]], whole: str | None, **told: Any
) -> Run:
    """Give one order about a step's work, in somebody's name; return the run as it is then."""
    found = step_of(address)
    named = arguments(found, words, whole)
    with context(actor=somebody(told.pop("by"))):
        return _given(found.on(engine), what, named, told)


def order_about(engine: Engine, what: str, address: str, run: str, **told: Any) -> Run:
    """Give one order about a run by its name, with the arguments, tenant and course that are on record."""
    from oncemore.log.tagged_json import untag
    from oncemore.queries.modules import steps_of
    from oncemore.queries.run_timeline import story
    from oncemore.queries.runs import find

    of = story(engine.store, find(engine.store, run))
    row, steps = of.row, steps_of([address])
    if row.step not in steps:
        raise UsageError(f"{row.run_id} is a run of {row.step}; {address} has {', '.join(sorted(steps))}")
    if not isinstance(of.arguments, dict):
        raise UsageError(f"{row.run_id}: its arguments are not on record; give the step and its arguments")
    named, step = {name: untag(value) for name, value in of.arguments.items()}, steps[row.step].on(engine)
    who, course = somebody(told.pop("by")), row.correlation_id or None
    with context(actor=who, tenant=row.tenant or None, correlation_id=course):
        if step.key(**named) != row.key:
            raise UsageError(
                f"{row.run_id}: {row.step} makes another key of its arguments now; give them yourself"
            )
        return _given(step, what, named, told)


def _given(step: Any, what: str, named: dict[str, Any], told: dict[str, Any]) -> Run:
    answer = getattr(step, what)(**named, **told)
    if hasattr(type(answer), "__await__") and inspect.iscoroutine(answer):
        answer = asyncio.run(_awaited(answer))
    return answer if what != "rerun" else step.last(**named)  # type: ignore[no-any-return]


async def _awaited(answer: Any) -> Any:
    return await answer
