"""Which store a step uses: found, chosen, configured; and how engines are opened, nested and closed."""

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import oncemore
from oncemore import config, open_engine
from oncemore.config import load_settings
from oncemore.log.entry_codec import decode_head
from oncemore.log.record import WorkerRecord
from oncemore.log.store import HeadQuery
from oncemore.queries.stores import open_read_only
from oncemore.steps.entered_engine import current_engine
from tests.steps.colours import Busy, Turns, made


@pytest.fixture(autouse=True)
def _closed() -> Any:
    """Close the engines that the settings opened."""
    before = dict(open_engine._known)
    yield
    for where, engine in list(open_engine._known.items()):
        if where not in before:
            engine.close()
            del open_engine._known[where]


# Where it is ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["oncemore.toml", "pyproject.toml", ".git"])
def test_the_default_store_lies_beside_the_nearest_mark_of_a_project(
    mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deep = tmp_path / "project" / "src" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()  # farther away
    where = tmp_path / "project" / mark
    where.mkdir() if mark == ".git" else where.touch()
    monkeypatch.chdir(deep)
    caplog.set_level(logging.INFO, "oncemore")
    turns = Turns("value")
    assert made("plain", turns)() == made("plain", turns)() == "value"
    store = tmp_path / "project" / ".oncemore" / "log.db"
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    assert (store.parent / ".gitignore").read_text() == "*\n"
    assert caplog.text.count(f"created a new store, {store}") == 1
    monkeypatch.chdir(deep.parent)
    assert made("plain", turns)() == "value"
    assert turns.calls == 1
    assert caplog.text.count("created a new store") == 1
    assert len({id(engine) for where, engine in open_engine._known.items() if str(tmp_path) in where[0]}) == 1


def test_without_any_mark_it_is_the_working_folder(tmp_path: Path) -> None:
    assert config.find_project_root(tmp_path) == (tmp_path, None)
    assert load_settings().store == str(tmp_path / ".oncemore" / "log.db")


def test_oncemore_toml_comes_before_pyproject_in_the_same_folder(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.oncemore]\nlease_s = 5\n")
    assert load_settings().lease_s == 5
    (tmp_path / "oncemore.toml").write_text("lease_s = 7\n")
    assert load_settings().lease_s == 7


def test_argument_comes_before_environment_before_file_before_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings() == open_engine.EngineSettings(
        str(tmp_path / ".oncemore/log.db"), 60.0, 60.0, "standard"
    )
    (tmp_path / "oncemore.toml").write_text(
        'store = "state/log.db"\nlease_s = 30\nmax_inline_wait_s = 5.5\npolicy = "lit"\n'
    )
    assert load_settings() == open_engine.EngineSettings(str(tmp_path / "state/log.db"), 30.0, 5.5, "lit")
    monkeypatch.setenv("ONCEMORE_STORE", "memory:")
    monkeypatch.setenv("ONCEMORE_LEASE_S", "20")
    monkeypatch.setenv("ONCEMORE_MAX_INLINE_WAIT_S", "")
    monkeypatch.setenv("ONCEMORE_POLICY", "exoarmur")
    assert load_settings() == open_engine.EngineSettings("memory:", 20.0, 5.5, "exoarmur")
    engine = open_engine.find_engine()
    assert (engine.url, engine.lease_s, engine.inline_wait_s) == ("memory:", 20.0, 5.5)
    assert open_engine.find_engine() is engine
    own = oncemore.open(tmp_path / "own.db", lease_s=10, max_inline_wait_s=1)
    assert (own.lease_s, own.inline_wait_s) == (10, 1)
    with own:
        assert open_engine.find_engine() is own
    assert open_engine.find_engine() is engine


def test_each_store_of_the_settings_has_one_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for store in ("a.db", "b.db", f"sqlite:///{tmp_path}/a.db", f"{tmp_path}/b.db"):
        monkeypatch.setenv("ONCEMORE_STORE", store)
        found.append(open_engine.find_engine())
    assert found[0] is found[2] is not found[1] is found[3]


def test_who_comes_second_takes_the_engine_that_the_first_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_STORE", "memory:")
    monkeypatch.setattr(open_engine, "_known", {})
    engine = open_engine.find_engine()
    (where,) = [where for where, known in open_engine._known.items() if known is engine]
    del open_engine._known[where]

    class Meanwhile:
        """A lock: while one waits for it, somebody else makes the engine."""

        def __enter__(self) -> None:
            open_engine._known[where] = engine

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(open_engine, "_lock", Meanwhile())
    assert open_engine.find_engine() is engine


def test_a_step_that_names_no_policy_has_that_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_POLICY", "lit")
    step = oncemore.step(effect="pure", name="by default")(lambda: 1)
    with oncemore.open("memory:"):
        assert step.run().state.policy.startswith("lit@")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ONCEMORE_LEASE_S", "soon", "ONCEMORE_LEASE_S is 'soon'; it takes 0.05 to 86400 seconds"),
        ("ONCEMORE_LEASE_S", "0", "ONCEMORE_LEASE_S is 0.0; it takes 0.05 to"),
        ("ONCEMORE_LEASE_S", "nan", "ONCEMORE_LEASE_S is nan"),
        ("ONCEMORE_MAX_INLINE_WAIT_S", "-1", "ONCEMORE_MAX_INLINE_WAIT_S is -1.0; it takes 0 to 86400"),
    ],
)
def test_a_bad_variable_is_refused_by_its_name(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(oncemore.UsageError, match=says):
        load_settings()
    with pytest.raises(oncemore.UsageError, match=says):
        made("plain", Turns("never"))()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('lease_s = "soon"', "oncemore.toml: lease_s is 'soon'; it takes"),
        ("lease_s = true", "oncemore.toml: lease_s is True; it takes"),
        ("lease_s = [5]", r"oncemore.toml: lease_s is \[5\]"),
        ("store = 5", "oncemore.toml: store is 5; it takes a text"),
        ("policy = []", r"oncemore.toml: policy is \[\]; it takes a text"),
        (
            "leese_s = 5",
            "oncemore.toml: oncemore has no setting 'leese_s'; it has store, lease_s, max_inline_wait_s",
        ),
        ("lease_s = ", "oncemore.toml cannot be read"),
        ("\udcff", "oncemore.toml cannot be read"),
    ],
    ids=["text", "truth", "list", "number as store", "list as policy", "unknown", "no TOML", "no UTF-8"],
)
def test_a_bad_file_is_refused_by_its_name_and_key(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "oncemore.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(oncemore.UsageError, match=says):
        load_settings()


def test_pyproject_must_have_a_table(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool]\noncemore = 5\n")
    with pytest.raises(oncemore.UsageError, match=r"tool\.oncemore is 5; it takes a table"):
        load_settings()
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nlease_s = 5\n")
    assert load_settings().lease_s == 60


def test_a_policy_of_the_settings_that_is_not_there_is_refused_by_who_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "oncemore.toml").write_text('policy = "nope"\n')
    with pytest.raises(oncemore.PolicyError, match=r"oncemore\.toml: policy 'nope' is not known"):
        oncemore.step(effect="pure")(len)
    monkeypatch.setenv("ONCEMORE_POLICY", "nada")
    with pytest.raises(oncemore.PolicyError, match="ONCEMORE_POLICY: policy 'nada' is not known"):
        oncemore.step(effect="pure")(len)
    oncemore.step(effect="pure", policy="standard")(len)


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("state/log.db", "{root}/state/log.db"),
        ("sqlite:///state/log.db", "{root}/state/log.db"),
        ("sqlite:////var/log.db", "/var/log.db"),
        ("/var/log.db", "/var/log.db"),
        ("memory:", "memory:"),
        ("postgresql://host/db", "postgresql://host/db"),
    ],
)
def test_a_path_in_a_file_is_meant_from_the_files_folder(
    told: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "oncemore.toml").write_text(f'store = "{told}"\n')
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    assert load_settings().store == meant.format(root=tmp_path)


def test_whether_somebody_chose_a_store_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not config.is_store_configured()
    (tmp_path / "oncemore.toml").write_text('store = "log.db"\n')
    assert config.is_store_configured()
    (tmp_path / "oncemore.toml").unlink()
    monkeypatch.setenv("ONCEMORE_STORE", "memory:")
    assert config.is_store_configured()


# What can be opened ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nats", "mysql", "postgresql"])
def test_a_file_may_have_the_name_of_a_scheme(name: str, tmp_path: Path) -> None:
    with oncemore.open(name) as engine:
        assert engine.url == f"sqlite:///{tmp_path / name}"
        assert engine.now() > 0
    with open_read_only(name) as store:
        assert store.load_head("run/none") is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "oracle://host",
            "oracle:// is not a store; use sqlite:///path, postgresql://host/database, mysql://",
        ),
        ("oracle://ada:hunter2@host/db", "oracle:// is not a store"),
        ("sqlite://log.db", "sqlite:// is not a store; use sqlite:///path"),
        ("sqlite:log.db", "sqlite: is not a store; use sqlite:///path"),
        ("memory://", "memory:// is not a store"),
        ("Memory:", "Memory: is not a store"),
        (":memory:", "is SQLite's own name; use oncemore.open"),
        ("sqlite:///:memory:", "is SQLite's own name"),
        ("", "names no file; write sqlite:///folder/log.db"),
        ("sqlite:///", "names no file"),
        (".", "names no file"),
        (5, "url is 5; it takes a text or a path"),
        (None, "url is None"),
        (b"log.db", "it takes a text or a path"),
    ],
)
def test_what_is_no_store_is_refused_without_a_password(url: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(oncemore.UsageError, match=says) as caught:
        oncemore.open(url)
    assert "hunter2" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lease_s": 0}, "lease_s is 0; it takes 0.05 to 86400 seconds"),
        ({"lease_s": "60"}, "lease_s is '60'"),
        ({"lease_s": True}, "lease_s is True"),
        ({"lease_s": float("inf")}, "lease_s is inf"),
        ({"max_inline_wait_s": -1}, "max_inline_wait_s is -1; it takes 0 to 86400"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_by_its_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        oncemore.open("memory:", **options)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@host/db",
        "postgres://ada:hun@ter2:hunter2@host/db",
        "postgresql://host/db?password=hunter2&sslmode=require",
        "postgresql://host/db?sslpassword=hunter2",
    ],
)
def test_a_password_never_shows(url: str) -> None:
    engine = oncemore.open(url)
    assert "hunter2" not in engine.url + repr(engine)
    assert "host/db" in engine.url
    assert ("sslmode=require" in engine.url) == ("sslmode" in url)


def test_nothing_is_created_before_it_is_used(tmp_path: Path) -> None:
    engine = oncemore.open("sqlite:///state/deep/log.db")
    assert repr(engine) == f"<oncemore.Engine sqlite:///{tmp_path}/state/deep/log.db>"
    assert list(tmp_path.iterdir()) == []
    engine.close()
    assert list(tmp_path.iterdir()) == []
    with engine:
        assert made("plain", Turns("value"))() == "value"
    assert (tmp_path / "state" / "deep" / "log.db").exists()
    assert not (tmp_path / "state" / "deep" / ".gitignore").exists()


def test_four_slashes_are_an_absolute_path_and_a_home_is_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert oncemore.open(f"sqlite:///{tmp_path}/log.db").url == f"sqlite:///{tmp_path}/log.db"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert oncemore.open("~/log.db").url == f"sqlite:///{tmp_path}/log.db"
    assert oncemore.open(Path("log.db")).url == f"sqlite:///{tmp_path}/log.db"


def test_facts_say_what_the_store_gives() -> None:
    with oncemore.open("log.db") as engine:
        assert "SQLite" in engine.describe_store().engine


def test_a_server_that_is_not_there_is_a_store_error_without_a_password() -> None:
    pytest.importorskip("psycopg")
    with (
        oncemore.open("postgresql://ada:hunter2@127.0.0.1:1/db?connect_timeout=1") as engine,
        pytest.raises(oncemore.StoreError) as caught,
    ):
        made("plain", Turns("never"))()
    assert "hunter2" not in str(caught.value) + repr(engine)


# Engines --------------------------------------------------------------------------------------------


def test_the_innermost_engine_is_used_and_a_steps_own_before_it() -> None:
    step = made("plain", Turns("value"))
    with oncemore.open("memory:") as outer:
        with oncemore.open("memory:") as inner:
            step()
            assert (step.bind(outer).last_run(), step.bind(inner).last_run() is None) == (None, False)
        assert step.last_run() is None
        own = oncemore.open("memory:")
        assert step.bind(own)() == "value"
        assert step.last_run() is None
        assert current_engine() is outer
    assert current_engine() is None


def test_the_same_engine_may_be_entered_twice_and_closes_with_the_last() -> None:
    engine = oncemore.open("log.db")
    with engine:
        with engine:
            made("plain", Turns("value"))()
        assert engine.opened_store is not None
    assert engine.opened_store is None


def test_a_closed_engine_can_be_used_again(engine: oncemore.Engine) -> None:
    turns = Turns("value")
    step = made("plain", turns)
    assert step() == "value"
    engine.close()
    engine.close()
    assert step() == "value"
    assert turns.calls == 1
    assert made("plain", Turns("other"), name="other")() == "other"


def workers(engine: oncemore.Engine) -> list[WorkerRecord]:
    return [decode_head(head.head, WorkerRecord) for head in engine.store.list_heads(HeadQuery("worker"))]


def test_closing_gives_the_lease_back() -> None:
    engine, second = oncemore.open("log.db"), oncemore.open("log.db")
    with engine:
        made("plain", Turns("value"))()
        (mine,) = workers(second)
        assert (mine.state, mine.pid) == ("ALIVE", os.getpid())
        assert mine.lease_until - engine.now() == pytest.approx(60, abs=5)
    assert [worker.state for worker in workers(second)] == ["ENDED"]
    second.close()


def test_two_engines_on_one_file_share_the_work() -> None:
    busy, turns = Busy(), Turns("never")
    with oncemore.open("log.db") as first, oncemore.open("log.db") as second:
        busy.start(made("plain", busy.hold).bind(first))
        with pytest.raises(oncemore.InProgress):
            made("plain", turns, if_running="raise").bind(second)()
        busy.end()
        assert made("plain", turns).bind(second)() == "held"
        assert len(workers(first)) == 1
    assert turns.calls == 0


PROGRAM = """
import oncemore, sys

@oncemore.step(effect="pure", name="work")
def work(x):
    print("ran")
    return x

print(work(5))
"""


def test_a_store_that_is_opened_and_not_entered_causes_a_warning(tmp_path: Path) -> None:
    for opened, says in (("oncemore.open('shop.db')", True), ("oncemore.open('shop.db').store", False)):
        (tmp_path / "program.py").write_text(PROGRAM.replace("print(work(5))", f"{opened}\nprint(work(5))"))
        done = subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        told = (
            f"oncemore.open() was called for sqlite:///{tmp_path}/shop.db and not used, so this call uses "
            f"sqlite:///{tmp_path}/.oncemore/log.db; write `with oncemore.open(...):` around the calls"
        )
        assert (told in done.stderr) == says, done.stderr


def test_a_program_without_configuration_finds_its_store_again(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "program.py").write_text(PROGRAM)
    told = [
        subprocess.run(
            [sys.executable, "program.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        for _ in range(2)
    ]
    assert [done.stdout.split() for done in told] == [["ran", "5"], ["5"]]
    assert f"created a new store, {tmp_path}/.oncemore/log.db" in told[0].stderr
    assert told[1].stderr == ""
    with oncemore.open(tmp_path / ".oncemore" / "log.db") as engine:  # ended at exit, not left to run out
        assert {worker.state for worker in workers(engine)} == {"ENDED"}
