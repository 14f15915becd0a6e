"""What a JetStream server must be for a log, what it really gives, and what its refusals mean."""

from __future__ import annotations

import asyncio
from importlib import metadata
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import msgspec

from oncemore.core.value import Value
from oncemore.errors import StoreError
from oncemore.store.base import Facts
from oncemore.store.nats_wire import Unanswered

if TYPE_CHECKING:
    from oncemore.store.nats_wire import Address, Answer, Line

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

    sync  "always", "sometimes" or, if nobody could ask, "unknown"
    """

    version: str
    replicas: int
    sync: str

    def facts(self, url: str) -> Facts:
        """Say what survives what."""
        copies = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
        engine = f"NATS {self.version}, {copies} (nats-py {metadata.version('nats-py')})"
        crash = "an acknowledged entry survives the death of any process, the server's too"
        told = {
            "always": f"{crash}, and power loss, if its disk honours flushes (sync_interval: always)",
            "sometimes": f"{crash}; power loss can take away what was acknowledged in the last two minutes",
            "unknown": f"{crash}; whether it survives power loss nobody has checked",
        }
        advice = {
            "always": (),
            "sometimes": ("set sync_interval: always in the server's jetstream section",),
            "unknown": ("name the server's monitoring port, ?monitor=http://host:8222, to have it checked",),
        }
        alone = ("one replica: the log is lost with the disk of its server",) if self.replicas == 1 else ()
        return Facts(url, engine, told[self.sync], (*advice[self.sync], *alone))


async def prepare(line: Line, stream: str) -> Server:
    """Check the server, make the stream or check it, and return what the server gives."""
    client = await line.client()
    said: dict[str, Any] = client._server_info  # noqa: SLF001 - the client shows less of it
    version = str(said.get("version", ""))
    if tuple(int(part) for part in version.split("-")[0].split(".")[:2] if part.isdigit()) < OLDEST:
        raise StoreError(f"{line.where.shown} is NATS {version}; {'.'.join(map(str, OLDEST))} is needed")
    if not said.get("jetstream"):
        raise StoreError(f"{line.where.shown} has no JetStream; start it with -js and a store_dir")
    config = await _stream(line, stream)
    wrong = [
        f"{name} is {config.get(name)!r} and must be {value!r}"
        for name, value in MUST.items()
        if config.get(name, type(value)()) != value
    ] + [f"{name} is set: {why}" for name, why in NEVER.items() if config.get(name)]
    if config.get("persist_mode") == "async":
        wrong.append("persist_mode is async: it would acknowledge what it has not written")
    if wrong:
        raise StoreError(f"{line.where.shown}: the stream {stream} is not safe for a log: {'; '.join(wrong)}")
    sync = await asyncio.get_running_loop().run_in_executor(None, _sync, line.where)
    if sync == "sometimes" and not line.where.unsafe_ok:
        raise StoreError(
            f"{line.where.shown} acknowledges before it syncs: a power cut could take away two minutes of "
            "what it says is stored. Set sync_interval: always in its jetstream section or say unsafe_ok=true"
        )
    return Server(version, int(config.get("num_replicas", 1)), sync)


async def _stream(line: Line, stream: str) -> dict[str, Any]:
    """Return the stream's configuration; of several processes that make it at once, one does."""
    name = line.where.namespace
    made = {
        **MUST,
        "name": stream,
        "subjects": [f"{name}.e.*", f"{name}.h.*", f"{name}.g"],
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


def _sync(where: Address) -> str:
    """Ask the monitoring port how the server syncs."""
    if not where.monitor:
        return "unknown"
    try:
        with urlopen(f"{where.monitor.rstrip('/')}/varz", timeout=5) as answer:  # noqa: S310 - the user's address
            said = msgspec.json.decode(answer.read())
    except (OSError, ValueError) as error:
        raise StoreError(f"{where.monitor} does not tell how the server syncs ({error})") from error
    config = (said.get("jetstream") or {}).get("config") or {}
    return "always" if config.get("sync_always") else "sometimes"


def refused(where: Address, answer: Answer) -> StoreError:
    """Say why the server did not store something."""
    advice = ADVICE.get(answer.error, "the server refused")
    return StoreError(f"{where.shown}: {advice} ({answer.error}: {answer.text})")
