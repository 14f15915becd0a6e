"""The layout of the KFM documents is there, and each of their sections has a command that runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from oncemore import cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
WALK = DOCS / "reference" / "kfm.md"
P2, P0 = "retry-loop/examples/p2-batch-reporting", "retry-loop/examples/p0-storm-nowcast"
LAYOUT = (
    *("retries/README.md", "retries/rules.md", "retries/patterns.md", "retries/examples"),
    *("retry-loop/README.md", "retry-loop/policies/default.yaml"),
    "retry-loop/policies/p2-batch-reporting.yaml",
    *(f"{P2}/scenario-{name}.md" for name in ("deadline-catchup", "monthly-carbon-cap", "offhours-slowdown")),
    *(f"{P0}/scenario-{name}.md" for name in ("carbon-clamp", "care-escalation", "thrash-control")),
    *("retry-loop/specs/wal-checkpointing.md", "retry-loop/specs/idempotency-contract.md"),
)


@pytest.mark.req("DOC-10")
@pytest.mark.parametrize("path", LAYOUT)
def test_every_path_of_the_published_layouts_is_there_and_not_empty(path: str) -> None:
    place = DOCS / path
    if place.is_dir():
        assert any(page.read_text(encoding="utf-8").strip() for page in place.glob("*.md"))
    else:
        assert len(place.read_text(encoding="utf-8").strip()) > 100


def test_the_policies_of_the_docs_are_those_of_the_package() -> None:
    packaged = ROOT / "src/oncemore/profiles/retry-loop/policies"
    shown = DOCS / "retry-loop/policies"
    files = sorted(path.name for path in packaged.glob("*.yaml"))
    assert files == sorted(path.name for path in shown.glob("*.yaml"))
    for name in files:
        assert (shown / name).read_bytes() == (packaged / name).read_bytes(), f"copy {name} again"


@pytest.mark.req("DOC-1")
def test_every_document_that_the_layouts_name_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([^)#\s]+)", (DOCS / "index.md").read_text(encoding="utf-8")))
    pages = [path for path in LAYOUT if path.endswith(".md")]
    # State store, outbox, ingress de-dupe, run-state, energy and carbon measurement.
    pages += [
        f"how-to/{name}.md" for name in ("keep-the-log-in-nats", "deliver-events", "take-work-from-a-queue")
    ]
    pages += [
        "reference/kfm-loop.md",
        "how-to/measure-energy-and-carbon.md",
        "retries/examples/stac-polling.md",
    ]
    assert [path for path in pages if path not in linked] == []
    assert all((DOCS / path).is_file() for path in pages)


# The walk.


def sections_of(text: str, document: str) -> list[str]:
    """Return the sections of a document in the table of the requirements' last chapter."""
    rows = re.findall(r"(?m)^\|([^|]*)\|([^|]+)\|", text[text.index("## 6. Coverage check") :])
    found, current = [], ""
    for name, section in rows:
        current = name.strip() or current
        if current == document:
            found.append(section.strip())
    return found


def walked_sections(text: str, heading: str) -> dict[str, list[str]]:
    """Return the sections below a heading of the walk, each with its commands."""
    part = text[text.index(heading) :].split("\n## ")[0]
    rows = re.findall(r"(?m)^\| ([^|]+) \| [^|]+ \| ([^|]+) \| [^|]+ \|$", part)
    return {section: re.findall(r"`(oncemore [^`]+)`", commands) for section, commands in rows[2:]}


@pytest.mark.parametrize(
    ("document", "heading"),
    [("KFM rules", "## Retry & Backoff"), ("KFM loop", "## Deterministic Retry Loop")],
)
def test_the_walk_has_every_section_of_both_documents_with_a_command(document: str, heading: str) -> None:
    required = sections_of((DOCS / "requirements.md").read_text(encoding="utf-8"), document)
    assert len(required) > 10
    walked = walked_sections(WALK.read_text(encoding="utf-8"), heading)
    assert sorted(walked) == sorted(required)
    assert [section for section, commands in walked.items() if not commands] == []


@pytest.fixture(scope="module")
def walked_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the store that the page tells its reader to make."""
    folder = tmp_path_factory.mktemp("walk")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "oncemore.toml").touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMORE_")}
    program = [sys.executable, "-W", "error", "examples/retry-loop/prepare_walk.py"]
    made = subprocess.run(
        program, cwd=folder, env=kept, capture_output=True, text=True, timeout=60, check=False
    )
    shown = re.search(r"(?ms)^```text\n(.*?)^```", WALK.read_text(encoding="utf-8"))
    assert shown
    assert made.stdout == shown[1], made.stderr
    return folder


COMMANDS = sorted(set(re.findall(r"`(oncemore [^`]+)`", WALK.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_walk_runs(
    command: str, walked_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(walked_folder)
    for name in os.environ:
        if name.startswith("ONCEMORE_"):
            monkeypatch.delenv(name)
    if "RUN" in command:
        assert cli.run_command(["runs", "--step", "monthly-report", "--state", "COMPLETE", "--ids"]) == 0
        command = command.replace("RUN", capsys.readouterr().out.split()[0])
    code = cli.run_command(shlex.split(command)[1:])
    out, err = capsys.readouterr()
    assert code == 0, f"{command}\n{out}\n{err}"
    assert out.strip()
    assert "Traceback" not in err
