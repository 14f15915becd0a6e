"""Everything that can be said of a policy before it is used: values, meanings, cost, origin.

Values stand under the names that a policy file uses (`policy.files.fields` has the table), with the spelling
of the document beside them where it is another.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.proof import formula
from oncemore.queries.names import nearest
from oncemore.queries.policy_fields import classes, values
from oncemore.queries.policy_origin import origins
from oncemore.queries.policy_schedule import Delay, Worst, delays, worst

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from oncemore.policy.canonical_json import Plain
    from oncemore.queries.policies import Found
    from oncemore.queries.policy_origin import Origin


class Field(Value):
    """One value: our name for it, how the file spells it where that differs, and what it means.

    `given_in` is the profile whose file gives it, or "" for a default; `remark` is what stands beside it.
    """

    name: str
    value: Plain
    spelled: str
    meaning: str
    given_in: str
    remark: str


class Sibling(Value):
    """Another policy of the same profile."""

    name: str
    attempts: int


class Sheet(Value):
    """A policy, laid out."""

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
    worst: Worst
    delays: tuple[Delay, ...]
    first_delay: str
    fields: tuple[Field, ...]
    classes: Mapping[str, Plain]
    tuning: tuple[Field, ...]
    origin: str
    metadata: Mapping[str, Plain]
    sections: Mapping[str, Plain]
    cooldown: Mapping[str, Plain] | None
    siblings: tuple[Sibling, ...]
    providers: tuple[str, ...]
    warnings: tuple[str, ...]


def sheet(found: Found) -> Sheet:
    """Lay out a policy."""
    profile, policy = found.profile, found.policy
    metadata: dict[str, Plain] = dict(profile.metadata)
    about = str(metadata.pop("description", ""))
    cooldown = profile.cooldown(found.provider)
    read = origins(profile)
    return Sheet(
        name=found.address,
        profile=profile.name,
        provider=found.provider,
        version=profile.version,
        governed=profile.governed,
        description=profile.descriptions.get(found.policy_name) or about,
        source=profile.source,
        extends=profile.extends,
        signature=profile.signature,
        file_digest=profile.digest,
        digest=policy.digest,
        retries=policy.max_attempts > 1,
        worst=worst(policy),
        delays=delays(policy),
        first_delay=formula(policy, 1) if policy.max_attempts > 1 else "",
        fields=tuple(_fields(found, read)),
        classes=classes(policy),
        tuning=tuple(_tuning(found, read)),
        origin=read[0].opening,
        metadata=metadata,
        sections=profile.sections,
        cooldown=None if cooldown is None else cooldown._asdict(),
        siblings=tuple(
            Sibling(name, other.max_attempts)
            for name, other in profile.policies.items()
            if name != found.policy_name
        ),
        providers=tuple(profile.providers),
        warnings=_warnings(found),
    )


def _warnings(found: Found) -> tuple[str, ...]:
    """Say what the file says of itself, and of this policy what the core says."""
    others = {name for policy in found.profile.policies.values() for name in policy.warnings()}
    own = found.policy.warnings()
    whose, known = found.provider, found.profile.providers
    if whose is not None and whose not in known:
        meant = nearest(whose, known)
        own.append(f"nothing is said here of provider {whose}{meant}; these numbers hold for everybody")
    return tuple(dict.fromkeys([*(text for text in found.profile.warnings if text not in others), *own]))


def _fields(found: Found, read: Sequence[Origin]) -> Iterator[Field]:
    from oncemore.policy.files.fields import RETRY

    given = values(found.policy)
    own = [f"{group}.{found.policy_name}" for group in ("policies", "categories", "retry")]
    for row in RETRY:
        if row.name in given:
            paths = [
                f"{place}.{name}" for place in (*own, "retry_policy", "defaults") for name in row.spellings
            ]
            yield _field(row.name, given[row.name], row.meaning, paths, read)


def _field(name: str, value: Plain, meaning: str, paths: Sequence[str], read: Sequence[Origin]) -> Field:
    """Find the file that gives a field, by any of the paths at which it can stand."""
    for origin in read:
        for path in paths:
            if path in origin.remarks:
                written = path.rpartition(".")[2]
                return Field(
                    name,
                    value,
                    "" if written == name else written,
                    meaning,
                    origin.name,
                    origin.remarks[path],
                )
    return Field(name, value, "", meaning, "", "")


def _tuning(found: Found, read: Sequence[Origin]) -> Iterator[Field]:
    if found.policy.tuning is None:
        return
    for name, value in found.policy.tuning._asdict().items():
        written, meaning = KNOBS[name]
        field = _field(name, value, meaning, [f"telemetry_tuning.{written}"], read)
        yield field._replace(spelled=written if written != name else "")


#: The knobs of tuning: how a file spells them, and what they mean.
KNOBS = {
    "carbon_low": ("carbon_intensity_threshold_g_per_kWh.low", "grid intensity where stretching begins"),
    "carbon_high": ("carbon_intensity_threshold_g_per_kWh.high", "grid intensity where it is full"),
    "price_peak": ("energy_price_usd_per_kWh.peak", "energy price from which delays are stretched"),
    "deadline_bias": ("deadline_bias.enabled", "whether a near deadline shortens delays"),
    "min_buffer_s": ("deadline_bias.min_deadline_buffer_s", "the time to spare below which haste begins"),
    "max_stretch": ("max_stretch", "the most that carbon and price may multiply a delay by"),
}
