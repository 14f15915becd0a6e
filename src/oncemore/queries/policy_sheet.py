"""Describe a policy completely: its values, their meanings, its cost and its source.

Values have the names of a policy file (`policy.files.fields` has the table), with the spelling of the file
beside them if it differs. Values that do not apply are left out: a linear schedule has no factor, and a
policy without jitter has no seed. Two policies with equal values here decide alike.

The source of a value is read from the files of its profile. A packaged file begins with the name of its
document, and a comment marks each value that the document leaves open ("ours (G-2)"). A value without a
comment is the document's own.
"""

from __future__ import annotations

import re

from oncemore._values import Value
from oncemore.errors import PolicyError
from oncemore.policy.explain import delay_formula
from oncemore.queries import suggest_names
from oncemore.queries.policy_schedule import DelayRange, WorstCase, compute_worst_case, list_delays

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.files import Profile
    from oncemore.policy.policy import Policy
    from oncemore.queries.policies import FoundPolicy


class PolicyField(Value):
    """One value of a policy.

    spelling_in_file  the name in the file, if it differs
    defined_in        the profile with the value; empty for a default
    remark            the comment beside the value
    """

    name: str
    value: Plain
    spelling_in_file: str
    meaning: str
    defined_in: str
    remark: str


class SiblingPolicy(Value):
    """Another policy of the same profile."""

    name: str
    attempts: int


class PolicySheet(Value):
    """The complete description of a policy."""

    name: str
    profile: str
    provider: str | None
    version: str
    governed: bool
    description: str
    source: str
    extends: tuple[str, ...]
    signature: str
    file_digest: str
    digest: str
    retries: bool
    worst: WorstCase
    delays: tuple[DelayRange, ...]
    first_delay: str
    fields: tuple[PolicyField, ...]
    classes: Mapping[str, Plain]
    tuning: tuple[PolicyField, ...]
    origin: str
    metadata: Mapping[str, Plain]
    sections: Mapping[str, Plain]
    cooldown: Mapping[str, Plain] | None
    siblings: tuple[SiblingPolicy, ...]
    providers: tuple[str, ...]
    warnings: tuple[str, ...]


def build_sheet(found: FoundPolicy) -> PolicySheet:
    """Return the description of a policy."""
    profile, policy = found.profile, found.policy
    metadata: dict[str, Plain] = dict(profile.metadata)
    profile_description = str(metadata.pop("description", ""))
    cooldown = profile.cooldown(found.provider)
    sources = read_sources(profile)
    return PolicySheet(
        name=found.address,
        profile=profile.name,
        provider=found.provider,
        version=profile.version,
        governed=profile.governed,
        description=profile.descriptions.get(found.policy_name) or profile_description,
        source=profile.source,
        extends=profile.extends,
        signature=profile.signature,
        file_digest=profile.digest,
        digest=policy.digest,
        retries=policy.max_attempts > 1,
        worst=compute_worst_case(policy),
        delays=list_delays(policy),
        first_delay=delay_formula(policy, 1) if policy.max_attempts > 1 else "",
        fields=tuple(_retry_fields(found, sources)),
        classes=error_classes(policy),
        tuning=tuple(_tuning_fields(found, sources)),
        origin=sources[0].opening,
        metadata=metadata,
        sections=profile.sections,
        cooldown=None if cooldown is None else cooldown._asdict(),
        # A profile may hold many policies; the sheet names the others for the next question.
        siblings=tuple(
            SiblingPolicy(name, other.max_attempts)
            for name, other in profile.policies.items()
            if name != found.policy_name
        ),
        providers=tuple(profile.providers),
        warnings=_collect_warnings(found),
    )


def policy_values(policy: Policy) -> dict[str, Plain]:
    """Return the name and version of a policy, and every value that its decisions depend on."""
    return {
        "name": policy.name,
        "version": policy.version,
        "governed": policy.governed,
        **dict(_retry_values(policy)),
        **error_classes(policy),
        **({} if policy.tuning is None else {f"tuning.{k}": v for k, v in policy.tuning._asdict().items()}),
    }


def error_classes(policy: Policy) -> dict[str, Plain]:
    """Return the error classes of a policy; without lists, the classifier alone decides."""
    listed = {} if policy.classes is None else policy.classes._asdict()
    return {
        **{name: list(v) if isinstance(v, tuple) else v for name, v in listed.items()},
        "unmatched": policy.unmatched,
    }


def _retry_values(policy: Policy) -> Iterator[tuple[str, Plain]]:
    schedule, jitter = policy.schedule, policy.jitter
    yield "max_attempts", policy.max_attempts
    yield "max_crashes", policy.max_crashes
    yield "schedule", schedule.shape
    # A fixed schedule lists its delays; all others compute them from a base.
    if schedule.shape == "fixed":
        yield "delays_s", list(schedule.delays)
    else:
        yield "base_delay_s", schedule.base
    if schedule.shape == "exponential":
        yield "factor", schedule.factor
        yield "exponent", schedule.exponent
    yield "max_delay_s", policy.max_delay_s
    yield "jitter", jitter.spread
    if jitter.spread == "additive":
        yield "jitter_span_s", jitter.amount
    if jitter.spread == "proportional":
        yield "jitter_factor", jitter.amount
    if jitter.spread != "none":
        yield "jitter_seed", policy.jitter_seed
    yield "timeout_s", policy.timeout_s
    yield "total_timeout_s", policy.total_timeout_s
    yield "retry_cost", policy.retry_cost


def _collect_warnings(found: FoundPolicy) -> tuple[str, ...]:
    """Return the warnings of the file as a whole, and those of this policy."""
    # A profile repeats the warnings of all its policies; those of the other ones are left out.
    of_policies = {text for policy in found.profile.policies.values() for text in policy.warnings()}
    own = found.policy.warnings()
    provider, known = found.provider, found.profile.providers
    if provider is not None and provider not in known:
        similar = suggest_names(provider, known)
        own.append(f"the profile does not mention provider {provider}{similar}; these are its general values")
    return tuple(dict.fromkeys([*(text for text in found.profile.warnings if text not in of_policies), *own]))


def _retry_fields(found: FoundPolicy, sources: Sequence[PolicySource]) -> Iterator[PolicyField]:
    from oncemore.policy.files.fields import RETRY_FIELDS

    values = policy_values(found.policy)
    own = [f"{group}.{found.policy_name}" for group in ("policies", "categories", "retry")]
    for row in RETRY_FIELDS:
        if row.name in values:
            # The policy's own section is searched first, then the sections that it inherits from.
            paths = [
                f"{section}.{name}"
                for section in (*own, "retry_policy", "defaults")
                for name in row.spellings
            ]
            yield _make_field(row.name, values[row.name], row.meaning, paths, sources)


def _make_field(
    name: str, value: Plain, meaning: str, paths: Sequence[str], sources: Sequence[PolicySource]
) -> PolicyField:
    """Return a field with the first file that holds it, at any of the given paths."""
    field = PolicyField(
        name=name, value=value, spelling_in_file="", meaning=meaning, defined_in="", remark=""
    )
    # The nearest file wins, as in the inheritance of profiles.
    for source in sources:
        for path in paths:
            if path in source.remarks:
                spelling = path.rpartition(".")[2]
                return field._replace(
                    spelling_in_file="" if spelling == name else spelling,
                    defined_in=source.name,
                    remark=source.remarks[path],
                )
    return field


def _tuning_fields(found: FoundPolicy, sources: Sequence[PolicySource]) -> Iterator[PolicyField]:
    if found.policy.tuning is None:
        return
    for name, value in found.policy.tuning._asdict().items():
        spelling, meaning = TUNING_SETTINGS[name]
        field = _make_field(name, value, meaning, [f"telemetry_tuning.{spelling}"], sources)
        # The path below telemetry_tuning has several parts, and all of them are its spelling.
        yield field._replace(spelling_in_file=spelling if spelling != name else "")


#: The settings of tuning: their spelling in a file, and their meaning.
TUNING_SETTINGS = {
    "carbon_low": ("carbon_intensity_threshold_g_per_kWh.low", "grid intensity where stretching begins"),
    "carbon_high": ("carbon_intensity_threshold_g_per_kWh.high", "grid intensity where it is full"),
    "price_peak": ("energy_price_usd_per_kWh.peak", "energy price from which delays are stretched"),
    "deadline_bias": ("deadline_bias.enabled", "whether a near deadline shortens delays"),
    "min_buffer_s": (
        "deadline_bias.min_deadline_buffer_s",
        "the time before the deadline below which delays are shortened",
    ),
    "max_stretch": ("max_stretch", "the largest factor that carbon and price may apply to a delay"),
}


class PolicySource(Value):
    """The opening comment of a profile's file, and the comment beside each field, by its dotted path."""

    name: str
    opening: str
    remarks: Mapping[str, str]


def read_sources(profile: Profile) -> tuple[PolicySource, ...]:
    """Return the sources of a profile: its own file, then the files that it extends."""
    from oncemore.policy.files import inspect_file
    from oncemore.policy.files.address import find_profile_file

    sources = [_read_source(profile)]
    for name in profile.extends:
        try:
            sources.append(_read_source(inspect_file(find_profile_file(name))))
        except PolicyError:
            # The parent was extended by its path and cannot be loaded by its name.
            break
    return tuple(sources)


def _read_source(profile: Profile) -> PolicySource:
    from oncemore.policy.files.file_reader import read_file
    from oncemore.policy.files.yaml_reader import parse_yaml

    data, _ = read_file(profile.source)
    lines = data.decode().splitlines()
    opening = []
    for line in lines:
        if not line.startswith("#"):
            break
        opening.append(line.lstrip("# "))
    return PolicySource(
        profile.name, " ".join(opening), dict(_collect_remarks(parse_yaml(data, profile.source), lines, ""))
    )


def _collect_remarks(tree: Any, lines: list[str], path: str) -> list[tuple[str, str]]:
    remarks = []
    for name, entry in tree.entries.items():
        remarks.append((f"{path}{name}", _read_remark(lines[entry.mark.line - 1])))
        if hasattr(entry.node, "entries"):
            remarks += _collect_remarks(entry.node, lines, f"{path}{name}.")
    return remarks


def _read_remark(line: str) -> str:
    """Return the comment at the end of a line."""
    # A # within quotes is not a comment: quoted texts are masked, which keeps all positions.
    masked = re.sub(r"\"[^\"]*\"|'[^']*'", lambda quoted: "_" * len(quoted[0]), line)
    comment = re.search(r"\s#\s*", masked)
    return "" if comment is None else line[comment.end() :].strip()
