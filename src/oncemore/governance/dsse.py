"""DSSE envelopes (Dead Simple Signing Envelope 1.0): signatures over a payload with its type.

    {"payload": base64, "payloadType": "application/vnd.in-toto+json",
     "signatures": [{"keyid": "SHA256:…", "sig": base64}]}

A signature covers `PAE(payloadType, payload)`, so that the type cannot be exchanged, and the exact bytes of
the payload, so that no second form of the same JSON is accepted. Callers use the bytes that
`open_envelope` returns and never parse the envelope themselves.

Everything outside the payload is unsigned. An envelope with another field, a repeated field or another type
is therefore refused as a whole. A `keyid` selects the key to try and proves nothing; keys are counted by
their own bytes, each once.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64decode
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.errors import UsageError
from oncemore.governance.keys import SIGNATURE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.governance.keys import SigningKey, VerifyKey

#: An envelope is a page of text; a larger one is refused before it is parsed.
MAX_ENVELOPE_BYTES = 256 * 1024
MAX_SIGNATURES = 16
_FIELDS, _SIGNATURE_FIELDS = {"payload", "payloadType", "signatures"}, {"keyid", "sig"}
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")


class Envelope(NamedTuple):
    """An envelope with decoded payload and signatures; each signature is a pair of key id and bytes."""

    payload_type: str
    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]


def encode_pae(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that a signature covers: type and payload, each after its length."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def sign_payload(envelope: Envelope, key: SigningKey) -> Envelope:
    """Return the envelope with the signature of a key, in place of an earlier one of the same key."""
    signature = key.sign_bytes(encode_pae(envelope.payload_type, envelope.payload))
    # A second signature of the same key replaces the first: it would not count anyway.
    others = tuple(pair for pair in envelope.signatures if pair[0] != key.key_id)
    if len(others) >= MAX_SIGNATURES:
        raise UsageError(f"an envelope holds at most {MAX_SIGNATURES} signatures")
    return envelope._replace(signatures=(*others, (key.key_id, signature)))


def format_envelope(envelope: Envelope) -> str:
    """Return the JSON of an envelope."""
    fields = {
        "payload": b64encode(envelope.payload).decode(),
        "payloadType": envelope.payload_type,
        "signatures": [
            {"keyid": key_id, "sig": b64encode(signature).decode()}
            for key_id, signature in envelope.signatures
        ],
    }
    return json.dumps(fields, indent=2) + "\n"


def parse_envelope(text: bytes, where: str, payload_type: str) -> Envelope:
    """Return the envelope in a text; `UsageError` names `where` and the first fault."""
    fields = parse_json_object(text, where)
    _check_fields(fields, _FIELDS, where)
    if fields["payloadType"] != payload_type:
        raise UsageError(f"{where}: payloadType is {fields['payloadType']!r:.80}; it must be {payload_type}")
    signatures = fields["signatures"]
    if not isinstance(signatures, list) or not 1 <= len(signatures) <= MAX_SIGNATURES:
        raise UsageError(f"{where}: signatures must be a list of 1 to {MAX_SIGNATURES} signatures")
    return Envelope(
        payload_type,
        _decode_field(fields["payload"], f"{where}: payload"),
        tuple(_parse_signature(each, f"{where}: signatures[{n}]") for n, each in enumerate(signatures)),
    )


def find_signers(envelope: Envelope, keys: Iterable[VerifyKey], where: str) -> list[VerifyKey]:
    """Return those of the keys that signed an envelope, each once.

    A signature of an unknown key is passed over. An invalid signature in the name of one of the keys is a
    `UsageError`: the envelope was forged or damaged.
    """
    data = encode_pae(envelope.payload_type, envelope.payload)
    known = {key.key_id: key for key in keys}
    # A dict keeps each key once, and in the order of the signatures.
    signers: dict[VerifyKey, None] = {}
    for key_id, signature in envelope.signatures:
        # Without a key id every key is tried, as the specification allows.
        candidates = list(known.values()) if not key_id else [known[key_id]] if key_id in known else []
        valid = [key for key in candidates if key.is_valid(signature, data)]
        if key_id and candidates and not valid:
            raise UsageError(f"{where}: the signature of the key {key_id} is not valid")
        signers |= dict.fromkeys(valid)
    return list(signers)


def parse_json_object(text: bytes, where: str) -> dict[str, Any]:
    """Return a JSON object; refuse repeated names: two parsers could read them differently."""
    if len(text) > MAX_ENVELOPE_BYTES:
        raise UsageError(f"{where} is larger than {MAX_ENVELOPE_BYTES // 1024} KiB")
    try:
        value = json.loads(text.decode(), object_pairs_hook=_refuse_repeated)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where} is not a JSON object")
    return value


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name is repeated")
    return fields


def _parse_signature(signature: object, where: str) -> tuple[str, bytes]:
    if not isinstance(signature, dict):
        raise UsageError(f"{where} is not an object with keyid and sig")
    _check_fields({"keyid": "", **signature}, _SIGNATURE_FIELDS, where)
    key_id, data = signature.get("keyid", ""), _decode_field(signature["sig"], f"{where}: sig")
    if not isinstance(key_id, str):
        raise UsageError(f"{where}: keyid is not a text")
    if len(data) != SIGNATURE_BYTES:
        raise UsageError(f"{where}: sig has {len(data)} bytes; an Ed25519 signature has {SIGNATURE_BYTES}")
    return key_id, data


def _check_fields(fields: dict[str, Any], known: set[str], where: str) -> None:
    """Refuse missing and unknown fields: nothing outside the payload is signed."""
    if missing := sorted(known - fields.keys()):
        raise UsageError(f"{where}: {', '.join(missing)} is missing")
    if unknown := sorted(fields.keys() - known):
        raise UsageError(f"{where}: {', '.join(unknown)[:80]} is not a field of an envelope")


def _decode_field(text: object, where: str) -> bytes:
    """Return decoded base64, in the standard or the URL-safe alphabet, as the specification asks."""
    if not isinstance(text, str):
        raise UsageError(f"{where} is not a text")
    standard = text.replace("-", "+").replace("_", "/")
    mixed = standard != text and ("+" in text or "/" in text)
    # Lenient decoders drop unknown characters, so that one signature would have many texts.
    if mixed or not _BASE64.fullmatch(standard) or len(standard) % 4:
        raise UsageError(f"{where} is not base64")
    data = urlsafe_b64decode(standard.replace("+", "-").replace("/", "_"))
    # The last character may have bits that no byte uses; only zeros are the canonical form.
    if b64encode(data).decode() != standard:
        raise UsageError(f"{where} is not base64 in its canonical form")
    return data
