"""Errors that a call raises: what they carry, what they survive, and what a broken store says."""

import pickle
from pathlib import Path
from typing import Any

import pytest

import oncemore
from oncemore.log.result_codec import MAX_BYTES
from oncemore.testing import FakeClock
from tests.steps.colours import RAISES, SOON, Turns, do, each_colour, in_memory, made, on_sqlite


class Odd(Exception):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unpicklable(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(code)
        self.detail = lambda: detail


class Endless(Exception):
    def __init__(self) -> None:
        super().__init__("in circles")
        self.__cause__ = self


class Liar(Exception):
    """Its class makes something else of what Python keeps with an error."""

    __cause__ = property(lambda self: 1 / 0)  # type: ignore[assignment]
    __traceback__ = property(lambda self: 1 / 0)  # type: ignore[assignment]


def chained() -> Exception:
    error: Exception = ValueError("root")
    for n in range(50):
        outer = RuntimeError(f"level {n}")
        outer.__cause__ = error
        error = outer
    return error


ODD: dict[str, Exception] = {
    "raising __str__": Odd(),
    "unpicklable": Unpicklable(5, detail="lambda"),
    "recursive": Endless(),
    "lying": Liar("about its cause"),
    "huge": ValueError("x" * 20_000_000),
    "half characters": ValueError("\ud800\udfff\x00\x1b[31mred\n2026-01-01 forged"),
    "long chain": chained(),
    "many arguments": ValueError(*range(100_000)),
    "not text": KeyError(object()),
    "group": ExceptionGroup("several", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")])]),
    "no class name": type("", (Exception,), {})("nameless"),
}


@each_colour
@pytest.mark.parametrize("kind", ODD)
def test_any_exception_ends_the_run_in_a_record(colour: str, kind: str, engine: oncemore.Engine) -> None:
    error = ODD[kind]
    step = made(colour, Turns(error), effect="pure", policy=RAISES)
    for cause in (error, None):
        with pytest.raises(oncemore.PermanentFailure) as caught:
            do(colour, step)
        assert caught.value.__cause__ is cause
        assert len(str(caught.value)) < 1000
        assert "\n" not in str(caught.value)
        assert "\x1b" not in str(caught.value)
    run = caught.value.run
    assert isinstance(run, oncemore.Run)
    assert run.status == "HARD_FAIL"
    assert run.error is not None
    assert len(engine.store.load_head("run/" + run.key).body) < 20_000  # type: ignore[union-attr, arg-type]


@in_memory
@pytest.mark.usefixtures("engine")
def test_the_members_of_a_group_are_kept() -> None:
    step = made("plain", Turns(ODD["group"]))
    error = step.run().error
    assert [member["message"] for member in error["members"]] == ["one", "inner (1 sub-exception)"]
    assert error["members"][1]["members"][0]["type"] == "KeyError"


@in_memory
@pytest.mark.usefixtures("engine", "clock")
@each_colour
def test_a_group_is_tried_again_if_all_of_it_may_pass(colour: str) -> None:
    passing = Turns(ExceptionGroup("both", [ConnectionResetError(), TimeoutError()]), "done")
    assert do(colour, made(colour, passing)) == "done"
    mixed = Turns(ExceptionGroup("both", [ConnectionResetError(), ValueError()]), "never")
    with pytest.raises(oncemore.PermanentFailure):
        do(colour, made(colour, mixed, name="mixed"))


@pytest.mark.req("CLASS-18", "WAL-13")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
def test_what_is_no_exception_of_the_work_passes_untouched_and_leaves_the_run_resumable(
    error: BaseException, engine: oncemore.Engine
) -> None:
    turns = Turns(error, "done")
    step = made("plain", turns)
    with pytest.raises(type(error)) as caught:
        step()
    assert caught.value is error
    run = step.last_run()
    assert (run.status, run.reason) == ("SOFT_FAIL", "interrupted")
    assert run.state.worker == ""
    assert step() == "done"
    assert turns.calls == 2


@pytest.mark.usefixtures("engine", "clock")
@pytest.mark.parametrize(
    ("error", "state"),
    [
        (oncemore.TransientError("x"), "SOFT_FAIL"),
        (ConnectionResetError(), "SOFT_FAIL"),
        (TimeoutError(), "SOFT_FAIL"),
        (oncemore.PermanentError("x"), "HARD_FAIL"),
        (oncemore.PolicyViolation("SCHEMA_INVALID"), "HARD_FAIL"),
        (ValueError(), "HARD_FAIL"),
        (ZeroDivisionError(), "HARD_FAIL"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
@in_memory
def test_what_may_pass_is_soft_and_what_will_not_is_hard(error: Exception, state: str) -> None:
    step = made("plain", Turns(error, "done"))
    run = step.run()
    assert run.attempts[0].outcome == state
    assert run.status == ("COMPLETE" if state == "SOFT_FAIL" else "HARD_FAIL")


# What errors carry ----------------------------------------------------------------------------------


def raised(call: Any) -> oncemore.Error:
    try:
        call()
    except oncemore.Error as error:
        return error
    raise AssertionError("nothing was raised")


@on_sqlite
def test_errors_can_be_pickled_with_the_run_as_it_was(engine: oncemore.Engine, clock: FakeClock) -> None:
    exhausted = raised(made("plain", Turns(SOON)))
    terminal = raised(made("plain", Turns(ValueError("bad")), name="bad"))
    held = raised(made("plain", Turns(SOON), name="held", effect="once"))
    kept_nothing = raised(made("plain", Turns(lambda x: 5j), name="odd"))
    for error in (exhausted, terminal, held, kept_nothing):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (type(again), str(again)) == (type(error), str(error))
    run = pickle.loads(pickle.dumps(terminal)).run  # noqa: S301
    assert (run.status, run.step, run.reason) == ("HARD_FAIL", "bad", "not_retryable")
    assert repr(run) == repr(terminal.run)
    for asked in (lambda: run.attempts, lambda: run.error, lambda: run.wait(), lambda: run.records()):
        with pytest.raises(oncemore.UsageError, match="came from another process"):
            asked()


@in_memory
@pytest.mark.usefixtures("engine")
def test_an_error_about_no_run_carries_none() -> None:
    with oncemore.context(deadline=1.0):
        error = raised(made("plain", Turns("never")))
    assert isinstance(error, oncemore.DeadlineExceeded)
    assert error.run is None
    with oncemore.context(deadline=1.0), pytest.raises(oncemore.DeadlineExceeded):
        made("plain", Turns("never")).run()


# Huge and odd results -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["x" * (MAX_BYTES + 1), "\ud800", [[[object()]]], {object(): 1}, 5j, memoryview(b"x")],
    ids=["huge", "half a character", "nested object", "object as key", "complex", "memoryview"],
)
@in_memory
def test_a_result_beyond_what_can_be_kept_leaves_no_key_open(value: Any, engine: oncemore.Engine) -> None:
    with pytest.raises(oncemore.PermanentFailure):
        made("plain", lambda x: value, effect="pure")()
    with pytest.raises(oncemore.ResultUnavailable) as caught:
        made("plain", lambda x: value, effect="once", name="once")()
    assert caught.value.value is value
    assert len(str(caught.value)) < 1000


@on_sqlite
@pytest.mark.usefixtures("engine")
def test_a_large_result_is_kept_whole() -> None:
    value = {"data": "ab\x00é" * 500_000}
    step = made("plain", lambda x: value)
    assert step() == value
    assert step() == value


# A store that fails ---------------------------------------------------------------------------------


def test_a_file_that_is_no_store_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    garbage = b"this is not a database" * 500
    (tmp_path / "log.db").write_bytes(garbage)
    turns = Turns("never")
    with (
        oncemore.open(tmp_path / "log.db"),
        pytest.raises(oncemore.StoreError, match="not a store of oncemore"),
    ):
        made("plain", turns)()
    assert (tmp_path / "log.db").read_bytes() == garbage
    assert turns.calls == 0


@each_colour
def test_a_store_that_is_replaced_by_garbage_is_a_store_error_not_a_wrong_answer(
    colour: str, tmp_path: Path, clock: FakeClock
) -> None:
    turns = Turns("value", "again")
    with oncemore.open(tmp_path / "log.db"):
        assert do(colour, made(colour, turns)) == "value"
    for name in ("log.db", "log.db-wal", "log.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "log.db").write_bytes(b"garbage" * 5000)
    with oncemore.open(tmp_path / "log.db"):
        for call in (made(colour, turns), made(colour, turns).run):
            with pytest.raises(oncemore.StoreError) as caught:
                do(colour, call)
            assert caught.value.run is None
    assert turns.calls == 1


def test_a_folder_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where a folder should be")
    with oncemore.open(tmp_path / "file" / "log.db"), pytest.raises(oncemore.StoreError):
        made("plain", Turns("never"))()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write")
def test_a_place_where_nothing_can_be_created_is_a_store_error() -> None:
    for path in ("/proc/log.db", "/proc/new/log.db"):
        with oncemore.open(path), pytest.raises(oncemore.StoreError, match="/proc/"):
            made("plain", Turns("never"))()


def test_a_store_that_is_closed_inside_the_work_loses_nothing(tmp_path: Path, clock: FakeClock) -> None:
    engine = oncemore.open(tmp_path / "log.db")
    step = made("plain", Turns(lambda x: engine.close() or "late", "again"))
    with pytest.raises(oncemore.StoreError, match="closed") as caught:
        step.bind(engine)()
    assert caught.value.run is None
    assert step.bind(engine)() == "again"
    assert [one.reason for one in step.bind(engine).last_run().attempts] == ["lease_expired", ""]
    engine.close()
