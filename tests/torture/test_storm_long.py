"""The kill storm with any number of kills: ONCEMORE_KILLS, 2,000 in `make torture`."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.storm import storm
from tests.storm.crew import Crew, Warm

if TYPE_CHECKING:
    from collections.abc import Callable

KILLS = int(os.environ.get("ONCEMORE_KILLS", "2000" if os.environ.get("ONCEMORE_TORTURE") else "20"))
AT_A_TIME = 500


@pytest.mark.timeout(3600)
@pytest.mark.req("STATE-10", "WAL-8")
def test_a_long_storm_loses_nothing_and_does_nothing_twice(
    record_property: Callable[[str, object], None],
) -> None:
    seed = os.environ.get("ONCEMORE_STORM_SEED", f"{random.SystemRandom().getrandbits(32):08x}")
    print(f"ONCEMORE_STORM_SEED={seed}")
    for number, kills in enumerate(_parts(KILLS)):
        with tempfile.TemporaryDirectory(prefix="storm-") as folder:
            warm = Warm()
            crew = Crew(warm, Path(folder))
            orders = storm.rage(crew, kills, f"{seed}/{number}")
            storm.finish(crew, orders)
            settled = storm.settle(crew, orders)
            storm.finish(crew, orders)
            report = storm.report(crew)
            told = f"{kills} kills at random; {settled} settled by hand; {report}"
            print(told, flush=True)
            record_property("storm", told)
            complaints = crew.complaints()
            crew.close()
            warm.close()
        assert not report.violations
        assert not complaints


def _parts(kills: int) -> list[int]:
    """Return storms of a size that the last look at everything can keep in memory."""
    return [AT_A_TIME] * (kills // AT_A_TIME) + ([kills % AT_A_TIME] if kills % AT_A_TIME else [])
