"""Classifiers of installed packages: found without importlib.metadata and loaded once."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from oncemore.classifiers import plugins

SOURCE = Path(plugins.__file__).resolve().parents[2]

RULES = """
import oncemore

class Busy(Exception):
    pass

@oncemore.classifier(Busy)
def busy(error):
    return oncemore.Failure("transient", "no", None, "BUSY")

def plain(error):
    return None
"""

ASK = """
import warnings
import oncemore
@oncemore.retry(on="transient")
def work(): ...
from theirs.rules import Busy
print(oncemore.classify(Busy(), 0.0).rule)
"""


def install(home: Path, points: str, name: str = "theirs", kind: str = "dist-info") -> None:
    """Lay out a package as an installer does."""
    package, info = home / name, home / f"{name}-1.0.{kind}"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rules.py").write_text(RULES)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


def run(home: Path, program: str, *options: str) -> tuple[str, str]:
    """Run a program in a new interpreter that sees only this package and the packages in `home`."""
    path = f"import sys; sys.path[:0] = [{str(home)!r}, {str(SOURCE)!r}]\n"
    made = subprocess.run(
        [sys.executable, "-I", *options, "-c", path + program],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return made.stdout.strip(), made.stderr.strip()


@pytest.mark.parametrize("value", ["theirs.rules", "theirs.rules:busy", "theirs.rules : busy [extra]"])
def test_a_module_or_a_function_is_announced_and_loaded(tmp_path: Path, value: str) -> None:
    install(tmp_path, f"[console_scripts]\nx = y:z\n\n[oncemore.classifiers]\n# why\ntheirs = {value}\n")
    assert run(tmp_path, ASK) == ("user:busy", "")


def test_plugins_are_loaded_by_classify_alone(tmp_path: Path) -> None:
    install(tmp_path, "[oncemore.classifiers]\ntheirs = theirs.rules\n")
    program = "import oncemore\nclass E(Exception): ...\noncemore.classify(E(), 0.0)\n"
    program += "import sys; print('theirs.rules' in sys.modules)"
    assert run(tmp_path, program) == ("True", "")


def test_nothing_is_loaded_by_importing(tmp_path: Path) -> None:
    install(tmp_path, "[oncemore.classifiers]\ntheirs = theirs.rules\n")
    program = "import oncemore; oncemore.retry; oncemore.classify; import sys; print('theirs' in sys.modules)"
    assert run(tmp_path, program) == ("False", "")


def test_plugins_are_loaded_before_the_first_failure(tmp_path: Path) -> None:
    install(tmp_path, "[oncemore.classifiers]\ntheirs = theirs.rules\n")
    program = """
import resource
import oncemore
@oncemore.retry(on="transient", attempts=2, wait=[0])
def work(): raise sys.modules["theirs.rules"].Busy
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
try: work()
except Exception as error: print(oncemore.get_decision(error).reason)
finally: resource.setrlimit(resource.RLIMIT_NOFILE, before)
"""
    out, err = run(tmp_path, program)
    assert out == "max_attempts_exceeded"
    assert "Traceback" not in err


BROKEN = {
    "a module that is not there": ("theirs.nowhere", "ModuleNotFoundError: No module named"),
    "a name that is not there": ("theirs.rules:nobody", "AttributeError"),
    "a function that is not decorated": ("theirs.rules:plain", "plain is not decorated with oncemore"),
    "nothing": ("", "ValueError"),
    "nonsense": ("a b:c d", "No module named"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_entry_point_is_named_in_one_warning_and_changes_nothing(tmp_path: Path, case: str) -> None:
    value, why = BROKEN[case]
    install(tmp_path, f"[oncemore.classifiers]\nodd = {value}\ngood = theirs.rules\n")
    out, err = run(tmp_path, ASK)
    assert out == "user:busy", "the others are loaded all the same"
    assert err.count("RuntimeWarning") == 1
    assert f"the classifier odd ({value}, announced by theirs-1.0.dist-info) is not loaded: " in err
    assert why in err


def test_a_broken_entry_point_raises_nothing_where_warnings_are_errors(tmp_path: Path) -> None:
    install(tmp_path, "[oncemore.classifiers]\nodd = theirs.nowhere\ngood = theirs.rules\n")
    assert run(tmp_path, ASK, "-W", "error") == ("user:busy", "")


def test_a_package_that_is_just_being_imported_is_loaded_when_it_is_done(tmp_path: Path) -> None:
    install(tmp_path, "[oncemore.classifiers]\ntheirs = theirs.rules\n")
    (tmp_path / "theirs/__init__.py").write_text(
        "import oncemore\n@oncemore.retry(on='transient')\ndef work(): ...\nlast = 1\n"
    )
    (tmp_path / "theirs/rules.py").write_text(f"from theirs import last\n{RULES}")
    program = (
        "import theirs, oncemore\nfrom theirs.rules import Busy\nprint(oncemore.classify(Busy(), 0.0).rule)"
    )
    assert run(tmp_path, program) == ("user:busy", "")


def test_the_programs_own_rules_come_before_those_of_packages(tmp_path: Path) -> None:
    install(tmp_path, "[oncemore.classifiers]\ntheirs = theirs.rules\n")
    program = """
import oncemore
@oncemore.classifier("theirs")
def mine(error): return oncemore.Failure("permanent")
@oncemore.retry(on="transient")
def work(): ...
from theirs.rules import Busy
print(oncemore.classify(Busy(), 0.0).rule)
"""
    assert run(tmp_path, program) == ("user:mine", "")


def test_a_plugin_may_use_everything_of_ours_while_it_is_loaded(tmp_path: Path) -> None:
    install(tmp_path, "[oncemore.classifiers]\ntheirs = theirs.rules\n")
    (tmp_path / "theirs/rules.py").write_text(
        f"{RULES}\n@oncemore.retry(on='transient')\ndef more(): ...\noncemore.classify(Busy(), 0.0)\n"
    )
    assert run(tmp_path, ASK) == ("user:busy", "")


def test_the_search_finds_the_same_as_importlib_metadata(tmp_path: Path) -> None:
    points = "[oncemore.classifiers]\n one=a.b\ntwo = c:d\n#no = x\n[other]\nthree = e\n"
    install(tmp_path, points)
    install(tmp_path, "[oncemore.classifiers]\nfour = f\n", "Old_One", "egg-info")
    theirs = {
        (point.name, point.value)
        for found in metadata.distributions(path=[str(tmp_path)])
        for point in found.entry_points
        if point.group == plugins.ENTRY_POINT_GROUP
    }
    ours = {(name, value) for name, value, _ in plugins.find_entry_points([str(tmp_path)])}
    assert ours == theirs == {("one", "a.b"), ("two", "c:d"), ("four", "f")}


def test_the_first_of_two_packages_of_one_name_counts(tmp_path: Path) -> None:
    for place, value in (("a", "x"), ("b", "y")):
        (tmp_path / place).mkdir()
        install(tmp_path / place, f"[oncemore.classifiers]\nn = {value}\n")
    path = [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "a")]
    assert [value for _, value, _ in plugins.find_entry_points(path)] == ["x"]


def test_unreadable_folders_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "archive.zip"
    file.write_bytes(b"PK")
    (tmp_path / "odd-1.dist-info").mkdir()
    (tmp_path / "odd-1.dist-info/entry_points.txt").write_bytes(
        b"[oncemore.classifiers]\n\xff\xfe = a\nb\n= c"
    )
    path = [str(file), str(tmp_path / "nowhere"), "", str(tmp_path), "\0", tmp_path, b"x"]
    assert all(len(entry) == 3 for entry in plugins.find_entry_points(path))  # type: ignore[arg-type]


def test_without_a_free_descriptor_the_search_is_repeated_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(_place: str) -> list[str]:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(plugins.os, "listdir", exhausted)
    with pytest.raises(OSError, match="Too many open files"):
        plugins.find_entry_points(["."])
