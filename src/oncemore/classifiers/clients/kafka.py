"""Rules for confluent-kafka, the client of Kafka.

All its errors are one class with a number: negative ones are librdkafka's own, the others the servers'.
librdkafka repeats a request by itself until the time limit of the message; an error that arrives here has
been repeated. A message that timed out may have been stored.
"""

from __future__ import annotations

from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind, Sent

#: What is known of a message after an error; anything else is permanent, and may have been stored.
_CODES: Final[dict[int, tuple[Kind, Sent]]] = {
    -195: ("transient", "maybe"),  # the connection broke
    -193: ("transient", "no"),  # the host name was not found
    -192: ("transient", "maybe"),  # the message timed out
    -188: ("transient", "no"),  # the topic is not known; an operator may still create it
    -187: ("transient", "no"),  # all servers are down
    -185: ("transient", "maybe"),  # a request timed out
    -184: ("throttled", "no"),  # the queue of the producer is full
    -169: ("permanent", "no"),  # authentication
    3: ("transient", "no"),  # no such topic or partition
    5: ("transient", "no"),  # no leader
    6: ("transient", "no"),  # not the leader
    7: ("transient", "maybe"),  # the request timed out
    10: ("permanent", "no"),  # the message is too large
    17: ("permanent", "no"),  # a topic must not have this name
    19: ("transient", "no"),  # too few replicas
    20: ("transient", "maybe"),  # too few replicas, after it was written
    29: ("permanent", "no"),  # not authorised for the topic
    30: ("permanent", "no"),  # not authorised for the group
    58: ("permanent", "no"),  # authentication
}


def _classify_kafka_error(error: BaseException, _classification: Classification, rule: str) -> Failure:
    """Classify by the number of the error that the exception carries."""
    inner = error.args[0] if error.args else None
    read_code = getattr(inner, "code", None)
    # The exception is also raised by hand, with a text.
    code = read_code() if callable(read_code) else None
    kind, sent = _CODES.get(code, ("permanent", "maybe"))  # type: ignore[arg-type]
    return Failure(kind, sent, None, f"KAFKA_{code}", rule)


TABLES: Final[dict[str, Table]] = {
    # The C extension has this name, without a package.
    "cimpl": {"KafkaException": _classify_kafka_error},
}
