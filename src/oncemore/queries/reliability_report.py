"""The figures of a reliability review: runs, retries, errors and deadlines of a period."""

from __future__ import annotations

from collections import Counter

from oncemore._values import Value
from oncemore.queries.recorded_runs import policy_base
from oncemore.queries.report_period import (
    AttemptGroup,
    ReportFigure,
    count_attempts,
    group_attempts,
    list_computed_again,
    name_entries,
)
from oncemore.simulate.totals import add_known
from oncemore.telemetry.alerts import name_causes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from oncemore.queries.report_period import EndedAttempt, ReportPeriod
    from oncemore.simulate.recorded_runs import RecordedRun

EXHAUSTED = "max_attempts_exceeded"
MAX_FAILURES = 50


class PatternRow(Value):
    """The ended operations of one category: a policy, or a step."""

    category: str
    operations: int
    total_attempts: int
    success_rate: float
    avg_attempts: float
    records: tuple[str, ...]


class ErrorRow(Value):
    """The failed attempts of one class of error, and the likely causes."""

    error_class: str
    attempts: int
    exhausted_runs: int
    causes: str
    records: tuple[str, ...]


class FailedRun(Value):
    """A run that failed, is held, or missed its deadline."""

    run_id: str
    step: str
    state: str
    reason: str
    attempts: int
    error_class: str
    ended_at: float


class ReliabilityReport(Value):
    """The figures of a reliability review."""

    since: float
    until: float
    figures: tuple[ReportFigure, ...]
    steps: tuple[PatternRow, ...]
    categories: tuple[PatternRow, ...]
    errors: tuple[ErrorRow, ...]
    failures: tuple[FailedRun, ...]
    failures_more: int
    timeline: tuple[AttemptGroup, ...]


def build_reliability(period: ReportPeriod) -> ReliabilityReport:
    """Return the figures of a reliability review."""
    # Held runs have not ended; they are listed because a person has to do something.
    failures = [run for run in period.runs if run.state == "HARD_FAIL" or _misses_deadline(run)]
    failures += _list_held(period)
    return ReliabilityReport(
        since=period.since,
        until=period.until,
        figures=tuple(_list_reliability_figures(period)),
        steps=analyze_patterns(period.runs, lambda run: run.step),
        categories=analyze_patterns(period.runs, lambda run: policy_base(run.policy) or "no policy"),
        errors=_list_errors(period),
        failures=tuple(map(_describe_failure, failures[:MAX_FAILURES])),
        failures_more=max(0, len(failures) - MAX_FAILURES),
        timeline=group_attempts(period, "period"),
    )


def _list_held(period: ReportPeriod) -> list[RecordedRun]:
    """Return the runs that wait for a person, and whose last attempt ended in the period."""
    last = {one.run.run_id: one.run for one in period.attempts}
    return [run for run in last.values() if run.held_for]


def _misses_deadline(run: RecordedRun) -> bool:
    return run.deadline is not None and (run.state != "COMPLETE" or run.ended_at > run.deadline)


def _describe_failure(run: RecordedRun) -> FailedRun:
    return FailedRun(
        run_id=run.run_id,
        step=run.step,
        state="held" if run.held_for else run.state,
        reason=(run.held_for or run.reason or "deadline missed").replace("_", " "),
        attempts=len(run.attempts),
        error_class=run.error_class,
        ended_at=run.ended_at,
    )


def _list_reliability_figures(period: ReportPeriod) -> Iterator[ReportFigure]:
    runs = period.runs
    completed = [run for run in runs if run.state == "COMPLETE"]
    failed = [run for run in runs if run.state == "HARD_FAIL"]
    with_deadline = [run for run in runs if run.deadline is not None]
    retries = [one for one in period.attempts if one.is_retry]
    durations = sorted(run.ended_at - run.created_at for run in runs)

    def of_runs(name: str, title: str, chosen: Sequence[RecordedRun]) -> ReportFigure:
        return ReportFigure(name, title, len(chosen), "", tuple(f"run {run.run_id}" for run in chosen))

    def share(name: str, title: str, chosen: Sequence[RecordedRun]) -> ReportFigure:
        value = len(chosen) / len(runs) if runs else None
        return ReportFigure(name, title, value, "share", tuple(f"run {run.run_id}" for run in chosen))

    yield of_runs("runs", "ended runs", runs)
    yield of_runs("completed", "completed", completed)
    yield of_runs("failed", "failed", failed)
    yield of_runs("held", "held for a person", _list_held(period))
    yield share("success_rate", "success rate", completed)
    # Retries hide a poor first attempt; this figure shows it.
    at_once = [run for run in completed if len(run.attempts) == 1]
    yield share("first_attempt_rate", "completed at the first attempt", at_once)
    exhausted = [run for run in failed if run.reason == EXHAUSTED]
    yield share("exhaustion_rate", "used up their attempts", exhausted)
    yield count_attempts("attempts", "attempts", period.attempts)
    yield count_attempts("retries", "attempts after the first", retries)
    waits = [one for one in period.attempts if one.attempt.delay_s]
    total = add_known(one.attempt.delay_s for one in waits) or 0.0
    yield ReportFigure("delay_s", "decided delays", total, "s", name_entries(waits))
    yield of_runs("deadlines", "runs with a deadline", with_deadline)
    missed = [run for run in with_deadline if _misses_deadline(run)]
    yield of_runs("missed_deadlines", "missed deadlines", missed)
    ids = tuple(f"run {run.run_id}" for run in runs)
    for name, title, rank in (("median_s", "median duration", 50), ("high_s", "95 % within", 95)):
        value = durations[max(0, -(-rank * len(durations) // 100) - 1)] if durations else None
        yield ReportFigure(name, title, value, "s", ids)
    yield of_runs("computed_again", "computed again after COMPLETE", list_computed_again(period))


def analyze_patterns(
    runs: Sequence[RecordedRun], categorize: Callable[[RecordedRun], str]
) -> tuple[PatternRow, ...]:
    """Return the attempts, success rate and average attempts of ended runs by category (AUDIT-10)."""
    grouped: dict[str, list[RecordedRun]] = {}
    for run in runs:
        grouped.setdefault(categorize(run), []).append(run)
    rows = []
    for category, members in sorted(grouped.items()):
        attempts = sum(len(run.attempts) for run in members)
        successes = sum(run.state == "COMPLETE" for run in members)
        rows.append(
            PatternRow(
                category=category,
                operations=len(members),
                total_attempts=attempts,
                success_rate=successes / len(members),
                avg_attempts=attempts / len(members),
                records=tuple(f"run {run.run_id}" for run in members),
            )
        )
    return tuple(rows)


def _list_errors(period: ReportPeriod) -> tuple[ErrorRow, ...]:
    failed: dict[str, list[EndedAttempt]] = {}
    for one in period.attempts:
        if one.attempt.situation is not None:
            failed.setdefault(one.attempt.situation.failure.code, []).append(one)
    # By the last error of the run, which is the one that used up its attempts.
    exhausted = Counter(run.error_class for run in period.runs if run.reason == EXHAUSTED)
    # The most frequent class first; of equally frequent ones the first by name.
    ordered = sorted(failed.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(
        ErrorRow(code, len(members), exhausted[code], name_causes(code), name_entries(members))
        for code, members in ordered
    )
