"""Deadline catch-up: a report that lost hours to an outage is still done before its deadline.

The report was submitted at midnight and is due at 06:00. Its worker was down until 05:45. The warehouse does
not answer before 05:55; the report then takes two minutes. The same night is played twice: with the deadline
bias of the policy, and without it.
"""

from __future__ import annotations

import logging
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import oncemore
from oncemore.policy import files
from oncemore.testing import FakeClock

MIDNIGHT = datetime(2026, 11, 3, tzinfo=UTC)
WORKER_BACK_S, WAREHOUSE_BACK_S, DEADLINE_S = 345 * 60, 355 * 60, 360 * 60
REPORT_S = 120
#: A dirty grid at a high price: together they stretch every delay by 2.5.
SIGNALS = {"grid_intensity": 620, "energy_price": 0.31}


def play(folder: Path, *, bias: bool) -> oncemore.Run[Any]:
    """Play the night once and return the run of the report."""
    policy = files.policy("p2-batch-reporting")
    assert policy.tuning is not None
    # The jitter follows from the key, so that this program always prints the same.
    policy = policy.replace(
        jitter_seed="<sha256(idempotency_key)>", tuning=policy.tuning._replace(deadline_bias=bias)
    )

    @oncemore.step(effect="pure", name="monthly.report", policy=policy, priority="P2")
    def report(month: str) -> str:
        if clock.monotonic() < WAREHOUSE_BACK_S:
            clock.advance(5)
            raise oncemore.TransientError("the warehouse does not answer")
        clock.advance(REPORT_S)
        return f"report of {month}"

    store = folder / f"bias-{bias}.db"
    with (
        FakeClock(start=MIDNIGHT) as clock,
        oncemore.open(store, signals=SIGNALS, max_inline_wait_s=3600) as engine,
    ):
        with oncemore.context(deadline=engine.now() + DEADLINE_S):
            report.submit("2026-10")
        clock.advance(WORKER_BACK_S)
        return report.run("2026-10")


def describe(run: oncemore.Run[Any]) -> list[str]:
    """Return one line per attempt, and the end of the run."""
    lines = []
    for proof in run.proofs:
        tuned = proof["terms"]["tuned"]
        at = datetime.fromtimestamp(proof["inputs"]["now"], UTC)
        text = f"  {at:%H:%M:%S}  attempt {proof['attempt']} failed; risk {tuned['risk']:.2f}"
        wait = f"wait {proof['delay_s']:.0f} s" if proof["action"] == "retry" else "no wait fits: stop"
        lines.append(f"{text}, {wait}")
    ended = datetime.fromtimestamp(run.records()[-1]["at"], UTC)
    left = DEADLINE_S - (ended - MIDNIGHT).total_seconds()
    verdict = f"{left:.0f} s before the deadline" if left >= 0 else f"the deadline is missed by {-left:.0f} s"
    return [*lines, f"  {ended:%H:%M:%S}  {run.status}, {verdict}"]


def main() -> dict[str, oncemore.Run[Any]]:
    """Play both nights and print them."""
    # The story below says what the log messages would.
    logging.getLogger("oncemore").setLevel(logging.ERROR)
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for title, bias in (("with deadline bias", True), ("without deadline bias", False)):
            runs[title] = play(Path(folder), bias=bias)
            print(f"{title}, due at 06:00:00")
            print("\n".join(describe(runs[title])))
    return runs


if __name__ == "__main__":
    main()
