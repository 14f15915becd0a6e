"""Checkpoints: growth, prunes, moved logs, second places, crashes, replaced keys, exports and proofs."""

from __future__ import annotations

import io
import json
import os
import random
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import oncemore
from oncemore.errors import InProgress, LedgerMismatch, UsageError
from oncemore.governance import checkpoints, ledger_export, log_order
from oncemore.governance.checkpoint_copies import FolderPlace, open_place, read_all_notes
from oncemore.governance.checkpoints import (
    LedgerSigner,
    load_signer,
    make_checkpoint,
    read_checkpoints,
    restore_tree,
)
from oncemore.governance.identity import Decider
from oncemore.governance.keys import generate_key
from oncemore.governance.ledger_export import export_ledger, export_to_path, verify_export
from oncemore.governance.ledger_proofs import (
    prove_entry,
    prove_growth,
    verify_entry_proof,
    verify_growth_proof,
)
from oncemore.governance.ledger_verify import verify_ledger
from oncemore.governance.log_order import LEDGER_ENTITY, load_order
from oncemore.governance.merkle import compute_root, hash_leaf
from oncemore.governance.signed_note import parse_note
from oncemore.maintenance import copy, prune
from oncemore.maintenance.tasks import MaintenanceTask
from tests.governance.sample_log import announce, book, fill_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock

DAY = 86_400.0


def verify(engine: Engine, signer: LedgerSigner, *notes: str) -> Any:
    against = [(f"kept {number}", note) for number, note in enumerate(notes)]
    return verify_ledger(engine, [signer.key.public], against, signer.place)


def export_bytes(engine: Engine, **options: Any) -> bytes:
    file = io.BytesIO()
    export_ledger(engine, file, **options)
    return file.getvalue()


# Growth -----------------------------------------------------------------------------------------------


def test_a_checkpoint_extends_the_last_one_and_equals_the_full_computation(
    engine: Engine, signer: LedgerSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    read_in_order = log_order.read_in_order

    def count_start(store: Any, order: Any, position: int = 0, after_seq: int = 0) -> Any:
        read.append(position)
        return read_in_order(store, order, position, after_seq)

    monkeypatch.setattr(checkpoints, "read_in_order", count_start)
    for round_number in range(6):
        for number in range(round_number):
            book(f"{round_number}-{number}")
        report = make_checkpoint(engine, signer)
        made = report.checkpoint
        hashes = [hash_leaf(entry.hash) for entry in engine.store.read_entries()]
        assert made.root == compute_root(hashes[: made.size])
    sizes = [record.size for record in read_checkpoints(engine)]
    # Each begins where the one before it ended: nothing is read twice.
    assert [position for position in read if position] == [size for size in sizes[1:-1] if size in read]
    assert restore_tree(list(read_checkpoints(engine))[-1]).compute_root() == made.root
    assert verify(engine, signer).checkpoints == len(sizes)


def test_a_log_without_new_entries_gets_no_new_checkpoint(engine: Engine, signer: LedgerSigner) -> None:
    book("a")
    first = make_checkpoint(engine, signer)
    second = make_checkpoint(engine, signer)
    assert (first.is_new, second.is_new) == (True, False)
    assert first.note == second.note
    assert second.copied == signer.place.url


def test_an_altered_new_entry_is_not_signed(engine: Engine, signer: LedgerSigner, tmp_path: Path) -> None:
    if engine.url == "memory:":
        pytest.skip("the entries of a store in memory cannot be altered")
    from tests.governance.sample_log import Attacker

    make_checkpoint(engine, signer)
    book("a")
    with Attacker(tmp_path / "log.db").connect() as connection:
        connection.execute("UPDATE log SET header = header || ' ' WHERE entity LIKE 'run/%'")
    with pytest.raises(LedgerMismatch, match=r"its hash does not fit\. Nothing was signed"):
        make_checkpoint(engine, signer)


def test_deleted_entries_are_found_by_the_next_checkpoint(tmp_path: Path, signer: LedgerSigner) -> None:
    from tests.governance.sample_log import Attacker

    with oncemore.open(tmp_path / "log.db") as engine:
        book("a")
        make_checkpoint(engine, signer)
    other = LedgerSigner(generate_key())
    attacker = Attacker(tmp_path / "log.db")
    rows = [row for row in attacker.read_rows() if not row["entity"].startswith("run/")]
    attacker.rewrite(rows)
    # A new key does not trust the stored tree: it computes the whole.
    with (
        oncemore.open(tmp_path / "log.db") as engine,
        pytest.raises(LedgerMismatch, match="Nothing was signed"),
    ):
        make_checkpoint(engine, other)


def test_a_replaced_key_continues_the_log_and_both_keys_verify_it(engine: Engine, tmp_path: Path) -> None:
    old, new = LedgerSigner(generate_key()), LedgerSigner(generate_key())
    book("a")
    make_checkpoint(engine, old)
    book("b")
    make_checkpoint(engine, new)
    book("c")
    make_checkpoint(engine, new)
    both = [old.key.public, new.key.public]
    assert verify_ledger(engine, both).checkpoints == 4
    with pytest.raises(LedgerMismatch, match="not signed by a known key"):
        verify_ledger(engine, [new.key.public])
    assert verify_export(io.BytesIO(export_bytes(engine)), both).checkpoints == 4


def test_without_keys_signatures_are_not_checked_and_nothing_from_outside_is_compared(
    engine: Engine, signer: LedgerSigner
) -> None:
    book("a")
    note = make_checkpoint(engine, signer).note
    assert verify_ledger(engine).key_ids == ()
    with pytest.raises(UsageError, match="give the public key"):
        verify_ledger(engine, against=[("kept", note)])
    with pytest.raises(UsageError, match="give the public key"):
        verify_export(io.BytesIO(b""), [])


def test_a_log_without_checkpoints_verifies_by_its_chains(engine: Engine) -> None:
    book("a")
    report = verify_ledger(engine)
    assert (report.checkpoints, report.origin, report.covered) == (0, "", 0)
    assert report.uncovered == report.entries
    with pytest.raises(UsageError, match="has no checkpoint"):
        export_bytes(engine)
    with pytest.raises(UsageError, match="has no checkpoint"):
        prove_entry(engine, "1")


def test_a_cut_log_and_a_forged_copy_are_named(tmp_path: Path, signer: LedgerSigner) -> None:
    from tests.governance.sample_log import Attacker

    with oncemore.open(tmp_path / "log.db") as engine:
        _, note = fill_log(engine, signer)
        forged = note.replace("\nseq ", "\nseq 1")
        with pytest.raises(LedgerMismatch, match=r"kept 0: .* was altered"):
            verify(engine, signer, forged)
    attacker = Attacker(tmp_path / "log.db")
    attacker.rewrite([row for row in attacker.read_rows() if row["entity"] == LEDGER_ENTITY])
    with (
        oncemore.open(tmp_path / "log.db") as engine,
        pytest.raises(LedgerMismatch, match=r"and the log has 3: entries were deleted\. Nothing was signed"),
    ):
        make_checkpoint(engine, LedgerSigner(generate_key()))


# Prunes and moves -------------------------------------------------------------------------------------


def prune_everything(engine: Engine, clock: FakeClock) -> Any:
    clock.advance(2 * DAY)
    engine.prune(older_than=3600, reason="old", by="an operator")
    clock.advance(3 * DAY)
    return engine.prune(older_than=3600, forget_keys_after=DAY, reason="forget", by="an operator")


def test_forgotten_keys_and_dead_workers_keep_their_places_in_the_tree(
    signer: LedgerSigner, tmp_path: Path, clock: FakeClock
) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        fill_log(engine, signer)
    with oncemore.open(tmp_path / "log.db") as engine:
        for number in range(20):
            book(f"n{number}")
        old = make_checkpoint(engine, signer).note
        entries = verify(engine, signer).entries
        report = prune_everything(engine, clock)
        assert report.dropped_keys >= 20
        found = verify(engine, signer, old)
        assert found.entries < entries
        # The first prune has deleted the record of the dead worker, the second one the keys.
        causes = {(removed.actor, removed.reason) for removed in found.removed}
        assert causes == {("an operator", "old"), ("an operator", "forget")}
        # The record of the deletion is after the last checkpoint: an auditor could not read it.
        with pytest.raises(UsageError, match="a prune has deleted entries since the newest checkpoint"):
            export_bytes(engine)
        book("n3")  # a forgotten key may be used again
        new = make_checkpoint(engine, signer).note
        assert verify(engine, signer, old, new).removed == found.removed
        prune_everything(engine, clock)
        make_checkpoint(engine, signer)
        verify(engine, signer, old, new)
        verify_growth_proof(prove_growth(engine, old), [signer.key.public])
        for with_bodies in (True, False):
            data = export_bytes(engine, with_bodies=with_bodies)
            exported = verify_export(io.BytesIO(data), [signer.key.public], [("kept", old)])
            assert exported.removed == sum(removed.entry_count for removed in verify(engine, signer).removed)
            assert exported.unexplained == 0
        # An entry that the auditor's file hides as a deletion is found.
        lines = data.splitlines()
        at, line = next((at, line) for at, line in enumerate(lines) if b'"run/' in line)
        hidden = {"type": "removed", "hash": json.loads(line)["hash"]}
        forged = b"\n".join([*lines[:at], json.dumps(hidden).encode(), *lines[at + 1 :]]) + b"\n"
        with pytest.raises(LedgerMismatch, match=r"out of order|no entry records who removed them"):
            verify_export(io.BytesIO(forged), [signer.key.public])


def test_a_deletion_without_a_record_is_found(signer: LedgerSigner, engine: Engine) -> None:
    fill_log(engine, signer)
    entity = f"run/{book.key('d')}"
    head = engine.store.load_head(entity)
    assert head is not None
    engine.store.open_maintenance().drop_entities({entity: head.version})
    with pytest.raises(LedgerMismatch, match="deleted"):
        verify(engine, signer)


def test_prunes_of_a_log_without_checkpoints_record_no_places(engine: Engine, clock: FakeClock) -> None:
    book("a")
    assert prune_everything(engine, clock).dropped_keys == 1
    assert load_order(engine).removed == {}


def test_the_first_checkpoint_waits_for_prunes_that_do_not_know_of_it(
    engine: Engine, signer: LedgerSigner, clock: FakeClock
) -> None:
    book("a")
    with MaintenanceTask(engine, "prune", "old", Decider("an operator")) as task:
        with pytest.raises(InProgress, match="a prune is running"):
            make_checkpoint(engine, signer)
        task.mark_done(0, {})
    # A killed prune deletes nothing any more, once its lease has ended.
    with MaintenanceTask(engine, "prune", "killed", Decider("an operator")):
        pass
    clock.advance(600.0)
    assert make_checkpoint(engine, signer).is_new
    # A prune that began after the first checkpoint records what it deletes: nothing has to wait for it.
    with MaintenanceTask(engine, "prune", "old", Decider("an operator")) as task:
        book("b")
        assert make_checkpoint(engine, signer).is_new
        task.mark_done(0, {})
    verify(engine, signer)


def test_a_prune_during_a_checkpoint_or_a_verification_is_no_alarm(
    engine: Engine, signer: LedgerSigner, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        book(f"n{number}")
    make_checkpoint(engine, signer)
    load, prunes = log_order.load_order, []

    def prune_after_reading(engine: Engine) -> Any:
        order = load(engine)
        if not prunes:
            prunes.append(1)
            book("one more")
            prune_everything(engine, clock)
        return order

    monkeypatch.setattr(log_order, "load_order", prune_after_reading)
    assert verify(engine, signer).removed
    prunes.clear()
    make_checkpoint(engine, signer)
    verify(engine, signer)
    assert prunes


def test_a_log_that_is_pruned_all_the_time_is_left_for_later(
    engine: Engine, signer: LedgerSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    book("a")
    make_checkpoint(engine, signer)
    versions = iter(range(1000))
    monkeypatch.setattr(log_order, "load_order", lambda engine: log_order.LogOrder(next(versions)))
    with pytest.raises(InProgress, match="20 times"):
        verify(engine, signer)


def test_a_moved_log_keeps_its_tree(tmp_path: Path, signer: LedgerSigner, clock: FakeClock) -> None:
    """Also after prunes, twice, and with work between the moves; every old checkpoint still holds."""
    notes = []
    for number in range(3):
        path = tmp_path / f"{number}.db"
        with oncemore.open(path) as engine:
            if number == 0:
                fill_log(engine, signer)
            book(f"work in {number}")
            engine.switches.on(reason="stop", by="an operator", step=f"s{number}")
            notes.append(make_checkpoint(engine, signer).note)
            book(f"more in {number}")
            if number == 1:
                prune_everything(engine, clock)
            verify(engine, signer, *notes)
        clock.advance(10 * DAY)  # the leases of this process have ended
        if number < 2:
            with oncemore.open(path) as old, oncemore.open(tmp_path / f"{number + 1}.db") as new:
                copy.move_log(old, new, reason="another disk", by="an operator")
                verify(new, signer, *notes)
    with oncemore.open(tmp_path / "2.db") as engine:
        book("last")
        make_checkpoint(engine, signer)
        report = verify(engine, signer, *notes)
        assert report.removed
        assert len({parse_note(record.note)[0].origin for record in read_checkpoints(engine)}) == 1
        verify_export(io.BytesIO(export_bytes(engine)), [signer.key.public], [("kept", notes[0])])


def test_a_moved_log_without_checkpoints_has_a_tree_of_its_own(tmp_path: Path, signer: LedgerSigner) -> None:
    with oncemore.open(tmp_path / "0.db", lease_s=0.1):
        book("a")
    with oncemore.open(tmp_path / "0.db") as old, oncemore.open(tmp_path / "1.db") as new:
        copy.move_log(old, new, reason="another disk", by="an operator")
        make_checkpoint(new, signer)
        assert load_order(new) == log_order.LogOrder()
        verify(new, signer)


def test_an_entry_that_vanished_cannot_be_recorded_as_deleted(engine: Engine, signer: LedgerSigner) -> None:
    book("a")
    make_checkpoint(engine, signer)
    positions = prune.LeafPositions(engine)
    foreign = next(iter(engine.store.read_entries()))._replace(seq=10_000)
    with pytest.raises(oncemore.StoreError, match="is not in the log"):
        positions._find_position(foreign)


# The second place ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "bucket", "nats"])
def test_a_second_place_keeps_every_checkpoint_and_refuses_another_one(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = {"folder": str(tmp_path / "copies"), "bucket": "memory:///"}.get(kind, "")
    if kind == "nats":
        address = f"{request.getfixturevalue('jetstream_server')}/CHECKPOINTS"
    place = open_place(address)
    assert place.list_sizes() == []
    for size in (9, 0, 123):
        place.write_note(size, f"note {size} —")
        place.write_note(size, f"note {size} —")  # a repeated copy changes nothing
    assert place.list_sizes() == [0, 9, 123]
    assert place.read_note(9) == "note 9 —"
    assert [note for _, note in read_all_notes(place)] == ["note 0 —", "note 9 —", "note 123 —"]
    with pytest.raises(LedgerMismatch, match="another checkpoint of size 9"):
        place.write_note(9, "another")
    assert place.read_note(9) == "note 9 —"


def test_a_place_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(oncemore.StoreError, match="cannot be copied to"):
        open_place(str(tmp_path / "file" / "below")).write_note(1, "note")
    with pytest.raises(oncemore.StoreError, match="cannot be reached"):
        open_place("nats://127.0.0.1:1/BUCKET").list_sizes()
    with pytest.raises(UsageError, match="nats://host:port/BUCKET"):
        open_place("nats://127.0.0.1:1")
    with pytest.raises(UsageError, match="has no address"):
        open_place("")
    with pytest.raises(UsageError, match="not an address of object storage"):
        open_place("nowhere://bucket").list_sizes()


def test_an_error_of_object_storage_is_a_store_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore
    from obstore.exceptions import GenericError

    def fail(*values: Any) -> Any:
        raise GenericError("away\nAuthorization: secret")

    place = open_place("memory:///")
    monkeypatch.setattr(obstore, "list", fail)
    with pytest.raises(oncemore.StoreError, match=r"cannot be reached: away$"):
        place.list_sizes()


def test_a_folder_that_cannot_be_written_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = FolderPlace(tmp_path / "copies")
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(oncemore.StoreError, match="disk full"):
        place.write_note(1, "note")
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_lost_log_is_caught_by_its_second_place(tmp_path: Path, signer: LedgerSigner) -> None:
    with oncemore.open(tmp_path / "old.db") as engine:
        book("a")
        make_checkpoint(engine, signer)
    with oncemore.open(tmp_path / "new.db") as engine:
        book("a")
        with pytest.raises(LedgerMismatch, match="it has no checkpoint"):
            make_checkpoint(engine, signer)
        assert list(read_checkpoints(engine)) == []
        make_checkpoint(engine, LedgerSigner(signer.key))
        with pytest.raises(LedgerMismatch, match="entries of oncemore/"):
            make_checkpoint(engine, signer)
        with pytest.raises(LedgerMismatch, match="belongs to the log"):
            verify(engine, signer)


def test_a_place_may_lag_behind_the_log(engine: Engine, signer: LedgerSigner) -> None:
    book("a")
    make_checkpoint(engine, signer)
    book("b")
    make_checkpoint(engine, LedgerSigner(signer.key))  # by a process without the place
    book("c")
    assert make_checkpoint(engine, signer).is_new
    assert len(signer.place.list_sizes()) == 2
    verify(engine, signer)


class Crash(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("point", range(5))
def test_a_crash_at_any_write_of_a_checkpoint_is_repaired_by_the_next(
    point: int, is_written: bool, engine: Engine, signer: LedgerSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writes: the first entry, the first checkpoint, its copy, the second checkpoint, its copy."""
    writes: list[str] = []

    def crash_at(name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*values: Any) -> Any:
            is_here = len(writes) == point
            writes.append(name)
            if is_here and not is_written:
                raise Crash
            result = write(*values)
            if is_here:
                raise Crash
            return result

        return wrapped

    book("a")
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_append_record", crash_at("log", checkpoints._append_record))
        patched.setattr(FolderPlace, "write_note", crash_at("copy", FolderPlace.write_note))
        with pytest.raises(Crash):
            for order in ("b", "c"):
                make_checkpoint(engine, signer)
                book(order)
    verify(engine, signer)
    book("after the crash")
    make_checkpoint(engine, signer)
    report = verify(engine, signer)
    assert report.uncovered == 1
    records = [record.note for record in read_checkpoints(engine)]
    assert signer.place.read_note(signer.place.list_sizes()[-1]) == records[-1]
    assert {note for _, note in read_all_notes(signer.place)} <= set(records)


def test_a_checkpoint_of_another_process_counts(
    engine: Engine, signer: LedgerSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading the log and writing, another process makes one: the compare-and-set finds it."""
    book("a")
    make_checkpoint(engine, signer)
    book("b")
    append, made = checkpoints._append_record, []

    def be_slower(engine: Engine, head: Any, record: Any) -> bool:
        if not made:
            made.append(1)
            make_checkpoint(engine, signer)
        return append(engine, head, record)

    monkeypatch.setattr(checkpoints, "_append_record", be_slower)
    report = make_checkpoint(engine, signer)
    assert not report.is_new
    assert report.note == list(read_checkpoints(engine))[-1].note
    assert verify(engine, signer).checkpoints == 3


def test_a_signer_needs_a_key() -> None:
    with pytest.raises(UsageError, match="oncemore policy keygen"):
        load_signer("")


# Exports and proofs -----------------------------------------------------------------------------------


@pytest.mark.torture
def test_every_changed_line_and_character_of_an_export_is_found(engine: Engine, signer: LedgerSigner) -> None:
    old, _ = fill_log(engine, signer)
    keys = [signer.key.public]
    data = export_bytes(engine)
    assert verify_export(io.BytesIO(data), keys, [("kept", old)]).outside == 1
    lines = data.splitlines(keepends=True)
    forged = [b"".join(lines[:at] + lines[at + 1 :]) for at in range(len(lines))]
    forged += [b"".join([*lines[:at], lines[at], *lines[at:]]) for at in range(len(lines))]
    forged += [
        b"".join([*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]) for at in range(len(lines) - 1)
    ]
    forged += [b"".join(lines[:at]) for at in range(len(lines))]
    # `make test` changes one character in 31, from another one each time; `make torture` one in 7.
    stride = 7 if os.environ.get("ONCEMORE_TORTURE") else 31
    first = random.randrange(stride)
    print(f"every {stride}th character from {first}")
    for position in range(first, len(data), stride):
        changed = b"0" if data[position : position + 1] != b"0" else b"1"
        forged.append(data[:position] + changed + data[position + 1 :])
    accepted = [number for number, text in enumerate(forged) if is_accepted(text, keys)]
    assert accepted == []
    assert len(forged) > 4 * len(lines) + len(data) // 40


def is_accepted(data: bytes, keys: list[Any]) -> bool:
    try:
        verify_export(io.BytesIO(data), keys)
    except LedgerMismatch:
        return False
    return True


def test_a_checkpoint_entry_that_the_first_line_does_not_list_is_found(
    engine: Engine, signer: LedgerSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_log(engine, signer)
    first, *rest = [json.loads(line) for line in export_bytes(engine).splitlines()]
    # Several pages, as a long log has them.
    monkeypatch.setattr(ledger_export, "PAGE_SIZE", 2)
    pages = list(ledger_export.ExportedLedger(iter([first, *rest])).read_pages())
    assert len(pages) > 2
    assert sum(map(len, pages)) == rest[-1]["size"]
    unlisted = ledger_export.ExportedLedger(iter([{**first, "checkpoints": []}, *rest]))
    with pytest.raises(LedgerMismatch, match="has a checkpoint that the first line does not list"):
        list(unlisted.read_pages())


def test_an_export_has_nothing_that_its_hashes_do_not_cover(engine: Engine, signer: LedgerSigner) -> None:
    fill_log(engine, signer)
    keys = [signer.key.public]
    lines = [json.loads(line) for line in export_bytes(engine).splitlines()]

    def rebuild(*changed: dict[str, Any]) -> bytes:
        return b"".join(json.dumps(line).encode() + b"\n" for line in changed)

    assert is_accepted(rebuild(*lines), keys)
    first, *middle, last = lines
    for forged in (
        rebuild(first, {**middle[0], "remark": "checked by the board"}, *middle[1:], last),
        rebuild(first, {**middle[0], "version": "1"}, *middle[1:], last),
        rebuild(first, *middle, last, {"type": "entry"}),
        rebuild(first, *middle, {**last, "size": 1}),
        rebuild({**first, "checkpoints": []}, *middle, last),
        rebuild({**first, "checkpoints": first["checkpoints"][:-1]}, *middle, last),
        rebuild({**first, "checkpoints": first["checkpoints"][1:]}, *middle, last),
        rebuild({**first, "format": 2}, *middle, last),
        rebuild(first, {"type": "removed"}, *middle[1:], last),
        rebuild(first, {"type": "removed", "hash": "AB" * 32}, *middle[1:], last),
        rebuild({**first, "remark": "checked"}, *middle, last),
        rebuild({**first, "origin": "oncemore/another"}, *middle, last),
        rebuild(first, *middle, {"type": "removed", "hash": "ab" * 32}, {**last, "size": len(middle) + 1}),
        rebuild(first, {"type": "removed", "hash": middle[0]["hash"]}, *middle[1:], last),
        rebuild(first, *middle[:-2], {**last, "size": len(middle) - 2}),
        b"",
        b"not json\n",
    ):
        assert not is_accepted(forged, keys)


def test_an_entity_that_an_export_hides_as_a_deletion_is_found(engine: Engine, signer: LedgerSigner) -> None:
    """Its hash is in the tree, but no prune has recorded the deletion."""
    fill_log(engine, signer)
    lines = [json.loads(line) for line in export_bytes(engine).splitlines()]
    at = next(at for at, line in enumerate(lines) if line.get("entity", "").startswith("policy/"))
    lines[at] = {"type": "removed", "hash": lines[at]["hash"]}
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with pytest.raises(LedgerMismatch, match="no entry records who removed them"):
        verify_export(io.BytesIO(data), [signer.key.public])


def test_encrypted_bodies_verify_without_the_codec(
    tmp_path: Path, signer: LedgerSigner, clock: FakeClock
) -> None:
    class Reverse:
        id = "reverse"

        def encode(self, data: bytes) -> bytes:
            return b"\xff" + data[::-1]

        def decode(self, data: bytes) -> bytes:
            return data[1:][::-1]

    with oncemore.open(tmp_path / "log.db", codec=Reverse()) as engine:
        fill_log(engine, signer)
        prune_everything(engine, clock)
        make_checkpoint(engine, signer)
        data = export_bytes(engine)
        assert b"booked" not in data
        report = verify_export(io.BytesIO(data), [signer.key.public])
        assert report.unexplained == report.removed > 0
        assert report.bodies


def test_an_export_gets_its_name_when_it_is_complete(
    engine: Engine, signer: LedgerSigner, tmp_path: Path
) -> None:
    path = tmp_path / "export.jsonl"
    with pytest.raises(UsageError):
        export_to_path(engine, path)
    assert not list(tmp_path.glob("*export*"))
    fill_log(engine, signer)
    report = export_to_path(engine, path)
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("rb") as file:
        assert verify_export(file, [signer.key.public]).entries == report.size


def test_a_proof_shows_the_history_of_a_run_without_the_log(engine: Engine, signer: LedgerSigner) -> None:
    fill_log(engine, signer)
    keys = [signer.key.public]
    text = prove_entry(engine, book.key("d"))
    proven = verify_entry_proof(text, keys)
    assert proven.entity == f"run/{book.key('d')}"
    assert proven.version == len(proven.entries) == 2
    assert "booked d" in str(proven.entries)
    last = proven.size
    for entry in engine.store.read_entries():
        if entry.seq <= last:
            assert verify_entry_proof(prove_entry(engine, str(entry.seq)), keys).entity == entry.entity
    assert verify_entry_proof(prove_entry(engine, LEDGER_ENTITY), keys).version == 2
    with pytest.raises(UsageError, match="covers no entry"):
        prove_entry(engine, "unknown")
    with pytest.raises(LedgerMismatch, match="not signed by a known key"):
        verify_entry_proof(text, [generate_key().public])


def test_every_changed_character_of_a_proof_is_found(engine: Engine, signer: LedgerSigner) -> None:
    old, _ = fill_log(engine, signer)
    keys = [signer.key.public]
    for text, check in (
        (prove_entry(engine, announce.key("b")), verify_entry_proof),
        (prove_growth(engine, old), verify_growth_proof),
    ):
        check(text, keys)
        accepted = []
        for position, character in enumerate(text):
            if character.isspace() or position % 3:
                continue
            forged = text[:position] + ("A" if character != "A" else "B") + text[position + 1 :]
            try:
                check(forged, keys)
                accepted.append(position)
            except LedgerMismatch:
                pass
        assert accepted == []


def test_a_damaged_proof_is_refused(engine: Engine, signer: LedgerSigner) -> None:
    fill_log(engine, signer)
    keys = [signer.key.public]
    lines = prove_entry(engine, book.key("d")).split("\n")

    def with_extra(document: object) -> str:
        return "\n".join([lines[0], f"extra {b64encode(msgspec.json.encode(document)).decode()}", *lines[2:]])

    for forged in (
        "",
        "c2sp.org/tlog-proof@v1\n",
        "\n".join([lines[0], "extra A", *lines[2:]]),
        with_extra({}),
        with_extra([]),
        with_extra({"entries": []}),
        with_extra({"entries": 5}),
        with_extra({"entries": [5]}),
        with_extra({"entries": [{"type": "entry"}]}),
    ):
        with pytest.raises(LedgerMismatch):
            verify_entry_proof(forged, keys)
    for document in (
        "",
        "[]",
        "{}",
        '{"type": "consistency", "format": 1, "old": 1, "new": 2, "hashes": [3]}',
    ):
        with pytest.raises(LedgerMismatch, match="not a consistency proof"):
            verify_growth_proof(document, keys)


def test_a_changed_log_gives_no_proof(tmp_path: Path, signer: LedgerSigner) -> None:
    from tests.governance.sample_log import Attacker

    with oncemore.open(tmp_path / "log.db") as engine:
        old, new = fill_log(engine, signer)
    attacker = Attacker(tmp_path / "log.db")
    rows = attacker.read_rows()
    attacker.rewrite([rows[1], rows[0], *rows[2:]])
    with oncemore.open(tmp_path / "log.db") as engine:
        with pytest.raises(LedgerMismatch, match="does not match its newest checkpoint"):
            prove_entry(engine, book.key("d"))
        with pytest.raises(LedgerMismatch, match="does not begin with"):
            prove_growth(engine, old)
    attacker.rewrite(rows[:5])
    with oncemore.open(tmp_path / "other.db") as engine:
        fill_log(engine, LedgerSigner(signer.key))
        with pytest.raises(LedgerMismatch, match="cut or replaced"):
            prove_growth(engine, new)
