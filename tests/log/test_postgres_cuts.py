"""The store in PostgreSQL with cut connections: the outcome of every batch is resolved (`database_cuts`)."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from oncemore.log.postgres.store import PostgresStore
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored
from tests.log import database_cuts
from tests.log.database_cuts import Answered, work, wrong
from tests.servers import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers.cutting import Proxy

names = itertools.count()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with postgres.running(deadlock_timeout="50ms") as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    yield from database_cuts.make_proxy(url)


@pytest.fixture
def open_at() -> Callable[[str], PostgresStore]:
    return partial(PostgresStore, schema=f"cuts_{next(names)}")


def test_after_a_cut_every_answer_agrees_with_the_log(
    proxy: Proxy, url: str, open_at: Callable[[str], PostgresStore]
) -> None:
    database_cuts.check_every_answer_agrees_with_the_log(proxy, url, open_at)


def test_a_stored_batch_is_recognised_after_later_entries(
    proxy: Proxy, url: str, open_at: Callable[[str], PostgresStore]
) -> None:
    database_cuts.check_a_stored_batch_is_recognised(proxy, url, open_at)


def test_a_connection_that_stays_down_is_reported_as_unknown_in_bounded_time(
    proxy: Proxy, url: str, open_at: Callable[[str], PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    database_cuts.check_an_unknown_outcome_is_reported_in_bounded_time(proxy, url, open_at, monkeypatch)


def test_sessions_ended_by_the_server_are_opened_again(url: str) -> None:
    store = PostgresStore(url, f"cuts_{next(names)}")
    told: list[Answered] = []
    faults: list[object] = []
    threads = [threading.Thread(target=work, args=(store, n, 60, told, faults)) for n in range(3)]
    for thread in threads:
        thread.start()
    ended = answered = 0
    with psycopg.connect(url, autocommit=True) as boss:
        while any(thread.is_alive() for thread in threads):
            if len(told) > answered + 1:  # something got through since
                answered = len(told)
                ended += boss.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where application_name = 'oncemore' and query like '%append%'"
                ).rowcount
            time.sleep(0.002)
    assert not faults, faults
    assert ended > 10
    assert wrong(told, store) == (0, 0, 0)
    store.close()


def test_a_read_on_a_dead_connection_opens_another_one(url: str) -> None:
    store = PostgresStore(url, f"cuts_{next(names)}")
    require_stored(append_writes(store, make_write("run/a", store.load_head("run/a"))))
    with psycopg.connect(url, autocommit=True) as boss:
        for _ in range(3):
            boss.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
                "where application_name = 'oncemore'"
            )
            assert store.load_head("run/a") is not None
            require_stored(append_writes(store, make_write("run/a", store.load_head("run/a"))))
    assert len(read_verified_entries(store, "run/a")) == 4
    store.close()
