"""Energy, carbon and cost of attempts: the formulas, the snapshot of every entry, and totals."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

import oncemore
from oncemore.steps.history import export_records
from oncemore.telemetry import energy, records
from oncemore.telemetry.energy import DEFAULT_MODEL, EnergyModel, energy_of_run, parse_model
from oncemore.telemetry.meter import RaplCounters
from tests.telemetry.isolated_work import burn_in_child, never_return

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIGNALS = {"grid_intensity": 380, "energy_price": 0.25, "compute_unit_cost": 1.0, "queue_depth": 3}
BURNT_S = 0.02


def burn(seconds: float = BURNT_S) -> int:
    """Use CPU time in this thread, measured by its own clock, so that a busy machine changes nothing."""
    ends, count = time.thread_time() + seconds, 0
    while time.thread_time() < ends:
        count += 1
    return count > 0


@pytest.fixture
def engine() -> Iterator[oncemore.Engine]:
    with oncemore.open("memory:", signals=SIGNALS) as opened:
        yield opened


def exported(engine: oncemore.Engine) -> list[dict[str, Any]]:
    return list(export_records(engine.store.read_entries()))


def ends(engine: oncemore.Engine, step: str = "") -> list[dict[str, Any]]:
    """Return the snapshot of each attempt that ended, by the name of its step."""
    listed = records.list_attempt_ends(exported(engine))
    return [record["telemetry_snapshot"] for record in listed if record["node_id"].endswith(step)]


# Formulas -------------------------------------------------------------------------------------------


@pytest.mark.req("TELEM-7")
def test_carbon_is_energy_times_intensity() -> None:
    carbon = energy.compute_carbon(0.48 / 1000, 380)
    assert carbon == pytest.approx(0.0001824)
    assert energy.to_grams(carbon) == pytest.approx(0.1824)


@pytest.mark.req("TELEM-15")
def test_cost_is_energy_at_its_rate_and_time_at_its_unit_cost() -> None:
    assert energy.compute_cost(0.5, 0.20, 360, 1.00) == 0.20


def test_each_part_of_the_model_adds_its_energy() -> None:
    model = EnergyModel(core_watts=10, memory_watts_per_gb=0.5, network_kwh_per_gb=0.002)
    assert energy.estimate_energy(model, cpu_s=360) == pytest.approx(0.001)
    with_memory = energy.estimate_energy(model, cpu_s=0, duration_s=3600, memory_gb=2)
    assert with_memory == pytest.approx(0.001)
    assert energy.estimate_energy(model, cpu_s=0, network_bytes=5e8) == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("guess", "method is 'guess'"),
        ({"core_watts": -1}, "core_watts takes a number from 0 to 10000"),
        ({"core_watts": True}, "core_watts takes a number"),
        ({"rapl_path": ""}, "rapl_path takes a folder"),
        ({"watts": 4}, "has no 'watts'"),
        (7, "it takes a method or a table"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(setting: Any, fault: str) -> None:
    with pytest.raises(oncemore.UsageError, match=fault):
        parse_model(setting)


def test_a_setting_is_a_method_a_table_or_nothing() -> None:
    assert parse_model(None) is DEFAULT_MODEL
    assert parse_model("off").method == "off"
    assert parse_model({"core_watts": 12}).core_watts == 12.0
    assert parse_model(DEFAULT_MODEL) is DEFAULT_MODEL


# What attempts record -------------------------------------------------------------------------------


@pytest.mark.req("TELEM-4", "WAL-3")
def test_every_entry_has_a_snapshot_with_figures_or_reasons(engine: oncemore.Engine) -> None:
    calls = []

    @oncemore.step(effect="pure", wait=oncemore.backoff.exponential(0.001), on=ConnectionError)
    def work(item: int) -> bool:
        calls.append(item)
        burn()
        if len(calls) == 1:
            raise ConnectionError
        return True

    work(1)
    schema = jsonschema_rs.Draft202012Validator(records.load_schema("retry-loop-v1"))
    listed = exported(engine)
    for record in listed:
        schema.validate(record)
    failed, done = ends(engine)
    for snapshot in (failed, done):
        assert snapshot["cpu_s"] >= BURNT_S
        assert snapshot["energy_kWh"] == pytest.approx(snapshot["cpu_s"] * 4 / 3.6e6)
        assert snapshot["carbon_kgCO2e"] == energy.compute_carbon(snapshot["energy_kWh"], 380)
        seconds = snapshot["duration_s"]
        assert snapshot["cost_usd"] == energy.compute_cost(snapshot["energy_kWh"], 0.25, seconds, 1.0)
        assert snapshot["queue_depth"] == 3
        assert snapshot["unavailable"] == {}
    opening = listed[0]["telemetry_snapshot"]
    assert opening["energy_kWh"] is None
    assert opening["unavailable"]["energy_kWh"] == energy.NO_ATTEMPT
    # The schema itself refuses a null without a reason, and a snapshot without one of the five fields.
    for broken in ({**opening, "unavailable": {}}, {k: v for k, v in opening.items() if k != "cost_usd"}):
        assert not schema.is_valid({**listed[0], "telemetry_snapshot": broken})


def test_without_signals_carbon_and_cost_say_what_they_need() -> None:
    with oncemore.open("memory:") as engine:

        @oncemore.step(effect="pure")
        def work() -> int:
            return 1

        work()
        (snapshot,) = ends(engine)
    assert snapshot["energy_kWh"] >= 0
    assert snapshot["unavailable"] == {
        "queue_depth": "no source is configured",
        "grid_intensity_g_per_kWh": "no source is configured",
        "energy_rate_usd_per_kWh": "no source is configured",
        "compute_unit_cost_usd_per_h": "no source is configured",
        "carbon_kgCO2e": "needs grid_intensity_g_per_kWh",
        "cost_usd": "needs energy_rate_usd_per_kWh and compute_unit_cost_usd_per_h",
    }


def test_measuring_can_be_off() -> None:
    with oncemore.open("memory:", energy="off") as engine:

        @oncemore.step(effect="pure")
        def work() -> int:
            return 1

        work()
        (snapshot,) = ends(engine)
    assert snapshot["energy_kWh"] is None
    assert "measuring is off" in snapshot["unavailable"]["energy_kWh"]


def test_an_inner_step_counts_once(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure")
    def inner() -> bool:
        return burn(0.2)

    @oncemore.step(effect="pure")
    def outer() -> bool:
        return inner()

    outer()
    assert ends(engine, "inner")[0]["cpu_s"] >= 0.2
    assert ends(engine, "outer")[0]["cpu_s"] < 0.15


def test_an_async_attempt_counts_its_own_turns_only(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure")
    async def heavy() -> bool:
        await asyncio.sleep(0)
        return burn(0.2)

    @oncemore.step(effect="pure")
    async def light(fails: bool) -> bool:
        # It is open all the time in which the heavy one works.
        await asyncio.sleep(0.01)
        await finished.wait()
        return True

    async def run_both() -> None:
        async def run_heavy() -> None:
            await heavy()
            finished.set()

        await asyncio.gather(light(False), run_heavy())

    finished = asyncio.Event()
    asyncio.run(run_both())
    assert ends(engine, "heavy")[0]["cpu_s"] >= 0.2
    assert ends(engine, "light")[0]["cpu_s"] < 0.15


def test_an_async_inner_step_counts_once_and_errors_pass_through(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure", attempts=1)
    async def inner() -> bool:
        burn(0.2)
        await asyncio.sleep(0)
        raise ValueError("no")

    @oncemore.step(effect="pure")
    async def outer() -> str:
        try:
            await inner()
        except oncemore.PermanentFailure as error:
            return str(error)
        raise AssertionError

    assert "no" in asyncio.run(outer())
    assert ends(engine, "inner")[0]["cpu_s"] >= 0.2
    assert ends(engine, "outer")[0]["cpu_s"] < 0.15


def test_work_under_a_time_limit_is_measured_also_when_it_is_abandoned(engine: oncemore.Engine) -> None:
    stop: list[bool] = []

    @oncemore.step(effect="pure", timeout=0.3, attempts=1)
    def spin() -> bool:
        while not stop:
            pass
        return True

    @oncemore.step(effect="pure", timeout=60)
    def limited() -> bool:
        return burn(0.05)

    limited()
    try:
        with pytest.raises(oncemore.StepFailed):
            spin()
    finally:
        stop.append(True)
    assert ends(engine, "limited")[0]["cpu_s"] >= 0.05
    # On a busy machine the thread gets less than its whole time, but never nothing.
    assert ends(engine, "spin")[0]["cpu_s"] > 0.01


def test_the_process_of_an_isolated_attempt_is_counted_also_when_it_is_killed(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db", signals=SIGNALS) as engine:
        burn_in_child(0.3)
        with pytest.raises(oncemore.StepFailed):
            never_return()
        (burnt,), (killed,) = ends(engine, "burn_in_child"), ends(engine, "never_return")
    assert burnt["cpu_s"] >= 0.3
    assert killed["cpu_s"] > 0.01
    # Reported in the child, stored by the parent.
    assert burnt["network_bytes"] == 1000


def test_the_work_reports_what_the_engine_cannot_measure(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure")
    def remote() -> bool:
        oncemore.current().add_usage(energy_kwh=0.5, network_bytes=2e9)
        return True

    @oncemore.step(effect="pure")
    def plain() -> bool:
        return True

    remote(), plain()
    (reported,), (estimated,) = ends(engine, "remote"), ends(engine, "plain")
    assert reported["energy_kWh"] == pytest.approx(0.502, abs=1e-6)
    assert reported["method"] == "cpu_time+reported"
    assert estimated["method"] == "cpu_time"
    totals = energy_of_run(exported(engine))
    assert totals.methods == {"cpu_time+reported": 1, "cpu_time": 1}


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "1"])
def test_usage_that_is_not_a_number_is_refused(engine: oncemore.Engine, wrong: Any) -> None:
    @oncemore.step(effect="pure", attempts=1)
    def work() -> None:
        oncemore.current().add_usage(energy_kwh=wrong)

    with pytest.raises(oncemore.StepFailed, match="energy_kwh is"):
        work()


# The counters of the processor ----------------------------------------------------------------------


def write_counters(folder: Path, *microjoules: int) -> None:
    """Write a tree of counters as the kernel shows it: packages, their parts, and a duplicate."""
    for number, value in enumerate(microjoules):
        for name in (f"intel-rapl:{number}", f"intel-rapl:{number}:0", f"intel-rapl-mmio:{number}"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "energy_uj").write_text(f"{value}\n")
            (folder / name / "max_energy_range_uj").write_text("262143328850\n")


def test_counters_give_an_attempt_its_share_of_the_machine(tmp_path: Path) -> None:
    folder = tmp_path / "powercap"
    write_counters(folder, 1_000_000, 5_000_000)
    with oncemore.open("memory:", energy={"method": "rapl", "rapl_path": str(folder)}) as engine:

        @oncemore.step(effect="pure")
        def work() -> bool:
            burn(0.1)
            write_counters(folder, 37_000_000, 41_000_000)
            return True

        work()
        (snapshot,) = ends(engine)
    assert snapshot["method"] == "rapl"
    # 72 J of the machine, of which the attempt has at most all and at least what two cores leave it.
    assert 0 < snapshot["energy_kWh"] <= 72 / 3.6e6


def test_counters_start_again_at_their_largest_value(tmp_path: Path) -> None:
    write_counters(tmp_path, 262_143_328_850 - 1_000_000)
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 1000 50 0 0 0 0 0\n")
    counters = RaplCounters(tmp_path, stat)
    start = counters.read()
    assert start is not None
    write_counters(tmp_path, 2_600_000)
    stat.write_text("cpu  300 0 100 2000 90 0 0 0 0 0\n")
    measured = counters.measure_since(start)
    assert measured is not None
    kwh, busy_s = measured
    assert kwh == pytest.approx(3.6 / 3.6e6)
    assert busy_s == pytest.approx(2.0)


@pytest.mark.parametrize("broken", ["no counters", "unreadable", "vanished"])
def test_without_readable_counters_the_energy_is_estimated(tmp_path: Path, broken: str) -> None:
    if broken != "no counters":
        write_counters(tmp_path, 1_000_000)
    if broken == "unreadable":
        (tmp_path / "intel-rapl:0" / "energy_uj").write_text("")
    with oncemore.open("memory:", energy={"method": "rapl", "rapl_path": str(tmp_path)}) as engine:

        @oncemore.step(effect="pure")
        def work() -> bool:
            if broken == "vanished":
                (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
            return True

        work()
        (snapshot,) = ends(engine)
    assert snapshot["method"] == "cpu_time"
    assert snapshot["energy_kWh"] >= 0


def test_a_short_attempt_gets_no_more_than_the_machine_used() -> None:
    assert energy.share_of_machine(1.0, 0.004, 0.0) == 1.0
    assert energy.share_of_machine(1.0, 0.5, 2.0) == 0.25
    assert energy.share_of_machine(1.0, 0.0, 0.0) == 0.0


def test_a_model_with_memory_counts_the_time_that_it_is_held() -> None:
    model = {"core_watts": 0, "memory_gb": 1000, "memory_watts_per_gb": 100}
    with oncemore.open("memory:", energy=model) as engine:

        @oncemore.step(effect="pure")
        def work() -> bool:
            return burn(0.01)

        work()
        (snapshot,) = ends(engine)
    expected = 1000 * 100 * snapshot["duration_s"] / 3.6e6
    assert 0 < snapshot["energy_kWh"] <= expected * 1.01


# Totals ---------------------------------------------------------------------------------------------


@pytest.mark.req("TELEM-9", "TELEM-8")
def test_retries_are_told_apart_from_the_first_attempt(engine: oncemore.Engine) -> None:
    used = iter((0.002, 0.003, 0.004))

    @oncemore.step(effect="pure", wait=oncemore.backoff.exponential(0.001), on=ConnectionError)
    def work() -> bool:
        kwh = next(used)
        oncemore.current().add_usage(energy_kwh=kwh)
        if kwh < 0.004:
            raise ConnectionError
        return True

    work()
    run = energy_of_run(exported(engine))
    assert run.total.energy_kWh * 1000 == pytest.approx(9, abs=1e-3)
    assert run.retries.energy_kWh * 1000 == pytest.approx(7, abs=1e-3)
    assert run.retry_share == pytest.approx(7 / 9, abs=1e-3)
    assert (run.total.attempts, run.retries.attempts, run.total.unmeasured) == (3, 2, 0)
    # Both units of one attempt agree exactly, and the retry records carry the retries' share only.
    listed = list(records.list_attempt_ends(exported(engine)))
    for record in listed:
        energy_record, carbon_record = (
            records.build_energy_record(record),
            records.build_carbon_record(record),
        )
        assert energy_record["energy_wh"] == energy_record["energy_kWh"] * 1000
        assert carbon_record["co2_g"] == carbon_record["carbon_kgCO2e"] * 1000
    shares = [records.build_retry_record(record, "pipeline")["energy_wh"] for record in listed]
    assert shares == [0.0, pytest.approx(3, abs=1e-3), pytest.approx(4, abs=1e-3)]


def test_no_attempts_have_no_retry_share() -> None:
    assert energy_of_run([]).retry_share == 0.0


def test_an_attempt_that_was_taken_over_counts_as_retrying() -> None:
    record = {
        "run_id": "r", "attempt": 1, "kind": "INTENT", "reason": "", "idempotency_key": "k",
        "telemetry_snapshot": energy.build_snapshot({}, ends_attempt=False),
    }  # fmt: skip
    lost = {**record, "kind": "TRANSITION", "reason": "lease_expired"}
    lost["telemetry_snapshot"] = energy.build_snapshot({"usage": {"kwh": 2.0}}, ends_attempt=True)
    run = energy_of_run([record, lost])
    assert (run.total.energy_kWh, run.retries.energy_kWh) == (2.0, 2.0)


def test_the_schemas_are_valid_and_validate_the_records(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure", attempts=2, wait=oncemore.backoff.exponential(0.001), on=ConnectionError)
    def work() -> bool:
        raise ConnectionError

    with pytest.raises(oncemore.RetriesExhausted):
        work()
    validators = {}
    for name in records.SCHEMAS:
        schema = records.load_schema(name)
        assert jsonschema_rs.meta.is_valid(schema)
        validators[name] = jsonschema_rs.Draft202012Validator(schema)
    listed = exported(engine)
    attempts = list(records.list_attempt_ends(listed))
    assert len(attempts) == 2
    for record in listed:
        validators["retry-loop-v1"].validate(record)
    for record in attempts:
        retry = records.build_retry_record(record, "pipeline")
        validators["pipelines-retries-rules-v1"].validate(retry)
        validators["energy-v2"].validate(records.build_energy_record(record))
        validators["carbon-v2"].validate(records.build_carbon_record(record))
        assert not validators["pipelines-retries-rules-v1"].is_valid({**retry, "error_class": None})
    with pytest.raises(ValueError, match="there is no schema"):
        records.load_schema("energy-v1")
