"""Results by idempotency key: the work is done once, and its result is returned from then on.

This one keeps its records in the memory of the process, for tests and for single processes: they end
with it (`durable` is False). What it promises is otherwise the same as a durable one's:

    claim     a key belongs to one caller from before the work until its result is recorded; others wait
              for that result, or are told that it is in progress
    record    only successes; a failure leaves nothing, and those who waited for it share it
    data      results are kept as JSON text (`exoarmur_record`)

A claim is made under a lock, in one step with looking for a record, so that two callers can never both
believe that they are first; waiting works across threads and event loops, asyncio's or trio's.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Any

from oncemore.core.key import exoarmur_key
from oncemore.core.value import Value
from oncemore.engine import clock as clocks
from oncemore.errors import Error, InProgress, UsageError
from oncemore.evidence.audit import Recorder
from oncemore.evidence.events import IdempotencyCleared
from oncemore.profiles.exoarmur_record import (
    NO_RECORD,
    NOBODY,
    IdempotencyRecord,
    NoRecord,
    checked,
    encoded,
    record_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Literal

    from oncemore.evidence.events import Event
    from oncemore.profiles.exoarmur_record import About

    IfRunning = Literal["wait", "raise"]

MOST_RECORDS = 100_000


class Settled(Value):
    """A key has its record: it was there (hit), or was made here, of the `value` that the work returned."""

    action: Literal["hit", "record"]
    record: IdempotencyRecord
    value: Any = None


class Shared(Value):
    """The one who was waited for failed, and this is his failure."""

    failure: Exception


class _Claim:
    """A key that somebody works on; `bells` wake those who wait."""

    __slots__ = ("about", "bells", "failure", "over")

    def __init__(self, about: About) -> None:
        self.about = about
        self.bells: list[Callable[[], object]] = []
        self.failure: Exception | None = None
        self.over = False


#: The keys that the code around this line is doing the work of.
_doing: ContextVar[frozenset[str]] = ContextVar("oncemore.doing", default=frozenset())


class IdempotencyManager:
    """Idempotent results in memory: they end with the process, so this is for tests and single processes.

    require_tenant   refuse keys without a tenant, so that tenants cannot share one by leaving it out
    most             how many records are kept; when full, new keys are refused rather than old ones lost
    on_event         told when a record is cleared; a `RetryManager` sets it
    """

    durable = False

    def __init__(self, *, require_tenant: bool = False, most: int = MOST_RECORDS) -> None:
        self.on_event: Callable[[Event], object] | None = None
        self._require_tenant = require_tenant
        self._most = most
        self._lock = Lock()
        self._records: dict[str, IdempotencyRecord] = {}
        self._claims: dict[str, _Claim] = {}

    def compute_idempotency_key(
        self,
        operation: str,
        tenant_id: str | None = None,
        correlation_id: str | None = None,
        additional_params: Mapping[str, Any] | None = None,
        *,
        legacy: bool = False,
    ) -> str:
        """Return the key of an operation: the same for the same parameters, in any order.

        Put into `additional_params` whatever makes it another operation: for a write, the value written.
        `legacy` gives the form that the document prints, for keys that were stored with it.
        """
        self._check_tenant(tenant_id)
        return exoarmur_key(operation, tenant_id, correlation_id, additional_params, legacy)

    async def check_idempotency(self, key: str) -> Any:
        """Return the result recorded for a key, or NO_RECORD; None is a result like any other."""
        record = await self.describe(key)
        return record.result if isinstance(record, IdempotencyRecord) else NO_RECORD

    async def describe(self, key: str) -> IdempotencyRecord | NoRecord:
        """Return the record of a key with its metadata, or NO_RECORD."""
        return self._records.get(checked(key), NO_RECORD)

    async def record_result(self, key: str, result: Any, metadata: Mapping[str, Any] | None = None) -> None:
        """Record a result as the one of this key; another one is refused until it is cleared."""
        text, why = encoded(result)
        if text is None:
            raise UsageError(f"the result cannot be kept: {why}")
        with self._lock:
            before = self._records.get(checked(key))
            if before is None:
                self._make_room()
                self._records[key] = record_of(key, text, "", metadata, NOBODY)
            elif before.text != text:
                raise UsageError(f"key {key} has another result already; clear it first if that one is wrong")

    async def clear_idempotency(self, key: str) -> bool:
        """Throw a record away, so that the next call does the work again; say whether there was one."""
        with self._lock:
            if checked(key) in self._claims:
                raise InProgress(f"the work of key {key} is being done now; it has no record to clear yet")
            record = self._records.pop(key, None)
        if record is not None and self.on_event is not None:
            about = record.about
            recorder = Recorder(self.on_event, about.category, about.operation, about.ids)
            recorder.tell(IdempotencyCleared, clocks.current.wall(), key)
        return record is not None

    async def once(
        self, key: str, about: About, perform: Callable[[], Awaitable[Any]], if_running: IfRunning = "wait"
    ) -> Settled | Shared:
        """Return the record of a key, doing the work if there is none.

        Raises what the work raises, InProgress if that is wished for, UsageError for a key that is not
        this caller's to use.
        """
        self._check_tenant(about.ids.tenant_id)
        if checked(key) in _doing.get():
            raise UsageError(f"the work of key {key} calls itself with the same key; it would wait for ever")
        while True:
            record, claim, first = self._claim(key, about)
            if record is not None:
                return Settled("hit", record)
            assert claim is not None
            if first:
                return await self._perform(key, claim, about, perform)
            if if_running == "raise":
                raise InProgress(f"the work of key {key} is being done by somebody else now; ask again later")
            await _over(claim, self._lock)
            if claim.failure is not None:
                return Shared(claim.failure)

    async def _perform(
        self, key: str, claim: _Claim, about: About, perform: Callable[[], Awaitable[Any]]
    ) -> Settled:
        token = _doing.set(_doing.get() | {key})
        record = None
        try:
            value = await perform()
            record = record_of(key, *encoded(value), None, about)
            return Settled("record", record, value)
        except Exception as error:
            claim.failure = error
            raise
        finally:
            _doing.reset(token)
            self._release(key, claim, record)

    def _claim(self, key: str, about: About) -> tuple[IdempotencyRecord | None, _Claim | None, bool]:
        """Find the record, join the claim or make one, in one step; the last says that it was made."""
        with self._lock:
            record, claim = self._records.get(key), self._claims.get(key)
            held = record or claim
            if held is None:
                self._make_room()
                made = self._claims[key] = _Claim(about)
                return None, made, True
            owner = held.about
            if owner != NOBODY and (owner.ids.tenant_id or "") != (about.ids.tenant_id or ""):
                raise UsageError(f"key {key} belongs to another tenant; put the tenant into the key")
            return record, claim, False

    def _release(self, key: str, claim: _Claim, record: IdempotencyRecord | None) -> None:
        """End a claim, with its record if there is one, and wake those who waited."""
        with self._lock:
            if record is not None:
                self._records.setdefault(key, record)
            del self._claims[key]
            claim.over = True
            bells = claim.bells
        for ring in bells:
            with suppress(RuntimeError):  # the loop that waited is gone, and with it who waited
                ring()

    def _make_room(self) -> None:
        if len(self._records) + len(self._claims) >= self._most:
            raise Error(
                f"{self._most} idempotency records are kept, which is the most; clear some. Forgetting one "
                "by itself would let its work be done twice"
            )

    def _check_tenant(self, tenant_id: str | None) -> None:
        if self._require_tenant and not tenant_id:
            raise UsageError("tenant_id is missing, and require_tenant makes it obligatory")


async def _over(claim: _Claim, lock: Lock) -> None:
    """Wait until a claim is over, in whichever event loop this is."""
    trio = clocks.in_trio()
    done: Any
    if trio is not None:
        done, wait = trio.Event(), None
        token = trio.lowlevel.current_trio_token()

        def ring() -> None:
            token.run_sync_soon(done.set)

    else:
        loop = sys.modules["asyncio"].get_running_loop()
        done = wait = loop.create_future()

        def ring() -> None:
            loop.call_soon_threadsafe(lambda: done.done() or done.set_result(None))

    with lock:
        if claim.over:
            return
        claim.bells.append(ring)
    await (done.wait() if wait is None else wait)
