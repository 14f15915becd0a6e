"""A file of events holds one whole line per event, whatever happens while it is written."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.audit import AuditStream, JsonLines
from oncemore.errors import UsageError
from tests.evidence.test_events import sample

if TYPE_CHECKING:
    from pathlib import Path

EVENT = sample("retry_succeeded", operation="naïve 東京")


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_events_are_appended_one_per_line_and_flushed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"before": true}\n', encoding="utf-8")
    with JsonLines(path) as sink:
        sink(EVENT)
        assert lines_of(path) == ['{"before": true}', EVENT.json()]
        sink(EVENT)
    assert lines_of(path)[1:] == [EVENT.json()] * 2
    with pytest.raises(ValueError, match="closed"):
        sink(EVENT)


def test_a_path_that_cannot_be_opened_says_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        JsonLines(tmp_path / "missing" / "audit.jsonl")


@pytest.mark.parametrize("made", [io.StringIO, io.BytesIO], ids=["text", "binary"])
def test_an_open_file_is_written_to_and_left_open(made: Any) -> None:
    file = made()
    with JsonLines(file) as sink:
        sink(EVENT)
    written = file.getvalue()
    assert (written if isinstance(written, str) else written.decode()) == EVENT.json() + "\n"


def test_a_wrapped_temporary_file_is_told_apart() -> None:
    for mode in ("w+", "w+b"):
        with tempfile.NamedTemporaryFile(mode) as file:
            JsonLines(file)(EVENT)  # type: ignore[arg-type]
            file.seek(0)
            assert len(file.readlines()) == 1


def test_a_file_that_says_nothing_about_how_much_it_took_took_all() -> None:
    class Quiet:
        def __init__(self) -> None:
            self.taken: list[bytes] = []

        def write(self, data: bytes) -> None:
            self.taken.append(data)

        def flush(self) -> None: ...

    quiet = Quiet()
    JsonLines(quiet)(EVENT)  # type: ignore[arg-type]
    assert b"".join(quiet.taken).decode() == EVENT.json() + "\n"


class Full(io.RawIOBase):
    """A raw file that takes a few bytes at a time, and has a limit that can be raised."""

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


def test_a_file_that_takes_a_part_gets_the_rest() -> None:
    file = Full(10_000)
    JsonLines(file)(EVENT)  # type: ignore[arg-type]
    assert file.taken.decode() == EVENT.json() + "\n"


def test_a_line_that_was_cut_off_does_not_spoil_the_next() -> None:
    file = Full(20)
    sink = JsonLines(file)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="No space"):
        sink(EVENT)
    file.room = 10_000
    sink(EVENT)
    sink(EVENT)
    torn, *whole = file.taken.decode().splitlines()
    assert len(torn) == 20
    assert whole == [EVENT.json()] * 2


def test_a_file_that_would_block_is_not_taken_for_one_that_wrote() -> None:
    with pytest.raises(BlockingIOError, match="lose the event"):
        JsonLines(Full(None))(EVENT)  # type: ignore[arg-type]


def test_lines_of_threads_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with JsonLines(path) as sink:
        threads = [Thread(target=lambda: [sink(EVENT) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert lines_of(path) == [EVENT.json()] * 800


def test_lines_of_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    code = """
import sys
from oncemore.audit import JsonLines, RetrySucceeded
event = RetrySucceeded("C", "x" * 150, 1, None, None, None, "2027-01-15T08:00:00.000000Z")
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
    with JsonLines(path) as sink:
        for event in events:
            sink(event)
    path.write_bytes(path.read_bytes() + b"\n")
    assert list(AuditStream.read(path)) == events
    stream = AuditStream.read(path, most=2)
    assert (list(stream), stream.dropped) == (events[1:], 1)


@pytest.mark.parametrize("bad", ['{"event_type": "retry_', '{"event_type": "no"}', "7", "[]"])
def test_a_line_that_is_no_event_is_named(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text(f"{EVENT.json()}\n{bad}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"audit\.jsonl, line 2: "):
        AuditStream.read(path)
