"""Turns switches on and off, and grants and revokes approvals.

    engine.switches.on(reason="the ledger is wrong", by="operator")              stops all new attempts
    engine.switches.on(step="shop.pay", reason="the bank is down")               stops one step
    engine.switches.off(reason="the ledger is right again")                      lets waiting runs continue

    engine.approvals.approve(run, reason="seen, 40 parcels", by="operator")    lets one run begin

Each decision is one entry in the log with actor, reason and time. `control.permits` reads them before every
attempt. Of two concurrent decisions the second is applied on top of the first, or refused as stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from oncemore._values import Value
from oncemore.control.model import (
    APPROVAL_NEEDED,
    GRANTED,
    MAX_SWITCHES,
    REVOKED,
    SWITCHES_ENTITY,
    SWITCHES_UNKNOWN,
    Approval,
    ApprovalRequest,
    SwitchBoard,
    switch_name,
    turn_switch_off,
    turn_switch_on,
)
from oncemore.control.moved_log import append_if_not_moved
from oncemore.control.permits import approval_entity, load_switches
from oncemore.control.review import (
    MAX_REASON_LENGTH,
    OperatorDecision,
    check_text,
    resume_run,
    stale_decision,
)
from oncemore.errors import NotPermitted, StaleDecision, UsageError
from oncemore.log.entry_codec import HELD, build_write, decode_head, decode_header, load_head, read_body
from oncemore.log.record import NOWHERE, RecordChange, RunRecord
from oncemore.log.store import Batch, HeadQuery, Stored
from oncemore.maintenance.erase import find_run
from oncemore.maintenance.tasks import resolve_actor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import LoadedHead

MAX_TRIES = 20
MAX_LISTED = 100_000
#: The default and the maximum validity of an approval.
DEFAULT_EXPIRES_S, MAX_EXPIRES_S = 86_400.0, 366 * 86_400.0
#: The minimum length of an abbreviated id, and the length of a full one.
MIN_ID_LENGTH, FULL_ID_LENGTH = 4, 36


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
        text, actor = check_text("reason", reason, MAX_REASON_LENGTH, "say why"), resolve_actor(by)
        details = {"by": actor, "reason": text, "at": self._engine.now()}

        def turn_on(control: SwitchBoard) -> SwitchBoard:
            _check_not_moved(control)
            # Every attempt may have to read the switches, so their number has a limit.
            if len(control.active) >= MAX_SWITCHES and name not in control.active:
                raise UsageError(f"{MAX_SWITCHES} switches are on; release some, or stop everything instead")
            return control if name in control.active else turn_switch_on(control, name, details)

        control = update_switches(
            self._engine, turn_on, {"action": "on", "switch": name, "reason": text, "actor": actor}
        )
        return _make_active_switch(name, control.active[name])

    def off(
        self, *, reason: str, step: str = "", tenant: str = "", pipeline: str = "", by: str | None = None
    ) -> bool:
        """Turn off a switch; return whether it was on."""
        name = _checked_switch_name(step, tenant, pipeline)
        text, actor = check_text("reason", reason, MAX_REASON_LENGTH, "say why"), resolve_actor(by)
        was_on = False

        def turn_off(control: SwitchBoard) -> SwitchBoard:
            nonlocal was_on
            _check_not_moved(control)
            after = turn_switch_off(control, name)
            # Set in every try: after a conflict, another operator may have turned the switch off.
            was_on = len(after.active) < len(control.active)
            return after

        decision = {"action": "off", "switch": name, "reason": text, "actor": actor}
        update_switches(self._engine, turn_off, decision)
        return was_on

    def status(self) -> tuple[ActiveSwitch, ...]:
        """Return the active switches of the log, oldest first, then those of `control=`.

        Raise `NotPermitted` if `control=` cannot be read, because no attempt begins in that case.
        """
        external = self._engine.permissions.external
        switches = list_active_switches(load_switches(self._engine)[1])
        return switches if external is None else switches + _thrown_elsewhere(external)

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


def _thrown_elsewhere(external: Any) -> tuple[ActiveSwitch, ...]:
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
    engine: Engine, update: Any, decision: dict[str, Any], extra_body: dict[str, Any] | None = None
) -> SwitchBoard:
    """Apply `update` to the switches of a log, again after each conflict; return the result."""
    for _ in range(MAX_TRIES):
        head = load_head(engine.store, SWITCHES_ENTITY, engine.cipher, SwitchBoard)
        before: SwitchBoard | None = head.record
        after: SwitchBoard = update(before or SwitchBoard())
        # No entry without a change: the history lists only changes.
        if after == (before or SwitchBoard()):
            return after
        body = {"decision": decision, **(extra_body or {})}
        change = RecordChange(("CONTROL", "DECISION"), before, after, body)
        write = build_write(SWITCHES_ENTITY, head.version, head.hash, change, engine.now(), engine.cipher)
        if isinstance(engine.store.append(Batch((write,))).wait(), Stored):
            # The guard of an INTENT would detect the change too, but only after a refused write.
            engine.permissions.drop_cached()
            return after
    raise StaleDecision(
        f"nothing was changed: switches changed {MAX_TRIES} times during the write; look at them first"
    )


# Approvals ------------------------------------------------------------------------------------------


class PendingApproval(Value):
    """A run that waits for an approval; `reason` says why its approval is missing or invalid."""

    run_id: str
    key: str
    step: str
    reason: str
    since: float
    arguments: Any


class ApprovalState(Value):
    """The current state of an approval.

    state  GRANTED, REVOKED or EXPIRED
    upto   the number of the last approved attempt
    """

    key: str
    step: str
    state: str
    by: str
    reason: str
    at: float
    expires: float
    upto: int


class Approvals:
    """The approvals of an engine's store: `engine.approvals`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Approvals of {self._engine.url}>"

    def list_waiting(self) -> tuple[PendingApproval, ...]:
        """Return the runs that wait for an approval, longest waiting first."""
        from oncemore.steps.history import find_opening

        engine, waiting = self._engine, []
        for head in engine.store.list_heads(HeadQuery("run", HELD, limit=MAX_LISTED)):
            run: RunRecord = decode_head(head.head)
            if run.held_for == APPROVAL_NEEDED:
                entries = list(engine.store.read_entries(head.entity))
                # The last entry holds the run and says why; the first ones have its arguments.
                last = entries[-1]
                body = read_body(last, engine.cipher)
                opening = find_opening(iter(entries), engine.cipher)
                waiting.append(
                    PendingApproval(
                        run_id=run.run_id,
                        key=head.entity.removeprefix("run/"),
                        step=run.step,
                        reason=body.get("error", {}).get("message", ""),
                        since=decode_header(last.header).at,
                        arguments=opening.get("arguments"),
                    )
                )
        return tuple(sorted(waiting, key=lambda pending: (pending.since, pending.run_id)))

    def list(self) -> tuple[ApprovalState, ...]:
        """Return all approvals, oldest first."""
        now = self._engine.now()
        heads = self._engine.store.list_heads(HeadQuery("approval", limit=MAX_LISTED))
        states = [_approval_state(decode_head(head.head, Approval), now) for head in heads]
        return tuple(sorted(states, key=lambda state: (state.at, state.key)))

    def approve(
        self, run: Any, *, reason: str, by: str | None = None, expires: float | None = None
    ) -> ApprovalState:
        """Approve a run that waits for an approval, exactly as it was when it was held.

        run      a `Run`, its id, its key, or a prefix of one of them
        expires  the validity in seconds; a day by default
        """
        head, request = self._load_waiting_run(run)
        return grant_approval(
            engine=self._engine,
            request=request,
            head=head,
            attempts=head.record.max_attempts - head.record.attempt_count,
            reason=reason,
            by=by,
            expires=expires,
        )

    def build_approval(
        self, run: Any, *, reason: str, by: str | None = None, expires: float | None = None
    ) -> Approval:
        """Return the approval that a run needs without writing it, for an external system to store."""
        head, request = self._load_waiting_run(run)
        return build_approval(
            request,
            head.record.max_attempts - head.record.attempt_count,
            self._engine.now(),
            reason,
            by,
            expires,
        )

    def _load_waiting_run(self, run: Any) -> tuple[LoadedHead, ApprovalRequest]:
        """Return a run that waits for an approval, and the request that the approval must match."""
        head = load_head(self._engine.store, self._resolve_run(run), self._engine.cipher)
        if (
            head.record is None
            or head.record.held_for != APPROVAL_NEEDED
            or "wanted" not in (head.body or {})
        ):
            name = f"{head.record.step} {head.record.run_id}" if head.record is not None else str(run)
            raise StaleDecision(
                f"{name} does not wait for an approval; oncemore approve --list shows what does"
            )
        return head, ApprovalRequest(**(head.body or {})["wanted"])

    def revoke(self, run: Any, *, reason: str, by: str | None = None) -> ApprovalState:
        """Revoke an approval; an attempt that has begun under it may end."""
        engine, actor = self._engine, resolve_actor(by)
        text = check_text("reason", reason, MAX_REASON_LENGTH, "say why")
        entity = approval_entity(self._resolve_run(run))
        head = load_head(engine.store, entity, engine.cipher, Approval)
        if head.record is None or head.record.state != GRANTED:
            raise StaleDecision(
                f"there is no approval of {run} to revoke; oncemore approve --list shows them"
            )
        after = head.record._replace(state=REVOKED)
        body = {"decision": {"action": "revoke", "reason": text, "actor": actor}}
        _append_changes(engine, head, RecordChange(("APPROVAL", "DECISION"), head.record, after, body))
        return _approval_state(after, engine.now())

    def _resolve_run(self, reference: Any) -> str:
        """Return the entity of a run, by the run itself, its id, its key, or a prefix of one of them."""
        text = str(getattr(reference, "key", reference)).removeprefix("run/")
        # Waiting runs come first: an operator most often approves one of these by a short id.
        waiting = [
            pending
            for pending in self.list_waiting()
            if len(text) >= MIN_ID_LENGTH and pending.run_id.startswith(text)
        ]
        if len(waiting) == 1:
            return f"run/{waiting[0].key}"
        if waiting:
            raise UsageError(f"{len(waiting)} runs that wait begin with {text!r}; give more of the id")
        # Approvals have no run id, so that revoke() finds them by a prefix of the key.
        heads = self._engine.store.list_heads(
            HeadQuery("approval", limit=MAX_LISTED, prefix=f"approval/{text}")
        )
        entities = [head.entity for head in heads] if len(text) >= MIN_ID_LENGTH else []
        if len(entities) == 1:
            return f"run/{entities[0].removeprefix('approval/')}"
        # The full id of a run that does not wait: the caller reports that, instead of an unknown id.
        if len(text) == FULL_ID_LENGTH:
            quoted_id = f'"{text}"'.encode()
            for head in self._engine.store.list_heads(HeadQuery("run", limit=1, head_contains=quoted_id)):
                return head.entity
        return find_run(self._engine, reference).entity


def grant_approval(
    engine: Engine,
    request: ApprovalRequest,
    head: LoadedHead,
    attempts: int,
    reason: str,
    by: str | None,
    expires: float | None,
) -> ApprovalState:
    """Append an approval, and in the same batch the entry that continues its waiting run."""
    now, run = engine.now(), head.record
    approval = build_approval(request, attempts, now, reason, by, expires)
    before = load_head(engine.store, approval_entity(request.run_entity), engine.cipher, Approval)
    body = {"decision": {"action": "approve", "reason": approval.reason, "actor": approval.by}}
    change = RecordChange(("APPROVAL", "DECISION"), before.record, approval, body)
    also: tuple[tuple[LoadedHead, RecordChange], ...] = ()
    # A step may be approved before its first call; then there is no run to continue.
    if run is not None and run.held_for == APPROVAL_NEEDED:
        decision = OperatorDecision("approve", approval.by, approval.reason)
        also = ((head, resume_run(head, decision, now, run.max_attempts)),)
    _append_changes(engine, before, change, *also)
    return _approval_state(approval, now)


def build_approval(
    request: ApprovalRequest, attempts: int, now: float, reason: str, by: str | None, expires: float | None
) -> Approval:
    """Return an approval of `attempts` attempts from the requested one on, valid for `expires` seconds."""
    text, actor = check_text("reason", reason, MAX_REASON_LENGTH, "say why"), resolve_actor(by)
    valid_s = DEFAULT_EXPIRES_S if expires is None else expires
    # bool is a subclass of int, and True would pass as one second.
    if isinstance(valid_s, bool) or not isinstance(valid_s, int | float) or not 0 < valid_s <= MAX_EXPIRES_S:
        raise UsageError(f"expires is {expires!r}; it takes more than 0 and up to {MAX_EXPIRES_S:g} seconds")
    return Approval(
        state=GRANTED,
        run_entity=request.run_entity,
        step=request.step,
        effect=request.effect,
        input_hash=request.input_hash,
        cfg_hash=request.cfg_hash,
        policy=request.policy,
        last_attempt=request.attempt + attempts - 1,
        expires_at=now + valid_s,
        by=actor,
        reason=text,
        approved_at=now,
    )


def _append_changes(
    engine: Engine, first: LoadedHead, change: RecordChange, *also: tuple[LoadedHead, RecordChange]
) -> None:
    # One batch: a crash between the approval and the run would leave an approved run on hold.
    now = engine.now()
    writes = [
        build_write(head.entity, head.version, head.hash or NOWHERE, new_change, now, engine.cipher)
        for head, new_change in ((first, change), *also)
    ]
    if not isinstance(append_if_not_moved(engine, first.entity, writes), Stored):
        raise stale_decision(first.entity, "it was changed in this very moment")


def _approval_state(approval: Approval, now: float) -> ApprovalState:
    # EXPIRED is never stored, because no process writes an entry at the moment of expiry.
    is_expired = approval.state == GRANTED and approval.expires_at and now >= approval.expires_at
    return ApprovalState(
        key=approval.run_entity.removeprefix("run/"),
        step=approval.step,
        state="EXPIRED" if is_expired else approval.state,
        by=approval.by,
        reason=approval.reason,
        at=approval.approved_at,
        expires=approval.expires_at,
        upto=approval.last_attempt,
    )
