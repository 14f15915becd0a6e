"""Requirements on a JetStream server and its stream, and the meaning of the server's refusals."""

from __future__ import annotations

import asyncio
from http.client import HTTPException
from importlib import metadata
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import msgspec

from oncemore._values import Value
from oncemore.errors import StoreError, UsageError
from oncemore.log.nats.replies import NoServerReply
from oncemore.log.store import StoreFacts

if TYPE_CHECKING:
    from nats.aio.client import Client

    from oncemore.log.nats.address import NatsAddress
    from oncemore.log.nats.connection import NatsConnection
    from oncemore.log.nats.messages import LogSubjects
    from oncemore.log.nats.replies import PublishReply

MIN_VERSION = (2, 15)
CREATE_TIMEOUT_S = 20.0
JETSTREAM_TIMEOUT_S = 0.5

STREAM_NOT_FOUND = 10059
#: The stream was created by another process at the same moment; the cluster has no leader yet.
CREATE_RETRYABLE = (10058, 10008)

#: Settings that the stream must have, by the field of its configuration.
REQUIRED: dict[str, Any] = {
    "storage": "file",
    "retention": "limits",
    "discard": "new",
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "allow_direct": True,
    "allow_atomic": True,
    "deny_delete": True,
    "allow_rollup_hdrs": False,
}
#: Settings that the stream must not have, and why.
FORBIDDEN = {
    "allow_msg_ttl": "an entry that expires would make its predecessor the last one again",
    "allow_msg_schedules": "it enables settings that remove messages",
    "mirror": "a mirror accepts no writes",
    "sealed": "it accepts no writes",
    "subject_transform": "messages would be stored on other subjects than they were sent to",
    "sources": "other streams would write into it",
}
ADVICE = {
    10052: "the server does not allow this configuration",
    10060: "there is another stream of that name",
    10097: "a head is larger than the headers of a message may be",
    10174: "the stream takes no atomic batches",
    10199: "a batch has more messages than the server takes",
    10023: "the server has no room left; free some and try again",
    10047: "the server has no storage left; free some and try again",
    10077: "the stream is full; raise its limits",
    10122: "the server has no storage left; free some and try again",
}


class NatsServerInfo(Value):
    """What a server reported about itself.

    sync        "always", "sometimes", or "unknown" without a monitoring port
    sync_count  the number of servers that were asked for their sync setting
    """

    version: str
    replicas: int
    sync: str
    sync_count: int = 0

    def describe_server(self, url: str) -> StoreFacts:
        """Return the facts of the store: its engine, its durability, and advice."""
        replicas = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
        engine = f"NATS {self.version}, {replicas} (nats-py {metadata.version('nats-py')})"
        crash = "an acknowledged entry survives the death of any process, the server's too"
        durability = {
            "always": f"{crash}, and power loss, if its disk honours flushes (sync_interval: always)",
            "sometimes": f"{crash}; power loss can take away what was acknowledged in the last two minutes",
            "unknown": f"{crash}; whether it survives power loss is unverified: no monitoring port was named",
        }
        advice = {
            "always": (),
            "sometimes": ("set sync_interval: always in the server's jetstream section",),
            "unknown": ("name the server's monitoring port, ?monitor=http://host:8222, to have it checked",),
        }
        notes = [*advice[self.sync]]
        if self.replicas == 1:
            notes.append(
                "one replica: the log is lost with the disk of its server, and waits while it is down"
            )
        if 0 < self.sync_count < self.replicas:
            notes.append(
                f"{self.sync_count} of {self.replicas} servers were asked how they sync; name the monitoring "
                "port of each, separated by commas"
            )
        notes.append("the time is that of the stream's leader: it can step when another server takes over")
        return StoreFacts(url, engine, durability[self.sync], tuple(notes))


async def prepare_stream(connection: NatsConnection, subjects: LogSubjects, create: bool) -> NatsServerInfo:
    """Check the server, create the stream or check it, and return what the server reports."""
    client, address = await connection.get_client(), connection.address
    version = _check_version(client, address)
    await _check_jetstream(client, address)
    config = await _ensure_stream(connection, subjects, create)
    _check_stream(address, subjects, config)
    # urlopen blocks, and this loop serves all requests of the store.
    sync = await asyncio.get_running_loop().run_in_executor(None, _worst_sync, address)
    if sync == "sometimes" and not address.unsafe_ok:
        raise StoreError(
            f"{address.shown} acknowledges before it syncs: a power cut could take away two minutes of "
            "acknowledged entries. Set sync_interval: always in its jetstream section or say unsafe_ok=true"
        )
    return NatsServerInfo(version, int(config.get("num_replicas", 1)), sync, len(_monitoring_urls(address)))


def _check_version(client: Client, address: NatsAddress) -> str:
    """Return the version of the server; raise `StoreError` for one that is too old."""
    needed = ".".join(map(str, MIN_VERSION))
    version = client.connected_server_version
    try:
        number = (version.major, version.minor)
        text = ".".join(map(str, (*number, version.patch))) + (f"-{version.dev}" if version.dev else "")
    except ValueError as error:  # nats-py parses semantic versions only
        raise StoreError(f"{address.shown}: {error}; NATS {needed} or newer is needed") from None
    if number < MIN_VERSION:
        raise StoreError(f"{address.shown} is NATS {text}; {needed} is needed")
    return text


async def _check_jetstream(client: Client, address: NatsAddress) -> None:
    """Raise `StoreError` if the server has no JetStream; other errors are left to the first request."""
    from nats import errors as nats_errors  # here, so that a missing nats-py is reported by `connection`

    deadline = asyncio.get_running_loop().time() + JETSTREAM_TIMEOUT_S
    # oncemore: allow OM102 because it waits, within a deadline, for a server that is just starting
    while True:
        try:
            await client.request("$JS.API.INFO", timeout=JETSTREAM_TIMEOUT_S)
        except nats_errors.NoRespondersError:
            # A server that just started may accept connections a moment before JetStream answers.
            if asyncio.get_running_loop().time() > deadline:
                raise StoreError(
                    f"{address.shown} has no JetStream; start it with -js and a store_dir"
                ) from None
            await asyncio.sleep(0.05)
        except (nats_errors.Error, TimeoutError, OSError):
            return
        else:
            return


def _check_stream(address: NatsAddress, subjects: LogSubjects, config: dict[str, Any]) -> None:
    """Raise `StoreError` for a stream whose settings break a promise of the log."""
    problems = [
        f"{name} is {config.get(name)!r} and must be {value!r}"
        for name, value in {**REQUIRED, "subjects": _stream_subjects(subjects)}.items()
        # The server leaves out fields that have their zero value.
        if config.get(name, type(value)()) != value
    ]
    problems += [f"{name} is set: {reason}" for name, reason in FORBIDDEN.items() if config.get(name)]
    if config.get("persist_mode") == "async":
        problems.append("persist_mode is async: it would acknowledge entries before writing them")
    if problems:
        raise StoreError(
            f"{address.shown}: the stream {subjects.stream} is not safe for a log: {'; '.join(problems)}"
        )
    replicas = int(config.get("num_replicas", 1))
    if replicas < address.replicas:
        raise StoreError(
            f"{address.shown}: the stream {subjects.stream} has {replicas} replicas and the address asks for "
            f"{address.replicas}; change it (nats stream edit --replicas {address.replicas}) or the address"
        )


def _stream_subjects(subjects: LogSubjects) -> list[str]:
    prefixes = (subjects.entities, subjects.parts, subjects.pruned)
    return [*(f"{prefix}*" for prefix in prefixes), subjects.guard]


async def _ensure_stream(connection: NatsConnection, subjects: LogSubjects, create: bool) -> dict[str, Any]:
    """Return the stream's configuration, creating it if permitted; several processes may do so at once."""
    stream, shown = subjects.stream, connection.address.shown
    wanted = {
        **REQUIRED,
        "name": stream,
        "subjects": _stream_subjects(subjects),
        "num_replicas": connection.address.replicas,
        "max_consumers": -1,
        # Not used, so as short as the server allows: expected sequences detect duplicates.
        "duplicate_window": 100_000_000,
        "metadata": {"oncemore": "1"},
    }
    deadline = asyncio.get_running_loop().time() + CREATE_TIMEOUT_S
    # A cluster without a leader answers nothing, or with an error that passes.
    while True:
        try:
            reply = await connection.call_api(f"STREAM.INFO.{stream}")
            if reply.get("error", {}).get("err_code") == STREAM_NOT_FOUND:
                if not create:
                    raise StoreError(f"{shown}: there is no store in the stream {stream}")
                reply = await connection.call_api(f"STREAM.CREATE.{stream}", **wanted)
            error = reply.get("error")
            if error is None:
                config: dict[str, Any] = reply["config"]
                _check_format(shown, stream, config)
                return config
            if error.get("err_code") not in CREATE_RETRYABLE:
                raise StoreError(f"{shown}: the stream {stream} cannot be made: {error.get('description')}")
        except NoServerReply as no_reply:
            error = {"description": str(no_reply)}
        if asyncio.get_running_loop().time() > deadline:
            raise StoreError(f"{shown} does not answer ({error.get('description')})")
        await asyncio.sleep(0.1)


def _check_format(shown: str, stream: str, config: dict[str, Any]) -> None:
    """Raise `StoreError` for a stream of another program, or of a newer oncemore."""
    format_ = (config.get("metadata") or {}).get("oncemore")
    if format_ is None:
        raise StoreError(
            f"{shown}: there is a stream {stream} that oncemore did not make; choose another namespace"
        )
    if not format_.isdigit() or int(format_) > 1:
        raise StoreError(
            f"{shown}: the stream has format {format_}, which a newer oncemore wrote; this one reads 1"
        )


def _monitoring_urls(address: NatsAddress) -> list[str]:
    return [url.rstrip("/") for url in address.monitor.split(",") if url]


def _worst_sync(address: NatsAddress) -> str:
    """Return how the servers sync, by the worst of them."""
    answers = [_ask_sync(url) for url in _monitoring_urls(address)]
    return "unknown" if not answers else "always" if all(answers) else "sometimes"


def _ask_sync(monitor: str) -> bool:
    """Return whether a server syncs before it acknowledges.

    Only `sync_always` tells: the interval that the server reports is two minutes in both cases.
    """
    # The URL may contain credentials, which must not appear in an error.
    shown = f"{monitor.partition('://')[0]}://{monitor.rpartition('@')[2].rpartition('//')[2]}"
    if not monitor.startswith(("http://", "https://")):
        raise UsageError("monitor is not the URL of a monitoring port; it looks like http://host:8222")
    try:
        with urlopen(f"{monitor}/varz", timeout=5) as response:  # noqa: S310 - the user's address
            variables = msgspec.json.decode(response.read())
        return bool(variables["jetstream"]["config"].get("sync_always"))
    except (OSError, ValueError, HTTPException, KeyError, TypeError) as error:
        raise StoreError(
            f"{shown} does not tell how the server syncs ({type(error).__name__}); is it a monitoring port?"
        ) from None


def publish_refused(address: NatsAddress, reply: PublishReply) -> StoreError:
    """Return the error for a publish that the server refused."""
    advice = ADVICE.get(reply.error, "the server refused")
    return StoreError(f"{address.shown}: {advice} ({reply.error}: {reply.text})")
