"""How `nova-cat` gets the bytes behind a locator."""

from __future__ import annotations

from http.client import IncompleteRead
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from oncemore.profiles.nova_cat import names
from oncemore.profiles.nova_cat.input import TerminalError
from oncemore.retries.deadlines import remaining

#: The largest file that is fetched, how much is read at a time, and how long a provider may say nothing.
MOST_BYTES, CHUNK, SILENCE_S = 256 * 2**20, 2**16, 60.0
HEADERS = {"User-Agent": "oncemore nova-cat", "Accept": "application/fits, */*"}


def download(locator: str, silence_s: float = SILENCE_S) -> bytes:
    """Return the bytes behind an http or https address; within the time that the attempt has.

    silence_s  how long the other side may say nothing
    """
    left = remaining()
    wait = silence_s if left is None else max(0.001, min(left, silence_s))
    try:
        with urlopen(Request(locator, headers=HEADERS), timeout=wait) as answer:  # noqa: S310 - http(s) only
            return _read(answer)
    except HTTPError as error:
        error.close()  # it holds the connection, and is kept for as long as anybody tells of it
        raise


def _read(answer: Any) -> bytes:
    """Return the body of an answer, if all of it has come and it is not too much."""
    parts, size = [], 0
    while part := answer.read(CHUNK):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise TerminalError(names.INVALID_FIELD, f"there are more than {MOST_BYTES} bytes at locator")
    if answer.length:  # how much of what was announced has not come
        raise IncompleteRead(b"", answer.length)
    return b"".join(parts)
