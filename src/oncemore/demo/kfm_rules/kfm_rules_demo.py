"""`oncemore demo kfm-rules`: a STAC catalogue is polled under the KFM retry rules, scene by scene.

The STAC API is a real HTTP server, the store a real SQLite file in a temporary folder. The waits of the first
scene are real (three seconds); the longer ones of the other scenes are decided and stored as always, and end
at once, unless `--real-time` is given (ten minutes). The exit code is 1 if the log of the server or the state
of the engine differs from section 5.1 of the requirements.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import oncemore
from oncemore.demo.child_processes import run_in_folder
from oncemore.demo.kfm_rules.demo_output import DemoOutput
from oncemore.demo.kfm_rules.gate_scene import register_datasets
from oncemore.demo.kfm_rules.scenes import SCENES, KfmRulesDemo, read_time
from oncemore.demo.kfm_rules.stac_server import StacServer
from oncemore.demo.terminal import LiveTerminal, silence_logging
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TextIO

#: The grid of the demo, so that its record has a carbon figure.
GRID_G_PER_KWH = 420


def main(out: TextIO, *, plain: bool = False, keep: bool = False, real_time: bool = False) -> int:
    """Run all scenes; return 1 if a result is not the expected one."""
    terminal = LiveTerminal(out, plain=plain)
    waits = (
        "All waits are real."
        if real_time
        else "Waits are real at first; the minutes of the outage end at once."
    )
    terminal.write_paragraph(
        "A pipeline polls a STAC catalogue under the policy kfm-rules. The catalogue is a server on this "
        f"machine that misbehaves on request. {waits}"
    )

    def run(folder: Path) -> int:
        output = DemoOutput(terminal)
        _run_scenes(output, folder, real_time=real_time)
        return _write_result(output, folder if keep else None)

    return run_in_folder(terminal, run, keep=keep)


def _run_scenes(output: DemoOutput, folder: Path, *, real_time: bool) -> None:
    """Run the scenes on a new store and a new server, then write the counts of the server."""
    with ExitStack() as stack:
        stack.enter_context(silence_logging())
        server = stack.enter_context(StacServer(read_time))
        # The fake clock is left after the engine: its time must not go back while the engine works.
        clock_stack = stack.enter_context(ExitStack())
        signals = {"grid_intensity": GRID_G_PER_KWH}
        engine = stack.enter_context(oncemore.open(folder / "log.db", signals=signals))
        register_datasets(engine)
        demo = KfmRulesDemo(engine, server, output, folder)
        stack.enter_context(oncemore.on_event(demo.show_event))
        for number, (title, reason, play) in enumerate(SCENES):
            if number == 1 and not real_time:
                clock_stack.enter_context(FakeClock(wall=time.time()))
            output.write_heading(f"{number + 1}. {title}", reason)
            play(demo)
        output.write_counts(len(server.requests))


def _write_result(output: DemoOutput, folder: Path | None) -> int:
    """Write whether all scenes held; return the exit code."""
    terminal = output.terminal
    terminal.write_line()
    if folder is not None:
        terminal.write_line(f"The log and the ledgers:  {folder}")
        for command in ("escalations list", "quarantine list", "check records", "ledger verify"):
            terminal.write_line(f"  oncemore {command} --store {folder / 'log.db'}")
    if output.faults:
        terminal.write_paragraph(f"Unexpected: {'; '.join(output.faults)}.", "red")
        return 1
    terminal.write_paragraph("Every scene held, and the server's log agrees.", "bold")
    terminal.write_paragraph("What to try next:  docs/reference/kfm-rules.md")
    return 0
