"""Finds the classifiers that installed packages announce, and loads them once.

A package announces a module, or a function in it, in the entry point group `oncemore.classifiers`; what
is decorated there with `oncemore.classifier` is known when it is loaded. That happens when the first
function is decorated with `retry`, and not at the first failure: loading needs files, and a process
that has no descriptor left must still be able to classify. (Who calls `classify` without ever using
`retry` has it loaded then.)

`importlib.metadata` would take 50 to 100 ms to find nothing, in every program; so the folders on
`sys.path` are searched here, which takes 1 to 2 ms for a hundred installed packages. Packages inside zip
files are not found; they can import their own classifiers.

A package that is itself being imported just now, because it is the one that uses `retry`, is loaded at
the next occasion. One that cannot be loaded is named in a warning and changes nothing.
"""

from __future__ import annotations

import os
import sys
from errno import EMFILE, ENFILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

    #: The name of an entry point, what it points at, and the folder that announces it.
    Entry = tuple[str, str, str]

GROUP: Final = "oncemore.classifiers"

#: The most bytes of one package's entry points that are read, and the most classifiers that are loaded.
MOST_BYTES: Final = 1 << 16
MOST_ENTRIES: Final = 100

_waiting: list[Entry] | None = None


def load() -> bool:
    """Load what is announced and not loaded yet; say whether anything is still to come."""
    global _waiting
    if _waiting is None:
        _waiting = announced(sys.path)[:MOST_ENTRIES]
    if _waiting:  # emptied first: whatever a plugin does while it is loaded, it is loaded once
        _waiting, entries = [], _waiting
        _waiting += [entry for entry in entries if not _load(entry)]
    return bool(_waiting)


def announced(path: list[str]) -> list[Entry]:
    """Return the entry points of our group in these folders; a package found twice counts once.

    A folder that cannot be read has none; but having no descriptor left is an error.
    """
    found: dict[str, list[Entry]] = {}
    for place in dict.fromkeys(place or "." for place in path if isinstance(place, str)):
        for folder in _packages(place):
            package = folder.partition("-")[0].lower()
            if package not in found:
                found[package] = list(_entries(f"{place}/{folder}/entry_points.txt", folder))
    return [entry for entries in found.values() for entry in entries]


def _packages(place: str) -> list[str]:
    try:
        names = os.listdir(place)  # noqa: PTH208 - pathlib takes longer to import than all of this to run
        return [name for name in names if name.endswith((".dist-info", ".egg-info"))]
    except (OSError, ValueError) as problem:
        _unless_exhausted(problem)
        return []


def _unless_exhausted(problem: Exception) -> None:
    if getattr(problem, "errno", None) in (EMFILE, ENFILE):
        raise problem


def _entries(path: str, folder: str) -> Iterator[Entry]:
    try:
        data = _read(path)
    except OSError as problem:
        _unless_exhausted(problem)
        return
    if GROUP.encode() not in data:
        return
    section = ""
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text.startswith("["):
            section = text.strip("[] ")
        elif section == GROUP and "=" in text and not text.startswith("#"):
            name, _, value = text.partition("=")
            yield name.strip(), value.partition("[")[0].strip(), folder


def _read(path: str) -> bytes:
    """Read a small file, three times as fast as with a file object."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, MOST_BYTES)
    finally:
        os.close(file)


def _load(entry: Entry) -> bool:
    """Import what an entry point names; False when that must wait for the package to be imported."""
    name, value, folder = entry
    module, _, attribute = (part.strip() for part in value.partition(":"))
    if _being_imported(module.partition(".")[0]):
        return False
    from importlib import import_module

    from oncemore.classifiers import custom

    custom.loading(True)
    try:
        found: object = import_module(module)
        for part in attribute.split(".") if attribute else ():
            found = getattr(found, part)
        if attribute and not custom.knows(found):
            raise TypeError(f"{attribute} is not decorated with oncemore.classifier")
    except Exception as problem:  # noqa: BLE001 - a broken package must not break this program
        what = f"{type(problem).__name__}: {problem}"
        custom.with_care(f"the classifier {name} ({value}, announced by {folder}) is not loaded: {what}")
    finally:
        custom.loading(False)
    return True


def _being_imported(package: str) -> bool:
    spec = getattr(sys.modules.get(package), "__spec__", None)
    return getattr(spec, "_initializing", False) is True
