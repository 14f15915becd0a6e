"""What really happened, counted by others: the recorder, the table, the folder.

Standard library only, and nothing of oncemore: neither its log nor its code is asked. For each order an
effect should be there once (or not at all, where the provider refused it). More is *duplicated*, less is
*lost*.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any


class EffectCount(NamedTuple):
    """One kind of effect.

    asked    how many are to be there
    tried    how often it was begun: requests that arrived, code that ran
    applied  how many are there
    """

    effect: str
    asked: int
    tried: int
    applied: int
    duplicated: int
    lost: int


class EffectTotals(NamedTuple):
    """All kinds, and how well-mannered we were.

    early  how often somebody came back although asked to wait
    """

    counts: tuple[EffectCount, ...]
    early: int

    @property
    def is_exact(self) -> bool:
        """Whether every effect is there once."""
        return not any(count.duplicated or count.lost for count in self.counts)


def count_effects(folder: Path, asked: Iterable[str]) -> EffectTotals:
    """Count what is in a folder after a run of the demo."""
    wanted, seen, tried = (
        frozenset(asked),
        read_json_lines(folder / "recorder.jsonl"),
        read_json_lines(folder / "tried.jsonl"),
    )
    visits = Counter(line["path"] for line in seen if line["what"] == "asked")
    runs = Counter(line["what"] for line in tried)
    return EffectTotals(
        (
            make_count("HTTP charges", wanted, visits["charges"], _count_recorded(seen, "charged")),
            make_count("table rows", wanted, runs["book"], _count_rows(folder / "shop.db")),
            make_count("files", wanted, runs["file"], _count_files(folder / "artifacts" / "sha256")),
            make_count("webhook messages", wanted, visits["told"], _count_recorded(seen, "taken")),
        ),
        sum(line["what"] == "asked" and line["early"] for line in seen),
    )


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file of JSON lines; one that is still being written is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def make_count(effect: str, wanted: frozenset[str], tried: int, there: Counter[str]) -> EffectCount:
    """Return how many of what is wanted are there, more than once, or not at all."""
    more = sum(number - (order in wanted) for order, number in there.items())
    return EffectCount(
        effect, len(wanted), tried, there.total(), more, sum(not there[order] for order in wanted)
    )


def _count_recorded(seen: list[dict[str, Any]], what: str) -> Counter[str]:
    return Counter(line["order"] for line in seen if line["what"] == what)


def _count_rows(path: Path) -> Counter[str]:
    if not path.exists():
        return Counter()
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        return Counter(order for (order,) in database.execute("SELECT sale FROM sales"))
    except sqlite3.OperationalError:  # it was never made
        return Counter()
    finally:
        database.close()


def _count_files(folder: Path) -> Counter[str]:
    """Count receipts by the order that stands in their first line, whatever they are called."""
    firsts = (path.read_text(encoding="utf-8").partition("\n")[0] for path in folder.glob("*/*"))
    return Counter(line.removeprefix("receipt for ") for line in firsts)
