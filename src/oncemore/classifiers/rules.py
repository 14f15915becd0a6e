"""Shared rules for errors that wrap another error.

Most clients wrap the original error, and both contribute: the wrapper's class tells when it happened
(before or after something was sent), and the wrapped error tells the cause. So a client's "could not
connect" always counts as not sent, and its "broke while reading" always as maybe sent.

Wrapped means declared by the client: an explicit `__cause__`, or an exception among the arguments. The
implicit `__context__` is never followed here: it only names the error that was being handled at that
moment, and a request inside an `except ConnectionRefusedError:` block would inherit its "not sent".
"""

from __future__ import annotations

from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from oncemore.classifiers.classify import Classification
    from oncemore.policy.model import Kind, Sent

    #: A rule is the fact itself (kind, sent, code) or a function that reads it from the exception. The last
    #: argument of the function is the rule's name; it returns None if it cannot decide. A fact without a
    #: code gets its code from the name of the raised class.
    Reading = Callable[[BaseException, Classification, str], Failure | None]
    Rule = tuple[Kind, Sent, str] | Reading
    Table = dict[str, Rule]

_CONNECT_CODES: Final = {"TIMEOUT": "TIMEOUT_CONNECT", "CONNECTION_ERROR": "CONNECTION_FAILED"}
_IN_USE_CODES: Final = {"TIMEOUT": "TIMEOUT_READ"}


def classify_connect_error(error: BaseException, classification: Classification, rule: str) -> Failure:
    """Classify a failed connection attempt: nothing was sent; only a TLS refusal is permanent."""
    inner = classification.classify_wrapped(error)
    code = "CONNECTION_FAILED" if inner is None else inner.code
    kind: Kind = "permanent" if code == "TLS" else "transient"
    return Failure(kind, "no", None, _CONNECT_CODES.get(code, code), rule)


def make_connection_rule(default_code: str) -> Reading:
    """Return the rule for a connection that broke in use; `default_code` if nothing is wrapped."""

    def read(error: BaseException, classification: Classification, rule: str) -> Failure:
        inner = classification.classify_wrapped(error)
        if inner is None:
            return Failure("transient", "maybe", None, default_code, rule)
        kind: Kind = "permanent" if inner.code == "TLS" else "transient"
        return Failure(kind, "maybe", None, _IN_USE_CODES.get(inner.code, inner.code), rule)

    return read


def make_wrapper_rule(kind: Kind, sent: Sent, code: str) -> Reading:
    """Return the rule for a mere wrapper: the failure inside it, else this fact."""

    def read(error: BaseException, classification: Classification, rule: str) -> Failure:
        return classification.classify_wrapped(error) or Failure(kind, sent, None, code, rule)

    return read


def error_message(error: BaseException) -> str:
    """Return the first text among an error's arguments, limited in length."""
    # Not `str(error)`: a client's own `__str__` may raise or take long.
    return next((text[:1000] for text in error.args[:4] if isinstance(text, str)), "")


#: The functions in which clients wait, with the phase: functions of the standard library for blocking
#: clients, functions of the client itself for asynchronous ones.
_WAIT_PHASES: Final = {
    ("socket", "create_connection"): "CONNECT",
    ("urllib3.util.connection", "create_connection"): "CONNECT",
    ("ssl", "do_handshake"): "CONNECT",
    ("socket", "readinto"): "READ",
    ("ssl", "recv_into"): "READ",
    ("ssl", "recv"): "READ",
    ("ssl", "read"): "READ",
    ("asyncpg.connection", "connect"): "CONNECT",
    ("asyncpg.pool", "_acquire"): "POOL",
}
#: Modules that implement timeouts for their callers; the phase is that of the frame outside of them.
_WAIT_WRAPPERS: Final = ("asyncio.tasks", "asyncio.timeouts", "asyncpg._asyncio_compat")


def find_wait_phase(error: BaseException) -> str:
    """Return the phase in which the innermost function was waiting: CONNECT, POOL, READ, or ""."""
    traceback = error.__traceback__
    innermost = traceback
    # Bounded: a recursive program can leave a very long traceback.
    for _ in range(10_000):
        if traceback is None:
            break
        if traceback.tb_frame.f_globals.get("__name__") not in _WAIT_WRAPPERS:
            innermost = traceback
        traceback = traceback.tb_next
    if innermost is None:
        return ""
    frame = innermost.tb_frame
    return _WAIT_PHASES.get((frame.f_globals.get("__name__", ""), frame.f_code.co_name), "")


def passed_through_module(error: BaseException, module: str) -> bool:
    """Return whether an error passed through a function of this module."""
    traceback = error.__traceback__
    left = 10_000
    while traceback is not None and left and traceback.tb_frame.f_globals.get("__name__") != module:
        traceback, left = traceback.tb_next, left - 1
    return traceback is not None and left > 0
