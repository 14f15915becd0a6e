"""Results in a log: shared by processes, kept after their death, with the same events as in memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from email.message import Message
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest
import trio

import oncemore
from oncemore import clock as clocks
from oncemore.errors import Deferred, KeyConflict, PermanentFailure, RetriesExhausted, StoreError, UsageError
from oncemore.log.record import RecordChange
from oncemore.profiles.exoarmur import (
    IdempotencyManager,
    InProgress,
    ResultUnavailable,
    RetryError,
    RetryManager,
    RetryPolicy,
    stored_records,
)
from oncemore.retries.loop import ENDS
from oncemore.steps.history import verify_chain
from oncemore.steps.ops import AppendChange, EndCall, LoadHead
from oncemore.testing import FakeClock
from tests.profiles.test_exoarmur import RUN_ID, run, told, work_of
from tests.profiles.test_exoarmur_idempotency import write
from tests.retries.colours import Script

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore import Engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = oncemore.open("memory:")
    yield engine
    engine.close()


@pytest.fixture
def manager(engine: Engine) -> RetryManager:
    return RetryManager(IdempotencyManager(engine))


@pytest.fixture
def other(engine: Engine) -> RetryManager:
    """A manager that meets the first one only in the log, as in another process."""
    return RetryManager(IdempotencyManager(engine))


def run_of(engine: Engine, key: str = "k") -> oncemore.Run:
    return oncemore.Run(engine, f"run/{key}")


def marks(engine: Engine, key: str = "k") -> list[str]:
    return [
        line["state"] if line["kind"] == "TRANSITION" else line["kind"]
        for line in run_of(engine, key).records()
    ]


# What is told ----------------------------------------------------------------------------------------


def busy(seconds: int) -> HTTPError:
    headers = Message()
    headers["Retry-After"] = str(seconds)
    return HTTPError("http://bus", 503, "busy", headers, None)


SCENES: dict[str, tuple[list[object], dict[str, Any]]] = {
    "comes good at once": (["value"], {}),
    "fails twice, then comes good": ([OSError("a"), TimeoutError("b"), {"revision": 7}], {}),
    "always fails": ([OSError("down")], {}),
    "is not tried again": ([KeyError("bug")], {"policy": RetryPolicy(non_retryable_exceptions=[KeyError])}),
    "fails, then is not tried again": (
        [OSError(), KeyError("bug")], {"policy": RetryPolicy(non_retryable_exceptions=[KeyError])},
    ),
    "a verdict is final": ([ValueError("invalid")], {"category": "REPLAY_PROCESSING"}),
    "a rest within the cap is obeyed": ([busy(5), "value"], {}),
    "a rest beyond the cap is not sat out": ([busy(600)], {}),
    "a violation": ([oncemore.PolicyViolation("SCHEMA_INVALID")], {}),
    "a custom policy": ([OSError()], {"policy": RetryPolicy(max_attempts=5, base_delay=2.0, max_delay=60.0,
                                                            backoff_multiplier=1.5, jitter_factor=0.2)}),
    "not awaitable": (["value"], {"work": lambda: "value"}),
}  # fmt: skip


def played(manager: RetryManager, scene: str) -> tuple[Any, ...]:
    """Return the outcome, the events, the delays and the number of calls."""
    turns, more = SCENES[scene]
    script = Script(*turns)
    options = {"category": "KV_PUT", "work": work_of(script), "run_id": RUN_ID, "idempotency_key": "k"}
    options |= {"operation": "Store kill switch state", "tenant_id": "t", "trace_id": "x", **more}
    with FakeClock() as clock:
        try:
            got: Any = asyncio.run(manager.execute_with_retry(**options))
        except Exception as error:
            last = error.__cause__ if isinstance(error, RetryError) else error
            got = (type(error), str(error), last in turns, oncemore.get_decision(last) is not None)  # type: ignore[arg-type]
    events = [{**event.to_dict(), "timestamp": ""} for event in manager.audit]
    for event in events:
        event["not_before"] = bool(event.get("not_before"))
    return got, events, script.calls, clock.delays


@pytest.mark.parametrize("scene", SCENES)
def test_events_and_delays_are_the_same_as_in_memory(scene: str, manager: RetryManager) -> None:
    *expected, delays = played(RetryManager(), scene)
    *found, waited = played(manager, scene)
    assert found == expected
    assert waited == pytest.approx(delays, abs=0.5)


def test_notes_and_log_lines_are_the_same_too(
    manager: RetryManager, caplog: pytest.LogCaptureFixture
) -> None:
    said = []
    for one in (RetryManager(), manager):
        caplog.clear()
        with FakeClock(), pytest.raises(RetryError) as caught:
            run(one, "KV_PUT", Script(OSError("down")), idempotency_key="k", run_id=RUN_ID)
        # A durable run has lines of `oncemore.steps` as well.
        lines = [record.getMessage() for record in caplog.records if record.name == "oncemore.retry"]
        said.append((caught.value.__cause__.__notes__, lines))  # type: ignore[union-attr]
    assert said[0] == said[1]


def test_a_test_clock_can_limit_the_attempts(manager: RetryManager) -> None:
    script = Script(OSError("down"))
    with FakeClock(attempts=2), pytest.raises(RetryError):
        write(manager, script)
    assert script.calls == 2


def test_a_run_has_the_id_and_the_metadata_of_its_operation(manager: RetryManager, engine: Engine) -> None:
    write(manager, Script("value"), tenant_id="t", correlation_id="c")
    found = run_of(engine)
    assert found.run_id == manager.operations[0].run_id
    assert (found.step, found.state.tenant, found.correlation_id) == ("Store kill switch state", "t", "c")
    assert found.state.policy.startswith(manager.operations[0].policy)
    assert marks(engine) == ["PENDING", "RUNNING", "INTENT", "COMMIT", "COMPLETE"]


def test_the_work_sees_its_key_and_the_checkpoint_of_an_earlier_attempt(manager: RetryManager) -> None:
    async def work() -> str:
        attempt = oncemore.current()
        done: int = attempt.resume(0)
        await attempt.checkpoint(done + 1)
        if done < 2:
            raise OSError("half way")
        return f"{attempt.key}: {done}"

    with FakeClock():
        call = manager.execute_with_retry("KV_PUT", "write", work, idempotency_key="my-key")
        assert asyncio.run(call) == "my-key: 2"


# The log ---------------------------------------------------------------------------------------------


@pytest.mark.req("IDEM-8")
def test_clearing_is_an_entry_with_its_actor_and_the_next_call_is_a_new_run(
    manager: RetryManager, other: RetryManager, engine: Engine
) -> None:
    script = Script("first", "second")
    write(manager, script)
    with oncemore.context(actor="operator"):
        assert asyncio.run(other.idempotency_manager.clear_idempotency("k")) is True
    assert told(other.audit) == [("idempotency_cleared",)]
    assert run_of(engine).reason == "cleared"
    assert "decided by operator: clear" in run_of(engine).explain()
    assert asyncio.run(manager.idempotency_manager.check_idempotency("k")) is None
    assert asyncio.run(manager.idempotency_manager.clear_idempotency("k")) is False
    assert write(manager, script, tenant_id="another tenant") == "second"
    assert script.calls == 2
    assert (run_of(engine).state.run_number, run_of(engine).state.attempt) == (2, 2)


def test_a_result_can_be_recorded_in_any_state_of_the_run(
    manager: RetryManager, other: RetryManager, engine: Engine
) -> None:
    record = other.idempotency_manager.record_result

    async def fails() -> None:
        raise OSError("down")

    async def main() -> None:
        await record("new", 1, {"by": "me"})
        before = run_of(engine, "new").version
        await record("new", 1)
        assert run_of(engine, "new").version == before, "an equal one is no news"
        with pytest.raises(UsageError, match="key new has another result already"):
            await record("new", 2)
        with pytest.raises(RetryError):
            await manager.execute_with_retry("KV_PUT", "w", fails, idempotency_key="failed")
        await record("failed", 3)

        begun, go = asyncio.Event(), asyncio.Event()

        async def slow() -> int:
            begun.set()
            await go.wait()
            return 4

        first = asyncio.create_task(
            manager.execute_with_retry("KV_PUT", "w", slow, idempotency_key="running")
        )
        await begun.wait()
        await record("running", 5)
        go.set()
        assert await first == 5, "who commits first is right"

    with FakeClock():
        asyncio.run(main())
    assert marks(engine, "new") == ["PENDING", "COMMIT", "COMPLETE"]
    assert marks(engine, "failed")[-3:] == ["PENDING", "COMMIT", "COMPLETE"]
    assert marks(engine, "running") == ["PENDING", "RUNNING", "INTENT", "COMMIT", "COMPLETE"]
    assert told(manager.audit)[-1] == ("idempotency", "hit")
    for key, value in (("new", 1), ("failed", 3), ("running", 5)):
        assert write(manager, Script(), key) == value
        assert run_of(engine, key).reason == "recorded"


class Races:
    """A store in which another client writes to an entity just before the first append."""

    def __init__(self, engine: Engine, between: Any) -> None:
        self._store, self._between = engine.store, between

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, batch: Any) -> Any:
        between, self._between = self._between, None
        if between is not None:
            between()
        return self._store.append(batch)


@pytest.mark.parametrize("what", ["record", "clear"])
def test_a_conflicting_append_reads_the_key_again(what: str, engine: Engine) -> None:
    manager = IdempotencyManager(engine)
    raced = oncemore.Engine(lambda: Races(engine, between), "memory:")  # type: ignore[arg-type, return-value]
    late = IdempotencyManager(raced)

    def between() -> None:
        if what == "record":
            asyncio_run(manager.record_result("k", 1))
        else:
            asyncio_run(manager.clear_idempotency("k"))

    if what == "record":
        with pytest.raises(UsageError, match="another result already"):
            asyncio.run(late.record_result("k", 2))
    else:
        asyncio.run(manager.record_result("k", 1))
        assert asyncio.run(late.clear_idempotency("k")) is False


def asyncio_run(coroutine: Any) -> Any:
    """Run a coroutine that never waits, inside or outside an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def test_a_key_of_other_work_is_refused(manager: RetryManager, engine: Engine) -> None:
    @oncemore.step(effect="pure")
    def work(n: int) -> int:
        if n == 2:
            raise oncemore.PermanentError("no")
        return n

    work = work.bind(engine)
    assert work(1) == 1
    with pytest.raises(UsageError, match="belongs to other work, such as a step"):
        write(manager, Script(1), work.key(1))
    with pytest.raises(oncemore.PermanentFailure):
        work(2)
    with pytest.raises(KeyConflict):
        write(manager, Script(1), work.key(2))


@pytest.mark.parametrize("key", ["\ud800", "a\0b"], ids=["half", "zero"])
def test_a_key_that_no_store_can_keep_is_refused(manager: RetryManager, key: str) -> None:
    with pytest.raises(UsageError, match="an idempotency key holds"):
        write(manager, Script(1), key)


def test_a_pruned_result_is_unavailable_and_not_computed_again(manager: RetryManager, engine: Engine) -> None:
    script = Script("value")
    write(manager, script)

    def pruning() -> Any:
        head = yield LoadHead("run/k")
        after = head.record._replace(pruned_at=engine.now())
        yield AppendChange(head, RecordChange(("PRUNE",), head.record, after))
        return EndCall(None, None)

    asyncio.run(stored_records._run_script(engine, pruning()))
    with pytest.raises(ResultUnavailable, match="its result is not available: it was pruned"):
        write(manager, script)
    assert script.calls == 1


def test_a_record_is_found_under_later_entries_too(manager: RetryManager, engine: Engine) -> None:
    def noting() -> Any:
        head = yield LoadHead("run/k")
        yield AppendChange(
            head, RecordChange(("DECISION",), head.record, head.record._replace(priority="P0"))
        )
        return EndCall(None, None)

    write(manager, Script("value"))
    asyncio.run(stored_records._run_script(engine, noting()))
    assert write(manager, Script()) == "value"


def test_a_retry_after_above_the_cap_defers_later_calls(manager: RetryManager, engine: Engine) -> None:
    script = Script(busy(600), "value")
    with FakeClock() as clock:
        with pytest.raises(HTTPError):
            write(manager, script)
        with pytest.raises(Deferred):
            write(manager, script)
        assert told(manager.audit)[-1] == ("retry_refused", 0, "parked")
        clock.advance(600)
        assert write(manager, script) == "value"
    assert (script.calls, run_of(engine).state.run_number) == (2, 1)


def test_an_unreachable_store_is_reported(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"this is no database, whatever its name says" * 100)
    manager, script = RetryManager(IdempotencyManager(tmp_path / "log.db")), Script(1)
    with pytest.raises(StoreError):
        write(manager, script)
    assert script.calls == 0
    assert told(manager.audit) == [("retry_refused", 0, "store_failed")]


# Those who meet in the log ---------------------------------------------------------------------------


async def together(*managers: RetryManager, work: Any, **more: Any) -> list[Any]:
    calls = [one.execute_with_retry("KV_PUT", "write", work, idempotency_key="k", **more) for one in managers]
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_two_managers_of_one_log_do_the_work_once(
    loop: str, manager: RetryManager, other: RetryManager
) -> None:
    script = Script("value")
    sleep = asyncio.sleep if loop == "asyncio" else trio.sleep

    async def slow() -> Any:
        await sleep(0.05)
        return script.turn()

    async def in_trio() -> list[Any]:
        got: list[Any] = []

        async def call(one: RetryManager) -> None:
            got.append(await one.execute_with_retry("KV_PUT", "write", slow, idempotency_key="k"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, manager)
            nursery.start_soon(call, other)
        return got

    got = asyncio.run(together(manager, other, work=slow)) if loop == "asyncio" else trio.run(in_trio)
    assert got == ["value", "value"]
    assert script.calls == 1


@pytest.mark.parametrize(
    ("error", "raised", "cause"),
    [(OSError("down"), RetryError, RetriesExhausted), (KeyError("bug"), PermanentFailure, type(None))],
)
def test_a_failure_is_shared_through_the_log(
    error: Exception, raised: type, cause: type, manager: RetryManager, other: RetryManager
) -> None:
    script = Script(error)

    async def slow() -> Any:
        await asyncio.sleep(0.02)
        return script.turn()

    policy = RetryPolicy(base_delay=0.02, non_retryable_exceptions=[KeyError])
    results = asyncio.run(together(manager, other, work=slow, policy=policy))
    assert script.calls == (3 if raised is RetryError else 1)
    shared = next(one for one in results if one is not error and one.__cause__ is not error)
    assert type(shared) is raised
    assert isinstance(shared.__cause__, cause)
    assert str(error) in str(shared.__cause__ or shared)
    events = told(manager.audit) + told(other.audit)
    assert ("retry_refused", 0, "same_key_failed") in events


def test_if_running_raise_names_the_worker(
    manager: RetryManager, other: RetryManager, engine: Engine
) -> None:
    async def main() -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        async def slow() -> int:
            begun.set()
            await go.wait()
            return 1

        first = asyncio.create_task(manager.execute_with_retry("KV_PUT", "w", slow, idempotency_key="k"))
        await begun.wait()
        with pytest.raises(InProgress) as caught:
            await other.execute_with_retry("KV_PUT", "w", slow, idempotency_key="k", if_running="raise")
        assert caught.value.worker == engine.leases.current_identity().name
        with pytest.raises(InProgress, match="it has no record to clear yet"):
            await other.idempotency_manager.clear_idempotency("k")
        with pytest.raises(UsageError, match="belongs to another tenant"):
            await other.execute_with_retry("KV_PUT", "w", slow, idempotency_key="k", tenant_id="t")
        token = ENDS.set(clocks.current.monotonic() + 0.02)
        with pytest.raises(InProgress):
            await other.execute_with_retry("KV_PUT", "w", slow, idempotency_key="k")
        ENDS.reset(token)
        go.set()
        assert await first == 1

    asyncio.run(main())
    assert told(other.audit)[:2] == [("retry_refused", 0, "in_progress"), ("retry_refused", 0, "key_refused")]


@pytest.mark.req("CLASS-18")
@pytest.mark.parametrize("during", ["an attempt", "a delay", "another's attempt"])
def test_a_cancelled_operation_ends_at_once_and_is_continued_later(
    during: str, manager: RetryManager, other: RetryManager, engine: Engine
) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            if during == "a delay":
                raise OSError("down")
            await asyncio.sleep(3600)

        async def call(one: RetryManager) -> None:
            await one.execute_with_retry("KV_PUT", "w", work, idempotency_key="k")

        tasks = [asyncio.create_task(call(manager))]
        await begun.wait()
        if during == "another's attempt":
            tasks.append(asyncio.create_task(call(other)))
        await asyncio.sleep(0.05)
        for task in reversed(tasks):
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError}

    asyncio.run(main())
    assert told(manager.audit)[-1] == ("retry_refused", 1, "cancelled")
    assert told(other.audit) == [], "who only waited has made no attempt to tell of"
    assert run_of(engine).status == "SOFT_FAIL"
    script = Script("value")
    assert write(manager, script) == "value"
    assert (run_of(engine).state.run_number, run_of(engine).state.attempt) == (1, 2)


# Processes -------------------------------------------------------------------------------------------

HEAD = f"""
import asyncio, json, os, sys, time
sys.path[:0] = [{str(ROOT)!r}]
from oncemore.profiles.exoarmur import IdempotencyManager, RetryManager
manager = RetryManager(IdempotencyManager("log.db"))

def put(work, key="k", **more):
    return manager.execute_with_retry("KV_PUT", "write", work, idempotency_key=key, **more)

def note(text):
    with open("calls", "a") as file:
        file.write(text + chr(10))
"""


def python(code: str, cwd: Path) -> subprocess.Popen[str]:
    """Start a process with a manager on the log of this folder."""
    told = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMORE_")}
    command = [sys.executable, "-c", f"{HEAD}\n{cleandoc(code)}"]
    return subprocess.Popen(command, cwd=cwd, env=told, stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.req("IDEM-9")
def test_a_record_of_a_process_that_was_killed_is_a_hit_in_another(tmp_path: Path) -> None:
    first = python(
        """
        async def work():
            return {"by": os.getpid(), "none": None}
        async def main():
            await put(work)
            await put(lambda: asyncio.sleep(0), "nothing")
            await manager.idempotency_manager.record_result("direct", 1, {"by": "me"})
            print("recorded", flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())
        """,
        tmp_path,
    )
    assert line_of(first) == "recorded"
    kill(first)
    second = python(
        """
        async def main():
            print(json.dumps([await put(None or work), await put(work, "nothing"), await put(work, "direct"),
                (await manager.idempotency_manager.describe("direct")).metadata,
                [event.to_dict()["action"] for event in manager.audit]]))
        async def work():
            note("called")
        asyncio.run(main())
        """,
        tmp_path,
    )
    found = json.loads(second.communicate()[0])
    assert found == [{"by": first.pid, "none": None}, None, 1, {"by": "me"}, ["hit"] * 3]
    assert not (tmp_path / "calls").exists()


@pytest.mark.req("IDEM-11")
def test_50_callers_in_4_processes_make_one_call_and_all_get_its_result(tmp_path: Path) -> None:
    code = """
        async def work():
            note(str(os.getpid()))
            await asyncio.sleep(0.3)
            return {"by": os.getpid()}
        async def main():
            print("ready", flush=True)
            while not os.path.exists("go"):
                await asyncio.sleep(0.001)
            print(json.dumps(await asyncio.gather(*(put(work) for _ in range(CALLERS)))))
        asyncio.run(main())
    """
    processes = [python(code.replace("CALLERS", str(n)), tmp_path) for n in (13, 13, 12, 12)]
    assert [line_of(process) for process in processes] == ["ready"] * 4
    (tmp_path / "go").touch()
    results = [one for process in processes for one in json.loads(process.communicate()[0])]
    calls = (tmp_path / "calls").read_text().split()
    assert len(calls) == 1
    assert results == [{"by": int(calls[0])}] * 50


def test_another_process_closes_the_attempt_of_a_killed_one_and_continues(
    tmp_path: Path,
) -> None:
    first = python(
        """
        async def work():
            print("begun", flush=True)
            await asyncio.sleep(600)
        asyncio.run(put(work))
        """,
        tmp_path,
    )
    assert line_of(first) == "begun"
    with oncemore.open(tmp_path / "log.db") as engine:
        manager = RetryManager()
        with pytest.raises(InProgress):
            write(manager, Script(1), if_running="raise")
        kill(first)
        script = Script(OSError("down"), "value")
        with FakeClock():
            assert write(manager, script) == "value"
        assert script.calls == 2
        assert told(manager.audit)[1:3] == [("retry_attempt", 2), ("retry_succeeded", 3)]
        outcomes = [(attempt.number, attempt.reason) for attempt in run_of(engine).attempts]
        assert outcomes == [(1, "lease_expired"), (2, "retry"), (3, "")]
        assert verify_chain(engine.store.read_entries())
