"""The metrics as Prometheus reads them, from a registry, from an application and from a worker."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import httpx
import prometheus_client
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import oncemore
from oncemore import events
from oncemore._listeners import publish_event
from oncemore.cli.health_server import parse_listen_address, serve_metrics
from oncemore.telemetry import enable_prometheus, make_metrics_app, metrics
from tests.telemetry.work import make_step
from tests.timing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.testing import FakeClock

HERE = Path(__file__).parent
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def registry() -> Iterator[prometheus_client.CollectorRegistry]:
    registry = prometheus_client.CollectorRegistry()
    source = enable_prometheus(registry)
    yield registry
    source.disable()


def read_samples(text: str, parse: Any = parse_text) -> dict[str, float]:
    """Return the samples of a page by name and label values in the order of their names."""
    return {
        " ".join((sample.name, *(value for _, value in sorted(sample.labels.items())))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def samples_of(registry: prometheus_client.CollectorRegistry) -> dict[str, float]:
    return read_samples(prometheus_client.generate_latest(registry).decode())


def test_runs_attempts_waits_and_breakers_are_counted(
    engine: oncemore.Engine, clock: FakeClock, registry: prometheus_client.CollectorRegistry
) -> None:
    make_step(7)(1)
    make_step(ConnectionError("refused"), 7)(2)
    with pytest.raises(oncemore.StepFailed):
        make_step(ValueError("wrong"))(3)
    with pytest.raises(KeyboardInterrupt):
        make_step(KeyboardInterrupt())(4)
    with pytest.raises(oncemore.OutcomeUnknown):
        make_step(ConnectionError("cut off"), effect="once", name="shop.pay")(5)
    breaker = oncemore.Breaker("bank", failures=1, cooldown_s=600)
    for order in (6, 7):
        with pytest.raises(oncemore.Deferred):
            make_step(ConnectionError("down"), provider="bank", breaker=breaker, name="shop.wire")(order)
    make_step(7).submit(8)
    samples = samples_of(registry)
    expected = {
        "oncemore_attempts_total  completed shop.charge": 2,
        "oncemore_attempts_total CONNECTION_ERROR failed shop.charge": 1,
        "oncemore_attempts_total EXC_ValueError failed shop.charge": 1,
        "oncemore_attempts_total  interrupted shop.charge": 1,
        "oncemore_runs_total  completed shop.charge": 2,
        "oncemore_runs_total EXC_ValueError failed shop.charge": 1,
        "oncemore_runs_total CONNECTION_ERROR held shop.pay": 1,
        "oncemore_runs_total  deferred shop.wire": 1,
        "oncemore_runs_total  submitted shop.charge": 1,
        "oncemore_run_duration_seconds_count completed shop.charge": 2,
        "oncemore_run_duration_seconds_count failed shop.charge": 1,
        "oncemore_attempt_duration_seconds_count failed shop.charge": 1 + 1,
        "oncemore_wait_duration_seconds_count retry shop.charge": 1,
        "oncemore_wait_duration_seconds_count circuit_open shop.wire": 2,
        "oncemore_breaker_state bank open": 1,
        "oncemore_breaker_state bank closed": 0,
    }
    assert {name: samples.get(name) for name in expected} == expected
    assert samples["oncemore_wait_duration_seconds_sum retry shop.charge"] == pytest.approx(0.25, abs=0.05)


def test_both_parsers_read_the_page(
    engine: oncemore.Engine, registry: prometheus_client.CollectorRegistry
) -> None:
    make_step(7)()
    text = prometheus_client.openmetrics.exposition.generate_latest(registry).decode()
    samples = read_samples(text, parse_openmetrics)
    assert samples["oncemore_runs_total  completed shop.charge"] == 1
    families = {family.name: family for family in parse_openmetrics(text)}
    assert families["oncemore_run_duration_seconds"].type == "histogram"
    assert families["oncemore_runs"].type == "counter"


def test_labels_have_few_values_and_never_keys(
    registry: prometheus_client.CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_LABEL_VALUES", 3)
    common = ("k" * 64, "run", 1, 3, "tenant", "correlation", "provider", "policy", 0.0)
    for number in range(9):
        publish_event(events.RunCompleted(f"step{number}", *common, "", 0.1, 0.1))
        publish_event(events.BreakerChanged(f"p{number}", "circuit_opened", "CLOSED", "OPEN", 1, 1, "X", 1.0))
    samples = samples_of(registry)
    runs = {name.split()[-1]: value for name, value in samples.items() if "oncemore_runs_total" in name}
    assert runs == {"step0": 1, "step1": 1, "step2": 1, "_OTHER": 6}
    assert sum(name.startswith("oncemore_breaker_state") for name in samples) == 9
    assert not any(word in name for name in samples for word in ("kkk", "tenant", "correlation"))


def test_a_run_that_was_reconciled_counts_no_attempt(
    engine: oncemore.Engine, registry: prometheus_client.CollectorRegistry
) -> None:
    charge = make_step(ConnectionError("cut off"), effect="once")
    with pytest.raises(oncemore.OutcomeUnknown):
        charge()
    charge.settle(oncemore.applied(7), reason="looked")
    samples = samples_of(registry)
    assert samples["oncemore_runs_total  completed shop.charge"] == 1
    assert "oncemore_attempts_total  completed shop.charge" not in samples


def test_a_registry_has_one_source(registry: prometheus_client.CollectorRegistry) -> None:
    other = prometheus_client.CollectorRegistry()
    source = enable_prometheus(registry)
    assert enable_prometheus(registry) is source
    second = enable_prometheus(other)
    assert second is not source
    with oncemore.open("memory:"):
        make_step(7)()
    assert samples_of(registry) == samples_of(other) | {
        name: value for name, value in samples_of(registry).items() if "_created" in name
    }
    second.disable()
    second.disable()
    assert samples_of(other) == {}
    enable_prometheus(other).disable()


def test_the_application_serves_the_metrics(engine: oncemore.Engine) -> None:
    registry = prometheus_client.CollectorRegistry()
    app = make_metrics_app(registry)
    try:
        make_step(7)()

        async def read(accept: str) -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.get("/", headers={"Accept": accept})

        plain, open_page = (asyncio.run(read(accept)) for accept in ("text/plain", OPENMETRICS))
        assert read_samples(plain.text)["oncemore_runs_total  completed shop.charge"] == 1
        assert open_page.headers["content-type"].startswith("application/openmetrics-text")
        assert read_samples(open_page.text, parse_openmetrics)["oncemore_runs_total  completed shop.charge"]
    finally:
        enable_prometheus(registry).disable()


# A worker -------------------------------------------------------------------------------------------


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_worker_serves_its_metrics(tmp_path: Path) -> None:
    from tests.telemetry.watched import doomed, flaky

    shutil.copy(HERE / "watched.py", tmp_path / "watched.py")
    store, port = f"sqlite:///{tmp_path / 'log.db'}", find_free_port()
    with oncemore.open(store):
        flaky.submit(1)
        doomed.submit(2)
    worker = subprocess.Popen(
        [sys.executable, "-m", "oncemore", "worker", "watched", "--metrics", str(port)],
        cwd=tmp_path, env={**os.environ, "ONCEMORE_STORE": store},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def read(accept: str = "text/plain") -> str:
        assert worker.poll() is None, worker.communicate()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request) as response:  # noqa: S310 - our own server
                return str(response.read().decode())
        except OSError:
            return ""

    try:
        wait_until(
            lambda: (
                {"completed", "failed"}
                <= {
                    word
                    for name in read_samples(read())
                    if "oncemore_runs_total" in name
                    for word in name.split()
                }
            )
        )
        samples = read_samples(read(OPENMETRICS), parse_openmetrics)
    finally:
        worker.terminate()
        _, errors = worker.communicate()
    assert worker.returncode == 0
    assert samples["oncemore_runs_total  completed watched.flaky"] == 1
    assert samples["oncemore_runs_total CONNECTION_ERROR failed watched.doomed"] == 1
    assert samples["oncemore_attempts_total CONNECTION_ERROR failed watched.doomed"] == 2
    assert "process_cpu_seconds_total" in samples
    # The same facts are in the worker's log, once each.
    assert errors.count("watched.doomed (") == 2, errors


def test_a_port_that_is_taken_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
        with pytest.raises(click.BadParameter, match=r"cannot listen on 127\.0\.0\.1") as refused:
            serve_metrics(address).__enter__()
    assert refused.value.param_hint == "'--metrics'"


def test_a_port_that_is_not_one_is_refused_by_name() -> None:
    with pytest.raises(click.BadParameter, match="is not a port") as refused:
        parse_listen_address("many", "--metrics")
    assert refused.value.param_hint == "'--metrics'"


def test_without_an_address_nothing_is_served() -> None:
    with serve_metrics(None) as port:
        assert port == 0
