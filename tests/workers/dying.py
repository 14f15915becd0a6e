"""A process that begins a run and is then gone, as far as anybody can see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.log.head_access import load_head
from oncemore.steps.driver import _BLOCKING, _IMMEDIATE
from oncemore.steps.ops import RunAttempt

if TYPE_CHECKING:
    import oncemore


def begin_and_fall_silent(dead: oncemore.Engine, work: Any, x: int) -> oncemore.Engine:
    """Claim a run and do nothing more: no work, no heartbeat; the lease is not over."""
    job, script, _ = work.as_known_step.resume_run(
        dead, load_head(dead.store, f"run/{work.bind(dead).key(x)}")
    )
    op = next(script)
    while type(op) is not RunAttempt:
        op = script.send((_IMMEDIATE.get(type(op)) or _BLOCKING[type(op)])(job, op))
    script.close()
    assert dead._heartbeat is not None
    dead._heartbeat.stop_heartbeat()
    return dead
