"""Which values hold: a file over the one it extends, a policy over its ground, a provider over both.

All three are the same act, `overlay`: groups of fields are merged, everything else is replaced. A file
that says how delays grow, or how they are spread, says it whole: what it inherits of the other way
falls away. Values keep the place they were written at, whatever they are merged into.

Two things may only become stricter from file to file: bounds, and being governed.
"""

from __future__ import annotations

import re

from oncemore._values import Value
from oncemore.policy.files.faults import Faults, shown
from oncemore.policy.files.fields import MOST_ITEMS, NAME, OWN, POLICIES
from oncemore.policy.files.validation import value_of
from oncemore.policy.files.yaml_reader import Entry, Fields, Scalar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

DEFAULT: Final = "default"

_GROWTH: Final = ("schedule", "base_delay_s", "factor", "exponent")
_SPREAD: Final = ("jitter", "jitter_span_s", "jitter_factor", "jitter_enabled")
#: Giving the first lets what is inherited of the others fall away.
_REPLACES: Final = {
    "delays_s": _GROWTH,
    **dict.fromkeys(_GROWTH, ("delays_s",)),
    **{name: tuple(other for other in _SPREAD if other != name) for name in _SPREAD},
}
_ROWS: Final = {row.name: row for row in POLICIES}


class Drafted(Value):
    """A policy before it is read: its fields, what the file calls it, and whose it is."""

    name: str
    provider: str | None
    fields: Fields
    entry: Entry


def overlay(ground: Fields, top: Fields) -> Fields:
    """Return the fields of both; where both have one, groups are merged and all else is the top's."""
    entries = dict(ground.entries)
    for name in top.entries:
        for other in _REPLACES.get(name, ()):
            entries.pop(other, None)
    if "delays_s" in ground.entries and "delays_s" not in entries and _says(entries, "schedule", "fixed"):
        del entries["schedule"]
    for name, entry in top.entries.items():
        below = entries.get(name)
        if below is not None and isinstance(below.node, Fields) and isinstance(entry.node, Fields):
            entry = entry._replace(node=overlay(below.node, entry.node))
        entries[name] = entry
    return Fields(entries, top.mark)


def _says(entries: dict[str, Entry], name: str, value: object) -> bool:
    entry = entries.get(name)
    return entry is not None and isinstance(entry.node, Scalar) and entry.node.value == value


# A file over the one it extends.


def inherit(parent: Fields, own: Fields, faults: Faults) -> Fields:
    """Return what holds in a file that extends another."""
    ground = Fields({name: entry for name, entry in parent.entries.items() if name not in OWN}, parent.mark)
    for name, lost in (("governed", True), ("kfm_compliant", False)):
        if _says(ground.entries, name, lost) and _says(own.entries, name, not lost):
            what = "is governed" if lost else "does not follow the KFM rules"
            entry = own.entries[name]
            faults.add(entry.mark, name, f"cannot be {shown(not lost)} here: what this file extends {what}")
    _check_bounds(ground, own, faults)
    return overlay(ground, _as_the_parent_says(ground, own))


def _as_the_parent_says(ground: Fields, own: Fields) -> Fields:
    """Put the default policy where the parent has it: beside the others, or under them."""
    named = _inside(ground, "policies")
    mine = _inside(own, "policies")
    if DEFAULT in named and "retry_policy" in own.entries:
        entry = own.entries["retry_policy"]
        rest = {name: entry for name, entry in own.entries.items() if name != "retry_policy"}
        policies = own.entries.get("policies", entry)
        moved = Fields({**mine, DEFAULT: entry}, policies.node.mark)
        return Fields({**rest, "policies": policies._replace(node=moved)}, own.mark)
    if DEFAULT in mine and "retry_policy" in ground.entries:
        others = Fields({name: entry for name, entry in mine.items() if name != DEFAULT}, own.mark)
        policies = own.entries["policies"]._replace(node=others)
        return Fields({**own.entries, "policies": policies, "retry_policy": mine[DEFAULT]}, own.mark)
    return own


def _inside(tree: Fields, name: str) -> dict[str, Entry]:
    entry = tree.entries.get(name)
    return entry.node.entries if entry is not None and isinstance(entry.node, Fields) else {}


def _check_bounds(ground: Fields, own: Fields, faults: Faults) -> None:
    """Refuse a bound that is wider than the inherited one."""
    wide, narrow = read(ground, "bounds", Faults()), read(own, "bounds", Faults())
    for name in wide.keys() & narrow.keys():
        outer, mine = wide[name], narrow[name]
        entry = _inside(own, "bounds")[name]
        if name == "jitter":
            if not set(mine) <= set(outer):
                text = f"is wider than the inherited one, which is {', '.join(outer)}"
                faults.add(entry.mark, entry.written, text)
        elif mine[0] < outer[0] or mine[1] > outer[1]:
            text = f"is wider than the inherited one, which is {outer[0]:g} to {outer[1]:g}"
            faults.add(entry.mark, entry.written, text)


def read(tree: Fields, name: str, faults: Faults) -> dict[str, Any]:
    """Return the values of one group of fields, or nothing where it is not given."""
    entry = tree.entries.get(name)
    value = None if entry is None else value_of(_ROWS[name], entry, faults)
    return value if isinstance(value, dict) else {}


# Policies over their ground, providers over policies.


def settled(tree: Fields, faults: Faults) -> Fields:
    """Return a file's own fields with the cooldowns of providers in their one place: with the providers."""
    _check_one_default(tree, faults)
    cooldown = tree.entries.get("cooldown")
    moved = _inside(Fields(_inside(tree, "cooldown"), tree.mark), "provider_overrides")
    if cooldown is None or not moved:
        return tree
    place = tree.entries.get("providers", Entry("providers", cooldown.mark, Fields({}, cooldown.mark)))
    if not isinstance(place.node, Fields):
        return tree  # which is found with all other wrong values
    kept = {name: entry for name, entry in _inside(tree, "cooldown").items() if name != "provider_overrides"}
    changed = {
        "cooldown": cooldown._replace(node=Fields(kept, cooldown.node.mark)),
        "providers": place._replace(node=_with_cooldowns(place.node, moved, faults)),
    }
    return Fields(tree.entries | changed, tree.mark)


def _with_cooldowns(providers: Fields, cooldowns: dict[str, Entry], faults: Faults) -> Fields:
    """Give providers the cooldowns that were written elsewhere; one that has its own has it twice."""
    entries = dict(providers.entries)
    for name, entry in cooldowns.items():
        place = entries.get(name, Entry(entry.written, entry.mark, Fields({}, entry.mark)))
        if not isinstance(place.node, Fields):
            continue
        own = place.node.entries.get("cooldown")
        if own is not None:
            faults.add(entry.mark, entry.written, f"is given twice: also in line {own.mark.line}")
        both = place.node.entries | {"cooldown": entry}
        entries[name] = place._replace(node=Fields(both, place.node.mark))
    return Fields(entries, providers.mark)


def _check_one_default(tree: Fields, faults: Faults) -> None:
    second = _inside(tree, "policies").get(DEFAULT)
    if second is not None and "retry_policy" in tree.entries:
        first = tree.entries["retry_policy"]
        text = f"is the same policy as {first.written} in line {first.mark.line}; keep one of them"
        faults.add(second.mark, second.written, text)


def drafts_of(tree: Fields, faults: Faults) -> list[Drafted]:
    """Return every policy of a file, and every one that a provider has of its own."""
    ground = group(tree.entries.get("retry_policy"), faults)
    drafts: list[Drafted] = []
    if ground is not None:
        drafts.append(Drafted(DEFAULT, None, ground, tree.entries["retry_policy"]))
    for name, entry in named(tree.entries.get("policies"), faults):
        own = group(entry, faults)
        if own is not None:
            fields = own if ground is None else overlay(_nameless(ground), own)
            drafts.append(Drafted(name, None, fields, entry))
    return drafts + [
        _of_provider(draft, name, entry, faults)
        for name, entry in named(tree.entries.get("providers"), faults)
        for draft in drafts
    ]


def _nameless(ground: Fields) -> Fields:
    """What a policy has from its ground; a name and a description are its own."""
    own = ("name", "description")
    return Fields({name: entry for name, entry in ground.entries.items() if name not in own}, ground.mark)


def _of_provider(draft: Drafted, name: str, entry: Entry, faults: Faults) -> Drafted:
    inside = group(entry, faults)
    fields = draft.fields
    if inside is not None:
        for part in (inside.entries.get("retry_policy"), _inside(inside, "policies").get(draft.name)):
            top = group(part, faults)
            fields = fields if top is None else overlay(fields, top)
    return Drafted(draft.name, name, fields, entry)


def check_providers(tree: Fields, policies: set[str], faults: Faults) -> None:
    """Refuse what a provider changes in a policy that does not exist."""
    for _, provider in named(tree.entries.get("providers"), Faults()):
        inside = _inside(Fields({"": provider}, provider.mark), "")
        for name, entry in _inside(Fields(inside, provider.mark), "policies").items():
            if name not in policies:
                known = ", ".join(sorted(policies))
                faults.add(entry.mark, entry.written, f"is not a policy of this file; it has {known}")


def group(entry: Entry | None, faults: Faults) -> Fields | None:
    """Return the fields of an entry; one that holds none is a fault."""
    if entry is None:
        return None
    if isinstance(entry.node, Fields):
        return entry.node
    what = shown(entry.node.value) if isinstance(entry.node, Scalar) else "a list"
    faults.add(entry.node.mark, entry.written, f"is {what}; it must be a group of fields")
    return None


def named(entry: Entry | None, faults: Faults) -> list[tuple[str, Entry]]:
    """Return the named entries of a group; a name must be one."""
    inside = group(entry, faults)
    if entry is not None and inside is not None and len(inside.entries) > MOST_ITEMS:
        faults.add(entry.mark, entry.written, f"has {len(inside.entries)} names; it takes {MOST_ITEMS}")
    found = []
    for name, inner in () if inside is None else inside.entries.items():
        if re.fullmatch(NAME, name):
            found.append((name, inner))
        else:
            faults.add(inner.mark, inner.written, f"is not a name; a name has the form {NAME}")
    return found


# Minimums.


def raised(fields: Fields, floors: dict[str, float], notes: dict[str, None]) -> Fields:
    """Return the fields with every number below its minimum raised to it, and a note of each."""
    entries = dict(fields.entries)
    for name, floor in floors.items():
        entry = entries.get(name)
        value = entry.node.value if entry is not None and isinstance(entry.node, Scalar) else None
        if entry is None or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        least = floor - entry.shift
        if value < least and value > float("-inf"):
            notes[f"{entry.mark}: {entry.written} is {value:g}; raised to its minimum, {least:g}"] = None
            whole = int(least) if least == int(least) else least
            entries[name] = entry._replace(node=Scalar(whole, entry.node.mark))
    return Fields(entries, fields.mark)
