"""The runner must not say "ok" when a part was not: its exit code is what a merge depends on."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tools import clean_install, coverage_gate, measured_tests, run_tests
from tools.run_tests import Part

if TYPE_CHECKING:
    from pathlib import Path


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


WRITE_RESULTS = (
    "import pathlib; pathlib.Path(r'{results}').write_text("
    '\'<testsuites><testsuite tests="7" failures="1" errors="1" skipped="2"/></testsuites>\')'
)


def test_the_first_part_that_fails_ends_the_run_with_its_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    parts = (
        Part("first", (python("print('ran first')"),)),
        Part("second", (python("raise SystemExit(3)"), python("print('ran too far')"))),
        Part("third", (python("print('ran too far')"),)),
    )
    assert run_tests.main([], parts) == 3
    out = capfd.readouterr().out
    assert "ran first" in out
    assert "ran too far" not in out
    lines = out.splitlines()[-4:]
    assert [line.split()[:2] for line in lines] == [
        ["first", "ok"],
        ["second", "failed"],
        ["third", "not"],
        ["all", "failed"],
    ]


def test_a_part_ended_by_a_signal_is_a_failure() -> None:
    assert run_tests.main([], (Part("killed", (python("import os; os.kill(os.getpid(), 9)"),)),)) == 137


def test_the_last_line_counts_the_tests(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_tests.main([], (Part("tests", (python(WRITE_RESULTS),)),)) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "3 passed, 2 failed, 2 skipped"


def test_parts_can_be_named_and_an_unknown_name_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    parts = (Part("one", (python("print('ran one')"),)), Part("two", (python("print('ran two')"),)))
    assert run_tests.main(["two"], parts) == 0
    assert "ran one" not in capfd.readouterr().out
    with pytest.raises(SystemExit, match="no part named three; there are one, two"):
        run_tests.main(["three"], parts)


@pytest.mark.req("TEST-4")
def test_the_gate_fails_under_full_branch_coverage_of_what_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "src/oncemore"
    package.mkdir(parents=True)
    package.joinpath("deciding.py").write_text("def f(x):\n    if x:\n        x = 1\n    return x\n")
    package.joinpath("other.py").write_text("def g():\n    return 1\n")
    package.joinpath("use.py").write_text(
        "import sys, deciding, other\n[deciding.f(int(n)) for n in sys.argv[1:]]\n"
    )
    for name in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START", "COVERAGE_FILE"):
        monkeypatch.delenv(name, raising=False)

    def measured(*values: str) -> int:
        command = ("-m", "coverage", "run", "--branch", "src/oncemore/use.py", *values)
        subprocess.run([sys.executable, *command], cwd=tmp_path, check=True)
        return coverage_gate.main(tmp_path, ("deciding.py",))

    assert measured("0", "1") == 0
    assert measured("1") == 1, "every line ran, but not every branch"
    assert coverage_gate.main(tmp_path, ("deciding.py", "renamed.py")) == 1


def test_the_gate_names_modules_that_exist() -> None:
    assert (
        coverage_gate.gone(
            (*coverage_gate.DECIDING, *coverage_gate.NOT_MEASURED), coverage_gate.ROOT / coverage_gate.PACKAGE
        )
        == []
    )


def test_a_wheel_without_its_type_marker_or_with_strangers_is_refused() -> None:
    good = ["oncemore/__init__.py", "oncemore/py.typed", "oncemore-0.1.0.dist-info/METADATA"]
    assert clean_install.faults_in(good) == []
    assert len(clean_install.faults_in([*good[:1], "tests/test_api.py"])) == 2


def test_every_measured_file_exists() -> None:
    assert [name for name in run_tests.MEASURED if not (run_tests.ROOT / name).is_file()] == []


def test_a_branch_is_executed_by_two_of_the_measured_files_if_there_are_two() -> None:
    branches = {
        "slow.py": {("m", 1, 2), ("m", 2, 3), ("m", 9, 9)},
        "quick.py": {("m", 1, 2), ("m", 2, 3)},
        "other.py": {("m", 1, 2)},
        "more.py": {("m", 2, 3)},
        "idle.py": set(),
    }
    seconds = {"slow.py": 60.0, "quick.py": 1.0, "other.py": 9.0, "more.py": 99.0}
    assert measured_tests.choose_files(branches, seconds) == ["quick.py", "slow.py"]
    branches["slow.py"] -= {("m", 2, 3)}
    assert measured_tests.choose_files(branches, seconds) == ["more.py", "quick.py", "slow.py"]
