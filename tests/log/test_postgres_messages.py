"""The connection to PostgreSQL is cut at every message of an append, in both directions.

A proxy reads the protocol: it passes on so many whole messages of the one request that it is armed for, or of
the server's answer to it, and then ends the line, as a network does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import pytest

from oncemore.log.postgres.store import PostgresStore
from oncemore.log.store import Batch, Conflict, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored
from tests.servers import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

names = itertools.count()
BODY = b"." * 3000
#: Bind, Describe, Execute, Sync; and what answers them: BindComplete, RowDescription, DataRow,
#: CommandComplete, ReadyForQuery.
THERE, BACK = b"BDES", b"2TDCZ"
ROUNDS = 12 if os.environ.get("ONCEMORE_TORTURE") else 2


class Cut(NamedTuple):
    """The side and number of messages after that the proxy cuts, and the part of the next that passes."""

    side: str
    after: int
    part: float


#: Before and after each message, and in the middle of each.
CUTS = [
    Cut(side, after, part)
    for side, kinds in (("there", THERE), ("back", BACK))
    for after in range(len(kinds))
    for part in (0.0, 0.5)
] + [Cut("there", len(THERE), 0.0)]


class Proxy:
    """A proxy that forwards bytes, and cuts once each time it is armed."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.armed: Cut | None = None
        self.passed = b""
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Forward bytes in both directions until a long request arrives while it is armed."""
        cutting: list[Cut] = []
        with contextlib.suppress(OSError):
            threading.Thread(target=self._answers, args=(client, server, cutting), daemon=True).start()
            while data := client.recv(1 << 20):
                cut = self.armed
                if cut is None or BODY not in data:
                    server.sendall(data)
                    continue
                self.armed = None
                if cut.side == "back":
                    cutting.append(cut)
                    server.sendall(data)
                    continue
                server.sendall(self._upto(cut, data))
                self.cuts += 1
                break
        if not cutting:
            _end(client)
            _end(server)

    def _answers(self, client: socket.socket, server: socket.socket, cutting: list[Cut]) -> None:
        whole = b""
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                if not cutting:
                    client.sendall(data)
                    continue
                whole += data
                if len(kinds(whole)) > cutting[0].after:
                    client.sendall(self._upto(cutting[0], whole))
                    self.cuts += 1
                    break
        _end(client)
        _end(server)

    def _upto(self, cut: Cut, data: bytes) -> bytes:
        found = messages(data)
        end = sum(map(len, found[: cut.after]))
        more = found[cut.after] if cut.after < len(found) else b""
        self.passed = kinds(data)
        return data[: end + int(len(more) * cut.part)]

    def close(self) -> None:
        _end(self._listener)


def messages(data: bytes) -> list[bytes]:
    """Split a stream into messages (type byte, length, content); the last one may be incomplete."""
    found = []
    while data:
        size = 1 + int.from_bytes(data[1:5], "big")
        found.append(data[:size])
        data = data[size:]
    return found


def kinds(data: bytes) -> bytes:
    return b"".join(message[:1] for message in messages(data))


def _end(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    where = urlsplit(url)
    assert where.hostname
    assert where.port
    made = Proxy((where.hostname, where.port))
    yield made
    made.close()


@pytest.mark.torture
@pytest.mark.timeout(600)
def test_a_commit_cut_at_any_message_is_answered_as_the_log_says(
    proxy: Proxy, url: str, record_property: Callable[[str, object], None]
) -> None:
    schema = f"messages_{next(names)}"
    cut = PostgresStore(url.replace(str(urlsplit(url).port), str(proxy.port)), schema)
    straight = PostgresStore(url, schema)
    require_stored(append_writes(cut, make_write("run/warm", None)))
    told: dict[bytes, Stored | Conflict] = {}
    seen: set[bytes] = set()
    for number, place in enumerate(CUTS * ROUNDS):
        for stale in (False, True):  # what would be stored, and what would be refused
            entity = f"run/{number % 7}"
            head = straight.load_head(entity)
            one = make_write(entity, None if stale else head, secrets.token_bytes(8) + BODY)
            if stale and head is None:
                continue
            proxy.armed = place
            told[one.body] = cut.append(Batch((one,))).wait()
            assert isinstance(told[one.body], Conflict if stale else Stored), (place, stale)
            assert proxy.armed is None, "it was not cut"
            seen.add(proxy.passed)
    standing = {entry.body: entry.seq for entry in straight.read_entries()}
    for body, answer in told.items():
        assert (standing.get(body),) == (answer.seqs if isinstance(answer, Stored) else (None,))
    assert len(standing) == 1 + sum(isinstance(answer, Stored) for answer in told.values())
    for number in range(7):
        read_verified_entries(straight, f"run/{number}")
    assert proxy.cuts == len(told)
    assert len(told) >= (400 if ROUNDS > 2 else 60), len(told)
    record_property("COMMITs cut and resolved", len(told))
    assert any(set(THERE) <= set(one) for one in seen), f"what we send is not what is cut: {seen}"
    assert any(set(BACK) <= set(one) for one in seen), seen
    cut.close()
    straight.close()
