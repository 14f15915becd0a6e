"""Printing of the policy list, of errors in policy files and of differences between two policies."""

from __future__ import annotations

import re

from oncemore.cli.policy_sheet import format_value, shortest_path
from oncemore.policy.explain import format_seconds
from oncemore.queries.charts import format_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import OutputWriter
    from oncemore.queries.policies import PolicyCheck
    from oncemore.queries.policy_catalogue import ProfileRow
    from oncemore.queries.policy_compare import ComparedAttempt, ComparedRun, PolicyDifference
    from oncemore.queries.policy_schedule import DelayRange

COLUMN_HEADS = ("name", "version", "governed", "attempts", "timeout", "signed", "source")
SIGNATURE_WORDS = {"packaged, digest verified": "by digest", "unsigned": "no"}
_KEY_IDS = re.compile(r" \(SHA256:[^)]*\)")


def print_profiles(out: OutputWriter, rows: Sequence[ProfileRow]) -> None:
    """Print one line per profile; profiles that cannot be used come last, with their fault."""
    good = [row for row in rows if not row.fault]
    out.write_table([COLUMN_HEADS, *(_profile_cells(row) for row in good)], right=(3,))
    # A profile that cannot be loaded must not hide the other ones.
    for row in rows:
        if row.fault:
            out.write_paragraph(f"cannot be used: {row.fault}", "red", f"{row.name}  ")
    for row in good:
        if row.overdue:
            out.write_paragraph(f"overdue: {row.overdue}", "yellow", f"{row.name}  ")
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
        _format_signature(row.signature),
        "package" if row.packaged else shortest_path(row.source),
    )


def _format_signature(signature: str) -> str:
    """Return the state of a signature for a table: the signers without their keys, or that it is refused."""
    if signature in SIGNATURE_WORDS:
        return SIGNATURE_WORDS[signature]
    # `oncemore policy verify` has the reason and the keys.
    return "refused" if signature.startswith("refused") else _KEY_IDS.sub("", signature)


def _format_timeout(low: float | None, high: float | None) -> str:
    if low is None:
        return "none"
    # A policy without a limit has the highest one, so "30-none" has no unit at its end.
    return _format_range(format_number(low), "none" if high is None else format_number(high)) + (
        "" if high is None else " s"
    )


def _format_range(low: str, high: str) -> str:
    return low if low == high else f"{low}-{high}"


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
            compared = f"; compared with {check.against}" if check.against else ""
            text = f"{check.name} version {check.version}, {policies}{compared}"
            out.write_line(f"{check.file}: valid: {text}", "green")
    if len(checks) > 1:
        bad = sum(not check.good for check in checks)
        out.write_line(f"{len(checks)} files, {bad} not valid" if bad else f"{len(checks)} files, all valid")


MARGIN = "  "
MAX_DELAYS = 12


def print_difference(out: OutputWriter, difference: PolicyDifference) -> None:
    """Print the fields, delays and decisions that differ."""
    # Policies with different fields can still decide alike, for example if only a description differs.
    if difference.same:
        out.write_line(f"{difference.a} and {difference.b} make the same decisions.", "green")
    if difference.fields:
        _print_fields(out, difference)
    if not difference.same:
        _print_schedule(out, difference)
        _print_decisions(out, difference)


def _print_fields(out: OutputWriter, difference: PolicyDifference) -> None:
    """Print single values in a table, and below it the items that only one of two lists has."""
    out.write_line("Fields", "bold")
    lists = [field for field in difference.fields if isinstance(field.a or field.b, list)]
    rows = [
        (field.field, format_value(field.a), format_value(field.b))
        for field in difference.fields
        if field not in lists
    ]
    if rows:
        out.write_table([("field", difference.a, difference.b), *rows], MARGIN)
    # Error lists are long and mostly equal, so only their differences are readable.
    for field in lists:
        a, b = (list(side) if isinstance(side, list) else [] for side in (field.a, field.b))
        out.write_line(
            f"{MARGIN}{field.field}" + (f" ({len(set(a) & set(b))} in both)" if set(a) & set(b) else "")
        )
        for name, items, other_items in ((difference.a, a, b), (difference.b, b, a)):
            only = [item for item in items if item not in other_items] or ["nothing more"]
            out.write_paragraph(format_value(only), "", f"{MARGIN * 2}{name}: ")


def _print_schedule(out: OutputWriter, difference: PolicyDifference) -> None:
    """Print the delays of both policies side by side: lowest, planned and highest, in seconds."""
    out.write_line()
    if all(pair.a == pair.b for pair in difference.schedule):
        out.write_line("Delays: no difference")
        return
    out.write_line("Delays in seconds: lowest, planned, highest", "bold")
    rows = [("after", difference.a, difference.b, "")]
    rows += [
        (f"{pair.after}", _format_delay(pair.a), _format_delay(pair.b), "" if pair.a != pair.b else "same")
        for pair in difference.schedule[:MAX_DELAYS]
    ]
    totals = [
        f"{format_seconds(worst.delay_s)} for {worst.calls} calls"
        for worst in (difference.worst_a, difference.worst_b)
    ]
    out.write_table([*rows, ("worst", *totals, "")], MARGIN)
    if len(difference.schedule) > MAX_DELAYS:
        out.write_line(f"{MARGIN}({len(difference.schedule) - MAX_DELAYS} more delays are not shown)")


def _format_delay(delay: DelayRange | None) -> str:
    # The policy with fewer attempts has no delay in the last rows.
    if delay is None:
        return "no further attempt"
    return f"{format_number(delay.low_s)}, {format_number(delay.planned_s)}, {format_number(delay.high_s)}"


def _print_decisions(out: OutputWriter, difference: PolicyDifference) -> None:
    """Print the example situations in which the policies decide differently about a repeated failure."""
    out.write_line()
    different = [run for run in difference.courses if run.parts_at is not None]
    if not different:
        out.write_line(f"Decisions: the same in all {len(difference.courses)} example situations")
        return
    out.write_line(
        f"Decisions: different in {len(different)} of {len(difference.courses)} example situations", "bold"
    )
    width = max(len(difference.a), len(difference.b))
    for names, run in _group_examples(different):
        out.write_paragraph("; ".join(names), "", MARGIN)
        out.write_paragraph(_describe_decisions(run.a), "", f"{MARGIN * 2}{difference.a.ljust(width)}  ")
        out.write_paragraph(_describe_decisions(run.b), "", f"{MARGIN * 2}{difference.b.ljust(width)}  ")
    same = [run.example for run in difference.courses if run.parts_at is None]
    if same:
        out.write_paragraph("; ".join(same), "dim", f"{MARGIN}same decisions: ")


def _group_examples(runs: Sequence[ComparedRun]) -> list[tuple[list[str], ComparedRun]]:
    """Group the situations with equal decisions of both policies, so that each pair is printed once."""
    groups: dict[tuple[str, str], tuple[list[str], ComparedRun]] = {}
    for run in runs:
        decisions = _describe_decisions(run.a), _describe_decisions(run.b)
        examples, _ = groups.setdefault(decisions, ([], run))
        examples.append(run.example)
    return list(groups.values())


def _describe_decisions(attempts: Sequence[ComparedAttempt]) -> str:
    waits = [format_number(attempt.delay_s) for attempt in attempts if attempt.action == "retry"]
    last = attempts[-1]
    # The comparison stops after a number of attempts; a policy may retry beyond that.
    end = "and so on" if last.action == "retry" else f"{last.action} ({last.reason})"
    return f"waits {', '.join(waits)} s, then {end}" if waits else end
