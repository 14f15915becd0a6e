"""Carbon clamp: a storm nowcast fails while the grid is dirty, and still meets its time limit.

At 18:00 the grid is at its worst. A report would wait two and a half times as long; the nowcast (P0) waits at
most 1.25 times as long, because it has to be there within five minutes. What the failed attempts cost in
carbon is recorded.
"""

from __future__ import annotations

import logging
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import oncemore
from oncemore.policy import files
from oncemore.telemetry.records import is_attempt_end
from oncemore.testing import FakeClock

HERE = Path(__file__).parent
SIX_PM = datetime(2026, 11, 3, 18, tzinfo=UTC)
SLO_S = 300.0
SIGNALS = {
    "grid_intensity": {"file": str(HERE / "grid-day.csv")},
    "energy_price": {"file": str(HERE / "price-day.csv")},
}
# The jitter follows from the key, so that this program always prints the same.
POLICY = files.policy("p0-storm-nowcast").replace(jitter_seed="<sha256(idempotency_key)>")


def play(folder: Path) -> oncemore.Run[Any]:
    """Make one nowcast; the radar answers at the third attempt."""

    @oncemore.step(effect="pure", name="storm.nowcast", policy=POLICY, priority="P0")
    def nowcast(tile: str) -> str:
        clock.advance(4)
        oncemore.current().add_usage(energy_kwh=0.02)
        if oncemore.current().number < 3:
            raise oncemore.TransientError("the radar does not answer")
        return f"nowcast of {tile}"

    with (
        FakeClock(start=SIX_PM) as clock,
        oncemore.open(folder / "log.db", signals=SIGNALS) as engine,
        oncemore.context(deadline=engine.now() + SLO_S),
    ):
        # Both files are read in the background; the story begins when they have been.
        assert engine.signals is not None
        engine.signals.read_all(engine.now(), waits=True)
        return nowcast.run("tile-7")


def describe(run: oncemore.Run[Any]) -> list[str]:
    """Return the lines of the story."""
    lines = []
    for proof in run.proofs:
        tuned, base = proof["terms"]["tuned"], proof["terms"]["jittered_s"]
        asked = 1 + tuned["carbon"] + 0.5 * tuned["price"]
        lines.append(
            f"attempt {proof['attempt']} failed: wait {proof['delay_s']:.3f} s = {base:.3f} s x "
            f"{tuned['stretch']:g}, not x {asked:g} (clamps: {', '.join(proof['clamps'])})"
        )
    ends = [record for record in run.records() if is_attempt_end(record)]
    grams = [record["telemetry_snapshot"]["carbon_kgCO2e"] * 1000 for record in ends]
    took = ends[-1]["at"] - run.records()[0]["at"]
    lines.append(f"{run.status} after {took:.0f} s of {SLO_S:.0f} s")
    lines.append(f"carbon: {sum(grams):.1f} g, of which failed attempts {sum(grams[:-1]):.1f} g")
    return lines


def main() -> oncemore.Run[Any]:
    """Play the evening and print it."""
    # The story below says what the log messages would.
    logging.getLogger("oncemore").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        run = play(Path(folder))
        print("\n".join(describe(run)))
        return run


if __name__ == "__main__":
    main()
