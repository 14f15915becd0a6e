"""The optional parts: the list is that of the package's extras, and each is found by its metadata."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from oncemore.queries import extras
from oncemore.queries.extras import OPTIONAL_PARTS, OptionalPart, describe_parts

ROOT = Path(__file__).resolve().parents[2]
#: Extras that only the development of the package needs.
DEVELOPMENT = {"bench", "clients", "dev", "engines", "rivals"}


def read_extras() -> dict[str, list[str]]:
    text = ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, list[str]] = tomllib.loads(text)["project"]["optional-dependencies"]
    return {name: needs for name, needs in found.items() if name not in DEVELOPMENT}


def test_the_list_has_every_extra_with_its_package() -> None:
    packages = {extra: re.split(r"[^\w.-]", needs[0])[0] for extra, needs in read_extras().items()}
    assert {part.extra: part.package for part in OPTIONAL_PARTS} == packages


def test_every_extra_is_named_in_the_error_about_its_absence() -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "src" / "oncemore").rglob("*.py"))
        if path != Path(extras.__file__)
    )
    # The caller brings the HTTP client with the request, so its absence cannot be met.
    missing = [part.extra for part in OPTIONAL_PARTS if f"oncemore[{part.extra}]" not in source]
    assert missing == ["http"]


def test_an_installed_part_has_its_version_and_an_absent_one_the_way_to_get_it() -> None:
    before = set(sys.modules)
    present = OptionalPart("present", "click", "a command line")
    lines = describe_parts((present, OptionalPart("absent", "no-such-package", "nothing")))
    assert [line.split() for line in lines[:2]] == [
        ["present", "click", present.find_version(), "a", "command", "line"],
        ["absent", "not", "installed", "nothing"],
    ]
    assert lines[0].index("a command") == lines[1].index("nothing"), "the columns are aligned"
    assert lines[2:] == ["Install a part by its name: pip install 'oncemore[NAME]'"]
    assert len(describe_parts((present,))) == 1, "if all are there, none is to be installed"
    assert set(sys.modules) == before, "finding a package must not import it"
