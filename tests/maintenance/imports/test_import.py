"""Imported keys are marked as done and never run; a bad line is named."""

from __future__ import annotations

import contextvars
import datetime
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore._values import Value
from oncemore.maintenance.import_keys import build_named_import, mark_keys_done
from oncemore.queries import import_keys
from oncemore.queries.import_keys import KeyFile, check_key_file, import_key_file
from oncemore.queries.step_commands import import_step
from tests.crash.harness import CrashingStore, crash_at_every_write, open_engine_on

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock

ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@oncemore.step(effect="once", name="moving.pay")
def pay(order: str, cents: int) -> dict[str, Any]:
    ran.append(order)
    return {"order": order}


@oncemore.step(effect="once", name="moving.by-key", key="order")
def by_key(order: str, cents: int, token: oncemore.Secret | None = None) -> str:
    ran.append(order)
    return order


# mark_done ------------------------------------------------------------------------------------------


def test_a_key_marked_as_done_is_not_run_and_returns_the_value(engine: oncemore.Engine) -> None:
    with oncemore.context(actor="an operator"):
        run = pay.mark_done("a", 5, value={"receipt": 7}, reason="done by the old system")
    assert (run.status, run.reason, run.value, run.attempts) == ("COMPLETE", "imported", {"receipt": 7}, ())
    assert pay("a", 5) == {"receipt": 7}
    assert pay("b", 5) == {"order": "b"}
    assert ran == ["b"]
    assert "was done elsewhere, and marked as done here" in run.explain()
    assert "decided by an operator: import, because done by the old system" in run.explain()
    assert [record["state"] for record in run.records()] == ["PENDING", "COMPLETE", "COMPLETE"]
    engine.verify()


def test_marking_a_complete_key_changes_nothing_and_other_states_are_refused(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    pay("a", 5)
    assert pay.mark_done("a", 5, value="other", reason="r").value == {"order": "a"}

    @oncemore.step(effect="once", name="moving.fails")
    def fails(kind: str) -> None:
        raise TimeoutError if kind == "held" else oncemore.PermanentError("no")

    fails.run("held")
    with pytest.raises(oncemore.UsageError, match=r"cannot be marked as done: the key is SOFT_FAIL, held"):
        fails.mark_done("held", reason="r")

    @oncemore.step(effect="pure", name="moving.over")
    def over() -> None:
        with pytest.raises(oncemore.UsageError, match=r"the key is RUNNING \(in progress\)"):
            contextvars.Context().run(lambda: over.bind(engine).mark_done(reason="r"))
        raise oncemore.PermanentError("no")

    over.run()
    with pytest.raises(oncemore.UsageError, match=r"the key is HARD_FAIL \(not_retryable\)"):
        over.mark_done(reason="r")
    by_key("x", 1)
    with pytest.raises(oncemore.UsageError, match="the key belongs to other arguments"):
        by_key.mark_done("x", 2, reason="r")


def test_a_mark_needs_a_reason_and_a_value_that_can_be_stored(engine: oncemore.Engine) -> None:
    with pytest.raises(oncemore.UsageError, match="reason is missing"):
        pay.mark_done("a", 1, reason=" ")
    with pytest.raises(oncemore.UsageError, match=r"the value given for moving\.pay cannot be stored"):
        pay.mark_done("a", 1, value=object(), reason="r")
    assert pay.last_run("a", 1) is None


def test_a_concurrent_run_wins_over_a_mark() -> None:
    class Busy(CrashingStore):
        def append(self, batch: Any) -> Any:
            if len(batch.writes) == 2 and not done:
                done.append(1)
                pay.bind(open_engine_on(self))("a", 1)
            return super().append(batch)

    done: list[int] = []
    with open_engine_on(Busy()) as engine:
        group = [build_named_import(pay, {"order": name, "cents": 1}, name, "r", "b") for name in ("a", "b")]
        assert mark_keys_done(engine, group) == ["present", "marked"]
        assert (pay("a", 1), pay("b", 1)) == ({"order": "a"}, "b")


# Files ----------------------------------------------------------------------------------------------


def csv(tmp_path: Path, text: str, name: str = "done.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_csv_file_marks_its_lines_by_the_annotations_of_the_step(
    engine: oncemore.Engine, tmp_path: Path
) -> None:
    path = csv(tmp_path, '\ufefforder,cents,receipt\na,5,"{""n"": 1}"\n\nb,6,\na,5,{}\n')
    told: list[int] = []
    found = import_key_file(
        engine, pay, KeyFile(path, {}, "receipt"), reason="we moved", by="an operator", progress=told.append
    )
    assert found == import_keys.ImportReport(3, 2, 1, 0, ())
    assert (pay("a", 5), pay("b", 6)) == ({"n": 1}, None)
    assert ran == []
    assert told == [3]
    (task,) = engine.maintenance_tasks()
    assert (task.task, task.state, task.actor, task.reason, task.run_count) == (
        "import", "DONE", "an operator", "we moved", 2,
    )  # fmt: skip
    assert import_key_file(engine, pay, KeyFile(path, {}, "receipt"), reason="again").already_done == 3


def test_a_json_lines_file_has_the_types_of_json(engine: oncemore.Engine, tmp_path: Path) -> None:
    lines = [{"id": "a", "cents": 5, "out": {"n": [1, 2]}}, {"id": "b", "cents": 6, "out": None}]
    path = csv(tmp_path, "\n\n".join(map(json.dumps, lines)), "done.jsonl")
    found = import_key_file(engine, pay, KeyFile(path, {"id": "order"}, "out"), reason="r")
    assert found.imported == 2
    assert pay("a", 5) == {"n": [1, 2]}


def test_dates_numbers_and_typed_results_become_what_the_annotations_say(
    engine: oncemore.Engine, tmp_path: Path
) -> None:
    @oncemore.step(effect="once", name="moving.typed")
    def typed(day: datetime.date, share: float, flag: bool, free, name: str = "x") -> str:  # type: ignore[no-untyped-def]
        raise AssertionError

    path = csv(tmp_path, "day,share,flag,free,out\n2026-11-16,0.5,true,007,\n")
    assert import_key_file(engine, typed, KeyFile(path, {}, "out"), reason="r").imported == 1
    assert typed(datetime.date(2026, 11, 16), 0.5, True, "007") == ""


def test_the_key_alone_is_enough_where_key_names_its_arguments(
    engine: oncemore.Engine, tmp_path: Path
) -> None:
    path = csv(tmp_path, "order_id,comment\na,x\nb,y\n")
    sheet = KeyFile(path, {"order_id": "order"}, None, ("comment",))
    assert import_key_file(engine, by_key, sheet, reason="r").imported == 2
    assert by_key("a", 5) is None
    assert by_key("a", 6) is None, "what else it was called with nobody knows"
    assert ran == []
    path = csv(tmp_path, "order,cents\nc,5\n")
    import_key_file(engine, by_key, KeyFile(path, {}), reason="r")
    assert by_key("c", 5) is None
    with pytest.raises(oncemore.KeyConflict):
        by_key("c", 6)


def test_conflicting_keys_are_reported_by_line_and_not_changed(
    engine: oncemore.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @oncemore.step(effect="once", name="moving.held")
    def held(order: str) -> None:
        raise TimeoutError

    for n in range(3):
        held.run(f"h{n}")
    monkeypatch.setattr(import_keys, "MAX_SHOWN", 2)
    path = csv(tmp_path, "order\nh0\nfree\nh1\nh2\n")
    found = import_key_file(engine, held, KeyFile(path, {}), reason="r")
    assert found[:4] == (4, 1, 0, 3)
    assert found.conflicts_shown == tuple(
        (line, "the key is SOFT_FAIL, held (outcome_unknown)") for line in (2, 4)
    )
    with pytest.raises(oncemore.OutcomeUnknown):
        held("h0")


def test_a_dry_run_checks_every_line_and_writes_nothing(engine: oncemore.Engine, tmp_path: Path) -> None:
    pay("there", 1)
    before = list(engine.store.read_entries())
    path = csv(tmp_path, "order,cents\nthere,1\nnew,1\nnew,1\n")
    found = check_key_file(pay, KeyFile(path, {}), lambda lines: None)
    assert found[:4] == (3, 1, 2, 0)
    assert list(engine.store.read_entries()) == before


class Wrong(Value):
    """A file that cannot be imported, and the expected message."""

    text: str
    says: str
    name: str = "done.csv"
    columns: dict[str, str] = {}  # noqa: RUF012
    result: str | None = None


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong("", r"done.csv:1: the first line must name the columns"),
        Wrong("order,order\n", r"done.csv:1: the first line must name"),
        Wrong("order,cents\na,5\nb\n", r"done.csv:3: the line has 1 cells, the file has 2 columns"),
        Wrong("order,cents\na,5\nb,x\n", r"done.csv:3: cents is 'x': Expected `int`"),
        Wrong(
            "order,cents,extra\na,5,1\n",
            r"done.csv:2: column 'extra' is not a parameter of moving.pay; name the",
        ),
        Wrong("order\na\n", r"done.csv:2: cents is missing: the key of moving.pay is made of it"),
        Wrong('order,cents\n"a,5\n', r"done.csv:2: not CSV: unexpected end of data"),
        Wrong("id,cents\na,5\n", r"--column names what, which is not a parameter", columns={"id": "what"}),
        Wrong(
            "order,cents\n", r"done.csv:1: there is no column id, out", columns={"id": "order"}, result="out"
        ),
        Wrong("order,cents,r\na,5,{\n", r"done.csv:2: r is '{': not JSON", result="r"),
        Wrong("order,cents,r\na,5,7\n", r"done.csv:2: r is 7: Expected `object`", result="r"),
        Wrong("{\n", r"done.jsonl:1: not JSON", "done.jsonl"),
        Wrong("\n[1]\n", r"done.jsonl:2: expected an object with the step's parameters", "done.jsonl"),
        Wrong('{"order": "a", "cents": "5"}', r"done.jsonl:1: cents is '5': Expected `int`", "done.jsonl"),
    ],
    ids=lambda wrong: wrong.says[:40],
)
def test_a_bad_line_is_named_with_file_line_and_field(
    engine: oncemore.Engine, tmp_path: Path, wrong: Wrong
) -> None:
    path = csv(tmp_path, wrong.text, wrong.name)
    with pytest.raises(oncemore.UsageError, match=wrong.says):
        import_key_file(engine, pay, KeyFile(path, wrong.columns, wrong.result), reason="r")
    with pytest.raises(oncemore.UsageError, match=wrong.says):
        check_key_file(pay, KeyFile(path, wrong.columns, wrong.result), lambda lines: None)


def test_invalid_utf8_and_overlong_lines_are_refused(
    engine: oncemore.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "done.csv"
    path.write_bytes(b"order,cents\n\xff\xfe,5\n")
    with pytest.raises(oncemore.UsageError, match=r"done.csv:1 or below: not UTF-8"):
        import_key_file(engine, pay, KeyFile(path, {}), reason="r")
    monkeypatch.setattr(import_keys, "MAX_LINE_BYTES", 20)
    path = csv(tmp_path, json.dumps({"order": "a" * 50}), "done.jsonl")
    with pytest.raises(oncemore.UsageError, match=r"done.jsonl:1: the line is longer than 20 bytes"):
        import_key_file(engine, pay, KeyFile(path, {}), reason="r")


def test_all_parts_of_a_key_must_be_given(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="once", name="moving.parts", key="order", partition=lambda order, day: day)
    def parts(order: str, day: str) -> None: ...

    with pytest.raises(
        oncemore.UsageError, match=r"day is missing: partition of moving\.parts may be made of it"
    ):
        build_named_import(parts, {"order": "a"}, None, "r", "b")

    class Shop:
        @oncemore.step(effect="once", name="moving.method", key="order")
        def method(self, order: str, *rest: int, **more: int) -> None: ...

    with pytest.raises(oncemore.UsageError, match=r"self is missing: the key|order is missing: the key"):
        build_named_import(Shop.method, {}, None, "r", "b")


def test_an_import_that_crashes_anywhere_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_keys, "GROUP_SIZE", 2)
    path = csv(tmp_path, "order,cents\n" + "".join(f"o{n},1\n" for n in range(5)))

    def act(store: CrashingStore) -> None:
        engine = open_engine_on(store)
        import_key_file(engine, pay.bind(engine), KeyFile(path, {}), reason="r", by="b")

    count = 0
    for store in crash_at_every_write(CrashingStore, act):
        count += 1
        with open_engine_on(store) as engine:
            engine.verify()
            found = import_key_file(engine, pay, KeyFile(path, {}), reason="r", by="b")
            assert found.imported + found.already_done == 5
            assert all(task.state == "DONE" for task in engine.maintenance_tasks())
            assert [pay(f"o{n}", 1) for n in range(5)] == [None] * 5
            engine.verify()
    assert count >= 8
    assert ran == []


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("nothing", "'nothing' is not the address of a step; write package.module:step"),
        ("no_such_module:step", "there is no module 'no_such_module'"),
        ("json:gone", "json has no step called 'gone'"),
        ("json:dumps", "json has no step called 'dumps'"),
    ],
)
def test_an_address_without_a_step_is_refused(address: str, says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        import_step(address)


def test_an_address_leads_to_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = type(sys)("shop")
    module.orders = type(sys)("orders")
    module.orders.pay = pay
    monkeypatch.setitem(sys.modules, "shop", module)
    assert import_step("shop:orders.pay") is pay
