"""INBOX: work that comes as messages, each done once, however often it is delivered.

    inbox = oncemore.inbox.jetstream(charge, "nats://localhost:4222", stream="ORDERS", durable="shop")
    inbox.run()                                      # or: await inbox.serve()

    oncemore.inbox.sqs(charge, "https://sqs.eu-central-1.amazonaws.com/1234/orders.fifo").run()

    app = oncemore.inbox.endpoint(charge)            # an ASGI application: POST a message

or, as a program of its own, `oncemore inbox shop.orders:charge --from nats://localhost:4222/ORDERS/shop`.

Names only: what they stand for loads at first use, and so does the library of a queue.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.messaging.inbox_constructors import endpoint, inbox_at, jetstream, sqs
    from oncemore.messaging.inbox_flow import Letter
    from oncemore.messaging.inbox_service import Delivery, Inbox, Source, Taken

_HOMES = {
    "oncemore.messaging.inbox_constructors": "endpoint inbox_at jetstream sqs",
    "oncemore.messaging.inbox_flow": "Letter",
    "oncemore.messaging.inbox_service": "Delivery Inbox Source Taken",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = ["Delivery", "Inbox", "Letter", "Source", "Taken", "endpoint", "inbox_at", "jetstream", "sqs"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'oncemore.inbox' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
