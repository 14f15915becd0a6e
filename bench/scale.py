"""What our appends and steps reach on servers, beside what a client alone reaches there.

    python bench/scale.py          the tables, and a verdict for each floor
    python bench/scale.py --quick  the same in a few seconds, too noisy to believe
    python bench/scale.py --json   the same for a machine

Each part starts a server of its own on the loopback address, with the settings that make it durable; a part
whose server is not there is left out and said to be. Method: `_measure.py`; a ratio is of rates: 1 is as
quick as the client alone, and both wait for the same disk in the same minute.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import _scale_mysql
import _scale_nats
import _scale_postgres
from _durable import has_dbos
from _measure import Effort, Goal, Group, command

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.servers import mariadb, nats, postgres

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


def on_postgres(effort: Effort) -> Iterator[Group]:
    """One server of PostgreSQL with its default settings, which sync at every commit."""
    with ExitStack() as opened:
        try:
            url = opened.enter_context(postgres.running(max_connections="200"))
        except postgres.NoPostgres as reason:
            print(f"PostgreSQL is left out: {reason}", file=sys.stderr)
            return
        yield from _scale_postgres.groups(url, effort, opened)


def on_mysql(effort: Effort) -> Iterator[Group]:
    """One server of MariaDB with its default settings, which sync at every commit; without a binary log."""
    with ExitStack() as opened:
        try:
            server = opened.enter_context(mariadb.server(on_disk=True))
        except mariadb.NoMariadb as reason:
            print(f"MySQL is left out: {reason}", file=sys.stderr)
            return
        yield from _scale_mysql.groups(server.url, effort, opened)


def on_nats(effort: Effort) -> Iterator[Group]:
    """One server of NATS JetStream that syncs before it acknowledges."""
    with ExitStack() as opened:
        try:
            node = opened.enter_context(nats.node())
        except nats.NatsUnavailable as reason:
            print(f"NATS is left out: {reason}", file=sys.stderr)
            return
        yield from _scale_nats.groups(node.url, effort, opened)


#: What is measured, server by server: the word that its tables begin with, and how it is judged.
PARTS = (
    ("PostgreSQL", on_postgres, _scale_postgres.goals),
    ("MySQL", on_mysql, _scale_mysql.goals),
    ("NATS", on_nats, _scale_nats.goals),
)
PACKAGES = ("oncemore", "psycopg", "pymysql", "nats-py", *(["dbos"] if has_dbos() else []))


def measured(options: argparse.Namespace) -> Iterator[Group]:
    """Measure part by part."""
    effort = Effort(3, 20_000_000) if options.quick else Effort(15, 200_000_000, 90.0)
    for _, part, _ in PARTS:
        yield from part(effort)


def judged(groups: list[Group]) -> list[Goal]:
    """Judge the parts that were measured."""
    found = {group.name: group for group in groups}
    there = [goals for word, _, goals in PARTS if any(name.startswith(word) for name in found)]
    return [goal for goals in there for goal in goals(found)]


if __name__ == "__main__":
    command(__doc__, PACKAGES, measured, judged)
