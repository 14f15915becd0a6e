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
from oncemore.demo.pipeline.board import OrderBoard
from oncemore.demo.pipeline.facts import LogTail, RecorderTail
from oncemore.demo.pipeline.live import LiveTerminal, silence_logging
from oncemore.demo.pipeline.plan import make_plan
from oncemore.demo.pipeline.tally import count_effects
from oncemore.policy import files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from oncemore.demo.pipeline.facts import Fact
    from oncemore.demo.pipeline.plan import PipelinePlan

#: The longest that all of it may take before the count is made of what is there.
LIMIT_S = 75.0
TICK_S = 0.08
#: How long one looks at a moment before the kill, and at what it left; times the pace.
LOOK_S, DEAD_S = 0.9, 1.2
#: More starts than kills mean that the pipeline does not get anywhere.
MAX_STARTS = 8
CALM, FAST = 1.4, 0.15
STOPPED = 130


class PipelineProcesses:
    """The two other processes; what is started here is ended here."""

    def __init__(self, folder: Path, plan: PipelinePlan) -> None:
        self.folder = folder
        source = str(Path(oncemore.__file__).parents[1])
        told = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMORE_")}
        self._env = {**told, "PYTHONPATH": os.pathsep.join(filter(None, [source, told.get("PYTHONPATH")]))}
        shutil.copy(Path(__file__).with_name("program.py"), folder / "pipeline.py")
        (folder / "demo.yaml").write_text(plan.policy_yaml(), encoding="utf-8")
        (folder / "world.json").write_text(json.dumps(plan.for_world()), encoding="utf-8")
        self._plan = plan
        self._all: list[subprocess.Popen[str]] = []

    def start_services(self) -> None:
        """Start everybody else, and tell the program where they are."""
        world = self._start_process([sys.executable, "-m", "oncemore.demo.pipeline.world", str(self.folder)])
        assert world.stdout is not None
        url = f"http://127.0.0.1:{int(world.stdout.readline())}"
        told = json.dumps(self._plan.for_pipeline(url))
        (self.folder / "plan.json").write_text(told, encoding="utf-8")

    def start_pipeline(self) -> subprocess.Popen[str]:
        """Start the user's program."""
        return self._start_process([sys.executable, "pipeline.py", "staged"])

    def _start_process(self, command: list[str]) -> subprocess.Popen[str]:
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


class PipelineDemo:
    """One telling: plan, folder, the others, and what is known of them."""

    def __init__(self, plan: PipelinePlan, folder: Path, terminal: LiveTerminal) -> None:
        self.plan, self.folder, self.terminal = plan, folder, terminal
        self.board = OrderBoard((order for order, _ in plan.orders), careless=plan.careless)
        self.facts: list[Fact] = []
        self._told = 0
        self._began = time.time()

    def play_demo(self) -> tuple[list[tuple[str, str, str, dict[str, object]]], bool]:
        """Play it to its end; return every decision that was made, and whether the pipeline got there."""
        with silence_logging():
            engine = oncemore.open(self.folder / "log.db")
            try:
                cast = PipelineProcesses(self.folder, self.plan)
                try:
                    cast.start_services()
                    self._log = LogTail(engine.store, self._began)
                    self._recorder = RecorderTail(self.folder / "recorder.jsonl", self._began)
                    return self._log.proofs, self._run_pipeline(cast)
                finally:
                    cast.close()
            finally:
                engine.close()
                self.terminal.end_drawing()

    def _run_pipeline(self, cast: PipelineProcesses) -> bool:
        """Start the pipeline as often as it takes; whether it has come to its end by itself."""
        for _ in range(MAX_STARTS):
            pipeline = cast.start_pipeline()
            self._add_own_fact({"who": "stage", "what": "start", "pid": pipeline.pid})
            while pipeline.poll() is None:
                if self.elapsed_s() > LIMIT_S:
                    return False
                if any(fact["who"] == "world" and fact["what"] == "moment" for fact in self._poll_facts()):
                    self._poll_for(LOOK_S)
                    self._kill_pipeline(pipeline)
                    break
                time.sleep(TICK_S)
            else:
                self._poll_facts()
                self._add_own_fact(
                    {"who": "stage", "what": "ended", "pid": pipeline.pid, "code": pipeline.returncode}
                )
                if pipeline.returncode == 0:
                    return True
            self._poll_for(DEAD_S)
        return False

    def _kill_pipeline(self, pipeline: subprocess.Popen[str]) -> None:
        """Kill it for real; what it wrote before is read before that is told."""
        pipeline.send_signal(signal.SIGKILL)
        pipeline.wait(10)
        self._poll_facts()
        self._add_own_fact({"who": "stage", "what": "kill", "pid": pipeline.pid})

    def _poll_for(self, seconds: float) -> None:
        ends = time.monotonic() + seconds * self.plan.pace
        while time.monotonic() < ends:
            self._poll_facts()
            time.sleep(TICK_S)

    def _poll_facts(self) -> list[Fact]:
        """Read what is new in both logs, and show it."""
        new = sorted(
            [*self._log.read_new_facts(), *self._recorder.read_new_facts()], key=lambda fact: float(fact["t"])
        )
        for fact in new:
            self._add_fact(fact)
        self._draw_board()
        return new

    def _add_own_fact(self, fact: Fact) -> None:
        self._add_fact({**fact, "t": round(self.elapsed_s(), 3)})
        self._draw_board()

    def _add_fact(self, fact: Fact) -> None:
        self.facts.append(fact)
        self.board.add_fact(fact)

    def _draw_board(self) -> None:
        if self.terminal.live:
            self.terminal.draw_frame(
                self.board.frame_lines(self.terminal.terminal_size()[0], self.elapsed_s())
            )
            return
        for item in self.board.news[self._told :]:
            self.terminal.write_paragraph(item.text, item.tint, f"{item.t:5.1f} s  ")
        self._told = len(self.board.news)

    def elapsed_s(self) -> float:
        """Return the seconds since the story began."""
        return time.time() - self._began


def run_demo(plan: PipelinePlan, terminal: LiveTerminal, folder: Path, *, keep: bool) -> int:
    """Tell the whole story; return the exit code: 1 if anything was duplicated or lost."""
    width = terminal.terminal_size()[0]
    _print_introduction(plan, terminal, folder)
    story = PipelineDemo(plan, folder, terminal)
    proofs, ended = story.play_demo()
    if not terminal.live:
        terminal.write_lines([[], *story.board.table_lines(width, story.elapsed_s())])
    terminal.write_lines([[], *ending.legend_lines(width), []])
    found = count_effects(folder, plan.expected_orders)
    terminal.write_paragraph(
        "Counted by the recorder, in the table and in the folder; oncemore's log was not asked:"
    )
    terminal.write_lines([[], *ending.count_lines(found, width), []])
    terminal.write_lines(ending.summary_lines(found, plan, story.board, width))
    agreed = True
    if (proved := ending.choose_decision(proofs)) is not None:
        lines, agreed = ending.explain_decision(proved, files.policy(str(folder / "demo.yaml")), width)
        terminal.write_lines([[], *lines])
    if not ended:
        terminal.write_paragraph(
            f"The pipeline did not come to its end: {folder}/errors.txt says what it said.", "red"
        )
    terminal.write_lines([[], *ending.next_steps(plan, folder if keep else None, proved, width)])
    return 0 if found.is_exact and agreed and ended else 1


def _print_introduction(plan: PipelinePlan, terminal: LiveTerminal, folder: Path) -> None:
    terminal.write_lines(
        [[(f"oncemore demo: {len(plan.orders)} orders, seed {plan.seed}, in {folder}", "bold")]]
    )
    terminal.write_paragraph(
        "Each order is charged (by a provider that fails), booked (a table), filed (a file) and told (a "
        "webhook). The program that does it gets kill -9 three times, at the worst moments, and is started "
        "again."
    )
    terminal.write_lines([[]])


@contextmanager
def exit_on_signals() -> Iterator[None]:
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
    plan = make_plan(seed or secrets.token_hex(2), FAST if fast else CALM, careless=careless)
    terminal = LiveTerminal(out, len(plan.orders) + 10, plain=plain)
    folder = Path(tempfile.mkdtemp(prefix="oncemore-demo-"))
    try:
        with exit_on_signals():
            return run_demo(plan, terminal, folder, keep=keep)
    except KeyboardInterrupt:
        terminal.write_lines([[], [("Stopped.", "")]])
        return STOPPED
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
