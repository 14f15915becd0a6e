"""The live view of the pipeline demo as values: facts in, lines out.

A row is an order, a column a step, and a word in a cell an attempt: `503 429 ok` failed twice and then
succeeded. Neither the clock nor a terminal is read here: the same facts always give the same picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from oncemore.demo.terminal import cut_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Final

    from oncemore.demo.pipeline.demo_facts import Fact
    from oncemore.demo.terminal import Line, Tint

STEPS = ("charge", "book", "file", "notify")
HEADINGS = {"charge": "charge (HTTP)", "book": "book (table)", "file": "file", "notify": "notify (webhook)"}
#: Share of the width per column; `charge` has the longest list of attempts.
SHARES = {"charge": 0.38, "book": 0.2, "file": 0.16, "notify": 0.26}
NAME_WIDTH = 9
MIN_WIDTH = 40
NEWS_LINES = 6

LEGEND = (
    "One word per attempt. 429: asked to wait. 503, reset, late: the provider failed. killed: kill -9. "
    "402: refused, permanent. found: row already there, only recorded. ok: done."
)

_WORDS: Final = {"CONNECTION_RESET": "reset", "CONNECTION_CLOSED": "reset", "CONNECTION_REFUSED": "refused"}

KILL_POINTS: Final = {
    "after-charge": "{order} is charged, and the reply is not sent yet",
    "after-commit": "the row of {order} is committed, and oncemore has not recorded it yet",
    "after-delivery": "the webhook has the message of {order}, and has not replied yet",
}
FAULTS: Final = {
    "drop": "provider: charged {order}, then drops the connection",
    "slow": "provider: charged {order}, but replies too late",
}


class StatusCell(NamedTuple):
    """One step of one order.

    words  a word for each finished attempt
    state  idle, running, waiting, queued, cut (its process was killed), done or failed
    until  the end of the wait, in seconds since the start
    """

    words: tuple[str, ...] = ()
    state: str = "idle"
    until: float = 0.0


class NewsLine(NamedTuple):
    """A recent event; `minor` ones appear in plain output only, where there is no table."""

    t: float
    text: str
    tint: Tint
    minor: bool = False


class StatusTable:
    """The state of all orders, computed from the facts so far."""

    def __init__(self, orders: Iterable[str], *, careless: bool = False) -> None:
        self.cells: dict[tuple[str, str], StatusCell] = {
            (order, step): StatusCell() for order in orders for step in STEPS
        }
        self.orders = tuple(dict.fromkeys(order for order, _ in self.cells))
        self.news: list[NewsLine] = []
        self.pid = 0
        self.kills = 0
        self.starts = 0
        self.counts = {"requested": 0, "charged": 0, "accepted": 0, "duplicate": 0}
        self._careless = careless
        self._committed_order = ""

    def add_fact(self, fact: Fact) -> None:
        """Update the table by a fact."""
        _SOURCES[fact["source"]](self, fact)

    # Facts from the log -----------------------------------------------------------------------------

    def _add_log_fact(self, fact: Fact) -> None:
        step = "notify" if fact["step"] == "send" else fact["step"]
        place = (fact["order"], step)
        _STATES[fact["state"]](self, fact, place, self.cells[place])

    def _mark_running(self, fact: Fact, place: tuple[str, str], cell: StatusCell) -> None:
        self.cells[place] = cell._replace(state="running")

    def _mark_soft_fail(self, fact: Fact, place: tuple[str, str], cell: StatusCell) -> None:
        if fact["reason"] == "lease_expired":
            # After our own kill the cell has its word already.
            words = cell.words if cell.state == "cut" else (*cell.words, "killed")
            self.cells[place] = StatusCell(words, "idle")
            self._add_news(fact, "lost with its process; continues by itself", "")
            return
        self.cells[place] = StatusCell((*cell.words, error_word(fact["code"])), "waiting", fact["until"])
        self._add_news(fact, _shorten_sentence(fact["sentence"]), "yellow")

    def _mark_hard_fail(self, fact: Fact, place: tuple[str, str], cell: StatusCell) -> None:
        self.cells[place] = StatusCell((*cell.words, error_word(fact["code"])), "failed")
        self._add_news(fact, _shorten_sentence(fact["sentence"]), "red")

    def _mark_complete(self, fact: Fact, place: tuple[str, str], cell: StatusCell) -> None:
        order, step = place
        if step == "notify" and fact["step"] != "send":
            # The step is done; its message is delivered later.
            self.cells[place] = cell._replace(state="queued")
            return
        found = step == "book" and order == self._committed_order and not self._careless
        self.cells[place] = StatusCell((*cell.words, "found" if found else "ok"), "done")
        if found:
            self._add_news(fact, "its row is already there: recorded, not written again", "green")
        else:
            self._add_news(fact, f"done at attempt {fact['attempt']}", "green", minor=True)

    def _mark_pending(self, fact: Fact, place: tuple[str, str], cell: StatusCell) -> None:
        # A pending message with an error code is one that could not be delivered.
        if fact["step"] != "send" or not fact["code"]:
            self.cells[place] = cell._replace(state="queued")
        else:
            self._mark_soft_fail(fact, place, cell)

    def _add_news(self, fact: Fact, text: str, tint: Tint, *, minor: bool = False) -> None:
        self.news.append(NewsLine(fact["t"], f"{fact['order']} {fact['step']}: {text}", tint, minor))

    # Facts from the recorder ------------------------------------------------------------------------

    def _add_service_fact(self, fact: Fact) -> None:
        event, order, t = fact["event"], fact["order"], fact["t"]
        if event in self.counts:
            self.counts[event] += 1
        if event == "requested" and fact["fault"] in FAULTS:
            self.news.append(NewsLine(t, FAULTS[fact["fault"]].format(order=order), ""))
        if event == "duplicate":
            self.news.append(NewsLine(t, f"webhook: already has the message of {order} (same id)", "green"))
        if event == "kill_point":
            if fact["kill_point"] == "after-commit":
                self._committed_order = order
            text = KILL_POINTS[fact["kill_point"]].format(order=order)
            self.news.append(NewsLine(t, f"now: {text}", "bold"))

    # Facts from the demo itself ---------------------------------------------------------------------

    def _add_process_fact(self, fact: Fact) -> None:
        event, pid, t = fact["event"], fact["pid"], fact["t"]
        self.pid = pid if event == "start" else 0
        if event == "start":
            again = " again" if self.starts else ""
            self.starts += 1
            self.news.append(NewsLine(t, f"the pipeline is started{again}, pid {pid}", "bold"))
        elif event == "kill":
            self.kills += 1
            self.news.append(NewsLine(t, f"kill -9 of the pipeline, pid {pid}", "red"))
            # The log says nothing about a kill until the next process finds the lease.
            for place, cell in self.cells.items():
                if cell.state == "running":
                    self.cells[place] = StatusCell((*cell.words, "killed"), "cut")
        elif event == "ended":
            text = "has finished" if fact["code"] == 0 else f"ended with exit code {fact['code']}"
            self.news.append(NewsLine(t, f"the pipeline {text}", "bold"))

    # Lines ------------------------------------------------------------------------------------------

    def frame_lines(self, width: int, now: float) -> list[Line]:
        """Return the whole view; its height is constant, and no line is wider than the terminal."""
        width = max(width, MIN_WIDTH)
        news = [item for item in self.news if not item.minor][-NEWS_LINES:]
        lines: list[Line] = [
            *self.table_lines(width, now),
            [],
            *([(f"{item.t:5.1f} s  {item.text}", item.tint)] for item in news),
            *([] for _ in range(NEWS_LINES - len(news))),
            [],
            [(f"{now:5.0f} s  {self.format_counters()}", "dim")],
        ]
        return [cut_line(line, width) for line in lines]

    def table_lines(self, width: int, now: float) -> list[Line]:
        """Return the headings and one line for each order."""
        widths = column_widths(width)
        head: Line = [
            ("".ljust(NAME_WIDTH), ""),
            *((fit_text(HEADINGS[step], size), "bold") for step, size in widths.items()),
        ]
        return [head, *(self._order_line(order, widths, now) for order in self.orders)]

    def _order_line(self, order: str, widths: dict[str, int], now: float) -> Line:
        # The steps after a refusal never start.
        refused = any(self.cells[order, step].state == "failed" for step in STEPS)
        row: Line = [(order.ljust(NAME_WIDTH), "")]
        for step, size in widths.items():
            cell = self.cells[order, step]
            text = "-" if refused and cell.state == "idle" else format_cell(cell, now)
            row.append((fit_text(text, size), _TINTS[cell.state]))
        return row

    def format_counters(self) -> str:
        """Return the services' counts so far and the state of the pipeline's process."""
        process = f"pipeline pid {self.pid}" if self.pid else "no pipeline"
        return (
            f"{self.counts['requested']} requests, {self.counts['charged']} charges, "
            f"{self.counts['accepted']} messages, killed {self.kills} times, {process}"
        )


_SOURCES: Final[dict[str, Callable[[StatusTable, Any], None]]] = {
    "log": StatusTable._add_log_fact,  # noqa: SLF001 - the table of the class above
    "services": StatusTable._add_service_fact,  # noqa: SLF001
    "demo": StatusTable._add_process_fact,  # noqa: SLF001
}

_STATES: Final[dict[str, Callable[[StatusTable, Any, Any, Any], None]]] = {
    "RUNNING": StatusTable._mark_running,  # noqa: SLF001
    "SENDING": StatusTable._mark_running,  # noqa: SLF001
    "PENDING": StatusTable._mark_pending,  # noqa: SLF001
    "SOFT_FAIL": StatusTable._mark_soft_fail,  # noqa: SLF001
    "HARD_FAIL": StatusTable._mark_hard_fail,  # noqa: SLF001
    "DEAD": StatusTable._mark_hard_fail,  # noqa: SLF001
    "COMPLETE": StatusTable._mark_complete,  # noqa: SLF001
    "DELIVERED": StatusTable._mark_complete,  # noqa: SLF001
}

_TINTS: Final[dict[str, Tint]] = {
    "idle": "dim", "running": "bold", "waiting": "yellow", "queued": "", "cut": "red", "done": "green",
    "failed": "red",
}  # fmt: skip


def error_word(code: str) -> str:
    """Return an error code as one short word."""
    if code.startswith("TIMEOUT"):
        return "late"
    return _WORDS.get(code) or code.removeprefix("HTTP_").lower() or "error"


def format_cell(cell: StatusCell, now: float) -> str:
    """Return the text of a cell."""
    current = {
        "idle": "" if cell.words else ".",
        "running": "...",
        "waiting": f"wait {max(0.0, cell.until - now):.1f} s",
        "queued": "queued",
    }
    return " ".join([*cell.words, *filter(None, [current.get(cell.state, "")])])


def column_widths(width: int) -> dict[str, int]:
    """Return the width of each step's column; together they use all of the width."""
    room = width - NAME_WIDTH
    sizes = {step: int(room * SHARES[step]) for step in STEPS}
    # Rounding leaves some columns over.
    sizes["charge"] += room - sum(sizes.values())
    return sizes


def fit_text(text: str, size: int) -> str:
    """Return the text padded to `size`; of a longer one the end, because the last attempt matters most."""
    room = size - 1
    return (text if len(text) <= room else ".." + text[len(text) - room + 2 :]).ljust(size)


def _shorten_sentence(sentence: str) -> str:
    """Return a decision's sentence without the words that its line of news has already."""
    text = sentence.partition(" failed with ")[2].rstrip(".") or sentence
    for each in (" (transient)", " (throttled)", " (permanent)", " follows"):
        text = text.replace(each, "")
    return text
