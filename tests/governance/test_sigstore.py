"""Sigstore bundles over policy files, verified offline with a root of trust from a file."""

from __future__ import annotations

import json
import socket
import sys
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.errors import MissingExtra, PolicyError, UsageError
from oncemore.governance.sigstore_bundles import load_sigstore_trust, verify_bundle
from oncemore.policy import files
from tests.cli.test_cli_policy import Ran

if TYPE_CHECKING:
    from tests.governance.local_sigstore import LocalSigstore
    from tests.signed_policies import PolicySigners

pytest.importorskip("sigstore", reason="the extra sigstore is not installed")

POLICY = b"profile: mine\nversion: retry-loop-v1.0\nextends: kfm-rules\n"
IDENTITY, ISSUER = "release@example.org", "https://accounts.example.org"
TRUST = f'trusted_root = "trusted_root.json"\n[[identities]]\nidentity = "{IDENTITY}"\nissuer = "{ISSUER}"\n'


@pytest.fixture(scope="module")
def sigstore() -> LocalSigstore:
    from tests.governance.local_sigstore import LocalSigstore

    return LocalSigstore()


@pytest.fixture(autouse=True)
def _configured(sigstore: LocalSigstore, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.yaml").write_bytes(POLICY)
    Path("trusted_root.json").write_text(sigstore.trusted_root())
    Path("sigstore.toml").write_text(TRUST)
    monkeypatch.setenv("ONCEMORE_POLICY_SIGSTORE", str(Path("sigstore.toml").absolute()))

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def write_bundle(bundle: Any) -> None:
    Path("mine.yaml.sigstore.json").write_text(json.dumps(bundle))


def refusal() -> str:
    files.forget()
    with pytest.raises(PolicyError) as caught:
        files.load("mine.yaml")
    return str(caught.value)


@pytest.mark.req("POL-6")
def test_a_bundle_is_verified_from_a_file_and_a_key_offline(
    sigstore: LocalSigstore, policy_signers: PolicySigners
) -> None:
    assert "is not signed" in refusal()
    write_bundle(sigstore.sign(POLICY, IDENTITY, ISSUER))
    files.forget()
    assert files.load("mine.yaml").signature == f"signed by {IDENTITY} ({ISSUER})"
    # The identity and a key are two signers.
    policy_signers.require_keys(2)
    assert "needed: 2 different trusted keys" in refusal()
    policy_signers.sign(Path("mine.yaml").absolute())
    files.forget()
    assert files.load("mine.yaml").signature.count("(") == 2
    assert Ran("policy", "verify", "mine.yaml").code == 0
    Path("mine.yaml.sigstore.json").unlink()
    policy_signers.require_keys(1)
    files.forget()
    assert files.load("mine.yaml").signature.startswith("signed by steward")


def test_another_file_identity_issuer_or_authority_is_refused(sigstore: LocalSigstore) -> None:
    from tests.governance.local_sigstore import LocalSigstore

    for bundle in (
        sigstore.sign(POLICY + b"#", IDENTITY, ISSUER),
        sigstore.sign(POLICY, "stranger@example.org", ISSUER),
        sigstore.sign(POLICY, IDENTITY, "https://other.example.org"),
        LocalSigstore().sign(POLICY, IDENTITY, ISSUER),
    ):
        write_bundle(bundle)
        assert f"is not a valid signature of {IDENTITY}" in refusal()


@pytest.mark.parametrize(
    "path",
    [
        ("verificationMaterial", "tlogEntries", 0, "inclusionPromise", "signedEntryTimestamp"),
        ("verificationMaterial", "tlogEntries", 0, "inclusionProof", "rootHash"),
        ("verificationMaterial", "tlogEntries", 0, "canonicalizedBody"),
        ("verificationMaterial", "certificate", "rawBytes"),
        ("messageSignature", "signature"),
    ],
    ids=lambda path: str(path[-1]),
)
def test_a_bundle_with_a_changed_part_is_refused(path: tuple[Any, ...], sigstore: LocalSigstore) -> None:
    bundle = sigstore.sign(POLICY, IDENTITY, ISSUER)
    place = bundle
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = b64encode(b"x" * 64).decode()
    write_bundle(bundle)
    refusal()


def test_what_is_not_a_bundle_or_a_root_of_trust_is_named(sigstore: LocalSigstore) -> None:
    write_bundle({})
    assert "mine.yaml.sigstore.json is not a Sigstore bundle" in refusal()
    write_bundle(sigstore.sign(POLICY, IDENTITY, ISSUER))
    Path("trusted_root.json").write_text("{}")
    assert "trusted_root.json is not a usable root of trust" in refusal()
    Path("trusted_root.json").unlink()
    assert "trusted_root.json cannot be read" in refusal()


def test_without_the_setting_a_bundle_does_not_count(
    sigstore: LocalSigstore, policy_signers: PolicySigners, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(sigstore.sign(POLICY, IDENTITY, ISSUER))
    monkeypatch.delenv("ONCEMORE_POLICY_SIGSTORE")
    assert "mine.yaml.sigstore.json is not verified: the setting policy_sigstore is empty" in refusal()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "cannot be read"),
        ("", "takes trusted_root, a path"),
        ('trusted_root = "r"\nmore = 1\n', "and nothing else"),
        ('trusted_root = "r"\n', "identities is missing"),
        ('trusted_root = "r"\n[[identities]]\nidentity = "a"\n', "identity 1 takes identity and issuer"),
        ('trusted_root = "r"\n[[identities]]\nidentity = "a"\nissuer = ""\n', "identity 1 takes"),
    ],
)
def test_a_file_of_identities_with_a_fault_is_named(text: str, message: str) -> None:
    Path("sigstore.toml").write_text(text)
    with pytest.raises(UsageError, match=f"sigstore.toml.*{message}"):
        load_sigstore_trust("sigstore.toml")


def test_a_root_of_trust_of_every_user_is_refused(sigstore: LocalSigstore) -> None:
    write_bundle(sigstore.sign(POLICY, IDENTITY, ISSUER))
    Path("trusted_root.json").chmod(0o666)
    assert "is not used, because" in refusal()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore.verify", None)
    with pytest.raises(MissingExtra, match=r"pip install 'oncemore\[sigstore\]'"):
        verify_bundle(b"", b"", load_sigstore_trust("sigstore.toml"), "here")


def test_of_several_identities_the_signer_is_named(sigstore: LocalSigstore) -> None:
    more = TRUST.replace("[[", '[[identities]]\nidentity = "other"\nissuer = "x"\n[[', 1)
    Path("sigstore.toml").write_text(more)
    write_bundle(sigstore.sign(POLICY, IDENTITY, ISSUER))
    assert IDENTITY in files.load("mine.yaml").signature
