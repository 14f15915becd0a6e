"""A golden log as a store in a file: the same entries under the same names, at the same times."""

from __future__ import annotations

from pathlib import Path

from oncemore.log.entry_codec import encode_head
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, EntryWrite, Stored
from oncemore.maintenance.rebuild import index_head
from oncemore.steps.history import verify_chain
from tests.golden.test_golden import read

LOG = Path(__file__).parent / "log-2.jsonl"


def store_golden(path: Path) -> None:
    """Make a store of it."""
    store = SqliteStore(path)
    known: dict[str, tuple[int, bytes, object]] = {}
    for entry in read(LOG)[0]:
        state = verify_chain([entry], known)[entry.entity][2]
        assert entry.body is not None
        write = EntryWrite(
            entry.entity, entry.version - 1, entry.header, entry.body, entry.hash, encode_head(state),
            index_head(entry.entity, state),
        )  # fmt: skip
        assert isinstance(store.append(Batch((write,))).wait(), Stored)
    store.close()
