"""A job on a Dask cluster: processes of its own, one of which is killed."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.steps.history import verify_chain
from tests.workers.engines import work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

distributed = pytest.importorskip("distributed", reason="Dask is not installed; make engines runs this")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # its own
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            2, processes=True, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL + 1
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_attempts_are_made_by_its_workers(client: Any, tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db", lease_s=7.5) as engine:
        pids = work.where.map([(n, 0.1) for n in range(8)], unpack="args", executor=client).values
        assert len(set(pids)) == 2
        assert os.getpid() not in pids
        assert os.getpid() not in asyncio.run(work.awhere.map(range(4), executor=client)).values
        assert work.around.map([1], executor=client).values[0][1:] == [7.5, engine.url]
        met = work.asks.map(["a1", "b1", "c1", "d1"], executor=client)
        assert [item.outcome for item in met.items] == ["done", "done", "failed", "done"]
        refused = work.where.map([1, lambda: 2], executor=client)
        assert [item.outcome for item in refused.items] == ["done", "refused"]
        verify_chain(engine.store.read_entries())


def test_a_killed_worker_costs_an_attempt_and_nothing_else(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "effects"
    with oncemore.open(tmp_path / "log.db") as engine:
        job = work.stumbles.map([(n, str(path)) for n in range(6)], unpack="args", executor=client)
        assert job.outcome == "COMPLETE"
        run = job.runs[3]
        assert run is not None
        assert len(run.attempts) == 2
        verify_chain(engine.store.read_entries())
    assert work.noted(path).count("3") == 2
    assert sorted(set(work.noted(path))) == ["0", "1", "2", "3", "4", "5"]


def test_a_scheduler_in_this_process_uses_the_engine_that_is_here(tmp_path: Path) -> None:
    with (
        distributed.LocalCluster(1, processes=False, dashboard_address=None, silence_logs=60) as cluster,
        distributed.Client(cluster) as client,
        oncemore.open(tmp_path / "log.db"),
    ):
        assert set(work.where.map(range(3), executor=client).values) == {os.getpid()}
