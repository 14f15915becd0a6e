"""The page about this profile runs, against a real Core."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oncemore.demo.core_server import LOST, CoreServer
from tests.test_docs import run_page

if TYPE_CHECKING:
    import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "lit.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    with CoreServer() as core:
        core.queue_faults("POST /v1/sessions/s-4/findings/f-12/accept", LOST)
        run_page(str(PAGE), text.replace("http://127.0.0.1:8080", core.url))
        assert core.findings["f-12"]["status"] == "accepted"
        assert core.acted == 1
        assert len(core.requests_for("POST /v1/analyze")) == 2
