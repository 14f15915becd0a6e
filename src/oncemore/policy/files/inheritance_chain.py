"""A file with all that it extends, down to one that extends nothing.

The way is bounded and has no circles; each file on it is read and verified like the first. What is
wrong on the way is a fault of the file that leads there, what is wrong in another file is told by that
one.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path

from oncemore._values import Value
from oncemore.errors import PolicyError
from oncemore.policy.files.address import extended, name_of
from oncemore.policy.files.disk import Stamp, read
from oncemore.policy.files.faults import Faults, Mark, shown
from oncemore.policy.files.fields import NAME
from oncemore.policy.files.inheritance import inherit, settled
from oncemore.policy.files.packaged import LAYOUT, PACKAGED, is_packaged, verify
from oncemore.policy.files.sections import FIELDS
from oncemore.policy.files.validation import canonical, check_effect
from oncemore.policy.files.yaml_reader import Fields, Scalar, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

MOST_PARENTS: Final = 5


class Draft(Value):
    """What holds in a file, before anything is made of it.

    compliant  whether no file on the way says that it does not follow the KFM rules
    stamps     of all files that it comes from
    """

    name: str
    tree: Fields
    lineage: tuple[str, ...]
    compliant: bool
    digest: str
    stamps: tuple[Stamp, ...]


def draft_of(path: str, faults: Faults, above: tuple[str, ...] = ()) -> Draft:
    """Read a file and those that it extends; `above` are the files that extend it."""
    data, seen = read(path)
    if is_packaged(path):
        verify(path, data)
    raw = parse(data, path)
    own = settled(canonical(raw, FIELDS, faults), faults)
    name = name_of(raw, path)
    _check_name(name, own, path, faults)
    alone = Draft(name, own, (), not _says(own, "kfm_compliant", False), sha256(data).hexdigest(), (seen,))
    parent = _parent(own, path, (*above, os.path.realpath(path)), faults)
    if not is_packaged(path):
        lineage = () if parent is None else (parent.name, *parent.lineage)
        check_effect(own, FIELDS, lineage, faults)
    if parent is None:
        return alone
    return alone._replace(
        tree=inherit(parent.tree, own, faults),
        lineage=(parent.name, *parent.lineage),
        compliant=alone.compliant and parent.compliant,
        stamps=(seen, *parent.stamps),
    )


def _check_name(name: str, own: Fields, path: str, faults: Faults) -> None:
    """Refuse a name that is not the file's own, and a file name that cannot be one."""
    entry = own.entries.get("profile")
    if name in PACKAGED and name not in LAYOUT and not is_packaged(path):
        mark = Mark(path) if entry is None else entry.mark
        faults.add(mark, "profile", f"is {name}, like a packaged profile; give it a name of its own")
    if entry is None and not re.fullmatch(NAME, name):
        text = f"is missing, and the file's own name, {shown(name)}, cannot stand for it"
        faults.add(Mark(path), "profile", text)


def _parent(own: Fields, path: str, above: tuple[str, ...], faults: Faults) -> Draft | None:
    """Return the file that this one extends, if it does and the way there is good."""
    entry = own.entries.get("extends")
    if entry is None or not isinstance(entry.node, Scalar) or not isinstance(entry.node.value, str):
        return None  # a value of the wrong kind is found with all the others
    try:
        target = extended(entry.node.value, path)
    except PolicyError as error:
        faults.add(entry.node.mark, "extends", f"leads nowhere: {error}")
        return None
    problem = _no_way(os.path.realpath(target), above)
    if problem:
        faults.add(entry.node.mark, "extends", problem)
        return None
    of_the_parent = Faults()
    draft = draft_of(target, of_the_parent, above)
    of_the_parent.check()
    return draft


def _no_way(target: str, above: tuple[str, ...]) -> str:
    if target in above:
        circle = " → ".join(Path(file).name for file in (*above[above.index(target) :], target))
        return f"leads in a circle: {circle}"
    return f"leads over more than {MOST_PARENTS} files" if len(above) > MOST_PARENTS else ""


def _says(tree: Fields, name: str, value: bool) -> bool:
    entry = tree.entries.get(name)
    return entry is not None and isinstance(entry.node, Scalar) and entry.node.value is value


def is_governed(draft: Draft) -> bool:
    """Whether a file, or one that it extends, says that the stricter rules hold."""
    return _says(draft.tree, "governed", True)
