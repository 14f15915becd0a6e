"""The public `Worker`, which runs submitted and deferred work, and the search for steps in modules.

    worker = oncemore.Worker(engine, [poll, publish])
    worker.run()

The command `oncemore worker package.module` does the same. The loop itself is in `workers.worker`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError
from oncemore.steps.decorator import Step, known_step
from oncemore.steps.nodes import NodeStep, is_node, nodes_in
from oncemore.workers import worker
from oncemore.workers.worker_report import Worked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.steps.engine import Engine

__all__ = ["Worked", "Worker", "find_steps"]


class Worker(worker.WorkerCore):
    """Runs due work of the given steps, and takes over the runs of dead workers.

    concurrency  how many runs may be active at once: plain steps in threads, async steps on one event loop
    poll_s       how often to look for due runs while the log does not change
    grace_s      how long `run()` and `close()` wait for active runs after a stop
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
        known_steps = []
        for candidate in steps:
            step = NodeStep(candidate) if is_node(candidate) else candidate
            if not isinstance(step, Step):
                raise UsageError(
                    f"{candidate!r} is not a step; a worker takes functions under @oncemore.step"
                )
            known_steps.append(known_step(step))
        super().__init__(engine, known_steps, concurrency=concurrency, poll_s=poll_s, grace_s=grace_s)


def find_steps(addresses: Iterable[str]) -> list[Step[..., Any]]:
    """Return all steps of each `package.module`, and the single step of each `package.module:name`.

    Modules are imported as by `python -m`, with the working directory first.
    """
    # A console script has its own folder on sys.path instead of the working directory.
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    steps_by_id: dict[int, Step[..., Any]] = {}
    for address in addresses:
        name, colon, attribute = address.partition(":")
        module = _import_steps_module(name)
        if colon:
            steps = [_find_step(module, name, attribute)]
        else:
            steps = [value for value in vars(module).values() if isinstance(value, Step)]
            steps += nodes_in(module)
            if not steps:
                raise UsageError(f"module {name} has no steps; a step is a function under @oncemore.step")
        # By identity: a step that two modules import is one step, and must not be refused as a duplicate.
        steps_by_id.update((id(step), step) for step in steps)
    return list(steps_by_id.values())


def _import_steps_module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = f"{error.name}."
        # Only the module itself or its parent; a missing import inside of the module is another error.
        if error.name is not None and f"{name}.".startswith(missing):
            raise UsageError(
                f"there is no module {name!r}; give its name as in an import, from a folder where that works"
            ) from error
        raise
    except (TypeError, ValueError) as error:
        if not name or name.startswith("."):
            raise UsageError(f"{name!r} is not a module name; write package.module") from error
        raise


def _find_step(module: Any, name: str, attribute: str) -> Step[..., Any]:
    step: Any = module
    for part in attribute.split("."):
        step = getattr(step, part, None)
    step = NodeStep(step) if is_node(step) else step
    if not isinstance(step, Step):
        raise UsageError(f"{name} has no step called {attribute!r}")
    return step
