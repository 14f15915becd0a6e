"""The gate: what it refuses, what it records, and what becomes of a refused run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import (
    NotPermitted,
    PermanentError,
    PolicyViolation,
    Quarantined,
    StepFailed,
    TransientError,
    UsageError,
)
from oncemore.log.entry_codec import decode_body, decode_header, read_body
from oncemore.log.memory import CompletedTicket, MemoryStore
from oncemore.steps.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.store import Batch
    from oncemore.testing import FakeClock

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    calls.clear()


def make_step(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    def publish(item: int) -> str:
        calls.append(item)
        return f"published {item}"

    defaults = {"effect": "idempotent", "name": "publish", "dataset": "survey"}
    return oncemore.step(**{**defaults, **options})(function or publish)


def register(engine: Engine, **fields: Any) -> None:
    fields = {"care_label": "Public · Low-Risk", **fields}
    engine.datasets.register("survey", reason="first delivery", by="steward", **fields)


def bodies(engine: Engine, entity: str) -> list[dict[str, Any]]:
    return [read_body(entry) for entry in engine.store.read_entries(entity)]


# Who passes -----------------------------------------------------------------------------------------


def test_a_dataset_that_is_not_registered_passes_where_the_policy_is_not_governed(engine: Engine) -> None:
    assert make_step()(1) == "published 1"
    register(engine)
    engine.datasets.block("survey", reason="objection", by="steward")
    with pytest.raises(Quarantined, match="governance_blocked"):
        make_step()(2)
    assert calls == [1]


def test_a_governed_policy_refuses_a_dataset_that_is_not_registered(engine: Engine) -> None:
    work = make_step(policy="kfm-rules")
    with pytest.raises(Quarantined, match="not registered, and the policy of the step is governed"):
        work(1)
    assert calls == []
    register(engine)
    # It stays denied until a person has decided.
    with pytest.raises(Quarantined):
        work(1)
    engine.switches.off(pipeline=work._options.pipeline, reason="registered now", by="operator")
    engine.quarantine.release(work.last_run(1).run_id, by="operator", reason="registered now")
    assert work(1) == "published 1"


@pytest.mark.req("GOV-16")
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, ""),
        ({"status": "restricted", "operations": ["publish"]}, ""),
        ({"status": "restricted", "operations": ["copy"]}, "GOVERNANCE_VIOLATION"),
        ({"operations": ["copy"]}, "GOVERNANCE_VIOLATION"),
        ({"status": "blocked"}, "GOVERNANCE_BLOCKED"),
        ({"status": "withdrawn"}, "GOVERNANCE_BLOCKED"),
        ({"care_label": "Blocked · by the council"}, "GOVERNANCE_BLOCKED"),
        ({"care_label": "restricted"}, "GOVERNANCE_VIOLATION"),
        ({"rights": "denied"}, "RIGHTS_VIOLATION"),
        ({"rights": "unclear"}, "RIGHTS_VIOLATION"),
        ({"redaction_required": True}, "GOVERNANCE_VIOLATION"),
        ({"masking_level": 3}, "GOVERNANCE_VIOLATION"),
        (
            {
                "sensitivity": "General", "sensitivity_level": "Low", "public_exposure_risk": "low",
                "classification": "Public", "jurisdiction": "Kansas", "indigenous_rights_flag": False,
                "fair_category": "F1-A1-I1-R1", "risk_category": "Low", "data_steward": "steward",
                "governance_ref": "docs/governance.md", "ethics_ref": "docs/ethics.md",
                "sovereignty_policy": "docs/sovereignty.md", "licence": "CC-BY-4.0",
            },
            "",
        ),
    ],
)  # fmt: skip
def test_the_metadata_of_a_dataset_decide(engine: Engine, fields: dict[str, Any], code: str) -> None:
    register(engine, **fields)
    run = make_step().run(1)
    if not code:
        assert (run.status, calls) == ("COMPLETE", [1])
        return
    assert (run.status, run.held_for, calls) == ("PENDING", code.lower(), [])
    (item,) = engine.quarantine.list()
    assert (item.error["code"], item.dataset, item.reason) == (code, "survey", code.lower())
    assert engine.verify().entries


@pytest.mark.req("GOV-16")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"care_label": ""}, "care_label is ''; it takes a text of 1 to 500"),
        ({"sensitivity": "Sensitve"}, "begins with General, Internal, Confidential, Sensitive"),
        ({"sensitivity_level": "huge"}, "sensitivity_level is 'huge'; it takes None, Low, Moderate, High"),
        ({"indigenous_rights_flag": "yes"}, "indigenous_rights_flag is 'yes'; it takes true or false"),
        ({"masking_level": True}, "masking_level is true; it takes a whole number from 0 to 100"),
        ({"operations": [1]}, "operations is .*; it takes up to 100 names"),
        ({"status": "shut"}, "status is 'shut'; it takes OPEN, RESTRICTED, BLOCKED, WITHDRAWN"),
        ({"care_lable": "x"}, "no field 'care_lable'; did you mean care_label"),
        ({"zzz": "x"}, "no field 'zzz'; the fields are care_label"),
    ],
)
def test_wrong_metadata_are_refused(engine: Engine, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        register(engine, **fields)
    assert engine.datasets.list() == ()


# A label that changes during a run -------------------------------------------------------------------


@pytest.mark.req("GOV-1")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_label_changed_during_a_delay_stops_the_next_attempt(
    engine: Engine, clock: FakeClock, kind: str
) -> None:
    register(engine)

    def poll(item: int) -> str:
        calls.append(item)
        engine.datasets.label(
            "survey", care_label="Restricted · Council only", reason="letter 17", by="steward"
        )
        raise TransientError("try again")

    async def poll_async(item: int) -> str:
        return poll(item)

    if kind == "plain":
        with pytest.raises(Quarantined, match=r"restricted and permits no operation.*\(steward: letter 17\)"):
            make_step(poll)(1)
    else:
        import asyncio

        with pytest.raises(Quarantined, match="restricted and permits no operation"):
            asyncio.run(make_step(poll_async)(1))
    assert calls == [1], "the next attempt was not made"
    assert len(clock.delays) == 1, "it was refused after the delay"
    (open_one,) = engine.escalations.list()
    assert (open_one.kind, open_one.role) == ("CARE_ESCALATION", "FAIR+CARE Council")
    assert (open_one.dataset, open_one.care_label) == ("survey", "Restricted · Council only")
    assert (open_one.attempts, open_one.error_classes) == (1, ("TransientError", "GOVERNANCE_VIOLATION"))
    # The entry in the run's own chain has the four as well.
    recorded = bodies(engine, f"run/{open_one.key}")[-1]["escalation"]
    assert recorded["attempts"] == 1
    assert recorded["error_classes"] == ["TransientError", "GOVERNANCE_VIOLATION"]
    assert (recorded["dataset"], recorded["care_label"]) == ("survey", "Restricted · Council only")
    assert engine.verify().entries


class HookedStore(MemoryStore):
    """Calls a function right before a claim is stored."""

    before: Callable[[], object] | None = None

    def append(self, batch: Batch) -> CompletedTicket:
        if self.before is not None and any(write.by.state == "RUNNING" for write in batch.writes):
            before, self.before = self.before, None
            before()
        return super().append(batch)


@pytest.mark.parametrize("checks_guards_late", [False, True], ids=["guarded", "checked late"])
@pytest.mark.parametrize("registered", [False, True], ids=["unknown before", "known before"])
def test_a_dataset_blocked_after_it_was_read_stops_the_claim(
    registered: bool, checks_guards_late: bool
) -> None:
    store = HookedStore(checks_guards_late=checks_guards_late)
    with Engine(lambda: store, "memory:hooked") as engine, Engine(lambda: store, "memory:other") as other:
        work = make_step().bind(engine)
        if registered:
            register(engine)
        assert work(0) == "published 0"  # the engine remembers the dataset from here on

        def block() -> None:
            if not registered:
                register(other)
            other.datasets.block("survey", reason="objection", by="steward")

        store.before = block
        with pytest.raises(Quarantined, match="is blocked"):
            work(1)
        assert calls == [0]
        assert work.last_run(1).state.attempt_count == 0, "the claim that was taken back is not counted"


def test_a_denial_that_is_outdated_is_read_again(engine: Engine) -> None:
    """Another process has released the dataset: the denial that this engine remembers does not hold a run."""
    register(engine, status="blocked")
    with pytest.raises(Quarantined):
        make_step()(1)
    known = dict(engine.permissions._gated)
    engine.datasets.release("survey", reason="agreed", by="steward")
    engine.permissions._gated.update(known)
    assert make_step()(2) == "published 2"


# Denied stays denied ---------------------------------------------------------------------------------


@pytest.mark.req("GOV-2")
def test_a_denied_operation_is_denied_again_without_calling_the_work(engine: Engine) -> None:
    register(engine, status="restricted", operations=["count"])
    work = make_step(operation="publish")
    with pytest.raises(Quarantined, match="permits only count, and not publish"):
        work(1)
    version = work.last_run(1).version
    for again in (lambda: work(1), lambda: work.submit(1), lambda: work.run(1)):
        try:
            again()
        except Quarantined:
            continue
    oncemore.Worker(engine, [work]).run_until_idle()
    assert work.last_run(1).version == version, "one denied attempt"
    assert calls == []
    assert make_step(operation="count", name="counting")(1) == "published 1"


def test_a_blocked_dataset_is_not_processed_by_retry_or_rerun(engine: Engine, clock: FakeClock) -> None:
    register(engine)

    def fail(item: int) -> str:
        calls.append(item)
        if len(calls) > 1:
            engine.datasets.block("survey", reason="objection", by="steward")
            raise TransientError("try again")
        raise PermanentError("broken")

    work = make_step(fail)
    with pytest.raises(StepFailed):
        work(1)
    with pytest.raises(Quarantined):
        work(2)  # by a retry
    held = work.last_run(2).run_id
    for decide in (
        lambda: work.rerun(1, reason="repaired"),
        lambda: engine.quarantine.rerun(held, by="operator", reason="once more"),
        lambda: engine.quarantine.release(held, by="operator", reason="once more"),
    ):
        with pytest.raises(NotPermitted, match=r"is blocked .*oncemore control dataset release") as refused:
            decide()
        assert refused.value.reason == "GOVERNANCE_BLOCKED"
    assert calls == [1, 2]
    engine.datasets.release("survey", reason="agreed", by="steward")
    engine.quarantine.reject(held, by="operator", reason="not needed")


@pytest.mark.req("GOV-4")
def test_masking_may_stay_or_rise_and_never_fall(engine: Engine) -> None:
    level, results = 2, [TransientError("again"), PermanentError("broken"), None]

    def mask(item: int) -> str:
        calls.append(level)
        error = results.pop(0)
        if error is not None:
            raise error
        return "masked"

    def work(**options: Any) -> Any:
        return make_step(mask, masking=lambda item: level, version=str(level), dataset=None, **options)

    with pytest.raises(StepFailed):
        work()(1)
    assert calls == [2, 2]
    level = 1
    for _ in range(2):
        with pytest.raises((Quarantined, StepFailed)) as refused:
            work(on_version_change="new")(1)
    assert calls == [2, 2], "a lower level is not run"
    assert "masks at level 1, and an earlier attempt masked at level 2" in str(refused.value)
    (item,) = engine.quarantine.list()
    assert item.error["code"] == "GOVERNANCE_VIOLATION"
    engine.quarantine.reject(item.id, by="operator", reason="weaker mask")
    level = 3
    assert work().rerun(1, reason="a stronger mask") == "masked"
    assert calls == [2, 2, 3]
    assert work().last_run(1).state.masking == 3


def test_a_retry_with_a_lower_level_is_refused(engine: Engine, clock: FakeClock) -> None:
    """The level is a function of the arguments and of a setting that changes between two calls."""
    levels = iter([4, 3])

    def mask(item: int) -> str:
        calls.append(item)
        raise TransientError("again")

    def run_once(limit: int) -> Any:
        return make_step(mask, masking=next(levels), policy=oncemore.Policy("two", max_attempts=limit))

    with pytest.raises(StepFailed):
        run_once(1)(1)
    with pytest.raises(Quarantined, match="level 3"):
        run_once(2).rerun(1, reason="again")
    assert calls == [1]


@pytest.mark.parametrize("level", [-1, 101, 1.5, True, "2"])
def test_a_masking_level_is_checked(engine: Engine, level: Any) -> None:
    with pytest.raises(UsageError, match=r"masking is .*; it takes a whole number from 0 to 100"):
        make_step(masking=level)
    with pytest.raises(UsageError, match=r"masking is .*; it takes a whole number from 0 to 100"):
        make_step(masking=lambda item: level)(1)
    assert calls == []


def test_leaving_the_dataset_out_does_not_lead_around_the_gate(engine: Engine, clock: FakeClock) -> None:
    register(engine)
    work = make_step()
    work.submit(1)
    engine.datasets.block("survey", reason="objection", by="steward")
    with pytest.raises(Quarantined):
        make_step(dataset=None)(1)
    assert calls == []


def test_a_registry_that_cannot_be_read_means_no(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    register(engine)
    engine.permissions.drop_cached()
    original = engine.store.load_head

    def fail(entity: str) -> Any:
        if entity.startswith("dataset/"):
            raise oncemore.StoreError("the disk is gone")
        return original(entity)

    monkeypatch.setattr(engine.store, "load_head", fail)
    work = make_step()
    with pytest.raises(NotPermitted, match="control_state_unknown") as refused:
        work(1)
    assert (refused.value.reason, calls) == ("control_state_unknown", [])
    monkeypatch.undo()
    assert work(1) == "published 1", "nothing was decided: it goes on when the registry can be read"


# Sensitive data --------------------------------------------------------------------------------------


@pytest.mark.req("GOV-11")
@pytest.mark.parametrize("fields", [{"sensitivity": "Sensitive"}, {"indigenous_rights_flag": True}])
def test_a_failure_on_sensitive_data_waits_for_a_decision(
    engine: Engine, clock: FakeClock, fields: dict[str, Any]
) -> None:
    register(engine, **fields)
    Path("new-run.yaml").write_text("version: '1'\nextends: standard\nafter_failure: new_run\n")

    def fail(item: int) -> str:
        calls.append(item)
        if len(calls) == 1:
            raise PermanentError("broken")
        return "done"

    work = make_step(fail, policy="new-run.yaml")
    with pytest.raises(StepFailed):
        work(1)
    run = work.last_run(1)
    (review,) = engine.escalations.list(kind="CARE_ESCALATION")
    assert (review.requires_review, review.run_id, review.cause) == (True, run.run_id, "not_retryable")
    for again in (
        lambda: work(1),
        lambda: work.rerun(1, reason="repaired"),
        lambda: engine.erase(run.key, reason="tidy"),
    ):
        with pytest.raises((Quarantined, UsageError), match=r"sensitive data.*oncemore escalations ack"):
            again()
    clock.advance(3600)
    assert engine.prune(older_than=60.0).kept_runs.get("in_review") == 1
    assert calls == [1]
    with pytest.raises(UsageError, match="reason is missing"):
        engine.escalations.acknowledge(review.id, reason="", by="reviewer")
    done = engine.escalations.acknowledge(review, reason="the council agrees", by="reviewer")
    assert (done.state, done.by, done.reason) == ("ACKNOWLEDGED", "reviewer", "the council agrees")
    assert work(1) == "done"
    assert engine.escalations.list() == ()
    assert [each.id for each in engine.escalations.list(acknowledged=True)] == [review.id]


def test_a_failure_on_public_data_is_a_ticket_and_needs_no_review(engine: Engine) -> None:
    register(engine)
    outcomes = [PermanentError("broken")]

    def fail(item: int) -> str:
        if outcomes:
            raise outcomes.pop()
        return "done"

    work = make_step(fail)
    with pytest.raises(StepFailed):
        work(1)
    (ticket,) = engine.escalations.list()
    assert (ticket.kind, ticket.role, ticket.requires_review) == ("TICKET", "operators", False)
    assert ticket.policy == "autonomy-matrix"
    assert work.rerun(1, reason="repaired") == "done"


def test_work_without_a_dataset_and_without_governance_opens_no_ticket(engine: Engine) -> None:
    def fail(item: int) -> str:
        raise PermanentError("broken")

    with pytest.raises(StepFailed):
        make_step(fail, dataset=None)(1)
    assert engine.escalations.list() == ()


# Halting ---------------------------------------------------------------------------------------------


def test_a_refusal_halts_the_pipeline_where_the_policy_says_so(engine: Engine) -> None:
    register(engine, status="blocked")
    work = make_step(policy="kfm-rules", pipeline="ingest")
    with pytest.raises(Quarantined, match="governance_blocked"):
        work(1)
    (switch,) = engine.switches.status()
    assert switch.name == "pipeline:ingest"
    assert "GOVERNANCE_BLOCKED" in switch.reason
    with pytest.raises(NotPermitted, match="pipeline ingest is halted"):
        make_step(policy="kfm-rules", pipeline="ingest", name="other", dataset=None)(1)
    assert calls == []


@pytest.mark.req("GOV-8")
@pytest.mark.parametrize(
    "code",
    ["SCHEMA_INVALID", "FAIRCARE_VIOLATION", "GOVERNANCE_VIOLATION", "LINEAGE_MISMATCH", "CHECKSUM_MISMATCH",
     "ARTIFACT_IMMUTABLE", "RIGHTS_VIOLATION", "GOVERNANCE_BLOCKED"],
)  # fmt: skip
def test_each_error_that_is_never_retried_is_in_the_review_queue(engine: Engine, code: str) -> None:
    register(engine)

    def fail(item: int) -> str:
        calls.append(item)
        raise PolicyViolation(code, "broken")

    with pytest.raises(Quarantined):
        make_step(fail, policy="kfm-rules")(1)
    (item,) = engine.quarantine.list()
    assert (item.error["code"], item.attempts, item.dataset, calls) == (code, 1, "survey", [1])
    (ticket,) = engine.escalations.list()
    assert (ticket.error_classes, ticket.care_label) == ((code,), "Public · Low-Risk")


def test_an_entry_of_a_refusal_has_its_proof_and_its_evidence(engine: Engine) -> None:
    register(engine, status="blocked")
    with pytest.raises(Quarantined):
        make_step()(1)
    (entry,) = engine.store.read_entries(f"run/{make_step().key(1)}")
    assert decode_header(entry.header).marks == ("PENDING", "ESCALATION")
    body = decode_body(entry.body or b"{}")
    assert body["proof"]["action"] == "quarantine", body["proof"]
    assert body["gate"] == {
        "dataset": "survey",
        "care_label": "Public · Low-Risk",
        "operation": "publish",
        "masking": 0,
        "masked_before": 0,
    }
