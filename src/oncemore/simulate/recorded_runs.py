"""Recorded runs as a simulation reads them: attempts with their outcome, decision and measured values.

`SignalTimeline` is a measured value over time, such as the grid intensity: each value holds from its time
until the next one.
"""

from __future__ import annotations

from bisect import bisect_right

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from oncemore.policy.decide import Situation
    from oncemore.policy.policy import Policy

    #: LOST: the attempt ended without a decision of a policy: its process died, or a person took over.
    AttemptOutcome = Literal["FAILED", "COMPLETE", "LOST"]

FAILED, COMPLETE, LOST = "FAILED", "COMPLETE", "LOST"
#: Gram of CO2 in a kilogram.
GRAMS = 1000.0


class MeasuredValues(Value):
    """The measured values of one attempt; None if they were not measured.

    unit_cost_usd_per_h  the cost of the machine per hour
    method               how the energy was measured or estimated
    """

    energy_kwh: float | None = None
    carbon_kg: float | None = None
    cost_usd: float | None = None
    grid_intensity: float | None = None
    energy_price: float | None = None
    unit_cost_usd_per_h: float | None = None
    method: str = ""


class RecordedAttempt(Value):
    """One recorded attempt.

    seq        the log entry of its end, which holds its outcome and measured values
    counted    whether it counts in `max_attempts`: one that was lost with its process may not
    policy     the policy that decided after it; None unless it failed
    situation  the inputs of that decision; None unless it failed
    discarded  whether another process closed it after its lease: a later result of it is not used
    action     the decision: retry, defer, stop or quarantine; empty unless it failed
    delay_s    the time from its end to the planned start of the next attempt
    """

    seq: int
    began: float
    ended: float
    outcome: AttemptOutcome
    values: MeasuredValues
    counted: bool = True
    policy: Policy | None = None
    situation: Situation | None = None
    action: str = ""
    delay_s: float = 0.0
    discarded: bool = False


class RecordedRun(Value):
    """One recorded run with at least one attempt.

    deadline   when it must have ended; None without one
    state      its last state
    repeated   whether it computed a key again that was COMPLETE with the same configuration
    held_for   the reason why it waits for a person; empty if it does not
    reason     the reason of its last state
    error_class  the code of its last failure
    pipeline   the pipeline of the step; the step itself if none was recorded
    """

    run_id: str
    key: str
    step: str
    effect: str
    policy: str
    priority: str
    created_at: float
    ended_at: float
    deadline: float | None
    state: str
    attempts: tuple[RecordedAttempt, ...]
    repeated: bool = False
    held_for: str = ""
    reason: str = ""
    error_class: str = ""
    tenant: str = ""
    provider: str = ""
    pipeline: str = ""

    @property
    def open(self) -> bool:
        """Whether the run had not ended when it was read."""
        return self.state not in ("COMPLETE", "HARD_FAIL")


class SignalTimeline:
    """A value over time: each point holds until the next one; before the first there is none."""

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        ordered = sorted(dict(points).items())
        self._times = [at for at, _ in ordered]
        self._values = [value for _, value in ordered]

    def value_at(self, at: float) -> float | None:
        """Return the value at a time; None before the first point."""
        place = bisect_right(self._times, at)
        return self._values[place - 1] if place else None


class SimulatedWorld(Value):
    """The signals of a simulation over time; None leaves the recorded values of each attempt.

    energy_kwh  the energy of an attempt without a measured value; None: such an attempt has none
    """

    intensity: SignalTimeline | None = None
    price: SignalTimeline | None = None
    energy_kwh: float | None = None
    unit_cost_usd_per_h: float | None = None
