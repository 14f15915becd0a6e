"""`oncemore demo kfm-loop`: the scenarios leave the entries of the document, and replay finds faults."""

from __future__ import annotations

import io
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli
from oncemore.demo import kfm_loop_demo
from oncemore.demo.kfm_loop_demo import FileNode, LoopScenario, list_scenarios, play_scenario, replay_run
from oncemore.policy import files
from oncemore.queries import replay as replays
from oncemore.testing import instant_waits

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "retry-loop" / "examples"
TITLES = [scenario.title for scenario in list_scenarios()]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with instant_waits(), oncemore.open(tmp_path / "log.db") as engine:
        yield engine


def named(title: str) -> LoopScenario:
    return next(scenario for scenario in list_scenarios() if scenario.title == title)


def of(wal: list[dict[str, Any]], kind: str, state: str = "") -> list[dict[str, Any]]:
    return [line for line in wal if line["kind"] == kind and state in ("", line["state"])]


@pytest.mark.req("WAL-4")
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("title", TITLES)
def test_the_entries_of_a_scenario_have_the_states_and_values_of_the_document(title: str) -> None:
    scenario = named(title)
    wal = play_scenario(scenario).records()
    assert kfm_loop_demo.list_transitions(wal) == scenario.states.split()
    assert scenario.node.computed == scenario.computes
    assert [line["intent"] for line in of(wal, "INTENT")] == ["compute"] * scenario.computes
    assert all(line["seq"] and line["at"] for line in wal)
    assert sorted(wal, key=lambda line: line["seq"]) == wal
    fails = of(wal, "TRANSITION", "SOFT_FAIL") + of(wal, "TRANSITION", "HARD_FAIL")
    assert len(fails) == len(of(wal, "DECISION"))
    for line in of(wal, "TRANSITION", "SOFT_FAIL"):
        assert (line["error"]["type"], line["error"]["message"]) == (
            "TransientError",
            "the warehouse is busy",
        )
    if title == "permanent":
        assert fails[-1]["error"]["type"] == "PermanentError"
    if title == "exhausted":
        assert fails[-1]["reason"] == fails[-1]["error"]["error"] == "max_attempts_exceeded"
    if title == "artifact exists":
        first, second = of(wal, "TRANSITION", "COMPLETE")
        assert second["reason"] == "artifact_exists"
        assert first["artifacts"] == second["artifacts"]
        assert len(first["artifacts"]) == 1


@pytest.mark.parametrize("title", TITLES)
def test_a_scenario_agrees_with_its_log(title: str, engine: oncemore.Engine) -> None:
    scenario = named(title)
    assert replay_run(engine, scenario, play_scenario(scenario)).faults == ()


def test_what_does_not_agree_is_said(engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = named("two soft fails, then success")
    run = play_scenario(scenario)
    other = scenario._replace(states="PENDING(1) RUNNING(1) COMPLETE(1)", computes=1)
    states, computes = replay_run(engine, other, run).faults
    assert "SOFT_FAIL(2) RUNNING(3) COMPLETE(3), and not PENDING(1) RUNNING(1) COMPLETE(1)" in states
    assert computes == "it was computed 3 times, and not 1"
    changed = files.policy("kfm-loop").replace(max_delay_s=40.0)
    monkeypatch.setattr(replays, "_find_current_policies", lambda store: lambda recorded: changed)
    faults = replay_run(engine, scenario, run).faults
    assert f"attempt 1: policy.digest is '{files.policy('kfm-loop').digest}' in the log" in faults[0]
    assert any("now.delay_s" in fault for fault in faults)


def test_a_file_that_was_altered_is_found(engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = named("artifact exists")
    assert isinstance(scenario.node, FileNode)
    run = play_scenario(scenario)
    monkeypatch.setattr(oncemore.Artifact, "read", lambda self: b"something else")
    assert replay_run(engine, scenario, run).faults == ("report.csv was altered",)


def test_a_log_that_was_altered_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = named("permanent")._replace(states="PENDING(1) RUNNING(1) COMPLETE(1)")
    monkeypatch.setattr(kfm_loop_demo, "list_scenarios", lambda: (named("success"), wrong))
    monkeypatch.setattr(kfm_loop_demo, "PROGRAMS", {})
    out = io.StringIO()
    assert kfm_loop_demo.main(out, plain=True, scenario="all") == 1
    assert "1 differences." in out.getvalue()


@pytest.mark.usefixtures("engine")
def test_a_late_report_is_done_in_time_with_the_bias_and_misses_its_deadline_without() -> None:
    biased, patient = kfm_loop_demo.select_scenarios("deadline-catchup")
    done, missed = play_scenario(biased), play_scenario(patient)
    began, ended = done.records()[0]["at"], done.records()[-1]["at"]
    assert (done.status, ended < began + kfm_loop_demo.TIME_LEFT_S) == ("COMPLETE", True)
    assert (missed.status, missed.reason) == ("HARD_FAIL", "wait_beyond_deadline")
    policy = files.policy("p2-batch-reporting")
    assert policy.tuning is not None
    assert policy.tuning.min_buffer_s > kfm_loop_demo.TIME_LEFT_S
    risks = [line["decision_proof"]["terms"]["tuned"]["risk"] for line in of(done.records(), "DECISION")]
    assert all(0.7 < risk < 1 for risk in risks), risks


def test_one_scenario_is_played_alone_and_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["demo", "kfm-loop", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed[:2] == ["success", "two-soft-fails"]
    # All six scenarios of the document's folders.
    assert {page.stem.removeprefix("scenario-") for page in PAGES.glob("*/scenario-*.md")} == set(listed[5:])
    assert cli.run_command(["demo", "kfm-loop", "--plain", "--scenario", "permanent"]) == 0
    out = capsys.readouterr().out
    assert out.count("replayed: ") == 1
    assert out.endswith("It agrees with its log.\n")
    assert cli.run_command(["demo", "kfm-loop", "--scenario", "storm"]) == 2
    assert "there is no scenario 'storm'; there are success, two-soft-fails" in capsys.readouterr().err
    assert cli.run_command(["demo", "retry", "--list"]) == 2
    assert "--list is not an option of the demo retry" in capsys.readouterr().err


def test_the_command_shows_and_replays_all_of_them() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "oncemore", "demo", "kfm-loop", "--scenario", "all"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    for title in TITLES:
        assert f"\n{title}: " in run.stdout
    assert run.stdout.count("replayed: ") == len(TITLES) == 7
    replayed, agreed, programs = run.stdout.partition("All 7 agree with their logs.\n")
    assert agreed
    assert max(map(len, replayed.splitlines())) <= 80
    # The last line of what each program prints.
    for text in (
        "November: 18 of 18 reports done", "52 parts done at 08:12, due at 09:00", "carbon: 37.2 g, of which",
        "COMPLETE after the decision of the council's reviewer", "tile 3: COMPLETE",
    ):  # fmt: skip
        assert text in programs


def test_a_program_is_found_in_a_wheel_and_a_missing_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    in_wheel, in_source = kfm_loop_demo.PROGRAM_FOLDERS
    assert wheel == {str(in_source.relative_to(ROOT)): str(in_wheel.relative_to(ROOT / "src"))}
    (tmp_path / "carbon_clamp.py").write_text("print('the one in the wheel')")
    monkeypatch.setattr(kfm_loop_demo, "PROGRAM_FOLDERS", (tmp_path, in_source))
    assert cli.run_command(["demo", "kfm-loop", "--scenario", "carbon-clamp"]) == 0
    assert "the one in the wheel" in capsys.readouterr().out
    monkeypatch.setattr(kfm_loop_demo, "PROGRAM_FOLDERS", (tmp_path,))
    assert cli.run_command(["demo", "kfm-loop", "--scenario", "thrash-control"]) == 2
    assert "thrash_control.py of scenario thrash-control is not installed" in " ".join(
        capsys.readouterr().err.split()
    )
