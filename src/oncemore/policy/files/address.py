"""Names and addresses of policies.

    kfm-rules                     a packaged profile, or a file in the policy root
    nova-cat/acquisition          one policy of a profile
    nova-cat/acquisition@eso      the same policy for a provider
    policies/mine.yaml            a file; /policy and @provider may follow here too

A file in the policy root has the name given in it, else the name of the file. No two files may have the
same name. A packaged name is refused, except those of the published layout (`p2-batch-reporting`): for
these, the user's own file takes precedence.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from oncemore._values import Value
from oncemore.config import policy_root
from oncemore.errors import PolicyError
from oncemore.policy.files.file_reader import (
    LAYOUT,
    PACKAGED_FILES,
    FileStamp,
    packaged_path,
    read_file,
    stamp_file,
)
from oncemore.policy.files.yaml_reader import MappingNode, ScalarNode, parse_yaml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

MAX_FILES: Final = 500

# A file path may contain "/" and "@", so it is recognised by its suffix first.
_ADDRESS: Final = re.compile(
    r"(?P<file>.*\.ya?ml|[^/@]+)(?:/(?P<policy>[^/@]+))?(?:@(?P<provider>[^/@]+))?", re.DOTALL
)
_YAML_SUFFIX: Final = re.compile(r"\.ya?ml$")

_name_cache: dict[FileStamp, str] = {}


class PolicyAddress(Value):
    """A parsed address: path of the file, name of the policy, and provider."""

    path: str
    policy: str = "default"
    provider: str | None = None


def parse_address(address: str | os.PathLike[str]) -> PolicyAddress:
    """Return the file, policy and provider for an address or a path."""
    if not isinstance(address, str):
        return PolicyAddress(path_text(address))
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise unknown_policy_error(address)
    file = match["file"]
    path = file if _YAML_SUFFIX.search(file) else find_profile_file(file)
    return PolicyAddress(path, match["policy"] or "default", match["provider"])


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path as text; raise `PolicyError` for a path in bytes."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise PolicyError(f"the path of a policy file is {text!r}; it must be a text")
    return text


def find_profile_file(name: str) -> str:
    """Return the path of a profile; raise `PolicyError` with the known names if there is none."""
    own_files = list_root_files().get(name, [])
    if name in PACKAGED_FILES and not (own_files and name in LAYOUT):
        if own_files:
            raise PolicyError(
                f"{own_files[0]} is called {name}, like a packaged profile; give it another name"
            )
        return packaged_path(name)
    if len(own_files) > 1:
        raise PolicyError(f"two files are called {name}: {own_files[0]} and {own_files[1]}")
    if not own_files:
        raise unknown_policy_error(name)
    return own_files[0]


def resolve_extends(reference: str, path: str) -> str:
    """Return the file for an `extends` in the file at `path`."""
    if not _YAML_SUFFIX.search(reference):
        target = find_profile_file(reference)
        # A user's own p2-batch-reporting that extends p2-batch-reporting extends the packaged one.
        is_itself = reference in LAYOUT and os.path.realpath(target) == os.path.realpath(path)
        return packaged_path(reference) if is_itself else target
    if Path(reference).is_absolute():
        raise PolicyError(f"{reference!r} is a path of one machine; write it relative to this file")
    return os.path.join(os.path.dirname(path), reference)  # noqa: PTH118, PTH120 - messages show the path as the user wrote it


def unknown_policy_error(name: str) -> PolicyError:
    """Return the error for an unknown name, with the known names."""
    known = ", ".join(sorted({*PACKAGED_FILES, *list_root_files()}))
    hint = "; the path of a file ends in .yaml" if "/" in name else ""
    return PolicyError(f"policy {name[:200]!r} is not known; known are {known}{hint}")


def list_root_files() -> dict[str, list[str]]:
    """Return the files of the policy root by profile name."""
    root = policy_root()
    if root is None:
        return {}
    folder = Path(root)
    if not folder.is_dir():
        raise PolicyError(f"ONCEMORE_POLICY_ROOT is {root!r}, which is not a folder")
    folders = (folder, folder / "retry-loop" / "policies")
    files = sorted(str(path) for directory in folders for path in directory.glob("*.yaml"))
    # Each file is parsed for its name; a wrong root, such as a home folder, must not take minutes.
    if len(files) > MAX_FILES:
        raise PolicyError(f"{root} holds more than {MAX_FILES} policy files")
    files_by_name: dict[str, list[str]] = {}
    for path in files:
        files_by_name.setdefault(_cached_profile_name(path), []).append(path)
    return files_by_name


def profile_name(tree: MappingNode, path: str) -> str:
    """Return a profile's name: the one in the file, else the name of the file."""
    entry = tree.entries.get("profile") or tree.entries.get("name")
    name = entry.node.value if entry is not None and isinstance(entry.node, ScalarNode) else None
    return name if isinstance(name, str) and name else Path(path).stem


def _cached_profile_name(path: str) -> str:
    """Return the name in a file; an unreadable file has the name of its file."""
    stamp = stamp_file(path)
    if stamp is None:
        return Path(path).stem
    if stamp not in _name_cache:
        # A changed file has a new stamp; without a limit the old ones would pile up.
        if len(_name_cache) >= MAX_FILES:
            _name_cache.clear()
        try:
            _name_cache[stamp] = profile_name(parse_yaml(read_file(path)[0], path), path)
        # A broken file must not hide the names of all other files; its faults are reported when it is loaded.
        except PolicyError:
            _name_cache[stamp] = Path(path).stem
    return _name_cache[stamp]


def clear_name_cache() -> None:
    """Forget the cached names of files."""
    _name_cache.clear()
