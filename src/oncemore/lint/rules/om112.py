"""# OM112: retries inside of retries

A retried function contains another retry, so that the attempts multiply.

Found are functions with two retry decorators, retry loops inside of retried functions or other retry loops, and calls in them of functions of the same module that are retried themselves.

## Why

Three attempts around five attempts are fifteen calls, and with a third layer seventy-five. In an outage this multiplies the load at the worst moment, and the caller waits for all of the delays.

## How to mend it

Retry on one layer only: the one that knows whether the work may be repeated, which mostly is the outer one.

Bad:

```python
import oncemore
import requests

@oncemore.retry(on=requests.ConnectionError, attempts=5)
def fetch(url):
    return requests.get(url, timeout=10)

@oncemore.retry(on=requests.ConnectionError, attempts=3)
def load_all(urls):
    return [fetch(url) for url in urls]
```

Good:

```python
import oncemore
import requests

@oncemore.retry(on=requests.ConnectionError, attempts=5)
def fetch(url):
    return requests.get(url, timeout=10)

def load_all(urls):
    return [fetch(url) for url in urls]
```

Steps inside of steps are not reported: an outer `oncemore.step` meets the stored failure of the inner one at once, and attempts do not multiply.

## When it is fine

The two layers retry different errors, for example a conflict outside and a lost connection inside. Settings of the same library that name different exceptions are not reported; for the remaining ones say so in a suppression.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oncemore.lint.facts import FUNCTIONS, walk_places
from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.names import last_part
from oncemore.lint.retry_loops import find_retry_loops
from oncemore.lint.retry_settings import find_retry_settings
from oncemore.lint.statements import handler_types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.lint.facts import ModuleFacts, Place

_EVERYTHING = {"Exception", "BaseException"}
#: Names of exceptions; None if they are unknown, empty if all are retried.
Names = frozenset[str] | None


def find_nested_retries(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield retries whose attempts multiply those of a retry around them."""
    retried = _list_retried_functions(facts)
    loops = {
        id(loop.node): _read_names([one for handler in loop.handlers for one in handler_types(handler)])
        for loop in find_retry_loops(facts)
    }
    if not retried and len(loops) < 2:
        return
    yield from _find_stacked(facts)
    inside = {id(loop.node): loop for loop in find_retry_loops(facts)}
    for loop in inside.values():
        outer = _find_outer(loop.place, retried, loops)
        if _overlaps(outer, loops[id(loop.node)]):
            message = "this loop repeats its attempts inside of another retry: retry on one layer only"
            yield RuleMatch(loop.node, message)
    names = {node.name: exceptions for node, exceptions in retried.values()}
    for site in facts.calls:
        called = site.node.func
        is_own = isinstance(called, ast.Name) or (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and called.value.id in ("self", "cls")
        )
        name = last_part(called)
        if is_own and name in names and not _is_in(site.place, name):
            outer = _find_outer(site.place, retried, {})
            if _overlaps(outer, names[name]):
                message = (
                    f"`{name}` is retried itself, so that the attempts multiply: retry on one layer only"
                )
                yield RuleMatch(site.node, message)


def _list_retried_functions(
    facts: ModuleFacts,
) -> dict[int, tuple[ast.FunctionDef | ast.AsyncFunctionDef, Names]]:
    found = {}
    for setting in find_retry_settings(facts):
        # A step stores its failure, and a celery task is not repeated by calling its function.
        if setting.function is None or setting.library in (
            "oncemore.step",
            "celery.shared_task",
            "celery.task",
        ):
            continue
        found[id(setting.function)] = (setting.function, _read_names(setting.facts.exceptions))
    return found


def _read_names(expressions: list[ast.expr] | None) -> Names:
    if expressions is None:
        return None
    names = frozenset(last_part(one) for one in expressions)
    return frozenset() if names & _EVERYTHING else names


def _overlaps(outer: tuple[bool, Names], inner: Names) -> bool:
    """Return whether two retries surely share an exception."""
    is_found, names = outer
    if not is_found or names is None or inner is None:
        return False
    return not names or not inner or bool(names & inner)


def _find_outer(
    place: Place | None,
    retried: dict[int, tuple[ast.FunctionDef | ast.AsyncFunctionDef, Names]],
    loops: dict[int, Names],
) -> tuple[bool, Names]:
    """Return whether a retry is around a place in the same function, and the exceptions it retries."""
    for outer in walk_places(place):
        if id(outer.node) in loops:
            return True, loops[id(outer.node)]
        if id(outer.node) in retried:
            return True, retried[id(outer.node)][1]
        if isinstance(outer.node, (*FUNCTIONS, ast.Lambda)):
            break
    return False, None


def _is_in(place: Place | None, name: str) -> bool:
    return any(isinstance(outer.node, FUNCTIONS) and outer.node.name == name for outer in walk_places(place))


def _find_stacked(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield the second retry decorator of a function if both retry the same exceptions."""
    seen: dict[int, Names] = {}
    for setting in find_retry_settings(facts):
        if setting.function is None:
            continue
        names = _read_names(setting.facts.exceptions)
        if id(setting.function) in seen:
            if _overlaps((True, seen[id(setting.function)]), names):
                message = "two retry decorators multiply their attempts: keep one"
                yield RuleMatch(setting.node, message)
        else:
            seen[id(setting.function)] = names


RULE = LintRule("OM112", "retries inside of retries", find_nested_retries, __doc__ or "")
