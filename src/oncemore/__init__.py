"""Try it once more. Apply it once.

This module has the public names. Their modules load at first use, so that `import oncemore` costs almost
nothing and loads no third-party module.
"""

import sys

if getattr(sys, "argv", None) and sys.argv[0].endswith(("-m", "oncemore", "kfm-replay")):
    # The command line, not a library: from here on it exits on SIGINT and SIGTERM without a traceback.
    # Signals are blocked until its handlers are installed, so that none is handled by Python's own.
    import _signal  # type: ignore[import-not-found]

    # Windows has no signal masks.
    _has_masks = hasattr(_signal, "pthread_sigmask")
    _mask = _has_masks and _signal.pthread_sigmask(_signal.SIG_BLOCK, (2, 15))
    import oncemore._startup  # noqa: F401

    _has_masks and _signal.pthread_sigmask(_signal.SIG_SETMASK, _mask)

from oncemore._version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore import backoff, events, jitter
    from oncemore._listeners import EventSubscription, on_event
    from oncemore.artifacts.artifact import Artifact
    from oncemore.classifiers.classify import classify
    from oncemore.classifiers.custom import classifier
    from oncemore.errors import (
        AttemptTimeout,
        CallRefused,
        Cancelled,
        CircuitOpen,
        ConfigChanged,
        CoolingDown,
        DeadlineExceeded,
        Deferred,
        Error,
        InProgress,
        KeyConflict,
        KeyExpired,
        LeaseLost,
        LedgerMismatch,
        MissingExtra,
        NeedsReview,
        NotPermitted,
        OutcomeUncertain,
        OutcomeUnknown,
        PermanentError,
        PermanentFailure,
        PolicyError,
        PolicyViolation,
        PolicyWarning,
        Quarantined,
        RestoredCopy,
        ResultUnavailable,
        RetriesExhausted,
        SignalTimeout,
        StaleDecision,
        StepFailed,
        StoreError,
        TransientError,
        UsageError,
    )
    from oncemore.limits.cooldown_rules import Cooldown
    from oncemore.limits.declarations import Breaker, Budget, Rate
    from oncemore.log.encryption import EarlierBodies
    from oncemore.log.type_registry import register_type
    from oncemore.open_engine import open  # noqa: A004 - read as oncemore.open
    from oncemore.policy.backoff import Jitter, Schedule
    from oncemore.policy.decide import Decision
    from oncemore.policy.model import Failure
    from oncemore.policy.policy import Policy
    from oncemore.retries.deadlines import AbandonedCall, time_remaining
    from oncemore.retries.decorator import attempts, retry, retrying
    from oncemore.retries.report import RetryReport, get_decision
    from oncemore.retries.timeouts import abandoned_calls
    from oncemore.schedules.decorator import schedule
    from oncemore.steps.attempt import Attempt, current
    from oncemore.steps.context import context
    from oncemore.steps.decorator import Step, step
    from oncemore.steps.engine import Engine
    from oncemore.steps.reconcile import applied, not_applied, unknown
    from oncemore.steps.run import Run
    from oncemore.steps.secret import Secret
    from oncemore.workers.job_run import JobRun
    from oncemore.workers.worker import Worker
    from oncemore.workflows.workflow import Workflow, set_value, sleep, wait_for, workflow

# The same names as strings: the imports above are only for the type checker.
_NAMES_BY_MODULE = {
    "oncemore._listeners": "EventSubscription on_event",
    "oncemore.artifacts.artifact": "Artifact",
    "oncemore.classifiers.classify": "classify",
    "oncemore.classifiers.custom": "classifier",
    "oncemore.errors": "AttemptTimeout CallRefused Cancelled CircuitOpen ConfigChanged CoolingDown "
    "DeadlineExceeded Deferred Error InProgress KeyConflict KeyExpired LeaseLost "
    "LedgerMismatch MissingExtra NeedsReview NotPermitted OutcomeUncertain OutcomeUnknown "
    "PermanentError PermanentFailure PolicyError PolicyViolation PolicyWarning "
    "Quarantined RestoredCopy ResultUnavailable RetriesExhausted SignalTimeout StaleDecision "
    "StepFailed StoreError TransientError UsageError",
    "oncemore.limits.cooldown_rules": "Cooldown",
    "oncemore.limits.declarations": "Breaker Budget Rate",
    "oncemore.log.encryption": "EarlierBodies",
    "oncemore.log.type_registry": "register_type",
    "oncemore.open_engine": "open",
    "oncemore.policy.backoff": "Jitter Schedule",
    "oncemore.policy.decide": "Decision",
    "oncemore.policy.model": "Failure",
    "oncemore.policy.policy": "Policy",
    "oncemore.retries.deadlines": "AbandonedCall time_remaining",
    "oncemore.retries.decorator": "attempts retry retrying",
    "oncemore.retries.report": "RetryReport get_decision",
    "oncemore.retries.timeouts": "abandoned_calls",
    "oncemore.schedules.decorator": "schedule",
    "oncemore.steps.attempt": "Attempt current",
    "oncemore.steps.context": "context",
    "oncemore.steps.decorator": "Step step",
    "oncemore.steps.engine": "Engine",
    "oncemore.steps.reconcile": "applied not_applied unknown",
    "oncemore.steps.run": "Run",
    "oncemore.steps.secret": "Secret",
    "oncemore.workers.job_run": "JobRun",
    "oncemore.workers.worker": "Worker",
    "oncemore.workflows.workflow": "Workflow set_value sleep wait_for workflow",
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}
#: Public modules that need no import of their own: `oncemore.backoff.exponential(1)`.
_MODULES = ("backoff", "events", "jitter")

__all__ = [
    "AbandonedCall",
    "Artifact",
    "Attempt",
    "AttemptTimeout",
    "Breaker",
    "Budget",
    "CallRefused",
    "Cancelled",
    "CircuitOpen",
    "ConfigChanged",
    "Cooldown",
    "CoolingDown",
    "DeadlineExceeded",
    "Decision",
    "Deferred",
    "EarlierBodies",
    "Engine",
    "Error",
    "EventSubscription",
    "Failure",
    "InProgress",
    "Jitter",
    "JobRun",
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
    "Policy",
    "PolicyError",
    "PolicyViolation",
    "PolicyWarning",
    "Quarantined",
    "Rate",
    "RestoredCopy",
    "ResultUnavailable",
    "RetriesExhausted",
    "RetryReport",
    "Run",
    "Schedule",
    "Secret",
    "SignalTimeout",
    "StaleDecision",
    "Step",
    "StepFailed",
    "StoreError",
    "TransientError",
    "UsageError",
    "Worker",
    "Workflow",
    "__version__",
    "abandoned_calls",
    "applied",
    "attempts",
    "backoff",
    "classifier",
    "classify",
    "context",
    "current",
    "events",
    "get_decision",
    "jitter",
    "not_applied",
    "on_event",
    "open",
    "register_type",
    "retry",
    "retrying",
    "schedule",
    "set_value",
    "sleep",
    "step",
    "time_remaining",
    "unknown",
    "wait_for",
    "workflow",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF_NAME and name not in _MODULES:
        raise AttributeError(f"module 'oncemore' has no attribute {name!r}")
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"oncemore.{name}")
    value = getattr(import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value  # so that the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
