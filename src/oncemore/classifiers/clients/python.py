"""Rules for Python's own exceptions: builtins, operating system errors, DNS, TLS, urllib, async streams.

* An `OSError` is classified by its number. An exhausted resource (disk, descriptors, ports) is
  transient, with a code that names the resource; the policy decides how long to wait.
* Exceptions for wrong programs and wrong data (`TypeError`, `KeyError`, `ValueError`…) are permanent,
  even when raised from a transient failure. `RuntimeError` is not one of them: programs use it to wrap
  other errors.
* DNS failures are transient, also "no such name": new names, search domains and restarting resolvers
  look the same, and nothing was sent. Whether to give up is up to the policy.
* TLS: a refused certificate or a broken handshake is permanent; a stream that ended without a TLS
  close is a lost connection and transient.
* The timeout of a blocking socket is classified by the standard library function in which it occurred.
* urllib wraps every error until the request is written in a `URLError` whose `reason` is the original;
  later errors are raised unwrapped. `HTTPError` is a subclass and has its own rule.
* Cancellations of asyncio, anyio and trio are not here: they are never retried (`classify`).
"""

from __future__ import annotations

import errno

from oncemore.classifiers.http_status import classify_failed_status
from oncemore.classifiers.rules import find_wait_phase, make_connection_rule
from oncemore.policy.model import Failure
from oncemore.policy.verdict import UNMATCHED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind, Sent

_FACTS_BY_NAME: Final[dict[str, tuple[Kind, Sent, str]]] = {
    "ECONNREFUSED": ("transient", "no", "CONNECTION_REFUSED"),
    "ECONNRESET": ("transient", "maybe", "CONNECTION_RESET"),
    "ECONNABORTED": ("transient", "maybe", "CONNECTION_ABORTED"),
    "EPIPE": ("transient", "maybe", "CONNECTION_CLOSED"),
    "ESHUTDOWN": ("transient", "maybe", "CONNECTION_CLOSED"),
    "ENOTCONN": ("transient", "maybe", "CONNECTION_CLOSED"),
    "ETIMEDOUT": ("transient", "maybe", "TIMEOUT"),
    **dict.fromkeys(
        ("ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH"), ("transient", "maybe", "")
    ),
    # Busy at the moment.
    **dict.fromkeys(
        ("EAGAIN", "EWOULDBLOCK", "EINPROGRESS", "EALREADY", "EINTR"), ("transient", "maybe", "")
    ),
    **dict.fromkeys(("EBUSY", "ETXTBSY", "EDEADLK", "EADDRINUSE", "EADDRNOTAVAIL"), ("transient", "no", "")),
    **dict.fromkeys(("EIO", "ESTALE"), ("transient", "maybe", "")),
    # An exhausted resource.
    **dict.fromkeys(("EMFILE", "ENFILE", "ENOLCK", "ENOBUFS", "ENOMEM"), ("transient", "no", "")),
    **dict.fromkeys(("ENOSPC", "EDQUOT"), ("transient", "maybe", "")),
    # The same call will fail again.
    **dict.fromkeys(
        ("ENOENT", "EACCES", "EPERM", "EISDIR", "ENOTDIR", "EROFS", "ENAMETOOLONG", "ESRCH", "ECHILD"),
        ("permanent", "no", ""),
    ),
    "EEXIST": ("conflict", "no", ""),
}

#: Facts by error number; numbers that this platform does not define are left out.
FACTS_BY_ERRNO: Final = {
    getattr(errno, name): (kind, sent, code or f"ERRNO_{errno.errorcode[getattr(errno, name)]}")
    for name, (kind, sent, code) in _FACTS_BY_NAME.items()
    if hasattr(errno, name)
}


def classify_errno(error: BaseException, _classification: Classification, rule: str) -> Failure | None:
    """Classify an operating system error by its number; without a number it only wraps another error."""
    number = getattr(error, "errno", None)
    if not isinstance(number, int):
        return None
    fact = FACTS_BY_ERRNO.get(number)
    if fact is not None:
        kind, sent, code = fact
        return Failure(kind, sent, None, code, rule)
    # A known number without a fact keeps its name as code, and the policy's `unmatched` decides.
    name = errno.errorcode.get(number)
    return None if name is None else Failure("permanent", "maybe", None, f"ERRNO_{name}", UNMATCHED)


def _classify_timeout(error: BaseException, _classification: Classification, rule: str) -> Failure:
    # While it waits for a connection, the client has not sent the request.
    phase = find_wait_phase(error)
    sent: Sent = "no" if phase in ("CONNECT", "POOL") else "maybe"
    return Failure("transient", sent, None, f"TIMEOUT_{phase}" if phase else "TIMEOUT", rule)


def _classify_tls_error(error: BaseException, _classification: Classification, rule: str) -> Failure:
    sent: Sent = "no" if find_wait_phase(error) == "CONNECT" else "maybe"
    return Failure("permanent", sent, None, "TLS", rule)


def _classify_tls_close(error: BaseException, _classification: Classification, rule: str) -> Failure:
    sent: Sent = "no" if find_wait_phase(error) == "CONNECT" else "maybe"
    return Failure("transient", sent, None, "CONNECTION_CLOSED", rule)


#: Wrong programs and wrong data, with their subclasses (UnicodeError, ModuleNotFoundError…).
_PROGRAM_ERRORS: Final = (
    "ArithmeticError AssertionError AttributeError BufferError ImportError LookupError NameError "
    "NotImplementedError ReferenceError StopAsyncIteration StopIteration SyntaxError SystemError "
    "TypeError ValueError Warning"
)

BUILTINS: Final[Table] = {
    **dict.fromkeys(_PROGRAM_ERRORS.split(), ("permanent", "maybe", "")),
    "OSError": classify_errno,
    "TimeoutError": _classify_timeout,
    "ConnectionError": ("transient", "maybe", "CONNECTION_ERROR"),
    "ConnectionRefusedError": ("transient", "no", "CONNECTION_REFUSED"),
    "ConnectionResetError": ("transient", "maybe", "CONNECTION_RESET"),
    "ConnectionAbortedError": ("transient", "maybe", "CONNECTION_ABORTED"),
    "BrokenPipeError": ("transient", "maybe", "CONNECTION_CLOSED"),
    "BlockingIOError": ("transient", "maybe", "ERRNO_EAGAIN"),
    "InterruptedError": ("transient", "maybe", "ERRNO_EINTR"),
    "FileNotFoundError": ("permanent", "no", "ERRNO_ENOENT"),
    "FileExistsError": ("conflict", "no", "ERRNO_EEXIST"),
    "PermissionError": ("permanent", "no", "ERRNO_EACCES"),
    "IsADirectoryError": ("permanent", "no", "ERRNO_EISDIR"),
    "NotADirectoryError": ("permanent", "no", "ERRNO_ENOTDIR"),
    "ProcessLookupError": ("permanent", "no", "ERRNO_ESRCH"),
    "ChildProcessError": ("permanent", "no", "ERRNO_ECHILD"),
}

_STREAMS: Final[Table] = {
    "BrokenResourceError": make_connection_rule("CONNECTION_CLOSED"),  # closed by the peer or the network
    "EndOfStream": ("transient", "maybe", "CONNECTION_CLOSED"),
    "IncompleteRead": ("transient", "maybe", "CONNECTION_CLOSED"),
    "ClosedResourceError": ("permanent", "maybe", ""),  # closed by our own side
    "BusyResourceError": ("permanent", "no", ""),  # two tasks use one stream: a bug
    "WouldBlock": ("transient", "no", "ERRNO_EAGAIN"),
}


def _classify_http_error(error: BaseException, classification: Classification, _rule: str) -> Failure | None:
    status = getattr(error, "code", None)
    return (
        classify_failed_status(status, getattr(error, "headers", None), classification.now)
        if isinstance(status, int)
        else None
    )


def _classify_url_error(error: BaseException, classification: Classification, rule: str) -> Failure | None:
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return classification.classify_if_known(reason) or Failure(
            "transient", "maybe", None, "CONNECTION_ERROR", rule
        )
    # A reason in words is about the address ("unknown url type"), unless it has a cause.
    return classification.classify_wrapped(error) or Failure("permanent", "no", None, "INVALID_URL", rule)


TABLES: Final[dict[str, Table]] = {
    "builtins": BUILTINS,
    "socket": {
        "gaierror": ("transient", "no", "DNS"),
        "herror": ("transient", "no", "DNS"),
    },
    "ssl": {
        "SSLError": _classify_tls_error,
        "SSLCertVerificationError": ("permanent", "no", "TLS"),
        "SSLEOFError": _classify_tls_close,
        "SSLZeroReturnError": _classify_tls_close,
        "SSLSyscallError": _classify_tls_close,
    },
    "subprocess": {"TimeoutExpired": ("transient", "maybe", "TIMEOUT")},
    "asyncio": {
        "IncompleteReadError": ("transient", "maybe", "CONNECTION_CLOSED"),
        "LimitOverrunError": ("permanent", "maybe", ""),
        "InvalidStateError": ("permanent", "maybe", ""),
    },
    "anyio": _STREAMS,
    "trio": {**_STREAMS, "TooSlowError": ("transient", "maybe", "TIMEOUT")},
    "urllib": {
        "HTTPError": _classify_http_error,
        "URLError": _classify_url_error,
        "ContentTooShortError": ("transient", "maybe", "BODY_CUT"),
    },
    "http": {
        "RemoteDisconnected": ("transient", "maybe", "CONNECTION_CLOSED"),
        "IncompleteRead": ("transient", "maybe", "BODY_CUT"),
        "BadStatusLine": ("transient", "maybe", "PROTOCOL"),
        "LineTooLong": ("transient", "maybe", "PROTOCOL"),
        "UnknownProtocol": ("permanent", "maybe", "PROTOCOL"),
        "UnknownTransferEncoding": ("permanent", "maybe", "PROTOCOL"),
        "InvalidURL": ("permanent", "no", "INVALID_URL"),
        "NotConnected": ("permanent", "no", ""),
        "ImproperConnectionState": ("permanent", "maybe", ""),  # requests sent in the wrong order: a bug
        "UnimplementedFileMode": ("permanent", "no", ""),
        "HTTPException": ("transient", "maybe", "PROTOCOL"),
    },
}
