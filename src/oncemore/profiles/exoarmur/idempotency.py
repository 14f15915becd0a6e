"""Results by idempotency key: the work is done once, and its result is returned from then on.

    claim     a key belongs to one caller from before the work until its result is recorded; others wait
              for that result, or are told that it is in progress
    record    only successes; a failure leaves nothing, and those who waited for it share it
    data      results are kept as JSON text (`exoarmur_record`)

Records are kept in one of two places, and what is promised is the same for both, but for how long it holds:

    in a log      (`exoarmur_durable`) they outlive the process, and all processes that use it share them
    in memory     they end with the process; for tests and for single processes (`durable` is False)

Within a process, callers of one key meet here first: a claim is made under a lock, so that two can never
both believe that they are first; the others wait without asking the store, across threads and event loops,
asyncio's or trio's, and share the failure itself where there is one. Who is first then goes to the log, and
meets other processes there.
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
from oncemore.audit.recorder import Recorder
from oncemore.errors import Error, InProgress, UsageError
from oncemore.policy.canonical_json import exoarmur_key
from oncemore.profiles.exoarmur import durable as log
from oncemore.profiles.exoarmur.record import (
    NOBODY,
    RECORDED_NONE,
    IdempotencyRecord,
    Settled,
    Shared,
    checked,
    encoded,
    record_of,
)
from oncemore.steps.engine import Engine
from oncemore.steps.entered_engine import innermost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike
    from typing import Literal

    from oncemore.audit.events import Event
    from oncemore.profiles.exoarmur.operation import Doing
    from oncemore.profiles.exoarmur.record import About

    IfRunning = Literal["wait", "raise"]

MOST_RECORDS = 100_000


class _Claim:
    """A key that somebody works on; `bells` wake those who wait."""

    __slots__ = ("about", "bells", "failure", "over", "record")

    def __init__(self, about: About) -> None:
        self.about = about
        self.bells: list[Callable[[], object]] = []
        self.failure: Exception | None = None
        self.over = False
        self.record: IdempotencyRecord | None = None


#: The keys that the code around this line is doing the work of.
_doing: ContextVar[frozenset[str]] = ContextVar("oncemore.doing", default=frozenset())


class IdempotencyManager:
    """Results by key.

    store            an engine (`oncemore.open(...)`), the address of its store, or what returns an engine
                     for each call. Unless given: the engine of the `with engine:` around a call, else the
                     settings' if they name a store, else the memory of this process
    require_tenant   refuse keys without a tenant, so that tenants cannot share one by leaving it out
    most             how many records memory keeps; when full, new keys are refused rather than old ones lost
    on_event         told when a record is cleared; a `RetryManager` sets it
    """

    def __init__(
        self,
        store: Engine | str | PathLike[str] | Callable[[], Engine] | None = None,
        *,
        require_tenant: bool = False,
        most: int = MOST_RECORDS,
    ) -> None:
        self.on_event: Callable[[Event], object] | None = None
        self._engine = _engine_of(store)
        self._require_tenant = require_tenant
        self._most = most
        self._lock = Lock()
        self._records: dict[str, IdempotencyRecord] = {}
        self._claims: dict[tuple[int, str], _Claim] = {}

    @property
    def durable(self) -> bool:
        """Whether records outlive the process, by where a call here and now would keep them."""
        engine = self._engine()
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
        """Return the key of an operation: the same for the same parameters, in any order.

        Put into `additional_params` whatever makes it another operation: for a write, the value written.
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
        engine = self._engine()
        if engine is None:
            return self._records.get(checked(key))
        return await log.find(engine, checked(key))

    async def record_result(self, key: str, result: Any, metadata: Mapping[str, Any] | None = None) -> None:
        """Record a result as the one of this key; another one is refused until it is cleared."""
        text, why = encoded(result)
        if text is None:
            raise UsageError(f"the result cannot be kept: {why}")
        record, engine = record_of(checked(key), text, "", metadata, NOBODY), self._engine()
        if engine is not None:
            await log.record(engine, record)
            return
        with self._lock:
            before = self._records.get(key)
            if before is None:
                self._make_room()
                self._records[key] = record
            elif before.text != text:
                raise log.other_result(key)

    async def clear_idempotency(self, key: str) -> bool:
        """Throw a record away, so that the next call does the work again; say whether there was one."""
        engine = self._engine()
        with self._lock:
            if (id(engine), checked(key)) in self._claims:
                raise log.in_progress(key)
            record = self._records.pop(key, None) if engine is None else None
        if engine is not None:
            record = await log.clear(engine, key)
        if record is not None and self.on_event is not None:
            about = record.about
            recorder = Recorder(self.on_event, about.category, about.operation, about.ids, about.policy)
            recorder.tell(IdempotencyCleared, clocks.current.wall(), key)
        return record is not None

    async def once(
        self, key: str, about: About, doing: Doing, if_running: IfRunning = "wait"
    ) -> Settled | Shared:
        """Return the record of a key, doing the work if there is none.

        Raises what the work raises, InProgress if that is wished for, UsageError for a key that is not
        this caller's to use.
        """
        self._check_tenant(about.ids.tenant_id)
        if checked(key) in _doing.get():
            raise UsageError(f"the work of key {key} calls itself with the same key; it would wait for ever")
        engine = self._engine()
        while True:
            record, claim, first = self._claim(engine, key, about)
            if record is not None:
                return Settled("hit", record)
            assert claim is not None
            if first:
                return await self._first(engine, key, claim, doing, if_running)
            if if_running == "raise":
                raise InProgress(f"the work of key {key} is being done by somebody else now; ask again later")
            await _over(claim, self._lock)
            if claim.record is not None:
                return Settled("hit", claim.record)
            if claim.failure is not None:
                return Shared(claim.failure)

    async def _first(
        self, engine: Engine | None, key: str, claim: _Claim, doing: Doing, if_running: IfRunning
    ) -> Settled | Shared:
        """Do the work as the first caller of this process; those who wait get what came of it."""
        token = _doing.set(_doing.get() | {key})
        try:
            settled = await self._settled(engine, key, claim.about, doing, if_running)
            if isinstance(settled, Settled):
                claim.record = settled.record
            else:
                claim.failure = settled.failure
            return settled
        except Exception as error:
            claim.failure = error
            raise
        finally:
            _doing.reset(token)
            self._release(engine, key, claim)

    async def _settled(
        self, engine: Engine | None, key: str, about: About, doing: Doing, if_running: IfRunning
    ) -> Settled | Shared:
        if engine is not None:
            return await log.perform(engine, key, about, doing, if_running)
        if doing.approval:
            raise UsageError(f"the work of key {key} needs an approval, which is kept in a log: give a store")
        value = await doing.alone()
        return Settled("record", record_of(key, *encoded(value), None, about), value)

    def _claim(
        self, engine: Engine | None, key: str, about: About
    ) -> tuple[IdempotencyRecord | None, _Claim | None, bool]:
        """Find the record, join the claim or make one, in one step; the last says that it was made.

        A record in a log is found by who goes there: the first.
        """
        with self._lock:
            record = self._records.get(key) if engine is None else None
            claim = self._claims.get((id(engine), key))
            held = record or claim
            if held is None:
                if engine is None:
                    self._make_room()
                made = self._claims[id(engine), key] = _Claim(about)
                return None, made, True
            owner = held.about
            if owner != NOBODY and (owner.ids.tenant_id or "") != (about.ids.tenant_id or ""):
                raise log.other_tenant(key)
            return record, claim, False

    def _release(self, engine: Engine | None, key: str, claim: _Claim) -> None:
        """End a claim, with its record if there is one, and wake those who waited."""
        with self._lock:
            if claim.record is not None and engine is None:
                self._records.setdefault(key, claim.record)
            del self._claims[id(engine), key]
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


def _engine_of(store: Any) -> Callable[[], Engine | None]:
    """Return what says for each call which engine keeps its record; None is the memory of this process."""
    if store is None:
        named = config.names_a_store()
        return lambda: innermost() or (open_engine.chosen() if named else None)
    if isinstance(store, Engine):
        return lambda: store
    if callable(store):
        return store  # type: ignore[no-any-return]
    engine = open_engine.open(store)
    return lambda: engine


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
