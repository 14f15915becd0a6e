"""Check the files of a project: find them, check each, apply settings and baseline, mend them."""

from __future__ import annotations

import difflib
import gc
import os
import stat
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from oncemore.lint.check import check_bytes, decode_source
from oncemore.lint.edits import apply_edits, choose_edits
from oncemore.lint.settings import LintSettings, LintUsageError, matches_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncemore.lint.model import LintFinding

#: Folders that hold no code of the project itself.
SKIPPED_FOLDERS = {
    ".git", ".hg", ".svn", ".venv", "venv", "env", ".env", "node_modules", "build", "dist", "__pycache__",
    ".tox", ".nox", ".eggs", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".direnv", "site-packages",
    "__pypackages__", ".ipynb_checkpoints",
}  # fmt: skip
_SUFFIXES = (".py", ".pyw")
#: An edit can make room for another one at the same place; more passes than this are an error of a rule.
_MAX_PASSES = 10


class CheckedFile(NamedTuple):
    """A file and its bytes."""

    path: str
    data: bytes


class LintReport(NamedTuple):
    """The result of a run.

    findings    findings that count
    suppressed  findings that a comment or the settings set aside, with the reason
    known       the number of findings that the baseline holds
    stale       the number of entries of the baseline that are no longer found
    """

    findings: list[LintFinding]
    suppressed: list[LintFinding]
    files: int
    lines: int
    known: int = 0
    stale: int = 0


def find_files(paths: Sequence[str], exclude: Sequence[str] = (), root: Path | None = None) -> list[Path]:
    """Return the Python files at the paths, sorted; a named file is always included.

    exclude  patterns, relative to the root
    """
    base = (root or Path.cwd()).resolve()
    found: dict[Path, None] = {}
    for given in paths:
        path = Path(given)
        if path.is_dir():
            for file in _walk_folder(path, exclude, base):
                found.setdefault(file)
        elif path.is_file():
            found.setdefault(path)
        else:
            raise LintUsageError(f"{given}: there is no such file or folder")
    return list(found)


def _walk_folder(folder: Path, exclude: Sequence[str], base: Path) -> Iterator[Path]:
    for current, folders, names in os.walk(folder):
        here = Path(current)
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED_FOLDERS
            and not name.endswith(".egg-info")
            # The mark of a virtual environment, however it is called.
            and not (here / name / "pyvenv.cfg").is_file()
            and not _is_excluded(here / name, exclude, base)
        )
        for name in sorted(names):
            if name.endswith(_SUFFIXES) and not _is_excluded(here / name, exclude, base):
                yield here / name


def _is_excluded(path: Path, exclude: Sequence[str], base: Path) -> bool:
    return bool(exclude) and any(matches_pattern(shown_path(path, base), pattern) for pattern in exclude)


def shown_path(path: Path, base: Path) -> str:
    """Return the path as reports show it: relative to the base where possible, with slashes."""
    absolute = Path(os.path.normpath(path if path.is_absolute() else Path.cwd() / path))
    try:
        return absolute.relative_to(base).as_posix()
    except ValueError:
        return path.as_posix()


def read_files(paths: Sequence[Path], base: Path) -> Iterator[CheckedFile]:
    """Yield the files; one that cannot be read raises OSError with its name."""
    for path in paths:
        yield CheckedFile(shown_path(path, base), path.read_bytes())


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the garbage collector: syntax trees have no cycles, and walking them takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def check_files(
    files: Iterator[CheckedFile], settings: LintSettings, baseline: Counter[str] | None = None
) -> LintReport:
    """Check files and return the report.

    baseline  how often each fingerprint is already known
    """
    findings, suppressed = list(settings.faults), []
    count = lines = known = 0
    left = Counter(baseline or ())
    severities = dict(settings.severities)
    with paused_collector():
        for file in files:
            count += 1
            lines += file.data.count(b"\n")
            for finding in check_bytes(file.data, file.path, settings.rules, severities):
                if finding.reason:
                    suppressed.append(finding)
                elif reason := settings.find_file_ignore(file.path, finding.rule):
                    suppressed.append(finding._replace(reason=reason))
                elif left[finding.fingerprint] > 0:
                    left[finding.fingerprint] -= 1
                    known += 1
                else:
                    findings.append(finding)
    return LintReport(findings, suppressed, count, lines, known, sum((+left).values()))


def mend_source(data: bytes, path: str, settings: LintSettings) -> bytes:
    """Return the bytes of a file with every mechanical finding mended; unchanged if there is none.

    Encoding, byte order mark and line ends stay as they are. Mending the result again changes nothing.
    """
    for _ in range(_MAX_PASSES):
        findings = check_bytes(data, path, settings.rules)
        edits = choose_edits(
            finding.edits
            for finding in findings
            if not finding.reason and not settings.find_file_ignore(path, finding.rule)
        )
        if not edits:
            break
        source, encoding = decode_source(data)
        if "\r\n" in source:
            edits = [edit._replace(text=edit.text.replace("\n", "\r\n")) for edit in edits]
        data = apply_edits(source, edits).encode(encoding)
    return data


def describe_change(before: bytes, after: bytes, path: str) -> str:
    """Return the change of a file as a unified diff."""
    old, new = (decode_source(data)[0].splitlines(keepends=True) for data in (before, after))
    return "".join(difflib.unified_diff(old, new, f"a/{path}", f"b/{path}"))


def replace_source(path: Path, data: bytes) -> None:
    """Replace the content of a source file in one step; its permissions and links to it stay."""
    target = Path(os.path.realpath(path))
    # Imported here: the linter also runs where only its own folder can be imported.
    from oncemore._replace_file import replace_file

    replace_file(target, data, stat.S_IMODE(target.stat().st_mode))
