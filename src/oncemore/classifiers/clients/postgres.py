"""Rules for PostgreSQL through psycopg and psycopg_pool.

The server's SQLSTATE decides. An error with severity ERROR means that the transaction is rolled back:
not sent. A session ended by an administrator (57P01) or a lost connection may have had its COMMIT in
transit: maybe sent.

Without an SQLSTATE, `OperationalError` covers two cases. A failed connection attempt has `.pgconn`, and
nothing was sent; only libpq's text distinguishes a wrong password from a starting server. Otherwise the
connection was lost.
"""

from __future__ import annotations

from oncemore.classifiers.rules import error_message
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind, Sent

#: The whole SQLSTATE is looked up first, then its class (two characters); all remaining ones are permanent.
_STATES: Final[dict[str, tuple[Kind, Sent]]] = {
    "08": ("transient", "maybe"),
    "08001": ("transient", "no"),
    "08004": ("transient", "no"),
    "0A": ("permanent", "no"),
    "22": ("permanent", "no"),
    "23": ("permanent", "no"),
    "25": ("permanent", "no"),
    "25006": ("transient", "no"),  # read-only: the primary has moved
    "25P03": ("transient", "no"),  # idle too long in a transaction, rolled back
    "25P04": ("transient", "no"),  # transaction_timeout, rolled back
    "28": ("permanent", "no"),
    "3D": ("permanent", "no"),
    "40": ("transient", "no"),  # serialization failure, deadlock: rolled back, try again
    "40002": ("permanent", "no"),
    "40003": ("transient", "maybe"),  # statement completion unknown
    "42": ("permanent", "no"),
    "53": ("transient", "no"),  # out of disk, memory, connections
    "54": ("permanent", "no"),
    "55006": ("transient", "no"),
    "55P03": ("transient", "no"),
    "57014": ("transient", "no"),  # cancelled, mostly by statement_timeout
    "57P01": ("transient", "maybe"),
    "57P02": ("transient", "maybe"),
    "57P03": ("transient", "no"),  # starting up or shutting down
    "57P05": ("transient", "maybe"),
    "58": ("transient", "maybe"),  # the server's own I/O
    "72": ("transient", "no"),  # snapshot too old
}

#: Phrases of libpq and psycopg when connecting fails, and the code of the same fault elsewhere.
_MESSAGE_CODES: Final = {
    "Connection refused": "CONNECTION_REFUSED",
    "No such file or directory": "CONNECTION_REFUSED",  # no Unix socket: no server listens
    "failed to resolve host": "DNS",
    "could not translate host name": "DNS",
    "timeout expired": "TIMEOUT_CONNECT",
    "SSL was required": "TLS",
    "certificate": "TLS",
    "password": "SQLSTATE_28P01",
    "pg_hba.conf": "SQLSTATE_28000",
    'FATAL:  role "': "SQLSTATE_28000",
    'FATAL:  database "': "SQLSTATE_3D000",
    "too many clients": "SQLSTATE_53300",
    "too many connections": "SQLSTATE_53300",
    "connection slots": "SQLSTATE_53300",
    "the database system is": "SQLSTATE_57P03",
    "closed the connection unexpectedly": "CONNECTION_CLOSED",
}


def classify_sqlstate(state: str, rule: str) -> Failure:
    """Return the failure for an SQLSTATE from any client."""
    kind, sent = _STATES.get(state) or _STATES.get(state[:2]) or ("permanent", "maybe")
    return Failure(kind, sent, None, f"SQLSTATE_{state}", rule)


def _classify_error(error: BaseException, _classification: Classification, rule: str) -> Failure:
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str) and len(state) == 5 and state.isalnum():
        return classify_sqlstate(state, "psycopg:sqlstate")
    return Failure("permanent", "no", None, f"EXC_{type(error).__name__[:80]}", rule)


def _classify_operational_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    if getattr(error, "sqlstate", None):
        return _classify_error(error, classification, rule)
    text = error_message(error)
    if getattr(error, "pgconn", None) is not None or text.startswith("failed to resolve host"):
        return _classify_connect_message(text, rule)
    # No SQLSTATE and no failed connection attempt: the connection was lost in use.
    return Failure("transient", "maybe", None, "CONNECTION_CLOSED", rule)


def _classify_connect_message(text: str, rule: str) -> Failure:
    # Only the part after the host name is searched: a host may be called "password".
    reason = text.rpartition(" failed: ")[2]
    code = next((code for phrase, code in _MESSAGE_CODES.items() if phrase in reason), "CONNECTION_FAILED")
    if code.startswith("SQLSTATE_"):
        return classify_sqlstate(code.removeprefix("SQLSTATE_"), rule)
    kind: Kind = "permanent" if code == "TLS" else "transient"
    return Failure(kind, "no", None, code, rule)


TABLES: Final[dict[str, Table]] = {
    "psycopg": {
        "OperationalError": _classify_operational_error,
        "ConnectionTimeout": ("transient", "no", "TIMEOUT_CONNECT"),
        "CancellationTimeout": ("transient", "maybe", "TIMEOUT"),
        "PipelineAborted": ("permanent", "no", ""),  # an earlier statement of the pipeline failed
        "Error": _classify_error,
    },
    "psycopg_pool": {
        "PoolTimeout": ("transient", "no", "TIMEOUT_POOL"),
        "TooManyRequests": ("throttled", "no", "POOL_FULL"),
        "PoolClosed": ("permanent", "no", "POOL_CLOSED"),
    },
}
