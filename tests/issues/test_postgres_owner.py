"""A schema in PostgreSQL that another role could change is refused, and search_path is ours."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import psycopg
import pytest

import oncemore
from oncemore.queries.doctor import check_store
from oncemore.queries.stores import open_read_only
from tests.servers import postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

numbers = itertools.count()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with postgres.running() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture
def boss(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def schema(boss: psycopg.Connection) -> str:
    """The name of a schema, which is also that of a role that may create it."""
    name = f"owner_{next(numbers)}"
    ((database,),) = boss.execute("select current_database()").fetchall()
    boss.execute(f"create role {name} login")
    boss.execute(f"create role app_{name} login")
    boss.execute(f"grant create on database {database} to {name}, app_{name}")
    return name


@oncemore.step(effect="idempotent", name="owner.pay")
def pay(order: str) -> str:
    return f"paid {order}"


def address_of(url: str, role: str, schema: str, more: str = "") -> str:
    return f"{url.replace('oncemore@', f'{role}@')}?schema={schema}{more}"


def grant_all(boss: psycopg.Connection, schema: str) -> None:
    """Give app what a program needs, and no more."""
    boss.execute(f"grant usage on schema {schema} to app_{schema}")
    boss.execute(f"grant select on all tables in schema {schema} to app_{schema}")
    boss.execute(f"grant execute on all functions in schema {schema} to app_{schema}")


def test_a_schema_that_another_role_has_made_is_refused_and_left_alone(
    url: str, schema: str, boss: psycopg.Connection
) -> None:
    with psycopg.connect(address_of(url, schema, schema).partition("?")[0], autocommit=True) as other:
        other.execute(f"create schema {schema}")
        other.execute(f"grant all on schema {schema} to app_{schema}")
        other.execute(
            f"create view {schema}.meta as select 'format' as name, pg_notify('hijacked', '')::text as value"
        )
    boss.execute("listen hijacked")
    says = rf"schema {schema} belongs to the role {schema}, and app_{schema} is not.*owner={schema}"
    with (
        oncemore.open(address_of(url, f"app_{schema}", schema)),
        pytest.raises(oncemore.StoreError, match=says),
    ):
        pay("a")
    assert not list(boss.notifies(timeout=0.1)), "no function of that schema ran"


def test_the_owner_is_accepted_as_a_role_of_ours_or_by_name(
    url: str, schema: str, boss: psycopg.Connection
) -> None:
    with oncemore.open(address_of(url, schema, schema)):
        pay("a")
    grant_all(boss, schema)
    app = f"app_{schema}"
    with oncemore.open(address_of(url, app, schema)), pytest.raises(oncemore.StoreError, match="belongs to"):
        pay("a")
    with oncemore.open(address_of(url, app, schema, f"&owner={schema}")):
        assert pay("a") == "paid a"
    boss.execute(f"grant {schema} to {app}")
    with oncemore.open(address_of(url, app, schema)):
        assert pay("a") == "paid a"


def test_a_function_of_another_role_is_refused(url: str, schema: str, boss: psycopg.Connection) -> None:
    with oncemore.open(address_of(url, schema, schema)):
        pay("a")
    boss.execute(f"grant create, usage on schema {schema} to app_{schema}")
    with psycopg.connect(
        address_of(url, f"app_{schema}", schema).partition("?")[0], autocommit=True
    ) as other:
        other.execute(
            f"create function {schema}.last_seq(int) returns bigint language sql as 'select 7::bigint'"
        )
    says = rf"function last_seq belongs to the role app_{schema}"
    with oncemore.open(address_of(url, schema, schema)), pytest.raises(oncemore.StoreError, match=says):
        pay("b")


def test_a_foreign_trigger_or_rule_is_refused_and_reported(
    url: str, schema: str, boss: psycopg.Connection
) -> None:
    address = address_of(url, schema, schema)
    with oncemore.open(address):
        pay("a")
    with psycopg.connect(address.partition("?")[0], autocommit=True) as other:
        other.execute(f"create rule theirs as on update to {schema}.head do instead nothing")
    with oncemore.open(address), pytest.raises(oncemore.StoreError, match="rule theirs is on the table head"):
        pay("b")
    with open_read_only(address) as store:
        found = {check.name: check for check in check_store(store).checks}
    assert (found["schema"].status, "rule theirs" in found["schema"].observation) == ("bad", True)
    with psycopg.connect(address.partition("?")[0], autocommit=True) as other:
        other.execute(f"drop rule theirs on {schema}.head")
        other.execute(
            f"create function {schema}.lose() returns trigger language plpgsql as 'begin return null; end'"
        )
        other.execute(
            f"create trigger theirs before insert on {schema}.log "
            f"for each row execute function {schema}.lose()"
        )
    with (
        oncemore.open(address),
        pytest.raises(oncemore.StoreError, match="trigger theirs is on the table log"),
    ):
        pay("b")


def test_the_search_path_of_a_role_does_not_reach_our_statements(
    url: str, schema: str, boss: psycopg.Connection
) -> None:
    boss.execute(f"create schema evil_{schema}")
    boss.execute(f"grant usage on schema evil_{schema} to {schema}")
    boss.execute(
        f"create function evil_{schema}.split_part(text, text, int) returns text "
        "language sql as 'select ''x'''"
    )
    boss.execute(f"alter role {schema} set search_path = evil_{schema}, pg_catalog, public")
    boss.execute(f"create table evil_{schema}.mine(a int)")
    boss.execute(f"grant insert on evil_{schema}.mine to {schema}")

    @oncemore.step(effect="transactional", name="owner.count")
    def count(n: int) -> int:
        oncemore.current().on_commit(lambda tx: tx.execute("insert into mine values (%s)", (n,)))
        return n

    with oncemore.open(address_of(url, schema, schema)) as engine:
        pay("a")
        assert set(engine.measure_sizes().kinds) >= {"run", "worker"}
        count(7)
        assert engine.store.query_rows("show search_path") == [("pg_catalog, pg_temp",)]  # type: ignore[attr-defined]
    rows = boss.execute(f"select a from evil_{schema}.mine").fetchall()  # noqa: S608
    assert rows == [(7,)], "the statements of on_commit() go by the search_path of the role"
