"""Roles: a decision is made by the user that the process runs as, and not by the name that is given."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import NeedsReview, NotPermitted, PermanentError, Quarantined, StepFailed, UsageError
from oncemore.governance import identity as roles
from oncemore.governance.role_model import ProcessUser

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.steps.engine import Engine

NAMES = ("lead", "duty", "auditor", "second", "service")
USERS = {name: ProcessUser(name, 2000 + at) for at, name in enumerate(NAMES)}


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that lets this process run as another user."""

    def become_user(name: str) -> None:
        monkeypatch.setattr(roles, "read_process_user", lambda: USERS[name])

    return become_user


@pytest.fixture
def governed(engine: Engine, become: Callable[[str], None]) -> Engine:
    """A store with a reviewer (lead), an operator (duty) and a viewer (auditor); second has no role."""
    become("lead")
    engine.roles.assign("lead", "reviewer", reason="head of the archive")
    engine.roles.assign("uid:2001", "operator", reason="on call")
    engine.roles.assign("auditor", "viewer", reason="audit")
    engine.datasets.register("public", care_label="Public", reason="first")
    engine.datasets.register("burials", care_label="Sensitive · Council only", reason="first")
    return engine


def refuse(user: str, decide: Callable[[], object], become: Callable[[str], None]) -> None:
    become(user)
    with pytest.raises(NotPermitted, match="this decision needs the role") as refused:
        decide()
    assert refused.value.reason == "role_missing"


def test_the_user_is_the_one_of_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME", "USERNAME", "LNAME"):
        monkeypatch.setenv(name, "somebody-else")
    user = roles.read_process_user()
    assert (user.uid, user.name != "somebody-else") == (os.geteuid(), True)
    import pwd

    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert roles.read_process_user().name == f"uid:{os.geteuid()}"


def test_a_store_without_roles_records_the_given_name(engine: Engine) -> None:
    assert engine.roles.list() == {}
    assert engine.roles.identity().role == ""
    record = engine.datasets.register("public", care_label="Public", reason="first", by="steward")
    assert record.by == "steward"


def test_the_first_role_is_a_reviewer_and_the_last_reviewer_stays(
    engine: Engine, become: Callable[[str], None]
) -> None:
    become("lead")
    with pytest.raises(UsageError, match="needs a reviewer"):
        engine.roles.assign("duty", "operator", reason="on call")
    engine.roles.assign("lead", "reviewer", reason="head")
    with pytest.raises(UsageError, match="needs a reviewer"):
        engine.roles.remove("lead", reason="holiday")
    engine.roles.assign("duty", "reviewer", reason="second")
    engine.roles.remove("lead", reason="left")
    assert engine.roles.list() == {"viewer": (), "operator": (), "reviewer": ("duty",)}
    refuse("lead", lambda: engine.roles.assign("lead", "reviewer", reason="back"), become)
    with pytest.raises(UsageError, match="role is 'king'"):
        engine.roles.assign("lead", "king", reason="why not")
    with pytest.raises(UsageError, match="user is ''"):
        engine.roles.assign("", "viewer", reason="why not")
    assert engine.verify().entries


def test_the_name_that_the_caller_gives_is_only_a_remark(
    governed: Engine, become: Callable[[str], None]
) -> None:
    become("duty")
    record = governed.datasets.block("public", reason="objection", by="lead")
    assert record.by == "duty (uid 2001) for lead"
    refuse("second", lambda: governed.datasets.withdraw("public", reason="letter", by="lead"), become)
    refuse("auditor", lambda: governed.datasets.withdraw("public", reason="letter", by="lead"), become)


def test_sensitive_data_need_a_reviewer(governed: Engine, become: Callable[[str], None]) -> None:
    def fail(item: int) -> str:
        raise PermanentError("broken")

    def review(item: int) -> str:
        raise NeedsReview("ODD", "look")

    become("service")
    failing = oncemore.step(effect="idempotent", name="fail", dataset="burials")(fail)
    odd = oncemore.step(effect="idempotent", name="odd", dataset="burials")(review)
    with pytest.raises(StepFailed):
        failing(1)
    with pytest.raises(Quarantined):
        odd(1)
    held = odd.last_run(1).run_id  # type: ignore[union-attr]
    escalation = governed.escalations.list(step="fail")[0]
    for decide in (
        lambda: governed.escalations.acknowledge(escalation, reason="seen", by="lead"),
        lambda: governed.quarantine.release(held, by="lead", reason="fine"),
        lambda: governed.datasets.block("burials", reason="objection"),
        lambda: failing.rerun(1, reason="repaired"),
    ):
        refuse("duty", decide, become)
    become("lead")
    assert governed.escalations.acknowledge(escalation, reason="seen").by == "lead (uid 2000)"
    governed.quarantine.reject(held, by="lead", reason="not needed")
    assert odd.last_run(1).status == "HARD_FAIL"  # type: ignore[union-attr]


def test_public_data_need_an_operator(governed: Engine, become: Callable[[str], None]) -> None:
    def review(item: int) -> str:
        raise NeedsReview("ODD", "look")

    odd = oncemore.step(effect="idempotent", name="odd", dataset="public")(review)
    with pytest.raises(Quarantined):
        odd(1)
    held = odd.last_run(1).run_id  # type: ignore[union-attr]
    for decide in (
        lambda: governed.quarantine.reject(held, by="duty", reason="no"),
        lambda: governed.switches.on(reason="stop", by="duty"),
        lambda: governed.switches.off(reason="go", by="duty"),
        lambda: odd.cancel(1, reason="no"),
        lambda: governed.escalations.open(held, reason="odd"),
    ):
        refuse("second", decide, become)
    become("duty")
    governed.quarantine.reject(held, by="duty", reason="not needed")
    with pytest.raises(NotPermitted):
        governed.datasets.release("public", reason="a release needs a reviewer")


def test_a_user_cannot_approve_what_the_user_asked_for(
    governed: Engine, become: Callable[[str], None]
) -> None:
    calls: list[int] = []
    work: Any = oncemore.step(effect="idempotent", name="delete", requires_approval=True)(calls.append)
    become("lead")
    with pytest.raises(NotPermitted, match="a call is approved after it was made") as early:
        work.approve(1, reason="in advance")
    assert early.value.reason == "own_request"
    with pytest.raises(NotPermitted, match="waits for an approval"):
        work(1)
    run = work.last_run(1).run_id
    with pytest.raises(NotPermitted, match=r"lead \(uid 2000\) asked for this approval") as own:
        governed.approvals.approve(run, reason="fine")
    assert own.value.reason == "own_request"
    governed.roles.assign("second", "reviewer", reason="second pair of eyes")
    refuse("duty", lambda: governed.approvals.approve(run, reason="fine"), become)
    become("second")
    assert governed.approvals.approve(run, reason="fine").by == "second (uid 2003)"
    become("lead")
    work(1)
    assert calls == [1]


def test_the_roles_are_those_of_the_store_wherever_the_command_runs(tmp_path: Any) -> None:
    """Real processes: --by, the environment and the working directory give no rights."""
    log = tmp_path / "log.db"
    with oncemore.open(log) as engine:
        engine.datasets.register("public", care_label="Public", reason="first", by="steward")
        engine.roles.assign("uid:999999", "reviewer", reason="a user that this process is not")

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "oncemore", *args, "--store", str(log)]
        environment = {**os.environ, "USER": "uid:999999", "LOGNAME": "uid:999999"}
        folder = tmp_path / "elsewhere"
        folder.mkdir(exist_ok=True)
        return subprocess.run(line, capture_output=True, text=True, check=False, env=environment, cwd=folder)

    refused = run("control", "dataset", "block", "public", "--reason", "objection", "--by", "uid:999999")
    assert refused.returncode != 0
    assert "needs the role operator" in refused.stderr
    assert run("control", "roles", "assign", "root", "reviewer", "--reason", "me").returncode != 0
    shown = run("control", "roles", "list")
    assert "reviewer  user  uid:999999" in shown.stdout
    assert "no role" in shown.stdout
