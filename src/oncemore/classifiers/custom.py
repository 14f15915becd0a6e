"""Custom classifiers: rules that users write for their own errors, or to override ours.

A classifier is a function from an exception to a `Failure`, or to None if it does not apply. It is
called before all built-in rules for the types it was registered for. The most recently registered one
is called first; those of installed packages (`plugins`) are called after the program's own. The `rule`
of its answer is `user:` and its name.

A classifier cannot break a classification. If it raises or returns another type, it is ignored, with
one warning. Nor can it make an error retryable that must not be retried: it is not called for
cancellation, exit, exhausted memory, `PolicyViolation`, `NeedsReview`, groups (it is called for every
leaf) and oncemore's own errors, and an error raised from a `PolicyViolation` stays a violation.

Inside a classifier, `oncemore.classify` of the same error returns the answer without that classifier.
"""

from __future__ import annotations

from _thread import get_ident
from warnings import warn

from oncemore.classifiers.classify import set_custom_lookup
from oncemore.classifiers.http_status import MAX_WAIT_S
from oncemore.errors import VIOLATIONS, Error, NeedsReview, PolicyViolation, UsageError
from oncemore.policy.model import KINDS, Failure
from oncemore.policy.verdict import STOPPED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final, TypeVar

    from oncemore.classifiers.classify import Classification, FoundRule

    ClassifierFunction = TypeVar("ClassifierFunction", bound=Callable[[Any], Failure | None])

#: Limit of registered classifiers; a larger number is usually a registration in a loop by mistake.
MAX_RULES: Final = 256
MAX_NAME_LENGTH: Final = 80
MAX_CODE_LENGTH: Final = 100

_program_rules: tuple[_CustomRule, ...] = ()
_plugin_rules: tuple[_CustomRule, ...] = ()
#: The thread that is loading plugins: classifiers registered in it belong to installed packages.
_loading_thread = 0

#: Types for which no classifier is called.
_EXCLUDED_TYPES: Final = (PolicyViolation, NeedsReview, Error, BaseExceptionGroup)


def classifier(
    *of: str | type[Exception], name: str | None = None
) -> Callable[[ClassifierFunction], ClassifierFunction]:
    """Register a function from an exception to a `Failure`, or to None, as a classifier.

    of      exception types, with their subclasses; or names of modules ("package.module"), for all
            exception classes defined in them or below, without importing them
    name    the name in the answers' `rule` after "user:"; the function's name by default
    """
    targets = tuple(_check_target(target) for target in of)
    if not targets:
        raise UsageError("write @oncemore.classifier(TheError) or @oncemore.classifier('their.module')")

    def register(work: ClassifierFunction) -> ClassifierFunction:
        if not callable(work) or isinstance(work, type):
            raise UsageError(f"{work!r} is not a function; a classifier is a function of an exception")
        # CO_COROUTINE, read directly: `inspect` is too expensive to import here.
        if getattr(getattr(work, "__code__", None), "co_flags", 0) & 0x80:
            raise UsageError(f"{work.__name__} is an async function; a classifier must be synchronous")
        _add_rule(_CustomRule(work, targets, _check_name(name or str(getattr(work, "__name__", "")))))
        return work

    return register


def _check_target(target: object) -> str | type:
    if isinstance(target, type):
        if not issubclass(target, Exception) or issubclass(target, _EXCLUDED_TYPES):
            raise UsageError(
                f"{target.__name__} cannot have a classifier: name a type of Exception that may be retried"
            )
        return target
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
        raise UsageError(f"{target!r} is neither an exception type nor the name of a module")
    if target.partition(".")[0] in ("builtins", "oncemore"):
        raise UsageError(f"{target!r} is too general: name the exception types")
    return target


def _check_name(name: str) -> str:
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise UsageError(f"a classifier needs a name of at most {MAX_NAME_LENGTH} characters: give name=")
    return name


def _add_rule(rule: _CustomRule) -> None:
    """Put a rule first; the same rule registered again, as in a notebook, replaces its predecessor."""
    global _program_rules, _plugin_rules
    _drop_rules(lambda other: other.identity == rule.identity)
    if len(_program_rules) + len(_plugin_rules) >= MAX_RULES:
        raise UsageError(f"{MAX_RULES} classifiers are registered already; register each once, at import")
    if get_ident() == _loading_thread:
        _plugin_rules = (rule, *_plugin_rules)
    else:
        _program_rules = (rule, *_program_rules)
    set_custom_lookup(_find_custom_rule)


def forget_classifier(work: Callable[[Any], Failure | None]) -> None:
    """Remove the rules of a function, if there are any."""
    _drop_rules(lambda rule: rule.function is work)


def _drop_rules(unwanted: Callable[[_CustomRule], bool]) -> None:
    global _program_rules, _plugin_rules
    _program_rules = tuple(rule for rule in _program_rules if not unwanted(rule))
    _plugin_rules = tuple(rule for rule in _plugin_rules if not unwanted(rule))
    set_custom_lookup(_find_custom_rule)


def is_classifier(work: object) -> bool:
    """Return whether a function is registered as a classifier."""
    return any(rule.function is work for rule in (*_program_rules, *_plugin_rules))


def set_plugin_loading(is_loading: bool) -> None:
    """Mark the current thread as loading plugins, or end that mark."""
    global _loading_thread
    _loading_thread = get_ident() if is_loading else 0


class _CustomRule:
    """A registered classifier with its target types and its name."""

    __slots__ = ("_active_calls", "_has_warned", "function", "identity", "name", "targets")

    def __init__(
        self, work: Callable[[Any], Failure | None], targets: tuple[str | type, ...], name: str
    ) -> None:
        self.function = work
        self.targets = targets
        self.name = name
        self.identity = (
            getattr(work, "__module__", None),
            getattr(work, "__qualname__", work),
            targets,
            name,
        )
        self._active_calls: set[tuple[int, int]] = set()
        self._has_warned = False

    def covers_type(self, cls: type) -> bool:
        """Return whether the rule was registered for this type or one of its bases."""
        modules = [base.__module__ for base in cls.__mro__ if isinstance(base.__module__, str)]
        return any(
            any(f"{module}.".startswith(f"{target}.") for module in modules)
            if isinstance(target, str)
            else target in cls.__mro__
            for target in self.targets
        )

    def call_classifier(self, error: BaseException) -> Failure | None:
        """Return the classifier's answer; None if it has none, raises, or is running for this error."""
        call = (get_ident(), id(error))
        # `oncemore.classify` inside the classifier would otherwise recurse without end.
        if call in self._active_calls:
            return None
        self._active_calls.add(call)
        try:
            answer = self.function(error)
            return None if answer is None else self._check_answer(answer, error)
        except Exception as raised:  # noqa: BLE001 - a broken classifier must not break the classification
            self._warn_once(raised)
            return None
        finally:
            self._active_calls.discard(call)

    def _check_answer(self, answer: object, error: BaseException) -> Failure:
        if not isinstance(answer, Failure) or answer.kind not in KINDS or answer.sent not in ("no", "maybe"):
            raise UsageError("it must return an oncemore.Failure or None")
        wait, code = answer.retry_after, answer.code or f"EXC_{type(error).__name__[:MAX_NAME_LENGTH]}"
        if wait is not None and not wait >= 0:
            raise UsageError("its retry_after is not a number of seconds")
        if not isinstance(code, str) or len(code) > MAX_CODE_LENGTH or not code.isprintable():
            raise UsageError(f"its code is not a word of at most {MAX_CODE_LENGTH} characters")
        # No classifier may make a violation or a cancellation retryable.
        is_final = code in VIOLATIONS or code in STOPPED
        return Failure(
            "permanent" if is_final else answer.kind,
            answer.sent,
            None if wait is None else min(float(wait), MAX_WAIT_S),
            code,
            f"user:{self.name}",
        )

    def _warn_once(self, error: Exception) -> None:
        """Warn once that the classifier is ignored."""
        if not self._has_warned:
            self._has_warned = True
            # Only the type of an unexpected exception is shown: its message may hold a secret.
            reason = str(error) if isinstance(error, UsageError) else f"it raised {type(error).__name__}"
            emit_warning(f"the classifier {self.name} is ignored: {reason}")


def emit_warning(message: str) -> None:
    """Issue a warning; never raise, even if warnings are configured as errors."""
    try:  # noqa: SIM105 - contextlib would be one more import
        warn(message[:1000], RuntimeWarning, stacklevel=2)
    except Exception:  # noqa: BLE001, S110 - a replaced `showwarning` may raise as well
        pass


def _find_custom_rule(cls: type, ours: FoundRule) -> FoundRule:
    """Return the rule of a type: the matching classifiers, then our own rule."""
    is_stopped = isinstance(ours, Failure) and ours.code in STOPPED
    if is_stopped or not issubclass(cls, Exception) or issubclass(cls, _EXCLUDED_TYPES):
        return ours
    rules = tuple(rule for rule in (*_program_rules, *_plugin_rules) if rule.covers_type(cls))
    if not rules:
        return ours

    def read(error: BaseException, classification: Classification, _name: str) -> Failure | None:
        for rule in rules:
            failure = rule.call_classifier(error)
            if failure is not None and not (failure.may_pass and _is_from_violation(error, classification)):
                return failure
        if isinstance(ours, Failure):
            return ours
        reading, name = ours
        return reading(error, classification, name)

    return read, "user"


def _is_from_violation(error: BaseException, classification: Classification) -> bool:
    cause = classification.classify_if_known(error.__cause__)
    return cause is not None and cause.code in VIOLATIONS
