"""Real processes, killed with SIGKILL at named and at random moments; a real consumer that drops repeats."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.outbox import OutboxRelay, WebhookSink
from oncemore.steps.history import verify_chain
from tests.messaging.outbox.consumer import Shop, open_shop
from tests.messaging.outbox.simulation import events, states
from tests.messaging.outbox.victim import TOPICS, give

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]
WHENS = ("before", "commit", "synced", "after")


def victim(*told: str) -> subprocess.Popen[str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-m", "tests.messaging.outbox.victim", *told]
    return subprocess.Popen(command, cwd=ROOT, env=quiet, stdout=subprocess.PIPE, text=True)


def killed(*told: str) -> None:
    """Run a process until it kills itself."""
    with victim(*told) as process:
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, f"{told} was not reached"


@pytest.fixture
def shop() -> Iterator[Shop]:
    with open_shop() as shop:
        yield shop


def deliver(engine: oncemore.Engine, shop: Shop) -> None:
    OutboxRelay(engine, {"*": WebhookSink(shop.url)}).run_once()


def check_all_arrived(shop: Shop, names: list[str]) -> None:
    """Check that every event was applied once and in order, and that repeats have the same bytes."""
    payloads = [message["payload"] for message in shop.applied.values()]
    assert sorted(payloads) == sorted(f"{name} {topic}" for name in names for topic in TOPICS)
    last: dict[str, int] = {}
    for message in shop.applied.values():
        assert message["sequence"] > last.get(message["lane"], -1)
        last[message["lane"]] = message["sequence"]
    assert len({one["bytes"] for one in shop.received}) == len(shop.applied)


def check_one_truth(engine: oncemore.Engine) -> None:
    """Check that attempts, result and events after a kill match the log."""
    told = verify_chain(engine.store.read_entries())
    run = give.last_run("a")
    assert run is not None
    assert (run.value, [attempt.outcome for attempt in run.attempts]) == ("a", ["COMPLETE"])
    assert told[f"run/{run.key}"][2] == run.state
    outbox = events(engine)
    assert len(outbox) == 3
    assert {told[f"event/{name}"][2] for name in outbox} == set(outbox.values())


GIVING = [
    *(("INTENT", when) for when in ("before", "after")),
    ("emitted one", "here"),
    ("emitted three", "here"),
    *(("COMMIT", when) for when in WHENS),
]


@pytest.mark.req("MSG-1")
@pytest.mark.parametrize(("mark", "when"), GIVING, ids=lambda one: one.replace(" ", "-"))
def test_a_kill_leaves_both_the_commit_and_its_events_or_neither(
    tmp_path: Path, shop: Shop, mark: str, when: str
) -> None:
    store = str(tmp_path / "log.db")
    killed("give", store, mark, when)
    with oncemore.open(store) as engine:
        run = give.last_run("a")
        committed = run is not None and run.status == "COMPLETE"
        assert committed == ((mark, when) in (("COMMIT", "synced"), ("COMMIT", "after")))
        assert len(events(engine)) == (3 if committed else 0)
        give("a")
        deliver(engine, shop)
        assert states(engine) == {"DELIVERED": 3}
        verify_chain(engine.store.read_entries())
    check_all_arrived(shop, ["a"])
    assert len(shop.received) == 3


SENDING = [
    *(("SENDING", when) for when in WHENS),
    ("sending", "here"),
    ("sent", "here"),
    *(("DELIVERED", when) for when in WHENS),
]
#: Where the message has left and its mark is not stored: it is sent a second time.
TWICE = (("sent", "here"), ("DELIVERED", "before"), ("DELIVERED", "commit"))


@pytest.mark.req("MSG-2", "MSG-3")
@pytest.mark.parametrize(("mark", "when"), SENDING, ids=str)
def test_a_relay_killed_between_send_and_mark_sends_again_under_the_same_id(
    tmp_path: Path, shop: Shop, mark: str, when: str
) -> None:
    store = str(tmp_path / "log.db")
    with oncemore.open(store) as engine:
        give("a")
    killed("relay", store, mark, when, shop.url)
    with oncemore.open(store) as engine:
        check_one_truth(engine)
        deliver(engine, shop)
        assert states(engine) == {"DELIVERED": 3}
        verify_chain(engine.store.read_entries())
    check_all_arrived(shop, ["a"])
    twice = (mark, when) in TWICE
    assert len(shop.received) == (4 if twice else 3)
    if twice:
        first, again = shop.received[:2]
        assert first["headers"]["oncemore-id"] == again["headers"]["oncemore-id"]
        assert shop.attempts[:2] == [1, 2]


def test_relays_that_are_killed_at_random_lose_nothing_and_the_consumer_applies_all_once(
    tmp_path: Path, shop: Shop
) -> None:
    seed = os.environ.get("ONCEMORE_STORM_SEED", f"{random.SystemRandom().getrandbits(32):08x}")
    print(f"ONCEMORE_STORM_SEED={seed}")
    chance, store = random.Random(seed), str(tmp_path / "log.db")
    names = [f"n{n:02}" for n in range(60)]
    with oncemore.open(store) as engine:
        for name in names:
            give(name)
    kills = 0
    for _ in range(4):
        crowd = [victim("loop", store, "", "", shop.url) for _ in range(2)]
        for process in crowd:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in crowd:
            time.sleep(chance.uniform(0.0, 0.08))
            process.kill()
            process.communicate(timeout=60)
            kills += process.returncode == -signal.SIGKILL
    left = 180 - len(shop.applied)
    with oncemore.open(store) as engine:
        deliver(engine, shop)
        assert states(engine) == {"DELIVERED": 180}
        verify_chain(engine.store.read_entries())
    check_all_arrived(shop, names)
    print(
        f"{kills} kills; {len(shop.received) - 180} messages came twice, {left} were left to the last relay"
    )
    assert kills == 8
