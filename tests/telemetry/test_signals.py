"""Signals from constants, files, services, commands and the store; and what becomes of missing ones."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.config import load_settings
from oncemore.open_engine import engine_from_settings
from oncemore.telemetry import signal_board
from oncemore.telemetry.signal_shapes import DocumentFault, parse_time, read_csv, read_json, read_number
from oncemore.telemetry.signal_sources import describe_sources, parse_sources
from oncemore.telemetry.signal_values import describe_reading, make_series, read_series
from tests.telemetry.signal_servers import serve_grid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.telemetry.signal_values import SignalReading
    from tests.telemetry.signal_servers import GridServer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for the first values than a decision does: a busy machine must not change a test."""
    monkeypatch.setattr(signal_board, "FIRST_WAIT_S", 30.0)


@pytest.fixture
def grid() -> Iterator[GridServer]:
    with serve_grid() as server:
        yield server


def read(signals: dict[str, Any], name: str = "grid_intensity") -> SignalReading:
    """Return a signal as the first decision of a process would read it."""
    with oncemore.open("memory:", signals=signals) as engine:
        assert engine.signals is not None
        return engine.signals.read_all(engine.now(), waits=True)[name]


# Services -------------------------------------------------------------------------------------------

SERVICES = {
    "electricity_maps": ("/v3/carbon-intensity/latest?zone=DE", 620.0, "DE (average, estimated)"),
    "electricity_maps history": ("/v3/carbon-intensity/history?zone=FR", 620.0, "FR (average)"),
    "watttime": ("/v3/forecast?region=CAISO_NORTH", 620.0 * 0.45359237, "CAISO_NORTH (marginal)"),
    "gb_carbon_intensity": ("/intensity", 620.0, "GB (average)"),
}


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_read_in_its_own_shape(grid: GridServer, service: str) -> None:
    path, value, origin = SERVICES[service]
    reading = read({"grid_intensity": {"url": grid.url + path, "shape": service.split(" ")[0]}})
    assert reading.value == pytest.approx(value)
    assert reading.source.endswith(origin)
    assert "zone=" not in reading.source
    # The value is of ten minutes ago, and its age says so.
    assert reading.at is not None
    assert 500 < time.time() - reading.at < 800


def test_a_failing_service_is_asked_again_by_our_own_retry(grid: GridServer) -> None:
    grid.fails = 2
    reading = read({"grid_intensity": {"url": f"{grid.url}/intensity", "shape": "gb_carbon_intensity"}})
    assert reading.value == 620.0
    assert len(grid.requests) == 3


def test_a_token_comes_from_the_environment(grid: GridServer, monkeypatch: pytest.MonkeyPatch) -> None:
    grid.token = "s3cret"
    url = f"{grid.url}/v3/carbon-intensity/latest?zone=DE"
    source = {"url": url, "shape": "electricity_maps", "token": "env:GRID_TOKEN"}
    monkeypatch.delenv("GRID_TOKEN", raising=False)
    assert "no GRID_TOKEN" in read({"grid_intensity": source}).reason
    monkeypatch.setenv("GRID_TOKEN", "s3cret")
    assert read({"grid_intensity": source}).value == 620.0
    other = {"url": f"{grid.url}/price", "shape": "json", "field": "prices.0.usd", "token": "env:GRID_TOKEN"}
    assert read({"energy_price": other}, "energy_price").value == 0.31


@pytest.mark.parametrize(
    ("shape", "path", "body", "fault"),
    [
        ("electricity_maps", "/v3/carbon-intensity/latest?zone=DE", {"zone": "DE"}, "no carbonIntensity"),
        ("watttime", "/v3/forecast?region=X", {"data": [], "meta": {"units": "percentile"}}, "'percentile'"),
        ("watttime", "/v3/forecast?region=X", {"meta": {"units": "lbs_co2_per_mwh"}}, "it has no values"),
        ("gb_carbon_intensity", "/intensity", {"data": [{"from": "x"}]}, "it has no intensity"),
        ("gb_carbon_intensity", "/intensity", "text", "it is not JSON"),
        ("json", "/price", {"prices": []}, "no field 'prices.0.usd'"),
    ],
)
def test_an_unexpected_answer_is_a_missing_signal_with_the_reason(
    grid: GridServer, shape: str, path: str, body: Any, fault: str
) -> None:
    grid.body = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    source = {"url": grid.url + path, "shape": shape}
    if shape == "json":
        source["field"] = "prices.0.usd"
    reading = read({"grid_intensity": source})
    assert reading.value is None
    assert fault in reading.reason


def test_a_service_that_is_down_is_a_missing_signal(grid: GridServer) -> None:
    grid.fails = 100
    url = f"{grid.url}/intensity"
    reading = read({"grid_intensity": {"url": url, "shape": "gb_carbon_intensity", "timeout_s": 2}})
    assert reading.value is None
    assert "503" in reading.reason


def test_the_last_value_counts_while_the_service_is_down(grid: GridServer) -> None:
    source = {"url": f"{grid.url}/price", "shape": "json", "field": "prices.0.usd", "refresh_s": 0.01,
              "max_age_s": 60, "timeout_s": 1}  # fmt: skip
    with oncemore.open("memory:", signals={"energy_price": source}) as engine:
        assert engine.signals is not None
        assert engine.signals.read_all(engine.now(), waits=True)["energy_price"].value == 0.31
        grid.fails = 10_000
        asked = len(grid.requests)
        ends = time.monotonic() + 30
        while len(grid.requests) == asked and time.monotonic() < ends:
            assert engine.signals.read("energy_price", engine.now()).value == 0.31
        assert len(grid.requests) > asked
        # An hour later it is too old, and the reason has the error too.
        late = engine.signals.read("energy_price", engine.now() + 3600)
        assert late.value is None
        assert "more than 60 s" in late.reason


# Files, commands, the store -------------------------------------------------------------------------


def test_a_file_is_a_series_over_time(tmp_path: Path) -> None:
    now = time.time()
    (tmp_path / "grid.csv").write_text(
        f"time,value\n# measured\n{now - 7000},100\n{now - 60},380\n{now + 60},9\n"
    )
    (tmp_path / "price.json").write_text(
        json.dumps({"data": [[now - 60, 0.2], {"time": now + 60, "value": 1}]})
    )
    signals = {"grid_intensity": {"file": str(tmp_path / "grid.csv")},
               "energy_price": {"file": str(tmp_path / "price.json")}}  # fmt: skip
    assert read(signals).value == 380.0
    assert read(signals).source == "file grid.csv"
    assert read(signals, "energy_price").value == 0.2
    assert "No such file" in read({"grid_intensity": {"file": str(tmp_path / "gone.csv")}}).reason


def test_a_command_prints_a_number(tmp_path: Path) -> None:
    assert read({"parallelism": {"command": ["echo", "4"]}}, "parallelism").value == 4.0
    code = "import sys; print('no grid', file=sys.stderr); sys.exit(3)"
    failed = read({"parallelism": {"command": [sys.executable, "-c", code]}}, "parallelism")
    assert "exit code 3: no grid" in failed.reason


def test_the_store_counts_its_due_runs() -> None:
    @oncemore.step(effect="pure")
    def work(item: int) -> int:
        return item

    with oncemore.open("memory:", signals={"queue_depth": "store"}) as engine:
        for item in range(3):
            work.submit(item)
        work.submit(9, at=time.time() + 3600)
        assert engine.signals is not None
        assert engine.signals.read_all(engine.now(), waits=True)["queue_depth"].value == 3.0


# Documents ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("time,value\n2026-11-18T06:00Z", "line 2: .* does not have the columns"),
        ("2026-13-18T06:00Z,1", "line 1: '2026-13-18T06:00Z' is not a time"),
        ("2026-11-18T06:00Z,much", "line 1: 'much' is not a number"),
        ("2026-11-18T06:00Z,nan", "line 1: 'nan' is not a finite number"),
    ],
)
def test_a_wrong_line_is_named(text: str, fault: str) -> None:
    with pytest.raises(DocumentFault, match=fault):
        read_csv(text)


@pytest.mark.parametrize("content", [3, [[1]], [{"time": 1}], [["x", 1]], [[1, True]], [[None, 1]]])
def test_a_wrong_json_series_is_refused(content: Any) -> None:
    with pytest.raises(DocumentFault):
        read_json(json.dumps(content))


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert parse_time("1970-01-01T00:01", "") == parse_time("1970-01-01T01:01+01:00", "") == 60.0
    assert parse_time("60", "") == parse_time(60, "") == 60.0
    assert read_number(" 7 ", "", 5.0).series == ((5.0, 7.0),)


def test_a_series_holds_each_value_until_the_next() -> None:
    series = make_series([(300.0, 3.0), (100.0, 1.0), (100.0, 2.0)])
    assert read_series(series, 100.0, "s", 60).value == 2.0
    assert read_series(series, 150.0, "s", 60).at == 100.0
    assert "begins 80 s later" in read_series(series, 20.0, "s", 60).reason
    assert "is 150 s old" in read_series(series, 250.0, "s", 60).reason
    assert "has no values" in read_series((), 250.0, "s", 60).reason
    assert describe_reading(read_series(series, 150.0, "s", 60), 150.0) == {
        "value": 2.0, "source": "s", "age_s": 50.0,
    }  # fmt: skip
    assert describe_reading(read_series((), 0.0, "s", 60), 0.0) == {
        "unavailable": "the series has no values", "source": "s",
    }  # fmt: skip


# Settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        (7, "it takes a table"),
        ({"wind": 3}, "has no signal 'wind'"),
        ({"energy_price": True}, "it takes a number"),
        ({"energy_price": -1}, "it takes a number of 0 or more"),
        ({"energy_price": {"value": 3}}, "has no option 'value'"),
        ({"energy_price": {"constant": 1, "file": "x"}}, "exactly one of"),
        ({"energy_price": "store"}, "knows the queue_depth only"),
        ({"energy_price": {"command": "date"}}, "takes a list of words"),
        ({"energy_price": {"file": ""}}, "takes a text"),
        ({"energy_price": {"file": "x", "field": 3}}, "field takes a text"),
        ({"energy_price": {"file": "x", "refresh_s": 0}}, "refresh_s is 0"),
        ({"energy_price": {"url": "ftp://x", "shape": "json"}}, "http\\(s\\) url and a shape"),
        ({"energy_price": {"url": "http://x", "shape": "watttime"}}, "answers with a grid_intensity"),
        ({"energy_price": {"url": "http://x", "shape": "json", "token": "abc"}}, "takes env:NAME"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(setting: Any, fault: str) -> None:
    with pytest.raises(oncemore.UsageError, match=fault):
        parse_sources(setting)


def test_sources_can_be_given_to_another_process(tmp_path: Path) -> None:
    setting = {
        "energy_price": 0.3, "queue_depth": "store", "parallelism": {"command": ["nproc"]},
        "grid_intensity": {"url": "http://x/y", "shape": "watttime", "token": "env:T", "refresh_s": 5},
        "error_budget": {"file": "budget.csv"},
    }  # fmt: skip
    sources = parse_sources(setting, root=tmp_path)
    assert parse_sources(describe_sources(sources)) == sources
    assert sources[-1].address == str(tmp_path / "budget.csv")


def test_the_settings_file_has_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        '[energy]\ncore_watts = 9\n[signals]\nenergy_price = 0.3\n[signals.grid_intensity]\nfile = "g.csv"\n'
    )
    (tmp_path / "oncemore.toml").write_text(f'store = "{tmp_path}/log.db"\n{text}')
    engine = engine_from_settings(load_settings(tmp_path))
    assert engine.telemetry.energy.core_watts == 9.0
    assert {source.address for source in engine.telemetry.signals} == {0.3, str(tmp_path / "g.csv")}
    monkeypatch.setenv("ONCEMORE_ENERGY", "off")
    monkeypatch.setenv("ONCEMORE_SIGNALS", '{"energy_price": 0.5}')
    engine = engine_from_settings(load_settings(tmp_path))
    assert engine.meter is None
    assert [source.address for source in engine.telemetry.signals] == [0.5]
    monkeypatch.setenv("ONCEMORE_SIGNALS", "{energy_price")
    with pytest.raises(oncemore.UsageError, match="ONCEMORE_SIGNALS is not a table in JSON"):
        engine_from_settings(load_settings(tmp_path))
    (tmp_path / "oncemore.toml").write_text("[signals]\nwind = 3\n")
    monkeypatch.delenv("ONCEMORE_SIGNALS")
    with pytest.raises(oncemore.UsageError, match=r"oncemore.toml: signals has no signal 'wind'"):
        load_settings(tmp_path)
