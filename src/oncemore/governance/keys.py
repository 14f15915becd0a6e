"""Ed25519 keys: make, load, store, sign and verify.

A private key is a file in the format of OpenSSH, so that `ssh-keygen` can use it as well:

    signer       OPENSSH PRIVATE KEY in PEM armour   mode 0600, with or without a passphrase
    signer.pub   ssh-ed25519 AAAA… comment           one line, for trust files and `allowed_signers`

Both are also read as PEM (PKCS #8 and SubjectPublicKeyInfo), the format of OpenSSL. A key is named by its
key id, the fingerprint that `ssh-keygen -l -f signer.pub` prints: `SHA256:` and 43 characters.

A private key that another user could read or replace is refused. Its passphrase comes from the caller or
from ONCEMORE_KEY_PASSPHRASE and is in no message. `cryptography` does all computing; it is the extra `sign`,
imported at first use.
"""

from __future__ import annotations

import os
import stat
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore._file_trust import MAX_BYTES, read_file
from oncemore.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: The environment variable with the passphrase of private keys.
PASSPHRASE_VARIABLE = "ONCEMORE_KEY_PASSPHRASE"  # noqa: S105 - a name, not a passphrase
KEY_TYPE = "ssh-ed25519"
KEY_BYTES, SIGNATURE_BYTES = 32, 64
#: A comment is one line of text in the public file and in an `allowed_signers` file.
MAX_COMMENT = 200
_PRIVATE_MODE, _PUBLIC_MODE = 0o600, 0o644
#: The first bytes of the DER form of an Ed25519 public key (RFC 8410); the 32 bytes of the key follow.
_DER_PREFIX = bytes.fromhex("302a300506032b6570032100")
_PEM_FIRST, _PEM_LAST = "-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"


class VerifyKey(NamedTuple):
    """A public key; two are equal if they are the same key, in any format."""

    raw: bytes

    @property
    def key_id(self) -> str:
        """The fingerprint of the key, as `ssh-keygen -l` prints it: `SHA256:…`."""
        digest = sha256(self.wire_bytes).digest()
        return "SHA256:" + b64encode(digest).decode().rstrip("=")

    @property
    def wire_bytes(self) -> bytes:
        """The key in the binary format of SSH: its type and its 32 bytes, each after its length."""
        name = KEY_TYPE.encode()
        return len(name).to_bytes(4, "big") + name + len(self.raw).to_bytes(4, "big") + self.raw

    def is_valid(self, signature: bytes, data: bytes) -> bool:
        """Return whether the signature over the data was made with the private key of this key."""
        require_cryptography()
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, data)
        except InvalidSignature:
            return False
        return True

    def format_openssh(self, comment: str = "") -> str:
        """Return the key as one line of OpenSSH, without a line end."""
        line = f"{KEY_TYPE} {b64encode(self.wire_bytes).decode()}"
        return f"{line} {check_comment(comment)}" if comment else line

    def format_pem(self) -> str:
        """Return the key as PEM (SubjectPublicKeyInfo)."""
        return f"{_PEM_FIRST}\n{b64encode(_DER_PREFIX + self.raw).decode()}\n{_PEM_LAST}\n"


class SigningKey:
    """A private key; it signs bytes, and never shows itself."""

    __slots__ = ("_private", "public")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = VerifyKey(private.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"<SigningKey {self.public.key_id}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a private key cannot be pickled; load it from its file where it is needed")

    @property
    def key_id(self) -> str:
        """The key id of the public key."""
        return self.public.key_id

    def sign_bytes(self, data: bytes) -> bytes:
        """Return the signature over the data: 64 bytes, the same for the same data."""
        return self._private.sign(data)

    def save_files(self, path: Path | str, *, passphrase: str = "", comment: str = "") -> Path:
        """Write the private key to `path` and the public key to `path.pub`; return the public file.

        Neither file may exist: a replaced key could not sign its files again. Only the owner can
        read the private one, from the moment it is created.
        """
        from cryptography.hazmat.primitives import serialization

        path = Path(path)
        cipher = (
            serialization.BestAvailableEncryption(passphrase.encode())
            if passphrase
            else serialization.NoEncryption()
        )
        # The line is made first: a comment that is refused leaves no file behind.
        line = self.public.format_openssh(comment) + "\n"
        content = self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, cipher
        )
        public = public_file_of(path)
        if public.exists():
            raise UsageError(f"{public} exists; choose another name for the new key")
        _create_file(path, content, _PRIVATE_MODE)
        _create_file(public, line.encode(), _PUBLIC_MODE)
        return public


def require_cryptography() -> None:
    """Raise `MissingExtra` unless `cryptography` is installed."""
    try:
        import cryptography  # noqa: F401 - only its presence matters
    except ImportError as error:
        raise MissingExtra("keys and signatures need cryptography: pip install 'oncemore[sign]'") from error


def generate_key() -> SigningKey:
    """Return a new private key, drawn from the operating system's random numbers."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return SigningKey(Ed25519PrivateKey.generate())


def public_file_of(path: Path) -> Path:
    """Return the file of the public key that belongs to a private key file."""
    return path.with_name(path.name + ".pub")


def load_signing_key(path: Path | str, passphrase: str | None = None) -> SigningKey:
    """Return the private key in a file (OpenSSH or PEM).

    passphrase  of an encrypted key; without it, ONCEMORE_KEY_PASSPHRASE is used

    `UsageError` names the file: it is missing, readable by other users, encrypted with another passphrase, or
    not an Ed25519 key.
    """
    require_cryptography()
    path = Path(path)
    content = _read_private_file(path)
    if passphrase is None:
        passphrase = os.environ.get(PASSPHRASE_VARIABLE, "")
    return SigningKey(_parse_private_key(path, content, passphrase))


def is_passphrase_needed(path: Path | str) -> bool:
    """Return whether the private key in a file is encrypted."""
    require_cryptography()
    return _is_encrypted(_read_private_file(Path(path)))


def load_verify_key(path: Path | str) -> VerifyKey:
    """Return the public key in a file: one line of OpenSSH, or PEM; `UsageError` names the file."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content[:MAX_BYTES].decode()
    except OSError as error:
        raise UsageError(f"the public key {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a public key: it is not text") from None
    return parse_verify_key(text, str(path))


def parse_verify_key(text: str, where: str) -> VerifyKey:
    """Return the public key in a text: one line of OpenSSH, or PEM.

    where  the file or setting of the text, for the message of `UsageError`
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    if "PRIVATE KEY" in text:
        raise UsageError(f"{where} holds a private key; name its public key (the file that ends in .pub)")
    if lines and lines[0] == _PEM_FIRST and lines[-1] == _PEM_LAST:
        data = _decode_base64("".join(lines[1:-1]), where)
        if len(data) != len(_DER_PREFIX) + KEY_BYTES or not data.startswith(_DER_PREFIX):
            raise UsageError(f"{where} is not an Ed25519 public key; make one with oncemore policy keygen")
        return VerifyKey(data[len(_DER_PREFIX) :])
    if len(lines) != 1 or len(words := lines[0].split(None, 2)) < 2:
        raise UsageError(f"{where} is not a public key: it takes a line 'ssh-ed25519 AAAA…' or PEM")
    if words[0] != KEY_TYPE:
        raise UsageError(f"{where} is a key of the type {words[0][:40]!r}; only ssh-ed25519 is supported")
    return parse_wire_key(_decode_base64(words[1], where), where)


def parse_wire_key(data: bytes, where: str) -> VerifyKey:
    """Return the public key in the binary format of SSH; `UsageError` names `where`."""
    # The format has one encoding per key, so comparing with our own encoding checks all of it.
    key = VerifyKey(data[-KEY_BYTES:])
    if len(data) < KEY_BYTES or key.wire_bytes != data:
        raise UsageError(f"{where} is not an Ed25519 public key in the format of OpenSSH")
    return key


def check_comment(comment: str) -> str:
    """Return a comment of a key; `UsageError` unless it is one short line without control characters."""
    if len(comment) > MAX_COMMENT or not comment.isprintable():
        raise UsageError(f"the comment of a key is one line of at most {MAX_COMMENT} characters")
    return comment


def _decode_base64(text: str, where: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise UsageError(f"{where} is not a public key: its base64 is damaged") from None


def _read_private_file(path: Path) -> bytes:
    """Return the content of a private key file; refuse one that other users can read, write or replace."""
    try:
        content, fault = read_file(path)
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise UsageError(f"the private key {path} cannot be read: {error.strerror or error}") from None
    # Windows has no such permissions: every file there has 0o666.
    if hasattr(os, "geteuid") and mode & 0o077:
        raise UsageError(
            f"the private key {path} has the mode {mode:04o}, so that other users can read it; "
            f"if none of them has, run chmod 600 {path}, else make a new key"
        )
    if fault:
        raise UsageError(f"the private key {path} is not used, because {fault}")
    return content


def _choose_loader(content: bytes) -> Callable[[bytes, bytes | None], object]:
    """Return the function of `cryptography` that reads a private key of this format."""
    from cryptography.hazmat.primitives import serialization

    is_openssh = b"OPENSSH PRIVATE KEY" in content
    return serialization.load_ssh_private_key if is_openssh else serialization.load_pem_private_key


def _is_encrypted(content: bytes) -> bool:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        _choose_loader(content)(content, None)
    except TypeError:
        # `cryptography` raises it for a missing passphrase; a damaged key is a ValueError.
        return True
    except (UnsupportedAlgorithm, ValueError):
        return False
    return False


def _parse_private_key(path: Path, content: bytes, passphrase: str) -> Ed25519PrivateKey:
    """Return the private key in the content of a file; `UsageError` names the file and the remedy."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    is_encrypted = _is_encrypted(content)
    if is_encrypted and not passphrase:
        raise UsageError(f"the private key {path} is encrypted; set {PASSPHRASE_VARIABLE}")
    try:
        # A passphrase in the environment may be meant for another key: a plain key is loaded without it.
        key = _choose_loader(content)(content, passphrase.encode() if is_encrypted else None)
    except UnsupportedAlgorithm as error:
        raise UsageError(f"the private key {path} cannot be used: {error}") from None
    except (TypeError, ValueError):
        reason = "the passphrase is wrong" if is_encrypted else "it is damaged or has another format"
        raise UsageError(f"{path} cannot be read as a private key: {reason}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} is not an Ed25519 key; make one with oncemore policy keygen {path}")
    return key


def _create_file(path: Path, content: bytes, mode: int) -> None:
    """Create a file with its permissions and write it to the disk; `UsageError` if it exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise UsageError(f"{path} exists; choose another name for the new key") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be created: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
