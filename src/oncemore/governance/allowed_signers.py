"""The trusted keys: a file in the `allowed_signers` format of OpenSSH.

    # principal        options                                              public key
    release-manager    namespaces="oncemore-policy"                         ssh-ed25519 AAAA…
    data-steward       namespaces="oncemore-policy",valid-before="20271231" ssh-ed25519 AAAA…

`ssh-keygen -Y verify` reads the same file. Each line is one trusted key: its principal is the name in
messages and in the log. A line for other namespaces is passed over. Patterns, certificates and other types of
keys have a line number in the error: a line that is not understood must not be skipped, because it may be
the one that limits a key.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from oncemore._file_trust import read_file
from oncemore.errors import UsageError
from oncemore.governance.keys import parse_verify_key

if TYPE_CHECKING:
    from oncemore.governance.keys import VerifyKey

#: The namespace of signatures over policy files.
POLICY_NAMESPACE = "oncemore-policy"
MAX_SIGNERS = 100
#: principal, options (optional), type and base64 of the key; the rest is a comment.
_LINE = re.compile(
    r"(?P<principal>[A-Za-z0-9][A-Za-z0-9._@+-]*)[ \t]+"
    r"(?:(?P<options>[a-z-]+(?:=\"[^\"]*\")?(?:,[a-z-]+(?:=\"[^\"]*\")?)*)[ \t]+)?"
    r"(?P<key>[a-z][a-z0-9@.-]*-[a-z0-9@.-]+[ \t]+[A-Za-z0-9+/]+={0,2})(?:[ \t].*)?"
)
_OPTION = re.compile(r"([a-z-]+)(?:=\"([^\"]*)\")?")
_TIME = re.compile(r"(\d{4})(\d{2})(\d{2})(?:(\d{2})(\d{2})(\d{2})?)?(Z?)")


class TrustedSigner(NamedTuple):
    """A trusted key with its principal and the limits of its validity, in POSIX seconds."""

    principal: str
    key: VerifyKey
    valid_after: float = 0.0
    valid_before: float = float("inf")

    def __str__(self) -> str:
        return f"{self.principal} ({self.key.key_id})"

    def is_valid_at(self, now: float) -> bool:
        """Return whether the key is valid at a time."""
        return self.valid_after <= now < self.valid_before


def load_allowed_signers(path: Path | str, namespace: str = POLICY_NAMESPACE) -> tuple[TrustedSigner, ...]:
    """Return the trusted keys in a file; refuse a file that another user controls (ADR 0038)."""
    path = Path(path)
    try:
        content, fault = read_file(path)
    except OSError as error:
        raise UsageError(f"the trusted keys {path} cannot be read: {error.strerror or error}") from None
    if fault:
        raise UsageError(
            f"the trusted keys {path} are not used, because {fault}; give the file and the folders above it "
            "to yourself or to root, and take away the permission of other users to write to them"
        )
    return parse_allowed_signers(content, str(path), namespace)


def parse_allowed_signers(content: bytes, where: str, namespace: str) -> tuple[TrustedSigner, ...]:
    """Return the trusted keys for a namespace in the text of an `allowed_signers` file."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{where} is not text") from None
    signers: dict[VerifyKey, TrustedSigner] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            signer = _parse_line(text, f"{where}:{number}", namespace)
            # A second line for the same key would make it ambiguous until when the key is valid.
            if signer is not None and signer.key in signers:
                raise UsageError(f"{where}:{number}: the key {signer.key.key_id} is listed twice")
            if signer is not None:
                signers[signer.key] = signer
    if len(signers) > MAX_SIGNERS:
        raise UsageError(f"{where} has more than {MAX_SIGNERS} keys")
    return tuple(signers.values())


def format_signer_line(principal: str, key: VerifyKey, namespace: str = POLICY_NAMESPACE) -> str:
    """Return the line that trusts a key for a namespace."""
    line = f'{principal} namespaces="{namespace}" {key.format_openssh()}'
    if _LINE.fullmatch(line) is None:
        raise UsageError(
            f"principal is {principal!r:.80}; it takes letters, digits and . _ @ + - without spaces"
        )
    return line


def _parse_line(text: str, where: str, namespace: str) -> TrustedSigner | None:
    """Return the key of a line; None if the line is for other namespaces."""
    match = _LINE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{where}: is not understood; a line is: PRINCIPAL "
            f'namespaces="{POLICY_NAMESPACE}" ssh-ed25519 AAAA… (without patterns and lists of principals)'
        )
    # An unknown option may restrict the key, so that ignoring it would trust the key too far.
    options: dict[str, str] = {}
    for name, value in _OPTION.findall(match["options"] or ""):
        if name not in ("namespaces", "valid-after", "valid-before") or name in options:
            raise UsageError(
                f"{where}: the option {name} is repeated or not supported; supported are namespaces, "
                "valid-after and valid-before"
            )
        options[name] = value
    names = options.get("namespaces", "").split(",")
    if any(character in name for name in names for character in "*?!"):
        raise UsageError(f"{where}: namespaces has a pattern; write the names of the namespaces")
    # Without the option OpenSSH accepts every namespace; a key for mail is not meant for policies.
    if namespace not in names:
        return None
    return TrustedSigner(
        match["principal"],
        parse_verify_key(match["key"], where),
        _parse_time(options["valid-after"], where) if "valid-after" in options else 0.0,
        _parse_time(options["valid-before"], where) if "valid-before" in options else float("inf"),
    )


def _parse_time(text: str, where: str) -> float:
    """Return a time YYYYMMDD[HHMM[SS]][Z] in POSIX seconds; without Z it is local time, as in OpenSSH."""
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
        time = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise UsageError(
            f"{where}: {text!r:.40} is not a time of the form YYYYMMDD or YYYYMMDDHHMMZ"
        ) from None
    # `astimezone` takes a naive time as local time, also across a change of the clocks.
    return (time if match[7] else time.replace(tzinfo=None).astimezone()).timestamp()
