"""Recorded runs are decided again: exactly as recorded, and differently under another policy or signals."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import UsageError
from oncemore.log.entry_codec import decode_header
from oncemore.policy.backoff import NO_JITTER
from oncemore.policy.decide import Situation
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy
from oncemore.policy.tuning import Signals, Tuning
from oncemore.policy.verdict import ErrorClasses
from oncemore.queries.recorded_runs import RecordedRunFilter, build_recorded_world, load_recorded_runs
from oncemore.queries.stores import open_read_only
from oncemore.queries.what_if import SimulationOptions, compare_runs
from oncemore.simulate.recorded_runs import (
    MeasuredValues,
    RecordedAttempt,
    RecordedRun,
    SignalTimeline,
    SimulatedWorld,
)
from oncemore.simulate.totals import build_curve, sum_runs
from oncemore.simulate.what_if import WhatIf
from tests.queries.sealing import codec
from tests.queries.work import run_all_steps
from tests.shell import run, told
from tests.simulate.conftest import OUTAGE_S

if TYPE_CHECKING:
    from pathlib import Path

ALL = RecordedRunFilter(0.0, float("inf"))
TIMEOUT = Failure("transient", code="TIMEOUT", rule="python:TimeoutError")
ENERGY = 0.02


def load(path: Path | str, **wanted: Any) -> list[RecordedRun]:
    with open_read_only(str(path)) as store:
        return load_recorded_runs(store, ALL._replace(**wanted))


@pytest.fixture(scope="module")
def every_kind() -> list[RecordedRun]:
    """Runs with every kind of outcome, as real steps recorded them."""
    with oncemore.open("memory:") as engine:
        run_all_steps(engine)
        return load_recorded_runs(engine.store, ALL)


def test_a_period_has_whole_runs_although_they_began_before_it_or_ended_after_it() -> None:
    with oncemore.open("memory:") as engine:
        run_all_steps(engine)
        whole = load_recorded_runs(engine.store, ALL)
        times = [decode_header(entry.header).at for entry in engine.store.read_entries()]
        cut_short = 0
        for since, until in ((at, other) for at in times[::7] for other in times[::5] if at <= other):
            runs = load_recorded_runs(engine.store, RecordedRunFilter(since, until))
            assert [one for one in runs if one not in whole] == []
            cut_short += sum(one.created_at < since or one.ended_at > until for one in runs)
            # Every attempt that ended in the period belongs to a run of it.
            ended = {one.run_id for one in whole if any(since <= a.ended <= until for a in one.attempts)}
            assert ended <= {one.run_id for one in runs}
        assert cut_short > 20


def test_attempts_with_unreadable_bodies_are_kept_without_a_decision(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db", codec=codec) as engine:
        run_all_steps(engine)
    runs = load(tmp_path / "log.db")
    attempts = [one for run_ in runs for one in run_.attempts]
    assert len(attempts) > 5
    assert {one.situation for one in attempts} == {None}
    assert {one.outcome for one in attempts} == {"COMPLETE", "LOST"}


def count_quicker(runs: list[RecordedRun]) -> tuple[int, int]:
    """Return the fewest and the most attempts, 10 s apart, from the first until the recorded success began.

    An attempt takes a little longer than 5 s and begins a little late, because both are really written.
    """
    pairs = [pair for one in runs for pair in pairwise(one.attempts)]
    late = max(after.began - before.ended - before.delay_s for before, after in pairs)
    longest = max(attempt.ended - attempt.began for one in runs for attempt in one.attempts)
    spans = [one.attempts[-1].began - one.attempts[0].began for one in runs]
    fewest, most = (sum(1 + math.ceil(span / each) for span in spans) for each in (10 + longest + late, 15.0))
    return fewest, most


@pytest.mark.req("SIM-1")
def test_the_recorded_policy_reproduces_every_delay_and_another_policy_shows_the_difference(
    every_kind: list[RecordedRun], incident: Path
) -> None:
    for recorded in (*every_kind, *load(incident)):
        for outcomes in ("time", "order"):
            again = WhatIf(outcomes=outcomes).simulate_run(recorded)  # type: ignore[arg-type]
            assert again.state == recorded.state
            assert [one.delay_s for one in again.attempts] == [one.delay_s for one in recorded.attempts]
            assert [one.began for one in again.attempts] == [one.began for one in recorded.attempts]
            assert not any(one.assumed for one in again.attempts)
    quicker = oncemore.Policy(
        "quicker", max_attempts=60, schedule=oncemore.backoff.fixed(10.0), jitter=NO_JITTER
    )
    report = compare_runs(load(incident), SimulationOptions(policies={"": quicker}))
    assert (report.before.attempts, report.before.failed) == (36, 0)
    fewest, most = count_quicker(load(incident))
    assert fewest <= report.after.attempts <= most
    assert report.changed == 6
    assert report.examples[0].state_after == "COMPLETE"


def test_the_simulation_of_the_record_says_that_nothing_differs(incident: Path) -> None:
    report = compare_runs(load(incident), SimulationOptions())
    assert report.changed == 0
    assert report.before == report.after
    assert all(figure.difference in (0, None) for figure in report.figures)


@pytest.mark.req("SIM-2")
def test_each_figure_has_both_columns_and_their_difference(incident: Path) -> None:
    quicker = oncemore.Policy(
        "quicker", max_attempts=60, schedule=oncemore.backoff.fixed(10.0), jitter=NO_JITTER
    )
    # Below the thresholds of tuning: the recorded side is decided as it was.
    world = SimulatedWorld(SignalTimeline([(0.0, 200.0)]), SignalTimeline([(0.0, 0.1)]))
    options = SimulationOptions(policies={"": quicker}, world=world, both=True)
    runs = load(incident)
    report = compare_runs(runs, options)
    figures, quick = {figure.field: figure for figure in report.figures}, report.after.attempts
    simulated = [WhatIf(lambda run, own: quicker).simulate_run(one) for one in runs]
    before = sum(attempt.values.energy_kwh or 0.0 for one in runs for attempt in one.attempts)
    first = sum(one.attempts[0].values.energy_kwh or 0.0 for one in runs)
    after = sum(
        one.run.attempts[attempt.source].values.energy_kwh or 0.0
        for one in simulated
        for attempt in one.attempts
    )
    assert 0.0 < first < before < after
    for field, low, high in (
        ("attempts", 36, quick),
        ("energy_kwh", before, after),
        ("carbon_kg", before * 0.2, after * 0.2),
        ("cost_usd", before * 0.1, after * 0.1),
        ("repeated_attempts", 30, quick - 6),
        ("repeated_kwh", before - first, after - first),
        ("missed_deadlines", 0, 0),
    ):
        assert figures[field].before == pytest.approx(low)
        assert figures[field].after == pytest.approx(high)
        assert figures[field].difference == pytest.approx(high - low)
    duration = figures["duration_s"]
    assert duration.difference == pytest.approx(duration.after - duration.before)  # type: ignore[operator]
    assert duration.before is not None
    assert duration.before > 6 * OUTAGE_S


@pytest.mark.req("SIM-3", "TUNE-8", "DASH-2")
def test_an_incident_with_tuning_has_less_carbon_and_meets_the_same_deadlines(
    incident: Path, tmp_path: Path
) -> None:
    grid = tmp_path / "grid.csv"
    # A dirty hour, during which the outages are, and a clean one.
    start = load(incident)[0].created_at
    grid.write_text(f"time,g\n{start - 1},620\n{start + 6 * 600},120\n")
    report = told(
        "simulate", "--store", str(incident), "--tuning", "compare", "--intensity", str(grid),
        "--price", "0.31", "--svg", str(tmp_path / "curves.svg"),
    )  # fmt: skip
    before, after = report["before"], report["after"]
    assert after["carbon_kg"] < before["carbon_kg"]
    assert after["attempts"] < before["attempts"]
    assert before["deadlines"] == 6
    assert (before["missed_deadlines"], after["missed_deadlines"], report["newly_missed"]) == (0, 0, [])
    (low, without), (high, tuned) = report["curves"]
    assert (low, high) == ("without tuning", "with tuning")
    assert without[-1][1] == pytest.approx(before["carbon_kg"])
    assert tuned[-1][1] == pytest.approx(after["carbon_kg"])
    assert [y for _, y in tuned] == sorted(y for _, y in tuned)
    svg = (tmp_path / "curves.svg").read_text()
    assert svg.count("<polyline") == 2
    assert "without tuning" in svg


@pytest.mark.req("SIM-4")
def test_two_simulations_give_the_same_bytes(incident: Path) -> None:
    words = ("simulate", "--store", str(incident), "--policy", "standard", "--attempt-energy", "0.5")
    for form in (["--json"], ["--html", "-"]):
        # Two processes, in two time zones and with two hash seeds.
        first = run(*words, *form, PYTHONHASHSEED="1")
        second = run(*words, *form, TZ="Asia/Tokyo", PYTHONHASHSEED="2")
        assert first.returncode == 0, first.stderr
        assert first.stdout == second.stdout
        assert len(first.stdout) > 300


# Rules, on small values --------------------------------------------------------------------------------


def make_run(*outcomes: str, state: str = "COMPLETE", gap: float = 10.0, **fields: Any) -> RecordedRun:
    """Return a run whose attempts take 1 s and begin every `gap` seconds."""
    policy = Policy("own", max_attempts=9, schedule=oncemore.backoff.fixed(gap - 1.0), jitter=NO_JITTER)
    attempts = tuple(
        RecordedAttempt(
            seq=n + 1,
            began=gap * n,
            ended=gap * n + 1.0,
            outcome="COMPLETE" if outcome == "COMPLETE" else "LOST" if outcome == "LOST" else "FAILED",
            values=MeasuredValues(energy_kwh=1.0, carbon_kg=0.3, grid_intensity=300.0),
            policy=policy if outcome == "FAILED" else None,
            situation=Situation(n + 1, TIMEOUT, "RETRYABLE", gap * n + 1.0, deadline=fields.get("deadline"))
            if outcome == "FAILED"
            else None,
            action="retry" if outcome == "FAILED" else "",
            delay_s=gap - 1.0 if outcome == "FAILED" else 0.0,
        )
        for n, outcome in enumerate(outcomes)
    )
    filled = {
        "run_id": "r1", "key": "k", "step": "s", "effect": "idempotent", "policy": "own@1:abc",
        "priority": "P1", "created_at": 0.0, "ended_at": attempts[-1].ended, "deadline": None,
        "state": state, "attempts": attempts, **fields,
    }  # fmt: skip
    return RecordedRun(**filled)


def fixed(delay: float, attempts: int = 9, **fields: Any) -> Policy:
    schedule = oncemore.backoff.fixed(delay)
    return Policy("new", max_attempts=attempts, schedule=schedule, jitter=NO_JITTER, **fields)


def test_by_time_the_cause_lasts_as_long_and_by_order_as_many_attempts_fail() -> None:
    recorded = make_run("FAILED", "FAILED", "COMPLETE")
    by_time = WhatIf(lambda run, own: fixed(4.0)).simulate_run(recorded)
    assert [one.began for one in by_time.attempts] == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert [one.source for one in by_time.attempts] == [0, 0, 1, 1, 2]
    by_order = WhatIf(lambda run, own: fixed(4.0), outcomes="order").simulate_run(recorded)
    assert [one.began for one in by_order.attempts] == [0.0, 5.0, 10.0]
    assert by_order.state == "COMPLETE"
    slower = WhatIf(lambda run, own: fixed(30.0)).simulate_run(recorded)
    assert [one.source for one in slower.attempts] == [0, 2]
    assert slower.ended_at == 32.0


def test_fewer_attempts_fail_and_more_go_on_as_the_last_one() -> None:
    fewer = WhatIf(lambda run, own: fixed(9.0, 2))
    assert fewer.simulate_run(make_run("FAILED", "FAILED", "COMPLETE")).state == "HARD_FAIL"
    ended = make_run("FAILED", "FAILED", state="HARD_FAIL")
    last = ended.attempts[-1]._replace(action="stop", delay_s=0.0)
    ended = ended._replace(attempts=(ended.attempts[0], last))
    more = WhatIf(lambda run, own: fixed(9.0, 4)).simulate_run(ended)
    assert (len(more.attempts), more.state) == (4, "HARD_FAIL")
    assert [one.assumed for one in more.attempts] == [False, False, True, True]
    assert sum_runs([more]).assumed_attempts == 2


def test_a_lost_attempt_stays_lost_and_an_open_run_stays_open() -> None:
    lost = make_run("LOST", "FAILED", "COMPLETE")
    again = WhatIf(lambda run, own: fixed(4.0)).simulate_run(lost)
    assert [one.source for one in again.attempts] == [0, 1, 1, 2]
    is_open = make_run("FAILED", state="SOFT_FAIL", ended_at=60.0)
    waiting = WhatIf(lambda run, own: fixed(4.0)).simulate_run(is_open)
    assert (waiting.state, len(waiting.attempts), waiting.ended_at) == ("SOFT_FAIL", 1, 60.0)
    only_lost = WhatIf().simulate_run(make_run("LOST", state="SOFT_FAIL", held_for="poison"))
    assert only_lost.state == "SOFT_FAIL"
    assert sum_runs([only_lost]).held == 1


def test_another_policy_gives_its_own_verdict_unless_the_step_gave_it() -> None:
    strict = fixed(9.0, classes=ErrorClasses(retryable=("HTTP_503",), non_retryable=("TIMEOUT",)))
    recorded = make_run("FAILED", "COMPLETE")
    assert WhatIf(lambda run, own: strict).simulate_run(recorded).state == "HARD_FAIL"
    # The recorded policy would not have retried it either: `on=` of the step did.
    first = recorded.attempts[0]
    assert first.policy is not None
    by_step = first._replace(policy=first.policy.copy_with(classes=ErrorClasses(non_retryable=("TIMEOUT",))))
    recorded = recorded._replace(attempts=(by_step, recorded.attempts[1]))
    assert WhatIf(lambda run, own: strict).simulate_run(recorded).state == "COMPLETE"


def test_a_quarantined_failure_is_released_as_in_the_record_or_held() -> None:
    recorded = make_run("FAILED", "COMPLETE")
    first = recorded.attempts[0]
    assert first.situation is not None
    held = first._replace(
        situation=first.situation._replace(verdict="QUARANTINE"), action="quarantine", delay_s=0.0
    )
    released = recorded._replace(attempts=(held, recorded.attempts[1]))
    assert WhatIf().simulate_run(released).state == "COMPLETE"
    still = recorded._replace(attempts=(held,), state="SOFT_FAIL", deadline=5.0)
    again = WhatIf().simulate_run(still)
    assert again.state == "HELD"
    assert again.misses_deadline


def test_a_wait_of_the_provider_defers_the_run_until_then() -> None:
    recorded = make_run("FAILED", "COMPLETE")
    first = recorded.attempts[0]
    assert first.situation is not None
    asked = first.situation._replace(failure=TIMEOUT._replace(retry_after=100.0))
    deferred = recorded._replace(attempts=(first._replace(situation=asked), recorded.attempts[1]))
    again = WhatIf(lambda run, own: fixed(4.0, max_delay_s=50.0)).simulate_run(deferred)
    assert again.attempts[0].delay_s == 100.0
    assert again.attempts[1].began == 101.0


def test_signals_of_the_simulated_time_tune_the_delay_and_give_the_carbon() -> None:
    recorded = make_run("FAILED", "FAILED", "COMPLETE")
    tuned = fixed(9.0, tuning=Tuning(), max_delay_s=100.0)
    world = SimulatedWorld(
        SignalTimeline([(0.0, 500.0), (15.0, 100.0)]), SignalTimeline([(0.0, 0.1)]), None, 3.6
    )
    again = WhatIf(lambda run, own: tuned, world).simulate_run(recorded)
    assert again.attempts[0].delay_s == 18.0  # 9 s, stretched by 2 at 500 g/kWh
    assert again.attempts[1].values.grid_intensity == 100.0
    assert again.attempts[1].values.carbon_kg == pytest.approx(0.1)
    assert again.attempts[1].values.cost_usd == pytest.approx(0.1 + 1.0 * 3.6 / 3600)
    # A recorded cost of the machine is kept.
    priced = recorded.attempts[0]._replace(values=MeasuredValues(energy_kwh=1.0, unit_cost_usd_per_h=7.2))
    dear = WhatIf(lambda run, own: tuned, world).simulate_run(
        recorded._replace(attempts=(priced, *recorded.attempts[1:]))
    )
    assert dear.attempts[0].values.cost_usd == pytest.approx(0.1 + 1.0 * 7.2 / 3600)
    # Without other signals, an attempt that moved gets those that the record has for its new time.
    first = recorded.attempts[0]
    assert first.situation is not None
    signals = first.situation._replace(signals=Signals(grid_intensity=500.0))
    moved = recorded._replace(attempts=(first._replace(situation=signals), *recorded.attempts[1:]))
    same = WhatIf(lambda run, own: tuned, recorded=build_recorded_world([moved])).simulate_run(moved)
    assert same.attempts[0].delay_s == 18.0
    assert same.attempts[1].values.carbon_kg == pytest.approx(0.3)


def test_a_deadline_is_missed_after_it_or_by_a_failure() -> None:
    recorded = make_run("FAILED", "COMPLETE", deadline=12.0)
    assert not WhatIf().simulate_run(recorded).misses_deadline
    assert WhatIf(lambda run, own: fixed(30.0)).simulate_run(recorded).state == "HARD_FAIL"
    # The second failure comes later than recorded, and its wait of 12 s no longer fits before the deadline.
    later = make_run("FAILED", "FAILED", "COMPLETE", deadline=25.0)
    assert WhatIf().simulate_run(later).state == "COMPLETE"
    assert WhatIf(lambda run, own: fixed(12.0)).simulate_run(later).state == "HARD_FAIL"
    report = compare_runs([recorded], SimulationOptions(policies={"": fixed(30.0)}))
    assert report.newly_missed == ("r1",)
    assert report.examples[0].deadline == "now missed"


def test_curves_add_up_and_hold_every_attempt() -> None:
    runs = [WhatIf().simulate_run(make_run("FAILED", "COMPLETE"))]
    assert build_curve(runs, "attempts", 0.0, 11.0)[-1] == (pytest.approx(11.0), 2.0)
    assert build_curve(runs, "energy", 0.0, 0.0)[-1][1] == 2.0


def test_without_energy_the_report_says_so_and_no_runs_are_an_error(every_kind: list[RecordedRun]) -> None:
    silent = [
        one._replace(attempts=tuple(attempt._replace(values=MeasuredValues()) for attempt in one.attempts))
        for one in every_kind
    ]
    report = compare_runs(silent, SimulationOptions())
    assert (report.curve, report.before.energy_kwh) == ("attempts", None)
    assert any("no energy value" in note for note in report.notes)
    assumed = compare_runs(silent, SimulationOptions(world=SimulatedWorld(energy_kwh=ENERGY)))
    assert assumed.after.energy_kwh == pytest.approx(assumed.after.attempts * ENERGY)
    assert any("No grid intensity" in note for note in assumed.notes)
    with pytest.raises(UsageError, match="no recorded run matches"):
        compare_runs([], SimulationOptions())


def test_runs_are_selected_by_step_policy_priority_and_period(incident: Path) -> None:
    assert len(load(incident, step="monthly.report")) == 6
    assert load(incident, step="other") == []
    assert len(load(incident, policy="kfm-loop", priority="P2")) == 6
    assert load(incident, priority="P0") == []
    start = load(incident)[0].created_at
    assert len(load(incident, since=start, until=start + 1.0)) == 1
    assert load(incident, since=start - 9.0, until=start - 5.0) == []
    with pytest.raises(UsageError, match="ends before it begins"):
        load(incident, since=9.0, until=5.0)


def test_the_command_refuses_what_it_cannot_use(incident: Path, tmp_path: Path) -> None:
    for words, message in (
        (["--policy", "a=standard", "--policy", "a=standard"], "given twice"),
        (["--policy", "standard", "--tuning", "compare"], "keeps the recorded policies"),
        (["--failure-probability", "0.5"], "needs one --policy"),
        (["--intensity", "no-file"], "neither a number nor a file"),
        (["--since", "2030-01-01"], "no recorded run matches"),
    ):
        ran = run("simulate", "--store", str(incident), *words)
        assert ran.returncode != 0
        assert message in " ".join(ran.stderr.split()), ran.stderr
    page = tmp_path / "page.html"
    assert (
        run("simulate", "--store", str(incident), "--policy", "kfm-loop=standard", "--html", str(page)).stdout
        == f"wrote {page}\n"
    )
    assert page.read_text().startswith("<!doctype html>")


def test_json_and_text_say_the_same(incident: Path) -> None:
    words = ("simulate", "--store", str(incident), "--policy", "standard")
    report, text = told(*words), run(*words).stdout
    attempts = next(one for one in report["figures"] if one["field"] == "attempts")
    assert f"{attempts['before']}" in text
    assert json.dumps(report["curves"][0][0]).strip('"') in text
