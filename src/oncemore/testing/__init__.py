"""For your tests: time that does not have to pass, and delays that can be looked at.

    with oncemore.testing.instant() as clock:
        fetch("https://…")
    assert clock.delays == [1.0, 2.0]

Inside the block every wait of oncemore ends at once and is recorded; `attempts=1` switches repeats off
everywhere, `attempts=2` lets each call have two. Nothing is patched: another clock is put in place,
for the whole process, until the block ends. The pytest fixture `instant_retries` is the same.
"""

from __future__ import annotations

from oncemore.testing.clock import FakeClock, instant

__all__ = ["FakeClock", "instant"]
