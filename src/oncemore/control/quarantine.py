"""The quarantine (`engine.quarantine`): lists the items that wait for an operator, and records decisions.

The quarantine is a view of the log and stores nothing itself. An item (`control.quarantine_items`) leaves by
a decision of an operator (`control.review`) or by the step's `reconcile` function.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from oncemore.control.quarantine_items import ITEM_KINDS, QuarantineItem, build_case, build_item
from oncemore.control.review import (
    OperatorDecision,
    find_staleness,
    is_held,
    make_decision,
    record_decision,
    release_artifact,
    stale_decision,
)
from oncemore.errors import PolicyViolation, StaleDecision, UsageError
from oncemore.governance.dataset_model import GATE_HOLDS
from oncemore.governance.identity import (
    authorize_decider,
    find_needed_role,
    is_deciding_by_credential,
    load_roles,
)
from oncemore.governance.role_model import REVIEWER
from oncemore.limits.cooldowns import release_resources_of_run
from oncemore.log.entry_codec import HELD, load_head
from oncemore.log.record import ArtifactRecord, EventRecord, RunRecord
from oncemore.log.result_codec import encode_result
from oncemore.log.store import HeadQuery
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.closing import OUTCOME_UNKNOWN
from oncemore.policy.policy import STANDARD
from oncemore.steps import operator_flow
from oncemore.steps.call import PreparedCall
from oncemore.steps.call_operations import run_decision
from oncemore.steps.ops import ReconcileAnswer
from oncemore.steps.plan import StepPlan, refuse_call

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from oncemore.control.quarantine_items import QuarantineCase
    from oncemore.log.store import Head
    from oncemore.steps.engine import Engine

#: The maximum number of listed items per kind; the oldest run ids and references come first.
MAX_LISTED = 100_000
#: The minimum length of an abbreviated id.
MIN_ID_LENGTH = 4
_HELD_STATES = (("run", HELD), ("artifact", "QUARANTINED"), ("event", "DEAD"))


class Quarantine:
    """The quarantine of an engine's store: `engine.quarantine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Quarantine of {self._engine.url}>"

    def __iter__(self) -> Iterator[QuarantineItem]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self._list_heads(None, None))

    def list(
        self,
        *,
        step: str | None = None,
        reason: str | None = None,
        kind: Literal["run", "artifact", "event"] | None = None,
        tenant: str | None = None,
        since: datetime | float | None = None,
        limit: int | None = None,
    ) -> tuple[QuarantineItem, ...]:
        """Return the items that match all given filters, longest waiting first.

        since  only items quarantined at or after this time: an aware datetime, or POSIX seconds
        limit  the most items to return; None for all
        """
        if kind is not None and kind not in ITEM_KINDS:
            raise UsageError(f"kind is {kind!r}; the kinds are {', '.join(ITEM_KINDS)}")
        earliest = 0.0 if since is None else _to_posix_seconds(since)
        step, tenant = (None if name is None else normalize_name(name) for name in (step, tenant))
        items = (
            item
            for head in self._list_heads(kind, step)
            if (item := build_item(self._engine, head)) is not None
            if item.since >= earliest and reason in (None, item.reason) and tenant in (None, item.tenant)
        )
        return tuple(sorted(islice(items, limit), key=lambda item: (item.since, item.id)))

    def _list_heads(self, kind: str | None, step: str | None) -> Sequence[Head]:
        """Return the heads of held entities in the order of their last entries, which put them there."""
        heads = [
            head
            for held_kind, state in _HELD_STATES
            if kind in (None, held_kind)
            for head in self._engine.store.list_heads(
                HeadQuery(held_kind, state, step=step, limit=MAX_LISTED)
            )
        ]
        return sorted(heads, key=lambda head: head.seq)

    def show(self, item: str | QuarantineItem) -> QuarantineCase:
        """Return an item with its evidence, by its id, a prefix of it, or its entity."""
        return build_case(self._engine, self._find_item(item))

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
        if type(answer) is not ReconcileAnswer or answer.outcome == "unknown":
            raise UsageError("settle takes oncemore.applied(value) or oncemore.not_applied()")
        target = self._resolve_target(item, make_decision("settle", by, reason, version))
        # Raises for a value that cannot be encoded, before the decision is made.
        entity, decision = (
            target[0],
            target[1]._replace(more=operator_flow.describe_answer(answer, encode_result)),
        )
        entity, decision = self._authorize(entity, decision)
        head = load_head(self._engine.store, entity, self._engine.cipher)
        run = head.record
        if type(run) is not RunRecord or run.held_for != OUTCOME_UNKNOWN:
            raise _not_settleable_error(entity, run)
        if stale := find_staleness(head, decision):
            raise stale
        settled = answer._replace(decision_body=decision.decision_body)
        plan = make_recorded_plan(run)
        call = PreparedCall(entity, plan, cfg_hash=run.cfg_hash)
        try:
            run_decision(self._engine, operator_flow.settle_run(plan, call, settled, head))
        except UsageError:
            # settle_run found the run in another state than the check above: it has changed since.
            raise stale_decision(entity, "it was changed in this very moment") from None

    # ------------------------------------------------------------------------------------------------

    def _apply_decision(self, item: str | QuarantineItem, decision: OperatorDecision) -> None:
        entity, decision = self._authorize(*self._resolve_target(item, decision))
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

    def _authorize(self, entity: str, decision: OperatorDecision) -> tuple[str, OperatorDecision]:
        """Return a decision with the identity that makes it; sensitive data and the gate need a reviewer."""
        if load_roles(self._engine) is None and not is_deciding_by_credential():
            return entity, decision
        item = load_head(
            self._engine.store, entity, self._engine.cipher, ITEM_KINDS[entity.partition("/")[0]]
        )
        needed = find_item_role(self._engine, item.record)
        decider = authorize_decider(self._engine, decision.by, needed=needed)
        if decider.signer is None:
            return entity, decision._replace(by=decider.actor)
        # A signature is about this version: the decision is refused if the item changes before it is stored.
        details = decision.decision_body["decision"]
        action, reason, _ = (details.pop(name) for name in ("action", "reason", "actor"))
        signed = decider.make_decision(item, action, reason, self._engine.now(), details)
        more = {**decision.more, "signed": signed["signed"]}
        version = decision.version or item.version
        return entity, decision._replace(by=decider.actor, version=version, more=more)

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
        return ((head, release_artifact(head, decision)),)

    def _check_artifact_intact(self, ref: str) -> None:
        """Raise `UsageError` if the bytes of a quarantined artifact do not match its digest."""
        artifact = load_head(self._engine.store, ref, self._engine.cipher, ArtifactRecord).record
        if artifact is None or artifact.state != "QUARANTINED":
            return
        result = self._engine.artifact_store.verify_object(artifact.digest, artifact.size)
        if result != "valid":
            reason = result if isinstance(result, PolicyViolation) else f"{artifact.digest} is missing"
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
        kind, _, _ = reference.partition("/")
        head = self._engine.store.load_head(reference) if kind in ITEM_KINDS else None
        own = None if head is None else build_item(self._engine, head)
        # The name of an entity needs no search, however many items there are.
        if own is not None:
            return own
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


def find_item_role(engine: Engine, record: Any) -> str:
    """Return the role that a decision about an item needs: a reviewer for sensitive data and for the gate."""
    if getattr(record, "held_for", "") in GATE_HOLDS.values():
        return REVIEWER
    # Events and artifacts have the dataset of the run that they come from.
    if isinstance(record, EventRecord | ArtifactRecord):
        record = load_head(engine.store, record.run_entity, engine.cipher).record
    return find_needed_role(engine, getattr(record, "dataset", ""))


def _not_settleable_error(entity: str, run: Any) -> Exception:
    if not entity.startswith("run/"):
        return UsageError("only a run can be settled; release it, or reject it")
    if run is not None and is_held(run):
        return UsageError(
            f"the outcome of {run.step} is not in doubt ({run.held_for}); release, rerun or reject it"
        )
    return stale_decision(entity, "it is not in quarantine any more")


def make_recorded_plan(run: RunRecord) -> StepPlan:
    """Return the plan of a decision about a recorded run, made without importing its step."""
    return StepPlan(
        name=run.step,
        effect=run.effect,
        policy=STANDARD,
        classify=refuse_call,
        encode=encode_result,
        decode=refuse_call,
        describe=lambda error, failure: {},
    )


def _to_posix_seconds(since: datetime | float) -> float:
    if isinstance(since, int | float) and not isinstance(since, bool) and since >= 0:
        return float(since)
    if getattr(since, "tzinfo", None) is None:
        raise UsageError(f"since is {since!r}; it takes an aware datetime, or POSIX seconds")
    return since.timestamp()  # type: ignore[union-attr]
