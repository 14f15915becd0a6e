"""Compare recorded runs with the same runs under another policy, other signals, or with and without tuning.

    before   the runs as recorded; or under earlier policies; or, to compare tuning, without it
    after    the runs under the given policy and signals; or under their policies with tuning

The comparison holds no time of day and no path, so that the same log and options always give the same bytes.
"""

from __future__ import annotations

import math
from pathlib import Path

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.policy.tuning import Tuning
from oncemore.queries.recorded_runs import build_recorded_world, policy_base
from oncemore.simulate.recorded_runs import SignalTimeline, SimulatedWorld
from oncemore.simulate.totals import build_curve, sum_runs
from oncemore.simulate.what_if import WhatIf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from oncemore.policy.policy import Policy
    from oncemore.simulate.recorded_runs import RecordedRun
    from oncemore.simulate.totals import SimulationTotals
    from oncemore.simulate.what_if import Outcomes, PolicyChoice, SimulatedRun

MAX_CHANGED_RUNS = 20
#: The figures of a comparison: field of the totals, name, unit.
FIGURES = (
    ("runs", "runs", ""),
    ("completed", "completed", ""),
    ("failed", "failed", ""),
    ("held", "held for a person", ""),
    ("attempts", "attempts", ""),
    ("delay_s", "delays", "s"),
    ("duration_s", "duration", "s"),
    ("energy_kwh", "energy", "kWh"),
    ("carbon_kg", "carbon", "kg CO2e"),
    ("cost_usd", "cost", "USD"),
    ("repeated_attempts", "duplicate work: repeated attempts", ""),
    ("repeated_kwh", "duplicate work: their energy", "kWh"),
    ("computed_again", "duplicate work: computed again after COMPLETE", ""),
    ("missed_deadlines", "missed deadlines", ""),
)


class SimulationOptions(Value):
    """What differs after: other policies, tuning on or off, other signals.

    policies  the new policy by the name of the recorded one; under the empty name, for all other runs
    earlier   the policies of the side before, in the same way; without them, the recorded ones
    tuning    "" as the policies say, "on", "off", or "compare": off before and on after
    both      whether the signals hold before as well
    """

    policies: Mapping[str, Policy] = {}
    earlier: Mapping[str, Policy] = {}
    tuning: str = ""
    world: SimulatedWorld = SimulatedWorld()
    both: bool = False
    outcomes: Outcomes = "time"
    curve: str = ""


class ComparedFigure(Value):
    """One figure before and after; None if none of the attempts has a value."""

    field: str
    name: str
    unit: str
    before: float | None
    after: float | None
    difference: float | None


class ChangedRun(Value):
    """A run that differs: its attempts, delays, state and missed deadline before and after."""

    run_id: str
    step: str
    attempts_before: int
    attempts_after: int
    delay_before_s: float
    delay_after_s: float
    state_before: str
    state_after: str
    deadline: str


class SimulationReport(Value):
    """The comparison of the same runs before and after.

    curves         the growing sum of one figure over time: name of the side, points
    newly_missed   ids of runs that met their deadline before, and miss it after
    changed        how many runs differ; `examples` are the first of them
    notes          what the comparison assumes and what it lacks
    """

    before_name: str
    after_name: str
    figures: tuple[ComparedFigure, ...]
    before: SimulationTotals
    after: SimulationTotals
    curve: str
    curves: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    newly_missed: tuple[str, ...]
    changed: int
    examples: tuple[ChangedRun, ...]
    notes: tuple[str, ...]


def compare_runs(runs: Sequence[RecordedRun], options: SimulationOptions) -> SimulationReport:
    """Return the comparison of recorded runs under the given options."""
    if not runs:
        raise UsageError("no recorded run matches; widen --since and --until, or drop a filter.")
    recorded, is_comparison = build_recorded_world(runs), options.tuning == "compare"
    before_world = options.world if options.both or is_comparison else SimulatedWorld()
    choose_before = _make_choice(options.earlier, "off" if is_comparison else "")
    choose_after = _make_choice(options.policies, "on" if is_comparison else options.tuning)
    before_side = WhatIf(choose_before, before_world, recorded, options.outcomes)
    after_side = WhatIf(choose_after, options.world, recorded, options.outcomes)
    before = [before_side.simulate_run(run) for run in runs]
    after = [after_side.simulate_run(run) for run in runs]
    return _build_report(before, after, options)


def _build_report(
    before: list[SimulatedRun], after: list[SimulatedRun], options: SimulationOptions
) -> SimulationReport:
    # Both sides are computed by the same function, so that rounding cannot cause a difference.
    sums = sum_runs(before), sum_runs(after)
    pairs = list(zip(before, after, strict=True))
    changed = [pair for pair in pairs if _is_changed(*pair)]
    # The largest difference first; the id decides between equal ones, so that the order never changes.
    changed.sort(key=lambda pair: (-abs(_delay_sum(pair[1]) - _delay_sum(pair[0])), pair[0].run.run_id))
    curve = options.curve or (
        "carbon" if sums[1].carbon_kg else "energy" if sums[1].energy_kwh else "attempts"
    )
    begins = [attempt.began for one in (*before, *after) for attempt in one.attempts]
    ends = [attempt.ended for one in (*before, *after) for attempt in one.attempts]
    names = _name_sides(options)
    return SimulationReport(
        before_name=names[0],
        after_name=names[1],
        figures=tuple(compare_figures(*sums)),
        before=sums[0],
        after=sums[1],
        curve=curve,
        curves=tuple(
            (name, build_curve(side, curve, min(begins), max(ends)))
            for name, side in zip(names, (before, after), strict=True)
        ),
        newly_missed=tuple(a.run.run_id for b, a in pairs if a.misses_deadline and not b.misses_deadline),
        changed=len(changed),
        examples=tuple(_describe_change(*pair) for pair in changed[:MAX_CHANGED_RUNS]),
        notes=tuple(_list_notes(sums, options)),
    )


def _make_choice(policies: Mapping[str, Policy], tuning: str) -> PolicyChoice | None:
    """Return the function that chooses the policy of a decision; None keeps the recorded one."""
    if not policies and not tuning:
        return None
    known: dict[tuple[int, str], Policy] = {}

    def choose(run: RecordedRun, recorded: Policy) -> Policy:
        # By identity: comparing policies field by field would cost more than a decision.
        key = id(recorded), run.policy
        policy = known.get(key)
        if policy is None:
            policy = policies.get(policy_base(run.policy)) or policies.get("") or recorded
            if tuning == "off" and policy.tuning is not None:
                policy = policy.copy_with(tuning=None)
            elif tuning == "on" and policy.tuning is None:
                policy = policy.copy_with(tuning=Tuning())
            known[key] = policy
        return policy

    return choose


def _name_sides(options: SimulationOptions) -> tuple[str, str]:
    if options.tuning == "compare":
        return "without tuning", "with tuning"
    parts = [names] if (names := _join_names(options.policies)) else []
    parts += [f"tuning {options.tuning}"] if options.tuning else []
    parts += ["other signals"] if options.world != SimulatedWorld() else []
    return _join_names(options.earlier) or "as recorded", ", ".join(parts) or "decided again"


def _join_names(policies: Mapping[str, Policy]) -> str:
    names = [policy.name + (f"@{policy.version}" if policy.version else "") for policy in policies.values()]
    return ", ".join(dict.fromkeys(names))


def compare_figures(before: SimulationTotals, after: SimulationTotals) -> Iterator[ComparedFigure]:
    """Yield every figure of two sums, in the order of `FIGURES`."""
    for field, name, unit in FIGURES:
        a, b = getattr(before, field), getattr(after, field)
        yield ComparedFigure(field, name, unit, a, b, None if a is None or b is None else b - a)


def _delay_sum(one: SimulatedRun) -> float:
    return sum(attempt.delay_s for attempt in one.attempts)


def _is_changed(before: SimulatedRun, after: SimulatedRun) -> bool:
    # Delays are compared exactly: the recorded policy reproduces them to the last bit.
    if before.state != after.state or len(before.attempts) != len(after.attempts):
        return True
    return any(a.delay_s != b.delay_s for a, b in zip(before.attempts, after.attempts, strict=True))


def _describe_change(before: SimulatedRun, after: SimulatedRun) -> ChangedRun:
    words = {(True, False): "now met", (False, True): "now missed", (True, True): "missed"}
    met = "" if before.run.deadline is None else "met"
    return ChangedRun(
        run_id=before.run.run_id,
        step=before.run.step,
        attempts_before=len(before.attempts),
        attempts_after=len(after.attempts),
        delay_before_s=_delay_sum(before),
        delay_after_s=_delay_sum(after),
        state_before=before.state,
        state_after=after.state,
        deadline=words.get((before.misses_deadline, after.misses_deadline), met),
    )


def _list_notes(sums: tuple[SimulationTotals, SimulationTotals], options: SimulationOptions) -> Iterator[str]:
    after = sums[1]
    if after.assumed_attempts:
        rule = (
            "the last recorded attempt that had begun by then"
            if options.outcomes == "time"
            else "the last recorded attempt"
        )
        yield (
            f"{after.assumed_attempts:,} of {after.attempts:,} attempts after are not in the log; each is "
            f"assumed to end as {rule}."
        )
    for name, total in zip(("before", "after"), sums, strict=True):
        if total.without_energy:
            yield (
                f"{total.without_energy:,} of {total.attempts:,} attempts {name} have no energy value; "
                "the sums lack them, unless --attempt-energy gives one."
            )
    if after.energy_kwh is not None and after.carbon_kg is None:
        yield "No grid intensity is recorded, so there is no carbon; --intensity gives one."


# Signals from files ---------------------------------------------------------------------------------


def read_timeline(text: str, name: str) -> SignalTimeline:
    """Return a signal over time: a number, or a .csv or .json file with times and values."""
    from oncemore.telemetry.signal_shapes import DocumentFault, read_csv, read_json

    try:
        constant = float(text)
    except ValueError:
        constant = math.nan
    if math.isfinite(constant):
        return SignalTimeline([(-math.inf, constant)])
    try:
        content = Path(text).read_text(encoding="utf-8-sig")
        series = (read_json if text.endswith(".json") else read_csv)(content).series
    except OSError as error:
        raise UsageError(
            f"--{name} {text!r} is neither a number nor a file that can be read ({error.strerror}); give a "
            "number, or a .csv or .json file with times and values"
        ) from None
    except (DocumentFault, UnicodeDecodeError) as error:
        raise UsageError(f"{text}: {error}") from None
    if not series:
        raise UsageError(f"{text} has no values")
    return SignalTimeline(series)
