"""The steps that a user's modules define."""

from __future__ import annotations

from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.steps import Step


def steps_of(names: Iterable[str]) -> dict[str, Step[..., object]]:
    """Import modules, and return their steps by name; one that cannot be imported is named."""
    import sys
    from importlib import import_module

    from oncemore.steps import Step

    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: modules beside us are found
    found: dict[str, Step[..., object]] = {}
    for name in names:
        try:
            module = import_module(name)
        except Exception as error:
            raise UsageError(
                f"module {name} cannot be imported: {type(error).__name__}: {error}; is it on the path here?"
            ) from error
        for value in vars(module).values():
            if isinstance(value, Step):
                found[value.name] = value
    return found
