"""Reads security advisories in the formats of OSV and pip-audit, and finds the packages they concern."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import MissingExtra, UsageError
from oncemore.supply_chain.dependencies import normalize_package, read_json, read_objects

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

ADVISORY_RULE = "advisory"


class VersionRange(Value):
    """Affected versions: from `introduced`, before `fixed`, up to and including `last`; "" is no bound."""

    introduced: str = ""
    fixed: str = ""
    last: str = ""


class Advisory(Value):
    """One advisory about one package.

    versions  affected versions, listed one by one
    ranges    affected ranges of versions
    """

    id: str
    package: str
    summary: str
    versions: frozenset[str]
    ranges: tuple[VersionRange, ...]
    fixed_in: tuple[str, ...]


def read_advisories(text: str, path: str) -> list[Advisory]:
    """Return the advisories of a file: one OSV document, a list of them, or a report of pip-audit."""
    document = read_json(text, path)
    if isinstance(document, dict) and isinstance(document.get("dependencies"), list):
        return list(_read_pip_audit(document))
    if isinstance(document, dict) and isinstance(document.get("vulns"), list):
        document = document["vulns"]
    entries = document if isinstance(document, list) else [document]
    if not all(isinstance(entry, dict) and "id" in entry for entry in entries):
        raise UsageError(
            f"{path} has no advisories: it is neither OSV (id, affected) nor pip-audit (dependencies)"
        )
    return [advisory for entry in entries for advisory in _read_osv(entry)]


def _read_pip_audit(document: dict[str, Any]) -> Iterator[Advisory]:
    for one in read_objects(document, "dependencies"):
        for found in read_objects(one, "vulns"):
            yield Advisory(
                id=str(found.get("id", "")),
                package=normalize_package(str(one.get("name", ""))),
                summary=_first_line(found.get("description", "")),
                versions=frozenset({str(one.get("version", ""))}),
                ranges=(),
                fixed_in=tuple(map(str, found.get("fix_versions", ()))),
            )


def _read_osv(entry: dict[str, Any]) -> Iterator[Advisory]:
    # A withdrawn advisory was wrong, or is repeated under another id.
    if entry.get("withdrawn"):
        return
    for affected in read_objects(entry, "affected"):
        package = affected.get("package")
        if not isinstance(package, dict) or str(package.get("ecosystem", "")).partition(":")[0] != "PyPI":
            continue
        ranges = tuple(
            found
            for one in read_objects(affected, "ranges")
            if one.get("type") == "ECOSYSTEM"
            for found in _read_events(read_objects(one, "events"))
        )
        yield Advisory(
            id=str(entry["id"]),
            package=normalize_package(str(package.get("name", ""))),
            summary=_first_line(entry.get("summary") or entry.get("details", "")),
            versions=frozenset(map(str, affected.get("versions", ()))),
            ranges=ranges,
            fixed_in=tuple(found.fixed for found in ranges if found.fixed),
        )


def _read_events(events: Iterable[dict[str, Any]]) -> Iterator[VersionRange]:
    """Yield one range for each `introduced`, ended by the `fixed` or `last_affected` after it."""
    current: VersionRange | None = None
    for event in events:
        if "introduced" in event:
            if current is not None:
                yield current
            # "0" stands for the first version that ever was.
            current = VersionRange("" if event["introduced"] == "0" else event["introduced"])
        elif current is not None:
            yield current._replace(fixed=event.get("fixed", ""), last=event.get("last_affected", ""))
            current = None
    if current is not None:
        yield current


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0][:120]


def is_affected(advisory: Advisory, version: str) -> bool:
    """Return whether an advisory concerns a version of its package."""
    if version in advisory.versions:
        return True
    return any(_is_within(version, one) for one in advisory.ranges)


def _is_within(version: str, versions: VersionRange) -> bool:
    try:
        from packaging.version import InvalidVersion, Version
    except ImportError as missing:
        raise MissingExtra(
            "ranges of versions in advisories need packaging: pip install 'oncemore[supply-chain]'"
        ) from missing
    try:
        own = Version(version)
        if versions.introduced and own < Version(versions.introduced):
            return False
        if versions.fixed and own >= Version(versions.fixed):
            return False
        return not (versions.last and own > Version(versions.last))
    except InvalidVersion:
        # A version that cannot be ordered may be affected: the finding can be looked at, a silence cannot.
        return True


def find_affected(advisories: Iterable[Advisory], name: str, version: str) -> Iterator[str]:
    """Yield the text of each advisory that concerns a version of a package."""
    for advisory in advisories:
        if advisory.package == name and is_affected(advisory, version):
            fix = f"; fixed in {', '.join(advisory.fixed_in)}" if advisory.fixed_in else "; no fix is known"
            summary = f": {advisory.summary}" if advisory.summary else ""
            yield f"{name} {version} is affected by {advisory.id}{summary}{fix}"
