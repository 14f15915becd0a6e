"""Durable steps at the breaker of their provider: no attempt while it is open, and none is counted."""

from __future__ import annotations

import asyncio
import io
import urllib.error
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.limits import shared_breaker
from oncemore.log.entry_codec import decode_body, decode_head, decode_header
from oncemore.log.record import BreakerRecord
from oncemore.policy.policy import Policy
from oncemore.steps.history import export_records, verify_chain

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.testing import FakeClock


class World:
    """A provider that answers as it is told, and counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.error: Exception | None = TimeoutError("down")

    def answer(self, n: int) -> int:
        self.asked.append(n)
        if self.error is not None:
            raise self.error
        return n


world = World()


@pytest.fixture(autouse=True)
def _new_world() -> None:
    world.__init__()  # type: ignore[misc]


@oncemore.step(effect="idempotent", name="poll", policy="kfm-rules", provider="stac")
def poll(n: int) -> int:
    return world.answer(n)


@oncemore.step(effect="idempotent", name="apoll", policy="kfm-rules", provider="stac")
async def apoll(n: int) -> int:
    await asyncio.sleep(0)
    return world.answer(n)


@pytest.fixture(params=["plain", "async"])
def run(request: pytest.FixtureRequest) -> Callable[[int], oncemore.Run]:
    def called(n: int) -> oncemore.Run:
        return poll.run(n) if request.param == "plain" else asyncio.run(apoll.run(n))  # type: ignore[no-any-return]

    return called


def circuit(engine: oncemore.Engine, name: str = "stac") -> BreakerRecord | None:
    head = engine.store.load_head(f"breaker/{name}")
    return None if head is None else decode_head(head.head, BreakerRecord)


def open_it(engine: oncemore.Engine) -> BreakerRecord:
    for n in range(-3, 0):
        poll.run(n)
    found = circuit(engine)
    assert found is not None
    assert found.state == "OPEN"
    world.asked.clear()
    return found


Run = Any


@pytest.mark.req("BREAK-3", "BREAK-7")
def test_the_outage_of_the_documents(engine: oncemore.Engine, run: Run, clock: FakeClock) -> None:
    assert (run(1).status, run(2).status, len(world.asked)) == ("HARD_FAIL", "HARD_FAIL", 10)
    third = run(3)
    assert (third.status, third.reason, len(world.asked)) == ("SOFT_FAIL", "circuit_open", 11)
    assert run(4).status == "PENDING"
    assert len(world.asked) == 11
    clock.advance(301)
    assert run(4).status == "SOFT_FAIL"  # one request, and it fails
    assert (len(world.asked), circuit(engine).open_count) == (12, 2)  # type: ignore[union-attr]
    assert run(3).status == "SOFT_FAIL"
    clock.advance(301)
    world.error = None
    assert [run(n).status for n in (3, 4, 5)] == ["COMPLETE"] * 3
    assert (len(world.asked), circuit(engine).state) == (15, "CLOSED")  # type: ignore[union-attr]
    verify_chain(engine.store.read_entries())


@pytest.mark.req("BREAK-9")
def test_a_run_that_is_refused_waits_and_no_attempt_is_counted(
    engine: oncemore.Engine, run: Run, clock: FakeClock
) -> None:
    world.error = TimeoutError()
    run(1), run(2)
    run(3)  # its first call opens it
    found = circuit(engine)
    assert found is not None
    waiting = run(3)
    assert (waiting.status, waiting.reason, waiting.state.attempt, waiting.state.attempt_count) == (
        "SOFT_FAIL", "circuit_open", 1, 1,
    )  # fmt: skip
    assert waiting.not_before == pytest.approx(found.open_until, abs=0.001)
    clock.advance(301)
    assert run(4).state.attempt_count == 1  # the probe, which fails
    asked = len(world.asked)
    refused = run(3)
    assert (refused.status, refused.state.attempt, refused.state.attempt_count) == ("SOFT_FAIL", 1, 1)
    assert refused.not_before == pytest.approx(circuit(engine).open_until, abs=0.001)  # type: ignore[union-attr]
    assert len(world.asked) == asked
    versions = refused.version
    assert run(3).version == versions  # looked at again, nothing is written: it is not spun on


def test_a_call_that_is_refused_is_parked_until_then(engine: oncemore.Engine, clock: FakeClock) -> None:
    found = open_it(engine)
    with pytest.raises(oncemore.Deferred, match=r"is parked for .*circuit_open") as caught:
        poll(7)
    assert caught.value.until == found.open_until
    assert caught.value.run is not None
    assert world.asked == []
    told = poll.last_run(7)
    assert told is not None
    assert "not tried: the breaker of stac is open" in told.explain()


def test_a_short_cooldown_is_waited_for_inside_the_call(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(
        effect="idempotent", name="short", breaker=oncemore.Breaker("s", failures=1, cooldown_s=20)
    )
    def short(n: int) -> int:
        if not world.asked:
            return world.answer(n)
        world.error = None
        return world.answer(n)

    assert short(1) == 1
    assert any(delay == pytest.approx(20, abs=0.1) for delay in clock.delays)


def test_a_run_that_is_refused_is_over_when_its_time_is(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="hasty", provider="stac", policy="kfm-rules", total_timeout=100)
    def hasty(n: int) -> int:
        return world.answer(n)

    open_it(engine)
    parked = hasty.run(1)
    assert parked.not_before == pytest.approx(parked.state.deadline)
    clock.advance(101)
    assert (hasty.run(1).reason, world.asked) == ("deadline_passed", [])


@pytest.mark.req("BREAK-7")
def test_a_lone_run_counts_once_over_all_its_attempts_whoever_makes_them(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    poll.submit(1)
    worker = oncemore.Worker(engine, [poll])
    for _ in range(5):
        worker.run_until_idle()
        clock.advance(60)
    run = poll.last_run(1)
    assert run is not None
    assert (run.status, run.state.attempt_count, run.state.failure_counted) == ("HARD_FAIL", 5, True)
    assert (circuit(engine).state, circuit(engine).failures) == ("CLOSED", 1)  # type: ignore[union-attr]


@pytest.mark.req("BREAK-7")
def test_three_runs_deferred_by_a_long_retry_after_open_it(
    engine: oncemore.Engine, run: Run, clock: FakeClock
) -> None:
    world.error = urllib.error.HTTPError("u", 429, "slow", {"Retry-After": "4000"}, io.BytesIO())  # type: ignore[arg-type]
    assert [run(n).reason for n in range(3)] == ["retry_after_beyond_cap"] * 3
    assert (circuit(engine).state, len(world.asked)) == ("OPEN", 3)  # type: ignore[union-attr]
    assert run(4).reason == "circuit_open"
    assert len(world.asked) == 3


def test_what_cannot_pass_does_not_count_and_gives_a_probe_back(
    engine: oncemore.Engine, run: Run, clock: FakeClock
) -> None:
    world.error = ValueError("not the provider's fault")
    for n in range(4):
        assert run(n).status in ("HARD_FAIL", "SOFT_FAIL")
        assert engine.switches.off(pipeline=__name__, reason="kfm-rules halts it")
    assert circuit(engine) is None
    world.error = TimeoutError()
    open_it(engine)
    clock.advance(301)
    world.error = ValueError("again")
    run(10)
    engine.switches.off(pipeline=__name__, reason="kfm-rules halts it")
    found = circuit(engine)
    assert found is not None
    assert (found.state, found.probe_worker, found.open_count) == ("OPEN", "", 1)
    world.error = None
    assert run(11).status == "COMPLETE"
    assert circuit(engine).state == "CLOSED"  # type: ignore[union-attr]


def test_two_failures_a_success_and_two_failures_do_not_open_it(
    engine: oncemore.Engine, run: Run, clock: FakeClock
) -> None:
    for n, error in enumerate([TimeoutError(), TimeoutError(), None, TimeoutError(), TimeoutError()]):
        world.error = error
        run(n)
    assert (circuit(engine).state, circuit(engine).failures) == ("CLOSED", 2)  # type: ignore[union-attr]


def test_nothing_is_written_for_a_breaker_while_nothing_fails(engine: oncemore.Engine, run: Run) -> None:
    world.error = None
    for n in range(20):
        assert run(n).status == "COMPLETE"
    assert circuit(engine) is None
    kinds = {decode_header(entry.header).entity.partition("/")[0] for entry in engine.store.read_entries()}
    # A governed policy is recorded, and so is the version that the store has accepted.
    assert kinds == {"run", "worker", "policy", "accepted"}


def test_an_unknown_outcome_counts_and_a_good_answer_does_not(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="once", name="pay", breaker=oncemore.Breaker("bank", failures=1))
    def pay(n: int) -> int:
        return world.answer(n)

    with pytest.raises(oncemore.OutcomeUnknown):
        pay(1)
    assert circuit(engine, "bank").state == "OPEN"  # type: ignore[union-attr]
    with pytest.raises(oncemore.Deferred):
        pay(2)


def test_each_provider_has_its_own(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="many", policy="kfm-rules", provider=lambda n: f"p{n % 2}")
    def many(n: int) -> int:
        if n % 2:
            world.error = None
        else:
            world.error = TimeoutError()
        return world.answer(n)

    for n in range(12):
        many.run(n)
    assert (circuit(engine, "p0").state, circuit(engine, "p1")) == ("OPEN", None)  # type: ignore[union-attr]
    asked = [n for n in world.asked if n % 2 == 0]
    assert len(asked) == 5 + 5 + 1
    many.submit(100)
    oncemore.Worker(engine, [many]).run_until_idle()
    assert 100 not in world.asked


def test_a_step_keeps_plans_for_so_many_providers(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import oncemore.steps.step as steps

    monkeypatch.setattr(steps, "MAX_PROVIDER_PLANS", 2)
    world.error = None

    @oncemore.step(
        effect="idempotent", name="wide", policy="kfm-rules", provider=lambda n: f"p{n}" if n else ""
    )
    def wide(n: int) -> int:
        return world.answer(n)

    assert [wide(n) for n in range(5)] == list(range(5))


def test_a_worker_does_not_spin_on_what_is_refused(engine: oncemore.Engine, clock: FakeClock) -> None:
    found = open_it(engine)
    for n in range(20):
        poll.submit(n)
    worked = oncemore.Worker(engine, [poll]).run_until_idle()
    assert (worked.deferred, world.asked) == (20, [])
    runs = [poll.last_run(n) for n in range(20)]
    assert all(
        one is not None and one.not_before == found.open_until and one.state.attempt_count == 0
        for one in runs
    )
    clock.advance(301)
    world.error = None
    worker = oncemore.Worker(engine, [poll], concurrency=1)
    worker.run_until_idle()
    clock.advance(40)  # those that came while the probe was under way look again
    worker.run_until_idle()
    assert sorted(n for n in world.asked if n >= 0) == list(range(20))


def test_map_defers_what_is_refused(engine: oncemore.Engine, clock: FakeClock) -> None:
    open_it(engine)
    job = poll.map(range(5))
    assert (job.counts["deferred"], world.asked) == (5, [])


def test_a_claim_is_refused_if_the_breaker_has_opened_since_it_was_looked_at(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    world.error = None
    poll(1)  # this process knows it as closed, and does not look again
    other = oncemore.open(engine.url) if engine.url != "memory:" else engine
    with other:
        shared = oncemore.Breaker("stac", failures=1, shared=True)
        with pytest.raises(ConnectionResetError), shared:
            raise ConnectionResetError
        engine.breakers = shared_breaker.BreakerCache() if other is not engine else engine.breakers
    world.asked.clear()
    assert poll.run(2).reason == "circuit_open"
    assert world.asked == []


@pytest.mark.req("BREAK-6")
def test_records_say_whether_the_circuit_was_open(engine: oncemore.Engine, clock: FakeClock) -> None:
    world.error = None
    poll.run(0)
    world.error = TimeoutError()
    open_it(engine)
    poll.run(5)
    told = [
        (row["state"], row["telemetry_snapshot"]["circuit_open"])
        for row in export_records(engine.store.read_entries())
        if row["kind"] in ("TRANSITION", "DECISION")
    ]
    assert ("COMPLETE", False) in told
    assert told[-2:] == [("PENDING", True), ("PENDING", True)]  # refused while it was open
    opening = [row for row in told if row[0] == "SOFT_FAIL"]
    assert opening[-1] == ("SOFT_FAIL", True)  # the failure that opened it
    assert opening[0] == ("SOFT_FAIL", False)


def test_the_failure_that_opened_it_is_told_with_its_entry(engine: oncemore.Engine, clock: FakeClock) -> None:
    open_it(engine)
    last = list(engine.store.read_entries("breaker/stac"))[-1]
    assert last.body is not None
    told = decode_body(last.body)
    assert (told["error"]["type"], told["run"][:4]) == ("TimeoutError", "run/")


def test_a_value_that_cannot_be_stored_is_an_answer_of_the_provider(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="pure", name="odd", policy="kfm-rules", provider="stac")
    def odd(n: int) -> object:
        return object()

    open_it(engine)
    clock.advance(301)
    with pytest.raises(oncemore.PermanentFailure, match="result_unavailable"):
        odd(1)
    assert circuit(engine).state == "CLOSED"  # type: ignore[union-attr]


def test_a_probe_that_is_interrupted_is_given_back(engine: oncemore.Engine, clock: FakeClock) -> None:
    open_it(engine)
    clock.advance(301)
    world.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        poll(1)
    found = circuit(engine)
    assert found is not None
    assert (found.state, found.probe_worker) == ("OPEN", "")
    world.error = None
    assert poll(1) == 1


def test_who_waits_inline_waits_for_the_probe(engine: oncemore.Engine, clock: FakeClock) -> None:
    import threading
    from contextvars import copy_context

    open_it(engine)
    clock.advance(301)
    world.error = None
    under_way, go_on = threading.Event(), threading.Event()

    @oncemore.step(effect="idempotent", name="slow", policy="kfm-rules", provider="stac")
    def slow() -> str:
        under_way.set()
        assert go_on.wait(10)
        return "well"

    prober = threading.Thread(target=copy_context().run, args=(slow,), daemon=True)
    prober.start()
    assert under_way.wait(10)
    assert circuit(engine).state == "HALF_OPEN"  # type: ignore[union-attr]
    answers: list[int] = []
    other = threading.Thread(target=copy_context().run, args=(lambda: answers.append(poll(1)),), daemon=True)
    other.start()
    other.join(0.2)
    assert world.asked == []  # nobody else while it is tried
    go_on.set()
    prober.join(10)
    other.join(10)
    assert answers == [1]


def test_a_callers_patience_ends_its_wait_for_a_probe(engine: oncemore.Engine, clock: FakeClock) -> None:
    open_it(engine)
    clock.advance(301)
    passage = oncemore.Breaker("stac", shared=True).start_call()
    from oncemore.limits.breaker import run_limit_script

    assert run_limit_script(passage.ask_admission()) is None
    impatient = oncemore.open(engine.url, max_inline_wait_s=0.0) if engine.url != "memory:" else None
    if impatient is None:
        engine.inline_wait_s = 0.0
        told = poll.run(1)
    else:
        with impatient:
            told = poll.run(1)
    assert told.status == "PENDING"
    assert told.not_before is not None
    assert world.asked == []
    passage.finish_call()


def test_what_a_step_takes_for_a_breaker() -> None:
    with pytest.raises(oncemore.UsageError, match="breaker is 5"):
        oncemore.step(effect="pure", breaker=5)(lambda n: n)  # type: ignore[arg-type]

    @oncemore.step(effect="idempotent", name="named", breaker="host", policy=Policy("own", max_attempts=1))
    def named(n: int) -> int:
        return world.answer(n)

    assert named._options.fixed_breaker is not None
    assert (named._options.fixed_breaker.entity, named._options.fixed_breaker.rules.failures) == (
        "breaker/host",
        3,
    )


def test_an_inner_call_that_is_refused_puts_the_step_off(engine: oncemore.Engine, clock: FakeClock) -> None:
    inner = oncemore.Breaker("inner", failures=1, cooldown_s=500, shared=True)
    with pytest.raises(ConnectionResetError), inner:
        raise ConnectionResetError

    @oncemore.step(effect="idempotent", name="outer")
    def outer() -> int:
        return inner.call(int)

    told = outer.run()
    assert (told.status, told.reason) == ("SOFT_FAIL", "retry_after_beyond_cap")
    assert told.attempts[0].error is not None
    assert told.attempts[0].error["code"] == "CIRCUIT_OPEN"
