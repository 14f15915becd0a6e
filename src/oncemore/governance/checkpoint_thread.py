"""Make checkpoints at an interval, in a thread of its own, while a worker runs.

Steps do not wait for it: it reads the log and appends one entry, as any other process may. Of all workers of
a store the first one whose interval is over makes the checkpoint; the others find it made. A mismatch is
logged as an error at every interval and stops no work: work that is done stays done, and an operator has to
look at the store.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oncemore.errors import Error, LedgerMismatch, log_warning
from oncemore.governance.checkpoints import load_signer, make_checkpoint
from oncemore.governance.log_order import load_ledger_head
from oncemore.governance.signed_note import parse_note
from oncemore.steps.engine import log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.config import EngineSettings
    from oncemore.governance.checkpoints import LedgerSigner
    from oncemore.steps.engine import Engine


@contextmanager
def make_checkpoints_regularly(engine: Engine, settings: EngineSettings) -> Iterator[None]:
    """Make checkpoints while the block runs, and one at its end; do nothing without `ledger_key`."""
    if not settings.ledger_key:
        yield
        return
    # A wrong key or place must stop the worker at its start, and not be found by an auditor.
    signer = load_signer(settings.ledger_key, settings.ledger_copy)
    stopped = threading.Event()

    def run_thread() -> None:
        while not stopped.wait(make_due_checkpoint(engine, signer, settings.ledger_every_s)):
            pass

    thread = threading.Thread(target=run_thread, name="oncemore-checkpoints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        # Work that ended since the last interval would otherwise stay uncovered until the next start.
        make_due_checkpoint(engine, signer, 0.0)


def make_due_checkpoint(engine: Engine, signer: LedgerSigner, every_s: float) -> float:
    """Make a checkpoint if the last one is old enough; return the seconds until the next one is due."""
    try:
        # By the store's clock, so that all workers of a store agree on the age.
        record = load_ledger_head(engine).record
        age_s = every_s if record is None else engine.now() - parse_note(record.note)[0].at
        # A clock that was set back must not stop the checkpoints.
        if 0.0 <= age_s < every_s:
            return every_s - age_s
        report = make_checkpoint(engine, signer)
    except LedgerMismatch as fault:
        log.error("oncemore: LEDGER: %s", fault)
    except Error as error:
        log_warning(f"no checkpoint could be made: {error}; the worker tries again in {every_s:g} s")
    else:
        if report.is_new:
            log.info("oncemore: checkpoint of %d entries signed", report.checkpoint.size)
    return every_s
