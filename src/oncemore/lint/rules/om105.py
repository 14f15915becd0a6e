"""# OM105: a retry of an error that cannot heal

The code tries again after a failed validation, a broken rule of governance or a missing licence.

Found are retry loops and retry settings of all known libraries that name such an exception (`ValidationError`, `SchemaError`, governance, CARE and licence violations), and retried functions that call a validator while every exception is retried.

## Why

The same input fails the same way. The attempts cost time, hide the real error behind "retries exhausted", and a violation that should stop the work at once is only reported after the last attempt.

## How to mend it

Retry only errors that can go away by themselves, and let the remaining ones out at once.

Bad:

```python
import oncemore
import pydantic

class Document(pydantic.BaseModel):
    title: str

@oncemore.retry(on=(ConnectionError, pydantic.ValidationError), attempts=3)
def load(client):
    return Document.model_validate_json(client.read())
```

Good:

```python
import oncemore
import pydantic

class Document(pydantic.BaseModel):
    title: str

@oncemore.retry(on=ConnectionError, attempts=3)
def load(client):
    return Document.model_validate_json(client.read())
```

## When it is fine

The input is made again by every attempt and differs, as with replies of a language model. Then the validation error is a failure of the attempt. Say so in a suppression.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oncemore.lint.facts import walk_places
from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.names import last_part
from oncemore.lint.retry_loops import find_retry_loops
from oncemore.lint.retry_settings import find_retry_settings
from oncemore.lint.statements import handler_types

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

    from oncemore.lint.facts import ModuleFacts

#: Exceptions of the classes that are never retried: schema, governance, CARE, licence, immutability.
_PERMANENT = re.compile(
    r"(?i)(validation|schema|governance|care|licen[cs]e|rights|immutab\w*|policy|consent)_?"
    r"(error|exception|failure|failed|violation|mismatch|blocked)$"
)
#: Functions that only raise if the input is wrong.
_VALIDATORS = {"jsonschema.validate", "fastjsonschema.validate", "fastavro.validate", "xmlschema.validate"}
_EVERYTHING = {"Exception", "BaseException"}


def find_retried_violations(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield retries of errors that stay the same however often the work is tried."""
    for loop in find_retry_loops(facts):
        for handler in loop.handlers:
            if name := _permanent_name(handler_types(handler)):
                yield RuleMatch(handler, f"{name} is tried again, but the same input fails the same way")
    broad = set()
    for setting in find_retry_settings(facts):
        exceptions = setting.facts.exceptions
        if exceptions is None:
            continue
        if name := _permanent_name(exceptions):
            yield RuleMatch(setting.node, f"{name} is tried again, but the same input fails the same way")
        is_broad = not exceptions or any(last_part(one) in _EVERYTHING for one in exceptions)
        if is_broad and setting.function is not None and setting.library != "oncemore.step":
            broad.add(id(setting.function))
    if not broad:
        return
    for site in facts.calls:
        is_validation = facts.resolve(site.node.func, site.place) in _VALIDATORS
        if is_validation and any(id(place.node) in broad for place in walk_places(site.place)):
            yield RuleMatch(site.node, "a failed validation here is tried again: retry only other errors")


def _permanent_name(expressions: list[ast.expr]) -> str:
    for one in expressions:
        if _PERMANENT.search(last_part(one)):
            return last_part(one)
    return ""


RULE = LintRule("OM105", "retry of an error that cannot heal", find_retried_violations, __doc__ or "")
