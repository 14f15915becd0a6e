"""Runs are listed by filters, newest first, and found by a prefix of their id or key."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from oncemore.errors import UsageError
from oncemore.log.entry_codec import build_index, encode_entry, new_uuid7
from oncemore.log.record import NOWHERE, RecordChange, RunRecord
from oncemore.log.sqlite import queries
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, EntryWrite, Stored
from oncemore.queries import times
from oncemore.queries.entries import find_seq
from oncemore.queries.run_timeline import load_timeline
from oncemore.queries.runs import RunFilter, complete_run_ids, find_run, list_runs
from oncemore.testing import store_contract
from tests.timing import measure_shortest_call

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.store import Store


def steps(store: Store, **asked: object) -> list[str]:
    return [row.step for row in list_runs(store, RunFilter(**asked))]  # type: ignore[arg-type]


def test_runs_are_listed_newest_first_and_filtered(store: Store) -> None:
    every = steps(store)
    assert every == [
        "hopeless",
        "halves",
        "chart",
        "announce",
        "polite",
        "pay",
        "wrong",
        "flaky",
        *["squared"] * 3,
    ]
    assert steps(store, limit=2) == ["hopeless", "halves"]
    assert steps(store, step="flaky") == ["flaky"]
    assert steps(store, state="HARD_FAIL") == ["hopeless", "wrong"]
    assert steps(store, error="CONNECTION_RESET") == ["pay"]
    assert steps(store, error="TIMEOUT") == ["hopeless"]
    assert steps(store, error="TIMEOUT", state="SOFT_FAIL") == []
    assert steps(store, dataset="rivers") == ["flaky"]
    assert steps(store, tenant="tenant-6") == ["flaky"]
    assert steps(store, tenant="tenant") == [], "a part of a name is no name"
    assert steps(store, correlation="corr-chart") == ["chart"]
    assert steps(store, correlation="corr-flaky", tenant="tenant-7") == []
    assert steps(store, held=True) == ["pay"]
    (row,) = list_runs(store, RunFilter(step="flaky"))
    assert (row.state, row.attempts, row.max_attempts, row.runs, row.effect) == (
        "COMPLETE",
        3,
        3,
        1,
        "idempotent",
    )
    (row,) = list_runs(store, RunFilter(step="hopeless"))
    assert (row.error, row.message, row.runs) == ("TIMEOUT", "no answer for 2026-11-16", 2)
    with pytest.raises(UsageError, match="limit is 0"):
        list_runs(store, RunFilter(limit=0))


def test_time_filters_use_the_last_change(store: Store) -> None:
    rows = list_runs(store, RunFilter())
    polite = next(row for row in rows if row.step == "polite")
    later = [row.step for row in rows if row.changed >= polite.changed]
    assert steps(store, since=polite.changed) == later
    assert steps(store, until=polite.changed) == [row.step for row in rows if row.changed <= polite.changed]
    assert steps(store, since=polite.changed, until=polite.changed) == ["polite"]
    assert steps(store, since=rows[0].changed + 1) == []


@pytest.mark.req("WAL-14")
def test_each_filter_answers_in_a_second_from_a_hundred_thousand_entries(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "many.db")
    begun = store.now()
    states = ("COMPLETE", "SOFT_FAIL", "HARD_FAIL", "COMPLETE")
    for page in range(50):
        writes = []
        for n in range(page * 1000, page * 1000 + 1000):
            entity, at = f"run/{n:064x}", begun + n / 1000
            run = RunRecord(
                "RUNNING",
                f"step {n % 7}",
                "pure",
                new_uuid7(at),
                1,
                1,
                1,
                1,
                3,
                "w",
                at,
                at,
                tenant=f"t{n}",
                correlation_id=f"c{n}",
                dataset=f"d{n % 11}",
            )
            over = run._replace(state=states[n % 4], worker="", reason="retry")
            error = {"error": {"type": "X", "code": f"CODE_{n % 1000}", "message": "m"}}
            first = encode_entry(
                RecordChange(("PENDING", "RUNNING", "INTENT"), None, run), entity, 1, NOWHERE, at, n
            )
            then = encode_entry(RecordChange(("SOFT_FAIL",), run, over, error), entity, 2, first.hash, at, n)
            writes.append(
                (
                    EntryWrite(entity, 0, *first, build_index(run)),
                    EntryWrite(entity, 1, *then, build_index(over)),
                )
            )
        for half in zip(*writes, strict=True):
            assert isinstance(store.append(Batch(half, sync=False)).wait(), Stored)
    last = begun + 50.0
    asked = {
        "newest": (RunFilter(), 50),
        "step": (RunFilter(step="step 3", limit=100), 100),
        "state": (RunFilter(state="HARD_FAIL", limit=100), 100),
        "error": (RunFilter(error="CODE_7"), 0),
        "error, failed": (RunFilter(error="CODE_505", limit=100), 50),
        "dataset": (RunFilter(dataset="d5", limit=100), 100),
        "tenant": (RunFilter(tenant="t13"), 1),
        "correlation": (RunFilter(correlation="c49990"), 1),
        "time": (RunFilter(since=last - 5, until=last - 3, limit=1000), 1000),
        "nothing": (RunFilter(step="nowhere"), 0),
    }
    took = {}
    for name, (question, count) in asked.items():
        assert len(list_runs(store, question)) == count, name
        took[name] = measure_shortest_call(partial(list_runs, store, question), 1.0)
    assert store.wait_for_change(0, 0.0) == 100_000
    assert max(took.values()) < 1.0, took
    key = f"{31_234:064x}"
    assert find_run(store, find_run(store, key).run_id).entity == f"run/{key}"
    assert measure_shortest_call(lambda: find_run(store, find_run(store, key).run_id), 1.0) < 1.0
    store.close()


def test_a_run_is_found_by_its_id_its_key_and_their_prefixes(store: Store) -> None:
    (row,) = list_runs(store, RunFilter(step="flaky"))
    for name in (row.run_id, row.key, row.key[:8], f"run/{row.key}", row.run_id[:-3], f" {row.key} "):
        assert find_run(store, name).run_id == row.run_id
    with pytest.raises(UsageError, match="begins several runs"):
        find_run(store, row.run_id[:8])
    for name in ("ffffffffffff", "nowhere at all", "01a1e24d-0000-7000-8000-000000000000"):
        with pytest.raises(UsageError, match="`oncemore runs` lists"):
            find_run(store, name)
    with pytest.raises(UsageError, match="too short"):
        find_run(store, "ab")
    assert row.run_id in complete_run_ids(store, row.run_id[:5], 100)
    assert complete_run_ids(store, "zz") == []


def test_an_earlier_run_of_a_key_is_found_by_its_id(store: Store) -> None:
    (row,) = list_runs(store, RunFilter(step="hopeless"))
    told = load_timeline(store, find_run(store, row.run_id))
    earlier = told.lives[0]
    assert len(told.lives) == 2
    found = find_run(store, earlier)
    assert (found.run_id, found.entity) == (earlier, f"run/{row.key}")
    before = load_timeline(store, found)
    assert (before.row.run_id, before.row.runs, before.row.state) == (earlier, 1, "HARD_FAIL")
    assert [span.number for span in before.spans if span.what == "attempt"] == [1, 2, 3]


def test_lists_are_the_same_when_the_end_of_the_log_has_too_few_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "RECENT_ENTRIES", 1)
    store = SqliteStore(tmp_path / "log.db")
    store_contract.the_newest_heads_are_listed_first_when_asked(lambda: store)
    store.close()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("now", 1_000_000_000.0),
        ("90s", 999_999_910.0),
        ("1.5h", 999_994_600.0),
        ("2d ago", 999_827_200.0),
        ("1w", 999_395_200.0),
        ("2001-09-09T01:00Z", 999_997_200.0),
        ("2001-09-09 01:00:00+01:00", 999_993_600.0),
        ("999999999", 999_999_999.0),
    ],
)
def test_accepted_forms_of_times_are_parsed(text: str, at: float) -> None:
    assert times.parse_instant(text, 1_000_000_000.0) == at


def test_days_and_hours_are_in_the_local_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert times.parse_instant("2001-09-09", 1e9) == 999_961_200.0
        assert times.parse_instant("9:30", 1e9) == times.parse_instant("09:30:00", 1e9) == 999_995_400.0
        assert times.format_time(1e9) == "2001-09-09 10:46:40.000"
        assert times.format_time(1e9, day=False) == "10:46:40.000"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "yesterday", "5 parsecs", "25:99", "2026-13-01", "99999999999999"])
def test_a_text_that_is_not_a_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="is not a time; write 2h"):
        times.parse_instant(text, 1e9)


def test_the_position_of_a_time_in_the_log_is_found(store: Store) -> None:
    from oncemore.log.entry_codec import decode_header

    entries = list(store.read_entries())
    for entry in entries:
        at = decode_header(entry.header).at
        found = find_seq(store, at)
        assert found < entry.seq
        assert all(decode_header(one.header).at < at for one in entries if one.seq <= found)
    assert find_seq(store, 0.0) == 0
    assert find_seq(store, 9e9) == len(entries)
