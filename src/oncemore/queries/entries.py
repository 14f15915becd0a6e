"""Read entries of a log: bodies, the runs that they add up to, their lineage, their position by time.

Bodies may be encrypted with a key that the settings name (`codec`). Without the key a body reads as
`{"sealed": reason}`; everything outside of the body is readable.
"""

from __future__ import annotations

from functools import cache

from oncemore.lineage.ids import derive_lineage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.lineage.ids import RunLineage
    from oncemore.log.encryption import BodyCipher
    from oncemore.log.entry_codec import EntryHeader
    from oncemore.log.record import RunRecord
    from oncemore.log.store import Entry, Store


def read_body(entry: Entry) -> dict[str, Any]:
    """Return the body of an entry; empty if it was pruned, `{"sealed": reason}` if its key is missing."""
    from oncemore.errors import UsageError
    from oncemore.log.entry_codec import read_body

    try:
        return read_body(entry, load_cipher())
    except UsageError as error:
        return {"sealed": str(error)}


@cache
def load_cipher() -> BodyCipher | None:
    """Return the cipher of the settings; None if they name none."""
    from oncemore.config import NAMES, load_settings

    # Only `codec` is needed; the other settings of the file are not read and cannot fail here.
    settings = load_settings(given=NAMES.keys() - {"codec"})
    if not settings.codec:
        return None
    from oncemore.open_engine import engine_from_settings

    return engine_from_settings(settings).cipher


def fold_runs(
    store: Store, entity: str, max_entries: int | None = None
) -> Iterator[tuple[Entry, EntryHeader, RunRecord, dict[str, Any]]]:
    """Yield the entries of a key with their headers, the run after each, and their bodies."""
    from itertools import islice

    from oncemore.log.entry_codec import decode_header
    from oncemore.log.record import apply_header

    run: RunRecord | None = None
    for entry in islice(store.read_entries(entity), max_entries):
        header = decode_header(entry.header)
        # The run follows from headers alone: bodies may be encrypted.
        run = apply_header(run, header.sets)
        yield entry, header, run, read_body(entry)


def find_seq(store: Store, at: float) -> int:
    """Return the last seq before a time, by binary search: seqs and times grow together.

    Entries that processes write at once may be out of order by a moment, so the search goes back a second.
    """
    from oncemore.log.entry_codec import decode_header

    low, high = 0, store.wait_for_change(0, 0.0)
    while low < high:
        middle = (low + high) // 2
        entry = next(iter(store.read_entries(after=middle)), None)
        if entry is None or decode_header(entry.header).at >= at - 1.0:
            high = middle
        else:
            # The store may skip numbers; continue behind the entry that was really read.
            low = max(middle + 1, entry.seq)
    return low


def list_entities_between(store: Store, since: float, until: float) -> list[str]:
    """Return the entities of runs that have an entry between two times, in the order of the first one."""
    from oncemore.log.entry_codec import decode_header

    # find_seq may stop a second early, and entries may be out of order by a moment.
    last = find_seq(store, until + 2.0)
    found: dict[str, None] = {}
    for entry in store.read_entries(after=find_seq(store, since)):
        if entry.seq > last:
            break
        if entry.entity.startswith("run/") and since <= decode_header(entry.header).at <= until:
            found[entry.entity] = None
    return list(found)


def collect_digests(body: dict[str, Any]) -> dict[str, str]:
    """Return the digests of the result and of each artifact in the body of a COMMIT."""
    from oncemore.steps.inputs import digest_value

    digests = {}
    if "result" in body:
        digests["result"] = digest_value(body["result"])
    # A large result is stored as an artifact, and the body holds its digest instead of the value.
    if "spilled" in body:
        digests["result"] = body["spilled"]["digest"]
    for plain in body.get("artifacts", ()):
        digests[f"artifact {plain['$artifact']['name']}"] = plain["$artifact"]["digest"]
    return digests


def build_lineage(key: str, run: RunRecord, body: dict[str, Any]) -> RunLineage:
    """Return the lineage of a run, given the body of its COMMIT."""
    used = {edge["digest"] for edge in body.get("used", ())}
    if run.input_hash:
        used.add(run.input_hash)
    return derive_lineage(run.step, key, run.cfg_hash, used, collect_digests(body).values())


def list_lineages(store: Store, entity: str) -> Iterator[tuple[RunRecord, RunLineage]]:
    """Yield the run and the lineage of every COMMIT of a key that is still readable, oldest first."""
    for _, header, run, body in fold_runs(store, entity):
        if "COMMIT" in header.marks and body and "sealed" not in body:
            yield run, build_lineage(entity.removeprefix("run/"), run, body)
