"""Run the whole test suite on every Python version that the metadata of the package names.

    python tools/test_versions.py             all of them
    python tools/test_versions.py 3.12 3.13   only these

Interpreters are those of the machine: on the PATH, of pyenv or of uv. Each version has an environment of its
own, `.venv-3.12` and so on. The oldest one also runs lint, types and coverage. A version that was not found
fails the run, because the metadata claims it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
#: Where pyenv and uv keep interpreters, below the home folder.
FOLDERS = (".pyenv/versions/{version}*/bin", ".local/share/uv/python/cpython-{version}*/bin")


class VersionResult(NamedTuple):
    """A row of the table: the version, the exact interpreter, the result, the seconds and the counts."""

    version: str
    interpreter: str
    result: str
    seconds: float = 0.0
    counts: str = ""

    def __str__(self) -> str:
        return f"{self.version:<8}{self.interpreter:<12}{self.result:<11}{self.seconds:8.1f} s  {self.counts}"


def read_versions(root: Path = ROOT) -> list[str]:
    """Return the Python versions that the classifiers name, oldest first."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = re.findall(r"Python :: (3\.\d+)\b", "\n".join(project["classifiers"]))
    return sorted(found, key=lambda version: int(version[2:]))


def read_interpreter(path: Path) -> str:
    """Return the exact version of an interpreter, or "" if it does not run."""
    code = "import platform, ensurepip; print(platform.python_version())"
    try:
        ran = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def find_interpreter(version: str, home: Path) -> tuple[Path, str] | None:
    """Return an interpreter of a version with its exact version; None if the machine has none that runs."""
    name = f"python{version}"
    on_path = shutil.which(name)
    folders = [folder for pattern in FOLDERS for folder in home.glob(pattern.format(version=version))]
    # The newest patch release first; "3.13.10" is newer than "3.13.9".
    folders.sort(key=lambda folder: [int(number) for number in re.findall(r"\d+", str(folder))], reverse=True)
    for path in (*([Path(on_path)] if on_path else []), *(folder / name for folder in folders)):
        exact = read_interpreter(path)
        # A shim of pyenv is on the PATH for every version, also for those that are not selected.
        if exact.startswith(f"{version}."):
            return path, exact
    return None


def make_environment(version: str, interpreter: Path) -> Path:
    """Make the environment of a version unless it is ready, and return its interpreter."""
    folder = ROOT / f".venv-{version}"
    python, stamp = folder / "bin" / "python", folder / ".ready"
    wanted = [ROOT / name for name in ("pyproject.toml", "constraints.txt")]
    if stamp.exists() and all(stamp.stat().st_mtime > path.stat().st_mtime for path in wanted):
        return python
    subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", "-e", ".[dev]"]
    subprocess.run(install, cwd=ROOT, check=True)
    stamp.touch()
    return python


def run_version(version: str, words: list[str]) -> VersionResult:
    """Run the tests on one version, and print what they print."""
    print(f"\n==== Python {version}", flush=True)
    found = find_interpreter(version, Path.home())
    if found is None:
        return VersionResult(version, "-", "not found")
    start = time.perf_counter()
    try:
        python = make_environment(version, found[0])
    except subprocess.CalledProcessError as error:
        return VersionResult(version, found[1], "no set-up", time.perf_counter() - start, f"{error}"[:80])
    command = [python, ROOT / "tools" / "run_tests.py", *words]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    counts = last if re.match(r"\d+ passed", last) else ""
    result = "failed" if process.returncode else "ok"
    return VersionResult(version, found[1], result, time.perf_counter() - start, counts)


def main(names: list[str]) -> int:
    """Run the versions and print the table; the exit code is 1 unless all of them passed."""
    versions = read_versions()
    if unknown := [name for name in names if name not in versions]:
        raise SystemExit(f"the metadata does not name {', '.join(unknown)}; it names {', '.join(versions)}")
    # Lint, types and coverage would say the same on every version.
    results = [
        run_version(version, [] if version == versions[0] else ["--plain"])
        for version in versions
        if not names or version in names
    ]
    print("", *results, sep="\n")
    return 0 if all(row.result == "ok" for row in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
