"""Notification of readers that wait for the log to grow, without serialising commits.

A NOTIFY inside an append would serialise them: transactions that notify commit one after the other, under one
lock of the whole cluster. So the writer notifies in a separate transaction, from a thread and a connection of
its own, after the group commit has returned; that commit does not wait for the disk. One notification stands
for all appends since the last one (at most one in `EVERY_S`), and none is sent while no process listens.

A listener holds an advisory lock, and notifiers check for it once in `LOOK_S`. Until all notifiers must have
seen it, and while its connection is down, a listener polls the log as often as without notifications. After
that it still polls once in `SURE_S`, because a notification is not guaranteed: a notifier may die between its
commit and its notification.

Both threads and their connections exist only while they are used, and end after `IDLE_S` without use.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from oncemore.log.postgres.connection import close_connection, open_connection, psycopg
from oncemore.log.postgres.schema import lock_tag

if TYPE_CHECKING:
    from oncemore.log.postgres.connection import Connection, PostgresAddress

#: Minimum interval between two notifications of a process.
EVERY_S = 0.005
#: Interval at which a notifier checks for listeners; after twice that, all notifiers know a new one.
LOOK_S = 1.0
#: Interval at which a waiting reader polls the log, with and without notifications.
SURE_S, POLL_S = 1.0, 0.02
#: Time without use after that a thread and its connection end.
IDLE_S = 10.0
#: Pause before a lost connection is opened again.
RECONNECT_S = 1.0


class ChangeNotifier:
    """Sends notifications after the appends of this process, and receives those of all processes."""

    def __init__(self, where: PostgresAddress, schema: str) -> None:
        self._where, self._channel, self._tag = where, f"oncemore_{lock_tag(schema)}", lock_tag(schema)
        self._changed, self._is_over = threading.Condition(), threading.Event()
        self._received = 0  # notifications so far, of this process and of other ones
        self._is_due = self._closed = False  # whether a notification must be sent
        self._is_sending = self._is_listening = False  # whether the threads run
        self._listening_since: float | None = None  # None: the connection is down
        self._last_used = 0.0

    def announce_append(self) -> None:
        """Wake the waiting threads of this process at once, and notify other processes soon."""
        with self._changed:
            self._received += 1
            self._is_due = True
            self._changed.notify_all()
            if not self._is_sending and not self._closed:
                self._is_sending = True
                threading.Thread(target=self._send_notices, name="oncemore-notify", daemon=True).start()

    def _send_notices(self) -> None:
        """Send due notifications until none was due for `IDLE_S`."""
        connection: Connection | None = None
        checked_at, has_listeners = -LOOK_S, False
        try:
            while self._wait_until_due():
                try:
                    if connection is None:
                        connection = self._notice_connection()
                    if time.monotonic() - checked_at >= LOOK_S:
                        checked_at, has_listeners = time.monotonic(), self._has_listeners(connection)
                    if has_listeners:
                        connection.execute("select pg_notify(%s, '')", (self._channel,), prepare=True)
                except psycopg.Error:  # readers poll the log anyway
                    close_connection(connection)
                    connection = None
                self._sleep_seconds(EVERY_S if has_listeners else LOOK_S / 4)
        finally:
            close_connection(connection)

    def _notice_connection(self) -> Connection:
        connection = open_connection(self._where)
        try:
            connection.execute("set synchronous_commit = off")
        except BaseException:
            close_connection(connection)
            raise
        return connection

    def _wait_until_due(self) -> bool:
        """Wait until a notification is due; return False after `IDLE_S`, so that the thread ends."""
        with self._changed:
            if self._changed.wait_for(lambda: self._is_due or self._closed, IDLE_S) and not self._closed:
                self._is_due = False
                return True
            self._is_sending = False
            return False

    def _sleep_seconds(self, seconds: float) -> None:
        """Sleep until the store is closed, or for some seconds."""
        # Not on the condition: every append would wake the thread.
        self._is_over.wait(seconds)

    def _has_listeners(self, connection: Connection) -> bool:
        row = connection.execute(
            "select exists (select from pg_locks where locktype = 'advisory' and classid = %s and objid = 2 "
            "and objsubid = 2 "
            "and database = (select oid from pg_database where datname = current_database()))",
            (self._tag,),
            prepare=True,
        ).fetchone()
        return bool(row and row[0])

    @property
    def notice_count(self) -> int:
        """The number of notifications so far; a reader takes it before it reads the log."""
        return self._received

    def wait_for_notice(self, count: int, seconds: float) -> None:
        """Wait for a notification after the first `count`, or until the log should be polled again."""
        with self._changed:
            self._last_used = time.monotonic()
            if not self._is_listening and not self._closed:
                self._is_listening = True
                threading.Thread(target=self._run_listener, name="oncemore-listen", daemon=True).start()
            # Before that, a notifier may not know of this listener yet.
            is_reliable = (
                self._listening_since is not None and time.monotonic() - self._listening_since > 2 * LOOK_S
            )
            self._changed.wait_for(
                lambda: self._received != count or self._closed,
                min(seconds, SURE_S if is_reliable else POLL_S),
            )

    def _run_listener(self) -> None:
        """Listen until no thread has waited for `IDLE_S`; reconnect after a lost connection."""
        while self._is_used():
            connection: Connection | None = None
            try:
                connection = open_connection(self._where)
                connection.execute("select pg_advisory_lock_shared(%s, 2)", (self._tag,))
                connection.execute(f"listen {self._channel}".encode())
                self._listening_since = time.monotonic()
                while self._is_used():
                    for _ in connection.notifies(timeout=0.5, stop_after=1):
                        with self._changed:
                            self._received += 1
                            self._changed.notify_all()
            except psycopg.Error:
                self._sleep_seconds(RECONNECT_S)
            finally:
                self._listening_since = None
                close_connection(connection)

    def _is_used(self) -> bool:
        with self._changed:
            if self._closed or time.monotonic() - self._last_used > IDLE_S:
                self._is_listening = False
            return self._is_listening

    def close(self) -> None:
        """End both threads, and wake all waiting threads."""
        with self._changed:
            self._closed = True
            self._is_over.set()
            self._changed.notify_all()
