"""The table of all operations of a call, and of the functions that perform them.

A kind of step that performs some operations in its own way (`oncemore exec`) replaces them in its own table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._driver import OperationTable
from oncemore.limits import budget_step, queue_step
from oncemore.limits.queue_rules import FindQueueSlot
from oncemore.steps import operations, ops, perform
from oncemore.steps.attempt_storage import read_entry
from oncemore.steps.call import PreparedCall
from oncemore.steps.reconcile import ask_reconcile, ask_reconcile_async
from oncemore.steps.transactions import commit_transaction, commit_transaction_async
from oncemore.telemetry import surroundings
from oncemore.workflows.journal import load_journal

if TYPE_CHECKING:
    from oncemore._driver import Script
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import EndCall

CALL_OPERATIONS = OperationTable(
    {
        ops.LoadHead: operations.load_head,
        ops.LoadPolicy: operations.load_policy,
        ops.LoadBreaker: lambda call, op: call.engine.breakers.load_breaker(call.engine, op.entity),
        ops.ReadClock: perform.read_clock,
        ops.ReadLease: lambda call, op: call.engine.leases.lease_until(op.worker, op.entity, op.fence),
        ops.ReadBody: lambda call, op: read_entry(call, op.entity, op.version),
        ops.LoadJournal: lambda call, op: load_journal(call.store, op.entity, call.engine.cipher),
        ops.SleepSeconds: operations.sleep_seconds,
        ops.WatchEntity: operations.watch_entity,
        ops.WatchLog: operations.watch_log,
        ops.AskPermission: perform.ask_permission,
        ops.ReserveWorker: perform.reserve_worker,
        ops.PrepareSubmission: operations.prepare_submission,
        ops.TakeRateSlot: operations.take_rate_slot,
        FindQueueSlot: lambda call, op: queue_step.find_free_slot(call.engine, op.queue),
        ops.DrawBudget: lambda call, op: budget_step.draw_budget(call.engine, op),
        ops.RefundBudget: lambda call, op: budget_step.refund_budget(call.engine, op),
        ops.EarnBudget: operations.earn_budget,
        ops.AppendChange: perform.append_change,
        ops.RunAttempt: perform.run_attempt,
        ops.CommitTransaction: commit_transaction,
        ops.AskReconcile: ask_reconcile,
        ops.CheckArtifact: operations.check_artifact,
        ops.SpillResult: operations.spill_result,
        ops.FetchResult: operations.fetch_result,
        ops.NotifyListeners: lambda call, op: call.engine.listener.notify(op.event),
        surroundings.ReadSignals: surroundings.perform_read_signals,
    },
    {
        ops.SleepSeconds: operations.sleep_seconds_async,
        ops.WatchEntity: operations.watch_entity_async,
        ops.WatchLog: operations.watch_log_async,
        ops.AskPermission: perform.ask_permission_async,
        ops.TakeRateSlot: operations.take_rate_slot_async,
        ops.EarnBudget: operations.earn_budget_async,
        ops.AppendChange: perform.append_change_async,
        ops.RunAttempt: perform.run_attempt_async,
        ops.CommitTransaction: commit_transaction_async,
        ops.AskReconcile: ask_reconcile_async,
        ops.CheckArtifact: operations.check_artifact_async,
        ops.SpillResult: operations.spill_result_async,
        ops.FetchResult: operations.fetch_result_async,
        surroundings.ReadSignals: surroundings.perform_read_signals_async,
    },
)


def run_decision(engine: Engine, script: Script[EndCall]) -> Any:
    """Run the script of an operator's decision to its end; return its value or raise its error."""
    return perform.run_call(PreparedCall.for_decision(engine), script, CALL_OPERATIONS)
