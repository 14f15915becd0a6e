"""The spool loses no event, keeps their order, and gives each one id."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.audit import AuditSpool, RetrySucceeded, parse_event
from oncemore.audit import spool as spooling
from oncemore.audit.recorder import SinkWriter
from oncemore.errors import PermanentError, StoreError, UsageError
from oncemore.outbox import JetStreamSink, JsonLinesSink
from oncemore.profiles.exoarmur import RetryCategory, RetryManager
from oncemore.testing import FakeClock
from tests.messaging.inbox.broker import Broker, wire

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.outbox import EventMessage

SUBJECT = "exoarmur.audit.append.v1"


def event(number: int) -> RetrySucceeded:
    return RetrySucceeded(
        retry_category="RETRY_KV_GET", operation=f"look {number}", total_attempts=1, tenant_id="t",
        correlation_id="c", trace_id=None, timestamp=f"2026-11-16T08:00:00.{number:06d}Z",
    )  # fmt: skip


class Sink:
    """A sink that accepts messages unless it is down."""

    def __init__(self) -> None:
        self.taken: list[EventMessage] = []
        self.tries = 0
        self.down: BaseException | None = None

    def __call__(self, message: EventMessage) -> None:
        self.tries += 1
        if self.down is not None:
            raise self.down
        self.taken.append(message)

    @property
    def told(self) -> list[str]:
        return [message.payload["operation"] for message in self.taken]


@pytest.mark.req("AUDIT-11")
def test_a_sink_gets_all_events_in_order_after_ten_minutes_of_outage(tmp_path: Path) -> None:
    sink = Sink()
    sink.down = ConnectionRefusedError("nobody there")
    with FakeClock() as clock:
        spool = AuditSpool(tmp_path / "audit.jsonl", sink)
        manager = RetryManager(on_event=spool)

        async def look(number: int) -> None:
            async def work() -> int:
                return number

            await manager.execute_with_retry(RetryCategory.KV_GET, f"look {number}", work)

        for number in range(60):
            asyncio.run(look(number))
            assert spool.send() == 0
            clock.advance(10.0)
        assert 15 < sink.tries < 40, "it is left alone for longer and longer, and never for good"
        sink.down = None
        clock.advance(31.0)
        assert spool.send() == 60
    assert sink.told == [f"look {number}" for number in range(60)]
    assert [message.sequence for message in sink.taken] == sorted(message.sequence for message in sink.taken)
    assert len({message.id for message in sink.taken}) == 60
    assert spool.pending_bytes == 0
    spool.close()


def test_a_reopened_spool_sends_unsent_events_and_repeats_under_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Sink(), Sink()
    spool = AuditSpool(tmp_path / "audit.jsonl", first)
    spool(event(1))
    assert spool.send() == 1
    with monkeypatch.context() as dying:
        dying.setattr(spool, "_write_offset", lambda: None)  # it dies before it can note anything
        spool(event(2))
        assert spool.send() == 1
    spool(event(3))
    spool.close()
    spool.close()
    again = AuditSpool(tmp_path / "audit.jsonl", second)
    assert again.flush(5.0)
    assert second.told == ["look 2", "look 3"]
    assert second.taken[0].id == first.taken[1].id
    again.close()
    with pytest.raises(UsageError, match="is closed"):
        again(event(4))


def test_a_line_cut_off_by_a_crash_does_not_affect_other_lines(tmp_path: Path) -> None:
    path, sink = tmp_path / "audit.jsonl", Sink()
    odd = {**event(1).to_dict(), "timestamp": "yesterday"}
    path.write_text(f'{json.dumps(odd)}\n[]\n{{"event_type": "retr', encoding="utf-8")
    spool = AuditSpool(path, sink)
    spool(event(2))
    assert spool.send() == 4
    assert (spool.torn_lines, sink.told) == (3, ["look 2"])
    assert parse_event(sink.taken[0].payload) == event(2)
    spool.close()


def test_a_permanently_refused_event_is_moved_aside(tmp_path: Path) -> None:
    sink, path = Sink(), tmp_path / "audit.jsonl"
    spool = AuditSpool(path, sink)
    spool(event(1))
    sink.down = PermanentError("token=abc is not allowed here")
    assert spool.send() == 1
    sink.down = None
    spool(event(2))
    assert spool.send() == 1
    (kept,) = [json.loads(line) for line in path.with_name("audit.jsonl.refused").read_text().splitlines()]
    assert kept["event"] == event(1).to_dict()
    assert kept["error"].startswith("PermanentError: ")
    assert "abc" not in kept["error"]
    assert (spool.refused_events, sink.told) == (1, ["look 2"])
    spool.close()


def test_a_file_has_one_spool_and_an_invalid_offset_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    spool = AuditSpool(path, Sink())
    spool(event(1))
    spool.send()
    with pytest.raises(UsageError, match="is open in another spool"):
        AuditSpool(path, Sink())
    spool.close()
    for wrong in ("", "{}", "[]", '{"bytes": 999999}', '{"bytes": -1}', '{"bytes": true}'):
        path.with_name("audit.jsonl.sent").write_text(wrong)
        again = AuditSpool(path, Sink())
        assert again.pending_bytes > 0, "sent again rather than forgotten"
        assert "bytes unsent" in repr(again)
        again.close()
    with pytest.raises(UsageError, match="it takes a function of one message"):
        AuditSpool(path, None)  # type: ignore[arg-type]


def test_a_full_spool_raises_and_the_sink_writer_logs_the_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = AuditSpool(tmp_path / "audit.jsonl", Sink(), max_bytes=300)
    spool(event(1))
    with pytest.raises(StoreError, match="215 unsent bytes and its limit is 300"):
        spool(event(2))
    SinkWriter(spool)(event(3))
    assert "look 3" in caplog.text
    spool.send()
    spool(event(4))
    spool.close()


def test_a_half_written_line_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, sink = AuditSpool(tmp_path / "audit.jsonl", Sink()), Sink()
    spool(event(1))
    real = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "no space left")
        return real(file, data[: len(data) // 2])

    with monkeypatch.context() as patched:
        patched.setattr(spooling.os, "write", full)
        with pytest.raises(OSError, match="no space"):
            spool(event(2))
    spool(event(3))
    spool.close()
    again = AuditSpool(tmp_path / "audit.jsonl", sink)
    again.send()
    assert sink.told == ["look 1", "look 3"]
    again.close()


def test_the_thread_sends_writes_offsets_and_survives_disk_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spooling, "OFFSET_EVERY", 2)
    monkeypatch.setattr(spooling, "POLL_S", 0.01)
    sink, sick = Sink(), threading.Event()
    with AuditSpool(tmp_path / "audit.jsonl", sink) as spool:
        for number in range(5):
            spool(event(number))
        assert spool.flush(10.0)
        real = spool._unsent_lines

        def unsent() -> Any:
            if not sick.is_set():
                sick.set()
                raise OSError("the disk is sick")
            return real()

        monkeypatch.setattr(spool, "_unsent_lines", unsent)
        assert sick.wait(10.0)
        spool(event(5))
        assert spool.flush(10.0)
    told = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error) for error in told] == ["the disk is sick"]
    assert sink.told == [f"look {number}" for number in range(6)]


VICTIM = """
import os, signal, sys
from oncemore.audit import RetrySucceeded, AuditSpool as Spool
from oncemore.outbox import JsonLinesSink as JsonLines

sink, left = JsonLines(sys.argv[2]), [3]

def take(message):
    sink(message)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

spool = Spool(sys.argv[1], take)
for n in range(5):
    spool(RetrySucceeded(
        retry_category="RETRY_KV_GET", operation=f"look {n}", total_attempts=1, tenant_id=None,
        correlation_id=None, trace_id=None, timestamp=f"2026-11-16T08:00:00.{n:06d}Z",
    ))
spool.send()
"""


def test_a_process_killed_after_sending_sends_again_under_the_same_id(tmp_path: Path) -> None:
    told, out = tmp_path / "audit.jsonl", tmp_path / "out.jsonl"
    ended = subprocess.run([sys.executable, "-c", VICTIM, told, out], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    spool = AuditSpool(told, JsonLinesSink(out))
    spool.send()
    spool.close()
    got = [json.loads(line) for line in out.read_text().splitlines()]
    by_id = {one["id"]: one["payload"]["operation"] for one in got}
    assert len(got) == 8, "three before the kill, and all five after it: nothing had been noted"
    assert list(by_id.values()) == [f"look {n}" for n in range(5)], "each under one id, in order"


@pytest.mark.req("AUDIT-11", "AUDIT-12")
@pytest.mark.timeout(60)
def test_a_stream_holds_each_event_once_in_order_though_an_answer_is_lost_and_the_server_killed(
    tmp_path: Path,
) -> None:
    broker = Broker(tmp_path)
    try:
        url = broker.start()
        asyncio.run(_make(url))
        with wire(url) as cable:
            cable.cut("out", b'"stream":"AUDIT"')
            to = JetStreamSink(cable.url, form="cloudevents-binary", timeout=1.0)
            with AuditSpool(tmp_path / "audit.jsonl", to, topic=SUBJECT) as spool:
                for number in range(3):
                    spool(event(number))
                assert spool.flush(20.0)
            to.close()
            assert cable.cuts == 1
        to = JetStreamSink(url, form="cloudevents-binary", timeout=1.0)
        with AuditSpool(tmp_path / "audit.jsonl", to, topic=SUBJECT) as spool:
            broker.kill()
            for number in range(3, 6):
                spool(event(number))
            assert not spool.flush(0.3)
            broker.start()
            assert spool.flush(20.0)
        to.close()
        stored = asyncio.run(_stored(url))
    finally:
        broker.stop()
    assert [parse_event(json.loads(one)) for one in stored] == [event(number) for number in range(6)]


async def _make(url: str) -> None:
    import nats

    line = await nats.connect(url)
    await line.jetstream().add_stream(name="AUDIT", subjects=[SUBJECT])
    await line.close()


async def _stored(url: str) -> list[bytes]:
    import nats

    line = await nats.connect(url)
    streams = line.jetstream()
    count = (await streams.stream_info("AUDIT")).state.messages
    found = [(await streams.get_msg("AUDIT", number + 1)).data or b"" for number in range(count)]
    await line.close()
    return found
