"""Keys that may sign policy files, and files signed with them: the fixture `policy_signers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncemore.governance.allowed_signers import format_signer_line
from oncemore.governance.keys import generate_key
from oncemore.governance.policy_signing import sign_with_ssh, sign_with_statement
from oncemore.policy.files.loader import read_own_files

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.governance.keys import SigningKey


class PolicySigners:
    """Trusted keys by name, in a file that the settings name, and one key that is not trusted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self.file = folder / "allowed_signers"
        self.keys: dict[str, SigningKey] = {
            name: generate_key() for name in ("steward", "manager", "stranger")
        }
        self.trust_keys("steward", "manager")
        monkeypatch.setenv("ONCEMORE_POLICY_SIGNERS", str(self.file))

    def trust_keys(self, *names: str, options: str = "") -> None:
        """Write the file of trusted keys."""
        lines = [format_signer_line(name, self.keys[name].public) for name in names]
        self.file.write_text("".join(f"{line}\n".replace('policy"', f'policy"{options}') for line in lines))

    def require_keys(self, threshold: int) -> None:
        """Set how many different keys must have signed a file."""
        self._monkeypatch.setenv("ONCEMORE_POLICY_THRESHOLD", str(threshold))

    def sign(self, path: Path, *names: str, form: str = "dsse", expires: str = "") -> Path:
        """Sign a policy file with trusted keys, by default with that of the steward; return the file."""
        profile, files = read_own_files(path)
        for number, name in enumerate(names or ("steward",)):
            if form == "dsse":
                sign_with_statement(profile, files[0].data, self.keys[name], expires)
            else:
                sign_with_ssh(path, files[0].data, self.keys[name], name if number else "")
        return path


@pytest.fixture
def policy_signers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PolicySigners:
    """Two trusted keys, steward and manager, and a stranger's; one signature suffices."""
    return PolicySigners(tmp_path, monkeypatch)
