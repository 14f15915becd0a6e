"""The maintenance and import commands."""

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
    """The result of a command."""

    code: int
    out: str
    err: str


def run(*words: str) -> Ran:
    with CliRunner(env={"NO_COLOR": "1", "COLUMNS": "100"}).isolation() as (out, err, _):
        code = cli.run_command(words)
        return Ran(code, out.getvalue().decode(), " ".join(err.getvalue().decode().split()))


@pytest.fixture(autouse=True)
def _shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_of_this_test.py").write_text(SHOP)
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "log.db"))
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    """A module with steps, and a store with some of their runs."""
    import importlib

    module = importlib.import_module("shop_of_this_test")
    with oncemore.open(tmp_path / "log.db"):
        module.pay("a")
        module.held.run("h")
    return module


ALL = [
    ("store", "prune"), ("store", "erase", "f" * 64, "--reason", "r", "--yes"), ("store", "backup", "b.db"),
    ("store", "accept-copy"), ("store", "sizes"), ("store", "verify"),
]  # fmt: skip


@pytest.mark.parametrize("words", ALL, ids=lambda words: words[1])
def test_a_missing_store_is_not_created(words: tuple[str, ...], tmp_path: Path) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert "there is no store at" in ran.err
    assert not (tmp_path / "log.db").exists()
    assert run(*words, "--store", "nowhere.db").code == 2


def test_prune_previews_and_then_prunes(shop: Any) -> None:
    with FakeClock() as clock:
        clock.advance(100 * DAY)
        ran = run("store", "prune", "--older-than", "90d", "--dry-run")
        assert (ran.code, ran.err) == (0, "")
        assert ran.out == "would prune 1 run, 0 events\nkept 1: not finished\n"
        assert "kept 1: without a retention time; give --older-than" in run("store", "prune").out
        found = json.loads(run("store", "prune", "--older-than", "90d", "--by", "an operator", "--json").out)
        assert (found["runs"], found["kept_runs"], found["dry_run"]) == (1, {"open": 1}, False)
        with oncemore.open("log.db") as engine, pytest.raises(oncemore.KeyExpired):
            shop.pay.bind(engine)("a")
        clock.advance(10 * DAY)
        refused = run("store", "prune", "--forget-keys-after", "1d")
        assert refused.code == 2
        assert "can run again" in refused.err
        assert "would delete 1 keys" in run("store", "prune", "--forget-keys-after", "1d", "--dry-run").out
        forgot = run("store", "prune", "--forget-keys-after", "1d", "--yes")
        assert "deleted 1 keys; work with these keys can run again" in forgot.out
        assert "deleted the records of" in forgot.out


@pytest.mark.parametrize("time", ["soon", "-1d", "1q", "1e3", ""])
def test_an_invalid_age_is_refused(shop: Any, time: str) -> None:
    ran = run("store", "prune", "--older-than", time)
    assert ran.code == 2
    assert "is not a duration; write seconds, or 500ms, 90s, 5m, 1h30m, 90d" in ran.err


def test_erase_asks_first_and_lists_remaining_things(shop: Any) -> None:
    key = shop.pay.bind(oncemore.open("log.db")).key("a")
    refused = run("store", "erase", key, "--reason", "asked to")
    assert refused.code == 2
    assert "This cannot be undone. Confirm with --yes." in refused.err
    ran = run("store", "erase", key[:12], "--reason", "asked to", "--by", "officer", "--yes")
    assert (ran.code, ran.out) == (0, f"erased {key}: 0 events, 0 files\n")
    found = json.loads(run("store", "erase", key, "--reason", "again", "--yes", "--json").out)
    assert found == {"key": key, "events": 0, "artifacts": [], "remaining": []}
    told = run("store", "verify").out
    assert told.startswith("intact: ")
    assert f"erased {key[:12]} of shop.pay, by officer: asked to" in told
    assert run("store", "erase", "f" * 64, "--reason", "r", "--yes").code == 2
    assert run("store", "erase", key, "--yes").code == 2, "a reason is needed"


def test_erase_exits_with_1_if_something_remains(shop: Any, tmp_path: Path) -> None:
    import apsw

    reader = apsw.Connection(str(tmp_path / "log.db"), flags=apsw.SQLITE_OPEN_READONLY)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM log").fetchall()
    key = shop.pay.bind(oncemore.open("log.db")).key("a")
    with FakeClock():
        ran = run("store", "erase", key, "--reason", "r", "--yes")
    assert ran.code == 1
    assert "not erased: the write-ahead file of the store" in ran.out
    reader.close()


def test_a_backup_can_be_restored_inspected_and_acknowledged(shop: Any) -> None:
    ran = run("store", "backup", "b.db")
    assert ran.code == 0
    assert "entries" in ran.out
    assert "verified" in ran.out
    again = run("store", "backup", "b.db")
    assert (again.code, "never overwrites" in again.err) == (2, True)
    assert json.loads(run("store", "backup", "c.db", "--json").out)["entries"] > 3
    ran = run("store", "accept-copy")
    assert (ran.code, ran.out) == (0, "This store is not a copy; no work is held.\n")
    ran = run("store", "accept-copy", "--store", "b.db")
    assert ran.code == 1
    assert "held: it is a backup of" in ran.out
    assert "SOFT_FAIL" in ran.out
    assert "shop.held" in ran.out
    assert "every key that this copy does not have" in " ".join(ran.out.split())
    found = json.loads(run("store", "accept-copy", "--store", "b.db", "--json").out)
    assert found["held"] is True
    assert [doubt["step"] for doubt in found["in_doubt"]] == ["shop.held"]
    assert run("store", "accept-copy", "--store", "b.db", "--acknowledge").code == 2
    ran = run("store", "accept-copy", "--store", "b.db", "--acknowledge", "--reason", "the original is lost")
    assert (ran.code, ran.out) == (0, "acknowledged: work can run on this store\n")
    assert run("store", "accept-copy", "--store", "b.db").code == 0
    assert run("store", "accept-copy", "--store", "b.db", "--acknowledge", "--reason", "r").code == 2


def test_a_long_list_of_unfinished_runs_is_cut(shop: Any) -> None:
    with oncemore.open("log.db"):
        for n in range(60):
            shop.held.run(str(n))
    shutil.copy("log.db", "copy.db")
    ran = run("store", "accept-copy", "--store", "copy.db")
    assert ran.out.count("shop.held") == 50
    assert "… and more" in ran.out


def test_sizes_are_shown_as_a_table_or_as_json(shop: Any) -> None:
    ran = run("store", "sizes")
    assert ran.code == 0
    assert "kind" in ran.out
    assert "write-ahead log" in ran.out
    assert "free on the disk" in ran.out
    found = json.loads(run("store", "sizes", "--json").out)
    assert found["kinds"]["run"]["entities"] == 2
    assert found["file"] > 0


def test_verify_exits_with_1_if_the_log_was_altered(shop: Any, tmp_path: Path) -> None:
    assert run("store", "verify").code == 0
    assert json.loads(run("store", "verify", "--json").out)["forgotten"] == []
    import apsw

    db = apsw.Connection(str(tmp_path / "log.db"))
    db.execute("UPDATE log SET body=CAST('{}' AS BLOB) WHERE seq=3")
    db.close()
    ran = run("store", "verify")
    assert ran.code == 1
    assert "entry 3" in ran.err
    assert "was altered" in ran.err


def test_verify_counts_pruned_runs(shop: Any) -> None:
    with FakeClock() as clock, oncemore.open("log.db") as engine:
        clock.advance(DAY)
        engine.prune(older_than=3600)
    assert "1 run pruned" in run("store", "verify").out


def test_import_marks_a_files_keys(shop: Any, tmp_path: Path) -> None:
    (tmp_path / "done.csv").write_text("id,receipt,note\na,r1,x\nb,r2,y\n")
    words = (
        *(
            "store",
            "import",
            "--step",
            "shop_of_this_test:pay",
            "--column",
            "order=id",
            "--result-column",
            "receipt",
        ),
        *("--ignore-column", "note", "done.csv"),
    )
    ran = run(*words, "--dry-run")
    assert (ran.code, ran.out) == (0, "would mark 1 of 2 keys as complete; 1 were complete already\n")
    ran = run(*words, "--reason", "we moved", "--by", "an operator")
    assert (ran.code, ran.out) == (0, "marked 1 of 2 keys as complete; 1 were complete already\n")
    found = json.loads(run(*words, "--json").out)
    assert (found["imported"], found["already_done"], found["dry_run"]) == (0, 2, False)
    with oncemore.open("log.db") as engine:
        assert shop.pay.bind(engine)("b") == "r2"
        assert next(task.actor for task in engine.maintenance_tasks()) == "an operator"


def test_import_lists_conflicts_and_exits_with_1(
    shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncemore.queries import import_keys

    with oncemore.open("log.db"):
        shop.held.run("h2")
    monkeypatch.setattr(import_keys, "MAX_SHOWN", 1)
    (tmp_path / "done.csv").write_text("order\nh\nh2\nfree\n")
    ran = run("store", "import", "--step", "shop_of_this_test:held", "done.csv")
    assert ran.code == 1
    assert "done.csv:2: the key is SOFT_FAIL, held (outcome_unknown)" in ran.out
    assert "… and 1 more" in ran.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("done.csv",), "Missing option '--step'"),
        (("--step", "x", "done.csv"), "is not the address of a step"),
        (("--step", "shop_of_this_test:pay", "gone.csv"), "does not exist"),
        (
            ("--step", "shop_of_this_test:pay", "--column", "order", "done.csv"),
            "not of the form PARAMETER=COLUMN",
        ),
        (("--step", "shop_of_this_test:pay", "done.csv"), "done.csv:2: column 'what' is not a parameter"),
    ],
)
def test_a_wrong_import_is_refused_with_the_next_step(
    shop: Any, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    (tmp_path / "done.csv").write_text("what\n1\n")
    ran = run("store", "import", *words)
    assert ran.code == 2
    assert says in ran.err


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from oncemore.cli import maintenance

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    show = maintenance.make_progress_counter("pages")
    show(50, 200)
    show(200, 200)
    maintenance.make_progress_counter("lines")(7)
    assert capsys.readouterr().err == "\r50 of 200 (25%) pages\r200 of 200 (100%) pages\n\r7 lines"


def test_a_confirmation_may_be_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    import click

    from oncemore.cli import maintenance as house

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda question, **told: asked.append(question))
    asked: list[str] = []
    house.confirm_or_fail(False, "Really?")
    house.confirm_or_fail(True, "Not asked")
    assert asked == ["Really?"]
    assert click is not None
