"""A process that begins a run and is then gone, as far as anybody can see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.log.entry_codec import load_head
from oncemore.steps.call_operations import CALL_OPERATIONS
from oncemore.steps.decorator import known_step
from oncemore.steps.ops import RunAttempt

if TYPE_CHECKING:
    import oncemore


def begin_and_fall_silent(dead: oncemore.Engine, work: Any, x: int) -> oncemore.Engine:
    """Claim a run and do nothing more: no work, no heartbeat; the lease is not over."""
    call, script, _ = known_step(work).resume_run(
        dead, load_head(dead.store, f"run/{work.bind(dead).key(x)}")
    )
    op = next(script)
    while type(op) is not RunAttempt:
        op = script.send(CALL_OPERATIONS.blocking[type(op)](call, op))
    script.close()
    assert dead.leases.heartbeat is not None
    dead.leases.heartbeat.stop_heartbeat()
    return dead
