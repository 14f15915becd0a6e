"""A proposal is a new policy file with evidence; the running policy does not change."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore import cli
from oncemore.policy import files
from oncemore.policy.backoff import NO_JITTER
from oncemore.queries.policies import check_file, find_policy
from oncemore.queries.policy_proposals import bump_version
from oncemore.queries.recorded_runs import RecordedRunFilter, build_recorded_world, load_recorded_runs
from oncemore.queries.stores import open_read_only
from oncemore.simulate.proposals import list_candidates, propose_policy
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

POLICY = """
profile: mine
version: "3"
retry_policy: {name: mine, max_attempts: 6, base_delay_s: 1, max_delay_s: 30, jitter: none}
classify: {retryable: [TIMEOUT], unmatched: fail}
"""


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(POLICY)
    return path


def record_history(path: Path, policy: Path, count: int) -> None:
    """Record runs: every second completes at attempt 2, the others use up six attempts in vain."""

    @oncemore.step(effect="idempotent", name="fetch", policy=str(policy))
    def fetch(n: int) -> int:
        if n % 2 or oncemore.current().number == 1:
            raise TimeoutError("no answer")
        return n

    with oncemore.open(path), FakeClock():
        for n in range(count):
            with suppress(oncemore.Error):
                fetch(n)


@pytest.mark.req("BACKOFF-22")
def test_a_proposal_is_a_file_with_its_diff_and_evidence_and_changes_nothing(
    tmp_path: Path, policy_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = tmp_path / "log.db", tmp_path / "next.yaml"
    record_history(store, policy_file, 40)
    in_use = files.policy(str(policy_file))
    words = ["policy", "propose", str(policy_file), "--store", str(store), "--until", "4000000000"]
    assert cli.run_command([*words, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "max_attempts: 6 → 3" in printed
    assert "wrote" in printed
    # The policy in use, its file and the log are as they were.
    assert policy_file.read_text() == POLICY
    assert files.policy(str(policy_file)).digest == in_use.digest
    # The new file is valid, is a new version, and saves the attempts that never succeeded.
    assert check_file(str(out)).good
    proposed = find_policy(str(out)).policy
    assert (proposed.version, proposed.max_attempts) == ("4", 3)
    assert (in_use.version, in_use.max_attempts) == ("3", 6)
    evidence = json.loads((tmp_path / "next.evidence.json").read_text())
    assert evidence["policies"][0]["old_digest"] == find_policy(str(policy_file)).policy.digest
    assert (evidence["old"]["version"], evidence["new"]["version"], evidence["runs"]) == ("3", "4", 40)
    assert {change["field"] for change in evidence["changes"]} >= {"policies.default.max_attempts"}
    figures = {figure["field"]: figure for figure in evidence["figures"]}
    assert figures["attempts"]["before"] == 20 * 2 + 20 * 6
    assert figures["attempts"]["after"] == 20 * 2 + 20 * 3
    assert figures["completed"]["difference"] == 0
    assert "max_attempts" in out.read_text()
    assert "# Evidence: next.evidence.json" in out.read_text()
    assert (tmp_path / "next.evidence.html").read_text().startswith("<!doctype html>")
    # Nothing is ever replaced.
    assert cli.run_command([*words, "--out", str(out)]) != 0
    assert "a proposal replaces nothing" in " ".join(capsys.readouterr().err.split())


def test_without_enough_history_there_is_no_proposal(
    tmp_path: Path, policy_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = tmp_path / "log.db", tmp_path / "next.yaml"
    record_history(store, policy_file, 8)
    words = ["policy", "propose", str(policy_file), "--store", str(store), "--until", "4000000000"]
    assert cli.run_command([*words, "--out", str(out)]) != 0
    assert "8 runs under mine in this period, 8 of them with a failed attempt" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not list(tmp_path.glob("next*"))
    assert cli.run_command([*words, "--out", "next.txt"]) == 2
    assert cli.run_command(["policy", "propose", "standard", "--store", str(store), "--out", str(out)]) != 0


def test_a_policy_that_fits_its_history_is_left_alone(
    tmp_path: Path, policy_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "log.db"

    @oncemore.step(effect="idempotent", name="fetch", policy=str(policy_file))
    def fetch(n: int) -> int:
        return n

    with oncemore.open(store), FakeClock():
        for n in range(40):
            fetch(n)
    with open_read_only(str(store)) as opened:
        runs = load_recorded_runs(opened, RecordedRunFilter(0.0, 4e9))
    assert propose_policy(files.policy(str(policy_file)), runs, build_recorded_world(runs)) is None
    # A few retries that succeeded at once are no reason for other numbers either.
    other = tmp_path / "few.db"

    @oncemore.step(effect="idempotent", name="fetch", policy=str(policy_file))
    def fetch_again(n: int) -> int:
        if oncemore.current().number == 1:
            raise TimeoutError("no answer")
        clock.advance(1000.0)
        return n

    with oncemore.open(other), FakeClock() as clock:
        for n in range(6):
            fetch_again(n)
    words = ["policy", "propose", str(policy_file), "--store", str(other), "--until", "4000000000"]
    assert cli.run_command([*words, "--out", str(tmp_path / "next.yaml"), "--min-runs", "3"]) == 1
    assert "nothing was written" in capsys.readouterr().out
    assert not (tmp_path / "next.yaml").exists()


def propose_for(policy: str, out: Path) -> None:
    """Record runs that never succeed under a packaged policy, and write a proposal for it."""
    store = out.with_suffix(".db")

    @oncemore.step(effect="idempotent", name="never", policy=policy)
    def never(n: int) -> int:
        raise TimeoutError("no answer")

    with oncemore.open(store), FakeClock():
        for n in range(6):
            with suppress(oncemore.Error):
                never(n)
    words = ["policy", "propose", policy, "--store", str(store), "--until", "4000000000", "--min-runs", "3"]
    assert cli.run_command([*words, "--out", str(out)]) == 0
    assert check_file(str(out)).good
    assert find_policy(str(out)).policy.max_attempts == 2


def test_a_packaged_profile_is_extended_and_one_of_several_policies_gets_its_own_file(tmp_path: Path) -> None:
    propose_for("standard", tmp_path / "standard-next.yaml")
    assert 'extends: "standard"' in (tmp_path / "standard-next.yaml").read_text()
    propose_for("exoarmur/KV_PUT", tmp_path / "put.yaml")
    assert "extends" not in (tmp_path / "put.yaml").read_text()


def test_candidates_stay_within_the_bounds_of_a_governed_policy() -> None:
    rules = files.policy("kfm-rules")
    bases = {candidate.schedule.base for candidate in list_candidates(rules)}
    assert bases == {0.5, 1.0}
    fixed = oncemore.Policy("f", max_attempts=2, schedule=oncemore.backoff.fixed(4.0), jitter=NO_JITTER)
    found = {(one.max_attempts, one.schedule.delays) for one in list_candidates(fixed)}
    assert (2, (4.0,)) not in found
    assert (3, (8.0,)) in found
    assert all(attempts >= 2 for attempts, _ in found)


def test_a_better_candidate_that_the_newest_runs_do_not_confirm_is_not_proposed(
    tmp_path: Path, policy_file: Path
) -> None:
    store = tmp_path / "log.db"

    @oncemore.step(effect="idempotent", name="fetch", policy=str(policy_file))
    def fetch(n: int) -> int:
        # The older runs never succeed; the newest succeed only at the last attempt.
        if n < 30 or oncemore.current().number < 6:
            raise TimeoutError("no answer")
        return n

    with oncemore.open(store), FakeClock():
        for n in range(45):
            with suppress(oncemore.Error):
                fetch(n)
    with open_read_only(str(store)) as opened:
        runs = load_recorded_runs(opened, RecordedRunFilter(0.0, 4e9))
    proposal = propose_policy(files.policy(str(policy_file)), runs, build_recorded_world(runs))
    assert proposal is None or proposal.confirmed_after.completed == 15


@pytest.mark.parametrize(
    ("version", "next_version"),
    [
        ("retry-loop-v11.2", "retry-loop-v11.3"),
        ("9", "10"),
        ("2026-a", "2027-a"),
        ("beta", "beta-2"),
        ("", "2"),
    ],
)
def test_the_next_version_is_higher(version: str, next_version: str) -> None:
    assert bump_version(version) == next_version
