"""Switches and approvals in a NATS bucket, on a real server: read before every attempt."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import nats
import pytest

import oncemore
from oncemore import cli
from oncemore.control.model import Approval
from oncemore.control.nats_switches import NatsSwitches, make_external_switches
from oncemore.errors import NotPermitted, TransientError, UsageError
from oncemore.profiles.exoarmur import RetryCategory, RetryManager
from oncemore.steps import existing_run
from oncemore.testing.fault_proxy import wire
from tests.servers import nats as servers

if TYPE_CHECKING:
    from collections.abc import Iterator

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    calls.clear()


@oncemore.step(effect="idempotent", name="intent", tenant=lambda name, whose="": whose)
def intent(name: str, whose: str = "") -> str:
    calls.append(name)
    return f"executed {name}"


@oncemore.step(effect="once", name="contain", requires_approval=True)
async def contain(host: str) -> str:
    calls.append(host)
    return f"contained {host}"


class Bucket:
    """The bucket as people write it."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.pid = url, pid

    def put(self, **values: str) -> None:
        self.put_all({name.replace("__", "."): value for name, value in values.items()})

    def put_all(self, values: dict[str, str]) -> None:
        asyncio.run(self._put(values))

    async def _put(self, values: dict[str, str]) -> None:
        line = await nats.connect(self.url)
        bucket = await line.jetstream().create_key_value(bucket="control")
        for name, value in values.items():
            await (bucket.put(name, value.encode()) if value != "DELETED" else bucket.delete(name))
        await line.close()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    try:
        with servers.running(jetstream=True) as (url, pid):
            made = Bucket(url, pid)
            made.put(all_execution="off")
            yield made
    except servers.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.req("AUTO-7", "AUTO-8")
@pytest.mark.timeout(120)
def test_a_switch_in_a_bucket_is_written_once_seen_at_once_and_means_no_when_it_cannot_be_read(
    bucket: Bucket, tmp_path: Any
) -> None:
    """Section 5.5: the switch is written under KV_PUT, with a key that has its value."""
    with oncemore.open(tmp_path / "log.db", control=NatsSwitches(bucket.url, "control", 1.5)) as engine:
        manager = RetryManager()
        keys = manager.idempotency_manager
        puts: list[str] = []

        async def turn(value: str) -> None:
            async def put() -> str:
                puts.append(value)
                await bucket._put({"all_execution": value})
                return value

            key = keys.compute_idempotency_key(
                operation="kill_switch_update", correlation_id="c-1", tenant_id="tenant-123",
                additional_params={"value": value},
            )  # fmt: skip
            await manager.execute_with_retry(
                RetryCategory.KV_PUT,
                "Store kill switch state",
                put,
                idempotency_key=key,
                tenant_id="tenant-123",
            )

        assert intent("i-1") == "executed i-1"
        asyncio.run(turn("on"))
        asyncio.run(turn("on"))
        assert puts == ["on"], "the same request is a hit"
        with pytest.raises(NotPermitted, match="all_execution was thrown"):
            intent("i-2")
        asyncio.run(turn("off"))
        assert puts == ["on", "off"], "another value is another request, and the switch does not stop it"
        assert intent("i-2") == "executed i-2", "a changed switch is seen by the next read"
        asyncio.run(turn_again(manager, bucket))
        bucket.kill()
        with pytest.raises(NotPermitted) as refused:
            intent("i-9")
        assert refused.value.reason == "control_state_unknown"
        with pytest.raises(NotPermitted, match="control_state_unknown"):
            asyncio.run(executed(manager, "i-9"))
        assert next(reversed(list(manager.audit))).reason == "control_state_unknown"
        assert calls == ["i-1", "i-2", "i-3"]
        assert engine.permissions.external_id.endswith("/control")


async def executed(manager: RetryManager, name: str) -> Any:
    async def work() -> str:
        calls.append(name)
        return name

    key = manager.idempotency_manager.compute_idempotency_key(name)
    return await manager.execute_with_retry(RetryCategory.EXECUTION_INTENT, name, work, idempotency_key=key)


async def turn_again(manager: RetryManager, bucket: Bucket) -> None:
    """An operation of the document is an execution too: stopped, it is not called."""
    await bucket._put({"all_execution": "on"})
    with pytest.raises(NotPermitted, match="all_execution"):
        await executed(manager, "i-3")
    await bucket._put({"all_execution": "off"})
    assert await executed(manager, "i-3") == "i-3"


@pytest.mark.timeout(120)
def test_switches_of_steps_and_tenants_and_what_makes_no_sense(bucket: Bucket, tmp_path: Any) -> None:
    with oncemore.open(tmp_path / "log.db", control=f"{bucket.url}/control") as engine:
        bucket.put(step__intent='{"on": true, "by": "operator", "reason": "look"}')
        with pytest.raises(NotPermitted, match="step:intent was thrown by operator: look"):
            intent("a")
        bucket.put(step__intent="DELETED", tenant__shop="1")
        with pytest.raises(NotPermitted, match="tenant:shop"):
            intent("a", "shop")
        assert intent("a") == "executed a"
        for odd in ("perhaps", "[]", '{"on": "yes"}', ""):
            bucket.put(all_execution=odd)
            with pytest.raises(NotPermitted) as refused:
                intent("b")
            assert refused.value.reason == "control_state_unknown"
        bucket.put(all_execution="off")
        engine.switches.on(reason="here")
        with pytest.raises(NotPermitted, match="here"):
            intent("b")
        assert intent.submit("handed in").status == "PENDING"
        engine.switches.off(reason="x")
        bucket.put_all({"tenant.a=20tenant=C3=BC=2E": "on", "tenant.=2Edots=2E.and=2E.more": "on"})
        for odd in ("a tenantü.", ".dots..and..more"):
            with pytest.raises(NotPermitted, match="tenant:"):
                intent("b", odd)
        from oncemore.workers.worker import Worker

        bucket.put(all_execution="on")
        assert Worker(engine, [intent], poll_s=0.05).run_until_idle().done == 0
        bucket.put(all_execution="off")
        assert Worker(engine, [intent], poll_s=0.05).run_until_idle().done == 1
        assert calls == ["a", "handed in"]


@pytest.mark.req("AUTO-9")
@pytest.mark.anyio
@pytest.mark.timeout(120)
async def test_an_approval_in_a_bucket_counts_for_what_it_was_given_for(
    bucket: Bucket, tmp_path: Any
) -> None:
    with oncemore.open(tmp_path / "log.db", control=f"{bucket.url}/control") as engine:
        work = contain.bind(engine)
        with pytest.raises(NotPermitted, match="it is not approved yet"):
            await work("host-1")
        run = work.last_run("host-1")
        assert run is not None
        from oncemore.log.entry_codec import load_head

        wanted = (load_head(engine.store, f"run/{run.key}").body or {})["requested"]
        attempt = wanted.pop("attempt")
        told = {
            **wanted,
            "last_attempt": attempt,
            "by": "reviewer",
            "reason": "seen",
            "expires_at": engine.now() + 60,
        }
        name = f"approval.{run.key}"
        put = partial(anyio.to_thread.run_sync, bucket.put_all)
        await put({name: json.dumps({**told, "input_hash": "other"})})
        with pytest.raises(NotPermitted, match="reviewer approved it with another arguments"):
            await work("host-1")
        await put({name: json.dumps(told)})
        assert await work("host-1") == "contained host-1"
        assert calls == ["host-1"]
        assert Approval(**told).by == "reviewer"
        assert existing_run.APPROVAL_NEEDED == "approval_needed"


def test_those_who_ask_at_the_same_time_share_a_line_and_a_lost_one_is_replaced(bucket: Bucket) -> None:
    with wire(("127.0.0.1", int(bucket.url.rpartition(":")[2]))) as cable, ThreadPoolExecutor(8) as many:
        control = NatsSwitches(cable.url, "control")
        asked = [many.submit(control.load_switches, ("intent",), "") for _ in range(8)]
        assert [one.result(10).state for one in asked] == ["CLEAR"] * 8
        assert len(cable._open_sockets) == 2, "the two ends of one connection"
        cable.cut("in", b"MSG.GET")
        with pytest.raises(Exception, match=r".*"):
            control.load_switches(("intent",), "")
        assert control.load_switches(("intent",), "").state == "CLEAR"
        control.close()


def test_the_status_of_the_switches_includes_those_of_the_bucket(
    bucket: Bucket, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the engine nor the command says that work begins while a switch in the bucket stops it."""
    control = f"{bucket.url}/control"
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "log.db"))
    monkeypatch.setenv("ONCEMORE_CONTROL", control)

    def run(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        return cli.run_command(["control", "switch", *words]), capsys.readouterr().out

    with oncemore.open(tmp_path / "log.db", control=control) as engine:
        assert engine.switches.status() == ()
        assert run("status") == (0, "No switch is on; work starts when it is due.\n")
        bucket.put_all({"all_execution": "on", "step.Contain=20host": '{"on": true, "by": "operator"}'})
        engine.switches.on(reason="drill", by="operator")
        mine, everything, step = engine.switches.status()
        assert (mine.name, mine.kept_in) == ("all_execution", "")
        assert (everything.name, everything.kept_in) == ("all_execution", control)
        assert (step.name, step.by) == ("step:Contain host", "operator")
        code, out = run("off", "--reason", "over")
        assert (code, out) == (
            0,
            "turned off all_execution; still on: "
            f"all_execution in {control}, step:Contain host in {control}\n",
        )
        code, out = run("status")
        assert code == 1
        assert f"all_execution in {control}" in out
        bucket.put_all({"all_execution": "perhaps", "step.Contain=20host": "off"})
        with pytest.raises(NotPermitted, match="nothing begins until they can") as unknown:
            engine.switches.status()
        assert unknown.value.reason == "control_state_unknown"
        assert run("off", "--reason", "over")[0] == 1
        assert run("status")[0] == 1


def test_a_bucket_that_is_not_there_means_no(bucket: Bucket, tmp_path: Any) -> None:
    with (
        oncemore.open(tmp_path / "log.db", control=f"{bucket.url}/other"),
        pytest.raises(NotPermitted) as refused,
    ):
        intent("a")
    assert refused.value.reason == "control_state_unknown"


def test_retries_are_stopped_too(bucket: Bucket, tmp_path: Any, clock: Any) -> None:
    @oncemore.step(effect="idempotent", name="flaky")
    def flaky() -> None:
        calls.append(1)
        bucket.put(all_execution="on")
        raise TransientError("not yet")

    with oncemore.open(tmp_path / "log.db", control=f"{bucket.url}/control"), pytest.raises(NotPermitted):
        flaky()
    assert calls == [1]


@pytest.mark.parametrize("wrong", ["nats://host", "redis://host/bucket", "nats://host/a.b", "x"])
def test_an_odd_address_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="nats://host:port/bucket"):
        oncemore.open("memory:", control=wrong)


def test_who_else_is_asked_can_be_anything_that_answers() -> None:
    made = NatsSwitches("nats://user:secret@127.0.0.1:1", "control")
    assert make_external_switches(made) is made
    assert "secret" not in made.url
    made.close()
    with pytest.raises(UsageError, match="has no load_switches, no load_approval, no close"):
        oncemore.open("memory:", control=object())
