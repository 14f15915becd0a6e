"""Checks before every attempt of a durable step whether switches, approvals and datasets permit it.

The result contains the versions of the entities that were read. They are guards of the INTENT: if a switch or
an approval changes after the check, the store refuses the INTENT, and the check is repeated. So a cached
"all switches are off" is safe, while a switch that is on is read again before an attempt is refused. A store
with `checks_guards_late` writes the INTENT first, checks its guards afterwards, and gives the claim back if
one has changed (ADR 0021). If the switches cannot be read, no attempt begins. External switches
(`control.nats_switches`) are read every time. The datasets of an attempt are read with the switches, and are
guards as well; `governance.gate` judges them.

A policy with `halt_scope: pipeline` (CLASS-3) turns on the switch `pipeline:NAME` after an error that is not
retryable. The switch is written in the same batch as the outcome of the failed attempt, so that a crash
leaves both or neither. An operator releases it with `oncemore control switch off --pipeline NAME`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from oncemore._redact import masked_message
from oncemore.control.model import (
    CLEAR,
    LOG_MOVED,
    SWITCH_ON,
    SWITCHES_ENTITY,
    SWITCHES_UNKNOWN,
    Approval,
    SwitchBoard,
    add_pipeline_halt,
    find_blocking_switch,
)
from oncemore.events import ExecutionRefused
from oncemore.governance.dataset_model import DatasetRecord, dataset_entity
from oncemore.log.entry_codec import decode_head
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import RecordChange
from oncemore.policy.verdict import NEVER_RETRIED, decide_verdict, matches_class
from oncemore.steps.ops import LoadHead, Permission

if TYPE_CHECKING:
    from oncemore.log.record import RunRecord
    from oncemore.policy.model import Failure
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import AskPermission, Script
    from oncemore.steps.plan import StepPlan


#: The number of datasets that an engine remembers; all are dropped when there are more.
MAX_CACHED_DATASETS = 1000


class ExternalSwitches(Protocol):
    """Switches and approvals outside of the log, read before every attempt; raises if it cannot read them."""

    def load_switches(self, steps: tuple[str, ...], tenant: str) -> SwitchBoard:
        """Return the active switches that could stop an attempt."""

    def load_approval(self, key: str) -> Approval | None:
        """Return the approval of a key, or None."""

    def close(self) -> None:
        """Release the connection."""


def approval_entity(entity: str) -> str:
    """Return the entity of a run's approval."""
    return f"approval/{entity.removeprefix('run/')}"


class PermissionCheck:
    """Permission check of an engine, with a cache for the case that all switches are off.

    external  the switches outside of the log, or None
    """

    def __init__(self, external: ExternalSwitches | None = None) -> None:
        self.external = external
        #: The permission while all switches of the log are off; None if they must be read.
        self.cached: Permission | None = None
        #: Permissions with datasets, while neither the switches nor the datasets have changed.
        self._gated: dict[tuple[str, ...], Permission] = {}

    @property
    def has_external(self) -> bool:
        """Whether the check may take longer than a read of the store."""
        return self.external is not None

    @property
    def external_id(self) -> str:
        """An identifier of the external switches; empty without them."""
        return str(getattr(self.external, "url", self.external and id(self.external)) or "")

    def close(self) -> None:
        """Drop the cache, and close the external switches; a later check opens them again."""
        self.drop_cached()
        if self.external is not None:
            # The other system may be unreachable; close() must not fail because of that.
            with suppress(Exception):
                self.external.close()

    def drop_cached(self) -> None:
        """Drop the cache, so that the next check reads the switches and the datasets."""
        self.cached = None
        self._gated = {}

    def ask_permission(self, engine: Engine, op: AskPermission) -> Permission:
        """Return whether an attempt may begin."""
        cached = self.cached
        # Approvals and external switches are not cached; without them a check costs no read at all.
        if cached is not None and not (op.entity or op.datasets) and (self.external is None or not op.begins):
            return cached
        try:
            return self._evaluate_permission(engine, op)
        except Exception as error:  # noqa: BLE001 - after any error the switches are unknown: refuse
            text = f"{type(error).__name__}: {masked_message(error)}"
            engine.listener.notify(ExecutionRefused(SWITCHES_UNKNOWN, ", ".join(op.steps), text))
            return Permission({}, SWITCHES_UNKNOWN, error=error)

    def _evaluate_permission(self, engine: Engine, op: AskPermission) -> Permission:
        permission = self.cached or self._read_switches(engine, op)
        if permission.stop:
            return permission
        if op.begins and self.external is not None:
            board = self.external.load_switches(op.steps, op.tenant)
            name = find_blocking_switch(board, op.steps, op.tenant)
            if name:
                details = {**board.active[name], "kept_in": getattr(self.external, "url", "control=")}
                return Permission({}, SWITCH_ON, name, details)
        if op.datasets:
            permission = self._add_datasets(engine, op, permission)
        return permission if not op.entity else self._add_approval(engine, op, permission)

    def _read_switches(self, engine: Engine, op: AskPermission) -> Permission:
        """Read the switches of the log; cache the result if all are off."""
        version, control = load_switches(engine)
        guards = {SWITCHES_ENTITY: version}
        # Only this result may be cached: the guard of the INTENT detects when it is outdated.
        if control.state == CLEAR:
            self.cached = Permission(guards)
            return self.cached
        if control.moved_to:
            return Permission(guards, LOG_MOVED, control.moved_to)
        name = find_blocking_switch(control, op.steps, op.tenant, op.pipeline) if op.begins else ""
        return Permission(guards, SWITCH_ON, name, control.active[name]) if name else Permission(guards)

    def _add_approval(self, engine: Engine, op: AskPermission, permission: Permission) -> Permission:
        """Add the approval of a key, from the log or else from the external system."""
        name = approval_entity(op.entity)
        with InterruptShield():
            head = engine.store.load_head(name)
        approval: Approval | None = None if head is None else decode_head(head.head, Approval)
        if approval is None and self.external is not None:
            approval = self.external.load_approval(op.entity.removeprefix("run/"))
        # Version 0 guards against an approval that is written to the log after this read.
        guards = {**permission.guards, name: 0 if head is None else head.version}
        return permission._replace(guards=guards, approval=approval)

    def _add_datasets(self, engine: Engine, op: AskPermission, permission: Permission) -> Permission:
        """Add the datasets of an attempt, with their versions as guards.

        The result is cached: the guard of the INTENT, and of the entry that holds a run, detects when it is
        outdated, and the conflict drops the cache. A refusal without a write asks with `reread`.
        """
        gated = None if op.reread else self._gated.get(op.datasets)
        if gated is not None and gated.guards[SWITCHES_ENTITY] == permission.guards[SWITCHES_ENTITY]:
            return gated
        known = [load_dataset(engine, dataset) for dataset in op.datasets]
        versions = {
            dataset_entity(dataset): version for dataset, (version, _) in zip(op.datasets, known, strict=True)
        }
        if len(self._gated) >= MAX_CACHED_DATASETS:
            self._gated.clear()
        gated = self._gated[op.datasets] = permission._replace(
            guards={**permission.guards, **versions}, datasets=tuple(record for _, record in known)
        )
        return gated


def load_dataset(engine: Engine, dataset: str) -> tuple[int, DatasetRecord | None]:
    """Return the version and the record of a dataset; version 0 and None if it is not registered."""
    with InterruptShield():
        head = engine.store.load_head(dataset_entity(dataset))
    return (0, None) if head is None else (head.version, decode_head(head.head, DatasetRecord))


def load_switches(engine: Engine) -> tuple[int, SwitchBoard]:
    """Return the version and the switches of a log."""
    with InterruptShield():
        head = engine.store.load_head(SWITCHES_ENTITY)
    if head is None:
        return 0, _NO_SWITCHES
    return head.version, decode_head(head.head, SwitchBoard)


_NO_SWITCHES: Any = SwitchBoard()


def halt_pipeline(plan: StepPlan, run: RunRecord, failure: Failure, now: float) -> Script:
    """Return the change that halts the step's pipeline; empty if the error is retryable or it is halted.

    A `once` step with an unknown outcome halts its pipeline too if its error is not retryable.
    """
    # "pure" instead of the step's effect, so that the error class alone decides.
    if decide_verdict(failure, plan.policy, "pure") == "RETRYABLE":
        return ()
    head = yield LoadHead(SWITCHES_ENTITY, SwitchBoard)
    by = f"policy {plan.policy.name} {plan.policy.version}"
    # An error that the policy does not list is a doubt, and stops the pipeline like one that it forbids
    # (ADR 0060); the reason says which of the two it is.
    classes = plan.policy.classes
    is_listed = classes is None or matches_class(failure, classes.non_retryable)
    verb = "is not retryable" if is_listed or failure.code in NEVER_RETRIED else "the policy does not list"
    reason = f"{plan.name} failed with {failure.code or failure.kind}, which {verb}"
    before: SwitchBoard | None = head.record
    after, name = add_pipeline_halt(
        before or SwitchBoard(), plan.pipeline, {"by": by, "reason": reason, "at": now}
    )
    if after == before:
        return ()
    decision = {"action": "on", "switch": name, "reason": reason, "actor": by, "run_id": run.run_id}
    return ((head, RecordChange(("CONTROL", "DECISION"), before, after, {"decision": decision})),)
