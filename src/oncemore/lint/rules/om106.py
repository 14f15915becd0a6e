"""# OM106: concurrency that grows with failures

A failure starts more work at once: another thread or task that does the same, or a larger pool.

Found are handlers and retry loops that raise a number of workers or a concurrency limit, pools whose size depends on the number of the attempt, and functions that start themselves again as a task or thread in their own `except` without a limit.

## Why

If the provider fails under load, each failure adds load. One slow minute turns into an outage that the clients keep alive by themselves.

## How to mend it

Keep the number of concurrent calls fixed, or lower it when calls fail. Try again in the same worker.

Bad:

```python
from concurrent.futures import ThreadPoolExecutor

def load_all(fetch, urls):
    for attempt in range(1, 4):
        try:
            with ThreadPoolExecutor(max_workers=10 * attempt) as pool:
                return list(pool.map(fetch, urls))
        except ConnectionError as error:
            print(f"attempt {attempt}: {error}")
    raise RuntimeError("the provider does not reply")
```

Good:

```python
import oncemore

@oncemore.step(effect="pure", on=ConnectionError, attempts=3)
def fetch(url: str) -> str:
    return download(url)

def load_all(urls):
    return fetch.map(urls, max_concurrency=10)
```

`map` also sends fewer calls while the provider throttles.

## When it is fine

Hedged reads: a second request to another replica after a delay, with a fixed limit. The linter reports only starts without a limit.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from oncemore.lint.facts import enclosing_function
from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.names import dotted_text, last_part
from oncemore.lint.retry_loops import find_retry_loops
from oncemore.lint.statements import loaded_names, walk_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.lint.facts import ModuleFacts, PlacedCall
    from oncemore.lint.retry_loops import RetryLoop

_SIZE = re.compile(
    r"(?i)(max_|num_|n_)?(workers|threads|processes|concurrency|parallelism|pool_size|parallel_\w+)$"
)
_POOLS = {"ThreadPoolExecutor", "ProcessPoolExecutor", "ThreadPool", "Pool", "Semaphore", "BoundedSemaphore"}


def find_growing_concurrency(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield places at which a failure starts more concurrent work."""
    for loop in find_retry_loops(facts):
        yield from _find_growth(loop)
    for site in facts.calls:
        if site.place is not None and _starts_itself(site):
            message = "each failure starts this function once more, beside the running ones: add a limit"
            yield RuleMatch(site.node, message)


def _find_growth(loop: RetryLoop) -> Iterator[RuleMatch]:
    for node in walk_nodes(loop.node.body):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Mult):
            name = dotted_text(node.target)
            if _SIZE.search(name) and any(node in walk_nodes(handler.body) for handler in loop.handlers):
                yield RuleMatch(node, f"`{name}` grows with every failure: keep it fixed or lower it")
        elif isinstance(node, ast.Call) and last_part(node) in _POOLS:
            counter = set() if isinstance(loop.node, ast.While) else {dotted_text(loop.node.target)}
            sizes = [*node.args, *(one.value for one in node.keywords)]
            if counter & loaded_names(sizes):
                yield RuleMatch(node, "the size of this pool grows with the attempts: keep it fixed")


def _starts_itself(site: PlacedCall) -> bool:
    """Return whether a handler starts its own function as a further task or thread."""
    function = enclosing_function(site.place)
    place = site.place
    if function is None or place is None or place.part != "handler":
        return False
    kind = last_part(site.node)
    if kind in ("create_task", "ensure_future", "run_coroutine_threadsafe", "start_soon"):
        started = site.node.args[0] if site.node.args else None
        # `create_task(work(x))` passes a coroutine, `start_soon(work, x)` a function.
        is_own = started is not None and last_part(started) == function.name
        given = started.args if isinstance(started, ast.Call) else site.node.args[1:]
    elif kind == "submit" and site.node.args:
        is_own, given = last_part(site.node.args[0]) == function.name, site.node.args[1:]
    elif kind == "Thread":
        target = next((one.value for one in site.node.keywords if one.arg == "target"), None)
        is_own, given = target is not None and last_part(target) == function.name, []
    else:
        return False
    # Arithmetic among the arguments is a count of attempts, and with it a limit.
    return is_own and not any(isinstance(node, ast.BinOp) for node in walk_nodes(given))


RULE = LintRule("OM106", "concurrency that grows with failures", find_growing_concurrency, __doc__ or "")
