"""The profiles that ship with the package, and why they are trusted: each by the digest of its bytes.

`digests.txt` beside them is what `sha256sum` writes and checks; `tools/profiles.py --write` makes it.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from oncemore.policy.files.faults import Mark, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

FOLDER: Final = Path(__file__).resolve().parent.parent.parent / "profiles"
DIGESTS: Final = "digests.txt"

#: What each profile is called, and its file. Those of the published layout keep their file names.
PACKAGED: Final = {
    "standard": "standard.yaml",
    "kfm-rules": "kfm-rules.yaml",
    "kfm-loop": "kfm-loop.yaml",
    "kfm-loop-default": "retry-loop/policies/default.yaml",
    "p2-batch-reporting": "retry-loop/policies/p2-batch-reporting.yaml",
    "p0-storm-nowcast": "retry-loop/policies/p0-storm-nowcast.yaml",
    "lit": "lit.yaml",
    "nova-cat": "nova-cat.yaml",
    "exoarmur": "exoarmur.yaml",
}


#: Names of the published layout: a user's own file may have them too, and is then meant by the name.
LAYOUT: Final = frozenset(
    name for name, file in PACKAGED.items() if file == f"retry-loop/policies/{name}.yaml"
)


def path_of(name: str) -> str:
    """Return the file of a packaged profile."""
    return str(FOLDER / PACKAGED[name])


def is_packaged(path: str) -> bool:
    """Whether a file is one of ours, where it was installed, however the way there is written."""
    return os.path.realpath(path) in {path_of(name) for name in PACKAGED}


def verify(path: str, data: bytes) -> None:
    """Refuse a packaged file whose bytes are not the ones that were released."""
    name = Path(os.path.realpath(path)).relative_to(FOLDER).as_posix()
    released = digests().get(name)
    found = sha256(data).hexdigest()
    if released != found:
        raise refuse(
            Mark(path),
            f"was changed after its release: its SHA-256 is {found}, and {DIGESTS} has {released or 'none'}; "
            "install the package again, or copy the file and give the copy its own name",
        )


def digests() -> dict[str, str]:
    """Return the SHA-256 of each packaged file, as released."""
    try:
        lines = (FOLDER / DIGESTS).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(Mark(str(FOLDER / DIGESTS)), "cannot be read; install the package again") from error
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def digests_now(folder: Path = FOLDER) -> str:
    """Return what `digests.txt` should hold for the files as they are."""
    files = sorted(PACKAGED.values())
    return "".join(f"{sha256((folder / file).read_bytes()).hexdigest()}  {file}\n" for file in files)
