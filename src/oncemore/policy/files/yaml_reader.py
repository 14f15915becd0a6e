"""YAML 1.2 as a tree of values that know their place; what a policy has no use for is refused.

The theory. ruamel.yaml scans and parses; its stream of events is walked here, and nothing is ever
constructed by it. So no tag can run anything, no alias can multiply anything, and every value keeps
the line and column it stands on. Depth, number of nodes and length are bounded while events come in,
before the next one is asked for.

Plain scalars are read by the core schema of YAML 1.2, narrowed: `true` and `false` are the only
booleans, numbers have no leading zeros, no underscores and no other base, and what looks like a date
is marked, because readers disagree about it. Characters that hide something from a reviewer (control
characters, direction overrides) are refused wherever they stand.
"""

from __future__ import annotations

import re

from oncemore._values import Value
from oncemore.policy.files.faults import Faults, Mark, PolicyFileError, refuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final

    Node = "Scalar | Items | Fields"

DEEPEST: Final = 20
MOST_NODES: Final = 1500
MOST_LINES: Final = 2000
LONGEST_NUMBER: Final = 40


class Scalar(Value):
    """A single value; `dated` says that it is unquoted and looks like a date."""

    value: bool | int | float | str | None
    mark: Mark
    dated: bool = False


class Items(Value):
    """A list."""

    items: tuple[Scalar | Items | Fields, ...]
    mark: Mark


class Entry(Value):
    """A key with its value: the dotted path as it was written, the place of the key.

    `shift` is what must be added to the written number: 1 where retries are counted instead of calls.
    """

    written: str
    mark: Mark
    node: Scalar | Items | Fields
    shift: int = 0


class Fields(Value):
    """A mapping."""

    entries: dict[str, Entry]
    mark: Mark


_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\uffff]|\r(?!\n)"
)
_INDENTING_TAB: Final = re.compile(r"(?m)^ *\t")
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


def parse(data: bytes, file: str) -> Fields:
    """Return the one mapping that a policy file holds, or refuse the file with every reason found."""
    text = _text(data, file)
    faults = Faults()
    try:
        tree = _Walk(_events(text), file, faults).document()
    except PolicyFileError:
        raise
    except Exception as error:  # a reader of strangers' files must not fail in its own way
        raise refuse(_place(error, file), f"is not YAML: {_problem(error)}") from error
    faults.check()
    return tree


def _text(data: bytes, file: str) -> str:
    """Decode and look at the characters; what could take long to scan is refused before it is."""
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refuse(Mark(file, line, 1), "is not UTF-8") from None
    if found := _HIDDEN.search(text):
        raise refuse(_at(text, found.start(), file), f"holds the character U+{ord(found[0]):04X}")
    if found := _INDENTING_TAB.search(text):
        raise refuse(_at(text, found.end() - 1, file), "is indented with a tab; use spaces")
    if text.count("\n") >= MOST_LINES:
        raise refuse(Mark(file, MOST_LINES + 1, 1), f"has more than {MOST_LINES} lines")
    depth = 0
    for found in re.finditer(r"[][{}]", text):
        depth = depth + 1 if found[0] in "[{" else max(0, depth - 1)
        if depth > 3 * DEEPEST:
            raise refuse(_at(text, found.start(), file), f"is nested more than {DEEPEST} deep")
    return text


def _events(text: str) -> Iterator[Any]:
    from ruamel.yaml import YAML  # here, because only policy files need it

    return YAML(typ="safe", pure=True).parse(text)  # type: ignore[no-any-return]


class _Walk:
    """One walk over the events of a file."""

    def __init__(self, events: Iterator[Any], file: str, faults: Faults) -> None:
        self._events = events
        self._file = file
        self._faults = faults
        self._nodes = 0

    def document(self) -> Fields:
        """Return the only document of the stream, which must be a mapping."""
        self._next("StreamStartEvent")
        event = next(self._events)
        if type(event).__name__ == "StreamEndEvent":
            raise refuse(Mark(self._file), "is empty")
        if event.version not in (None, (1, 2)) or event.tags:
            raise refuse(self._mark(event), "has a directive; a policy file is plain YAML 1.2")
        tree = self._node(next(self._events), 1)
        self._next("DocumentEndEvent")
        after = next(self._events)
        if type(after).__name__ != "StreamEndEvent":
            raise refuse(self._mark(after), "holds several documents; a policy file holds one")
        if not isinstance(tree, Fields):
            raise refuse(tree.mark, "holds no fields; a policy file begins with version: …")
        return tree

    def _next(self, kind: str) -> None:
        event = next(self._events)
        assert type(event).__name__ == kind

    def _mark(self, event: Any) -> Mark:
        return Mark(self._file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _node(self, event: Any, depth: int) -> Scalar | Items | Fields:
        mark = self._mark(event)
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise refuse(mark, f"holds more than {MOST_NODES} values")
        if depth > DEEPEST:
            raise refuse(mark, f"is nested more than {DEEPEST} deep")
        self._check_plainness(event, mark)
        match type(event).__name__:
            case "ScalarEvent":
                return _scalar(event, mark)
            case "SequenceStartEvent":
                return Items(tuple(self._items(depth)), mark)
            case "MappingStartEvent":
                return Fields(self._fields(depth), mark)
            case _:  # an alias: already a fault
                return Scalar(None, mark)

    def _check_plainness(self, event: Any, mark: Mark) -> None:
        """Note what a reader of the file would have to resolve in his head."""
        if type(event).__name__ == "AliasEvent":
            self._faults.add(mark, "", f"*{event.anchor}: aliases are not allowed; write the value out")
        elif event.anchor is not None:
            self._faults.add(mark, "", f"&{event.anchor}: anchors are not allowed; write the value out")
        if getattr(event, "tag", None) is not None:
            self._faults.add(mark, "", f"{event.tag}: tags are not allowed")

    def _items(self, depth: int) -> Iterator[Scalar | Items | Fields]:
        while type(event := next(self._events)).__name__ != "SequenceEndEvent":
            yield self._node(event, depth + 1)

    def _fields(self, depth: int) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        while type(event := next(self._events)).__name__ != "MappingEndEvent":
            mark = self._mark(event)
            key = self._key(event, mark, depth)
            node = self._node(next(self._events), depth + 1)
            if key == "<<":
                self._faults.add(mark, key, "merges are not allowed; use extends, or write the values out")
            elif key in entries:
                before = entries[key].mark.line
                self._faults.add(mark, key, f"is given twice, in line {before} and in line {mark.line}")
            else:
                entries[key] = Entry(key, mark, node)
        return entries

    def _key(self, event: Any, mark: Mark, depth: int) -> str:
        if type(event).__name__ != "ScalarEvent":
            self._check_plainness(event, mark)
            raise refuse(mark, "has a key that is not a name")
        self._node(event, depth)
        return str(event.value)


def _scalar(event: Any, mark: Mark) -> Scalar:
    """Read a scalar: quoted ones and blocks are texts, plain ones what the core schema says."""
    text = event.value
    if event.style:
        return Scalar(text, mark)
    if text in _WORDS:
        return Scalar(_WORDS[text], mark)
    if len(text) <= LONGEST_NUMBER:
        if _INTEGER.fullmatch(text):
            return Scalar(int(text), mark)
        if _FLOAT.fullmatch(text):
            return Scalar(float(text), mark)
    return Scalar(text, mark, _DATE.fullmatch(text) is not None)


def _at(text: str, offset: int, file: str) -> Mark:
    return Mark(file, text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def _place(error: Exception, file: str) -> Mark:
    """Return where ruamel.yaml stumbled, if it says so."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return Mark(file) if mark is None else Mark(file, mark.line + 1, mark.column + 1)


def _problem(error: Exception) -> str:
    """Return what ruamel.yaml says of it, on one line; a failure of its own is its name."""
    said = getattr(error, "problem", None) or getattr(error, "context", None)
    return str(said).replace("\n", " ")[:200] if said else type(error).__name__
