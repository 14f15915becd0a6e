"""Figures of a period for reliability and sustainability reviews, each with the records behind it.

An attempt belongs to the period in which it ended, a run to the one in which it ended. Every figure keeps the
numbers of the log entries that it was computed from, so that a reader can check it with `oncemore report …
--figure NAME`. The retry share is that of all attempts after the first of their run, and of attempts whose
result was discarded.
"""

from __future__ import annotations

from datetime import UTC, datetime

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.log.store import HeadQuery
from oncemore.queries.entries import load_cipher
from oncemore.queries.recorded_runs import RecordedRunFilter, load_recorded_runs
from oncemore.simulate.totals import add_known
from oncemore.steps.history import fold_entries
from oncemore.telemetry.autonomy_rules import end_of_period

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from oncemore.log.store import Store
    from oncemore.queries.recorded_runs import Progress
    from oncemore.simulate.recorded_runs import RecordedAttempt, RecordedRun

#: Groups of a sustainability report.
GROUPS = ("pipeline", "stage", "key", "period")
MAX_BUCKETS = 48
#: Far more policies with a carbon budget than a store has.
MAX_BUDGETS = 1000
_BUCKET_SECONDS = (60.0, 300.0, 900.0, 3600.0, 6 * 3600.0, 86_400.0, 7 * 86_400.0, 28 * 86_400.0)


class EndedAttempt(Value):
    """One attempt that ended in the period.

    number    its number within its run, from 1
    is_retry  whether only retrying has caused it
    """

    run: RecordedRun
    attempt: RecordedAttempt
    number: int
    is_retry: bool


class BudgetUse(Value):
    """The use of one carbon budget in one of its own periods.

    name     the profile of the policy that has the budget
    begins   the start of the day, week, month or year that the budget is of
    used_kg  carbon of the attempts that have ended under the budget, at the last entry before `until`
    cap_kg   the cap of the last decision until then
    seq      the entry that `used_kg` is from
    """

    name: str
    unit: str
    begins: float
    used_kg: float
    cap_kg: float
    seq: int


class ReportPeriod(Value):
    """The attempts and the runs that ended between two times, `until` excluded."""

    since: float
    until: float
    attempts: tuple[EndedAttempt, ...]
    runs: tuple[RecordedRun, ...]
    budgets: tuple[BudgetUse, ...] = ()


class ReportFigure(Value):
    """One figure, with the log entries or the ids of the runs that it was computed from.

    value  None if none of the records has one
    """

    name: str
    title: str
    value: float | None
    unit: str
    records: tuple[str, ...]


class AttemptGroup(Value):
    """The attempts of one pipeline, stage, key or part of the period, with their energy and retry share.

    retry_share  the part of the energy that retries caused, 0 to 1; None without energy
    unmeasured   attempts without a value for energy
    """

    name: str
    attempts: int
    retries: int
    energy_kwh: float | None
    retry_kwh: float | None
    carbon_kg: float | None
    cost_usd: float | None
    retry_share: float | None
    unmeasured: int
    records: tuple[str, ...]


def load_period(
    store: Store, since: float, until: float, progress: Progress = lambda done, of: None
) -> ReportPeriod:
    """Return the attempts and runs of a log that ended between two times."""
    if not since < until:
        raise UsageError("the period ends before it begins; give the earlier time to --since.")
    runs = load_recorded_runs(store, RecordedRunFilter(since, until), progress)
    attempts = [
        EndedAttempt(run, attempt, number, is_retry=number > 1 or attempt.discarded)
        for run in runs
        for number, attempt in enumerate(run.attempts, 1)
        if since <= attempt.ended < until
    ]
    # Open runs have attempts in the period, but no outcome yet.
    ended = [run for run in runs if not run.open and since <= run.ended_at < until]
    return ReportPeriod(since, until, tuple(attempts), tuple(ended), load_budgets(store, since, until))


def load_budgets(store: Store, since: float, until: float) -> tuple[BudgetUse, ...]:
    """Return the use of every carbon budget in each of its periods that overlaps with a time window."""
    uses: dict[tuple[str, float], BudgetUse] = {}
    for head in list(store.list_heads(HeadQuery("autonomy", limit=MAX_BUDGETS))):
        entries = list(store.read_entries(head.entity))
        rules: dict[str, Any] = {}
        try:
            states = list(fold_entries(entries, load_cipher()))
        except UsageError:  # encrypted, and the key is missing: the cap is not known
            continue
        for entry, (header, record, body) in zip(entries, states, strict=True):
            # Only decisions have the rules; those of an edited policy count from its first decision on.
            rules = body.get("proof", {}).get("thresholds", rules)
            if header.at >= until or not rules.get("cap_kg"):
                continue
            if end_of_period(rules["period"], record.period_start) > since:
                uses[record.name, record.period_start] = BudgetUse(
                    record.name, rules["period"], record.period_start, record.spent_kg, rules["cap_kg"],
                    entry.seq,
                )  # fmt: skip
    return tuple(uses[key] for key in sorted(uses))


def list_computed_again(period: ReportPeriod) -> list[RecordedRun]:
    """Return the runs that computed a key again after it was COMPLETE."""
    return list({one.run.run_id: one.run for one in period.attempts if one.run.repeated}.values())


def count_attempts(name: str, title: str, chosen: Sequence[EndedAttempt]) -> ReportFigure:
    """Return the number of attempts as a figure."""
    return ReportFigure(name, title, len(chosen), "", name_entries(chosen))


def name_entries(attempts: Sequence[EndedAttempt]) -> tuple[str, ...]:
    """Return the log entries of attempts, as figures name them."""
    return tuple(f"entry {one.attempt.seq}" for one in attempts)


def group_attempts(period: ReportPeriod, by: str) -> tuple[AttemptGroup, ...]:
    """Return the attempts of a period by pipeline, stage, key, or part of the period, ordered by name."""
    length = choose_bucket(period.since, period.until)
    names: dict[str, Callable[[EndedAttempt], str]] = {
        "pipeline": lambda one: one.run.pipeline,
        "stage": lambda one: one.run.step,
        "key": lambda one: f"{one.run.step} {one.run.key[:12]}",
        "period": lambda one: format_bucket(one.attempt.ended // length * length),
    }
    grouped: dict[str, list[EndedAttempt]] = {}
    for one in period.attempts:
        grouped.setdefault(names[by](one), []).append(one)
    return tuple(_sum_group(name, members) for name, members in sorted(grouped.items()))


def _sum_group(name: str, members: Sequence[EndedAttempt]) -> AttemptGroup:
    # 0 and not unknown, if there are no retries.
    retries = [one for one in members if one.is_retry]
    energy = add_known(one.attempt.values.energy_kwh for one in members)
    retry_energy = add_known(one.attempt.values.energy_kwh for one in retries)
    return AttemptGroup(
        name=name,
        attempts=len(members),
        retries=len(retries),
        energy_kwh=energy,
        retry_kwh=retry_energy if retries or energy is None else 0.0,
        carbon_kg=add_known(one.attempt.values.carbon_kg for one in members),
        cost_usd=add_known(one.attempt.values.cost_usd for one in members),
        retry_share=(retry_energy or 0.0) / energy if energy else None,
        unmeasured=sum(one.attempt.values.energy_kwh is None for one in members),
        records=name_entries(members),
    )


def choose_bucket(since: float, until: float) -> float:
    """Return the length of the parts of a period, in seconds: a round one that gives at most 48 parts."""
    span = until - since
    return next((s for s in _BUCKET_SECONDS if span / s <= MAX_BUCKETS), _BUCKET_SECONDS[-1])


def format_bucket(at: float) -> str:
    """Return the begin of a part of the period in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%MZ")
