"""Says what any exception means: may it pass, can it have taken effect, how long to stay away.

The theory. A *table* maps the class names of one library to *rules*; tables are kept by the library's
top-level module name. An exception's type is looked up along its MRO by module and name, so that
subclasses follow their bases and no client is ever imported. The first rule found decides, in three
rounds: what never passes (cancellation, exit, exhausted memory or stack), then every library, then
Python's builtins; a client's error is more than the `OSError` or `ValueError` it also is. Before the
last two come the rules that users taught (`taught`) and those of installed packages (`plugins`).

A rule is a fact or a reading (see `phases`). What no rule knows is understood through its explicit
`__cause__`, and never through `__context__`: a `KeyError` in somebody's `except ConnectionError:` is
a bug, not a lost connection. Without a cause it is permanent, by the rule `default:unmatched`.

Everything needed at failure time is loaded with this module: an import could fail just then, for want
of a file descriptor. And nothing that an exception object does makes `classify` raise: whatever
goes wrong while looking at it makes it unmatched. (A real Ctrl-C that arrives meanwhile passes.)

One limit is known: clients do not say that a redirect was followed, so a request that was answered
with a redirect to a host that refuses counts as not sent.
"""

from __future__ import annotations

from oncemore.classifiers import exception_groups, retry_libraries
from oncemore.classifiers.clients import (
    aio,
    aiohttp,
    asyncpg,
    aws,
    azure,
    google,
    grpc,
    httpx,
    nats,
    neo4j,
    openai,
    postgres,
    python,
    redis,
    requests,
    sqlalchemy,
    sqlite,
    stac,
    urllib,
    validators,
)
from oncemore.classifiers.http_status import classify_status, parse_retry_after
from oncemore.classifiers.verdict import UNMATCHED
from oncemore.policy.model import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from oncemore.classifiers.rules import Reading, Table

    #: What was found for a type: the answer itself, or how to read it and the rule's name.
    Found = Failure | tuple[Reading, str]

__all__ = ["Look", "ask_first", "classify", "classify_status", "parse_retry_after", "ready", "register"]

#: How many types' rules are remembered; when there are more, all are forgotten and found again.
MOST_TYPES: Final = 1024
#: How many exceptions are looked at for one answer, and how deep; what lies beyond is unmatched.
MOST_ERRORS: Final = 1000
DEEPEST: Final = 24

#: Never passing, whatever else their type may be.
_NEVER: Final[dict[str, Table]] = {
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
for _module in (
    aio, aiohttp, asyncpg, aws, azure, exception_groups, google, grpc, httpx, nats, neo4j, openai, postgres,
    python, redis, requests, retry_libraries, sqlalchemy, sqlite, stac, urllib, validators,
):  # fmt: skip
    for _name, _table in _module.TABLES.items():
        _tables[_name] = {**_tables.get(_name, {}), **_table}

#: What was found for a type, and the answers for those that no rule knows and that have no cause.
_rules: dict[type, Found] = {}
_strange: dict[type, Failure] = {}

#: Who puts other people's rules before ours, if anybody, and whether some may still be to come.
_before: Callable[[type, Found], Found] | None = None
_unready = True


def classify(error: BaseException, now: float) -> Failure:
    """Say what `error` means. Never raises. `now` is POSIX time, for a Retry-After that is a date."""
    try:
        rule = _rules.get(type(error)) or _learn(type(error))
        if rule.__class__ is Failure:
            return rule
        if rule[0] is _unknown and error.__cause__ is None:
            return _strange.get(type(error)) or _remembered(type(error))
        return Look(now).at(error)
    except Exception:  # noqa: BLE001 - the object misbehaves; its failure is then one nobody knows
        return _unmatched(type(error))


def register(module: str, table: Table) -> None:
    """Add rules for the exceptions of a top-level module; they replace rules of the same names."""
    _tables[module] = {**_tables.get(module, {}), **table}
    _rules.clear()


def ask_first(before: Callable[[type, Found], Found]) -> None:
    """Let `before(cls, ours)` put other people's rules before ours; all types are then looked at anew."""
    global _before
    _before = before
    _rules.clear()


def ready() -> None:
    """Load the rules of installed packages, once. Never raises.

    Whoever decorates functions calls it, long before anything fails; the first classification does
    too, for those who do nothing else.
    """
    global _unready
    if _unready:
        try:
            from oncemore.classifiers.plugins import load

            _unready = load()
        except Exception:  # noqa: BLE001 - there may be no descriptor left, and the next time will do
            _unready = True


class Look:
    """One classification under way: the time, and how much may still be looked at."""

    __slots__ = ("_depth", "left", "now")

    def __init__(self, now: float) -> None:
        self.now = now
        self.left = MOST_ERRORS
        self._depth = 0

    def at(self, error: BaseException) -> Failure:
        """Say what `error` means, by its rule or else through its explicit cause."""
        rule = _rules.get(type(error)) or _learn(type(error))
        self.left -= 1
        if isinstance(rule, Failure):
            return rule
        if self.left < 0 or self._depth >= DEEPEST:
            return _unmatched(type(error))
        reading, name = rule
        self._depth += 1
        try:
            return reading(error, self, name) or self._through_cause(error)
        finally:
            self._depth -= 1

    def beneath(self, error: BaseException) -> Failure | None:
        """Say what `error`, a known wrapper, wraps: its cause or its argument; None if that is unknown."""
        inner = error.__cause__
        if inner is None:
            inner = next((arg for arg in error.args[:4] if isinstance(arg, BaseException)), None)
        return None if inner is None else self.known(inner)

    def known(self, error: object) -> Failure | None:
        """Say what `error` means, or None when no rule knows it (or it is no exception)."""
        if not isinstance(error, BaseException):
            return None
        found = self.at(error)
        return None if found.rule == UNMATCHED else found

    def _through_cause(self, error: BaseException) -> Failure:
        cause = error.__cause__
        found = None if cause is None or not isinstance(error, Exception) else self.known(cause)
        if found is None:
            return _unmatched(type(error))
        return found if found.rule.startswith("cause:") else found._replace(rule=f"cause:{found.rule}")


def _learn(cls: type) -> Found:
    ready()
    rule = _find(cls)
    if _before is not None:
        rule = _before(cls, rule)
    if len(_rules) >= MOST_TYPES:
        _rules.clear()
    _rules[cls] = rule
    return rule


def _find(cls: type) -> Found:
    bases = [(_top(base), base.__name__) for base in cls.__mro__]
    libraries = [base for base in bases if base[0] != "builtins"]
    builtins = [base for base in bases if base[0] == "builtins"]
    for tables, names in ((_NEVER, bases), (_tables, libraries), (_tables, builtins)):
        for module, name in names:
            rule = tables.get(module, {}).get(name)
            if isinstance(rule, tuple):
                kind, sent, code = rule
                return Failure(kind, sent, None, code or _code(cls), f"{module}:{name}")
            if rule is not None:
                return rule, f"{module}:{name}"
    return _unknown, UNMATCHED


def _unknown(_error: BaseException, _look: Look, _rule: str) -> None:
    """No rule knows it: only its cause can tell."""


def _top(cls: type) -> str:
    module = cls.__module__
    return module.partition(".")[0] if isinstance(module, str) else ""


def _code(cls: type) -> str:
    """Count a class by its name, made harmless: short, and of letters, digits and underscores."""
    try:
        return "EXC_" + "".join(c if c.isalnum() or c == "_" else "_" for c in cls.__name__[:80])
    except Exception:  # noqa: BLE001 - a metaclass can make even the name raise
        return "EXC_"


def _unmatched(cls: type) -> Failure:
    return Failure("permanent", "maybe", None, _code(cls), UNMATCHED)


def _remembered(cls: type) -> Failure:
    """Return the failure of a type that no rule knows, made once for each."""
    if len(_strange) >= MOST_TYPES:
        _strange.clear()
    return _strange.setdefault(cls, _unmatched(cls))
