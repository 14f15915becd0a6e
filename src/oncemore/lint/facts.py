"""One pass over a syntax tree that collects everything the rules look at.

The rules read lists (calls, loops, functions, ...) and never walk a whole tree themselves. Each collected
node has a `Place`: the chain of functions, loops, `try` and `with` statements around it. The pass uses an
explicit stack, because deeply nested expressions would exceed the recursion limit, and visits only fields
that can hold a node of interest, because it runs over every node of every file.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from oncemore.lint.names import NameResolver

if TYPE_CHECKING:
    from collections.abc import Iterator

    FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
    LoopNode = ast.While | ast.For | ast.AsyncFor
    TryNode = ast.Try | ast.TryStar

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.While, ast.For, ast.AsyncFor)
TRIES = (ast.Try, ast.TryStar)

#: Parts of a `try` that run after its body has failed or ended.
_REACTIONS = ("handler", "finally")


class Place:
    """A position in the nesting of a module: a node that has a body, and the place around it.

    node    the function, class, loop, `try`, handler or `with`
    part    the part of a `try`: "body", "handler", "else" or "finally"; empty otherwise
    parent  the next place outside; None for a node at module level
    """

    __slots__ = ("node", "parent", "part")

    def __init__(self, node: ast.AST, parent: Place | None, part: str = "") -> None:
        self.node = node
        self.parent = parent
        self.part = part

    def __iter__(self) -> Iterator[Place]:
        place: Place | None = self
        while place is not None:
            yield place
            place = place.parent


class PlacedCall(NamedTuple):
    """A call and its place."""

    node: ast.Call
    place: Place | None


class FunctionSite(NamedTuple):
    """A function definition and its place."""

    node: FunctionNode
    place: Place | None


class LoopSite(NamedTuple):
    """A loop, its place, and the `try` statements in its body that are not inside another loop."""

    node: LoopNode
    place: Place | None
    tries: list[TryNode]


class TrySite(NamedTuple):
    """A `try` statement and its place."""

    node: TryNode
    place: Place | None


def walk_places(place: Place | None) -> Iterator[Place]:
    """Yield a place and those around it, innermost first."""
    return iter(place) if place is not None else iter(())


def enclosing_function(place: Place | None) -> FunctionNode | None:
    """Return the innermost function around a place; None at module or class level."""
    for outer in walk_places(place):
        if isinstance(outer.node, FUNCTIONS):
            return outer.node
    return None


class ModuleFacts:
    """The facts about one module.

    source   the text of the module
    lowered  the same in lower case, for searches of words in comments and strings
    """

    def __init__(self, tree: ast.Module, source: str) -> None:
        self.tree = tree
        self.source = source
        self.calls: list[PlacedCall] = []
        self.functions: list[FunctionSite] = []
        self.classes: list[tuple[ast.ClassDef, Place | None]] = []
        self.loops: list[LoopSite] = []
        self.tries: list[TrySite] = []
        self.withs: list[tuple[ast.With | ast.AsyncWith, Place | None]] = []
        #: Assignments of calls, from which the classes of client objects are known.
        self.assignments: list[tuple[ast.expr, ast.Call, Place | None]] = []
        self.imports: list[ast.Import | ast.ImportFrom] = []
        _collect_facts(self, tree)
        self.names = NameResolver(self)
        self._lowered: str | None = None
        #: Results that several rules share, by the function that computes them.
        self.shared: dict[object, object] = {}

    @property
    def lowered(self) -> str:
        """The source in lower case."""
        if self._lowered is None:
            self._lowered = self.source.lower()
        return self._lowered

    def resolve(self, node: ast.AST, place: Place | None = None) -> str:
        """Return the full dotted name that an expression stands for; empty if it is unknown."""
        return self.names.resolve(node, place)


# Field names that hold names, operators and flags, and never a call or a statement.
_PLAIN_FIELDS = {
    *("ctx", "op", "ops", "id", "name", "attr", "arg", "type_comment", "kind", "annotation", "returns"),
    *(
        "level",
        "module",
        "is_async",
        "simple",
        "conversion",
        "type_ignores",
        "names",
        "asname",
        "rest",
        "cls",
    ),
    *("kwd_attrs", "type_params", "posonlyargs", "kwonlyargs", "vararg", "kwarg"),
}
_LEAVES = (
    ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.unaryop, ast.boolop, ast.alias,
    ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal, ast.arg, ast.type_ignore, ast.mod,
)  # fmt: skip
#: The fields to follow, by node class. Classes that are not here are leaves.
_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(name for name in kind._fields if name not in _PLAIN_FIELDS)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST) and not issubclass(kind, _LEAVES)
}
_SPECIAL = {
    ast.Call, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.While, ast.For,
    ast.AsyncFor, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Import, ast.ImportFrom, ast.Assign,
    ast.AnnAssign,
}  # fmt: skip


def _collect_facts(facts: ModuleFacts, tree: ast.Module) -> None:
    # Each item is a list of nodes that share a place. Nodes inside one item never need a new place.
    pending: list[tuple[list[ast.AST], Place | None]] = [(list(tree.body), None)]
    add_call = facts.calls.append
    while pending:
        stack, place = pending.pop()
        while stack:
            node = stack.pop()
            kind = node.__class__
            fields = _FIELDS.get(kind)
            if fields is None:
                continue
            if kind in _SPECIAL:
                if kind is ast.Call:
                    add_call(PlacedCall(node, place))  # type: ignore[arg-type]
                elif _open_place(facts, node, place, stack, pending):
                    continue
            for name in fields:
                value = getattr(node, name)
                if value.__class__ is list:
                    stack.extend(value)
                elif value is not None:
                    stack.append(value)


def _open_place(
    facts: ModuleFacts,
    node: ast.AST,
    place: Place | None,
    stack: list[ast.AST],
    pending: list[tuple[list[ast.AST], Place | None]],
) -> bool:
    """Record a node; return whether its children have been queued under a new place."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        facts.imports.append(node)
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign):
        _record_assignment(facts, node, place)
        return False
    if isinstance(node, FUNCTIONS):
        facts.functions.append(FunctionSite(node, place))
        # Decorators and defaults are evaluated outside of the function.
        stack.extend(node.decorator_list)
        stack.extend(node.args.defaults)
        stack.extend(default for default in node.args.kw_defaults if default is not None)
        pending.append((list(node.body), Place(node, place)))
    elif isinstance(node, ast.Lambda):
        pending.append(([node.body], Place(node, place)))
    elif isinstance(node, ast.ClassDef):
        facts.classes.append((node, place))
        stack.extend(node.decorator_list)
        stack.extend(node.bases)
        pending.append((list(node.body), Place(node, place)))
    elif isinstance(node, LOOPS):
        facts.loops.append(LoopSite(node, place, []))
        inner = Place(facts.loops[-1].node, place)
        stack.append(node.test if isinstance(node, ast.While) else node.iter)
        pending.append((list(node.body), inner))
        # `else` runs after the loop.
        stack.extend(node.orelse)
    elif isinstance(node, TRIES):
        facts.tries.append(TrySite(node, place))
        pending.append((list(node.body), Place(node, place, "body")))
        pending.append((list(node.orelse), Place(node, place, "else")))
        pending.append((list(node.finalbody), Place(node, place, "finally")))
        pending.extend((list(handler.body), Place(handler, place, "handler")) for handler in node.handlers)
    else:
        assert isinstance(node, ast.With | ast.AsyncWith)
        facts.withs.append((node, place))
        for item in node.items:
            stack.append(item.context_expr)
            if isinstance(item.context_expr, ast.Call) and item.optional_vars is not None:
                facts.assignments.append((item.optional_vars, item.context_expr, place))
        pending.append((list(node.body), Place(node, place)))
    return True


def _record_assignment(facts: ModuleFacts, node: ast.Assign | ast.AnnAssign, place: Place | None) -> None:
    value = node.value
    if isinstance(value, ast.Await):
        value = value.value
    if isinstance(value, ast.Call):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        facts.assignments.extend((target, value, place) for target in targets)


def assign_tries_to_loops(facts: ModuleFacts) -> list[LoopSite]:
    """Return the loops that have a `try` statement of their own, each with its `try` statements."""
    by_node = {id(loop.node): loop for loop in facts.loops}
    for site in facts.tries:
        for place in walk_places(site.place):
            # A `try` inside of a handler reacts to a failure and is not the work that is repeated.
            if isinstance(place.node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)) or place.part in _REACTIONS:
                break
            if isinstance(place.node, LOOPS):
                by_node[id(place.node)].tries.append(site.node)
                break
    return [loop for loop in facts.loops if loop.tries]
