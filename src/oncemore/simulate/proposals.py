"""Find better numbers for a policy in its history: fewer attempts, or less waiting, for the same outcomes.

A candidate changes the number of attempts, the first delay, or both. It is simulated on the older two
thirds of the runs and must be better there; then it is simulated on the newest third, which it was not chosen
by, and must not be worse there. It never lets a run fail, be held or miss its deadline that did not before.
Nothing is applied: the result is a proposal for a person.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import PolicyError
from oncemore.simulate.totals import sum_runs
from oncemore.simulate.what_if import WhatIf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncemore.policy.policy import Policy
    from oncemore.simulate.recorded_runs import RecordedRun, SimulatedWorld
    from oncemore.simulate.totals import SimulationTotals

#: Candidates differ from the policy by these numbers of attempts, and these factors of the first delay.
ATTEMPT_STEPS = (0, -1, -2, -3, 1, 2)
DELAY_FACTORS = (1.0, 0.25, 0.5, 2.0, 4.0)
#: A candidate has to save this share of the attempts, or of the duration, to be worth a new version.
LEAST_GAIN = 0.05
#: The longest duration of all runs that is accepted for fewer attempts, over the one before.
MOST_DURATION = 1.10
#: The fewest runs, and the fewest of them with a failed attempt, that say something about a policy.
LEAST_RUNS, LEAST_FAILURES = 30, 10


class PolicyProposal(Value):
    """A proposed policy and its evidence: totals of the older runs, and of the newest ones.

    chosen     the runs that the candidate was chosen by; confirmed: the newest, which confirm it
    rejected   how many candidates were simulated and not chosen
    """

    policy: Policy
    chosen_before: SimulationTotals
    chosen_after: SimulationTotals
    confirmed_before: SimulationTotals
    confirmed_after: SimulationTotals
    rejected: int


def count_failed_runs(runs: Sequence[RecordedRun]) -> int:
    """Return how many runs had a failed attempt."""
    return sum(any(attempt.situation is not None for attempt in run.attempts) for run in runs)


def list_candidates(policy: Policy) -> Iterator[Policy]:
    """Yield the policies that differ from a policy in attempts and first delay, within its bounds."""
    for step in ATTEMPT_STEPS:
        for factor in DELAY_FACTORS:
            attempts = policy.max_attempts + step
            # One attempt would be no retry at all: that is another decision than a better number.
            if attempts < 2 or (not step and factor == 1.0):
                continue
            try:
                yield _change_policy(policy, attempts, factor)
            except PolicyError:
                continue  # outside of the bounds that a governed policy allows


def _change_policy(policy: Policy, attempts: int, factor: float) -> Policy:
    schedule = policy.schedule
    if schedule.shape == "fixed":
        schedule = schedule._replace(delays=tuple(delay * factor for delay in schedule.delays))
    else:
        schedule = schedule._replace(base=schedule.base * factor)
    return policy.replace(max_attempts=attempts, schedule=schedule, max_delay_s=policy.max_delay_s)


def propose_policy(
    policy: Policy, runs: Sequence[RecordedRun], recorded: SimulatedWorld
) -> PolicyProposal | None:
    """Return the best candidate that the newest runs confirm; None if no candidate is better."""
    ordered = sorted(runs, key=lambda run: (run.created_at, run.run_id))
    older, newest = ordered[: len(ordered) * 2 // 3], ordered[len(ordered) * 2 // 3 :]
    before = _simulate(policy, older, recorded), _simulate(policy, newest, recorded)
    rejected = 0
    better: list[tuple[SimulationTotals, Policy]] = []
    for candidate in list_candidates(policy):
        after = _simulate(candidate, older, recorded)
        if _is_better(before[0], after):
            better.append((after, candidate))
        else:
            rejected += 1
    # The fewest attempts first, then the shortest duration, then the smallest change.
    better.sort(key=lambda pair: (pair[0].attempts, pair[0].duration_s, pair[1].schedule.base))
    for after, candidate in better:
        confirmed = _simulate(candidate, newest, recorded)
        if _is_harmless(before[1], confirmed) and confirmed.attempts <= before[1].attempts:
            return PolicyProposal(
                policy=candidate,
                chosen_before=before[0],
                chosen_after=after,
                confirmed_before=before[1],
                confirmed_after=confirmed,
                rejected=rejected,
            )
        rejected += 1
    return None


def _simulate(policy: Policy, runs: Sequence[RecordedRun], recorded: SimulatedWorld) -> SimulationTotals:
    side = WhatIf(lambda run, own: policy, recorded=recorded)
    return sum_runs([side.simulate_run(run) for run in runs])


def _is_harmless(before: SimulationTotals, after: SimulationTotals) -> bool:
    return (
        after.completed >= before.completed
        and after.failed <= before.failed
        and after.held <= before.held
        and after.missed_deadlines <= before.missed_deadlines
        and after.duration_s <= before.duration_s * MOST_DURATION
    )


def _is_better(before: SimulationTotals, after: SimulationTotals) -> bool:
    if not _is_harmless(before, after):
        return False
    saves_attempts = after.attempts <= before.attempts * (1 - LEAST_GAIN)
    saves_time = after.attempts <= before.attempts and after.duration_s <= before.duration_s * (
        1 - LEAST_GAIN
    )
    return saves_attempts or saves_time
