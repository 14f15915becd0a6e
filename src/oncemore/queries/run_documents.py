"""Runs as documents: exported with other names of the states, and read back as they were (STATE-8).

A document has one JSON object a line, one for each entry of a run: its header with every field, its body as
it is stored, its hash, and the records of WAL-3. A *mapping* renames the five states wherever they stand in
header and records; bodies stay as they are. Reading turns the names around and writes the header's bytes
again: the hash chain then shows that what was read is the very run that was exported.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore._values import Value
from oncemore.control.moved_log import check_here
from oncemore.errors import StoreError, UsageError
from oncemore.log.entry_codec import Header, head_bytes, header_of
from oncemore.log.head_index import index_of
from oncemore.log.store import Entry, Head
from oncemore.policy.canonical_json import fingerprint
from oncemore.steps.run import RECORDS, verify, wal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from oncemore.log.store import Store
    from oncemore.steps.engine import Engine

STATES = ("PENDING", "RUNNING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE")
#: Marks of entries that are no states: a state may not be renamed to one of them.
OTHER_MARKS = frozenset(RECORDS) | {"CONTROL", "APPROVAL", "CHORE", "ARTIFACT"}
MOST_LINES = 100_000


class Imported(Value):
    """What was read: how many runs and entries came, and how many runs were there already."""

    runs: int
    entries: int
    present: int


def load_mapping(path: Path | None) -> dict[str, str]:
    """Return other names for states from a YAML or JSON file; a mapping that cannot be undone is refused."""
    if path is None:
        return {}
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        found: Any = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (YAMLError, UnicodeError) as fault:
        raise UsageError(f"{path} is no YAML: {' '.join(str(fault).split())[:200]}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise UsageError(f"{path}: it takes names of states and what they are called: COMPLETE: succeeded")
    if wrong := [name for name in found if name not in STATES]:
        raise UsageError(f"{path}: {wrong[0]!r} is no state; the states are {', '.join(STATES)}")
    names = [found.get(state, state) for state in STATES]
    for name in names:
        if names.count(name) > 1 or name in OTHER_MARKS or not name.strip():
            raise UsageError(f"{path}: {name!r} would stand for two things; a mapping must be undone again")
    return dict(found)


def export_runs(store: Store, entities: Iterable[str], mapping: Mapping[str, str]) -> Iterator[str]:
    """Return runs as lines of JSON, with the states renamed."""
    for entity in entities:
        entries = list(store.entries(entity))
        records = list(wal(entries)) if all(_is_plain(entry) for entry in entries) else []
        for entry in entries:
            header = header_of(entry.header)
            yield json.dumps(
                {
                    "header": _renamed(_plain(header), mapping),
                    "body": None if entry.body is None else b64encode(entry.body).decode(),
                    "body_digest": entry.body_digest.hex(),
                    "hash": entry.hash.hex(),
                    "records": [
                        {**one, "state": mapping.get(one["state"], one["state"])}
                        for one in records
                        if one["seq"] == entry.seq
                    ],
                }
            )


def import_runs(engine: Engine, lines: Iterable[str], mapping: Mapping[str, str]) -> Imported:
    """Take over exported runs that are over, byte for byte; what was altered or is not over is refused."""
    check_here(engine, "runs to be imported")
    chains: dict[str, list[Entry]] = {}
    back = {name: state for state, name in mapping.items()}
    for number, line in enumerate(lines, 1):
        if number > MOST_LINES:
            raise UsageError(f"line {number}: more than {MOST_LINES:,} entries; import fewer at a time")
        if line.strip():
            entry = _entry_of(line, number, back, chains)
            chains.setdefault(entry.entity, []).append(entry)
    runs = taken = 0
    for entity, entries in chains.items():
        ((version, digest, state),) = verify(entries).values()
        if state.state not in ("COMPLETE", "HARD_FAIL"):
            raise UsageError(
                f"{entity} is {state.state}: it may still go on where it was exported; end it there"
            )
        there = engine.store.head(entity)
        if there is not None and (there.version, there.hash) == (version, digest):
            continue
        head = Head(entity, version, digest, head_bytes(state), index_of(state), 0)
        engine.store.adopt(entries, [head])
        runs, taken = runs + 1, taken + len(entries)
    return Imported(runs, taken, len(chains) - runs)


def _entry_of(line: str, number: int, back: Mapping[str, str], chains: dict[str, list[Entry]]) -> Entry:
    try:
        document = json.loads(line)
        plain = _renamed(document["header"], back)
        header = msgspec.json.encode(Header(**{**plain, "marks": tuple(plain["marks"])}))
        body = None if document["body"] is None else b64decode(document["body"], validate=True)
        digest, own = (bytes.fromhex(document[name]) for name in ("body_digest", "hash"))
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        told = f"{type(fault).__name__} {fault}"
        raise UsageError(f"line {number} is no entry of an exported run: {told}") from None
    entity = plain["entity"]
    if not entity.startswith("run/"):
        raise UsageError(f"line {number} is about {entity}, which is no run")
    before = chains.get(entity)
    prev = before[-1].hash if before else bytes(32)
    if body is not None and fingerprint(body) != digest:
        raise StoreError(f"line {number} ({entity}) was altered: its body does not fit its digest")
    return Entry(number, entity, plain["version"], prev, own, header, body, digest)


def _plain(header: Header) -> dict[str, Any]:
    return {name: getattr(header, name) for name in header.__struct_fields__}


def _renamed(header: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a header whose states have other names: among its marks, and as the state that it sets."""
    sets = header["sets"]
    if "state" in sets:
        sets = {**sets, "state": names.get(sets["state"], sets["state"])}
    return {**header, "marks": [names.get(mark, mark) for mark in header["marks"]], "sets": sets}


def _is_plain(entry: Entry) -> bool:
    return not entry.body or entry.body[:1] == b"{"
