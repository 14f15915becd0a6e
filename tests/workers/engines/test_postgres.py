"""On PostgreSQL nobody can tell that a process is dead: what it had is found by its lease."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.steps.history import verify_chain
from tests.servers import postgres
from tests.workers.engines import work
from tests.workers.engines.test_executors import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


def test_a_killed_process_is_found_by_its_lease_and_the_item_goes_on(url: str, tmp_path: Path) -> None:
    path, began = tmp_path / "effects", time.monotonic()
    with oncemore.open(url, lease_s=0.6) as engine, processes(1) as pool:
        assert engine.open_arguments is not None
        assert engine.open_arguments[0] == url
        assert engine.url != url or ":" not in url.rpartition("@")[0].removeprefix("postgresql://")
        job = work.stumbles.map([(n, str(path)) for n in (1, 3, 5)], unpack="args", executor=pool)
        verify_chain(engine.store.read_entries())
    assert job.outcome == "COMPLETE"
    assert work.noted(path).count("3") == 2
    assert time.monotonic() - began > 0.4, "its lease had to end first"
