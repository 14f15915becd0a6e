"""Calls emit events, and a failing sink neither breaks the work nor loses an event silently."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import warnings
from contextlib import suppress
from email.message import Message
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest

import oncemore
from oncemore.audit import AuditEvent, AuditFile, AuditStream, to_logging
from oncemore.audit.recorder import AuditRecorder, OperationIds, SinkWriter, default_category
from oncemore.testing import FakeClock, instant_waits
from tests.retries.colours import COLOURS, Script, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

each_colour = pytest.mark.parametrize("colour", COLOURS)


@pytest.fixture(autouse=True)
def clock(instant_retries: FakeClock) -> Iterator[FakeClock]:
    return instant_retries  # type: ignore[return-value]


def told(events: AuditStream) -> list[tuple[object, ...]]:
    """Return the event types with their distinguishing fields."""
    found = []
    for event in events:
        plain = event.to_dict()
        own = ("attempt_number", "total_attempts", "reason")
        found.append((event.event_type, *(plain[name] for name in own if name in plain)))
    return found


def busy(seconds: int) -> Exception:
    headers = Message()
    headers["Retry-After"] = str(seconds)
    return HTTPError("http://provider.example/", 503, "busy", headers, None)


@each_colour
@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (["fine"], [("retry_succeeded", 1)]),
        ([OSError(), "fine"], [("retry_attempt", 1), ("retry_succeeded", 2)]),
        (
            [OSError(), OSError(), OSError()],
            [("retry_attempt", 1), ("retry_attempt", 2), ("retry_exhausted", 3)],
        ),
        ([KeyError()], [("retry_refused", 1, "not_retryable")]),
        ([OSError(), KeyError()], [("retry_attempt", 1), ("retry_refused", 2, "not_retryable")]),
        ([busy(120)], [("retry_refused", 1, "retry_after_beyond_cap")]),
        ([concurrent.futures.CancelledError()], [("retry_refused", 1, "cancelled")]),
    ],
    ids=str,
)
def test_every_operation_ends_in_an_explicit_event(
    colour: str, turns: list[object], expected: list[tuple[object, ...]]
) -> None:
    stream = AuditStream()
    with suppress(Exception):
        run(colour, Script(*turns), on=OSError, on_event=stream)
    assert told(stream) == expected


@each_colour
def test_an_event_has_all_its_fields(colour: str, clock: FakeClock) -> None:
    stream = AuditStream()
    script = Script(ConnectionError("no route to postgresql://app:hunter2@db"), busy(120))
    with pytest.raises(OSError, match="503"):
        run(
            colour, script, on=OSError, attempts=5, wait=[1.5, 2], on_event=stream, category="RETRY_PRICES",
            name="fetch prices",
        )  # fmt: skip
    first, last = (event.to_dict() for event in stream)
    assert first == {
        "event_type": "retry_attempt", "retry_category": "RETRY_PRICES", "operation": "fetch prices",
        "attempt_number": 1, "max_attempts": 5, "delay_seconds": 1.5, "exception_type": "ConnectionError",
        "exception_message": "no route to postgresql://***@db", "tenant_id": None, "correlation_id": None,
        "trace_id": None, "timestamp": "2027-01-15T08:00:00.000000Z",
    }  # fmt: skip
    assert last["timestamp"] == "2027-01-15T08:00:01.500000Z"
    assert last["not_before"] == "2027-01-15T08:02:01.500000Z"
    assert last["exception_type"] == "HTTPError"


@pytest.mark.parametrize(
    "options", [{"on": OSError}, {"on": KeyError}, {"on": OSError, "attempts": 1}], ids=str
)
def test_a_call_after_its_deadline_counts_no_attempt(clock: FakeClock, options: dict[str, Any]) -> None:
    stream, script = AuditStream(), Script(1)
    with pytest.raises(oncemore.DeadlineExceeded):
        run("plain", script, deadline=clock.wall() - 1, on_event=stream, **options)
    assert script.calls == 0
    assert told(stream) == [("retry_refused", 0, "deadline_passed")]


def test_an_attempt_timeout_is_reported_as_timeout_error() -> None:
    async def hang() -> None:
        await asyncio.sleep(3600)

    stream = AuditStream()
    with pytest.raises(oncemore.AttemptTimeout):
        asyncio.run(oncemore.retrying(hang, on="transient", attempts=1, timeout=0.01, on_event=stream)())
    assert told(stream) == [("retry_exhausted", 1)]
    assert stream.newest(1)[0].to_dict()["final_exception_type"] == "TimeoutError"


def test_an_unmet_until_is_named(clock: FakeClock) -> None:
    stream = AuditStream()
    with pytest.raises(oncemore.RetriesExhausted):
        run("plain", Script("pending"), on=(), until=lambda value: False, attempts=2, on_event=stream)
    assert told(stream) == [("retry_attempt", 1), ("retry_exhausted", 2)]
    assert stream.newest(1)[0].to_dict()["final_exception_type"] == "UntilNotMet"


@each_colour
def test_an_error_in_a_hook_ends_in_an_event_too(colour: str) -> None:
    stream = AuditStream()
    with pytest.raises(ZeroDivisionError):
        run(colour, Script(OSError()), on=OSError, on_retry=lambda report: 1 / 0, on_event=stream)
    assert told(stream)[-1] == ("retry_refused", 1, "hook_failed")


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyboardInterrupt(), "interrupted"), (SystemExit(), "interrupted"), (GeneratorExit(), "abandoned")],
    ids=repr,
)
def test_an_interrupt_ends_in_an_event(error: BaseException, reason: str) -> None:
    stream = AuditStream()
    with pytest.raises(type(error)):
        run("plain", Script(error), on=OSError, on_event=stream)
    assert told(stream) == [("retry_refused", 1, reason)]


def test_cancellation_during_an_attempt_and_during_a_wait_ends_in_an_event() -> None:
    stream = AuditStream()

    @oncemore.retry(on=OSError, on_event=stream)
    async def hang() -> None:
        await asyncio.sleep(3600)

    @oncemore.retry(on=OSError, on_event=stream)
    async def fail() -> None:
        raise OSError

    async def cancelled(work: Any) -> None:
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled(hang()))
    assert told(stream) == [("retry_refused", 1, "cancelled")]
    asyncio.run(cancelled(fail()))
    assert told(stream)[1:] == [("retry_attempt", 1), ("retry_refused", 1, "cancelled")]


def test_a_block_emits_events_under_its_name() -> None:
    stream = AuditStream()
    script = Script(OSError(), 1)
    for attempt in oncemore.attempts(on=OSError, on_event=stream, name="load tiles"):
        with attempt:
            script.turn()
    assert told(stream) == [("retry_attempt", 1), ("retry_succeeded", 2)]
    assert stream.newest(1)[0].retry_category == "RETRY_LOAD_TILES"


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("fetch", "RETRY_FETCH"),
        ("Client.get", "RETRY_CLIENT_GET"),
        ("test.<locals>.work", "RETRY_WORK"),
        ("<lambda>", "RETRY_LAMBDA"),
        ("", "RETRY_CALL"),
        ("déjà vu", "RETRY_D_J_VU"),
    ],
)
def test_a_function_without_a_category_counts_under_its_name(name: str, category: str) -> None:
    assert default_category(name) == category


def test_a_category_and_a_sink_are_checked_where_they_are_given() -> None:
    with pytest.raises(oncemore.UsageError, match="category is 'two words'; it takes 1 to 100 letters"):
        oncemore.retry(on=OSError, category="two words")
    with pytest.raises(oncemore.UsageError, match="category is 7"):
        oncemore.retry(on=OSError, on_event=print, category=7)  # type: ignore[arg-type]
    with pytest.raises(oncemore.UsageError, match="on_event is 7; it takes a function"):
        oncemore.retry(on=OSError, on_event=7)  # type: ignore[arg-type]

    async def sink(event: AuditEvent) -> None: ...

    with pytest.raises(oncemore.UsageError, match="on_event is an async function"):
        oncemore.retry(on=OSError, on_event=sink)
    with pytest.raises(oncemore.UsageError, match="7 is not a sink"):
        SinkWriter(7)  # type: ignore[arg-type]


def test_using_can_take_the_sink_away_and_a_category_alone_costs_nothing() -> None:
    stream = AuditStream()
    work = oncemore.retrying(lambda: 1, on=OSError, on_event=stream, category="C")
    assert work.with_options(on_event=None)() == 1
    assert len(stream) == 0
    assert work() == 1
    assert len(stream) == 1


class Flaky:
    """A sink that raises a number of times and then works."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0
        self.events: list[AuditEvent] = []

    def __call__(self, event: AuditEvent) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise OSError("disk full, token=hunter2")
        self.events.append(event)


def test_a_sink_that_fails_for_a_moment_is_tried_again(clock: FakeClock) -> None:
    sink = Flaky(2)
    assert run("plain", Script("value"), on=OSError, on_event=sink) == "value"
    assert (sink.calls, len(sink.events), len(clock.delays)) == (3, 1, 2)
    assert sum(clock.delays) <= 0.03


@pytest.mark.req("API-12")
@each_colour
def test_a_failing_sink_is_retried_logged_and_does_not_break_the_work(
    colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Flaky(10**9)
    outlet = SinkWriter(sink)
    recorder = AuditRecorder(outlet, "RETRY_X", "work")
    assert run(colour, Script(OSError(), "value"), on=OSError, on_event=sink) == "value"
    assert sink.calls == 3 + 1, "all tries for the first event, one for the next: it is known to be down"
    records = [record.getMessage() for record in caplog.records if record.name == "oncemore.audit"]
    exhausted = json.loads(records[0])
    assert (exhausted["event_type"], exhausted["retry_category"]) == ("retry_exhausted", "RETRY_AUDIT_SINK")
    assert (exhausted["operation"], exhausted["total_attempts"]) == ("write to Flaky", 3)
    assert exhausted["final_exception_message"] == "disk full, token=***"
    lost = [text.partition(": ") for text in records if "only logged here" in text]
    assert [json.loads(text)["event_type"] for _, _, text in lost] == ["retry_attempt", "retry_succeeded"]
    sink.calls = sink.failures = 0
    recorder.record_end(1, 0.0, None)
    assert outlet.lost_events == 0


def test_a_sink_that_works_again_gets_all_its_tries_again() -> None:
    sink = Flaky(4)
    outlet = SinkWriter(sink)
    recorder = AuditRecorder(outlet, "RETRY_X", "work")
    for _ in range(3):
        recorder.record_end(1, 0.0, None)
    assert (sink.calls, len(sink.events), outlet.lost_events) == (5, 1, 2)
    sink.failures, sink.calls = 2, 0
    recorder.record_end(1, 0.0, None)
    assert (sink.calls, len(sink.events)) == (3, 2)


def test_a_hidden_async_sink_is_detected(caplog: pytest.LogCaptureFixture) -> None:
    async def sink(event: AuditEvent) -> None: ...

    class Awaitable:
        def __await__(self) -> Any: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for hidden in (lambda event: sink(event), lambda event: Awaitable()):
            assert run("plain", Script(1), on=OSError, on_event=hidden) == 1
    assert caplog.text.count("only logged here") == 2
    assert "pass a plain function" in caplog.text


def test_events_caused_by_a_sink_are_not_written_to_it(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[AuditEvent] = []

    def sink(event: AuditEvent) -> None:
        seen.append(event)
        inner()

    outlet = SinkWriter(sink)
    recorder = AuditRecorder(outlet, "RETRY_X", "inside")

    def inner() -> None:
        recorder.record_end(1, 0.0, None)

    recorder.record_end(1, 0.0, None)
    assert len(seen) == 1
    assert "caused an event itself" in caplog.text


def test_an_interrupt_in_a_sink_is_not_swallowed() -> None:
    def sink(event: AuditEvent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("plain", Script(1), on=OSError, on_event=sink)


def test_names_and_ids_are_cleaned() -> None:
    stream = AuditStream()
    ids = OperationIds("tenant\n1", "\x1b[31mcorr", "x" * 500)
    AuditRecorder(stream, "RETRY_X", "get https://u:hunter2@h\r\n", ids).record_end(1, 0.0, None)
    (event,) = stream
    assert (event.operation, event.tenant_id, event.correlation_id) == (
        "get https://***@h ",
        "tenant 1",
        "corr",
    )
    assert event.trace_id is not None
    assert len(event.trace_id) == 200


def test_the_same_failures_give_the_same_events_every_time(tmp_path: Path) -> None:
    files = []
    for number in range(2):
        path = tmp_path / f"{number}.jsonl"
        with instant_waits(), AuditFile(path) as sink, pytest.raises(OSError, match="x"):
            run("plain", Script(OSError("x")), on=OSError, seed="s", on_event=sink)
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_events_can_go_to_the_programs_own_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    run("plain", Script(OSError("x"), 1), on=OSError, on_event=to_logging())
    mine = [record for record in caplog.records if record.name == "oncemore.audit"]
    assert [record.levelno for record in mine] == [logging.WARNING, logging.INFO]
    assert json.loads(mine[0].getMessage()) == mine[0].oncemore_event  # type: ignore[attr-defined]
    caplog.clear()
    caplog.set_level(logging.ERROR)
    with pytest.raises(OSError, match="x"):
        run("plain", Script(OSError("x")), on=OSError, on_event=to_logging(logging.getLogger("mine")))
    assert [(record.name, record.levelno) for record in caplog.records] == [("mine", logging.ERROR)]


@pytest.mark.parametrize("entered", ["with", "async with"])
def test_a_block_that_is_cancelled_or_interrupted_ends_in_an_event(entered: str) -> None:
    stream = AuditStream()

    async def body() -> None:
        async for attempt in oncemore.attempts(on=OSError, on_event=stream):
            if entered == "with":
                with attempt:
                    await asyncio.sleep(30)
            else:
                async with attempt:
                    await asyncio.sleep(30)

    async def main() -> None:
        task = asyncio.create_task(body())
        await asyncio.sleep(0.02)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert told(stream) == [("retry_refused", 1, "cancelled")]
    with pytest.raises(KeyboardInterrupt):
        for attempt in oncemore.attempts(on=OSError, on_event=stream):
            with attempt:
                raise KeyboardInterrupt
    assert told(stream)[1:] == [("retry_refused", 1, "interrupted")]
