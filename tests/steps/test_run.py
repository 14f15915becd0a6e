"""What a run leaves in the log: states, transitions, records, attempts, proofs; and that the log is whole."""

import hashlib
import itertools
import re
import threading
import uuid
from typing import Any

import pytest

import oncemore
from oncemore.log.entry_codec import decode_head
from oncemore.log.store import HeadQuery
from oncemore.policy.model import STATES, TRANSITIONS
from oncemore.steps.history import KINDS, verify_chain
from oncemore.testing import FakeClock
from tests.steps.colours import (
    POLICY,
    RAISES,
    SOON,
    Busy,
    Turns,
    abandoned,
    do,
    each_colour,
    in_memory,
    made,
    on_sqlite,
)

TEN = {
    "run_id", "node_id", "attempt", "input_hash", "seed", "cfg_hash", "idempotency_key", "checkpoint_ref",
    "telemetry_snapshot", "decision_proof",
}  # fmt: skip
SCENARIOS: dict[str, tuple[Any, ...]] = {
    "success": ("done",),
    "two soft fails, then success": (SOON, SOON, "done"),
    "permanent": (ValueError("bad"),),
    "exhausted": (SOON,),
    "interrupted, then success": (KeyboardInterrupt(), "done"),
    "unforeseen": (type("Unforeseen", (Exception,), {})("what is this"),),
}


def played(scenario: str, **options: Any) -> oncemore.Run:
    """Play a scenario to its end and return its run."""
    step = made("plain", Turns(*SCENARIOS[scenario]), policy=RAISES, **options)
    for _ in range(2):
        try:
            run = step.run(scenario)
        except KeyboardInterrupt:
            continue
    return run  # type: ignore[no-any-return]


def read(lines: list[dict[str, Any]], *left_out: str) -> str:
    """Return records as a line: states and kinds with attempt numbers."""
    shown = (
        f"{line['state'] if line['kind'] == 'TRANSITION' else line['kind']}({line['attempt']})"
        for line in lines
        if line["kind"] not in left_out
    )
    return " ".join(shown)


@pytest.mark.req("API-9")
@pytest.mark.usefixtures("clock")
def test_a_plain_function_gains_a_log_retries_and_telemetry_by_one_decorator(engine: oncemore.Engine) -> None:
    turns = Turns(SOON, "done")

    def stage(day: str) -> str:
        return str(turns())

    wrapped = oncemore.step(effect="idempotent")(stage)
    assert wrapped("2026-11-15") == "done"
    lines = wrapped.last_run("2026-11-15").records()  # type: ignore[union-attr]
    assert turns.calls == 2
    assert lines[-1]["telemetry_snapshot"]["duration_s"] >= 0
    assert len(lines) > 5


@pytest.mark.parametrize("seconds", [0.0, 0.25, 1.2345678])
def test_the_duration_of_an_attempt_is_stored_to_the_microsecond(
    engine: oncemore.Engine, clock: FakeClock, seconds: float
) -> None:
    stage = oncemore.step(effect="idempotent")(lambda: clock.advance(seconds)).bind(engine)
    stage()
    stored = stage.last_run().records()[-1]["telemetry_snapshot"]["duration_s"]  # type: ignore[union-attr]
    # The clock of the store goes on beside the fake one, so that the attempt is a little longer.
    assert seconds - 1e-6 <= stored < seconds + 60
    assert stored == float(f"{stored:.6f}")


@pytest.mark.usefixtures("engine", "clock")
@pytest.mark.parametrize(
    ("scenario", "reads"),
    [
        ("success", "PENDING(1) RUNNING(1) INTENT(1) COMMIT(1) COMPLETE(1)"),
        (
            "two soft fails, then success",
            "PENDING(1) RUNNING(1) INTENT(1) SOFT_FAIL(1) RUNNING(2) INTENT(2) SOFT_FAIL(2) "
            "RUNNING(3) INTENT(3) COMMIT(3) COMPLETE(3)",
        ),
        ("permanent", "PENDING(1) RUNNING(1) INTENT(1) HARD_FAIL(1) ESCALATION(1)"),
        (
            "exhausted",
            "PENDING(1) RUNNING(1) INTENT(1) SOFT_FAIL(1) RUNNING(2) INTENT(2) SOFT_FAIL(2) "
            "RUNNING(3) INTENT(3) HARD_FAIL(3) ESCALATION(3)",
        ),
        (
            "interrupted, then success",
            "PENDING(1) RUNNING(1) INTENT(1) SOFT_FAIL(1) RUNNING(2) INTENT(2) COMMIT(2) COMPLETE(2)",
        ),
    ],
)
def test_the_log_of_a_scenario_reads_as_it_happened(scenario: str, reads: str) -> None:
    assert read(played(scenario).records(), "DECISION") == reads


@pytest.mark.req("STATE-4", "STATE-9", "WAL-7", "WAL-13")
@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("effect", ["pure", "idempotent", "outbox"])
def test_every_record_is_complete_and_every_move_legal(effect: str, engine: oncemore.Engine) -> None:
    ids: list[str] = []
    for scenario in SCENARIOS:
        run = played(scenario, effect=effect)
        assert run.status in STATES
        assert run.status in ("COMPLETE", "HARD_FAIL")
        lines = run.records()
        moves = 0
        for line in lines:
            assert line.keys() >= TEN | {"seq", "at", "kind", "state", "correlation_id"}
            assert (line["run_id"], line["node_id"]) == (run.run_id, "work")
            assert line["idempotency_key"] == run.key
            assert re.fullmatch("[0-9a-f]{64}", line["seed"] + "")
            assert line["correlation_id"] == run.correlation_id == run.run_id
        states = [line["state"] for line in lines if line["kind"] == "TRANSITION"]
        assert states[0] == "PENDING"
        for before, after in itertools.pairwise(states):
            assert after in TRANSITIONS[before]
            moves += 1
        numbers = [line["attempt"] for line in lines if line["kind"] == "INTENT"]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) == len(run.attempts)
        assert moves + 1 == len(states)
        seqs = [line["seq"] for line in lines]
        assert seqs == sorted(seqs)
        for attempt in run.attempts:
            assert attempt.ended is not None
            assert attempt.began <= attempt.ended
            assert attempt.outcome in ("SOFT_FAIL", "HARD_FAIL", "COMPLETE")
            assert attempt.entry.startswith(f"run/{run.key}#")
        assert uuid.UUID(run.run_id).version == 7
        ids.append(run.run_id)
    assert ids == sorted(ids)
    assert [
        head
        for head in engine.store.list_heads(HeadQuery("run"))
        if decode_head(head.head).state == "RUNNING"
    ] == []


@pytest.mark.usefixtures("engine", "clock")
@each_colour
def test_decisions_are_there_with_their_proofs_and_in_words(colour: str) -> None:
    step = made(colour, Turns(SOON, SOON, "done"))
    run = do(colour, step.run)
    first, second = run.proofs
    assert [line["decision_proof"] for line in run.records() if line["kind"] == "DECISION"] == [first, second]
    told = run.explain().splitlines()
    assert told[0] == f"work, key {run.key[:12]}, run 1 ({run.run_id}): COMPLETE"
    assert told[1] == "  attempt 1 began, 1 of 3 (fence 1)"
    assert told[2] == "  attempt 1 → SOFT_FAIL (retry): TransientError: not yet"
    assert "5 s" in told[3]
    assert told[-1] == "  attempt 3 → COMPLETE"
    assert repr(run) == f"<oncemore.Run work {run.key[:12]} COMPLETE>"
    assert run.error is None


@pytest.mark.usefixtures("engine")
def test_a_rerun_is_told_as_a_decision_and_not_as_an_attempt() -> None:
    step = made("plain", Turns(ValueError("bad"), "good"))
    step.run()
    step.rerun(reason="mended")
    told = step.last_run().explain()
    assert "decided by an unnamed actor: rerun, because mended" in told
    assert "→ PENDING" not in told


@pytest.mark.usefixtures("engine")
def test_a_run_is_as_it_was_when_it_was_asked_for() -> None:
    step = made("plain", Turns(ValueError("bad"), "good"))
    before = step.run()
    step.rerun(reason="mended")
    assert (before.status, len(before.attempts), before.state.run_number) == ("HARD_FAIL", 1, 1)
    assert (step.last_run().status, len(step.last_run().attempts), step.last_run().state.run_number) == (
        "COMPLETE",
        1,
        2,
    )
    assert before.error["message"] == "bad"


@on_sqlite
def test_one_can_wait_for_a_run_from_outside(engine: oncemore.Engine) -> None:
    busy = Busy()
    step = made("plain", busy.hold)
    busy.start(step.bind(engine))
    going = step.last_run()
    assert (going.status, going.attempts[0].outcome, going.attempts[0].ended) == ("RUNNING", "RUNNING", None)
    assert going.wait(0.01).status == "RUNNING"
    threading.Timer(0.05, busy.go_on.set).start()
    done = going.wait(10)
    assert (done.status, done.value) == ("COMPLETE", "held")
    busy.end()
    assert going.status == "RUNNING"
    held = made("plain", Turns(SOON), effect="once", name="held")
    assert held.run().wait().held_for == "outcome_unknown"


# The log as a whole ---------------------------------------------------------------------------------


def busy_log(engine: oncemore.Engine) -> None:
    """Fill a log with all kinds of runs, events and checkpoints."""
    for effect in ("pure", "idempotent", "once"):
        for scenario in SCENARIOS:
            if effect == "once":
                made("plain", Turns(*SCENARIOS["unforeseen"]), effect="once", name="once").run(scenario)
            else:
                played(scenario, effect=effect, name=effect)

    def gives(x: int) -> int:
        oncemore.current().checkpoint([x])
        oncemore.current().emit("made", {"x": x})
        return x

    for x in range(3):
        made("plain", gives, effect="outbox", name="gives")(x)


@pytest.mark.usefixtures("clock")
def test_the_log_alone_gives_every_head(engine: oncemore.Engine) -> None:
    busy_log(engine)
    rebuilt = verify_chain(engine.store.read_entries())
    found = {}
    for kind, made_of in KINDS.items():
        for head in engine.store.list_heads(HeadQuery(kind, limit=1000)):
            found[head.entity] = (head.version, head.hash, decode_head(head.head, made_of), head.seq)
    assert found == rebuilt
    assert {name.partition("/")[0] for name in found} == {"run", "worker", "event", "policy"}


@pytest.mark.req("LEASE-2")
@each_colour
def test_a_lease_is_kept_by_renewals_that_are_entries_and_others_are_refused(
    colour: str, tmp_path: Any, clock: FakeClock
) -> None:
    second = oncemore.open(tmp_path / "log.db")
    engine = oncemore.open(tmp_path / "log.db")
    refused: list[float] = []

    def work(x: int) -> str:
        for _ in range(7):  # 140 s and a bit
            clock.advance(20)
            engine.leases.renew_leases()
            with pytest.raises(oncemore.InProgress) as caught:
                _elsewhere(made("plain", Turns("never"), if_running="raise").bind(second))
            refused.append(caught.value.until - second.now())
        clock.advance(10)
        return "done"

    assert do(colour, made(colour, work).bind(engine)) == "done"
    assert refused == pytest.approx([60.0] * 7, abs=1)
    (worker,) = [head.entity for head in engine.store.list_heads(HeadQuery("worker")) if head.version > 2]
    renewals = list(engine.store.read_entries(worker))
    assert len(renewals) >= 3
    for each in (engine, second):
        each.close()


def _elsewhere(call: Any) -> Any:
    """Make a call as somebody else would: not from inside the work."""
    import contextvars

    return contextvars.Context().run(call)


def test_recovered_runs_are_told_with_the_worker_that_was_lost(tmp_path: Any) -> None:
    lost = abandoned(tmp_path / "log.db")
    with oncemore.open(tmp_path / "log.db") as engine:
        step = made("plain", Turns("done"))
        step()
        assert read(step.last_run().records()) == (
            "PENDING(1) RUNNING(1) INTENT(1) SOFT_FAIL(1) RUNNING(2) INTENT(2) COMMIT(2) COMPLETE(2)"
        )
        assert step.last_run().attempts[0].worker == lost.state.worker
        assert "the worker that had it is gone" in step.last_run().explain()
        verify_chain(engine.store.read_entries())


@in_memory
@pytest.mark.usefixtures("engine")
def test_ten_calls_of_finished_work_write_nothing(engine: oncemore.Engine) -> None:
    step = made("plain", Turns("done"))
    step()
    before = len(list(engine.store.read_entries()))
    assert [step() for _ in range(10)] == ["done"] * 10
    assert len(list(engine.store.read_entries())) == before


@in_memory
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("seed", ["<sha256(run_id)>", "<sha256(idempotency_key)>", "literal"])
def test_draws_are_seeded_as_the_policy_says_and_the_seed_is_recorded(seed: str) -> None:
    step = made("plain", Turns("done"), policy=POLICY.replace(jitter_seed=seed))
    run = step.run(1)
    of_run, of_key = (hashlib.sha256(text.encode()).hexdigest() for text in (run.run_id, run.key))
    meant = {"<sha256(run_id)>": of_run, "<sha256(idempotency_key)>": of_key, "literal": "literal"}
    assert {line["seed"] for line in run.records()} == {meant[seed]}


@in_memory
@pytest.mark.usefixtures("engine")
def test_an_entry_that_is_not_there_has_no_body() -> None:
    run = made("plain", Turns("done")).run(1)
    assert run._read_body(99) == {}
