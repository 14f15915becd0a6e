"""The scenes of `oncemore demo exoarmur`, in the order in which they are printed."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from oncemore.audit import Idempotency, parse_event
from oncemore.control.nats_switches import bucket_key
from oncemore.demo.child_processes import read_line
from oncemore.demo.exoarmur import stream_counts
from oncemore.demo.exoarmur.agent import AUDIT, NAMESPACE, TENANT, run_in_thread, turn_switch_on
from oncemore.demo.exoarmur.scene_runner import SceneRunner
from oncemore.profiles.exoarmur import RetryError
from oncemore.profiles.exoarmur.bus import Bus

if TYPE_CHECKING:
    from oncemore.demo.exoarmur.scene_runner import DemoScene

CONTAINED_S = 1.0
BELIEFS = 6
LOG = f"{NAMESPACE}_LOG"


class ExoarmurScenes(SceneRunner):
    """All scenes; the docstring of a scene says what happens in it."""

    async def play_scenes(self) -> stream_counts.EffectReport:
        """Run all scenes and count the effects."""
        self.sent: dict[str, list[str]] = {"BELIEFS": [], "INTENTS": []}
        self.tried = {"BELIEFS": 0, "INTENTS": 0}
        self.start_agent(await run_in_thread(self.processes.start_hosts))
        await self.play_group(self.play_connect())
        await self.play_group(self.play_prepare())
        # Started early, because it needs some seconds until it is ready.
        self._second_agent = self.processes.start_second_agent()
        await self.play_group(self.play_publish(), self.play_requests(), self.play_approval())
        await self.play_group(self.play_kill_switch())
        await self.play_group(self.play_server_loss())
        await self.play_group(self.play_expiration(), self.play_approval_delete())
        await self.play_group(self.play_replay())
        self.expect(await run_in_thread(self.spool.flush, 10.0), "audit events wait on disk")
        return await stream_counts.count_effects(
            self.folder, self.processes.cluster.url, self.plan, self.sent, self.tried
        )

    async def play_connect(self) -> None:
        """The agent starts before the servers."""
        scene = self.begin_scene("The agent starts before the bus, and retries until it is there.")
        bus = Bus(self.agent.manager, self.processes.cluster.url, tenant_id=TENANT)
        connecting = asyncio.create_task(bus.connect())
        await scene.wait_for_events(2)
        self.processes.start_servers()
        await run_in_thread(self.processes.cluster.wait_until_formed)
        first_read = run_in_thread(lambda: self.engine.store.load_head("control/switches"))
        await asyncio.gather(connecting, first_read)
        await bus.close()
        scene.add_result("red, green and blue are one cluster; the log is on all three", "green")

    async def play_prepare(self) -> None:
        """Streams and a bucket are created, and two replies are lost."""
        scene = self.begin_scene(
            "Streams and the bucket of the kill switch are created. Two replies are lost: the repeated "
            "requests find the same stream and bucket."
        )
        (bus, proxy), (other, other_proxy) = self.open_bus(), self.open_bus()
        proxy.cut("out", b'"name":"BELIEFS"')
        other_proxy.cut("out", b'"name":"KV_control"')

        async def create_streams() -> None:
            await bus.create_stream("BELIEFS", ["exoarmur.beliefs.>"])
            await bus.create_stream("INTENTS", ["exoarmur.intents.>"])
            await bus.create_stream("AUDIT", [AUDIT])

        await asyncio.gather(create_streams(), other.create_bucket("control"))
        self.expect(not await other.is_switch_on(), "the switch is on at the start")
        await other.close()
        scene.add_result("streams BELIEFS, INTENTS, AUDIT and the bucket control, three replicas each")
        self.bus, self.proxy = bus, proxy

    async def play_publish(self) -> None:
        """Beliefs and intents are published, and intents are executed."""
        scene = self.begin_scene(
            "Beliefs and intents are published; one acknowledgement is lost, and the repeat has the same "
            "message id. Intents are validated and executed, one of them delivered twice."
        )
        for number in range(BELIEFS):
            if number == BELIEFS // 2:
                self.proxy.cut("out", b'"stream":"BELIEFS"')
                self.tried["BELIEFS"] += 1
            await self._publish_message(
                "BELIEFS", "exoarmur.beliefs.v1", {"name": f"belief {self.plan.seed}-{number}"}
            )
        await asyncio.gather(
            *(self._publish_message("INTENTS", "exoarmur.intents.v1", intent) for intent in self.plan.intents)
        )
        self.proxy.cut("in", b"CONSUMER.")
        subscriber = await self.bus.subscribe("INTENTS", "executor")
        messages = await subscriber.fetch(len(self.plan.intents), 5.0)
        self.expect(len(messages) == len(self.plan.intents), "not every intent was delivered")
        await asyncio.gather(*(self._handle_intent(scene, message) for message in messages))
        redelivered = await subscriber.fetch(1, 5.0)
        self.expect(len(redelivered) == 1, "no intent was delivered twice")
        for message in redelivered:
            await self._handle_intent(scene, message)

    async def _publish_message(self, stream: str, subject: str, payload: dict[str, str]) -> None:
        self.tried[stream] += 1
        await self.bus.publish(subject, payload, correlation_id=f"{stream}-{payload['name']}")
        self.sent[stream].append(payload["name"])

    async def _handle_intent(self, scene: DemoScene, message: Any) -> None:
        """Validate and execute an intent and acknowledge its message."""
        intent = json.loads(message.data)
        try:
            await self.agent.validate_intent(intent)
        except Exception as error:  # noqa: BLE001 - any final error of the validator
            name = intent["name"]
            self.expect(getattr(error, "code", None) == 422, f"{name} was refused by {error!r}")
            self.expect(name not in self.plan.valid_intents, f"{name} was refused")
            scene.add_result(f"{name} wants to {intent['action']}: refused by the validator", "yellow")
            await message.term()
            return
        await self.retry_until_decided(lambda: self.agent.execute_intent(intent))
        # The first valid intent is returned once, which makes the server deliver it again.
        if intent["name"] == self.plan.valid_intents[0] and message.metadata.num_delivered == 1:
            await message.nak()
        else:
            await message.ack_sync()

    async def play_requests(self) -> None:
        """A service fails, stalls, and replies."""
        scene = self.begin_scene(
            f"The reputation of {self.plan.critical}: the service is overloaded, then too slow, then replies."
        )
        reply, _ = await self.retry_until_decided(lambda: self.agent.ask_reputation(self.plan.critical))
        scene.add_result(f"its reputation is {reply['reputation']}")

    async def play_approval(self) -> None:
        """The critical host is contained with an approval only."""
        host = self.plan.critical
        scene = self.begin_scene(
            f"Containing {host} needs an approval: of this key, this input and this policy, for ten minutes."
        )
        contain = partial(self.agent.contain_host, host, requires_approval=True)
        await self.expect_refusal(contain, "approval_needed")
        bus, proxy = self.open_bus()
        key = self.agent.compute_key("contain", host=host)
        proxy.cut("in", b"MSG.GET")
        self.expect(await bus.get_approval(key) is None, "there is an approval at the start")
        draft = await run_in_thread(
            lambda: self.engine.approvals.build_approval(
                key, reason="known to be bad", by="reviewer", expires=600
            )
        )
        proxy.cut("out", b'"stream":"KV_control"')
        await bus.grant_approval(draft, correlation_id=f"approve-{host}")
        self.expect(await bus.get_approval(key) == draft, "the stored approval differs")
        bound = f"key {key[:8]}, input {draft.input_hash[:8]}, policy {draft.policy[:8]}"
        scene.add_result(f"approved by {draft.by}: {bound}")
        await self.retry_until_decided(contain)
        scene.add_result(f"{host} is contained", "green")
        await bus.close()

    async def play_kill_switch(self) -> None:
        """Another process sets the kill switch and dies; no agent acts until it is off."""
        scene = self.begin_scene(
            "Another process sets the kill switch and is killed. The same request from here is a hit: "
            "nothing is written again. While the switch is on, and while it cannot be read, no agent acts."
        )
        execute = partial(self.agent.execute_intent, {"name": "i-9", "action": "rotate_token"})
        action = await run_in_thread(self._run_second_agent)
        self.expect(action == "record", f"the other process printed {action!r}")
        scene.add_result(
            f"the other process: {action}; exit by signal {-(self._second_agent.returncode or 0)}"
        )
        await turn_switch_on(self.bus)
        last = [event.action for event in scene.events if isinstance(event, Idempotency)][-1]
        self.expect(last == "hit", f"the same request was a {last}")
        self.proxy.cut("in", b"MSG.GET")
        self.expect(await self.bus.is_switch_on(), "the switch is off")
        await self.expect_refusal(execute, "switch")
        self.proxy.cut("out", b'"stream":"KV_control"')
        await self.bus.set_switch("off", reason="it is right again", by="operator", correlation_id="req-2")
        # The agent must not act on the last value that it has read.
        self.proxy.dark = self.control_proxy.dark = True
        with suppress(RetryError):
            await self.bus.is_switch_on()
            self.expect(False, "the switch was read over a cut connection")
        await self.expect_refusal(execute, "control_state_unknown")
        self.proxy.dark = self.control_proxy.dark = False

    def _run_second_agent(self) -> str:
        """Have the second agent set the switch; return the action that it prints."""
        read_line(self._second_agent, "the other agent")
        assert self._second_agent.stdin is not None
        self._second_agent.stdin.write("go\n")
        self._second_agent.stdin.flush()
        action = read_line(self._second_agent, "the other agent")
        self._second_agent.wait(10)
        return action

    async def play_server_loss(self) -> None:
        """The leader of the log's stream is killed while hosts are being contained."""
        scene = self.begin_scene(
            "Hosts are contained, and in the middle of it the server that leads the log gets kill -9. "
            "Another one takes over; the killed one comes back and catches up."
        )
        cluster = self.processes.cluster
        victim = await run_in_thread(cluster.leader, LOG)
        requested = self.agent.requested = asyncio.Semaphore(0)
        began = time.monotonic()
        calls = [partial(self.agent.contain_host, host) for host in self.plan.hosts]
        tasks = [asyncio.create_task(self.retry_until_decided(call)) for call in calls]
        # All requests are on their way, and no result is recorded yet.
        for _ in tasks:
            await requested.acquire()
        victim.kill()
        killed = time.monotonic()
        successor = await run_in_thread(cluster.leader, LOG, victim)
        moved_s = time.monotonic() - killed
        cluster.start(victim)
        repeats = sum([repeats for _, repeats in await asyncio.gather(*tasks)])
        self.contained_at = time.monotonic()
        await run_in_thread(victim.wait_ready)
        scene.add_result(
            f"{victim.name} led the log and was killed; {successor.name} leads it {moved_s:.1f} s later",
            "red",
        )
        if repeats:
            scene.add_result(
                f"{repeats} times an attempt was denied meanwhile: the switch could not be read", "yellow"
            )
        took_s = self.contained_at - began
        scene.add_result(
            f"{len(tasks)} hosts are contained after {took_s:.1f} s; {victim.name} is back", "green"
        )

    async def play_expiration(self) -> None:
        """Containments expire as one batch, which fails once."""
        scene = self.begin_scene(
            "The containments expire. Their batch has one attempt, and a host drops the connection after its "
            "release. The next call is a new run: each host is released once."
        )
        # The time of the scenes in between counts.
        await asyncio.sleep(max(0.0, self.contained_at + CONTAINED_S - time.monotonic()))
        expire = partial(self.agent.expire_containments, self.plan.hosts)
        try:
            await self.retry_until_decided(expire)
            self.expect(False, "the batch did not fail")
        except RetryError:
            await self.retry_until_decided(expire)
        scene.add_result(f"{len(self.plan.hosts)} hosts are released", "green")

    async def play_approval_delete(self) -> None:
        """The used approval is deleted."""
        self.begin_scene("The approval has been used, and is deleted.")
        bus, proxy = self.open_bus()
        proxy.cut("out", b'"stream":"KV_control"')
        name = bucket_key("approval", self.agent.compute_key("contain", host=self.plan.critical))
        await bus.delete("control", name, operation="Delete approval")
        await bus.close()

    async def play_replay(self) -> None:
        """The audit stream is read again and compared with the log."""
        scene = self.begin_scene(
            "The audit stream is read again, and every wait in it is compared with the log."
        )
        self.expect(await run_in_thread(self.spool.flush, 10.0), "audit events wait on disk")
        bus, proxy = self.open_bus()

        async def count_events() -> dict[str, Any]:
            messages = await bus.ask(lambda streams: stream_counts.read_messages(streams, "AUDIT"))
            return {"events": len(messages)}

        async def compare_waits() -> bool:
            messages = await bus.ask(lambda streams: stream_counts.read_messages(streams, "AUDIT"))
            events = [parse_event(json.loads(one)) for one in messages]
            in_stream, in_log = await run_in_thread(stream_counts.count_decisions, events, self.engine)
            self.waits = in_log.total()
            return bool(in_stream == in_log)

        # The first read fails, so that the replay shows its retry.
        proxy.cut("in", b"MSG.GET")
        try:
            await self.agent.replay_stream(count_events)
            self.expect(False, "the replay did not fail")
        except RetryError:
            counted = await self.agent.replay_stream(count_events)
        proxy.cut("in", b"MSG.GET")
        # The events of the replay itself belong to the comparison.
        await run_in_thread(self.spool.flush, 10.0)
        is_same = await self.agent.compare_stream(compare_waits)
        self.expect(is_same, "the audit stream and the log differ")
        result = f"{self.waits} waits were decided, the same in stream and log" if is_same else "they differ"
        scene.add_result(f"{counted['events']} events; {result}", "green" if is_same else "red")
        await bus.close()
