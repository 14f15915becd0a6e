"""Logs of every format that was ever written must still be read, to the byte and to the meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oncemore.log.entry_codec import body_of, head_bytes, head_of, header_of
from oncemore.log.record import FORMAT, NOWHERE
from oncemore.log.store import Entry
from oncemore.policy.canonical_json import fingerprint
from oncemore.steps.run import KINDS, told, verify, wal
from tests.golden.make import made

HERE = Path(__file__).parent
LOGS = sorted(HERE.glob("log-*.jsonl"))


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
            Entry(seq, line["entity"], line["version"], prev, digest, header, body, fingerprint(body))
        )
    return entries, {line["head_of"]: line for line in lines if "head_of" in line}


def test_there_is_a_golden_log_of_the_format_that_is_written_now() -> None:
    assert HERE / f"log-{FORMAT}.jsonl" in LOGS


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_log_verifies_and_its_heads_are_rebuilt_from_it(path: Path) -> None:
    entries, heads = read(path)
    rebuilt = verify(entries)
    assert rebuilt.keys() == heads.keys()
    for entity, (_, digest, state) in rebuilt.items():
        assert digest.hex() == heads[entity]["hash"]
        kind = KINDS[entity.partition("/")[0]]
        assert type(state) is kind
        # A head of then may lack fields that came later; they have their defaults, rebuilt or read.
        assert head_of(heads[entity]["head"].encode(), kind) == state
        assert head_bytes(state).startswith(heads[entity]["head"].encode()[:-1])


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_golden_log_still_means_what_it_meant(path: Path) -> None:
    entries, _ = read(path)
    marks = [(header.marks, state.state) for header, state, _ in told(entries)]
    assert (("PENDING", "RUNNING", "INTENT"), "RUNNING") in marks
    assert (("SOFT_FAIL", "DECISION"), "SOFT_FAIL") in marks
    assert (("COMMIT", "COMPLETE"), "COMPLETE") in marks
    assert (("CHECKPOINT",), "RUNNING") in marks
    assert (("EVENT",), "PENDING") in marks
    assert (("LEASE",), "ALIVE") in marks
    ended = {record["node_id"]: record for record in wal(entries) if record["kind"] == "TRANSITION"}
    assert ended["golden.fetch"]["state"] == "COMPLETE"
    assert ended["golden.print"]["reason"] == "reconciled"
    results = [body_of(entry.body or b"{}").get("result") for entry in entries]
    assert {"name": "a.tif", "size": {"$tuple": [1, 2.5, None]}} in results


def test_what_is_written_now_has_the_form_of_the_golden_log() -> None:
    # A field that came or went, or changed its type, is a new format: it needs a number and a golden log.
    def form(header: str, body: str) -> Any:
        plain = json.loads(header)
        sets = {name: type(value).__name__ for name, value in plain["sets"].items()}
        said = json.loads(body)
        if "event" in said.get("proof", {}).get("inputs", {}):
            del said["proof"]
        return [*plain, sets, sorted(said)]

    entries, _ = read(HERE / f"log-{FORMAT}.jsonl")
    # Since the golden log was written, policies are recorded: a new kind of entity. And every failure has a
    # proof, also where no attempt asked for a decision: older readers know the field, newer ones may miss it.
    made_now = [line for line in made() if "entity" in line]
    now = [line for line in made_now if not str(line["entity"]).startswith("policy/")]
    old = [form(entry.header.decode(), (entry.body or b"").decode()) for entry in entries]
    assert [form(str(line["header"]), str(line["body"])) for line in now] == old
    assert all(header_of(entry.header).format == FORMAT for entry in entries)
