"""Small questions about statements: where they leave, what they assign, what they call."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oncemore.lint.names import dotted_text, last_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Nodes whose inside runs at another time.
_DEFERRED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOPS = (ast.While, ast.For, ast.AsyncFor)
#: Calls that end the process or the test.
_EXITS = {"exit", "_exit", "abort", "fail", "quit", "fail_json"}


def walk_nodes(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes below some nodes, but nothing inside nested functions and classes."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _DEFERRED):
            stack.extend(ast.iter_child_nodes(node))


def walk_own(statements: Iterable[ast.AST], *, in_loop: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the statements of a loop body, each with whether it is inside of an inner loop."""
    for node in statements:
        # A case of `match` has no position and no meaning of its own.
        if not isinstance(node, ast.match_case):
            yield node, in_loop
        if isinstance(node, _DEFERRED) or not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            continue
        children = [
            one
            for one in ast.iter_child_nodes(node)
            if isinstance(one, ast.stmt | ast.ExceptHandler | ast.match_case)
        ]
        yield from walk_own(children, in_loop=in_loop or isinstance(node, _LOOPS))


def always_leaves(statements: Sequence[ast.stmt]) -> bool:
    """Return whether a block always ends its loop: by raise, return, break or the end of the process."""
    if not statements:
        return False
    last = statements[-1]
    if isinstance(last, ast.Raise | ast.Return | ast.Break):
        return True
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return last_part(last.value) in _EXITS
    if isinstance(last, ast.If):
        return always_leaves(last.body) and always_leaves(last.orelse)
    if isinstance(last, ast.With | ast.AsyncWith):
        return always_leaves(last.body)
    if isinstance(last, ast.Try | ast.TryStar):
        handlers = all(always_leaves(handler.body) for handler in last.handlers)
        return always_leaves(last.finalbody) or (
            handlers and (always_leaves(last.body) or always_leaves(last.orelse))
        )
    return False


def may_leave(statements: Sequence[ast.stmt]) -> bool:
    """Return whether some path through a block leaves the loop around it."""
    for node, in_inner_loop in walk_own(statements):
        if isinstance(node, ast.Raise | ast.Return) or (isinstance(node, ast.Break) and not in_inner_loop):
            return True
        if isinstance(node, ast.Expr) and last_part(node.value) in _EXITS:
            return True
    return False


def list_calls(nodes: Iterable[ast.AST]) -> list[ast.Call]:
    """Return all calls below some nodes."""
    return [node for node in walk_nodes(nodes) if isinstance(node, ast.Call)]


def loaded_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names and dotted names that are read below some nodes."""
    names = set()
    for node in walk_nodes(nodes):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            names.add(dotted_text(node))
    return names - {""}


def assigned_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names and dotted names that are assigned below some nodes."""
    names = set()
    for node in walk_nodes(nodes):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(dotted_text(node))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            names.add(dotted_text(node.value))
        elif isinstance(node, ast.AugAssign):
            names.add(dotted_text(node.target))
    return names - {""}


def handler_types(handler: ast.ExceptHandler) -> list[ast.expr]:
    """Return the exception expressions of a handler; empty for a bare `except:`."""
    if handler.type is None:
        return []
    return list(handler.type.elts) if isinstance(handler.type, ast.Tuple) else [handler.type]
