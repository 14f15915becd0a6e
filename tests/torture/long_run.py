"""Kill workers on one store for as long as you say, and print what became of their work.

    python -m tests.torture.long_run --store sqlite --minutes 60
    python -m tests.torture.long_run --store nats --work fleet --minutes 60

`calls` (the default): four processes call steps in their own program, and are killed at random moments.
`fleet`: runs are submitted to a queue, and four worker processes are killed while they execute them.
On NATS the server is killed too.

Each round has a store of its own. It ends with everything brought to its end, and with every rule of
`tests/storm/checker.py` checked against the log, the recorder of the effects and the acknowledgements. The
first violation ends the program with exit code 1, and keeps the folder of its round. The last line has the
sums of all rounds.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.servers import mariadb, nats, postgres
from tests.storm import fleet, storm
from tests.storm.checker import Report
from tests.storm.crew import Crew, Warm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KILLS_OF_CALLS = 250
KEYS_OF_FLEET = 500
#: Outside SQLite a dead worker is known by its lease alone, so that leases are short.
LEASE_S = {"sqlite": 60.0, "postgresql": 1.0, "mysql": 1.0, "nats": 1.0}
SECONDS_BETWEEN_SERVER_KILLS = 5.0


class Round(NamedTuple):
    """The outcome of one round."""

    kills: int
    server_kills: int
    settled: int
    report: Report
    complaints: str


class Server(NamedTuple):
    """Makes the address of a new store, and kills the server behind it if it can."""

    new_store: Callable[[str], str]
    kill: Callable[[], None] | None = None


@contextmanager
def run_server(store: str) -> Iterator[Server]:
    """Have the server of a store for as long as the block lasts; SQLite needs none."""
    if store == "sqlite":
        yield Server(lambda name: "")
    elif store == "postgresql":
        with postgres.running(max_connections="150") as url:
            yield Server(lambda name: fleet.create_database(url, name))
    elif store == "mysql":
        with mariadb.server(on_disk=True) as server:

            def new_database(name: str) -> str:
                mariadb.create_database(server.url, name)
                return f"{server.url}/{name}"

            yield Server(new_database)
    else:
        with nats.node() as node:

            def restart() -> None:
                node.kill()
                time.sleep(0.1)
                node.start().wait_ready()

            yield Server(lambda name: f"{node.url}/{name}", restart)


@contextmanager
def kill_server_at_times(kill: Callable[[], None] | None) -> Iterator[list[int]]:
    """Kill the server every few seconds while the block lasts; yield a list with the number of kills."""
    over, kills = threading.Event(), [0]

    def go_on() -> None:
        while kill is not None and not over.wait(SECONDS_BETWEEN_SERVER_KILLS):
            kill()
            kills[0] += 1

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()


def run_round(crew: Crew, work: str, server: Server, seed: str) -> Round:
    """Kill processes at work on one store, bring everything to its end, and check all rules."""
    settled = 0
    with kill_server_at_times(server.kill) as server_kills:
        if work == "calls":
            kills = KILLS_OF_CALLS
            orders = storm.rage(crew, kills, seed, longest_life_s=0.2)
        else:
            orders = fleet.submit_orders(crew, KEYS_OF_FLEET, seed)
            kills = fleet.kill_workers(crew, KEYS_OF_FLEET // 10, random.Random(seed))
    if work == "calls":
        storm.finish(crew, orders)
        settled = storm.settle(crew, orders)
        storm.finish(crew, orders)
    else:
        fleet.finish_runs(crew, total_timeout=600)
    report = storm.report(crew)
    if report.runs != len(orders):
        report.violations.append(f"{report.runs} runs in the log, {len(orders)} expected")
    return Round(kills, server_kills[0], settled, report, crew.complaints())


def print_sums(rounds: list[Round], title: str) -> None:
    """Print the sums of all rounds, one figure a line."""
    print(f"\n{title}: {len(rounds)} rounds")
    for name in ("kills", "server_kills", "settled"):
        print(f"  {name:14} {sum(getattr(each, name) for each in rounds):>12,}")
    for name in Report._fields[:-1]:
        print(f"  {name:14} {sum(getattr(each.report, name) for each in rounds):>12,}")
    print(f"  {'violations':14} {sum(len(each.report.violations) for each in rounds):>12,}", flush=True)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--store", choices=LEASE_S, required=True)
    options.add_argument("--work", choices=("calls", "fleet"), default="calls")
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--seed", default=f"{random.SystemRandom().getrandbits(32):08x}")
    asked = options.parse_args()
    print(f"--seed {asked.seed}", flush=True)
    began = time.monotonic()
    rounds: list[Round] = []
    with ExitStack() as stack:
        server = stack.enter_context(run_server(asked.store))
        while not rounds or time.monotonic() - began < asked.minutes * 60:
            folder = Path(tempfile.mkdtemp(prefix="long-"))
            warm = Warm()
            address = server.new_store(f"round{len(rounds)}")
            crew = Crew(warm, folder, address, LEASE_S[asked.store])
            done = run_round(crew, asked.work, server, f"{asked.seed}/{len(rounds)}")
            crew.close()
            warm.close()
            rounds.append(done)
            print(f"{time.monotonic() - began:6.0f} s  {done.kills} kills; {done.report}", flush=True)
            if done.report.violations or done.complaints:
                print(*done.report.violations[:20], done.complaints, f"kept: {folder}", sep="\n")
                return 1
            shutil.rmtree(folder)
    minutes = (time.monotonic() - began) / 60
    print_sums(rounds, f"{asked.work} on {asked.store}, {minutes:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
