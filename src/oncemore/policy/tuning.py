"""Carbon, price and deadline: how the world's state stretches or shortens a delay (G-9).

    c      = clamp((I - low) / (high - low), 0, 1)            I: grid intensity, g CO2 per kWh
    p      = 1 if rate >= peak else 0                         rate: energy price, USD per kWh
    queue  = queue_depth * expected_s / parallelism           which is 1 at least
    buffer = deadline - now - expected_s - queue
    risk   = clamp((min_buffer - buffer) / min_buffer, 0, 1)  0 if disabled or without a deadline
    delay  = b * min(1 + 1.0*c + 0.5*p, max_stretch) * (1 - risk)
    delay  = min(max(delay, min(1, b)), max_delay_s)

The deadline itself has the last word, in `decide`. A missing signal switches off its own term and is
named; a spent error budget forbids stretching.
"""

from __future__ import annotations

from oncemore._values import Value, make
from oncemore.policy.backoff import LONGEST_S

CARBON_WEIGHT = 1.0
PRICE_WEIGHT = 0.5
SHORTEST_S = 1.0


class Tuning(Value):
    """The knobs of a policy's tuning, with the defaults of TUNE-4."""

    carbon_low: float = 250.0
    carbon_high: float = 500.0
    price_peak: float = 0.25
    deadline_bias: bool = True
    min_buffer_s: float = 1800.0
    max_stretch: float = 2.5


class Signals(Value):
    """What is known about the world when a decision is taken; None is not known."""

    grid_intensity: float | None = None
    energy_price: float | None = None
    queue_depth: float | None = None
    parallelism: float | None = None
    error_budget: float | None = None


class Tuned(Value):
    """The terms of one tuning, each of them part of the proof."""

    carbon: float
    price: float
    queue_s: float
    buffer_s: float | None
    risk: float
    stretch: float
    delay_s: float
    missing: tuple[str, ...]


NOTHING_KNOWN = Signals()


def tune(
    b: float,
    knobs: Tuning,
    signals: Signals,
    cap: float,
    expected_s: float,
    left_s: float | None,
) -> Tuned:
    """Return the tuned delay and its terms; `left_s` is the time to the deadline, if there is one."""
    carbon = _carbon(knobs, signals)
    price = 0.0 if signals.energy_price is None else float(signals.energy_price >= knobs.price_peak)
    stretch = min(_asked_stretch(carbon, price), knobs.max_stretch)
    if signals.error_budget is not None and signals.error_budget <= 0:
        stretch = 1.0
    queue = _queue(signals, expected_s)
    buffer = None if left_s is None else left_s - expected_s - queue
    risk = _risk(knobs, buffer)
    delay = b * stretch * (1.0 - risk)
    held = min(max(delay, min(SHORTEST_S, b)), cap)
    return make(Tuned, (carbon, price, queue, buffer, risk, stretch, held, _missing(signals)))


def _asked_stretch(carbon: float, price: float) -> float:
    return 1.0 + CARBON_WEIGHT * carbon + PRICE_WEIGHT * price


def is_stretch_clamped(terms: Tuned, knobs: Tuning) -> bool:
    """Whether carbon and price asked for more than the policy allows, and got what it allows."""
    return terms.stretch == knobs.max_stretch < _asked_stretch(terms.carbon, terms.price)


def _carbon(knobs: Tuning, signals: Signals) -> float:
    if signals.grid_intensity is None:
        return 0.0
    above = signals.grid_intensity - knobs.carbon_low
    return min(max(above / (knobs.carbon_high - knobs.carbon_low), 0.0), 1.0)


def _queue(signals: Signals, expected_s: float) -> float:
    if signals.queue_depth is None:
        return 0.0
    return min(signals.queue_depth * expected_s / max(1.0, signals.parallelism or 1.0), LONGEST_S)


def _risk(knobs: Tuning, buffer: float | None) -> float:
    if buffer is None or not knobs.deadline_bias:
        return 0.0
    return min(max((knobs.min_buffer_s - buffer) / knobs.min_buffer_s, 0.0), 1.0)


def _missing(signals: Signals) -> tuple[str, ...]:
    """Name the signals whose terms are switched off because nobody knows them."""
    intensity, price, depth, _, _ = signals  # the other two have a neutral reading of their own
    if intensity is not None and price is not None and depth is not None:
        return ()
    known = (("grid_intensity", intensity), ("energy_price", price), ("queue_depth", depth))
    return tuple(name for name, value in known if value is None)
