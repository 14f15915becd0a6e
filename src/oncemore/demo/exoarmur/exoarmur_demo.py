"""`oncemore demo exoarmur`: an agent platform on a real cluster of three NATS servers.

The three servers have the log, the streams, the kill switch and the approvals on all of them. Hosts and a
second agent are processes of their own. The demo cuts connections at the worst moments, and kills the second
agent and the server that leads the log. All waits are those of the profile. Half a minute; the exit code is 1
if an effect was duplicated or lost, or a result was not the expected one.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from oncemore.demo.child_processes import draw_seed, run_in_folder
from oncemore.demo.exoarmur.agent_plan import make_plan
from oncemore.demo.exoarmur.agent_summary import print_summary
from oncemore.demo.exoarmur.scenes import ExoarmurScenes
from oncemore.demo.terminal import LiveTerminal, silence_logging
from oncemore.testing.nats import find_binary

if TYPE_CHECKING:
    from pathlib import Path
    from typing import TextIO

    from oncemore.demo.exoarmur.stream_counts import EffectReport

#: Time limit of all scenes together.
LIMIT_S = 75.0


def main(
    out: TextIO, *, seed: str | None = None, keep: bool = False, plain: bool = False, careless: bool = False
) -> int:
    """Run the demo; return its exit code."""
    find_binary()  # says how to install the server, before anything starts
    plan = make_plan(seed or draw_seed(), careless=careless)
    terminal = LiveTerminal(out, plain=plain)

    def run(folder: Path) -> int:
        with silence_logging(), ExitStack() as cleanup:
            return _run_demo(ExoarmurScenes(plan, folder, terminal, cleanup), keep=keep)

    return run_in_folder(terminal, run, keep=keep)


def _run_demo(demo: ExoarmurScenes, *, keep: bool) -> int:
    terminal = demo.terminal
    terminal.write_line(f"oncemore demo exoarmur: seed {demo.plan.seed}, in {demo.folder}", "bold")
    terminal.write_paragraph(
        "An agent acts on hosts, over a bus of three servers on this machine, under the 17 categories of the "
        "profile exoarmur. Servers, processes, cut connections, kills and waits are real."
    )

    async def play_bounded() -> EffectReport:
        async with asyncio.timeout(LIMIT_S):
            return await demo.play_scenes()

    began = time.monotonic()
    try:
        report = asyncio.run(play_bounded())
    except Exception as error:  # noqa: BLE001 - any failure of a scene ends the demo
        # Scenes run in task groups, one inside the other; the first error is the cause.
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        terminal.write_paragraph(f"The demo failed: {type(error).__name__}: {error}", "red")
        return 1
    return print_summary(demo, report, time.monotonic() - began, keep=keep)
