"""Errors as neutral records: what may be kept of an exception, and nothing that could run or leak.

Names, codes and a masked message; where it was raised, by file name, line and function, without locals and
without folders. It is never read back into an exception: a stored class name is text, not something to
import.

Secrets that are known are taken out of the whole message, in the forms in which messages show texts, before
anything is cut off: half a secret is found by nobody afterwards.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from oncemore._redact import MASK, clean, masked, name_of, read_message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.policy.model import Failure

MOST_FRAMES = 8
DEEPEST_CAUSE = 3
MOST_MEMBERS = 8
SHORTEST_SECRET = 4
#: How much of a message is searched for secrets; more is never shown, see `redact`.
MOST_SEARCHED = 100_000


def neutral(
    error: BaseException,
    failure: Failure | None = None,
    secrets: Iterable[str] = (),
    room: int = DEEPEST_CAUSE,
) -> dict[str, Any]:
    """Return what the log keeps of an error; never raises, whatever the error does."""
    secrets = tuple(secrets)
    kept: dict[str, Any] = {"type": name_of(error), "message": _message(error, secrets)}
    if failure is not None:
        kept.update(code=clean(failure.code, 100), kind=failure.kind, rule=clean(failure.rule, 100))
    frames = _frames(error)
    if frames:
        kept["frames"] = frames
    cause = _own(error, "__cause__")
    if cause is not None and room:
        kept["cause"] = neutral(cause, None, secrets, room - 1)
    if isinstance(error, BaseExceptionGroup) and room:
        members = BaseExceptionGroup.__dict__["exceptions"].__get__(error)
        kept["members"] = [neutral(one, None, secrets, room - 1) for one in members[:MOST_MEMBERS]]
    return kept


def _own(error: BaseException, name: str) -> Any:
    """Return what Python itself keeps with an error, whatever its class makes of the name."""
    return BaseException.__dict__[name].__get__(error)


def _message(error: BaseException, secrets: tuple[str, ...]) -> str:
    """Return what an error says of itself without secrets; also of one that cannot say it."""
    text = read_message(error)
    return masked(without(secrets, text) if secrets else text)


def without(secrets: Iterable[str], text: str) -> str:
    """Return a text in which no secret is left, as it is or quoted; a part behind its end is dropped."""
    known = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in _forms(secret)}
    reach = max(map(len, known), default=0)
    cut = len(text) > MOST_SEARCHED
    text = text[: MOST_SEARCHED + reach]
    for form in sorted(known, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text[:-reach] if cut and reach else text


def _forms(secret: str) -> set[str]:
    """Return a text as it is, and as a repr, JSON, a URL or a line without its ends shows it."""
    quoted = (quote(secret, safe, errors="replace") for safe in ("", "/"))
    escaped = repr(secret)[1:-1], json.dumps(secret)[1:-1], quote_plus(secret, errors="replace")
    forms = (secret, secret.strip(), *quoted, *escaped)
    return {form for form in forms if len(form) >= SHORTEST_SECRET}


def _frames(error: BaseException) -> list[str]:
    found: list[str] = []
    trace = _own(error, "__traceback__")
    while trace is not None:
        code = trace.tb_frame.f_code
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] != "oncemore":
            file = code.co_filename.replace("\\", "/").rpartition("/")[2]
            found.append(clean(f"{file}:{trace.tb_lineno} {code.co_name}", 120))
        trace = trace.tb_next
    return found[-MOST_FRAMES:]
