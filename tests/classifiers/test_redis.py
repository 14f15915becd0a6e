"""Errors of a real Redis through redis-py, blocking and asynchronous."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.retry
import redis.cluster
import redis.multidb.exception
import redis.sentinel
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from oncemore.classifiers.classify import classify
from tests.classifiers.clients import caught
from tests.servers import faults
from tests.servers import redis as servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


@contextlib.contextmanager
def client(port: int, **options: Any) -> Iterator[redis.Redis]:
    """A client that tries once: redis-py retries by itself."""
    made = redis.Redis(faults.HOST, port, retry=Retry(NoBackoff(), 0), **options)
    try:
        yield made
    finally:
        made.close()


def ping(port: int, **options: Any) -> None:
    with client(port, **options) as made:
        made.ping()


def ping_awaiting(port: int, **options: Any) -> None:
    once = redis.asyncio.retry.Retry(NoBackoff(), 0)

    async def main() -> None:
        made = redis.asyncio.Redis(host=faults.HOST, port=port, retry=once, **options)
        try:
            await made.ping()
        finally:
            await made.aclose()

    asyncio.run(main())


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    try:
        with servers.running() as found:
            yield found
    except servers.NoRedis as reason:
        pytest.skip(str(reason))


@pytest.fixture
def db(port: int) -> Iterator[redis.Redis]:
    with client(port) as made:
        made.flushall()
        made.set("word", "x")
        yield made


@contextlib.contextmanager
def set_to(db: redis.Redis, name: str, value: str) -> Iterator[None]:
    before = db.config_get(name)[name]
    db.config_set(name, value)
    try:
        yield
    finally:
        db.config_set(name, before)


COMMANDS = {
    ("lpush", "word", "1"): ("permanent", "no", "REDIS_WRONGTYPE"),
    ("incr", "word"): ("permanent", "no", "REDIS_ERR"),
    ("nonsense",): ("permanent", "no", "REDIS_ERR"),
    ("evalsha", "a" * 40, "0"): ("permanent", "no", "REDIS_NOSCRIPT"),
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_that_the_server_refuses_did_nothing(db: redis.Redis, command: tuple[str, ...]) -> None:
    assert facts(caught(db.execute_command, *command)) == COMMANDS[command]


def test_a_script_may_have_done_something_before_it_was_refused(db: redis.Redis) -> None:
    script = "redis.call('set', 'before', 1) return redis.call('lpush', 'word', 1)"
    kind, sent, code = facts(caught(db.eval, script, 0))
    assert (kind, sent) == ("permanent", "maybe")
    assert code in ("REDIS_ERR", "REDIS_WRONGTYPE")  # Redis 7 gives the inner word, older ones do not
    assert db.get("before") == b"1"


@pytest.mark.parametrize("transaction", [True, False])
def test_in_a_pipeline_the_commands_around_the_refused_one_worked(db: redis.Redis, transaction: bool) -> None:
    def act() -> None:
        with db.pipeline(transaction=transaction) as pipe:
            pipe.set("before", 1).lpush("word", 1).set("after", 1).execute()

    assert facts(caught(act)) == ("permanent", "maybe", "REDIS_WRONGTYPE")
    assert db.get("after") == b"1"


def test_a_watched_key_that_changed_is_a_conflict(db: redis.Redis, port: int) -> None:
    def act() -> None:
        with db.pipeline() as pipe, client(port) as other:
            pipe.watch("word")
            other.set("word", "changed")
            pipe.multi()
            pipe.set("word", "mine").execute()

    error = caught(act)
    assert isinstance(error, exceptions.WatchError)
    assert facts(error) == ("conflict", "no", "REDIS_WATCH")


def test_a_transaction_that_the_server_discards_is_a_conflict(db: redis.Redis) -> None:
    with client(db.connection_pool.connection_kwargs["port"], single_connection_client=True) as single:
        single.execute_command("multi")
        caught(single.execute_command, "set")
        error = caught(single.execute_command, "exec")
    assert isinstance(error, exceptions.ExecAbortError)
    assert facts(error) == ("conflict", "no", "REDIS_EXECABORT")


def test_a_server_without_memory_is_transient(db: redis.Redis) -> None:
    with set_to(db, "maxmemory", "1"):
        error = caught(db.set, "a", "x")
    assert isinstance(error, exceptions.OutOfMemoryError)
    assert facts(error) == ("transient", "no", "REDIS_OOM")


def test_a_primary_that_misses_its_replicas_takes_no_writes(db: redis.Redis) -> None:
    with set_to(db, "min-replicas-to-write", "1"):
        assert facts(caught(db.set, "a", "x")) == ("transient", "no", "REDIS_NOREPLICAS")


def test_a_replica_takes_no_writes_and_without_its_primary_not_even_reads(db: redis.Redis) -> None:
    db.replicaof(faults.HOST, 1)
    try:
        error = caught(db.set, "a", "x")
        assert isinstance(error, exceptions.ReadOnlyError)
        assert facts(error) == ("transient", "no", "REDIS_READONLY")
        with set_to(db, "replica-serve-stale-data", "no"):
            error = caught(db.get, "word")
        assert isinstance(error, exceptions.MasterDownError)
        assert facts(error) == ("transient", "no", "REDIS_MASTERDOWN")
    finally:
        db.replicaof("NO", "ONE")


def test_an_authentication_error_is_permanent_although_it_is_a_connection_error(
    db: redis.Redis, port: int
) -> None:
    db.execute_command("acl", "setuser", "guest", "on", ">secret", "+ping", "+hello", "+client")
    error = caught(lambda: ping(port, username="guest", password="wrong"))
    assert isinstance(error, exceptions.ConnectionError)
    assert facts(error) == ("permanent", "no", "REDIS_AUTHENTICATION")
    with client(port, username="guest", password="secret") as guest:
        error = caught(guest.set, "a", "x")
    assert isinstance(error, exceptions.NoPermissionError)
    assert facts(error) == ("permanent", "no", "REDIS_NOPERM")
    db.config_set("requirepass", "secret")
    try:
        assert facts(caught(ping, port)) == ("permanent", "no", "REDIS_AUTHENTICATION")
    finally:
        db.config_set("requirepass", "")


def test_a_server_with_too_many_clients_took_nothing(db: redis.Redis, port: int) -> None:
    db.ping()
    with set_to(db, "maxclients", "1"):
        assert facts(caught(ping, port)) == ("transient", "no", "REDIS_TOO_MANY_CLIENTS")


def test_a_pool_that_has_no_connection_left(port: int) -> None:
    full = redis.ConnectionPool(host=faults.HOST, port=port, max_connections=1)
    slow = redis.BlockingConnectionPool(host=faults.HOST, port=port, max_connections=1, timeout=0.05)
    for pool, code in ((full, "POOL_FULL"), (slow, "TIMEOUT_POOL")):
        taken = pool.get_connection()
        error = caught(redis.Redis(connection_pool=pool, retry=Retry(NoBackoff(), 0)).ping)
        assert facts(error) == ("transient", "no", code)
        pool.release(taken)
        pool.disconnect()


def test_a_lock_that_is_held_passes_and_one_that_was_lost_is_a_conflict(db: redis.Redis) -> None:
    mine = db.lock("lock", timeout=10)
    mine.acquire()
    other = db.lock("lock", blocking_timeout=0.02, sleep=0.01)
    assert facts(caught(other.__enter__)) == ("transient", "no", "REDIS_LOCK_HELD")
    db.delete("lock")
    assert facts(caught(mine.release)) == ("conflict", "maybe", "REDIS_LOCK_LOST")
    assert facts(caught(mine.release)) == ("permanent", "maybe", "EXC_LockError")


def test_a_connection_that_the_server_ended_may_have_taken_effect(db: redis.Redis, port: int) -> None:
    with client(port, single_connection_client=True) as single:
        number = single.client_id()
        db.execute_command("client", "kill", "id", number)
        error = caught(single.set, "a", "x")
    assert facts(error)[:2] == ("transient", "maybe")
    assert facts(error)[2] in ("CONNECTION_CLOSED", "CONNECTION_RESET")


def closes(conn: Any, _server: faults.Server) -> None:
    conn.recv(100)


def stalls(_conn: Any, server: faults.Server) -> None:
    server.stopping.wait(faults.PATIENCE)


def nonsense(conn: Any, _server: faults.Server) -> None:
    conn.recv(100)
    conn.sendall(b"what a lovely day\r\n")


@pytest.mark.parametrize("act", [ping, ping_awaiting])
def test_transport_errors_are_classified(act: Callable[..., None]) -> None:
    with faults.refusing() as server:
        assert facts(caught(act, server.port)) == ("transient", "no", "CONNECTION_REFUSED")
    with faults.unanswered() as server:
        error = caught(lambda: act(server.port, socket_connect_timeout=0.1))
    assert isinstance(error, exceptions.TimeoutError)
    assert facts(error) == ("transient", "no", "TIMEOUT_CONNECT")
    with faults.serve(stalls) as server:
        error = caught(lambda: act(server.port, socket_timeout=0.1))
    assert facts(error) == ("transient", "maybe", "TIMEOUT_READ")
    with faults.serve(closes) as server:
        assert facts(caught(act, server.port)) == ("transient", "maybe", "CONNECTION_CLOSED")
    with faults.serve(nonsense) as server:
        assert facts(caught(act, server.port)) == ("transient", "maybe", "PROTOCOL")
    with faults.serve(faults.plain_text) as server:
        error = caught(lambda: act(server.port, ssl=True))
    assert facts(error) == ("permanent", "no", "TLS")


def test_an_address_without_a_server_was_not_sent() -> None:
    once = Retry(NoBackoff(), 0)
    error = caught(redis.Redis("nohost.invalid", retry=once).ping)
    assert facts(error) == ("transient", "no", "DNS")
    error = caught(redis.Redis(unix_socket_path="/nonexistent", retry=once).ping)
    assert facts(error) == ("transient", "no", "CONNECTION_REFUSED")


#: What needs a cluster, a sentinel or luck, by the objects that redis-py makes.
MADE = {
    "loading": (
        exceptions.BusyLoadingError("Redis is loading the dataset in memory", status_code="LOADING"),
        ("transient", "no", "REDIS_LOADING"),
    ),
    "try again": (exceptions.TryAgainError("Multiple keys"), ("transient", "no", "REDIS_TRYAGAIN")),
    "cluster down": (exceptions.ClusterDownError("Hash slot"), ("transient", "no", "REDIS_CLUSTERDOWN")),
    "cross slot": (exceptions.ClusterCrossSlotError("Keys"), ("permanent", "no", "REDIS_CROSSSLOT")),
    "moved": (exceptions.MovedError("1 127.0.0.1:1"), ("permanent", "no", "REDIS_MOVED")),
    "too many moves": (exceptions.ClusterError("TTL exhausted."), ("transient", "maybe", "REDIS_CLUSTER")),
    "slot": (exceptions.SlotNotCoveredError("slot"), ("transient", "no", "REDIS_CLUSTERDOWN")),
    "no disk": (exceptions.ResponseError("MISCONF Redis is"), ("transient", "no", "REDIS_MISCONF")),
    "newer script": (
        exceptions.ResponseError("OOM command not allowed, script: 1f, on @user_script:1."),
        ("transient", "maybe", "REDIS_OOM"),
    ),
    "no primary": (redis.sentinel.MasterNotFoundError("x"), ("transient", "no", "CONNECTION_FAILED")),
    "authorization": (exceptions.AuthorizationError("x"), ("permanent", "no", "REDIS_AUTHENTICATION")),
    "data": (exceptions.DataError("Invalid input of type"), ("permanent", "no", "EXC_DataError")),
    "a cluster that is not there": (
        exceptions.RedisClusterException("Redis Cluster cannot be connected. Please provide"),
        ("transient", "no", "CONNECTION_FAILED"),
    ),
    "a wrong use of a cluster": (
        exceptions.RedisClusterException("RedisCluster requires at least one node"),
        ("permanent", "maybe", "EXC_RedisClusterException"),
    ),
    "unhealthy": (
        redis.multidb.exception.UnhealthyDatabaseException("x", None, exceptions.ReadOnlyError("x")),
        ("transient", "no", "REDIS_READONLY"),
    ),
    "while writing": (
        exceptions.ConnectionError("Error 32 while writing to socket. Broken pipe."),
        ("transient", "maybe", "CONNECTION_CLOSED"),
    ),
    "words only": (
        exceptions.ConnectionError("Connection not ready"),
        ("transient", "maybe", "CONNECTION_ERROR"),
    ),
    "a strange word": (exceptions.ResponseError("S3CR3T-token x"), ("permanent", "no", "REDIS_ERR")),
}


@pytest.mark.parametrize("case", MADE)
def test_errors_of_clusters_are_classified(case: str) -> None:
    error, expected = MADE[case]
    assert facts(error) == expected


def test_a_cluster_client_without_a_cluster_has_the_wrapped_code() -> None:
    with faults.refusing() as server:
        error = caught(lambda: redis.cluster.RedisCluster(host=faults.HOST, port=server.port))
    assert facts(error)[:2] == ("transient", "no")
