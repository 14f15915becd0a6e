"""Switches and approvals as values, and the rules for them; no I/O.

A switch stops new attempts: all of them (`all_execution`), or those of one step, tenant or pipeline. An
operator turns it on, or a policy with `halt_scope: pipeline` (`control.permits`). Attempts that have
begun may end. All switches of a log are one entity, so that an attempt has a single version to compare.

An approval lets the attempts of one key begin. It is valid only for the key, arguments, step version, effect
and policy that the operator has reviewed, for a number of attempts, until a time.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.canonical_json import normalize_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

#: The entity that holds all switches of a log.
SWITCHES_ENTITY = "control/switches"
#: The name of the switch for all attempts, and the prefix of the switches of pipelines.
ALL_EXECUTION, PIPELINE = "all_execution", "pipeline:"
#: Why an attempt may not begin: a switch is on, the switches cannot be read, the log has moved to another
#: store, or the approval is missing.
SWITCH_ON, SWITCHES_UNKNOWN, LOG_MOVED, APPROVAL_NEEDED = (
    "switch",
    "control_state_unknown",
    "moved",
    "approval_needed",
)
#: Why a run waits: the autonomy matrix has paused it. An approval lets it begin all the same.
AUTONOMY_PAUSE = "autonomy_pause"
CLEAR, STOPPED = "CLEAR", "STOPPED"
GRANTED, REVOKED = "GRANTED", "REVOKED"
#: How many switches may be on at once.
MAX_SWITCHES = 1000


class SwitchBoard(Value):
    """The switches of a log.

    state     CLEAR, or STOPPED while a switch is on or the log has moved
    active    the switches that are on, by name, with actor, reason and time
    moved_to  the URL that the log has moved to; empty if it has not moved
    """

    state: str = CLEAR
    active: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - never mutated
    moved_to: str = ""


class Approval(Value):
    """An approval of the attempts of one key.

    state         GRANTED or REVOKED
    run_entity    the entity of the key's run
    policy        the digest of the policy
    last_attempt  the number of the last approved attempt
    expires_at    when the approval expires; 0: never
    """

    state: str = GRANTED
    run_entity: str = ""
    step: str = ""
    effect: str = ""
    input_hash: str = ""
    cfg_hash: str = ""
    policy: str = ""
    last_attempt: int = 0
    expires_at: float = 0.0
    by: str = ""
    reason: str = ""
    approved_at: float = 0.0


class ApprovalRequest(Value):
    """An attempt that needs an approval, as it would begin."""

    run_entity: str
    step: str
    effect: str
    input_hash: str
    cfg_hash: str
    policy: str
    attempt: int


def switch_name(step: str = "", tenant: str = "", pipeline: str = "") -> str:
    """Return the name of the switch for a step, a tenant, a pipeline, or all attempts."""
    if step:
        return f"step:{normalize_name(step)}"
    if pipeline:
        return PIPELINE + normalize_name(pipeline)
    return f"tenant:{normalize_name(tenant)}" if tenant else ALL_EXECUTION


def find_blocking_switch(control: SwitchBoard, steps: Iterable[str], tenant: str, pipeline: str = "") -> str:
    """Return the name of the switch that stops an attempt, or ""."""
    # Almost always true, and checked for every attempt, so it comes before any name is built.
    if control.state == CLEAR:
        return ""
    names = (
        ALL_EXECUTION,
        *(switch_name(step) for step in steps if step),
        switch_name("", tenant) if tenant else ALL_EXECUTION,
        switch_name(pipeline=pipeline) if pipeline else ALL_EXECUTION,
    )
    # An older version stored names as the operator typed them.
    on = {normalize_name(name): name for name in control.active}
    return next((on[name] for name in names if name in on), "")


def turn_switch_on(control: SwitchBoard, name: str, details: Mapping[str, Any]) -> SwitchBoard:
    """Return the switches after one was turned on; `details` has actor, reason and time."""
    return _make_board(control, {**control.active, name: dict(details)})


def add_pipeline_halt(
    control: SwitchBoard, pipeline: str, details: Mapping[str, Any]
) -> tuple[SwitchBoard, str]:
    """Return the switches after a pipeline was halted, and the name of the switch that halts it."""
    name = switch_name(pipeline=pipeline)
    # A halt must take effect even if the number of switches is at its limit, so it stops everything then.
    if name not in control.active and len(control.active) >= MAX_SWITCHES:
        name = ALL_EXECUTION
    return (control if name in control.active else turn_switch_on(control, name, details)), name


def turn_switch_off(control: SwitchBoard, name: str) -> SwitchBoard:
    """Return the switches after one was turned off."""
    active = {other: details for other, details in control.active.items() if normalize_name(other) != name}
    return _make_board(control, active)


def set_log_location(control: SwitchBoard, location: str) -> SwitchBoard:
    """Return the switches of a log that has moved to another store, or back ("")."""
    return _make_board(control, control.active, location)


def _make_board(
    control: SwitchBoard, active: dict[str, dict[str, Any]], moved_to: str | None = None
) -> SwitchBoard:
    moved_to = control.moved_to if moved_to is None else moved_to
    return SwitchBoard(STOPPED if active or moved_to else CLEAR, active, moved_to)


#: The fields in which an approval must match the attempt, and their names in messages.
_APPROVED_FIELDS = (
    ("run_entity", "key"),
    ("step", "step"),
    ("effect", "effect"),
    ("input_hash", "arguments"),
    ("cfg_hash", "version or config"),
    ("policy", "policy"),
)


def find_objection(approval: Approval | None, request: ApprovalRequest, now: float) -> str:
    """Return the reason why an approval does not cover an attempt, or ""."""
    if approval is None:
        return "it is not approved yet"
    if approval.state != GRANTED:
        return f"the approval of {approval.by} was revoked"
    if approval.expires_at and now >= approval.expires_at:
        return f"the approval of {approval.by} has expired"
    # Any difference invalidates the approval: the operator has not reviewed the changed call.
    differences = [
        word for name, word in _APPROVED_FIELDS if getattr(approval, name) != getattr(request, name)
    ]
    if differences:
        return f"{approval.by} approved it with another {', another '.join(differences)}"
    if request.attempt > approval.last_attempt:
        return (
            f"{approval.by} approved it up to attempt {approval.last_attempt}, and this is attempt "
            f"{request.attempt}"
        )
    return ""
