"""Events wait on disk until somebody else has them: none is lost, none overtakes another, each has one id."""

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

from oncemore.audit import RetrySucceeded, Spool, event_from
from oncemore.audit import spool as spooling
from oncemore.audit.recorder import Outlet
from oncemore.errors import PermanentError, StoreError, UsageError
from oncemore.outbox import JetStream, JsonLines
from oncemore.profiles.exoarmur import RetryCategory, RetryManager
from oncemore.testing import FakeClock
from tests.inbox.broker import Broker, wire

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.outbox import Message

SUBJECT = "exoarmur.audit.append.v1"


def event(number: int) -> RetrySucceeded:
    return RetrySucceeded(
        "RETRY_KV_GET", f"look {number}", 1, "t", "c", None, f"2026-11-16T08:00:00.{number:06d}Z"
    )


class Sink:
    """Takes messages unless it is down; `dies` after it took one."""

    def __init__(self) -> None:
        self.taken: list[Message] = []
        self.tries = 0
        self.down: BaseException | None = None

    def __call__(self, message: Message) -> None:
        self.tries += 1
        if self.down is not None:
            raise self.down
        self.taken.append(message)

    @property
    def told(self) -> list[str]:
        return [message.payload["operation"] for message in self.taken]


@pytest.mark.req("AUDIT-11")
def test_a_sink_that_is_down_for_ten_minutes_misses_nothing_and_gets_all_in_order(tmp_path: Path) -> None:
    sink = Sink()
    sink.down = ConnectionRefusedError("nobody there")
    with FakeClock() as clock:
        spool = Spool(tmp_path / "audit.jsonl", sink)
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
    assert spool.waiting == 0
    spool.close()


def test_who_comes_next_sends_what_waits_and_what_was_sent_and_not_noted_under_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Sink(), Sink()
    spool = Spool(tmp_path / "audit.jsonl", first)
    spool(event(1))
    assert spool.send() == 1
    with monkeypatch.context() as dying:
        dying.setattr(spool, "_write_note", lambda: None)  # it dies before it can note anything
        spool(event(2))
        assert spool.send() == 1
    spool(event(3))
    spool.close()
    spool.close()
    again = Spool(tmp_path / "audit.jsonl", second)
    assert again.flush(5.0)
    assert second.told == ["look 2", "look 3"]
    assert second.taken[0].id == first.taken[1].id
    again.close()
    with pytest.raises(UsageError, match="is closed"):
        again(event(4))


def test_a_line_that_a_crash_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path, sink = tmp_path / "audit.jsonl", Sink()
    odd = {**event(1).plain(), "timestamp": "yesterday"}
    path.write_text(f'{json.dumps(odd)}\n[]\n{{"event_type": "retr', encoding="utf-8")
    spool = Spool(path, sink)
    spool(event(2))
    assert spool.send() == 4
    assert (spool.torn, sink.told) == (3, ["look 2"])
    assert event_from(sink.taken[0].payload) == event(2)
    spool.close()


def test_what_a_sink_refuses_for_good_is_kept_aside_and_holds_up_nobody(tmp_path: Path) -> None:
    sink, path = Sink(), tmp_path / "audit.jsonl"
    spool = Spool(path, sink)
    spool(event(1))
    sink.down = PermanentError("token=abc is not allowed here")
    assert spool.send() == 1
    sink.down = None
    spool(event(2))
    assert spool.send() == 1
    (kept,) = [json.loads(line) for line in path.with_name("audit.jsonl.refused").read_text().splitlines()]
    assert kept["event"] == event(1).plain()
    assert kept["error"].startswith("PermanentError: ")
    assert "abc" not in kept["error"]
    assert (spool.refused, sink.told) == (1, ["look 2"])
    spool.close()


def test_a_file_belongs_to_one_spool_and_a_note_that_cannot_be_right_is_none(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    spool = Spool(path, Sink())
    spool(event(1))
    spool.send()
    with pytest.raises(UsageError, match="belongs to another spool"):
        Spool(path, Sink())
    spool.close()
    for wrong in ("", "{}", "[]", '{"bytes": 999999}', '{"bytes": -1}', '{"bytes": true}'):
        path.with_name("audit.jsonl.sent").write_text(wrong)
        again = Spool(path, Sink())
        assert again.waiting > 0, "sent again rather than forgotten"
        assert "bytes wait" in repr(again)
        again.close()
    with pytest.raises(UsageError, match="it takes a function of one message"):
        Spool(path, None)  # type: ignore[arg-type]


def test_a_full_spool_says_so_and_the_outlet_keeps_the_event_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path / "audit.jsonl", Sink(), most_bytes=300)
    spool(event(1))
    with pytest.raises(StoreError, match="no more fits"):
        spool(event(2))
    Outlet(spool)(event(3))
    assert "look 3" in caplog.text
    spool.send()
    spool(event(4))
    spool.close()


def test_a_disk_that_takes_half_a_line_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, sink = Spool(tmp_path / "audit.jsonl", Sink()), Sink()
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
    again = Spool(tmp_path / "audit.jsonl", sink)
    again.send()
    assert sink.told == ["look 1", "look 3"]
    again.close()


def test_the_thread_sends_by_itself_notes_now_and_then_and_survives_a_sick_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spooling, "NOTED_EVERY", 2)
    monkeypatch.setattr(spooling, "LOOK_S", 0.01)
    sink, sick = Sink(), threading.Event()
    with Spool(tmp_path / "audit.jsonl", sink) as spool:
        for number in range(5):
            spool(event(number))
        assert spool.flush(10.0)
        real = spool._unsent

        def unsent() -> Any:
            if not sick.is_set():
                sick.set()
                raise OSError("the disk is sick")
            return real()

        monkeypatch.setattr(spool, "_unsent", unsent)
        assert sick.wait(10.0)
        spool(event(5))
        assert spool.flush(10.0)
    told = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error) for error in told] == ["the disk is sick"]
    assert sink.told == [f"look {number}" for number in range(6)]


VICTIM = """
import os, signal, sys
from oncemore.audit import RetrySucceeded, Spool
from oncemore.outbox import JsonLines

sink, left = JsonLines(sys.argv[2]), [3]

def take(message):
    sink(message)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

spool = Spool(sys.argv[1], take)
for n in range(5):
    spool(RetrySucceeded("RETRY_KV_GET", f"look {n}", 1, None, None, None, f"2026-11-16T08:00:00.{n:06d}Z"))
spool.send()
"""


def test_a_process_killed_after_a_sink_took_an_event_sends_it_again_under_its_id(tmp_path: Path) -> None:
    told, out = tmp_path / "audit.jsonl", tmp_path / "out.jsonl"
    ended = subprocess.run([sys.executable, "-c", VICTIM, told, out], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    spool = Spool(told, JsonLines(out))
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
            to = JetStream(cable.url, form="cloudevents-binary", timeout=1.0)
            with Spool(tmp_path / "audit.jsonl", to, topic=SUBJECT) as spool:
                for number in range(3):
                    spool(event(number))
                assert spool.flush(20.0)
            to.close()
            assert cable.cuts == 1
        to = JetStream(url, form="cloudevents-binary", timeout=1.0)
        with Spool(tmp_path / "audit.jsonl", to, topic=SUBJECT) as spool:
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
    assert [event_from(json.loads(one)) for one in stored] == [event(number) for number in range(6)]


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
