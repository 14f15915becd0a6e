"""Printing of the policy list and of errors in policy files, for `oncemore policy list` and `check`."""

from __future__ import annotations

import os

from oncemore.cli.charts import format_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import OutputWriter
    from oncemore.queries.policies import PolicyCheck
    from oncemore.queries.policy_catalogue import ProfileRow

COLUMN_HEADS = ("name", "version", "governed", "attempts", "timeout", "signed", "source")
SIGNATURE_WORDS = {"packaged, digest verified": "by digest", "unsigned": "no"}


def print_profiles(out: OutputWriter, rows: Sequence[ProfileRow]) -> None:
    """Print one line per profile; profiles that cannot be used come last, with their fault."""
    good = [row for row in rows if not row.fault]
    out.write_table([COLUMN_HEADS, *(_profile_cells(row) for row in good)], right=(3,))
    # A profile that cannot be loaded must not hide the other ones.
    for row in rows:
        if row.fault:
            out.write_paragraph(f"cannot be used: {row.fault}", "red", f"{row.name}  ")
    several = [row.name for row in good if row.policies > 1]
    if several:
        out.write_line()
        out.write_paragraph(
            f"Profiles with several policies: {', '.join(several)}. "
            f"`oncemore policy show {several[0]}` lists them.",
            "dim",
        )


def _profile_cells(row: ProfileRow) -> tuple[str, ...]:
    return (
        row.name,
        row.version,
        "yes" if row.governed else "no",
        _format_range(*map(str, row.attempts)),
        _format_timeout(*row.timeout_s),
        SIGNATURE_WORDS.get(row.signature, row.signature),
        "package" if row.packaged else shortest_path(row.source),
    )


def _format_timeout(low: float | None, high: float | None) -> str:
    if low is None:
        return "none"
    # A policy without a limit has the highest one, so "30-none" has no unit at its end.
    return _format_range(format_number(low), "none" if high is None else format_number(high)) + (
        "" if high is None else " s"
    )


def _format_range(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"


def shortest_path(path: str) -> str:
    """Return the relative path if it is shorter than the given one."""
    return min(path, os.path.relpath(path), key=len)


def print_checks(out: OutputWriter, checks: Sequence[PolicyCheck]) -> None:
    """Print every fault as file:line:column, which editors and terminals can open, then a summary."""
    for check in checks:
        for fault in check.faults:
            position = f"{fault.file}:{fault.line}:{fault.column}" if fault.line else fault.file
            out.write_line(f"{position}: {fault.field}{' ' if fault.field else ''}{fault.message}", "red")
        # A file that is not a policy at all would otherwise fill the screen.
        if check.more_faults:
            out.write_line(f"{check.file}: and {check.more_faults} more errors", "red")
        for text in check.warnings:
            out.write_line(f"{check.file}: warning: {text.removeprefix(f'{check.file}: ')}", "yellow")
        if check.good:
            count = len(check.policies)
            policies = "1 policy" if count == 1 else f"{count} policies"
            out.write_line(f"{check.file}: valid: {check.name} version {check.version}, {policies}", "green")
    if len(checks) > 1:
        bad = sum(not check.good for check in checks)
        out.write_line(f"{len(checks)} files, {bad} not valid" if bad else f"{len(checks)} files, all valid")
