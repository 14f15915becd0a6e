"""`oncemore policy keygen | sign | verify | accepted`, as an operator types them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.policy import files
from tests.cli.test_cli_policy import Ran

if TYPE_CHECKING:
    from tests.signed_policies import PolicySigners

POLICY = "profile: mine\nversion: retry-loop-v1.0\nextends: kfm-rules\n"


@pytest.fixture(autouse=True)
def _policy_file() -> None:
    Path("mine.yaml").write_text(POLICY)


def make_keys(*names: str) -> None:
    """Make keys, and trust them."""
    with Path("allowed_signers").open("a") as file:
        for name in names:
            ran = Ran("policy", "keygen", name, "--principal", name, "--no-passphrase")
            assert ran.code == 0, ran.err
            file.write(ran.out)
    Path("oncemore.toml").write_text('policy_signers = "allowed_signers"\n')


@pytest.mark.parametrize("form", ["dsse", "ssh"])
def test_from_a_new_key_to_a_verified_policy(form: str) -> None:
    assert Ran("policy", "verify", "mine.yaml").code == 1
    make_keys("steward")
    assert Ran("policy", "verify", "mine.yaml").code == 1
    signed = Ran("policy", "sign", "mine.yaml", "--key", "steward", "--format", form)
    assert (signed.code, "mine.yaml: mine retry-loop-v1.0 signed by SHA256:" in signed.words) == (0, True)
    assert "not usable yet" not in signed.words
    verified = Ran("policy", "verify", "mine.yaml")
    assert (verified.code, "mine.yaml: valid: mine retry-loop-v1.0 signed by steward" in verified.words) == (
        0,
        True,
    )
    Path("mine.yaml").write_text(POLICY + "# changed\n")
    refused = Ran("policy", "verify", "mine.yaml")
    assert (refused.code, "mine.yaml: refused: was changed after steward" in refused.words) == (1, True)
    files.forget()
    assert "refused" in Ran("policy", "show", "mine.yaml").words


def test_a_threshold_and_other_trusted_keys_can_be_given() -> None:
    make_keys("steward", "manager")
    Ran("policy", "sign", "mine.yaml", "--key", "steward")
    verify = ("policy", "verify", "mine.yaml", "--json")
    assert Ran(*verify).code == 0
    assert Ran(*verify, "--threshold", "2").code == 1
    Path("oncemore.toml").write_text('policy_signers = "allowed_signers"\npolicy_threshold = 2\n')
    signed = Ran("policy", "sign", "mine.yaml", "--key", "manager", "--expires", "2999-01-01")
    assert (signed.code, "has signatures that expire on no day" in signed.err) == (2, True)
    assert "not usable yet" in Ran("policy", "sign", "mine.yaml", "--key", "steward").words
    signed = Ran("policy", "sign", "mine.yaml", "--key", "manager", "--json")
    assert (signed.json["usable"], signed.json["missing"]) == (True, "")
    (result,) = Ran(*verify).json
    assert [name.partition(" ")[0] for name in result["signers"]] == ["steward", "manager"]
    Path("few").write_text(Path("allowed_signers").read_text().splitlines()[0])
    assert Ran(*verify, "--signers", "few").code == 1
    (result,) = Ran(*verify, "--signers", "few", "--threshold", "1").json
    assert (result["good"], len(result["signers"])) == (True, 1)


def test_an_expiry_is_shown_and_kept() -> None:
    make_keys("steward")
    signed = Ran("policy", "sign", "mine.yaml", "--key", "steward", "--expires", "2999-01-01")
    assert "void from 2999-01-01" in signed.words
    assert "until 2999-01-01" in Ran("policy", "verify", "mine.yaml").words
    Path("mine.yaml.dsse.json").unlink()
    Ran("policy", "sign", "mine.yaml", "--key", "steward", "--expires", "2020-01-01")
    assert "expired on 2020-01-01" in Ran("policy", "verify", "mine.yaml").words


def test_an_encrypted_key_is_made_and_used_with_the_passphrase_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = Ran("policy", "keygen", "steward", "--principal", "steward")
    assert (refused.code, "--no-passphrase" in refused.err) == (2, True)
    assert not Path("steward").exists()
    monkeypatch.setenv("ONCEMORE_KEY_PASSPHRASE", "correct horse")
    made = Ran("policy", "keygen", "steward", "--principal", "steward", "--json")
    assert made.json["encrypted"]
    assert Ran("policy", "sign", "mine.yaml", "--key", "steward").code == 0
    monkeypatch.delenv("ONCEMORE_KEY_PASSPHRASE")
    refused = Ran("policy", "sign", "mine.yaml", "--key", "steward")
    assert (refused.code, "is encrypted; set ONCEMORE_KEY_PASSPHRASE" in refused.err) == (2, True)
    again = Ran("policy", "keygen", "steward", "--principal", "steward", "--no-passphrase")
    assert (again.code, "exists" in again.err) == (2, True)
    assert Ran("policy", "keygen", "other", "--principal", "a b", "--no-passphrase").code == 2
    assert not Path("other").exists()


def test_a_passphrase_is_asked_for_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemore.cli.policy_signing.sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("oncemore.cli.policy_signing.click.prompt", lambda *_, **__: "typed")
    monkeypatch.setattr("oncemore.cli.policy_signing.sys", _Terminal)
    assert Ran("policy", "keygen", "steward", "--principal", "steward", "--json").json["encrypted"]
    assert Ran("policy", "sign", "mine.yaml", "--key", "steward").code == 0


class _Terminal:
    class stdin:
        @staticmethod
        def isatty() -> bool:
            return True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mine.yaml", "--key", "absent"), "the private key absent cannot be read"),
        (("absent.yaml", "--key", "steward"), "there is no file absent.yaml"),
        (("mine.yaml", "--key", "steward", "--signer", "x"), "--signer is not for dsse"),
        (("mine.yaml", "--key", "steward", "--format", "ssh", "--expires", "2999-01-01"), "--expires is not"),
        (("mine.yaml", "--key", "steward", "--expires", "soon"), "expires is 'soon'"),
        (("broken.yaml", "--key", "steward"), "retry_policy is missing"),
        (("nameless.yaml", "--key", "steward"), "does not state its name"),
    ],
)
def test_what_cannot_be_signed_is_named(words: tuple[str, ...], message: str) -> None:
    make_keys("steward")
    Path("broken.yaml").write_text('version: "1"\n')
    Path("nameless.yaml").write_text(POLICY.replace("profile: mine\n", ""))
    ran = Ran("policy", "sign", *words)
    # As everywhere, a policy file with faults is exit code 1, and a wrong command line is 2.
    assert (ran.code, message in " ".join(ran.err.split())) == (1 if "broken" in words[0] else 2, True)
    assert list(Path().glob("*.dsse.json")) == []


def test_a_packaged_policy_needs_no_signature() -> None:
    make_keys("steward")
    path = files.profile("kfm-rules").source
    assert "is packaged and trusted by its release" in " ".join(
        Ran("policy", "sign", path, "--key", "steward").err.split()
    )
    (result,) = Ran("policy", "verify", path, "--json").json
    assert (result["good"], result["signers"]) == (True, ["packaged, digest verified"])


def test_a_file_that_cannot_be_loaded_is_not_verified() -> None:
    Path("broken.yaml").write_text('version: "1"\n')
    (result,) = Ran("policy", "verify", "broken.yaml", "--json").json
    assert (result["good"], "retry_policy is missing" in result["fault"]) == (False, True)


def test_a_second_ssh_signature_has_a_file_of_its_own_and_ssh_keygen_verifies_it() -> None:
    make_keys("steward", "manager")
    Ran("policy", "sign", "mine.yaml", "--key", "steward", "--format", "ssh")
    Ran("policy", "sign", "mine.yaml", "--key", "manager", "--format", "ssh", "--signer", "manager")
    (result,) = Ran("policy", "verify", "mine.yaml", "--threshold", "2", "--json").json
    assert result["good"]
    command = "ssh-keygen -Y verify -f allowed_signers -I manager -n oncemore-policy -s mine.yaml.manager.sig"
    with Path("mine.yaml").open() as file:
        assert subprocess.run(command.split(), stdin=file, capture_output=True, check=False).returncode == 0


def test_the_versions_of_a_store_are_listed(policy_signers: PolicySigners) -> None:
    with oncemore.open("log.db") as engine:
        engine.now()
        assert "No governed policy" in Ran("policy", "accepted", "--store", "log.db").words
        policy_signers.sign(Path("mine.yaml").absolute())
        oncemore.step(effect="idempotent", policy="mine.yaml")(lambda: 1)()
    assert "mine retry-loop-v1.0" in Ran("policy", "accepted", "--store", "log.db").words
    (row,) = Ran("policy", "accepted", "--store", "log.db", "--json").json
    assert (row["name"], row["version"], "content" in row) == ("mine", "retry-loop-v1.0", False)
    (result,) = Ran("policy", "verify", "mine.yaml", "--store", "log.db", "--json").json
    assert result["accepted"] == "retry-loop-v1.0"


def test_the_list_shows_who_signed(policy_signers: PolicySigners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEMORE_POLICY_ROOT", ".")
    policy_signers.sign(Path("mine.yaml").absolute())
    assert "signed by steward mine.yaml" in Ran("policy", "list").words
    Path("mine.yaml").write_text(POLICY + "# changed\n")
    assert "refused mine.yaml" in Ran("policy", "list").words
    assert json.loads(Ran("policy", "list", "--json").out)


def test_the_commands_of_the_how_to_run_as_they_are_printed() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "sign-policies.md"
    script = "\n".join(re.findall(r"(?ms)^```sh\n(.*?)^```", page.read_text(encoding="utf-8")))
    Path("mine.yaml").unlink()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        env={**os.environ, "PATH": path, "ONCEMORE_KEY_PASSPHRASE": "of the test", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 'Good "oncemore-policy" signature for data-steward' in done.stdout
    assert "max_attempts changed (4 → 3) and the version is still retry-loop-v1.0" in done.stdout
    assert (
        done.stdout.rstrip()
        .splitlines()[-1]
        .startswith("policies/mine.yaml: valid: mine retry-loop-v1.1 signed by data-steward (SHA256:")
    )
