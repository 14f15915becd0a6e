"""What goes out: facts about what was done, for people and machines that were not there.

The names below load at first use: somebody who attaches no sink pays for none of it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore._redact import masked
    from oncemore.audit.events import (
        Event,
        Idempotency,
        IdempotencyCleared,
        RetryAttempt,
        RetryExhausted,
        RetryRefused,
        RetrySucceeded,
        event_from,
        proof_schema,
        schema,
    )
    from oncemore.audit.sinks import JsonLines, to_logging
    from oncemore.audit.spool import Spool
    from oncemore.audit.stream import AuditStream, Summary

_HOMES = {
    "_redact": "masked",
    "audit.events": "Event Idempotency IdempotencyCleared RetryAttempt RetryExhausted "
    "RetryRefused RetrySucceeded event_from proof_schema schema",
    "audit.sinks": "JsonLines to_logging",
    "audit.spool": "Spool",
    "audit.stream": "AuditStream Summary",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "AuditStream",
    "Event",
    "Idempotency",
    "IdempotencyCleared",
    "JsonLines",
    "RetryAttempt",
    "RetryExhausted",
    "RetryRefused",
    "RetrySucceeded",
    "Spool",
    "Summary",
    "event_from",
    "masked",
    "proof_schema",
    "schema",
    "to_logging",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'oncemore.audit' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"oncemore.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
