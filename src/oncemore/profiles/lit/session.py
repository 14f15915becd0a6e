"""Session actions: accept, reject, advance, discuss. Each is sent once; a lost one is reconciled by reading.

An action changes state that other users see, and Core does not promise that two equal actions count as one.
So no action is ever repeated by itself. When the response is lost, `ActionOutcomeUnknown` is raised, and the
client refuses the same action until it is settled: `reconcile` reads the session and the finding and returns
`applied`, `not_applied` or `unclear`; `resolve` does the same, and sends the action once more only if it was
not applied.

The first of these rules that applies decides:

    Core shows the id of the action                  applied
    Core shows the purpose of the action             applied      (a finding that is accepted)
    nothing has changed since before it was sent     not applied; unclear if it may still arrive
    anything else                                    unclear: another user has acted
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.log.entry_codec import new_uuid7
from oncemore.profiles.lit import policy
from oncemore.profiles.lit.errors import ActionOutcomeUnknown, CoreClientError, CoreClientHTTPError
from oncemore.profiles.lit.http import check_id, current_ids
from oncemore.retries.report import get_decision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.profiles.lit.client import CoreClient

    Found = Literal["applied", "not_applied", "unclear"]
    Judge = Callable[["LostAction", "SessionState"], "ReconciledAction"]

#: The most actions with an unknown outcome to remember; beyond it the oldest is dropped.
MAX_UNSETTLED: Final = 1_000
#: The most parts of a state to search for an id.
MAX_SEARCHED_PARTS: Final = 100_000
#: The field that carries the id of an action.
ACTION_ID_FIELD: Final = "action_id"
#: The status of a finding after the action was applied.
TARGET_STATUS: Final = {"accept": "accepted", "reject": "rejected"}


class SessionState(Value):
    """The state of a session and, if one is concerned, of a finding, as Core shows them."""

    session: Any
    finding: Any = None


class LostAction(Value):
    """An action whose response was lost.

    before  the state before it was sent
    late    whether the request may still arrive: after a timeout Core has not seen the connection close
    """

    action: str
    session_id: str
    finding_id: str
    action_id: str
    payload: Mapping[str, Any]
    before: SessionState
    late: bool


class ReconciledAction(Value):
    """The result of a reconciliation and its reason; `found` is "applied", "not_applied" or "unclear"."""

    found: Found
    reason: str
    now: SessionState


def judge_lost_action(lost: LostAction, now: SessionState) -> ReconciledAction:
    """Return the outcome of an action, by the states before it and now."""
    if _contains_id(now, lost.action_id):
        return ReconciledAction("applied", f"Core shows its id, {lost.action_id}", now)
    before, after = _changed_part(lost, lost.before), _changed_part(lost, now)
    if after is None:
        return ReconciledAction("unclear", f"Core shows nothing that {lost.action} would change", now)
    if after == TARGET_STATUS.get(lost.action):
        return ReconciledAction("applied", f"the finding is {after}", now)
    if after != before:
        if lost.action == "advance":
            return ReconciledAction("applied", f"the session went from {before!r} to {after!r}", now)
        return ReconciledAction("unclear", f"it was {before!r} and is {after!r}: another user has acted", now)
    if lost.late:
        reason = f"nothing has changed ({after!r}), but the request may still arrive; reconcile later"
        return ReconciledAction("unclear", reason, now)
    return ReconciledAction("not_applied", f"nothing has changed ({after!r})", now)


def _changed_part(lost: LostAction, state: SessionState) -> Any:
    """Return the part of a state that an action changes, or None if it is missing."""
    owner, name = _CHANGED_FIELDS[lost.action]
    part = getattr(state, owner)
    value = part.get(name) if isinstance(part, dict) else None
    return len(value) if isinstance(value, list) else value


#: The field that each action changes, in the session or in the finding.
_CHANGED_FIELDS: Final = {
    "accept": ("finding", "status"),
    "reject": ("finding", "status"),
    "advance": ("session", "position"),
    "discuss": ("finding", "discussion"),
}


def _contains_id(state: SessionState, action_id: str) -> bool:
    """Return whether an id is a value anywhere in a state."""
    pending: list[Any] = [state.session, state.finding]
    for _ in range(MAX_SEARCHED_PARTS):
        if not pending:
            return False
        part = pending.pop()
        if isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part
        elif part == action_id:
            return True
    return False


class CoreSession:
    """A session of Core and its actions.

    read     the path of its state
    finding  the path of a finding's state
    act      the path of an action on a finding; `act_on_session` that of an action without a finding
    judge    decides about a lost action, if Core's fields differ from `status`, `position` and `discussion`
    """

    def __init__(
        self,
        client: CoreClient,
        session_id: str,
        *,
        read: str = "/v1/sessions/{session}",
        finding: str = "/v1/findings/{finding}",
        act: str = "/v1/sessions/{session}/findings/{finding}/{action}",
        act_on_session: str = "/v1/sessions/{session}/{action}",
        judge: Judge = judge_lost_action,
    ) -> None:
        self.client = client
        self.session_id = check_id("session_id", session_id)
        self._paths = {"read": read, "finding": finding, "act": act, "act_on_session": act_on_session}
        self._judge = judge

    def accept(self, finding_id: str, **payload: Any) -> Any:
        """Accept a finding; sent once, never repeated by itself."""
        return self.act("accept", finding_id, payload)

    def reject(self, finding_id: str, **payload: Any) -> Any:
        """Reject a finding; sent once, never repeated by itself."""
        return self.act("reject", finding_id, payload)

    def discuss(self, finding_id: str, **payload: Any) -> Any:
        """Add to the discussion of a finding; sent once, never repeated by itself."""
        return self.act("discuss", finding_id, payload)

    def advance(self, **payload: Any) -> Any:
        """Advance the session; sent once, never repeated by itself."""
        return self.act("advance", "", payload)

    def state(self, finding_id: str = "") -> SessionState:
        """Read the state of the session and of a finding; delivered at least once, as every read."""
        return SessionState(
            self._read_state("read", finding_id),
            self._read_state("finding", finding_id) if finding_id else None,
        )

    def act(self, action: str, finding_id: str, payload: Mapping[str, Any]) -> Any:
        """Send an action once; never repeated by itself.

        Raises `ActionOutcomeUnknown` when the response is lost, and for the same action again, without a
        request, until that is settled.
        """
        if action not in policy.unrepeatable_actions():
            raise UsageError(f"action is {action!r}; it takes {', '.join(policy.unrepeatable_actions())}")
        before = self.client.unsettled.get(self._action_key(action, finding_id))
        if before is not None:
            raise ActionOutcomeUnknown(
                f"{self._action_name(action, finding_id)}: an earlier one may have been applied; reconcile "
                "it before it is sent again (CoreSession.resolve does both)",
                before,
            )
        action_id = new_uuid7(clocks.current.wall())
        # Read before the action is sent: the comparison with it shows whether the action was applied.
        state = self.state(finding_id)
        return self._send_action(
            LostAction(action, self.session_id, finding_id, action_id, dict(payload), state, late=False)
        )

    def reconcile(self, lost: LostAction | ActionOutcomeUnknown) -> ReconciledAction:
        """Read the outcome of a lost action; a clear outcome settles it. Sends only reads."""
        lost = _check_lost_action(lost)
        result = self._judge(lost, self.state(lost.finding_id))
        if result.found != "unclear":
            self._forget_action(lost)
        return result

    def resolve(self, lost: LostAction | ActionOutcomeUnknown) -> ReconciledAction:
        """Reconcile a lost action, and send it once more only if it was not applied."""
        lost = _check_lost_action(lost)
        result = self.reconcile(lost)
        if result.found != "not_applied":
            return result
        self._send_action(lost._replace(before=result.now))
        return ReconciledAction(
            "applied", "it had not been applied, and was sent once more", self.state(lost.finding_id)
        )

    def settle(self, lost: LostAction | ActionOutcomeUnknown) -> None:
        """Settle a lost action by decision of the caller, who knows its outcome; it may be sent again."""
        self._forget_action(_check_lost_action(lost))

    def _send_action(self, lost: LostAction) -> Any:
        client = self.client
        path = self._build_path("act" if lost.finding_id else "act_on_session", lost.finding_id, lost.action)
        spec = client.prepare_request(
            "POST",
            path,
            {**lost.payload, ACTION_ID_FIELD: lost.action_id},
            current_ids(None, self.session_id),
        )
        try:
            return client.send_request(spec._replace(policy=client.policy.replace(max_attempts=1)))
        except CoreClientError as error:
            last = get_decision(error)
            if last is None or last.situation.failure.sent == "no":
                raise
            # After a timeout Core may still read the request; after a reset or a response it cannot.
            late = last.situation.failure.code.startswith("TIMEOUT")
            raise self._remember_unknown(lost._replace(late=late), error) from error

    def _remember_unknown(self, lost: LostAction, error: CoreClientError) -> ActionOutcomeUnknown:
        """Remember an action with an unknown outcome, and return the error for the caller."""
        unsettled = self.client.unsettled
        unsettled[self._action_key(lost.action, lost.finding_id)] = lost
        # A dictionary keeps the order of insertion, so the first key is the oldest action.
        while len(unsettled) > MAX_UNSETTLED:
            del unsettled[next(iter(unsettled))]
        problem = repr(error) if isinstance(error, CoreClientHTTPError) else str(error)
        return ActionOutcomeUnknown(
            f"{self._action_name(lost.action, lost.finding_id)} was sent and may have been applied "
            f"({problem}); it is not sent again: call CoreSession.reconcile to read its outcome, or "
            "CoreSession.resolve to read it and send the action again if it was not applied",
            lost,
        )

    def _forget_action(self, lost: LostAction) -> None:
        self.client.unsettled.pop(self._action_key(lost.action, lost.finding_id), None)

    def _action_key(self, action: str, finding_id: str) -> tuple[str, str, str]:
        return self.session_id, action, finding_id

    def _action_name(self, action: str, finding_id: str) -> str:
        return f"{action} {finding_id} in session {self.session_id}".replace("  ", " ")

    def _build_path(self, kind: str, finding_id: str, action: str = "") -> str:
        return self._paths[kind].format(
            session=quote(self.session_id, safe=""), finding=quote(finding_id, safe=""), action=action
        )

    def _read_state(self, kind: str, finding_id: str) -> Any:
        spec = self.client.prepare_request(
            "GET", self._build_path(kind, finding_id), None, current_ids(None, self.session_id)
        )
        return self.client.send_request(spec._replace(is_repeatable=True), counted=False)


def _check_lost_action(action: LostAction | ActionOutcomeUnknown) -> LostAction:
    lost = action.lost if isinstance(action, ActionOutcomeUnknown) else action
    if type(lost) is not LostAction:
        raise UsageError(
            f"{action!r:.80} is not a lost action; give the ActionOutcomeUnknown that was raised"
        )
    return lost
