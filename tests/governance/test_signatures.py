"""Forged and damaged signatures of policy files: all are refused, the untouched file passes (T27)."""

from __future__ import annotations

import json
import re
import subprocess
from base64 import b64decode, b64encode, urlsafe_b64encode
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncemore.errors import PolicyError, UsageError
from oncemore.governance import dsse
from oncemore.governance.dsse import Envelope, encode_pae, find_signers, format_envelope, parse_envelope
from oncemore.governance.policy_signing import (
    PAYLOAD_TYPE,
    PolicyStatement,
    check_day,
    format_statement,
    parse_statement,
    read_signature_files,
    sign_with_ssh,
    sign_with_statement,
    write_file,
)
from oncemore.governance.ssh_signatures import parse_ssh_signature, sign_file_bytes
from oncemore.policy import files
from oncemore.policy.files import loader
from oncemore.policy.files.file_reader import has_signature_files
from oncemore.policy.files.loader import read_own_files
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.signed_policies import PolicySigners

POLICY = "profile: mine\nversion: retry-loop-v1.0\ngoverned: true\nretry_policy: {timeout_s: 5}\n"
NAMESPACE = "oncemore-policy"


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(POLICY)
    return path


def load_new(path: Path) -> files.Profile:
    """Load a file as a new process would."""
    files.forget()
    return files.load(path)


def refusal_of(path: Path) -> str:
    """Return the message of the refusal; a file that loads fails the test."""
    with pytest.raises(PolicyError) as caught:
        load_new(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def envelope_of(path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(path.with_name(path.name + ".dsse.json").read_bytes())
    return fields


def write_envelope(path: Path, fields: Any) -> None:
    path.with_name(path.name + ".dsse.json").write_text(
        fields if isinstance(fields, str) else json.dumps(fields)
    )


# DSSE ---------------------------------------------------------------------------------------------------


def test_the_bytes_that_a_signature_covers_are_those_of_the_specification() -> None:
    assert (
        encode_pae("http://example.com/HelloWorld", b"hello world")
        == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_a_signed_file_without_trusted_keys_says_which_setting_names_them(
    policy_file: Path, policy_signers: PolicySigners, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy_signers.sign(policy_file)
    monkeypatch.delenv("ONCEMORE_POLICY_SIGNERS")
    assert "no trusted keys are configured" in refusal_of(policy_file)


@pytest.mark.req("POL-5", "SEC-1")
def test_one_altered_byte_stops_loading_and_the_message_names_file_and_key(
    policy_file: Path, policy_signers: PolicySigners
) -> None:
    assert "is not signed" in refusal_of(policy_file)
    policy_signers.sign(policy_file)
    key_id = policy_signers.keys["steward"].key_id
    assert load_new(policy_file).signature == f"signed by steward ({key_id})"
    for at in range(len(POLICY)):
        data = bytearray(POLICY.encode())
        data[at] ^= 1
        policy_file.write_bytes(data)
        # A byte that makes the file invalid is refused as such, before its signature matters.
        refusal = refusal_of(policy_file)
        assert key_id in refusal or "mine.yaml:" in refusal
    policy_file.write_text(POLICY.replace("5", "6"))
    assert f"{policy_file}: was changed after steward ({key_id}) signed it" in refusal_of(policy_file)
    policy_file.write_text(POLICY)
    assert load_new(policy_file).policy().timeout_s == 5.0


@pytest.mark.parametrize("twin", ["\n", " \n", "# note\n"])
def test_another_text_with_the_same_values_is_not_signed(
    twin: str, policy_file: Path, policy_signers: PolicySigners
) -> None:
    policy_signers.sign(policy_file)
    policy_file.write_text(POLICY + twin)
    assert "was changed after" in refusal_of(policy_file)


def swap_payload(fields: dict[str, Any], signers: PolicySigners) -> None:
    statement = json.loads(b64decode(fields["payload"]))
    statement["predicate"]["version"] = "retry-loop-v9.0"
    fields["payload"] = b64encode(json.dumps(statement).encode()).decode()


def claim_other_key(fields: dict[str, Any], signers: PolicySigners) -> None:
    fields["signatures"][0]["keyid"] = signers.keys["manager"].key_id


def sign_as_stranger(fields: dict[str, Any], signers: PolicySigners) -> None:
    key, payload = signers.keys["stranger"], b64decode(fields["payload"])
    signature = b64encode(key.sign_bytes(encode_pae(PAYLOAD_TYPE, payload))).decode()
    fields["signatures"] = [{"keyid": key.key_id, "sig": signature}]


def sign_as_stranger_in_the_name_of_the_steward(fields: dict[str, Any], signers: PolicySigners) -> None:
    sign_as_stranger(fields, signers)
    fields["signatures"][0]["keyid"] = signers.keys["steward"].key_id


def sign_as_stranger_without_a_key_id(fields: dict[str, Any], signers: PolicySigners) -> None:
    sign_as_stranger(fields, signers)
    del fields["signatures"][0]["keyid"]


def sign_the_payload_alone(fields: dict[str, Any], signers: PolicySigners) -> None:
    key = signers.keys["steward"]
    fields["signatures"][0]["sig"] = b64encode(key.sign_bytes(b64decode(fields["payload"]))).decode()


def sign_the_base64(fields: dict[str, Any], signers: PolicySigners) -> None:
    key = signers.keys["steward"]
    data = encode_pae(PAYLOAD_TYPE, fields["payload"].encode())
    fields["signatures"][0]["sig"] = b64encode(key.sign_bytes(data)).decode()


def sign_another_canonical_form(fields: dict[str, Any], signers: PolicySigners) -> None:
    """The signature is over the payload as sorted, indented JSON, and the payload is as before."""
    key, payload = signers.keys["steward"], json.loads(b64decode(fields["payload"]))
    data = encode_pae(PAYLOAD_TYPE, json.dumps(payload, indent=1).encode())
    fields["signatures"][0]["sig"] = b64encode(key.sign_bytes(data)).decode()


def change_type(fields: dict[str, Any], signers: PolicySigners) -> None:
    fields["payloadType"] = "application/json"


FORGERIES: dict[str, tuple[Callable[[dict[str, Any], PolicySigners], object], str]] = {
    "payload swapped": (swap_payload, "the signature of the key SHA256:.* is not valid"),
    "key id of another trusted key": (claim_other_key, "the signature of the key SHA256:.* is not valid"),
    "key of a stranger": (sign_as_stranger, "not signed by a trusted key .*signed by SHA256:.*unknown here"),
    "stranger under a trusted key id": (sign_as_stranger_in_the_name_of_the_steward, "is not valid"),
    "stranger without a key id": (sign_as_stranger_without_a_key_id, "a key without an id, unknown here"),
    "signature over the payload alone": (sign_the_payload_alone, "is not valid"),
    "signature over the base64": (sign_the_base64, "is not valid"),
    "signature over another form": (sign_another_canonical_form, "is not valid"),
    "payload type": (change_type, "payloadType is 'application/json'"),
    "no signatures": (lambda fields, _: fields.update(signatures=[]), "signatures must be a list of 1"),
    "signatures not a list": (lambda fields, _: fields.update(signatures={}), "must be a list of 1"),
    "too many": (lambda fields, _: fields.update(signatures=fields["signatures"] * 17), "1 to 16"),
    "signature is a text": (lambda fields, _: fields.update(signatures=["x"]), "is not an object"),
    "extra field": (lambda fields, _: fields.update(trusted=True), "trusted is not a field"),
    "extra field of a signature": (
        lambda fields, _: fields["signatures"][0].update(cert="x"),
        "cert is not a field",
    ),
    "missing payload": (lambda fields, _: fields.pop("payload"), "payload is missing"),
    "missing sig": (lambda fields, _: fields["signatures"][0].pop("sig"), "sig is missing"),
    "key id is a number": (lambda fields, _: fields["signatures"][0].update(keyid=1), "keyid is not a text"),
    "sig is a number": (lambda fields, _: fields["signatures"][0].update(sig=1), "sig is not a text"),
    "sig cut": (
        lambda fields, _: fields["signatures"][0].update(sig=fields["signatures"][0]["sig"][:84]),
        "has 63 bytes",
    ),
    "sig empty": (lambda fields, _: fields["signatures"][0].update(sig=""), "has 0 bytes"),
    "base64 with spaces": (
        lambda fields, _: fields.update(payload=fields["payload"] + "\n"),
        "payload is not base64",
    ),
    "base64 without padding": (
        lambda fields, _: fields["signatures"][0].update(sig=fields["signatures"][0]["sig"].rstrip("=")),
        "sig is not base64",
    ),
    "base64 of two alphabets": (lambda fields, _: fields.update(payload="ab+_"), "payload is not base64"),
    "base64 with stray bits": (lambda fields, _: fields.update(payload="ab=="), "canonical form"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_envelope_is_refused(forgery: str, policy_file: Path, policy_signers: PolicySigners) -> None:
    policy_signers.sign(policy_file)
    load_new(policy_file)
    forge, message = FORGERIES[forgery]
    fields = envelope_of(policy_file)
    forge(fields, policy_signers)
    write_envelope(policy_file, fields)
    refusal = refusal_of(policy_file)
    assert re.search(message, refusal), refusal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not valid JSON"),
        ("[]", "is not a JSON object"),
        ('{"payload": "", "payload": ""}', "a name is repeated"),
        ("{" * 100_000, "is not valid JSON"),
        ("\xff", "is not valid JSON"),
        (" " * (dsse.MAX_ENVELOPE_BYTES + 1), "is larger than 256 KiB"),
    ],
)
def test_a_damaged_envelope_is_refused(
    text: str, message: str, policy_file: Path, policy_signers: PolicySigners
) -> None:
    path = policy_file.with_name("mine.yaml.dsse.json")
    path.write_bytes(text.encode("latin-1"))
    assert message in refusal_of(policy_file)


def test_every_cut_of_an_envelope_is_refused(policy_file: Path, policy_signers: PolicySigners) -> None:
    policy_signers.sign(policy_file)
    path = policy_file.with_name("mine.yaml.dsse.json")
    text = path.read_bytes()
    for length in range(0, len(text.rstrip()), 29):
        path.write_bytes(text[:length])
        refusal_of(policy_file)
    path.write_bytes(text)
    load_new(policy_file)


@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_of_an_envelope_is_refused_or_changes_nothing_that_counts(
    data: st.DataObject, policy_file: Path, policy_signers: PolicySigners
) -> None:
    path = policy_file.with_name("mine.yaml.dsse.json")
    path.unlink(missing_ok=True)
    policy_signers.sign(policy_file)
    text = bytearray(path.read_bytes())
    text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(text)
    try:
        profile = load_new(policy_file)
    except PolicyError:
        return
    # White space between the fields may change; the decoded envelope may not.
    envelope = parse_envelope(bytes(text), "here", PAYLOAD_TYPE)
    assert find_signers(envelope, [policy_signers.keys["steward"].public], "here")
    assert profile.policy().timeout_s == 5.0


def test_both_alphabets_of_base64_and_a_missing_key_id_are_accepted(
    policy_file: Path, policy_signers: PolicySigners
) -> None:
    policy_signers.sign(policy_file)
    fields = envelope_of(policy_file)
    fields["payload"] = urlsafe_b64encode(b64decode(fields["payload"])).decode()
    signature = fields["signatures"][0]
    signature["sig"] = urlsafe_b64encode(b64decode(signature["sig"])).decode()
    del signature["keyid"]
    write_envelope(policy_file, fields)
    load_new(policy_file)


def test_a_signature_of_another_policy_or_version_does_not_count(
    policy_file: Path, policy_signers: PolicySigners
) -> None:
    from hashlib import sha256

    digest = sha256(POLICY.encode()).hexdigest()
    for statement in (
        PolicyStatement(digest, "other", "retry-loop-v1.0"),
        PolicyStatement(digest, "mine", "retry-loop-v2.0"),
    ):
        envelope = Envelope(PAYLOAD_TYPE, format_statement(statement, "mine.yaml"), ())
        signed = dsse.sign_payload(envelope, policy_signers.keys["steward"])
        write_envelope(policy_file, format_envelope(signed))
        assert "is mine retry-loop-v1.0, and steward" in refusal_of(policy_file)


@pytest.mark.parametrize(
    "change",
    [
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"predicateType": "https://slsa.dev/provenance/v1"},
        {"predicate": {"profile": "mine"}},
        {"predicate": []},
        {"predicate": {"profile": "mine", "version": "retry-loop-v1.0", "not_before": "2030-01-01"}},
        {"predicate": {"profile": "mine", "version": 1}},
        {"predicate": {"profile": "mine", "version": "retry-loop-v1.0", "expires": "soon"}},
        {"subject": []},
        {"subject": [{"digest": {"sha256": "0" * 64}}, {"digest": {"sha256": "1" * 64}}]},
        {"subject": [{"digest": {"sha512": "0" * 64}}]},
        {"subject": [{"digest": {"sha256": 1}}]},
        {"subject": [{"digest": {"sha256": "0" * 64}, "uri": "x"}]},
        {"more": 1},
    ],
    ids=str,
)
def test_a_signed_statement_that_is_not_understood_is_refused(
    change: dict[str, Any], policy_file: Path, policy_signers: PolicySigners
) -> None:
    policy_signers.sign(policy_file)
    fields = json.loads(b64decode(envelope_of(policy_file)["payload"])) | change
    envelope = Envelope(PAYLOAD_TYPE, json.dumps(fields).encode(), ())
    write_envelope(policy_file, format_envelope(dsse.sign_payload(envelope, policy_signers.keys["steward"])))
    refusal_of(policy_file)


# Thresholds and time ------------------------------------------------------------------------------------


def test_a_threshold_counts_different_keys(policy_file: Path, policy_signers: PolicySigners) -> None:
    policy_signers.require_keys(2)
    policy_signers.sign(policy_file, "steward", "steward")
    assert "is signed by steward" in refusal_of(policy_file)
    fields = envelope_of(policy_file)
    # The same key: repeated, without its id, and in the other form.
    fields["signatures"] += [fields["signatures"][0], {"sig": fields["signatures"][0]["sig"]}]
    write_envelope(policy_file, fields)
    policy_signers.sign(policy_file, "steward", form="ssh")
    refusal = refusal_of(policy_file)
    assert "needed: 2 different trusted keys of allowed_signers" in refusal
    policy_signers.sign(policy_file, "stranger")
    refusal_of(policy_file)
    policy_signers.sign(policy_file, "manager")
    assert load_new(policy_file).signature.count("SHA256:") == 2


def test_both_forms_of_signatures_add_up(policy_file: Path, policy_signers: PolicySigners) -> None:
    policy_signers.require_keys(2)
    policy_signers.sign(policy_file, "steward", form="ssh")
    refusal_of(policy_file)
    policy_signers.sign(policy_file, "manager")
    load_new(policy_file)
    policy_file.with_name("mine.yaml.dsse.json").unlink()
    policy_signers.sign(policy_file, "steward", "manager", form="ssh")
    assert sorted(each.name for each in policy_file.parent.glob("*.sig")) == [
        "mine.yaml.manager.sig",
        "mine.yaml.sig",
    ]
    load_new(policy_file)


def test_an_expired_signature_is_refused(policy_file: Path, policy_signers: PolicySigners) -> None:
    policy_signers.sign(policy_file, expires="2999-01-01")
    load_new(policy_file)
    policy_file.with_name("mine.yaml.dsse.json").unlink()
    policy_signers.sign(policy_file, expires="2026-01-01")
    assert "has a signature that expired on 2026-01-01, made by steward" in refusal_of(policy_file)


def test_an_expired_file_is_refused(policy_file: Path, policy_signers: PolicySigners) -> None:
    policy_file.write_text(POLICY + "expires: 2999-06-01\n")
    policy_signers.sign(policy_file)
    load_new(policy_file)
    with FakeClock() as clock:
        clock.advance(1000 * 366 * 86400)
        assert "expired on 2999-06-01; it was signed by steward" in refusal_of(policy_file)


@pytest.mark.parametrize("options", [',valid-before="20260101"', ',valid-after="29990101000000Z"'])
def test_a_key_counts_only_while_it_is_valid(
    options: str, policy_file: Path, policy_signers: PolicySigners
) -> None:
    policy_signers.sign(policy_file)
    policy_signers.trust_keys("steward", options=options)
    refusal = refusal_of(policy_file)
    assert "the key of steward" in refusal
    assert "in mine.yaml.dsse.json is expired or not valid yet" in refusal


def test_a_key_that_is_no_longer_trusted_does_not_count(
    policy_file: Path, policy_signers: PolicySigners
) -> None:
    policy_signers.sign(policy_file)
    load_new(policy_file)
    policy_signers.trust_keys("manager")
    assert policy_signers.keys["steward"].key_id in refusal_of(policy_file)


# SSH ----------------------------------------------------------------------------------------------------


def run_ssh_keygen(*arguments: str | Path, data: bytes = b"") -> int:
    return subprocess.run(["ssh-keygen", *arguments], input=data, capture_output=True, check=False).returncode


def test_ssh_keygen_alone_verifies_a_signature(policy_file: Path, policy_signers: PolicySigners) -> None:
    signature = policy_signers.sign(policy_file, form="ssh").with_name("mine.yaml.sig")
    load_new(policy_file)
    verify = ("-Y", "verify", "-f", policy_signers.file, "-I", "steward", "-n", NAMESPACE, "-s", signature)
    assert run_ssh_keygen(*verify, data=POLICY.encode()) == 0
    assert run_ssh_keygen(*verify, data=POLICY.encode() + b"#") != 0


def test_a_signature_of_ssh_keygen_is_verified(policy_file: Path, policy_signers: PolicySigners) -> None:
    private = policy_file.with_name("key")
    policy_signers.keys["steward"].save_files(private)
    for hash_name in ("sha512", "sha256"):
        policy_file.with_name("mine.yaml.sig").unlink(missing_ok=True)
        sign = ("-Y", "sign", "-O", f"hashalg={hash_name}", "-f", private, "-n", NAMESPACE, policy_file)
        assert run_ssh_keygen(*sign) == 0
        assert load_new(policy_file).signature.startswith("signed by steward")


def test_a_signature_for_another_namespace_is_refused(
    policy_file: Path, policy_signers: PolicySigners
) -> None:
    key = policy_signers.keys["steward"]
    path = policy_file.with_name("mine.yaml.sig")
    path.write_text(sign_file_bytes(POLICY.encode(), "git", key))
    assert "has a signature of steward" in refusal_of(policy_file)
    assert "for 'git', and not for oncemore-policy" in refusal_of(policy_file)
    # The name of the namespace alone does not help: it is signed.
    text = sign_file_bytes(POLICY.encode(), "x" * len(NAMESPACE), key)
    blob = b64decode("".join(text.splitlines()[1:-1])).replace(b"x" * len(NAMESPACE), NAMESPACE.encode())
    path.write_text(armour(blob))
    assert "was changed after steward" in refusal_of(policy_file)


def test_a_signature_is_valid_for_its_own_namespace_only(policy_signers: PolicySigners) -> None:
    text = sign_file_bytes(b"data", "git", policy_signers.keys["steward"]).encode()
    signature = parse_ssh_signature(text, "x.sig")
    assert signature.is_valid(b"data", "git")
    assert not signature.is_valid(b"data", NAMESPACE)


def armour(blob: bytes) -> str:
    return f"-----BEGIN SSH SIGNATURE-----\n{b64encode(blob).decode()}\n-----END SSH SIGNATURE-----\n"


def test_a_changed_file_a_stranger_and_every_flipped_byte_are_refused(
    policy_file: Path, policy_signers: PolicySigners
) -> None:
    path = policy_signers.sign(policy_file, form="ssh").with_name("mine.yaml.sig")
    text = path.read_text()
    blob = b64decode("".join(text.splitlines()[1:-1]))
    for at in range(0, len(blob), 4):
        path.write_text(armour(blob[:at] + bytes((blob[at] ^ 1,)) + blob[at + 1 :]))
        refusal_of(policy_file)
        path.write_text(armour(blob[:at]))
        refusal_of(policy_file)
    path.write_text(armour(blob + b"\0"))
    assert "it has unknown parts" in refusal_of(policy_file)
    path.write_text(armour(blob))
    load_new(policy_file)
    path.unlink()
    policy_signers.sign(policy_file, "stranger", form="ssh")
    assert "not signed by a trusted key (mine.yaml.sig is signed by SHA256:" in refusal_of(policy_file)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"x" * 20_000,
        b"-----BEGIN SSH SIGNATURE-----\n***\n-----END SSH SIGNATURE-----\n",
        b"-----BEGIN SSH SIGNATURE-----\nab==\n-----END SSH SIGNATURE-----\n",
        b"-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n",
    ],
)
def test_a_text_that_is_not_an_ssh_signature_is_refused(text: bytes) -> None:
    with pytest.raises(UsageError, match=r"x\.sig is not an SSH signature"):
        parse_ssh_signature(text, "x.sig")


def test_other_parts_of_an_ssh_signature_are_refused(policy_signers: PolicySigners) -> None:
    text = sign_file_bytes(b"data", NAMESPACE, policy_signers.keys["steward"])
    blob = b64decode("".join(text.splitlines()[1:-1]))
    for old, new, message in (
        (b"sha512", b"sha384", "is not an Ed25519 signature over SHA-512 or SHA-256"),
        (NAMESPACE.encode(), b"\xff" * len(NAMESPACE), "its namespace is not text"),
        (b"SSHSIG\0\0\0\x01", b"SSHSIG\0\0\0\x02", "its version is not 1"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_ssh_signature(armour(blob.replace(old, new)).encode(), "x.sig")


# Files --------------------------------------------------------------------------------------------------


def test_a_further_signer_signs_the_same_statement(policy_file: Path, policy_signers: PolicySigners) -> None:
    policy_signers.sign(policy_file, expires="2999-01-01")
    profile, own = read_own_files(policy_file)
    manager = policy_signers.keys["manager"]
    with pytest.raises(UsageError, match="has signatures that expire on 2999-01-01"):
        sign_with_statement(profile, own[0].data, manager, "2999-02-01")
    _, statement = sign_with_statement(profile, own[0].data, manager)
    assert statement.expires == "2999-01-01"
    assert len(envelope_of(policy_file)["signatures"]) == 2
    # The envelope of an earlier state of the file is replaced, and so is a damaged one.
    policy_file.write_text(POLICY.replace("5", "6"))
    policy_signers.sign(policy_file, "manager")
    assert len(envelope_of(policy_file)["signatures"]) == 1
    write_envelope(policy_file, "damaged")
    policy_signers.sign(policy_file, "manager")
    assert load_new(policy_file).policy().timeout_s == 6.0


def test_an_envelope_has_room_for_sixteen_signatures(policy_signers: PolicySigners) -> None:
    envelope = Envelope(PAYLOAD_TYPE, b"{}", tuple((str(n), b"") for n in range(16)))
    with pytest.raises(UsageError, match="at most 16 signatures"):
        dsse.sign_payload(envelope, policy_signers.keys["steward"])


def test_bad_names_days_and_places_are_refused(
    policy_file: Path, policy_signers: PolicySigners, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = policy_signers.keys["steward"]
    with pytest.raises(UsageError, match=r"the name of a signer is '\.\./x'"):
        sign_with_ssh(policy_file, b"", key, "../x")
    with pytest.raises(UsageError, match="expires is 'soon'; it takes a day such as 2027-12-31"):
        check_day("soon", "expires")
    with pytest.raises(UsageError, match="x cannot be written: File exists"):
        write_file(policy_file / "x", b"")
    with pytest.raises(UsageError, match="nowhere cannot be read"):
        read_signature_files(policy_file.parent / "nowhere" / "x.yaml")
    policy_file.with_name("mine.yaml.sig").mkdir()
    with pytest.raises(UsageError, match=r"mine\.yaml\.sig is not a regular file"):
        read_signature_files(policy_file)
    policy_file.with_name("mine.yaml.sig").rmdir()
    for number in range(17):
        policy_file.with_name(f"mine.yaml.{number}.sig").touch()
    with pytest.raises(UsageError, match="more than 16 files of signatures"):
        read_signature_files(policy_file)


def test_a_huge_signature_file_is_refused(policy_file: Path) -> None:
    policy_file.with_name("mine.yaml.sig").write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(UsageError, match="is larger than 1048576 bytes"):
        read_signature_files(policy_file)


def test_a_statement_survives_a_round_trip() -> None:
    statement = PolicyStatement("0" * 64, "mine", "retry-loop-v1.0", "2027-01-01")
    assert parse_statement(format_statement(statement, "mine.yaml"), "here") == statement


def test_a_file_that_changes_or_vanishes_while_it_is_read_is_named(
    policy_file: Path, policy_signers: PolicySigners, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not has_signature_files("nowhere/mine.yaml")
    signature = policy_signers.sign(policy_file, form="ssh").with_name("mine.yaml.sig")
    monkeypatch.setattr(type(signature), "is_file", lambda path: path.unlink() or True)
    with pytest.raises(UsageError, match=r"mine\.yaml\.sig cannot be read: No such file"):
        read_signature_files(policy_file)
    draft = loader.draft_file
    monkeypatch.setattr(loader, "draft_file", lambda *given: draft(*given)._replace(digest="other"))
    files.inspect_file(policy_file)
    with pytest.raises(PolicyError, match="was changed while it was read; try again"):
        read_own_files(policy_file)
