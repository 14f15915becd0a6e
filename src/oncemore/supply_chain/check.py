"""Checks the supply chain of a project: reads the files below the paths and returns all findings."""

from __future__ import annotations

import os
import re
from pathlib import Path

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.supply_chain.advisories import ADVISORY_RULE, find_affected, read_advisories
from oncemore.supply_chain.dependencies import check_against_sbom, check_pins, read_requirements, read_sbom
from oncemore.supply_chain.images import check_dockerfile, check_yaml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oncemore.supply_chain.advisories import Advisory
    from oncemore.supply_chain.dependencies import Component, Dependency

UNREADABLE_RULE = "unreadable-file"
#: Larger files are not configuration.
LARGEST_FILE = 5_000_000
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", ".git", ".venv", ".tox"})

_DOCKERFILE = re.compile(r"(?:docker|container)file(?:\..+)?|.+\.(?:docker|container)file", re.IGNORECASE)
_REQUIREMENTS = re.compile(r"(?:.*[-_.])?requirements(?:[-_.].*)?\.txt", re.IGNORECASE)


class SupplyChainFinding(Value):
    """One finding: the rule, the place and the text, which says what to write instead."""

    rule: str
    path: str
    line: int
    text: str


class SupplyChainReport(Value):
    """All findings, and the number of files and dependencies that were checked."""

    findings: tuple[SupplyChainFinding, ...]
    files: int
    dependencies: int
    sbom_components: int
    advisories: int


def check_supply_chain(
    paths: Sequence[str], sboms: Sequence[str] = (), advisories: Sequence[str] = ()
) -> SupplyChainReport:
    """Check all files below the paths; a path that names a file is always checked.

    sboms       CycloneDX or SPDX documents that must have every dependency with its hashes
    advisories  files, or folders of files, in the format of OSV or pip-audit
    """
    components = [one for path in sboms for one in read_sbom(_read_input(Path(path)), path)]
    known = [one for path in advisories for one in _load_advisories(Path(path))]
    findings: list[SupplyChainFinding] = []
    dependencies: list[tuple[str, Dependency]] = []
    files = 0
    for path, kind in _find_files(paths):
        files += 1
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            findings.append(SupplyChainFinding(UNREADABLE_RULE, str(path), 1, f"cannot be read: {error}"))
            continue
        if kind == "requirements":
            listed, _ = read_requirements(text)
            dependencies += [(str(path), one) for one in listed]
            findings += _check_dependencies(str(path), listed, components if sboms else None)
        else:
            findings += _check_references(path, kind, text)
    findings += _check_advisories(dependencies, sboms, components, known)
    findings.sort(key=lambda one: (one.path, one.line, one.rule, one.text))
    return SupplyChainReport(
        findings=tuple(findings),
        files=files,
        dependencies=len(dependencies),
        sbom_components=len(components),
        advisories=len(known),
    )


def _read_input(path: Path) -> str:
    """Return the text of a file that was named on the command line."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _load_advisories(path: Path) -> list[Advisory]:
    files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
    return [one for file in files for one in read_advisories(_read_input(file), str(file))]


# Files.


def _find_files(paths: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Yield each file once, with its kind: known kinds below folders, and every file that a path names."""
    waiting: list[tuple[Path, str]] = []
    for given in paths:
        root = Path(given)
        if not root.exists():
            raise UsageError(f"{given} does not exist; give files or folders of the project")
        # A file of no known name is given because it lists dependencies.
        waiting += _walk_folder(root) if root.is_dir() else [(root, _read_kind(root) or "requirements")]
    seen: set[Path] = set()
    while waiting:
        path, kind = waiting.pop(0)
        if path.resolve() not in seen:
            seen.add(path.resolve())
            yield path, kind
            if kind == "requirements":
                waiting += [(file, kind) for file in _find_includes(path)]


def _walk_folder(root: Path) -> Iterator[tuple[Path, str]]:
    for folder, names, files in os.walk(root):
        here = Path(folder)
        names[:] = sorted(
            name
            for name in names
            if name not in SKIPPED_FOLDERS and not (here / name / "pyvenv.cfg").exists()
        )
        for name in sorted(files):
            path = here / name
            kind = _read_kind(path)
            if kind and path.stat().st_size <= LARGEST_FILE:
                yield path, kind


def _read_kind(path: Path) -> str:
    """Return the kind of a file by its name: requirements, dockerfile, yaml, or "" for any other."""
    # `requirements/dev.txt` and `requirements-dev.txt`; the source files *.in have ranges on purpose.
    in_folder = path.parent.name == "requirements" and path.suffix == ".txt"
    if in_folder or _REQUIREMENTS.fullmatch(path.name):
        return "requirements"
    if _DOCKERFILE.fullmatch(path.name):
        return "dockerfile"
    return "yaml" if path.suffix in (".yml", ".yaml") else ""


def _find_includes(path: Path) -> list[Path]:
    """Return the files that a requirements file includes; a missing one is for pip to report."""
    try:
        _, includes = read_requirements(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return []
    return [file for _, name in includes if (file := path.parent / name).is_file()]


# Checks.


def _check_dependencies(
    path: str, dependencies: list[Dependency], components: list[Component] | None
) -> Iterator[SupplyChainFinding]:
    found = list(check_pins(dependencies))
    if components is not None:
        found += check_against_sbom(dependencies, components)
    yield from (SupplyChainFinding(rule, path, line, text) for rule, line, text in found)


def _check_references(path: Path, kind: str, text: str) -> Iterator[SupplyChainFinding]:
    if kind == "dockerfile":
        found = list(check_dockerfile(text))
    else:
        try:
            found = [
                one
                for document in _load_yaml(text)
                for one in check_yaml(document, is_workflow=_is_workflow(path))
            ]
        except ValueError as error:
            # A template that is not YAML yet is only of interest if it may name an image.
            if re.search(r"(?m)^[\s-]*(?:image|uses):", text):
                yield SupplyChainFinding(UNREADABLE_RULE, str(path), 1, f"is not YAML: {error}")
            return
    yield from (SupplyChainFinding(one.rule, str(path), one.line, one.text) for one in found)


def _is_workflow(path: Path) -> bool:
    in_folder = path.resolve().parent.parts[-2:] == (".github", "workflows")
    return in_folder or path.name in ("action.yml", "action.yaml")


def _load_yaml(text: str) -> list[object]:
    """Return the documents of a YAML file with their line numbers; raise `ValueError` if it is not YAML."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    loader = YAML(typ="rt")
    # A repeated key is not for this check.
    loader.allow_duplicate_keys = True
    try:
        return list(loader.load_all(text))
    except YAMLError as error:
        # The text of the error has the line; it is made one line, as all findings are.
        raise ValueError(" ".join(str(error).split())[:200]) from error


def _check_advisories(
    dependencies: Sequence[tuple[str, Dependency]],
    sboms: Sequence[str],
    components: Sequence[Component],
    advisories: Sequence[Advisory],
) -> Iterator[SupplyChainFinding]:
    """Yield a finding for each advisory about a dependency or about a component of an SBOM."""
    listed = {(one.name, one.version) for _, one in dependencies}
    for path, one in dependencies:
        for text in find_affected(advisories, one.name, one.version):
            yield SupplyChainFinding(ADVISORY_RULE, path, one.line, text)
    for component in components:
        # A component that is also a dependency was reported with its line.
        if (component.name, component.version) not in listed:
            for text in find_affected(advisories, component.name, component.version):
                yield SupplyChainFinding(ADVISORY_RULE, ", ".join(sboms), 1, text)
