"""The exoarmur interface: the document's examples run, corrected where they cannot work."""

from __future__ import annotations

import asyncio
import gc
import pickle
import time
import warnings
from email.message import Message
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest
import trio

import oncemore
from oncemore.audit import AuditEvent, AuditStream
from oncemore.errors import PolicyError, PolicyWarning, UsageError
from oncemore.profiles.exoarmur import (
    IdempotencyManager,
    RetryCategory,
    RetryError,
    RetryManager,
    RetryPolicy,
    get_retry_manager,
)
from tests.retries.colours import Script

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.testing import FakeClock

RUN_ID = "0193a000-0000-7000-8000-000000000001"


@pytest.fixture(autouse=True)
def clock(instant_retries: FakeClock) -> Iterator[FakeClock]:
    return instant_retries  # type: ignore[return-value]


@pytest.fixture
def manager() -> RetryManager:
    return RetryManager()


def work_of(script: Script) -> Any:
    async def work() -> object:
        return script.turn()

    return work


def run(manager: RetryManager, category: str, script: Script, **more: Any) -> Any:
    return asyncio.run(
        manager.execute_with_retry(category, more.pop("operation", "an operation"), work_of(script), **more)
    )


def told(stream: AuditStream) -> list[tuple[object, ...]]:
    found = []
    for event in stream:
        plain = event.to_dict()
        own = ("attempt_number", "total_attempts", "action", "reason")
        found.append((event.event_type, *(plain[name] for name in own if name in plain)))
    return found


@pytest.mark.req("API-4")
@pytest.mark.parametrize("name", ["work", "coro"])
def test_an_operation_that_fails_twice_returns_the_third_calls_value(
    manager: RetryManager, name: str
) -> None:
    script = Script(OSError("a"), OSError("b"), "value")
    call = manager.execute_with_retry(
        RetryCategory.KV_GET, "Get kill switch status", **{name: work_of(script)}, tenant_id="t",
        correlation_id="c", trace_id="x", additional_context={"bucket": "control"},
    )  # fmt: skip
    assert asyncio.run(call) == "value"
    assert script.calls == 3


def test_it_runs_on_trio_too(manager: RetryManager) -> None:
    script = Script(OSError("a"), "value")

    async def main() -> Any:
        return await manager.execute_with_retry("KV_GET", "read", work_of(script))

    assert trio.run(main) == "value"


@pytest.mark.req("API-5")
def test_a_given_policy_replaces_the_policy_of_the_category(manager: RetryManager) -> None:
    for policy, calls in ((RetryPolicy(max_attempts=1), 1), (None, 3)):
        script = Script(OSError("x"))
        with pytest.raises(RetryError):
            run(manager, "KV_GET", script, policy=policy)
        assert script.calls == calls
    with pytest.raises(UsageError, match="policy is 3; it takes a RetryPolicy"):
        run(manager, "KV_GET", Script(1), policy=3)


@pytest.mark.req("API-6", "TEST-3")
def test_exhausted_attempts_raise_retry_error_with_the_last_failure_as_cause(
    manager: RetryManager,
) -> None:
    last = TimeoutError("no answer")
    with pytest.raises(RetryError) as caught:
        run(manager, "KV_GET", Script(OSError("a"), OSError("b"), last), operation="Get kill switch status")
    error = caught.value
    assert (error.category, error.attempts, error.operation) == ("RETRY_KV_GET", 3, "Get kill switch status")
    assert error.category is RetryCategory.KV_GET
    assert error.__cause__ is last
    assert isinstance(error, oncemore.StepFailed)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (again.category, again.attempts, again.operation, str(again)) == (
        "RETRY_KV_GET", 3, "Get kill switch status", str(error),
    )  # fmt: skip


def test_an_error_that_is_not_retried_is_raised_unchanged(manager: RetryManager) -> None:
    wrong = ValueError("wrong")
    with pytest.raises(ValueError, match="wrong") as caught:
        run(manager, "KV_GET", Script(wrong), policy=RetryPolicy(non_retryable_exceptions=[ValueError]))
    assert caught.value is wrong
    assert told(manager.audit) == [("retry_refused", 1, "not_retryable")]


@pytest.mark.req("API-7")
def test_the_process_has_one_manager_whose_parts_can_be_used_directly() -> None:
    assert get_retry_manager() is get_retry_manager()
    sample = ("kill_switch_update", "tenant-123", "corr-456", {"switch_name": "all_execution"})
    through = get_retry_manager().idempotency_manager.compute_idempotency_key(*sample)
    assert through == RetryManager().idempotency_manager.compute_idempotency_key(*sample)
    assert through == "b4b6cd7399901d2f626be7417c244b3b5696478ff091bb108dbad2a55a2f0578"
    assert isinstance(get_retry_manager().audit, AuditStream)


@pytest.mark.req("API-11")
def test_a_category_is_found_by_member_name_or_code_and_an_unknown_one_is_an_error(
    manager: RetryManager,
) -> None:
    found = [
        manager.get_policy(one) for one in (RetryCategory.NATS_CONNECT, "NATS_CONNECT", "RETRY_NATS_CONNECT")
    ]
    assert found[0] == found[1] == found[2]
    assert found[0].max_attempts == 5
    for spelling in ("RETRY_REPLAY_VALIDATION", "REPLAY_REPLAY_VALIDATION", "REPLAY_VALIDATION"):
        assert manager.get_policy(spelling) == manager.get_policy(RetryCategory.REPLAY_VALIDATION)
    for unknown in ("NOPE", "", None, 7):
        with pytest.raises(UsageError, match="is not known; register it"):
            manager.get_policy(unknown)  # type: ignore[arg-type]
    script = Script(1)
    with pytest.raises(UsageError, match="'NOPE' is not known"):
        run(manager, "NOPE", script)
    assert script.calls == 0


@pytest.mark.req("AUDIT-4")
def test_registered_categories_are_known_by_their_codes(manager: RetryManager) -> None:
    code = manager.register_category("S3_LIST", RetryPolicy(max_attempts=2), kind="reading")
    assert code == "RETRY_S3_LIST"
    assert (
        manager.register_category("S3_WRITE", RetryPolicy(max_attempts=4), code="STORE_WRITE")
        == "STORE_WRITE"
    )
    assert manager.get_policy("STORE_WRITE").max_attempts == 4
    script = Script(OSError("x"))
    with pytest.raises(RetryError) as caught:
        run(manager, "S3_LIST", script)
    assert (script.calls, caught.value.category) == (2, "RETRY_S3_LIST")
    for member in RetryCategory:
        for failing in (ConnectionError("x"), KeyError("x")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PolicyWarning)
                with pytest.raises((RetryError, KeyError)):
                    run(manager, member, Script(failing))
    known = {member.value for member in RetryCategory} | {"RETRY_S3_LIST", "STORE_WRITE"}
    assert {event.retry_category for event in manager.audit} == known - {"STORE_WRITE"}


@pytest.mark.parametrize(
    ("name", "more", "text"),
    [
        ("KV_GET", {}, "category KV_GET, RETRY_KV_GET is registered already"),
        ("MINE", {"code": "RETRY_KV_GET"}, "category RETRY_KV_GET is registered already"),
        ("two words", {}, "category is 'RETRY_two words'"),
        ("MINE", {"policy": None}, "policy is None; it takes a RetryPolicy"),
        ("MINE", {"kind": "writing"}, "kind is 'writing'; it must be reading or acting"),
    ],
)
def test_a_category_that_cannot_be_registered_gives_the_reason(
    manager: RetryManager, name: str, more: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        manager.register_category(name, **{"policy": RetryPolicy(), **more})


# Work.


def test_a_bare_coroutine_is_refused_before_anything_runs_and_the_message_shows_the_fix(
    manager: RetryManager,
) -> None:
    ran: list[int] = []

    async def publish() -> None:
        ran.append(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            UsageError,
            match=r"awaited only once; give the function that makes it: "
            r".*lambda: publish\(\.\.\.\)",
        ):
            asyncio.run(manager.execute_with_retry("KV_GET", "read", publish()))  # type: ignore[arg-type]
        gc.collect()
    assert ran == []
    assert len(manager.audit) == 0


def test_a_task_is_refused_and_not_cancelled(manager: RetryManager) -> None:
    async def main() -> object:
        task = asyncio.create_task(asyncio.sleep(0, "done"))
        with pytest.raises(UsageError, match="awaited only once"):
            await manager.execute_with_retry("KV_GET", "read", task)  # type: ignore[arg-type]
        return await task

    assert asyncio.run(main()) == "done"


def test_work_that_returns_the_same_coroutine_twice_is_refused(manager: RetryManager) -> None:
    async def fail() -> None:
        raise OSError("once")

    async def main() -> None:
        one = fail()
        await manager.execute_with_retry("KV_GET", "read", lambda: one)

    with pytest.raises(UsageError, match="the same awaitable twice"):
        asyncio.run(main())
    assert told(manager.audit) == [("retry_attempt", 1), ("retry_refused", 2, "not_retryable")]


def test_work_may_return_a_plain_value_repeatedly(manager: RetryManager) -> None:
    script = Script(OSError("x"), None)
    assert asyncio.run(manager.execute_with_retry("KV_GET", "read", script.turn)) is None
    assert script.calls == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "give either work= or coro="),
        ({"work": print, "coro": print}, "give either work= or coro="),
        ({"work": 7}, "work is 7; it takes a function"),
        ({"work": print, "operation": ""}, "operation is ''; it takes a text"),
        ({"work": print, "additional_context": 7}, "additional_context is 7; it takes a mapping"),
        ({"work": print, "if_running": "hurry"}, "if_running is 'hurry'; it must be wait or raise"),
        ({"work": print, "timeout_s": 0}, "timeout_s is 0; it must be more than 0"),
    ],
    ids=str,
)
def test_a_wrong_call_names_the_argument(manager: RetryManager, arguments: Any, text: str) -> None:
    given = {"category": "KV_GET", "operation": "read", **arguments}
    with pytest.raises(UsageError, match=text):
        asyncio.run(manager.execute_with_retry(**given))


# Delays, limits, classification.


def test_the_delays_of_a_known_run_are_the_documents_vectors(manager: RetryManager, clock: FakeClock) -> None:
    with pytest.raises(RetryError):
        run(manager, "NATS_CONNECT", Script(ConnectionRefusedError()), run_id=RUN_ID)
    assert [round(delay, 6) for delay in clock.delays] == [0.924273, 2.183395, 3.771385, 8.697822]
    delays = [event.to_dict()["delay_seconds"] for event in manager.audit.filter(event_type="retry_attempt")]
    assert delays == clock.delays


def test_separate_operations_have_different_delays(manager: RetryManager, clock: FakeClock) -> None:
    for _ in range(2):
        with pytest.raises(RetryError):
            run(manager, "KV_GET", Script(OSError()))
    assert clock.delays[:2] != clock.delays[2:]
    assert len({record.run_id for record in manager.operations}) == 2


@pytest.mark.req("TIME-1")
def test_work_that_never_returns_is_ended_at_its_timeout(manager: RetryManager) -> None:
    async def hang() -> None:
        await asyncio.sleep(3600)

    for given in ({"policy": RetryPolicy(max_attempts=1, timeout_s=0.2)}, {"timeout_s": 0.2}):
        started = time.monotonic()
        with pytest.raises(RetryError) as caught:
            asyncio.run(manager.execute_with_retry("KV_GET", "read", hang, **given))  # type: ignore[arg-type]
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert time.monotonic() - started < caught.value.attempts * (0.2 + 0.25)
    assert manager.audit.newest(1)[0].to_dict()["final_exception_type"] == "TimeoutError"


def test_the_timeout_of_the_call_precedes_the_policy_and_the_category(
    manager: RetryManager,
) -> None:
    seen: list[float | None] = []

    async def look() -> None:
        seen.append(oncemore.time_remaining())

    for given in ({}, {"policy": RetryPolicy()}, {"policy": RetryPolicy(timeout_s=2)}, {"timeout_s": 1}):
        asyncio.run(manager.execute_with_retry("KV_GET", "read", look, **given))  # type: ignore[arg-type]
    assert seen == [5.0, 5.0, 2.0, 1.0]


@pytest.mark.req("CLASS-10")
@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (ValueError(), 1), (UnicodeError(), 1), (TypeError(), 1), (KeyError(), 1),
        (type("Own", (KeyError,), {})(), 1), (OSError(), 3),
    ],
    ids=repr,
)  # fmt: skip
def test_the_strict_sample_policy_calls_its_listed_errors_once(
    manager: RetryManager, error: Exception, calls: int
) -> None:
    policy = RetryPolicy(non_retryable_exceptions=[ValueError, TypeError, KeyError])
    script = Script(error)
    with pytest.raises((RetryError, type(error))):
        run(manager, "KV_GET", script, policy=policy)
    assert script.calls == calls


@pytest.mark.req("CLASS-11")
def test_the_lenient_sample_policy_repeats_only_with_retryable_first(manager: RetryManager) -> None:
    both: Any = {"retryable_exceptions": [Exception, ValueError], "non_retryable_exceptions": [ValueError]}
    with pytest.warns(PolicyWarning, match="ValueError is in both lists, and is not tried again"):
        safe = RetryPolicy(**both)
    with pytest.warns(PolicyWarning, match="ValueError is in both lists, and is tried again: precedence"):
        lenient = RetryPolicy(**both, precedence="retryable_first")
    for policy, calls in ((safe, 1), (lenient, 3)):
        script = Script(ValueError("x"))
        with pytest.raises((RetryError, ValueError)):
            run(manager, "KV_GET", script, policy=policy)
        assert script.calls == calls


def test_an_unlisted_error_is_tried_again(manager: RetryManager) -> None:
    script = Script(type("Unheard", (Exception,), {})("x"))
    with pytest.raises(RetryError):
        run(manager, "KV_GET", script, policy=RetryPolicy(retryable_exceptions=[OSError]))
    assert script.calls == 3


@pytest.mark.req("CLASS-19")
@pytest.mark.parametrize("category", ["API_VALIDATION", "REPLAY_VALIDATION"])
@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (oncemore.PolicyViolation("SCHEMA_INVALID"), 1), (oncemore.PermanentError("invalid"), 1),
        (ValueError("invalid"), 1), (TimeoutError("no answer"), 2), (ConnectionRefusedError(), 2),
    ],
    ids=repr,
)  # fmt: skip
def test_a_verdict_is_final_and_an_unreachable_validator_is_retried(
    manager: RetryManager, category: str, error: Exception, calls: int
) -> None:
    script = Script(error)
    with pytest.raises((RetryError, type(error))):
        run(manager, category, script)
    assert script.calls == calls


def test_attempts_of_inner_and_outer_operations_do_not_multiply(manager: RetryManager) -> None:
    script = Script(OSError("x"))

    async def outer() -> None:
        await manager.execute_with_retry("KV_GET", "inner", work_of(script))

    with pytest.raises(RetryError) as caught:
        asyncio.run(manager.execute_with_retry("KV_GET", "outer", outer))
    assert (script.calls, caught.value.operation) == (3, "inner")
    assert told(manager.audit)[-1] == ("retry_refused", 1, "not_retryable")


def test_a_retry_after_above_the_cap_is_raised_with_its_time(manager: RetryManager) -> None:
    headers = Message()
    headers["Retry-After"] = "120"
    script = Script(HTTPError("http://provider.example/", 503, "busy", headers, None))
    with pytest.raises(HTTPError):
        run(manager, "KV_GET", script)
    assert told(manager.audit) == [("retry_refused", 1, "retry_after_beyond_cap")]
    assert manager.audit.newest(1)[0].to_dict()["not_before"] == "2027-01-15T08:02:00.000000Z"


@pytest.mark.req("CLASS-18")
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_raised_and_recorded(manager: RetryManager, stop: type[BaseException]) -> None:
    script = Script(stop())
    with pytest.raises(stop):
        run(manager, "KV_GET", script)
    assert script.calls == 1
    assert told(manager.audit) == [("retry_refused", 1, "interrupted")]


@pytest.mark.req("CLASS-18")
def test_cancelling_ends_an_operation_at_once_and_leaves_its_key_free(manager: RetryManager) -> None:
    async def hang() -> None:
        await asyncio.sleep(3600)

    async def fail() -> None:
        raise OSError

    async def main() -> None:
        for work in (hang, fail):
            call = manager.execute_with_retry("KV_PUT", "write", work, idempotency_key="k")
            task = asyncio.create_task(call)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (
            await manager.execute_with_retry("KV_PUT", "write", work_of(Script(7)), idempotency_key="k") == 7
        )

    asyncio.run(main())
    assert told(manager.audit) == [
        ("retry_refused", 1, "cancelled"), ("retry_attempt", 1), ("retry_refused", 1, "cancelled"),
        ("retry_succeeded", 1), ("idempotency", "record"),
    ]  # fmt: skip


def test_retries_can_be_switched_off_from_outside(
    manager: RetryManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMORE_RETRY", "off")
    script = Script(OSError("x"))
    with pytest.raises(RetryError):
        run(manager, "KV_GET", script)
    assert script.calls == 1


# Audit.

DOCUMENTED = {
    "retry_attempt": "event_type retry_category operation attempt_number max_attempts delay_seconds "
    "exception_type exception_message tenant_id correlation_id trace_id timestamp",
    "retry_exhausted": "event_type retry_category operation total_attempts final_exception_type "
    "final_exception_message tenant_id correlation_id trace_id timestamp",
}


@pytest.mark.req("AUDIT-1")
def test_each_retry_event_has_exactly_the_documented_fields(manager: RetryManager) -> None:
    with pytest.raises(RetryError):
        run(manager, "NATS_PUBLISH", Script(OSError("x")), idempotency_key="k")
    second = [event.to_dict() for event in manager.audit.filter(event_type="retry_attempt")][1]
    assert (second["attempt_number"], second["max_attempts"]) == (2, 3)
    assert 0.9 <= second["delay_seconds"] <= 1.1  # type: ignore[operator]
    assert list(second) == DOCUMENTED["retry_attempt"].split()


@pytest.mark.req("AUDIT-2")
def test_the_exhaustion_event_has_exactly_the_documented_fields(manager: RetryManager) -> None:
    with pytest.raises(RetryError):
        run(manager, "KV_GET", Script(TimeoutError("no answer")), operation="Get kill switch status")
    (event,) = manager.audit.filter(event_type="retry_exhausted")
    plain = event.to_dict()
    assert plain["retry_category"] == "RETRY_KV_GET"
    assert plain["operation"] == "Get kill switch status"
    assert (plain["total_attempts"], plain["final_exception_type"]) == (3, "TimeoutError")
    assert list(plain) == DOCUMENTED["retry_exhausted"].split()


@pytest.mark.req("AUDIT-5")
def test_every_end_of_an_operation_has_its_event(manager: RetryManager) -> None:
    headers = Message()
    headers["Retry-After"] = "3600"
    ends: list[tuple[list[object], str]] = [
        ([OSError(), 1], "retry_succeeded"),
        ([OSError()], "retry_exhausted"),
        ([oncemore.PermanentError()], "retry_refused"),
        ([HTTPError("http://provider.example/", 503, "busy", headers, None)], "retry_refused"),
        ([asyncio.CancelledError()], "retry_refused"),
    ]
    for turns, last in ends:
        before = len(manager.audit)
        try:
            run(manager, "KV_GET", Script(*turns))
        except BaseException:
            assert last != "retry_succeeded"
        events = list(manager.audit)[before:]
        assert events[-1].event_type == last
        assert [event.event_type for event in events[:-1]] == ["retry_attempt"] * (len(events) - 1)
    reasons = [event.to_dict()["reason"] for event in manager.audit.filter(event_type="retry_refused")]
    assert reasons == ["not_retryable", "retry_after_beyond_cap", "cancelled"]


@pytest.mark.req("AUDIT-6", "CORR-4")
def test_all_events_share_the_ids_and_the_operation_has_the_context(manager: RetryManager) -> None:
    ids = {"tenant_id": "tenant-123", "correlation_id": "corr-456", "trace_id": "trace-789"}
    context = {"switch_name": "all_execution", "api_key": "hunter2", "attempted_by": "operator"}
    run(
        manager, "KV_PUT", Script(OSError(), OSError(), 1), **ids, idempotency_key="k",
        additional_context=context, operation="Store kill switch state",
    )  # fmt: skip
    assert len(manager.audit) == 4
    for event in manager.audit:
        plain = event.to_dict()
        assert {name: plain[name] for name in ids} == ids
        assert str(plain["timestamp"]).endswith("Z")
        assert "all_execution" not in event.to_json()
    (record,) = manager.operations
    assert record.context == {"switch_name": "all_execution", "api_key": "***", "attempted_by": "operator"}
    assert record.ids._asdict() == ids
    assert record.events == tuple(manager.audit)
    assert (record.policy, record.policy_version, record.idempotency_key) == ("RETRY_KV_PUT", "1.0", "k")
    assert (record.category, record.operation) == ("RETRY_KV_PUT", "Store kill switch state")


def test_a_secret_in_the_name_of_an_operation_is_never_written(
    manager: RetryManager, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RetryError) as caught:
        run(manager, "KV_GET", Script(OSError("x")), operation="Connect to nats://app:hunter2@bus")
    assert caught.value.operation == "Connect to nats://app:hunter2@bus", (
        "the caller's own word, to the caller"
    )
    assert "nats://***@bus" in caplog.text
    notes = getattr(caught.value.__cause__, "__notes__", [])
    assert "hunter2" not in caplog.text + str(notes) + "".join(event.to_json() for event in manager.audit)


def test_a_changed_policy_is_recorded_as_changed(manager: RetryManager) -> None:
    run(manager, "KV_GET", Script(1), policy=RetryPolicy())
    assert manager.operations[-1].policy == "RETRY_KV_GET (changed)"


def test_sinks_receive_every_event_until_they_are_removed() -> None:
    first, second = AuditStream(), AuditStream()
    manager = RetryManager(on_event=first)
    detach = manager.add_sink(second)
    run(manager, "KV_GET", Script(OSError(), 1))
    detach()
    detach()
    run(manager, "KV_GET", Script(1))
    assert list(first) == list(manager.audit)
    assert list(second) == list(manager.audit)[:2]


def test_a_sink_that_fails_does_not_break_the_work(manager: RetryManager) -> None:
    def broken(event: AuditEvent) -> None:
        raise OSError("disk full")

    manager.add_sink(broken)
    second = AuditStream()
    manager.add_sink(second)
    assert run(manager, "KV_GET", Script("value")) == "value"
    assert len(manager.audit) == len(second) == 1


def test_rates_per_category_as_the_document_shows_them(manager: RetryManager) -> None:
    run(manager, "KV_GET", Script(1))
    run(manager, "KV_GET", Script(OSError(), 1))
    with pytest.raises(RetryError):
        run(manager, "KV_GET", Script(OSError()))
    for _ in range(3):
        run(manager, "KV_PUT", Script(1), idempotency_key="k")
    found = manager.audit.per_category()
    get, put = found["RETRY_KV_GET"], found["RETRY_KV_PUT"]
    assert (get.total_attempts, get.success_rate, get.avg_attempts) == (6, 2 / 3, 2.0)
    assert (put.operations, put.total_attempts) == (1, 1), "hits are no operations that were done"


# Reading and acting, governed.


def test_an_acting_category_without_a_key_is_repeated_with_a_warning(manager: RetryManager) -> None:
    script = Script(OSError(), 1)
    with pytest.warns(PolicyWarning, match=r"write \(RETRY_KV_PUT\) acts and may be repeated") as warned:
        run(manager, "KV_PUT", script, operation="write")
    assert script.calls == 2
    assert [warning.filename for warning in warned] != []
    run(manager, "EXECUTION_EXPIRATION", Script(1))  # one attempt: nothing is repeated, nothing to warn of
    run(manager, "KV_PUT", Script(1), policy=RetryPolicy(max_attempts=1))


def test_a_warning_points_at_the_callers_line(manager: RetryManager) -> None:
    async def main() -> None:
        await manager.execute_with_retry("KV_PUT", "write", work_of(Script(1)))

    with pytest.warns(PolicyWarning) as warned:
        asyncio.run(main())
    assert [warning.filename for warning in warned] == [__file__]


def test_a_read_with_a_key_sees_the_current_state(manager: RetryManager) -> None:
    switch = {"all_execution": "off"}

    async def read() -> str:
        return switch["all_execution"]

    seen = []
    for state in ("off", "on"):
        switch["all_execution"] = state
        with pytest.warns(
            PolicyWarning, match="its idempotency key is ignored, so that it sees the current state"
        ):
            seen.append(asyncio.run(manager.execute_with_retry("KV_GET", "read", read, idempotency_key="k")))
    assert seen == ["off", "on"]
    assert told(manager.audit) == [("retry_succeeded", 1)] * 2


def test_governed_mode_refuses_what_otherwise_causes_a_warning(manager: RetryManager) -> None:
    test_a_read_with_a_key_sees_the_current_state(manager)
    strict = RetryManager(governed=True)
    script = Script(1)
    with pytest.raises(UsageError, match=r"acts and may be repeated: .*; governed mode refuses to run it"):
        run(strict, "KV_PUT", script)
    with pytest.raises(UsageError, match="its idempotency key is ignored"):
        run(strict, "KV_GET", script, idempotency_key="k")
    assert script.calls == 0
    assert told(strict.audit) == [
        ("retry_refused", 0, "missing_idempotency_key"),
        ("retry_refused", 0, "idempotency_key_on_read"),
    ]


def test_governed_mode_never_repeats_unclassified_errors() -> None:
    strict = RetryManager(governed=True)
    for error, calls in ((Exception("unheard of"), 1), (TypeError(), 1), (ConnectionResetError(), 3)):
        script = Script(error)
        with pytest.raises((RetryError, type(error))):
            run(strict, "KV_GET", script)
        assert script.calls == calls
    with pytest.raises(PolicyError, match="unmatched is 'retry'; in governed mode it must be fail"):
        run(strict, "KV_GET", Script(1), policy=RetryPolicy())
    assert run(strict, "KV_GET", Script(1), policy=RetryPolicy(unmatched="fail")) == 1
    strict.register_category("MINE", RetryPolicy(unmatched="fail"), kind="reading")
    with pytest.raises(PolicyError, match="timeout_s is missing"):
        run(strict, "MINE", Script(1))


def find_ids(manager: RetryManager) -> dict[str, set[tuple[str | None, str | None]]]:
    """Return the correlation and trace ids of all events, by operation."""
    found: dict[str, set[tuple[str | None, str | None]]] = {}
    for event in manager.audit:
        found.setdefault(event.operation, set()).add((event.correlation_id, event.trace_id))
    return found


@pytest.mark.parametrize("store", ["memory:", None], ids=["log", "memory"])
def test_ids_come_from_the_call_or_from_the_context_and_reach_operations_inside_the_work(
    store: str | None,
) -> None:
    engine = None if store is None else oncemore.open(store)
    manager = RetryManager(IdempotencyManager(lambda: engine))  # type: ignore[arg-type,return-value]

    async def look() -> str:
        return "seen"

    async def work() -> str:
        return await manager.execute_with_retry("KV_GET", "Look inside", look)

    async def main() -> None:
        with oncemore.context(correlation_id="c-1", trace_id="t-1"):
            await manager.execute_with_retry("KV_GET", "Look around", look)
            await manager.execute_with_retry("KV_GET", "Look", look, correlation_id="c-2", trace_id="t-2")
            await manager.execute_with_retry("KV_PUT", "Put", work, idempotency_key="k-1", trace_id="t-3")
        await manager.execute_with_retry("KV_GET", "Look alone", look)

    asyncio.run(main())
    assert find_ids(manager) == {
        "Look around": {("c-1", "t-1")},
        "Look": {("c-2", "t-2")},
        "Put": {("c-1", "t-3")},
        "Look inside": {("c-1", "t-3")},
        "Look alone": {(None, None)},
    }


def test_an_inherited_correlation_id_is_not_part_of_a_key() -> None:
    manager = IdempotencyManager()
    key = manager.compute_idempotency_key("op")
    with oncemore.context(correlation_id="c-1"):
        assert manager.compute_idempotency_key("op") == key
