"""LOAD: names and paths to profiles and policies.

    load("policies/mine.yaml")          a file
    profile("kfm-rules")                a packaged profile, or a file of the policy root by its name
    policy("nova-cat/acquisition@eso")  one policy of it, as it is for a provider

Loaded profiles are remembered until one of the files they came from changes. Warnings are given when a
file is really read, at the line of the caller.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import PolicyError, warn_policy
from oncemore.limits.breaker_rules import Rules
from oncemore.policy.files.address import address_of, find, forget_names, path_text, root_files
from oncemore.policy.files.build import Built, build
from oncemore.policy.files.disk import Stamp, stamp
from oncemore.policy.files.faults import Faults
from oncemore.policy.files.inheritance_chain import Draft, draft_of, is_governed
from oncemore.policy.files.loaded import UNSIGNED, VERIFIED, Profile
from oncemore.policy.files.packaged import PACKAGED, is_packaged, path_of
from oncemore.policy.policy import STANDARD, StepSettings
from oncemore.settings import BEATS, LEASE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from typing import Any, Final

    from oncemore.policy.files.loaded import Cooldown
    from oncemore.policy.policy import Policy

MOST_REMEMBERED: Final = 128

_remembered: dict[str, tuple[tuple[Stamp, ...], Profile]] = {}


class Listed(Value):
    """One line of a listing; `fault` says why a file cannot be used."""

    name: str
    version: str
    governed: bool
    source: str
    signature: str
    fault: str = ""


def load(path: str | os.PathLike[str]) -> Profile:
    """Return the profile in a policy file, or raise a PolicyError that says everything wrong with it."""
    made, fresh = _load(path_text(path))
    if fresh:
        warn_policy(*made.warnings)
    return made


def profile(name: str) -> Profile:
    """Return a profile by its name: a packaged one, or a file of the policy root."""
    return load(find(name))


def policy(name: str | os.PathLike[str], provider: str | None = None) -> Policy:
    """Return a policy by its address `profile[/policy][@provider]`; a path stands for a profile."""
    at = address_of(name)
    return load(at.path).policy(at.policy, at.provider if provider is None else provider)


def quiet_policy(name: str | os.PathLike[str]) -> Policy:
    """Return a policy like `policy`, for a caller who gives a policy's own warnings himself."""
    at = address_of(name)
    made, fresh = _load(at.path)
    if fresh:
        own = {text for each in _policies(made) for text in each.warnings()}
        warn_policy(*(text for text in made.warnings if text not in own))
    return made.policy(at.policy, at.provider)


def step_settings(name: str | os.PathLike[str]) -> StepSettings:
    """Return what a policy's profile says about the steps that name this policy."""
    if name == STANDARD.name:
        return StepSettings()
    made, _ = _load(address_of(name).path)
    sections, usual = made.sections, StepSettings()
    follows = sections.get("on_non_retryable", ("halt",))
    escalation = sections.get("escalation", {})
    return StepSettings(
        after_failure=sections.get("after_failure", "raise"),
        quarantines="quarantine" in follows,
        halts_pipeline="halt" in follows and sections.get("halt_scope") == "pipeline",
        breaker=breaker_rules(name),
        escalation=(
            escalation.get("permanent", usual.escalation[0]),
            escalation.get("exhausted", usual.escalation[1]),
        ),
        on_version_change=sections.get("idempotency", {}).get("on_config_change"),
        priority=made.metadata.get("priority", usual.priority),
        repeats_once=sections.get("effects") != "require_idempotent_or_outbox",
        lease=_lease(sections.get("lease", {})),
    )


def _lease(told: Mapping[str, float]) -> tuple[float, float] | None:
    """Return how long a lease lasts and how often it is renewed; None if a file leaves both to the engine."""
    if not told:
        return None
    ttl_s = told.get("ttl_s", LEASE_S)
    return ttl_s, told.get("renew_every_s", ttl_s / BEATS)


def breaker_rules(name: str | os.PathLike[str]) -> Rules | None:
    """Return when a policy's profile cuts off calls to a provider; None if it does not."""
    told = section_of(name, "circuit_breaker")
    if told is None:
        return None
    given = {field: told[row] for row, field in _BREAKER.items() if row in told}
    return Rules(**given)


def section_of(name: str | os.PathLike[str], section: str) -> Mapping[str, Any] | None:
    """Return what a policy's profile says in one of its sections; None if it says nothing."""
    if name == STANDARD.name:
        return None
    found: Mapping[str, Any] | None = sections_of(name).get(section)
    return found


def sections_of(name: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return what a policy's profile says besides its policies."""
    made, _ = _load(address_of(name).path)
    return made.sections


_BREAKER: Final = {
    "max_failures": "failures",
    "cooldown_sec": "cooldown_s",
    "count": "counts",
    "failure_rate": "rate",
    "window_sec": "window_s",
    "min_calls": "least",
}


def cooldowns(name: str | os.PathLike[str]) -> Mapping[str, Cooldown]:
    """Return how long a policy's profile leaves things alone: everybody (under ""), and each provider."""
    if name == STANDARD.name:
        return {}
    made, _ = _load(address_of(name).path)
    return made.cooldowns


def names() -> list[str]:
    """Return the names of all profiles: the packaged ones, and those of the policy root."""
    return sorted({*PACKAGED, *root_files()})


def listing() -> list[Listed]:
    """Return what there is, by name; a file that cannot be used is listed with the reason."""
    ours = [(name, path_of(name)) for name in PACKAGED]
    own = [(name, path) for name, paths in root_files().items() for path in paths]
    return sorted(_listed(name, path) for name, path in ours + own)


def forget() -> None:
    """Let go of everything that was loaded; the next use reads the files again."""
    _remembered.clear()
    forget_names()


def _listed(name: str, path: str) -> Listed:
    try:
        made, _ = _load(path)
    except PolicyError as error:
        return Listed(name, "", False, path, UNSIGNED, str(error))
    return Listed(name, made.version, made.governed, path, made.signature)


def _load(path: str) -> tuple[Profile, bool]:
    """Return a profile, and whether it was read just now."""
    known = _remembered.get(path)
    if known is not None and all(stamp(seen.path) == seen for seen in known[0]):
        return known[1], False
    faults = Faults()
    draft = draft_of(path, faults)
    if is_governed(draft) and not draft.compliant:
        mark = draft.tree.entries["governed"].mark
        faults.add(mark, "governed", "cannot be true in a profile that does not follow the KFM rules (X-41)")
    built = build(draft.tree, draft.name, faults)
    faults.check()
    made = _profile(draft, built, path)
    if len(_remembered) >= MOST_REMEMBERED:
        _remembered.clear()
    _remembered[path] = draft.stamps, made
    return made, True


_SAID_ELSEWHERE: Final = ("profile", "version", "governed", "extends")


def _profile(draft: Draft, built: Built, path: str) -> Profile:
    envelope = built.envelope
    return Profile(
        name=draft.name,
        version=envelope["version"],
        governed=envelope.get("governed", False),
        metadata={name: value for name, value in envelope.items() if name not in _SAID_ELSEWHERE},
        policies=built.policies,
        providers=built.providers,
        cooldowns=built.cooldowns,
        descriptions=built.descriptions,
        sections=built.sections,
        spellings=built.spellings,
        extends=draft.lineage,
        source=path,
        digest=draft.digest,
        signature=VERIFIED if is_packaged(path) else UNSIGNED,
        warnings=tuple(_warnings(built, path)),
    )


def _warnings(built: Built, path: str) -> Iterable[str]:
    """Return what must be said of a file, each thing once."""
    found = dict.fromkeys(built.notes)
    if built.envelope.get("governed") and not is_packaged(path):
        found[f"{path}: a governed policy file that nobody has signed"] = None
    for each in (built.policies, *built.providers.values()):
        found |= dict.fromkeys(text for one in each.values() for text in one.warnings())
    return found


def _policies(made: Profile) -> list[Policy]:
    return [one for each in (made.policies, *made.providers.values()) for one in each.values()]
