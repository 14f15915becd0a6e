"""Tickets and escalations: opened with the entry of a run that needs a person, listed, and acknowledged.

    engine.escalations.list()                                    what waits, oldest first
    engine.escalations.acknowledge("01a1…-4", reason="seen")     a named person has decided

An escalation is an entity of its own, `escalation/<run id>-<version>`, written in the same batch as the entry
of the run that opens it (the one with the mark ESCALATION): a crash leaves both or neither. It is opened for
runs with a dataset and for runs under a governed policy. An escalation about sensitive data, and one that the
gate opens, is a CARE_ESCALATION, addressed to the FAIR+CARE Council; any other is a TICKET for the operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.control.model import APPROVAL_NEEDED
from oncemore.control.moved_log import append_if_not_moved
from oncemore.control.review import check_reason, stale_decision
from oncemore.errors import StaleDecision, UsageError
from oncemore.governance.dataset_model import (
    ACKNOWLEDGED,
    CARE_ESCALATION,
    COUNCIL,
    NO_DATASET,
    NO_LABEL,
    OPEN,
    OPERATORS,
    TICKET,
    DatasetRecord,
    EscalationRecord,
    dataset_entity,
    escalation_entity,
    is_sensitive,
)
from oncemore.governance.identity import authorize_decider
from oncemore.governance.role_model import OPERATOR, REVIEWER
from oncemore.log.entry_codec import build_write, decode_head, load_head, read_body
from oncemore.log.record import NOWHERE, LoadedHead, RecordChange, RunRecord
from oncemore.log.store import HeadQuery, Stored
from oncemore.maintenance.erase import find_run
from oncemore.steps.history import fold_entries
from oncemore.steps.run import Run
from oncemore.steps.transitions import add_escalation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.log.store import Head
    from oncemore.steps.engine import Engine
    from oncemore.steps.history import AttemptView

PAGE_SIZE = 1000
#: The shortest abbreviation of an id.
MIN_ID_LENGTH = 4
ESCALATION_MARKS: tuple[Any, ...] = ("ESCALATION",)


class Escalation(Value):
    """A ticket or an escalation.

    id               the run's id and the version of the entry that opened it
    state            OPEN or ACKNOWLEDGED
    kind             CARE_ESCALATION or TICKET
    role             the role that it is addressed to
    policy           the policy of the escalation: autonomy-matrix or deadline-aware by default
    cause            why the run stopped
    error_classes    codes of the errors of the run
    requires_review  whether the run cannot be run again before the acknowledgement
    by, reason, acknowledged_at  who acknowledged it, why and when
    """

    id: str
    state: str
    kind: str
    role: str
    policy: str
    run_id: str
    key: str
    step: str
    cause: str
    attempts: int
    error_classes: tuple[str, ...]
    dataset: str
    care_label: str
    requires_review: bool
    opened_at: float
    by: str
    reason: str
    acknowledged_at: float


class EscalationCase(Value):
    """An escalation with its evidence: error and proof of the entry that opened it, and the attempts."""

    escalation: Escalation
    error: dict[str, Any]
    gate: dict[str, Any]
    proof: dict[str, Any] | None
    attempts: tuple[AttemptView, ...]
    run_state: str
    held_for: str


# Opening --------------------------------------------------------------------------------------------


def add_escalation_write(
    engine: Engine, entity: str, version: int, change: RecordChange, *, governed: bool
) -> tuple[RecordChange, tuple[tuple[LoadedHead, RecordChange], ...]]:
    """Return a change with the mark ESCALATION, and the escalation to write with it, if it opens one.

    version   the version of the run before the change
    governed  whether the policy of the run is governed
    """
    run = change.after
    if type(run) is not RunRecord or run.held_for == APPROVAL_NEEDED or not (run.dataset or governed):
        return change, ()
    # Read again here: the label that the reviewer sees is the one at the time of the entry.
    dataset = _load_gated_dataset(engine, run, change.body)
    record = _describe_escalation(engine, entity, version + 1, change, dataset)
    name = escalation_entity(run.run_id, version + 1)
    summary = {
        "id": name.partition("/")[2],
        "kind": record.kind,
        "role": record.role,
        "error_classes": record.error_classes,
        "dataset": record.dataset or NO_DATASET,
        "care_label": record.care_label or NO_LABEL,
    }
    body = {**change.body, "escalation": {**change.body.get("escalation", {}), **summary}}
    evidence: dict[str, Any] = {part: change.body[part] for part in ("error", "gate") if part in change.body}
    opened = RecordChange(ESCALATION_MARKS, None, record, evidence)
    return change._replace(body=body), ((LoadedHead(name, 0, NOWHERE, None), opened),)


def _load_gated_dataset(engine: Engine, run: RunRecord, body: dict[str, Any]) -> DatasetRecord | None:
    """Return the dataset that an escalation is about; None if it is not registered."""
    name = body.get("gate", {}).get("dataset") or run.dataset
    if not name:
        return None
    record: DatasetRecord | None = load_head(
        engine.store, dataset_entity(name), engine.cipher, DatasetRecord
    ).record
    return record


def _describe_escalation(
    engine: Engine, entity: str, version: int, change: RecordChange, dataset: DatasetRecord | None
) -> EscalationRecord:
    run: Any = change.after
    recorded = change.body.get("escalation", {})
    is_care = recorded.get("kind") == CARE_ESCALATION or is_sensitive(dataset)
    code = (change.body.get("error") or {}).get("code", "")
    classes = [*_list_error_classes(engine, entity, run), *([code] if code else [])]
    return EscalationRecord(
        kind=CARE_ESCALATION if is_care else TICKET,
        role=COUNCIL if is_care else OPERATORS,
        policy=recorded.get("policy", ""),
        run_entity=entity,
        run_version=version,
        run_id=run.run_id,
        step=run.step,
        tenant=run.tenant,
        correlation_id=run.correlation_id,
        cause=run.held_for or run.reason,
        attempts=run.attempt_count + run.crash_count,
        error_classes=list(dict.fromkeys(classes)),
        dataset=change.body.get("gate", {}).get("dataset") or run.dataset,
        care_label="" if dataset is None else dataset.care_label,
        requires_review=run.state == "HARD_FAIL" and is_sensitive(dataset),
        opened_at=engine.now(),
    )


def _list_error_classes(engine: Engine, entity: str, run: RunRecord) -> list[str]:
    """Return the codes of the errors that the log has for a run, in order."""
    codes = []
    for _, state, body in fold_entries(engine.store.read_entries(entity), engine.cipher):
        code = (body.get("error") or {}).get("code", "")
        if state.run_id == run.run_id and code:
            codes.append(code)
    return codes


# The work list --------------------------------------------------------------------------------------


class Escalations:
    """The escalations of an engine's store: `engine.escalations`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Escalations of {self._engine.url}>"

    def __iter__(self) -> Iterator[Escalation]:
        return iter(self.list())

    def list(
        self,
        *,
        acknowledged: bool = False,
        kind: str | None = None,
        role: str | None = None,
        dataset: str | None = None,
        step: str | None = None,
    ) -> tuple[Escalation, ...]:
        """Return the escalations that match all given filters, oldest first.

        acknowledged  return those that were acknowledged instead of the open ones
        """
        if kind is not None and kind not in (CARE_ESCALATION, TICKET):
            raise UsageError(f"kind is {kind!r}; the kinds are {CARE_ESCALATION} and {TICKET}")
        query = HeadQuery(
            "escalation", ACKNOWLEDGED if acknowledged else OPEN, step=step, dataset=dataset, limit=PAGE_SIZE
        )
        found = [
            escalation
            for escalation in self._read_pages(query)
            if kind in (None, escalation.kind) and role in (None, escalation.role)
        ]
        return tuple(sorted(found, key=lambda escalation: (escalation.opened_at, escalation.id)))

    def show(self, escalation: str | Escalation) -> EscalationCase:
        """Return an escalation with its evidence, by its id or a prefix of it."""
        found = self._find_escalation(escalation)
        entity = f"run/{found.key}"
        body = _read_opening(self._engine, entity, int(found.id.rpartition("-")[2]))
        run = load_head(self._engine.store, entity, self._engine.cipher).record
        return EscalationCase(
            escalation=found,
            error=body.get("error") or {},
            gate=body.get("gate") or {},
            proof=body.get("proof"),
            attempts=() if run is None else Run(self._engine, entity).attempts,
            run_state="" if run is None else run.state,
            held_for="" if run is None else run.held_for,
        )

    def open(self, run: str | Run[Any], *, reason: str, by: str | None = None) -> Escalation:
        """Open an escalation about a failed or quarantined run, which a person finds to need one (GOV-9).

        It is a CARE_ESCALATION if the dataset of the run is sensitive, else a TICKET.
        """
        text, decider, engine = check_reason(reason), authorize_decider(self._engine, by), self._engine
        entity = find_run(engine, run).entity
        head, now = load_head(engine.store, entity, engine.cipher), engine.now()
        state: RunRecord = head.record
        if state.state != "HARD_FAIL" and not state.held_for:
            raise UsageError(
                f"{state.step} {state.run_id} is {state.state}; only a failed or quarantined run is escalated"
            )
        # The entry repeats the error of the last one: it is the last one now, where later callers look.
        body = {
            **_read_opening(engine, entity, state.failure_version or head.version),
            "decision": decider.make_decision(head, "escalate", text, now),
        }
        after = state if state.held_for else state._replace(failure_version=head.version + 1)
        change = RecordChange(("DECISION", "ESCALATION"), state, after, add_escalation(body, state, now))
        change, opened = add_escalation_write(engine, entity, head.version, change, governed=True)
        writes = [
            build_write(each.entity, each.version, each.hash, new_change, now, engine.cipher)
            for each, new_change in ((head, change), *opened)
        ]
        if not isinstance(append_if_not_moved(engine, entity, writes), Stored):
            raise stale_decision(entity, "it was changed in this very moment")
        (opened_head, opening), *_ = opened
        assert type(opening.after) is EscalationRecord
        return _make_escalation(opened_head.entity, opening.after)

    def acknowledge(self, escalation: str | Escalation, *, reason: str, by: str | None = None) -> Escalation:
        """Record the decision of a named person about an escalation."""
        text, found = check_reason(reason), self._find_escalation(escalation)
        needed = REVIEWER if found.kind == CARE_ESCALATION else OPERATOR
        decider = authorize_decider(self._engine, by, needed=needed)
        engine, entity = self._engine, f"escalation/{found.id}"
        head = load_head(engine.store, entity, engine.cipher, EscalationRecord)
        if head.record.state != OPEN:
            raise StaleDecision(
                f"escalation {found.id} was acknowledged already by {head.record.by}: {head.record.reason}"
            )
        now = engine.now()
        after = head.record._replace(state=ACKNOWLEDGED, by=decider.actor, reason=text, acknowledged_at=now)
        body = {"decision": decider.make_decision(head, "acknowledge", text, now)}
        change = RecordChange(("ESCALATION", "DECISION"), head.record, after, body)
        write = build_write(entity, head.version, head.hash, change, now, engine.cipher)
        if not isinstance(append_if_not_moved(engine, f"escalation {found.id}", (write,)), Stored):
            raise stale_decision(entity, "it was acknowledged in this very moment")
        return _make_escalation(entity, after)

    def _find_escalation(self, reference: str | Escalation) -> Escalation:
        """Return the escalation with an id or a prefix of one; the newest escalation of a run's id."""
        name = reference.id if isinstance(reference, Escalation) else reference
        if not isinstance(name, str) or len(name) < MIN_ID_LENGTH:
            raise UsageError(f"the id is {name!r}; it takes {MIN_ID_LENGTH} characters or more of one")
        query = HeadQuery("escalation", limit=PAGE_SIZE, prefix=f"escalation/{name}")
        found = list(self._read_pages(query))
        exact = [escalation for escalation in found if escalation.id == name]
        runs = {escalation.run_id for escalation in found}
        if len(runs) > 1 and not exact:
            raise UsageError(f"{len(found)} escalations begin with {name!r}; give more of the id")
        if not found:
            raise UsageError(f"no escalation begins with {name!r}; oncemore escalations list shows them")
        return (exact or sorted(found, key=lambda escalation: escalation.opened_at))[-1]

    def _read_pages(self, query: HeadQuery) -> Iterator[Escalation]:
        last = ""
        while True:
            page: list[Head] = list(self._engine.store.list_heads(query._replace(after=last)))
            for head in page:
                yield _make_escalation(head.entity, decode_head(head.head, EscalationRecord))
            if len(page) < PAGE_SIZE:
                return
            last = page[-1].entity


def _read_opening(engine: Engine, entity: str, version: int) -> dict[str, Any]:
    """Return the body of the entry that opened an escalation; empty if it was pruned."""
    entry = next(iter(engine.store.read_entries(entity, version - 1)), None)
    return {} if entry is None else read_body(entry, engine.cipher)


def _make_escalation(entity: str, record: EscalationRecord) -> Escalation:
    return Escalation(
        id=entity.partition("/")[2],
        state=record.state,
        kind=record.kind,
        role=record.role,
        policy=record.policy,
        run_id=record.run_id,
        key=record.run_entity.removeprefix("run/"),
        step=record.step,
        cause=record.cause,
        attempts=record.attempts,
        error_classes=tuple(record.error_classes),
        dataset=record.dataset,
        care_label=record.care_label,
        requires_review=record.requires_review,
        opened_at=record.opened_at,
        by=record.by,
        reason=record.reason,
        acknowledged_at=record.acknowledged_at,
    )
