"""Real consumers on a real server, killed with SIGKILL around COMMIT and ack; and one that is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import oncemore
from oncemore.engine.history import Run, verify
from oncemore.inbox import Taken, jetstream
from oncemore.store.base import Query
from tests.inbox.broker import left, published
from tests.inbox.victim import STEP
from tests.servers import nats

ROOT = Path(__file__).resolve().parents[2]


def victim(home: Path, url: str, when: str) -> subprocess.Popen[str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    quiet["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    command = [sys.executable, "-m", "tests.inbox.victim", str(home / "log.db"), url, when]
    return subprocess.Popen(command, cwd=home, env=quiet, stdout=subprocess.PIPE, text=True)


def test_a_consumer_killed_around_its_ack_gets_the_message_again_and_does_not_run_it_again(
    tmp_path: Path,
) -> None:
    with nats.running(jetstream=True) as (url, _):
        for when, booked, taken in (
            ("committed", 1, Taken(seen=1)),
            ("working", 2, Taken(done=1)),  # it may be repeated: it is idempotent, and says so
            ("acked", 1, Taken()),
        ):
            home = tmp_path / when
            home.mkdir()
            asyncio.run(published(url, "ORDERS", ("orders.new", b'{"order": "A-1"}', {})))
            with victim(home, url, when) as process:
                process.communicate(timeout=60)
            assert process.returncode == -signal.SIGKILL, when
            with oncemore.open(home / "log.db") as engine:
                lines = home / "booked"
                book: Any = oncemore.step(effect="idempotent", name=STEP)(_booking(lines))
                inbox = jetstream(book, url, stream="ORDERS", durable="shop")
                for _ in range(20):
                    inbox.drain()
                    if asyncio.run(left(url, "ORDERS")) == (0, 0):
                        break
                assert asyncio.run(left(url, "ORDERS")) == (0, 0), when
                assert inbox.taken._replace(later=0) == taken, when
                assert len(lines.read_text().splitlines()) == booked, when
                verify(engine.store.entries())
                (run,) = [Run(engine, head.entity) for head in engine.store.heads(Query("run", limit=9))]
                assert run.status == "COMPLETE"


def _booking(lines: Path) -> Any:
    def book(order: str) -> str:
        with lines.open("a") as file:
            file.write(f"{order}\n")
        return order

    return book


def test_sigterm_ends_a_consumer_after_what_is_under_way(tmp_path: Path) -> None:
    with nats.running(jetstream=True) as (url, _):
        asyncio.run(published(url, "ORDERS", ("orders.new", b'{"order": "A-1"}', {})))
        with victim(tmp_path, url, "never") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "booked\n"
            process.terminate()
            said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "'done': 1" in said
        assert asyncio.run(left(url, "ORDERS")) == (0, 0)
