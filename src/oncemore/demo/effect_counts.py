"""Counts of effects, taken from the recorder's file, the shop's table and the folder of artifacts.

Standard library only: neither oncemore's log nor its code takes part. Each order should have each effect once
(or not at all, if the provider refused it). More is *duplicated*, less is *lost*.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

RECORDER_FILE = "recorder.jsonl"


class EffectRecorder:
    """An append-only file of JSON lines; a line is synced to the disk before `write` returns."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / RECORDER_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()

    def write(self, event: str, order: str, **details: object) -> None:
        """Append an event."""
        line = json.dumps({"at": round(time.time(), 4), "event": event, "order": order, **details}) + "\n"
        with self._lock:
            os.write(self._file, line.encode())
            os.fsync(self._file)


class EffectCount(NamedTuple):
    """The count of one kind of effect.

    asked    how many there should be
    tried    how often it was started: requests that arrived, runs of the step's code
    applied  how many there are
    """

    effect: str
    asked: int
    tried: int
    applied: int
    duplicated: int
    lost: int


class EffectTotals(NamedTuple):
    """The counts of all kinds.

    early  requests that came before the end of the wait that the provider had asked for
    """

    counts: tuple[EffectCount, ...]
    early: int

    @property
    def is_exact(self) -> bool:
        """Whether every effect is there once."""
        return not any(count.duplicated or count.lost for count in self.counts)


def count_effects(folder: Path, orders: Iterable[str]) -> EffectTotals:
    """Count the effects in the folder of a pipeline demo; `orders` should have each of them once."""
    wanted = frozenset(orders)
    recorded = read_json_lines(folder / RECORDER_FILE)
    started = read_json_lines(folder / "tried.jsonl")
    requests = Counter(line["path"] for line in recorded if line["event"] == "requested")
    starts = Counter(line["step"] for line in started)
    return EffectTotals(
        (
            make_count("HTTP charges", wanted, requests["charges"], _count_recorded(recorded, "charged")),
            make_count("table rows", wanted, starts["book"], _count_rows(folder / "shop.db")),
            make_count("files", wanted, starts["file"], _count_files(folder / "artifacts" / "sha256")),
            make_count(
                "webhook messages", wanted, requests["messages"], _count_recorded(recorded, "accepted")
            ),
        ),
        sum(line["event"] == "requested" and line["early"] for line in recorded),
    )


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file of JSON lines, decoded; a missing file has none."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    # The last line may still be being written.
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def make_count(effect: str, wanted: frozenset[str], tried: int, applied: Counter[str]) -> EffectCount:
    """Return the count of one kind, from the number of effects per order."""
    return EffectCount(
        effect=effect, asked=len(wanted), tried=tried, applied=applied.total(),
        # An effect of an order that should have none is too much as well.
        duplicated=sum(number - (order in wanted) for order, number in applied.items()),
        lost=sum(not applied[order] for order in wanted),
    )  # fmt: skip


def _count_recorded(lines: list[dict[str, Any]], event: str) -> Counter[str]:
    return Counter(line["order"] for line in lines if line["event"] == event)


def _count_rows(path: Path) -> Counter[str]:
    if not path.exists():
        return Counter()
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        return Counter(order for (order,) in database.execute("SELECT sale FROM sales"))
    except sqlite3.OperationalError:  # the table was never created
        return Counter()
    finally:
        database.close()


def _count_files(folder: Path) -> Counter[str]:
    """Count receipts by the order in their first line; file names are digests."""
    first_lines = (path.read_text(encoding="utf-8").partition("\n")[0] for path in folder.glob("*/*"))
    return Counter(line.removeprefix("receipt for ") for line in first_lines)
