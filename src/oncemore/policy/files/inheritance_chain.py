"""Reads a file with all files that it extends.

The chain has a limited length and no circles; every file in it is read and verified like the first. An
`extends` that cannot be followed is a fault of the file that contains it; all other faults belong to
the file in which they are.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path

from oncemore._values import Value
from oncemore.errors import PolicyError
from oncemore.policy.files.address import profile_name, resolve_extends
from oncemore.policy.files.faults import FaultList, FilePosition, format_value
from oncemore.policy.files.fields import NAME_PATTERN, UNVERSIONED
from oncemore.policy.files.file_reader import (
    LAYOUT,
    PACKAGED_FILES,
    FileStamp,
    is_packaged,
    read_file,
    verify_packaged,
)
from oncemore.policy.files.inheritance import inherit_fields, move_provider_cooldowns
from oncemore.policy.files.sections import FILE_FIELDS
from oncemore.policy.files.validation import check_effect, normalize_names
from oncemore.policy.files.yaml_reader import MappingNode, ScalarNode, parse_yaml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

MAX_PARENTS: Final = 5


class ReadFile(Value):
    """A file of the chain as it was read: its path, its bytes, and the name and version in it."""

    path: str
    data: bytes
    name: str
    version: str
    #: Whether the file itself states its name; the name of a file is not signed.
    has_name: bool


class FileDraft(Value):
    """The merged fields of a file, before policies are built from them.

    is_compliant  whether no file in the chain says that it does not follow the KFM rules
    stamps        the stamps of all files in the chain
    own_files     the files of the chain that are not packaged, this one first
    """

    name: str
    tree: MappingNode
    lineage: tuple[str, ...]
    is_compliant: bool
    digest: str
    stamps: tuple[FileStamp, ...]
    own_files: tuple[ReadFile, ...] = ()


def draft_file(path: str, faults: FaultList, extending_files: tuple[str, ...] = ()) -> FileDraft:
    """Return the draft of a file; `extending_files` are the files that lead to it through `extends`."""
    data, stamp = read_file(path)
    if is_packaged(path):
        verify_packaged(path, data)
    raw = parse_yaml(data, path)
    own = move_provider_cooldowns(normalize_names(raw, FILE_FIELDS, faults), faults)
    name = profile_name(raw, path)
    _check_name(name, own, path, faults)
    draft = FileDraft(
        name=name,
        tree=own,
        lineage=(),
        is_compliant=not _has_flag(own, "kfm_compliant", False),
        digest=sha256(data).hexdigest(),
        stamps=(stamp,),
        own_files=() if is_packaged(path) else (_make_read_file(path, data, name, own),),
    )
    parent = _draft_parent(own, path, (*extending_files, os.path.realpath(path)), faults)
    # Packaged profiles hold fields of their source documents even where these have no effect.
    if not is_packaged(path):
        lineage = () if parent is None else (parent.name, *parent.lineage)
        check_effect(own, FILE_FIELDS, lineage, faults)
    if parent is None:
        return draft
    return draft._replace(
        tree=inherit_fields(parent.tree, own, faults),
        lineage=(parent.name, *parent.lineage),
        is_compliant=draft.is_compliant and parent.is_compliant,
        stamps=(stamp, *parent.stamps),
        own_files=(*draft.own_files, *parent.own_files),
    )


def _make_read_file(path: str, data: bytes, name: str, own: MappingNode) -> ReadFile:
    entry = own.entries.get("version")
    version = entry.node.value if entry is not None and isinstance(entry.node, ScalarNode) else None
    return ReadFile(path, data, name, str(version or UNVERSIONED), "profile" in own.entries)


def _check_name(name: str, own: MappingNode, path: str, faults: FaultList) -> None:
    """Add a fault for a packaged name, and for a file name that cannot serve as a profile name."""
    entry = own.entries.get("profile")
    if name in PACKAGED_FILES and name not in LAYOUT and not is_packaged(path):
        mark = FilePosition(path) if entry is None else entry.mark
        faults.add_fault(mark, "profile", f"is {name}, like a packaged profile; give it another name")
    if entry is None and not re.fullmatch(NAME_PATTERN, name):
        text = f"is missing, and the file's own name, {format_value(name)}, is not a valid name"
        faults.add_fault(FilePosition(path), "profile", text)


def _draft_parent(
    own: MappingNode, path: str, extending_files: tuple[str, ...], faults: FaultList
) -> FileDraft | None:
    """Return the draft of the extended file; None if there is none or it cannot be followed."""
    entry = own.entries.get("extends")
    if entry is None or not isinstance(entry.node, ScalarNode) or not isinstance(entry.node.value, str):
        # A value of the wrong type is reported with all other wrong values.
        return None
    try:
        target = resolve_extends(entry.node.value, path)
    except PolicyError as error:
        faults.add_fault(entry.node.mark, "extends", f"cannot be followed: {error}")
        return None
    # Real paths, so that links cannot hide a circle.
    problem = _chain_problem(os.path.realpath(target), extending_files)
    if problem:
        faults.add_fault(entry.node.mark, "extends", problem)
        return None
    parent_faults = FaultList()
    draft = draft_file(target, parent_faults, extending_files)
    # Raised at once: the fields of a file cannot be judged on top of a broken parent.
    parent_faults.raise_if_any()
    return draft


def _chain_problem(target: str, extending_files: tuple[str, ...]) -> str:
    if target in extending_files:
        circle = " → ".join(
            Path(file).name for file in (*extending_files[extending_files.index(target) :], target)
        )
        return f"leads in a circle: {circle}"
    return f"leads over more than {MAX_PARENTS} files" if len(extending_files) > MAX_PARENTS else ""


def _has_flag(tree: MappingNode, name: str, value: bool) -> bool:
    entry = tree.entries.get(name)
    return entry is not None and isinstance(entry.node, ScalarNode) and entry.node.value is value


def is_governed(draft: FileDraft) -> bool:
    """Return whether a file, or one that it extends, is governed."""
    return _has_flag(draft.tree, "governed", True)
