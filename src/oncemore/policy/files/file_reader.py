"""Reads the bytes of policy files, and knows the packaged profiles with their released digests.

A policy file is a regular file of bounded size; pipes, devices and folders are refused before reading, so
that a read never blocks. Packaged profiles are trusted by the SHA-256 in `digests.txt`, which has the format
of `sha256sum` and is written by `tools/profiles.py --write`.
"""

from __future__ import annotations

import errno
import os
import stat
from hashlib import sha256
from pathlib import Path

from oncemore._platform import BINARY, CLOSE_ON_EXEC, NO_BLOCKING
from oncemore._values import Value
from oncemore.policy.files.faults import FilePosition, policy_file_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

PROFILES_FOLDER: Final = Path(__file__).resolve().parent.parent.parent / "profiles"
DIGESTS_FILE: Final = "digests.txt"

#: The name of each packaged profile and its file. The published layout prescribes some file names.
PACKAGED_FILES: Final = {
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


#: Names of the published layout: a user's own file may have the same name and then takes precedence.
LAYOUT: Final = frozenset(
    name for name, file in PACKAGED_FILES.items() if file == f"retry-loop/policies/{name}.yaml"
)

#: Ends of the names of signature files: mine.yaml.dsse.json, mine.yaml.sig, mine.yaml.sigstore.json.
SIGNATURE_SUFFIXES: Final = (".dsse.json", ".sig", ".sigstore.json")

#: The largest packaged profile has 5 KiB. A file of this size is parsed in less than a tenth of a second.
MAX_BYTES: Final = 32 * 1024

# O_NONBLOCK: opening a pipe without a writer would otherwise block.
_OPEN_FLAGS: Final = os.O_RDONLY | BINARY | CLOSE_ON_EXEC | NO_BLOCKING

_FILE_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_ERROR_REASONS: Final = {
    errno.ENOENT: "there is no such file",
    errno.EACCES: "this user may not read it",
    errno.EPERM: "this user may not read it",
    errno.ELOOP: "its links lead in a circle",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.ENXIO: "it is a socket, not a file",
}


class FileStamp(Value):
    """Facts about a file that change when its content changes."""

    path: str
    device: int
    inode: int
    size: int
    modified: int
    changed: int


def read_file(path: str) -> tuple[bytes, FileStamp]:
    """Return a policy file's bytes and stamp; raise `PolicyFileError` if it cannot be used."""
    try:
        handle = os.open(path, _OPEN_FLAGS)
    except OSError as error:
        raise policy_file_error(FilePosition(path), f"cannot be read: {_error_reason(error)}") from error
    except ValueError as error:
        raise policy_file_error(
            FilePosition(repr(path)), "cannot be read: no file can have this name"
        ) from error
    try:
        # `fstat` on the open file: the path could point to another file a moment later.
        facts = os.fstat(handle)
        _check_regular_file(path, facts)
        data = _read_all(handle, path)
    finally:
        os.close(handle)
    return data, _make_stamp(path, facts)


def stamp_file(path: str) -> FileStamp | None:
    """Return a file's current stamp, or None if it does not exist."""
    try:
        return _make_stamp(path, os.stat(path))  # noqa: PTH116 - a path here is a string
    except (OSError, ValueError):
        return None


def _read_all(handle: int, path: str) -> bytes:
    """Return the whole content; the limit is checked while reading, because the file may grow."""
    parts, left = [], MAX_BYTES + 1
    try:
        while left > 0 and (part := os.read(handle, left)):
            parts.append(part)
            left -= len(part)
    except OSError as error:
        raise policy_file_error(FilePosition(path), f"cannot be read: {_error_reason(error)}") from error
    if left <= 0:
        raise policy_file_error(FilePosition(path), f"is larger than {MAX_BYTES // 1024} KiB")
    return b"".join(parts)


def _check_regular_file(path: str, facts: os.stat_result) -> None:
    kind = stat.S_IFMT(facts.st_mode)
    if kind != stat.S_IFREG:
        raise policy_file_error(FilePosition(path), f"is {_FILE_KINDS.get(kind, 'something')}, not a file")
    if facts.st_size > MAX_BYTES:
        raise policy_file_error(FilePosition(path), f"is larger than {MAX_BYTES // 1024} KiB")


def _error_reason(error: OSError) -> str:
    return _ERROR_REASONS.get(error.errno or 0) or error.strerror or "the system refused"


def _make_stamp(path: str, facts: os.stat_result) -> FileStamp:
    return FileStamp(path, facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def has_signature_files(path: str) -> bool:
    """Return whether files with signatures of a policy file lie beside it."""
    folder, name = os.path.split(path)
    try:
        names = os.listdir(folder or ".")  # noqa: PTH208 - names, not paths
    except OSError:
        return False
    return any(each.startswith(f"{name}.") and each.endswith(SIGNATURE_SUFFIXES) for each in names)


def packaged_path(name: str) -> str:
    """Return the path of a packaged profile."""
    return str(PROFILES_FOLDER / PACKAGED_FILES[name])


def is_packaged(path: str) -> bool:
    """Return whether a path leads to one of the installed packaged profiles, also through links."""
    return os.path.realpath(path) in {packaged_path(name) for name in PACKAGED_FILES}


def verify_packaged(path: str, data: bytes) -> None:
    """Raise `PolicyFileError` for a packaged file whose bytes differ from the released ones."""
    name = Path(os.path.realpath(path)).relative_to(PROFILES_FOLDER).as_posix()
    released = released_digests().get(name)
    digest = sha256(data).hexdigest()
    if released != digest:
        raise policy_file_error(
            FilePosition(path),
            f"was changed after its release: its SHA-256 is {digest}, and {DIGESTS_FILE} has "
            f"{released or 'none'}; "
            "install the package again, or copy the file and give the copy its own name",
        )


def released_digests() -> dict[str, str]:
    """Return the released SHA-256 of each packaged file."""
    try:
        lines = (PROFILES_FOLDER / DIGESTS_FILE).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise policy_file_error(
            FilePosition(str(PROFILES_FOLDER / DIGESTS_FILE)), "cannot be read; install the package again"
        ) from error
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def compute_digests(folder: Path = PROFILES_FOLDER) -> str:
    """Return the content of `digests.txt` for the current files."""
    files = sorted(PACKAGED_FILES.values())
    return "".join(f"{sha256((folder / file).read_bytes()).hexdigest()}  {file}\n" for file in files)
