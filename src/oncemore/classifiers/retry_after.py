"""Reads wait times that a provider sends outside of HTTP's own `Retry-After`.

Cloud services also send milliseconds in fields of their own. Google's services send a `RetryInfo`
inside the bytes of a gRPC status; its four nested messages are parsed here, because we cannot import
the protobuf library. Malformed values are ignored.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import MAX_WAIT_S, get_header

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

#: A status with more bytes or more fields is not parsed.
MAX_BYTES: Final = 65536
MAX_FIELDS: Final = 200

_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"


def read_milliseconds(headers: object, *names: str) -> float | None:
    """Return the seconds from the first of these header fields that holds a number."""
    for name in names:
        seconds = _parse_decimal(get_header(headers, name))
        if seconds is not None:
            return min(seconds / 1000, MAX_WAIT_S)
    return None


def delay_from_details(details: object) -> float | None:
    """Return the seconds of a `RetryInfo` among the details of a JSON error."""
    if not isinstance(details, (list, tuple)):
        return None
    for detail in details[:MAX_FIELDS]:
        if isinstance(detail, dict) and detail.get("@type") == _RETRY_INFO:
            delay = detail.get("retryDelay")
            seconds = _parse_decimal(delay[:-1]) if isinstance(delay, str) and delay.endswith("s") else None
            return None if seconds is None else min(seconds, MAX_WAIT_S)
    return None


def delay_from_status(data: object) -> float | None:
    """Return the seconds of a `RetryInfo` in the bytes of a `google.rpc.Status`."""
    if not isinstance(data, bytes) or len(data) > MAX_BYTES:
        return None
    try:
        for detail in _select_messages(data, 3):  # Status.details, each an Any
            if _RETRY_INFO.encode() in _select_messages(detail, 1):  # Any.type_url
                info = _select_messages(detail, 2)[0]
                return _duration_seconds(_select_messages(info, 1)[0])  # RetryInfo.retry_delay
    except (IndexError, ValueError):
        return None
    return None


def _duration_seconds(duration: bytes) -> float | None:
    fields = {number: value for number, value in _parse_fields(duration) if isinstance(value, int)}
    seconds, nanos = fields.get(1, 0), fields.get(2, 0)
    # A negative number is a varint with its highest bits set: there is nothing to wait for.
    if seconds >> 62 or nanos >> 62:
        return None
    return min(seconds + nanos / 1e9, MAX_WAIT_S)


def _select_messages(data: bytes, wanted: int) -> list[bytes]:
    return [value for number, value in _parse_fields(data) if number == wanted and isinstance(value, bytes)]


def _parse_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the numbers and values of a message's fields.

    Raises `ValueError` or `IndexError` if the bytes are not a protobuf message.
    """
    position = 0
    for _ in range(MAX_FIELDS):
        if position >= len(data):
            return
        key, position = _parse_varint(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _parse_varint(data, position)
            yield key >> 3, value
        elif kind == 2:
            size, position = _parse_varint(data, position)
            yield key >> 3, data[position : position + size]
            position += size
        # Fixed 64-bit and 32-bit fields do not occur in a RetryInfo; they are skipped.
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise ValueError(kind)


def _parse_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    # A varint has at most 10 bytes.
    for index in range(10):
        byte = data[position + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, position + index + 1
    raise ValueError(position)


def _parse_decimal(text: str | None) -> float | None:
    digits = (text or "").replace(".", "", 1)
    return float(text or "") if digits.isascii() and digits.isdigit() and len(digits) < 40 else None
