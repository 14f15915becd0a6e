"""A provider that throttles is asked less by everybody who shares a store, and more again step by step."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.limits import concurrency
from oncemore.log.entry_codec import decode_head, decode_header
from oncemore.log.record import QuotaRecord, apply_header
from oncemore.log.store import HeadQuery
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from tests.limits.server import Provider, provider

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.testing import FakeClock

#: Enough attempts for a busy machine, where some begin before others have told that they were throttled.
POLICY = Policy("paces", max_attempts=10, schedule=Schedule("fixed", delays=(0.05,)), jitter=Jitter("full"))


@pytest.fixture
def served() -> Iterator[Provider]:
    with provider() as told:
        yield told


def known(engine: oncemore.Engine, name: str = "api") -> QuotaRecord | None:
    head = engine.store.load_head(f"quota/{name}")
    return None if head is None else decode_head(head.head, QuotaRecord)


def limits(engine: oncemore.Engine, name: str = "api") -> list[int]:
    """What the limit was, one after the other, as the log has it."""
    state: QuotaRecord | None = None
    found: list[int] = []
    for entry in engine.store.read_entries(f"quota/{name}"):
        state = apply_header(state, decode_header(entry.header).sets, QuotaRecord)
        if state.concurrency and (not found or found[-1] != state.concurrency):
            found.append(state.concurrency)
    return found


@pytest.mark.req("CONC-5")
def test_the_limit_of_a_fleet_goes_down_by_half_and_back_step_by_step(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    paces = engine.concurrency_limits
    assert paces.begin_call("api")
    assert known(engine) is None  # nothing is written while nobody throttles
    for _ in range(2):
        clock.advance(1)
        paces.record_throttling("api", engine.now(), 5)
    assert not paces.begin_call("api")
    paces.end_call("api")
    for _ in range(6):
        clock.advance(5.1)
        if paces.begin_call("api"):
            paces.end_call("api")
    assert limits(engine) == [2, 1, 2, 3, 4, 5]
    found = known(engine)
    assert found is not None
    assert (found.throttled, found.max_concurrency, found.active_calls) == (2, 5, {})
    assert [paces.begin_call("api") for _ in range(9)] == [True] * 9  # each by its own limit again


def test_an_attempt_that_began_before_the_last_change_tells_nothing_new(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    began = engine.now()
    clock.advance(1)
    for _ in range(3):
        engine.concurrency_limits.record_throttling("api", began, 5)
    found = known(engine)
    assert found is not None
    assert (found.concurrency, found.throttled) == (2, 3)


def test_who_names_no_provider_shares_nothing(engine: oncemore.Engine) -> None:
    assert engine.concurrency_limits.begin_call("")
    engine.concurrency_limits.record_throttling("", 0.0)
    engine.concurrency_limits.end_call("")
    assert not list(engine.store.list_heads(HeadQuery("quota")))


def test_two_engines_share_the_permits_of_one_store(tmp_path: Path, clock: FakeClock) -> None:
    with oncemore.open(tmp_path / "log.db") as one, oncemore.open(tmp_path / "log.db") as other:
        one.concurrency_limits.record_throttling("api", one.now(), 5)
        assert (one.concurrency_limits.begin_call("api"), other.concurrency_limits.begin_call("api")) == (
            True,
            True,
        )
        assert (one.concurrency_limits.begin_call("api"), other.concurrency_limits.begin_call("api")) == (
            False,
            False,
        )
        one.concurrency_limits.end_call("api")
        assert (other.concurrency_limits.begin_call("api"), one.concurrency_limits.begin_call("api")) == (
            True,
            False,
        )
        found = known(one)
        assert found is not None
        assert found.active_calls == {other.leases.current_identity().name: 2}
        other.close()  # and its permits end with it
        assert one.concurrency_limits.begin_call("api")
        found = known(one)
        assert found is not None
        assert found.active_calls == {one.leases.current_identity().name: 1}


def test_calls_that_had_begun_before_count_as_permits(engine: oncemore.Engine, clock: FakeClock) -> None:
    for _ in range(3):
        assert engine.concurrency_limits.begin_call("api")
    engine.concurrency_limits.record_throttling("api", engine.now(), 5)
    assert not engine.concurrency_limits.begin_call("api")  # three are under way, two may be
    engine.concurrency_limits.end_call("api")
    assert not engine.concurrency_limits.begin_call("api")
    engine.concurrency_limits.end_call("api")
    assert engine.concurrency_limits.begin_call("api")


def asked(n: int, url: str) -> str:
    with urllib.request.urlopen(f"{url}/{n}", timeout=20) as answer:  # noqa: S310 - our own
        return str(answer.read().decode())


@oncemore.step(effect="idempotent", name="paced", policy=POLICY, provider="api", ignore="url")
def paced(n: int, url: str = "") -> str:
    return asked(n, url or URL[0])


URL = [""]


def counts_under_the_limit(engine: oncemore.Engine, served: Provider, begun: int) -> list[int]:
    """Return how many requests were under way at the start of each that came under the limit.

    When the limit was written, so many calls at most had begun. Their requests may come later than that, and
    a call that is throttled makes several.
    """
    known_at = min(decode_header(entry.header).at for entry in engine.store.read_entries("quota/api"))
    before = sum(at <= known_at for at, _ in served.peaks)
    had_begun = {request.path for request in served.requests[: before + begun]}
    settled = max(
        end for request, end in zip(served.requests, served.ends, strict=True) if request.path in had_begun
    )
    return [count for at, count in served.peaks if at > settled]


def test_two_jobs_together_keep_to_the_limit_of_a_provider_that_throttles(
    tmp_path: Path, served: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two maps of five toward a server that takes two at once: after it has said so, there are no more."""
    URL[0], served.delay_s, served.most = served.url, 0.05, 2
    monkeypatch.setattr(concurrency, "QUIET_PERIOD_S", 60.0)
    monkeypatch.setattr("oncemore.workers.map_items.QUIET_PERIOD_S", 60.0)
    found: list[Any] = []

    def job(first: int) -> None:
        with oncemore.open(tmp_path / "log.db"):
            found.append(paced.map(range(first, first + 40), progress="off"))

    jobs = [threading.Thread(target=copy_context().run, args=(job, first)) for first in (0, 100)]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join(60)
    assert [job.outcome for job in found] == ["COMPLETE", "COMPLETE"]
    assert served.peak > 2  # at first
    with oncemore.open(tmp_path / "log.db") as engine:
        told = known(engine)
        assert told is not None
        assert told.throttled >= 1
        assert limits(engine)[0] == 2
        late = counts_under_the_limit(engine, served, begun=10)
    assert late
    assert max(late) <= 2
    throttled = sum(one.providers["api"].errors.get("THROTTLED", 0) for one in found)
    assert throttled >= 1


def test_a_worker_asks_less_of_a_provider_that_throttles(
    tmp_path: Path, served: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    URL[0], served.delay_s, served.most = served.url, 0.03, 2
    monkeypatch.setattr(concurrency, "QUIET_PERIOD_S", 60.0)
    with oncemore.open(tmp_path / "log.db") as engine:
        for n in range(15):
            paced.submit(n)
        worker = oncemore.Worker(engine, [paced], concurrency=5, poll_s=0.05)
        ends = time.monotonic() + 30
        while worker.stats.done < 15 and time.monotonic() < ends:
            worker.run_until_idle()
        assert worker.stats.done == 15
        told = known(engine)
        assert told is not None
        assert (told.max_concurrency, told.throttled >= 1, told.active_calls) == (5, True, {})
        assert max(counts_under_the_limit(engine, served, begun=5), default=0) <= 2


def test_a_worker_waits_for_permits_that_others_have(tmp_path: Path, clock: FakeClock) -> None:
    with oncemore.open(tmp_path / "log.db") as engine, oncemore.open(tmp_path / "log.db") as other:
        other.concurrency_limits.record_throttling("api", other.now(), 3)
        assert other.concurrency_limits.begin_call("api")

        @oncemore.step(effect="idempotent", name="waits", provider="api")
        def waits(n: int) -> int:
            return n

        waits.bind(engine).submit(1)
        worker = oncemore.Worker(engine, [waits], poll_s=0.02)
        thread = threading.Thread(target=worker.run_until_idle, daemon=True)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        assert worker.stats.done == 0
        other.concurrency_limits.end_call("api")
        thread.join(20)
        assert not thread.is_alive()
        assert worker.stats.done == 1


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_a_job_waits_for_permits_that_others_have(tmp_path: Path, colour: str) -> None:
    @oncemore.step(effect="idempotent", name="mapped", provider="api")
    def mapped(n: int) -> int:
        return n

    @oncemore.step(effect="idempotent", name="amapped", provider="api")
    async def amapped(n: int) -> int:
        return n

    found: list[Any] = []

    def job() -> None:
        with oncemore.open(tmp_path / "log.db"):
            found.append(
                asyncio.run(_awaited(amapped)) if colour == "async" else mapped.map([1, 2], progress="off")
            )

    with oncemore.open(tmp_path / "log.db") as other:
        other.concurrency_limits.record_throttling("api", other.now(), 3)
        assert other.concurrency_limits.begin_call("api")
        thread = threading.Thread(target=job, daemon=True)
        thread.start()
        thread.join(0.4)
        assert thread.is_alive()
        assert not found
        other.concurrency_limits.end_call("api")
        thread.join(20)
        assert found
        assert found[0].values == [1, 2]


async def _awaited(step: Any) -> Any:
    return await step.map([1, 2], progress="off")


def test_a_store_that_fails_stops_no_work_for_the_sake_of_a_pace(
    engine: oncemore.Engine,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine.concurrency_limits.record_throttling("api", engine.now(), 5)
    assert engine.concurrency_limits.begin_call("api")

    def down(*told: object) -> Any:
        raise StoreError("gone")

    with monkeypatch.context() as broken:
        broken.setattr(engine.store, "append", down)
        engine.concurrency_limits.record_throttling("api", engine.now(), 5)
        engine.concurrency_limits.end_call("api")
    assert caplog.text.count("the concurrency limit of api could not be written to the store: gone") == 2
    with monkeypatch.context() as broken:
        broken.setattr(engine.store, "load_head", down)
        engine.concurrency_limits.end_call("api")
