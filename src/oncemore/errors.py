"""The exceptions of oncemore, grouped by the party that has to act.

    Error
    ├── UsageError (ValueError)       the programmer: the call or the configuration is wrong
    │   ├── PolicyError                 a policy breaks a rule; names the field and the allowed values
    │   └── MissingExtra (ImportError)  an optional part is not installed; names the extra
    ├── CallRefused                   no attempt was made
    │   ├── Deferred                    the run is due later; carries `until`
    │   ├── CircuitOpen                 the provider's breaker is open; carries `provider` and `until`
    │   ├── CoolingDown                 the resource is in its cooldown; carries `outcome` and `until`
    │   ├── InProgress                  another worker holds the run; carries `worker` and `until`
    │   ├── KeyConflict                 the key belongs to other arguments
    │   ├── KeyExpired                  the work was done and its record was pruned
    │   ├── ConfigChanged               the result is of another version or config
    │   ├── NotPermitted                a switch or a missing approval; carries `reason`
    │   ├── Quarantined                 the run waits for an operator's decision
    │   ├── StaleDecision               the decision refers to an older state of the run
    │   └── RestoredCopy                the store is a copy that no operator has acknowledged
    ├── StepFailed                    the work: it was tried and failed
    │   ├── PermanentFailure            the error is not retryable
    │   ├── RetriesExhausted            `until=` was never satisfied; carries the last value
    │   ├── Cancelled                   an operator or the program cancelled the run
    │   └── AttemptTimeout (TimeoutError)   an attempt took longer than its limit
    │       └── DeadlineExceeded        the time of the whole call is used up
    ├── OutcomeUncertain              an operator: the outcome cannot be known from here
    │   ├── OutcomeUnknown              a `once` effect may have happened
    │   ├── LeaseLost                   another worker took over before the result was stored
    │   └── ResultUnavailable           the work is done, but its value could not be stored
    ├── SignalTimeout (TimeoutError)  no signal came before the time-out of `wait_for`
    ├── StoreError                    the store: unreachable, full or damaged
    │   └── LedgerMismatch              the log does not match a checkpoint: it was changed or replaced
    └── IllegalTransition             a bug in oncemore: a state may not follow another

Raised by user code to classify a failure:

    TransientError                    try again
    PermanentError                    do not try again
    ├── NeedsReview                   hold the run for an operator; carries `code`
    └── PolicyViolation               a rule that no policy may retry (VIOLATIONS); carries `code`

A `PolicyWarning` is issued for a policy that works but is unwise. `oncemore.retry` raises the caller's own
exception where there is one, with a note.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

__all__ = [
    "AttemptTimeout",
    "CallRefused",
    "Cancelled",
    "CircuitOpen",
    "ConfigChanged",
    "CoolingDown",
    "DeadlineExceeded",
    "Deferred",
    "Error",
    "IllegalTransition",
    "InProgress",
    "KeyConflict",
    "KeyExpired",
    "LeaseLost",
    "LedgerMismatch",
    "MissingExtra",
    "NeedsReview",
    "NotPermitted",
    "OutcomeUncertain",
    "OutcomeUnknown",
    "PermanentError",
    "PermanentFailure",
    "PolicyError",
    "PolicyViolation",
    "PolicyWarning",
    "Quarantined",
    "RestoredCopy",
    "ResultUnavailable",
    "RetriesExhausted",
    "SignalTimeout",
    "StaleDecision",
    "StepFailed",
    "StoreError",
    "TransientError",
    "UsageError",
]

#: Error codes that no policy, option or file can make retryable (CLASS-2).
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
    """Base class of the errors that oncemore raises.

    `run` is the `Run` that the error is about; None if there is none.
    """

    run: object = None


class UsageError(Error, ValueError):
    """The call or the configuration is wrong; nothing was tried."""


class PolicyError(UsageError):
    """A policy breaks a rule; the message names the field and the allowed values."""


class MissingExtra(UsageError, ImportError):
    """An optional part is not installed; the message names the extra that brings it."""


class StepFailed(Error):
    """The work was tried and failed."""


class PermanentFailure(StepFailed):
    """The work failed with an error that is not retryable."""


class RetriesExhausted(StepFailed):
    """`until=` was never satisfied; `value` is the value of the last attempt."""

    def __init__(self, message: str, value: object = None) -> None:
        super().__init__(message)
        self.value = value

    # Pickle calls a class with `args` only; every class with more parameters needs a method like this.
    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.value)


class Cancelled(StepFailed):
    """The run was cancelled; inside a running attempt the next checkpoint raises this."""


class AttemptTimeout(StepFailed, TimeoutError):
    """An attempt took longer than its time limit."""


class DeadlineExceeded(AttemptTimeout):
    """The time limit of the whole call is used up, not only that of one attempt."""


class CallRefused(Error):
    """The call was refused before an attempt was made."""


class Deferred(CallRefused):
    """The run is due at `until` (POSIX seconds); a worker or a later call continues it."""

    def __init__(self, message: str, until: float = 0.0) -> None:
        super().__init__(message)
        self.until = until

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.until)


class NotPermitted(CallRefused):
    """A switch, a missing approval or an unreadable control state keeps the attempt from beginning.

    reason  `switch`: a switch is on; `approval_needed`: the attempt is not approved;
            `control_state_unknown`: switches or approvals cannot be read; `moved`: the log has moved to
            another store
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.reason)


class CircuitOpen(CallRefused):
    """The breaker of `provider` is open: no call is sent before `until` (POSIX seconds)."""

    def __init__(self, message: str, provider: str = "", until: float = 0.0) -> None:
        super().__init__(message)
        self.provider = provider
        self.until = until

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.provider, self.until)


class CoolingDown(CallRefused):
    """The resource is in its cooldown, so its provider was not asked.

    outcome   SKIPPED_BACKOFF: until `until` (POSIX seconds); SKIPPED_DUPLICATE: the resource is present and
              valid; SKIPPED_QUARANTINED, SKIPPED_TERMINAL: an operator has to release it, and `until` is 0
    resource  the name of the resource
    """

    def __init__(self, message: str, outcome: str = "", resource: str = "", until: float = 0.0) -> None:
        super().__init__(message)
        self.outcome, self.resource, self.until = outcome, resource, until

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.outcome, self.resource, self.until)


class InProgress(CallRefused):
    """Another worker holds the run: `worker`, whose lease lasts until `until` (POSIX seconds)."""

    def __init__(self, message: str, worker: str = "", until: float = 0.0) -> None:
        super().__init__(message)
        self.worker = worker
        self.until = until

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.worker, self.until)


class KeyConflict(CallRefused):
    """The key belongs to a call with other arguments."""


class KeyExpired(CallRefused):
    """The work was done and its record was pruned; it does not run a second time."""


class ConfigChanged(CallRefused):
    """The result is of another version or config, and `on_version_change` is "fail"."""


class Quarantined(CallRefused):
    """The run waits for an operator; `run.held_for` has the reason, `engine.quarantine` the evidence."""


class StaleDecision(CallRefused):
    """The run changed after the operator read it, or another operator was first; read it again."""


class RestoredCopy(CallRefused):
    """The store is a copy: work done since it was made would be done twice until an operator agrees."""


class OutcomeUncertain(Error):
    """The outcome cannot be known from here."""


class OutcomeUnknown(OutcomeUncertain):
    """A `once` effect may have happened; `reconcile` or an operator has to find out."""


class LeaseLost(OutcomeUncertain):
    """Another worker took the run over before the result was stored."""


class ResultUnavailable(OutcomeUncertain):
    """The work is done, but its value could not be stored.

    `value` is the value for the caller whose call did the work; for every later call it is None.
    """

    def __init__(self, message: str, value: object = None) -> None:
        super().__init__(message)
        self.value = value

    def __reduce__(self) -> tuple[object, ...]:
        # Without the value, which cannot be encoded.
        return type(self), (self.args[0],)


class SignalTimeout(Error, TimeoutError):
    """No signal of the name came before the time-out of `oncemore.wait_for`."""


class StoreError(Error):
    """The store is unreachable, full or damaged; nothing unstored was reported as stored."""


class LedgerMismatch(StoreError):
    """The log does not match a checkpoint, or a checkpoint is not genuine; keep the store as evidence."""


class IllegalTransition(Error):
    """A state may not follow another: a bug in oncemore, please report it."""


class TransientError(Exception):
    """Raise it in a step or a retried function for a failure that is worth another attempt."""


class PermanentError(Exception):
    """Raise it for a failure that another attempt cannot change."""


class NeedsReview(PermanentError):
    """Raise it for a failure that an operator has to look at; the run is quarantined, never retried.

    `code` names the kind of doubt, for example AMBIGUOUS_NAME.
    """

    def __init__(self, code: str, message: str = "") -> None:
        if not isinstance(code, str) or not 1 <= len(code) <= 100 or not code.replace("_", "a").isalnum():
            raise UsageError(f"code is {code!r}; it takes 1 to 100 letters, digits and underscores")
        super().__init__(message or code)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.args[0])


class PolicyViolation(PermanentError):
    """Raise it for a broken rule that no policy may retry; `code` is one of `VIOLATIONS`."""

    def __init__(self, code: str, message: str = "") -> None:
        if code not in VIOLATIONS:
            raise UsageError(f"{code!r} is not a violation; the codes are {', '.join(VIOLATIONS)}")
        super().__init__(message or code)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, self.args[0])


class PolicyWarning(UserWarning):
    """Issued for a policy that works but is unwise."""


def warn_policy(*texts: str) -> None:
    """Issue each text as a `PolicyWarning` at the nearest line that does not belong to this package."""
    if not texts:
        return
    from warnings import warn

    # The warning has to name the user's line, however deep the check is.
    level, frame = 1, sys._getframe()  # noqa: SLF001 - `skip_file_prefixes` of warn() needs Python 3.12
    while frame.f_back is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    for text in texts:
        warn(text, PolicyWarning, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    """Return whether a frame belongs to this package; methods made by `dataclass` have no file."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "oncemore"


def log_warning(text: str) -> None:
    """Log a warning about something that must not stop a call, on one line whatever the text holds."""
    # Imported here: `oncemore.retry` loads this module, and most programs never come here.
    import logging

    from oncemore._redact import clean_text

    logging.getLogger("oncemore").warning("oncemore: %s", clean_text(text, 2000))
