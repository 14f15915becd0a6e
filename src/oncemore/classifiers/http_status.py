"""What an HTTP answer means: its status, and how long it asks us to stay away.

The classes are those of RFC 9110 and its neighbours. Two judgements are ours:

* A 503 or 529 that carries a usable `Retry-After` is *throttled*: the other side is up and asks us
  to slow down. Without the field it is *transient*. The code stays HTTP_503 either way.
* `sent` is "no" where the status itself says that the request was refused (4xx, 501, 505), and
  "maybe" for every other 5xx, for 408 (the server may have acted on what it had) and for 3xx (the
  redirect after a POST often means that it worked).

How long to stay away, the first that is there: `Retry-After`; `RateLimit` where `r` is 0: its `t`, else the
window `w` that `RateLimit-Policy` has for a quota of that name; on a throttled answer also
`RateLimit-Reset`, `X-RateLimit-Reset`, unless their `-Remaining` says that something is left. A reset is in
seconds from now or in seconds or milliseconds since 1970: the three cannot be confused, since 10⁹ seconds
are 31 years. Malformed fields are ignored.

A date in `Retry-After` is the server's, and so is the `Date` of the answer: where both are there, their
difference is what is waited, and a clock that is wrong, ours or theirs, makes nobody come too early. An
answer out of a cache (it has an `Age`) has an old `Date`, which is of no use.
"""

from __future__ import annotations

from oncemore.classifiers.http_date import parse_http_date
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.policy.model import Kind, Sent

#: The longest wait that is ever reported, in seconds (31 years): enough to mean "do not wait for it".
LONGEST: Final = 1e9

RULE: Final = "http:status"

_NAMED: Final[dict[int, tuple[Kind, Sent]]] = {
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
_SLOW_DOWN: Final = (503, 529)
#: Stands for a quoted text while a field is split.
_ASIDE: Final = "\x00"
_known: dict[int, Failure] = {}


def classify_status(status: int, headers: object, now: float) -> Failure | None:
    """Say what an answer means; None when it is no failure (below 400).

    `headers` is any mapping of names to values (or None); names are found whatever their case.
    """
    return failed_status(status, headers, now) if status >= 400 else None


def failed_status(status: int, headers: object, now: float) -> Failure:
    """Say what a status means that the client raised as an error, whatever its number."""
    failure = _known.get(status) or _learn(status)
    if failure.kind == "permanent" or headers is None:
        return failure
    wait = _asked_for(headers, now)
    if wait is None and (failure.kind == "throttled" or status in _SLOW_DOWN):
        wait = _until_quota(headers)
    if wait is not None:
        kind: Kind = "throttled" if status in _SLOW_DOWN else failure.kind
        return failure._replace(kind=kind, retry_after=wait)
    if failure.kind == "throttled":
        wait = _until_reset(headers, now)
        if wait is not None:
            return failure._replace(retry_after=wait)
    return failure


def _asked_for(headers: object, now: float) -> float | None:
    """Return what `Retry-After` asks for; a date by the clock of the server that wrote it."""
    text = field(headers, "Retry-After")
    if text is None:
        return None
    written = None if field(headers, "Age") else parse_http_date((field(headers, "Date") or "")[:100], now)
    return parse_retry_after(text, now if written is None else written)


def by_response(error: BaseException, look: Look, rule: str) -> Failure:
    """Read an error that carries its answer as `.response`, as httpx's and requests' do."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(status, int):
        return failed_status(status, getattr(response, "headers", None), look.now)
    return Failure("permanent", "maybe", None, "HTTP", rule)


def _learn(status: int) -> Failure:
    refused: Sent = "no" if 400 <= status < 500 else "maybe"
    kind, sent = _NAMED.get(status, ("permanent", refused))
    failure = Failure(kind, sent, None, f"HTTP_{status:d}", RULE)
    if 100 <= status <= 999:  # so that the table stays small whatever servers invent
        _known[status] = failure
    return failure


def parse_retry_after(text: object, now: float) -> float | None:
    """Return the seconds from `now` that a `Retry-After` value asks for, or None if it is malformed.

    Never negative, and never more than `LONGEST`.
    """
    if not isinstance(text, str) or len(text) > 500:
        return None
    text = text.strip()
    seconds = _decimal(text)
    if seconds is None:
        date = parse_http_date(text, now)
        if date is None:
            return None
        seconds = date - now
    return min(max(0.0, seconds), LONGEST)


def _decimal(text: str) -> float | None:
    """Read digits with an optional sign and fraction; no exponent, no 'nan', no other alphabet."""
    digits = text.removeprefix("-").replace(".", "", 1)
    return float(text) if digits.isascii() and digits.isdigit() else None


def field(headers: object, name: str) -> str | None:
    """Return a header's value from any client's headers, whatever the case of their names."""
    get = getattr(headers, "get", None)
    if get is None:
        return None
    lower = name.lower()
    value = get(name)
    if value is None:
        value = get(lower)
    if value is None and isinstance(headers, dict):
        value = next((v for k, v in headers.items() if isinstance(k, str) and k.lower() == lower), None)
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return value if isinstance(value, str) else None


def _until_quota(headers: object) -> float | None:
    """Return the longest wait among the quotas of a RateLimit field that have nothing left (`r=0`)."""
    waits = []
    for name, values in _quotas(field(headers, "RateLimit")):
        if values.get("r") != "0":
            continue
        wait = _decimal(values.get("t", ""))
        if wait is None:
            policies = _quotas(field(headers, "RateLimit-Policy"))
            wait = next((_decimal(told.get("w", "")) for other, told in policies if other == name), None)
        if wait is not None:
            waits.append(min(max(0.0, wait), LONGEST))
    return max(waits, default=None)


def _until_reset(headers: object, now: float) -> float | None:
    for prefix in ("RateLimit", "X-RateLimit"):
        reset = _decimal(field(headers, f"{prefix}-Reset") or "")
        left = _decimal(field(headers, f"{prefix}-Remaining") or "0")
        if reset is not None and not left:
            return _from_now(reset, now)
    return None


def _quotas(text: str | None) -> list[tuple[str, dict[str, str]]]:
    """Return the members of a RateLimit or RateLimit-Policy field: a quota's name, and its parameters.

    A quoted name may hold the very commas and semicolons that we split at; it is put aside first.
    """
    pieces = (text or "")[:2000].replace('\\"', "").split('"')
    quoted = iter(pieces[1::2])
    found = []
    for item in _ASIDE.join(pieces[::2]).split(","):
        head, *parts = item.split(";")
        texts = [next(quoted, "") for _ in range(item.count(_ASIDE))]
        name = texts[0] if _ASIDE in head else head.strip()
        pairs = (part.strip().partition("=") for part in parts)
        found.append((name, {key: value for key, _, value in pairs}))
    return found


def _from_now(reset: float, now: float) -> float:
    if reset >= 1e11:
        reset /= 1000
    seconds = reset - now if reset >= LONGEST else reset
    return min(max(0.0, seconds), LONGEST)
