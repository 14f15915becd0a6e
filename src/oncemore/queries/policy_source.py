"""Read from the files of a profile where its values come from.

A packaged file begins with the name of its document, and a comment marks each value that the document leaves
open ("ours (G-2)"). A value without a comment is the document's own.
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


class PolicySource(Value):
    """The opening comment of a profile's file, and the comment beside each field, by its dotted path."""

    name: str
    opening: str
    remarks: Mapping[str, str]


def read_sources(profile: Profile) -> tuple[PolicySource, ...]:
    """Return the sources of a profile: its own file, then the files that it extends."""
    from oncemore.policy.files import profile as load_profile

    sources = [_read_source(profile)]
    for name in profile.extends:
        try:
            sources.append(_read_source(load_profile(name)))
        except PolicyError:
            # The parent was extended by its path and cannot be loaded by its name.
            break
    return tuple(sources)


def _read_source(profile: Profile) -> PolicySource:
    from oncemore.policy.files.file_reader import read_file
    from oncemore.policy.files.yaml_reader import parse_yaml

    data, _ = read_file(profile.source)
    lines = data.decode().splitlines()
    opening = []
    for line in lines:
        if not line.startswith("#"):
            break
        opening.append(line.lstrip("# "))
    return PolicySource(
        profile.name, " ".join(opening), dict(_collect_remarks(parse_yaml(data, profile.source), lines, ""))
    )


def _collect_remarks(tree: Any, lines: list[str], path: str) -> list[tuple[str, str]]:
    remarks = []
    for name, entry in tree.entries.items():
        remarks.append((f"{path}{name}", _read_remark(lines[entry.mark.line - 1])))
        if hasattr(entry.node, "entries"):
            remarks += _collect_remarks(entry.node, lines, f"{path}{name}.")
    return remarks


def _read_remark(line: str) -> str:
    """Return the comment at the end of a line."""
    # A # within quotes is not a comment: quoted texts are masked, which keeps all positions.
    masked = re.sub(r"\"[^\"]*\"|'[^']*'", lambda quoted: "_" * len(quoted[0]), line)
    comment = re.search(r"\s#\s*", masked)
    return "" if comment is None else line[comment.end() :].strip()
