"""`oncemore demo lit`: it runs real servers, and reports an unexpected result."""

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


def test_the_command_runs_every_scene() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "oncemore", "demo", "lit"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    output = " ".join(run.stdout.split())
    for part in (
        "POST /v1/analyze 500 -> 200 2 requests, waited 0.",
        'POST /v1/analyze 503 -> 503 CoreClientHTTPError(503, "overloaded") request=r-17 session=s-4',
        'GET /v1/findings/99 404 CoreClientHTTPError(404, "no such finding"), not retried',
        "save finding f-12 locked, locked, ok 3 tries, waited 0.",
        "accept f-12 answer lost outcome unknown -> reconciled: applied (sent once)",
        "exhaustion rate 1 of 5 operations ALERT likely upstream outage or database pressure",
    ):
        assert part in output
    assert max(map(len, run.stdout.splitlines())) <= 80


def test_an_unexpected_result_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(demo: LitDemo) -> DemoRow:
        demo.core.acted += 1  # as if the action had been applied before
        return LitDemo.play_lost_answer(demo)

    monkeypatch.setattr(lit_demo, "SCENES", (("Something else acts.", twice),))
    out = io.StringIO()
    assert lit_demo.main(out, plain=True) == 1
    assert "Unexpected result: accept f-12." in out.getvalue()


def test_scenes_notice_what_did_not_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CoreServer() as core:
        demo = LitDemo(core, tmp_path)
        monkeypatch.setattr(core, "queue_faults", lambda *_: None)  # a Core that never fails
        rows = [demo.play_recovery(), demo.play_exhaustion(), demo.play_lost_answer(), demo.play_alert()]
        core.findings["99"] = {"status": "open"}
        rows.append(demo.play_refusal())
    assert [row.is_expected for row in rows] == [False] * 5


def test_a_row_is_wrapped_below_its_last_column() -> None:
    lines = row_lines(DemoRow("what", "came", "word " * 12, is_expected=True), 80)
    assert len(lines) == 2
    assert lines[1][0][0] == " " * 42
