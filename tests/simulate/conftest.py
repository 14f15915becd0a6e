"""Fixtures: an environment without settings, and a recorded incident."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.policy import files
from oncemore.testing import FakeClock
from tests.fixtures import _isolated

if TYPE_CHECKING:
    from pathlib import Path

OUTAGE_S = 400.0


def record_incident(path: Path | str, *, count: int = 6, policy: str = "kfm-loop") -> None:
    """Record runs of a report that an outage of 400 s lets fail; each attempt takes 5 s."""
    chosen = files.policy(policy)

    @oncemore.step(effect="pure", name="monthly.report", policy=chosen, priority="P2")
    def report(n: int) -> int:
        clock.advance(5.0)
        if clock.wall() < outage_ends:
            raise oncemore.TransientError("warehouse busy")
        return n * n

    with oncemore.open(path), FakeClock(time.time()) as clock:
        for n in range(count):
            outage_ends = clock.wall() + OUTAGE_S
            with oncemore.context(deadline=clock.wall() + 7200.0):
                while True:
                    try:
                        report(n)
                        break
                    except oncemore.Deferred as deferred:
                        # Called again when it is due, as a worker would.
                        clock.advance(max(0.001, deferred.until - clock.wall()))


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a recorded incident."""
    path = tmp_path_factory.mktemp("incident") / "log.db"
    record_incident(path)
    return path


__all__ = ["_isolated"]
