"""The memory of a store: no older version of a governed policy, no changed content under one version."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import PolicyError, StaleDecision
from oncemore.governance import accepted_policies
from oncemore.log.entry_codec import read_body
from oncemore.log.store import Conflict
from oncemore.policy import files
from oncemore.queries.ledger_reports import write_reports
from oncemore.queries.policy_signatures import list_accepted, verify_policy
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.signed_policies import PolicySigners

POLICY = """profile: mine
version: retry-loop-v{version}
governed: true
change_reason: fewer calls
reviewer: the council
retry_policy: {{timeout_s: 5, max_attempts: {attempts}}}
"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


def write_policy(signers: PolicySigners, version: str, attempts: int = 3, more: str = "") -> Path:
    """Write and sign a version of the policy, and forget what this process has loaded."""
    path = signers.folder / "mine.yaml"
    path.write_text(POLICY.format(version=version, attempts=attempts) + more)
    files.forget()
    return signers.sign(path)


def run_once(path: Any, number: int = 1) -> list[int]:
    """Run a new step under a policy; return the calls that were made."""
    calls: list[int] = []

    @oncemore.step(effect="idempotent", name="work", policy=path)
    def work(number: int) -> int:
        calls.append(number)
        return number

    work(number)
    return calls


def refusal_of(path: Any, number: int = 1) -> str:
    calls: list[int] = []

    @oncemore.step(effect="idempotent", name="work", policy=path)
    def work(number: int) -> int:
        calls.append(number)
        return number

    with pytest.raises(PolicyError) as caught:
        work(number)
    with pytest.raises(PolicyError):
        work.submit(number)
    assert calls == []
    return str(caught.value)


def test_an_older_version_is_refused_and_a_higher_one_accepted(
    engine: oncemore.Engine, policy_signers: PolicySigners
) -> None:
    path = write_policy(policy_signers, "1.2")
    assert run_once(path, 1) == [1]
    write_policy(policy_signers, "1.10", attempts=4)
    assert run_once(path, 2) == [2]
    for version in ("1.2", "1.9", "0.99"):
        write_policy(policy_signers, version)
        refusal = refusal_of(path, 3)
        assert (
            f"{path} is mine retry-loop-v{version}, and this store accepted mine retry-loop-v1.10" in refusal
        )
        assert policy_signers.keys["steward"].key_id in refusal
    write_policy(policy_signers, "2.0")
    assert run_once(path, 3) == [3]
    # A run that is done needs no policy any more: its value is still returned.
    write_policy(policy_signers, "1.2")
    assert run_once(path, 3) == []


def test_the_memory_outlives_the_newer_file_and_its_expiry(
    engine: oncemore.Engine, policy_signers: PolicySigners
) -> None:
    old = write_policy(policy_signers, "1.0").read_bytes()
    with FakeClock() as clock:
        path = write_policy(policy_signers, "2.0", more="expires: 2999-01-01\n")
        run_once(path)
        clock.advance(1000 * 366 * 86400)
        files.forget()
        with pytest.raises(PolicyError, match="expired on 2999-01-01"):
            run_once(path, 2)
        path.unlink()
        path.write_bytes(old)
        policy_signers.sign(path)
        files.forget()
        assert "an older version is not used again" in refusal_of(path, 2)


def test_a_packaged_profile_is_remembered_too(
    engine: oncemore.Engine, policy_signers: PolicySigners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the published layout that is deleted does not bring the older packaged one back."""
    path = policy_signers.folder / "p2-batch-reporting.yaml"
    path.write_text("profile: p2-batch-reporting\nversion: retry-loop-v12.0\nextends: p2-batch-reporting\n")
    monkeypatch.setenv("ONCEMORE_POLICY_ROOT", str(policy_signers.folder))
    run_once("kfm-rules")
    files.forget()
    policy_signers.sign(path)
    run_once("p2-batch-reporting", 2)
    path.unlink()
    files.forget()
    assert "accepted p2-batch-reporting retry-loop-v12.0" in refusal_of("p2-batch-reporting", 3)
    assert [(each.name, each.signature[:9]) for each in list_accepted(str(engine.url))] == [
        ("kfm-rules", "packaged,"),
        ("p2-batch-reporting", "signed by"),
    ]


def test_a_changed_number_under_the_same_version_is_refused_and_a_changed_comment_is_not(
    engine: oncemore.Engine, policy_signers: PolicySigners
) -> None:
    path = write_policy(policy_signers, "1.0")
    run_once(path)
    write_policy(policy_signers, "1.0", more="# a comment\n")
    assert run_once(path, 2) == [2]
    write_policy(policy_signers, "1.0", attempts=9)
    assert "policies.default.max_attempts: 3 → 9" in refusal_of(path, 3)
    write_policy(policy_signers, "1.1", attempts=9)
    assert run_once(path, 3) == [3]


def test_a_field_that_a_newer_package_adds_is_not_a_change(
    engine: oncemore.Engine, policy_signers: PolicySigners
) -> None:
    path = write_policy(policy_signers, "1.0")
    run_once(path)
    (accepted,) = list_accepted(engine.url)
    profile = files.load(path)
    fewer = {name: value for name, value in accepted.content.items() if not name.endswith("retry_cost")}
    accepted_policies.check_accepted(accepted._replace(content=fewer), profile)
    with pytest.raises(PolicyError, match="retry_cost: none → 1"):
        accepted_policies.check_accepted(accepted._replace(content=fewer, digest="other"), profile)


@pytest.mark.req("VER-4")
def test_each_bump_is_one_entry_with_versions_digests_person_and_reason(
    engine: oncemore.Engine, policy_signers: PolicySigners
) -> None:
    with oncemore.context(actor="operator"):
        for version in ("1.0", "1.0", "1.1"):
            path = write_policy(policy_signers, version)
            run_once(path, int(version[-1]))
            run_once(path, 7)
    first, second = [
        read_body(entry, engine.cipher)["decision"] for entry in engine.store.read_entries("accepted/mine")
    ]
    assert (first["old_version"], first["new_version"]) == ("", "retry-loop-v1.0")
    assert (second["old_version"], second["new_version"]) == ("retry-loop-v1.0", "retry-loop-v1.1")
    assert (second["old_digest"], second["new_digest"]) == (first["new_digest"], files.load(path).digest)
    assert (second["actor"], second["reviewer"], second["reason"]) == (
        "operator",
        "the council",
        "fewer calls",
    )
    assert "steward" in second["signature"]
    # In the file of the ledger, a bump is one entry too.
    (path_of_file,) = (path for path in write_reports(engine, Path("reports")) if "versioning" in path)
    entries = json.loads(Path(path_of_file).read_text("utf-8"))["entries"]
    bumps = [entry for entry in entries if entry["kind"] == "policy_version" and entry["policy"] == "mine"]
    assert [entry["new_version"] for entry in bumps] == ["retry-loop-v1.0", "retry-loop-v1.1"]
    assert bumps[1]["old_version"] == "retry-loop-v1.0"
    assert (bumps[1]["old_digest"], bumps[1]["new_digest"]) == (first["new_digest"], second["new_digest"])
    assert (bumps[1]["by"], bumps[1]["reason"]) == ("operator", "fewer calls")
    assert len({entry["id"] for entry in entries}) == len(entries)


def test_a_changed_copy_of_an_older_policy_is_refused_as_well(
    engine: oncemore.Engine, policy_signers: PolicySigners
) -> None:
    path = write_policy(policy_signers, "2.0")
    run_once(path)
    write_policy(policy_signers, "1.0")
    work = oncemore.step(effect="idempotent", policy=path, timeout=1)(lambda: 1)
    with pytest.raises(PolicyError, match="an older version is not used again"):
        work()


def test_of_two_processes_the_second_sees_the_version_of_the_first(
    engine: oncemore.Engine, policy_signers: PolicySigners, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_policy(policy_signers, "1.0")
    profile = files.load(path)
    append, other = engine.store.append, []

    class Refused:
        def wait(self) -> Conflict:
            return Conflict("accepted/mine", None)

    def append_after_other(batch: Any) -> Any:
        """Another process accepts version 2.0 between the read and the write."""
        if not other:
            other.append(1)
            newer = files.load(write_policy(policy_signers, "2.0"))
            accepted_policies.accept_policy(engine, newer)
        return append(batch)

    monkeypatch.setattr(engine.store, "append", append_after_other)
    with pytest.raises(PolicyError, match=r"accepted mine retry-loop-v2\.0"):
        accepted_policies.accept_policy(engine, profile)
    monkeypatch.setattr(engine.store, "append", lambda batch: Refused())
    with pytest.raises(StaleDecision, match="changed 20 times"):
        accepted_policies.accept_policy(engine, files.load(write_policy(policy_signers, "3.0")))


def test_the_policy_in_force_stays_in_force_in_a_running_process(
    engine: oncemore.Engine, policy_signers: PolicySigners, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_policy(policy_signers, "1.0")
    assert run_once(path) == [1]
    path.write_text(POLICY.format(version="1.1", attempts=9))  # not signed
    with pytest.raises(PolicyError, match="was changed after steward"):
        files.load(path)
    made = oncemore.step(effect="idempotent", policy=path)(lambda: 1)
    assert made.run().value == 1
    made = oncemore.step(effect="idempotent", policy=path)(lambda: 2)
    assert caplog.text.count("mine retry-loop-v1.0 stays in force in this process") == 1
    assert "was changed after steward" in caplog.text
    # A new process refuses the file, and makes no call.
    code = f"import oncemore; oncemore.step(effect='pure', policy={str(path)!r})(lambda: print('ran'))()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "was changed after steward" in done.stderr
    assert done.stdout == ""
    # Signed again, it is in force.
    policy_signers.sign(path)
    assert run_once(path, 3) == [3]
    assert [each.version for each in list_accepted(engine.url)] == ["retry-loop-v1.1"]


def test_a_waiting_run_keeps_its_policy_over_an_upgrade(
    engine: oncemore.Engine, policy_signers: PolicySigners
) -> None:
    path = write_policy(policy_signers, "1.0", attempts=2)
    failing = [True]

    def make() -> Any:
        @oncemore.step(effect="idempotent", name="work", policy=path)
        def work() -> str:
            if failing[0]:
                raise ConnectionResetError
            return "done"

        return work

    with FakeClock():
        make().submit()
        write_policy(policy_signers, "2.0", attempts=5)
        run = make().run()
        assert (run.status, run.attempts[-1].number) == ("HARD_FAIL", 2)
        assert run.proofs[-1]["policy"]["version"] == "retry-loop-v1.0"
        # The next run of the key has the new policy.
        failing[0] = False
        assert make().rerun(reason="upgraded") == "done"


def test_verify_compares_with_the_memory_of_a_store(
    engine: oncemore.Engine, policy_signers: PolicySigners
) -> None:
    path = write_policy(policy_signers, "2.0")
    fresh = verify_policy(str(path), accepted=_copy_url(engine))
    assert (fresh.good, fresh.accepted) == (True, "")
    run_once(path)
    assert verify_policy(str(path), accepted=engine.url).accepted == "retry-loop-v2.0"
    write_policy(policy_signers, "1.0")
    old = verify_policy(str(path), accepted=engine.url)
    assert (old.good, old.accepted) == (False, "retry-loop-v2.0")
    assert "an older version is not used again" in old.fault


def _copy_url(engine: oncemore.Engine) -> str:
    """Return the address of the store, which exists from now on."""
    engine.now()
    return engine.url


def test_the_number_of_cached_profiles_is_bounded(
    engine: oncemore.Engine, policy_signers: PolicySigners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemore.steps.recorded_policies.MOST_KNOWN", 1)
    path = write_policy(policy_signers, "1.0")
    assert run_once(path, 1) + run_once("kfm-rules", 2) + run_once(path, 3) == [1, 2, 3]
