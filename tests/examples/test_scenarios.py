"""The scenarios of the KFM loop and of the KFM rules: each program shows what its requirement says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The module of an example, by its path below `examples/`."""
    path = EXAMPLES / request.param
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


def plays(name: str) -> Any:
    return pytest.mark.parametrize("program", [name], indirect=True)


@pytest.mark.req("SCEN-1")
@plays("retry-loop/deadline_catchup.py")
def test_a_late_report_is_in_time_with_the_bias_and_late_without(program: Any, tmp_path: Path) -> None:
    ends = {}
    for bias in (True, False):
        run = program.play(tmp_path, bias=bias)
        assert run.status == "COMPLETE"
        ends[bias] = run.records()[-1]["at"] - program.MIDNIGHT.timestamp()
        first = run.proofs[0]["terms"]["tuned"]
        # The buffer is below the policy's minimum; only the bias acts on that.
        assert first["buffer_s"] < 3600
        assert (first["risk"] > 0) is bias
    assert ends[True] < program.DEADLINE_S < ends[False]


@pytest.mark.req("SCEN-2", "AUTO-5")
@plays("retry-loop/monthly_carbon_cap.py")
def test_reports_stay_under_the_cap_of_the_month_and_nowcasts_go_on(program: Any, tmp_path: Path) -> None:
    month = program.play(tmp_path)
    assert 1.8 < month.carbon_kg <= 2.0
    assert [level.partition(":")[0] for level in month.levels] == ["run", "slow", "pause"]
    # Every nowcast ran on its day, at its first attempt and without a pause.
    assert len(month.nowcasts) == program.DAYS
    for run in month.nowcasts.values():
        assert (run.status, len(run.attempts)) == ("COMPLETE", 1)
        assert run.records()[-1]["at"] - run.records()[0]["at"] < 1
    # The approved report ran in October, above the cap; the other paused ones in November.
    days = list(month.reports)
    assert month.approved_kg == pytest.approx(0.15, abs=0.001)
    november = 1793491200.0
    late = [day for day, run in month.reports.items() if run.records()[-1]["at"] >= november]
    assert late == days[13:-1]
    assert all(run.status == "COMPLETE" for run in month.reports.values())
    decision = next(record for record in month.reports[days[-1]].records() if record["reason"] == "decided")
    assert decision["state"] == "PENDING"


@pytest.mark.req("SCEN-3")
@plays("retry-loop/offhours_slowdown.py")
def test_a_report_is_slower_at_night_and_done_in_time(program: Any, tmp_path: Path) -> None:
    night = program.play(tmp_path)
    dark = [wave for wave in night.waves if wave.is_night]
    light = [wave for wave in night.waves if not wave.is_night]
    assert {wave.at_once for wave in dark} == {1}
    assert max(wave.at_once for wave in light) > 1
    assert max(wave.kwh_per_hour for wave in dark) < max(wave.kwh_per_hour for wave in light)
    assert night.delays_s["night"] == 2 * night.delays_s["evening"]
    assert night.parts == program.PARTS
    assert night.ended_h * 3600 < program.DUE_S
    # It resumed: the waves after 06:00 are not slowed.
    assert max(wave.at_once for wave in light if wave.began_h >= 12) > 1


@pytest.mark.req("SCEN-4")
@plays("retry-loop/carbon_clamp.py")
def test_a_nowcast_on_a_dirty_grid_is_clamped_and_meets_its_limit(program: Any, tmp_path: Path) -> None:
    run = program.play(tmp_path)
    assert run.status == "COMPLETE"
    records = run.records()
    assert records[-1]["at"] - records[0]["at"] < program.SLO_S
    assert len(run.proofs) == 2
    for proof in run.proofs:
        tuned = proof["terms"]["tuned"]
        assert proof["clamps"] == ["max_stretch"]
        assert (tuned["carbon"], tuned["price"], tuned["stretch"]) == (1.0, 1.0, 1.25)
        assert proof["delay_s"] == pytest.approx(proof["terms"]["jittered_s"] * 1.25)
    # The carbon of the failed attempts is recorded beside that of the last one.
    failed = [
        record for record in records if record["kind"] == "TRANSITION" and record["state"] == "SOFT_FAIL"
    ]
    carbon = [record["telemetry_snapshot"]["carbon_kgCO2e"] for record in failed]
    assert carbon == pytest.approx([0.0124, 0.0124], abs=0.0002)


@pytest.mark.req("SCEN-5")
@plays("retry-loop/care_escalation.py")
def test_a_protected_tile_waits_for_a_named_decision_and_public_ones_go_on(
    program: Any, tmp_path: Path
) -> None:
    review = program.play(tmp_path)
    assert (review.failed.status, len(review.failed.attempts)) == ("HARD_FAIL", 1)
    assert (review.escalation.kind, review.escalation.requires_review) == ("CARE_ESCALATION", True)
    assert review.escalation.id in review.refusal
    assert review.public.status == "COMPLETE"
    assert review.after.status == "COMPLETE"
    with oncemore.open(tmp_path / "log.db") as engine:
        (decided,) = engine.escalations.list(acknowledged=True)
        assert (decided.by, decided.reason) == ("the council's reviewer", "the council permits this nowcast")


@pytest.mark.req("SCEN-6", "AUTO-5")
@plays("retry-loop/thrash_control.py")
def test_ten_crossings_change_the_level_twice_and_replaced_tiles_are_not_retried(
    program: Any, tmp_path: Path
) -> None:
    hour = program.play(tmp_path)
    assert hour.crossings == 10
    levels = [sentence.partition(":")[0] for sentence in hour.decisions]
    # The first decision is not a change; the second change is the way back, after the swings.
    assert levels == ["run", "slow", "run"]
    for tile, run in enumerate(hour.tiles):
        assert hour.calls.count(tile) == 1
        replaced = tile < program.RADAR_BACK
        assert (run.status, run.reason) == (("HARD_FAIL", "cancelled") if replaced else ("COMPLETE", ""))


@pytest.mark.req("SCEN-7")
@plays("retries/stac_polling.py")
def test_a_real_catalogue_gives_the_record_of_the_rules(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = program.play(tmp_path)
    expected = {
        "pipeline_id": "etl_stac_ingest_v10.3.1",
        "stage": "poll_stac_api",
        "attempts": 3,
        "retry_policy": "exp_full_jitter",
        "errors": ["HTTP_503", "HTTP_503"],
        "final_status": "success",
        "circuit_open": False,
        "telemetry_ref": "releases/v10.3.1/focus-telemetry.json",
    }
    assert {name: record[name] for name in expected} == expected
    assert record["energy_wh"] > 0
    assert record["co2_g"] > 0
    assert "12 items, 3 requests at the server" in capsys.readouterr().out
