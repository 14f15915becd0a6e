"""Measure how plainly the source is written: names, sizes, positional values, comments, words.

    python tools/plain_words.py            one row per folder of src/oncemore

`tests/test_tidy.py` holds each folder to its limits. The measures and the words to avoid are those of
docs/style.md, section 1.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "oncemore"

#: Words without a technical meaning, each with the words to use instead.
VAGUE_WORDS = {
    "somebody": "the caller, the worker, the operator",
    "nobody": "no caller, no worker, no operator",
    "anybody": "any caller, any process",
    "everybody": "every caller, every process",
    "whoever": "the caller that, the worker that",
    "whatever": "any, every",
    "others": "other callers, other processes, the remaining ones",
    "anew": "again, as a new run",
    "told": "passed, recorded, notified",
}
#: Question words make riddles of sentences: "what refuses to write" is a read-only store.
QUESTION_WORDS = ("what", "who", "whose", "whom", "which")
LONGEST_FUNCTION, LONGEST_CLASS, LONGEST_MODULE = 70, 300, 400
MOST_POSITIONAL = 6

_WORD = re.compile(r"[A-Za-z][A-Za-z'\u2019-]*")
_DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma)")
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


class Finding(NamedTuple):
    """One place that breaks a rule, and the sentence that says how to mend it."""

    place: str
    message: str


class Measures(NamedTuple):
    """The numbers of one folder."""

    one_word_names: float
    comments: float
    vague_words: float
    question_words: float


class Module:
    """One parsed file of the package."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.nodes = list(ast.walk(self.tree))

    @property
    def folder(self) -> str:
        """The folder of the package that the file is in."""
        return self.name_folder(self.path)

    @staticmethod
    def name_folder(path: Path) -> str:
        """Return the folder of the package that a file is in; "." for the root."""
        parts = path.relative_to(SOURCE).parts
        return parts[0] if len(parts) > 1 else "."

    @property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions and methods, except those whose names Python prescribes."""
        found = [node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return [node for node in found if not (node.name.startswith("__") and node.name.endswith("__"))]

    @property
    def classes(self) -> list[ast.ClassDef]:
        """All classes, nested ones too."""
        return [node for node in self.nodes if isinstance(node, ast.ClassDef)]

    def docstrings(self) -> list[tuple[int, str]]:
        """Return line and text of every docstring."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    found.append((node.body[0].lineno, text))
        return found

    def comments_and_code(self) -> tuple[list[tuple[int, str]], int]:
        """Return the comments that have a line of their own, and the number of lines with code."""
        comments, code = [], set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT:
                if token.line.lstrip().startswith("#") and not _DIRECTIVE.match(token.string):
                    comments.append((token.start[0], token.string.lstrip("#: ")))
            elif token.type not in _LAYOUT:
                code.update(range(token.start[0], token.end[0] + 1))
        for node in self.nodes:
            # A string that is a statement is a docstring, and not code.
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        return comments, len(code)


def read_modules() -> list[Module]:
    """Parse every module of the package."""
    return [Module(path) for path in sorted(SOURCE.rglob("*.py"))]


def measure_folders(modules: list[Module]) -> dict[str, Measures]:
    """Return the measures of every folder."""
    folders: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        folders[module.folder].append(module)
    return {name: _measure(members) for name, members in sorted(folders.items())}


def _measure(modules: list[Module]) -> Measures:
    names = [node.name for module in modules for node in module.functions]
    words: list[str] = []
    comment_lines = code_lines = 0
    for module in modules:
        comments, code = module.comments_and_code()
        comment_lines, code_lines = comment_lines + len(comments), code_lines + code
        for _, text in (*module.docstrings(), *comments):
            words += [word.lower() for word in _WORD.findall(text)]
    one_word = sum("_" not in name.strip("_") for name in names)
    vague = sum(word in VAGUE_WORDS for word in words)
    questions = sum(word in QUESTION_WORDS for word in words)
    return Measures(
        one_word_names=100 * one_word / max(1, len(names)),
        comments=100 * comment_lines / max(1, code_lines),
        vague_words=1000 * vague / max(1, len(words)),
        question_words=1000 * questions / max(1, len(words)),
    )


def find_repeated_classes(modules: list[Module]) -> list[Finding]:
    """Return top-level class names that stand in more than one module."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.name}:{node.lineno}")
    return [
        Finding(name, f"{', '.join(where)}: give each class a name of its own")
        for name, where in sorted(places.items())
        if len(where) > 1
    ]


def find_long_parts(modules: list[Module]) -> list[Finding]:
    """Return modules, classes and functions that are longer than their limit."""
    found = []
    for module in modules:
        length = module.text.count("\n")
        if length > LONGEST_MODULE:
            found.append(Finding(module.name, f"{length} lines: split it by subject, at {LONGEST_MODULE}"))
        for node in (*module.classes, *module.functions):
            limit = LONGEST_CLASS if isinstance(node, ast.ClassDef) else LONGEST_FUNCTION
            if (length := _count_lines(node)) > limit:
                found.append(Finding(f"{module.name}:{node.name}", f"{length} lines, the limit is {limit}"))
    return found


def _count_lines(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a class, or those of a function without its docstring."""
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if not isinstance(node, ast.ClassDef) and ast.get_docstring(node):
        first = node.body[0]
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def find_positional_calls(modules: list[Module]) -> list[Finding]:
    """Return calls with more positional values than a reader can match to parameters."""
    found = []
    for module in modules:
        for node in module.nodes:
            if not isinstance(node, ast.Call):
                continue
            values = [value for value in node.args if not isinstance(value, ast.Starred)]
            if len(values) == 2 and ast.unparse(node.func) == "make" and isinstance(values[1], ast.Tuple):
                values = [value for value in values[1].elts if not isinstance(value, ast.Starred)]
            if len(values) > MOST_POSITIONAL:
                place = f"{module.name}:{node.lineno}"
                found.append(Finding(place, f"{len(values)} positional values: pass them by keyword"))
    return found


def find_vague_words(module: Module) -> list[Finding]:
    """Return the docstrings and comments of a module that use a word of VAGUE_WORDS."""
    found = []
    for line, text in (*module.docstrings(), *module.comments_and_code()[0]):
        for word in sorted({word.lower() for word in _WORD.findall(text)} & VAGUE_WORDS.keys()):
            message = f'"{word}": name the actor or the thing ({VAGUE_WORDS[word]})'
            found.append(Finding(f"{module.name}:{line}", message))
    return found


def main() -> None:
    """Print one row per folder."""
    modules = read_modules()
    rows = [("folder", *Measures._fields)]
    rows += [
        (name, *(f"{value:.1f}" for value in measures)) for name, measures in measure_folders(modules).items()
    ]
    for row in rows:
        sys.stdout.write(f"{row[0]:<16}" + "".join(f"{cell:>16}" for cell in row[1:]) + "\n")
    for title, findings in (
        ("class names used twice", find_repeated_classes(modules)),
        ("over a size limit", find_long_parts(modules)),
        ("calls with too many positional values", find_positional_calls(modules)),
    ):
        sys.stdout.write(f"{title}: {len(findings)}\n")
        sys.stdout.writelines(f"  {finding.place}: {finding.message}\n" for finding in findings)


if __name__ == "__main__":
    main()
