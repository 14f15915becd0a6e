"""`IdempotencyManager`: work runs once per idempotency key, and later calls return its result.

A key belongs to one caller from before the work until its result is recorded; callers that come in between
wait for that result, or get `InProgress`. Only successes are recorded: a failure leaves no record, and the
callers that waited share it. Results are kept as JSON text (`exoarmur.record`).

Records live in one of two places, with the same guarantees for different times:

    a log     (`exoarmur.durable`) records survive the process, and all processes of the log share them
    memory    records end with the process; for tests and single processes (`is_durable` is False)

Callers within one process meet in this module first. A claim is made under a lock, so two callers can never
both be first; the waiting callers do not ask the store, and share the original failure, across threads and
event loops of asyncio and trio. The first caller then goes to the log, where it meets other processes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore import config, open_engine
from oncemore.audit.events import IdempotencyCleared
from oncemore.audit.recorder import AuditRecorder
from oncemore.errors import Error, InProgress, UsageError
from oncemore.policy.canonical_json import exoarmur_key
from oncemore.profiles.exoarmur import durable, stored_records
from oncemore.profiles.exoarmur.record import (
    NO_OWNER,
    RECORDED_NONE,
    IdempotencyRecord,
    RecordedResult,
    SharedFailure,
    check_key,
    encode_result,
    make_record,
)
from oncemore.steps.engine import Engine
from oncemore.steps.entered_engine import current_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike
    from typing import Literal

    from oncemore.audit.events import AuditEvent
    from oncemore.profiles.exoarmur.operation import PreparedOperation
    from oncemore.profiles.exoarmur.record import KeyOwner

    IfRunning = Literal["wait", "raise"]

MAX_RECORDS = 100_000


class _KeyClaim:
    """A key whose work is running in this process; `callbacks` wake the callers that wait."""

    __slots__ = ("callbacks", "failure", "is_over", "owner", "record")

    def __init__(self, owner: KeyOwner) -> None:
        self.owner = owner
        self.callbacks: list[Callable[[], object]] = []
        self.failure: Exception | None = None
        self.is_over = False
        self.record: IdempotencyRecord | None = None


#: The keys whose work the current task is doing, to refuse work that waits for itself.
_current_keys: ContextVar[frozenset[str]] = ContextVar("oncemore.doing", default=frozenset())


class IdempotencyManager:
    """Results by idempotency key.

    store            an engine (`oncemore.open(...)`), the address of its store, or a function that returns an
                     engine for each call. Unless given: the engine of the `with engine:` around a call, else
                     that of the settings if they name a store, else the memory of this process
    require_tenant   refuse keys without a tenant, so that two tenants cannot share a key by omission
    max_records      the most records in memory; when it is full, new keys are refused and old records stay

    `on_event` is called when a record is cleared; a `RetryManager` sets it.
    """

    def __init__(
        self,
        store: Engine | str | PathLike[str] | Callable[[], Engine] | None = None,
        *,
        require_tenant: bool = False,
        max_records: int = MAX_RECORDS,
    ) -> None:
        self.on_event: Callable[[AuditEvent], object] | None = None
        self._get_engine = _make_engine_getter(store)
        self._require_tenant = require_tenant
        self._max_records = max_records
        self._lock = Lock()
        self._records: dict[str, IdempotencyRecord] = {}
        # By engine and key: the same key in two stores is two pieces of work.
        self._claims: dict[tuple[int, str], _KeyClaim] = {}

    @property
    def is_durable(self) -> bool:
        """Whether records of a call made now would survive the process."""
        engine = self._get_engine()
        return engine is not None and engine.url != config.MEMORY

    def compute_idempotency_key(
        self,
        operation: str,
        tenant_id: str | None = None,
        correlation_id: str | None = None,
        additional_params: Mapping[str, Any] | None = None,
        *,
        legacy: bool = False,
    ) -> str:
        """Return the key of an operation; the order of the parameters does not matter.

        Put everything that distinguishes operations into `additional_params`: for a write, the value written.
        `legacy` gives the form that the document prints, for keys that were stored with it.
        """
        self._check_tenant(tenant_id)
        return exoarmur_key(operation, tenant_id, correlation_id, additional_params, legacy)

    async def check_idempotency(self, key: str) -> Any:
        """Return the result recorded for a key; None if there is none, RECORDED_NONE for a recorded None.

        So `if await manager.check_idempotency(key) is not None` holds for all work that was done.
        """
        record = await self.describe(key)
        if record is None:
            return None
        result = record.result
        return RECORDED_NONE if result is None else result

    async def describe(self, key: str) -> IdempotencyRecord | None:
        """Return the record of a key with its metadata, or None; its `result` may be None."""
        engine = self._get_engine()
        if engine is None:
            return self._records.get(check_key(key))
        return await stored_records.find_record(engine, check_key(key))

    async def record_result(self, key: str, result: Any, metadata: Mapping[str, Any] | None = None) -> None:
        """Record a result for this key; another result is refused until the record is cleared."""
        text, problem = encode_result(result)
        if text is None:
            raise UsageError(f"the result cannot be kept: {problem}")
        record, engine = make_record(check_key(key), text, "", metadata, NO_OWNER), self._get_engine()
        if engine is not None:
            await stored_records.append_record(engine, record)
            return
        with self._lock:
            before = self._records.get(key)
            if before is None:
                self._check_capacity()
                self._records[key] = record
            elif before.text != text:
                raise stored_records.result_differs(key)

    async def clear_idempotency(self, key: str) -> bool:
        """Delete the record of a key, so that the next call does the work; return whether it existed."""
        engine = self._get_engine()
        with self._lock:
            # Running work would record its result after the clearing, which would then have no effect.
            if (id(engine), check_key(key)) in self._claims:
                raise stored_records.clear_refused(key)
            record = self._records.pop(key, None) if engine is None else None
        if engine is not None:
            record = await stored_records.clear_record(engine, key)
        if record is not None and self.on_event is not None:
            owner = record.owner
            recorder = AuditRecorder(self.on_event, owner.category, owner.operation, owner.ids, owner.policy)
            recorder.emit_event(IdempotencyCleared, clocks.current.wall(), idempotency_key=key)
        return record is not None

    async def run_once(
        self, key: str, owner: KeyOwner, prepared: PreparedOperation, if_running: IfRunning = "wait"
    ) -> RecordedResult | SharedFailure:
        """Return the record of a key, doing the work if there is none.

        Raises the exception of the work; `InProgress` if `if_running` is "raise" and another caller does the
        work; `UsageError` for a key of another tenant.
        """
        self._check_tenant(owner.ids.tenant_id)
        if check_key(key) in _current_keys.get():
            raise UsageError(f"the work of key {key} calls itself with the same key and would wait forever")
        engine = self._get_engine()
        while True:
            record, claim, is_first = self._claim_key(engine, key, owner)
            if record is not None:
                return RecordedResult("hit", record)
            assert claim is not None
            if is_first:
                return await self._run_first(engine, key, claim, prepared, if_running)
            if if_running == "raise":
                raise InProgress(f"another caller is doing the work of key {key} now; call again later")
            await _wait_for_claim(claim, self._lock)
            if claim.record is not None:
                return RecordedResult("hit", claim.record)
            if claim.failure is not None:
                return SharedFailure(claim.failure)
            # The first caller was cancelled: it left neither, so one of the waiting callers becomes first.

    async def _run_first(
        self,
        engine: Engine | None,
        key: str,
        claim: _KeyClaim,
        prepared: PreparedOperation,
        if_running: IfRunning,
    ) -> RecordedResult | SharedFailure:
        """Do the work as the first caller of this process, and pass its end to the callers that wait."""
        # The work itself sees the key, in this task and in tasks that it starts.
        token = _current_keys.set(_current_keys.get() | {key})
        try:
            settled = await self._run_operation(engine, key, claim.owner, prepared, if_running)
            if isinstance(settled, RecordedResult):
                claim.record = settled.record
            else:
                claim.failure = settled.failure
            return settled
        # Cancellation is not an Exception and leaves no failure: a waiting caller does the work then.
        except Exception as error:
            claim.failure = error
            raise
        finally:
            _current_keys.reset(token)
            self._release_claim(engine, key, claim)

    async def _run_operation(
        self,
        engine: Engine | None,
        key: str,
        owner: KeyOwner,
        prepared: PreparedOperation,
        if_running: IfRunning,
    ) -> RecordedResult | SharedFailure:
        if engine is not None:
            return await durable.run_operation(engine, key, owner, prepared, if_running)
        if prepared.needs_approval:
            raise UsageError(
                f"the work of key {key} needs an approval, which is kept in a log: give "
                "IdempotencyManager a store"
            )
        value = await prepared.run_in_memory()
        return RecordedResult("record", make_record(key, *encode_result(value), None, owner), value)

    def _claim_key(
        self, engine: Engine | None, key: str, owner: KeyOwner
    ) -> tuple[IdempotencyRecord | None, _KeyClaim | None, bool]:
        """Return the record, the claim, and whether this call made the claim, in one step under the lock.

        With an engine there is no record here: the first caller looks for it in the log.
        """
        with self._lock:
            record = self._records.get(key) if engine is None else None
            claim = self._claims.get((id(engine), key))
            owned = record or claim
            if owned is None:
                if engine is None:
                    self._check_capacity()
                claim = self._claims[id(engine), key] = _KeyClaim(owner)
                return None, claim, True
            # Tenants are kept apart: a key that another tenant used first is refused.
            first_owner = owned.owner
            if first_owner != NO_OWNER and (first_owner.ids.tenant_id or "") != (owner.ids.tenant_id or ""):
                raise stored_records.tenant_differs(key)
            return record, claim, False

    def _release_claim(self, engine: Engine | None, key: str, claim: _KeyClaim) -> None:
        """End a claim, keep its record if there is one, and wake the callers that wait."""
        with self._lock:
            if claim.record is not None and engine is None:
                self._records.setdefault(key, claim.record)
            del self._claims[id(engine), key]
            claim.is_over = True
            callbacks = claim.callbacks
        for wake in callbacks:
            with suppress(RuntimeError):  # the event loop of the waiting caller is closed
                wake()

    def _check_capacity(self) -> None:
        if len(self._records) + len(self._claims) >= self._max_records:
            raise Error(
                f"all {self._max_records} idempotency records in memory are in use; clear some, or give a "
                "store. A record is never dropped by itself, because its work could then be done twice"
            )

    def _check_tenant(self, tenant_id: str | None) -> None:
        if self._require_tenant and not tenant_id:
            raise UsageError("tenant_id is missing, and require_tenant is set; give the tenant of the call")


def _make_engine_getter(store: Any) -> Callable[[], Engine | None]:
    """Return a function that gives the engine of each call; None stands for the memory of this process."""
    if store is None:
        # The settings count as they are when the manager is made, the engine around a call as it is then.
        named = config.is_store_configured()
        return lambda: current_engine() or (open_engine.find_engine() if named else None)
    if isinstance(store, Engine):
        return lambda: store
    if callable(store):
        return store  # type: ignore[no-any-return]
    engine = open_engine.open(store)
    return lambda: engine


async def _wait_for_claim(claim: _KeyClaim, lock: Lock) -> None:
    """Wait until a claim is over, on asyncio or trio."""
    trio = clocks.find_trio()
    done: Any
    if trio is not None:
        done, wait = trio.Event(), None
        token = trio.lowlevel.current_trio_token()

        def wake() -> None:
            token.run_sync_soon(done.set)

    else:
        # A running event loop has imported asyncio already; trio programs need not import it.
        loop = sys.modules["asyncio"].get_running_loop()
        done = wait = loop.create_future()

        def wake() -> None:
            loop.call_soon_threadsafe(lambda: done.done() or done.set_result(None))

    # A claim that ended before the callback was added would never wake this caller.
    with lock:
        if claim.is_over:
            return
        claim.callbacks.append(wake)
    await (done.wait() if wait is None else wait)
