"""RECORD: what is written down, and how the current state follows from it.

Everything durable is a chain of entries per entity. An entry has a *header* and a *body*:

    header   what happened (its marks), when, and every field of the entity's state that it sets
    body     what may be large or personal: arguments, results, error texts, proofs, events

    hash  =  SHA-256(hash of the entry before ‖ header ‖ SHA-256(body))

so that a body can be pruned or erased and the chain still verifies. The state of an entity (its head) is
the fold of its headers: each sets some fields, nothing else happens. So heads can be thrown away and
rebuilt, and a header tells by itself what changed.

One transition writes one entry with several marks; `WAL` exports show each mark as an entry of its own.
"""

from __future__ import annotations

from oncemore.core.key import fingerprint
from oncemore.core.model import move
from oncemore.core.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final, Literal

    from oncemore.core.model import Effect, State

    Mark = Literal["PENDING", "RUNNING", "INTENT", "SOFT_FAIL", "HARD_FAIL", "COMMIT", "COMPLETE", "DECISION"]

FORMAT = 1
NOWHERE = b"\x00" * 32  # what the first entry of an entity is linked to


class Run(Value):
    """The state of a key: its last run, and what counts over all of its runs.

    fence       raised by every INTENT; a write with an older one bounces
    attempt     the number of the last attempt, counted over all runs of the key
    tried       attempts of this run
    allowed     how many this run may have
    not_before  the earliest time of the next attempt
    held_for    why it waits for a person, if it does
    committed   the version of the entry whose body holds the result
    """

    state: State = "PENDING"
    key: str = ""
    step: str = ""
    effect: Effect = "once"
    run_id: str = ""
    runs: int = 0
    fence: int = 0
    attempt: int = 0
    tried: int = 0
    allowed: int = 0
    worker: str = ""
    created: float = 0.0
    began: float = 0.0
    not_before: float = 0.0
    held_for: str = ""
    reason: str = ""
    committed: int = 0
    failed: int = 0
    input_hash: str = ""
    cfg_hash: str = ""
    seed: str = ""
    tenant: str = ""
    correlation_id: str = ""
    policy: str = ""
    dataset: str = ""


NOBODY: Final = Run()


class Change(Value):
    """One entry before it has bytes: its marks, the state it leads to, and what goes into the body."""

    marks: tuple[Mark, ...]
    before: Run | None
    after: Run
    body: dict[str, Any]

    @property
    def sets(self) -> dict[str, Any]:
        """The fields that differ from the state before; all of them for the first entry."""
        if self.before is None:
            return self.after._asdict()
        pairs = zip(Run._fields, self.before, self.after, strict=True)
        return {name: new for name, old, new in pairs if new != old}


def fold(run: Run | None, sets: dict[str, Any]) -> Run:
    """Return the state after one header; a move that the table does not have is refused."""
    after = (run or NOBODY)._replace(**sets)
    if run is not None and after.run_id == run.run_id and after.state != run.state:
        move(run.state, after.state)
    return after


def rebuilt(headers: Iterable[dict[str, Any]]) -> Run | None:
    """Return the state that a chain of headers leads to."""
    run: Run | None = None
    for sets in headers:
        run = fold(run, sets)
    return run


def link(prev: bytes, header: bytes, body_digest: bytes) -> bytes:
    """Return the hash of an entry."""
    return fingerprint(prev + header + body_digest)


def due(run: Run) -> float | None:
    """Return when somebody must look at a run again: when it may go on; None if it is over or held."""
    if run.state in ("PENDING", "SOFT_FAIL") and not run.held_for:
        return run.not_before
    return None
