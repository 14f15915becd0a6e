"""What `oncemore.on_event` is called with, and when."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import pytest

import oncemore
from oncemore import events
from oncemore.audit.recorder import make_step_listener
from oncemore.log.entry_codec import load_head
from oncemore.log.record import BreakerRecord, RecordChange
from oncemore.steps.release import release_attempts
from oncemore.steps.run_events import list_run_events
from tests.telemetry.work import QUICK, make_step

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.events import ProcessEvent
    from oncemore.testing import FakeClock

NAMES = (
    *("step", "key", "run_id", "attempt", "max_attempts", "tenant", "correlation_id", "provider"),
    *("policy", "at"),
)


def names(heard: list[ProcessEvent]) -> list[str]:
    return [type(event).__name__ for event in heard]


def test_a_run_that_fails_once_and_completes(
    engine: oncemore.Engine, clock: FakeClock, heard: list[Any]
) -> None:
    charge = make_step(ConnectionError("refused"), 7)
    with oncemore.context(tenant="acme", correlation_id="c-1"):
        assert charge(5) == 7
    assert names(heard) == ["RunStarted", "AttemptStarted", "AttemptFailed", "AttemptStarted", "RunCompleted"]
    started = heard[0]
    assert (started.step, len(started.key)) == ("shop.charge", 64)
    assert {(*event[:3], *event[4:9]) for event in heard} == {
        (*started[:3], 3, "acme", "c-1", "", started.policy)
    }
    assert [event.attempt for event in heard] == [1, 1, 1, 2, 2]
    failed, completed = heard[2], heard[4]
    assert (failed.action, failed.reason, failed.error_type) == ("retry", "retry", "ConnectionError")
    assert (failed.error_code, failed.error_kind) == ("CONNECTION_ERROR", "transient")
    assert failed.error_message == "refused"
    assert failed.delay_s == pytest.approx(0.25)
    assert completed.run_duration_s >= 0.25
    assert 0 <= completed.attempt_duration_s < 60
    assert [event.at for event in heard] == sorted(event.at for event in heard)


def test_a_finished_run_is_not_reported_again(engine: oncemore.Engine, heard: list[Any]) -> None:
    charge = make_step(7)
    charge()
    heard.clear()
    assert charge() == 7
    assert heard == []


def test_giving_up_is_a_failed_attempt_and_a_failed_run(
    engine: oncemore.Engine, clock: FakeClock, heard: list[Any]
) -> None:
    with pytest.raises(oncemore.StepFailed):
        make_step(ConnectionError("refused"))()
    assert names(heard[-2:]) == ["AttemptFailed", "RunFailed"]
    last, failed = heard[-2:]
    assert (last.attempt, last.action, last.delay_s) == (3, "stop", 0.0)
    assert (failed.reason, failed.error_type) == ("max_attempts_exceeded", "ConnectionError")
    assert (failed.error_code, failed.error_message) == ("CONNECTION_ERROR", "refused")


def test_a_run_that_is_held_and_settled_by_an_operator(engine: oncemore.Engine, heard: list[Any]) -> None:
    charge = make_step(ConnectionError("cut off"), 7, effect="once")
    with pytest.raises(oncemore.OutcomeUnknown):
        charge()
    assert names(heard) == ["RunStarted", "AttemptStarted", "AttemptFailed", "RunHeld"]
    assert (heard[2].action, heard[3].held_for) == ("quarantine", "outcome_unknown")
    assert heard[3].error_message == "cut off"
    heard.clear()
    with pytest.raises(oncemore.OutcomeUnknown):
        charge()
    assert heard == [], "it is held already"
    charge.settle(oncemore.not_applied(), reason="looked")
    assert names(heard) == ["RunReleased"]
    assert heard[0].held_for == "outcome_unknown"
    heard.clear()
    assert charge() == 7
    assert names(heard) == ["AttemptStarted", "RunCompleted"]


def test_a_settled_run_completes_without_an_attempt(engine: oncemore.Engine, heard: list[Any]) -> None:
    charge = make_step(ConnectionError("cut off"), effect="once")
    with pytest.raises(oncemore.OutcomeUnknown):
        charge()
    heard.clear()
    charge.settle(oncemore.applied(8), reason="looked")
    assert names(heard) == ["RunCompleted"]
    assert (heard[0].reason, heard[0].attempt_duration_s) == ("reconciled", 0.0)


def test_a_submitted_run(engine: oncemore.Engine, heard: list[Any]) -> None:
    charge = make_step(7)
    charge.submit(5)
    charge.submit(5)
    assert names(heard) == ["RunSubmitted"]
    assert heard[0].attempt == 0
    assert heard[0].due_at <= heard[0].at
    oncemore.Worker(engine, [charge]).run_until_idle()
    assert names(heard) == ["RunSubmitted", "RunStarted", "AttemptStarted", "RunCompleted"]


def test_a_cancelled_run_and_its_rerun(engine: oncemore.Engine, heard: list[Any]) -> None:
    charge = make_step(7)
    charge.submit(5)
    charge.cancel(5, reason="wrong order")
    assert names(heard) == ["RunSubmitted", "RunFailed"]
    assert (heard[1].reason, heard[1].attempt) == ("cancelled", 0)
    heard.clear()
    assert charge.rerun(5, reason="right after all") == 7
    assert names(heard) == ["RunSubmitted", "RunStarted", "AttemptStarted", "RunCompleted"]


def test_an_interrupted_attempt(engine: oncemore.Engine, heard: list[Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_step(KeyboardInterrupt())()
    assert names(heard) == ["RunStarted", "AttemptStarted", "AttemptInterrupted"]
    assert (heard[2].attempt, heard[2].reason) == (1, "interrupted")


def test_a_value_that_cannot_be_stored_fails_the_attempt(engine: oncemore.Engine, heard: list[Any]) -> None:
    with pytest.raises(oncemore.Error):
        make_step(object(), effect="pure")()
    assert names(heard) == ["RunStarted", "AttemptStarted", "AttemptFailed", "RunFailed"]
    assert (heard[2].action, heard[3].reason) == ("stop", "result_unavailable")
    assert heard[2].duration_s >= 0


def test_an_attempt_that_was_lost_with_its_worker_is_taken_over(tmp_path: Path, heard: list[Any]) -> None:
    program = (
        "import oncemore, os\n"
        "charge = oncemore.step(effect='idempotent', name='shop.charge')(lambda order=1: os._exit(9))\n"
        "charge()\n"
    )
    store = f"sqlite:///{tmp_path / 'log.db'}"
    environment = {"ONCEMORE_STORE": store, "PATH": ""}
    subprocess.run([sys.executable, "-c", program], env=environment, check=False, capture_output=True)
    with oncemore.open(store):
        assert make_step(7)() == 7
    assert names(heard) == ["RunTakenOver", "AttemptStarted", "RunCompleted"]
    assert heard[0].worker
    assert (heard[0].attempt, heard[0].crash_count, heard[0].max_crashes) == (1, 1, 20)
    assert heard[1].attempt == 1, "a crash is not a failed attempt"


def test_a_run_behind_an_open_breaker_is_deferred(engine: oncemore.Engine, heard: list[Any]) -> None:
    breaker = oncemore.Breaker("bank", failures=1, cooldown_s=600)
    options = {"provider": "bank", "breaker": breaker, "policy": QUICK.replace(max_attempts=1)}
    with pytest.raises(oncemore.StepFailed):
        make_step(ConnectionError("down"), **options)(1)
    changed = [event for event in heard if type(event) is events.BreakerChanged]
    assert [(event.provider, event.change, event.before, event.state) for event in changed] == [
        ("bank", "circuit_opened", "CLOSED", "OPEN")
    ]
    assert changed[0].error_code == "CONNECTION_ERROR"
    heard.clear()
    with pytest.raises(oncemore.Deferred):
        make_step(7, **options)(2)
    assert names(heard) == ["RunDeferred"]
    assert (heard[0].reason, heard[0].attempt, heard[0].provider) == ("circuit_open", 0, "bank")
    assert 500 < heard[0].delay_s <= 600


def test_a_breaker_in_memory_is_reported_by_state(clock: FakeClock, heard: list[Any]) -> None:
    breaker = oncemore.Breaker("mail", failures=1, cooldown_s=10)
    with pytest.raises(ConnectionError, match="down"):
        breaker.call(make_raiser(ConnectionError("down")))
    clock.advance(11)
    with pytest.raises(KeyboardInterrupt):
        breaker.call(make_raiser(KeyboardInterrupt()))
    with pytest.raises(ConnectionError, match="down"):
        breaker.call(make_raiser(ConnectionError("down")))
    clock.advance(11)
    assert breaker.call(lambda: 7) == 7
    changes = [event.change for event in heard]
    assert changes == [
        *("circuit_opened", "circuit_half_open", "circuit_probe_released"),
        *("circuit_half_open", "circuit_probe_failed", "circuit_half_open", "circuit_closed"),
    ]
    assert heard[-1].until == 0.0
    assert heard[0].until > 0.0


def make_raiser(error: BaseException) -> Any:
    def work() -> None:
        raise error

    return work


def test_a_result_of_another_config_is_reported(engine: oncemore.Engine, heard: list[Any]) -> None:
    make_step(7)()
    heard.clear()
    assert make_step(8, version="2")() == 7
    assert names(heard) == ["ConfigDrifted"]
    assert (heard[0].step, len(heard[0].key)) == ("shop.charge", 64)


def test_a_call_of_retry_reports_its_failures(clock: FakeClock, heard: list[Any]) -> None:
    results = [OSError("token=abcdef1234567890"), OSError("again")]

    @oncemore.retry(on=OSError, attempts=2, wait=[0.5])
    def fetch() -> None:
        raise results.pop(0)

    with pytest.raises(OSError, match="again"):
        fetch()
    assert names(heard) == ["AttemptFailed", "AttemptFailed"]
    first, last = heard
    assert first.step.endswith("fetch")
    assert (first.key, first.run_id, first.attempt, first.max_attempts) == ("", "", 1, 2)
    assert (first.action, first.delay_s, last.action) == ("retry", 0.5, "stop")
    assert "abcdef1234567890" not in first.error_message
    heard.clear()

    @oncemore.retry(on=OSError)
    def other() -> None:
        raise ValueError("not ours")

    with pytest.raises(ValueError, match="not ours"):
        other()
    assert heard == [], "an error that `on` does not cover is not retried at all"


def test_a_value_that_until_refuses_is_a_failure_without_an_error(clock: FakeClock, heard: list[Any]) -> None:
    with pytest.raises(oncemore.RetriesExhausted):
        oncemore.retrying(lambda: 1, on=(), until=lambda value: False, attempts=2)()
    assert [(event.error_type, event.error_code) for event in heard] == [("", "UNTIL_NOT_MET")] * 2


def test_an_async_step_reports_the_same(engine: oncemore.Engine, clock: FakeClock, heard: list[Any]) -> None:
    results = [ConnectionError("refused"), 7]

    @oncemore.step(effect="idempotent", policy=QUICK, name="shop.charge")
    async def charge() -> Any:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    assert asyncio.run(charge()) == 7
    assert names(heard) == ["RunStarted", "AttemptStarted", "AttemptFailed", "AttemptStarted", "RunCompleted"]


def test_an_event_comes_after_the_write_that_it_describes(engine: oncemore.Engine, clock: FakeClock) -> None:
    stored: list[tuple[str, str]] = []

    def look(event: Any) -> None:
        record = load_head(engine.store, f"run/{event.key}", engine.cipher).record
        stored.append((type(event).__name__, record.state))

    with oncemore.on_event(look):
        make_step(ConnectionError("refused"), 7)(1)
        with pytest.raises(oncemore.StepFailed):
            make_step(ValueError("wrong"))(2)
    assert dict(stored) == {
        "RunStarted": "RUNNING",
        "AttemptStarted": "RUNNING",
        "AttemptFailed": "HARD_FAIL",
        "RunCompleted": "COMPLETE",
        "RunFailed": "HARD_FAIL",
    }
    assert ("AttemptFailed", "SOFT_FAIL") in stored


def test_a_process_that_dies_in_a_listener_has_stored_the_claim(tmp_path: Path) -> None:
    program = (
        "import oncemore, os\n"
        "oncemore.on_event(lambda event: os._exit(9))\n"
        "oncemore.step(effect='idempotent', name='shop.charge')(lambda order=1: 8)()\n"
    )
    store = f"sqlite:///{tmp_path / 'log.db'}"
    environment = {"ONCEMORE_STORE": store, "PATH": ""}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert ended.returncode == 9
    with oncemore.open(store):
        charge = make_step(7)
        assert charge() == 7
        assert len(charge.run().attempts) == 2


def test_an_encrypted_store_keeps_the_text_of_errors_out_of_events(
    clock: FakeClock, heard: list[Any]
) -> None:
    class Reversed:
        id = "reversed"

        def encode(self, data: bytes) -> bytes:
            return data[::-1]

        def decode(self, data: bytes) -> bytes:
            return data[::-1]

    with oncemore.open("memory:", codec=Reversed()), pytest.raises(oncemore.StepFailed):
        make_step(ConnectionError("refused by customer 7"))()
    assert {event.error_message for event in heard if type(event) is events.AttemptFailed} == {""}
    assert heard[-1].error_type == "ConnectionError"


def test_a_secret_argument_is_masked(engine: oncemore.Engine, clock: FakeClock, heard: list[Any]) -> None:
    @oncemore.step(effect="idempotent", policy=QUICK, name="shop.charge")
    def charge(order: int, token: Annotated[str, oncemore.Secret]) -> None:
        raise ConnectionError(f"refused {token}")

    with pytest.raises(oncemore.StepFailed):
        charge(1, "swordfish-1234")
    assert "swordfish" not in str(heard)
    assert "refused" in str(heard)


def test_a_checkpoint_and_a_record_of_another_kind_are_no_events(
    engine: oncemore.Engine, heard: list[Any]
) -> None:
    @oncemore.step(effect="idempotent", name="shop.charge")
    def charge() -> int:
        oncemore.current().checkpoint(1)
        return 7

    charge()
    assert names(heard) == ["RunStarted", "AttemptStarted", "RunCompleted"]
    change = RecordChange(("BREAKER",), None, BreakerRecord(name="bank"), {})
    assert list_run_events("breaker/bank", change, 0.0) == []


def test_an_engine_passes_on_three_kinds_of_events_as_audit_events() -> None:
    audited: list[Any] = []
    listen = make_step_listener(audited.append)
    listen(events.DeliveryFailed("orders", "1", 3, "max_attempts_exceeded"))
    for change in ("circuit_probe_released", "circuit_opened"):
        listen(events.BreakerChanged("bank", change, "HALF_OPEN", "OPEN", 1, 1, "X", 1.0))
    listen(events.StoreSizeExceeded("the store", 2, 1, "prune"))
    listen(events.ConfigDrifted("shop.charge", "k", "r", "", "", "", "hash"))
    assert [event.event_type for event in audited] == ["circuit", "store_size", "config_drift"]


# The subscription -----------------------------------------------------------------------------------


def test_a_subscription_ends(engine: oncemore.Engine) -> None:
    heard: list[Any] = []
    subscription = oncemore.on_event(heard.append)
    make_step(7)(1)
    subscription.unsubscribe()
    subscription.unsubscribe()
    count = len(heard)
    make_step(7)(2)
    assert len(heard) == count == 3


def test_on_event_is_a_decorator(engine: oncemore.Engine) -> None:
    heard: list[Any] = []

    @oncemore.on_event
    def listen(event: oncemore.events.ProcessEvent) -> int:
        heard.append(event)
        return len(heard)

    make_step(7)()
    assert listen(heard[0]) == 4
    listen.unsubscribe()


def test_a_listener_that_raises_is_logged_once_and_disturbs_nothing(
    engine: oncemore.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: Any) -> None:
        raise ValueError("password=hunter2")

    heard: list[Any] = []
    with oncemore.on_event(broken), oncemore.on_event(heard.append):
        assert make_step(7)(1) == 7
        assert make_step(8)(2) == 8
    lines = [record.getMessage() for record in caplog.records if "on_event" in record.getMessage()]
    assert len(lines) == 1
    assert "broken failed with ValueError" in lines[0]
    assert "hunter2" not in lines[0]
    assert len(heard) == 6


def test_an_async_listener_is_refused(engine: oncemore.Engine, caplog: pytest.LogCaptureFixture) -> None:
    async def listen(event: Any) -> None: ...

    with pytest.raises(oncemore.UsageError, match="listen is an async function, and events are not awaited"):
        oncemore.on_event(listen)
    with pytest.raises(oncemore.UsageError, match="on_event takes a function with one parameter"):
        oncemore.on_event(7)  # type: ignore[arg-type]
    with oncemore.on_event(lambda event: listen(event)):
        assert make_step(7)() == 7
    assert "it returned an awaitable, and events are not awaited" in caplog.text


def test_steps_that_a_listener_calls_do_not_call_it_again(engine: oncemore.Engine) -> None:
    inner, heard = make_step(1, name="inner"), []
    others: list[Any] = []

    def listen(event: Any) -> None:
        heard.append(event.step)
        inner(len(heard))

    with oncemore.on_event(listen), oncemore.on_event(others.append):
        make_step(7)()
    assert heard == ["shop.charge"] * 3
    assert {event.step for event in others} == {"shop.charge", "inner"}


def test_listeners_may_come_and_go_in_threads(engine: oncemore.Engine) -> None:
    def come_and_go() -> None:
        for _ in range(200):
            oncemore.on_event(lambda event: None).unsubscribe()

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("kind", events.RunEvent.__args__)
def test_the_events_of_a_run_begin_with_the_same_fields(kind: Any) -> None:
    assert kind._fields[: len(NAMES)] == NAMES


def test_the_light_import_has_no_classes_of_events() -> None:
    program = "import sys, oncemore; oncemore.retry; print('oncemore.events' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_logger_of_retry_is_not_that_of_steps(caplog: pytest.LogCaptureFixture, clock: FakeClock) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(OSError, match="down"):
        oncemore.retrying(make_raiser(OSError("down")), on=OSError)()
    assert {record.name for record in caplog.records} == {"oncemore.retry"}


# Workflows and workers that stop --------------------------------------------------------------------


def test_a_workflow_that_sleeps_is_parked_and_started_once(clock: FakeClock, heard: list[Any]) -> None:
    @oncemore.workflow(name="shop.order")
    def order() -> int:
        oncemore.sleep(600)
        return 7

    with oncemore.open("memory:") as engine:
        with pytest.raises(oncemore.Deferred):
            order()
        clock.advance(601)
        assert order() == 7
        assert engine.now() > 0
    assert names(heard) == ["RunStarted", "AttemptStarted", "RunParked", "AttemptStarted", "RunCompleted"]
    assert heard[2].attempt == 1
    assert 590 < heard[2].delay_s <= 600


def test_an_attempt_that_a_stopping_worker_leaves_is_interrupted(
    engine: oncemore.Engine, heard: list[Any]
) -> None:
    @oncemore.step(effect="idempotent", name="shop.charge")
    def charge() -> int:
        if oncemore.current().number == 1:
            assert release_attempts(engine) == 1
        return 7

    # The first attempt no longer holds the run: the call makes another one.
    assert charge() == 7
    assert names(heard)[:4] == ["RunStarted", "AttemptStarted", "AttemptInterrupted", "AttemptStarted"]
    assert heard[2].reason == "interrupted"
