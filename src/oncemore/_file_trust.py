"""Checks that a settings file is under the control of the user that runs the program.

Settings start programs and name modules that are imported. A file that another user can write, replace or
create must therefore not be read as settings. A file is trusted if

    the file and every folder above it belong to the user or to root, and
    no other user can write to the file, and
    no other user can write to a folder above it, unless the folder has the sticky bit (as /tmp has)

In a user namespace, as sandboxes and some containers have, root of the host has no user id of its own: the
kernel shows one overflow id for all users outside of the namespace. Folders with that owner are trusted
there, files are not.

A group may write if it is the owner's private group: it has the owner's name, is the owner's primary group
and has no other member. In a sticky folder other users can create files but not replace one of ours, and
a file that they create belongs to them. Platforms without user ids have no such check.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from oncemore._platform import BINARY, CLOSE_ON_EXEC, NO_BLOCKING

#: A settings file is a page of text; a larger one is not read.
MAX_BYTES = 1024 * 1024
#: Linux's list of the user ids in a user namespace, and the id that stands for all users outside of it.
UID_MAP, OVERFLOW_UID = Path("/proc/self/uid_map"), Path("/proc/sys/kernel/overflowuid")


def read_file(path: Path) -> tuple[bytes, str]:
    """Return the content of a file and the reason not to trust it, which is empty for a trusted file.

    Both come from one open file, so that the file cannot be exchanged between the check and the read.
    """
    # Without O_NONBLOCK, opening a named pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | BINARY | CLOSE_ON_EXEC | NO_BLOCKING)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(f"{path} is larger than {MAX_BYTES} bytes")
    return content, _find_fault(path, status)


def _find_fault(path: Path, status: os.stat_result) -> str:
    """Return the first reason not to trust a file; a symbolic link and its target both count."""
    # Windows: there are no owners to compare.
    if not hasattr(os, "geteuid"):
        return ""
    fault = _check_entry(path, status)
    # A link is as trustworthy as its weaker end: each could be replaced.
    target = path.resolve()
    folders = [*target.parents, *(path.absolute().parents if path.is_symlink() else ())]
    if not fault and path.is_symlink():
        link = path.lstat()
        fault = (
            "" if _is_own(link.st_uid) else f"the symbolic link {path} belongs to {_name_user(link.st_uid)}"
        )
    for folder in folders:
        fault = fault or _check_entry(folder, folder.stat())
    return fault


def _check_entry(path: Path, status: os.stat_result) -> str:
    """Return the reason if another user controls a file or folder, else an empty text."""
    mode, is_folder = stat.S_IMODE(status.st_mode), stat.S_ISDIR(status.st_mode)
    facts = f"{path} (owner {_name_user(status.st_uid)}, mode {mode:04o})"
    if not _is_own(status.st_uid) and not (is_folder and _is_outside(status.st_uid)):
        return f"{facts} belongs to another user"
    # In a sticky folder other users cannot rename or delete a file of ours.
    if is_folder and mode & stat.S_ISVTX:
        return ""
    if mode & stat.S_IWOTH:
        return f"{facts} is writable by every user"
    if mode & stat.S_IWGRP and not _is_private_group(status.st_uid, status.st_gid):
        return f"{facts} is writable by the group {_name_group(status.st_gid)}"
    return ""


def _is_own(uid: int) -> bool:
    return uid in (0, os.geteuid())


def _is_outside(uid: int) -> bool:
    """Return whether a user id is the overflow id of the user namespace of this process."""
    try:
        # A map of the whole range is that of the host: there the overflow id is a user as any other.
        mapped, overflow = UID_MAP.read_text().split(), OVERFLOW_UID.read_text()
        return uid == int(overflow) and mapped != ["0", "0", "4294967295"]
    except (OSError, ValueError):
        return False


def _is_private_group(uid: int, gid: int) -> bool:
    """Return whether a group is the private group of a user: same name, primary group, no other member."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and user.pw_name == group.gr_name and not set(group.gr_mem) - {user.pw_name}


def _name_user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _name_group(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
