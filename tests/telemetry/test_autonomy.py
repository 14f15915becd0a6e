"""The autonomy matrix in real runs: obeyed by calls, workers and jobs, stored with proof, and shown."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import Deferred, Quarantined
from oncemore.log.entry_codec import load_head
from oncemore.steps.history import export_records, fold_entries
from oncemore.telemetry.autonomy_rules import AutonomyRecord, recompute_proof
from oncemore.testing import FakeClock
from tests.cli.test_cli_policy import Ran

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RULES = """
autonomy:
  carbon_intensity_g_per_kWh: {slow: 500, pause: 700, resume: 250}
  recheck_s: 0.2
  min_dwell_s: 0
  escalate_below: 0.0
  slow_factor: 3
"""


@pytest.fixture
def policy(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a policy file and returns its path."""

    def write(rules: str = RULES, priority: str = "P2", name: str = "nightly") -> str:
        text = (
            f"profile: {name}\nversion: '1'\npriority: {priority}\n"
            "retry_policy: {max_attempts: 3, base_delay_s: 100, jitter: none, max_delay_s: 900}\n"
            f"telemetry_tuning: {{enabled: true}}\n{rules}"
        )
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return str(path)

    return write


def matrix(engine: oncemore.Engine, name: str = "nightly") -> AutonomyRecord:
    record = load_head(engine.store, f"autonomy/{name}", engine.cipher, AutonomyRecord).record
    assert isinstance(record, AutonomyRecord)
    return record


def decisions(engine: oncemore.Engine) -> list[dict[str, Any]]:
    """Return the proofs of all stored decisions; each can be made again from itself."""
    entries = fold_entries(engine.store.read_entries())
    found = [body["proof"] for header, _, body in entries if header.entity.startswith("autonomy/") and body]
    for proof in found:
        assert recompute_proof(proof)["action"] == proof["action"]
    return found


def open_with(**signals: Any) -> oncemore.Engine:
    return oncemore.open("memory:", signals=signals, max_inline_wait_s=0)


def make_step(policy: str, **options: Any) -> Any:
    @oncemore.step(effect="pure", policy=policy, name="report", **options)
    def report(item: int, fails: bool = False) -> int:
        if fails:
            raise ConnectionError
        return item

    return report


@pytest.mark.req("AUTO-1", "AUTO-2")
def test_each_level_is_provoked_by_signals_and_obeyed(policy: Callable[..., str]) -> None:
    report, path = make_step(policy()), policy()
    assert path
    with open_with(grid_intensity=100) as engine:
        assert report(1) == 1
        assert matrix(engine).level == "run"
    with open_with(grid_intensity=600) as engine:
        assert report(2) == 2
        assert matrix(engine).level == "slow"
    with open_with(grid_intensity=900) as engine:
        with pytest.raises(Deferred):
            report(3)
        run = report.run(3)
        assert (run.status, run.reason, run.attempts) == ("PENDING", "autonomy_pause", ())
        assert "paused by the autonomy matrix, grid intensity 900" in run.explain()
        assert decisions(engine)[0]["sentence"].startswith("pause: grid intensity 900")
    with open_with(error_budget=0) as engine:
        with pytest.raises(Quarantined):
            report(4)
        run = report.run(4)
        assert (run.held_for, run.attempts) == ("autonomy_escalation", ())
        # A person releases it: one attempt is made, although the matrix still says escalate.
        item = engine.quarantine.list()[0]
        engine.quarantine.release(item.id, reason="checked", by="operator")
        assert report(4) == 4


def test_a_changed_signal_ends_the_pause(policy: Callable[..., str], tmp_path: Path) -> None:
    signal = tmp_path / "grid.csv"
    signal.write_text("0,900\n")
    source = {"file": str(signal), "refresh_s": 0.01, "max_age_s": 1e12}
    report = make_step(policy())
    with oncemore.open("memory:", signals={"grid_intensity": source}, max_inline_wait_s=0) as engine:
        submitted = report.submit(1)
        with oncemore.Worker(engine, [report]):
            # The worker pauses it again and again, until the grid is clean.
            while not decisions(engine):
                pass
            assert report.run(1).attempts == ()
            signal.write_text("0,100\n")
            assert submitted.wait(60).value == 1
    assert [proof["action"] for proof in decisions(engine)][-1] == "run"


@pytest.mark.req("PROOF-5")
def test_a_proof_names_the_decision_in_force_and_slow_lengthens_the_delay(
    policy: Callable[..., str],
) -> None:
    report = make_step(policy())
    with open_with(grid_intensity=600) as engine:
        report.run(1, fails=True)
        records = list(export_records(engine.store.read_entries()))
        (proof,) = [record["decision_proof"] for record in records if record["kind"] == "DECISION"]
        assert proof["inputs"]["autonomy"] == {"id": "nightly#1", "action": "slow", "slow_factor": 3.0}
        # 100 s, stretched by 2 for the carbon and by 3 for the slowdown.
        assert proof["delay_s"] == 600.0
        assert proof["terms"]["tuned"]["slow"] == 3.0
        proofs = [record["decision_proof"] for record in records if record["kind"] == "DECISION"]
        affected = [each["delay_s"] for each in proofs if each["inputs"]["autonomy"]["id"] == "nightly#1"]
        assert affected == [600.0]


def test_slow_work_takes_few_slots_in_a_job(policy: Callable[..., str]) -> None:
    active, most, lock = [0], [0], threading.Lock()

    @oncemore.step(effect="pure", policy=policy(), name="crunch")
    def crunch(item: int) -> int:
        with lock:
            active[0] += 1
            most[0] = max(most[0], active[0])
        threading.Event().wait(0.02)
        with lock:
            active[0] -= 1
        return item

    with oncemore.open("memory:", signals={"grid_intensity": 600}) as engine:
        job = crunch.map(range(6), max_concurrency=3)
        assert job.counts["done"] == 6
        assert matrix(engine).level == "slow"
    assert most[0] == 1


def test_p0_runs_and_p1_is_never_paused(policy: Callable[..., str]) -> None:
    for priority in ("P0", "P1"):
        report = make_step(policy(), priority=priority)
        with open_with(grid_intensity=900, error_budget=1):
            assert report(1) == 1


# The carbon budget ----------------------------------------------------------------------------------

BUDGET = "carbon_budget: {period: month, cap_kgCO2e: 2.0, slow_at: 0.9}\n"


def test_a_monthly_cap_is_never_exceeded_and_the_rest_waits(policy: Callable[..., str]) -> None:
    @oncemore.step(effect="pure", policy=policy(BUDGET), name="report")
    def report(item: int) -> int:
        oncemore.current().add_usage(energy_kwh=0.3)
        return item

    with open_with(grid_intensity=1000) as engine:
        done = 0
        for item in range(8):
            run = report.run(item)
            done += run.status == "COMPLETE"
            assert run.status == "COMPLETE" or run.state.not_before == matrix(engine).until
        # Six of 0.3 kg; the seventh would make 2.1.
        assert done == 6
        record = matrix(engine)
        assert record.spent_kg == pytest.approx(1.8, abs=1e-3)
        assert record.reserved == {}
        assert record.level == "pause"
        assert "> cap 2 kgCO2e" in record.reason
        # The same energy under P0 goes on.
        urgent = report.run(9)
        assert urgent.reason == "autonomy_pause"


def test_failed_attempts_spend_the_budget_too(policy: Callable[..., str]) -> None:
    @oncemore.step(effect="pure", policy=policy(BUDGET), name="report")
    def report() -> int:
        oncemore.current().add_usage(energy_kwh=0.5)
        raise ConnectionError

    with open_with(grid_intensity=1000) as engine:
        report.run()
        assert matrix(engine).spent_kg == pytest.approx(0.5, abs=1e-3)


# Permanent failures ---------------------------------------------------------------------------------


@pytest.mark.req("AUTO-4", "GOV-10")
def test_a_permanent_failure_reaches_the_inbox_and_pauses_the_rest(policy: Callable[..., str]) -> None:
    @oncemore.step(effect="pure", policy=policy("autonomy: {on_permanent: pause}\n"), name="report")
    def report(kind: str) -> int:
        if kind == "bad":
            raise ValueError("not a report")
        if kind == "down":
            raise ConnectionError
        return 1

    with open_with() as engine:
        report.run("bad")
        (failure,) = matrix(engine).inbox
        assert failure["policy"] == "autonomy-matrix"
        assert (failure["step"], failure["run"]) == ("report", report.run("bad").key)
        with pytest.raises(Deferred):
            report("good")
        assert "a permanent failure" in matrix(engine).reason
        escalations = [
            record["escalation"]["policy"] for record in export_records(engine.store.read_entries())
            if record["kind"] == "ESCALATION"
        ]  # fmt: skip
        assert escalations == ["autonomy-matrix"]
    tried = oncemore.step(effect="pure", policy=policy("", name="other"), attempts=1, name="other")
    with open_with() as engine:

        @tried
        def down() -> None:
            raise ConnectionError

        down.run()
        listed = export_records(engine.store.read_entries())
        assert [r["escalation"]["policy"] for r in listed if r["kind"] == "ESCALATION"] == ["deadline-aware"]


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        ("carbon_budget: {period: month}\n", "carbon_budget has no cap_kgCO2e"),
        ("autonomy: {off_hours: {from_hour: 20}}\n", "needs from_hour and to_hour"),
        ("autonomy: {on_permanent: stop}\n", "none, pause"),
    ],
)
def test_wrong_rules_are_refused_with_their_place(policy: Callable[..., str], rules: str, fault: str) -> None:
    with pytest.raises(oncemore.PolicyError, match=fault):
        make_step(policy(rules))


def test_a_budget_may_have_hours_too(policy: Callable[..., str]) -> None:
    report = make_step(
        policy("autonomy: {off_hours: {from_hour: 0, to_hour: 0}, slow_concurrency: 2}\n" + BUDGET)
    )
    with open_with() as engine:
        assert report(1) == 1
        assert matrix(engine).level == "slow"


# Approvals of paused runs ---------------------------------------------------------------------------


def test_an_approval_lets_one_paused_run_begin(policy: Callable[..., str]) -> None:
    report = make_step(policy())
    with open_with(grid_intensity=900) as engine:
        first, second = report.run(1), report.run(2)
        assert (first.reason, second.reason) == ("autonomy_pause", "autonomy_pause")
        engine.approvals.approve(first, reason="the auditors wait for it", by="reviewer")
        # The level is still pause: the approval covers one run and nothing else.
        assert report(1) == 1
        assert report.run(2).attempts == ()
        assert matrix(engine).level == "pause"
        (approval,) = engine.approvals.list()
        assert (approval.by, approval.reason) == ("reviewer", "the auditors wait for it")


def test_paused_runs_are_listed_for_approval(policy: Callable[..., str], tmp_path: Path) -> None:
    report, store = make_step(policy()), f"sqlite:///{tmp_path}/log.db"
    with oncemore.open(store, signals={"grid_intensity": 100}, max_inline_wait_s=0) as engine:
        report(1)
        assert engine.approvals.list_paused() == ()
    with oncemore.open(store, signals={"grid_intensity": 900}, max_inline_wait_s=0) as engine:
        run = report.run(2)
        (paused,) = engine.approvals.list_paused()
        assert (paused.run_id, paused.step, engine.approvals.list_waiting()) == (run.run_id, "report", ())
    ran = Ran("control", "approvals", "--store", store)
    assert "paused by the autonomy matrix: grid intensity 900 g/kWh" in ran.words
    assert Ran("control", "approvals", "--store", store, "--json").json["paused"][0]["run_id"] == run.run_id


def test_a_revoked_or_expired_approval_does_not_end_a_pause(policy: Callable[..., str]) -> None:
    report = make_step(policy())
    with open_with(grid_intensity=900) as engine, FakeClock() as clock:
        revoked, expired = report.run(1), report.run(2)
        engine.approvals.approve(revoked, reason="urgent", by="reviewer")
        engine.approvals.revoke(revoked, reason="not urgent", by="reviewer")
        engine.approvals.approve(expired, reason="urgent", by="reviewer", expires=60)
        clock.advance(61)
        for item in (1, 2):
            run = report.run(item)
            assert (run.status, run.reason, run.attempts) == ("PENDING", "autonomy_pause", ())


def test_a_call_can_be_approved_before_the_pause_and_its_retry_is_covered(policy: Callable[..., str]) -> None:
    report = make_step(policy())
    with open_with(grid_intensity=900):
        report.approve(1, fails=True, reason="planned for tonight", by="reviewer")
        run = report.run(1, fails=True)
        # It was tried, and its retry waits by its own delay and not by the pause.
        assert [attempt.outcome for attempt in run.attempts] == ["SOFT_FAIL"]
        assert run.reason == "retry"


def test_only_a_waiting_run_can_be_approved(policy: Callable[..., str]) -> None:
    report = make_step(policy())
    with open_with(grid_intensity=100) as engine:
        report(1)
        with pytest.raises(oncemore.StaleDecision, match="does not wait for an approval"):
            engine.approvals.approve(report.run(1), reason="urgent", by="reviewer")
