"""Make the reference of the Python interface from signatures and docstrings: the names of api.txt, no others.

Our docstrings list arguments as rows, a name and its meaning in two columns, which no generator reads as
arguments. Here such rows become a table; every other paragraph is Markdown as it stands.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from typing import TYPE_CHECKING

from tools import api

if TYPE_CHECKING:
    from types import ModuleType

#: A row of a docstring's list: one or more names, two spaces or more, and the meaning.
ROW = re.compile(r"^(?P<names>[\w…]+(?:, [\w…]+)*) {2,}(?P<meaning>\S.*)$")
INDEX = """# Python reference

Every public name with its signature and its docstring. The names are those of `api.txt`, which the tests
compare with the code; [Stability](../explanation/stability.md) says what is promised about them.

| module | names |
| --- | --- |
"""


def convert_docstring(text: str) -> str:
    """Return a docstring as Markdown."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(_convert_paragraph(part) for part in parts)


def _convert_paragraph(text: str) -> str:
    """Return one paragraph as Markdown; a paragraph whose first line is a row is a table."""
    lines = text.splitlines()
    if not (first := ROW.match(lines[0])):
        return text
    column = first.start("meaning")
    rows: list[list[str]] = []
    for line in lines:
        if row := ROW.match(line):
            rows.append([row["names"], row["meaning"]])
        elif line[:column].strip() and line[0] != " ":
            # The names fill their column, so that one space is left before the meaning.
            rows.append([line[:column].strip(), line[column:].strip()])
        elif choice := ROW.match(line.strip()):
            # A row inside of a row is a choice for the argument.
            rows[-1][1] += f"<br>`{choice['names']}`: {choice['meaning']}"
        else:
            rows[-1][1] += f" {line.strip()}"
    cells = ("| `{}` | {} |".format(*(cell.replace("|", "\\|") for cell in row)) for row in rows)
    return "\n".join(["| name | meaning |", "| --- | --- |", *cells])


def make_entry(name: str, value: object) -> str:
    """Return the part of a page about one public name, with its members if it is a class."""
    lines = list(api.lines_of_name(name, value))
    own = [line for line in lines if not line.startswith(f"{name}.")]
    short = name.rpartition(".")[2]
    # The constructor is explained by the docstring of its class, and stands before it.
    making = [line for line in lines if line.startswith(f"{name}.__init__(")]
    parts = [f"## {short}", *_describe_origin(name, own + making), _read_docstring(value)]
    for line in lines:
        if line in own + making:
            continue
        # A line begins with the dotted name of the member, up to its signature or its colon.
        member = re.match(r"[\w.]+", line.removeprefix(f"{name}."))
        assert member is not None, line
        text = _read_docstring(inspect.getattr_static(value, member[0]))
        parts += [f"### {short}.{member[0]}", _make_code(line), text]
    return "\n\n".join(part for part in parts if part)


def _describe_origin(name: str, lines: list[str]) -> list[str]:
    """Return how a name is called, or the bases of a class and the calls that make it, as Markdown."""
    parts = []
    for line in lines:
        if line.startswith(f"{name}: class("):
            named = line.removeprefix(f"{name}: class(").removesuffix(")").split(", ")
            bases = ", ".join(base for base in named if not base.startswith("_"))
            parts.append("Class" + (f", derived from `{bases}`" if bases else "") + ".")
        elif line.startswith(f"{name}: made by "):
            parts.append(f"Made by {line.removeprefix(f'{name}: made by ')}; it is not constructed by users.")
        else:
            parts.append(_make_code(line))
    return parts


def _make_code(line: str) -> str:
    """Return a line of the interface as a block of code, broken where a reader would have to scroll."""
    wrapped = textwrap.wrap(
        line, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(["```python", *wrapped, "```"])


def _read_docstring(value: object) -> str:
    """Return a docstring as Markdown; "" for a plain field, whose type has one that says nothing about it."""
    described = isinstance(value, (type, property, classmethod, staticmethod)) or inspect.isroutine(value)
    text = vars(value).get("__doc__") if isinstance(value, type) else getattr(value, "__doc__", None)
    return convert_docstring(text) if described and text else ""


def make_door_page(door: ModuleType) -> str:
    """Return the page of one public module."""
    names = sorted((name for name in door.__all__ if not name.startswith("_")), key=str.lower)
    entries = [make_entry(f"{door.__name__}.{name}", getattr(door, name)) for name in names]
    return "\n\n".join([f"# `{door.__name__}`", convert_docstring(door.__doc__ or ""), *entries, ""])


def build_pages() -> dict[str, str]:
    """Return the pages of the reference by their places on the site."""
    doors = [importlib.import_module(name) for name in api.DOORS]
    pages = {f"api/{door.__name__}.md": make_door_page(door) for door in doors}
    rows = [f"| [`{door.__name__}`]({door.__name__}.md) | {len(door.__all__)} |" for door in doors]
    tree = ["", "```{toctree}", ":hidden:", "", *(door.__name__ for door in doors), "```", ""]
    return pages | {"api/index.md": INDEX + "\n".join([*rows, *tree])}
