"""The message bus of the exoarmur document: NATS JetStream, each operation under its category.

    bus = Bus(manager, "nats://10.0.0.1:4222,10.0.0.2:4222,10.0.0.3:4222", replicas=3)
    await bus.connect()                                                     NATS_CONNECT
    await bus.create_stream("INTENTS", ["exoarmur.intents.>"])              NATS_STREAM_CREATE
    await bus.publish("exoarmur.intents.v1", {"intent": "i-9"})             NATS_PUBLISH
    letters = await bus.subscribe("INTENTS", "executor")                    NATS_SUBSCRIBE
    await bus.create_bucket("control")                                      KV_CREATE
    await bus.turn("on", reason="the ledger is wrong", by="operator")       KV_PUT, of the kill switch
    await bus.switch()                                                      KV_GET
    await bus.grant(engine.approvals.draft(key, reason=…))                  APPROVAL_GRANT
    await bus.approval(key)                                                 APPROVAL_CHECK
    await bus.delete("control", key_of("approval", key))                    KV_DELETE

Every call takes `correlation_id` and `trace_id`, and else has those of `oncemore.context` around it.

What acts is done once per idempotency key, as everything of a manager is; a call without one is an operation
of its own. What is written carries a `Nats-Msg-Id` that follows one way from the key, so that a repeat after
a lost acknowledgement is stored once, also in a bucket: the same write, not a newer one. What a server
remembers of ids is a matter of minutes (`duplicate_window`); consumers drop repeats by id as well.

Reads ask the stream's leader, never a replica that may be behind, and are never answered from a record. An
attempt ends as soon as its line is lost, and the next one asks whichever server answers.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._ids import uuid7
from oncemore.audit.recorder import Ids
from oncemore.control.model import ALL, Approval
from oncemore.control.nats_switches import NO_MESSAGE, key_of, switched
from oncemore.errors import KeyConflict, MissingExtra, StaleDecision, UsageError
from oncemore.log.nats.servers import connected, servers_of, shown
from oncemore.policy.canonical_json import digest
from oncemore.profiles.exoarmur.operation import inherit_ids
from oncemore.profiles.exoarmur.policy import RetryCategory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Literal, Self

    from oncemore.profiles.exoarmur import RetryManager

#: How long one answer may take: less than the five seconds that an attempt has.
ANSWER_S = 4.0
#: The bucket that switches and approvals are in, and how long a stream made here remembers ids.
CONTROL, REMEMBERS_S = "control", 120.0
#: How long to leave a consumer alone that nobody leads.
LEADERLESS_S = 0.1
#: The field of a recorded answer that tells whether a repeat asks for the same.
REQUEST = "request"
#: How often a repeated "on" is written where other clients release the switch meanwhile.
MOST_TURNS = 20
_BUCKET = re.compile(r"[A-Za-z0-9_-]+")


def subject_of(bucket: str, key: str) -> str:
    """Return the subject of a key in a bucket; refuse a name that would reach into another bucket."""
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"bucket is {bucket!r:.80}; it takes letters, digits, _ and -")
    return f"$KV.{bucket}.{key}"


class Bus:
    """A line to the bus; every call is an operation of the manager's.

    url        the servers, with commas between
    replicas   on how many servers streams and buckets made here are kept
    tenant_id  whose operations they are
    control    the bucket of switches and approvals
    options    for `nats.connect`: credentials, TLS, …
    """

    def __init__(
        self,
        manager: RetryManager,
        url: str,
        *,
        replicas: int = 1,
        tenant_id: str | None = None,
        control: str = CONTROL,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            import nats  # noqa: F401
        except ImportError as missing:
            raise MissingExtra("a bus needs nats-py: pip install 'oncemore[nats]'") from missing
        self._manager, self._servers, self._options = manager, servers_of(url), dict(options or {})
        self._replicas, self._tenant_id, self._control = replicas, tenant_id, control
        self._line: Any = None
        self._lost: asyncio.Future[None] | None = None
        self._connecting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<oncemore.Bus {shown(self._servers)}>"

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self, *, correlation_id: str | None = None, trace_id: str | None = None) -> None:
        """Connect to whichever server answers, and see that JetStream does."""
        ids = self._ids(correlation_id, trace_id)
        await self._looked("NATS_CONNECT", "Connect", lambda streams: streams.account_info(), ids)

    async def close(self) -> None:
        """Leave; the next call connects anew."""
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    # Streams ------------------------------------------------------------------------------------------

    async def create_stream(
        self,
        name: str,
        subjects: Sequence[str],
        *,
        correlation_id: str | None = None,
        trace_id: str | None = None,
    ) -> dict[str, Any]:
        """Make a stream, unless it is there and the same; return its name and on how many servers it is."""
        from nats.js.api import StreamConfig

        config = StreamConfig(
            name=name, subjects=list(subjects), num_replicas=self._replicas, duplicate_window=REMEMBERS_S
        )

        async def create(streams: Any) -> dict[str, Any]:
            made = (await streams.add_stream(config)).config
            return {"stream": made.name, "replicas": made.num_replicas}

        told = {"stream": name, "subjects": list(subjects)}
        ids = self._ids(correlation_id, trace_id)
        return await self._acted("NATS_STREAM_CREATE", f"Create stream {name}", create, told, None, ids)

    async def publish(
        self,
        subject: str,
        payload: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
    ) -> dict[str, Any]:
        """Publish JSON; return the stream that has it, and its place there."""
        body = json.dumps(payload, allow_nan=False).encode()
        told = {"subject": subject, "payload": dict(payload)}
        ids = self._ids(correlation_id, trace_id)
        return await self._written(
            "NATS_PUBLISH", f"Publish to {subject}", subject, body, told, idempotency_key, ids
        )

    async def subscribe(
        self,
        stream: str,
        durable: str,
        subject: str | None = None,
        *,
        correlation_id: str | None = None,
        trace_id: str | None = None,
    ) -> Letters:
        """Return the letters of a stream from where a consumer is; it is made if it is not there."""
        from nats.js.api import AckPolicy, ConsumerConfig

        config = ConsumerConfig(
            durable_name=durable, ack_policy=AckPolicy.EXPLICIT, filter_subject=subject, ack_wait=30.0
        )

        async def bind(streams: Any) -> Any:
            await streams.add_consumer(stream, config)
            return await streams.pull_subscribe_bind(durable=durable, stream=stream)

        ids = self._ids(correlation_id, trace_id)
        return Letters(await self._looked("NATS_SUBSCRIBE", f"Subscribe to {stream}", bind, ids))

    # Buckets ------------------------------------------------------------------------------------------

    async def create_bucket(
        self, bucket: str, *, correlation_id: str | None = None, trace_id: str | None = None
    ) -> dict[str, Any]:
        """Make a bucket, unless it is there and the same."""

        async def create(streams: Any) -> dict[str, Any]:
            await streams.create_key_value(bucket=bucket, replicas=self._replicas)
            return {"bucket": bucket}

        told, ids = {"bucket": bucket}, self._ids(correlation_id, trace_id)
        return await self._acted("KV_CREATE", f"Create bucket {bucket}", create, told, None, ids)

    async def get(
        self,
        bucket: str,
        key: str,
        *,
        operation: str | None = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
    ) -> bytes | None:
        """Return what stands under a key now, or None."""
        ids = self._ids(correlation_id, trace_id)
        return (await self._last_message("KV_GET", operation or f"Get {key}", bucket, key, ids))[0]

    async def put(
        self,
        bucket: str,
        key: str,
        value: bytes,
        *,
        operation: str | None = None,
        idempotency_key: str | None = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
    ) -> dict[str, Any]:
        """Write a value; return its revision."""
        told = {"bucket": bucket, "key": key, "value": digest({"value": value.hex()})}
        return await self._written(
            "KV_PUT", operation or f"Put {key}", subject_of(bucket, key), value, told, idempotency_key,
            self._ids(correlation_id, trace_id),
        )  # fmt: skip

    async def delete(
        self,
        bucket: str,
        key: str,
        *,
        operation: str | None = None,
        idempotency_key: str | None = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
    ) -> dict[str, Any]:
        """Delete a value; what is not there is deleted too."""
        told = {"bucket": bucket, "key": key}
        return await self._written(
            "KV_DELETE", operation or f"Delete {key}", subject_of(bucket, key), b"", told, idempotency_key,
            self._ids(correlation_id, trace_id), headers={"KV-Operation": "DEL"},
        )  # fmt: skip

    # Switches and approvals -----------------------------------------------------------------------------

    async def switch(
        self, name: str = ALL, *, correlation_id: str | None = None, trace_id: str | None = None
    ) -> bool:
        """Return whether a switch is on now; raises for a value that says neither."""
        value, _ = await self._switch_message(name, self._ids(correlation_id, trace_id))
        return switched(name, value) is not None

    async def turn(
        self,
        to: Literal["on", "off"],
        name: str = ALL,
        *,
        reason: str,
        by: str,
        correlation_id: str | None = None,
        trace_id: str | None = None,
    ) -> dict[str, Any]:
        """Turn a switch, and return its place in the bucket and whether it is `on`: the state that holds.

        A repeat of a request, by its correlation id and value, writes nothing while the switch stands as it
        asked. If the switch was turned since, "on" is written again, because stopping twice is safe; "off"
        raises StaleDecision, because an old release must not undo a later stop.
        """
        if to not in ("on", "off"):
            raise UsageError(f"to is {to!r:.80}; a switch is turned on or off")
        body = json.dumps({"on": to == "on", "by": by, "reason": reason}).encode()
        request: dict[str, Any] = {"switch_name": name, "value": to}
        ids = self._ids(correlation_id, trace_id)
        for _ in range(MOST_TURNS):
            key = None
            if correlation_id is not None:
                key = self._manager.idempotency_manager.compute_idempotency_key(
                    "kill_switch_update", self._tenant_id, correlation_id, request
                )
            answer, is_stored = await self._write(
                "KV_PUT", "Store kill switch state", f"$KV.{self._control}.{_key(name)}", body, request, key,
                ids,
            )  # fmt: skip
            if is_stored:
                return {**answer, "on": to == "on"}
            value, seq = await self._switch_message(name, ids)
            if _shows(name, value) == to:
                return {**answer, "seq": seq, "on": to == "on"}
            if to == "off":
                raise StaleDecision(_why_stale(name, value))
            request["after"] = seq
        raise StaleDecision(
            f"other clients turned the switch {name} off {MOST_TURNS} times meanwhile; turn it on again"
        )

    async def _switch_message(self, name: str, ids: Ids) -> tuple[bytes | None, int]:
        return await self._last_message("KV_GET", "Get kill switch status", self._control, _key(name), ids)

    async def approval(
        self, key: str, *, correlation_id: str | None = None, trace_id: str | None = None
    ) -> Approval | None:
        """Return what was approved of a key, or None."""
        name, ids = key_of("approval", key), self._ids(correlation_id, trace_id)
        data, _ = await self._last_message("APPROVAL_CHECK", "Check approval", self._control, name, ids)
        return None if data is None else Approval(**json.loads(data))

    async def grant(
        self,
        approval: Approval,
        *,
        idempotency_key: str | None = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
    ) -> dict[str, Any]:
        """Write an approval into the bucket, where every attempt of its run is compared with it."""
        name = key_of("approval", approval.run.removeprefix("run/"))
        plain = dict(approval._asdict())
        return await self._written(
            "APPROVAL_GRANT", "Grant approval", f"$KV.{self._control}.{name}", json.dumps(plain).encode(),
            plain, idempotency_key, self._ids(correlation_id, trace_id),
        )  # fmt: skip

    # One question ---------------------------------------------------------------------------------------

    def _ids(self, correlation_id: str | None, trace_id: str | None) -> Ids:
        """Return the ids of a call: those given, else those of the context around it."""
        return inherit_ids(Ids(self._tenant_id, correlation_id, trace_id))

    async def _last_message(
        self, category: str, operation: str, bucket: str, key: str, ids: Ids
    ) -> tuple[bytes | None, int]:
        """Return what stands under a key now, None if nothing does, and its revision."""
        from nats.js.errors import NotFoundError

        async def ask_leader(streams: Any) -> tuple[bytes | None, int]:
            try:
                found = await streams.get_last_msg(f"KV_{bucket}", subject_of(bucket, key))
            except NotFoundError as error:
                if error.err_code != NO_MESSAGE:
                    raise  # it is the bucket that is not there
                return None, 0
            is_deleted = (found.headers or {}).get("KV-Operation") in ("DEL", "PURGE")
            return None if is_deleted else found.data or b"", found.seq

        return await self._looked(category, operation, ask_leader, ids)  # type: ignore[no-any-return]

    async def _written(self, *message: Any, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        return (await self._write(*message, headers=headers))[0]

    async def _write(
        self, category: str, operation: str, subject: str, body: bytes, told: Mapping[str, Any],
        key: str | None, ids: Ids, *, headers: Mapping[str, str] | None = None,
    ) -> tuple[dict[str, Any], bool]:  # fmt: skip
        """Store a message once per key, whatever becomes of its acknowledgements.

        Return the answer of the server, and whether this call stored the message as the last of its subject:
        False for a recorded answer and for a message that the server had already.
        """
        key = key or self._own_key(operation, ids)
        sent = {**(headers or {}), "Nats-Msg-Id": digest({"message": key})[:32]}
        if ids.correlation_id is not None and ids.correlation_id.isprintable():
            sent["Correlation-Id"] = ids.correlation_id
        is_stored = False

        async def publish(streams: Any) -> dict[str, Any]:
            nonlocal is_stored
            found = await streams.publish(subject, body, headers=sent)
            is_stored = not found.duplicate
            return {"stream": found.stream, "seq": found.seq, "duplicate": bool(found.duplicate)}

        return await self._acted(category, operation, publish, told, key, ids), is_stored

    async def _acted(
        self, category: str, operation: str, ask: Callable[[Any], Awaitable[dict[str, Any]]],
        told: Mapping[str, Any], key: str | None, ids: Ids,
    ) -> dict[str, Any]:  # fmt: skip
        """Act once per key, and refuse a key that was used for something else."""
        key = key or self._own_key(operation, ids)
        request = sha256(json.dumps([category, told], sort_keys=True).encode()).hexdigest()

        async def ask_and_sign() -> dict[str, Any]:
            return {**await self.ask(ask), REQUEST: request}

        answer: dict[str, Any] = await self._manager.execute_with_retry(
            RetryCategory[category], operation, ask_and_sign, idempotency_key=key, **ids._asdict()
        )
        if answer.pop(REQUEST, request) != request:  # records of older versions do not have it
            raise KeyConflict(
                f"{operation}: the idempotency_key {key!r} was used for another request, and nothing "
                "was written; give this one a key of its own"
            )
        return answer

    async def _looked(
        self, category: str, operation: str, ask: Callable[[Any], Awaitable[Any]], ids: Ids
    ) -> Any:
        return await self._manager.execute_with_retry(
            RetryCategory[category], operation, lambda: self.ask(ask), **ids._asdict()
        )

    def _own_key(self, operation: str, ids: Ids) -> str:
        """Return the key of a call that was given none: this call is an operation of its own."""
        own = {"call": uuid7(clocks.current.wall())}
        compute = self._manager.idempotency_manager.compute_idempotency_key
        return compute(operation, self._tenant_id, ids.correlation_id, own)

    async def ask(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        """Ask JetStream for something, in the work of an operation of one's own; a lost line ends it."""
        line, lost = await self._connected()
        question = asyncio.ensure_future(ask(line.jetstream(timeout=ANSWER_S)))
        try:
            await asyncio.wait({question, lost}, return_when=asyncio.FIRST_COMPLETED)
            if question.done():
                return question.result()
            raise ConnectionResetError("the line to the bus was lost before it answered")
        finally:
            question.cancel()

    async def _connected(self) -> tuple[Any, asyncio.Future[None]]:
        async with self._connecting:
            if self._line is None or self._line.is_closed or self._lost is None or self._lost.done():
                lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

                async def gone() -> None:
                    if not lost.done():
                        lost.set_result(None)

                self._line = await connected(
                    self._servers, ANSWER_S, closed_cb=gone, disconnected_cb=gone, **self._options
                )
                self._lost = lost
            return self._line, self._lost


def _shows(name: str, value: bytes | None) -> str:
    """Return whether a switch is on or off by its value; empty for a value that says neither."""
    try:
        return "off" if switched(name, value) is None else "on"
    except ValueError:
        return ""


def _why_stale(name: str, value: bytes | None) -> str:
    """Return why an old release of a switch is refused, and what to do."""
    if not _shows(name, value):
        return f"the switch {name} was set since to {value!r:.60}, which says neither on nor off; look at it"
    thrown = switched(name, value) or {}
    return (
        f"nothing was released: since this request was made the switch {name} was thrown by "
        f"{thrown.get('by', 'another client')}: {thrown.get('reason', 'no reason given')}; "
        "give another correlation_id to release it"
    )


def _key(switch: str) -> str:
    """Return the key of a switch by its name: all_execution, step:NAME or tenant:NAME."""
    return key_of(*switch.split(":", 1))


class Letters:
    """What a subscription brings; a letter that is not acknowledged comes again."""

    def __init__(self, pull: Any) -> None:
        self._pull = pull

    async def fetch(self, most: int, within_s: float) -> list[Any]:
        """Return up to so many letters, as nats-py has them; none if none came in time.

        A consumer that nobody leads, because it is new or its server was lost, has none for the moment.
        """
        from nats.errors import TimeoutError as NoneYet
        from nats.js.errors import ServiceUnavailableError

        ends = time.monotonic() + within_s
        while (left := ends - time.monotonic()) > 0:
            try:
                return await self._pull.fetch(most, timeout=left)  # type: ignore[no-any-return]
            except NoneYet:
                break
            except ServiceUnavailableError:
                await asyncio.sleep(min(LEADERLESS_S, left))
        return []
