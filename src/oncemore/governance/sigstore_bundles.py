"""Verifies a Sigstore bundle over a policy file, offline, with roots of trust from a file.

The setting `policy_sigstore` names a TOML file; paths in it are relative to it:

    trusted_root = "trusted_root.json"
    [[identities]]
    identity = "release@example.org"
    issuer = "https://accounts.example.org"

The trusted root has the format of `application/vnd.dev.sigstore.trustedroot+json`. Nothing is fetched: the
bundle brings the certificate, the proof of inclusion in the transparency log and its signed checkpoint, and
the root of trust brings the keys of both logs and of the certificate authority. Signing needs the network and
an identity provider, and is left to Sigstore's own tools (`sigstore sign --bundle mine.yaml.sigstore.json
mine.yaml`). The package is the extra `sigstore`, imported at first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from oncemore._file_trust import read_file
from oncemore.errors import MissingExtra, UsageError

_IDENTITY_FIELDS = {"identity", "issuer"}


class SigstoreTrust(NamedTuple):
    """The identities that may sign through Sigstore, and the file with the roots of trust."""

    trusted_root: Path
    identities: tuple[tuple[str, str], ...]


def load_sigstore_trust(path: Path | str) -> SigstoreTrust:
    """Return the identities and the root of trust of a file; refuse files that another user controls."""
    import tomllib

    path = Path(path)
    try:
        fields = tomllib.loads(_read_trusted(path).decode())
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    root, identities = fields.get("trusted_root"), fields.get("identities")
    if not isinstance(root, str) or not root or fields.keys() - {"trusted_root", "identities"}:
        raise UsageError(f"{path} takes trusted_root, a path, and [[identities]], and nothing else")
    if not isinstance(identities, list) or not identities:
        raise UsageError(f"{path}: identities is missing; name at least one identity with its issuer")
    for number, fields_of_one in enumerate(identities, 1):
        if (
            not isinstance(fields_of_one, dict)
            or set(fields_of_one) != _IDENTITY_FIELDS
            or not all(isinstance(text, str) and text for text in fields_of_one.values())
        ):
            raise UsageError(f"{path}: identity {number} takes identity and issuer, each a text")
    pairs = tuple((each["identity"], each["issuer"]) for each in identities)
    return SigstoreTrust(path.parent / root, pairs)


def verify_bundle(bundle: bytes, data: bytes, trust: SigstoreTrust, where: str) -> str:
    """Return the identity that signed the data; `UsageError` names the bundle and the reason."""
    try:
        from sigstore.errors import Error, VerificationError
        from sigstore.models import Bundle, TrustedRoot
        from sigstore.verify import Verifier
        from sigstore.verify.policy import AnyOf, Identity
    except ImportError as error:
        raise MissingExtra("a Sigstore bundle needs sigstore: pip install 'oncemore[sigstore]'") from error

    # The package reads the file by its path, so only the permissions can be checked here.
    _read_trusted(trust.trusted_root)
    try:
        verifier = Verifier(trusted_root=TrustedRoot.from_file(str(trust.trusted_root)))
    except (Error, ValueError) as error:
        raise UsageError(f"{trust.trusted_root} is not a usable root of trust: {error}") from None
    try:
        parsed = Bundle.from_json(bundle)
    except (Error, ValueError) as error:
        raise UsageError(f"{where} is not a Sigstore bundle: {str(error)[:300]}") from None
    identities: list[Any] = [Identity(identity=name, issuer=issuer) for name, issuer in trust.identities]
    try:
        verifier.verify_artifact(data, parsed, AnyOf(identities))
    except (VerificationError, Error, ValueError) as error:
        names = ", ".join(name for name, _ in trust.identities)
        raise UsageError(f"{where} is not a valid signature of {names}: {str(error)[:300]}") from None
    return _find_identity(parsed, identities, trust)


def _find_identity(bundle: Any, identities: list[Any], trust: SigstoreTrust) -> str:
    """Return the trusted identity in the certificate of a verified bundle."""
    from sigstore.errors import VerificationError

    for policy, (name, issuer) in zip(identities, trust.identities, strict=True):
        try:
            policy.verify(bundle.signing_certificate)
        except VerificationError:
            continue
        return f"{name} ({issuer})"
    raise AssertionError("the bundle was verified for one of the identities")  # pragma: no cover


def _read_trusted(path: Path) -> bytes:
    try:
        content, fault = read_file(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    if fault:
        raise UsageError(f"{path} is not used, because {fault}")
    return content
