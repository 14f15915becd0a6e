"""The quarantine: items that wait for an operator, their evidence, and the decisions about them.

The quarantine is a view of the log and stores nothing itself. It has three kinds of items:

    run       its outcome is unknown, it needs review, an artifact of it was altered, or its workers died
              until no attempt was left
    artifact  its bytes were altered
    event     a dead letter: refused by its sink, or out of attempts

An item leaves by a decision of an operator (`control.review`) or by the step's `reconcile` function. An
artifact that a held run waits for is part of that run's item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.artifacts.store import ArtifactMissing
from oncemore.control.notifications import DEAD_LETTER, load_notification_status
from oncemore.control.review import (
    OperatorDecision,
    is_held,
    list_choices,
    make_decision,
    record_decision,
    stale_decision,
)
from oncemore.errors import PolicyViolation, StaleDecision, UsageError
from oncemore.limits.cooldowns import release_resources_of_run
from oncemore.log.entry_codec import HELD, decode_head, decode_header, load_head, read_body
from oncemore.log.record import ArtifactRecord, EventRecord, RunRecord
from oncemore.log.result_codec import encode_result
from oncemore.log.store import HeadQuery
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.closing import OUTCOME_UNKNOWN
from oncemore.policy.policy import STANDARD
from oncemore.steps import history, operator_flow, transitions
from oncemore.steps.call import PreparedCall
from oncemore.steps.ops import ReconcileAnswer
from oncemore.steps.perform import run_decision
from oncemore.steps.plan import StepPlan
from oncemore.steps.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from oncemore.control.notifications import NotificationStatus
    from oncemore.log.encryption import BodyCipher
    from oncemore.log.store import Entry, Head
    from oncemore.steps.engine import Engine
    from oncemore.steps.history import AttemptView

#: The maximum number of listed items per kind; the oldest run ids and references come first.
MAX_LISTED = 100_000
#: The minimum length of an abbreviated id.
MIN_ID_LENGTH = 4
ITEM_KINDS: dict[str, type] = {"run": RunRecord, "artifact": ArtifactRecord, "event": EventRecord}
_HELD_STATES = (("run", HELD), ("artifact", "QUARANTINED"), ("event", "DEAD"))


class QuarantineItem(Value):
    """One item in quarantine.

    id        the run_id (never the key), the artifact's reference or the event id
    kind      run, artifact or event
    reason    outcome_unknown, quarantined, checksum_mismatch, poison or dead_letter
    step      the step of the item; the topic of an event
    since     when it was quarantined, in POSIX seconds
    version   the version of its entity; a decision about another version is refused
    attempts  the number of attempts made
    error     the neutral record of its error
    entity    its entity in the log
    """

    id: str
    kind: str
    reason: str
    step: str
    since: float
    version: int
    attempts: int
    error: dict[str, Any]
    tenant: str
    correlation_id: str
    dataset: str
    entity: str


class QuarantineCase(Value):
    """An item with all of its evidence.

    rule           the rule that classified the failure
    effect         the effect of the step; empty for an event
    input_hash     the digest of the run's arguments
    proof          the proof of the transition into quarantine, if there is one
    attempts       the attempts with their outcomes and errors
    artifact       name, expected digest and actual digest of an altered artifact
    decisions      earlier decisions about the item
    notifications  the notifications about the item and their states
    choices        the actions that an operator can take now
    """

    item: QuarantineItem
    rule: str
    effect: str
    input_hash: str
    proof: dict[str, Any] | None
    attempts: tuple[AttemptView, ...]
    artifact: dict[str, Any] | None
    decisions: tuple[dict[str, Any], ...]
    notifications: tuple[NotificationStatus, ...]
    choices: tuple[str, ...]


class Quarantine:
    """The quarantine of an engine's store: `engine.quarantine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Quarantine of {self._engine.url}>"

    def __iter__(self) -> Iterator[QuarantineItem]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def list(
        self,
        *,
        step: str | None = None,
        reason: str | None = None,
        kind: str | None = None,
        tenant: str | None = None,
        since: datetime | float | None = None,
    ) -> tuple[QuarantineItem, ...]:
        """Return the items that match all given filters, longest waiting first.

        since  only items quarantined at or after this time: an aware datetime, or POSIX seconds
        """
        if kind is not None and kind not in ITEM_KINDS:
            raise UsageError(f"kind is {kind!r}; the kinds are {', '.join(ITEM_KINDS)}")
        earliest = 0.0 if since is None else _to_posix_seconds(since)
        step, tenant = (None if name is None else normalize_name(name) for name in (step, tenant))
        items = [
            item
            for held_kind, state in _HELD_STATES
            if kind in (None, held_kind)
            for item in self._list_items(held_kind, state, step)
        ]
        return tuple(
            sorted(
                (
                    item
                    for item in items
                    if item.since >= earliest
                    and reason in (None, item.reason)
                    and tenant in (None, item.tenant)
                ),
                key=lambda item: (item.since, item.id),
            )
        )

    def show(self, item: str | QuarantineItem) -> QuarantineCase:
        """Return an item with its evidence, by its id, a prefix of it, or its entity."""
        return _build_case(self._engine, self._find_item(item))

    # Decisions --------------------------------------------------------------------------------------

    def release(self, item: str | QuarantineItem, *, by: str, reason: str, version: int = 0) -> None:
        """Release an item: the run continues, the artifact is used again, or the event is sent again.

        version  refuse the decision if the item has another version; a `QuarantineItem` brings its own
        """
        self._apply_decision(item, make_decision("release", by, reason, version))

    def reject(self, item: str | QuarantineItem, *, by: str, reason: str, version: int = 0) -> None:
        """Reject an item: the run fails, the artifact is not used again, or the event is not sent."""
        self._apply_decision(item, make_decision("reject", by, reason, version))

    def rerun(
        self, item: str | QuarantineItem, *, by: str, reason: str, extra_attempts: int = 1, version: int = 0
    ) -> None:
        """Continue a run with attempts beyond its budget; the log records the extra attempts."""
        self._apply_decision(item, make_decision("rerun", by, reason, version, extra_attempts))

    def settle(
        self, item: str | QuarantineItem, answer: ReconcileAnswer, *, by: str, reason: str, version: int = 0
    ) -> None:
        """Record the outcome of a run if it is unknown: `applied(value)` or `not_applied()`.

        The value is stored as plain JSON; `step.settle` also accepts the types that the step returns.
        """
        if type(answer) is not ReconcileAnswer or answer.found == "unknown":
            raise UsageError("settle takes oncemore.applied(value) or oncemore.not_applied()")
        decision = make_decision("settle", by, reason, version)
        entity, decision = self._resolve_target(item, decision)
        head = load_head(self._engine.store, entity, self._engine.cipher)
        run = head.record
        if type(run) is not RunRecord or run.held_for != OUTCOME_UNKNOWN:
            raise self._not_settleable_error(entity, head, decision)
        # The operator has seen another version, and might decide otherwise about this one.
        if decision.version and decision.version != head.version:
            raise stale_decision(
                entity, f"it has version {head.version} now, and was looked at in version {decision.version}"
            )
        plan = _make_settle_plan(run)
        settled = answer._replace(decided=decision.decision_body)
        if answer.found == "applied":
            # Raises for a value that cannot be encoded, before the decision is written.
            encode_result(answer.value)
        call = PreparedCall(entity, plan, cfg_hash=run.cfg_hash)
        try:
            run_decision(self._engine, operator_flow.settle_run(plan, call, settled, head))
        except UsageError:
            # settle_run found the run in another state than the check above: it has changed since.
            raise stale_decision(entity, "it was changed in this very moment") from None

    # ------------------------------------------------------------------------------------------------

    def _not_settleable_error(self, entity: str, head: Any, decision: OperatorDecision) -> Exception:
        if entity.startswith("run/") and head.record is not None and is_held(head.record):
            return UsageError(
                f"the outcome of {head.record.step} is not in doubt ({head.record.held_for}); release, "
                "rerun or reject it"
            )
        if not entity.startswith("run/"):
            return UsageError("only a run can be settled; release it, or reject it")
        return stale_decision(entity, "it is not in quarantine any more")

    def _apply_decision(self, item: str | QuarantineItem, decision: OperatorDecision) -> None:
        entity, decision = self._resolve_target(item, decision)
        kind = ITEM_KINDS[entity.partition("/")[0]]
        also = (
            self._release_artifact_too(entity, decision)
            if kind is RunRecord and decision.action == "release"
            else ()
        )
        # Resources that are held because of this run are released in the same batch.
        if kind is RunRecord and decision.action in ("release", "rerun"):
            also = (*also, *release_resources_of_run(self._engine, entity, decision.decision_body))
        if kind is ArtifactRecord and decision.action == "release":
            self._check_artifact_intact(entity)
        run_decision(self._engine, record_decision(entity, kind, decision, also))
        # The event may be a notification, and the thread of the notifier delivers those.
        if kind is EventRecord and decision.action == "release" and self._engine.notifier is not None:
            self._engine.notifier.wake_thread(self._engine)

    def _release_artifact_too(self, entity: str, decision: OperatorDecision) -> tuple[Any, ...]:
        """Return the change that releases the artifact of a held run; raise if its bytes are still wrong."""
        run_head = load_head(self._engine.store, entity, self._engine.cipher)
        ref = (run_head.body or {}).get("quarantine", {}).get("artifact")
        if run_head.record is None or not is_held(run_head.record) or ref is None:
            return ()
        # The run waits for this artifact, so that both are released in one batch.
        self._check_artifact_intact(ref)
        head = load_head(self._engine.store, ref, self._engine.cipher, ArtifactRecord)
        if head.record is None or head.record.state != "QUARANTINED":
            return ()
        from oncemore.log.record import RecordChange

        return (
            (
                head,
                RecordChange(
                    ("DECISION",), head.record, head.record._replace(state="STORED"), decision.decision_body
                ),
            ),
        )

    def _check_artifact_intact(self, ref: str) -> None:
        """Raise `UsageError` if the bytes of a quarantined artifact do not match its digest."""
        artifact = load_head(self._engine.store, ref, self._engine.cipher, ArtifactRecord).record
        if artifact is None or artifact.state != "QUARANTINED":
            return
        result = self._engine.artifact_store.verify_object(artifact.digest, artifact.size)
        if result != "valid":
            reason = (
                str(result)
                if isinstance(result, PolicyViolation)
                else str(ArtifactMissing(f"{artifact.digest} is missing"))
            )
            raise UsageError(f"{artifact.name} of {artifact.step} cannot be released: {reason}")

    def _resolve_target(
        self, item: str | QuarantineItem, decision: OperatorDecision
    ) -> tuple[str, OperatorDecision]:
        """Return the entity of an item, and the decision with the version that the operator has seen."""
        if isinstance(item, QuarantineItem):
            return item.entity, decision._replace(version=decision.version or item.version)
        if isinstance(item, str) and item.partition("/")[0] in ITEM_KINDS and "/" in item:
            return item, decision
        return self._find_item(item).entity, decision

    def _find_item(self, reference: str | QuarantineItem) -> QuarantineItem:
        """Return the item with an id, a prefix of an id, a key or an entity."""
        if isinstance(reference, QuarantineItem):
            reference = reference.entity
        if not isinstance(reference, str) or len(reference) < MIN_ID_LENGTH:
            raise UsageError(f"the id is {reference!r}; it takes {MIN_ID_LENGTH} characters or more of one")
        items = self.list()
        # An exact match wins, because an id may be the prefix of another.
        exact = [item for item in items if reference in (item.id, item.entity, item.entity.partition("/")[2])]
        matches = exact or [item for item in items if item.id.startswith(reference)]
        if len(matches) > 1:
            raise UsageError(
                f"{len(matches)} items in quarantine have ids that begin with {reference!r}; give more of it"
            )
        if not matches:
            raise StaleDecision(
                f"nothing in quarantine has the id {reference!r}; it may have been decided on already: "
                "oncemore quarantine list shows what waits"
            )
        return matches[0]

    def _list_items(self, kind: str, state: str, step: str | None) -> Iterator[QuarantineItem]:
        store = self._engine.store
        for head in store.list_heads(HeadQuery(kind, state, step=step, limit=MAX_LISTED)):
            item = _build_item(self._engine, head)
            if item is not None:
                yield item


def _build_item(engine: Engine, head: Head) -> QuarantineItem | None:
    """Return the item of a held entity; None if it has been decided on since it was listed."""
    kind = head.entity.partition("/")[0]
    state: Any = decode_head(head.head, ITEM_KINDS[kind])
    # The last entry is the one that put the item into quarantine: its time and error are the item's.
    entry = next(iter(engine.store.read_entries(head.entity, head.version - 1)), None)
    if entry is None or not is_held(state):
        return None
    body, since = _read_body(entry, engine.cipher), decode_header(entry.header).at
    error = body.get("error") or {}
    if type(state) is RunRecord:
        return QuarantineItem(
            id=state.run_id,
            kind=kind,
            reason=state.held_for,
            step=state.step,
            since=since,
            version=head.version,
            attempts=state.attempt_count,
            error=error,
            tenant=state.tenant,
            correlation_id=state.correlation_id,
            dataset=state.dataset,
            entity=head.entity,
        )
    if type(state) is EventRecord:
        return QuarantineItem(
            id=state.event_id,
            kind=kind,
            reason=DEAD_LETTER,
            step=state.topic,
            since=since,
            version=head.version,
            attempts=state.attempt,
            error=error,
            tenant=state.tenant,
            correlation_id=state.correlation_id,
            dataset="",
            entity=head.entity,
        )
    assert type(state) is ArtifactRecord
    run_head = load_head(engine.store, state.run_entity, engine.cipher)
    run = run_head.record
    # The artifact belongs to the item of its held run, and is not listed a second time.
    if (
        run is not None
        and (run_head.body or {}).get("quarantine", {}).get("artifact") == head.entity
        and is_held(run)
    ):
        return None
    # The entry of an altered artifact has no error record, so the item gets one of the same form.
    error = {
        "type": "PolicyViolation",
        "code": "CHECKSUM_MISMATCH",
        "message": body.get("quarantine", {}).get("message", ""),
    }
    return QuarantineItem(
        id=head.entity.partition("/")[2],
        kind=kind,
        reason=transitions.CHECKSUM_MISMATCH,
        step=state.step,
        since=since,
        version=head.version,
        attempts=0,
        error=error,
        tenant=state.tenant,
        correlation_id="" if run is None else run.correlation_id,
        dataset="" if run is None else run.dataset,
        entity=head.entity,
    )


def _build_case(engine: Engine, item: QuarantineItem) -> QuarantineCase:
    # Only up to the listed version, so that the evidence and the item describe the same state.
    entries = list(engine.store.read_entries(item.entity))[: item.version]
    last = _read_body(entries[-1], engine.cipher)
    state: Any = None
    for _, state, _ in history.fold_entries(entries, engine.cipher):  # noqa: B007 - the last one is wanted
        pass
    # Only runs have attempts with records of their own.
    run: Run[Any] | None = Run(engine, item.entity) if item.kind == "run" else None
    return QuarantineCase(
        item=item,
        rule=item.error.get("rule", ""),
        effect=state.effect if type(state) is RunRecord else "",
        input_hash=state.input_hash if type(state) is RunRecord else "",
        proof=last.get("proof"),
        attempts=run.attempts if run is not None else (),
        artifact=_describe_artifact(engine, item, last),
        decisions=tuple(_list_decisions(entries, engine.cipher)),
        notifications=load_notification_status(engine, last.get("notices", [])),
        choices=list_choices(state),
    )


def _describe_artifact(engine: Engine, item: QuarantineItem, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return name, expected digest and actual digest of an item's altered artifact, or None."""
    ref = item.entity if item.kind == "artifact" else body.get("quarantine", {}).get("artifact")
    if ref is None:
        return None
    head = load_head(engine.store, ref, engine.cipher, ArtifactRecord)
    artifact, actual = head.record, (head.body or {}).get("quarantine", {})
    return {
        "reference": ref,
        "name": artifact.name,
        "expected": artifact.digest,
        "expected_size": artifact.size,
        "found": actual.get("found", ""),
        "found_size": actual.get("found_size", 0),
    }


def _list_decisions(entries: list[Entry], cipher: BodyCipher | None) -> Iterator[dict[str, Any]]:
    for entry in entries:
        decision = _read_body(entry, cipher).get("decision")
        if decision is not None:
            yield {**decision, "at": decode_header(entry.header).at}


def _read_body(entry: Entry, cipher: BodyCipher | None) -> dict[str, Any]:
    return read_body(entry, cipher)


def _make_settle_plan(run: RunRecord) -> StepPlan:
    """Return a plan to settle a run without importing its step."""
    return StepPlan(
        name=run.step,
        effect=run.effect,
        policy=STANDARD,
        classify=_refuse_work,
        encode=encode_result,
        decode=_refuse_work,
        describe=lambda error, failure: {},
    )


def _refuse_work(*args: Any, **kwargs: Any) -> Any:  # pragma: no cover - a decision runs no work
    raise AssertionError("a decision runs no work")


def _to_posix_seconds(since: datetime | float) -> float:
    if isinstance(since, int | float) and not isinstance(since, bool) and since >= 0:
        return float(since)
    if getattr(since, "tzinfo", None) is None:
        raise UsageError(f"since is {since!r}; it takes an aware datetime, or POSIX seconds")
    return since.timestamp()  # type: ignore[union-attr]


__all__ = ["Quarantine", "QuarantineCase", "QuarantineItem"]
