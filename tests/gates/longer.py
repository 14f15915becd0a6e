"""Makes an open breaker last as long as a test likes, by the same kind of write as any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.limits.breaker import waited_for
from oncemore.limits.shared_breaker import Shared

if TYPE_CHECKING:
    import oncemore
    from oncemore.log.record import Circuit


def lasting(engine: oncemore.Engine, found: Circuit, seconds: float) -> None:
    book = Shared(found.name, lambda: engine)

    def turn(at: Circuit, now: float, held: bool) -> tuple[Circuit, None]:
        return at._replace(until=now + seconds, cooldown_s=seconds), None

    waited_for(book.changed(engine, turn, None))
