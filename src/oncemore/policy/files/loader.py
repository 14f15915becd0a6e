"""Loads profiles and policies by name or path.

    load("policies/mine.yaml")          a file
    profile("kfm-rules")                a packaged profile, or a file of the policy root by its name
    policy("nova-cat/acquisition@eso")  one policy of a profile, for a provider

Loaded profiles are cached until one of their files changes. Warnings are issued only when a file is
actually read, with the caller's line.

A governed file of the user is loaded only if it is signed by trusted keys and in time
(`governance.policy_trust`). `inspect_file` loads it without that, for commands that only show it. Steps and
`retry` take the policy in force: if a file that they use is replaced by one that is refused, the process
continues with the policy that it has loaded, and logs the refusal (ADR 0051).
"""

from __future__ import annotations

from oncemore import clock as clocks
from oncemore._listeners import publish_event
from oncemore._values import Value
from oncemore.config import HEARTBEATS_PER_LEASE, LEASE_S
from oncemore.errors import PolicyError, log_warning, warn_policy
from oncemore.events import ExecutionRefused
from oncemore.limits.breaker_rules import BreakerRules
from oncemore.policy.files.address import (
    clear_name_cache,
    find_profile_file,
    list_root_files,
    parse_address,
    path_text,
)
from oncemore.policy.files.build import BuiltProfile, build_profile
from oncemore.policy.files.faults import FaultList, FilePosition, policy_file_error
from oncemore.policy.files.file_reader import (
    PACKAGED_FILES,
    FileStamp,
    has_signature_files,
    is_packaged,
    packaged_path,
    stamp_file,
)
from oncemore.policy.files.inheritance_chain import FileDraft, ReadFile, draft_file, is_governed
from oncemore.policy.files.loaded import NOT_VERIFIED, REFUSED, SIGNED, UNSIGNED, VERIFIED, Profile
from oncemore.policy.policy import STANDARD, StepSettings
from oncemore.telemetry.autonomy_rules import AutonomyRules, StepAutonomy, Thresholds

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from typing import Any, Final

    from oncemore.policy.files.loaded import Cooldown
    from oncemore.policy.policy import Policy

MAX_CACHED_PROFILES: Final = 128

#: Loaded profiles by path, and by whether their signatures were demanded.
_profile_cache: dict[tuple[str, bool], tuple[tuple[FileStamp, ...], Profile]] = {}
#: The governed profiles that steps of this process use, by path.
_in_force: dict[str, Profile] = {}
#: Refusals that were logged: a policy is looked up for every decorated function.
_logged_refusals: set[str] = set()


class PolicyListing(Value):
    """One row of a listing; `fault` is the reason if the file cannot be used."""

    name: str
    version: str
    governed: bool
    source: str
    signature: str
    fault: str = ""


def load(path: str | os.PathLike[str]) -> Profile:
    """Return the profile in a policy file; raise `PolicyFileError` with all its faults."""
    loaded, is_new = _load_cached(path_text(path))
    if is_new:
        warn_policy(*loaded.warnings)
    return loaded


def inspect_file(path: str | os.PathLike[str]) -> Profile:
    """Return the profile in a policy file to be looked at, also if it may not be used.

    Its `signature` and its warnings say whether it may; no warnings are issued.
    """
    return _load_cached(path_text(path), verifies=False)[0]


def read_own_files(path: str | os.PathLike[str]) -> tuple[Profile, tuple[ReadFile, ...]]:
    """Return a profile to be looked at, and the files of its chain that are not packaged, as read."""
    loaded, draft = inspect_file(path), draft_file(path_text(path), FaultList())
    # Both must be of one state of the file: the bytes are signed or verified, the profile is reported.
    if draft.digest != loaded.digest:
        raise PolicyError(f"{path} was changed while it was read; try again")
    return loaded, draft.own_files


def profile(name: str) -> Profile:
    """Return a profile by name: a packaged one, or a file of the policy root."""
    return load(find_profile_file(name))


def policy(name: str | os.PathLike[str], provider: str | None = None) -> Policy:
    """Return a policy by its address `profile[/policy][@provider]`; a path stands for a profile."""
    address = parse_address(name)
    return load(address.path).policy(address.policy, address.provider if provider is None else provider)


def load_policy_no_warnings(name: str | os.PathLike[str]) -> Policy:
    """Return a policy like `policy`, for a caller that issues the policy's own warnings itself."""
    address = parse_address(name)
    loaded, is_new = _load_in_force(address.path)
    if is_new:
        # The caller issues the warnings of its own policy; the rest of the file's warnings are issued here.
        policy_warnings = {text for part in _list_policies(loaded) for text in part.warnings()}
        warn_policy(*(text for text in loaded.warnings if text not in policy_warnings))
    return loaded.policy(address.policy, address.provider)


def step_settings(name: str | os.PathLike[str]) -> StepSettings:
    """Return the settings in a policy's profile for the steps that use the policy."""
    # The standard profile is known without reading its file, so a first step costs no YAML import.
    if name == STANDARD.name:
        return StepSettings()
    loaded, _ = _load_in_force(parse_address(name).path)
    sections, defaults = loaded.sections, StepSettings()
    on_non_retryable = sections.get("on_non_retryable", ("halt",))
    escalation = sections.get("escalation", {})
    return StepSettings(
        after_failure=sections.get("after_failure", "raise" if loaded.governed else defaults.after_failure),
        quarantines="quarantine" in on_non_retryable,
        halts_pipeline="halt" in on_non_retryable and sections.get("halt_scope") == "pipeline",
        breaker=load_breaker_rules(name),
        escalation=(
            escalation.get("permanent", defaults.escalation[0]),
            escalation.get("exhausted", defaults.escalation[1]),
        ),
        on_version_change=sections.get("idempotency", {}).get("on_config_change"),
        priority=loaded.metadata.get("priority", defaults.priority),
        repeats_once=sections.get("effects") != "require_idempotent_or_outbox",
        lease=_read_lease(sections.get("lease", {})),
        governed_profile=loaded if loaded.governed else None,
        autonomy=_read_autonomy(loaded),
    )


def _read_autonomy(loaded: Profile) -> StepAutonomy | None:
    """Return the autonomy matrix of a profile; None if the file has neither section."""
    matrix, budget = loaded.sections.get("autonomy"), loaded.sections.get("carbon_budget")
    if matrix is None and budget is None:
        return None
    fields = dict(matrix or {})
    off_hours = fields.pop("off_hours", {})
    rules = {
        "carbon": Thresholds(**fields.pop("carbon_intensity_g_per_kWh", {})),
        "price": Thresholds(**fields.pop("energy_price_usd_per_kWh", {})),
        "off_hours": (int(off_hours["from_hour"]), int(off_hours["to_hour"])) if off_hours else (),
        **fields,
    }
    if budget is not None:
        rules |= {"cap_kg": budget["cap_kgCO2e"]}
        rules |= {name: budget[name] for name in ("period", "slow_at") if name in budget}
    return StepAutonomy(loaded.name, AutonomyRules(**rules))


def _read_lease(fields: Mapping[str, float]) -> tuple[float, float] | None:
    """Return lease time and renewal interval; None if the file leaves both to the engine."""
    if not fields:
        return None
    # A file may give only one of the two; the other follows from the defaults of the engine.
    ttl_s = fields.get("ttl_s", LEASE_S)
    return ttl_s, fields.get("renew_every_s", ttl_s / HEARTBEATS_PER_LEASE)


def load_breaker_rules(name: str | os.PathLike[str]) -> BreakerRules | None:
    """Return the circuit breaker rules of a policy's profile; None if it has none."""
    section = load_section(name, "circuit_breaker")
    if section is None:
        return None
    rules = {field: section[row] for row, field in _BREAKER_FIELDS.items() if row in section}
    return BreakerRules(**rules)


def load_section(name: str | os.PathLike[str], section: str) -> Mapping[str, Any] | None:
    """Return one section of a policy's profile; None if it is missing."""
    if name == STANDARD.name:
        return None
    values: Mapping[str, Any] | None = sections_of(name).get(section)
    return values


def sections_of(name: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return all sections of a policy's profile, without its policies."""
    loaded, _ = _load_in_force(parse_address(name).path)
    return loaded.sections


#: Fields of `circuit_breaker` in a file, and of `BreakerRules`.
_BREAKER_FIELDS: Final = {
    "max_failures": "failures",
    "cooldown_sec": "cooldown_s",
    "count": "counts",
    "failure_rate": "rate",
    "window_sec": "window_s",
    "min_calls": "minimum_calls",
}


def load_cooldowns(name: str | os.PathLike[str]) -> Mapping[str, Cooldown]:
    """Return the cooldowns of a policy's profile: the common one (under ""), and one per provider."""
    if name == STANDARD.name:
        return {}
    loaded, _ = _load_in_force(parse_address(name).path)
    return loaded.cooldowns


def names() -> list[str]:
    """Return the names of all profiles: the packaged ones, and those of the policy root."""
    return sorted({*PACKAGED_FILES, *list_root_files()})


def listing() -> list[PolicyListing]:
    """Return all profiles by name; an unusable file is listed with the reason."""
    packaged = [(name, packaged_path(name)) for name in PACKAGED_FILES]
    in_root = [(name, path) for name, paths in list_root_files().items() for path in paths]
    return sorted(_make_listing(name, path) for name, path in packaged + in_root)


def forget() -> None:
    """Clear the cache of loaded profiles; the next use reads the files again."""
    _profile_cache.clear()
    _in_force.clear()
    _logged_refusals.clear()
    clear_name_cache()


def _make_listing(name: str, path: str) -> PolicyListing:
    try:
        loaded, _ = _load_cached(path, verifies=False)
    except PolicyError as error:
        return PolicyListing(name, "", False, path, UNSIGNED, str(error))
    return PolicyListing(name, loaded.version, loaded.governed, path, loaded.signature)


def _load_in_force(path: str) -> tuple[Profile, bool]:
    """Return the profile that steps use, and whether it was read by this call.

    A governed file that was replaced by one that is refused does not stop a running process, and does not
    change what it does: the loaded profile stays in force.
    """
    try:
        loaded, is_new = _load_cached(path)
    except PolicyError as error:
        loaded_before = _in_force.get(path)
        if loaded_before is None:
            raise
        text = f"{error}; {loaded_before.name} {loaded_before.version} stays in force in this process"
        if text not in _logged_refusals:
            _logged_refusals.add(text)
            log_warning(text)
        return loaded_before, False
    if loaded.governed and not is_packaged(path):
        _in_force[path] = loaded
    return loaded, is_new


def _load_cached(path: str, *, verifies: bool = True) -> tuple[Profile, bool]:
    """Return a profile, and whether it was read by this call.

    verifies  whether a governed file of the user is refused unless trusted keys have signed it
    """
    # All files of the chain are compared, not only the first: a changed parent changes the profile.
    cached = _profile_cache.get((path, verifies))
    if cached is not None and all(stamp_file(stamp.path) == stamp for stamp in cached[0]):
        return cached[1], False
    # Faults are collected over all stages, so that a user sees all of them at once.
    faults = FaultList()
    draft = draft_file(path, faults)
    if is_governed(draft) and not draft.is_compliant:
        mark = draft.tree.entries["governed"].mark
        faults.add_fault(
            mark, "governed", "cannot be true in a profile that does not follow the KFM rules (X-41)"
        )
    built = build_profile(draft.tree, draft.name, faults)
    _check_care_notes(draft, built, faults)
    faults.raise_if_any()
    signature, refusal = _check_signatures(draft, built)
    if refusal is not None and verifies:
        publish_event(ExecutionRefused("policy_unverifiable", path, str(refusal)))
        raise refusal
    loaded = _make_profile(draft, built, path, signature, refusal)
    if len(_profile_cache) >= MAX_CACHED_PROFILES:
        _profile_cache.clear()
    _profile_cache[path, verifies] = draft.stamps, loaded
    return loaded, True


def _check_care_notes(draft: FileDraft, built: BuiltProfile, faults: FaultList) -> None:
    """Add a fault for a governed file for sensitive pipelines that has no notes about them (GOV-12)."""
    envelope = built.envelope
    is_sensitive = envelope.get("classification") == "Sensitive" or envelope.get("indigenous_rights_flag")
    if envelope.get("governed") and is_sensitive and "care_notes" not in envelope:
        text = "is missing; a governed policy for sensitive pipelines says how it treats their data"
        faults.add_fault(draft.tree.mark, "care_notes", text)


def _check_signatures(draft: FileDraft, built: BuiltProfile) -> tuple[str, PolicyError | None]:
    """Return the state of a file's signature, and the error if the file may not be used."""
    if not draft.own_files:
        return VERIFIED, None
    governed = built.envelope.get("governed", False)
    is_signed = any(has_signature_files(file.path) for file in draft.own_files)
    # Most files are neither; they cost no import of what verifies.
    if not governed and not is_signed:
        return UNSIGNED, None
    from oncemore.governance.policy_trust import find_distrust

    evidence, file, reason = find_distrust(draft.own_files, built.envelope, governed=governed)
    if reason:
        return f"{REFUSED}{reason}" if is_signed else UNSIGNED, policy_file_error(FilePosition(file), reason)
    return (SIGNED + ", ".join(evidence.signers) if evidence.signers else NOT_VERIFIED), None


#: Fields of the envelope that have an attribute of their own in `Profile`.
_NOT_METADATA: Final = ("profile", "version", "governed", "extends")


def _make_profile(
    draft: FileDraft, built: BuiltProfile, path: str, signature: str, refusal: PolicyError | None
) -> Profile:
    envelope = built.envelope
    return Profile(
        name=draft.name,
        version=envelope["version"],
        governed=envelope.get("governed", False),
        metadata={name: value for name, value in envelope.items() if name not in _NOT_METADATA},
        policies=built.policies,
        providers=built.providers,
        cooldowns=built.cooldowns,
        descriptions=built.descriptions,
        sections=built.sections,
        spellings=built.spellings,
        extends=draft.lineage,
        source=path,
        digest=draft.digest,
        signature=signature,
        warnings=tuple(_collect_warnings(built, path, refusal)),
    )


#: Fields with a date that may have passed.
_DATES: Final = ("reviewed", "review_by", "released", "expires")


def _collect_warnings(built: BuiltProfile, path: str, refusal: PolicyError | None) -> Iterable[str]:
    """Return the warnings about a file, each one once."""
    warnings = dict.fromkeys(built.notes)
    if refusal is not None:
        warnings[str(refusal)] = None
    if not built.envelope.keys().isdisjoint(_DATES):
        from oncemore.governance.policy_content import describe_dates

        notes = describe_dates(built.envelope, clocks.current.wall())
        warnings |= dict.fromkeys(f"{path}: {note}" for note in notes)
    for policies in (built.policies, *built.providers.values()):
        warnings |= dict.fromkeys(
            text for each_policy in policies.values() for text in each_policy.warnings()
        )
    return warnings


def _list_policies(loaded: Profile) -> list[Policy]:
    return [
        each_policy
        for policies in (loaded.policies, *loaded.providers.values())
        for each_policy in policies.values()
    ]
