"""Run every command that prints JSON about a store, on the store of the golden log.

Write the expected output with: python -m tests.golden.commands > tests/golden/commands.json
Do that only for a change that users are meant to see.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore import cli
from tests.golden.stored import store_golden

if TYPE_CHECKING:
    from collections.abc import Iterator

FETCH, PARSE = "01a1eb93-0f84", "01a1eb93-1663-7a78"
COMMANDS = (
    "runs", "runs --state HARD_FAIL", "runs --step golden.fetch --ids", f"show {FETCH}", f"explain {FETCH}",
    f"explain {PARSE}", "replay --all", f"replay --run {FETCH}", "store tail -n 100",
    "store verify", "store sizes", "store health",
    "quarantine list", "control switch status", "limits breakers list", "limits rates list",
    "limits cooldowns list",
)  # fmt: skip
#: Fields that depend on the machine or on the moment.
VOLATILE = {
    "left",
    "file",
    "wal",
    "spare",
    "observation",
    "age_s",
    "left_s",
    "engine",
    "took_s",
    "now",
    "timestamp",
}


@contextlib.contextmanager
def use_utc() -> Iterator[None]:
    """Let local times be those of UTC: explanations have them."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()


def print_json(command: str, store: Path) -> Any:
    """Return what a command prints with --json; one document for each line where it prints several."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), use_utc():
        cli.run_command([*command.split(), "--json", "--store", str(store)])
    text = out.getvalue().replace(str(store), "STORE")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def mask_volatile(value: Any) -> Any:
    """Return a document in which fields that depend on the machine are only their types."""
    if isinstance(value, dict):
        return {
            name: type(each).__name__ if name in VOLATILE else mask_volatile(each)
            for name, each in value.items()
        }
    return [mask_volatile(each) for each in value] if isinstance(value, list) else value


def collect_output(folder: Path) -> dict[str, Any]:
    """Return what every command prints about the golden store."""
    store = folder / "log.db"
    store_golden(store)
    return {command: mask_volatile(print_json(command, store)) for command in COMMANDS}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        json.dump(collect_output(Path(folder)), sys.stdout, indent=1, ensure_ascii=False)
        print()
