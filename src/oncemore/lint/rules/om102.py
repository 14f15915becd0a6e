"""# OM102: a retry without backoff

The code tries again at once, or always after the same time.

Found are retry loops that do not wait, or that sleep for a time that no attempt changes; `tenacity` without `wait=` or with `wait_fixed`, `backoff.constant`, `retry` without `backoff=`, `urllib3.Retry` with `backoff_factor=0` (its default), Celery tasks with `autoretry_for=` and without `retry_backoff=`, `redis` with `NoBackoff` or `ConstantBackoff`.

## Why

An overloaded service needs less traffic. Clients that try again at once multiply its load exactly then. Clients that all wait the same five seconds come back together every five seconds. Delays that grow, with some randomness, spread them.

## How to mend it

Let the delay grow, limit it, and add jitter.

Bad:

```python
import time
import requests

def fetch(url):
    for attempt in range(5):
        try:
            return requests.get(url, timeout=10)
        except requests.ConnectionError:
            time.sleep(2)
    raise RuntimeError(f"no reply from {url}")
```

Good:

```python
import oncemore
import requests

@oncemore.retry(on=requests.ConnectionError, attempts=5)
def fetch(url):
    return requests.get(url, timeout=10)
```

`oncemore.retry` doubles the delay and adds jitter without further settings. `oncemore lint --fix` adds the missing keyword to `tenacity`, `urllib3.Retry`, `retry` and Celery tasks.

## When it is fine

Waiting for a process on the same machine to start: it is alone, and nothing is overloaded. The linter cannot see that. A single immediate second try, for example on a connection that the server has closed, is not reported.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oncemore.lint.edits import replace_node
from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.names import dotted_text, last_part
from oncemore.lint.provider_calls import is_network_exception, is_provider_call
from oncemore.lint.retry_loops import WAIT_NAME, find_retry_loops, has_only_harmless_calls
from oncemore.lint.retry_settings import find_retry_settings, literal_number
from oncemore.lint.rules.om101 import add_setting
from oncemore.lint.statements import assigned_names, handler_types, list_calls, loaded_names, walk_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.lint.facts import ModuleFacts
    from oncemore.lint.model import SourceEdit
    from oncemore.lint.retry_loops import RetryLoop
    from oncemore.lint.retry_settings import RetrySetting

#: Two passes are one immediate second try, which is the usual answer to a connection that was closed.
_FEW_TRIES = 2


def find_retries_without_backoff(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield retries that wait a fixed time or do not wait."""
    reported = set()
    for loop in find_retry_loops(facts):
        message = _describe_loop(facts, loop)
        if message and id(loop.node) not in reported:
            reported.add(id(loop.node))
            yield RuleMatch(loop.node, message)
    for setting in find_retry_settings(facts):
        if setting.facts.wait in ("none", "fixed"):
            how = "does not wait between attempts" if setting.facts.wait == "none" else "waits a fixed time"
            message = f"`{setting.library}` {how}: let the delay grow"
            yield RuleMatch(setting.node, message, _add_backoff(facts, setting))


def _add_backoff(facts: ModuleFacts, setting: RetrySetting) -> tuple[SourceEdit, ...]:
    factor = setting.keyword("backoff_factor")
    if factor is not None and literal_number(factor) == 0:
        return (replace_node(factor, "0.5"),)
    return add_setting(facts, setting, setting.facts.spacing)


def _describe_loop(facts: ModuleFacts, loop: RetryLoop) -> str:
    if loop.max_tries is not None and loop.max_tries <= _FEW_TRIES:
        return ""
    if loop.waits:
        changing = _changing_names(loop)
        if all(_is_fixed_sleep(call, changing) for call in loop.waits):
            return "every attempt waits for the same time: let the delay grow"
        return ""
    is_remote = any(
        is_network_exception(facts, one, loop.place)
        for handler in loop.handlers
        for one in handler_types(handler)
    ) or any(is_provider_call(facts, call, loop.place) for call in list_calls(loop.attempt.body))
    # Code that repairs something (connects again, renews a token) has a reason to try at once.
    changes_state = any("." in name for handler in loop.handlers for name in assigned_names(handler.body))
    if is_remote and not changes_state and has_only_harmless_calls(loop) and not _waits_by_call(loop):
        return "failed attempts are repeated at once: wait, and let the delay grow"
    return ""


def _changing_names(loop: RetryLoop) -> set[str]:
    names = assigned_names(loop.node.body)
    # `sleep(error.retry_after)` is a new time for every failure.
    names |= {handler.name for handler in loop.handlers if handler.name}
    if not isinstance(loop.node, ast.While):
        names |= assigned_names([loop.node.target])
    return names


def _is_fixed_sleep(call: ast.Call, changing: set[str]) -> bool:
    """Return whether a call is `sleep` with an argument that is the same in every pass."""
    if last_part(call) != "sleep" or len(call.args) != 1 or call.keywords:
        return False
    argument = call.args[0]
    # A function in the argument may draw or compute anything; an attribute of a call as well.
    if any(isinstance(node, ast.Call | ast.Subscript | ast.Await) for node in walk_nodes([argument])):
        return False
    if literal_number(argument) is not None:
        # sleep(0) lets other tasks run; it is not a delay.
        return literal_number(argument) != 0
    return not loaded_names([argument]) & changing and not isinstance(argument, ast.IfExp)


def _waits_by_call(loop: RetryLoop) -> bool:
    """Return whether a call in the loop has the word for waiting in its arguments or receiver."""
    for call in list_calls(loop.node.body):
        words = [dotted_text(call.func), *(keyword.arg or "" for keyword in call.keywords)]
        if any(WAIT_NAME.search(word) or "poll" in word for word in words):
            return True
    return False


RULE = LintRule("OM102", "retry without backoff", find_retries_without_backoff, __doc__ or "")
