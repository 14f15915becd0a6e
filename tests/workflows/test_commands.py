"""Workflows on the command line: `worker`, `signal`, `runs`, `show` and `explain`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.cli import run_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE = """
import oncemore

@oncemore.step(effect="idempotent", name="ask")
def ask(order):
    return order

@oncemore.workflow(name="order_flow")
def order_flow(order):
    ask(order)
    oncemore.set_value("stage", "asked")
    oncemore.sleep(0.01)
    return oncemore.wait_for("approved"), oncemore.wait_for("gift", timeout=0, default=None)
"""


@pytest.fixture
def flow(tmp_path: Path) -> Iterator[Any]:
    """A module with a workflow, and a store with one run of it that waits."""
    (tmp_path / "flow_module.py").write_text(MODULE)
    sys.path.insert(0, str(tmp_path))
    try:
        import flow_module  # type: ignore[import-not-found]

        with oncemore.open(tmp_path / "log.db"):
            flow_module.order_flow.submit(17)
        yield flow_module
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("flow_module", None)


def run_lines(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Run a command and return its output."""
    capsys.readouterr()
    assert run_command([*words, "--store", "log.db"]) == code
    return capsys.readouterr().out


def test_an_operator_signals_a_workflow_that_a_worker_continues(
    flow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run_lines(capsys, "worker", "flow_module", "--drain")
    (row,) = (row for row in json.loads(run_lines(capsys, "runs", "--json")) if row["step"] == "order_flow")
    assert (row["state"], row["reason"]) == ("PENDING", "waiting for signal 'approved'")
    listed = run_lines(capsys, "runs")
    assert "waiting for signal" in listed
    assert "due in" not in listed
    explained = " ".join(run_lines(capsys, "explain", row["run_id"]).split())
    assert "It waits for signal 'approved' (approved#1)." in explained
    assert (
        f"It is waiting for signal 'approved': oncemore workflow signal {row['run_id']} NAME [VALUE]."
        in explained
    )
    out = run_lines(
        capsys, "workflow", "signal", row["key"], "approved", '{"limit": 5}', "--id", "t-1", "--by", "clerk"
    )
    assert out == f"sent 'approved' to order_flow {row['run_id']}\n"
    out = run_lines(capsys, "workflow", "signal", row["run_id"], "approved", "--id", "t-1", code=1)
    assert "has the signal 't-1' already" in out
    sent = json.loads(run_lines(capsys, "workflow", "signal", row["run_id"], "other", "--json"))
    assert (sent["recorded"], sent["step"]) == (True, "order_flow")
    run_lines(capsys, "worker", "flow_module", "--drain")
    shown = run_lines(capsys, "show", row["run_id"])
    for line in (
        "published 'stage': 'asked'",
        "sleeps until",
        "waits for signal 'approved' (approved#1)",
        "received signal 'approved' from clerk: {'limit': 5}",
        "took signal 'approved' of entry",
        "no signal 'gift' came in time (gift#1)",
    ):
        assert line in shown
    document = json.loads(run_lines(capsys, "show", row["run_id"], "--json"))
    journal = [record for entry in document["steps"] for record in entry["body"].get("journal", ())]
    assert [next(iter(record)) for record in journal] == [
        "set", "sleep", "wait", "signal", "signal", "wait", "wait"
    ]  # fmt: skip
    explained = " ".join(run_lines(capsys, "explain", row["run_id"]).split())
    assert "It received signal 'approved' from clerk" in explained
    with oncemore.open("log.db"):
        assert flow.order_flow(17) == ({"limit": 5}, None)


def test_a_signal_that_reaches_nothing_is_refused(flow: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with oncemore.open("log.db"):
        key = flow.order_flow.key(17)
        flow.ask(1)
        step_key = flow.ask.key(1)
    for words, text in (
        ((key, "approved", "yes"), "the value is not JSON"),
        (("ffffffff", "approved"), "there is no run 'ffffffff'"),
        ((step_key, "approved"), "has ended as COMPLETE"),
    ):
        assert run_command(["workflow", "signal", *words, "--store", "log.db"]) == 2
        assert text in " ".join(capsys.readouterr().err.split())
