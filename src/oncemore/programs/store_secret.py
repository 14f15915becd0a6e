"""The secret of a store: 32 random bytes under which the keys of command lines are computed (ADR 0024).

It is one entity of the log, written once and never changed. So every store has it, a backup and `copy` take
it along, of two processes that create it at once the compare-and-set lets one win, and a process that dies
before the append leaves nothing. The append is synced before the first key is computed: no run can outlive
the secret that its key was computed under.
"""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING

from oncemore.control.moved_log import write_here
from oncemore.errors import StoreError
from oncemore.log.head_access import seen_in, write_of
from oncemore.log.record import NOWHERE, Change, StoreSecret

if TYPE_CHECKING:
    from oncemore.steps.engine import Engine

ENTITY = "secret/hmac"
BYTES = 32


def load_store_secret(engine: Engine) -> bytes:
    """Return the secret of an engine's store; create it if the store has none."""
    head = seen_in(engine.store, ENTITY, engine.seal, StoreSecret)
    if head.run is None:
        now = engine.now()
        change = Change(("SECRET",), None, StoreSecret(created=now), {"secret": token_hex(BYTES)})
        # A conflict means that another process was first: its secret is read below.
        write_here(engine, "the store's secret", (write_of(ENTITY, 0, NOWHERE, change, now, engine.seal),))
        head = seen_in(engine.store, ENTITY, engine.seal, StoreSecret)
    if head.body is None:
        raise StoreError(
            f"{engine.url}: the bytes of {ENTITY} are gone, and with them the keys of `oncemore exec`; "
            "restore a backup that has them"
        )
    return bytes.fromhex(head.body["secret"])
