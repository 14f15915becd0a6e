"""CONTROL: what people say about work that has not begun: switches stop it, approvals let it through.

A *switch* stands for all attempts (`all_execution`), for those of one step, of one tenant or of one pipeline.
People throw it, and so does a policy with `halt_scope: pipeline` (`control.pipeline_halt`). While it is on,
none of
them begins; what is under way may end. All switches of a log are one entity, because every attempt is
compared with it when it begins: one version to compare is as cheap as it gets.

An *approval* lets the attempts of one key begin, of a step that asks for one. It holds for what the person
has seen and for nothing else: the key, the arguments, the step's version, its effect, the policy, so many
attempts, until a time. What has changed since is not approved.

Nothing here reads or writes: what is known comes in, what follows from it goes out.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.canonical_json import normalize_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

#: The entity of all switches of a log.
CONTROL = "control/switches"
#: The switch of all attempts, and what the switch of a pipeline begins with.
ALL, PIPELINE = "all_execution", "pipeline:"
#: Why an attempt does not begin: a switch is on, what people have said cannot be known, the log is elsewhere
#: now, or nobody has approved it.
SWITCHED, UNKNOWN, MOVED, NEEDED = "switch", "control_state_unknown", "moved", "approval_needed"
CLEAR, STOPPED = "CLEAR", "STOPPED"
GRANTED, REVOKED = "GRANTED", "REVOKED"
#: How many switches may be on at once.
MOST_SWITCHES = 1000


class Control(Value):
    """The switches of a log.

    state  CLEAR, or STOPPED while a switch is on or the log has moved
    on     by name, those that are on: who threw it, why and when
    moved  where the log has gone; empty while it is here
    """

    state: str = CLEAR
    on: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - nobody changes it
    moved: str = ""


class Approval(Value):
    """What somebody has approved: the attempts of one key, as they were seen.

    state       GRANTED or REVOKED
    run         the entity of the key
    policy      the digest of the policy
    upto        the last attempt that it covers, as the key counts them
    expires     from when on it does not hold any more; 0: never
    """

    state: str = GRANTED
    run: str = ""
    step: str = ""
    effect: str = ""
    input_hash: str = ""
    cfg_hash: str = ""
    policy: str = ""
    upto: int = 0
    expires: float = 0.0
    by: str = ""
    reason: str = ""
    at: float = 0.0


class Wanted(Value):
    """An attempt that needs an approval, as it would begin."""

    run: str
    step: str
    effect: str
    input_hash: str
    cfg_hash: str
    policy: str
    attempt: int


def switch_name(step: str = "", tenant: str = "", pipeline: str = "") -> str:
    """Return what a switch is called: that of a step, of a tenant, of a pipeline, or of everything."""
    if step:
        return f"step:{normalize_name(step)}"
    if pipeline:
        return PIPELINE + normalize_name(pipeline)
    return f"tenant:{normalize_name(tenant)}" if tenant else ALL


def stops(control: Control, steps: Iterable[str], tenant: str, pipeline: str = "") -> str:
    """Return the name of the switch that keeps an attempt from beginning; empty if none does."""
    if control.state == CLEAR:
        return ""
    names = (
        ALL,
        *(switch_name(step) for step in steps if step),
        switch_name("", tenant) if tenant else ALL,
        switch_name(pipeline=pipeline) if pipeline else ALL,
    )
    on = {normalize_name(name): name for name in control.on}  # an older version kept them as they were typed
    return next((on[name] for name in names if name in on), "")


def turned_on(control: Control, name: str, told: Mapping[str, Any]) -> Control:
    """Return the switches after one was thrown; `told` says who, why and when."""
    return _after(control, {**control.on, name: dict(told)})


def halted(control: Control, pipeline: str, told: Mapping[str, Any]) -> tuple[Control, str]:
    """Return the switches after a pipeline was halted, and the name of the switch that halts it.

    Where so many switches are on that there is no room for another, everything is stopped: a halt is never
    left out.
    """
    name = switch_name(pipeline=pipeline)
    if name not in control.on and len(control.on) >= MOST_SWITCHES:
        name = ALL
    return (control if name in control.on else turned_on(control, name, told)), name


def turned_off(control: Control, name: str) -> Control:
    """Return the switches after one was released."""
    kept = {other: told for other, told in control.on.items() if normalize_name(other) != name}
    return _after(control, kept)


def moved_to(control: Control, where: str) -> Control:
    """Return the switches of a log that is elsewhere from now on, or here again."""
    return _after(control, control.on, where)


def _after(control: Control, on: dict[str, dict[str, Any]], moved: str | None = None) -> Control:
    moved = control.moved if moved is None else moved
    return Control(STOPPED if on or moved else CLEAR, on, moved)


#: What an approval was given for, and how people call it.
_BOUND = (
    ("run", "key"),
    ("step", "step"),
    ("effect", "effect"),
    ("input_hash", "arguments"),
    ("cfg_hash", "version or config"),
    ("policy", "policy"),
)


def objection(approval: Approval | None, wanted: Wanted, now: float) -> str:
    """Say why an approval does not count for an attempt; empty if it does."""
    if approval is None:
        return "nobody has approved it"
    if approval.state != GRANTED:
        return f"the approval of {approval.by} was revoked"
    if approval.expires and now >= approval.expires:
        return f"the approval of {approval.by} has expired"
    differs = [word for name, word in _BOUND if getattr(approval, name) != getattr(wanted, name)]
    if differs:
        return f"{approval.by} approved it with another {', another '.join(differs)}"
    if wanted.attempt > approval.upto:
        return (
            f"{approval.by} approved it up to attempt {approval.upto}, and this is attempt {wanted.attempt}"
        )
    return ""
