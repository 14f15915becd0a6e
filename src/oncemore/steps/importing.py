"""Refuses calls of steps while a command imports the module that defines them.

`oncemore runs rerun report …` imports `report` to find its steps. A script that calls a step in its last
lines, without `if __name__ == "__main__":`, would do the work during that import. Such a call raises
`CallDuringImport` instead, which ends the import; the steps defined above the call exist already, so the
command goes on with them.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError, log_warning

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The modules that commands are importing now, the outermost first. Not a context variable: a module may
#: start threads of its own while it is imported.
IMPORTING: list[str] = []


class CallDuringImport(UsageError):
    """A step was called while a command imported its module.

    module  the module as far as it was executed; None if another module of its import made the call
    """

    module: Any = None


def refuse_during_import(step: str) -> None:
    """Raise `CallDuringImport` for a call that a module makes while a command imports it."""
    if not IMPORTING:
        return
    name = IMPORTING[-1]
    refusal = CallDuringImport(
        f"{step} was called while a command imported {name}; nothing was run. Put the lines of {name} that "
        'call steps below `if __name__ == "__main__":`'
    )
    # Read now: Python removes a module from `sys.modules` when its import fails.
    refusal.module = sys.modules.get(name)
    raise refusal


def import_for_command(name: str) -> tuple[Any, CallDuringImport | None]:
    """Import a module without running its work; return it, and the call that ended its import if one did."""
    with _note_import(name):
        try:
            return import_module(name), None
        except CallDuringImport as refusal:
            if refusal.module is None:
                raise
            log_warning(str(refusal))
            sys.modules[name] = refusal.module
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, refusal.module)
            return refusal.module, refusal


@contextmanager
def _note_import(name: str) -> Iterator[None]:
    IMPORTING.append(name)
    try:
        yield
    finally:
        IMPORTING.pop()
