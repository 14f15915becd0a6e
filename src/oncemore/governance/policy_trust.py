"""Decides whether a policy file may be used: enough trusted keys signed its exact bytes, and it is in time.

A governed file is used only if

    at least `policy_threshold` different keys of `policy_signers` signed its bytes and those of every file
    that it extends (packaged profiles are trusted by the digest of their release),
    each counted key is valid today, and neither the file nor the signed statement has expired.

An invalid signature in the name of a trusted key refuses a file even if other signatures would suffice: the
file was changed after it was signed, or the signature was forged. Signatures of unknown keys are passed over.
A file that is not governed may be unsigned; if it is signed and trusted keys are configured, its signatures
must be valid. `accepted_policies` adds the memory of versions in a store.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from oncemore import clock as clocks
from oncemore.config import load_settings
from oncemore.errors import UsageError
from oncemore.governance.allowed_signers import (
    POLICY_NAMESPACE,
    TrustedSigner,
    load_allowed_signers,
)
from oncemore.governance.dsse import find_signers, parse_envelope
from oncemore.governance.policy_content import find_expiry
from oncemore.governance.policy_signing import PAYLOAD_TYPE, parse_statement, read_signature_files
from oncemore.governance.ssh_signatures import parse_ssh_signature
from oncemore.policy.files.file_reader import has_signature_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncemore.governance.policy_signing import SignatureFiles
    from oncemore.governance.sigstore_bundles import SigstoreTrust
    from oncemore.policy.files.inheritance_chain import ReadFile

MAX_THRESHOLD = 16


class PolicyTrust(NamedTuple):
    """The keys and identities that may sign policies.

    source     the file of the trusted keys, for messages; empty if none is configured
    threshold  how many different signers a file needs
    sigstore   the identities that may sign through Sigstore; None if none are configured
    """

    source: str = ""
    signers: tuple[TrustedSigner, ...] = ()
    threshold: int = 1
    sigstore: SigstoreTrust | None = None

    @property
    def is_configured(self) -> bool:
        """Whether any signature can be verified."""
        return bool(self.source) or self.sigstore is not None


class PolicyEvidence(NamedTuple):
    """The result of a verification: the signers, and the expiry of their signatures.

    signers  the different signers that count, as `principal (key id)`
    notes    signatures that do not count, with the reason
    """

    signers: tuple[str, ...] = ()
    expires: str = ""
    notes: tuple[str, ...] = ()


def load_policy_trust() -> PolicyTrust:
    """Return the trusted keys of the settings; `UsageError` for a file that cannot be trusted."""
    settings = load_settings(given=("store", "artifacts", "codec", "control"))
    sigstore = None
    if settings.policy_sigstore:
        from oncemore.governance.sigstore_bundles import load_sigstore_trust

        sigstore = load_sigstore_trust(settings.policy_sigstore)
    signers = load_allowed_signers(settings.policy_signers) if settings.policy_signers else ()
    return PolicyTrust(settings.policy_signers, signers, int(settings.policy_threshold), sigstore)


def verify_signatures(source: ReadFile, trust: PolicyTrust, now: float) -> PolicyEvidence:
    """Return the signers of a policy file; raise `UsageError` unless enough trusted keys did.

    The message names the file and the keys.
    """
    files = read_signature_files(source.path)
    # First the common case, with a message that says how to sign.
    if not files:
        raise UsageError(f"is not signed; {_describe_need(trust)} (oncemore policy sign {source.path})")
    if not trust.is_configured:
        raise UsageError(
            "is signed, and no trusted keys are configured; name a file with them in the setting "
            "policy_signers (ONCEMORE_POLICY_SIGNERS)"
        )
    count = _SignerCount(now)
    expires = _verify_envelope(files, source, trust, count)
    _verify_ssh(files, source, trust, count)
    _verify_bundle(files, source, trust, count)
    if len(count.valid) < trust.threshold:
        signed = (
            f"signed by {', '.join(count.valid.values())}" if count.valid else "not signed by a trusted key"
        )
        notes = f" ({'; '.join(count.notes)})" if count.notes else ""
        raise UsageError(f"is {signed}{notes}; {_describe_need(trust)}")
    return PolicyEvidence(tuple(count.valid.values()), expires, tuple(count.notes))


def find_distrust(
    sources: Sequence[ReadFile],
    metadata: Mapping[str, object],
    *,
    governed: bool,
    must_be_signed: bool = False,
    trust: PolicyTrust | None = None,
) -> tuple[PolicyEvidence, str, str]:
    """Return the evidence for a policy file, and the file and the reason if it may not be used.

    sources   the file, and the files that it extends, without packaged profiles
    metadata  the fields of the file about itself
    trust     the trusted keys; without it, those of the settings
    """
    try:
        trust = load_policy_trust() if trust is None else trust
    except UsageError as error:
        # The settings are at fault, and the file cannot be trusted before they are repaired.
        return PolicyEvidence(), sources[0].path, f"cannot be verified: {error}"
    now = clocks.current.wall()
    evidence = PolicyEvidence()
    for number, source in enumerate(sources):
        # Without trusted keys, or without signatures, a file that is not governed stays as it was.
        if not (governed or must_be_signed) and not (
            trust.is_configured and has_signature_files(source.path)
        ):
            continue
        try:
            found = verify_signatures(source, trust, now)
        except UsageError as error:
            return evidence, source.path, str(error)
        evidence = found if number == 0 else evidence
    if governed and sources and not sources[0].has_name:
        # The name of a file is not signed: a renamed copy would count as another policy.
        return evidence, sources[0].path, "does not state its name; a governed file needs profile: NAME"
    if governed and now >= find_expiry(metadata):
        signed = f"; it was signed by {', '.join(evidence.signers)}" if evidence.signers else ""
        return evidence, sources[0].path if sources else "", f"expired on {metadata['expires']}{signed}"
    return evidence, "", ""


class _SignerCount:
    """Counts different signers; each key counts once, however often and wherever it signed."""

    def __init__(self, now: float) -> None:
        self.valid: dict[object, str] = {}
        self.notes: list[str] = []
        self.now = now

    def add_signer(self, signer: TrustedSigner, where: str) -> None:
        """Count the signer of a valid signature, if its key is valid today."""
        if signer.is_valid_at(self.now):
            self.valid[signer.key] = str(signer)
        else:
            self.notes.append(f"the key of {signer} in {where} is expired or not valid yet")


def _verify_envelope(files: SignatureFiles, source: ReadFile, trust: PolicyTrust, count: _SignerCount) -> str:
    """Count the signers of the envelope; return the expiry in its statement."""
    if files.envelope is None:
        return ""
    path, text = files.envelope
    envelope = parse_envelope(text, str(path), PAYLOAD_TYPE)
    by_key = {signer.key: signer for signer in trust.signers}
    signers = [by_key[key] for key in find_signers(envelope, by_key, str(path))]
    if not signers:
        ids = ", ".join(key_id or "a key without an id" for key_id, _ in envelope.signatures)
        count.notes.append(f"{path.name} is signed by {ids[:300]}, unknown here")
        return ""
    names = ", ".join(map(str, signers))
    statement = parse_statement(envelope.payload, str(path))
    if statement.digest != sha256(source.data).hexdigest():
        raise UsageError(f"was changed after {names} signed it ({path.name})")
    # A valid signature of another policy must not vouch for this one.
    if (statement.profile, statement.version) != (source.name, source.version):
        raise UsageError(
            f"is {source.name} {source.version}, and {names} signed it as {statement.profile} "
            f"{statement.version} ({path.name})"
        )
    if statement.expires and count.now >= find_expiry({"expires": statement.expires}):
        raise UsageError(
            f"has a signature that expired on {statement.expires}, made by {names} ({path.name})"
        )
    for signer in signers:
        count.add_signer(signer, path.name)
    return statement.expires


def _verify_ssh(files: SignatureFiles, source: ReadFile, trust: PolicyTrust, count: _SignerCount) -> None:
    """Count the signers of the SSH signatures."""
    by_key = {signer.key: signer for signer in trust.signers}
    for path, text in files.ssh:
        signature = parse_ssh_signature(text, str(path))
        # The key in the signature is a claim of the signature itself; only a listed key counts.
        signer = by_key.get(signature.key)
        if signer is None:
            count.notes.append(f"{path.name} is signed by {signature.key.key_id}, unknown here")
        elif signature.namespace != POLICY_NAMESPACE:
            raise UsageError(
                f"has a signature of {signer} for {signature.namespace!r:.40}, and not for "
                f"{POLICY_NAMESPACE} ({path.name})"
            )
        elif not signature.is_valid(source.data, POLICY_NAMESPACE):
            raise UsageError(f"was changed after {signer} signed it, or the signature was ({path.name})")
        else:
            count.add_signer(signer, path.name)


def _verify_bundle(files: SignatureFiles, source: ReadFile, trust: PolicyTrust, count: _SignerCount) -> None:
    """Count the identity of the Sigstore bundle."""
    if files.bundle is None:
        return
    path, text = files.bundle
    if trust.sigstore is None:
        count.notes.append(f"{path.name} is not verified: the setting policy_sigstore is empty")
        return
    from oncemore.governance.sigstore_bundles import verify_bundle

    # An identity counts as one signer, like a key.
    identity = verify_bundle(text, source.data, trust.sigstore, str(path))
    count.valid[identity] = identity


def _describe_need(trust: PolicyTrust) -> str:
    if not trust.is_configured:
        return (
            "a governed file needs the signature of a trusted key; name the file of trusted keys in the "
            "setting policy_signers (ONCEMORE_POLICY_SIGNERS)"
        )
    names = ", ".join(map(str, trust.signers)) or "no key"
    keys = "trusted key" if trust.threshold == 1 else "different trusted keys"
    where = Path(trust.source).name if trust.source else "the settings"
    return f"needed: {trust.threshold} {keys} of {where}: {names}"
