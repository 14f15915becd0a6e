"""Classifying never raises, for any exception object."""

from __future__ import annotations

import gc
import sys
from typing import Any

import aiohttp
import asyncpg
import azure.core.exceptions
import botocore.exceptions
import google.api_core.exceptions
import google.auth.exceptions
import grpc
import httpx
import nats.js.errors
import neo4j.exceptions
import openai
import psycopg
import pystac_client.exceptions
import pytest
import redis.exceptions
import requests
import sqlalchemy.exc
import tenacity
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from oncemore.classifiers.classify import classify, classify_status
from oncemore.errors import PolicyViolation
from oncemore.policy.model import KINDS, Failure

#: The attributes that some rule reads.
READ = (
    "args", "body", "cause", "code", "connection_invalidated", "description", "details", "err_code", "errno",
    "error_code", "exceptions", "extendedresult", "grpc_status_code", "headers", "inner_exception",
    "is_retryable", "kwargs", "last_attempt", "orig", "original_exception", "pgcode", "pgconn", "reason",
    "response", "retryable", "sqlite_errorcode", "sqlstate", "status", "status_code", "trailing_metadata",
    "type",
)  # fmt: skip


def explode(*_: object) -> Any:
    raise RuntimeError("hostile")


def hostile(base: type[BaseException], **more: object) -> BaseException:
    """An instance of a subclass of `base` on which every attribute that a rule reads raises."""
    body: dict[str, object] = dict.fromkeys(
        (*READ, "__cause__", "__context__", "__traceback__"), property(explode)
    )
    body |= dict.fromkeys(("__str__", "__repr__", "__eq__", "__bool__", "__len__"), explode)
    cls = type("Hostile", (base,), {**body, "__hash__": object.__hash__, **more})
    return cls.__new__(cls)


BASES = [
    Exception, RuntimeError, OSError, TimeoutError, urllib3.exceptions.MaxRetryError,
    urllib3.exceptions.ResponseError, urllib3.exceptions.ProtocolError, httpx.ConnectError, httpx.ReadError,
    httpx.HTTPStatusError, httpx.RemoteProtocolError, requests.HTTPError, requests.ConnectionError,
    aiohttp.ClientResponseError, aiohttp.ClientOSError, aiohttp.ClientPayloadError,
    botocore.exceptions.ClientError, botocore.exceptions.EndpointConnectionError, psycopg.OperationalError,
    psycopg.Error, nats.js.errors.APIError, nats.errors.Error, tenacity.RetryError, PolicyViolation,
    asyncpg.PostgresError, asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError,
    azure.core.exceptions.HttpResponseError, azure.core.exceptions.ServiceRequestError,
    google.api_core.exceptions.ServiceUnavailable, google.auth.exceptions.RefreshError, grpc.RpcError,
    neo4j.exceptions.TransientError, neo4j.exceptions.ServiceUnavailable, openai.APIStatusError,
    openai.APIError, pystac_client.exceptions.APIError, redis.exceptions.ResponseError,
    redis.exceptions.ConnectionError, redis.exceptions.LockError, sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.StatementError,
]  # fmt: skip


@pytest.mark.parametrize("base", BASES, ids=lambda base: f"{base.__module__}.{base.__name__}")
def test_an_object_whose_attributes_all_raise_still_gets_an_answer(base: type[BaseException]) -> None:
    found = classify(hostile(base), 0.0)
    assert found.kind in KINDS
    assert found.code


def test_a_group_whose_leaves_cannot_be_read_is_unmatched() -> None:
    class Group(ExceptionGroup[Exception]):
        @property
        def exceptions(self) -> tuple[Exception, ...]:
            return explode()

    assert classify(Group("x", [ConnectionError()]), 0.0).rule == "default:unmatched"


def test_a_metaclass_that_raises_is_survived() -> None:
    class NoHash(type):
        __hash__ = explode  # type: ignore[assignment]

    class NoName(type):
        __name__ = property(explode)  # type: ignore[assignment]

    class A(Exception, metaclass=NoHash):
        pass

    class B(Exception, metaclass=NoName):
        pass

    assert classify(A(), 0.0) == Failure("permanent", "maybe", None, "EXC_A", "default:unmatched")
    assert classify(B(), 0.0) == Failure("permanent", "maybe", None, "EXC_", "default:unmatched")


def test_a_class_with_a_strange_module_or_name_is_still_what_its_base_is() -> None:
    nameless = type("Lost", (ConnectionResetError,), {"__module__": None})
    assert classify(nameless(), 0.0).code == "CONNECTION_RESET"
    strange = type("bad\nname " + "x" * 10_000, (Exception,), {})
    assert classify(strange(), 0.0).code.startswith("EXC_bad_name_xxx")
    assert len(classify(strange(), 0.0).code) <= 84


def test_an_endless_chain_ends() -> None:
    first, second = RuntimeError(), RuntimeError()
    first.__cause__, second.__cause__ = second, first
    assert classify(first, 0.0).rule == "default:unmatched"
    third = httpx.ConnectError("x")
    third.__cause__ = third
    assert classify(third, 0.0).sent == "no"
    fourth = requests.ConnectionError()
    fourth.args = (fourth,)
    assert classify(fourth, 0.0).kind in KINDS


def test_classifying_on_an_almost_full_stack_gives_an_answer() -> None:
    error = RuntimeError()
    error.__cause__ = httpx.ConnectError("x")

    def dive() -> Failure:
        try:
            return dive()
        except RecursionError:
            return classify(error, 0.0)

    limit = sys.getrecursionlimit()
    gc.collect()
    gc.disable()  # other tests' garbage has finalisers, and they need a stack too
    sys.setrecursionlimit(400)
    try:
        assert dive().kind in KINDS
    finally:
        sys.setrecursionlimit(limit)
        gc.enable()


SMALL = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4)
VALUES = st.recursive(
    SMALL, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SMALL, inner, max_size=3), max_leaves=8
)
NAMES = st.sampled_from(READ)


@st.composite
def errors(draw: st.DrawFn) -> BaseException:
    """An exception of some known family, with anything at all in the places that rules read."""
    base = draw(st.sampled_from([*BASES, ExceptionGroup]))
    if base is ExceptionGroup:
        return ExceptionGroup("x", [ConnectionError(), draw(errors())])  # type: ignore[list-item]
    cls = type("Odd", (base,), {"__init__": lambda self: None})
    error: BaseException = cls.__new__(cls)
    for name, value in draw(st.dictionaries(NAMES, VALUES, max_size=4)).items():
        try:
            setattr(error, name, value)
        except (AttributeError, TypeError, ValueError, DeprecationWarning):
            continue
    error.args = tuple(draw(st.lists(VALUES, max_size=3)))
    error.__cause__ = draw(st.none() | errors())
    return error


@pytest.mark.unmeasured
@given(errors(), st.floats(allow_nan=False, allow_infinity=False))
def test_nothing_in_an_exception_makes_classifying_raise(error: BaseException, now: float) -> None:
    found = classify(error, now)
    assert found.kind in KINDS
    assert found.sent in ("no", "maybe")
    assert found.retry_after is None or found.retry_after >= 0
    assert found.code
    assert ":" in found.rule


@pytest.mark.unmeasured
@given(st.integers(400, 1000), st.dictionaries(SMALL, SMALL, max_size=4), st.floats(0, 1e10))
def test_no_headers_make_a_status_raise(status: int, headers: dict[object, object], now: float) -> None:
    found = classify_status(status, headers, now)
    assert found is not None
    assert found.code == f"HTTP_{status}"
