"""Reads the dependencies of requirements files, and the components of CycloneDX and SPDX documents."""

from __future__ import annotations

import json
import re

from oncemore._values import Value
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

UNPINNED_RULE, UNHASHED_RULE = "dependency-not-pinned", "dependency-without-hash"
UNLISTED_RULE, FOREIGN_HASH_RULE = "dependency-not-in-sbom", "hash-not-in-sbom"

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(?P<rest>.*)", re.DOTALL)
_PIN = re.compile(r"(?:===?)\s*([^\s,;*]+)\s*(?:;.*)?", re.DOTALL)
_HASH = re.compile(r"(?:--hash[=\s]+|[#&])(sha256|sha384|sha512)[:=]([0-9a-fA-F]+)")
#: Hash names as the two kinds of SBOM write them.
_ALGORITHMS = {"SHA-256": "sha256", "SHA-384": "sha384", "SHA-512": "sha512"} | {
    name.upper(): name for name in ("sha256", "sha384", "sha512")
}


class Dependency(Value):
    """A line of a requirements file: name, exact version ("" if there is none) and hashes."""

    line: int
    name: str
    version: str
    hashes: tuple[str, ...]


class Component(Value):
    """A package of an SBOM, with all hashes that the document has for it."""

    name: str
    version: str
    hashes: frozenset[str]


def normalize_package(name: str) -> str:
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_requirements(text: str) -> tuple[list[Dependency], list[tuple[int, str]]]:
    """Return the dependencies of a requirements file, and the other files that it includes by line."""
    dependencies: list[Dependency] = []
    includes: list[tuple[int, str]] = []
    for line, words in _join_lines(text):
        if match := re.match(r"(?:-r|--requirement)[=\s]*(\S+)", words):
            includes.append((line, match[1]))
        # Other options, and paths of the project itself, which has no hash.
        elif words.startswith(("-", ".", "/")):
            continue
        else:
            dependencies.append(_read_dependency(line, words))
    return dependencies, includes


def _read_dependency(line: int, words: str) -> Dependency:
    hashes = tuple(f"{found[0]}:{found[1].lower()}" for found in _HASH.findall(words))
    match = _REQUIREMENT.match(words)
    if match is None:
        return Dependency(line, words, "", hashes)
    rest = re.split(r"\s--hash|\s@\s", match["rest"])[0].strip()
    pin = _PIN.fullmatch(rest)
    is_address = "@" in words and "://" in words
    # An address with a hash names one file, so it needs no version.
    version = pin[1] if pin else ("@" if is_address and hashes else "")
    return Dependency(line, normalize_package(match["name"]), version, hashes)


def _join_lines(text: str) -> Iterator[tuple[int, str]]:
    start, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        plain = re.sub(r"(^|\s)#(?!sha).*$", "", line).rstrip()
        start = start if parts else number
        parts.append(plain.removesuffix("\\").strip())
        if not plain.endswith("\\"):
            if words := " ".join(part for part in parts if part):
                yield start, words
            parts = []


def check_pins(dependencies: Iterable[Dependency]) -> Iterator[tuple[str, int, str]]:
    """Yield the rule, line and text for each dependency without an exact version or without a hash."""
    for one in dependencies:
        if not one.version:
            yield UNPINNED_RULE, one.line, f"{one.name} has no exact version; write {one.name}==VERSION"
        if not one.hashes:
            yield UNHASHED_RULE, one.line, f"{one.name} has no hash; add --hash=sha256:DIGEST"


def check_against_sbom(
    dependencies: Iterable[Dependency], components: Iterable[Component]
) -> Iterator[tuple[str, int, str]]:
    """Yield the rule, line and text for each dependency that the SBOM does not have with these hashes."""
    known: dict[tuple[str, str], set[str]] = {}
    for component in components:
        known.setdefault((component.name, component.version), set()).update(component.hashes)
    for one in dependencies:
        listed = known.get((one.name, one.version))
        if listed is None:
            yield UNLISTED_RULE, one.line, f"{one.name} {one.version} is not in the SBOM".replace("  ", " ")
            continue
        for digest in one.hashes:
            if digest not in listed:
                text = f"{one.name} {one.version}: {digest[:23]}… is not in the SBOM"
                yield FOREIGN_HASH_RULE, one.line, text


# SBOMs.


def read_sbom(text: str, path: str) -> list[Component]:
    """Return the components of a CycloneDX or SPDX document in JSON."""
    document = read_json(text, path)
    if isinstance(document, dict) and document.get("bomFormat") == "CycloneDX":
        return list(_read_cyclonedx(document))
    if isinstance(document, dict) and "spdxVersion" in document:
        return list(_read_spdx(document))
    raise UsageError(f"{path} is not an SBOM in JSON: neither bomFormat CycloneDX nor spdxVersion is in it")


def read_json(text: str, path: str) -> Any:
    """Return the value of a JSON document; the error names the file and the line."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error


def _read_cyclonedx(part: dict[str, Any]) -> Iterator[Component]:
    for component in read_objects(part, "components"):
        hashes = read_objects(component, "hashes")
        # The files of a release are references of the kind distribution, each with its own hash.
        for reference in read_objects(component, "externalReferences"):
            hashes += read_objects(reference, "hashes")
        yield Component(
            normalize_package(str(component.get("name", ""))),
            str(component.get("version", "")),
            _read_hashes(hashes, "alg", "content"),
        )
        yield from _read_cyclonedx(component)


def _read_spdx(document: dict[str, Any]) -> Iterator[Component]:
    for package in read_objects(document, "packages"):
        hashes = _read_hashes(read_objects(package, "checksums"), "algorithm", "checksumValue")
        name, version = str(package.get("name", "")), str(package.get("versionInfo", ""))
        yield Component(normalize_package(name), version, hashes)


def read_objects(part: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the objects in the list of a JSON object; anything else counts as none."""
    value = part.get(key)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _read_hashes(hashes: list[dict[str, Any]], name: str, content: str) -> frozenset[str]:
    return frozenset(
        f"{_ALGORITHMS[algorithm]}:{str(one.get(content, '')).lower()}"
        for one in hashes
        if (algorithm := str(one.get(name, "")).upper()) in _ALGORITHMS
    )
