"""The way imports may go, what the core may touch, and what `import oncemore` may load.

The rules are the tables below; `docs/design.md` §10 says why. Imports inside functions and those that
only the type checker sees count as well: a word that a lower room needs from a higher one is in the
wrong room, at whatever time it is read. Each checker is tried on small sources that break its rule.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
FRONT_DOOR = "oncemore"

#: From the ground up. A room may import the rooms of every row above its own, never a row below it,
#: nor a neighbour in its row. A new file or folder beside these needs a place here.
ROWS: tuple[tuple[str, ...], ...] = (
    ("_startup", "_version", "errors", "file_trust"),
    ("settings",),
    ("core",),
    ("codec",),
    ("store", "engine"),
    ("signals", "evidence", "govern", "edges"),
    ("configured",),
    ("opening",),
    ("breakers",),
    ("options",),
    ("recipe", "errands"),
    ("api", "steps", "outbox"),
    ("nodes",),
    ("workers", "http"),
    ("inbox",),
    (FRONT_DOOR,),
    ("profiles", "testing"),
    ("desk",),
    ("__main__",),
)

#: What a room may import from its own row all the same: the engine knows the store's protocol, and what
#: keeps a Ctrl-C from a store at work, and never a store.
BESIDE = {("engine", "oncemore.store.base"), ("engine", "oncemore.store.shield")}

#: The core computes: values in, values out. What is not in this list could ask for the time, roll
#: dice, or touch a file, a thread or the network.
PURE = {
    *("__future__", "bisect", "collections", "functools", "hashlib", "itertools", "json", "math"),
    *("operator", "re", "string", "types", "unicodedata"),
    *("_collections", "_sha2", "_sha256"),  # the light inner parts of collections and hashlib
}

#: Built in, and yet not a computation on values.
IMPURE_BUILTINS = {"__import__", "breakpoint", "eval", "exec", "input", "open", "print"}

#: Modules of the standard library that `import oncemore` must not load: together they cost more than
#: everything else it does, and somebody who only wants a `try` with a wait pays for them in each start
#: of each process. They are loaded when first needed.
DEAR = {
    "asyncio": "loaded with the first coroutine, which has loaded it already",
    "dataclasses": "brings inspect, and with it ast, dis, tokenize",
    "datetime": "only dates given by the caller need it, and they bring it",
    "enum": "our closed sets are strings and literals",
    "inspect": "brings ast, dis, tokenize",
    "json": "only proofs need it",
    "logging": "brings re, string, traceback, threading; loaded when something is logged",
    "re": "brings enum and its own compiler",
    "threading": "only timeouts of plain functions need it",
    "typing": "names for the type checker",
}


class Import(NamedTuple):
    """An imported module, the line, and whether only the type checker follows it."""

    module: str
    line: int
    for_types: bool


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def room_of(module: str) -> str:
    """The part after the package's name; the package itself is the front door."""
    return module.split(".")[1] if "." in module else FRONT_DOOR


def type_checking_lines(tree: ast.AST) -> set[int]:
    """The lines in the bodies of `if TYPE_CHECKING:`."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }


def imports_of(source: str, module: str, *, is_package: bool = False) -> list[Import]:
    """Every import in a source, wherever it stands, as absolute names of modules."""
    tree = ast.parse(source)
    for_types = type_checking_lines(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            # `from oncemore.core import key` is an import of oncemore.core.key when that is a module.
            names = [
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names
            ]
        else:
            continue
        found += [Import(name, node.lineno, node.lineno in for_types) for name in names]
    return found


def direction_faults(module: str, imports: list[Import]) -> list[str]:
    """What a module imports from where it may not."""
    row_of = {room: number for number, row in enumerate(ROWS) for room in row}
    room = room_of(module)
    if room not in row_of:
        return [f"{module}: {room!r} has no place yet; add it to ROWS in {Path(__file__).name}"]
    faults = []
    for found in imports:
        if found.module.split(".")[0] != FRONT_DOOR:
            continue
        other = room_of(found.module)
        if other == room or (room, found.module) in BESIDE:
            continue
        if other not in row_of:
            faults.append(f"{module}:{found.line}: {found.module} has no place in ROWS")
        elif row_of[other] >= row_of[room]:
            faults.append(
                f"{module}:{found.line}: {room} may not import {found.module}, which stands above it"
            )
    return faults


def purity_faults(module: str, source: str, imports: list[Import]) -> list[str]:
    """What a module of the core touches that is not a computation on values."""
    faults = [
        f"{module}:{found.line}: the core may not import {found.module}; pass what it gives as a value"
        for found in imports
        if not found.for_types and found.module.split(".")[0] not in PURE | {FRONT_DOOR}
    ]
    faults += [
        f"{module}:{node.lineno}: the core may not call {node.func.id}()"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS
    ]
    return faults


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module: str) -> None:
    path = MODULES[module]
    found = imports_of(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
    assert direction_faults(module, found) == []


@pytest.mark.req("PROD-5")
@pytest.mark.parametrize("module", [module for module in MODULES if room_of(module) == "core"])
def test_the_core_only_computes(module: str) -> None:
    source = MODULES[module].read_text(encoding="utf-8")
    assert purity_faults(module, source, imports_of(source, module)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("oncemore.core.decide", "from oncemore.engine.drive import run"),
        ("oncemore.core.decide", "from oncemore.engine import drive"),
        ("oncemore.core.decide", "from ..engine import drive"),
        ("oncemore.core.decide", "from .. import engine"),
        ("oncemore.core.decide", "import oncemore.engine.drive as drive"),
        ("oncemore.core.decide", "import oncemore"),
        ("oncemore.core.decide", "def f():\n    from oncemore.api import retry"),
        ("oncemore.core.decide", "if TYPE_CHECKING:\n    from oncemore.engine.drive import Op"),
        ("oncemore.errors", "from oncemore.core.model import Failure"),
        ("oncemore.engine.drive", "from oncemore.edges.classify import classify"),
        ("oncemore.engine.drive", "from oncemore.store.sqlite import Store"),
        ("oncemore.edges.classify", "from oncemore.signals.grid import read"),
        ("oncemore.api", "from oncemore import retry"),
        ("oncemore.testing", "from oncemore.desk.demo import main"),
        ("oncemore.attic", "pass"),
        ("oncemore.attic.old", "pass"),
        ("oncemore.desk.demo", "from oncemore.attic import old"),
    ],
)
def test_an_import_the_wrong_way_is_found(module: str, source: str) -> None:
    assert len(direction_faults(module, imports_of(source, module))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("oncemore.core.decide", "from oncemore.errors import UsageError\nfrom oncemore.core import key"),
        ("oncemore.core.decide", "from . import key\nfrom .key import draw"),
        ("oncemore.engine.drive", "from oncemore.store.base import Store"),
        ("oncemore.desk.demo", "import oncemore\nimport http.server"),
        ("oncemore.settings", "from oncemore.errors import UsageError"),
    ],
)
def test_an_import_the_right_way_is_left_alone(module: str, source: str) -> None:
    assert direction_faults(module, imports_of(source, module)) == []


def test_a_room_without_a_place_says_where_to_add_it() -> None:
    assert "add it to ROWS in test_architecture.py" in direction_faults("oncemore.attic.old", [])[0]


@pytest.mark.parametrize(
    "source",
    [
        *(
            f"import {module}"
            for module in ("time", "random", "os", "os.path", "threading", "socket", "logging")
        ),
        *(
            f"from {module} import x"
            for module in ("datetime", "secrets", "pathlib", "asyncio", "contextvars")
        ),
        "def late():\n    from time import time",
        "def late():\n    import rfc8785",
        *(f"{call}('x')" for call in sorted(IMPURE_BUILTINS)),
    ],
)
def test_a_core_that_reaches_out_is_found(source: str) -> None:
    module = "oncemore.core.decide"
    assert len(purity_faults(module, source, imports_of(source, module))) == 1


def test_a_core_may_compute_and_name_types() -> None:
    source = (
        "import math\nif TYPE_CHECKING:\n    from typing import Final\n    from datetime import timedelta\n"
    )
    assert purity_faults("oncemore.core.decide", source, imports_of(source, "oncemore.core.decide")) == []


# What `import oncemore` loads, asked in fresh interpreters.

LOADED = """
import sys
sys.path[:0] = {path!r}
before = set(sys.modules)
import {module}
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def loaded_by(module: str, *options: str, path: list[str]) -> set[str]:
    """The modules that an import adds in a new interpreter that nobody measures."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-I", *options, "-c", LOADED.format(path=path, module=module)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def strangers(loaded: set[str]) -> list[str]:
    """Loaded modules that are neither of the standard library nor ours."""
    return sorted({name.split(".")[0] for name in loaded} - sys.stdlib_module_names - {"oncemore"})


def dear(loaded: set[str]) -> list[str]:
    """Loaded modules that are too dear for a light door, with the reason."""
    return [f"{name}: {DEAR[name]}" for name in sorted(loaded & DEAR.keys())]


# The door opens lazily, so what stands behind `oncemore.retry` is asked as well.
DOORS = ("oncemore", "oncemore.api")


@pytest.mark.parametrize("module", DOORS)
def test_the_light_door_loads_no_third_party_module(module: str) -> None:
    assert strangers(loaded_by(module, path=[str(SOURCE)])) == []


@pytest.mark.parametrize("module", DOORS)
def test_the_light_door_loads_none_of_the_dear_modules(module: str) -> None:
    # Without site-packages, so that nothing there can have loaded them before we look.
    assert dear(loaded_by(module, "-S", path=[str(SOURCE)])) == []


def test_a_dear_or_foreign_import_would_be_seen(tmp_path: Path) -> None:
    tmp_path.joinpath("heavy.py").write_text(
        "import tenacity\nfrom dataclasses import dataclass\nimport logging\n"
    )
    assert {"heavy", "tenacity"} <= set(strangers(loaded_by("heavy", path=[str(tmp_path)])))
    tmp_path.joinpath("heavy.py").write_text("\n".join(f"import {name}" for name in DEAR))
    assert len(dear(loaded_by("heavy", "-S", path=[str(tmp_path)]))) == len(DEAR)
