"""Errors, grouped by whose move it is.

    Error
    ├── UsageError (ValueError)       yours: the call or the configuration is wrong
    │   ├── PolicyError                 … a policy; says which field and what is allowed
    │   └── MissingExtra (ImportError)  … an optional part is not installed; says what to install
    ├── Refused                       nobody's yet: not now, or not like this; nothing was tried
    │   ├── Parked                      … it is due later; carries `until`
    │   ├── CircuitOpen                 … its provider is left alone; carries `provider` and `until`
    │   ├── CoolingDown                 … what it asks for is left alone; carries `outcome`, `until`
    │   ├── InProgress                  … somebody else is at it; carries `worker` and `until`
    │   ├── KeyConflict                 … the key belongs to other arguments
    │   ├── KeyExpired                  … it was done once, and its record was pruned
    │   ├── ConfigChanged               … its result is of another version or config
    │   ├── Blocked                     … people say no, or what they say cannot be known; carries `reason`
    │   ├── Quarantined                 … it waits for a person's decision
    │   ├── StaleDecision               … what was decided on is no longer what is there
    │   └── RestoredCopy                … the store is a copy, and nobody has acknowledged it
    ├── Failed                        the work's: it was tried and did not come good
    │   ├── Terminal                    … in a way that does not pass
    │   ├── RetriesExhausted            … `until=` never held; carries the last value
    │   ├── Cancelled                   … because somebody said that it shall not go on
    │   └── AttemptTimeout (TimeoutError)   an attempt took longer than it may
    │       └── DeadlineExceeded        … because the whole call's time is up
    ├── Uncertain                     a person's: what happened cannot be known from here
    │   ├── OutcomeUnknown              … an effect that must not happen twice may have happened
    │   ├── LeaseLost                   … another worker took over before the result was written
    │   └── ResultUnavailable           … it is done, but its value could not be kept
    ├── StoreError                    the store's: it cannot be reached, is full or is broken
    └── IllegalMove                   ours: a state may not follow another

Raised by your own work, to say what a failure is:

    TransientError                    it may pass: try it again
    PermanentError                    it will not pass
    ├── NeedsReview                   … a person has to look first; carries its `code`
    └── Violation                     … a rule that no policy may retry (VIOLATIONS); carries its `code`

Warnings about a policy that works but is unwise are `PolicyWarning`.
`oncemore.retry` raises the caller's own exception wherever there is one, with a note.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

__all__ = [
    "AttemptTimeout",
    "Blocked",
    "Cancelled",
    "CircuitOpen",
    "ConfigChanged",
    "CoolingDown",
    "DeadlineExceeded",
    "Error",
    "Failed",
    "IllegalMove",
    "InProgress",
    "KeyConflict",
    "KeyExpired",
    "LeaseLost",
    "MissingExtra",
    "NeedsReview",
    "OutcomeUnknown",
    "Parked",
    "PermanentError",
    "PolicyError",
    "PolicyWarning",
    "Quarantined",
    "Refused",
    "RestoredCopy",
    "ResultUnavailable",
    "RetriesExhausted",
    "StaleDecision",
    "StoreError",
    "Terminal",
    "TransientError",
    "Uncertain",
    "UsageError",
    "Violation",
]

#: What no policy, no option and no file can make retryable (CLASS-2).
VIOLATIONS = (
    "SCHEMA_INVALID",
    "FAIRCARE_VIOLATION",
    "GOVERNANCE_VIOLATION",
    "LINEAGE_MISMATCH",
    "CHECKSUM_MISMATCH",
    "ARTIFACT_IMMUTABLE",
    "RIGHTS_VIOLATION",
    "GOVERNANCE_BLOCKED",
)


class Error(Exception):
    """Everything that oncemore raises by itself.

    `run` is the `Run` that a durable step's error is about; None where there is none.
    """

    run: object = None


class UsageError(Error, ValueError):
    """The call or the configuration is wrong; nothing was tried."""


class PolicyError(UsageError):
    """A policy breaks a rule; the message names the field and what is allowed."""


class MissingExtra(UsageError, ImportError):
    """An optional part is not installed; the message names the extra that brings it."""


class Failed(Error):
    """The work was tried and did not come good."""


class Terminal(Failed):
    """It failed in a way that does not pass."""


class RetriesExhausted(Failed):
    """`until=` never held; `value` is what the last attempt returned."""

    def __init__(self, message: str, value: object = None) -> None:
        super().__init__(message)
        self.value = value

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.value)


class Cancelled(Failed):
    """Somebody said that it shall not go on; inside the work: raised by the next checkpoint."""


class AttemptTimeout(Failed, TimeoutError):
    """An attempt took longer than it may."""


class DeadlineExceeded(AttemptTimeout):
    """The time of the whole call, not only of one attempt, is up."""


class Refused(Error):
    """Not now, or not like this; nothing was tried."""


class Parked(Refused):
    """It is due later: `until` says when, in POSIX seconds; a worker or a later call goes on."""

    def __init__(self, message: str, until: float = 0.0) -> None:
        super().__init__(message)
        self.until = until

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.until)


class Blocked(Refused):
    """No attempt begins: people say no, or what they say cannot be known.

    reason  `switch`: somebody has stopped it; `approval_needed`: nobody has approved it;
            `control_state_unknown`: neither can be read; `moved`: the log is elsewhere now
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.reason)


class CircuitOpen(Refused):
    """Too many calls to `provider` failed: none goes through before `until`, in POSIX seconds."""

    def __init__(self, message: str, provider: str = "", until: float = 0.0) -> None:
        super().__init__(message)
        self.provider = provider
        self.until = until

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.provider, self.until)


class CoolingDown(Refused):
    """What it asks for is left alone, and nobody was asked: `outcome` says why.

    outcome   SKIPPED_BACKOFF until `until`, in POSIX seconds; SKIPPED_DUPLICATE: it is there and valid;
              SKIPPED_QUARANTINED, SKIPPED_TERMINAL: a person has to release it, and `until` is 0
    resource  what is left alone
    """

    def __init__(self, message: str, outcome: str = "", resource: str = "", until: float = 0.0) -> None:
        super().__init__(message)
        self.outcome, self.resource, self.until = outcome, resource, until

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.outcome, self.resource, self.until)


class InProgress(Refused):
    """Somebody else is at it: `worker`, whose lease lasts until `until`, in POSIX seconds."""

    def __init__(self, message: str, worker: str = "", until: float = 0.0) -> None:
        super().__init__(message)
        self.worker = worker
        self.until = until

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.worker, self.until)


class KeyConflict(Refused):
    """The key belongs to a call with other arguments."""


class KeyExpired(Refused):
    """It was done once and its record was pruned; it is not run a second time."""


class ConfigChanged(Refused):
    """Its result was made under another version or config, and the step says not to use it then."""


class Quarantined(Refused):
    """It waits for a person's decision; `run.held_for` says why, `engine.quarantine` has the evidence."""


class StaleDecision(Refused):
    """What was decided on is no longer what is there: somebody was first, or it has changed; look again."""


class RestoredCopy(Refused):
    """The store was copied or restored: what was done since would be done twice; somebody has to look."""


class Uncertain(Error):
    """What happened cannot be known from here."""


class OutcomeUnknown(Uncertain):
    """An effect that must not happen twice may have happened; a person or `reconcile` has to say."""


class LeaseLost(Uncertain):
    """Another worker took over before the result was written."""


class ResultUnavailable(Uncertain):
    """It is done, but its value could not be kept.

    `value` is the value for the caller whose call did the work; for every later one it is None.
    """

    def __init__(self, message: str, value: object = None) -> None:
        super().__init__(message)
        self.value = value

    def __reduce__(self) -> tuple[object, ...]:
        # Without the value: that it has no form is what this error is about.
        return type(self), (self.args[0],)


class StoreError(Error):
    """The store cannot be reached, is full or is broken; nothing is said to be stored that is not."""


class IllegalMove(Error):
    """A state may not follow another; a fault in oncemore, please report it."""


class TransientError(Exception):
    """Your work says: this may pass, try it again."""


class PermanentError(Exception):
    """Your work says: this will not pass."""


class NeedsReview(PermanentError):
    """Your work says: a person has to look at this first; it is held in quarantine, and never retried.

    `code` names the kind of doubt, for counting: AMBIGUOUS_NAME, UNKNOWN_PROFILE.
    """

    def __init__(self, code: str, message: str = "") -> None:
        if not isinstance(code, str) or not 1 <= len(code) <= 100 or not code.replace("_", "a").isalnum():
            raise UsageError(f"code is {code!r}; it takes 1 to 100 letters, digits and underscores")
        super().__init__(message or code)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.args[0])


class Violation(PermanentError):
    """Your work says: a rule is broken that no policy may retry; `code` is one of `VIOLATIONS`."""

    def __init__(self, code: str, message: str = "") -> None:
        if code not in VIOLATIONS:
            raise UsageError(f"{code!r} is not a violation; the codes are {', '.join(VIOLATIONS)}")
        super().__init__(message or code)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.args[0])


class PolicyWarning(UserWarning):
    """A policy that works but is unwise."""


def warn_policy(*texts: str) -> None:
    """Issue each text as a `PolicyWarning` at the nearest line that does not belong to this package."""
    if not texts:
        return
    from warnings import warn

    level, frame = 1, sys._getframe()  # noqa: SLF001 - `skip_file_prefixes` of warn() needs Python 3.12
    while frame.f_back is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    for text in texts:
        warn(text, PolicyWarning, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame belongs to this package; the methods that `dataclass` generates have no file."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "oncemore"
