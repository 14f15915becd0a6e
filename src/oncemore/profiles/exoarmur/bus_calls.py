"""One call to the bus: the connection, the operation that makes it, and its idempotency key.

`Bus` (`bus.py`) builds its calls on these. Every call is an operation of the `RetryManager`, under the
category of the document. Calls that act run once per idempotency key; a call without a key is an operation
of its own. Reads ask the leader of the stream, never a replica that may be behind, and are never answered
from a record.
"""

from __future__ import annotations

import asyncio
import json
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypedDict

from oncemore import clock as clocks
from oncemore.audit.recorder import OperationIds
from oncemore.control.nats_switches import NO_MESSAGE_CODE
from oncemore.errors import KeyConflict, MissingExtra, UsageError
from oncemore.log.entry_codec import new_uuid7
from oncemore.log.nats.servers import connect_first, hide_credentials, parse_servers
from oncemore.policy.canonical_json import canonical_digest
from oncemore.profiles.exoarmur.operation import inherit_ids
from oncemore.profiles.exoarmur.policy import RetryCategory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from oncemore.profiles.exoarmur.manager import RetryManager

#: How long to wait for one reply: less than the five seconds that an attempt has.
REPLY_TIMEOUT_S = 4.0
#: The bucket of switches and approvals.
CONTROL_BUCKET = "control"
#: The field of a recorded reply that holds the digest of its request.
REQUEST = "request"
_BUCKET = re.compile(r"[A-Za-z0-9_-]+")


def subject_of(bucket: str, key: str) -> str:
    """Return the subject of a key in a bucket; refuse a name that would reach into another bucket."""
    if not _BUCKET.fullmatch(bucket):
        raise UsageError(f"bucket is {bucket!r:.80}; it takes letters, digits, _ and -")
    return f"$KV.{bucket}.{key}"


class BusIds(TypedDict, total=False):
    """The ids that every call takes; without them it has those of `oncemore.context` around it."""

    correlation_id: str | None
    trace_id: str | None


class BusCalls:
    """The connection to the bus, and the kinds of calls that `Bus` makes over it."""

    def __init__(
        self,
        manager: RetryManager,
        url: str,
        *,
        replicas: int = 1,
        tenant_id: str | None = None,
        control: str = CONTROL_BUCKET,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            import nats  # noqa: F401
        except ImportError as missing:
            raise MissingExtra("a bus needs nats-py: pip install 'oncemore[nats]'") from missing
        self._manager, self._servers, self._options = manager, parse_servers(url), dict(options or {})
        self._replicas, self._tenant_id, self._control = replicas, tenant_id, control
        self._connection: Any = None
        self._connection_lost: asyncio.Future[None] | None = None
        self._connect_lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<oncemore.Bus {hide_credentials(self._servers)}>"

    async def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def ask(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        """Call `ask` with JetStream and return its result; for the work of your own operations.

        Raises `ConnectionResetError` as soon as the connection is lost, so that the next attempt can ask
        another server at once instead of waiting for a timeout.
        """
        connection, lost = await self._get_connection()
        request = asyncio.ensure_future(ask(connection.jetstream(timeout=REPLY_TIMEOUT_S)))
        try:
            await asyncio.wait({request, lost}, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                return request.result()
            raise ConnectionResetError("the connection to the bus was lost before the reply")
        finally:
            request.cancel()

    async def _get_connection(self) -> tuple[Any, asyncio.Future[None]]:
        """Return the connection and the future that completes when it is lost; connect if needed."""
        # Without the lock, calls that start together would open a connection each.
        async with self._connect_lock:
            if (
                self._connection is None
                or self._connection.is_closed
                or self._connection_lost is None
                or self._connection_lost.done()
            ):
                lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

                async def mark_lost() -> None:
                    if not lost.done():
                        lost.set_result(None)

                self._connection = await connect_first(
                    self._servers,
                    REPLY_TIMEOUT_S,
                    closed_cb=mark_lost,
                    disconnected_cb=mark_lost,
                    **self._options,
                )
                self._connection_lost = lost
            return self._connection, self._connection_lost

    def _ids(self, correlation_id: str | None = None, trace_id: str | None = None) -> OperationIds:
        """Return the ids of a call: those given, else those of the context around it."""
        return inherit_ids(OperationIds(self._tenant_id, correlation_id, trace_id))

    async def _run_reading(
        self, category: str, operation: str, ask: Callable[[Any], Awaitable[Any]], ids: OperationIds
    ) -> Any:
        return await self._manager.execute_with_retry(
            RetryCategory[category], operation, lambda: self.ask(ask), **ids._asdict()
        )

    async def _load_last_message(
        self, category: str, operation: str, bucket: str, key: str, ids: OperationIds
    ) -> tuple[bytes | None, int]:
        """Return the value and the revision of a key now; the value is None if the key has none."""
        from nats.js.errors import NotFoundError

        async def ask_leader(streams: Any) -> tuple[bytes | None, int]:
            try:
                message = await streams.get_last_msg(f"KV_{bucket}", subject_of(bucket, key))
            except NotFoundError as error:
                # The same exception says that the bucket does not exist, which must not pass for "no value".
                if error.err_code != NO_MESSAGE_CODE:
                    raise
                return None, 0
            is_deleted = (message.headers or {}).get("KV-Operation") in ("DEL", "PURGE")
            return None if is_deleted else message.data or b"", message.seq

        return await self._run_reading(category, operation, ask_leader, ids)  # type: ignore[no-any-return]

    async def _run_acting(
        self,
        category: str,
        operation: str,
        ask: Callable[[Any], Awaitable[dict[str, Any]]],
        *,
        request: Mapping[str, Any],
        key: str | None,
        ids: OperationIds,
    ) -> dict[str, Any]:
        """Make a call once per key; raise `KeyConflict` for a key that was used for another request."""
        key = key or self._make_key(operation, ids)
        digest = sha256(json.dumps([category, request], sort_keys=True).encode()).hexdigest()

        async def ask_and_sign() -> dict[str, Any]:
            return {**await self.ask(ask), REQUEST: digest}

        reply: dict[str, Any] = await self._manager.execute_with_retry(
            RetryCategory[category], operation, ask_and_sign, idempotency_key=key, **ids._asdict()
        )
        # Records of older versions do not have the digest.
        if reply.pop(REQUEST, digest) != digest:
            raise KeyConflict(
                f"{operation}: the idempotency_key {key!r} was used for another request, and nothing "
                "was written; give this request a key of its own"
            )
        return reply

    async def _store_message(
        self,
        category: str,
        operation: str,
        subject: str,
        body: bytes,
        *,
        request: Mapping[str, Any],
        key: str | None,
        ids: OperationIds,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[dict[str, Any], bool]:
        """Store a message once per key, even if acknowledgements are lost.

        Returns the reply of the server, and whether this call stored the message as the last of its subject:
        False for a recorded reply and for a message that the server had already.
        """
        key = key or self._make_key(operation, ids)
        # The message id follows from the key, so the server drops a repeat after a lost acknowledgement.
        sent = {**(headers or {}), "Nats-Msg-Id": canonical_digest({"message": key})[:32]}
        # A correlation id with a line break would add headers of its own.
        if ids.correlation_id is not None and ids.correlation_id.isprintable():
            sent["Correlation-Id"] = ids.correlation_id
        is_stored = False

        async def publish(streams: Any) -> dict[str, Any]:
            nonlocal is_stored
            ack = await streams.publish(subject, body, headers=sent)
            is_stored = not ack.duplicate
            return {"stream": ack.stream, "seq": ack.seq, "duplicate": bool(ack.duplicate)}

        reply = await self._run_acting(category, operation, publish, request=request, key=key, ids=ids)
        return reply, is_stored

    def _make_key(self, operation: str, ids: OperationIds) -> str:
        """Return a key that no other call has, for a call without one."""
        unique = {"call": new_uuid7(clocks.current.wall())}
        compute = self._manager.idempotency_manager.compute_idempotency_key
        return compute(operation, self._tenant_id, ids.correlation_id, unique)
