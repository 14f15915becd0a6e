"""Replay with --verify: pure work computed again from its recorded arguments, and compared.

It is done in a process of its own behind a guard (`oncemore.maintenance.sandbox`): inputs are read-only,
nothing
leaves, what it writes goes into a folder that is thrown away. Only `pure` steps that a named module defines
are run; all others are skipped and counted.
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
from oncemore.queries.attempted import VALIDATION, NoAnswer, tried
from oncemore.queries.lineage import digests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Any, Self

    from oncemore.queries.run_timeline import Story

EQUAL, DIFFERS, FAILED, SKIPPED = "equal", "differs", "failed", "skipped"
LIMIT_S = 300.0
#: How long the process may take to start and to import; that is no fault of the work.
START_S = 60.0
MOST_ANSWER = 64 << 20


class Verified(Value):
    """What came of computing a run again.

    verdict   equal, differs, failed (it could not be computed to its end), or skipped
    what      which part differs first
    events    what the audit says of it (REPLAY-7), where it was computed at all
    """

    run_id: str
    verdict: str
    why: str = ""
    what: str = ""
    recorded: Any = None
    computed: Any = None
    events: tuple[dict[str, Any], ...] = ()


class Scratch:
    """A guarded process that computes runs again; it is started when it is first needed."""

    def __init__(self, modules: Sequence[str], limit_s: float = LIMIT_S) -> None:
        self._modules, self._limit_s = tuple(modules), limit_s
        self._folder = tempfile.TemporaryDirectory(prefix="oncemore-replay-")
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""
        self.steps: frozenset[str] = frozenset()
        self.kernel = False

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._folder.cleanup()

    def _begin(self) -> None:
        command = [sys.executable, "-B", "-m", "oncemore.maintenance.sandbox_process"]
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._read = b""
        path = ["", *(one for one in sys.path if one)]
        try:
            asked = {"path": path, "folder": self._folder.name, "modules": self._modules}
            told = self._ask(asked, max(START_S, self._limit_s))
        except NoAnswer as error:
            told = {"fault": str(error)}
        if "fault" in told:
            self._end()
            raise UsageError(told["fault"])
        self.steps, self.kernel = frozenset(told["steps"]), told["kernel"]

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, what: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Send one line and wait for one, for so long; a process that does not answer is ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(what).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise NoAnswer("the process that computes it has ended") from None
        ends = time.monotonic() + limit_s
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                if not ready.select(max(0.0, ends - time.monotonic())):
                    raise NoAnswer(f"it took longer than {limit_s:g} s")
                part = process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not part or len(self._read) > MOST_ANSWER:
                    raise NoAnswer("the process that computes it has ended")
                self._read += part
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def verify(self, story: Story) -> Verified:
        """Compute a run again, if that may be done, and compare what it leaves."""
        row = story.row
        why = _not_computed(story, self.steps)
        if why:
            return Verified(row.run_id, SKIPPED, why)
        events: list[dict[str, Any]] = []
        try:
            answer = tried(VALIDATION, lambda: self._computed(story), events)
        except NoAnswer as error:
            answer = {"fault": str(error)}
        if "left" in answer:
            return _compared(story, answer["left"])._replace(events=tuple(events))
        if "skipped" in answer:
            return Verified(row.run_id, SKIPPED, answer["skipped"])
        return Verified(row.run_id, FAILED, answer["fault"], events=tuple(events))

    def _computed(self, story: Story) -> dict[str, Any]:
        """Compute a run once more; after a process that did not answer, the next try has a new one."""
        if self._process is None:
            self._begin()
        row, run = story.row, story.steps[-1].state
        about = {"cfg_hash": run.cfg_hash, "tenant": run.tenant, "correlation_id": run.correlation_id}
        try:
            asked = {"step": row.step, "arguments": story.arguments, "key": row.key, **about}
            return self._ask(asked, self._limit_s)
        except NoAnswer:
            self._end()
            raise


def _not_computed(story: Story, steps: frozenset[str]) -> str:
    """Say why a run is not computed again, or nothing."""
    row = story.row
    if row.effect != "pure":
        return f"its effect is {row.effect}: only pure work is run again"
    if row.state != "COMPLETE":
        return f"it is {row.state}: there is no result to compare with"
    if row.step not in steps:
        return f"no module that was named has the step {row.step}"
    if not isinstance(story.arguments, dict):
        return "its arguments are not on record any more"
    return "" if story.result or story.given else "its result is not on record any more"


def _compared(story: Story, left: dict[str, Any]) -> Verified:
    run_id = story.row.run_id
    recorded, computed = digests(story.steps[-1].body), digests(left)
    for what in recorded.keys() | computed.keys():
        if recorded.get(what) != computed.get(what):
            return Verified(run_id, DIFFERS, "", what, recorded.get(what), computed.get(what))
    return Verified(run_id, EQUAL)
