"""A process that runs pure work again, behind a guard: `python -m oncemore.maintenance.sandbox_process`.

It is told in its first line where its folder is and which modules to import, then gets one job a line and
answers each with one line. Steps of any other effect are never run, not even from inside of pure ones: their
claims are refused, which come before their first line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import redirect_stdout
from inspect import iscoroutine
from pathlib import Path

from oncemore.artifacts.backends import Folder
from oncemore.errors import Error, UsageError
from oncemore.log.entry_codec import body_of, head_of, header_of
from oncemore.log.memory import MemoryStore
from oncemore.log.tagged_json import untag
from oncemore.maintenance.sandbox import Guard
from oncemore.queries.modules import steps_of
from oncemore.steps.context import context
from oncemore.steps.engine import Engine
from oncemore.testing import instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.log.memory import Settled
    from oncemore.log.store import Batch
    from oncemore.steps.decorator import Step


class OnlyPure(MemoryStore):
    """A store that no other work than pure work can begin on."""

    def append(self, batch: Batch) -> Settled:
        """Store a batch, unless it begins something else."""
        for write in batch.writes:
            if write.by.kind == "run" and head_of(write.head).effect != "pure":
                raise UsageError(f"{write.by.step} is not pure; a replay never runs it")
        return super().append(batch)


def main() -> None:
    """Serve until nobody asks any more."""
    told = json.loads(sys.stdin.readline())
    sys.dont_write_bytecode = True
    sys.path[:] = told["path"]
    folder = Path(told["folder"])
    os.environ["TMPDIR"] = str(folder)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with redirect_stdout(sys.stderr):  # what work prints is no answer
        try:
            steps = steps_of(told["modules"])
        except UsageError as error:
            _say(answers, {"fault": str(error)})
            return
        _warm_up(folder)
        guard = Guard(folder)
        guard.begin()
        _say(answers, {"steps": sorted(steps), "kernel": guard.kernel})
        for line in sys.stdin:
            job = json.loads(line)
            guard.refused.clear()
            answer = _answer(steps[job["step"]], job, folder)
            if guard.refused:
                answer = {"fault": f"it tried to change the world: {guard.refused[0]}"}
            _say(answers, answer)


def _warm_up(folder: Path) -> None:
    """Load what work needs while loading may still do what it likes."""
    from oncemore.steps.decorator import step

    @step(effect="pure", name="oncemore.scratch")
    def nothing() -> int:
        return 0

    with Engine(OnlyPure, "memory:", place=lambda: Folder(folder / "artifacts")) as engine:
        nothing.on(engine)()


def _say(answers: Any, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def _answer(step: Step[..., Any], job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run one job on an engine of its own; return what it left, or why it left nothing."""
    try:
        arguments = {name: untag(value) for name, value in job["arguments"].items()}
        engine = Engine(OnlyPure, "memory:", place=lambda: Folder(folder / "artifacts"))
        with engine, instant(), context(tenant=job["tenant"] or None, correlation_id=job["correlation_id"]):
            work = step.on(engine)
            if work.key(**arguments) != job["key"]:
                return {"skipped": "its key is another one now: it depends on time, or the code has changed"}
            ran: Any = work.run(**arguments)
            if iscoroutine(ran):
                ran = asyncio.run(ran)
            if ran.state.cfg_hash != job["cfg_hash"]:
                return {"skipped": "its version or config is another one now"}
            return _left(engine, ran)
    except TypeError as error:
        return {"skipped": f"its arguments are not all on record: {error}"}
    except Error as error:
        return {"fault": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever it raises, it is an answer
        return {"fault": f"{type(error).__name__}: {error}"}


def _left(engine: Engine, run: Any) -> dict[str, Any]:
    if run.status != "COMPLETE":
        error = run.error or {}
        return {"fault": f"it ended as {run.status}: {error.get('type', '')}: {error.get('message', '')}"}
    for entry in engine.store.entries(f"run/{run.key}"):
        if "COMMIT" in header_of(entry.header).marks and entry.body is not None:
            return {"left": body_of(entry.body)}
    return {"fault": "it left no COMMIT"}


if __name__ == "__main__":
    main()
