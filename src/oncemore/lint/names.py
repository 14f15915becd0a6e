"""Resolve expressions to the full names of imported things.

`get` after `from requests import get`, `r.get` after `import requests as r`, and `session.get` after
`session = requests.Session()` resolve to `requests.get`, `requests.get` and `requests.Session().get`. A name
that is a parameter or comes from a relative import is unknown: the linter does not guess.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oncemore.lint.facts import ModuleFacts, Place

#: Built-in functions that rules ask for.
_BUILTINS = {"eval", "exec", "compile", "input", "range", "iter", "next", "print", "__import__"}
#: Longest chain of attributes and calls that is followed; builders can have thousands.
_MAX_DEPTH = 12


def dotted_text(node: ast.AST) -> str:
    """Return `a.b.c` for a chain of names; empty for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))


def last_part(node: ast.AST) -> str:
    """Return the last name of an expression: `c` for `a.b.c`, for `f().c` and for a call of either."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def parameter_names(arguments: ast.arguments) -> set[str]:
    """Return the names of all parameters of a function."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return {one.arg for one in every}


class NameResolver:
    """Resolves names in one module.

    aliases  imported names, and what each stands for; the whole module is one scope, because an import
             inside a function nearly always means the same module as one at the top
    """

    def __init__(self, facts: ModuleFacts) -> None:
        self.aliases: dict[str, str] = {}
        for node in facts.imports:
            self._add_import(node)
        # Client objects by function and name, or by attribute text such as "self.session".
        self._variables: dict[tuple[int, str], str] = {}
        self._parameters: dict[int, set[str]] = {}
        for target, call, place in facts.assignments:
            self._add_variable(target, call, place)

    def _add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                # `import a.b` binds `a`; `import a.b as c` binds `c` to a.b.
                self.aliases.setdefault(name, alias.name if alias.asname else name)
        elif node.module and not node.level:
            for alias in node.names:
                self.aliases.setdefault(alias.asname or alias.name, f"{node.module}.{alias.name}")
        else:
            for alias in node.names:
                # A relative import hides an absolute one of the same name.
                self.aliases[alias.asname or alias.name] = ""

    def _add_variable(self, target: ast.expr, call: ast.Call, place: Place | None) -> None:
        text = dotted_text(target)
        if not text:
            return
        made = self.resolve(call.func, place)
        key = (self._scope_key(text, place), text)
        # A variable that is assigned twice from different classes is unknown.
        if self._variables.setdefault(key, f"{made}()" if made else "") != (f"{made}()" if made else ""):
            self._variables[key] = ""

    @staticmethod
    def _scope_key(text: str, place: Place | None) -> int:
        while place is not None:
            is_function = isinstance(place.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            # An attribute of self is shared by the methods of its class; a name belongs to its function.
            if isinstance(place.node, ast.ClassDef) or (is_function and "." not in text):
                return id(place.node)
            place = place.parent
        return 0

    def resolve(self, node: ast.AST, place: Place | None = None, depth: int = _MAX_DEPTH) -> str:
        """Return the full dotted name of an expression; empty if it is unknown."""
        tail: list[str] = []
        for left in range(depth, 0, -1):
            if text := dotted_text(node):
                base = self._resolve_text(text, place)
                return ".".join((base, *reversed(tail))) if base else ""
            if isinstance(node, ast.Call):
                base = self.resolve(node.func, place, left - 1)
                return ".".join((f"{base}()", *reversed(tail))) if base else ""
            if not isinstance(node, ast.Attribute):
                break
            tail.append(node.attr)
            node = node.value
        return ""

    def _resolve_text(self, text: str, place: Place | None) -> str:
        head, _, rest = text.partition(".")
        # Longest prefix first: `self.session.get` is looked up as `self.session`, then as `self`.
        prefix, suffix = text, ""
        while prefix:
            if (found := self._find_variable(prefix, place)) is not None:
                return f"{found}{suffix}" if found else ""
            prefix, dot, last = prefix.rpartition(".")
            suffix = f"{dot}{last}{suffix}"
        if self._is_parameter(head, place):
            return ""
        if head in self.aliases:
            base = self.aliases[head]
            return (f"{base}.{rest}" if rest else base) if base else ""
        return text if text in _BUILTINS else ""

    def _find_variable(self, text: str, place: Place | None) -> str | None:
        if not self._variables:
            return None
        while place is not None:
            found = self._variables.get((id(place.node), text))
            if found is not None:
                return found
            place = place.parent
        return self._variables.get((0, text))

    def _is_parameter(self, name: str, place: Place | None) -> bool:
        while place is not None:
            node = place.node
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                if id(node) not in self._parameters:
                    self._parameters[id(node)] = parameter_names(node.args)
                if name in self._parameters[id(node)]:
                    return True
            place = place.parent
        return False
