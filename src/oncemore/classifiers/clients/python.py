"""What Python's own exceptions mean: builtins, operating system errors, names, TLS, timeouts.

* An `OSError` is read by its number. Running out of something (disk, descriptors, ports) is
  transient with a code that says of what; nothing here decides how long to wait for it.
* The exceptions of a wrong program or wrong data (`TypeError`, `KeyError`, `ValueError`…) are
  permanent even when they were raised from a passing failure. `RuntimeError` is not one of them: it
  is what people wrap other errors in.
* Names that do not resolve are transient, also for "no such name": new names, search domains and
  resolvers that restart all look like that, and nothing was sent. Whether to give up is policy.
* TLS: a refused certificate or a broken handshake is permanent; a stream that ended without saying
  goodbye is a lost connection like any other, and transient.
* A blocking socket's timeout is told apart by the standard function it happened in, if one did.
"""

from __future__ import annotations

import errno

from oncemore.classifiers.rules import waited_for
from oncemore.classifiers.verdict import UNMATCHED
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Kind, Sent

_NUMBERS: Final[dict[str, tuple[Kind, Sent, str]]] = {
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
    # Busy for now.
    **dict.fromkeys(
        ("EAGAIN", "EWOULDBLOCK", "EINPROGRESS", "EALREADY", "EINTR"), ("transient", "maybe", "")
    ),
    **dict.fromkeys(("EBUSY", "ETXTBSY", "EDEADLK", "EADDRINUSE", "EADDRNOTAVAIL"), ("transient", "no", "")),
    **dict.fromkeys(("EIO", "ESTALE"), ("transient", "maybe", "")),
    # Out of something.
    **dict.fromkeys(("EMFILE", "ENFILE", "ENOLCK", "ENOBUFS", "ENOMEM"), ("transient", "no", "")),
    **dict.fromkeys(("ENOSPC", "EDQUOT"), ("transient", "maybe", "")),
    # Wrong for good.
    **dict.fromkeys(
        ("ENOENT", "EACCES", "EPERM", "EISDIR", "ENOTDIR", "EROFS", "ENAMETOOLONG", "ESRCH", "ECHILD"),
        ("permanent", "no", ""),
    ),
    "EEXIST": ("conflict", "no", ""),
}

#: By number; on a platform without the name it is simply absent.
NUMBERS: Final = {
    getattr(errno, name): (kind, sent, code or f"ERRNO_{errno.errorcode[getattr(errno, name)]}")
    for name, (kind, sent, code) in _NUMBERS.items()
    if hasattr(errno, name)
}


def by_errno(error: BaseException, _look: Look, rule: str) -> Failure | None:
    """Read an operating system error by its number; one without a number only wraps another."""
    number = getattr(error, "errno", None)
    if not isinstance(number, int):
        return None
    fact = NUMBERS.get(number)
    if fact is not None:
        kind, sent, code = fact
        return Failure(kind, sent, None, code, rule)
    name = errno.errorcode.get(number)
    return None if name is None else Failure("permanent", "maybe", None, f"ERRNO_{name}", UNMATCHED)


def _timeout(error: BaseException, _look: Look, rule: str) -> Failure:
    phase = waited_for(error)
    sent: Sent = "no" if phase in ("CONNECT", "POOL") else "maybe"
    return Failure("transient", sent, None, f"TIMEOUT_{phase}" if phase else "TIMEOUT", rule)


def _tls(error: BaseException, _look: Look, rule: str) -> Failure:
    sent: Sent = "no" if waited_for(error) == "CONNECT" else "maybe"
    return Failure("permanent", sent, None, "TLS", rule)


def _tls_closed(error: BaseException, _look: Look, rule: str) -> Failure:
    sent: Sent = "no" if waited_for(error) == "CONNECT" else "maybe"
    return Failure("transient", sent, None, "CONNECTION_CLOSED", rule)


#: Wrong programs and wrong data. Their subclasses (UnicodeError, ModuleNotFoundError…) follow them.
_WRONG: Final = (
    "ArithmeticError AssertionError AttributeError BufferError ImportError LookupError NameError "
    "NotImplementedError ReferenceError StopAsyncIteration StopIteration SyntaxError SystemError "
    "TypeError ValueError Warning"
)

BUILTINS: Final[Table] = {
    **dict.fromkeys(_WRONG.split(), ("permanent", "maybe", "")),
    "OSError": by_errno,
    "TimeoutError": _timeout,
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

TABLES: Final[dict[str, Table]] = {
    "builtins": BUILTINS,
    "socket": {
        "gaierror": ("transient", "no", "DNS"),
        "herror": ("transient", "no", "DNS"),
    },
    "ssl": {
        "SSLError": _tls,
        "SSLCertVerificationError": ("permanent", "no", "TLS"),
        "SSLEOFError": _tls_closed,
        "SSLZeroReturnError": _tls_closed,
        "SSLSyscallError": _tls_closed,
    },
    "subprocess": {"TimeoutExpired": ("transient", "maybe", "TIMEOUT")},
}
