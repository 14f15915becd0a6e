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

from oncemore.audit import Idempotency, Spool, event_from
from oncemore.control.nats_switches import key_of
from oncemore.demo.exoarmur import count
from oncemore.demo.exoarmur.agent import AUDIT, NAMESPACE, TENANT, Agent, aside, opened, turn
from oncemore.demo.exoarmur.cast import Cast, planned, said
from oncemore.demo.exoarmur.ending import closing, shown
from oncemore.demo.pipeline.live import Terminal, hushed
from oncemore.demo.pipeline.story import STOPPED, interrupted
from oncemore.errors import Blocked, Error
from oncemore.outbox import JetStream
from oncemore.profiles.exoarmur import RetryError, RetryManager
from oncemore.profiles.exoarmur.bus import Bus
from oncemore.testing.nats import binary

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import TextIO

    from oncemore.audit import Event
    from oncemore.demo.exoarmur.cast import Plan
    from oncemore.demo.pipeline.board import Line
    from oncemore.testing.fault_proxy import Wire

#: The longest that all of it may take, and how long a containment lasts.
LIMIT_S, CONTAINED_S = 75.0, 1.0
#: How long letting go of anything may take: a server that is gone does not say goodbye.
CLOSE_S = 2.0
BELIEFS = 6
#: How often work that people cannot be asked about is asked for again, and how often at most.
AGAIN_S, MOST_AGAIN = 0.5, 60
LOG = f"{NAMESPACE}_LOG"


class Scene:
    """A part of the story: what is said before it, what was told of it, what came of it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.events: list[Event] = []
        self.facts: list[Line] = []
        self.news = asyncio.Event()

    def hear(self, event: Event) -> None:
        """Take in what was told."""
        self.events.append(event)
        self.news.set()

    async def heard(self, many: int) -> None:
        """Wait until so much was told."""
        while len(self.events) < many:
            self.news.clear()
            await self.news.wait()

    def fact(self, text: str, tint: Any = "") -> None:
        """Add something that came of it."""
        self.facts.append([(f"  {text}", tint)])


#: The scene that the code around this line is part of.
_scene: ContextVar[Scene | None] = ContextVar("oncemore.demo.scene", default=None)


class Story:
    """One telling. `wrong` says what went otherwise than told."""

    def __init__(self, plan: Plan, folder: Path, terminal: Terminal, things: ExitStack) -> None:
        self.plan, self.folder, self.terminal, self._things = plan, folder, terminal, things
        self.cast = Cast(folder, plan)
        things.callback(self.cast.close)
        self.wrong: list[str] = []
        self.sent: dict[str, list[str]] = {"BELIEFS": [], "INTENTS": []}
        self.tried = {"BELIEFS": 0, "INTENTS": 0}
        self._control = self.cast.wire()
        self._engine = opened(self.cast.store, self._control.url)
        things.callback(within, CLOSE_S, self.close)

    def close(self) -> None:
        """Let go of the log: from then on nobody works on it."""
        self._engine.close()

    def check(self, holds: bool, what: str) -> None:
        """Note what is otherwise than told."""
        if not holds:
            self.wrong.append(what)

    async def play(self) -> count.Counted:
        """Play all scenes, in groups that run at the same time, and count."""
        hosts = await aside(self.cast.world)
        self.agent = Agent(self._engine, hosts, careless=self.plan.careless)
        self._attach(self.agent.manager)
        await self._group(self.connects())
        await self._group(self.prepares())
        self._other = self.cast.other()
        await self._group(self.publishes(), self.asks(), self.approves())
        await self._group(self.switches())
        await self._group(self.survives())
        await self._group(self.expires(), self.forgets())
        await self._group(self.replays())
        self.check(await aside(self._spool.flush, 10.0), "audit events wait on disk")
        return await count.counted(self.folder, self.cast.cluster.url, self.plan, self.sent, self.tried)

    def _attach(self, manager: RetryManager) -> None:
        to = JetStream(self.cast.cluster.url, form="cloudevents-binary", timeout=2.0)
        self._spool = Spool(self.folder / "audit.jsonl", to, topic=AUDIT).__enter__()
        self._things.callback(within, CLOSE_S, to.close)
        self._things.callback(within, CLOSE_S, self._spool.close)
        manager.attach(self._spool)
        manager.attach(_heard)

    async def _group(self, *scenes: Coroutine[Any, Any, None]) -> None:
        """Play scenes at the same time, and show them one after the other."""
        made = [Scene("") for _ in scenes]

        async def play(scene: Scene, acts: Coroutine[Any, Any, None]) -> None:
            _scene.set(scene)
            await acts

        async with asyncio.TaskGroup() as group:
            for scene, acts in zip(made, scenes, strict=True):
                group.create_task(play(scene, acts))
        for scene in made:
            shown(self.terminal, scene.text, scene.events, scene.facts)

    def _say(self, text: str) -> Scene:
        scene = _scene.get()
        assert scene is not None
        scene.text = text
        return scene

    def _bus(self) -> tuple[Bus, Wire]:
        """Return a line of its own to the bus, over a wire that can be cut."""
        cable = self.cast.wire()
        return Bus(self.agent.manager, cable.url, replicas=3, tenant_id=TENANT), cable

    # The scenes -----------------------------------------------------------------------------------------

    async def connects(self) -> None:
        """The agent is there before the bus is."""
        scene = self._say("The agent starts before the bus, and asks until it is there.")
        bus = Bus(self.agent.manager, self.cast.cluster.url, tenant_id=TENANT)
        asking = asyncio.create_task(bus.connect())
        await scene.heard(2)
        self.cast.servers()
        await aside(self.cast.cluster.found_each_other)
        await asyncio.gather(asking, aside(lambda: self._engine.store.head("control/switches")))
        await bus.close()
        scene.fact("red, green and blue are one cluster; the log is on all three", "green")

    async def prepares(self) -> None:
        """Streams and a bucket are made, and the answers are lost."""
        scene = self._say(
            "Streams and the bucket of the kill switch are made. Two answers are lost: asked again, the "
            "servers find them there, and the same."
        )
        (bus, cable), (other, second) = self._bus(), self._bus()
        cable.cut("out", b'"name":"BELIEFS"')
        second.cut("out", b'"name":"KV_control"')

        async def streams() -> None:
            await bus.create_stream("BELIEFS", ["exoarmur.beliefs.>"])
            await bus.create_stream("INTENTS", ["exoarmur.intents.>"])
            await bus.create_stream("AUDIT", [AUDIT])

        await asyncio.gather(streams(), other.create_bucket("control"))
        self.check(not await other.switch(), "the switch is on before anybody turned it")
        await other.close()
        scene.fact("streams BELIEFS, INTENTS, AUDIT and the bucket control, three replicas each")
        self.bus, self.cable = bus, cable

    async def publishes(self) -> None:
        """Beliefs and intents go over the bus, and intents are executed."""
        scene = self._say(
            "Beliefs and intents are published; one acknowledgement is lost, and the repeat carries the same "
            "message id. Intents are validated and executed, one of them delivered twice."
        )
        chance = self.plan.seed
        for number in range(BELIEFS):
            if number == BELIEFS // 2:
                self.cable.cut("out", b'"stream":"BELIEFS"')
                self.tried["BELIEFS"] += 1
            await self._publish("BELIEFS", "exoarmur.beliefs.v1", {"name": f"belief {chance}-{number}"})
        await asyncio.gather(
            *(self._publish("INTENTS", "exoarmur.intents.v1", intent) for intent in self.plan.intents)
        )
        self.cable.cut("in", b"CONSUMER.")
        letters = await self.bus.subscribe("INTENTS", "executor")
        got = await letters.fetch(len(self.plan.intents), 5.0)
        self.check(len(got) == len(self.plan.intents), "not every intent was delivered")
        await asyncio.gather(*(self._take(scene, letter) for letter in got))
        twice = await letters.fetch(1, 5.0)
        self.check(len(twice) == 1, "nothing was delivered twice")
        for letter in twice:
            await self._take(scene, letter)

    async def _publish(self, stream: str, subject: str, payload: dict[str, str]) -> None:
        self.tried[stream] += 1
        await self.bus.publish(subject, payload, correlation_id=f"{stream}-{payload['name']}")
        self.sent[stream].append(payload["name"])

    async def _take(self, scene: Scene, letter: Any) -> None:
        """Validate an intent, execute it and acknowledge; the first sound one is given back once."""
        intent = json.loads(letter.data)
        try:
            await self.agent.validate(intent)
        except Exception as error:  # noqa: BLE001 - whatever it is: a verdict is final
            self.check(getattr(error, "code", None) == 422, f"{intent['name']} was refused by {error!r}")
            self.check(intent["name"] not in self.plan.sound, f"{intent['name']} was refused")
            scene.fact(f"{intent['name']} wants to {intent['action']}: refused by the validator", "yellow")
            await letter.term()
            return
        await self._surely(lambda: self.agent.execute(intent))
        if intent["name"] == self.plan.sound[0] and letter.metadata.num_delivered == 1:
            await letter.nak()
        else:
            await letter.ack_sync()

    async def asks(self) -> None:
        """A service fails, stalls, and answers."""
        scene = self._say(
            f"What is known of {self.plan.critical}? The service is overloaded, then too slow, then answers."
        )
        answer, _ = await self._surely(lambda: self.agent.reputation(self.plan.critical))
        scene.fact(f"its reputation is {answer['reputation']}")

    async def approves(self) -> None:
        """Nobody contains the critical host without an approval."""
        host = self.plan.critical
        scene = self._say(
            f"Containing {host} needs an approval: of this key, this input and this policy, for ten minutes."
        )
        await self._refused(lambda: self.agent.contain(host, approval="required"), "approval_needed")
        bus, cable = self._bus()
        key = self.agent.key("contain", host=host)
        cable.cut("in", b"MSG.GET")
        self.check(await bus.approval(key) is None, "somebody approved it")
        draft = await aside(
            lambda: self._engine.approvals.draft(key, reason="known to be bad", by="reviewer", expires=600)
        )
        cable.cut("out", b'"stream":"KV_control"')
        await bus.grant(draft, correlation_id=f"approve-{host}")
        self.check(await bus.approval(key) == draft, "the approval is another one")
        bound = f"key {key[:8]}, input {draft.input_hash[:8]}, policy {draft.policy[:8]}"
        scene.fact(f"approved by {draft.by}: {bound}")
        await self._surely(lambda: self.agent.contain(host, approval="required"))
        scene.fact(f"{host} is contained", "green")
        await bus.close()

    async def switches(self) -> None:
        """The kill switch is turned by another process, which dies; nobody acts until it is off."""
        scene = self._say(
            "Another process turns the kill switch on and is killed. The same request from here is a hit: "
            "nothing is written again. While the switch is on, and while nobody can read it, nobody acts."
        )
        intent = {"name": "i-9", "action": "rotate_token"}
        told = await aside(self._turned_by_other)
        self.check(told == "record", f"the other process said {told!r}")
        scene.fact(f"the other process: {told}; exit by signal {-(self._other.returncode or 0)}")
        await turn(self.bus)
        last = [event.action for event in scene.events if isinstance(event, Idempotency)][-1]
        self.check(last == "hit", f"the same request was a {last}")
        self.cable.cut("in", b"MSG.GET")
        self.check(await self.bus.switch(), "the switch is off")
        await self._refused(lambda: self.agent.execute(intent), "switch")
        self.cable.cut("out", b'"stream":"KV_control"')
        await self.bus.turn("off", reason="it is right again", by="operator", correlation_id="req-2")
        self.cable.dark = self._control.dark = True
        with suppress(RetryError):
            await self.bus.switch()
            self.check(False, "a switch was read over a wire that is cut")
        await self._refused(lambda: self.agent.execute(intent), "control_state_unknown")
        self.cable.dark = self._control.dark = False

    def _turned_by_other(self) -> str:
        said(self._other, "the other agent")
        assert self._other.stdin is not None
        self._other.stdin.write("go\n")
        self._other.stdin.flush()
        told = said(self._other, "the other agent")
        self._other.wait(10)
        return told

    async def _refused(self, ask: Callable[[], Awaitable[Any]], reason: str) -> None:
        """Have work refused, for this reason and no other."""
        try:
            await (ask() if reason == "control_state_unknown" else self._surely(ask))
        except Blocked as refused:
            self.check(refused.reason == reason, f"refused for {refused.reason}, not for {reason}")
        else:
            self.check(False, f"not refused for {reason}")

    async def survives(self) -> None:
        """The server that leads the log is killed while hosts are being contained."""
        scene = self._say(
            "Hosts are contained, and in the middle of it the server that leads the log gets kill -9. "
            "Another one takes over; the killed one comes back and catches up."
        )
        victim = await aside(self.cast.cluster.leader, LOG)
        arrived = self.agent.arrived = asyncio.Semaphore(0)
        began = time.monotonic()
        asked = [partial(self.agent.contain, host) for host in self.plan.hosts]
        work = [asyncio.create_task(self._surely(ask)) for ask in asked]
        for _ in work:  # all have begun, and the last one has not heard how it went
            await arrived.acquire()
        victim.kill()
        killed = time.monotonic()
        heir = await aside(self.cast.cluster.leader, LOG, victim)
        moved = time.monotonic() - killed
        self.cast.cluster.start(victim)
        refused = sum([often for _, often in await asyncio.gather(*work)])
        self.contained = time.monotonic()
        await aside(victim.ready)
        scene.fact(
            f"{victim.name} led the log and was killed; {heir.name} leads it {moved:.1f} s later", "red"
        )
        if refused:
            scene.fact(
                f"{refused} times an attempt was denied meanwhile: nobody could read the switch", "yellow"
            )
        took = self.contained - began
        scene.fact(f"{len(work)} hosts are contained after {took:.1f} s; {victim.name} is back", "green")

    async def _surely(self, ask: Callable[[], Awaitable[Any]]) -> tuple[Any, int]:
        """Ask for work again while nobody can say whether it may begin; return what came, and how often."""
        for often in range(MOST_AGAIN):
            try:
                return await ask(), often
            except Blocked as refused:
                if refused.reason != "control_state_unknown":
                    raise
                await asyncio.sleep(AGAIN_S)
        raise Error("nobody can read the switch any more")

    async def expires(self) -> None:
        """Containments expire, as one batch, which fails once."""
        scene = self._say(
            "The containments expire. Their batch has one attempt, and a host drops the line after it was "
            "let go. The next call is a new run: each host is let go once."
        )
        await asyncio.sleep(max(0.0, self.contained + CONTAINED_S - time.monotonic()))
        try:
            await self._surely(lambda: self.agent.expire(self.plan.hosts))
            self.check(False, "the batch did not fail")
        except RetryError:
            await self._surely(lambda: self.agent.expire(self.plan.hosts))
        scene.fact(f"{len(self.plan.hosts)} hosts are let go", "green")

    async def forgets(self) -> None:
        """An approval that was used is deleted."""
        self._say("The approval has served, and is deleted.")
        bus, cable = self._bus()
        cable.cut("out", b'"stream":"KV_control"')
        name = key_of("approval", self.agent.key("contain", host=self.plan.critical))
        await bus.delete("control", name, operation="Delete approval")
        await bus.close()

    async def replays(self) -> None:
        """The audit stream is gone through again, and compared with the log."""
        scene = self._say(
            "The audit stream is gone through again, and every wait in it compared with the log's own."
        )
        self.check(await aside(self._spool.flush, 10.0), "audit events wait on disk")
        bus, cable = self._bus()

        async def read() -> dict[str, Any]:
            return {"events": len(await bus.ask(lambda streams: count.all_of(streams, "AUDIT")))}

        async def look() -> bool:
            data = await bus.ask(lambda streams: count.all_of(streams, "AUDIT"))
            events = [event_from(json.loads(one)) for one in data]
            in_stream, in_log = await aside(count.decisions, events, self._engine)
            self.waits = in_log.total()
            return bool(in_stream == in_log)

        cable.cut("in", b"MSG.GET")
        try:
            await self.agent.replay(read)
            self.check(False, "the replay did not fail")
        except RetryError:
            told = await self.agent.replay(read)
        cable.cut("in", b"MSG.GET")
        await aside(self._spool.flush, 10.0)
        same = await self.agent.compare(look)
        self.check(same, "the audit stream and the log differ")
        same_in = f"{self.waits} waits were decided, the same in stream and log"
        scene.fact(f"{told['events']} events; {same_in if same else 'stream and log differ'}", "green")
        await bus.close()


def within(seconds: float, close: Callable[[], None]) -> None:
    """Let go of something, and do not wait for it longer than that."""
    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(seconds)


def _heard(event: Event) -> None:
    scene = _scene.get()
    if scene is not None:
        scene.hear(event)


def main(
    out: TextIO, *, seed: str | None = None, keep: bool = False, plain: bool = False, careless: bool = False
) -> int:
    """Tell the story; return 1 if anything was duplicated or lost, or came otherwise than told."""
    binary()  # says what is missing, before anything is begun
    plan = planned(seed or secrets.token_hex(2), careless=careless)
    terminal = Terminal(out, 0, plain=plain)
    folder = Path(tempfile.mkdtemp(prefix="oncemore-demo-"))
    try:
        with hushed(), interrupted(), ExitStack() as things:
            return _told(Story(plan, folder, terminal, things), keep=keep)
    except KeyboardInterrupt:
        terminal.lines([[], [("Stopped.", "")]])
        return STOPPED
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _told(story: Story, *, keep: bool) -> int:
    terminal, plan = story.terminal, story.plan
    terminal.lines([[(f"oncemore demo exoarmur: seed {plan.seed}, in {story.folder}", "bold")]])
    terminal.say(
        "An agent acts on hosts, over a bus of three servers on this machine, under the 17 categories of the "
        "profile exoarmur. Servers, processes, cut wires, kills and waits are real."
    )

    async def bounded() -> count.Counted:
        async with asyncio.timeout(LIMIT_S):
            return await story.play()

    began = time.monotonic()
    try:
        found = asyncio.run(bounded())
    except Exception as error:  # noqa: BLE001 - whatever it is: the story has not come to its end
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        terminal.say(f"The story did not come to its end: {type(error).__name__}: {error}", "red")
        return 1
    return closing(story, found, time.monotonic() - began, keep=keep)
