"""What is held for a person, why, and with which evidence."""

from __future__ import annotations

import asyncio
import pickle
from email.message import Message as Headers
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest

import oncemore
from oncemore import NeedsReview, OutcomeUnknown, PolicyViolation, Quarantined, UsageError
from oncemore.log.entry_codec import decode_body
from oncemore.log.store import HeadQuery
from oncemore.outbox import EventMessage, OutboxRelay
from oncemore.steps.history import verify_chain
from oncemore.steps.ops import RunAttempt
from tests.artifacts.conftest import alter
from tests.control.quarantine.helpers import charge, doubtful, list_marks, processes
from tests.crash.harness import start_engine_call

if TYPE_CHECKING:
    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock


@pytest.mark.req("CLASS-7")
def test_what_needs_review_is_called_once_and_waits_with_its_evidence(engine: Engine) -> None:
    with pytest.raises(Quarantined, match=r"in quarantine \(quarantined\): NeedsReview: two stars") as caught:
        doubtful(7)
    assert isinstance(caught.value.__cause__, NeedsReview)
    run = doubtful.last_run(7)
    assert run is not None
    assert (run.status, run.held_for, len(run.attempts)) == ("SOFT_FAIL", "quarantined", 1)
    for _ in range(2):
        with pytest.raises(Quarantined, match=f"oncemore quarantine show {run.run_id}") as again:
            doubtful(7)
        assert again.value.run.held_for == "quarantined"  # type: ignore[attr-defined]
        assert doubtful.run(7).held_for == "quarantined"
    (item,) = engine.quarantine
    case = engine.quarantine.show(item)
    assert (item.id, item.kind, item.reason, item.step) == (run.run_id, "run", "quarantined", "doubtful")
    assert (item.attempts, item.error["code"], item.version) == (1, "AMBIGUOUS_NAME", run.version)
    assert item.correlation_id == run.run_id
    assert (case.rule, case.effect) == ("oncemore:NeedsReview", "idempotent")
    assert case.input_hash == run.state.input_hash != ""
    assert case.proof is not None
    assert (case.proof["verdict"], case.proof["action"]) == ("QUARANTINE", "quarantine")
    assert [one.outcome for one in case.attempts] == ["SOFT_FAIL"]
    assert case.attempts[0].ended == item.since
    assert case.choices == ("release", "reject", "rerun")
    assert list_marks(engine, item.entity)[-1] == ("SOFT_FAIL", "DECISION", "ESCALATION")
    verify_chain(engine.store.read_entries())


@pytest.mark.parametrize(
    "code", ["AMBIGUOUS_NAME", "INTEGRITY_FAILED", "MALFORMED_RECORD", "UNKNOWN_FITS_PROFILE"]
)
@pytest.mark.parametrize("policy", ["standard", "nova-cat", "exoarmur", "lit", "kfm-loop"])
@pytest.mark.req("CLASS-7", "CLASS-5")
def test_no_policy_tries_again_what_a_person_has_to_look_at(code: str, policy: str) -> None:
    calls = []

    @oncemore.step(effect="idempotent", policy=policy, name="work")
    def work() -> None:
        calls.append(1)
        raise NeedsReview(code)

    with oncemore.open("memory:") as engine:
        for _ in range(3):
            with pytest.raises(Quarantined):
                work()
        assert [(item.reason, item.error["code"]) for item in engine.quarantine] == [("quarantined", code)]
    assert calls == [1]


@pytest.mark.req("CLASS-6")
def test_what_is_terminal_is_not_in_quarantine() -> None:
    @oncemore.step(effect="idempotent", policy="nova-cat", name="work")
    def work() -> None:
        raise oncemore.PermanentError("unsupported schema_version")

    with oncemore.open("memory:") as engine:
        with pytest.raises(oncemore.PermanentFailure):
            work()
        assert list(engine.quarantine) == []
        assert work.last_run().reason == "not_retryable"


def test_a_profile_that_quarantines_holds_what_it_does_not_retry() -> None:
    calls = []

    @oncemore.step(effect="idempotent", policy="kfm-rules", name="second", timeout=5)
    def second() -> None:
        calls.append(1)
        raise PolicyViolation("SCHEMA_INVALID", "no id")

    with oncemore.open("memory:") as engine:
        for _ in range(2):
            with pytest.raises(Quarantined, match="no id"):
                second()
        (item,) = engine.quarantine
        assert (item.error["code"], item.attempts, len(calls)) == ("SCHEMA_INVALID", 1, 1)


@pytest.mark.req("CLASS-8")
def test_a_download_whose_digest_differs_makes_one_request_and_a_throttled_one_another(
    engine: Engine, clock: FakeClock
) -> None:
    requests = []

    @oncemore.step(effect="idempotent", name="fetch")
    def fetch(what: str) -> str:
        requests.append(what)
        if what == "altered":
            raise PolicyViolation("CHECKSUM_MISMATCH", "it is not what the provider says")
        if len(requests) < 3:
            raise HTTPError("http://provider", 429, "slow down", Headers(), None)
        return what

    with pytest.raises(Quarantined, match="not what the provider says"):
        fetch("altered")
    assert fetch("throttled") == "throttled"
    assert requests == ["altered", "throttled", "throttled"]
    (item,) = engine.quarantine
    assert item.reason == "checksum_mismatch"


@pytest.mark.req("WAL-10")
def test_one_flipped_byte_is_one_record_with_both_digests(engine: Engine) -> None:
    @oncemore.step(effect="pure", name="report", artifact="report")
    def report() -> Any:
        return oncemore.current().put(b"the report")

    first = report()
    alter(engine.artifact_store.backend, first.digest)
    with pytest.raises(Quarantined, match="was altered"):
        report()
    (item,) = engine.quarantine
    case = engine.quarantine.show(item.id)
    assert (item.kind, item.reason, item.error["code"]) == ("run", "checksum_mismatch", "CHECKSUM_MISMATCH")
    assert case.artifact is not None
    assert (case.artifact["name"], case.artifact["expected"]) == ("report", first.digest)
    assert len(case.artifact["found"]) == 64
    assert case.artifact["found"] != first.digest
    assert engine.artifacts.list() == []


def test_an_altered_file_of_work_that_stays_done_is_an_item_of_its_own(engine: Engine) -> None:
    @oncemore.step(effect="idempotent", name="report", artifact="report", dataset="stars")
    def report() -> Any:
        return oncemore.current().put(b"the report")

    alter(engine.artifact_store.backend, report().digest)
    with pytest.raises(oncemore.ResultUnavailable):
        report()
    (item,) = engine.quarantine
    case = engine.quarantine.show(item)
    assert (item.kind, item.reason, item.step, item.dataset) == (
        "artifact", "checksum_mismatch", "report", "stars",
    )  # fmt: skip
    assert item.correlation_id == report.last_run().correlation_id
    assert case.artifact is not None
    assert (len(case.artifact["found"]), case.choices, case.attempts) == (64, ("release", "reject"), ())
    assert (case.effect, case.input_hash, case.proof) == ("", "", None)


def test_an_unknown_outcome_is_in_quarantine_until_its_step_can_say_what_became_of_it(engine: Engine) -> None:
    with pytest.raises(OutcomeUnknown):
        charge(1)
    (item,) = engine.quarantine
    assert (item.reason, item.error["code"]) == ("outcome_unknown", "TIMEOUT")
    assert engine.quarantine.show(item).choices == ("settle", "reject")
    asking = oncemore.step(effect="once", name="charge", reconcile=lambda x: oncemore.applied("paid"))(
        charge.__wrapped__
    )
    assert asking(1) == "paid"
    assert list(engine.quarantine) == []


def test_a_reconcile_function_is_not_asked_about_what_is_held_for_another_reason() -> None:
    asked = []

    @oncemore.step(
        effect="once", name="pay", not_applied=NeedsReview,
        reconcile=lambda: asked.append(1) or oncemore.not_applied(),
    )  # fmt: skip
    def pay() -> None:
        raise NeedsReview("WHO_IS_THIS")

    with oncemore.open("memory:") as engine:
        for _ in range(2):
            with pytest.raises(Quarantined):
                pay()
        assert [item.reason for item in engine.quarantine] == ["quarantined"]
        with pytest.raises(UsageError, match="not held"):
            pay.settle(oncemore.applied(), reason="it is not in doubt")
    assert asked == []


@pytest.mark.parametrize("effect", ["pure", "idempotent", "outbox"])
@pytest.mark.parametrize(
    ("after_failure", "spent"),
    [("standard", r"20 of 20 attempts .* \(max_crashes\)"), ("lit", r"attempt 2 of 2 .* \(max_attempts\)")],
)
def test_work_whose_workers_die_until_a_budget_is_spent_is_held_as_poison_and_says_which(
    effect: Any, after_failure: str, spent: str
) -> None:
    start, ran = processes(), []

    @oncemore.step(effect=effect, name="deadly", policy=after_failure)
    def deadly() -> None:
        ran.append(1)

    allowed = 0
    for n in range(1, 100):
        if allowed and n > allowed:
            break
        process = start_engine_call(start(), deadly)
        run = process.run_until(RunAttempt).head.record
        allowed = run.max_crashes or run.max_attempts
        process.end_process()
    with start() as engine:
        for _ in range(3):  # a policy that begins a new run after a failure begins none here
            with pytest.raises(Quarantined, match=f"poison.*{spent}"):
                deadly()
        (item,) = engine.quarantine
        case = engine.quarantine.show(item)
        assert (item.reason, item.attempts, item.error["code"]) == ("poison", allowed, "LEASE_EXPIRED")
        assert {one.error["code"] for one in case.attempts if one.error} == {"LEASE_EXPIRED"}
        assert len(case.attempts) == allowed
        assert case.choices == ("rerun", "reject")
        verify_chain(engine.store.read_entries())
    assert ran == []


@pytest.mark.parametrize(("crashes", "status"), [(None, "HARD_FAIL"), (1, "SOFT_FAIL")])
def test_an_attempt_that_was_interrupted_is_no_poison(crashes: int | None, status: str) -> None:
    @oncemore.step(effect="pure", name="cut", policy=oncemore.Policy(max_attempts=1, max_crashes=crashes))
    def cut() -> None:
        raise KeyboardInterrupt

    with oncemore.open("memory:") as engine:
        with pytest.raises(KeyboardInterrupt):
            cut()
        assert cut.last_run().status == status
        assert list(engine.quarantine) == []


def test_an_async_step_is_held_by_the_same_rules(engine: Engine) -> None:
    @oncemore.step(effect="idempotent", name="async")
    async def work(x: int) -> None:
        raise NeedsReview("AMBIGUOUS_NAME")

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(Quarantined):
                await work(1)
        assert (await work.run(1)).held_for == "quarantined"

    asyncio.run(main())
    (item,) = engine.quarantine
    engine.quarantine.reject(item, by="operator", reason="there is no such star")
    with pytest.raises(oncemore.PermanentFailure, match="rejected"):
        asyncio.run(work(1))


def test_a_dead_letter_is_an_item(engine: Engine) -> None:
    @oncemore.step(effect="outbox", name="give")
    def give() -> None:
        oncemore.current().emit("orders.packed", {"order": 1})

    def refuses(message: EventMessage) -> None:
        raise oncemore.PermanentError("no such customer")

    give()
    OutboxRelay(engine, {"*": refuses}).run_once()
    (item,) = engine.quarantine
    case = engine.quarantine.show(item)
    assert (item.kind, item.reason, item.step, item.attempts) == ("event", "dead_letter", "orders.packed", 1)
    assert item.error["message"] == "no such customer"
    assert case.proof is not None
    assert item.correlation_id == give.last_run().correlation_id
    assert case.choices == ("release", "reject")


def test_an_inner_step_in_quarantine_ends_the_outer_one_at_once() -> None:
    third = []

    @oncemore.step(effect="idempotent", name="pipeline")
    def pipeline() -> None:
        doubtful(1)
        third.append(1)

    with oncemore.open("memory:") as engine:
        with pytest.raises(oncemore.PermanentFailure, match="in quarantine"):
            pipeline()
        assert [item.step for item in engine.quarantine] == ["doubtful"]
    assert third == []


# The list -------------------------------------------------------------------------------------------


def test_the_list_is_filtered_and_ordered_by_time(engine: Engine) -> None:
    with oncemore.context(tenant="acme", correlation_id="c-1"):
        doubtful.run(1)
    charge.run(1)
    doubtful.run(2)
    everything = engine.quarantine.list()
    assert [item.step for item in everything] == ["doubtful", "charge", "doubtful"]
    assert [item.since for item in everything] == sorted(item.since for item in everything)
    assert len(engine.quarantine) == 3
    assert tuple(engine.quarantine) == everything
    assert engine.quarantine.list(step="charge") == everything[1:2]
    assert engine.quarantine.list(reason="quarantined") == everything[::2]
    assert engine.quarantine.list(kind="event") == ()
    assert engine.quarantine.list(tenant="acme") == everything[:1]
    assert engine.quarantine.list(since=everything[1].since) == everything[1:]
    assert everything[0].correlation_id == "c-1"
    assert repr(engine.quarantine).startswith("<oncemore.Quarantine of ")
    with pytest.raises(UsageError, match="the kinds are run, artifact, event"):
        engine.quarantine.list(kind="thing")


@pytest.mark.parametrize("since", ["yesterday", True, -1])
def test_a_time_that_is_none_is_refused(since: Any) -> None:
    with oncemore.open("memory:") as engine, pytest.raises(UsageError, match="since is"):
        engine.quarantine.list(since=since)


def test_a_datetime_is_a_time(engine: Engine) -> None:
    from datetime import UTC, datetime, timedelta

    doubtful.run(1)
    later = datetime.now(UTC) + timedelta(hours=1)
    assert engine.quarantine.list(since=later) == ()
    assert len(engine.quarantine.list(since=later - timedelta(hours=2))) == 1


def test_an_item_is_found_by_its_id_the_beginning_of_it_its_key_and_its_entity(engine: Engine) -> None:
    doubtful.run(1)
    (item,) = engine.quarantine
    key = item.entity.removeprefix("run/")
    for asked in (item, item.id, item.id[:8], key, item.entity):
        assert engine.quarantine.show(asked).item == item
    for nothing in ("", "01a", 7, None):
        with pytest.raises(UsageError, match="4 characters or more"):
            engine.quarantine.show(nothing)  # type: ignore[arg-type]
    with pytest.raises(oncemore.StaleDecision, match="nothing in quarantine has the id 'nobody'"):
        engine.quarantine.show("nobody")
    doubtful.run(2)
    with pytest.raises(UsageError, match="2 items in quarantine have ids that begin with"):
        engine.quarantine.show(item.id[:6])


def test_held_runs_are_listed_without_reading_those_that_only_wait(engine: Engine) -> None:
    doubtful.run(1)
    (head,) = engine.store.list_heads(HeadQuery("run", state="HELD"))
    assert head.by.due is None
    assert list(engine.store.list_heads(HeadQuery("run", due_by=1e15))) == []


def test_an_item_whose_evidence_was_pruned_is_still_listed() -> None:
    with oncemore.open("memory:") as engine:
        doubtful.run(1)
        (item,) = engine.quarantine
        engine.store.open_maintenance().prune_bodies({item.entity: item.version + 1})
        (pruned,) = engine.quarantine
        assert (pruned.id, pruned.error) == (item.id, {})
        assert engine.quarantine.show(pruned).proof is None


def test_what_is_decided_while_it_is_listed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with oncemore.open("memory:") as engine:
        doubtful.run(1)
        monkeypatch.setattr(engine.store, "read_entries", lambda entity=None, after=0: iter(()))
        assert list(engine.quarantine) == []


@pytest.mark.parametrize("code", ["", "no spaces", 7, "x" * 101])
def test_a_code_that_cannot_be_counted_is_refused(code: Any) -> None:
    with pytest.raises(UsageError, match="letters, digits and underscores"):
        NeedsReview(code)


def test_the_error_of_a_review_travels_between_processes() -> None:
    again = pickle.loads(pickle.dumps(NeedsReview("AMBIGUOUS_NAME", "two")))  # noqa: S301 - our own bytes
    assert (again.code, str(again), str(NeedsReview("ONLY_CODE"))) == ("AMBIGUOUS_NAME", "two", "ONLY_CODE")
    odd = NeedsReview("CODE")
    del odd.code
    assert oncemore.classify(odd, 0.0).code == "NeedsReview"


def test_the_evidence_holds_no_secret(engine: Engine) -> None:
    @oncemore.step(effect="idempotent", name="login")
    def login(user: str, password: oncemore.Secret) -> None:
        raise NeedsReview("LOCKED", f"refused {password.reveal()} for {user}")

    login.run("operator", oncemore.Secret("correct horse battery"))
    (item,) = engine.quarantine
    assert "operator" in item.error["message"]
    written = b"".join((entry.header + (entry.body or b"")) for entry in engine.store.read_entries())
    assert b"correct horse" not in written
    assert decode_body(b"{}") == {}
