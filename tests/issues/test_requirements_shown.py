"""Issue 15, 5: requirements that were not shown, or shown in part; each test shows one as a whole."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
import uuid
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import PolicyWarning
from oncemore.log.entry_codec import decode_header
from oncemore.profiles.exoarmur import RetryManager
from oncemore.profiles.kfm.loop import last_run, retry_loop
from oncemore.steps.engine import Engine
from oncemore.testing import FakeClock
from tests.steps.colours import POLICY, SOON, Busy, do, each_colour, made

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def share_store(engine: oncemore.Engine) -> Engine:
    """Return a second engine on the store of the first: another worker."""
    return Engine(lambda: engine.store, engine.url)


# STATE-5 ----------------------------------------------------------------------------------------------


@pytest.mark.req("STATE-5")
def test_the_id_of_every_run_is_a_version_7_uuid_and_ids_sort_by_creation(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    """Whatever opens the run: a call, a rerun, a submission, a job, an import, a node."""

    class Node:
        node_id = "node"

        def preflight_checkpoint(self, run: Any, key: str) -> None: ...

        def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> int:
            return 1

    @oncemore.step(effect="pure", name="half", policy=POLICY)
    def half(number: int) -> int:
        if number % 2:
            raise oncemore.PermanentError("odd")
        return number // 2

    ways: list[Callable[[int], object]] = [
        half.run, half.submit, lambda number: half.map([number]), lambda number: retry_loop(Node(), number),
        lambda number: half.mark_done(number, value=0, reason="test"),
    ]  # fmt: skip
    for number, way in enumerate(ways * 3):
        way(number)
        clock.advance(0.001)
    with pytest.raises(oncemore.PermanentFailure):
        half.rerun(5, reason="test")
    oncemore.Worker(engine, [half]).run_until_idle()
    opened = [
        (header.sets["created_at"], header.sets["run_id"])
        for header in (decode_header(entry.header) for entry in engine.store.read_entries())
        if "created_at" in header.sets and "run_id" in header.sets
    ]
    assert len(opened) == 16
    assert [run_id for _, run_id in sorted(opened)] == sorted(run_id for _, run_id in opened)
    assert {uuid.UUID(run_id).version for _, run_id in opened} == {7}
    assert len({run_id for _, run_id in opened}) == len(opened)


# IDEM-2 -----------------------------------------------------------------------------------------------


class TableNode:
    """A node that writes rows to a table of its own, and fails until its last turn."""

    node_id, effect = "totals", "transactional"

    def __init__(self, path: Path, failures: int) -> None:
        self.path, self.failures = path, failures
        with sqlite3.connect(path) as connection:
            connection.execute("create table if not exists totals (day text, amount integer)")

    def preflight_checkpoint(self, run: Any, key: str) -> None: ...

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> str:
        connection = oncemore.current().transaction(sqlite3.connect(self.path))
        for day, amount in inputs["rows"]:
            connection.execute("insert into totals values (?, ?)", (day, amount))
        if self.failures:
            self.failures -= 1
            raise oncemore.TransientError("not yet")
        return self.digest(connection)

    def digest(self, connection: Any = None) -> str:
        """Return the digest of all rows."""
        rows = (connection or sqlite3.connect(self.path)).execute("select rowid, * from totals").fetchall()
        return sha256(repr(rows).encode()).hexdigest()


@pytest.mark.req("IDEM-2")
def test_a_table_writing_node_that_runs_three_times_leaves_what_one_run_leaves(
    tmp_path: Path, clock: FakeClock
) -> None:
    inputs = {"rows": [["2026-11-16", 3], ["2026-11-17", 4]]}
    once, often = TableNode(tmp_path / "once.db", 0), TableNode(tmp_path / "often.db", 2)
    with oncemore.open(tmp_path / "one.db"):
        assert retry_loop(once, inputs) == "OK"
    with oncemore.open(tmp_path / "two.db"):
        assert [retry_loop(often, inputs) for _ in range(3)] == ["OK"] * 3
        run: Any = last_run(often, inputs)
    assert len(run.attempts) == 3, "two attempts wrote rows and failed"
    assert often.digest() == once.digest() == run.value
    with sqlite3.connect(often.path) as connection:
        assert connection.execute("select count(*) from totals").fetchone() == (2,)


# IDEM-12 ----------------------------------------------------------------------------------------------


def acquire(product: str, token: oncemore.Secret) -> None: ...


async def choose(product: str, token: str) -> str:
    return product


@pytest.mark.req("IDEM-12")
@pytest.mark.parametrize(
    ("work", "options"),
    [
        (acquire, {"ignore": "product"}),
        (lambda token: None, {"ignore": "token"}),
        (acquire, {"key": choose}),
        (acquire, {"key": "locator"}),
        (acquire, {"key": "token"}),
        (acquire, {"key": "product", "ignore": "product"}),
        (max, {}),
    ],
    ids=["no input", "no argument", "awaited", "unknown", "secret", "ignored", "no signature"],
)
def test_a_step_without_a_rule_for_its_key_is_refused_by_its_name(work: Any, options: dict[str, Any]) -> None:
    with pytest.raises(oncemore.UsageError, match=r"acquire spectra"):
        oncemore.step(effect="idempotent", name="acquire spectra", **options)(work)
    for rule in ({"key": "product"}, {"partition": "all"}, {"bucket": "day", "ignore": "product"}, {}):
        assert oncemore.step(effect="idempotent", name="acquire spectra", **rule)(acquire)


# IDEM-20 ----------------------------------------------------------------------------------------------


@pytest.mark.req("IDEM-20")
def test_live_control_state_is_never_read_from_an_idempotency_record(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="once", name="pay", requires_approval=True)
    def pay() -> None: ...

    async def read() -> tuple[list[str], list[str]]:
        return [one.name for one in engine.switches.status()], [one.state for one in engine.approvals.list()]

    def ask(manager: RetryManager) -> Any:
        return asyncio.run(manager.execute_with_retry("KV_GET", "read", read, idempotency_key="k"))

    manager, seen = RetryManager(), []
    changes: list[Callable[[], object]] = [
        lambda: None, lambda: engine.switches.on(reason="test"), lambda: pay.approve(reason="test"),
        lambda: engine.approvals.revoke(pay.key(), reason="test"), lambda: engine.switches.off(reason="test"),
    ]  # fmt: skip
    for change in changes:
        change()
        with pytest.warns(PolicyWarning, match="its idempotency key is ignored"):
            seen.append(ask(manager))
    assert seen == [
        ([], []), (["all_execution"], []), (["all_execution"], ["GRANTED"]), (["all_execution"], ["REVOKED"]),
        ([], ["REVOKED"]),
    ]  # fmt: skip
    with pytest.raises(oncemore.UsageError, match="governed mode refuses to run it"):
        ask(RetryManager(governed=True))


# LEASE-4 ----------------------------------------------------------------------------------------------


@pytest.mark.req("LEASE-4")
@pytest.mark.parametrize("effect", ["pure", "idempotent", "once"])
def test_a_paused_worker_that_wakes_after_a_takeover_is_refused(
    effect: Any, engine: oncemore.Engine, clock: FakeClock
) -> None:
    """It can neither write its artifact nor commit its result."""
    paused, refused = Busy(), []
    turns = itertools.count()

    def work(number: int) -> str:
        if next(turns):
            return "second"
        paused.hold()
        try:
            oncemore.current().put(b"late", name="late")
        except oncemore.LeaseLost as error:
            refused.append(error)
        return "first"

    answers = {"reconcile": lambda number: oncemore.not_applied()} if effect == "once" else {}
    step = made("plain", work, effect=effect, **answers)
    paused.start(step.bind(engine), 1)
    clock.advance(2 * engine.lease_s)
    other = share_store(engine)
    assert step.bind(other)(1) == "second"
    paused.end()
    assert len(refused) == 1
    if effect == "once":
        assert isinstance(paused.error, oncemore.LeaseLost)
    else:
        assert paused.value == "second"
    run = step.last_run(1)
    assert run.value == "second"
    marks = [
        mark
        for entry in engine.store.read_entries(f"run/{run.key}")
        for mark in decode_header(entry.header).marks
    ]
    assert marks.count("COMMIT") == 1
    assert engine.artifacts.list() == []


# PROD-7 -----------------------------------------------------------------------------------------------


class Waiting(FakeClock):
    """A clock that lets another worker act during the first wait."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = meanwhile

    def sleep(self, seconds: float) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().sleep(seconds)


@pytest.mark.req("PROD-7")
@each_colour
def test_a_key_that_another_worker_completes_during_the_wait_is_not_run_again(
    colour: str, engine: oncemore.Engine
) -> None:
    ran: list[str] = []

    def work(number: int) -> str:
        ran.append(threading.current_thread().name)
        if len(ran) == 1:
            raise SOON
        return "from the other worker"

    step, other = made(colour, work), share_store(engine)
    values: list[Any] = []

    def complete() -> None:
        thread = threading.Thread(target=lambda: values.append(do(colour, step.bind(other), 1)), name="other")
        thread.start()
        thread.join(30)

    with Waiting(complete) as clock:
        assert do(colour, step.bind(engine), 1) == "from the other worker"
    assert values == ["from the other worker"]
    assert ran == [threading.current_thread().name, "other"]
    run = step.bind(engine).last_run(1)
    (proof,) = run.proofs
    assert len(clock.delays) == 2, "both waited, for the delay of one decision"
    assert [attempt.outcome for attempt in run.attempts] == ["SOFT_FAIL", "COMPLETE"]
    assert proof["action"] == "retry"
