"""Fail unless the modules that decide are covered to the last line and branch (TEST-4).

The modules are named here, next to the rule. The rest of the package is printed for information: a
number below 100 there is a question to ask, not a reason to stop.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/oncemore")

DECIDING = (
    "core/*.py",
    "engine/*.py",
    "edges/classify.py",
    "options.py",
    "api.py",
    "errors.py",
    "codec/*.py",
    "evidence/*.py",
    "govern/*.py",
    "profiles/exoarmur*.py",
)


def gone(patterns: tuple[str, ...], package: Path) -> list[str]:
    """Return the patterns that no file answers to: a renamed module must not drop out in silence."""
    return [pattern for pattern in patterns if not any(package.glob(pattern))]


def report(*options: str, root: Path = ROOT) -> int:
    """Print one of coverage's tables and return its exit code."""
    command = [sys.executable, "-m", "coverage", "report", "--show-missing", *options]
    return subprocess.run(command, cwd=root, check=False).returncode


def main(root: Path = ROOT, patterns: tuple[str, ...] = DECIDING) -> int:
    """Print both tables; return 1 when a deciding module has a gap."""
    if missing := gone(patterns, root / PACKAGE):
        print(
            f"nothing under {PACKAGE} matches {', '.join(missing)}; correct DECIDING in {Path(__file__).name}"
        )
        return 1
    files = ",".join(f"{PACKAGE.as_posix()}/{pattern}" for pattern in patterns)
    print("\nfor information: everything else", flush=True)
    report(f"--omit={files}", root=root)
    print("\nthe modules that decide: 100 % of lines and branches, or this part fails", flush=True)
    return 1 if report(f"--include={files}", "--fail-under=100", root=root) else 0


if __name__ == "__main__":
    sys.exit(main())
