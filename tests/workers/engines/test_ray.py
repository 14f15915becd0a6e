"""A job on Ray: its workers are processes, one of which is killed."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.steps.history import verify_chain
from tests.workers.engines import work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ray = pytest.importorskip("ray", reason="Ray is not installed; make engines runs this")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # its own
    pytest.mark.timeout(180),
]


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    root = str(work.__file__).rpartition("/tests/")[0]  # its workers must be able to import these tests
    yield ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="critical",
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}},
    )  # fmt: skip
    ray.shutdown()


def test_attempts_are_made_by_its_workers(runtime: Any, tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db", lease_s=7.5) as engine:
        pids = work.where.map([(n, 0.1) for n in range(8)], unpack="args", executor=ray).values
        assert os.getpid() not in pids
        assert os.getpid() not in asyncio.run(work.awhere.map(range(4), executor=runtime)).values
        assert work.around.map([1], executor=ray).values[0][1:] == [7.5, engine.url]
        met = work.asks.map(["a1", "b1", "c1", "d1"], executor=ray)
        assert [item.outcome for item in met.items] == ["done", "done", "failed", "done"]
        verify_chain(engine.store.read_entries())


def test_a_killed_worker_costs_an_attempt_and_nothing_else(runtime: Any, tmp_path: Path) -> None:
    path = tmp_path / "effects"
    with oncemore.open(tmp_path / "log.db") as engine:
        job = work.stumbles.map([(n, str(path)) for n in range(6)], unpack="args", executor=ray)
        assert job.outcome == "COMPLETE"
        assert [len(run.attempts) for run in job.runs if run] == [1, 1, 1, 2, 1, 1]
        verify_chain(engine.store.read_entries())
    assert sorted(work.noted(path)) == ["0", "1", "2", "3", "3", "4", "5"]


def test_what_nobody_waits_for_any_more_is_cancelled(runtime: Any, tmp_path: Path) -> None:
    path = tmp_path / "effects"

    async def main() -> None:
        async with asyncio.timeout(3):
            await work.aslow.map([(n, str(path)) for n in range(50)], unpack="args", executor=ray)

    with oncemore.open(tmp_path / "log.db") as engine, pytest.raises(TimeoutError):
        asyncio.run(main())
    with oncemore.open(tmp_path / "log.db") as engine:
        assert engine.jobs()[0].state == "STOPPED"
    assert len(work.noted(path)) < 50
