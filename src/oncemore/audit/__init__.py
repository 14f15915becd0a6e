"""Audit events, the recorder that writes them, and their sinks: file, spool, stream and logging.

May import `policy`, `log`, `retries` and the message envelope of `messaging`. The public names load at first
use, so that a program without a sink does not pay for them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore._redact import mask_text
    from oncemore.audit.events import (
        AuditEvent,
        Idempotency,
        IdempotencyCleared,
        RetryAttempt,
        RetryExhausted,
        RetryRefused,
        RetrySucceeded,
        event_schema,
        parse_event,
        proof_schema,
    )
    from oncemore.audit.sinks import AuditFile, AuditStream, AuditSummary, to_logging
    from oncemore.audit.spool import AuditSpool

# The same names as strings: the imports above are only for the type checker.
_NAMES_BY_MODULE = {
    "_redact": "mask_text",
    "audit.events": "AuditEvent Idempotency IdempotencyCleared RetryAttempt RetryExhausted RetryRefused "
    "RetrySucceeded event_schema parse_event proof_schema",
    "audit.sinks": "AuditFile AuditStream AuditSummary to_logging",
    "audit.spool": "AuditSpool",
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

__all__ = [
    "AuditEvent",
    "AuditFile",
    "AuditSpool",
    "AuditStream",
    "AuditSummary",
    "Idempotency",
    "IdempotencyCleared",
    "RetryAttempt",
    "RetryExhausted",
    "RetryRefused",
    "RetrySucceeded",
    "event_schema",
    "mask_text",
    "parse_event",
    "proof_schema",
    "to_logging",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'oncemore.audit' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"oncemore.{_MODULE_OF_NAME[name]}"), name)
    globals()[name] = value  # so that the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
