"""Names and addresses: which file is meant.

    kfm-rules                     a packaged profile, or a file of the policy root
    nova-cat/acquisition          one policy of it
    nova-cat/acquisition@eso      … as it is for a provider
    policies/mine.yaml            a file; /policy and @provider may follow here too

A file of the policy root is known by the name that it gives itself, else by that of the file. No two files
may have the same name. It may not be one of the packaged ones, but for those of the published layout
(`p2-batch-reporting`): there the user's own file is meant.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from oncemore._values import Value
from oncemore.errors import PolicyError
from oncemore.policy.files.disk import Stamp, read, stamp
from oncemore.policy.files.packaged import LAYOUT, PACKAGED, path_of
from oncemore.policy.files.yaml_reader import Fields, Scalar, parse
from oncemore.settings import policy_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

MOST_FILES: Final = 500

_ADDRESS: Final = re.compile(
    r"(?P<file>.*\.ya?ml|[^/@]+)(?:/(?P<policy>[^/@]+))?(?:@(?P<provider>[^/@]+))?", re.DOTALL
)
_FILE: Final = re.compile(r"\.ya?ml$")

_known: dict[Stamp, str] = {}


class Address(Value):
    """Where a policy is: in which file, under which name, for which provider."""

    path: str
    policy: str = "default"
    provider: str | None = None


def address_of(given: str | os.PathLike[str]) -> Address:
    """Return where the policy is that an address or a path means."""
    if not isinstance(given, str):
        return Address(path_text(given))
    found = _ADDRESS.fullmatch(given)
    if found is None:
        raise not_known(given)
    file = found["file"]
    path = file if _FILE.search(file) else find(file)
    return Address(path, found["policy"] or "default", found["provider"])


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path as text; bytes are nobody's policy."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise PolicyError(f"the path of a policy file is {text!r}; it must be a text")
    return text


def find(name: str) -> str:
    """Return the file of a profile, or say which names are known."""
    own = root_files().get(name, [])
    if name in PACKAGED and not (own and name in LAYOUT):
        if own:
            raise PolicyError(
                f"{own[0]} is called {name}, like a packaged profile; give it a name of its own"
            )
        return path_of(name)
    if len(own) > 1:
        raise PolicyError(f"two files are called {name}: {own[0]} and {own[1]}")
    if not own:
        raise not_known(name)
    return own[0]


def extended(given: str, path: str) -> str:
    """Return the file that `extends` means in the file at `path`."""
    if not _FILE.search(given):
        target = find(given)
        # A user's own p2-batch-reporting that extends p2-batch-reporting means the packaged one.
        own = given in LAYOUT and os.path.realpath(target) == os.path.realpath(path)
        return path_of(given) if own else target
    if Path(given).is_absolute():
        raise PolicyError(f"{given!r} is a path of one machine; write it relative to this file")
    return os.path.join(os.path.dirname(path), given)  # noqa: PTH118, PTH120 - kept as the user wrote it


def not_known(name: str) -> PolicyError:
    """Return the error for a name that means nothing, with those that do."""
    known = ", ".join(sorted({*PACKAGED, *root_files()}))
    hint = "; the path of a file ends in .yaml" if "/" in name else ""
    return PolicyError(f"policy {name[:200]!r} is not known; known are {known}{hint}")


def root_files() -> dict[str, list[str]]:
    """Return the files of the policy root by the names they have."""
    root = policy_root()
    if root is None:
        return {}
    folder = Path(root)
    if not folder.is_dir():
        raise PolicyError(f"ONCEMORE_POLICY_ROOT is {root!r}, which is not a folder")
    places = (folder, folder / "retry-loop" / "policies")
    files = sorted(str(path) for place in places for path in place.glob("*.yaml"))
    if len(files) > MOST_FILES:
        raise PolicyError(f"{root} holds more than {MOST_FILES} policy files")
    found: dict[str, list[str]] = {}
    for path in files:
        found.setdefault(_name_in(path), []).append(path)
    return found


def name_of(tree: Fields, path: str) -> str:
    """Return what a file is called: by itself, or like the file."""
    entry = tree.entries.get("profile") or tree.entries.get("name")
    given = entry.node.value if entry is not None and isinstance(entry.node, Scalar) else None
    return given if isinstance(given, str) and given else Path(path).stem


def _name_in(path: str) -> str:
    """Return the name in a file, remembered; one that cannot be read has the name of its file."""
    seen = stamp(path)
    if seen is None:
        return Path(path).stem
    if seen not in _known:
        if len(_known) >= MOST_FILES:
            _known.clear()
        try:
            _known[seen] = name_of(parse(read(path)[0], path), path)
        except PolicyError:
            _known[seen] = Path(path).stem
    return _known[seen]


def forget_names() -> None:
    """Let go of what was remembered of files."""
    _known.clear()
