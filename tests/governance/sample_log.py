"""A log with entries of many kinds, and an attacker who can write its file but has no key."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import apsw

import oncemore
from oncemore.governance.checkpoints import make_checkpoint
from oncemore.log.entry_codec import hash_entry
from oncemore.log.record import NOWHERE
from oncemore.log.sqlite.store import SqliteStore
from oncemore.maintenance.rebuild import rebuild_heads, repair_heads
from oncemore.policy.canonical_json import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from oncemore.governance.checkpoints import LedgerSigner
    from oncemore.steps.engine import Engine

COLUMNS = ("seq", "entity", "version", "before", "hash", "header", "body", "digest")


@oncemore.step(effect="pure", name="book")
def book(order: str) -> str:
    return f"booked {order}"


@oncemore.step(effect="outbox", name="announce")
def announce(order: str) -> None:
    oncemore.current().emit("orders", {"order": order})


@oncemore.step(effect="idempotent", name="refuse")
def refuse(order: str) -> None:
    raise oncemore.PermanentError(f"no {order}")


@oncemore.step(effect="idempotent", name="review")
def review(order: str) -> None:
    raise oncemore.NeedsReview("UNCLEAR", order)


def fill_log(engine: Engine, signer: LedgerSigner) -> tuple[str, str]:
    """Write entries of many kinds, two checkpoints, and some entries after them; return the checkpoints."""
    book("a")
    announce("b")
    engine.erase(book.key("a"), reason="asked to", by="an operator")
    old_note = make_checkpoint(engine, signer).note
    for step in (refuse, review):
        with suppress(oncemore.Error):
            step("c")
    engine.switches.on(reason="stop", by="an operator", step="pay")
    book("d")
    note = make_checkpoint(engine, signer).note
    return old_note, note


class Attacker:
    """Writes the tables of a closed store: each change is made in one transaction."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def connect(self) -> AbstractContextManager[apsw.Connection]:
        return closing(apsw.Connection(str(self.path)))

    def read_rows(self) -> list[dict[str, Any]]:
        with self.connect() as connection:
            rows = connection.execute("SELECT * FROM log ORDER BY seq").fetchall()
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]

    def rewrite(self, rows: list[dict[str, Any]], *, rehash: bool = False) -> None:
        """Replace the log by these rows, with consistent pointers and heads, and hashes if asked to."""
        with self.connect() as connection, connection:
            connection.execute("DELETE FROM log")
            for row in link_rows(rows, rehash=rehash):
                values = [row[column] for column in COLUMNS]
                connection.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
            connection.execute("DELETE FROM head")
        self.rebuild_all_heads()

    def rebuild_all_heads(self) -> None:
        with closing(SqliteStore(self.path)) as store:
            report = rebuild_heads(store)
            repair_heads(store, report)


def link_rows(rows: list[dict[str, Any]], *, rehash: bool) -> Iterator[dict[str, Any]]:
    """Yield rows with new numbers, pointers to the entry before each, and new hashes if asked to."""
    last: dict[str, tuple[int, bytes]] = {}
    for seq, row in enumerate(rows, 1):
        before, prev = last.get(row["entity"], (0, NOWHERE))
        own_hash = row["hash"]
        if rehash:
            digest = row["digest"] if row["body"] is None else hash_bytes(row["body"])
            own_hash = hash_entry(prev, row["header"], digest)
        last[row["entity"]] = seq, own_hash
        yield {**row, "seq": seq, "before": before, "hash": own_hash}


def flip_value(value: Any) -> Any:
    """Return another value of the same type."""
    if value is None:
        return b"\x00" * 32
    if isinstance(value, int):
        return value + 1_000
    if isinstance(value, str):
        return value[:-1] + ("x" if value[-1] != "x" else "y")
    return bytes([value[0] ^ 1]) + value[1:] if value else b"{}"
