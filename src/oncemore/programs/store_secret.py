"""The secret of a store: 32 random bytes that key the HMACs of command lines (ADR 0024).

The secret is an entity of the log, written once and never changed. Therefore every store has it, `backup` and
`copy` include it, the compare-and-set lets one of two processes win that create it at once, and a process
that dies before the append leaves nothing. The append is synced before the first key is computed: no run can
outlive the secret of its key.
"""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from oncemore.control.moved_log import append_if_not_moved
from oncemore.errors import StoreError
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.record import NOWHERE, RecordChange, StoreSecret

if TYPE_CHECKING:
    from oncemore.steps.engine import Engine

ENTITY = "secret/hmac"
BYTES = 32


def load_store_secret(engine: Engine) -> bytes:
    """Return the secret of an engine's store; create it if the store has none.

    Raises `StoreError` if the log has lost its bytes: a new secret would give every command line a new key,
    and finished work would run again.
    """
    head = load_head(engine.store, ENTITY, engine.cipher, StoreSecret)
    if head.record is None:
        # The entry is chained to an empty head: of two processes only one can append it.
        now = engine.now()
        change = RecordChange(("SECRET",), None, StoreSecret(created_at=now), {"secret": token_hex(BYTES)})
        # A conflict means that another process was first: the second load reads its secret.
        append_if_not_moved(
            engine, "the store's secret", (build_write(ENTITY, 0, NOWHERE, change, now, engine.cipher),)
        )
        head = load_head(engine.store, ENTITY, engine.cipher, StoreSecret)
    if head.body is None:
        raise StoreError(
            f"{engine.url}: the bytes of {ENTITY} are missing, and with them the keys of `oncemore exec`; "
            "restore a backup that has them"
        )
    return bytes.fromhex(head.body["secret"])
