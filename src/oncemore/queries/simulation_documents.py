"""The results of simulations as documents: a comparison of runs, sample runs of a policy, retry storms."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.policy.explain import format_seconds
from oncemore.queries.charts import LineSeries, draw_lines, format_number, render_line_chart
from oncemore.queries.documents import ChartBlock, HeadingBlock, TableBlock, TextBlock
from oncemore.simulate.storm import StormAverage, average_storms, count_arrivals, run_storm
from oncemore.simulate.totals import CURVES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncemore.queries.documents import Block
    from oncemore.queries.what_if import ComparedFigure, SimulationReport
    from oncemore.simulate.assumed import AssumedReport, SampleSpread
    from oncemore.simulate.storm import StormOptions, StormResult, StormStrategy

#: Shown for a figure without a value.
NO_VALUE = "not known"


# Recorded runs under other conditions ---------------------------------------------------------------


def build_comparison_blocks(report: SimulationReport) -> list[Block]:
    """Return a comparison as a document: the figures, the two curves, the runs that differ, the notes."""
    below = f"{report.before_name} and {report.after_name}"
    blocks: list[Block] = [
        HeadingBlock("What-if simulation", 1),
        TextBlock(f"{_count_runs(report.before.runs)}: {below}. {report.changed:,} of them differ."),
        TableBlock(
            ("figure", "before", "after", "difference"),
            tuple(_format_figure(figure) for figure in report.figures),
            (1, 2, 3),
        ),
        build_curve_chart(report),
    ]
    if report.newly_missed:
        names = ", ".join(report.newly_missed[:5])
        more = f" and {len(report.newly_missed) - 5:,} more" if len(report.newly_missed) > 5 else ""
        blocks.append(TextBlock(f"Deadlines that were met before and are missed after: {names}{more}."))
    if report.examples:
        blocks += [HeadingBlock("Runs that differ most"), _build_changes_table(report)]
    return [*blocks, *map(TextBlock, report.notes)]


def _count_runs(count: int) -> str:
    return f"{count:,} recorded {'run' if count == 1 else 'runs'}"


def _format_figure(figure: ComparedFigure) -> tuple[str, str, str, str]:
    unit = f" {figure.unit}" if figure.unit else ""
    before, after = (
        NO_VALUE if value is None else f"{format_value(value)}{unit}"
        for value in (figure.before, figure.after)
    )
    if figure.difference is None:
        return figure.name, before, after, ""
    # A share of nothing has no meaning.
    share = f" ({figure.difference / figure.before:+.1%})" if figure.before else ""
    sign = "+" if figure.difference > 0 else ""
    difference = f"{sign}{format_value(figure.difference)}{unit}{share}" if figure.difference else "none"
    return figure.name, before, after, difference


def format_value(value: float) -> str:
    """Return a figure with at most four significant digits behind large numbers: 1,204.6, 0.00042."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _build_changes_table(report: SimulationReport) -> TableBlock:
    rows = tuple(
        (
            change.run_id,
            change.step,
            f"{change.attempts_before} → {change.attempts_after}",
            f"{format_number(change.delay_before_s)} → {format_number(change.delay_after_s)} s",
            change.state_before
            if change.state_before == change.state_after
            else f"{change.state_before} → {change.state_after}",
            change.deadline,
        )
        for change in report.examples
    )
    return TableBlock(("run", "step", "attempts", "delays", "state", "deadline"), rows)


def build_curve_chart(report: SimulationReport) -> ChartBlock:
    """Return the growing sum of a figure over time, before and after, as a chart."""
    series = [LineSeries(name, points) for name, points in report.curves]
    heading = f"{CURVES[report.curve]}, added up over time"
    svg = render_line_chart(
        heading, f"{report.before.runs:,} runs", series, x_label="time (UTC)", y_label=CURVES[report.curve],
        format_x=format_minute,
    )  # fmt: skip
    return ChartBlock(svg, lambda width: [heading, *draw_lines(series, width, format_x=format_minute)])


def format_minute(at: float) -> str:
    """Return a time in UTC to the minute; the zone of the reader would give other bytes elsewhere."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


# Sample runs without history ------------------------------------------------------------------------


def build_assumed_blocks(report: AssumedReport) -> list[Block]:
    """Return the sample runs of a policy and its worst case as a document."""
    spreads: list[tuple[str, SampleSpread | None, Callable[[float], str], str]] = [
        ("attempts", report.attempts, format_value, f"{report.worst_attempts:,}"),
        ("delays", report.delay_s, format_seconds, format_seconds(report.worst_delay_s)),
        ("duration", report.duration_s, format_seconds, ""),
        ("energy, kWh", report.energy_kwh, format_value, ""),
    ]
    rows = tuple(
        (name, show(spread.mean), show(spread.median), show(spread.high), show(spread.most), worst)
        for name, spread, show, worst in spreads
        if spread is not None
    )
    ends = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in report.ends)
    chance = f"{report.conditions.probability:.4g}"
    blocks: list[Block] = [
        HeadingBlock(f"{report.policy}, version {report.version}: assumed failures", 1),
        TextBlock(
            f"{report.runs:,} sample runs; every attempt fails with a probability of {chance}. "
            f"{report.completed:.1%} of the runs complete ({ends})."
        ),
        TableBlock(("", "mean", "median", "95 % within", "longest", "worst case"), rows, (1, 2, 3, 4, 5)),
    ]
    if report.worst_tuned_s is not None:
        longest = format_seconds(report.worst_tuned_s)
        blocks.append(TextBlock(f"With the largest stretch of tuning, the delays are at most {longest}."))
    if report.missed_deadlines is not None:
        blocks.append(TextBlock(f"{report.missed_deadlines:.1%} of the runs miss their deadline."))
    return blocks


# Storms ---------------------------------------------------------------------------------------------

CALL_PARTS = 60


class StormReport(Value):
    """Storms of several sizes under several strategies; `largest` is the first storm of the largest size."""

    options: StormOptions
    seed: str
    rounds: int
    averages: tuple[StormAverage, ...]
    largest: tuple[StormResult, ...]


def simulate_storms(
    strategies: Sequence[StormStrategy], sizes: Sequence[int], options: StormOptions, seed: str, rounds: int
) -> StormReport:
    """Return the averages of storms: every strategy with every number of clients, `rounds` times."""
    if len({strategy.name for strategy in strategies}) < len(strategies):
        raise UsageError("two strategies have the same name; give each policy once.")
    averages, largest = [], []
    for strategy in strategies:
        for clients in sizes:
            # The same seeds for every strategy: all of them meet the same network.
            results = [
                run_storm(strategy, clients, options, f"{seed}/{n}", _seed_numbers(f"{seed}/{n}/{clients}"))
                for n in range(rounds)
            ]
            averages.append(average_storms(results))
            if clients == sizes[-1]:
                largest.append(results[0])
    return StormReport(options, seed, rounds, tuple(averages), tuple(largest))


def _seed_numbers(seed: str) -> Random:
    # A seeded generator is wanted here: the same seed must give the same storm.
    return Random(seed)  # noqa: S311


def build_storm_blocks(report: StormReport) -> list[Block]:
    """Return storms as a document: the figures of the largest size, and charts of work, time and load."""
    most = max(average.clients for average in report.averages)
    rows = tuple(
        (
            average.strategy,
            f"{average.calls:,.1f}",
            f"{average.failures:,.1f}",
            f"{average.time_s:.3f} s" if not average.open else f"not done: {average.open:,.1f} clients open",
        )
        for average in report.averages
        if average.clients == most
    )
    server = (
        "every client updates the same row"
        if report.options.model == "contention"
        else f"the server works on {report.options.capacity} requests at once"
    )
    return [
        HeadingBlock("Retry storm", 1),
        TextBlock(
            f"{most:,} clients start at once, and {server}. Averages of {report.rounds} storms, seed "
            f"{report.seed}."
        ),
        TableBlock(("strategy", "calls", "rejected", "until all are done"), rows, (1, 2, 3)),
        *build_storm_charts(report),
    ]


def build_storm_charts(report: StormReport) -> list[ChartBlock]:
    """Return the charts of storms: calls and time by the number of clients, and calls over time."""
    below = f"averages of {report.rounds} storms"
    charts = []
    sizes = {average.clients for average in report.averages}
    if len(sizes) > 1:
        for heading, label, field in (
            ("Work: calls until all clients are done", "calls", "calls"),
            ("Time until all clients are done", "seconds", "time_s"),
        ):
            series = _group_series(report.averages, field)
            charts.append(_make_chart(heading, below, series, "clients", label))
    # Without jitter a storm lasts ten times as long; it would leave the other lines no room.
    until = max(result.time_s for result in report.largest if result.strategy != "no jitter")
    series = [
        LineSeries(result.strategy, count_arrivals(result, CALL_PARTS, until)) for result in report.largest
    ]
    heading = f"Calls per second of {max(sizes):,} clients, one storm"
    return [*charts, _make_chart(heading, f"seed {report.seed}", series, "seconds", "calls per second")]


def _group_series(averages: Sequence[StormAverage], field: str) -> list[LineSeries]:
    names = dict.fromkeys(average.strategy for average in averages)
    return [
        LineSeries(name, tuple((float(a.clients), getattr(a, field)) for a in averages if a.strategy == name))
        for name in names
    ]


def _make_chart(
    heading: str, below: str, series: Sequence[LineSeries], x_label: str, y_label: str
) -> ChartBlock:
    svg = render_line_chart(heading, below, series, x_label=x_label, y_label=y_label, ids=f"{y_label[:4]}-")
    return ChartBlock(svg, lambda width: [heading, *draw_lines(series, width), f"over {x_label}"])
