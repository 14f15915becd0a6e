"""Compare a policy file with an earlier state of it: a changed number needs a new version and evidence.

The earlier state is another file, a profile by its name, or the same file in a commit of git. Files that it
extends by a relative path are taken from the same commit. `queries.policy_evidence` says which changes of
which files need evidence.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from oncemore.errors import PolicyError, UsageError
from oncemore.queries.policies import PolicyCheck, PolicyFault, check_file, ignore_warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.policy.files import Profile

#: Folders between the temporary folder and the extracted file, so that `../` in extends stays inside.
_DEPTH: Final = 8
_GIT_TIMEOUT_S: Final = 30


def check_against(path: str, against: str) -> PolicyCheck:
    """Check a policy file, and its changes since another file, a profile or a commit of git.

    A file that did not exist in the commit has no changes.
    """
    check = check_file(path)
    if not check.good:
        return check
    from oncemore.policy.files import inspect_file
    from oncemore.queries.policy_evidence import find_evidence_faults

    earlier = load_earlier_profile(path, against)
    if earlier is None:
        return check._replace(against=f"{against} (new file)")
    present = inspect_file(path)
    # Both at once: a person who has to change the version has to make the evidence too.
    faults = (
        *find_version_faults(earlier, present, path),
        *find_evidence_faults(earlier, present, path, against),
    )
    return check._replace(good=not faults, faults=faults, against=f"{against} ({earlier.version})")


def load_earlier_profile(path: str, against: str) -> Profile | None:
    """Return the earlier state of a policy file; None if a commit of git does not have the file.

    against  the path of a file, the name of a profile, or a revision of git
    """
    from oncemore.policy.files import inspect_file, names
    from oncemore.policy.files.address import find_profile_file

    with ignore_warnings():
        if Path(against).is_file():
            return inspect_file(against)
        if against in names():
            return inspect_file(find_profile_file(against))
        return _load_from_git(path, against)


def find_version_faults(earlier: Profile, present: Profile, shown: str) -> list[PolicyFault]:
    """Return one fault for each field that changed without a higher version."""
    from oncemore.governance.policy_content import find_content_changes, is_newer_version, list_content

    changes = find_content_changes(list_content(earlier), list_content(present))
    if is_newer_version(present.version, earlier.version):
        return []
    if present.version != earlier.version:
        message = f"is {present.version}, lower than {earlier.version} before; a version never goes back"
        return [PolicyFault(shown, 0, 0, "version", message)]
    return [
        PolicyFault(
            shown,
            0,
            0,
            change.field,
            f"changed ({change.show_values()}) and the version is still {present.version}; give the file a "
            "higher version",
        )
        for change in changes
    ]


def _load_from_git(path: str, revision: str) -> Profile | None:
    """Return the profile in a file as a commit has it; None if the commit does not have the file."""
    folder, name = Path(path).resolve().parent, Path(path).name
    if revision.startswith("-") or ":" in revision:
        raise UsageError(f"{revision!r} is neither a file, a profile nor a revision of git")
    found = _run_git(folder, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if found is None:
        raise UsageError(f"{revision!r} is neither a file, a profile nor a revision of git in {folder}")
    with TemporaryDirectory() as root:
        target = Path(root).joinpath(*["d"] * _DEPTH, name)
        if not _extract_file(folder, revision, f"./{name}", target, Path(root)):
            return None
        from oncemore.policy.files import inspect_file

        try:
            return inspect_file(target)
        except PolicyError as error:
            text = str(error).replace(str(target), f"{revision}:{path}")
            raise UsageError(f"{path} as of {revision} cannot be compared: {text}") from None


def _extract_file(folder: Path, revision: str, name: str, target: Path, root: Path) -> bool:
    """Write a file of a commit, and the files that it extends by path; return whether it exists there."""
    from oncemore.policy.files.yaml_reader import ScalarNode, parse_yaml

    data = _run_git(folder, "show", f"{revision}:{name}")
    if data is None:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    try:
        entry = parse_yaml(data, str(target)).entries.get("extends")
    except PolicyError:
        # The loader reports the fault with its line.
        return True
    parent = entry.node.value if entry is not None and isinstance(entry.node, ScalarNode) else None
    if isinstance(parent, str) and parent.endswith((".yaml", ".yml")):
        place = Path(os.path.normpath(target.parent / parent))
        # An `extends` out of the repository, or to a file that is extracted already, is the loader's fault.
        if place.is_relative_to(root) and not place.exists():
            relative = os.path.normpath(Path(name).parent / parent)
            _extract_file(folder, revision, f"./{relative}", place, root)
    return True


def _run_git(folder: Path, *arguments: str) -> bytes | None:
    """Return the output of git; None if git fails."""
    try:
        # No shell, and the revision was checked not to be an option.
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - the user's git
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git cannot be run: {error}") from None
    return done.stdout if done.returncode == 0 else None
