"""Compute pure runs again from their recorded arguments, and compare the results (`replay --verify`).

A separate process does the computing, restricted by `oncemore.maintenance.sandbox`: it may read, and writes
only into a temporary folder. Only `pure` steps of the named modules are run; all other runs are skipped.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import tempfile
import time

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.queries.entries import collect_digests
from oncemore.queries.replay import retry_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Any, Self

    from oncemore.governance.dataset_model import DatasetRecord
    from oncemore.queries.run_timeline import RunTimeline

EQUAL, DIFFERS, FAILED, SKIPPED = "equal", "differs", "failed", "skipped"
ATTEMPT_LIMIT_S = 300.0
#: The least time for the process to start and to import modules, which is not part of an attempt.
START_LIMIT_S = 60.0
MAX_ANSWER_BYTES = 64 << 20


class ComputationLost(Exception):
    """The process that computes a run has ended or took too long, so there is no result."""


class RecomputedRun(Value):
    """The result of computing a run again.

    verdict   equal, differs, failed (there is no new result), or skipped
    part      the first part that differs: the result, or an artifact
    events    the audit events of the attempts (REPLAY-7); empty for a skipped run
    """

    run_id: str
    verdict: str
    reason: str = ""
    part: str = ""
    recorded: Any = None
    computed: Any = None
    events: tuple[dict[str, Any], ...] = ()


class RecomputeProcess:
    """A restricted process that computes runs again; use it as a context manager."""

    def __init__(self, modules: Sequence[str], limit_s: float = ATTEMPT_LIMIT_S) -> None:
        self._modules, self._limit_s = tuple(modules), limit_s
        self._folder = tempfile.TemporaryDirectory(prefix="oncemore-replay-")
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self.steps: frozenset[str] = frozenset()
        self.has_kernel_guard = False

    def __enter__(self) -> Self:
        try:
            self._start_process()
        except BaseException:
            # `with` calls __exit__ only after a successful __enter__; the folder must not stay.
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_process()
        self._folder.cleanup()

    def _start_process(self) -> None:
        command = [sys.executable, "-B", "-m", "oncemore.maintenance.sandbox_process"]
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._unread = b""
        # The empty entry is the working directory, as in the interpreter of the command.
        path = ["", *(folder for folder in sys.path if folder)]
        try:
            setup = {"path": path, "folder": self._folder.name, "modules": self._modules}
            reply = self._send_request(setup, max(START_LIMIT_S, self._limit_s))
        except ComputationLost as error:
            reply = {"fault": str(error)}
        if "fault" in reply:
            self._kill_process()
            raise UsageError(reply["fault"])
        self.steps, self.has_kernel_guard = frozenset(reply["steps"]), reply["kernel"]

    def _kill_process(self) -> None:
        process, self._process = self._process, None
        # Killed, not terminated: user code in it may ignore signals.
        if process is not None:
            process.kill()
            process.communicate()

    def _send_request(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send one line and return the answer; raise `ComputationLost` if it does not come in time."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise ComputationLost("the process that computes it has ended") from None
        ends = time.monotonic() + limit_s
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not ready.select(max(0.0, ends - time.monotonic())):
                    raise ComputationLost(f"it took longer than {limit_s:g} s")
                # read1 returns the bytes that are there; read would wait for a full buffer.
                part = process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not part or len(self._unread) > MAX_ANSWER_BYTES:
                    raise ComputationLost("the process that computes it has ended")
                self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def verify_run(self, timeline: RunTimeline, datasets: Sequence[DatasetRecord] = ()) -> RecomputedRun:
        """Compute a run again, if it is pure and recorded completely, and compare the results.

        datasets  the registered datasets; a run of a blocked one is not computed again
        """
        run_id = timeline.row.run_id
        reason = _skip_reason(timeline, self.steps)
        if reason:
            return RecomputedRun(run_id, SKIPPED, reason)
        events: list[dict[str, Any]] = []
        try:
            # Only a lost process is tried again. An answer is final, even if it is a failure.
            reply = retry_part(
                "validation",
                "REPLAY_VALIDATION",
                lambda: self._compute_run(timeline, datasets),
                on=ComputationLost,
                events=events,
            )
        except ComputationLost as error:
            reply = {"fault": str(error)}
        if "left" in reply:
            return _compare_digests(timeline, reply["left"])._replace(events=tuple(events))
        if "skipped" in reply:
            return RecomputedRun(run_id, SKIPPED, reply["skipped"])
        return RecomputedRun(run_id, FAILED, reply["fault"], events=tuple(events))

    def _compute_run(self, timeline: RunTimeline, datasets: Sequence[DatasetRecord]) -> dict[str, Any]:
        """Compute a run in the process, and start a new process if the last one was lost."""
        if self._process is None:
            self._start_process()
        row, run = timeline.row, timeline.steps[-1].state
        request = {
            "step": row.step,
            "arguments": timeline.arguments,
            "key": row.key,
            "cfg_hash": run.cfg_hash,
            "tenant": run.tenant,
            "correlation_id": run.correlation_id,
            "datasets": [record._asdict() for record in datasets],
        }
        try:
            return self._send_request(request, self._limit_s)
        except ComputationLost:
            # A late answer would be taken for the answer to the next request.
            self._kill_process()
            raise


def _skip_reason(timeline: RunTimeline, steps: frozenset[str]) -> str:
    """Return the reason not to compute a run again; an empty text if there is none."""
    row = timeline.row
    if row.effect != "pure":
        return f"its effect is {row.effect}: only pure steps are run again"
    if row.state != "COMPLETE":
        return f"it is {row.state}: there is no result to compare with"
    if row.step not in steps:
        return f"no named module defines the step {row.step}"
    if not isinstance(timeline.arguments, dict):
        return "its arguments are no longer stored"
    return "" if timeline.result or timeline.given else "its result is no longer stored"


def _compare_digests(timeline: RunTimeline, body: dict[str, Any]) -> RecomputedRun:
    """Compare the digests in the recorded COMMIT with those in the body of the new one."""
    run_id = timeline.row.run_id
    recorded, computed = collect_digests(timeline.steps[-1].body), collect_digests(body)
    for part in recorded.keys() | computed.keys():
        if recorded.get(part) != computed.get(part):
            return RecomputedRun(
                run_id=run_id,
                verdict=DIFFERS,
                part=part,
                recorded=recorded.get(part),
                computed=computed.get(part),
            )
    return RecomputedRun(run_id, EQUAL)
