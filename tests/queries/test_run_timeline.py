"""The timeline and the explanation of runs with every kind of outcome."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import apsw
import pytest

import oncemore
from oncemore.cli.timeline import draw_timeline, timeline_legend
from oncemore.errors import UsageError
from oncemore.queries.explain import RunExplanation, explain_run
from oncemore.queries.run_timeline import RunTimeline, TimeSpan, load_timeline
from oncemore.queries.runs import FoundRun, RunFilter, find_run, list_runs
from oncemore.queries.stores import open_read_only
from oncemore.testing import FakeClock
from tests.queries.victim import ARMED, pay, repeat
from tests.queries.work import SURE
from tests.shell import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.store import Store


def load_step_timeline(store: Store, step: str) -> RunTimeline:
    return load_timeline(store, find_run(store, list_runs(store, RunFilter(step=step))[0].run_id))


def text(found: RunExplanation) -> str:
    return "\n".join([*(line for one in found.told for line in one.sentences), *found.standing])


def span_kinds(told: RunTimeline) -> list[tuple[str, int]]:
    return [(span.what, span.number) for span in told.spans if span.what != "lease"]


def test_attempts_waits_and_leases_are_spans_that_follow_each_other(store: Store) -> None:
    told = load_step_timeline(store, "flaky")
    assert span_kinds(told) == [("attempt", 1), ("wait", 2), ("attempt", 2), ("wait", 3), ("attempt", 3)]
    spans = [span for span in told.spans if span.what != "lease"]
    for one, other in pairwise(spans):
        assert one.ends is not None
        # A wait begins when the attempt before it ends; the next attempt begins after it, by its record.
        assert other.begins == one.ends if other.what == "wait" else other.begins >= one.ends
    claims = [entry.at for entry in told.steps if "INTENT" in entry.marks]
    assert [span.begins for span in spans if span.what == "attempt"] == claims
    due = [entry.state.not_before for entry in told.steps if "SOFT_FAIL" in entry.marks]
    assert [span.ends for span in spans if span.what == "wait"] == due
    assert [span.outcome for span in spans if span.what == "attempt"] == [
        "SOFT_FAIL",
        "SOFT_FAIL",
        "COMPLETE",
    ]
    assert [span.error for span in spans][:3] == ["CONNECTION_RESET", "", "CONNECTION_RESET"]
    (lease,) = (span for span in told.spans if span.what == "lease")
    assert lease.outcome == "ENDED"
    assert f"process {os.getpid()}" in lease.message
    assert lease.begins <= spans[0].begins
    assert told.arguments == {"day": "2026-11-16"}
    assert told.result == {"result": "rivers of 2026-11-16"}


def test_outputs_of_a_run_are_listed_with_their_states(store: Store) -> None:
    (chart,) = load_step_timeline(store, "chart").given
    assert (chart.kind, chart.name, chart.state, chart.size) == ("artifact", "chart.txt", "STORED", 20)
    (event,) = load_step_timeline(store, "announce").given
    assert (event.kind, event.name, event.state) == ("event", "days", "PENDING")
    assert load_step_timeline(store, "pay").given == ()


def test_checkpoints_are_counted_and_secrets_stay_masked(store: Store) -> None:
    attempts = [span for span in load_step_timeline(store, "halves").spans if span.what == "attempt"]
    assert [span.checkpoints for span in attempts] == [1, 1]
    told = load_step_timeline(store, "pay")
    assert "sk-secret" not in repr(told)
    assert "token=***" in repr(told)


@pytest.mark.req("PROOF-3")
def test_the_explanation_of_a_wait_shows_its_numbers(store: Store) -> None:
    told = load_step_timeline(store, "flaky")
    found = explain_run(told, 3)
    assert [one.attempt for one in found.told] == [2, 3]
    assert found.told[0].proof is not None
    wait = next(span for span in told.spans if span.what == "wait" and span.number == 3)
    assert wait.ends is not None
    said = text(found)
    assert "Attempt 2 failed with CONNECTION_RESET (transient); attempt 3 of 3 follows in" in said
    assert "The policy's own delay is u * min(30, 1 * 2 ** 1) =" in said
    assert (
        f"= {found.told[0].proof['delay_s']:.6g} s with u = {found.told[0].proof['terms']['u']:.6f}" in said
    )
    assert f"Policy standard version 1, {SURE.digest[:12]}." in said
    assert "Attempt 3 began at" in said
    assert "after a wait of" in said
    whole = explain_run(told)
    assert [one.attempt for one in whole.told] == [1, 2, 3]
    with pytest.raises(UsageError, match="has no attempt 7; it has attempts 1 to 3"):
        explain_run(told, 7)
    with pytest.raises(UsageError, match="it has attempt 1"):
        explain_run(load_step_timeline(store, "chart"), 2)


@pytest.mark.parametrize(
    ("step", "sentences"),
    [
        (
            "pay",
            [
                "it is held for a person (outcome_unknown)",
                "It is held: check whether",
                "raises OutcomeUnknown",
            ],
        ),
        ("polite", ["min(1200, 1200)", "It is deferred until"]),
        ("wrong", ["this failure does not pass by itself", "raises the stored failure again"]),
        ("chart", ["It ended as COMPLETE", "returns the stored value and runs nothing"]),
        (
            "hopeless",
            [
                "operator decided at",
                "rerun, because the provider is back",
                "Counted within this run: Attempt 1",
            ],
        ),
        ("halves", ["with 1 checkpoint"]),
    ],
)
def test_every_end_has_its_sentence(store: Store, step: str, sentences: list[str]) -> None:
    said = text(explain_run(load_step_timeline(store, step)))
    for sentence in sentences:
        assert sentence.replace("min(1200, 1200)", "= 1200 s") in said


def test_an_earlier_run_of_a_key_is_explained_as_such(store: Store) -> None:
    last = load_step_timeline(store, "hopeless")
    earlier = load_timeline(store, find_run(store, last.lives[0]))
    assert f"the last one is {last.row.run_id}" in text(explain_run(earlier))


def kill_process(path: Path, step: str) -> None:
    """Kill a real process in the middle of a step."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-m", "tests.queries.victim", str(path), step]
    ran = subprocess.run(
        command, cwd=ROOT, env={**quiet, ARMED: "1"}, check=False, timeout=60, capture_output=True
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr


def test_a_lost_attempt_is_explained_before_and_after_its_takeover(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    kill_process(path, "repeat")
    with open_read_only(str(path)) as store:
        told = load_step_timeline(store, "victim.repeat")
        assert (told.row.state, span_kinds(told)) == ("RUNNING", [("attempt", 1)])
        (lease,) = (span for span in told.spans if span.what == "lease")
        assert lease.outcome == "EXPIRED"
        said = text(explain_run(told))
        assert "It has been running for" in said
        assert "which is gone: the next call closes it" in said
    with oncemore.open(path):
        assert repeat("2026-11-16") == "done 2026-11-16"
    with open_read_only(str(path)) as store:
        told = load_step_timeline(store, "victim.repeat")
        said = text(explain_run(told))
        assert "Its worker was lost before it ended" in said
        assert "(lease_expired); it was worker " in said
        assert "whose lease lasted until" in said
        assert [span.outcome for span in told.spans if span.what == "attempt"] == ["SOFT_FAIL", "COMPLETE"]
        assert len({span.worker for span in told.spans if span.what == "lease"}) == 2


def test_an_unknown_outcome_and_the_decision_about_it_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    kill_process(path, "pay")
    with oncemore.open(path):
        with pytest.raises(oncemore.OutcomeUnknown):
            pay("2026-11-16")
        with open_read_only(str(path)) as store:
            told = load_step_timeline(store, "victim.pay")
            assert span_kinds(told) == [("attempt", 1), ("wait", 2)]
            assert told.spans[1].outcome == "outcome_unknown"
            assert told.spans[1].ends is None
            assert "held for a person" in text(explain_run(told))
        with oncemore.context(actor="operator"):
            pay.settle(oncemore.applied("paid"), "2026-11-16", reason="the bank has it")
    with open_read_only(str(path)) as store:
        said = text(explain_run(load_step_timeline(store, "victim.pay")))
        assert "operator decided at" in said
        assert "settle, because the bank has it" in said


def test_a_run_with_a_live_worker_is_explained_as_running(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    seen: list[Any] = []

    @oncemore.step(effect="pure", name="looks")
    def looks() -> None:
        with open_read_only(str(path)) as store:
            seen.append(load_step_timeline(store, "looks"))

    with oncemore.open(path):
        looks()
    (lease,) = (span for span in seen[0].spans if span.what == "lease")
    assert (lease.outcome, lease.ends) == ("ALIVE", None)
    said = text(explain_run(seen[0]))
    assert "It has been running for" in said
    assert "which is gone" not in said


def test_idle_time_is_separate_from_the_wait(tmp_path: Path) -> None:
    slow = oncemore.Policy("slow", schedule=oncemore.backoff.fixed(100, 200), jitter=oncemore.Jitter("none"))
    fails = [OSError("once")]

    @oncemore.step(effect="idempotent", name="late", policy=slow)
    def late() -> str:
        if fails:
            raise ConnectionResetError("first")
        return "done"

    path = tmp_path / "log.db"
    with FakeClock() as clock, oncemore.open(path):
        with pytest.raises(oncemore.Deferred):
            late()
        fails.clear()
        clock.advance(3700)
        assert late() == "done"
    with open_read_only(str(path)) as store:
        told = load_step_timeline(store, "late")
    assert span_kinds(told) == [("attempt", 1), ("wait", 2), ("idle", 2), ("attempt", 2)]
    idle = told.spans[2]
    assert idle.ends is not None
    # The fake clock runs on between its jumps: a busy machine adds seconds.
    assert 3590 < idle.ends - idle.begins < 3660
    explained = text(explain_run(told))
    assert re.search(r"after a wait of 100 s, and 60 min \d+ s in which no worker started it", explained)


def test_a_run_that_was_refused_before_its_first_attempt_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    @oncemore.step(effect="pure", name="drawn", artifact="chart.txt", on_version_change="new")
    def drawn(day: str) -> oncemore.Artifact:
        return oncemore.current().put(b"chart")

    with oncemore.open(path):
        drawn("a")
    connection = apsw.Connection(str(path))  # as if the run had been lost, and the artifact had not
    connection.execute(
        "DELETE FROM log WHERE entity LIKE 'run/%'; DELETE FROM head WHERE entity LIKE 'run/%'"
    )
    connection.close()
    with oncemore.open(path):
        drawn("a")
    with open_read_only(str(path)) as store:
        told = load_step_timeline(store, "drawn")
        assert span_kinds(told) == []
        assert "No attempt was needed: the artifact" in text(explain_run(told))
        assert draw_timeline(told, 80) == []


def test_missing_heads_and_entries_are_reported_with_advice(path: Path) -> None:
    connection = apsw.Connection(str(path))
    ((entity, run_id),) = connection.execute(
        "SELECT entity, json_extract(CAST(head AS TEXT), '$[4]') FROM head WHERE step='flaky'"
    )
    connection.execute("DELETE FROM log WHERE entity=?", (entity,))
    connection.close()
    with open_read_only(str(path)) as store:
        with pytest.raises(UsageError, match="doctor --rebuild"):
            load_timeline(store, FoundRun(entity, run_id))
        with pytest.raises(UsageError, match="doctor --rebuild"):
            load_timeline(store, FoundRun("run/nobody", run_id))


# The drawing.


@pytest.mark.parametrize("width", [40, 60, 80, 132])
def test_a_timeline_fits_and_is_to_scale(store: Store, width: int) -> None:
    told = load_step_timeline(store, "flaky")
    lines = draw_timeline(told, width)
    assert max(map(len, lines)) <= width
    bars = [line for line in lines if "delay" in line]
    spans = [span for span in told.spans if span.what == "wait"]
    longer = max(range(2), key=lambda at: (spans[at].ends or 0) - spans[at].begins)
    assert bars[longer].count("░") >= bars[1 - longer].count("░")
    assert any("CONNECTION_RESET" in line for line in lines)
    assert timeline_legend(told) == "█ attempt   ░ delay   ━ lease"


def test_a_timeline_of_thousands_of_attempts_is_cut(store: Store) -> None:
    told = load_step_timeline(store, "flaky")
    spans = tuple(TimeSpan("attempt", n, float(n), n + 0.5, "SOFT_FAIL") for n in range(1, 500))
    lines = draw_timeline(told._replace(spans=spans), 80)
    assert len(lines) == 60
    assert lines[0].startswith("+0 s")
    assert "attempt 499" in lines[-1]


def test_an_open_span_ends_with_dots(store: Store) -> None:
    told = load_step_timeline(store, "pay")
    held = told._replace(now=told.row.changed + 500)
    line = next(line for line in draw_timeline(held, 80) if "held" in line)
    assert "8 min 20 s…" in line
    assert line.rstrip().removesuffix("outcome unknown").rstrip().endswith("…")
