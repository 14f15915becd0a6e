"""What a group of exceptions means: as much as its worst leaf.

A group passes only if every leaf passes; it may have taken effect if any leaf may have; and it asks us
to stay away as long as the leaf that asks longest. Its code is that of the leaf that decided: one that
no policy can make pass (a cancellation, a violation) before one that some policy could.
A group with more leaves than may be looked at (`MOST_ERRORS`) is unmatched: the rest is unknown.
"""

from __future__ import annotations

from oncemore.classifiers.verdict import STOPPED, UNMATCHED
from oncemore.errors import VIOLATIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.classify import Look
    from oncemore.classifiers.rules import Table
    from oncemore.policy.model import Failure, Sent

_WORSE: Final = {"transient": 0, "throttled": 1, "conflict": 3, "permanent": 4}


def _badness(failure: Failure) -> int:
    """Rank by how little may be made of it: what no policy can change is worse than what one can."""
    if failure.code in STOPPED:
        return 6
    if failure.code in VIOLATIONS:
        return 5
    return 2 if failure.rule == UNMATCHED else _WORSE[failure.kind]


def _group(error: BaseException, look: Look, _rule: str) -> Failure | None:
    worst: Failure | None = None
    sent: Sent = "no"
    wait: float | None = None
    for leaf in error.exceptions:  # type: ignore[attr-defined]
        if look.left <= 0:
            return None
        found = look.at(leaf)
        if worst is None or _badness(found) > _badness(worst):
            worst = found
        if found.sent == "maybe":
            sent = "maybe"
        if found.retry_after is not None and (wait is None or found.retry_after > wait):
            wait = found.retry_after
    if worst is None:
        return None
    # What nobody knows stays unmatched: a policy has a word on that.
    plain = worst.rule == UNMATCHED or worst.rule.startswith("group:")
    return worst._replace(sent=sent, retry_after=wait, rule=worst.rule if plain else f"group:{worst.rule}")


TABLES: Final[dict[str, Table]] = {"builtins": {"BaseExceptionGroup": _group}}
