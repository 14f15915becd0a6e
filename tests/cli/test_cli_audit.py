"""`oncemore audit`: events of a file are filtered, followed and summed up."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from oncemore import cli
from oncemore.audit import AuditFile
from oncemore.profiles.exoarmur import RetryCategory, RetryError, RetryManager
from oncemore.queries.audit import AuditTrail, EventFilter
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Events of three operations under two categories, for two tenants, as a manager tells them."""
    path = tmp_path / "audit.jsonl"

    async def operations() -> None:
        manager = RetryManager()
        manager.add_sink(sink)
        for category, fails, tenant in (
            (RetryCategory.KV_GET, 0, "north"),
            (RetryCategory.KV_GET, 1, "south"),
            (RetryCategory.KV_GET, 9, "south"),
            (RetryCategory.NATS_CONNECT, 2, "north"),
        ):
            left = [TimeoutError("no answer")] * fails

            async def work(left: list[TimeoutError] = left) -> str:
                if left:
                    raise left.pop()
                return "done"

            ids = {"tenant_id": tenant, "correlation_id": f"corr-{fails}", "trace_id": "t"}
            with suppress(RetryError):  # how it ends is in the events
                await manager.execute_with_retry(category, "Get the state", work, **ids)

    with FakeClock(), AuditFile(path) as sink:
        asyncio.run(operations())
    return path


class Ran:
    """What a command printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        self.code = cli.run_command(["audit", *words])
        self.out, self.err = capsys.readouterr()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.mark.req("CLI-7")
@pytest.mark.parametrize(
    ("words", "field", "value", "count"),
    [
        (("--type", "retry_succeeded"), "event_type", "retry_succeeded", 3),
        (("--category", "RETRY_NATS_CONNECT"), "retry_category", "RETRY_NATS_CONNECT", 3),
        (("--tenant", "north"), "tenant_id", "north", 4),
        (("--correlation", "corr-9"), "correlation_id", "corr-9", 3),
        (("--operation", "Get the state"), "operation", "Get the state", 9),
    ],
)
def test_events_are_chosen_by_type_category_tenant_and_course(
    file: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str], field: str, value: str, count: int
) -> None:
    ran = Ran(capsys, "filter", str(file), *words, "--json")
    assert ran.code == 0
    assert len(ran.events) == count
    assert {event[field] for event in ran.events} == {value}
    every = [json.loads(line) for line in file.read_text().splitlines()]
    assert ran.events == [event for event in every if event[field] == value]


@pytest.mark.req("CLI-7")
def test_patterns_are_told_per_category(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(Ran(capsys, "patterns", str(file), "--json").out)
    assert found["RETRY_KV_GET"] == {
        "operations": 3, "total_attempts": 6, "success_rate": 2 / 3, "avg_attempts": 2.0,
    }  # fmt: skip
    table = Ran(capsys, "patterns", str(file)).out.splitlines()
    assert table[1].split() == ["RETRY_KV_GET", "3", "6", "0.67", "2.0"]
    assert table[2].split() == ["RETRY_NATS_CONNECT", "1", "3", "1.00", "3.0"]
    assert Ran(capsys, "patterns", str(file), "--tenant", "west").out == "No operation has finished.\n"


def test_the_last_lines_are_for_people(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, "tail", str(file), "-n", "1", "--category", "RETRY_KV_GET")
    (line,) = ran.out.splitlines()
    assert "retry_exhausted  RETRY_KV_GET  Get the state  total_attempts=3" in line
    assert "final_exception_type=TimeoutError" in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--type", "retry_atempt"), "'retry_atempt' is not an event type; the types are retry_attempt"),
        (("--store", "log.db"), "Give either a FILE or --store."),
    ],
)
def test_a_wrong_question_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    ran = Ran(capsys, "tail", str(file), *words)
    assert (ran.code, ran.out) == (2, "")
    assert told in " ".join(ran.err.split())


def test_a_line_that_is_no_event_is_named_and_a_torn_one_counted(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "torn.jsonl"
    path.write_text('{"event_ty\n\n' + file.read_text())
    ran = Ran(capsys, "tail", str(path), "--json")
    assert (ran.code, len(ran.events)) == (0, 9)
    assert " ".join(ran.err.split()) == f"skipped 1 line of {path}: not valid JSON"
    path.write_text('\n{"event_type": "party"}\n')
    ran = Ran(capsys, "tail", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert "torn.jsonl, line 2: 'party' is not an event type" in " ".join(ran.err.split())
    path.write_text("[1]\n")
    assert Ran(capsys, "tail", str(path)).code == 2
    assert "No such file" in Ran(capsys, "tail", str(tmp_path / "nowhere")).err


def test_what_comes_is_followed_and_a_torn_line_waited_for(file: Path) -> None:
    first, second, *_ = file.read_text().splitlines(keepends=True)
    grows = io.StringIO()
    trail = AuditTrail(grows, "grows", EventFilter())

    def write(text: str) -> None:
        at = grows.tell()
        grows.seek(0, io.SEEK_END)
        grows.write(text)
        grows.seek(at)

    pieces = [first[:40], first[40:] + second[:-1], "\n"]

    def wait(seconds: float) -> None:
        if not pieces:
            raise KeyboardInterrupt
        write(pieces.pop(0))

    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        for event in trail.follow_events(wait):
            seen.append(event.to_json())
    assert seen == [first.strip(), second.strip()]
