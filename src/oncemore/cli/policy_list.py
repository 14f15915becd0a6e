"""Prints lists: of policies, and of what is wrong with files."""

from __future__ import annotations

import os

from oncemore.cli.ticks import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import Paper
    from oncemore.queries.policies import Checked
    from oncemore.queries.policy_catalogue import Row

HEADS = ("name", "version", "governed", "attempts", "timeout", "signed", "source")
SIGNED = {"packaged, digest verified": "by digest", "unsigned": "no"}


def print_rows(paper: Paper, rows: Sequence[Row]) -> None:
    """Print every profile on a line of its own."""
    good = [row for row in rows if not row.fault]
    paper.table([HEADS, *(_cells(row) for row in good)], right=(3,))
    for row in rows:
        if row.fault:
            paper.say(f"cannot be used: {row.fault}", "red", f"{row.name}  ")
    several = [row.name for row in good if row.policies > 1]
    if several:
        paper.line()
        paper.say(
            f"Several policies: {', '.join(several)}. `oncemore policy show {several[0]}` names them.", "dim"
        )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.version,
        "yes" if row.governed else "no",
        _span(*map(str, row.attempts)),
        _limit(*row.timeout_s),
        SIGNED.get(row.signature, row.signature),
        "package" if row.packaged else near(row.source),
    )


def _limit(least: float | None, most: float | None) -> str:
    if least is None:
        return "none"
    return _span(shown(least), "none" if most is None else shown(most)) + ("" if most is None else " s")


def _span(least: str, most: str) -> str:
    return least if least == most else f"{least}-{most}"


def near(path: str) -> str:
    """Return a path as seen from here, if that is shorter."""
    return min(path, os.path.relpath(path), key=len)


def print_checks(paper: Paper, found: Sequence[Checked]) -> None:
    """Print every fault as file:line:column, which editors and terminals can follow, then a summary."""
    for one in found:
        for fault in one.faults:
            place = f"{fault.file}:{fault.line}:{fault.column}" if fault.line else fault.file
            paper.line(f"{place}: {fault.field}{' ' if fault.field else ''}{fault.message}", "red")
        if one.more_faults:
            paper.line(f"{one.file}: and {one.more_faults} more faults", "red")
        for text in one.warnings:
            paper.line(f"{one.file}: warning: {text.removeprefix(f'{one.file}: ')}", "yellow")
        if one.good:
            count = len(one.policies)
            what = "1 policy" if count == 1 else f"{count} policies"
            paper.line(f"{one.file}: good: {one.name} version {one.version}, {what}", "green")
    if len(found) > 1:
        bad = sum(not one.good for one in found)
        paper.line(
            f"{len(found)} files, {bad} of them cannot be used" if bad else f"{len(found)} files, all good"
        )
