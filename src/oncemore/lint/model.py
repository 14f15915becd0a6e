"""The values of the linter: rules, findings and edits.

They hold no syntax tree, so that the findings of a large project stay small.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterable

    from oncemore.lint.facts import ModuleFacts

#: The severities, worst first. The first one is the default of every rule.
SEVERITIES = ("critical", "warning", "note")
#: The id of findings about files that cannot be parsed.
SYNTAX = "OM000"
#: The id of findings about suppressions and settings.
SUPPRESSION = "OM100"


class SourceEdit(NamedTuple):
    """A replacement of a range of the source.

    Lines count from 1, columns from 0 in bytes of UTF-8, as in the syntax tree. An empty range inserts.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


class RuleMatch(NamedTuple):
    """A place where a rule matches, before severity, suppressions and baseline are applied."""

    node: ast.AST
    message: str
    edits: tuple[SourceEdit, ...] = ()


class LintRule(NamedTuple):
    """A rule: its id, its title, the function that finds matches, and the page that explains it.

    is_default  whether it runs without being selected
    """

    id: str
    title: str
    find_matches: Callable[[ModuleFacts], Iterable[RuleMatch]]
    page: str
    is_default: bool = True


class LintFinding(NamedTuple):
    """One finding.

    line, column, end_line, end_column  lines and columns from 1, columns in characters
    function     the qualified name of the function around it; empty at module level
    source_line  the text of the first line, without indentation
    edits        the edits that mend it; empty if it has to be mended by hand
    reason       the reason of the suppression that sets it aside; empty if none does
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    rule: str
    severity: str
    message: str
    function: str = ""
    source_line: str = ""
    edits: tuple[SourceEdit, ...] = ()
    reason: str = ""

    @property
    def fingerprint(self) -> str:
        """A digest of rule, path, function and source line.

        The line number is not part of it, so that it stays the same if lines above are added or removed.
        """
        parts = "\0".join((self.rule, self.path, self.function, " ".join(self.source_line.split())))
        return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def make_finding(path: str, place: tuple[int, int], rule: str, message: str) -> LintFinding:
    """Return a finding of the default severity at one place (line and column from 1)."""
    line, column = place
    return LintFinding(
        path=path,
        line=line,
        column=column,
        end_line=line,
        end_column=column,
        rule=rule,
        severity=SEVERITIES[0],
        message=message,
    )
