"""A stream of events can be filtered, counted and summarized."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest

import oncemore
from oncemore.audit import AuditStream
from oncemore.audit.events import format_rfc3339
from oncemore.audit.sinks import AuditSummary
from oncemore.errors import UsageError
from oncemore.testing import FakeClock
from tests.audit.test_events import sample
from tests.retries.colours import Script, run


def test_a_stream_is_filtered_by_fields() -> None:
    stream = AuditStream(
        [
            sample("retry_attempt", retry_category="A", tenant_id="t", correlation_id="c", trace_id="x"),
            sample("retry_attempt", retry_category="B", operation="op"),
            sample("retry_succeeded", retry_category="A", tenant_id="t"),
        ]
    )
    counts: list[tuple[dict[str, Any], int]] = [
        ({}, 3), ({"event_type": "retry_attempt"}, 2), ({"retry_category": "A"}, 2),
        ({"event_type": "retry_attempt", "retry_category": "A"}, 1), ({"operation": "op"}, 1),
        ({"tenant_id": "t"}, 2), ({"correlation_id": "c"}, 1), ({"trace_id": "x"}, 1),
        ({"operation": "no"}, 0),
    ]  # fmt: skip
    for asked, count in counts:
        assert len(stream.filter(**asked)) == count
    assert list(stream.filter(retry_category="A").filter(event_type="retry_succeeded")) == [list(stream)[2]]
    assert stream.newest(2) == list(stream)[1:]
    assert stream.newest(9) == list(stream)


@pytest.mark.req("AUDIT-9")
def test_the_rate_per_minute_counts_what_matches_the_filter_only() -> None:
    stream = AuditStream()
    with FakeClock() as clock:
        start = clock.wall()
        for number in range(30):
            at = format_rfc3339(start + 2 * number)
            stream(sample("retry_attempt", retry_category="RETRY_KV_GET", timestamp=at))
            if number % 3 == 0:
                stream(sample("retry_attempt", retry_category="RETRY_KV_PUT", timestamp=at))
            stream(sample("idempotency", retry_category="RETRY_KV_GET", timestamp=at))
        clock.advance(60)
        wanted = stream.filter(event_type="retry_attempt").filter(retry_category="RETRY_KV_GET")
        assert wanted.rate_per_minute == wanted.count_per_minute() == 30.0
        assert (
            stream.filter(event_type="retry_attempt", retry_category="RETRY_KV_PUT").rate_per_minute == 10.0
        )
        assert wanted.count_per_minute(window_s=30) == 30.0
        clock.advance(60)
        assert wanted.rate_per_minute == 0.0
        assert wanted.count_per_minute(now=start + 60) == 30.0
    with pytest.raises(UsageError, match="window_s is 0; it must be more than 0"):
        stream.count_per_minute(window_s=0)


@pytest.mark.req("AUDIT-10")
def test_success_rate_and_attempts_per_category_come_from_outcomes_only() -> None:
    stream = AuditStream()
    scripts = [Script(1), Script(OSError(), 1), Script(OSError())]
    with oncemore.testing.instant_waits():
        for script in scripts:
            try:
                run("plain", script, on=OSError, on_event=stream, category="RETRY_TILES")
            except OSError:
                assert script is scripts[-1]
        run("plain", Script(1), on=OSError, on_event=stream, category="RETRY_OTHER")
    for _ in range(5):
        stream(sample("idempotency", retry_category="RETRY_TILES"))
    found = stream.per_category()
    assert list(found) == ["RETRY_OTHER", "RETRY_TILES"]
    tiles = found["RETRY_TILES"]
    assert (tiles.total_attempts, tiles.success_rate, tiles.avg_attempts) == (6, 2 / 3, 2.0)
    assert found["RETRY_OTHER"] == AuditSummary(1, 1, 1.0, 1.0)
    assert stream.summary() == AuditSummary(4, 7, 3 / 4, 7 / 4)


def test_an_empty_stream_has_no_rates() -> None:
    assert AuditStream().summary() == AuditSummary(0, 0, None, None)
    assert AuditStream([sample("retry_attempt")]).per_category() == {}


def test_a_full_stream_drops_and_counts_the_oldest() -> None:
    stream = AuditStream(max_events=3)
    for number in range(5):
        stream(sample("retry_succeeded", total_attempts=number))
    assert [event.to_dict()["total_attempts"] for event in stream] == [2, 3, 4]
    assert (len(stream), stream.dropped_events) == (3, 2)
    with pytest.raises(UsageError, match="max_events is 0; it must be 1 or more"):
        AuditStream(max_events=0)


def test_a_stream_can_be_read_while_it_is_written() -> None:
    stream = AuditStream(max_events=50)
    event = sample("retry_succeeded")
    threads = [Thread(target=lambda: [stream(event) for _ in range(2_000)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert set(stream) <= {event}
    assert len(stream) + stream.dropped_events == 6_000
