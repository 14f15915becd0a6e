"""`oncemore demo exoarmur`: an agent platform on a real cluster of three servers, on a bad day.

Real parts on this machine: three nats-servers with JetStream, in which the log, the streams, the kill switch
and the approvals are kept on all three; hosts behind HTTP in a process of their own; a second agent, which is
killed; wires that are cut at the worst moments; and the server that leads the log, which is killed. All waits
are those of the profile. At the end others count what happened. Half a minute; exit code 1 if anything was
duplicated or lost, or came out otherwise than told.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore.audit import AuditSpool, Idempotency, parse_event
from oncemore.control.nats_switches import bucket_key
from oncemore.demo.exoarmur import count
from oncemore.demo.exoarmur.agent import (
    AUDIT,
    NAMESPACE,
    TENANT,
    DemoAgent,
    open_engine,
    run_in_thread,
    turn_switch_on,
)
from oncemore.demo.exoarmur.cast import AgentProcesses, make_plan, read_line
from oncemore.demo.exoarmur.ending import print_ending, print_scene
from oncemore.demo.pipeline.live import LiveTerminal, silence_logging
from oncemore.demo.pipeline.story import STOPPED, exit_on_signals
from oncemore.errors import Error, NotPermitted
from oncemore.outbox import JetStreamSink
from oncemore.profiles.exoarmur import RetryError, RetryManager
from oncemore.profiles.exoarmur.bus import Bus
from oncemore.testing.nats import find_binary

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import TextIO

    from oncemore.audit import AuditEvent
    from oncemore.demo.exoarmur.cast import AgentPlan
    from oncemore.demo.pipeline.board import Line
    from oncemore.testing.fault_proxy import FaultProxy

#: The longest that all of it may take, and how long a containment lasts.
LIMIT_S, CONTAINED_S = 75.0, 1.0
#: How long letting go of anything may take: a server that is gone does not say goodbye.
CLOSE_S = 2.0
BELIEFS = 6
#: How often work that people cannot be asked about is asked for again, and how often at most.
AGAIN_S, MOST_AGAIN = 0.5, 60
LOG = f"{NAMESPACE}_LOG"


class DemoScene:
    """A part of the story: what is said before it, what was told of it, what came of it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.events: list[AuditEvent] = []
        self.facts: list[Line] = []
        self.news = asyncio.Event()

    def add_event(self, event: AuditEvent) -> None:
        """Take in what was told."""
        self.events.append(event)
        self.news.set()

    async def wait_for_events(self, many: int) -> None:
        """Wait until so much was told."""
        while len(self.events) < many:
            self.news.clear()
            await self.news.wait()

    def add_fact(self, text: str, tint: Any = "") -> None:
        """Add something that came of it."""
        self.facts.append([(f"  {text}", tint)])


#: The scene that the code around this line is part of.
_scene: ContextVar[DemoScene | None] = ContextVar("oncemore.demo.scene", default=None)


class ExoarmurDemo:
    """One telling. `wrong` says what went otherwise than told."""

    def __init__(self, plan: AgentPlan, folder: Path, terminal: LiveTerminal, things: ExitStack) -> None:
        self.plan, self.folder, self.terminal, self._things = plan, folder, terminal, things
        self.cast = AgentProcesses(folder, plan)
        things.callback(self.cast.close)
        self.wrong: list[str] = []
        self.sent: dict[str, list[str]] = {"BELIEFS": [], "INTENTS": []}
        self.tried = {"BELIEFS": 0, "INTENTS": 0}
        self._control = self.cast.open_proxy()
        self._engine = open_engine(self.cast.store, self._control.url)
        things.callback(close_within, CLOSE_S, self.close)

    def close(self) -> None:
        """Let go of the log: from then on nobody works on it."""
        self._engine.close()

    def check_claim(self, holds: bool, what: str) -> None:
        """Note what is otherwise than told."""
        if not holds:
            self.wrong.append(what)

    async def play_scenes(self) -> count.EffectReport:
        """Play all scenes, in groups that run at the same time, and count."""
        hosts = await run_in_thread(self.cast.start_hosts)
        self.agent = DemoAgent(self._engine, hosts, careless=self.plan.careless)
        self._attach_sinks(self.agent.manager)
        await self._play_group(self.play_connect())
        await self._play_group(self.play_prepare())
        self._other = self.cast.start_second_agent()
        await self._play_group(self.play_publish(), self.play_requests(), self.play_approval())
        await self._play_group(self.play_kill_switch())
        await self._play_group(self.play_server_loss())
        await self._play_group(self.play_expiration(), self.play_approval_delete())
        await self._play_group(self.play_replay())
        self.check_claim(await run_in_thread(self._spool.flush, 10.0), "audit events wait on disk")
        return await count.count_effects(self.folder, self.cast.cluster.url, self.plan, self.sent, self.tried)

    def _attach_sinks(self, manager: RetryManager) -> None:
        to = JetStreamSink(self.cast.cluster.url, form="cloudevents-binary", timeout=2.0)
        self._spool = AuditSpool(self.folder / "audit.jsonl", to, topic=AUDIT).__enter__()
        self._things.callback(close_within, CLOSE_S, to.close)
        self._things.callback(close_within, CLOSE_S, self._spool.close)
        manager.add_sink(self._spool)
        manager.add_sink(_add_to_scene)

    async def _play_group(self, *scenes: Coroutine[Any, Any, None]) -> None:
        """Play scenes at the same time, and show them one after the other."""
        made = [DemoScene("") for _ in scenes]

        async def play(scene: DemoScene, acts: Coroutine[Any, Any, None]) -> None:
            _scene.set(scene)
            await acts

        async with asyncio.TaskGroup() as group:
            for scene, acts in zip(made, scenes, strict=True):
                group.create_task(play(scene, acts))
        for scene in made:
            print_scene(self.terminal, scene.text, scene.events, scene.facts)

    def _print_text(self, text: str) -> DemoScene:
        scene = _scene.get()
        assert scene is not None
        scene.text = text
        return scene

    def _open_bus(self) -> tuple[Bus, FaultProxy]:
        """Return a line of its own to the bus, over a wire that can be cut."""
        cable = self.cast.open_proxy()
        return Bus(self.agent.manager, cable.url, replicas=3, tenant_id=TENANT), cable

    # The scenes -----------------------------------------------------------------------------------------

    async def play_connect(self) -> None:
        """The agent is there before the bus is."""
        scene = self._print_text("The agent starts before the bus, and asks until it is there.")
        bus = Bus(self.agent.manager, self.cast.cluster.url, tenant_id=TENANT)
        asking = asyncio.create_task(bus.connect())
        await scene.wait_for_events(2)
        self.cast.start_servers()
        await run_in_thread(self.cast.cluster.wait_until_formed)
        await asyncio.gather(asking, run_in_thread(lambda: self._engine.store.load_head("control/switches")))
        await bus.close()
        scene.add_fact("red, green and blue are one cluster; the log is on all three", "green")

    async def play_prepare(self) -> None:
        """Streams and a bucket are made, and the answers are lost."""
        scene = self._print_text(
            "Streams and the bucket of the kill switch are made. Two answers are lost: asked again, the "
            "servers find them there, and the same."
        )
        (bus, cable), (other, second) = self._open_bus(), self._open_bus()
        cable.cut("out", b'"name":"BELIEFS"')
        second.cut("out", b'"name":"KV_control"')

        async def streams() -> None:
            await bus.create_stream("BELIEFS", ["exoarmur.beliefs.>"])
            await bus.create_stream("INTENTS", ["exoarmur.intents.>"])
            await bus.create_stream("AUDIT", [AUDIT])

        await asyncio.gather(streams(), other.create_bucket("control"))
        self.check_claim(not await other.is_switch_on(), "the switch is on before anybody turned it")
        await other.close()
        scene.add_fact("streams BELIEFS, INTENTS, AUDIT and the bucket control, three replicas each")
        self.bus, self.cable = bus, cable

    async def play_publish(self) -> None:
        """Beliefs and intents go over the bus, and intents are executed."""
        scene = self._print_text(
            "Beliefs and intents are published; one acknowledgement is lost, and the repeat carries the same "
            "message id. Intents are validated and executed, one of them delivered twice."
        )
        chance = self.plan.seed
        for number in range(BELIEFS):
            if number == BELIEFS // 2:
                self.cable.cut("out", b'"stream":"BELIEFS"')
                self.tried["BELIEFS"] += 1
            await self._publish_message(
                "BELIEFS", "exoarmur.beliefs.v1", {"name": f"belief {chance}-{number}"}
            )
        await asyncio.gather(
            *(self._publish_message("INTENTS", "exoarmur.intents.v1", intent) for intent in self.plan.intents)
        )
        self.cable.cut("in", b"CONSUMER.")
        letters = await self.bus.subscribe("INTENTS", "executor")
        got = await letters.fetch(len(self.plan.intents), 5.0)
        self.check_claim(len(got) == len(self.plan.intents), "not every intent was delivered")
        await asyncio.gather(*(self._handle_intent(scene, letter) for letter in got))
        twice = await letters.fetch(1, 5.0)
        self.check_claim(len(twice) == 1, "nothing was delivered twice")
        for letter in twice:
            await self._handle_intent(scene, letter)

    async def _publish_message(self, stream: str, subject: str, payload: dict[str, str]) -> None:
        self.tried[stream] += 1
        await self.bus.publish(subject, payload, correlation_id=f"{stream}-{payload['name']}")
        self.sent[stream].append(payload["name"])

    async def _handle_intent(self, scene: DemoScene, letter: Any) -> None:
        """Validate an intent, execute it and acknowledge; the first sound one is given back once."""
        intent = json.loads(letter.data)
        try:
            await self.agent.validate_intent(intent)
        except Exception as error:  # noqa: BLE001 - whatever it is: a verdict is final
            self.check_claim(
                getattr(error, "code", None) == 422, f"{intent['name']} was refused by {error!r}"
            )
            self.check_claim(intent["name"] not in self.plan.valid_intents, f"{intent['name']} was refused")
            scene.add_fact(
                f"{intent['name']} wants to {intent['action']}: refused by the validator", "yellow"
            )
            await letter.term()
            return
        await self._retry_until_decided(lambda: self.agent.execute_intent(intent))
        if intent["name"] == self.plan.valid_intents[0] and letter.metadata.num_delivered == 1:
            await letter.nak()
        else:
            await letter.ack_sync()

    async def play_requests(self) -> None:
        """A service fails, stalls, and answers."""
        scene = self._print_text(
            f"What is known of {self.plan.critical}? The service is overloaded, then too slow, then answers."
        )
        answer, _ = await self._retry_until_decided(lambda: self.agent.ask_reputation(self.plan.critical))
        scene.add_fact(f"its reputation is {answer['reputation']}")

    async def play_approval(self) -> None:
        """Nobody contains the critical host without an approval."""
        host = self.plan.critical
        scene = self._print_text(
            f"Containing {host} needs an approval: of this key, this input and this policy, for ten minutes."
        )
        await self._expect_refusal(
            lambda: self.agent.contain_host(host, requires_approval=True), "approval_needed"
        )
        bus, cable = self._open_bus()
        key = self.agent.compute_key("contain", host=host)
        cable.cut("in", b"MSG.GET")
        self.check_claim(await bus.get_approval(key) is None, "somebody approved it")
        draft = await run_in_thread(
            lambda: self._engine.approvals.build_approval(
                key, reason="known to be bad", by="reviewer", expires=600
            )
        )
        cable.cut("out", b'"stream":"KV_control"')
        await bus.grant_approval(draft, correlation_id=f"approve-{host}")
        self.check_claim(await bus.get_approval(key) == draft, "the approval is another one")
        bound = f"key {key[:8]}, input {draft.input_hash[:8]}, policy {draft.policy[:8]}"
        scene.add_fact(f"approved by {draft.by}: {bound}")
        await self._retry_until_decided(lambda: self.agent.contain_host(host, requires_approval=True))
        scene.add_fact(f"{host} is contained", "green")
        await bus.close()

    async def play_kill_switch(self) -> None:
        """The kill switch is turned by another process, which dies; nobody acts until it is off."""
        scene = self._print_text(
            "Another process turns the kill switch on and is killed. The same request from here is a hit: "
            "nothing is written again. While the switch is on, and while nobody can read it, nobody acts."
        )
        intent = {"name": "i-9", "action": "rotate_token"}
        told = await run_in_thread(self._turn_by_second_agent)
        self.check_claim(told == "record", f"the other process said {told!r}")
        scene.add_fact(f"the other process: {told}; exit by signal {-(self._other.returncode or 0)}")
        await turn_switch_on(self.bus)
        last = [event.action for event in scene.events if isinstance(event, Idempotency)][-1]
        self.check_claim(last == "hit", f"the same request was a {last}")
        self.cable.cut("in", b"MSG.GET")
        self.check_claim(await self.bus.is_switch_on(), "the switch is off")
        await self._expect_refusal(lambda: self.agent.execute_intent(intent), "switch")
        self.cable.cut("out", b'"stream":"KV_control"')
        await self.bus.set_switch("off", reason="it is right again", by="operator", correlation_id="req-2")
        self.cable.dark = self._control.dark = True
        with suppress(RetryError):
            await self.bus.is_switch_on()
            self.check_claim(False, "a switch was read over a wire that is cut")
        await self._expect_refusal(lambda: self.agent.execute_intent(intent), "control_state_unknown")
        self.cable.dark = self._control.dark = False

    def _turn_by_second_agent(self) -> str:
        read_line(self._other, "the other agent")
        assert self._other.stdin is not None
        self._other.stdin.write("go\n")
        self._other.stdin.flush()
        told = read_line(self._other, "the other agent")
        self._other.wait(10)
        return told

    async def _expect_refusal(self, ask: Callable[[], Awaitable[Any]], reason: str) -> None:
        """Have work refused, for this reason and no other."""
        try:
            await (ask() if reason == "control_state_unknown" else self._retry_until_decided(ask))
        except NotPermitted as refused:
            self.check_claim(refused.reason == reason, f"refused for {refused.reason}, not for {reason}")
        else:
            self.check_claim(False, f"not refused for {reason}")

    async def play_server_loss(self) -> None:
        """The server that leads the log is killed while hosts are being contained."""
        scene = self._print_text(
            "Hosts are contained, and in the middle of it the server that leads the log gets kill -9. "
            "Another one takes over; the killed one comes back and catches up."
        )
        victim = await run_in_thread(self.cast.cluster.leader, LOG)
        arrived = self.agent.arrived = asyncio.Semaphore(0)
        began = time.monotonic()
        asked = [partial(self.agent.contain_host, host) for host in self.plan.hosts]
        work = [asyncio.create_task(self._retry_until_decided(ask)) for ask in asked]
        for _ in work:  # all have begun, and the last one has not heard how it went
            await arrived.acquire()
        victim.kill()
        killed = time.monotonic()
        heir = await run_in_thread(self.cast.cluster.leader, LOG, victim)
        moved = time.monotonic() - killed
        self.cast.cluster.start(victim)
        refused = sum([often for _, often in await asyncio.gather(*work)])
        self.contained = time.monotonic()
        await run_in_thread(victim.wait_ready)
        scene.add_fact(
            f"{victim.name} led the log and was killed; {heir.name} leads it {moved:.1f} s later", "red"
        )
        if refused:
            scene.add_fact(
                f"{refused} times an attempt was denied meanwhile: nobody could read the switch", "yellow"
            )
        took = self.contained - began
        scene.add_fact(f"{len(work)} hosts are contained after {took:.1f} s; {victim.name} is back", "green")

    async def _retry_until_decided(self, ask: Callable[[], Awaitable[Any]]) -> tuple[Any, int]:
        """Ask for work again while nobody can say whether it may begin; return what came, and how often."""
        for often in range(MOST_AGAIN):
            try:
                return await ask(), often
            except NotPermitted as refused:
                if refused.reason != "control_state_unknown":
                    raise
                await asyncio.sleep(AGAIN_S)
        raise Error("nobody can read the switch any more")

    async def play_expiration(self) -> None:
        """Containments expire, as one batch, which fails once."""
        scene = self._print_text(
            "The containments expire. Their batch has one attempt, and a host drops the line after it was "
            "let go. The next call is a new run: each host is let go once."
        )
        await asyncio.sleep(max(0.0, self.contained + CONTAINED_S - time.monotonic()))
        try:
            await self._retry_until_decided(lambda: self.agent.expire_containments(self.plan.hosts))
            self.check_claim(False, "the batch did not fail")
        except RetryError:
            await self._retry_until_decided(lambda: self.agent.expire_containments(self.plan.hosts))
        scene.add_fact(f"{len(self.plan.hosts)} hosts are let go", "green")

    async def play_approval_delete(self) -> None:
        """An approval that was used is deleted."""
        self._print_text("The approval has served, and is deleted.")
        bus, cable = self._open_bus()
        cable.cut("out", b'"stream":"KV_control"')
        name = bucket_key("approval", self.agent.compute_key("contain", host=self.plan.critical))
        await bus.delete("control", name, operation="Delete approval")
        await bus.close()

    async def play_replay(self) -> None:
        """The audit stream is gone through again, and compared with the log."""
        scene = self._print_text(
            "The audit stream is gone through again, and every wait in it compared with the log's own."
        )
        self.check_claim(await run_in_thread(self._spool.flush, 10.0), "audit events wait on disk")
        bus, cable = self._open_bus()

        async def read() -> dict[str, Any]:
            return {"events": len(await bus.ask(lambda streams: count.read_messages(streams, "AUDIT")))}

        async def look() -> bool:
            data = await bus.ask(lambda streams: count.read_messages(streams, "AUDIT"))
            events = [parse_event(json.loads(one)) for one in data]
            in_stream, in_log = await run_in_thread(count.count_decisions, events, self._engine)
            self.waits = in_log.total()
            return bool(in_stream == in_log)

        cable.cut("in", b"MSG.GET")
        try:
            await self.agent.replay_stream(read)
            self.check_claim(False, "the replay did not fail")
        except RetryError:
            told = await self.agent.replay_stream(read)
        cable.cut("in", b"MSG.GET")
        await run_in_thread(self._spool.flush, 10.0)
        same = await self.agent.compare_stream(look)
        self.check_claim(same, "the audit stream and the log differ")
        same_in = f"{self.waits} waits were decided, the same in stream and log"
        scene.add_fact(f"{told['events']} events; {same_in if same else 'stream and log differ'}", "green")
        await bus.close()


def close_within(seconds: float, close: Callable[[], None]) -> None:
    """Let go of something, and do not wait for it longer than that."""
    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(seconds)


def _add_to_scene(event: AuditEvent) -> None:
    scene = _scene.get()
    if scene is not None:
        scene.add_event(event)


def main(
    out: TextIO, *, seed: str | None = None, keep: bool = False, plain: bool = False, careless: bool = False
) -> int:
    """Tell the story; return 1 if anything was duplicated or lost, or came otherwise than told."""
    find_binary()  # says what is missing, before anything is begun
    plan = make_plan(seed or secrets.token_hex(2), careless=careless)
    terminal = LiveTerminal(out, 0, plain=plain)
    folder = Path(tempfile.mkdtemp(prefix="oncemore-demo-"))
    try:
        with silence_logging(), exit_on_signals(), ExitStack() as things:
            return _run_demo(ExoarmurDemo(plan, folder, terminal, things), keep=keep)
    except KeyboardInterrupt:
        terminal.write_lines([[], [("Stopped.", "")]])
        return STOPPED
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _run_demo(story: ExoarmurDemo, *, keep: bool) -> int:
    terminal, plan = story.terminal, story.plan
    terminal.write_lines([[(f"oncemore demo exoarmur: seed {plan.seed}, in {story.folder}", "bold")]])
    terminal.write_paragraph(
        "An agent acts on hosts, over a bus of three servers on this machine, under the 17 categories of the "
        "profile exoarmur. Servers, processes, cut wires, kills and waits are real."
    )

    async def bounded() -> count.EffectReport:
        async with asyncio.timeout(LIMIT_S):
            return await story.play_scenes()

    began = time.monotonic()
    try:
        found = asyncio.run(bounded())
    except Exception as error:  # noqa: BLE001 - whatever it is: the story has not come to its end
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        terminal.write_paragraph(f"The story did not come to its end: {type(error).__name__}: {error}", "red")
        return 1
    return print_ending(story, found, time.monotonic() - began, keep=keep)
