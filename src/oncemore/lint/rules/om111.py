"""# OM111: unseeded randomness in backoff logic

The code draws jitter from a generator without a seed, so that the delays of a run cannot be computed again.

This rule is off by default: for most programs any jitter is good jitter. Select it where every delay has to be explained afterwards, as in governed pipelines: `select = ["default", "OM111"]`.

Found are draws from `random`, `secrets` and `numpy.random` in functions that compute delays, in handlers of retry loops and in the arguments of `sleep` in retry loops, unless the generator is made with a seed in the same module.

## Why

After an incident the question is whether the system waited as its policy says. With a seed per run the delays can be computed again and compared. Without one the log has to be believed.

## How to mend it

Bad:

```python
import random

def compute_backoff(number):
    return random.uniform(0, 2 ** number)
```

Good:

```python
import random

def compute_backoff(number, run_id):
    return random.Random(f"{run_id}/{number}").uniform(0, 2 ** number)
```

`oncemore` seeds the draws of each run from its id and stores them in the proof of every decision.

## When it is fine

Outside of governed work. Leave the rule off there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oncemore.lint.model import LintRule, RuleMatch
from oncemore.lint.names import last_part
from oncemore.lint.retry_loops import find_retry_loops
from oncemore.lint.rules.om110 import find_backoff_places, is_backoff_place
from oncemore.lint.statements import list_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.lint.facts import ModuleFacts

#: Draws from a shared generator, or from one that is made without a seed.
_DRAW = re.compile(
    r"(random|numpy\.random|secrets|random\.SystemRandom\(\)|numpy\.random\.default_rng\(\))"
    r"\.(random|uniform|randint|randrange|gauss|expovariate|betavariate|triangular|choice|normal|randbelow|rand"
    r"|integers|exponential)$"
)


def find_unseeded_jitter(facts: ModuleFacts) -> Iterator[RuleMatch]:
    """Yield unseeded draws in backoff logic."""
    if not any(word in facts.source for word in ("random", "secrets")):
        return
    # `random.seed(...)` seeds the shared generator.
    if any(facts.resolve(site.node.func, site.place).endswith("random.seed") for site in facts.calls):
        return
    in_backoff = find_backoff_places(facts)
    sleeping = {
        id(draw)
        for loop in find_retry_loops(facts)
        for wait in loop.waits
        if last_part(wait) == "sleep"
        for draw in list_calls(wait.args)
    }
    for site in facts.calls:
        is_backoff = id(site.node) in sleeping or is_backoff_place(site.place, in_backoff)
        if is_backoff and _DRAW.match(facts.resolve(site.node.func, site.place)):
            yield RuleMatch(site.node, "this jitter cannot be computed again: seed it per run")


RULE = LintRule(
    "OM111", "unseeded randomness in backoff logic", find_unseeded_jitter, __doc__ or "", is_default=False
)
