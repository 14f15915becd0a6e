"""Before computing, the artifact is looked up: there and valid, gone, or altered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import oncemore
from oncemore import PermanentFailure, PolicyViolation, Quarantined, ResultUnavailable, StoreError, UsageError
from oncemore.artifacts.backends import MemoryBackend
from oncemore.log.entry_codec import decode_body, decode_header
from oncemore.log.memory import MemoryStore
from oncemore.steps.engine import Engine
from oncemore.testing import FakeClock
from tests.artifacts.conftest import alter, list_references, objects_of


class Report:
    """A step whose result is one artifact, and how often it was computed."""

    def __init__(self, **told: Any) -> None:
        self.computed = 0
        self.content = b"the report"
        self.told = {"effect": "pure", "name": "report", "artifact": "report", **told}
        self.step = self.made()

    def made(self, **told: Any) -> Any:
        return oncemore.step(**{**self.told, **told})(self.compute)

    def compute(self, month: str = "2026-10") -> Any:
        self.computed += 1
        return oncemore.current().put(self.content, date=month)


def ends(run: Any) -> list[tuple[str, str]]:
    return [(each["state"], each["reason"]) for each in run.records() if each["kind"] == "TRANSITION"]


@pytest.mark.req("WAL-9")
def test_ten_replays_of_a_complete_run_compute_nothing(engine: Engine) -> None:
    report = Report()
    first = report.step()
    assert [report.step() for _ in range(10)] == [first] * 10
    assert report.computed == 1
    assert len(engine.artifacts.list()) == 1


def test_an_artifact_that_is_there_completes_the_run_without_computing(engine: Engine) -> None:
    report = Report()
    first, report.computed = report.step(), 0
    assert report.step.rerun(reason="the message came twice") == first
    run = report.step.last_run()
    assert (run.status, run.reason, report.computed) == ("COMPLETE", "artifact_exists", 0)
    told = [
        each for each in run.records() if each["state"] == "COMPLETE" and each["reason"] == "artifact_exists"
    ]
    assert len(told) == 1
    assert told[0]["artifacts"] == [first.digest]
    assert run.attempts == ()
    assert run.artifacts == (first,)


def test_going_back_to_a_version_finds_what_that_version_left(engine: Engine) -> None:
    report = Report()
    one = report.made(version="1")()
    report.content = b"by another algorithm"
    two = report.made(version="2")()
    assert (one.read(), two.read(), report.computed) == (b"the report", b"by another algorithm", 2)
    assert report.made(version="1")() == one
    run = report.made(version="1").last_run()
    assert (run.reason, report.computed) == ("artifact_exists", 2)
    assert ends(run)[-2:] == [("PENDING", "artifact_exists"), ("COMPLETE", "artifact_exists")]


def test_a_run_that_waits_is_completed_by_an_artifact_that_is_there(engine: Engine) -> None:
    report = Report()
    with FakeClock():
        first = report.step()
        report.made(version="2")().read()
        before = report.computed
        assert report.made(version="1").rerun(reason="again") == first
    assert report.computed == before


@pytest.mark.req("ART-7")
def test_a_reference_whose_object_is_missing_does_not_count_as_existing(engine: Engine) -> None:
    report = Report()
    first = report.step()
    assert engine.artifact_store.backend.remove_object(first.digest, float("inf"))
    with pytest.raises(StoreError, match="is not in"):
        first.read()
    again = report.step()
    assert (again, again.read(), report.computed) == (first, b"the report", 2)
    assert report.step.last_run().state.run_number == 2
    assert len(engine.artifacts.list()) == 1


def test_what_was_missing_must_come_out_the_same(engine: Engine) -> None:
    report = Report()
    first = report.step()
    engine.artifact_store.backend.remove_object(first.digest, float("inf"))
    report.content = b"something else"
    with pytest.raises(PermanentFailure, match="what is there stays"):
        report.step()
    assert report.step.last_run().error["code"] == "ARTIFACT_IMMUTABLE"


@pytest.mark.req("ART-7", "WAL-10")
def test_one_flipped_bit_is_quarantined_and_nothing_is_computed(engine: Engine) -> None:
    report = Report()
    first = report.step()
    alter(engine.artifact_store.backend, first.digest)
    kept = objects_of(engine)
    for _ in range(2):
        with pytest.raises(Quarantined, match="was altered") as caught:
            report.step()
        assert caught.value.run.held_for == "checksum_mismatch"
    run = report.step.last_run()
    assert (run.status, run.held_for) == ("PENDING", "checksum_mismatch"), "nothing was tried"
    assert run.state.run_number == 2, "the second call has met the hold of the first"
    (item,) = engine.quarantine
    assert (item.id, item.reason, item.error["code"]) == (
        run.run_id,
        "checksum_mismatch",
        "CHECKSUM_MISMATCH",
    )
    assert report.computed == 1
    assert objects_of(engine) == kept, "the evidence stays as it is, and nothing is added"
    escalations = [each["escalation"] for each in run.records() if each["kind"] == "ESCALATION"]
    assert len(escalations) == 1
    (held,) = list_references(engine, "QUARANTINED")
    assert (held.digest, held.name) == (first.digest, "report")
    assert engine.artifacts.list() == []
    entries = [entry for entry in engine.store.read_entries() if entry.entity.startswith("artifact/")]
    assert [decode_header(entry.header).marks for entry in entries] == [("ARTIFACT",), ("ESCALATION",)]
    assert decode_body(entries[1].body or b"")["quarantine"]["reason"] == "checksum_mismatch"


def test_a_person_puts_it_back_or_takes_it_away(engine: Engine) -> None:
    report = Report()
    first = report.step()
    alter(engine.artifact_store.backend, first.digest)
    report.step.run()
    with pytest.raises(Quarantined, match="decide there"):
        report.step.rerun(reason="nothing was repaired yet")
    (item,) = engine.quarantine
    with pytest.raises(UsageError, match="was altered"):
        engine.quarantine.release(item, by="ada", reason="I think so")
    alter(engine.artifact_store.backend, first.digest)  # the same bit again: it is as it was
    engine.quarantine.release(item, by="ada", reason="restored from the backup")
    assert engine.artifacts.list() == [first]
    assert list(list_references(engine, "QUARANTINED")) == []
    assert report.step() == first
    assert (report.step.last_run().reason, report.computed) == ("artifact_exists", 1)


def test_what_is_not_there_cannot_be_set_aside(engine: Engine) -> None:
    before = len(list(engine.store.read_entries()))
    engine.artifacts.quarantine_artifact("artifact/unknown", PolicyViolation("CHECKSUM_MISMATCH"))
    assert len(list(engine.store.read_entries())) == before


def test_done_work_that_may_not_be_repeated_stays_done_when_its_artifact_is_altered(engine: Engine) -> None:
    report = Report(effect="idempotent")
    first = report.step()
    alter(engine.artifact_store.backend, first.digest)
    with pytest.raises(ResultUnavailable, match="its value cannot be read"):
        report.step()
    assert (report.step.last_run().status, report.computed) == ("COMPLETE", 1)
    assert len(list(list_references(engine, "QUARANTINED"))) == 1
    engine.artifact_store.backend.remove_object(first.digest, float("inf"))
    assert report.step() == first, "it is done; reading it says that it is gone"
    with pytest.raises(StoreError, match="is not in"):
        first.read()


def test_a_stored_result_of_another_version_that_is_reused_is_verified_too(engine: Engine) -> None:
    report = Report(on_version_change="reuse")
    first = report.step()
    other = report.made(version="2")
    assert other() == first
    alter(engine.artifact_store.backend, first.digest)
    with pytest.raises(ResultUnavailable, match="was altered"):
        other()
    assert report.computed == 1


def test_a_policy_that_begins_anew_after_failures_does_not_compute_over_altered_bytes(engine: Engine) -> None:
    report = Report(policy="lit")
    first = report.step()
    alter(engine.artifact_store.backend, first.digest)
    for _ in range(2):
        with pytest.raises(Quarantined, match="was altered"):
            report.step()
    assert report.computed == 1


def test_altered_input_ends_a_step_after_one_attempt(engine: Engine) -> None:
    first = Report().step()
    alter(engine.artifact_store.backend, first.digest)
    run = oncemore.step(effect="pure", name="reads", policy="kfm-loop")(lambda given: given.read()).run(first)
    assert (run.status, run.held_for, len(run.attempts)) == ("SOFT_FAIL", "checksum_mismatch", 1)
    assert run.attempts[0].error["code"] == "CHECKSUM_MISMATCH"


def test_an_async_step_is_answered_by_its_artifact_too(engine: Engine) -> None:
    computed: list[int] = []

    @oncemore.step(effect="pure", name="async", artifact="x")
    async def work() -> Any:
        computed.append(1)
        return await oncemore.current().put(b"x")

    async def main() -> Any:
        return await work(), await work(), await work.rerun(reason="again")

    one, two, three = asyncio.run(main())
    assert one == two == three
    assert (len(computed), work.last_run().reason) == (1, "artifact_exists")


class Unreachable(MemoryBackend):
    """A place that cannot be reached at times."""

    down = False

    def open_object(self, digest: str) -> Any:
        if self.down:
            raise OSError("the network is down")
        return super().open_object(digest)


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
def test_a_place_that_cannot_be_reached_is_no_reason_to_compute(effect: str) -> None:
    store, place, report = MemoryStore(), Unreachable(), Report(effect=effect)
    with Engine(lambda: store, "memory:", place=lambda: place) as engine:
        first = report.step()
        place.down = True
        with pytest.raises(StoreError, match="cannot be read: the network is down"):
            report.step()
        assert (report.computed, report.step.last_run().state.run_number) == (1, 1)
        place.down = False
        assert report.step() == first
        assert list(list_references(engine, "QUARANTINED")) == []
