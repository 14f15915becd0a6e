"""Results by idempotency key in the log: they survive the process, and all processes of the log share them.

A key is a run of the log, and an operation on it is a step (`steps.flow`): claim and INTENT before each
attempt, under a lease and a fence; COMMIT with the result after it. So two operations with one key run once
across all processes; an attempt whose process died is closed, and the next caller continues; a recorded
delay applies to that caller too.

`RecordedOperation` observes the operations of the step's script as they pass:

    LoadHead        a recorded result ends the call as a hit; a key of another tenant is refused
    AppendChange    COMMIT gets the record as its body, and the audit event of the success follows;
                    DECISION is followed by the audit event of the failed attempt
    EndCall         the errors of the exoarmur interface replace those of a step


"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore.audit.error_record import error_to_record
from oncemore.errors import RetriesExhausted, StepFailed
from oncemore.log.entry_codec import new_uuid7
from oncemore.profiles.exoarmur.operation import RetryError
from oncemore.profiles.exoarmur.record import (
    NO_OWNER,
    KeyOwner,
    RecordedResult,
    SharedFailure,
    encode_record,
    encode_result,
    make_record,
)
from oncemore.profiles.exoarmur.stored_records import (
    CONFIG_HASH,
    EFFECT,
    hash_inputs,
    key_entity,
    read_record,
    tenant_differs,
)
from oncemore.retries.loop import ENDS
from oncemore.retries.report import RetryReport, add_error_note, attach_decision, log_report
from oncemore.steps import flow
from oncemore.steps.call import PreparedCall
from oncemore.steps.call_operations import CALL_OPERATIONS
from oncemore.steps.context import CONTEXT
from oncemore.steps.failure_decision import decide_failure
from oncemore.steps.ops import (
    AppendChange,
    AttemptTerms,
    EndCall,
    LoadHead,
    ReadClock,
    ReserveWorker,
    RunAttempt,
)
from oncemore.steps.perform import run_call_async
from oncemore.steps.plan import StepPlan

if TYPE_CHECKING:
    from oncemore.log.record import LoadedHead, RecordChange, RunRecord
    from oncemore.policy.decide import Decision
    from oncemore.profiles.exoarmur.operation import PreparedOperation
    from oncemore.profiles.exoarmur.record import IdempotencyRecord
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script

MAX_NAME_LENGTH = 200
#: Categories that a switch does not stop, because switches and approvals are read and written with them.
CONTROL_PLANE = ("RETRY_NATS_", "RETRY_KV_", "RETRY_APPROVAL_")


async def run_operation(
    engine: Engine, key: str, owner: KeyOwner, prepared: PreparedOperation, if_running: str
) -> RecordedResult | SharedFailure:
    """Return the record of a key, or do the work and record its result."""
    entity, plan = key_entity(key), _make_plan(engine, prepared, if_running)
    outer = ENDS.get()
    # The deadline around the call is in this machine's monotonic time; the flow needs the store's time.
    deadline = 0.0 if outer is None else engine.now() + max(0.0, outer - clocks.current.monotonic())
    call = PreparedCall(
        entity, plan, engine=engine, store=engine.store, input_hash=hash_inputs(key), cfg_hash=CONFIG_HASH,
        give_up=deadline, tenant=owner.ids.clean_ids().tenant_id or "",
        make_terms=lambda call, worker, now: _make_terms(worker, now, key, owner, prepared),
    )  # fmt: skip
    operation = RecordedOperation(plan, call, key, owner, prepared)
    try:
        return await run_call_async(call, operation.run_script(), CALL_OPERATIONS)  # type: ignore[no-any-return]
    except BaseException as error:
        # Cancellation and interrupts pass the flow without a DECISION: their event is published here.
        if not isinstance(error, Exception) and operation.attempt_number:
            prepared.operation.record_end(operation.attempt_number, clocks.current.wall(), error)
        raise


def _make_plan(engine: Engine, prepared: PreparedOperation, if_running: str) -> StepPlan:
    policy, max_attempts = prepared.plan.policy, clocks.current.max_attempts
    # `oncemore.testing` may limit the attempts of all policies.
    if max_attempts is not None and max_attempts < policy.max_attempts:
        policy = policy.replace(max_attempts=max_attempts)
    return StepPlan(
        name=prepared.plan.name[:MAX_NAME_LENGTH],
        effect=EFFECT,
        policy=policy,
        classify=prepared.plan.classify,
        function=prepared.run_attempt,
        is_async=True,
        encode=encode_result,
        decode=lambda plain: plain,
        describe=error_to_record,
        if_running=if_running,
        # The document's policies wait between attempts within the call; only longer waits are deferred.
        inline_wait_s=max(policy.max_delay_s, engine.inline_wait_s),
        after_failure="new_run",
        # The caller's new call is a new operation, also after an operator has ended the last one.
        repeats_rejected=True,
        on_version_change="new",  # a cleared run has another cfg_hash, so the next call is a new run
        covers=prepared.plan.covers,
        requires_approval=prepared.needs_approval,
        obeys_switches=not prepared.operation.category.startswith(CONTROL_PLANE),
    )


def _make_terms(
    worker: str, now: float, key: str, owner: KeyOwner, prepared: PreparedOperation
) -> AttemptTerms:
    ids = owner.ids.clean_ids()
    run_id = prepared.run_id or new_uuid7(now)
    arguments = {"category": owner.category, "operation": owner.operation, "ids": [*ids], "run_id": run_id}
    return AttemptTerms(
        worker=worker,
        run_id=run_id,
        arguments=arguments,
        input_hash=hash_inputs(key),
        seed=prepared.plan.seed or "",
        tenant=ids.tenant_id or "",
        correlation_id=ids.correlation_id or CONTEXT.get().correlation_id or run_id,
    )


class RecordedOperation:
    """An operation as a step of the log, which publishes its audit events as entries are written.

    attempt_number  the attempt of the run that this call made last; 0 before its first
    """

    def __init__(
        self, plan: StepPlan, call: PreparedCall, key: str, owner: KeyOwner, prepared: PreparedOperation
    ) -> None:
        self._plan, self._call, self._key, self._owner = plan, call, key, owner
        self._operation = prepared.operation
        self._now = self._waited_s = 0.0
        self.attempt_number = 0

    def run_script(self) -> Script:
        """Run the script of the step, observing each of its operations and their replies."""
        script, reply = flow.run_step(self._plan, self._call), None
        while True:
            try:
                op = script.send(reply)
            except StopIteration as end:
                return self._on_end(end.value)
            # The flow encodes the result alone; a later hit also needs the owner and the metadata.
            op = self._add_record(op) if type(op) is AppendChange and "COMMIT" in op.change.marks else op
            reply = yield op
            ended = (yield from self._on_load(reply)) if type(op) is LoadHead else self._on_reply(op, reply)
            if ended is not None:
                return ended

    def _add_record(self, op: AppendChange) -> AppendChange:
        """Return a COMMIT with the whole record as its body."""
        text, unavailable_reason = op.change.body["result"]
        self._record = make_record(self._key, text, unavailable_reason, None, self._owner)
        body = {"duration_s": op.change.body["duration_s"], **encode_record(self._record)}
        return op._replace(change=op.change._replace(body=body))

    def _on_load(self, head: LoadedHead) -> Script:
        """Return the end of a call whose key has a record or another tenant; None for any other key."""
        self._head, record = head, (yield from read_record(self._key, head))
        owner = _key_owner(head.record, record)
        if owner is not None and owner != (self._owner.ids.clean_ids().tenant_id or ""):
            return EndCall(None, tenant_differs(self._key))
        return None if record is None else EndCall(RecordedResult("hit", record), None)

    def _on_reply(self, op: Any, reply: Any) -> EndCall | None:
        """Take in the reply to an operation; return the end of the call if the reply ends it."""
        if type(op) is ReadClock:
            self._now = reply
        elif type(op) is RunAttempt:
            self._outcome, self.attempt_number = reply, op.head.record.attempt_count
        elif type(op) is ReserveWorker:
            # A run keeps the policy of its first attempt, and so do the events about it.
            self._plan = self._plan.copy_with(policy=op.policy, policy_name=op.policy_name)
            self._owner = self._owner._replace(policy=op.policy_name)
            self._operation.use_policy(op.policy_name)
        elif type(op) is AppendChange and reply is not None:
            return self._on_append(op.head.record, op.change)
        return None

    def _on_append(self, run: RunRecord, change: RecordChange) -> EndCall | None:
        """Publish the event of an entry that is now durable; return the end of the call after a COMMIT."""
        # Events follow the append: an event without its entry would report work that was never recorded.
        if "COMMIT" in change.marks:
            self._operation.record_end(self.attempt_number, clocks.current.wall(), None)
            return EndCall(RecordedResult("record", self._record, self._outcome.value), None)
        if "DECISION" in change.marks and isinstance(self._outcome.error, Exception):
            return self._on_failure(run, self._outcome.error)
        return None

    def _on_failure(self, run: RunRecord, error: Exception) -> EndCall | None:
        """Publish the event of a failed attempt, as a call without a log does.

        Returns the end of the call if the attempt was its last.
        """
        decision = _to_wall_time(decide_failure(self._plan, run, error, self._now))
        report = RetryReport(
            name=self._plan.name,
            number=run.attempt_count,
            attempts=decision.policy.max_attempts,
            error=error,
            value=None,
            decision=decision,
            waited_s=self._waited_s,
        )
        self._waited_s += decision.delay_s
        # A single failed attempt that is not tried again needs no log line: the caller gets its error.
        is_logged = run.attempt_count > 1 or decision.situation.verdict == "RETRYABLE"
        if is_logged:
            log_report(report)
        self._operation.record_failure(report)
        if decision.action == "retry":
            return None
        if is_logged:
            add_error_note(error, report)
        attach_decision(error, decision)
        return EndCall(None, self._operation.make_final_error(error))

    def _on_end(self, op: EndCall) -> EndCall:
        """Return the end of a call that ended without an attempt of its own."""
        if not isinstance(op.error, StepFailed):
            return op
        if not isinstance(op.error, RetriesExhausted):
            return EndCall(SharedFailure(op.error), None)
        # The run failed in another process: its error is known from the log only.
        shared = RetryError(self._owner.category, self._head.record.attempt_count, self._owner.operation)
        shared.__cause__ = op.error
        return EndCall(SharedFailure(shared), None)


def _key_owner(run: RunRecord | None, record: IdempotencyRecord | None) -> str | None:
    """Return the tenant of a key; None if every tenant may use it, because it has no owner or no open run."""
    if record is not None:
        return None if record.owner == NO_OWNER else record.owner.ids.tenant_id or ""
    return None if run is None or run.state in ("COMPLETE", "HARD_FAIL") else run.tenant


def _to_wall_time(decision: Decision) -> Decision:
    """Return a decision in the time of this machine, as audit events have it, instead of the store's."""
    situation, wall, not_before = decision.situation, clocks.current.wall(), decision.not_before
    offset_s = wall - situation.now
    return decision._replace(
        situation=situation._replace(now=wall),
        not_before=None if not_before is None else not_before + offset_s,
    )
