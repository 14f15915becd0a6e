"""The message bus of the exoarmur document: NATS JetStream, each call under its category.

    bus = Bus(manager, "nats://10.0.0.1:4222,10.0.0.2:4222,10.0.0.3:4222", replicas=3)
    await bus.connect()                                                     NATS_CONNECT
    await bus.create_stream("INTENTS", ["exoarmur.intents.>"])              NATS_STREAM_CREATE
    await bus.publish("exoarmur.intents.v1", {"intent": "i-9"})             NATS_PUBLISH
    messages = await bus.subscribe("INTENTS", "executor")                   NATS_SUBSCRIBE
    await bus.create_bucket("control")                                      KV_CREATE
    await bus.set_switch("on", reason="the ledger is wrong", by="operator") KV_PUT, of the kill switch
    await bus.is_switch_on()                                                KV_GET
    await bus.grant_approval(engine.approvals.build_approval(key, reason=…))         APPROVAL_GRANT
    await bus.get_approval(key)                                             APPROVAL_CHECK
    await bus.delete("control", bucket_key("approval", key))                KV_DELETE

Every call takes `correlation_id` and `trace_id`; without them it has those of `oncemore.context` around it.
A message that is written carries a `Nats-Msg-Id` derived from its idempotency key, so a repeat after a lost
acknowledgement is stored once, in a stream and in a bucket. The server remembers ids for minutes only
(`duplicate_window`): consumers should drop repeated ids as well.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from oncemore.policy.canonical_json import canonical_digest
from oncemore.profiles.exoarmur.bus_calls import subject_of
from oncemore.profiles.exoarmur.bus_control import BusControl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from oncemore.profiles.exoarmur.bus_calls import BusIds

#: How long a stream that `create_stream` makes remembers message ids.
DUPLICATE_WINDOW_S = 120.0
#: How long to wait before asking a consumer again that has no leader.
LEADER_RETRY_S = 0.1


class Bus(BusControl):
    """A connection to the bus; every call is an operation of the manager.

    url        the addresses of the servers, separated by commas
    replicas   the number of servers that keep each stream and bucket made here
    tenant_id  the tenant of all operations
    control    the bucket of switches and approvals
    options    keyword arguments for `nats.connect`: credentials, TLS, …
    """

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self, **ids: Unpack[BusIds]) -> None:
        """Connect to the first server that answers, and check that JetStream answers too."""
        await self._run_reading(
            "NATS_CONNECT", "Connect", lambda streams: streams.account_info(), self._ids(**ids)
        )

    async def create_stream(
        self, name: str, subjects: Sequence[str], **ids: Unpack[BusIds]
    ) -> dict[str, Any]:
        """Create a stream unless the same one exists; return its name and the number of its replicas."""
        from nats.js.api import StreamConfig

        config = StreamConfig(
            name=name,
            subjects=list(subjects),
            num_replicas=self._replicas,
            duplicate_window=DUPLICATE_WINDOW_S,
        )

        async def create(streams: Any) -> dict[str, Any]:
            created = (await streams.add_stream(config)).config
            return {"stream": created.name, "replicas": created.num_replicas}

        return await self._run_acting(
            "NATS_STREAM_CREATE",
            f"Create stream {name}",
            create,
            # The request is compared on a repeat: the same key for other subjects is a conflict.
            request={"stream": name, "subjects": list(subjects)},
            key=None,
            ids=self._ids(**ids),
        )

    async def publish(
        self,
        subject: str,
        payload: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        **ids: Unpack[BusIds],
    ) -> dict[str, Any]:
        """Publish JSON; return the stream that stored the message and its sequence number there."""
        reply, _ = await self._store_message(
            "NATS_PUBLISH",
            f"Publish to {subject}",
            subject,
            json.dumps(payload, allow_nan=False).encode(),
            request={"subject": subject, "payload": dict(payload)},
            key=idempotency_key,
            ids=self._ids(**ids),
        )
        return reply

    async def subscribe(
        self, stream: str, durable: str, subject: str | None = None, **ids: Unpack[BusIds]
    ) -> Subscription:
        """Return the messages of a stream from the position of a durable consumer; create it if needed."""
        from nats.js.api import AckPolicy, ConsumerConfig

        config = ConsumerConfig(
            # Explicit acknowledgements: a message whose consumer dies is delivered again after 30 s.
            durable_name=durable,
            ack_policy=AckPolicy.EXPLICIT,
            filter_subject=subject,
            ack_wait=30.0,
        )

        async def bind(streams: Any) -> Any:
            await streams.add_consumer(stream, config)
            return await streams.pull_subscribe_bind(durable=durable, stream=stream)

        pull = await self._run_reading("NATS_SUBSCRIBE", f"Subscribe to {stream}", bind, self._ids(**ids))
        return Subscription(pull)

    async def create_bucket(self, bucket: str, **ids: Unpack[BusIds]) -> dict[str, Any]:
        """Create a bucket unless the same one exists."""

        async def create(streams: Any) -> dict[str, Any]:
            await streams.create_key_value(bucket=bucket, replicas=self._replicas)
            return {"bucket": bucket}

        return await self._run_acting(
            "KV_CREATE",
            f"Create bucket {bucket}",
            create,
            request={"bucket": bucket},
            key=None,
            ids=self._ids(**ids),
        )

    async def get(
        self, bucket: str, key: str, *, operation: str | None = None, **ids: Unpack[BusIds]
    ) -> bytes | None:
        """Return the value of a key now, or None."""
        value, _ = await self._load_last_message(
            "KV_GET", operation or f"Get {key}", bucket, key, self._ids(**ids)
        )
        return value

    async def put(
        self,
        bucket: str,
        key: str,
        value: bytes,
        *,
        operation: str | None = None,
        idempotency_key: str | None = None,
        **ids: Unpack[BusIds],
    ) -> dict[str, Any]:
        """Write a value; return its revision."""
        reply, _ = await self._store_message(
            "KV_PUT",
            operation or f"Put {key}",
            subject_of(bucket, key),
            value,
            # A digest stands for the value: JSON cannot hold bytes.
            request={"bucket": bucket, "key": key, "value": canonical_digest({"value": value.hex()})},
            key=idempotency_key,
            ids=self._ids(**ids),
        )
        return reply

    async def delete(
        self,
        bucket: str,
        key: str,
        *,
        operation: str | None = None,
        idempotency_key: str | None = None,
        **ids: Unpack[BusIds],
    ) -> dict[str, Any]:
        """Delete a value; deleting a value that does not exist succeeds."""
        reply, _ = await self._store_message(
            "KV_DELETE",
            operation or f"Delete {key}",
            subject_of(bucket, key),
            b"",
            request={"bucket": bucket, "key": key},
            key=idempotency_key,
            ids=self._ids(**ids),
            # JetStream keeps a deletion as a message, as nats-py's own KeyValue.delete does.
            headers={"KV-Operation": "DEL"},
        )
        return reply


class Subscription:
    """The messages of a durable consumer; a message that is not acknowledged is delivered again."""

    def __init__(self, pull: Any) -> None:
        self._pull_subscription = pull

    async def fetch(self, max_messages: int, timeout_s: float) -> list[Any]:
        """Return up to `max_messages` messages of nats-py; an empty list if none came in time."""
        from nats.errors import TimeoutError as NoMessages
        from nats.js.errors import ServiceUnavailableError

        deadline = time.monotonic() + timeout_s
        while (remaining_s := deadline - time.monotonic()) > 0:
            try:
                return await self._pull_subscription.fetch(max_messages, timeout=remaining_s)  # type: ignore[no-any-return]
            except NoMessages:
                break
            # The consumer has no leader yet, because it is new or its server was lost.
            except ServiceUnavailableError:
                await asyncio.sleep(min(LEADER_RETRY_S, remaining_s))
        return []
