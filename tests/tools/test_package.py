"""The files of a release and the command that rehearses it: what is wrong is found, all parts are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oncemore.queries.extras import OPTIONAL_PARTS
from tools import package_check, release_check

ROOT = Path(__file__).resolve().parents[2]


def test_every_extra_has_a_statement_that_uses_it() -> None:
    assert list(package_check.STATEMENTS) == [part.extra for part in OPTIONAL_PARTS]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a.whl", "tests/test_x.py"),
        ("a.whl", "oncemore/tests/test_x.py"),
        ("a.whl", "bench/x.py"),
        ("a.whl", "docs/index.md"),
        ("a.whl", "oncemore/__pycache__/x.pyc"),
        ("a.whl", "oncemore/.env"),
        ("a.whl", "oncemore/signing.pem"),
        ("a.tar.gz", ".venv/bin/python"),
        ("a.tar.gz", "build/site/index.html"),
        ("a.tar.gz", "src/oncemore/log.db"),
    ],
)
def test_what_does_not_belong_into_a_file_is_found(file: str, name: str) -> None:
    (fault,) = package_check.find_faults(file, [name, "oncemore/py.typed"], {"oncemore/py.typed"})
    assert fault.name == name


def test_what_is_missing_is_found_and_the_rest_is_not_a_fault() -> None:
    names = ["oncemore/__init__.py", "oncemore/policy.schema.json", "oncemore-0.1.dist-info/METADATA"]
    assert package_check.find_faults("a.whl", names, {*names, "oncemore/py.typed"}) == [
        ("a.whl", "oncemore/py.typed", "missing")
    ]
    assert package_check.find_faults("a.tar.gz", ["tests/test_x.py", "docs/index.md"], set()) == []


def test_the_files_of_the_package_are_those_that_git_tracks() -> None:
    files = package_check.list_package_files()
    assert {
        "oncemore/py.typed",
        "oncemore/profiles/policy.schema.json",
        "oncemore/profiles/standard.yaml",
    } <= files


def test_every_part_of_the_rehearsal_is_a_target_of_make() -> None:
    text = ROOT.joinpath("Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?m)^([a-z-]+):", text))
    assert {*release_check.PARTS, *release_check.APART} <= targets
    # What exists must not be called missing.
    assert not release_check.MISSING.keys() & targets


def test_a_failed_part_fails_the_rehearsal_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_part(part: str) -> release_check.PartResult:
        return release_check.PartResult(part, "failed" if part == "build" else "ok", 1.5, "x")

    monkeypatch.setattr(release_check, "run_part", run_part)
    assert release_check.main([]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"(?m)^build +failed +1\.5  x$", printed)
    assert re.search(r"(?m)^docs-versions +ok +1\.5  x$", printed)
    assert re.search(r"(?m)^test-all +apart ", printed)
    assert release_check.main(["docs-versions"]) == 0
    with pytest.raises(SystemExit, match="no part named nothing; there are check, build"):
        release_check.main(["nothing"])
