"""Versions, changes and dates of policies, and the file of trusted keys."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.errors import PolicyError, PolicyWarning, UsageError
from oncemore.governance.allowed_signers import (
    format_signer_line,
    load_allowed_signers,
    parse_allowed_signers,
)
from oncemore.governance.keys import generate_key
from oncemore.governance.policy_content import (
    describe_dates,
    find_content_changes,
    find_expiry,
    is_newer_version,
    parse_version,
)
from oncemore.policy import files
from oncemore.testing import FakeClock
from tests.cli.test_cli_policy import Ran

if TYPE_CHECKING:
    from pathlib import Path

    from tests.signed_policies import PolicySigners

DAY_S = 86_400.0
POLICY = "profile: mine\nversion: retry-loop-v1.0\nextends: kfm-rules\nretry_policy: {max_attempts: 4}\n"


# Versions -----------------------------------------------------------------------------------------------


def test_versions_are_compared_by_their_numbers() -> None:
    assert parse_version("retry-loop-v1.10") == (1, 10)
    assert [parse_version(text) for text in ("1.0", "retry-loop-v1", "retry-loop-v01.0", "")] == [None] * 4
    assert is_newer_version("retry-loop-v1.10", "retry-loop-v1.9")
    assert not is_newer_version("retry-loop-v1.9", "retry-loop-v1.10")
    assert not is_newer_version("retry-loop-v1.9", "retry-loop-v1.9")
    assert is_newer_version("2", "10")
    assert not is_newer_version("2", "2")


def test_changes_are_found_by_value_and_type() -> None:
    assert find_content_changes({"a": 1, "b": [1, 2]}, {"a": 1.0, "b": [1.0, 2]}) == ()
    changes = find_content_changes({"a": True, "b": 1.5, "c": 2}, {"a": 1, "b": 2.0, "d": "x"})
    assert [str(change) for change in changes] == ["a: True → 1", "b: 1.5 → 2", "d: none → x", "c: 2 → none"]


def git(*arguments: str) -> None:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def make_evidence(path: str, against: str) -> int:
    """Write the evidence of a changed file from assumed failures; return the exit code."""
    assumed = ("--failure-probability", "0.5", "--samples", "5", "--attempt-energy", "1", "--intensity", "1")
    return Ran("simulate", "--policy", path, "--evidence", against, *assumed).code


@pytest.mark.req("POL-7")
def test_a_changed_number_needs_a_new_version(tmp_path: Path) -> None:
    path, earlier = tmp_path / "mine.yaml", tmp_path / "earlier.yaml"
    earlier.write_text(POLICY)
    path.write_text(POLICY.replace("4", "5"))
    ran = Ran("policy", "check", "mine.yaml", "--against", "earlier.yaml")
    assert ran.code == 1
    assert "mine.yaml: policies.default.max_attempts changed (4 → 5)" in ran.words
    assert "the version is still retry-loop-v1.0" in ran.words
    path.write_text(POLICY.replace("4", "5").replace("v1.0", "v1.1"))
    assert make_evidence("mine.yaml", "earlier.yaml") == 0
    ran = Ran("policy", "check", "mine.yaml", "--against", "earlier.yaml")
    assert (ran.code, "compared with earlier.yaml (retry-loop-v1.0)" in ran.words) == (0, True)
    path.write_text(POLICY.replace("v1.0", "v0.9"))
    ran = Ran("policy", "check", "mine.yaml", "--against", "earlier.yaml", "--json")
    (fault,) = ran.json[0]["faults"]
    assert (ran.code, fault["field"]) == (1, "version")
    # Descriptions, dates and comments are not content.
    path.write_text(f"{POLICY}description: other\nowner: other\nreview_by: 2999-01-01\n# other\n")
    assert Ran("policy", "check", "mine.yaml", "--against", "earlier.yaml").code == 0


@pytest.mark.parametrize(
    "change",
    [
        "circuit_breaker: {cooldown_sec: 200}",
        "classify: {retryable: [HTTP_503]}",
        "providers: {eso: {retry_policy: {max_attempts: 2}}}",
        "bounds: {max_delay_s: [0, 20]}",
        "escalation: {permanent: other}",
        "on_non_retryable: [halt]",
    ],
)
def test_every_kind_of_content_needs_a_new_version(change: str, tmp_path: Path) -> None:
    (tmp_path / "earlier.yaml").write_text(POLICY)
    (tmp_path / "mine.yaml").write_text(f"{POLICY}{change}\n")
    ran = Ran("policy", "check", "mine.yaml", "--against", "earlier.yaml", "--json")
    assert (ran.code, bool(ran.json[0]["faults"])) == (1, True), ran.out


def test_a_file_is_compared_with_a_commit_of_git(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (tmp_path / "base.yaml").write_text("version: retry-loop-v1.0\nextends: kfm-rules\n")
    path = folder / "mine.yaml"
    path.write_text(POLICY.replace("kfm-rules", "../base.yaml"))
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    check = ("policy", "check", "policies/mine.yaml", "--against")
    assert "compared with HEAD (retry-loop-v1.0)" in Ran(*check, "HEAD").words
    # A number of the extended file changes the policy as well.
    (tmp_path / "base.yaml").write_text(
        "version: retry-loop-v1.1\nextends: kfm-rules\nretry_policy: {timeout_s: 7}\n"
    )
    files.forget()
    ran = Ran(*check, "HEAD")
    assert (ran.code, "policies.default.timeout_s changed (30 → 7)" in ran.words) == (1, True)
    path.write_text(path.read_text().replace("v1.0", "v1.1"))
    assert make_evidence("policies/mine.yaml", "HEAD") == 0
    assert Ran(*check, "HEAD").code == 0
    (folder / "new.yaml").write_text(POLICY)
    assert (
        "compared with HEAD (new file)"
        in Ran("policy", "check", "policies/new.yaml", "--against", "HEAD").words
    )


def test_what_cannot_be_compared_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(POLICY)
    for revision in ("nowhere", "--output=x", "HEAD:x"):
        ran = Ran("policy", "check", "mine.yaml", f"--against={revision}")
        assert (
            ran.code,
            "is neither a file, a profile nor a revision of git" in " ".join(ran.err.split()),
        ) == (2, True)
    assert Ran("policy", "check", "-", "--against", "HEAD").code == 2
    path.write_text("broken")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert Ran("policy", "check", "mine.yaml", "--against", "HEAD").code == 1
    path.write_text(POLICY)
    files.forget()
    ran = Ran("policy", "check", "mine.yaml", "--against", "HEAD")
    assert (ran.code, "as of HEAD cannot be compared" in " ".join(ran.err.split())) == (2, True)


def test_a_missing_git_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text(POLICY)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git cannot be run" in Ran("policy", "check", "mine.yaml", "--against", "HEAD").err


# Dates --------------------------------------------------------------------------------------------------


def test_reviews_are_due_a_quarter_later_or_on_their_day() -> None:
    day = find_expiry({"expires": "2026-11-18"})
    assert describe_dates({}, day) == ()
    assert describe_dates({"reviewed": "2026-08-18"}, day) == ()
    assert describe_dates({"reviewed": "2026-08-17"}, day)[0].startswith(
        "its review is overdue since 2026-11-17"
    )
    assert describe_dates({"reviewed": "2020-01-01", "review_by": "2026-11-18"}, day) == ()
    assert len(describe_dates({"review_by": "2026-11-17"}, day)) == 1
    assert describe_dates({"released": "2024-11-19"}, day) == ()
    assert describe_dates({"released": "2024-11-18"}, day) == (
        "its time to live ended on 2026-11-18 (released, ttl_months)",
    )
    assert len(describe_dates({"released": "2024-01-31", "ttl_months": 1}, day)) == 1
    assert describe_dates({"expires": "2026-11-19"}, day) == ()
    assert describe_dates({"expires": "2026-11-18"}, day) == ("it expired on 2026-11-18 (expires)",)


@pytest.mark.req("GOV-18", "VER-5")
def test_overdue_policies_are_listed_and_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEMORE_POLICY_ROOT", str(tmp_path))
    now = oncemore.clock.current.wall()
    dates = f"reviewed: {_day_of(now - 100 * DAY_S)}\nreleased: {_day_of(now - 760 * DAY_S)}\n"
    (tmp_path / "mine.yaml").write_text(f'version: "1"\nextends: standard\n{dates}')
    ran = Ran("policy", "list")
    assert "mine overdue: its review is overdue since" in ran.words
    assert "its time to live ended on" in ran.words
    with pytest.warns(PolicyWarning) as caught:
        files.profile("mine")
    assert "its review is overdue since" in str(caught[0].message)
    assert "its time to live ended" in str(caught[1].message)


def _day_of(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).date().isoformat()


def test_an_expired_file_that_is_not_governed_loads_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text('version: "1"\nextends: standard\nexpires: 2026-01-01\n')
    with pytest.warns(PolicyWarning, match="it expired on 2026-01-01"):
        files.load("mine.yaml")


@pytest.mark.req("GOV-12")
@pytest.mark.parametrize("mark", ["classification: Sensitive", "indigenous_rights_flag: true"])
def test_a_governed_policy_for_sensitive_pipelines_needs_care_notes(
    mark: str, tmp_path: Path, policy_signers: PolicySigners
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{POLICY}{mark}\n")
    with pytest.raises(
        PolicyError, match=r"care_notes is missing; a governed policy for sensitive pipelines"
    ):
        oncemore.step(effect="idempotent", policy=path)(lambda: 1)
    path.write_text(f"{POLICY}{mark}\ncare_notes: masked before every attempt\n")
    policy_signers.sign(path)
    oncemore.step(effect="idempotent", policy=path)(lambda: 1)
    # A file that extends it is for sensitive pipelines as well, and needs its own notes.
    child = tmp_path / "child.yaml"
    child.write_text("profile: child\nversion: retry-loop-v1.0\nextends: mine.yaml\n")
    with pytest.raises(PolicyError, match=r"child\.yaml.*care_notes is missing"):
        files.load(child)


# Trusted keys -------------------------------------------------------------------------------------------


def test_lines_of_trusted_keys(tmp_path: Path) -> None:
    one, two, three = (generate_key().public for _ in range(3))
    file = tmp_path / "allowed_signers"
    file.write_text(
        "# trusted keys\n\n"
        f"{format_signer_line('steward', one)} a comment\n"
        f'mail@example.org namespaces="git,oncemore-policy",valid-before="20270101Z" {two.format_openssh()}\n'
        f'other namespaces="git" {three.format_openssh()}\n'
        f"every {three.format_openssh()}\n"
    )
    first, second = load_allowed_signers(file)
    assert (first.principal, first.key, first.valid_before) == ("steward", one, float("inf"))
    assert (second.principal, second.valid_before) == (
        "mail@example.org",
        find_expiry({"expires": "2027-01-01"}),
    )
    assert str(first) == f"steward ({one.key_id})"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{key}", "is not understood"),
        ("a,b {key}", "is not understood"),
        ('* namespaces="oncemore-policy" {key}', "is not understood"),
        ("a cert-authority {key}", "the option cert-authority is repeated or not supported"),
        ('a namespaces="x",namespaces="oncemore-policy" {key}', "the option namespaces is repeated"),
        ('a namespaces="oncemore-*" {key}', "namespaces has a pattern"),
        ('a namespaces="oncemore-policy",valid-before="soon" {key}', "'soon' is not a time"),
        ('a namespaces="oncemore-policy",valid-before="20271332" {key}', "is not a time"),
        ('a namespaces="oncemore-policy" ssh-rsa AAAA', "key of the type 'ssh-rsa'"),
        ('a namespaces="oncemore-policy" ssh-ed25519 AAAA', "is not an Ed25519 public key"),
    ],
)
def test_a_line_that_is_not_understood_is_refused_with_its_number(line: str, message: str) -> None:
    text = "# trusted\n" + line.format(key=generate_key().public.format_openssh())
    with pytest.raises(UsageError, match=f"here:2: .*{message}|here:2 .*{message}"):
        parse_allowed_signers(text.encode(), "here", "oncemore-policy")


def test_repeated_unreadable_and_untrusted_keys_are_refused(tmp_path: Path) -> None:
    key = generate_key().public
    line = format_signer_line("a", key)
    with pytest.raises(UsageError, match=f"here:2: the key {re.escape(key.key_id)} is listed twice"):
        parse_allowed_signers(f"{line}\n{line.replace('a ', 'b ', 1)}".encode(), "here", "oncemore-policy")
    with pytest.raises(UsageError, match="here is not text"):
        parse_allowed_signers(b"\xff", "here", "oncemore-policy")
    lines = "\n".join(format_signer_line("a", generate_key().public) for _ in range(101))
    with pytest.raises(UsageError, match="has more than 100 keys"):
        parse_allowed_signers(lines.encode(), "here", "oncemore-policy")
    with pytest.raises(UsageError, match="principal is 'two words'"):
        format_signer_line("two words", key)
    with pytest.raises(UsageError, match="the trusted keys absent cannot be read"):
        load_allowed_signers("absent")
    file = tmp_path / "allowed_signers"
    file.write_text(line)
    file.chmod(0o666)
    with pytest.raises(UsageError, match=r"are not used, because .* writable by every user"):
        load_allowed_signers(file)


def test_a_file_of_trusted_keys_that_cannot_be_trusted_refuses_every_governed_file(
    tmp_path: Path, policy_signers: PolicySigners
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(POLICY)
    policy_signers.sign(path)
    files.load(path)
    policy_signers.file.chmod(0o666)
    files.forget()
    with pytest.raises(PolicyError, match=r"cannot be verified: .* writable by every user"):
        files.load(path)


def test_every_file_that_is_extended_must_be_signed(tmp_path: Path, policy_signers: PolicySigners) -> None:
    base, path = tmp_path / "base.yaml", tmp_path / "mine.yaml"
    base.write_text('version: "1"\nretry_policy: {timeout_s: 5}\n')
    path.write_text("profile: mine\nversion: retry-loop-v1.0\ngoverned: true\nextends: base.yaml\n")
    policy_signers.sign(path)
    with pytest.raises(PolicyError, match=f"{base}: is not signed"):
        files.load(path)
    policy_signers.sign(base)
    assert files.load(path).policy().timeout_s == 5.0
    base.write_text('version: "1"\nretry_policy: {timeout_s: 6}\n')
    with pytest.raises(PolicyError, match=f"{base}: was changed after steward"):
        files.load(path)


def test_a_governed_file_states_its_name(tmp_path: Path, policy_signers: PolicySigners) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(POLICY.replace("profile: mine\n", ""))
    policy_signers.sign(path)
    with pytest.raises(PolicyError, match="does not state its name; a governed file needs profile: NAME"):
        files.load(path)


def test_a_file_that_is_not_governed_may_be_unsigned_and_not_wrongly_signed(
    tmp_path: Path, policy_signers: PolicySigners, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text('version: "1"\nextends: standard\n')
    assert files.load(path).signature == "unsigned"
    policy_signers.sign(path)
    files.forget()
    assert files.load(path).signature.startswith("signed by steward")
    path.write_text('version: "2"\nextends: standard\n')
    with pytest.raises(PolicyError, match="was changed after steward"):
        files.load(path)
    assert files.inspect_file(path).signature.startswith("refused: was changed")
    monkeypatch.delenv("ONCEMORE_POLICY_SIGNERS")
    assert files.load(path).signature == "signed, not verified"


def test_retry_uses_a_signed_policy_too(tmp_path: Path, policy_signers: PolicySigners) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(POLICY)
    with pytest.raises(PolicyError, match="is not signed"):
        oncemore.retry(on=OSError, policy=path)(print)
    policy_signers.sign(path)
    calls = []

    @oncemore.retry(on=OSError, policy=path)
    def work() -> None:
        calls.append(1)
        raise ConnectionResetError

    with FakeClock(), pytest.raises(ConnectionResetError):
        work()
    assert len(calls) == 4
