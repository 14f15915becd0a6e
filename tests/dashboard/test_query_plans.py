"""Every page and every list of the API finds its heads by an index, on SQLite and on PostgreSQL.

The statements that a request runs are recorded, and the database is asked for the plan of each. So the time
of a page does not depend on the number of runs; `tests/torture/test_million_runs.py` measures it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.dashboard import create_app
from oncemore.dashboard.api import API_ROUTES
from oncemore.log.database import queries as database_queries
from oncemore.log.sqlite import queries as sqlite_queries
from oncemore.log.store import HeadQuery
from oncemore.queries import run_pages, runs
from tests.dashboard.conftest import ServedDashboard, list_paths, sign_in
from tests.dashboard.sample_store import fill_store
from tests.stores import open_store, postgres_database, store_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oncemore.log.store import Store

__all__ = ["open_store", "postgres_database", "store_url"]

#: A loop over a whole table, in the words of SQLite and of PostgreSQL.
SCAN = re.compile(r"\bSCAN (head|log|h|l)\b|Seq Scan on (head|log)\b")
STORES = pytest.mark.parametrize("store_url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def filled(store_url: str, quiet_log: None) -> Iterator[ServedDashboard]:
    """A dashboard over one of everything, in a store of each kind."""
    with oncemore.open(store_url) as engine:
        runs = fill_store(engine)
        yield ServedDashboard(create_app(engine), "", runs)


def list_api_paths(runs: Any) -> list[str]:
    """Return the address of every route of the API, with a run and filters where it takes them."""
    paths = [f"/api{route.path.replace('{run}', runs.failed)}" for route in API_ROUTES]
    states = ("PENDING", "RUNNING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE")
    return [*paths, "/api/runs?held=1", *(f"/api/runs?step=tiles.render&state={state}" for state in states)]


def record_statements(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...]]]:
    """Return a list to which every statement of a store is added from now on."""
    statements: list[tuple[str, tuple[Any, ...]]] = []
    query_rows = store.query_rows  # type: ignore[attr-defined]

    def record_and_query(sql: str, values: tuple[Any, ...] = ()) -> Any:
        statements.append((sql, values))
        return query_rows(sql, values)

    monkeypatch.setattr(store, "query_rows", record_and_query)
    return statements


def explain_statements(url: str, statements: Iterable[tuple[str, tuple[Any, ...]]]) -> dict[str, str]:
    """Return the plan of each statement, one line for each loop."""
    if url.startswith("sqlite:"):
        import apsw

        reader = apsw.Connection(url.removeprefix("sqlite:///"), flags=apsw.SQLITE_OPEN_READONLY)
        return {
            sql: "\n".join(row[3] for row in reader.execute(f"EXPLAIN QUERY PLAN {sql}", values))
            for sql, values in statements
        }
    import psycopg

    address, _, schema = url.partition("?schema=")
    names = {"schema": schema, **{name: f"{schema}.{name}" for name in ("head", "log", "worker")}}
    with psycopg.connect(address) as connection:
        # A small table is read faster as a whole; without that choice the plan is the one of a large table.
        connection.execute("set enable_seqscan = off")
        return {
            sql: "\n".join(
                row[0]
                for row in connection.execute(f"explain {sql.format(**names)}".encode(), values or None)
            )
            for sql, values in statements
        }


@STORES
def test_no_page_and_no_list_reads_all_heads(
    filled: ServedDashboard, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A search of the newest heads reads the end of the log first, and a page reads windows of half of that.
    # Here both are short, so that the store is as much larger as one of many runs.
    monkeypatch.setattr(sqlite_queries, "RECENT_ENTRIES", 20)
    monkeypatch.setattr(database_queries, "RECENT_ENTRIES", 20)
    monkeypatch.setattr(run_pages, "WINDOW", 10)
    monkeypatch.setattr(runs, "NEWEST_ENTRIES", 10)
    client = sign_in(filled.app)
    # The counter reads the last hour once, at its start.
    client.get("/")
    statements = record_statements(filled.app.engine.store, monkeypatch)
    # One plan for each text of a statement, with the page that ran it first.
    first: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for path in (*list_paths(filled), *list_api_paths(filled.runs)):
        statements.clear()
        assert client.get(path).status_code == 200, path
        for sql, values in statements:
            first.setdefault(sql, (path, values))
            # All runs by the beginning of their names are as many as without one.
            assert "run/" not in values, (path, sql)
    plans = explain_statements(store_url, [(sql, values) for sql, (_, values) in first.items()])
    scans = {(first[sql][0], sql): plan for sql, plan in plans.items() if SCAN.search(plan)}
    assert scans == {}


@STORES
def test_failed_and_held_runs_are_found_by_their_index(
    filled: ServedDashboard, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled.app.engine.store
    statements = record_statements(store, monkeypatch)
    for state in ("HARD_FAIL", "HELD"):
        for newest_first in (True, False):
            assert list(store.list_heads(HeadQuery("run", state=state, newest_first=newest_first, limit=5)))
    plans = explain_statements(store_url, [each for each in statements if "HARD_FAIL" in each[0]])
    assert len(plans) == 2
    assert all("head_failed" in plan for plan in plans.values()), plans


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_schema_of_format_3_gets_the_index_when_it_is_opened(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from oncemore.log.postgres import schema as postgres_format
    from oncemore.log.postgres.store import PostgresStore

    address, _, schema = store_url.partition("?schema=")

    def list_indexes() -> set[str]:
        with psycopg.connect(address) as connection:
            rows = connection.execute("select indexname from pg_indexes where schemaname = %s", (schema,))
            return {name for (name,) in rows}

    with monkeypatch.context() as earlier_version:
        earlier_version.setattr(postgres_format, "FORMAT", 3)
        PostgresStore(store_url).close()
    assert "head_failed" not in list_indexes()
    PostgresStore(store_url).close()
    assert "head_failed" in list_indexes()
    with psycopg.connect(address) as connection:
        assert postgres_format.schema_format(connection, schema) == postgres_format.FORMAT
