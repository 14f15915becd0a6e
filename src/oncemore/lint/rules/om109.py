"""# OM109: a retried call to a provider without a circuit breaker

The code retries calls to another system, and nothing stops all callers from trying while that system is down.

This rule is off by default, because a small program does not need a breaker. Select it for services: `select = ["default", "OM109"]`.

Found are calls to a provider in retried functions and retry loops, in modules in which no name contains "breaker" or "circuit".

## Why

During an outage of a provider every request of yours spends all of its attempts and delays before it fails. Callers pile up, and your service goes down with the provider. A breaker notices the outage once, for all callers, and lets them fail at once until a probe succeeds.

## How to mend it

Bad:

```python
import oncemore
import requests

@oncemore.retry(on=requests.ConnectionError, attempts=3)
def fetch(url):
    return requests.get(url, timeout=10)
```

Good:

```python
import oncemore
import requests

shop = oncemore.Breaker("shop", failures=5, cooldown_s=60)

@oncemore.retry(on=requests.ConnectionError, attempts=3, breaker=shop)
def fetch(url):
    return requests.get(url, timeout=10)
```

## When it is fine

A script that runs alone and may wait.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oncemore.lint.facts import walk_places
from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.provider_calls import is_provider_call
from oncemore.lint.retry_loops import find_retry_loops
from oncemore.lint.retry_settings import find_retry_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.lint.facts import ModuleFacts

_BREAKER = re.compile(r"breaker|circuit")


def find_calls_without_breaker(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield retried calls to providers in modules without a breaker."""
    if _BREAKER.search(facts.lowered):
        return
    retried = {id(loop.node) for loop in find_retry_loops(facts)}
    retried |= {id(one.function) for one in find_retry_settings(facts) if one.function is not None}
    if not retried:
        return
    reported = set()
    for site in facts.calls:
        around = [id(place.node) for place in walk_places(site.place) if id(place.node) in retried]
        if around and around[0] not in reported and is_provider_call(facts, site.node, site.place):
            # One finding per retry is enough.
            reported.add(around[0])
            yield RuleMatch(site.node, "all callers keep trying while this provider is down: add a breaker")


RULE = LintRule(
    "OM109", "retried provider call without a circuit breaker", find_calls_without_breaker, __doc__ or "",
    is_default=False,
)  # fmt: skip
