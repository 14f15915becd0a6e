"""Errors, grouped by whose move it is.

    Error
    ├── UsageError (ValueError)       yours: the call or the configuration is wrong
    │   ├── PolicyError                 … a policy; says which field and what is allowed
    │   └── MissingExtra (ImportError)  … an optional part is not installed; says what to install
    ├── Failed                        the work's: it was tried and did not come good
    │   ├── RetriesExhausted            … `until=` never held; carries the last value
    │   └── AttemptTimeout (TimeoutError)   an attempt took longer than it may
    │       └── DeadlineExceeded        … because the whole call's time is up
    └── IllegalMove                   ours: a state may not follow another

Warnings about a policy that works but is unwise are `PolicyWarning`.
`oncemore.retry` raises the caller's own exception wherever there is one, with a note.
"""

from __future__ import annotations

__all__ = [
    "AttemptTimeout",
    "DeadlineExceeded",
    "Error",
    "Failed",
    "IllegalMove",
    "MissingExtra",
    "PolicyError",
    "PolicyWarning",
    "RetriesExhausted",
    "UsageError",
]


class Error(Exception):
    """Everything that oncemore raises by itself."""


class UsageError(Error, ValueError):
    """The call or the configuration is wrong; nothing was tried."""


class PolicyError(UsageError):
    """A policy breaks a rule; the message names the field and what is allowed."""


class MissingExtra(UsageError, ImportError):
    """An optional part is not installed; the message names the extra that brings it."""


class Failed(Error):
    """The work was tried and did not come good."""


class RetriesExhausted(Failed):
    """`until=` never held; `value` is what the last attempt returned."""

    def __init__(self, message: str, value: object = None) -> None:
        super().__init__(message)
        self.value = value

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.value)


class AttemptTimeout(Failed, TimeoutError):
    """An attempt took longer than it may."""


class DeadlineExceeded(AttemptTimeout):
    """The time of the whole call, not only of one attempt, is up."""


class IllegalMove(Error):
    """A state may not follow another; a fault in oncemore, please report it."""


class PolicyWarning(UserWarning):
    """A policy that works but is unwise."""
