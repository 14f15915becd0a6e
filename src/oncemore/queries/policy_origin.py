"""Where the numbers of a profile come from: what its file says beside them.

Packaged files open with the document they stand for, and mark with a comment what the document leaves
open ("ours (G-2)"). Both are read from the text of the file; what has no mark is the document's.
"""

from __future__ import annotations

import re

from oncemore._values import Value
from oncemore.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from oncemore.policy.files import Profile


class Origin(Value):
    """A file, its opening words, and the remark beside each of its fields, by dotted path as written."""

    name: str
    opening: str
    remarks: Mapping[str, str]


def origins(profile: Profile) -> tuple[Origin, ...]:
    """Read the remarks of a profile's file and of those it extends, nearest first."""
    from oncemore.policy.files import profile as by_name

    found = [_origin(profile)]
    for name in profile.extends:
        try:
            found.append(_origin(by_name(name)))
        except PolicyError:  # a parent that is known by its path only
            break
    return tuple(found)


def _origin(profile: Profile) -> Origin:
    from oncemore.policy.files.disk import read
    from oncemore.policy.files.yaml_reader import parse

    data, _ = read(profile.source)
    lines = data.decode().splitlines()
    opening = []
    for line in lines:
        if not line.startswith("#"):
            break
        opening.append(line.lstrip("# "))
    return Origin(profile.name, " ".join(opening), dict(_remarks(parse(data, profile.source), lines, "")))


def _remarks(tree: Any, lines: list[str], path: str) -> list[tuple[str, str]]:
    found = []
    for name, entry in tree.entries.items():
        found.append((f"{path}{name}", _remark(lines[entry.mark.line - 1])))
        if hasattr(entry.node, "entries"):
            found += _remarks(entry.node, lines, f"{path}{name}.")
    return found


def _remark(line: str) -> str:
    """Return the comment at the end of a line; a # within quotes is not one."""
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", lambda quoted: "_" * len(quoted[0]), line)
    at = re.search(r"\s#\s*", bare)
    return "" if at is None else line[at.end() :].strip()
