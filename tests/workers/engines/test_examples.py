"""The examples in examples/engines, as programs: tasks are delivered twice, orders are booked once."""

from __future__ import annotations

import importlib.util
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import oncemore
from oncemore.steps.history import verify_chain

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "engines"

#: The package that an example needs, and how often it delivers each order, at least.
NEEDS = {
    "in_celery": ("celery", {"A-1": 2, "A-2": 2, "A-3": 2}),
    "in_dagster": ("dagster", {"A-1": 2, "A-2": 3, "A-3": 2}),
    "in_dask": ("distributed", {"A-1": 2, "A-2": 2, "A-3": 2}),
    "in_dramatiq": ("dramatiq", {"A-1": 2, "A-2": 2, "A-3": 1}),
    "in_prefect": ("prefect", {"A-1": 2, "A-2": 3, "A-3": 2}),
    "in_ray": ("ray", {"A-1": 2, "A-2": 2, "A-3": 2}),
}


PAGE = EXAMPLES.parent.parent / "docs" / "how-to" / "use-it-in-your-engine.md"


def test_what_the_page_shows_of_an_example_is_in_it() -> None:
    shown = re.findall(r"(?ms)^<!-- not run: (\S+) -->\n```python\n(.*?)^```", PAGE.read_text())
    assert len(shown) >= 2
    assert [name for name, code in shown if code not in (EXAMPLES.parent.parent / name).read_text()] == []


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("in_*.py")} == set(NEEDS)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", NEEDS)
def test_what_is_delivered_twice_is_booked_once(name: str, tmp_path: Path) -> None:
    package, least = NEEDS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; make engines runs this")
    around = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect"), "DAGSTER_HOME": ""}
    ran = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", tmp_path], cwd=tmp_path, env=around, capture_output=True,
        text=True, timeout=180, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        rows = ledger.execute("SELECT number FROM orders").fetchall()
    booked = Counter(row[0] for row in rows)
    assert set(booked) >= set(least)
    assert set(booked.values()) == {1}, booked
    delivered = Counter((tmp_path / "deliveries").read_text().split())
    assert {order: delivered[order] >= count for order, count in least.items()} == dict.fromkeys(least, True)
    shown = re.findall(r"^(\S+): delivered (\d+), booked (\d+)$", ran.stdout, re.MULTILINE)
    assert {(order, int(calls), int(times)) for order, calls, times in shown} == {
        (order, delivered[order], booked[order]) for order in booked
    }
    with oncemore.open(tmp_path / "log.db") as engine:
        verify_chain(engine.store.read_entries())
