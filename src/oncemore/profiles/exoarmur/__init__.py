"""The interface of the exoarmur document: retries by category, results by idempotency key, audit events.

    from oncemore.profiles.exoarmur import RetryCategory, get_retry_manager

    manager = get_retry_manager()
    state = await manager.execute_with_retry(
        RetryCategory.KV_GET, "Get kill switch status", lambda: bucket.get("all_execution")
    )

It is a front for the one mechanism: the same scripts make the attempts, the same core decides, the same
log keeps the results. Where the document cannot work as printed it is corrected, and says so:

* work is a function that makes a new awaitable for each attempt, never a coroutine (X-1)
* a recorded None is a result: `check_idempotency` returns RECORDED_NONE for it, and None for no record (X-3)
* a key is claimed before the work begins (X-26)
* the last failure is the cause of a `RetryError` (X-29); no delay follows the last attempt (X-15)
* every attempt has a timeout (X-11), and every operation ends in an event (X-10, X-21)
* categories that look take no idempotency key (X-46); categories that act want one (X-72)
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._ids import uuid7
from oncemore._redact import masked
from oncemore.audit.recorder import Ids, Outlet, check_category
from oncemore.audit.stream import AuditStream
from oncemore.classifiers.classify import classify
from oncemore.errors import (
    Blocked,
    InProgress,
    Parked,
    PolicyError,
    Quarantined,
    ResultUnavailable,
    StoreError,
    UsageError,
    warn_policy,
)
from oncemore.open_engine import chosen
from oncemore.policy.canonical_json import seed_of
from oncemore.policy.policy import Policy, check_seed
from oncemore.profiles.exoarmur.idempotency import IdempotencyManager
from oncemore.profiles.exoarmur.operation import (
    Doing,
    Operation,
    OperationRecord,
    RetryError,
    factory,
    inherit_ids,
)
from oncemore.profiles.exoarmur.policy import Category, RetryCategory, RetryPolicy, built_in
from oncemore.profiles.exoarmur.record import (
    RECORDED_NONE,
    About,
    IdempotencyRecord,
    Shared,
)
from oncemore.retries.loop import Plan
from oncemore.settings import retries_on
from oncemore.steps.context import context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Literal, TypeVar

    from oncemore.audit.events import Event
    from oncemore.profiles.exoarmur.idempotency import IfRunning
    from oncemore.profiles.exoarmur.policy import Kind

    T = TypeVar("T")

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

MOST_OPERATIONS = 1_000
#: Why not even a first attempt was made, by the error that says so; any other is about the key.
REFUSED = (
    (InProgress, "in_progress"), (Parked, "parked"), (Quarantined, "quarantined"),
    (StoreError, "store_failed"),
)  # fmt: skip


class RetryManager:
    """Runs operations under the policy of their category, once per idempotency key, and writes it down.

    idempotency_manager   where results are kept; an `IdempotencyManager()` unless given
    on_event              a sink for audit events; `attach` adds more
    governed              refuse what is only warned of otherwise, and repeat nothing that no rule knows

    `audit` is the stream of the last events, `operations` the records of the last operations.
    """

    def __init__(
        self,
        idempotency_manager: IdempotencyManager | None = None,
        on_event: Callable[[Event], object] | None = None,
        *,
        governed: bool = False,
    ) -> None:
        self.audit = AuditStream()
        self.governed = governed
        self.idempotency_manager = (
            IdempotencyManager() if idempotency_manager is None else idempotency_manager
        )
        if self.idempotency_manager.on_event is None:
            self.idempotency_manager.on_event = self._tell
        self._outlets: list[Outlet] = []
        self._operations: deque[Operation] = deque(maxlen=MOST_OPERATIONS)
        self._categories = _spellings(built_in().values())
        if on_event is not None:
            self.attach(on_event)

    def attach(self, sink: Callable[[Event], object]) -> Callable[[], None]:
        """Give every event from now on to a sink as well; return what takes it away again."""
        outlet = Outlet(sink)
        self._outlets.append(outlet)

        def detach() -> None:
            if outlet in self._outlets:
                self._outlets.remove(outlet)

        return detach

    @property
    def operations(self) -> list[OperationRecord]:
        """The records of the last operations, oldest first."""
        return [operation.record() for operation in tuple(self._operations)]

    def get_policy(self, category: RetryCategory | str) -> RetryPolicy:
        """Return the policy of a category, given as member, name or code; an unknown one is an error."""
        return self._category(category).policy

    def register_category(
        self, name: str, policy: RetryPolicy, *, code: str | None = None, kind: Kind = "acting"
    ) -> str:
        """Add a category of your own and return its code, which is RETRY_ and its name unless given."""
        own = check_category(f"RETRY_{name}" if code is None else code)
        if kind not in ("reading", "acting"):
            raise UsageError(f"kind is {kind!r}; it must be reading or acting")
        _check_policy(policy)
        rules = policy.core(own)
        added = _spellings([Category(check_category(name), own, kind, False, policy, rules)])
        if taken := sorted(added.keys() & self._categories.keys()):
            raise UsageError(f"category {', '.join(taken)} is there already; choose another name or code")
        self._categories = {**self._categories, **added}
        return own

    async def execute_with_retry(
        self,
        category: RetryCategory | str,
        operation: str,
        work: Callable[[], Awaitable[T]] | None = None,
        policy: RetryPolicy | None = None,
        idempotency_key: str | None = None,
        tenant_id: str | None = None,
        correlation_id: str | None = None,
        trace_id: str | None = None,
        additional_context: Mapping[str, Any] | None = None,
        *,
        coro: Callable[[], Awaitable[T]] | None = None,
        timeout_s: float | None = None,
        if_running: IfRunning = "wait",
        run_id: str | None = None,
        approval: Literal["required"] | None = None,
    ) -> T:
        """Return what the work returns, trying it again as the category's policy says.

        work             makes a new awaitable for each attempt; `coro` is the document's name for it
        policy           instead of the category's own
        idempotency_key  the work is done once for it, and its recorded result returned from then on
        timeout_s        the limit of each attempt, before the policy's and the category's
        if_running       when somebody does the work of the key now: "wait" for it or "raise" InProgress
        correlation_id   with `trace_id` in every event; unless given, those of `oncemore.context` around
                         the call. Operations inside the work inherit both
        run_id           what the delays' draws are seeded with; a new one for each operation unless given
        approval         "required": no attempt begins before somebody has approved this very work

        Raises RetryError when all attempts failed, and the work's own exception when it is not tried again.
        """
        make = factory(work, coro)
        found = self._category(category)
        rules, covers = self._rules(found, policy, timeout_s)
        if if_running not in ("wait", "raise"):
            raise UsageError(f"if_running is {if_running!r}; it must be wait or raise")
        ids = inherit_ids(Ids(tenant_id, correlation_id, trace_id))
        own_id, run_id = run_id, uuid7(clocks.current.wall()) if run_id is None else run_id
        key = None if found.kind == "reading" else idempotency_key
        it = Operation(self._tell, found, operation, rules, run_id, ids, key, additional_context)
        self._operations.append(it)
        self._guard(found, rules, idempotency_key, it)
        seed = check_seed(rules.jitter_seed) or seed_of(run_id)
        plan = Plan(masked(operation), rules, covers, classify, seed=seed, cuts=True, witness=it)
        # An id that a caller gives may come twice; the runs of a log need ids that do not.
        doing = Doing(it, plan, make, run_id if own_id is None else "", _approved(approval, key, it))
        plain = ids.cleaned()
        with context(correlation_id=plain.correlation_id or None, trace_id=plain.trace_id or None):
            if key is None:
                return await doing.alone()  # type: ignore[no-any-return]
            return await self._once(doing, key, if_running)  # type: ignore[no-any-return]

    async def _once(self, doing: Doing, key: str, if_running: IfRunning) -> Any:
        """Return the key's recorded result, or do the work and record it."""
        it = doing.operation
        about = About(it.category, it.name, it.ids, it.policy)
        try:
            settled = await self.idempotency_manager.once(key, about, doing, if_running)
        except Exception as error:
            if not it.events or isinstance(error, StoreError):
                it.refused(_why(error), error)
            raise
        if isinstance(settled, Shared):
            it.refused("same_key_failed", settled.failure)
            raise _own(settled.failure)
        it.recorded(settled.action, key)
        try:
            return settled.record.result
        except ResultUnavailable as error:
            error.value = settled.value
            raise

    def _category(self, category: RetryCategory | str) -> Category:
        found = self._categories.get(category) if isinstance(category, str) else None
        if found is None:
            names = ", ".join(sorted({one.name for one in self._categories.values()}))
            raise UsageError(f"category {category!r} is not known; register it. Known are {names}")
        return found

    def _rules(
        self, found: Category, policy: RetryPolicy | None, timeout_s: float | None
    ) -> tuple[Policy, Callable[..., bool]]:
        """Return the policy that decides, and whether an error is tried again under it."""
        given = found.policy if policy is None else _check_policy(policy)
        rules = (
            found.rules if policy is None else policy.core(f"{found.code} (changed)", found.policy.timeout_s)
        )
        if timeout_s is not None:
            rules = rules.but(timeout_s=timeout_s)
        if self.governed:
            if policy is not None and policy.unmatched == "retry":
                raise PolicyError("unmatched is 'retry'; in governed mode it must be fail")
            rules = rules.but(unmatched="fail", governed=True)
        return rules if retries_on() else rules.but(max_attempts=1), given.covers(
            found.verdict or self.governed
        )

    def _guard(self, found: Category, rules: Policy, key: str | None, it: Operation) -> None:
        """Warn of a key where there must be none and of a missing one; in governed mode refuse."""
        if found.kind == "reading" and key is not None:
            reason = "idempotency_key_on_read"
            text = (
                f"{it.name} ({found.code}) reads: its idempotency key is ignored, so that it sees what is now"
            )
        elif found.kind == "acting" and key is None and rules.max_attempts > 1:
            reason = "missing_idempotency_key"
            text = f"{it.name} ({found.code}) acts and may be repeated: give it an idempotency key"
        else:
            return
        if self.governed:
            refusal = UsageError(f"{text}; in governed mode it is not run so")
            it.refused(reason, refusal)
            raise refusal
        warn_policy(text)

    def _tell(self, event: Event) -> None:
        self.audit(event)
        for outlet in tuple(self._outlets):
            outlet(event)


def _approved(told: object, key: str | None, it: Operation) -> bool:
    """Whether somebody has to approve an operation first; that is kept with its key."""
    if told not in (None, "required"):
        raise UsageError(f"approval is {told!r:.80}; it takes required, or nothing")
    if told is None or key is not None:
        return told is not None
    refusal = UsageError(f"{it.name} ({it.category}) needs an approval, which is of a key: give it one")
    it.refused("key_refused", refusal)
    raise refusal


def _why(error: Exception) -> str:
    if isinstance(error, Blocked):
        return error.reason
    return next((why for kind, why in REFUSED if isinstance(error, kind)), "key_refused")


def _own(failure: Exception) -> Exception:
    """Return the failure of somebody else's operation for one's own caller; attempts are told once."""
    if not isinstance(failure, RetryError):
        return failure
    own = RetryError(failure.category, failure.attempts, failure.operation)
    own.__cause__ = failure.__cause__
    return own


def _check_policy(policy: RetryPolicy) -> RetryPolicy:
    if not isinstance(policy, RetryPolicy):
        raise UsageError(f"policy is {policy!r:.80}; it takes a RetryPolicy")
    return policy


def _spellings(categories: Any) -> dict[str, Category]:
    """Return categories by every way to write them: name, code, and RETRY_ before the name."""
    return {
        spelling: one for one in categories for spelling in (one.name, str(one.code), f"RETRY_{one.name}")
    }


_shared: list[RetryManager] = []
_lock = Lock()


def get_retry_manager() -> RetryManager:
    """Return the manager of this process: the same one every time.

    Its results are durable: in the engine around a call, or that of the settings, as for a step.
    """
    with _lock:
        if not _shared:
            _shared.append(RetryManager(IdempotencyManager(chosen)))
        return _shared[0]
