"""The databases that people have, each through the driver they have: how to connect, to write and to look."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import apsw
import psycopg
import pymysql
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as alchemy_async

from tests.servers import mariadb

if TYPE_CHECKING:
    from pathlib import Path

TABLE = "CREATE TABLE orders(n INTEGER NOT NULL, attempt INTEGER NOT NULL)"
ON_SQLITE = ("sqlite3", "sqlite3-autocommit", "apsw", "alchemy", "session", "django")
ON_POSTGRES = ("psycopg", "psycopg-autocommit", "alchemy-pg", "session-pg")
AWAITED = ("psycopg-async", "alchemy-async", "session-async")
ON_MYSQL = ("pymysql", "pymysql-autocommit", "alchemy-my", "session-my")
KINDS = ON_SQLITE + ON_POSTGRES + ON_MYSQL


class Database:
    """A user's own database with a table of orders.

    connect   returns a new connection of the kind
    write     writes an order through it; for those that are awaited, returns what to await
    orders    reads all orders through a connection of its own
    """

    def __init__(self, kind: str, folder: Path, server: str) -> None:
        self.kind = kind
        self.file = folder / "mine.db"
        self.server = ""
        self.opened: list[Any] = []
        self.patience_s = 10.0
        if kind in ON_SQLITE:
            with closing(sqlite3.connect(self.file)) as connection:
                connection.execute(TABLE)
        elif kind in ON_MYSQL:
            name = f"db_{uuid.uuid4().hex[:12]}"
            server = server.rpartition("/")[0]
            mariadb.create_database(server, name)
            self.server = f"{server}/{name}"
            self._ask_mysql(TABLE)
        else:
            name = f"db_{uuid.uuid4().hex[:12]}"
            with psycopg.connect(server, autocommit=True) as boss:
                boss.execute(f"CREATE DATABASE {name}")
            self.server = psycopg.conninfo.make_conninfo(server, dbname=name)
            with psycopg.connect(self.server, autocommit=True) as boss:
                boss.execute(TABLE)

    def connect(self) -> Any:
        """Return a new connection."""
        self.opened.append(self._connect())
        return self.opened[-1]

    def close(self) -> None:
        """Close all that were opened."""
        for connection in self.opened:
            with suppress(pymysql.Error):  # PyMySQL refuses to close one twice
                connection.close()

    def _connect(self) -> Any:
        kind = self.kind
        if kind == "sqlite3":
            return sqlite3.connect(self.file, timeout=self.patience_s, check_same_thread=False)
        if kind == "sqlite3-autocommit":
            return sqlite3.connect(
                self.file, timeout=self.patience_s, check_same_thread=False, isolation_level=None
            )
        if kind == "apsw":
            connection = apsw.Connection(str(self.file))
            connection.set_busy_timeout(int(self.patience_s * 1000))
            return connection
        if kind == "django":
            return django_on(self.file, self.patience_s)
        if kind.startswith("pymysql"):
            connection = mariadb.connect(self.server)
            connection.autocommit(kind == "pymysql-autocommit")
            return connection
        if kind.startswith("psycopg"):
            how = psycopg.AsyncConnection if kind == "psycopg-async" else psycopg.Connection
            return how.connect(self.server, autocommit=kind == "psycopg-autocommit")
        return self._alchemy()

    def _ask_mysql(self, sql: str) -> list[Any]:
        with mariadb.connect(self.server) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def _alchemy(self) -> Any:
        if self.kind in ON_MYSQL:
            made = sqlalchemy.create_engine(
                self.server.replace("mysql:", "mysql+pymysql:"), poolclass=sqlalchemy.NullPool
            )
            return orm.Session(made) if self.kind.startswith("session") else made.connect()
        parts = psycopg.conninfo.conninfo_to_dict(self.server) if self.server else {}
        query = {"host": parts["host"]} if parts else {}
        port = int(parts["port"]) if parts.get("port") else None
        url = sqlalchemy.URL.create(
            "sqlite", database=str(self.file), query={"timeout": str(self.patience_s)}
        )
        if parts:
            url = sqlalchemy.URL.create(
                "postgresql+psycopg",
                parts.get("user"),
                parts.get("password"),
                None,
                port,
                parts["dbname"],
                query,
            )
        if self.kind.endswith("async"):
            engine = alchemy_async.create_async_engine(url, poolclass=sqlalchemy.NullPool)
            return alchemy_async.AsyncSession(engine) if self.kind == "session-async" else engine.connect()
        made = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        return orm.Session(made) if self.kind.startswith("session") else made.connect()

    def write(self, connection: Any, n: int, attempt: int) -> Any:
        """Write an order."""
        sql = "INSERT INTO orders VALUES ({}, {})".format(n, attempt)  # noqa: S608, UP032
        if self.kind == "django" or self.kind.startswith("pymysql"):
            with connection.cursor() as cursor:
                return cursor.execute(sql)
        alchemy = self.kind.startswith(("alchemy", "session"))
        return connection.execute(sqlalchemy.text(sql) if alchemy else sql)

    def orders(self) -> list[tuple[int, int]]:
        """Return all orders that are there for others to see."""
        return self.rows("SELECT n, attempt FROM orders ORDER BY n, attempt")

    def rows(self, sql: str) -> list[Any]:
        """Read through a connection of one's own."""
        if self.kind in ON_MYSQL:
            return self._ask_mysql(sql)
        if self.server:
            with psycopg.connect(self.server, autocommit=True) as connection:
                return connection.execute(sql).fetchall()
        with closing(sqlite3.connect(self.file)) as reader:
            return reader.execute(sql).fetchall()


def django_on(file: Path, patience_s: float) -> Any:
    """Return a connection of Django to a file, as a project with settings has it."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    from django.db import connections
    from django.db.backends.sqlite3.base import DatabaseWrapper

    alias = f"a{uuid.uuid4().hex[:8]}"
    told = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file), "OPTIONS": {"timeout": patience_s}}
    connections.settings[alias] = connections.configure_settings({"default": told})["default"]
    connection = connections[alias]
    assert isinstance(connection, DatabaseWrapper)
    connection.inc_thread_sharing()  # a test closes what its threads have opened
    return connection
