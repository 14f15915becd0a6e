"""`oncemore lint`: find retries that hurt in any Python source."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from oncemore.cli.commands import choice_option, documented_command, flag_option, value_option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncemore.cli.output import Color, OutputWriter
    from oncemore.lint.model import LintFinding
    from oncemore.lint.project import CheckedFile, LintReport
    from oncemore.lint.settings import LintSettings

EXAMPLES = """
oncemore lint
oncemore lint src tests --statistics
oncemore lint --explain OM101
oncemore lint src --fix --diff
oncemore lint --baseline lint-baseline.json --write-baseline
oncemore lint --format sarif > lint.sarif
cat job.py | oncemore lint -
"""
FORMATS = ("text", "json", "sarif", "github")
_COLORS: dict[str, Color] = {"critical": "red", "warning": "yellow", "note": "dim"}


GROUPS = {
    "Output": "output_format in_json explain statistics",
    "Mend": "fix diff",
    "Old code": "baseline write_baseline",
}


@documented_command("lint", EXAMPLES, GROUPS)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@value_option(
    "--select", "RULES", 'Rules to run: ids, "default" or "all", separated by commas; default: the settings.'
)
@value_option("--config", "FILE", "Settings file; default: the nearest pyproject.toml.")
@value_option("--stdin-filename", "NAME", "Path to report for standard input.", default="-")
@choice_option(
    "--format output_format", FORMATS, "Output: text, json, sarif or github; default: text.", default="text"
)
@flag_option("--json in_json", "The same as --format json.")
@value_option("--explain", "RULE", "Print the page about a rule, or `list` for all rules, and stop.")
@flag_option("--statistics", "Print only the number of findings of each rule.")
@flag_option("--fix", "Mend the mechanical findings in the files.")
@flag_option("--diff", "Print what --fix would change; write nothing.")
@value_option("--baseline", "FILE", "Report only findings that this file does not know.")
@flag_option("--write-baseline", "Write all findings to the file of --baseline, and stop.")
def lint(
    paths: tuple[str, ...], select: str | None, config: str | None, stdin_filename: str, output_format: str,
    in_json: bool, explain: str | None, statistics: bool, fix: bool, diff: bool, baseline: str | None,
    write_baseline: bool,
) -> int:  # fmt: skip
    """Find retry loops that hurt, and mend them.

    It finds retries without a limit or backoff, of payments, and calls without a timeout.

    PATH is a file, a folder or - for standard input; the default is the working directory. The code is read
    and never executed. Exit code 1 if there is a finding, 2 if the command line or the settings are wrong.
    """
    from oncemore.cli.output import OutputWriter
    from oncemore.errors import UsageError
    from oncemore.lint.settings import LintUsageError

    out = OutputWriter(in_json=in_json)
    # The linter knows nothing of this package, so that its errors are translated here.
    try:
        if explain is not None:
            return _explain_rule(out, explain)
        if write_baseline and baseline is None:
            raise LintUsageError("--write-baseline needs --baseline FILE")
        settings = _choose_settings(paths, select, config)
        files = _list_files(paths, settings)
        # With --fix the report shows what is left after mending.
        if diff or fix:
            count = _mend_files(out, files, paths, settings, only_show=diff)
            if diff:
                return int(bool(count))
        report = _check(files, paths, settings, stdin_filename, None if write_baseline else baseline)
        if write_baseline:
            return _save_baseline(out, report, str(baseline))
    except LintUsageError as error:
        raise UsageError(str(error)) from None
    _write_report(out, report, settings, "json" if in_json else output_format, only_counts=statistics)
    return int(bool(report.findings))


def _choose_settings(paths: Sequence[str], select: str | None, config: str | None) -> LintSettings:
    from oncemore.lint.settings import LintUsageError, find_settings_file, load_settings, select_rules

    if config is not None and not Path(config).is_file():
        raise LintUsageError(f"{config}: there is no such settings file")
    # The settings are those of the checked project, not of the folder in which the command runs.
    start = Path(paths[0]) if paths and paths[0] != "-" else Path()
    folder = start.resolve() if start.is_dir() else start.resolve().parent
    settings = load_settings(Path(config) if config else find_settings_file(folder))
    if select is not None:
        words = [word.strip() for word in select.split(",") if word.strip()]
        # The command line wins over the settings, also over the rules that they ignore.
        settings = settings._replace(rules=select_rules(words, "--select"), ignored=())
    return settings


def _list_files(paths: Sequence[str], settings: LintSettings) -> list[Path]:
    from oncemore.lint.project import find_files

    return find_files([path for path in paths if path != "-"] if paths else ["."], settings.exclude)


def _read_input(files: Sequence[Path], paths: Sequence[str], stdin_filename: str) -> Iterator[CheckedFile]:
    from oncemore.lint.project import CheckedFile, read_files

    if "-" in paths:
        yield CheckedFile(stdin_filename, sys.stdin.buffer.read())
    yield from read_files(files, Path.cwd())


def _check(
    files: Sequence[Path],
    paths: Sequence[str],
    settings: LintSettings,
    stdin_filename: str,
    baseline: str | None,
) -> LintReport:
    from oncemore.lint.project import check_files
    from oncemore.lint.reports import read_baseline

    known = read_baseline(Path(baseline)) if baseline is not None else None
    return check_files(_read_input(files, paths, stdin_filename), settings, known)


def _explain_rule(out: OutputWriter, rule: str) -> int:
    from oncemore.lint.reports import rule_titles
    from oncemore.lint.rules import RULES
    from oncemore.lint.settings import LintUsageError

    if rule.lower() == "list":
        # The ids that no rule makes (unreadable files, suppressions) are always on.
        rows = [("RULE", "DEFAULT", "FINDS")]
        for one, title in rule_titles().items():
            rows.append((one, "off" if one in RULES and not RULES[one].is_default else "on", title))
        out.write_table(rows)
        return 0
    if rule.upper() not in RULES:
        known = ", ".join(RULES)
        raise LintUsageError(f"{rule} is not a rule; there are {known}")
    is_code = False
    for line in RULES[rule.upper()].page.strip().splitlines():
        is_code = is_code != line.startswith("```")
        # Code is printed as it is, prose is wrapped to the width of the terminal.
        if is_code or line.startswith(("#", "```")) or not line.strip():
            out.write_line(line, "bold" if line.startswith("#") else "")
        else:
            out.write_paragraph(line)
    return 0


def _mend_files(
    out: OutputWriter, files: Sequence[Path], paths: Sequence[str], settings: LintSettings, *, only_show: bool
) -> int:  # fmt: skip
    """Mend the files, or show the changes; return the number of changed files."""
    from oncemore.lint.project import (
        describe_change,
        mend_source,
        paused_collector,
        replace_source,
        shown_path,
    )
    from oncemore.lint.settings import LintUsageError

    if "-" in paths:
        raise LintUsageError("--fix and --diff need files; standard input cannot be mended")
    changed = 0
    with paused_collector():
        for path in files:
            before = path.read_bytes()
            name = shown_path(path, Path.cwd())
            after = mend_source(before, name, settings)
            if after == before:
                continue
            changed += 1
            if only_show:
                for line in describe_change(before, after, name).splitlines():
                    color: Color = "green" if line.startswith("+") else "red" if line.startswith("-") else ""
                    out.write_line(line, color)
            else:
                replace_source(path, after)
    # On stderr, so that the diff on stdout can be piped into `patch`.
    if changed and not out.in_json:
        files_text = "1 file" if changed == 1 else f"{changed} files"
        verb = "would be changed" if only_show else "changed; read the changes before you commit them"
        print(f"{files_text} {verb}.", file=sys.stderr)
    return changed


def _save_baseline(out: OutputWriter, report: LintReport, path: str) -> int:
    from oncemore.lint.reports import write_baseline

    Path(path).write_text(write_baseline(report), encoding="utf-8")
    count = len(report.findings)
    out.write_line(
        f"wrote {count} findings to {path}; later runs with --baseline {path} report only new ones"
    )
    return 0


def _write_report(
    out: OutputWriter, report: LintReport, settings: LintSettings, output_format: str, *, only_counts: bool
) -> None:
    from oncemore.lint.reports import build_sarif, describe_report, format_github

    if output_format == "sarif":
        from oncemore._version import __version__

        out.write_json(build_sarif(report, __version__))
    elif output_format == "json":
        out.write_json(describe_report(report))
    elif output_format == "github":
        for finding in report.findings:
            out.write_line(format_github(finding))
    elif only_counts:
        _write_counts(out, report)
    else:
        for finding in report.findings:
            _write_finding(out, finding)
        _write_summary(out, report, settings)


def _write_finding(out: OutputWriter, finding: LintFinding) -> None:
    place = f"{finding.path}:{finding.line}:{finding.column}"
    out.write_line(
        f"{place}: {finding.rule} {finding.severity}: {finding.message}", _COLORS[finding.severity]
    )
    if finding.source_line:
        out.write_line(f"    {finding.source_line}", "dim")


def _write_counts(out: OutputWriter, report: LintReport) -> None:
    from oncemore.lint.reports import count_by_rule, rule_titles

    titles = rule_titles()
    rows = [("RULE", "FINDINGS", "FINDS")]
    rows += [(rule, str(count), titles[rule]) for rule, count in count_by_rule(report).items()]
    rows.append(("all", str(len(report.findings)), f"{report.files} files, {report.lines} lines"))
    out.write_table(rows, right=[1])


def _write_summary(out: OutputWriter, report: LintReport, settings: LintSettings) -> None:
    # A rule is never off in silence.
    for rule, reason in settings.ignored:
        out.write_line(f"{rule} is off ({settings.file}): {reason}", "dim")
    notes = []
    if report.suppressed:
        notes.append(f"{len(report.suppressed)} set aside with a reason")
    if report.known:
        notes.append(f"{report.known} in the baseline")
    if report.stale:
        notes.append(f"{report.stale} of the baseline are gone, write it again")
    more = f" ({'; '.join(notes)})" if notes else ""
    checked = "1 file" if report.files == 1 else f"{report.files} files"
    if not report.findings:
        out.write_line(f"{checked} checked: no findings{more}", "green")
        return
    count = len(report.findings)
    found = "1 finding" if count == 1 else f"{count} findings"
    out.write_line(f"{checked} checked: {found}{more}", "red")
    mendable = sum(bool(finding.edits) for finding in report.findings)
    if mendable:
        out.write_line(f"{mendable} can be mended: see `oncemore lint --diff`, then `oncemore lint --fix`")
    # OM000 and OM100 explain themselves and have no page.
    first = next((one.rule for one in report.findings if one.rule > "OM100"), "")
    if first:
        out.write_line(f"`oncemore lint --explain {first}` says why and how to mend it")
