"""What a failure means: the fact, read under a policy and the declared effect.

A fact comes from an edge; the verdict is a row of a table. `UNKNOWN` is the answer for an effect that
cannot be repeated when the attempt may have taken effect: nothing but asking can settle that.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.core.model import Effect, Failure, Kind, Verdict
    from oncemore.core.policy import Policy

#: What may be repeated at all, by kind; conflicts and permanent failures are the caller's to solve.
VERDICTS: Final[dict[Kind, Verdict]] = {
    "transient": "RETRYABLE",
    "throttled": "RETRYABLE",
    "conflict": "TERMINAL",
    "permanent": "TERMINAL",
}

#: The rule an edge gives to what it does not know; a policy's `unmatched` speaks for it.
UNMATCHED = "default:unmatched"


def verdict(failure: Failure, policy: Policy, effect: Effect) -> Verdict:
    """Return what a failure means for work with this effect under this policy."""
    known: Verdict = VERDICTS[failure.kind]
    if failure.rule == UNMATCHED and policy.unmatched == "retry":
        known = "RETRYABLE"
    if effect == "once" and failure.sent == "maybe":
        return "UNKNOWN"
    return known
