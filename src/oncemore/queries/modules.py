"""The steps that a user's modules define."""

from __future__ import annotations

from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.steps.decorator import Step


def steps_of(names: Iterable[str]) -> dict[str, Step[..., object]]:
    """Import modules, and return their steps by name; one that cannot be imported is named."""
    from oncemore.workers.service import steps_in

    names = list(names)
    try:
        return {step.name: step for step in steps_in(names)}
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{', '.join(names)} cannot be imported: {type(error).__name__}: {error}; try it with python -c"
        ) from error


def step_of(address: str) -> Step[..., object]:
    """Return the step at package.module:name."""
    module, colon, name = address.partition(":")
    if not module or not colon or not name:
        raise UsageError(f"{address!r} names no step; write package.module:step")
    (step,) = steps_of([address]).values()
    return step
