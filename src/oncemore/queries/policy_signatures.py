"""Make and verify signatures of policy files, and read the versions that a store remembers."""

from __future__ import annotations

from pathlib import Path

from oncemore._values import Value
from oncemore.errors import PolicyError, UsageError
from oncemore.queries.policies import check_file_exists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.governance.policy_trust import PolicyTrust
    from oncemore.log.record import AcceptedPolicy
    from oncemore.policy.files import Profile


class NewKey(Value):
    """A key pair that was made: its files, its id, and its line for the file of trusted keys."""

    key_id: str
    private: str
    public: str
    encrypted: bool
    signer_line: str


class NewSignature(Value):
    """A signature that was made; `usable` if the file now has enough signatures, else `missing` says why."""

    file: str
    profile: str
    version: str
    signature: str
    key_id: str
    expires: str = ""
    usable: bool = False
    missing: str = ""


class PolicyVerification(Value):
    """The result of verifying one file; `fault` is the reason if it may not be used.

    accepted  the version that the store remembers; empty without a store, or if it remembers none
    """

    file: str
    good: bool
    name: str = ""
    version: str = ""
    governed: bool = False
    signers: tuple[str, ...] = ()
    expires: str = ""
    notes: tuple[str, ...] = ()
    accepted: str = ""
    fault: str = ""


def make_key(path: str, passphrase: str, principal: str) -> NewKey:
    """Make a key pair in new files."""
    from oncemore.governance.allowed_signers import format_signer_line
    from oncemore.governance.keys import generate_key

    key = generate_key()
    # Before the files: a principal that is refused leaves none behind.
    line = format_signer_line(principal, key.public)
    public = key.save_files(path, passphrase=passphrase, comment=principal)
    return NewKey(key.key_id, path, str(public), bool(passphrase), line)


def sign_policy(path: str, key_file: str, passphrase: str | None, form: str, **options: str) -> NewSignature:
    """Sign a valid policy file; options: `expires` (dsse), `signer` (ssh)."""
    from oncemore.governance.keys import load_signing_key
    from oncemore.governance.policy_signing import sign_with_ssh, sign_with_statement

    profile, data = _read_own_policy(path)
    key = load_signing_key(key_file, passphrase)
    if form == "ssh":
        made, expires = sign_with_ssh(Path(path), data, key, options.get("signer", "")), ""
    else:
        made, statement = sign_with_statement(profile, data, key, options.get("expires", ""))
        expires = statement.expires
    verified = verify_policy(path)
    return NewSignature(
        file=path,
        profile=profile.name,
        version=profile.version,
        signature=str(made),
        key_id=key.key_id,
        expires=expires,
        usable=verified.good and bool(verified.signers),
        missing=verified.fault or ("" if verified.signers else "no trusted keys are configured"),
    )


def _read_own_policy(path: str) -> tuple[Profile, bytes]:
    """Return the profile and the bytes of a file to be signed."""
    from oncemore.policy.files.loader import read_own_files

    check_file_exists(path)
    profile, files = read_own_files(path)
    if not files:
        raise UsageError(f"{path} is packaged and trusted by its release; sign your own files")
    if profile.governed and not files[0].has_name:
        raise UsageError(f"{path} does not state its name; add profile: NAME before you sign it")
    return profile, files[0].data


def verify_policy(
    path: str, signers: str | None = None, threshold: int | None = None, accepted: str | None = None
) -> PolicyVerification:
    """Verify the signatures, the dates and the version of a policy file.

    signers    the file of trusted keys; without it, that of the settings
    threshold  how many different keys are needed; without it, that of the settings
    accepted   the store whose remembered version is compared; None: none
    """
    from oncemore.governance.policy_trust import find_distrust
    from oncemore.policy.files.loader import read_own_files

    check_file_exists(path)
    try:
        profile, files = read_own_files(path)
        trust = _choose_trust(signers, threshold)
    except PolicyError as error:
        return PolicyVerification(file=path, good=False, fault=str(error))
    governed = profile.governed
    # A file that is verified by command must be signed, governed or not.
    evidence, file, reason = find_distrust(
        files, profile.metadata, governed=governed, must_be_signed=True, trust=trust
    )
    found = PolicyVerification(
        file=path,
        good=not reason,
        name=profile.name,
        version=profile.version,
        governed=governed,
        signers=evidence.signers or ((profile.signature,) if not files else ()),
        expires=evidence.expires or str(profile.metadata.get("expires", "")),
        notes=evidence.notes,
        fault=f"{file} {reason}" if reason else "",
    )
    return found if accepted is None or reason else _compare_accepted(found, profile, accepted)


def _choose_trust(signers: str | None, threshold: int | None) -> PolicyTrust:
    from oncemore.governance.allowed_signers import load_allowed_signers
    from oncemore.governance.policy_trust import load_policy_trust

    trust = load_policy_trust()
    if signers is not None:
        trust = trust._replace(source=signers, signers=load_allowed_signers(signers))
    return trust if threshold is None else trust._replace(threshold=threshold)


def _compare_accepted(found: PolicyVerification, profile: Profile, store: str) -> PolicyVerification:
    from oncemore.governance.accepted_policies import check_accepted

    record = next((each for each in list_accepted(store) if each.name == profile.name), None)
    if record is None:
        return found
    found = found._replace(accepted=record.version)
    try:
        check_accepted(record, profile)
    except PolicyError as error:
        return found._replace(good=False, fault=str(error))
    return found


def list_accepted(store: str | None) -> tuple[AcceptedPolicy, ...]:
    """Return the highest accepted version of each governed policy in a store, by name."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import AcceptedPolicy
    from oncemore.log.store import HeadQuery
    from oncemore.queries.stores import open_read_only

    with open_read_only(store) as log:
        heads: Iterable[AcceptedPolicy] = [
            decode_head(head.head, AcceptedPolicy) for head in log.list_heads(HeadQuery(kind="accepted"))
        ]
    return tuple(sorted(heads, key=lambda record: record.name))
