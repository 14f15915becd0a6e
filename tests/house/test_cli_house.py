"""The commands for keeping house and moving in, as a shell runs them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from click.testing import CliRunner

import oncemore
from oncemore import cli
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

SHOP = """
import oncemore

@oncemore.step(effect="once", name="shop.pay", key="order")
def pay(order: str, cents: int = 0) -> str:
    return f"paid {order}"

@oncemore.step(effect="once", name="shop.held")
def held(order: str) -> None:
    raise TimeoutError(order)
"""
DAY = 86_400.0


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def run(*words: str) -> Ran:
    with CliRunner(env={"NO_COLOR": "1", "COLUMNS": "100"}).isolation() as (out, err, _):
        code = cli.run(words)
        return Ran(code, out.getvalue().decode(), " ".join(err.getvalue().decode().split()))


@pytest.fixture(autouse=True)
def _shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_of_this_test.py").write_text(SHOP)
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "log.db"))
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    """A module with steps, and a store in which some were called."""
    import importlib

    module = importlib.import_module("shop_of_this_test")
    with oncemore.open(tmp_path / "log.db"):
        module.pay("a")
        module.held.run("h")
    return module


ALL = [
    ("prune",), ("erase", "f" * 64, "--reason", "r", "--yes"), ("backup", "b.db"), ("restore",), ("sizes",),
    ("verify",),
]  # fmt: skip


@pytest.mark.parametrize("words", ALL, ids=lambda words: words[0])
def test_a_store_that_is_not_there_is_not_made(words: tuple[str, ...], tmp_path: Path) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert "there is no store at" in ran.err
    assert not (tmp_path / "log.db").exists()
    assert run(*words, "--store", "nowhere.db").code == 2


def test_prune_says_what_it_would_do_and_then_does_it(shop: Any) -> None:
    with FakeClock() as clock:
        clock.advance(100 * DAY)
        ran = run("prune", "--older-than", "90d", "--dry-run")
        assert (ran.code, ran.err) == (0, "")
        assert ran.out == "would prune 1 run, 0 events\nkept 1: they are not over\n"
        assert "kept 1: nobody said how long; give --older-than" in run("prune").out
        found = json.loads(run("prune", "--older-than", "90d", "--by", "an operator", "--json").out)
        assert (found["runs"], found["kept"], found["dry_run"]) == (1, {"open": 1}, False)
        with oncemore.open("log.db") as engine, pytest.raises(oncemore.KeyExpired):
            shop.pay.on(engine)("a")
        clock.advance(10 * DAY)
        refused = run("prune", "--forget-keys-after", "1d")
        assert refused.code == 2
        assert "can be done again" in refused.err
        assert "would forget 1 keys" in run("prune", "--forget-keys-after", "1d", "--dry-run").out
        forgot = run("prune", "--forget-keys-after", "1d", "--yes")
        assert "forgot 1 keys: they can be done again" in forgot.out
        assert "removed the records of" in forgot.out


@pytest.mark.parametrize("time", ["soon", "-1d", "1q", "1e3", ""])
def test_a_time_that_is_none_is_refused(shop: Any, time: str) -> None:
    ran = run("prune", "--older-than", time)
    assert ran.code == 2
    assert "is no time; write seconds, or 500ms, 90s, 5m, 1h30m, 90d" in ran.err


def test_erase_asks_first_and_says_what_is_left(shop: Any) -> None:
    key = shop.pay.on(oncemore.open("log.db")).key("a")
    refused = run("erase", key, "--reason", "asked to")
    assert refused.code == 2
    assert "It cannot be undone. Give --yes to say so." in refused.err
    ran = run("erase", key[:12], "--reason", "asked to", "--by", "officer", "--yes")
    assert (ran.code, ran.out) == (0, f"erased {key}: 0 events, 0 files\n")
    found = json.loads(run("erase", key, "--reason", "again", "--yes", "--json").out)
    assert found == {"key": key, "events": 0, "artifacts": [], "left": []}
    told = run("verify").out
    assert told.startswith("whole: ")
    assert f"erased {key[:12]} of shop.pay, by officer: asked to" in told
    assert run("erase", "f" * 64, "--reason", "r", "--yes").code == 2
    assert run("erase", key, "--yes").code == 2, "a reason is needed"


def test_erase_ends_with_one_if_something_is_left(shop: Any, tmp_path: Path) -> None:
    import apsw

    reader = apsw.Connection(str(tmp_path / "log.db"), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM log").fetchall()
    key = shop.pay.on(oncemore.open("log.db")).key("a")
    with FakeClock():
        ran = run("erase", key, "--reason", "r", "--yes")
    assert ran.code == 1
    assert "left: the write-ahead file of the store" in ran.out
    reader.close()


def test_a_backup_can_be_restored_looked_at_and_acknowledged(shop: Any) -> None:
    ran = run("backup", "b.db")
    assert ran.code == 0
    assert "entries" in ran.out
    assert "checked" in ran.out
    again = run("backup", "b.db")
    assert (again.code, "never overwrites" in again.err) == (2, True)
    assert json.loads(run("backup", "c.db", "--json").out)["entries"] > 3
    ran = run("restore")
    assert (ran.code, ran.out) == (0, "this store is no copy: nothing is held\n")
    ran = run("restore", "--store", "b.db")
    assert ran.code == 1
    assert "held: it is a backup of" in ran.out
    assert "SOFT_FAIL" in ran.out
    assert "shop.held" in ran.out
    assert "every key that is not here at all" in ran.out
    found = json.loads(run("restore", "--store", "b.db", "--json").out)
    assert found["held"] is True
    assert [doubt["step"] for doubt in found["in_doubt"]] == ["shop.held"]
    assert run("restore", "--store", "b.db", "--acknowledge").code == 2
    ran = run("restore", "--store", "b.db", "--acknowledge", "--reason", "the original is lost")
    assert (ran.code, ran.out) == (0, "acknowledged: it goes on from here\n")
    assert run("restore", "--store", "b.db").code == 0
    assert run("restore", "--store", "b.db", "--acknowledge", "--reason", "r").code == 2


def test_many_runs_in_doubt_are_not_all_shown(shop: Any) -> None:
    with oncemore.open("log.db"):
        for n in range(60):
            shop.held.run(str(n))
    shutil.copy("log.db", "copy.db")
    ran = run("restore", "--store", "copy.db")
    assert ran.out.count("shop.held") == 50
    assert "… and more" in ran.out


def test_sizes_are_shown_as_a_table_or_as_json(shop: Any) -> None:
    ran = run("sizes")
    assert ran.code == 0
    assert "kind" in ran.out
    assert "write-ahead file" in ran.out
    assert "left on the disk" in ran.out
    found = json.loads(run("sizes", "--json").out)
    assert found["kinds"]["run"]["entities"] == 2
    assert found["file"] > 0


def test_verify_ends_with_one_if_the_log_was_altered(shop: Any, tmp_path: Path) -> None:
    assert run("verify").code == 0
    assert json.loads(run("verify", "--json").out)["forgotten"] == []
    import apsw

    db = apsw.Connection(str(tmp_path / "log.db"))
    db.execute("UPDATE log SET body=CAST('{}' AS BLOB) WHERE seq=3")
    db.close()
    ran = run("verify")
    assert ran.code == 1
    assert "entry 3" in ran.err
    assert "was altered" in ran.err


def test_verify_counts_what_was_pruned(shop: Any) -> None:
    with FakeClock() as clock, oncemore.open("log.db") as engine:
        clock.advance(DAY)
        engine.prune(older_than=3600)
    assert "1 run pruned" in run("verify").out


def test_import_marks_a_files_keys(shop: Any, tmp_path: Path) -> None:
    (tmp_path / "done.csv").write_text("id,receipt,note\na,r1,x\nb,r2,y\n")
    words = (
        *("import", "--step", "shop_of_this_test:pay", "--column", "order=id", "--result-column", "receipt"),
        *("--ignore-column", "note", "done.csv"),
    )
    ran = run(*words, "--dry-run")
    assert (ran.code, ran.out) == (0, "would mark 1 of 2 as done; 1 were so already\n")
    ran = run(*words, "--reason", "we moved", "--by", "an operator")
    assert (ran.code, ran.out) == (0, "marked 1 of 2 as done; 1 were so already\n")
    found = json.loads(run(*words, "--json").out)
    assert (found["marked"], found["present"], found["dry_run"]) == (0, 2, False)
    with oncemore.open("log.db") as engine:
        assert shop.pay.on(engine)("b") == "r2"
        assert next(chore.actor for chore in engine.chores()) == "an operator"


def test_import_lists_what_is_something_else_and_ends_with_one(
    shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncemore.queries import import_keys

    with oncemore.open("log.db"):
        shop.held.run("h2")
    monkeypatch.setattr(import_keys, "MOST_SHOWN", 1)
    (tmp_path / "done.csv").write_text("order\nh\nh2\nfree\n")
    ran = run("import", "--step", "shop_of_this_test:held", "done.csv")
    assert ran.code == 1
    assert "done.csv:2: the key is SOFT_FAIL, held (outcome_unknown)" in ran.out
    assert "… and 1 more" in ran.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("done.csv",), "Missing option '--step'"),
        (("--step", "x", "done.csv"), "names no step"),
        (("--step", "shop_of_this_test:pay", "gone.csv"), "does not exist"),
        (
            ("--step", "shop_of_this_test:pay", "--column", "order", "done.csv"),
            "not of the form PARAMETER=COLUMN",
        ),
        (("--step", "shop_of_this_test:pay", "done.csv"), "done.csv:2: column 'what' is no parameter"),
    ],
)
def test_a_wrong_import_is_refused_with_the_next_step(
    shop: Any, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "done.csv").write_text("what\n1\n")
    ran = run("import", *words)
    assert ran.code == 2
    assert says in ran.err


def test_on_a_terminal_it_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from oncemore.cli import maintenance

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    show = maintenance.count_on_terminal("pages")
    show(50, 200)
    show(200, 200)
    maintenance.count_on_terminal("lines")(7)
    assert capsys.readouterr().err == "\r50 of 200 (25%) pages\r200 of 200 (100%) pages\n\r7 lines"


def test_a_person_is_asked_and_may_say_no(monkeypatch: pytest.MonkeyPatch) -> None:
    import click

    from oncemore.cli import maintenance as house

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda question, **told: asked.append(question))
    asked: list[str] = []
    house.sure(False, "Really?")
    house.sure(True, "Not asked")
    assert asked == ["Really?"]
    assert click is not None
