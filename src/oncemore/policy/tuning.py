"""Tuning: carbon intensity, energy price and deadline stretch or shorten a delay (G-9).

    c      = clamp((I - low) / (high - low), 0, 1)            I: grid intensity, g CO2 per kWh
    p      = 1 if rate >= peak else 0                         rate: energy price, USD per kWh
    queue  = queue_depth * expected_s / parallelism           parallelism is at least 1
    buffer = deadline - now - expected_s - queue
    risk   = clamp((min_buffer - buffer) / min_buffer, 0, 1)  0 if disabled or without a deadline
    delay  = b * min(1 + 1.0*c + 0.5*p, max_stretch) * (1 - risk)
    delay  = min(max(delay, min(1, b)), max_delay_s)

`decide` applies the deadline itself afterwards. A missing signal switches off its own term and is
named in the terms. An exhausted error budget forbids stretching.
"""

from __future__ import annotations

from oncemore._values import Value, make
from oncemore.policy.backoff import MAX_PLANNED_S

CARBON_WEIGHT = 1.0
PRICE_WEIGHT = 0.5
MIN_TUNED_S = 1.0


class Tuning(Value):
    """Settings of a policy's tuning, with the defaults of TUNE-4."""

    carbon_low: float = 250.0
    carbon_high: float = 500.0
    price_peak: float = 0.25
    deadline_bias: bool = True
    min_buffer_s: float = 1800.0
    max_stretch: float = 2.5


class Signals(Value):
    """Measured values at the time of a decision; None means unknown."""

    grid_intensity: float | None = None
    energy_price: float | None = None
    queue_depth: float | None = None
    parallelism: float | None = None
    error_budget: float | None = None


class TuningTerms(Value):
    """The terms of one tuned delay; all of them are part of the proof.

    slow  the factor of a decision of the autonomy matrix to slow down; 1 without one
    """

    carbon: float
    price: float
    queue_s: float
    buffer_s: float | None
    risk: float
    stretch: float
    delay_s: float
    missing: tuple[str, ...]
    slow: float = 1.0


NO_SIGNALS = Signals()


def tune_delay(
    b: float,
    tuning: Tuning,
    signals: Signals,
    cap: float,
    expected_s: float,
    left_s: float | None,
) -> TuningTerms:
    """Return the tuned delay and its terms; `left_s` is the time to the deadline, if there is one."""
    carbon = _carbon_term(tuning, signals)
    price = 0.0 if signals.energy_price is None else float(signals.energy_price >= tuning.price_peak)
    stretch = min(_asked_stretch(carbon, price), tuning.max_stretch)
    if signals.error_budget is not None and signals.error_budget <= 0:
        stretch = 1.0
    queue = _queue_seconds(signals, expected_s)
    buffer = None if left_s is None else left_s - expected_s - queue
    risk = _deadline_risk(tuning, buffer)
    delay = b * stretch * (1.0 - risk)
    # At high risk the product goes to 0: at least 1 s (or b, if shorter) stays between two attempts.
    limited = min(max(delay, min(MIN_TUNED_S, b)), cap)
    terms = (carbon, price, queue, buffer, risk, stretch)
    # In the order of the fields: `make` takes a fifth of the time of keywords, in every tuned decision.
    return make(TuningTerms, (*terms, limited, _missing_signals(signals), 1.0))


def slow_down(terms: TuningTerms, slow: float, b: float, cap: float, signals: Signals) -> TuningTerms:
    """Return the terms of a delay that the autonomy matrix has slowed down, within the same bounds."""
    # A spent error budget forbids every choice that lengthens the run.
    if signals.error_budget is not None and signals.error_budget <= 0:
        return terms
    delay = b * terms.stretch * slow * (1.0 - terms.risk)
    return terms._replace(slow=slow, delay_s=min(max(delay, min(MIN_TUNED_S, b)), cap))


def _asked_stretch(carbon: float, price: float) -> float:
    return 1.0 + CARBON_WEIGHT * carbon + PRICE_WEIGHT * price


def is_stretch_clamped(terms: TuningTerms, tuning: Tuning) -> bool:
    """Return whether `max_stretch` limited the stretch from carbon and price."""
    return terms.stretch == tuning.max_stretch < _asked_stretch(terms.carbon, terms.price)


def _carbon_term(tuning: Tuning, signals: Signals) -> float:
    if signals.grid_intensity is None:
        return 0.0
    above = signals.grid_intensity - tuning.carbon_low
    return min(max(above / (tuning.carbon_high - tuning.carbon_low), 0.0), 1.0)


def _queue_seconds(signals: Signals, expected_s: float) -> float:
    if signals.queue_depth is None:
        return 0.0
    # Limited so that every number in the proof is finite.
    return min(signals.queue_depth * expected_s / max(1.0, signals.parallelism or 1.0), MAX_PLANNED_S)


def _deadline_risk(tuning: Tuning, buffer: float | None) -> float:
    if buffer is None or not tuning.deadline_bias:
        return 0.0
    return min(max((tuning.min_buffer_s - buffer) / tuning.min_buffer_s, 0.0), 1.0)


def _missing_signals(signals: Signals) -> tuple[str, ...]:
    """Return the names of the unknown signals whose terms are switched off."""
    # Parallelism and error budget are not listed: None has a neutral meaning for both.
    intensity, price, depth, _, _ = signals
    if intensity is not None and price is not None and depth is not None:
        return ()
    known = (("grid_intensity", intensity), ("energy_price", price), ("queue_depth", depth))
    return tuple(name for name, value in known if value is None)
