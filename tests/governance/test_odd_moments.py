"""Datasets, escalations and roles: wrong input, long lists, and decisions made at the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.control import permits
from oncemore.errors import PermanentError, StaleDecision, StepFailed, UsageError
from oncemore.governance import datasets, escalations, identity, role_model, roles
from oncemore.log.store import Conflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.steps.engine import Engine


def register(engine: Engine, name: str = "survey", **fields: Any) -> None:
    engine.datasets.register(name, reason="first", by="steward", **{"care_label": "Public", **fields})


def fail(engine: Engine, item: int = 1) -> Any:
    @oncemore.step(effect="idempotent", name="publish", dataset="survey")
    def publish(item: int) -> str:
        raise PermanentError("broken")

    with pytest.raises(StepFailed):
        publish(item)
    return publish.last_run(item)


def test_wrong_decisions_about_datasets_are_refused(engine: Engine) -> None:
    with pytest.raises(UsageError, match="care_label of dataset survey is missing"):
        engine.datasets.register("survey", reason="first", by="steward")
    with pytest.raises(UsageError, match="survey is not registered; register it first"):
        engine.datasets.block("survey", reason="objection", by="steward")
    register(engine, masking_level=2)
    with pytest.raises(UsageError, match="survey is registered already"):
        register(engine)
    for fields in ({}, {"status": "open"}):
        with pytest.raises(UsageError, match="label takes one or more fields"):
            engine.datasets.label("survey", reason="none", by="steward", **fields)
    with pytest.raises(
        UsageError, match="masking_level of dataset survey is 2 in the store; a level may stay"
    ):
        engine.datasets.label("survey", masking_level=1, reason="less", by="steward")
    with pytest.raises(UsageError, match="the id of the dataset is ''"):
        engine.datasets.get("")
    assert "oncemore.Datasets of" in repr(engine.datasets)
    assert [record.dataset_id for record in engine.datasets] == ["survey"]


def test_long_lists_are_read_in_pages(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "PAGE_SIZE", 2)
    monkeypatch.setattr(escalations, "PAGE_SIZE", 2)
    monkeypatch.setattr(permits, "MAX_CACHED_DATASETS", 1)
    for name in ("survey", "maps", "sites"):
        register(engine, name)
    assert [record.dataset_id for record in engine.datasets.list()] == ["maps", "sites", "survey"]
    for item in (1, 2, 3):
        fail(engine, item)
    assert len(list(engine.escalations)) == 3
    assert "oncemore.Escalations of" in repr(engine.escalations)
    # Two datasets in turn, of which the engine remembers one.
    for name in ("maps", "sites", "maps"):
        assert oncemore.step(effect="pure", name=f"read {name}", dataset=name)(lambda: 1)() == 1


def test_the_id_of_an_escalation_is_unique(engine: Engine) -> None:
    register(engine)
    run = fail(engine)
    fail(engine, 2)
    with pytest.raises(UsageError, match="the id is 'abc'; it takes 4 characters"):
        engine.escalations.show("abc")
    with pytest.raises(UsageError, match="2 escalations begin with"):
        engine.escalations.show(run.run_id[:8])
    with pytest.raises(UsageError, match="kind is 'care'"):
        engine.escalations.list(kind="care")
    assert engine.escalations.show(run.run_id).escalation.run_id == run.run_id


def test_a_ticket_of_governed_work_without_a_dataset_says_so(engine: Engine) -> None:
    @oncemore.step(effect="idempotent", name="work", policy="kfm-rules")
    def work() -> str:
        raise oncemore.PolicyViolation("SCHEMA_INVALID", "broken")

    with pytest.raises(oncemore.Quarantined):
        work()
    (ticket,) = engine.escalations.list()
    assert (ticket.kind, ticket.dataset, ticket.care_label) == ("TICKET", "", "")
    body = engine.quarantine.show(ticket.run_id)
    assert body.item.dataset == ""
    recorded = engine.store.load_head(f"run/{ticket.key}")
    assert recorded is not None
    assert b"none: the step names no dataset" in (recorded.body or b"")


@pytest.fixture
def refuse_writes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, int], None]:
    """A function that lets the first writes of a module find that another one came first."""

    def refuse(module: Any, count: int) -> None:
        original, left = module.append_if_not_moved, [count]

        def append(engine: Engine, subject: str, writes: Any) -> Any:
            if left[0] > 0:
                left[0] -= 1
                return Conflict(writes[0].entity, None)
            return original(engine, subject, writes)

        monkeypatch.setattr(module, "append_if_not_moved", append)

    return refuse


def test_decisions_made_at_the_same_moment(
    engine: Engine, refuse_writes: Callable[[Any, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(engine)
    run = fail(engine)
    (ticket,) = engine.escalations.list()
    refuse_writes(datasets, 3)
    assert engine.datasets.block("survey", reason="objection", by="steward").state == "BLOCKED"
    refuse_writes(datasets, 1000)
    with pytest.raises(StaleDecision, match="dataset survey changed 20 times during the write"):
        engine.datasets.release("survey", reason="agreed", by="steward")
    refuse_writes(escalations, 2)
    with pytest.raises(StaleDecision, match="acknowledged in this very moment"):
        engine.escalations.acknowledge(ticket, reason="seen", by="reviewer")
    with pytest.raises(StaleDecision, match="changed in this very moment"):
        engine.escalations.open(run, reason="odd", by="operator")
    user = identity.read_process_user()
    refuse_writes(roles, 1)
    engine.roles.assign(user.name, "reviewer", reason="first")
    refuse_writes(roles, 1000)
    with pytest.raises(StaleDecision, match="the roles changed 20 times"):
        engine.roles.assign("second", "viewer", reason="audit")
    monkeypatch.setattr(role_model, "MAX_MEMBERS", 1)
    with pytest.raises(UsageError, match="roles for up to 1 users"):
        engine.roles.assign("second", "viewer", reason="audit")
    assert "oncemore.Roles of" in repr(engine.roles)
    assert role_model.find_role(role_model.RoleRecord(), user) == ""


def test_a_dataset_blocked_while_its_file_is_loaded_stays_blocked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("datasets.yaml").write_text("datasets:\n  survey: {care_label: Public, status: open}\n")
    register(engine)

    def block_after_check(self: Any, entries: Any) -> None:
        engine.datasets.block("survey", reason="objection", by="steward")

    monkeypatch.setattr(datasets.Datasets, "_check_file", block_after_check)
    with pytest.raises(UsageError, match="status of dataset survey is blocked in the store"):
        engine.datasets.load("datasets.yaml", reason="old file", by="steward")
    assert engine.datasets.list()[0].state == "BLOCKED"


def test_a_decision_is_refused_if_the_registry_cannot_be_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(engine)
    run = fail(engine)
    original = engine.store.load_head

    def refuse(entity: str) -> Any:
        if entity.startswith("dataset/"):
            raise oncemore.StoreError("the disk is gone")
        return original(entity)

    engine.permissions.drop_cached()
    monkeypatch.setattr(engine.store, "load_head", refuse)

    @oncemore.step(effect="idempotent", name="publish", dataset="survey")
    def publish(item: int) -> str:
        return "published"

    with pytest.raises(oncemore.NotPermitted, match="control_state_unknown"):
        publish.rerun(1, reason="repaired")
    assert publish.last_run(1).run_id == run.run_id  # type: ignore[union-attr]


def test_a_waiting_run_without_a_recorded_user_is_approved_by_any_reviewer(engine: Engine) -> None:
    """The run was held before the store had roles."""
    work: Any = oncemore.step(effect="idempotent", name="delete", requires_approval=True)(lambda: 1)
    with pytest.raises(oncemore.NotPermitted, match="waits for an approval"):
        work()
    engine.roles.assign(identity.read_process_user().name, "reviewer", reason="first")
    engine.approvals.approve(work.last_run().run_id, reason="seen")
    assert work() == 1
