"""A decision made again from its proof: the same inputs and the same policy must give the same bytes.

Nothing is run and nothing is read but the proof: it has every input, and the policy is checked by its
digest, so that a changed one is a difference, and not a surprise.
"""

from __future__ import annotations

from oncemore.core.decide import Situation, decide
from oncemore.core.key import canonical
from oncemore.core.model import Failure
from oncemore.core.tune import Signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from oncemore.core.decide import Decision
    from oncemore.core.policy import Policy


def decided_again(proof: Mapping[str, Any], policy: Policy) -> Decision:
    """Return the decision that a policy makes of what a proof says was known."""
    allowed = proof["thresholds"]["max_attempts"]
    if policy.max_attempts != allowed:  # a person has given this run another budget
        policy = policy.but(max_attempts=allowed)
    known = dict(proof["inputs"])
    signals = known.pop("signals")
    at = Situation(
        proof["attempt"],
        Failure(**proof["failure"]),
        proof["verdict"],
        **{**known, "signals": None if signals is None else Signals(**signals)},
    )
    return decide(policy, at)


def agrees(proof: Mapping[str, Any], policy: Policy) -> bool:
    """Whether the decision made again has the same proof, to the byte."""
    return decided_again(proof, policy).proof_bytes() == canonical(dict(proof))
