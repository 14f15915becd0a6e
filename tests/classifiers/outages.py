"""Every fault of `tools/outages.py` as the real client libraries raise it.

`raise_fault(client, fault)` returns the exception. Faults of the wire and HTTP answers come from loopback
servers; where a library reads its server's own error codes, the exception is made by the function with which
the library makes it from an answer, or by a real database file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sqlite3
import ssl
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import anthropic
import apsw
import asyncpg
import google.auth.transport.requests
import grpc
import httpx2
import jsonschema_rs
import msgspec
import nats
import nats.js.errors
import neo4j
import neo4j.exceptions
import openai
import psycopg
import pydantic
import pystac
import redis
import requests
import sqlalchemy as sa
import trustme
from google.api_core import exceptions as google_exceptions
from redis._parsers.base import BaseParser
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.classifiers import clients, test_aws, test_azure, test_openai, test_stac
from tests.classifiers.clients import SHORT, caught
from tests.servers import faults
from tests.servers import grpc as grpc_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Provoke = Callable[[str], BaseException]

UNKNOWN_HOST = "nohost.invalid"


# Faults of the wire ---------------------------------------------------------------------------------


def reset_at_once(conn: socket.socket, server: faults.Server) -> None:
    """Take the first bytes of any protocol, then drop the connection with a TCP reset."""
    server.requests.append(conn.recv(65536))
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def serve_fault(fault: str, reset: faults.Behaviour = reset_at_once) -> Iterator[tuple[str, int]]:
    """Yield host and port of a server with this fault."""
    if fault == "dns":
        yield UNKNOWN_HOST, 1
        return
    behaviours = {"reset": reset, "timeout": faults.stalls, "tls": faults.plain_text}
    server = faults.refusing() if fault == "refused" else faults.serve(behaviours[fault])
    with server as running:
        yield faults.HOST, running.port


def raise_over_http(call: Callable[..., object]) -> Provoke:
    """Return the provocation of a client that is called with a URL and the seconds it may take."""

    def provoke(fault: str) -> BaseException:
        if fault.isdigit():
            with faults.serve(faults.answers(int(fault))) as server:
                error = caught(call, server.url)
            if isinstance(error, HTTPError):  # urllib's error is the response itself, with its socket
                error.close()
            return error
        with serve_fault(fault, faults.resets) as (host, port):
            scheme = "https" if fault == "tls" else "http"
            patience = SHORT if fault == "timeout" else clients.PATIENCE
            return caught(call, f"{scheme}://{host}:{port}/", patience)

    return provoke


# Clients of services --------------------------------------------------------------------------------


def raise_with_botocore(fault: str) -> BaseException:
    codes = {
        "400": "ValidationException", "401": "UnrecognizedClientException", "403": "AccessDeniedException",
        "404": "ResourceNotFoundException", "409": "ResourceInUseException", "422": "Unprocessable",
        "429": "TooManyRequestsException", "500": "InternalServerError", "502": "BadGateway",
        "503": "ServiceUnavailable", "504": "GatewayTimeout", "slowdown": "SlowDown",
    }  # fmt: skip
    if fault in codes:
        status = 503 if fault == "slowdown" else int(fault)
        with faults.serve(test_aws.refusal(status, codes[fault])) as server:
            return test_aws.put(server.url)
    with serve_fault(fault, faults.resets) as (host, port):
        scheme = "https" if fault == "tls" else "http"
        return test_aws.put(f"{scheme}://{host}:{port}/", SHORT if fault == "timeout" else 10)


def raise_with_pystac_client(fault: str) -> BaseException:
    if fault == "slowdown":
        return test_stac.answered(503, b"<Error><Code>SlowDown</Code></Error>")
    return raise_over_http(test_stac.read)(fault)


def raise_with_google(fault: str) -> BaseException:
    """Return google-api-core's error for an answer, or google-auth's error for a lost connection."""
    if fault.isdigit():
        body = json.dumps({"error": {"message": "because"}}).encode()
        with faults.serve(faults.answers(int(fault), body=body)) as server, requests.Session() as session:
            return google_exceptions.from_http_response(session.get(server.url, timeout=5))

    def fetch(url: str, patience: float) -> None:
        with requests.Session() as session:
            google.auth.transport.requests.Request(session)(url, timeout=patience)

    return raise_over_http(fetch)(fault)


def raise_with_model_client(make: Any, ask: Callable[[Any], object]) -> Provoke:
    """Return the provocation of openai's or anthropic's client, on a certificate store that is read once."""

    def call(url: str, patience: float = clients.PATIENCE) -> None:
        with (
            httpx2.Client(verify=clients.TLS, trust_env=False) as http,
            make(base_url=url, api_key="k", max_retries=0, timeout=patience, http_client=http) as client,
        ):
            ask(client)

    return raise_over_http(call)


QUESTION: Any = test_openai.QUESTION

GRPC_STATUSES = {
    "400": "INVALID_ARGUMENT", "401": "UNAUTHENTICATED", "403": "PERMISSION_DENIED", "404": "NOT_FOUND",
    "409": "ALREADY_EXISTS", "429": "RESOURCE_EXHAUSTED", "500": "INTERNAL", "503": "UNAVAILABLE",
    "timeout": "DEADLINE_EXCEEDED",
}  # fmt: skip


def raise_with_grpc(fault: str) -> BaseException:
    def call(port: int, word: str) -> None:
        with grpc.insecure_channel(f"{faults.HOST}:{port}") as channel:
            channel.unary_unary(f"/any/{word}")(b"", timeout=5)

    def call_over_tls(port: int) -> None:
        with grpc.secure_channel(f"{faults.HOST}:{port}", grpc.ssl_channel_credentials()) as channel:
            channel.unary_unary("/any/UNAVAILABLE")(b"", timeout=5)

    if fault == "refused":
        with faults.refusing() as refusing:
            return caught(call, refusing.port, "UNAVAILABLE")
    if fault == "tls":
        with faults.serve(faults.plain_text) as server:
            return caught(call_over_tls, server.port)
    with grpc_server.running() as port:
        return caught(call, port, GRPC_STATUSES[fault])


def raise_with_nats(fault: str) -> BaseException:
    if fault.isdigit():
        answer = {"code": int(fault), "err_code": 10000 + int(fault), "description": "because"}
        return caught(nats.js.errors.APIError.from_error, answer)
    if fault == "timeout":
        return nats.errors.TimeoutError()

    async def ignore_error(_error: Exception) -> None:
        """nats-py reports every fault here as well."""

    async def connect(url: str) -> None:
        client = nats.NATS()
        try:
            await client.connect(
                url, error_cb=ignore_error, connect_timeout=2, allow_reconnect=False,
                max_reconnect_attempts=1, reconnect_time_wait=0.01,
            )  # fmt: skip
        finally:
            await client.close()

    with serve_fault(fault, lambda _conn, _server: None) as (host, port):  # the server has the first word
        return caught(lambda: asyncio.run(connect(f"nats://{host}:{port}")))


# Databases ------------------------------------------------------------------------------------------


NEO4J_CODES = {
    "neo4j-transient": "Neo.TransientError.Transaction.DeadlockDetected",
    "400": "Neo.ClientError.Statement.SyntaxError",
    "401": "Neo.ClientError.Security.Unauthorized",
    "403": "Neo.ClientError.Security.Forbidden",
    "409": "Neo.ClientError.Schema.ConstraintValidationFailed",
    "503": "Neo.TransientError.General.DatabaseUnavailable",
}


def raise_with_neo4j(fault: str) -> BaseException:
    if fault in NEO4J_CODES:
        return neo4j.exceptions.Neo4jError._hydrate_neo4j(code=NEO4J_CODES[fault], message="because")

    def connect(url: str, **options: Any) -> None:
        with neo4j.GraphDatabase.driver(url, auth=("a", "b"), **options) as driver:
            driver.verify_connectivity()

    if fault == "timeout":
        with faults.unanswered() as server:
            return caught(lambda: connect(f"bolt://{faults.HOST}:{server.port}", connection_timeout=0.1))
    with serve_fault(fault) as (host, port):
        return caught(connect, f"{'bolt+s' if fault == 'tls' else 'bolt'}://{host}:{port}")


#: The SQLSTATE that PostgreSQL answers with.
SQLSTATES = {
    "400": "42601", "401": "28P01", "403": "42501", "404": "42P01", "409": "23505", "422": "22P02",
    "500": "58000", "503": "57P03", "timeout": "57014",
}  # fmt: skip


def refuse_tls(conn: socket.socket, server: faults.Server) -> None:
    """Answer PostgreSQL's SSLRequest with "no"."""
    server.requests.append(conn.recv(8))
    conn.sendall(b"N")


def accept_tls(conn: socket.socket, server: faults.Server) -> None:
    """Answer PostgreSQL's SSLRequest with "yes", and then with a certificate that no client trusts."""
    server.requests.append(conn.recv(8))
    conn.sendall(b"S")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert(faults.HOST).configure_cert(context)
    context.wrap_socket(conn, server_side=True)


def raise_with_psycopg(fault: str) -> BaseException:
    if fault in SQLSTATES:
        return psycopg.errors.lookup(SQLSTATES[fault])("because")
    if fault == "tls":
        with faults.serve(refuse_tls) as server:
            return caught(psycopg.connect, f"host={faults.HOST} port={server.port} sslmode=require")
    with serve_fault(fault) as (host, port):
        return caught(psycopg.connect, f"host={host} port={port} sslmode=disable gssencmode=disable")


def raise_with_asyncpg(fault: str) -> BaseException:
    if fault in SQLSTATES:
        return asyncpg.PostgresError.new({"C": SQLSTATES[fault], "M": "because", "S": "ERROR"})

    def connect(host: str, port: int, tls: object) -> None:
        asyncio.run(asyncpg.connect(host=host, port=port, user="u", ssl=tls, timeout=5))

    if fault == "tls":
        with faults.serve(accept_tls) as server:
            return caught(connect, faults.HOST, server.port, clients.TLS)
    with serve_fault(fault) as (host, port):
        return caught(connect, host, port, False)


def raise_with_redis(fault: str) -> BaseException:
    answers = {
        "401": "WRONGPASS invalid username-password pair", "403": "NOPERM this user has no permissions",
        "400": "ERR unknown command", "503": "LOADING Redis is loading the dataset in memory",
    }  # fmt: skip
    if fault in answers:
        return BaseParser.parse_error(answers[fault])

    def ping(host: str, port: int, **options: Any) -> None:
        client = redis.Redis(host, port, retry=Retry(NoBackoff(), 0), **options)
        with contextlib.closing(client):
            client.ping()

    patience = SHORT if fault == "timeout" else clients.PATIENCE
    with serve_fault(fault) as (host, port):
        return caught(lambda: ping(host, port, socket_timeout=patience, ssl=fault == "tls"))


def lock_database(connect: Callable[[str], Any]) -> BaseException:
    """Return the exception of a second writer while a first holds the lock."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "x.db")
        holder, other = connect(path), connect(path)
        try:
            holder.execute("create table t (x)")
            holder.execute("begin immediate")
            return caught(other.execute, "insert into t values (1)")
        finally:
            other.close()
            holder.close()


def raise_with_sqlite3(fault: str) -> BaseException:
    if fault == "400":
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            return caught(connection.execute, "selec 1")
    return lock_database(lambda path: sqlite3.connect(path, timeout=0, isolation_level=None))


def raise_with_apsw(fault: str) -> BaseException:
    if fault == "400":
        with contextlib.closing(apsw.Connection(":memory:")) as connection:
            return caught(connection.execute, "selec 1")
    return lock_database(apsw.Connection)


def raise_with_sqlalchemy(fault: str) -> BaseException:
    if fault in ("sqlite-busy", "400"):
        inner = raise_with_sqlite3(fault)
        return sa.exc.DBAPIError.instance("insert", {}, inner, sqlite3.Error)  # type: ignore[arg-type]
    if fault in SQLSTATES:
        inner = raise_with_psycopg(fault)
        return sa.exc.DBAPIError.instance("insert", {}, inner, psycopg.Error)  # type: ignore[arg-type]
    with serve_fault(fault) as (host, port):
        engine = sa.create_engine(
            f"postgresql+psycopg://{host}:{port}/x?sslmode=disable&gssencmode=disable",
            poolclass=sa.NullPool,
        )
        return caught(lambda: engine.connect().close())


# Python itself, and validators ----------------------------------------------------------------------


def raise_with_python(fault: str) -> BaseException:
    def talk(host: str, port: int) -> None:
        with socket.create_connection((host, port), timeout=clients.PATIENCE) as line:
            if fault == "tls":
                clients.TLS.wrap_socket(line, server_hostname=faults.HOST).close()
            line.settimeout(0.05 if fault == "timeout" else clients.PATIENCE)
            line.sendall(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
            line.recv(1)

    with serve_fault(fault) as (host, port):
        return caught(talk, host, port)


class Point(pydantic.BaseModel):
    """A model that the validators are given wrong data for."""

    x: int


class PointStruct(msgspec.Struct):
    """The same for msgspec."""

    x: int


def raise_with_pystac(_fault: str) -> BaseException:
    return pystac.STACValidationError("Validation failed for Item x")


SCHEMA_VALIDATORS: dict[str, Provoke] = {
    "pydantic": lambda _: caught(Point.model_validate, {"x": "no number"}),
    "msgspec": lambda _: caught(lambda: msgspec.json.decode(b'{"x": "no number"}', type=PointStruct)),
    "jsonschema-rs": lambda _: caught(jsonschema_rs.validate, {"type": "integer"}, "no number"),
    "pystac": raise_with_pystac,
}

PROVOCATIONS: dict[str, Provoke] = {
    "Python sockets": raise_with_python,
    **{
        name: raise_over_http(clients.CLIENTS[name])
        for name in ("urllib", "http.client", "httpx", "httpx2", "requests", "urllib3", "aiohttp")
    },
    "botocore": raise_with_botocore,
    "azure-core": raise_over_http(test_azure.blocking),
    "google-api-core": raise_with_google,
    "openai": raise_with_model_client(openai.OpenAI, lambda it: it.chat.completions.create(**QUESTION)),
    "anthropic": raise_with_model_client(
        anthropic.Anthropic, lambda it: it.messages.create(**QUESTION, max_tokens=1)
    ),
    "pystac-client": raise_with_pystac_client,
    "grpc": raise_with_grpc,
    "nats-py": raise_with_nats,
    "neo4j": raise_with_neo4j,
    "psycopg": raise_with_psycopg,
    "asyncpg": raise_with_asyncpg,
    "redis": raise_with_redis,
    "SQLAlchemy": raise_with_sqlalchemy,
    "sqlite3": raise_with_sqlite3,
    "apsw": raise_with_apsw,
    **SCHEMA_VALIDATORS,
}


def raise_fault(client: str, fault: str) -> BaseException:
    """Return the exception that a client library raises at a fault."""
    return PROVOCATIONS[client](fault)
