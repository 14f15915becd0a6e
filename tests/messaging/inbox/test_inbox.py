"""The outcomes of a message with an in-memory queue: processed once, deferred, stored, recognised."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.inbox import Inbox, InboxStats, ReceivedMessage
from oncemore.outbox import OutboxRelay
from tests.messaging.inbox.fake_queue import Queue, Shop, drain, make_message

if TYPE_CHECKING:
    from oncemore.testing import FakeClock

COLOURS = ("step", "step_awaited")


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_message_calls_the_step_and_is_acknowledged_after_the_commit(
    engine: oncemore.Engine, colour: str
) -> None:
    shop, queue = (
        Shop(),
        Queue(make_message("m1", {"order": "A-1", "amount": 3}), make_message("m2", {"order": "A-2"})),
    )
    inbox = drain(queue, getattr(shop, colour))
    assert sorted(shop.booked) == [("A-1", 3), ("A-2", 1)]
    assert sorted(queue.told) == [("ack", "m1"), ("ack", "m2")]
    assert inbox.stats == InboxStats(done=2)
    assert (queue.closed, inbox.active_ids) == (1, ())
    assert [run.status for run in _runs(engine)] == ["COMPLETE"] * 2


@pytest.mark.req("MSG-4")
def test_a_message_redelivered_an_hour_later_is_processed_once(
    engine: oncemore.Engine, clock: FakeClock, colour: str
) -> None:
    shop, same = Shop(), make_message("m1", {"order": "A-1"})
    for _ in range(2):
        inbox = drain(Queue(same), getattr(shop, colour))
        clock.advance(3600.0)
    assert shop.booked == [("A-1", 1)]
    assert inbox.stats == InboxStats(duplicate=1)
    # And not because the content is the same: another id is another message.
    assert drain(Queue(make_message("m2", {"order": "A-1"})), getattr(shop, colour)).stats == InboxStats(
        done=1
    )


def test_ids_are_scoped_by_source_and_keys_from_the_content_are_not(
    engine: oncemore.Engine,
) -> None:
    shop = Shop()
    for source in ("one", "two"):
        drain(Queue(make_message("7", {"order": "A-1"}, source=source)), shop.step)
    assert len(shop.booked) == 2
    for ident in ("8", "9"):
        queue = Queue(make_message(ident, {"order": "B-1"}, source=ident))
        drain(queue, shop.step, key=lambda content: content["order"])
        assert queue.told == [("ack", ident)]
    assert len(shop.booked) == 3


def test_with_key_arguments_a_message_and_a_direct_call_are_the_same_work(engine: oncemore.Engine) -> None:
    shop = Shop(key="order")
    shop.step("A-1", 2)
    inbox = drain(Queue(make_message("m1", {"order": "A-1", "amount": 2})), shop.step, key="arguments")
    assert (shop.booked, inbox.stats) == ([("A-1", 2)], InboxStats(duplicate=1))


def test_another_content_under_one_id_is_a_dead_letter(engine: oncemore.Engine) -> None:
    shop = Shop()
    queue = Queue(make_message("m1", {"order": "A-1"}), make_message("m1", {"order": "A-2"}))
    inbox = drain(queue, shop.step, concurrency=1)
    assert queue.told == [("ack", "m1"), ("term", "m1", "conflict")]
    assert inbox.stats == InboxStats(done=1, dead=1)
    assert [each.reason for each in inbox.dead_letters()] == ["conflict"]


def test_a_transient_failure_defers_the_message_for_the_decided_delay(
    engine: oncemore.Engine, clock: FakeClock, colour: str
) -> None:
    shop, queue = Shop(), Queue(make_message("m1", {"order": "A-1"}))
    shop.says = [ConnectionRefusedError()]
    inbox = drain(queue, getattr(shop, colour))
    assert queue.told == [("nak", "m1", 90)]
    assert clock.delays == []
    queue.due()
    early = drain(queue, getattr(shop, colour))
    assert early.stats == InboxStats(deferred=1)
    assert queue.told[-1] == ("nak", "m1", 90)
    clock.advance(91.0)
    queue.due()
    last = drain(queue, getattr(shop, colour))
    assert (queue.told[-1], shop.booked) == (("ack", "m1"), [("A-1", 1)])
    assert (inbox.stats, last.stats) == (InboxStats(deferred=1), InboxStats(done=1))


@pytest.mark.req("MSG-8")
def test_a_bad_message_becomes_a_dead_letter_and_the_queue_continues(
    engine: oncemore.Engine, clock: FakeClock, colour: str
) -> None:
    bad = (
        make_message("m1", b"\xff no json"),
        make_message("m2", b"{not json"),
        make_message("m3", {"order": "A-3", "amount": "many"}),
        make_message("m4", {"odr": "A-4"}),
        make_message("m5", [1, 2]),
        make_message("m6", {"order": "A-6"}),
        make_message("m7", {"order": "A-7"}),
    )
    shop, queue = Shop(), Queue(*bad)
    shop.says = [oncemore.PermanentError("no such order")]
    inbox = drain(queue, getattr(shop, colour), concurrency=1)
    assert shop.booked == [("A-7", 1)]
    assert [told[:2] for told in queue.told] == [*(("term", f"m{n}") for n in range(1, 7)), ("ack", "m7")]
    assert inbox.stats == InboxStats(done=1, dead=6)
    messages = {each.error["message"]: each for each in inbox.dead_letters()}
    assert len(messages) == 6
    for part in ("not JSON", "Expected `int`", "'order'", "2 arguments", "no such order"):
        assert any(part in message for message in messages), (part, list(messages))
    items = engine.quarantine.list(kind="event")
    assert {item.step for item in items} == {"oncemore.inbox.shop.book"}
    assert {item.error["message"] for item in items} == set(messages)
    assert all(engine.quarantine.show(item).choices == ("release", "reject") for item in items)
    # Whoever comes again, because nobody heard the answer, is kept once.
    drain(Queue(*bad[:6]), getattr(shop, colour))
    assert len(engine.quarantine.list(kind="event")) == 6
    # Nobody else's relay sends them, not even one for everything.
    assert OutboxRelay(engine, {"*": print}).run_once().unrouted == 0


def test_a_released_dead_letter_runs_again(engine: oncemore.Engine, colour: str) -> None:
    shop = Shop()
    shop.says = [oncemore.PermanentError("no such order")]
    step = getattr(shop, colour)
    inbox = drain(
        Queue(make_message("m1", {"order": "A-1"}, correlation_id="c-1"), make_message("m2", b"\xff")), step
    )
    for item in engine.quarantine.list():
        engine.quarantine.release(item, by="operator", reason="the order exists now")
    assert inbox.dead_letters() == ()

    async def until_over() -> None:
        serving = asyncio.ensure_future(inbox.serve())
        async with asyncio.timeout(20):
            while not shop.booked or not inbox.dead_letters():  # noqa: ASYNC110 - nobody tells when
                await asyncio.sleep(0.005)
        inbox.stop()
        await serving

    asyncio.run(until_over())
    assert shop.booked == [("A-1", 1)]
    (left,) = inbox.dead_letters()
    assert "not JSON" in left.error["message"]
    (run,) = [run for run in _runs(engine) if run.status == "COMPLETE"]
    assert (run.state.run_number, run.correlation_id) == (2, "c-1")


def _runs(engine: oncemore.Engine) -> list[Any]:
    from oncemore.log.store import HeadQuery
    from oncemore.steps.run import Run

    return [Run(engine, head.entity) for head in engine.store.list_heads(HeadQuery("run", limit=100))]


def test_held_work_is_removed_from_the_queue_and_is_in_quarantine_once(
    engine: oncemore.Engine,
) -> None:
    shop = Shop(effect="once", not_applied=(), policy=None)
    shop.says = [TimeoutError("lost")]
    queue = Queue(make_message("m1", {"order": "A-1"}))
    inbox = drain(queue, shop.step)
    assert (queue.told, inbox.stats) == ([("term", "m1", "held")], InboxStats(held=1))
    (item,) = engine.quarantine.list()
    assert (item.kind, item.reason) == ("run", "outcome_unknown")


@pytest.mark.req("CORR-1", "CORR-2", "CORR-5")
def test_the_correlation_id_of_a_message_is_passed_on_and_not_part_of_the_key(
    engine: oncemore.Engine,
) -> None:
    @oncemore.step(effect="outbox", name="passes-on")
    def pass_on(order: str) -> None:
        oncemore.current().emit("orders", {"order": order})

    told = [
        make_message("m1", {"order": "A-1"}, correlation_id="c-1"),
        make_message("m2", {"order": "A-2"}, x_correlation_id="c-2"),
        make_message("m3", {"order": "A-3"}),
        make_message("m1", {"order": "A-1"}, correlation_id="c-9"),
        make_message("m4", {"order": "A-4"}, correlation_id="c" * 201),
    ]
    inbox = drain(Queue(*told), pass_on, concurrency=1)
    assert inbox.stats == InboxStats(done=4, duplicate=1)
    got: list[Any] = []
    OutboxRelay(engine, {"*": got.append}).run_once()
    ids = {message.payload["order"]: message.correlation_id for message in got}
    assert (ids["A-1"], ids["A-2"]) == ("c-1", "c-2")
    assert len(ids["A-3"]) == len(ids["A-4"]) == 36
    for run in _runs(engine):
        assert run.correlation_id in ids.values()


# The queue and the loop -----------------------------------------------------------------------------


def test_a_lost_answer_is_repeated_at_the_next_delivery(engine: oncemore.Engine, colour: str) -> None:
    shop, queue = Shop(), Queue(make_message("m1", {"order": "A-1"}))
    queue.deaf = [ConnectionResetError()]
    inbox = drain(queue, getattr(shop, colour))
    assert inbox.stats == InboxStats(done=1, unanswered=1)
    queue.due()
    again = drain(queue, getattr(shop, colour))
    assert (again.stats, queue.told, len(shop.booked)) == (InboxStats(duplicate=1), [("ack", "m1")], 1)


def test_messages_of_one_lane_are_in_order_and_wait_for_a_deferred_one(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    shop = Shop()
    messages = [make_message(f"{lane}{n}", {"order": f"{lane}{n}"}) for lane in "ab" for n in range(1, 4)]
    queue = Queue(*messages)
    queue.lanes = True
    shop.says = [ConnectionRefusedError()]  # a1, which is first
    inbox = drain(queue, shop.step, concurrency=6)
    first = next(told[1] for told in queue.told if told[0] == "nak")
    stuck, free = ("a", "b") if first == "a1" else ("b", "a")
    assert [order for order, _ in shop.booked] == [f"{free}{n}" for n in range(1, 4)]
    assert [told for told in queue.told if told[0] == "nak"] == [
        ("nak", f"{stuck}{n}", 90) for n in range(1, 4)
    ]
    assert inbox.stats == InboxStats(done=3, deferred=3)
    clock.advance(91.0)
    queue.due()
    drain(queue, shop.step, concurrency=6)
    assert [order for order, _ in shop.booked[3:]] == [f"{stuck}{n}" for n in range(1, 4)]


def test_a_queue_that_holds_back_a_group_is_drained_to_its_end(engine: oncemore.Engine) -> None:
    class GroupQueue(Queue):
        """Delivers a message only after the answer to the one before, and looks before it waits."""

        async def receive(self, limit: int) -> list[ReceivedMessage]:
            answered = self.told.copy()
            if len(answered) == delivered[0] and self.waiting:
                delivered[0] += 1
                return await super().receive(1)
            # The message in progress ends while this call is under way.
            while len(self.told) == len(answered) < delivered[0]:  # noqa: ASYNC110 - the queue has no event
                await asyncio.sleep(0.001)
            return []

    delivered = [0]
    shop = Shop()
    drain(GroupQueue(*(make_message(f"m{n}", {"order": f"A-{n}"}) for n in range(4))), shop.step)
    assert shop.booked == [(f"A-{n}", 1) for n in range(4)]


def test_an_unreachable_queue_is_retried(engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemore.messaging.inbox_service.QUEUE_RETRY_S", 0.001)
    shop, queue = Shop(), Queue(make_message("m1", {"order": "A-1"}))
    queue.opens, queue.looks = [OSError("down")], [OSError("down")]
    assert drain(queue, shop.step).stats == InboxStats(done=1)
    queue.opens = [oncemore.UsageError("there is no such stream")]
    with pytest.raises(oncemore.UsageError, match="no such stream"):
        drain(queue, shop.step)


def test_heartbeats_are_sent_until_a_message_is_answered(engine: oncemore.Engine) -> None:
    queue = Queue(make_message("m1", {}))
    queue.skips = [OSError("one beat is lost")]

    @oncemore.step(effect="pure", name="slow")
    def slow() -> int:
        for _ in range(2000):
            if queue.beats >= 3:
                break
            threading.Event().wait(0.005)
        return queue.beats

    inbox = drain(queue, slow)
    assert (inbox.stats, queue.told) == (InboxStats(done=1), [("ack", "m1")])
    at_the_end = queue.beats
    assert at_the_end >= 3


def test_stop_finishes_messages_in_progress_and_returns_the_rest(
    engine: oncemore.Engine,
) -> None:
    started, go_on = threading.Event(), threading.Event()

    @oncemore.step(effect="pure", name="waits")
    def waits(n: int) -> int:
        started.set()
        assert go_on.wait(20)
        return n

    queue = Queue(make_message("m1", 1))
    inbox = Inbox(queue, waits, concurrency=1)
    thread = threading.Thread(target=inbox.run)
    thread.start()
    assert started.wait(20)
    assert inbox.active_ids == ("m1",)
    queue.waiting.append(make_message("m2", 2))
    inbox.stop()
    go_on.set()
    thread.join(20)
    assert not thread.is_alive()
    assert (inbox.stats, queue.told) == (InboxStats(done=1), [("ack", "m1")])
    assert [each.id for each in queue.waiting] == ["m2"]


def test_a_message_beyond_the_grace_time_is_cancelled_and_not_acknowledged(engine: oncemore.Engine) -> None:
    began = asyncio.Event()

    @oncemore.step(effect="idempotent", name="endless")
    async def endless() -> None:
        began.set()
        await asyncio.sleep(600)

    queue = Queue(make_message("m1", {}))
    inbox = Inbox(queue, endless, grace_s=0.01)

    async def main() -> None:
        serving = asyncio.ensure_future(inbox.serve())
        async with asyncio.timeout(20):
            await began.wait()
            inbox.stop()
            await serving

    asyncio.run(main())
    assert queue.told == []
    (run,) = _runs(engine)
    assert run.status == "SOFT_FAIL"


def test_a_message_received_during_a_stop_is_returned_at_once(engine: oncemore.Engine) -> None:
    shop = Shop()

    class Late(Queue):
        async def receive(self, limit: int) -> Any:
            got = await super().receive(limit)
            inbox.stop()
            return got

    queue = Late(make_message("m1", {"order": "A-1"}))
    inbox = Inbox(queue, shop.step)
    inbox.run()
    assert (queue.told, shop.booked) == ([("nak", "m1", 0)], [])


def test_a_store_error_defers_messages(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, queue = Shop(), Queue(make_message("m1", {"order": "A-1"}), make_message("m2", b"?"))
    with oncemore.open("memory:") as engine:
        head = engine.store.load_head

        def broken(entity: str) -> Any:
            if entity.startswith(("run/", "event/")):
                raise oncemore.StoreError("the disk is gone")
            return head(entity)

        monkeypatch.setattr(engine.store, "load_head", broken)
        inbox = drain(queue, shop.step)
        assert inbox.stats == InboxStats(store_error=2)
        assert sorted(queue.told) == [("nak", "m1", 5), ("nak", "m2", 5)]


def test_a_message_with_unexpected_errors_becomes_a_dead_letter_in_the_end(engine: oncemore.Engine) -> None:
    shop = Shop(tenant=lambda order, amount=1: {}[order])
    queue = Queue(make_message("m1", {"order": "A-1"}))
    assert drain(queue, shop.step).stats == InboxStats(dead=1)
    assert queue.told == [("term", "m1", "unreadable")]


def test_options_are_checked(engine: oncemore.Engine) -> None:
    shop = Shop()
    for wrong in ({"concurrency": 0}, {"key": 7}, {"arguments": "x"}):
        with pytest.raises(oncemore.UsageError, match=next(iter(wrong))):
            Inbox(Queue(), shop.step, **wrong)
    with pytest.raises(oncemore.UsageError, match="is not a step"):
        Inbox(Queue(), print)
    assert repr(Inbox(Queue(), shop.step)) == "<oncemore.Inbox memory for shop.book>"
