"""Golden logs of every format since the first release are read; older ones are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oncemore.errors import StoreError
from oncemore.log.entry_codec import decode_body, decode_head, decode_header, encode_head
from oncemore.log.record import FORMAT, NOWHERE
from oncemore.log.store import Entry
from oncemore.policy.canonical_json import hash_bytes
from oncemore.steps.history import KINDS, export_records, fold_entries, verify_chain
from tests.golden.make import made

HERE = Path(__file__).parent
#: Format 1 was written by versions before the first release. Reading it would need a second set of names
#: for every field of the log, so it is refused (docs/adr/0040).
LOGS = sorted(path for path in HERE.glob("log-*.jsonl") if path.stem != "log-1")


def read(path: Path) -> tuple[list[Entry], dict[str, dict[str, Any]]]:
    """Return the entries of a golden log, and the heads that were written with them."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    last: dict[str, bytes] = {}
    entries = []
    for seq, line in enumerate((line for line in lines if "entity" in line), 1):
        body, digest = line["body"].encode(), bytes.fromhex(line["hash"])
        prev = last.get(line["entity"], NOWHERE)
        last[line["entity"]] = digest
        header = line["header"].encode()
        entries.append(
            Entry(seq, line["entity"], line["version"], prev, digest, header, body, hash_bytes(body))
        )
    return entries, {line["head_of"]: line for line in lines if "head_of" in line}


def test_there_is_a_golden_log_of_the_format_that_is_written_now() -> None:
    assert HERE / f"log-{FORMAT}.jsonl" in LOGS


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_log_verifies_and_its_heads_are_rebuilt_from_it(path: Path) -> None:
    entries, heads = read(path)
    rebuilt = verify_chain(entries)
    assert rebuilt.keys() == heads.keys()
    for entity, (_, digest, state, _) in rebuilt.items():
        assert digest.hex() == heads[entity]["hash"]
        kind = KINDS[entity.partition("/")[0]]
        assert type(state) is kind
        # A head of then may lack fields that came later; they have their defaults, rebuilt or read.
        assert decode_head(heads[entity]["head"].encode(), kind) == state
        assert encode_head(state).startswith(heads[entity]["head"].encode()[:-1])


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_log_still_means_what_it_meant(path: Path) -> None:
    entries, _ = read(path)
    marks = [(header.marks, state.state) for header, state, _ in fold_entries(entries)]
    assert (("PENDING", "RUNNING", "INTENT"), "RUNNING") in marks
    assert (("SOFT_FAIL", "DECISION"), "SOFT_FAIL") in marks
    assert (("COMMIT", "COMPLETE"), "COMPLETE") in marks
    assert (("CHECKPOINT",), "RUNNING") in marks
    assert (("EVENT",), "PENDING") in marks
    assert (("LEASE",), "ALIVE") in marks
    ended = {
        record["node_id"]: record for record in export_records(entries) if record["kind"] == "TRANSITION"
    }
    assert ended["golden.fetch"]["state"] == "COMPLETE"
    assert ended["golden.print"]["reason"] == "reconciled"
    results = [decode_body(entry.body or b"{}").get("result") for entry in entries]
    assert {"name": "a.tif", "size": {"$tuple": [1, 2.5, None]}} in results


def test_a_log_of_format_1_is_refused_with_the_way_out() -> None:
    entries, heads = read(HERE / "log-1.jsonl")
    with pytest.raises(StoreError, match="an entry has format 1, which oncemore wrote before its first rel"):
        decode_header(entries[0].header)
    entity, line = next(iter(heads.items()))
    with pytest.raises(StoreError, match="begin with a new store"):
        decode_head(line["head"].encode(), KINDS[entity.partition("/")[0]])


def test_what_is_written_now_has_the_form_of_the_golden_log() -> None:
    # A field that went or changed its type is a new format: it needs a number and a golden log. A field with
    # a default can be added at the end of a record (ADR 0044): it is named here.
    added = {"max_crashes", "operation"}
    # Bodies have grown too: the pipeline of a run, its inputs, and what an attempt has used of the machine.
    added_to_bodies = {"duration_s", "pipeline", "usage", "used"}

    def form(header: str, body: str) -> Any:
        plain = json.loads(header)
        sets = {name: type(value).__name__ for name, value in plain["sets"].items() if name not in added}
        return [*plain, sets, sorted(json.loads(body).keys() - added_to_bodies)]

    entries, _ = read(HERE / f"log-{FORMAT}.jsonl")
    now = [form(str(line["header"]), str(line["body"])) for line in made() if "entity" in line]
    assert now == [form(entry.header.decode(), (entry.body or b"").decode()) for entry in entries]
    assert all(decode_header(entry.header).format == FORMAT for entry in entries)
