"""What is made past its constructor (`_values.make`) has all of its fields: none has its default there."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import oncemore

ROOT = Path(oncemore.__file__).parent


def made(path: Path) -> list[tuple[int, str, int]]:
    """Return the lines where something is made of a tuple that is written out: whose, and of how many."""
    text = path.read_text(encoding="utf-8")
    if "make(" not in text:  # most modules, which need not be parsed
        return []
    return [
        (call.lineno, kind.id, len(values.elts))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "make"
        for kind, values in zip(call.args[:1], call.args[1:], strict=False)
        if isinstance(kind, ast.Name) and isinstance(values, ast.Tuple)
        if not any(isinstance(value, ast.Starred) for value in values.elts)
    ]


@pytest.mark.unmeasured
def test_what_is_made_of_a_tuple_has_as_many_values_as_fields() -> None:
    seen = 0
    for path in sorted(ROOT.rglob("*.py")):
        found = made(path)
        if not found:
            continue
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        module: Any = import_module(name)
        for line, kind, values in found:
            fields = len(getattr(module, kind)._fields)
            assert values == fields, f"{name}:{line}: {kind} has {fields} fields, and is made of {values}"
            seen += 1
    assert seen > 10
