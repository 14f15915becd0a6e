"""Read how the retry libraries are configured: tenacity, backoff, urllib3, celery and others.

Each reader turns a call (or a bare decorator) into a `RetrySetting`, in which the rules see the same four
facts for every library: is it bounded, how does it wait, which exceptions does it retry, and which function
does it wrap. A fact that the code does not show is None or "unknown", and no rule reports it.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from oncemore.lint.names import last_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.lint.facts import FunctionNode, ModuleFacts, Place

    Reader = Callable[["_Arguments"], "RetryFacts"]


class RetryFacts(NamedTuple):
    """The facts that a reader finds in the arguments.

    is_bounded  whether attempts or time are limited; None if it cannot be seen
    wait        "none", "fixed", "growing" or "unknown"
    exceptions  expressions that name the retried exceptions; None if unknown, empty for all exceptions
    limit       the keyword to add for a limit, as source; `{module}` stands for the library
    spacing     the keyword to add for a growing wait
    """

    is_bounded: bool | None
    wait: str = "unknown"
    exceptions: list[ast.expr] | None = None
    limit: str = ""
    spacing: str = ""


class RetrySetting(NamedTuple):
    """One configured retry.

    library   the resolved name, such as "tenacity.retry"
    node      the call, or the name of a bare decorator
    function  the decorated function; None if the call is not a decorator
    """

    library: str
    node: ast.expr
    place: Place | None
    function: FunctionNode | None
    facts: RetryFacts

    def keyword(self, name: str) -> ast.expr | None:
        """Return the value of a keyword; None if it is not given."""
        return find_keyword(self.node, name)


class _Arguments:
    """The arguments of a retry call, with their resolved names."""

    def __init__(self, facts: ModuleFacts, node: ast.expr, place: Place | None) -> None:
        self.facts = facts
        self.place = place
        self.call = node if isinstance(node, ast.Call) else None
        self.given = {one.arg: one.value for one in self.call.keywords if one.arg} if self.call else {}
        # `**options` or `*arguments` may hold anything.
        self.is_open = self.call is not None and (
            any(one.arg is None for one in self.call.keywords)
            or any(isinstance(one, ast.Starred) for one in self.call.args)
        )

    def value(self, name: str, position: int = -1) -> ast.expr | None:
        """Return an argument by keyword or position."""
        if name in self.given:
            return self.given[name]
        if self.call is not None and 0 <= position < len(self.call.args):
            return self.call.args[position]
        return None

    def has_value(self, *names: str) -> bool:
        """Return whether one of these keywords is given with a value other than None."""
        return any(name in self.given and not is_none(self.given[name]) for name in names)

    def resolve(self, node: ast.AST) -> str:
        """Return the full name of an expression."""
        return self.facts.resolve(node, self.place)


def find_keyword(node: ast.AST, name: str) -> ast.expr | None:
    """Return the value of a keyword of a call; None if it is not given."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg == name:
                return keyword.value
    return None


def is_none(node: ast.AST | None) -> bool:
    """Return whether an expression is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def literal_number(node: ast.AST | None) -> float | None:
    """Return the value of a number literal, also a negative one; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = literal_number(node.operand)
        return None if number is None else -number
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value is not True:
        return float(node.value)
    return None


def list_items(node: ast.expr | None) -> list[ast.expr]:
    """Return the items of a tuple or list, or the expression itself as the only one."""
    if node is None:
        return []
    return list(node.elts) if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]


_TENACITY_WAITS = {
    "wait_none": "none", "wait_fixed": "fixed", "wait_exponential": "growing", "wait_incrementing": "growing",
    "wait_random_exponential": "growing", "wait_full_jitter": "growing", "wait_exponential_jitter": "growing",
}  # fmt: skip


def _read_tenacity(given: _Arguments) -> RetryFacts:
    # `retry(function)` and `Retrying(sleep, stop)` pass values by position, which is rare: leave them.
    is_open = given.is_open or bool(given.call and given.call.args)
    stop, wait = given.value("stop"), given.value("wait")
    is_endless = (stop is None and not is_open) or is_none(stop) or _names(given, stop, "stop_never")
    if wait is None:
        spacing = "unknown" if is_open else "none"
    else:
        spacing = _TENACITY_WAITS.get(given.resolve(wait).rpartition(".")[2].removesuffix("()"), "unknown")
    condition = given.value("retry")
    exceptions: list[ast.expr] | None = None
    if condition is None:
        exceptions = None if is_open else []
    elif _names(given, condition, "retry_if_exception_type") and isinstance(condition, ast.Call):
        exceptions = list_items(condition.args[0]) if condition.args else []
    return RetryFacts(
        is_bounded=False if is_endless else (None if stop is None else True),
        wait=spacing,
        exceptions=exceptions,
        limit="stop={module}stop_after_attempt(5)",
        spacing="wait={module}wait_random_exponential(max=60)",
    )


def _names(given: _Arguments, node: ast.expr | None, name: str) -> bool:
    return node is not None and given.resolve(node).removesuffix("()").rpartition(".")[2] == name


def _read_backoff(given: _Arguments) -> RetryFacts:
    generator = given.value("wait_gen", 0)
    is_constant = generator is not None and given.resolve(generator).endswith(".constant")
    # A handler of `on_backoff` may wait as well.
    wait = "fixed" if is_constant and given.value("on_backoff") is None else "growing"
    is_bounded = True if given.has_value("max_tries", "max_time") else (None if given.is_open else False)
    return RetryFacts(is_bounded, wait, list_items(given.value("exception", 1)), limit="max_tries=5")


def _read_retrying(given: _Arguments) -> RetryFacts:
    limits = ("stop", "stop_max_attempt_number", "stop_max_delay", "stop_func")
    is_bounded = True if given.has_value(*limits) else (None if given.is_open else False)
    waits = {name for name in given.given if name.startswith("wait")}
    wait = "unknown"
    if not given.is_open and waits <= {"wait_fixed"}:
        wait = "fixed" if waits else "none"
    return RetryFacts(is_bounded, wait, None, limit="stop_max_attempt_number=5")


def _read_retry_package(given: _Arguments) -> RetryFacts:
    """Read `retry(exceptions, tries=-1, delay=0, max_delay=None, backoff=1, jitter=0)`."""
    tries = given.value("tries", 1)
    is_endless = literal_number(tries) == -1 or (tries is None and not given.is_open)
    delay, factor, jitter = given.value("delay", 2), given.value("backoff", 4), given.value("jitter", 5)
    wait = "unknown"
    if not given.is_open and factor is None and jitter is None:
        wait = "fixed" if delay is not None and literal_number(delay) != 0 else "none"
    return RetryFacts(
        is_bounded=False if is_endless else (None if tries is None else True),
        wait=wait,
        exceptions=list_items(given.value("exceptions", 0)),
        limit="tries=5" if tries is None else "",
        spacing="delay=1, backoff=2" if delay is None else "backoff=2",
    )


def _read_stamina(given: _Arguments) -> RetryFacts:
    is_endless = is_none(given.value("attempts")) and is_none(given.value("timeout"))
    return RetryFacts(not is_endless, "growing", list_items(given.value("on")))


def _read_oncemore(given: _Arguments) -> RetryFacts:
    wait = given.value("wait")
    # `wait=5` is one number: the same delay every time.
    spacing = "growing" if wait is None else ("fixed" if literal_number(wait) is not None else "unknown")
    return RetryFacts(True, spacing, list_items(given.value("on")))


def _read_google(given: _Arguments) -> RetryFacts:
    timeout, deadline = given.value("timeout"), given.value("deadline")
    is_endless = is_none(timeout) and (deadline is None or is_none(deadline))
    wait = "fixed" if literal_number(given.value("multiplier")) == 1 else "growing"
    return RetryFacts(not is_endless, wait)


#: The counts of urllib3.Retry other than total. `redirect` does not count failures.
_URLLIB3_COUNTS = ("connect", "read", "status", "other")


def _read_urllib3(given: _Arguments) -> RetryFacts:
    total = given.value("total", 0)
    counts = [given.value(name) for name in _URLLIB3_COUNTS]
    counts = [one for one in counts if one is not None and not is_none(one)]
    is_endless = is_none(total) and not counts and not given.is_open
    # Retry(0), Retry(False) and Retry(redirect=2) with total=0 turn retries off.
    numbers = [total, *counts] if total is not None and not is_none(total) else counts
    is_off = bool(numbers) and all(literal_number(one) == 0 for one in numbers)
    factor = given.value("backoff_factor")
    wait = "unknown"
    if factor is not None:
        wait = "none" if literal_number(factor) == 0 and not is_off else "growing"
    elif not given.is_open and not is_off and len(given.call.args if given.call else ()) <= 1:
        wait = "none"
    return RetryFacts(
        is_bounded=not is_endless,
        wait=wait,
        limit="total=5",
        spacing="backoff_factor=0.5",
    )


def _read_celery(given: _Arguments) -> RetryFacts:
    limit, retried = given.value("max_retries"), given.value("autoretry_for")
    wait = "unknown"
    if retried is not None and not given.is_open:
        # Without retry_backoff the delay is default_retry_delay, 180 s each time.
        backoff = given.value("retry_backoff")
        is_off = isinstance(backoff, ast.Constant) and not backoff.value
        wait = "fixed" if backoff is None or is_off else "growing"
    return RetryFacts(
        is_bounded=False if is_none(limit) else (True if retried is not None else None),
        wait=wait,
        exceptions=list_items(retried) if retried is not None else None,
        spacing="retry_backoff=True",
    )


def _read_redis(given: _Arguments) -> RetryFacts:
    schedule, retries = given.value("backoff", 0), given.value("retries", 1)
    name = given.resolve(schedule).removesuffix("()").rpartition(".")[2] if schedule is not None else ""
    wait = {"NoBackoff": "none", "ConstantBackoff": "fixed"}.get(name, "unknown")
    count = literal_number(retries)
    # No retry, or a single immediate one, needs no delay.
    if count in (0, 1):
        wait = "unknown"
    return RetryFacts(count != -1, wait)


#: The readers, by full name.
READERS: dict[str, Reader] = {
    **dict.fromkeys(
        ("tenacity.retry", "tenacity.Retrying", "tenacity.AsyncRetrying", "tenacity.asyncio.AsyncRetrying"),
        _read_tenacity,
    ),
    "backoff.on_exception": _read_backoff,
    "retrying.retry": _read_retrying,
    **dict.fromkeys(("retry.retry", "retry.api.retry"), _read_retry_package),
    **dict.fromkeys(("stamina.retry", "stamina.retry_context"), _read_stamina),
    **dict.fromkeys(("oncemore.retry", "oncemore.attempts", "oncemore.step"), _read_oncemore),
    **dict.fromkeys(
        (
            *("google.api_core.retry.Retry", "google.api_core.retry_async.AsyncRetry"),
            *("google.api_core.retry.AsyncRetry", "google.api_core.retry.retry_unary.Retry"),
        ),
        _read_google,
    ),
    **dict.fromkeys(
        (
            *("urllib3.Retry", "urllib3.util.Retry", "urllib3.util.retry.Retry", "requests.adapters.Retry"),
            *("requests.packages.urllib3.util.retry.Retry", "requests.packages.urllib3.util.Retry"),
        ),
        _read_urllib3,
    ),
    "celery.shared_task": _read_celery,
    "redis.retry.Retry": _read_redis,
    "redis.asyncio.retry.Retry": _read_redis,
}
#: Readers whose bare name (`@retry`) already is a configuration.
_BARE = {"tenacity.retry", "retrying.retry"}
#: Settings that retry HTTP requests of a client and not a function.
HTTP_CLIENT_READERS = (_read_urllib3,)


def find_retry_settings(facts: ModuleFacts) -> list[RetrySetting]:
    """Return every configured retry of a module; computed once per module."""
    found = facts.shared.get(find_retry_settings)
    if found is None:
        found = facts.shared[find_retry_settings] = _read_module(facts)
    return found  # type: ignore[return-value]


def _read_module(facts: ModuleFacts) -> list[RetrySetting]:
    # Most modules import none of the libraries; celery tasks are recognised by their keywords instead.
    heads = {name.partition(".")[0] for name in facts.names.aliases.values()}
    known = heads & {name.partition(".")[0] for name in READERS}
    if not known and "max_retries" not in facts.source and "autoretry_for" not in facts.source:
        return []
    decorated: dict[int, FunctionNode] = {}
    settings = []
    for site in facts.functions:
        for decorator in site.node.decorator_list:
            decorated[id(decorator)] = site.node
            name = facts.resolve(decorator, site.place) if not isinstance(decorator, ast.Call) else ""
            if name in _BARE:
                arguments = _Arguments(facts, decorator, site.place)
                read = READERS[name](arguments)
                settings.append(RetrySetting(name, decorator, site.place, site.node, read))
    for call in facts.calls:
        name = facts.resolve(call.node.func, call.place)
        reader = READERS.get(name) or _celery_reader(call.node, id(call.node) in decorated)
        if reader is not None:
            read = reader(_Arguments(facts, call.node, call.place))
            function = decorated.get(id(call.node))
            library = name or "celery.task"
            settings.append(RetrySetting(library, call.node, call.place, function, read))
    return sorted(settings, key=lambda one: (one.node.lineno, one.node.col_offset))


def _celery_reader(call: ast.Call, is_decorator: bool) -> Reader | None:
    """Return the reader for `@app.task(...)` and `@celery.task(...)` with the keywords of celery."""
    if not is_decorator or last_part(call.func) not in ("task", "shared_task"):
        return None
    keywords = {keyword.arg for keyword in call.keywords}
    return _read_celery if keywords & {"max_retries", "autoretry_for"} else None
