"""Count the lines of the programs in examples/compare, and write the table that compares them.

    python tools/compare.py            print the table
    python tools/compare.py --write    write it into docs/explanation/compared-in-lines.md

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
NAMES = {"tenacity": "tenacity", "stamina": "stamina", "dbos": "DBOS", "oncemore": "oncemore"}
#: The folder of each program, what it does, and what the libraries without a log do by hand.
PROGRAMS = {
    "flaky_get": ("get from a busy service, wait as its `Retry-After` says", ""),
    "poll_until_ready": ("poll until an export is ready", ""),
    "pay_once": ("pay once through `kill -9`", "a table of keys and receipts"),
    "pipeline": ("five steps that resume after `kill -9`", "a table of results"),
    "hourly_report": ("a report every hour, once over two processes", "a loop, and a table of ticks"),
    "fan_out": ("a hundred items, ten at a time", ""),
    "approval": ("wait days for a person's approval", "a table of approvals, and a process that polls"),
    "webhook": ("a webhook that is delivered again", "a table of responses"),
    "widget_store": ("a shop with checkout, payment and dispatch", "not written"),
}
#: Tokens that make no line of code.
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

#: The table stands between these lines of the page.
BEGIN, END = "<!-- written by tools/compare.py -->", "<!-- end -->"


def program_path(program: str, library: str) -> Path:
    """Return the path of a program as written with a library."""
    return COMPARE / program / f"with_{library}.py"


def count_lines(source: str) -> int:
    """Return the number of lines that have code on them."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


def count_program(program: str) -> dict[str, int]:
    """Return the lines of a program by library, for the libraries that it is written with."""
    paths = {library: program_path(program, library) for library in LIBRARIES}
    return {
        library: count_lines(path.read_text(encoding="utf-8"))
        for library, path in paths.items()
        if path.exists()
    }


def build_table() -> str:
    """Return the table of the lines of each program."""
    rows = [
        f"| program | {' | '.join(NAMES[library] for library in LIBRARIES)} | by hand with the first two |",
        f"| --- | {' | '.join('---:' for _ in LIBRARIES)} | --- |",
    ]
    for program, (task, by_hand) in PROGRAMS.items():
        lines = count_program(program)
        numbers = " | ".join(str(lines[library]) if library in lines else "" for library in LIBRARIES)
        rows.append(f"| [{task}](../../examples/compare/{program}) | {numbers} | {by_hand} |")
    return "\n".join(rows)


def replace_table(page: str) -> str:
    """Return the page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{build_table()}\n\n{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(build_table())
