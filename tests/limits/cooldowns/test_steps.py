"""A step whose resource is left alone: what callers get, in both colours, on real stores."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.artifacts.store import ChildArtifactWriter
from oncemore.errors import (
    CoolingDown,
    Deferred,
    PermanentError,
    PermanentFailure,
    Quarantined,
    RetriesExhausted,
    UsageError,
)
from oncemore.log.memory import MemoryStore
from oncemore.steps.engine import Engine
from oncemore.testing import FakeClock
from tests.control.quarantine.helpers import RecordingSink, make_notifier

if TYPE_CHECKING:
    from oncemore.limits.cooldown_rules import ResourceRecord

BUSY = oncemore.TransientError("busy")


class Throttled(Exception):
    """Asks to be left alone for a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"come back in {seconds} s")
        self.seconds = seconds


@oncemore.classifier(Throttled)
def _throttled(error: Throttled) -> oncemore.Failure:
    return oncemore.Failure("throttled", retry_after=error.seconds, code="HTTP_429")


class Source:
    """What a step asks: it fares as told, and counts who asks."""

    def __init__(self, *turns: Any) -> None:
        self.turns, self.asked = list(turns), 0

    def __call__(self, product: str) -> Any:
        turn = self.turns[min(self.asked, len(self.turns) - 1)]
        self.asked += 1
        if isinstance(turn, BaseException):
            raise turn
        return turn


def fetching(source: Source, colour: str = "plain", **told: Any) -> Any:
    """Return a step that asks a source, and what calls it and waits."""
    told = {
        "effect": "idempotent", "name": "fetch", "policy": "nova-cat", "provider": "A",
        "cooldown": oncemore.Cooldown(lambda product, bucket=0: product), **told,
    }  # fmt: skip
    if colour == "plain":

        @oncemore.step(**told)
        def fetch(product: str, bucket: int = 0) -> Any:
            return source(product)

        return fetch, lambda *args, **named: fetch(*args, **named)

    @oncemore.step(**told)
    async def fetch_awaited(product: str, bucket: int = 0) -> Any:
        return source(product)

    return fetch_awaited, lambda *args, **named: asyncio.run(fetch_awaited(*args, **named))


def book(engine: oncemore.Engine, name: str = "p") -> ResourceRecord:
    found = engine.cooldowns.get(name)
    assert found is not None
    return found


@pytest.mark.req("COOL-1", "COOL-6", "COOL-11", "X-22", "BACKOFF-11")
@pytest.mark.parametrize("colour", ["plain", "awaited"])
def test_an_execution_of_four_tries_is_counted_once_and_then_left_alone(
    engine: oncemore.Engine, clock: FakeClock, colour: str
) -> None:
    source = Source(BUSY)
    fetch, call = fetching(source, colour)
    for number, rest in ((1, 300), (2, 600), (3, 1200)):
        with pytest.raises(RetriesExhausted):
            call("p")
        found = book(engine)
        assert (source.asked, found.attempt_count_total) == (4 * number, number)
        assert found.next_eligible_attempt_at - found.last_attempt_at == rest
        with pytest.raises(CoolingDown, match=r"p was not asked for \(SKIPPED_BACKOFF\)") as caught:
            call("p")
        assert (caught.value.outcome, caught.value.resource) == ("SKIPPED_BACKOFF", "p")
        assert caught.value.until == found.next_eligible_attempt_at
        assert (source.asked, book(engine)) == (4 * number, found), "a skip asks nobody, and changes nothing"
        clock.advance(rest)
    last = fetch.last_run("p")
    assert [attempt.number for attempt in last.attempts] == [9, 10, 11, 12]


@pytest.mark.req("COOL-4")
def test_at_the_very_time_it_is_asked_for_and_a_millisecond_before_it_is_not() -> None:
    now = [1000.0]
    with FakeClock() as clock, Engine(lambda: MemoryStore(lambda: now[0]), "memory:") as engine:
        source = Source(BUSY)
        _, call = fetching(source, policy=oncemore.Policy(max_attempts=1))
        with pytest.raises(RetriesExhausted):
            call("p")
        at = book(engine).next_eligible_attempt_at
        assert at == 1000.0 + clock.offset + 300.0
        now[0] = at - clock.offset - 0.001
        with pytest.raises(CoolingDown):
            call("p")
        assert source.asked == 1
        now[0] = at - clock.offset
        with pytest.raises(RetriesExhausted):
            call("p")
        assert source.asked == 2


@pytest.mark.req("COOL-3", "COOL-5")
@pytest.mark.parametrize("colour", ["plain", "awaited"])
def test_what_is_valid_is_not_asked_for_again_whatever_else_is_asked(
    engine: oncemore.Engine, clock: FakeClock, colour: str
) -> None:
    source = Source({"flux": 1})
    fetch, call = fetching(source, colour)
    assert call("p") == {"flux": 1}
    assert book(engine)[2:4] == ("ACQUIRED", "VALID")
    assert call("p") == {"flux": 1}, "the same work has its stored value, as ever"
    with pytest.raises(CoolingDown) as caught:
        call("p", bucket=2)  # other work that asks for the same thing
    assert (caught.value.outcome, caught.value.until, source.asked) == ("SKIPPED_DUPLICATE", 0.0, 1)
    made = fetch.map([{"product": "p"}, {"product": "p", "bucket": 3}], unpack="kwargs")
    job = asyncio.run(_awaited(made)) if colour == "awaited" else made
    assert [(item.outcome, item.result) for item in job.items] == [
        ("done", "SKIPPED_DUPLICATE"),
        ("skipped", "SKIPPED_DUPLICATE"),
    ]
    assert (job.outcome, job.counts["skipped"], source.asked) == ("COMPLETE", 1, 1)


async def _awaited(made: Any) -> Any:
    return await made


@pytest.mark.req("COOL-8")
def test_a_skip_is_recorded_in_the_job(engine: oncemore.Engine, clock: FakeClock) -> None:
    source = Source(Throttled(2.0))
    fetch, _ = fetching(source)
    fetch.map(["p"], max_wait=60)
    before = book(engine)
    job = fetch.map(["p"])
    assert book(engine) == before
    (stored,) = [one for one in engine.jobs() if one.job_id == job.job_id]
    assert [(item.outcome, item.result) for item in stored.items] == [("skipped", "SKIPPED_BACKOFF")]
    assert stored.providers["A"].skipped == 1
    assert stored.providers["A"].cooldown == before.next_eligible_attempt_at


@pytest.mark.req("COOL-9", "COOL-10")
@pytest.mark.parametrize(
    ("error", "raised", "outcome", "skipped"),
    [
        (oncemore.PermanentError("no"), PermanentFailure, "TERMINAL_FAILURE", "SKIPPED_TERMINAL"),
        (oncemore.NeedsReview("DOUBT"), Quarantined, "QUARANTINE", "SKIPPED_QUARANTINED"),
    ],
)
def test_what_waits_for_a_person_is_not_asked_for_until_one_lets_it_go(
    engine: oncemore.Engine, clock: FakeClock, error: Exception, raised: type, outcome: str, skipped: str
) -> None:
    source = Source(error, {"flux": 1})
    _, call = fetching(source)
    with pytest.raises(raised):
        call("p")
    found = book(engine)
    assert (found.last_attempt_outcome, found.state, found.acquisition_status) == (outcome, "HELD", "FAILED")
    clock.advance(1e6)
    for more in ({}, {"bucket": 1}):
        with pytest.raises(CoolingDown, match="release it: oncemore limits cooldowns release p") as caught:
            call("p", **more)
        assert (caught.value.outcome, caught.value.until) == (skipped, 0.0)
    assert source.asked == 1
    free = engine.cooldowns.release("p", reason="the archive was wrong", by="a person")
    assert (free.state, engine.cooldowns.check("p"), len(engine.quarantine)) == ("READY", "", 0)
    assert call("p") == {"flux": 1}
    assert (source.asked, book(engine).attempt_count_total) == (2, 2)
    (told,) = engine.cooldowns.show("p").decisions
    assert (told["action"], told["actor"], told["reason"]) == ("release", "a person", "the archive was wrong")


@pytest.mark.parametrize("what", ["release", "rerun"])
def test_who_releases_the_run_lets_what_it_asks_for_go_with_it(
    engine: oncemore.Engine, clock: FakeClock, what: str
) -> None:
    source = Source(oncemore.NeedsReview("DOUBT"), {"flux": 1})
    _, call = fetching(source)
    with pytest.raises(Quarantined):
        call("p")
    (item,) = engine.quarantine
    getattr(engine.quarantine, what)(item, by="a person", reason="looked at it")
    assert book(engine).state == "READY"
    assert engine.cooldowns.show("p").decisions[0]["action"] == what
    assert call("p") == {"flux": 1}


def test_a_rejected_run_leaves_what_it_asked_for_alone(engine: oncemore.Engine, clock: FakeClock) -> None:
    _, call = fetching(Source(oncemore.NeedsReview("DOUBT")))
    with pytest.raises(Quarantined):
        call("p")
    (item,) = engine.quarantine
    engine.quarantine.reject(item, by="a person", reason="it is broken")
    with pytest.raises(CoolingDown):
        call("p")
    engine.cooldowns.release("p", reason="a new file is there")
    with pytest.raises(Quarantined):
        call("p")


@pytest.mark.parametrize("colour", ["plain", "awaited"])
def test_a_rerun_lets_go_what_it_asks_for(engine: oncemore.Engine, clock: FakeClock, colour: str) -> None:
    source = Source(BUSY, BUSY, BUSY, BUSY, {"flux": 1})
    fetch, call = fetching(source, colour)
    with pytest.raises(RetriesExhausted):
        call("p")
    made = fetch.rerun("p", reason="it is back")
    assert (asyncio.run(_awaited(made)) if colour == "awaited" else made) == {"flux": 1}
    assert book(engine)[3:5] == ("VALID", 2)
    assert engine.cooldowns.show("p").decisions[0]["action"] == "rerun"


@pytest.mark.req("COOL-6")
def test_a_wish_beyond_what_the_policy_waits_for_is_kept_by_everybody(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    source = Source(Throttled(3600.0), Throttled(40.0), {"flux": 1})
    fetch, call = fetching(source)
    job = fetch.map(["p"])
    assert [(item.outcome, item.result, item.error_class) for item in job.items] == [
        ("deferred", "RETRYABLE_FAILURE", "HTTP_429")
    ]
    found = book(engine)
    assert (found.attempt_count_total, found.last_attempt_outcome) == (1, "RETRYABLE_FAILURE")
    assert found.next_eligible_attempt_at - found.last_attempt_at == pytest.approx(3600.0, abs=0.1)
    clock.advance(3590.0)
    for more in ({}, {"bucket": 1}):
        with pytest.raises(CoolingDown):
            call("p", **more)
    clock.advance(20.0)
    with pytest.raises(
        Deferred
    ):  # 40 s are longer than the 30 s of the policy, and shorter than the cooldown
        call("p")
    assert source.asked == 2
    found = book(engine)
    assert found.attempt_count_total == 2
    assert found.next_eligible_attempt_at - found.last_attempt_at == 600.0
    clock.advance(100.0)
    with pytest.raises(CoolingDown):
        call("p")
    clock.advance(500.1)
    assert call("p") == {"flux": 1}
    assert book(engine).attempt_count_total == 3


def test_a_deadline_that_passes_in_a_long_wait_counts_nothing_twice(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    source = Source(Throttled(400.0))
    _, call = fetching(source, total_timeout=1000)
    for number in (1, 2):
        with pytest.raises(Deferred):
            call("p")
        assert book(engine).attempt_count_total == source.asked == number
        clock.advance(2000.0)
        # The next call ends the old run, which was counted, and raises that; the one after it begins a run.
        with pytest.raises(oncemore.DeadlineExceeded):
            call("p")
        assert book(engine).attempt_count_total == source.asked == number


def test_a_provider_has_its_own_numbers_and_a_policy_too(engine: oncemore.Engine, clock: FakeClock) -> None:
    once = oncemore.Policy(max_attempts=1)
    own = oncemore.Cooldown("p", base_s=10, overrides={"B": {"base_s": 7}})
    for provider, told, rest in (
        ("A", {"cooldown": own, "policy": once}, 10.0),
        ("B", {"cooldown": own, "policy": once}, 7.0),
        ("A", {"policy": "nova-cat"}, 300.0),
        ("A", {"policy": "standard"}, 300.0),
    ):
        with oncemore.open("memory:") as fresh:
            _, call = fetching(Source(BUSY), provider=provider, **told)
            with pytest.raises(RetriesExhausted):
                call("p")
            found = book(fresh)
            assert found.next_eligible_attempt_at - found.last_attempt_at == rest


def test_a_call_that_asks_for_nothing_has_no_record(engine: oncemore.Engine, clock: FakeClock) -> None:
    source = Source(BUSY)
    _, call = fetching(source, cooldown=oncemore.Cooldown(lambda product, bucket=0: None))
    for _ in range(2):
        with pytest.raises(RetriesExhausted):
            call("p")
    assert source.asked == 8
    assert not list(engine.cooldowns)


# Workers and people -----------------------------------------------------------------------------------


def test_a_worker_puts_off_what_is_left_alone_and_ends_what_is_there(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    source = Source(BUSY, BUSY, BUSY, BUSY, {"flux": 1})
    fetch, call = fetching(source)
    with pytest.raises(RetriesExhausted):
        call("p")
    run = fetch.submit("p", bucket=1)
    worker = oncemore.Worker(engine, [fetch])
    assert worker.run_until_idle().deferred == 1
    put_off = fetch.last_run("p", bucket=1)
    assert (put_off.status, put_off.reason) == ("PENDING", "cooling_down")
    assert put_off.not_before == book(engine).next_eligible_attempt_at
    assert worker.run_until_idle().deferred == 1, "it is not due"
    clock.advance(300.0)
    assert worker.run_until_idle().done == 1
    assert (fetch.last_run("p", bucket=1).value, source.asked) == ({"flux": 1}, 5)
    fetch.submit("p", bucket=2)
    worker.run_until_idle()
    over = fetch.last_run("p", bucket=2)
    assert (over.status, over.reason, over.error["code"]) == (
        "HARD_FAIL", "skipped_duplicate", "SKIPPED_DUPLICATE",
    )  # fmt: skip
    assert source.asked == 5
    assert run.run_id


def test_work_that_is_cancelled_while_it_waits_has_asked_all_the_same(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    fetch, _ = fetching(Source(BUSY))
    fetch.map(["p"], max_wait=0)  # one try, and the next is due later
    assert not list(engine.cooldowns.list(state="all"))
    fetch.cancel("p", reason="never mind")
    assert book(engine)[4:7:2] == (1, "RETRYABLE_FAILURE")


def test_work_that_is_cancelled_before_it_has_begun_has_asked_nobody(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    fetch, _ = fetching(Source(BUSY))
    fetch.submit("p")
    fetch.cancel("p", reason="never mind")
    assert engine.cooldowns.get("p") is None


@pytest.mark.parametrize("turn", [BUSY, {"flux": 1}], ids=["fails", "comes good"])
@pytest.mark.parametrize("colour", ["plain", "awaited"])
def test_a_record_that_moves_while_the_end_is_written_does_not_lose_the_attempt(
    engine: oncemore.Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, turn: Any, colour: str
) -> None:
    source = Source(turn)
    fetch, call = fetching(source, colour, policy=oncemore.Policy(max_attempts=1))
    real, tries = engine.store.append, []

    def append(batch: Any) -> Any:
        if "resource/p" in {write.entity for write in batch.writes} and len(batch.writes) > 1:
            run = fetch.last_run("p").state
            held = engine.leases.lease_until(run.worker, f"run/{fetch.key('p')}", run.fence) > engine.now()
            tries.append(held)
            if len(tries) == 1:
                engine.cooldowns.import_record("p", {"attempt_count_total": 7}, reason="somebody else")
        return real(batch)

    monkeypatch.setattr(engine.store, "append", append)
    if turn is BUSY:
        with pytest.raises(RetriesExhausted):
            call("p")
    else:
        assert call("p") == turn
    assert tries == [True, True], "the attempt is still under way when its end is written again"
    assert (source.asked, book(engine).attempt_count_total) == (1, 8)


def test_a_record_that_moves_while_somebody_is_told_of_a_hold_is_looked_at_again(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch holds a notice too: what was refused is not the notice, and is not sent the same again."""
    heard = RecordingSink()
    with oncemore.open("memory:") as engine:
        engine.notifier = make_notifier(heard)
        fetch, _ = fetching(Source(oncemore.NeedsReview("DOUBT")))
        real, tries = engine.store.append, []

        def append(batch: Any) -> Any:
            if len(batch.writes) > 1 and batch.writes[1].entity == "resource/p":
                tries.append(len(batch.writes))
                assert len(tries) < 5
                if len(tries) == 1:
                    engine.cooldowns.import_record("p", {}, reason="somebody else")
            return real(batch)

        monkeypatch.setattr(engine.store, "append", append)
        fetch.map(["p"])
        assert tries == [3, 3]
        assert book(engine).attempt_count_total == 1


def test_of_two_who_bring_a_record_in_the_second_is_refused(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = engine.cooldowns
    nothing = desk._load_head("p")
    desk.import_record("p", {"last_attempt_outcome": "QUARANTINE"}, reason="moved")
    monkeypatch.setattr(desk, "_load_head", lambda resource: nothing)
    with pytest.raises(UsageError, match="p has a record in this store already"):
        desk.import_record("p", {}, reason="moved too")
    monkeypatch.undo()
    assert desk.release("p", reason="it is fine").state == "READY"


def test_an_outer_step_waits_for_what_is_left_alone(engine: oncemore.Engine, clock: FakeClock) -> None:
    source = Source(BUSY, {"flux": 1})
    once, short = oncemore.Policy(max_attempts=1), oncemore.Cooldown("p", base_s=5)
    _, call = fetching(source, policy=once, cooldown=short)
    with pytest.raises(RetriesExhausted):
        call("p")

    @oncemore.step(effect="idempotent", name="outer")
    def outer() -> Any:
        return call("p", bucket=9)

    assert outer() == {"flux": 1}
    with pytest.raises(PermanentFailure, match="SKIPPED_DUPLICATE"):

        @oncemore.step(effect="idempotent", name="another")
        def another() -> Any:
            return call("p", bucket=10)

        another()


def test_what_is_listed_shown_and_brought_in(engine: oncemore.Engine, clock: FakeClock) -> None:
    for name, turn in (("b", BUSY), ("q", oncemore.NeedsReview("DOUBT")), ("v", 1)):
        fetch, _ = fetching(Source(turn), name=f"fetch {name}", cooldown=oncemore.Cooldown(name))
        fetch.map([name], max_wait=60)
    desk = engine.cooldowns
    assert [one.resource for one in desk] == ["b", "q"]
    assert [one.resource for one in desk.list(state="all")] == ["v", "b", "q"]
    assert [one.resource for one in desk.list(state="DONE", provider="A")] == ["v"]
    assert desk.list(state="all", provider="B") == desk.list(step="other") == ()
    told = desk.show("b")
    assert (told.skip, told.error["code"], len(told.entries)) == ("SKIPPED_BACKOFF", "TransientError", 1)
    assert told.left_s == pytest.approx(300.0, abs=1.0)
    assert told.correlation_id
    clock.advance(300.0)
    assert [one.resource for one in desk] == ["q"], "what may be asked for is not left alone"
    assert repr(desk).startswith("<oncemore.Cooldowns of ")
    made = desk.import_record(
        "x", {"validation_status": "VALIDATED", "attempt_count_total": 3}, reason="moved"
    )
    assert (desk.get("x"), desk.check("x"), made.attempt_count_total) == (made, "SKIPPED_DUPLICATE", 3)
    assert desk.show("x").error is None
    for wrong, says in (
        (lambda: desk.import_record("x", {}, reason="again"), "x has a record in this store already"),
        (lambda: desk.show("nobody"), "no step has requested 'nobody'"),
        (lambda: desk.list(state="OPEN"), "state is 'OPEN'"),
        (lambda: desk.release("x", reason="why not"), "its data is there and valid"),
        (lambda: desk.release("q", reason=" "), "reason is missing"),
        (lambda: desk.get(""), "resource is ''"),
    ):
        with pytest.raises(UsageError, match=says):
            wrong()
    desk.release("q", reason="looked")
    with pytest.raises(UsageError, match="steps may request it already"):
        desk.release("q", reason="again")


def test_of_two_who_let_go_the_second_is_told(engine: oncemore.Engine, clock: FakeClock) -> None:
    from oncemore.limits import cooldowns
    from oncemore.steps.ops import AppendChange

    fetch, _ = fetching(Source(oncemore.NeedsReview("DOUBT")))
    fetch.map(["p"])
    real = cooldowns._release_resource

    def slowly(entity: str, resource: str, decided: dict[str, Any]) -> Any:
        script = real(entity, resource, decided)
        op = next(script)
        while type(op) is not AppendChange:
            op = script.send((yield op))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cooldowns, "_release_resource", real)
            engine.cooldowns.release("p", reason="first")
        answer = yield op
        while True:
            try:
                op = script.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield op

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cooldowns, "_release_resource", slowly)
        with pytest.raises(oncemore.StaleDecision, match="p was not released: it changed"):
            engine.cooldowns.release("p", reason="second")
    assert len(engine.cooldowns.show("p").decisions) == 1


def test_a_resource_that_cannot_be_told_is_refused_with_the_reason(engine: oncemore.Engine) -> None:
    source = Source(1)
    fetch, call = fetching(source, cooldown=oncemore.Cooldown(lambda product: product))
    with pytest.raises(UsageError, match="resource= of the cooldown of fetch failed: TypeError"):
        call("p", bucket=1)
    fetch.submit("p", bucket=1)
    assert oncemore.Worker(engine, [fetch]).run_until_idle().refused == 1
    assert source.asked == 0


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"effect": "once"}, "fetch is declared once"),
        ({"cooldown": 300}, "cooldown of fetch is 300; it takes oncemore.Cooldown"),
    ],
)
def test_what_a_cooldown_does_not_go_with(told: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        fetching(Source(), **told)


def test_the_error_can_travel() -> None:
    import pickle

    made = pickle.loads(pickle.dumps(CoolingDown("x", "SKIPPED_BACKOFF", "p", 7.0)))  # noqa: S301
    assert (str(made), made.outcome, made.resource, made.until) == ("x", "SKIPPED_BACKOFF", "p", 7.0)


@pytest.mark.parametrize("colour", ["plain", "awaited"])
def test_evidence_is_kept_if_and_only_if_the_attempt_fails(
    engine: oncemore.Engine, clock: FakeClock, colour: str
) -> None:
    @oncemore.step(effect="idempotent", name="look", policy="nova-cat", cooldown=oncemore.Cooldown("p"))
    def look(fails: bool) -> str:
        oncemore.current().leave(b"bytes", name="it.bin")
        with pytest.raises(UsageError, match=r"has left 'IT\.bin' already"):
            oncemore.current().leave(b"other", name="IT.bin")
        if fails:
            raise oncemore.NeedsReview("DOUBT")
        return "fine"

    @oncemore.step(effect="idempotent", name="look", policy="nova-cat", cooldown=oncemore.Cooldown("p"))
    async def look_awaited(fails: bool) -> str:
        await oncemore.current().leave(b"bytes", name="it.bin")
        if fails:
            raise oncemore.NeedsReview("DOUBT")
        return "fine"

    def call(fails: bool) -> Any:
        return look(fails) if colour == "plain" else asyncio.run(look_awaited(fails))

    with pytest.raises(Quarantined):
        call(True)
    (kept,) = engine.artifacts.list()
    assert (kept.name, kept.read()) == ("attempt-1-it.bin", b"bytes")
    assert book(engine)[2:4] == ("ACQUIRED", "QUARANTINED")
    engine.cooldowns.release("p", reason="looked")
    assert call(False) == "fine"
    assert len(engine.artifacts.list()) == 1


def test_where_nothing_can_be_left(engine: oncemore.Engine, caplog: pytest.LogCaptureFixture) -> None:
    told = []

    def look(x: int) -> Any:
        with pytest.raises(
            UsageError, match="a reconcile function only looks, it leaves no evidence"
        ) as caught:
            oncemore.current().leave(b"x", name="x")
        told.append(caught)
        return oncemore.not_applied()

    @oncemore.step(effect="once", name="once", reconcile=look)
    def once(x: int) -> None:
        raise TimeoutError

    with pytest.raises(oncemore.Error), FakeClock():
        once(1)
    assert told
    with pytest.raises(UsageError, match="does not go with isolate='process'"):
        ChildArtifactWriter(None, "").leave_evidence(SimpleNamespace(step="s"), b"", None)  # type: ignore[arg-type]


def test_large_results_and_artifacts_have_their_own_fingerprints(
    engine: oncemore.Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)

    @oncemore.step(effect="idempotent", name="large", cooldown=oncemore.Cooldown(lambda kind: kind))
    def large(kind: str) -> Any:
        if kind == "file":
            return oncemore.current().put(b"spectrum", name="it")
        return "x" * (300_000 if kind == "spilled" else 3)

    prints = {}
    for kind in ("file", "spilled", "plain"):
        large(kind)
        prints[kind] = book(engine, kind).last_successful_fingerprint
    assert len(set(prints.values())) == 3
    assert all(text.startswith("sha256:") for text in prints.values())
    import hashlib

    assert prints["file"] == f"sha256:{hashlib.sha256(b'spectrum').hexdigest()}"


def test_a_call_does_not_wait_for_its_rate_if_its_resource_is_cooling_down(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    source = Source(PermanentError("gone"), 1)
    fetch, _ = fetching(source, rate="1/min")
    with pytest.raises(oncemore.Error):
        fetch("p")
    with pytest.raises(CoolingDown):
        fetch("p", bucket=1)
    assert (clock.delays, source.asked) == ([], 1)
