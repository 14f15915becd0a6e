"""Messages as CloudEvents 1.0, structured (one JSON document) or binary (attributes in header fields).

    id, source, type    the message's id, who sends it, its topic; the same in every attempt
    time                when it was given away
    correlationid       what ties it to the work that gave it away
    partitionkey        its lane, and `sequence` its place in that
    tenant              whose it is, where it is somebody's

`source` and `id` together are what a consumer drops repeats by. The number of the attempt is no attribute: it
stands beside, as `Oncemore-Attempt`, so that an event is the same bytes in every attempt.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from oncemore.errors import PermanentError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.messaging.message import Message

    Written = tuple[dict[str, str], bytes]

STRUCTURED = "application/cloudevents+json"
_json = msgspec.json.Encoder(order="deterministic")
#: What stands as it is in a header field: all from "!" to "~" but the quote and the percent sign.
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


def attributes(message: Message, source: str) -> dict[str, str]:
    """Return what a message says of itself, in the words of CloudEvents."""
    told = {
        "specversion": "1.0",
        "id": message.id,
        "source": source,
        "type": message.topic,
        "time": datetime.fromtimestamp(message.created, UTC).isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "correlationid": message.correlation_id,
        "partitionkey": message.lane,
        "sequence": f"{message.sequence:020d}",
        "tenant": message.tenant,
    }
    return {name: value for name, value in told.items() if value}


def structured(message: Message, source: str) -> Written:
    """Return header fields and body of an event that is one JSON document."""
    whole = {**attributes(message, source), "data": message.payload}
    return {"Content-Type": STRUCTURED}, _written(whole, message)


def binary(message: Message, source: str) -> Written:
    """Return header fields and body of an event whose attributes are header fields."""
    told = attributes(message, source)
    fields = {"Content-Type": told.pop("datacontenttype")}
    fields.update((f"ce-{name}", quote(value, safe=_PLAIN)) for name, value in told.items())
    return fields, _written(message.payload, message)


def plain(message: Message, source: str) -> Written:
    """Return header fields and body of a message in our own words."""
    return {"Content-Type": "application/json"}, message.json()


FORMS: dict[str, Callable[[Message, str], Written]] = {
    "message": plain,
    "cloudevents": structured,
    "cloudevents-binary": binary,
}


def form_of(form: str, source: str) -> Callable[[Message], Written]:
    """Return what writes messages in a form; refuse a form or a source that is none."""
    if form not in FORMS:
        raise UsageError(f"form is {form!r}; the choices are {', '.join(FORMS)}")
    if not isinstance(source, str) or not source or any(sign.isspace() for sign in source):
        raise UsageError(f"source is {source!r}; it takes a URI of whoever sends: /shop, https://example.org")
    write = FORMS[form]
    return lambda message: write(message, source)


def _written(plain: Any, message: Message) -> bytes:
    try:
        return _json.encode(plain)
    except (TypeError, ValueError) as fault:
        raise PermanentError(
            f"the payload of {message.topic!r} has no form in plain JSON: {fault}; take a sink of your own"
        ) from None
