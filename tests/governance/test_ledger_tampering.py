"""Every change of a log by an attacker who can write the store and has no key is found.

Each test says whether the checkpoints inside the log are enough, or one from outside is needed.
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import LedgerMismatch, StoreError
from oncemore.governance.checkpoints import LedgerSigner, load_ledger_head, make_checkpoint
from oncemore.governance.keys import generate_key
from oncemore.governance.ledger_verify import verify_ledger
from oncemore.governance.log_order import LEDGER_ENTITY
from oncemore.governance.signed_note import parse_note, sign_checkpoint
from oncemore.log.entry_codec import decode_header
from tests.governance.sample_log import COLUMNS, Attacker, book, fill_log, flip_value, link_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncemore.governance.ledger_verify import LedgerReport


class Evidence:
    """A filled log, and the checkpoint that the auditor kept."""

    def __init__(self, path: Path, signer: LedgerSigner) -> None:
        self.path, self.signer, self.keys = path, signer, [signer.key.public]
        with oncemore.open(path) as engine:
            self.old_note, self.note = fill_log(engine, signer)
        self.covered = parse_note(self.note)[0].size
        self.attacker = Attacker(path)

    def verify(self, *, outside: bool = False) -> LedgerReport:
        with oncemore.open(self.path, restored_copy="trust") as engine:
            return verify_ledger(engine, self.keys, [("kept.checkpoint", self.note)] if outside else [])

    def is_detected(self, *, outside: bool = False) -> bool:
        try:
            self.verify(outside=outside)
        except StoreError:
            return True
        return False


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return Evidence(tmp_path_factory.mktemp("filled") / "log.db", LedgerSigner(generate_key()))


@pytest.fixture
def evidence(filled: Evidence, tmp_path: Path) -> Evidence:
    """A private copy of the filled log."""
    copied = object.__new__(Evidence)
    vars(copied).update(vars(filled), path=tmp_path / "log.db")
    for file in filled.path.parent.glob("log.db*"):
        if file.is_file():
            shutil.copy(file, tmp_path / file.name)
    copied.attacker = Attacker(copied.path)
    return copied


def test_the_untouched_log_passes(evidence: Evidence) -> None:
    report = evidence.verify(outside=True)
    assert report.checkpoints == 3
    assert report.outside == 1
    assert report.covered == evidence.covered
    assert len({row["entity"].partition("/")[0] for row in evidence.attacker.read_rows()}) >= 6


@pytest.mark.req("AUDIT-14")
@pytest.mark.parametrize("column", COLUMNS)
def test_a_flipped_field_of_any_entry_is_found(evidence: Evidence, column: str) -> None:
    """For each entry: also those after the last checkpoint, whose chains show it."""
    rows = evidence.attacker.read_rows()
    undetected = []
    with evidence.attacker.connect() as connection, oncemore.open(evidence.path) as engine:
        for row in rows:
            if column == "digest" and row["body"] is None and row["digest"] is None:
                continue
            changed = flip_value(row[column])
            update = f"UPDATE log SET {column}=? WHERE seq=?"  # noqa: S608
            connection.execute(update, (changed, row["seq"]))
            try:
                verify_ledger(engine, evidence.keys)
                undetected.append((row["seq"], row["entity"]))
            except StoreError:
                pass  # at that entry, or at one that the change has moved or unlinked
            current = changed if column == "seq" else row["seq"]
            connection.execute(update, (row[column], current))
        verify_ledger(engine, evidence.keys)
    assert undetected == []
    assert len(rows) > 15


def test_a_deleted_entry_is_found(evidence: Evidence) -> None:
    undetected = []
    for row in evidence.attacker.read_rows():
        rows = [other for other in evidence.attacker.read_rows() if other["seq"] != row["seq"]]
        with evidence.attacker.connect() as connection, oncemore.open(evidence.path) as engine:
            connection.execute("DELETE FROM log WHERE seq=?", (row["seq"],))
            try:
                verify_ledger(engine, evidence.keys)
                undetected.append(row["seq"])
            except StoreError:
                pass
            values = [row[name] for name in COLUMNS]
            connection.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        assert len(rows) > 15
    assert undetected == []


def test_a_duplicated_entry_is_found(evidence: Evidence) -> None:
    undetected = []
    with evidence.attacker.connect() as connection, oncemore.open(evidence.path) as engine:
        for row in evidence.attacker.read_rows():
            values = [None, *(row[name] for name in COLUMNS[1:])]
            connection.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
            try:
                verify_ledger(engine, evidence.keys)
                undetected.append(row["seq"])
            except StoreError:
                pass
            connection.execute("DELETE FROM log WHERE seq=?", (connection.last_insert_rowid(),))
        verify_ledger(engine, evidence.keys)
    assert undetected == []


def test_exchanged_entries_of_different_entities_are_found(evidence: Evidence) -> None:
    """With pointers and heads that fit: only the order has changed, and no chain shows it."""
    rows = evidence.attacker.read_rows()
    tried = 0
    for at in range(evidence.covered - 1):
        first, second = rows[at], rows[at + 1]
        if first["entity"] == second["entity"]:
            continue
        tried += 1
        if tried % 4 != 1:  # each costs a rewritten file; a quarter of the pairs covers all kinds
            continue
        exchanged = [*rows[:at], second, first, *rows[at + 2 :]]
        evidence.attacker.rewrite(exchanged)
        with pytest.raises(LedgerMismatch, match="reordered"):
            evidence.verify()
    evidence.attacker.rewrite(rows)
    evidence.verify(outside=True)
    assert tried >= 10


def delete_entity(attacker: Attacker) -> None:
    rows = attacker.read_rows()
    entity = f"run/{book.key('d')}"
    attacker.rewrite([row for row in rows if row["entity"] != entity])


def edit_and_rehash(attacker: Attacker) -> None:
    """Change a result and compute all hashes of its chain anew, as the product would."""
    rows = attacker.read_rows()
    for row in rows:
        if row["body"] is not None and b"booked d" in row["body"]:
            row["body"] = row["body"].replace(b"booked d", b"booked x")
    attacker.rewrite(rows, rehash=True)


def splice_other_log(attacker: Attacker) -> None:
    """Insert a run of another honest log, with its correct chain."""
    other = attacker.path.with_name("other.db")
    with oncemore.open(other):
        book("from elsewhere")
    foreign = [row for row in Attacker(other).read_rows() if row["entity"].startswith("run/")]
    rows = attacker.read_rows()
    attacker.rewrite([*rows[:6], *foreign, *rows[6:]])


def cut_tail_after_checkpoint(attacker: Attacker) -> None:
    """Cut the end of the covered entries, and keep the last checkpoint."""
    rows = attacker.read_rows()
    last = max(at for at, row in enumerate(rows) if row["entity"] == LEDGER_ENTITY)
    run = f"run/{book.key('d')}"
    attacker.rewrite([row for at, row in enumerate(rows) if at == last or row["entity"] != run])


#: Changes that the checkpoints inside of the log show.
INSIDE = [delete_entity, edit_and_rehash, splice_other_log, cut_tail_after_checkpoint]


@pytest.mark.parametrize("change", INSIDE)
def test_a_rewritten_log_is_found_by_its_own_checkpoints(
    evidence: Evidence, change: Callable[[Attacker], None]
) -> None:
    change(evidence.attacker)
    with oncemore.open(evidence.path) as engine:
        engine.verify()  # the chains and the heads fit: the attacker was careful
    assert evidence.is_detected()
    assert evidence.is_detected(outside=True)


def cut_tail_with_checkpoint(attacker: Attacker) -> None:
    """Go back to the state of the checkpoint before, with that checkpoint as the last one."""
    rows = attacker.read_rows()
    checkpoints = [at for at, row in enumerate(rows) if row["entity"] == LEDGER_ENTITY]
    attacker.rewrite(rows[: checkpoints[-2] + 1])


def delete_all_checkpoints(attacker: Attacker) -> None:
    """Delete the checkpoints, and rewrite history as if there had never been one."""
    rows = [row for row in attacker.read_rows() if row["entity"] != LEDGER_ENTITY]
    for row in rows:
        if row["body"] is not None:
            row["body"] = row["body"].replace(b"booked d", b"booked x")
    attacker.rewrite(rows, rehash=True)


def replace_log(attacker: Attacker) -> None:
    """Put another log, with checkpoints of an attacker's key, in place of the log."""
    for file in attacker.path.parent.glob("log.db*"):
        if file.is_file():
            file.unlink()
    shutil.rmtree(attacker.path.parent / "artifacts", ignore_errors=True)
    with oncemore.open(attacker.path) as engine:
        fill_log(engine, LedgerSigner(generate_key()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut_tail_with_checkpoint, "its end was cut"),
        (delete_all_checkpoints, "this log has no checkpoint"),
        (replace_log, "not signed by a known key|belongs to the log"),
    ],
)
def test_what_only_a_checkpoint_from_outside_shows(
    evidence: Evidence, change: Callable[[Attacker], None], message: str
) -> None:
    change(evidence.attacker)
    if change is not replace_log:  # its checkpoints have another signature, which the public key shows
        evidence.verify()
    with pytest.raises(LedgerMismatch, match=message):
        evidence.verify(outside=True)


def test_an_older_copy_of_the_database_is_found_only_from_outside(
    tmp_path: Path, signer: LedgerSigner
) -> None:
    path = tmp_path / "log.db"
    with oncemore.open(path) as engine:
        fill_log(engine, signer)
        engine.backup(tmp_path / "backup.db")
        book("after the backup")
        note = make_checkpoint(engine, signer).note
    for file in tmp_path.glob("log.db*"):
        if file.is_file():
            file.unlink()
    shutil.move(tmp_path / "backup.db", path)
    with oncemore.open(path, restored_copy="trust") as engine:
        verify_ledger(engine, [signer.key.public])
        with pytest.raises(LedgerMismatch, match="older copy"):
            verify_ledger(engine, [signer.key.public], [("kept", note)])
        with pytest.raises(LedgerMismatch, match="older copy"):
            verify_ledger(engine, [signer.key.public], place=signer.place)
        # The next checkpoint finds it too, and signs nothing.
        before = load_ledger_head(engine).version
        with pytest.raises(LedgerMismatch, match="Nothing was signed"):
            make_checkpoint(engine, signer)
        assert load_ledger_head(engine).version == before


@contextmanager
def replaced_checkpoint(evidence: Evidence, change: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Change the fields of the last checkpoint, with hashes that fit."""
    from msgspec.json import encode

    rows = evidence.attacker.read_rows()
    row = [row for row in rows if row["entity"] == LEDGER_ENTITY][-1]
    header = decode_header(row["header"])
    change(header.sets)
    row["header"] = encode(header)
    evidence.attacker.rewrite(rows, rehash=True)
    yield


def test_a_replaced_checkpoint_is_found(evidence: Evidence) -> None:
    last = parse_note(evidence.note)[0]

    def sign_with_own_key(fields: dict[str, Any]) -> None:
        fields["note"] = sign_checkpoint(last, generate_key())

    def repeat_old_note(fields: dict[str, Any]) -> None:
        fields["note"] = evidence.old_note

    def claim_other_size(fields: dict[str, Any]) -> None:
        fields["size"] -= 1

    def claim_other_seq(fields: dict[str, Any]) -> None:
        fields["last_seq"] += 1

    for change in (sign_with_own_key, repeat_old_note, claim_other_size, claim_other_seq):
        rows = evidence.attacker.read_rows()
        with replaced_checkpoint(evidence, change):
            assert evidence.is_detected(), change.__name__
        evidence.attacker.rewrite(rows)
        evidence.verify(outside=True)


def test_a_changed_tree_in_the_last_checkpoint_signs_nothing(evidence: Evidence) -> None:
    """The next checkpoint continues the stored tree, which its signature binds."""

    def change_tree(fields: dict[str, Any]) -> None:
        fields["subtree_roots"] = " ".join(["A" * 43 + "="] * fields["size"].bit_count())

    def damage_tree(fields: dict[str, Any]) -> None:
        fields["subtree_roots"] = "AAAA"

    for change in (change_tree, damage_tree):
        rows = evidence.attacker.read_rows()
        with replaced_checkpoint(evidence, change), oncemore.open(evidence.path) as engine:
            book("new work")
            with pytest.raises(LedgerMismatch, match="Nothing was signed"):
                make_checkpoint(engine, evidence.signer)
        evidence.attacker.rewrite(rows)


def test_the_end_after_the_last_checkpoint_is_protected_by_its_chains_alone(evidence: Evidence) -> None:
    """The limit that the documentation states: who rewrites new entries with their hashes is not found."""
    with oncemore.open(evidence.path):
        book("not covered yet")
    rows = evidence.attacker.read_rows()
    for row in rows:
        if row["body"] is not None:
            row["body"] = row["body"].replace(b"booked not", b"booked all")
    evidence.attacker.rewrite(rows, rehash=True)
    assert not evidence.is_detected(outside=True)
    assert list(link_rows(rows, rehash=False))
