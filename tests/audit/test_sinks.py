"""A file of events has one whole line per event, also after errors while writing."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.audit import AuditFile, AuditStream
from oncemore.errors import UsageError
from tests.audit.test_events import sample

if TYPE_CHECKING:
    from pathlib import Path

EVENT = sample("retry_succeeded", operation="naïve 東京")


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_events_are_appended_one_per_line_and_flushed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"before": true}\n', encoding="utf-8")
    with AuditFile(path) as sink:
        sink(EVENT)
        assert lines_of(path) == ['{"before": true}', EVENT.to_json()]
        sink(EVENT)
    assert lines_of(path)[1:] == [EVENT.to_json()] * 2
    with pytest.raises(ValueError, match="closed"):
        sink(EVENT)


def test_a_path_that_cannot_be_opened_says_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        AuditFile(tmp_path / "missing" / "audit.jsonl")


@pytest.mark.parametrize("made", [io.StringIO, io.BytesIO], ids=["text", "binary"])
def test_an_open_file_is_written_to_and_left_open(made: Any) -> None:
    file = made()
    with AuditFile(file) as sink:
        sink(EVENT)
    written = file.getvalue()
    assert (written if isinstance(written, str) else written.decode()) == EVENT.to_json() + "\n"


def test_a_wrapped_temporary_file_is_told_apart() -> None:
    for mode in ("w+", "w+b"):
        with tempfile.NamedTemporaryFile(mode) as file:
            AuditFile(file)(EVENT)  # type: ignore[arg-type]
            file.seek(0)
            assert len(file.readlines()) == 1


def test_a_write_that_returns_none_wrote_everything() -> None:
    class Quiet:
        def __init__(self) -> None:
            self.taken: list[bytes] = []

        def write(self, data: bytes) -> None:
            self.taken.append(data)

        def flush(self) -> None: ...

    quiet = Quiet()
    AuditFile(quiet)(EVENT)  # type: ignore[arg-type]
    assert b"".join(quiet.taken).decode() == EVENT.to_json() + "\n"


class Full(io.RawIOBase):
    """A raw file with partial writes and an adjustable size limit."""

    def __init__(self, room: int | None) -> None:
        self.taken = b""
        self.room = room

    def write(self, data: Any) -> int | None:
        if self.room is None:
            return None
        if len(self.taken) >= self.room:
            raise OSError(28, "No space left on device")
        piece = bytes(data[: min(7, self.room - len(self.taken))])
        self.taken += piece
        return len(piece)


def test_a_partial_write_is_continued() -> None:
    file = Full(10_000)
    AuditFile(file)(EVENT)  # type: ignore[arg-type]
    assert file.taken.decode() == EVENT.to_json() + "\n"


def test_a_torn_line_is_terminated_before_the_next() -> None:
    file = Full(20)
    sink = AuditFile(file)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No space"):
        sink(EVENT)
    file.room = 10_000
    sink(EVENT)
    sink(EVENT)
    torn, *whole = file.taken.decode().splitlines()
    assert len(torn) == 20
    assert whole == [EVENT.to_json()] * 2


def test_a_file_that_would_block_raises() -> None:
    with pytest.raises(BlockingIOError, match="the event was not written"):
        AuditFile(Full(None))(EVENT)  # type: ignore[arg-type]


def test_lines_of_threads_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditFile(path) as sink:
        threads = [Thread(target=lambda: [sink(EVENT) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert lines_of(path) == [EVENT.to_json()] * 800


def test_lines_of_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    code = """
import sys
from oncemore.audit import AuditFile as JsonLines, RetrySucceeded
event = RetrySucceeded(
    retry_category="C", operation="x" * 150, total_attempts=1, tenant_id=None, correlation_id=None,
    trace_id=None, timestamp="2027-01-15T08:00:00.000000Z",
)
sink = JsonLines(sys.argv[1])
for _ in range(300):
    sink(event)
"""
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert {json.loads(line)["event_type"] for line in lines_of(path)} == {"retry_succeeded"}
    assert len(lines_of(path)) == 900


def test_a_file_of_events_is_read_back_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    events = [sample("retry_attempt"), EVENT, sample("retry_refused", reason="held")]
    with AuditFile(path) as sink:
        for event in events:
            sink(event)
    path.write_bytes(path.read_bytes() + b"\n")
    assert list(AuditStream.read(path)) == events
    stream = AuditStream.read(path, max_events=2)
    assert (list(stream), stream.dropped_events) == (events[1:], 1)


@pytest.mark.parametrize("bad", ['{"event_type": "retry_', '{"event_type": "no"}', "7", "[]"])
def test_a_line_that_is_not_an_event_is_reported_with_its_number(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text(f"{EVENT.to_json()}\n{bad}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"audit\.jsonl, line 2: "):
        AuditStream.read(path)
