"""The words everything else is written in: failures, verdicts, effects, run states.

All of them are plain strings of closed sets, so that they are their own JSON and cost no import;
the type checker knows the sets as `Literal`s, and what may follow what is said by tables, where an
absent entry is the error.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import IllegalMove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Literal

    Kind = Literal["transient", "throttled", "conflict", "permanent"]
    Sent = Literal["no", "maybe"]
    Verdict = Literal["RETRYABLE", "TERMINAL", "QUARANTINE", "UNKNOWN"]
    Effect = Literal["pure", "idempotent", "transactional", "outbox", "once"]
    State = Literal["PENDING", "RUNNING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE"]
    Action = Literal["retry", "defer", "stop", "quarantine", "escalate"]

KINDS: Final = ("transient", "throttled", "conflict", "permanent")
EFFECTS: Final = ("pure", "idempotent", "transactional", "outbox", "once")
STATES: Final = ("PENDING", "RUNNING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE")

#: The legal moves of a run (STATE-2). A pair that is not here is refused.
MOVES: Final[dict[State, frozenset[State]]] = {
    "PENDING": frozenset({"RUNNING", "COMPLETE", "HARD_FAIL"}),
    "RUNNING": frozenset({"SOFT_FAIL", "HARD_FAIL", "COMPLETE"}),
    "SOFT_FAIL": frozenset({"RUNNING", "HARD_FAIL", "COMPLETE"}),
    "HARD_FAIL": frozenset(),
    "COMPLETE": frozenset(),
}


def move(state: State, to: State) -> State:
    """Return `to` when a run may go there from `state`; refuse every other move."""
    if to not in MOVES[state]:
        allowed = ", ".join(sorted(MOVES[state])) or "nothing: it is final"
        raise IllegalMove(f"a run cannot go from {state} to {to}; from {state} may follow {allowed}")
    return to


class Failure(Value):
    """A fact about one failed attempt, as the edge that knows the client read it.

    kind         transient (may pass by itself), throttled (asked to slow down), conflict (somebody
                 else was first), permanent (the same call will fail again)
    sent         "no": nothing of it can have taken effect, so that anything may repeat it;
                 "maybe": it may have taken effect
    retry_after  seconds the other side asked us to stay away, counted from when the answer was read
    code         stable class of the error, for counting: HTTP_503, TIMEOUT_READ, SQLSTATE_40001
    rule         the rule that said so: client:what
    """

    kind: Kind
    sent: Sent = "maybe"
    retry_after: float | None = None
    code: str = ""
    rule: str = ""

    @property
    def passing(self) -> bool:
        """Whether waiting may help: transient and throttled failures pass, the others do not."""
        return self.kind == "transient" or self.kind == "throttled"
