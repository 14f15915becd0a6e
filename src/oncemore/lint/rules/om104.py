"""# OM104: a provider's Retry-After is ignored

The code handles HTTP 429 or 503, or a rate limit error, waits and tries again, but reads neither `Retry-After` nor another statement of the provider about the time.

Found are branches on 429 or 503 that wait, and handlers of rate limit errors that wait, in modules that mention no such header or attribute; `urllib3.Retry(respect_retry_after_header=False)`.

## Why

The provider says when it will accept the next request. A client that comes earlier is refused again, and many providers lengthen the ban each time. A client that waits longer than necessary loses time.

## How to mend it

Wait at least as long as the reply says.

Bad:

```python
import time
import requests

def fetch(url):
    for attempt in range(5):
        response = requests.get(url, timeout=10)
        if response.status_code == 429:
            time.sleep(2 ** attempt)
            continue
        return response
    raise RuntimeError("the provider is still busy")
```

Good:

```python
import oncemore
import requests

@oncemore.retry(on=requests.HTTPError, attempts=5)
def fetch(url):
    response = requests.get(url, timeout=10)
    response.raise_for_status()
    return response
```

`oncemore.retry` reads `Retry-After` from the errors of the usual clients.

## When it is fine

The provider sends no such header. Say so with the name of the provider in the reason.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from oncemore.lint.edits import replace_node
from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.names import last_part
from oncemore.lint.retry_loops import find_retry_loops
from oncemore.lint.retry_settings import find_retry_settings
from oncemore.lint.statements import handler_types, list_calls, walk_own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.lint.facts import ModuleFacts

#: Words that show that the time of the provider is read.
_READS_TIME = re.compile(
    r"retry[-_ ]?after|ratelimit[-_]?reset|rate[-_]limit[-_]reset|x-rate|retry_delay|retryinfo"
)
_RATE_ERROR = re.compile(r"(?i)ratelimit|toomanyrequests|throttl|slowdown")
_BUSY_STATUSES = {429, 503}


def find_ignored_retry_after(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield places that wait after 429 or 503 without reading the time that the provider states."""
    for setting in find_retry_settings(facts):
        value = setting.keyword("respect_retry_after_header")
        if isinstance(value, ast.Constant) and value.value is False:
            message = "`Retry` is set to ignore the Retry-After header of the provider"
            yield RuleMatch(setting.node, message, (replace_node(value, "True"),))
    # The option is not a sign that the code reads the header.
    if _READS_TIME.search(facts.lowered.replace("respect_retry_after_header", "")):
        return
    for site in facts.loops:
        for node, _ in walk_own(site.node.body):
            if isinstance(node, ast.If) and _tests_busy_status(node.test) and _sleeps(node.body):
                yield RuleMatch(node, "the wait after 429 or 503 ignores Retry-After: read it from the reply")
    for loop in find_retry_loops(facts):
        for handler in loop.handlers:
            is_rate_error = any(_RATE_ERROR.search(last_part(one)) for one in handler_types(handler))
            if is_rate_error and _sleeps(handler.body):
                yield RuleMatch(handler, "the wait after a rate limit error ignores the time it states")


def _tests_busy_status(test: ast.expr) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.In):
            values = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
            if any(isinstance(one, int) and one in _BUSY_STATUSES for one in values):
                return True
    return False


def _sleeps(statements: list[ast.stmt]) -> bool:
    return any(last_part(call) == "sleep" for call in list_calls(statements))


RULE = LintRule("OM104", "Retry-After is ignored", find_ignored_retry_after, __doc__ or "")
