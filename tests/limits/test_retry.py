"""A breaker around light retries: in memory and in a store, blocking and awaiting, the same."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import pickle
import threading
import urllib.error
from contextvars import copy_context
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.audit.events import parse_event
from oncemore.errors import StoreError
from oncemore.governance.identity import Decider
from oncemore.limits import breaker as gates
from oncemore.limits import shared_breaker
from oncemore.log.store import Batch, Conflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.testing import FakeClock

    Make = Callable[..., oncemore.Breaker]
    Run = Callable[..., Any]


@pytest.fixture(params=["alone", "shared"])
def make(request: pytest.FixtureRequest, engine: oncemore.Engine) -> Make:
    """Makes breakers, in memory or in the store of the test's engine."""

    def made(name: str = "stac", **told: Any) -> oncemore.Breaker:
        return oncemore.Breaker(name, **{"cooldown_s": 300, "shared": request.param == "shared", **told})

    return made


class Provider:
    """Answers as it is told, and counts what it was asked."""

    def __init__(self) -> None:
        self.calls = 0
        self.error: Exception | None = ConnectionResetError("down")

    def __call__(self) -> str:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return "well"

    async def ask(self) -> str:
        await asyncio.sleep(0)
        return self()


@pytest.fixture(params=["plain", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """Calls a provider behind a breaker, in one of the two colours."""

    def called(provider: Provider, breaker: Any, **told: Any) -> Any:
        options: Any = {"on": "transient", "attempts": 5, "breaker": breaker, **told}
        if request.param == "plain":
            return oncemore.retrying(provider, **options)()
        return asyncio.run(oncemore.retrying(provider.ask, **options)())  # type: ignore[arg-type]

    return called


def throttling(seconds: str) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://stac.test", 429, "slow", {"Retry-After": seconds}, io.BytesIO())  # type: ignore[arg-type]


def fails(run: Run, provider: Provider, breaker: Any, **told: Any) -> Exception:
    with pytest.raises(Exception) as caught:  # which one is what the caller looks at
        run(provider, breaker, **told)
    return caught.value


# Counting -------------------------------------------------------------------------------------------


@pytest.mark.req("BREAK-7")
def test_a_lone_operation_keeps_its_five_calls(make: Make, run: Run, clock: FakeClock) -> None:
    provider, breaker = Provider(), make()
    fails(run, provider, breaker)
    assert (provider.calls, breaker.state, breaker.circuit.failures) == (5, "CLOSED", 1)


@pytest.mark.req("BREAK-7")
def test_under_attempts_it_opens_after_the_third_failed_call(make: Make, run: Run, clock: FakeClock) -> None:
    provider, breaker = Provider(), make(count="attempts")
    error = fails(run, provider, breaker)
    assert (provider.calls, breaker.state) == (3, "OPEN")
    assert isinstance(error, ConnectionResetError)  # the work's own, with a note that says when to come back
    assert "circuit_open for another 5 min 0 s" in error.__notes__[0]
    decision = oncemore.get_decision(error)
    assert decision is not None
    assert (decision.action, decision.reason, decision.situation.hold_reason) == (
        "defer",
        "held",
        "circuit_open",
    )


def test_a_success_resets_the_count(make: Make, run: Run, clock: FakeClock) -> None:
    provider, breaker = Provider(), make()
    fails(run, provider, breaker)
    fails(run, provider, breaker)
    provider.error = None
    assert run(provider, breaker) == "well"
    assert breaker.circuit.failures == 0
    provider.error = ConnectionResetError()
    fails(run, provider, breaker)
    fails(run, provider, breaker)
    assert breaker.state == "CLOSED"


def test_what_cannot_pass_does_not_count(make: Make, run: Run, clock: FakeClock) -> None:
    provider, breaker = Provider(), make(failures=1)
    provider.error = ValueError("wrong")
    for _ in range(3):
        assert fails(run, provider, breaker) is provider.error
    assert (breaker.state, breaker.circuit.failures) == ("CLOSED", 0)


@pytest.mark.req("BREAK-7")
def test_three_operations_deferred_by_a_long_retry_after_open_it(
    make: Make, run: Run, clock: FakeClock
) -> None:
    provider, breaker = Provider(), make()
    provider.error = throttling("3600")
    for _ in range(3):
        assert fails(run, provider, breaker) is provider.error
    assert (provider.calls, breaker.state) == (3, "OPEN")
    assert isinstance(fails(run, provider, breaker), oncemore.CircuitOpen)
    assert provider.calls == 3


def test_throttling_that_is_waited_for_does_not_count_until_it_ends_the_call(
    make: Make, run: Run, clock: FakeClock
) -> None:
    provider, breaker = Provider(), make(failures=1)
    provider.error = throttling("1")
    fails(run, provider, breaker)
    assert (provider.calls, breaker.state) == (5, "OPEN")  # throttled to the end


@pytest.mark.req("BREAK-7")
def test_of_fifty_operations_at_once_fewer_than_sixty_calls_are_made(make: Make) -> None:
    provider, breaker = Provider(), make()
    begin = threading.Barrier(50)
    wrapped = oncemore.retrying(
        provider, on="transient", attempts=5, breaker=breaker, wait=oncemore.backoff.exponential(0.05)
    )

    def caller() -> None:
        begin.wait(10)
        with pytest.raises((ConnectionResetError, oncemore.CircuitOpen)):
            wrapped()

    callers = [threading.Thread(target=copy_context().run, args=(caller,)) for _ in range(50)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(30)
    assert not any(one.is_alive() for one in callers)
    assert provider.calls < 60
    assert breaker.state == "OPEN"


# Open, and closed again -----------------------------------------------------------------------------


@pytest.mark.req("BREAK-3")
def test_an_open_breaker_fails_at_once_and_nothing_is_sent(make: Make, run: Run, clock: FakeClock) -> None:
    provider, breaker = Provider(), make(failures=1)
    fails(run, provider, breaker, attempts=1)
    waited = len(clock.delays)
    error = fails(run, provider, breaker)
    assert isinstance(error, oncemore.CircuitOpen)
    assert (provider.calls, len(clock.delays)) == (1, waited)
    assert (error.provider, error.until) == ("stac", breaker.until)
    assert "stac is not called before" in str(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (again.provider, again.until, str(again)) == (error.provider, error.until, str(error))


@pytest.mark.req("BREAK-5")
def test_a_good_probe_closes_it_and_a_bad_one_keeps_it_open(make: Make, run: Run, clock: FakeClock) -> None:
    provider, breaker = Provider(), make(failures=1)
    fails(run, provider, breaker, attempts=1)
    clock.advance(299)
    assert isinstance(fails(run, provider, breaker), oncemore.CircuitOpen)
    clock.advance(1.5)
    error = fails(run, provider, breaker)
    assert isinstance(error, ConnectionResetError)  # one call, not five
    assert (provider.calls, breaker.state, breaker.circuit.open_count) == (2, "OPEN", 2)
    clock.advance(301)
    provider.error = None
    assert run(provider, breaker) == "well"
    assert (breaker.state, breaker.until, provider.calls) == ("CLOSED", None, 3)


def test_a_probe_that_tells_nothing_is_given_back(make: Make, run: Run, clock: FakeClock) -> None:
    provider, breaker = Provider(), make(failures=1)
    fails(run, provider, breaker, attempts=1)
    clock.advance(301)
    provider.error = ValueError("not the provider's fault")
    assert fails(run, provider, breaker) is provider.error
    assert breaker.state == "OPEN"
    provider.error = None
    assert run(provider, breaker) == "well"
    assert breaker.state == "CLOSED"


def test_while_a_probe_is_under_way_nobody_else_goes_through(make: Make, clock: FakeClock) -> None:
    breaker = make(failures=1)
    with pytest.raises(ConnectionResetError), breaker:
        raise ConnectionResetError
    clock.advance(301)
    with breaker:
        assert breaker.state == "HALF_OPEN"
        with pytest.raises(oncemore.CircuitOpen, match="a probe is in progress") as caught:
            breaker.call(int, "1")
        assert caught.value.until - breaker.circuit.changed_at == pytest.approx(30, abs=2)
    assert breaker.state == "CLOSED"


def test_a_probe_that_is_cut_off_is_given_back(make: Make, run: Run, clock: FakeClock) -> None:
    class Cut(BaseException):
        pass

    provider, breaker = Provider(), make(failures=1)
    fails(run, provider, breaker, attempts=1)
    clock.advance(301)
    provider.error = Cut()  # type: ignore[assignment]
    with pytest.raises(Cut):
        run(provider, breaker)
    assert breaker.state == "OPEN"
    provider.error = None
    assert run(provider, breaker) == "well"


def test_a_probe_whose_lease_is_over_is_taken_over(make: Make, clock: FakeClock) -> None:
    breaker = make(failures=2, cooldown_s=10)
    for _ in range(2):
        with pytest.raises(ConnectionResetError), breaker:
            raise ConnectionResetError
    clock.advance(11)
    late = breaker.start_call()
    assert gates.run_limit_script(late.ask_admission()) is None
    clock.advance(61)
    with breaker:
        assert breaker.circuit.probe_number == 2
    gates.run_limit_script(
        late.record_failure(oncemore.Failure("transient", "maybe", None, "LATE", ""), "RETRYABLE", "stop")
    )
    assert (breaker.state, breaker.circuit.failures) == ("CLOSED", 1)  # it counts as any other failure


def test_a_breaker_that_opens_while_a_call_waits_ends_it(make: Make, clock: FakeClock) -> None:
    provider, breaker = Provider(), make(failures=2)

    def meanwhile(report: object) -> None:
        with pytest.raises(ConnectionResetError), breaker:
            raise ConnectionResetError

    with pytest.raises(oncemore.CircuitOpen):
        oncemore.retrying(provider, on="transient", attempts=5, breaker=breaker, on_retry=meanwhile)()
    assert provider.calls == 1


def test_a_rate_opens_it_too(make: Make, run: Run, clock: FakeClock) -> None:
    provider, breaker = Provider(), make(rate=0.5, minimum_calls=4, window_s=60)
    for error in (None, ConnectionResetError(), None):
        provider.error = error
        run(provider, breaker, attempts=1) if error is None else fails(run, provider, breaker, attempts=1)
    provider.error = ConnectionResetError()
    assert breaker.state == "CLOSED"
    fails(run, provider, breaker, attempts=1)
    assert breaker.state == "OPEN"


# What goes with it ----------------------------------------------------------------------------------


def test_a_fallback_also_stands_in_for_an_open_breaker(make: Make, run: Run, clock: FakeClock) -> None:
    provider, breaker = Provider(), make(failures=1)
    fails(run, provider, breaker, attempts=1)
    assert run(provider, breaker, fallback="old") == "old"
    assert isinstance(run(provider, breaker, fallback=lambda error: error), oncemore.CircuitOpen)
    assert provider.calls == 1


def test_until_is_about_the_value_not_about_the_provider(make: Make, run: Run, clock: FakeClock) -> None:
    provider, breaker = Provider(), make(failures=1)
    provider.error = None
    with pytest.raises(oncemore.RetriesExhausted):
        run(provider, breaker, until=lambda value: value == "done")
    assert (provider.calls, breaker.state) == (5, "CLOSED")


def test_blocks_pass_it_too(make: Make, clock: FakeClock) -> None:
    breaker, calls = make(failures=2), 0
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            for attempt in oncemore.attempts(on="transient", breaker=breaker):
                with attempt:
                    calls += 1
                    raise ConnectionResetError
    assert (calls, breaker.state) == (4, "OPEN")  # three of the first, one of the second
    with pytest.raises(oncemore.CircuitOpen):
        for attempt in oncemore.attempts(on="transient", breaker=breaker):
            with attempt:
                calls += 1
    assert calls == 4

    async def awaited() -> None:
        nonlocal calls
        async for attempt in oncemore.attempts(on="transient", breaker=breaker):
            async with attempt:
                calls += 1

    with pytest.raises(oncemore.CircuitOpen):
        asyncio.run(awaited())
    clock.advance(301)
    asyncio.run(awaited())
    assert (calls, breaker.state) == (5, "CLOSED")

    async def failing() -> None:
        async for attempt in oncemore.attempts(on="transient", breaker=breaker, attempts=1):
            async with attempt:
                raise ConnectionResetError

    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            asyncio.run(failing())
    assert breaker.state == "OPEN"


def test_a_block_that_opens_it_while_it_waits_says_so(make: Make, clock: FakeClock) -> None:
    breaker = make(failures=2)

    def meanwhile(report: object) -> None:
        with pytest.raises(ConnectionResetError), breaker:
            raise ConnectionResetError

    with pytest.raises(oncemore.CircuitOpen):
        for attempt in oncemore.attempts(on="transient", breaker=breaker, on_retry=meanwhile):
            with attempt:
                raise ConnectionResetError


def test_a_block_that_is_left_gives_its_probe_back(make: Make, clock: FakeClock) -> None:
    breaker = make(failures=1)
    with pytest.raises(ConnectionResetError), breaker:
        raise ConnectionResetError
    clock.advance(301)
    with pytest.raises(KeyboardInterrupt):
        for attempt in oncemore.attempts(on="transient", breaker=breaker):
            with attempt:
                raise KeyboardInterrupt
    assert breaker.state == "OPEN"
    with breaker:
        pass
    assert breaker.state == "CLOSED"


def test_a_coroutine_that_a_plain_function_returns_is_awaited_behind_it(make: Make, clock: FakeClock) -> None:
    provider, breaker = Provider(), make(failures=1)
    wrapped: Any = oncemore.retrying(lambda: provider.ask(), on="transient", attempts=2, breaker=breaker)
    provider.error = None
    assert asyncio.run(wrapped()) == "well"
    provider.error = ConnectionResetError()
    with pytest.raises(ConnectionResetError):
        asyncio.run(wrapped())
    assert breaker.state == "OPEN"
    with pytest.raises(oncemore.CircuitOpen):
        asyncio.run(wrapped())


def test_a_failure_that_others_met_is_reset_by_a_call_that_was_under_way(make: Make) -> None:
    breaker = make()

    def meanwhile() -> str:
        with pytest.raises(ConnectionResetError), breaker:
            raise ConnectionResetError
        assert breaker.circuit.failures == 1
        return "well"

    async def awaited() -> str:
        return meanwhile()

    assert oncemore.retrying(meanwhile, on="transient", breaker=breaker)() == "well"
    assert breaker.circuit.failures == 0
    assert asyncio.run(oncemore.retrying(awaited, on="transient", breaker=breaker)()) == "well"  # type: ignore[arg-type]
    assert breaker.circuit.failures == 0


def test_plain_code_behind_it_in_both_colours(make: Make, clock: FakeClock) -> None:
    breaker = make(failures=1)
    assert breaker.call(lambda x, y: x + y, 1, y=2) == 3

    async def inside(error: BaseException | None) -> str:
        async with breaker:
            if error is not None:
                raise error
        return "well"

    assert asyncio.run(inside(None)) == "well"
    with pytest.raises(ConnectionResetError):
        asyncio.run(inside(ConnectionResetError()))
    with pytest.raises(oncemore.CircuitOpen):
        asyncio.run(inside(None))
    with pytest.raises(oncemore.CircuitOpen):
        breaker.call(int)
    clock.advance(301)
    with pytest.raises(SystemExit):
        asyncio.run(inside(SystemExit()))
    assert breaker.state == "OPEN"
    clock.advance(1)
    with pytest.raises(SystemExit), breaker:
        raise SystemExit
    assert asyncio.run(inside(None)) == "well"
    assert repr(breaker) == "<oncemore.Breaker stac CLOSED>"


# Names, misuse, the log -----------------------------------------------------------------------------


def test_a_name_is_one_circuit_wherever_it_is_named(run: Run, clock: FakeClock) -> None:
    provider, name = Provider(), "test-named"
    fails(run, provider, name, attempts=1)
    fails(run, provider, name, attempts=1)
    other = Provider()
    fails(run, other, name, attempts=1, policy="kfm-rules", on="transient")  # its own rules, the same circuit
    assert gates.local_breaker_state(name).load_state().state in ("OPEN", "CLOSED")
    fails(run, provider, name, attempts=1)
    assert gates.local_breaker_state(name).load_state().state == "OPEN"
    gates._named.pop(name)


def test_a_name_goes_by_the_rules_of_its_policy() -> None:
    wrapped: Any = oncemore.retrying(int, on="transient", breaker="test-ruled", policy="kfm-rules")
    assert wrapped() == 0
    from oncemore.policy.files.loader import load_breaker_rules

    assert load_breaker_rules("kfm-rules") == gates.BreakerRules(3, 300, "operations")
    assert load_breaker_rules("standard") is None
    assert load_breaker_rules("lit") is None


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MOST_NAMED", len(gates._named))
    with pytest.raises(oncemore.UsageError, match="is a breaker named by call"):
        gates.local_breaker_state("one more")


@pytest.mark.parametrize("name", ["", 5, "x" * 201, "a\nb"])
def test_a_name_is_a_text(name: Any) -> None:
    with pytest.raises(oncemore.UsageError, match="the name of a breaker is"):
        oncemore.Breaker(name)


def test_what_is_no_breaker_is_refused_where_it_is_given() -> None:
    with pytest.raises(
        oncemore.UsageError, match=r"breaker is 5; it takes the name of a provider, or oncemore"
    ):
        oncemore.retry(on="transient", breaker=5)  # type: ignore[arg-type]
    with pytest.raises(oncemore.PolicyError, match="failures of a breaker is 0"):
        oncemore.Breaker("x", failures=0)
    assert oncemore.Breaker("x", cooldown_s=timedelta(minutes=5)).rules.cooldown_s == 300.0


def test_it_is_said_in_the_log_that_it_has_opened_and_closed(
    make: Make, run: Run, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    provider, breaker = Provider(), make(failures=1)
    with caplog.at_level(logging.WARNING, "oncemore.breaker"):
        fails(run, provider, breaker)
        clock.advance(301)
        provider.error = None
        run(provider, breaker)
    told = [record.getMessage() for record in caplog.records if record.name == "oncemore.breaker"]
    assert told == [
        "oncemore: breaker stac is open for 300 s: CONNECTION_RESET",
        "oncemore: breaker stac is closed again",
    ]


# In a store -----------------------------------------------------------------------------------------


@pytest.mark.req("BREAK-8")
def test_those_who_share_a_store_share_it_and_a_new_one_does_not_reset_it(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    first = oncemore.Breaker("stac", failures=1, shared=True)
    with pytest.raises(ConnectionResetError), first:
        raise ConnectionResetError
    second = oncemore.Breaker("stac", failures=1, shared=True)
    assert second.state == "OPEN"
    with pytest.raises(oncemore.CircuitOpen), second:
        pass
    other = oncemore.Breaker("other", failures=1, shared=True)
    with other:
        pass


def test_a_store_that_is_down_leaves_local_memory_and_says_so(
    engine: oncemore.Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    clock: FakeClock,
) -> None:
    provider, breaker = Provider(), oncemore.Breaker("stac", failures=2, shared=True)
    wrapped = oncemore.retrying(provider, on="transient", attempts=1, breaker=breaker)

    def down(*told: object) -> Any:
        raise StoreError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr(engine.store, "load_head", down)
        broken.setattr(engine.store, "append", down)
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                wrapped()
        assert breaker.state == "OPEN"
        with pytest.raises(oncemore.CircuitOpen):
            wrapped()
        clock.advance(301)
        with pytest.raises(ConnectionResetError):  # the probe, in this process alone
            wrapped()
    told = [record.getMessage() for record in caplog.records if "cannot be reached" in record.getMessage()]
    assert len(told) == 1
    assert "breaker stac: the store cannot be reached (the disk is gone)" in told[0]
    provider.error = None
    assert wrapped() == "well"  # the store is back, where nothing has failed
    assert breaker.state == "CLOSED"


def test_a_store_that_fails_a_write_is_no_reason_to_stop(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch, run: Run, clock: FakeClock
) -> None:
    provider, breaker = Provider(), oncemore.Breaker("stac", failures=1, shared=True)

    class Lost:
        def wait(self) -> Any:
            raise StoreError("no answer")

        def __await__(self) -> Any:
            raise StoreError("no answer")
            yield

    monkeypatch.setattr(engine.store, "append", lambda batch: Lost())
    assert isinstance(fails(run, provider, breaker, attempts=1), ConnectionResetError)
    monkeypatch.undo()
    assert breaker.state == "CLOSED"


def test_others_who_write_first_are_read_again_and_not_for_ever(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = shared_breaker.StoredBreakerState("stac", lambda: engine)

    class Always:
        def wait(self) -> Conflict:
            return Conflict("breaker/stac", None)

    monkeypatch.setattr(engine.store, "append", lambda batch: Always())
    monkeypatch.setattr(shared_breaker, "MOST_TRIES", 3)
    with pytest.raises(StoreError, match="other writers changed it 3 times in a row"):
        gates.run_limit_script(
            book.update_stored_state(engine, lambda at, now, held: (at._replace(failures=9), None), None)
        )


def test_a_probe_that_could_not_be_taken_is_not_held(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    breaker = oncemore.Breaker("stac", failures=1, shared=True)
    with pytest.raises(ConnectionResetError), breaker:
        raise ConnectionResetError
    clock.advance(301)
    append, tries = engine.store.append, []

    def second(batch: Batch) -> Any:
        tries.append(batch)
        if len(tries) == 1:  # somebody else takes it in the same moment, and gives it back
            monkeypatch.undo()
            with pytest.raises(ValueError, match="no"), oncemore.Breaker("stac", failures=1, shared=True):
                raise ValueError("no")
        return append(batch)

    monkeypatch.setattr(engine.store, "append", second)
    with breaker:
        assert breaker.circuit.probe_number == 2
    assert breaker.state == "CLOSED"
    assert not [at for at in engine.leases.current_identity()._under_way if at[0] == "breaker/stac"]


@pytest.mark.req("BREAK-5")
def test_a_failed_probe_is_told_to_people_and_to_those_who_listen(clock: FakeClock) -> None:
    heard: list[Any] = []
    with oncemore.open("memory:", on_event=heard.append) as engine:
        breaker = oncemore.Breaker("stac", failures=1, shared=True)
        for _ in range(2):
            with pytest.raises(ConnectionResetError), breaker:
                raise ConnectionResetError
            clock.advance(301)
        with breaker:
            pass
        assert [event.what for event in heard] == [
            "circuit_opened", "circuit_half_open", "circuit_probe_failed", "circuit_half_open",
            "circuit_closed",
        ]  # fmt: skip
        assert [event.state for event in heard] == ["OPEN", "HALF_OPEN", "OPEN", "HALF_OPEN", "CLOSED"]
        assert [event.circuit_open for event in heard] == [True, True, True, True, False]
        assert parse_event(json.loads(heard[0].to_json())) == heard[0]
        from oncemore.log.entry_codec import decode_body, decode_header

        entries = list(engine.store.read_entries("breaker/stac"))
        escalated = [entry for entry in entries if "ESCALATION" in decode_header(entry.header).marks]
        assert len(escalated) == 1
        assert escalated[0].body is not None
        told = decode_body(escalated[0].body)["escalation"]
        assert (told["policy"], told["provider"], told["opens"]) == ("circuit_breaker", "stac", 2)


def test_a_reset_is_on_record_with_who_and_why(engine: oncemore.Engine, clock: FakeClock) -> None:
    breaker = oncemore.Breaker("stac", failures=1, shared=True)
    with pytest.raises(ConnectionResetError), breaker:
        raise ConnectionResetError
    with pytest.raises(oncemore.UsageError, match="resetting a breaker needs a reason"):
        shared_breaker.reset_breaker(engine, "stac", " ", Decider("operator"))
    with pytest.raises(oncemore.UsageError, match="there is no breaker 'nobody' in this store"):
        shared_breaker.reset_breaker(engine, "nobody", "because", Decider("operator"))
    assert (
        shared_breaker.reset_breaker(engine, "stac", "it was our network", Decider("operator")).state
        == "CLOSED"
    )
    with breaker:
        pass
    from oncemore.log.entry_codec import decode_body

    last = list(engine.store.read_entries("breaker/stac"))[-1]
    assert last.body is not None
    assert decode_body(last.body)["decision"] == {
        "action": "reset", "reason": "it was our network", "actor": "operator",
    }  # fmt: skip
    assert [circuit.name for circuit in shared_breaker.list_breakers(engine)] == ["stac"]


def test_audit_events_say_that_a_call_was_not_let_through(make: Make, run: Run, clock: FakeClock) -> None:
    heard: list[Any] = []
    provider, breaker = Provider(), make(failures=1)
    fails(run, provider, breaker, on_event=heard.append)
    fails(run, provider, breaker, on_event=heard.append)
    assert [(one.event_type, one.total_attempts, one.reason) for one in heard] == [
        ("retry_refused", 1, "circuit_open"),
        ("retry_refused", 0, "circuit_open"),
    ]
    assert all(one.not_before is not None for one in heard)
    clock.advance(301)
    provider.error = None
    run(provider, breaker, on_event=heard.append)
    assert heard[-1].event_type == "retry_succeeded"


def test_a_plain_call_behind_one_in_memory_counts_and_resets() -> None:
    breaker = oncemore.Breaker("x", failures=2)

    def down() -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        breaker.call(down)
    assert breaker.circuit.failures == 1
    assert breaker.call(int, "7") == 7
    assert breaker.circuit.failures == 0

    def meanwhile() -> str:
        with pytest.raises(ConnectionResetError):
            breaker.call(down)
        return "well"

    assert breaker.call(meanwhile) == "well"
    assert breaker.circuit.failures == 0


def test_a_write_that_fails_in_a_block_leaves_local_memory(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lost:
        def wait(self) -> Any:
            raise StoreError("no answer")

        def __await__(self) -> Any:
            raise StoreError("no answer")
            yield

    async def inside() -> None:
        async with oncemore.Breaker("awaited", failures=1, shared=True):
            raise ConnectionResetError

    monkeypatch.setattr(engine.store, "append", lambda batch: Lost())
    with pytest.raises(ConnectionResetError):
        asyncio.run(inside())
    with pytest.raises(ConnectionResetError), oncemore.Breaker("plain", failures=1, shared=True):
        raise ConnectionResetError


def test_a_call_that_comes_good_while_others_fail_is_told_to_the_breaker() -> None:
    other = oncemore.Breaker("odd.example", failures=5)

    @oncemore.retry(on="transient", attempts=1, breaker=other)
    def fails() -> None:
        raise ConnectionResetError

    @oncemore.retry(on="transient", breaker=other)
    def good() -> str:
        with pytest.raises(ConnectionResetError):
            fails()
        assert other.circuit.failures == 1
        return "good"

    @oncemore.retry(on="transient", breaker=other)
    async def good_awaited() -> str:
        with pytest.raises(ConnectionResetError):
            fails()
        assert other.circuit.failures == 1
        return "good"

    assert good() == "good"
    assert other.circuit.failures == 0
    assert asyncio.run(good_awaited()) == "good"
    assert other.circuit.failures == 0


def test_a_budget_says_what_is_left() -> None:
    assert repr(oncemore.Budget(10, 0.1)) == "Budget(10 of 10 tokens, 0.1 per success)"


def test_a_clean_breaker_lets_values_through_as_they_are() -> None:
    clean = oncemore.Breaker("clean.example")

    @oncemore.retry(on="transient", breaker=clean)
    async def awaited() -> str:
        return "good"

    assert oncemore.retrying(lambda: "good", on="transient", breaker=clean)() == "good"
    assert asyncio.run(awaited()) == "good"
    assert clean.circuit.open_count == 0
