"""Switches and approvals in a NATS key-value bucket, read before every attempt.

    oncemore.open("log.db", control="nats://127.0.0.1:4222/control")     several servers: with commas

    all_execution      a switch that stops every step
    step.NAME          a switch that stops one step
    tenant.NAME        a switch that stops the work of one tenant
    approval.KEY       the approval of a key: a JSON object with the fields of `control.model.Approval`

A character that a bucket key cannot contain is written as =XX, as in step.Contain=20host (`bucket_key`).

A switch is `on`, `true` or `1`, or `off`, `false` or `0`, or a JSON object `{"on": true, "by": …,
"reason": …}`; a missing one is off. If the server does not answer, the bucket is missing or a value is
malformed, no attempt begins. The bucket is never written, and always read from the leader of its stream,
because a replica may be behind.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore._redact import describe_value
from oncemore.control.model import ALL_EXECUTION, STOPPED, Approval, SwitchBoard, switch_name
from oncemore.errors import MissingExtra, UsageError
from oncemore.log.nats.servers import connect_first, hide_credentials, parse_servers, run_loop_forever
from oncemore.policy.canonical_json import normalize_name

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import TypeVar

    T = TypeVar("T")

#: The timeout of one request, including the connection.
TIMEOUT_S = 5.0
NO_MESSAGE_CODE = 10037
_ADDRESS_PATTERN = re.compile(r"(?P<server>(?:nats|tls)://[^/]+)/(?P<bucket>[A-Za-z0-9_-]+)")
_ESCAPED_PATTERN = re.compile(rb"[^-/_.A-Za-z0-9]|^\.|\.$|\.(?=\.)")
_ESCAPED = re.compile(rb"=([0-9A-F]{2})")
_SWITCH_WORDS = {b"on": True, b"true": True, b"1": True, b"off": False, b"false": False, b"0": False}


def make_external_switches(control: Any) -> Any:
    """Return the external switches for an address, or the given object if it has the needed methods."""
    if not isinstance(control, str):
        missing = [
            name
            for name in ("load_switches", "load_approval", "close")
            if not callable(getattr(control, name, None))
        ]
        if missing:
            raise UsageError(f"control is {describe_value(control)}, which has no {', no '.join(missing)}")
        return control
    match = _ADDRESS_PATTERN.fullmatch(control)
    if match is None:
        raise UsageError(f"control is {describe_value(control)}; it takes nats://host:port/bucket")
    return NatsSwitches(match["server"], match["bucket"])


class NatsSwitches:
    """Reads the switches and approvals of one bucket."""

    def __init__(self, server: str, bucket: str, timeout_s: float = TIMEOUT_S) -> None:
        try:
            import nats  # noqa: F401
        except ImportError as error:  # pragma: no cover - the extra is there in tests
            raise MissingExtra("control=nats://… needs nats-py; install oncemore[nats]") from error
        self._servers, self._bucket, self._timeout_s = parse_servers(server), bucket, timeout_s
        self.url = f"{hide_credentials(self._servers)}/{bucket}"
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connection: Any = None
        self._connecting = asyncio.Lock()

    def load_switches(self, steps: tuple[str, ...], tenant: str) -> SwitchBoard:
        """Return the switches that are on for all attempts, these steps and this tenant."""
        names = [ALL_EXECUTION, *(switch_name(step) for step in steps)]
        if tenant:
            names.append(switch_name("", tenant))
        values = self._run_in_loop(self._fetch_values([bucket_key(*name.split(":", 1)) for name in names]))
        return _make_board(dict(zip(names, values, strict=True)))

    def all_switches(self) -> SwitchBoard:
        """Return all switches of the bucket that are on."""
        return _make_board(dict(sorted(self._run_in_loop(self._switch_values()).items())))

    def load_approval(self, key: str) -> Approval | None:
        """Return the approval of a key, or None."""
        (data,) = self._run_in_loop(self._fetch_values([bucket_key("approval", key)]))
        return None if data is None else Approval(**json.loads(data))

    def close(self) -> None:
        """Close the connection and stop the event loop."""
        with self._lock:
            loop, self._loop, thread, self._thread = self._loop, None, self._thread, None
        if loop is not None and thread is not None:
            # The server may be unreachable; close() must not fail because of that.
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._close_connection(), loop).result(self._timeout_s)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(self._timeout_s)

    # ------------------------------------------------------------------------------------------------

    def _run_in_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of this object, for at most `timeout_s`."""
        # A loop in its own thread works for callers that run an event loop themselves.
        with self._lock:
            if self._loop is None:
                self._loop, self._connecting = asyncio.new_event_loop(), asyncio.Lock()
                self._thread = threading.Thread(
                    target=run_loop_forever, args=(self._loop,), name="oncemore-control", daemon=True
                )
                self._thread.start()
            loop = self._loop
        limited = asyncio.wait_for(coroutine, self._timeout_s)
        return asyncio.run_coroutine_threadsafe(limited, loop).result(self._timeout_s + 1.0)

    async def _fetch_values(self, keys: list[str]) -> list[bytes | None]:
        connection = await self._get_connection()
        try:
            return [await self._fetch_value(connection, key) for key in keys]
        except BaseException:
            # The state of the connection is unknown after an error, so the next request opens a new one.
            if connection is self._connection:
                await self._close_connection()
            raise

    async def _switch_values(self) -> dict[str, bytes | None]:
        """Return the values of all switches by name, without the approvals in the same bucket."""
        connection, subject = await self._get_connection(), f"$KV.{self._bucket}."
        info = await connection.jetstream().stream_info(f"KV_{self._bucket}", subjects_filter=f"{subject}>")
        keys = [key.removeprefix(subject) for key in info.state.subjects or ()]
        names = {key: name for key in keys if (name := _switch_name(key))}
        return dict(zip(names.values(), await self._fetch_values(list(names)), strict=True))

    async def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _fetch_value(self, connection: Any, key: str) -> bytes | None:
        from nats.js.errors import NotFoundError

        try:
            message = await connection.jetstream().get_last_msg(
                f"KV_{self._bucket}", f"$KV.{self._bucket}.{key}"
            )
        except NotFoundError as error:
            # Any other code means that the bucket itself is missing.
            if error.err_code != NO_MESSAGE_CODE:
                raise
            return None
        is_deleted = (message.headers or {}).get("KV-Operation") in ("DEL", "PURGE")
        return None if is_deleted else message.data or b""

    async def _get_connection(self) -> Any:
        # Without the lock, concurrent requests would each open a connection.
        async with self._connecting:
            if self._connection is None or self._connection.is_closed:
                self._connection = await connect_first(self._servers, self._timeout_s)
            return self._connection


def bucket_key(kind: str, name: str = "") -> str:
    """Return the bucket key of a switch or an approval, with special characters encoded as =XX.

    The character = is escaped too, so that two names never have the same key.
    """
    if not name:
        return kind
    encoded = normalize_name(name).encode()
    plain = _ESCAPED_PATTERN.sub(lambda match: b"".join(b"=%02X" % byte for byte in match[0]), encoded)
    return f"{kind}.{plain.decode()}"


def _switch_name(key: str) -> str:
    """Return the name of the switch of a bucket key; empty if the key is not one of a switch."""
    kind, _, name = key.partition(".")
    if not name:
        return kind if kind == ALL_EXECUTION else ""
    plain = _ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), name.encode())
    return f"{kind}:{plain.decode(errors='replace')}" if kind in ("step", "tenant") else ""


def _make_board(values: dict[str, bytes | None]) -> SwitchBoard:
    """Return the switches with these values by name."""
    active = {name: details for name, data in values.items() if (details := parse_switch(name, data))}
    return SwitchBoard(STOPPED, active) if active else SwitchBoard()


def parse_switch(name: str, data: bytes | None) -> dict[str, Any] | None:
    """Return the details of a switch, or None if it is off; raise `ValueError` for any other value."""
    if data is None:
        return None
    word = data.strip().lower()
    details = {"on": _SWITCH_WORDS[word]} if word in _SWITCH_WORDS else json.loads(data)
    if not isinstance(details, dict) or not isinstance(details.get("on"), bool):
        raise ValueError(f"the switch {name} is {data!r:.60}, neither on nor off")
    return details if details["on"] else None
