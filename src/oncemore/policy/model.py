"""The vocabulary of the package: failures, verdicts, effects and run states.

All of them are plain strings from closed sets: they are their own JSON and cost no import. The type
checker knows the sets as `Literal`s. `TRANSITIONS` lists the allowed state changes of a run.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import IllegalTransition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Literal

    Kind = Literal["transient", "throttled", "conflict", "permanent"]
    Sent = Literal["no", "maybe"]
    Verdict = Literal["RETRYABLE", "TERMINAL", "QUARANTINE", "UNKNOWN"]
    Effect = Literal["pure", "idempotent", "transactional", "outbox", "once"]
    State = Literal["PENDING", "RUNNING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE"]
    Action = Literal["retry", "defer", "stop", "quarantine", "escalate"]

# The same sets at run time, for checks of user input.
KINDS: Final = ("transient", "throttled", "conflict", "permanent")
EFFECTS: Final = ("pure", "idempotent", "transactional", "outbox", "once")
STATES: Final = ("PENDING", "RUNNING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE")

#: The allowed transitions of a run (STATE-2); every other pair is refused. RUNNING → PENDING is a workflow
#: that waits for a time or a signal: its function has left the process, and nothing has failed.
TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    "PENDING": frozenset({"RUNNING", "COMPLETE", "HARD_FAIL"}),
    "RUNNING": frozenset({"PENDING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE"}),
    "SOFT_FAIL": frozenset({"RUNNING", "HARD_FAIL", "COMPLETE"}),
    "HARD_FAIL": frozenset(),
    "COMPLETE": frozenset(),
}


def check_transition(state: State, to: State) -> State:
    """Return `to` if a run may go there from `state`; else raise `IllegalTransition`."""
    if to not in TRANSITIONS[state]:
        allowed = ", ".join(sorted(TRANSITIONS[state])) or "nothing: it is final"
        raise IllegalTransition(f"a run cannot go from {state} to {to}; from {state} may follow {allowed}")
    return to


class Failure(Value):
    """A fact about one failed attempt, as the classifier for the client library read it.

    kind         transient (may pass by itself), throttled (a request to slow down), conflict (another
                 writer was first), permanent (the same call will fail again)
    sent         "no": the attempt cannot have taken effect, so any work may repeat it;
                 "maybe": it may have taken effect
    retry_after  seconds that the provider asked to wait, counted from the arrival of its answer
    code         stable class of the error, for counting: HTTP_503, TIMEOUT_READ, SQLSTATE_40001
    rule         the rule that classified the error, as `library:name`
    """

    kind: Kind
    sent: Sent = "maybe"
    retry_after: float | None = None
    code: str = ""
    rule: str = ""

    @property
    def may_pass(self) -> bool:
        """Whether waiting may help: true for transient and throttled failures."""
        return self.kind == "transient" or self.kind == "throttled"
