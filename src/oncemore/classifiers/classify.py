"""Classifies any exception: its kind, whether it may have taken effect, how long to wait.

A table maps the class names of one library to rules; tables are stored under the library's top-level
module name. The folder `clients` has them, and a new library is added there. `classify` looks up an
exception's type along its MRO by module and name, so subclasses follow their bases and no client library
is imported. The first match decides, in three rounds: errors that are never retried (cancellation, exit,
exhausted memory or stack), then all libraries, then Python's builtins. The libraries come first because a
client's error is often also an `OSError` or a `ValueError`. Custom rules (`custom`) and rules of installed
packages (`plugins`) come before the last two rounds.

A rule is a fact or a function (see `rules`). An error without a rule is classified by its explicit
`__cause__`, never by its `__context__`: a `KeyError` inside an `except ConnectionError:` block is a
bug and not a lost connection. Without a cause it is permanent, with the rule `default:unmatched`.

Everything needed at failure time is imported with this module, because an import during a failure can
fail itself, for example without free file descriptors. `classify` never raises because of the
exception object: an error while reading it makes the exception unmatched. (A Ctrl-C passes.)

Known limit: clients do not report followed redirects, so a request that was redirected to a host that
refuses the connection counts as not sent.
"""

from __future__ import annotations

from oncemore.classifiers import wrappers
from oncemore.classifiers.clients import CLIENTS
from oncemore.classifiers.http_status import classify_status, parse_retry_after
from oncemore.policy.model import Failure
from oncemore.policy.verdict import UNMATCHED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from oncemore.classifiers.rules import Reading, Table

    #: The rule for a type: the failure itself, or a function that reads the error, with the rule's name.
    FoundRule = Failure | tuple[Reading, str]

__all__ = [
    "Classification",
    "classify",
    "classify_status",
    "ensure_plugins_loaded",
    "parse_retry_after",
    "register_table",
    "set_custom_lookup",
]

#: Size of the caches; a full cache is cleared and filled again.
MAX_CACHED_TYPES: Final = 1024
#: Limits of one classification: the number of exceptions and their nesting; beyond them: unmatched.
MAX_ERRORS: Final = 1000
MAX_DEPTH: Final = 24

#: Errors that are never retried; checked before all other tables.
_NEVER_RETRIED: Final[dict[str, Table]] = {
    "asyncio": {"CancelledError": ("permanent", "maybe", "CANCELLED")},
    "concurrent": {"CancelledError": ("permanent", "maybe", "CANCELLED")},
    "trio": {"Cancelled": ("permanent", "maybe", "CANCELLED")},
    "builtins": {
        "KeyboardInterrupt": ("permanent", "maybe", "INTERRUPTED"),
        "SystemExit": ("permanent", "maybe", "EXIT"),
        "GeneratorExit": ("permanent", "maybe", "GENERATOR_EXIT"),
        "MemoryError": ("permanent", "maybe", "OUT_OF_MEMORY"),
        "RecursionError": ("permanent", "maybe", "RECURSION"),
    },
}

_tables: dict[str, Table] = {}
for _module in (*CLIENTS, wrappers):
    for _name, _table in _module.TABLES.items():
        _tables[_name] = {**_tables.get(_name, {}), **_table}

#: The rule of each type, and the finished failure of each type without a rule and without a cause.
_rule_cache: dict[type, FoundRule] = {}
_unmatched_cache: dict[type, Failure] = {}

#: The lookup of custom rules, set by `custom`; and whether plugins still have to be loaded.
_custom_lookup: Callable[[type, FoundRule], FoundRule] | None = None
_plugins_pending = True


def classify(error: BaseException, now: float) -> Failure:
    """Return the failure that `error` means. Never raises.

    `now` is POSIX time, for a Retry-After that is a date.
    """
    try:
        rule = _rule_cache.get(type(error)) or _lookup_rule(type(error))
        if rule.__class__ is Failure:
            return rule
        if rule[0] is _no_rule and error.__cause__ is None:
            return _unmatched_cache.get(type(error)) or _cached_unmatched(type(error))
        return Classification(now).classify_error(error)
    except Exception:  # noqa: BLE001 - an attribute or method of the exception object raised
        return _unmatched_failure(type(error))


def register_table(module: str, table: Table) -> None:
    """Add rules for the exceptions of a top-level module; they replace rules for the same class names."""
    _tables[module] = {**_tables.get(module, {}), **table}
    _rule_cache.clear()


def set_custom_lookup(before: Callable[[type, FoundRule], FoundRule]) -> None:
    """Install `before(cls, ours)`, which returns the rule to use for a type instead of `ours`.

    All cached rules are dropped.
    """
    global _custom_lookup
    _custom_lookup = before
    _rule_cache.clear()


def ensure_plugins_loaded() -> None:
    """Load the rules of installed packages, once. Never raises.

    `retry` calls it when it decorates a function, long before a failure; the first classification calls it
    for programs that use only `classify`.
    """
    global _plugins_pending
    if _plugins_pending:
        try:
            from oncemore.classifiers.plugins import load_plugins

            _plugins_pending = load_plugins()
        except Exception:  # noqa: BLE001 - for example no free file descriptor; the next call tries again
            _plugins_pending = True


class Classification:
    """One classification: the time, and how many exceptions it may still read."""

    __slots__ = ("_depth", "errors_left", "now")

    def __init__(self, now: float) -> None:
        self.now = now
        self.errors_left = MAX_ERRORS
        self._depth = 0

    def classify_error(self, error: BaseException) -> Failure:
        """Return the failure that `error` means, by its rule or else by its explicit cause."""
        rule = _rule_cache.get(type(error)) or _lookup_rule(type(error))
        # A group can hold millions of leaves, and causes can form a circle: both must end.
        self.errors_left -= 1
        if isinstance(rule, Failure):
            return rule
        if self.errors_left < 0 or self._depth >= MAX_DEPTH:
            return _unmatched_failure(type(error))
        reading, name = rule
        self._depth += 1
        try:
            return reading(error, self, name) or self._classify_by_cause(error)
        finally:
            self._depth -= 1

    def classify_wrapped(self, error: BaseException) -> Failure | None:
        """Return the failure inside `error`, a known wrapper: its cause or an exception among its arguments.

        Returns None if there is none, or if no rule knows it.
        """
        inner = error.__cause__
        if inner is None:
            inner = next((arg for arg in error.args[:4] if isinstance(arg, BaseException)), None)
        return None if inner is None else self.classify_if_known(inner)

    def classify_if_known(self, error: object) -> Failure | None:
        """Return the failure that `error` means; None if no rule knows it or it is not an exception."""
        if not isinstance(error, BaseException):
            return None
        failure = self.classify_error(error)
        return None if failure.rule == UNMATCHED else failure

    def _classify_by_cause(self, error: BaseException) -> Failure:
        cause = error.__cause__
        failure = None if cause is None or not isinstance(error, Exception) else self.classify_if_known(cause)
        if failure is None:
            return _unmatched_failure(type(error))
        return (
            failure if failure.rule.startswith("cause:") else failure._replace(rule=f"cause:{failure.rule}")
        )


def _lookup_rule(cls: type) -> FoundRule:
    ensure_plugins_loaded()
    rule = _find_rule(cls)
    if _custom_lookup is not None:
        rule = _custom_lookup(cls, rule)
    # Programs that create exception classes dynamically would otherwise grow the cache without limit.
    if len(_rule_cache) >= MAX_CACHED_TYPES:
        _rule_cache.clear()
    _rule_cache[cls] = rule
    return rule


def _find_rule(cls: type) -> FoundRule:
    bases = [(_top_module(base), base.__name__) for base in cls.__mro__]
    libraries = [base for base in bases if base[0] != "builtins"]
    builtins = [base for base in bases if base[0] == "builtins"]
    for tables, names in ((_NEVER_RETRIED, bases), (_tables, libraries), (_tables, builtins)):
        # The MRO lists the most special class first, so its rule wins over those of its bases.
        for module, name in names:
            rule = tables.get(module, {}).get(name)
            if isinstance(rule, tuple):
                kind, sent, code = rule
                return Failure(kind, sent, None, code or _class_code(cls), f"{module}:{name}")
            if rule is not None:
                return rule, f"{module}:{name}"
    return _no_rule, UNMATCHED


def _no_rule(_error: BaseException, _classification: Classification, _rule: str) -> None:
    """Return None, so that the cause decides: no rule knows this type."""


def _top_module(cls: type) -> str:
    module = cls.__module__
    return module.partition(".")[0] if isinstance(module, str) else ""


def _class_code(cls: type) -> str:
    """Return a code from a class name: short, with only letters, digits and underscores."""
    try:
        return "EXC_" + "".join(c if c.isalnum() or c == "_" else "_" for c in cls.__name__[:80])
    except Exception:  # noqa: BLE001 - a metaclass can make even the name raise
        return "EXC_"


def _unmatched_failure(cls: type) -> Failure:
    return Failure("permanent", "maybe", None, _class_code(cls), UNMATCHED)


def _cached_unmatched(cls: type) -> Failure:
    """Return the failure of a type that no rule knows; created once per type."""
    if len(_unmatched_cache) >= MAX_CACHED_TYPES:
        _unmatched_cache.clear()
    return _unmatched_cache.setdefault(cls, _unmatched_failure(cls))
