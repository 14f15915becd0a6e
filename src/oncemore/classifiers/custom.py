"""Rules that users teach: what their own errors mean, or what ours mean to them.

A rule is a function of an exception that returns a `Failure`, or None when it does not know. It is asked
before every rule of ours, about the types it was written for; the rule that was taught last is asked
first, and those of installed packages (`plugins`) after the program's own. Its answer carries the rule
`user:` and its name.

Nothing it does breaks a classification. A rule that raises, or returns something else, is ignored, and
says so in one warning. Nor can it make pass what never passes: it is not asked about cancellation, exit,
exhausted memory, `Violation`s, `NeedsReview`, groups (of which every leaf is asked) and oncemore's own
errors; and an error that was raised from a `Violation` stays one.

Inside a rule, `oncemore.classify` of the same error gives the answer without that rule.
"""

from __future__ import annotations

from _thread import get_ident
from warnings import warn

from oncemore.classifiers.classify import ask_first
from oncemore.classifiers.http_status import LONGEST
from oncemore.classifiers.verdict import STOPPED
from oncemore.errors import VIOLATIONS, Error, NeedsReview, UsageError, Violation
from oncemore.policy.model import KINDS, Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final, TypeVar

    from oncemore.classifiers.classify import Found, Look

    Teaches = TypeVar("Teaches", bound=Callable[[Any], Failure | None])

#: How many rules may be taught; whoever needs more teaches them in a loop by mistake.
MOST_RULES: Final = 256
LONGEST_NAME: Final = 80
LONGEST_CODE: Final = 100

_taught: tuple[_Rule, ...] = ()
_installed: tuple[_Rule, ...] = ()
#: The thread that is loading installed packages' rules, so that theirs are told from the program's own.
_loading = 0

#: Never asked about.
_OURS: Final = (Violation, NeedsReview, Error, BaseExceptionGroup)


def classifier(*of: str | type[Exception], name: str | None = None) -> Callable[[Teaches], Teaches]:
    """Teach what errors mean: decorates a function from an exception to a `Failure`, or None.

    of      exception types, with their subclasses; or names of modules ("package.module"), for every
            exception class that is defined there or below, without importing it
    name    what the answers' `rule` calls it after "user:" (the function's name)
    """
    targets = tuple(_target(one) for one in of)
    if not targets:
        raise UsageError("write @oncemore.classifier(TheError) or @oncemore.classifier('their.module')")

    def teach(work: Teaches) -> Teaches:
        if not callable(work) or isinstance(work, type):
            raise UsageError(f"{work!r} is no function; a classifier is one, of an exception")
        if getattr(getattr(work, "__code__", None), "co_flags", 0) & 0x80:
            raise UsageError(f"{work.__name__} is an async function; a classifier answers at once")
        _add(_Rule(work, targets, _checked_name(name or str(getattr(work, "__name__", "")))))
        return work

    return teach


def _target(one: object) -> str | type:
    if isinstance(one, type):
        if not issubclass(one, Exception) or issubclass(one, _OURS):
            raise UsageError(f"{one.__name__} cannot be taught: no rule may make it pass")
        return one
    if not isinstance(one, str) or not all(part.isidentifier() for part in one.split(".")):
        raise UsageError(f"{one!r} is neither an exception type nor the name of a module")
    if one.partition(".")[0] in ("builtins", "oncemore"):
        raise UsageError(f"{one!r} is too much: name the exception types")
    return one


def _checked_name(name: str) -> str:
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise UsageError(f"a classifier needs a name of at most {LONGEST_NAME} characters: give name=")
    return name


def _add(rule: _Rule) -> None:
    """Put a rule first; the same rule written again, as in a notebook, replaces the one before."""
    global _taught, _installed
    _drop(lambda other: other.same == rule.same)
    if len(_taught) + len(_installed) >= MOST_RULES:
        raise UsageError(f"{MOST_RULES} classifiers are taught already; teach each once, at import")
    if get_ident() == _loading:
        _installed = (rule, *_installed)
    else:
        _taught = (rule, *_taught)
    ask_first(_before)


def forget(work: Callable[[Any], Failure | None]) -> None:
    """Forget the rules of a function, if there are any."""
    _drop(lambda rule: rule.work is work)


def _drop(unwanted: Callable[[_Rule], bool]) -> None:
    global _taught, _installed
    _taught = tuple(rule for rule in _taught if not unwanted(rule))
    _installed = tuple(rule for rule in _installed if not unwanted(rule))
    ask_first(_before)


def knows(work: object) -> bool:
    """Whether a function is taught."""
    return any(rule.work is work for rule in (*_taught, *_installed))


def loading(now: bool) -> None:
    """Say that what this thread teaches from here on comes from installed packages, or no longer."""
    global _loading
    _loading = get_ident() if now else 0


class _Rule:
    """What was taught: for which types, by which function."""

    __slots__ = ("_asking", "_complained", "name", "same", "targets", "work")

    def __init__(
        self, work: Callable[[Any], Failure | None], targets: tuple[str | type, ...], name: str
    ) -> None:
        self.work = work
        self.targets = targets
        self.name = name
        self.same = (getattr(work, "__module__", None), getattr(work, "__qualname__", work), targets, name)
        self._asking: set[tuple[int, int]] = set()
        self._complained = False

    def means(self, cls: type) -> bool:
        """Whether it was taught for this type or one of its bases."""
        modules = [base.__module__ for base in cls.__mro__ if isinstance(base.__module__, str)]
        return any(
            any(f"{module}.".startswith(f"{one}.") for module in modules)
            if isinstance(one, str)
            else one in cls.__mro__
            for one in self.targets
        )

    def ask(self, error: BaseException) -> Failure | None:
        """Return its answer; None when it has none, breaks, or is being asked about this very error."""
        this = (get_ident(), id(error))
        if this in self._asking:
            return None
        self._asking.add(this)
        try:
            found = self.work(error)
            return None if found is None else self._checked(found, error)
        except Exception as problem:  # noqa: BLE001 - whatever a rule does, classifying goes on
            self._complain(problem)
            return None
        finally:
            self._asking.discard(this)

    def _checked(self, found: object, error: BaseException) -> Failure:
        if not isinstance(found, Failure) or found.kind not in KINDS or found.sent not in ("no", "maybe"):
            raise UsageError("it returns something else than an oncemore.Failure or None")
        wait, code = found.retry_after, found.code or f"EXC_{type(error).__name__[:LONGEST_NAME]}"
        if wait is not None and not wait >= 0:
            raise UsageError("its retry_after is not a number of seconds")
        if not isinstance(code, str) or len(code) > LONGEST_CODE or not code.isprintable():
            raise UsageError(f"its code is not a word of at most {LONGEST_CODE} characters")
        fixed = code in VIOLATIONS or code in STOPPED
        return Failure(
            "permanent" if fixed else found.kind,
            found.sent,
            None if wait is None else min(float(wait), LONGEST),
            code,
            f"user:{self.name}",
        )

    def _complain(self, problem: Exception) -> None:
        """Say once that the rule is ignored; what it raised may hold a secret, so only its type is said."""
        if not self._complained:
            self._complained = True
            what = str(problem) if isinstance(problem, UsageError) else f"it raised {type(problem).__name__}"
            with_care(f"the classifier {self.name} is ignored: {what}")


def with_care(message: str) -> None:
    """Warn; where warnings are errors, this is no place to raise one."""
    try:  # noqa: SIM105 - contextlib would be one more import
        warn(message[:1000], RuntimeWarning, stacklevel=2)
    except Exception:  # noqa: BLE001, S110 - nor is one for what somebody's `showwarning` raises
        pass


def _before(cls: type, ours: Found) -> Found:
    """Return the rule of a type: those that were taught, and ours after them."""
    never = isinstance(ours, Failure) and ours.code in STOPPED
    if never or not issubclass(cls, Exception) or issubclass(cls, _OURS):
        return ours
    rules = tuple(rule for rule in (*_taught, *_installed) if rule.means(cls))
    if not rules:
        return ours

    def read(error: BaseException, look: Look, _name: str) -> Failure | None:
        for rule in rules:
            found = rule.ask(error)
            if found is not None and not (found.passing and _from_violation(error, look)):
                return found
        if isinstance(ours, Failure):
            return ours
        reading, name = ours
        return reading(error, look, name)

    return read, "user"


def _from_violation(error: BaseException, look: Look) -> bool:
    beneath = look.known(error.__cause__)
    return beneath is not None and beneath.code in VIOLATIONS
