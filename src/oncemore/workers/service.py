"""WORK: doing what was handed in with `work.submit(…)`, and what calls have left waiting.

    worker = oncemore.Worker(engine, [poll, publish])
    worker.run()

or, as a program of its own, `oncemore worker package.module`. How it works is told in `workers.worker`; here
a worker is given the steps themselves, and modules are searched for them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError
from oncemore.steps.decorator import Step
from oncemore.steps.nodes import NodeStep, is_node, nodes_in
from oncemore.workers import worker
from oncemore.workers.worker_report import Worked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.steps.engine import Engine

__all__ = ["Worked", "Worker", "steps_in"]


class Worker(worker.Worker):
    """Does runs of the steps it is given: those that are due, and those that dead workers had.

    concurrency  how many runs may be under way at once: plain steps in threads, async ones on one event loop
    poll_s       how often to look for what has become due, where nothing else happens
    grace_s      how long `run()` and `close()` wait for what is under way when it is stopped
    """

    def __init__(
        self,
        engine: Engine,
        steps: Iterable[Step[..., Any]],
        *,
        concurrency: int = 5,
        poll_s: float = 1.0,
        grace_s: float = 30.0,
    ) -> None:
        hands = []
        for step in steps:
            made = NodeStep(step) if is_node(step) else step
            if not isinstance(made, Step):
                raise UsageError(f"{step!r} is no step; a worker takes functions under @oncemore.step")
            hands.append(made.hand)
        super().__init__(engine, hands, concurrency=concurrency, poll_s=poll_s, grace_s=grace_s)


def steps_in(addresses: Iterable[str]) -> list[Step[..., Any]]:
    """Return the steps of modules: all of `package.module`, or the one that `package.module:name` names.

    Modules are looked for as Python does, in the working directory first.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found: dict[int, Step[..., Any]] = {}
    for address in addresses:
        name, colon, attribute = address.partition(":")
        module = _imported(name)
        if colon:
            steps = [_named(module, name, attribute)]
        else:
            steps = [value for value in vars(module).values() if isinstance(value, Step)]
            steps += nodes_in(module)
            if not steps:
                raise UsageError(f"module {name} has no steps; a step is a function under @oncemore.step")
        found.update((id(step), step) for step in steps)
    return list(found.values())


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = f"{error.name}."
        if error.name is not None and f"{name}.".startswith(missing):
            raise UsageError(
                f"there is no module {name!r}; give its name as in an import, from a folder where that works"
            ) from error
        raise
    except (TypeError, ValueError) as error:
        if not name or name.startswith("."):
            raise UsageError(f"{name!r} is no module's name; write package.module") from error
        raise


def _named(module: Any, name: str, attribute: str) -> Step[..., Any]:
    step: Any = module
    for part in attribute.split("."):
        step = getattr(step, part, None)
    step = NodeStep(step) if is_node(step) else step
    if not isinstance(step, Step):
        raise UsageError(f"{name} has no step called {attribute!r}")
    return step
