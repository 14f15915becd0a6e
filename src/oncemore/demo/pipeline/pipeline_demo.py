"""`oncemore demo`: a pipeline of durable steps is killed three times and finishes.

This process starts the services and the user's program, shows their progress, and kills the program at the
three kill points that `shop_services.py` reports. The demo has a time limit; at its end, and on Ctrl-C, it
ends the processes that it started.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import oncemore
from oncemore.demo.child_processes import ChildProcesses, draw_seed, run_in_folder
from oncemore.demo.effect_counts import RECORDER_FILE, count_effects
from oncemore.demo.pipeline import pipeline_summary as summary
from oncemore.demo.pipeline.demo_facts import LogTail, RecorderTail
from oncemore.demo.pipeline.order_plan import make_plan
from oncemore.demo.pipeline.status_table import StatusTable
from oncemore.demo.summary_lines import count_lines
from oncemore.demo.terminal import LiveTerminal, silence_logging
from oncemore.policy import files

if TYPE_CHECKING:
    import subprocess
    from typing import TextIO

    from oncemore.demo.pipeline.demo_facts import Fact, ProvedDecision
    from oncemore.demo.pipeline.order_plan import PipelinePlan

#: Time limit of the demo; effects are counted even if it is reached.
LIMIT_S = 75.0
POLL_S = 0.08
#: Pauses before a kill and after it, times the pace: a person has to see what happens.
BEFORE_KILL_S, AFTER_KILL_S = 0.9, 1.2
#: Three kills need four starts; more than this means that the program makes no progress.
MAX_STARTS = 8
NORMAL_PACE, FAST_PACE = 1.4, 0.15


class PipelineProcesses(ChildProcesses):
    """The services and the user's program."""

    def __init__(self, folder: Path, plan: PipelinePlan) -> None:
        super().__init__(folder)
        self._plan = plan
        shutil.copy(Path(__file__).with_name("user_program.py"), folder / "pipeline.py")
        (folder / "demo.yaml").write_text(plan.policy_yaml(), encoding="utf-8")
        (folder / "services.json").write_text(json.dumps(plan.services_input()), encoding="utf-8")

    def start_services(self) -> None:
        """Start the services and write the program's input, which has their URL."""
        url = self.start_server("oncemore.demo.pipeline.shop_services")
        plan = json.dumps(self._plan.program_input(url))
        (self.folder / "plan.json").write_text(plan, encoding="utf-8")

    def start_pipeline(self) -> subprocess.Popen[str]:
        """Start the user's program."""
        return self.start_python("pipeline.py", "demo")


class PipelineDemo:
    """One run of the demo.

    facts  everything that was observed, in order
    """

    def __init__(self, plan: PipelinePlan, folder: Path, terminal: LiveTerminal) -> None:
        self.plan, self.folder, self.terminal = plan, folder, terminal
        self.table = StatusTable((order for order, _ in plan.orders), careless=plan.careless)
        self.facts: list[Fact] = []
        self._printed = 0
        self._began = time.time()

    def run_pipeline(self) -> tuple[list[ProvedDecision], bool]:
        """Run the pipeline to its end; return every decision, and whether the program has finished."""
        try:
            with silence_logging(), oncemore.open(self.folder / "log.db") as engine:
                processes = PipelineProcesses(self.folder, self.plan)
                try:
                    processes.start_services()
                    self._log = LogTail(engine.store, self._began)
                    self._recorder = RecorderTail(self.folder / RECORDER_FILE, self._began)
                    return self._log.proofs, self._restart_until_finished(processes)
                finally:
                    processes.close()
        finally:
            # Outermost, so that a second Ctrl-C during the cleanup does not leave the cursor hidden.
            self.terminal.end_drawing()

    def _restart_until_finished(self, processes: PipelineProcesses) -> bool:
        for _ in range(MAX_STARTS):
            pipeline = processes.start_pipeline()
            self._add_own_fact({"event": "start", "pid": pipeline.pid})
            while pipeline.poll() is None:
                if self.elapsed_s() > LIMIT_S:
                    return False
                if any(fact.get("event") == "kill_point" for fact in self._poll_facts()):
                    self._poll_for(BEFORE_KILL_S)
                    self._kill_pipeline(pipeline)
                    break
                time.sleep(POLL_S)
            else:
                self._poll_facts()
                self._add_own_fact({"event": "ended", "pid": pipeline.pid, "code": pipeline.returncode})
                if pipeline.returncode == 0:
                    return True
            self._poll_for(AFTER_KILL_S)
        return False

    def _kill_pipeline(self, pipeline: subprocess.Popen[str]) -> None:
        pipeline.send_signal(signal.SIGKILL)
        pipeline.wait(10)
        # Entries that were written before the kill come before it in the view.
        self._poll_facts()
        self._add_own_fact({"event": "kill", "pid": pipeline.pid})

    def _poll_for(self, seconds: float) -> None:
        ends = time.monotonic() + seconds * self.plan.pace
        while time.monotonic() < ends:
            self._poll_facts()
            time.sleep(POLL_S)

    def _poll_facts(self) -> list[Fact]:
        """Read the new facts of both sources, and show them."""
        # Two files are read one after the other; sorting restores the order of time.
        new = sorted(
            [*self._log.read_new_facts(), *self._recorder.read_new_facts()], key=lambda fact: float(fact["t"])
        )
        for fact in new:
            self._add_fact(fact)
        self._show_progress()
        return new

    def _add_own_fact(self, fact: Fact) -> None:
        self._add_fact({"source": "demo", **fact, "t": round(self.elapsed_s(), 3)})
        self._show_progress()

    def _add_fact(self, fact: Fact) -> None:
        self.facts.append(fact)
        self.table.add_fact(fact)

    def _show_progress(self) -> None:
        if self.terminal.live:
            width, _ = self.terminal.terminal_size()
            self.terminal.draw_frame(self.table.frame_lines(width, self.elapsed_s()))
            return
        for item in self.table.news[self._printed :]:
            self.terminal.write_paragraph(item.text, item.tint, f"{item.t:5.1f} s  ")
        self._printed = len(self.table.news)

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return time.time() - self._began


def run_demo(plan: PipelinePlan, terminal: LiveTerminal, folder: Path, *, keep: bool) -> int:
    """Run the demo and print its summary; return 1 if an effect was duplicated or lost."""
    width = terminal.terminal_size()[0]
    _print_introduction(plan, terminal, folder)
    demo = PipelineDemo(plan, folder, terminal)
    proofs, has_finished = demo.run_pipeline()
    # A live view has left its last table on the screen.
    if not terminal.live:
        terminal.write_lines([[], *demo.table.table_lines(width, demo.elapsed_s())])
    terminal.write_lines([[], *summary.legend_lines(width), []])
    totals = count_effects(folder, plan.expected_orders)
    terminal.write_paragraph(
        "Counted in the services' record, the table and the folder; oncemore's log was not read:"
    )
    terminal.write_lines([[], *count_lines(totals.counts, width), []])
    terminal.write_lines(summary.verdict_lines(totals, plan, demo.table, width))
    is_same = True
    if (proved := summary.choose_decision(proofs)) is not None:
        lines, is_same = summary.explain_decision(proved, files.policy(str(folder / "demo.yaml")), width)
        terminal.write_lines([[], *lines])
    if not has_finished:
        terminal.write_paragraph(
            f"The pipeline did not finish: its errors are in {folder}/errors.txt.", "red"
        )
    terminal.write_lines([[], *summary.next_steps(plan, folder if keep else None, proved, width)])
    return 0 if totals.is_exact and is_same and has_finished else 1


def _print_introduction(plan: PipelinePlan, terminal: LiveTerminal, folder: Path) -> None:
    terminal.write_line(f"oncemore demo: {len(plan.orders)} orders, seed {plan.seed}, in {folder}", "bold")
    terminal.write_paragraph(
        "Each order is charged (by a provider that fails), booked (a table row), filed (a file) and "
        "announced (to a webhook). The program gets kill -9 three times, at the worst moments, and is "
        "started again."
    )
    terminal.write_line()


def main(
    out: TextIO, *, seed: str | None = None, fast: bool = False, keep: bool = False, plain: bool = False,
    careless: bool = False,
) -> int:  # fmt: skip
    """Run the demo; return its exit code."""
    plan = make_plan(seed or draw_seed(), FAST_PACE if fast else NORMAL_PACE, careless=careless)
    terminal = LiveTerminal(out, len(plan.orders) + 10, plain=plain)
    return run_in_folder(terminal, lambda folder: run_demo(plan, terminal, folder, keep=keep), keep=keep)
