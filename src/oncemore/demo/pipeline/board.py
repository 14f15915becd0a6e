"""The live view as values: facts in, lines out. Nothing here knows the time or a terminal.

A row is an order, a cell a step, and a word in a cell an attempt: `503 429 ok` was refused twice and then
done. The board is all that a frame is drawn from, so that the same facts always give the same picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Final

    from oncemore.demo.pipeline.facts import Fact

    Tint = Literal["", "bold", "dim", "red", "green", "yellow"]
    Line = list[tuple[str, Tint]]

STEPS = ("charge", "book", "file", "tell")
HEADS = {"charge": "charge (HTTP)", "book": "book (table)", "file": "file", "tell": "tell (webhook)"}
SHARES = {"charge": 0.38, "book": 0.2, "file": 0.16, "tell": 0.26}
NAME_WIDTH = 9
MIN_WIDTH = 40
NEWS_LINES = 6

LEGEND = (
    "A word is an attempt. 429: asked to wait. 503, reset, late: the other side failed. killed: kill -9. "
    "402: refused for good. found: was done already, only noted. ok: done."
)

_WORDS: Final = {"CONNECTION_RESET": "reset", "CONNECTION_CLOSED": "reset", "CONNECTION_REFUSED": "refused"}

MOMENTS: Final = {
    "charging": "{order} has been charged, and the answer is on its way",
    "committed": "the row of {order} is committed, and oncemore has not noted it yet",
    "telling": "the webhook has the message of {order}, and has not answered",
}
FAULTS: Final = {
    "drop": "provider: charged {order}, then drops the connection",
    "slow": "provider: charged {order}, but the answer takes too long",
}


class BoardCell(NamedTuple):
    """One step of one order: a word for each attempt that is over, and where it is now.

    now  idle, running, waiting, cut (its process was killed), done or failed
    """

    words: tuple[str, ...] = ()
    now: str = "idle"
    until: float = 0.0


class BoardNews(NamedTuple):
    """Something that just happened; `brief` ones are left out where there is a view."""

    t: float
    text: str
    tint: Tint
    brief: bool = False


class OrderBoard:
    """All that is known so far."""

    def __init__(self, orders: Iterable[str], *, careless: bool = False) -> None:
        self.cells: dict[tuple[str, str], BoardCell] = {
            (order, step): BoardCell() for order in orders for step in STEPS
        }
        self.orders = tuple(dict.fromkeys(order for order, _ in self.cells))
        self.news: list[BoardNews] = []
        self.pid = 0
        self.kills = 0
        self.starts = 0
        self.counts = {"asked": 0, "charged": 0, "taken": 0, "known": 0}
        self._careless = careless
        self._committed = ""

    def add_fact(self, fact: Fact) -> None:
        """Take a fact in."""
        {"log": self._add_log_fact, "world": self._add_service_fact, "stage": self._add_process_fact}[
            fact["who"]
        ](fact)

    # What the log says ------------------------------------------------------------------------------

    def _add_log_fact(self, fact: Fact) -> None:
        step = "tell" if fact["step"] == "send" else fact["step"]
        at = (fact["order"], step)
        cell = self.cells[at]
        _STATES[fact["state"]](self, fact, at, cell)

    def _mark_running(self, fact: Fact, at: tuple[str, str], cell: BoardCell) -> None:
        self.cells[at] = cell._replace(now="running")

    def _mark_soft_fail(self, fact: Fact, at: tuple[str, str], cell: BoardCell) -> None:
        """Something failed and goes on later; what a killed process left was marked when it was killed."""
        if fact["reason"] == "lease_expired":
            words = cell.words if cell.now == "cut" else (*cell.words, "killed")
            self.cells[at] = BoardCell(words, "idle")
            self._add_news(fact, "lost with its process; goes on by itself", "")
            return
        self.cells[at] = BoardCell((*cell.words, error_word(fact["code"])), "waiting", fact["until"])
        self._add_news(fact, _shorten_sentence(fact["sentence"]), "yellow")

    def _mark_hard_fail(self, fact: Fact, at: tuple[str, str], cell: BoardCell) -> None:
        self.cells[at] = BoardCell((*cell.words, error_word(fact["code"])), "failed")
        self._add_news(fact, _shorten_sentence(fact["sentence"]), "red")

    def _mark_complete(self, fact: Fact, at: tuple[str, str], cell: BoardCell) -> None:
        order, step = at
        if step == "tell" and fact["step"] != "send":  # given away; the message has to arrive yet
            self.cells[at] = cell._replace(now="queued")
            return
        found = step == "book" and order == self._committed and not self._careless
        self.cells[at] = BoardCell((*cell.words, "found" if found else "ok"), "done")
        if found:
            self._add_news(fact, "its row was there already: noted, not written again", "green")
        else:
            self._add_news(fact, f"done at attempt {fact['attempt']}", "green", brief=True)

    def _mark_pending(self, fact: Fact, at: tuple[str, str], cell: BoardCell) -> None:
        """Take in a message that waits: a new one, or one that could not be delivered."""
        if fact["step"] != "send" or not fact["code"]:
            self.cells[at] = cell._replace(now="queued")
        else:
            self._mark_soft_fail(fact, at, cell)

    def _add_news(self, fact: Fact, text: str, tint: Tint, *, brief: bool = False) -> None:
        self.news.append(BoardNews(fact["t"], f"{fact['order']} {fact['step']}: {text}", tint, brief))

    # What the world says ----------------------------------------------------------------------------

    def _add_service_fact(self, fact: Fact) -> None:
        what, order = fact["what"], fact["order"]
        if what in self.counts:
            self.counts[what] += 1
        if what == "asked" and fact["fault"] in FAULTS:
            self.news.append(BoardNews(fact["t"], FAULTS[fact["fault"]].format(order=order), ""))
        if what == "known":
            self.news.append(
                BoardNews(fact["t"], f"webhook: knows the message of {order} by its id", "green")
            )
        if what == "moment":
            if fact["moment"] == "committed":
                self._committed = order
            self.news.append(
                BoardNews(fact["t"], f"now: {MOMENTS[fact['moment']].format(order=order)}", "bold")
            )

    # What the stage does ----------------------------------------------------------------------------

    def _add_process_fact(self, fact: Fact) -> None:
        self.pid = fact["pid"] if fact["what"] == "start" else 0
        if fact["what"] == "start":
            again = " again" if self.starts else ""
            self.starts += 1
            self.news.append(
                BoardNews(fact["t"], f"the pipeline is started{again}, pid {fact['pid']}", "bold")
            )
        elif fact["what"] == "kill":
            self.kills += 1
            self.news.append(BoardNews(fact["t"], f"kill -9 of the pipeline, pid {fact['pid']}", "red"))
            for at, cell in self.cells.items():
                if cell.now == "running":
                    self.cells[at] = BoardCell((*cell.words, "killed"), "cut")
        elif fact["what"] == "ended":
            said = "ends by itself" if fact["code"] == 0 else f"ended with {fact['code']}"
            self.news.append(BoardNews(fact["t"], f"the pipeline {said}", "bold"))

    # What is shown ----------------------------------------------------------------------------------

    def frame_lines(self, width: int, now: float) -> list[Line]:
        """Return the whole view, no line wider than the terminal."""
        width = max(width, MIN_WIDTH)
        news = [item for item in self.news if not item.brief][-NEWS_LINES:]
        shown: list[Line] = [
            *self.table_lines(width, now),
            [],
            *([(f"{item.t:5.1f} s  {item.text}", item.tint)] for item in news),
            *([] for _ in range(NEWS_LINES - len(news))),
            [],
            [(f"{now:5.0f} s  {self.format_counters()}", "dim")],
        ]
        return [cut_line(line, width) for line in shown]

    def table_lines(self, width: int, now: float) -> list[Line]:
        """Return the heads and one line for each order."""
        widths = column_widths(width)
        head: Line = [
            ("".ljust(NAME_WIDTH), ""),
            *((fit_text(HEADS[step], size), "bold") for step, size in widths.items()),
        ]
        return [head, *(self._order_line(order, widths, now) for order in self.orders)]

    def _order_line(self, order: str, widths: dict[str, int], now: float) -> Line:
        refused = any(self.cells[order, step].now == "failed" for step in STEPS)
        row: Line = [(order.ljust(NAME_WIDTH), "")]
        for step, size in widths.items():
            cell = self.cells[order, step]
            text = "-" if refused and cell.now == "idle" else format_cell(cell, now)
            row.append((fit_text(text, size), _TINTS[cell.now]))
        return row

    def format_counters(self) -> str:
        """Return what the world has seen so far, and who is alive."""
        alive = f"pipeline pid {self.pid}" if self.pid else "no pipeline"
        return (
            f"{self.counts['asked']} requests, {self.counts['charged']} charges, "
            f"{self.counts['taken']} messages, killed {self.kills} times, {alive}"
        )


_STATES: Final[dict[str, Callable[[OrderBoard, Any, Any, Any], None]]] = {
    "RUNNING": OrderBoard._mark_running,  # noqa: SLF001 - the table of the class above
    "SENDING": OrderBoard._mark_running,  # noqa: SLF001
    "PENDING": OrderBoard._mark_pending,  # noqa: SLF001
    "SOFT_FAIL": OrderBoard._mark_soft_fail,  # noqa: SLF001
    "HARD_FAIL": OrderBoard._mark_hard_fail,  # noqa: SLF001
    "DEAD": OrderBoard._mark_hard_fail,  # noqa: SLF001
    "COMPLETE": OrderBoard._mark_complete,  # noqa: SLF001
    "DELIVERED": OrderBoard._mark_complete,  # noqa: SLF001
}

_TINTS: Final[dict[str, Tint]] = {
    "idle": "dim", "running": "bold", "waiting": "yellow", "queued": "", "cut": "red", "done": "green",
    "failed": "red",
}  # fmt: skip


def error_word(code: str) -> str:
    """Return an error in a word."""
    if code.startswith("TIMEOUT"):
        return "late"
    return _WORDS.get(code) or code.removeprefix("HTTP_").lower() or "error"


def format_cell(cell: BoardCell, now: float) -> str:
    """Return what a cell says."""
    left = max(0.0, cell.until - now)
    last = {
        "idle": "" if cell.words else ".",
        "running": "...",
        "waiting": f"wait {left:.1f} s",
        "queued": "queued",
    }
    return " ".join([*cell.words, *filter(None, [last.get(cell.now, "")])])


def column_widths(width: int) -> dict[str, int]:
    """Return how wide each step's column is; all of the width is used."""
    room = width - NAME_WIDTH
    sizes = {step: int(room * SHARES[step]) for step in STEPS}
    sizes["charge"] += room - sum(sizes.values())
    return sizes


def fit_text(text: str, size: int) -> str:
    """Return text of exactly this size with a gap behind it; of one that is too long, the end counts."""
    room = size - 1
    return (text if len(text) <= room else ".." + text[len(text) - room + 2 :]).ljust(size)


def cut_line(line: Line, width: int) -> Line:
    """Return as much of a line as there is room for."""
    out: Line = []
    for text, tint in line:
        if width <= 0:
            break
        out.append((text[:width] if len(text) <= width else text[: width - 2] + "..", tint))
        width -= len(text)
    return out


def _shorten_sentence(sentence: str) -> str:
    """Return what was decided without what the line says anyway."""
    text = sentence.partition(" failed with ")[2].rstrip(".") or sentence
    for each in (" (transient)", " (throttled)", " (permanent)", " follows"):
        text = text.replace(each, "")
    return text
