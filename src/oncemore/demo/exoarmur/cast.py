"""Who plays in `oncemore demo exoarmur`: three servers, the world, a second agent, wires; and what comes.

What is started here is ended here. Should this process be killed itself, the world sees its standard input
end, and ends the servers.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import oncemore
from oncemore.demo.exoarmur.agent import NAMESPACE
from oncemore.demo.exoarmur.hosts import ACTIONS
from oncemore.errors import Error
from oncemore.testing.fault_proxy import FaultProxy
from oncemore.testing.nats import NatsCluster

if TYPE_CHECKING:
    from typing import IO

#: How long another process may take to say something.
PATIENCE_S = 20.0
HOSTS, INTENTS = 6, 5
#: An action that nobody knows.
NONSENSE = "paint_it_blue"


class AgentPlan(NamedTuple):
    """What is going to happen, drawn from one seed.

    intents   what is to be executed, with one that makes no sense
    critical  the host that nobody contains without an approval
    """

    seed: str
    careless: bool
    intents: tuple[dict[str, str], ...]
    hosts: tuple[str, ...]
    critical: str
    faults: dict[str, dict[str, list[str]]]

    @property
    def valid_intents(self) -> tuple[str, ...]:
        """The intents that are to be executed, once."""
        return tuple(one["name"] for one in self.intents if one["action"] != NONSENSE)


def make_plan(seed: str, *, careless: bool = False) -> AgentPlan:
    """Return the plan of a seed: the same one every time."""
    chance = random.Random(f"oncemore demo exoarmur {seed}")  # noqa: S311 - a story, and to be told again
    names = [f"i-{number}" for number in range(1, INTENTS + 2)]
    nonsense = chance.choice(names)
    intents = [
        {"name": name, "action": NONSENSE if name == nonsense else chance.choice(ACTIONS)} for name in names
    ]
    sound = [name for name in names if name != nonsense]
    hosts = [f"host-{number:02d}" for number in sorted(chance.sample(range(1, 100), HOSTS + 1))]
    critical = hosts.pop(chance.randrange(len(hosts)))
    executed, contained = chance.sample(sound, 2), chance.sample(hosts, 3)
    faults = {
        "execute": {executed[0]: ["drop"], executed[1]: ["503"]},
        "contain": dict(zip(contained, (["drop"], ["reset"], ["503"]), strict=True)),
        "release": {chance.choice(hosts): ["drop"]},
        "reputation": {critical: ["503", "stall"]},
        "validate": {chance.choice([name for name in sound if name not in executed]): ["reset"]},
    }
    return AgentPlan(seed, careless, tuple(intents), tuple(hosts), critical, faults)


class AgentProcesses:
    """Everybody else."""

    def __init__(self, folder: Path, plan: AgentPlan) -> None:
        self.folder = folder
        self.cluster = NatsCluster(folder)
        self.store = f"{self.cluster.url}/{NAMESPACE}?replicas=3&monitor={self.cluster.monitor_urls}"
        source = str(Path(oncemore.__file__).parents[1])
        told = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMORE_")}
        self._env = {**told, "PYTHONPATH": os.pathsep.join(filter(None, [source, told.get("PYTHONPATH")]))}
        (folder / "world.json").write_text(json.dumps({"faults": plan.faults}), encoding="utf-8")
        self._all: list[subprocess.Popen[str]] = []
        self.wires: list[FaultProxy] = []

    def start_hosts(self) -> str:
        """Start the world; return where it is."""
        world = self._start_process("oncemore.demo.exoarmur.hosts", str(self.folder))
        return f"http://127.0.0.1:{int(read_line(world, 'the world'))}"

    def start_servers(self) -> None:
        """Start the three servers; they answer a little later."""
        for one in self.cluster.nodes:
            self.cluster.start(one)

    def open_proxy(self) -> FaultProxy:
        """Return a wire to whichever of the servers answers."""
        made = FaultProxy(*(("127.0.0.1", one.port) for one in self.cluster.nodes))
        self.wires.append(made)
        return made

    def start_second_agent(self) -> subprocess.Popen[str]:
        """Start the second agent."""
        words = self.store, self.cluster.url, str(self.folder)
        return self._start_process("oncemore.demo.exoarmur.agent", *words)

    def _start_process(self, module: str, *words: str) -> subprocess.Popen[str]:
        """Start a process in a session of its own: Ctrl-C is for us, and we end the others."""
        with (self.folder / "errors.txt").open("a", encoding="utf-8") as errors:
            process = subprocess.Popen(  # noqa: S603 - Python, with modules of ours
                [sys.executable, "-m", module, *words], cwd=self.folder, env=self._env,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,
            )  # fmt: skip
        self._all.append(process)
        return process

    def close(self) -> None:
        """End what is still there, by its process id."""
        for wire in self.wires:
            wire.close()
        for process in self._all:
            if process.poll() is None:
                process.kill()
            process.wait(10)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        for one in self.cluster.nodes:
            if one.process is not None and one.process.poll() is None:
                one.kill()  # its files are thrown away, or were read before


def read_line(process: subprocess.Popen[str], who: str) -> str:
    """Return the next line that another process says; it may not take for ever."""
    out: IO[str] | Any = process.stdout
    with selectors.DefaultSelector() as waiting:
        waiting.register(out, selectors.EVENT_READ)
        line = out.readline().strip() if waiting.select(PATIENCE_S) else ""
    if not line:
        raise Error(f"{who} said nothing; errors.txt in the folder has what it said of that (--keep)")
    return str(line)
