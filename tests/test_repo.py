"""What is kept in the repository: nothing of one machine, nothing stale, a wheel that is complete."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from tools import clean_install

ROOT = Path(__file__).resolve().parent.parent

#: What no file may hold, and what to do instead. A bracket around one letter keeps a pattern from
#: finding itself here.
UNWANTED = {
    r"(?<![\w.~-])/(?:home|Users|root|work)/[\w.-]+": "a folder of one machine; make it relative",
    r"\b[A-Za-z]:\\+Users\\": "a folder of one machine; make it relative",
    r"https?://[^/\s]*/(?:simple|packages|pypi|npm)\b(?!-)": "an index address; pin names and versions only",
    r"(?:pypi|pythonhosted|npmjs|debian)\.(?:org|com)\b": "the host of a package index; say the name only",
    r"(?m)^(?:<{7}|>{7}) ": "half a merge",
    r"BEGIN [A-Z ]*PRIVATE KEY": "a private key; tests make theirs when they run",
    r"\.\./shar[e]d\b|work[p]lace": "a place outside this repository",
}


def faults_in(text: str) -> list[str]:
    """What a text holds that it should not, with the line it stands on."""
    return [
        f"line {text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}: {advice}"
        for pattern, advice in UNWANTED.items()
        for found in re.finditer(pattern, text)
    ]


def kept_files() -> list[Path]:
    """The files that git tracks, or would track if they were added now."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_holds_what_belongs_to_one_machine_or_index() -> None:
    files = kept_files()
    assert len(files) > 20, "git listed nearly nothing, so nothing was looked at"
    faults = {
        str(path.relative_to(ROOT)): found
        for path in files
        if (found := faults_in(path.read_text(encoding="utf-8", errors="replace")))
    }
    assert faults == {}


@pytest.mark.parametrize(
    "text",
    [
        "cd /" + "home/somebody/project",
        'path = "/' + 'root/.cache"',
        "file:///" + "work/thing",
        "C:" + "\\Users\\somebody",
        "registry = https://mirror.example/" + "simple",
        "https://example.com/" + "pypi/simple",
        "--index-url https://py" + "pi.org/project",
        "<<<<<<" + "< HEAD",
        "-----BEGIN EC " + "PRIVATE KEY-----",
        "see ../" + "shared/notes.md",
    ],
)
def test_what_is_unwanted_is_found(text: str) -> None:
    assert faults_in(f"first line\n{text}\n"), text
    assert faults_in(f"first line\n{text}\n")[0].startswith("line 2: ")


@pytest.mark.parametrize(
    "text",
    [
        "/usr/share/zoneinfo",
        "https://example.org/work/1",
        "https://example.org/simple-things",
        "docs/home/page.md",
        "~/work/x",
    ],
)
def test_what_is_harmless_is_left_alone(text: str) -> None:
    assert faults_in(text) == []


def test_no_lock_file_is_kept() -> None:
    # They hold addresses, and tools rewrite them to whatever mirror a developer has set.
    names = {path.name for path in kept_files()}
    assert not {
        name for name in names if re.fullmatch(r"uv\.lock|pylock.*\.toml|.*lock\.json|poetry\.lock", name)
    }


def unpinned(lines: list[str], wanted: set[str]) -> list[str]:
    """Lines that are more than a pin, and wanted names without one."""
    pin = re.compile(r"(?P<name>[a-z0-9][a-z0-9._-]*)==[^\s;]+(?: ; .+)?")
    found = {line: pin.fullmatch(line) for line in lines}
    pinned = {re.sub(r"[-_.]+", "-", match["name"]) for match in found.values() if match}
    return [line for line, match in found.items() if not match] + sorted(wanted - pinned)


def direct_dependencies() -> set[str]:
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [one for extra in project["optional-dependencies"].values() for one in extra]
    given = {re.split(r"[^\w.-]", one)[0] for one in [*project["dependencies"], *extras]}
    return {re.sub(r"[-_.]+", "-", name).lower() for name in given} - {"oncemore"}


def test_constraints_are_pins_and_cover_every_extra() -> None:
    lines = ROOT.joinpath("constraints.txt").read_text(encoding="utf-8").splitlines()
    assert unpinned(lines, direct_dependencies()) == []


def test_a_line_that_is_no_pin_and_a_name_without_one_are_found() -> None:
    lines = ["good==1.0", "split==2 ; python_version < '3.12'", "loose>=1", "--index-url x", "at @ file:x"]
    assert unpinned(lines, {"good", "split", "absent"}) == [
        "loose>=1",
        "--index-url x",
        "at @ file:x",
        "absent",
    ]


def test_the_changelog_has_a_section_for_this_version() -> None:
    from oncemore._version import __version__

    assert f"## [{__version__}]" in ROOT.joinpath("CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.req("DOC-9")
def test_the_licence_is_mit_in_the_file_and_in_the_metadata() -> None:
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license"] == "MIT"
    assert ROOT.joinpath("LICENSE").read_text(encoding="utf-8").startswith("MIT License")


def test_the_wheel_holds_the_package_its_type_marker_and_nothing_else(tmp_path: Path) -> None:
    with ZipFile(clean_install.build(tmp_path)) as wheel:
        names = wheel.namelist()
    assert clean_install.faults_in(names) == []
    source = ROOT / "src"
    missing = {str(path.relative_to(source)) for path in source.rglob("*.py")} - set(names)
    assert not missing
