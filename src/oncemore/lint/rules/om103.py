"""# OM103: a retry of something that must not happen twice

The code repeats a request that creates or changes something, without a key by which the other side could recognise the repetition.

Found are POST and PATCH requests, `stripe` calls and e-mails inside of a retry loop or a retried function; `urllib3.Retry` with POST among the `allowed_methods` or with every method allowed; `oncemore.step(effect="once", attempts=3)`.

## Why

A timeout does not mean that nothing happened. The order may have been booked and only the reply was lost. The second request then books it again.

## How to mend it

Send the same idempotency key with every attempt; most payment and order services support one. If the service does not, do not retry errors after which the outcome is unknown.

Bad:

```python
import oncemore
import requests

@oncemore.retry(on=requests.RequestException, attempts=3)
def book(order):
    return requests.post("https://shop.example/orders", json=order, timeout=10)
```

Good:

```python
import oncemore
import requests

@oncemore.step(effect="idempotent", on=requests.RequestException, attempts=3)
def book(order):
    headers = {"Idempotency-Key": oncemore.current().key}
    return requests.post("https://shop.example/orders", json=order, headers=headers, timeout=10).json()
```

## When it is fine

The request only reads, although it is a POST (search, GraphQL queries, inference). Requests with such words in their URL are not reported; for the remaining ones say so: `# oncemore: allow OM103 because this POST only reads`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oncemore.lint.facts import FUNCTIONS, walk_places
from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.names import last_part
from oncemore.lint.provider_calls import describe_creating_call
from oncemore.lint.retry_loops import find_retry_loops
from oncemore.lint.retry_settings import find_retry_settings, is_none, list_items, literal_number
from oncemore.lint.statements import handler_types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.lint.facts import ModuleFacts, PlacedCall
    from oncemore.lint.retry_settings import RetrySetting

#: Failures after which the request was certainly not applied.
_NOT_SENT = {"ConnectTimeout", "ConnectError", "ConnectionRefusedError", "NewConnectionError", "gaierror"}
#: Statuses and errors that say "not now" before anything was done.
_REFUSED = {"RateLimitError", "TooManyRequests", "HTTPTooManyRequests", "RateLimited", "Unauthorized"}


def find_repeated_effects(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield retried calls that can be applied twice."""
    bodies = _retried_bodies(facts)
    if bodies:
        for site in facts.calls:
            if _is_inside(site, bodies):
                name = describe_creating_call(facts, site.node, site.place)
                if name:
                    message = f"this {name} is repeated after a failure and may be applied twice: send a key"
                    yield RuleMatch(site.node, message.replace("this stripe", "stripe"))
    for setting in find_retry_settings(facts):
        if message := _describe_setting(setting):
            yield RuleMatch(setting.node, message)


def _retried_bodies(facts: ModuleFacts) -> set[int]:
    """Return the ids of `try` statements and functions that are retried after unclear failures."""
    bodies = set()
    for loop in find_retry_loops(facts):
        names = {last_part(one) for handler in loop.handlers for one in handler_types(handler)}
        has_bare = any(handler.type is None for handler in loop.handlers)
        if has_bare or not names <= _NOT_SENT | _REFUSED:
            bodies.add(id(loop.attempt))
    for setting in find_retry_settings(facts):
        if setting.function is None or setting.library == "oncemore.step":
            continue
        exceptions = setting.facts.exceptions
        if exceptions is not None and _is_active(setting):
            names = {last_part(one) for one in exceptions}
            if not names or not names <= _NOT_SENT | _REFUSED:
                bodies.add(id(setting.function))
    return bodies


def _is_active(setting: RetrySetting) -> bool:
    attempts = setting.keyword("attempts") or setting.keyword("max_tries") or setting.keyword("tries")
    return literal_number(attempts) != 1


def _is_inside(site: PlacedCall, bodies: set[int]) -> bool:
    for place in walk_places(site.place):
        if id(place.node) in bodies and place.part in ("", "body"):
            return True
        if isinstance(place.node, (*FUNCTIONS, ast.Lambda)):
            return False
    return False


def _describe_setting(setting: RetrySetting) -> str:
    if setting.library == "oncemore.step":
        effect = setting.keyword("effect")
        is_once = isinstance(effect, ast.Constant) and effect.value == "once"
        limits = [setting.keyword(name) for name in ("attempts", "on", "wait", "until")]
        has_retry = any(one is not None and literal_number(one) != 1 for one in limits)
        # `not_applied=` names the failures after which the step was certainly not applied.
        if is_once and has_retry and setting.keyword("not_applied") is None:
            return 'a step with effect="once" cannot be repeated: remove the retry or declare another effect'
        return ""
    if "Retry" not in setting.library or "rllib3" not in setting.library.replace(
        "requests.adapters", "urllib3"
    ):
        return ""
    methods = setting.keyword("allowed_methods") or setting.keyword("method_whitelist")
    if methods is None:
        return ""
    if is_none(methods) or (isinstance(methods, ast.Constant) and methods.value is False):
        return "`Retry` repeats every method, also POST: allow only methods that can be repeated"
    items = methods.args[0] if isinstance(methods, ast.Call) and methods.args else methods
    words = {str(one.value).upper() for one in list_items(items) if isinstance(one, ast.Constant)}
    if words & {"POST", "PATCH"}:
        return "`Retry` repeats POST or PATCH requests, which may be applied twice: send an idempotency key"
    return ""


RULE = LintRule(
    "OM103", "retry of something that must not happen twice", find_repeated_effects, __doc__ or ""
)
