"""Builds policies and a profile from the fields of a file.

Single fields were checked by `validation`. This module checks them together: implied values,
contradictions and the file's bounds. `Policy` itself has the last word: if it refuses a policy, that is
a fault at the position of the field in the message.
"""

from __future__ import annotations

import re

from oncemore._values import Value
from oncemore.config import LEASE_S
from oncemore.errors import PolicyError
from oncemore.policy.backoff import Jitter, Schedule, planned_delay
from oncemore.policy.files.fields import (
    CLASSIFY_FIELDS,
    COOLDOWN_FIELDS,
    ENVELOPE_FIELDS,
    GOVERNED_VERSION_PATTERN,
    RETRY_FIELDS,
    UNVERSIONED,
)
from oncemore.policy.files.inheritance import (
    DEFAULT_POLICY,
    PolicyDraft,
    apply_minimums,
    check_providers,
    draft_policies,
    list_named_entries,
    overlay_fields,
    read_section,
    require_mapping,
)
from oncemore.policy.files.loaded import Cooldown
from oncemore.policy.files.sections import SECTION_FIELDS
from oncemore.policy.files.validation import read_values
from oncemore.policy.files.yaml_reader import MappingEntry, MappingNode
from oncemore.policy.policy import Policy
from oncemore.policy.policy_checks import PER_RUN, broken_rules
from oncemore.policy.tuning import Tuning
from oncemore.policy.verdict import ErrorClasses, find_forbidden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final

    from oncemore.policy.backoff import Spread
    from oncemore.policy.files.faults import FaultList, FilePosition


class BuiltProfile(Value):
    """The built content of a file: envelope, policies, cooldowns, other sections, notes."""

    envelope: dict[str, Any]
    policies: dict[str, Policy]
    providers: dict[str, dict[str, Policy]]
    cooldowns: dict[str, Cooldown]
    sections: dict[str, Any]
    spellings: dict[str, str]
    notes: tuple[str, ...]
    descriptions: dict[str, str]


def build_profile(tree: MappingNode, name: str, faults: FaultList) -> BuiltProfile:
    """Return the content of a file; contradictions are added to the faults."""
    envelope = read_values(_select_fields(tree, ENVELOPE_FIELDS), ENVELOPE_FIELDS, faults)
    notes = dict.fromkeys(_check_version(tree, envelope, faults))
    sections = read_values(_select_fields(tree, SECTION_FIELDS), SECTION_FIELDS, faults)
    _check_sections(tree, sections, faults)
    builder = _PolicyBuilder(tree, name, envelope, faults)
    drafts = draft_policies(tree, faults)
    # An empty file would otherwise load as a profile that decides nothing.
    if not drafts:
        faults.add_fault(tree.mark, "retry_policy", "is missing; a policy file holds a policy")
    policies: dict[str, Policy] = {}
    providers: dict[str, dict[str, Policy]] = {}
    for draft in drafts:
        policy = builder.make_policy(draft)
        if policy is not None:
            group = policies if draft.provider is None else providers.setdefault(draft.provider, {})
            group[draft.name] = policy
    check_providers(tree, {draft.name for draft in drafts}, faults)
    return BuiltProfile(
        envelope=envelope,
        policies=policies,
        providers=providers,
        cooldowns=dict(_make_cooldowns(tree, faults)),
        sections=sections,
        spellings=dict(_collect_spellings(tree)),
        notes=tuple(notes | builder.notes),
        descriptions=builder.descriptions,
    )


def _check_sections(tree: MappingNode, sections: dict[str, Any], faults: FaultList) -> None:
    """Add a fault for settings that contradict each other, because one would have no effect."""
    on_non_retryable = sections.get("on_non_retryable", ("halt",))
    if sections.get("halt_scope") == "pipeline" and "halt" not in on_non_retryable:
        text = "is pipeline, and on_non_retryable does not contain halt; add halt, or set halt_scope: run"
        faults.add_fault(tree.entries["halt_scope"].mark, "halt_scope", text)
    budget = sections.get("carbon_budget")
    if budget is not None and "cap_kgCO2e" not in budget:
        faults.add_fault(tree.entries["carbon_budget"].mark, "carbon_budget", "has no cap_kgCO2e, the budget")
    off_hours = sections.get("autonomy", {}).get("off_hours", {})
    if len(off_hours) == 1:
        faults.add_fault(tree.entries["autonomy"].mark, "autonomy.off_hours", "needs from_hour and to_hour")
    lease = sections.get("lease", {})
    # A lease that is not renewed before it ends would be lost by a healthy worker.
    if lease.get("renew_every_s", 0.0) >= lease.get("ttl_s", LEASE_S):
        text = f"has a renew_every_s that is not less than ttl_s, {lease.get('ttl_s', LEASE_S):g}"
        faults.add_fault(tree.entries["lease"].mark, "lease", text)


def _select_fields(tree: MappingNode, rows: tuple[Any, ...]) -> MappingNode:
    names = {row.name for row in rows}
    return MappingNode({name: entry for name, entry in tree.entries.items() if name in names}, tree.mark)


def _check_version(tree: MappingNode, envelope: dict[str, Any], faults: FaultList) -> Iterator[str]:
    """Add a fault for a governed file without a valid version; give other files a default, with a note."""
    form = "retry-loop-v<major>.<minor>"
    if "version" not in tree.entries and envelope.get("governed"):
        text = "is missing; every decision records it: version: retry-loop-v1.0"
        faults.add_fault(tree.mark, "version", text)
    elif "version" not in tree.entries:
        envelope["version"] = UNVERSIONED
        yield f'{tree.mark.file}: version is missing; decisions record "{UNVERSIONED}"; write version: "1"'
    elif envelope.get("governed") and not re.fullmatch(GOVERNED_VERSION_PATTERN, envelope.get("version", "")):
        entry = tree.entries["version"]
        faults.add_fault(entry.node.mark, "version", f"of a governed file has the form {form}")


class _PolicyBuilder:
    """Builds the policies of one file."""

    def __init__(self, tree: MappingNode, name: str, envelope: dict[str, Any], faults: FaultList) -> None:
        self._tree = tree
        self._name = name
        self._faults = faults
        self._version = envelope.get("version", "")
        self._governed = envelope.get("governed", False)
        self._bounds = tuple(read_section(tree, "bounds", faults).items())
        self._minimums = read_section(tree, "minimums", faults)
        self._tuning = _make_tuning(tree, faults)
        self.notes: dict[str, None] = {}
        self.descriptions: dict[str, str] = {}

    def make_policy(self, draft: PolicyDraft) -> Policy | None:
        """Return a policy, or None if one of its fields is wrong."""
        fields = apply_minimums(draft.fields, self._minimums, self.notes)
        values = read_values(fields, RETRY_FIELDS, self._faults)
        classify = _merge_classes(self._tree, fields)
        classes = read_values(classify, CLASSIFY_FIELDS, self._faults)
        forbidden = find_forbidden(classes.get("retryable", ()))
        if forbidden:
            entry = classify.entries["retryable"]
            text = f"covers {', '.join(forbidden)}, which may never be retried"
            self._faults.add_fault(entry.mark, entry.written_path, text)
        # A missing value has its own fault already; building on would only add follow-up faults.
        if forbidden or len(values) != len(fields.entries) or len(classes) != len(classify.entries):
            return None
        values = {**_implied_formula(fields, values), **values}
        problems = list(_find_contradictions(values))
        for field, text in problems:
            self._faults.add_fault(fields.entries[field].mark, fields.entries[field].written_path, text)
        if problems:
            return None
        try:
            policy = self._create_policy(draft, values, classes)
        except PolicyError as error:
            mark = _find_position(str(error), self._tree, fields, classify) or draft.entry.mark
            self._faults.add_fault(mark, draft.entry.written_path, f"cannot be used: {error}")
            return None
        # Set without checks, so that each broken rule becomes a fault with its own position below.
        policy = policy.copy_with(governed=self._governed, bounds=self._bounds)
        for field, text in broken_rules(policy):
            entry = _find_entry(field, fields, classify) or draft.entry
            self._faults.add_fault(
                entry.node.mark,
                entry.written_path,
                f"{'' if entry is not draft.entry else field + ' '}{text}",
            )
        return policy

    def _create_policy(self, draft: PolicyDraft, values: dict[str, Any], classes: dict[str, Any]) -> Policy:
        schedule = _make_schedule(values)
        if "description" in values and draft.provider is None:
            self.descriptions[draft.name] = values["description"]
        return Policy(
            values.get("name", self._policy_address(draft))
            + (f"@{draft.provider}" if draft.provider else ""),
            self._version,
            max_attempts=values.get("max_attempts", 3),
            max_crashes=values.get("max_crashes", None if self._governed else "default"),
            schedule=schedule,
            jitter=_make_jitter(values, schedule),
            jitter_seed=values.get("jitter_seed", PER_RUN),
            max_delay_s=values.get("max_delay_s"),
            timeout_s=values.get("timeout_s"),
            total_timeout_s=values.get("total_timeout_s"),
            retry_cost=values.get("retry_cost", 1.0),
            unmatched=classes.get("unmatched", "fail"),
            classes=_make_classes(classes),
            tuning=self._tuning,
        )

    def _policy_address(self, draft: PolicyDraft) -> str:
        return self._name if draft.name == DEFAULT_POLICY else f"{self._name}/{draft.name}"


def _merge_classes(tree: MappingNode, fields: MappingNode) -> MappingNode:
    """Return the error classes of a policy: its own over those of the file."""
    merged = MappingNode({}, tree.mark)
    parts = [entry.node for entry in (tree.entries.get("classify"), fields.entries.get("classify")) if entry]
    for part in parts:
        merged = overlay_fields(merged, part) if isinstance(part, MappingNode) else merged
    return merged


def _make_classes(values: dict[str, Any]) -> ErrorClasses | None:
    """Return the error classes; None if both lists are empty, which leaves the verdict to the kind."""
    retryable, non_retryable = values.get("retryable", ()), values.get("non_retryable", ())
    if not retryable and not non_retryable:
        return None
    return ErrorClasses(retryable, non_retryable, values.get("precedence", "non_retryable_first"))


def _make_tuning(tree: MappingNode, faults: FaultList) -> Tuning | None:
    entry = tree.entries.get("telemetry_tuning")
    values = read_section(tree, "telemetry_tuning", faults)
    if entry is None or not values.get("enabled", True):
        return None
    settings = {
        field: group[inner]
        for field, (outer, inner) in _TUNING_PATHS.items()
        if inner in (group := values if outer is None else values.get(outer, {}))
    }
    return Tuning(**settings)


#: Fields of `Tuning`, each with its section (None: the top) and its name in a file.
_TUNING_PATHS: Final = {
    "carbon_low": ("carbon_intensity_threshold_g_per_kWh", "low"),
    "carbon_high": ("carbon_intensity_threshold_g_per_kWh", "high"),
    "price_peak": ("energy_price_usd_per_kWh", "peak"),
    "deadline_bias": ("deadline_bias", "enabled"),
    "min_buffer_s": ("deadline_bias", "min_deadline_buffer_s"),
    "max_stretch": (None, "max_stretch"),
}


#: The formulas of the source documents, by a spelling that occurs in only one of them.
_DOCUMENTS: Final[dict[str, dict[str, str]]] = {
    "base_delay_sec": {"exponent": "attempt"},  # KFM rules: random(0, base_delay_sec * 2 ** attempt)
    "jitter_seed": {"exponent": "attempt"},  # KFM loop: base_delay_s * 2 ** attempt + jitter
    "retry_backoff_seconds": {"schedule": "linear", "jitter": "none"},  # LIT: the same times the attempt
    "base_backoff_s": {"schedule": "linear", "jitter": "none"},
}


def _implied_formula(fields: MappingNode, values: dict[str, Any]) -> dict[str, str]:
    """Return the formula implied by the spellings of a source document.

    Without it, a file in the form of the KFM documents would wait half as long as they specify.
    """
    if not {"schedule", "delays_s", "factor", "exponent"}.isdisjoint(values):
        return {}
    spellings = {entry.written_path.rpartition(".")[2] for entry in fields.entries.values()}
    has_own_jitter = not {"jitter", "jitter_factor", "jitter_enabled"}.isdisjoint(values)
    if has_own_jitter:
        # A seed implies the document's formula only together with the document's jitter.
        spellings.discard("jitter_seed")
    implied = {name: text for spelling in spellings for name, text in _DOCUMENTS.get(spelling, {}).items()}
    return {name: text for name, text in implied.items() if name != "jitter" or not has_own_jitter}


def _make_schedule(values: dict[str, Any]) -> Schedule:
    """Return the schedule; a list of delays is used exactly, without base and factor."""
    shape, base = values.get("schedule"), values.get("base_delay_s", 1.0)
    if shape in (None, "fixed") and "delays_s" in values:
        return Schedule("fixed", delays=values["delays_s"])
    if shape not in (None, "exponential"):
        return Schedule(shape, base)
    return Schedule("exponential", base, values.get("factor", 2.0), values.get("exponent", "attempt-1"))


def _make_jitter(values: dict[str, Any], schedule: Schedule) -> Jitter:
    # A list of delays is exact, so it has no jitter unless the file asks for it.
    spread = _jitter_kind(values) or ("none" if schedule.shape == "fixed" else "full")
    if spread == "additive":
        first = schedule.delays[0] if schedule.delays else schedule.base
        return Jitter(spread, values.get("jitter_span_s", first))
    return Jitter(spread, values.get("jitter_factor", 0.1) if spread == "proportional" else 0.0)


def _jitter_kind(values: dict[str, Any]) -> Spread | None:
    """Return the kind of jitter that the fields give or imply; None if they do neither."""
    if "jitter" in values:
        return values["jitter"]  # type: ignore[no-any-return]
    if values.get("jitter_enabled") is False:
        return "none"
    if "jitter_factor" in values or "jitter_enabled" in values:
        return "proportional"
    return "additive" if "jitter_span_s" in values or "jitter_seed" in values else None


def _find_contradictions(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield fields that contradict each other, with a message for each."""
    spread, shape = _jitter_kind(values), values.get("schedule")
    if "jitter_span_s" in values and spread != "additive":
        yield "jitter_span_s", f"is for additive jitter, and the jitter is {spread}"
    if "jitter_factor" in values and spread not in ("proportional", "none"):
        yield "jitter_factor", f"is for proportional jitter, and the jitter is {spread}"
    if "jitter_enabled" in values and values["jitter_enabled"] is (spread == "none"):
        yield "jitter_enabled", f"contradicts the jitter, which is {spread}"
    if shape == "fixed" and "delays_s" not in values:
        yield "schedule", "is fixed, which needs delays_s: a list of delays"
    if shape not in (None, "exponential"):
        for field in ("factor", "exponent"):
            if field in values:
                yield field, f"is for an exponential schedule, and this one is {shape}"
    if "delays_s" in values:
        yield from _check_delay_list(values, shape)


def _check_delay_list(values: dict[str, Any], shape: str | None) -> Iterator[tuple[str, str]]:
    """Yield faults of a list of delays; base and factor may be given too, if both agree."""
    delays, cap = values["delays_s"], values.get("max_delay_s")
    if shape == "linear":
        yield "schedule", "is linear, but delays_s gives the delays one by one"
    if cap is not None and max(delays) > cap:
        yield "delays_s", f"holds {max(delays):g}, which is more than max_delay_s, {cap:g}"
    elif "base_delay_s" in values:
        # Source documents give both the formula and its results; a typo in either must not pass.
        plan = _make_schedule({**values, "schedule": "exponential"})
        grown = [planned_delay(plan, n) for n in range(1, len(delays) + 1)]
        capped = [delay if cap is None else min(cap, delay) for delay in grown]
        if capped != list(delays):
            yield (
                "delays_s",
                f"does not follow from base_delay_s and factor, which give {_format_numbers(capped)}",
            )


def _format_numbers(numbers: list[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _find_position(
    message: str, tree: MappingNode, fields: MappingNode, classify: MappingNode
) -> FilePosition | None:
    """Return the position of the field with which a message of `Policy` starts."""
    # `Policy` says "tuning"; the file says "telemetry_tuning".
    tuning = {"tuning": tree.entries["telemetry_tuning"]} if "telemetry_tuning" in tree.entries else {}
    entries: dict[str, MappingEntry] = {**fields.entries, **classify.entries, **tuning}
    entry = entries.get(message.split(maxsplit=1)[0].partition(".")[0])
    return None if entry is None else entry.mark


#: The fields of a file that can be the origin of a value named in a rule; the first given one is used.
_ORIGINS: Final = {
    "schedule": ("delays_s", "factor", "schedule", "base_delay_s"),
    "base_delay_s": ("delays_s", "base_delay_s"),
    "jitter": ("jitter", "jitter_enabled", "jitter_factor", "jitter_span_s"),
    "jitter_factor": ("jitter_factor", "jitter", "jitter_enabled"),
    "jitter_span_s": ("jitter_span_s", "jitter", "jitter_seed"),
}


def _find_entry(field: str, fields: MappingNode, classify: MappingNode) -> MappingEntry | None:
    """Return the entry of a file from which a policy has the value named in a rule."""
    entries: dict[str, MappingEntry] = {**fields.entries, **classify.entries}
    return next((entries[name] for name in _ORIGINS.get(field, (field,)) if name in entries), None)


def _make_cooldowns(tree: MappingNode, faults: FaultList) -> Iterator[tuple[str, Cooldown]]:
    """Yield the common cooldown under "", and the cooldown of each provider that has its own."""
    section = require_mapping(tree.entries.get("cooldown"), faults)
    common = _select_fields(MappingNode({}, tree.mark) if section is None else section, COOLDOWN_FIELDS)
    if section is not None:
        yield "", Cooldown(**read_values(common, COOLDOWN_FIELDS, faults))
    # A provider's cooldown overlays the common one, field by field.
    for name, entry in list_named_entries(tree.entries.get("providers"), faults):
        provider = require_mapping(entry, faults)
        fields = None if provider is None else require_mapping(provider.entries.get("cooldown"), faults)
        if fields is not None:
            yield name, Cooldown(**read_values(overlay_fields(common, fields), COOLDOWN_FIELDS, faults))


def _collect_spellings(tree: MappingNode, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields that the file spells differently, with their spelling."""
    for name, entry in tree.entries.items():
        if entry.written_path.rpartition(".")[2] != name:
            yield f"{path}{name}", entry.written_path
        if isinstance(entry.node, MappingNode):
            yield from _collect_spellings(entry.node, f"{path}{name}.")
