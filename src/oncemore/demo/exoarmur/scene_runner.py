"""Runs the scenes of `oncemore demo exoarmur`: some at the same time, each printed as a whole."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from oncemore.audit import AuditSpool
from oncemore.demo.exoarmur.agent import AUDIT, TENANT, DemoAgent, open_engine
from oncemore.demo.exoarmur.agent_plan import AgentProcesses
from oncemore.demo.exoarmur.agent_summary import print_scene
from oncemore.errors import Error, NotPermitted
from oncemore.outbox import JetStreamSink
from oncemore.profiles.exoarmur.bus import Bus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import ExitStack
    from pathlib import Path

    from oncemore.audit import AuditEvent
    from oncemore.demo.exoarmur.agent_plan import AgentPlan
    from oncemore.demo.terminal import Line, LiveTerminal
    from oncemore.testing.fault_proxy import FaultProxy

#: Longest wait for closing a connection: a killed server does not answer the goodbye.
CLOSE_S = 2.0
#: Pause and number of repeats while the switch cannot be read.
REPEAT_S, MAX_REPEATS = 0.5, 60


class DemoScene:
    """One scene: its introduction, its audit events and its results."""

    def __init__(self) -> None:
        self.text = ""
        self.events: list[AuditEvent] = []
        self.results: list[Line] = []
        self._changed = asyncio.Event()

    def add_event(self, event: AuditEvent) -> None:
        """Add an audit event."""
        self.events.append(event)
        self._changed.set()

    async def wait_for_events(self, number: int) -> None:
        """Wait until there are this many audit events."""
        while len(self.events) < number:
            self._changed.clear()
            await self._changed.wait()

    def add_result(self, text: str, tint: Any = "") -> None:
        """Add a line that is printed at the end of the scene."""
        self.results.append([(f"  {text}", tint)])


#: The scene of the current task; audit events find their scene by it.
_scene: ContextVar[DemoScene | None] = ContextVar("oncemore.demo.scene", default=None)


class SceneRunner:
    """The agent, its processes and connections, and helpers for scenes.

    wrong  the unexpected results so far
    """

    agent: DemoAgent

    def __init__(self, plan: AgentPlan, folder: Path, terminal: LiveTerminal, cleanup: ExitStack) -> None:
        self.plan, self.folder, self.terminal, self._cleanup = plan, folder, terminal, cleanup
        self.processes = AgentProcesses(folder, plan)
        cleanup.callback(self.processes.close)
        self.wrong: list[str] = []
        # The switches have a proxy of their own, so that a scene can make only them unreadable.
        self.control_proxy = self.processes.open_proxy()
        self.engine = open_engine(self.processes.store, self.control_proxy.url)
        cleanup.callback(close_within, CLOSE_S, self.close)

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def start_agent(self, hosts: str) -> None:
        """Create the agent; its audit events go to the stream and to the current scene."""
        self.agent = DemoAgent(self.engine, hosts, careless=self.plan.careless)
        sink = JetStreamSink(self.processes.cluster.url, form="cloudevents-binary", timeout=2.0)
        # Entered by hand: it is closed with the other connections, in `cleanup`.
        self.spool = AuditSpool(self.folder / "audit.jsonl", sink, topic=AUDIT).__enter__()
        self._cleanup.callback(close_within, CLOSE_S, sink.close)
        self._cleanup.callback(close_within, CLOSE_S, self.spool.close)
        self.agent.manager.add_sink(self.spool)
        self.agent.manager.add_sink(_add_to_scene)

    def expect(self, condition: bool, failure: str) -> None:
        """Add `failure` to `wrong` unless the condition holds."""
        if not condition:
            self.wrong.append(failure)

    async def play_group(self, *scenes: Coroutine[Any, Any, None]) -> None:
        """Run scenes at the same time, and print them one after the other."""
        # Collected per scene: events of simultaneous scenes would mix on the screen.
        made = [DemoScene() for _ in scenes]

        async def play(scene: DemoScene, coroutine: Coroutine[Any, Any, None]) -> None:
            _scene.set(scene)
            await coroutine

        async with asyncio.TaskGroup() as group:
            for scene, coroutine in zip(made, scenes, strict=True):
                group.create_task(play(scene, coroutine))
        for scene in made:
            print_scene(self.terminal, scene.text, scene.events, scene.results)

    def begin_scene(self, text: str) -> DemoScene:
        """Set the introduction of the current scene; return the scene."""
        scene = _scene.get()
        assert scene is not None
        scene.text = text
        return scene

    def open_bus(self) -> tuple[Bus, FaultProxy]:
        """Return a bus over a proxy of its own, which the scene can cut."""
        proxy = self.processes.open_proxy()
        return Bus(self.agent.manager, proxy.url, replicas=3, tenant_id=TENANT), proxy

    async def expect_refusal(self, call: Callable[[], Awaitable[Any]], reason: str) -> None:
        """Expect that a call is refused for this reason."""
        try:
            await (call() if reason == "control_state_unknown" else self.retry_until_decided(call))
        except NotPermitted as refused:
            self.expect(refused.reason == reason, f"refused for {refused.reason}, not for {reason}")
        else:
            self.expect(False, f"not refused for {reason}")

    async def retry_until_decided(self, call: Callable[[], Awaitable[Any]]) -> tuple[Any, int]:
        """Repeat a call while the switch cannot be read; return its value and the number of repeats."""
        for repeats in range(MAX_REPEATS):
            try:
                return await call(), repeats
            except NotPermitted as refused:
                if refused.reason != "control_state_unknown":
                    raise
                await asyncio.sleep(REPEAT_S)
        raise Error("the switch cannot be read any more")


def _add_to_scene(event: AuditEvent) -> None:
    scene = _scene.get()
    if scene is not None:
        scene.add_event(event)


def close_within(seconds: float, close: Callable[[], None]) -> None:
    """Call `close` in a daemon thread and wait for it at most this long."""
    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(seconds)
