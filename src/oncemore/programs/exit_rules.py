"""What the end of a program means: done, worth another attempt, failed, or nobody knows.

Asked in this order, and the first that speaks decides:

    --ok-exit            done (0 is, unless another list has it)
    --fail-on-exit       failed for good
    --retry-on-exit      tried again
    --retry-on-output    tried again, if a line of the output matches
    the policy           if its classes name the code: EXIT_75, EXIT_*, SIGNAL_KILL
    the effect           once: nobody knows what has happened, it is held
                         idempotent, pure: failed for good if --retry-on-… was given, for then that is the
                         list of what passes; else tried again, but for 126 and 127, a shell's words for a
                         command that it cannot run

For work that may happen only once a list is a declaration: a program that ends like this has done nothing.
A program that was killed by a signal has the exit code that shells give it: 128 and the signal's number.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Final

from oncemore._values import Value
from oncemore.classifiers.verdict import Classes, matches
from oncemore.errors import UsageError
from oncemore.policy.model import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable

ANY: Final = frozenset(range(256))
#: What a shell ends with when it cannot run a command.
CANNOT_RUN, NOT_FOUND = 126, 127


class Meaning(Value):
    """What an exit code means: "done", "again", "failed" or "unknown"; which rule said so."""

    what: str
    rule: str

    @property
    def declared(self) -> bool:
        """Whether the user has said so, and with it that nothing was done."""
        return self.rule.startswith("exec:--")


class Rules(Value):
    """What a user has said about exit codes."""

    effect: str
    ok: frozenset[int] = frozenset()
    fail: frozenset[int] = frozenset()
    retry: frozenset[int] = frozenset()
    outputs: tuple[str, ...] = ()

    def meaning(self, code: int, matched: bool, classes: Classes | None) -> Meaning:
        """Return what an exit code means, and whether the output matched."""
        listed = self.fail | self.retry
        if code in self.ok or (code == 0 and (0 not in listed or self.retry == ANY)):
            return Meaning("done", "exec:--ok-exit")
        if code in self.fail:
            return Meaning("failed", "exec:--fail-on-exit")
        if code in self.retry:
            return Meaning("again", "exec:--retry-on-exit")
        if matched:
            return Meaning("again", "exec:--retry-on-output")
        return _by_policy(code, classes) or self._by_effect(code)

    def allow_retries(self, classes: Classes | None) -> bool:
        """Return whether there is an exit code after which the program is tried again."""
        named = () if classes is None else classes.retryable
        by_policy = any(name.startswith(("EXIT_", "SIGNAL_")) for name in named)
        return self.effect != "once" or bool(self.retry or self.outputs) or by_policy

    def _by_effect(self, code: int) -> Meaning:
        if self.effect == "once":
            return Meaning("unknown", "exec:once")
        if self.retry or self.outputs or code in (CANNOT_RUN, NOT_FOUND):
            return Meaning("failed", "exec:not listed")
        return Meaning("again", "exec:any exit")


def _by_policy(code: int, classes: Classes | None) -> Meaning | None:
    if classes is None:
        return None
    name = name_of(code)
    # A kind nobody names, so that only what is about programs can match: EXIT_75, EXIT_*, SIGNAL_TERM.
    asked = Failure("permanent", "maybe", None, name, "")
    lists = [("failed", classes.non_retryable), ("again", classes.retryable)]
    if classes.precedence == "retryable_first":
        lists.reverse()
    for what, names in lists:
        if matches(asked, [one for one in names if one.startswith(("EXIT_", "SIGNAL_"))]):
            return Meaning(what, "policy:classes")
    return None


def name_of(code: int) -> str:
    """Return the code that a failure has: EXIT_75, or SIGNAL_KILL."""
    try:
        return f"SIGNAL_{signal.Signals(code - 128).name.removeprefix('SIG')}"
    except ValueError:
        return f"EXIT_{code}"


def said(code: int) -> str:
    """Return an exit code as a person says it."""
    name = name_of(code)
    return f"exit code {code}" if name.startswith("EXIT_") else f"signal SIG{name[7:]} (exit code {code})"


def exits(option: str, text: str) -> frozenset[int]:
    """Return the exit codes in a list such as 1,75,100-110; "any" stands for all."""
    if text.strip() == "any":
        return ANY
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        ends = [low, high] if dash else [low, low]
        if not all(end.isdigit() and int(end) <= 255 for end in ends) or int(ends[0]) > int(ends[1]):
            raise UsageError(f"{option} is {text!r}; it takes exit codes from 0 to 255, as in 1,75,100-110")
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(found)


def check(named: dict[str, frozenset[int]]) -> None:
    """Refuse a code that stands in two lists; "any" yields to the others."""
    options = [(option, codes) for option, codes in named.items() if codes and codes != ANY]
    for at, (option, codes) in enumerate(options):
        for other, others in options[at + 1 :]:
            if both := codes & others:
                raise UsageError(f"{min(both)} stands in {option} and in {other}; it can mean one thing only")


def shown(codes: Iterable[int]) -> Any:
    """Return codes for a report."""
    return sorted(codes)
