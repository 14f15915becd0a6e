"""Try it once more. Apply it once.

The front door: names only. What they stand for loads at first use, so that `import oncemore` costs
next to nothing and brings no third-party module.
"""

import sys

if getattr(sys, "argv", None) and sys.argv[0].endswith(("-m", "oncemore", "kfm-replay")):
    # The program, not a library: from here on it ends quietly on SIGINT and SIGTERM.
    import _signal  # type: ignore[import-not-found]

    _mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, (2, 15))
    import oncemore._startup  # noqa: F401

    _signal.pthread_sigmask(_signal.SIG_SETMASK, _mask)

from oncemore._version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.api import (
        additive,
        attempts,
        exponential,
        fixed,
        linear,
        proportional,
        retry,
        retrying,
    )
    from oncemore.breakers import Breaker, Budget, Rate
    from oncemore.codec.artifact import Artifact
    from oncemore.codec.seal import EarlierBodies
    from oncemore.codec.secret import Secret
    from oncemore.core.backoff import Jitter, Schedule
    from oncemore.core.cooldown import Cooldown
    from oncemore.core.decide import Decision
    from oncemore.core.model import Failure
    from oncemore.core.policy import Policy
    from oncemore.edges.classify import classify
    from oncemore.edges.taught import classifier
    from oncemore.engine.attempt import Attempt, current
    from oncemore.engine.context import context
    from oncemore.engine.helpers import still_running
    from oncemore.engine.history import Run
    from oncemore.engine.jobs import JobRun
    from oncemore.engine.limits import Straggler, remaining
    from oncemore.engine.retry import Report, decision
    from oncemore.engine.runtime import Engine
    from oncemore.errors import (
        AttemptTimeout,
        Blocked,
        Cancelled,
        CircuitOpen,
        ConfigChanged,
        CoolingDown,
        DeadlineExceeded,
        Error,
        Failed,
        InProgress,
        KeyConflict,
        KeyExpired,
        LeaseLost,
        MissingExtra,
        NeedsReview,
        OutcomeUnknown,
        Parked,
        PermanentError,
        PolicyError,
        PolicyWarning,
        Quarantined,
        Refused,
        RestoredCopy,
        ResultUnavailable,
        RetriesExhausted,
        StaleDecision,
        StoreError,
        Terminal,
        TransientError,
        Uncertain,
        UsageError,
        Violation,
    )
    from oncemore.opening import open  # noqa: A004 - read as oncemore.open
    from oncemore.steps import Step, applied, not_applied, step, unknown
    from oncemore.workers import Worker

_HOMES = {
    "oncemore.api": "additive attempts exponential fixed linear proportional retry retrying",
    "oncemore.breakers": "Breaker Budget Rate",
    "oncemore.codec.artifact": "Artifact",
    "oncemore.codec.seal": "EarlierBodies",
    "oncemore.codec.secret": "Secret",
    "oncemore.core.backoff": "Jitter Schedule",
    "oncemore.core.cooldown": "Cooldown",
    "oncemore.core.decide": "Decision",
    "oncemore.core.model": "Failure",
    "oncemore.core.policy": "Policy",
    "oncemore.edges.classify": "classify",
    "oncemore.edges.taught": "classifier",
    "oncemore.engine.attempt": "Attempt current",
    "oncemore.engine.context": "context",
    "oncemore.engine.helpers": "still_running",
    "oncemore.engine.history": "Run",
    "oncemore.engine.jobs": "JobRun",
    "oncemore.engine.limits": "Straggler remaining",
    "oncemore.engine.retry": "Report decision",
    "oncemore.engine.runtime": "Engine",
    "oncemore.errors": "AttemptTimeout Blocked Cancelled CircuitOpen ConfigChanged CoolingDown "
    "DeadlineExceeded Error Failed InProgress KeyConflict KeyExpired LeaseLost MissingExtra NeedsReview "
    "OutcomeUnknown Parked PermanentError PolicyError PolicyWarning Quarantined Refused "
    "RestoredCopy ResultUnavailable RetriesExhausted StaleDecision StoreError Terminal "
    "TransientError Uncertain UsageError Violation",
    "oncemore.opening": "open",
    "oncemore.steps": "Step applied not_applied step unknown",
    "oncemore.workers": "Worker",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Artifact",
    "Attempt",
    "AttemptTimeout",
    "Blocked",
    "Breaker",
    "Budget",
    "Cancelled",
    "CircuitOpen",
    "ConfigChanged",
    "Cooldown",
    "CoolingDown",
    "DeadlineExceeded",
    "Decision",
    "EarlierBodies",
    "Engine",
    "Error",
    "Failed",
    "Failure",
    "InProgress",
    "Jitter",
    "JobRun",
    "KeyConflict",
    "KeyExpired",
    "LeaseLost",
    "MissingExtra",
    "NeedsReview",
    "OutcomeUnknown",
    "Parked",
    "PermanentError",
    "Policy",
    "PolicyError",
    "PolicyWarning",
    "Quarantined",
    "Rate",
    "Refused",
    "Report",
    "RestoredCopy",
    "ResultUnavailable",
    "RetriesExhausted",
    "Run",
    "Schedule",
    "Secret",
    "StaleDecision",
    "Step",
    "StoreError",
    "Straggler",
    "Terminal",
    "TransientError",
    "Uncertain",
    "UsageError",
    "Violation",
    "Worker",
    "__version__",
    "additive",
    "applied",
    "attempts",
    "classifier",
    "classify",
    "context",
    "current",
    "decision",
    "exponential",
    "fixed",
    "linear",
    "not_applied",
    "open",
    "proportional",
    "remaining",
    "retry",
    "retrying",
    "step",
    "still_running",
    "unknown",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'oncemore' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
