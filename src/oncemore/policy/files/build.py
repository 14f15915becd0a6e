"""Makes policies and a profile from the fields that hold.

Each field was checked by its row; here they meet: what implies what, what contradicts what, what the
file's bounds allow. The last word is the core's: a policy that it refuses is a fault at the place of
the field it names.
"""

from __future__ import annotations

import re

from oncemore._values import Value
from oncemore.classifiers.verdict import Classes, forbidden
from oncemore.errors import PolicyError
from oncemore.policy.backoff import Jitter, Schedule, planned
from oncemore.policy.files.fields import CLASSIFY, COOLDOWN, ENVELOPE, GOVERNED_VERSION, RETRY
from oncemore.policy.files.inheritance import (
    DEFAULT,
    Drafted,
    check_providers,
    drafts_of,
    group,
    named,
    overlay,
    raised,
    read,
)
from oncemore.policy.files.loaded import Cooldown
from oncemore.policy.files.sections import SECTIONS
from oncemore.policy.files.validation import values_of
from oncemore.policy.files.yaml_reader import Entry, Fields
from oncemore.policy.policy import PER_RUN, Policy, broken_rules
from oncemore.policy.tuning import Tuning
from oncemore.settings import LEASE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final

    from oncemore.policy.backoff import Spread
    from oncemore.policy.files.faults import Faults, Mark


class Built(Value):
    """What a file comes to: its envelope, its policies, its cooldowns and its other sections."""

    envelope: dict[str, Any]
    policies: dict[str, Policy]
    providers: dict[str, dict[str, Policy]]
    cooldowns: dict[str, Cooldown]
    sections: dict[str, Any]
    spellings: dict[str, str]
    notes: tuple[str, ...]
    descriptions: dict[str, str]


def build(tree: Fields, name: str, faults: Faults) -> Built:
    """Return what the fields of a file come to; what does not fit together is added to the faults."""
    envelope = values_of(_only(tree, ENVELOPE), ENVELOPE, faults)
    notes = dict.fromkeys(_check_version(tree, envelope, faults))
    sections = values_of(_only(tree, SECTIONS), SECTIONS, faults)
    _check_sections(tree, sections, faults)
    maker = _Maker(tree, name, envelope, faults)
    drafts = drafts_of(tree, faults)
    if not drafts:
        faults.add(tree.mark, "retry_policy", "is missing; a policy file holds a policy")
    policies: dict[str, Policy] = {}
    providers: dict[str, dict[str, Policy]] = {}
    for draft in drafts:
        made = maker.policy(draft)
        if made is not None:
            own = policies if draft.provider is None else providers.setdefault(draft.provider, {})
            own[draft.name] = made
    check_providers(tree, {draft.name for draft in drafts}, faults)
    cooldowns = dict(_cooldowns(tree, faults))
    spellings = dict(_spellings(tree))
    notes |= maker.notes
    return Built(
        envelope, policies, providers, cooldowns, sections, spellings, tuple(notes), maker.descriptions
    )  # fmt: skip


def _check_sections(tree: Fields, sections: dict[str, Any], faults: Faults) -> None:
    """Refuse settings that contradict each other, so that one of them would have no effect."""
    follows = sections.get("on_non_retryable", ("halt",))
    if sections.get("halt_scope") == "pipeline" and "halt" not in follows:
        text = "is pipeline, and on_non_retryable does not hold halt; add halt, or set halt_scope: run"
        faults.add(tree.entries["halt_scope"].mark, "halt_scope", text)
    lease = sections.get("lease", {})
    if lease.get("renew_every_s", 0.0) >= lease.get("ttl_s", LEASE_S):
        text = f"has a renew_every_s that is not less than ttl_s, {lease.get('ttl_s', LEASE_S):g}"
        faults.add(tree.entries["lease"].mark, "lease", text)


def _only(tree: Fields, rows: tuple[Any, ...]) -> Fields:
    names = {row.name for row in rows}
    return Fields({name: entry for name, entry in tree.entries.items() if name in names}, tree.mark)


#: The version of a file that gives none.
UNVERSIONED: Final = "unversioned"


def _check_version(tree: Fields, envelope: dict[str, Any], faults: Faults) -> Iterator[str]:
    """Refuse a governed file without a version of its form; give any other one a name, with a warning."""
    form = "retry-loop-v<major>.<minor>"
    if "version" not in tree.entries and envelope.get("governed"):
        text = "is missing; every decision records it (POL-4): version: retry-loop-v1.0"
        faults.add(tree.mark, "version", text)
    elif "version" not in tree.entries:
        envelope["version"] = UNVERSIONED
        yield f'{tree.mark.file}: version is missing; decisions record "{UNVERSIONED}"; write version: "1"'
    elif envelope.get("governed") and not re.fullmatch(GOVERNED_VERSION, envelope.get("version", "")):
        entry = tree.entries["version"]
        faults.add(entry.node.mark, "version", f"of a governed file has the form {form} (POL-4)")


class _Maker:
    """Makes the policies of one file."""

    def __init__(self, tree: Fields, name: str, envelope: dict[str, Any], faults: Faults) -> None:
        self._tree = tree
        self._name = name
        self._faults = faults
        self._version = envelope.get("version", "")
        self._governed = envelope.get("governed", False)
        self._bounds = tuple(read(tree, "bounds", faults).items())
        self._floors = read(tree, "minimums", faults)
        self._tuning = _tuning(tree, faults)
        self.notes: dict[str, None] = {}
        self.descriptions: dict[str, str] = {}

    def policy(self, draft: Drafted) -> Policy | None:
        """Return a policy, or None when one of its fields is wrong."""
        fields = raised(draft.fields, self._floors, self.notes)
        values = values_of(fields, RETRY, self._faults)
        classify = _classify(self._tree, fields)
        classes = values_of(classify, CLASSIFY, self._faults)
        never = forbidden(classes.get("retryable", ()))
        if never:
            entry = classify.entries["retryable"]
            text = f"covers {', '.join(never)}, which may never be retried (CLASS-2)"
            self._faults.add(entry.mark, entry.written, text)
        if never or len(values) != len(fields.entries) or len(classes) != len(classify.entries):
            return None
        values = {**_implied(fields, values), **values}
        problems = list(_contradictions(values))
        for field, text in problems:
            self._faults.add(fields.entries[field].mark, fields.entries[field].written, text)
        if problems:
            return None
        try:
            made = self._made(draft, values, classes)
        except PolicyError as error:
            mark = _place(str(error), self._tree, fields, classify) or draft.entry.mark
            self._faults.add(mark, draft.entry.written, f"cannot be used: {error}")
            return None
        made = made.replaced(governed=self._governed, bounds=self._bounds)
        for field, text in broken_rules(made):
            entry = _entry_of(field, fields, classify) or draft.entry
            self._faults.add(
                entry.node.mark, entry.written, f"{'' if entry is not draft.entry else field + ' '}{text}"
            )
        return made

    def _made(self, draft: Drafted, values: dict[str, Any], classes: dict[str, Any]) -> Policy:
        schedule = _schedule(values)
        if "description" in values and draft.provider is None:
            self.descriptions[draft.name] = values["description"]
        return Policy(
            values.get("name", self._address(draft)) + (f"@{draft.provider}" if draft.provider else ""),
            self._version,
            max_attempts=values.get("max_attempts", 3),
            schedule=schedule,
            jitter=_jitter(values, schedule),
            jitter_seed=values.get("jitter_seed", PER_RUN),
            max_delay_s=values.get("max_delay_s"),
            timeout_s=values.get("timeout_s"),
            within_s=values.get("within_s"),
            retry_cost=values.get("retry_cost", 1.0),
            unmatched=classes.get("unmatched", "fail"),
            classes=_classes(classes),
            tuning=self._tuning,
        )

    def _address(self, draft: Drafted) -> str:
        return self._name if draft.name == DEFAULT else f"{self._name}/{draft.name}"


def _classify(tree: Fields, fields: Fields) -> Fields:
    """Return the classes that hold for a policy: its own over those of the file."""
    nothing = Fields({}, tree.mark)
    parts = [entry.node for entry in (tree.entries.get("classify"), fields.entries.get("classify")) if entry]
    for part in parts:
        nothing = overlay(nothing, part) if isinstance(part, Fields) else nothing
    return nothing


def _classes(values: dict[str, Any]) -> Classes | None:
    """Return the lists of classes; two empty ones leave everything to the facts, like none."""
    retryable, non_retryable = values.get("retryable", ()), values.get("non_retryable", ())
    if not retryable and not non_retryable:
        return None
    return Classes(retryable, non_retryable, values.get("precedence", "non_retryable_first"))


def _tuning(tree: Fields, faults: Faults) -> Tuning | None:
    entry = tree.entries.get("telemetry_tuning")
    values = read(tree, "telemetry_tuning", faults)
    if entry is None or not values.get("enabled", True):
        return None
    given = {
        field: group[inner]
        for field, (outer, inner) in _KNOBS.items()
        if inner in (group := values if outer is None else values.get(outer, {}))
    }
    return Tuning(**given)


_KNOBS: Final = {
    "carbon_low": ("carbon_intensity_threshold_g_per_kWh", "low"),
    "carbon_high": ("carbon_intensity_threshold_g_per_kWh", "high"),
    "price_peak": ("energy_price_usd_per_kWh", "peak"),
    "deadline_bias": ("deadline_bias", "enabled"),
    "min_buffer_s": ("deadline_bias", "min_deadline_buffer_s"),
    "max_stretch": (None, "max_stretch"),
}


#: The formulas of the source documents, by the spelling that only one of them has.
_DOCUMENTS: Final[dict[str, dict[str, str]]] = {
    "base_delay_sec": {"exponent": "attempt"},  # KFM rules: random(0, base_delay_sec * 2 ** attempt)
    "jitter_seed": {"exponent": "attempt"},  # KFM loop: base_delay_s * 2 ** attempt + jitter
    "retry_backoff_seconds": {"schedule": "linear", "jitter": "none"},  # LIT: the same times the attempt
    "base_backoff_s": {"schedule": "linear", "jitter": "none"},
}


def _implied(fields: Fields, values: dict[str, Any]) -> dict[str, str]:
    """Return the formula that a file means which is written as its document prints it.

    Without it a file of the KFM documents would wait half as long as they say.
    """
    if not {"schedule", "delays_s", "factor", "exponent"}.isdisjoint(values):
        return {}
    spelled = {entry.written.rpartition(".")[2] for entry in fields.entries.values()}
    own_jitter = not {"jitter", "jitter_factor", "jitter_enabled"}.isdisjoint(values)
    if own_jitter:
        spelled.discard("jitter_seed")  # it means the document's formula only with the document's jitter
    found = {name: text for one in spelled for name, text in _DOCUMENTS.get(one, {}).items()}
    return {name: text for name, text in found.items() if name != "jitter" or not own_jitter}


def _schedule(values: dict[str, Any]) -> Schedule:
    """Return the schedule; a list of delays is exact, and what it is made from need not be said."""
    shape, base = values.get("schedule"), values.get("base_delay_s", 1.0)
    if shape in (None, "fixed") and "delays_s" in values:
        return Schedule("fixed", delays=values["delays_s"])
    if shape not in (None, "exponential"):
        return Schedule(shape, base)
    return Schedule("exponential", base, values.get("factor", 2.0), values.get("exponent", "attempt-1"))


def _jitter(values: dict[str, Any], schedule: Schedule) -> Jitter:
    spread = _spread(values) or ("none" if schedule.shape == "fixed" else "full")
    if spread == "additive":
        first = schedule.delays[0] if schedule.delays else schedule.base
        return Jitter(spread, values.get("jitter_span_s", first))
    return Jitter(spread, values.get("jitter_factor", 0.1) if spread == "proportional" else 0.0)


def _spread(values: dict[str, Any]) -> Spread | None:
    """Return the kind of jitter that the fields say or imply, or None when they are silent."""
    if "jitter" in values:
        return values["jitter"]  # type: ignore[no-any-return]
    if values.get("jitter_enabled") is False:
        return "none"
    if "jitter_factor" in values or "jitter_enabled" in values:
        return "proportional"
    return "additive" if "jitter_span_s" in values or "jitter_seed" in values else None


def _contradictions(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Find fields that cannot both be meant; each with what to do."""
    spread, shape = _spread(values), values.get("schedule")
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
        yield from _against_delays(values, shape)


def _against_delays(values: dict[str, Any], shape: str | None) -> Iterator[tuple[str, str]]:
    """A list of delays may stand beside the exponential that it comes from, if both say the same."""
    delays, cap = values["delays_s"], values.get("max_delay_s")
    if shape == "linear":
        yield "schedule", "is linear, but delays_s gives the delays one by one"
    if cap is not None and max(delays) > cap:
        yield "delays_s", f"holds {max(delays):g}, which is more than max_delay_s, {cap:g}"
    elif "base_delay_s" in values:
        plan = _schedule({**values, "schedule": "exponential"})
        grown = [planned(plan, n) for n in range(1, len(delays) + 1)]
        held = [delay if cap is None else min(cap, delay) for delay in grown]
        if held != list(delays):
            yield "delays_s", f"does not follow from base_delay_s and factor, which give {_listed(held)}"


def _listed(numbers: list[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _place(message: str, tree: Fields, fields: Fields, classify: Fields) -> Mark | None:
    """Return where the field stands that a message of the core begins with."""
    tuning = {"tuning": tree.entries["telemetry_tuning"]} if "telemetry_tuning" in tree.entries else {}
    known: dict[str, Entry] = {**fields.entries, **classify.entries, **tuning}
    entry = known.get(message.split(maxsplit=1)[0].partition(".")[0])
    return None if entry is None else entry.mark


#: By which fields of a file a policy comes to have what a rule names, where not by the field itself.
_SAID_BY: Final = {
    "schedule": ("delays_s", "factor", "schedule", "base_delay_s"),
    "base_delay_s": ("delays_s", "base_delay_s"),
    "jitter": ("jitter", "jitter_enabled", "jitter_factor", "jitter_span_s"),
    "jitter_factor": ("jitter_factor", "jitter", "jitter_enabled"),
    "jitter_span_s": ("jitter_span_s", "jitter", "jitter_seed"),
}


def _entry_of(field: str, fields: Fields, classify: Fields) -> Entry | None:
    """Return the entry of a file by which a policy has what a rule names."""
    known: dict[str, Entry] = {**fields.entries, **classify.entries}
    return next((known[name] for name in _SAID_BY.get(field, (field,)) if name in known), None)


def _cooldowns(tree: Fields, faults: Faults) -> Iterator[tuple[str, Cooldown]]:
    """Give the cooldown of everybody under "", and of each provider that has its own."""
    ground = group(tree.entries.get("cooldown"), faults)
    common = _only(Fields({}, tree.mark) if ground is None else ground, COOLDOWN)
    if ground is not None:
        yield "", Cooldown(**values_of(common, COOLDOWN, faults))
    for name, entry in named(tree.entries.get("providers"), faults):
        provider = group(entry, faults)
        own = None if provider is None else group(provider.entries.get("cooldown"), faults)
        if own is not None:
            yield name, Cooldown(**values_of(overlay(common, own), COOLDOWN, faults))


def _spellings(tree: Fields, path: str = "") -> Iterator[tuple[str, str]]:
    """Tell how the file spelt what has another name here."""
    for name, entry in tree.entries.items():
        if entry.written.rpartition(".")[2] != name:
            yield f"{path}{name}", entry.written
        if isinstance(entry.node, Fields):
            yield from _spellings(entry.node, f"{path}{name}.")
