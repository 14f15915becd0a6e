"""The default engine of a step: the one of the innermost `with engine:` block around the call.

A context variable has the entered engines. A task inherits it; a new thread does not, and uses the engine
that the process has entered.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from oncemore._platform import run_after_fork
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.steps.engine import Engine

#: The engines of the `with` blocks around this code, the innermost last.
ENTERED_ENGINES: ContextVar[tuple[Engine, ...]] = ContextVar("oncemore.engines", default=())
#: The engines that this process has entered and not left, in any thread.
_entered: list[Engine] = []


def enter_engine(engine: Engine) -> None:
    """Make an engine the default of all steps called from here on, also in threads without a context."""
    if engine not in _entered:
        _entered.append(engine)
    ENTERED_ENGINES.set((*ENTERED_ENGINES.get(), engine))


def leave_engine(engine: Engine, *, last: bool) -> None:
    """End a block; `last` says that the process is in no other block of this engine."""
    # Innermost first, so that `remove` ends the innermost of several blocks of one engine.
    engines = list(reversed(ENTERED_ENGINES.get()))
    # A block may end in another task than it began in, as those of test fixtures do.
    if engine in engines:
        engines.remove(engine)
    ENTERED_ENGINES.set(tuple(reversed(engines)))
    if last and engine in _entered:
        _entered.remove(engine)


@contextmanager
def use_engine(engine: Engine) -> Iterator[None]:
    """Make an engine the default of all steps called inside, without closing it afterwards."""
    token = ENTERED_ENGINES.set((*ENTERED_ENGINES.get(), engine))
    try:
        yield
    finally:
        ENTERED_ENGINES.reset(token)


def current_engine() -> Engine | None:
    """Return the engine of the innermost `with engine:` block around the caller, or None.

    A thread without a context uses the engine that the process has entered. Several engines are refused,
    because each of them could be the wrong store.
    """
    engines = ENTERED_ENGINES.get()
    if engines:
        return engines[-1]
    # A copy: another thread may enter or leave an engine meanwhile.
    entered = _entered[:]
    if len(entered) > 1:
        raise UsageError(
            "this thread is not inside a `with engine:` block, and the process has entered "
            f"{len(entered)} engines: {', '.join(engine.url for engine in entered)}; name the one to use "
            "with step.bind(engine), or start the thread with contextvars.copy_context().run"
        )
    return entered[0] if entered else None


def _after_fork() -> None:
    """Forget the blocks of other threads: a forked child has only the thread that forked."""
    _entered[:] = dict.fromkeys(ENTERED_ENGINES.get()) or _entered


run_after_fork(_after_fork)
