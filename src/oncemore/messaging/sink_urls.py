"""Builds named sinks from the addresses, tables and functions in settings or code.

    notify = [
        "https://example.org/hook",                          a webhook
        "file:quarantine.jsonl",                             a file of JSON lines
        { webhook = "https://…", headers = { … }, timeout = 5, name = "pager", signing_key = "env:KEY" },
        { file = "quarantine.jsonl", name = "list" },
        { command = ["notify-operator", "--urgent"], timeout = 10 },
        "nats://host:4222",                                  a subject of JetStream, that of the topic
        { jetstream = "nats://host:4222", subject = "alerts", stream = "OPS" },
        "sqs:https://sqs.eu-central-1.amazonaws.com/1234/alerts.fifo",
        "amqp://host:5672",                                  a queue of RabbitMQ, that of the topic's name
        { rabbitmq = "amqp://host:5672", exchange = "alerts", routing_key = "ops" },
        "kafka://host:9092",                                 a topic of Kafka, that of the event
    ]

The name is part of the topic of a sink's notifications, so that any process with the same settings can send
them. The default name is a digest of the address, because the address may be a secret and the position in the
list may change.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore._redact import describe_value
from oncemore.errors import UsageError
from oncemore.messaging.kafka import KafkaSink
from oncemore.messaging.queue_sinks import JetStreamSink, SqsSink
from oncemore.messaging.rabbitmq import RabbitMqSink
from oncemore.messaging.sinks import CommandSink, JsonLinesSink, WebhookSink
from oncemore.policy.canonical_json import canonical_digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.messaging.message import EventMessage

    Sink = Callable[[EventMessage], Any]

MAX_SINKS = 20
_SINK_OPTIONS = {
    "webhook": ("headers", "timeout", "form", "source", "signing_key"), "file": (), "command": ("timeout",),
    "jetstream": ("subject", "stream", "timeout", "form", "source"), "sqs": (),
    "rabbitmq": ("exchange", "routing_key", "timeout", "form", "source"),
    "kafka": ("topic", "timeout", "form", "source"),
}  # fmt: skip
_SINK_SCHEMES = {
    "http": "webhook", "https": "webhook", "nats": "jetstream", "tls": "jetstream", "amqp": "rabbitmq",
    "amqps": "rabbitmq", "kafka": "kafka",
}  # fmt: skip
_SINK_CLASSES = (WebhookSink, JsonLinesSink, CommandSink, JetStreamSink, SqsSink, RabbitMqSink, KafkaSink)
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def parse_sinks(config: Any, where: str = "notify", root: Path | None = None) -> dict[str, Sink]:
    """Return the configured sinks by name; raise `UsageError` with the position of a bad one.

    config  a list of addresses, tables and sinks; or sinks by name
    where   the setting, for error messages
    root    the folder of relative file paths
    """
    if isinstance(config, str):
        config = [config]
    pairs = list(config.items()) if isinstance(config, dict) else None
    if pairs is None:
        if not isinstance(config, list | tuple):
            raise UsageError(f"{where} is {describe_value(config)}; it takes a list of sinks")
        pairs = [("", entry) for entry in config]
    if len(pairs) > MAX_SINKS:
        raise UsageError(f"{where} has {len(pairs)} sinks; the limit is {MAX_SINKS}")
    sinks: dict[str, Sink] = {}
    for position, (key, entry) in enumerate(pairs):
        name, sink = _parse_sink(entry, f"{where}[{key or position}]", root)
        name = key or name
        if not isinstance(name, str) or not _NAME_PATTERN.fullmatch(name):
            raise UsageError(
                f"{where} has the name {name!r}; it takes letters, digits, and . _ - between them"
            )
        if name in sinks:
            raise UsageError(f"{where} has two sinks of the name {name!r}; give each a name of its own")
        sinks[name] = sink
    return sinks


def _parse_sink(entry: Any, where: str, root: Path | None) -> tuple[str, Sink]:
    """Return the default name and the sink of one address, table or function."""
    if isinstance(entry, str):
        scheme = entry.partition(":")[0]
        if scheme in _SINK_SCHEMES:
            entry = {_SINK_SCHEMES[scheme]: entry}
        elif scheme == "sqs":  # the URL of a queue is an https URL, so the prefix tells it from a webhook
            entry = {"sqs": entry.removeprefix("sqs:")}
        elif scheme == "file":
            entry = {"file": entry.removeprefix("file://").removeprefix("file:")}
        else:
            raise UsageError(
                f"{where} is {describe_value(entry)}; it takes https://…, file:path, nats://…, "
                "sqs:https://…, amqp://…, kafka://…, or a table"
            )
    if isinstance(entry, dict):
        return _parse_table(entry, where, root)
    if not callable(entry):
        raise UsageError(
            f"{where} is {describe_value(entry)}; it takes a webhook, a file, a command or a function"
        )
    return _derive_name(entry), entry


def _parse_table(table: dict[str, Any], where: str, root: Path | None) -> tuple[str, Sink]:
    kinds = [kind for kind in _SINK_OPTIONS if kind in table]
    if len(kinds) != 1:
        raise UsageError(f"{where} needs one of {', '.join(_SINK_OPTIONS)}")
    kind = kinds[0]
    unknown = table.keys() - {kind, "name", *_SINK_OPTIONS[kind]}
    if unknown:
        allowed = ", ".join(("name", *_SINK_OPTIONS[kind]))
        raise UsageError(f"{where} has {', '.join(sorted(unknown))}; besides {kind} it takes {allowed}")
    options = {word: table[word] for word in _SINK_OPTIONS[kind] if word in table}
    try:
        sink = _make_sink(kind, table[kind], options, root)
    except (UsageError, TypeError, AttributeError) as error:
        # The constructors do not know where in the settings the value stands.
        raise UsageError(f"{where}: {error}") from None
    return table.get("name") or f"{kind}-{canonical_digest({kind: table[kind]})[:8]}", sink


def _make_sink(kind: str, target: Any, options: dict[str, Any], root: Path | None) -> Sink:
    if kind == "command":
        return CommandSink(target, **options)
    if not isinstance(target, str) or not target:
        raise UsageError(f"{kind} takes a text")
    if kind == "webhook":
        return WebhookSink(target, **options)
    if kind == "jetstream":
        return JetStreamSink(target, **options)
    if kind == "sqs":
        return SqsSink(target)
    if kind == "rabbitmq":
        return RabbitMqSink(target, **options)
    if kind == "kafka":
        return KafkaSink(target, **options)
    return JsonLinesSink((root or Path()) / Path(target).expanduser())


def _derive_name(sink: Any) -> str:
    """Return the default name of a sink object: the same in every process that runs the same code."""
    if isinstance(sink, _SINK_CLASSES):
        kind = type(sink).__name__.removesuffix("Sink")
        # The repr of a webhook hides its path, so two webhooks of one host would get the same name.
        address = sink._display_url if isinstance(sink, WebhookSink) else _read_address(sink)  # noqa: SLF001
        # The text that is digested must not change: topics in the log contain the name.
        return f"{kind.lower()}-{canonical_digest({'shown': f'<oncemore.{kind} {address}>'})[:8]}"
    name = getattr(sink, "__qualname__", type(sink).__name__)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100] or "sink"


def _read_address(sink: Any) -> str:
    """Return the address of a sink from its repr, which is `<class address>`."""
    return repr(sink).partition(" ")[2].removesuffix(">")


def resolve_sink(address: Any, where: str) -> Sink:
    """Return the sink of an address or a table; return a function as it is."""
    return _parse_sink(address, where, None)[1]
