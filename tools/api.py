"""Keep the public interface as a text file, so that a change to it shows as a diff in review.

    python tools/api.py           print what the code offers now
    python tools/api.py --check   print the difference to api.txt; exit code 1 when there is one
    python tools/api.py --write   rewrite api.txt

Every public name of the front doors is there with its signature, one per line, sorted; of a class also
its bases, how it is made, and its public methods and properties.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

DOORS = (
    "oncemore",
    "oncemore.backoff",
    "oncemore.dashboard",
    "oncemore.http",
    "oncemore.inbox",
    "oncemore.jitter",
    "oncemore.testing",
)
#: Classes that users never construct, with the calls that return them: their constructors are internal.
MADE_BY = {
    "oncemore.Engine": "oncemore.open()",
    "oncemore.JobRun": "Step.map() and Engine.jobs()",
    "oncemore.Run": "Step.run(), Step.submit(), Step.last_run(), and the `run` of an error",
}
FILE = Path(__file__).resolve().parent.parent / "api.txt"
REWRITE = ".venv/bin/python tools/api.py --write"


class _Text:
    """Shows itself as the given text: annotations are strings, and signatures would quote them."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _annotation(value: object) -> object:
    return _Text(value) if isinstance(value, str) else value


def _default(value: object) -> object:
    """A default without an address or a body in it, which would differ from run to run."""
    return _Text("...") if value is ... or " at 0x" in repr(value) else value


def signature(function: Callable[..., object], annotations: dict[str, object] | None = None) -> str:
    """The signature as one would write it."""
    shape = inspect.signature(function)
    known = annotations or {}
    parameters = [
        one.replace(
            annotation=_annotation(known.get(one.name, one.annotation)),
            default=one.default if one.default is one.empty else _default(one.default),
        )
        for one in shape.parameters.values()
    ]
    return str(shape.replace(parameters=parameters, return_annotation=_annotation(shape.return_annotation)))


def _class_lines(name: str, kind: type) -> Iterator[str]:
    annotations = dict(vars(kind).get("__annotations__", {}))
    is_record = issubclass(kind, tuple) and hasattr(kind, "_fields")
    bases = (
        "tuple" if is_record else ", ".join(base.__name__ for base in kind.__bases__ if base is not object)
    )
    yield f"{name}: class({bases})"
    if is_record:
        yield f"{name}({', '.join(_fields(kind, annotations))})"
    if name in MADE_BY:
        yield f"{name}: made by {MADE_BY[name]}"
    for member, value in vars(kind).items():
        if member == "__init__" and name in MADE_BY:
            continue
        if inspect.ismemberdescriptor(value) and not member.startswith("_"):
            yield f"{name}.{member}: {annotations.get(member, 'attribute')}"
        elif member == "__init__" or not member.startswith("_"):
            yield from _member_lines(f"{name}.{member}", value)


def _fields(kind: type, annotations: dict[str, object]) -> Iterator[str]:
    """The fields of a value as one would write them in a call."""
    defaults = getattr(kind, "_field_defaults", {})
    for field in getattr(kind, "_fields", ()):
        default = f" = {_default(defaults[field])!r}" if field in defaults else ""
        yield f"{field}: {annotations[field]}{default}"


def _member_lines(name: str, value: object) -> Iterator[str]:
    if isinstance(value, property) and value.fget is not None:
        returns = inspect.formatannotation(_annotation(inspect.signature(value.fget).return_annotation))
        yield f"{name}: property -> {returns}"
    elif isinstance(value, (classmethod, staticmethod)):
        yield f"{name}{signature(value.__func__)}: {type(value).__name__}"
    elif inspect.isfunction(value):
        yield f"{name}{signature(value)}"


def lines_of_name(name: str, value: object) -> Iterator[str]:
    """The lines of one public name; of a class also those of its members."""
    if isinstance(value, type):
        yield from _class_lines(name, value)
    elif callable(value):
        yield f"{name}{signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def lines_of(door: ModuleType) -> Iterator[str]:
    """The lines of one front door."""
    for short in door.__all__:
        yield from lines_of_name(f"{door.__name__}.{short}", getattr(door, short))


def current() -> str:
    """The whole text as the code has it now."""
    return "".join(
        f"{line}\n"
        for line in sorted(line for door in DOORS for line in lines_of(importlib.import_module(door)))
    )


def difference(text: str, file: Path = FILE) -> str:
    """What differs between the file and a text, or nothing."""
    kept = file.read_text(encoding="utf-8") if file.exists() else ""
    return "".join(
        difflib.unified_diff(
            kept.splitlines(keepends=True), text.splitlines(keepends=True), "api.txt", "the code", n=0
        )
    )


def main(arguments: list[str]) -> int:
    """Print, check or write."""
    parser = argparse.ArgumentParser(description="The public interface as text.")
    parser.add_argument("--check", action="store_true", help="compare with api.txt")
    parser.add_argument("--write", action="store_true", help="rewrite api.txt")
    options = parser.parse_args(arguments)
    text = current()
    if options.write:
        FILE.write_text(text, encoding="utf-8")
    elif options.check:
        changed = difference(text)
        sys.stdout.write(changed and f"{changed}\nif that is meant: {REWRITE}\n")
        return 1 if changed else 0
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
