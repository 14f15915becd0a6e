"""Maintenance on a PostgreSQL server, and the operations that only its owner may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

import oncemore
from oncemore.log.postgres.store import PostgresStore
from oncemore.log.store import HeadQuery
from oncemore.outbox import OutboxRelay
from oncemore.steps.engine import Engine
from oncemore.steps.lease import WorkerIdentity
from tests.maintenance.test_prune import DAY, pay, ran, tell
from tests.servers import postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.testing import FakeClock


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


def test_runs_are_pruned_erased_and_dropped(url: str, clock: FakeClock) -> None:
    ran.clear()
    with Engine(lambda: PostgresStore(url, "house"), "postgresql://") as engine:
        pay("old")
        tell("b")
        pay("canary")
        OutboxRelay(engine, {"*": lambda message: None}).run_once()
        assert engine.erase(pay.key("canary"), reason="asked to", by="officer").remaining == ()
        assert b"canary" not in b"".join(entry.body or b"" for entry in engine.store.read_entries())
        clock.advance(DAY)
        pay("new")
        found = engine.prune(older_than=3600, by="an operator")
        assert (found.runs, found.events, found.kept_runs) == (2, 2, {"young": 1})
        for name in ("old", "canary"):
            with pytest.raises(oncemore.KeyExpired):
                pay(name)
        assert {one.how for one in engine.verify().forgotten} == {"pruned", "erased"}
        clock.advance(10 * DAY)
        assert engine.prune(forget_keys_after=DAY).dropped_keys == 3
        assert len(list(engine.store.list_heads(HeadQuery("run")))) == 1
        engine.verify()
        assert ran == ["old", "canary", "new"]
        assert engine.measure_sizes().kinds["run"].entities == 1


def test_a_role_without_ownership_can_prune_and_cannot_drop_keys(
    url: str, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with Engine(lambda: PostgresStore(url, "house_rights"), "postgresql://") as engine:
        pay("a")
        WorkerIdentity(engine.store, "long-gone", 60.0, engine.now).end_lease()
    with psycopg.connect(url, autocommit=True) as boss:
        boss.execute("create role house_app login")
        boss.execute("grant usage on schema house_rights to house_app")
        boss.execute("grant select on all tables in schema house_rights to house_app")
        boss.execute("grant execute on all functions in schema house_rights to house_app")
    limited = url.replace("oncemore@", "house_app@")
    with Engine(lambda: PostgresStore(limited, "house_rights"), "postgresql://") as engine:
        clock.advance(5 * DAY)
        assert engine.prune(older_than=3600).runs == 1
        assert "the records of dead processes could not be removed" in caplog.text
        clock.advance(5 * DAY)
        with pytest.raises(oncemore.StoreError, match="this role may not do that"):
            engine.prune(forget_keys_after=DAY)
        with pytest.raises(oncemore.KeyExpired):
            pay("a")
        engine.verify()


def test_a_backup_of_a_server_store_is_refused(url: str, tmp_path: Path) -> None:
    with Engine(lambda: PostgresStore(url, "house_copy"), "postgresql://") as engine:
        with pytest.raises(
            oncemore.UsageError, match="pg_dump --schema=house_copy for a copy, pg_basebackup"
        ):
            engine.backup(tmp_path / "b.db")
        assert engine.store.open_maintenance().measure_space().file > 0
