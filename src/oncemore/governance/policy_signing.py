"""Signatures over policy files: their files, their statement, and the functions that make them.

    mine.yaml               the policy
    mine.yaml.dsse.json     a DSSE envelope with the signatures of all signers over one statement
    mine.yaml.sig           an SSH signature; mine.yaml.NAME.sig for each further signer
    mine.yaml.sigstore.json a Sigstore bundle

All of them cover the exact bytes of the file. The statement (in-toto Statement v1) also names the profile
and its version, and may have an expiry:

    {"_type": "https://in-toto.io/Statement/v1",
     "subject": [{"name": "mine.yaml", "digest": {"sha256": "…"}}],
     "predicateType": "urn:oncemore:policy:v1",
     "predicate": {"profile": "mine", "version": "retry-loop-v1.0", "expires": "2027-12-31"}}
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore._file_trust import MAX_BYTES
from oncemore._replace_file import read_default_mode, replace_file
from oncemore.errors import UsageError
from oncemore.governance.allowed_signers import POLICY_NAMESPACE
from oncemore.governance.dsse import (
    Envelope,
    format_envelope,
    parse_envelope,
    parse_json_object,
    sign_payload,
)
from oncemore.governance.ssh_signatures import sign_file_bytes
from oncemore.policy.canonical_json import encode_canonical

if TYPE_CHECKING:
    from oncemore.governance.keys import SigningKey
    from oncemore.policy.files import Profile

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE, PREDICATE_TYPE = "https://in-toto.io/Statement/v1", "urn:oncemore:policy:v1"
ENVELOPE_SUFFIX, SSH_SUFFIX, BUNDLE_SUFFIX = ".dsse.json", ".sig", ".sigstore.json"
#: SSH signatures beside one file; each holds a single signer.
MAX_SSH_FILES = 16
_PREDICATE_FIELDS = {"profile", "version", "expires"}


class PolicyStatement(NamedTuple):
    """The signed statement about a policy file: its digest, name, version and expiry (empty: none)."""

    digest: str
    profile: str
    version: str
    expires: str = ""


class SignatureFiles(NamedTuple):
    """The signature files beside a policy file, with their bytes; None or empty where there are none."""

    envelope: tuple[Path, bytes] | None
    ssh: tuple[tuple[Path, bytes], ...]
    bundle: tuple[Path, bytes] | None

    def __bool__(self) -> bool:
        return self.envelope is not None or bool(self.ssh) or self.bundle is not None


def read_signature_files(path: Path | str) -> SignatureFiles:
    """Return the signature files beside a policy file."""
    path = Path(path)
    names = sorted(
        (each for each in _list_folder(path.parent) if each.startswith(path.name + ".")),
        # mine.yaml.sig first, as ssh-keygen names it.
        key=lambda name: (len(name), name),
    )
    ssh = [path.with_name(name) for name in names if name.endswith(SSH_SUFFIX)]
    if len(ssh) > MAX_SSH_FILES:
        raise UsageError(f"{path} has more than {MAX_SSH_FILES} files of signatures ({SSH_SUFFIX})")
    envelope, bundle = path.name + ENVELOPE_SUFFIX, path.name + BUNDLE_SUFFIX
    return SignatureFiles(
        _read_bounded(path.with_name(envelope)) if envelope in names else None,
        tuple(_read_bounded(each) for each in ssh),
        _read_bounded(path.with_name(bundle)) if bundle in names else None,
    )


def sign_with_statement(
    profile: Profile, data: bytes, key: SigningKey, expires: str = ""
) -> tuple[Path, PolicyStatement]:
    """Add the signature of a key to the envelope of a policy file; return the envelope's file.

    All signers sign one statement: a second signature takes the expiry of the first. An envelope of an
    earlier state of the file is replaced.
    """
    path = Path(profile.source + ENVELOPE_SUFFIX)
    statement = PolicyStatement(
        sha256(data).hexdigest(), profile.name, profile.version, check_day(expires, "expires")
    )
    earlier = _load_same_envelope(path, statement)
    if earlier is not None:
        found = parse_statement(earlier.payload, str(path))
        if statement not in (found, found._replace(expires="")):
            raise UsageError(
                f"{path} has signatures that expire on {found.expires or 'no day'}; leave --expires out to "
                "sign the same statement, or delete the file and collect all signatures again"
            )
        statement = found
    envelope = earlier or Envelope(PAYLOAD_TYPE, format_statement(statement, Path(profile.source).name), ())
    write_file(path, format_envelope(sign_payload(envelope, key)).encode())
    return path, statement


def sign_with_ssh(source: Path, data: bytes, key: SigningKey, suffix: str = "") -> Path:
    """Write an SSH signature of a key over a policy file; return the signature's file.

    suffix  the name of a further signer: mine.yaml.NAME.sig
    """
    if suffix and not suffix.replace("-", "").replace("_", "").isalnum():
        raise UsageError(f"the name of a signer is {suffix!r:.40}; it takes letters, digits, - and _")
    path = source.with_name(f"{source.name}{'.' + suffix if suffix else ''}{SSH_SUFFIX}")
    write_file(path, sign_file_bytes(data, POLICY_NAMESPACE, key).encode())
    return path


def format_statement(statement: PolicyStatement, file_name: str) -> bytes:
    """Return the payload of a statement: canonical JSON."""
    predicate = {"profile": statement.profile, "version": statement.version}
    if statement.expires:
        predicate["expires"] = statement.expires
    return encode_canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": file_name, "digest": {"sha256": statement.digest}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
    )


def parse_statement(payload: bytes, where: str) -> PolicyStatement:
    """Return the statement in a signed payload; refuse fields that this version does not know.

    An unknown field may be a condition: to ignore it would accept more than was signed.
    """
    fields = parse_json_object(payload, f"{where}: the statement")
    expected = {"_type": STATEMENT_TYPE, "predicateType": PREDICATE_TYPE}
    for name, text in expected.items():
        if fields.get(name) != text:
            raise UsageError(
                f"{where}: {name} of the statement is {fields.get(name)!r:.80}; it must be {text}"
            )
    predicate, subject = fields.get("predicate"), fields.get("subject")
    if (
        not isinstance(predicate, dict)
        or not {"profile", "version"} <= predicate.keys()
        or (
            fields.keys() - {"_type", "subject", "predicateType", "predicate"}
            or predicate.keys() - _PREDICATE_FIELDS
            or not all(isinstance(value, str) for value in predicate.values())
        )
    ):
        raise UsageError(f"{where}: the statement has missing or unknown fields")
    digest = _read_digest(subject)
    if not digest:
        raise UsageError(f"{where}: the statement is not about one file with a SHA-256")
    check_day(predicate.get("expires", ""), f"{where}: expires")
    return PolicyStatement(digest, **predicate)


def check_day(day: str, where: str) -> str:
    """Return a day of the form 2027-12-31, or an empty text; `UsageError` names `where`."""
    from datetime import date

    try:
        return date.fromisoformat(day).isoformat() if day else ""
    except ValueError:
        raise UsageError(f"{where} is {day!r:.40}; it takes a day such as 2027-12-31") from None


def write_file(path: Path, content: bytes) -> None:
    """Replace a file that everybody may read, such as a signature; `UsageError` if it cannot be written."""
    try:
        replace_file(path, content, read_default_mode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _load_same_envelope(path: Path, statement: PolicyStatement) -> Envelope | None:
    """Return the envelope at a path if it is about the present bytes, name and version of the file."""
    if not path.exists():
        return None
    # An envelope that cannot be read has no signature worth keeping.
    try:
        envelope = parse_envelope(_read_bounded(path)[1], str(path), PAYLOAD_TYPE)
        found = parse_statement(envelope.payload, str(path))
    except UsageError:
        return None
    return envelope if found[:3] == statement[:3] else None


def _read_digest(subject: Any) -> str:
    """Return the SHA-256 of the only subject; empty if there are several, or none."""
    if not isinstance(subject, list) or len(subject) != 1 or not isinstance(subject[0], dict):
        return ""
    digest = subject[0].get("digest")
    if subject[0].keys() - {"name", "digest"} or not isinstance(digest, dict) or set(digest) != {"sha256"}:
        return ""
    return digest["sha256"] if isinstance(digest["sha256"], str) else ""


def _list_folder(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names, not paths
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from None


def _read_bounded(path: Path) -> tuple[Path, bytes]:
    """Return a path and its bytes; refuse pipes and devices: a read of them would wait."""
    try:
        if not path.is_file():
            raise UsageError(f"{path} is not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES} bytes")
    return path, content
