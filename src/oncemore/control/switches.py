"""Turns switches on and off: `engine.switches`.

    engine.switches.on(reason="the ledger is wrong", by="operator")              stops all new attempts
    engine.switches.on(step="shop.pay", reason="the bank is down")               stops one step
    engine.switches.off(reason="the ledger is right again")                      lets waiting runs continue

Each decision is one entry in the log with actor, reason and time. `control.permits` reads them before every
attempt. Of two concurrent decisions the second is applied on top of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from oncemore._values import Value
from oncemore.control.model import (
    MAX_SWITCHES,
    SWITCHES_ENTITY,
    SWITCHES_UNKNOWN,
    SwitchBoard,
    switch_name,
    turn_switch_off,
    turn_switch_on,
)
from oncemore.control.moved_log import MAX_TRIES
from oncemore.control.permits import load_switches
from oncemore.control.review import check_reason
from oncemore.errors import NotPermitted, StaleDecision, UsageError
from oncemore.governance.identity import authorize_decider
from oncemore.log.entry_codec import build_write, decode_header, load_head, read_body
from oncemore.log.record import RecordChange
from oncemore.log.store import Batch, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.record import LoadedHead
    from oncemore.steps.engine import Engine

    DecisionMaker = Callable[[LoadedHead, float], dict[str, Any]]


class ActiveSwitch(Value):
    """A switch that is on: its name, actor, reason, and time in POSIX seconds (0: unknown).

    kept_in  the address of its bucket (`control=`); empty for a switch of the log
    """

    name: str
    by: str
    reason: str
    at: float
    kept_in: str = ""


class SwitchChange(Value):
    """One change of a switch; `action` is "on", "off" or "moved"."""

    action: str
    name: str
    by: str
    reason: str
    at: float


class Switches:
    """The switches of an engine's store: `engine.switches`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Switches of {self._engine.url}>"

    def on(
        self, *, reason: str, step: str = "", tenant: str = "", pipeline: str = "", by: str | None = None
    ) -> ActiveSwitch:
        """Turn on a switch: no new attempt begins for a step, a tenant, a pipeline, or at all.

        Attempts that have begun may end. Waiting runs do not fail and lose no attempt; they continue when
        the switch is turned off. A switch that is on already keeps its actor, reason and time.
        """
        name = _checked_switch_name(step, tenant, pipeline)
        text, decider = check_reason(reason), authorize_decider(self._engine, by)
        details = {"by": decider.actor, "reason": text, "at": self._engine.now()}

        def turn_on(control: SwitchBoard) -> SwitchBoard:
            _check_not_moved(control)
            # Every attempt may have to read the switches, so their number has a limit.
            if len(control.active) >= MAX_SWITCHES and name not in control.active:
                raise UsageError(f"{MAX_SWITCHES} switches are on; release some, or stop everything instead")
            return control if name in control.active else turn_switch_on(control, name, details)

        control = update_switches(
            self._engine,
            turn_on,
            lambda head, now: decider.make_decision(head, "on", text, now, {"switch": name}),
        )
        return _make_active_switch(name, control.active[name])

    def off(
        self, *, reason: str, step: str = "", tenant: str = "", pipeline: str = "", by: str | None = None
    ) -> bool:
        """Turn off a switch; return whether it was on."""
        name = _checked_switch_name(step, tenant, pipeline)
        text, decider = check_reason(reason), authorize_decider(self._engine, by)
        was_on = False

        def turn_off(control: SwitchBoard) -> SwitchBoard:
            nonlocal was_on
            _check_not_moved(control)
            after = turn_switch_off(control, name)
            # Set in every try: after a conflict, another operator may have turned the switch off.
            was_on = len(after.active) < len(control.active)
            return after

        update_switches(
            self._engine,
            turn_off,
            lambda head, now: decider.make_decision(head, "off", text, now, {"switch": name}),
        )
        return was_on

    def status(self) -> tuple[ActiveSwitch, ...]:
        """Return the active switches of the log, oldest first, then those of `control=`.

        Raise `NotPermitted` if `control=` cannot be read, because no attempt begins in that case.
        """
        external = self._engine.permissions.external
        switches = list_active_switches(load_switches(self._engine)[1])
        return switches if external is None else switches + _list_external_switches(external)

    def history(self) -> tuple[SwitchChange, ...]:
        """Return the changes of all switches, oldest first."""
        return tuple(self._read_changes())

    def _read_changes(self) -> Iterator[SwitchChange]:
        for entry in self._engine.store.read_entries(SWITCHES_ENTITY):
            decision = read_body(entry, self._engine.cipher).get("decision", {})
            if decision:
                yield SwitchChange(
                    action=decision["action"],
                    name=decision["switch"],
                    by=decision["actor"],
                    reason=decision["reason"],
                    at=decode_header(entry.header).at,
                )


def _checked_switch_name(step: str, tenant: str, pipeline: str) -> str:
    if len([name for name in (step, tenant, pipeline) if name]) > 1:
        raise UsageError("a switch is for a step, a tenant or a pipeline; turn on one for each")
    return switch_name(step, tenant, normalize("NFC", pipeline))


def _check_not_moved(control: SwitchBoard) -> None:
    if control.moved_to:
        raise UsageError(f"this log has moved to {control.moved_to}; turn switches there")


def list_active_switches(control: SwitchBoard) -> tuple[ActiveSwitch, ...]:
    """Return the active switches, oldest first."""
    switches = (_make_active_switch(name, details) for name, details in control.active.items())
    return tuple(sorted(switches, key=lambda switch: switch.at))


def _list_external_switches(external: Any) -> tuple[ActiveSwitch, ...]:
    """Return the active switches of `control=`; raise `NotPermitted` if they cannot be read."""
    address = str(getattr(external, "url", "control="))
    try:
        # An object of the caller may lack `all_switches`; it then shows only the switch for all attempts.
        control: SwitchBoard = getattr(external, "all_switches", lambda: external.load_switches((), ""))()
    except Exception as error:
        raise NotPermitted(
            f"the switches in {address} cannot be read ({type(error).__name__}: {error}); "
            "nothing begins until they can",
            SWITCHES_UNKNOWN,
        ) from error
    return tuple(switch._replace(kept_in=address) for switch in list_active_switches(control))


def _make_active_switch(name: str, details: dict[str, Any]) -> ActiveSwitch:
    return ActiveSwitch(name, details.get("by", ""), details.get("reason", ""), details.get("at", 0.0))


def update_switches(
    engine: Engine, update: Any, make_decision: DecisionMaker, extra_body: dict[str, Any] | None = None
) -> SwitchBoard:
    """Apply `update` to the switches of a log, again after each conflict; return the result.

    make_decision  head and time → the record of the decision
    """
    for _ in range(MAX_TRIES):
        head = load_head(engine.store, SWITCHES_ENTITY, engine.cipher, SwitchBoard)
        before: SwitchBoard | None = head.record
        after: SwitchBoard = update(before or SwitchBoard())
        # No entry without a change: the history lists only changes.
        if after == (before or SwitchBoard()):
            return after
        now = engine.now()
        body = {"decision": make_decision(head, now), **(extra_body or {})}
        change = RecordChange(("CONTROL", "DECISION"), before, after, body)
        write = build_write(SWITCHES_ENTITY, head.version, head.hash, change, now, engine.cipher)
        if isinstance(engine.store.append(Batch((write,))).wait(), Stored):
            # The guard of an INTENT would detect the change too, but only after a refused write.
            engine.permissions.drop_cached()
            return after
    raise StaleDecision(
        f"nothing was changed: switches changed {MAX_TRIES} times during the write; look at them first"
    )
