"""Ed25519 keys: files, formats, key ids, and the refusals of files that are not safe or not keys."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from oncemore.errors import MissingExtra, UsageError
from oncemore.governance import keys
from oncemore.governance.keys import (
    VerifyKey,
    generate_key,
    is_passphrase_needed,
    load_signing_key,
    load_verify_key,
    parse_verify_key,
    parse_wire_key,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "signer"
    generate_key().save_files(path, comment="release manager")
    return path


def run_ssh_keygen(*arguments: str | Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ssh-keygen", *arguments], input=data, capture_output=True, check=False)


def write_private(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_a_key_signs_and_its_public_file_verifies(key_file: Path) -> None:
    signer, verifier = load_signing_key(key_file), load_verify_key(key_file.with_name("signer.pub"))
    signature = signer.sign_bytes(b"text")
    assert verifier.is_valid(signature, b"text")
    assert signature == signer.sign_bytes(b"text")
    assert not verifier.is_valid(signature, b"other text")
    assert not verifier.is_valid(signature[:-1], b"text")
    assert not generate_key().public.is_valid(signature, b"text")
    assert signer.public == verifier
    assert signer.key_id == verifier.key_id


def test_ssh_keygen_reads_both_files_and_prints_the_key_id(key_file: Path) -> None:
    public = key_file.with_name("signer.pub")
    listed = run_ssh_keygen("-l", "-f", public).stdout.decode()
    assert load_verify_key(public).key_id in listed
    assert "release manager" in listed
    derived = run_ssh_keygen("-y", "-f", key_file).stdout.decode().split()[:2]
    assert derived == public.read_text().split()[:2]


def test_a_key_of_ssh_keygen_is_read(tmp_path: Path) -> None:
    run_ssh_keygen("-q", "-t", "ed25519", "-N", "", "-C", "made by ssh-keygen", "-f", tmp_path / "id")
    signer = load_signing_key(tmp_path / "id")
    assert signer.public == load_verify_key(tmp_path / "id.pub")


def test_an_encrypted_key_needs_its_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "signer"
    generated = generate_key()
    generated.save_files(path, passphrase="correct horse")
    assert is_passphrase_needed(path)
    with pytest.raises(UsageError, match=f"{path} is encrypted; set ONCEMORE_KEY_PASSPHRASE"):
        load_signing_key(path)
    with pytest.raises(UsageError, match=f"{path} cannot be read .* the passphrase is wrong") as caught:
        load_signing_key(path, "wrong horse")
    assert "horse" not in str(caught.value)
    assert load_signing_key(path, "correct horse").public == generated.public
    monkeypatch.setenv("ONCEMORE_KEY_PASSPHRASE", "correct horse")
    assert load_signing_key(path).public == generated.public


def test_a_passphrase_in_the_environment_does_not_disturb_a_plain_key(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMORE_KEY_PASSPHRASE", "of another key")
    assert not is_passphrase_needed(key_file)
    load_signing_key(key_file)


@pytest.mark.parametrize("passphrase", ["", "secret"])
def test_keys_in_pem_are_read(tmp_path: Path, passphrase: str) -> None:
    private = Ed25519PrivateKey.generate()
    cipher: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(passphrase.encode())
        if passphrase
        else serialization.NoEncryption()
    )
    content = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher)
    path = write_private(tmp_path / "signer.pem", content)
    assert is_passphrase_needed(path) == bool(passphrase)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "public.pem").write_bytes(public)
    verifier = load_verify_key(tmp_path / "public.pem")
    assert load_signing_key(path, passphrase).public == verifier
    assert verifier.format_pem().encode() == public


def test_formats_of_a_public_key_agree_with_cryptography() -> None:
    key = generate_key()
    public = serialization.load_ssh_public_key(key.public.format_openssh("a comment").encode())
    assert public.public_bytes_raw() == key.public.raw  # type: ignore[union-attr]
    for text in (key.public.format_openssh(), key.public.format_openssh("who"), key.public.format_pem()):
        assert parse_verify_key(text, "here") == key.public
    assert parse_wire_key(key.public.wire_bytes, "here") == key.public


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610])
def test_a_private_key_that_other_users_can_read_is_refused(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(UsageError, match=rf"{key_file} has the mode {mode:04o}.*chmod 600 {key_file}"):
        load_signing_key(key_file)


def test_a_private_key_in_a_folder_of_every_user_is_refused(key_file: Path) -> None:
    key_file.parent.chmod(0o777)
    with pytest.raises(UsageError, match=f"{key_file} is not used, because .* writable by every user"):
        load_signing_key(key_file)


def test_new_key_files_have_their_modes_whatever_the_umask(tmp_path: Path) -> None:
    earlier = os.umask(0)
    try:
        generate_key().save_files(tmp_path / "signer")
    finally:
        os.umask(earlier)
    assert (tmp_path / "signer").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "signer.pub").stat().st_mode & 0o777 == 0o644


def test_an_existing_file_is_never_replaced(key_file: Path) -> None:
    before = key_file.read_bytes()
    with pytest.raises(UsageError, match=f"{key_file}.pub exists"):
        generate_key().save_files(key_file)
    key_file.with_name("signer.pub").unlink()
    with pytest.raises(UsageError, match=f"{key_file} exists"):
        generate_key().save_files(key_file)
    assert key_file.read_bytes() == before
    assert not key_file.with_name("signer.pub").exists()


def test_a_file_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere/signer cannot be created: No such file or directory"):
        generate_key().save_files(tmp_path / "nowhere" / "signer")


@pytest.mark.parametrize("comment", ["two\nlines", "x" * 201, "a\x1b[31m"])
def test_a_comment_is_one_short_line(tmp_path: Path, comment: str) -> None:
    with pytest.raises(UsageError, match="the comment of a key is one line"):
        generate_key().save_files(tmp_path / "signer", comment=comment)
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_not_private_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"private key {tmp_path / 'absent'} cannot be read: No such file"):
        load_signing_key(tmp_path / "absent")
    with pytest.raises(UsageError, match=f"private key {tmp_path} cannot be read: Is a directory"):
        load_signing_key(tmp_path)
    for content in (b"", b"text", b"-----BEGIN OPENSSH " + b"PRIVATE KEY-----\nAAAA\n-----END", b"\xff\xfe"):
        path = write_private(tmp_path / "damaged", content)
        assert not is_passphrase_needed(path)
        with pytest.raises(UsageError, match="damaged cannot be read as a private key: it is damaged"):
            load_signing_key(path)


def test_a_private_key_of_another_type_is_refused(tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    content = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = write_private(tmp_path / "ecdsa", content)
    with pytest.raises(UsageError, match=f"{path} is not an Ed25519 key"):
        load_signing_key(path)


def test_a_cipher_that_is_not_known_is_named(tmp_path: Path) -> None:
    path = tmp_path / "signer"
    generate_key().save_files(path, passphrase="secret")
    first, *lines, last = path.read_bytes().split(b"-----")[1:4]
    content = b64encode(b64decode(lines[0]).replace(b"aes256-ctr", b"aes256-xyz"))
    write_private(path, b"-----" + first + b"-----\n" + content + b"\n-----" + last + b"-----\n")
    with pytest.raises(UsageError, match=f"{path} cannot be used"):
        load_signing_key(path, "secret")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a public key"),
        ("ssh-ed25519", "is not a public key"),
        ("ssh-ed25519 A B\nssh-ed25519 A B", "is not a public key"),
        ("ssh-rsa AAAAB3NzaC1yc2E=", "key of the type 'ssh-rsa'"),
        ("ssh-ed25519 ***", "its base64 is damaged"),
        ("ssh-ed25519 AAAA", "is not an Ed25519 public key in the format of OpenSSH"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "is not an Ed25519 public key"),
        ("-----BEGIN OPENSSH " + "PRIVATE KEY-----\nAAAA", "holds a private key"),
    ],
)
def test_a_text_that_is_not_a_public_key_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"trust.toml.*{message}"):
        parse_verify_key(text, "trust.toml")


def test_wire_bytes_have_one_form() -> None:
    wire = generate_key().public.wire_bytes
    for damaged in (wire + b"\0", wire[1:], b"\0" + wire, wire.replace(b"ssh-ed", b"ssh-Ed"), wire[:-1]):
        with pytest.raises(UsageError, match="is not an Ed25519 public key"):
            parse_wire_key(damaged, "here")


def test_a_public_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"the public key {tmp_path / 'absent'} cannot be read"):
        load_verify_key(tmp_path / "absent")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="bytes is not a public key: it is not text"):
        load_verify_key(tmp_path / "bytes")


def test_a_private_key_is_neither_shown_nor_pickled() -> None:
    key = generate_key()
    assert repr(key) == f"<SigningKey {key.key_id}>"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)


def test_without_cryptography_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for call in (generate_key, keys.require_cryptography, lambda: VerifyKey(b"").is_valid(b"", b"")):
        with pytest.raises(MissingExtra, match=r"pip install 'oncemore\[sign\]'"):
            call()
