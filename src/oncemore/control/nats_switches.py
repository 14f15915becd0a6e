"""Switches and approvals that people keep in a NATS key-value bucket, read before every attempt.

    oncemore.open("log.db", control="nats://127.0.0.1:4222/control")     a cluster's servers with commas

    all_execution      a switch: "on" stops every step
    step.NAME          … that step
    tenant.NAME        … that tenant's work
    approval.KEY       what was approved of a key: a JSON object with the fields of `control.model.Approval`

What no key of a bucket can hold is written as =XX, as in step.Contain=20host (`key_of`).

A switch is `on`, `true` or `1`, or `off`, `false` or `0`, or a JSON object that says `{"on": true, "by": …,
"reason": …}`; one that is not there is off. Anything else cannot be read, and what cannot be read means no:
a server that does not answer, a bucket that is not there, a value that makes no sense. It is only ever read
here, and always from the stream's leader, never from a replica that may be behind.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore._redact import describe_value
from oncemore.control.model import ALL, STOPPED, Approval, Control, switch_name
from oncemore.errors import MissingExtra, UsageError
from oncemore.log.nats.servers import connected, forever, servers_of, shown
from oncemore.policy.canonical_json import normalize_name

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import TypeVar

    T = TypeVar("T")

#: How long one question may take, with connecting.
PATIENCE_S = 5.0
NO_MESSAGE = 10037
_ADDRESS = re.compile(r"(?P<server>(?:nats|tls)://[^/]+)/(?P<bucket>[A-Za-z0-9_-]+)")
_ODD = re.compile(rb"[^-/_.A-Za-z0-9]|^\.|\.$|\.(?=\.)")
_ESCAPED = re.compile(rb"=([0-9A-F]{2})")
_WORDS = {b"on": True, b"true": True, b"1": True, b"off": False, b"false": False, b"0": False}


def control_of(told: Any) -> Any:
    """Return where else people say what may begin: by its address, or as it was given."""
    if not isinstance(told, str):
        missing = [
            name for name in ("switches", "approval", "close") if not callable(getattr(told, name, None))
        ]
        if missing:
            raise UsageError(f"control is {describe_value(told)}, which has no {', no '.join(missing)}")
        return told
    found = _ADDRESS.fullmatch(told)
    if found is None:
        raise UsageError(f"control is {describe_value(told)}; it takes nats://host:port/bucket")
    return NatsControl(found["server"], found["bucket"])


class NatsControl:
    """The switches and approvals of one bucket."""

    def __init__(self, server: str, bucket: str, patience_s: float = PATIENCE_S) -> None:
        try:
            import nats  # noqa: F401
        except ImportError as error:  # pragma: no cover - the extra is there in tests
            raise MissingExtra("control=nats://… needs nats-py; install oncemore[nats]") from error
        self._servers, self._bucket, self._patience_s = servers_of(server), bucket, patience_s
        self.url = f"{shown(self._servers)}/{bucket}"
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._line: Any = None
        self._connecting = asyncio.Lock()

    def switches(self, steps: tuple[str, ...], tenant: str) -> Control:
        """Return those that are on, of everything, of these steps and of this tenant."""
        names = [ALL, *(switch_name(step) for step in steps)]
        if tenant:
            names.append(switch_name("", tenant))
        found = self._asked(self._values([key_of(*name.split(":", 1)) for name in names]))
        on = {name: told for name, data in zip(names, found, strict=True) if (told := switched(name, data))}
        return Control(STOPPED, on) if on else Control()

    def all_switches(self) -> Control:
        """Return all switches of the bucket that are on."""
        found = self._asked(self._switch_values())
        on = {name: told for name, data in sorted(found.items()) if (told := switched(name, data))}
        return Control(STOPPED, on) if on else Control()

    def approval(self, key: str) -> Approval | None:
        """Return what was approved of a key."""
        (data,) = self._asked(self._values([key_of("approval", key)]))
        return None if data is None else Approval(**json.loads(data))

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            loop, self._loop, thread, self._thread = self._loop, None, self._thread, None
        if loop is not None and thread is not None:
            with suppress(Exception):  # it may be what does not answer
                asyncio.run_coroutine_threadsafe(self._hang_up(), loop).result(self._patience_s)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(self._patience_s)

    # ------------------------------------------------------------------------------------------------

    def _asked(self, question: Coroutine[Any, Any, T]) -> T:
        """Ask from any thread, also one that has an event loop of its own; never for longer than that."""
        with self._lock:
            if self._loop is None:
                self._loop, self._connecting = asyncio.new_event_loop(), asyncio.Lock()
                self._thread = threading.Thread(
                    target=forever, args=(self._loop,), name="oncemore-control", daemon=True
                )
                self._thread.start()
            loop = self._loop
        limited = asyncio.wait_for(question, self._patience_s)
        return asyncio.run_coroutine_threadsafe(limited, loop).result(self._patience_s + 1.0)

    async def _values(self, keys: list[str]) -> list[bytes | None]:
        line = await self._connected()
        try:
            return [await self._value(line, key) for key in keys]
        except BaseException:
            if line is self._line:  # the next question begins with a new one
                await self._hang_up()
            raise

    async def _switch_values(self) -> dict[str, bytes | None]:
        """Return the values of all switches by name; approvals are in the same bucket and are left out."""
        line, subject = await self._connected(), f"$KV.{self._bucket}."
        info = await line.jetstream().stream_info(f"KV_{self._bucket}", subjects_filter=f"{subject}>")
        keys = [one.removeprefix(subject) for one in info.state.subjects or ()]
        names = {key: _switch_name(key) for key in keys}
        wanted = [key for key in keys if names[key]]
        return {names[key]: value for key, value in zip(wanted, await self._values(wanted), strict=True)}

    async def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def _value(self, line: Any, key: str) -> bytes | None:
        from nats.js.errors import NotFoundError

        try:
            found = await line.jetstream().get_last_msg(f"KV_{self._bucket}", f"$KV.{self._bucket}.{key}")
        except NotFoundError as error:
            if error.err_code != NO_MESSAGE:
                raise  # it is the bucket that is not there
            return None
        gone = (found.headers or {}).get("KV-Operation") in ("DEL", "PURGE")
        return None if gone else found.data or b""

    async def _connected(self) -> Any:
        async with self._connecting:  # or those who ask at once would have a line each
            if self._line is None or self._line.is_closed:
                self._line = await connected(self._servers, self._patience_s)
            return self._line


def key_of(kind: str, name: str = "") -> str:
    """Return the key of a switch or an approval: a bucket's keys hold plain signs, others are =XX there.

    The sign = itself is one of the others, so that no two names have one key.
    """
    if not name:
        return kind
    written = normalize_name(name).encode()
    plain = _ODD.sub(lambda odd: b"".join(b"=%02X" % sign for sign in odd[0]), written)
    return f"{kind}.{plain.decode()}"


def _switch_name(key: str) -> str:
    """Return the name of the switch that a key stands for; empty for the key of anything else."""
    kind, _, name = key.partition(".")
    if not name:
        return kind if kind == ALL else ""
    plain = _ESCAPED.sub(lambda sign: bytes.fromhex(sign[1].decode()), name.encode())
    return f"{kind}:{plain.decode(errors='replace')}" if kind in ("step", "tenant") else ""


def switched(name: str, data: bytes | None) -> dict[str, Any] | None:
    """Return who threw a switch and why, None if it is off; refuse what says neither."""
    if data is None:
        return None
    word = data.strip().lower()
    told = {"on": _WORDS[word]} if word in _WORDS else json.loads(data)
    if not isinstance(told, dict) or not isinstance(told.get("on"), bool):
        raise ValueError(f"the switch {name} is {data!r:.60}, which says neither on nor off")
    return told if told["on"] else None
