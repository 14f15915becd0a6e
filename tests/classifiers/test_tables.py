"""The tables against the installed clients: every class has a rule, and every name exists."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import TYPE_CHECKING

import pytest

from oncemore.classifiers import classify as module
from oncemore.classifiers import clients
from oncemore.classifiers.classify import UNMATCHED, _find_rule, _tables
from oncemore.policy.model import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where the exceptions of each top-level module of a table are defined or shown.
HOMES = {
    "aiohttp": ("aiohttp", "aiohttp.client_exceptions"),
    "anthropic": ("anthropic", "anthropic._exceptions", "anthropic.types.shared"),
    "anyio": ("anyio",),
    "apsw": ("apsw",),
    "asyncio": ("asyncio",),
    "asyncpg": ("asyncpg", "asyncpg.exceptions"),
    "azure": ("azure.core.exceptions",),
    "botocore": ("botocore.exceptions",),
    "builtins": ("builtins",),
    "cimpl": ("confluent_kafka.cimpl",),
    "google": ("google.api_core.exceptions", "google.auth.exceptions"),
    "grpc": ("grpc", "grpc.aio"),
    "h11": ("h11",),
    "http": ("http.client",),
    "httpcore": ("httpcore",),
    "httpcore2": ("httpcore2",),
    "httpx": ("httpx",),
    "httpx2": ("httpx2",),
    "jsonschema": ("jsonschema",),
    "jsonschema_rs": ("jsonschema_rs",),
    "msgspec": ("msgspec",),
    "nats": ("nats.errors", "nats.js.errors"),
    "neo4j": ("neo4j.exceptions", "neo4j._exceptions"),
    "oncemore": (
        "oncemore.errors",
        "oncemore.stepfunctions.task",
        "oncemore.profiles.lit.errors",
        "oncemore.profiles.nova_cat.input",
    ),
    "openai": ("openai", "openai._exceptions"),
    "pika": ("pika.exceptions",),
    "psycopg": ("psycopg", "psycopg.errors"),
    "psycopg_pool": ("psycopg_pool",),
    "pydantic": ("pydantic",),
    "pydantic_core": ("pydantic_core",),
    "pystac": ("pystac.errors",),
    "pystac_client": ("pystac_client.exceptions",),
    "redis": ("redis.exceptions", "redis.sentinel", "redis.asyncio.sentinel", "redis.multidb.exception"),
    "requests": ("requests.exceptions",),
    "socket": ("socket",),
    "sqlalchemy": ("sqlalchemy.exc", "sqlalchemy.orm.exc"),
    "sqlite3": ("sqlite3",),
    "ssl": ("ssl",),
    "subprocess": ("subprocess",),
    "tenacity": ("tenacity",),
    "trio": ("trio",),
    "urllib": ("urllib.error",),
    "urllib3": ("urllib3.exceptions",),
}

#: Clients of which every exception must be known; of the others only some are ours to know.
WHOLE = (
    "aiohttp", "anthropic", "apsw", "asyncpg", "azure", "botocore", "google", "grpc", "h11", "http",
    "httpcore", "httpcore2", "httpx", "httpx2", "nats", "neo4j", "oncemore", "openai", "psycopg",
    "psycopg_pool", "pystac_client", "redis", "requests", "socket", "sqlalchemy", "sqlite3", "ssl", "urllib",
    "urllib3",
)  # fmt: skip

#: Not failures of a call: internal signals, and warnings.
LEFT_OUT = {
    "aiohttp": {"EofStream", "WebSocketReady"},
    "botocore": {"UndefinedModelAttributeError", "MissingServiceIdError"},
    "oncemore": {"PolicyWarning", "_CodedError"},
    "psycopg": {"Rollback", "Warning", "CancelledError"},
    "socket": {"_GiveupOnSendfile"},
    "h11": {"ProtocolError"},
}


def exceptions_of(name: str) -> Iterator[type[BaseException]]:
    for home in HOMES[name]:
        # jsonschema is the one library of a table that the development environment does not have.
        shown = pytest.importorskip(home) if home == "jsonschema" else importlib.import_module(home)
        for cls in [getattr(shown, name) for name in dir(shown)]:  # not vars(): anyio loads lazily
            if inspect.isclass(cls) and issubclass(cls, BaseException):
                yield cls


@pytest.mark.parametrize("name", WHOLE)
def test_every_exception_of_a_client_has_a_rule(name: str) -> None:
    own = [cls for cls in exceptions_of(name) if cls.__module__.partition(".")[0] == name]
    assert own
    unknown = {
        cls.__name__
        for cls in own
        if isinstance(rule := _find_rule(cls), tuple)
        and rule[-1] == UNMATCHED
        and not issubclass(cls, Warning)
    }
    assert unknown - LEFT_OUT.get(name, set()) == set()


def test_every_module_with_a_table_is_checked_here() -> None:
    assert set(_tables) - {"tests"} == set(HOMES)


#: Libraries that share one table: a name must be real in one of them.
FAMILIES = [{"anyio", "trio"}, {"anthropic", "openai"}, {"h11", "httpcore", "httpcore2", "httpx", "httpx2"}]


@pytest.mark.parametrize("name", HOMES)
def test_every_name_in_a_table_is_a_real_class(name: str) -> None:
    family = next((family for family in FAMILIES if name in family), {name})
    real = {cls.__name__ for member in family for cls in exceptions_of(member)}
    assert set(_tables[name]) - real == set()


@pytest.mark.parametrize("name", [*HOMES, *module._NEVER_RETRIED])
def test_a_fact_is_well_formed(name: str) -> None:
    for rule in {**_tables.get(name, {}), **module._NEVER_RETRIED.get(name, {})}.values():
        if isinstance(rule, tuple):
            kind, sent, code = rule
            assert kind in KINDS
            assert sent in ("no", "maybe")
            assert code == code.strip()
            assert kind != "throttled" or code
        else:
            assert callable(rule)


def test_every_module_of_the_folder_is_registered() -> None:
    modules = {name for _, name, _ in pkgutil.iter_modules(clients.__path__)}
    assert {module.__name__.rpartition(".")[2] for module in clients.CLIENTS} == modules
