"""Session actions: accept, reject, advance, discuss. Each is sent once; what is lost is settled by looking.

An action changes what others see, and Core does not promise that two are as good as one. So none of them is
ever repeated by itself. When its answer is lost, `ActionOutcomeUnknown` says so, and the client refuses to
send the same action again until somebody has looked: `reconcile` reads the session and the finding and says
`applied`, `not_applied` or `unclear`; `resolve` does that, and sends it once more only if it was not applied.

How it can be told, in this order:

    the action's id is found in what Core shows    applied
    Core shows what the action is for              applied      (a finding that is accepted)
    nothing has changed since before it was sent   not applied; unclear if it may still be on its way
    anything else                                  unclear: somebody else has acted
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from oncemore import clock as clocks
from oncemore._ids import uuid7
from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.profiles.lit import policy
from oncemore.profiles.lit.errors import ActionOutcomeUnknown, CoreClientError, CoreClientHTTPError
from oncemore.profiles.lit.request_context import checked, ids
from oncemore.retries.loop import decision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.profiles.lit.client import CoreClient

    Found = Literal["applied", "not_applied", "unclear"]
    Judge = Callable[["Lost", "State"], "Reconciled"]

#: How many actions with an unknown outcome are remembered; the oldest is forgotten beyond this.
MOST_UNSETTLED: Final = 1_000
#: How many parts of a state are looked through for an id.
MOST_LOOKED_AT: Final = 100_000
#: The header and field that carry an action's own id.
ACTION_ID: Final = "action_id"
#: What a finding's status is when the action was applied.
AIMS: Final = {"accept": "accepted", "reject": "rejected"}


class State(Value):
    """What Core showed of a session and, where one is concerned, of a finding."""

    session: Any
    finding: Any = None


class Lost(Value):
    """An action whose answer was lost.

    before  what Core showed before it was sent
    late    whether the request may still be on its way: nobody hung up on Core's side
    """

    action: str
    session_id: str
    finding_id: str
    action_id: str
    payload: Mapping[str, Any]
    before: State
    late: bool


class Reconciled(Value):
    """What looking has shown: `found` is "applied", "not_applied" or "unclear", and why."""

    found: Found
    why: str
    now: State


def judge(lost: Lost, now: State) -> Reconciled:
    """Say what became of an action, from what Core showed before it and what it shows now."""
    if _mentions(now, lost.action_id):
        return Reconciled("applied", f"Core shows its id, {lost.action_id}", now)
    before, after = _told(lost, lost.before), _told(lost, now)
    if after is None:
        return Reconciled("unclear", f"Core shows nothing that {lost.action} would change", now)
    if after == AIMS.get(lost.action):
        return Reconciled("applied", f"the finding is {after}", now)
    if after != before:
        if lost.action == "advance":
            return Reconciled("applied", f"the session went from {before!r} to {after!r}", now)
        return Reconciled("unclear", f"it was {before!r} and is {after!r}: somebody else has acted", now)
    if lost.late:
        why = f"nothing has changed ({after!r}), but the request may still be on its way; look again later"
        return Reconciled("unclear", why, now)
    return Reconciled("not_applied", f"nothing has changed ({after!r})", now)


def _told(lost: Lost, state: State) -> Any:
    """Return the part of a state that an action changes, or None if it is not there."""
    of, name = _CHANGES[lost.action]
    part = getattr(state, of)
    found = part.get(name) if isinstance(part, dict) else None
    return len(found) if isinstance(found, list) else found


#: What each action changes: in the session or in the finding, and which field.
_CHANGES: Final = {
    "accept": ("finding", "status"),
    "reject": ("finding", "status"),
    "advance": ("session", "position"),
    "discuss": ("finding", "discussion"),
}


def _mentions(state: State, action_id: str) -> bool:
    """Whether an id stands anywhere in what Core shows, as a value of its own."""
    left: list[Any] = [state.session, state.finding]
    for _ in range(MOST_LOOKED_AT):
        if not left:
            return False
        part = left.pop()
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list):
            left += part
        elif part == action_id:
            return True
    return False


class Session:
    """A session of Core's: its actions, and what becomes of them.

    read     where its state is read
    finding  where a finding's state is read
    act      where an action on a finding goes; one on the session itself has no finding in its path
    judge    tells what became of a lost action, where Core shows other fields than `status`, `position`
             and `discussion`
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
        judge: Judge = judge,
    ) -> None:
        self.client = client
        self.session_id = checked("session_id", session_id)
        self._paths = {"read": read, "finding": finding, "act": act, "act_on_session": act_on_session}
        self._judge = judge

    def accept(self, finding_id: str, **payload: Any) -> Any:
        """Accept a finding; sent once, never repeated by itself."""
        return self.act("accept", finding_id, payload)

    def reject(self, finding_id: str, **payload: Any) -> Any:
        """Reject a finding; sent once, never repeated by itself."""
        return self.act("reject", finding_id, payload)

    def discuss(self, finding_id: str, **payload: Any) -> Any:
        """Say something about a finding; sent once, never repeated by itself."""
        return self.act("discuss", finding_id, payload)

    def advance(self, **payload: Any) -> Any:
        """Move the session on; sent once, never repeated by itself."""
        return self.act("advance", "", payload)

    def state(self, finding_id: str = "") -> State:
        """Read what Core shows of the session and of a finding; delivered at least once, as reading is."""
        return State(
            self._read("read", finding_id), self._read("finding", finding_id) if finding_id else None
        )

    def act(self, action: str, finding_id: str, payload: Mapping[str, Any]) -> Any:
        """Send an action once; sent once, never repeated by itself.

        Raises `ActionOutcomeUnknown` when its answer is lost, and again for the same action, without sending
        it, until that is settled.
        """
        if action not in policy.never_repeated():
            raise UsageError(f"action is {action!r}; it takes {', '.join(policy.never_repeated())}")
        before = self.client.unsettled.get(self._at(action, finding_id))
        if before is not None:
            raise ActionOutcomeUnknown(
                f"{self._name(action, finding_id)}: an earlier one may have been applied; reconcile it "
                "before it is sent again (Session.resolve does both)",
                before,
            )
        action_id = uuid7(clocks.current.wall())
        seen = self.state(finding_id)
        return self._send(
            Lost(action, self.session_id, finding_id, action_id, dict(payload), seen, late=False)
        )

    def reconcile(self, lost: Lost | ActionOutcomeUnknown) -> Reconciled:
        """Look what became of a lost action; nothing is sent but reads. What is clear is settled by it."""
        lost = _lost(lost)
        found = self._judge(lost, self.state(lost.finding_id))
        if found.found != "unclear":
            self._settled(lost)
        return found

    def resolve(self, lost: Lost | ActionOutcomeUnknown) -> Reconciled:
        """Look, and send the action once more only if it was not applied; unclear ones stay as they are."""
        lost = _lost(lost)
        found = self.reconcile(lost)
        if found.found != "not_applied":
            return found
        self._send(lost._replace(before=found.now))
        return Reconciled(
            "applied", "it had not been applied, and was sent once more", self.state(lost.finding_id)
        )

    def settle(self, lost: Lost | ActionOutcomeUnknown) -> None:
        """Take a lost action as looked after: somebody knows what became of it, and it may be sent again."""
        self._settled(_lost(lost))

    # ------------------------------------------------------------------------------------------------

    def _send(self, lost: Lost) -> Any:
        client = self.client
        path = self._path("act" if lost.finding_id else "act_on_session", lost.finding_id, lost.action)
        ask = client.ask(
            "POST", path, {**lost.payload, ACTION_ID: lost.action_id}, ids(None, self.session_id)
        )
        try:
            return client.send(ask._replace(policy=client.policy.but(max_attempts=1)))
        except CoreClientError as error:
            last = decision(error)
            if last is None or last.situation.failure.sent == "no":
                raise
            late = last.situation.failure.code.startswith("TIMEOUT")
            raise self._unknown(lost._replace(late=late), error) from error

    def _unknown(self, lost: Lost, error: CoreClientError) -> ActionOutcomeUnknown:
        """Remember an action whose outcome is unknown, and return the error that says so."""
        unsettled = self.client.unsettled
        unsettled[self._at(lost.action, lost.finding_id)] = lost
        while len(unsettled) > MOST_UNSETTLED:
            del unsettled[next(iter(unsettled))]
        what = repr(error) if isinstance(error, CoreClientHTTPError) else str(error)
        return ActionOutcomeUnknown(
            f"{self._name(lost.action, lost.finding_id)} was sent and may have been applied ({what}); it is "
            "not sent again: look with Session.reconcile, or let Session.resolve look and then decide",
            lost,
        )

    def _settled(self, lost: Lost) -> None:
        self.client.unsettled.pop(self._at(lost.action, lost.finding_id), None)

    def _at(self, action: str, finding_id: str) -> tuple[str, str, str]:
        return self.session_id, action, finding_id

    def _name(self, action: str, finding_id: str) -> str:
        return f"{action} {finding_id} in session {self.session_id}".replace("  ", " ")

    def _path(self, kind: str, finding_id: str, action: str = "") -> str:
        return self._paths[kind].format(
            session=quote(self.session_id, safe=""), finding=quote(finding_id, safe=""), action=action
        )

    def _read(self, kind: str, finding_id: str) -> Any:
        ask = self.client.ask("GET", self._path(kind, finding_id), None, ids(None, self.session_id))
        return self.client.send(ask._replace(repeats=True), counted=False)


def _lost(given: Lost | ActionOutcomeUnknown) -> Lost:
    found = given.lost if isinstance(given, ActionOutcomeUnknown) else given
    if type(found) is not Lost:
        raise UsageError(f"{given!r:.80} is no lost action; give the ActionOutcomeUnknown that was raised")
    return found
