"""A log moves house: every chain intact, nothing begins at the old one, a killed copy goes on."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli
from oncemore.control.model import SWITCHES_ENTITY
from oncemore.errors import InProgress, NotPermitted, StoreError, TransientError, UsageError
from oncemore.log.memory import MemoryStore
from oncemore.log.postgres.store import PostgresStore
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import HeadQuery
from oncemore.maintenance import copy
from oncemore.steps.engine import Engine
from oncemore.workers.worker import Worker
from tests.servers import postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    calls.clear()


@oncemore.step(effect="once", name="pay")
def pay(order: str) -> str:
    calls.append(order)
    return f"paid {order}"


@oncemore.step(effect="outbox", name="tell")
def tell(order: str) -> None:
    oncemore.current().emit("told", {"order": order})


@oncemore.step(effect="idempotent", name="fail", policy=oncemore.Policy("short", max_attempts=1))
def fail(order: str) -> None:
    raise TransientError(order)


def live(engine: Engine) -> None:
    """Have some of everything."""
    with engine:
        for n in range(12):
            pay.bind(engine)(f"o{n}")
        tell.bind(engine)("a")
        fail.bind(engine).run("a")
        pay.bind(engine).submit("deferred")
        engine.switches.on(step="nothing", reason="before", by="operator")
        engine.switches.off(step="nothing", reason="before", by="operator")
        engine.erase(pay.bind(engine).key("o3"), reason="asked to", by="operator")
        pay.bind(engine)("kept")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    try:
        with postgres.database() as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


class Lasting(MemoryStore):
    """Stays when its engine is closed."""

    def close(self) -> None:
        """Forget nothing."""


@pytest.fixture
def opens(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str, str], Engine]:
    """Return what opens a store of a kind, by a name."""
    known: dict[str, MemoryStore] = {}

    def opened(kind: str, name: str) -> Engine:
        if kind == "memory":
            store = known.setdefault(name, Lasting())
            return Engine(lambda: store, f"memory:{name}")
        if kind == "sqlite":
            return Engine(lambda: SqliteStore(tmp_path / f"{name}.db"), f"sqlite:///{tmp_path}/{name}.db")
        where: str = request.getfixturevalue("server")
        schema = f"s{abs(hash(request.node.name)):x}_{name}"[:60]
        return Engine(lambda: PostgresStore(where, schema), f"{where}?schema={schema}")

    return opened


KINDS = ("memory", "sqlite", "postgresql")


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_a_log_moves_between_any_two_stores(opens: Any, source: str, target: str) -> None:
    old, new = opens(source, "old"), opens(target, "new")
    live(old)
    with old, new:
        before = [entry for entry in old.store.read_entries() if entry.entity != SWITCHES_ENTITY]
        found = copy.move_log(old, new, reason="the move", by="operator")
        after = [entry for entry in new.store.read_entries() if entry.entity != SWITCHES_ENTITY]
        assert [entry._replace(seq=0) for entry in after] == [entry._replace(seq=0) for entry in before]
        assert any(entry.body is None for entry in after), "what is pruned stays pruned"
        assert found.copied == found.entries == len(before) + 3
        assert copy.move_log(old, new, reason="again").copied == 0, "it is there already"
        with pytest.raises(NotPermitted, match="has moved to") as refused:
            pay.bind(old)("new")
        assert refused.value.reason == "moved"
        with pytest.raises(NotPermitted, match="has moved to"):
            pay.bind(old).submit("new")
        assert Worker(old, [pay], poll_s=0.05).run_until_idle().done == 0
        with pytest.raises(UsageError, match="turn switches there"):
            old.switches.on(reason="x")
        calls.clear()
        assert pay.bind(new)("kept") == "paid kept"
        with pytest.raises(oncemore.errors.KeyExpired):
            pay.bind(new)("o3")
        assert calls == [], "what was done is not done again"
        assert Worker(new, [pay], poll_s=0.05).run_until_idle().done == 1
        assert calls == ["deferred"]
        assert new.verify().entities
        told = [(said.action, said.by) for said in new.switches.history()]
        assert told[-2:] == [("moved", "operator"), ("arrived", "operator")]


def test_the_target_is_closed_until_all_of_it_has_come(opens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for who had it open before: the switches come first, and every INTENT is guarded by them."""
    old, new, other = opens("sqlite", "old"), opens("sqlite", "new"), opens("sqlite", "new")
    live(old)
    with old, new, other:
        warm = pay.bind(other)
        seen: list[Any] = []
        monkeypatch.setattr(copy, "ENTRY_PAGE_SIZE", 5)

        def progress(done: int, of: int) -> None:
            try:
                seen.append(warm("o9"))
            except NotPermitted as error:
                seen.append(error.reason)

        copy.move_log(old, new, reason="x", progress=progress)
        assert seen[0] == "moved"
        assert set(seen) == {"moved", "paid o9"}, "what has come can be had, and nothing is begun"
        assert warm("o9") == "paid o9"
    assert calls.count("o9") == 1


@pytest.mark.parametrize("at", ["source", "before", "middle", "end"])
def test_a_copy_that_died_goes_on_where_it_was(opens: Any, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Death(BaseException):
        pass

    old, new = opens("sqlite", "old"), opens("memory", "new")
    live(old)
    monkeypatch.setattr(copy, "ENTRY_PAGE_SIZE", 7)

    def die(*told: Any) -> Any:
        raise Death

    with old, new, monkeypatch.context() as patch:
        if at == "source":
            patch.setattr(copy, "_copy_entries", die)
        elif at == "end":
            patch.setattr(copy, "_compare_stores", die)
        pages = iter(range(100))

        def progress(done: int, of: int) -> None:
            if (at, next(pages)) in (("before", 0), ("middle", 3)):
                raise Death

        with pytest.raises(Death):
            copy.move_log(old, new, reason="x", progress=progress)
    with old, new:
        with pytest.raises(NotPermitted):
            pay.bind(old)("new")
        if at != "source":
            with pytest.raises(NotPermitted):
                pay.bind(new)("new")
    with old, new:
        if at == "middle":
            # Pruned after it was copied, or before.
            old.store.open_maintenance().prune_bodies({"run/" + pay.key("kept"): 2})
        found = copy.move_log(old, new, reason="x")
        assert found.entries > found.copied or at == "source"
        assert pay.bind(new)("new") == "paid new"
        new.store.close()


def test_a_copy_that_has_not_come_to_its_end_can_be_abandoned(opens: Any) -> None:
    old, new, other = opens("sqlite", "old"), opens("memory", "new"), opens("memory", "other")
    live(old)
    with old, new, other:
        with pytest.raises(UsageError, match="has not moved"):
            copy.abandon_move(old, new, reason="x")

        def stop(done: int, of: int) -> None:
            raise RuntimeError("enough")

        with pytest.raises(RuntimeError):
            copy.move_log(old, new, reason="x", progress=stop)
        with pytest.raises(UsageError, match="has moved to memory:new already"):
            copy.move_log(old, other, reason="x")
        with pytest.raises(UsageError, match="not to memory:other"):
            copy.abandon_move(old, other, reason="x")
        copy.abandon_move(old, new, reason="not today", by="operator")
        assert pay.bind(old)("new") == "paid new"
    with old, new, other:
        copy.move_log(old, other, reason="x")
        with pytest.raises(UsageError, match="would do that work twice"):
            copy.abandon_move(old, other, reason="x")


def test_a_target_that_holds_something_else_is_not_touched(opens: Any) -> None:
    old, new = opens("sqlite", "old"), opens("sqlite", "new")
    live(old)
    with new:
        pay.bind(new)("mine")
        before = list(new.store.read_entries())
    with old, new:
        with pytest.raises(UsageError, match="holds something else"):
            copy.move_log(old, new, reason="x")
        assert [entry.hash for entry in new.store.read_entries()][: len(before)] == [
            entry.hash for entry in before
        ]


def test_a_target_that_has_gone_on_is_no_target(opens: Any) -> None:
    old, new = opens("memory", "old"), opens("memory", "new")
    live(old)
    with old, new:
        copy.move_log(old, new, reason="x")
        pay.bind(new)("new")
        with pytest.raises(StoreError, match="the copy differs from the source"):
            copy.move_log(old, new, reason="x")


def test_nothing_is_copied_while_somebody_works_there(opens: Any) -> None:
    old, new = opens("sqlite", "old"), opens("memory", "new")
    live(old)
    begun, end = threading.Event(), threading.Event()

    @oncemore.step(effect="idempotent", name="long")
    def long() -> None:
        begun.set()
        assert end.wait(30)

    other = opens("sqlite", "old")

    def work() -> None:
        with other:
            long.bind(other)()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(30)
        with old, new:
            with pytest.raises(InProgress, match=r"is in use by process"):
                copy.move_log(old, new, reason="x")
            assert pay.bind(old)("goes on") == "paid goes on"
            assert list(new.store.read_entries()) == []
    finally:
        end.set()
        thread.join(30)


def test_somebody_who_begins_in_the_last_moment_is_found_too(
    opens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = opens("memory", "old"), opens("memory", "new")
    live(old)
    with old, new:
        idle = copy._check_idle
        looks: list[int] = []

        def late(source: Engine, *told: Any) -> None:
            looks.append(1)
            if len(looks) == 2:
                source.leases.current_identity()
            idle(source, *told)

        monkeypatch.setattr(copy, "_check_idle", late)
        with pytest.raises(InProgress):
            copy.move_log(old, new, reason="x")
        assert pay.bind(old)("goes on") == "paid goes on", "it is opened again"


def test_a_copy_that_is_not_the_same_stays_closed(opens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("entries", "heads", "extra", "bytes"):
        old, new = opens("memory", f"old {wrong}"), opens("memory", f"new {wrong}")
        live(old)
        with old, new, monkeypatch.context() as patch:
            store = new.store
            filled = copy._copy_entries

            def spoiled(
                source: Any, target: Any, progress: Any, filled: Any = filled, wrong: str = wrong
            ) -> int:
                taken: int = filled(source, target, progress)
                name = next(name for name in target._heads if name.startswith("run/"))
                if wrong == "entries":
                    target._log.pop()
                elif wrong == "heads":
                    target._heads[name] = target._heads[name]._replace(version=99)
                elif wrong == "extra":
                    target._heads["run/zz"] = target._heads[name]._replace(entity="run/zz")
                else:
                    target._log[20] = target._log[20]._replace(body=b"{}", header=b"{}")
                return taken

            patch.setattr(copy, "_copy_entries", spoiled)
            with pytest.raises(StoreError):
                copy.move_log(old, new, reason="x")
            with pytest.raises(NotPermitted):
                pay.bind(new)("new")
            del store


def test_what_is_added_while_it_is_copied_comes_too(opens: Any) -> None:
    """What keeps house needs no worker; what people decide is refused, it may be too late for it."""
    old, new = opens("memory", "old"), opens("memory", "new")
    live(old)
    added: list[int] = []

    def progress(done: int, of: int) -> None:
        if not added:
            added.append(1)
            with pytest.raises(oncemore.errors.NotPermitted):
                pay.bind(old).submit("too late")
            with pytest.raises(oncemore.errors.NotPermitted):
                pay.bind(old).cancel("deferred", reason="withdrawn")
            old.prune(older_than=3600)

    with old, new:
        before = len(list(old.store.list_heads(HeadQuery("maintenance"))))
        found = copy.move_log(old, new, reason="x", progress=progress)
        run = pay.bind(new).last_run("deferred")
        assert run is not None
        assert run.status == "PENDING"
        assert len(list(new.store.list_heads(HeadQuery("maintenance")))) == before + 1
        assert found.entries == found.copied


def test_a_copy_goes_somewhere_else_and_from_an_original(opens: Any, tmp_path: Path) -> None:
    old = opens("sqlite", "old")
    live(old)
    with old:
        with pytest.raises(UsageError, match="both source and target"):
            copy.move_log(old, old, reason="x")
        with pytest.raises(UsageError, match="reason"):
            copy.move_log(old, opens("memory", "new"), reason="")
        old.backup(tmp_path / "backup.db")
    with opens("sqlite", "backup") as copied, pytest.raises(UsageError, match="is a copy itself"):
        copy.move_log(copied, opens("memory", "new"), reason="x")


def test_a_clock_that_is_behind_is_told(opens: Any) -> None:
    import time

    old = opens("memory", "old")
    live(old)
    store = MemoryStore(lambda: time.time() - 100)
    with old, Engine(lambda: store, "memory:slow") as new:
        assert copy.move_log(old, new, reason="x").clock_lag_s == pytest.approx(100, abs=5)


def test_the_command_copies_says_so_and_can_be_abandoned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    old, new = str(tmp_path / "old.db"), str(tmp_path / "new.db")
    with oncemore.open(old) as engine:
        live(engine)
    assert cli.run_command(["store", "move", old, new, "--abandon", "--reason", "x"]) == 2
    assert cli.run_command(["store", "move", old, new, "--reason", "the move", "--by", "operator"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "both stores have the root " in told
    assert "is closed: no work starts there again" in told
    assert cli.run_command(["store", "move", old, new, "--reason", "again", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["copied"] == 0
    cli.run_command(["store", "doctor", "--store", old])
    assert "this log has moved to sqlite:///" in " ".join(capsys.readouterr().out.split())
    cli.run_command(["runs", "--store", old])
    assert "stopped: moved" in capsys.readouterr().out
    assert cli.run_command(["store", "move", str(tmp_path / "nothing.db"), new, "--reason", "x"]) == 2
