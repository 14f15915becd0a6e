"""All queries on a PostgreSQL store: they create no schema, and only the owner may repair."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.log.postgres.store import ReadOnlyPostgresStore
from oncemore.log.store import Batch
from oncemore.maintenance.replay import LogReplay
from oncemore.queries.run_timeline import load_timeline
from oncemore.queries.runs import RunFilter, find_run, list_runs
from oncemore.queries.stores import open_read_only
from oncemore.testing import store_contract
from tests.queries.work import run_all_steps
from tests.servers import postgres
from tests.shell import run, told

if TYPE_CHECKING:
    from collections.abc import Iterator


copies = itertools.count()


@pytest.fixture(scope="module")
def empty() -> Iterator[str]:
    """The URL of a server without a store."""
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def whole(empty: str) -> str:
    """The URL of a store with runs in every state; tests use copies of it."""
    query(empty, "create database whole")
    address = re.sub(r"/[^/]*$", "/whole", empty)
    engine = oncemore.open(address, artifacts="memory:")
    run_all_steps(engine)
    engine.close()
    return address


@pytest.fixture
def url(empty: str, whole: str) -> str:
    """The URL of a private copy of that store."""
    name = f"copy_{next(copies)}"
    query(empty, f"create database {name} template whole")
    return re.sub(r"/[^/]*$", f"/{name}", empty)


def test_reading_creates_no_store(empty: str) -> None:
    with pytest.raises(StoreError, match="there is no store in the schema oncemore"), open_read_only(empty):
        pass
    ran = run("runs", "--store", empty)
    assert ran.returncode == 1
    assert "there is no store in the schema oncemore" in " ".join(ran.stderr.split())
    assert query(empty, "select from pg_namespace where nspname = 'oncemore'") == []


def query(url: str, sql: str) -> list[tuple[object, ...]]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        done = connection.execute(sql.encode())
        return done.fetchall() if done.description else []


def test_runs_are_found_explained_and_replayed(url: str) -> None:
    with open_read_only(url) as store:
        rows = list_runs(store, RunFilter())
        assert [row.step for row in rows][:4] == ["hopeless", "halves", "chart", "announce"]
        for asked, steps in (
            (RunFilter(error="CONNECTION_RESET"), ["pay"]),
            (RunFilter(correlation="corr-chart"), ["chart"]),
            (RunFilter(tenant="tenant-6"), ["flaky"]),
            (RunFilter(dataset="rivers"), ["flaky"]),
            (RunFilter(held=True), ["pay"]),
            (RunFilter(since=rows[0].changed), ["hopeless"]),
        ):
            assert [row.step for row in list_runs(store, asked)] == steps
        found = load_timeline(store, find_run(store, rows[0].run_id))
        assert len(found.lives) == 2
        assert load_timeline(store, find_run(store, found.lives[0])).row.runs == 1
        assert [
            one for each in LogReplay().replay_entries(store.read_entries()) for one in each.differences
        ] == []


def test_lists_are_the_same_when_the_end_of_the_log_has_too_few_runs(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncemore.log.database import queries
    from oncemore.log.postgres.store import PostgresStore

    monkeypatch.setattr(queries, "RECENT_ENTRIES", 1)
    store = PostgresStore(url, "listed")
    store_contract.the_newest_heads_are_listed_first_when_asked(lambda: store)
    store.close()


def test_a_read_only_store_refuses_writes(url: str) -> None:
    store = ReadOnlyPostgresStore(url)
    for use in (
        lambda: store.append(Batch(())),
        lambda: store.open_maintenance().prune_bodies({"run/a": 1}),
        lambda: store.open_maintenance().drop_entities({"run/a": 1}),
        lambda: store.open_maintenance().replace_heads([], 1),
        lambda: store.register_worker("me"),
    ):
        with pytest.raises(StoreError, match="nothing is written"):
            use()
    store.close()


def test_commands_read_and_the_doctor_repairs(url: str) -> None:
    key = told("runs", "--store", url, "--step", "flaky")[0]["key"]
    assert "░ delay" in run("show", key[:8], "--store", url).stdout
    assert "The policy's own delay" in " ".join(run("explain", key, "--store", url).stdout.split())
    assert run("replay", "--all", "--store", url).returncode == 0
    assert run("store", "tail", "-n", "2", "--store", url).stdout.count("\n") == 2
    assert told("store", "health", "--store", url)["healthy"] is True
    good = told("store", "doctor", "--rebuild", "--store", url)
    assert good["checks"][-1]["status"] == "ok"
    assert {check["name"] for check in good["checks"]} >= {
        "engine",
        "sync mode",
        "standby",
        "chain",
        "rebuild",
    }
    query(url, "delete from oncemore.head where step = 'flaky'")
    query(url, "update oncemore.head set state = 'PENDING' where step = 'pay'")
    bad = told("store", "doctor", "--rebuild", "--store", url, code=1)
    assert bad["checks"][-1]["observation"].endswith("2 heads are wrong")
    assert run("store", "doctor", "--rebuild", "--write", "--store", url).returncode == 0
    assert told("store", "doctor", "--rebuild", "--store", url)["checks"][-1]["status"] == "ok"
    query(url, "update oncemore.log set body = '{}' where seq = 11")
    damaged = run("replay", "--all", "--store", url)
    assert damaged.returncode == 1
    assert "entry 11 (run/" in " ".join(damaged.stdout.split())


def test_a_password_is_never_printed(url: str) -> None:
    with_password = (
        url.replace("postgresql://", "postgresql://nobody:hunter2-secret@", 1) if "@" not in url else url
    )
    ran = run("runs", "--store", re.sub(r"/[^/]*$", "/nowhere-at-all", with_password))
    assert ran.returncode == 1
    assert "hunter2-secret" not in ran.stderr


def test_a_role_that_may_only_append_cannot_repair(url: str) -> None:
    query(
        url,
        "create role app login; grant usage on schema oncemore to app; "
        "grant select on all tables in schema oncemore to app; "
        "grant execute on all functions in schema oncemore to app",
    )
    other = re.sub(r"//[^@/]*@", "//app@", url)
    if other == url:
        other = url.replace("//", "//app@", 1)
    query(url, "delete from oncemore.head where step = 'chart'")
    from oncemore.log.postgres.store import PostgresStore

    store = PostgresStore(other)
    with pytest.raises(StoreError, match="permission denied"):
        store.open_maintenance().replace_heads([], 1)
    store.close()
