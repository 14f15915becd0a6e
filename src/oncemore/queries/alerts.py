"""Decide which alerts the counts of a store raise. Values only.

high retry rate   more retries in the last minute than the limit
exhausted work    a larger share of the operations that ended in the last minutes ran out of attempts
                  than the limit
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HIGH_RETRY_RATE, EXHAUSTED = "high_retry_rate", "retries_exhausted"
RETRY_RATE_TEXT = "High retry rate detected"
LIKELY_CAUSES = "an upstream outage, or pressure on the database"


class AlertLimits(Value):
    """The limits above which an alert is raised.

    retries_per_minute  retries within the last minute
    exhausted_share     the share of ended operations that ran out of attempts, within `window_s`
    min_operations      the fewest ended operations for which a share means something
    """

    retries_per_minute: int = 20
    exhausted_share: float = 0.05
    min_operations: int = 5
    window_s: float = 900.0


class RecentCounts(Value):
    """What happened within the windows of the limits.

    retries        retries within the last minute
    ended          operations that ended within `window_s`
    exhausted      those of them that ran out of attempts
    error_classes  the number of exhausted operations by the class of their last error
    """

    retries: int
    ended: int
    exhausted: int
    error_classes: Mapping[str, int] = {}


class StoreAlert(Value):
    """An alert: its kind, a title, and a sentence with the numbers and the likely cause."""

    kind: str
    title: str
    detail: str


def check_limits(limits: AlertLimits) -> AlertLimits:
    """Return the limits; raise `UsageError` for one that could never or would always raise an alert."""
    if limits.retries_per_minute < 0:
        raise UsageError(f"retries_per_minute is {limits.retries_per_minute}; it takes 0 or more")
    if not 0 <= limits.exhausted_share < 1:
        raise UsageError(f"exhausted_share is {limits.exhausted_share}; it takes 0 up to below 1")
    return limits


def find_alerts(counts: RecentCounts, limits: AlertLimits) -> tuple[StoreAlert, ...]:
    """Return the alerts that the counts raise: at most one of each kind."""
    alerts = []
    if counts.retries > limits.retries_per_minute:
        detail = (
            f"{counts.retries:,} retries in the last minute; the limit is {limits.retries_per_minute:,}. "
            "The list of breakers shows whether one provider causes them."
        )
        alerts.append(StoreAlert(HIGH_RETRY_RATE, RETRY_RATE_TEXT, detail))
    is_meaningful = counts.ended >= max(1, limits.min_operations)
    if is_meaningful and counts.exhausted > limits.exhausted_share * counts.ended:
        alerts.append(_describe_exhaustion(counts, limits))
    return tuple(alerts)


def _describe_exhaustion(counts: RecentCounts, limits: AlertLimits) -> StoreAlert:
    # The most frequent class; by name if two are equally frequent, so that the alert does not flicker.
    classes = sorted(counts.error_classes.items(), key=lambda pair: (-pair[1], pair[0]))
    main = f", most with {classes[0][0]}" if classes and classes[0][0] else ""
    detail = (
        f"{counts.exhausted:,} of {counts.ended:,} operations that ended in the last "
        f"{limits.window_s / 60:g} minutes ran out of attempts{main}. Likely causes: {LIKELY_CAUSES}."
    )
    return StoreAlert(EXHAUSTED, "Many operations run out of attempts", detail)
