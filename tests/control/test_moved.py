"""What people decide in a log that has moved is refused, by every verb, with the address where it counts."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli, outbox
from oncemore.control import moved_log
from oncemore.control.model import SWITCHES_ENTITY
from oncemore.errors import NotPermitted, StaleDecision, StoreError
from oncemore.log.memory import MemoryStore
from oncemore.log.store import HeadQuery
from oncemore.maintenance import copy
from oncemore.queries import limits
from oncemore.steps.engine import Engine
from tests.control import deeds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Lasting(MemoryStore):
    """Stays when its engine is closed."""

    def close(self) -> None:
        """Forget nothing."""


def live(engine: Engine) -> None:
    """Have something of everything that people decide about."""
    with engine:
        for step in (deeds.pay, deeds.fail, deeds.judge, deeds.fetch, deeds.ask, deeds.sign):
            with suppress(oncemore.Error, OSError):
                step.bind(engine)("A-1")
        deeds.ship.bind(engine).submit("A-1")
        deeds.tell.bind(engine)("A-1")

        def refuse(message: Any) -> None:
            raise oncemore.PermanentError("not like this")

        assert outbox.OutboxRelay(engine, {"*": refuse}).run_once().dead == 1
        deeds.sign.bind(engine).approve("A-2", reason="seen", by="operator")


WHY: dict[str, Any] = {"reason": "because", "by": "operator"}


def held(engine: Engine, step: str) -> Any:
    (item,) = [one for one in engine.quarantine.list() if one.step == step]
    return item


#: Everything that a person can decide about work, by its verb.
VERBS: dict[str, Callable[[Engine], object]] = {
    "cancel": lambda engine: deeds.ship.bind(engine).cancel("A-1", reason="because"),
    "settle": lambda engine: deeds.pay.bind(engine).settle(oncemore.not_applied(), "A-1", reason="because"),
    "rerun": lambda engine: deeds.fail.bind(engine).rerun("A-1", reason="because"),
    "approve": lambda engine: deeds.sign.bind(engine).approve("A-1", **WHY),
    "mark_done": lambda engine: deeds.ship.bind(engine).mark_done("A-9", value="x", reason="because"),
    "approvals.approve": lambda engine: engine.approvals.approve(deeds.sign.bind(engine).key("A-1"), **WHY),
    "approvals.revoke": lambda engine: engine.approvals.revoke(deeds.sign.bind(engine).key("A-2"), **WHY),
    "quarantine.release": lambda engine: engine.quarantine.release(held(engine, "told"), **WHY),
    "quarantine.reject": lambda engine: engine.quarantine.reject(held(engine, "judge"), **WHY),
    "quarantine.rerun": lambda engine: engine.quarantine.rerun(held(engine, "judge"), **WHY),
    "quarantine.settle": lambda engine: engine.quarantine.settle(
        held(engine, "pay"), oncemore.applied("x"), **WHY
    ),
    "cooldowns.release": lambda engine: engine.cooldowns.release("file A-1", **WHY),
    "cooldowns.bring_in": lambda engine: engine.cooldowns.import_record(
        "file A-9", {"attempt_count_total": 7}, **WHY
    ),
    "breakers.reset": lambda engine: limits.reset_breaker(engine, "bank", "because", "operator"),
    "redeliver": lambda engine: outbox.OutboxRelay(engine, {"*": print}).redeliver(
        next(iter(engine.store.list_heads(HeadQuery("event")))).entity.removeprefix("event/"),
        reason="because",
    ),
}


def two() -> tuple[Engine, Engine]:
    stores = Lasting(), Lasting()
    return Engine(lambda: stores[0], "memory:old"), Engine(lambda: stores[1], "memory:new")


@pytest.mark.parametrize("verb", VERBS)
def test_a_decision_in_a_log_that_has_moved_names_the_one_where_it_counts(verb: str) -> None:
    old, new = two()
    live(old)
    copy.move_log(old, new, reason="outgrown", by="operator")
    with old:
        before = [entry.hash for entry in old.store.read_entries()]
        with pytest.raises(NotPermitted, match="this log has moved to memory:new") as refused:
            VERBS[verb](old)
        assert refused.value.reason == "moved"
        assert [entry.hash for entry in old.store.read_entries()] == before, "nothing was written"
    with new:
        with suppress(oncemore.PermanentFailure):  # the work fails again, and that is an outcome
            VERBS[verb](new)
        assert len(list(new.store.read_entries())) > len(before), "there it counts"


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "breakers.reset"])
def test_a_decision_that_is_under_way_when_the_log_is_closed_is_refused(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would write is not in the copy: so it is not written at all."""
    old, new = two()
    live(old)
    append, moved = old.store.append, []

    def late(batch: Any) -> Any:
        if not moved and not any(write.entity.startswith("worker/") for write in batch.writes):
            monkeypatch.setattr(old.store, "append", append)
            moved.append(True)
            copy._close_source(old, "memory:new", "outgrown", "operator")
        return append(batch)

    with old:
        monkeypatch.setattr(old.store, "append", late)
        before = len([entry for entry in old.store.read_entries() if not entry.entity.startswith("worker/")])
        with pytest.raises((NotPermitted, oncemore.UsageError)) as refused:
            VERBS[verb](old)
        after = [entry.entity for entry in old.store.read_entries() if not entry.entity.startswith("worker/")]
    assert moved
    assert after[before:] == [SWITCHES_ENTITY]
    if verb != "redeliver":  # which is told that something has changed, and learns more when it looks again
        assert "this log has moved to memory:new" in str(refused.value)
    new.close()


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("breakers.reset", "redeliver")])
def test_a_switch_that_somebody_turns_meanwhile_takes_nothing_from_a_decision(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = two()
    live(old)
    append, turned = old.store.append, []

    def meddled(batch: Any) -> Any:
        if not turned and not any(write.entity.startswith("worker/") for write in batch.writes):
            monkeypatch.setattr(old.store, "append", append)
            turned.append(True)
            old.switches.on(step="nothing", **WHY)
        return append(batch)

    with old:
        before = len(list(old.store.read_entries()))
        monkeypatch.setattr(old.store, "append", meddled)
        with suppress(oncemore.PermanentFailure):
            VERBS[verb](old)
        assert turned
        assert len(list(old.store.read_entries())) >= before + 2


def test_switches_that_are_turned_all_the_time_end_a_decision_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, _ = two()
    live(old)
    append, turns = old.store.append, iter(range(1000))

    def meddled(batch: Any) -> Any:
        if not any(write.entity == SWITCHES_ENTITY for write in batch.writes):
            old.switches.on(step=f"nothing-{next(turns)}", **WHY)
        return append(batch)

    with old:
        monkeypatch.setattr(old.store, "append", meddled)
        with pytest.raises(StaleDecision, match=f"switches changed {moved_log.MAX_TRIES} times"):
            deeds.ship.bind(old).mark_done("A-9", reason="because")


def test_of_two_decisions_the_second_is_still_told_that_it_is_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, _ = two()
    live(old)
    append, done = old.store.append, []

    def first(batch: Any) -> Any:
        if not done:
            done.append(True)
            old.quarantine.reject(held(old, "judge"), **WHY)
        return append(batch)

    with old:
        item = held(old, "judge")
        monkeypatch.setattr(old.store, "append", first)
        with pytest.raises(StaleDecision, match="in this very moment"):
            old.quarantine.rerun(item, **WHY)


def test_a_decision_is_refused_where_nobody_can_tell_whether_the_log_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, _ = two()
    live(old)
    head = old.store.load_head

    def away(entity: str) -> Any:
        if entity == SWITCHES_ENTITY:
            raise StoreError("away")
        return head(entity)

    with old:
        old.permissions.drop_cached()
        monkeypatch.setattr(old.store, "load_head", away)
        with pytest.raises(
            NotPermitted, match=r"a decision about ship was not begun.*cannot be read"
        ) as refused:
            deeds.ship.bind(old).cancel("A-1", reason="because")
        assert refused.value.reason == "control_state_unknown"


def test_async_steps_are_refused_alike() -> None:
    old, new = two()

    @oncemore.step(effect="idempotent", name="deferred", policy=deeds.ONE)
    async def later(order: str) -> str:
        raise oncemore.PermanentError(order)

    async def main() -> None:
        with old:
            await later.bind(old).run("A-1")
            await later.bind(old).submit("A-2")
        copy.move_log(old, new, reason="outgrown", by="operator")
        with old:
            with pytest.raises(
                NotPermitted, match="nothing was decided about deferred: this log has moved to"
            ):
                await later.bind(old).cancel("A-2", reason="because")
            with pytest.raises(
                NotPermitted, match="nothing was decided about deferred: this log has moved to"
            ):
                await later.bind(old).rerun("A-1", reason="because")

    asyncio.run(main())


# From a terminal

STEPS = "tests.control.deeds"
#: The words of each command, without its store; {…} stands for what an earlier look has found.
COMMANDS: dict[str, tuple[str, ...]] = {
    "submit": ("runs", "submit", f"{STEPS}:ship", "order=A-9"),
    "cancel": ("runs", "cancel", f"{STEPS}:ship", "order=A-1", "--reason", "because"),
    "rerun": ("runs", "rerun", f"{STEPS}:fail", "order=A-1", "--reason", "because"),
    "approve": ("control", "approve", "{sign}", "--reason", "because"),
    "revoke": ("control", "approve", "{signed}", "--revoke", "--reason", "because"),
    "release": ("quarantine", "release", "{told}", "--by", "operator", "--reason", "because"),
    "reject": ("quarantine", "reject", "{judge}", "--by", "operator", "--reason", "because"),
    "settle": ("quarantine", "settle", "{pay}", "--not-applied", "--by", "operator", "--reason", "because"),
    "cooldowns": ("limits", "cooldowns", "release", "file A-1", "--reason", "because"),
    "breakers": ("limits", "breakers", "reset", "bank", "--reason", "because"),
    "switch": ("control", "switch", "on", "--reason", "because"),
    "import": ("store", "import", "--step", f"{STEPS}:ship", "{sheet}"),
}


def test_every_command_that_decides_names_the_new_address_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("NO_COLOR", "1")
    old, new, sheet = tmp_path / "old.db", tmp_path / "new.db", tmp_path / "done.csv"
    sheet.write_text("order\nA-9\n")
    with oncemore.open(old) as engine:
        live(engine)
        found = {item.step: item.id for item in engine.quarantine.list()}
        found |= {"signed": deeds.sign.key("A-2"), "sheet": str(sheet)}
    assert (
        cli.run_command(["store", "move", str(old), str(new), "--reason", "outgrown", "--by", "operator"])
        == 0
    )
    capsys.readouterr()
    for words in COMMANDS.values():
        told = [word.format(**found) for word in words]
        code = cli.run_command([*told, "--store", str(old)])
        said = " ".join(capsys.readouterr().err.split())
        assert code, (told, said)
        assert f"this log has moved to sqlite:///{new}" in said, told
    assert cli.run_command(["control", "switch", "status", "--store", str(old)]) == 1
    assert f"This log has been moved to sqlite:///{new}; no work starts here." in capsys.readouterr().out
    assert cli.run_command(["control", "switch", "status", "--store", str(old), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["is_stopped"] is True
    assert cli.run_command(["store", "health", "--store", str(old), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["moved_to"] == f"sqlite:///{new}"
    for words in (COMMANDS["cancel"], COMMANDS["reject"], COMMANDS["approve"]):
        assert cli.run_command([*(word.format(**found) for word in words), "--store", str(new)]) == 0, words
