"""Makes an open breaker last as long as a test likes, by the same kind of write as any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.limits.breaker import run_limit_script
from oncemore.limits.shared_breaker import StoredBreakerState

if TYPE_CHECKING:
    import oncemore
    from oncemore.log.record import BreakerRecord


def lasting(engine: oncemore.Engine, found: BreakerRecord, seconds: float) -> None:
    book = StoredBreakerState(found.name, lambda: engine)

    def turn(at: BreakerRecord, now: float, held: bool) -> tuple[BreakerRecord, None]:
        return at._replace(open_until=now + seconds, cooldown_s=seconds), None

    run_limit_script(book.update_stored_state(engine, turn, None))
