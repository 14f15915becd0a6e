"""`oncemore policy check` and `show` refuse a file that loosens a governed profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.shell import run

if TYPE_CHECKING:
    from pathlib import Path

LOOSE = """
version: retry-loop-v1.0
extends: kfm-rules
retry_policy:
  jitter: none
  factor: 1
  max_attempts: 50
"""


def test_check_names_file_field_rule_and_range_and_show_does_not_say_compliant(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(LOOSE)
    checked = run("policy", "check", str(path))
    assert checked.returncode == 1
    said = " ".join(checked.stdout.split())
    for line, field, text in (
        (5, "jitter", "is none; a governed policy spreads its delays, for example full"),
        (6, "factor", "the delays of a governed policy grow up to the cap"),
        (7, "max_attempts", "is 50; a governed policy allows 1 to 10"),
    ):
        assert f"mine.yaml:{line}:" in said
        assert f"retry_policy.{field}" in said
        assert text in said
    shown = run("policy", "show", str(path))
    assert shown.returncode != 0
    assert "compliant" not in shown.stdout
