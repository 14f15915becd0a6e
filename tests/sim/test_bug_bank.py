"""Engines that are broken on purpose: the simulation must catch each of them, or it proves nothing.

A bug is a function that breaks one thing, by `monkeypatch` or by a subclass of a piece, and returns the
simulation to run. `make torture` runs the same seeds for all, from 0 upwards, until one catches the bug, and
the unbroken engine on all of them (about 2,500). `make test` begins a rare bug with a seed that is known to
catch it (`CATCHES`), and runs the unbroken engine on 400 seeds and on those.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.memory import MemoryStore
from oncemore.log.record import RecordChange, RunRecord
from oncemore.log.store import Batch, Conflict, Stored
from oncemore.steps import (
    append,
    call_operations,
    existing_run,
    failure,
    failure_decision,
    flow,
    perform,
    refusals,
    transitions,
)
from oncemore.steps.attempt_storage import AttemptStorage
from oncemore.steps.ops import (
    CONFLICT,
    AppendChange,
    AttemptOutcome,
    AttemptTerms,
    EndCall,
    LoadHead,
    ReadLease,
    ReconcileAnswer,
)
from tests.sim.judge import Violation
from tests.sim.simulator import Fails, Sim, run_many, seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.steps.call import PreparedCall

    Bug = Callable[[pytest.MonkeyPatch], type[Sim]]

TORTURE = bool(os.environ.get("ONCEMORE_TORTURE"))
MOST_SEEDS = 12_000
#: Seeds that catch what few schedules do. A change of the engine may make one useless: then the search from 0
#: upwards finds another, and only takes longer.
CATCHES = {
    "a failing store hides a cancellation": 1061,
    "a lost lease hides a cancellation": 2455,
    "a new run begins after its deadline": 394,
    "a second commit replaces the first": 376,
    "an outcome whose checkpoint was lost is dropped": 606,
    "whose entry stands there is not looked at": 606,
}
BUGS: dict[str, Bug] = {}


def bug(function: Bug) -> Bug:
    BUGS[function.__name__.replace("_", " ")] = function
    return function


# The store ------------------------------------------------------------------------------------------


@bug
def a_store_that_does_not_compare(patch: pytest.MonkeyPatch) -> type[Sim]:
    class Careless(MemoryStore):
        def _find_conflict(self, batch: Batch) -> Conflict | None:
            return None

    return type("Broken", (Sim,), {"store_kind": Careless})


@bug
def a_store_that_acknowledges_before_the_disk_has_it(patch: pytest.MonkeyPatch) -> type[Sim]:
    class Hasty(MemoryStore):
        def lose(self) -> None:
            if self._log:
                last = self._log.pop()
                before = [entry for entry in self._log if entry.entity == last.entity]
                head = self._heads.pop(last.entity)
                if before:
                    self._heads[last.entity] = head._replace(
                        version=before[-1].version, hash=before[-1].hash, seq=before[-1].seq
                    )

    class Broken(Sim):
        store_kind = Hasty

        def crash(self, process: Any, *, seen: bool) -> None:
            super().crash(process, seen=seen)
            assert isinstance(self.store, Hasty)
            self.store.lose()

    return Broken


# The driver -----------------------------------------------------------------------------------------


def _answer_lost_writes(patch: pytest.MonkeyPatch, make_answer: Callable[[Batch], Any]) -> type[Sim]:
    def resend_batch(call: PreparedCall, batch: Batch, error: BaseException) -> Any:
        call.interrupt = None if isinstance(error, Exception) else error
        yield append.WaitForResend(0.0)
        return make_answer(batch)

    patch.setattr(append, "resend_batch", resend_batch)
    return Sim


@bug
def an_answer_that_was_lost_is_taken_for_not_stored(patch: pytest.MonkeyPatch) -> type[Sim]:
    return _answer_lost_writes(patch, lambda batch: Conflict(batch.writes[0].entity, None))


@bug
def an_answer_that_was_lost_is_taken_for_stored(patch: pytest.MonkeyPatch) -> type[Sim]:
    return _answer_lost_writes(patch, lambda batch: Stored(()))


@bug
def whose_entry_stands_there_is_not_looked_at(patch: pytest.MonkeyPatch) -> type[Sim]:
    patch.setattr(append, "find_own_entry", lambda call, batch: 1)
    return Sim


@bug
def who_closes_a_lost_attempt_does_not_compare(patch: pytest.MonkeyPatch) -> type[Sim]:
    encode_change = perform.encode_change

    def encode_blindly(call: PreparedCall, op: AppendChange) -> Any:
        if op.change.after.reason == "lease_expired":  # type: ignore[union-attr]
            op = op._replace(head=load_head(call.store, op.head.entity))
        return encode_change(call, op)

    patch.setattr(perform, "encode_change", encode_blindly)
    return Sim


@bug
def nobody_asks_whether_the_worker_is_alive(patch: pytest.MonkeyPatch) -> type[Sim]:
    patch.setitem(call_operations.CALL_OPERATIONS.blocking, ReadLease, lambda call, op: 0.0)  # type: ignore[arg-type]
    return Sim


@bug
def a_heartbeat_moves_the_run(patch: pytest.MonkeyPatch) -> type[Sim]:
    class Broken(Sim):
        def _beat(self, process: Any) -> None:
            super()._beat(process)
            for lane in process.lanes:
                seen = load_head(self.store, lane.call.entity)
                if seen.record is not None and seen.record.state == "RUNNING":
                    change = RecordChange(("LEASE",), seen.record, seen.record)
                    write = build_write(seen.entity, seen.version, seen.hash, change, self.now)
                    self.store.append(Batch((write,))).wait()

    return Broken


@bug
def a_cancellation_is_a_failure_like_any_other(patch: pytest.MonkeyPatch) -> type[Sim]:
    build_outcome = perform.build_outcome

    def hide_interruption(
        call: PreparedCall, attempt: Any, value: Any, error: BaseException | None
    ) -> AttemptOutcome:
        if error is not None and not isinstance(error, Exception):
            error = Fails("transient")
        return build_outcome(call, attempt, value, error)

    patch.setattr(perform, "build_outcome", hide_interruption)
    return Sim


@bug
def a_failing_store_hides_a_cancellation(patch: pytest.MonkeyPatch) -> type[Sim]:
    class Broken(Sim):
        def raised(self, job: PreparedCall, error: BaseException) -> BaseException:
            return error

    return Broken


@bug
def a_lost_lease_hides_a_cancellation(patch: pytest.MonkeyPatch) -> type[Sim]:
    class Broken(Sim):
        def kept(self, job: PreparedCall, attempt: Any, saved: Any) -> None:
            interrupt, job.interrupt = job.interrupt, None
            AttemptStorage(job).continue_attempt(attempt, saved)
            job.interrupt = interrupt
            if interrupt is not None:
                raise interrupt

    return Broken


@bug
def events_are_written_before_the_commit(patch: pytest.MonkeyPatch) -> type[Sim]:
    encode_change = perform.encode_change

    def encode_alone(call: PreparedCall, op: AppendChange) -> Any:
        batch, after = encode_change(call, op)
        return batch._replace(writes=batch.writes[:1]), after

    class Broken(Sim):
        def _save(self, lane: Any, job: PreparedCall, op: AppendChange) -> Any:
            whole, _ = encode_change(job, op)
            for write in whole.writes[1:]:
                self.store.append(Batch((write,))).wait()
            return (yield from super()._save(lane, job, op))

    patch.setattr(perform, "encode_change", encode_alone)
    return Broken


@bug
def a_former_holder_keeps_its_checkpoints(patch: pytest.MonkeyPatch) -> type[Sim]:
    class Broken(Sim):
        def checkpoint(self, attempt: Any) -> AppendChange:
            attempt.head = load_head(self.store, attempt.head.entity)
            return super().checkpoint(attempt)

    return Broken


@bug
def two_runs_have_one_name(patch: pytest.MonkeyPatch) -> type[Sim]:
    class Broken(Sim):
        def _terms(self, call: PreparedCall, worker: str, now: float) -> AttemptTerms:
            return AttemptTerms(worker, "r1", {"x": 1}, call.input_hash)

    return Broken


# The flow: claims -----------------------------------------------------------------------------------


@bug
def the_attempt_is_counted_after_it_ran(patch: pytest.MonkeyPatch) -> type[Sim]:
    claim, over = transitions.build_claim, transitions.end_attempt

    def late(*args: Any, **named: Any) -> RecordChange:
        change = claim(*args, **named)
        assert type(change.after) is RunRecord
        return change._replace(after=change.after._replace(attempt_count=change.after.attempt_count - 1))

    def counted(run: RunRecord, state: Any, reason: str, **changes: Any) -> RunRecord:
        more = 0 if reason == "lease_expired" or run.state != "RUNNING" else 1
        return over(run, state, reason, **{"attempt_count": run.attempt_count + more, **changes})

    patch.setattr(transitions, "build_claim", late)
    patch.setattr(transitions, "end_attempt", counted)
    return Sim


@bug
def every_delivery_has_a_budget_of_its_own(patch: pytest.MonkeyPatch) -> type[Sim]:
    claim = transitions.build_claim

    def fresh(*args: Any, **named: Any) -> RecordChange:
        change = claim(*args, **named)
        assert type(change.after) is RunRecord
        return change._replace(after=change.after._replace(attempt_count=1))

    patch.setattr(transitions, "build_claim", fresh)
    return Sim


@bug
def a_new_run_begins_with_the_first_fence(patch: pytest.MonkeyPatch) -> type[Sim]:
    new_run = transitions.new_run
    patch.setattr(transitions, "new_run", lambda *args: new_run(*args)._replace(fence=0))
    return Sim


@bug
def a_new_run_counts_attempts_from_one(patch: pytest.MonkeyPatch) -> type[Sim]:
    new_run = transitions.new_run
    patch.setattr(transitions, "new_run", lambda *args: new_run(*args)._replace(attempt=0))
    return Sim


@bug
def a_lost_attempt_gives_its_number_back(patch: pytest.MonkeyPatch) -> type[Sim]:
    over = transitions.end_attempt

    def given(run: RunRecord, state: Any, reason: str, **changes: Any) -> RunRecord:
        back = {"attempt": run.attempt - 1} if reason == "lease_expired" else {}
        return over(run, state, reason, **back, **changes)

    patch.setattr(transitions, "end_attempt", given)
    return Sim


@bug
def a_lost_attempt_does_not_count(patch: pytest.MonkeyPatch) -> type[Sim]:
    over = transitions.end_attempt

    def forgiven(run: RunRecord, state: Any, reason: str, **changes: Any) -> RunRecord:
        back = {"attempt_count": run.attempt_count - 1} if reason == "lease_expired" else {}
        return over(run, state, reason, **{**changes, **back})

    patch.setattr(transitions, "end_attempt", forgiven)
    return Sim


@bug
def a_crash_does_not_count(patch: pytest.MonkeyPatch) -> type[Sim]:
    count = transitions.count_lost_attempt
    patch.setattr(
        transitions,
        "count_lost_attempt",
        lambda run, event: {name: n for name, n in count(run, event).items() if name != "crash_count"},
    )
    return Sim


@bug
def an_interruption_counts_as_a_failure(patch: pytest.MonkeyPatch) -> type[Sim]:
    count = transitions.count_lost_attempt
    patch.setattr(
        transitions,
        "count_lost_attempt",
        lambda run, event: {} if event == "interrupted" else count(run, event),
    )
    return Sim


@bug
def a_deadline_is_ignored(patch: pytest.MonkeyPatch) -> type[Sim]:
    meets = existing_run._on_waiting

    def timeless(plan: Any, call: Any, seen: Any, now: float) -> Any:
        if seen.record.held_for or seen.record.not_before > now:
            return (yield from meets(plan, call, seen, now))
        return seen

    patch.setitem(existing_run.BY_STATE, "SOFT_FAIL", timeless)
    patch.setitem(existing_run.BY_STATE, "PENDING", timeless)
    return Sim


@bug
def who_takes_over_does_not_wait(patch: pytest.MonkeyPatch) -> type[Sim]:
    meets = existing_run._on_waiting

    def hasty(plan: Any, call: Any, seen: Any, now: float) -> Any:
        run = seen.record
        if run.held_for or (run.deadline and now >= run.deadline):
            return (yield from meets(plan, call, seen, now))
        return seen

    patch.setitem(existing_run.BY_STATE, "SOFT_FAIL", hasty)
    return Sim


# The flow: effects that must not happen twice ---------------------------------------------------------


def _blind(
    plan: Any, seen: Any, reason: str, now: float, *, may_ask: bool = True, evidence: Any = (), also: Any = ()
) -> Any:
    after = transitions.end_attempt(seen.record, "SOFT_FAIL", reason, not_before=now)
    body = {"error": refusals.LOST[reason]}
    return (yield AppendChange(seen, RecordChange(("SOFT_FAIL",), seen.record, after, body)))


@bug
def once_is_tried_again_after_a_lost_lease(patch: pytest.MonkeyPatch) -> type[Sim]:
    patch.setattr(failure, "close_lost_attempt", _blind)
    patch.setattr(existing_run, "close_lost_attempt", _blind)
    return Sim


@bug
def once_is_tried_again_after_any_error(patch: pytest.MonkeyPatch) -> type[Sim]:
    verdict = failure_decision.decide_verdict
    patch.setattr(
        failure_decision,
        "decide_verdict",
        lambda failure, policy, effect, **rest: verdict(failure, policy, "idempotent", **rest),
    )
    return Sim


@bug
def unknown_is_taken_for_not_applied(patch: pytest.MonkeyPatch) -> type[Sim]:
    settled = transitions.build_reconciled

    def hopeful(plan: Any, seen: Any, answer: Any, *rest: Any) -> RecordChange:
        return settled(
            plan, seen, ReconcileAnswer("not_applied") if answer.outcome == "unknown" else answer, *rest
        )

    patch.setattr(transitions, "build_reconciled", hopeful)
    return Sim


@bug
def a_held_run_is_tried_by_the_next_caller(patch: pytest.MonkeyPatch) -> type[Sim]:
    def free(plan: Any, seen: Any, now: float) -> Any:
        yield from ()
        return seen

    patch.setattr(existing_run, "_reconcile_held_run", free)
    return Sim


@bug
def once_begins_anew_after_its_failure(patch: pytest.MonkeyPatch) -> type[Sim]:
    def anew(plan: Any, call: Any, seen: Any, now: float) -> Any:
        yield from ()
        return seen

    patch.setitem(existing_run.BY_STATE, "HARD_FAIL", anew)
    return Sim


@bug
def what_is_done_is_done_again_under_another_config(patch: pytest.MonkeyPatch) -> type[Sim]:
    meets = existing_run._on_complete

    def always(plan: Any, call: Any, seen: Any, now: float) -> Any:
        if seen.record.cfg_hash != call.cfg_hash:
            return seen
        return (yield from meets(plan, call, seen, now))

    patch.setitem(existing_run.BY_STATE, "COMPLETE", always)
    return Sim


@bug
def an_attempt_that_had_begun_is_released(patch: pytest.MonkeyPatch) -> type[Sim]:
    interrupted = failure.close_interrupted
    patch.setattr(
        failure,
        "close_interrupted",
        lambda plan, done, now: interrupted(plan, done._replace(begun=False), now),
    )
    return Sim


# The flow: ends ---------------------------------------------------------------------------------------


def _commits_on(patch: pytest.MonkeyPatch, state: str) -> type[Sim]:
    commit = flow.commit_result

    def forced(plan: Any, done: AttemptOutcome, now: float) -> Any:
        ended = yield from commit(plan, done, now)
        if ended is CONFLICT:
            seen = yield LoadHead(done.head.entity)
            if seen.record.state == state and seen.record.fence != done.head.record.fence:
                return (yield from commit(plan, done._replace(head=seen), now))
        return ended

    patch.setattr(flow, "commit_result", forced)
    return Sim


@bug
def a_former_holder_commits(patch: pytest.MonkeyPatch) -> type[Sim]:
    return _commits_on(patch, "RUNNING")


@bug
def a_second_commit_replaces_the_first(patch: pytest.MonkeyPatch) -> type[Sim]:
    return _commits_on(patch, "COMPLETE")


@bug
def the_first_caller_gets_another_value_than_the_second(patch: pytest.MonkeyPatch) -> type[Sim]:
    commit = flow.commit_result

    def raw(plan: Any, done: AttemptOutcome, now: float) -> Any:
        ended = yield from commit(plan, done, now)
        return ended._replace(value=done.value) if type(ended) is EndCall and ended.error is None else ended

    patch.setattr(flow, "commit_result", raw)
    return Sim


@bug
def an_outcome_whose_checkpoint_was_lost_is_dropped(patch: pytest.MonkeyPatch) -> type[Sim]:
    def once_only(plan: Any, done: AttemptOutcome, now: float) -> Any:
        ended = yield from (flow.commit_result if done.error is None else failure.record_failure)(
            plan, done, now
        )
        if ended is not CONFLICT:
            return ended
        return None if done.error is None or isinstance(done.error, Exception) else EndCall(None, done.error)

    patch.setattr(flow, "record_outcome", once_only)
    return Sim


@bug
def a_final_failure_tells_nobody(patch: pytest.MonkeyPatch) -> type[Sim]:
    patch.setattr(transitions, "_FAILURE_MARKS", ("HARD_FAIL",))
    return Sim


@bug
def a_new_run_begins_after_its_deadline(patch: pytest.MonkeyPatch) -> type[Sim]:
    patch.setattr(transitions, "allow_new_run", lambda plan, call, head, now: head)
    return Sim


@bug
def other_arguments_may_decide_about_a_key(patch: pytest.MonkeyPatch) -> type[Sim]:
    patch.setattr(transitions, "check_same_arguments", lambda plan, call, run: None)
    return Sim


# ------------------------------------------------------------------------------------------------------


def seeds_until_caught(kind: type[Sim], first: int | None) -> tuple[int, str]:
    """Return how many schedules it takes until a promise is seen broken, and which."""
    seeds = [*([] if first is None else [first]), *range(MOST_SEEDS)]
    with seeded():
        for count, seed in enumerate(seeds, 1):
            try:
                kind(seed).run()
            except Violation as caught:
                return count, str(caught)
    return 0, ""


@pytest.mark.timeout(600)
def test_every_broken_engine_is_caught_and_the_whole_one_is_not(
    record_property: Callable[[str, object], None],
) -> None:
    found: dict[str, tuple[int, str]] = {}
    for name, breaks in BUGS.items():
        with pytest.MonkeyPatch.context() as patch:
            found[name] = seeds_until_caught(breaks(patch), None if TORTURE else CATCHES.get(name))
    missed = [name for name, (seeds, _) in found.items() if not seeds]
    needed = sorted(seeds for seeds, _ in found.values())
    told = f"bug bank: {len(found) - len(missed)} of {len(found)} caught"
    told += f", in {needed[len(needed) // 2]} seeds (median), at most {needed[-1]}"
    print()
    for name, (seeds, caught) in found.items():
        print(f"  {seeds:5} seeds  {name}: {caught}")
    print(told)
    record_property("bug bank", told)
    assert len(found) >= 25
    assert found.keys() >= CATCHES.keys()
    assert not missed
    run_many(range(needed[-1]) if TORTURE else {*range(max(400, needed[-1])), *CATCHES.values()})
