"""Inboxes: call a step once for each incoming message, however often it is delivered.

    inbox = oncemore.inbox.jetstream(charge, "nats://localhost:4222", stream="ORDERS", durable="shop")
    inbox.run()                                      # or: await inbox.serve()

    oncemore.inbox.sqs(charge, "https://sqs.eu-central-1.amazonaws.com/1234/orders.fifo").run()

    oncemore.inbox.rabbitmq(charge, "amqp://localhost:5672", queue="orders").run()

    app = oncemore.inbox.endpoint(charge)            # an ASGI application: POST a message

or, from the command line, `oncemore inbox shop.orders:charge --from nats://localhost:4222/ORDERS/shop`.
The names load at first use, and so does the client library of a queue.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.messaging.inbox_constructors import endpoint, inbox_from_url, jetstream, rabbitmq, sqs
    from oncemore.messaging.inbox_flow import InboxMessage
    from oncemore.messaging.inbox_service import Inbox
    from oncemore.messaging.message_handler import InboxStats
    from oncemore.messaging.sources.source import MessageSource, ReceivedMessage

# The same names as strings: the imports above are only for the type checker.
_NAMES_BY_MODULE = {
    "oncemore.messaging.inbox_constructors": "endpoint inbox_from_url jetstream rabbitmq sqs",
    "oncemore.messaging.inbox_flow": "InboxMessage",
    "oncemore.messaging.inbox_service": "Inbox",
    "oncemore.messaging.message_handler": "InboxStats",
    "oncemore.messaging.sources.source": "MessageSource ReceivedMessage",
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

__all__ = [
    "Inbox",
    "InboxMessage",
    "InboxStats",
    "MessageSource",
    "ReceivedMessage",
    "endpoint",
    "inbox_from_url",
    "jetstream",
    "rabbitmq",
    "sqs",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'oncemore.inbox' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value  # so that the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
