"""A fleet of schedulers that are killed: each tick has one run, and none is missing.

`make test` kills 40 of them on SQLite and 12 each on PostgreSQL and NATS; `make torture` 100, 30 and 30.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.log.entry_codec import decode_head, decode_header
from oncemore.log.store import HeadQuery
from oncemore.schedules.record import ScheduleRecord
from oncemore.steps.history import verify_chain
from tests.schedules.fleet import EVERY_S

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
TORTURE = bool(os.environ.get("ONCEMORE_TORTURE"))
KILLS = (
    {"sqlite": 100, "postgresql": 30, "nats": 30} if TORTURE else {"sqlite": 40, "postgresql": 12, "nats": 12}
)
EVERY_US = round(EVERY_S * 1e6)


@pytest.mark.parametrize("store_url", ["sqlite", "postgres", "nats"], indirect=True)
def test_one_run_per_tick_through_kills(
    store_url: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    kills = KILLS[store_url.partition(":")[0]]
    recorder = tmp_path / "ticks"
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-m", "tests.schedules.fleet", store_url, str(recorder), str(kills)]
    ran = subprocess.run(
        command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with oncemore.open(store_url) as engine:
        heads = list(engine.store.list_heads(HeadQuery("run", limit=100_000)))
        runs = [decode_head(head.head) for head in heads]
        head = engine.store.load_head("schedule/fleet.tick")
        assert head is not None
        record = decode_head(head.head, ScheduleRecord)
        opened = [
            decode_header(entry.header).entity
            for entry in engine.store.read_entries()
            if "PENDING" in decode_header(entry.header).marks
        ]
        declared = next(iter(engine.store.read_entries("schedule/fleet.tick")))
        first = decode_header(declared.header).sets["next_tick"]
        verify_chain(engine.store.read_entries())
    # Each run was opened once, and belongs to the ticks from the first to the last without a gap.
    assert len(opened) == len(set(opened)) == len(runs) == record.tick_count
    assert {(run.state, run.run_number) for run in runs} == {("COMPLETE", 1)}
    expected = range(round(first * 1e6), round(record.last_tick * 1e6) + 1, EVERY_US)
    assert len(runs) == len(expected)
    assert record.skipped_count == 0
    # The functions themselves: each tick was seen, again only after a kill.
    seen = [int(line) for line in recorder.read_text().splitlines()]
    assert set(seen) == set(expected)
    attempts = sum(run.attempt for run in runs)
    assert len(seen) <= attempts
    record_property("kills of schedulers", kills)
    record_property("ticks with one run each", len(runs))
