"""`halt_scope: pipeline`: an error that is not retryable stops the steps of its pipeline from beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore import PolicyViolation
from oncemore.control.model import ALL_EXECUTION
from oncemore.errors import NotPermitted, OutcomeUnknown, PermanentFailure, Quarantined, UsageError
from oncemore.queries.ledger_reports import RETRIES, VERSIONING, build_reports
from oncemore.workers.worker import Worker

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock

calls: list[str] = []
HERE = __name__


@pytest.fixture(autouse=True)
def _forget_calls() -> None:
    calls.clear()


@oncemore.step(effect="idempotent", name="stage-1", policy="kfm-rules")
def poll(item: str) -> str:
    calls.append(f"poll {item}")
    return item


@oncemore.step(effect="idempotent", name="stage-2", policy="kfm-rules")
def check(item: str) -> str:
    calls.append(f"check {item}")
    if item == "bad":
        raise PolicyViolation("SCHEMA_INVALID", "no id")
    return item


@oncemore.step(effect="idempotent", name="stage-3")
def publish(item: str) -> str:
    calls.append(f"publish {item}")
    return item


@oncemore.step(effect="idempotent", name="report", pipeline="reports")
def report(item: str) -> str:
    calls.append(f"report {item}")
    return item


def ingest(item: str) -> str:
    return publish(check(poll(item)))


@pytest.mark.req("CLASS-3")
def test_an_error_in_stage_2_of_3_leaves_stage_3_uncalled_for_every_item(engine: Engine) -> None:
    with pytest.raises(Quarantined, match="no id"):
        ingest("bad")
    with pytest.raises(NotPermitted) as refused:
        ingest("good")
    assert refused.value.reason == "switch"
    assert str(refused.value).partition(" was not begun: ")[2] == (
        f"pipeline {HERE} is halted by policy exp_full_jitter retry-loop-v10.3: stage-2 failed with "
        "SCHEMA_INVALID, which is not retryable; look at what failed (oncemore quarantine list), then "
        f"release the pipeline: oncemore control switch off --pipeline {HERE} --reason …"
    )
    with pytest.raises(NotPermitted):
        publish("anything")
    assert calls == ["poll bad", "check bad"]
    assert report("other") == "other", "a step of another pipeline goes on"
    (item,) = engine.quarantine
    ledgers = build_reports(engine)
    (held,) = (entry for entry in ledgers[VERSIONING] if entry["kind"] == "quarantine")
    (tried,) = ledgers[RETRIES]
    assert held["error_classes"] == tried["error_classes"] == ["SCHEMA_INVALID"]
    assert tried["attempts"] == 1
    assert held["id"].startswith(f"run/{check.key('bad')}#")
    assert item.step == "stage-2"
    assert engine.switches.off(pipeline=HERE, reason="the item is set aside", by="operator")
    assert ingest("good") == "good"
    assert [(said.action, said.name, said.by) for said in engine.switches.history()] == [
        ("on", f"pipeline:{HERE}", "policy exp_full_jitter retry-loop-v10.3"),
        ("off", f"pipeline:{HERE}", "operator"),
    ]


@pytest.mark.anyio
async def test_an_async_step_halts_its_pipeline_too(engine: Engine) -> None:
    @oncemore.step(effect="idempotent", name="deferred", policy="kfm-rules", pipeline="tiles")
    async def later() -> None:
        raise PolicyViolation("LINEAGE_MISMATCH")

    with pytest.raises(Quarantined):
        await later()
    assert [one.name for one in engine.switches.status()] == ["pipeline:tiles"]


def test_a_retryable_error_and_exhaustion_halt_nothing(engine: Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="busy", policy="kfm-rules")
    def busy() -> None:
        raise TimeoutError

    with pytest.raises(oncemore.RetriesExhausted) as failed:
        busy()
    # The attempts, not the waits: a jittered delay may be over before the wait begins.
    assert failed.value.run.state.attempt_count == 5
    assert engine.switches.status() == ()


def test_a_step_with_an_unknown_outcome_halts_its_pipeline(engine: Engine) -> None:
    @oncemore.step(effect="once", name="pay", policy="kfm-rules", pipeline="payments")
    def pay() -> None:
        raise PolicyViolation("RIGHTS_VIOLATION")

    with pytest.raises(OutcomeUnknown):
        pay()
    assert [one.name for one in engine.switches.status()] == ["pipeline:payments"]


def test_an_unknown_outcome_after_a_retryable_error_does_not_halt_the_pipeline(engine: Engine) -> None:
    @oncemore.step(effect="once", name="pay", policy="kfm-rules", pipeline="payments")
    def pay() -> None:
        raise TimeoutError

    with pytest.raises(OutcomeUnknown):
        pay()
    assert engine.switches.status() == ()


def test_a_worker_leaves_the_steps_of_a_halted_pipeline_alone(engine: Engine) -> None:
    publish.submit("waiting")
    report.submit("waiting")
    with pytest.raises(Quarantined):
        check("bad")
    worker = Worker(engine, [publish, report])
    assert worker.run_until_idle().done == 1
    assert calls == ["check bad", "report waiting"]
    run = publish.last_run("waiting")
    assert run is not None
    assert (run.status, run.state.attempt_count) == ("PENDING", 0)
    engine.switches.off(pipeline=HERE, reason="go on")
    assert Worker(engine, [publish]).run_until_idle().done == 1


def test_two_errors_halt_a_pipeline_once(engine: Engine) -> None:
    with pytest.raises(Quarantined):
        check("bad")
    engine.switches.off(pipeline=HERE, reason="go on")

    @oncemore.step(effect="idempotent", name="two", policy="kfm-rules")
    def two() -> None:
        with pytest.raises(Quarantined):
            inner()
        raise PolicyViolation("SCHEMA_INVALID", "the outer one")

    @oncemore.step(effect="idempotent", name="inner", policy="kfm-rules")
    def inner() -> None:
        raise PolicyViolation("SCHEMA_INVALID", "the inner one")

    with pytest.raises(Quarantined):
        two()
    assert [said.action for said in engine.switches.history()] == ["on", "off", "on"]


def test_a_log_without_room_for_another_switch_stops_everything(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemore.control.model.MAX_SWITCHES", 3)
    for number in range(3):
        engine.switches.on(step=f"step-{number}", reason="full")
    with pytest.raises(Quarantined):
        check("bad")
    assert ALL_EXECUTION in [one.name for one in engine.switches.status()]


def test_a_switch_that_is_turned_meanwhile_does_not_lose_the_halt(engine: Engine) -> None:
    @oncemore.step(effect="idempotent", name="slow", policy="kfm-rules", pipeline="slow")
    def slow() -> None:
        engine.switches.on(tenant="shop-7", reason="meanwhile")
        raise PolicyViolation("SCHEMA_INVALID")

    with pytest.raises(Quarantined):
        slow()
    assert [one.name for one in engine.switches.status()] == ["tenant:shop-7", "pipeline:slow"]


def test_a_pipeline_is_stopped_by_a_person_too_and_by_one_name_at_a_time(engine: Engine) -> None:
    engine.switches.on(pipeline="reports", reason="the month is not over", by="operator")
    with pytest.raises(NotPermitted, match="pipeline reports is halted by operator: the month is not over"):
        report("early")
    with pytest.raises(UsageError, match="for a step, a tenant or a pipeline"):
        engine.switches.off(pipeline="reports", step="report", reason="both")


def test_a_halt_is_for_the_files_that_say_so(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text('version: "1"\nextends: standard\nhalt_scope: pipeline\n')

    @oncemore.step(effect="idempotent", name="mine", policy=file, pipeline="mine")
    def mine() -> None:
        raise PolicyViolation("SCHEMA_INVALID")

    with pytest.raises(PermanentFailure):
        mine()
    assert [one.name for one in engine.switches.status()] == ["pipeline:mine"]


def test_names_of_pipelines_are_checked_and_compared_as_nfc(engine: Engine) -> None:
    made = oncemore.step(effect="pure", name="nfd", pipeline="cafe\u0301")(lambda: 1)
    engine.switches.on(pipeline="cafe\u0301", reason="stop")
    assert engine.switches.status()[0].name == "pipeline:caf\u00e9"
    with pytest.raises(NotPermitted):
        made()
    with pytest.raises(UsageError, match="pipeline is 7"):
        oncemore.step(effect="pure", pipeline=7)(lambda: 1)  # type: ignore[arg-type]


def test_a_function_of_this_package_stands_alone(engine: Engine) -> None:
    from oncemore.control.model import switch_name

    made = oncemore.step(effect="pure", name="named")(switch_name)
    engine.switches.on(pipeline="named", reason="stop")
    with pytest.raises(NotPermitted):
        made()
