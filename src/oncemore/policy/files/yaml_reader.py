"""Parses YAML 1.2 into a tree of values with positions, and refuses features that a policy does not need.

ruamel.yaml only scans and parses; this module walks over its events and constructs the values itself. So
no tag can run code, no alias can multiply data, and every value has its line and column. Depth, number of
nodes and length are limited during the walk, before the next event is requested.

Plain scalars follow a narrowed core schema of YAML 1.2: `true` and `false` are the only booleans, numbers
have no leading zeros, no underscores and no other base, and texts that look like a date are marked,
because YAML parsers disagree about them. Characters that hide something from a reviewer (control
characters, direction overrides) are refused everywhere.
"""

from __future__ import annotations

import re

from oncemore._values import Value
from oncemore.policy.files.faults import FaultList, FilePosition, PolicyFileError, policy_file_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final


MAX_DEPTH: Final = 20
MAX_NODES: Final = 1500
MAX_LINES: Final = 2000
MAX_NUMBER_LENGTH: Final = 40


class ScalarNode(Value):
    """A single value; `looks_like_date` marks an unquoted text in the form of a date."""

    value: bool | int | float | str | None
    mark: FilePosition
    looks_like_date: bool = False


class ListNode(Value):
    """A list."""

    items: tuple[ScalarNode | ListNode | MappingNode, ...]
    mark: FilePosition


class MappingEntry(Value):
    """A key with its value, its dotted path as written, and its position.

    `shift` is added to the written number: 1 if the file counts retries instead of calls.
    """

    written_path: str
    mark: FilePosition
    node: ScalarNode | ListNode | MappingNode
    shift: int = 0


class MappingNode(Value):
    """A mapping."""

    entries: dict[str, MappingEntry]
    mark: FilePosition


_HIDDEN_CHARACTERS: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\uffff]|\r(?!\n)"
)
_INDENTING_TAB: Final = re.compile(r"(?m)^ *\t")
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?")
# YAML 1.1 words such as `yes`, `no`, `on` and `off` are missing: they are texts in YAML 1.2.
_WORD_VALUES: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


def parse_yaml(data: bytes, file: str) -> MappingNode:
    """Return the mapping in a policy file; raise `PolicyFileError` with all faults."""
    text = _decode_text(data, file)
    faults = FaultList()
    try:
        tree = _YamlWalk(_parse_events(text), file, faults).read_document()
    except PolicyFileError:
        raise
    # ruamel.yaml raises more than its own errors on hostile input; users get one kind of error.
    except Exception as error:
        raise policy_file_error(_error_position(error, file), f"is not YAML: {_error_text(error)}") from error
    faults.raise_if_any()
    return tree


def _decode_text(data: bytes, file: str) -> str:
    """Return the text of a file; refuse input that would take long to scan before scanning it."""
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise policy_file_error(FilePosition(file, line, 1), "is not UTF-8") from None
    if match := _HIDDEN_CHARACTERS.search(text):
        raise policy_file_error(
            _position_at(text, match.start(), file), f"holds the character U+{ord(match[0]):04X}"
        )
    if match := _INDENTING_TAB.search(text):
        raise policy_file_error(
            _position_at(text, match.end() - 1, file), "is indented with a tab; use spaces"
        )
    if text.count("\n") >= MAX_LINES:
        raise policy_file_error(FilePosition(file, MAX_LINES + 1, 1), f"has more than {MAX_LINES} lines")
    # Deeply nested brackets take long to scan, so they are counted first. Brackets in texts and comments
    # count too, hence the threefold limit.
    depth = 0
    for match in re.finditer(r"[][{}]", text):
        depth = depth + 1 if match[0] in "[{" else max(0, depth - 1)
        if depth > 3 * MAX_DEPTH:
            raise policy_file_error(
                _position_at(text, match.start(), file), f"is nested more than {MAX_DEPTH} deep"
            )
    return text


def _parse_events(text: str) -> Iterator[Any]:
    # Imported here: only policy files need it.
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).parse(text)  # type: ignore[no-any-return]


class _YamlWalk:
    """A walk over the events of one file."""

    def __init__(self, events: Iterator[Any], file: str, faults: FaultList) -> None:
        self._events = events
        self._file = file
        self._faults = faults
        self._node_count = 0

    def read_document(self) -> MappingNode:
        """Return the only document of the stream, which must be a mapping."""
        self._expect_event("StreamStartEvent")
        event = next(self._events)
        if type(event).__name__ == "StreamEndEvent":
            raise policy_file_error(FilePosition(self._file), "is empty")
        if event.version not in (None, (1, 2)) or event.tags:
            raise policy_file_error(
                self._event_position(event), "has a directive; a policy file is plain YAML 1.2"
            )
        tree = self._read_node(next(self._events), 1)
        self._expect_event("DocumentEndEvent")
        next_event = next(self._events)
        if type(next_event).__name__ != "StreamEndEvent":
            raise policy_file_error(
                self._event_position(next_event), "holds several documents; a policy file holds one"
            )
        if not isinstance(tree, MappingNode):
            raise policy_file_error(tree.mark, "has no fields; a policy file begins with version: …")
        return tree

    def _expect_event(self, kind: str) -> None:
        event = next(self._events)
        assert type(event).__name__ == kind

    def _event_position(self, event: Any) -> FilePosition:
        return FilePosition(self._file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _read_node(self, event: Any, depth: int) -> ScalarNode | ListNode | MappingNode:
        mark = self._event_position(event)
        # Counted during the walk: the rest of an oversized file is not parsed any more.
        self._node_count += 1
        if self._node_count > MAX_NODES:
            raise policy_file_error(mark, f"holds more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise policy_file_error(mark, f"is nested more than {MAX_DEPTH} deep")
        self._check_plain_yaml(event, mark)
        match type(event).__name__:
            case "ScalarEvent":
                return _read_scalar(event, mark)
            case "SequenceStartEvent":
                return ListNode(tuple(self._read_items(depth)), mark)
            case "MappingStartEvent":
                return MappingNode(self._read_fields(depth), mark)
            case _:
                # An alias; `_check_plain_yaml` has added the fault.
                return ScalarNode(None, mark)

    def _check_plain_yaml(self, event: Any, mark: FilePosition) -> None:
        """Add faults for aliases, anchors and tags, which a reviewer would have to resolve."""
        if type(event).__name__ == "AliasEvent":
            self._faults.add_fault(mark, "", f"*{event.anchor}: aliases are not allowed; write the value out")
        elif event.anchor is not None:
            self._faults.add_fault(mark, "", f"&{event.anchor}: anchors are not allowed; write the value out")
        if getattr(event, "tag", None) is not None:
            self._faults.add_fault(mark, "", f"{event.tag}: tags are not allowed")

    def _read_items(self, depth: int) -> Iterator[ScalarNode | ListNode | MappingNode]:
        while type(event := next(self._events)).__name__ != "SequenceEndEvent":
            yield self._read_node(event, depth + 1)

    def _read_fields(self, depth: int) -> dict[str, MappingEntry]:
        entries: dict[str, MappingEntry] = {}
        while type(event := next(self._events)).__name__ != "MappingEndEvent":
            mark = self._event_position(event)
            key = self._read_key(event, mark, depth)
            node = self._read_node(next(self._events), depth + 1)
            if key == "<<":
                self._faults.add_fault(
                    mark, key, "merges are not allowed; use extends, or write the values out"
                )
            elif key in entries:
                before = entries[key].mark.line
                self._faults.add_fault(mark, key, f"is given twice, in line {before} and in line {mark.line}")
            else:
                entries[key] = MappingEntry(key, mark, node)
        return entries

    def _read_key(self, event: Any, mark: FilePosition, depth: int) -> str:
        if type(event).__name__ != "ScalarEvent":
            self._check_plain_yaml(event, mark)
            raise policy_file_error(mark, "has a key that is not a name")
        self._read_node(event, depth)
        return str(event.value)


def _read_scalar(event: Any, mark: FilePosition) -> ScalarNode:
    """Return a scalar: quoted and block scalars are texts, plain ones follow the core schema."""
    text = event.value
    if event.style:
        return ScalarNode(text, mark)
    if text in _WORD_VALUES:
        return ScalarNode(_WORD_VALUES[text], mark)
    # Longer digits are a text: `int` takes quadratic time, and no field needs such a number.
    if len(text) <= MAX_NUMBER_LENGTH:
        if _INTEGER.fullmatch(text):
            return ScalarNode(int(text), mark)
        if _FLOAT.fullmatch(text):
            return ScalarNode(float(text), mark)
    return ScalarNode(text, mark, _DATE.fullmatch(text) is not None)


def _position_at(text: str, offset: int, file: str) -> FilePosition:
    return FilePosition(file, text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def _error_position(error: Exception, file: str) -> FilePosition:
    """Return the position in an error of ruamel.yaml, if it has one."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return FilePosition(file) if mark is None else FilePosition(file, mark.line + 1, mark.column + 1)


def _error_text(error: Exception) -> str:
    """Return the message of ruamel.yaml on one line; the type's name for any other error."""
    message = getattr(error, "problem", None) or getattr(error, "context", None)
    return str(message).replace("\n", " ")[:200] if message else type(error).__name__
