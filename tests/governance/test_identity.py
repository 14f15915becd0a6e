"""Every decision for every kind of identity: user of the process, holder of a token, owner of a key."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import (
    Error,
    NeedsReview,
    NotPermitted,
    OutcomeUnknown,
    PermanentError,
    StaleDecision,
    UsageError,
)
from oncemore.governance import identity as identities
from oncemore.governance.identity import PresentedToken, decide_as, identify_token
from oncemore.governance.keys import generate_key
from oncemore.governance.record_checks import check_records
from oncemore.governance.role_model import ProcessUser
from oncemore.governance.signed_decisions import KeySigner
from oncemore.log.entry_codec import read_body
from oncemore.outbox import OutboxRelay
from oncemore.queries import limits as queries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock

#: The role of each person; `nobody` has none. All of them also have a token and a key.
PEOPLE = {"lead": "reviewer", "second": "reviewer", "duty": "operator", "auditor": "viewer"}
KINDS = ("user", "token", "key")


class Staff:
    """The people of a store with roles, each with a user, a token and a key."""

    def __init__(self, engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self._patch = engine, monkeypatch
        self.become("lead")
        engine.roles.assign("lead", "reviewer", reason="head of the archive")
        self.tokens, self.keys = dict[str, str](), dict[str, Any]()
        for name, role in PEOPLE.items():
            self.become("lead")
            engine.roles.assign(name, role, reason="staff")
            self.tokens[name] = engine.roles.create_token(name, role, expires=3600, reason="dashboard")
            self.keys[name] = generate_key()
            public = self.keys[name].save_files(folder / name)
            engine.roles.add_key(name, public, role, reason="staff")
        engine.datasets.register("public", care_label="Public", reason="first")
        engine.datasets.register("burials", care_label="Sensitive · Council only", reason="first")
        self.become("service")

    def become(self, name: str) -> None:
        """Let this process run as another user."""
        user = ProcessUser(name, 2000 + len(name))
        self._patch.setattr(identities, "read_process_user", lambda: user)

    def decide(self, name: str, kind: str, decide: Callable[[], object]) -> object:
        """Make a decision as a person, by one kind of identity."""
        with ExitStack() as stack:
            # A token or a key is used by a process that has no role of its own.
            self.become(name if kind == "user" else "service")
            stack.callback(self.become, "service")
            if kind == "token":
                stack.enter_context(decide_as(identify_token(self.engine, self.tokens[name])))
            elif kind == "key":
                stack.enter_context(decide_as(KeySigner(self.keys[name])))
            return decide()


@pytest.fixture
def staff(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staff:
    """A store with roles."""
    return Staff(engine, tmp_path, monkeypatch)


# The decisions: each prepares its work, and returns the decision and the entity that must record it ----


def make_step(dataset: str, error: BaseException | None, **options: Any) -> Any:
    """Return a step that raises an error, or returns its item."""

    def work(item: int) -> int:
        if error is not None:
            raise error
        return item

    return oncemore.step(effect=options.pop("effect", "idempotent"), dataset=dataset, **options)(work)


def run_until_held(work: Any) -> str:
    """Call a step that fails or is held, and return the id of its run."""
    with suppress(Error):
        work(1)
    return str(work.last_run(1).run_id)


def held_run(dataset: str) -> str:
    return run_until_held(make_step(dataset, NeedsReview("ODD", "look"), name="odd"))


def release_item(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    run = held_run(dataset)
    return lambda: engine.quarantine.release(run, by="x", reason="fine")


def reject_item(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    run = held_run(dataset)
    return lambda: engine.quarantine.reject(run, by="x", reason="no")


def rerun_item(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    run = held_run(dataset)
    return lambda: engine.quarantine.rerun(run, by="x", reason="one more")


def settle_item(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    work = make_step(dataset, TimeoutError("lost"), name="pay", effect="once")
    with suppress(OutcomeUnknown):
        work(1)
    run = work.last_run(1).run_id
    return lambda: engine.quarantine.settle(run, oncemore.applied(7), by="x", reason="seen at the bank")


def settle_step(staff: Staff, dataset: str) -> Any:
    work = make_step(dataset, TimeoutError("lost"), name="pay", effect="once")
    with suppress(OutcomeUnknown):
        work(1)
    return lambda: work.settle(oncemore.not_applied(), 1, reason="seen at the bank")


def escalate_run(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    work = make_step(dataset, NeedsReview("ODD", "look"), name="odd")
    run_until_held(work)
    return lambda: engine.escalations.open(work.last_run(1), reason="odd")


def acknowledge(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    run_until_held(make_step(dataset, PermanentError("broken"), name="broken"))
    (escalation,) = engine.escalations.list()
    return lambda: engine.escalations.acknowledge(escalation, reason="seen")


def rerun_step(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    errors: list[BaseException] = [PermanentError("broken")]

    def work(item: int) -> int:
        if errors:
            raise errors.pop()
        return item

    step: Any = oncemore.step(effect="idempotent", dataset=dataset, name="broken")(work)
    run_until_held(step)
    if dataset == "burials":
        (review,) = engine.escalations.list()
        staff.decide("lead", "user", lambda: engine.escalations.acknowledge(review, reason="seen"))
    return lambda: step.rerun(1, reason="repaired")


def cancel_step(staff: Staff, dataset: str) -> Any:
    step = make_step(dataset, None, name="later")
    step.submit(1)
    return lambda: step.cancel(1, reason="not needed")


def change_status(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    return lambda: engine.datasets.block(dataset, reason="objection")


def relabel(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    return lambda: engine.datasets.label(dataset, licence="CC-BY-4.0", reason="letter")


def turn_switch_on(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    return lambda: engine.switches.on(reason="stop")


def release_halt(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    staff.decide("duty", "user", lambda: engine.switches.on(pipeline="ingest", reason="halted"))
    return lambda: engine.switches.off(pipeline="ingest", reason="mended")


def erase_key(staff: Staff, dataset: str) -> Any:
    engine, step = staff.engine, make_step(dataset, None, name="done")
    step(1)
    return lambda: engine.erase(step.key(1), reason="asked to by the customer")


def redeliver(staff: Staff, dataset: str) -> Any:
    oncemore.step(effect="outbox", name="tell", dataset=dataset)(emit_item)(1)
    delivered: list[Any] = []
    relay = OutboxRelay(staff.engine, {"news": delivered.append})
    relay.run_once()
    return lambda: relay.redeliver(delivered[0].id, reason="lost")


def release_resource(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    cooldown = oncemore.Cooldown(resource="product-1")
    # Its run is quarantined too, and ends with the release: both entries have the decision.
    run_until_held(make_step(dataset, NeedsReview("ODD", "look"), name="fetch", cooldown=cooldown))
    return lambda: engine.cooldowns.release("product-1", reason="it is back")


def reset_breaker(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    with suppress(ConnectionError), oncemore.Breaker("stac", failures=1, shared=True):
        raise ConnectionError("refused")
    return lambda: queries.reset_breaker(engine, "stac", "it was our own network", "x")


def prune(staff: Staff, dataset: str) -> Any:
    engine = staff.engine
    return lambda: engine.prune(older_than=86_400, reason="retention")


#: Decisions about data: a reviewer if the data is sensitive, else an operator.
ABOUT_DATA = (
    release_item, reject_item, rerun_item, settle_item, settle_step, acknowledge, rerun_step, cancel_step,
    change_status, relabel, erase_key, redeliver, release_resource,
)  # fmt: skip
ABOUT_NO_DATA = (escalate_run, turn_switch_on, release_halt, reset_breaker, prune)


def list_decisions(engine: Engine) -> list[dict[str, Any]]:
    """Return all recorded decisions in order."""
    bodies = (read_body(entry, engine.cipher) for entry in engine.store.read_entries())
    return [body["decision"] for body in bodies if "decision" in body]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dataset", ["public", "burials"])
@pytest.mark.parametrize("prepare", ABOUT_DATA, ids=lambda prepare: prepare.__name__)
def test_the_role_for_decisions_about_data(staff: Staff, prepare: Any, dataset: str, kind: str) -> None:
    decide = prepare(staff, dataset)
    refused = ["auditor"] if dataset == "public" else ["auditor", "duty"]
    for name in refused:
        with pytest.raises(NotPermitted, match="this decision needs the role") as error:
            staff.decide(name, kind, decide)
        assert error.value.reason == "role_missing"
    # The process itself has no role, whatever a token or a key in its hands had before.
    with pytest.raises(NotPermitted, match=r"service \(uid 2007\) has none"):
        decide()
    check_made(staff, "duty" if dataset == "public" else "lead", kind, decide)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prepare", ABOUT_NO_DATA, ids=lambda prepare: prepare.__name__)
def test_the_role_for_decisions_about_work(staff: Staff, prepare: Any, kind: str) -> None:
    decide = prepare(staff, "public")
    with pytest.raises(NotPermitted, match="this decision needs the role operator"):
        staff.decide("auditor", kind, decide)
    check_made(staff, "duty", kind, decide)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_the_role_for_the_release_of_a_dataset_and_of_held_runs(staff: Staff, kind: str) -> None:
    engine = staff.engine
    work = make_step("public", None, name="gated", policy="standard")
    staff.decide("duty", "user", lambda: engine.datasets.block("public", reason="objection"))
    run = run_until_held(work)
    releases = (
        lambda: engine.datasets.release("public", reason="settled"),
        lambda: engine.quarantine.release(run, by="x", reason="settled"),
        lambda: engine.escalations.acknowledge(engine.escalations.list()[0], reason="seen"),
    )
    for release in releases:
        with pytest.raises(NotPermitted, match="needs the role reviewer"):
            staff.decide("duty", kind, release)
        check_made(staff, "lead", kind, release)
    assert work(1) == 1


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked_by", ["lead", "service"])
def test_an_own_request_is_not_approved_in_another_form(staff: Staff, kind: str, asked_by: str) -> None:
    work = make_step("public", None, name="delete", requires_approval=True)
    staff.become(asked_by)
    with pytest.raises(NotPermitted, match="waits for an approval"):
        work(1)
    run = work.last_run(1).run_id

    def approve() -> object:
        return staff.engine.approvals.approve(run, reason="fine")

    with pytest.raises(NotPermitted, match="needs the role reviewer"):
        staff.decide("duty", kind, approve)
    if asked_by == "lead":
        with pytest.raises(NotPermitted, match="asked for this approval") as own:
            staff.decide("lead", kind, approve)
        assert own.value.reason == "own_request"
    check_made(staff, "second", kind, approve)
    revoke = staff.engine.approvals.revoke
    check_made(staff, "duty", kind, lambda: revoke(run, reason="changed my mind"))


def check_made(staff: Staff, name: str, kind: str, decide: Callable[[], object]) -> None:
    """Make a decision as a person, and check what is recorded of it."""
    staff.decide(name, kind, decide)
    decision = list_decisions(staff.engine)[-1]
    proof = {
        "user": f"uid {2000 + len(name)}",
        "token": f"token {staff.tokens[name].split('_')[1]}",
        "key": f"key {staff.keys[name].key_id}",
    }
    assert decision["actor"].startswith(f"{name} ({proof[kind]})")
    assert decision["reason"]
    assert ("signed" in decision) == (kind == "key")
    report = check_records(staff.engine.store, staff.engine.cipher)
    assert not [finding for finding in report.findings if finding.rule == "signature_invalid"]


# Tokens ---------------------------------------------------------------------------------------------


def test_a_token_is_stored_as_a_digest_expires_and_is_revoked(
    staff: Staff, clock: FakeClock, tmp_path: Path
) -> None:
    engine, token = staff.engine, staff.tokens["duty"]
    found = identify_token(engine, token)
    assert (found.kind, found.name, found.role) == ("token", "duty", "operator")
    secret = token.split("_", 2)[2].encode()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_bytes()]
    for wrong in ("", "duty", token[:-1], token + "x", token.replace("oncemore", "other"), "a_b_c"):
        with pytest.raises(NotPermitted, match="not known here") as error:
            identify_token(engine, wrong)
        assert error.value.reason == "identity_unknown"
        assert not wrong or wrong not in str(error.value) or len(wrong) < 8
    assert [each.name for each in engine.roles.list_tokens()] == ["auditor", "duty", "lead", "second"]
    # The identity of a session loses its power with the token.
    staff.become("lead")
    engine.roles.revoke_token(found.proof.removeprefix("token "), reason="left")
    staff.become("service")
    with decide_as(found), pytest.raises(NotPermitted, match="was revoked"):
        engine.switches.on(reason="stop")
    with pytest.raises(UsageError, match="there is no token"):
        staff.decide("lead", "user", lambda: engine.roles.revoke_token("zz", reason="typo"))
    lead = identify_token(engine, staff.tokens["lead"])
    clock.advance(3601)
    with pytest.raises(NotPermitted, match="has expired"):
        identify_token(engine, staff.tokens["lead"])
    with decide_as(lead), pytest.raises(NotPermitted, match="has expired"):
        engine.switches.on(reason="stop")
    # A new token takes the place of the expired ones.
    staff.decide(
        "lead", "user", lambda: engine.roles.create_token("duty", "operator", expires=60, reason="again")
    )
    assert [each.name for each in engine.roles.list_tokens()] == ["duty"]


def test_a_token_of_another_store_is_unknown_and_a_store_without_roles_knows_none(
    staff: Staff, tmp_path: Path
) -> None:
    with oncemore.open("memory:") as other:
        with pytest.raises(NotPermitted, match="not known here"):
            identify_token(other, staff.tokens["lead"])
        for credential in (PresentedToken(staff.tokens["lead"]), KeySigner(staff.keys["lead"])):
            with decide_as(credential), pytest.raises(NotPermitted, match="this store has no roles"):
                other.switches.on(reason="stop")
    assert repr(PresentedToken(staff.tokens["lead"])) == "<PresentedToken>"
    with decide_as(PresentedToken(staff.tokens["duty"])):
        staff.engine.switches.on(reason="stop")
    assert staff.engine.switches.status()[0].by.startswith("duty (token ")


def test_bad_input_for_tokens_and_keys(staff: Staff, tmp_path: Path) -> None:
    roles = staff.engine.roles
    staff.become("lead")
    for expires in (0, -1, 1e12, True):
        with pytest.raises(UsageError, match="expires is"):
            roles.create_token("duty", "operator", expires=expires, reason="no")
    with pytest.raises(UsageError, match="role is 'king'"):
        roles.create_token("duty", "king", expires=60, reason="no")
    with pytest.raises(UsageError, match="a name without parentheses"):
        roles.create_token("lead (uid 0)", "operator", expires=60, reason="no")
    with pytest.raises(UsageError, match="is registered for lead"):
        roles.add_key("second", tmp_path / "lead.pub", "reviewer", reason="a second name")
    with pytest.raises(UsageError, match="no key 'SHA256:x' is registered"):
        roles.remove_key("SHA256:x", reason="typo")
    assert {key.name: key.role for key in roles.list_keys()} == PEOPLE


# Decisions that have no signature -------------------------------------------------------------------


def test_decisions_without_a_signature_say_so(staff: Staff) -> None:
    step = make_step("public", None, name="import")
    marked: Any = lambda: step.mark_done(5, value=5, reason="done elsewhere")  # noqa: E731
    with pytest.raises(UsageError, match="cannot be signed"):
        staff.decide("duty", "key", marked)
    with pytest.raises(NotPermitted, match="needs the role operator"):
        staff.decide("auditor", "token", marked)
    staff.decide("duty", "token", marked)
    assert step(5) == 5


def emit_item(item: int) -> int:
    oncemore.current().emit("news", {"item": item})
    return item


def test_a_signed_decision_about_a_stale_item_is_refused(staff: Staff) -> None:
    engine, run = staff.engine, held_run("public")
    seen = engine.quarantine.show(run).item
    staff.decide("duty", "token", lambda: engine.quarantine.rerun(run, by="x", reason="one more"))
    with pytest.raises(StaleDecision):
        staff.decide("duty", "key", lambda: engine.quarantine.release(seen, by="x", reason="fine"))


def test_a_dead_letter_of_sensitive_data_is_released_by_a_reviewer(staff: Staff) -> None:
    engine = staff.engine
    emitting: Any = oncemore.step(effect="outbox", name="tell", dataset="burials")(emit_item)
    emitting(1)

    def refuse(message: object) -> None:
        raise PermanentError("no such list")

    OutboxRelay(engine, {"news": refuse}).run_once()
    (letter,) = engine.quarantine.list(kind="event")
    assert (letter.dataset, letter.care_label) == ("burials", "Sensitive · Council only")
    release: Any = lambda: engine.quarantine.release(letter, by="x", reason="again")  # noqa: E731
    with pytest.raises(NotPermitted, match="needs the role reviewer"):
        staff.decide("duty", "token", release)
    check_made(staff, "lead", "key", release)
