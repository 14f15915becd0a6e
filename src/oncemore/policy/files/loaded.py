"""A loaded policy file: the policies in it, what it says about itself, and where it comes from."""

from __future__ import annotations

from types import MappingProxyType

from oncemore._values import Record
from oncemore.errors import PolicyError
from oncemore.limits.cooldown_rules import Rest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final

    from oncemore.policy.policy import Policy

VERIFIED: Final = "packaged, digest verified"
UNSIGNED: Final = "unsigned"
#: What a policy file calls a `cooldown`.
Cooldown = Rest


class Profile(Record):
    """What a policy file says, checked; a frozen value.

    name        what it is called: by the file, or like the file
    version     its version, which every decision records
    governed    whether the stricter rules of governed pipelines hold
    metadata    description, owner, reviewer, review_by, care_notes, priority, kfm_compliant, as given
    policies    its policies by name; the one that the profile's own name means is `default`
    providers   for each provider that has its own: all policies by name
    cooldowns   the cooldown of everybody (under ""), and of each provider
    descriptions  what single policies are for, by their names
    sections    what other parts of the house act on, as plain values under the names of the table
    spellings   how the file spelt a field where not by its own name: dotted name to dotted name
    extends     the profiles that it stands on, nearest first
    source      the file it was read from
    digest      the SHA-256 of that file's bytes
    signature   why it is trusted: VERIFIED or UNSIGNED
    warnings    what is allowed here but unwise; said once, when it is loaded
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
        self.fill(*(frozen(fields[name]) for name in self.__slots__))

    def policy(self, name: str = "default", provider: str | None = None) -> Policy:
        """Return one of its policies, as it is for a provider; one that is not listed has no special one."""
        own = self.policies if provider is None else self.providers.get(provider, self.policies)
        if name not in own:
            wanted = self.name if name == "default" else f"{self.name}/{name}"
            known = ", ".join(f"{self.name}/{known}" for known in sorted(own))
            raise PolicyError(f"policy {wanted!r} is not known; {self.source} has {known}")
        return own[name]

    def cooldown(self, provider: str | None = None) -> Cooldown | None:
        """Return how long a provider is left alone after failures, if the file says so."""
        return self.cooldowns.get(provider or "", self.cooldowns.get(""))

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values, fit for JSON."""
        shown = {name: thawed(value) for name, value in self.fields().items()}
        shown["policies"] = _plainly(self.policies)
        shown["providers"] = {name: _plainly(own) for name, own in self.providers.items()}
        shown["cooldowns"] = {name: own._asdict() for name, own in self.cooldowns.items()}
        return shown

    def __hash__(self) -> int:
        return hash((self.name, self.source, self.digest))

    def __reduce__(self) -> tuple[object, ...]:
        return _again, ({name: thawed(value) for name, value in self.fields().items()},)


def _again(fields: dict[str, object]) -> Profile:
    return Profile(**fields)


def _plainly(policies: Mapping[str, Policy]) -> dict[str, Any]:
    return {name: thawed(policy.plain()) for name, policy in policies.items()}


def frozen(value: object) -> object:
    """Return a value that nobody can change: mappings as read-only views, lists as tuples."""
    if isinstance(value, (dict, MappingProxyType)):
        return MappingProxyType({name: frozen(inner) for name, inner in value.items()})
    if type(value) in (list, tuple):
        return tuple(frozen(inner) for inner in value)  # type: ignore[attr-defined]
    return value


def thawed(value: object) -> Any:
    """Return a copy made of plain dicts and lists."""
    if isinstance(value, (dict, MappingProxyType)):
        return {name: thawed(inner) for name, inner in value.items()}
    if type(value) in (list, tuple):
        return [thawed(inner) for inner in value]  # type: ignore[attr-defined]
    return value
