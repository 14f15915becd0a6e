"""Finds and loads the classifiers of installed packages, once.

A package announces a module, or a function in it, in the entry point group `oncemore.classifiers`;
loading it registers everything that it decorates with `oncemore.classifier`. Plugins are loaded when
the first function is decorated with `retry`, not at the first failure: loading needs files, and a
process without free file descriptors must still be able to classify. (A program that only calls
`classify` loads them at the first call.)

`importlib.metadata` takes 50 to 100 ms in every program, even without plugins. Searching the folders on
`sys.path` directly takes 1 to 2 ms for a hundred installed packages. Packages inside zip files are not
found; they can import their own classifiers.

A package that is being imported at this moment, because it is the one that uses `retry`, is loaded at
the next call. A package that cannot be loaded is named in a warning and ignored.
"""

from __future__ import annotations

import os
import sys
from errno import EMFILE, ENFILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

    #: The name of an entry point, its target (module:attribute), and the folder that announces it.
    Entry = tuple[str, str, str]

ENTRY_POINT_GROUP: Final = "oncemore.classifiers"

#: Limits: the bytes read of one package's entry points, and the number of loaded entry points.
MAX_BYTES: Final = 1 << 16
MAX_ENTRIES: Final = 100

_pending_entries: list[Entry] | None = None


def load_plugins() -> bool:
    """Load the announced classifiers; return whether some are still pending."""
    global _pending_entries
    if _pending_entries is None:
        _pending_entries = find_entry_points(sys.path)[:MAX_ENTRIES]
    # Emptied first: a plugin may classify an error while it is loaded, which calls this function again.
    if _pending_entries:
        _pending_entries, entries = [], _pending_entries
        _pending_entries += [entry for entry in entries if not _load_entry_point(entry)]
    return bool(_pending_entries)


def find_entry_points(path: list[str]) -> list[Entry]:
    """Return the entry points of our group in these folders; a package found twice counts once.

    Unreadable folders are skipped. Raises `OSError` if no file descriptor is free.
    """
    entries_by_package: dict[str, list[Entry]] = {}
    for directory in dict.fromkeys(directory or "." for directory in path if isinstance(directory, str)):
        for folder in _list_packages(directory):
            package = folder.partition("-")[0].lower()
            if package not in entries_by_package:
                entries_by_package[package] = list(
                    _read_entry_points(f"{directory}/{folder}/entry_points.txt", folder)
                )
    return [entry for entries in entries_by_package.values() for entry in entries]


def _list_packages(directory: str) -> list[str]:
    try:
        names = os.listdir(directory)  # noqa: PTH208 - importing pathlib takes longer than the whole search
        return [name for name in names if name.endswith((".dist-info", ".egg-info"))]
    except (OSError, ValueError) as error:
        # Without free descriptors, the search is repeated later; all other errors mean: no packages here.
        _raise_if_exhausted(error)
        return []


def _raise_if_exhausted(error: Exception) -> None:
    if getattr(error, "errno", None) in (EMFILE, ENFILE):
        raise error


def _read_entry_points(path: str, folder: str) -> Iterator[Entry]:
    try:
        data = _read_file(path)
    except OSError as error:
        _raise_if_exhausted(error)
        return
    if ENTRY_POINT_GROUP.encode() not in data:
        return
    # A minimal parser: importing `configparser` would cost time in every program.
    section = ""
    for line in data.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text.startswith("["):
            section = text.strip("[] ")
        elif section == ENTRY_POINT_GROUP and "=" in text and not text.startswith("#"):
            name, _, value = text.partition("=")
            yield name.strip(), value.partition("[")[0].strip(), folder


def _read_file(path: str) -> bytes:
    """Return the bytes of a small file; three times as fast as with a file object."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, MAX_BYTES)
    finally:
        os.close(file)


def _load_entry_point(entry: Entry) -> bool:
    """Import an entry point's target; return False if its package is still being imported."""
    name, value, folder = entry
    module, _, attribute = (part.strip() for part in value.partition(":"))
    if _is_being_imported(module.partition(".")[0]):
        return False
    from importlib import import_module

    from oncemore.classifiers import custom

    custom.set_plugin_loading(True)
    try:
        target: object = import_module(module)
        for part in attribute.split(".") if attribute else ():
            target = getattr(target, part)
        if attribute and not custom.is_classifier(target):
            raise TypeError(f"{attribute} is not decorated with oncemore.classifier")
    except Exception as error:  # noqa: BLE001 - a broken package must not break this program
        reason = f"{type(error).__name__}: {error}"
        custom.emit_warning(f"the classifier {name} ({value}, announced by {folder}) is not loaded: {reason}")
    finally:
        custom.set_plugin_loading(False)
    return True


def _is_being_imported(package: str) -> bool:
    spec = getattr(sys.modules.get(package), "__spec__", None)
    return getattr(spec, "_initializing", False) is True
