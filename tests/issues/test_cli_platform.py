"""Issue 15, 5: a platform without the module fcntl."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT_LOCKS = """
import sys
sys.modules["fcntl"] = None
import oncemore

@oncemore.step(effect="once")
def double(x):
    return 2 * x

with oncemore.open("memory:"):
    assert double(2) == 4
    assert double.map([1, 2]).values == [2, 4]
try:
    oncemore.open("log.db")
except oncemore.UsageError as error:
    print(error)
"""


def test_without_file_locks_memory_works_and_a_file_says_where_it_is_supported(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_LOCKS], capture_output=True, text=True, timeout=60,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "'log.db' is a file" in ran.stdout
    assert "supported on Linux" in ran.stdout
    assert list(tmp_path.iterdir()) == []
