"""Reliability and sustainability reports as documents: figures with their records, tables and charts."""

from __future__ import annotations

from oncemore.policy.explain import format_seconds
from oncemore.queries.charts import BarRow, draw_bars, format_number, render_bar_chart
from oncemore.queries.documents import ChartBlock, HeadingBlock, TableBlock, TextBlock
from oncemore.queries.simulation_documents import NO_VALUE, format_minute, format_value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.queries.documents import Block
    from oncemore.queries.reliability_report import PatternRow, ReliabilityReport
    from oncemore.queries.report_period import AttemptGroup, BudgetUse, ReportFigure
    from oncemore.queries.sustainability_report import PeriodComparison, SustainabilityReport

#: Rows of a table by key; the JSON has all of them.
MAX_ROWS = 25
#: Records that are named beside a figure; `--figure` lists all of them.
MAX_RECORDS = 1


def build_reliability_blocks(
    report: ReliabilityReport, comparison: PeriodComparison | None, command: str
) -> list[Block]:
    """Return a reliability report as a document."""
    blocks: list[Block] = [
        HeadingBlock("Reliability report", 1),
        TextBlock(_describe_period(report.since, report.until)),
        *_build_figures(report.figures, command),
        build_attempt_chart(report.timeline, "Attempts", "attempts"),
        HeadingBlock("By step"),
        _build_patterns(report.steps, "step"),
        HeadingBlock("By policy"),
        _build_patterns(report.categories, "policy"),
    ]
    if report.errors:
        rows = tuple(
            (error.error_class, f"{error.attempts:,}", f"{error.exhausted_runs:,}", error.causes,
             _show_records(error.records))
            for error in report.errors
        )  # fmt: skip
        head = ("error class", "failed attempts", "exhausted runs", "likely", "records")
        blocks += [HeadingBlock("Errors"), TableBlock(head, rows, (1, 2))]
    if report.failures:
        failures = tuple(
            (failure.run_id, failure.step, failure.state, failure.reason, f"{failure.attempts}",
             failure.error_class)
            for failure in report.failures
        )  # fmt: skip
        names = ("run", "step", "state", "reason", "attempts", "last error")
        blocks += [HeadingBlock("Failed, held and late runs"), TableBlock(names, failures, (4,))]
        more = f" {report.failures_more:,} more are not listed." if report.failures_more else ""
        blocks.append(TextBlock(f"oncemore explain RUN explains each of them.{more}"))
    return [*blocks, *_build_comparison(comparison)]


def build_sustainability_blocks(
    report: SustainabilityReport, comparison: PeriodComparison | None, command: str
) -> list[Block]:
    """Return a sustainability report as a document."""
    blocks: list[Block] = [
        HeadingBlock("Sustainability report", 1),
        TextBlock(_describe_period(report.since, report.until)),
        *_build_figures(report.figures, command),
        build_attempt_chart(report.timeline, "Energy", "kWh"),
    ]
    for by, title in (("pipeline", "By pipeline"), ("stage", "By stage"), ("key", "By key"),
                      ("period", "Over time")):  # fmt: skip
        blocks += [HeadingBlock(title), *_build_groups(report.groups[by], by)]
    blocks += _build_budgets(report.budgets)
    methods = ", ".join(f"{name} {count:,}" for name, count in report.methods) or "none"
    blocks += [HeadingBlock("How the energy was measured"), TextBlock(f"Attempts by method: {methods}.")]
    verdict = (
        f"{len(report.computed_again):,} runs computed a key again that was COMPLETE: "
        f"{', '.join(report.computed_again[:5])}."
        if report.computed_again
        else "No double spikes: no key was computed again after it was COMPLETE."
    )
    return [*blocks, TextBlock(verdict), *_build_comparison(comparison)]


def _build_budgets(budgets: Sequence[BudgetUse]) -> list[Block]:
    """Return the carbon budgets, each with its use; nothing if no policy has one."""
    if not budgets:
        return []
    rows = tuple(
        (each.name, f"{each.unit} of {format_minute(each.begins)[:10]}", format_value(each.used_kg),
         format_value(each.cap_kg), f"{each.used_kg / each.cap_kg:.1%}", f"entry {each.seq}")
        for each in budgets
    )  # fmt: skip
    head = ("policy", "period", "kg CO2e", "cap", "used", "record")
    note = TextBlock("The use of a budget is that of its whole period, up to the end of this report.")
    return [HeadingBlock("Carbon budgets"), TableBlock(head, rows, (2, 3, 4)), note]


def _describe_period(since: float, until: float) -> str:
    return f"{format_minute(since)} to {format_minute(until)} UTC. Times and attempts by their end."


def _build_figures(figures: Sequence[ReportFigure], command: str) -> list[Block]:
    rows = tuple(
        (figure.title, show_figure(figure), figure.name, _show_records(figure.records)) for figure in figures
    )
    return [
        TableBlock(("figure", "value", "name", "records"), rows, (1,)),
        TextBlock("The records behind a figure are listed by its name:"),
        TextBlock(f"{command} --figure NAME", is_code=True),
    ]


def show_figure(figure: ReportFigure) -> str:
    """Return the value of a figure with its unit."""
    if figure.value is None:
        return NO_VALUE
    if figure.unit == "share":
        return f"{figure.value:.1%}"
    if figure.unit == "s":
        return format_seconds(figure.value)
    return f"{format_value(figure.value)} {figure.unit}".rstrip()


def _show_records(records: Sequence[str]) -> str:
    if not records:
        return "none"
    more = len(records) - MAX_RECORDS
    return ", ".join(records[:MAX_RECORDS]) + (f" and {more:,} more" if more > 0 else "")


def _build_patterns(rows: Sequence[PatternRow], title: str) -> TableBlock:
    cells = tuple(
        (row.category, f"{row.operations:,}", f"{row.total_attempts:,}", f"{row.success_rate:.2f}",
         f"{row.avg_attempts:.2f}")
        for row in rows
    )  # fmt: skip
    return TableBlock(
        (title, "operations", "total_attempts", "success_rate", "avg_attempts"), cells, (1, 2, 3, 4)
    )


def _build_groups(groups: Sequence[AttemptGroup], by: str) -> list[Block]:
    # By energy where it is known, so that the largest consumers come first; time stays in order.
    ordered = list(groups) if by == "period" else sorted(
        groups, key=lambda group: (-(group.energy_kwh or 0.0), -group.attempts, group.name)
    )  # fmt: skip
    rows = tuple(
        (group.name, f"{group.attempts:,}", f"{group.retries:,}", _show(group.energy_kwh),
         _show(group.retry_kwh), _show(group.carbon_kg), _show(group.cost_usd),
         "" if group.retry_share is None else f"{group.retry_share:.1%}")
        for group in ordered[:MAX_ROWS]
    )  # fmt: skip
    head = (by, "attempts", "retries", "kWh", "of retries", "kg CO2e", "USD", "retry share")
    blocks: list[Block] = [TableBlock(head, rows, (1, 2, 3, 4, 5, 6, 7))]
    if len(groups) > MAX_ROWS:
        blocks.append(TextBlock(f"{len(groups) - MAX_ROWS:,} more are in the output of --json."))
    return blocks


def _show(value: float | None) -> str:
    return NO_VALUE if value is None else format_value(value)


def build_attempt_chart(groups: Sequence[AttemptGroup], heading: str, unit: str) -> ChartBlock:
    """Return bars over time: first attempts and retries, in attempts or in kWh."""
    rows = [
        BarRow(
            group.name,
            (float(group.attempts - group.retries), float(group.retries))
            if unit == "attempts"
            else ((group.energy_kwh or 0.0) - (group.retry_kwh or 0.0), group.retry_kwh or 0.0),
        )
        for group in groups
    ]
    names = ("first attempts", "retries")
    svg = render_bar_chart(f"{heading} over time", "by the end of the attempt, UTC", names, rows, unit=unit,
                           ids=f"{heading.lower()}-")  # fmt: skip
    return ChartBlock(svg, lambda width: [f"{heading} over time", *draw_bars(names, rows, width, unit=unit)])


def _build_comparison(comparison: PeriodComparison | None) -> list[Block]:
    if comparison is None:
        return []
    rows = tuple(
        (title, _show(before), _show(after), _show_change(before, after))
        for _, title, before, after in comparison.rows
    )
    since, until = format_minute(comparison.baseline_since), format_minute(comparison.baseline_until)
    return [
        HeadingBlock("Compared with the baseline"),
        TextBlock(f"Baseline: {since} to {until} UTC."),
        TableBlock(("figure", "baseline", "this period", "change"), rows, (1, 2, 3)),
    ]


def _show_change(before: float | None, after: float | None) -> str:
    if before is None or after is None or before == after:
        return ""
    share = f" ({(after - before) / before:+.1%})" if before else ""
    return f"{'+' if after > before else ''}{format_number(after - before)}{share}"
