"""Breakers in a shared store: each is an entity of the log.

A claim carries the version of the breaker as a guard: a worker that opens the breaker changes its version,
and the store refuses the claim. A cached closed breaker may therefore be old, and still no attempt begins
after it has opened. A successful call reads and writes nothing while no call fails.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError, UsageError, log_warning
from oncemore.limits import breaker_rules as core
from oncemore.limits.breaker import CHANGES, LocalBreakerState, build_breaker_event, log_state_change
from oncemore.limits.breaker_rules import BreakerRules, ProbeHolder
from oncemore.log.entry_codec import build_write, decode_head, load_head
from oncemore.log.record import BreakerRecord, RecordChange
from oncemore.log.store import Batch, HeadQuery, Stored
from oncemore.policy.canonical_json import normalize_name
from oncemore.retries.loop import AppendRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oncemore.governance.identity import Decider
    from oncemore.limits.breaker import Script, Turn
    from oncemore.log.record import LoadedHead
    from oncemore.steps.engine import Engine
    from oncemore.steps.lease import WorkerIdentity
    from oncemore.steps.operator_flow import DecisionMaker

PREFIX = "breaker/"
#: Compare-and-set attempts before an update fails as if the store were down.
MOST_TRIES = 1000
MOST_LISTED = 10_000


def breaker_entity(name: str) -> str:
    """Return the entity of a provider's breaker in the log."""
    return PREFIX + normalize_name(name)


@lru_cache(maxsize=10_000)
def new_breaker_record(entity: str) -> BreakerRecord:
    """Return the record of a breaker that has no entry yet."""
    return BreakerRecord(name=entity.removeprefix(PREFIX))


def build_breaker_change(
    before: BreakerRecord | None, after: BreakerRecord, body: dict[str, Any] | None = None
) -> RecordChange:
    """Return the change of a breaker; a failed probe is also an escalation (BREAK-5)."""
    marks: tuple[Any, ...] = ("BREAKER",)
    body = dict(body or {})
    # A released probe leads to OPEN as well, but only a failed one starts a new cooldown.
    if (
        before is not None
        and before.state == "HALF_OPEN"
        and after.state == "OPEN"
        and after.opened_at == after.changed_at
    ):
        marks = ("BREAKER", "ESCALATION")
        body["escalation"] = {
            "policy": "circuit_breaker",
            "provider": after.name,
            "code": after.last_error_code,
            "until": after.open_until,
            "opens": after.open_count,
        }
    return RecordChange(marks, before, after, body)


class BreakerCache:
    """The closed breakers that an engine has read from its store."""

    def __init__(self) -> None:
        self._known: dict[str, LoadedHead] = {}

    def load_breaker(self, engine: Engine, entity: str) -> LoadedHead:
        """Return the head of a breaker; a closed one may be old, and the guard of the claim detects that."""
        head = self._known.get(entity)
        if head is None:
            head = load_head(engine.store, entity, engine.cipher, BreakerRecord)
            # An open breaker is read each time: no claim follows that would detect its closing.
            if not core.is_open(head.record):
                self._known[entity] = head
        return head

    def drop_cached(self, entity: str) -> None:
        """Forget a breaker, so that the next load reads it from the store."""
        self._known.pop(entity, None)

    def apply_written(self, engine: Engine, also: Iterable[tuple[LoadedHead, RecordChange]]) -> None:
        """Update the cache after a write, and notify the listeners of each changed breaker."""
        for head, change in also:
            if type(change.after) is BreakerRecord:
                self.drop_cached(head.entity)
                notify_listeners(engine, head, change)


def notify_listeners(engine: Engine, head: LoadedHead, change: RecordChange) -> None:
    """Log the change of a breaker and notify the listeners of engine and process."""
    before, after = head.record or new_breaker_record(head.entity), change.after
    assert type(after) is BreakerRecord
    log_state_change(before, after)
    if (before.state, after.state) in CHANGES:
        engine.listener.notify(build_breaker_event(before, after))


class StoredBreakerState:
    """State of a breaker in the store of an engine; `find` returns the engine at each use.

    While the store cannot be reached, this process counts failures in memory and logs a warning: calls
    neither stop nor continue against a provider that is down.
    """

    def __init__(self, name: str, find: Callable[[], Engine]) -> None:
        self._name, self._entity, self._find = name, breaker_entity(name), find
        self._alone = LocalBreakerState(name)
        self._cut_off = False
        self._mine: dict[int, WorkerIdentity] = {}
        self.clean = False

    def probe_holder(self, lease_s: float) -> ProbeHolder:
        """Return the worker of this process as the holder of a probe."""
        if self._cut_off:
            return self._alone.probe_holder(lease_s)
        return ProbeHolder(self._find().leases.current_identity().name, self._entity, 0, lease_s)

    def release_probe(self, turn: int) -> None:
        """Remove a probe from the attempts of this process's worker."""
        identity = self._mine.pop(turn, None)
        if identity is not None:
            identity.remove_attempt((self._entity, turn))

    def load_state(self) -> BreakerRecord:
        """Return the current record; the one in memory if the store cannot be reached."""
        try:
            return load_head(
                self._find().store, self._entity, None, BreakerRecord
            ).record or new_breaker_record(self._entity)
        except StoreError:
            return self._alone.load_state()

    def update_state(self, turn: Turn[Any], body: dict[str, Any] | None = None) -> Script[Any]:
        """Apply `turn` to the stored state; to the state in memory if the store cannot be reached."""
        try:
            result = yield from self.update_stored_state(self._find(), turn, body)
        except StoreError as error:
            # One warning per outage, not one per call.
            if not self._cut_off:
                self._cut_off = True
                log_warning(
                    f"breaker {self._name}: the store cannot be reached ({error}); until it can, this "
                    "process counts failures in memory"
                )
            return (yield from self._alone.update_state(turn))
        self._cut_off = False
        return result

    def update_stored_state(
        self,
        engine: Engine,
        turn: Turn[Any],
        body: dict[str, Any] | None,
        decide: DecisionMaker | None = None,
    ) -> Script[Any]:
        """Apply `turn` by compare-and-set; raise `StoreError` if the store fails or never accepts it.

        decide  makes the record of an operator's decision about the breaker as it was read
        """
        for _ in range(MOST_TRIES):
            head = load_head(engine.store, self._entity, engine.cipher, BreakerRecord)
            circuit, now = head.record or new_breaker_record(self._entity), engine.now()
            after, result = turn(circuit, now, is_probe_held(engine, circuit, now))
            self.clean = core.is_clean(after)
            if after == circuit:
                return result
            if decide is not None:
                body = {"decision": decide(head, now)}
            change = build_breaker_change(head.record, after, body)
            write = build_write(head.entity, head.version, head.hash, change, now, engine.cipher)
            probe = self._register_probe(engine, circuit, after)
            is_stored = False
            try:
                batch = Batch((write,))
                reply = yield AppendRecord(partial(engine.store.append, batch))
                is_stored = isinstance(reply, Stored)
            finally:
                # Also after an error or a cancellation: the worker must not hold a probe it does not have.
                if probe and not is_stored:
                    self.release_probe(probe)
            if is_stored:
                engine.breakers.apply_written(engine, ((head, change),))
                return result
        raise StoreError(f"breaker {self._name}: other writers changed it {MOST_TRIES} times in a row")

    def _register_probe(self, engine: Engine, before: BreakerRecord, after: BreakerRecord) -> int:
        """Add a new probe to the attempts of this process's worker; return its number, or 0."""
        if after.state != "HALF_OPEN" or after.probe_number == before.probe_number:
            return 0
        # Before the write: a thread that reads the entry at once must not take the probe for lost.
        identity = self._mine[after.probe_number] = engine.leases.current_identity()
        identity.add_attempt((self._entity, after.probe_number))
        return after.probe_number


def is_probe_held(engine: Engine, circuit: BreakerRecord, now: float) -> bool:
    """Whether the lease of the probe's holder is still valid."""
    if circuit.state != "HALF_OPEN":
        return True
    return (
        engine.leases.lease_until(
            circuit.probe_worker, circuit.probe_entity, circuit.probe_fence or circuit.probe_number
        )
        > now
    )


# For operators --------------------------------------------------------------------------------------


def list_breakers(engine: Engine) -> tuple[BreakerRecord, ...]:
    """Return the breakers of the store, sorted by name."""
    heads = engine.store.list_heads(HeadQuery("breaker", limit=MOST_LISTED))
    records = (decode_head(head.head, BreakerRecord) for head in heads)
    return tuple(sorted(records, key=lambda record: record.name))


def reset_breaker(engine: Engine, name: str, reason: str, decider: Decider) -> BreakerRecord:
    """Close a breaker by an operator's decision, recorded with actor and reason."""
    from oncemore.control.moved_log import check_not_moved
    from oncemore.limits.breaker import run_limit_script

    if not isinstance(reason, str) or not reason.strip():
        raise UsageError("resetting a breaker needs a reason: reason='…', recorded with the decision")
    head = load_head(engine.store, breaker_entity(name), engine.cipher, BreakerRecord)
    if head.record is None:
        raise UsageError(f"there is no breaker {name!r} in this store; oncemore limits breakers lists them")
    check_not_moved(engine, f"breaker {name}")

    def turn(circuit: BreakerRecord, now: float, held: bool) -> tuple[BreakerRecord, BreakerRecord]:
        # The rules of the step are not known here: those stored with the breaker are used.
        rules = BreakerRules(
            circuit.failure_limit, circuit.cooldown_s, circuit.counted_unit, circuit.failure_rate or None
        )
        after = core.after_reset(rules, circuit, now)
        return after, after

    def decide(seen: LoadedHead, now: float) -> dict[str, Any]:
        return decider.make_decision(seen, "reset", reason, now)

    state = StoredBreakerState(name, lambda: engine)
    return run_limit_script(state.update_stored_state(engine, turn, None, decide))  # type: ignore[no-any-return]
