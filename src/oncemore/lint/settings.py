"""The settings of the linter: the table `[tool.oncemore.lint]` of pyproject.toml.

    [tool.oncemore.lint]
    select = ["default", "OM109"]
    ignore = ["OM108 because the proxy ends every request after a minute"]
    exclude = ["migrations", "vendor/*"]
    severity = { OM107 = "warning" }

    [tool.oncemore.lint.per-file-ignores]
    "tests/*" = ["OM108 because the servers of the tests run in the same process"]

A rule is only ignored with a reason, as in a comment.
"""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.lint.model import SEVERITIES, SUPPRESSION, make_finding
from oncemore.lint.rules import DEFAULT_RULES, RULES
from oncemore.lint.suppressions import parse_suppression

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from oncemore.lint.model import LintFinding

FILE_NAME = "pyproject.toml"
_KEYS = {"select", "ignore", "exclude", "per-file-ignores", "severity"}


class LintUsageError(ValueError):
    """Settings, a baseline or a path that the linter cannot use."""


class FileIgnore(NamedTuple):
    """Rules that are ignored in some files."""

    pattern: str
    rules: tuple[str, ...]
    reason: str


class LintSettings(NamedTuple):
    """The settings of one run.

    file      the file they come from; empty without one
    rules     the rules that run
    ignored   the rules that are turned off, with the reason
    faults    findings about the settings themselves, such as a rule ignored without a reason
    """

    file: str = ""
    rules: tuple[str, ...] = DEFAULT_RULES
    ignored: tuple[tuple[str, str], ...] = ()
    exclude: tuple[str, ...] = ()
    file_ignores: tuple[FileIgnore, ...] = ()
    severities: tuple[tuple[str, str], ...] = ()
    faults: tuple[LintFinding, ...] = ()

    def find_file_ignore(self, path: str, rule: str) -> str:
        """Return the reason why a rule is ignored in a file; empty if it is not."""
        for one in self.file_ignores:
            if rule in one.rules and matches_pattern(path, one.pattern):
                return one.reason
        return ""


def matches_pattern(path: str, pattern: str) -> bool:
    """Return whether a path, one of its parents or one of its parts matches a pattern of the settings."""
    pattern = pattern.rstrip("/")
    parts = path.split("/")
    beginnings = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    # A pattern without a slash is the name of a file or folder anywhere; `tests/*` starts at the root.
    return any(fnmatch(one, pattern) for one in (*beginnings, *(() if "/" in pattern else parts)))


def select_rules(words: Iterable[str], origin: str) -> tuple[str, ...]:
    """Return the rules named by `default`, `all` or ids, in the order of their ids."""
    chosen: set[str] = set()
    for word in words:
        if word.lower() == "all":
            chosen |= RULES.keys()
        elif word.lower() == "default":
            chosen |= set(DEFAULT_RULES)
        elif word.upper() in RULES:
            chosen.add(word.upper())
        else:
            raise LintUsageError(
                f'{origin}: {word!r} is not a rule; use an id such as OM101, "default" or "all"'
            )
    return tuple(rule for rule in RULES if rule in chosen)


def find_settings_file(start: Path) -> Path | None:
    """Return the nearest pyproject.toml in a folder or one of its parents."""
    for folder in (start, *start.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    return None


def load_settings(file: Path | None) -> LintSettings:
    """Read the settings from a file; the defaults if there is none or it has no such table."""
    if file is None:
        return LintSettings()
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LintUsageError(f"{file}: {error}") from None
    table: Any = document
    for key in ("tool", "oncemore", "lint"):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise LintUsageError(f"{file}: {key} must be a table")
    return build_settings(table, file.name) if table else LintSettings(file.name)


def build_settings(table: Mapping[str, Any], file: str) -> LintSettings:
    """Return the settings of a table; raise `LintUsageError` naming the key that cannot be used."""
    if unknown := sorted(table.keys() - _KEYS):
        known = ", ".join(sorted(_KEYS))
        raise LintUsageError(f"{file}: tool.oncemore.lint.{unknown[0]} is not a setting; there are {known}")
    faults: list[LintFinding] = []
    selected = select_rules(_read_words(table, "select", file) or ["default"], f"{file}: select")
    ignored: list[tuple[str, str]] = []
    for text in _read_words(table, "ignore", file):
        rules, reason, fault = parse_suppression(text, RULES)
        if fault:
            faults.append(_report_fault(file, "ignore", text, fault))
        ignored += [(rule, reason) for rule in rules]
    file_ignores = []
    for pattern in _read_table(table, "per-file-ignores", file):
        for text in _read_words(table["per-file-ignores"], pattern, file):
            rules, reason, fault = parse_suppression(text, RULES)
            if fault:
                faults.append(_report_fault(file, f"per-file-ignores {pattern!r}", text, fault))
            file_ignores.append(FileIgnore(pattern, rules, reason))
    severities = _read_table(table, "severity", file)
    for rule, severity in severities.items():
        if rule not in {*RULES, SUPPRESSION} or severity not in SEVERITIES:
            known = ", ".join(SEVERITIES)
            raise LintUsageError(
                f"{file}: severity: {rule} = {severity!r}; use the id of a rule and one of {known}"
            )
    off = dict(ignored)
    return LintSettings(
        file=file,
        rules=tuple(rule for rule in selected if rule not in off),
        ignored=tuple(ignored),
        exclude=tuple(_read_words(table, "exclude", file)),
        file_ignores=tuple(file_ignores),
        severities=tuple(severities.items()),
        faults=tuple(faults),
    )


def _read_words(table: Mapping[str, Any], key: str, file: str) -> Sequence[str]:
    words = table.get(key, [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise LintUsageError(f"{file}: {key} must be a list of strings")
    return words


def _read_table(table: Mapping[str, Any], key: str, file: str) -> Mapping[str, Any]:
    inner = table.get(key, {})
    if not isinstance(inner, dict):
        raise LintUsageError(f"{file}: {key} must be a table")
    return inner


def _report_fault(file: str, key: str, text: str, fault: str) -> LintFinding:
    advice = fault.partition(": write")[0]
    message = f'{key} = "{text}" has no effect: {advice}: write "OM108 because <reason>"'
    return make_finding(file, (1, 1), SUPPRESSION, message)._replace(source_line=text)
