"""# OM107: a failed call to a provider leaves no trace

The code catches every error of a call to another system and does nothing.

Found are `except:`, `except Exception` and handlers of the client's own base error around a call to a provider, with a body of `pass`, `continue` or `...`, and `contextlib.suppress` of these. Handlers in functions that close or clean up are not reported.

## Why

The operator does not learn that the provider fails. Data is missing without an error, a counter or a line in the log, and programming errors in the block are hidden too.

## How to mend it

Catch the errors that you expect, log or count them, and let the remaining ones out.

Bad:

```python
import requests

def notify(url, event):
    try:
        requests.post(url, json=event, timeout=5)
    except Exception:
        pass
```

Good:

```python
import logging
import requests

logger = logging.getLogger(__name__)

def notify(url, event):
    try:
        requests.post(url, json=event, timeout=5)
    except requests.RequestException as error:
        logger.warning("the notification was not sent: %s", error)
```

## When it is fine

The call is a courtesy, such as anonymous usage statistics, and its loss is intended. Say so in a suppression.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from oncemore.lint.facts import enclosing_function, walk_places
from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.names import last_part
from oncemore.lint.provider_calls import is_provider_call
from oncemore.lint.statements import handler_types, list_calls, may_leave

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncemore.lint.facts import ModuleFacts, Place

#: Exceptions that cover every failure of a call.
_BROAD = {
    *(
        "Exception",
        "BaseException",
        "RequestException",
        "HTTPError",
        "RequestError",
        "ClientError",
        "URLError",
    ),
    *("OSError", "IOError", "ConnectionError", "BotoCoreError", "SMTPException"),
}
#: Functions that end something: an error at the end changes nothing for the caller.
_CLEAN_UP = re.compile(
    r"(?i)close|clean|stop|shutdown|teardown|__del__|__a?exit__|disconnect|logout|quit|dispose|is_|has_|check|ping"
    r"|exists|alive|live|health|probe|poll|available|wait|test"
)


def find_swallowed_failures(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield handlers that drop every failure of a call to a provider."""
    for site in facts.tries:
        for handler in site.node.handlers:
            if _does_nothing(handler.body) and _is_broad(handler_types(handler)):
                if _calls_provider(facts, site.node.body, site.place):
                    yield RuleMatch(handler, "a failed call to a provider leaves no trace: log or count it")
                break
    for node, place in facts.withs:
        for item in node.items:
            call = item.context_expr
            if not isinstance(call, ast.Call) or facts.resolve(call.func, place) != "contextlib.suppress":
                continue
            if _is_broad(call.args) and _calls_provider(facts, node.body, place):
                yield RuleMatch(node, "a failed call to a provider leaves no trace: log or count it")


def _does_nothing(statements: Sequence[ast.stmt]) -> bool:
    return all(
        isinstance(one, ast.Pass | ast.Continue)
        or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        for one in statements
    )


def _is_broad(types: Sequence[ast.expr]) -> bool:
    return not types or any(last_part(one) in _BROAD for one in types)


def _calls_provider(facts: ModuleFacts, body: Sequence[ast.stmt], place: Place | None) -> bool:
    function = enclosing_function(place)
    if function is not None and _CLEAN_UP.search(function.name):
        return False
    # A failed turn of polling is not the result: the code behind the loop reports it.
    loops = [outer.node for outer in walk_places(place) if isinstance(outer.node, ast.While | ast.For)]
    # Neither is a failed candidate, if the next one is tried.
    if any(isinstance(loop, ast.While) for loop in loops) or (loops and may_leave(body)):
        return False
    calls = [call for call in list_calls(body) if not _CLEAN_UP.search(last_part(call))]
    return any(is_provider_call(facts, call, place) for call in calls)


RULE = LintRule("OM107", "failed call to a provider leaves no trace", find_swallowed_failures, __doc__ or "")
