"""A fleet as an operator has it: probes, orderly ends, two versions side by side; on each store."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from click.exceptions import BadParameter

import oncemore
from oncemore.cli.health_server import (
    MAX_LOOP_S,
    MAX_STORE_AGE_S,
    find_problem,
    parse_listen_address,
    serve_health,
)
from oncemore.errors import StoreError
from oncemore.workers.worker_report import WorkerHealth, WorkerStats
from tests.servers import nats, postgres
from tests.timing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
STORES = ("sqlite", "postgresql", "nats")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    try:
        with postgres.database() as url:
            yield url
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    try:
        with nats.node(sync="") as made:
            yield made.url
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    if request.param == "sqlite":
        return str(tmp_path / "log.db")
    name = f"fleet_{request.node.callspec.id}_{abs(hash(request.node.nodeid))}"[:60].replace("-", "_")
    if request.param == "nats":
        return f"{request.getfixturevalue('node')}/{name}"
    url: str = request.getfixturevalue("server")
    with psycopg.connect(url, autocommit=True) as boss:
        boss.execute(f'create database "{name}"'.encode())
    return f"{url.rpartition('/')[0]}/{name}"


def asked(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def step(name: str, work: Any = None, **told: Any) -> Any:
    return oncemore.step(**{"effect": "idempotent", "name": name, **told})(work or (lambda x: x))


# Versions


def test_an_old_worker_leaves_what_it_does_not_know_and_a_new_one_does_it(store: str) -> None:
    def grown(x: int, currency: str = "EUR") -> str:
        return f"{x} {currency}"

    old, new = [step("pay", version="1")], [step("pay", grown, version="2"), step("refund")]
    with oncemore.open(store) as engine:
        new[0].submit(1)
        new[0].submit(2, "NOK")  # an argument that the old one has never heard of
        new[1].submit(3)
        old[0].submit(4)
        first = oncemore.Worker(engine, old)
        assert first.unknown_steps() == {"refund": 1}
        worked = first.run_until_idle()
        assert worked.refused >= 1, "it took what does not fit"
        assert worked.failed == 0, "a version that does not know it must not fail it"
        second = oncemore.Worker(engine, new)
        second.run_until_idle()
        assert new[0].last_run(2, "NOK").value == "2 NOK"
        assert new[1].last_run(3).value == 3
        assert {run.status for run in (new[0].last_run(1), old[0].last_run(4))} == {"COMPLETE"}
        assert oncemore.Worker(engine, [*new]).run_until_idle() == WorkerStats()


# Probes


def test_probes_follow_a_worker_from_its_start_to_its_end(store: str) -> None:
    touch = step("touch")
    with oncemore.open(store) as engine:
        worker = oncemore.Worker(engine, [touch], poll_s=0.05)
        with serve_health(worker, ("127.0.0.1", 0)) as port:
            assert asked(port, "/readyz")[0] == 503
            assert asked(port, "/healthz")[0] == 200
            with worker:
                wait_until(lambda: asked(port, "/readyz")[0] == 200)
                touch.submit(1).wait(timeout=20)
                wait_until(lambda: asked(port, "/readyz?probe=1")[1]["done"] == 1)
                wait_until(lambda: asked(port, "/healthz")[1]["under_way"] == 0)
                assert asked(port, "/healthz") == (
                    200,
                    {"status": "ok", "under_way": 0, **WorkerStats(done=1)._asdict()},
                )
                worker.stop()
                wait_until(lambda: asked(port, "/readyz")[0] == 503)
                assert asked(port, "/healthz")[0] == 200
            assert asked(port, "/secret")[0] == 404
            request = urllib.request.Request(f"http://127.0.0.1:{port}/healthz", method="HEAD")
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - ours
                assert answer.read() == b""
                assert answer.headers["Server"].strip() == "oncemore"


def test_a_worker_that_cannot_see_its_store_is_not_ready_but_not_dead_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        worker = oncemore.Worker(engine, [step("touch")], poll_s=0.05)
        real = engine.store.wait_for_change

        def away(after: int, timeout: float) -> int:
            raise StoreError("away")

        monkeypatch.setattr(engine.store, "wait_for_change", away)
        with serve_health(worker, ("127.0.0.1", 0)) as port, worker:
            wait_until(lambda: worker.health.loop_age_s is not None)
            assert asked(port, "/readyz") == (503, asked(port, "/readyz")[1])
            assert asked(port, "/readyz")[1]["status"] == "the worker has not read the store yet"
            assert asked(port, "/healthz")[0] == 200
            monkeypatch.setattr(engine.store, "wait_for_change", real)
            wait_until(lambda: asked(port, "/readyz")[0] == 200)


@pytest.mark.parametrize(
    ("pulse", "alive", "ready"),
    [
        (WorkerHealth(None, None, False), True, False),
        (WorkerHealth(0.0, None, False), True, False),
        (WorkerHealth(0.0, 0.0, False), True, True),
        (WorkerHealth(0.0, MAX_STORE_AGE_S + 1, False), True, False),
        (WorkerHealth(MAX_LOOP_S + 1, 0.0, False), False, False),
        (WorkerHealth(MAX_LOOP_S + 1, 0.0, True), True, False),
    ],
)
def test_what_a_pulse_means(pulse: WorkerHealth, alive: bool, ready: bool) -> None:
    assert (not find_problem(pulse, "/healthz"), not find_problem(pulse, "/readyz")) == (alive, ready)


@pytest.mark.parametrize(
    ("text", "place"),
    [("8080", ("127.0.0.1", 8080)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:80", ("::1", 80))],
)
def test_a_place_for_probes_is_a_port_or_a_host_with_one(text: str, place: tuple[str, int]) -> None:
    assert parse_listen_address(text) == place


@pytest.mark.parametrize("text", ["", "http", "x:y", "65536", "-1", "²"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(BadParameter, match="is not a port; write 8080"):
        parse_listen_address(text)


def test_a_port_that_is_taken_is_said_to_be(tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        worker = oncemore.Worker(engine, [step("touch")])
        with (
            serve_health(worker, ("127.0.0.1", 0)) as port,
            pytest.raises(BadParameter, match=f"cannot listen on 127.0.0.1:{port}: "),
            serve_health(worker, ("127.0.0.1", port)),
        ):
            pass


# The program


def test_the_program_answers_probes_and_drains_when_it_is_told_to_stop(store: str, tmp_path: Path) -> None:
    shutil.copy(HERE / "handed.py", tmp_path / "handed_steps.py")
    with postgres.socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quick = step("handed.quick")
    process = subprocess.Popen(
        [sys.executable, "-m", "oncemore", "worker", "handed_steps", "--health", str(port), "--json"],
        cwd=tmp_path, env={**os.environ, "ONCEMORE_STORE": store}, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:

        def ready() -> bool:
            assert process.poll() is None, process.communicate()
            try:
                return asked(port, "/readyz")[0] == 200
            except OSError:
                return False

        wait_until(ready, "readiness", 60.0)
        with oncemore.open(store):  # handed in from elsewhere
            assert quick.submit(7).wait(timeout=30).value == 7
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0, errors
    assert {name: count for name, count in json.loads(out).items() if count} == {"done": 1}
    assert "oncemore@" not in out
