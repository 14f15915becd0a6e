"""The changes that the dashboard can make: one table for the forms of pages and for the JSON API.

Each action is an operation of the engine, with the signed-in user as the actor and a reason: one entry in the
log says who, when and why. Operations check again what they change, so that a page which shows an old state
cannot cause a wrong change.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.governance.role_model import OPERATOR, REVIEWER, VIEWER, is_permitted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.dashboard.app import Dashboard
    from oncemore.dashboard.sessions import DashboardUser
    from oncemore.steps.engine import Engine

    Fields = Mapping[str, Any]

MAX_FIELD_LENGTH = 16_384
#: The key of the verification among the computations of a dashboard.
VERIFICATION = "verify-ledger"


class ActionField(Value):
    """A field of an action; `kind` is text, number or json."""

    name: str
    meaning: str
    kind: str = "text"
    is_required: bool = True


class ActionCall(Value):
    """One call of an action: by whom, and with which checked fields."""

    dashboard: Dashboard
    user: DashboardUser
    fields: Fields

    @property
    def engine(self) -> Engine:
        """The engine that the action changes."""
        return self.dashboard.engine

    def text(self, name: str) -> str:
        """Return a field as text; empty if it was not given."""
        return str(self.fields.get(name, ""))

    @property
    def decision(self) -> dict[str, Any]:
        """The actor and the reason, as every operation takes them."""
        return {"by": self.user.name, "reason": self.text("reason")}


class DashboardAction(Value):
    """A change: the role that it needs, its fields, and the function that makes it and returns a sentence."""

    name: str
    needed_role: str
    summary: str
    fields: tuple[ActionField, ...]
    perform: Callable[[ActionCall], str]


def perform_action(dashboard: Dashboard, user: DashboardUser, action: DashboardAction, fields: Fields) -> str:
    """Check the fields of an action, make the change, and return a sentence about the result."""
    from oncemore.governance.identity import decide_as

    # The holder of a token decides with the identity of the token; anyone else as the user of this process.
    with decide_as(user.identity):
        return action.perform(ActionCall(dashboard, user, check_fields(action, fields)))


def check_fields(action: DashboardAction, fields: Fields) -> dict[str, Any]:
    """Return the fields of an action with their types; raise `UsageError` for a missing or wrong one."""
    known = {field.name: field for field in action.fields}
    # A misspelt name would otherwise be a missing value, or a decision without it.
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise UsageError(f"{action.name} has no field {unknown[0]!r:.60}; it has {', '.join(known)}")
    checked = {}
    for field in action.fields:
        value = fields.get(field.name)
        is_missing = value is None or (isinstance(value, str) and not value.strip())
        if is_missing and field.is_required:
            raise UsageError(f"{field.name} is missing: {field.meaning}")
        if not is_missing:
            checked[field.name] = _convert_field(field, value)
    return checked


def _convert_field(field: ActionField, value: Any) -> Any:
    """Return the value of a field; forms send text for all kinds."""
    if field.kind == "number":
        text = str(value).strip()
        if isinstance(value, bool) or not (text.isascii() and text.isdecimal() and len(text) < 12):
            raise UsageError(f"{field.name} is {value!r:.60}; it takes a whole number: {field.meaning}")
        return int(text)
    # The API sends JSON values as they are; a form sends their text.
    if field.kind == "json" and not isinstance(value, str):
        return value
    if not isinstance(value, str):
        raise UsageError(f"{field.name} is {value!r:.60}; it takes text: {field.meaning}")
    if len(value) > MAX_FIELD_LENGTH:
        raise UsageError(f"{field.name} has {len(value):,} characters; it takes up to {MAX_FIELD_LENGTH:,}")
    if field.kind == "json":
        try:
            return json.loads(value)
        except ValueError as error:
            raise UsageError(f"{field.name} is not JSON: {error}; a text needs quotes of its own") from None
    return value.strip()


# Quarantine -----------------------------------------------------------------------------------------


def _check_reviewer(call: ActionCall, entity: str) -> None:
    """Refuse a decision about sensitive data, or about a run that the gate holds, without a reviewer."""
    from oncemore.control.quarantine import find_item_role
    from oncemore.control.quarantine_items import ITEM_KINDS
    from oncemore.errors import NotPermitted
    from oncemore.governance.identity import ROLE_MISSING
    from oncemore.log.entry_codec import load_head

    kind = ITEM_KINDS.get(entity.partition("/")[0])
    if kind is None:
        raise UsageError(f"item is {entity!r:.80}; it takes run/KEY, artifact/REFERENCE or event/ID")
    record = load_head(call.engine.store, entity, call.engine.cipher, kind).record
    needed = find_item_role(call.engine, record)
    if not is_permitted(call.user.role, needed):
        raise NotPermitted(call.dashboard.explain_refusal(call.user, needed), ROLE_MISSING)


def _decide_item(call: ActionCall, verb: str, **more: Any) -> str:
    entity, version = call.text("item"), int(call.fields.get("version", 0))
    _check_reviewer(call, entity)
    getattr(call.engine.quarantine, verb)(entity, version=version, **call.decision, **more)
    return entity


def release_item(call: ActionCall) -> str:
    """Release an item in quarantine."""
    _decide_item(call, "release")
    return "Released. A worker or the next call continues."


def reject_item(call: ActionCall) -> str:
    """Reject an item in quarantine."""
    _decide_item(call, "reject")
    return "Rejected. It will not be tried again."


def rerun_item(call: ActionCall) -> str:
    """Continue a held run with more attempts."""
    extra = int(call.fields.get("extra_attempts", 1))
    _decide_item(call, "rerun", extra_attempts=extra)
    return f"The run continues with {extra} more attempt{'s' * (extra != 1)}."


def settle_item(call: ActionCall) -> str:
    """Record whether an attempt with an unknown outcome took effect."""
    from oncemore.steps.reconcile import applied, not_applied

    outcome = call.text("outcome")
    if outcome not in ("applied", "not_applied"):
        raise UsageError(f"outcome is {outcome!r:.60}; it takes applied or not_applied")
    answer = applied(call.fields.get("value")) if outcome == "applied" else not_applied()
    entity = call.text("item")
    _check_reviewer(call, entity)
    call.engine.quarantine.settle(entity, answer, version=int(call.fields.get("version", 0)), **call.decision)
    return "Settled as done." if outcome == "applied" else "Settled as not done; it continues."


# Approvals and escalations --------------------------------------------------------------------------


def approve_run(call: ActionCall) -> str:
    """Approve a run that waits for an approval."""
    state = call.engine.approvals.approve(call.text("run"), **call.decision)
    return f"Approved up to attempt {state.upto}."


def revoke_approval(call: ActionCall) -> str:
    """Revoke an approval."""
    call.engine.approvals.revoke(call.text("run"), **call.decision)
    return "The approval is revoked."


def acknowledge_escalation(call: ActionCall) -> str:
    """Acknowledge an escalation; one to the council needs a reviewer."""
    from oncemore.errors import NotPermitted
    from oncemore.governance.dataset_model import CARE_ESCALATION
    from oncemore.governance.identity import ROLE_MISSING

    # Looked up first: the role depends on the kind of the escalation.
    found = call.engine.escalations.show(call.text("escalation")).escalation
    needed = REVIEWER if found.kind == CARE_ESCALATION else OPERATOR
    if not is_permitted(call.user.role, needed):
        raise NotPermitted(call.dashboard.explain_refusal(call.user, needed), ROLE_MISSING)
    call.engine.escalations.acknowledge(found, **call.decision)
    return f"Escalation {found.id} is acknowledged."


def escalate_run(call: ActionCall) -> str:
    """Open an escalation about a failed or quarantined run."""
    from oncemore.queries.runs import find_run

    found = find_run(call.engine.store, call.text("run"))
    opened = call.engine.escalations.open(found.entity, **call.decision)
    return f"Opened {opened.kind} {opened.id} for {opened.role}."


# Runs -----------------------------------------------------------------------------------------------


def cancel_run(call: ActionCall) -> str:
    """Let no further attempt of a run begin."""
    from oncemore.control.run_decisions import cancel_recorded_run
    from oncemore.queries.runs import find_run

    found = find_run(call.engine.store, call.text("run"))
    record = cancel_recorded_run(call.engine, found.entity, found.run_id, **call.decision)
    if record.state == "RUNNING":
        return "Cancelled: the running attempt may end, and no further one begins."
    return "Cancelled: no further attempt begins."


def rerun_failed(call: ActionCall) -> str:
    """Begin a new run of failed work, for a worker."""
    from oncemore.control.run_decisions import reopen_recorded_run
    from oncemore.queries.runs import find_run

    found = find_run(call.engine.store, call.text("run"))
    record = reopen_recorded_run(call.engine, found.entity, found.run_id, **call.decision)
    return f"A new run of {record.step} is pending: a worker that knows the step takes it."


def signal_run(call: ActionCall) -> str:
    """Send a signal to a workflow."""
    from oncemore.queries.step_commands import signal_run as send_signal

    value = call.fields.get("value")
    sent = send_signal(
        call.engine,
        call.text("run"),
        call.text("signal"),
        None if value is None else json.dumps(value),
        signal_id=None,
        by=call.user.name,
    )
    return "The signal is recorded." if sent.is_new else "The signal was recorded before."


# Switches and limits --------------------------------------------------------------------------------


def _switch_target(call: ActionCall) -> dict[str, str]:
    """Return the step, tenant or pipeline that a switch is for; empty for everything."""
    scope, name = call.text("scope") or "all", call.text("name")
    if scope not in ("all", "step", "tenant", "pipeline"):
        raise UsageError(f"scope is {scope!r:.60}; it takes all, step, tenant or pipeline")
    if (scope == "all") == bool(name):
        raise UsageError("a switch for a step, a tenant or a pipeline needs its name; one for all has none")
    return {} if scope == "all" else {scope: name}


def turn_switch_on(call: ActionCall) -> str:
    """Turn on a switch: no new attempt begins."""
    switch = call.engine.switches.on(**_switch_target(call), **call.decision)
    return f"The switch {switch.name} is on: no new attempt begins there."


def turn_switch_off(call: ActionCall) -> str:
    """Turn off a switch: waiting runs continue."""
    was_on = call.engine.switches.off(**_switch_target(call), **call.decision)
    return "The switch is off: waiting runs continue." if was_on else "The switch was off already."


def reset_breaker(call: ActionCall) -> str:
    """Close a breaker."""
    from oncemore.queries import limits

    view = limits.reset_breaker(call.engine, call.text("breaker"), call.text("reason"), call.user.name)
    return f"The breaker {view.name} is {view.state.lower()}."


def release_resource(call: ActionCall) -> str:
    """End the cooldown of a resource."""
    record = call.engine.cooldowns.release(call.text("resource"), **call.decision)
    return f"{record.resource} can be requested again."


# Ledger ---------------------------------------------------------------------------------------------


def verify_ledger(call: ActionCall) -> str:
    """Start to verify the log and its checkpoints; the page of the ledger shows progress and result."""
    from oncemore.queries.ledger import load_ledger_keys, verify_now

    engine, keys = call.engine, load_ledger_keys()
    is_new = call.dashboard.tasks.start_task(
        VERIFICATION, lambda progress: verify_now(engine, keys, progress), call.user.name
    )
    return "The log is being verified." if is_new else "The log is being verified already."


# The table ------------------------------------------------------------------------------------------

REASON = ActionField("reason", "say why; it is recorded")
ITEM = ActionField("item", "the entity of the item, such as run/KEY")
VERSION = ActionField(
    "version", "the version that was looked at; another one is refused", "number", is_required=False
)
RUN = ActionField("run", "the id or the key of a run")
SCOPE = (
    ActionField("scope", "all, step, tenant or pipeline", is_required=False),
    ActionField("name", "the name of the step, tenant or pipeline", is_required=False),
)
_VALUE = ActionField("value", "a JSON value", "json", is_required=False)

ACTIONS: dict[str, DashboardAction] = {
    action.name: action
    for action in (
        DashboardAction(
            "release", OPERATOR, "Release an item in quarantine", (ITEM, VERSION, REASON), release_item
        ),
        DashboardAction(
            "reject", OPERATOR, "Reject an item in quarantine", (ITEM, VERSION, REASON), reject_item
        ),
        DashboardAction(
            "rerun",
            OPERATOR,
            "Continue a held run with more attempts",
            (ITEM, VERSION, ActionField("extra_attempts", "1 to 1000", "number", is_required=False), REASON),
            rerun_item,
        ),
        DashboardAction(
            "settle",
            OPERATOR,
            "Record whether an unknown attempt took effect",
            (ITEM, VERSION, ActionField("outcome", "applied or not_applied"), _VALUE, REASON),
            settle_item,
        ),
        DashboardAction("approve", REVIEWER, "Approve a waiting run", (RUN, REASON), approve_run),
        DashboardAction("revoke", OPERATOR, "Revoke an approval", (RUN, REASON), revoke_approval),
        DashboardAction(
            "acknowledge",
            OPERATOR,
            "Acknowledge an escalation",
            (ActionField("escalation", "the id of an escalation"), REASON),
            acknowledge_escalation,
        ),
        DashboardAction("escalate", OPERATOR, "Open an escalation about a run", (RUN, REASON), escalate_run),
        DashboardAction("cancel", OPERATOR, "Cancel a run", (RUN, REASON), cancel_run),
        DashboardAction("rerun-failed", OPERATOR, "Run failed work again", (RUN, REASON), rerun_failed),
        DashboardAction(
            "signal",
            OPERATOR,
            "Send a signal to a workflow",
            (RUN, ActionField("signal", "the name of the signal"), _VALUE),
            signal_run,
        ),
        DashboardAction("switch-on", OPERATOR, "Turn on a switch", (*SCOPE, REASON), turn_switch_on),
        DashboardAction("switch-off", OPERATOR, "Turn off a switch", (*SCOPE, REASON), turn_switch_off),
        DashboardAction(
            "reset-breaker",
            OPERATOR,
            "Close a breaker",
            (ActionField("breaker", "the name of a breaker"), REASON),
            reset_breaker,
        ),
        DashboardAction("verify-ledger", VIEWER, "Verify the log and its checkpoints", (), verify_ledger),
        DashboardAction(
            "release-resource",
            OPERATOR,
            "End the cooldown of a resource",
            (ActionField("resource", "the name of a resource"), REASON),
            release_resource,
        ),
    )
}
