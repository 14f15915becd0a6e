"""Write a report as JSON, SARIF 2.1.0 or GitHub annotations, and read and write baselines.

The functions return values or text; the command prints them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from oncemore.lint.model import SUPPRESSION, SYNTAX
from oncemore.lint.rules import RULES
from oncemore.lint.settings import LintUsageError

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.lint.model import LintFinding
    from oncemore.lint.project import LintReport

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
#: The levels of SARIF and the commands of GitHub, by severity.
_LEVELS = {"critical": "error", "warning": "warning", "note": "note"}
_COMMANDS = {"critical": "error", "warning": "warning", "note": "notice"}
#: Findings that no rule makes.
_OWN_TITLES = {
    SYNTAX: "file that cannot be read",
    SUPPRESSION: "suppression without a reason, or without a use",
}
#: The version of the baseline file.
_BASELINE_VERSION = 1


def rule_titles() -> dict[str, str]:
    """Return the titles of all ids that findings can have, in order."""
    return {**_OWN_TITLES, **{rule.id: rule.title for rule in RULES.values()}}


def describe_finding(finding: LintFinding) -> dict[str, object]:
    """Return a finding as a JSON object."""
    described: dict[str, object] = {
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "end_line": finding.end_line,
        "end_column": finding.end_column,
        "rule": finding.rule,
        "severity": finding.severity,
        "message": finding.message,
        "function": finding.function,
        "source_line": finding.source_line,
        "fingerprint": finding.fingerprint,
        "can_be_fixed": bool(finding.edits),
    }
    return {**described, "reason": finding.reason} if finding.reason else described


def describe_report(report: LintReport) -> dict[str, object]:
    """Return a report as a JSON object; suppressed findings are in it, with their reasons."""
    return {
        "findings": [describe_finding(finding) for finding in report.findings],
        "suppressed": [describe_finding(finding) for finding in report.suppressed],
        "statistics": count_by_rule(report),
        "files": report.files,
        "lines": report.lines,
        "in_baseline": report.known,
        "stale_in_baseline": report.stale,
    }


def count_by_rule(report: LintReport) -> dict[str, int]:
    """Return the number of findings of each rule, in the order of the ids."""
    return dict(sorted(Counter(finding.rule for finding in report.findings).items()))


def build_sarif(report: LintReport, version: str) -> dict[str, Any]:
    """Return a report as a SARIF 2.1.0 log, with all rules and with the suppressed findings."""
    titles = rule_titles()
    index = {rule: number for number, rule in enumerate(titles)}
    driver = {
        "name": "oncemore lint",
        "version": version,
        "semanticVersion": version,
        "rules": [_describe_sarif_rule(rule, title) for rule, title in titles.items()],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The folder that was checked."}}},
        # An empty list means that the tool ran and found nothing.
        "results": [
            _build_result(finding, index[finding.rule]) for finding in [*report.findings, *report.suppressed]
        ],
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _describe_sarif_rule(rule: str, title: str) -> dict[str, Any]:
    page = RULES[rule].page if rule in RULES else title
    return {
        "id": rule,
        "name": "".join(word.capitalize() for word in re.findall(r"[A-Za-z]+", title)),
        "shortDescription": {"text": f"{title[0].upper()}{title[1:]}."},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": "error", "enabled": rule not in RULES or RULES[rule].is_default},
    }


def _build_result(finding: LintFinding, index: int) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": finding.line, "startColumn": finding.column}
    if (finding.end_line, finding.end_column) > (finding.line, finding.column):
        region |= {"endLine": finding.end_line, "endColumn": finding.end_column}
    if finding.source_line:
        region["snippet"] = {"text": finding.source_line}
    location = {"uri": _encode_uri(finding.path), "uriBaseId": "%SRCROOT%"}
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [{"physicalLocation": {"artifactLocation": location, "region": region}}],
        "partialFingerprints": {"primaryLocationLineHash": f"{finding.fingerprint}:1"},
    }
    if finding.reason:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.reason}]
    return result


def _encode_uri(path: str) -> str:
    from urllib.parse import quote

    # A path outside of the root would be read as relative to it.
    return f"file://{quote(path)}" if path.startswith("/") else quote(path)


def format_github(finding: LintFinding) -> str:
    """Return a finding as a workflow command, which GitHub shows beside the line."""
    properties = {
        "file": finding.path,
        "line": finding.line,
        "endLine": finding.end_line,
        "col": finding.column,
        "title": f"{finding.rule} {rule_titles()[finding.rule]}",
    }
    written = ",".join(f"{name}={_escape(str(value), ',:')}" for name, value in properties.items())
    return f"::{_COMMANDS[finding.severity]} {written}::{_escape(finding.message)}"


def _escape(text: str, more: str = "") -> str:
    # The percent sign comes first: the replacements contain it.
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def write_baseline(report: LintReport) -> str:
    """Return the text of a baseline that knows every finding of a report.

    An entry has no line number, so that it still matches after lines above were added or removed.
    """
    counts: Counter[tuple[str, str, str, str]] = Counter(
        (finding.path, finding.rule, finding.fingerprint, finding.source_line) for finding in report.findings
    )
    entries = [
        {"path": path, "rule": rule, "fingerprint": fingerprint, "source_line": source_line, "count": count}
        for (path, rule, fingerprint, source_line), count in sorted(counts.items())
    ]
    return json.dumps({"version": _BASELINE_VERSION, "findings": entries}, indent=2) + "\n"


def read_baseline(path: Path) -> Counter[str]:
    """Return how often a baseline knows each fingerprint; raise `LintUsageError` if it cannot be used."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != _BASELINE_VERSION:
            raise LintUsageError(f"{path}: version {document['version']} of the baseline is not known")
        known: Counter[str] = Counter()
        for entry in document["findings"]:
            known[str(entry["fingerprint"])] += int(entry["count"])
    except FileNotFoundError:
        raise LintUsageError(f"{path}: there is no baseline; write one with --write-baseline") from None
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LintUsageError(f"{path}: this is not a baseline of `oncemore lint` ({error})") from None
    return known
