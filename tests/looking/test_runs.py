"""Runs are found by whatever is known of them, the newest first, quickly, and by any beginning of a name."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from oncemore._ids import uuid7
from oncemore.errors import UsageError
from oncemore.log.entry_codec import written
from oncemore.log.head_index import index_of
from oncemore.log.record import NOWHERE, Change, Run
from oncemore.log.sqlite import queries
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, Stored, Write
from oncemore.queries import times
from oncemore.queries.run_timeline import story
from oncemore.queries.runs import Asked, find, names, runs
from oncemore.testing import store_contract
from tests.quickest import quickest

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.store import Store


def steps(store: Store, **asked: object) -> list[str]:
    return [row.step for row in runs(store, Asked(**asked))]  # type: ignore[arg-type]


def test_the_newest_come_first_and_filters_find_what_they_say(store: Store) -> None:
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
    (row,) = runs(store, Asked(step="flaky"))
    assert (row.state, row.attempts, row.allowed, row.runs, row.effect) == ("COMPLETE", 3, 3, 1, "idempotent")
    (row,) = runs(store, Asked(step="hopeless"))
    assert (row.error, row.message, row.runs) == ("TIMEOUT", "no answer for 2026-11-16", 2)
    with pytest.raises(UsageError, match="limit is 0"):
        runs(store, Asked(limit=0))


def test_times_are_those_of_the_last_change(store: Store) -> None:
    rows = runs(store, Asked())
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
            run = Run(
                "RUNNING", f"step {n % 7}", "pure", uuid7(at), 1, 1, 1, 1, 3, "w", at, at, tenant=f"t{n}",
                correlation_id=f"c{n}", dataset=f"d{n % 11}",
            )  # fmt: skip
            over = run._replace(state=states[n % 4], worker="", reason="retry")
            error = {"error": {"type": "X", "code": f"CODE_{n % 1000}", "message": "m"}}
            first = written(Change(("PENDING", "RUNNING", "INTENT"), None, run), entity, 1, NOWHERE, at, n)
            then = written(Change(("SOFT_FAIL",), run, over, error), entity, 2, first.hash, at, n)
            writes.append((Write(entity, 0, *first, index_of(run)), Write(entity, 1, *then, index_of(over))))
        for half in zip(*writes, strict=True):
            assert isinstance(store.append(Batch(half, sync=False)).wait(), Stored)
    last = begun + 50.0
    asked = {
        "newest": (Asked(), 50),
        "step": (Asked(step="step 3", limit=100), 100),
        "state": (Asked(state="HARD_FAIL", limit=100), 100),
        "error": (Asked(error="CODE_7"), 0),
        "error, failed": (Asked(error="CODE_505", limit=100), 50),
        "dataset": (Asked(dataset="d5", limit=100), 100),
        "tenant": (Asked(tenant="t13"), 1),
        "correlation": (Asked(correlation="c49990"), 1),
        "time": (Asked(since=last - 5, until=last - 3, limit=1000), 1000),
        "nothing": (Asked(step="nowhere"), 0),
    }
    took = {}
    for name, (question, count) in asked.items():
        assert len(runs(store, question)) == count, name
        took[name] = quickest(partial(runs, store, question), 1.0)
    assert store.changed(0, 0.0) == 100_000
    assert max(took.values()) < 1.0, took
    key = f"{31_234:064x}"
    assert find(store, find(store, key).run_id).entity == f"run/{key}"
    assert quickest(lambda: find(store, find(store, key).run_id), 1.0) < 1.0
    store.close()


def test_a_run_is_found_by_its_id_its_key_and_their_beginnings(store: Store) -> None:
    (row,) = runs(store, Asked(step="flaky"))
    for name in (row.run_id, row.key, row.key[:8], f"run/{row.key}", row.run_id[:-3], f" {row.key} "):
        assert find(store, name).run_id == row.run_id
    with pytest.raises(UsageError, match="begins several runs"):
        find(store, row.run_id[:8])
    for name in ("ffffffffffff", "nowhere at all", "01a1e24d-0000-7000-8000-000000000000"):
        with pytest.raises(UsageError, match="`oncemore runs` lists"):
            find(store, name)
    with pytest.raises(UsageError, match="too short"):
        find(store, "ab")
    assert row.run_id in names(store, row.run_id[:5], 100)
    assert names(store, "zz") == []


def test_an_earlier_life_of_a_key_is_found_by_its_id(store: Store) -> None:
    (row,) = runs(store, Asked(step="hopeless"))
    told = story(store, find(store, row.run_id))
    earlier = told.lives[0]
    assert len(told.lives) == 2
    found = find(store, earlier)
    assert (found.run_id, found.entity) == (earlier, f"run/{row.key}")
    before = story(store, found)
    assert (before.row.run_id, before.row.runs, before.row.state) == (earlier, 1, "HARD_FAIL")
    assert [span.number for span in before.spans if span.what == "attempt"] == [1, 2, 3]


def test_lists_are_the_same_where_the_end_of_the_log_has_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "LATELY", 1)
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
def test_times_are_read_as_people_write_them(text: str, at: float) -> None:
    assert times.instant(text, 1_000_000_000.0) == at


def test_a_day_and_an_hour_are_those_of_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert times.instant("2001-09-09", 1e9) == 999_961_200.0
        assert times.instant("9:30", 1e9) == times.instant("09:30:00", 1e9) == 999_995_400.0
        assert times.shown(1e9) == "2001-09-09 10:46:40.000"
        assert times.shown(1e9, day=False) == "10:46:40.000"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "yesterday", "5 parsecs", "25:99", "2026-13-01", "99999999999999"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="is no time; write 2h"):
        times.instant(text, 1e9)


def test_a_time_is_found_in_the_log_by_halving(store: Store) -> None:
    from oncemore.log.entry_codec import header_of

    entries = list(store.entries())
    for entry in entries:
        at = header_of(entry.header).at
        found = times.seq_at(store, at)
        assert found < entry.seq
        assert all(header_of(one.header).at < at for one in entries if one.seq <= found)
    assert times.seq_at(store, 0.0) == 0
    assert times.seq_at(store, 9e9) == len(entries)
