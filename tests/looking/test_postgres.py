"""Everything that looks works on PostgreSQL as well, and makes no schema, and repairs only for its owner."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.log.postgres.read_only import LookedAt
from oncemore.maintenance.replay import Replay
from oncemore.queries.open_engine import looked_at
from oncemore.queries.run_timeline import story
from oncemore.queries.runs import Asked, find, runs
from oncemore.testing import store_contract
from tests.looking.work import everything
from tests.servers import postgres
from tests.shell import run, told

if TYPE_CHECKING:
    from collections.abc import Iterator


copies = itertools.count()


@pytest.fixture(scope="module")
def empty() -> Iterator[str]:
    """The address of a server without a store."""
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def whole(empty: str) -> str:
    """The address of a store that has seen it all, which nobody looks at: copies are made of it."""
    query(empty, "create database whole")
    address = re.sub(r"/[^/]*$", "/whole", empty)
    engine = oncemore.open(address, artifacts="memory:")
    everything(engine)
    engine.close()
    return address


@pytest.fixture
def url(empty: str, whole: str) -> str:
    """The address of a store of one's own."""
    name = f"copy_{next(copies)}"
    query(empty, f"create database {name} template whole")
    return re.sub(r"/[^/]*$", f"/{name}", empty)


def test_looking_makes_no_store(empty: str) -> None:
    with pytest.raises(StoreError, match="there is no store in the schema oncemore"), looked_at(empty):
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


def test_runs_are_found_told_and_replayed(url: str) -> None:
    with looked_at(url) as store:
        rows = runs(store, Asked())
        assert [row.step for row in rows][:4] == ["hopeless", "halves", "chart", "announce"]
        for asked, steps in (
            (Asked(error="CONNECTION_RESET"), ["pay"]),
            (Asked(correlation="corr-chart"), ["chart"]),
            (Asked(tenant="tenant-6"), ["flaky"]),
            (Asked(dataset="rivers"), ["flaky"]),
            (Asked(held=True), ["pay"]),
            (Asked(since=rows[0].changed), ["hopeless"]),
        ):
            assert [row.step for row in runs(store, asked)] == steps
        found = story(store, find(store, rows[0].run_id))
        assert len(found.lives) == 2
        assert story(store, find(store, found.lives[0])).row.runs == 1
        assert [one for each in Replay().tell(store.entries()) for one in each.differences] == []


def test_lists_are_the_same_where_the_end_of_the_log_has_too_little(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncemore.log.postgres import queries
    from oncemore.log.postgres.store import PostgresStore

    monkeypatch.setattr(queries, "LATELY", 1)
    store = PostgresStore(url, "listed")
    store_contract.the_newest_heads_are_listed_first_when_asked(lambda: store)
    store.close()


def test_what_would_write_is_refused(url: str) -> None:
    store = LookedAt(url)
    for use in (
        lambda: store.append(store_contract.Batch(())),
        lambda: store.prune({"run/a": 1}),
        lambda: store.drop({"run/a": 1}),
        lambda: store.mend([], 1),
        lambda: store.enter("me"),
    ):
        with pytest.raises(StoreError, match="nothing is written"):
            use()
    store.close()


def test_the_commands_look_and_the_doctor_repairs(url: str) -> None:
    key = told("runs", "--store", url, "--step", "flaky")[0]["key"]
    assert "░ wait, as decided" in run("show", key[:8], "--store", url).stdout
    assert "The policy's own delay" in " ".join(run("explain", key, "--store", url).stdout.split())
    assert run("replay", "--all", "--store", url).returncode == 0
    assert run("tail", "-n", "2", "--store", url).stdout.count("\n") == 2
    assert told("health", "--store", url)["healthy"] is True
    good = told("doctor", "--rebuild", "--store", url)
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
    bad = told("doctor", "--rebuild", "--store", url, code=1)
    assert bad["checks"][-1]["seen"].endswith("2 heads are wrong")
    assert run("doctor", "--rebuild", "--write", "--store", url).returncode == 0
    assert told("doctor", "--rebuild", "--store", url)["checks"][-1]["status"] == "ok"
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


def test_a_program_that_may_only_append_cannot_repair(url: str) -> None:
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
        store.mend([], 1)
    store.close()
