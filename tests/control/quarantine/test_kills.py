"""Real processes on one SQLite file, killed around holds, decisions and notices; several decide at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import oncemore
from oncemore.log.entry_codec import decode_body
from oncemore.steps.history import verify_chain
from tests.control.quarantine.helpers import list_notifications
from tests.control.quarantine.victim import deadly, doubtful, engine_on

ROOT = Path(__file__).resolve().parents[3]
WHENS = ("before", "commit", "synced", "after")


def victim(*words: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.control.quarantine.victim", *words],
        env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def killed(*words: str) -> None:
    """Let a process run until it kills itself."""
    with victim(*words) as process:
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, f"{words} was not reached"


def finished(*words: str) -> None:
    with victim(*words) as process:
        process.communicate(timeout=60)
    assert process.returncode == 0


class Place:
    """A store and the file that is told."""

    def __init__(self, folder: Path) -> None:
        self.store, self.file = str(folder / "log.db"), str(folder / "told.jsonl")

    def words(self, what: str, mark: str = "", when: str = "") -> tuple[str, ...]:
        return what, self.store, mark, when, self.file

    def engine(self) -> Any:
        return engine_on(self.store, self.file)

    def lines(self) -> list[dict[str, Any]]:
        path = Path(self.file)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("when", WHENS)
def test_a_kill_around_a_hold_leaves_it_with_its_notice_or_neither(place: Place, when: str) -> None:
    killed(*place.words("hold", "SOFT_FAIL", when))
    with place.engine() as engine:
        there = when in ("synced", "after")
        assert len(engine.quarantine) == len(list_notifications(engine)) == int(there)
        assert doubtful.run(1).held_for == "quarantined"
        assert len(engine.quarantine) == len(list_notifications(engine)) == 1
        engine.notifier.make_relay(engine).run_once()
        verify_chain(engine.store.read_entries())
    (line,) = place.lines()
    assert line["payload"]["item"]


@pytest.mark.parametrize("what", ["release", "reject", "rerun"])
@pytest.mark.parametrize("when", WHENS)
def test_a_kill_around_a_decision_leaves_it_made_or_not(place: Place, what: str, when: str) -> None:
    finished(*place.words("hold"))
    killed(*place.words(what, "DECISION", when))
    with place.engine() as engine:
        made = when in ("synced", "after")
        assert len(engine.quarantine) == int(not made)
        run = doubtful.last_run(1)
        assert (run.status == "HARD_FAIL") == (made and what == "reject")
        assert run.state.max_attempts == (4 if made and what == "rerun" else 3)
        if not made:
            (item,) = engine.quarantine
            getattr(engine.quarantine, what)(item, by="bob", reason="the first one did not get to it")
        decisions = [
            decode_body(entry.body)["decision"]["actor"]
            for entry in engine.store.read_entries()
            if entry.body is not None and b'"decision"' in entry.body
        ]
        assert decisions == ["operator" if made else "bob"]
        verify_chain(engine.store.read_entries())


TELLING = [
    ("SENDING", "after"),
    ("telling", "here"),
    ("told", "here"),
    ("DELIVERED", "before"),
    ("DELIVERED", "after"),
]


@pytest.mark.req("MSG-2")
@pytest.mark.parametrize(("mark", "when"), TELLING, ids=str)
def test_a_kill_around_telling_tells_again_under_the_same_id(place: Place, mark: str, when: str) -> None:
    finished(*place.words("hold"))
    killed(*place.words("tell", mark, when))
    finished(*place.words("tell"))
    finished(*place.words("tell"))
    lines = place.lines()
    twice = (mark, when) in (("told", "here"), ("DELIVERED", "before"))
    assert len(lines) == (2 if twice else 1)
    assert len({line["id"] for line in lines}) == 1
    with place.engine() as engine:
        (item,) = engine.quarantine
        assert [one.state for one in engine.quarantine.show(item).notifications] == ["DELIVERED"]


def test_work_that_kills_its_workers_is_held_after_three_of_them_and_kills_no_more(place: Place) -> None:
    for _ in range(3):
        killed(*place.words("die"))
    for _ in range(3):
        finished(*place.words("die"))  # it is found in quarantine, and nobody dies of it
    with place.engine() as engine:
        (item,) = engine.quarantine
        assert (item.reason, item.attempts, item.step) == ("poison", 3, "victim.deadly")
        assert len(list_notifications(engine)) == 1
        engine.quarantine.rerun(item, by="operator", reason="more memory", extra_attempts=1)
        assert deadly.last_run(1).state.max_crashes == 4
    killed(*place.words("die"))
    finished(*place.words("die"))
    with place.engine() as engine:
        (item,) = engine.quarantine
        assert (item.reason, item.attempts) == ("poison", 4)
        verify_chain(engine.store.read_entries())


def test_of_processes_that_decide_at_the_same_time_exactly_one_decides_each(place: Place) -> None:
    with place.engine() as engine:
        for x in range(20):
            doubtful.run(x)
    crowd = [victim(*place.words("race")) for _ in range(4)]
    for process in crowd:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in crowd:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    mine = [int(process.communicate(timeout=120)[0]) for process in crowd]
    assert [process.returncode for process in crowd] == [0] * 4
    assert sum(mine) == 20, mine
    with place.engine() as engine:
        assert list(engine.quarantine) == []
        decided = [
            entry
            for entry in engine.store.read_entries()
            if b'"DECISION"' in entry.header and b'"rejected"' in entry.header
        ]
        assert len(decided) == 20
        verify_chain(engine.store.read_entries())


def test_a_program_that_ends_at_once_has_told(place: Place, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import oncemore\n"
        "@oncemore.step(effect='idempotent')\n"
        "def work():\n    raise oncemore.NeedsReview('WHO')\n"
        "work.run()\n"
    )
    (tmp_path / "oncemore.toml").write_text('store = "log.db"\nnotify = ["file:told.jsonl"]\n')
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env=env, check=True, timeout=60)
    (line,) = place.lines()
    assert line["payload"]["reason"] == "quarantined"
    with oncemore.open(tmp_path / "log.db") as engine:
        (item,) = engine.quarantine
        assert [one.state for one in engine.quarantine.show(item).notifications] == ["DELIVERED"]
