"""The memory of a store: the highest version of each governed policy that was ever used with it.

Before the first attempt under a governed profile, the engine compares the profile with the entity
`accepted/NAME` of the store:

    no entity, or a higher version    accepted: one entry with old and new version, digests, signers, reason
    the same version and content      accepted, nothing is written
    the same version, other content   refused: a changed number needs a new version (POL-7)
    a lower version                   refused: a file that was replaced by an older one (GUA-9)

The entity stays when the newer file expires, is deleted, or the package is installed again, so that none of
these brings an older policy back. Two processes with different versions are decided by the compare-and-set
of the store. A process that was accepted continues with its policy until it ends (ADR 0051).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from oncemore.errors import PolicyError, StaleDecision
from oncemore.governance.policy_content import (
    find_content_changes,
    list_content,
    parse_version,
)
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import AcceptedPolicy, RecordChange
from oncemore.log.store import Batch, Stored
from oncemore.policy.files.loaded import SIGNED, VERIFIED

if TYPE_CHECKING:
    from oncemore.policy.files import Profile
    from oncemore.steps.engine import Engine

PREFIX = "accepted/"
#: Tries of the compare-and-set; each conflict means that another process accepted a version.
MAX_TRIES = 20
#: Changed fields that a message names.
_MAX_SHOWN = 5


def accept_policy(engine: Engine, profile: Profile) -> None:
    """Record that a store uses a governed profile; raise `PolicyError` if it may not use it."""
    entity = PREFIX + profile.name
    for _ in range(MAX_TRIES):
        with InterruptShield():
            head = load_head(engine.store, entity, engine.cipher, AcceptedPolicy)
            before: AcceptedPolicy | None = head.record
            check_accepted(before, profile)
            # The same version with the same content: nothing new to remember.
            if before is not None and before.version == profile.version:
                return
            now = engine.now()
            after = _make_record(profile, now)
            change = RecordChange(("POLICY", "DECISION"), before, after, _describe_change(before, profile))
            write = build_write(entity, head.version, head.hash, change, now, engine.cipher)
            # As with recorded policies, the claim that follows is written after it and synced with it.
            if isinstance(engine.store.append(Batch((write,), {}, False)).wait(), Stored):
                return
    raise StaleDecision(f"{entity} changed {MAX_TRIES} times during the write; call again")


def check_accepted(accepted: AcceptedPolicy | None, profile: Profile) -> None:
    """Raise `PolicyError` if a store has accepted a higher version, or the same with other content."""
    if accepted is None:
        return
    old, new = parse_version(accepted.version), parse_version(profile.version)
    # Governed files have versions with numbers; the loader refuses every other file.
    assert old is not None
    assert new is not None
    since = datetime.fromtimestamp(accepted.accepted_at, UTC).date().isoformat()
    known = f"this store accepted {accepted.name} {accepted.version} on {since}{_show_signers(accepted)}"
    if new < old:
        raise PolicyError(
            f"{profile.source} is {profile.name} {profile.version}, and {known}; an older version is not "
            "used again. To go back, give the earlier content a higher version and sign it"
        )
    # Packaged profiles are trusted by their release; a new field of the package is not a change of theirs.
    if new > old or profile.signature == VERIFIED:
        return
    changes = find_content_changes(accepted.content, list_content(profile))
    # The same bytes can differ only in fields that a newer package adds.
    if accepted.digest == profile.digest:
        changes = tuple(change for change in changes if change.field in accepted.content)
    if changes:
        shown = "; ".join(map(str, changes[:_MAX_SHOWN]))
        raise PolicyError(
            f"{profile.source} differs from the {profile.name} {profile.version} that is in force: {known}. "
            f"A change needs a new version: {shown}"
        )


def _make_record(profile: Profile, now: float) -> AcceptedPolicy:
    return AcceptedPolicy(
        name=profile.name,
        version=profile.version,
        digest=profile.digest,
        accepted_at=now,
        signature=profile.signature,
        content=list_content(profile),
        source=profile.source,
    )


def _describe_change(before: AcceptedPolicy | None, profile: Profile) -> dict[str, Any]:
    """Return the body of the entry: versions, digests, signers, reviewer and reason (VER-4)."""
    from oncemore.maintenance.tasks import resolve_actor

    decision = {
        "action": "accept",
        "policy": profile.name,
        "old_version": "" if before is None else before.version,
        "new_version": profile.version,
        "old_digest": "" if before is None else before.digest,
        "new_digest": profile.digest,
        "signature": profile.signature,
        "actor": resolve_actor(None),
        "reviewer": profile.metadata.get("reviewer", ""),
        "reason": profile.metadata.get("change_reason", ""),
    }
    return {"decision": decision}


def _show_signers(accepted: AcceptedPolicy) -> str:
    return f" ({accepted.signature})" if accepted.signature.startswith(SIGNED) else ""
