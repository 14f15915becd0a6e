"""The storm on a store in NATS: workers are killed at named moments and at random, and the server with them.

Nothing but its lease tells that a worker is gone there, so leases are short: whoever takes over waits for the
end of one. `make torture` kills more, ONCEMORE_KILLS of them.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers import nats
from tests.storm import storm
from tests.storm.crew import Crew
from tests.storm.points import Point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.storm.crew import Warm

TORTURE = os.environ.get("ONCEMORE_TORTURE") == "1"
KILLS = int(os.environ.get("ONCEMORE_KILLS", "500" if TORTURE else "12"))
LEASE_S = 0.5
MOMENTS = (
    *(Point(mark, when) for mark in ("INTENT", "COMMIT") for when in ("before", "after")),
    Point("work:begin"),
    Point("effect:after"),
)


@pytest.fixture(scope="module")
def node() -> Iterator[nats.Node]:
    try:
        with nats.node() as made:
            yield made
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def crew(warm: Warm, node: nats.Node) -> Iterator[Crew]:
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        crew = Crew(warm, Path(folder), f"{node.url}/{Path(folder).name.replace('-', '_').lower()}", LEASE_S)
        yield crew
        crew.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("step", ["charge", "pay"])
def test_a_kill_at_a_named_moment_is_followed_by_an_end_without_help(crew: Crew, step: str) -> None:
    orders = [[step, f"{point.mark}-{point.when}", 0] for point in MOMENTS]
    first = [
        crew.call(step, order, point=point) for (_, order, _), point in zip(orders, MOMENTS, strict=True)
    ]
    for point, child in zip(MOMENTS, first, strict=True):
        assert child.wait() == -signal.SIGKILL, f"{point} was not reached\n{crew.complaints()}"
    storm.finish(crew, orders)
    # A kill before INTENT leaves nothing, after COMMIT everything; in between nobody can know.
    settled = storm.settle(crew, orders)
    assert settled == (4 if step == "pay" else 0)
    storm.finish(crew, orders)
    report = storm.report(crew)
    print(f"{step}: {len(MOMENTS)} kills, {settled} settled by hand; {report}")
    assert not report.violations
    assert report.complete == len(orders)
    assert not crew.complaints()


@pytest.mark.timeout(1200)
def test_workers_and_the_server_are_killed_at_random_and_nothing_is_lost_or_done_twice(
    crew: Crew, node: nats.Node
) -> None:
    seed = os.environ.get("ONCEMORE_STORM_SEED", f"{random.SystemRandom().getrandbits(32):08x}")
    print(f"ONCEMORE_STORM_SEED={seed}")
    over, deaths = threading.Event(), [0]

    def restart() -> None:
        while not over.wait(3.0 if TORTURE else 1.0):
            node.kill()
            time.sleep(0.1)
            node.start().wait_ready()
            deaths[0] += 1

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        orders = storm.rage(crew, KILLS, seed, longest_life_s=0.2)
    finally:
        over.set()
        thread.join()
    storm.finish(crew, orders)
    settled = storm.settle(crew, orders)
    storm.finish(crew, orders)
    report = storm.report(crew)
    print(f"{KILLS} kills at random, {deaths[0]} of the server; {settled} settled by hand; {report}")
    assert not report.violations
    assert report.runs == len(orders)
    assert report.lost > KILLS // 20 or KILLS < 100, "hardly any kill hit an attempt"
    assert not crew.complaints()
