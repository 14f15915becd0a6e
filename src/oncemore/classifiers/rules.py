"""The rules that look beneath an error, shared by every client's table.

Most clients wrap what really happened. Two things are then known from two places: the wrapper says
*when* it happened, before or after something was sent, and what is beneath says *what* happened.
So a client's "could not connect" is never sent whatever lies beneath, and its "broke while reading"
is maybe sent whatever lies beneath.

Beneath means said so by the client: an explicit `__cause__`, or an exception among its arguments.
The implicit `__context__` is never followed here: it only tells what somebody was busy with, and a
request made inside an `except ConnectionRefusedError:` block would inherit that "not sent".
"""

from __future__ import annotations

from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.policy.model import Kind, Sent

    #: Either the fact itself (kind, sent, code), or how to read it from the exception. The last
    #: argument of a reading is the rule's name; None means that it cannot tell. A fact without a
    #: code is counted by the name of the class that was raised.
    Reading = Callable[[BaseException, Look, str], Failure | None]
    Rule = tuple[Kind, Sent, str] | Reading
    Table = dict[str, Rule]

_CONNECTING: Final = {"TIMEOUT": "TIMEOUT_CONNECT", "CONNECTION_ERROR": "CONNECTION_FAILED"}
_TALKING: Final = {"TIMEOUT": "TIMEOUT_READ"}


def connecting(error: BaseException, look: Look, rule: str) -> Failure:
    """There was no connection yet, so nothing was sent; only a TLS refusal will not pass."""
    inner = look.beneath(error)
    code = "CONNECTION_FAILED" if inner is None else inner.code
    kind: Kind = "permanent" if code == "TLS" else "transient"
    return Failure(kind, "no", None, _CONNECTING.get(code, code), rule)


def talking(otherwise: str) -> Reading:
    """Make the rule for a connection that broke in use, which is called `otherwise` if nothing tells."""

    def read(error: BaseException, look: Look, rule: str) -> Failure:
        inner = look.beneath(error)
        if inner is None:
            return Failure("transient", "maybe", None, otherwise, rule)
        kind: Kind = "permanent" if inner.code == "TLS" else "transient"
        return Failure(kind, "maybe", None, _TALKING.get(inner.code, inner.code), rule)

    return read


def wrapping(kind: Kind, sent: Sent, code: str) -> Reading:
    """Make the rule for an error that only wraps another: that one's meaning, else this fact."""

    def read(error: BaseException, look: Look, rule: str) -> Failure:
        return look.beneath(error) or Failure(kind, sent, None, code, rule)

    return read


def message(error: BaseException) -> str:
    """Return the text an error was made with, bounded; never calls the error's own `__str__`."""
    return next((text[:1000] for text in error.args[:4] if isinstance(text, str)), "")


#: The functions in which a client waits, and for what: the standard library's where it blocks, a client's
#: own where it awaits.
_WAITS: Final = {
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
#: Where waiting is cut off for somebody else; what it was for is one step further out.
_FOR_OTHERS: Final = ("asyncio.tasks", "asyncio.timeouts", "asyncpg._asyncio_compat")


def waited_for(error: BaseException) -> str:
    """Say what the innermost function was waiting for: CONNECT, POOL, READ, or "" if unknown."""
    step = error.__traceback__
    last = step
    for _ in range(10_000):
        if step is None:
            break
        if step.tb_frame.f_globals.get("__name__") not in _FOR_OTHERS:
            last = step
        step = step.tb_next
    if last is None:
        return ""
    frame = last.tb_frame
    return _WAITS.get((frame.f_globals.get("__name__", ""), frame.f_code.co_name), "")


def came_through(error: BaseException, module: str) -> bool:
    """Whether an error came through a function of this module."""
    step = error.__traceback__
    left = 10_000
    while step is not None and left and step.tb_frame.f_globals.get("__name__") != module:
        step, left = step.tb_next, left - 1
    return step is not None and left > 0
