"""Downloads the bytes behind a locator."""

from __future__ import annotations

from http.client import IncompleteRead
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from oncemore.profiles.nova_cat import names
from oncemore.profiles.nova_cat.input import TerminalError
from oncemore.retries.deadlines import time_remaining

#: The largest file to fetch, the size of one read, and the longest silence of a provider.
MAX_BYTES, CHUNK, READ_TIMEOUT_S = 256 * 2**20, 2**16, 60.0
HEADERS = {"User-Agent": "oncemore nova-cat", "Accept": "application/fits, */*"}


def download(locator: str, silence_s: float = READ_TIMEOUT_S) -> bytes:
    """Return the bytes behind an http or https address, within the time that is left for the attempt.

    silence_s  how long the provider may send nothing
    Raises `TerminalError` for more than `MAX_BYTES` bytes and `IncompleteRead` for a body that was cut.
    """
    remaining_s = time_remaining()
    timeout_s = silence_s if remaining_s is None else max(0.001, min(remaining_s, silence_s))
    try:
        with urlopen(Request(locator, headers=HEADERS), timeout=timeout_s) as response:  # noqa: S310 - http(s) only
            return _read_body(response)
    except HTTPError as error:
        error.close()  # the error outlives the call in logs and records, and would keep the connection open
        raise


def _read_body(response: Any) -> bytes:
    """Return the whole body of a response; refuse one that is cut or too large."""
    parts, size = [], 0
    while part := response.read(CHUNK):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise TerminalError(names.INVALID_FIELD, f"locator has more than {MAX_BYTES} bytes")
    # `length` counts the announced bytes that have not arrived; `read` in parts does not check it.
    if response.length:
        raise IncompleteRead(b"", response.length)
    return b"".join(parts)
