"""Real processes and a real server, whose own log says what reached it while a breaker was open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.log.entry_codec import decode_body, decode_head, decode_header
from oncemore.log.record import BreakerRecord, QuotaRecord, apply_header
from oncemore.steps.history import verify_chain
from tests.limits.longer import lasting
from tests.limits.server import Provider, provider

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def served() -> Iterator[Provider]:
    with provider() as told:
        yield told


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "log.db")


def start(*told: str, cooldown_s: float = 1.0) -> subprocess.Popen[str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    quiet["GATES_COOLDOWN_S"] = str(cooldown_s)
    command = [sys.executable, "-m", "tests.limits.victim", *told]
    return subprocess.Popen(
        command, cwd=ROOT, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def said(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.splitlines()[1:]


def circuit(store: str) -> BreakerRecord:
    with oncemore.open(store) as engine:
        head = engine.store.load_head("breaker/provider")
        assert head is not None
        return decode_head(head.head, BreakerRecord)


def opened(store: str, served: Provider, cooldown_s: float = 60.0) -> BreakerRecord:
    """Let a process of its own open the breaker, and end."""
    served.status = 503
    said(start("fail", store, served.url, cooldown_s=cooldown_s))
    found = circuit(store)
    assert found.state == "OPEN"
    return found


def over(store: str, found: BreakerRecord) -> None:
    """Let the cooldown be over, without waiting for it."""
    with oncemore.open(store) as engine:
        lasting(engine, found, 0.001)


@pytest.mark.req("BREAK-4")
@pytest.mark.parametrize("what", ["step", "retry"])
def test_a_hundred_callers_in_four_processes_cause_one_request(
    store: str, served: Provider, what: str
) -> None:
    over(store, opened(store, served))
    before = len(served.requests)
    served.delay_s = 0.6  # while it is tried, the others come; and who is late comes when it has failed
    at = str(time.time() + 2.0)  # when all are there
    processes = [start(what, store, served.url, str(1000 * n), at, cooldown_s=60.0) for n in range(1, 5)]
    found = [said(one) for one in processes]
    assert len(served.requests) == before + 1
    outcomes: dict[str, int] = {}
    for (line,) in found:
        for name, count in eval(line).items():  # noqa: S307 - what our own process has printed
            outcomes[name] = outcomes.get(name, 0) + count
    assert sum(outcomes.values()) == 100
    refusal = "Deferred" if what == "step" else "CircuitOpen"
    assert outcomes[refusal] >= 99
    with oncemore.open(store) as engine:
        verify_chain(engine.store.read_entries())


@pytest.mark.req("BREAK-8")
def test_one_that_was_opened_in_one_process_is_open_in_the_next(store: str, served: Provider) -> None:
    opened(store, served)
    before = len(served.requests)
    assert said(start("once", store, served.url, "5000")) == ["Deferred"]
    assert said(start("once", store, served.url, "5000")) == ["Deferred"]  # and after a restart
    assert len(served.requests) == before


@pytest.mark.req("BREAK-3")
def test_no_request_comes_while_it_is_open(store: str, served: Provider) -> None:
    served.status = 503
    at = str(time.time() + 30.0)
    processes = [start("hammer", store, served.url, str(100_000 * n), at) for n in range(1, 5)]
    for one in processes:
        said(one)
    with oncemore.open(store) as engine:
        spans, begun = open_spans(engine), claims(engine)
        assert len(spans) >= 3
        # By the order of the log, which no clock and no slow machine can change: nobody begins while it is
        # open; and by the server's own count nobody asks who has not begun.
        inside = [seq for seq in begun for opened, closed in spans if opened < seq < closed - 1]
        assert not inside, "an attempt began while it was open"
        assert len(served.requests) <= len(begun)
        verify_chain(engine.store.read_entries())


def open_spans(engine: oncemore.Engine) -> list[tuple[int, int]]:
    """From which entry to which the breaker was open."""
    state: BreakerRecord | None = None
    spans: list[tuple[int, int]] = []
    since = 0
    for entry in engine.store.read_entries("breaker/provider"):
        state = apply_header(state, decode_header(entry.header).sets, BreakerRecord)
        if state.state == "OPEN":
            since = since or entry.seq
        elif since:
            spans.append((since, entry.seq))
            since = 0
    return [*spans, (since, sys.maxsize)] if since else spans


def claims(engine: oncemore.Engine) -> list[int]:
    """Which entries begin an attempt; that of the probe is written together with the breaker's, before it."""
    return [
        entry.seq for entry in engine.store.read_entries() if "INTENT" in decode_header(entry.header).marks
    ]


def test_the_probe_of_a_process_that_was_killed_is_taken_over_at_once(store: str, served: Provider) -> None:
    over(store, opened(store, served))
    before = len(served.requests)
    served.delay_s, served.status = 30.0, 200
    holder = start("once", store, served.url, "5000")
    served.wait_for(before + 1)
    assert circuit(store).state == "HALF_OPEN"
    assert said(start("once", store, served.url, "6000")) == ["Deferred"]  # it is held
    assert len(served.requests) == before + 1
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate(timeout=20)
    served.delay_s = 0.0
    began = time.monotonic()
    assert said(start("once", store, served.url, "7000")) == ["ok /7000"]
    assert time.monotonic() - began < 50  # not after its lease of a minute
    found = circuit(store)
    assert (found.state, found.probe_number) == ("CLOSED", 2)
    assert said(start("once", store, served.url, "5000")) == ["ok /5000"]  # what was killed is done again


def test_processes_that_share_a_budget_take_each_token_once_though_one_is_killed(store: str) -> None:
    with oncemore.open(store) as engine:  # it is there before they come
        processes = [start("spend", store, "", str(1000 * n)) for n in (1, 2)]
        ends = time.monotonic() + 30
        while taken(engine) < 10 and time.monotonic() < ends:
            time.sleep(0.005)
        os.kill(processes[0].pid, signal.SIGKILL)
        processes[0].communicate(timeout=20)
        said(processes[1])
        said(start("spend", store, "", "1000"))  # what was killed goes on
        assert taken(engine) == 40
        paid = [entry for entry in engine.store.read_entries() if decided_to_retry(entry.header)]
        assert len(paid) == 40
        whose = [
            decode_body(entry.body)["run"]
            for entry in engine.store.read_entries("quota/provider")
            if entry.body
        ]
        assert sorted(whose) == sorted(entry.entity for entry in paid)
        verify_chain(engine.store.read_entries())


def taken(engine: oncemore.Engine) -> float:
    head = engine.store.load_head("quota/provider")
    return 0.0 if head is None else 40 - decode_head(head.head, QuotaRecord).tokens


def decided_to_retry(raw: bytes) -> bool:
    header = decode_header(raw)
    return "DECISION" in header.marks and header.sets.get("reason") == "retry"
