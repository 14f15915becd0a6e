"""A process that begins a run and is then gone, as far as anybody can see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.log.head_access import seen_in
from oncemore.steps.driver import _BLOCKING, _QUICK
from oncemore.steps.ops import Work

if TYPE_CHECKING:
    import oncemore


def begin_and_fall_silent(dead: oncemore.Engine, work: Any, x: int) -> oncemore.Engine:
    """Claim a run and do nothing more: no work, no heartbeat; the lease is not over."""
    job, script, _ = work.hand.resume(dead, seen_in(dead.store, f"run/{work.on(dead).key(x)}"))
    op = next(script)
    while type(op) is not Work:
        op = script.send((_QUICK.get(type(op)) or _BLOCKING[type(op)])(job, op))
    script.close()
    assert dead._heart is not None
    dead._heart.stop()
    return dead
