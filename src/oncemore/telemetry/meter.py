"""Measure the CPU time and the energy of attempts.

A plain attempt is measured by the CPU clock of its thread; an async one by the same clock around each of its
turns in the event loop, so that other tasks do not count; a child process or program by what the kernel
counted for it. CPU time of an inner step in the same thread belongs to the inner step alone: otherwise a sum
over all runs would count it twice.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

from oncemore._platform import get_thread_clock
from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.telemetry.energy import (
    CPU_TIME,
    DEFAULT_MODEL,
    JOULES_PER_KWH,
    OFF,
    RAPL,
    REPORTED,
    EnergyModel,
    estimate_energy,
    share_of_machine,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.engine import Engine
    from oncemore.telemetry.signal_board import SignalBoard
    from oncemore.telemetry.signal_sources import SignalSource

#: The first fields of /proc/stat after "cpu" that are idle time: idle and iowait.
_IDLE_FIELDS = (3, 4)
_MICROJOULES_PER_KWH = JOULES_PER_KWH * 1e6


class ReportedUsage:
    """Usage of an attempt beyond the CPU time of its thread.

    kwh            energy that the work has reported itself, such as that of a remote service
    network_bytes  transferred bytes that the work has reported, and cpu_s CPU seconds
    memory_gb      largest memory of a program, as the kernel tells it
    machine        counters of the processor at the start of the attempt
    """

    __slots__ = ("cpu_s", "kwh", "machine", "memory_gb", "network_bytes")

    def __init__(self) -> None:
        self.kwh = self.network_bytes = self.cpu_s = self.memory_gb = 0.0
        self.machine: tuple[Any, float] | None = None


def extend_usage(attempt: RunningAttempt) -> ReportedUsage:
    """Return the usage beyond CPU time, made at first use: most attempts have none."""
    if attempt.reported is None:
        attempt.reported = ReportedUsage()
    return attempt.reported


def add_reported(attempt: RunningAttempt, **amounts: Any) -> None:
    """Add usage that the work reports itself: kwh, network_bytes, cpu_s."""
    for name, value in amounts.items():
        # NaN and infinity would spoil every sum that the figure becomes a part of.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
            shown = {"kwh": "energy_kwh"}.get(name, name)
            raise UsageError(f"{attempt.step}: {shown} is {value!r}; it takes a number of 0 or more")
    reported = extend_usage(attempt)
    for name, value in amounts.items():
        setattr(reported, name, getattr(reported, name) + value)


# CPU time -------------------------------------------------------------------------------------------
#
# A *turn* is a time in which a thread works for an attempt and nothing else: a plain attempt is one turn, an
# async one has a turn between every two waits. While a turn lasts, `active_thread` is its thread.


def start_turn(attempt: RunningAttempt) -> None:
    """Start to count the CPU time of this thread for an attempt."""
    attempt.active_thread, attempt.cpu_start = get_ident(), time.thread_time()


def end_turn(attempt: RunningAttempt) -> None:
    """Add the CPU time since `start_turn` to an attempt, without that of inner steps in the same thread."""
    spent = time.thread_time() - attempt.cpu_start
    attempt.cpu_s += spent
    parent = attempt.parent
    # A turn inside a turn of the outer attempt: the outer thread's clock counts it too.
    if parent is not None and parent.active_thread == attempt.active_thread:
        parent.cpu_s -= spent
    attempt.active_thread = 0


def measure_call(attempt: RunningAttempt, work: Callable[[], Any]) -> Callable[[], Any]:
    """Return work that counts for an attempt in any thread."""

    def measured() -> Any:
        attempt.cpu_clock = get_thread_clock()
        start_turn(attempt)
        try:
            return work()
        finally:
            end_turn(attempt)

    return measured


class MeasuredAwaitable:
    """Awaits work and counts the CPU time of its turns in the event loop."""

    __slots__ = ("_attempt", "_work")

    def __init__(self, attempt: RunningAttempt, work: Awaitable[Any]) -> None:
        self._attempt, self._work = attempt, work

    def __await__(self) -> Generator[Any, Any, Any]:
        work: Any = self._work
        # A coroutine is its own iterator; other awaitables make one.
        turns = work if hasattr(work, "send") else work.__await__()
        if not hasattr(turns, "send"):
            return (yield from turns)
        attempt, value = self._attempt, None
        error: BaseException | None = None
        while True:
            start_turn(attempt)
            try:
                request = turns.send(value) if error is None else turns.throw(error)
            except StopIteration as stop:
                return stop.value
            finally:
                end_turn(attempt)
            value = error = None
            try:
                value = yield request
            except GeneratorExit:
                turns.close()
                raise
            except BaseException as raised:  # noqa: BLE001 - thrown into the work in its next turn
                error = raised


def read_cpu(attempt: RunningAttempt) -> float:
    """Return the CPU time of an attempt that has ended, or was left running by its time limit."""
    if attempt.active_thread == get_ident():
        end_turn(attempt)
    elif attempt.active_thread:
        try:
            running = time.clock_gettime(attempt.cpu_clock) - attempt.cpu_start
        except (OSError, AttributeError):  # the thread has ended since, or has no clock of its own
            running = 0.0
        return attempt.cpu_s + running
    return max(0.0, attempt.cpu_s)


class EnergyMeter:
    """Measures the attempts of an engine; `usage` of an attempt is stored with its outcome."""

    def __init__(self, model: EnergyModel, signals: SignalBoard | None = None) -> None:
        self.model, self.signals = model, signals
        self.counters = RaplCounters(Path(model.rapl_path)) if model.method == RAPL else None

    def build_usage(self, attempt: RunningAttempt, read_clock: Callable[[], float]) -> dict[str, Any]:
        """Return the usage of an attempt that has ended, in its stored form; absent values are left out."""
        model, cpu_s = self.model, read_cpu(attempt)
        if attempt.reported is not None:
            cpu_s += attempt.reported.cpu_s
        # The usual case stores the two factors: the energy follows from them when the entry is read.
        # To the microsecond, at a tenth of the cost of `round(…, 6)`.
        usage: dict[str, Any] = {"cpu_s": round(cpu_s * 1e6) / 1e6, "watts": model.core_watts}
        if attempt.reported is not None or model.memory_gb:
            del usage["watts"]
            energy, usage["method"] = self._estimate_all(attempt, cpu_s, read_clock(), usage)
            # Six digits: more would be noise, and take room in every entry.
            usage["kwh"] = float(f"{energy:.6g}")
        if self.signals is not None:
            self.signals.add_usage(usage, read_clock())
        return usage

    def _estimate_all(
        self, attempt: RunningAttempt, cpu_s: float, now: float, usage: dict[str, Any]
    ) -> tuple[float, str]:
        """Return energy and method of an attempt that used more than the CPU time of its own thread."""
        model, method, reported = self.model, CPU_TIME, attempt.reported or ReportedUsage()
        energy = estimate_energy(
            model,
            cpu_s=cpu_s,
            duration_s=now - attempt.head.record.started_at,
            memory_gb=reported.memory_gb or model.memory_gb,
            network_bytes=reported.network_bytes,
        )
        if reported.machine is not None and self.counters is not None:
            counted = self.counters.measure_since(reported.machine)
            if counted is not None:
                # The counters of a package include its memory; the network is elsewhere.
                method, energy = RAPL, share_of_machine(counted[0], cpu_s, counted[1])
                energy += estimate_energy(model, cpu_s=0.0, network_bytes=reported.network_bytes)
        if reported.memory_gb:
            usage["memory_gb"] = round(reported.memory_gb, 4)
        if reported.network_bytes:
            usage["network_bytes"] = int(reported.network_bytes)
        if reported.kwh:
            energy, method = energy + reported.kwh, f"{method}+{REPORTED}"
        return energy, method


class TelemetrySettings(Value):
    """The telemetry of an engine: how energy is measured, and the sources of signals."""

    energy: EnergyModel = DEFAULT_MODEL
    signals: tuple[SignalSource, ...] = ()


DEFAULT_SETTINGS = TelemetrySettings()


def make_telemetry(
    settings: TelemetrySettings, engine: Engine
) -> tuple[SignalBoard | None, EnergyMeter | None]:
    """Return the signals of an engine, None without a source; and its meter, None if measuring is off."""
    board = None
    if settings.signals:
        # Most engines have none: fetching is imported at first use.
        from oncemore.telemetry.signal_board import SignalBoard

        board = SignalBoard(settings.signals, engine)
    return board, None if settings.energy.method == OFF else EnergyMeter(settings.energy, board)


def start_measuring(engine: Engine, attempt: RunningAttempt) -> None:
    """Start to measure an attempt in this thread, and to fetch the signals that its outcome may need."""
    meter = engine.meter
    if meter is not None and meter.counters is not None:
        extend_usage(attempt).machine = meter.counters.read()
    if engine.signals is not None:
        engine.signals.start_fetch(engine.now())
    start_turn(attempt)


def build_usage(engine: Engine, attempt: RunningAttempt) -> dict[str, Any] | None:
    """Return the usage of an attempt that has ended; None if it never began, or if measuring is off."""
    if engine.meter is None or not attempt.begun:
        return None
    return engine.meter.build_usage(attempt, engine.now)


# Counters of the processor --------------------------------------------------------------------------


class RaplCounters:
    """The energy counters of the processor packages in `/sys/class/powercap`, and the machine's busy time.

    The counters are of the whole machine, so an attempt gets its share by CPU time. They are absent in most
    virtual machines, and readable by root only on most kernels: then attempts are estimated from CPU time.
    """

    def __init__(self, folder: Path, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        # Only whole packages: `intel-rapl:0:0` is a part of one, `intel-rapl-mmio:0` the same one again.
        self._domains = [
            (path / "energy_uj", _read_number(path / "max_energy_range_uj") or 0.0)
            for path in sorted(folder.glob("intel-rapl:*"))
            if path.name.count(":") == 1
        ]
        self._ticks = os.sysconf("SC_CLK_TCK")

    def read(self) -> tuple[Any, float] | None:
        """Return the counters in microjoules and the busy seconds of all cores; None if not readable."""
        values = [_read_number(path) for path, _ in self._domains]
        busy = self._read_busy()
        if not values or None in values or busy is None:
            return None
        return tuple(values), busy

    def measure_since(self, start: tuple[Any, float]) -> tuple[float, float] | None:
        """Return kWh and busy seconds of the machine since an earlier reading; None if not readable."""
        end = self.read()
        if end is None:
            return None
        joules = 0.0
        for before, after, (_, largest) in zip(start[0], end[0], self._domains, strict=True):
            # The counter starts again at 0 after its largest value.
            joules += after - before if after >= before else after - before + largest
        return joules / _MICROJOULES_PER_KWH, end[1] - start[1]

    def _read_busy(self) -> float | None:
        try:
            with self._stat.open() as file:
                fields = [int(field) for field in file.readline().split()[1:]]
        except (OSError, ValueError):
            return None
        # Guest time is a part of user time already; the first eight fields are all time.
        idle = sum(fields[position] for position in _IDLE_FIELDS)
        return (sum(fields[:8]) - idle) / self._ticks


def _read_number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


# Child processes ------------------------------------------------------------------------------------

#: Fields of /proc/PID/stat after the name: CPU ticks of the process, and of its children that it waited for.
_CPU_FIELDS = slice(11, 15)


def read_ended_child(pid: int) -> float | None:
    """Return the CPU seconds of a child that has ended and was not waited for; None if not known.

    Waits for its end, which must be near.
    """
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        text = Path(f"/proc/{pid}/stat").read_text()
        ticks = [int(field) for field in text.rpartition(")")[2].split()[_CPU_FIELDS]]
    except (OSError, ValueError, AttributeError):
        return None
    return sum(ticks) / os.sysconf("SC_CLK_TCK")
