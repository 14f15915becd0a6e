"""`oncemore demo lit`: a review platform with a failing Core and a locked database, under the profile `lit`.

Core is a real HTTP server, and a second connection really locks the SQLite file. Requests, attempts and
statuses are read from Core's log, waits are measured. Two seconds; the exit code is 1 if a result
differs from the expected one.
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import textwrap
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from oncemore.demo.core_server import LOST, CoreServer
from oncemore.demo.terminal import LiveTerminal, silence_logging
from oncemore.profiles.lit import (
    ActionOutcomeUnknown,
    CoreClient,
    CoreClientHTTPError,
    ExhaustionAlert,
    Persistence,
    context,
)
from oncemore.profiles.lit.alert import ALERT_MEANING, log

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from oncemore.demo.core_server import CoreRequest
    from oncemore.demo.terminal import Line, Tint

FINDING = "CREATE TABLE finding (id TEXT PRIMARY KEY, text TEXT)"
#: Widths of the first two columns; the third one fits into the rest of 80.
OPERATION_WIDTH, REPLY_WIDTH = 22, 20
ACCEPT = "POST /v1/sessions/s-4/findings/f-12/accept"


class DemoRow(NamedTuple):
    """A line of output; `is_expected` if the scene had the expected result."""

    operation: str
    reply: str
    result: str
    is_expected: bool
    tint: Tint = "green"


class DatabaseLock(logging.Handler):
    """Locks a database until `tries` attempts have failed.

    at  the times of the failed attempts
    """

    def __init__(self, file: Path, tries: int) -> None:
        super().__init__()
        self._other = sqlite3.connect(file, isolation_level=None)
        # Takes the write lock at once; a deferred transaction would lock at its first write.
        self._other.execute("BEGIN IMMEDIATE")
        self._tries = tries
        self.at: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Count an attempt that failed because of the lock."""
        # The client's log is the only place outside of it where an attempt shows.
        if "met a lock" not in record.getMessage():
            return
        self.at.append(time.monotonic())
        if len(self.at) == self._tries:
            self._other.execute("ROLLBACK")

    def __enter__(self) -> DatabaseLock:
        log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        log.removeHandler(self)
        self._other.close()


class LitDemo:
    """The review platform with its Core, its database and its alert."""

    def __init__(self, core: CoreServer, folder: Path) -> None:
        self.core = core
        self.file = folder / "findings.db"
        self.counter = ExhaustionAlert()
        self.client = CoreClient(core.url, counter=self.counter)
        # sqlite3's own context manager commits, and does not close.
        with closing(sqlite3.connect(self.file)) as made:
            made.execute(FINDING)

    def play_recovery(self) -> DemoRow:
        """Core fails once: the call is repeated."""
        self.core.queue_faults("POST /v1/analyze", 500)
        with context(request_id="r-16", session_id="s-4"):
            answer = self.client.call("/v1/analyze", {"document": "d-9"})
        requests = self.core.requests_for("POST /v1/analyze")
        result = f"{len(requests)} requests, waited {_seconds_between(requests):.2f} s"
        is_expected = (
            len(requests) == 2 and answer["finding"] == "f-12" and _seconds_between(requests) >= 0.25
        )
        return DemoRow("POST /v1/analyze", _format_endings(requests), result, is_expected)

    def play_exhaustion(self) -> DemoRow:
        """Core stays down: two requests, then an error."""
        before = len(self.core.requests_for("POST /v1/analyze"))
        self.core.queue_faults("POST /v1/analyze", 503, 503)
        error = ""
        with context(request_id="r-17", session_id="s-4"):
            try:
                self.client.call("/v1/analyze", {"document": "d-9"})
            except CoreClientHTTPError as raised:
                error = _format_error(raised)
        requests = self.core.requests_for("POST /v1/analyze")[before:]
        # Both attempts of one call must have the same request id.
        ids = {request.request_id for request in requests}
        is_expected = len(requests) == 2 and ids == {"r-17"} and "503" in error
        result = f"{error} request={', '.join(sorted(ids))} session=s-4"
        return DemoRow("POST /v1/analyze", _format_endings(requests), result, is_expected, "red")

    def play_refusal(self) -> DemoRow:
        """Core replies 404: not retried."""
        try:
            self.client.get("/v1/findings/99")
            error = ""
        except CoreClientHTTPError as raised:
            error = _format_error(raised)
        requests = self.core.requests_for("GET /v1/findings/99")
        result = f"{error}, {'not retried' if len(requests) == 1 else f'{len(requests)} requests'}"
        return DemoRow(
            "GET  /v1/findings/99",
            _format_endings(requests),
            result,
            len(requests) == 1 and bool(error),
            "yellow",
        )

    def play_locked_write(self) -> DemoRow:
        """Another connection holds the write lock: the transaction is repeated."""
        with closing(sqlite3.connect(self.file)) as connection, DatabaseLock(self.file, 2) as lock:
            Persistence(connection, counter=self.counter).write(_save_finding, "f-12", "a clear case")
            waited = time.monotonic() - lock.at[0]
            (stored,) = connection.execute("SELECT count(*) FROM finding").fetchone()
        reply = ", ".join([*("locked" for _ in lock.at), "ok"])
        result = f"{len(lock.at) + 1} tries, waited {waited:.2f} s"
        return DemoRow("save finding f-12", reply, result, stored == 1 and len(lock.at) == 2)

    def play_lost_answer(self) -> DemoRow:
        """Core applies an action and its reply is lost: the platform reconciles."""
        self.core.queue_faults(ACCEPT, LOST)
        session = self.client.session("s-4")
        found = reply = ""
        try:
            session.accept("f-12")
        except ActionOutcomeUnknown as lost:
            reply = "answer lost"
            found = session.reconcile(lost).found
        sent = len(self.core.requests_for(ACCEPT))
        often = "once" if sent == 1 else f"{sent} times"
        result = f"outcome unknown -> reconciled: {found} (sent {often})"
        # Sent once and applied once: a second request could have accepted it twice.
        is_expected = (found, sent, self.core.acted) == ("applied", 1, 1)
        return DemoRow("accept f-12", reply, result, is_expected)

    def play_alert(self) -> DemoRow:
        """The share of exhausted operations is above the alert threshold."""
        counter = self.counter
        result = f"ALERT {ALERT_MEANING}" if counter.is_alerting else "no alert"
        # The counts of all scenes before this one.
        is_expected = (counter.exhausted, counter.operations, counter.is_alerting) == (1, 5, True)
        return DemoRow("exhaustion rate", str(counter), result, is_expected, "red")


def _save_finding(connection: sqlite3.Connection, name: str, text: str) -> None:
    connection.execute("INSERT INTO finding VALUES (?, ?)", (name, text))


def _format_endings(requests: list[CoreRequest]) -> str:
    return " -> ".join(request.ending for request in requests)


def _seconds_between(requests: list[CoreRequest]) -> float:
    return requests[-1].at - requests[0].at


def _format_error(error: CoreClientHTTPError) -> str:
    return f'CoreClientHTTPError({error.status_code}, "{error.detail}")'


#: The introduction and the function of each scene.
SCENES: tuple[tuple[str, Callable[[LitDemo], DemoRow]], ...] = (
    ("Core fails once. A contract call may be repeated, so it is sent again.", LitDemo.play_recovery),
    (
        "Core stays down. Two requests, then the error, with request id and session in log and counter.",
        LitDemo.play_exhaustion,
    ),
    ("Core replies 404. A repeat would not change that.", LitDemo.play_refusal),
    (
        "Another connection is writing. The whole transaction is rolled back and repeated.",
        LitDemo.play_locked_write,
    ),
    (
        "Core accepts a finding, and the reply is lost. Accepting twice could do harm, so that nothing is "
        "sent again: the platform reads the finding from Core.",
        LitDemo.play_lost_answer,
    ),
    ("Bad luck, or an outage? The share of exhausted operations tells.", LitDemo.play_alert),
)


def row_lines(row: DemoRow, width: int) -> list[Line]:
    """Return a row as lines: three columns, the last one wrapped."""
    indent = OPERATION_WIDTH + REPLY_WIDTH
    wrapped = textwrap.wrap(row.result, max(20, width - indent), break_on_hyphens=False) or [""]
    left = f"{row.operation:<{OPERATION_WIDTH}}{row.reply:<{REPLY_WIDTH}}"
    lines: list[Line] = [[(left, "bold"), (wrapped[0], row.tint)]]
    return lines + [[(" " * indent, ""), (more, row.tint)] for more in wrapped[1:]]


def main(out: TextIO, *, plain: bool = False) -> int:
    """Run all scenes; return 1 if one of them has an unexpected result."""
    terminal, unexpected = LiveTerminal(out, plain=plain), []
    terminal.write_paragraph(
        "A review platform calls its Core over HTTP and keeps its findings in SQLite, under the policy lit. "
        "The server, the lock and the waits are real."
    )
    with (
        silence_logging(),
        tempfile.TemporaryDirectory(prefix="oncemore-demo-") as folder,
        CoreServer() as core,
    ):
        demo = LitDemo(core, Path(folder))
        for introduction, play in SCENES:
            terminal.write_lines([[]])
            terminal.write_paragraph(introduction)
            row = play(demo)
            unexpected += [] if row.is_expected else [row.operation]
            terminal.write_lines(row_lines(row, terminal.terminal_size()[0]))
    terminal.write_lines([[]])
    if unexpected:
        terminal.write_paragraph(f"Unexpected result: {', '.join(unexpected)}.", "red")
        return 1
    terminal.write_paragraph("Every line agrees with Core's log and the database.", "bold")
    terminal.write_paragraph("What to try next:  docs/reference/lit.md")
    return 0
