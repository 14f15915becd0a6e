"""`oncemore runs submit`, `cancel`, `rerun`: orders about work, by the name of its step and its arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import oncemore
from oncemore import cli
from oncemore.log.entry_codec import decode_head
from oncemore.log.store import HeadQuery
from tests.shell import run

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
import oncemore

@oncemore.step(effect="idempotent", name="ship")
def ship(order: str, lines: int = 1) -> str:
    if lines == 9:
        raise ValueError("too many")
    return f"{order} with {lines}"

@oncemore.step(effect="idempotent", name="bill")
async def bill(order: str) -> str:
    return order
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"shop_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    return name


def shell(*words: str) -> tuple[int, str, str]:
    with CliRunner().isolation() as streams:
        code = cli.run_command([*words, "--store", "log.db"])
        return code, streams[0].getvalue().decode(), streams[1].getvalue().decode()


def order(*words: str, code: int = 0) -> Any:
    ended, said, complained = shell(*words, "--json")
    assert ended == code, said + complained
    return json.loads(complained if code else said)


@pytest.mark.parametrize("step", ["ship", "bill"])
def test_work_is_handed_in_once_and_cancelled_and_run_again(shop: str, step: str) -> None:
    which = (f"{shop}:{step}", "order=A-17")
    first = order("runs", "submit", *which, "--in", "1h")
    assert (first["status"], first["step"]) == ("PENDING", step)
    assert first["due"] is not None
    assert order("runs", "submit", *which)["run_id"] == first["run_id"]
    gone = order("runs", "cancel", *which, "--reason", "withdrawn", "--by", "operator")
    assert (gone["status"], gone["reason"]) == ("HARD_FAIL", "cancelled")
    again = order("runs", "rerun", *which, "--reason", "wanted after all")
    assert again["status"] == "COMPLETE"
    with oncemore.open("log.db") as engine:
        bodies = [entry.body or b"" for entry in engine.store.read_entries()]
        assert any(b'"operator"' in body for body in bodies), "who cancelled it is on record"


def test_values_are_read_as_the_parameters_say(shop: str) -> None:
    one = order("runs", "submit", f"{shop}:ship", "order=7", "lines=2")
    assert (
        order("runs", "submit", f"{shop}:ship", "--args", '{"order": "7", "lines": 2}')["key"] == one["key"]
    )
    assert order("runs", "submit", f"{shop}:ship", "lines=2", "--args", '{"order": "7"}')["key"] == one["key"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("order=1", "lines=x"), "lines is 'x'"),
        (("orders=1",), "ship has no parameter orders; it has order, lines"),
        (("order=1", "--args", '{"order": "1"}'), "order is given twice"),
        (("--args", "[1]"), "takes an object"),
        (("--args", "{"), "is not JSON"),
        (("order",), "NAME=VALUE"),
    ],
)
def test_words_that_make_no_sense_are_refused(shop: str, words: tuple[str, ...], says: str) -> None:
    assert says in order("runs", "submit", f"{shop}:ship", *words, code=2)["error"]["message"]


def test_it_is_told_in_one_line(shop: str) -> None:
    _, said, _ = shell("runs", "submit", f"{shop}:ship", "order=1")
    assert said.startswith("ship ")
    assert said.endswith(": PENDING\n")
    _, said, _ = shell("runs", "cancel", f"{shop}:ship", "order=1", "--reason", "no")
    assert said.endswith(": HARD_FAIL (cancelled)\n")


def failed(shop: str) -> Any:
    """Work that has failed for good, and is on record with its tenant."""
    step = __import__(shop).ship
    with oncemore.open("log.db"), oncemore.context(tenant="north"):
        return step.run("A-1", lines=9).state.run_id


def test_a_run_is_named_instead_of_its_arguments(shop: str) -> None:
    run = failed(shop)
    again = order("runs", "rerun", shop, "--run", run[:18], "--reason", "the parts are back", code=1)
    assert "failed after 1 attempt" in again["error"]["message"], "the same arguments fail the same way"
    with oncemore.open("log.db") as engine:
        assert [decode_head(head.head).run_number for head in engine.store.list_heads(HeadQuery("run"))] == [
            2
        ]
    later = order("runs", "submit", f"{shop}:ship", "order=A-2", "--in", "1h")
    gone = order("runs", "cancel", shop, "--run", later["key"], "--reason", "withdrawn")
    assert (gone["status"], gone["reason"]) == ("HARD_FAIL", "cancelled")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("{shop}:bill", "--run", "{run}"), "{run} is a run of ship; {shop}:bill has bill"),
        (("{shop}", "--run", "{run}", "order=A-1"), "Give either --run or arguments."),
        (("{shop}", "--run", "ffffffff"), "there is no run 'ffffffff'"),
        (("{shop}",), "is not the address of a step"),
    ],
)
def test_a_run_that_cannot_be_meant_is_refused(shop: str, words: tuple[str, ...], says: str) -> None:
    names = {"shop": shop, "run": failed(shop)}
    told = order("runs", "rerun", *(word.format(**names) for word in words), "--reason", "why not", code=2)
    assert says.format(**names) in told["error"]["message"]


def test_a_run_without_arguments_on_record_or_with_another_key_now_is_refused(shop: str) -> None:
    run = failed(shop)
    step = __import__(shop).ship
    step._options = oncemore.step(effect="idempotent", name="ship", key="order")(step.__wrapped__)._options
    told = order("runs", "rerun", shop, "--run", run, "--reason", "why not", code=2)
    assert "now computes another key from its arguments" in told["error"]["message"]
    with oncemore.open("log.db") as engine, oncemore.context(tenant="north"):
        engine.erase(engine.store.list_heads(HeadQuery("run")).__next__().entity[4:], reason="asked to")
    told = order("runs", "rerun", shop, "--run", run, "--reason", "why not", code=2)
    assert "its arguments are not recorded" in told["error"]["message"]


def test_a_worker_says_at_the_end_how_many_runs_came_to_what(shop: str) -> None:
    order("runs", "submit", f"{shop}:ship", "order=A-1")
    order("runs", "submit", f"{shop}:ship", "order=A-2", "lines=9")
    ran = run("worker", shop, "--drain", "--json", "--store", "log.db")
    assert (ran.returncode, json.loads(ran.stdout)) == (
        0,
        {"done": 1, "failed": 1, "deferred": 0, "held": 0, "refused": 0, "left": 0, "leftovers": []},
    )
    assert "worker ended: 1 done, 1 failed" in ran.stderr
