"""Storms reproduce the published comparison, and the same seed gives the same storm."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from oncemore.errors import UsageError
from oncemore.queries.simulation_documents import build_storm_blocks, simulate_storms
from oncemore.simulate import storm as storms
from oncemore.simulate.storm import StormOptions, count_arrivals, list_strategies, run_storm
from tests.shell import run, told

if TYPE_CHECKING:
    from pathlib import Path


def test_the_published_comparison_is_reproduced() -> None:
    options = StormOptions()
    report = simulate_storms(list_strategies(options), [100], options, "published", 8)
    calls = {one.strategy: one.calls for one in report.averages}
    seconds = {one.strategy: one.time_s for one in report.averages}
    jitters = ("full jitter", "equal jitter", "decorrelated jitter")
    # Backoff alone saves some calls; any jitter saves about half of the remaining ones.
    assert calls["no jitter"] < calls["no backoff"]
    assert all(calls[name] < 0.62 * calls["no jitter"] for name in jitters)
    assert calls["full jitter"] < 0.5 * calls["no jitter"]
    # Without jitter it takes longest by far; of the jitters, equal jitter takes longest and saves no calls.
    assert all(5 * seconds[name] < seconds["no jitter"] for name in jitters)
    assert seconds["equal jitter"] > max(seconds["full jitter"], seconds["decorrelated jitter"])
    assert calls["full jitter"] < calls["equal jitter"]
    # Decorrelated jitter is a little quicker than full jitter, for more calls.
    assert calls["full jitter"] < calls["decorrelated jitter"]
    assert seconds["decorrelated jitter"] < seconds["full jitter"]


def test_every_client_is_done_once_and_each_call_is_counted() -> None:
    for model in storms.MODELS:
        options = StormOptions(model=model)  # type: ignore[arg-type]
        for strategy in list_strategies(options):
            result = run_storm(strategy, 30, options, "s", random.Random("s"))
            assert result.open == 0
            assert result.calls == result.failures + 30 == len(result.arrivals)
            assert list(result.arrivals) == sorted(result.arrivals)
            parts = count_arrivals(result, 10, result.time_s)
            assert sum(rate for _, rate in parts) * result.time_s / 10 == pytest.approx(result.calls)


def test_a_server_with_room_for_all_requests_rejects_none() -> None:
    options = StormOptions(model="capacity", capacity=30)
    results = [run_storm(one, 30, options, "s", random.Random("s")) for one in list_strategies(options)]
    assert all((one.calls, one.failures) == (30, 0) for one in results)
    narrow = options._replace(capacity=1)
    crowded = {
        one.name: run_storm(one, 30, narrow, "s", random.Random("s")) for one in list_strategies(narrow)
    }
    assert crowded["full jitter"].calls < crowded["no backoff"].calls


def test_a_storm_without_end_is_ended_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storms, "MAX_CALLS", 50)
    options = StormOptions()
    report = simulate_storms(list_strategies(options)[:1], [40], options, "s", 1)
    assert report.averages[0].open > 0
    assert any("not done" in str(block) for block in build_storm_blocks(report))


def test_two_strategies_of_one_name_are_refused() -> None:
    options = StormOptions()
    with pytest.raises(UsageError, match="same name"):
        simulate_storms(list_strategies(options)[:1] * 2, [2], options, "s", 1)


def test_the_command_draws_and_gives_the_same_bytes(tmp_path: Path) -> None:
    words = ("simulate", "storm", "--clients", "20", "--sizes", "2", "--rounds", "2", "--policy", "standard")
    assert run(*words, "--html", "-").stdout == run(*words, "--html", "-").stdout
    report = told(*words)
    assert [one["clients"] for one in report["averages"][:2]] == [10, 20]
    assert report["averages"][-1]["strategy"] == "standard"
    picture = tmp_path / "storm.svg"
    assert run(*words, "--svg", str(picture)).returncode == 0
    assert len(ET.fromstring(picture.read_text()).findall("{*}polyline")) == 6  # noqa: S314
    text = run(*words).stdout
    assert "20 clients start at once" in text
    assert "calls" in text
    too_many = run(*words, "--policy", "kfm-loop")
    assert too_many.returncode == 2
    other = told(
        "simulate", "storm", "--clients", "9", "--sizes", "1", "--server", "capacity", "--capacity", "2"
    )
    assert {one["open"] for one in other["averages"]} == {0.0}
