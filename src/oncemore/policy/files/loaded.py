"""The loaded policy file: its policies, its other sections, and its origin."""

from __future__ import annotations

from types import MappingProxyType

from oncemore._values import FrozenRecord
from oncemore.errors import PolicyError
from oncemore.limits.cooldown_rules import CooldownSchedule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

    from oncemore.policy.policy import Policy

VERIFIED: Final = "packaged, digest verified"
UNSIGNED: Final = "unsigned"
#: First words of the other states of a signature.
SIGNED, REFUSED = "signed by ", "refused: "
#: The state of a signed file that is not governed, where no trusted keys are configured.
NOT_VERIFIED: Final = "signed, not verified"
#: The type of a `cooldown` in a policy file.
Cooldown = CooldownSchedule


class Profile(FrozenRecord):
    """A checked policy file, as a frozen value.

    name        the name in the file, else the name of the file
    version     the version, recorded with every decision
    governed    whether the stricter rules of governed pipelines apply
    metadata    description, owner, reviewer, dates of review and expiry, care_notes, priority and the other
                fields about the file itself, if given
    policies    policies by name; the profile's own name stands for `default`
    providers   all policies by name, for each provider with policies of its own
    cooldowns   the common cooldown (under ""), and one for each provider that has its own
    descriptions  descriptions of single policies by name
    sections    settings for other parts of the package, as plain values under their field names
    spellings   alternative spellings used in the file: dotted field name to dotted spelling
    extends     the profiles that it extends, nearest first
    source      path of the file
    digest      SHA-256 of the file's bytes
    signature   VERIFIED, UNSIGNED, NOT_VERIFIED, or a text that begins with SIGNED (the signers follow) or
                REFUSED (the reason follows; only in a profile that was loaded to be looked at)
    warnings    texts for settings that are allowed but unwise; issued once, on loading
    """

    __slots__ = (
        "cooldowns", "descriptions", "digest", "extends", "governed", "metadata", "name", "policies",
        "providers", "sections", "signature", "source", "spellings", "version", "warnings",
    )  # fmt: skip
    cooldowns: Mapping[str, Cooldown]
    descriptions: Mapping[str, str]
    digest: str
    extends: tuple[str, ...]
    governed: bool
    metadata: Mapping[str, Any]
    name: str
    policies: Mapping[str, Policy]
    providers: Mapping[str, Mapping[str, Policy]]
    sections: Mapping[str, Any]
    signature: str
    source: str
    spellings: Mapping[str, str]
    version: str
    warnings: tuple[str, ...]

    def __init__(self, **fields: object) -> None:
        self.set_fields(**{name: freeze_value(fields[name]) for name in self.__slots__})

    def policy(self, name: str = "default", provider: str | None = None) -> Policy:
        """Return a policy by name, with a provider's changes.

        A provider that the file does not list gets the common policy.
        """
        policies = self.policies if provider is None else self.providers.get(provider, self.policies)
        if name not in policies:
            wanted = self.name if name == "default" else f"{self.name}/{name}"
            other = ", ".join(f"{self.name}/{other}" for other in sorted(policies))
            raise PolicyError(f"policy {wanted!r} is not known; {self.source} has {other}")
        return policies[name]

    def cooldown(self, provider: str | None = None) -> Cooldown | None:
        """Return the cooldown after a provider's failures; None if the file has none."""
        return self.cooldowns.get(provider or "", self.cooldowns.get(""))

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        fields = {name: thaw_value(value) for name, value in self.field_values().items()}
        fields["policies"] = _policies_to_dict(self.policies)
        fields["providers"] = {name: _policies_to_dict(value) for name, value in self.providers.items()}
        fields["cooldowns"] = {name: value._asdict() for name, value in self.cooldowns.items()}
        return fields

    # The mappings cannot be hashed; the digest of the file identifies their content.
    def __hash__(self) -> int:
        return hash((self.name, self.source, self.digest))

    # Read-only views cannot be pickled, so a pickled profile holds plain dicts.
    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_profile, ({name: thaw_value(value) for name, value in self.field_values().items()},)


def _rebuild_profile(fields: dict[str, object]) -> Profile:
    return Profile(**fields)


def _policies_to_dict(policies: Mapping[str, Policy]) -> dict[str, Any]:
    return {name: thaw_value(policy.to_dict()) for name, policy in policies.items()}


def freeze_value(value: object) -> object:
    """Return an immutable copy: mappings as read-only views, lists as tuples."""
    if isinstance(value, (dict, MappingProxyType)):
        return MappingProxyType({name: freeze_value(inner) for name, inner in value.items()})
    if type(value) in (list, tuple):
        return tuple(freeze_value(inner) for inner in value)  # type: ignore[attr-defined]
    return value


def thaw_value(value: object) -> Any:
    """Return a copy made of plain dicts and lists."""
    if isinstance(value, (dict, MappingProxyType)):
        return {name: thaw_value(inner) for name, inner in value.items()}
    if type(value) in (list, tuple):
        return [thaw_value(inner) for inner in value]  # type: ignore[attr-defined]
    return value
