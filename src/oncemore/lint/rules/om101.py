"""# OM101: a retry without a limit

The code tries again until it succeeds. If the failure is permanent, it never stops.

Found are `while True` loops and loops over a flag in which an exception leads to the next pass and no path gives up; `tenacity.retry` without `stop=`, `backoff.on_exception` without `max_tries=` or `max_time=`, `retrying` and `retry` without a limit, `urllib3.Retry(total=None)`, Celery tasks with `max_retries=None`, `redis` with `-1` retries; functions that call themselves in their own `except`.

## Why

A wrong password, a deleted bucket or a changed API does not heal. The loop then runs for ever: it holds a worker and a connection, fills the log, and adds load to a service that may be down because of the load. The caller never gets an error, so no alert is raised.

## How to mend it

Limit the attempts or the total time, and let the last error out.

Bad:

```python
import time
import requests

def fetch(url):
    while True:
        try:
            return requests.get(url, timeout=10)
        except requests.RequestException:
            time.sleep(5)
```

Good:

```python
import oncemore
import requests

@oncemore.retry(on=requests.RequestException, attempts=4, total_timeout=60)
def fetch(url):
    return requests.get(url, timeout=10)
```

`oncemore lint --fix` adds the missing limit to calls of the libraries above (five attempts). Loops have to be mended by hand.

## When it is fine

A process whose only purpose is to hold one connection, and that a supervisor watches, may reconnect for ever if it waits longer each time and reports that it is not connected. Say so: `# oncemore: allow OM101 because the supervisor restarts it after ten minutes without a connection`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oncemore.lint.edits import add_keyword, import_names, replace_node
from oncemore.lint.facts import FUNCTIONS, enclosing_function
from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.names import dotted_text, last_part
from oncemore.lint.provider_calls import is_network_exception
from oncemore.lint.retry_loops import find_retry_loops, is_harmless
from oncemore.lint.retry_settings import find_retry_settings, is_none
from oncemore.lint.statements import assigned_names, handler_types, list_calls, may_leave

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.lint.facts import ModuleFacts, Place, PlacedCall
    from oncemore.lint.model import SourceEdit
    from oncemore.lint.retry_settings import RetrySetting


def find_unbounded_retries(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield retries that nothing limits."""
    for loop in find_retry_loops(facts):
        if loop.is_endless:
            yield RuleMatch(loop.node, "this loop tries again for ever: limit the attempts or the total time")
    for setting in find_retry_settings(facts):
        if setting.facts.is_bounded is False:
            edits = add_limit(facts, setting)
            message = f"`{setting.library}` has no limit: bound the attempts or the total time"
            yield RuleMatch(setting.node, message, edits)
    for site in facts.calls:
        if site.place is not None and site.place.part == "handler" and _repeats_itself(facts, site):
            yield RuleMatch(site.node, "this function calls itself after every failure, without a limit")


def add_limit(facts: ModuleFacts, setting: RetrySetting) -> tuple[SourceEdit, ...]:
    """Return the edits that add a limit of five attempts."""
    if setting.library.startswith("celery") and (value := setting.keyword("max_retries")) is not None:
        return (replace_node(value, "5"),)
    if (total := setting.keyword("total")) is not None and is_none(total):
        return (replace_node(total, "5"),)
    return add_setting(facts, setting, setting.facts.limit)


def add_setting(facts: ModuleFacts, setting: RetrySetting, keyword: str) -> tuple[SourceEdit, ...]:
    """Return the edits that add a keyword to a retry setting, with the import that it needs."""
    if not keyword or setting.keyword(keyword.partition("=")[0]) is not None:
        return ()
    imports: list[SourceEdit] = []
    if "{module}" in keyword:
        # With `import tenacity` the name is written with its module; else it is imported beside the others.
        module, _, beside = setting.library.rpartition(".")
        func = setting.node.func if isinstance(setting.node, ast.Call) else setting.node
        prefix = ""
        if module != "tenacity":
            # Submodules do not have all names.
            return ()
        if isinstance(func, ast.Attribute):
            prefix = f"{dotted_text(func.value)}."
        else:
            needed = keyword.partition("{module}")[2].partition("(")[0]
            imports = import_names(facts, module, beside, needed)
        keyword = keyword.format(module=prefix)
    edit = add_keyword(facts, setting.node, keyword)
    return (edit, *imports) if edit is not None else ()


def _repeats_itself(facts: ModuleFacts, site: PlacedCall) -> bool:
    """Return whether a handler unconditionally calls the function it is in, with the same arguments."""
    function = enclosing_function(site.place)
    handler = site.place.node if site.place else None
    if (
        function is None
        or not isinstance(handler, ast.ExceptHandler)
        or last_part(site.node) != function.name
    ):
        return False
    outside = site.place.parent if site.place else None
    if (
        outside is None
        or not isinstance(outside.node, FUNCTIONS)
        or not _is_own_name(site.node.func, outside)
    ):
        return False
    # A handler that changes something, or leaves on a condition, does not repeat the same call for ever.
    others = [call for call in list_calls(handler.body) if call is not site.node]
    if assigned_names(handler.body) or not all(map(is_harmless, others)) or may_leave(handler.body[:-1]):
        return False
    top_calls = [node.value for node in handler.body if isinstance(node, ast.Return | ast.Expr)]
    top_calls = [one.value if isinstance(one, ast.Await) else one for one in top_calls]
    if site.node not in top_calls:
        return False
    types = handler_types(handler)
    is_broad = not types or any(last_part(one) in ("Exception", "BaseException") for one in types)
    if not is_broad and not any(is_network_exception(facts, one, site.place) for one in types):
        return False
    # Other arguments than the parameters mean other work: a smaller batch, a count, a fallback.
    parameters = [one.arg for one in function.args.args if one.arg not in ("self", "cls")]
    given = [one.id for one in site.node.args if isinstance(one, ast.Name)]
    return (
        len(given) == len(site.node.args)
        and given == parameters[: len(given)]
        and all(isinstance(one.value, ast.Name) and one.value.id == one.arg for one in site.node.keywords)
        and len(given) + len(site.node.keywords) == len(parameters)
    )


def _is_own_name(node: ast.expr, function: Place) -> bool:
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    # In a method the bare name means a function outside of the class.
    is_method = function.parent is not None and isinstance(function.parent.node, ast.ClassDef)
    return isinstance(node, ast.Name) and not is_method


RULE = LintRule("OM101", "retry without a limit", find_unbounded_retries, __doc__ or "")
