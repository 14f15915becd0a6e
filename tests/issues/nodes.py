"""Nodes of a pipeline, for a process that dies: `python -m tests.issues.nodes LOG`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import oncemore
from oncemore.profiles.kfm.loop import retry_loop

INPUTS, CFG = {"rows": [1, 2, 3]}, {"partition": "date=2026-10", "unit": "kg"}


class Report:
    """A pure node, which kills its process in the first attempt where a file says so."""

    node_id = "monthly-report"

    def preflight_checkpoint(self, run: Any, key: str) -> Any:
        return run.resume({"half": sum(INPUTS["rows"][:1])})

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        kills = Path("kill-me")
        if kills.exists() and oncemore.current().number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        drawn = oncemore.current().seeded.random()
        return {"total": sum(inputs["rows"]), "unit": cfg["unit"], "from": checkpoint, "drawn": drawn}


class Needs:
    """A node that a module cannot make by itself."""

    node_id = "needs-a-table"

    def __init__(self, table: str) -> None:
        self.table = table

    def preflight_checkpoint(self, run: Any, key: str) -> Any:
        return None

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        return self.table


class Later:
    """An async node."""

    name = "deferred"

    async def preflight_checkpoint(self, run: Any, key: str) -> Any:
        return {"at": 1}

    async def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        return [inputs, cfg, checkpoint]


table = Needs("stars")

if __name__ == "__main__":
    with oncemore.open(sys.argv[1]):
        print(retry_loop(Report(), INPUTS, CFG), flush=True)
