"""`oncemore submit`, `cancel`, `rerun`: orders about work, by the name of its step and its arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import oncemore
from oncemore.desk import cli

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
        code = cli.run([*words, "--store", "log.db"])
        return code, streams[0].getvalue().decode(), streams[1].getvalue().decode()


def order(*words: str, code: int = 0) -> Any:
    ended, said, complained = shell(*words, "--json")
    assert ended == code, said + complained
    return json.loads(complained if code else said)


@pytest.mark.parametrize("step", ["ship", "bill"])
def test_work_is_handed_in_once_and_cancelled_and_run_again(shop: str, step: str) -> None:
    which = (f"{shop}:{step}", "order=A-17")
    first = order("submit", *which, "--in", "1h")
    assert (first["status"], first["step"]) == ("PENDING", step)
    assert first["due"] is not None
    assert order("submit", *which)["run_id"] == first["run_id"]
    gone = order("cancel", *which, "--reason", "withdrawn", "--by", "operator")
    assert (gone["status"], gone["reason"]) == ("HARD_FAIL", "cancelled")
    again = order("rerun", *which, "--reason", "wanted after all")
    assert again["status"] == "COMPLETE"
    with oncemore.open("log.db") as engine:
        bodies = [entry.body or b"" for entry in engine.store.entries()]
        assert any(b'"operator"' in body for body in bodies), "who cancelled it is on record"


def test_values_are_read_as_the_parameters_say(shop: str) -> None:
    one = order("submit", f"{shop}:ship", "order=7", "lines=2")
    assert order("submit", f"{shop}:ship", "--args", '{"order": "7", "lines": 2}')["key"] == one["key"]
    assert order("submit", f"{shop}:ship", "lines=2", "--args", '{"order": "7"}')["key"] == one["key"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("order=1", "lines=x"), "lines is 'x'"),
        (("orders=1",), "orders: no parameter of ship, which has order, lines"),
        (("order=1", "--args", '{"order": "1"}'), "order is given twice"),
        (("--args", "[1]"), "takes an object"),
        (("--args", "{"), "is no JSON"),
        (("order",), "NAME=VALUE"),
    ],
)
def test_words_that_make_no_sense_are_refused(shop: str, words: tuple[str, ...], says: str) -> None:
    assert says in order("submit", f"{shop}:ship", *words, code=2)["error"]["message"]


def test_it_is_told_in_one_line(shop: str) -> None:
    _, said, _ = shell("submit", f"{shop}:ship", "order=1")
    assert said.startswith("ship ")
    assert said.endswith(": PENDING\n")
    _, said, _ = shell("cancel", f"{shop}:ship", "order=1", "--reason", "no")
    assert said.endswith(": HARD_FAIL (cancelled)\n")
