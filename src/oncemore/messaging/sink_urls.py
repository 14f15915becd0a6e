"""Whom to tell, as it is written in settings or in code, made into sinks with names.

    notify = [
        "https://example.org/hook",                          a webhook
        "file:quarantine.jsonl",                             a file of JSON lines
        { webhook = "https://…", headers = { … }, timeout = 5, name = "pager", signing_key = "env:KEY" },
        { file = "quarantine.jsonl", name = "list" },
        { command = ["notify-operator", "--urgent"], timeout = 10 },
        "nats://host:4222",                                  a subject of JetStream, that of the topic
        { jetstream = "nats://host:4222", subject = "alerts", stream = "OPS" },
        "sqs:https://sqs.eu-central-1.amazonaws.com/1234/alerts.fifo",
    ]

A name is a part of the topic under which a sink's notices wait, so that any process with the same settings
can deliver them. Unless it is given it follows from where the sink leads, and not from its place in the list;
an address is not shown by it, for it may be a secret.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore._redact import describe_value
from oncemore.errors import UsageError
from oncemore.messaging.command_sink import Command
from oncemore.messaging.queue_sinks import JetStream, Sqs
from oncemore.messaging.sinks import JsonLines, Webhook
from oncemore.policy.canonical_json import digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.messaging.message import Message

    Sink = Callable[[Message], Any]

MOST_SINKS = 20
_WORDS = {
    "webhook": ("headers", "timeout", "form", "source", "signing_key"), "file": (), "command": ("timeout",),
    "jetstream": ("subject", "stream", "timeout", "form", "source"), "sqs": (),
}  # fmt: skip
_SCHEMES = {"http": "webhook", "https": "webhook", "nats": "jetstream", "tls": "jetstream"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def sinks_of(told: Any, where: str = "notify", root: Path | None = None) -> dict[str, Sink]:
    """Return sinks by name; refuse what is none, with the place where it stands.

    told  a list of addresses, tables and sinks; or sinks by name
    root  the folder that relative paths of files begin in
    """
    if isinstance(told, str):
        told = [told]
    pairs = list(told.items()) if isinstance(told, dict) else None
    if pairs is None:
        if not isinstance(told, list | tuple):
            raise UsageError(f"{where} is {describe_value(told)}; it takes a list of sinks")
        pairs = [("", each) for each in told]
    if len(pairs) > MOST_SINKS:
        raise UsageError(f"{where} has {len(pairs)} sinks; {MOST_SINKS} is the most")
    found: dict[str, Sink] = {}
    for place, (given, each) in enumerate(pairs):
        name, sink = _sink(each, f"{where}[{given or place}]", root)
        name = given or name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f"{where} has the name {name!r}; it takes letters, digits, and . _ - between them"
            )
        if name in found:
            raise UsageError(f"{where} has two sinks of the name {name!r}; give each a name of its own")
        found[name] = sink
    return found


def _sink(each: Any, where: str, root: Path | None) -> tuple[str, Sink]:
    if isinstance(each, str):
        scheme = each.partition(":")[0]
        if scheme in _SCHEMES:
            each = {_SCHEMES[scheme]: each}
        elif scheme == "sqs":  # sqs: and the URL of the queue, which is one of https
            each = {"sqs": each.removeprefix("sqs:")}
        elif scheme == "file":
            each = {"file": each.removeprefix("file://").removeprefix("file:")}
        else:
            raise UsageError(
                f"{where} is {describe_value(each)}; it takes https://…, file:path, nats://…, sqs:https://…, "
                "or a table"
            )
    if isinstance(each, dict):
        return _from_table(each, where, root)
    if not callable(each):
        raise UsageError(
            f"{where} is {describe_value(each)}; it takes a webhook, a file, a command or a function"
        )
    return _of_function(each), each


def _from_table(table: dict[str, Any], where: str, root: Path | None) -> tuple[str, Sink]:
    kinds = [kind for kind in _WORDS if kind in table]
    if len(kinds) != 1:
        raise UsageError(f"{where} needs one of {', '.join(_WORDS)}")
    kind = kinds[0]
    strange = table.keys() - {kind, "name", *_WORDS[kind]}
    if strange:
        allowed = ", ".join(("name", *_WORDS[kind]))
        raise UsageError(f"{where} has {', '.join(sorted(strange))}; beside {kind} it takes {allowed}")
    options = {word: table[word] for word in _WORDS[kind] if word in table}
    try:
        sink = _made(kind, table[kind], options, root)
    except (UsageError, TypeError, AttributeError) as fault:
        raise UsageError(f"{where}: {fault}") from None
    return table.get("name") or f"{kind}-{digest({kind: table[kind]})[:8]}", sink


def _made(kind: str, told: Any, options: dict[str, Any], root: Path | None) -> Sink:
    if kind == "command":
        return Command(told, **options)
    if not isinstance(told, str) or not told:
        raise UsageError(f"{kind} takes a text")
    if kind == "webhook":
        return Webhook(told, **options)
    if kind == "jetstream":
        return JetStream(told, **options)
    if kind == "sqs":
        return Sqs(told)
    return JsonLines((root or Path()) / Path(told).expanduser())


def _of_function(sink: Any) -> str:
    """Return a name for a sink that was given in code: the same in every process that runs this code."""
    if isinstance(sink, Webhook | JsonLines | Command | JetStream | Sqs):
        shown = f"<oncemore.Webhook {sink._shown}>" if isinstance(sink, Webhook) else repr(sink)  # noqa: SLF001
        return f"{type(sink).__name__.lower()}-{digest({'shown': shown})[:8]}"
    name = getattr(sink, "__qualname__", type(sink).__name__)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100] or "sink"


def sink_at(address: Any, where: str) -> Sink:
    """Return the sink that an address or a table names; a function is its own."""
    return _sink(address, where, None)[1]
