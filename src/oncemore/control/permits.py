"""CONTROLS: what people have said about attempts that have not begun, as an engine knows it.

Every attempt of a durable step is asked for here before it begins, on whatever path it came: a first call, a
retry, a crash that is made good, a worker, an order that was handed in. The answer names the versions of what
was read, and those are guards of the INTENT: if somebody has thrown a switch or revoked an approval since,
the store itself refuses the INTENT, and it is asked again. So what is known may be old and never wrong:

    a switch is off, as far as is known    the INTENT's guard makes sure that it still is
    a switch is on, as far as is known     nothing is written, so it is read anew before anybody is refused

and a log that has no switch costs no reading at all. A store that `looks_late` writes the INTENT first and
looks at its guards then: where one has moved, the claim is given back before anything has begun (ADR 0021).

What cannot be read means no. Where other systems keep switches too (`Elsewhere`, see
`control.nats_switches`), they
are asked every time, and whatever stops an attempt there or here stops it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from oncemore.control.model import CLEAR, CONTROL, MOVED, SWITCHED, UNKNOWN, Approval, Control, stops
from oncemore.log.entry_codec import head_of
from oncemore.log.interrupt_shield import Shield
from oncemore.steps.ops import Permission

if TYPE_CHECKING:
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Permit


class Elsewhere(Protocol):
    """Where else people say what may begin: asked before every attempt, it raises if it cannot tell."""

    def switches(self, steps: tuple[str, ...], tenant: str) -> Control:
        """Return the switches that are on, of those that could stop an attempt."""

    def approval(self, key: str) -> Approval | None:
        """Return what was approved of a key, or None."""

    def close(self) -> None:
        """Let go of it."""


def approval_of(entity: str) -> str:
    """Return the entity that says what was approved of a run."""
    return f"approval/{entity.removeprefix('run/')}"


class Controls:
    """What an engine knows of its switches; `elsewhere` is asked too."""

    def __init__(self, elsewhere: Elsewhere | None = None) -> None:
        self.elsewhere = elsewhere
        self._clear: Permission | None = None

    @property
    def waits(self) -> bool:
        """Whether asking may take longer than a look into the store."""
        return self.elsewhere is not None

    @property
    def where(self) -> str:
        """What tells one place from another that is asked besides the store."""
        return str(getattr(self.elsewhere, "url", self.elsewhere and id(self.elsewhere)) or "")

    def close(self) -> None:
        """Let go of whom else is asked; whoever asks again begins anew."""
        self.forget()
        if self.elsewhere is not None:
            with suppress(Exception):  # it may be what does not answer
                self.elsewhere.close()

    def forget(self) -> None:
        """Read anew the next time."""
        self._clear = None

    def permit(self, engine: Engine, op: Permit) -> Permission:
        """Say whether an attempt may begin."""
        known = self._clear
        if known is not None and not op.entity and (self.elsewhere is None or not op.begins):
            return known
        try:
            return self._asked(engine, op)
        except Exception as error:  # noqa: BLE001 - whatever it is: what cannot be known means no
            return Permission({}, UNKNOWN, error=error)

    def _asked(self, engine: Engine, op: Permit) -> Permission:
        known = self._clear or self._read(engine, op)
        if known.stop:
            return known
        if op.begins and self.elsewhere is not None:
            there = self.elsewhere.switches(op.steps, op.tenant)
            name = stops(there, op.steps, op.tenant)
            if name:
                told = {**there.on[name], "kept_in": getattr(self.elsewhere, "url", "control=")}
                return Permission({}, SWITCHED, name, told)
        return known if not op.entity else self._approved(engine, op, known)

    def _read(self, engine: Engine, op: Permit) -> Permission:
        """Read the switches; where all are off, that is remembered."""
        version, control = read(engine)
        guards = {CONTROL: version}
        if control.state == CLEAR:
            self._clear = Permission(guards)
            return self._clear
        if control.moved:
            return Permission(guards, MOVED, control.moved)
        name = stops(control, op.steps, op.tenant, op.pipeline) if op.begins else ""
        return Permission(guards, SWITCHED, name, control.on[name]) if name else Permission(guards)

    def _approved(self, engine: Engine, op: Permit, known: Permission) -> Permission:
        """Add what was approved of a key: here, or else elsewhere."""
        name = approval_of(op.entity)
        with Shield():
            head = engine.store.head(name)
        approval: Approval | None = None if head is None else head_of(head.head, Approval)
        if approval is None and self.elsewhere is not None:
            approval = self.elsewhere.approval(op.entity.removeprefix("run/"))
        guards = {**known.guards, name: 0 if head is None else head.version}
        return Permission(guards, approval=approval)


def read(engine: Engine) -> tuple[int, Control]:
    """Return the switches of a log, and their version."""
    with Shield():
        head = engine.store.head(CONTROL)
    if head is None:
        return 0, _NOTHING
    return head.version, head_of(head.head, Control)


_NOTHING: Any = Control()
