"""The loop of the KFM document ends in OK or HARD_FAIL for every node and every crash."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from email.message import Message
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest
import trio

import oncemore
from oncemore.open_engine import find_engine
from oncemore.policy import files
from oncemore.profiles.kfm.loop import PermanentError, TransientError, last_run, retry_loop
from oncemore.steps.history import export_records
from tests.test_docs import run_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore import Engine, Run
    from oncemore.testing import FakeClock

ROOT = Path(__file__).resolve().parents[2]
INPUTS, CFG = {"month": "2026-10"}, {"partition": "date=2026-10"}
#: The seed of the worked example (BACKOFF-15), and the delays that the profile then has.
SEED = "e5b98e905ec655bde09d063b91a602f256857065a49798c351aacc1f9015b68f"
DELAYS = [21.213633, 49.584878, 82.142307, 169.361387, 321.516047]


class Node:
    """A node that plays a script, attempt by attempt, and remembers its checkpoints."""

    node_id = "report"

    def __init__(self, *turns: object) -> None:
        self.turns = list(turns)
        self.began_at: list[Any] = []

    def preflight_checkpoint(self, run: Any, key: str) -> Any:
        assert run.key == key
        return None

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        self.began_at.append(checkpoint)
        turn = self.turns[min(len(self.began_at), len(self.turns)) - 1]
        if isinstance(turn, BaseException):
            raise turn
        return turn

    @property
    def computed(self) -> int:
        return len(self.began_at)


@pytest.fixture(autouse=True)
def clock(instant_retries: FakeClock) -> FakeClock:
    return instant_retries


@pytest.fixture(autouse=True)
def engine() -> Iterator[Engine]:
    with oncemore.open("memory:") as engine:
        yield engine


def run_of(node: Any, inputs: Any = INPUTS, cfg: Any = CFG) -> Run:
    run = last_run(node, inputs, cfg)
    assert run is not None
    return run


def marks(run: Run) -> list[tuple[str, int]]:
    """States and record kinds with their attempt, in the log's order."""
    return [
        (line["state"] if line["kind"] == "TRANSITION" else line["kind"], line["attempt"])
        for line in run.records()
    ]


@pytest.mark.req("API-8")
def test_two_transient_errors_are_ok_in_three_attempts_and_a_permanent_one_is_hard_fail_in_one() -> None:
    node = Node(TransientError("busy"), TransientError("busy"), {"rows": 7})
    assert retry_loop(node, INPUTS, CFG) == "OK"
    run = run_of(node)
    assert (run.status, node.computed, len(run.attempts)) == ("COMPLETE", 3, 3)
    assert run.value == {"rows": 7}
    wrong = Node(PermanentError("no such column"))
    wrong.node_id = "wrong"
    assert retry_loop(wrong, INPUTS, CFG) == "HARD_FAIL"
    run = run_of(wrong)
    assert (run.status, run.reason, wrong.computed, len(run.attempts)) == (
        "HARD_FAIL", "not_retryable", 1, 1,
    )  # fmt: skip


def test_the_log_reads_as_the_document_has_it() -> None:
    node = Node(TransientError("busy"), 1)
    retry_loop(node, INPUTS, CFG)
    assert marks(run_of(node)) == [
        ("PENDING", 1), ("RUNNING", 1), ("INTENT", 1), ("SOFT_FAIL", 1), ("DECISION", 1),
        ("RUNNING", 2), ("INTENT", 2), ("COMMIT", 2), ("COMPLETE", 2),
    ]  # fmt: skip
    fields = (
        "run_id node_id attempt input_hash seed cfg_hash idempotency_key checkpoint_ref telemetry_snapshot "
        "decision_proof"
    )
    for line in run_of(node).records():
        assert set(fields.split()) <= line.keys()
        assert (line["node_id"], line["idempotency_key"]) == ("report", run_of(node).key)


@pytest.mark.req("WAL-5")
@pytest.mark.parametrize("checkpoint", [None, {"begun": True}], ids=["plain", "with a checkpoint"])
def test_the_order_of_the_log_within_an_attempt_is_the_documents(
    engine: Engine, clock: FakeClock, checkpoint: Any
) -> None:
    """The entries in the log while each part of an attempt runs, and all of them at the end."""
    found: list[list[tuple[str, int]]] = []

    def look() -> None:
        (entity,) = {entry.entity for entry in engine.store.read_entries() if entry.entity.startswith("run/")}
        found.append([
            (line["state"] if line["kind"] == "TRANSITION" else line["kind"], line["attempt"])
            for line in export_records(engine.store.read_entries(entity))
            if line["kind"] not in ("LEASE", "DECISION")
        ])  # fmt: skip

    class Watched(Node):
        def preflight_checkpoint(self, run: Any, key: str) -> Any:
            look()
            return checkpoint

        def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
            look()
            kept = oncemore.current().put(b"rows", name="rows")
            look()
            super().compute(inputs, cfg, checkpoint)
            return kept

    assert retry_loop(Watched(TransientError("busy"), 1), INPUTS, CFG) == "OK"
    look()
    claimed = [("PENDING", 1), ("RUNNING", 1), ("INTENT", 1)]
    noted = [("CHECKPOINT", 1)] if checkpoint else []
    failed = [*claimed, *noted, ("SOFT_FAIL", 1)]
    again = [*failed, ("RUNNING", 2), ("INTENT", 2)]
    done = [*again, ("COMMIT", 2), ("COMPLETE", 2)]
    began = [*claimed, *noted]
    assert found == [claimed, began, began, again, again, again, done]
    assert len(clock.delays) == 1, "the delay follows SOFT_FAIL"
    complete = run_of(Watched(1)).records()[-1]
    assert (complete["kind"], complete["state"]) == ("TRANSITION", "COMPLETE")
    assert len(complete["artifacts"]) == 1


@pytest.mark.req("STATE-7", "BACKOFF-14")
def test_exhaustion_is_recorded_with_the_last_error(clock: FakeClock) -> None:
    node = Node(TransientError("busy"))
    assert retry_loop(node, INPUTS, CFG) == "HARD_FAIL"
    assert (node.computed, len(clock.delays)) == (6, 5)
    final = [line for line in run_of(node).records() if line["state"] == "HARD_FAIL" and line["error"]][-1]
    assert final["error"]["error"] == final["reason"] == "max_attempts_exceeded"
    assert (final["error"]["last"]["type"], final["error"]["last"]["message"]) == ("TransientError", "busy")


@pytest.mark.req("WAL-13")
@pytest.mark.parametrize("error", [KeyError("unforeseen"), ZeroDivisionError(), MemoryError()], ids=repr)
def test_an_unexpected_exception_leaves_no_run_in_running(error: Exception) -> None:
    node = Node(error)
    assert retry_loop(node, INPUTS, CFG) == "HARD_FAIL"
    run = run_of(node)
    assert (run.status, run.state.worker, node.computed) == ("HARD_FAIL", "", 1)
    assert run.attempts[0].error is not None
    assert run.attempts[0].error["type"] == type(error).__name__


def test_an_interrupt_leaves_no_run_in_running() -> None:
    node = Node(KeyboardInterrupt(), 1)
    with pytest.raises(KeyboardInterrupt):
        retry_loop(node, INPUTS, CFG)
    assert (run_of(node).status, run_of(node).reason) == ("SOFT_FAIL", "interrupted")
    assert retry_loop(node, INPUTS, CFG) == "OK"


def test_the_delays_are_those_of_the_worked_example(clock: FakeClock) -> None:
    node = Node(TransientError("busy"))
    policy = files.policy("kfm-loop").replace(jitter_seed=SEED)
    assert retry_loop(node, INPUTS, CFG, policy=policy) == "HARD_FAIL"
    proofs = run_of(node).proofs
    assert [round(proof["delay_s"], 6) for proof in proofs] == [*DELAYS, 0.0]
    assert clock.delays == pytest.approx(DELAYS, abs=0.5)  # less the time that passed in between
    began = [attempt.began for attempt in run_of(node).attempts]
    waited = [later - earlier for earlier, later in pairwise(began)]
    assert all(wait >= delay for wait, delay in zip(waited, DELAYS, strict=True))


def test_without_a_seed_each_run_has_delays_of_its_own() -> None:
    first, second = Node(TransientError(), 1), Node(TransientError(), 1)
    for node, inputs in ((first, 1), (second, 2)):
        retry_loop(node, inputs)
    seeds = {last_run(Node(), inputs).records()[0]["seed"] for inputs in (1, 2)}  # type: ignore[union-attr]
    assert len(seeds) == 2


# What a node has done already ------------------------------------------------------------------------


class Halves(Node):
    """A node that stores a checkpoint after half of its work, and fails the first time after it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def preflight_checkpoint(self, run: Any, key: str) -> Any:
        return run.resume({"done": 0})

    def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        self.began_at.append(checkpoint)
        for row in range(checkpoint["done"], 10):
            if row == 5 and self.computed == 1:
                oncemore.current().checkpoint({"done": 5})
                raise TransientError("half way")
            self.rows.append(row)
        return len(self.rows)


@pytest.mark.req("WAL-6")
def test_a_node_that_fails_half_way_continues_from_its_checkpoint() -> None:
    node = Halves()
    assert retry_loop(node, INPUTS, CFG) == "OK"
    assert node.began_at == [{"done": 0}, {"done": 5}]
    assert node.rows == list(range(10))
    wal = run_of(node).records()
    kept = [line["checkpoint_ref"] for line in wal if line["kind"] == "CHECKPOINT"]
    assert kept == [f"run/{run_of(node).key}#2", f"run/{run_of(node).key}#3"]
    assert {line["checkpoint_ref"] for line in wal if line["attempt"] == 2} == {kept[-1]}


@pytest.mark.req("WAL-6")
def test_the_preflight_checkpoint_is_stored_first_and_replaces_the_stored_one() -> None:
    class Looks(Node):
        found = iter([{"table": 3}, {"table": 4}, {"table": 4}, None])

        def preflight_checkpoint(self, run: Any, key: str) -> Any:
            return next(self.found)

    node = Looks(TransientError(), TransientError(), TransientError(), 1)
    assert retry_loop(node, INPUTS, CFG) == "OK"
    assert node.began_at == [{"table": 3}, {"table": 4}, {"table": 4}, {"table": 4}]
    assert [mark for mark in marks(run_of(node)) if mark[0] == "CHECKPOINT"] == [
        ("CHECKPOINT", 1), ("CHECKPOINT", 2),
    ]  # fmt: skip


# The second call -------------------------------------------------------------------------------------


@pytest.mark.req("WAL-9")
def test_complete_work_is_not_computed_again() -> None:
    node = Node(1)
    assert [retry_loop(node, INPUTS, CFG) for _ in range(11)] == ["OK"] * 11
    assert node.computed == 1


def test_failed_work_stays_failed_until_a_rerun_with_a_reason() -> None:
    node = Node(PermanentError("wrong"), 1)
    assert retry_loop(node, INPUTS, CFG) == retry_loop(node, INPUTS, CFG) == "HARD_FAIL"
    assert node.computed == 1
    assert retry_loop(node, INPUTS, CFG, rerun="the column is there now") == "OK"
    assert "because the column is there now" in run_of(node).explain()


@pytest.mark.req("IDEM-1")
def test_the_key_is_node_inputs_and_partition() -> None:
    def key(node_id: str, inputs: Any, cfg: Any) -> str:
        node = Node(1)
        node.node_id = node_id
        assert retry_loop(node, inputs, cfg) == "OK"
        return run_of(node, inputs, cfg).key

    same = key("a", {"x": 1, "y": 2}, {"partition": {"day": 1, "zone": 2}})
    assert key("a", {"y": 2, "x": 1}, {"partition": {"zone": 2, "day": 1}}) == same
    assert key("a", {"y": 2, "x": 1}, {"target_partition": {"zone": 2, "day": 1}}) == same
    others = [
        key("b", {"x": 1, "y": 2}, {"partition": {"day": 1, "zone": 2}}),
        key("a", {"x": 1, "y": 3}, {"partition": {"day": 1, "zone": 2}}),
        key("a", {"x": 1, "y": 2}, {"partition": {"day": 1, "zone": 3}}),
        key("a", {"x": 1, "y": 2}, None),
    ]
    assert len({same, *others}) == 5


@pytest.mark.req("IDEM-16")
def test_inputs_and_configuration_have_digests_of_their_own() -> None:
    def digests(partition: int, inputs: str, cfg: str) -> tuple[str, str]:
        told = {**json.loads(cfg), "partition": partition}
        assert retry_loop(Node(1), json.loads(inputs), told) == "OK"
        state = run_of(Node(), json.loads(inputs), told).state
        return state.input_hash, state.cfg_hash

    first = digests(1, '{"a": 1.0, "b": 2}', '{"res": 1.0, "mode": "x"}')
    assert digests(2, '{"b": 2, "a": 1.0e0}', '{"mode": "x", "res": 1.0e0}') == first
    other_inputs = digests(3, '{"a": 1.5, "b": 2}', '{"res": 1.0, "mode": "x"}')
    other_cfg = digests(4, '{"a": 1.0, "b": 2}', '{"res": 2.0, "mode": "x"}')
    assert (other_inputs[0] != first[0], other_inputs[1] == first[1]) == (True, True)
    assert (other_cfg[0] == first[0], other_cfg[1] != first[1]) == (True, True)


def test_a_changed_configuration_does_not_return_the_old_result_by_default() -> None:
    node, cfg, changed = Node(1), {**CFG, "resolution": 1}, {**CFG, "resolution": 2}
    retry_loop(node, INPUTS, cfg)
    with pytest.raises(oncemore.ConfigChanged):
        retry_loop(node, INPUTS, changed)
    assert retry_loop(node, INPUTS, changed, on_config_change="reuse") == "OK"
    assert node.computed == 1
    assert retry_loop(node, INPUTS, changed, on_config_change="new") == "OK"
    assert node.computed == 2
    fewer = files.policy("kfm-loop").replace(max_attempts=2)
    assert retry_loop(node, INPUTS, changed, policy=fewer) == "OK", "a policy is no configuration"
    assert node.computed == 2


# What is no end of the work --------------------------------------------------------------------------


def test_a_node_with_effect_once_is_never_repeated_blindly() -> None:
    node = Node(TransientError("no answer"))
    node.effect = "once"  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(oncemore.OutcomeUnknown):
            retry_loop(node, INPUTS, CFG)
    assert node.computed == 1


def test_a_wait_longer_than_the_policys_longest_delay_is_raised(clock: FakeClock) -> None:
    headers = Message()
    headers["Retry-After"] = "7200"
    node = Node(HTTPError("http://catalogue", 503, "busy", headers, None), 1)
    policy = files.policy("kfm-loop").replace(classes=None)
    with pytest.raises(oncemore.Deferred):
        retry_loop(node, INPUTS, CFG, policy=policy)
    assert clock.delays == []
    clock.advance(7200)
    assert retry_loop(node, INPUTS, CFG, policy=policy) == "OK"


def test_a_deadline_before_the_first_attempt_is_not_a_failure(engine: Engine) -> None:
    with oncemore.context(deadline=engine.now() - 1), pytest.raises(oncemore.DeadlineExceeded):
        retry_loop(Node(1), INPUTS, CFG)
    assert last_run(Node(), INPUTS, CFG) is None


def test_an_unencodable_result_fails_only_a_pure_node() -> None:
    pure, other = Node(object()), Node(object())
    other.node_id, other.effect = "other", "idempotent"  # type: ignore[attr-defined]
    assert retry_loop(pure, INPUTS, CFG) == "HARD_FAIL"
    assert run_of(pure).reason == "result_unavailable"
    assert [retry_loop(other, INPUTS, CFG) for _ in range(2)] == ["OK", "OK"]
    assert other.computed == 1


@pytest.mark.parametrize(
    ("change", "cfg", "match"),
    [
        ({"compute": None}, None, "is not a node: it has no compute"),
        ({"preflight_checkpoint": 3}, None, "is not a node: it has no preflight_checkpoint"),
        ({"node_id": None}, None, "has no node_id; it names the work in the log"),
        ({}, [1], r"cfg is \[1\]; it takes a mapping"),
        ({}, {"retry_policy": {"max_attempts": 99}}, "cfg holds retry_policy, which has no effect there"),
        ({}, {"max_attempts": 2}, "cfg holds max_attempts, which has no effect there: it is a field"),
        ({}, {"on_config_change": "new"}, "cfg holds on_config_change, which has no effect there"),
    ],
)
def test_an_invalid_node_or_configuration_is_refused(change: dict[str, Any], cfg: Any, match: str) -> None:
    node = Node(1)
    vars(node).update(change)
    with pytest.raises(oncemore.UsageError, match=match):
        retry_loop(node, INPUTS, cfg)
    assert node.computed == 0


def test_a_node_may_be_called_by_its_name() -> None:
    node = Node(1)
    node.node_id, node.name = None, "named"  # type: ignore[assignment, attr-defined]
    assert retry_loop(node, INPUTS) == "OK"
    assert run_of(node, cfg=None).step == "named"


def test_it_needs_no_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"""
        import sys; sys.path[:0] = [{str(ROOT)!r}]
        from tests.profiles.test_kfm_loop import Node, retry_loop
        print(retry_loop(Node(1), {INPUTS!r}, {CFG!r}))
    """
    for _ in range(2):
        assert python(code, tmp_path).communicate()[0] == "OK\n"
    assert (tmp_path / ".oncemore/log.db").is_file()
    monkeypatch.chdir(tmp_path)
    with oncemore.open(tmp_path / ".oncemore/log.db"):
        assert len(run_of(Node()).attempts) == 1


# Async nodes -----------------------------------------------------------------------------------------


class Awaited(Node):
    """The same node with async methods."""

    async def preflight_checkpoint(self, run: Any, key: str) -> Any:  # type: ignore[override]
        return run.resume({"done": 0})

    async def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
        done = checkpoint["done"] + 1
        await oncemore.current().checkpoint({"done": done})
        return Node.compute(self, inputs, cfg, checkpoint)


@pytest.mark.parametrize("loop", [lambda main: asyncio.run(main()), trio.run], ids=["asyncio", "trio"])
def test_a_node_may_be_async(loop: Callable[[Any], Any], clock: FakeClock) -> None:
    node = Awaited(*[TransientError("busy")] * 4, 1)
    assert loop(lambda: retry_loop(node, INPUTS, CFG)) == "OK"
    assert node.began_at == [{"done": done} for done in range(5)]
    assert len(clock.delays) == 4, "also those that are longer than a call sits out by itself"
    wrong = Awaited(PermanentError("wrong"))
    wrong.node_id = "wrong"
    assert loop(lambda: retry_loop(wrong, INPUTS, CFG)) == "HARD_FAIL"


def test_the_preflight_of_an_async_node_may_be_plain() -> None:
    class Mixed(Awaited):
        preflight_checkpoint = Node.preflight_checkpoint  # type: ignore[assignment]

        async def compute(self, inputs: Any, cfg: Any, checkpoint: Any) -> Any:
            return Node.compute(self, inputs, cfg, checkpoint)

    node = Mixed(TransientError(), 1)
    assert asyncio.run(retry_loop(node, INPUTS, CFG)) == "OK"
    assert node.began_at == [None, None]


# Processes that die ----------------------------------------------------------------------------------


def python(code: str, cwd: Path) -> subprocess.Popen[str]:
    """Start Python on a piece of code, in a folder, with the tests and the package at hand."""
    import inspect

    command = [sys.executable, "-c", inspect.cleandoc(code)]
    told = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMORE_")}
    return subprocess.Popen(command, cwd=cwd, env=told, stdout=subprocess.PIPE, text=True)


#: A process whose node says when an attempt begins, fails the first, and hangs in the second.
HANGS = f"""
    import sys, time; sys.path[:0] = [{str(ROOT)!r}]
    import oncemore
    from oncemore.testing import FakeClock
    from tests.profiles.test_kfm_loop import CFG, INPUTS, Node, TransientError, retry_loop

    class Hangs(Node):
        def compute(self, inputs, cfg, checkpoint):
            print(oncemore.current().number, flush=True)
            if oncemore.current().number == HANGS_AT:
                time.sleep(600)
            raise TransientError("busy")

    with oncemore.open("log.db"), CLOCK:
        retry_loop(Hangs(), INPUTS, CFG)
"""


def killed_at(attempt: int, folder: Path, clock: str = "FakeClock()") -> None:
    """Start a process on the node, and kill it when that attempt has begun."""
    process = python(HANGS.replace("HANGS_AT", "2").replace("CLOCK", clock), folder)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == attempt:
            break
    if attempt == 1:
        while run_in(folder).status != "SOFT_FAIL":  # it is in its delay
            pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def run_in(folder: Path) -> Run:
    with oncemore.open(folder / "log.db"):
        return run_of(Node())


@pytest.mark.req("STATE-6")
def test_after_a_crash_in_attempt_2_the_run_continues_with_3_and_a_new_run_with_7(tmp_path: Path) -> None:
    killed_at(2, tmp_path)
    node = Node(TransientError("busy"))
    with oncemore.open(tmp_path / "log.db"):
        assert retry_loop(node, INPUTS, CFG) == "HARD_FAIL"
        run = run_of(node)
        assert [attempt.number for attempt in run.attempts] == [1, 2, 3, 4, 5, 6]
        assert [attempt.reason for attempt in run.attempts][1] == "lease_expired"
        assert node.computed == 4, "the budget belongs to the run, also across a crash"
        assert retry_loop(Node(1), INPUTS, CFG, rerun="try the new cluster") == "OK"
        assert [attempt.number for attempt in run_of(node).attempts] == [7]


@pytest.mark.req("LEASE-6")
def test_the_worker_that_takes_over_waits_for_the_rest_of_a_delay(tmp_path: Path, clock: FakeClock) -> None:
    killed_at(1, tmp_path, clock="oncemore.context()")  # a real delay of 20 s and more
    not_before = run_in(tmp_path).not_before
    node = Node(1)
    with oncemore.open(tmp_path / "log.db"):
        assert retry_loop(node, INPUTS, CFG) == "OK"
        first, second = run_of(node).attempts
    assert second.began >= not_before >= first.began + 20
    assert 10 < clock.delays[0] < 30


def test_the_engine_around_the_call_is_used(engine: Engine) -> None:
    node = Node(1)
    retry_loop(node, INPUTS, CFG)
    with oncemore.open("memory:") as inner:
        assert find_engine() is inner
        assert retry_loop(node, INPUTS, CFG) == "OK"
    assert node.computed == 2


def test_the_code_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_page("kfm-loop.md", (ROOT / "docs/reference/kfm-loop.md").read_text(encoding="utf-8"))
    assert "attempt 2 → COMPLETE" in capsys.readouterr().out
