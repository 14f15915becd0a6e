"""The resources of a store for operators: list, inspect, release and import them.

The data is a view of the log (`limits.cooldown_rules.ResourceRecord`). A release is a log entry with the
operator's name and reason; if the last run of the resource is quarantined too, one write decides both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.control import review
from oncemore.control.moved_log import append_decision, append_if_not_moved, refuse_if_moved
from oncemore.errors import StaleDecision, UsageError
from oncemore.governance.identity import authorize_decider, authorize_run_decider
from oncemore.limits.cooldown_rules import ResourceRecord, import_record, is_held, resource_name, skip_reason
from oncemore.limits.cooldown_step import DECIDED, build_release, resource_entity
from oncemore.log.entry_codec import build_write, decode_head, load_head
from oncemore.log.record import RecordChange
from oncemore.log.store import Conflict, HeadQuery
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.closing import close_run, closing_proof
from oncemore.steps import history
from oncemore.steps.call_operations import run_decision
from oncemore.steps.ops import NOW, AppendChange, EndCall, LoadHead
from oncemore.steps.transitions import end_attempt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oncemore.log.record import LoadedHead
    from oncemore.steps.engine import Engine
    from oncemore.steps.operator_flow import DecisionMaker
    from oncemore.steps.ops import Script

#: Largest number of resources in a listing.
MOST_LISTED = 100_000
STATES = ("READY", "COOLING", "HELD", "DONE")
#: The states in a listing by default: the resources that steps skip.
USUAL = ("COOLING", "HELD")


class ResourceHistory(Value):
    """A resource with its history.

    resource        its record
    skip            the reason for skipping it now, as SKIPPED_…; empty if a step would request it
    left_s          seconds until a step may request it; 0 if it may now, or if an operator has to decide
    error           the neutral record of the last failure, if there was one
    correlation_id  correlation id of the last run
    decisions       decisions of operators, with actor and reason
    entries         every change of its record: the time and the new record
    """

    resource: ResourceRecord
    skip: str
    left_s: float
    error: dict[str, Any] | None
    correlation_id: str
    decisions: tuple[dict[str, Any], ...]
    entries: tuple[tuple[float, ResourceRecord], ...]


class Cooldowns:
    """The resources of an engine's store: `engine.cooldowns`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Cooldowns of {self._engine.url}>"

    def __iter__(self) -> Iterator[ResourceRecord]:
        return iter(self.list())

    def list(
        self, *, state: str | None = None, provider: str | None = None, step: str | None = None
    ) -> tuple[ResourceRecord, ...]:
        """Return the resources that steps skip: by the end of their cooldown, held ones last.

        state  READY, COOLING, HELD, DONE, or "all"; without it COOLING (and not over yet) and HELD
        """
        if state is not None and state not in (*STATES, "all"):
            raise UsageError(f"state is {state!r}; the states are {', '.join(STATES)}, or all")
        provider, step = (None if name is None else normalize_name(name) for name in (provider, step))
        now, states = self._engine.now(), STATES if state == "all" else (state,) if state else USUAL
        # No write marks the end of a cooldown: without a state, ended ones are left out by the clock.
        resources = [
            resource
            for listed_state in states
            for resource in self._list_records(listed_state, step)
            if provider in (None, resource.provider) and (state or skip_reason(resource, now))
        ]
        return tuple(sorted(resources, key=_sort_key))

    def get(self, resource: str) -> ResourceRecord | None:
        """Return the record of a resource, or None if no step has requested it."""
        record: ResourceRecord | None = self._load_head(resource).record
        return record

    def check(self, resource: str) -> str:
        """Return the reason for skipping a resource now, as SKIPPED_…; "" if a step would request it."""
        return skip_reason(self.get(resource), self._engine.now())

    def show(self, resource: str) -> ResourceHistory:
        """Return a resource with its last error, the decisions about it and the changes of its record."""
        head, now = self._load_existing(resource), self._engine.now()
        record: ResourceRecord = head.record
        entries = list(
            history.fold_entries(self._engine.store.read_entries(head.entity), self._engine.cipher)
        )
        reason = skip_reason(record, now)
        errors = [body["error"] for _, _, body in entries if "error" in body]
        run = (
            load_head(self._engine.store, record.run_entity, self._engine.cipher).record
            if record.run_entity
            else None
        )
        decisions = ({**body["decision"], "at": entry.at} for entry, _, body in entries if "decision" in body)
        left_s = max(0.0, record.next_eligible_attempt_at - now)
        return ResourceHistory(
            resource=record,
            skip=reason,
            # For a held resource the time means nothing: an operator has to decide first.
            left_s=left_s if reason == "SKIPPED_BACKOFF" else 0.0,
            error=errors[-1] if errors else None,
            # An imported record has no run.
            correlation_id="" if run is None else run.correlation_id,
            decisions=tuple(decisions),
            entries=tuple((entry.at, state) for entry, state, _ in entries),
        )

    def release(self, resource: str, *, reason: str, by: str | None = None) -> ResourceRecord:
        """End the cooldown or quarantine of a resource: the next execution requests it.

        If its last run is quarantined, that run ends too. The counts stay.
        """
        text, head = review.check_reason(reason), self._load_existing(resource)
        decider = authorize_run_decider(self._engine, by, head.record.run_entity)
        # The run that ends with the release is named, so that a signature covers its entry too.
        details = {"run": head.record.run_entity} if head.record.run_entity else {}

        def decide(seen: LoadedHead, now: float) -> dict[str, Any]:
            return decider.make_decision(seen, "release", text, now, details)

        script = _release_resource(head.entity, resource, decide)
        saved: ResourceRecord = run_decision(self._engine, script).record
        return saved

    def import_record(
        self, resource: str, fields: Mapping[str, Any], *, reason: str, by: str | None = None
    ) -> ResourceRecord:
        """Import the record of a resource from another system, unless this store has one.

        fields  by the names of COOL-2; times are POSIX seconds, and VALIDATED is read as VALID
        """
        record = import_record(resource_name(resource), fields)
        decider = authorize_decider(self._engine, by).refuse_signature("an import")
        body = review.make_decision("import", decider.actor, reason).decision_body
        head, engine = self._load_head(resource), self._engine
        if head.record is None:
            change = RecordChange(DECIDED, None, record, body)
            # Version 0 makes the store refuse the write if a step has created the record meanwhile.
            write = build_write(head.entity, 0, head.hash, change, engine.now(), engine.cipher)
            if not isinstance(append_if_not_moved(engine, resource, (write,)), Conflict):
                return record
        raise UsageError(f"{resource} has a record in this store already; it was not changed")

    # ------------------------------------------------------------------------------------------------

    def _list_records(self, state: str, step: str | None) -> Iterator[ResourceRecord]:
        heads = self._engine.store.list_heads(HeadQuery("resource", state, step=step, limit=MOST_LISTED))
        return (decode_head(head.head, ResourceRecord) for head in heads)

    def _load_head(self, resource: str) -> LoadedHead:
        entity = resource_entity(resource_name(resource))
        return load_head(self._engine.store, entity, self._engine.cipher, ResourceRecord)

    def _load_existing(self, resource: str) -> LoadedHead:
        head = self._load_head(resource)
        if head.record is None:
            raise UsageError(
                f"no step has requested {resource!r} in this store; oncemore limits cooldowns --state all "
                "lists the known resources"
            )
        return head


def _sort_key(resource: ResourceRecord) -> tuple[bool, float, str]:
    return is_held(resource), resource.next_eligible_attempt_at, resource.resource


def _release_resource(entity: str, resource: str, decide: DecisionMaker) -> Script:
    """Release a resource and end its quarantined run, in one write."""
    moved = yield from refuse_if_moved(resource)
    if moved is not None:
        return moved
    head = yield LoadHead(entity, ResourceRecord)
    now = yield NOW
    decision_body = {"decision": decide(head, now)}
    changes = build_release(head, now, decision_body)
    if not changes:
        return EndCall(None, _not_cooling_down(head.record))
    return (yield from _append_release(head, changes[0], decision_body, now))


def _append_release(
    head: LoadedHead, change: tuple[LoadedHead, RecordChange], decision_body: dict[str, Any], now: float
) -> Script:
    run = (yield LoadHead(head.record.run_entity)) if head.record.run_entity else None
    also: tuple[Any, ...] = ()
    if run is not None and run.record is not None and review.is_held(run.record):
        after = end_attempt(run.record, "HARD_FAIL", "released", failure_version=run.version + 1)
        proof = closing_proof(close_run(run.record, "resource_released", now))
        body = {**decision_body, "error": (run.body or {}).get("error", {}), "proof": proof}
        also = ((run, RecordChange(("HARD_FAIL", "DECISION"), run.record, after, body)),)
    # The operator decided about the record as it was: a change since then needs a new decision.
    saved = yield from append_decision(head.record.resource, AppendChange(*change, also=also))
    if type(saved) is EndCall:
        return saved
    stale = StaleDecision(
        f"{head.record.resource} was not released: it changed at the same time; check it with "
        "oncemore limits cooldowns and decide again"
    )
    return EndCall(saved, stale if saved is None else None)


def _not_cooling_down(resource: ResourceRecord) -> UsageError:
    is_valid = resource.validation_status == "VALID"
    reason = "its data is there and valid" if is_valid else "steps may request it already"
    return UsageError(f"{resource.resource} was not released: {reason}")


def release_resources_of_run(
    engine: Engine, run: str, decision_body: dict[str, Any]
) -> tuple[tuple[LoadedHead, RecordChange], ...]:
    """Return the changes that release the resources held because of a run."""
    query = HeadQuery("resource", "HELD", head_contains=run.encode(), limit=MOST_LISTED)
    listed = engine.store.list_heads(query)
    heads = [load_head(engine.store, head.entity, engine.cipher, ResourceRecord) for head in listed]
    now = engine.now()
    # `head_contains` matches bytes anywhere in the head, so the run is compared again.
    return tuple(
        change
        for head in heads
        if head.record and head.record.run_entity == run
        for change in build_release(head, now, decision_body)
    )


def _unknown_resource(*args: Any) -> Any:  # pragma: no cover - a decision runs no step function
    raise AssertionError("a release runs no step function")
