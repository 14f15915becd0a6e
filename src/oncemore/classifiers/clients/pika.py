"""Rules for pika, the client of RabbitMQ.

A message without a route, or to a missing exchange, was not stored anywhere; both are transient, because an
operator may still add what is missing. A negative confirmation says that the server could not take
responsibility for a message; parts of it may have been stored. Errors of an open connection prove nothing
about the last message.
"""

from __future__ import annotations

from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind, Sent

#: Reply codes of AMQP 0-9-1, of channels and of connections.
_CODES: Final[dict[int, tuple[Kind, Sent]]] = {
    311: ("permanent", "no"),  # the content is too large
    312: ("transient", "no"),  # no route
    313: ("transient", "no"),  # no consumers
    320: ("transient", "maybe"),  # an operator closed the connection, or the server stops
    402: ("permanent", "no"),  # the virtual host is not known
    403: ("permanent", "no"),  # access refused
    404: ("transient", "no"),  # no such exchange or queue
    405: ("transient", "no"),  # locked by another connection
    406: ("permanent", "no"),  # a precondition failed
    506: ("transient", "maybe"),  # resource error
    530: ("permanent", "no"),  # not allowed
    541: ("transient", "maybe"),  # internal error
}


def _classify_closed(error: BaseException, _classification: Classification, rule: str) -> Failure:
    """Classify by the reply code with which the server closed a channel or a connection."""
    reply_code = getattr(error, "reply_code", None)
    # An unknown code proves nothing about the last message.
    kind, sent = _CODES.get(reply_code, ("transient", "maybe"))  # type: ignore[arg-type]
    return Failure(kind, sent, None, f"AMQP_{reply_code}", rule)


TABLES: Final[dict[str, Table]] = {
    "pika": {
        "AMQPConnectionError": ("transient", "no", "CONNECTION_FAILED"),
        "ConnectionOpenAborted": ("transient", "no", "CONNECTION_FAILED"),
        "StreamLostError": ("transient", "maybe", "CONNECTION_CLOSED"),
        "AMQPHeartbeatTimeout": ("transient", "maybe", "CONNECTION_CLOSED"),
        "ConnectionBlockedTimeout": ("throttled", "maybe", "AMQP_BLOCKED"),
        "ConnectionClosed": _classify_closed,
        "ConnectionWrongStateError": ("transient", "no", "CONNECTION_CLOSED"),
        "ChannelClosed": _classify_closed,
        "ChannelWrongStateError": ("transient", "no", "CONNECTION_CLOSED"),
        "AuthenticationError": ("permanent", "no", "AMQP_403"),
        "ProbableAuthenticationError": ("permanent", "no", "AMQP_403"),
        "ProbableAccessDeniedError": ("permanent", "no", "AMQP_403"),
        "IncompatibleProtocolError": ("permanent", "no", "PROTOCOL"),
        "UnroutableError": ("transient", "no", "AMQP_312"),
        "NackError": ("transient", "maybe", "AMQP_NACK"),
        "BodyTooLongError": ("permanent", "no", ""),
        "ShortStringTooLong": ("permanent", "no", ""),
        "UnsupportedAMQPFieldException": ("permanent", "no", ""),
    }
}
