"""Classifies HTTP answers: by status, with the wait time that the answer asks for.

The classes are those of RFC 9110 and related documents. Two decisions are ours:

* A 503 or 529 with a usable `Retry-After` is *throttled*: the server works and asks us to slow down.
  Without the field it is *transient*. The code stays HTTP_503 either way.
* `sent` is "no" where the status says that the request was refused (4xx, 501, 505), and "maybe" for
  every other 5xx, for 408 (the server may have acted on a partial request) and for 3xx (a redirect
  after a POST often means that it worked).

The wait time is the first of these: `Retry-After`; `RateLimit` where `r` is 0: its `t`, else the
window `w` of the quota with that name in `RateLimit-Policy`; on a throttled answer also
`RateLimit-Reset` and `X-RateLimit-Reset`, unless their `-Remaining` is above 0. A reset is in seconds
from now, or in seconds or milliseconds since 1970. The ranges do not overlap: 10⁹ seconds are 31 years.
Malformed fields are ignored.

A date in `Retry-After` and the `Date` of the answer both come from the server's clock. If both are
present, the wait is their difference, so a wrong clock on either side never shortens it. An answer from
a cache (with an `Age`) has an old `Date`, which is not used.
"""

from __future__ import annotations

from oncemore.classifiers.http_date import parse_http_date
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.policy.model import Kind, Sent

#: The longest reported wait in seconds (31 years), far beyond every cap.
MAX_WAIT_S: Final = 1e9

STATUS_RULE: Final = "http:status"

#: Kind and `sent` by status; all remaining statuses are permanent.
_STATUS_FACTS: Final[dict[int, tuple[Kind, Sent]]] = {
    408: ("transient", "maybe"),
    409: ("conflict", "no"),
    412: ("conflict", "no"),
    423: ("conflict", "no"),
    425: ("transient", "no"),
    429: ("throttled", "no"),
    500: ("transient", "maybe"),
    501: ("permanent", "no"),
    502: ("transient", "maybe"),
    503: ("transient", "maybe"),
    504: ("transient", "maybe"),
    505: ("permanent", "no"),
    **dict.fromkeys(range(520, 525), ("transient", "maybe")),  # a CDN about the server behind it
    529: ("transient", "maybe"),
}
_OVERLOAD_STATUSES: Final = (503, 529)
#: Replaces a quoted text while a header field is split.
_PLACEHOLDER: Final = "\x00"
_failure_cache: dict[int, Failure] = {}


def classify_status(status: int, headers: object, now: float) -> Failure | None:
    """Return the failure that an answer means; None if it is not a failure (below 400).

    `headers` is a mapping of names to values, or None; the case of names does not matter.
    """
    return classify_failed_status(status, headers, now) if status >= 400 else None


def classify_failed_status(status: int, headers: object, now: float) -> Failure:
    """Return the failure for a status of any number that the client raised as an error."""
    failure = _failure_cache.get(status) or _make_failure(status)
    if failure.kind == "permanent" or headers is None:
        return failure
    wait = _read_retry_after(headers, now)
    if wait is None and (failure.kind == "throttled" or status in _OVERLOAD_STATUSES):
        wait = _quota_wait(headers)
    if wait is not None:
        kind: Kind = "throttled" if status in _OVERLOAD_STATUSES else failure.kind
        return failure._replace(kind=kind, retry_after=wait)
    if failure.kind == "throttled":
        wait = _reset_wait(headers, now)
        if wait is not None:
            return failure._replace(retry_after=wait)
    return failure


def _read_retry_after(headers: object, now: float) -> float | None:
    """Return the wait from `Retry-After`; a date is read by the clock of the server that wrote it."""
    text = get_header(headers, "Retry-After")
    if text is None:
        return None
    server_time = (
        None
        if get_header(headers, "Age")
        else parse_http_date((get_header(headers, "Date") or "")[:100], now)
    )
    return parse_retry_after(text, now if server_time is None else server_time)


def classify_by_response(error: BaseException, classification: Classification, rule: str) -> Failure:
    """Classify an error with its answer in `.response`, as in httpx and requests."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(status, int):
        return classify_failed_status(status, getattr(response, "headers", None), classification.now)
    return Failure("permanent", "maybe", None, "HTTP", rule)


def _make_failure(status: int) -> Failure:
    refused: Sent = "no" if 400 <= status < 500 else "maybe"
    kind, sent = _STATUS_FACTS.get(status, ("permanent", refused))
    failure = Failure(kind, sent, None, f"HTTP_{status:d}", STATUS_RULE)
    # Only plausible numbers are cached, so that invented statuses cannot fill the memory.
    if 100 <= status <= 999:
        _failure_cache[status] = failure
    return failure


def parse_retry_after(text: object, now: float) -> float | None:
    """Return the seconds from `now` in a `Retry-After` value, or None if it is malformed.

    The result is never negative and never above `MAX_WAIT_S`.
    """
    if not isinstance(text, str) or len(text) > 500:
        return None
    text = text.strip()
    seconds = _parse_decimal(text)
    if seconds is None:
        date = parse_http_date(text, now)
        if date is None:
            return None
        seconds = date - now
    return min(max(0.0, seconds), MAX_WAIT_S)


def _parse_decimal(text: str) -> float | None:
    """Return digits with an optional sign and fraction as a number; no exponent, no 'nan', ASCII only."""
    digits = text.removeprefix("-").replace(".", "", 1)
    return float(text) if digits.isascii() and digits.isdigit() else None


def get_header(headers: object, name: str) -> str | None:
    """Return a header's value from the headers of any client; the case of names does not matter."""
    get = getattr(headers, "get", None)
    if get is None:
        return None
    lower = name.lower()
    value = get(name)
    # The clients' own header classes ignore case; a plain dict does not.
    if value is None:
        value = get(lower)
    if value is None and isinstance(headers, dict):
        value = next((v for k, v in headers.items() if isinstance(k, str) and k.lower() == lower), None)
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return value if isinstance(value, str) else None


def _quota_wait(headers: object) -> float | None:
    """Return the longest wait among the exhausted quotas (`r=0`) of a RateLimit field."""
    waits = []
    for name, values in _parse_quotas(get_header(headers, "RateLimit")):
        if values.get("r") != "0":
            continue
        wait = _parse_decimal(values.get("t", ""))
        if wait is None:
            policies = _parse_quotas(get_header(headers, "RateLimit-Policy"))
            wait = next(
                (_parse_decimal(policy.get("w", "")) for quota, policy in policies if quota == name), None
            )
        if wait is not None:
            waits.append(min(max(0.0, wait), MAX_WAIT_S))
    return max(waits, default=None)


def _reset_wait(headers: object, now: float) -> float | None:
    for prefix in ("RateLimit", "X-RateLimit"):
        reset = _parse_decimal(get_header(headers, f"{prefix}-Reset") or "")
        left = _parse_decimal(get_header(headers, f"{prefix}-Remaining") or "0")
        if reset is not None and not left:
            return _reset_to_seconds(reset, now)
    return None


def _parse_quotas(text: str | None) -> list[tuple[str, dict[str, str]]]:
    """Return the members of a RateLimit or RateLimit-Policy field: each quota's name and parameters.

    A quoted name may contain commas and semicolons, at which the field is split; it is replaced first.
    """
    pieces = (text or "")[:2000].replace('\\"', "").split('"')
    quoted = iter(pieces[1::2])
    quotas = []
    for item in _PLACEHOLDER.join(pieces[::2]).split(","):
        head, *parts = item.split(";")
        texts = [next(quoted, "") for _ in range(item.count(_PLACEHOLDER))]
        name = texts[0] if _PLACEHOLDER in head else head.strip()
        pairs = (part.strip().partition("=") for part in parts)
        quotas.append((name, {key: value for key, _, value in pairs}))
    return quotas


def _reset_to_seconds(reset: float, now: float) -> float:
    # 1e11 seconds are the year 5138, so a number that large is in milliseconds.
    if reset >= 1e11:
        reset /= 1000
    seconds = reset - now if reset >= MAX_WAIT_S else reset
    return min(max(0.0, seconds), MAX_WAIT_S)
