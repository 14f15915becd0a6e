"""Tuned backoff in real runs: the delay that the engine records, its proof, its words and its replay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

import oncemore
from oncemore.audit.events import proof_schema
from oncemore.maintenance.replay import recompute_decision
from oncemore.policy.canonical_json import encode_canonical
from oncemore.policy.policy import NO_JITTER, Policy
from oncemore.policy.tuning import Tuning
from oncemore.steps.history import fold_entries
from oncemore.telemetry import signal_board
from oncemore.testing import FakeClock
from tests.telemetry.signal_servers import serve_grid

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = Policy("plain", max_attempts=3, max_delay_s=900.0, schedule=oncemore.backoff.exponential(100.0))
TUNED = PLAIN.replace(name="tuned", tuning=Tuning(), jitter=NO_JITTER)
CLEAN = {"grid_intensity": 200, "energy_price": 0.1}
DIRTY = {"grid_intensity": 620, "energy_price": 0.31}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for the first values than a decision does: a busy machine must not change a test."""
    monkeypatch.setattr(signal_board, "FIRST_WAIT_S", 30.0)


def proof_of(
    signals: dict[str, Any], policy: Policy = TUNED, deadline_s: float | None = None, **options: Any
) -> dict[str, Any]:
    """Return the proof that the engine has stored after the first failure of a real run."""

    @oncemore.step(effect="pure", policy=policy, total_timeout=deadline_s, **options)
    def work() -> None:
        raise ConnectionError

    with oncemore.open("memory:", signals=signals, max_inline_wait_s=0) as engine:
        run = work.run()
        (proof,) = run.proofs
        # It is valid, it can be recomputed to the byte, and `explain` uses the same words.
        assert jsonschema_rs.Draft202012Validator(proof_schema()).is_valid(proof)
        assert encode_canonical(recompute_decision(proof).proof()) == encode_canonical(
            {**proof, "policy": recompute_decision(proof).proof()["policy"]}
        )
        assert engine.verify().entries
    return proof


@pytest.mark.req("TUNE-1")
def test_a_higher_grid_intensity_never_shortens_the_delay() -> None:
    delays = [proof_of({"grid_intensity": i})["delay_s"] for i in range(0, 1001, 125)]
    assert delays == sorted(delays)
    assert delays[4] > delays[2]  # 500 and 250 g/kWh
    assert (delays[0], delays[-1]) == (100.0, 200.0)


@pytest.mark.req("TUNE-2")
def test_the_peak_price_lengthens_the_delay() -> None:
    assert proof_of({"energy_price": 0.24})["delay_s"] == 100.0
    assert proof_of({"energy_price": 0.25})["delay_s"] == 150.0


def delay_with_queue(depth: int) -> float:
    """Return the delay of a run that is due in 2,000 s, behind others that take 10 s each as it does."""

    @oncemore.step(effect="pure", policy=TUNED, total_timeout=2_000)
    def work() -> None:
        clock.advance(10)
        raise ConnectionError

    signals = DIRTY | {"queue_depth": depth, "parallelism": 1}
    with FakeClock() as clock, oncemore.open("memory:", signals=signals, max_inline_wait_s=0):
        (proof,) = work.run().proofs
    return float(proof["delay_s"])


@pytest.mark.req("TUNE-3")
def test_deadline_risk_shortens_the_delay_but_does_not_spend_a_spent_budget(tmp_path: Path) -> None:
    by_deadline = [proof_of(DIRTY, deadline_s=left)["delay_s"] for left in (500, 1_000, 1_700, 3_000, 86_400)]
    assert by_deadline == sorted(by_deadline)
    assert (by_deadline[-1], by_deadline[0] < by_deadline[2] < by_deadline[-1]) == (250.0, True)
    by_queue = [delay_with_queue(depth) for depth in (0, 20, 60, 120, 250)]
    assert by_queue == sorted(by_queue, reverse=True)
    assert by_queue[0] > by_queue[2] > by_queue[-1]
    # The budget is spent by the first run; a deadline in ten minutes does not open it again.
    for priority, status in (("P0", "COMPLETE"), ("P2", "PENDING")):
        path = tmp_path / f"{priority}.yaml"
        path.write_text(
            f"profile: {priority.lower()}\nversion: '1'\npriority: {priority}\n"
            f"retry_policy: {{max_attempts: 3}}\ntelemetry_tuning: {{enabled: true}}\n"
            "carbon_budget: {period: month, cap_kgCO2e: 0.5, slow_at: 0.9}\n"
        )

        @oncemore.step(effect="pure", policy=str(path), name=f"report-{priority}", total_timeout=600)
        def report(item: int) -> int:
            oncemore.current().add_usage(energy_kwh=1.0)
            return item

        with oncemore.open("memory:", signals=DIRTY, max_inline_wait_s=0):
            assert report.run(1).status == "COMPLETE"
            late = report.run(2)
            assert (late.status, late.reason) == (status, "autonomy_pause" if status == "PENDING" else "")


@pytest.mark.req("TUNE-7")
def test_neutral_signals_and_no_tuning_leave_the_delay_as_it_is() -> None:
    neutral = proof_of(CLEAN, deadline_s=86_400)
    assert neutral["delay_s"] == 100.0
    untuned = proof_of(DIRTY, TUNED.replace(tuning=None))
    assert untuned["delay_s"] == 100.0
    assert untuned["inputs"]["signals"] is None
    assert "readings" not in untuned["inputs"]


@pytest.mark.req("TUNE-9")
def test_a_missing_signal_switches_off_its_own_term_and_the_proof_says_so() -> None:
    proof = proof_of({"energy_price": 0.31}, deadline_s=1_000)
    tuned = proof["terms"]["tuned"]
    assert "grid_intensity" in tuned["missing"]
    assert tuned["carbon"] == 0.0
    assert tuned["price"] == 1.0
    assert tuned["risk"] > 0.0
    assert proof["inputs"]["readings"]["grid_intensity"] == {"unavailable": "no source is configured"}


def test_priority_p0_is_stretched_by_a_quarter_at_most() -> None:
    assert proof_of(DIRTY, priority="P0")["delay_s"] == 125.0
    assert "max_stretch" in proof_of(DIRTY, priority="P0")["clamps"]
    assert proof_of(DIRTY, priority="P1")["delay_s"] == proof_of(DIRTY, priority="P2")["delay_s"] == 250.0


@pytest.mark.req("TIME-9")
def test_a_spent_error_budget_forbids_stretching() -> None:
    for intensity in (0, 300, 620):
        assert (
            proof_of({"grid_intensity": intensity, "energy_price": 1, "error_budget": 0})["delay_s"] <= 100.0
        )


@pytest.mark.req("TELEM-5")
def test_every_input_is_in_the_proof_with_its_source_or_its_reason(tmp_path: Path) -> None:
    names = {
        "energy_kWh", "grid_intensity", "carbon_kgCO2e", "energy_price", "compute_unit_cost", "deadline_at",
        "sla_ms", "error_budget", "queue_depth", "arrival_rate", "parallelism",
    }  # fmt: skip
    load = {"queue_depth": 4, "arrival_rate": 0.1, "parallelism": 2}
    signals = {**DIRTY, **load, "compute_unit_cost": 2, "error_budget": 0.5}
    bare, full = proof_of({}), proof_of(signals, deadline_s=5_000)
    for readings in (bare["inputs"]["readings"], full["inputs"]["readings"]):
        assert set(readings) == names
        for reading in readings.values():
            assert reading.get("source") or reading["unavailable"]
    assert "unavailable" not in str(full["inputs"]["readings"])
    assert full["inputs"]["readings"]["energy_kWh"]["source"] == "cpu_time"
    assert full["inputs"]["readings"]["sla_ms"]["value"] == pytest.approx(5_000_000, rel=1e-3)
    assert {name for name, reading in bare["inputs"]["readings"].items() if "value" in reading} == {
        "energy_kWh"
    }
    # A decision of the autonomy matrix has the same set of inputs.
    path = tmp_path / "nightly.yaml"
    path.write_text("profile: nightly\nversion: '1'\nextends: standard\nautonomy: {min_dwell_s: 0}\n")
    for given in ({}, signals):
        with oncemore.open("memory:", signals=given) as engine:

            @oncemore.step(effect="pure", policy=str(path), name="report")
            def report() -> int:
                return 1

            report()
            entries = fold_entries(engine.store.read_entries())
            (proof,) = [body["proof"] for header, _, body in entries if header.entity.startswith("autonomy/")]
        assert set(proof["inputs"]["readings"]) == names
        for reading in proof["inputs"]["readings"].values():
            assert reading.get("source") or reading["unavailable"]


def test_a_fetched_signal_is_in_the_proof_with_its_age_and_in_the_words() -> None:
    with serve_grid() as grid:
        source = {"url": f"{grid.url}/v3/carbon-intensity/latest?zone=DE", "shape": "electricity_maps"}

        @oncemore.step(effect="pure", policy=TUNED)
        async def work() -> None:
            raise ConnectionError

        async def run_once() -> Any:
            return await work.run()

        with oncemore.open("memory:", signals={"grid_intensity": source}, max_inline_wait_s=0):
            run = asyncio.run(run_once())
            (proof,) = run.proofs
    reading = proof["inputs"]["readings"]["grid_intensity"]
    assert reading["value"] == 620.0
    assert reading["source"].startswith("electricity_maps 127.0.0.1:")
    assert 500 < reading["age_s"] < 800
    words = recompute_decision(proof).explain()
    assert "Tuned to 200 s = 100 s x 2 x 1" in words
    assert "grid intensity 620 g/kWh on the scale from 250 to 500: +1, from electricity_maps" in words
    assert "10 min" in words


def test_a_signal_that_never_answers_is_neutral_and_delays_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signal_board, "FIRST_WAIT_S", 0.05)
    proof = proof_of({"grid_intensity": {"command": ["sleep", "60"], "timeout_s": 30}})
    assert proof["delay_s"] == 100.0
    assert proof["inputs"]["readings"]["grid_intensity"]["unavailable"] == "it has not been fetched yet"
