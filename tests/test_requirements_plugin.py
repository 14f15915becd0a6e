"""The record of a run is the whole basis of `make requirements`; here it is tried on small projects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PAGE = """
### 2.1 Waiting (WAIT)

- **WAIT-1** · MUST · all — Waits grow.
  - *Accepted when* they grow.
- **WAIT-2** · MUST · all — Waits end.
  - *Accepted when* they end.
"""

INI = """
[pytest]
testpaths = tests
markers = req(id): requirement
"""


class Project:
    """A small project with its own requirements page.

    Runs are in processes of their own, without the plugins that happen to be installed: that is
    how the plugin meets xdist, and it starts four times as fast.
    """

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        (pytester.path / "docs").mkdir()
        (pytester.path / "docs/requirements.md").write_text(PAGE, encoding="utf-8")
        (pytester.path / "tests").mkdir()
        pytester.makeini(INI)

    def write(self, name: str, text: str) -> None:
        (self.pytester.path / "tests" / name).write_text("import pytest\n" + text, encoding="utf-8")

    def run(self, *options: str) -> pytest.RunResult:
        return self.pytester.runpytest_subprocess("-p", "xdist", "-p", "tests.requirements_plugin", *options)

    @property
    def record(self) -> dict[str, dict[str, object]]:
        path = self.pytester.path / ".requirements-run.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"tests": {}}

    def outcomes(self) -> dict[str, object]:
        return {test.partition("::")[2]: facts["outcome"] for test, facts in self.record["tests"].items()}

    def marks(self) -> dict[str, object]:
        return {test.partition("::")[2]: facts["req"] for test, facts in self.record["tests"].items()}


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # nothing of the package runs there
    return Project(pytester)


EVERY_OUTCOME = """
@pytest.fixture
def broken_before():
    raise RuntimeError
@pytest.fixture
def broken_after():
    yield
    raise RuntimeError

@pytest.mark.req("WAIT-1", "WAIT-2")
def test_good(): pass
@pytest.mark.req("WAIT-1")
def test_bad(): assert False
@pytest.mark.req("WAIT-1")
def test_before(broken_before): pass
@pytest.mark.req("WAIT-1")
def test_after(broken_after): pass
@pytest.mark.req("WAIT-1")
@pytest.mark.skip
def test_skipped(): pass
@pytest.mark.req("WAIT-1")
def test_skips_itself(): pytest.skip("no")
@pytest.mark.req("WAIT-1")
@pytest.mark.xfail
def test_expected_to_fail(): assert False
@pytest.mark.req("WAIT-1")
@pytest.mark.xfail(strict=False)
def test_passes_by_surprise(): pass
def test_unmarked(): pass
@pytest.mark.req("WAIT-1")
class TestGroup:
    @pytest.mark.req("WAIT-2")
    @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.skip)])
    def test_many(self, n): pass
"""


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_only_a_test_whose_three_phases_passed_is_recorded_as_passed(
    project: Project, options: tuple[str, ...]
) -> None:
    project.write("test_a.py", EVERY_OUTCOME)
    project.run(*options)
    assert project.outcomes() == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_before": "failed",
        "test_after": "failed",
        "test_skipped": "skipped",
        "test_skips_itself": "skipped",
        "test_expected_to_fail": "xfail",
        "test_passes_by_surprise": "xfail",
        "test_unmarked": "passed",
        "TestGroup::test_many[1]": "passed",
        "TestGroup::test_many[2]": "skipped",
    }
    assert project.marks()["test_good"] == ["WAIT-1", "WAIT-2"]
    assert project.marks()["TestGroup::test_many[1]"] == ["WAIT-1", "WAIT-2"]
    assert project.marks()["test_unmarked"] == []


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ('req("WAIT-3")', "*docs/requirements.md has no requirement 'WAIT-3'*"),
        ("req()", "*write @pytest.mark.req(*"),
        ('req(id="WAIT-1")', "*write @pytest.mark.req(*"),
    ],
)
def test_a_mark_that_names_no_requirement_fails_the_run(
    project: Project, options: tuple[str, ...], mark: str, message: str
) -> None:
    project.write("test_a.py", f"@pytest.mark.{mark}\ndef test_typo(): pass\n")
    result = project.run(*options)
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    result.stdout.fnmatch_lines([message])
    assert project.outcomes() == {}


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_run_of_one_file_leaves_the_others_entries_alone(
    project: Project, options: tuple[str, ...]
) -> None:
    project.write("test_a.py", "def test_a(): pass\n")
    project.write("test_b.py", "def test_b(): pass\n")
    project.run(*options)
    whole = project.record["last_whole_run"]
    project.write("test_b.py", "def test_b(): assert False\n")
    project.run("tests/test_b.py", *options)
    assert project.outcomes() == {"test_a": "passed", "test_b": "failed"}
    assert project.record["last_whole_run"] == whole


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_whole_run_forgets_tests_that_are_gone(project: Project, options: tuple[str, ...]) -> None:
    project.write("test_a.py", "def test_a(): pass\ndef test_gone(): pass\n")
    project.run(*options)
    project.write("test_a.py", "def test_a(): assert False\n")
    project.run(*options)
    assert project.outcomes() == {"test_a": "failed"}


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_run_that_could_not_collect_everything_forgets_nothing(
    project: Project, options: tuple[str, ...]
) -> None:
    project.write("test_a.py", "def test_a(): pass\n")
    project.write("test_b.py", "def test_b(): pass\n")
    project.run(*options)
    project.write("test_b.py", "import no_such_module\n")
    project.run(*options, "--continue-on-collection-errors")
    assert set(project.outcomes()) == {"test_a", "test_b"}


@pytest.mark.parametrize(
    "narrow", [("-k", "test_a"), ("-m", "not slow"), ("-x",), ("--deselect", "tests/test_b.py"), ("tests",)]
)
def test_a_narrowed_or_cut_short_run_forgets_nothing(project: Project, narrow: tuple[str, ...]) -> None:
    project.write("test_a.py", "def test_a(): assert False\n")
    project.write("test_b.py", "def test_b(): pass\n")
    project.run()
    project.run(*narrow)
    assert set(project.outcomes()) == {"test_a", "test_b"}


def test_looking_without_running_leaves_the_record_alone(project: Project) -> None:
    project.write("test_a.py", "def test_a(): pass\n")
    project.run()
    before = project.record
    project.run("--collect-only")
    assert project.record == before
    assert before["tests"]
