"""No command shows a secret that an address holds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CANARY = "kanarie777vogel"


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        (["runs", "--store", f"postgresql://127.0.0.1:1/db?connect_timeout=1&password=a@{CANARY}"], {}),
        (["policy", "show", f"https://ada:{CANARY}@host/x"], {}),
        (["exec", "--key", "a", "--", "true"], {"ONCEMORE_NOTIFY": f'[{{"command": "mail {CANARY}"}}]'}),
    ],
    ids=["store", "policy", "notify"],
)
def test_no_command_shows_a_secret_of_an_address(
    command: list[str], settings: dict[str, str], tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "oncemore", *command],
        cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode != 0
    assert "oncemore: " in ran.stderr
    assert CANARY not in ran.stdout + ran.stderr
