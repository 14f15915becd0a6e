"""A run as the log has it: its state, its attempts, and the reasons of its decisions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from oncemore.clock import Clock
from oncemore.errors import KeyExpired, ResultUnavailable, UsageError
from oncemore.log import record
from oncemore.log.entry_codec import decode_head, read_body
from oncemore.log.result_codec import result_value
from oncemore.log.tagged_json import untag_value
from oncemore.steps.history import (
    AttemptView,
    collect_attempts,
    describe_state,
    explain_entries,
    export_records,
    fold_entries,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oncemore.artifacts.artifact import Artifact
    from oncemore.retries.options import Seconds
    from oncemore.steps.engine import Engine

R = TypeVar("R")
#: The longest wait before a run is read again, and the poll interval of a task.
RECHECK_S, POLL_S = 1.0, 0.02
_REAL_CLOCK = Clock()


class Run(Generic[R]):
    """One run of a key, as it was when this object was made.

    It can be pickled, as a part of an error from another process. The copy has the state of the run, and no
    access to the log.
    """

    def __init__(self, engine: Engine, entity: str, decode: Callable[[Any], Any] = result_value) -> None:
        self._optional_engine: Engine | None = engine
        self._entity, self._decode = entity, decode
        head = engine.store.load_head(entity)
        self.version = 0 if head is None else head.version
        self._state: record.RunRecord = (
            record.NEW[record.RunRecord] if head is None else decode_head(head.head)
        )

    def __getstate__(self) -> dict[str, Any]:
        # Neither an engine nor the decoder of a step, a closure, can be pickled.
        return {**vars(self), "_optional_engine": None, "_decode": result_value}

    @property
    def _engine(self) -> Engine:
        if self._optional_engine is None:
            raise UsageError(f"{self!r} came from another process without its log; use step.last_run(…)")
        return self._optional_engine

    def __repr__(self) -> str:
        return f"<oncemore.Run {self.step} {self.key[:12]} {describe_state(self)}>"

    @property
    def key(self) -> str:
        """The idempotency key."""
        return self._entity.removeprefix("run/")

    @property
    def state(self) -> record.RunRecord:
        """All fields of the run's record."""
        return self._state

    @property
    def status(self) -> str:
        """PENDING, RUNNING, SOFT_FAIL, HARD_FAIL or COMPLETE."""
        return self._state.state

    @property
    def step(self) -> str:
        """The name of the step."""
        return self._state.step

    @property
    def run_id(self) -> str:
        """The id of the run, a UUIDv7; a key may have several runs, one after the other."""
        return self._state.run_id

    @property
    def reason(self) -> str:
        """The reason of its status, as a stable code."""
        return self._state.reason

    @property
    def held_for(self) -> str:
        """The reason why it waits for an operator; empty if it does not."""
        return self._state.held_for

    @property
    def not_before(self) -> float:
        """The earliest time of the next attempt."""
        return self._state.not_before

    @property
    def correlation_id(self) -> str:
        """The correlation id of all records of this work."""
        return self._state.correlation_id

    @property
    def value(self) -> R:
        """The result of a COMPLETE run; raise `UsageError` for any other."""
        if self.status != "COMPLETE":
            raise UsageError(f"{self!r} has no value: it is not COMPLETE")
        body = self._read_body(self._state.commit_version)
        if "result_unavailable" in body:
            raise ResultUnavailable(body["result_unavailable"])
        if "spilled" in body:
            result = self._engine.artifacts.fetch_result(body["spilled"])
            if isinstance(result, Exception):
                raise ResultUnavailable(
                    f"{self!r} is done, but its value cannot be read: {result}"
                ) from result
            return self._decode(result)  # type: ignore[no-any-return]
        # Pruning deletes the body of the COMMIT and keeps its entry.
        if "result" not in body:
            raise KeyExpired(f"{self!r} is done, and its value was pruned")
        return self._decode(body["result"])  # type: ignore[no-any-return]

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts of a COMPLETE run, in order."""
        if self.status != "COMPLETE":
            return ()
        with self._engine.artifact_store.use_store():
            return tuple(
                untag_value(plain)
                for plain in self._read_body(self._state.commit_version).get("artifacts", ())
            )

    @property
    def error(self) -> dict[str, Any] | None:
        """The neutral record of the failure that ended it, or None."""
        return (
            self._read_body(self._state.failure_version).get("error") if self._state.failure_version else None
        )

    @property
    def attempts(self) -> tuple[AttemptView, ...]:
        """All attempts of this run, in order."""
        return tuple(collect_attempts(self._own_entries()))

    @property
    def proofs(self) -> tuple[dict[str, Any], ...]:
        """The proofs of all decisions of this run, in order."""
        bodies = (body for _, _, body in self._own_entries())
        return tuple(body["proof"] for body in bodies if "proof" in body)

    def explain(self) -> str:
        """Return the history of the run as text, one line for each attempt and decision."""
        return "\n".join(explain_entries(self, self._own_entries()))

    def records(self) -> list[dict[str, Any]]:
        """Return all records of the key, as the source documents have them (WAL-3)."""
        return list(export_records(self._engine.store.read_entries(self._entity), self._engine.cipher))

    def wait(self, timeout: float | None = None) -> Run[R]:
        """Block until the run has ended or is held, or until the timeout; return it as it is then.

        In async code, `await run` does the same without blocking; use the timeouts of the event loop.
        """
        positions = self._poll_positions(timeout)
        try:
            while True:
                self._engine.store.wait_for_change(*next(positions))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def signal(self, name: str, value: Any = None, *, signal_id: str | None = None) -> bool:
        """Send a signal to this run of a workflow, for its `oncemore.wait_for(name)`; the value is stored.

        The signal is recorded when this returns, also while the workflow runs, waits, or has not begun. A run
        that has ended refuses it. It blocks; in a coroutine, call it with `asyncio.to_thread`.

        signal_id  a name of this one signal: sent twice, it is recorded once, and False is returned, also
                   after the end of the run
        """
        from oncemore.workflows.signals import send_signal

        return send_signal(self._engine, self._entity, self.run_id, name, value, signal_id)

    def get_value(self, name: str, *, default: Any = None, timeout: Seconds | None = 0.0) -> Any:
        """Return the last value that the run has published with `oncemore.set_value(name, …)`.

        It blocks; in a coroutine, call it with `asyncio.to_thread`.

        timeout  how long to wait for it (not at all unless given); None: as long as the run is open. Without
                 a value by then, the default is returned
        """
        from oncemore.workflows.signals import read_value

        return read_value(self._engine, self._entity, name, default, timeout)

    def __await__(self) -> Generator[Any, Any, Run[R]]:
        return self._wait_async().__await__()

    async def _wait_async(self) -> Run[R]:
        positions = self._poll_positions(None)
        try:
            while True:
                position, seconds = next(positions)
                ends = time.monotonic() + seconds
                while (
                    self._engine.store.wait_for_change(position, 0.0) <= position and time.monotonic() < ends
                ):
                    # A store may have no notification that can be awaited: poll.
                    await _REAL_CLOCK.pause(POLL_S)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _poll_positions(self, timeout: float | None) -> Generator[tuple[int, float], None, Run[R]]:
        """Yield the log position at the last read, and how long to wait for the log to grow.

        In real time even under a test clock: another process works meanwhile.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            # The position first: a change between the two reads must end the wait at once.
            position = self._engine.store.wait_for_change(0, 0.0)
            run: Run[R] = Run(self._engine, self._entity, self._decode)
            left = RECHECK_S if ends is None else min(RECHECK_S, ends - time.monotonic())
            if run.status in ("COMPLETE", "HARD_FAIL") or run.held_for or left <= 0:
                return run
            yield position, left

    def _read_body(self, version: int) -> dict[str, Any]:
        for entry in self._engine.store.read_entries(self._entity, version - 1):
            return read_body(entry, self._engine.cipher)
        return {}

    def _own_entries(self) -> list[tuple[Any, record.RunRecord, dict[str, Any]]]:
        """Return header, record and body of the entries of this run, without the key's other runs."""
        # Folded from the key's first entry on: a header holds only the fields that changed.
        states = fold_entries(self._engine.store.read_entries(self._entity), self._engine.cipher)
        return [
            (header, state, body)
            for header, state, body in states
            if state.run_id == self.run_id and header.version <= self.version
        ]
