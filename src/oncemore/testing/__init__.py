"""Test support: waits that end at once, and a record of the delays.

    with oncemore.testing.instant_waits() as clock:
        fetch("https://…")
    assert clock.delays == [1.0, 2.0]

Inside the block every wait of oncemore ends at once and is recorded; `attempts=1` disables retries
everywhere, `attempts=2` limits each call to two attempts. Nothing is patched: the process uses another clock
until the block ends. The pytest fixture `instant_retries` does the same.

The folder also has the store contract, real nats-servers and a fault proxy. It imports `log`, `policy`
and the clock; in the package only `demo` and the replay sandbox of `maintenance` import it.
"""

from __future__ import annotations

from oncemore.testing.clock import FakeClock, instant_waits

__all__ = ["FakeClock", "instant_waits"]
