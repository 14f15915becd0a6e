"""What `oncemore.retry` costs, beside its peers and beside code written by hand.

    python bench/retry.py            the tables, and a verdict for each goal of docs/design.md §9
    python bench/retry.py --quick    the same in a few seconds, too noisy to believe
    python bench/retry.py --json     the same for a machine

Method: `_measure.py`. The functions and how each library is told: `_peers.py`.
"""

from __future__ import annotations

import asyncio
import random
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import stamina
import tenacity
from _measure import (
    Effort,
    Goal,
    Group,
    Row,
    Spread,
    awaits,
    calls,
    command,
    compared,
    fresh,
    interleaved,
    number,
    ratios,
    spread,
)
from _peers import (
    ATTEMPTS,
    LIBRARIES,
    LIMIT,
    OURS,
    OURS_DRAWN,
    OURS_UNKNOWN,
    OURS_WITHIN,
    PACKAGES,
    UnknownError,
    loop,
    plain_try,
    succeeds,
    succeeds_async,
    succeeds_third,
    succeeds_third_async,
)

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.model import Failure
from oncemore.policy.policy import STANDARD, Policy
from oncemore.policy.tuning import Signals, Tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BENCH = Path(__file__).resolve().parent


class Scale(NamedTuple):
    """How much is measured."""

    calls: Effort
    imports: int
    tasks: int


FULL = Scale(Effort(rounds=101, batch_ns=4_000_000), imports=21, tasks=10_000)
QUICK = Scale(Effort(rounds=3, batch_ns=300_000), imports=1, tasks=100)


# Calls.


def first_success(effort: Effort) -> Group:
    peers = [OURS, OURS_WITHIN, *(peer for peer in LIBRARIES if peer.plain)]
    subjects = [
        calls("bare function", succeeds),
        calls(LIMIT, plain_try(succeeds)),
        *(calls(peer.name, peer.decorate(succeeds, 0.0)) for peer in peers),
    ]
    return compared("first success, sync", subjects, effort, LIMIT)


def first_success_async(effort: Effort) -> Group:
    with asyncio.Runner() as runner:
        subjects = [
            awaits("bare function", succeeds_async, runner),
            awaits(LIMIT, plain_try(succeeds_async), runner),
            *(
                awaits(peer.name, peer.decorate(succeeds_async, 0.0), runner)
                for peer in (OURS, OURS_WITHIN, *LIBRARIES)
            ),
        ]
        return compared("first success, async", subjects, effort, LIMIT)


def third_attempt(effort: Effort) -> Group:
    peers = [OURS, OURS_WITHIN, *(peer for peer in LIBRARIES if peer.plain)]
    subjects = [
        calls(LIMIT, loop(succeeds_third(), 0.0)),
        *(calls(peer.name, peer.decorate(succeeds_third(), 0.0)) for peer in peers),
        calls(OURS_UNKNOWN.name, OURS_UNKNOWN.decorate(succeeds_third(UnknownError), 0.0)),
    ]
    return compared("third attempt, sync", subjects, effort, LIMIT)


def third_attempt_async(effort: Effort) -> Group:
    with asyncio.Runner() as runner:
        unknown = OURS_UNKNOWN.decorate(succeeds_third_async(UnknownError), 0.0)
        subjects = [
            awaits(LIMIT, loop(succeeds_third_async(), 0.0), runner),
            *(
                awaits(peer.name, peer.decorate(succeeds_third_async(), 0.0), runner)
                for peer in (OURS, OURS_WITHIN, *LIBRARIES)
            ),
            awaits(OURS_UNKNOWN.name, unknown, runner),
        ]
        return compared("third attempt, async", subjects, effort, LIMIT)


# Blocks.


def by_hand(value: object) -> None:
    for left in range(ATTEMPTS - 1, -1, -1):
        try:
            succeeds(value)
            break
        except ConnectionError:
            if not left:
                raise


def ours_made_each_time(value: object) -> None:
    for attempt in oncemore.attempts(on=ConnectionError, attempts=ATTEMPTS):
        with attempt:
            succeeds(value)


def tenacity_made_each_time(value: object) -> None:
    for attempt in tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS), retry=tenacity.retry_if_exception_type(ConnectionError)
    ):
        with attempt:
            succeeds(value)


def stamina_made_each_time(value: object) -> None:
    for attempt in stamina.retry_context(
        on=ConnectionError, attempts=ATTEMPTS, timeout=None, wait_initial=0.0, wait_max=0.0, wait_jitter=0.0
    ):
        with attempt:
            succeeds(value)


def made_once(attempts: Any) -> Callable[[object], None]:
    """Return a block whose attempts were set up before."""

    def block(value: object) -> None:
        for attempt in attempts:
            with attempt:
                succeeds(value)

    return block


def blocks(effort: Effort) -> Group:
    ours = oncemore.attempts(on=ConnectionError, attempts=ATTEMPTS)
    theirs = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS), retry=tenacity.retry_if_exception_type(ConnectionError)
    )
    subjects = [
        calls(LIMIT, by_hand),
        calls(f"{OURS.name}, made once", made_once(ours)),
        calls(f"{OURS.name}, made each time", ours_made_each_time),
        calls("tenacity, made once", made_once(theirs)),
        calls("tenacity, made each time", tenacity_made_each_time),
        calls("stamina, made each time", stamina_made_each_time),
    ]
    return compared("with attempt, first success", subjects, effort, LIMIT)


# Imports.

FIRST_USE = "oncemore, first @retry"
IMPORTS = {
    "oncemore": "import oncemore",
    FIRST_USE: "import oncemore\n@oncemore.retry(on=ConnectionError)\ndef work(): pass\nwork()",
    "tenacity": "import tenacity",
    "stamina": "import stamina",
    "backoff": "import backoff",
    "hyx": "import hyx.retry",
    "google-api-core": "import google.api_core.retry",
}
_IMPORT = """
import json, sys, time
before = set(sys.modules)
begin = time.process_time_ns()
exec(sys.argv[1])
cost = time.process_time_ns() - begin
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps([cost / 1e6, sorted(loaded - sys.stdlib_module_names)]))
"""


def imports(rounds: int) -> Group:
    """Measure each import in interpreters of its own, in turns; the start of the interpreter is not in it."""
    costs: dict[str, list[float]] = {name: [] for name in IMPORTS}
    foreign: list[str] = []
    for name in IMPORTS:  # once for nothing: compiles, and brings the files into memory
        foreign += fresh("-I", "-c", _IMPORT, IMPORTS[name])[1] if name.startswith("oncemore") else []
    for _ in range(rounds):
        for name in random.sample(list(IMPORTS), len(IMPORTS)):
            costs[name].append(fresh("-I", "-c", _IMPORT, IMPORTS[name])[0])
    against = ratios(costs, "tenacity")
    rows = [Row(name, spread(own), against[name]) for name, own in costs.items()]
    brought = ", ".join(sorted(set(foreign) - {"oncemore"})) or "none"
    return Group("import", "ms CPU", "tenacity", rows, f"third-party modules that ours loads: {brought}")


# Decisions.

PROVED = "decide and proof"

KFM_LOOP = Policy(
    "kfm-loop", max_attempts=6, schedule=Schedule("exponential", 10.0, 2.0, "attempt"),
    jitter=Jitter("additive", 10.0), max_delay_s=900.0, timeout_s=3600.0,
)  # fmt: skip
TUNED = KFM_LOOP.replace(name="kfm-loop, tuned", tuning=Tuning())
SIGNALS = Signals(grid_intensity=400.0, energy_price=0.31, queue_depth=12.0, parallelism=4.0)


def situations(policy: Policy) -> Iterator[Situation]:
    """Return situations without end, each with a seed of its own until they repeat after a while."""
    failure = Failure("transient", "maybe", None, "HTTP_503", "http:503")
    signals = None if policy.tuning is None else SIGNALS
    started = 1_800_000_000.0
    return cycle(
        Situation(
            1 + at % (policy.max_attempts - 1), failure, "RETRYABLE", started + at, f"{at:064x}", started,
            started + 86_400.0, 30.0, None, None, "", signals,
        )
        for at in range(1000)
    )  # fmt: skip


def decisions(effort: Effort) -> Group:
    subjects = [calls(LIMIT, plain_try(succeeds))]  # says how quick the machine is just now
    for policy in (STANDARD, KFM_LOOP, TUNED):
        at = situations(policy)
        subjects += [
            calls(f"decide, {policy.name}", lambda at, policy=policy: decide_retry(policy, next(at)), at),
            calls(
                f"{PROVED}, {policy.name}",
                lambda at, policy=policy: decide_retry(policy, next(at)).proof_bytes(),
                at,
            ),
        ]
    costs = interleaved(subjects, effort)
    against = ratios(costs, LIMIT)
    rows = [Row(name, spread([1e9 / cost for cost in own]), against[name]) for name, own in costs.items()]
    return Group("decisions", "per second of CPU", f"a call, {LIMIT}", rows)


# Memory.

WAITING = ("asyncio.sleep", LIMIT, OURS.name, OURS_DRAWN.name, *(peer.name for peer in LIBRARIES))


def waiting(tasks: int) -> Group:
    """Measure the memory of calls that wait, each library in an interpreter of its own."""
    script = str(BENCH / "_waiting.py")
    held = {name: fresh(script, name, str(tasks), "traced") for name in WAITING}
    grown = {name: fresh(script, name, str(tasks), "resident") for name in WAITING}
    rows = [Row(name, spread([held[name]]), spread([held[name] / held[LIMIT]])) for name in WAITING]
    note = "growth of the process: " + ", ".join(f"{name} {number(size)}" for name, size in grown.items())
    return Group(f"{tasks:,} async calls that wait", "bytes each", LIMIT, rows, note)


# The whole.


def measured(scale: Scale) -> Iterator[Group]:
    yield first_success(scale.calls)
    yield first_success_async(scale.calls)
    yield third_attempt(scale.calls)
    yield third_attempt_async(scale.calls)
    yield blocks(scale.calls)
    yield imports(scale.imports)
    yield decisions(scale.calls)
    yield waiting(scale.tasks)


def goals(groups: list[Group]) -> list[Goal]:
    """Hold what was measured against docs/design.md §9."""
    ok, ok_async, third, third_async, _, imported, decided, parked = groups
    ours = OURS.name

    def ratio(group: Group, subject: str = ours) -> Spread:
        return group.of(subject).ratio

    def rate(kind: str, *policies: Policy) -> Spread:
        return min(decided.of(f"{kind}, {policy.name}").cost for policy in policies)

    largest = max(parked.of(name).cost for name in (ours, OURS_DRAWN.name))
    return [
        Goal("1", "first success, sync", ratio(ok), 1.5, 1.2),
        Goal("1", "first success, async", ratio(ok_async), 1.5, 1.2),
        Goal("2", "third attempt, sync", ratio(third), 10, 5),
        Goal("2", "third attempt, async", ratio(third_async), 5, 2.5),
        Goal("3", "import oncemore ÷ tenacity", ratio(imported), 1, 0.5),
        Goal("3", "… and the first use of retry", ratio(imported, FIRST_USE), 1, 0.5),
        Goal("4", "decide", rate("decide", STANDARD, KFM_LOOP), 100_000, None, "/s", most=False),
        Goal("4", "… with tuning", rate("decide", TUNED), 100_000, None, "/s", most=False),
        Goal("4", "decide and proof", rate(PROVED, STANDARD, KFM_LOOP), 20_000, None, "/s", most=False),
        Goal("4", "… with tuning", rate(PROVED, TUNED), 20_000, None, "/s", most=False),
        Goal("last", "an async retry that waits", largest, 3000, None, " B"),
    ]


if __name__ == "__main__":
    command(__doc__, PACKAGES, lambda told: measured(QUICK if told.quick else FULL), goals)
