"""Builds the record that the log keeps of an exception.

A record has names, codes, a masked message and the frames (file name, line, function), without local
variables and folders. It is never turned back into an exception: a stored class name is text, not a module
to import.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from oncemore._redact import MASK, clean_text, error_class_name, mask_text, read_message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.policy.model import Failure

MAX_FRAMES = 8
MAX_CAUSE_DEPTH = 3
MAX_MEMBERS = 8
#: Shorter secrets are not searched for: they would mask ordinary words.
MIN_SECRET_LENGTH = 4
#: How much of a message is searched for secrets; `mask_text` never shows more than that.
MAX_SEARCHED_CHARS = 100_000


def error_to_record(
    error: BaseException,
    failure: Failure | None = None,
    secrets: Iterable[str] = (),
    depth_left: int = MAX_CAUSE_DEPTH,
) -> dict[str, Any]:
    """Return the record of an error for the log; never raises, even if the error's own methods do."""
    secrets = tuple(secrets)
    record: dict[str, Any] = {"type": error_class_name(error), "message": _read_message(error, secrets)}
    if failure is not None:
        record.update(
            code=clean_text(failure.code, 100), kind=failure.kind, rule=clean_text(failure.rule, 100)
        )
    frames = _list_frames(error)
    if frames:
        record["frames"] = frames
    cause = _builtin_attribute(error, "__cause__")
    if cause is not None and depth_left:
        record["cause"] = error_to_record(cause, None, secrets, depth_left - 1)
    if isinstance(error, BaseExceptionGroup) and depth_left:
        # Read from the built-in class: a subclass may override `exceptions`, and raise there.
        members = BaseExceptionGroup.__dict__["exceptions"].__get__(error)
        record["members"] = [
            error_to_record(member, None, secrets, depth_left - 1) for member in members[:MAX_MEMBERS]
        ]
    return record


def _builtin_attribute(error: BaseException, name: str) -> Any:
    """Return an attribute as `BaseException` stores it, even if the error's class overrides the name."""
    return BaseException.__dict__[name].__get__(error)


def _read_message(error: BaseException, secrets: tuple[str, ...]) -> str:
    """Return the masked message of an error, also of one whose `__str__` raises."""
    text = read_message(error)
    # Secrets first: `mask_text` shortens the text, and a secret cut in half would not be found any more.
    return mask_text(remove_secrets(secrets, text) if secrets else text)


def remove_secrets(secrets: Iterable[str], text: str) -> str:
    """Return a text without the secrets, neither verbatim nor quoted; a very long text is shortened."""
    known = {form for secret in secrets if len(secret) >= MIN_SECRET_LENGTH for form in _secret_forms(secret)}
    reach = max(map(len, known), default=0)
    is_cut = len(text) > MAX_SEARCHED_CHARS
    # Search one secret's length beyond the limit, then drop that part: the cut may split a secret.
    text = text[: MAX_SEARCHED_CHARS + reach]
    # Longest first: replacing a short form inside a longer one would leave the rest of it visible.
    for form in sorted(known, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text[:-reach] if is_cut and reach else text


def _secret_forms(secret: str) -> set[str]:
    """Return a secret verbatim, stripped, and as repr, JSON and URLs quote it."""
    quoted = (quote(secret, safe, errors="replace") for safe in ("", "/"))
    escaped = repr(secret)[1:-1], json.dumps(secret)[1:-1], quote_plus(secret, errors="replace")
    forms = (secret, secret.strip(), *quoted, *escaped)
    return {form for form in forms if len(form) >= MIN_SECRET_LENGTH}


def _list_frames(error: BaseException) -> list[str]:
    """Return the innermost frames outside of oncemore, as "file:line function"."""
    frames: list[str] = []
    trace = _builtin_attribute(error, "__traceback__")
    while trace is not None:
        code = trace.tb_frame.f_code
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] != "oncemore":
            # Only the file's name: a folder may contain the name of a user or a customer.
            file = code.co_filename.replace("\\", "/").rpartition("/")[2]
            frames.append(clean_text(f"{file}:{trace.tb_lineno} {code.co_name}", 120))
        trace = trace.tb_next
    return frames[-MAX_FRAMES:]
