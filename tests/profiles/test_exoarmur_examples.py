"""The code on the pages about audit events and the exoarmur interface runs, and their tables are right."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from oncemore.audit.events import EVENT_TYPES, event_schema
from tests.test_docs import blocks_of, run_page

REFERENCE = Path(__file__).resolve().parents[2] / "docs/reference"


@pytest.mark.parametrize("page", ["audit-events.md", "exoarmur.md"])
@pytest.mark.usefixtures("instant_retries")
def test_the_code_on_the_page_runs(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A manager that no other test has written to.
    monkeypatch.setattr("oncemore.profiles.exoarmur.manager._shared_manager", [])
    text = (REFERENCE / page).read_text(encoding="utf-8")
    assert blocks_of(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_page(page, text)
    if page == "exoarmur.md":
        assert "RETRY_NATS_CONNECT 5 0.0 5.0" in capsys.readouterr().out


def test_the_page_lists_every_event_with_its_fields() -> None:
    text = (REFERENCE / "audit-events.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"(?m)^\| `(\w+)` \|[^|]+\| (`event_type`.+) \|$", text))
    assert {name: re.findall(r"`(\w+)`", fields) for name, fields in rows.items()} == {
        name: event_schema(name)["required"] for name in EVENT_TYPES
    }
