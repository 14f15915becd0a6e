"""What a JetStream server must be for a log, what it really gives, and what its refusals mean."""

from __future__ import annotations

import asyncio
from http.client import HTTPException
from importlib import metadata
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import msgspec

from oncemore._values import Value
from oncemore.errors import StoreError, UsageError
from oncemore.log.nats.connection import Unanswered
from oncemore.log.store import Facts

if TYPE_CHECKING:
    from oncemore.log.nats.address import Address
    from oncemore.log.nats.connection import Answer, Line
    from oncemore.log.nats.messages import Subjects

OLDEST = (2, 15)
MADE_S = 20.0

#: What a stream must be like, because something rests on it; by the field of its configuration.
MUST: dict[str, Any] = {
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
#: What it must not have, and why.
NEVER = {
    "allow_msg_ttl": "an entry that expires would let its predecessor be the last again",
    "allow_msg_schedules": "it switches on what removes messages",
    "mirror": "a copy takes no writes",
    "sealed": "it takes no writes",
    "subject_transform": "messages would be found elsewhere than where they were sent",
    "sources": "others would write into it",
}
ADVICE = {
    10052: "the server does not allow this configuration",
    10060: "there is another stream of that name",
    10097: "a head is larger than the headers of a message may be",
    10174: "the stream takes no atomic batches",
    10199: "a batch has more messages than the server takes",
    10023: "the server has no room left; make some and go on",
    10047: "the server has no storage left; make room and go on",
    10077: "the stream is full; raise its limits",
    10122: "the server has no storage left; make room and go on",
}


class Server(Value):
    """What a server said of itself.

    sync   "always", "sometimes" or, if nobody could ask, "unknown"
    asked  how many servers were asked how they sync
    """

    version: str
    replicas: int
    sync: str
    asked: int = 0

    def facts(self, url: str) -> Facts:
        """Say what survives what."""
        copies = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
        engine = f"NATS {self.version}, {copies} (nats-py {metadata.version('nats-py')})"
        crash = "an acknowledged entry survives the death of any process, the server's too"
        told = {
            "always": f"{crash}, and power loss, if its disk honours flushes (sync_interval: always)",
            "sometimes": f"{crash}; power loss can take away what was acknowledged in the last two minutes",
            "unknown": f"{crash}; whether it survives power loss is unverified: nobody has asked the server",
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
        if 0 < self.asked < self.replicas:
            notes.append(
                f"{self.asked} of {self.replicas} servers were asked how they sync; name the monitoring port "
                "of each, with commas between them"
            )
        notes.append("time is that of whichever server leads: it can step when another takes over")
        return Facts(url, engine, told[self.sync], tuple(notes))


async def prepare(line: Line, where: Subjects, make: bool) -> Server:
    """Check the server, make the stream or check it, and return what the server gives."""
    client = await line.client()
    said: dict[str, Any] = client._server_info  # noqa: SLF001 - the client shows less of it
    version = str(said.get("version", ""))
    if tuple(int(part) for part in version.split("-")[0].split(".")[:2] if part.isdigit()) < OLDEST:
        raise StoreError(f"{line.where.shown} is NATS {version}; {'.'.join(map(str, OLDEST))} is needed")
    if not said.get("jetstream"):
        raise StoreError(f"{line.where.shown} has no JetStream; start it with -js and a store_dir")
    config = await _stream(line, where, make)
    _check(line.where, where, config)
    sync = await asyncio.get_running_loop().run_in_executor(None, _sync, line.where)
    if sync == "sometimes" and not line.where.unsafe_ok:
        raise StoreError(
            f"{line.where.shown} acknowledges before it syncs: a power cut could take away two minutes of "
            "what it says is stored. Set sync_interval: always in its jetstream section or say unsafe_ok=true"
        )
    return Server(version, int(config.get("num_replicas", 1)), sync, len(_monitors(line.where)))


def _check(address: Address, where: Subjects, config: dict[str, Any]) -> None:
    """Refuse a stream on which something would not hold."""
    wrong = [
        f"{name} is {config.get(name)!r} and must be {value!r}"
        for name, value in {**MUST, "subjects": _subjects(where)}.items()
        if config.get(name, type(value)()) != value
    ]
    wrong += [f"{name} is set: {why}" for name, why in NEVER.items() if config.get(name)]
    if config.get("persist_mode") == "async":
        wrong.append("persist_mode is async: it would acknowledge what it has not written")
    if wrong:
        raise StoreError(
            f"{address.shown}: the stream {where.stream} is not safe for a log: {'; '.join(wrong)}"
        )
    replicas = int(config.get("num_replicas", 1))
    if replicas < address.replicas:
        raise StoreError(
            f"{address.shown}: the stream {where.stream} has {replicas} replicas and the address asks for "
            f"{address.replicas}; change it (nats stream edit --replicas {address.replicas}) or the address"
        )


def _subjects(where: Subjects) -> list[str]:
    return [*(f"{part}*" for part in (where.entities, where.parts, where.olds)), where.guard]


async def _stream(line: Line, where: Subjects, make: bool) -> dict[str, Any]:
    """Return the stream's configuration; of several processes that make it at once, one does."""
    stream = where.stream
    made = {
        **MUST,
        "name": stream,
        "subjects": _subjects(where),
        "num_replicas": line.where.replicas,
        "max_consumers": -1,
        "duplicate_window": 100_000_000,
        "metadata": {"oncemore": "1"},
    }
    ends = asyncio.get_running_loop().time() + MADE_S
    while True:
        try:
            said = await line.api(f"STREAM.INFO.{stream}")
            if said.get("error", {}).get("err_code") == 10059:
                if not make:
                    raise StoreError(f"{line.where.shown}: there is no store in the stream {stream}")
                said = await line.api(f"STREAM.CREATE.{stream}", **made)
            error = said.get("error")
            if error is None:
                return _of_ours(line, stream, said["config"])
            if error.get("err_code") not in (10058, 10008):
                raise StoreError(f"{line.where.shown}: the stream cannot be made: {error.get('description')}")
        except Unanswered as unanswered:
            error = {"description": str(unanswered)}
        if asyncio.get_running_loop().time() > ends:
            raise StoreError(f"{line.where.shown} does not answer ({error.get('description')})")
        await asyncio.sleep(0.1)


def _of_ours(line: Line, stream: str, config: dict[str, Any]) -> dict[str, Any]:
    format_ = (config.get("metadata") or {}).get("oncemore")
    if format_ is None:
        raise StoreError(f"{line.where.shown}: there is a stream {stream} that oncemore did not make")
    if not format_.isdigit() or int(format_) > 1:
        raise StoreError(
            f"{line.where.shown}: the stream has format {format_}, which a newer oncemore wrote; "
            "this one reads 1"
        )
    return config


def _monitors(where: Address) -> list[str]:
    return [one.rstrip("/") for one in where.monitor.split(",") if one]


def _sync(where: Address) -> str:
    """Ask the monitoring ports how the servers sync: as well as the one that does it worst."""
    told = [_asked(one) for one in _monitors(where)]
    return "unknown" if not told else "always" if all(told) else "sometimes"


def _asked(monitor: str) -> bool:
    """Whether a server syncs before it acknowledges; its interval says two minutes either way."""
    shown = f"{monitor.partition('://')[0]}://{monitor.rpartition('@')[2].rpartition('//')[2]}"
    if not monitor.startswith(("http://", "https://")):
        raise UsageError("monitor is no address of a monitoring port; it looks like http://host:8222")
    try:
        with urlopen(f"{monitor}/varz", timeout=5) as answer:  # noqa: S310 - the user's address
            said = msgspec.json.decode(answer.read())
        return bool(said["jetstream"]["config"].get("sync_always"))
    except (OSError, ValueError, HTTPException, KeyError, TypeError) as error:
        raise StoreError(
            f"{shown} does not tell how the server syncs ({type(error).__name__}); is it a monitoring port?"
        ) from None


def refused(where: Address, answer: Answer) -> StoreError:
    """Say why the server did not store something."""
    advice = ADVICE.get(answer.error, "the server refused")
    return StoreError(f"{where.shown}: {advice} ({answer.error}: {answer.text})")
