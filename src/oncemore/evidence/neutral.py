"""Errors as neutral records: what may be kept of an exception, and nothing that could run or leak.

Names, codes and a masked message; where it was raised, by file name, line and function, without locals and
without folders. It is never read back into an exception: a stored class name is text, not something to
import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.evidence.redact import MASK, clean, message_of, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.core.model import Failure

MOST_FRAMES = 8
DEEPEST_CAUSE = 3
SHORTEST_SECRET = 4


def neutral(
    error: BaseException,
    failure: Failure | None = None,
    secrets: Iterable[str] = (),
    room: int = DEEPEST_CAUSE,
) -> dict[str, Any]:
    """Return what the log keeps of an error; never raises, whatever the error does."""
    kept: dict[str, Any] = {"type": name_of(error), "message": _without(secrets, message_of(error))}
    if failure is not None:
        kept.update(code=clean(failure.code, 100), kind=failure.kind, rule=clean(failure.rule, 100))
    frames = _frames(error)
    if frames:
        kept["frames"] = frames
    cause = error.__cause__
    if cause is not None and room:
        kept["cause"] = neutral(cause, None, secrets, room - 1)
    return kept


def _without(secrets: Iterable[str], text: str) -> str:
    for secret in secrets:
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return text


def _frames(error: BaseException) -> list[str]:
    found: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "oncemore" not in trace.tb_frame.f_globals.get("__name__", ""):
            file = code.co_filename.replace("\\", "/").rpartition("/")[2]
            found.append(clean(f"{file}:{trace.tb_lineno} {code.co_name}", 120))
        trace = trace.tb_next
    return found[-MOST_FRAMES:]
