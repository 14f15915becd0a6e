"""Finds the steps in modules, by the addresses that commands take."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError
from oncemore.steps.decorator import Step
from oncemore.steps.importing import import_for_command
from oncemore.steps.nodes import NodeStep, is_node, nodes_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.steps.importing import CallDuringImport


def as_step(value: object) -> Step[..., Any] | None:
    """Return a step, the step of a node, or None for any other object."""
    step = NodeStep(value) if is_node(value) else value
    return step if isinstance(step, Step) else None


def find_steps(addresses: Iterable[str]) -> list[Step[..., Any]]:
    """Return all steps of each `package.module`, and the single step of each `package.module:name`.

    Modules are imported with the working directory first. A module that calls its steps is imported up to
    that call, which is refused (`steps.importing`).
    """
    # A console script has its own folder on sys.path instead of the working directory.
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    steps_by_id: dict[int, Step[..., Any]] = {}
    for address in addresses:
        name, colon, attribute = address.partition(":")
        module, refused_call = _import_steps_module(name)
        try:
            steps = [_find_step(module, name, attribute)] if colon else _list_steps(module, name)
        except UsageError:
            # The step may be defined below the call that ended the import: then that call is the cause.
            if refused_call is not None:
                raise refused_call from None
            raise
        # By identity: a step that two modules import is one step, and must not be refused as a duplicate.
        steps_by_id.update((id(step), step) for step in steps)
    return list(steps_by_id.values())


def _list_steps(module: Any, name: str) -> list[Step[..., Any]]:
    steps = [value for value in vars(module).values() if isinstance(value, Step)]
    steps += nodes_in(module)
    if not steps:
        raise UsageError(f"module {name} has no steps; a step is a function under @oncemore.step")
    return steps


def find_attribute(module: Any, name: str) -> Any:
    """Return the value at a dotted name in a module, or None."""
    value = module
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _import_steps_module(name: str) -> tuple[Any, CallDuringImport | None]:
    try:
        return import_for_command(name)
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
    step = as_step(find_attribute(module, attribute))
    if step is None:
        raise UsageError(f"{name} has no step called {attribute!r}")
    return step
