"""How long to stay away, where it is not said in HTTP's own `Retry-After`.

Cloud services also say it in milliseconds, in fields of their own; and Google's, over gRPC, in a
`RetryInfo` inside the bytes of a status, which are read here by hand: they are four messages deep, and
the library that made them is not ours to import. Whatever is malformed is ignored.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import LONGEST, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

#: A status with more bytes or more fields than this is not read.
MOST_BYTES: Final = 65536
MOST_FIELDS: Final = 200

_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"


def milliseconds(headers: object, *names: str) -> float | None:
    """Return the seconds that the first usable of these fields asks for."""
    for name in names:
        seconds = _decimal(field(headers, name))
        if seconds is not None:
            return min(seconds / 1000, LONGEST)
    return None


def in_details(details: object) -> float | None:
    """Return the seconds of a `RetryInfo` among the details of an error in JSON."""
    if not isinstance(details, (list, tuple)):
        return None
    for detail in details[:MOST_FIELDS]:
        if isinstance(detail, dict) and detail.get("@type") == _RETRY_INFO:
            delay = detail.get("retryDelay")
            seconds = _decimal(delay[:-1]) if isinstance(delay, str) and delay.endswith("s") else None
            return None if seconds is None else min(seconds, LONGEST)
    return None


def in_status(data: object) -> float | None:
    """Return the seconds of a `RetryInfo` in the bytes of a `google.rpc.Status`."""
    if not isinstance(data, bytes) or len(data) > MOST_BYTES:
        return None
    try:
        for detail in _messages(data, 3):  # Status.details, each an Any
            if _RETRY_INFO.encode() in _messages(detail, 1):  # Any.type_url
                info = _messages(detail, 2)[0]
                return _seconds(_messages(info, 1)[0])  # RetryInfo.retry_delay
    except (IndexError, ValueError):
        return None
    return None


def _seconds(duration: bytes) -> float | None:
    found = {number: value for number, value in _fields(duration) if isinstance(value, int)}
    seconds, nanos = found.get(1, 0), found.get(2, 0)
    if seconds >> 62 or nanos >> 62:  # negative
        return None
    return min(seconds + nanos / 1e9, LONGEST)


def _messages(data: bytes, wanted: int) -> list[bytes]:
    return [value for number, value in _fields(data) if number == wanted and isinstance(value, bytes)]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Give the numbers and values of a message's fields; ValueError or IndexError where it makes no sense."""
    at = 0
    for _ in range(MOST_FIELDS):
        if at >= len(data):
            return
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif kind == 2:
            size, at = _varint(data, at)
            yield key >> 3, data[at : at + size]
            at += size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(kind)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError(at)


def _decimal(text: str | None) -> float | None:
    digits = (text or "").replace(".", "", 1)
    return float(text or "") if digits.isascii() and digits.isdigit() and len(digits) < 40 else None
