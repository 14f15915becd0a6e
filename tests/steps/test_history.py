"""What can be read from a log, and that a log which was changed is refused with the place."""

import shutil
from pathlib import Path

import apsw
import msgspec
import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.log.entry_codec import EntryHeader, decode_body, decode_header, encode_entry, hash_entry
from oncemore.log.record import FORMAT, NOWHERE, RecordChange, RunRecord, apply_header
from oncemore.log.store import Entry, hash_body
from oncemore.policy.canonical_json import hash_bytes
from oncemore.steps.history import RECORDS, export_records, fold_entries, verify_chain
from oncemore.testing import instant_waits


def filled(engine: oncemore.Engine) -> list[Entry]:
    """Return a log with several runs and attempts."""

    @oncemore.step(effect="pure", name="work", policy=oncemore.Policy(max_attempts=2))
    def work(x: int) -> int:
        oncemore.current().checkpoint(x)
        oncemore.current().emit("made", x)
        if x == 2 and oncemore.current().number == 1:
            raise oncemore.TransientError("once")
        if x == 3:
            raise ValueError("never")
        return x

    with instant_waits():
        for x in (1, 2, 3):
            work.bind(engine).run(x)
    return list(engine.store.read_entries())


@pytest.fixture
def entries() -> list[Entry]:
    with oncemore.open("memory:") as engine:
        return filled(engine)


def test_an_honest_log_verifies_also_when_bodies_are_pruned(entries: list[Entry]) -> None:
    heads = verify_chain(entries)
    assert len(heads) == len({entry.entity for entry in entries})
    pruned = [entry._replace(body=None, body_digest=hash_body(entry)) for entry in entries]
    assert verify_chain(pruned) == heads
    assert verify_chain([]) == {}


@pytest.mark.req("WAL-12")
def test_every_altered_byte_is_refused_with_the_number_of_its_entry(entries: list[Entry]) -> None:
    tried = 0
    for at, entry in enumerate(entries):
        for field in ("header", "body", "hash", "prev"):
            data = getattr(entry, field)
            for place in range(0, len(data), 7):
                changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
                altered = [*entries[:at], entry._replace(**{field: changed}), *entries[at + 1 :]]
                with pytest.raises(StoreError, match=rf"entry {entry.seq} \({entry.entity}\) was altered"):
                    verify_chain(altered)
                tried += 1
    assert tried > 500


def test_what_is_missing_doubled_or_moved_is_refused(entries: list[Entry]) -> None:
    run = next(entry.entity for entry in entries if entry.version == 3)
    at = [place for place, entry in enumerate(entries) if entry.entity == run]
    cases = [
        [entry for place, entry in enumerate(entries) if place != at[0]],
        [entry for place, entry in enumerate(entries) if place != at[1]],
        [*entries[: at[1] + 1], entries[at[1]], *entries[at[1] + 1 :]],
        [*entries[: at[0]], entries[at[1]], entries[at[0]], *entries[at[1] + 1 :]],
    ]
    for case in cases:
        with pytest.raises(
            StoreError, match=r"entry \d+ \(run/.*is out of order: a part of the log is missing"
        ):
            verify_chain(case)
    assert (
        verify_chain(entries[:-1]).keys() <= verify_chain(entries).keys()
    )  # a cut tail shows only beside the heads


def forged(
    header: EntryHeader, entity: str = "run/a", prev: bytes = NOWHERE, seq: int = 7, version: int = 1
) -> Entry:
    """Return an entry whose hash is right, whatever it says."""
    data = msgspec.json.encode(header)
    digest = hash_bytes(b"{}")
    return Entry(seq, entity, version, prev, hash_entry(prev, data, digest), data, b"{}", digest)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            forged(EntryHeader(FORMAT, "run/b", 1, 0.0, 0, 0, (), {})),
            "makes no sense: it is about version 1 of run/b",
        ),
        (
            forged(EntryHeader(FORMAT, "run/a", 2, 0.0, 0, 0, (), {})),
            "makes no sense: it is about version 2 of run/a",
        ),
        (forged(EntryHeader(9, "run/a", 1, 0.0, 0, 0, (), {})), "makes no sense: an entry has format 9"),
        (forged(EntryHeader(FORMAT, "run/a", 1, 0.0, 0, 0, (), {"nope": 1})), "makes no sense: .*nope"),
        (
            forged(EntryHeader(FORMAT, "cat/a", 1, 0.0, 0, 0, (), {}), "cat/a"),
            "is about cat/a, of a kind that is not known",
        ),
    ],
    ids=["other entity", "other version", "newer format", "unknown field", "unknown kind"],
)
def test_an_entry_that_makes_no_sense_is_refused_though_its_hash_fits(entry: Entry, says: str) -> None:
    with pytest.raises(StoreError, match=f"entry 7 .*{says}"):
        verify_chain([entry])


def test_a_move_that_no_run_can_make_is_refused() -> None:
    states = [RunRecord(state="COMPLETE", run_id="r"), RunRecord(state="RUNNING", run_id="r")]
    first = encode_entry(RecordChange(("COMPLETE",), None, states[0]), "run/a", 1, NOWHERE, 0.0, 1)
    second = encode_entry(RecordChange(("RUNNING",), states[0], states[1]), "run/a", 2, first.hash, 0.0, 2)
    digests = [hash_bytes(made.body) for made in (first, second)]
    log = [
        Entry(1, "run/a", 1, NOWHERE, first.hash, first.header, first.body, digests[0]),
        Entry(2, "run/a", 2, first.hash, second.hash, second.header, second.body, digests[1]),
    ]
    with pytest.raises(StoreError, match=r"entry 2 .*a run cannot go from COMPLETE to RUNNING"):
        verify_chain(log)


def test_a_body_that_is_gone_without_its_digest_is_refused(entries: list[Entry]) -> None:
    lost = entries[0]._replace(body=None, body_digest=None)
    with pytest.raises(StoreError, match="was altered"):
        verify_chain([lost, *entries[1:]])


def test_told_and_wal_read_what_was_pruned_without_its_bodies(entries: list[Entry]) -> None:
    pruned = [entry._replace(body=None, body_digest=hash_body(entry)) for entry in entries]
    assert [body for _, _, body in fold_entries(pruned)] == [{}] * len(pruned)
    lines = list(export_records(pruned))
    assert [line["state"] for line in lines] == [line["state"] for line in export_records(entries)]
    assert {line["decision_proof"] for line in lines} == {None}
    assert not any("escalation" in line for line in lines)


def test_the_log_of_everything_shows_runs_only(entries: list[Entry]) -> None:
    lines = list(export_records(entries))
    assert {line["node_id"] for line in lines} == {"work"}
    assert {line["kind"] for line in lines} <= {"TRANSITION", *RECORDS}
    assert {line["idempotency_key"] for line in lines} == {
        entry.entity.removeprefix("run/") for entry in entries if entry.entity.startswith("run/")
    }


@pytest.mark.req("WAL-12")
def test_a_file_that_was_changed_behind_our_back_is_refused_with_the_number(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        middle = filled(engine)[4]
    connection = apsw.Connection(str(tmp_path / "log.db"))
    changed = bytes([*(middle.body or b"")[:-2], 1, 1])
    connection.execute("UPDATE log SET body=? WHERE seq=?", (changed, middle.seq))
    connection.close()
    altered = pytest.raises(StoreError, match=f"entry {middle.seq} .*was altered")
    with oncemore.open(tmp_path / "log.db") as engine, altered:
        verify_chain(engine.store.read_entries())


@pytest.mark.req("WAL-12")
def test_a_last_entry_that_was_torn_is_discarded_and_the_work_goes_on(tmp_path: Path) -> None:
    (tmp_path / "torn").mkdir()
    with oncemore.open(tmp_path / "log.db") as engine:
        whole = filled(engine)
        for name in ("log.db", "log.db-wal"):  # as a crash of the machine would leave them
            shutil.copy(tmp_path / name, tmp_path / "torn" / name)
    with (tmp_path / "torn" / "log.db-wal").open("r+b") as file:
        file.truncate(file.seek(0, 2) - 10)
    with oncemore.open(tmp_path / "torn" / "log.db") as engine:
        left = list(engine.store.read_entries())
        verify_chain(left)
        assert left == whole[: len(left)]
        assert 0 < len(left) < len(whole)
        filled(engine)
        verify_chain(engine.store.read_entries())


def test_headers_and_bodies_read_back(entries: list[Entry]) -> None:
    for entry in entries:
        assert decode_header(entry.header).entity == entry.entity
        assert entry.body is not None
        assert isinstance(decode_body(entry.body), dict)


def test_a_header_with_an_unknown_field_is_refused_in_a_first_and_in_a_later_entry() -> None:
    for before in (None, RunRecord()):
        with pytest.raises(TypeError, match="RunRecord has no field colour"):
            apply_header(before, {"colour": "blue"})
