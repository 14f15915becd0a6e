"""Constructors of inboxes: for queues and streams, an address of one, and an HTTP endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from oncemore.errors import UsageError
from oncemore.messaging.inbox_service import Inbox
from oncemore.messaging.sources.http import DEFAULT_MAX_BYTES, InboxEndpoint
from oncemore.messaging.sources.jetstream import ACK_WAIT_S, JetStreamSource
from oncemore.messaging.sources.rabbitmq import RabbitMqSource
from oncemore.messaging.sources.sqs import VISIBILITY_S, SqsSource
from oncemore.retries.options import as_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncemore.http.stored_response import Scope
    from oncemore.retries.options import Seconds
    from oncemore.steps.decorator import Step
    from oncemore.steps.engine import Engine
    from oncemore.steps.secret import Secret

#: The default number of messages in progress, and the default time that they get after a stop.
DEFAULT_CONCURRENCY, DEFAULT_GRACE_S = 5, 30.0
_ADDRESS_FORMS = (
    "nats://host:4222/STREAM/CONSUMER, amqp://host:5672/VHOST?queue=NAME, or the URL of an SQS queue"
)


def jetstream(
    step: Step[..., Any],
    url: str,
    *,
    stream: str,
    durable: str,
    engine: Engine | None = None,
    key: Callable[[Any], Any] | str | None = None,
    arguments: Callable[[Any], Mapping[str, Any]] | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    grace: Seconds = DEFAULT_GRACE_S,
    subjects: Sequence[str] = (),
    filter_subject: str | None = None,
    ack_wait: Seconds = ACK_WAIT_S,
    options: Mapping[str, Any] | None = None,
) -> Inbox:
    """Return an inbox for a JetStream consumer; a message is acknowledged after its result is stored.

    stream, durable  the stream and the consumer; a missing consumer is created
    engine           the engine of the runs; by default the step's engine
    key              identifies the work of a message: by default its id (`Nats-Msg-Id`); a function of the
                     content; or "arguments" for the key of an ordinary call of the step
    arguments        a function of the content that returns the step's arguments by name; by default an object
                     has the arguments, and any other value is the only argument
    concurrency      the number of messages that are processed at once
    grace            how long messages in progress may take after a stop
    subjects         if given, a missing stream is created with these subjects, as a work queue
    filter_subject   the subject filter of a new consumer
    ack_wait         how long a new consumer waits for a heartbeat before it delivers a message again
    options          for `nats.connect`: credentials, TLS, …
    """
    source = JetStreamSource(
        url, stream=stream, durable=durable, subjects=subjects, filter_subject=filter_subject,
        ack_wait_s=as_seconds("ack_wait", ack_wait), options=options,
    )  # fmt: skip
    return Inbox(
        source, step, engine=engine, key=key, arguments=arguments, concurrency=concurrency,
        grace_s=as_seconds("grace", grace),
    )  # fmt: skip


def sqs(
    step: Step[..., Any],
    queue_url: str,
    *,
    engine: Engine | None = None,
    key: Callable[[Any], Any] | str | None = None,
    arguments: Callable[[Any], Mapping[str, Any]] | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    grace: Seconds = DEFAULT_GRACE_S,
    visibility: int = VISIBILITY_S,
    poll: int = 10,
    client: Any = None,
) -> Inbox:
    """Return an inbox for an SQS queue, FIFO or standard; a message is deleted after its result is stored.

    engine, key, arguments, concurrency, grace   as in `jetstream`; the id of a message is its deduplication
                                                 id, or in a standard queue the message id
    visibility   the visibility timeout in seconds; extended while a message is being processed
    poll         seconds that one receive call waits for messages, 0 to 20
    client       a boto3 client; by default one for the region in the URL
    """
    if isinstance(poll, bool) or not 0 <= poll <= 20:
        raise UsageError(f"poll is {poll!r}; it takes 0 to 20 seconds")
    source = SqsSource(queue_url, client=client, visibility_s=visibility, poll_s=poll)
    return Inbox(
        source, step, engine=engine, key=key, arguments=arguments, concurrency=concurrency,
        grace_s=as_seconds("grace", grace),
    )  # fmt: skip


def rabbitmq(
    step: Step[..., Any],
    url: str,
    *,
    queue: str,
    engine: Engine | None = None,
    key: Callable[[Any], Any] | str | None = None,
    arguments: Callable[[Any], Mapping[str, Any]] | None = None,
    concurrency: int = DEFAULT_CONCURRENCY,
    grace: Seconds = DEFAULT_GRACE_S,
    prefetch: int | None = None,
    queue_type: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Inbox:
    """Return an inbox for a queue of RabbitMQ; a message is acknowledged after its result is stored.

    engine, key, arguments, concurrency, grace   as in `jetstream`; the id of a message is its `message_id`;
                 without an id and without `key` a message becomes a dead letter
    prefetch     the number of messages that this inbox holds, in progress or deferred; by default four times
                 `concurrency`
    queue_type   "quorum" or "classic": if given, a missing queue is created, durable and of this type
    options      further attributes of pika's connection parameters: ssl_options, credentials, heartbeat, …
    """
    source = RabbitMqSource(
        url, queue=queue, prefetch=4 * concurrency if prefetch is None else prefetch, queue_type=queue_type,
        options=options,
    )  # fmt: skip
    return Inbox(
        source, step, engine=engine, key=key, arguments=arguments, concurrency=concurrency,
        grace_s=as_seconds("grace", grace),
    )  # fmt: skip


def endpoint(
    step: Step[..., Any],
    *,
    mode: str = "run",
    engine: Engine | None = None,
    key: Callable[[Any], Any] | str | None = None,
    arguments: Callable[[Any], Mapping[str, Any]] | None = None,
    source: str | Callable[[Scope], str] = "http",
    max_request: int = DEFAULT_MAX_BYTES,
    signing_key: str | Secret | Sequence[str | Secret] | None = None,
    bearer_token: str | Secret | Sequence[str | Secret] | None = None,
) -> InboxEndpoint:
    """Return an ASGI application that accepts messages by POST and calls the step once for each.

    mode          "run": respond when the work is done; "submit": leave the work to a worker
    engine, key, arguments   as in `jetstream`; the id of a message is its `Idempotency-Key`, `ce-id` (with
                  `ce-source`) or `Oncemore-Id`
    source        the sender's name, or a function of the ASGI scope that returns it; two senders may use the
                  same ids
    max_request   the size limit of a message in bytes
    signing_key   accept only messages signed with this key, as Standard Webhooks describe: env:NAME or
                  file:PATH, or a list of accepted keys; the id of a message is then its `webhook-id`
    bearer_token  accept only requests with this `Authorization: Bearer …` token: env:NAME or file:PATH, or a
                  list of accepted tokens

    For any other authentication, install a middleware around it.
    """
    return InboxEndpoint(
        step, mode=mode, engine=engine, key=key, arguments=arguments, source=source, max_request=max_request,
        signing_key=signing_key, bearer_token=bearer_token,
    )  # fmt: skip


def inbox_from_url(step: Step[..., Any], address: str, **options: Any) -> Inbox:
    """Return an inbox for the queue of an address.

    nats://host:4222/STREAM/CONSUMER?subjects=orders.>   with subjects, a missing stream is created
    amqp://host:5672/VHOST?queue=orders                  with queue_type=quorum, a missing queue is created
    https://sqs.eu-central-1.amazonaws.com/1234/orders.fifo
    """
    parts = urlsplit(address)
    query = parse_qs(parts.query)
    if parts.scheme in ("amqp", "amqps"):
        if "queue" not in query or query.keys() - {"queue", "queue_type", "prefetch"}:
            raise UsageError(f"the address takes {_ADDRESS_FORMS}")
        if "prefetch" in query:
            options["prefetch"] = _parse_whole("prefetch", query["prefetch"][0])
        options.update({name: query[name][0] for name in ("queue", "queue_type") if name in query})
        return rabbitmq(step, parts._replace(query="").geturl(), **options)
    if parts.scheme in ("nats", "tls"):
        names = [name for name in parts.path.split("/") if name]
        if len(names) != 2 or query.keys() - {"subjects", "ack_wait"}:
            raise UsageError(f"the address takes {_ADDRESS_FORMS}")
        if "subjects" in query:
            options["subjects"] = [subject for value in query["subjects"] for subject in value.split(",")]
        if "ack_wait" in query:
            options["ack_wait"] = as_seconds("ack_wait", float(query["ack_wait"][0]))
        server = f"{parts.scheme}://{parts.netloc}"
        return jetstream(step, server, stream=names[0], durable=names[1], **options)
    # Plain http is for local emulators of SQS.
    if parts.scheme in ("http", "https"):
        return sqs(step, address, **options)
    raise UsageError(f"the address takes {_ADDRESS_FORMS}")


def _parse_whole(option: str, text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{option} is {text!r}; it takes a whole number")
    return int(text)
