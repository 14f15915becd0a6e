"""Session actions are sent once; the outcome of a lost one is found by reading."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.demo.core_server import LOST, STALLED, UNHEARD, CoreServer
from oncemore.profiles.lit import (
    ActionOutcomeUnknown,
    CoreClient,
    CoreClientError,
    CoreClientHTTPError,
    CoreSession,
    ExhaustionAlert,
    LostAction,
    ReconciledAction,
    SessionState,
)
from oncemore.profiles.lit import session as lit_session
from oncemore.profiles.lit.session import judge_lost_action
from tests.servers.faults import answers, refusing, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCEPT = "POST /v1/sessions/s-4/findings/f-12/accept"


@pytest.fixture
def core() -> Iterator[CoreServer]:
    with CoreServer() as core:
        yield core


def session_of(core: CoreServer, **told: Any) -> CoreSession:
    told = {"retry_backoff_seconds": 0.0, "timeout_s": 5.0, "counter": ExhaustionAlert(), **told}
    return CoreClient(core.url, **told).session("s-4")


def lose(session: CoreSession, action: str = "accept", *finding: str, **said: Any) -> ActionOutcomeUnknown:
    with pytest.raises(ActionOutcomeUnknown) as caught:
        getattr(session, action)(*finding, **said)
    return caught.value


def test_an_action_with_a_response_is_settled(core: CoreServer) -> None:
    session = session_of(core)
    assert session.accept("f-12", note="clear")["status"] == "accepted"
    assert session.discuss("f-12", text="why?")["discussion"][0]["text"] == "why?"
    assert session.advance() == {"position": 2}
    assert session.reject("f-12")["status"] == "rejected"
    assert core.acted == 4
    assert session.client.counter.operations == 4
    assert [visit.attempt for visit in core.visits] == ["1"] * len(core.visits)


@pytest.mark.req("HTTP-9", "HTTP-10")
def test_a_lost_action_is_found_applied_and_not_sent_again(core: CoreServer) -> None:
    core.queue_faults(ACCEPT, LOST)
    session = session_of(core)
    error = lose(session, "accept", "f-12")
    assert "may have been applied" in str(error)
    assert isinstance(error, oncemore.OutcomeUnknown)
    assert isinstance(error, CoreClientError)
    found = session.reconcile(error)
    assert (found.found, found.reason) == ("applied", "the finding is accepted")
    assert session.resolve(error).found == "applied"
    assert len(core.requests_for(ACCEPT)) == core.acted == 1


@pytest.mark.req("HTTP-9")
@pytest.mark.parametrize("ending", [LOST, UNHEARD, STALLED, 500, 503])
def test_no_layer_sends_an_action_again(core: CoreServer, ending: int | str) -> None:
    core.queue_faults(ACCEPT, ending)
    session = session_of(core, retry_attempts=5, timeout_s=1.0)
    stubborn = oncemore.retrying(session.accept, on=Exception, attempts=4, wait=[0.0, 0.01])
    with pytest.raises(ActionOutcomeUnknown, match="an earlier one may have been applied") as caught:
        stubborn("f-12")
    other = session.client.session("s-4")
    with pytest.raises(ActionOutcomeUnknown):
        other.accept("f-12")
    assert len(core.requests_for(ACCEPT)) == 1
    assert caught.value.lost.action == "accept"
    assert session.client.counter.exhausted == 0  # nothing was to be tried again


@pytest.mark.req("HTTP-9")
@pytest.mark.parametrize("status", [400, 404, 409, 422, 429])
def test_a_refused_action_is_known_not_to_be_applied(core: CoreServer, status: int) -> None:
    core.queue_faults(ACCEPT, status)
    session = session_of(core)
    with pytest.raises(CoreClientHTTPError) as caught:
        session.accept("f-12")
    assert not isinstance(caught.value, ActionOutcomeUnknown)
    assert caught.value.status_code == status
    assert session.accept("f-12")["status"] == "accepted"


def test_nothing_is_sent_to_a_core_whose_state_cannot_be_read() -> None:
    with refusing() as server, pytest.raises(CoreClientError) as caught:
        CoreClient(server.url, retry_backoff_seconds=0, counter=ExhaustionAlert()).session("s-4").accept(
            "f-12"
        )
    assert not isinstance(caught.value, ActionOutcomeUnknown)
    with serve(answers(500)) as server, pytest.raises(CoreClientHTTPError):
        CoreClient(server.url, retry_backoff_seconds=0, counter=ExhaustionAlert()).session("s-4").accept(
            "f-12"
        )
    assert all(request.startswith(b"GET ") for request in server.requests)


def test_an_action_that_was_never_sent_has_no_unknown_outcome(core: CoreServer) -> None:
    session = session_of(core)
    lost = LostAction("accept", "s-4", "f-12", "a-1", {}, session.state("f-12"), late=False)
    with refusing() as server, pytest.raises(CoreClientError) as caught:
        session.client.base_url = server.url.rstrip("/")
        session._send_action(lost)
    assert not isinstance(caught.value, ActionOutcomeUnknown)


@pytest.mark.req("HTTP-10")
def test_an_action_that_was_not_applied_is_sent_once_more_by_resolve_only(core: CoreServer) -> None:
    core.queue_faults(ACCEPT, UNHEARD)
    session = session_of(core)
    error = lose(session, "accept", "f-12")
    found = session.resolve(error)
    assert (found.found, found.reason) == ("applied", "it had not been applied, and was sent once more")
    assert found.now.finding["status"] == "accepted"
    assert (len(core.requests_for(ACCEPT)), core.acted) == (2, 1)
    core.queue_faults(ACCEPT, UNHEARD, UNHEARD)
    core.findings["f-12"]["status"] = "open"
    error = lose(session, "accept", "f-12")
    with pytest.raises(ActionOutcomeUnknown):  # lost a second time: unknown again, and remembered again
        session.resolve(error)
    assert len(core.requests_for(ACCEPT)) == 4
    lose(session, "accept", "f-12")
    assert len(core.requests_for(ACCEPT)) == 4


@pytest.mark.req("HTTP-10")
def test_an_action_that_may_still_arrive_is_unclear(core: CoreServer) -> None:
    core.queue_faults(ACCEPT, STALLED)
    session = session_of(core, timeout_s=1.0)
    error = lose(session, "accept", "f-12")
    core.findings["f-12"]["status"] = "open"  # Core is still at it
    found = session.resolve(error)
    assert found.found == "unclear"
    assert "the request may still arrive" in found.reason
    lose(session, "accept", "f-12")
    assert len(core.requests_for(ACCEPT)) == 1
    session.settle(error)
    assert session.accept("f-12")["status"] == "accepted"


@pytest.mark.req("HTTP-10")
def test_advance_and_discuss_are_judged_by_the_fields_they_change(core: CoreServer) -> None:
    session = session_of(core)
    core.queue_faults("POST /v1/sessions/s-4/advance", LOST, UNHEARD)
    error = lose(session, "advance")
    assert session.reconcile(error).reason == "the session went from 1 to 2"
    error = lose(session, "advance")
    assert session.reconcile(error).found == "not_applied"
    core.queue_faults("POST /v1/sessions/s-4/findings/f-12/discuss", LOST, UNHEARD)
    error = lose(session, "discuss", "f-12", text="why?")
    found = session.reconcile(error)
    assert (found.found, found.reason) == ("applied", f"Core shows its id, {error.lost.action_id}")
    error = lose(session, "discuss", "f-12", text="why?")
    core.findings["f-12"]["discussion"].append({"text": "somebody else"})
    found = session.reconcile(error)
    assert (found.found, found.reason) == ("unclear", "it was 1 and is 2: another user has acted")


def lost(action: str = "accept", before: Any = "open", *, late: bool = False) -> LostAction:
    return LostAction(
        action, "s-4", "f-12", "a-1", {}, SessionState({"position": 1}, {"status": before}), late
    )


@pytest.mark.parametrize(
    ("given", "now", "found"),
    [
        (lost(), SessionState({}, {"status": "accepted"}), "applied"),
        (lost(before="accepted"), SessionState({}, {"status": "accepted"}), "applied"),
        (lost(), SessionState({}, {"status": "open"}), "not_applied"),
        (lost(late=True), SessionState({}, {"status": "open"}), "unclear"),
        (lost(late=True), SessionState({}, {"status": "accepted"}), "applied"),
        (lost(), SessionState({}, {"status": "rejected"}), "unclear"),
        (lost(), SessionState({}, {"other": 1}), "unclear"),
        (lost(), SessionState({}, ["?"]), "unclear"),
        (lost("reject"), SessionState({}, {"status": "rejected"}), "applied"),
        (lost(), SessionState({"log": [{"id": "a-1"}]}, None), "applied"),
        (lost(), SessionState({"log": [{"id": "a-12"}]}, {"status": "open"}), "not_applied"),
        (lost("advance"), SessionState({"position": 2}), "applied"),
        (lost("advance"), SessionState({"position": 1}), "not_applied"),
    ],
)
def test_a_lost_action_is_judged_by_the_state_before_and_now(
    given: LostAction, now: SessionState, found: str
) -> None:
    assert judge_lost_action(given, now).found == found


def test_a_state_too_large_to_search_does_not_contain_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lit_session, "MAX_SEARCHED_PARTS", 10)
    assert (
        judge_lost_action(lost(), SessionState({"log": [0] * 20}, {"status": "open"})).found == "not_applied"
    )


def test_paths_and_judge_can_be_replaced(core: CoreServer) -> None:
    core.queue_faults(ACCEPT, LOST)
    session = CoreSession(
        CoreClient(core.url, retry_backoff_seconds=0, counter=ExhaustionAlert()), "s-4",
        judge=lambda lost, now: ReconciledAction("unclear", f"{lost.action}: ask Core's people", now),
    )  # fmt: skip
    error = lose(session, "accept", "f-12")
    assert session.resolve(error).reason == "accept: ask Core's people"
    odd = CoreSession(session.client, "s/4", read="/v1/reviews/{session}")
    with pytest.raises(CoreClientHTTPError, match="404"):
        odd.state("f/12")
    assert core.visits[-1].path == "/v1/reviews/s%2F4"


def test_only_actions_of_the_profile_are_sent(core: CoreServer) -> None:
    with pytest.raises(oncemore.UsageError, match="it takes accept, reject, advance, discuss"):
        session_of(core).act("delete", "f-12", {})
    with pytest.raises(oncemore.UsageError, match="is not a lost action"):
        session_of(core).reconcile("f-12")  # type: ignore[arg-type]
    assert core.visits == []


def test_a_lost_action_can_be_reconciled_in_another_process(core: CoreServer) -> None:
    core.queue_faults(ACCEPT, LOST)
    error = pickle.loads(pickle.dumps(lose(session_of(core), "accept", "f-12")))  # noqa: S301 - our own
    assert session_of(core).reconcile(error).found == "applied"


def test_the_number_of_remembered_actions_is_bounded(
    core: CoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lit_session, "MAX_UNSETTLED", 2)
    session = session_of(core)
    for name in ("f-12", "f-13", "f-14"):
        core.findings[name] = {"status": "open"}
        core.queue_faults(ACCEPT.replace("f-12", name), LOST)
        lose(session, "accept", name)
    assert [finding for _, _, finding in session.client.unsettled] == ["f-13", "f-14"]
