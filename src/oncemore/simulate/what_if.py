"""Decide recorded runs again, under another policy or other signals, without running anything.

A simulated attempt is a recorded attempt, moved in time by a shift:

    recorded   ├ attempt 1 ┤── delay ──├ attempt 2 ┤──── delay ────├ attempt 3, COMPLETE ┤
    simulated  ├ attempt 1 ┤─ delay ─├ attempt 2 ┤─ delay ─├ as attempt 2 ┤─ delay ─├ as attempt 3 ┤

By time (the default), an attempt ends as the last recorded attempt that had begun by then: the cause of the
failures lasts as long as it was recorded to last, so shorter delays meet it more often. By order, the n-th
attempt ends as the n-th recorded one. Under the recorded policy both reproduce the record exactly: every
shift is 0.

A failed attempt is decided by `policy.decide`, as in a call, with the recorded failure and the simulated time
and signals. Limits of other runs are kept as recorded: an open breaker, the tokens of a budget, Retry-After.
An attempt that was lost with its process stays lost. A run that is still open, or was ended by something else
than its policy, ends in the simulation where it ended in the record.
"""

from __future__ import annotations

from bisect import bisect_right

from oncemore._values import Value, make
from oncemore.policy.decide import decide_retry
from oncemore.policy.tuning import NO_SIGNALS, Signals
from oncemore.policy.verdict import decide_verdict
from oncemore.simulate.recorded_runs import COMPLETE, GRAMS, LOST, MeasuredValues, SimulatedWorld

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from oncemore.policy.decide import Decision, Situation
    from oncemore.policy.model import Effect, Verdict
    from oncemore.policy.policy import Policy
    from oncemore.simulate.recorded_runs import RecordedAttempt, RecordedRun

    Outcomes = Literal["time", "order"]
    #: Maps a recorded run and the policy of one of its decisions to the policy that decides now.
    PolicyChoice = Callable[[RecordedRun, Policy], Policy]

HELD = "HELD"


class SimulatedAttempt(Value):
    """One simulated attempt.

    source   the index of the recorded attempt that it repeats
    assumed  whether it has no counterpart in the record: its outcome is that of `source`
    delay_s  the decided wait after it
    """

    began: float
    ended: float
    source: int
    assumed: bool
    delay_s: float
    values: MeasuredValues


class SimulatedRun(Value):
    """The simulated course of one recorded run; `state` is COMPLETE, HARD_FAIL, HELD, or the recorded one."""

    run: RecordedRun
    attempts: tuple[SimulatedAttempt, ...]
    state: str
    ended_at: float

    @property
    def misses_deadline(self) -> bool:
        """Whether the run has a deadline and was not COMPLETE by then."""
        deadline = self.run.deadline
        if deadline is None:
            return False
        # An open run misses its deadline only if the deadline has passed.
        return self.ended_at > deadline or self.state in ("HARD_FAIL", HELD)


class WhatIf:
    """Simulates runs under one choice of policies and signals.

    choose    the policy of each decision; None keeps the recorded one
    world     signals that replace the recorded ones
    recorded  the recorded signals over time, for attempts that move to another time
    outcomes  "time" or "order"
    """

    def __init__(
        self,
        choose: PolicyChoice | None = None,
        world: SimulatedWorld = SimulatedWorld(),  # noqa: B008
        recorded: SimulatedWorld = SimulatedWorld(),  # noqa: B008
        outcomes: Outcomes = "time",
    ) -> None:
        self._choose, self._outcomes = choose, outcomes
        self._world, self._recorded = world, recorded
        self._follows_record = world == SimulatedWorld()

    def simulate_run(self, run: RecordedRun) -> SimulatedRun:
        """Return the course of a run under this choice."""
        attempts: list[SimulatedAttempt] = []
        starts = [attempt.began for attempt in run.attempts]
        last, source, shift, count = len(starts) - 1, 0, 0.0, 0
        while True:
            recorded = run.attempts[source]
            count += recorded.counted
            action, delay = self._decide_attempt(run, recorded, count, shift)
            # In step with the record: the n-th attempt stands for the n-th recorded one, at its own time.
            assumed = source != len(attempts)
            values = self._measure_attempt(recorded, shift)
            ended = recorded.ended + shift
            attempts.append(
                make(SimulatedAttempt, (recorded.began + shift, ended, source, assumed, delay, values))
            )
            state = _find_end(run, recorded, action, is_last=source == last)
            if state:
                # A run that its policy did not end is as old as the record says.
                is_kept = action in ("retry", "defer", "") and recorded.outcome != COMPLETE
                return SimulatedRun(
                    run, tuple(attempts), state, max(ended, run.ended_at) if is_kept else ended
                )
            shift += delay - recorded.delay_s
            began = starts[source + 1] + shift if source < last else ended + delay
            following = min(source + 1, last)
            is_bound = recorded.outcome == LOST or self._outcomes == "order"
            next_source = following if is_bound else max(bisect_right(starts, began) - 1, 0)
            # Exactly 0 while the delays are those of the record, so that it is reproduced to the last bit.
            shift = began - starts[next_source]
            source = next_source

    def _decide_attempt(
        self, run: RecordedRun, recorded: RecordedAttempt, count: int, shift: float
    ) -> tuple[str, float]:
        """Return the action after an attempt and the delay before the next one."""
        if recorded.situation is None or recorded.policy is None:
            return "", recorded.delay_s
        decision = decide_again(run, recorded, self._choose, count=count, shift=shift, signals=self._signals)
        if decision.action == "retry":
            return "retry", decision.delay_s
        if decision.action == "defer" and decision.not_before is not None:
            return "defer", max(0.0, decision.not_before - decision.situation.now)
        return decision.action, recorded.delay_s

    def _signals(self, recorded: RecordedAttempt, now: float, shift: float) -> Signals | None:
        """Return the signals of a decision: the recorded ones, or those of the simulated world and time."""
        assert recorded.situation is not None
        signals = recorded.situation.signals
        if self._follows_record and not shift:
            return signals
        intensity = self._value("intensity", now, None if signals is None else signals.grid_intensity)
        price = self._value("price", now, None if signals is None else signals.energy_price)
        if signals is None and intensity is None and price is None:
            return None
        return (signals or NO_SIGNALS)._replace(grid_intensity=intensity, energy_price=price)

    def _value(self, name: str, at: float, recorded: float | None) -> float | None:
        """Return a signal at a time: of the simulated world, else of the record, else that of the attempt."""
        for world in (self._world, self._recorded):
            timeline = getattr(world, name)
            if timeline is not None and (value := timeline.value_at(at)) is not None:
                found: float = value
                return found
        return recorded

    def _measure_attempt(self, recorded: RecordedAttempt, shift: float) -> MeasuredValues:
        """Return the energy, carbon and cost of an attempt at its simulated time."""
        values = recorded.values
        if self._follows_record and not shift:
            return values
        energy = self._world.energy_kwh if values.energy_kwh is None else values.energy_kwh
        began = recorded.began + shift
        intensity = self._value("intensity", began, values.grid_intensity)
        price = self._value("price", began, values.energy_price)
        unit_cost = values.unit_cost_usd_per_h
        if unit_cost is None:
            unit_cost = self._world.unit_cost_usd_per_h
        duration = recorded.ended - recorded.began
        return MeasuredValues(
            energy_kwh=energy,
            carbon_kg=None if energy is None or intensity is None else energy * intensity / GRAMS,
            cost_usd=_compute_cost(energy, price, duration, unit_cost),
            grid_intensity=intensity,
            energy_price=price,
            unit_cost_usd_per_h=unit_cost,
            method=values.method or ("assumed" if energy is not None else ""),
        )


def _compute_cost(
    energy: float | None, price: float | None, duration: float, unit_cost: float | None
) -> float | None:
    """Return energy times price plus time times the cost of the machine; None if neither is known."""
    parts = [
        *([energy * price] if energy is not None and price is not None else []),
        *([duration / 3600.0 * unit_cost] if unit_cost is not None else []),
    ]
    return sum(parts) if parts else None


def decide_again(
    run: RecordedRun,
    recorded: RecordedAttempt,
    choose: PolicyChoice | None = None,
    *,
    count: int,
    shift: float = 0.0,
    signals: Callable[[RecordedAttempt, float, float], Signals | None] | None = None,
) -> Decision:
    """Return the decision after a recorded failed attempt, at a shifted time and under a chosen policy."""
    situation, own_policy = recorded.situation, recorded.policy
    assert situation is not None
    assert own_policy is not None
    policy = own_policy if choose is None else choose(run, own_policy)
    now, verdict = situation.now + shift, situation.verdict
    if policy is not own_policy:
        verdict = _decide_new_verdict(run, situation, policy, own_policy)
    used = situation.signals if signals is None else signals(recorded, now, shift)
    return decide_retry(policy, situation._replace(attempt=count, verdict=verdict, now=now, signals=used))


def _decide_new_verdict(
    run: RecordedRun, situation: Situation, policy: Policy, own_policy: Policy
) -> Verdict:
    """Return the verdict of another policy; the recorded one where the step itself gave it.

    A policy without classes leaves the verdict as it was.
    """
    failure, verdict = situation.failure, situation.verdict
    if policy.classes is None or policy.classes == own_policy.classes or verdict == "UNKNOWN":
        return verdict
    effect: Effect = run.effect  # type: ignore[assignment]
    # `on=` of the step overruled its policy, and would overrule another one too.
    if decide_verdict(failure, own_policy, effect, quarantines=verdict == "QUARANTINE") != verdict:
        return verdict
    return decide_verdict(failure, policy, effect, quarantines=verdict == "QUARANTINE")


def _find_end(run: RecordedRun, recorded: RecordedAttempt, action: str, *, is_last: bool) -> str:
    """Return the state in which a simulated run ends after an attempt; empty if another attempt follows."""
    if recorded.outcome == COMPLETE:
        return COMPLETE
    if recorded.outcome == LOST:
        return run.state if is_last else ""
    if action == "quarantine":
        # A person released the recorded run: the simulated one waits for the same person.
        return "" if recorded.action == "quarantine" and not is_last else HELD
    if action == "stop":
        return "HARD_FAIL"
    # The recorded run waits for its next attempt, or a caller, a person or a deadline ended it meanwhile.
    return run.state if is_last and recorded.action in ("retry", "defer") else ""
