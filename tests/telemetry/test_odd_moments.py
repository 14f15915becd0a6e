"""Rare moments of measuring, signals and the matrix: closed coroutines, lost races, full documents."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import Deferred
from oncemore.log.entry_codec import load_head
from oncemore.policy.canonical_json import encode_canonical
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy
from oncemore.policy.tuning import Signals, Tuning
from oncemore.telemetry import meter, signal_board, signal_sources
from oncemore.telemetry.autonomy_rules import AutonomyRecord
from oncemore.telemetry.records import is_attempt_end
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUSY = Failure("transient", code="BUSY")


# Measuring ------------------------------------------------------------------------------------------


class PlainAwaitable:
    """An awaitable whose iterator is a plain one, as some C extensions have it."""

    def __await__(self) -> Iterator[Any]:
        return iter(())


class GeneratorAwaitable:
    """An awaitable that is not a coroutine."""

    def __await__(self) -> Any:
        return (yield from asyncio.sleep(0, 7).__await__())


def fake_attempt() -> Any:
    class FakeAttempt:
        cpu_s = cpu_start = 0.0
        active_thread = cpu_clock = 0
        parent = None

    return FakeAttempt()


def test_every_kind_of_awaitable_is_awaited() -> None:
    async def wait_for(work: Any) -> Any:
        return await meter.MeasuredAwaitable(fake_attempt(), work)

    assert asyncio.run(wait_for(PlainAwaitable())) is None
    assert asyncio.run(wait_for(GeneratorAwaitable())) == 7


def test_errors_and_cancellation_reach_the_work_and_a_closed_coroutine_closes_it() -> None:
    seen: list[str] = []

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            return "late"
        finally:
            seen.append("closed")
        raise AssertionError

    async def wait_for() -> Any:
        return await meter.MeasuredAwaitable(fake_attempt(), work())

    async def cancel() -> Any:
        task = asyncio.ensure_future(wait_for())
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert asyncio.run(cancel()) == "late"
    coroutine = wait_for()
    with pytest.raises(RuntimeError, match="no running event loop"):
        coroutine.send(None)
    seen.clear()

    async def endless() -> None:
        try:
            while True:
                await GeneratorStep()
        finally:
            seen.append("closed")

    class GeneratorStep:
        def __await__(self) -> Any:
            yield None

    async def wait_endless() -> None:
        await meter.MeasuredAwaitable(fake_attempt(), endless())

    closed = wait_endless()
    closed.send(None)
    closed.close()
    assert seen == ["closed"]


def test_a_thread_that_has_ended_has_no_clock_any_more() -> None:
    attempt = fake_attempt()
    # The kernel makes the clock's number of the thread's, and gives that of an ended thread to another one;
    # no thread has so high a number.
    attempt.cpu_s, attempt.active_thread, attempt.cpu_clock = 1.5, -1, (~(1 << 27) << 3) | 6
    with pytest.raises(OSError):
        time.clock_gettime(attempt.cpu_clock)
    assert meter.read_cpu(attempt) == 1.5


def test_a_child_that_is_not_ours_and_a_machine_without_counters_are_unknown(tmp_path: Path) -> None:
    assert meter.read_ended_child(1) is None
    folder = tmp_path / "intel-rapl:0"
    folder.mkdir()
    (folder / "energy_uj").write_text("5")
    assert meter.RaplCounters(tmp_path, tmp_path / "no stat").read() is None


def test_memory_that_a_program_held_is_in_the_snapshot() -> None:
    with oncemore.open("memory:") as engine:

        @oncemore.step(effect="pure")
        def work() -> bool:
            from oncemore.steps.attempt import CURRENT

            attempt = CURRENT.get()
            assert attempt is not None
            meter.extend_usage(attempt).memory_gb = 0.25
            meter.extend_usage(attempt).cpu_s = 1.0
            return True

        work()
        record = next(record for record in work.last_run().records() if is_attempt_end(record))  # type: ignore[union-attr]
        assert engine.meter is not None
    assert record["telemetry_snapshot"]["memory_gb"] == 0.25
    assert record["telemetry_snapshot"]["cpu_s"] >= 1.0


# Signals --------------------------------------------------------------------------------------------


def test_a_document_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_board, "FIRST_WAIT_S", 30.0)
    monkeypatch.setattr(signal_sources, "MAX_DOCUMENT_BYTES", 10)
    (tmp_path / "grid.csv").write_text("0,1\n" * 10)
    signals = {"grid_intensity": {"file": str(tmp_path / "grid.csv")}}
    with oncemore.open("memory:", signals=signals) as engine:
        assert engine.signals is not None
        reading = engine.signals.read_all(engine.now(), waits=True)["grid_intensity"]
        assert "larger than 10 bytes" in reading.reason


def test_an_old_value_and_a_later_error_are_both_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal_board, "FIRST_WAIT_S", 30.0)
    file = tmp_path / "grid.csv"
    file.write_text(f"{time.time()},1\n")
    signals = {"grid_intensity": {"file": str(file), "refresh_s": 0.01, "max_age_s": 60}}
    with oncemore.open("memory:", signals=signals) as engine:
        board = engine.signals
        assert board is not None
        assert board.read_all(engine.now(), waits=True)["grid_intensity"].value == 1.0
        file.unlink()
        ends = time.monotonic() + 30
        reason = ""
        while "No such file" not in reason and time.monotonic() < ends:
            reason = board.read("grid_intensity", engine.now() + 3600).reason
        assert "more than 60 s" in reason
        assert "No such file" in reason
        # A forked child has no thread that fetches, and begins anew.
        board.reset_after_fork()
        assert not board.has_all


def test_an_async_step_without_signals_reads_none() -> None:
    policy = Policy("tuned", schedule=oncemore.backoff.exponential(0.001), tuning=Tuning(), max_attempts=2)

    @oncemore.step(effect="pure", policy=policy)
    async def work() -> None:
        raise ConnectionError

    async def run() -> Any:
        return await work.run()

    with oncemore.open("memory:"):
        assert asyncio.run(run()).status == "HARD_FAIL"


# Proofs ---------------------------------------------------------------------------------------------


def test_a_slowed_delay_has_the_same_bytes_by_both_ways_and_its_words() -> None:
    policy = Policy("slow", schedule=oncemore.backoff.exponential(40.0), max_delay_s=900.0, tuning=Tuning())
    situation = Situation(
        1, BUSY, "RETRYABLE", 100.0, seed="s", deadline=100_000.0, expected_s=5.0,
        signals=Signals(620.0, 0.1, 0.0), readings={"grid_intensity": {"value": 620.0, "source": "file"}},
        autonomy={"id": "slow#3", "action": "slow", "slow_factor": 2.0},
    )  # fmt: skip
    decision = decide_retry(policy, situation)
    assert decision.proof_bytes() == encode_canonical(decision.proof())
    assert decision.proof()["terms"]["tuned"]["slow"] == 2.0
    words = decision.explain()
    assert "x 2 (slowed down by the autonomy matrix)" in words
    assert "before the deadline: risk 0" in words
    spent = decide_retry(policy, situation._replace(signals=Signals(620.0, 0.1, 0.0, None, 0.0)))
    assert "slow" not in spent.proof()["terms"]["tuned"]
    assert spent.delay_s < decision.delay_s
    clamped = decide_retry(policy.replace(tuning=Tuning(max_stretch=1.1)), situation)
    assert "the stretch is held at 1.1" in clamped.explain()


# The matrix -----------------------------------------------------------------------------------------

RULES = """
profile: monthly
version: '1'
priority: P2
retry_policy: {max_attempts: 2, base_delay_s: 1, jitter: none, max_delay_s: 900}
carbon_budget: {period: month, cap_kgCO2e: 1.0}
"""


def matrix(engine: oncemore.Engine) -> AutonomyRecord:
    record = load_head(engine.store, "autonomy/monthly", engine.cipher, AutonomyRecord).record
    assert isinstance(record, AutonomyRecord)
    return record


def test_each_month_has_its_own_budget(tmp_path: Path) -> None:
    (tmp_path / "monthly.yaml").write_text(RULES)

    @oncemore.step(effect="pure", policy=str(tmp_path / "monthly.yaml"), name="report", rate="1000/s")
    def report(item: int) -> int:
        oncemore.current().add_usage(energy_kwh=0.4)
        return item

    with FakeClock() as clock, oncemore.open("memory:", signals={"grid_intensity": 1000}) as engine:
        engine.inline_wait_s = 0
        for month in range(3):
            done = 0
            for item in range(4):
                with suppress(Deferred):
                    done += report(month * 10 + item) is not None
            # Two of 0.4 kg; a third would make 1.2. The ones that wait are done in the next month.
            assert done == 2
            assert matrix(engine).spent_kg == pytest.approx(0.8, abs=1e-3)
            assert matrix(engine).level == "pause"
            clock.advance(matrix(engine).until - engine.now() + 1)


def test_slow_work_keeps_the_name_of_its_own_queue(tmp_path: Path) -> None:
    (tmp_path / "monthly.yaml").write_text(
        RULES + "autonomy: {off_hours: {from_hour: 0, to_hour: 0}, slow_concurrency: 1}\n"
    )

    @oncemore.step(
        effect="pure", policy=str(tmp_path / "monthly.yaml"), name="report", queue="reports", concurrency=4
    )
    def report(item: int) -> int:
        return item

    with oncemore.open("memory:") as engine:
        assert report(1) == 1
        assert engine.store.load_head("autonomy/monthly") is not None
        slots = [entry.entity for entry in engine.store.read_entries() if entry.entity.startswith("queue/")]
    assert len(set(slots)) == 1
    assert "reports" in slots[0]


def test_many_callers_share_one_budget_without_exceeding_it(tmp_path: Path) -> None:
    (tmp_path / "monthly.yaml").write_text(RULES.replace("1.0}", "1.0, slow_at: 1}"))

    @oncemore.step(effect="pure", policy=str(tmp_path / "monthly.yaml"), name="report")
    def report(item: int) -> int:
        oncemore.current().add_usage(energy_kwh=0.1)
        return item

    # Conflicts on the record of the matrix: every one of them reads and decides again.
    with oncemore.open(tmp_path / "log.db", signals={"grid_intensity": 1000}, max_inline_wait_s=0) as engine:
        report(99)
        job = report.map(range(20), max_concurrency=4, max_wait=0.1)
        assert job.counts["done"] <= 9
        assert matrix(engine).spent_kg <= 1.0 + 1e-3
        assert matrix(engine).reserved == {}
