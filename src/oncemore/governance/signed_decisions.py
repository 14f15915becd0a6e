"""Decisions with a signature: the signed bytes, and how a signature is made, presented and verified.

The signed bytes are canonical JSON (RFC 8785) with all that the decision says and all that it is about:

    type      oncemore-decision-v1
    store     the random name of the store
    entity    the entity that is decided about, with the version and the hash of its last entry: so the
              signature is valid for the state that the person has seen, and for one entry
    decision  action, reason, actor, and the details of the action
    at        the time of the signature
    nonce     random, so that two signatures are never over the same bytes

A signature is an SSH signature over these bytes, namespace `oncemore-decision`. It is made with a key file at
the time of the decision, or elsewhere: the statement is written to a file, signed by `ssh-keygen -Y sign`,
and presented with the decision. It is stored with the decision; `find_decision_faults` checks it afterwards
with the key that was registered when the decision was made.

A signature cannot be used a second time: after the decision, the entity has another version. It is accepted
for a day only, so that a store that is restored from a backup does not accept old ones.
"""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import LedgerMismatch, NotPermitted, StaleDecision, UsageError
from oncemore.governance.keys import parse_verify_key
from oncemore.governance.role_model import KEY, OPERATOR, ROLES_ENTITY, Identity, RoleRecord, is_permitted
from oncemore.governance.ssh_signatures import parse_ssh_signature, sign_file_bytes
from oncemore.log.entry_codec import decode_header, read_body
from oncemore.log.record import apply_header
from oncemore.policy.canonical_json import encode_canonical

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oncemore.governance.keys import SigningKey, VerifyKey
    from oncemore.log.encryption import BodyCipher
    from oncemore.log.record import LoadedHead
    from oncemore.log.store import Entry, Store

NAMESPACE = "oncemore-decision"
STATEMENT_TYPE = "oncemore-decision-v1"
#: How long a signature is accepted after it was made, and how far a signer's clock may be ahead.
MAX_AGE_S, MAX_AHEAD_S = 86_400.0, 300.0
#: Why a signature is refused: it is not valid, not for this decision, or too old.
SIGNATURE_REFUSED = "signature_refused"
_RELEASED_WITH_A_RUN = ("artifact", "resource")


class DecisionSubject(Value):
    """What a decision is about: an entity with the version and the hash of its last entry."""

    store: str
    entity: str
    version: int
    previous: str


class DecisionFault(Value):
    """A decision in the log whose signature is not valid: its entry, and what is wrong."""

    entity: str
    version: int
    text: str


# Statements -----------------------------------------------------------------------------------------


def make_subject(roles: RoleRecord, head: LoadedHead) -> DecisionSubject:
    """Return the subject of a decision about the current state of an entity."""
    return DecisionSubject(roles.store_id, head.entity, head.version, head.hash.hex())


def build_statement(subject: DecisionSubject, decision: Mapping[str, Any], at: str, nonce: str) -> bytes:
    """Return the bytes that a signature covers."""
    statement = {"type": STATEMENT_TYPE, **subject._asdict(), "decision": dict(decision)}
    # Through JSON, so that the bytes are those that follow from the stored decision.
    return encode_canonical(json.loads(json.dumps({**statement, "at": at, "nonce": nonce})))


def identify_key(roles: RoleRecord, key: VerifyKey) -> Identity:
    """Return the identity of a key; raise `NotPermitted` if the store does not list it."""
    known = roles.keys.get(key.key_id)
    if known is None:
        raise NotPermitted(
            f"the key {key.key_id} is not registered in this store; a reviewer registers it "
            "(oncemore control roles key add)",
            SIGNATURE_REFUSED,
        )
    return Identity(KEY, known["name"], f"key {key.key_id}", known["role"])


# Ways to sign ---------------------------------------------------------------------------------------


class KeySigner:
    """Signs decisions with a private key at the time of the decision."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key

    def identify(self, roles: RoleRecord, now: float) -> Identity:
        """Return the identity of the key."""
        return identify_key(roles, self._key.public)

    def sign(self, subject: DecisionSubject, decision: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Return the record of a signature over a decision."""
        at, nonce = _format_time(now), secrets.token_hex(16)
        statement = build_statement(subject, decision, at, nonce)
        text = sign_file_bytes(statement, NAMESPACE, self._key)
        return _make_record(subject, at, nonce, text)


class StatementPrepared(Exception):
    """Raised instead of a decision that is only prepared: `statement` has the bytes to sign."""

    def __init__(self, statement: bytes) -> None:
        super().__init__("the decision was prepared, and nothing was decided")
        self.statement = statement


class StatementWriter:
    """Prepares the statement of a decision for a signature elsewhere; nothing is decided.

    key  the public key that will sign
    """

    def __init__(self, key: VerifyKey) -> None:
        self._key = key

    def identify(self, roles: RoleRecord, now: float) -> Identity:
        """Return the identity of the key."""
        return identify_key(roles, self._key)

    def sign(self, subject: DecisionSubject, decision: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Raise `StatementPrepared` with the statement."""
        raise StatementPrepared(build_statement(subject, decision, _format_time(now), secrets.token_hex(16)))


class PresentedSignature:
    """A signature that was made elsewhere, over a prepared statement.

    statement  the prepared bytes
    signature  the armoured text of `ssh-keygen -Y sign -n oncemore-decision`
    where      the file of the signature, for messages
    """

    def __init__(self, statement: bytes, signature: bytes, where: str = "the signature") -> None:
        self._statement, self._text, self._where = statement, signature, where
        self._parsed = parse_ssh_signature(signature, where)
        try:
            self._values = json.loads(statement)
            self._at = datetime.fromisoformat(self._values["at"]).timestamp()
            self.entity = str(self._values["entity"])
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{where}: the signed file is not a prepared decision") from None

    def identify(self, roles: RoleRecord, now: float) -> Identity:
        """Return the identity of the key; raise `NotPermitted` if the signature is not valid, or too old."""
        if not self._parsed.is_valid(self._statement, NAMESPACE):
            raise NotPermitted(
                f"{self._where} is not a valid signature over the prepared decision", SIGNATURE_REFUSED
            )
        if not now - MAX_AGE_S <= self._at <= now + MAX_AHEAD_S:
            raise NotPermitted(
                f"{self._where} is of {self._values['at']}; a signature is accepted for a day. Prepare the "
                "decision again",
                SIGNATURE_REFUSED,
            )
        return identify_key(roles, self._parsed.key)

    def sign(self, subject: DecisionSubject, decision: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Return the record of the signature; raise if it is for another decision, or another state."""
        at, nonce = self._values["at"], self._values.get("nonce", "")
        if build_statement(subject, decision, at, nonce) != self._statement:
            signed = self._values
            if (signed.get("entity"), signed.get("version")) != (subject.entity, subject.version):
                raise StaleDecision(
                    f"nothing was decided: {self._where} is about {signed.get('entity')} in version "
                    f"{signed.get('version')}, and this is {subject.entity} in version {subject.version}"
                )
            raise NotPermitted(
                f"{self._where} is over another decision about {subject.entity}: action, reason and all "
                "options must be those of the prepared one",
                SIGNATURE_REFUSED,
            )
        return _make_record(subject, at, nonce, self._text.decode("ascii"))


def _make_record(subject: DecisionSubject, at: str, nonce: str, text: str) -> dict[str, Any]:
    return {**subject._asdict(), "at": at, "nonce": nonce, "ssh_signature": text}


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


# Verification ---------------------------------------------------------------------------------------


class DecisionVerifier:
    """Checks the signatures of decisions while the entries of a log are read in order."""

    def __init__(self, cipher: BodyCipher | None = None) -> None:
        self._cipher = cipher
        self._roles: RoleRecord | None = None
        #: The nonces of signatures, with the entry that each was made for, and its time.
        self._used: dict[str, tuple[str, int, float]] = {}
        self.checked = 0

    def check_entry(self, entry: Entry) -> Iterator[DecisionFault]:
        """Yield the faults of an entry."""
        before = self._roles
        # The words are searched before anything is decoded: most entries are not decisions.
        has_decision = entry.body is not None and (b'"decision"' in entry.body or self._cipher is not None)
        if entry.entity != ROLES_ENTITY and not has_decision:
            return
        header = decode_header(entry.header)
        if entry.entity == ROLES_ENTITY:
            self._roles = apply_header(before, header.sets, RoleRecord)
        # Without a role no decision was signed; an erased body has no decision any more.
        if before is None or entry.body is None:
            return
        decision = self._read_decision(entry)
        if not decision:
            return
        fault = self._find_fault(entry, before, decision, header.at)
        if fault:
            yield DecisionFault(entry.entity, entry.version, fault)

    def _read_decision(self, entry: Entry) -> dict[str, Any]:
        try:
            body = read_body(entry, self._cipher)
        except UsageError:
            # Encrypted, and the key is not here.
            return {}
        decision = body.get("decision")
        return decision if isinstance(decision, dict) else {}

    def _find_fault(self, entry: Entry, roles: RoleRecord, decision: dict[str, Any], at: float) -> str:
        signature = decision.get("signed")
        actor = str(decision.get("actor", ""))
        if signature is None:
            return f"{actor} is a key, and its signature is missing" if " (key SHA256:" in actor else ""
        self.checked += 1
        unsigned = {name: value for name, value in decision.items() if name != "signed"}
        try:
            subject = DecisionSubject(*(signature[name] for name in DecisionSubject._fields))
            statement = build_statement(subject, unsigned, signature["at"], signature["nonce"])
            text = signature["ssh_signature"].encode("ascii")
            parsed = parse_ssh_signature(text, "the signature")
        except (UsageError, KeyError, TypeError, ValueError, AttributeError):
            return "the record of its signature is damaged"
        known = roles.keys.get(parsed.key.key_id)
        if known is None or parse_verify_key(known["key"], "the table").raw != parsed.key.raw:
            return f"the key {parsed.key.key_id} was not registered when it was made"
        if not parsed.is_valid(statement, NAMESPACE):
            return f"its signature by {known['name']} is not valid"
        if not actor.startswith(f"{known['name']} (key {parsed.key.key_id})"):
            return f"it is signed by {known['name']}, and names {actor}"
        if subject.store != roles.store_id:
            return "it was signed for another store"
        if not is_permitted(known["role"], OPERATOR):
            return f"{known['name']} was {known['role']}, who decides nothing"
        return self._find_misuse(entry, subject, unsigned, (signature["nonce"], at))

    def _find_misuse(
        self, entry: Entry, subject: DecisionSubject, decision: dict[str, Any], use: tuple[str, float]
    ) -> str:
        """Return the fault of a signature that stands at another entry than it was made for.

        use  the nonce of the signature, and the time of the entry
        """
        place = (subject.entity, subject.version + 1)
        is_own = (entry.entity, entry.version) == place
        if is_own and subject.previous != entry.prev.hex():
            return "the entry before it is not the one that was signed"
        # Entries of the same batch carry the decision too: the run that an approval names, and the artifacts
        # and resources that are released with a run. They have the same time.
        goes_along = (
            entry.entity in decision.values() or entry.entity.partition("/")[0] in _RELEASED_WITH_A_RUN
        )
        if not (is_own or goes_along):
            return f"its signature was made for {place[0]} entry {place[1]}"
        nonce, at = use
        if self._used.setdefault(nonce, (*place, at)) != (*place, at):
            return "its signature was used before"
        return ""


def describe_fault(fault: DecisionFault) -> str:
    """Return a fault as one sentence."""
    return f"the decision in entry {fault.version} of {fault.entity} is not genuine: {fault.text}"


def count_signed_decisions(store: Store, cipher: BodyCipher | None = None) -> int:
    """Return the number of signed decisions of a store; raise `LedgerMismatch` if one is not genuine."""
    if store.load_head(ROLES_ENTITY) is None:
        return 0
    verifier = DecisionVerifier(cipher)
    for entry in store.read_entries():
        for fault in verifier.check_entry(entry):
            raise LedgerMismatch(describe_fault(fault))
    return verifier.checked


def find_decision_faults(store: Store, cipher: BodyCipher | None = None) -> list[DecisionFault]:
    """Return the faults of all signed decisions of a store; a store without roles has none."""
    # Most stores have no roles, and one read shows that.
    if store.load_head(ROLES_ENTITY) is None:
        return []
    verifier = DecisionVerifier(cipher)
    return [fault for entry in store.read_entries() for fault in verifier.check_entry(entry)]
