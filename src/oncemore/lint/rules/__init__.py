"""The rules of the linter, one module each; the docstring of a module is the page about its rule."""

from __future__ import annotations

from oncemore.lint.rules import (
    om101,
    om102,
    om103,
    om104,
    om105,
    om106,
    om107,
    om108,
    om109,
    om110,
    om111,
    om112,
)

#: All rules by id, in order.
RULES = {
    module.RULE.id: module.RULE
    for module in (om101, om102, om103, om104, om105, om106, om107, om108, om109, om110, om111, om112)
}
#: The rules that run if none is selected.
DEFAULT_RULES = tuple(rule.id for rule in RULES.values() if rule.is_default)
