"""The direction of imports, which files only compute, and which modules `import oncemore` may load.

The rules are the tables below; `docs/design.md` §10 gives the reasons. Imports inside functions and imports
for the type checker count as well: a name that a lower layer needs from a higher one is in the wrong module,
whenever it is read. Each check is also run on small sources that break its rule.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGE = "oncemore"

#: The layers, lowest first. A folder (or a module directly in the package) may import every layer below its
#: own and its neighbours in the same layer. A new folder needs a place here.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "_version",
        "_startup",
        "_platform",
        "errors",
        "_file_trust",
        "_replace_file",
        "_redact",
        "config",
        "clock",
        "_values",
        "_driver",
        "_listeners",
        "events",
        "lint",
    ),
    ("policy", "classifiers", "log", "audit"),
    ("limits", "artifacts"),
    ("retries", "steps"),
    (
        *("backoff", "control", "governance", "http", "inbox", "jitter", "lineage", "maintenance"),
        *("messaging", "migrate", "supply_chain"),
        *("open_engine", "outbox", "schedules", "telemetry", "workers", "workflows"),
    ),
    (PACKAGE,),
    ("queries", "simulate", "testing"),
    ("profiles", "stepfunctions"),
    ("programs",),
    ("dashboard",),
    ("cli", "demo"),
    ("__main__",),
)

#: Folders that import a folder of a higher layer, with the reason. Only these pairs may.
UPWARD: dict[tuple[str, str], str] = {
    ("policy", "governance"): "a governed policy file is verified when it is loaded",
    ("config", "messaging"): "the setting `notify` is checked by the parser of sinks",
    ("artifacts", "steps"): "an artifact is put by an attempt and recorded by its engine",
    ("limits", "steps"): "the limits of durable calls are records of an engine",
    ("limits", "retries"): "a breaker and a budget answer to the retry loop",
    ("limits", "control"): "an operator resets a cooldown or a breaker",
    ("limits", "governance"): "the release of a resource is a decision of an identity with a role",
    ("limits", "open_engine"): "a declared limit opens the configured engine at first use",
    ("audit", "retries"): "the recorder listens to the retry loop",
    ("audit", "messaging"): "the spool writes the same message envelope",
    ("steps", "control"): "a step asks for switches and approvals before it begins",
    ("steps", "governance"): "the gate is asked before every attempt, and a store remembers policy versions",
    ("steps", "workers"): "`Step.map` and `Step.submit` hand runs to workers",
    ("steps", "maintenance"): "the engine offers backup, prune and erase as methods",
    ("steps", "open_engine"): "a step finds its engine in the settings",
    ("steps", "telemetry"): "every attempt is measured, and its outcome is decided by signals",
    ("config", "telemetry"): "the settings `energy` and `signals` are checked by their parsers",
    ("steps", "workflows"): "a run takes signals and shows its journal, and an attempt may wait",
    ("log", "artifacts"): "tagged JSON carries references to artifacts",
    ("log", "steps"): "building a write needs the operations of the flow",
    ("maintenance", "queries"): "the replay sandbox loads the modules that define the steps",
    ("maintenance", "testing"): "the replay sandbox runs on a test clock",
    ("queries", "profiles"): "attempt counts of a profile's categories",
}

#: Files that compute: values in, values out. They may import only each other; every layer may import them.
PURE_FILES = {
    *("oncemore._redact", "oncemore._values"),
    "oncemore.dashboard.request_rules",
    *("oncemore.governance.checkpoint_record", "oncemore.governance.merkle"),
    *(f"oncemore.policy.{name}" for name in ("backoff", "canonical_json", "closing", "decide", "model")),
    *(
        "oncemore.policy.policy",
        "oncemore.policy.explain",
        "oncemore.policy.policy_checks",
        "oncemore.policy.proof",
        "oncemore.policy.tuning",
        "oncemore.policy.verdict",
    ),
    *("oncemore.limits.breaker_rules", "oncemore.limits.concurrency_rules", "oncemore.limits.cooldown_rules"),
    *("oncemore.limits.queue_rules", "oncemore.schedules.record"),
    *("oncemore.limits.rate_rules", "oncemore.control.model", "oncemore.log.record"),
    *("oncemore.governance.dataset_model", "oncemore.governance.role_model"),
    *("oncemore.lineage.ids", "oncemore.maintenance.retention_rules"),
    *("oncemore.telemetry.energy", "oncemore.telemetry.signal_values", "oncemore.telemetry.autonomy_rules"),
    *("oncemore.workers.map_items", "oncemore.workers.turns"),
    *("oncemore.queries.charts", "oncemore.queries.documents"),
    *(f"oncemore.simulate.{name}" for name in ("assumed", "recorded_runs", "storm", "totals", "what_if")),
}

#: What a pure file may import of the standard library, and of us besides other pure files. Anything else
#: could read a clock, draw random numbers, or touch a file, a thread or the network.
PURE_IMPORTS = {
    *("__future__", "bisect", "collections", "functools", "hashlib", "heapq", "itertools", "json", "math"),
    *("operator", "re", "string", "types", "unicodedata"),
    # The light inner parts of collections, hashlib and operator.
    *("_collections", "_operator", "_sha2", "_sha256"),
}
PURE_OURS = {"oncemore.errors"}

#: Built-in functions that do more than compute.
IMPURE_BUILTINS = {"__import__", "breakpoint", "eval", "exec", "input", "open", "print"}

#: Modules of the standard library that `import oncemore` must not load: together they cost more than
#: everything else it does, and each process of a user who only wants `retry` would pay for them.
#: They are imported at first use.
EXPENSIVE = {
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
    """An imported module, its line, and whether only the type checker follows it."""

    module: str
    line: int
    for_types: bool


def module_name(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def folder_of(module: str) -> str:
    """Return the folder (or module) directly below the package; the package itself has its own name."""
    return module.split(".")[1] if "." in module else PACKAGE


def type_checking_lines(tree: ast.AST) -> set[int]:
    """Return the lines in the bodies of `if TYPE_CHECKING:`."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }


def list_imports(source: str, module: str, *, is_package: bool = False) -> list[Import]:
    """Return every import of a source, at the top or inside functions, with absolute module names."""
    return list(read_imports(source, module, is_package))


@cache
def read_imports(source: str, module: str, is_package: bool) -> tuple[Import, ...]:
    """Read the imports of a source once, because several rules ask for those of every module."""
    tree = ast.parse(source)
    for_types = type_checking_lines(tree)
    imports = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            # `from oncemore.policy import decide` imports oncemore.policy.decide when that is a module.
            names = [
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names
            ]
        else:
            continue
        imports += [Import(name, node.lineno, node.lineno in for_types) for name in names]
    return tuple(imports)


def find_upward_imports(module: str, imports: list[Import]) -> list[str]:
    """Return one message for each import from a higher layer that the tables do not permit."""
    layer_of = {folder: number for number, layer in enumerate(LAYERS) for folder in layer}
    folder = folder_of(module)
    if folder not in layer_of:
        return [f"{module}: {folder!r} has no layer; add it to LAYERS in {Path(__file__).name}"]
    messages = []
    for imported in imports:
        if imported.module.split(".")[0] != PACKAGE or imported.module in PURE_FILES:
            continue
        other = folder_of(imported.module)
        if other not in layer_of:
            messages.append(f"{module}:{imported.line}: {imported.module} has no layer in LAYERS")
        elif layer_of[other] > layer_of[folder] and (folder, other) not in UPWARD:
            messages.append(
                f"{module}:{imported.line}: {folder} may not import {imported.module}, a higher layer"
            )
    return messages


def find_impure_code(module: str, source: str, imports: list[Import]) -> list[str]:
    """Return one message for each import or call of a pure file that does more than compute."""
    messages = [
        f"{module}:{imported.line}: a pure file may not import {imported.module}; pass values as arguments"
        for imported in imports
        if not (imported.for_types and imported.module.split(".")[0] != PACKAGE)
        and imported.module not in PURE_FILES | PURE_OURS
        and imported.module.split(".")[0] not in PURE_IMPORTS
    ]
    messages += [
        f"{module}:{node.lineno}: a pure file may not call {node.func.id}()"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS
    ]
    return messages


def find_import_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other while they load."""
    cycles: list[list[str]] = []
    finished: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            cycles.append([*path[path.index(module) :], module])
        elif module not in finished:
            for imported in sorted(graph.get(module, ())):
                visit(imported, [*path, module])
            finished.add(module)

    for module in sorted(graph):
        visit(module, [])
    return cycles


def load_time_imports(module: str, path: Path) -> set[str]:
    """Return our modules that a module imports at its top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = ast.Module(
        body=[node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], type_ignores=[]
    )
    imports = list_imports(ast.unparse(top), module, is_package=path.name == "__init__.py")
    return {imported.module for imported in imports if imported.module in MODULES} - {module}


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down_the_layers(module: str) -> None:
    path = MODULES[module]
    imports = list_imports(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
    assert find_upward_imports(module, imports) == []


def test_permitted_upward_imports_are_all_needed() -> None:
    """A pair of UPWARD that no file uses any more must go."""
    used = {
        (folder_of(module), folder_of(imported.module))
        for module, path in MODULES.items()
        for imported in list_imports(
            path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py"
        )
        if imported.module not in PURE_FILES
    }
    assert set(UPWARD) - used == set()


def test_no_modules_import_each_other_while_loading() -> None:
    graph = {module: load_time_imports(module, path) for module, path in MODULES.items()}
    assert find_import_cycles(graph) == []


def test_an_import_cycle_is_found() -> None:
    assert find_import_cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == [["a", "b", "c", "a"]]


@pytest.mark.req("PROD-5")
@pytest.mark.parametrize("module", sorted(PURE_FILES))
def test_pure_files_only_compute(module: str) -> None:
    source = MODULES[module].read_text(encoding="utf-8")
    assert find_impure_code(module, source, list_imports(source, module)) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("oncemore.policy.decide", "from oncemore.retries.driver import run"),
        ("oncemore.policy.decide", "from oncemore.retries import driver"),
        ("oncemore.policy.decide", "from ..retries import driver"),
        ("oncemore.policy.decide", "from .. import steps"),
        ("oncemore.policy.decide", "import oncemore.retries.driver as driver"),
        ("oncemore.policy.decide", "import oncemore"),
        ("oncemore.policy.decide", "def f():\n    from oncemore.retries.decorator import retry"),
        ("oncemore.policy.decide", "if TYPE_CHECKING:\n    from oncemore.retries.driver import Op"),
        ("oncemore.errors", "from oncemore.policy.files.loader import load"),
        ("oncemore.classifiers.classify", "from oncemore.signals.grid import read"),
        ("oncemore.retries.decorator", "from oncemore import retry"),
        ("oncemore.testing", "from oncemore.demo import main"),
        ("oncemore.attic", "pass"),
        ("oncemore.attic.old", "pass"),
        ("oncemore.demo", "from oncemore.attic import old"),
    ],
)
def test_an_upward_import_is_found(module: str, source: str) -> None:
    assert len(find_upward_imports(module, list_imports(source, module))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "oncemore.policy.decide",
            "from oncemore.errors import UsageError\nfrom oncemore.policy import proof",
        ),
        ("oncemore.policy.decide", "from . import proof\nfrom .proof import Terms"),
        ("oncemore.log.memory", "from oncemore.control.model import Switch"),
        ("oncemore.retries.driver", "from oncemore.log.store import Store"),
        ("oncemore.limits.budget", "from oncemore.steps.engine import Engine"),
        ("oncemore.demo", "import oncemore\nimport http.server"),
        ("oncemore.config", "from oncemore.errors import UsageError"),
    ],
)
def test_a_downward_import_is_accepted(module: str, source: str) -> None:
    assert find_upward_imports(module, list_imports(source, module)) == []


def test_a_folder_without_a_layer_says_where_to_add_it() -> None:
    assert "add it to LAYERS in test_architecture.py" in find_upward_imports("oncemore.attic.old", [])[0]


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
        "from oncemore.steps.engine import Engine",
        "if TYPE_CHECKING:\n    from oncemore.steps.engine import Engine",
        *(f"{call}('x')" for call in sorted(IMPURE_BUILTINS)),
    ],
)
def test_impure_code_is_found(source: str) -> None:
    module = "oncemore.policy.decide"
    assert len(find_impure_code(module, source, list_imports(source, module))) == 1


def test_a_pure_file_may_compute_and_name_types() -> None:
    source = (
        "import math\nif TYPE_CHECKING:\n    from typing import Final\n    from datetime import timedelta\n"
    )
    module = "oncemore.policy.decide"
    assert find_impure_code(module, source, list_imports(source, module)) == []


# What `import oncemore` loads, measured in fresh interpreters.

LOADED = """
import sys
sys.path[:0] = {path!r}
before = set(sys.modules)
import {module}
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def modules_loaded_by(module: str, *options: str, path: list[str]) -> set[str]:
    """Return the modules that an import adds in a new interpreter without coverage."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-I", *options, "-c", LOADED.format(path=path, module=module)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def third_party_modules(loaded: set[str]) -> list[str]:
    """Return the loaded packages that are neither of the standard library nor ours."""
    return sorted({name.split(".")[0] for name in loaded} - sys.stdlib_module_names - {"oncemore"})


def expensive_modules(loaded: set[str]) -> list[str]:
    """Return the loaded modules that a light import must not load, with the reason."""
    return [f"{name}: {EXPENSIVE[name]}" for name in sorted(loaded & EXPENSIVE.keys())]


# The package imports lazily, so the module behind `oncemore.retry` is measured as well.
LIGHT_MODULES = ("oncemore", "oncemore.backoff", "oncemore.jitter", "oncemore.retries.decorator")


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_a_light_import_loads_no_third_party_module(module: str) -> None:
    assert third_party_modules(modules_loaded_by(module, path=[str(SOURCE)])) == []


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_a_light_import_loads_no_expensive_module(module: str) -> None:
    # Without site-packages, so that nothing there can have loaded them before.
    assert expensive_modules(modules_loaded_by(module, "-S", path=[str(SOURCE)])) == []


def test_an_expensive_or_third_party_import_is_found(tmp_path: Path) -> None:
    tmp_path.joinpath("heavy.py").write_text(
        "import tenacity\nfrom dataclasses import dataclass\nimport logging\n"
    )
    assert {"heavy", "tenacity"} <= set(third_party_modules(modules_loaded_by("heavy", path=[str(tmp_path)])))
    tmp_path.joinpath("heavy.py").write_text("\n".join(f"import {name}" for name in EXPENSIVE))
    assert len(expensive_modules(modules_loaded_by("heavy", "-S", path=[str(tmp_path)]))) == len(EXPENSIVE)
