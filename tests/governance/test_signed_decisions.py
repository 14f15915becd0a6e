"""Signatures over decisions: made at once or elsewhere, used once, and verified afterwards."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import LedgerMismatch, NotPermitted, StaleDecision, UsageError
from oncemore.governance.checkpoints import LedgerSigner, make_checkpoint
from oncemore.governance.identity import decide_as
from oncemore.governance.keys import generate_key
from oncemore.governance.ledger_export import export_to_path, verify_export
from oncemore.governance.ledger_verify import verify_ledger
from oncemore.governance.record_checks import check_records
from oncemore.governance.signed_decisions import (
    NAMESPACE,
    DecisionSubject,
    DecisionVerifier,
    KeySigner,
    PresentedSignature,
    StatementPrepared,
    StatementWriter,
    find_decision_faults,
)
from oncemore.governance.ssh_signatures import sign_file_bytes
from oncemore.log.entry_codec import read_body
from tests.governance.sample_log import Attacker
from tests.maintenance.test_encryption import Key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncemore.governance.keys import SigningKey
    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock


@pytest.fixture
def key() -> SigningKey:
    return generate_key()


@pytest.fixture
def signed_store(engine: Engine, key: SigningKey, tmp_path: Path) -> Engine:
    """A store whose only reviewer is the owner of a key; the process itself has no role."""
    engine.roles.assign("uid:999999", "reviewer", reason="a user that this process is not")
    pass_as_first_reviewer(engine, key, tmp_path)
    with decide_as(KeySigner(key)):
        engine.datasets.register("burials", care_label="Sensitive · Council only", reason="first")
    return engine


def pass_as_first_reviewer(engine: Engine, key: SigningKey, folder: Path) -> None:
    """Register a key as the reviewer that the table names would do."""
    from oncemore.governance import identity
    from oncemore.governance.role_model import ProcessUser

    before = identity.read_process_user
    identity.read_process_user = lambda: ProcessUser("uid:999999", 999999)
    try:
        engine.roles.add_key("archivist", key.save_files(folder / "archivist"), "reviewer", reason="signs")
    finally:
        identity.read_process_user = before


def prepare(engine: Engine, key: SigningKey, decide: Callable[[], object]) -> bytes:
    """Return the statement of a decision that is only prepared."""
    with decide_as(StatementWriter(key.public)), pytest.raises(StatementPrepared) as prepared:
        decide()
    return prepared.value.statement


def find_faults(engine: Engine) -> list[str]:
    report = check_records(engine.store, engine.cipher)
    return [finding.text for finding in report.findings if finding.rule == "signature_invalid"]


def test_only_the_key_decides_and_the_signature_is_stored(signed_store: Engine, key: SigningKey) -> None:
    with pytest.raises(NotPermitted, match="has none"):
        signed_store.datasets.block("burials", reason="letter 17")
    with decide_as(KeySigner(key)):
        record = signed_store.datasets.block("burials", reason="letter 17")
    assert record.by == f"archivist (key {key.key_id})"
    entry = list(signed_store.store.read_entries("dataset/burials"))[-1]
    decision = read_body(entry, signed_store.cipher)["decision"]
    signature = decision["signed"]
    assert (signature["entity"], signature["version"]) == ("dataset/burials", 1)
    assert signature["previous"] == entry.prev.hex()
    assert decision["changes"] == {"state": ["OPEN", "BLOCKED"]}
    assert find_faults(signed_store) == []
    assert verify_ledger(signed_store).decisions == 2


def test_an_unregistered_key_and_a_removed_key_decide_nothing(
    signed_store: Engine, key: SigningKey, tmp_path: Path
) -> None:
    other = generate_key()
    with decide_as(KeySigner(other)), pytest.raises(NotPermitted, match="is not registered in this store"):
        signed_store.datasets.block("burials", reason="mine")
    with decide_as(KeySigner(key)):
        signed_store.roles.add_key("second", other.save_files(tmp_path / "b"), "reviewer", reason="deputy")
    with decide_as(KeySigner(other)):
        signed_store.roles.remove_key(key.key_id, reason="the laptop was stolen")
    with decide_as(KeySigner(key)), pytest.raises(NotPermitted, match="is not registered in this store"):
        signed_store.datasets.block("burials", reason="mine")
    # What the removed key has signed while it was registered stays valid.
    assert find_faults(signed_store) == []
    assert verify_ledger(signed_store).decisions == 3


def test_a_decision_is_signed_elsewhere_and_used_once(signed_store: Engine, key: SigningKey) -> None:
    def decide() -> object:
        return signed_store.datasets.block("burials", reason="letter 17")

    statement = prepare(signed_store, key, decide)
    assert signed_store.datasets.get("burials").state == "OPEN"  # type: ignore[union-attr]
    values = json.loads(statement)
    assert values["decision"]["reason"] == "letter 17"
    presented = PresentedSignature(statement, sign_file_bytes(statement, NAMESPACE, key).encode())
    with decide_as(presented):
        with pytest.raises(NotPermitted, match="is over another decision"):
            signed_store.datasets.block("burials", reason="letter 18")
        with pytest.raises(StaleDecision, match=r"is about dataset/burials in version 1"):
            signed_store.switches.on(reason="letter 17")
        decide()
        with decide_as(KeySigner(key)):
            signed_store.datasets.release("burials", reason="settled")
        # A replay: the same file again, after the state that it was made for has passed.
        with pytest.raises(StaleDecision, match="in version 1, and this is dataset/burials in version 3"):
            decide()
    assert find_faults(signed_store) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.replace(b"letter 17", b"letter 18"), "is not a valid signature"),
        (lambda s: s.replace(b'"version":1', b'"version":2'), "is not a valid signature"),
        (lambda s: s + b" ", "is not a valid signature"),
    ],
)
def test_an_altered_statement_is_refused(
    signed_store: Engine, key: SigningKey, change: Any, message: str
) -> None:
    statement = prepare(signed_store, key, lambda: signed_store.datasets.block("burials", reason="letter 17"))
    text = sign_file_bytes(statement, NAMESPACE, key).encode()
    with decide_as(PresentedSignature(change(statement), text)), pytest.raises(NotPermitted, match=message):
        signed_store.datasets.block("burials", reason="letter 17")


def test_forged_signatures_are_refused(signed_store: Engine, key: SigningKey) -> None:
    def decide() -> object:
        return signed_store.datasets.block("burials", reason="letter 17")

    statement, other = prepare(signed_store, key, decide), generate_key()
    forged = {
        # The namespace of policies: a signature that was made for something else.
        "wrong domain": sign_file_bytes(statement, "oncemore-policy", key),
        "another key": sign_file_bytes(statement, NAMESPACE, other),
        "other bytes": sign_file_bytes(b"other", NAMESPACE, key),
    }
    for name, text in forged.items():
        with decide_as(PresentedSignature(statement, text.encode(), name)), pytest.raises(NotPermitted):
            decide()
    with pytest.raises(UsageError, match="is not an SSH signature"):
        PresentedSignature(statement, b"nonsense")
    with pytest.raises(UsageError, match="is not a prepared decision"):
        PresentedSignature(b"{}", sign_file_bytes(b"{}", NAMESPACE, key).encode())
    assert signed_store.datasets.get("burials").state == "OPEN"  # type: ignore[union-attr]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("seconds", [86_401, -301])
def test_a_signature_is_accepted_for_a_day(
    clock: FakeClock, engine: Engine, key: SigningKey, tmp_path: Path, seconds: float
) -> None:
    engine.roles.assign("uid:999999", "reviewer", reason="first")
    pass_as_first_reviewer(engine, key, tmp_path)
    statement = prepare(engine, key, lambda: engine.switches.on(reason="stop"))
    presented = PresentedSignature(statement, sign_file_bytes(statement, NAMESPACE, key).encode())
    clock.advance(seconds)
    with decide_as(presented), pytest.raises(NotPermitted, match="a signature is accepted for a day"):
        engine.switches.on(reason="stop")


def test_a_signature_is_for_one_store(signed_store: Engine, key: SigningKey, tmp_path: Path) -> None:
    statement = prepare(signed_store, key, lambda: signed_store.switches.on(reason="stop"))
    presented = PresentedSignature(statement, sign_file_bytes(statement, NAMESPACE, key).encode())
    (tmp_path / "other").mkdir()
    with oncemore.open("memory:") as other:
        other.roles.assign("uid:999999", "reviewer", reason="first")
        key_file = tmp_path / "other"
        pass_as_first_reviewer(other, key, key_file)
        with decide_as(presented), pytest.raises(NotPermitted, match="is over another decision"):
            other.switches.on(reason="stop")


# Verification afterwards ----------------------------------------------------------------------------


def flip_texts(decision: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the decision with each of its fields changed, the fields of its signature included."""
    for name in decision:
        if name != "signed":
            yield {**decision, name: _alter(decision[name])}
    for name in decision["signed"]:
        altered = {**decision["signed"], name: _alter(decision["signed"][name])}
        yield {**decision, "signed": altered}
    yield {name: part for name, part in decision.items() if name != "signed"}
    yield {**decision, "signed": {}}
    yield {**decision, "signed": "text"}


def _alter(value: Any) -> Any:
    if isinstance(value, int):
        return value + 1
    if isinstance(value, dict):
        return {**value, "licence": ["", "CC0"]}
    return f"{value[:-2]}{'X' if value[-2:-1] != 'X' else 'Y'}{value[-1:]}" if value else "x"


def test_every_altered_field_of_a_signed_decision_is_found(signed_store: Engine, key: SigningKey) -> None:
    with decide_as(KeySigner(key)):
        signed_store.datasets.block("burials", reason="letter 17")
    entries = list(signed_store.store.read_entries())
    last = entries[-1]
    body = read_body(last, signed_store.cipher)
    assert _find_faults_in(entries) == []
    altered = list(flip_texts(body["decision"]))
    assert len(altered) > 14
    for decision in altered:
        forged = last._replace(body=json.dumps({**body, "decision": decision}).encode())
        assert len(_find_faults_in([*entries[:-1], forged])) == 1, decision
    # The same decision again: at another entity, at the next entry, and along with a run's artifact later.
    for copy in (last._replace(entity="dataset/other"), last._replace(version=last.version + 1)):
        assert "was made for dataset/burials entry 2" in _find_faults_in([*entries, copy])[0]
    later = last._replace(entity="artifact/x", header=last.header.replace(b'"at":1', b'"at":2'))
    assert later.header != last.header
    assert "was used before" in _find_faults_in([*entries, later])[0]
    # Without the registration of the key, nothing vouches for it.
    without_key = [entry for entry in entries if entry.entity != "roles/table" or entry.version != 2]
    assert "was not registered" in _find_faults_in(without_key)[0]


def test_the_owner_of_a_key_cannot_sign_for_another_person_store_or_place(
    signed_store: Engine, key: SigningKey, tmp_path: Path
) -> None:
    """Valid signatures of a registered key, over statements that the program would not make."""
    viewer = generate_key()
    with decide_as(KeySigner(key)):
        signed_store.roles.add_key("auditor", viewer.save_files(tmp_path / "v"), "viewer", reason="reads")
        signed_store.datasets.block("burials", reason="letter 17")
    entries = list(signed_store.store.read_entries())
    last = entries[-1]
    decision = read_body(last, signed_store.cipher)["decision"]
    record = decision.pop("signed")
    subject = DecisionSubject(*(record[name] for name in DecisionSubject._fields))
    by_viewer = {**decision, "actor": f"auditor (key {viewer.key_id})"}
    forged = {
        "names lead (key": (key, subject, {**decision, "actor": f"lead (key {key.key_id})"}),
        "for another store": (key, subject._replace(store="other"), decision),
        "who decides nothing": (viewer, subject, by_viewer),
        "is not the one that was signed": (key, subject._replace(previous="00" * 32), decision),
    }
    for text, (signer, about, made) in forged.items():
        signed = KeySigner(signer).sign(about, made, signed_store.now())
        body = json.dumps({"decision": {**made, "signed": signed}}).encode()
        (fault,) = _find_faults_in([*entries[:-1], last._replace(body=body)])
        assert text in fault
    # A body that only mentions a decision, and one of an accepted policy, have nothing to check.
    for body in (b'{"remark": {"decision": 1}}', b'{"decision": {"action": "accept", "signature": "x"}}'):
        assert _find_faults_in([*entries[:-1], last._replace(body=body)]) == []


def test_decisions_in_a_sealed_log_are_checked_with_the_codec(tmp_path: Path, key: SigningKey) -> None:
    codec = Key("one")
    with oncemore.open(tmp_path / "log.db", codec=codec) as engine:
        engine.roles.assign("uid:999999", "reviewer", reason="first")
        pass_as_first_reviewer(engine, key, tmp_path)
        with decide_as(KeySigner(key)):
            engine.switches.on(reason="stop")
        assert verify_ledger(engine).decisions == 1
        # Without the codec, or with another one, a body cannot be read; its hash is checked all the same.
        assert find_decision_faults(engine.store, None) == []
        other = oncemore.open("memory:", codec=Key("other")).cipher
        assert find_decision_faults(engine.store, other) == []


def _find_faults_in(entries: list[Any]) -> list[str]:
    verifier = DecisionVerifier()
    return [fault.text for entry in entries for fault in verifier.check_entry(entry)]


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_verify_and_the_export_find_a_rewritten_decision(
    signed_store: Engine, key: SigningKey, signer: LedgerSigner, tmp_path: Path
) -> None:
    """A writer of the store gives an entry another decision and computes all hashes again."""
    with decide_as(KeySigner(key)):
        signed_store.switches.on(reason="stop")
    signed_store.close()
    rewrite_last_switch(tmp_path / "log.db")
    with oncemore.open(tmp_path / "log.db") as rewritten:
        rewritten.verify()
        with pytest.raises(
            LedgerMismatch, match="the decision in entry 1 of control/switches is not genuine"
        ):
            verify_ledger(rewritten)
        make_checkpoint(rewritten, signer)
        export_to_path(rewritten, tmp_path / "export.jsonl")
        with (tmp_path / "export.jsonl").open("rb") as file, pytest.raises(LedgerMismatch, match="genuine"):
            verify_export(file, [signer.key.public])


def rewrite_last_switch(path: Path) -> None:
    """Replace the reason of the last switch, and compute all hashes again."""
    attacker = Attacker(path)
    rows = attacker.read_rows()
    (row,) = (row for row in rows if row["entity"] == "control/switches")
    row["body"] = bytes(row["body"]).replace(b'"reason":"stop"', b'"reason":"Stop"')
    attacker.rewrite(rows, rehash=True)


# The command line -----------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_decision_is_prepared_signed_by_ssh_keygen_and_made(tmp_path: Path, key: SigningKey) -> None:
    """Real processes, from the key to the verification; the signer needs no oncemore."""
    log = tmp_path / "log.db"
    with oncemore.open(log) as engine:
        engine.roles.assign("uid:999999", "reviewer", reason="a user that this process is not")
        pass_as_first_reviewer(engine, key, tmp_path)

    def run(*args: str, fails: bool = False) -> str:
        line = [sys.executable, "-m", "oncemore", *args, "--store", str(log)]
        done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode != 0) == fails, done.stderr
        return done.stdout + done.stderr

    register = ("control", "dataset", "register", "survey", "--set", "care_label=Public", "--reason", "first")
    assert "needs the role" in run(*register, fails=True)
    shown = run(*register, "--sign-with", "archivist.pub", "--prepare", "decision.json")
    assert "ssh-keygen -Y sign -f KEY -n oncemore-decision decision.json" in shown
    assert "Nothing was decided" in shown
    sign = ["ssh-keygen", "-Y", "sign", "-f", "archivist", "-n", NAMESPACE, "decision.json"]
    subprocess.run(sign, check=True, capture_output=True, cwd=tmp_path)
    run(*register, "--signed", "decision.json")
    assert "archivist (key SHA256:" in run("control", "dataset", "show", "survey")
    run("control", "dataset", "block", "survey", "--reason", "letter 17", "--sign-with", "archivist")
    assert "2 signed decisions are genuine" in run("ledger", "verify")
    assert "no findings" in run("check", "records")
    token = run(
        "control", "roles", "token", "create", "duty", "--role", "operator", "--expires", "8h",
        "--reason", "dashboard",        "--sign-with", "archivist",
    ).split()[0]  # fmt: skip
    (tmp_path / "token").write_text(token + "\n", encoding="utf-8")
    stop = ("control", "switch", "on", "--reason", "stop", "--token-file", "token")
    run(*stop)
    assert "duty (token " in run("control", "switch", fails=True)
    listed = run("control", "roles")
    assert "operator  token  duty" in listed
    assert "reviewer  key    archivist" in listed
    assert token not in listed
    token_id = token.split("_")[1]
    run("control", "roles", "token", "revoke", token_id, "--reason", "left", "--sign-with", "archivist")
    assert "not known here" in run(
        "control", "switch", "off", "--reason", "go", "--token-file", "token", fails=True
    )
    assert "Give one of --sign-with" in run(*stop, "--sign-with", "archivist", fails=True)
    assert "This store has no tokens." in run("control", "roles", "token", "list")
    key_id = key.key_id
    refused = run("control", "roles", "key", "remove", key_id, "--reason", "x", "--sign-with", "archivist")
    assert f"{key_id} signs no further decision" in refused
