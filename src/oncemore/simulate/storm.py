"""Simulate a retry storm: many clients want the same thing of one server at the same moment.

The model of *contention* is the one of the AWS Architecture Blog ("Exponential Backoff And Jitter", 2015):
every client reads the version of one row and writes the row back; the write succeeds if the version is still
the same, and the client is done. Otherwise it waits and begins again with the read. The network delays every
message by a normal distribution with a mean of 10 ms and a deviation of 2 ms; the backoff starts at 5 ms and
is capped at 2 s.

The model of *capacity* is a server that works on some requests at once and rejects all further ones.

Time is virtual: a heap of events, no clock. Random numbers come from a generator that the caller seeds, and
the delays from `policy.backoff`, the same code that calls use.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import cos, log, pi, sqrt

from oncemore._values import Value
from oncemore.policy.backoff import Jitter, Schedule, jittered_delay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal, Protocol

    StormModel = Literal["contention", "capacity"]

    class NumberSource(Protocol):
        """A seeded generator of numbers, such as `random.Random(7)`."""

        def random(self) -> float:
            """Return the next number, 0 <= x < 1."""

    #: (time, order of creation, handler, client, version)
    StormEvent = tuple[float, int, Callable[..., None], int, int]

MODELS = ("contention", "capacity")
#: A storm ends after this many calls even if clients are open: a strategy may never come to an end.
MAX_CALLS = 5_000_000


class StormStrategy(Value):
    """How clients wait after a failure; `schedule` None means that they do not wait at all."""

    name: str
    schedule: Schedule | None
    jitter: Jitter
    cap_s: float


class StormOptions(Value):
    """The server, the network and the default backoff of a storm.

    capacity   requests at once, in the model of capacity; further ones are rejected
    service_s  the time that the server works on a request, in the model of capacity
    """

    model: StormModel = "contention"
    network_s: float = 0.010
    deviation_s: float = 0.002
    base_s: float = 0.005
    cap_s: float = 2.0
    capacity: int = 10
    service_s: float = 0.020


class StormResult(Value):
    """One storm under one strategy.

    calls     writes or requests that reached the server
    failures  those that it rejected
    time_s    until the last client was done
    arrivals  the times of all calls, in order
    open      clients that were not done when the storm was ended
    """

    strategy: str
    clients: int
    calls: int
    failures: int
    time_s: float
    arrivals: tuple[float, ...]
    open: int = 0


def list_strategies(options: StormOptions) -> tuple[StormStrategy, ...]:
    """Return the five strategies of the published comparison: no backoff, no jitter, and three jitters."""
    # The published code doubles before the first wait: `base * 2 ** attempt`.
    schedule = Schedule("exponential", options.base_s, exponent="attempt")
    decorrelated = Schedule("exponential", options.base_s)
    return (
        StormStrategy("no backoff", None, Jitter("none"), options.cap_s),
        StormStrategy("no jitter", schedule, Jitter("none"), options.cap_s),
        StormStrategy("equal jitter", schedule, Jitter("equal"), options.cap_s),
        StormStrategy("full jitter", schedule, Jitter("full"), options.cap_s),
        StormStrategy("decorrelated jitter", decorrelated, Jitter("decorrelated"), options.cap_s),
    )


class _Storm:
    """The events of one storm."""

    def __init__(
        self, strategy: StormStrategy, options: StormOptions, seed: str, numbers: NumberSource
    ) -> None:
        self.strategy, self.options, self.seed = strategy, options, seed
        self.events: list[StormEvent] = []
        self.failures = self.done = self.version = self.busy = self._order = 0
        self.arrivals: list[float] = []
        self.waits: dict[int, int] = {}
        self.ended = 0.0
        self._random = numbers.random

    def add_event(self, at: float, handler: Callable[..., None], client: int, version: int = 0) -> None:
        # The order of creation decides between events of the same moment: handlers cannot be compared.
        self._order += 1
        heappush(self.events, (at, self._order, handler, client, version))

    def network_delay(self) -> float:
        """Return the time of one message: normally distributed, by the method of Box and Muller."""
        distance = sqrt(-2.0 * log(1.0 - self._random())) * cos(2.0 * pi * self._random())
        return abs(self.options.network_s + self.options.deviation_s * distance)

    def wait_seconds(self, client: int) -> float:
        """Return the wait of a client after its next failure."""
        attempt = self.waits[client] = self.waits.get(client, 0) + 1
        strategy = self.strategy
        if strategy.schedule is None:
            return 0.0
        # Every client has a seed of its own, as every run has.
        seed = f"{self.seed}/{client}"
        return jittered_delay(strategy.schedule, strategy.jitter, strategy.cap_s, seed, attempt)

    # Contention: read, then write; the write of an old version is rejected.

    def read_row(self, at: float, client: int, _: int) -> None:
        answer = at + self.network_delay()
        self.add_event(answer + self.network_delay(), self.write_row, client, self.version)

    def write_row(self, at: float, client: int, version: int) -> None:
        self.arrivals.append(at)
        if version == self.version:
            self.version += 1
            self.finish(at)
        else:
            self.reject(at, client, self.read_row)

    # Capacity: a request is accepted while a slot is free.

    def accept_request(self, at: float, client: int, _: int) -> None:
        self.arrivals.append(at)
        if self.busy < self.options.capacity:
            self.busy += 1
            self.add_event(at + self.options.service_s, self.free_slot, client)
        else:
            self.reject(at, client, self.accept_request)

    def free_slot(self, at: float, client: int, _: int) -> None:
        self.busy -= 1
        self.finish(at)

    # Both

    def finish(self, at: float) -> None:
        self.done += 1
        self.ended = max(self.ended, at + self.network_delay())

    def reject(self, at: float, client: int, again: Callable[..., None]) -> None:
        self.failures += 1
        answer = at + self.network_delay()
        self.add_event(answer + self.network_delay() + self.wait_seconds(client), again, client)


def run_storm(
    strategy: StormStrategy, clients: int, options: StormOptions, seed: str, numbers: NumberSource
) -> StormResult:
    """Return one storm: all clients start at time 0 and go on until they are done."""
    storm = _Storm(strategy, options, seed, numbers)
    first = storm.read_row if options.model == "contention" else storm.accept_request
    for client in range(clients):
        storm.add_event(storm.network_delay(), first, client)
    at = 0.0
    while storm.events and len(storm.arrivals) < MAX_CALLS:
        at, _, handler, client, version = heappop(storm.events)
        handler(at, client, version)
    return StormResult(
        strategy=strategy.name,
        clients=clients,
        calls=len(storm.arrivals),
        failures=storm.failures,
        time_s=max(storm.ended, at if storm.done < clients else 0.0),
        arrivals=tuple(storm.arrivals),
        open=clients - storm.done,
    )


class StormAverage(Value):
    """The average of several storms of one strategy with the same number of clients."""

    strategy: str
    clients: int
    calls: float
    failures: float
    time_s: float
    open: float


def average_storms(results: Sequence[StormResult]) -> StormAverage:
    """Return the average of storms of one strategy and one number of clients."""
    count, first = len(results), results[0]
    return StormAverage(
        strategy=first.strategy,
        clients=first.clients,
        calls=sum(result.calls for result in results) / count,
        failures=sum(result.failures for result in results) / count,
        time_s=sum(result.time_s for result in results) / count,
        open=sum(result.open for result in results) / count,
    )


def count_arrivals(result: StormResult, parts: int, until: float) -> tuple[tuple[float, float], ...]:
    """Return the calls per second over time, in equal parts of the time until `until`."""
    width = (until or 1.0) / parts
    counts = [0] * parts
    for at in result.arrivals:
        if at <= until:
            counts[min(int(at / width), parts - 1)] += 1
    return tuple((width * (number + 0.5), count / width) for number, count in enumerate(counts))
