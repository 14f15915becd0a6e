"""Export runs as documents with other names for the states, and import them again (STATE-8).

A document has one line of JSON for each entry of a run: its header with every field, its body as stored, its
hash, and the records of WAL-3. A *mapping* renames the five states in headers and records; bodies stay
unchanged. An import reverses the mapping and encodes the header again: if the hash chain then verifies, the
imported run equals the exported one byte for byte.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore._values import Value
from oncemore.control.moved_log import check_not_moved
from oncemore.errors import StoreError, UsageError
from oncemore.governance.identity import authorize_decider, check_data_role
from oncemore.log.entry_codec import EntryHeader, build_index, decode_header, encode_head
from oncemore.log.store import Entry, Head, hash_body
from oncemore.maintenance.tasks import MaintenanceTask, check_text
from oncemore.policy.canonical_json import hash_bytes
from oncemore.steps.history import RECORDS, export_records, verify_chain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from oncemore.governance.identity import Decider
    from oncemore.log.store import Store
    from oncemore.steps.engine import Engine

STATES = ("PENDING", "RUNNING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE")
#: Marks of entries that are not states; a state may not be renamed to one of them.
OTHER_MARKS = frozenset(RECORDS) | {"CONTROL", "APPROVAL", "MAINTENANCE", "ARTIFACT"}
MAX_LINES = 100_000


class ImportedRuns(Value):
    """The numbers of imported runs and entries, and of runs that were present before."""

    runs: int
    entries: int
    present: int


def load_mapping(path: Path | None) -> dict[str, str]:
    """Return other names for states from a YAML or JSON file.

    Raise `UsageError` for a mapping that an import could not reverse.
    """
    if path is None:
        return {}
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        mapping: Any = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (YAMLError, UnicodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping.values()):
        raise UsageError(f"{path}: it must map states to other names, such as COMPLETE: succeeded")
    if wrong := [name for name in mapping if name not in STATES]:
        raise UsageError(f"{path}: {wrong[0]!r} is not a state; the states are {', '.join(STATES)}")
    # States that the mapping does not rename keep their names, and must not collide either.
    names = [mapping.get(state, state) for state in STATES]
    for name in names:
        if names.count(name) > 1 or name in OTHER_MARKS or not name.strip():
            raise UsageError(
                f"{path}: {name!r} would have two meanings; give every state a name of its own, so that an "
                "import can reverse the mapping"
            )
    return dict(mapping)


def export_runs(store: Store, entities: Iterable[str], mapping: Mapping[str, str]) -> Iterator[str]:
    """Yield the entries of runs as lines of JSON, with renamed states."""
    for entity in entities:
        entries = list(store.read_entries(entity))
        # The records need the bodies, so an encrypted run is exported without records.
        records = list(export_records(entries)) if not any(map(_is_encrypted, entries)) else []
        for entry in entries:
            header = decode_header(entry.header)
            fields = {name: getattr(header, name) for name in header.__struct_fields__}
            yield json.dumps(
                {
                    "header": _rename_states(fields, mapping),
                    "body": None if entry.body is None else b64encode(entry.body).decode(),
                    "body_digest": hash_body(entry).hex(),
                    "hash": entry.hash.hex(),
                    "records": [
                        {**record, "state": mapping.get(record["state"], record["state"])}
                        for record in records
                        if record["seq"] == entry.seq
                    ],
                }
            )


def import_runs(
    engine: Engine,
    lines: Iterable[str],
    mapping: Mapping[str, str],
    *,
    reason: str = "imported",
    by: str | None = None,
) -> ImportedRuns:
    """Store exported runs that are finished; raise for a run that was altered or is not finished.

    The runs keep their entries unchanged, so that a task of its own records who imported them.
    """
    check_not_moved(engine, "runs to be imported")
    decider = authorize_decider(engine, by).refuse_signature("an import")
    documents = _read_finished_runs(engine, decider, lines, mapping)
    with MaintenanceTask(engine, "import-runs", check_text("reason", reason), decider) as task:
        imported = 0
        for entries, head in documents:
            # An import that was killed is repeated: runs that it has stored are left alone.
            if head is not None:
                engine.store.open_maintenance().import_entries(entries, [head])
                imported += len(entries)
        runs = sum(head is not None for _, head in documents)
        report = ImportedRuns(runs, imported, len(documents) - runs)
        task.mark_done(runs, {"import": report._asdict()})
    return report


def _read_finished_runs(
    engine: Engine, decider: Decider, lines: Iterable[str], mapping: Mapping[str, str]
) -> list[tuple[list[Entry], Head | None]]:
    """Return the entries and the head of each run; no head for a run that the store has already.

    All runs are checked before the first is stored, so that a bad line does not leave a part of the file.
    """
    chains: dict[str, list[Entry]] = {}
    states = {name: state for state, name in mapping.items()}
    for number, line in enumerate(lines, 1):
        if number > MAX_LINES:
            raise UsageError(f"line {number}: more than {MAX_LINES:,} entries; import fewer at a time")
        if line.strip():
            entry = _parse_entry(line, number, states, chains)
            chains.setdefault(entry.entity, []).append(entry)
    documents: list[tuple[list[Entry], Head | None]] = []
    for entity, entries in chains.items():
        ((version, digest, state, _),) = verify_chain(entries).values()
        # An open run may continue in the exporting store, and the work would be done twice.
        if state.state not in ("COMPLETE", "HARD_FAIL"):
            raise UsageError(
                f"{entity} is {state.state}: it may continue in the store that it comes from; end it there"
            )
        check_data_role(engine, decider, state.dataset)
        stored = engine.store.load_head(entity)
        is_present = stored is not None and (stored.version, stored.hash) == (version, digest)
        head = Head(entity, version, digest, encode_head(state), build_index(state), 0)
        documents.append((entries, None if is_present else head))
    return documents


def _parse_entry(line: str, number: int, states: Mapping[str, str], chains: dict[str, list[Entry]]) -> Entry:
    """Return the entry in a line; its predecessor is the last one of the same run in `chains`."""
    try:
        document = json.loads(line)
        fields = _rename_states(document["header"], states)
        header = msgspec.json.encode(EntryHeader(**{**fields, "marks": tuple(fields["marks"])}))
        body = None if document["body"] is None else b64decode(document["body"], validate=True)
        body_digest, digest = (bytes.fromhex(document[name]) for name in ("body_digest", "hash"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        detail = f"{type(error).__name__} {error}"
        raise UsageError(f"line {number} is not an entry of an exported run: {detail}") from None
    entity = fields["entity"]
    if not entity.startswith("run/"):
        raise UsageError(f"line {number} is about {entity}, which is not a run")
    before = chains.get(entity)
    # The chain covers the digest of the body, so that a body can be pruned; check the body against it.
    if body is not None and hash_bytes(body) != body_digest:
        raise StoreError(f"line {number} ({entity}) was altered: its body does not fit its digest")
    return Entry(
        seq=number,
        entity=entity,
        version=fields["version"],
        prev=before[-1].hash if before else bytes(32),
        hash=digest,
        header=header,
        body=body,
        body_digest=body_digest if body is None else None,
    )


def _rename_states(header: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a header with renamed states, in its marks and in the state that it sets."""
    sets = header["sets"]
    if "state" in sets:
        sets = {**sets, "state": names.get(sets["state"], sets["state"])}
    return {**header, "marks": [names.get(mark, mark) for mark in header["marks"]], "sets": sets}


def _is_encrypted(entry: Entry) -> bool:
    return bool(entry.body) and entry.body[:1] != b"{"  # type: ignore[index]
