"""Jitters with an amount, for `jitter=`: `oncemore.jitter.proportional(0.2)`.

Those without one are words: "full", "equal", "decorrelated" and "none". `policy.backoff` computes them.
"""

from __future__ import annotations

from oncemore.policy.backoff import Jitter
from oncemore.policy.policy import check_jitter
from oncemore.retries.options import as_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.retries.options import Seconds

__all__ = ["additive", "proportional"]


def additive(span: Seconds) -> Jitter:
    """Spread each delay by adding up to `span` seconds."""
    return check_jitter(Jitter("additive", as_seconds("span", span)))


def proportional(fraction: float) -> Jitter:
    """Spread each delay by up to ± this fraction of it."""
    return check_jitter(Jitter("proportional", fraction))
