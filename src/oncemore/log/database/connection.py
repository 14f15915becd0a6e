"""Connections to a database server: the client of a driver, a pool for reading, and the server's clock.

Connections are in autocommit: each statement is a transaction of its own.

**The clock.** A step reads the clock about six times. A round trip each time would be most of the cost of a
step, and would block the event loop. So the server is asked once a second, and in between its time is
extrapolated with a clock of this machine that also runs while the machine sleeps.

The reply of the server was correct at some moment between request and reply: at the reply, the server's time
is that value, or up to a round trip more. An extrapolated time within these bounds is kept. Otherwise the
nearer bound is used, so that time does not jump with the network; it goes back only if the server's own clock
went back.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from urllib.parse import unquote

from oncemore._platform import get_boot_time
from oncemore._values import Value
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncemore.errors import StoreError

    Rows = Sequence[tuple[Any, ...]]

C = TypeVar("C")
T = TypeVar("T")

#: Interval between two questions for the server's time, in seconds.
ASK_S = 1.0
READERS = 8


class DatabaseClient(Protocol[C]):
    """The driver of a server: how to connect, and the meaning of its errors."""

    @property
    def error(self) -> type[Exception]:
        """The base class of the driver's errors."""

    def open_connection(self) -> C:
        """Open a connection in autocommit."""

    def close_connection(self, connection: C | None) -> None:
        """Close a connection in any state."""

    def execute_rows(self, connection: C, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run a statement and return its rows."""

    def execute_many(self, connection: C, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""

    def is_connection_lost(self, error: Any) -> bool:
        """Whether the outcome of the statement is unknown: the server did not reply, or ended the session."""

    def is_transient(self, error: Any) -> bool:
        """Whether the same call may succeed if it is repeated: a concurrent transaction was in the way."""

    def may_be_one_batch(self, error: Any) -> bool:
        """Whether one batch of a group may have caused the error, so that the rest can be stored."""

    def build_store_error(self, error: Any, outcome: str = "") -> StoreError:
        """Return an error with the server, the cause, the remedy, and the outcome of the statement."""


class DatabaseServer(Value):
    """A checked server.

    engine      its name and version, and the driver
    weaknesses  settings that weaken its durability
    notes       other facts that an operator should know
    """

    engine: str
    weaknesses: tuple[str, ...]
    notes: tuple[str, ...]


class ReadConnectionPool(Generic[C]):
    """A pool of connections for reading, with at most `READERS` in use at a time."""

    def __init__(self, client: DatabaseClient[C]) -> None:
        self._client = client
        self._idle: deque[C] = deque()
        self._slots = threading.Semaphore(READERS)
        self._is_shut_down = False

    def read_rows(self, sql: str, values: tuple[Any, ...] = ()) -> Rows:
        """Return all rows of a statement."""
        return self.read_with_retry(lambda connection: self._client.execute_rows(connection, sql, values))

    def read_with_retry(self, read: Callable[[C], T]) -> T:
        """Read on a connection; after a lost one try a second time, because reading changes nothing."""
        client = self._client
        with self._slots:
            try:
                return self._try_read(read)
            except client.error as error:
                if not client.is_connection_lost(error):
                    raise client.build_store_error(error) from error
            self.close_idle()  # the server most likely dropped the other connections too
            try:
                return self._try_read(read)
            except client.error as error:
                raise client.build_store_error(error) from error

    def _try_read(self, read: Callable[[C], T]) -> T:
        connection = self._pick_connection()
        try:
            result = read(connection)
        except BaseException:
            self._client.close_connection(connection)
            raise
        self._idle.append(connection)
        if self._is_shut_down:  # the store was closed meanwhile, so this connection must be closed too
            self.close_idle()
        return result

    def _pick_connection(self) -> C:
        with suppress(IndexError):
            return self._idle.pop()
        return self._client.open_connection()

    def shut_down(self) -> None:
        """Close idle connections now, and the ones in use when they come back."""
        self._is_shut_down = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close idle connections."""
        with suppress(IndexError):
            while True:
                self._client.close_connection(self._idle.pop())


class ServerClock:
    """The clock of a server, extrapolated between requests."""

    def __init__(self, ask: Callable[[], float]) -> None:
        self._ask = ask
        # The local time and the server's time at the same moment; None before the first request.
        self._known: tuple[float, float] | None = None
        self._asking = threading.Lock()

    def now(self) -> float:
        """Return the server's time; ask the server once a second, in one thread at a time."""
        known = self._known
        local = get_boot_time()
        if known is not None:
            # If another thread is asking, the extrapolated time is good enough.
            if local - known[0] < ASK_S or not self._asking.acquire(blocking=False):
                return known[1] + local - known[0]
        else:
            self._asking.acquire()
        try:
            self._known = known = self._ask_server(self._known)
        finally:
            self._asking.release()
        return known[1] + get_boot_time() - known[0]

    def _ask_server(self, known: tuple[float, float] | None) -> tuple[float, float]:
        before = get_boot_time()
        server_time = self._ask()
        after = get_boot_time()
        if known is None:
            return after, server_time
        extrapolated = known[1] + after - known[0]
        return after, min(max(extrapolated, server_time), server_time + after - before)


def split_options(url: str, own: Sequence[str], server_name: str) -> tuple[str, dict[str, str]]:
    """Return an address without the options named in `own`, and these options."""
    server, _, query = url.partition("?")
    own_options: dict[str, str] = {}
    driver_options = []
    for option in filter(None, query.split("&")):
        name, _, value = option.partition("=")
        if name not in own:
            driver_options.append(option)
        elif name in own_options:
            raise UsageError(f"this address of a {server_name} server names more than one {name}")
        else:
            own_options[name] = unquote(value)
    return f"{server}?{'&'.join(driver_options)}" if driver_options else server, own_options


def encode_name(text: str, max_bytes: int, server_name: str) -> bytes:
    """Return the bytes of a name; refuse one that the server cannot store or index."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} is not valid text: it has half of a surrogate pair") from None
    if len(data) > max_bytes:
        raise UsageError(f"{text[:40]!r}… is {len(data)} bytes long; {server_name} indexes up to {max_bytes}")
    return data
