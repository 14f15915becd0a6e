"""Session actions are sent once; what became of a lost one is found by looking."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.demo.lit.server import LOST, STALLED, UNHEARD, Core
from oncemore.profiles.lit import (
    ActionOutcomeUnknown,
    CoreClient,
    CoreClientError,
    CoreClientHTTPError,
    Exhaustion,
    Lost,
    Reconciled,
    Session,
    State,
)
from oncemore.profiles.lit import session as lit_session
from oncemore.profiles.lit.session import judge
from tests.servers.faults import answers, refusing, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCEPT = "POST /v1/sessions/s-4/findings/f-12/accept"


@pytest.fixture
def core() -> Iterator[Core]:
    with Core() as core:
        yield core


def session_of(core: Core, **told: Any) -> Session:
    told = {"retry_backoff_seconds": 0.0, "timeout_s": 5.0, "counter": Exhaustion(), **told}
    return CoreClient(core.url, **told).session("s-4")


def lose(session: Session, action: str = "accept", *finding: str, **said: Any) -> ActionOutcomeUnknown:
    with pytest.raises(ActionOutcomeUnknown) as caught:
        getattr(session, action)(*finding, **said)
    return caught.value


def test_an_action_that_is_answered_is_done(core: Core) -> None:
    session = session_of(core)
    assert session.accept("f-12", note="clear")["status"] == "accepted"
    assert session.discuss("f-12", text="why?")["discussion"][0]["text"] == "why?"
    assert session.advance() == {"position": 2}
    assert session.reject("f-12")["status"] == "rejected"
    assert core.acted == 4
    assert session.client.counter.operations == 4
    assert [visit.attempt for visit in core.visits] == ["1"] * len(core.visits)


@pytest.mark.req("HTTP-9", "HTTP-10")
def test_an_action_whose_answer_was_lost_is_found_applied_and_not_sent_again(core: Core) -> None:
    core.fail(ACCEPT, LOST)
    session = session_of(core)
    error = lose(session, "accept", "f-12")
    assert "may have been applied" in str(error)
    assert isinstance(error, oncemore.OutcomeUnknown)
    assert isinstance(error, CoreClientError)
    found = session.reconcile(error)
    assert (found.found, found.why) == ("applied", "the finding is accepted")
    assert session.resolve(error).found == "applied"
    assert len(core.of(ACCEPT)) == core.acted == 1


@pytest.mark.req("HTTP-9")
@pytest.mark.parametrize("ending", [LOST, UNHEARD, STALLED, 500, 503])
def test_no_layer_sends_an_action_again(core: Core, ending: int | str) -> None:
    core.fail(ACCEPT, ending)
    session = session_of(core, retry_attempts=5, timeout_s=1.0)
    stubborn = oncemore.retrying(session.accept, on=Exception, attempts=4, wait=[0.0, 0.01])
    with pytest.raises(ActionOutcomeUnknown, match="an earlier one may have been applied") as caught:
        stubborn("f-12")
    other = session.client.session("s-4")
    with pytest.raises(ActionOutcomeUnknown):
        other.accept("f-12")
    assert len(core.of(ACCEPT)) == 1
    assert caught.value.lost.action == "accept"
    assert session.client.counter.exhausted == 0  # nothing was to be tried again


@pytest.mark.req("HTTP-9")
@pytest.mark.parametrize("status", [400, 404, 409, 422, 429])
def test_a_refused_action_is_known_not_to_be_applied(core: Core, status: int) -> None:
    core.fail(ACCEPT, status)
    session = session_of(core)
    with pytest.raises(CoreClientHTTPError) as caught:
        session.accept("f-12")
    assert not isinstance(caught.value, ActionOutcomeUnknown)
    assert caught.value.status_code == status
    assert session.accept("f-12")["status"] == "accepted"


def test_nothing_is_sent_to_a_core_whose_state_cannot_be_read() -> None:
    with refusing() as server, pytest.raises(CoreClientError) as caught:
        CoreClient(server.url, retry_backoff_seconds=0, counter=Exhaustion()).session("s-4").accept("f-12")
    assert not isinstance(caught.value, ActionOutcomeUnknown)
    with serve(answers(500)) as server, pytest.raises(CoreClientHTTPError):
        CoreClient(server.url, retry_backoff_seconds=0, counter=Exhaustion()).session("s-4").accept("f-12")
    assert all(request.startswith(b"GET ") for request in server.requests)


def test_an_action_that_never_left_is_no_unknown_outcome(core: Core) -> None:
    session = session_of(core)
    lost = Lost("accept", "s-4", "f-12", "a-1", {}, session.state("f-12"), late=False)
    with refusing() as server, pytest.raises(CoreClientError) as caught:
        session.client.base_url = server.url.rstrip("/")
        session._send(lost)
    assert not isinstance(caught.value, ActionOutcomeUnknown)


@pytest.mark.req("HTTP-10")
def test_an_action_that_was_not_applied_is_sent_once_more_by_resolve_only(core: Core) -> None:
    core.fail(ACCEPT, UNHEARD)
    session = session_of(core)
    error = lose(session, "accept", "f-12")
    found = session.resolve(error)
    assert (found.found, found.why) == ("applied", "it had not been applied, and was sent once more")
    assert found.now.finding["status"] == "accepted"
    assert (len(core.of(ACCEPT)), core.acted) == (2, 1)
    core.fail(ACCEPT, UNHEARD, UNHEARD)
    core.findings["f-12"]["status"] = "open"
    error = lose(session, "accept", "f-12")
    with pytest.raises(ActionOutcomeUnknown):  # lost a second time: unknown again, and remembered again
        session.resolve(error)
    assert len(core.of(ACCEPT)) == 4
    lose(session, "accept", "f-12")
    assert len(core.of(ACCEPT)) == 4


@pytest.mark.req("HTTP-10")
def test_a_request_that_may_still_be_on_its_way_is_unclear(core: Core) -> None:
    core.fail(ACCEPT, STALLED)
    session = session_of(core, timeout_s=1.0)
    error = lose(session, "accept", "f-12")
    core.findings["f-12"]["status"] = "open"  # Core is still at it
    found = session.resolve(error)
    assert found.found == "unclear"
    assert "may still be on its way" in found.why
    lose(session, "accept", "f-12")
    assert len(core.of(ACCEPT)) == 1
    session.settle(error)
    assert session.accept("f-12")["status"] == "accepted"


@pytest.mark.req("HTTP-10")
def test_advance_and_discuss_are_told_by_what_they_change(core: Core) -> None:
    session = session_of(core)
    core.fail("POST /v1/sessions/s-4/advance", LOST, UNHEARD)
    error = lose(session, "advance")
    assert session.reconcile(error).why == "the session went from 1 to 2"
    error = lose(session, "advance")
    assert session.reconcile(error).found == "not_applied"
    core.fail("POST /v1/sessions/s-4/findings/f-12/discuss", LOST, UNHEARD)
    error = lose(session, "discuss", "f-12", text="why?")
    found = session.reconcile(error)
    assert (found.found, found.why) == ("applied", f"Core shows its id, {error.lost.action_id}")
    error = lose(session, "discuss", "f-12", text="why?")
    core.findings["f-12"]["discussion"].append({"text": "somebody else"})
    found = session.reconcile(error)
    assert (found.found, found.why) == ("unclear", "it was 1 and is 2: somebody else has acted")


def lost(action: str = "accept", before: Any = "open", *, late: bool = False) -> Lost:
    return Lost(action, "s-4", "f-12", "a-1", {}, State({"position": 1}, {"status": before}), late)


@pytest.mark.parametrize(
    ("given", "now", "found"),
    [
        (lost(), State({}, {"status": "accepted"}), "applied"),
        (lost(before="accepted"), State({}, {"status": "accepted"}), "applied"),
        (lost(), State({}, {"status": "open"}), "not_applied"),
        (lost(late=True), State({}, {"status": "open"}), "unclear"),
        (lost(late=True), State({}, {"status": "accepted"}), "applied"),
        (lost(), State({}, {"status": "rejected"}), "unclear"),
        (lost(), State({}, {"other": 1}), "unclear"),
        (lost(), State({}, ["?"]), "unclear"),
        (lost("reject"), State({}, {"status": "rejected"}), "applied"),
        (lost(), State({"log": [{"id": "a-1"}]}, None), "applied"),
        (lost(), State({"log": [{"id": "a-12"}]}, {"status": "open"}), "not_applied"),
        (lost("advance"), State({"position": 2}), "applied"),
        (lost("advance"), State({"position": 1}), "not_applied"),
    ],
)
def test_what_is_told_from_what_is_seen(given: Lost, now: State, found: str) -> None:
    assert judge(given, now).found == found


def test_a_state_too_large_to_be_looked_through_mentions_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lit_session, "MOST_LOOKED_AT", 10)
    assert judge(lost(), State({"log": [0] * 20}, {"status": "open"})).found == "not_applied"


def test_paths_and_judgement_can_be_ones_own(core: Core) -> None:
    core.fail(ACCEPT, LOST)
    session = Session(
        CoreClient(core.url, retry_backoff_seconds=0, counter=Exhaustion()), "s-4",
        judge=lambda lost, now: Reconciled("unclear", f"{lost.action}: ask Core's people", now),
    )  # fmt: skip
    error = lose(session, "accept", "f-12")
    assert session.resolve(error).why == "accept: ask Core's people"
    odd = Session(session.client, "s/4", read="/v1/reviews/{session}")
    with pytest.raises(CoreClientHTTPError, match="404"):
        odd.state("f/12")
    assert core.visits[-1].path == "/v1/reviews/s%2F4"


def test_only_actions_of_the_profile_are_sent(core: Core) -> None:
    with pytest.raises(oncemore.UsageError, match="it takes accept, reject, advance, discuss"):
        session_of(core).act("delete", "f-12", {})
    with pytest.raises(oncemore.UsageError, match="is no lost action"):
        session_of(core).reconcile("f-12")  # type: ignore[arg-type]
    assert core.visits == []


def test_a_lost_action_can_be_handed_to_another_process(core: Core) -> None:
    core.fail(ACCEPT, LOST)
    error = pickle.loads(pickle.dumps(lose(session_of(core), "accept", "f-12")))  # noqa: S301 - our own
    assert session_of(core).reconcile(error).found == "applied"


def test_how_many_are_remembered_is_bounded(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lit_session, "MOST_UNSETTLED", 2)
    session = session_of(core)
    for name in ("f-12", "f-13", "f-14"):
        core.findings[name] = {"status": "open"}
        core.fail(ACCEPT.replace("f-12", name), LOST)
        lose(session, "accept", name)
    assert [finding for _, _, finding in session.client.unsettled] == ["f-13", "f-14"]
