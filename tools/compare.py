"""Count the lines of the programs in examples/compare, and keep their table in the docs.

    python tools/compare.py            print the page
    python tools/compare.py --write    write docs/explanation/compared-in-lines.md

A line counts if it has code on it: blank lines, comments and docstrings do not.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMPARE = ROOT / "examples" / "compare"
PAGE = ROOT / "docs" / "explanation" / "compared-in-lines.md"
LIBRARIES = ("tenacity", "stamina", "dbos", "oncemore")
#: Tokens that make no line of code.
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def program_path(program: str, library: str) -> Path:
    """Return the path of a program as written with a library."""
    return COMPARE / program / f"with_{library}.py"


def list_programs() -> list[str]:
    """Return the names of the programs, in the order of the folders."""
    return sorted(path.parent.name for path in COMPARE.glob("*/with_oncemore.py"))


def count_lines(source: str) -> int:
    """Return the number of lines that have code on them."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(source))


def _docstring_lines(source: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                docstring = node.body[0]
                lines.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return lines


if __name__ == "__main__":
    print({p: {l: count_lines(program_path(p, l).read_text()) for l in LIBRARIES if program_path(p,l).exists()} for p in list_programs()})
