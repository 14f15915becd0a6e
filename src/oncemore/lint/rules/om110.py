"""# OM110: dynamic execution in backoff logic

The code computes a delay, or decides about a retry, with `eval`, `exec`, `compile` or `__import__`.

Found are these calls in functions that are passed to a retry as `wait`, `backoff`, `jitter`, `retry` or the like, in functions whose names say that they compute a delay or a backoff, and in the handlers of retry loops.

## Why

A delay is a number, and its formula belongs in code that was reviewed. A formula in a string runs with all rights of the process, cannot be checked, and is executed exactly when the system is in trouble.

## How to mend it

Name the allowed schedules, and choose one by its name.

Bad:

```python
import oncemore

FORMULA = "2 ** number"

def compute_backoff(number):
    return eval(FORMULA, {"number": number})
```

Good:

```python
import oncemore

SCHEDULES = {"exponential": oncemore.backoff.exponential(1.0), "linear": oncemore.backoff.linear(5.0)}

def choose_backoff(name):
    return SCHEDULES[name]
```

## When it is fine

Never.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from oncemore.lint.facts import FUNCTIONS, walk_places
from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.names import last_part
from oncemore.lint.retry_loops import find_retry_loops
from oncemore.lint.retry_settings import find_retry_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.lint.facts import ModuleFacts, Place

_BACKOFF_NAME = re.compile(
    r"(?i)back_?off|jitter|retry_(delay|wait|interval)|(delay|wait)_(seconds|before)|(next|compute|calc"
    r"|calculate|get)_(delay|wait|sleep)|sleep_time"
)
_DYNAMIC = {"eval", "exec", "compile", "__import__"}
#: Keywords of retry libraries that take a function.
_HOOKS = {
    *("wait", "backoff", "jitter", "retry", "stop", "giveup", "wait_gen", "predicate", "until", "wait_func"),
    *("stop_func", "retry_on_exception", "retry_on_result", "on_retry", "wait_jitter", "schedule"),
}


def find_dynamic_backoff(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield dynamic execution in code that computes delays or decides about retries."""
    if not any(word in facts.source for word in _DYNAMIC):
        return
    in_backoff = find_backoff_places(facts)
    for site in facts.calls:
        name = facts.resolve(site.node.func, site.place)
        if name in _DYNAMIC and is_backoff_place(site.place, in_backoff):
            message = f"`{name}` in backoff logic: compute the delay with reviewed code"
            yield RuleMatch(site.node, message)


def find_backoff_places(facts: ModuleFacts) -> set[int]:
    """Return the ids of functions, handlers and lambdas that compute delays or decide about retries."""
    found = facts.shared.get(find_backoff_places)
    if found is None:
        found = facts.shared[find_backoff_places] = _list_backoff_places(facts)
    return found  # type: ignore[return-value]


def _list_backoff_places(facts: ModuleFacts) -> set[int]:
    settings = find_retry_settings(facts)
    registered = set()
    places = set()
    for setting in settings:
        if isinstance(setting.node, ast.Call):
            hooks = [one.value for one in setting.node.keywords if one.arg in _HOOKS]
            for value in [*hooks, *setting.node.args]:
                registered.add(last_part(value))
                places |= {id(node) for node in ast.walk(value) if isinstance(node, ast.Lambda)}
    for loop in find_retry_loops(facts):
        places |= {id(handler) for handler in loop.handlers}
    for site in facts.functions:
        if site.node.name in registered - {""} or _BACKOFF_NAME.search(site.node.name):
            places.add(id(site.node))
    return places


def is_backoff_place(place: Place | None, in_backoff: set[int]) -> bool:
    """Return whether a place is inside of backoff logic; a function inside of another counts by itself."""
    for outer in walk_places(place):
        if id(outer.node) in in_backoff:
            return True
        if isinstance(outer.node, (*FUNCTIONS, ast.ClassDef)):
            return False
    return False


RULE = LintRule("OM110", "dynamic execution in backoff logic", find_dynamic_backoff, __doc__ or "")
