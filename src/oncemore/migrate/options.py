"""The arguments of a call of `oncemore.retry` or `oncemore.attempts`, as source text."""

from __future__ import annotations

from oncemore._values import Value

#: Above this width a call is written with one argument per line.
LINE_WIDTH = 100
#: `oncemore` warns at the line of the decorator from these numbers of attempts on.
CONSTANT_WAIT_ATTEMPTS, MANY_ATTEMPTS = 3, 11
MOST_ATTEMPTS = 1000
#: Differences of `total_timeout=` from the limits of the other libraries.
CANCELS = "total_timeout also cancels an attempt of a coroutine that is still running"


def compare_timeouts(other: str, is_async: bool | None) -> tuple[str, ...]:
    """Return the differences of `total_timeout=`; `other` is the behaviour of the other library."""
    late = f"total_timeout does not start a wait that does not fit, where {other}"
    # A plain function is never interrupted; a coroutine is, and so may be a function that is not seen.
    return (late,) if is_async is False else (late, CANCELS)


class CannotMigrate(Exception):
    """A call that is left as it is; the text is the reason, with the next step where there is one."""


class RetryCall(Value):
    """The arguments of the new call.

    attempts      the number as text, and as a number if it is known
    differences   changes of behaviour, one sentence each
    notes         other things to know, such as an argument that is no longer needed
    imports       modules besides oncemore that the arguments need
    """

    on: str
    attempts: str
    attempts_number: int | None
    wait: str
    jitter: str = ""
    until: str = ""
    total_timeout: str = ""
    fallback: str = ""
    on_retry: str = ""
    name: str = ""
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()


#: The arguments in their order in the new call.
WRITTEN = (
    *("on", "until", "attempts", "total_timeout", "wait", "jitter", "fallback", "on_retry", "name"),
)  # fmt: skip


def render_call(function: str, call: RetryCall, *, several_lines: bool) -> str:
    """Return the source of the new call, on one line if it fits and the old call was on one line."""
    arguments = [f"{name}={value}" for name in WRITTEN if (value := getattr(call, name))]
    line = f"{function}({', '.join(arguments)})"
    if not several_lines and len(line) <= LINE_WIDTH:
        return line
    body = "".join(f"    {argument},\n" for argument in arguments)
    return f"{function}(\n{body})"


def list_warnings(call: RetryCall) -> tuple[str, ...]:
    """Return a note for each `PolicyWarning` that the new call will give."""
    if call.attempts_number is None:
        return ()
    notes = []
    # A schedule grows and a jitter spreads; plain seconds without jitter do neither.
    is_constant = not call.jitter and not call.wait.startswith(("[", "oncemore."))
    if is_constant and call.attempts_number >= CONSTANT_WAIT_ATTEMPTS:
        notes.append("a constant wait without jitter gives a PolicyWarning")
    if call.attempts_number >= MANY_ATTEMPTS:
        notes.append("more than ten attempts give a PolicyWarning")
    return tuple(notes)
