"""Find the test files that the coverage gate needs, and write their names to `tools/measured_tests.txt`.

    python -m tools.measured_tests              all test files but the campaigns
    python -m tools.measured_tests --ignore=…   arguments go to pytest

A traced test takes two thirds longer, so `make test` traces the files of that list only (ADR 0095). This
program runs all files traced, records which file executes which branch of the modules under the gate, and
keeps few files, weighed by their time, such that every branch is executed by two of them, or by one if no
second executes it. Two, because some property tests reach a branch in most runs only.

Run it when the gate names a branch that only an untraced test executes. It takes longer than `make test`.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from coverage import Coverage, CoverageData
from coverage.parser import PythonParser

from tools import coverage_gate, run_tests

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools/measured_tests.txt"
DATA, SECONDS = ROOT / "build/measured/coverage", ROOT / "build/measured/seconds"
#: How many of the kept files execute each branch, if there are as many.
TIMES = 2
#: Coverage hands its settings to the programs that a test starts in this variable.
SETTINGS = "COVERAGE_PROCESS_CONFIG"

Branch = tuple[str, int, int]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record branches and seconds of a test under the name of its file, those of its programs too."""
    name = item.path.relative_to(ROOT).as_posix()
    measuring = Coverage.current()
    if measuring is None:
        return (yield)
    measuring.switch_context(name)
    settings = json.loads(base64.b64decode(os.environ[SETTINGS])) | {"context": name}
    os.environ[SETTINGS] = base64.b64encode(json.dumps(settings).encode()).decode()
    began = time.perf_counter()
    try:
        return (yield)
    finally:
        with Path(f"{SECONDS}-{os.getpid()}").open("a") as file:
            file.write(f"{name} {time.perf_counter() - began}\n")


def list_gated_modules() -> list[Path]:
    """Return the modules whose branches must all be executed."""
    package = ROOT / coverage_gate.PACKAGE
    left_out = {path for pattern in coverage_gate.NOT_MEASURED for path in package.glob(pattern)}
    return sorted({path for pattern in coverage_gate.DECIDING for path in package.glob(pattern)} - left_out)


def read_branches(data: CoverageData, modules: list[Path]) -> dict[str, set[Branch]]:
    """Return the branches that each test file executed; the import of a module is no test file's."""
    parsers = {}
    for module in modules:
        parsers[module] = PythonParser(filename=str(module))
        parsers[module].parse_source()
    found: dict[str, set[Branch]] = {}
    for context in filter(None, data.measured_contexts()):
        data.set_query_context(context)
        executed = found[context.rpartition("|")[2]] = found.get(context.rpartition("|")[2], set())
        for module, parser in parsers.items():
            arcs = set(parser.translate_arcs(data.arcs(str(module)) or ()))
            executed |= {(str(module), *arc) for arc in arcs & parser.arcs()}
    return found


def choose_files(branches: dict[str, set[Branch]], seconds: dict[str, float]) -> list[str]:
    """Return files that execute each branch often enough, chosen by branches per second."""
    executed_by = Counter(branch for found in branches.values() for branch in found)
    left = {branch: min(count, TIMES) for branch, count in executed_by.items()}
    kept: list[str] = []
    while left:
        best = max(
            sorted(branches.keys() - set(kept)),
            key=lambda name: len(branches[name] & left.keys()) / (seconds.get(name, 0.0) + 0.1),
        )
        kept.append(best)
        for branch in branches[best] & left.keys():
            left[branch] -= 1
            if not left[branch]:
                del left[branch]
    # A later file may have made an earlier one superfluous; the slowest are asked first.
    times = Counter(branch for name in kept for branch in branches[name])
    for name in sorted(kept, key=lambda name: -seconds.get(name, 0.0)):
        if all(times[branch] > min(executed_by[branch], TIMES) for branch in branches[name]):
            kept.remove(name)
            times.subtract(branches[name])
    return sorted(kept)


def run_traced(arguments: list[str]) -> int:
    """Run the tests traced, with a context for each file; return the exit code of pytest."""
    DATA.parent.mkdir(parents=True, exist_ok=True)
    for old in DATA.parent.iterdir():
        old.unlink()
    traced = (sys.executable, "-m", "coverage", "run", f"--data-file={DATA}", "-m", "pytest", "-q")
    command = [*traced, "-p", "tools.measured_tests", *run_tests.AT_ONCE, *arguments]
    return subprocess.run(command, cwd=ROOT, env=run_tests.surroundings(), check=False).returncode


def main(arguments: list[str]) -> int:
    """Run the tests, choose the files, and write the list."""
    code = run_traced([*run_tests.without(*run_tests.CAMPAIGNS), *arguments])
    if code:
        print("the list is not changed, because a test failed")
        return code
    subprocess.run(
        [sys.executable, "-m", "coverage", "combine", "--quiet", f"--data-file={DATA}"], cwd=ROOT, check=True
    )
    data = CoverageData(str(DATA))
    data.read()
    seconds: Counter[str] = Counter()
    for file in DATA.parent.glob(f"{SECONDS.name}-*"):
        for line in file.read_text().splitlines():
            name, took = line.rsplit(" ", 1)
            seconds[name] += float(took)
    branches = read_branches(data, list_gated_modules())
    kept = choose_files(branches, seconds)
    LIST.write_text("".join(f"{name}\n" for name in kept))
    spent = sum(seconds[name] for name in kept)
    print(f"{len(kept)} of {len(seconds)} files, {spent:.0f} of {sum(seconds.values()):.0f} seconds")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
