"""The intents, hosts and faults of `oncemore demo exoarmur`, drawn from one seed, and its processes."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, NamedTuple

from oncemore.demo.child_processes import ChildProcesses
from oncemore.demo.exoarmur.agent import NAMESPACE
from oncemore.demo.exoarmur.host_services import ACTIONS
from oncemore.testing.fault_proxy import FaultProxy
from oncemore.testing.nats import NatsCluster

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

HOSTS, INTENTS = 6, 5
#: An action that the validator refuses.
UNKNOWN_ACTION = "paint_it_blue"


class AgentPlan(NamedTuple):
    """The input of the demo.

    intents   the intents to execute, one of them invalid
    critical  the host that may be contained only with an approval
    faults    the faults of the hosts, by path and name
    """

    seed: str
    careless: bool
    intents: tuple[dict[str, str], ...]
    hosts: tuple[str, ...]
    critical: str
    faults: dict[str, dict[str, list[str]]]

    @property
    def valid_intents(self) -> tuple[str, ...]:
        """The intents that should be executed, once."""
        return tuple(one["name"] for one in self.intents if one["action"] != UNKNOWN_ACTION)


def make_plan(seed: str, *, careless: bool = False) -> AgentPlan:
    """Return the plan of a seed; the same seed gives the same plan."""
    chance = random.Random(f"oncemore demo exoarmur {seed}")  # noqa: S311 - repeatable, not secret
    names = [f"i-{number}" for number in range(1, INTENTS + 2)]
    invalid = chance.choice(names)
    intents = [
        {"name": name, "action": UNKNOWN_ACTION if name == invalid else chance.choice(ACTIONS)}
        for name in names
    ]
    valid = [name for name in names if name != invalid]
    hosts = [f"host-{number:02d}" for number in sorted(chance.sample(range(1, 100), HOSTS + 1))]
    # Taken out of the list: it is contained in a scene of its own.
    critical = hosts.pop(chance.randrange(len(hosts)))
    executed, contained = chance.sample(valid, 2), chance.sample(hosts, 3)
    faults = {
        "execute": {executed[0]: ["drop"], executed[1]: ["503"]},
        "contain": dict(zip(contained, (["drop"], ["reset"], ["503"]), strict=True)),
        "release": {chance.choice(hosts): ["drop"]},
        "reputation": {critical: ["503", "stall"]},
        "validate": {chance.choice([name for name in valid if name not in executed]): ["reset"]},
    }
    return AgentPlan(seed, careless, tuple(intents), tuple(hosts), critical, faults)


class AgentProcesses(ChildProcesses):
    """The three NATS servers, the hosts, the second agent, and proxies to the servers."""

    def __init__(self, folder: Path, plan: AgentPlan) -> None:
        super().__init__(folder)
        self.cluster = NatsCluster(folder)
        self.store = f"{self.cluster.url}/{NAMESPACE}?replicas=3&monitor={self.cluster.monitor_urls}"
        (folder / "services.json").write_text(json.dumps({"faults": plan.faults}), encoding="utf-8")
        self._proxies: list[FaultProxy] = []

    def start_hosts(self) -> str:
        """Start the hosts; return their URL."""
        return self.start_server("oncemore.demo.exoarmur.host_services")

    def start_servers(self) -> None:
        """Start the three NATS servers without waiting for them."""
        # They form a cluster by themselves; `wait_until_formed` waits for that.
        for one in self.cluster.nodes:
            self.cluster.start(one)

    def open_proxy(self) -> FaultProxy:
        """Return a proxy to the first server that accepts a connection; the demo can cut it."""
        proxy = FaultProxy(*(("127.0.0.1", one.port) for one in self.cluster.nodes))
        self._proxies.append(proxy)
        return proxy

    def start_second_agent(self) -> subprocess.Popen[str]:
        """Start the second agent."""
        words = self.store, self.cluster.url, str(self.folder)
        return self.start_python("-m", "oncemore.demo.exoarmur.agent", *words)

    def close(self) -> None:
        """End all processes and proxies."""
        for proxy in self._proxies:
            proxy.close()
        super().close()
        for one in self.cluster.nodes:
            # Killed, not stopped: their files are deleted, or have been read before.
            if one.process is not None and one.process.poll() is None:
                one.kill()
