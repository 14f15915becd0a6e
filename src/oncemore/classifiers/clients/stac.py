"""What the errors of pystac-client mean.

An `APIError` made from an answer has its status and its text, but not its headers: nothing says how
long to stay away. A provider that answers `SlowDown`, in whatever words around it, throttles us; with a
status of 429 it has said so already.

Made otherwise it has neither status nor cause: pystac-client writes `raise APIError(str(err))` while
it handles `err`. That is the one place where we read a `__context__`, and only if the text shows that
it is the error which was rewritten, and not one that somebody else was busy with.
"""

from __future__ import annotations

from oncemore.classifiers.http_status import failed_status
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table

SLOWDOWN: Final = "STAC_SLOWDOWN"
#: How much of a provider's answer is searched for the word.
_MOST_TEXT: Final = 4000


def _answer(error: BaseException, look: Look, rule: str) -> Failure | None:
    text = error.args[0] if error.args and isinstance(error.args[0], str) else ""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        if status != 429 and "SlowDown" in text[:_MOST_TEXT]:
            return Failure("throttled", "no", None, SLOWDOWN, rule)
        return failed_status(status, None, look.now)
    rewritten = error.__context__
    if rewritten is not None and text == str(rewritten):
        return look.known(rewritten)
    return None


TABLES: Final[dict[str, Table]] = {
    "pystac_client": {
        "APIError": _answer,
        "ParametersError": ("permanent", "no", ""),
    }
}
