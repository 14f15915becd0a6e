"""The ways in: an inbox on a queue, made in one call; an endpoint for messages over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from oncemore.errors import UsageError
from oncemore.messaging.inbox_service import Inbox
from oncemore.messaging.sources.http import MOST_BYTES, Endpoint
from oncemore.messaging.sources.jetstream import ACK_WAIT_S, JetStream
from oncemore.messaging.sources.sqs import VISIBILITY_S, Sqs
from oncemore.retries.options import as_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncemore.http.stored_response import Scope
    from oncemore.retries.options import Seconds
    from oncemore.steps.decorator import Step
    from oncemore.steps.engine import Engine
    from oncemore.steps.secret import Secret

#: The usual number of letters that are under way at once, and the usual patience with them at the end.
AT_ONCE, GRACE_S = 5, 30.0
_FORMS = "nats://host:4222/STREAM/CONSUMER, or the URL of an SQS queue"


def jetstream(
    step: Step[..., Any],
    url: str,
    *,
    stream: str,
    durable: str,
    engine: Engine | None = None,
    key: Callable[[Any], Any] | str | None = None,
    arguments: Callable[[Any], Mapping[str, Any]] | None = None,
    concurrency: int = AT_ONCE,
    grace: Seconds = GRACE_S,
    subjects: Sequence[str] = (),
    filter_subject: str | None = None,
    ack_wait: Seconds = ACK_WAIT_S,
    options: Mapping[str, Any] | None = None,
) -> Inbox:
    """Return an inbox on a JetStream consumer; what is acknowledged is in the log.

    stream, durable  the stream and the consumer; a consumer that is not there is made
    engine           where runs are kept; unless given, the engine that steps use
    key              what makes two messages the same work: their own ids (`Nats-Msg-Id`), unless a function
                     of the content says; "arguments": what makes two calls of the step the same
    arguments        a function of the content that gives the step's arguments by name; unless given, an
                     object is the arguments, and anything else the only one
    concurrency      how many messages may be under way at once
    grace            how long what is under way may take when it is told to stop
    subjects         make the stream with these, as a work queue, if it is not there
    filter_subject   which of its messages a new consumer takes
    ack_wait         how long a new consumer waits for a word before it delivers again
    options          for `nats.connect`: credentials, TLS, …
    """
    source = JetStream(
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
    concurrency: int = AT_ONCE,
    grace: Seconds = GRACE_S,
    visibility: int = VISIBILITY_S,
    look: int = 10,
    client: Any = None,
) -> Inbox:
    """Return an inbox on an SQS queue, FIFO or standard; what is deleted is in the log.

    engine, key, arguments, concurrency, grace   as in `jetstream`; a message's own id is its deduplication
                                                 id, or in a standard queue that of the message
    visibility   seconds for which a message is hidden from others; while it is under way they begin anew
    look         seconds for which one look waits for messages, 0 to 20
    client       a client of boto3; unless given, one for the region in the URL
    """
    if isinstance(look, bool) or not 0 <= look <= 20:
        raise UsageError(f"look is {look!r}; it takes 0 to 20 seconds")
    source = Sqs(queue_url, client=client, visibility_s=visibility, look_s=look)
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
    max_request: int = MOST_BYTES,
    signing_key: str | Secret | Sequence[str | Secret] | None = None,
    bearer_token: str | Secret | Sequence[str | Secret] | None = None,
) -> Endpoint:
    """Return an ASGI application that takes messages by POST; a message that comes twice is done once.

    mode         "run": the work is done before the answer; "submit": it is handed in for some worker
    engine, key, arguments   as in `jetstream`; a message's own id is its `Idempotency-Key`, `ce-id` (with
                 `ce-source`) or `Oncemore-Id`
    source       whose these ids are: a name, or a function of the ASGI scope that says who asks, so that two
                 senders may use the same ids
    max_request  the most bytes of a message
    signing_key  demand messages that are signed with this key, as Standard Webhooks has it: env:NAME or
                 file:PATH, of several any; the id of a message is then its `webhook-id`
    bearer_token demand `Authorization: Bearer …` with this token: env:NAME or file:PATH, of several any

    Any other check of who may send is for a middleware around it.
    """
    return Endpoint(
        step, mode=mode, engine=engine, same=key, arguments=arguments, source=source, most=max_request,
        signing_key=signing_key, bearer_token=bearer_token,
    )  # fmt: skip


def inbox_at(step: Step[..., Any], address: str, **options: Any) -> Inbox:
    """Return an inbox on the queue that an address names.

    nats://host:4222/STREAM/CONSUMER?subjects=orders.>   subjects: make the stream if it is not there
    https://sqs.eu-central-1.amazonaws.com/1234/orders.fifo
    """
    parts = urlsplit(address)
    if parts.scheme in ("nats", "tls"):
        names = [name for name in parts.path.split("/") if name]
        asked = parse_qs(parts.query)
        if len(names) != 2 or asked.keys() - {"subjects", "ack_wait"}:
            raise UsageError(f"the address takes {_FORMS}")
        if "subjects" in asked:
            options["subjects"] = [each for told in asked["subjects"] for each in told.split(",")]
        if "ack_wait" in asked:
            options["ack_wait"] = as_seconds("ack_wait", float(asked["ack_wait"][0]))
        server = f"{parts.scheme}://{parts.netloc}"
        return jetstream(step, server, stream=names[0], durable=names[1], **options)
    if parts.scheme in ("http", "https"):
        return sqs(step, address, **options)
    raise UsageError(f"the address takes {_FORMS}")
