"""The bus under its categories, on a real server behind a proxy that cuts connections."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import nats as client
import pytest

import oncemore
from oncemore.audit import Idempotency
from oncemore.control.model import Approval
from oncemore.control.nats_switches import NatsSwitches, bucket_key
from oncemore.errors import KeyConflict, MissingExtra, NotPermitted, StaleDecision, UsageError
from oncemore.profiles.exoarmur import (
    IdempotencyManager,
    RetryCategory,
    RetryError,
    RetryManager,
    bus_control,
)
from oncemore.profiles.exoarmur.bus import Bus, Subscription
from oncemore.testing import instant_waits
from oncemore.testing.fault_proxy import wire
from tests.servers import nats

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from oncemore.testing.fault_proxy import FaultProxy

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with nats.running(jetstream=True) as (url, _):
            yield url
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def cable(url: str) -> Iterator[FaultProxy]:
    with wire(("127.0.0.1", int(url.rpartition(":")[2]))) as made, instant_waits():
        yield made


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as made:
        yield made


@pytest.fixture
def manager(engine: oncemore.Engine) -> RetryManager:
    return RetryManager(IdempotencyManager(engine))


def on(bus: Callable[[], Bus], work: Callable[[Bus], Awaitable[Any]]) -> Any:
    """Do work on a bus in an event loop of its own."""

    async def do() -> Any:
        async with bus() as made:
            return await work(made)

    return asyncio.run(do())


def attempts(manager: RetryManager) -> dict[str, tuple[int, float | None]]:
    """Return how many attempts the operations of each category took, and how many succeeded."""
    found = manager.audit.per_category()
    return {code: (one.total_attempts, one.success_rate) for code, one in found.items()}


async def raw(url: str, stream: str) -> list[Any]:
    """Return all messages of a stream, read with the client alone."""
    line = await client.connect(url)
    streams = line.jetstream()
    last = (await streams.stream_info(stream)).state.last_seq
    found = []
    for seq in range(1, last + 1):
        try:
            found.append(await streams.get_msg(stream, seq))
        except client.js.errors.NotFoundError:
            continue
    await line.close()
    return found


@pytest.mark.req("MSG-6")
def test_a_publish_repeated_after_a_lost_acknowledgement_is_stored_once_under_its_categories(
    url: str, cable: FaultProxy, manager: RetryManager
) -> None:
    async def work(bus: Bus) -> dict[str, Any]:
        cable.cut("out", b'"name":"BELIEFS"')  # the stream is made, and nobody hears of it
        assert await bus.create_stream("BELIEFS", ["beliefs.>"]) == {"stream": "BELIEFS", "replicas": 1}
        cable.cut("out", b'"stream":"BELIEFS"')  # the message is stored, and nobody hears of it
        told = await bus.publish("beliefs.v1", {"host": "h-1"}, idempotency_key="b-1", correlation_id="c-1")
        again = await bus.publish("beliefs.v1", {"host": "h-1"}, idempotency_key="b-1", correlation_id="c-1")
        assert again == told
        await bus.publish("beliefs.v1", {"host": "h-2"})
        await bus.publish("beliefs.v1", {"host": "h-2"})
        cable.cut("in", b"CONSUMER.DURABLE.CREATE")
        letters = await bus.subscribe("BELIEFS", "executor", "beliefs.v1")
        got = await letters.fetch(10, 5.0)
        for letter in got:
            await letter.ack_sync()
        assert await letters.fetch(1, 0.1) == []
        assert [json.loads(letter.data)["host"] for letter in got] == ["h-1", "h-2", "h-2"]
        return told

    told = on(lambda: Bus(manager, cable.url, tenant_id="t"), work)
    assert told == {"stream": "BELIEFS", "seq": 1, "duplicate": True}
    assert cable.cuts == 3
    stored = asyncio.run(raw(url, "BELIEFS"))
    assert len(stored) == 3, "the repeat was dropped; calls without a key are operations of their own"
    assert stored[0].headers["Correlation-Id"] == "c-1"
    assert "b-1" not in str(stored[0].headers), "the key never leaves"
    assert attempts(manager) == {
        "RETRY_NATS_CONNECT": (1, 1.0),
        "RETRY_NATS_PUBLISH": (4, 1.0),
        "RETRY_NATS_STREAM_CREATE": (2, 1.0),
        "RETRY_NATS_SUBSCRIBE": (2, 1.0),
    }


def test_a_bucket_is_written_once_despite_lost_replies(
    url: str, cable: FaultProxy, manager: RetryManager
) -> None:
    async def work(bus: Bus) -> None:
        cable.cut("out", b'"name":"KV_box"')
        assert await bus.create_bucket("box") == {"bucket": "box"}
        assert await bus.get("box", "a") is None
        cable.cut("out", b'"stream":"KV_box"')
        assert (await bus.put("box", "a", b"1"))["duplicate"]
        cable.cut("in", b"MSG.GET")
        assert await bus.get("box", "a") == b"1"
        await bus.put("box", "a", b"")
        assert await bus.get("box", "a") == b""
        cable.cut("out", b'"stream":"KV_box"')
        assert (await bus.delete("box", "a"))["duplicate"]
        assert await bus.get("box", "a") is None
        with pytest.raises(RetryError) as gone:
            await bus.get("nowhere", "a")
        assert gone.value.category == RetryCategory.KV_GET

    on(lambda: Bus(manager, cable.url), work)
    assert [one.seq for one in asyncio.run(raw(url, "KV_box"))] == [3], "put, put, delete: each once"
    found = attempts(manager)
    assert found["RETRY_KV_CREATE"] == (2, 1.0)
    assert found["RETRY_KV_PUT"] == (3, 1.0)
    assert found["RETRY_KV_DELETE"] == (2, 1.0)
    assert found["RETRY_KV_GET"] == (8, 0.8), (
        "once more after a cut, three times for the bucket that is not there"
    )


async def execute(manager: RetryManager, name: str, done: list[str], **more: Any) -> str:
    async def work() -> str:
        done.append(name)
        return f"executed {name}"

    key = manager.idempotency_manager.compute_idempotency_key("execute", additional_params={"intent": name})
    return await manager.execute_with_retry(
        RetryCategory.EXECUTION_INTENT, f"Execute intent {name}", work, idempotency_key=key, **more
    )


@pytest.mark.req("AUTO-7", "AUTO-8", "AUTO-9")
def test_a_switch_and_an_approval_on_the_bus_decide_what_is_executed(
    url: str, cable: FaultProxy, tmp_path: Path
) -> None:
    """Section 5.5, steps 4 and 5: intents run once, and not at all if operators refuse or cannot be asked."""
    done: list[str] = []
    with oncemore.open(tmp_path / "log.db", control=NatsSwitches(cable.url, "control", 20.0)) as engine:
        manager = RetryManager(IdempotencyManager(engine))

        async def work(bus: Bus) -> None:
            await bus.create_bucket("control")
            assert await bus.is_switch_on() is False
            assert await execute(manager, "i-1", done) == "executed i-1"
            for _ in range(2):
                await bus.set_switch("on", reason="the ledger is wrong", by="operator", correlation_id="r-1")
            assert await bus.is_switch_on() is True
            with pytest.raises(
                NotPermitted, match="all_execution was thrown by operator: the ledger is wrong"
            ):
                await execute(manager, "i-2", done)
            await bus.set_switch("off", reason="it is right again", by="operator", correlation_id="r-2")
            await bus.set_switch("on", "step:Execute intent i-2", reason="not this one", by="operator")
            with pytest.raises(NotPermitted, match="not this one"):
                await execute(manager, "i-2", done)
            await bus.set_switch("off", "step:Execute intent i-2", reason="this one too", by="operator")
            assert await execute(manager, "i-2", done) == "executed i-2"
            await approvals(bus)

        async def approvals(bus: Bus) -> None:
            with pytest.raises(NotPermitted, match="it is not approved yet") as held:
                await execute(manager, "i-3", done, requires_approval=True)
            assert held.value.reason == "approval_needed"
            (waiting,) = engine.approvals.list_waiting()
            assert await bus.get_approval(waiting.key) is None
            draft = engine.approvals.build_approval(waiting.key, reason="seen", by="reviewer", expires=600)
            assert (draft.run_entity, draft.last_attempt) == (f"run/{waiting.key}", 2)
            assert draft.policy == manager._find_category("EXECUTION_INTENT").rules.digest
            await bus.grant_approval(draft._replace(input_hash="of something else"))
            with pytest.raises(NotPermitted, match="another arguments"):
                await execute(manager, "i-3", done, requires_approval=True)
            await bus.grant_approval(draft._replace(expires_at=engine.now() - 1))
            with pytest.raises(NotPermitted, match="has expired"):
                await execute(manager, "i-3", done, requires_approval=True)
            cable.cut("out", b'"stream":"KV_control"')
            await bus.grant_approval(draft, idempotency_key="g-1", correlation_id="c-3")
            assert await bus.get_approval(waiting.key) == draft
            for _ in range(2):
                assert await execute(manager, "i-3", done, requires_approval=True) == "executed i-3"
            await bus.delete("control", bucket_key("approval", waiting.key))
            assert await bus.get_approval(waiting.key) is None
            with pytest.raises(StaleDecision):
                engine.approvals.build_approval(waiting.key, reason="again")
            cable.dark = True
            with pytest.raises(RetryError) as unknown:
                await bus.is_switch_on()
            assert (unknown.value.category, unknown.value.attempts) == ("RETRY_KV_GET", 3)
            with pytest.raises(NotPermitted) as refused:
                await execute(manager, "i-9", done)
            assert refused.value.reason == "control_state_unknown"
            cable.dark = False

        on(lambda: Bus(manager, cable.url), work)
    assert done == ["i-1", "i-2", "i-3"]
    found = attempts(manager)
    assert found["RETRY_APPROVAL_GRANT"][0] == 4
    assert found["RETRY_APPROVAL_CHECK"][0] == 3
    told = [one.action for one in manager.audit if isinstance(one, Idempotency) and "kill" in one.operation]
    assert told == ["record", "hit", "record", "record", "record"], "the same request is done once"


def test_a_repeated_on_under_one_correlation_id_leaves_the_switch_on(
    url: str, cable: FaultProxy, manager: RetryManager
) -> None:
    async def work(bus: Bus) -> None:
        async def turn(to: Any, reason: str = "drill") -> dict[str, Any]:
            return await bus.set_switch(to, reason=reason, by="operator", correlation_id="incident-1")

        await bus.create_bucket("drill")
        assert (await turn("on"))["on"] is True
        assert (await turn("on"))["seq"] == 1, "a repeat of a request that holds writes nothing"
        assert (await turn("off"))["on"] is False
        again = await turn("on")
        assert again == {"stream": "KV_drill", "seq": 3, "duplicate": False, "on": True}
        assert await bus.is_switch_on() is True
        assert (await turn("on")) == again, "the repeat of the repeat writes nothing either"
        with pytest.raises(StaleDecision, match="all_execution was turned on by operator: drill; give"):
            await turn("off")
        assert await bus.is_switch_on() is True, "an old release never releases a later stop"
        await bus.set_switch("off", reason="over", by="operator", correlation_id="incident-2")
        assert (await turn("off"))["seq"] == 4, "an old release of what is off says that it is off"
        cable.cut("out", b'"stream":"KV_drill"')
        assert (await turn("on")) == {"stream": "KV_drill", "seq": 5, "duplicate": True, "on": True}
        assert await bus.is_switch_on() is True

    on(lambda: Bus(manager, cable.url, tenant_id="t", control="drill"), work)
    assert [json.loads(one.data)["on"] for one in asyncio.run(raw(url, "KV_drill"))] == [True]


def publish_after_each_cut(url: str, bus: Bus, subject: str, value: bytes) -> None:
    """Let another client publish whenever an acknowledgement is lost, before the bus repeats its write."""
    ask = bus.ask

    async def ask_and_publish(question: Any) -> Any:
        try:
            return await ask(question)
        except ConnectionResetError:
            line = await client.connect(url)
            await line.jetstream().publish(subject, value)
            await line.close()
            raise

    bus.ask = ask_and_publish  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("to", "value", "then"),
    [
        ("on", b"off", "on"),
        ("on", b"neither", "on"),
        ("off", b"off", "off"),
        ("off", b'{"on": true}', "was turned on by another client: no reason given; give another"),
        ("off", b"neither", "set since to b'neither', which is neither"),
    ],
)
def test_a_repeat_reports_the_switch_as_another_client_set_it(
    url: str, cable: FaultProxy, manager: RetryManager, to: Any, value: bytes, then: str
) -> None:
    async def work(bus: Bus) -> None:
        await bus.create_bucket("race")
        publish_after_each_cut(url, bus, "$KV.race.all_execution", value)
        cable.cut("out", b'"stream":"KV_race"')
        if then not in ("on", "off"):
            with pytest.raises(StaleDecision, match=then):
                await bus.set_switch(to, reason="race", by="operator")
            return
        assert (await bus.set_switch(to, reason="race", by="operator"))["on"] is (then == "on")
        assert await bus.is_switch_on() is (then == "on")

    on(lambda: Bus(manager, cable.url, control="race"), work)
    assert cable.cuts == 1


def test_a_switch_released_after_every_write_is_not_reported_as_on(
    url: str, cable: FaultProxy, manager: RetryManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(bus: Bus) -> None:
        await bus.create_bucket("strife")
        publish_after_each_cut(url, bus, "$KV.strife.all_execution", b"off")
        read = bus._load_switch

        async def cut_after_reading(name: str, ids: Any) -> Any:
            cable.cut("out", b'"stream":"KV_strife"')
            return await read(name, ids)

        monkeypatch.setattr(bus, "_load_switch", cut_after_reading)
        cable.cut("out", b'"stream":"KV_strife"')
        with pytest.raises(StaleDecision, match="turned the switch all_execution off 3 times"):
            await bus.set_switch("on", reason="stop", by="operator")
        assert await bus.is_switch_on() is False

    monkeypatch.setattr(bus_control, "MAX_SWITCH_WRITES", 3)
    on(lambda: Bus(manager, cable.url, control="strife"), work)
    assert cable.cuts == 3


def test_a_key_that_was_used_for_another_request_is_refused(
    url: str, cable: FaultProxy, manager: RetryManager
) -> None:
    """A write that did not happen is never reported as done."""

    async def work(bus: Bus) -> None:
        await bus.create_bucket("values")
        stored = await bus.put("values", "a", b"1", idempotency_key="p-1")
        assert await bus.put("values", "a", b"1", idempotency_key="p-1") == stored
        assert set(stored) == {"stream", "seq", "duplicate"}
        for other in (
            bus.put("values", "a", b"2", idempotency_key="p-1"),
            bus.put("values", "b", b"1", idempotency_key="p-1"),
            bus.delete("values", "a", idempotency_key="p-1"),
            bus.publish("values.v1", {"n": 1}, idempotency_key="p-1"),
        ):
            with pytest.raises(KeyConflict, match="the idempotency_key 'p-1' was used for another request"):
                await other
        assert await bus.get("values", "a") == b"1"
        await bus.create_stream("LARGE", ["large.>"])
        large = {"n": 2**60, "text": "\ud800"}  # which canonical JSON does not have, and JSON does
        for key in (None, "large-1", "large-1"):
            assert (await bus.publish("large.v1", large, idempotency_key=key))["stream"] == "LARGE"
        assert [json.loads(one.data) for one in await raw(url, "LARGE")] == [large] * 2

    on(lambda: Bus(manager, cable.url), work)


def test_every_call_takes_a_correlation_and_a_trace_id_and_inherits_them(
    url: str, cable: FaultProxy, manager: RetryManager
) -> None:
    approval = Approval("GRANTED", "run/k", "step", "idempotent")

    async def call_all(bus: Bus, stream: str, **ids: str) -> None:
        await bus.connect(**ids)
        await bus.create_stream(stream, [f"{stream}.>"], **ids)
        await bus.publish(f"{stream}.v1", {"n": 1}, **ids)
        await bus.subscribe(stream, "executor", **ids)
        await bus.create_bucket("ids", **ids)
        await bus.put("ids", "a", b"1", **ids)
        await bus.get("ids", "a", **ids)
        await bus.delete("ids", "a", **ids)
        await bus.set_switch("on", reason="drill", by="operator", **ids)
        await bus.set_switch("on", reason="drill", by="operator", **ids)
        await bus.is_switch_on(**ids)
        await bus.grant_approval(approval, **ids)
        await bus.get_approval("k", **ids)

    def find_ids() -> set[tuple[str, str | None, str | None]]:
        return {(event.retry_category, event.correlation_id, event.trace_id) for event in manager.audit}

    categories = {
        "RETRY_NATS_CONNECT", "RETRY_NATS_STREAM_CREATE", "RETRY_NATS_PUBLISH", "RETRY_NATS_SUBSCRIBE",
        "RETRY_KV_CREATE", "RETRY_KV_PUT", "RETRY_KV_GET", "RETRY_KV_DELETE", "RETRY_APPROVAL_GRANT",
        "RETRY_APPROVAL_CHECK",
    }  # fmt: skip

    async def work(bus: Bus) -> None:
        seen = find_ids()
        await call_all(bus, "GIVEN", correlation_id="c-1", trace_id="t-1")
        assert find_ids() - seen == {(category, "c-1", "t-1") for category in categories}
        seen = find_ids()
        with oncemore.context(correlation_id="c-2", trace_id="t-2"):
            await call_all(bus, "INHERITED")
        assert find_ids() - seen == {(category, "c-2", "t-2") for category in categories}

    on(lambda: Bus(manager, cable.url, control="ids"), work)
    (message,) = asyncio.run(raw(url, "INHERITED"))
    assert message.headers["Correlation-Id"] == "c-2"


def test_an_approval_is_kept_with_a_key_in_a_log(manager: RetryManager) -> None:
    alone = RetryManager(IdempotencyManager(lambda: None))  # type: ignore[arg-type,return-value]
    done: list[str] = []
    with pytest.raises(UsageError, match="which is kept in a log: give IdempotencyManager a store"):
        asyncio.run(execute(alone, "i-1", done, requires_approval=True))
    with pytest.raises(UsageError, match="requires_approval is 'perhaps'; it takes True or False"):
        asyncio.run(execute(manager, "i-1", done, requires_approval="perhaps"))
    with pytest.raises(UsageError, match="which belongs to a key: give it an idempotency_key"):
        asyncio.run(
            manager.execute_with_retry("KV_GET", "Look", lambda: None, requires_approval=True)  # type: ignore[arg-type,return-value]
        )
    assert [event.to_dict()["reason"] for event in manager.audit] == ["key_refused"]
    assert done == []


def test_a_consumer_without_a_leader_returns_no_messages() -> None:
    class Pull:
        def __init__(self, *answers: Any) -> None:
            self.answers = list(answers)

        async def fetch(self, most: int, timeout: float) -> list[str]:  # noqa: ASYNC109 - as nats-py has it
            answer = self.answers.pop(0) if self.answers else client.js.errors.ServiceUnavailableError()
            if isinstance(answer, Exception):
                raise answer
            return [answer]

    gone = client.js.errors.ServiceUnavailableError()
    assert asyncio.run(Subscription(Pull(gone, "a letter")).fetch(1, 5.0)) == ["a letter"]
    assert asyncio.run(Subscription(Pull(gone)).fetch(1, 0.15)) == []


def test_a_bus_names_missing_extras_and_shows_no_password(
    manager: RetryManager, cable: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(bus: Bus) -> None:
        with pytest.raises(UsageError, match="it must be on or off"):
            await bus.set_switch("up", reason="x", by="y")  # type: ignore[arg-type]
        await bus.close()
        await bus.close()
        await bus.connect()
        await asyncio.gather(*(bus.connect() for _ in range(3)))

    on(lambda: Bus(manager, cable.url), work)
    assert repr(Bus(manager, "nats://agent:secret@a:1,b")) == "<oncemore.Bus nats://a:1,b:4222>"
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(MissingExtra, match=r"oncemore\[nats\]"):
        Bus(manager, "nats://a")
