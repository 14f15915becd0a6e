"""The interface of the exoarmur document: retries by category, results by idempotency key, audit events.

    from oncemore.profiles.exoarmur import RetryCategory, get_retry_manager

    manager = get_retry_manager()
    state = await manager.execute_with_retry(
        RetryCategory.KV_GET, "Get kill switch status", lambda: bucket.get("all_execution")
    )

The profile uses the engine of `oncemore.step` and `oncemore.retry`: the same loop makes the attempts, the
same policy code decides, the same log keeps the results. Where the document cannot work as printed, it is
corrected:

* work is a function that makes a new awaitable for each attempt, never a coroutine (X-1)
* a recorded None is a result: `check_idempotency` returns RECORDED_NONE for it, and None for no record (X-3)
* a key is claimed before the work begins (X-26)
* the last failure is the cause of a `RetryError` (X-29); no delay follows the last attempt (X-15)
* every attempt has a timeout (X-11), and every operation ends in an event (X-10, X-21)
* categories that read take no idempotency key (X-46); categories that act need one (X-72)

    manager.py       RetryManager: operations under the policy of their category
    operation.py     one operation: its attempts, its events, its record
    policy.py        RetryCategory, RetryPolicy, and the numbers of the 17 categories
    idempotency.py   IdempotencyManager: results by key, in memory or in a log
    durable.py       operations in a log, as runs of a step
    stored_records.py  reads, writes and clears records in a log
    record.py        a recorded result as data
    bus.py           NATS JetStream: streams and buckets
    bus_control.py   switches and approvals of the bus
    bus_calls.py     the connection to the bus, and one call over it
"""

from __future__ import annotations

from oncemore.errors import InProgress, ResultUnavailable
from oncemore.profiles.exoarmur.idempotency import IdempotencyManager
from oncemore.profiles.exoarmur.manager import RetryManager, get_retry_manager
from oncemore.profiles.exoarmur.operation import OperationRecord, RetryError
from oncemore.profiles.exoarmur.policy import RetryCategory, RetryPolicy
from oncemore.profiles.exoarmur.record import RECORDED_NONE, IdempotencyRecord

__all__ = [
    "RECORDED_NONE",
    "IdempotencyManager",
    "IdempotencyRecord",
    "InProgress",
    "OperationRecord",
    "ResultUnavailable",
    "RetryCategory",
    "RetryError",
    "RetryManager",
    "RetryPolicy",
    "get_retry_manager",
]
