"""`oncemore control switch` and `approve`: what they print, what they write, and how they end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@oncemore.step(effect="once", name="delete", requires_approval=True)
def delete(table: str) -> str:
    return f"deleted {table}"


@oncemore.step(effect="idempotent", name="ship")
def ship(order: str) -> str:
    return f"shipped {order}"


class Ran:
    """What a command printed, and how it ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        capsys.readouterr()
        self.code = cli.run_command(list(words))
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    (tmp_path / "oncemore.toml").write_text('store = "log.db"\n')
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    with oncemore.open(tmp_path / "log.db"):
        ship("a")
    return lambda *words: Ran(capsys, *words)


BY = ("--by", "operator", "--reason", "looked at it")


def test_a_switch_is_thrown_shown_and_released(run: Any) -> None:
    assert run("control", "switch", "status").code == 0
    thrown = run("control", "switch", "on", *BY)
    assert (thrown.code, thrown.out) == (
        0,
        "STOPPED: no new attempt starts; running attempts may finish\n",
    )
    assert "no new attempt of step ship starts" in run("control", "switch", "on", "--step", "ship", *BY).out
    shown = run("control", "switch", "status")
    assert shown.code == 1
    assert [line.split()[0] for line in shown.out.splitlines()] == ["on", "all_execution", "step:ship"]
    assert "operator" in shown.out
    told = run("control", "switch", "status", "--json").json
    assert told["is_stopped"]
    assert told["switches"][0]["reason"] == "looked at it"
    off = run("control", "switch", "off", *BY)
    assert (off.code, off.out) == (0, "turned off all_execution; still on: step:ship\n")
    assert run("control", "switch", "off", "--step", "ship", *BY, "--json").json == {
        "name": "step:ship", "released": True, "switches": [],
    }  # fmt: skip
    again = run("control", "switch", "off", *BY)
    assert (again.code, again.out) == (1, "The switch all_execution was not on.\n")
    assert run("control", "switch", "on", "--json", *BY).json["by"] == "operator"
    assert run("control", "switch", "off", *BY).out == "turned off all_execution\n"


@pytest.mark.parametrize("which", ["on", "off"])
def test_a_switch_is_not_turned_without_a_reason(run: Any, which: str) -> None:
    told = run("control", "switch", which)
    assert told.code == 2
    assert "--reason" in told.err


def test_what_is_stopped_says_so_where_people_look(run: Any) -> None:
    with oncemore.open("log.db") as engine:
        waiting = ship.bind(engine).submit("b")
    assert "due now" in run("runs").out
    run("control", "switch", "on", "--step", "ship", *BY)
    assert "stopped: step:ship" in run("runs").out
    assert "stopped by  step:ship" in run("show", waiting.run_id).out
    assert "It is stopped by a switch (step:ship)" in run("explain", waiting.run_id).out
    doctor = run("store", "doctor")
    assert "1 switch is on: work waits" in doctor.out
    assert "the switch step:ship was turned on by operator: looked at it" in doctor.out
    assert "stopped" not in next(line for line in run("runs").out.splitlines() if "COMPLETE" in line)


def test_what_waits_for_an_approval_is_listed_approved_and_revoked(run: Any) -> None:
    assert run("control", "approvals").out == "No run waits for an approval.\n"
    with oncemore.open("log.db") as engine:
        first = delete.bind(engine).run("orders")
        delete.bind(engine).run("customers")
    shown = run("control", "approvals")
    assert "{'table': 'orders'}" in shown.out
    assert "it is not approved yet" in shown.out
    assert "held: approval needed" in run("runs").out
    assert "It waits for an approval: it is not approved yet" in run("explain", first.run_id).out
    assert "allow the start (`oncemore control approve`)" in run("quarantine", "show", first.run_id).out
    done = run("control", "approve", first.run_id, *BY, "--expires", "1h")
    assert done.code == 0
    assert done.out.startswith(f"approved delete {first.key[:12]} until ")
    assert run("control", "approve", first.run_id, *BY).code == 1, "it does not wait any more"
    listed = run("control", "approvals", "--json").json
    assert [one["arguments"] for one in listed["waiting"]] == [{"table": "customers"}]
    assert [one["state"] for one in listed["approvals"]] == ["GRANTED"]
    assert run("control", "approve", first.key[:12], "--revoke", *BY).out.startswith(
        "revoked the approval of delete"
    )
    assert "REVOKED" in run("control", "approvals").out
    other = run("control", "approve", listed["waiting"][0]["run_id"], *BY, "--json").json
    assert (other["by"], other["reason"]) == ("operator", "looked at it")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--list", "01a1e211"),
        ("01a1e211",),
        ("01a1e211", "--revoke", "--expires", "1h", "--reason", "x"),
        ("--list", "--revoke", "--reason", "x"),
    ],
)
def test_an_odd_question_is_refused(run: Any, words: tuple[str, ...]) -> None:
    assert run("control", "approve", *words).code == 2
