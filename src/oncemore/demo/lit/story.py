"""`oncemore demo lit`: a review platform, its Core and its database on a bad day, under the profile `lit`.

Real parts on this machine: a Core that speaks HTTP, a SQLite file, and a second connection that has it
locked. Requests, attempts and statuses are read from Core's own log, waits are measured, and what is claimed
at the end is looked up there once more. Two seconds; the exit code is 1 if anything is otherwise.
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

from oncemore.demo.lit.server import LOST, CoreServer
from oncemore.demo.pipeline.live import LiveTerminal, silence_logging
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

    from oncemore.demo.lit.server import CoreRequest
    from oncemore.demo.pipeline.board import Line, Tint

FINDING = "CREATE TABLE finding (id TEXT PRIMARY KEY, text TEXT)"
#: How wide the first two columns are; 80 are enough for all three.
WHAT, CAME = 22, 20
ACCEPT = "POST /v1/sessions/s-4/findings/f-12/accept"


class DemoRow(NamedTuple):
    """A line of the story: what was done, what came back, what became of it; `holds` if it went as told."""

    what: str
    came: str
    then: str
    holds: bool
    tint: Tint = "green"


class DatabaseLock(logging.Handler):
    """Holds a database locked until so many tries have failed; `at` has when they did."""

    def __init__(self, file: Path, tries: int) -> None:
        super().__init__()
        self._other = sqlite3.connect(file, isolation_level=None)
        self._other.execute("BEGIN IMMEDIATE")
        self._tries = tries
        self.at: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Hear of a try that met the lock."""
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
    """The platform with everything around it."""

    def __init__(self, core: CoreServer, folder: Path) -> None:
        self.core = core
        self.file = folder / "findings.db"
        self.counter = ExhaustionAlert()
        self.client = CoreClient(core.url, counter=self.counter)
        with closing(sqlite3.connect(self.file)) as made:
            made.execute(FINDING)

    def play_recovery(self) -> DemoRow:
        """Core fails once."""
        self.core.queue_faults("POST /v1/analyze", 500)
        with context(request_id="r-16", session_id="s-4"):
            answer = self.client.call("/v1/analyze", {"document": "d-9"})
        seen = self.core.requests_for("POST /v1/analyze")
        then = f"{len(seen)} requests, waited {_seconds_between(seen):.2f} s"
        holds = len(seen) == 2 and answer["finding"] == "f-12" and _seconds_between(seen) >= 0.25
        return DemoRow("POST /v1/analyze", _format_endings(seen), then, holds)

    def play_exhaustion(self) -> DemoRow:
        """Core stays down."""
        before = len(self.core.requests_for("POST /v1/analyze"))
        self.core.queue_faults("POST /v1/analyze", 503, 503)
        error = ""
        with context(request_id="r-17", session_id="s-4"):
            try:
                self.client.call("/v1/analyze", {"document": "d-9"})
            except CoreClientHTTPError as raised:
                error = _format_error(raised)
        seen = self.core.requests_for("POST /v1/analyze")[before:]
        ids = {visit.request_id for visit in seen}
        holds = len(seen) == 2 and ids == {"r-17"} and "503" in error
        then = f"{error} request={', '.join(sorted(ids))} session=s-4"
        return DemoRow("POST /v1/analyze", _format_endings(seen), then, holds, "red")

    def play_refusal(self) -> DemoRow:
        """Core says no."""
        try:
            self.client.get("/v1/findings/99")
            error = ""
        except CoreClientHTTPError as raised:
            error = _format_error(raised)
        seen = self.core.requests_for("GET /v1/findings/99")
        then = f"{error}, {'not retried' if len(seen) == 1 else f'{len(seen)} requests'}"
        return DemoRow(
            "GET  /v1/findings/99", _format_endings(seen), then, len(seen) == 1 and bool(error), "yellow"
        )

    def play_locked_write(self) -> DemoRow:
        """Somebody else is writing."""
        with closing(sqlite3.connect(self.file)) as connection, DatabaseLock(self.file, 2) as lock:
            Persistence(connection, counter=self.counter).write(_save_finding, "f-12", "a clear case")
            waited = time.monotonic() - lock.at[0]
            (stored,) = connection.execute("SELECT count(*) FROM finding").fetchone()
        came = ", ".join([*("locked" for _ in lock.at), "ok"])
        then = f"{len(lock.at) + 1} tries, waited {waited:.2f} s"
        return DemoRow("save finding f-12", came, then, stored == 1 and len(lock.at) == 2)

    def play_lost_answer(self) -> DemoRow:
        """Core does it, and its answer is lost."""
        self.core.queue_faults(ACCEPT, LOST)
        session = self.client.session("s-4")
        found = came = ""
        try:
            session.accept("f-12")
        except ActionOutcomeUnknown as lost:
            came = "answer lost"
            found = session.reconcile(lost).found
        sent = len(self.core.requests_for(ACCEPT))
        often = "once" if sent == 1 else f"{sent} times"
        then = f"outcome unknown -> reconciled: {found} (sent {often})"
        holds = (found, sent, self.core.acted) == ("applied", 1, 1)
        return DemoRow("accept f-12", came, then, holds)

    def play_alert(self) -> DemoRow:
        """Count what was given up."""
        counter = self.counter
        then = f"ALERT {ALERT_MEANING}" if counter.is_alerting else "no alert"
        holds = (counter.exhausted, counter.operations, counter.is_alerting) == (1, 5, True)
        return DemoRow("exhaustion rate", str(counter), then, holds, "red")


def _save_finding(connection: sqlite3.Connection, name: str, text: str) -> None:
    connection.execute("INSERT INTO finding VALUES (?, ?)", (name, text))


def _format_endings(seen: list[CoreRequest]) -> str:
    return " -> ".join(visit.ending for visit in seen)


def _seconds_between(seen: list[CoreRequest]) -> float:
    return seen[-1].at - seen[0].at


def _format_error(error: CoreClientHTTPError) -> str:
    return f'CoreClientHTTPError({error.status_code}, "{error.detail}")'


#: What happens, in words, and how it is played.
SCENES: tuple[tuple[str, Callable[[LitDemo], DemoRow]], ...] = (
    ("Core fails once. A contract call may be repeated, so it is asked again.", LitDemo.play_recovery),
    (
        "Core stays down. Two requests, then the error; log and counter know whose it was.",
        LitDemo.play_exhaustion,
    ),
    ("Core says that there is no such thing. Asking again would not change that.", LitDemo.play_refusal),
    (
        "Another connection is writing. The whole transaction is rolled back and repeated.",
        LitDemo.play_locked_write,
    ),
    (
        "Core accepts a finding, and the answer never arrives. Accepting twice could do harm, so that "
        "nothing is sent again: the platform looks at what Core shows.",
        LitDemo.play_lost_answer,
    ),
    ("Was that bad luck, or an outage? The share of exhausted operations says.", LitDemo.play_alert),
)


def row_lines(row: DemoRow, width: int) -> list[Line]:
    """Return a row as lines: three columns, the last of them wrapped below itself."""
    room = max(20, width - WHAT - CAME)
    then = textwrap.wrap(row.then, room, break_on_hyphens=False) or [""]
    lines: list[Line] = [[(f"{row.what:<{WHAT}}{row.came:<{CAME}}", "bold"), (then[0], row.tint)]]
    return lines + [[(" " * (WHAT + CAME), ""), (more, row.tint)] for more in then[1:]]


def main(out: TextIO, *, plain: bool = False) -> int:
    """Play all scenes; return 1 if one of them went otherwise than told."""
    terminal, faults = LiveTerminal(out, 0, plain=plain), []
    terminal.write_paragraph(
        "A review platform calls its Core over HTTP and keeps its findings in SQLite, under the policy lit. "
        "The server, the lock and the waits are real."
    )
    with (
        silence_logging(),
        tempfile.TemporaryDirectory(prefix="oncemore-demo-") as folder,
        CoreServer() as core,
    ):
        stage = LitDemo(core, Path(folder))
        for words, play in SCENES:
            terminal.write_lines([[]])
            terminal.write_paragraph(words)
            row = play(stage)
            faults += [] if row.holds else [row.what]
            terminal.write_lines(row_lines(row, terminal.terminal_size()[0]))
    terminal.write_lines([[]])
    if faults:
        terminal.write_paragraph(f"Otherwise than told: {', '.join(faults)}.", "red")
        return 1
    terminal.write_paragraph("Every line is as Core's own log and the database have it.", "bold")
    terminal.write_paragraph("What to try next:  docs/reference/lit.md")
    return 0
