"""Events behind the gate: what was committed before a block is not sent before the release."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import Error
from oncemore.events import DeliveryHeld
from oncemore.governance.dataset_model import dataset_entity
from oncemore.log.entry_codec import load_head
from oncemore.log.record import EventRecord
from oncemore.log.store import HeadQuery
from oncemore.messaging.delivery import DeliveryStats
from oncemore.outbox import OutboxRelay
from oncemore.workers.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oncemore.steps.engine import Engine

DATASET = "survey"


def announce(item: int) -> int:
    oncemore.current().emit("news", {"item": item})
    oncemore.current().emit("news", {"item": item, "part": 2})
    return item


def make_step(dataset: str = DATASET, operation: str = "publish") -> Any:
    return oncemore.step(
        effect="outbox", name=f"announce.{dataset or 'nothing'}", dataset=dataset, operation=operation
    )(announce)


@pytest.fixture
def registered(engine: Engine) -> Engine:
    engine.datasets.register(DATASET, care_label="Public", operations=["publish"], reason="first", by="x")
    return engine


def relay_of(engine: Engine, sent: list[Any]) -> OutboxRelay:
    return OutboxRelay(engine, {"news": sent.append})


CLOSINGS: dict[str, Callable[[Engine], object]] = {
    "blocked": lambda engine: engine.datasets.block(DATASET, reason="objection", by="x"),
    "withdrawn": lambda engine: engine.datasets.withdraw(DATASET, reason="objection", by="x"),
    "restricted": lambda engine: engine.datasets.restrict(DATASET, reason="objection", by="x"),
    "relabelled": lambda engine: engine.datasets.label(
        DATASET, care_label="Restricted · Council only", operations=[], reason="objection", by="x"
    ),
    "rights denied": lambda engine: engine.datasets.label(
        DATASET, rights="denied", reason="the licence ended", by="x"
    ),
    "operation not permitted": lambda engine: engine.datasets.label(
        DATASET, operations=["count"], reason="no publication", by="x"
    ),
}


@pytest.mark.parametrize("closing", CLOSINGS)
def test_an_event_committed_before_the_block_is_held_until_the_release(
    registered: Engine, closing: str
) -> None:
    make_step()(1)
    make_step("")(2)
    sent: list[Any] = []
    CLOSINGS[closing](registered)
    relay = relay_of(registered, sent)
    relay.run_once()
    # The event of the other step is sent: only the lane of the dataset waits.
    assert {message.payload["item"] for message in sent} == {2}
    assert relay.run_once() == DeliveryStats(held=1, waiting=1)
    events = [event for event in list_events(registered) if event.dataset]
    assert {event.state for event in events} == {"PENDING"}
    assert sum(bool(event.reason) for event in events) == 1, "the first of the lane says why"
    before = count_entries(registered)
    relay.run_once()
    assert count_entries(registered) == before, "a held event costs no entry per pass"
    registered.datasets.release(DATASET, reason="settled", by="x")
    registered.datasets.label(
        DATASET, care_label="Public", rights="granted", operations=["publish"], reason="settled", by="x"
    )
    relay.run_once()
    assert [message.payload["item"] for message in sent].count(1) == 2
    assert all(event.state == "DELIVERED" for event in list_events(registered))
    assert registered.verify().entries


def list_events(engine: Engine) -> list[EventRecord]:
    heads = engine.store.list_heads(HeadQuery("event", limit=100))
    return [load_head(engine.store, head.entity, engine.cipher, EventRecord).record for head in heads]


def count_entries(engine: Engine) -> int:
    return sum(1 for _ in engine.store.read_entries())


def test_the_hold_has_a_reason_an_event_and_names_the_dataset(tmp_path: Path, caplog: Any) -> None:
    seen: list[Any] = []
    with oncemore.on_event(seen.append), oncemore.open(tmp_path / "log.db") as engine:
        engine.datasets.register(DATASET, care_label="Public", reason="first", by="x")
        make_step(operation="")(1)
        engine.datasets.block(DATASET, reason="letter 17", by="council")
        relay_of(engine, []).run_once()
        reasons = {event.reason for event in list_events(engine)}
    (held,) = (event for event in seen if isinstance(event, DeliveryHeld))
    assert (held.dataset, held.topic) == (DATASET, "news")
    assert "is blocked" in held.text
    assert "is not sent: dataset survey is blocked" in caplog.text
    assert reasons == {"governance_blocked", ""}


def test_a_block_between_the_read_and_the_claim_is_noticed(
    registered: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version of the dataset is a guard of the claim: the store refuses it, and the gate is asked."""
    make_step()(1)
    sent: list[Any] = []
    relay = relay_of(registered, sent)
    store = registered.store
    read_entries, is_blocked = store.read_entries, []

    def block_then_read(*args: Any) -> Any:
        # The payload is read after the permission and before the claim.
        if not is_blocked:
            is_blocked.append(True)
            registered.datasets.block(DATASET, reason="objection", by="x")
        return read_entries(*args)

    monkeypatch.setattr(store, "read_entries", block_then_read)
    relay.run_once()
    assert is_blocked
    assert sent == []
    assert relay.run_once().held == 1


def test_a_dataset_that_changes_during_the_hold_is_asked_again(
    registered: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_step()(1)
    registered.datasets.block(DATASET, reason="objection", by="x")
    append, changed = registered.store.append, list[bool]()

    def change_then_append(batch: Any) -> Any:
        if not changed and batch.writes[0].entity.startswith("event/"):
            changed.append(True)
            registered.datasets.label(DATASET, licence="CC0", reason="letter", by="x")
        return append(batch)

    monkeypatch.setattr(registered.store, "append", change_then_append)
    assert relay_of(registered, []).run_once() == DeliveryStats(held=1, waiting=1)
    assert changed


def test_a_gate_that_cannot_be_read_means_no(registered: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    make_step()(1)
    sent: list[Any] = []
    registered.permissions.drop_cached()
    load = registered.store.load_head

    def fail(entity: str) -> Any:
        if entity == dataset_entity(DATASET):
            raise OSError("the disk is gone")
        return load(entity)

    monkeypatch.setattr(registered.store, "load_head", fail)
    with pytest.raises(Error, match="cannot be read"):
        relay_of(registered, sent).run_once()
    assert sent == []


def test_the_relay_of_a_worker_holds_and_sends(tmp_path: Path) -> None:
    """A worker runs the step and a relay thread; the block stops delivery, the release continues it."""
    held = threading.Event()

    def listen(event: object) -> None:
        if isinstance(event, DeliveryHeld):
            held.set()

    with oncemore.on_event(listen), oncemore.open(tmp_path / "log.db") as engine:
        engine.datasets.register(DATASET, care_label="Public", reason="first", by="x")
        check_worker_relay(engine, held)


def check_worker_relay(registered: Engine, held: threading.Event) -> None:
    step, sent, arrived = make_step(), list[Any](), threading.Event()

    def receive(message: Any) -> None:
        sent.append(message)
        if len(sent) == 2:
            arrived.set()

    step.submit(1)
    Worker(registered, [step], poll_s=0.05).run_until_idle()
    registered.datasets.block(DATASET, reason="objection", by="x")
    with OutboxRelay(registered, {"news": receive}, poll_s=0.05):
        assert held.wait(30)
        assert sent == []
        registered.datasets.release(DATASET, reason="settled", by="x")
        assert arrived.wait(30)
    assert [message.payload.get("part", 1) for message in sent] == [1, 2]
