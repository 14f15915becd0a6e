"""Somebody is told: in the same write as the hold, at least once under one id, and not five hundred times."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import UsageError
from oncemore.config import load_settings
from oncemore.control.notifications import TOPIC_PREFIX, NotificationStatus
from oncemore.messaging.sink_urls import parse_sinks
from oncemore.open_engine import engine_from_settings
from oncemore.outbox import CommandSink, EventMessage, JsonLinesSink, OutboxRelay, WebhookSink
from oncemore.steps.engine import Engine
from oncemore.steps.history import verify_chain
from tests.control.quarantine.helpers import (
    RecordingSink,
    charge,
    doubtful,
    list_notifications,
    make_manual_notifier,
    make_notifier,
    processes,
)
from tests.steps.colours import RAISES

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock


def settled(held: Any, seconds: float = 20.0) -> bool:
    """Wait until something holds, or time is up."""
    ends = time.monotonic() + seconds
    while not held() and time.monotonic() < ends:
        time.sleep(0.005)
    return bool(held())


def deliver(engine: Engine) -> Any:
    assert engine.notifier is not None
    return engine.notifier.make_relay(engine).run_once()


def test_whoever_is_to_be_told_is_told_without_being_asked_for() -> None:
    heard = RecordingSink()
    with oncemore.open("memory:", notify={"ops": heard}) as engine:
        with oncemore.context(tenant="acme", correlation_id="c-7"):
            doubtful.run(7)
        assert settled(lambda: heard.messages)
        (item,) = engine.quarantine
        (message,) = heard.messages
        assert (message.topic, message.correlation_id, message.tenant) == (
            TOPIC_PREFIX + "ops",
            "c-7",
            "acme",
        )
        assert message.payload == {
            "what": "quarantine",
            "kind": "run",
            "item": item.id,
            "step": "doubtful",
            "reason": "quarantined",
            "attempts": 1,
            "error": {"type": "NeedsReview", "code": "AMBIGUOUS_NAME"},
            "since": item.since,
            "notify_again_after": message.payload["notify_again_after"],
            "next": f"oncemore quarantine show {item.id}",
        }
        assert settled(lambda: engine.quarantine.show(item).notifications[0].state == "DELIVERED")
        (notice,) = engine.quarantine.show(item).notifications
        assert notice == NotificationStatus("ops", "DELIVERED", message.id, 0.0)


@oncemore.step(effect="idempotent", name="broken", policy=RAISES)
def broken(x: int) -> None:
    """Fails for good at once."""
    raise ValueError(x)


@oncemore.step(effect="idempotent", name="tired")
def tired(x: int) -> None:
    """Fails for good when its attempts are used up."""
    raise ConnectionResetError(x)


def test_every_run_that_fails_for_good_is_told(clock: FakeClock) -> None:
    heard = RecordingSink()
    with processes(lambda: make_manual_notifier(heard, every_s=0.0))() as engine:
        run, spent = broken.run(1), tired.run(1)
        doubtful.run(1)
        (item,) = engine.quarantine
        engine.quarantine.reject(item, by="operator", reason="two stars")
        deliver(engine)
        assert [
            (one.payload["what"], one.payload["step"], one.payload["reason"]) for one in heard.messages
        ] == [
            ("failure", "broken", "not_retryable"),
            ("failure", "tired", "max_attempts_exceeded"),
            ("quarantine", "doubtful", "quarantined"),
            ("failure", "doubtful", "rejected"),
        ]
        first, second = heard.messages[:2]
        assert first.payload["item"] == run.run_id
        assert first.payload["next"] == f"oncemore show {run.run_id}"
        assert first.payload["error"] == {"type": "ValueError", "code": "EXC_ValueError"}
        assert (second.payload["item"], second.payload["attempts"]) == (spent.run_id, 3)
        with pytest.raises(oncemore.PermanentFailure):
            broken(1)  # the stored failure is raised again, and is not a failure of its own
        deliver(engine)
        assert len(heard.messages) == 4
        verify_chain(engine.store.read_entries())


def test_a_storm_of_failures_is_told_twice(clock: FakeClock) -> None:
    heard = RecordingSink()
    with processes(lambda: make_manual_notifier(heard, every_s=300.0))() as engine:
        clock.advance(300.0 - engine.now() % 300.0 + 1.0)
        for x in range(20):
            broken.run(x)
        deliver(engine)
        assert [one.payload["what"] for one in heard.messages] == ["failure"]
        clock.advance(300.0)
        deliver(engine)
        assert [one.payload["what"] for one in heard.messages] == ["failure", "more failures"]
        assert heard.messages[1].payload["next"] == "oncemore runs --step broken --state HARD_FAIL"


@pytest.mark.parametrize(
    ("about", "steps"),
    [("all", ["broken", "doubtful"]), ("holds", ["doubtful"]), ("failures", ["broken"])],
)
def test_settings_choose_what_is_told(about: str, steps: list[str], tmp_path: Path) -> None:
    told = tmp_path / "told.jsonl"
    (tmp_path / "oncemore.toml").write_text(
        f'store = "memory:"\nnotify = ["file:told.jsonl"]\nnotify_every_s = 0\nnotify_of = "{about}"\n'
    )
    with engine_from_settings(load_settings(tmp_path)):
        broken.run(1)
        doubtful.run(1)
    assert [json.loads(line)["payload"]["step"] for line in told.read_text().splitlines()] == steps


def test_a_word_that_does_not_say_what_is_told_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="notify_of is 'some'; the choices are all, holds, failures"):
        oncemore.open("memory:", notify={"ops": RecordingSink()}, notify_of="some")
    (tmp_path / "oncemore.toml").write_text('notify_of = "some"\n')
    with pytest.raises(UsageError, match=r"oncemore.toml: notify_of is 'some'; the choices are all"):
        load_settings(tmp_path)


@pytest.mark.req("MSG-7", "IDEM-15")
def test_no_notice_holds_a_key_and_every_one_has_a_correlation_id() -> None:
    heard = RecordingSink()

    @oncemore.step(effect="idempotent", name="leaky")
    def leaky() -> None:
        raise oncemore.NeedsReview("LEAKY", f"the key is {oncemore.current().key}")

    @oncemore.step(effect="outbox", name="give")
    def give() -> None:
        oncemore.current().emit("orders", 1)

    def refuses(message: EventMessage) -> None:
        raise oncemore.PermanentError("no")

    start = processes(lambda: make_manual_notifier(heard))
    with start() as engine:
        runs = [leaky.run(), doubtful.run(1), doubtful.run(2), charge.run(1), give.run()]
        OutboxRelay(engine, {"orders": refuses}).run_once()
        deliver(engine)
        keys = [run.key for run in runs]
        assert len(heard.messages) == 4
        for message in heard.messages:
            text = message.to_json().decode()
            assert message.correlation_id in {run.correlation_id for run in runs}
            assert not [key for key in keys if key in text or key[:12] in text]
            assert "the key is" not in text


def test_a_storm_is_told_twice_and_nothing_of_it_is_lost_from_the_list(clock: FakeClock) -> None:
    heard, start = RecordingSink(), None
    start = processes(lambda: make_manual_notifier(heard, every_s=300.0))
    with start() as engine:
        clock.advance(300.0 - engine.now() % 300.0 + 1.0)
        for x in range(100):
            doubtful.run(x)
        charge.run(1)
        assert len(engine.quarantine) == 101
        deliver(engine)
        first = [(one.payload["what"], one.payload["step"]) for one in heard.messages]
        assert sorted(first) == [("quarantine", "charge"), ("quarantine", "doubtful")]
        clock.advance(200.0)
        doubtful.run(100)
        deliver(engine)
        assert len(heard.messages) == 2, "not yet"
        clock.advance(100.0)
        deliver(engine)
        assert len(heard.messages) == 3
        more = heard.messages[2].payload
        assert (more["what"], more["next"]) == (
            "more in quarantine",
            "oncemore quarantine list --step doubtful --reason quarantined",
        )
        doubtful.run(101)  # a new stretch: it is told at once
        deliver(engine)
        assert [one.payload["what"] for one in heard.messages[3:]] == ["quarantine"]
        items = engine.quarantine.list(step="doubtful")
        assert len(items) == 102
        assert [len(engine.quarantine.show(item).notifications) for item in items] == [1] * 102
        assert len(set(heard.ids)) == len(heard.ids) == 4
        verify_chain(engine.store.read_entries())


def test_without_a_stretch_everything_is_told() -> None:
    heard = RecordingSink()
    with processes(lambda: make_manual_notifier(heard, every_s=0.0))() as engine:
        for x in range(5):
            doubtful.run(x)
        deliver(engine)
        assert sorted(one.payload["item"] for one in heard.messages) == sorted(
            item.id for item in engine.quarantine
        )
        assert {one.payload["notify_again_after"] for one in heard.messages} == {None}


def test_what_is_held_again_is_told_again() -> None:
    heard = RecordingSink()
    with processes(lambda: make_manual_notifier(heard, every_s=0.0))() as engine:
        for _ in range(2):
            doubtful.run(1)
            (item,) = engine.quarantine
            engine.quarantine.release(item, by="operator", reason="try")
        deliver(engine)
        assert len(heard.messages) == len(set(heard.ids)) == 2


def test_nobody_is_told_of_an_outcome_that_is_asked_about_again_in_vain() -> None:
    heard = RecordingSink()
    asking = oncemore.step(effect="once", name="charge", reconcile=lambda x: oncemore.unknown())(
        charge.__wrapped__
    )
    with processes(lambda: make_manual_notifier(heard, every_s=0.0))() as engine:
        for _ in range(3):
            with pytest.raises(oncemore.OutcomeUnknown):
                asking(1)
        assert len(list_notifications(engine)) == 1


@pytest.mark.req("MSG-8")
def test_a_notice_that_cannot_be_delivered_is_a_dead_letter_in_the_list_and_of_that_nobody_is_told() -> None:
    def refuses(message: EventMessage) -> None:
        raise oncemore.PermanentError("410 gone")

    heard = RecordingSink()
    with processes(lambda: make_manual_notifier(refuses, heard))() as engine:
        doubtful.run(1)
        assert deliver(engine).dead == 1
        assert len(heard.messages) == 1
        (letter,) = engine.quarantine.list(kind="event")
        assert (letter.reason, letter.step) == ("dead_letter", TOPIC_PREFIX + "a")
        assert len(list_notifications(engine)) == 2, "a dead notice makes no notice"
        (item,) = engine.quarantine.list(kind="run")
        assert [(one.sink, one.state) for one in engine.quarantine.show(item).notifications] == [
            ("a", "DEAD"), ("b", "DELIVERED"),
        ]  # fmt: skip
        engine.quarantine.release(letter, by="operator", reason="the hook is back")
        assert list_notifications(engine)[0].state == "PENDING"


def test_a_relay_of_everything_takes_no_notice_that_is_for_somebody_else() -> None:
    heard, mine = RecordingSink(), RecordingSink()
    with processes(lambda: make_manual_notifier(heard))() as engine:
        doubtful.run(1)
        assert OutboxRelay(engine, {"*": mine, "o*": mine}).run_once().unrouted == 1
        assert (mine.messages, deliver(engine).delivered, len(heard.messages)) == ([], 1, 1)
        charge.run(1)
        assert OutboxRelay(engine, {"oncemore.*": mine}).run_once().delivered == 1, "who names it gets it"

    @oncemore.step(effect="outbox", name="posing")
    def posing() -> None:
        oncemore.current().emit("oncemore.quarantine.a", {})

    with oncemore.open("memory:"), pytest.raises(oncemore.PermanentFailure, match="are not for steps"):
        posing()


def test_a_sink_that_fails_for_now_is_told_later_under_the_same_id(clock: FakeClock) -> None:
    heard, down = RecordingSink(), [True]

    def sink(message: EventMessage) -> None:
        heard(message)
        if down[0]:
            raise oncemore.TransientError("503")

    with processes(lambda: make_manual_notifier(sink))() as engine:
        doubtful.run(1)
        assert deliver(engine).failed == 1
        down[0] = False
        clock.advance(100.0)
        assert deliver(engine).delivered == 1
        assert len(heard.ids) == 2
        assert len(set(heard.ids)) == 1
        assert {message.to_json() for message in heard.messages} == {heard.messages[0].to_json()}


def test_altered_bytes_and_dead_letters_are_told_too() -> None:
    from tests.artifacts.conftest import alter

    heard = RecordingSink()

    @oncemore.step(effect="idempotent", name="report", artifact="report")
    def report() -> Any:
        return oncemore.current().put(b"the report")

    @oncemore.step(effect="outbox", name="give")
    def give() -> None:
        oncemore.current().emit("orders", 1)

    def refuses(message: EventMessage) -> None:
        raise oncemore.PermanentError("no")

    with oncemore.open("memory:", notify={"a": heard}) as engine:
        alter(engine.artifact_store.backend, report().digest)
        report.run()
        give()
        OutboxRelay(engine, {"orders": refuses}).run_once()
        assert settled(lambda: len(heard.messages) == 2)
        kinds = {one.payload["kind"]: one for one in heard.messages}
        assert set(kinds) == {"artifact", "event"}
        items = {item.kind: item for item in engine.quarantine}
        for kind, message in kinds.items():
            assert message.payload["item"] == items[kind].id
            assert message.correlation_id == items[kind].correlation_id != ""
            assert [one.sink for one in engine.quarantine.show(items[kind]).notifications] == ["a"]


def test_of_two_relays_that_give_events_up_at_once_both_know_why() -> None:
    start = processes(lambda: make_manual_notifier(RecordingSink()))

    @oncemore.step(effect="outbox", name="give")
    def give(x: int) -> None:
        oncemore.current().emit("orders", x)

    def refuses(message: EventMessage) -> None:
        barrier.wait(30)
        raise oncemore.PermanentError(f"no {message.payload}")

    barrier, engines = threading.Barrier(2), [start(), start()]
    for x in range(2):
        give.bind(engines[0])(x)
    crowd = [
        threading.Thread(target=OutboxRelay(engine, {"orders": refuses}, batch=n + 1).run_once)
        for n, engine in enumerate(engines)
    ]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(60)
    letters = engines[0].quarantine.list(kind="event")
    assert sorted(letter.error["message"] for letter in letters) == ["no 0", "no 1"]
    for engine in engines:
        engine.close()


def given_up(start: Any) -> tuple[Any, Any]:
    """Return a courier and the write by which it gives an event up, undone."""
    from oncemore.log.entry_codec import load_head
    from oncemore.log.record import EventRecord, RecordChange
    from oncemore.messaging.delivery import change_state
    from oncemore.steps.ops import AppendChange

    @oncemore.step(effect="outbox", name="give")
    def give() -> None:
        oncemore.current().emit("orders", 1)

    engine = start()
    give.bind(engine)()
    (event,) = [one for one in _events(engine) if one.topic == "orders"]
    seen = load_head(engine.store, f"event/{event.event_id}", None, EventRecord)
    change = RecordChange(
        ("DEAD", "ESCALATION"), seen.record, change_state(seen.record, "DEAD"), {"error": {"code": "NO"}}
    )
    return OutboxRelay(engine, {"orders": print})._make_driver(None), AppendChange(seen, change)


def _events(engine: Engine) -> list[Any]:
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import EventRecord
    from oncemore.log.store import HeadQuery

    return [
        decode_head(head.head, EventRecord)
        for head in engine.store.list_heads(HeadQuery("event", limit=1000))
    ]


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_a_notice_that_somebody_else_has_just_written_is_no_reason_to_forget_why(colour: str) -> None:
    import asyncio

    from oncemore.messaging import driver as couriers

    start = processes(lambda: make_manual_notifier(RecordingSink()))
    courier, save = given_up(start)
    first = [True]
    of = courier.engine.notifier.add_notifications

    def slow(engine: Engine, *told_: Any) -> Any:
        made = of(engine, *told_)
        if first and first.pop():  # in between somebody writes the very same notice
            other = start()
            from oncemore.log.entry_codec import build_event_write
            from oncemore.log.store import Batch

            other.store.append(Batch(tuple(build_event_write(each, 1.0) for each in made[1]))).wait()
        return made

    courier.engine.notifier.add_notifications = slow
    if colour == "plain":
        saved = couriers._append_change(courier, save)
    else:
        saved = asyncio.run(couriers._append_change_async(courier, save))
    assert saved is not None
    (item,) = courier.engine.quarantine
    assert item.error == {"code": "NO"}
    assert [one.ordinal for one in list_notifications(courier.engine)] == [0, 1]


def test_a_file_is_set_aside_though_somebody_else_has_just_written_its_notice() -> None:
    from oncemore.log.entry_codec import build_event_write
    from oncemore.log.store import Batch
    from tests.artifacts.conftest import alter

    @oncemore.step(effect="idempotent", name="report", artifact="report")
    def report() -> Any:
        return oncemore.current().put(b"the report")

    with oncemore.open("memory:", notify={"a": RecordingSink()}) as engine:
        assert engine.notifier is not None
        alter(engine.artifact_store.backend, report().digest)
        of, first = engine.notifier.add_notifications, [True]

        def slow(*told_: Any) -> Any:
            made = of(*told_)
            if first and first.pop():
                engine.store.append(Batch(tuple(build_event_write(each, 1.0) for each in made[1]))).wait()
            return made

        engine.notifier.add_notifications = slow  # type: ignore[method-assign]
        report.run()
        (item,) = engine.quarantine.list(kind="artifact")
        (notice,) = engine.quarantine.show(item).notifications
        assert notice.event_id == list_notifications(engine)[1].event_id, "it is part of what is told later"


def test_a_file_that_somebody_else_sets_aside_at_the_same_time_is_set_aside_once() -> None:
    from tests.artifacts.conftest import alter

    heard = RecordingSink()

    @oncemore.step(effect="idempotent", name="report", artifact="report")
    def report() -> Any:
        return oncemore.current().put(b"the report")

    with oncemore.open("memory:", notify={"a": heard}) as engine:
        assert engine.notifier is not None
        alter(engine.artifact_store.backend, report().digest)
        of, first = engine.notifier.add_notifications, [True]

        def slow(*told_: Any) -> Any:
            made = of(*told_)
            if first and first.pop():
                report.run()  # … meets it first
            return made

        engine.notifier.add_notifications = slow  # type: ignore[method-assign]
        report.run()
        assert len(engine.quarantine.list(kind="artifact")) == 1
        verify_chain(engine.store.read_entries())


# Who tells ------------------------------------------------------------------------------------------


def test_what_another_process_left_untold_is_told_with_the_next_sign_of_life() -> None:
    heard, store = RecordingSink(), processes(lambda: make_manual_notifier(heard))
    silent = store()
    doubtful.bind(silent).run(1)
    silent.close()
    assert heard.messages == []
    other = Engine(lambda: silent._open_store(), "memory:", notices=make_notifier(heard))
    with other:
        other.leases.current_identity()
        other.leases.renew_leases()
        assert settled(lambda: heard.messages)


def test_an_engine_that_is_closed_at_once_tells_first() -> None:
    for x in range(5):
        heard = RecordingSink()
        with oncemore.open("memory:", notify={"a": heard}):
            doubtful.run(x)
        assert len(heard.messages) == 1


def test_a_sink_that_hangs_does_not_keep_an_engine_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncemore.steps import engine

    monkeypatch.setattr(engine, "CLOSE_TIMEOUT_S", 0.2)
    hangs, go = threading.Event(), threading.Event()

    def sink(message: EventMessage) -> None:
        hangs.set()
        go.wait(60)

    began = time.monotonic()
    with oncemore.open("memory:", notify={"a": sink}):
        doubtful.run(1)
        assert hangs.wait(30)
    assert time.monotonic() - began < 20
    go.set()


def test_a_teller_that_cannot_read_the_store_says_so_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    heard = RecordingSink()
    with oncemore.open("memory:", notify={"a": heard}) as engine:
        store, heads = engine.store, engine.store.list_heads
        store.list_heads = lambda query: (_ for _ in ()).throw(oncemore.StoreError("gone"))  # type: ignore[method-assign]
        doubtful.run(1)
        assert settled(lambda: "a notification was not delivered: StoreError" in caplog.text)
        store.list_heads = heads  # type: ignore[method-assign]
        engine.leases.renew_leases()
        assert settled(lambda: heard.messages)


def test_a_forked_child_has_a_teller_of_its_own() -> None:
    told_ = make_notifier(RecordingSink())
    with processes(lambda: told_)() as engine:
        doubtful.run(1)
        assert told_._thread is not None
        engine._start_empty()
        assert told_._thread is None


def test_a_teller_that_cannot_start_any_more_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with oncemore.open("memory:", notify={"a": RecordingSink()}) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            assert engine.notifier is not None
            engine.notifier.wake_thread(engine)
        engine.notifier.close()


def test_notices_that_cannot_be_read_are_left_out_of_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncemore.control import notifications as module

    with oncemore.open("memory:", notify={"a": RecordingSink()}) as engine:
        assert module.load_notification_status(engine, ["nothing"]) == ()
        monkeypatch.setattr(
            engine.store, "load_head", lambda entity: (_ for _ in ()).throw(oncemore.StoreError("x"))
        )
        assert module.load_notification_status(engine, ["nothing"]) == ()


# As it is written in settings ------------------------------------------------------------------------


def test_sinks_are_read_from_the_file_of_settings(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "oncemore.toml").write_text(
        'store = "log.db"\nnotify_every_s = 60\nnotify = ["file:told.jsonl", '
        '{ command = ["cat"], timeout = 5, name = "cat" }, { file = "other.jsonl", name = "other" }]\n'
    )
    os.chdir(tmp_path / "sub")
    with pytest.MonkeyPatch.context():
        doubtful.run(1)
        from oncemore.open_engine import find_engine

        engine = find_engine()
        assert engine.notifier is not None
        assert engine.notifier.every_s == 60
        assert set(engine.notifier.sinks) > {"cat", "other"}
        engine.close()
    (line,) = (tmp_path / "told.jsonl").read_text().splitlines()
    assert json.loads(line)["payload"]["step"] == "doubtful"
    assert (tmp_path / "other.jsonl").exists()


def test_a_file_may_name_one_address(tmp_path: Path) -> None:
    (tmp_path / "oncemore.toml").write_text('notify = "https://example.org/hook"\n')
    assert json.loads(load_settings().notify) == ["https://example.org/hook"]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("https://example.org/hook", 1),
        ('[{"command": ["cat"], "name": "cat"}, "http://localhost/x"]', 2),
        ("", 0),
    ],
)
def test_sinks_are_read_from_the_environment(value: str, names: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from oncemore.open_engine import find_engine

    monkeypatch.setenv("ONCEMORE_NOTIFY", value)
    monkeypatch.setenv("ONCEMORE_STORE", "memory:")
    engine = find_engine()
    assert (0 if engine.notifier is None else len(engine.notifier.sinks)) == names


def test_a_list_that_is_no_json_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncemore.open_engine import find_engine

    monkeypatch.setenv("ONCEMORE_NOTIFY", "[nothing")
    with pytest.raises(UsageError, match="ONCEMORE_NOTIFY is not a list in JSON"):
        find_engine()


@pytest.mark.parametrize(
    ("told_", "match"),
    [
        (7, "takes a list of sinks"),
        (["mailto:operator"], r"notify\[0\] is 'mailto:operator'"),
        ([7], r"notify\[0\] is 7"),
        ([{}], "needs one of webhook, file, command"),
        ([{"file": "a", "command": ["b"]}], "needs one of"),
        ([{"file": "a", "timeout": 5}], "has timeout; besides file it takes name"),
        ([{"file": 7}], r"notify\[0\]: file takes a text"),
        ([{"webhook": "ftp://x"}], r"notify\[0\]: url takes"),
        ([{"webhook": "http://x", "headers": "x"}], r"notify\[0\]"),
        ([{"command": "mail operator"}], r"notify\[0\]: argv is a str; it takes a list of strings"),
        ([{"file": "a", "name": "no spaces"}], "has the name 'no spaces'"),
        (["file:a", {"file": "a"}], "two sinks of the name"),
        (["file:a"] * 21, "21 sinks; the limit is 20"),
    ],
)
def test_what_is_no_sink_is_refused_with_its_place(told_: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        parse_sinks(told_)


def test_names_follow_from_where_a_sink_leads_and_hide_it() -> None:
    secret = "https://hooks.example.org/T0/geheim"
    (name,) = parse_sinks([secret])
    assert parse_sinks(["file:a", secret]).keys() > {name}
    assert "geheim" not in name
    ours = parse_sinks(
        [WebhookSink(secret), JsonLinesSink("a"), CommandSink(["mail"]), print, RecordingSink()]
    )
    assert [name.partition("-")[0] for name in ours] == [
        "webhook",
        "jsonlines",
        "command",
        "print",
        "RecordingSink",
    ]


def test_sinks_that_make_no_sense_are_refused_when_an_engine_is_made() -> None:
    async def sink(message: EventMessage) -> None: ...

    with pytest.raises(UsageError, match="notify takes plain functions"):
        oncemore.open("memory:", notify=[sink])
    with pytest.raises(UsageError, match="1 to 100 characters"):
        notices_of = make_notifier(print)
        type(notices_of)({"x" * 101: print}, classify=notices_of._classify, describe=notices_of._describe)
    for every_s in (-1, 86_401, True, "5"):
        with pytest.raises(UsageError, match="notify_every_s is"):
            oncemore.open("memory:", notify=[print], notify_every_s=every_s)  # type: ignore[arg-type]
