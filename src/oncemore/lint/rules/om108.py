"""# OM108: an external call without a timeout

The code calls another system and would wait for its reply for ever.

Found are `requests` calls without `timeout=`, `urllib.request.urlopen`, `http.client`, `socket.create_connection`, `smtplib`, `ftplib`, `imaplib` and `poplib` connections without one, and an explicit `timeout=None` for `httpx`, `aiohttp` and `requests`. `httpx` (5 s) and `aiohttp` (5 min) have a timeout by default, so that calls without one are not reported.

## Why

A provider that accepts the connection and never replies holds the thread until the process ends. A retry cannot help, because the attempt never fails. A few of them exhaust the pool of workers.

## How to mend it

Bad:

```python
import requests

def fetch(url):
    return requests.get(url)
```

Good:

```python
import requests

def fetch(url):
    return requests.get(url, timeout=10)
```

`oncemore lint --fix` adds `timeout=10`. Choose a number that fits the provider.

## When it is fine

Nearly never. For a stream that may be silent for hours, give a tuple: `timeout=(10, None)` limits the connection and not the reading. A module that calls `socket.setdefaulttimeout` is not reported.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oncemore.lint.edits import add_keyword, replace_node
from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.provider_calls import TIMEOUT_RULES
from oncemore.lint.retry_settings import find_keyword, is_none

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.lint.facts import ModuleFacts
    from oncemore.lint.model import SourceEdit

_LIBRARIES = {name.partition(".")[0] for name in TIMEOUT_RULES}
_SECONDS = 10
#: Keywords that name the other side; without one `FTP()` and `SMTP()` do not connect.
_HOSTS = {"url", "method", "host", "address", "fullurl"}


def find_calls_without_timeout(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield calls to other systems that wait for ever."""
    heads = {name.partition(".")[0] for name in facts.names.aliases.values()}
    if not heads & _LIBRARIES or "setdefaulttimeout" in facts.source:
        return
    for site in facts.calls:
        name = facts.resolve(site.node.func, site.place)
        if name in TIMEOUT_RULES and (edits := _find_missing_timeout(facts, site.node, name)) is not None:
            yield RuleMatch(site.node, f"`{name}` would wait for ever: give a timeout", edits)


def _find_missing_timeout(facts: ModuleFacts, call: ast.Call, name: str) -> tuple[SourceEdit, ...] | None:
    """Return the edits that add the timeout; None if there is one or if it cannot be seen."""
    rule = TIMEOUT_RULES[name]
    timeout = find_keyword(call, "timeout")
    if timeout is None and 0 <= rule.position < len(call.args):
        timeout = call.args[rule.position]
    if timeout is not None:
        if not is_none(timeout):
            return None
        return (replace_node(timeout, str(_SECONDS)),) if not name.startswith("aiohttp") else ()
    is_open = any(keyword.arg is None for keyword in call.keywords)
    is_open = is_open or any(isinstance(one, ast.Starred) for one in call.args)
    has_host = bool(call.args) or any(one.arg in _HOSTS for one in call.keywords)
    if rule.has_default or is_open or (rule.needs_host and not has_host):
        return None
    edit = add_keyword(facts, call, f"timeout={_SECONDS}")
    return (edit,) if edit is not None else ()


RULE = LintRule("OM108", "external call without a timeout", find_calls_without_timeout, __doc__ or "")
