"""Waking those who wait for the log to grow, without making commits wait for each other.

A NOTIFY inside an append would do that: transactions that notify commit one after the other, through one lock
of the whole cluster. So who appends notifies in a transaction of its own, from a thread and a connection that
do nothing else, after the group commit has returned; its commit waits for no disk. One notice stands for all
that was stored meanwhile (at most one in `EVERY_S`), and none is sent while nobody listens.

Who listens holds a lock that says so; notifiers look for it once in `LOOK_S`. Until they all must have seen
it, and whenever the line is down, a listener is *deaf*: then the log is looked at as often as without any
notices. One that hears looks once in `SURE_S` all the same, because a notice is a courtesy, never a proof: a
notifier may die between its commit and its notice.

Both threads and their connections are there only while they are of use, and end after `IDLE_S` without it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from oncemore.log.postgres.connection import connect, hang_up, psycopg
from oncemore.log.postgres.schema import tag_of

if TYPE_CHECKING:
    from oncemore.log.postgres.connection import Address, Connection

#: At most one notice of a process in so many seconds.
EVERY_S = 0.005
#: How often a notifier looks whether anybody listens; after twice that, all notifiers must know.
LOOK_S = 1.0
#: How often the log is looked at though notices are heard, and though they are not.
SURE_S, DEAF_S = 1.0, 0.02
#: After how long without use a thread and its connection end.
IDLE_S = 10.0
#: How long a line that was lost is left alone.
AGAIN_S = 1.0


class Bell:
    """Notices of one process: sent after its own appends, and heard of everybody's."""

    def __init__(self, where: Address, schema: str) -> None:
        self._where, self._channel, self._tag = where, f"oncemore_{tag_of(schema)}", tag_of(schema)
        self._changed, self._over = threading.Condition(), threading.Event()
        self._heard = 0  # how many notices there were, ours and others'
        self._owed = self._closed = False
        self._ringing = self._listening = False  # whether the threads are there
        self._since: float | None = None  # when we began to listen; None: the line is down
        self._used = 0.0

    # Ringing ----------------------------------------------------------------------------------------

    def ring(self) -> None:
        """Say that something was stored: at once to who waits in this process, soon to the others."""
        with self._changed:
            self._heard += 1
            self._owed = True
            self._changed.notify_all()
            if not self._ringing and not self._closed:
                self._ringing = True
                threading.Thread(target=self._ring, name="oncemore-bell", daemon=True).start()

    def _ring(self) -> None:
        """Send what is owed, while there is any."""
        connection: Connection | None = None
        looked, listened = -LOOK_S, False
        try:
            while self._is_owed():
                try:
                    if connection is None:
                        connection = self._line()
                    if time.monotonic() - looked >= LOOK_S:
                        looked, listened = time.monotonic(), self._anybody(connection)
                    if listened:
                        connection.execute("select pg_notify(%s, '')", (self._channel,), prepare=True)
                except psycopg.Error:  # whoever waits looks for itself
                    hang_up(connection)
                    connection = None
                self._rest(EVERY_S if listened else LOOK_S / 4)
        finally:
            hang_up(connection)

    def _line(self) -> Connection:
        connection = connect(self._where)
        try:
            connection.execute("set synchronous_commit = off")
        except BaseException:
            hang_up(connection)
            raise
        return connection

    def _is_owed(self) -> bool:
        """Wait for something to send; False when nothing came for long, and the thread is to end."""
        with self._changed:
            if self._changed.wait_for(lambda: self._owed or self._closed, IDLE_S) and not self._closed:
                self._owed = False
                return True
            self._ringing = False
            return False

    def _rest(self, seconds: float) -> None:
        """Wait; not at the condition, where every append would wake who rests."""
        self._over.wait(seconds)

    def _anybody(self, connection: Connection) -> bool:
        row = connection.execute(
            "select exists (select from pg_locks where locktype = 'advisory' and classid = %s and objid = 2 "
            "and objsubid = 2 "
            "and database = (select oid from pg_database where datname = current_database()))",
            (self._tag,),
            prepare=True,
        ).fetchone()
        return bool(row and row[0])

    # Listening --------------------------------------------------------------------------------------

    @property
    def heard(self) -> int:
        """How many notices there were; to be asked before one looks at the log."""
        return self._heard

    def wait(self, heard: int, seconds: float) -> None:
        """Wait for a notice after so many, but not longer than one may rely on hearing of it."""
        with self._changed:
            self._used = time.monotonic()
            if not self._listening and not self._closed:
                self._listening = True
                threading.Thread(target=self._listen, name="oncemore-ear", daemon=True).start()
            hears = self._since is not None and time.monotonic() - self._since > 2 * LOOK_S
            self._changed.wait_for(
                lambda: self._heard != heard or self._closed, min(seconds, SURE_S if hears else DEAF_S)
            )

    def _listen(self) -> None:
        """Hear until nobody has waited for long; a line that is lost is opened again."""
        while self._is_used():
            connection: Connection | None = None
            try:
                connection = connect(self._where)
                connection.execute("select pg_advisory_lock_shared(%s, 2)", (self._tag,))
                connection.execute(f"listen {self._channel}".encode())
                self._since = time.monotonic()
                while self._is_used():
                    for _ in connection.notifies(timeout=0.5, stop_after=1):
                        with self._changed:
                            self._heard += 1
                            self._changed.notify_all()
            except psycopg.Error:
                self._rest(AGAIN_S)
            finally:
                self._since = None
                hang_up(connection)

    def _is_used(self) -> bool:
        with self._changed:
            if self._closed or time.monotonic() - self._used > IDLE_S:
                self._listening = False
            return self._listening

    def close(self) -> None:
        """End both; whoever waits goes on at once."""
        with self._changed:
            self._closed = True
            self._over.set()
            self._changed.notify_all()
