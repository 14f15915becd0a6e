"""A certificate authority, a certificate log and a transparency log of our own, for bundles made in tests."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SHA256_ECDSA = ec.ECDSA(SHA256())
SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
ISSUER_V1 = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
ISSUER_V2 = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
ORIGIN = "log.example.org"


def base64_of(data: bytes) -> str:
    return b64encode(data).decode()


def public_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


class LocalSigstore:
    """Issues certificates to identities, and logs signatures, as the public service does."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.authority, self.certificate_log, self.signature_log = (
            ec.generate_private_key(ec.SECP256R1()) for _ in range(3)
        )
        self.root = self._make_root()

    def _make_root(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local authority")])
        key = self.authority.public_key()
        usage = dict.fromkeys(
            (
                *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
                *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
            ),
            False,
        )
        return (
            x509.CertificateBuilder(
                name, name, key, 1, self.now - timedelta(days=1), self.now + timedelta(days=9)
            )
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(**usage | {"key_cert_sign": True, "crl_sign": True}), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .sign(self.authority, SHA256())
        )

    def trusted_root(self) -> str:
        """Return the root of trust, in the format of the public one."""
        valid = {"start": (self.now - timedelta(days=1)).isoformat().replace("+00:00", "Z")}

        def describe(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            raw = public_bytes(key)
            return {
                "baseUrl": "https://nowhere.invalid",
                "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": base64_of(raw),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": valid,
                },
                "logId": {"keyId": base64_of(sha256(raw).digest())},
            }

        chain = {"certificates": [{"rawBytes": base64_of(self.root.public_bytes(Encoding.DER))}]}
        subject = {"organization": "local", "commonName": "local authority"}
        return json.dumps(
            {
                "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
                "tlogs": [describe(self.signature_log)],
                "ctlogs": [describe(self.certificate_log)],
                "certificateAuthorities": [
                    {
                        "subject": subject,
                        "uri": "https://nowhere.invalid",
                        "certChain": chain,
                        "validFor": valid,
                    }
                ],
                "timestampAuthorities": [],
            }
        )

    def _issue(self, key: ec.EllipticCurvePrivateKey, identity: str, issuer: str) -> x509.Certificate:
        """Return a certificate of an identity, with the timestamp of the certificate log in it."""
        draft = self._build(key, identity, issuer, b"\0" * 8)
        milliseconds = int(self.now.timestamp()) * 1000
        tbs = draft.tbs_precertificate_bytes
        issuer_id = sha256(public_bytes(self.authority)).digest()
        signed = (
            struct.pack("!BBQH", 0, 0, milliseconds, 1)
            + issuer_id
            + len(tbs).to_bytes(3, "big")
            + tbs
            + b"\0\0"
        )
        return self._build(key, identity, issuer, self.certificate_log.sign(signed, SHA256_ECDSA))

    def _build(
        self, key: ec.EllipticCurvePrivateKey, identity: str, issuer: str, signature: bytes
    ) -> x509.Certificate:
        milliseconds = int(self.now.timestamp()) * 1000
        log_id = sha256(public_bytes(self.certificate_log)).digest()
        timestamp = (
            b"\0"
            + log_id
            + struct.pack("!QH", milliseconds, 0)
            + b"\x04\x03"
            + struct.pack("!H", len(signature))
        ) + signature
        listed = struct.pack("!H", len(timestamp)) + timestamp
        listed = struct.pack("!H", len(listed)) + listed
        octets = (
            b"\x04" + (bytes((len(listed),)) if len(listed) < 128 else bytes((0x81, len(listed)))) + listed
        )
        usage = x509.KeyUsage(
            digital_signature=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=False, crl_sign=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        text = issuer.encode()
        return (
            x509.CertificateBuilder(
                self.root.subject,
                x509.Name([]),
                key.public_key(),
                7,
                self.now - timedelta(minutes=1),
                self.now + timedelta(minutes=9),
            )
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(identity)]), critical=True)
            .add_extension(x509.UnrecognizedExtension(ISSUER_V1, text), critical=False)
            .add_extension(
                x509.UnrecognizedExtension(ISSUER_V2, b"\x0c" + bytes((len(text),)) + text), critical=False
            )
            .add_extension(x509.UnrecognizedExtension(SCT_LIST, octets), critical=False)
            .sign(self.authority, SHA256())
        )

    def sign(self, data: bytes, identity: str, issuer: str) -> dict[str, Any]:
        """Return the bundle of a signature of an identity over data."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, signature = self._issue(key, identity, issuer), key.sign(data, SHA256_ECDSA)
        pem = certificate.public_bytes(Encoding.PEM)
        digest = sha256(data)
        body = json.dumps(
            {
                "apiVersion": "0.0.1",
                "kind": "hashedrekord",
                "spec": {
                    "data": {"hash": {"algorithm": "sha256", "value": digest.hexdigest()}},
                    "signature": {
                        "content": base64_of(signature),
                        "publicKey": {"content": base64_of(pem)},
                    },
                },
            },
            separators=(",", ":"),
        ).encode()
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": base64_of(certificate.public_bytes(Encoding.DER))},
                "tlogEntries": [self._log_entry(body)],
            },
            "messageSignature": {
                "messageDigest": {"algorithm": "SHA2_256", "digest": base64_of(digest.digest())},
                "signature": base64_of(signature),
            },
        }

    def _log_entry(self, body: bytes) -> dict[str, Any]:
        """Return the entry of the transparency log, whose only leaf it is."""
        log_id, at = sha256(public_bytes(self.signature_log)).digest(), int(self.now.timestamp())
        promise = json.dumps(
            {"body": base64_of(body), "integratedTime": at, "logID": log_id.hex(), "logIndex": 0},
            separators=(",", ":"),
        ).encode()
        root = sha256(b"\0" + body).digest()
        note = f"{ORIGIN}\n1\n{base64_of(root)}\n"
        signed = base64_of(log_id[:4] + self.signature_log.sign(note.encode(), SHA256_ECDSA))
        return {
            "logIndex": "0",
            "logId": {"keyId": base64_of(log_id)},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
            "integratedTime": str(at),
            "inclusionPromise": {
                "signedEntryTimestamp": base64_of(self.signature_log.sign(promise, SHA256_ECDSA))
            },
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": base64_of(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n— {ORIGIN} {signed}\n"},
            },
            "canonicalizedBody": base64_of(body),
        }
