"""`oncemore demo`: a pipeline of real steps is killed three times and finishes; others count what happened.

This process starts the two others, shows what can be read of them, and kills: `world.py` says when it would
hurt most. Everything is bounded. It ends by itself, and at once with Ctrl-C, and ends what it started, by
its process id. Should this process be killed itself, the others see their standard input end, and leave.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import oncemore
from oncemore.demo.pipeline import ending
from oncemore.demo.pipeline.board import Board
from oncemore.demo.pipeline.facts import LogTail, RecorderTail
from oncemore.demo.pipeline.live import Terminal, hushed
from oncemore.demo.pipeline.plan import planned
from oncemore.demo.pipeline.tally import tally
from oncemore.policy import files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from oncemore.demo.pipeline.facts import Fact
    from oncemore.demo.pipeline.plan import Plan

#: The longest that all of it may take before the count is made of what is there.
LIMIT_S = 75.0
TICK_S = 0.08
#: How long one looks at a moment before the kill, and at what it left; times the pace.
LOOK_S, DEAD_S = 0.9, 1.2
#: More starts than kills mean that the pipeline does not get anywhere.
MOST_STARTS = 8
CALM, FAST = 1.4, 0.15
STOPPED = 130


class Cast:
    """The two other processes; what is started here is ended here."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        source = str(Path(oncemore.__file__).parents[1])
        told = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMORE_")}
        self._env = {**told, "PYTHONPATH": os.pathsep.join(filter(None, [source, told.get("PYTHONPATH")]))}
        shutil.copy(Path(__file__).with_name("program.py"), folder / "pipeline.py")
        (folder / "demo.yaml").write_text(plan.policy(), encoding="utf-8")
        (folder / "world.json").write_text(json.dumps(plan.for_world()), encoding="utf-8")
        self._plan = plan
        self._all: list[subprocess.Popen[str]] = []

    def world(self) -> None:
        """Start everybody else, and tell the program where they are."""
        world = self._start([sys.executable, "-m", "oncemore.demo.pipeline.world", str(self.folder)])
        assert world.stdout is not None
        url = f"http://127.0.0.1:{int(world.stdout.readline())}"
        told = json.dumps(self._plan.for_pipeline(url))
        (self.folder / "plan.json").write_text(told, encoding="utf-8")

    def pipeline(self) -> subprocess.Popen[str]:
        """Start the user's program."""
        return self._start([sys.executable, "pipeline.py", "staged"])

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        """Start a process in a session of its own: Ctrl-C is for us, and we end the others."""
        with (self.folder / "errors.txt").open("a", encoding="utf-8") as errors:
            process = subprocess.Popen(  # noqa: S603 - Python, with files of ours
                command, cwd=self.folder, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
        self._all.append(process)
        return process

    def close(self) -> None:
        """End what is still there, by its process id."""
        for process in self._all:
            if process.poll() is None:
                process.kill()
            process.wait(10)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()


class Story:
    """One telling: plan, folder, the others, and what is known of them."""

    def __init__(self, plan: Plan, folder: Path, terminal: Terminal) -> None:
        self.plan, self.folder, self.terminal = plan, folder, terminal
        self.board = Board((order for order, _ in plan.orders), careless=plan.careless)
        self.facts: list[Fact] = []
        self._told = 0
        self._began = time.time()

    def play(self) -> tuple[list[tuple[str, str, str, dict[str, object]]], bool]:
        """Play it to its end; return every decision that was made, and whether the pipeline got there."""
        with hushed():
            engine = oncemore.open(self.folder / "log.db")
            try:
                cast = Cast(self.folder, self.plan)
                try:
                    cast.world()
                    self._log = LogTail(engine.store, self._began)
                    self._recorder = RecorderTail(self.folder / "recorder.jsonl", self._began)
                    return self._log.proofs, self._conduct(cast)
                finally:
                    cast.close()
            finally:
                engine.close()
                self.terminal.done()

    def _conduct(self, cast: Cast) -> bool:
        """Start the pipeline as often as it takes; whether it has come to its end by itself."""
        for _ in range(MOST_STARTS):
            pipeline = cast.pipeline()
            self._see({"who": "stage", "what": "start", "pid": pipeline.pid})
            while pipeline.poll() is None:
                if self.now() > LIMIT_S:
                    return False
                if any(fact["who"] == "world" and fact["what"] == "moment" for fact in self._look()):
                    self._watch(LOOK_S)
                    self._kill(pipeline)
                    break
                time.sleep(TICK_S)
            else:
                self._look()
                self._see({"who": "stage", "what": "ended", "pid": pipeline.pid, "code": pipeline.returncode})
                if pipeline.returncode == 0:
                    return True
            self._watch(DEAD_S)
        return False

    def _kill(self, pipeline: subprocess.Popen[str]) -> None:
        """Kill it for real; what it wrote before is read before that is told."""
        pipeline.send_signal(signal.SIGKILL)
        pipeline.wait(10)
        self._look()
        self._see({"who": "stage", "what": "kill", "pid": pipeline.pid})

    def _watch(self, seconds: float) -> None:
        ends = time.monotonic() + seconds * self.plan.pace
        while time.monotonic() < ends:
            self._look()
            time.sleep(TICK_S)

    def _look(self) -> list[Fact]:
        """Read what is new in both logs, and show it."""
        new = sorted([*self._log.read(), *self._recorder.read()], key=lambda fact: float(fact["t"]))
        for fact in new:
            self._take(fact)
        self._show()
        return new

    def _see(self, fact: Fact) -> None:
        self._take({**fact, "t": round(self.now(), 3)})
        self._show()

    def _take(self, fact: Fact) -> None:
        self.facts.append(fact)
        self.board.see(fact)

    def _show(self) -> None:
        if self.terminal.live:
            self.terminal.draw(self.board.frame(self.terminal.size()[0], self.now()))
            return
        for item in self.board.news[self._told :]:
            self.terminal.say(item.text, item.tint, f"{item.t:5.1f} s  ")
        self._told = len(self.board.news)

    def now(self) -> float:
        """Return the seconds since the story began."""
        return time.time() - self._began


def tell(plan: Plan, terminal: Terminal, folder: Path, *, keep: bool) -> int:
    """Tell the whole story; return the exit code: 1 if anything was duplicated or lost."""
    width = terminal.size()[0]
    _introduce(plan, terminal, folder)
    story = Story(plan, folder, terminal)
    proofs, ended = story.play()
    if not terminal.live:
        terminal.lines([[], *story.board.rows(width, story.now())])
    terminal.lines([[], *ending.legend(width), []])
    found = tally(folder, plan.asked)
    terminal.say("Counted by the recorder, in the table and in the folder; oncemore's log was not asked:")
    terminal.lines([[], *ending.counted(found, width), []])
    terminal.lines(ending.summed_up(found, plan, story.board, width))
    agreed = True
    if (proved := ending.most_telling(proofs)) is not None:
        lines, agreed = ending.explained(proved, files.policy(str(folder / "demo.yaml")), width)
        terminal.lines([[], *lines])
    if not ended:
        terminal.say(f"The pipeline did not come to its end: {folder}/errors.txt says what it said.", "red")
    terminal.lines([[], *ending.next_steps(plan, folder if keep else None, proved, width)])
    return 0 if found.good and agreed and ended else 1


def _introduce(plan: Plan, terminal: Terminal, folder: Path) -> None:
    terminal.lines([[(f"oncemore demo: {len(plan.orders)} orders, seed {plan.seed}, in {folder}", "bold")]])
    terminal.say(
        "Each order is charged (by a provider that fails), booked (a table), filed (a file) and told (a "
        "webhook). The program that does it gets kill -9 three times, at the worst moments, and is started "
        "again."
    )
    terminal.lines([[]])


@contextmanager
def interrupted() -> Iterator[None]:
    """Let whoever ends us by a signal be heard as Ctrl-C is, so that what we started is ended too."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    names = (signal.SIGTERM, signal.SIGHUP)
    before = {name: signal.signal(name, stop) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def main(
    out: TextIO, *, seed: str | None = None, fast: bool = False, keep: bool = False, plain: bool = False,
    careless: bool = False,
) -> int:  # fmt: skip
    """Run the demo; return its exit code."""
    plan = planned(seed or secrets.token_hex(2), FAST if fast else CALM, careless=careless)
    terminal = Terminal(out, len(plan.orders) + 10, plain=plain)
    folder = Path(tempfile.mkdtemp(prefix="oncemore-demo-"))
    try:
        with interrupted():
            return tell(plan, terminal, folder, keep=keep)
    except KeyboardInterrupt:
        terminal.lines([[], [("Stopped.", "")]])
        return STOPPED
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
