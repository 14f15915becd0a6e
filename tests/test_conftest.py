"""The rules that hold for every test, tried on a small project that uses the same conftest."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # nothing of the package runs there
    monkeypatch.delenv("ONCEMORE_TORTURE", raising=False)
    for name in ("docs/requirements.md", "tests/conftest.py"):
        copy = pytester.path / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    pytester.makeini("[pytest]\ntestpaths = tests\nmarkers =\n    req: requirement\n    torture: long\n")
    return pytester


def test_a_name_that_differs_between_workers_is_refused(project: pytest.Pytester) -> None:
    project.path.joinpath("tests/test_a.py").write_text(
        "import pytest\n@pytest.mark.parametrize('what', [object()], ids=repr)\ndef test_it(what): pass\n"
    )
    result = project.runpytest_subprocess()
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*test_it*: an address in the name; give it an id"])


@pytest.mark.parametrize(("torture", "examples"), [("", 100), ("1", 2000)])
def test_torture_tries_twenty_times_as_many_examples(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, torture: str, examples: int
) -> None:
    monkeypatch.setenv("ONCEMORE_TORTURE", torture)
    project.path.joinpath("tests/torture").mkdir()
    project.path.joinpath("tests/torture/test_long.py").write_text(
        "from hypothesis import settings\n"
        "def test_it():\n"
        f"    assert settings.default.max_examples == {examples}\n"
        "    assert not settings.default.derandomize\n"
    )
    project.path.joinpath("tests/test_short.py").write_text("def test_it(): pass\n")
    result = project.runpytest_subprocess("-m", "torture")
    result.assert_outcomes(passed=1, deselected=1)
