"""`RetryManager`: runs operations under the policy of their category, once per idempotency key."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._redact import mask_text
from oncemore.audit.recorder import OperationIds, SinkWriter, check_category
from oncemore.audit.sinks import AuditStream
from oncemore.classifiers.classify import classify
from oncemore.config import are_retries_enabled
from oncemore.errors import (
    Deferred,
    InProgress,
    NotPermitted,
    PolicyError,
    Quarantined,
    ResultUnavailable,
    StoreError,
    UsageError,
    warn_policy,
)
from oncemore.log.entry_codec import new_uuid7
from oncemore.open_engine import find_engine
from oncemore.policy.canonical_json import run_seed
from oncemore.policy.policy import Policy, check_seed
from oncemore.profiles.exoarmur.idempotency import IdempotencyManager
from oncemore.profiles.exoarmur.operation import (
    OperationRecord,
    PreparedOperation,
    RetryError,
    RunningOperation,
    inherit_ids,
    make_factory,
)
from oncemore.profiles.exoarmur.policy import CategoryPolicy, RetryCategory, RetryPolicy, builtin_categories
from oncemore.profiles.exoarmur.record import (
    KeyOwner,
    SharedFailure,
)
from oncemore.retries.plan import RetryPlan
from oncemore.steps.context import context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeVar

    from oncemore.audit.events import AuditEvent
    from oncemore.profiles.exoarmur.idempotency import IfRunning
    from oncemore.profiles.exoarmur.policy import Kind

    T = TypeVar("T")

MAX_OPERATIONS = 1_000
#: The reason of a refusal before the first attempt, by its error; every other error is about the key.
REFUSAL_REASONS = (
    (InProgress, "in_progress"), (Deferred, "parked"), (Quarantined, "quarantined"),
    (StoreError, "store_failed"),
)  # fmt: skip


class RetryManager:
    """Runs operations under the policy of their category, once per idempotency key, with audit events.

    idempotency_manager   keeps the results; an `IdempotencyManager()` unless given
    on_event              a sink for audit events; `add_sink` adds more
    governed              refuse what otherwise causes a warning, and never repeat errors that no rule names

    `audit` is the stream of the last events, `operations` has the records of the last operations.
    """

    def __init__(
        self,
        idempotency_manager: IdempotencyManager | None = None,
        on_event: Callable[[AuditEvent], object] | None = None,
        *,
        governed: bool = False,
    ) -> None:
        self.audit = AuditStream()
        self.governed = governed
        self.idempotency_manager = (
            IdempotencyManager() if idempotency_manager is None else idempotency_manager
        )
        # A shared idempotency manager reports to the first retry manager that uses it.
        if self.idempotency_manager.on_event is None:
            self.idempotency_manager.on_event = self._publish_event
        self._sink_writers: list[SinkWriter] = []
        self._operations: deque[RunningOperation] = deque(maxlen=MAX_OPERATIONS)
        self._categories = _index_categories(builtin_categories().values())
        if on_event is not None:
            self.add_sink(on_event)

    def add_sink(self, sink: Callable[[AuditEvent], object]) -> Callable[[], None]:
        """Pass every event from now on to a sink as well; return a function that removes the sink."""
        writer = SinkWriter(sink)
        self._sink_writers.append(writer)

        def remove_sink() -> None:
            # The function may be called twice.
            if writer in self._sink_writers:
                self._sink_writers.remove(writer)

        return remove_sink

    @property
    def operations(self) -> list[OperationRecord]:
        """The records of the last operations, oldest first."""
        return [operation.to_record() for operation in tuple(self._operations)]

    def get_policy(self, category: RetryCategory | str) -> RetryPolicy:
        """Return the policy of a category, given as member, name or code."""
        return self._find_category(category).policy

    def register_category(
        self, name: str, policy: RetryPolicy, *, code: str | None = None, kind: Kind = "acting"
    ) -> str:
        """Add a category and return its code, which is RETRY_ and its name unless given."""
        code = check_category(f"RETRY_{name}" if code is None else code)
        if kind not in ("reading", "acting"):
            raise UsageError(f"kind is {kind!r}; it must be reading or acting")
        _check_policy(policy)
        rules = policy.to_policy(code)
        added = _index_categories([CategoryPolicy(check_category(name), code, kind, False, policy, rules)])
        if duplicates := sorted(added.keys() & self._categories.keys()):
            raise UsageError(
                f"category {', '.join(duplicates)} is registered already; choose another name or code"
            )
        # A new dictionary, so that calls in other threads never see a half-made one.
        self._categories = {**self._categories, **added}
        return code

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
        requires_approval: bool = False,
    ) -> T:
        """Return the result of the work, trying it again as the policy of the category says.

        work             makes a new awaitable for each attempt; `coro` is the document's name for it
        policy           replaces the policy of the category
        idempotency_key  runs the work once for this key; later calls return the recorded result
        timeout_s        the limit of each attempt, instead of the policy's or the category's
        if_running       while another call runs the work of the key: "wait" for it or "raise" InProgress
        correlation_id   in every event, with `trace_id`; unless given, those of `oncemore.context` around
                         the call. Operations inside the work inherit both
        run_id           seeds the draws of the delays; a new one for each operation unless given
        requires_approval  makes no attempt before an operator has approved this key and its parameters

        Raises RetryError when all attempts failed, and the work's own exception when it is not tried again.
        """
        make = make_factory(work, coro)
        category_policy = self._find_category(category)
        rules, covers = self._resolve_policy(category_policy, policy, timeout_s)
        if if_running not in ("wait", "raise"):
            raise UsageError(f"if_running is {if_running!r}; it must be wait or raise")
        ids = inherit_ids(OperationIds(tenant_id, correlation_id, trace_id))
        own_id, run_id = run_id, new_uuid7(clocks.current.wall()) if run_id is None else run_id
        # A remembered result would hide the current state from a read.
        key = None if category_policy.kind == "reading" else idempotency_key
        running = RunningOperation(
            self._publish_event,
            category_policy,
            operation,
            policy=rules,
            run_id=run_id,
            ids=ids,
            key=key,
            context=additional_context,
        )
        self._operations.append(running)
        self._check_key_use(category_policy, rules, idempotency_key, running)
        # The same run_id gives the same delays, as BACKOFF-15 asks.
        seed = check_seed(rules.jitter_seed) or run_seed(run_id)
        plan = RetryPlan(mask_text(operation), rules, covers, classify, seed=seed, cuts=True, witness=running)
        # A caller may give the same run_id twice; the runs of a log need unique ids.
        prepared = PreparedOperation(
            operation=running,
            plan=plan,
            make_awaitable=make,
            run_id=run_id if own_id is None else "",
            needs_approval=_needs_approval(requires_approval, key, running),
        )
        plain = ids.clean_ids()
        with context(correlation_id=plain.correlation_id or None, trace_id=plain.trace_id or None):
            if key is None:
                return await prepared.run_in_memory()  # type: ignore[no-any-return]
            return await self._run_once(prepared, key, if_running)  # type: ignore[no-any-return]

    async def _run_once(self, prepared: PreparedOperation, key: str, if_running: IfRunning) -> Any:
        """Return the recorded result of the key, or do the work and record its result."""
        running = prepared.operation
        owner = KeyOwner(running.category, running.name, running.ids, running.policy)
        try:
            settled = await self.idempotency_manager.run_once(key, owner, prepared, if_running)
        except Exception as error:
            # The attempts of the work have their own events; only an error before them is a refusal.
            if not running.events or isinstance(error, StoreError):
                running.record_refusal(_refusal_reason(error), error)
            raise
        if isinstance(settled, SharedFailure):
            running.record_refusal("same_key_failed", settled.failure)
            raise _copy_failure(settled.failure)
        running.record_key_use(settled.action, key)
        try:
            return settled.record.result
        except ResultUnavailable as error:
            # The caller whose call did the work still gets its value, on the error.
            error.value = settled.value
            raise

    def _find_category(self, category: RetryCategory | str) -> CategoryPolicy:
        category_policy = self._categories.get(category) if isinstance(category, str) else None
        if category_policy is None:
            names = ", ".join(sorted({known.name for known in self._categories.values()}))
            raise UsageError(f"category {category!r} is not known; register it, or use one of {names}")
        return category_policy

    def _resolve_policy(
        self, category_policy: CategoryPolicy, policy: RetryPolicy | None, timeout_s: float | None
    ) -> tuple[Policy, Callable[..., bool]]:
        """Return the policy that decides, and the function that says whether an error is tried again."""
        chosen = category_policy.policy if policy is None else _check_policy(policy)
        rules = (
            category_policy.rules
            if policy is None
            else policy.to_policy(f"{category_policy.code} (changed)", category_policy.policy.timeout_s)
        )
        if timeout_s is not None:
            rules = rules.replace(timeout_s=timeout_s)
        if self.governed:
            if policy is not None and policy.unmatched == "retry":
                raise PolicyError("unmatched is 'retry'; in governed mode it must be fail")
            rules = rules.replace(unmatched="fail", governed=True)
        if not are_retries_enabled():
            rules = rules.replace(max_attempts=1)
        return rules, chosen.make_covers(category_policy.verdict or self.governed)

    def _check_key_use(
        self, category_policy: CategoryPolicy, rules: Policy, key: str | None, running: RunningOperation
    ) -> None:
        """Warn of a key on a read and of a missing key on a repeatable action; governed mode refuses both."""
        if category_policy.kind == "reading" and key is not None:
            reason = "idempotency_key_on_read"
            text = (
                f"{running.name} ({category_policy.code}) reads: its idempotency key is ignored, so that it "
                "sees the current state"
            )
        elif category_policy.kind == "acting" and key is None and rules.max_attempts > 1:
            reason = "missing_idempotency_key"
            text = (
                f"{running.name} ({category_policy.code}) acts and may be repeated: give it an idempotency "
                "key"
            )
        else:
            return
        if self.governed:
            refusal = UsageError(f"{text}; governed mode refuses to run it")
            running.record_refusal(reason, refusal)
            raise refusal
        warn_policy(text)

    def _publish_event(self, event: AuditEvent) -> None:
        # The stream in memory comes first, so that it has the event even if a sink fails.
        self.audit(event)
        for writer in tuple(self._sink_writers):
            writer(event)


def _needs_approval(requires_approval: object, key: str | None, operation: RunningOperation) -> bool:
    """Return whether an operator must approve the operation first; approvals are stored by key."""
    if type(requires_approval) is not bool:
        raise UsageError(f"requires_approval is {requires_approval!r:.80}; it takes True or False")
    if not requires_approval or key is not None:
        return requires_approval
    refusal = UsageError(
        f"{operation.name} ({operation.category}) needs an approval, which belongs to a key: give it an "
        "idempotency_key"
    )
    operation.record_refusal("key_refused", refusal)
    raise refusal


def _refusal_reason(error: Exception) -> str:
    if isinstance(error, NotPermitted):
        return error.reason
    return next((reason for kind, reason in REFUSAL_REASONS if isinstance(error, kind)), "key_refused")


def _copy_failure(failure: Exception) -> Exception:
    """Return the failure of the operation that this call waited for, as an error of its own.

    The notes about the attempts stay on the error of the caller that made them.
    """
    if not isinstance(failure, RetryError):
        return failure
    copied = RetryError(failure.category, failure.attempts, failure.operation)
    copied.__cause__ = failure.__cause__
    return copied


def _check_policy(policy: RetryPolicy) -> RetryPolicy:
    if not isinstance(policy, RetryPolicy):
        raise UsageError(f"policy is {policy!r:.80}; it takes a RetryPolicy")
    return policy


def _index_categories(categories: Any) -> dict[str, CategoryPolicy]:
    """Return categories by each accepted spelling: name, code, and RETRY_ before the name."""
    return {
        spelling: category
        for category in categories
        for spelling in (category.name, str(category.code), f"RETRY_{category.name}")
    }


_shared_manager: list[RetryManager] = []
_lock = Lock()


def get_retry_manager() -> RetryManager:
    """Return the manager of this process, which is the same for every call.

    It keeps results in the engine around a call, else in the engine of the settings, as a step does.
    """
    # Two threads must not make two managers: each would have its own records in memory.
    with _lock:
        if not _shared_manager:
            _shared_manager.append(RetryManager(IdempotencyManager(find_engine)))
        return _shared_manager[0]
