"""Check the tag of a release: it names this version and is signed, and the changelog has the version.

    python tools/check_tag.py

The keys that may sign a release are in .github/allowed_signers, one per line as `ssh-keygen -Y` reads them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIGNERS = ".github/allowed_signers"


def find_tag_faults(root: Path) -> list[str]:
    """Return what is wrong with the tag of the commit that is checked out."""
    version = re.search(r'"(.+?)"', (root / "src/oncemore/_version.py").read_text(encoding="utf-8"))
    assert version is not None
    tag = f"v{version[1]}"
    faults = []
    if tag not in run_git(root, "tag", "--points-at", "HEAD").stdout.split():
        faults.append(f"this commit has no tag {tag}; make it with: git tag --sign {tag}")
    elif not (root / SIGNERS).is_file():
        faults.append(f"{SIGNERS} is missing; write a line for every key that may sign a release: NAME KEY")
    else:
        trusted = ("-c", "gpg.format=ssh", "-c", f"gpg.ssh.allowedSignersFile={root / SIGNERS}")
        verified = run_git(root, *trusted, "verify-tag", tag)
        if verified.returncode:
            faults.append(f"{tag} is not signed by a key in {SIGNERS}: {verified.stderr.strip()}")
    headings = re.findall(r"(?m)^## (.*)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if not [one for one in headings if version[1] in one and "unreleased" not in one]:
        faults.append(f"CHANGELOG.md has no dated heading for {version[1]}; date the unreleased one")
    return faults


def run_git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run git in a clone."""
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)


def main(root: Path = ROOT) -> int:
    """Print the faults; the exit code is 1 if there are any."""
    faults = find_tag_faults(root)
    print(*(faults or ["The tag is signed, and names this version."]), sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
