"""`oncemore report`: figures of a period for reliability and sustainability reviews."""

from __future__ import annotations

import click

from oncemore.cli.commands import (
    LazyGroup,
    combine_options,
    documented_command,
    json_option,
    store_option,
    value_option,
)
from oncemore.cli.document_output import file_options, write_document
from oncemore.cli.output import OutputWriter, ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.log.store import Store
    from oncemore.queries.report_period import ReportFigure, ReportPeriod

EXAMPLES = """
oncemore report reliability --since 7d
oncemore report reliability --since 2026-11-01 --until 2026-12-01 --html november.html
oncemore report sustainability --since 30d --baseline-since 60d --baseline-until 30d
oncemore report carbon --since 1d
oncemore report alerts --watch --notify
"""


@click.group(
    "report",
    cls=LazyGroup,
    modules={
        "reliability": "reports:reliability",
        "sustainability": "reports:sustainability",
        "carbon": "carbon:carbon",
        "alerts": "alerts:alerts",
    },
    examples=EXAMPLES,
)
def report() -> None:
    """Write a review of a period; list its energy, carbon and alerts."""


period_options = combine_options(
    value_option("--since", "TIME", "Begin of the period (7d).", default="7d"),
    value_option("--until", "TIME", "End of the period; default: now."),
    value_option("--baseline-since", "TIME", "Begin of a period to compare with."),
    value_option("--baseline-until", "TIME", "End of that period; default: --since."),
    value_option("--figure", "NAME", "List the records behind one figure instead."),
    combine_options(file_options, store_option, json_option),
)


@documented_command("reliability", "oncemore report reliability --since 7d --html week.html")
@period_options
def reliability(**options: Any) -> int:
    """Review runs, retries, errors and deadlines of a period."""
    from oncemore.queries.reliability_report import build_reliability
    from oncemore.queries.report_documents import build_reliability_blocks

    return _write_report("reliability", options, build_reliability, build_reliability_blocks)


@documented_command("sustainability", "oncemore report sustainability --since 7d --html week.html")
@period_options
def sustainability(**options: Any) -> int:
    """Review energy, carbon and cost of a period.

    And the share of the retries in them.
    """
    from oncemore.queries.report_documents import build_sustainability_blocks
    from oncemore.queries.sustainability_report import build_sustainability

    return _write_report("sustainability", options, build_sustainability, build_sustainability_blocks)


def _write_report(kind: str, options: dict[str, Any], build: Any, build_blocks: Any) -> int:
    from oncemore.queries.stores import open_read_only
    from oncemore.queries.sustainability_report import compare_periods

    out = OutputWriter(in_json=options["in_json"])
    with (
        open_read_only(options["store"]) as store,
        ProgressLine("reading runs", quiet=out.in_json) as progress,
    ):
        period, baseline = _load_periods(store, options, progress)
    # Both reports have `figures`, whose records --figure lists.
    result = build(period)
    if options["figure"]:
        return _list_records(out, result.figures, options["figure"])
    # The comparison is about energy and attempts in both kinds of report.
    comparison = None if baseline is None else compare_periods(baseline, period)
    blocks = build_blocks(result, comparison, _repeat_command(kind, period))
    value = {**result._asdict(), "baseline": comparison}
    write_document(out, value, blocks, {name: options[name] for name in ("html", "markdown", "svg")})
    return 0


def _load_periods(
    store: Store, options: dict[str, Any], progress: Any
) -> tuple[ReportPeriod, ReportPeriod | None]:
    from oncemore.queries.report_period import load_period
    from oncemore.queries.times import parse_instant

    # The time of the store, not of this machine: ages in options count back from it.
    now = store.now()

    def parse(name: str, default: float) -> float:
        return default if options[name] is None else parse_instant(options[name], now)

    since, until = parse("since", now), parse("until", now)
    period = load_period(store, since, until, progress)
    # Without a begin there is no baseline, and an end alone is a mistake.
    if options["baseline_since"] is None:
        if options["baseline_until"] is not None:
            raise click.UsageError("--baseline-until needs --baseline-since.", click.get_current_context())
        return period, None
    # By default the baseline is the time up to the period.
    baseline_until = parse("baseline_until", since)
    return period, load_period(store, parse("baseline_since", now), baseline_until, progress)


def _repeat_command(kind: str, period: ReportPeriod) -> str:
    # Absolute times: the same command gives the same figures tomorrow.
    return f"oncemore report {kind} --since {period.since:.3f} --until {period.until:.3f}"


def _list_records(out: OutputWriter, figures: tuple[ReportFigure, ...], name: str) -> int:
    from oncemore.queries import suggest_names

    # The same figures as in the report, so that both always agree.
    known = {figure.name: figure for figure in figures}
    if name not in known:
        hint = suggest_names(name, known)
        raise click.UsageError(
            f"There is no figure {name!r}{hint}; the figures are {', '.join(known)}.",
            click.get_current_context(),
        )
    if out.in_json:
        out.write_json(known[name])
        return 0
    # One record per line, as input for other programs.
    for record in known[name].records:
        out.write_line(record)
    return 0
