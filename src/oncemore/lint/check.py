"""Check one source: parse it, run the rules, apply the suppressions."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from typing import TYPE_CHECKING

from oncemore.lint.facts import ModuleFacts
from oncemore.lint.model import SEVERITIES, SUPPRESSION, SYNTAX, LintFinding, make_finding
from oncemore.lint.rules import DEFAULT_RULES, RULES
from oncemore.lint.suppressions import find_suppressions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oncemore.lint.model import RuleMatch
    from oncemore.lint.suppressions import Suppression

#: Longest source line that a report shows.
_MAX_SHOWN = 200


def decode_source(data: bytes) -> tuple[str, str]:
    """Return the text of a file and its encoding, as Python itself would read it.

    Raises SyntaxError if the encoding is unknown, UnicodeDecodeError if the bytes do not fit it.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding), encoding


def check_bytes(
    data: bytes, path: str, rules: Sequence[str] = DEFAULT_RULES, severities: Mapping[str, str] | None = None
) -> list[LintFinding]:
    """Return the findings in the bytes of a file; one that cannot be read is a finding."""
    try:
        source, _ = decode_source(data)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return [_report_file(path, f"the file cannot be decoded: {error}")]
    return check_source(source, path, rules, severities)


def check_source(
    source: str, path: str, rules: Sequence[str] = DEFAULT_RULES, severities: Mapping[str, str] | None = None
) -> list[LintFinding]:
    """Return the findings in a source, sorted by place; those set aside carry the reason.

    path        the path to report; nothing is read from it
    rules       the ids of the rules to run
    severities  severities other than the default, by rule id
    """
    try:
        with warnings.catch_warnings():
            # The parser warns about the code it reads; this is not our concern.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
        facts = ModuleFacts(tree, source)
    except SyntaxError as error:
        place = max(1, error.lineno or 1), max(1, error.offset or 1)
        return [_report_file(path, f"the file cannot be parsed: {error.msg}", place)]
    except (ValueError, RecursionError, MemoryError) as error:
        return [_report_file(path, f"the file cannot be parsed: {str(error) or type(error).__name__}")]
    builder = _FindingBuilder(facts, path, severities or {})
    for rule in rules:
        for match in RULES[rule].find_matches(facts):
            builder.add_match(rule, match)
    suppressions = find_suppressions(source, RULES)
    return sorted(apply_suppressions(builder, suppressions, rules))


def _report_file(path: str, message: str, place: tuple[int, int] = (1, 1)) -> LintFinding:
    """Return the finding about a file that cannot be read."""
    return make_finding(path, place, SYNTAX, message)


class _FindingBuilder:
    """Turns matches into findings with positions in characters and the names around them."""

    def __init__(self, facts: ModuleFacts, path: str, severities: Mapping[str, str]) -> None:
        self.facts = facts
        self.path = path
        self.severities = severities
        self.findings: dict[tuple[str, int, int], LintFinding] = {}
        #: The last line of code that a suppression of a finding may stand on.
        self.last_lines: dict[tuple[str, int, int], int] = {}
        self._lines: list[str] | None = None

    @property
    def lines(self) -> list[str]:
        """The lines of the source, split where the parser splits them."""
        if self._lines is None:
            self._lines = re.split(r"\r\n|\r|\n", self.facts.source)
        return self._lines

    def add_match(self, rule: str, match: RuleMatch) -> None:
        """Record a match; a second one of the same rule at the same place is dropped."""
        node = match.node
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        key = (rule, line, column)
        if key in self.findings:
            return
        end_line, end_column = _find_header_end(node)
        self.last_lines[key] = end_line
        # Edits count lines as "\n" only; a file with bare carriage returns is left alone.
        has_odd_lines = bool(match.edits) and "\r" in self.facts.source.replace("\r\n", "")
        self.findings[key] = LintFinding(
            path=self.path,
            line=line,
            column=self._count_characters(line, column) + 1,
            end_line=end_line,
            end_column=self._count_characters(end_line, end_column) + 1,
            rule=rule,
            severity=self.severities.get(rule, SEVERITIES[0]),
            message=match.message,
            function=self._name_function(line),
            source_line=self.lines[line - 1].strip()[:_MAX_SHOWN],
            edits=() if has_odd_lines else match.edits,
        )

    def add_fault(self, suppression: Suppression, message: str) -> LintFinding:
        """Return the finding about a faulty suppression."""
        line = suppression.line
        finding = make_finding(self.path, (line, suppression.column + 1), SUPPRESSION, message)
        return finding._replace(
            severity=self.severities.get(SUPPRESSION, SEVERITIES[0]),
            function=self._name_function(line),
            source_line=self.lines[line - 1].strip()[:_MAX_SHOWN],
        )

    def _count_characters(self, line: int, column: int) -> int:
        data = self.lines[line - 1].encode("utf-8", "surrogatepass")[:column]
        return len(data.decode("utf-8", "replace"))

    def _name_function(self, line: int) -> str:
        around = [
            node
            for node in (
                *(site.node for site in self.facts.functions),
                *(node for node, _ in self.facts.classes),
            )
            if node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        return ".".join(node.name for node in sorted(around, key=lambda node: node.lineno))


def _find_header_end(node: ast.AST) -> tuple[int, int]:
    """Return the end of an expression, or of the head of a statement with a body."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        head = getattr(node, "test", None) or getattr(node, "iter", None) or getattr(node, "type", None)
        if head is not None:
            return head.end_lineno, head.end_col_offset
        return node.lineno, node.col_offset  # type: ignore[attr-defined]
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


def apply_suppressions(
    builder: _FindingBuilder, suppressions: Iterable[Suppression], rules: Sequence[str]
) -> list[LintFinding]:
    """Return the findings, with reasons where a suppression covers them, and the faults of suppressions."""
    findings = dict(builder.findings)
    faults = []
    for one in suppressions:
        if one.fault:
            faults.append(builder.add_fault(one, f"this suppression has no effect: {one.fault}"))
            continue
        used = set()
        for key, finding in findings.items():
            is_covered = finding.line <= one.covered <= max(finding.line, builder.last_lines[key])
            if finding.rule in one.rules and is_covered:
                findings[key] = finding._replace(reason=one.reason)
                used.add(finding.rule)
        # A rule that did not run cannot show that its suppression is needed.
        if unused := [rule for rule in one.rules if rule in rules and rule not in used]:
            message = f"{', '.join(unused)} does not occur here: remove the suppression"
            faults.append(builder.add_fault(one, message))
    return [*findings.values(), *faults]
