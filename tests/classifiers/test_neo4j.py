"""What the errors of the neo4j driver mean: as the server's messages make them, and by real lost wires.

There is no server on the package index; a server's error is made by the function in which the driver
makes it, and a small server speaks enough of Bolt to be left in the middle of a commit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import neo4j
import pytest
from neo4j import exceptions

from oncemore.classifiers.classify import classify
from oncemore.policy.verdict import matches_class
from tests.classifiers.clients import caught
from tests.servers import faults

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


def told(code: str) -> exceptions.Neo4jError:
    """Return the error that the driver makes of a server's answer."""
    return exceptions.Neo4jError._hydrate_neo4j(code=code, message="because")


ANSWERS = {
    "Neo.TransientError.Transaction.DeadlockDetected": ("transient", "maybe"),
    "Neo.TransientError.Transaction.Outdated": ("transient", "maybe"),
    "Neo.TransientError.Cluster.ReplicationFailure": ("transient", "maybe"),
    "Neo.TransientError.General.DatabaseUnavailable": ("transient", "no"),
    "Neo.TransientError.Request.NoThreadsAvailable": ("transient", "no"),
    "Neo.ClientError.Cluster.NotALeader": ("transient", "no"),
    "Neo.ClientError.General.ForbiddenOnReadOnlyDatabase": ("transient", "no"),
    "Neo.ClientError.Security.AuthorizationExpired": ("transient", "no"),
    "Neo.ClientError.Schema.ConstraintValidationFailed": ("permanent", "maybe"),
    "Neo.ClientError.Statement.SyntaxError": ("permanent", "no"),
    "Neo.ClientError.Security.Unauthorized": ("permanent", "no"),
    "Neo.ClientError.Security.Forbidden": ("permanent", "no"),
    "Neo.ClientError.Security.TokenExpired": ("permanent", "no"),
    "Neo.DatabaseError.General.UnknownError": ("permanent", "maybe"),
    "Neo.DatabaseError.Transaction.TransactionCommitFailed": ("permanent", "maybe"),
}


@pytest.mark.parametrize("code", ANSWERS)
def test_the_servers_code_is_kept_and_the_driver_says_whether_it_passes(code: str) -> None:
    error = told(code)
    assert facts(error) == (*ANSWERS[code], f"NEO4J:{code.removeprefix('Neo.')}")
    assert classify(error, 0.0).may_pass is error.is_retryable()


CLASSES = {
    exceptions.TransientError: "Neo.TransientError.Transaction.Outdated",
    exceptions.DatabaseUnavailable: "Neo.TransientError.General.DatabaseUnavailable",
    exceptions.NotALeader: "Neo.ClientError.Cluster.NotALeader",
    exceptions.ForbiddenOnReadOnlyDatabase: "Neo.ClientError.General.ForbiddenOnReadOnlyDatabase",
    exceptions.ConstraintError: "Neo.ClientError.Schema.ConstraintValidationFailed",
    exceptions.CypherSyntaxError: "Neo.ClientError.Statement.SyntaxError",
    exceptions.AuthError: "Neo.ClientError.Security.Unauthorized",
    exceptions.Forbidden: "Neo.ClientError.Security.Forbidden",
    exceptions.ClientError: "Neo.ClientError.Transaction.TransactionNotFound",
    exceptions.DatabaseError: "Neo.DatabaseError.General.UnknownError",
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_each_class_of_the_driver_is_what_its_base_is(cls: type[exceptions.Neo4jError]) -> None:
    error = told(CLASSES[cls])
    assert type(error) is cls
    assert classify(error, 0.0).may_pass is issubclass(cls, exceptions.TransientError)


@pytest.mark.parametrize("title", ["Terminated", "LockClientStopped"])
def test_codes_corrected_by_the_driver_are_used(title: str) -> None:
    error = told(f"Neo.TransientError.Transaction.{title}")
    assert facts(error) == ("permanent", "maybe", f"NEO4J:ClientError.Transaction.{title}")


def test_the_pattern_of_the_documents_fits_every_transient_code() -> None:
    pattern = ["NEO4J:TransientError.*"]
    assert matches_class(classify(told("Neo.TransientError.Transaction.DeadlockDetected"), 0.0), pattern)
    assert matches_class(classify(told("Neo.TransientError.General.OutOfMemoryError"), 0.0), pattern)
    assert not matches_class(classify(told("Neo.ClientError.Statement.SyntaxError"), 0.0), pattern)


def test_a_token_that_its_manager_renewed_passes() -> None:
    error: Any = told("Neo.ClientError.Security.TokenExpired")
    error._retryable = True  # what the driver's pool does
    assert facts(error)[0] == "transient"


def test_a_newer_servers_answer_with_a_cause_beneath_is_read_by_its_own_code() -> None:
    error = exceptions.Neo4jError._hydrate_gql(
        gql_status="40001",
        message="m",
        description="d",
        neo4j_code="Neo.TransientError.Transaction.Outdated",
        cause={"gql_status": "22000", "message": "m", "description": "d"},
    )
    assert error.__cause__ is not None
    assert facts(error) == ("transient", "maybe", "NEO4J:TransientError.Transaction.Outdated")


def test_a_code_of_any_shape_is_made_harmless() -> None:
    assert facts(told("a secret\nline"))[2] == "NEO4J:a_secret_line"
    assert len(facts(told("Neo." + "x" * 5000))[2]) < 120


#: The driver's own errors that need a cluster or a full pool.
MADE = {
    "incomplete commit": (
        exceptions.IncompleteCommit("Failed to read"),
        ("transient", "maybe", "NEO4J_INCOMPLETE_COMMIT"),
    ),
    "full pool": (
        exceptions.ConnectionAcquisitionTimeoutError("failed to obtain a connection"),
        ("transient", "no", "TIMEOUT_POOL"),
    ),
    "no writer": (exceptions.WriteServiceUnavailable("No write"), ("transient", "no", "CONNECTION_FAILED")),
    "no reader": (exceptions.ReadServiceUnavailable("No read"), ("transient", "no", "CONNECTION_FAILED")),
    "expired": (exceptions.SessionExpired("Failed to"), ("transient", "maybe", "CONNECTION_CLOSED")),
    "vague": (
        exceptions.ServiceUnavailable("Transaction failed"),
        ("transient", "maybe", "CONNECTION_CLOSED"),
    ),
    "configuration": (exceptions.ConfigurationError("x"), ("permanent", "no", "EXC_ConfigurationError")),
    "product": (
        exceptions.UnsupportedServerProduct("x"),
        ("permanent", "no", "EXC_UnsupportedServerProduct"),
    ),
    "result": (
        exceptions.ResultNotSingleError(None, "x"),
        ("permanent", "maybe", "EXC_ResultNotSingleError"),
    ),
}


@pytest.mark.parametrize("case", MADE)
def test_the_drivers_own_errors(case: str) -> None:
    error, expected = MADE[case]
    assert facts(error) == expected


def test_a_commit_without_an_answer_is_unknown_though_the_driver_calls_it_final() -> None:
    error = exceptions.IncompleteCommit("x")
    assert isinstance(error, exceptions.ServiceUnavailable)
    assert not error.is_retryable()
    assert classify(error, 0.0).sent == "maybe"


# Real wires.


def reach(url: str, **options: Any) -> None:
    with neo4j.GraphDatabase.driver(url, auth=("a", "b"), **options) as driver:
        driver.verify_connectivity()


def reach_awaiting(url: str, **options: Any) -> None:
    async def main() -> None:
        async with neo4j.AsyncGraphDatabase.driver(url, auth=("a", "b"), **options) as driver:
            await driver.verify_connectivity()

    asyncio.run(main())


def hangs_up(conn: socket.socket, _server: faults.Server) -> None:
    conn.recv(1000)


@pytest.mark.parametrize("act", [reach, reach_awaiting])
def test_nothing_is_sent_where_no_connection_could_be_made(act: Callable[..., None]) -> None:
    with faults.refusing() as server:
        at = f"{faults.HOST}:{server.port}"
        assert facts(caught(act, f"bolt://{at}")) == ("transient", "no", "CONNECTION_REFUSED")
        assert facts(caught(act, f"neo4j://{at}")) == ("transient", "no", "CONNECTION_REFUSED")
    assert facts(caught(act, "bolt://nohost.invalid:1")) == ("transient", "no", "DNS")
    with faults.serve(hangs_up) as server:
        error = caught(act, f"bolt://{faults.HOST}:{server.port}")
    assert facts(error)[:2] == ("transient", "no")
    with faults.unanswered() as server:
        error = caught(lambda: act(f"bolt://{faults.HOST}:{server.port}", connection_timeout=0.1))
    assert facts(error) == ("transient", "no", "TIMEOUT_CONNECT")
    with faults.serve(faults.plain_text) as server:
        error = caught(act, f"bolt+s://{faults.HOST}:{server.port}")
    assert facts(error) == ("permanent", "no", "TLS")


#: Bolt 5.4: two bytes of length, the message (SUCCESS with an empty map), two zero bytes.
SUCCESS = b"\x00\x03\xb1\x70\xa0\x00\x00"
COMMIT = b"\x00\x02\xb0\x12\x00\x00"


def until(last: bytes) -> faults.Behaviour:
    """Make a Bolt server that says yes to everything, and hangs up at a message that ends so."""

    def behave(conn: socket.socket, server: faults.Server) -> None:
        conn.recv(1000)
        conn.sendall(b"\x00\x00\x04\x05")
        while data := conn.recv(65536):
            server.requests.append(data)
            if data.endswith(last):
                return
            conn.sendall(SUCCESS * data.count(b"\x00\x00"))

    return behave


def work(server: faults.Server) -> None:
    with (
        neo4j.GraphDatabase.driver(f"bolt://{faults.HOST}:{server.port}", auth=("a", "b")) as driver,
        driver.session() as session,
    ):
        transaction = session.begin_transaction()
        transaction.run("create (:Thing)")
        transaction.commit()


def test_a_connection_lost_while_committing_is_unknown() -> None:
    with faults.serve(until(COMMIT)) as server:
        error = caught(work, server)
    assert isinstance(error, exceptions.IncompleteCommit)
    assert facts(error) == ("transient", "maybe", "NEO4J_INCOMPLETE_COMMIT")


def test_a_connection_lost_in_use_may_have_taken_effect() -> None:
    with faults.serve(until(b"\x00\x00")) as server:
        error = caught(work, server)
    assert isinstance(error, (exceptions.SessionExpired, exceptions.ServiceUnavailable))
    assert facts(error)[:2] == ("transient", "maybe")
