"""The signals of an engine: read at once from memory, fetched in the background.

A reading never waits for a network, a file or a program. A source whose value is due is fetched by a thread,
one per source at a time; until it answers, the last value counts, as long as it is not too old. Only the
first decision of a process may wait a moment for the first values (`wait_for_first`), which were requested
when its attempt began.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from oncemore.errors import log_warning
from oncemore.telemetry.signal_sources import fetch_document
from oncemore.telemetry.signal_values import (
    MISSING,
    NAMES,
    NOT_CONFIGURED,
    STORED_NAMES,
    SignalReading,
    read_series,
)

if TYPE_CHECKING:
    from oncemore.steps.engine import Engine
    from oncemore.telemetry.signal_shapes import SignalDocument
    from oncemore.telemetry.signal_sources import SignalSource

#: How long a decision waits for values that were never fetched before.
FIRST_WAIT_S = 2.0


class FetchedSignal:
    """The last document of a source, and the thread that fetches the next one."""

    def __init__(self, source: SignalSource, engine: Engine) -> None:
        self.source, self._engine = source, engine
        self._document: SignalDocument | None = None
        self._fault = ""
        self._fetched_at = float("-inf")
        self._lock, self._is_fetching = threading.Lock(), False
        self._answered = threading.Event()

    def start_fetch(self, now: float) -> None:
        """Fetch in a thread if the value is due, unless one is being fetched."""
        # The clock may have been set back: a value from the future is due as well.
        if 0 <= now - self._fetched_at < self.source.refresh_s:
            return
        with self._lock:
            if self._is_fetching:
                return
            self._is_fetching = True
        threading.Thread(target=self._fetch, name=f"oncemore-{self.source.name}", daemon=True).start()

    def _fetch(self) -> None:
        try:
            self._document, self._fault = fetch_document(self.source, self._engine), ""
        except Exception as error:  # noqa: BLE001 - a missing signal is neutral, whatever the reason
            fault = f"{type(error).__name__}: {error}"[:200]
            if not self._fault:
                log_warning(f"the signal {self.source.name} ({self.source.title}) cannot be read: {fault}")
            self._fault = fault
        finally:
            # A closed engine has no time any more.
            store = self._engine.opened_store
            self._fetched_at = self._engine.now() if store is not None else float("-inf")
            self._is_fetching = False
            self._answered.set()

    @property
    def has_answered(self) -> bool:
        """Whether the first fetch has ended."""
        return self._answered.is_set()

    def wait_for_first(self, ends: float) -> None:
        """Wait until the first fetch has ended, or until a time of the monotonic clock."""
        self._answered.wait(max(0.0, ends - time.monotonic()))

    def read(self, now: float) -> SignalReading:
        """Return the value at a time, from memory."""
        self.start_fetch(now)
        title, document = self.source.title, self._document
        if document is None:
            return SignalReading(source=title, reason=self._fault or "it has not been fetched yet")
        origin = f"{title} {document.origin}".strip()
        reading = read_series(document.series, now, origin, self.source.max_age_s)
        if reading.value is None and self._fault:
            return reading._replace(reason=f"{reading.reason}; {self._fault}")
        return reading


class SignalBoard:
    """All signals of an engine."""

    def __init__(self, sources: tuple[SignalSource, ...], engine: Engine) -> None:
        self.sources = sources
        self._engine = engine
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget all values: the threads that fetch them exist in the parent process only."""
        self._constants = {
            source.name: SignalReading(source.address, "constant")
            for source in self.sources
            if source.kind == "constant"
        }
        self._fetched = {
            source.name: FetchedSignal(source, self._engine)
            for source in self.sources
            if source.kind != "constant"
        }

    @property
    def has_all(self) -> bool:
        """Whether every source has been asked once: a reading with `waits` then does not wait."""
        return all(signal.has_answered for signal in self._fetched.values())

    def start_fetch(self, now: float) -> None:
        """Fetch the values that are due, in the background."""
        for signal in self._fetched.values():
            signal.start_fetch(now)

    def read(self, name: str, now: float) -> SignalReading:
        """Return a signal at a time; never waits."""
        constant = self._constants.get(name)
        if constant is not None:
            return constant
        fetched = self._fetched.get(name)
        return MISSING if fetched is None else fetched.read(now)

    def read_all(self, now: float, *, waits: bool = False) -> dict[str, SignalReading]:
        """Return all signals at a time.

        waits  whether to wait a moment for values that were never fetched before
        """
        if waits and self._fetched:
            ends = time.monotonic() + FIRST_WAIT_S
            self.start_fetch(now)
            for signal in self._fetched.values():
                signal.wait_for_first(ends)
        return {name: self.read(name, now) for name in NAMES}

    def add_usage(self, usage: dict[str, Any], now: float) -> None:
        """Add the signals that the usage of an attempt stores; a missing one with its reason."""
        unavailable = {}
        for name, (stored, field) in STORED_NAMES.items():
            reading = self.read(name, now)
            if reading.value is not None:
                usage[stored] = reading.value
            elif reading.reason != NOT_CONFIGURED:
                unavailable[field] = reading.reason
            if name == "grid_intensity" and reading.value is not None:
                usage["grid_source"] = reading.source
        if unavailable:
            usage["unavailable"] = unavailable
