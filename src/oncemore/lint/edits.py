"""Build and apply edits of source text.

An edit replaces an exact range and nothing else. A built edit is only offered if the edited text parses to
the intended syntax tree; layouts that the builder does not understand get no edit instead of a wrong one.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oncemore.lint.model import SourceEdit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncemore.lint.facts import ModuleFacts


class EditedLines:
    """The lines of a source as bytes, because the syntax tree counts columns in bytes."""

    def __init__(self, source: str) -> None:
        # Only "\n" ends a line here: a form feed inside a line must not shift the line numbers.
        self.lines = [line.encode("utf-8", "surrogatepass") for line in source.split("\n")]

    def text_between(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        """Return the text between two positions (line from 1, column in bytes)."""
        (line, column), (end_line, end_column) = start, end
        if line == end_line:
            data = self.lines[line - 1][column:end_column]
        else:
            middle = self.lines[line : end_line - 1]
            data = b"\n".join([self.lines[line - 1][column:], *middle, self.lines[end_line - 1][:end_column]])
        return data.decode("utf-8", "surrogatepass")


def insert_text(line: int, column: int, text: str) -> SourceEdit:
    """Return an edit that inserts text."""
    return SourceEdit(line, column, line, column, text)


def replace_node(node: ast.expr, text: str) -> SourceEdit:
    """Return an edit that replaces an expression."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return SourceEdit(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, text)


def add_keyword(facts: ModuleFacts, node: ast.expr, keyword: str) -> SourceEdit | None:
    """Return an edit that adds a keyword to a call, or a call with it to a bare decorator."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    end_line, end_column = node.end_lineno, node.end_col_offset
    # Edits count "\n" only; a file with bare carriage returns is left alone.
    if "\r" in facts.source.replace("\r\n", ""):
        return None
    if not isinstance(node, ast.Call):
        return insert_text(end_line, end_column, f"({keyword})")
    arguments: list[ast.expr] = [*node.args, *(one.value for one in node.keywords)]
    if not arguments:
        edit: SourceEdit | None = insert_text(end_line, end_column - 1, keyword)
    else:
        edit = _append_argument(facts, node, arguments, keyword)
    return edit if edit is not None and _is_right(facts, node, edit, keyword) else None


def _append_argument(
    facts: ModuleFacts, node: ast.Call, arguments: list[ast.expr], keyword: str
) -> SourceEdit | None:
    last = max(arguments, key=lambda one: (one.end_lineno or 0, one.end_col_offset or 0))
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start, end = (last.end_lineno, last.end_col_offset), (node.end_lineno, node.end_col_offset - 1)
    between = EditedLines(facts.source).text_between(start, end)
    if "#" in between or "\\" in between:
        return None
    closing = between.rstrip()
    if not closing.endswith(","):
        # `f(a)` and `f((a))`: right before the parenthesis that ends the call, or after the last argument
        # if that parenthesis is on a line of its own.
        at = start if "\n" in between and not closing else end
        return insert_text(at[0], at[1], f", {keyword}")
    if "\n" not in between:
        return insert_text(end[0], end[1], f" {keyword}" if between == closing else keyword)
    if end[0] == start[0] + 1 and closing == ",":
        # One argument per line with a trailing comma: a new line in the same layout.
        indent = " " * last.col_offset if last.lineno == start[0] else ""
        first = facts.source.split("\n")[start[0] - 1]
        indent = first[: len(first) - len(first.lstrip())] or indent
        return insert_text(start[0], start[1] + 1, f"\n{indent}{keyword},")
    return None


def _is_right(facts: ModuleFacts, node: ast.Call, edit: SourceEdit, keyword: str) -> bool:
    """Return whether the edited call parses to the old call with the new keyword."""
    segment = ast.get_source_segment(facts.source, node) or ""
    try:
        # Positions inside of the call alone: its first line starts at the column of the call.
        column = edit.column - (node.col_offset if edit.line == node.lineno else 0)
        local = insert_text(edit.line - node.lineno + 1, column, edit.text)
        edited = ast.parse(f"({apply_edits(segment, [local])}\n)", mode="eval").body
        wanted = ast.parse(f"call({keyword})", mode="eval").body
    except (SyntaxError, ValueError):
        return False
    assert isinstance(wanted, ast.Call)
    added = len(wanted.keywords)
    return (
        isinstance(edited, ast.Call)
        and ast.dump(edited.func) == ast.dump(node.func)
        and [ast.dump(one) for one in edited.args] == [ast.dump(one) for one in node.args]
        and [ast.dump(one) for one in edited.keywords[:-added]] == [ast.dump(one) for one in node.keywords]
        and [ast.dump(one) for one in edited.keywords[-added:]] == [ast.dump(one) for one in wanted.keywords]
    )


def import_names(facts: ModuleFacts, module: str, beside: str, name: str) -> list[SourceEdit]:
    """Return the edit that adds a name to the `from module import beside` statement, if it is missing."""
    statements = [
        node
        for node in facts.imports
        if isinstance(node, ast.ImportFrom) and node.module == module and not node.level
    ]
    if any(alias.name == name and alias.asname is None for node in statements for alias in node.names):
        return []
    last = next(node.names[-1] for node in statements if beside in {alias.name for alias in node.names})
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    return [insert_text(last.end_lineno, last.end_col_offset, f", {name}")]


def choose_edits(groups: Iterable[Sequence[SourceEdit]]) -> list[SourceEdit]:
    """Return the edits of the groups that can be applied at once.

    A group is applied as a whole or left for the next pass. Two groups may share equal edits; any other
    edits that touch each other, also two insertions at one place, exclude each other.
    """
    chosen: list[SourceEdit] = []
    for group in groups:
        new = [edit for edit in group if edit not in chosen]
        if not any(_touches(one, other) for one in new for other in chosen):
            chosen += new
    return chosen


def _touches(one: SourceEdit, other: SourceEdit) -> bool:
    starts_before = (one.line, one.column) <= (other.end_line, other.end_column)
    return starts_before and (other.line, other.column) <= (one.end_line, one.end_column)


def apply_edits(source: str, edits: Iterable[SourceEdit]) -> str:
    """Return the source with all edits applied; they must not touch each other."""
    lines = EditedLines(source).lines
    # From the end to the beginning, so that the positions of the remaining edits stay valid.
    for edit in sorted(edits, reverse=True):
        head = lines[edit.line - 1][: edit.column]
        tail = lines[edit.end_line - 1][edit.end_column :]
        text = edit.text.encode("utf-8", "surrogatepass")
        lines[edit.line - 1 : edit.end_line] = (head + text + tail).split(b"\n")
    return b"\n".join(lines).decode("utf-8", "surrogatepass")
