"""Try it once more. Apply it once.

The front door: names only. What they stand for loads at first use, so that `import oncemore` costs
next to nothing and brings no third-party module.
"""

from __future__ import annotations

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
    from oncemore.core.backoff import Jitter, Schedule
    from oncemore.core.decide import Decision
    from oncemore.core.model import Failure
    from oncemore.core.policy import Policy
    from oncemore.edges.classify import classify
    from oncemore.edges.taught import classifier
    from oncemore.engine.budget import Budget
    from oncemore.engine.helpers import still_running
    from oncemore.engine.limits import Straggler, remaining
    from oncemore.engine.retry import Report, decision
    from oncemore.errors import (
        AttemptTimeout,
        DeadlineExceeded,
        Error,
        Failed,
        MissingExtra,
        PermanentError,
        PolicyError,
        PolicyWarning,
        RetriesExhausted,
        TransientError,
        UsageError,
        Violation,
    )

_HOMES = {
    "oncemore.api": "additive attempts exponential fixed linear proportional retry retrying",
    "oncemore.core.backoff": "Jitter Schedule",
    "oncemore.core.decide": "Decision",
    "oncemore.core.model": "Failure",
    "oncemore.core.policy": "Policy",
    "oncemore.edges.classify": "classify",
    "oncemore.edges.taught": "classifier",
    "oncemore.engine.budget": "Budget",
    "oncemore.engine.helpers": "still_running",
    "oncemore.engine.limits": "Straggler remaining",
    "oncemore.engine.retry": "Report decision",
    "oncemore.errors": "AttemptTimeout DeadlineExceeded Error Failed MissingExtra PermanentError "
    "PolicyError PolicyWarning RetriesExhausted TransientError UsageError Violation",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "AttemptTimeout",
    "Budget",
    "DeadlineExceeded",
    "Decision",
    "Error",
    "Failed",
    "Failure",
    "Jitter",
    "MissingExtra",
    "PermanentError",
    "Policy",
    "PolicyError",
    "PolicyWarning",
    "Report",
    "RetriesExhausted",
    "Schedule",
    "Straggler",
    "TransientError",
    "UsageError",
    "Violation",
    "__version__",
    "additive",
    "attempts",
    "classifier",
    "classify",
    "decision",
    "exponential",
    "fixed",
    "linear",
    "proportional",
    "remaining",
    "retry",
    "retrying",
    "still_running",
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
