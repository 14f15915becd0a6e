"""`oncemore demo lit`: the story is told by real parts, and says so when one of them goes otherwise."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING

from oncemore.demo import lit_demo
from oncemore.demo.core_server import CoreServer
from oncemore.demo.lit_demo import DemoRow, LitDemo, row_lines

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_command_tells_the_whole_story() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "oncemore", "demo", "lit"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    told = " ".join(run.stdout.split())
    for part in (
        "POST /v1/analyze 500 -> 200 2 requests, waited 0.",
        'POST /v1/analyze 503 -> 503 CoreClientHTTPError(503, "overloaded") request=r-17 session=s-4',
        'GET /v1/findings/99 404 CoreClientHTTPError(404, "no such finding"), not retried',
        "save finding f-12 locked, locked, ok 3 tries, waited 0.",
        "accept f-12 answer lost outcome unknown -> reconciled: applied (sent once)",
        "exhaustion rate 1 of 5 operations ALERT likely upstream outage or database pressure",
    ):
        assert part in told
    assert max(map(len, run.stdout.splitlines())) <= 80


def test_a_story_that_goes_otherwise_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(stage: LitDemo) -> DemoRow:
        stage.core.acted += 1  # as if the action had been applied before
        return LitDemo.play_lost_answer(stage)

    monkeypatch.setattr(lit_demo, "SCENES", (("Something else acts.", twice),))
    out = io.StringIO()
    assert lit_demo.main(out, plain=True) == 1
    assert "Unexpected result: accept f-12." in out.getvalue()


def test_scenes_notice_what_did_not_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CoreServer() as core:
        stage = LitDemo(core, tmp_path)
        monkeypatch.setattr(core, "queue_faults", lambda *_: None)  # a Core that never fails
        rows = [stage.play_recovery(), stage.play_exhaustion(), stage.play_lost_answer(), stage.play_alert()]
        core.findings["99"] = {"status": "open"}
        rows.append(stage.play_refusal())
    assert [row.is_expected for row in rows] == [False] * 5


def test_a_row_is_wrapped_below_its_last_column() -> None:
    lines = row_lines(DemoRow("what", "came", "word " * 12, is_expected=True), 80)
    assert len(lines) == 2
    assert lines[1][0][0] == " " * 42
