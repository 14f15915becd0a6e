"""Migrates files and folders: reads them, rewrites their modules, and replaces files on request.

A file is replaced by a rename, after its content was read again: a crash or a stop leaves the old file or the
new one, and an edit made meanwhile is not lost.
"""

from __future__ import annotations

import os
from difflib import unified_diff
from pathlib import Path

from oncemore._values import Value
from oncemore.errors import MissingExtra, UsageError
from oncemore.migrate.options import CannotMigrate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oncemore.migrate.module import MigratedCall

#: Folders that hold code of other people, or none.
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


class MigratedFile(Value):
    """One file with calls of the other library.

    diff     the change as a unified diff, empty if there is none
    written  whether the file was replaced
    problem  why the file could not be read, parsed or written
    """

    path: str
    calls: tuple[MigratedCall, ...] = ()
    diff: str = ""
    written: bool = False
    problem: str = ""


class MigrationReport(Value):
    """All files that use the library, and counts over all files that were read."""

    library: str
    files_read: int
    files: tuple[MigratedFile, ...]
    rewritten: int
    left_alone: int
    problems: int


def migrate_paths(
    library: str, paths: Sequence[str], *, write: bool = False, exact: bool = False
) -> MigrationReport:
    """Migrate all Python files below the paths; without `write` only report the changes."""
    try:
        import libcst as libcst
    except ImportError as missing:
        raise MissingExtra("oncemore migrate needs libcst: pip install 'oncemore[migrate]'") from missing
    files, count = [], 0
    for path in find_files(paths):
        count += 1
        file = _migrate_file(path, library, write=write, exact=exact)
        if file.calls or file.problem:
            files.append(file)
    calls = [call for file in files for call in file.calls]
    return MigrationReport(
        library=library,
        files_read=count,
        files=tuple(files),
        rewritten=sum(call.is_rewritten for call in calls),
        left_alone=sum(not call.is_rewritten for call in calls),
        problems=sum(bool(file.problem) for file in files),
    )


def find_files(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the Python files below the paths, in order and each once; refuse a path that does not exist."""
    seen: set[Path] = set()
    for given in paths:
        root = Path(given)
        if not root.exists():
            raise UsageError(f"{given} does not exist; give files or folders of Python code")
        for path in _walk_folder(root) if root.is_dir() else [root]:
            # The same file can be below two of the paths.
            if (real := path.resolve()) not in seen:
                seen.add(real)
                yield path


def _walk_folder(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        here = Path(folder)
        # Changed in place: os.walk does not enter the folders that are removed.
        names[:] = sorted(name for name in names if not _is_skipped(here / name))
        yield from (here / name for name in sorted(files) if name.endswith(".py"))


def _is_skipped(folder: Path) -> bool:
    hidden = folder.name.startswith(".")
    return hidden or folder.name in SKIPPED_FOLDERS or (folder / "pyvenv.cfg").exists()


def _migrate_file(path: Path, library: str, *, write: bool, exact: bool) -> MigratedFile:
    # Imported here, so that a missing libcst is reported with the name of the extra.
    from oncemore.migrate.module import migrate_module

    try:
        source = path.read_bytes()
        module = migrate_module(source, library, exact=exact)
    except (OSError, CannotMigrate) as error:
        return MigratedFile(str(path), problem=_describe_problem(error))
    if module.source == source:
        return MigratedFile(str(path), module.calls)
    file = MigratedFile(str(path), module.calls, _write_diff(path, source, module.source))
    if not write:
        return file
    problem = _replace_source(path, source, module.source)
    return file._replace(written=not problem, problem=problem)


def _describe_problem(error: Exception) -> str:
    return f"{error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)


def _replace_source(path: Path, old: bytes, new: bytes) -> str:
    """Replace a file that still has its old content; return the problem, or ""."""
    from oncemore._replace_file import replace_file

    try:
        # A link stays a link: the file it leads to is replaced.
        target = path.resolve()
        if target.read_bytes() != old:
            return "the file was changed while it was migrated; run the command again"
        replace_file(target, new, mode=target.stat().st_mode & 0o7777)
    except OSError as error:
        return f"not written: {_describe_problem(error)}"
    return ""


def _write_diff(path: Path, old: bytes, new: bytes) -> str:
    lines = unified_diff(
        # Undecodable bytes are only shown here; the file keeps them.
        old.decode("utf-8", "replace").splitlines(keepends=True),
        new.decode("utf-8", "replace").splitlines(keepends=True),
        f"a/{path.as_posix()}",
        f"b/{path.as_posix()}",
    )
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join(ended)
