"""Idempotent results: computed once, recorded as data, claimed before the work begins; in every store."""

from __future__ import annotations

import asyncio
import copy
from itertools import count
from threading import Barrier, Lock, Thread
from typing import TYPE_CHECKING, Any

import pytest
import trio

import oncemore
from oncemore.audit import AuditStream
from oncemore.errors import UsageError
from oncemore.log.postgres.store import PostgresStore
from oncemore.profiles.exoarmur import (
    RECORDED_NONE,
    IdempotencyManager,
    IdempotencyRecord,
    InProgress,
    ResultUnavailable,
    RetryError,
    RetryManager,
    RetryPolicy,
)
from oncemore.profiles.exoarmur.idempotency import _KeyClaim, _wait_for_claim
from oncemore.profiles.exoarmur.record import MAX_CHARACTERS, NO_OWNER
from tests.profiles.test_exoarmur import run, told, work_of
from tests.retries.colours import Script
from tests.servers import nats, postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncemore import Engine
    from oncemore.testing import FakeClock

IDEMPOTENCY = (
    "event_type retry_category operation idempotency_key action tenant_id correlation_id trace_id timestamp"
)

names = count()


@pytest.fixture(autouse=True)
def clock(instant_retries: FakeClock) -> Iterator[FakeClock]:
    return instant_retries  # type: ignore[return-value]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def jetstream() -> Iterator[str]:
    try:
        with nats.running(jetstream=True) as (address, _):
            yield address
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(
    autouse=True,
    params=[
        *("memory", "log in memory", "sqlite", "postgresql"),
        pytest.param("jetstream", marks=pytest.mark.req("IDEM-10")),
    ],
)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine | None]:
    """The store of the records: all tests here hold for every one (IDEM-10)."""
    if request.param == "memory":
        yield None
        return
    if request.param == "postgresql":
        url, schema = request.getfixturevalue("server"), f"results_{next(names)}"
        made = oncemore.Engine(lambda: PostgresStore(url, schema), url)
    elif request.param == "jetstream":
        made = oncemore.open(f"{request.getfixturevalue('jetstream')}/results_{next(names)}")
    else:
        made = oncemore.open("memory:" if request.param == "log in memory" else tmp_path / "log.db")
    with made:
        yield made


@pytest.fixture
def manager(engine: Engine | None) -> RetryManager:
    return RetryManager(IdempotencyManager(engine))  # also for threads, which have no engine around them


def write(manager: RetryManager, script: Script, key: str = "k", **more: Any) -> Any:
    return run(manager, "KV_PUT", script, idempotency_key=key, operation="Store kill switch state", **more)


@pytest.mark.req("API-3")
def test_the_manager_can_be_used_directly() -> None:
    manager = IdempotencyManager()
    key = manager.compute_idempotency_key("kill_switch_update", "tenant-123", "corr-456", {"value": "on"})

    async def main() -> None:
        assert await manager.check_idempotency(key) is None
        await manager.record_result(key, {"revision": 7}, metadata={"by": "operator"})
        assert await manager.check_idempotency(key) == {"revision": 7}
        record = await manager.describe(key)
        assert isinstance(record, IdempotencyRecord)
        assert (record.metadata, record.recorded_at) == ({"by": "operator"}, 1_800_000_000.0)
        assert await manager.clear_idempotency(key) is True
        assert await manager.clear_idempotency(key) is False
        assert await manager.check_idempotency(key) is None

    asyncio.run(main())


@pytest.mark.req("API-3")
def test_the_flow_of_the_document_does_the_work_once(manager: RetryManager) -> None:
    """As printed: check for a result, do the work, record its result."""
    idempotency_manager, done = manager.idempotency_manager, []

    async def do_once(key: str, result: Any) -> Any:
        cached = await idempotency_manager.check_idempotency(key)
        if cached is not None:
            return cached
        done.append(key)
        await idempotency_manager.record_result(key, result)
        return result

    async def main() -> None:
        assert await do_once("k-1", {"revision": 7}) == await do_once("k-1", {"revision": 7})
        assert await do_once("k-2", None) is None
        assert await do_once("k-2", None) is RECORDED_NONE
        assert await do_once("k-3", False) is await do_once("k-3", False) is False
        assert (await idempotency_manager.describe("k-2")).result is None  # type: ignore[union-attr]
        assert await idempotency_manager.describe("k-4") is None

    asyncio.run(main())
    assert done == ["k-1", "k-2", "k-3"]
    assert RECORDED_NONE is not None
    assert copy.deepcopy(RECORDED_NONE) is RECORDED_NONE
    assert repr(RECORDED_NONE) == "RECORDED_NONE"


def test_the_monitoring_of_the_document_works_as_printed(manager: RetryManager) -> None:
    write(manager, Script(OSError(), "value"))
    threshold, alerts = 0, []
    retry_events = manager.audit.filter(event_type="retry_attempt")
    if retry_events.rate_per_minute > threshold:
        alerts.append("High retry rate detected")
    assert alerts


@pytest.mark.req("IDEM-5", "AUDIT-3", "TEST-3")
def test_a_second_operation_with_one_key_makes_no_call_and_one_hit(manager: RetryManager) -> None:
    first, second = Script("value"), Script("another")
    assert write(manager, first) == write(manager, second) == "value"
    assert (first.calls, second.calls) == (1, 0)
    events = list(manager.audit.filter(event_type="idempotency"))
    assert [event.to_dict()["action"] for event in events] == ["record", "hit"]
    assert [list(event.to_dict()) for event in events] == [IDEMPOTENCY.split()] * 2
    assert {event.to_dict()["idempotency_key"] for event in events} == {"k"}
    assert told(manager.audit) == [("retry_succeeded", 1), ("idempotency", "record"), ("idempotency", "hit")]


@pytest.mark.req("IDEM-6")
def test_a_failure_is_never_recorded(manager: RetryManager) -> None:
    with pytest.raises(RetryError):
        write(manager, Script(OSError()))
    assert asyncio.run(manager.idempotency_manager.check_idempotency("k")) is None
    script = Script("value")
    assert write(manager, script) == "value"
    assert script.calls == 1


@pytest.mark.req("IDEM-7")
@pytest.mark.parametrize("value", [None, 0, "", False, [], {}], ids=repr)
def test_a_recorded_none_is_a_hit_and_so_is_every_other_falsy_result(
    manager: RetryManager, value: object
) -> None:
    script = Script(value)
    assert write(manager, script) == write(manager, script) == value
    assert script.calls == 1


@pytest.mark.req("IDEM-8")
def test_a_record_has_metadata_and_can_be_cleared_which_is_audited(manager: RetryManager) -> None:
    script = Script("first", "second")
    ids = {"tenant_id": "t", "correlation_id": "c", "trace_id": "x"}
    write(manager, script, **ids)
    assert asyncio.run(manager.idempotency_manager.clear_idempotency("k")) is True
    cleared = manager.audit.newest(1)[0].to_dict()
    assert cleared["event_type"] == "idempotency_cleared"
    assert {name: cleared[name] for name in ids} == ids
    assert (cleared["retry_category"], cleared["operation"], cleared["idempotency_key"]) == (
        "RETRY_KV_PUT", "Store kill switch state", "k",
    )  # fmt: skip
    assert write(manager, script, **ids) == "second"
    assert script.calls == 2
    kept = IdempotencyManager()
    metadata = {"by": "operator", "nested": {"list": [1, None, 2.5]}}
    asyncio.run(kept.record_result("another", 1, metadata))
    assert asyncio.run(kept.describe("another")).metadata == metadata  # type: ignore[union-attr]


def test_clearing_an_unknown_key_publishes_no_event(manager: RetryManager) -> None:
    assert asyncio.run(manager.idempotency_manager.clear_idempotency("k")) is False
    asyncio.run(manager.idempotency_manager.record_result("direct", 1))
    assert asyncio.run(manager.idempotency_manager.clear_idempotency("direct")) is True
    assert [event.to_dict()["retry_category"] for event in manager.audit] == [""]


def test_a_record_cannot_be_changed_through_its_input_or_result(manager: RetryManager) -> None:
    given = {"list": [1]}
    first = write(manager, Script(given))
    given["list"].append(2)
    first["list"].append(3)
    assert write(manager, Script()) == {"list": [1]}
    assert write(manager, Script()) is not write(manager, Script())


@pytest.mark.req("IDEM-18")
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda: 1, "the result is of type function, which JSON would change"),
        ((1, 2), "the result is of type tuple"),
        ({"a": [{1}]}, r"the result\.a\[0\] is of type set"),
        ({1: 2}, "the result has the key 1, which is not a string"),
        (float("nan"), "the result is nan, which JSON cannot hold"),
        (10**5000, "the result has no JSON form"),
        ("x" * (MAX_CHARACTERS + 1), "the result takes 1,000,003 characters, and 1,000,000 is the most"),
    ],
    ids=["function", "tuple", "set", "key", "nan", "digits", "long"],
)
def test_work_whose_result_cannot_be_kept_is_never_repeated(
    manager: RetryManager, value: Any, why: str
) -> None:
    script = Script(value)
    with pytest.raises(
        ResultUnavailable, match=f"the work of key k was done, but its result is not available: {why}"
    ) as told_first:
        write(manager, script)
    assert told_first.value.value is value, "the caller whose call did it gets it with the error"
    with pytest.raises(ResultUnavailable, match=why) as told_later:
        write(manager, script)
    assert told_later.value.value is None
    assert script.calls == 1
    record = asyncio.run(manager.idempotency_manager.describe("k"))
    assert isinstance(record, IdempotencyRecord)
    assert record.text is None
    assert [event.to_dict()["action"] for event in manager.audit.filter(event_type="idempotency")] == [
        "record",
        "hit",
    ]


def test_a_result_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="the result cannot be kept: the result has no JSON form"):
        asyncio.run(IdempotencyManager().record_result("k", endless))


def test_stored_bytes_are_json(manager: RetryManager) -> None:
    write(manager, Script({"a": [1, 2.5, "é\ud800", None, True]}))
    record = asyncio.run(manager.idempotency_manager.describe("k"))
    assert isinstance(record, IdempotencyRecord)
    assert record.text == '{"a": [1, 2.5, "\\u00e9\\ud800", null, true]}'


def test_another_result_for_a_key_is_refused_and_an_equal_one_accepted() -> None:
    manager = IdempotencyManager()

    async def main() -> None:
        await manager.record_result("k", 1)
        await manager.record_result("k", 1)
        with pytest.raises(UsageError, match="key k has another result already; clear the key first"):
            await manager.record_result("k", 2)
        with pytest.raises(UsageError, match="metadata cannot be kept"):
            await manager.record_result("k2", 2, {"when": object()})

    asyncio.run(main())


@pytest.mark.parametrize("key", ["", "x" * 501, 7, None])
def test_an_invalid_key_is_refused(key: Any) -> None:
    with pytest.raises(UsageError, match="an idempotency key is a text of 1 to 500 characters"):
        asyncio.run(IdempotencyManager().check_idempotency(key))


def test_an_invalid_key_is_refused_with_an_event(manager: RetryManager) -> None:
    script = Script(1)
    with pytest.raises(UsageError, match="an idempotency key is a text"):
        write(manager, script, key="")
    assert script.calls == 0
    assert told(manager.audit) == [("retry_refused", 0, "key_refused")]


# Concurrency.


def test_concurrent_callers_of_one_key_make_one_call_and_get_one_result(manager: RetryManager) -> None:
    script = Script(OSError("first"), {"revision": 7})

    async def slow() -> Any:
        await asyncio.sleep(0.01)
        return script.turn()

    async def main() -> list[Any]:
        calls = [manager.execute_with_retry("KV_PUT", "write", slow, idempotency_key="k") for _ in range(50)]
        return await asyncio.gather(*calls)

    assert asyncio.run(main()) == [{"revision": 7}] * 50
    assert script.calls == 2
    actions = [event.to_dict()["action"] for event in manager.audit.filter(event_type="idempotency")]
    assert sorted(actions) == ["hit"] * 49 + ["record"]


def test_concurrent_callers_in_several_threads_and_event_loops_make_one_call(manager: RetryManager) -> None:
    script = Script("value")
    barrier = Barrier(4)
    results: list[Any] = []

    async def slow(sleep: Callable[[float], Any]) -> Any:
        await sleep(0.05)
        return script.turn()

    def caller(run_loop: Callable[[Any], Any], sleep: Callable[[float], Any]) -> None:
        async def main() -> Any:
            barrier.wait()
            return await manager.execute_with_retry(
                "KV_PUT", "write", lambda: slow(sleep), idempotency_key="k"
            )

        results.append(run_loop(main))

    loops: list[tuple[Any, Any]] = [
        (lambda main: asyncio.run(main()), asyncio.sleep),
        (trio.run, trio.sleep),
    ] * 2
    threads = [Thread(target=caller, args=loop) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["value"] * 4
    assert script.calls == 1


def test_if_running_raise_gives_in_progress(manager: RetryManager) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def slow() -> int:
            begun.set()
            await asyncio.sleep(0.01)
            return 1

        first = asyncio.create_task(manager.execute_with_retry("KV_PUT", "write", slow, idempotency_key="k"))
        await begun.wait()
        with pytest.raises(InProgress, match="another caller is doing the work of key k now"):
            await manager.execute_with_retry("KV_PUT", "write", slow, idempotency_key="k", if_running="raise")
        with pytest.raises(InProgress, match="it has no record to clear yet"):
            await manager.idempotency_manager.clear_idempotency("k")
        assert await first == 1

    asyncio.run(main())
    assert told(manager.audit)[0] == ("retry_refused", 0, "in_progress")


@pytest.mark.parametrize(("error", "raised"), [(OSError("down"), RetryError), (KeyError("bug"), KeyError)])
def test_waiting_callers_share_the_failure_and_make_no_attempts(
    manager: RetryManager, error: Exception, raised: type[Exception]
) -> None:
    script = Script(error)
    policy = RetryPolicy(non_retryable_exceptions=[KeyError])

    async def slow() -> Any:
        await asyncio.sleep(0.01)
        return script.turn()

    async def main() -> list[Any]:
        calls = [
            manager.execute_with_retry("KV_PUT", "write", slow, policy, idempotency_key="k") for _ in range(5)
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    failures = asyncio.run(main())
    assert [type(failure) for failure in failures] == [raised] * 5
    assert script.calls == (3 if raised is RetryError else 1)
    if raised is RetryError:
        assert len({id(failure) for failure in failures}) == 5
        assert {id(failure.__cause__) for failure in failures} == {id(error)}
    shared = [event for event in told(manager.audit) if event == ("retry_refused", 0, "same_key_failed")]
    assert len(shared) == 4


def test_after_a_cancelled_first_caller_the_next_does_the_work(manager: RetryManager) -> None:
    script = Script("value")

    async def main() -> None:
        begun = asyncio.Event()

        async def hang() -> None:
            begun.set()
            await asyncio.sleep(3600)

        first = asyncio.create_task(manager.execute_with_retry("KV_PUT", "write", hang, idempotency_key="k"))
        await begun.wait()
        waiting = [
            asyncio.create_task(
                manager.execute_with_retry("KV_PUT", "write", work_of(script), idempotency_key="k")
            )
            for _ in range(3)
        ]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        first.cancel()
        results = await asyncio.gather(first, *waiting, return_exceptions=True)
        assert [type(one) for one in results] == [asyncio.CancelledError, asyncio.CancelledError, str, str]

    asyncio.run(main())
    assert script.calls == 1


def test_a_waiting_caller_with_a_closed_loop_does_no_harm(manager: RetryManager) -> None:
    script = Script("value")

    async def main() -> None:
        begun = asyncio.Event()

        async def slow() -> Any:
            begun.set()
            await asyncio.sleep(0.05)
            return script.turn()

        def elsewhere() -> None:
            loop = asyncio.new_event_loop()
            task = loop.create_task(
                manager.execute_with_retry("KV_PUT", "write", work_of(script), idempotency_key="k")
            )
            loop.run_until_complete(asyncio.sleep(0.01))
            task.cancel()
            loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            loop.close()

        first = asyncio.create_task(manager.execute_with_retry("KV_PUT", "write", slow, idempotency_key="k"))
        await begun.wait()
        thread = Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert await first == "value"

    asyncio.run(main())
    assert script.calls == 1


def test_a_claim_that_has_ended_is_not_waited_for() -> None:
    claim = _KeyClaim(NO_OWNER)
    claim.is_over = True
    asyncio.run(_wait_for_claim(claim, Lock()))
    trio.run(_wait_for_claim, claim, Lock())
    assert claim.callbacks == []


def test_work_that_calls_itself_with_its_own_key_is_refused(
    manager: RetryManager,
) -> None:
    async def outer() -> Any:
        return await manager.execute_with_retry("KV_PUT", "write", work_of(Script(1)), idempotency_key="k")

    with pytest.raises(UsageError, match="calls itself with the same key"):
        asyncio.run(manager.execute_with_retry("KV_PUT", "write", outer, idempotency_key="k"))


# Tenants, limits.


@pytest.mark.req("SEC-8")
def test_tenants_have_keys_and_results_of_their_own(manager: RetryManager) -> None:
    compute = manager.idempotency_manager.compute_idempotency_key
    keys = {tenant: compute("write", tenant, "c", {"value": 1}) for tenant in ("a", "b")}
    assert keys["a"] != keys["b"]
    results = {tenant: write(manager, Script(tenant), key, tenant_id=tenant) for tenant, key in keys.items()}
    assert results == {"a": "a", "b": "b"}
    script = Script("mine")
    with pytest.raises(UsageError, match=r"belongs to another tenant; put the tenant into the key"):
        write(manager, script, keys["a"], tenant_id="b")
    assert script.calls == 0
    assert told(manager.audit)[-1] == ("retry_refused", 0, "key_refused")


def test_a_tenant_cannot_wait_for_the_result_of_another_tenant(manager: RetryManager) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def slow() -> int:
            begun.set()
            await asyncio.sleep(0.01)
            return 1

        call = manager.execute_with_retry("KV_PUT", "w", slow, idempotency_key="k", tenant_id="a")
        first = asyncio.create_task(call)
        await begun.wait()
        with pytest.raises(UsageError, match="belongs to another tenant"):
            await manager.execute_with_retry("KV_PUT", "w", slow, idempotency_key="k", tenant_id="b")
        await first

    asyncio.run(main())


def test_a_directly_recorded_result_is_available_to_every_tenant(manager: RetryManager) -> None:
    asyncio.run(manager.idempotency_manager.record_result("k", "shared"))
    assert write(manager, Script(), tenant_id="a") == "shared"


def test_require_tenant_refuses_keys_without_a_tenant() -> None:
    manager = RetryManager(IdempotencyManager(require_tenant=True))
    with pytest.raises(UsageError, match="tenant_id is missing, and require_tenant is set"):
        manager.idempotency_manager.compute_idempotency_key("write")
    with pytest.raises(UsageError, match="tenant_id is missing"):
        write(manager, Script(1))
    assert write(manager, Script(1), tenant_id="a") == 1


def test_two_managers_may_share_results_and_the_first_gets_the_clearing_event() -> None:
    results = IdempotencyManager()
    first, second = RetryManager(results), RetryManager(results)
    assert write(first, Script("value")) == write(second, Script()) == "value"
    asyncio.run(results.clear_idempotency("k"))
    assert isinstance(first.audit, AuditStream)
    assert [len(one.audit.filter(event_type="idempotency_cleared")) for one in (first, second)] == [1, 0]
