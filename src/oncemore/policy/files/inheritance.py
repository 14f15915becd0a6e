"""Merges fields: a file over the file it extends, a policy over its defaults, a provider over both.

All three use `overlay_fields`: groups of fields are merged, all other values are replaced. A file that
defines how delays grow, or how they are spread, defines it completely: inherited fields of the other
form are dropped. Merged values keep the position at which they were written.

Bounds can only become narrower from file to file, and a governed file stays governed.
"""

from __future__ import annotations

import re

from oncemore._values import Value
from oncemore.policy.files.faults import FaultList, format_value
from oncemore.policy.files.fields import MAX_ITEMS, NAME_PATTERN, NOT_INHERITED, POLICY_FIELDS
from oncemore.policy.files.validation import read_value
from oncemore.policy.files.yaml_reader import MappingEntry, MappingNode, ScalarNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

DEFAULT_POLICY: Final = "default"

_SCHEDULE_FIELDS: Final = ("schedule", "base_delay_s", "factor", "exponent")
_JITTER_FIELDS: Final = ("jitter", "jitter_span_s", "jitter_factor", "jitter_enabled")
#: A field drops the inherited fields in its tuple: both forms together would contradict each other.
_REPLACES: Final = {
    "delays_s": _SCHEDULE_FIELDS,
    **dict.fromkeys(_SCHEDULE_FIELDS, ("delays_s",)),
    **{name: tuple(other for other in _JITTER_FIELDS if other != name) for name in _JITTER_FIELDS},
}
_FIELD_SPECS: Final = {row.name: row for row in POLICY_FIELDS}


class PolicyDraft(Value):
    """The unread fields of one policy, with its name, its provider and its entry in the file."""

    name: str
    provider: str | None
    fields: MappingNode
    entry: MappingEntry


def overlay_fields(base: MappingNode, top: MappingNode) -> MappingNode:
    """Return the fields of both; a field in both is merged if it is a group, else `top` wins."""
    entries = dict(base.entries)
    for name in top.entries:
        for other in _REPLACES.get(name, ()):
            entries.pop(other, None)
    # `schedule: fixed` needs `delays_s`; if the new file replaced the list, the shape goes with it.
    if "delays_s" in base.entries and "delays_s" not in entries and _has_value(entries, "schedule", "fixed"):
        del entries["schedule"]
    for name, entry in top.entries.items():
        below = entries.get(name)
        if below is not None and isinstance(below.node, MappingNode) and isinstance(entry.node, MappingNode):
            entry = entry._replace(node=overlay_fields(below.node, entry.node))
        entries[name] = entry
    return MappingNode(entries, top.mark)


def _has_value(entries: dict[str, MappingEntry], name: str, value: object) -> bool:
    entry = entries.get(name)
    return entry is not None and isinstance(entry.node, ScalarNode) and entry.node.value == value


# A file over the file it extends.


def inherit_fields(parent: MappingNode, child: MappingNode, faults: FaultList) -> MappingNode:
    """Return the fields of a file merged with those of the file it extends."""
    base = MappingNode(
        {name: entry for name, entry in parent.entries.items() if name not in NOT_INHERITED}, parent.mark
    )
    for name, required in (("governed", True), ("kfm_compliant", False)):
        # Both marks are one-way: a file that extends a governed profile cannot leave governance.
        if _has_value(base.entries, name, required) and _has_value(child.entries, name, not required):
            reason = "is governed" if required else "does not follow the KFM rules"
            entry = child.entries[name]
            faults.add_fault(
                entry.mark, name, f"cannot be {format_value(not required)} here: the extended file {reason}"
            )
    _check_bounds_narrower(base, child, faults)
    return overlay_fields(base, _move_default_policy(base, child))


def _move_default_policy(base: MappingNode, child: MappingNode) -> MappingNode:
    """Return the fields with the default policy in the same place as in the parent.

    A file may have it as `retry_policy` or as `policies.default`; in two places it would not be merged.
    """
    parent_policies = _nested_entries(base, "policies")
    own_policies = _nested_entries(child, "policies")
    if DEFAULT_POLICY in parent_policies and "retry_policy" in child.entries:
        entry = child.entries["retry_policy"]
        rest = {name: entry for name, entry in child.entries.items() if name != "retry_policy"}
        policies = child.entries.get("policies", entry)
        moved = MappingNode({**own_policies, DEFAULT_POLICY: entry}, policies.node.mark)
        return MappingNode({**rest, "policies": policies._replace(node=moved)}, child.mark)
    if DEFAULT_POLICY in own_policies and "retry_policy" in base.entries:
        remaining = MappingNode(
            {name: entry for name, entry in own_policies.items() if name != DEFAULT_POLICY}, child.mark
        )
        policies = child.entries["policies"]._replace(node=remaining)
        return MappingNode(
            {**child.entries, "policies": policies, "retry_policy": own_policies[DEFAULT_POLICY]}, child.mark
        )
    return child


def _nested_entries(tree: MappingNode, name: str) -> dict[str, MappingEntry]:
    entry = tree.entries.get(name)
    return entry.node.entries if entry is not None and isinstance(entry.node, MappingNode) else {}


def _check_bounds_narrower(base: MappingNode, child: MappingNode, faults: FaultList) -> None:
    """Add a fault for each bound that is wider than the inherited one."""
    # Faults in the values themselves are reported elsewhere; here they are ignored.
    inherited, new = read_section(base, "bounds", FaultList()), read_section(child, "bounds", FaultList())
    for name in inherited.keys() & new.keys():
        outer, inner = inherited[name], new[name]
        entry = _nested_entries(child, "bounds")[name]
        if name == "jitter":
            if not set(inner) <= set(outer):
                text = f"is wider than the inherited one, which is {', '.join(outer)}"
                faults.add_fault(entry.mark, entry.written_path, text)
        elif inner[0] < outer[0] or inner[1] > outer[1]:
            text = f"is wider than the inherited one, which is {outer[0]:g} to {outer[1]:g}"
            faults.add_fault(entry.mark, entry.written_path, text)


def read_section(tree: MappingNode, name: str, faults: FaultList) -> dict[str, Any]:
    """Return the values of one section; empty if the file does not have it."""
    entry = tree.entries.get(name)
    value = None if entry is None else read_value(_FIELD_SPECS[name], entry, faults)
    return value if isinstance(value, dict) else {}


# Policies over their defaults, providers over policies.


def move_provider_cooldowns(tree: MappingNode, faults: FaultList) -> MappingNode:
    """Return the fields with `cooldown.provider_overrides` moved into `providers`."""
    _check_one_default(tree, faults)
    cooldown = tree.entries.get("cooldown")
    moved = _nested_entries(MappingNode(_nested_entries(tree, "cooldown"), tree.mark), "provider_overrides")
    if cooldown is None or not moved:
        return tree
    providers = tree.entries.get(
        "providers", MappingEntry("providers", cooldown.mark, MappingNode({}, cooldown.mark))
    )
    if not isinstance(providers.node, MappingNode):
        # A value of the wrong type is reported with all other wrong values.
        return tree
    remaining = {
        name: entry
        for name, entry in _nested_entries(tree, "cooldown").items()
        if name != "provider_overrides"
    }
    changed = {
        "cooldown": cooldown._replace(node=MappingNode(remaining, cooldown.node.mark)),
        "providers": providers._replace(node=_add_cooldowns(providers.node, moved, faults)),
    }
    return MappingNode(tree.entries | changed, tree.mark)


def _add_cooldowns(
    providers: MappingNode, cooldowns: dict[str, MappingEntry], faults: FaultList
) -> MappingNode:
    """Return the providers with these cooldowns; add a fault for one that already has its own."""
    entries = dict(providers.entries)
    for name, entry in cooldowns.items():
        provider = entries.get(
            name, MappingEntry(entry.written_path, entry.mark, MappingNode({}, entry.mark))
        )
        if not isinstance(provider.node, MappingNode):
            continue
        own = provider.node.entries.get("cooldown")
        if own is not None:
            faults.add_fault(entry.mark, entry.written_path, f"is given twice: also in line {own.mark.line}")
        both = provider.node.entries | {"cooldown": entry}
        entries[name] = provider._replace(node=MappingNode(both, provider.node.mark))
    return MappingNode(entries, providers.mark)


def _check_one_default(tree: MappingNode, faults: FaultList) -> None:
    second = _nested_entries(tree, "policies").get(DEFAULT_POLICY)
    if second is not None and "retry_policy" in tree.entries:
        first = tree.entries["retry_policy"]
        text = f"is the same policy as {first.written_path} in line {first.mark.line}; keep one of them"
        faults.add_fault(second.mark, second.written_path, text)


def draft_policies(tree: MappingNode, faults: FaultList) -> list[PolicyDraft]:
    """Return the drafts of all policies of a file, and of each policy for each provider."""
    base = require_mapping(tree.entries.get("retry_policy"), faults)
    drafts: list[PolicyDraft] = []
    if base is not None:
        drafts.append(PolicyDraft(DEFAULT_POLICY, None, base, tree.entries["retry_policy"]))
    for name, entry in list_named_entries(tree.entries.get("policies"), faults):
        own = require_mapping(entry, faults)
        if own is not None:
            fields = own if base is None else overlay_fields(_inheritable_fields(base), own)
            drafts.append(PolicyDraft(name, None, fields, entry))
    return drafts + [
        _draft_for_provider(draft, name, entry, faults)
        for name, entry in list_named_entries(tree.entries.get("providers"), faults)
        for draft in drafts
    ]


def _inheritable_fields(base: MappingNode) -> MappingNode:
    """Return the fields that policies inherit from `retry_policy`: not its name and description."""
    own = ("name", "description")
    return MappingNode({name: entry for name, entry in base.entries.items() if name not in own}, base.mark)


def _draft_for_provider(draft: PolicyDraft, name: str, entry: MappingEntry, faults: FaultList) -> PolicyDraft:
    inside = require_mapping(entry, faults)
    fields = draft.fields
    if inside is not None:
        for part in (inside.entries.get("retry_policy"), _nested_entries(inside, "policies").get(draft.name)):
            top = require_mapping(part, faults)
            fields = fields if top is None else overlay_fields(fields, top)
    return PolicyDraft(draft.name, name, fields, entry)


def check_providers(tree: MappingNode, policies: set[str], faults: FaultList) -> None:
    """Add a fault for each policy under `providers` that the file does not have."""
    for _, provider in list_named_entries(tree.entries.get("providers"), FaultList()):
        inside = _nested_entries(MappingNode({"": provider}, provider.mark), "")
        for name, entry in _nested_entries(MappingNode(inside, provider.mark), "policies").items():
            if name not in policies:
                known = ", ".join(sorted(policies))
                faults.add_fault(
                    entry.mark, entry.written_path, f"is not a policy of this file; it has {known}"
                )


def require_mapping(entry: MappingEntry | None, faults: FaultList) -> MappingNode | None:
    """Return the fields of an entry; add a fault if it is not a group of fields."""
    if entry is None:
        return None
    if isinstance(entry.node, MappingNode):
        return entry.node
    value = format_value(entry.node.value) if isinstance(entry.node, ScalarNode) else "a list"
    faults.add_fault(entry.node.mark, entry.written_path, f"is {value}; it must be a group of fields")
    return None


def list_named_entries(entry: MappingEntry | None, faults: FaultList) -> list[tuple[str, MappingEntry]]:
    """Return the entries of a group of names; add a fault for each invalid name."""
    inside = require_mapping(entry, faults)
    if entry is not None and inside is not None and len(inside.entries) > MAX_ITEMS:
        faults.add_fault(
            entry.mark, entry.written_path, f"has {len(inside.entries)} names; it takes {MAX_ITEMS}"
        )
    entries = []
    for name, inner in () if inside is None else inside.entries.items():
        if re.fullmatch(NAME_PATTERN, name):
            entries.append((name, inner))
        else:
            faults.add_fault(
                inner.mark, inner.written_path, f"is not a name; a name has the form {NAME_PATTERN}"
            )
    return entries


# Minimums.


def apply_minimums(fields: MappingNode, minimums: dict[str, float], notes: dict[str, None]) -> MappingNode:
    """Return the fields with each number below its minimum raised to it, and add a note for each."""
    entries = dict(fields.entries)
    for name, floor in minimums.items():
        entry = entries.get(name)
        value = entry.node.value if entry is not None and isinstance(entry.node, ScalarNode) else None
        if entry is None or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        # `max_retries` is written as one less than `max_attempts`, so its minimum is one lower.
        minimum = floor - entry.shift
        if value < minimum and value > float("-inf"):
            notes[f"{entry.mark}: {entry.written_path} is {value:g}; raised to its minimum, {minimum:g}"] = (
                None
            )
            whole = int(minimum) if minimum == int(minimum) else minimum
            entries[name] = entry._replace(node=ScalarNode(whole, entry.node.mark))
    return MappingNode(entries, fields.mark)
