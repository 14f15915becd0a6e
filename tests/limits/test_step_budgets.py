"""Retry budgets of durable steps: what a retry costs is written with it; what is not there is waited for."""

from __future__ import annotations

import asyncio
import io
import time
import urllib.error
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.limits.breaker import run_limit_script
from oncemore.limits.budget_step import UnsavedEarnings
from oncemore.limits.concurrency import load_quota
from oncemore.log.entry_codec import decode_body, decode_header
from oncemore.log.store import Conflict
from oncemore.maintenance.replay import LogReplay
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.retries.loop import EMPTY
from oncemore.steps.history import verify_chain
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POLICY = Policy(
    "spends", max_attempts=4, schedule=Schedule("fixed", delays=(1.0, 2.0)), jitter=Jitter("none")
)


class World:
    """A provider that is down until it is told otherwise."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.error: Exception | None = ConnectionResetError("down")

    def answer(self, n: int) -> int:
        self.asked.append(n)
        if self.error is not None:
            raise self.error
        return n


world = World()


@pytest.fixture(autouse=True)
def _new_world() -> None:
    world.__init__()  # type: ignore[misc]


@pytest.fixture(params=["own", "shared"])
def budget(request: pytest.FixtureRequest) -> Callable[..., oncemore.Budget]:
    def made(capacity: float, per_success: float = 0.0, at_empty: str = "fail") -> oncemore.Budget:
        shared = request.param == "shared"
        return oncemore.Budget(capacity, per_success, at_empty=at_empty, name="api", shared=shared)

    return made


def made(budget: Any, **told: Any) -> Any:
    """A step that pays from a budget."""

    @oncemore.step(**{"effect": "idempotent", "name": "ask", "policy": POLICY, "budget": budget, **told})
    def ask(n: int) -> int:
        return world.answer(n)

    return ask


def told_again(engine: oncemore.Engine) -> None:
    """Every decision, computed again from what is recorded, is the same to the byte."""
    verify_chain(engine.store.read_entries())
    told = list(LogReplay().replay_entries(engine.store.read_entries()))
    assert any(one.decision for one in told)
    assert [each for one in told for each in one.differences] == []


def proofs(run: oncemore.Run) -> list[dict[str, Any]]:
    return [one.proof for one in run.attempts if one.proof]


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_retries_take_tokens_and_without_one_a_failure_is_final(
    engine: oncemore.Engine, clock: FakeClock, budget: Callable[..., oncemore.Budget], colour: str
) -> None:
    bucket = budget(4)
    ask = made(bucket)
    if colour == "async":

        @oncemore.step(effect="idempotent", name="aask", policy=POLICY, budget=bucket)
        async def ask(n: int) -> int:
            await asyncio.sleep(0)
            return world.answer(n)

    def run(n: int) -> oncemore.Run:
        return asyncio.run(ask.run(n)) if colour == "async" else ask.run(n)

    first, second, third = run(1), run(2), run(3)
    assert [one.reason for one in (first, second, third)] == ["max_attempts_exceeded", EMPTY, EMPTY]
    assert [one.state.attempt_count for one in (first, second, third)] == [4, 2, 1]  # four retries in all
    assert bucket.tokens == 0
    error = second.error
    assert error is not None
    assert "the retry budget holds 0 tokens and a retry costs 1" in second.explain()
    told_again(engine)
    tokens = [
        decode_body(entry.body)["proof"]["inputs"]["tokens"]
        for entry in engine.store.read_entries()
        if entry.body and b'"proof"' in entry.body
    ]
    assert tokens == [4, 3, 2, None, 1, 0, 0]  # the last attempt of the first did not ask
    with pytest.raises(oncemore.RetriesExhausted, match=r"\(retry_budget_empty\): ConnectionResetError"):
        asyncio.run(ask(2)) if colour == "async" else ask(2)


def test_a_token_is_written_with_the_decision_that_took_it(engine: oncemore.Engine, clock: FakeClock) -> None:
    ask = made(oncemore.Budget(3, 0, name="api", shared=True))
    run = ask.run(1)
    entries = list(engine.store.read_entries("quota/api"))
    told = [decode_body(entry.body or b"{}") for entry in entries]
    assert [(one["run"], one["had"], one["cost"]) for one in told] == [
        (f"run/{run.key}", had, 1) for had in (3, 2, 1)
    ]
    decisions = [
        entry for entry in engine.store.read_entries(f"run/{run.key}")
        if decode_header(entry.header).sets.get("reason") == "retry"
    ]  # fmt: skip
    assert [entry.seq for entry in entries] == [entry.seq + 1 for entry in decisions]  # one batch each


@pytest.mark.parametrize("colour", ["call", "worker"])
def test_a_run_without_a_token_can_be_parked_until_there_is_one(
    engine: oncemore.Engine, clock: FakeClock, budget: Callable[..., oncemore.Budget], colour: str
) -> None:
    bucket = budget(1, 0.5, "park")
    ask, other = made(bucket), made(bucket, name="other")
    worker = oncemore.Worker(engine, [ask])
    first = ask.run(1)
    assert (first.status, first.reason, first.state.attempt_count, first.state.budget_debt) == (
        "SOFT_FAIL",
        EMPTY,
        2,
        1,
    )
    assert first.not_before == pytest.approx(engine.now() + 30)
    delays = len(clock.delays)
    with pytest.raises(oncemore.Deferred, match=r"parked for 30 s \(retry_budget_empty\)"):
        ask(1)
    assert len(clock.delays) == delays  # nobody waited, though it is not long

    def goes_on() -> None:
        worker.run_until_idle() if colour == "worker" else ask.run(1)

    clock.advance(31)
    goes_on()  # there is none yet
    later = ask.last_run(1)
    assert (later.reason, later.state.attempt_count) == (EMPTY, 2)
    assert later.not_before == pytest.approx(engine.now() + 30)
    assert "waits for a token of the retry budget of" in later.explain()
    world.error = None
    other(1), other(2)  # others come good
    clock.advance(31)
    goes_on()
    done = ask.last_run(1)
    assert (done.status, done.state.attempt_count, done.state.budget_debt) == ("COMPLETE", 3, 0)
    assert "the next attempt is paid for by the retry budget of" in done.explain()
    assert bucket.tokens <= 0.5
    told_again(engine)


def test_an_inline_caller_can_wait_for_a_token(
    engine: oncemore.Engine, budget: Callable[..., oncemore.Budget]
) -> None:
    bucket = budget(1, 1, "wait")
    ask, other = made(bucket), made(bucket, name="other")

    class Helped(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.delays) == 3:
                world.error = None
                other(7)

    began = time.monotonic()
    with Helped() as clock:
        assert ask(1) == 1
        # What a busy machine needed in between is not waited for again.
        assert clock.delays == pytest.approx([1, 30, 30], abs=0.1 + time.monotonic() - began)
        assert ask.last_run(1).state.attempt_count == 3
        told_again(engine)


@pytest.mark.parametrize("at_empty", ["park", "wait"])
def test_but_no_run_waits_for_a_token_for_ever(
    engine: oncemore.Engine, clock: FakeClock, budget: Callable[..., oncemore.Budget], at_empty: str
) -> None:
    ask = made(budget(1, 0, at_empty))
    run = ask.run(1)
    for _ in range(110):
        if run.status == "HARD_FAIL":
            break
        clock.advance(30.1)
        run = ask.run(1)
    assert (run.status, run.reason, run.state.attempt_count, run.state.budget_debt) == (
        "HARD_FAIL",
        EMPTY,
        2,
        0,
    )
    assert (run.error["type"], run.error["message"]) == ("ConnectionResetError", "down")
    assert len(world.asked) == 2
    assert ask.run(1).state.run_number == 2, "a new call is a new run, with the same budget"


def test_nor_beyond_its_deadline(
    engine: oncemore.Engine, clock: FakeClock, budget: Callable[..., oncemore.Budget]
) -> None:
    ask = made(budget(1, 0, "park"), total_timeout=10)
    run = ask.run(1)
    assert (run.reason, run.not_before) == (EMPTY, pytest.approx(run.state.deadline))
    clock.advance(11)
    assert ask.run(1).reason == "deadline_passed"


def test_a_run_that_owes_goes_on_where_the_budget_was_taken_away_and_fails_where_it_says_so(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    parks = made(oncemore.Budget(1, 0, at_empty="park", name="api", shared=True))
    for n in (1, 2, 3):
        assert parks.run(n).reason == EMPTY
    clock.advance(31)
    fails = made(oncemore.Budget(1, 0, name="api", shared=True))
    assert (fails.run(1).status, fails.run(1).reason) == ("HARD_FAIL", EMPTY)
    world.error = None
    assert made(None)(2) == 2
    assert made(None).last_run(2).state.budget_debt == 0


def test_what_is_put_off_by_its_provider_costs_a_token_and_what_is_over_or_held_costs_none(
    engine: oncemore.Engine, clock: FakeClock, budget: Callable[..., oncemore.Budget]
) -> None:
    bucket = budget(5)
    world.error = ValueError("no")
    assert made(bucket).run(1).status == "HARD_FAIL"
    assert bucket.tokens == 5
    headers: Any = {"Retry-After": "3600"}
    world.error = urllib.error.HTTPError("http://x.test", 503, "busy", headers, io.BytesIO())
    assert made(bucket).run(2).reason == "retry_after_beyond_cap"
    assert bucket.tokens == 4
    world.error = ConnectionResetError()
    held = made(bucket, name="gated", breaker=oncemore.Breaker("api", failures=1)).run(3)
    assert held.reason == "circuit_open"
    assert bucket.tokens == 4  # its breaker has seen to it
    told_again(engine)


def test_a_retry_may_cost_what_the_policy_says(
    engine: oncemore.Engine, clock: FakeClock, budget: Callable[..., oncemore.Budget]
) -> None:
    bucket = budget(5)
    made(bucket, policy=POLICY.replace(retry_cost=2.5)).run(1)
    assert (len(world.asked), bucket.tokens) == (3, 0)
    free = made(bucket, name="free", policy=POLICY.replace(retry_cost=0.0))
    assert free.run(1).reason == "max_attempts_exceeded"


def test_successes_are_written_only_where_something_is_missing_and_then_together(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    bucket = oncemore.Budget(10, 0.1, name="api", shared=True)
    ask = made(bucket)
    world.error = None
    for n in range(30):
        ask(n)
    assert engine.store.load_head("quota/api") is None  # nobody has taken any
    world.error = ConnectionResetError()
    ask.run(100)
    assert bucket.tokens == 7
    world.error = None
    version = known_version(engine)
    for n in range(200, 225):
        ask(n)
    assert (bucket.tokens, known_version(engine)) == (9, version + 2)
    for n in range(300, 340):
        ask(n)
    assert (bucket.tokens, known_version(engine)) == (10, version + 3)  # full


def known_version(engine: oncemore.Engine) -> int:
    head = engine.store.load_head("quota/api")
    return 0 if head is None else head.version


def test_what_was_earned_and_not_written_yet_pays_too(engine: oncemore.Engine, clock: FakeClock) -> None:
    bucket = oncemore.Budget(1, 0.5, name="api", shared=True)
    ask = made(bucket, policy=POLICY.replace(max_attempts=2))
    ask.run(1)
    assert bucket.tokens == 0
    world.error = None
    ask(2)
    assert load_quota(engine, "api").tokens == 0  # half a token, in this process's pocket
    world.error = ConnectionResetError()
    assert ask.run(3).reason == EMPTY  # which is not enough
    world.error = None
    ask(4)
    world.error = ConnectionResetError()
    assert ask.run(5).reason == "max_attempts_exceeded"
    pockets = UnsavedEarnings()
    assert [pockets.add_earnings("x", 0.1) for _ in range(3)] == [0.1, 0.2, 0.3]
    assert (pockets.take_earnings("x", 0.5), pockets.take_earnings("x", 0.3), pockets.take_earnings("x")) == (
        0,
        0.3,
        0,
    )


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_what_cannot_be_earned_is_no_failure_of_the_work(
    engine: oncemore.Engine,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    colour: str,
) -> None:
    from oncemore.limits import budget_step

    ask = made(oncemore.Budget(1, 1, name="api", shared=True))
    ask.run(1)
    world.error = None

    def gone(*told: Any) -> Any:
        raise StoreError("gone")
        yield

    monkeypatch.setattr(budget_step, "update_quota", gone)
    if colour == "plain":
        assert ask(2) == 2
    else:
        bucket = oncemore.Budget(1, 1, name="api", shared=True)

        @oncemore.step(effect="idempotent", name="aask", budget=bucket)
        async def aask(n: int) -> int:
            return n

        assert asyncio.run(aask(2)) == 2
    assert "budget api: earned tokens were not written to the store: gone" in caplog.text


def test_a_decision_that_was_not_written_gives_its_token_back(
    engine: oncemore.Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, budget: Any
) -> None:
    """Somebody else writes to what the decision was made from: it is decided again, and paid for once."""
    bucket = budget(2, 0.5)
    ask = made(bucket, policy=POLICY.replace(max_attempts=2))
    world.error = None
    ask(1)  # half a token in a pocket, or nothing: it is full
    world.error = ConnectionResetError()
    append, refused = engine.store.append, []

    def first_refused(batch: Any) -> Any:
        marks = decode_header(batch.writes[0].header).marks
        if "SOFT_FAIL" in marks and not refused:
            refused.append(batch)

            class Never:
                def wait(self) -> Conflict:
                    return Conflict(batch.writes[-1].entity, engine.store.load_head(batch.writes[-1].entity))

            return Never()
        return append(batch)

    monkeypatch.setattr(engine.store, "append", first_refused)
    assert ask.run(2).reason == "max_attempts_exceeded"
    assert (len(refused), bucket.tokens) == (1, 1)
    told_again(engine)


def test_a_payment_that_was_not_written_gives_its_token_back(
    engine: oncemore.Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, budget: Any
) -> None:
    bucket = budget(1, 1, "park")
    ask, other = made(bucket), made(bucket, name="other")
    ask.run(1)
    world.error = None
    other(1)
    assert bucket.tokens == 1
    clock.advance(31)
    append, refused = engine.store.append, []

    def first_refused(batch: Any) -> Any:
        if decode_header(batch.writes[0].header).marks == ("QUOTA",) and not refused:
            refused.append(batch)

            class Never:
                def wait(self) -> Conflict:
                    return Conflict(batch.writes[-1].entity, engine.store.load_head(batch.writes[-1].entity))

            return Never()
        return append(batch)

    monkeypatch.setattr(engine.store, "append", first_refused)
    assert ask(1) == 1
    assert (len(refused), ask.last_run(1).state.attempt_count) == (1, 3)


def test_a_cancelled_call_that_has_committed_earns_without_awaiting(engine: oncemore.Engine) -> None:
    bucket = oncemore.Budget(2, 1, name="api", shared=True)
    bucket_taken = run_limit_script(bucket._pay_script(1))
    assert bucket_taken is None
    tasks: list[Any] = []

    @oncemore.step(effect="idempotent", name="cut", budget=bucket)
    async def cut(n: int) -> int:
        return n

    async def main() -> None:
        append = engine.store.append

        def cancelling(batch: Any) -> Any:
            if "COMMIT" in decode_header(batch.writes[0].header).marks:
                tasks[0].cancel()
            return append(batch)

        engine.store.append = cancelling  # type: ignore[method-assign]
        try:
            tasks.append(asyncio.ensure_future(cut(1)))
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
        finally:
            del engine.store.append

    asyncio.run(main())
    assert cut.last_run(1).status == "COMPLETE"  # type: ignore[union-attr]
    assert load_quota(engine, "api").tokens == 2


def test_items_of_a_job_share_a_budget(
    engine: oncemore.Engine, clock: FakeClock, budget: Callable[..., oncemore.Budget]
) -> None:
    bucket = budget(5)
    job = made(bucket).map(range(10), max_concurrency=3)
    assert (job.counts["failed"], len(world.asked), bucket.tokens) == (10, 15, 0)


FILE = """
version: "1"
profile: careful
retry_policy: {max_attempts: 3, base_delay_s: 0.1}
retry_budget: {capacity: 3, per_success: 0, %s}
"""


@pytest.mark.parametrize(
    ("told", "entity"),
    [("at_empty: fail", ""), ("shared: true", "quota/careful"), ("shared: true, name: api", "quota/api")],
)
def test_a_policy_s_budget_is_that_of_its_steps(
    engine: oncemore.Engine, clock: FakeClock, tmp_path: Path, told: str, entity: str
) -> None:
    path = tmp_path / "careful.yaml"
    path.write_text(FILE % told)
    first, second = (made(None, policy=path, name=name) for name in ("first", "second"))
    assert first.run(1).reason == "max_attempts_exceeded"
    assert second.run(1).reason == EMPTY  # they have it together
    assert len(world.asked) == 5
    heads = [
        head
        for head in (engine.store.load_head("quota/careful"), engine.store.load_head("quota/api"))
        if head
    ]
    assert [head.entity for head in heads] == ([entity] if entity else [])


def test_what_is_no_budget_is_refused_where_it_is_given() -> None:
    with pytest.raises(oncemore.UsageError, match=r"budget is 5; it takes oncemore.Budget\(...\)"):
        made(5)
    with pytest.raises(oncemore.UsageError, match="budget is 5"):
        oncemore.retrying(world.answer, on="transient", budget=5)  # type: ignore[arg-type]


def test_ten_tenths_are_one_token() -> None:
    bucket = oncemore.Budget(1, 0.1)
    assert bucket.take_tokens(1) is None
    for _ in range(10):
        bucket.earn_tokens()
    assert bucket.take_tokens(1) is None
