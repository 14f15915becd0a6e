"""Run pure steps again in a restricted process: `python -m oncemore.maintenance.sandbox_process`.

The first line of standard input names the folder and the modules to import. Each following line is one job,
and each job is answered with one line. Steps with another effect are never run, not even when a pure step
calls them: the store refuses their claim, and a claim precedes the first line of a step's function.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import redirect_stdout
from inspect import iscoroutine
from pathlib import Path

from oncemore.artifacts.backends import FolderBackend
from oncemore.errors import Error, UsageError
from oncemore.governance.dataset_model import DatasetRecord, dataset_entity
from oncemore.log.entry_codec import build_write, decode_body, decode_head, decode_header
from oncemore.log.memory import MemoryStore
from oncemore.log.record import NOWHERE, RecordChange
from oncemore.log.store import Batch
from oncemore.maintenance.sandbox import SandboxGuard
from oncemore.queries.step_commands import import_steps
from oncemore.steps.context import context
from oncemore.steps.decorator import decode_arguments
from oncemore.steps.engine import Engine
from oncemore.testing import instant_waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.log.memory import CompletedTicket
    from oncemore.steps.decorator import Step


class PureOnlyStore(MemoryStore):
    """An in-memory store that refuses the claims of steps that are not pure."""

    def append(self, batch: Batch) -> CompletedTicket:
        """Append a batch; raise `UsageError` if it claims a step that is not pure."""
        for write in batch.writes:
            if write.by.kind == "run" and decode_head(write.head).effect != "pure":
                raise UsageError(f"{write.by.step} is not pure; a replay never runs it")
        return super().append(batch)


def main() -> None:
    """Answer jobs until standard input ends."""
    setup = json.loads(sys.stdin.readline())
    sys.dont_write_bytecode = True
    sys.path[:] = setup["path"]
    folder = Path(setup["folder"])
    os.environ["TMPDIR"] = str(folder)
    # Answers go to a copy of standard output, because steps may print to the original one.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with redirect_stdout(sys.stderr):
        try:
            steps = import_steps(setup["modules"])
        except UsageError as error:
            _write_answer(answers, {"fault": str(error)})
            return
        _warm_up(folder)
        guard = SandboxGuard(folder)
        guard.activate_guard()
        _write_answer(answers, {"steps": sorted(steps), "kernel": guard.has_landlock})
        for line in sys.stdin:
            job = json.loads(line)
            guard.refused.clear()
            answer = _run_job(steps[job["step"]], job, folder)
            # A step may catch the PermissionError and return a value; the refusal still counts.
            if guard.refused:
                answer = {"fault": f"it tried to act outside of the sandbox: {guard.refused[0]}"}
            _write_answer(answers, answer)


def _warm_up(folder: Path) -> None:
    """Run one step, so that all modules that steps need are loaded before the process is restricted."""
    from oncemore.steps.decorator import step

    @step(effect="pure", name="oncemore.scratch")
    def do_nothing() -> int:
        return 0

    with Engine(PureOnlyStore, "memory:", place=lambda: FolderBackend(folder / "artifacts")) as engine:
        do_nothing.bind(engine)()


def _write_answer(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _run_job(step: Step[..., Any], job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run one job on a new engine; return the body of its COMMIT, or the reason why it has none."""
    try:
        arguments = decode_arguments(step, job["arguments"])
        # A new in-memory log for every job: an earlier result must not answer a later call.
        engine = Engine(PureOnlyStore, "memory:", place=lambda: FolderBackend(folder / "artifacts"))
        with (
            engine,
            instant_waits(),
            context(tenant=job["tenant"] or None, correlation_id=job["correlation_id"]),
        ):
            # The gate of this engine judges by the datasets of the log that is replayed (GOV-3).
            _register_datasets(engine, job["datasets"])
            work = step.bind(engine)
            # A different key means different work: its result must not be compared with the recorded one.
            if work.key(**arguments) != job["key"]:
                return {"skipped": "its key has changed: it depends on time, or the code was changed"}
            run: Any = work.run(**arguments)
            if iscoroutine(run):
                run = asyncio.run(run)
            if run.state.cfg_hash != job["cfg_hash"]:
                return {"skipped": "its version or config has changed"}
            return _read_result(engine, run)
    except TypeError as error:
        return {"skipped": f"some of its arguments are not recorded: {error}"}
    except Error as error:
        return {"fault": str(error)}
    except Exception as error:  # noqa: BLE001 - user code may raise anything, and the process must survive
        return {"fault": f"{type(error).__name__}: {error}"}


def _register_datasets(engine: Engine, datasets: list[dict[str, Any]]) -> None:
    """Write datasets to a new log."""
    for fields in datasets:
        record = DatasetRecord(**fields)
        change = RecordChange(("DATASET",), None, record)
        write = build_write(dataset_entity(record.dataset_id), 0, NOWHERE, change, engine.now())
        engine.store.append(Batch((write,))).wait()


def _read_result(engine: Engine, run: Any) -> dict[str, Any]:
    if run.status != "COMPLETE":
        # A run that the gate has refused is held: its item has the error.
        error = run.error or next((item.error for item in engine.quarantine.list()), {})
        return {"fault": f"it ended as {run.status}: {error.get('type', '')}: {error.get('message', '')}"}
    for entry in engine.store.read_entries(f"run/{run.key}"):
        if "COMMIT" in decode_header(entry.header).marks and entry.body is not None:
            return {"left": decode_body(entry.body)}
    return {"fault": "it left no COMMIT"}


if __name__ == "__main__":
    main()
