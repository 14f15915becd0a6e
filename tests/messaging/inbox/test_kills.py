"""Real consumers on a real server, killed with SIGKILL around COMMIT and ack, or told to stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import oncemore
from oncemore.inbox import InboxStats, jetstream
from oncemore.log.store import HeadQuery
from oncemore.messaging.sources import jetstream as from_jetstream
from oncemore.steps.history import verify_chain
from oncemore.steps.run import Run
from tests.messaging.inbox.broker import left, published
from tests.messaging.inbox.victim import STEP
from tests.servers import nats

ROOT = Path(__file__).resolve().parents[3]


def victim(home: Path, url: str, when: str) -> subprocess.Popen[str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    quiet["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    command = [sys.executable, "-m", "tests.messaging.inbox.victim", str(home / "log.db"), url, when]
    return subprocess.Popen(command, cwd=home, env=quiet, stdout=subprocess.PIPE, text=True)


def test_a_consumer_killed_around_its_ack_gets_the_message_again_and_does_not_run_it_again(
    tmp_path: Path,
) -> None:
    with nats.running(jetstream=True) as (url, _):
        for when, booked, taken in (
            ("committed", 1, InboxStats(duplicate=1)),
            ("acked", 1, InboxStats()),
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
                from_jetstream.POLL_S = 0.2
                for _ in range(20):
                    inbox.drain()
                    if asyncio.run(left(url, "ORDERS")) == (0, 0):
                        break
                assert asyncio.run(left(url, "ORDERS")) == (0, 0), when
                assert inbox.stats._replace(deferred=0) == taken, when
                assert len(lines.read_text().splitlines()) == booked, when
                verify_chain(engine.store.read_entries())
                (run,) = [
                    Run(engine, head.entity) for head in engine.store.list_heads(HeadQuery("run", limit=9))
                ]
                assert run.status == "COMPLETE"


def _booking(lines: Path) -> Any:
    def book(order: str) -> str:
        with lines.open("a") as file:
            file.write(f"{order}\n")
        return order

    return book


MODULE = """
import oncemore

@oncemore.step(effect="idempotent")
def book(order: str) -> str:
    print(f"{order}\\n", end="", flush=True)  # one write: two threads print at once
    return order
"""


def test_the_command_processes_messages_until_sigterm_and_prints_the_stats(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    quiet = {
        name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE", "ONCEMORE"))
    }
    quiet["PYTHONPATH"] = str(ROOT / "src")
    with nats.running(jetstream=True) as (url, _):
        messages = [("orders.new", body, {}) for body in (b'{"order": "A-1"}', b"{", b'{"order": "A-2"}')]
        asyncio.run(published(url, "ORDERS", *messages))
        command = [sys.executable, "-m", "oncemore", "inbox", "shop:book", "--from", f"{url}/ORDERS/shop"]
        with subprocess.Popen(
            [*command, "--json"],
            cwd=tmp_path,
            env=quiet,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert sorted(process.stdout.readline() for _ in range(2)) == ["A-1\n", "A-2\n"]
            process.terminate()
            said, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
        assert "inbox for shop.book started on" in told
        assert {"done": 2, "dead": 1, "left": 0}.items() <= json.loads(said).items()
        assert asyncio.run(left(url, "ORDERS")) == (0, 0)
