"""Printing of one policy: worst case, delays, values, error classes and origin."""

from __future__ import annotations

import os
from collections.abc import Mapping

from oncemore.policy.explain import format_seconds
from oncemore.queries.charts import format_number
from oncemore.queries.times import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncemore.cli.output import OutputWriter
    from oncemore.queries.policies import FoundInLog
    from oncemore.queries.policy_schedule import DelayRange, WorstCase
    from oncemore.queries.policy_sheet import PolicyField, PolicySheet

MAX_DELAYS = 12
MARGIN = "  "


def print_sheet(out: OutputWriter, sheet: PolicySheet) -> None:
    """Print everything about a policy."""
    provider = f" for provider {sheet.provider}" if sheet.provider else ""
    out.write_line(
        f"{sheet.name}{provider}, version {sheet.version}{', governed' if sheet.governed else ''}", "bold"
    )
    if sheet.description:
        out.write_paragraph(sheet.description)
    for text in sheet.warnings:
        out.write_paragraph(text, "yellow", "warning: ")
    # The cost comes first: it is the question that a reviewer of a policy asks.
    _print_worst(out, sheet.worst)
    if sheet.retries:
        _print_delays(out, sheet)
    _print_fields(out, "Values", sheet.fields)
    _print_classes(out, sheet.classes)
    if sheet.tuning:
        _print_fields(out, "Tuning by carbon, price and deadline", sheet.tuning)
    _print_sections(out, sheet)
    _print_origin(out, sheet)


def print_recorded(out: OutputWriter, found: FoundInLog) -> None:
    """Print a policy from a log, which has its values but not the file with their comments."""
    if out.in_json:
        out.write_json(found)
        return
    out.write_line(f"{found.name}, version {found.version}, as recorded in the log", "bold")
    source = f", named {found.source}" if found.source else ""
    out.write_paragraph(f"digest {found.digest}, recorded {format_time(found.recorded)}{source}", "dim")
    _print_worst(out, found.worst)
    _print_heading(out, "Values")
    out.write_table(
        [("name", "value"), *((name, format_value(value)) for name, value in found.values.items())], MARGIN
    )


def _print_heading(out: OutputWriter, text: str) -> None:
    out.write_line()
    out.write_line(text, "bold")


def _format_duration(value: float) -> str:
    """Return seconds, from two minutes on also in larger units."""
    return f"{format_number(value)} s" + (f" ({format_seconds(value)})" if value >= 120 else "")


def _print_worst(out: OutputWriter, worst: WorstCase) -> None:
    _print_heading(out, "Worst case")
    for text in _describe_worst_case(worst):
        out.write_paragraph(text, "", MARGIN)


def _describe_worst_case(worst: WorstCase) -> Iterator[str]:
    if worst.calls == 1:
        yield "1 attempt: no retry and no delay; the delay values of the file are not used"
    else:
        yield f"{worst.calls} attempts, {_format_duration(worst.delay_s)} of delays"
        # Tuning and Retry-After can lengthen the planned delays, each up to its own limit.
        if worst.tuned_s is not None:
            yield f"{_format_duration(worst.tuned_s)} of delays with tuning at its limit, x {worst.stretch:g}"
        if worst.asked_s > worst.delay_s:
            yield f"{_format_duration(worst.asked_s)} of delays if every Retry-After is at the cap"
    if worst.running_s is not None and worst.together_s is not None:
        yield f"{_format_duration(worst.together_s)} in total, with every attempt at its time limit"
    if worst.total_timeout_s is not None:
        yield f"{_format_duration(worst.total_timeout_s)} in total: the time limit of the whole call"
    elif worst.running_s is None:
        yield "no limit of the total time: neither an attempt nor the whole call has a time limit"


def _print_delays(out: OutputWriter, sheet: PolicySheet) -> None:
    _print_heading(out, "Delays, in seconds")
    is_tuned = sheet.worst.tuned_s is not None
    rows = [("after", "from", "planned", "to", *(("tuned to",) if is_tuned else ()))]
    rows += [_delay_cells(delay, is_tuned) for delay in sheet.delays[:MAX_DELAYS]]
    # Numbers are right-aligned, so that their sizes can be compared.
    out.write_table(rows, MARGIN, right=range(5))
    if len(sheet.delays) > MAX_DELAYS:
        out.write_line(f"{MARGIN}and {len(sheet.delays) - MAX_DELAYS} more")
    out.write_paragraph(f"First delay: {sheet.first_delay}{_describe_jitter(sheet)}.", "dim", MARGIN)


def _describe_jitter(sheet: PolicySheet) -> str:
    spread = next(field.value for field in sheet.fields if field.name == "jitter")
    return "" if spread == "none" else ", with 0 <= u < 1 drawn from the seed and the attempt's number"


def _delay_cells(delay: DelayRange, is_tuned: bool) -> tuple[str, ...]:
    cells = (
        f"{delay.after}",
        format_number(delay.low_s),
        format_number(delay.planned_s),
        format_number(delay.high_s),
    )
    return (*cells, format_number(delay.tuned_s or 0.0)) if is_tuned else cells


def _print_fields(out: OutputWriter, title: str, fields: Sequence[PolicyField]) -> None:
    _print_heading(out, title)
    rows = [("name", "value", "meaning")]
    rows += [
        (field.name, format_value(field.value), f"{field.meaning}{_field_remark(field)}") for field in fields
    ]
    out.write_table(rows, MARGIN)


def _field_remark(field: PolicyField) -> str:
    """Return the spelling and the comment of the file, so that a value can be found there."""
    remarks = [f"{field.spelling_in_file} in the file"] if field.spelling_in_file else []
    remarks += [field.remark] if field.remark else []
    remarks += [] if field.defined_in else ["not in the file"]
    return f" [{'; '.join(remarks)}]" if remarks else ""


def _print_classes(out: OutputWriter, classes: Mapping[str, object]) -> None:
    _print_heading(out, "Errors")
    # Without a list of retryable errors, the kind of a failure decides.
    has_list = bool(classes.get("retryable"))
    retried = "transient and throttled failures"
    never = "errors that no policy may retry" + ("" if has_list else ", conflicts and permanent failures")
    rows = {"retried": _format_names(classes.get("retryable"), retried)}
    rows["never"] = _format_names(classes.get("non_retryable"), never)
    unmatched = "retried" if classes["unmatched"] == "retry" else "not retried"
    rows["all other" if has_list else "unknown"] = f"{unmatched} (unmatched: {classes['unmatched']})"
    if "precedence" in classes:
        rows["in both"] = f"{str(classes['precedence']).removesuffix('_first')} wins"
    for name, text in rows.items():
        out.write_paragraph(text, "", f"{MARGIN}{name:<12}")


def _format_names(names: object, otherwise: str) -> str:
    return ", ".join(map(str, names)) if isinstance(names, (list, tuple)) and names else otherwise


def _print_sections(out: OutputWriter, sheet: PolicySheet) -> None:
    """Print the settings for other parts of the engine, and the other policies of the file."""
    # The sheet has the cooldown apart from the other sections, although it is one for the reader.
    sections = {**sheet.sections, **({"cooldown": sheet.cooldown} if sheet.cooldown else {})}
    if sections:
        _print_heading(out, "Other settings")
        for name, value in sections.items():
            out.write_paragraph(format_value(value), "", f"{MARGIN}{name}: ")
    if sheet.siblings:
        _print_heading(out, f"Other policies of {sheet.profile}, with their attempts")
        siblings = [
            f"{sibling.name} {'1 (no retry)' if sibling.attempts == 1 else sibling.attempts}"
            for sibling in sheet.siblings
        ]
        out.write_paragraph(", ".join(siblings), "", MARGIN)
        out.write_line(
            f"{MARGIN}`oncemore policy show {sheet.profile}/{sheet.siblings[-1].name}` shows one", "dim"
        )
    if sheet.providers:
        _print_heading(out, "Providers with their own values")
        out.write_paragraph(", ".join(sheet.providers) + " (--provider NAME shows them)", "", MARGIN)


def _print_origin(out: OutputWriter, sheet: PolicySheet) -> None:
    _print_heading(out, "Origin")
    if sheet.origin:
        out.write_paragraph(sheet.origin, "", MARGIN)
    rows = [("file", shortest_path(sheet.source))]
    rows += [("extends", ", then ".join(sheet.extends))] if sheet.extends else []
    rows += [(name, format_value(value)) for name, value in sheet.metadata.items()]
    rows += [("signature", sheet.signature), ("sha256", sheet.file_digest), ("digest", sheet.digest)]
    # Not as a table: a wrapped digest or path could not be copied.
    for name, text in rows:
        out.write_line(f"{MARGIN}{name}: {text}")


def shortest_path(path: str) -> str:
    """Return the relative path if it is shorter than the given one."""
    return min(path, os.path.relpath(path), key=len)


def format_value(value: object) -> str:
    """Format a value on one line, with yes, no and none instead of Python's words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_nested(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(format_value(item) for item in value) or "none"
    # A bool is an int too, so it is tested first.
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return format_number(value)
    return "none" if value is None else str(value)


def _format_nested(value: object) -> str:
    return f"({format_value(value)})" if isinstance(value, (Mapping, list, tuple)) else format_value(value)
