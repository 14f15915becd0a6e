"""Grants and revokes approvals: `engine.approvals`.

    engine.approvals.approve(run, reason="seen, 40 parcels", by="operator")    lets one run begin

Each decision is one entry in the log with actor, reason and time. `control.permits` reads the approval before
every attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.control.model import (
    APPROVAL_NEEDED,
    AUTONOMY_PAUSE,
    GRANTED,
    REVOKED,
    Approval,
    ApprovalRequest,
)
from oncemore.control.moved_log import append_if_not_moved
from oncemore.control.permits import approval_entity
from oncemore.control.review import OperatorDecision, check_reason, resume_run, stale_decision
from oncemore.errors import StaleDecision, UsageError
from oncemore.governance.identity import authorize_decider, check_not_requester
from oncemore.governance.role_model import REVIEWER
from oncemore.log.entry_codec import HELD, build_write, decode_head, decode_header, load_head, read_body
from oncemore.log.record import NOWHERE, RecordChange, RunRecord
from oncemore.log.store import HeadQuery, Stored
from oncemore.maintenance.erase import find_run
from oncemore.maintenance.tasks import resolve_actor

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.record import LoadedHead
    from oncemore.steps.engine import Engine

MAX_LISTED = 100_000
#: The default and the maximum validity of an approval.
DEFAULT_EXPIRES_S, MAX_EXPIRES_S = 86_400.0, 366 * 86_400.0
#: The minimum length of an abbreviated id, and the length of a full one.
MIN_ID_LENGTH, FULL_ID_LENGTH = 4, 36


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
        return self._list_runs((HELD,), lambda run: run.held_for == APPROVAL_NEEDED)

    def list_paused(self) -> tuple[PendingApproval, ...]:
        """Return the runs that the autonomy matrix has paused: an approval lets one begin all the same."""
        matrices = self._engine.store.list_heads(HeadQuery("autonomy", "PAUSE", limit=1))
        # Waiting runs can be many; they are read only while a matrix pauses some of them.
        if not any(True for _ in matrices):
            return ()
        return self._list_runs(("PENDING", "SOFT_FAIL"), lambda run: run.reason == AUTONOMY_PAUSE)

    def _list_runs(
        self, states: tuple[str, ...], is_wanted: Callable[[RunRecord], bool]
    ) -> tuple[PendingApproval, ...]:
        waiting = []
        for state in states:
            for head in self._engine.store.list_heads(HeadQuery("run", state, limit=MAX_LISTED)):
                run: RunRecord = decode_head(head.head)
                if is_wanted(run):
                    waiting.append(self._describe_waiting(head.entity, run))
        return tuple(sorted(waiting, key=lambda pending: (pending.since, pending.run_id)))

    def _describe_waiting(self, entity: str, run: RunRecord) -> PendingApproval:
        from oncemore.steps.history import find_opening

        entries = list(self._engine.store.read_entries(entity))
        # The last entry says why the run waits; the first ones have its arguments.
        last = entries[-1]
        body = read_body(last, self._engine.cipher)
        pause = body.get("autonomy")
        return PendingApproval(
            run_id=run.run_id,
            key=entity.removeprefix("run/"),
            step=run.step,
            reason=f"paused by the autonomy matrix: {pause['reason']}"
            if pause
            else body.get("error", {}).get("message", ""),
            since=decode_header(last.header).at,
            arguments=find_opening(iter(entries), self._engine.cipher).get("arguments"),
        )

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

        A run that the autonomy matrix has paused can be approved too: it begins although the pause lasts.

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
            or not _waits_for_approval(head.record)
            or "requested" not in (head.body or {})
        ):
            name = f"{head.record.step} {head.record.run_id}" if head.record is not None else str(run)
            raise StaleDecision(
                f"{name} does not wait for an approval; oncemore control approvals shows what does"
            )
        return head, ApprovalRequest(**(head.body or {})["requested"])

    def revoke(self, run: Any, *, reason: str, by: str | None = None) -> ApprovalState:
        """Revoke an approval; an attempt that has begun under it may end."""
        engine, decider = self._engine, authorize_decider(self._engine, by)
        text = check_reason(reason)
        entity = approval_entity(self._resolve_run(run))
        head = load_head(engine.store, entity, engine.cipher, Approval)
        if head.record is None or head.record.state != GRANTED:
            raise StaleDecision(
                f"there is no approval of {run} to revoke; oncemore control approvals shows them"
            )
        after = head.record._replace(state=REVOKED)
        body = {"decision": decider.make_decision(head, "revoke", text, engine.now())}
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
    is_waiting = run is not None and _waits_for_approval(run)
    decider = authorize_decider(engine, by, needed=REVIEWER)
    check_not_requester(decider, (head.body or {}).get("requester", "") if is_waiting else None)
    approval = build_approval(request, attempts, now, reason, decider.actor, expires)
    before = load_head(engine.store, approval_entity(request.run_entity), engine.cipher, Approval)
    record = decider.make_decision(before, "approve", approval.reason, now, _describe_approval(approval, now))
    body = {"decision": record}
    change = RecordChange(("APPROVAL", "DECISION"), before.record, approval, body)
    also: tuple[tuple[LoadedHead, RecordChange], ...] = ()
    # A step may be approved before its first call; then there is no run to continue.
    if is_waiting:
        # A signature is over the whole record, so that the entry of the run then has all of it too.
        signed = record if "signed" in record else {}
        more = {name: part for name, part in signed.items() if name not in ("action", "reason", "actor")}
        decision = OperatorDecision("approve", approval.by, approval.reason, more=more)
        also = ((head, resume_run(head, decision, now)),)
    _append_changes(engine, before, change, *also)
    return _approval_state(approval, now)


def _waits_for_approval(run: RunRecord) -> bool:
    """Return whether an approval makes the run due: it is held for one, or paused by the matrix."""
    return run.held_for == APPROVAL_NEEDED or (
        run.state in ("PENDING", "SOFT_FAIL") and run.reason == AUTONOMY_PAUSE
    )


def build_approval(
    request: ApprovalRequest, attempts: int, now: float, reason: str, by: str | None, expires: float | None
) -> Approval:
    """Return an approval of `attempts` attempts from the requested one on, valid for `expires` seconds."""
    text, actor = check_reason(reason), resolve_actor(by)
    valid_s = DEFAULT_EXPIRES_S if expires is None else expires
    # bool is a subclass of int, and True would pass as one second.
    if isinstance(valid_s, bool) or not isinstance(valid_s, int | float) or not 0 < valid_s <= MAX_EXPIRES_S:
        raise UsageError(f"expires is {expires!r}; it takes more than 0 and up to {MAX_EXPIRES_S:g} seconds")
    requested = request._asdict()
    return Approval(
        last_attempt=requested.pop("attempt") + attempts - 1,
        expires_at=now + valid_s,
        by=actor,
        reason=text,
        approved_at=now,
        **requested,
    )


def _describe_approval(approval: Approval, now: float) -> dict[str, Any]:
    """Return what an approval covers, for the record of its decision."""
    covered = ("run_entity", "step", "effect", "input_hash", "cfg_hash", "policy", "last_attempt")
    # Rounded: a signature elsewhere is made at another time, and must cover the same number.
    valid_s = round(approval.expires_at - now, 3)
    return {**{name: getattr(approval, name) for name in covered}, "valid_s": valid_s}


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
