"""SQS against moto: the requests have the right form, and the log recognises repeats (DEP-6)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.inbox import Inbox, InboxStats, sqs
from oncemore.messaging.sources.sqs import SqsSource as Source
from oncemore.outbox import OutboxRelay, SqsSink
from tests.messaging.inbox.fake_queue import POLICY, Shop

if TYPE_CHECKING:
    from collections.abc import Iterator

FIFO = {"FifoQueue": "true", "VisibilityTimeout": "30"}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield boto3.client("sqs", region_name="eu-central-1")


@pytest.fixture
def queue(client: Any) -> str:
    return str(client.create_queue(QueueName="orders.fifo", Attributes=FIFO)["QueueUrl"])


@pytest.fixture
def store() -> Iterator[oncemore.Engine]:
    with oncemore.open("memory:") as engine:
        yield engine


def send(client: Any, queue: str, order: Any, ident: str, group: str = "g") -> None:
    client.send_message(
        QueueUrl=queue,
        MessageBody=order
        if isinstance(order, str) and order.startswith("!")
        else json.dumps({"order": order}),
        MessageGroupId=group,
        MessageDeduplicationId=ident,
        MessageAttributes={"Correlation-Id": {"DataType": "String", "StringValue": f"c-{ident}"}},
    )


def depth(client: Any, queue: str) -> tuple[int, int]:
    """Return the numbers of visible and hidden messages."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    told = client.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return int(told[names[0]]), int(told[names[1]])


@pytest.mark.req("MSG-4", "MSG-8")
def test_messages_are_processed_once_and_deleted_and_unreadable_ones_are_stored(
    store: oncemore.Engine, client: Any, queue: str
) -> None:
    shop = Shop()
    for turn in range(2):  # moto forgets an id with its message, as SQS does after five minutes
        send(client, queue, "A-1", "one")
        send(client, queue, "! no json", "two")
        inbox = sqs(shop.step, queue, client=client, poll=0)
        inbox.drain()
        assert inbox.stats == (InboxStats(done=1, dead=1) if turn == 0 else InboxStats(duplicate=1, dead=1))
        assert depth(client, queue) == (0, 0)
    assert (shop.booked, shop.correlations) == ([("A-1", 1)], ["c-one"])
    assert len(inbox.dead_letters()) == 1


def test_a_deferred_message_is_hidden_until_due_and_its_group_waits(
    store: oncemore.Engine, client: Any, queue: str
) -> None:
    shop, hidden = Shop(policy=POLICY), []
    shop.says = [ConnectionRefusedError()]
    real = client.change_message_visibility

    def noted(**told: Any) -> Any:
        hidden.append(told["VisibilityTimeout"])
        return real(**told)

    client.change_message_visibility = noted
    send(client, queue, "A-1", "one")
    send(client, queue, "A-2", "two")
    inbox = sqs(shop.step, queue, client=client, poll=0)
    inbox.drain()
    assert shop.booked == []
    assert inbox.stats.deferred >= 1
    assert set(hidden) == {90}
    assert depth(client, queue)[1] >= 1


def test_a_message_in_progress_stays_hidden(store: oncemore.Engine, client: Any, queue: str) -> None:
    beats: list[int] = []
    real = client.change_message_visibility

    def noted(**told: Any) -> Any:
        beats.append(told["VisibilityTimeout"])
        return real(**told)

    client.change_message_visibility = noted
    source = Source(queue, client=client, visibility_s=30, poll_s=0)
    source.heartbeat_s = 0.01

    @oncemore.step(effect="pure", name="slow")
    async def slow(order: str) -> None:
        import asyncio

        async with asyncio.timeout(20):
            while len(beats) < 2:  # noqa: ASYNC110 - nobody tells when
                await asyncio.sleep(0.005)

    send(client, queue, "A-1", "one")
    inbox = Inbox(source, slow)
    inbox.drain()
    assert (inbox.stats, set(beats), depth(client, queue)) == (InboxStats(done=1), {30}, (0, 0))


def test_a_standard_queue_uses_the_message_id(store: oncemore.Engine, client: Any) -> None:
    url = client.create_queue(QueueName="plain")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody='{"order": "A-1"}')
    shop = Shop()
    inbox = sqs(shop.step, url, client=client, poll=0)
    inbox.drain()
    assert (inbox.stats, shop.booked) == (InboxStats(done=1), [("A-1", 1)])


def test_bad_sqs_options_are_refused() -> None:
    shop = Shop()
    for wrong in ({"visibility": 0}, {"poll": 21}):
        with pytest.raises(oncemore.UsageError, match=next(iter(wrong))):
            sqs(shop.step, "https://sqs.eu-central-1.amazonaws.com/1/q", **wrong)
    with pytest.raises(oncemore.UsageError, match="queue_url"):
        sqs(shop.step, "orders")
    with pytest.raises(oncemore.UsageError, match="queue_url"):
        SqsSink("orders")


@oncemore.step(effect="outbox", name="gives")
def give(order: str) -> None:
    oncemore.current().emit("orders.new", {"order": order})
    oncemore.current().emit("orders.new", {"order": order + "!"})


@pytest.mark.req("MSG-5", "IDEM-15", "MSG-7")
def test_two_sends_of_one_work_are_one_delivery_and_the_id_is_not_the_key(
    store: oncemore.Engine, client: Any, queue: str
) -> None:
    with oncemore.context(correlation_id="c-1"):
        give("A-1")
    got: list[Any] = []
    OutboxRelay(store, {"*": got.append}).run_once()
    sink = SqsSink(queue, client=client)
    for message in (got[0], got[0]._replace(attempt=2), got[1]):
        sink(message)
    assert depth(client, queue) == (2, 0)
    found = client.receive_message(
        QueueUrl=queue, MaxNumberOfMessages=10, AttributeNames=["All"], MessageAttributeNames=["All"]
    )["Messages"]
    assert [json.loads(each["Body"])["payload"]["order"] for each in found] == ["A-1", "A-1!"]
    assert len({each["Attributes"]["MessageGroupId"] for each in found}) == 1
    assert [each["Attributes"]["MessageDeduplicationId"] for each in found] == [one.id for one in got]
    for each in found:
        assert give.key("A-1") not in json.dumps(each, default=str)
        assert each["MessageAttributes"]["Correlation-Id"]["StringValue"] == "c-1"
        assert each["MessageAttributes"]["Oncemore-Attempt"]["StringValue"] == "1"


def test_an_inbox_accepts_events_that_a_relay_sent(
    store: oncemore.Engine, client: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with oncemore.context(correlation_id="c-1"):
        give("A-1")
    assert OutboxRelay(store, {"orders.*": f"sqs:{queue}"}).run_once().delivered == 2
    shop = Shop()
    inbox = sqs(shop.step, queue, poll=0)
    inbox.drain()
    assert [order for order, _ in shop.booked] == ["A-1", "A-1!"]
    assert (inbox.stats, set(shop.correlations)) == (InboxStats(done=2), {"c-1"})
