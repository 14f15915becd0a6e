"""An engine opens its store when it is first needed, and once it is closed nothing of it is left open."""

from __future__ import annotations

import oncemore
from oncemore.store.memory import MemoryStore


def test_closing_gives_back_leases_without_opening_the_store_again() -> None:
    opened: list[MemoryStore] = []

    def opens() -> MemoryStore:
        opened.append(MemoryStore())
        return opened[-1]

    @oncemore.step(effect="pure")
    def work(n: int) -> int:
        return n

    engine = oncemore.Engine(opens, "memory:")
    assert work.on(engine)(1) == 1
    engine.close()
    assert len(opened) == 1
    work.on(engine)(1)
    assert len(opened) == 2, "used again, it opens again"
    engine.close()
    assert len(opened) == 2
