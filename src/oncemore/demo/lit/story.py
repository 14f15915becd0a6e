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

from oncemore.demo.lit.server import LOST, Core
from oncemore.demo.pipeline.live import Terminal, hushed
from oncemore.profiles.lit import (
    ActionOutcomeUnknown,
    CoreClient,
    CoreClientHTTPError,
    Exhaustion,
    Persistence,
    context,
)
from oncemore.profiles.lit.alert import MEANS, log

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from oncemore.demo.lit.server import Visit
    from oncemore.demo.pipeline.board import Line, Tint

FINDING = "CREATE TABLE finding (id TEXT PRIMARY KEY, text TEXT)"
#: How wide the first two columns are; 80 are enough for all three.
WHAT, CAME = 22, 20
ACCEPT = "POST /v1/sessions/s-4/findings/f-12/accept"


class Row(NamedTuple):
    """A line of the story: what was done, what came back, what became of it; `holds` if it went as told."""

    what: str
    came: str
    then: str
    holds: bool
    tint: Tint = "green"


class Locked(logging.Handler):
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

    def __enter__(self) -> Locked:
        log.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        log.removeHandler(self)
        self._other.close()


class Stage:
    """The platform with everything around it."""

    def __init__(self, core: Core, folder: Path) -> None:
        self.core = core
        self.file = folder / "findings.db"
        self.counter = Exhaustion()
        self.client = CoreClient(core.url, counter=self.counter)
        with closing(sqlite3.connect(self.file)) as made:
            made.execute(FINDING)

    def recovers(self) -> Row:
        """Core fails once."""
        self.core.fail("POST /v1/analyze", 500)
        with context(request_id="r-16", session_id="s-4"):
            answer = self.client.call("/v1/analyze", {"document": "d-9"})
        seen = self.core.of("POST /v1/analyze")
        then = f"{len(seen)} requests, waited {_apart(seen):.2f} s"
        holds = len(seen) == 2 and answer["finding"] == "f-12" and _apart(seen) >= 0.25
        return Row("POST /v1/analyze", _endings(seen), then, holds)

    def exhausts(self) -> Row:
        """Core stays down."""
        before = len(self.core.of("POST /v1/analyze"))
        self.core.fail("POST /v1/analyze", 503, 503)
        error = ""
        with context(request_id="r-17", session_id="s-4"):
            try:
                self.client.call("/v1/analyze", {"document": "d-9"})
            except CoreClientHTTPError as raised:
                error = _written(raised)
        seen = self.core.of("POST /v1/analyze")[before:]
        ids = {visit.request_id for visit in seen}
        holds = len(seen) == 2 and ids == {"r-17"} and "503" in error
        then = f"{error} request={', '.join(sorted(ids))} session=s-4"
        return Row("POST /v1/analyze", _endings(seen), then, holds, "red")

    def refuses(self) -> Row:
        """Core says no."""
        try:
            self.client.get("/v1/findings/99")
            error = ""
        except CoreClientHTTPError as raised:
            error = _written(raised)
        seen = self.core.of("GET /v1/findings/99")
        then = f"{error}, {'not retried' if len(seen) == 1 else f'{len(seen)} requests'}"
        return Row("GET  /v1/findings/99", _endings(seen), then, len(seen) == 1 and bool(error), "yellow")

    def saves(self) -> Row:
        """Somebody else is writing."""
        with closing(sqlite3.connect(self.file)) as connection, Locked(self.file, 2) as lock:
            Persistence(connection, counter=self.counter).write(_save, "f-12", "a clear case")
            waited = time.monotonic() - lock.at[0]
            (stored,) = connection.execute("SELECT count(*) FROM finding").fetchone()
        came = ", ".join([*("locked" for _ in lock.at), "ok"])
        then = f"{len(lock.at) + 1} tries, waited {waited:.2f} s"
        return Row("save finding f-12", came, then, stored == 1 and len(lock.at) == 2)

    def accepts(self) -> Row:
        """Core does it, and its answer is lost."""
        self.core.fail(ACCEPT, LOST)
        session = self.client.session("s-4")
        found = came = ""
        try:
            session.accept("f-12")
        except ActionOutcomeUnknown as lost:
            came = "answer lost"
            found = session.reconcile(lost).found
        sent = len(self.core.of(ACCEPT))
        often = "once" if sent == 1 else f"{sent} times"
        then = f"outcome unknown -> reconciled: {found} (sent {often})"
        holds = (found, sent, self.core.acted) == ("applied", 1, 1)
        return Row("accept f-12", came, then, holds)

    def alerts(self) -> Row:
        """Count what was given up."""
        counter = self.counter
        then = f"ALERT {MEANS}" if counter.alerting else "no alert"
        holds = (counter.exhausted, counter.operations, counter.alerting) == (1, 5, True)
        return Row("exhaustion rate", str(counter), then, holds, "red")


def _save(connection: sqlite3.Connection, name: str, text: str) -> None:
    connection.execute("INSERT INTO finding VALUES (?, ?)", (name, text))


def _endings(seen: list[Visit]) -> str:
    return " -> ".join(visit.ending for visit in seen)


def _apart(seen: list[Visit]) -> float:
    return seen[-1].at - seen[0].at


def _written(error: CoreClientHTTPError) -> str:
    return f'CoreClientHTTPError({error.status_code}, "{error.detail}")'


#: What happens, in words, and how it is played.
SCENES: tuple[tuple[str, Callable[[Stage], Row]], ...] = (
    ("Core fails once. A contract call may be repeated, so it is asked again.", Stage.recovers),
    ("Core stays down. Two requests, then the error; log and counter know whose it was.", Stage.exhausts),
    ("Core says that there is no such thing. Asking again would not change that.", Stage.refuses),
    ("Another connection is writing. The whole transaction is rolled back and repeated.", Stage.saves),
    (
        "Core accepts a finding, and the answer never arrives. Accepting twice could do harm, so that "
        "nothing is sent again: the platform looks at what Core shows.",
        Stage.accepts,
    ),
    ("Was that bad luck, or an outage? The share of exhausted operations says.", Stage.alerts),
)


def shown(row: Row, width: int) -> list[Line]:
    """Return a row as lines: three columns, the last of them wrapped below itself."""
    room = max(20, width - WHAT - CAME)
    then = textwrap.wrap(row.then, room, break_on_hyphens=False) or [""]
    lines: list[Line] = [[(f"{row.what:<{WHAT}}{row.came:<{CAME}}", "bold"), (then[0], row.tint)]]
    return lines + [[(" " * (WHAT + CAME), ""), (more, row.tint)] for more in then[1:]]


def main(out: TextIO, *, plain: bool = False) -> int:
    """Play all scenes; return 1 if one of them went otherwise than told."""
    terminal, faults = Terminal(out, 0, plain=plain), []
    terminal.say(
        "A review platform calls its Core over HTTP and keeps its findings in SQLite, under the policy lit. "
        "The server, the lock and the waits are real."
    )
    with hushed(), tempfile.TemporaryDirectory(prefix="oncemore-demo-") as folder, Core() as core:
        stage = Stage(core, Path(folder))
        for words, play in SCENES:
            terminal.lines([[]])
            terminal.say(words)
            row = play(stage)
            faults += [] if row.holds else [row.what]
            terminal.lines(shown(row, terminal.size()[0]))
    terminal.lines([[]])
    if faults:
        terminal.say(f"Otherwise than told: {', '.join(faults)}.", "red")
        return 1
    terminal.say("Every line is as Core's own log and the database have it.", "bold")
    terminal.say("What to try next:  docs/reference/lit.md")
    return 0
