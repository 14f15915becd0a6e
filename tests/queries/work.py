"""Steps with every kind of outcome, and a function that runs them all."""

from __future__ import annotations

from contextlib import suppress

import oncemore
from oncemore.policy import files
from oncemore.testing import instant_waits


class FailureCounter:
    """Counts failures by name."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def fail(self, name: str, times: int, error: Exception) -> None:
        """Fail the given number of times."""
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.calls[name] <= times:
            raise error


counted = FailureCounter()
ALWAYS = 99


@oncemore.step(effect="pure", name="squared", dataset="numbers")
def squared(n: int) -> int:
    return n * n


#: Spread, but known: waits of nearly no time could not be seen when a run is drawn.
SURE = files.policy("standard").replace(jitter_seed="looking")


@oncemore.step(
    effect="idempotent",
    name="flaky",
    policy=SURE,
    dataset="rivers",
    tenant=lambda day: f"tenant-{day[-1]}",
)
def flaky(day: str) -> str:
    counted.fail(day, 2, ConnectionResetError("peer went away"))
    return f"rivers of {day}"


@oncemore.step(effect="idempotent", name="hopeless")
def hopeless(day: str) -> None:
    raise TimeoutError(f"no answer for {day}")


@oncemore.step(effect="idempotent", name="wrong")
def wrong(day: str) -> None:
    raise ValueError(f"no such day: {day}")


@oncemore.step(effect="once", name="pay")
def pay(invoice: str) -> None:
    raise ConnectionResetError(f"{invoice}: peer went away, token=sk-secret-1234567890")


SLOW = oncemore.Policy(
    "slow",
    max_attempts=3,
    schedule=oncemore.backoff.fixed(1200, 1500),
    jitter=oncemore.Jitter("none"),
    max_delay_s=9000,
    max_crashes=None,  # its runs have none of the fields that came last
)


@oncemore.step(effect="idempotent", name="polite", policy=SLOW)
def polite(day: str) -> None:
    raise oncemore.TransientError("come back later")


@oncemore.step(effect="outbox", name="announce")
def announce(day: str) -> str:
    oncemore.current().emit("days", {"day": day})
    return day


@oncemore.step(effect="pure", name="chart")
def chart(day: str) -> oncemore.Artifact:
    return oncemore.current().put(f"chart of {day}\n".encode(), name="chart.txt")


@oncemore.step(effect="idempotent", name="halves")
def halves(day: str) -> int:
    here = oncemore.current()
    done = here.resume() or 0
    here.checkpoint(done + 1)
    counted.fail(f"half {day}", 1, ConnectionResetError("in the middle"))
    return done + 1


def run_all_steps(engine: oncemore.Engine) -> None:
    """Run every step to its outcome."""
    counted.calls.clear()
    refused = (oncemore.errors.StepFailed, oncemore.errors.CallRefused, oncemore.errors.OutcomeUncertain)
    with instant_waits(), engine:
        for n in range(3):
            squared(n)
        squared(1)
        for work in (flaky, hopeless, wrong, pay, polite, announce, chart, halves):
            with suppress(*refused), oncemore.context(correlation_id=f"corr-{work.name}", actor="operator"):
                work("2026-11-16")
        with suppress(*refused), oncemore.context(actor="operator"):
            hopeless.rerun("2026-11-16", reason="the provider is back")
